/* template-form.c: see template-form.h. */
#include "tests/engine/template-form.h"
#include <json-glib/json-glib.h>
#include <string.h>

static JsonParser *load(char *path)
{
    g_autoptr(GError) error = NULL;
    JsonParser *parser = json_parser_new();
    json_parser_load_from_file(parser, path, &error);
    g_assert_no_error(error);
    g_free(path);
    return parser;
}

char *template_source(const char *dir)
{
    g_autoptr(JsonParser) parser = load(g_build_filename(dir, "tokenizer_config.json", NULL));
    JsonObject *root = json_node_get_object(json_parser_get_root(parser));
    return g_strdup(json_object_get_string_member(root, "chat_template"));
}

char *template_form_source(const char *dir, const char *form)
{
    g_autoptr(JsonParser) parser =
        load(g_build_filename(g_getenv("QUIRE_TEST_FIXTURES"), "template", "forms.json", NULL));
    JsonArray *edits = json_object_get_array_member(json_node_get_object(json_parser_get_root(parser)), form);
    char *source = template_source(dir);
    for (guint i = 0; i < json_array_get_length(edits); i++) {
        JsonArray *edit = json_array_get_array_element(edits, i);
        const char *from = json_array_get_string_element(edit, 0);
        char *begin = strstr(source, from);
        g_assert_nonnull(begin);
        const char *end = strstr(begin + strlen(from), json_array_get_string_element(edit, 1));
        g_assert_nonnull(end);
        *begin = 0; /* ends the text before the edit */
        char *edited = g_strconcat(source, json_array_get_string_element(edit, 2), end, NULL);
        g_free(source);
        source = edited;
    }
    return source;
}
