/* test-engine-kv-pages.c: the page pool alone: states, counts, order, bytes, failures, and that misuse aborts. */
#include "engine/qe-kv-pages.h"
#include "tests/engine/fake-backend.h"

#include <string.h>

#define PAGE_BYTES 256u
#define PAGE_WORDS (PAGE_BYTES / 4)

typedef struct {
    fake_backend *fake;
    qk_backend *backend;
    qe_kv_pool *pool;
    qk_buffer *host; /* one page, to move bytes through */
} fixture;

static const qk_kv_layout layout = {.dtype = QK_BF16, .page_bytes = PAGE_BYTES};

static void set_up_with(fixture *f, uint32_t n_max, uint32_t slab_pages, bool debug_fill)
{
    f->fake = fake_backend_new();
    f->backend = fake_backend_of(f->fake);
    f->pool = qe_kv_pool_new(f->backend, &layout, n_max, slab_pages, debug_fill);
    g_assert_cmpint(qk_buffer_new(f->backend, QK_MEMORY_HOST, PAGE_BYTES, &f->host), ==, QK_OK);
}

static void tear_down(fixture *f)
{
    qe_kv_pool_free(f->pool);
    qk_buffer_free(f->host);
    fake_backend_free(f->fake);
}

static qe_page must_alloc(fixture *f)
{
    g_autoptr(GError) error = NULL;
    qe_page page = QE_PAGE_NONE;
    bool ok = qe_kv_page_alloc(f->pool, &page, &error);
    g_assert_no_error(error);
    g_assert_true(ok);
    return page;
}

static void write_page(fixture *f, qe_page page, uint32_t value)
{
    for (uint32_t i = 0; i < PAGE_WORDS; i++)
        ((uint32_t *)f->host->host)[i] = value + i;
    qk_copy copy = {.src = f->host, .bytes = PAGE_BYTES};
    copy.dst = qe_kv_page_buffer(f->pool, page, &copy.dst_offset);
    g_assert_cmpint(qk_copy_submit(f->backend, QK_STREAM_TO_DEVICE, &copy, 1), ==, QK_OK);
}

static const uint32_t *read_page(fixture *f, qe_page page)
{
    qk_copy copy = {.dst = f->host, .bytes = PAGE_BYTES};
    copy.src = qe_kv_page_buffer(f->pool, page, &copy.src_offset);
    g_assert_cmpint(qk_copy_submit(f->backend, QK_STREAM_TO_HOST, &copy, 1), ==, QK_OK);
    return f->host->host;
}

/* Checks the pool against the counts of the references that the test holds. */
static void must_check(fixture *f, const uint32_t *n_entries)
{
    g_autoptr(GError) error = NULL;
    bool ok = qe_kv_pool_check(f->pool, n_entries, &error);
    g_assert_no_error(error);
    g_assert_true(ok);
}

static void must_fail_check(fixture *f, const uint32_t *n_entries, const char *text)
{
    g_autoptr(GError) error = NULL;
    g_assert_false(qe_kv_pool_check(f->pool, n_entries, &error));
    g_assert_error(error, QE_ERROR, QE_ERROR_FAILED);
    if (strstr(error->message, text) == NULL)
        g_error("\"%s\" does not say \"%s\"", error->message, text);
}

static void test_states(void)
{
    fixture f;
    set_up_with(&f, 8, 8, false);
    g_assert_cmpuint(qe_kv_pool_n_reserved(f.pool), ==, 0); /* nothing is taken before the first page */
    g_assert_cmpuint(qe_kv_pool_n_available(f.pool), ==, 8);
    g_assert_cmpuint(qe_kv_pool_n_max(f.pool), ==, 8);
    g_assert_cmpuint(qe_kv_pool_page_bytes(f.pool), ==, PAGE_BYTES);

    qe_page page = must_alloc(&f);
    uint32_t n_entries[8] = {1};
    g_assert_cmpuint(page, ==, 0);
    g_assert_cmpint(qe_kv_page_state(f.pool, page), ==, QE_PAGE_TAIL);
    g_assert_cmpuint(qe_kv_page_refs(f.pool, page), ==, 1);
    must_check(&f, n_entries);

    qe_kv_page_seal(f.pool, page);
    g_assert_cmpint(qe_kv_page_state(f.pool, page), ==, QE_PAGE_SEALED);
    qe_kv_page_ref(f.pool, page);
    qe_kv_page_ref(f.pool, page);
    n_entries[0] = 3;
    g_assert_cmpuint(qe_kv_page_refs(f.pool, page), ==, 3);
    g_assert_cmpuint(qe_kv_pool_n_shared(f.pool), ==, 1);
    g_assert_cmpuint(qe_kv_pool_n_used(f.pool), ==, 1);
    must_check(&f, n_entries);

    qe_kv_page_unref(f.pool, page);
    qe_kv_page_unref(f.pool, page);
    g_assert_cmpuint(qe_kv_pool_n_shared(f.pool), ==, 0);
    qe_kv_page_unseal(f.pool, page);
    g_assert_cmpint(qe_kv_page_state(f.pool, page), ==, QE_PAGE_TAIL);
    qe_kv_page_unref(f.pool, page);
    g_assert_cmpint(qe_kv_page_state(f.pool, page), ==, QE_PAGE_FREE);
    n_entries[0] = 0;
    must_check(&f, n_entries);
    g_assert_cmpuint(qe_kv_pool_n_available(f.pool), ==, 8);
    tear_down(&f);
}

/* The lowest free index comes first, over word boundaries of the free map and over slabs. */
static void test_lowest_first(void)
{
    enum { N = 64 * 64 + 70 }; /* three levels of the free map */
    fixture f;
    set_up_with(&f, N, 100, false);
    for (uint32_t i = 0; i < N; i++)
        g_assert_cmpuint(must_alloc(&f), ==, i);
    g_assert_cmpuint(qe_kv_pool_n_reserved(f.pool), ==, N); /* the last slab is a short one */
    g_assert_cmpuint(fake_backend_n_buffers(f.fake), ==, 1 + (N + 99) / 100);

    static const uint32_t freed[] = {4165, 63, 64, 127, 4096, 0, 4095, 1000, 65};
    static const uint32_t order[] = {0, 63, 64, 65, 127, 1000, 4095, 4096, 4165};
    for (uint32_t i = 0; i < G_N_ELEMENTS(freed); i++)
        qe_kv_page_unref(f.pool, freed[i]);
    for (uint32_t i = 0; i < G_N_ELEMENTS(order); i++)
        g_assert_cmpuint(must_alloc(&f), ==, order[i]);
    for (uint32_t i = 0; i < N; i++)
        qe_kv_page_unref(f.pool, i);
    tear_down(&f);
}

/* Addresses: aligned, never 0, pages do not overlap, and the buffer and offset name the same place. */
static void test_addresses(void)
{
    enum { N = 37 };
    fixture f;
    set_up_with(&f, N, 5, false);
    for (uint32_t i = 0; i < N; i++) {
        qe_page page = must_alloc(&f);
        uint64_t offset;
        const qk_buffer *slab = qe_kv_page_buffer(f.pool, page, &offset);
        g_assert_cmpuint(qe_kv_page_address(f.pool, page), ==, slab->address + offset);
        g_assert_cmpuint(qe_kv_page_address(f.pool, page) % 64, ==, 0);
        g_assert_cmpuint(offset + PAGE_BYTES, <=, slab->bytes);
        write_page(&f, page, 1000 * i);
    }
    for (uint32_t i = 0; i < N; i++) {
        const uint32_t *words = read_page(&f, i);
        for (uint32_t w = 0; w < PAGE_WORDS; w++)
            g_assert_cmpuint(words[w], ==, 1000 * i + w);
    }
    for (uint32_t i = 0; i < N; i++)
        qe_kv_page_unref(f.pool, i);
    tear_down(&f);
}

static void test_copy(void)
{
    fixture f;
    set_up_with(&f, 4, 1, true);
    qe_page tail = must_alloc(&f), of_tail, of_sealed;
    write_page(&f, tail, 77);
    g_assert_true(qe_kv_page_copy(f.pool, tail, &of_tail, NULL));
    qe_kv_page_seal(f.pool, tail);
    g_assert_true(qe_kv_page_copy(f.pool, tail, &of_sealed, NULL));
    g_assert_cmpint(qe_kv_page_state(f.pool, of_sealed), ==, QE_PAGE_TAIL);
    g_assert_cmpuint(qe_kv_page_refs(f.pool, tail), ==, 1); /* the source is as before */
    write_page(&f, of_tail, 500);                           /* and the copies are on their own */
    g_assert_cmpuint(read_page(&f, tail)[3], ==, 80);
    g_assert_cmpuint(read_page(&f, of_sealed)[3], ==, 80);
    g_assert_cmpuint(read_page(&f, of_tail)[3], ==, 503);
    const uint32_t n_entries[4] = {1, 1, 1, 0};
    must_check(&f, n_entries);
    qe_kv_page_unref(f.pool, tail);
    qe_kv_page_unref(f.pool, of_tail);
    qe_kv_page_unref(f.pool, of_sealed);
    tear_down(&f);
}

/* With debug_fill a page that is allocated holds NaN, also when it held something else before. */
static void test_debug_fill(void)
{
    fixture f;
    set_up_with(&f, 2, 2, true);
    for (int round = 0; round < 2; round++) {
        qe_page page = must_alloc(&f);
        const uint32_t *words = read_page(&f, page);
        for (uint32_t w = 0; w < PAGE_WORDS; w++)
            g_assert_cmpuint(words[w], ==, UINT32_MAX);
        write_page(&f, page, 1);
        qe_kv_page_unref(f.pool, page);
    }
    g_assert_cmpuint(fake_backend_n_fills(f.fake), ==, 2);
    tear_down(&f);
}

static void test_out_of_pages(void)
{
    fixture f;
    set_up_with(&f, 3, 2, false);
    for (uint32_t i = 0; i < 3; i++)
        must_alloc(&f);
    g_assert_cmpuint(qe_kv_pool_n_available(f.pool), ==, 0);
    qe_page page = 12345;
    g_autoptr(GError) error = NULL;
    g_assert_false(qe_kv_page_alloc(f.pool, &page, &error));
    g_assert_error(error, QE_ERROR, QE_ERROR_NO_MEMORY);
    g_assert_nonnull(strstr(error->message, "3"));
    g_assert_nonnull(strstr(error->message, "256 bytes"));
    g_assert_cmpuint(page, ==, 12345);
    g_assert_false(qe_kv_page_copy(f.pool, 0, &page, NULL)); /* a NULL error is fine */
    const uint32_t n_entries[3] = {1, 1, 1};
    must_check(&f, n_entries);
    qe_kv_page_unref(f.pool, 1);
    g_assert_cmpuint(must_alloc(&f), ==, 1);
    for (uint32_t i = 0; i < 3; i++)
        qe_kv_page_unref(f.pool, i);
    tear_down(&f);
}

/* The device gives no second slab: what there is stays usable, and a later allocation tries again. */
static void test_failed_slab(void)
{
    fixture f;
    set_up_with(&f, 10, 2, false);
    must_alloc(&f);
    must_alloc(&f);
    g_assert_cmpuint(qe_kv_pool_n_available(f.pool), ==, 8);
    fake_backend_fail_alloc(f.fake, 1);
    qe_page page;
    g_autoptr(GError) error = NULL;
    g_assert_false(qe_kv_page_alloc(f.pool, &page, &error));
    g_assert_error(error, QE_ERROR, QE_ERROR_NO_MEMORY);
    g_assert_nonnull(strstr(error->message, "on request")); /* the backend's words */
    g_assert_cmpuint(qe_kv_pool_n_available(f.pool), ==, 0);
    const uint32_t n_entries[10] = {1, 1};
    must_check(&f, n_entries);
    qe_kv_page_unref(f.pool, 0);
    g_assert_cmpuint(qe_kv_pool_n_available(f.pool), ==, 1);
    g_assert_cmpuint(must_alloc(&f), ==, 0);
    g_assert_cmpuint(must_alloc(&f), ==, 2);
    g_assert_cmpuint(qe_kv_pool_n_available(f.pool), ==, 7);
    for (uint32_t i = 0; i < 3; i++)
        qe_kv_page_unref(f.pool, i);
    tear_down(&f);
}

/* Sizes that no device has are an error, not an overflow. */
static void test_huge(void)
{
    fixture f;
    set_up_with(&f, 1, 1, false);
    qk_kv_layout huge = {.dtype = QK_F32, .page_bytes = 1ull << 62};
    qe_kv_pool *pool = qe_kv_pool_new(f.backend, &huge, 100, 100, false);
    qe_page page;
    g_autoptr(GError) error = NULL;
    g_assert_false(qe_kv_page_alloc(pool, &page, &error));
    g_assert_error(error, QE_ERROR, QE_ERROR_NO_MEMORY);
    qe_kv_pool_free(pool);
    tear_down(&f);
}

static void test_lost(void)
{
    fixture f;
    set_up_with(&f, 8, 2, true);
    qe_page page = must_alloc(&f), other;
    fake_backend_lose(f.fake);
    g_autoptr(GError) error = NULL;
    g_assert_false(qe_kv_page_alloc(f.pool, &other, &error)); /* at the fill */
    g_assert_error(error, QE_ERROR, QE_ERROR_DEVICE_LOST);
    g_clear_error(&error);
    g_assert_false(qe_kv_page_copy(f.pool, page, &other, &error));
    g_assert_error(error, QE_ERROR, QE_ERROR_DEVICE_LOST);
    g_assert_cmpuint(qe_kv_pool_n_used(f.pool), ==, 1); /* failed allocations left nothing behind */
    qe_kv_pool_detach(f.pool);
    qe_kv_page_unref(f.pool, page);
    g_assert_cmpuint(qe_kv_pool_n_used(f.pool), ==, 0);
    g_assert_cmpuint(qe_kv_pool_n_reserved(f.pool), ==, 0);
    g_assert_cmpuint(qe_kv_pool_n_available(f.pool), ==, 8);
    must_check(&f, (const uint32_t[8]){0});
    tear_down(&f);
}

/* The checker sees page tables that name a page too often, not at all, or after it was freed. */
static void test_check_fails(void)
{
    fixture f;
    set_up_with(&f, 4, 4, false);
    for (uint32_t i = 0; i < 3; i++)
        must_alloc(&f);
    qe_kv_page_seal(f.pool, 0);
    qe_page gone = must_alloc(&f);
    qe_kv_page_unref(f.pool, gone);
    must_check(&f, (const uint32_t[]){1, 1, 1, 0});
    must_fail_check(&f, (const uint32_t[]){2, 1, 1, 0}, "page 0 (SEALED) has 1 references");
    must_fail_check(&f, (const uint32_t[]){1, 0, 1, 0}, "page 1 (TAIL) has 1 references");
    must_fail_check(&f, (const uint32_t[]){1, 1, 1, 1}, "page 3 (FREE)");
    qe_kv_page_ref(f.pool, 0);
    must_fail_check(&f, (const uint32_t[]){1, 1, 1, 0}, "name it 1 times");
    for (uint32_t i = 0; i < 3; i++)
        qe_kv_page_unref(f.pool, i);
    qe_kv_page_unref(f.pool, 0);
    tear_down(&f);
}

/* Thousands of random operations against the plainest model: an array of states and counts. */
static void test_random(void)
{
    enum { N = 150, N_OPS = 20000 };
    fixture f;
    set_up_with(&f, N, 7, false);
    uint32_t n_refs[N] = {0}, values[N] = {0};
    bool is_sealed[N] = {false};
    for (uint32_t op = 0; op < N_OPS; op++) {
        uint32_t p = (uint32_t)g_test_rand_int_range(0, N);
        switch (g_test_rand_int_range(0, 7)) {
        case 0:
        case 1:
        case 2: {
            bool copy = n_refs[p] > 0 && g_test_rand_bit();
            uint32_t lowest = 0;
            while (lowest < N && n_refs[lowest] > 0)
                lowest++;
            qe_page page = QE_PAGE_NONE;
            bool ok = copy ? qe_kv_page_copy(f.pool, p, &page, NULL) : qe_kv_page_alloc(f.pool, &page, NULL);
            g_assert_cmpint(ok, ==, lowest < N);
            if (!ok)
                break;
            g_assert_cmpuint(page, ==, lowest);
            n_refs[page] = 1;
            is_sealed[page] = false;
            values[page] = copy ? values[p] : op * 1000;
            if (!copy)
                write_page(&f, page, values[page]);
            break;
        }
        case 3:
            if (n_refs[p] > 0) {
                n_refs[p]--;
                qe_kv_page_unref(f.pool, p);
            }
            break;
        case 4:
            if (n_refs[p] > 0 && !is_sealed[p]) {
                is_sealed[p] = true;
                qe_kv_page_seal(f.pool, p);
            }
            break;
        case 5:
            if (n_refs[p] > 0 && is_sealed[p]) {
                n_refs[p]++;
                qe_kv_page_ref(f.pool, p);
            }
            break;
        default:
            if (n_refs[p] == 1 && is_sealed[p]) {
                is_sealed[p] = false;
                qe_kv_page_unseal(f.pool, p);
            }
        }
        must_check(&f, n_refs);
        if (n_refs[p] > 0)
            g_assert_cmpuint(read_page(&f, p)[5], ==, values[p] + 5);
    }
    for (uint32_t p = 0; p < N; p++)
        for (; n_refs[p] > 0; n_refs[p]--)
            qe_kv_page_unref(f.pool, p);
    tear_down(&f);
}

/* ---- Misuse aborts ---- */

static void misuse(const char *how)
{
    fixture f;
    set_up_with(&f, 4, 4, false);
    qe_page page = must_alloc(&f);
    if (strcmp(how, "ref-tail") == 0) {
        qe_kv_page_ref(f.pool, page);
    } else if (strcmp(how, "double-unref") == 0) {
        qe_kv_page_unref(f.pool, page);
        qe_kv_page_unref(f.pool, page);
    } else if (strcmp(how, "seal-sealed") == 0) {
        qe_kv_page_seal(f.pool, page);
        qe_kv_page_seal(f.pool, page);
    } else if (strcmp(how, "unseal-shared") == 0) {
        qe_kv_page_seal(f.pool, page);
        qe_kv_page_ref(f.pool, page);
        qe_kv_page_unseal(f.pool, page);
    } else if (strcmp(how, "unseal-tail") == 0) {
        qe_kv_page_unseal(f.pool, page);
    } else if (strcmp(how, "copy-free") == 0) {
        qe_kv_page_copy(f.pool, 3, &page, NULL);
    } else if (strcmp(how, "no-such-page") == 0) {
        qe_kv_page_unref(f.pool, 4);
    } else if (strcmp(how, "free-in-use") == 0) {
        qe_kv_pool_free(f.pool);
    }
}

static void test_misuse(gconstpointer how)
{
    if (g_test_subprocess()) {
        misuse(how);
        return;
    }
    g_test_trap_subprocess(NULL, 0, 0);
    g_test_trap_assert_failed();
    g_test_trap_assert_stderr("*qe-kv-pages.c*assertion failed*");
}

/* Slabs come and go at the end; the budget moves both ways, also below what is in use and across a short slab. */
static void test_resize(void)
{
    fixture f;
    qe_page pages[24];
    uint32_t entries[64] = {0};
    g_autoptr(GError) error = NULL;
    set_up_with(&f, 10, 4, false);
    g_assert_true(qe_kv_pool_warm(f.pool, &error));
    g_assert_cmpuint(qe_kv_pool_n_reserved(f.pool), ==, 4);
    for (uint32_t i = 0; i < 10; i++) {
        pages[i] = must_alloc(&f);
        write_page(&f, pages[i], 1000 * i);
        entries[pages[i]] = 1;
    }
    g_assert_false(qe_kv_page_alloc(f.pool, &pages[10], NULL));
    must_check(&f, entries);
    qe_kv_pool_set_max(f.pool, 24); /* past the slab of 2 */
    for (uint32_t i = 10; i < 24; i++) {
        pages[i] = must_alloc(&f);
        write_page(&f, pages[i], 1000 * i);
        entries[pages[i]] = 1;
    }
    must_check(&f, entries);
    for (uint32_t i = 0; i < 24; i++)
        g_assert_cmpuint(read_page(&f, pages[i])[1], ==, 1000 * i + 1);
    g_assert_cmpuint(qe_kv_pool_trim(f.pool, 1), ==, 0);

    qe_kv_pool_set_max(f.pool, 5);
    g_assert_cmpuint(qe_kv_pool_n_available(f.pool), ==, 0);
    must_check(&f, entries);
    for (uint32_t i = 4; i < 24; i++) {
        qe_kv_page_unref(f.pool, pages[i]);
        entries[pages[i]] = 0;
        g_assert_cmpuint(qe_kv_pool_n_available(f.pool), ==, i == 23 ? 1 : 0);
    }
    g_assert_cmpuint(qe_kv_pool_n_reserved(f.pool), ==, 24);
    g_assert_cmpuint(
        qe_kv_pool_trim(f.pool, 8), ==, 16); /* what lies whole past the budget goes, kept or not */
    g_assert_cmpuint(qe_kv_pool_n_reserved(f.pool), ==, 8);
    must_check(&f, entries);
    pages[4] = must_alloc(&f);
    entries[pages[4]] = 1;
    g_assert_false(
        qe_kv_page_alloc(f.pool, &pages[5], NULL)); /* free pages there are, but not in the budget */
    must_check(&f, entries);
    for (uint32_t i = 0; i < 5; i++)
        qe_kv_page_unref(f.pool, pages[i]);
    g_assert_cmpuint(qe_kv_pool_trim(f.pool, 0), ==, 8);
    g_assert_cmpuint(qe_kv_pool_n_reserved(f.pool), ==, 0);
    tear_down(&f);
}

int main(int argc, char **argv)
{
    g_test_init(&argc, &argv, NULL);
    g_test_add_func("/engine/kv-pages/states", test_states);
    g_test_add_func("/engine/kv-pages/lowest-first", test_lowest_first);
    g_test_add_func("/engine/kv-pages/addresses", test_addresses);
    g_test_add_func("/engine/kv-pages/copy", test_copy);
    g_test_add_func("/engine/kv-pages/debug-fill", test_debug_fill);
    g_test_add_func("/engine/kv-pages/out-of-pages", test_out_of_pages);
    g_test_add_func("/engine/kv-pages/failed-slab", test_failed_slab);
    g_test_add_func("/engine/kv-pages/huge", test_huge);
    g_test_add_func("/engine/kv-pages/lost", test_lost);
    g_test_add_func("/engine/kv-pages/check-fails", test_check_fails);
    g_test_add_func("/engine/kv-pages/resize", test_resize);
    g_test_add_func("/engine/kv-pages/random", test_random);
    static const char *const misuses[] = {"ref-tail", "double-unref", "seal-sealed", "unseal-shared",
        "unseal-tail", "copy-free", "no-such-page", "free-in-use"};
    for (uint32_t i = 0; i < G_N_ELEMENTS(misuses); i++) {
        g_autofree char *path = g_strconcat("/engine/kv-pages/misuse/", misuses[i], NULL);
        g_test_add_data_func(path, misuses[i], test_misuse);
    }
    return g_test_run();
}
