/* test-engine-kv-tiers.c: single cases of the page pool with a host tier: counts that the engine goes by, a smaller budget,
 * host memory that cannot be had now or on a new device. The random walk over all of it is test-engine-kv-walk.c. */
#include <string.h>
#include "engine/qe-kv-pages.h"
#include "engine/qe-session.h"
#include "tests/engine/fake-backend.h"

#define PAGE_BYTES 4096u

static const qk_kv_layout layout = {.dtype = QK_BF16, .token_stride = 256, .page_bytes = PAGE_BYTES};

typedef struct {
    fake_backend *fake;
    qe_kv_pool *pool;
    qe_kv_ledger device, host;
} fixture;

static void set_up(fixture *f, uint32_t n_device, uint32_t n_host)
{
    f->fake = fake_backend_new();
    fake_backend_be_late(f->fake);
    f->device = (qe_kv_ledger){.bytes_max = n_device * PAGE_BYTES};
    f->host = (qe_kv_ledger){.bytes_max = n_host * PAGE_BYTES};
    f->pool = qe_kv_pool_new(fake_backend_of(f->fake), &layout, n_device, 4, true);
    qe_kv_pool_add_host(f->pool, n_host, 4, false, &f->device, &f->host);
}

static void tear_down(fixture *f)
{
    qe_kv_pool_free(f->pool);
    g_assert_cmpuint(f->device.bytes_taken, ==, 0);
    g_assert_cmpuint(f->host.bytes_taken, ==, 0);
    fake_backend_free(f->fake);
}

static void must_check(fixture *f, const qe_session *s)
{
    g_autoptr(GError) error = NULL;
    g_autofree uint32_t *n_entries = g_new0(uint32_t, qe_kv_pool_n_pages(f->pool) + 1);
    if (s) {
        qe_session_check(s, &error);
        g_assert_no_error(error);
        qe_session_count_pages(s, n_entries);
    }
    qe_kv_pool_check(f->pool, n_entries, &error);
    g_assert_no_error(error);
}

/* A session with @n tokens computed, and stored when the policy says so. */
static qe_session *session_with(fixture *f, uint32_t n, uint32_t first_id)
{
    g_autoptr(GError) error = NULL;
    qe_session *s = qe_session_new(f->pool, 1);
    qe_session_set_policy(s, &(qe_session_policy){.shared = true, .tiered = true});
    for (uint32_t i = 0; i < n; i++) {
        uint32_t id = first_id + i;
        qe_session_append_ids(s, &id, 1);
    }
    g_assert_true(qe_session_reserve(s, n, &error));
    qe_session_commit(s, n);
    g_assert_true(qe_kv_pool_submit_moves(f->pool, &error));
    while (qe_kv_pool_wait_move(f->pool, &error))
        ;
    g_assert_no_error(error);
    must_check(f, s);
    return s;
}

/* A table that was cut and grew to its old length again: the count of pages off the device is of the pages it has now. */
static void test_count_after_cut(void)
{
    fixture f;
    set_up(&f, 20, 20);
    qe_session *s = session_with(&f, 40, 100);
    g_assert_cmpuint(qe_session_demote(s, UINT32_MAX, false, NULL), ==, 2);
    g_assert_cmpuint(qe_session_n_off_device(s), ==, 2);
    qe_session_uncache(s, 20); /* into a page that only the host has: it stays as it is */
    g_assert_cmpuint(qe_session_n_off_device(s), ==, 2);
    g_assert_true(qe_session_reserve(s, 24, NULL)); /* a copy on the device takes its place */
    g_assert_cmpuint(qe_session_n_pages(s), ==, 2);
    g_assert_cmpuint(qe_session_n_off_device(s), ==, 1);
    g_assert_cmpuint(qe_session_n_on_device(s), ==, 1);
    must_check(&f, s);
    qe_session_free(s);
    tear_down(&f);
}

/* Cached pages past a smaller budget are no room: they have to go before there is any, and then they do. */
static void test_smaller_budget(void)
{
    fixture f;
    set_up(&f, 12, 30);
    qe_session *s = session_with(&f, 160, 100);
    qe_session_free(s);
    g_assert_cmpuint(qe_kv_pool_n_cached(f.pool), ==, 10);
    g_assert_cmpuint(qe_kv_pool_n_used(f.pool), ==, 10);
    g_assert_cmpuint(qe_kv_pool_n_available(f.pool), ==, 12);
    qe_kv_pool_set_max(f.pool, 3);
    g_assert_cmpuint(qe_kv_pool_n_available(f.pool), ==, 3);
    qe_page pages[3];
    for (uint32_t i = 0; i < 3; i++) {
        g_autoptr(GError) error = NULL;
        g_assert_cmpuint(qe_kv_pool_n_available(f.pool), ==, 3 - i);
        qe_kv_page_alloc(f.pool, &pages[i], &error);
        g_assert_no_error(error);
        g_assert_cmpuint(qe_kv_pool_n_used(f.pool), <=, 3);
    }
    g_autoptr(GError) error = NULL;
    qe_page more;
    g_assert_false(qe_kv_page_alloc(f.pool, &more, &error));
    g_assert_error(error, QE_ERROR, QE_ERROR_NO_MEMORY);
    for (uint32_t i = 0; i < 3; i++)
        qe_kv_page_unref(f.pool, pages[i]);
    g_assert_cmpuint(qe_kv_pool_n_cached(f.pool), ==, 10); /* the host has them all */
    must_check(&f, NULL);
    tear_down(&f);
}

/* A new device that cannot use what the host has, at the first slab or at a later one: the pool stays as it was, without a
 * device, and may be tried again or freed. */
static void test_attach_fails(void)
{
    for (uint32_t nth = 1; nth <= 2; nth++) {
        g_autoptr(GError) error = NULL;
        fixture f;
        set_up(&f, 20, 40);
        qe_session *s = session_with(&f, 100, 7);
        g_assert_cmpuint(qe_kv_slots_n_reserved(qe_kv_pool_host_slots(f.pool)), ==, 8);
        fake_backend_lose(f.fake);
        qe_kv_pool_detach(f.pool);
        qe_session_drop_lost(s);
        g_assert_cmpuint(qe_session_n_cached(s), ==, 96);
        fake_backend_free(f.fake);

        f.fake = fake_backend_new();
        fake_backend_fail(f.fake, FAKE_WRAP, nth);
        g_assert_false(qe_kv_pool_attach(f.pool, fake_backend_of(f.fake), 20, &error));
        g_assert_error(error, QE_ERROR, QE_ERROR_NO_MEMORY);
        g_assert_nonnull(strstr(error->message, "wrapping fails on request"));
        g_assert_cmpuint(fake_backend_n_buffers(f.fake), ==, 0);
        must_check(&f, s);
        g_clear_error(&error);
        if (nth == 2) { /* and once more: all is there */
            g_assert_true(qe_kv_pool_attach(f.pool, fake_backend_of(f.fake), 20, &error));
            g_assert_cmpuint(qe_session_first_unreadable(s), ==, 6);
            g_assert_cmpint(qe_session_load(s, UINT32_MAX, &error), ==, 6);
            g_assert_true(qe_kv_pool_submit_moves(f.pool, &error));
            g_assert_true(qe_kv_pool_wait_move(f.pool, &error));
            g_assert_cmpuint(qe_session_n_off_device(s), ==, 0);
            must_check(&f, s);
        }
        qe_session_free(s);
        tear_down(&f);
    }
}

static qe_kv_slots *background_slots(fake_backend *fake, uint32_t n_max, uint32_t slab_slots)
{
    return qe_kv_slots_new(&(qe_kv_slots_params){
        .backend = fake_backend_of(fake),
        .memory = QK_MEMORY_HOST,
        .slot_bytes = PAGE_BYTES,
        .n_max = n_max,
        .slab_slots = slab_slots,
        .background = true,
    });
}

/* Until there is a slot, or a slab that is being made has failed. Returns how many calls found nothing. */
static uint32_t take_until(qe_kv_slots *slots, uint32_t n_most, bool *got)
{
    qe_slot slot;
    for (uint32_t i = 0; i < n_most; i++) {
        *got = qe_kv_slots_take(slots, &slot, NULL);
        if (*got || qe_kv_slots_wait(slots))
            return i + !*got;
    }
    return n_most;
}

/* A background slab that fails is tried again, but not with each call; what could be had says so meanwhile. */
static void test_failed_background_slab(void)
{
    fake_backend *fake = fake_backend_new();
    qe_kv_slots *slots = background_slots(fake, 40, 8);
    bool got;
    static const uint32_t waits[] = {1, 16, 32, 64};
    g_assert_cmpuint(qe_kv_slots_n_available(slots), ==, 40);
    for (guint i = 0; i < G_N_ELEMENTS(waits); i++) {
        fake_backend_fail(fake, FAKE_WRAP, 1);
        g_assert_cmpuint(take_until(slots, 1000, &got), ==, waits[i]);
        g_assert_false(got);
        g_assert_cmpuint(qe_kv_slots_n_available(slots), ==, 0);
        qe_kv_slots_prepare(slots, 8); /* asking ahead does not hurry it */
        g_assert_false(qe_kv_slots_wait(slots));
    }
    g_assert_cmpuint(take_until(slots, 1000, &got), ==, 128);
    g_assert_cmpuint(qe_kv_slots_n_reserved(slots), ==, 8);
    g_assert_cmpuint(qe_kv_slots_n_available(slots), ==, 40);

    /* All over again, and another budget makes it the next call. */
    for (uint32_t i = 0; i < 8; i++)
        g_assert_cmpuint(take_until(slots, 1, &got), ==, 0);
    fake_backend_fail(fake, FAKE_WRAP, 1);
    g_assert_cmpuint(take_until(slots, 1000, &got), ==, 1);
    g_assert_cmpuint(qe_kv_slots_n_available(slots), ==, 0);
    qe_kv_slots_set_max(slots, 50);
    g_assert_cmpuint(qe_kv_slots_n_available(slots), ==, 42);
    g_assert_cmpuint(take_until(slots, 1000, &got), ==, 1);
    g_assert_cmpuint(qe_kv_slots_n_reserved(slots), ==, 16);
    g_assert_true(qe_kv_slots_check(slots, NULL));
    qe_kv_slots_free(slots);
    fake_backend_free(fake);
}

/* The budget becomes smaller while a slab is being made, which then fails: what could be had stays within the budget. */
static void test_smaller_while_made(void)
{
    fake_backend *fake = fake_backend_new();
    qe_kv_slots *slots = background_slots(fake, 40, 20);
    bool got;
    take_until(slots, 1, &got);
    g_assert_cmpuint(qe_kv_slots_n_reserved(slots), ==, 20);
    qe_kv_slots_prepare(slots, 30);
    fake_backend_fail(fake, FAKE_WRAP, 1);
    qe_kv_slots_set_max(slots, 5);
    g_assert_true(qe_kv_slots_wait(slots));
    g_assert_cmpuint(qe_kv_slots_n_reserved(slots), ==, 20);
    g_assert_cmpuint(qe_kv_slots_n_available(slots), ==, 5);
    qe_kv_slots_free(slots);
    fake_backend_free(fake);
}

/* Slabs are mapped in whole huge pages. What that adds is counted, so a budget is one of memory really taken. */
static void test_rounded_slabs(void)
{
    const uint64_t slot_bytes = 9ull << 18, n_budget = 60; /* 2.25 MiB; 28 of them take 64 MiB */
    fake_backend *fake = fake_backend_new();
    qe_kv_ledger ledger = {.bytes_max = n_budget * slot_bytes};
    qe_kv_slots *slots = qe_kv_slots_new(&(qe_kv_slots_params){
        .backend = fake_backend_of(fake),
        .memory = QK_MEMORY_HOST,
        .slot_bytes = slot_bytes,
        .n_max = (uint32_t)n_budget,
        .slab_slots = 28,
        .ledger = &ledger,
    });
    uint32_t n = 0;
    for (qe_slot slot; qe_kv_slots_take(slots, &slot, NULL);)
        n++;
    g_assert_cmpuint(n, ==, 59); /* twice 28, and of 7 MiB left 3 */
    g_assert_cmpuint(qe_kv_slots_n_available(slots), ==, 0);
    g_assert_cmpuint(qe_kv_slots_bytes_pinned(slots), <=, ledger.bytes_max);
    g_assert_cmpuint(qe_kv_slots_bytes_reserved(slots), ==, ledger.bytes_taken);
    g_assert_true(qe_kv_slots_check(slots, NULL));
    qe_kv_slots_free(slots);
    g_assert_cmpuint(ledger.bytes_taken, ==, 0);
    fake_backend_free(fake);
}

int main(int argc, char **argv)
{
    g_test_init(&argc, &argv, NULL);
    g_test_add_func("/engine/kv-tiers/count-after-cut", test_count_after_cut);
    g_test_add_func("/engine/kv-tiers/smaller-budget", test_smaller_budget);
    g_test_add_func("/engine/kv-tiers/attach-fails", test_attach_fails);
    g_test_add_func("/engine/kv-tiers/failed-background-slab", test_failed_background_slab);
    g_test_add_func("/engine/kv-tiers/smaller-while-made", test_smaller_while_made);
    g_test_add_func("/engine/kv-tiers/rounded-slabs", test_rounded_slabs);
    return g_test_run();
}
