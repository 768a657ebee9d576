/* test-engine-turns.c: prompts on a session: exact reuse counts, edits, cut replies, stripped reasoning, limits. */
#include <string.h>
#include "engine/qe-template.h"
#include "tests/engine/engine-test.h"

static const uint32_t hello[] = {6140, 1649, 198, 1082, 0, 6141, 198, 6140, 1654, 198};

/* The same prompt twice: one token is computed again, because logits exist only then; then a shorter prompt. */
static void test_same_prompt(void)
{
    qe_engine *engine = et_engine_new(NULL);
    qe_session_id session = et_open(engine);
    qe_generate_params params = et_ids(session, hello, G_N_ELEMENTS(hello), 8);
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

    qe_generate_params shorter = et_ids(session, hello, 5, 8);
    qe_generate_params fresh = et_ids(et_open(engine), hello, 5, 8);
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

/* ---- Reasoning: what later turns keep of a reply ---- */

/* The template and tokenizer that an engine with the shipped model has, to say what ids to expect. */
typedef struct {
    qe_tokenizer *tokenizer;
    qe_template *tmpl;
    uint32_t think, think_end;
} form;

static void form_init(form *f)
{
    g_autoptr(GError) error = NULL;
    f->tokenizer = qe_tokenizer_new(et_model_dir(), &error);
    g_assert_no_error(error);
    f->tmpl = qe_template_new(et_model_dir(), f->tokenizer, &error);
    g_assert_no_error(error);
    g_assert_true(qe_template_strips_reasoning(f->tmpl));
    g_assert_true(qe_tokenizer_find(f->tokenizer, "<think>", &f->think));
    g_assert_true(qe_tokenizer_find(f->tokenizer, "</think>", &f->think_end));
}

static void form_clear(form *f)
{
    qe_template_free(f->tmpl);
    qe_tokenizer_unref(f->tokenizer);
}

static bool has_id(const et_result *r, uint32_t id)
{
    for (guint i = 0; i < r->ids->len; i++)
        if (g_array_index(r->ids, uint32_t, i) == id)
            return true;
    return false;
}

/* The ids of @messages with the generation prompt: what the template makes of the whole conversation. */
static GArray *render(const form *f, const qe_message *messages, uint32_t n, qe_thinking thinking)
{
    g_autoptr(GError) error = NULL;
    g_autofree qe_template_message *m = g_new0(qe_template_message, n);
    for (uint32_t i = 0; i < n; i++)
        m[i] = (qe_template_message){
            (qe_template_role)messages[i].role, messages[i].text, strlen(messages[i].text)};
    GArray *ids = g_array_new(FALSE, FALSE, sizeof(uint32_t));
    qe_template_render(f->tmpl, m, n, (qe_template_thinking)thinking, true, ids, &error);
    g_assert_no_error(error);
    return ids;
}

/* The session's ids are exactly @prompt and @reply: as a prompt they leave nothing to compute but the last row. */
static void assert_session_ids(
    qe_engine *engine, qe_session_id session, const GArray *prompt, const et_result *reply)
{
    g_autoptr(GArray) ids = g_array_new(FALSE, FALSE, sizeof(uint32_t));
    g_array_append_vals(ids, prompt->data, prompt->len);
    g_array_append_vals(ids, reply->ids->data, reply->ids->len);
    g_assert_cmpuint(reply->receipt.n_prompt, ==, prompt->len);
    g_autoptr(GError) error = NULL;
    qe_session_id fork = qe_engine_fork_session(engine, session, QE_KEEP_ALL, &error);
    g_assert_no_error(error);
    qe_generate_params params = et_ids(fork, (const uint32_t *)(const void *)ids->data, ids->len, 1);
    g_auto(et_result) r = {0};
    et_generate(engine, &params, &r);
    g_assert_no_error(r.error);
    g_assert_cmpint(r.receipt.first_mismatch, ==, -1);
    g_assert_cmpuint(r.receipt.n_reused, ==, ids->len - 1);
    qe_engine_close_session(engine, fork);
}

/* How many ids a reply has without its reasoning, its end token included. */
static uint32_t n_stripped_ids(const form *f, const char *text)
{
    g_autoptr(GError) error = NULL;
    g_autoptr(GArray) ids = g_array_new(FALSE, FALSE, sizeof(uint32_t));
    const char *close = g_strrstr(text, "</think>");
    if (close)
        text = close + strlen("</think>");
    while (close && *text == '\n')
        text++;
    qe_tokenizer_encode(f->tokenizer, text, strlen(text), QE_ENCODE_PLAIN, ids, &error);
    g_assert_no_error(error);
    return ids->len + 1;
}

/* Three turns. After each but the first, the reply before it is there without its reasoning: cut back to its
 * "<|im_start|>assistant\n", appended in short and computed again; the replies before that are not touched. */
static void check_stripped(const char *const *questions, qe_thinking thinking, bool reasons)
{
    qe_engine *engine = et_engine_new(NULL);
    form f;
    form_init(&f);
    qe_session_id session = et_open(engine);
    et_result replies[3] = {0};
    qe_message messages[5];
    for (uint32_t turn = 0; turn < 3; turn++) {
        et_result *r = &replies[turn];
        messages[2 * turn] = (qe_message){QE_ROLE_USER, questions[turn], -1};
        ask(engine, session, questions[turn], QE_KEEP_ALL, thinking, 0, r);
        g_assert_cmpint(r->finish, ==, QE_FINISH_STOP);
        g_assert_cmpint(has_id(r, f.think), ==, reasons);
        g_assert_cmpint(has_id(r, f.think_end), ==, reasons);
        g_assert_cmpint(g_str_has_prefix(r->text->str, "<think>\n"), ==, reasons);
        g_autoptr(GArray) whole = render(&f, messages, 2 * turn + 1, thinking);
        assert_session_ids(engine, session, whole, r);

        g_auto(et_result) fresh = {0};
        qe_generate_params params;
        qe_generate_params_init(&params, NULL);
        params.session = et_open(engine);
        params.messages = messages;
        params.n_messages = 2 * turn + 1;
        params.whole_history = true;
        params.thinking = thinking;
        et_generate(engine, &params, &fresh);
        g_assert_no_error(fresh.error);
        et_assert_same(r, &fresh);
        if (turn) {
            const et_result *before = &replies[turn - 1];
            uint32_t kept = before->receipt.n_prompt - (thinking == QE_THINKING_OFF ? 4 : 0);
            g_assert_cmpuint(r->receipt.n_reused, ==, kept);
            g_assert_cmpint(r->receipt.first_mismatch, ==, kept);
            g_assert_cmpuint(r->receipt.n_recomputed, ==, n_stripped_ids(&f, before->text->str));
            g_assert_cmpuint(r->receipt.n_recomputed, <, before->receipt.n_generated + (reasons ? 0 : 1));
        }
        if (turn < 2)
            messages[2 * turn + 1] = (qe_message){QE_ROLE_ASSISTANT, r->text->str, -1};
    }
    for (uint32_t turn = 0; turn < 3; turn++)
        et_result_clear(&replies[turn]);
    form_clear(&f);
    qe_engine_free(engine);
}

/* A reply prompted with an empty think block: the 4 ids of the block are the prompt's last. */
static void test_stripped_empty(void)
{
    const char *const questions[] = {"My name is Mira.", "I live in Oslo.", "What is my name?"};
    check_stripped(questions, QE_THINKING_OFF, false);
}

/* Replies that reason, because the message asks for it. */
static void test_stripped_reasoning(void)
{
    const char *const questions[] = {
        "What is 27 plus 15? /think", "What is 12 plus 9? /think", "What is 31 plus 8? /think"};
    check_stripped(questions, QE_THINKING_DEFAULT, true);
}

/* Cancelled inside its think block: there is no answer to keep, so what was emitted stays and is closed. */
static void test_cancelled_in_think(void)
{
    /* A reader that takes nothing stops the reply after a character: it cannot run past its think block. */
    qe_engine *engine = et_engine_new(&(qe_engine_options){.outbox_bytes = 1});
    form f;
    form_init(&f);
    g_autoptr(GError) error = NULL;
    qe_session_id session = et_open(engine);
    qe_message message;
    qe_generate_params params = et_user(session, "What is 27 plus 15? /think", &message);
    qe_request *request = qe_engine_generate(engine, &params, &error);
    g_assert_no_error(error);
    g_autoptr(GArray) ids = g_array_new(FALSE, FALSE, sizeof(uint32_t));
    while (ids->len < 4) {
        qe_update u;
        qe_request_wait(request, -1);
        qe_request_take(request, &u);
        g_array_append_vals(ids, u.ids, u.n_ids);
        qe_update_clear(&u);
    }
    qe_request_cancel(request);
    g_auto(et_result) cut = {0};
    et_finish(request, &cut);
    g_assert_cmpint(cut.finish, ==, QE_FINISH_CANCELLED);
    g_array_append_vals(ids, cut.ids->data, cut.ids->len);
    g_array_set_size(cut.ids, 0);
    g_array_append_vals(cut.ids, ids->data, ids->len);
    g_assert_cmpuint(g_array_index(ids, uint32_t, 0), ==, f.think);
    g_assert_false(has_id(&cut, f.think_end));

    g_autoptr(GArray) want = render(&f, &message, 1, QE_THINKING_DEFAULT);
    assert_session_ids(engine, session, want, &cut);
    g_auto(et_result) next = {0};
    g_auto(et_result) fresh = {0};
    ask(engine, session, "What is 12 plus 9?", QE_KEEP_ALL, QE_THINKING_DEFAULT, 0, &next);
    g_array_append_vals(want, ids->data, ids->len);
    qe_template_append_close(f.tmpl, false, want, &error);
    g_assert_no_error(error);
    const qe_message second = {QE_ROLE_USER, "What is 12 plus 9?", -1};
    g_autoptr(GArray) rest = render(&f, &second, 1, QE_THINKING_DEFAULT);
    g_array_append_vals(want, rest->data, rest->len);
    assert_session_ids(engine, session, want, &next);
    g_assert_cmpint(next.receipt.first_mismatch, ==, -1);
    g_assert_cmpuint(next.receipt.n_reused, >=, cut.receipt.n_prompt + ids->len - 1);
    g_assert_cmpuint(next.receipt.n_recomputed, ==, 0);
    qe_generate_params exact =
        et_ids(et_open(engine), (const uint32_t *)(const void *)want->data, want->len, 0);
    et_generate(engine, &exact, &fresh);
    g_assert_no_error(fresh.error);
    et_assert_same(&next, &fresh);
    form_clear(&f);
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
        qe_generate_params params = et_ids(et_open(engine), ids, 30, max_tokens[i]);
        params.ignore_eos = true;
        et_generate(engine, &params, &r);
        g_assert_no_error(r.error);
        g_assert_cmpint(r.finish, ==, QE_FINISH_CONTEXT);
        g_assert_cmpstr(qe_finish_name(r.finish), ==, "length");
        g_assert_cmpuint(r.ids->len, ==, 2);
    }
    qe_generate_params full = et_ids(et_open(engine), ids, 32, 5);
    full.n_top = 4;
    et_generate(engine, &full, &r);
    g_assert_cmpint(r.finish, ==, QE_FINISH_CONTEXT);
    g_assert_cmpuint(r.ids->len, ==, 0);
    g_assert_cmpuint(r.n_top, ==, 4);

    qe_generate_params longer = et_ids(full.session, ids, 33, 5);
    et_generate(engine, &longer, &r);
    g_assert_error(r.error, QE_ERROR, QE_ERROR_CONTEXT_LENGTH);
    g_assert_nonnull(strstr(r.error->message, "33"));
    g_assert_nonnull(strstr(r.error->message, "32"));
    et_generate(engine, &full, &r);
    g_assert_cmpuint(r.receipt.n_reused, ==, 31);

    ids[3] = 6144;
    qe_generate_params bad = et_ids(full.session, ids, 10, 5);
    et_generate(engine, &bad, &r);
    g_assert_error(r.error, QE_ERROR, QE_ERROR_INVALID);
    qe_engine_free(engine);
}

/* A reply that was cut goes on where it ended: in its own session, from what is cached, and in a new one, from its text.
 * The two parts are the reply that was not cut, and the next turn goes on from the whole. */
static void test_continue(void)
{
    const char *const questions[] = {"Tell me a story.", "What is 27 plus 15? /think"};
    qe_engine *engine = et_engine_new(NULL);

    for (guint i = 0; i < 2; i++) {
        qe_thinking thinking = i == 0 ? QE_THINKING_OFF : QE_THINKING_DEFAULT;
        qe_session_id session = et_open(engine);
        qe_message messages[] = {{QE_ROLE_USER, questions[i], -1}, {QE_ROLE_ASSISTANT, NULL, -1},
            {QE_ROLE_USER, "Thank you.", -1}};
        g_auto(et_result) whole = {0}, begun = {0}, next = {0}, fresh = {0};
        qe_generate_params params;

        ask(engine, et_open(engine), questions[i], QE_KEEP_ALL, thinking, 60, &whole);
        ask(engine, session, questions[i], QE_KEEP_ALL, thinking, 12, &begun);
        messages[1].text = begun.text->str;
        for (guint again = 0; again < 2; again++) {
            g_auto(et_result) rest = {0};
            g_autofree char *text = NULL;

            qe_generate_params_init(&params, NULL);
            params.session = again ? et_open(engine) : session;
            params.messages = messages;
            params.n_messages = 2;
            params.whole_history = true;
            params.continue_reply = true;
            params.thinking = thinking;
            params.max_tokens = 48;
            et_generate(engine, &params, &rest);
            g_assert_no_error(rest.error);
            text = g_strconcat(begun.text->str, rest.text->str, NULL);
            g_assert_cmpstr(text, ==, whole.text->str);
            g_assert_cmpuint(rest.receipt.n_prompt, ==, begun.receipt.n_prompt + 12);
            if (!again)
                g_assert_cmpuint(rest.receipt.n_reused, ==, begun.receipt.n_prompt + 11);
        }
        messages[1].text = whole.text->str;
        if (whole.finish == QE_FINISH_STOP) {
            ask(engine, session, "Thank you.", QE_KEEP_ALL, thinking, 24, &next);
            ask_whole(engine, messages, 3, thinking, &fresh);
            et_assert_same(&next, &fresh);
        }
    }
    {
        qe_message message;
        qe_generate_params params = et_user(et_open(engine), "Hello.", &message);
        g_autoptr(GError) error = NULL;

        params.whole_history = params.continue_reply = true;
        g_assert_null(qe_engine_generate(engine, &params, &error));
        g_assert_error(error, QE_ERROR, QE_ERROR_INVALID);
    }
    qe_engine_free(engine);
}

/* With a turn's last word come the tokens of every message: they follow each other, end with the reply's last token, and stay
 * as they were for what was said before. */
static void test_ranges(void)
{
    static const qe_role roles[] = {QE_ROLE_USER, QE_ROLE_ASSISTANT};
    g_autofree qe_message_range *before = NULL;
    uint32_t n_before = 0;
    qe_engine *engine = et_engine_new(NULL);
    qe_session_id session = et_open(engine);
    for (uint32_t turn = 0; turn < 3; turn++) {
        g_auto(et_result) r = {0};
        et_ask_exactly(engine, session, "What is a KV cache?", 9, &r);
        g_assert_cmpuint(r.n_ranges, ==, 2 * (turn + 1));
        for (uint32_t i = 0; i < r.n_ranges; i++) {
            g_assert_cmpint(r.ranges[i].role, ==, roles[i % 2]);
            g_assert_cmpuint(r.ranges[i].begin, ==, i > 0 ? r.ranges[i - 1].end : 0);
            g_assert_cmpuint(r.ranges[i].begin, <, r.ranges[i].end);
        }
        const qe_message_range *reply = &r.ranges[r.n_ranges - 1];
        g_assert_cmpuint(reply->begin, <=, r.receipt.n_prompt);
        g_assert_cmpuint(reply->end, ==, r.receipt.n_prompt + r.receipt.n_generated);
        for (uint32_t i = 0; i + 1 < n_before; i++) /* the last reply is closed by the turn behind it */
            g_assert_cmpmem(&before[i], sizeof *before, &r.ranges[i], sizeof *before);
        g_free(before);
        n_before = r.n_ranges;
        before = g_steal_pointer(&r.ranges);
    }
    g_autoptr(GArray) ids = et_some_ids(40, 1);
    g_auto(et_result) r = {0};
    qe_generate_params params = et_ids(et_open(engine), (const uint32_t *)(const void *)ids->data, 40, 2);
    et_generate(engine, &params, &r);
    g_assert_no_error(r.error);
    g_assert_cmpuint(r.n_ranges, ==, 2);
    g_assert_cmpuint(r.ranges[0].begin, ==, 0);
    g_assert_cmpuint(r.ranges[0].end, ==, 40);
    g_assert_cmpuint(r.ranges[1].begin, ==, 40);
    g_assert_cmpuint(r.ranges[1].end, ==, 40 + r.receipt.n_generated);
    qe_engine_free(engine);
}

int main(int argc, char **argv)
{
    g_test_init(&argc, &argv, NULL);
    g_test_add_func("/engine/turns/same-prompt", test_same_prompt);
    g_test_add_func("/engine/turns/stripped/empty", test_stripped_empty);
    g_test_add_func("/engine/turns/stripped/reasoning", test_stripped_reasoning);
    g_test_add_func("/engine/turns/stripped/cancelled", test_cancelled_in_think);
    g_test_add_func("/engine/turns/continue", test_continue);
    g_test_add_func("/engine/turns/edits", test_edits);
    g_test_add_func("/engine/turns/fork", test_fork);
    g_test_add_func("/engine/turns/ranges", test_ranges);
    g_test_add_func("/engine/turns/context", test_context);
    return g_test_run();
}
