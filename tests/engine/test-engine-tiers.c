/* test-engine-tiers.c: cache modes and tiers change where pages are, never what is said. The same conversation in every
 * mode, on the CPU and on the mock card, with room for everything and with hardly any on the device; what sharing,
 * restoring, losing the device and closing do is told by receipts. */
#include <math.h>
#include <string.h>
#include "engine/qe-lock.h"
#include "kernels/qk-backend.h"
#include "kernels/qk-mock.h"
#include "tests/engine/engine-test.h"

#define PAGE_BYTES (16u * 2 * 8 * 2 * 64 * 2) /* tokens, K and V, layers, kv heads, head_dim, bf16 */
#define N_TURNS    5u
#define N_TOKENS   20u

static const char *const questions[N_TURNS] = {"Tell me a long story about a cat and a mouse.",
    "My name is Mira.", "What is a KV cache?", "What is my name?", "Tell me another story, please."};

static qk_mock_options mock_options;
static qk_backend *last_mock; /* borrowed: the engine's */

static qk_status open_mock(void *user, qk_backend **out, char *error, size_t error_size)
{
    qk_status status = qk_mock_open(&mock_options, out, error, error_size);
    last_mock = *out;
    return status;
}

static qe_engine *engine_by(uint32_t n_device, uint32_t n_host, qe_host_path path)
{
    return et_engine_new(&(qe_engine_options){
        .kv_bytes_max = (uint64_t)n_device * PAGE_BYTES,
        .host_bytes_max = n_host ? (uint64_t)n_host * PAGE_BYTES : 1,
        .ring_bytes = 1 << 20,
        .step_rows_max = 64,
        .host_path = path,
    });
}

static qe_engine *engine_with(uint32_t n_device, uint32_t n_host)
{
    return engine_by(n_device, n_host, QE_HOST_PATH_AUTO);
}

static qe_session_id open_mode(qe_engine *engine, qe_cache_mode mode, uint32_t gpu_tokens)
{
    qe_session_options options;
    qe_session_options_init(&options);
    options.cache.mode = mode;
    options.cache.hot_cache_length = gpu_tokens;
    return et_open_with(engine, &options);
}

static void ask_ids(qe_engine *engine, qe_session_id session, const GArray *ids)
{
    g_auto(et_result) r = {0};
    qe_generate_params params = et_ids(session, (const uint32_t *)(const void *)ids->data, ids->len, 1);
    et_generate(engine, &params, &r);
    g_assert_no_error(r.error);
}

static void clear_all(et_result *results)
{
    for (guint i = 0; i < N_TURNS; i++)
        et_result_clear(&results[i]);
}

static void talk(qe_engine *engine, qe_session_id session, et_result *results)
{
    for (guint i = 0; i < N_TURNS; i++)
        et_ask_exactly(engine, session, questions[i], N_TOKENS, &results[i]);
}

/* The raw logits after each of the last 40 tokens of @ids in a session of @mode, computed in two pieces. */
static float *logits_of(qe_engine *engine, qe_session_id session, const GArray *ids)
{
    g_autoptr(GError) error = NULL;
    qe_engine_status status;
    qe_engine_get_status(engine, &status);
    uint32_t n = ids->len, first = n - 40;
    float *out = g_new(float, (gsize)(n - first) * status.model->vocab);
    bool ok =
        qe_engine_eval(engine, session, (const uint32_t *)(const void *)ids->data, n, first, out, &error);
    g_assert_no_error(error);
    g_assert_true(ok);
    qe_engine_status_clear(&status);
    return out;
}

typedef struct {
    qe_cache_mode mode;
    uint32_t gpu_tokens, n_device, n_host;
    qe_host_path path;
} setup;

static const setup setups[] = {
    {QE_CACHE_REBUILD, 0, 4000, 0},
    {QE_CACHE_REBUILD, 0, 60, 0}, /* the run has to move within little room */
    {QE_CACHE_PAGED, 0, 4000, 0},
    {QE_CACHE_SESSION, 0, 4000, 0},
    {QE_CACHE_TIERED, 0, 4000, 4000},
    {QE_CACHE_TIERED, 0, 7, 400},    /* less than the conversation needs */
    {QE_CACHE_TIERED, 64, 400, 400}, /* capped: pages go to the host after every step */
    {QE_CACHE_TIERED, 96, 20, 400},
    {QE_CACHE_TIERED, 64, 400, 400, QE_HOST_PATH_READ},
};

static void same_in_all_modes(const char *backend)
{
    et_result want[N_TURNS] = {0}, got[N_TURNS] = {0};
    et_set_backend(NULL, NULL);
    g_autoptr(GArray) ids = et_some_ids(450, 7);
    qe_engine *engine = engine_with(4000, 0);
    qe_session_id session = open_mode(engine, QE_CACHE_SESSION, 0);
    talk(engine, session, want);
    qe_engine_status status;
    qe_engine_get_status(engine, &status);
    gsize logits_bytes = 40 * (gsize)status.model->vocab * sizeof(float);
    qe_engine_status_clear(&status);
    g_autofree float *want_logits = logits_of(engine, open_mode(engine, QE_CACHE_SESSION, 0), ids);
    qe_engine_free(engine);

    bool mock = strcmp(backend, "mock") == 0;
    et_set_backend(mock ? open_mock : NULL, NULL);
    for (guint k = 0; k < G_N_ELEMENTS(setups); k++) {
        const setup *s = &setups[k];
        mock_options = (qk_mock_options){.seed = k, .delay_us_max = 300, .n_threads = 2};
        engine = engine_by(s->n_device, s->n_host, s->path);
        session = open_mode(engine, s->mode, s->gpu_tokens);
        talk(engine, session, got);
        uint32_t n_before = 0, n_host = 0;
        for (guint i = 0; i < N_TURNS; i++) {
            const qe_receipt *r = &got[i].receipt;
            et_assert_same(&want[i], &got[i]);
            g_assert_cmpint(r->mode, ==, s->mode);
            bool keeps = s->mode != QE_CACHE_REBUILD && s->mode != QE_CACHE_PAGED;
            g_assert_cmpuint(r->n_reused, ==, keeps ? n_before : 0);
            g_assert_cmpuint(r->n_new, ==, r->n_prompt - r->n_reused);
            if (i > 0)
                g_assert_cmpint(r->mismatch, ==, keeps ? QE_MISMATCH_NONE : QE_MISMATCH_MODE);
            n_before = r->n_prompt + r->n_generated - 1;
            n_host += r->n_on_host;
        }
        if (s->n_device < 24)
            g_assert_cmpuint(n_host, >, 0);
        clear_all(got);
        g_autofree float *logits = logits_of(engine, open_mode(engine, s->mode, s->gpu_tokens), ids);
        g_assert_cmpmem(logits, logits_bytes, want_logits, logits_bytes);
        qe_engine_free(engine);
    }
    clear_all(want);
}

/* Whole spans on the host are attended to by the CPU; those at the end of the context, of which the device has a part,
 * beside it by the device. On every way the same tokens. */
static void test_paths(void)
{
    static const qe_host_path paths[] = {QE_HOST_PATH_STREAM, QE_HOST_PATH_READ, QE_HOST_PATH_CPU};
    g_autoptr(GArray) ids = et_some_ids(700, 11);
    const uint32_t *prompt = (const uint32_t *)(const void *)ids->data;
    et_result want = {0}, got = {0};
    et_set_backend(NULL, NULL);
    qe_engine *engine = engine_with(4000, 0);
    qe_generate_params params = et_ids(open_mode(engine, QE_CACHE_SESSION, 0), prompt, ids->len, 24);
    et_generate(engine, &params, &want);
    qe_engine_free(engine);
    et_set_backend(open_mock, NULL);
    for (guint k = 0; k < G_N_ELEMENTS(paths); k++) {
        mock_options = (qk_mock_options){.seed = k, .delay_us_max = 300, .n_threads = 2};
        engine = engine_by(400, 400, paths[k]);
        qe_session_id session = open_mode(engine, QE_CACHE_TIERED, 64);
        params = et_ids(session, prompt, ids->len, 24);
        et_generate(engine, &params, &got);
        g_assert_no_error(got.error);
        et_assert_same(&want, &got);
        et_result_clear(&got);
        params = et_ids(session, prompt, ids->len, 24); /* from what lies on the host */
        et_generate(engine, &params, &got);
        g_assert_no_error(got.error);
        et_assert_same(&want, &got);
        g_assert_cmpuint(got.receipt.n_on_host, >=, 2 * QK_SPAN_TOKENS);
        et_result_clear(&got);
        qe_engine_free(engine);
    }
    et_result_clear(&want);
}

static void test_same_cpu(void)
{
    same_in_all_modes("cpu");
}

static void test_same_mock(void)
{
    same_in_all_modes("mock");
}

/* ---- Branches, with pages that go and come at every step ---- */

enum { N_BRANCHES = 3 };

/* Three prompts: the second goes another way from inside a page in the middle on, the third from inside an early one. */
static void make_branches(GArray *out[N_BRANCHES])
{
    static const struct {
        uint32_t n, n_common;
    } ways[N_BRANCHES] = {{450, 0}, {430, 333}, {300, 41}};
    for (uint32_t i = 0; i < N_BRANCHES; i++) {
        out[i] = et_some_ids(ways[i].n, 60 + i);
        memcpy(out[i]->data, out[0]->data, ways[i].n_common * sizeof(uint32_t));
    }
}

/* Another conversation that takes what the device has. */
static void take_device(qe_engine *engine, qe_session_id hog, uint32_t n_tokens)
{
    static uint32_t seed = 1000;
    if (n_tokens == 0)
        return;
    g_autoptr(GArray) ids = et_some_ids(n_tokens, seed++);
    g_auto(et_result) r = {0};
    qe_generate_params params = et_ids(hog, (const uint32_t *)(const void *)ids->data, ids->len, 2);
    et_generate(engine, &params, &r);
    g_assert_no_error(r.error);
}

static void cancel_reply(qe_engine *engine, qe_session_id session, const GArray *ids)
{
    g_autoptr(GError) error = NULL;
    g_auto(et_result) r = {0};
    qe_generate_params params = et_ids(session, (const uint32_t *)(const void *)ids->data, ids->len, 500);
    params.ignore_eos = true;
    qe_request *request = qe_engine_generate(engine, &params, &error);
    g_assert_no_error(error);
    for (uint32_t n = 0; n < 3;) { /* into its reply */
        qe_update update;
        qe_request_wait(request, -1);
        qe_request_take(request, &update);
        n += update.n_ids;
        qe_update_clear(&update);
    }
    qe_request_cancel(request);
    et_finish(request, &r);
    g_assert_cmpint(r.finish, ==, QE_FINISH_CANCELLED);
}

static void check_branch(
    qe_engine *engine, qe_session_id session, const GArray *ids, const float *want, gsize n_bytes)
{
    g_autofree float *got = logits_of(engine, session, ids);
    g_assert_cmpmem(got, n_bytes, want, n_bytes);
}

typedef struct {
    qe_cache_mode mode;
    uint32_t gpu_tokens, n_device, n_host,
        n_hog; /* n_hog: tokens of the conversation that is between all steps */
} branch_setup;

/* A fork, a rewind, a cancelled reply and a restart from the disk give each branch's logits to the bit: in every exact mode,
 * and where another conversation pushes all pages to the host between any two of them, or a limit does after each step. */
static void branches(bool mock)
{
    static const branch_setup ways[] = {{QE_CACHE_REBUILD, 0, 400, 0, 0}, {QE_CACHE_PAGED, 0, 400, 0, 0},
        {QE_CACHE_SESSION, 0, 400, 0, 0}, {QE_CACHE_TIERED, 64, 400, 400, 0},
        {QE_CACHE_TIERED, 0, 40, 400, 560}, {QE_CACHE_TIERED, 64, 40, 400, 560}};
    GArray *ids[N_BRANCHES];
    float *want[N_BRANCHES];
    make_branches(ids);
    et_set_backend(NULL, NULL);
    qe_engine *engine = engine_with(400, 0);
    qe_engine_status status;
    qe_engine_get_status(engine, &status);
    gsize n_bytes = 40 * (gsize)status.model->vocab * sizeof(float);
    qe_engine_status_clear(&status);
    for (uint32_t i = 0; i < N_BRANCHES; i++)
        want[i] = logits_of(engine, open_mode(engine, QE_CACHE_SESSION, 0), ids[i]);
    qe_engine_free(engine);
    et_set_backend(mock ? open_mock : NULL, NULL);
    /* Where nothing moves, and one where it does, on the CPU alone; the late copies of the mock make the others harder. */
    for (guint k = mock ? 3 : 0; k < (mock ? G_N_ELEMENTS(ways) : 4); k++) {
        g_autoptr(GError) error = NULL;
        const branch_setup *w = &ways[k];
        char *dir = et_scratch();
        uint64_t n_read = 0;
        for (int run = 0; run < 2; run++) {
            mock_options = (qk_mock_options){.seed = 30 + k, .delay_us_max = 100, .n_threads = 2};
            engine = et_engine_new(&(qe_engine_options){
                .kv_bytes_max = (uint64_t)w->n_device * PAGE_BYTES,
                .host_bytes_max = w->n_host ? (uint64_t)w->n_host * PAGE_BYTES : 1,
                .ring_bytes = 1 << 20,
                .step_rows_max = 64,
                .disk_dir = dir,
                .disk_bytes_max = 64ull << 20,
            });
            qe_session_options options;
            qe_session_options_init(&options);
            options.cache.mode = w->mode;
            options.cache.hot_cache_length = w->gpu_tokens;
            options.disk_key = "branches";
            qe_session_id a = et_open_with(engine, &options), hog = open_mode(engine, QE_CACHE_AUTO, 0);
            check_branch(engine, a, ids[0], want[0], n_bytes); /* in the second run from the disk */
            take_device(engine, hog, w->n_hog);
            qe_session_id b = qe_engine_fork_session(engine, a, QE_KEEP_ALL, &error);
            g_assert_no_error(error);
            check_branch(engine, b, ids[2], want[2], n_bytes);
            take_device(engine, hog, w->n_hog);
            check_branch(engine, a, ids[1], want[1], n_bytes);
            take_device(engine, hog, w->n_hog);
            cancel_reply(engine, a, ids[0]);
            take_device(engine, hog, w->n_hog);
            check_branch(engine, a, ids[0], want[0], n_bytes);
            check_branch(engine, b, ids[2], want[2], n_bytes);
            cancel_reply(engine, b, ids[1]);
            qe_engine_close_session(engine, b);
            take_device(engine, hog, w->n_hog);
            check_branch(engine, a, ids[0], want[0], n_bytes);
            et_pages_used(engine);
            const qe_snapshot *s = qe_engine_dup_snapshot(engine);
            n_read = s->tiers[QE_TIER_DISK].bytes_out;
            if (w->n_hog > 0)
                g_assert_cmpuint(s->tiers[QE_TIER_HOST].bytes_out, >, w->gpu_tokens ? 0 : 28 * PAGE_BYTES);
            qe_snapshot_unref(s);
            qe_engine_free(engine);
        }
        g_assert_true((n_read >= 28 * PAGE_BYTES) == (w->mode == QE_CACHE_TIERED));
        et_scratch_free(dir);
    }
    for (uint32_t i = 0; i < N_BRANCHES; i++) {
        g_array_unref(ids[i]);
        g_free(want[i]);
    }
    et_set_backend(NULL, NULL);
}

static void test_branches_cpu(void)
{
    branches(false);
}

static void test_branches_mock(void)
{
    branches(true);
}

/* More conversations than the device holds: they go to the host when idle and come back; nothing is computed again. */
static void many_conversations(bool mock)
{
    enum { N = 6 };
    et_result want[N][N_TURNS] = {0};
    et_set_backend(NULL, NULL);
    qe_engine *engine = engine_with(4000, 0);
    for (guint i = 0; i < N; i++) {
        qe_session_id s = open_mode(engine, QE_CACHE_SESSION, 0);
        for (guint t = 0; t < N_TURNS; t++)
            et_ask_exactly(engine, s, questions[(t + i) % N_TURNS], N_TOKENS, &want[i][t]);
    }
    qe_engine_free(engine);

    et_set_backend(mock ? open_mock : NULL, NULL);
    mock_options = (qk_mock_options){.seed = 3, .delay_us_max = 200, .n_threads = 2};
    engine = engine_with(40, 600);
    qe_session_id sessions[N];
    for (guint i = 0; i < N; i++)
        sessions[i] = open_mode(engine, QE_CACHE_AUTO, 0);
    uint32_t n_restored = 0;
    for (guint t = 0; t < N_TURNS; t++) {
        for (guint i = 0; i < N; i++) {
            g_auto(et_result) r = {0};
            et_ask_exactly(engine, sessions[i], questions[(t + i) % N_TURNS], N_TOKENS, &r);
            et_assert_same(&want[i][t], &r);
            g_assert_cmpint(r.receipt.mode, ==, QE_CACHE_TIERED);
            g_assert_cmpuint(r.receipt.n_recomputed, ==, 0);
            g_assert_cmpint(r.receipt.mismatch, ==, QE_MISMATCH_NONE);
            n_restored += r.receipt.n_restored_host;
        }
    }
    g_assert_cmpuint(n_restored, >, 0);
    qe_engine_free(engine);
    for (guint i = 0; i < N; i++)
        clear_all(want[i]);
}

static void test_many_cpu(void)
{
    many_conversations(false);
}

static void test_many_mock(void)
{
    many_conversations(true);
}

/* The same long prompt in several sessions is computed once; one that does not use the cache computes it itself. */
static void test_shared(void)
{
    et_set_backend(NULL, NULL);
    qe_engine *engine = engine_with(400, 0);
    g_autoptr(GArray) ids = et_some_ids(200, 11);
    for (int i = 0; i < 4; i++) {
        g_autoptr(GError) error = NULL;
        qe_session_options options;
        qe_session_options_init(&options);
        options.cache.use_cache = i != 2;
        qe_session_id session = qe_engine_open_session_with(engine, &options, &error);
        g_assert_no_error(error);
        qe_generate_params params = et_ids(session, (const uint32_t *)(const void *)ids->data, ids->len, 4);
        g_auto(et_result) r = {0};
        et_generate(engine, &params, &r);
        g_assert_no_error(r.error);
        bool finds = i == 1 || i == 3;
        g_assert_cmpuint(r.receipt.n_reused, ==, finds ? 192 : 0);
        g_assert_cmpuint(r.receipt.n_shared, ==, finds ? 192 : 0);
    }
    qe_engine_free(engine);
}

/* Ids are compared: a page is found by what it holds, not only by where the chain was. */
static void test_not_shared(void)
{
    et_set_backend(NULL, NULL);
    qe_engine *engine = engine_with(400, 0);
    g_autoptr(GArray) ids = et_some_ids(100, 11);
    for (int i = 0; i < 2; i++) {
        if (i == 1)
            g_array_index(ids, uint32_t, 3)++;
        qe_session_id session = open_mode(engine, QE_CACHE_SESSION, 0);
        qe_generate_params params = et_ids(session, (const uint32_t *)(const void *)ids->data, ids->len, 2);
        g_auto(et_result) r = {0};
        et_generate(engine, &params, &r);
        g_assert_no_error(r.error);
        g_assert_cmpuint(r.receipt.n_reused, ==, 0);
    }
    qe_engine_free(engine);
}

/* A closed conversation's pages stay findable in the lower tier, are the first to go, and never come up in another. */
static void test_closed(void)
{
    et_set_backend(NULL, NULL);
    qe_engine *engine = engine_with(60, 60);
    g_autoptr(GArray) ids = et_some_ids(200, 5);
    for (int i = 0; i < 3; i++) {
        qe_session_id session = open_mode(engine, QE_CACHE_TIERED, 0);
        qe_generate_params params = et_ids(session, (const uint32_t *)(const void *)ids->data, ids->len, 4);
        g_auto(et_result) r = {0};
        et_generate(engine, &params, &r);
        g_assert_no_error(r.error);
        g_assert_cmpuint(r.receipt.n_reused, ==, i == 1 ? 192 : 0);
        qe_engine_close_session(engine, session);
        if (i == 1) { /* fills all tiers: the cached pages go */
            g_autoptr(GArray) other = et_some_ids(900, 6);
            session = open_mode(engine, QE_CACHE_TIERED, 0);
            params = et_ids(session, (const uint32_t *)(const void *)other->data, other->len, 4);
            g_auto(et_result) q = {0};
            et_generate(engine, &params, &q);
            g_assert_no_error(q.error);
            g_assert_cmpuint(q.receipt.n_reused, ==, 0);
            qe_engine_close_session(engine, session);
            ids = (g_array_unref(ids), et_some_ids(200, 55));
        }
    }
    qe_engine_free(engine);
}

/* A lost device takes the device's pages alone: what the host has is used again after the recovery. */
static void test_lost(void)
{
    g_autoptr(GError) error = NULL;
    et_set_backend(open_mock, NULL);
    mock_options = (qk_mock_options){.seed = 1, .n_threads = 2};
    qe_engine *engine = engine_with(200, 400);
    qe_session_id session = open_mode(engine, QE_CACHE_TIERED, 0);
    g_auto(et_result) a = {0};
    g_auto(et_result) b = {0};
    et_ask_exactly(engine, session, questions[0], N_TOKENS, &a);
    mock_options.lose_at = 12;
    qe_engine_free(engine);

    engine = engine_with(200, 400);
    session = open_mode(engine, QE_CACHE_TIERED, 0);
    qe_message message;
    qe_generate_params params = et_user(session, questions[0], &message);
    params.max_tokens = 200;
    params.ignore_eos = true;
    et_generate(engine, &params, &b);
    g_assert_error(b.error, QE_ERROR, QE_ERROR_DEVICE_LOST);
    mock_options.lose_at = 0;
    et_wait_lost(engine);
    et_recover(engine);
    et_result_clear(&b);
    params.keep_messages = 0;
    params.max_tokens = N_TOKENS;
    et_generate(engine, &params, &b);
    g_assert_no_error(b.error);
    et_assert_same(&a, &b);
    qe_engine_free(engine);
}

static void wait_released(qe_engine *engine)
{
    const qe_snapshot *s = qe_engine_dup_snapshot(engine);
    while (s->tiers[QE_TIER_GPU].bytes_reserved > 0 || s->device.weights > 0) {
        qe_snapshot_unref(s);
        g_usleep(1000);
        s = qe_engine_dup_snapshot(engine);
    }
    qe_snapshot_unref(s);
}

/* The device's memory is given back on request. Tiered sessions find their pages in host memory afterwards, others their
 * tokens; the replies are those that would have come without it. */
static void test_release(void)
{
    const qe_cache_mode modes[] = {QE_CACHE_TIERED, QE_CACHE_SESSION};
    et_set_backend(open_mock, NULL);
    mock_options = (qk_mock_options){.seed = 3, .delay_us_max = 200, .n_threads = 2};
    for (guint m = 0; m < G_N_ELEMENTS(modes); m++) {
        et_result want[2] = {0};
        et_result got[2] = {0};
        for (int pass = 0; pass < 2; pass++) {
            et_result *results = pass ? got : want;
            qe_engine *engine = engine_with(200, 400);
            qe_engine_status status;
            qe_session_id session = open_mode(engine, modes[m], 0);
            et_ask_exactly(engine, session, questions[0], 4 * N_TOKENS, &results[0]);
            if (pass) {
                qe_engine_release(engine);
                qe_engine_get_status(engine, &status);
                g_assert_cmpint(status.state, ==, QE_ENGINE_RELEASED);
                g_assert_nonnull(status.model);
                g_assert_no_error(status.error);
                qe_engine_status_clear(&status);
                wait_released(engine);
                et_recover(engine);
            }
            et_ask_exactly(engine, session, questions[1], N_TOKENS, &results[1]);
            if (pass && modes[m] == QE_CACHE_TIERED) {
                g_assert_cmpuint(results[1].receipt.n_reused, >, 0);
                g_assert_cmpuint(results[1].receipt.n_restored_host + results[1].receipt.n_on_host, >, 0);
            } else if (pass) {
                g_assert_cmpuint(results[1].receipt.n_reused, ==, 0);
            }
            qe_engine_free(engine);
        }
        et_assert_same(&want[0], &got[0]);
        et_assert_same(&want[1], &got[1]);
        for (int i = 0; i < 2; i++) {
            et_result_clear(&want[i]);
            et_result_clear(&got[i]);
        }
    }
}

/* A device that was lost while nothing ran is found out by asking. */
static void test_check(void)
{
    qe_engine_status status;
    et_set_backend(open_mock, NULL);
    mock_options = (qk_mock_options){.seed = 4, .n_threads = 1};
    qe_engine *engine = engine_with(200, 400);
    qe_engine_check(engine);
    qe_session_id session = open_mode(engine, QE_CACHE_TIERED, 0);
    g_auto(et_result) a = {0};
    et_ask_exactly(engine, session, questions[0], N_TOKENS, &a);
    qe_engine_get_status(engine, &status);
    g_assert_cmpint(status.state, ==, QE_ENGINE_READY);
    qe_engine_status_clear(&status);
    qk_mock_lose_at(last_mock, 1);
    qe_engine_check(engine);
    et_wait_lost(engine);
    et_recover(engine);
    qe_engine_free(engine);
}

static void test_config(void)
{
    qe_cache_config c;
    g_autoptr(GError) error = NULL;
    qe_cache_config_init(&c);
    g_assert_true(qe_cache_config_check(&c, &error));
    qe_cache_config_init_article(&c);
    g_assert_true(qe_cache_config_check(&c, &error));
    g_assert_no_error(error);
    c.block_size = 32;
    g_assert_false(qe_cache_config_check(&c, &error));
    g_assert_nonnull(strstr(error->message, "block_size is 32; expected 16"));
    g_clear_error(&error);
    qe_cache_config_init(&c);
    c.mode = QE_CACHE_SESSION;
    c.hot_cache_length = 2048;
    g_assert_false(qe_cache_config_check(&c, &error));
    g_assert_nonnull(strstr(error->message, "hot_cache_length"));
    g_clear_error(&error);
    for (int i = 0; i < QE_N_CACHE_MODES; i++) {
        qe_cache_mode mode;
        g_assert_true(qe_cache_mode_parse(qe_cache_mode_name((qe_cache_mode)i), &mode, &error));
        g_assert_cmpint(mode, ==, i);
    }
    qe_cache_mode mode;
    g_assert_false(qe_cache_mode_parse("fast", &mode, &error));
    g_assert_nonnull(strstr(error->message, "\"fast\""));
}

/* Int8 pages: the same in every placement and on both devices, near the exact logits, and never shared with exact ones. */
static void test_int8(void)
{
    g_autoptr(GArray) ids = et_some_ids(450, 7);
    et_set_backend(NULL, NULL);
    qe_engine *engine = engine_with(400, 400);
    qe_engine_status status;
    qe_engine_get_status(engine, &status);
    gsize n = 40 * (gsize)status.model->vocab;
    qe_engine_status_clear(&status);
    g_autofree float *exact = logits_of(engine, open_mode(engine, QE_CACHE_TIERED, 0), ids);
    g_autofree float *want = logits_of(engine, open_mode(engine, QE_CACHE_TIERED_INT8, 0), ids);
    qe_engine_free(engine);
    double sum = 0, difference = 0;
    for (gsize i = 0; i < n; i++) {
        sum += (double)exact[i] * exact[i];
        difference += ((double)exact[i] - want[i]) * ((double)exact[i] - want[i]);
    }
    double error = sqrt(difference / sum);
    g_test_message("int8 pages: relative error of the logits %.4f", error);
    g_assert_cmpfloat(error, >, 1e-5); /* it is not the exact cache */
    g_assert_cmpfloat(error, <, 0.05);
    for (int mock = 0; mock < 2; mock++) {
        et_set_backend(mock ? open_mock : NULL, NULL);
        mock_options = (qk_mock_options){.seed = 9, .delay_us_max = 200, .n_threads = 2};
        g_test_message("on the %s", mock ? "mock" : "device");
        engine = engine_with(7, 400);
        g_autofree float *got = logits_of(engine, open_mode(engine, QE_CACHE_TIERED_INT8, 0), ids);
        g_assert_cmpmem(got, n * sizeof *got, want, n * sizeof *want);
        /* Both classes share the device; neither finds the other's pages. */
        g_autofree float *again = logits_of(engine, open_mode(engine, QE_CACHE_TIERED, 0), ids);
        g_assert_cmpmem(again, n * sizeof *again, exact, n * sizeof *exact);
        qe_engine_free(engine);
    }
}

/* Changing the mode between turns keeps the text; what the new mode cannot use is computed again, and the receipt says so. */
static void test_change(void)
{
    static const qe_cache_mode order[N_TURNS] = {
        QE_CACHE_SESSION, QE_CACHE_TIERED, QE_CACHE_REBUILD, QE_CACHE_SESSION, QE_CACHE_PAGED};
    et_result want[N_TURNS] = {0};
    et_set_backend(NULL, NULL);
    qe_engine *engine = engine_with(400, 400);
    talk(engine, open_mode(engine, QE_CACHE_SESSION, 0), want);
    qe_session_id session = open_mode(engine, order[0], 0);
    for (guint i = 0; i < N_TURNS; i++) {
        g_autoptr(GError) error = NULL;
        g_auto(et_result) r = {0};
        qe_cache_config config;
        qe_cache_config_init(&config);
        config.mode = order[i];
        config.use_cache = false;
        while (!qe_engine_set_cache(engine, session, &config, &error)) {
            g_assert_error(error, QE_ERROR,
                QE_ERROR_BUSY); /* the end of a reply comes a moment before the session is free */
            g_clear_error(&error);
        }
        et_ask_exactly(engine, session, questions[i], N_TOKENS, &r);
        et_assert_same(&want[i], &r);
        g_assert_cmpint(r.receipt.mode, ==, order[i]);
        g_assert_cmpint(r.receipt.mismatch, ==, i >= 2 ? QE_MISMATCH_MODE : QE_MISMATCH_NONE);
        g_assert_true((r.receipt.n_reused > 0) == (i == 1));
    }
    qe_engine_free(engine);
    clear_all(want);
}

/* Stores that waited for host memory while a prompt was computed are made when the engine has nothing else to do. */
static void test_stored_when_idle(void)
{
    et_set_backend(open_mock, NULL);
    mock_options = (qk_mock_options){.seed = 12, .delay_us_max = 200, .n_threads = 2};
    g_autoptr(GArray) ids = et_some_ids(1000, 91);
    qe_engine *engine = engine_with(400, 400); /* a host slab has 50 of the 62 pages */
    qe_session_id session = open_mode(engine, QE_CACHE_TIERED, 0);
    qe_generate_params params = et_ids(session, (const uint32_t *)(void *)ids->data, ids->len, 1);
    g_auto(et_result) r = {0};
    et_generate(engine, &params, &r);
    g_assert_no_error(r.error);
    uint32_t n = 0;
    for (int i = 0; i < 2000 && n < 62; i++) { /* nothing is asked of the engine meanwhile */
        const qe_snapshot *s = qe_engine_dup_snapshot(engine);
        n = s->tiers[QE_TIER_HOST].n_pages_used;
        qe_snapshot_unref(s);
        g_usleep(5000);
    }
    g_assert_cmpuint(n, ==, 62);
    qe_engine_free(engine);
    et_set_backend(NULL, NULL);
}

/* Waits until the host has @n pages, with nothing asked of the engine. The budget holds all the time. */
static void wait_on_host(qe_engine *engine, uint32_t n)
{
    uint32_t n_there = 0;
    for (int i = 0; i < 4000 && n_there < n; i++) {
        const qe_snapshot *s = qe_engine_dup_snapshot(engine);
        const qe_tier_view *host = &s->tiers[QE_TIER_HOST];
        g_assert_cmpuint(host->bytes_reserved, <=, host->bytes_max);
        n_there = host->n_pages_used;
        qe_snapshot_unref(s);
        g_usleep(5000);
    }
    g_assert_cmpuint(n_there, >=, n);
}

/* A mock whose registering of host memory waits until it is let. */
static const qk_backend_ops *mock_ops;
static qe_mutex gate_lock = PTHREAD_MUTEX_INITIALIZER;
static qe_cond gate_changed = PTHREAD_COND_INITIALIZER;
static uint32_t gate_let_through;

static void let_register(uint32_t n)
{
    qe_mutex_lock(&gate_lock);
    gate_let_through = n;
    qe_cond_broadcast(&gate_changed);
    qe_mutex_unlock(&gate_lock);
}

static qk_status gated_register(
    qk_backend *backend, void *host, uint64_t bytes, char *error, size_t error_size)
{
    qe_mutex_lock(&gate_lock);
    while (gate_let_through == 0)
        qe_cond_wait(&gate_changed, &gate_lock);
    gate_let_through--;
    qe_mutex_unlock(&gate_lock);
    return mock_ops->host_register(backend, host, bytes, error, error_size);
}

static qk_status open_gated(void *user, qk_backend **out, char *error, size_t error_size)
{
    static qk_backend_ops ops;
    qk_status status = open_mock(user, out, error, error_size);
    if (status != QK_OK)
        return status;
    mock_ops = (*out)->ops;
    ops = *mock_ops;
    ops.host_register = gated_register;
    (*out)->ops = &ops;
    return QK_OK;
}

/* Host memory is made ahead while the engine has nothing to do, not when the next prompt comes: what is ready after all has
 * come to rest is taken, with nothing asked. */
static void test_host_ahead(void)
{
    enum { N_PAGES = 145, SLAB = 50 }; /* an eighth of the tier; so many are kept free as well */
    et_set_backend(open_gated, NULL);
    mock_options = (qk_mock_options){.seed = 22, .delay_us_max = 100, .n_threads = 2};
    g_autoptr(GArray) ids = et_some_ids(N_PAGES * 16, 93);
    let_register(3);
    qe_engine *engine = engine_with(400, 8 * SLAB);
    ask_ids(engine, open_mode(engine, QE_CACHE_TIERED, 0), ids);
    wait_on_host(engine, N_PAGES);      /* the fourth slab is being registered */
    for (bool rests = false; !rests;) { /* the last publication: of rates that are zero again */
        const qe_snapshot *s = qe_engine_dup_snapshot(engine);
        rests = s->prefill_tokens_per_s + s->decode_tokens_per_s == 0;
        qe_snapshot_unref(s);
        g_usleep(5000);
    }
    let_register(1);
    uint64_t n = 0;
    for (int i = 0; i < 2000 && n < 4 * SLAB; i++) {
        const qe_snapshot *s = qe_engine_dup_snapshot(engine);
        n = s->tiers[QE_TIER_HOST].bytes_reserved / PAGE_BYTES;
        qe_snapshot_unref(s);
        g_usleep(5000);
    }
    let_register(UINT32_MAX);
    g_assert_cmpuint(n, ==, 4 * SLAB);
    qe_engine_free(engine);
    et_set_backend(NULL, NULL);
}

/* How many of the session's pages are on the device. Limits are looked at on the way. */
static uint32_t pages_on_device(qe_engine *engine, qe_session_id session)
{
    uint32_t n = 0;
    const qe_snapshot *s = qe_engine_dup_snapshot(engine);
    for (int i = 0; i < QE_N_TIERS; i++)
        g_assert_cmpuint(s->tiers[i].bytes_used, <=, s->tiers[i].bytes_max);
    for (uint32_t i = 0; i < s->n_sessions; i++)
        n += s->sessions[i].id == session ? s->sessions[i].n_pages_tier[QE_TIER_GPU] : 0;
    qe_snapshot_unref(s);
    return n;
}

/* A tab that comes to the front: its pages move up before anything is asked, those of idle tabs give way, and the next
 * turn waits for none. The limits hold all the time. */
static void test_prefetch(void)
{
    et_set_backend(open_mock, NULL);
    mock_options = (qk_mock_options){.seed = 13, .delay_us_max = 100, .n_threads = 2};
    qe_engine *engine = engine_with(60, 400);
    g_autoptr(GArray) a = et_some_ids(500, 92), b = et_some_ids(600, 93);
    qe_session_id sessions[2];
    const GArray *const ids[2] = {a, b};
    for (int k = 0; k < 2; k++) {
        g_auto(et_result) r = {0};
        sessions[k] = open_mode(engine, QE_CACHE_TIERED, 0);
        qe_generate_params params =
            et_ids(sessions[k], (const uint32_t *)(const void *)ids[k]->data, ids[k]->len, 1);
        et_generate(engine, &params, &r);
        g_assert_no_error(r.error);
        et_pages_used(engine);
    }
    uint32_t n = pages_on_device(engine, sessions[0]);
    g_assert_cmpuint(n, <, 32); /* b has most of the device */
    for (int k = 0; k < 2; k++) {
        qe_engine_prefetch_session(engine, sessions[k]);
        n = 0;
        for (int i = 0; i < 4000 && n < 32; i++) { /* a's 32 pages; of b's 38 what fits */
            n = pages_on_device(engine, sessions[k]);
            g_usleep(5000);
        }
        g_assert_cmpuint(n, >=, 32);
        g_auto(et_result) r = {0};
        qe_generate_params params =
            et_ids(sessions[k], (const uint32_t *)(const void *)ids[k]->data, ids[k]->len, 1);
        et_generate(engine, &params, &r);
        g_assert_no_error(r.error);
        g_assert_cmpuint(r.receipt.n_reused, ==, ids[k]->len - 1);
        if (k == 0) { /* all of it fits, so nothing is left to be brought */
            g_assert_cmpuint(r.receipt.n_restored_host, ==, 0);
            g_assert_cmpuint(r.receipt.n_on_host, ==, 0);
        }
    }
    qe_engine_free(engine);
    et_set_backend(NULL, NULL);
}

/* ---- Which pages go first, and what is told of it ---- */

static const qe_session_view *view_of(const qe_snapshot *s, qe_session_id id)
{
    for (uint32_t i = 0; i < s->n_sessions; i++) {
        if (s->sessions[i].id == id)
            return &s->sessions[i];
    }
    g_error("session %" G_GUINT64_FORMAT " is not in the snapshot", id);
}

static bool on_device(const qe_session_view *v, uint32_t page)
{
    return (v->cells[page].flags & QE_CELL_TIER_MASK) == QE_TIER_GPU;
}

/* What @since and the changes make must be @now, of each session that both have. */
static uint32_t check_changes(const qe_snapshot *since, const qe_snapshot *now)
{
    uint32_t n, n_used = 0;
    g_autofree qe_page_change *changes = qe_snapshot_list_changes(since, now, &n);
    for (uint32_t i = 1; i < n; i++)
        g_assert_true(
            changes[i - 1].session < changes[i].session ||
            (changes[i - 1].session == changes[i].session && changes[i - 1].page < changes[i].page));
    for (uint32_t i = 0; i < now->n_sessions; i++) {
        const qe_session_view *v = &now->sessions[i], *old = view_of(since, v->id);
        g_assert_cmpuint(v->changed, <=, now->serial);
        for (uint32_t k = 0; k < MAX(v->n_pages, old->n_pages); k++) {
            uint8_t flags = k < old->n_pages ? old->cells[k].flags : QE_CELL_NONE;
            if (n_used < n && changes[n_used].session == v->id && changes[n_used].page == k) {
                g_assert_cmpuint(changes[n_used].before, ==, flags);
                g_assert_cmpuint(v->changed, >, since->serial);
                flags = changes[n_used++].now;
            }
            g_assert_cmpuint(flags, ==, k < v->n_pages ? v->cells[k].flags : QE_CELL_NONE);
        }
    }
    g_assert_cmpuint(n_used, ==, n);
    return n;
}

/* Room for a conversation comes from idle ones, the one used longest ago first, from its end; pages that several hold go last,
 * and what runs keeps its own. The snapshots' changes tell each page's move. */
static void test_order(void)
{
    enum { N_SHARED = 10, N_PAGES = 30 };
    et_set_backend(open_mock, NULL);
    mock_options = (qk_mock_options){.seed = 19, .delay_us_max = 100, .n_threads = 2};
    qe_engine *engine = engine_with(120, 800);
    g_autoptr(GArray) prefix = et_some_ids(N_SHARED * 16, 97);
    qe_session_id sessions[4];
    for (uint32_t i = 0; i < 4; i++) { /* the first has the shared prefix alone */
        g_autoptr(GArray) ids = et_some_ids(i == 0 ? 0 : (N_PAGES - N_SHARED) * 16, 98 + i);
        g_array_prepend_vals(ids, prefix->data, prefix->len);
        sessions[i] = open_mode(engine, QE_CACHE_TIERED, 0);
        ask_ids(engine, sessions[i], ids);
    }
    et_pages_used(engine); /* stored, and published */
    wait_on_host(engine, N_SHARED + 3 * (N_PAGES - N_SHARED));
    g_autoptr(GArray) large = et_some_ids(70 * 16, 120);
    const qe_snapshot *s = qe_engine_dup_snapshot(engine);
    for (uint32_t i = 0; i < 4; i++) /* all of them fit: 10 and three times 20 and the tails */
        g_assert_cmpuint(view_of(s, sessions[i])->n_pages_tier[QE_TIER_HOST], ==, 0);
    qe_snapshot_unref(s);
    qe_session_id running = open_mode(engine, QE_CACHE_TIERED, 0);
    ask_ids(engine, running, large);
    et_pages_used(engine);
    s = qe_engine_dup_snapshot(engine);
    g_assert_cmpuint(view_of(s, running)->n_pages_tier[QE_TIER_GPU], ==, view_of(s, running)->n_pages);
    for (uint32_t k = 0; k < N_SHARED; k++)
        g_assert_true(on_device(view_of(s, sessions[0]), k));
    uint32_t n_left[4] = {0};
    for (uint32_t i = 1; i < 4; i++) {
        const qe_session_view *v = view_of(s, sessions[i]);
        for (uint32_t k = N_SHARED; k < N_PAGES; k++) {
            n_left[i] += on_device(v, k);
            g_assert_true(k == N_SHARED || on_device(v, k - 1) || !on_device(v, k)); /* from the end */
        }
    }
    g_assert_cmpuint(n_left[1], ==, 0); /* the oldest went first, */
    g_assert_cmpuint(n_left[3], >, 0);  /* and the newest has some left */
    g_assert_cmpuint(n_left[2], <=, n_left[3]);
    qe_snapshot_unref(s);

    /* More than that: then the shared ones go too. */
    qe_engine_close_session(engine, running);
    g_autoptr(GArray) larger = et_some_ids(115 * 16, 121);
    ask_ids(engine, open_mode(engine, QE_CACHE_TIERED, 0), larger);
    et_pages_used(engine);
    s = qe_engine_dup_snapshot(engine);
    uint32_t n_shared_left = 0;
    for (uint32_t k = 0; k < N_SHARED; k++)
        n_shared_left += on_device(view_of(s, sessions[0]), k);
    g_assert_cmpuint(n_shared_left, <, N_SHARED);
    qe_snapshot_unref(s);
    qe_engine_free(engine);
    et_set_backend(NULL, NULL);
}

/* Pages that go to the host and come back, grow and are cut: the changes between two snapshots say it, and no more. */
static void test_changes(void)
{
    et_set_backend(open_mock, NULL);
    mock_options = (qk_mock_options){.seed = 20, .delay_us_max = 100, .n_threads = 2};
    qe_engine *engine = engine_with(60, 400);
    qe_session_id sessions[3];
    uint32_t n_changes = 0;
    for (uint32_t i = 0; i < 3; i++)
        sessions[i] = open_mode(engine, QE_CACHE_TIERED, 0);
    et_pages_used(engine);
    const qe_snapshot *since = qe_engine_dup_snapshot(engine);
    for (uint32_t turn = 0; turn < 6; turn++) {
        g_autoptr(GArray) ids = et_some_ids(turn == 4 ? 100 : 420 + turn * 16, 130 + turn % 3);
        ask_ids(engine, sessions[turn % 3], ids);
        et_pages_used(engine);
        const qe_snapshot *now = qe_engine_dup_snapshot(engine);
        uint32_t n = check_changes(since, now);
        g_assert_cmpuint(n, >, 0);
        g_assert_cmpuint(check_changes(now, now), ==, 0);
        n_changes += n;
        if (turn % 2) { /* also over more than one turn */
            qe_snapshot_unref(since);
            since = now;
        } else {
            qe_snapshot_unref(now);
        }
    }
    g_test_message("%u changes", n_changes);
    /* A session that comes and one that goes. */
    qe_engine_close_session(engine, sessions[0]);
    g_autoptr(GArray) ids = et_some_ids(64, 140);
    qe_session_id added = open_mode(engine, QE_CACHE_TIERED, 0);
    ask_ids(engine, added, ids);
    et_pages_used(engine);
    const qe_snapshot *now = qe_engine_dup_snapshot(engine);
    uint32_t n, n_gone = 0, n_new = 0;
    g_autofree qe_page_change *changes = qe_snapshot_list_changes(since, now, &n);
    for (uint32_t i = 0; i < n; i++) {
        n_gone += changes[i].session == sessions[0] && changes[i].now == QE_CELL_NONE;
        n_new += changes[i].session == added && changes[i].before == QE_CELL_NONE;
    }
    g_assert_cmpuint(n_gone, ==, view_of(since, sessions[0])->n_pages);
    g_assert_cmpuint(n_new, ==, view_of(now, added)->n_pages);
    qe_snapshot_unref(now);
    qe_snapshot_unref(since);
    qe_engine_free(engine);
    et_set_backend(NULL, NULL);
}

/* Both page classes live on one budget of host memory. What one has taken and does not use, be it kept ahead or held by closed
 * conversations, the other gets when it needs it, without a wait for the device to be full. */
static void test_classes(void)
{
    static const qe_cache_mode orders[][2] = {
        {QE_CACHE_TIERED, QE_CACHE_TIERED_INT8}, {QE_CACHE_TIERED_INT8, QE_CACHE_TIERED}};
    g_autoptr(GArray) a = et_some_ids(1000, 95), b = et_some_ids(1000, 96);
    et_set_backend(open_mock, NULL);
    for (guint i = 0; i < G_N_ELEMENTS(orders); i++) {
        mock_options = (qk_mock_options){.seed = 17 + i, .delay_us_max = 100, .n_threads = 2};
        qe_engine *engine = engine_with(400, 80);
        for (int closed = 0; closed < 3; closed++) { /* fills the budget with what nobody holds */
            g_auto(et_result) r = {0};
            qe_session_id session = open_mode(engine, orders[i][0], 0);
            g_array_index(a, uint32_t, 0)++;
            qe_generate_params params = et_ids(session, (const uint32_t *)(void *)a->data, a->len, 1);
            et_generate(engine, &params, &r);
            g_assert_no_error(r.error);
            wait_on_host(engine, 62);
            qe_engine_close_session(engine, session);
        }
        g_auto(et_result) r = {0};
        qe_session_id session = open_mode(engine, orders[i][1], 0);
        qe_generate_params params = et_ids(session, (const uint32_t *)(void *)b->data, b->len, 1);
        et_generate(engine, &params, &r);
        g_assert_no_error(r.error);
        /* The host gets all of them: they outlive the device. */
        qe_engine_release(engine);
        et_recover(engine);
        et_generate(engine, &params, &r);
        g_assert_no_error(r.error);
        g_assert_cmpuint(r.receipt.n_reused, ==, 62 * 16);
        qe_engine_free(engine);
    }
    et_set_backend(NULL, NULL);
}

/* Until the conversation's request is done, or once: its pages on the device are within its limit, and the newest ones. */
static void watch_limit(qe_engine *engine, qe_session_id session, qe_request *request, uint32_t limit)
{
    bool done = false;
    while (!done) {
        const qe_snapshot *s = qe_engine_dup_snapshot(engine);
        for (uint32_t i = 0; i < s->n_sessions; i++) {
            const qe_session_view *v = &s->sessions[i];
            if (v->id != session)
                continue;
            g_assert_cmpuint(v->n_pages_tier[QE_TIER_GPU], <=, limit);
            for (uint32_t k = 1; k < v->n_pages; k++) /* once on the device, all that follow are */
                g_assert_true((v->cells[k - 1].flags & QE_CELL_TIER_MASK) != QE_TIER_GPU ||
                              (v->cells[k].flags & QE_CELL_TIER_MASK) == QE_TIER_GPU);
        }
        qe_snapshot_unref(s);
        qe_update update = {0};
        done = !request;
        if (request && qe_request_wait(request, 1) && qe_request_take(request, &update)) {
            done = update.state == QE_REQUEST_DONE;
            g_assert_no_error(update.error);
            qe_update_clear(&update);
        }
    }
}

/* A limit on a conversation's pages on the device holds from its first prompt on, though host memory is still to be made and
 * copies are late; after pages were found that others have there; and when it is set later. The engine checks it too, each
 * time that it takes pages. */
static void test_limit(void)
{
    static const uint32_t limits[] = {64, 144};
    g_autoptr(GArray) ids = et_some_ids(1000, 94);
    const uint32_t *prompt = (const uint32_t *)(const void *)ids->data;
    et_set_backend(open_mock, NULL);
    for (guint i = 0; i < G_N_ELEMENTS(limits); i++) {
        g_autoptr(GError) error = NULL;
        g_auto(et_result) want = {0}, r = {0};
        uint32_t n_pages = limits[i] / 16;
        mock_options = (qk_mock_options){.seed = 14 + i, .delay_us_max = 2000, .n_threads = 2};
        qe_engine *engine = et_engine_new(&(qe_engine_options){
            .kv_bytes_max = 400 * PAGE_BYTES,
            .host_bytes_max = 400 * PAGE_BYTES,
            .ring_bytes = 1 << 20,
            .step_rows_max = 256, /* more than the limit holds */
        });
        qe_session_id session = open_mode(engine, QE_CACHE_TIERED, limits[i]);
        qe_generate_params params = et_ids(session, prompt, ids->len, 40);
        params.ignore_eos = true;
        qe_request *request = qe_engine_generate(engine, &params, &error);
        g_assert_no_error(error);
        watch_limit(engine, session, request, n_pages);
        qe_request_unref(request);

        /* The same prompt where all of it is on the device; then from its pages, under the limit again. */
        qe_session_id free = open_mode(engine, QE_CACHE_TIERED, 0);
        params.session = free;
        et_generate(engine, &params, &want);
        g_assert_no_error(want.error);
        qe_engine_close_session(engine, session);
        session = open_mode(engine, QE_CACHE_TIERED, limits[i]);
        params.session = session;
        et_generate(engine, &params, &r);
        et_assert_same(&want, &r);
        g_assert_cmpuint(r.receipt.n_reused, >, 900);
        g_assert_cmpuint(r.receipt.n_on_host + limits[i], >=, 992);

        /* A limit for the one that had none. */
        qe_cache_config config;
        qe_cache_config_init(&config);
        config.mode = QE_CACHE_TIERED;
        config.hot_cache_length = limits[i];
        free = open_mode(engine, QE_CACHE_TIERED, 0);
        params = et_ids(free, prompt + 100, 800, 4);
        et_generate(engine, &params, &r);
        g_assert_no_error(r.error);
        while (!qe_engine_set_cache(engine, free, &config, NULL))
            g_thread_yield();
        et_pages_used(engine); /* waits for a publication */
        watch_limit(engine, free, NULL, n_pages);
        qe_engine_prefetch_session(engine, free);
        params.session = free;
        params.n_ids = 500; /* cut, and on from there */
        request = qe_engine_generate(engine, &params, &error);
        g_assert_no_error(error);
        watch_limit(engine, free, request, n_pages);
        qe_request_unref(request);
        qe_engine_free(engine);
    }
    /* More than the limit and host memory together hold is refused before anything is computed. */
    g_auto(et_result) r = {0};
    qe_engine *engine = engine_with(400, 40);
    qe_generate_params params = et_ids(open_mode(engine, QE_CACHE_TIERED, 64), prompt, ids->len, 40);
    et_generate(engine, &params, &r);
    g_assert_error(r.error, QE_ERROR, QE_ERROR_NO_MEMORY);
    params = et_ids(open_mode(engine, QE_CACHE_TIERED, 64), prompt, 16 * 44, 0); /* so much they do */
    et_generate(engine, &params, &r);
    g_assert_no_error(r.error);
    qe_engine_free(engine);
    et_set_backend(NULL, NULL);
}

/* Nobody finds a synthetic session's pages: not one with the same tokens, not after a fork, not when its mode changes to
 * one that shares. What it decodes is its own. */
static void test_synthetic(void)
{
    g_autoptr(GArray) ids = et_some_ids(1000, 90);
    const uint32_t *prompt = (const uint32_t *)(void *)ids->data;
    et_set_backend(NULL, NULL);
    qe_engine *engine = engine_with(200, 400);
    g_auto(et_result) want = {0}, synthetic = {0}, forked = {0}, exact = {0};
    qe_generate_params params = et_ids(open_mode(engine, QE_CACHE_TIERED, 0), prompt, ids->len, 8);
    et_generate(engine, &params, &want);
    qe_engine_free(engine);

    engine = engine_with(30, 400); /* the first 62 pages pass through the device to the host */
    g_autoptr(GError) error = NULL;
    qe_session_options options;
    qe_session_options_init(&options);
    options.synthetic = true;
    g_assert_cmpuint(qe_engine_open_session_with(engine, &options, &error), ==, 0);
    g_assert_error(error, QE_ERROR, QE_ERROR_INVALID);
    g_clear_error(&error);
    options.cache.use_cache = false;
    options.disk_key = "k";
    g_assert_cmpuint(qe_engine_open_session_with(engine, &options, &error), ==, 0);
    g_assert_error(error, QE_ERROR, QE_ERROR_INVALID);
    g_clear_error(&error);
    options.disk_key = NULL;
    options.cache.mode = QE_CACHE_TIERED;
    qe_session_id session = qe_engine_open_session_with(engine, &options, &error);
    g_assert_no_error(error);
    params = et_ids(session, prompt, ids->len, 8);
    et_generate(engine, &params, &synthetic);
    g_assert_no_error(synthetic.error);
    g_assert_cmpuint(synthetic.receipt.n_synthetic, ==, 62 * 16);
    g_assert_cmpuint(synthetic.receipt.n_new, ==, 8);
    g_assert_cmpuint(synthetic.ids->len, ==, 8);

    qe_cache_config shares;
    qe_cache_config_init(&shares);
    while (!qe_engine_set_cache(engine, session, &shares, NULL))
        g_thread_yield();
    qe_session_id child = qe_engine_fork_session(engine, session, QE_KEEP_ALL, &error);
    g_assert_no_error(error);
    params = et_ids(child, prompt, ids->len, 8);
    et_generate(engine, &params, &forked);
    g_assert_cmpuint(forked.receipt.n_synthetic, ==, 0); /* it has its parent's */
    g_assert_cmpuint(forked.receipt.n_reused, >=, 62 * 16);
    qe_engine_close_session(engine, session);
    qe_engine_close_session(engine, child);

    params = et_ids(open_mode(engine, QE_CACHE_TIERED, 0), prompt, ids->len, 8);
    et_generate(engine, &params, &exact);
    g_assert_cmpuint(exact.receipt.n_reused, ==, 0);
    et_assert_same(&want, &exact);
    qe_engine_free(engine);
}

int main(int argc, char **argv)
{
    g_test_init(&argc, &argv, NULL);
    g_test_add_func("/engine/tiers/config", test_config);
    g_test_add_func("/engine/tiers/same/cpu", test_same_cpu);
    g_test_add_func("/engine/tiers/same/mock", test_same_mock);
    g_test_add_func("/engine/tiers/paths", test_paths);
    g_test_add_func("/engine/tiers/branches/cpu", test_branches_cpu);
    g_test_add_func("/engine/tiers/branches/mock", test_branches_mock);
    g_test_add_func("/engine/tiers/many/cpu", test_many_cpu);
    g_test_add_func("/engine/tiers/many/mock", test_many_mock);
    g_test_add_func("/engine/tiers/shared", test_shared);
    g_test_add_func("/engine/tiers/not-shared", test_not_shared);
    g_test_add_func("/engine/tiers/closed", test_closed);
    g_test_add_func("/engine/tiers/release", test_release);
    g_test_add_func("/engine/tiers/check", test_check);
    g_test_add_func("/engine/tiers/lost", test_lost);
    g_test_add_func("/engine/tiers/int8", test_int8);
    g_test_add_func("/engine/tiers/change", test_change);
    g_test_add_func("/engine/tiers/stored-when-idle", test_stored_when_idle);
    g_test_add_func("/engine/tiers/host-ahead", test_host_ahead);
    g_test_add_func("/engine/tiers/prefetch", test_prefetch);
    g_test_add_func("/engine/tiers/order", test_order);
    g_test_add_func("/engine/tiers/changes", test_changes);
    g_test_add_func("/engine/tiers/classes", test_classes);
    g_test_add_func("/engine/tiers/limit", test_limit);
    g_test_add_func("/engine/tiers/synthetic", test_synthetic);
    return g_test_run();
}
