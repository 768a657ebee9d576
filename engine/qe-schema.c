/* qe-schema.c: JSON Schema to a grammar. See qe-schema.h for what is known.
 *
 * A schema is compiled by its JSON nesting; a $ref names a forward node and is put on a list, so that references, however
 * long their chains, take no stack. */
#include "engine/qe-schema.h"
#include <string.h>
#include "engine/qe-json.h"
#include "engine/qe-limits.h"

typedef struct {
    qe_grammar *grammar;
    JsonNode *root;
    const char *label;   /* how messages call the document */
    GHashTable *targets; /* JSON pointer -> forward node + 1 */
    GPtrArray *todo;     /* char *: pointers that are not compiled yet */
    GString *pointer;    /* of the schema that is compiled */
} compiler;

static uint32_t compile(compiler *c, JsonNode *node, GError **error);

/* ---- Messages ---- */

static uint32_t refuse(compiler *c, const char *keyword, GError **error)
{
    g_set_error(error, QE_ERROR, QE_ERROR_UNSUPPORTED, "%s: %s: the keyword \"%s\" is not supported here",
        c->label, c->pointer->str, keyword);
    return QE_GRAMMAR_NONE;
}

static uint32_t wrong(compiler *c, const char *keyword, const char *expected, GError **error)
{
    g_set_error(error, QE_ERROR, QE_ERROR_FORMAT, "%s: %s: \"%s\" must be %s", c->label, c->pointer->str,
        keyword, expected);
    return QE_GRAMMAR_NONE;
}

/* Goes to a member of the schema at the pointer; returns where to come back to. */
static gsize enter(compiler *c, const char *name)
{
    gsize before = c->pointer->len;
    g_string_append_c(c->pointer, '/');
    for (const char *p = name; *p; p++) {
        if (*p == '~')
            g_string_append(c->pointer, "~0");
        else if (*p == '/')
            g_string_append(c->pointer, "~1");
        else
            g_string_append_c(c->pointer, *p);
    }
    return before;
}

static void leave(compiler *c, gsize before)
{
    g_string_truncate(c->pointer, before);
}

static uint32_t compile_at(compiler *c, JsonNode *node, const char *name, GError **error)
{
    gsize before = enter(c, name);
    uint32_t result = compile(c, node, error);
    leave(c, before);
    return result;
}

static uint32_t compile_item(compiler *c, JsonNode *node, const char *name, guint i, GError **error)
{
    g_autofree char *index = g_strdup_printf("%u", i);
    gsize before = enter(c, name);
    uint32_t result = compile_at(c, node, index, error);
    leave(c, before);
    return result;
}

/* ---- Literals ---- */

static void write_value(GString *out, JsonNode *node);

static void write_object(GString *out, JsonObject *object)
{
    JsonObjectIter iter;
    const char *name;
    JsonNode *value;
    bool first = true;
    g_string_append_c(out, '{');
    json_object_iter_init_ordered(&iter, object);
    while (json_object_iter_next_ordered(&iter, &name, &value)) {
        g_string_append(out, first ? "" : ", ");
        first = false;
        qe_json_write_string(out, name);
        g_string_append(out, ": ");
        write_value(out, value);
    }
    g_string_append_c(out, '}');
}

static void write_value(GString *out, JsonNode *node)
{
    char number[G_ASCII_DTOSTR_BUF_SIZE];
    switch (json_node_get_node_type(node)) {
    case JSON_NODE_NULL:
        g_string_append(out, "null");
        break;
    case JSON_NODE_OBJECT:
        write_object(out, json_node_get_object(node));
        break;
    case JSON_NODE_ARRAY: {
        JsonArray *array = json_node_get_array(node);
        g_string_append_c(out, '[');
        for (guint i = 0; i < json_array_get_length(array); i++) {
            g_string_append(out, i ? ", " : "");
            write_value(out, json_array_get_element(array, i));
        }
        g_string_append_c(out, ']');
        break;
    }
    case JSON_NODE_VALUE:
        if (json_node_get_value_type(node) == G_TYPE_STRING)
            qe_json_write_string(out, json_node_get_string(node));
        else if (json_node_get_value_type(node) == G_TYPE_BOOLEAN)
            g_string_append(out, json_node_get_boolean(node) ? "true" : "false");
        else if (json_node_get_value_type(node) == G_TYPE_INT64)
            g_string_append_printf(out, "%" G_GINT64_FORMAT, json_node_get_int(node));
        else
            g_string_append(out, g_ascii_dtostr(number, sizeof number, json_node_get_double(node)));
        break;
    }
}

/* ---- Types ---- */

enum {
    T_NULL = 1,
    T_BOOLEAN = 2,
    T_OBJECT = 4,
    T_ARRAY = 8,
    T_NUMBER = 16,
    T_INTEGER = 32,
    T_STRING = 64,
    T_ALL = 127
};
static const struct {
    const char *name;
    unsigned type;
} type_names[] = {{"null", T_NULL}, {"boolean", T_BOOLEAN}, {"object", T_OBJECT}, {"array", T_ARRAY},
    {"number", T_NUMBER}, {"integer", T_INTEGER}, {"string", T_STRING}};

static unsigned type_of_name(JsonNode *node)
{
    if (json_node_get_value_type(node) == G_TYPE_STRING) {
        for (gsize i = 0; i < G_N_ELEMENTS(type_names); i++) {
            if (strcmp(json_node_get_string(node), type_names[i].name) == 0)
                return type_names[i].type;
        }
    }
    return 0;
}

/* The types of `type`; 0 with @error set. */
static unsigned read_types(compiler *c, JsonNode *node, GError **error)
{
    unsigned types = 0;
    if (JSON_NODE_HOLDS_VALUE(node)) {
        types = type_of_name(node);
    } else if (JSON_NODE_HOLDS_ARRAY(node)) {
        JsonArray *array = json_node_get_array(node);
        for (guint i = 0; i < json_array_get_length(array); i++) {
            JsonNode *element = json_array_get_element(array, i);
            unsigned type = JSON_NODE_HOLDS_VALUE(element) ? type_of_name(element) : 0;
            if (type == 0) {
                types = 0;
                break;
            }
            types |= type;
        }
    }
    if (types == 0)
        wrong(c, "type", "a type's name or a list of some", error);
    return types;
}

static unsigned type_of_value(JsonNode *node)
{
    switch (json_node_get_node_type(node)) {
    case JSON_NODE_NULL:
        return T_NULL;
    case JSON_NODE_OBJECT:
        return T_OBJECT;
    case JSON_NODE_ARRAY:
        return T_ARRAY;
    case JSON_NODE_VALUE:
        break;
    }
    GType type = json_node_get_value_type(node);
    if (type == G_TYPE_STRING)
        return T_STRING;
    if (type == G_TYPE_BOOLEAN)
        return T_BOOLEAN;
    if (type == G_TYPE_INT64)
        return T_INTEGER | T_NUMBER;
    double x = json_node_get_double(node);
    return x == (double)(gint64)CLAMP(x, -9e18, 9e18) ? T_INTEGER | T_NUMBER : T_NUMBER;
}

/* ---- Keywords ---- */

static const char *const annotations[] = {"title", "description", "default", "examples", "deprecated",
    "readOnly", "writeOnly", "format", "contentEncoding", "contentMediaType", "$schema", "$comment", "$defs",
    "definitions"};
static const struct {
    const char *name;
    unsigned type;
} keywords[] = {{"properties", T_OBJECT}, {"required", T_OBJECT}, {"additionalProperties", T_OBJECT},
    {"items", T_ARRAY}, {"prefixItems", T_ARRAY}, {"minItems", T_ARRAY}, {"maxItems", T_ARRAY},
    {"uniqueItems", T_ARRAY}, {"minLength", T_STRING}, {"maxLength", T_STRING}, {"type", 0}};

static bool is_annotation(const compiler *c, const char *name)
{
    for (gsize i = 0; i < G_N_ELEMENTS(annotations); i++) {
        if (strcmp(name, annotations[i]) == 0)
            return true;
    }
    return strcmp(name, "$id") == 0 && strcmp(c->pointer->str, "#") == 0;
}

/* Beside @keyword stands nothing but annotations, and `type` when @type_too. */
static bool check_alone(compiler *c, JsonObject *schema, const char *keyword, bool type_too, GError **error)
{
    JsonObjectIter iter;
    const char *name;
    json_object_iter_init_ordered(&iter, schema);
    while (json_object_iter_next_ordered(&iter, &name, NULL)) {
        if (strcmp(name, keyword) == 0 || is_annotation(c, name) || (type_too && strcmp(name, "type") == 0))
            continue;
        g_set_error(error, QE_ERROR, QE_ERROR_UNSUPPORTED,
            "%s: %s: the keyword \"%s\" is not supported beside \"%s\"", c->label, c->pointer->str, name,
            keyword);
        return false;
    }
    return true;
}

/* All keywords are known; *@hints: the types that they are about. */
static bool check_keywords(compiler *c, JsonObject *schema, unsigned *hints, GError **error)
{
    JsonObjectIter iter;
    const char *name;
    json_object_iter_init_ordered(&iter, schema);
    *hints = 0;
    while (json_object_iter_next_ordered(&iter, &name, NULL)) {
        gsize i = 0;
        while (i < G_N_ELEMENTS(keywords) && strcmp(name, keywords[i].name) != 0)
            i++;
        if (i < G_N_ELEMENTS(keywords))
            *hints |= keywords[i].type;
        else if (!is_annotation(c, name))
            return refuse(c, name, error), false;
    }
    return true;
}

/* A bound that is not negative. Absent: *@value stays. */
static bool read_bound(compiler *c, JsonObject *schema, const char *name, uint32_t *value, GError **error)
{
    JsonNode *node = json_object_get_member(schema, name);
    if (!node)
        return true;
    if (!(type_of_value(node) & T_INTEGER) || json_node_get_double(node) < 0 ||
        json_node_get_double(node) > QE_GRAMMAR_COUNT_MAX) {
        g_set_error(error, QE_ERROR, QE_ERROR_FORMAT, "%s: %s: \"%s\" must be an integer from 0 to %u",
            c->label, c->pointer->str, name, QE_GRAMMAR_COUNT_MAX);
        return false;
    }
    *value = (uint32_t)json_node_get_double(node);
    return true;
}

static uint32_t compile_string(compiler *c, JsonObject *schema, GError **error)
{
    uint32_t min = 0, max = QE_GRAMMAR_UNBOUNDED;
    if (!read_bound(c, schema, "minLength", &min, error) || !read_bound(c, schema, "maxLength", &max, error))
        return QE_GRAMMAR_NONE;
    if (min == 0 && max == QE_GRAMMAR_UNBOUNDED)
        return QE_NODE_ANY_STRING;
    return min > max ? qe_grammar_add_choice(c->grammar, NULL, 0)
                     : qe_grammar_add_string(c->grammar, min, max);
}

static uint32_t compile_array(compiler *c, JsonObject *schema, GError **error)
{
    uint32_t min = 0, max = QE_GRAMMAR_UNBOUNDED, rest = QE_NODE_ANY_VALUE;
    if (!read_bound(c, schema, "minItems", &min, error) || !read_bound(c, schema, "maxItems", &max, error))
        return QE_GRAMMAR_NONE;
    JsonNode *unique = json_object_get_member(schema, "uniqueItems");
    if (unique && json_node_get_value_type(unique) != G_TYPE_BOOLEAN)
        return wrong(c, "uniqueItems", "a boolean", error);
    if (unique && json_node_get_boolean(unique))
        return refuse(c, "uniqueItems", error);
    g_autoptr(GArray) prefix = g_array_new(FALSE, FALSE, sizeof(uint32_t));
    JsonNode *items = json_object_get_member(schema, "prefixItems");
    if (items && !JSON_NODE_HOLDS_ARRAY(items))
        return wrong(c, "prefixItems", "a list of schemas", error);
    for (guint i = 0; items && i < json_array_get_length(json_node_get_array(items)); i++) {
        JsonNode *item = json_array_get_element(json_node_get_array(items), i);
        uint32_t node = compile_item(c, item, "prefixItems", i, error);
        if (node == QE_GRAMMAR_NONE)
            return node;
        g_array_append_val(prefix, node);
    }
    items = json_object_get_member(schema, "items");
    if (items && (rest = compile_at(c, items, "items", error)) == QE_GRAMMAR_NONE)
        return rest;
    return qe_grammar_add_array(
        c->grammar, (const uint32_t *)(const void *)prefix->data, prefix->len, rest, min, max);
}

typedef struct {
    GArray *members;  /* qe_member */
    GPtrArray *names; /* char *: escaped */
} members;

static void add_member(compiler *c, members *m, const char *name, uint32_t value, bool required)
{
    g_autoptr(GString) key = g_string_new(NULL);
    qe_json_write_string(key, name);
    g_ptr_array_add(m->names, g_strndup(key->str + 1, key->len - 2));
    g_string_append_c(key, ':');
    qe_member member = {qe_grammar_add_literal(c->grammar, key->str, key->len), value, required};
    g_array_append_val(m->members, member);
}

static bool is_required(JsonArray *required, const char *name)
{
    for (guint i = 0; required && i < json_array_get_length(required); i++) {
        if (strcmp(json_array_get_string_element(required, i), name) == 0)
            return true;
    }
    return false;
}

static bool add_properties(
    compiler *c, members *m, JsonObject *properties, JsonArray *required, GError **error)
{
    JsonObjectIter iter;
    const char *name;
    JsonNode *value;
    json_object_iter_init_ordered(&iter, properties);
    while (json_object_iter_next_ordered(&iter, &name, &value)) {
        gsize before = enter(c, "properties");
        uint32_t node = compile_at(c, value, name, error);
        leave(c, before);
        if (node == QE_GRAMMAR_NONE)
            return false;
        add_member(c, m, name, node, is_required(required, name));
    }
    return true;
}

static bool read_required(compiler *c, JsonObject *schema, JsonArray **out, GError **error)
{
    JsonNode *node = json_object_get_member(schema, "required");
    *out = NULL;
    bool ok = !node || JSON_NODE_HOLDS_ARRAY(node);
    if (node && ok)
        *out = json_node_get_array(node);
    for (guint i = 0; *out && i < json_array_get_length(*out); i++) {
        JsonNode *name = json_array_get_element(*out, i);
        ok = ok && JSON_NODE_HOLDS_VALUE(name) && json_node_get_value_type(name) == G_TYPE_STRING;
    }
    if (!ok)
        wrong(c, "required", "a list of strings", error);
    return ok;
}

static uint32_t make_object(compiler *c, members *m, JsonObject *schema, GError **error)
{
    JsonNode *properties = json_object_get_member(schema, "properties");
    JsonNode *additional = json_object_get_member(schema, "additionalProperties");
    JsonArray *required;
    if (properties && !JSON_NODE_HOLDS_OBJECT(properties))
        return wrong(c, "properties", "an object", error);
    if (!read_required(c, schema, &required, error))
        return QE_GRAMMAR_NONE;
    if (properties && !add_properties(c, m, json_node_get_object(properties), required, error))
        return QE_GRAMMAR_NONE;
    uint32_t rest = QE_NODE_ANY_VALUE;
    bool closed = additional && json_node_get_value_type(additional) == G_TYPE_BOOLEAN &&
                  JSON_NODE_HOLDS_VALUE(additional) && !json_node_get_boolean(additional);
    if (closed)
        rest = qe_grammar_add_choice(c->grammar, NULL, 0);
    else if (additional &&
             (rest = compile_at(c, additional, "additionalProperties", error)) == QE_GRAMMAR_NONE)
        return rest;
    for (guint i = 0; required && i < json_array_get_length(required); i++) {
        const char *name = json_array_get_string_element(required, i);
        g_autoptr(GString) escaped = g_string_new(NULL);
        qe_json_write_escaped(escaped, name);
        if (!g_ptr_array_find_with_equal_func(m->names, escaped->str, g_str_equal, NULL))
            add_member(c, m, name, rest, true);
    }
    if (closed || (!additional && m->members->len > 0))
        return qe_grammar_add_object(c->grammar, (const qe_member *)(const void *)m->members->data,
            m->members->len, QE_GRAMMAR_NONE, QE_GRAMMAR_NONE);
    uint32_t key = m->members->len == 0
                       ? (uint32_t)QE_NODE_ANY_KEY
                       : qe_grammar_add_key(c->grammar, (const char *const *)m->names->pdata, m->names->len);
    return qe_grammar_add_object(
        c->grammar, (const qe_member *)(const void *)m->members->data, m->members->len, rest, key);
}

static uint32_t compile_object(compiler *c, JsonObject *schema, GError **error)
{
    members m = {g_array_new(FALSE, FALSE, sizeof(qe_member)), g_ptr_array_new_with_free_func(g_free)};
    uint32_t node = make_object(c, &m, schema, error);
    g_array_unref(m.members);
    g_ptr_array_unref(m.names);
    return node;
}

static uint32_t compile_enum(
    compiler *c, JsonNode **values, guint n, unsigned types, const char *keyword, GError **error)
{
    g_autoptr(GPtrArray) texts = g_ptr_array_new_with_free_func(g_free);
    for (guint i = 0; i < n; i++) {
        if (!(type_of_value(values[i]) & types))
            continue;
        GString *text = g_string_new(NULL);
        write_value(text, values[i]);
        g_ptr_array_add(texts, g_string_free(text, FALSE));
    }
    if (texts->len == 0) {
        g_set_error(error, QE_ERROR, QE_ERROR_INVALID, "%s: %s: \"%s\" has no value of the type", c->label,
            c->pointer->str, keyword);
        return QE_GRAMMAR_NONE;
    }
    return qe_grammar_add_set(c->grammar, (const char *const *)texts->pdata, texts->len);
}

static uint32_t compile_choice(compiler *c, JsonObject *schema, const char *keyword, GError **error)
{
    JsonNode *node = json_object_get_member(schema, keyword);
    if (!check_alone(c, schema, keyword, false, error))
        return QE_GRAMMAR_NONE;
    if (!JSON_NODE_HOLDS_ARRAY(node) || json_array_get_length(json_node_get_array(node)) == 0)
        return wrong(c, keyword, "a list of schemas", error);
    JsonArray *array = json_node_get_array(node);
    if (strcmp(keyword, "allOf") == 0 && json_array_get_length(array) != 1)
        return refuse(c, keyword, error);
    g_autoptr(GArray) nodes = g_array_new(FALSE, FALSE, sizeof(uint32_t));
    for (guint i = 0; i < json_array_get_length(array); i++) {
        uint32_t child = compile_item(c, json_array_get_element(array, i), keyword, i, error);
        if (child == QE_GRAMMAR_NONE)
            return child;
        g_array_append_val(nodes, child);
    }
    return qe_grammar_add_choice(c->grammar, (const uint32_t *)(const void *)nodes->data, nodes->len);
}

/* ---- References ---- */

static uint32_t compile_ref(compiler *c, JsonObject *schema, GError **error)
{
    JsonNode *node = json_object_get_member(schema, "$ref");
    if (!check_alone(c, schema, "$ref", false, error))
        return QE_GRAMMAR_NONE;
    if (!JSON_NODE_HOLDS_VALUE(node) || json_node_get_value_type(node) != G_TYPE_STRING)
        return wrong(c, "$ref", "a string", error);
    const char *target = json_node_get_string(node);
    if (strcmp(target, "#") != 0 && strncmp(target, "#/", 2) != 0) {
        g_set_error(error, QE_ERROR, QE_ERROR_UNSUPPORTED,
            "%s: %s: \"$ref\" must be \"#\" or begin with \"#/\"; other documents and anchors are not "
            "supported",
            c->label, c->pointer->str);
        return QE_GRAMMAR_NONE;
    }
    void *known = g_hash_table_lookup(c->targets, target);
    if (known)
        return GPOINTER_TO_UINT(known) - 1;
    uint32_t forward = qe_grammar_add_forward(c->grammar);
    g_hash_table_insert(c->targets, g_strdup(target), GUINT_TO_POINTER(forward + 1));
    g_ptr_array_add(c->todo, g_strdup(target));
    return forward;
}

static JsonNode *step_into(JsonNode *node, const char *name)
{
    if (JSON_NODE_HOLDS_OBJECT(node))
        return json_object_get_member(json_node_get_object(node), name);
    if (!JSON_NODE_HOLDS_ARRAY(node))
        return NULL;
    guint64 i;
    JsonArray *array = json_node_get_array(node);
    return g_ascii_string_to_unsigned(name, 10, 0, G_MAXUINT32, &i, NULL) && i < json_array_get_length(array)
               ? json_array_get_element(array, (guint)i)
               : NULL;
}

/* @pointer may be percent-encoded, being the fragment of a URI. */
static JsonNode *resolve(const compiler *c, const char *pointer)
{
    g_autofree char *plain = g_uri_unescape_string(pointer, NULL);
    if (!plain)
        return NULL;
    g_auto(GStrv) parts = g_strsplit(plain, "/", -1);
    JsonNode *node = c->root;
    for (char **part = parts + 1; node && *part; part++) {
        g_autoptr(GString) name = g_string_new(*part);
        g_string_replace(name, "~1", "/", 0);
        g_string_replace(name, "~0", "~", 0);
        node = step_into(node, name->str);
    }
    return node;
}

static bool compile_target(compiler *c, const char *pointer, GError **error)
{
    JsonNode *node = resolve(c, pointer);
    if (!node) {
        g_set_error(
            error, QE_ERROR, QE_ERROR_FORMAT, "%s: \"$ref\": there is nothing at %s", c->label, pointer);
        return false;
    }
    g_string_assign(c->pointer, pointer);
    uint32_t result = compile(c, node, error);
    if (result == QE_GRAMMAR_NONE)
        return false;
    uint32_t forward = GPOINTER_TO_UINT(g_hash_table_lookup(c->targets, pointer)) - 1;
    qe_grammar_set_forward(c->grammar, forward, result);
    return true;
}

/* ---- Schemas ---- */

static uint32_t compile_type(compiler *c, unsigned type, JsonObject *schema, GError **error)
{
    switch (type) {
    case T_NULL:
        return QE_NODE_ANY_NULL;
    case T_BOOLEAN:
        return QE_NODE_ANY_BOOL;
    case T_NUMBER:
        return QE_NODE_ANY_NUMBER;
    case T_INTEGER:
        return QE_NODE_ANY_INTEGER;
    case T_STRING:
        return compile_string(c, schema, error);
    case T_ARRAY:
        return compile_array(c, schema, error);
    default:
        return compile_object(c, schema, error);
    }
}

static uint32_t compile_types(compiler *c, unsigned types, JsonObject *schema, GError **error)
{
    g_autoptr(GArray) nodes = g_array_new(FALSE, FALSE, sizeof(uint32_t));
    if (types & T_NUMBER)
        types &= ~(unsigned)T_INTEGER;
    for (gsize i = 0; i < G_N_ELEMENTS(type_names); i++) {
        if (!(types & type_names[i].type))
            continue;
        uint32_t node = compile_type(c, type_names[i].type, schema, error);
        if (node == QE_GRAMMAR_NONE)
            return node;
        g_array_append_val(nodes, node);
    }
    if (nodes->len == 1)
        return g_array_index(nodes, uint32_t, 0);
    return qe_grammar_add_choice(c->grammar, (const uint32_t *)(const void *)nodes->data, nodes->len);
}

static uint32_t compile_values(compiler *c, JsonObject *schema, const char *keyword, GError **error)
{
    unsigned types = T_ALL;
    JsonNode *type = json_object_get_member(schema, "type");
    JsonNode *value = json_object_get_member(schema, keyword);
    if (!check_alone(c, schema, keyword, true, error) || (type && (types = read_types(c, type, error)) == 0))
        return QE_GRAMMAR_NONE;
    if (strcmp(keyword, "const") == 0)
        return compile_enum(c, &value, 1, types, keyword, error);
    if (!JSON_NODE_HOLDS_ARRAY(value))
        return wrong(c, keyword, "a list", error);
    g_autoptr(GPtrArray) values = g_ptr_array_new();
    for (guint i = 0; i < json_array_get_length(json_node_get_array(value)); i++)
        g_ptr_array_add(values, json_array_get_element(json_node_get_array(value), i));
    return compile_enum(c, (JsonNode **)values->pdata, values->len, types, keyword, error);
}

static uint32_t compile(compiler *c, JsonNode *node, GError **error)
{
    if (c->grammar->nodes->len > QE_SCHEMA_NODES_MAX) {
        g_set_error(error, QE_ERROR, QE_ERROR_INVALID, "%s: the schema has more than %u parts", c->label,
            QE_SCHEMA_NODES_MAX);
        return QE_GRAMMAR_NONE;
    }
    if (JSON_NODE_HOLDS_VALUE(node) && json_node_get_value_type(node) == G_TYPE_BOOLEAN)
        return json_node_get_boolean(node) ? (uint32_t)QE_NODE_ANY_VALUE
                                           : qe_grammar_add_choice(c->grammar, NULL, 0);
    if (!JSON_NODE_HOLDS_OBJECT(node)) {
        g_set_error(error, QE_ERROR, QE_ERROR_FORMAT, "%s: %s must be a schema: an object or a boolean",
            c->label, c->pointer->str);
        return QE_GRAMMAR_NONE;
    }
    JsonObject *schema = json_node_get_object(node);
    if (json_object_has_member(schema, "$ref"))
        return compile_ref(c, schema, error);
    static const char *const choices[] = {"anyOf", "oneOf", "allOf"}, *const values[] = {"const", "enum"};
    for (gsize i = 0; i < G_N_ELEMENTS(choices); i++) {
        if (json_object_has_member(schema, choices[i]))
            return compile_choice(c, schema, choices[i], error);
    }
    for (gsize i = 0; i < G_N_ELEMENTS(values); i++) {
        if (json_object_has_member(schema, values[i]))
            return compile_values(c, schema, values[i], error);
    }
    unsigned hints, types;
    JsonNode *type = json_object_get_member(schema, "type");
    if (!check_keywords(c, schema, &hints, error))
        return QE_GRAMMAR_NONE;
    types = type ? read_types(c, type, error) : hints;
    if (type && types == 0)
        return QE_GRAMMAR_NONE;
    return types ? compile_types(c, types, schema, error) : (uint32_t)QE_NODE_ANY_VALUE;
}

/* A whole schema, with all that it refers to. */
static uint32_t compile_document(qe_grammar *grammar, JsonNode *root, const char *label, GError **error)
{
    compiler c = {
        .grammar = grammar,
        .root = root,
        .label = label,
        .targets = g_hash_table_new_full(g_str_hash, g_str_equal, g_free, NULL),
        .todo = g_ptr_array_new_with_free_func(g_free),
        .pointer = g_string_new("#"),
    };
    uint32_t result = compile(&c, root, error);
    for (guint i = 0; result != QE_GRAMMAR_NONE && i < c.todo->len; i++) {
        if (!compile_target(&c, c.todo->pdata[i], error))
            result = QE_GRAMMAR_NONE;
    }
    g_hash_table_unref(c.targets);
    g_ptr_array_unref(c.todo);
    g_string_free(c.pointer, TRUE);
    return result;
}

static JsonNode *take_object(JsonObject *object)
{
    JsonNode *node = json_node_new(JSON_NODE_OBJECT);
    json_node_take_object(node, object);
    return node;
}

static bool check_size(const char *label, gsize n_bytes, GError **error)
{
    if (n_bytes <= QE_SCHEMA_BYTES_MAX)
        return true;
    g_set_error(error, QE_ERROR, QE_ERROR_INVALID, "%s: expected at most %u bytes, found %" G_GSIZE_FORMAT,
        label, QE_SCHEMA_BYTES_MAX, n_bytes);
    return false;
}

/* JSON that @schema allows, into @grammar. */
static uint32_t add_schema(qe_grammar *grammar, const char *schema, gsize n_bytes, GError **error)
{
    static const char label[] = "JSON schema";
    if (!check_size(label, n_bytes, error))
        return QE_GRAMMAR_NONE;
    JsonObject *object = qe_json_parse(label, schema, n_bytes, QE_JSON_DEFAULT, error);
    if (!object)
        return QE_GRAMMAR_NONE;
    g_autoptr(JsonNode) root = take_object(object);
    return compile_document(grammar, root, label, error);
}

/* @grammar, whose root is @node, or NULL. */
static qe_grammar *finish(qe_grammar *grammar, uint32_t node, GError **error)
{
    return node != QE_GRAMMAR_NONE && qe_grammar_finish(grammar, node, error) ? qe_grammar_ref(grammar)
                                                                              : NULL;
}

qe_grammar *qe_schema_to_grammar(const char *schema, gsize n_bytes, GError **error)
{
    g_autoptr(qe_grammar) grammar = qe_grammar_new();
    return finish(grammar, add_schema(grammar, schema, n_bytes, error), error);
}

/* ---- Tool calls ---- */

/* <tool_call>\n{"name": "NAME", "arguments": ARGUMENTS}\n</tool_call> */
static uint32_t compile_call(
    qe_grammar *grammar, const char *name, JsonNode *parameters, guint i, GError **error)
{
    g_autofree char *label = g_strdup_printf("tools[%u].function.parameters", i);
    uint32_t arguments =
        parameters ? compile_document(grammar, parameters, label, error) : (uint32_t)QE_NODE_ANY_OBJECT;
    if (arguments == QE_GRAMMAR_NONE)
        return arguments;
    g_autoptr(GString) text = g_string_new(NULL);
    qe_json_write_string(text, name);
    g_string_append(text, ", \"arguments\": ");
    uint32_t parts[] = {qe_grammar_add_literal(grammar, text->str, text->len), arguments};
    return qe_grammar_add_sequence(grammar, parts, G_N_ELEMENTS(parts));
}

static bool is_tool_name(const char *name)
{
    gsize n = strlen(name);
    return n > 0 && n <= QE_TOOL_NAME_BYTES_MAX &&
           strspn(name, G_CSET_a_2_z G_CSET_A_2_Z G_CSET_DIGITS "_-.") == n;
}

static bool is_strict(JsonObject *function)
{
    JsonNode *strict = json_object_get_member(function, "strict");
    return strict && JSON_NODE_HOLDS_VALUE(strict) && json_node_get_value_type(strict) == G_TYPE_BOOLEAN &&
           json_node_get_boolean(strict);
}

/* Whether all of a schema is known. It is tried on a grammar of its own, since what fails leaves its parts behind. */
static bool is_known(JsonNode *schema)
{
    g_autoptr(qe_grammar) grammar = qe_grammar_new();
    g_autoptr(GError) error = NULL;
    return compile_document(grammar, schema, "", &error) != QE_GRAMMAR_NONE ||
           !g_error_matches(error, QE_ERROR, QE_ERROR_UNSUPPORTED);
}

/* The calls of one tool into @calls, unless another is wanted. */
static bool compile_tool(
    qe_grammar *grammar, JsonNode *tool, const char *wanted, guint i, GArray *calls, GError **error)
{
    JsonObject *object = JSON_NODE_HOLDS_OBJECT(tool) ? json_node_get_object(tool) : NULL;
    JsonNode *function = object ? json_object_get_member(object, "function") : NULL;
    JsonNode *type = object ? json_object_get_member(object, "type") : NULL;
    if (!function || !JSON_NODE_HOLDS_OBJECT(function) || !type || !JSON_NODE_HOLDS_VALUE(type) ||
        json_node_get_value_type(type) != G_TYPE_STRING ||
        strcmp(json_node_get_string(type), "function") != 0) {
        g_set_error(error, QE_ERROR, QE_ERROR_FORMAT,
            "tools[%u] must be an object with the type \"function\" and a function", i);
        return false;
    }
    JsonNode *name = json_object_get_member(json_node_get_object(function), "name");
    if (!name || !JSON_NODE_HOLDS_VALUE(name) || json_node_get_value_type(name) != G_TYPE_STRING ||
        !is_tool_name(json_node_get_string(name))) {
        g_set_error(error, QE_ERROR, QE_ERROR_FORMAT,
            "tools[%u].function.name must be 1 to %u letters, digits, underscores, dots and dashes", i,
            QE_TOOL_NAME_BYTES_MAX);
        return false;
    }
    if (wanted && strcmp(wanted, json_node_get_string(name)) != 0)
        return true;
    JsonNode *parameters = json_object_get_member(json_node_get_object(function), "parameters");
    if (parameters && JSON_NODE_HOLDS_NULL(parameters))
        parameters = NULL;
    if (parameters && !JSON_NODE_HOLDS_OBJECT(parameters)) {
        g_set_error(error, QE_ERROR, QE_ERROR_FORMAT, "tools[%u].function.parameters must be an object", i);
        return false;
    }
    if (parameters && !is_strict(json_node_get_object(function)) && !is_known(parameters))
        parameters = NULL;
    uint32_t call = compile_call(grammar, json_node_get_string(name), parameters, i, error);
    if (call != QE_GRAMMAR_NONE)
        g_array_append_val(calls, call);
    return call != QE_GRAMMAR_NONE;
}

/* One call, or with @parallel any number of them, a line feed between two. */
static uint32_t wrap_calls(qe_grammar *grammar, const GArray *calls, bool parallel)
{
    static const char begin[] = "\n{\"name\": ", end[] = "}\n";
    uint32_t parts[] = {
        qe_grammar_add_token(grammar, "<tool_call>"),
        qe_grammar_add_literal(grammar, begin, strlen(begin)),
        qe_grammar_add_choice(grammar, (const uint32_t *)(const void *)calls->data, calls->len),
        qe_grammar_add_literal(grammar, end, strlen(end)),
        qe_grammar_add_token(grammar, "</tool_call>"),
    };
    uint32_t call = qe_grammar_add_sequence(grammar, parts, G_N_ELEMENTS(parts));
    if (!parallel)
        return call;
    uint32_t all = qe_grammar_add_forward(grammar);
    uint32_t next[] = {qe_grammar_add_literal(grammar, "\n", 1), all};
    uint32_t more[] = {QE_NODE_NOTHING, qe_grammar_add_sequence(grammar, next, G_N_ELEMENTS(next))};
    uint32_t calls_and_more[] = {call, qe_grammar_add_choice(grammar, more, G_N_ELEMENTS(more))};
    uint32_t whole = qe_grammar_add_sequence(grammar, calls_and_more, G_N_ELEMENTS(calls_and_more));
    qe_grammar_set_forward(grammar, all, whole);
    return whole;
}

/* Calls of @tools, into @grammar. */
static uint32_t add_tools(
    qe_grammar *grammar, const char *tools, gsize n_bytes, const char *name, bool parallel, GError **error)
{
    if (!check_size("tools", n_bytes, error))
        return QE_GRAMMAR_NONE;
    g_autoptr(GString) text = g_string_new("{\"tools\":");
    g_string_append_len(text, tools, (gssize)n_bytes);
    g_string_append_c(text, '}');
    g_autoptr(JsonObject) object = qe_json_parse("tools", text->str, text->len, QE_JSON_DEFAULT, error);
    if (!object)
        return QE_GRAMMAR_NONE;
    JsonNode *node = json_object_get_member(object, "tools");
    if (!node || !JSON_NODE_HOLDS_ARRAY(node) || json_object_get_size(object) != 1) {
        g_set_error(error, QE_ERROR, QE_ERROR_FORMAT, "tools must be a list");
        return QE_GRAMMAR_NONE;
    }
    g_autoptr(GArray) calls = g_array_new(FALSE, FALSE, sizeof(uint32_t));
    JsonArray *array = json_node_get_array(node);
    for (guint i = 0; i < json_array_get_length(array); i++) {
        if (!compile_tool(grammar, json_array_get_element(array, i), name, i, calls, error))
            return QE_GRAMMAR_NONE;
    }
    if (calls->len == 0) {
        g_set_error(error, QE_ERROR, QE_ERROR_NOT_FOUND,
            name ? "There is no tool named %s" : "There are no tools%s", name ? name : "");
        return QE_GRAMMAR_NONE;
    }
    return wrap_calls(grammar, calls, parallel);
}

qe_grammar *qe_schema_tools_to_grammar(
    const char *tools, gsize n_bytes, const char *name, bool parallel, GError **error)
{
    g_autoptr(qe_grammar) grammar = qe_grammar_new();
    return finish(grammar, add_tools(grammar, tools, n_bytes, name, parallel, error), error);
}

qe_grammar *qe_schema_tools_or_json_to_grammar(
    const char *tools, gsize n_tools, bool parallel, const char *schema, gsize n_schema, GError **error)
{
    g_autoptr(qe_grammar) grammar = qe_grammar_new();
    uint32_t json = schema ? add_schema(grammar, schema, n_schema, error) : (uint32_t)QE_NODE_ANY_OBJECT;
    uint32_t calls =
        json != QE_GRAMMAR_NONE ? add_tools(grammar, tools, n_tools, NULL, parallel, error) : QE_GRAMMAR_NONE;
    uint32_t either[] = {json, calls};
    return finish(grammar,
        calls != QE_GRAMMAR_NONE ? qe_grammar_add_choice(grammar, either, G_N_ELEMENTS(either)) : calls,
        error);
}
