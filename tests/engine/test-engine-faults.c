/* test-engine-faults.c: faults that users of other engines report, and what this one does instead. The cases that no other
 * test has are here; README.md beside it names the test of each. Caches that go without a word, a better match passed over,
 * a context that shifts, types that fall to something slow, a disk that is slower than computing, bytes written for nobody. */
#include <gio/gio.h>
#include <string.h>
#include <sys/uio.h>
#include "engine/qe-lock.h"
#include "kernels/qk-backend.h"
#include "kernels/qk-mock.h"
#include "tests/engine/engine-test.h"

#define PAGE_BYTES (16u * 2 * 8 * 2 * 64 * 2) /* tokens, K and V, layers, kv heads, head_dim, bf16 */
#define N_TOKENS   20u

static qk_mock_options mock_options;
static qk_backend *mock; /* borrowed: the last engine's */

static qk_status open_mock(void *user, qk_backend **out, char *error, size_t error_size)
{
    qk_status status = qk_mock_open(&mock_options, out, error, error_size);
    mock = status == QK_OK ? *out : NULL;
    return status;
}

static void use_backend(bool on_mock)
{
    mock_options = (qk_mock_options){.seed = 6, .delay_us_max = 100, .n_threads = 2};
    et_set_backend(on_mock ? open_mock : NULL, NULL);
}

/* ---- A disk that answers when it is told to ---- */

static qe_mutex gate_lock = PTHREAD_MUTEX_INITIALIZER;
static qe_cond gate_changed = PTHREAD_COND_INITIALIZER;
static uint32_t gate_let_through = UINT32_MAX; /* so many reads of pages pass, then they wait */
static uint32_t n_at_gate;

static void set_gate(uint32_t n_let_through)
{
    qe_mutex_lock(&gate_lock);
    gate_let_through = n_let_through;
    qe_cond_broadcast(&gate_changed);
    qe_mutex_unlock(&gate_lock);
}

/* Returns how many of @n pieces one read may have: a shut gate stops between any two. */
static int pass_gate(int n)
{
    int n_pieces = n;
    qe_mutex_lock(&gate_lock);
    n_at_gate++;
    while (gate_let_through == 0)
        qe_cond_wait(&gate_changed, &gate_lock);
    if (gate_let_through != UINT32_MAX) {
        gate_let_through--;
        n_pieces = 1;
    }
    n_at_gate--;
    qe_mutex_unlock(&gate_lock);
    return n_pieces;
}

/* The store reads pages by one of these, as the C library spells it. */
ssize_t __real_preadv(int fd, const struct iovec *iov, int n, off_t offset);
ssize_t __wrap_preadv(int fd, const struct iovec *iov, int n, off_t offset);
ssize_t __wrap_preadv(int fd, const struct iovec *iov, int n, off_t offset)
{
    return __real_preadv(fd, iov, pass_gate(n), offset);
}

ssize_t __real_preadv64(int fd, const struct iovec *iov, int n, off_t offset);
ssize_t __wrap_preadv64(int fd, const struct iovec *iov, int n, off_t offset);
ssize_t __wrap_preadv64(int fd, const struct iovec *iov, int n, off_t offset)
{
    return __real_preadv64(fd, iov, pass_gate(n), offset);
}

/* ---- Engines, requests, files ---- */

static qe_engine *engine_with(const char *dir, uint32_t n_device, uint32_t n_host)
{
    return et_engine_new(&(qe_engine_options){
        .kv_bytes_max = (uint64_t)n_device * PAGE_BYTES,
        .host_bytes_max = n_host ? (uint64_t)n_host * PAGE_BYTES : 1,
        .ring_bytes = 1 << 20,
        .step_rows_max = 64,
        .disk_dir = dir,
        .disk_bytes_max = 64ull << 20,
    });
}

static qe_session_id open_with(qe_engine *engine, const char *key, const qe_cache_config *config)
{
    qe_session_options options;
    qe_session_options_init(&options);
    options.disk_key = key;
    if (config)
        options.cache = *config;
    return et_open_with(engine, &options);
}

static qe_session_id open_mode(qe_engine *engine, qe_cache_mode mode)
{
    qe_cache_config config;
    qe_cache_config_init(&config);
    config.mode = mode;
    return open_with(engine, NULL, &config);
}

/* The first @n of @ids as the whole prompt. */
static void ask(qe_engine *engine, qe_session_id session, const GArray *ids, uint32_t n, et_result *r)
{
    qe_generate_params params = et_ids(session, (const uint32_t *)(const void *)ids->data, n, N_TOKENS);
    params.ignore_eos = true;
    et_generate(engine, &params, r);
    g_assert_no_error(r->error);
}

static uint32_t asked(qe_engine *engine, qe_session_id session, const GArray *ids, uint32_t n)
{
    g_auto(et_result) r = {0};
    ask(engine, session, ids, n, &r);
    return r.receipt.n_reused;
}

static void want(const GArray *ids, uint32_t n, et_result *r)
{
    qe_engine *engine = engine_with(NULL, 400, 0);
    ask(engine, open_mode(engine, QE_CACHE_SESSION), ids, n, r);
    qe_engine_free(engine);
}

static void set_mode(qe_engine *engine, qe_session_id session, qe_cache_mode mode)
{
    g_autoptr(GError) error = NULL;
    qe_cache_config config;
    qe_cache_config_init(&config);
    config.mode = mode;
    while (!qe_engine_set_cache(engine, session, &config, &error)) {
        g_assert_error(error, QE_ERROR, QE_ERROR_BUSY); /* the end of a reply comes a moment before */
        g_clear_error(&error);
    }
}

/* ---- Reuse that is off is told (3) ---- */

/* What a turn computed beyond its new tokens is explained: the reason, and from which position on. */
static void expect_told(const et_result *r, uint32_t n_before, qe_mismatch why)
{
    const qe_receipt *receipt = &r->receipt;
    bool again = receipt->n_reused + 1 < n_before; /* the last token of a reply was never computed */
    g_assert_cmpint(receipt->mismatch, ==, why);
    g_assert_true(again == (why != QE_MISMATCH_NONE));
    g_assert_cmpint(receipt->first_mismatch, ==, again ? (gint64)receipt->n_reused : -1);
    g_assert_cmpuint(receipt->n_recomputed, >=, again ? n_before - 1 - receipt->n_reused : 0);
}

static void test_told(void)
{
    static const struct {
        qe_cache_mode wanted, got;
        uint32_t n_host;
        bool offload, no_reuse;
        qe_mismatch why;
    } rows[] = {
        {QE_CACHE_AUTO, QE_CACHE_TIERED, 400, true, false, QE_MISMATCH_NONE},
        {QE_CACHE_AUTO, QE_CACHE_SESSION, 0, true, false, QE_MISMATCH_NONE},
        {QE_CACHE_TIERED, QE_CACHE_SESSION, 0, true, false, QE_MISMATCH_NONE},
        {QE_CACHE_TIERED, QE_CACHE_SESSION, 400, false, false, QE_MISMATCH_NONE},
        {QE_CACHE_TIERED, QE_CACHE_TIERED, 400, true, true, QE_MISMATCH_MODE},
        {QE_CACHE_PAGED, QE_CACHE_PAGED, 400, true, false, QE_MISMATCH_MODE},
        {QE_CACHE_REBUILD, QE_CACHE_REBUILD, 400, true, false, QE_MISMATCH_MODE},
    };
    use_backend(true);
    g_autoptr(GArray) ids = et_some_ids(200, 1);
    for (guint i = 0; i < G_N_ELEMENTS(rows); i++) {
        g_auto(et_result) r = {0};
        qe_cache_config config;
        qe_cache_config_init(&config);
        config.mode = rows[i].wanted;
        config.offload_to_cpu = rows[i].offload;
        qe_engine *engine = engine_with(NULL, 400, rows[i].n_host);
        qe_session_id session = open_with(engine, NULL, &config);
        ask(engine, session, ids, 100, &r);
        expect_told(&r, 0, QE_MISMATCH_NONE);
        g_autoptr(GArray) longer = g_array_new(FALSE, FALSE, sizeof(uint32_t));
        g_array_append_vals(longer, ids->data, 100);
        g_array_append_vals(longer, r.ids->data, r.ids->len);
        uint32_t n_before = longer->len;
        g_array_append_vals(longer, &g_array_index(ids, uint32_t, 100), 100);
        qe_generate_params params =
            et_ids(session, (const uint32_t *)(const void *)longer->data, longer->len, N_TOKENS);
        params.no_reuse = rows[i].no_reuse;
        et_generate(engine, &params, &r);
        g_assert_no_error(r.error);
        g_assert_cmpint(r.receipt.mode, ==, rows[i].got);
        g_assert_cmpuint(r.receipt.n_reused, ==, rows[i].why == QE_MISMATCH_NONE ? n_before - 1 : 0);
        expect_told(&r, n_before, rows[i].why);
        et_pages_used(engine); /* waits for a publication */
        const qe_snapshot *s = qe_engine_dup_snapshot(engine);
        g_assert_cmpint(s->sessions[0].mode, ==, rows[i].got);
        g_assert_true(s->tiers[QE_TIER_HOST].present == (rows[i].n_host > 0));
        g_assert_true((s->tiers[QE_TIER_HOST].reason != NULL) == (rows[i].n_host == 0));
        qe_snapshot_unref(s);
        qe_engine_free(engine);
    }
}

/* Pages that another conversation's took: the next turn says from where on it computes again, and why. */
static void test_told_evicted(void)
{
    use_backend(true);
    g_autoptr(GArray) ids = et_some_ids(300, 2), other = et_some_ids(300, 3);
    qe_engine *engine = engine_with(NULL, 24, 0);
    qe_session_id session = open_mode(engine, QE_CACHE_SESSION);
    g_auto(et_result) r = {0};
    ask(engine, session, ids, 250, &r);
    g_assert_cmpuint(asked(engine, open_mode(engine, QE_CACHE_SESSION), other, 300), ==, 0);
    ask(engine, session, ids, 300, &r);
    g_assert_cmpint(r.receipt.first_mismatch, ==, 250); /* the reply was edited away, and that comes first */
    g_assert_cmpint(r.receipt.mismatch, ==, QE_MISMATCH_EDITED);
    g_assert_cmpuint(r.receipt.n_recomputed, ==, 250);
    g_autoptr(GArray) longer = g_array_new(FALSE, FALSE, sizeof(uint32_t));
    g_array_append_vals(longer, ids->data, 300);
    g_array_append_vals(longer, r.ids->data, r.ids->len);
    g_array_append_vals(longer, other->data, 5);
    uint32_t n_before = 300 + r.ids->len;
    asked(engine, open_mode(engine, QE_CACHE_SESSION), other, 300);
    qe_generate_params params = et_ids(session, (const uint32_t *)(const void *)longer->data, longer->len, 1);
    et_generate(engine, &params, &r);
    g_assert_no_error(r.error);
    expect_told(&r, n_before, QE_MISMATCH_EVICTED);
    qe_engine_free(engine);
}

/* ---- The longest match, wherever it is (10) ---- */

static void longest(bool on_mock)
{
    char *dir = et_scratch();
    use_backend(on_mock);
    g_autoptr(GArray) ids = et_some_ids(300, 4);
    g_auto(et_result) expected = {0};
    want(ids, 300, &expected);
    /* On disk: 10 pages of "short", 18 of "long". */
    qe_engine *engine = engine_with(dir, 400, 400);
    asked(engine, open_with(engine, "short", NULL), ids, 160);
    qe_engine_free(engine);
    engine = engine_with(dir, 400, 400);
    asked(engine, open_with(engine, "long", NULL), ids, 290);
    qe_engine_free(engine);

    /* Memory has more than the conversation's own file: 15 pages of another. */
    engine = engine_with(dir, 400, 400);
    qe_session_id other = open_with(engine, NULL, NULL);
    asked(engine, other, ids, 240);
    g_auto(et_result) r = {0};
    ask(engine, open_with(engine, "short", NULL), ids, 300, &r);
    et_assert_same(&expected, &r);
    g_assert_cmpuint(r.receipt.n_reused, ==, 240);
    qe_engine_free(engine);

    /* Less than it: 5 pages, the others come from the file. */
    engine = engine_with(dir, 400, 400);
    asked(engine, open_with(engine, NULL, NULL), ids, 80);
    ask(engine, open_with(engine, "long", NULL), ids, 300, &r);
    et_assert_same(&expected, &r);
    g_assert_cmpuint(r.receipt.n_reused, ==, 288);
    g_assert_cmpuint(r.receipt.n_restored_disk, ==, 208);
    g_assert_cmpuint(r.receipt.n_shared, ==, 80);
    qe_engine_free(engine);

    /* A conversation with a prefix of its own, part of a page at its end, goes on from another's longer one. */
    engine = engine_with(NULL, 400, 400);
    qe_session_id own = open_with(engine, NULL, NULL);
    asked(engine, own, ids, 107);
    other = open_with(engine, NULL, NULL);
    g_assert_cmpuint(asked(engine, other, ids, 290), ==, 96);
    ask(engine, own, ids, 300, &r);
    et_assert_same(&expected, &r);
    g_assert_cmpuint(r.receipt.n_reused, ==, 288);
    /* And from its own, where that is the longer one. */
    ask(engine, own, ids, 300, &r);
    g_assert_cmpuint(r.receipt.n_reused, ==, 299);
    et_assert_same(&expected, &r);
    qe_engine_free(engine);
    et_scratch_free(dir);
}

static void test_longest_cpu(void)
{
    longest(false);
}

static void test_longest_mock(void)
{
    longest(true);
}

/* ---- A helper's request costs the conversation nothing (11), and a first message of its own nobody's system prompt (13) ---- */

static void test_helper(void)
{
    use_backend(true);
    qe_engine *engine = engine_with(NULL, 48, 0);
    g_autoptr(GError) error = NULL;
    qe_session_id session = open_mode(engine, QE_CACHE_SESSION);
    uint32_t n_before = 0;
    for (int turn = 0; turn < 3; turn++) {
        g_auto(et_result) r = {0};
        et_ask_exactly(engine, session, "Tell me a long story about a cat and a mouse.", N_TOKENS, &r);
        g_assert_cmpuint(r.receipt.n_reused, ==, n_before);
        g_assert_cmpint(r.receipt.mismatch, ==, QE_MISMATCH_NONE);
        n_before = r.receipt.n_prompt + r.receipt.n_generated - 1;
        qe_session_id helper = qe_engine_fork_session(engine, session, QE_KEEP_ALL, &error);
        g_assert_no_error(error);
        et_ask_exactly(engine, helper, "Give this chat a title of three words.", N_TOKENS, &r);
        g_assert_cmpuint(r.receipt.n_reused, ==, n_before);
        qe_engine_close_session(engine, helper);
    }
    qe_engine_free(engine);
}

static void test_first_message(void)
{
    static const char *const users[] = {"What is a KV cache?", "Today is Tuesday. What is my name?"};
    use_backend(false);
    qe_engine *engine = engine_with(NULL, 400, 400);
    uint32_t n_shared = 0;
    for (guint i = 0; i < G_N_ELEMENTS(users); i++) {
        g_auto(et_result) r = {0};
        const qe_message messages[] = {
            {QE_ROLE_SYSTEM,
                "You are a helpful assistant who answers in one short sentence, tells stories about a cat "
                "and "
                "a mouse, knows what a KV cache is, and remembers the name that it was told.",
                -1},
            {QE_ROLE_USER, users[i], -1}};
        qe_generate_params params;
        qe_generate_params_init(&params, NULL);
        params.session = et_open(engine);
        params.messages = messages;
        params.n_messages = 2;
        params.max_tokens = 4;
        et_generate(engine, &params, &r);
        g_assert_no_error(r.error);
        n_shared = r.receipt.n_shared;
    }
    g_assert_cmpuint(n_shared, >=, 32);
    qe_engine_free(engine);
}

/* ---- A full context ends the reply: nothing is shifted or cut (15, 16) ---- */

static void test_full_context(void)
{
    enum { CONTEXT = 96 };
    use_backend(false);
    g_auto(et_result) whole = {0}, first = {0}, r = {0};
    const char *question = "Tell me a long story about a cat and a mouse.";
    qe_engine *engine = engine_with(NULL, 400, 0);
    et_ask_exactly(engine, et_open(engine), question, 2 * CONTEXT, &whole);
    qe_engine_free(engine);

    engine = et_engine_new(&(qe_engine_options){.context_max = CONTEXT});
    qe_session_id session = et_open(engine);
    qe_message message;
    qe_generate_params params = et_user(session, question, &message);
    params.ignore_eos = true;
    params.max_tokens = 2 * CONTEXT;
    et_generate(engine, &params, &first);
    g_assert_no_error(first.error);
    g_assert_cmpint(first.finish, ==, QE_FINISH_CONTEXT);
    g_assert_cmpuint(first.receipt.n_prompt + first.ids->len, ==, CONTEXT);
    g_assert_cmpmem(first.ids->data, first.ids->len * 4, whole.ids->data, first.ids->len * 4);

    /* The next message is refused with both numbers, again and again, and costs the conversation nothing. */
    for (int i = 0; i < 3; i++) {
        params = et_user(session, "Go on.", &message);
        et_generate(engine, &params, &r);
        g_assert_error(r.error, QE_ERROR, QE_ERROR_CONTEXT_LENGTH);
        g_assert_nonnull(strstr(r.error->message, "96"));
        g_assert_cmpuint(r.text->len, ==, 0);
    }
    /* Whoever shortens it does so by himself: what stays is what it was. */
    params = et_user(session, question, &message);
    params.keep_messages = 0;
    params.ignore_eos = true;
    params.max_tokens = 8;
    et_generate(engine, &params, &r);
    g_assert_no_error(r.error);
    g_assert_cmpuint(r.receipt.n_reused, ==, r.receipt.n_prompt - 1);
    g_assert_cmpmem(r.ids->data, 8 * 4, first.ids->data, 8 * 4);
    et_ask(engine, session, "Go on.", 4, &r);
    g_assert_cmpuint(r.receipt.n_recomputed, ==, 0);
    qe_engine_free(engine);
}

/* ---- Types of pages: on the device like any other, or refused (17) ---- */

static const qk_backend_ops *whole_ops;

static qk_status plain_context_new(qk_model *model, const qk_context_params *params, qk_context **out)
{
    if (params->layout_1.page_bytes > 0 || params->select_max > 0)
        return QK_UNSUPPORTED;
    return whole_ops->context_new(model, params, out);
}

/* A device that knows neither int8 pages nor choosing pages. */
static qk_status open_plain(void *user, qk_backend **out, char *error, size_t error_size)
{
    static qk_backend_ops ops;
    qk_status status = qk_cpu_open(&(qk_backend_options){.n_threads = 1}, out, error, error_size);
    if (status != QK_OK)
        return status;
    whole_ops = (*out)->ops;
    ops = *whole_ops;
    ops.context_new = plain_context_new;
    (*out)->ops = &ops;
    return QK_OK;
}

static void expect_refused(qe_engine *engine, qe_session_id session, const GArray *ids, const char *mode)
{
    g_auto(et_result) r = {0};
    qe_generate_params params = et_ids(session, (const uint32_t *)(const void *)ids->data, ids->len, 2);
    et_generate(engine, &params, &r);
    g_assert_error(r.error, QE_ERROR, QE_ERROR_UNSUPPORTED);
    g_autofree char *words = g_strdup_printf("%s is not offered here", mode);
    g_assert_nonnull(strstr(r.error->message, words));
    g_assert_cmpuint(r.ids->len, ==, 0);
}

/* A mode that the device has not, asked for at the open, later, or by a fork, is refused, and no other takes its place. */
static void test_refused_type(void)
{
    static const qe_cache_mode modes[] = {QE_CACHE_TIERED_INT8, QE_CACHE_SELECTIVE};
    g_autoptr(GArray) ids = et_some_ids(60, 5);
    et_set_backend(open_plain, NULL);
    for (guint i = 0; i < G_N_ELEMENTS(modes); i++) {
        g_autoptr(GError) error = NULL;
        const char *name = qe_cache_mode_name(modes[i]);
        qe_engine *engine = engine_with(NULL, 400, 400);
        qe_session_id session = open_mode(engine, modes[i]);
        expect_refused(engine, session, ids, name);
        qe_session_id child = qe_engine_fork_session(engine, session, QE_KEEP_ALL, &error);
        g_assert_no_error(error);
        expect_refused(engine, child, ids, name);
        set_mode(engine, session, QE_CACHE_TIERED); /* another mode is not refused */
        g_assert_cmpuint(asked(engine, session, ids, 60), ==, 0);
        set_mode(engine, session, modes[i]);
        expect_refused(engine, session, ids, name);
        set_mode(engine, session, QE_CACHE_TIERED);
        g_assert_cmpuint(asked(engine, session, ids, 60), ==, 59);
        qe_engine_free(engine);
    }
}

/* A turn in int8 is as many steps of the device as one in bf16: no row of it is computed elsewhere or by itself. */
static void test_type_on_device(void)
{
    static const qe_cache_mode modes[] = {QE_CACHE_SESSION, QE_CACHE_TIERED, QE_CACHE_TIERED_INT8};
    uint64_t n_steps[G_N_ELEMENTS(modes)][2];
    g_autoptr(GArray) ids = et_some_ids(400, 6);
    use_backend(true);
    for (guint i = 0; i < G_N_ELEMENTS(modes); i++) {
        qe_engine *engine = et_engine_new(&(qe_engine_options){
            .kv_bytes_max = 400 * PAGE_BYTES,
            .host_bytes_max = 400 * PAGE_BYTES,
            .ring_bytes = 1 << 20,
            .step_rows_max = 64,
            .step_ms_shared = 1000000, /* steps are as long as the rows allow, however slow the machine */
            .step_ms_alone = 1000000,
        });
        qe_session_id session = open_mode(engine, modes[i]);
        for (uint32_t turn = 0; turn < 2; turn++) {
            qk_mock_stats before, after;
            qk_mock_get_stats(mock, &before);
            g_assert_cmpuint(asked(engine, session, ids, turn ? 400 : 250), ==, turn ? 250 : 0);
            et_pages_used(engine);
            qk_mock_get_stats(mock, &after);
            n_steps[i][turn] = after.n_steps - before.n_steps;
        }
        g_assert_cmpuint(n_steps[i][0], >=, 4 + N_TOKENS - 1);
        for (uint32_t turn = 0; turn < 2; turn++)
            g_assert_cmpuint(n_steps[i][turn], ==, n_steps[0][turn]);
        qe_engine_free(engine);
    }
}

/* ---- A disk that is slower than computing, or does not answer (20) ---- */

static void test_slow_disk(void)
{
    static const uint32_t let_through[] = {0, 3};
    use_backend(false);
    g_autoptr(GArray) ids = et_some_ids(300, 7);
    g_auto(et_result) expected = {0};
    want(ids, 300, &expected);
    for (guint i = 0; i < G_N_ELEMENTS(let_through); i++) {
        char *dir = et_scratch();
        g_auto(et_result) r = {0};
        qe_engine *engine = engine_with(dir, 400, 400);
        asked(engine, open_with(engine, "k", NULL), ids, 290);
        qe_engine_free(engine);

        set_gate(let_through[i]);
        engine = engine_with(dir, 400, 400);
        qe_session_id session = open_with(engine, "k", NULL);
        ask(engine, session, ids, 300, &r); /* the gate stays shut until the reply is there */
        et_assert_same(&expected, &r);
        g_assert_cmpuint(r.receipt.n_restored_disk, <=, 16 * let_through[i]);
        g_assert_cmpuint(r.receipt.n_new, ==, 300 - r.receipt.n_reused);
        et_pages_used(engine);
        const qe_snapshot *s = qe_engine_dup_snapshot(engine);
        g_assert_nonnull(s->tiers[QE_TIER_DISK].note);
        g_assert_nonnull(strstr(s->tiers[QE_TIER_DISK].note, "slower than computing"));
        qe_snapshot_unref(s);
        qe_mutex_lock(&gate_lock);
        g_assert_cmpuint(n_at_gate, >, 0); /* some read still waits, for all that */
        qe_mutex_unlock(&gate_lock);
        set_gate(UINT32_MAX);
        ask(engine, session, ids, 300, &r);
        et_assert_same(&expected, &r);
        qe_engine_free(engine);
        /* What is on the disk is still good. */
        engine = engine_with(dir, 400, 400);
        ask(engine, open_with(engine, "k", NULL), ids, 300, &r);
        et_assert_same(&expected, &r);
        g_assert_cmpuint(r.receipt.n_reused, >=, 288);
        g_assert_cmpuint(r.receipt.n_restored_disk, >=, 288);
        qe_engine_free(engine);
        et_scratch_free(dir);
    }
}

/* A prompt that is asked again after a restart: its reply begins before a page of it is back. */
static void test_first_before_pages(void)
{
    static const uint32_t max_tokens[] = {N_TOKENS, 1};
    use_backend(false);
    g_autoptr(GArray) ids = et_some_ids(300, 9);
    for (guint i = 0; i < G_N_ELEMENTS(max_tokens); i++) {
        g_autoptr(GError) error = NULL;
        char *dir = et_scratch();
        g_auto(et_result) r = {0}, rest = {0};
        qe_engine *engine = engine_with(dir, 400, 400);
        ask(engine, open_with(engine, "k", NULL), ids, 300, &r);
        qe_engine_free(engine);
        const uint32_t *reply = (const uint32_t *)(const void *)r.ids->data;

        set_gate(0);
        engine = engine_with(dir, 400, 400);
        qe_generate_params params = et_ids(
            open_with(engine, "k", NULL), (const uint32_t *)(const void *)ids->data, ids->len, max_tokens[i]);
        params.ignore_eos = true;
        qe_request *request = qe_engine_generate(engine, &params, &error);
        g_assert_no_error(error);
        uint32_t n = 0;
        for (bool told = false; !told;) { /* the gate is shut meanwhile */
            qe_update update;
            qe_request_wait(request, -1);
            qe_request_take(request, &update);
            if (update.n_ids > 0)
                g_assert_cmpuint(update.ids[0], ==, reply[0]);
            n += update.n_ids;
            told = update.receipt.first_token_ms > 0;
            if (told) {
                g_assert_cmpuint(update.receipt.n_restored_disk, ==, 0);
                g_assert_cmpuint(update.receipt.n_prompt, ==, 300);
                g_assert_cmpuint(update.receipt.n_new + update.receipt.n_recomputed, ==, 0);
                g_assert_cmpfloat(update.receipt.queue_ms, <=, update.receipt.first_token_ms);
            }
            qe_update_clear(&update);
        }
        g_assert_cmpuint(n, ==, 1);
        if (max_tokens[i] > 1)
            set_gate(UINT32_MAX);
        et_finish(request, &rest); /* of a reply of one token its end alone, with the gate still shut */
        g_assert_no_error(rest.error);
        g_assert_cmpuint(rest.ids->len, ==, max_tokens[i] - 1);
        g_assert_cmpmem(rest.ids->data, rest.ids->len * 4, reply + 1, rest.ids->len * 4);
        g_assert_cmpint(rest.finish, ==, QE_FINISH_LENGTH);
        g_assert_cmpuint(rest.receipt.n_generated, ==, max_tokens[i]);
        g_assert_cmpuint(rest.receipt.n_recomputed, ==, 0);
        g_assert_cmpuint(rest.receipt.n_new, ==, max_tokens[i] > 1 ? 300 % 16 : 0);
        g_assert_cmpuint(rest.receipt.n_restored_disk, ==, max_tokens[i] > 1 ? 288 : 0);
        g_assert_true((rest.receipt.restore_disk_ms > 0) == (max_tokens[i] > 1));
        g_assert_cmpfloat(rest.receipt.restore_disk_ms, <=, rest.receipt.restore_ms);
        set_gate(UINT32_MAX);
        qe_engine_free(engine);
        et_scratch_free(dir);
    }
}

/* ---- What is written may come back, and both ways are counted (23) ---- */

typedef struct {
    uint64_t host_in, host_out, disk_in, disk_out;
} traffic;

/* In pages, once @n_disk_in were written to the disk and the engine has nothing left to do. */
static traffic traffic_of(qe_engine *engine, uint64_t n_disk_in)
{
    traffic t = {0};
    for (int i = 0; i < 3000; i++) {
        et_pages_used(engine);
        const qe_snapshot *s = qe_engine_dup_snapshot(engine);
        const qe_tier_view *host = &s->tiers[QE_TIER_HOST], *disk = &s->tiers[QE_TIER_DISK];
        g_assert_cmpuint(host->bytes_in % PAGE_BYTES + host->bytes_out % PAGE_BYTES, ==, 0);
        g_assert_cmpuint(disk->bytes_in % PAGE_BYTES + disk->bytes_out % PAGE_BYTES, ==, 0);
        t = (traffic){host->bytes_in / PAGE_BYTES, host->bytes_out / PAGE_BYTES, disk->bytes_in / PAGE_BYTES,
            disk->bytes_out / PAGE_BYTES};
        qe_snapshot_unref(s);
        if (t.disk_in >= n_disk_in)
            break;
    }
    return t;
}

static void test_traffic(void)
{
    char *dir = et_scratch();
    use_backend(true);
    g_autoptr(GArray) ids = et_some_ids(300, 8);
    qe_cache_config private;
    qe_cache_config_init(&private);
    private.use_cache = false;

    /* Nobody could find these on the disk: no name there, or no sharing. */
    qe_engine *engine = engine_with(dir, 400, 400);
    asked(engine, open_with(engine, NULL, NULL), ids, 300);
    asked(engine, open_with(engine, "private", &private), ids, 300);
    traffic t = traffic_of(engine, 0);
    g_assert_cmpuint(t.disk_in + t.disk_out, ==, 0);
    qe_engine_free(engine);

    /* 319 tokens computed, 19 pages, once each: not again by the same prompt, in this engine or the next. */
    engine = engine_with(dir, 400, 400);
    qe_session_id session = open_with(engine, "k", NULL);
    asked(engine, session, ids, 300);
    asked(engine, session, ids, 300);
    t = traffic_of(engine, 19);
    g_assert_cmpuint(t.disk_in, ==, 19);
    g_assert_cmpuint(t.disk_out, ==, 0);
    g_assert_cmpuint(t.host_in, >=, 19); /* the reply's page was made twice */
    g_assert_cmpuint(t.host_in, <=, 20);
    g_assert_cmpuint(t.host_out, ==, 19); /* to the disk; nothing had to go back */
    qe_engine_free(engine);

    engine = engine_with(dir, 400, 400);
    session = open_with(engine, "k", NULL);
    g_auto(et_result) r = {0};
    ask(engine, session, ids, 300, &r);
    g_assert_cmpuint(r.receipt.n_restored_disk, ==, 288);
    t = traffic_of(engine, 0);
    g_assert_cmpuint(t.disk_out, ==, 19);
    g_assert_cmpuint(t.disk_in, ==, 0);
    g_assert_cmpuint(t.host_in, >=, 19);  /* from the disk */
    g_assert_cmpuint(t.host_out, ==, 18); /* what the turn used; the reply's page was not asked for */
    qe_engine_free(engine);
    et_scratch_free(dir);
}

/* ---- The table ---- */

/* All that the test programs of this folder and the files of others have in them. Owned. */
static char *all_sources(const char *root)
{
    GString *all = g_string_new(NULL);
    g_autoptr(GError) error = NULL;
    g_autofree char *here = g_build_filename(root, "tests", "engine", NULL);
    GDir *dir = g_dir_open(here, 0, &error);
    g_assert_no_error(error);
    for (const char *name; (name = g_dir_read_name(dir));) {
        g_autofree char *path = g_build_filename(here, name, NULL), *text = NULL;
        if (!g_str_has_suffix(name, ".c"))
            continue;
        g_file_get_contents(path, &text, NULL, &error);
        g_assert_no_error(error);
        g_string_append(all, text);
    }
    g_dir_close(dir);
    return g_string_free(all, FALSE);
}

/* Every test that the table names is there, and each row names one. */
static void test_table(void)
{
    g_autoptr(GError) error = NULL;
    const char *root = g_getenv("G_TEST_SRCDIR");
    g_assert_nonnull(root);
    g_autofree char *path = g_build_filename(root, "tests", "engine", "README.md", NULL);
    g_autofree char *table = NULL, *sources = all_sources(root);
    g_file_get_contents(path, &table, NULL, &error);
    g_assert_no_error(error);
    g_auto(GStrv) lines = g_strsplit(table, "\n", -1);
    uint32_t n_rows = 0;
    for (guint i = 0; lines[i]; i++) {
        char *end;
        if (!g_str_has_prefix(lines[i], "| ") || g_ascii_strtoull(lines[i] + 2, &end, 10) != n_rows + 1)
            continue;
        n_rows++;
        g_auto(GStrv) cells = g_strsplit(lines[i], "|", -1);
        g_assert_cmpuint(g_strv_length(cells), ==, 6);
        g_auto(GStrv) words = g_strsplit(cells[4], "`", -1);
        g_assert_cmpuint(g_strv_length(words), >=, 3);
        for (guint k = 1; words[k]; k += 2) {
            g_autofree char *quoted = g_strdup_printf("\"%s\"", words[k]);
            g_autofree char *file = g_build_filename(root, words[k], NULL);
            bool there = words[k][0] == '/' ? strstr(sources, quoted) != NULL
                                            : g_file_test(file, G_FILE_TEST_IS_REGULAR);
            if (!there)
                g_error("row %u names %s, which there is not", n_rows, words[k]);
        }
    }
    g_assert_cmpuint(n_rows, ==, 28);
}

int main(int argc, char **argv)
{
    g_test_init(&argc, &argv, NULL);
    g_test_add_func("/engine/faults/table", test_table);
    g_test_add_func("/engine/faults/told", test_told);
    g_test_add_func("/engine/faults/told-evicted", test_told_evicted);
    g_test_add_func("/engine/faults/longest/cpu", test_longest_cpu);
    g_test_add_func("/engine/faults/longest/mock", test_longest_mock);
    g_test_add_func("/engine/faults/helper", test_helper);
    g_test_add_func("/engine/faults/first-message", test_first_message);
    g_test_add_func("/engine/faults/full-context", test_full_context);
    g_test_add_func("/engine/faults/refused-type", test_refused_type);
    g_test_add_func("/engine/faults/type-on-device", test_type_on_device);
    g_test_add_func("/engine/faults/slow-disk", test_slow_disk);
    g_test_add_func("/engine/faults/first-before-pages", test_first_before_pages);
    g_test_add_func("/engine/faults/traffic", test_traffic);
    return g_test_run();
}
