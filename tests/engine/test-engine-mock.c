/* test-engine-mock.c: the engine on a device that is late, out of order and unreadable, that runs out of memory and that
 * is lost, at every point in turn. Whatever it does, the sessions' tokens stay and the replies are those of the CPU. */
#include <string.h>
#include "kernels/qk-mock.h"
#include "tests/engine/engine-test.h"

static qk_mock_options mock_options; /* of the next open; faults are used up by it */

static qk_status open_mock(void *user, qk_backend **out, char *error, size_t error_size)
{
    qk_mock_options options = mock_options;
    mock_options.lose_at = mock_options.fail_alloc = 0;
    options.seed += 17;
    return qk_mock_open(&options, out, error, error_size);
}

static const char *const questions[] = {"My name is Mira.", "I live in Oslo.", "What is my name?"};
#define N_QUESTIONS G_N_ELEMENTS(questions)
#define N_TOKENS    12u

static void talk(qe_engine *engine, et_result *results)
{
    qe_session_id session = et_open(engine);
    for (guint i = 0; i < N_QUESTIONS; i++)
        et_ask(engine, session, questions[i], N_TOKENS, &results[i]);
}

static void clear_all(et_result *results)
{
    for (guint i = 0; i < N_QUESTIONS; i++)
        et_result_clear(&results[i]);
}

static void test_same_bits(void)
{
    et_result want[N_QUESTIONS] = {0}, got[N_QUESTIONS] = {0};
    et_set_backend(NULL, NULL);
    qe_engine *engine = et_engine_new(NULL);
    talk(engine, want);
    qe_engine_free(engine);
    et_set_backend(open_mock, NULL);
    for (uint32_t delay = 0; delay <= 400; delay += 400) {
        mock_options = (qk_mock_options){.seed = delay, .delay_us_max = delay, .n_threads = 1};
        engine = et_engine_new(NULL);
        talk(engine, got);
        for (guint i = 0; i < N_QUESTIONS; i++)
            et_assert_same(&want[i], &got[i]);
        clear_all(got);
        const qe_snapshot *s = qe_engine_dup_snapshot(engine);
        g_assert_true(s->tiers[QE_TIER_GPU].present);
        g_assert_true(s->tiers[QE_TIER_HOST].present); /* a card has a host tier by default */
        g_assert_cmpuint(s->device.weights, >, 0);
        qe_snapshot_unref(s);
        /* Without a model there is nothing on the card. */
        qe_engine_unload(engine);
        do {
            s = qe_engine_dup_snapshot(engine);
            /* Sessions go first. */
            if (s->n_sessions > 0 || s->device.weights > 0) {
                qe_snapshot_unref(s);
                g_usleep(1000);
                continue;
            }
            g_assert_cmpuint(s->device.workspace, ==, 0);
            qe_snapshot_unref(s);
            break;
        } while (true);
        qe_engine_free(engine);
    }
    clear_all(want);
}

static qe_engine *start(GError **error)
{
    qe_engine_options options = {.check_invariants = true};
    qe_engine *engine = qe_engine_new_with_backend(&options, open_mock, NULL, error);
    g_assert_no_error(*error);
    qe_engine_load(engine, et_model_dir());
    return engine;
}

/* Each allocation fails once: the load or a reply reports it, then the same engine works. */
static void test_out_of_memory(void)
{
    et_result want[N_QUESTIONS] = {0}, got[N_QUESTIONS] = {0};
    mock_options = (qk_mock_options){.n_threads = 1};
    et_set_backend(open_mock, NULL);
    qe_engine *engine = et_engine_new(NULL);
    talk(engine, want);
    qe_engine_free(engine);
    uint32_t n_failures = 0;
    for (uint32_t nth = 1; nth <= 9; nth++) {
        g_autoptr(GError) error = NULL;
        mock_options = (qk_mock_options){.n_threads = 1, .fail_alloc = nth};
        engine = start(&error);
        if (!qe_engine_wait_ready(engine, &error)) {
            g_assert_error(error, QE_ERROR, QE_ERROR_NO_MEMORY);
            g_clear_error(&error);
            n_failures++;
            qe_engine_load(engine, et_model_dir());
            qe_engine_wait_ready(engine, &error);
            g_assert_no_error(error);
        }
        qe_session_id session = et_open(engine);
        for (guint i = 0; i < N_QUESTIONS; i++) {
            qe_message message;
            qe_generate_params params = et_user(session, questions[i], &message);
            params.max_tokens = N_TOKENS;
            et_generate(engine, &params, &got[i]);
            if (got[i].error) {
                /* Ask again in place of what failed: its message and its empty or cut reply go. */
                g_assert_error(got[i].error, QE_ERROR, QE_ERROR_NO_MEMORY);
                n_failures++;
                params.keep_messages = 2 * i;
                et_generate(engine, &params, &got[i]);
                g_assert_no_error(got[i].error);
            }
            et_assert_same(&got[i], &want[i]);
        }
        clear_all(got);
        qe_engine_free(engine);
    }
    g_assert_cmpuint(n_failures, >=, 4); /* model, context, two steps, a slab */
    clear_all(want);
}

/* The device is lost at the nth operation: requests end so, recovery computes the kept tokens again, replies agree. */
static void test_lost(void)
{
    et_result want[N_QUESTIONS] = {0}, got[N_QUESTIONS] = {0};
    mock_options = (qk_mock_options){.n_threads = 1};
    et_set_backend(open_mock, NULL);
    qe_engine *engine = et_engine_new(NULL);
    talk(engine, want);
    qe_engine_free(engine);
    uint32_t n_lost = 0;
    for (uint32_t nth = 1; nth <= 56; nth += 1 + nth / 8) {
        g_autoptr(GError) error = NULL;
        mock_options = (qk_mock_options){.n_threads = 1, .lose_at = nth, .seed = nth};
        engine = start(&error);
        bool ready = qe_engine_wait_ready(engine, &error);
        g_assert_no_error(error);
        g_assert_true(ready);
        qe_session_id session = et_open(engine);
        for (guint i = 0; i < N_QUESTIONS; i++) {
            qe_message message;
            qe_generate_params params = et_user(session, questions[i], &message);
            params.max_tokens = N_TOKENS;
            params.keep_messages = 2 * i;
            qe_request *request = qe_engine_generate(engine, &params, &error);
            if (request)
                et_finish(request, &got[i]);
            if (!request || got[i].error) {
                const GError *lost = request ? got[i].error : error;
                g_assert_error(lost, QE_ERROR, QE_ERROR_DEVICE_LOST);
                g_clear_error(&error);
                n_lost++;
                /* The state follows the request's end by a moment. */
                qe_engine_status status;
                qe_engine_get_status(engine, &status);
                while (status.state == QE_ENGINE_READY) {
                    qe_engine_status_clear(&status);
                    g_usleep(1000);
                    qe_engine_get_status(engine, &status);
                }
                g_assert_cmpint(status.state, ==, QE_ENGINE_LOST);
                g_assert_error(status.error, QE_ERROR, QE_ERROR_DEVICE_LOST);
                g_assert_nonnull(status.model);
                qe_engine_status_clear(&status);
                g_assert_null(qe_engine_generate(engine, &params, &error));
                g_assert_error(error, QE_ERROR, QE_ERROR_DEVICE_LOST);
                g_clear_error(&error);
                et_recover(engine);
                et_generate(engine, &params, &got[i]);
                g_assert_no_error(got[i].error);
                /* What the host had a copy of outlives the device, and no more than was said before. */
                g_assert_cmpuint(got[i].receipt.n_reused, <, got[i].receipt.n_prompt);
            }
            et_assert_same(&got[i], &want[i]);
        }
        clear_all(got);
        qe_engine_free(engine);
    }
    g_assert_cmpuint(n_lost, >=, 5);
    clear_all(want);
}

/* Lost with several running and one queued: all end so; all sessions go on after recovery. */
static void test_lost_together(void)
{
    g_autoptr(GError) error = NULL;
    mock_options = (qk_mock_options){.n_threads = 1, .lose_at = 20, .delay_us_max = 200};
    et_set_backend(open_mock, NULL);
    qe_engine *engine = et_engine_new(NULL);
    qe_session_id sessions[4];
    qe_request *requests[4];
    qe_message message;
    for (int i = 0; i < 4; i++) {
        sessions[i] = et_open(engine);
        qe_generate_params params =
            et_user(sessions[i], i % 2 ? "My name is Otto." : "My name is Mira.", &message);
        params.ignore_eos = true;
        requests[i] = qe_engine_generate(engine, &params, &error);
        g_assert_no_error(error);
    }
    for (int i = 0; i < 4; i++) {
        g_auto(et_result) r = {0};
        et_finish(requests[i], &r);
        g_assert_cmpint(r.finish, ==, QE_FINISH_ERROR);
        g_assert_error(r.error, QE_ERROR, QE_ERROR_DEVICE_LOST);
    }
    while (qe_engine_open_session(engine, NULL) == 0)
        g_usleep(1000);
    et_wait_lost(engine);
    qe_engine_close_session(engine, sessions[3]); /* also while lost */
    et_recover(engine);
    for (int i = 0; i < 3; i++) {
        g_auto(et_result) r = {0};
        qe_generate_params params = et_user(sessions[i], "What is my name?", &message);
        params.max_tokens = 24;
        et_generate(engine, &params, &r);
        g_assert_no_error(r.error);
        g_assert_nonnull(strstr(r.text->str, i % 2 ? "Otto" : "Mira"));
        /* What the host had is used again, the rest is computed again. */
        g_assert_cmpuint(r.receipt.n_recomputed + r.receipt.n_reused, >, 0);
    }
    qe_engine_free(engine);
}

int main(int argc, char **argv)
{
    g_test_init(&argc, &argv, NULL);
    g_test_add_func("/engine/mock/same-bits", test_same_bits);
    g_test_add_func("/engine/mock/out-of-memory", test_out_of_memory);
    g_test_add_func("/engine/mock/lost", test_lost);
    g_test_add_func("/engine/mock/lost-together", test_lost_together);
    return g_test_run();
}
