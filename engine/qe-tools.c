/* qe-tools.c: JSON as Python spells it. See qe-tools.h. */
#include "engine/qe-tools.h"
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include "engine/qe-json.h"
#include "engine/qe.h"

/* The shortest digits that read back as @x, in Python's notation: a point in numbers of 1e-4 up to 1e16, else an exponent of
 * at least two digits. */
static void write_float(GString *out, double x)
{
    char text[64];
    if (!isfinite(x)) {
        g_string_append(out, x < 0 ? "-Infinity" : "Infinity");
        return;
    }
    int precision = 0;
    do
        g_ascii_formatd(text, sizeof text,
            (const char[]){'%', '.', (char)('0' + precision / 10), (char)('0' + precision % 10), 'e', 0}, x);
    while (g_ascii_strtod(text, NULL) != x && ++precision <= 17);
    /* "-d.ddde-XX": the parts. */
    const char *digits = text + (*text == '-');
    int exponent = atoi(strchr(text, 'e') + 1);
    if (*text == '-')
        g_string_append_c(out, '-');
    g_autoptr(GString) all = g_string_new(NULL);
    for (const char *p = digits; *p != 'e'; p++) {
        if (*p != '.')
            g_string_append_c(all, *p);
    }
    while (all->len > 1 && all->str[all->len - 1] == '0')
        g_string_truncate(all, all->len - 1);
    if (exponent < -4 || exponent >= 16) {
        g_string_append_c(out, all->str[0]);
        if (all->len > 1)
            g_string_append_printf(out, ".%s", all->str + 1);
        g_string_append_printf(out, "e%c%02d", exponent < 0 ? '-' : '+', abs(exponent));
        return;
    }
    if (exponent < 0) {
        g_string_append(out, "0.");
        for (int i = -1; i > exponent; i--)
            g_string_append_c(out, '0');
        g_string_append(out, all->str);
        return;
    }
    while ((int)all->len <= exponent)
        g_string_append_c(all, '0');
    g_string_append_len(out, all->str, exponent + 1);
    g_string_append_printf(out, ".%s", (int)all->len > exponent + 1 ? all->str + exponent + 1 : "0");
}

/* The number that ends at the reader's place: an integer keeps its digits, however many. */
static void write_number(GString *out, const qe_json_reader *reader, bool is_integer)
{
    size_t begin = reader->pos;
    while (
        begin > 0 && (g_ascii_isdigit(reader->data[begin - 1]) || strchr("+-.eE", reader->data[begin - 1])))
        begin--;
    if (!is_integer)
        write_float(out, reader->number);
    else if (reader->pos - begin == 2 && memcmp(reader->data + begin, "-0", 2) == 0)
        g_string_append_c(out, '0');
    else
        g_string_append_len(out, reader->data + begin, (gssize)(reader->pos - begin));
}

/* Writes the next value; FALSE with @error. *@end: there was none, the array or object that was open has ended. */
static bool write_token(GString *out, qe_json_reader *reader, qe_json_token token, GError **error)
{
    switch (token) {
    case QE_JSON_OBJECT:
        g_string_append_c(out, '{');
        break;
    case QE_JSON_OBJECT_END:
        g_string_append_c(out, '}');
        break;
    case QE_JSON_ARRAY:
        g_string_append_c(out, '[');
        break;
    case QE_JSON_ARRAY_END:
        g_string_append_c(out, ']');
        break;
    case QE_JSON_KEY:
        qe_json_write_string(out, reader->text->str);
        g_string_append(out, ": ");
        break;
    case QE_JSON_STRING:
        qe_json_write_string(out, reader->text->str);
        break;
    case QE_JSON_INTEGER:
        write_number(out, reader, true);
        break;
    case QE_JSON_NUMBER:
        write_number(out, reader, reader->big_integer);
        break;
    case QE_JSON_TRUE:
        g_string_append(out, "true");
        break;
    case QE_JSON_FALSE:
        g_string_append(out, "false");
        break;
    case QE_JSON_NULL:
        g_string_append(out, "null");
        break;
    case QE_JSON_END:
    case QE_JSON_ERROR:
        return false;
    }
    return true;
}

/* Writes the value that begins with @token, whole. */
static bool write_value(GString *out, qe_json_reader *reader, qe_json_token token, GError **error)
{
    uint32_t depth = reader->depth - (token == QE_JSON_OBJECT || token == QE_JSON_ARRAY);
    bool first = true; /* nothing stands in the open array or object yet, or a key's value comes */

    for (;;) {
        bool ends = token == QE_JSON_OBJECT_END || token == QE_JSON_ARRAY_END;
        if (!first && !ends)
            g_string_append(out, ", ");
        if (!write_token(out, reader, token, error))
            return false;
        first = token == QE_JSON_OBJECT || token == QE_JSON_ARRAY || token == QE_JSON_KEY;
        if (reader->depth == depth && token != QE_JSON_KEY)
            return true;
        token = qe_json_reader_next(reader, error);
    }
}

/* @json behind its member's name in an object, which is what qe_json_parse() takes: it refuses what is there twice. */
static char *wrap(const char *json, gsize n, gsize *n_out)
{
    g_autoptr(GString) text = g_string_new("{\"tools\":");
    g_string_append_len(text, json, (gssize)n);
    g_string_append_c(text, '}');
    *n_out = text->len;
    return g_string_free(g_steal_pointer(&text), FALSE);
}

/* The values of @json, a list (@is_list) or any value, into @out. */
static bool spell(const char *label, const char *json, gsize n, bool is_list, GPtrArray *out, GError **error)
{
    gsize n_text;
    g_autofree char *text = wrap(json, n, &n_text);
    g_autoptr(JsonObject) object = qe_json_parse(label, text, n_text, QE_JSON_BIG_INTEGERS, error);
    if (!object)
        return false;
    JsonNode *node = json_object_get_member(object, "tools");
    if (json_object_get_size(object) != 1 || !node || (is_list && !JSON_NODE_HOLDS_ARRAY(node))) {
        g_set_error(
            error, QE_ERROR, QE_ERROR_FORMAT, "%s must be %s", label, is_list ? "a list" : "one value");
        return false;
    }
    qe_json_reader reader;
    if (!qe_json_reader_init(&reader, label, text, n_text, error))
        return false;
    bool ok = true;
    for (guint i = 0; i < (is_list ? 3u : 2u); i++) /* "{", the name, "[" */
        qe_json_reader_next(&reader, NULL);
    for (;;) {
        qe_json_token token = qe_json_reader_next(&reader, error);
        if (token == QE_JSON_ARRAY_END || token == QE_JSON_OBJECT_END)
            break;
        g_autoptr(GString) line = g_string_new(NULL);
        ok = write_value(line, &reader, token, error);
        if (!ok)
            break;
        g_ptr_array_add(out, g_string_free(g_steal_pointer(&line), FALSE));
        if (!is_list)
            break;
    }
    qe_json_reader_clear(&reader);
    return ok;
}

static bool check_size(const char *label, gsize n, GError **error)
{
    if (n <= QE_SCHEMA_BYTES_MAX)
        return true;
    g_set_error(error, QE_ERROR, QE_ERROR_INVALID, "%s: expected at most %u bytes, found %" G_GSIZE_FORMAT,
        label, QE_SCHEMA_BYTES_MAX, n);
    return false;
}

char **qe_tools_spell(const char *tools, gsize n_bytes, GError **error)
{
    g_autoptr(GPtrArray) out = g_ptr_array_new_with_free_func(g_free);
    if (!check_size("tools", n_bytes, error) || !spell("tools", tools, n_bytes, true, out, error))
        return NULL;
    g_ptr_array_add(out, NULL);
    return (char **)g_ptr_array_free(g_steal_pointer(&out), FALSE);
}

char *qe_json_spell(const char *json, gssize n_bytes, GError **error)
{
    gsize n = n_bytes < 0 ? strlen(json) : (gsize)n_bytes;
    g_autoptr(GPtrArray) out = g_ptr_array_new();
    if (!check_size("JSON", n, error) || !spell("JSON", json, n, false, out, error))
        return NULL;
    return out->pdata[0];
}
