/* test-engine-sched.c: the cost model and the choice of rows, as pure functions. */
#include "engine/qe-limits.h"
#include "engine/qe-sched.h"

static const qe_sched_limits wide = {
    .ms_max = 50, .rows_max = 512, .logits_max = 64, .seqs_max = 64, .outputs_max = 128};

/* 1 ms a step, 0.1 ms a row, nothing for attention. */
static qe_cost simple_cost(void)
{
    return (qe_cost){.a = 1, .b = 0.1};
}

static void test_cost_learns(void)
{
    qe_cost cost;
    qe_cost_init(&cost, false, 18u << 20, 9000000, 4 * 8 * 8 * 64);
    const double a = 0.8, b = 0.05, c = 2e-6;
    uint32_t seed = 7;
    for (int i = 0; i < 400; i++) {
        seed = seed * 1664525u + 1013904223u;
        uint32_t rows = i % 3 ? 1 + seed % 4 : 64 + seed % 256, start = (seed >> 8) % 4000;
        double attended = qe_cost_attended(start, rows);
        qe_cost_observe(&cost, rows, attended, a + b * rows + c * attended);
    }
    for (uint32_t rows = 1; rows <= 512; rows *= 4) {
        double attended = qe_cost_attended(2000, rows), want = a + b * rows + c * attended;
        g_assert_cmpfloat_with_epsilon(qe_cost_predict(&cost, rows, attended), want, 0.05 * want);
    }
    /* The machine gets four times slower: the prediction follows. */
    for (int i = 0; i < 400; i++) {
        uint32_t rows = i % 3 ? 1 : 100;
        double attended = qe_cost_attended(500, rows);
        qe_cost_observe(&cost, rows, attended, 4 * (a + b * rows + c * attended));
    }
    double attended = qe_cost_attended(500, 100), want = 4 * (a + b * 100 + c * attended);
    g_assert_cmpfloat_with_epsilon(qe_cost_predict(&cost, 100, attended), want, 0.15 * want);
    /* Nonsense leaves it usable. */
    qe_cost_observe(&cost, 10, 10, -1);
    qe_cost_observe(&cost, 0, 0, 5);
    g_assert_cmpfloat(cost.a, >=, 0);
    g_assert_cmpfloat(cost.b, >=, 0);
    g_assert_cmpfloat(cost.c, >=, 0);
}

static void test_decodes_first(void)
{
    qe_cost cost = simple_cost();
    qe_sched_item items[] = {
        {.start = 0, .n_known = 4000},
        {.start = 100, .n_known = 1, .decode = true},
        {.start = 0, .n_known = 10},
        {.start = 200, .n_known = 1, .decode = true},
    };
    double ms = qe_sched_plan(&cost, &wide, items, 4, 0);
    g_assert_cmpuint(items[1].n_rows, ==, 1);
    g_assert_cmpuint(items[3].n_rows, ==, 1);
    /* 50 = 1 + 0.1 (2 + n): the oldest prompt takes it all, the younger one waits its turn. */
    g_assert_cmpuint(items[0].n_rows, >=, 487);
    g_assert_cmpuint(items[0].n_rows, <=, 488);
    g_assert_cmpuint(items[2].n_rows, ==, 0);
    g_assert_cmpfloat(ms, <=, 50.0001);
    /* A short old prompt leaves room for the next. */
    items[0].n_known = 5;
    qe_sched_plan(&cost, &wide, items, 4, 0);
    g_assert_cmpuint(items[0].n_rows, ==, 5);
    g_assert_cmpuint(items[2].n_rows, ==, 10);
}

static void test_slow_device(void)
{
    /* Decoding alone takes longer than the bound: it still runs, and the oldest prompt still advances. */
    qe_cost cost = {.a = 200, .b = 10};
    qe_sched_item items[] = {
        {.start = 9, .n_known = 1, .decode = true},
        {.start = 0, .n_known = 100},
        {.start = 0, .n_known = 100},
    };
    qe_sched_plan(&cost, &wide, items, 3, 0);
    g_assert_cmpuint(items[0].n_rows, ==, 1);
    g_assert_cmpuint(items[1].n_rows, ==, QE_PREFILL_ROWS_MIN);
    g_assert_cmpuint(items[2].n_rows, ==, 0);
}

static void test_limits(void)
{
    qe_cost cost = {0};
    qe_sched_limits limits = wide;
    limits.rows_max = 3;
    qe_sched_item items[5];
    uint32_t n_taken[5] = {0};
    for (uint32_t rotate = 0; rotate < 5; rotate++) {
        for (int i = 0; i < 5; i++)
            items[i] = (qe_sched_item){.start = 5, .n_known = 1, .decode = true};
        qe_sched_plan(&cost, &limits, items, 5, rotate);
        uint32_t rows = 0;
        for (int i = 0; i < 5; i++) {
            rows += items[i].n_rows;
            n_taken[i] += items[i].n_rows;
        }
        g_assert_cmpuint(rows, ==, 3);
    }
    for (int i = 0; i < 5; i++)
        g_assert_cmpuint(n_taken[i], ==, 3);
    /* Rows whose logits are copied out are bounded; rows before them are not. */
    limits = wide;
    limits.logits_max = 4;
    items[0] = (qe_sched_item){.start = 0, .n_known = 100, .n_logit_rows = 20};
    qe_sched_plan(&cost, &limits, items, 1, 0);
    g_assert_cmpuint(items[0].n_rows, ==, 84);
    items[0] = (qe_sched_item){.start = 84, .n_known = 16, .n_logit_rows = 16};
    qe_sched_plan(&cost, &limits, items, 1, 0);
    g_assert_cmpuint(items[0].n_rows, ==, 4);
}

/* Random items: the invariants of qe-sched.c hold. */
static void test_invariants(void)
{
    for (int round = 0; round < 2000; round++) {
        qe_cost cost = {.a = g_test_rand_double_range(0, 80),
            .b = g_test_rand_double_range(0, 2),
            .c = g_test_rand_double_range(0, 1e-3)};
        qe_sched_limits limits = {
            .ms_max = 50,
            .rows_max = (uint32_t)g_test_rand_int_range(1, 64),
            .seqs_max = (uint32_t)g_test_rand_int_range(1, 8),
            .outputs_max = (uint32_t)g_test_rand_int_range(1, 16),
            .logits_max = (uint32_t)g_test_rand_int_range(1, 8),
        };
        qe_sched_item items[10];
        uint32_t n = (uint32_t)g_test_rand_int_range(1, 11);
        for (uint32_t i = 0; i < n; i++) {
            bool decode = g_test_rand_bit();
            uint32_t n_known = decode ? 1 : (uint32_t)g_test_rand_int_range(1, 100);
            items[i] = (qe_sched_item){
                .start = (uint32_t)g_test_rand_int_range(0, 1000),
                .n_known = n_known,
                .decode = decode,
                .n_logit_rows = decode ? 0 : (uint32_t)g_test_rand_int_range(0, (gint)n_known + 1),
            };
        }
        qe_sched_plan(&cost, &limits, items, n, (uint32_t)g_test_rand_int_range(0, 10));
        uint32_t rows = 0, seqs = 0;
        bool waits = false;
        for (uint32_t i = 0; i < n; i++) {
            g_assert_cmpuint(items[i].n_rows, <=, items[i].n_known);
            rows += items[i].n_rows;
            seqs += items[i].n_rows > 0;
            if (!items[i].decode) {
                g_assert_false(waits && items[i].n_rows);
                waits |= items[i].n_rows < items[i].n_known;
            }
        }
        g_assert_cmpuint(rows, >, 0);
        g_assert_cmpuint(rows, <=, limits.rows_max);
        g_assert_cmpuint(seqs, <=, limits.seqs_max);
    }
}

static void test_admission(void)
{
    g_assert_true(qe_sched_admits(10, 4, 3, 3));
    g_assert_false(qe_sched_admits(10, 4, 3, 4));
    g_assert_false(qe_sched_admits(10, UINT32_MAX, UINT32_MAX, UINT32_MAX));
}

int main(int argc, char **argv)
{
    g_test_init(&argc, &argv, NULL);
    g_test_add_func("/engine/sched/cost-learns", test_cost_learns);
    g_test_add_func("/engine/sched/decodes-first", test_decodes_first);
    g_test_add_func("/engine/sched/slow-device", test_slow_device);
    g_test_add_func("/engine/sched/limits", test_limits);
    g_test_add_func("/engine/sched/invariants", test_invariants);
    g_test_add_func("/engine/sched/admission", test_admission);
    return g_test_run();
}
