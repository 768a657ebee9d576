/* test-engine-tiers-faults.c: conversations in too little memory on a device that fails now and then: an allocation, a
 * registration of host memory, or the device itself. A turn answers what it would have, or ends with an error that
 * says why; then the next one answers what it would have. A copy that the device refuses costs no turn at all. And conversations that use each other's pages after one
 * another: nothing of one comes up in another. */
#include <string.h>
#include "kernels/qk-mock.h"
#include "tests/engine/engine-test.h"

#define PAGE_BYTES (16u * 2 * 8 * 2 * 64 * 2) /* tokens, K and V, layers, kv heads, head_dim, bf16 */
#define N_SESSIONS 3u
#define N_TURNS    2u
#define N_TOKENS   12u

static const char *const questions[N_SESSIONS][N_TURNS] = {
    {"My name is Mira and my number is seven.", "What is my name?"},
    {"My name is Otto. Tell me a story about a cat and a mouse, please.", "What is my name?"},
    {"What is a KV cache?", "Tell me more about it, please."},
};

static qk_mock_options mock_options;
static qk_backend *mock; /* of the engine that runs */

static qk_status open_mock(void *user, qk_backend **out, char *error, size_t error_size)
{
    qk_status status = qk_mock_open(&mock_options, out, error, error_size);
    mock = status == QK_OK ? *out : NULL;
    return status;
}

static qe_engine *engine_with(uint32_t n_device, uint32_t n_host)
{
    return et_engine_new(&(qe_engine_options){
        .kv_bytes_max = (uint64_t)n_device * PAGE_BYTES,
        .host_bytes_max = n_host ? (uint64_t)n_host * PAGE_BYTES : 1,
        .ring_bytes = 1 << 20,
        .step_rows_max = 64,
    });
}

static qe_session_id open_mode(qe_engine *engine, qe_cache_mode mode, uint32_t gpu_tokens, bool use_cache)
{
    qe_session_options options;
    qe_session_options_init(&options);
    options.cache.mode = mode;
    options.cache.hot_cache_length = gpu_tokens;
    options.cache.use_cache = use_cache;
    return et_open_with(engine, &options);
}

/* Turn @turn of conversation @k, in place of what came of it before. */
static qe_request *begin(qe_engine *engine, qe_session_id session, uint32_t k, uint32_t turn, GError **error)
{
    qe_message message;
    qe_generate_params params = et_user(session, questions[k][turn], &message);
    params.max_tokens = N_TOKENS;
    params.ignore_eos = true;
    params.keep_messages = 2 * turn;
    return qe_engine_generate(engine, &params, error);
}

static void want_all(et_result want[N_SESSIONS][N_TURNS])
{
    et_set_backend(NULL, NULL);
    qe_engine *engine = engine_with(400, 0);
    for (uint32_t k = 0; k < N_SESSIONS; k++) {
        qe_session_id session = et_open(engine);
        for (uint32_t turn = 0; turn < N_TURNS; turn++) {
            g_autoptr(GError) error = NULL;
            et_finish(begin(engine, session, k, turn, &error), &want[k][turn]);
            g_assert_no_error(want[k][turn].error);
        }
    }
    qe_engine_free(engine);
}

static void clear_all(et_result results[N_SESSIONS][N_TURNS])
{
    for (uint32_t k = 0; k < N_SESSIONS; k++)
        for (uint32_t turn = 0; turn < N_TURNS; turn++)
            et_result_clear(&results[k][turn]);
}

typedef enum { FAIL_ALLOC, FAIL_COPY, FAIL_REGISTER, LOSE, N_KINDS } kind;

static uint32_t n_refused; /* copies in a row */

static void arm(kind what, uint32_t nth)
{
    qk_mock_fail_alloc(mock, what == FAIL_ALLOC ? nth : 0);
    qk_mock_refuse_copy(mock, what == FAIL_COPY ? nth : 0, n_refused);
    qk_mock_refuse_register(mock, what == FAIL_REGISTER ? nth : 0);
    qk_mock_lose_at(mock, what == LOSE ? nth : 0);
}

static bool is_lost(qe_engine *engine)
{
    qe_engine_status status;
    qe_engine_get_status(engine, &status);
    bool lost = status.state == QE_ENGINE_LOST;
    qe_engine_status_clear(&status);
    return lost;
}

/* The device comes back; @nth_alloc of what that takes fails the first time. */
static void recover(qe_engine *engine, uint32_t nth_alloc, uint32_t *n_failed)
{
    g_autoptr(GError) error = NULL;
    while (!is_lost(engine)) /* the state follows the request's end by a moment */
        g_usleep(1000);
    mock_options.fail_alloc = nth_alloc;
    qe_engine_recover(engine);
    bool ok = qe_engine_wait_ready(engine, &error);
    mock_options.fail_alloc = 0;
    if (ok)
        return;
    g_assert_error(error, QE_ERROR, QE_ERROR_NO_MEMORY);
    g_clear_error(&error);
    ++*n_failed;
    et_recover(engine);
}

/* All conversations by turns, the fault armed before the first turn. */
static void talk_under_fault(qe_engine *engine, et_result want[N_SESSIONS][N_TURNS], kind what, uint32_t nth,
    bool use_cache, uint32_t nth_alloc, uint32_t *n_failed)
{
    qe_session_id sessions[N_SESSIONS];
    for (uint32_t k = 0; k < N_SESSIONS; k++)
        sessions[k] = open_mode(engine, QE_CACHE_TIERED, k == 1 ? 64 : 0, use_cache);
    arm(what, nth);
    for (uint32_t turn = 0; turn < N_TURNS; turn++) {
        for (uint32_t k = 0; k < N_SESSIONS; k++) {
            for (uint32_t try = 0;; try++) {
                g_autoptr(GError) error = NULL;
                g_auto(et_result) r = {0};
                qe_request *request = begin(engine, sessions[k], k, turn, &error);
                if (request)
                    et_finish(request, &r);
                const GError *failed = request ? r.error : error;
                if (!failed) {
                    et_assert_same(&want[k][turn], &r);
                    break;
                }
                g_assert_cmpuint(try, <, 2); /* once, and once more by what the recovery meets */
                ++*n_failed;
                g_assert_true(strlen(failed->message) > 10);
                if (g_error_matches(failed, QE_ERROR, QE_ERROR_DEVICE_LOST))
                    recover(engine, nth_alloc, n_failed);
                else
                    g_assert_error(failed, QE_ERROR, QE_ERROR_NO_MEMORY);
            }
        }
    }
    qk_mock_stats stats;
    qk_mock_get_stats(mock, &stats);
    g_assert_cmpuint(
        stats.n_copies, >, 0); /* the host tier works, also after what a recovery could not keep */
    arm(N_KINDS, 0);
    for (uint32_t k = 0; k < N_SESSIONS; k++)
        qe_engine_close_session(engine, sessions[k]);
    et_pages_used(engine); /* waits until all is done */
    if (is_lost(engine))
        recover(engine, 0, n_failed);
}

static void expect_refusal(qe_engine *engine)
{
    et_pages_used(engine); /* waits for a publication */
    const qe_snapshot *s = qe_engine_dup_snapshot(engine);
    const char *note = s->tiers[QE_TIER_HOST].note;
    g_assert_nonnull(note);
    g_assert_nonnull(strstr(note, "refused"));
    qe_snapshot_unref(s);
}

static void test_faults(gconstpointer data)
{
    static const struct {
        uint32_t end, step;
    } ranges[N_KINDS] = {{10, 1}, {16, 1}, {4, 1}, {90, 7}};
    static const uint32_t in_row[] = {1, 2, 3, 9, QK_MOCK_ALL};
    kind what = (kind)GPOINTER_TO_INT(data);
    et_result want[N_SESSIONS][N_TURNS] = {0};
    want_all(want);
    et_set_backend(open_mock, NULL);
    mock_options = (qk_mock_options){.seed = 4, .delay_us_max = 50, .n_threads = 2};
    uint32_t n_failed = 0, nth_alloc = 1;
    qe_engine *engine = engine_with(8, 60);
    for (uint32_t nth = 1, i = 0; nth < ranges[what].end; nth += ranges[what].step, i++) {
        n_refused = in_row[i % G_N_ELEMENTS(in_row)];
        /* A loss is followed by a recovery in which an allocation fails, another one each time. Pages that others left
         * in the cache leave little to do: only now and then they may be used. */
        talk_under_fault(engine, want, what, nth, i % 4 == 3, what == LOSE ? nth_alloc++ : 0, &n_failed);
        if (what == FAIL_ALLOC || what == FAIL_REGISTER) { /* what is made once at the start is made again */
            qe_engine_free(engine);
            engine = engine_with(8, 60);
        }
    }
    if (what == FAIL_REGISTER) {
        talk_under_fault(engine, want, what, QK_MOCK_ALL, false, 0, &n_failed);
        g_assert_cmpuint(n_failed, ==, 0); /* memory that cannot be pinned is used as it is */
    } else if (what == FAIL_COPY) {
        g_assert_cmpuint(n_failed, ==, 0); /* pages stay where they are, and are copied later */
        expect_refusal(engine);
    } else if (what == LOSE) { /* but a host slab that cannot be had is done without */
        g_assert_cmpuint(n_failed, >, 4);
    }
    g_test_message("%u turns and recoveries failed", n_failed);
    qe_engine_free(engine);
    clear_all(want);
}

/* ---- Pages that are used again ---- */

#define N_TEXTS 6u

static float *logits_of(qe_engine *engine, qe_session_id session, const GArray *ids)
{
    g_autoptr(GError) error = NULL;
    qe_engine_status status;
    qe_engine_get_status(engine, &status);
    float *out = g_new(float, 8 * (gsize)status.model->vocab);
    qe_engine_status_clear(&status);
    qe_engine_eval(
        engine, session, (const uint32_t *)(const void *)ids->data, ids->len, ids->len - 8, out, &error);
    g_assert_no_error(error);
    return out;
}

/* Conversations in every mode come and go in memory for hardly two of them, so that each page has been another's. Each page
 * that is handed out is filled with NaN before its first write, and each logit is what it is in an engine where nobody
 * else ever was. */
static void pages_used_again(bool on_mock)
{
    static const qe_cache_mode modes[] = {
        QE_CACHE_TIERED, QE_CACHE_SESSION, QE_CACHE_REBUILD, QE_CACHE_TIERED, QE_CACHE_PAGED};
    float *want[N_TEXTS];
    GArray *ids[N_TEXTS];
    et_set_backend(NULL, NULL);
    gsize n_bytes = 0;
    for (uint32_t k = 0; k < N_TEXTS; k++) {
        ids[k] = et_some_ids(70 + 31 * k, 100 + k);
        qe_engine *engine = engine_with(400, 0);
        want[k] = logits_of(engine, et_open(engine), ids[k]);
        qe_engine_status status;
        qe_engine_get_status(engine, &status);
        n_bytes = 8 * (gsize)status.model->vocab * sizeof(float);
        qe_engine_status_clear(&status);
        qe_engine_free(engine);
    }
    et_set_backend(on_mock ? open_mock : NULL, NULL);
    mock_options = (qk_mock_options){.seed = 8, .delay_us_max = 50, .n_threads = 2, .want_fresh = true};
    qe_engine *engine = engine_with(24, 30);
    qe_session_id open[4] = {0};
    for (uint32_t i = 0; i < 30; i++) {
        uint32_t k = i * 5 % N_TEXTS, seat = i % 4;
        if (open[seat])
            qe_engine_close_session(engine, open[seat]);
        open[seat] = open_mode(engine, modes[i % 5], i % 5 == 3 ? 64 : 0, i % 2);
        for (uint32_t twice = 0; twice < 2; twice++) { /* again from what it kept, all of it or some */
            g_autofree float *got = logits_of(engine, open[seat], ids[k]);
            g_assert_cmpmem(got, n_bytes, want[k], n_bytes);
        }
    }
    qe_engine_free(engine);
    for (uint32_t k = 0; k < N_TEXTS; k++) {
        g_free(want[k]);
        g_array_unref(ids[k]);
    }
}

static void test_used_again_cpu(void)
{
    pages_used_again(false);
}

static void test_used_again_mock(void)
{
    pages_used_again(true);
}

/* The mock does see a page that was not filled: an engine without its checks does not fill them. */
static void test_not_filled(void)
{
    g_autoptr(GError) error = NULL;
    et_set_backend(open_mock, NULL);
    mock_options = (qk_mock_options){.n_threads = 1, .want_fresh = true};
    qe_engine_options options = {.kv_bytes_max = 24 * PAGE_BYTES, .n_threads = 1};
    qe_engine *engine = qe_engine_new_with_backend(&options, open_mock, NULL, &error);
    g_assert_no_error(error);
    qe_engine_load(engine, et_model_dir());
    qe_engine_wait_ready(engine, &error);
    g_assert_no_error(error);
    g_auto(et_result) r = {0};
    qe_message message;
    qe_generate_params params = et_user(et_open(engine), "My name is Mira.", &message);
    params.max_tokens = 4;
    et_generate(engine, &params, &r);
    g_assert_nonnull(r.error);
    g_assert_nonnull(strstr(r.error->message, "was not filled"));
    qe_engine_free(engine);
}

int main(int argc, char **argv)
{
    g_test_init(&argc, &argv, NULL);
    g_test_add_data_func("/engine/tiers-faults/alloc", GINT_TO_POINTER(FAIL_ALLOC), test_faults);
    g_test_add_data_func("/engine/tiers-faults/copy", GINT_TO_POINTER(FAIL_COPY), test_faults);
    g_test_add_data_func("/engine/tiers-faults/register", GINT_TO_POINTER(FAIL_REGISTER), test_faults);
    g_test_add_data_func("/engine/tiers-faults/lose", GINT_TO_POINTER(LOSE), test_faults);
    g_test_add_func("/engine/tiers-faults/used-again/cpu", test_used_again_cpu);
    g_test_add_func("/engine/tiers-faults/used-again/mock", test_used_again_mock);
    g_test_add_func("/engine/tiers-faults/not-filled", test_not_filled);
    return g_test_run();
}
