/* test-engine-constraint.c: constraints: what schemas accept and refuse, masks against a byte-by-byte reference, random
 * texts and replies of the shipped model, which all have to be valid by a validator of the test's own. */
#include <json-glib/json-glib.h>
#include <string.h>
#include "engine/qe-constraint.h"
#include "engine/qe-grammar.h"
#include "engine/qe-guide.h"
#include "engine/qe-json.h"
#include "engine/qe-matcher.h"
#include "engine/qe-schema.h"
#include "tests/engine/engine-test.h"

static qe_vocab *vocab; /* of the shipped model */

static qe_grammar *grammar_of(const char *schema)
{
    GError *error = NULL;
    qe_grammar *grammar = qe_schema_to_grammar(schema, strlen(schema), &error);
    g_assert_no_error(error);
    return grammar;
}

/* ---- A validator ---- */

static JsonNode *find_ref(JsonNode *root, const char *pointer)
{
    g_auto(GStrv) parts = g_strsplit(pointer, "/", -1);
    JsonNode *node = root;
    for (char **p = parts + 1; *p; p++) {
        g_autoptr(GString) name = g_string_new(*p);
        g_string_replace(name, "~1", "/", 0);
        g_string_replace(name, "~0", "~", 0);
        node = json_object_get_member(json_node_get_object(node), name->str);
    }
    return node;
}

static bool is_valid(JsonNode *root, JsonNode *schema, JsonNode *value);

static bool has_type(const char *type, JsonNode *value)
{
    if (strcmp(type, "null") == 0)
        return JSON_NODE_HOLDS_NULL(value);
    if (strcmp(type, "object") == 0)
        return JSON_NODE_HOLDS_OBJECT(value);
    if (strcmp(type, "array") == 0)
        return JSON_NODE_HOLDS_ARRAY(value);
    if (!JSON_NODE_HOLDS_VALUE(value))
        return false;
    GType held = json_node_get_value_type(value);
    if (strcmp(type, "string") == 0)
        return held == G_TYPE_STRING;
    if (strcmp(type, "boolean") == 0)
        return held == G_TYPE_BOOLEAN;
    return held == G_TYPE_INT64 || (held == G_TYPE_DOUBLE && strcmp(type, "number") == 0);
}

static bool has_any_type(JsonNode *types, JsonNode *value)
{
    if (JSON_NODE_HOLDS_VALUE(types))
        return has_type(json_node_get_string(types), value);
    for (guint i = 0; i < json_array_get_length(json_node_get_array(types)); i++) {
        if (has_type(json_array_get_string_element(json_node_get_array(types), i), value))
            return true;
    }
    return false;
}

static bool is_valid_object(JsonNode *root, JsonObject *s, JsonObject *object)
{
    JsonNode *properties = json_object_get_member(s, "properties");
    JsonNode *rest = json_object_get_member(s, "additionalProperties");
    JsonNode *required = json_object_get_member(s, "required");
    for (guint i = 0; required && i < json_array_get_length(json_node_get_array(required)); i++) {
        if (!json_object_has_member(object, json_array_get_string_element(json_node_get_array(required), i)))
            return false;
    }
    JsonObjectIter iter;
    const char *name;
    JsonNode *value;
    json_object_iter_init(&iter, object);
    while (json_object_iter_next(&iter, &name, &value)) {
        JsonNode *own = properties ? json_object_get_member(json_node_get_object(properties), name) : NULL;
        if (own ? !is_valid(root, own, value) : rest && !is_valid(root, rest, value))
            return false;
    }
    return true;
}

static bool is_valid_array(JsonNode *root, JsonObject *s, JsonArray *array)
{
    guint n = json_array_get_length(array), n_prefix = 0;
    JsonNode *prefix = json_object_get_member(s, "prefixItems"), *items = json_object_get_member(s, "items");
    if (json_object_has_member(s, "minItems") && n < (guint)json_object_get_int_member(s, "minItems"))
        return false;
    if (json_object_has_member(s, "maxItems") && n > (guint)json_object_get_int_member(s, "maxItems"))
        return false;
    if (prefix)
        n_prefix = json_array_get_length(json_node_get_array(prefix));
    for (guint i = 0; i < n; i++) {
        JsonNode *own = i < n_prefix ? json_array_get_element(json_node_get_array(prefix), i) : items;
        if (own && !is_valid(root, own, json_array_get_element(array, i)))
            return false;
    }
    return true;
}

static bool is_one_of(JsonNode *values, JsonNode *value)
{
    for (guint i = 0; i < json_array_get_length(json_node_get_array(values)); i++) {
        if (json_node_equal(json_array_get_element(json_node_get_array(values), i), value))
            return true;
    }
    return false;
}

static bool is_valid(JsonNode *root, JsonNode *schema, JsonNode *value)
{
    if (JSON_NODE_HOLDS_VALUE(schema))
        return json_node_get_boolean(schema);
    JsonObject *s = json_node_get_object(schema);
    JsonNode *any = json_object_get_member(s, "anyOf");
    if (json_object_has_member(s, "$ref") &&
        !is_valid(root, find_ref(root, json_object_get_string_member(s, "$ref")), value))
        return false;
    bool found = any == NULL;
    for (guint i = 0; any && i < json_array_get_length(json_node_get_array(any)); i++)
        found = found || is_valid(root, json_array_get_element(json_node_get_array(any), i), value);
    if (!found)
        return false;
    if (json_object_has_member(s, "type") && !has_any_type(json_object_get_member(s, "type"), value))
        return false;
    if (json_object_has_member(s, "enum") && !is_one_of(json_object_get_member(s, "enum"), value))
        return false;
    if (json_object_has_member(s, "const") && !json_node_equal(json_object_get_member(s, "const"), value))
        return false;
    if (JSON_NODE_HOLDS_OBJECT(value))
        return is_valid_object(root, s, json_node_get_object(value));
    if (JSON_NODE_HOLDS_ARRAY(value))
        return is_valid_array(root, s, json_node_get_array(value));
    if (has_type("string", value)) {
        glong n = g_utf8_strlen(json_node_get_string(value), -1);
        return (!json_object_has_member(s, "minLength") || n >= json_object_get_int_member(s, "minLength")) &&
               (!json_object_has_member(s, "maxLength") || n <= json_object_get_int_member(s, "maxLength"));
    }
    return true;
}

/* The strict scanner takes it, but for repeated keys; and it is valid. @schema: NULL: any object. */
static void assert_valid(const char *schema, const char *text, gsize n)
{
    g_autoptr(GError) error = NULL;
    qe_json_reader reader;
    g_assert_true(g_utf8_validate(text, (gssize)n, NULL));
    g_assert_true(qe_json_reader_init(&reader, "reply", text, n, &error));
    qe_json_token token, last = QE_JSON_ERROR;
    while ((token = qe_json_reader_next(&reader, &error)) != QE_JSON_END && token != QE_JSON_ERROR)
        last = token;
    qe_json_reader_clear(&reader);
    if (token == QE_JSON_ERROR && strstr(text, "\\u0000")) /* which the scanner refuses and RFC 8259 has */
        return;
    g_assert_no_error(error);
    g_assert_cmpint(token, ==, QE_JSON_END);
    g_assert_cmpint(last, !=, QE_JSON_ERROR);
    g_autoptr(JsonNode) value = json_from_string(text, &error);
    g_assert_no_error(error);
    if (!schema) {
        g_assert_true(JSON_NODE_HOLDS_OBJECT(value));
        return;
    }
    g_autoptr(JsonNode) root = json_from_string(schema, &error);
    g_assert_no_error(error);
    if (!is_valid(root, root, value))
        g_error("not valid by %s: %s", schema, text);
}

/* ---- Schemas and documents ---- */

#define TREE                                                                                                 \
    "{\"type\":\"object\",\"properties\":{\"v\":{\"type\":\"integer\"},\"c\":{\"type\":\"array\",\"items\":" \
    "{\"$ref\":\"#\"}}},\"required\":[\"v\"],\"additionalProperties\":false}"
#define LIST                                                                                                 \
    "{\"$ref\":\"#/$defs/n\",\"$defs\":{\"n\":{\"anyOf\":[{\"type\":\"null\"},{\"type\":\"object\","         \
    "\"properties\":{\"next\":{\"$ref\":\"#/$defs/n\"}},\"required\":[\"next\"]}]}}}"
#define PERSON                                                                                               \
    "{\"type\":\"object\",\"properties\":{\"name\":{\"type\":\"string\",\"minLength\":1,\"maxLength\":8},"   \
    "\"age\":{\"type\":[\"integer\",\"null\"]},\"tags\":{\"type\":\"array\",\"items\":{\"enum\":[\"a\","     \
    "\"bb\",3,null]},\"minItems\":1,\"maxItems\":3}},\"required\":[\"name\",\"age\"],"                       \
    "\"additionalProperties\":{\"type\":\"boolean\"}}"
#define PAIR                                                                                                 \
    "{\"type\":\"array\",\"prefixItems\":[{\"type\":\"string\"},{\"type\":\"number\"}],\"items\":false,"     \
    "\"minItems\":2}"

static const struct {
    const char *schema, *yes[12], *no[14];
} cases[] = {
    {"{}", {"1", "\"a\"", "null", "[1, [2, {\"a\":[]}]]", "{\"a\": {\"b\": null}}", "-0.5e+10"},
        {"", "01", "1.", ".5", "+1", "tru", "{\"a\"}", "[1,]", "{,}", "\"\t\"", "NaN", "1e123", "--1",
            "[1}"}},
    {"{\"type\":\"object\"}", {"{}", "{\"a\":1}", "{ \"a\": 1 }", "{\n  \"a\": [\n    1\n  ]\n}"},
        {"[]", "1", "{\"a\":1,}", "{  \"a\":1}", "{\n\n\"a\":1}", "{\n                  }", " {}", "{} "}},
    {"{\"type\":\"string\"}",
        {"\"\"", "\"\xc3\xa4\"", "\"\xf0\x9f\x98\x80\"", "\"\\u00e4\\n\\/\\\\\"", "\"\\ud7ff\"",
            "\"\xed\x9f\xbf\""},
        {"\"\xc3\"", "\"\xc0\x80\"", "\"\xed\xa0\x80\"", "\"\xf4\x90\x80\x80\"", "\"\xff\"", "\"\\ud800\"",
            "\"\\x\"", "\"\\u12g4\"", "\"\n\"", "\"a", "a", "\"a\"b", "\"\xe0\x80\x80\""}},
    {"{\"type\":\"integer\"}", {"0", "-1", "123456789012345"},
        {"1.0", "1e3", "1234567890123456", "-", "-01"}},
    {PERSON,
        {"{\"name\":\"x\",\"age\":1}", "{\"name\":\"x\", \"age\": null, \"tags\": [\"a\"]}",
            "{\"name\":\"12345678\",\"age\":1,\"tags\":[3,null,\"bb\"],\"more\":true}",
            "{\"name\":\"x\",\"age\":1,\"nam\":true,\"names\":false,\"\":true}",
            "{\"name\":\"\xc3\xa4\xc3\xa4\xc3\xa4\xc3\xa4\xc3\xa4\xc3\xa4\xc3\xa4\xc3\xa4\",\"age\":1}"},
        {"{\"name\":\"\",\"age\":1}", "{\"name\":\"123456789\",\"age\":1}", "{\"age\":1,\"name\":\"x\"}",
            "{\"name\":\"x\"}", "{\"name\":\"x\",\"age\":1,\"tags\":[]}",
            "{\"name\":\"x\",\"age\":1,\"tags\":[3,3,3,3]}", "{\"name\":\"x\",\"age\":1,\"more\":1}",
            "{\"name\":\"x\",\"age\":1,\"age\":true}", "{\"name\":\"x\",\"age\":1,\"tags\":true}",
            "{\"name\":\"x\",\"age\":1,\"t\\u0061gs\":true}", "{\"name\":\"x\",\"age\":\"1\"}",
            "{\"name\":\"x\",\"age\":1,\"tags\":[\"b\"]}"}},
    {TREE, {"{\"v\":1}", "{\"v\":1,\"c\":[]}", "{\"v\":1,\"c\":[{\"v\":2,\"c\":[{\"v\":3}]},{\"v\":4}]}"},
        {"{}", "{\"c\":[]}", "{\"v\":1,\"c\":[1]}", "{\"v\":1,\"d\":1}", "{\"v\":1,\"c\":[{}]}"}},
    {LIST, {"null", "{\"next\":null}", "{\"next\":{\"next\":{\"next\":null}}}"},
        {"{}", "{\"next\":1}", "{\"next\":{}}"}},
    {PAIR, {"[\"a\",1]", "[\"\", -2.5]"}, {"[]", "[\"a\"]", "[1,\"a\"]", "[\"a\",1,2]", "[\"a\",1,]"}},
    {"{\"enum\":[\"a\\\"b\",\"a\",{\"x\":[1,true]},1.5,\"\\u0001\"]}",
        {"\"a\\\"b\"", "\"a\"", "{\"x\": [1, true]}", "1.5", "\"\\u0001\""},
        {"\"b\"", "1", "{}", "\"a\\\"\""}},
    {"{\"const\":10}", {"10"}, {"1", "100", "\"10\""}},
    {"{\"anyOf\":[{\"const\":1},{\"const\":12},{\"type\":\"boolean\"}]}", {"1", "12", "true"},
        {"2", "123", "null"}},
    {"{\"type\":\"array\",\"items\":{\"type\":\"integer\"},\"minItems\":2}", {"[1,2]", "[1, 2, 3, 4, 5]"},
        {"[]", "[1]", "[1,\"a\"]"}},
    {"{\"type\":\"object\",\"properties\":{\"a\":true,\"b\":true,\"c\":true},\"required\":[\"b\"]}",
        {"{\"b\":1}", "{\"a\":1,\"b\":2}", "{\"b\":1,\"c\":[]}", "{\"a\":1,\"b\":2,\"c\":3}"},
        {"{}", "{\"a\":1}", "{\"a\":1,\"c\":1}", "{\"b\":1,\"d\":1}", "{\"c\":1,\"b\":1}"}},
    {"{\"required\":[\"x\"],\"additionalProperties\":{\"type\":\"integer\"}}",
        {"{\"x\":1}", "{\"x\":1,\"y\":2}"}, {"{}", "{\"x\":true}", "{\"y\":1}"}},
    {"{\"allOf\":[{\"type\":\"null\"}],\"title\":\"t\",\"$schema\":\"s\",\"$id\":\"i\"}", {"null"}, {"1"}},
    {"{\"type\":\"integer\",\"minLength\":3,\"items\":{\"type\":\"null\"},\"format\":\"int32\"}", {"1"},
        {"\"abc\""}},
    {"{\"properties\":{\"a/b~c\":{\"type\":\"null\"},\"d\":{\"$ref\":\"#/properties/a~1b~0c\"}}}",
        {"{}", "{\"a/b~c\":null,\"d\":null}"}, {"{\"d\":1}"}},
};

static bool accepts(qe_grammar *grammar, const char *text)
{
    qe_matcher *m = qe_matcher_new(grammar, vocab);
    bool ok = qe_matcher_take_bytes(m, text, strlen(text)) && qe_matcher_is_whole(m);
    qe_matcher_free(m);
    return ok;
}

static void test_documents(void)
{
    for (gsize i = 0; i < G_N_ELEMENTS(cases); i++) {
        g_autoptr(qe_grammar) grammar = grammar_of(cases[i].schema);
        for (gsize k = 0; k < G_N_ELEMENTS(cases[i].yes) && cases[i].yes[k]; k++) {
            if (!accepts(grammar, cases[i].yes[k]))
                g_error("%s refuses %s", cases[i].schema, cases[i].yes[k]);
            assert_valid(cases[i].schema, cases[i].yes[k], strlen(cases[i].yes[k]));
        }
        for (gsize k = 0; k < G_N_ELEMENTS(cases[i].no) && cases[i].no[k]; k++) {
            if (accepts(grammar, cases[i].no[k]))
                g_error("%s accepts %s", cases[i].schema, cases[i].no[k]);
        }
    }
}

static void test_errors(void)
{
    static const struct {
        const char *schema;
        int code;
        const char *words;
    } bad[] = {
        {"", QE_ERROR_FORMAT, "JSON schema"},
        {"[]", QE_ERROR_FORMAT, "JSON schema"},
        {"{\"type\":\"string\",\"pattern\":\"a\"}", QE_ERROR_UNSUPPORTED, "#: the keyword \"pattern\""},
        {"{\"properties\":{\"a\":{\"type\":\"integer\",\"minimum\":1}}}", QE_ERROR_UNSUPPORTED,
            "#/properties/a: the keyword \"minimum\""},
        {"{\"items\":{\"anyOf\":[{},{\"not\":{}}]}}", QE_ERROR_UNSUPPORTED,
            "#/items/anyOf/1: the keyword \"not\""},
        {"{\"uniqueItems\":true}", QE_ERROR_UNSUPPORTED, "uniqueItems"},
        {"{\"enum\":[1],\"properties\":{}}", QE_ERROR_UNSUPPORTED,
            "\"properties\" is not supported beside \"enum\""},
        {"{\"properties\":{\"a\":{\"$id\":\"x\"}}}", QE_ERROR_UNSUPPORTED, "$id"},
        {"{\"allOf\":[{},{}]}", QE_ERROR_UNSUPPORTED, "allOf"},
        {"{\"$ref\":\"http://x/y\"}", QE_ERROR_UNSUPPORTED, "$ref"},
        {"{\"$ref\":\"#/nowhere\"}", QE_ERROR_FORMAT, "#/nowhere"},
        {"{\"$ref\":\"#\"}", QE_ERROR_INVALID, "itself"},
        {"{\"anyOf\":[{\"type\":\"null\"},{\"$ref\":\"#\"}]}", QE_ERROR_INVALID, "itself"},
        {"{\"type\":\"object\",\"properties\":{\"a\":{\"$ref\":\"#\"}},\"required\":[\"a\"]}",
            QE_ERROR_INVALID, "No finite"},
        {"{\"type\":\"text\"}", QE_ERROR_FORMAT, "\"type\""},
        {"{\"type\":[]}", QE_ERROR_FORMAT, "\"type\""},
        {"{\"enum\":[]}", QE_ERROR_INVALID, "enum"},
        {"{\"enum\":[\"a\"],\"type\":\"null\"}", QE_ERROR_INVALID, "enum"},
        {"{\"minItems\":-1}", QE_ERROR_FORMAT, "minItems"},
        {"{\"minItems\":1.5}", QE_ERROR_FORMAT, "minItems"},
        {"{\"maxLength\":\"3\"}", QE_ERROR_FORMAT, "maxLength"},
        {"{\"minLength\":3,\"maxLength\":2}", QE_ERROR_INVALID, "No finite"},
        {"{\"type\":\"array\",\"minItems\":3,\"maxItems\":2}", QE_ERROR_INVALID, "No finite"},
        {"{\"required\":[\"a\"],\"additionalProperties\":false}", QE_ERROR_INVALID, "No finite"},
        {"{\"required\":[1]}", QE_ERROR_FORMAT, "required"},
        {"{\"properties\":[]}", QE_ERROR_FORMAT, "properties"},
        {"{\"items\":3}", QE_ERROR_FORMAT, "#/items"},
        {"{\"a\":1,\"a\":2}", QE_ERROR_FORMAT, "JSON schema"},
    };
    for (gsize i = 0; i < G_N_ELEMENTS(bad); i++) {
        g_autoptr(GError) error = NULL;
        g_assert_null(qe_schema_to_grammar(bad[i].schema, strlen(bad[i].schema), &error));
        if (!g_error_matches(error, QE_ERROR, bad[i].code) || !strstr(error->message, bad[i].words))
            g_error("%s: %s (%d)", bad[i].schema, error->message, error->code);
    }
}

/* Depth, length and number at their limits. */
static void test_large(void)
{
    g_autoptr(qe_grammar) any = grammar_of("{}");
    for (uint32_t depth = QE_GRAMMAR_DEPTH_MAX; depth <= QE_GRAMMAR_DEPTH_MAX + 1; depth++) {
        g_autoptr(GString) text = g_string_new(NULL);
        for (uint32_t i = 0; i < depth; i++)
            g_string_append_c(text, '[');
        for (uint32_t i = 0; i < depth; i++)
            g_string_append_c(text, ']');
        g_assert_cmpint(accepts(any, text->str), ==, depth <= QE_GRAMMAR_DEPTH_MAX);
    }
    g_autoptr(GString) schema = g_string_new("{\"enum\":[");
    for (uint32_t i = 0; i < 20000; i++)
        g_string_append_printf(schema, "%s\"value %u\"", i ? "," : "", i);
    g_string_append(schema, "]}");
    g_autoptr(qe_grammar) values = grammar_of(schema->str);
    g_assert_true(accepts(values, "\"value 19999\""));
    g_assert_false(accepts(values, "\"value 20000\""));
    /* A chain of references as long as it may be is taken; nesting past the parser's limit is refused. */
    g_string_assign(schema, "{\"$ref\":\"#/$defs/d0\",\"$defs\":{");
    for (uint32_t i = 0; i < 400; i++)
        g_string_append_printf(schema, "\"d%u\":{\"$ref\":\"#/$defs/d%u\"},", i, i + 1);
    g_string_append(schema, "\"d400\":{\"type\":\"null\"}}}");
    g_autoptr(qe_grammar) chain = grammar_of(schema->str);
    g_assert_true(accepts(chain, "null"));
    g_string_truncate(schema, 0);
    for (uint32_t i = 0; i < 200; i++)
        g_string_append(schema, "{\"items\":");
    g_autoptr(GError) error = NULL;
    g_assert_null(qe_schema_to_grammar(schema->str, schema->len, &error));
    g_assert_error(error, QE_ERROR, QE_ERROR_FORMAT);
    /* Many optional members, each a choice at every comma. */
    g_string_assign(schema, "{\"properties\":{\"p\":true");
    for (uint32_t i = 0; i < 500; i++)
        g_string_append_printf(schema, ",\"p%u\":{\"type\":\"null\"}", i);
    g_string_append(schema, "}}");
    g_autoptr(qe_grammar) wide = grammar_of(schema->str);
    g_assert_true(accepts(wide, "{\"p\":1,\"p0\":null,\"p499\":null}"));
    g_assert_false(accepts(wide, "{\"p499\":null,\"p0\":null}"));
}

/* ---- Masks ---- */

static bool is_set(const uint32_t *mask, uint32_t id)
{
    return mask[id / 32] >> id % 32 & 1;
}

/* Every token's bit is what reading its bytes one by one says. */
static void check_mask(qe_matcher *m, const qe_vocab *v, const uint32_t *mask, const GString *text)
{
    for (uint32_t id = 0; id < qe_tokenizer_n_tokens(v->tokenizer); id++) {
        gsize n = 0;
        const char *bytes = qe_tokenizer_token_bytes(v->tokenizer, id, &n);
        bool want = bytes && n && !qe_tokenizer_is_added(v->tokenizer, id) && qe_matcher_allows(m, bytes, n);
        if (is_set(mask, id) != want)
            g_error("behind %s: token %u (%.*s) is %s", text->str, id, (int)n, bytes,
                want ? "missing" : "too much");
    }
}

/* A random allowed token; closing ones more often, so that the text ends. */
static uint32_t pick(const qe_vocab *v, const uint32_t *mask, GRand *random)
{
    uint32_t n = qe_tokenizer_n_tokens(v->tokenizer), found = UINT32_MAX;
    if (g_rand_int_range(random, 0, 3) == 0) {
        for (uint32_t id = 0, seen = 0; id < n; id++) {
            gsize n_bytes = 0;
            const char *bytes =
                is_set(mask, id) ? qe_tokenizer_token_bytes(v->tokenizer, id, &n_bytes) : NULL;
            if (bytes && strchr("\"}]", bytes[n_bytes - 1]) && g_rand_int_range(random, 0, (gint)++seen) == 0)
                found = id;
        }
    }
    for (uint32_t k = g_rand_int_range(random, 0, (gint)n), i = 0; found == UINT32_MAX && i < n; i++) {
        if (is_set(mask, (k + i) % n))
            found = (k + i) % n;
    }
    g_assert_cmpuint(found, !=, UINT32_MAX);
    return found;
}

/* A random text of @schema, token by token. Returns how many masks were compared with the reference. */
static uint32_t walk(const char *schema, qe_grammar *grammar, qe_vocab *v, uint32_t seed, uint32_t every)
{
    uint32_t n_words = (qe_tokenizer_n_tokens(v->tokenizer) + 31) / 32, n_checked = 0;
    g_autofree uint32_t *mask = g_new(uint32_t, n_words);
    g_autoptr(GString) text = g_string_new(NULL);
    GRand *random = g_rand_new_with_seed(seed);
    qe_matcher *m = qe_matcher_new(grammar, v);
    bool whole = false;
    for (uint32_t i = 0; i < 300 && !whole; i++) {
        bool any = qe_matcher_fill(m, mask, n_words);
        g_assert_true(any || qe_matcher_is_whole(m));
        if (every && g_rand_int_range(random, 0, (gint)every) == 0) {
            check_mask(m, v, mask, text);
            n_checked++;
        }
        whole = qe_matcher_is_whole(m) && (!any || g_rand_boolean(random));
        if (!whole) {
            uint32_t id = pick(v, mask, random);
            gsize n = 0;
            const char *bytes = qe_tokenizer_token_bytes(v->tokenizer, id, &n);
            g_assert_true(qe_matcher_take_token(m, id));
            g_string_append_len(text, bytes, (gssize)n);
        }
    }
    if (whole)
        assert_valid(schema, text->str, text->len);
    qe_matcher_free(m);
    g_rand_free(random);
    return n_checked;
}

static void check_vocab(qe_vocab *v, uint32_t n_walks, uint32_t every)
{
    uint32_t n_checked = 0;
    for (gsize i = 0; i < G_N_ELEMENTS(cases); i++) {
        g_autoptr(qe_grammar) grammar = grammar_of(cases[i].schema);
        for (uint32_t seed = 0; seed < n_walks; seed++)
            n_checked += walk(cases[i].schema, grammar, v, seed + 1000 * (uint32_t)i, every);
    }
    g_test_message("%u masks compared", n_checked);
    g_assert_cmpuint(n_checked, >, G_N_ELEMENTS(cases));
}

static void test_masks(void)
{
    check_vocab(vocab, 30, 20);
}

static void test_qwen_masks(void)
{
    const char *dir = g_getenv("QUIRE_TEST_QWEN_TOKENIZER");
    if (!dir) {
        g_test_skip("QUIRE_TEST_QWEN_TOKENIZER is not set");
        return;
    }
    g_autoptr(GError) error = NULL;
    qe_tokenizer *tokenizer = qe_tokenizer_new(dir, &error);
    g_assert_no_error(error);
    qe_vocab *v = qe_vocab_new(tokenizer);
    check_vocab(v, 4, 8);
    qe_vocab_unref(v);
    qe_tokenizer_unref(tokenizer);
}

/* Tokens that reach over the end of a string, a value or an object are in the masks that they belong to. */
static void test_boundaries(void)
{
    static const struct {
        const char *schema, *before, *token;
        bool allowed;
    } spans[] = {
        {"{\"type\":\"array\",\"items\":{\"type\":\"object\"}}", "[{\"a\": \"b", "\"},", true},
        {"{\"type\":\"array\",\"items\":{\"type\":\"object\"},\"maxItems\":1}", "[{\"a\": \"b", "\"},",
            false},
        {"{\"type\":\"object\"}", "{\"a", "\":", true},
        {"{\"type\":\"array\",\"items\":{\"type\":\"string\"}}", "[\"a", "\":", false},
        {"{\"type\":\"string\",\"minLength\":2}", "\"a", "\"", false},
        {"{\"type\":\"string\",\"maxLength\":3}", "\"ab", " the", false},
        {"{\"type\":\"string\",\"maxLength\":6}", "\"ab", " the", true},
    };
    for (gsize i = 0; i < G_N_ELEMENTS(spans); i++) {
        g_autoptr(qe_grammar) grammar = grammar_of(spans[i].schema);
        qe_matcher *m = qe_matcher_new(grammar, vocab);
        g_assert_true(qe_matcher_take_bytes(m, spans[i].before, strlen(spans[i].before)));
        g_assert_cmpint(qe_matcher_allows(m, spans[i].token, strlen(spans[i].token)), ==, spans[i].allowed);
        uint32_t n_words = (qe_tokenizer_n_tokens(vocab->tokenizer) + 31) / 32;
        g_autofree uint32_t *mask = g_new(uint32_t, n_words);
        g_autoptr(GString) before = g_string_new(spans[i].before);
        g_assert_true(qe_matcher_fill(m, mask, n_words));
        check_mask(m, vocab, mask, before);
        qe_matcher_free(m);
    }
}

/* ---- Tool calls ---- */

#define TOOLS                                                                                                \
    "[{\"type\":\"function\",\"function\":{\"name\":\"weather\",\"description\":\"d\",\"parameters\":"       \
    "{\"type\":\"object\",\"properties\":{\"city\":{\"type\":\"string\"}},\"required\":[\"city\"]}}},"       \
    "{\"type\":\"function\",\"function\":{\"name\":\"time\"}}]"

static qe_grammar *tools_of(const char *tools, const char *name, bool parallel, GError **error)
{
    return qe_schema_tools_to_grammar(tools, strlen(tools), name, parallel, error);
}

static void test_tools(void)
{
    static const char weather[] =
        "<tool_call>\n{\"name\": \"weather\", \"arguments\": {\"city\": \"Ulm\"}}\n</tool_call>";
    static const char now[] = "<tool_call>\n{\"name\": \"time\", \"arguments\": {}}\n</tool_call>";
    g_autofree char *both = g_strconcat(weather, "\n", now, NULL);
    uint32_t id;
    bool spelled = !qe_tokenizer_find(vocab->tokenizer, "<tool_call>", &id);
    g_autoptr(qe_grammar) any = tools_of(TOOLS, NULL, false, NULL);
    g_autoptr(qe_grammar) one = tools_of(TOOLS, "time", false, NULL);
    g_autoptr(qe_grammar) many = tools_of(TOOLS, NULL, true, NULL);
    g_assert_true(any && one && many);
    if (spelled) {
        g_assert_true(
            accepts(any, weather) && accepts(any, now) && accepts(many, weather) && accepts(many, both));
        g_assert_true(accepts(one, now));
        g_assert_false(accepts(one, weather) || accepts(any, both));
        g_assert_false(accepts(any, "<tool_call>\n{\"name\": \"weather\", \"arguments\": {}}\n</tool_call>"));
    } else {
        qe_matcher *m = qe_matcher_new(one, vocab);
        g_assert_false(qe_matcher_allows(m, "<", 1));
        g_assert_true(qe_matcher_take_token(m, id));
        g_assert_true(qe_matcher_take_bytes(m, now + 11, strlen(now) - 23));
        g_assert_true(
            qe_tokenizer_find(vocab->tokenizer, "</tool_call>", &id) && qe_matcher_take_token(m, id));
        g_assert_true(qe_matcher_is_whole(m));
        qe_matcher_free(m);
    }
    static const char *const bad[] = {"{}", "[]", "[1]",
        "[{\"type\":\"function\",\"function\":{\"name\":\"a b\"}}]",
        "[{\"type\":\"x\",\"function\":{\"name\":\"a\"}}]", "[]},{\"a\":[",
        "[{\"type\":\"function\",\"function\":{\"name\":\"a\",\"strict\":true,\"parameters\":{\"minimum\":1}}"
        "}]",
        "[{\"type\":\"function\",\"function\":{\"name\":\"a\",\"parameters\":7}}]",
        "[{\"type\":\"function\",\"function\":{\"name\":\"a\",\"parameters\":{\"type\":\"x\"}}}]"};
    for (gsize i = 0; i < G_N_ELEMENTS(bad); i++) {
        g_autoptr(GError) error = NULL;
        g_assert_null(tools_of(bad[i], NULL, false, &error));
        g_assert_nonnull(error);
    }
    g_autoptr(GError) error = NULL;
    g_assert_null(tools_of(TOOLS, "nothing", false, &error));
    g_assert_error(error, QE_ERROR, QE_ERROR_NOT_FOUND);
}

/* JSON of a schema, or calls: one or the other. */
static void test_tools_or_json(void)
{
    static const char schema[] =
        "{\"type\":\"object\",\"properties\":{\"a\":{\"enum\":[1,2]}},\"required\":[\"a\"],"
        "\"additionalProperties\":false}";
    static const char now[] = "<tool_call>\n{\"name\": \"time\", \"arguments\": {}}\n</tool_call>";
    uint32_t id;
    g_autoptr(qe_grammar) either =
        qe_schema_tools_or_json_to_grammar(TOOLS, strlen(TOOLS), false, schema, strlen(schema), NULL);
    g_autoptr(qe_grammar) any =
        qe_schema_tools_or_json_to_grammar(TOOLS, strlen(TOOLS), false, NULL, 0, NULL);
    g_assert_true(either && any);
    g_assert_true(accepts(either, "{\"a\": 1}") && accepts(any, "{\"b\": [1]}"));
    g_assert_false(accepts(either, "{\"a\": 3}") || accepts(either, "") || accepts(any, "[]"));
    if (!qe_tokenizer_find(vocab->tokenizer, "<tool_call>", &id)) {
        g_autofree char *both = g_strconcat("{\"a\": 1}", now, NULL);
        g_assert_true(accepts(either, now) && accepts(any, now));
        g_assert_false(accepts(either, both));
    }
    g_autoptr(GError) error = NULL;
    g_assert_null(
        qe_schema_tools_or_json_to_grammar(TOOLS, strlen(TOOLS), false, "{\"minimum\":1}", 13, &error));
    g_assert_error(error, QE_ERROR, QE_ERROR_UNSUPPORTED);
    g_clear_error(&error);
    g_assert_null(qe_schema_tools_or_json_to_grammar("[]", 2, false, NULL, 0, &error));
    g_assert_error(error, QE_ERROR, QE_ERROR_NOT_FOUND);
}

/* A function that is not strict and whose schema is not known takes any object. */
static void test_tools_not_strict(void)
{
    uint32_t id;
    g_autoptr(qe_grammar) loose =
        tools_of("[{\"type\":\"function\",\"function\":{\"name\":\"a\",\"parameters\":"
                 "{\"type\":\"object\",\"properties\":{\"x\":{\"pattern\":\"b\"}}}}}]",
            NULL, false, NULL);
    g_assert_nonnull(loose);
    if (!qe_tokenizer_find(vocab->tokenizer, "<tool_call>", &id))
        g_assert_true(
            accepts(loose, "<tool_call>\n{\"name\": \"a\", \"arguments\": {\"any\": [1]}}\n</tool_call>"));
}

/* Draws from the guide's masks until it may end; returns the text behind what was given. */
static void draw_call(qe_guide *guide, const qe_vocab *v, const qe_eos_list *eos, uint32_t vocab_size,
    GRand *random, GString *text)
{
    g_autofree uint32_t *mask = g_new0(uint32_t, (vocab_size + 31) / 32);
    for (int i = 0; i < 400; i++) {
        bool bound;
        g_assert_false(qe_guide_is_free(guide));
        qe_guide_fill(guide, mask);
        if (is_set(mask, eos->ids[0])) {
            g_assert_true(qe_guide_accept(guide, eos->ids[0], true, &bound));
            return;
        }
        uint32_t id = pick(v, mask, random);
        gsize n;
        const char *bytes = qe_tokenizer_token_bytes(v->tokenizer, id, &n);
        g_string_append_len(text, bytes, (gssize)n);
        g_assert_true(qe_guide_accept(guide, id, false, &bound));
    }
    g_assert_not_reached();
}

/* A reply is free, its end too, until "<tool_call>" stands there outside a thought. */
static void check_watch(qe_vocab *v, qe_eos_list eos)
{
    static const char tools[] =
        "[{\"type\":\"function\",\"function\":{\"name\":\"f\",\"parameters\":{\"type\":\"object\","
        "\"properties\":{\"x\":{\"enum\":[1,2,3]}},\"required\":[\"x\"]}}}]";
    static const struct {
        const char *before; /* encoded with control tokens */
        bool binds;
    } befores[] = {
        {"<tool_call>", true},
        {"Let me see.\n\n<tool_call>", true},
        {"<think>\nI could <tool_call>\n</think>\n\n<tool_call>", true},
        {"<think>\nI could <tool_call>", false},
        {"a < b, <tool_cal", false},
        {"Nothing to call.", false},
    };
    uint32_t vocab_size = qe_tokenizer_n_tokens(v->tokenizer), n_words = (vocab_size + 31) / 32, call;
    g_autoptr(GRand) random = g_rand_new_with_seed(7);
    g_autoptr(qe_constraint) watch = qe_constraint_new_tool_call_or_text(tools, -1, false, NULL);
    g_autoptr(qe_constraint) none = qe_constraint_new_no_tool_call();
    g_autofree uint32_t *mask = g_new0(uint32_t, n_words);
    bool has_call = qe_tokenizer_find(v->tokenizer, "<tool_call>", &call);
    for (gsize i = 0; i < G_N_ELEMENTS(befores); i++) {
        g_autoptr(GArray) ids = g_array_new(FALSE, FALSE, sizeof(uint32_t));
        qe_guide *guide = qe_guide_new(watch, v, vocab_size, &eos, QE_GUIDE_NO_THINKING);
        bool bound = false;
        g_assert_true(qe_tokenizer_encode(
            v->tokenizer, befores[i].before, strlen(befores[i].before), QE_ENCODE_ADDED_TOKENS, ids, NULL));
        for (guint k = 0; k < ids->len; k++) {
            g_assert_true(!bound && qe_guide_is_free(guide));
            qe_guide_fill(guide, mask);
            g_assert_true(is_set(mask, g_array_index(ids, uint32_t, k)) && is_set(mask, eos.ids[0]));
            g_assert_true(qe_guide_accept(guide, g_array_index(ids, uint32_t, k), false, &bound));
        }
        g_assert_cmpint(bound, ==, befores[i].binds);
        if (bound) {
            g_autoptr(GString) text = g_string_new(NULL);
            draw_call(guide, v, &eos, vocab_size, random, text);
            g_assert_true(g_regex_match_simple(
                "^\n{\"name\": \"f\", \"arguments\": {\\s*\"x\":\\s*[123]\\s*}}\n</tool_call>$", text->str, 0,
                0));
        } else {
            g_assert_true(qe_guide_accept(guide, eos.ids[0], true, &bound));
        }
        qe_guide_free(guide);
    }
    qe_guide *guide = qe_guide_new(none, v, vocab_size, &eos, QE_GUIDE_NO_THINKING);
    qe_guide_fill(guide, mask);
    g_assert_true(is_set(mask, eos.ids[0]) && is_set(mask, 5) && qe_guide_is_free(guide));
    g_assert_false(has_call && is_set(mask, call));
    qe_guide_free(guide);
}

static void test_watch(void)
{
    const char *dir = g_getenv("QUIRE_TEST_QWEN_TOKENIZER");
    check_watch(vocab, (qe_eos_list){.n = 1, .ids = {6141}});
    if (!dir) {
        g_test_message("QUIRE_TEST_QWEN_TOKENIZER is not set: only the vocabulary that spells the tag");
        return;
    }
    g_autoptr(qe_tokenizer) tokenizer = qe_tokenizer_new(dir, NULL);
    qe_vocab *qwen = qe_vocab_new(tokenizer);
    check_watch(qwen, (qe_eos_list){.n = 1, .ids = {151645}});
    qe_vocab_unref(qwen);
}

/* ---- Replies ---- */

static void generate_bound(
    qe_engine *engine, const char *schema, uint64_t seed, uint32_t max_tokens, et_result *result)
{
    qe_session_id session = et_open(engine);
    qe_message message;
    qe_generate_params params = et_user(session, "Tell me about a city.", &message);
    g_autoptr(GError) error = NULL;
    qe_constraint *constraint =
        schema ? qe_constraint_new_json_schema(schema, -1, &error) : qe_constraint_new_json_object();
    g_assert_no_error(error);
    params.constraint = constraint;
    params.sampling.temperature = 1.5;
    params.sampling.seed = seed;
    params.sampling.has_seed = true;
    params.max_tokens = max_tokens;
    et_generate(engine, &params, result);
    qe_constraint_unref(constraint);
    qe_engine_close_session(engine, session);
}

static void test_replies(void)
{
    static const char *const schemas[] = {NULL, PERSON, TREE, LIST, PAIR};
    g_autoptr(qe_engine) engine = et_engine_new(NULL);
    uint32_t n_whole = 0, n_cut = 0;
    for (uint64_t seed = 0; seed < 60; seed++) {
        const char *schema = schemas[seed % G_N_ELEMENTS(schemas)];
        g_auto(et_result) result = {0};
        generate_bound(engine, schema, seed, 150, &result);
        g_assert_no_error(result.error);
        if (result.finish == QE_FINISH_STOP) {
            assert_valid(schema, result.text->str, result.text->len);
            n_whole++;
        } else {
            /* The beginning of a text: whole characters of it, since a reply may be cut inside one. */
            g_autoptr(qe_grammar) grammar = grammar_of(schema ? schema : "{\"type\":\"object\"}");
            qe_matcher *m = qe_matcher_new(grammar, vocab);
            gsize n = result.text->len;
            while (n >= 3 && memcmp(result.text->str + n - 3, "\xef\xbf\xbd", 3) == 0)
                n -= 3;
            g_assert_cmpint(result.finish, ==, QE_FINISH_LENGTH);
            g_assert_true(qe_matcher_take_bytes(m, result.text->str, n));
            qe_matcher_free(m);
            n_cut++;
        }
    }
    g_test_message("%u whole, %u cut", n_whole, n_cut);
    g_assert_cmpuint(n_whole, >, 20);
}

/* A constrained reply beside free ones: both are what they are alone. */
static void test_beside_others(void)
{
    g_autoptr(qe_engine) engine = et_engine_new(NULL);
    g_auto(et_result) alone = {0}, bound_alone = {0}, bound = {0};
    et_ask(engine, et_open(engine), "Tell me a story.", 60, &alone);
    generate_bound(engine, PERSON, 5, 100, &bound_alone);
    qe_request *requests[4];
    qe_message messages[4];
    for (int i = 0; i < 4; i++) {
        qe_generate_params params = et_user(et_open(engine), "Tell me a story.", &messages[i]);
        params.max_tokens = 60;
        requests[i] = qe_engine_generate(engine, &params, NULL);
    }
    generate_bound(engine, PERSON, 5, 100, &bound);
    for (int i = 0; i < 4; i++) {
        g_auto(et_result) beside = {0};
        et_finish(requests[i], &beside);
        et_assert_same(&alone, &beside);
    }
    et_assert_same(&bound_alone, &bound);
}

int main(int argc, char **argv)
{
    g_test_init(&argc, &argv, NULL);
    g_autoptr(GError) error = NULL;
    qe_tokenizer *tokenizer = qe_tokenizer_new(et_model_dir(), &error);
    g_assert_no_error(error);
    vocab = qe_vocab_new(tokenizer);
    qe_tokenizer_unref(tokenizer);
    g_test_add_func("/engine/constraint/documents", test_documents);
    g_test_add_func("/engine/constraint/errors", test_errors);
    g_test_add_func("/engine/constraint/large", test_large);
    g_test_add_func("/engine/constraint/boundaries", test_boundaries);
    g_test_add_func("/engine/constraint/masks", test_masks);
    g_test_add_func("/engine/constraint/qwen-masks", test_qwen_masks);
    g_test_add_func("/engine/constraint/tools", test_tools);
    g_test_add_func("/engine/constraint/tools-or-json", test_tools_or_json);
    g_test_add_func("/engine/constraint/tools-not-strict", test_tools_not_strict);
    g_test_add_func("/engine/constraint/watch", test_watch);
    g_test_add_func("/engine/constraint/replies", test_replies);
    g_test_add_func("/engine/constraint/beside-others", test_beside_others);
    int status = g_test_run();
    qe_vocab_unref(vocab);
    return status;
}
