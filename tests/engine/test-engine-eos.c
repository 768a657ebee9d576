/* test-engine-eos.c: what ends a reply: the ids of generation_config.json, else of config.json, as a number or a list.
 *
 * The folders are copies of tests/fixtures/tiny-random with an end id that the model really emits: the sixth token of
 * its greedy reply, ordinary text to the tokenizer. */
#include <glib/gstdio.h>
#include <string.h>
#include "engine/qe-template.h"
#include "tests/engine/engine-test.h"

/* The prompt random-33 of tests/fixtures/logits/tiny-random.json. */
static const uint32_t ids_prompt[] = {286, 159, 174, 251, 192, 278, 29, 265, 0, 37, 68, 98, 288, 306, 94, 244,
    239, 29, 213, 147, 127, 212, 121, 28, 120, 224, 237, 93, 289, 162, 105, 60, 60};
enum { END_AT = 5, IM_END = 317 };

static char *fixture_dir(void)
{
    const char *dir = g_getenv("QUIRE_TEST_FIXTURES");
    return g_build_filename(dir ? dir : "tests/fixtures", "tiny-random", NULL);
}

/* @text with the value of "eos_token_id" replaced. */
static char *with_eos(const char *text, const char *value)
{
    g_autoptr(GError) error = NULL;
    g_autoptr(GRegex) regex = g_regex_new("\"eos_token_id\": *(\\d+|\\[[^]]*\\])", 0, 0, &error);
    g_assert_no_error(error);
    g_assert_true(g_regex_match(regex, text, 0, NULL));
    g_autofree char *field = g_strdup_printf("\"eos_token_id\": %s", value);
    char *out = g_regex_replace_literal(regex, text, -1, 0, field, 0, &error);
    g_assert_no_error(error);
    return out;
}

/* A copy of the fixture. @config, @generation: the end ids of the two files, as JSON; without @generation there is no
 * generation_config.json. */
static char *copy_fixture(const char *config, const char *generation)
{
    static const char *const names[] = {"config.json", "generation_config.json", "model.safetensors",
        "tokenizer.json", "tokenizer_config.json"};
    g_autoptr(GError) error = NULL;
    g_autofree char *from = fixture_dir();
    char *to = g_dir_make_tmp("quire-eos-XXXXXX", &error);
    g_assert_no_error(error);
    for (guint i = 0; i < G_N_ELEMENTS(names); i++) {
        const char *eos = i == 0 ? config : generation;
        if (i == 1 && generation == NULL)
            continue;
        g_autofree char *source = g_build_filename(from, names[i], NULL);
        g_autofree char *target = g_build_filename(to, names[i], NULL);
        g_autofree char *bytes = NULL;
        gsize n = 0;
        g_file_get_contents(source, &bytes, &n, &error);
        g_assert_no_error(error);
        if (i < 2) {
            char *changed = with_eos(bytes, eos);
            g_free(bytes);
            bytes = changed;
            n = strlen(changed);
        }
        g_file_set_contents(target, bytes, (gssize)n, &error);
        g_assert_no_error(error);
    }
    return to;
}

static void remove_copy(char *dir)
{
    g_autoptr(GDir) list = g_dir_open(dir, 0, NULL);
    const char *name;
    while (list && (name = g_dir_read_name(list))) {
        g_autofree char *path = g_build_filename(dir, name, NULL);
        g_unlink(path);
    }
    g_rmdir(dir);
    g_free(dir);
}

static void generate_ids(qe_engine *engine, uint32_t max_tokens, et_result *r)
{
    qe_generate_params params;
    qe_generate_params_init(&params, NULL);
    params.session = et_open(engine);
    params.ids = ids_prompt;
    params.n_ids = G_N_ELEMENTS(ids_prompt);
    params.max_tokens = max_tokens;
    et_generate(engine, &params, r);
    g_assert_no_error(r->error);
    qe_engine_close_session(engine, params.session);
}

/* What the unchanged fixture says: after 5 tokens, and after 6, whose last one is text of its own. */
static void reference(et_result *five, et_result *six)
{
    g_autofree char *dir = fixture_dir();
    qe_engine *engine = et_engine_new_for(NULL, dir);
    generate_ids(engine, END_AT, five);
    generate_ids(engine, END_AT + 1, six);
    g_assert_cmpint(six->finish, ==, QE_FINISH_LENGTH);
    g_assert_cmpstr(five->text->str, !=, six->text->str);
    for (guint i = 0; i < END_AT; i++)
        g_assert_cmpuint(g_array_index(six->ids, uint32_t, i), !=, g_array_index(six->ids, uint32_t, END_AT));
    qe_engine_free(engine);
}

static void check(
    const et_result *five, const et_result *six, const char *config, const char *generation, bool ends)
{
    char *dir = copy_fixture(config, generation);
    qe_engine *engine = et_engine_new_for(NULL, dir);
    g_auto(et_result) r = {0};
    generate_ids(engine, 2 * END_AT, &r);
    if (ends) {
        g_assert_cmpint(r.finish, ==, QE_FINISH_STOP);
        g_assert_cmpmem(r.ids->data, r.ids->len * 4, six->ids->data, six->ids->len * 4);
        g_assert_cmpuint(r.receipt.n_generated, ==, END_AT + 1);
        g_assert_cmpstr(r.text->str, ==, five->text->str);
    } else {
        g_assert_cmpint(r.finish, ==, QE_FINISH_LENGTH);
        g_assert_cmpuint(r.ids->len, ==, 2 * END_AT);
    }
    qe_engine_free(engine);
    remove_copy(dir);
}

static void test_files(void)
{
    g_auto(et_result) five = {0};
    g_auto(et_result) six = {0};
    reference(&five, &six);
    uint32_t id = g_array_index(six.ids, uint32_t, END_AT);
    g_autofree char *number = g_strdup_printf("%u", id);
    g_autofree char *list = g_strdup_printf("[%u, %u]", IM_END, id);

    check(&five, &six, "317", list, true);
    check(&five, &six, "317", number, true);
    check(&five, &six, number, NULL, true);
    check(&five, &six, list, NULL, true);
    /* generation_config.json has the word. */
    check(&five, &six, list, "[317, 315]", false);
    check(&five, &six, "317", NULL, false);
}

/* A chat reply ended by an id that is not the template's: the next turn has the reply without it, closed by
 * <|im_end|>. */
static void test_next_turn(void)
{
    g_autoptr(GError) error = NULL;
    g_auto(et_result) six = {0};
    g_auto(et_result) first = {0};
    g_auto(et_result) second = {0};
    g_auto(et_result) fresh = {0};
    g_autofree char *original = fixture_dir();
    qe_engine *engine = et_engine_new_for(NULL, original);
    et_ask(engine, et_open(engine), "Hello", END_AT + 1, &six);
    qe_engine_free(engine);
    uint32_t id = g_array_index(six.ids, uint32_t, END_AT);
    for (guint i = 0; i < END_AT; i++)
        g_assert_cmpuint(g_array_index(six.ids, uint32_t, i), !=, id);

    g_autofree char *list = g_strdup_printf("[%u, %u]", IM_END, id);
    char *dir = copy_fixture("317", list);
    engine = et_engine_new_for(NULL, dir);
    qe_session_id session = et_open(engine);
    et_ask(engine, session, "Hello", 0, &first);
    g_assert_cmpint(first.finish, ==, QE_FINISH_STOP);
    g_assert_cmpmem(first.ids->data, first.ids->len * 4, six.ids->data, six.ids->len * 4);
    et_ask(engine, session, "Go on", 8, &second);

    g_autoptr(qe_template) tmpl = NULL;
    g_autoptr(GArray) want = g_array_new(FALSE, FALSE, sizeof(uint32_t));
    qe_tokenizer *tokenizer = qe_tokenizer_new(dir, &error);
    g_assert_no_error(error);
    tmpl = qe_template_new(dir, tokenizer, &error);
    g_assert_no_error(error);
    g_assert_true(qe_template_append_message(tmpl, QE_TEMPLATE_USER, "Hello", 5, want, &error));
    g_assert_true(qe_template_append_generation(tmpl, QE_TEMPLATE_DEFAULT, want, &error));
    g_array_append_vals(want, first.ids->data, END_AT);
    g_assert_true(qe_template_append_close(tmpl, false, want, &error));
    g_assert_true(qe_template_append_message(tmpl, QE_TEMPLATE_USER, "Go on", 5, want, &error));
    g_assert_true(qe_template_append_generation(tmpl, QE_TEMPLATE_DEFAULT, want, &error));
    g_assert_cmpuint(second.receipt.n_prompt, ==, want->len);
    g_assert_cmpuint(second.receipt.n_reused, ==, first.receipt.n_prompt + END_AT);
    g_assert_cmpint(second.receipt.first_mismatch, ==, first.receipt.n_prompt + END_AT);

    qe_generate_params params;
    qe_generate_params_init(&params, NULL);
    params.session = et_open(engine);
    params.ids = (const uint32_t *)(const void *)want->data;
    params.n_ids = want->len;
    params.max_tokens = 8;
    et_generate(engine, &params, &fresh);
    g_assert_no_error(fresh.error);
    et_assert_same(&second, &fresh);
    qe_tokenizer_unref(tokenizer);
    qe_engine_free(engine);
    remove_copy(dir);
}

int main(int argc, char **argv)
{
    g_test_init(&argc, &argv, NULL);
    g_test_add_func("/engine/eos/files", test_files);
    g_test_add_func("/engine/eos/next-turn", test_next_turn);
    return g_test_run();
}
