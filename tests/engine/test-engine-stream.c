/* test-engine-stream.c: what the reader sees: whole characters, stops, seeds, backpressure. */
#include <math.h>
#include <string.h>
#include <glib/gstdio.h>
#include "engine/qe-safetensors.h"
#include "tests/engine/engine-test.h"

static void ask_with_stop(
    qe_engine *engine, const char *text, const char *const *stop, uint32_t max_tokens, et_result *r)
{
    qe_message message;
    qe_generate_params params = et_user(et_open(engine), text, &message);
    params.stop = stop;
    params.max_tokens = max_tokens;
    et_generate(engine, &params, r);
    g_assert_no_error(r->error);
    qe_engine_close_session(engine, params.session);
}

/* Every substring of a reply works as a stop string, wherever token borders lie; the text ends before it. */
static void test_stop_strings(void)
{
    qe_engine *engine = et_engine_new(NULL);
    g_auto(et_result) whole = {0};
    g_auto(et_result) r = {0};
    ask_with_stop(engine, "My name is Mira.", NULL, 0, &whole);
    g_assert_cmpint(whole.finish, ==, QE_FINISH_STOP);
    gsize n = whole.text->len;
    for (gsize at = 0; at + 3 <= n; at += 2) {
        g_autofree char *needle = g_strndup(whole.text->str + at, 3);
        if (!g_utf8_validate(needle, -1, NULL))
            continue;
        const char *stop[] = {"not in it", needle, NULL};
        ask_with_stop(engine, "My name is Mira.", stop, 0, &r);
        gsize end = (gsize)(strstr(whole.text->str, needle) - whole.text->str);
        g_assert_cmpuint(r.text->len, ==, end);
        g_assert_true(strncmp(r.text->str, whole.text->str, end) == 0);
        g_assert_cmpint(r.finish, ==, QE_FINISH_STOP);
    }
    /* A beginning of a stop string that never completes is text after all. */
    const char *never[] = {"Mira! How can I help you today, dear?", NULL};
    ask_with_stop(engine, "My name is Mira.", never, 0, &r);
    et_assert_same(&r, &whole);
    /* A stop string cut by max_tokens: the held text comes, the reason is the length. */
    ask_with_stop(engine, "My name is Mira.", never, 4, &r);
    g_assert_cmpint(r.finish, ==, QE_FINISH_LENGTH);
    g_assert_true(g_str_has_prefix(whole.text->str, r.text->str));
    g_assert_cmpuint(r.ids->len, ==, 4);
    qe_engine_free(engine);
}

/* After a stop string the session goes on: the reply is closed as it was generated. */
static void test_after_stop(void)
{
    qe_engine *engine = et_engine_new(NULL);
    qe_session_id session = et_open(engine);
    g_auto(et_result) a = {0};
    g_auto(et_result) b = {0};
    qe_message message;
    const char *stop[] = {"!", NULL};
    qe_generate_params params = et_user(session, "My name is Mira.", &message);
    params.stop = stop;
    et_generate(engine, &params, &a);
    et_ask(engine, session, "What is my name?", 30, &b);
    g_assert_nonnull(strstr(b.text->str, "Mira"));
    g_assert_cmpuint(b.receipt.n_reused, ==, a.receipt.n_prompt + a.receipt.n_generated - 1);
    qe_engine_free(engine);
}

static void test_chinese(void)
{
    qe_engine *engine = et_engine_new(NULL);
    g_auto(et_result) r = {0};
    qe_session_id session = et_open(engine);
    et_ask(engine, session, "你好！我叫小明。", 60, &r); /* et_finish checks each piece */
    g_assert_cmpuint(r.text->len, >, 0);
    et_ask(engine, session, "我叫什么名字？", 60, &r);
    g_assert_nonnull(strstr(r.text->str, "小明"));
    qe_engine_free(engine);
}

static void sample(qe_engine *engine, bool has_seed, uint64_t seed, et_result *r)
{
    qe_message message;
    qe_generate_params params = et_user(et_open(engine), "Tell me a story.", &message);
    params.sampling.temperature = 1.5;
    params.sampling.repetition_penalty = 1.1;
    params.sampling.presence_penalty = 0.5;
    params.sampling.has_seed = has_seed;
    params.sampling.seed = seed;
    params.max_tokens = 24;
    params.ignore_eos = true;
    et_generate(engine, &params, r);
    g_assert_no_error(r->error);
    qe_engine_close_session(engine, params.session);
}

/* Equal seeds give equal replies, also beside other requests and after a cancelled one; 0 is a seed like any other. */
static void test_seeds(void)
{
    qe_engine *engine = et_engine_new(NULL);
    g_auto(et_result) a = {0};
    g_auto(et_result) b = {0};
    const uint64_t seeds[] = {7, 0, UINT64_MAX};
    for (guint i = 0; i < G_N_ELEMENTS(seeds); i++) {
        sample(engine, true, seeds[i], &a);
        sample(engine, true, seeds[i], &b);
        et_assert_same(&a, &b);
        g_assert_cmpuint(b.receipt.seed, ==, seeds[i]);
    }
    bool differ = false;
    sample(engine, false, 0, &a);
    for (int i = 0; i < 7; i++) {
        sample(engine, false, 0, &b);
        differ |= strcmp(a.text->str, b.text->str) != 0;
    }
    g_assert_true(differ);
    /* The seed that the engine drew is in the receipt and works. */
    sample(engine, true, b.receipt.seed, &a);
    et_assert_same(&a, &b);

    g_autoptr(GError) error = NULL;
    sample(engine, true, 7, &a);
    qe_message message;
    qe_generate_params params = et_user(et_open(engine), "Tell me a story.", &message);
    params.max_tokens = 2000;
    params.ignore_eos = true;
    qe_request *other = qe_engine_generate(engine, &params, &error);
    g_assert_no_error(error);
    sample(engine, true, 7, &b);
    et_assert_same(&a, &b);
    qe_request_cancel(other);
    sample(engine, true, 7, &b);
    et_assert_same(&a, &b);
    et_finish(other, &b);
    g_assert_cmpint(b.finish, ==, QE_FINISH_CANCELLED);
    qe_engine_free(engine);
}

/* A reader that takes nothing pauses its request; others go on; nothing is lost. */
static void test_backpressure(void)
{
    qe_engine *engine = et_engine_new(&(qe_engine_options){.context_max = 400, .outbox_bytes = 200});
    g_autoptr(GError) error = NULL;
    qe_message message;
    qe_generate_params params = et_user(et_open(engine), "Tell me a story.", &message);
    params.ignore_eos = true;
    params.sampling.temperature = 1;
    params.sampling.has_seed = true;
    g_auto(et_result) free_run = {0};
    et_generate(engine, &params, &free_run);
    g_assert_cmpint(free_run.finish, ==, QE_FINISH_CONTEXT);

    qe_session_id second = et_open(engine);
    params.session = second;
    qe_request *request = qe_engine_generate(engine, &params, &error);
    g_assert_no_error(error);
    g_auto(et_result) r = {0};
    et_ask(engine, et_open(engine), "My name is Mira.", 0, &r);
    et_ask(engine, et_open(engine), "Tell me a story.", 300, &r);
    /* The other replies are through, this one stands still with its outbox full. */
    qe_update u;
    qe_request_take(request, &u);
    g_assert_cmpint(u.state, ==, QE_REQUEST_DECODE);
    g_assert_cmpuint(u.n_text, >=, 200);
    g_assert_cmpuint(u.n_text, <, 400);
    g_autofree char *beginning = g_strndup(u.text, u.n_text);
    qe_update_clear(&u);
    et_finish(request, &r);
    g_string_prepend(r.text, beginning);
    g_assert_cmpstr(r.text->str, ==, free_run.text->str);
    g_assert_cmpint(r.finish, ==, QE_FINISH_CONTEXT);
    qe_engine_free(engine);
}

/* A copy of the model whose final norm is NaN: every logit is one. It is an error, not a token, and the session lives. */
static void test_not_a_number(void)
{
    g_autoptr(GError) error = NULL;
    g_autofree char *dir = g_dir_make_tmp("quire-test-XXXXXX", &error);
    g_assert_no_error(error);
    g_autoptr(GDir) files = g_dir_open(et_model_dir(), 0, &error);
    g_assert_no_error(error);
    for (const char *name; (name = g_dir_read_name(files));) {
        g_autofree char *from = g_build_filename(et_model_dir(), name, NULL);
        g_autofree char *to = g_build_filename(dir, name, NULL);
        g_autofree char *data = NULL;
        gsize n;
        if (g_file_test(from, G_FILE_TEST_IS_DIR))
            continue;
        g_assert_true(g_file_get_contents(from, &data, &n, NULL));
        if (g_str_has_suffix(name, ".safetensors")) {
            g_autoptr(qe_safetensors) st = qe_safetensors_open(from, &error);
            g_assert_no_error(error);
            const qe_safetensor *norm = qe_safetensors_find(st, "model.norm.weight");
            uint64_t header;
            memcpy(&header, data, 8);
            for (uint64_t i = 0; norm && i < norm->n_bytes; i += 2)
                memcpy(data + 8 + header + norm->begin + i, "\xc0\x7f", 2);
        }
        g_assert_true(g_file_set_contents(to, data, (gssize)n, NULL));
    }
    qe_engine *engine = et_engine_new(NULL);
    qe_engine_load(engine, dir);
    qe_engine_wait_ready(engine, &error);
    g_assert_no_error(error);
    qe_message message;
    qe_generate_params params = et_user(et_open(engine), "x", &message);
    g_auto(et_result) r = {0};
    for (int i = 0; i < 2; i++) {
        et_generate(engine, &params, &r);
        g_assert_cmpint(r.finish, ==, QE_FINISH_ERROR);
        g_assert_error(r.error, QE_ERROR, QE_ERROR_NUMERIC);
        g_assert_nonnull(strstr(r.error->message, "invalid number at token"));
        g_assert_cmpuint(r.ids->len, ==, 0);
    }
    qe_engine_close_session(engine, params.session);
    qe_engine_load(engine, et_model_dir());
    qe_engine_wait_ready(engine, &error);
    g_assert_no_error(error);
    et_ask(engine, et_open(engine), "My name is Mira.", 20, &r);
    qe_engine_free(engine);
    g_dir_rewind(files);
    for (const char *name; (name = g_dir_read_name(files));) {
        g_autofree char *to = g_build_filename(dir, name, NULL);
        g_remove(to);
    }
    g_rmdir(dir);
}

static void test_bad_params(void)
{
    qe_engine *engine = et_engine_new(NULL);
    qe_message message;
    qe_session_id session = et_open(engine);
    for (int i = 0; i < 9; i++) {
        g_autoptr(GError) error = NULL;
        qe_generate_params params = et_user(session, "x", &message);
        const char *empty[] = {"", NULL};
        switch (i) {
        case 0:
            params.sampling.temperature = -0.1;
            break;
        case 1:
            params.sampling.top_p = 1.5;
            break;
        case 2:
            params.sampling.min_p = -1;
            break;
        case 3:
            params.sampling.repetition_penalty = 0;
            break;
        case 4:
            params.sampling.presence_penalty = 2.5;
            break;
        case 5:
            params.sampling.temperature = (double)NAN;
            break;
        case 6:
            params.stop = empty;
            break;
        case 7:
            params.n_top = QE_TOP_MAX + 1;
            break;
        default:
            params.n_messages = 0;
            break;
        }
        g_assert_null(qe_engine_generate(engine, &params, &error));
        g_assert_error(error, QE_ERROR, QE_ERROR_INVALID);
    }
    g_autoptr(GError) error = NULL;
    qe_generate_params params = et_user(session + 1, "x", &message);
    g_assert_null(qe_engine_generate(engine, &params, &error));
    g_assert_error(error, QE_ERROR, QE_ERROR_NOT_FOUND);
    g_clear_error(&error);
    /* One request a session at a time; the next one may follow at once. */
    params = et_user(session, "Tell me a story.", &message);
    qe_request *request = qe_engine_generate(engine, &params, &error);
    g_assert_no_error(error);
    g_assert_null(qe_engine_generate(engine, &params, &error));
    g_assert_error(error, QE_ERROR, QE_ERROR_BUSY);
    g_auto(et_result) r = {0};
    et_finish(request, &r);
    et_ask(engine, session, "Go on.", 3, &r);
    qe_engine_free(engine);
}

int main(int argc, char **argv)
{
    g_test_init(&argc, &argv, NULL);
    g_test_add_func("/engine/stream/stop-strings", test_stop_strings);
    g_test_add_func("/engine/stream/after-stop", test_after_stop);
    g_test_add_func("/engine/stream/chinese", test_chinese);
    g_test_add_func("/engine/stream/seeds", test_seeds);
    g_test_add_func("/engine/stream/backpressure", test_backpressure);
    g_test_add_func("/engine/stream/not-a-number", test_not_a_number);
    g_test_add_func("/engine/stream/bad-params", test_bad_params);
    return g_test_run();
}
