/* test-engine-template-form.c: which chat templates are known. A template is accepted in any spelling that renders the
 * same, and refused after any change that could render otherwise. */
#include <glib.h>
#include <string.h>
#include "engine/qe-template-form.h"
#include "tests/engine/template-form.h"

static bool accepts(const char *source, qe_template_form *form)
{
    g_autoptr(GError) error = NULL;
    bool ok = qe_template_recognise("chat_template.jinja", source, form, &error);
    g_assert_cmpint(ok, ==, error == NULL);
    if (!ok) {
        g_assert_error(error, QE_ERROR, QE_ERROR_UNSUPPORTED);
        g_assert_true(g_str_has_prefix(error->message, "chat_template.jinja: chat_template: expected"));
        g_assert_true(g_utf8_validate(error->message, -1, NULL));
    }
    return ok;
}

static char *demo_source(void)
{
    return template_source(g_getenv("QUIRE_TEST_MODEL"));
}

static char *replace(const char *source, const char *from, const char *to)
{
    g_autoptr(GString) text = g_string_new(source);
    g_assert_cmpuint(g_string_replace(text, from, to, 0), >, 0);
    return g_string_free(g_steal_pointer(&text), FALSE);
}

static void test_demo(void)
{
    g_autofree char *source = demo_source();
    qe_template_form form;
    g_assert_true(accepts(source, &form));
    g_assert_true(form.thinking_switch && form.strips);
    g_assert_false(form.thinking_forced || form.rebuilds_think || form.tool_responses);
}

/* Spellings that render the same. */
static void test_same(void)
{
    static const char *const edits[][2] = {
        {"-%}\n", "-%}\n\n   \t\n"}, {"{%- for m in messages -%}", "{%-   for m\n in messages -%}"},
        {"{%- set text = m.content -%}",
            "{#- what is shown -#}\n{%- set text = m.content -%}{#- x %} {{ -#}"},
        {"{{- '<|im_start|>assistant\\n' -}}\n", "{{- '<|im_start|>assistant\\n' -}}"},
        {"{%- endfor -%}",
            "{%- endfor %}"}, /* the newline behind it is a block's, the next tag eats the rest */
    };
    g_autofree char *source = demo_source();
    qe_template_form form;
    for (guint i = 0; i < G_N_ELEMENTS(edits); i++) {
        g_autofree char *edited = replace(source, edits[i][0], edits[i][1]);
        g_assert_true(accepts(edited, &form));
    }
    g_autofree char *newline = g_strconcat(source, "\n", NULL); /* Jinja drops one at the end */
    g_assert_true(accepts(newline, &form));
    g_autofree char *comment = g_strconcat("{# (c) someone #}\n", source, "{# the end #}", NULL);
    g_assert_true(accepts(comment, &form));
}

/* Changes that render something else, or might. */
static void test_other(void)
{
    static const char *const edits[][2] = {
        {"{%- for m in messages -%}", "{%- for m in messages[1:] -%}"},
        {"'\\n' + text", "'\\n' + text + ' '"},
        {"'\\n' + text", "'\\n\\n' + text"},
        {"'</think>' in text", "'</think>'  in text or true"},
        {"{%- endif -%}", "{%- endif -%}x"},
        {"<|im_end|>\\n", "<|im_end|>"},
        {"<|im_end|>\\n", "<|im_end|> \\n"},
        {"enable_thinking is false", "enable_thinking is true"},
        {"assistant\\n'", "assistant\\n<think>\\n'"},
        {"split('</think>')[-1]", "split('</think>')[0]"},
        {"lstrip('\\n')", "strip('\\n')"},
        {"{{- '<|im_start|>assistant\\n' -}}", "{{- '<|im_start|>assistant\\n' }} {{- '' -}}\n{{ x }}"},
        {"{%- set text = m.content -%}", "{%- set text = m.content -%}{%- set text = text | trim -%}"},
        {"{%- set text = m.content -%}", "{% raw %}x{% endraw %}{%- set text = m.content -%}"},
    };
    g_autofree char *source = demo_source();
    qe_template_form form;
    for (guint i = 0; i < G_N_ELEMENTS(edits); i++) {
        g_autofree char *edited = replace(source, edits[i][0], edits[i][1]);
        if (accepts(edited, &form))
            g_error("accepted with \"%s\" for \"%s\"", edits[i][1], edits[i][0]);
    }
    static const char *const foreign[] = {"", "\n", "text", "{{ messages }}",
        "{% for m in messages %}{{ m.content }}{% endfor %}", "{%", "{{", "{#", "{% if x", "{{ 'open",
        "{{ \"\\", "{# open", "{%- if a -%}", "{% endif %}", "{", "{%-", "{{-", "{% %}", "{{}}", "{##}",
        "\xff\xc3"};
    for (guint i = 0; i < G_N_ELEMENTS(foreign); i++)
        g_assert_false(accepts(foreign[i], &form));
    /* A part missing, doubled, out of order. */
    const char *loop = strstr(source, "\n{%- for m in messages -%}\n"),
               *prompt = strstr(source, "\n{%- if add_gen");
    g_autofree char *cut = g_strndup(source, (gsize)(prompt - source));
    g_assert_false(accepts(cut, &form));
    g_autofree char *doubled = g_strconcat(source, prompt, NULL);
    g_assert_false(accepts(doubled, &form));
    g_autofree char *turned = g_strconcat(loop, cut, NULL);
    g_assert_false(accepts(turned, &form));
}

/* Every character that can change what is rendered counts: none can be left out. What may go is space, and the dash of a
 * tag that has no space to strip. */
static void check_deletions(const char *source)
{
    qe_template_form form;
    gsize n = strlen(source), n_refused = 0;
    for (gsize i = 0; i < n; i++) {
        bool dash = source[i] == '-' && ((i >= 2 && source[i - 2] == '{') || source[i + 2] == '}');
        if (g_ascii_isspace(source[i]) || dash)
            continue;
        g_autofree char *edited = g_strdup(source);
        memmove(edited + i, edited + i + 1, n - i);
        if (accepts(edited, &form))
            g_error("accepted without byte %zu, '%c'", (size_t)i, source[i]);
        n_refused++;
    }
    g_assert_cmpuint(n_refused, >, n / 2);
}

static void test_demo_deletions(void)
{
    g_autofree char *source = demo_source();
    check_deletions(source);
}

static void test_qwen(void)
{
    static const struct {
        const char *name;
        qe_template_form form;
    } forms[] = {
        {NULL, {.thinking_switch = true, .strips = true, .rebuilds_think = true, .tool_responses = true}},
        {"revised",
            {.thinking_switch = true, .strips = true, .rebuilds_think = true, .tool_responses = true}},
        {"thinking",
            {.thinking_forced = true, .strips = true, .rebuilds_think = true, .tool_responses = true}},
        {"instruct", {.thinking_switch = false}},
    };
    const char *dir = g_getenv("QUIRE_TEST_QWEN_TOKENIZER");
    if (dir == NULL || *dir == 0) {
        g_test_skip("QUIRE_TEST_QWEN_TOKENIZER is not set: run tests/fetch-tokenizer.sh");
        return;
    }
    for (guint i = 0; i < G_N_ELEMENTS(forms); i++) {
        g_autofree char *source =
            forms[i].name ? template_form_source(dir, forms[i].name) : template_source(dir);
        qe_template_form form;
        g_assert_true(accepts(source, &form));
        g_assert_cmpmem(&form, sizeof form, &forms[i].form, sizeof form);
        check_deletions(source);
        g_autofree char *system = replace(source, "messages[0].content", "'You are Qwen.'");
        g_assert_false(accepts(system, &form));
        g_autofree char *comment = g_strconcat(source, "\n{# Copyright someone #}", NULL);
        g_assert_true(accepts(comment, &form));
    }
    /* Templates that keep reasoning, and coders' templates, are other ones. */
    g_autofree char *source = template_source(dir);
    g_autofree char *keeps = replace(source, "loop.index0 > ns.last_query_index", "true");
    qe_template_form form;
    g_assert_false(accepts(keeps, &form));
}

int main(int argc, char **argv)
{
    g_test_init(&argc, &argv, NULL);
    g_test_add_func("/engine/template-form/demo", test_demo);
    g_test_add_func("/engine/template-form/same", test_same);
    g_test_add_func("/engine/template-form/other", test_other);
    g_test_add_func("/engine/template-form/demo-deletions", test_demo_deletions);
    g_test_add_func("/engine/template-form/qwen", test_qwen);
    return g_test_run();
}
