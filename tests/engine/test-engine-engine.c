/* test-engine-engine.c: the whole engine with the shipped model: golden texts and ids, memory across turns, life. */
#include <json-glib/json-glib.h>
#include <string.h>
#include "tests/engine/engine-test.h"

static JsonParser *load_report(void)
{
    g_autoptr(GError) error = NULL;
    g_autofree char *path = g_build_filename(et_model_dir(), "training", "report.json", NULL);
    JsonParser *parser = json_parser_new();
    json_parser_load_from_file(parser, path, &error);
    g_assert_no_error(error);
    return parser;
}

static GArray *ids_of(JsonArray *array)
{
    GArray *ids = g_array_new(FALSE, FALSE, sizeof(uint32_t));
    for (guint i = 0; i < json_array_get_length(array); i++) {
        uint32_t id = (uint32_t)json_array_get_int_element(array, i);
        g_array_append_val(ids, id);
    }
    return ids;
}

/* The training run's golden prompts: the largest logits, then the greedy ids and text, all from transformers. */
static void test_golden(void)
{
    qe_engine *engine = et_engine_new(&(qe_engine_options){.kv_class = QE_KV_F32});
    g_autoptr(JsonParser) report = load_report();
    JsonArray *golden =
        json_object_get_array_member(json_node_get_object(json_parser_get_root(report)), "golden");
    g_assert_cmpuint(json_array_get_length(golden), >, 0);
    for (guint i = 0; i < json_array_get_length(golden); i++) {
        JsonObject *item = json_array_get_object_element(golden, i);
        g_autoptr(GArray) prompt = ids_of(json_object_get_array_member(item, "ids"));
        g_autoptr(GArray) greedy = ids_of(json_object_get_array_member(item, "greedy"));
        JsonArray *top = json_object_get_array_member(item, "top");
        qe_generate_params params;
        qe_generate_params_init(&params, NULL);
        params.session = et_open(engine);
        params.ids = (const uint32_t *)(void *)prompt->data;
        params.n_ids = prompt->len;
        params.n_top = json_array_get_length(top);
        g_auto(et_result) r = {0};
        et_generate(engine, &params, &r);
        g_assert_no_error(r.error);
        g_assert_cmpuint(r.receipt.n_prompt, ==, prompt->len);
        g_assert_cmpuint(r.receipt.n_reused, ==, 0);
        g_assert_cmpuint(r.receipt.n_new, ==, prompt->len);
        g_assert_cmpuint(r.n_top, ==, params.n_top);
        for (guint k = 0; k < r.n_top; k++) {
            JsonArray *pair = json_array_get_array_element(top, k);
            g_assert_cmpuint(r.top[k].id, ==, (guint)json_array_get_int_element(pair, 0));
            g_assert_cmpfloat_with_epsilon(r.top[k].logit, json_array_get_double_element(pair, 1), 2e-3);
        }
        g_assert_cmpint(r.finish, ==, QE_FINISH_STOP);
        /* The report keeps a long reply's beginning. */
        g_assert_cmpuint(r.ids->len, >, greedy->len);
        g_assert_cmpmem(r.ids->data, greedy->len * 4, greedy->data, greedy->len * 4);
        const char *text = json_object_get_string_member(item, "greedy_text");
        if (r.ids->len == greedy->len + 1)
            g_assert_cmpstr(r.text->str, ==, text);
        else
            g_assert_true(g_str_has_prefix(r.text->str, text));
        g_assert_cmpuint(r.receipt.n_generated, ==, r.ids->len);
        qe_engine_close_session(engine, params.session);
    }
    g_assert_cmpuint(et_pages_used(engine), ==, 0);
    qe_engine_free(engine);
}

/* The first turn tells a name, the second asks for it and computes only what is new. */
static void test_remembers(void)
{
    qe_engine *engine = et_engine_new(NULL);
    qe_session_id session = et_open(engine);
    g_auto(et_result) first = {0};
    g_auto(et_result) second = {0};
    et_ask(engine, session, "My name is Mira.", 0, &first);
    g_assert_cmpint(first.finish, ==, QE_FINISH_STOP);
    et_ask(engine, session, "What is my name?", 0, &second);
    g_test_message("%s | %s", first.text->str, second.text->str);
    g_assert_nonnull(strstr(second.text->str, "Mira"));
    /* Of the first turn everything but the end token, which was drawn and never computed. */
    uint32_t kept = first.receipt.n_prompt + first.receipt.n_generated;
    g_assert_cmpuint(second.receipt.n_reused, ==, kept - 1);
    g_assert_cmpuint(second.receipt.n_new, ==, second.receipt.n_prompt - second.receipt.n_reused);
    g_assert_cmpuint(second.receipt.n_recomputed, ==, 0);
    g_assert_cmpint(second.receipt.first_mismatch, ==, -1);

    /* The same conversation in one piece says the same. */
    const qe_message messages[] = {{QE_ROLE_USER, "My name is Mira.", -1},
        {QE_ROLE_ASSISTANT, first.text->str, -1}, {QE_ROLE_USER, "What is my name?", -1}};
    qe_generate_params params;
    qe_generate_params_init(&params, NULL);
    params.session = et_open(engine);
    params.messages = messages;
    params.n_messages = G_N_ELEMENTS(messages);
    params.whole_history = true;
    g_auto(et_result) whole = {0};
    et_generate(engine, &params, &whole);
    g_assert_no_error(whole.error);
    g_assert_cmpuint(whole.receipt.n_prompt, ==, second.receipt.n_prompt);
    et_assert_same(&whole, &second);
    qe_engine_free(engine);
}

int main(int argc, char **argv)
{
    g_test_init(&argc, &argv, NULL);
    g_test_add_func("/engine/engine/golden", test_golden);
    g_test_add_func("/engine/engine/remembers", test_remembers);
    return g_test_run();
}
