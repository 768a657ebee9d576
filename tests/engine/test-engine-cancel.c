/* test-engine-cancel.c: stopping at any point leaves a session that continues like a fresh one with the same history. */
#include <string.h>
#include "tests/engine/engine-test.h"

/* The session's ids as exact prompt plus a question on a fresh session must give what the session itself says. We know the
 * ids that were emitted; the prompt's ids are those of an equal request that ran to its end. */
static void check_continuation(
    qe_engine *engine, qe_session_id session, const char *first, const et_result *cut)
{
    g_auto(et_result) got = {0};
    g_auto(et_result) want = {0};
    et_ask(engine, session, "What is my name?", 16, &got);
    g_assert_cmpuint(got.receipt.n_reused, <=, got.receipt.n_prompt - 1);

    /* A fresh session that generates the same cut reply by max_tokens (greedy), then is asked the same. */
    qe_session_id fresh = et_open(engine);
    if (cut->ids->len) {
        qe_message message;
        qe_generate_params params = et_user(fresh, first, &message);
        params.max_tokens = cut->ids->len;
        params.ignore_eos = true;
        et_generate(engine, &params, &want);
        g_assert_cmpmem(want.ids->data, want.ids->len * 4, cut->ids->data, cut->ids->len * 4);
        et_ask(engine, fresh, "What is my name?", 16, &want);
    } else {
        const qe_message messages[] = {
            {QE_ROLE_USER, first, -1}, {QE_ROLE_ASSISTANT, "", 0}, {QE_ROLE_USER, "What is my name?", -1}};
        qe_generate_params params;
        qe_generate_params_init(&params, NULL);
        params.session = fresh;
        params.messages = messages;
        params.n_messages = 3;
        params.whole_history = true;
        params.max_tokens = 16;
        et_generate(engine, &params, &want);
    }
    g_assert_cmpuint(got.receipt.n_prompt, ==, want.receipt.n_prompt);
    et_assert_same(&got, &want);
    qe_engine_close_session(engine, fresh);
}

static void cancel_after(qe_engine *engine, const char *text, uint32_t n_ids)
{
    g_autoptr(GError) error = NULL;
    qe_session_id session = et_open(engine);
    qe_message message;
    qe_generate_params params = et_user(session, text, &message);
    params.ignore_eos = true;
    qe_request *request = qe_engine_generate(engine, &params, &error);
    g_assert_no_error(error);
    g_auto(et_result) head = {0};
    g_auto(et_result) tail = {0};
    head.ids = g_array_new(FALSE, FALSE, 4);
    while (head.ids->len < n_ids) {
        qe_update u;
        qe_request_wait(request, -1);
        qe_request_take(request, &u);
        g_array_append_vals(head.ids, u.ids, u.n_ids);
        qe_update_clear(&u);
    }
    qe_request_cancel(request);
    et_finish(request, &tail);
    g_assert_cmpint(tail.finish, ==, QE_FINISH_CANCELLED);
    g_assert_no_error(tail.error);
    g_array_append_vals(head.ids, tail.ids->data, tail.ids->len);
    g_assert_cmpuint(tail.receipt.n_generated, ==, head.ids->len);
    check_continuation(engine, session, text, &head);
    qe_engine_close_session(engine, session);
}

static void test_points(void)
{
    qe_engine *engine = et_engine_new(NULL);
    for (uint32_t n = 0; n < 10; n += 1 + n / 4)
        cancel_after(engine, "Tell me a story about Mira.", n);
    /* Chinese: tokens cut characters in the middle. */
    for (uint32_t n = 1; n < 8; n += 2)
        cancel_after(engine, "你好！我叫小明。", n);
    g_assert_cmpuint(et_pages_used(engine), ==, 0);
    qe_engine_free(engine);
}

/* Before the worker has started, and while a long prompt is read. */
static void test_early(void)
{
    qe_engine *engine = et_engine_new(&(qe_engine_options){.step_rows_max = 64});
    g_autoptr(GError) error = NULL;
    g_autoptr(GString) text = g_string_new("My name is Mira.");
    for (int i = 0; i < 60; i++)
        g_string_append_printf(text, " Sentence number %d has some words.", i);
    for (int i = 0; i < 6; i++) {
        qe_session_id session = et_open(engine);
        qe_message message;
        qe_generate_params params = et_user(session, text->str, &message);
        qe_request *request = qe_engine_generate(engine, &params, &error);
        g_assert_no_error(error);
        if (i >= 2)
            qe_request_wait(request, -1);
        if (i >= 4)
            g_usleep((gulong)i * 4000);
        qe_request_cancel(request);
        g_auto(et_result) r = {0};
        et_finish(request, &r);
        if (r.finish == QE_FINISH_CANCELLED && r.ids->len == 0)
            check_continuation(engine, session, text->str, &r);
        else
            g_assert_cmpint(i, >=, 2); /* it was faster than the cancel */
        qe_engine_close_session(engine, session);
    }
    qe_engine_free(engine);
}

/* Closing a session, unloading and freeing end requests; what was streamed stays readable. */
static void test_endings(void)
{
    qe_engine *engine = et_engine_new(NULL);
    g_autoptr(GError) error = NULL;
    qe_message message;
    qe_request *requests[3];
    for (int i = 0; i < 3; i++) {
        qe_generate_params params = et_user(et_open(engine), "Tell me a story.", &message);
        params.ignore_eos = true;
        requests[i] = qe_engine_generate(engine, &params, &error);
        g_assert_no_error(error);
        qe_request_wait(requests[i], -1);
        if (i == 0)
            qe_engine_close_session(engine, params.session);
        if (i == 1) {
            qe_engine_load(engine, et_model_dir());
            qe_engine_wait_ready(engine, &error);
            g_assert_no_error(error);
            g_assert_null(qe_engine_generate(engine, &params, &error));
            g_assert_error(error, QE_ERROR, QE_ERROR_NOT_FOUND);
            g_clear_error(&error);
        }
    }
    qe_engine_unload(engine);
    g_assert_cmpuint(qe_engine_open_session(engine, &error), ==, 0);
    g_assert_error(error, QE_ERROR, QE_ERROR_FAILED);
    g_clear_error(&error);
    qe_engine_load(engine, "/nonexistent");
    g_assert_false(qe_engine_wait_ready(engine, &error));
    g_assert_error(error, QE_ERROR, QE_ERROR_FILE);
    qe_engine_load(engine, et_model_dir());
    qe_engine_free(engine);
    for (int i = 0; i < 3; i++) {
        g_auto(et_result) r = {0};
        et_finish(requests[i], &r);
        g_assert_cmpint(r.finish, ==, QE_FINISH_CANCELLED);
    }
}

int main(int argc, char **argv)
{
    g_test_init(&argc, &argv, NULL);
    g_test_add_func("/engine/cancel/points", test_points);
    g_test_add_func("/engine/cancel/early", test_early);
    g_test_add_func("/engine/cancel/endings", test_endings);
    return g_test_run();
}
