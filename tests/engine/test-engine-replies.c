/* test-engine-replies.c: replies with reasoning in a session's later turns, and what ends a reply. */
#include <glib/gstdio.h>
#include <string.h>
#include "tests/engine/engine-test.h"

static const char question[] = "What is 27 plus 15? /think", next[] = "What is my name?";

static void ask_whole(
    qe_engine *engine, const char *user, const char *reply, const char *user2, et_result *result)
{
    const qe_message messages[] = {
        {QE_ROLE_USER, user, -1}, {QE_ROLE_ASSISTANT, reply, -1}, {QE_ROLE_USER, user2, -1}};
    qe_generate_params params;

    qe_generate_params_init(&params, NULL);
    params.session = et_open(engine);
    params.messages = messages;
    params.n_messages = 3;
    params.whole_history = true;
    params.max_tokens = 24;
    et_generate(engine, &params, result);
    g_assert_no_error(result->error);
    qe_engine_close_session(engine, params.session);
}

/* The reply's think block is dropped before the next turn: what follows it is computed again and counted. */
static void test_reasoning(void)
{
    qe_engine *engine = et_engine_new(NULL);
    qe_session_id session = et_open(engine);
    g_auto(et_result) first = {0};
    g_auto(et_result) second = {0};
    g_auto(et_result) whole = {0};

    et_ask(engine, session, question, 0, &first);
    g_assert_cmpint(first.finish, ==, QE_FINISH_STOP);
    g_assert_true(g_str_has_prefix(first.text->str, "<think>\n"));
    const char *answer = strstr(first.text->str, "</think>\n\n");
    g_assert_nonnull(answer);
    answer += strlen("</think>\n\n");
    g_assert_cmpstr(answer, ==, "27 + 15 = 42.");

    et_ask(engine, session, next, 24, &second);
    g_assert_no_error(second.error);
    /* Kept is the first prompt; the stripped reply is the answer's ids and its end token. */
    g_assert_cmpuint(second.receipt.n_reused, ==, first.receipt.n_prompt);
    g_assert_cmpint(second.receipt.first_mismatch, ==, first.receipt.n_prompt);
    g_assert_cmpuint(second.receipt.n_recomputed, >, 2);
    g_assert_cmpuint(second.receipt.n_recomputed, <, first.receipt.n_generated);

    ask_whole(engine, question, first.text->str, next, &whole);
    g_assert_cmpuint(whole.receipt.n_prompt, ==, second.receipt.n_prompt);
    et_assert_same(&second, &whole);
    qe_engine_free(engine);
}

/* Cut inside its think block there is nothing to strip: what was generated stays, and is closed. */
static void test_cut_reasoning(void)
{
    qe_engine *engine = et_engine_new(NULL);
    qe_session_id session = et_open(engine);
    g_auto(et_result) first = {0};
    g_auto(et_result) second = {0};

    et_ask(engine, session, question, 6, &first);
    g_assert_cmpint(first.finish, ==, QE_FINISH_LENGTH);
    g_assert_null(strstr(first.text->str, "</think>"));
    et_ask(engine, session, next, 24, &second);
    g_assert_no_error(second.error);
    g_assert_cmpuint(second.receipt.n_reused, ==, first.receipt.n_prompt + 6 - 1);
    g_assert_cmpuint(second.receipt.n_recomputed, ==, 0);
    g_assert_cmpint(second.receipt.first_mismatch, ==, -1);
    qe_engine_free(engine);
}

/* ---- End tokens ---- */

static void copy_file(const char *from_dir, const char *to_dir, const char *name)
{
    g_autofree char *from = g_build_filename(from_dir, name, NULL),
                    *to = g_build_filename(to_dir, name, NULL);
    g_autofree char *data = NULL;
    gsize n;

    g_assert_true(g_file_get_contents(from, &data, &n, NULL));
    g_assert_true(g_file_set_contents(to, data, (gssize)n, NULL));
}

/* Greedy from one fixed prompt on the tiny model with these configs in place of its own. NULL: none. */
static void run_tiny(const char *generation_config, const char *eos_in_config, bool ignore_eos,
    uint32_t max_tokens, et_result *result)
{
    static const char *const names[] = {"model.safetensors", "tokenizer.json", "tokenizer_config.json"};
    static const uint32_t prompt[] = {66, 75, 170, 224, 170, 106, 169};
    g_autofree char *source = g_build_filename(g_getenv("QUIRE_TEST_FIXTURES"), "tiny-random", NULL);
    g_autofree char *dir = g_dir_make_tmp("quire-eos-XXXXXX", NULL);
    g_autofree char *config_from = g_build_filename(source, "config.json", NULL);
    g_autofree char *config_to = g_build_filename(dir, "config.json", NULL);
    g_autofree char *generation = g_build_filename(dir, "generation_config.json", NULL);
    g_autofree char *config = NULL;
    g_autoptr(GError) error = NULL;
    qe_generate_params params;

    for (gsize i = 0; i < G_N_ELEMENTS(names); i++)
        copy_file(source, dir, names[i]);
    g_assert_true(g_file_get_contents(config_from, &config, NULL, NULL));
    g_autoptr(GString) edited = g_string_new(config);
    g_assert_cmpuint(g_string_replace(edited, "\"eos_token_id\": 317", eos_in_config, 0), ==, 1);
    g_assert_true(g_file_set_contents(config_to, edited->str, -1, NULL));
    if (generation_config)
        g_assert_true(g_file_set_contents(generation, generation_config, -1, NULL));

    g_autoptr(qe_engine) engine = qe_engine_new(NULL, &error);
    qe_engine_load(engine, dir);
    qe_engine_wait_ready(engine, &error);
    g_assert_no_error(error);
    qe_generate_params_init(&params, NULL);
    params.session = et_open(engine);
    params.ids = prompt;
    params.n_ids = G_N_ELEMENTS(prompt);
    params.max_tokens = max_tokens;
    params.ignore_eos = ignore_eos;
    et_generate(engine, &params, result);
    g_assert_no_error(result->error);

    for (gsize i = 0; i < G_N_ELEMENTS(names); i++) {
        g_autofree char *path = g_build_filename(dir, names[i], NULL);
        g_unlink(path);
    }
    g_unlink(config_to);
    g_unlink(generation);
    g_rmdir(dir);
}

/* Any id of generation_config's list ends the reply; without that file config's number does. No end token is text. */
static void test_end_tokens(void)
{
    g_auto(et_result) all = {0};
    g_auto(et_result) listed = {0};
    g_auto(et_result) number = {0};

    run_tiny(NULL, "\"eos_token_id\": 317", true, 12, &all);
    g_assert_cmpuint(all.ids->len, ==, 12);
    /* An ordinary token of the continuation, the first of its kind, is declared an end token. */
    uint32_t end = g_array_index(all.ids, uint32_t, 5);
    for (guint i = 0; i < 5; i++)
        g_assert_cmpuint(g_array_index(all.ids, uint32_t, i), !=, end);
    g_autofree char *generation = g_strdup_printf("{\"eos_token_id\": [317, %u]}", end);
    g_autofree char *config = g_strdup_printf("\"eos_token_id\": %u", end);

    run_tiny(generation, "\"eos_token_id\": 317", false, 12, &listed);
    run_tiny(NULL, config, false, 12, &number);
    g_assert_cmpint(listed.finish, ==, QE_FINISH_STOP);
    g_assert_cmpuint(listed.ids->len, ==, 6);
    g_assert_cmpmem(listed.ids->data, 6 * sizeof(uint32_t), all.ids->data, 6 * sizeof(uint32_t));
    et_assert_same(&listed, &number);
    /* The text is that of the five tokens before it. */
    g_auto(et_result) five = {0};
    run_tiny(NULL, "\"eos_token_id\": 317", true, 5, &five);
    g_assert_cmpmem(listed.text->str, listed.text->len, five.text->str, five.text->len);
}

int main(int argc, char **argv)
{
    g_test_init(&argc, &argv, NULL);
    g_test_add_func("/engine/replies/reasoning", test_reasoning);
    g_test_add_func("/engine/replies/cut-reasoning", test_cut_reasoning);
    g_test_add_func("/engine/replies/end-tokens", test_end_tokens);
    return g_test_run();
}
