/* test-server-units.c: the server's reader of JSON, its requests, errors and Host rule, without a server. */
#include "app/server/server-calls.h"
#include "app/server/server-private.h"

#include <string.h>

static SrvJson *read_ok(const char *json)
{
    g_autoptr(GError) error = NULL;
    SrvJson *value = srv_json_read(json, strlen(json), &error);

    g_assert_no_error(error);
    return value;
}

static void assert_refused(const char *json, gsize n)
{
    g_autoptr(GError) error = NULL;

    g_assert_null(srv_json_read(json, n, &error));
    g_assert_nonnull(error);
    g_assert_true(g_utf8_validate(error->message, -1, NULL));
}

static void test_json_values(void)
{
    g_autoptr(SrvJson) v =
        read_ok(" {\"a\": [1, -0.5, 1e3, true, false, null], \"\\u0062\": \"x\\u0000y\\ud83d\\ude00\"} ");
    const SrvJson *a = srv_json_get(v, "a"), *b = srv_json_get(v, "b"), *item;
    g_autoptr(GString) out = g_string_new(NULL);

    g_assert_cmpuint(a->items->len, ==, 6);
    item = a->items->pdata[0];
    g_assert_true(item->is_integer && item->integer == 1);
    item = a->items->pdata[1];
    g_assert_true(!item->is_integer && item->number == -0.5);
    item = a->items->pdata[2];
    g_assert_true(item->is_integer && item->integer == 1000);
    g_assert_cmpuint(b->n_text, ==, 7);
    g_assert_cmpmem(b->text, b->n_text, "x\0y\xf0\x9f\x98\x80", 7);
    g_assert_null(srv_json_get(v, "c"));
    g_assert_null(srv_json_get(a, "c"));
    srv_json_write(out, v);
    g_assert_cmpstr(
        out->str, ==, "{\"a\":[1,-0.5,1000,true,false,null],\"b\":\"x\\u0000y\xf0\x9f\x98\x80\"}");
}

static void test_json_refused(void)
{
    static const char *const bad[] = {"", "{", "[1,]", "{\"a\":1,}", "{\"a\":1,\"a\":2}", "01", "1.", ".5",
        "1e", "+1", "NaN", "1e999", "\"\\x\"", "\"\\ud800\"", "\"\\udc00\"", "\"\\ud800\\u0041\"", "\"\x01\"",
        "tru", "nul", "'a'", "{a:1}", "[1 2]", "{} {}", "\"", "\"\\", "\"\\u12\"", "{\"\\u0000\":1}"};

    for (guint i = 0; i < G_N_ELEMENTS(bad); i++)
        assert_refused(bad[i], strlen(bad[i]));
    assert_refused("\"\xff\"", 3);
    assert_refused("\"\xc3", 2);
    assert_refused("1\0", 2);
}

static void test_json_bounds(void)
{
    g_autofree char *deep = g_malloc(200001);
    g_autoptr(GString) many = g_string_new("[0");
    g_autoptr(SrvJson) edge = NULL;

    memset(deep, '[', 200000);
    assert_refused(deep, 200000);
    for (guint i = 0; i < SRV_JSON_DEPTH_MAX; i++) {
        deep[i] = '[';
        deep[SRV_JSON_DEPTH_MAX + i] = ']';
    }
    deep[2 * SRV_JSON_DEPTH_MAX] = '\0';
    edge = read_ok(deep);
    memmove(deep + 1, deep, 2 * SRV_JSON_DEPTH_MAX);
    deep[2 * SRV_JSON_DEPTH_MAX + 1] = ']';
    assert_refused(deep, 2 * SRV_JSON_DEPTH_MAX + 2);
    for (guint i = 1; i < SRV_JSON_VALUES_MAX; i++)
        g_string_append(many, ",0");
    g_string_append_c(many, ']');
    assert_refused(many->str, many->len);
}

static void parse(SrvEndpoint endpoint, const char *body, SrvRequest *r, SrvError *error)
{
    gboolean ok = srv_request_parse(endpoint, body, strlen(body), NULL, r, error);

    g_assert_true(ok == (error->status == 0));
}

static void test_request_whole(void)
{
    SrvRequest r;
    SrvError error = {0};
    const qe_message *m;

    parse(SRV_CHAT,
        "{\"messages\":[{\"role\":\"developer\",\"content\":\"S\"},"
        "{\"role\":\"user\",\"content\":[{\"type\":\"text\",\"text\":\"a\"},{\"type\":\"text\",\"text\":"
        "\"b\\u0000\"}]},"
        "{\"role\":\"assistant\",\"content\":null}],"
        "\"temperature\":0.5,\"top_p\":0.25,\"top_k\":7,\"min_p\":0.125,\"seed\":-3,\"stop\":[\"x\",\"y\"],"
        "\"max_completion_tokens\":9,\"n\":3,\"stream\":true,\"stream_options\":{\"include_usage\":true},"
        "\"use_cache\":false,\"session_id\":\"a.b-c\",\"cache_mode\":\"paged\",\"enable_thinking\":false,"
        "\"user\":null}",
        &r, &error);
    g_assert_cmpuint(error.status, ==, 0);
    g_assert_cmpuint(r.messages->len, ==, 3);
    m = &g_array_index(r.messages, qe_message, 0);
    g_assert_true(m->role == QE_ROLE_SYSTEM && m->n_bytes == 1);
    m = &g_array_index(r.messages, qe_message, 1);
    g_assert_cmpmem(m->text, m->n_bytes, "ab\0", 3);
    m = &g_array_index(r.messages, qe_message, 2);
    g_assert_true(m->role == QE_ROLE_ASSISTANT && m->n_bytes == 0);
    g_assert_true(r.sampling.temperature == 0.5 && r.sampling.top_p == 0.25 && r.sampling.top_k == 7);
    g_assert_true(r.sampling.min_p == 0.125 && r.sampling.has_seed && r.sampling.seed == (guint64)-3);
    g_assert_cmpstr(r.stop->pdata[1], ==, "y");
    g_assert_null(r.stop->pdata[2]);
    g_assert_true(r.max_tokens == 9 && r.n == 3 && r.stream && r.include_usage && !r.use_cache);
    g_assert_cmpstr(r.session, ==, "a.b-c");
    g_assert_true(r.has_mode && r.mode == QE_CACHE_PAGED && r.thinking == QE_THINKING_OFF);
    srv_request_clear(&r);
}

/* Every member of every table refuses what is of no type it takes, and says which member it was. */
static void test_request_members(void)
{
    static const char *const no_effect[] = {"user", "metadata", "store", "service_tier", "safety_identifier",
        "prompt_cache_key", "prompt_cache_retention", NULL};

    for (guint e = 0; e < SRV_N_ENDPOINTS; e++) {
        g_autofree const char **names = srv_request_members((SrvEndpoint)e);

        for (guint i = 0; names[i] != NULL; i++) {
            const char *value =
                g_str_equal(names[i], "stop") || g_str_equal(names[i], "prompt") ? "{}" : "\"\\u0001?\"";
            g_autofree char *rest = g_strdup(
                e == SRV_CHAT ? "\"messages\":[{\"role\":\"user\",\"content\":\"x\"}]" : "\"prompt\":\"x\"");
            g_autofree char *body = g_str_equal(names[i], "messages") || g_str_equal(names[i], "prompt")
                                        ? g_strdup_printf("{\"%s\":%s}", names[i], value)
                                        : g_strdup_printf("{%s,\"%s\":%s}", rest, names[i], value);
            SrvRequest r;
            SrvError error = {0};

            parse((SrvEndpoint)e, body, &r, &error);
            if (g_strv_contains(no_effect, names[i]) || g_str_equal(names[i], "model"))
                g_assert_cmpuint(error.status, ==, 0);
            else {
                g_assert_cmpuint(error.status, ==, 400);
                g_assert_cmpstr(error.param, ==, names[i]);
            }
            srv_error_clear(&error);
            srv_request_clear(&r);
        }
    }
}

/* Feeds @text in pieces of @step bytes; gives content and calls as "content|name(arguments)|...". */
static char *calls_of(const char *text, gsize step)
{
    SrvCalls calls;
    gsize n = strlen(text), content = 0;
    GString *out = g_string_new(NULL);

    srv_calls_init(&calls);
    for (gsize at = 0; at < n; at += step) {
        gsize known = MIN(at + step, n);
        srv_calls_feed(&calls, text, known, known == n);
        /* What was certain stays so. */
        g_assert_cmpuint(calls.n_content, >=, content);
        content = calls.n_content;
    }
    g_string_append_len(out, text, (gssize)content);
    for (guint i = 0; i < calls.calls->len; i++) {
        const SrvCall *call = &g_array_index(calls.calls, SrvCall, i);
        g_assert_true(g_str_has_prefix(call->id, "call_"));
        g_string_append_printf(out, "|%s(%.*s)%s", call->name, (int)(call->end - call->begin),
            text + call->begin, call->is_whole ? "" : "...");
    }
    if (srv_calls_are_whole(&calls))
        g_string_append(out, "|whole");
    srv_calls_clear(&calls);
    return g_string_free(out, FALSE);
}

static void test_calls(void)
{
#define CALL(name, arguments)                                                                                \
    "<tool_call>\n{\"name\": \"" name "\", \"arguments\": " arguments "}\n</tool_call>"
    static const struct {
        const char *text, *found;
    } cases[] = {
        {"", ""},
        {"no call\n", "no call\n"},
        {"a < b <tool", "a < b <tool"},
        {CALL("now", "{}"), "|now({})|whole"},
        {"Let me see.\n" CALL("now", "{}"), "Let me see.|now({})|whole"},
        {"Let me see.\n\n" CALL("now", "{}") "\n", "Let me see.\n|now({})|whole"},
        {CALL("a", "{\"x\": \"}</tool_call>\\\"{\", \"y\": [1, {\"z\": null}]}") "\n" CALL("b", "{}"),
            "|a({\"x\": \"}</tool_call>\\\"{\", \"y\": [1, {\"z\": null}]})|b({})|whole"},
        {"<tool_call>{\"name\":\"a\",\"arguments\":{\"b\":1}}</tool_call>", "|a({\"b\":1})|whole"},
        {CALL("a", "\"text\""), "|a(\"text\")|whole"},
        {CALL("a", "12"), "|a(12)|whole"},
        {"x\n<tool_call>\n{\"name\": \"a\", \"arguments\": {\"b\": \"cu", "x|a({\"b\": \"cu)..."},
        {"x\n<tool_call>\n{\"name\": \"a", "x\n<tool_call>\n{\"name\": \"a"},
        {"The tag <tool_call> is text, " CALL("a", "{}"), "The tag <tool_call> is text, |a({})|whole"},
        {"<tool_call>\n{\"nome\": 1}", "<tool_call>\n{\"nome\": 1}"},
    };
    for (gsize i = 0; i < G_N_ELEMENTS(cases); i++)
        for (gsize step = 1; step < 40; step += 1 + step / 4) {
            g_autofree char *found = calls_of(cases[i].text, step);
            g_assert_cmpstr(found, ==, cases[i].found);
        }
}

#define TOOLS                                                                                                \
    "\"tools\":[{\"type\":\"function\",\"function\":{\"name\":\"f\",\"parameters\":{\"type\":\"object\","    \
    "\"minimum\":1.0}}}]"
#define USER "\"messages\":[{\"role\":\"user\",\"content\":\"x\"}]"

static void test_request_tools(void)
{
    SrvError error = {0};
    SrvRequest r;

    parse(SRV_CHAT,
        "{\"messages\":[{\"role\":\"user\",\"content\":\"x\"},{\"role\":\"assistant\",\"content\":null,"
        "\"reasoning_content\":\"why\",\"tool_calls\":[{\"id\":\"1\",\"type\":\"function\",\"function\":{"
        "\"name\":\"f\","
        "\"arguments\":\"{ }\"}},{\"function\":{\"name\":\"g\",\"arguments\":{\"b\":1.0,\"a\":[]}}}]},"
        "{\"role\":\"tool\",\"tool_call_id\":\"1\",\"content\":[{\"type\":\"text\",\"text\":\"y\"}]}]," TOOLS
        "}",
        &r, &error);
    const qe_message *m = &g_array_index(r.messages, qe_message, 1);
    g_assert_true(m->n_calls == 2 && m->n_bytes == 0);
    g_assert_cmpstr(m->reasoning, ==, "why");
    g_assert_cmpstr(m->calls[0].arguments, ==, "{ }");
    g_assert_cmpstr(m->calls[1].arguments, ==, "{\"b\": 1.0, \"a\": []}");
    g_assert_true(m[1].role == QE_ROLE_TOOL && m[1].n_bytes == 1);
    /* The tools are kept in the caller's own spelling. */
    g_assert_nonnull(strstr(r.tools, "\"minimum\":1.0}"));
    g_assert_true(r.constraint != NULL && srv_request_may_call(&r) && r.thinking == QE_THINKING_DEFAULT);
    srv_request_clear(&r);

    parse(SRV_CHAT, "{" USER "," TOOLS ",\"tool_choice\":\"none\"}", &r, &error);
    g_assert_true(r.constraint != NULL && !srv_request_may_call(&r) && r.thinking == QE_THINKING_DEFAULT);
    srv_request_clear(&r);
    parse(SRV_CHAT, "{" USER "," TOOLS ",\"tool_choice\":\"required\"}", &r, &error);
    g_assert_true(r.constraint != NULL && srv_request_may_call(&r) && r.thinking == QE_THINKING_OFF);
    srv_request_clear(&r);

    static const struct {
        const char *body, *param;
    } bad[] = {
        {"{" USER ",\"tool_choice\":\"required\"}", "tool_choice"},
        {"{" USER "," TOOLS ",\"tool_choice\":\"some\"}", "tool_choice"},
        {"{" USER "," TOOLS ",\"tool_choice\":{\"type\":\"function\",\"function\":{\"name\":\"g\"}}}",
            "tool_choice"},
        {"{" USER "," TOOLS ",\"tool_choice\":{\"type\":\"allowed_tools\"}}", "tool_choice"},
        {"{" USER "," TOOLS
         ",\"response_format\":{\"type\":\"json_schema\",\"json_schema\":{\"schema\":{\"minimum\":1}}}}",
            "response_format"},
        {"{" USER ",\"tools\":[{}]}", "tools"},
        {"{" USER ",\"tools\":[{\"type\":\"function\",\"function\":{\"name\":\"f\",\"parameters\":true}}]}",
            "tools"},
        {"{" USER
         ",\"tools\":[{\"type\":\"function\",\"function\":{\"name\":\"f\",\"strict\":true,\"parameters\":"
         "{\"pattern\":\"x\"}}}]}",
            "tools"},
        {"{\"messages\":[{\"role\":\"user\",\"content\":\"x\",\"tool_calls\":[{}]}]}", "messages"},
        {"{\"messages\":[{\"role\":\"assistant\",\"tool_calls\":[{}]}]}", "messages"},
        {"{\"messages\":[{\"role\":\"assistant\",\"tool_calls\":[{\"function\":{\"name\":\"f\"}}]}]}",
            "messages"},
        {"{\"messages\":[{\"role\":\"tool\",\"content\":null}]}", "messages"},
        {"{\"messages\":[{\"role\":\"function\",\"content\":\"x\"}]}", "messages"},
    };
    for (gsize i = 0; i < G_N_ELEMENTS(bad); i++) {
        g_assert_false(srv_request_parse(SRV_CHAT, bad[i].body, strlen(bad[i].body), NULL, &r, &error));
        g_assert_cmpint(error.status, ==, 400);
        g_assert_cmpstr(error.param, ==, bad[i].param);
        srv_error_clear(&error);
        srv_request_clear(&r);
    }
}

static void test_error_shape(void)
{
    SrvError error = {0};
    g_autoptr(GString) out = g_string_new(NULL);
    g_autoptr(GError) file = g_error_new_literal(QE_ERROR, QE_ERROR_FILE, "/models/mine: gone");

    srv_error_set(&error, 404, "c", "p", "a \"b\"");
    srv_error_write(&error, out);
    g_assert_cmpstr(out->str, ==,
        "{\"error\":{\"message\":\"a \\\"b\\\"\",\"type\":\"not_found_error\",\"param\":\"p\","
        "\"code\":\"c\"}}");
    srv_error_clear(&error);
    srv_error_from_engine(&error, file);
    g_assert_null(strchr(error.message, '/'));
    srv_error_clear(&error);
}

static void test_hosts(void)
{
    g_autoptr(QuireServer) server = quire_server_new();
    static const char *const good[] = {
        "localhost", "LocalHost:1", "127.0.0.1", "127.0.0.1:8377", "[::1]", "[::1]:80"};
    static const char *const bad[] = {"", ":80", "evil", "localhost.evil", "127.0.0.1.evil",
        "localhost:", "localhost:x", "[::1", "::1:80", "[::1]x", "localhost:123456", "127.1", "2130706433",
        "localhost\t", "127.0.0.1, localhost"};

    for (guint i = 0; i < G_N_ELEMENTS(good); i++)
        g_assert_true(srv_guard_host_is_ours(server, good[i]));
    for (guint i = 0; i < G_N_ELEMENTS(bad); i++)
        g_assert_false(srv_guard_host_is_ours(server, bad[i]));
    g_assert_false(srv_guard_host_is_ours(server, NULL));
}

static void test_routes(void)
{
    g_autoptr(GBytes) bytes = g_resources_lookup_data(
        "/io/github/quire_chat/Quire/server/openapi.json", G_RESOURCE_LOOKUP_FLAGS_NONE, NULL);
    g_autoptr(GError) error = NULL;
    g_autoptr(SrvJson) doc = srv_json_read(g_bytes_get_data(bytes, NULL), g_bytes_get_size(bytes), &error);
    const SrvJson *paths = srv_json_get(doc, "paths");
    guint n_routes = 0, n_described = 0;

    g_assert_no_error(error);
    for (const SrvRoute *r = srv_routes; r->method != NULL; r++, n_routes++) {
        g_autofree char *method = g_ascii_strdown(r->method, -1);

        g_assert_nonnull(srv_json_get(srv_json_get(paths, r->path), method));
    }
    for (guint i = 0; i < paths->items->len; i++) {
        const SrvJson *path = paths->items->pdata[i];

        for (guint k = 0; k < path->names->len; k++)
            n_described += strcmp(path->names->pdata[k], "parameters") != 0;
    }
    g_assert_cmpuint(n_described, ==, n_routes);
}

/* The members that are described are those that are taken, in both directions. */
static void test_described_members(void)
{
    g_autoptr(GBytes) bytes = g_resources_lookup_data(
        "/io/github/quire_chat/Quire/server/openapi.json", G_RESOURCE_LOOKUP_FLAGS_NONE, NULL);
    g_autoptr(SrvJson) doc = srv_json_read(g_bytes_get_data(bytes, NULL), g_bytes_get_size(bytes), NULL);
    const SrvJson *schemas = srv_json_get(srv_json_get(doc, "components"), "schemas");
    static const char *const names[] = {"ChatRequest", "CompletionRequest"};

    for (guint e = 0; e < SRV_N_ENDPOINTS; e++) {
        const SrvJson *properties = srv_json_get(srv_json_get(schemas, names[e]), "properties");
        g_autofree const char **taken = srv_request_members((SrvEndpoint)e);

        for (guint i = 0; i < properties->names->len; i++)
            g_assert_true(g_strv_contains((const char *const *)taken, properties->names->pdata[i]));
    }
}

int main(int argc, char **argv)
{
    g_test_init(&argc, &argv, NULL);
    g_test_add_func("/server/json/values", test_json_values);
    g_test_add_func("/server/json/refused", test_json_refused);
    g_test_add_func("/server/json/bounds", test_json_bounds);
    g_test_add_func("/server/request/whole", test_request_whole);
    g_test_add_func("/server/request/members", test_request_members);
    g_test_add_func("/server/request/tools", test_request_tools);
    g_test_add_func("/server/calls", test_calls);
    g_test_add_func("/server/error/shape", test_error_shape);
    g_test_add_func("/server/guard/hosts", test_hosts);
    g_test_add_func("/server/routes/described", test_routes);
    g_test_add_func("/server/request/described", test_described_members);
    return g_test_run();
}
