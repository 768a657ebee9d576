/* test-engine-session.c: timelines: cuts, forks, copy-on-write, turns, failures; and a random walk of many sessions
 * against a naive model that keeps each session's ids and bytes in full and shares nothing.
 *
 * What a step does is played by compute(): it writes a stamp for each token to the token's place in its page, so bytes
 * that went to the wrong place, or to a page that someone else reads, are seen. */
#include "engine/qe-session.h"
#include "tests/engine/fake-backend.h"

#include <string.h>

#define PAGE_BYTES 64u /* a 32-bit stamp a token */

static const qk_kv_layout layout = {.dtype = QK_BF16, .token_stride = 4, .page_bytes = PAGE_BYTES};

typedef struct {
    fake_backend *fake;
    qk_backend *backend;
    qe_kv_pool *pool;
    qk_buffer *host;
} fixture;

static void set_up_with(fixture *f, uint32_t n_max, uint32_t slab_pages, bool debug_fill)
{
    f->fake = fake_backend_new();
    f->backend = fake_backend_of(f->fake);
    f->pool = qe_kv_pool_new(f->backend, &layout, n_max, slab_pages, debug_fill);
    g_assert_cmpint(qk_buffer_new(f->backend, QK_MEMORY_HOST, PAGE_BYTES, &f->host), ==, QK_OK);
}

static void tear_down(fixture *f)
{
    g_assert_cmpuint(qe_kv_pool_n_used(f->pool), ==, 0);
    qe_kv_pool_free(f->pool);
    qk_buffer_free(f->host);
    fake_backend_free(f->fake);
}

/* The place of position @at, which the session must be the only one to hold. */
static void write_stamp(fixture *f, qe_session *s, uint32_t at, uint32_t stamp)
{
    g_assert_cmpuint(at / QK_PAGE_TOKENS, <, qe_session_n_pages(s));
    qe_page page = qe_session_pages(s)[at / QK_PAGE_TOKENS];
    g_assert_cmpint(qe_kv_page_state(f->pool, page), ==, QE_PAGE_TAIL);
    g_assert_cmpuint(qe_kv_page_refs(f->pool, page), ==, 1);
    memcpy(f->host->host, &stamp, 4);
    qk_copy copy = {.src = f->host, .bytes = 4};
    copy.dst = qe_kv_page_buffer(f->pool, page, &copy.dst_offset);
    copy.dst_offset += at % QK_PAGE_TOKENS * layout.token_stride;
    g_assert_cmpint(qk_copy_submit(f->backend, QK_STREAM_COMPUTE, &copy, 1), ==, QK_OK);
}

static const uint32_t *read_page(fixture *f, qe_session *s, uint32_t i)
{
    qk_copy copy = {.dst = f->host, .bytes = PAGE_BYTES};
    copy.src = qe_kv_page_buffer(f->pool, qe_session_pages(s)[i], &copy.src_offset);
    g_assert_cmpint(qk_copy_submit(f->backend, QK_STREAM_TO_HOST, &copy, 1), ==, QK_OK);
    return f->host->host;
}

static void append(qe_session *s, uint32_t n, uint32_t base)
{
    for (uint32_t i = 0; i < n; i++) {
        uint32_t id = base + i;
        qe_session_append_ids(s, &id, 1);
    }
}

/* Plays a step over the next @n tokens; a token's stamp is its id. */
static void compute(fixture *f, qe_session *s, uint32_t n)
{
    g_autoptr(GError) error = NULL;
    uint32_t begin = qe_session_n_cached(s);
    bool ok = qe_session_reserve(s, begin + n, &error);
    g_assert_no_error(error);
    g_assert_true(ok);
    for (uint32_t i = 0; i < n; i++)
        write_stamp(f, s, begin + i, qe_session_ids(s)[begin + i]);
    qe_session_commit(s, n);
}

/* Every cached token's bytes are those of its id. */
static void must_hold_ids(fixture *f, qe_session *s)
{
    const uint32_t *words = NULL;
    for (uint32_t at = 0; at < qe_session_n_cached(s); at++) {
        if (at % QK_PAGE_TOKENS == 0)
            words = read_page(f, s, at / QK_PAGE_TOKENS);
        g_assert_cmpuint(words[at % QK_PAGE_TOKENS], ==, qe_session_ids(s)[at]);
    }
}

static void must_check(fixture *f, qe_session *const *sessions, uint32_t n)
{
    g_autoptr(GError) error = NULL;
    g_autofree uint32_t *n_entries = g_new0(uint32_t, qe_kv_pool_n_pages(f->pool) + 1);
    for (uint32_t i = 0; i < n; i++) {
        if (sessions[i] == NULL)
            continue;
        bool ok = qe_session_check(sessions[i], &error);
        g_assert_no_error(error);
        g_assert_true(ok);
        qe_session_count_pages(sessions[i], n_entries);
    }
    bool ok = qe_kv_pool_check(f->pool, n_entries, &error);
    g_assert_no_error(error);
    g_assert_true(ok);
}

static void test_grow(void)
{
    fixture f;
    set_up_with(&f, 100, 0, true);
    qe_session *s = qe_session_new(f.pool, 42);
    g_assert_cmpuint(qe_session_id_of(s), ==, 42);
    append(s, 40, 1000);
    g_assert_cmpuint(qe_session_n_pages(s), ==, 0); /* ids alone take no page */
    g_assert_cmpuint(qe_session_pages_needed(s, 40), ==, 3);
    compute(&f, s, 16);
    g_assert_cmpuint(qe_session_n_pages(s), ==, 1);
    g_assert_cmpint(qe_kv_page_state(f.pool, qe_session_pages(s)[0]), ==, QE_PAGE_SEALED);
    compute(&f, s, 7);
    g_assert_cmpint(qe_kv_page_state(f.pool, qe_session_pages(s)[1]), ==, QE_PAGE_TAIL);
    compute(&f, s, 17);
    g_assert_cmpuint(qe_session_n_cached(s), ==, 40);
    g_assert_cmpuint(qe_session_n_pages(s), ==, 3);
    g_assert_cmpint(qe_kv_page_state(f.pool, qe_session_pages(s)[1]), ==, QE_PAGE_SEALED);
    g_assert_cmpint(qe_kv_page_state(f.pool, qe_session_pages(s)[2]), ==, QE_PAGE_TAIL);
    for (uint32_t i = 0; i < 3; i++)
        g_assert_cmpuint(qe_session_pages(s)[i], ==, i);
    must_hold_ids(&f, s);
    must_check(&f, &s, 1);

    /* One position past the ids, as for the step that runs ahead; it is given up again. */
    g_assert_true(qe_session_reserve(s, 49, NULL));
    g_assert_cmpuint(qe_session_n_pages(s), ==, 4);
    must_check(&f, &s, 1);
    qe_session_release_reserved(s);
    g_assert_cmpuint(qe_session_n_pages(s), ==, 3);
    g_assert_true(qe_session_reserve(s, 3, NULL)); /* what is cached is covered */
    g_assert_cmpuint(qe_session_pages_needed(s, 40), ==, 0);
    qe_session_free(s);
    tear_down(&f);
}

static void test_rewind(void)
{
    fixture f;
    set_up_with(&f, 100, 0, true);
    qe_session *s = qe_session_new(f.pool, 1);
    append(s, 100, 0);
    compute(&f, s, 90);
    g_assert_true(qe_session_reserve(s, 100, NULL));

    qe_session_rewind(s, 95); /* past the cached: only ids go */
    g_assert_cmpuint(qe_session_n_cached(s), ==, 90);
    qe_session_rewind(s, 80); /* a page boundary */
    g_assert_cmpuint(qe_session_n_pages(s), ==, 5);
    g_assert_cmpint(qe_kv_page_state(f.pool, qe_session_pages(s)[4]), ==, QE_PAGE_SEALED);
    must_check(&f, &s, 1);
    qe_session_rewind(s, 39); /* inside page 2: ours, so it opens again */
    g_assert_cmpuint(qe_session_n_ids(s), ==, 39);
    g_assert_cmpuint(qe_session_n_cached(s), ==, 39);
    g_assert_cmpuint(qe_session_n_pages(s), ==, 3);
    g_assert_cmpint(qe_kv_page_state(f.pool, qe_session_pages(s)[2]), ==, QE_PAGE_TAIL);
    must_check(&f, &s, 1);
    append(s, 30, 5000);
    compute(&f, s, 30);
    must_hold_ids(&f, s);
    g_assert_cmpuint(fake_backend_n_buffers(f.fake), ==, 2);

    qe_session_uncache(s, 17); /* ids stay */
    g_assert_cmpuint(qe_session_n_ids(s), ==, 69);
    g_assert_cmpuint(qe_session_n_cached(s), ==, 17);
    g_assert_cmpuint(qe_session_n_pages(s), ==, 2);
    must_check(&f, &s, 1);
    compute(&f, s, 52);
    must_hold_ids(&f, s);
    qe_session_rewind(s, 0);
    g_assert_cmpuint(qe_kv_pool_n_used(f.pool), ==, 0);
    must_check(&f, &s, 1);
    qe_session_free(s);
    tear_down(&f);
}

static void test_fork(void)
{
    fixture f;
    set_up_with(&f, 100, 0, true);
    qe_session *s[3] = {qe_session_new(f.pool, 1)};
    append(s[0], 50, 0);
    compute(&f, s[0], 40);
    g_assert_true(
        qe_session_reserve(s[0], 60, NULL)); /* a page reserved for a running step is not the child's */

    s[1] = qe_session_fork(s[0], 2, 50, NULL);
    g_assert_nonnull(s[1]);
    g_assert_cmpuint(qe_session_id_of(s[1]), ==, 2);
    g_assert_cmpuint(qe_session_n_ids(s[1]), ==, 50);
    g_assert_cmpuint(qe_session_n_cached(s[1]), ==, 40);
    g_assert_cmpuint(qe_session_n_pages(s[1]), ==, 3);
    g_assert_cmpmem(qe_session_pages(s[1]), 2 * sizeof(qe_page), qe_session_pages(s[0]), 2 * sizeof(qe_page));
    g_assert_cmpuint(qe_session_pages(s[1])[2], !=, qe_session_pages(s[0])[2]);
    g_assert_cmpuint(qe_kv_pool_n_shared(f.pool), ==, 2);
    must_check(&f, s, 2);
    must_hold_ids(&f, s[1]); /* the part-filled page's bytes came along */

    qe_session_rewind(s[1], 40);
    append(s[1], 20, 7000);
    compute(&f, s[1], 20);
    compute(&f, s[0], 10);
    must_hold_ids(&f, s[0]);
    must_hold_ids(&f, s[1]);

    s[2] = qe_session_fork(s[0], 3, 32, NULL); /* at a boundary: no page is taken */
    g_assert_cmpuint(qe_session_n_pages(s[2]), ==, 2);
    g_assert_cmpuint(qe_kv_page_refs(f.pool, qe_session_pages(s[2])[1]), ==, 3);
    must_check(&f, s, 3);
    for (uint32_t i = 0; i < 3; i++) {
        qe_session_free(s[i]);
        s[i] = NULL;
        must_check(&f, s, 3);
    }
    tear_down(&f);
}

/* A cut into a page that others hold: nothing is taken until the next write, which works on a copy. */
static void test_copy_on_write(void)
{
    fixture f;
    set_up_with(&f, 100, 0, true);
    qe_session *s[3] = {qe_session_new(f.pool, 1)};
    append(s[0], 64, 0);
    compute(&f, s[0], 64);
    s[1] = qe_session_fork(s[0], 2, 64, NULL);
    qe_page shared = qe_session_pages(s[0])[1];
    qe_session_rewind(s[1], 25);
    g_assert_cmpuint(qe_session_n_pages(s[1]), ==, 2);
    g_assert_cmpuint(qe_session_pages(s[1])[1], ==, shared);
    g_assert_cmpuint(qe_session_pages_needed(s[1], 25), ==, 0); /* nothing to write */
    g_assert_cmpuint(qe_session_pages_needed(s[1], 26), ==, 1);
    g_assert_cmpuint(qe_session_pages_needed(s[1], 33), ==, 2);
    must_check(&f, s, 2);

    s[2] = qe_session_fork(s[1], 3, 20, NULL); /* from a cut page, and again inside it */
    g_assert_cmpuint(qe_session_pages(s[2])[1], ==, shared);
    g_assert_cmpuint(qe_kv_page_refs(f.pool, shared), ==, 3);
    must_check(&f, s, 3);

    append(s[1], 10, 7000);
    compute(&f, s[1], 10);
    g_assert_cmpuint(qe_session_pages(s[1])[1], !=, shared);
    g_assert_cmpuint(qe_kv_page_refs(f.pool, shared), ==, 2);
    append(s[2], 30, 9000);
    compute(&f, s[2], 30);
    g_assert_cmpuint(qe_kv_page_refs(f.pool, shared), ==, 1);
    for (uint32_t i = 0; i < 3; i++)
        must_hold_ids(&f, s[i]);
    must_check(&f, s, 3);

    /* When the others have gone, the cut page is opened in place. */
    qe_session_free(s[2]);
    s[2] = qe_session_fork(s[0], 4, 61, NULL);
    shared = qe_session_pages(s[2])[3];
    qe_session_rewind(s[0], 0);
    append(s[2], 1, 1234);
    g_assert_cmpuint(qe_session_pages_needed(s[2], 62), ==, 0);
    compute(&f, s[2], 1);
    g_assert_cmpuint(qe_session_pages(s[2])[3], ==, shared);
    must_hold_ids(&f, s[2]);
    must_check(&f, s, 3);
    for (uint32_t i = 0; i < 3; i++)
        qe_session_free(s[i]);
    tear_down(&f);
}

/* The kept prefix is what the ids say, token by token, never more: here they differ in token 3. */
static void test_replace(void)
{
    fixture f;
    set_up_with(&f, 100, 0, true);
    qe_session *s = qe_session_new(f.pool, 1);
    uint32_t ids[40];
    for (uint32_t i = 0; i < 40; i++)
        ids[i] = i;
    g_assert_cmpuint(qe_session_replace(s, ids, 32), ==, 0);
    compute(&f, s, 32);
    ids[3] = 999;
    g_assert_cmpuint(qe_session_replace(s, ids, 32), ==, 3);
    g_assert_cmpuint(qe_session_n_ids(s), ==, 32);
    g_assert_cmpuint(qe_session_n_cached(s), ==, 3);
    g_assert_cmpmem(qe_session_ids(s), 32 * 4, ids, 32 * 4);
    must_check(&f, &s, 1);
    compute(&f, s, 29);
    must_hold_ids(&f, s);
    g_assert_cmpuint(qe_session_replace(s, ids, 32), ==, 32); /* the same: all kept */
    g_assert_cmpuint(qe_session_n_cached(s), ==, 32);
    g_assert_cmpuint(qe_session_replace(s, ids, 40), ==, 32); /* longer */
    g_assert_cmpuint(qe_session_n_cached(s), ==, 32);
    g_assert_cmpuint(qe_session_replace(s, ids, 9), ==, 9); /* shorter */
    g_assert_cmpuint(qe_session_n_cached(s), ==, 9);
    g_assert_cmpuint(qe_session_replace(s, NULL, 0), ==, 0);
    g_assert_cmpuint(qe_session_n_ids(s), ==, 0);
    must_check(&f, &s, 1);
    qe_session_free(s);
    tear_down(&f);
}

static void test_turns(void)
{
    fixture f;
    set_up_with(&f, 100, 0, false);
    qe_session *s = qe_session_new(f.pool, 1);
    append(s, 30, 0);
    qe_session_add_turn(
        s, &(qe_turn){.role = QE_ROLE_USER, .begin = 0, .text_begin = 2, .end = 10, .text_hash = 5});
    qe_session_add_turn(s, &(qe_turn){.role = QE_ROLE_ASSISTANT, .begin = 10, .text_begin = 12, .end = 20});
    qe_session_extend_turn(s, 28, QE_TURN_OPEN, true);
    g_assert_cmpuint(qe_session_n_turns(s), ==, 2);
    g_assert_cmpuint(qe_session_turn(s, 1)->end, ==, 28);
    g_assert_cmpint(qe_session_turn(s, 1)->state, ==, QE_TURN_OPEN);
    g_assert_true(qe_session_turn(s, 1)->has_reasoning);
    g_assert_cmpuint(qe_session_turn(s, 0)->text_hash, ==, 5);
    must_check(&f, &s, 1);

    qe_session *all = qe_session_fork(s, 2, 28, NULL), *one = qe_session_fork(s, 3, 27, NULL);
    g_assert_cmpuint(qe_session_n_turns(all), ==, 2);
    g_assert_cmpuint(qe_session_n_turns(one), ==, 1); /* a turn that is cut does not count */
    qe_session_rewind(s, 28);
    g_assert_cmpuint(qe_session_n_turns(s), ==, 2);
    qe_session_rewind(s, 27);
    g_assert_cmpuint(qe_session_n_turns(s), ==, 1);
    qe_session_add_turn(s, &(qe_turn){.role = QE_ROLE_ASSISTANT, .begin = 10, .text_begin = 10, .end = 27});
    qe_session_rewind(s, 9);
    g_assert_cmpuint(qe_session_n_turns(s), ==, 0);
    must_check(&f, &s, 1);
    qe_session_free(s);
    qe_session_free(all);
    qe_session_free(one);
    qe_session_free(NULL);
    tear_down(&f);
}

/* One story, run with every pool size from too small to enough (or with every slab failing once): whatever allocation
 * fails, the call changes nothing, and the story ends well once there is room. */
static void play_story(fixture *f, uint32_t fail_slab, uint32_t *n_failed)
{
    g_autoptr(GError) error = NULL;
    qe_session *s[3] = {qe_session_new(f->pool, 1)};
    append(s[0], 70, 0);
    if (fail_slab > 0)
        fake_backend_fail_alloc(f->fake, fail_slab);
    for (uint32_t step = 0; step < 4; step++) {
        for (uint32_t try = 0;; try++) {
            g_assert_cmpuint(try, <, 3);
            uint32_t n_used = qe_kv_pool_n_used(f->pool);
            bool ok = true;
            qe_session *target = s[0];
            if (step == 0) {
                ok = qe_session_reserve(s[0], 70, &error);
            } else if (step == 1) { /* copies the part-filled page */
                s[1] = qe_session_fork(s[0], 2, 70, &error);
                ok = s[1] != NULL;
            } else {
                target = s[1];
                if (step == 2 && try == 0)
                    qe_session_rewind(s[1], 30); /* into a shared page */
                ok = qe_session_reserve(s[1], step == 2 ? 31 : 90, &error);
            }
            must_check(f, s, 3);
            if (ok)
                break;
            g_assert_error(error, QE_ERROR, QE_ERROR_NO_MEMORY);
            g_clear_error(&error);
            g_assert_cmpuint(qe_kv_pool_n_used(f->pool), ==, n_used);
            must_hold_ids(f, target);
            ++*n_failed;
            if (fail_slab == 0)
                goto out; /* the pool is what it is */
        }
        if (step == 0)
            compute(f, s[0], 70);
        if (step == 1)
            must_hold_ids(f, s[1]);
    }
    append(s[1], 60, 3000);
    compute(f, s[1], 60);
    must_hold_ids(f, s[0]);
    must_hold_ids(f, s[1]);
    must_check(f, s, 3);
out:
    fake_backend_fail_alloc(f->fake, 0);
    qe_session_free(s[0]);
    qe_session_free(s[1]);
}

static void test_out_of_pages(void)
{
    uint32_t n_failed = 0;
    for (uint32_t n_max = 1; n_max <= 10; n_max++) {
        fixture f;
        set_up_with(&f, n_max, 1, true);
        uint32_t before = n_failed;
        play_story(&f, 0, &n_failed);
        /* 5 pages for the parent; 1 page copied at the cut, after the child's first copy was freed; 4 more to 90. */
        g_assert_cmpint(n_failed > before, ==, n_max < 10);
        tear_down(&f);
    }
    n_failed = 0;
    for (uint32_t nth = 1; nth <= 10; nth++) {
        fixture f;
        set_up_with(&f, 100, 1, true);
        play_story(&f, nth, &n_failed);
        tear_down(&f);
    }
    g_assert_cmpuint(n_failed, ==, 10); /* each of the ten allocations failed once */
}

static void test_lost(void)
{
    fixture f;
    set_up_with(&f, 100, 4, true);
    qe_session *s[2] = {qe_session_new(f.pool, 1)};
    append(s[0], 70, 0);
    compute(&f, s[0], 70);
    s[1] = qe_session_fork(s[0], 2, 40, NULL);
    fake_backend_lose(f.fake);
    g_autoptr(GError) error = NULL;
    g_assert_false(qe_session_reserve(s[1], 41, &error));
    g_assert_error(error, QE_ERROR, QE_ERROR_DEVICE_LOST);
    must_check(&f, s, 2);
    qe_kv_pool_detach(f.pool);
    for (uint32_t i = 0; i < 2; i++)
        qe_session_drop_lost(s[i]);
    must_check(&f, s, 2);
    g_assert_cmpuint(qe_session_n_ids(s[0]), ==, 70); /* the tokens are kept */
    g_assert_cmpuint(qe_session_n_cached(s[0]), ==, 0);
    qe_session_free(s[0]);
    qe_session_free(s[1]);
    tear_down(&f);
}

/* A session of 256K tokens: 16,384 pages. */
static void test_long(void)
{
    enum { N = 262144 };
    fixture f;
    set_up_with(&f, 40000, 0, false);
    qe_session *s[2] = {qe_session_new(f.pool, 1)};
    g_autofree uint32_t *ids = g_new0(uint32_t, N);
    qe_session_append_ids(s[0], ids, N);
    g_assert_true(qe_session_reserve(s[0], N, NULL));
    qe_session_commit(s[0], N);
    g_assert_cmpuint(qe_session_n_pages(s[0]), ==, 16384);
    s[1] = qe_session_fork(s[0], 2, N - 1, NULL);
    g_assert_cmpuint(qe_kv_pool_n_used(f.pool), ==, 16384);
    qe_session_rewind(s[0], 100);
    must_check(&f, s, 2);
    qe_session_free(s[1]);
    g_assert_cmpuint(qe_kv_pool_n_used(f.pool), ==, 7);
    qe_session_free(s[0]);
    tear_down(&f);
}

/* The checkers see damage done behind the session's back. */
static void test_check_fails(void)
{
    fixture f;
    set_up_with(&f, 10, 0, false);
    qe_session *s = qe_session_new(f.pool, 9);
    append(s, 40, 0);
    compute(&f, s, 40);
    const qe_page *pages = qe_session_pages(s);
    g_autoptr(GError) error = NULL;

    qe_kv_page_seal(
        f.pool, pages[2]); /* a part-filled page sealed is the form of a cut page: allowed only last */
    g_assert_true(qe_session_check(s, NULL));
    qe_kv_page_unseal(f.pool, pages[2]);

    qe_kv_page_unseal(f.pool, pages[0]);
    g_assert_false(qe_session_check(s, &error));
    g_assert_nonnull(strstr(error->message, "session 9: page 0 (entry 0) is full"));
    g_clear_error(&error);
    qe_kv_page_seal(f.pool, pages[0]);

    qe_page *raw = (qe_page *)(void *)pages;
    raw[1] = 0; /* page 0 twice */
    g_assert_false(qe_session_check(s, &error));
    g_assert_nonnull(strstr(error->message, "twice"));
    g_clear_error(&error);
    qe_page gone;
    g_assert_true(qe_kv_page_alloc(f.pool, &gone, NULL));
    qe_kv_page_unref(f.pool, gone);
    raw[1] = gone; /* a page that nobody holds */
    g_assert_false(qe_session_check(s, &error));
    g_assert_nonnull(strstr(error->message, "FREE"));
    g_clear_error(&error);
    raw[1] = 10; /* no page at all */
    g_assert_false(qe_session_check(s, &error));
    g_assert_nonnull(strstr(error->message, "names page 10 of 4"));
    raw[1] = 1;
    must_check(&f, &s, 1);
    qe_session_free(s);
    tear_down(&f);
}

/* ---- The random walk ---- */

#define WALK_SESSIONS 6u
#define WALK_IDS      400u

typedef struct {
    qe_session *real;
    uint32_t ids[WALK_IDS], stamps[WALK_IDS]; /* stamps: of the cached tokens */
    uint32_t n_ids, n_cached;
} shadow;

typedef struct {
    fixture f;
    shadow *s; /* [WALK_SESSIONS] */
    uint32_t next_stamp, n_failed, n_copies_on_write;
} walk;

static uint32_t rand_below(uint32_t n)
{
    return n > 0 ? (uint32_t)g_test_rand_int_range(0, (gint32)n) : 0;
}

/* A length to cut @n to: mostly a little shorter, sometimes anything. */
static uint32_t rand_cut(uint32_t n)
{
    return rand_below(4) == 0 ? rand_below(n + 1) : n - rand_below(MIN(n, 40) + 1);
}

static void walk_verify(walk *w)
{
    qe_session *sessions[WALK_SESSIONS];
    for (uint32_t i = 0; i < WALK_SESSIONS; i++) {
        const shadow *s = &w->s[i];
        sessions[i] = s->real;
        if (s->real == NULL)
            continue;
        g_assert_cmpuint(qe_session_n_cached(s->real), ==, s->n_cached);
        g_assert_cmpuint(qe_session_n_ids(s->real), ==, s->n_ids);
        g_assert_cmpmem(qe_session_ids(s->real), s->n_ids * 4, s->ids, s->n_ids * 4);
        for (uint32_t at = 0; at < s->n_cached; at += QK_PAGE_TOKENS) {
            const uint32_t *words = read_page(&w->f, s->real, at / QK_PAGE_TOKENS);
            g_assert_cmpint(memcmp(words, s->stamps + at, MIN(QK_PAGE_TOKENS, s->n_cached - at) * 4), ==, 0);
        }
    }
    must_check(&w->f, sessions, WALK_SESSIONS);
}

/* A reserve succeeds exactly when what it says to need is there, and takes exactly that. */
static bool walk_reserve(walk *w, shadow *s, uint32_t n_tokens)
{
    uint32_t n_needed = qe_session_pages_needed(s->real, n_tokens);
    uint32_t n_available = qe_kv_pool_n_available(w->f.pool), n_pages = qe_session_n_pages(s->real);
    g_autoptr(GError) error = NULL;
    bool ok = qe_session_reserve(s->real, n_tokens, &error);
    g_assert_cmpint(ok, ==, n_needed <= n_available);
    if (!ok) {
        g_assert_error(error, QE_ERROR, QE_ERROR_NO_MEMORY);
        g_assert_cmpuint(qe_kv_pool_n_available(w->f.pool), ==, n_available);
        g_assert_cmpuint(qe_session_n_pages(s->real), ==, n_pages);
        w->n_failed++;
        return false;
    }
    g_assert_no_error(error);
    g_assert_cmpuint(qe_kv_pool_n_available(w->f.pool), ==, n_available - n_needed);
    g_assert_cmpuint(qe_session_n_pages(s->real), >=, (n_tokens + QK_PAGE_TOKENS - 1) / QK_PAGE_TOKENS);
    if (n_needed > qe_session_n_pages(s->real) - n_pages)
        w->n_copies_on_write++;
    return true;
}

/* A step over some of the tokens to compute, perhaps with one position of overshoot that is written but never counted. */
static void walk_step(walk *w, shadow *s)
{
    uint32_t n = rand_below(s->n_ids - s->n_cached + 1), n_extra = rand_below(2);
    if (!walk_reserve(w, s, s->n_cached + n + n_extra))
        return;
    for (uint32_t i = 0; i < n + n_extra; i++) {
        uint32_t stamp = w->next_stamp++;
        write_stamp(&w->f, s->real, s->n_cached + i, stamp);
        if (i < n)
            s->stamps[s->n_cached + i] = stamp;
    }
    qe_session_commit(s->real, n);
    s->n_cached += n;
}

static void walk_append(shadow *s)
{
    uint32_t n = rand_below(60);
    n = MIN(n, WALK_IDS - s->n_ids);
    for (uint32_t i = 0; i < n; i++)
        s->ids[s->n_ids + i] = rand_below(3); /* few ids, so that prefixes happen to agree */
    qe_session_append_ids(s->real, s->ids + s->n_ids, n);
    s->n_ids += n;
}

static void walk_fork(walk *w, shadow *from, shadow *to)
{
    if (to->real != NULL) {
        qe_session_free(to->real);
        to->real = NULL;
        to->n_ids = to->n_cached = 0;
    }
    uint32_t n = rand_cut(from->n_ids);
    uint32_t n_available = qe_kv_pool_n_available(w->f.pool);
    to->real = qe_session_fork(from->real, w->next_stamp++, n, NULL);
    if (to->real == NULL) {
        g_assert_cmpuint(n_available, ==, 0);
        w->n_failed++;
        return;
    }
    g_assert_cmpuint(n_available - qe_kv_pool_n_available(w->f.pool), <=, 1); /* sealed pages are shared */
    memcpy(to->ids, from->ids, sizeof to->ids);
    memcpy(to->stamps, from->stamps, sizeof to->stamps);
    to->n_ids = n;
    to->n_cached = MIN(n, from->n_cached);
}

static void walk_replace(shadow *s, const shadow *other)
{
    uint32_t ids[WALK_IDS], n = rand_cut(other->n_ids), n_common = 0;
    memcpy(ids, other->ids, sizeof ids);
    if (n > 0 && rand_below(2) == 0)
        ids[rand_below(n)] = 7;
    while (n_common < MIN(n, s->n_ids) && ids[n_common] == s->ids[n_common])
        n_common++;
    g_assert_cmpuint(qe_session_replace(s->real, ids, n), ==, n_common);
    memcpy(s->ids, ids, sizeof ids);
    s->n_ids = n;
    s->n_cached = MIN(s->n_cached, n_common);
}

static void walk_op(walk *w)
{
    shadow *s = &w->s[rand_below(WALK_SESSIONS)], *other = &w->s[rand_below(WALK_SESSIONS)];
    uint32_t op = rand_below(100);
    if (s->real == NULL) {
        s->real = qe_session_new(w->f.pool, w->next_stamp++);
        s->n_ids = s->n_cached = 0;
    } else if (op < 25) {
        walk_append(s);
    } else if (op < 60) {
        walk_step(w, s);
    } else if (op < 72) {
        s->n_ids = rand_cut(s->n_ids);
        s->n_cached = MIN(s->n_cached, s->n_ids);
        qe_session_rewind(s->real, s->n_ids);
    } else if (op < 76) {
        uint32_t n = rand_cut(s->n_ids);
        s->n_cached = MIN(s->n_cached, n);
        qe_session_uncache(s->real, n);
    } else if (op < 88 && s != other) {
        walk_fork(w, s, other);
    } else if (op < 92) {
        walk_replace(s, other);
    } else if (op < 95) {
        walk_reserve(w, s, s->n_cached + rand_below(100));
    } else if (op < 98) {
        qe_session_release_reserved(s->real);
        g_assert_cmpuint(
            qe_session_n_pages(s->real), ==, (s->n_cached + QK_PAGE_TOKENS - 1) / QK_PAGE_TOKENS);
    } else {
        qe_session_free(s->real);
        s->real = NULL;
    }
}

static void test_random(gconstpointer n_pages_max)
{
    enum { N_OPS = 6000 };
    walk w = {.next_stamp = 1, .s = g_new0(shadow, WALK_SESSIONS)};
    set_up_with(&w.f, GPOINTER_TO_UINT(n_pages_max), 5, true);
    for (uint32_t op = 0; op < N_OPS; op++) {
        walk_op(&w);
        walk_verify(&w);
    }
    g_test_message("%u reserves and forks failed, %u copied a shared page", w.n_failed, w.n_copies_on_write);
    g_assert_cmpuint(w.n_copies_on_write, >, 20);
    if (GPOINTER_TO_UINT(n_pages_max) < 100)
        g_assert_cmpuint(w.n_failed, >, 50);
    for (uint32_t i = 0; i < WALK_SESSIONS; i++)
        qe_session_free(w.s[i].real);
    g_free(w.s);
    tear_down(&w.f);
}

/* ---- Misuse aborts ---- */

static void misuse(const char *how)
{
    fixture f;
    set_up_with(&f, 10, 0, false);
    qe_session *s = qe_session_new(f.pool, 1);
    append(s, 20, 0);
    g_assert_true(qe_session_reserve(s, 10, NULL));
    if (strcmp(how, "commit-unreserved") == 0)
        qe_session_commit(s, 20);
    else if (strcmp(how, "commit-past-ids") == 0 && qe_session_reserve(s, 40, NULL))
        qe_session_commit(s, 21);
    else if (strcmp(how, "rewind-forward") == 0)
        qe_session_rewind(s, 21);
    else if (strcmp(how, "fork-too-long") == 0)
        qe_session_fork(s, 2, 21, NULL);
    else if (strcmp(how, "turn-gap") == 0)
        qe_session_add_turn(s, &(qe_turn){.begin = 1, .text_begin = 1, .end = 2});
    else if (strcmp(how, "turn-past-ids") == 0)
        qe_session_add_turn(s, &(qe_turn){.begin = 0, .text_begin = 1, .end = 21});
    else if (strcmp(how, "commit-into-shared") == 0) {
        qe_session_commit(s, 10);
        g_assert_true(qe_session_reserve(s, 20, NULL));
        qe_session_commit(s, 10);
        qe_session *other = qe_session_fork(s, 2, 20, NULL);
        qe_session_rewind(other, 10);
        append(other, 1, 0);
        qe_session_commit(other, 1); /* without the reserve that makes the page ours */
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
    g_test_trap_assert_stderr("*qe-session.c*assertion failed*");
}

int main(int argc, char **argv)
{
    g_test_init(&argc, &argv, NULL);
    g_test_add_func("/engine/session/grow", test_grow);
    g_test_add_func("/engine/session/rewind", test_rewind);
    g_test_add_func("/engine/session/fork", test_fork);
    g_test_add_func("/engine/session/copy-on-write", test_copy_on_write);
    g_test_add_func("/engine/session/replace", test_replace);
    g_test_add_func("/engine/session/turns", test_turns);
    g_test_add_func("/engine/session/out-of-pages", test_out_of_pages);
    g_test_add_func("/engine/session/lost", test_lost);
    g_test_add_func("/engine/session/long", test_long);
    g_test_add_func("/engine/session/check-fails", test_check_fails);
    g_test_add_data_func("/engine/session/random/roomy", GUINT_TO_POINTER(1000), test_random);
    g_test_add_data_func("/engine/session/random/tight", GUINT_TO_POINTER(16), test_random);
    static const char *const misuses[] = {"commit-unreserved", "commit-past-ids", "rewind-forward",
        "fork-too-long", "turn-gap", "turn-past-ids", "commit-into-shared"};
    for (uint32_t i = 0; i < G_N_ELEMENTS(misuses); i++) {
        g_autofree char *path = g_strconcat("/engine/session/misuse/", misuses[i], NULL);
        g_test_add_data_func(path, misuses[i], test_misuse);
    }
    return g_test_run();
}
