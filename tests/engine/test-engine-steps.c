/* test-engine-steps.c: what the backend is given to do, seen by a backend that wraps it: how many rows a turn really computes
 * in each cache mode, how many pages a fork copies, how large the steps of a prompt over host pages are, and who gets how much
 * of the device when one conversation's pages are on the host. And the history that the engine keeps of its tiers.
 *
 * Steps take the time that the test gives them: the engine's clock is g_get_monotonic_time(), which is the test's here. It
 * goes on when a step is waited for, and a microsecond with each look, so that time always passes. */
#include <string.h>
#include "engine/qe-limits.h"
#include "kernels/qk-backend.h"
#include "kernels/qk-mock.h"
#include "tests/engine/engine-test.h"

#define PAGE_BYTES (16u * 2 * 8 * 2 * 64 * 2) /* tokens, K and V, layers, kv heads, head_dim, bf16 */
#define N_TOKENS   12u
#define ROWS_MAX   64u
#define LIGHT_US   10000
#define HEAVY_US   70000

/* ---- The clock ---- */

static gint64 offset_us; /* atomic */

gint64 __real_g_get_monotonic_time(void);
gint64 __wrap_g_get_monotonic_time(void);
gint64 __wrap_g_get_monotonic_time(void)
{
    static gint64 begun;
    static gsize once;
    if (g_once_init_enter(&once)) {
        begun = __real_g_get_monotonic_time();
        g_once_init_leave(&once, 1);
    }
    return begun + __atomic_add_fetch(&offset_us, 1, __ATOMIC_RELAXED);
}

/* ---- The backend ---- */

/* Written by the engine thread; the test looks at them when a request has ended. */
static const qk_backend_ops *inner;
static uint32_t n_rows, n_page_copies;
static uint32_t n_many, n_most; /* steps of more than one row; the most rows of a step */
static bool passes_time;

static qk_status submit(qk_step *step)
{
    uint32_t n = inner->step_plan(step)->n_rows;
    n_rows += n;
    if (n > 1) { /* else the test may be setting these back beside a reply */
        n_many++;
        n_most = MAX(n_most, n);
    }
    return inner->step_submit(step);
}

static qk_status wait_for(qk_step *step)
{
    const qk_plan *plan = inner->step_plan(step);
    bool heavy = false;
    for (uint32_t i = 0; i < plan->n_pages; i++)
        heavy |= (plan->pages[i] & QK_PAGE_HOST) != 0;
    qk_status status = inner->step_wait(step);
    if (passes_time)
        __atomic_add_fetch(&offset_us, heavy ? HEAVY_US : LIGHT_US, __ATOMIC_RELAXED);
    return status;
}

/* Copies from one page of the device to another: what forks and writes into shared pages cost. */
static qk_status copy(qk_backend *backend, qk_stream stream, const qk_copy *copies, uint32_t n)
{
    for (uint32_t i = 0; i < n; i++)
        n_page_copies +=
            copies[i].dst->memory == QK_MEMORY_DEVICE && copies[i].src->memory == QK_MEMORY_DEVICE;
    return inner->copy_submit(backend, stream, copies, n);
}

static qk_status open_counting(void *user, qk_backend **out, char *error, size_t error_size)
{
    static qk_backend_ops ops;
    qk_mock_options options = {.seed = 21, .delay_us_max = 50, .n_threads = 2};
    qk_status status = user ? qk_mock_open(&options, out, error, error_size)
                            : qk_cpu_open(&(qk_backend_options){.n_threads = 2}, out, error, error_size);
    if (status != QK_OK)
        return status;
    inner = (*out)->ops;
    ops = *inner;
    ops.step_submit = submit;
    ops.step_wait = wait_for;
    ops.copy_submit = copy;
    (*out)->ops = &ops;
    return QK_OK;
}

static void count_anew(void)
{
    n_rows = n_page_copies = 0;
}

/* ---- Engines, turns ---- */

static qe_engine *engine_with(bool on_mock, uint32_t n_device, uint32_t n_host)
{
    et_set_backend(open_counting, on_mock ? &inner : NULL);
    return et_engine_new(&(qe_engine_options){
        .kv_bytes_max = (uint64_t)n_device * PAGE_BYTES,
        .host_bytes_max = n_host ? (uint64_t)n_host * PAGE_BYTES : 1,
        .host_path = QE_HOST_PATH_READ,
        .ring_bytes = 1 << 20,
        .step_rows_max = ROWS_MAX,
        .step_ms_shared = 1, /* prompts beside others go in the shortest steps */
    });
}

static qe_session_id open_mode(qe_engine *engine, qe_cache_mode mode, uint32_t limit)
{
    qe_session_options options;
    qe_session_options_init(&options);
    options.cache.mode = mode;
    options.cache.hot_cache_length = limit;
    options.cache.use_cache = false; /* what others computed would not count */
    return et_open_with(engine, &options);
}

/* ---- Rows ---- */

/* The receipt's new tokens are the rows that the backend processed, besides one for each token of the reply but the last. */
static void check_rows(bool on_mock)
{
    static const struct {
        qe_cache_mode mode;
        uint32_t limit;
    } modes[] = {{QE_CACHE_REBUILD, 0}, {QE_CACHE_PAGED, 0}, {QE_CACHE_SESSION, 0}, {QE_CACHE_TIERED, 0},
        {QE_CACHE_TIERED, 64}, {QE_CACHE_TIERED_INT8, 64}, {QE_CACHE_SELECTIVE, 0}};
    static const char *const users[] = {"Tell me a long story about a cat and a mouse.", "My name is Mira.",
        "What is a KV cache?", "What is my name?"};
    qe_engine *engine = engine_with(on_mock, 400, 400);
    for (guint m = 0; m < G_N_ELEMENTS(modes); m++) {
        qe_session_id session = open_mode(engine, modes[m].mode, modes[m].limit);
        bool keeps = modes[m].mode != QE_CACHE_REBUILD && modes[m].mode != QE_CACHE_PAGED;
        uint32_t n_before = 0;
        for (guint i = 0; i < G_N_ELEMENTS(users); i++) {
            g_auto(et_result) r = {0};
            count_anew();
            et_ask_exactly(engine, session, users[i], N_TOKENS, &r);
            uint32_t n_new = r.receipt.n_prompt - (keeps ? n_before : 0);
            g_assert_cmpint(r.receipt.mode, ==, modes[m].mode);
            g_assert_cmpuint(r.receipt.n_new, ==, n_new);
            g_assert_cmpuint(n_rows, ==, n_new + N_TOKENS - 1);
            n_before = r.receipt.n_prompt + N_TOKENS - 1; /* the last token has not been through the model */
        }
    }
    qe_engine_free(engine);
}

static void test_rows_cpu(void)
{
    check_rows(false);
}

static void test_rows_mock(void)
{
    check_rows(true);
}

/* ---- Forks ---- */

/* An edit, another reply, a copy of the chat that is asked for a title: each copies one page at most, the one that it
 * goes on in, and computes what is new. */
static void test_forks(void)
{
    static const char question[] = "Tell me a long story about a cat and a mouse.";
    g_autoptr(GError) error = NULL;
    g_auto(et_result) r = {0};
    qe_engine *engine = engine_with(true, 400, 0);
    qe_session_id session = open_mode(engine, QE_CACHE_SESSION, 0);
    uint32_t n_copied = 0;
    for (guint i = 0; i < 6; i++) {
        et_ask_exactly(engine, session, question, N_TOKENS + i, &r);
        const struct {
            uint32_t keep;
            const char *text;
        } forks[] = {{QE_KEEP_ALL, "Give this chat a title of three words."},
            {QE_KEEP_ALL, "What is my name?"}, {2 * i, question}, /* another reply to the last one */
            {2 * i, "Tell me another story about a mouse, please."}, {0, "What is a KV cache?"}};
        for (guint k = 0; k < G_N_ELEMENTS(forks); k++) {
            count_anew();
            qe_session_id copy_id = qe_engine_fork_session(engine, session, forks[k].keep, &error);
            g_assert_no_error(error);
            et_ask_exactly(engine, copy_id, forks[k].text, N_TOKENS, &r);
            g_assert_cmpuint(n_rows, ==, r.receipt.n_new + N_TOKENS - 1);
            g_assert_cmpuint(n_page_copies, <=, 1);
            n_copied += n_page_copies;
            qe_engine_close_session(engine, copy_id);
        }
    }
    g_assert_cmpuint(n_copied, >, 0); /* they are counted */
    qe_engine_free(engine);
}

/* ---- Prompts over host pages ---- */

/* Waits for the reply's first token. */
static void wait_begun(qe_request *request)
{
    for (uint32_t n = 0; n == 0;) {
        qe_update update;
        qe_request_wait(request, -1);
        qe_request_take(request, &update);
        g_assert_no_error(update.error);
        n = update.n_ids;
        qe_update_clear(&update);
    }
}

/* Host pages are read once a step, however many rows it has: a prompt over them goes in steps of as many rows as there may
 * be, also beside a reply that makes other prompts' steps as short as they get. */
static void check_chunks(bool on_host)
{
    g_autoptr(GError) error = NULL;
    g_autoptr(GArray) ids = et_some_ids(900, 31);
    const uint32_t *prompt = (const uint32_t *)(const void *)ids->data;
    g_auto(et_result) r = {0}, light = {0};
    passes_time = true;
    qe_engine *engine =
        engine_with(false, 400, 400); /* whose prior says that a step takes longer than they may */
    qe_session_id session = open_mode(engine, QE_CACHE_TIERED, on_host ? 128 : 0);
    qe_generate_params params = et_ids(session, prompt, 600, 1);
    et_generate(engine, &params, &r);
    g_assert_no_error(r.error);
    qe_message message;
    qe_generate_params beside =
        et_user(open_mode(engine, QE_CACHE_SESSION, 0), "Tell me a long story about a cat.", &message);
    beside.max_tokens = 2000;
    beside.ignore_eos = true;
    qe_request *request = qe_engine_generate(engine, &beside, &error);
    g_assert_no_error(error);
    wait_begun(request);
    n_many = n_most = 0;
    params.n_ids = 900;
    et_generate(engine, &params, &r);
    g_assert_no_error(r.error);
    qe_request_cancel(request);
    et_finish(request, &light);
    passes_time = false;
    g_assert_cmpuint(light.receipt.n_generated, >, 1); /* it went on meanwhile */
    g_assert_cmpuint(r.receipt.n_new, ==, 300);
    g_assert_cmpuint(
        n_most, ==, on_host ? ROWS_MAX : QE_PREFILL_ROWS_MIN + 1); /* the reply's row beside them */
    g_assert_cmpuint(n_many, ==, on_host ? (300 + ROWS_MAX - 1) / ROWS_MAX : 38);
    qe_engine_free(engine);
}

static void test_chunks(void)
{
    check_chunks(false);
    check_chunks(true);
    g_assert_cmpuint(QE_STEP_ROWS_DEVICE, >=, 2048); /* ROWS_MAX of a card */
}

/* ---- Taking turns ---- */

/* A short chat's reply beside a conversation whose every step takes as long as seven of its own: it takes at most twice as
 * long as alone, and one step of the other more; and the other gets its half. */
static void test_slices(void)
{
    enum { N_SHORT = 100 };
    g_autoptr(GError) error = NULL;
    g_autoptr(GArray) ids = et_some_ids(600, 32);
    g_auto(et_result) alone = {0}, both = {0}, long_one = {0};
    qe_engine *engine = engine_with(true, 400, 400);
    qe_generate_params params =
        et_ids(open_mode(engine, QE_CACHE_TIERED, 64), (const uint32_t *)(const void *)ids->data, 600, 200);
    params.ignore_eos = true;
    passes_time = true;
    qe_message message;
    qe_generate_params brief =
        et_user(open_mode(engine, QE_CACHE_SESSION, 0), "Tell me a long story about a cat.", &message);
    brief.max_tokens = N_SHORT;
    brief.ignore_eos = true;
    et_generate(engine, &brief, &alone);
    g_assert_no_error(alone.error);
    g_assert_cmpfloat(alone.receipt.decode_ms, >=, (N_SHORT - 1) * LIGHT_US / 1000.0);

    qe_request *request = qe_engine_generate(engine, &params, &error);
    g_assert_no_error(error);
    wait_begun(request); /* its steps have pages on the host from here on */
    brief.session = open_mode(engine, QE_CACHE_SESSION, 0);
    et_generate(engine, &brief, &both);
    passes_time = false;
    g_assert_no_error(both.error);
    et_assert_same(&alone, &both);
    uint32_t n_others = 0;
    qe_request_cancel(request);
    et_finish(request, &long_one);
    g_test_message("%u tokens take %.0f ms alone and %.0f beside a conversation on the host", N_SHORT,
        alone.receipt.decode_ms, both.receipt.decode_ms);
    g_assert_cmpfloat(
        both.receipt.decode_ms, <=, 2 * alone.receipt.decode_ms + HEAVY_US / 1000.0 + LIGHT_US / 1000.0);
    g_assert_cmpfloat(
        both.receipt.decode_ms, >=, 1.5 * alone.receipt.decode_ms); /* nor is the other kept out */
    (void)n_others;
    qe_engine_free(engine);
}

/* ---- The history of a tier ---- */

static void pass_seconds(uint32_t n)
{
    __atomic_add_fetch(&offset_us, (gint64)n * G_USEC_PER_SEC, __ATOMIC_RELAXED);
}

/* A snapshot that was published after now. */
static const qe_snapshot *next_snapshot(qe_engine *engine)
{
    const qe_snapshot *s = qe_engine_dup_snapshot(engine);
    uint64_t serial = s->serial;
    qe_session_id shown = open_mode(engine, QE_CACHE_SESSION, 0); /* something to publish */
    while (s->serial == serial) {
        qe_snapshot_unref(s);
        g_usleep(200);
        s = qe_engine_dup_snapshot(engine);
    }
    qe_engine_close_session(engine, shown);
    return s;
}

/* One entry a second and tier, the last 300 of them, whether or not the engine had anything to say in each. */
static void test_history(void)
{
    g_autoptr(GArray) ids = et_some_ids(400, 33);
    g_auto(et_result) r = {0};
    qe_engine *engine = engine_with(true, 100, 100);
    qe_session_id session = open_mode(engine, QE_CACHE_TIERED, 64);
    pass_seconds(1);
    const qe_snapshot *s = next_snapshot(engine);
    uint32_t n_before = s->n_history;
    g_assert_cmpuint(n_before, >=, 1);
    for (uint32_t i = 1; i < 100; i++) { /* one by one, */
        qe_snapshot_unref(s);
        pass_seconds(1);
        s = next_snapshot(engine);
        g_assert_cmpuint(s->n_history, ==, n_before + i);
    }
    qe_snapshot_unref(s);
    qe_generate_params params = et_ids(session, (const uint32_t *)(const void *)ids->data, 400, 1);
    et_generate(engine, &params, &r);
    g_assert_no_error(r.error);
    uint32_t n_used[QE_N_TIERS] = {0};
    do { /* until all is where it stays */
        pass_seconds(1);
        s = next_snapshot(engine);
        for (int k = 0; k < QE_N_TIERS; k++)
            n_used[k] = s->tiers[k].n_pages_used;
        qe_snapshot_unref(s);
    } while (n_used[QE_TIER_HOST] < 400 / 16 || n_used[QE_TIER_GPU] > 64 / 16);
    pass_seconds(60); /* and with nobody looking */
    s = next_snapshot(engine);
    g_assert_cmpuint(s->n_history, >=, n_before + 160); /* 99, one or more of the loop, 60 */
    for (uint32_t i = s->n_history - 60; i < s->n_history; i++) {
        g_assert_cmpuint(s->history[i], ==, n_used[QE_TIER_GPU] + n_used[QE_TIER_HOST]);
        for (int k = 0; k < QE_N_TIERS; k++)
            g_assert_cmpuint(s->tier_history[k][i], ==, n_used[k]);
    }
    g_assert_cmpuint(s->history[50], ==, 0);
    qe_snapshot_unref(s);
    pass_seconds(200);
    s = next_snapshot(engine);
    g_assert_cmpuint(s->n_history, ==, QE_HISTORY_SECONDS);
    g_assert_cmpuint(QE_HISTORY_SECONDS, ==, 300);
    qe_snapshot_unref(s);
    pass_seconds(100000);
    s = next_snapshot(engine);
    for (uint32_t i = 0; i < QE_HISTORY_SECONDS; i++)
        g_assert_cmpuint(s->tier_history[QE_TIER_HOST][i], ==, n_used[QE_TIER_HOST]);
    qe_snapshot_unref(s);
    qe_engine_free(engine);
}

int main(int argc, char **argv)
{
    g_test_init(&argc, &argv, NULL);
    g_test_add_func("/engine/steps/rows/cpu", test_rows_cpu);
    g_test_add_func("/engine/steps/rows/mock", test_rows_mock);
    g_test_add_func("/engine/steps/forks", test_forks);
    g_test_add_func("/engine/steps/chunks", test_chunks);
    g_test_add_func("/engine/steps/slices", test_slices);
    g_test_add_func("/engine/steps/history", test_history);
    return g_test_run();
}
