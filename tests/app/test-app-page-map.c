/* Tests of the page map's geometry. Needs no display. */
#include "app/quire-page-map.h"

static void test_layout(void)
{
    QuireMapLayout l;

    quire_map_layout_compute(&l, 0, 276);
    g_assert_cmpuint(l.n_cells, ==, 0);
    g_assert_cmpuint(l.n_rows, ==, 0);
    quire_map_layout_compute(&l, 31, 276);
    g_assert_cmpuint(l.n_columns, ==, 30);
    g_assert_cmpuint(l.n_rows, ==, 2);
    g_assert_cmpuint(l.pages_per_cell, ==, 1);
    /* 30 cells need 30 * 9 - 1 px. */
    quire_map_layout_compute(&l, 31, 269);
    g_assert_cmpuint(l.n_columns, ==, 30);
    quire_map_layout_compute(&l, 31, 268);
    g_assert_cmpuint(l.n_columns, ==, 29);
    quire_map_layout_compute(&l, 5, 0);
    g_assert_cmpuint(l.n_columns, ==, 1);
    quire_map_layout_compute(&l, 2048, 276);
    g_assert_cmpuint(l.pages_per_cell, ==, 1);
    quire_map_layout_compute(&l, 2049, 276);
    g_assert_cmpuint(l.pages_per_cell, ==, 2);
    g_assert_cmpuint(l.n_cells, ==, 1025);
    quire_map_layout_compute(&l, 16384, 276);
    g_assert_cmpuint(l.pages_per_cell, ==, 8);
}

static void test_hit(void)
{
    QuireMapLayout l;

    quire_map_layout_compute(&l, 31, 276);
    g_assert_cmpint(quire_map_layout_hit(&l, 0, 0, 276, FALSE), ==, 0);
    g_assert_cmpint(quire_map_layout_hit(&l, 10, 0, 276, FALSE), ==, 1);
    g_assert_cmpint(quire_map_layout_hit(&l, 3, 10, 276, FALSE), ==, 30);
    g_assert_cmpint(quire_map_layout_hit(&l, 12, 10, 276, FALSE), ==, -1);
    g_assert_cmpint(quire_map_layout_hit(&l, 275, 0, 276, FALSE), ==, -1);
    g_assert_cmpint(quire_map_layout_hit(&l, -1, 0, 276, FALSE), ==, -1);
    g_assert_cmpint(quire_map_layout_hit(&l, 275, 0, 276, TRUE), ==, 0);
    g_assert_cmpint(quire_map_layout_hit(&l, 265, 0, 276, TRUE), ==, 1);
}

static void test_merge(void)
{
    QuireMapLayout l;
    QuireMapCell cell;
    g_autofree qe_cell *pages = g_new0(qe_cell, 2049);

    for (guint i = 0; i < 2049; i++)
        pages[i] = (qe_cell){.flags = QE_TIER_GPU, .n_refs = 1, .n_tokens = 16};
    pages[3].flags = QE_TIER_DISK;
    pages[4].flags = QE_TIER_HOST | QE_CELL_SHARED;
    pages[4].n_refs = 3;
    pages[2048].n_tokens = 5;
    quire_map_layout_compute(&l, 2049, 276);
    quire_map_cell_merge(&cell, &l, pages, 1);
    g_assert_cmpuint(cell.tier, ==, QE_TIER_DISK); /* the worst wins */
    g_assert_false(cell.shared);
    g_assert_cmpuint(cell.first_token, ==, 32);
    g_assert_cmpuint(cell.n_tokens, ==, 32);
    quire_map_cell_merge(&cell, &l, pages, 2);
    g_assert_cmpuint(cell.tier, ==, QE_TIER_HOST);
    g_assert_true(cell.shared);
    g_assert_cmpuint(cell.n_refs, ==, 3);
    g_assert_cmpuint(cell.by_tier[QE_TIER_HOST], ==, 1);
    g_assert_cmpuint(cell.by_tier[QE_TIER_GPU], ==, 1);
    quire_map_cell_merge(&cell, &l, pages, 1024); /* the last cell has one page */
    g_assert_cmpuint(cell.n_pages, ==, 1);
    g_assert_cmpuint(cell.n_tokens, ==, 5);
}

/* Tier, shared and moving are bits of one byte: each shows whatever the others are. */
static void test_tiers(void)
{
    QuireMapLayout one, two, all;
    QuireMapCell cell;
    qe_cell pages[24];

    for (guint i = 0; i < 24; i++)
        pages[i] = (qe_cell){.flags = (uint8_t)((i % QE_N_TIERS) | (i & 4 ? QE_CELL_SHARED : 0) |
                                                (i & 8 ? QE_CELL_MOVING : 0) | (i == 23 ? QE_CELL_TAIL : 0)),
            .n_refs = i & 4 ? 2 : 1,
            .n_tokens = 16};
    quire_map_layout_compute(&one, 24, 276);
    for (guint i = 0; i < 24; i++) {
        quire_map_cell_merge(&cell, &one, pages, i);
        g_assert_cmpuint(cell.tier, ==, i % QE_N_TIERS);
        g_assert_cmpint(cell.shared, ==, (i & 4) != 0);
        g_assert_cmpint(cell.moving, ==, (i & 8) != 0);
        for (guint t = 0; t < QE_N_TIERS; t++)
            g_assert_cmpuint(cell.by_tier[t], ==, t == i % QE_N_TIERS);
    }
    two = (QuireMapLayout){.n_pages = 24, .pages_per_cell = 2, .n_cells = 12};
    quire_map_cell_merge(&cell, &two, pages, 0); /* GPU and host */
    g_assert_cmpuint(cell.tier, ==, QE_TIER_HOST);
    g_assert_false(cell.moving);
    quire_map_cell_merge(&cell, &two, pages, 4); /* pages 8 and 9 */
    g_assert_true(cell.moving);
    g_assert_false(cell.shared);
    all = (QuireMapLayout){.n_pages = 24, .pages_per_cell = 24};
    quire_map_cell_merge(&cell, &all, pages, 0);
    for (guint t = 0; t < QE_N_TIERS; t++)
        g_assert_cmpuint(cell.by_tier[t], ==, 8);
    /* A tier that this program does not know counts as the slowest. */
    pages[0].flags = QE_CELL_TIER_MASK;
    quire_map_cell_merge(&cell, &one, pages, 0);
    g_assert_cmpuint(cell.tier, ==, QE_TIER_DISK);
    /* No pages: nothing is read. */
    all.n_pages = 0;
    quire_map_cell_merge(&cell, &all, NULL, 0);
    g_assert_cmpuint(cell.n_pages, ==, 0);
}

int main(int argc, char **argv)
{
    g_test_init(&argc, &argv, NULL);
    g_test_add_func("/app/page-map/layout", test_layout);
    g_test_add_func("/app/page-map/hit", test_hit);
    g_test_add_func("/app/page-map/merge", test_merge);
    g_test_add_func("/app/page-map/tiers", test_tiers);
    return g_test_run();
}
