/* test-engine-turns.c: prompts on a session: exact reuse counts, edits, cut replies, stripped reasoning, limits. */
#include <string.h>
#include "tests/engine/engine-test.h"

static const uint32_t hello[] = {6140, 1649, 198, 1082, 0, 6141, 198, 6140, 1654, 198};

static qe_generate_params ids_params(
    qe_session_id session, const uint32_t *ids, uint32_t n, uint32_t max_tokens)
{
    qe_generate_params params;
    qe_generate_params_init(&params, NULL);
    params.session = session;
    params.ids = ids;
    params.n_ids = n;
    params.max_tokens = max_tokens;
    return params;
}

/* The same prompt twice: one token is computed again, because logits exist only then; then a shorter prompt. */
static void test_same_prompt(void)
{
    qe_engine *engine = et_engine_new(NULL);
    qe_session_id session = et_open(engine);
    qe_generate_params params = ids_params(session, hello, G_N_ELEMENTS(hello), 8);
    g_auto(et_result) first = {0};
    g_auto(et_result) again = {0};
    et_generate(engine, &params, &first);
    et_generate(engine, &params, &again);
    g_assert_cmpuint(again.receipt.n_reused, ==, 9);
    g_assert_cmpuint(again.receipt.n_new, ==, 1);
    g_assert_cmpuint(again.receipt.n_recomputed, ==, 1);
    g_assert_cmpint(again.receipt.first_mismatch, ==, 10);
    et_assert_same(&first, &again);
    params.no_reuse = true;
    et_generate(engine, &params, &again);
    g_assert_cmpuint(again.receipt.n_reused, ==, 0);
    g_assert_cmpuint(again.receipt.n_new, ==, 10);
    et_assert_same(&first, &again);

    qe_generate_params shorter = ids_params(session, hello, 5, 8);
    qe_generate_params fresh = ids_params(et_open(engine), hello, 5, 8);
    et_generate(engine, &shorter, &first);
    et_generate(engine, &fresh, &again);
    g_assert_cmpuint(first.receipt.n_reused, ==, 4);
    et_assert_same(&first, &again);
    qe_engine_free(engine);
}

/* What @messages give on a fresh session, as a whole history. */
static void ask_whole(
    qe_engine *engine, const qe_message *messages, uint32_t n, qe_thinking thinking, et_result *result)
{
    qe_generate_params params;
    qe_generate_params_init(&params, NULL);
    params.session = et_open(engine);
    params.messages = messages;
    params.n_messages = n;
    params.whole_history = true;
    params.thinking = thinking;
    params.max_tokens = 24;
    et_generate(engine, &params, result);
    g_assert_no_error(result->error);
    qe_engine_close_session(engine, params.session);
}

static void ask(qe_engine *engine, qe_session_id session, const char *text, uint32_t keep,
    qe_thinking thinking, uint32_t max_tokens, et_result *result)
{
    qe_message message;
    qe_generate_params params = et_user(session, text, &message);
    params.keep_messages = keep;
    params.thinking = thinking;
    params.max_tokens = max_tokens;
    et_generate(engine, &params, result);
    g_assert_no_error(result->error);
}

/* A reply prompted with an empty think block: the next turn drops the block and computes the reply again behind it. */
static void test_stripped(void)
{
    qe_engine *engine = et_engine_new(NULL);
    qe_session_id session = et_open(engine);
    g_auto(et_result) first = {0};
    g_auto(et_result) second = {0};
    g_auto(et_result) whole = {0};
    ask(engine, session, "My name is Mira.", QE_KEEP_ALL, QE_THINKING_OFF, 0, &first);
    ask(engine, session, "What is my name?", QE_KEEP_ALL, QE_THINKING_OFF, 24, &second);
    /* Kept: the user's message and "<|im_start|>assistant\n"; the think block is 4 ids at the prompt's end. */
    uint32_t kept = first.receipt.n_prompt - 4;
    g_assert_cmpuint(second.receipt.n_reused, ==, kept);
    g_assert_cmpint(second.receipt.first_mismatch, ==, kept);
    g_assert_cmpuint(second.receipt.n_recomputed, ==, first.receipt.n_generated);
    const qe_message messages[] = {{QE_ROLE_USER, "My name is Mira.", -1},
        {QE_ROLE_ASSISTANT, first.text->str, -1}, {QE_ROLE_USER, "What is my name?", -1}};
    ask_whole(engine, messages, 3, QE_THINKING_OFF, &whole);
    g_assert_cmpuint(whole.receipt.n_prompt, ==, second.receipt.n_prompt);
    et_assert_same(&second, &whole);
    qe_engine_free(engine);
}

/* A reply cut by max_tokens is closed; a rewritten first message keeps what it shares; a reply is made again. */
static void test_edits(void)
{
    qe_engine *engine = et_engine_new(NULL);
    qe_session_id session = et_open(engine);
    g_auto(et_result) a = {0};
    g_auto(et_result) b = {0};
    g_auto(et_result) whole = {0};
    ask(engine, session, "Tell me a story.", QE_KEEP_ALL, QE_THINKING_DEFAULT, 7, &a);
    g_assert_cmpint(a.finish, ==, QE_FINISH_LENGTH);
    uint32_t n_ids = a.receipt.n_prompt + 7;
    ask(engine, session, "Go on.", QE_KEEP_ALL, QE_THINKING_DEFAULT, 12, &b);
    g_assert_cmpuint(b.receipt.n_reused, ==, n_ids - 1);
    g_assert_cmpuint(b.receipt.n_recomputed, ==, 0);
    const qe_message messages[] = {{QE_ROLE_USER, "Tell me a story.", -1},
        {QE_ROLE_ASSISTANT, a.text->str, -1}, {QE_ROLE_USER, "Go on.", -1}};
    ask_whole(engine, messages, 3, QE_THINKING_DEFAULT, &whole);
    /* The cut text may be tokenised in another way than it was written; the prompts agree when it is not. */
    if (whole.receipt.n_prompt == b.receipt.n_prompt)
        g_assert_true(g_str_has_prefix(whole.text->str, b.text->str));

    /* Regenerate the second reply: greedy gives the same again, and only the prompt's last token is computed. */
    g_auto(et_result) again = {0};
    ask(engine, session, "Go on.", 2, QE_THINKING_DEFAULT, 12, &again);
    et_assert_same(&again, &b);
    g_assert_cmpuint(again.receipt.n_reused, ==, b.receipt.n_prompt - 1);

    /* Edit the first message: like a fresh session. */
    ask(engine, session, "My name is Otto.", 0, QE_THINKING_DEFAULT, 24, &a);
    const qe_message edited[] = {{QE_ROLE_USER, "My name is Otto.", -1}};
    ask_whole(engine, edited, 1, QE_THINKING_DEFAULT, &whole);
    et_assert_same(&a, &whole);
    ask(engine, session, "What is my name?", QE_KEEP_ALL, QE_THINKING_DEFAULT, 24, &b);
    g_assert_nonnull(strstr(b.text->str, "Otto"));

    /* More messages than there are. */
    g_autoptr(GError) error = NULL;
    qe_message message;
    qe_generate_params params = et_user(session, "x", &message);
    params.keep_messages = 5;
    et_generate(engine, &params, &a);
    g_assert_error(a.error, QE_ERROR, QE_ERROR_NOT_FOUND);
    ask(engine, session, "What is my name?", 2, QE_THINKING_DEFAULT, 24, &again);
    et_assert_same(&again, &b);
    qe_engine_free(engine);
}

/* Fork after the first exchange: both go on by themselves and equal fresh sessions. */
static void test_fork(void)
{
    qe_engine *engine = et_engine_new(NULL);
    g_autoptr(GError) error = NULL;
    qe_session_id session = et_open(engine);
    g_auto(et_result) a = {0};
    g_auto(et_result) b = {0};
    g_auto(et_result) c = {0};
    ask(engine, session, "My name is Mira.", QE_KEEP_ALL, QE_THINKING_DEFAULT, 0, &a);
    ask(engine, session, "I live in Oslo.", QE_KEEP_ALL, QE_THINKING_DEFAULT, 0, &b);
    qe_session_id fork = qe_engine_fork_session(engine, session, 2, &error);
    g_assert_no_error(error);
    uint32_t before = et_pages_used(engine);
    ask(engine, fork, "What is my name?", QE_KEEP_ALL, QE_THINKING_DEFAULT, 24, &c);
    g_assert_nonnull(strstr(c.text->str, "Mira"));
    g_assert_cmpuint(c.receipt.n_reused, >=, a.receipt.n_prompt);
    ask(engine, session, "What is my name?", QE_KEEP_ALL, QE_THINKING_DEFAULT, 24, &c);
    g_assert_nonnull(strstr(c.text->str, "Mira"));
    qe_engine_close_session(engine, fork);
    g_assert_cmpuint(et_pages_used(engine), <=, before + 8);
    qe_engine_close_session(engine, session);
    g_assert_cmpuint(et_pages_used(engine), ==, 0);

    qe_session_id none = qe_engine_fork_session(engine, session, 0, &error);
    g_assert_cmpuint(none, ==, 0);
    g_assert_error(error, QE_ERROR, QE_ERROR_NOT_FOUND);
    qe_engine_free(engine);
}

/* A context of 32: prompt and reply never exceed it; a longer prompt is refused with both numbers and changes nothing. */
static void test_context(void)
{
    qe_engine *engine = et_engine_new(&(qe_engine_options){.context_max = 32});
    uint32_t ids[40];
    for (uint32_t i = 0; i < 40; i++)
        ids[i] = i < 10 ? hello[i] : 300 + i;
    g_auto(et_result) r = {0};
    const uint32_t max_tokens[] = {100, 0, INT32_MAX, UINT32_MAX};
    for (guint i = 0; i < G_N_ELEMENTS(max_tokens); i++) {
        qe_generate_params params = ids_params(et_open(engine), ids, 30, max_tokens[i]);
        params.ignore_eos = true;
        et_generate(engine, &params, &r);
        g_assert_no_error(r.error);
        g_assert_cmpint(r.finish, ==, QE_FINISH_CONTEXT);
        g_assert_cmpstr(qe_finish_name(r.finish), ==, "length");
        g_assert_cmpuint(r.ids->len, ==, 2);
    }
    qe_generate_params full = ids_params(et_open(engine), ids, 32, 5);
    full.n_top = 4;
    et_generate(engine, &full, &r);
    g_assert_cmpint(r.finish, ==, QE_FINISH_CONTEXT);
    g_assert_cmpuint(r.ids->len, ==, 0);
    g_assert_cmpuint(r.n_top, ==, 4);

    qe_generate_params longer = ids_params(full.session, ids, 33, 5);
    et_generate(engine, &longer, &r);
    g_assert_error(r.error, QE_ERROR, QE_ERROR_CONTEXT_LENGTH);
    g_assert_nonnull(strstr(r.error->message, "33"));
    g_assert_nonnull(strstr(r.error->message, "32"));
    et_generate(engine, &full, &r);
    g_assert_cmpuint(r.receipt.n_reused, ==, 31);

    ids[3] = 6144;
    qe_generate_params bad = ids_params(full.session, ids, 10, 5);
    et_generate(engine, &bad, &r);
    g_assert_error(r.error, QE_ERROR, QE_ERROR_INVALID);
    qe_engine_free(engine);
}

int main(int argc, char **argv)
{
    g_test_init(&argc, &argv, NULL);
    g_test_add_func("/engine/turns/same-prompt", test_same_prompt);
    g_test_add_func("/engine/turns/stripped", test_stripped);
    g_test_add_func("/engine/turns/edits", test_edits);
    g_test_add_func("/engine/turns/fork", test_fork);
    g_test_add_func("/engine/turns/context", test_context);
    return g_test_run();
}
