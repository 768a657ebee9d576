/* qe-template.c: renders conversations of the Qwen3 family to token ids. See qe-template.h.
 *
 * A builder collects text until a control token comes, then encodes the text as one segment: the pre-tokenizer joins
 * "user\n" with what follows, so encoding the parts one by one would give other ids. */
#include "engine/qe-template.h"

#include <string.h>

#include "engine/qe-json.h"
#include "engine/qe-limits.h"
#include "engine/qe-template-form.h"

enum { TAG_THINK, TAG_THINK_END, TAG_CALL, TAG_CALL_END, TAG_RESPONSE, TAG_RESPONSE_END, N_TAGS };
static const char *const tags[N_TAGS] = {
    "<think>", "</think>", "<tool_call>", "</tool_call>", "<tool_response>", "</tool_response>"};

struct qe_template {
    qe_tokenizer *tokenizer;
    uint32_t start_id, end_id, think_id, think_end_id;
    int64_t tag_ids[N_TAGS]; /* -1: the vocabulary spells it */
    int64_t eos_id;
    uint32_t n_reply_prefix;
    bool has_think_ids;
    qe_template_form form;
};

/* ---- Reading ---- */

static bool find_control(
    const qe_template *self, const char *file, const char *content, uint32_t *id, GError **error)
{
    if (qe_tokenizer_find(self->tokenizer, content, id) && qe_tokenizer_is_added(self->tokenizer, *id))
        return true;
    g_set_error(error, QE_ERROR, QE_ERROR_FORMAT,
        "%s: chat_template: expected \"%s\" among the added tokens of tokenizer.json, found none", file,
        content);
    return false;
}

/* "chat_template": a string, or a list of {name, template} of which "default" counts. Returns: borrowed. */
static const char *template_member(const char *file, JsonObject *root, GError **error)
{
    JsonNode *node = json_object_get_member(root, "chat_template");

    if (node != NULL && JSON_NODE_HOLDS_VALUE(node) && json_node_get_value_type(node) == G_TYPE_STRING)
        return json_node_get_string(node);
    if (node != NULL && JSON_NODE_HOLDS_ARRAY(node)) {
        JsonArray *list = json_node_get_array(node);

        for (guint i = 0; i < json_array_get_length(list); i++) {
            JsonNode *item = json_array_get_element(list, i);
            JsonObject *object = JSON_NODE_HOLDS_OBJECT(item) ? json_node_get_object(item) : NULL;
            qe_json_view view = {.label = file, .prefix = "chat_template[].", .object = object};
            const char *name = NULL, *source = NULL;

            if (object == NULL || !qe_json_get_string(&view, "name", NULL, &name, error) ||
                !qe_json_get_string(&view, "template", NULL, &source, error)) {
                if (error != NULL && *error == NULL)
                    g_set_error(error, QE_ERROR, QE_ERROR_FORMAT,
                        "%s: chat_template: expected objects with name and template", file);
                return NULL;
            }
            if (strcmp(name, "default") == 0)
                return source;
        }
    }
    g_set_error(error, QE_ERROR, QE_ERROR_FORMAT,
        "%s: chat_template: expected a string or a list with the template \"default\", found %s", file,
        node == NULL ? "nothing" : "another type");
    return NULL;
}

/* tokenizer_config.json's eos_token: a string or {"content": ...}. -1 when absent, null or unknown. */
static int64_t read_eos(const qe_template *self, JsonObject *root)
{
    JsonNode *node = json_object_get_member(root, "eos_token");
    const char *content = NULL;
    uint32_t id;

    if (node != NULL && JSON_NODE_HOLDS_OBJECT(node))
        node = json_object_get_member(json_node_get_object(node), "content");
    if (node != NULL && JSON_NODE_HOLDS_VALUE(node) && json_node_get_value_type(node) == G_TYPE_STRING)
        content = json_node_get_string(node);
    return content != NULL && qe_tokenizer_find(self->tokenizer, content, &id) ? (int64_t)id : -1;
}

static bool template_read(qe_template *self, const char *dir, GError **error)
{
    g_autofree char *config_path = g_build_filename(dir, "tokenizer_config.json", NULL);
    g_autofree char *jinja_path = g_build_filename(dir, "chat_template.jinja", NULL);
    g_autofree char *data = NULL;
    g_autofree char *jinja = NULL;
    const char *file = config_path, *source;
    JsonObject *root;
    size_t n;
    bool ok;

    if (!qe_file_read(config_path, QE_TOKENIZER_CONFIG_BYTES_MAX, &data, &n, error))
        return false;
    root = qe_json_parse(config_path, data, n, QE_JSON_BIG_INTEGERS, error);
    if (root == NULL)
        return false;
    self->eos_id = read_eos(self, root);
    if (g_file_test(jinja_path, G_FILE_TEST_EXISTS)) {
        file = jinja_path;
        ok = qe_file_read(jinja_path, QE_TOKENIZER_CONFIG_BYTES_MAX, &jinja, &n, error);
        if (ok && (strlen(jinja) != n || !g_utf8_validate(jinja, (gssize)n, NULL))) {
            g_set_error(error, QE_ERROR, QE_ERROR_FORMAT,
                "%s: expected UTF-8 text without NUL, found other bytes", file);
            ok = false;
        }
        source = jinja;
    } else {
        source = template_member(config_path, root, error);
        ok = source != NULL;
    }
    ok = ok && qe_template_recognise(file, source, &self->form, error) &&
         find_control(self, file, "<|im_start|>", &self->start_id, error) &&
         find_control(self, file, "<|im_end|>", &self->end_id, error);
    if (ok && (self->form.thinking_switch || self->form.thinking_forced || self->form.strips)) {
        ok = find_control(self, file, "<think>", &self->think_id, error) &&
             find_control(self, file, "</think>", &self->think_end_id, error);
        self->has_think_ids = ok;
    }
    for (guint i = 0; i < N_TAGS; i++) {
        uint32_t id;
        bool found =
            qe_tokenizer_find(self->tokenizer, tags[i], &id) && qe_tokenizer_is_added(self->tokenizer, id);
        self->tag_ids[i] = found ? (int64_t)id : -1;
    }
    json_object_unref(root);
    return ok;
}

/* ---- Building ---- */

typedef struct {
    const qe_template *self;
    GString *text; /* of the open segment */
    GArray *ids;
    GError **error;
    bool failed;
} builder;

static void put_text(builder *b, const char *text, gsize n)
{
    g_string_append_len(b->text, text, (gssize)n);
}

static void flush_text(builder *b)
{
    if (!b->failed && b->text->len > 0)
        b->failed = !qe_tokenizer_encode(
            b->self->tokenizer, b->text->str, b->text->len, QE_ENCODE_PLAIN, b->ids, b->error);
    g_string_truncate(b->text, 0);
}

static void put_id(builder *b, uint32_t id)
{
    flush_text(b);
    if (!b->failed)
        g_array_append_val(b->ids, id);
}

/* Closes the builder. On failure @ids is as before. */
static bool finish(builder *b, guint n_ids_before)
{
    flush_text(b);
    g_string_free(b->text, TRUE);
    if (b->failed)
        g_array_set_size(b->ids, n_ids_before);
    return !b->failed;
}

static builder begin(const qe_template *self, GArray *ids, GError **error)
{
    return (builder){.self = self, .text = g_string_new(NULL), .ids = ids, .error = error};
}

static const char *find_in(const char *text, gsize n, const char *word)
{
    return text == NULL || n == 0 ? NULL : memmem(text, n, word, strlen(word));
}

static const char *find_last_in(const char *text, gsize n, const char *word)
{
    const char *found = NULL, *at = text, *end = text + n;

    while ((at = find_in(at, (gsize)(end - at), word)) != NULL)
        found = at++;
    return found;
}

static void strip_front(const char **text, gsize *n)
{
    while (*n > 0 && **text == '\n') {
        (*text)++;
        (*n)--;
    }
}

static void strip_back(const char *text, gsize *n)
{
    while (*n > 0 && text[*n - 1] == '\n')
        (*n)--;
}

/* What a message with reasoning becomes: the part after the last </think>. */
static void cut_reasoning(const char **text, gsize *n)
{
    const char *close = find_last_in(*text, *n, "</think>"), *end = *text + *n;

    if (close == NULL)
        return;
    *text = close + strlen("</think>");
    *n = (gsize)(end - *text);
    strip_front(text, n);
}

/* The reasoning of a message: between the last <think> and the first </think>, without newlines around it. */
static void get_reasoning(const char *text, gsize n, const char **reasoning, gsize *n_reasoning)
{
    const char *close = find_in(text, n, "</think>"), *open;

    *reasoning = text;
    *n_reasoning = 0;
    if (close == NULL)
        return;
    *n_reasoning = (gsize)(close - text);
    strip_back(*reasoning, n_reasoning);
    open = find_last_in(*reasoning, *n_reasoning, "<think>");
    if (open != NULL) {
        const char *end = *reasoning + *n_reasoning;
        *reasoning = open + strlen("<think>");
        *n_reasoning = (gsize)(end - *reasoning);
    }
    strip_front(reasoning, n_reasoning);
}

static void put_tag(builder *b, guint tag)
{
    if (b->self->tag_ids[tag] >= 0)
        put_id(b, (uint32_t)b->self->tag_ids[tag]);
    else
        put_text(b, tags[tag], strlen(tags[tag]));
}

/* Text in which the first @n_tags tags are control tokens. Each tag is looked for once over the text, however often another
 * one stands there. */
static void put_tagged(builder *b, const char *text, gsize n, guint n_tags)
{
    const char *end = text + n, *next[N_TAGS];

    for (guint i = 0; i < n_tags; i++)
        next[i] = find_in(text, n, tags[i]);
    for (;;) {
        guint tag = n_tags;

        for (guint i = 0; i < n_tags; i++)
            if (next[i] != NULL && (tag == n_tags || next[i] < next[tag]))
                tag = i;
        if (tag == n_tags)
            break;
        put_text(b, text, (gsize)(next[tag] - text));
        put_tag(b, tag);
        text = next[tag] + strlen(tags[tag]);
        next[tag] = find_in(text, (gsize)(end - text), tags[tag]);
    }
    put_text(b, text, (gsize)(end - text));
}

/* Assistant text as it stands: think tags are control tokens. */
static void put_assistant_text(builder *b, const char *text, gsize n)
{
    put_tagged(b, text, n, b->self->has_think_ids ? TAG_THINK_END + 1 : 0);
}

static void put_head(builder *b, qe_template_role role)
{
    static const char *const names[] = {"system\n", "user\n", "assistant\n", "user"};

    put_id(b, b->self->start_id);
    put_text(b, names[role], strlen(names[role]));
}

static void put_end(builder *b)
{
    put_id(b, b->self->end_id);
    put_text(b, "\n", 1);
    flush_text(b);
}

/* The calls of an assistant message. @behind_text: there is text before them. */
static void put_calls(builder *b, const qe_template_message *m, bool behind_text)
{
    static const char head[] = "\n{\"name\": \"", middle[] = "\", \"arguments\": ", end[] = "}\n";

    for (uint32_t i = 0; i < m->n_calls; i++) {
        const qe_template_call *call = &m->calls[i];

        if (i > 0 || behind_text)
            put_text(b, "\n", 1);
        put_tag(b, TAG_CALL);
        put_text(b, head, strlen(head));
        put_text(b, call->name, strlen(call->name));
        put_text(b, middle, strlen(middle));
        put_text(b, call->arguments, strlen(call->arguments));
        put_text(b, end, strlen(end));
        put_tag(b, TAG_CALL_END);
    }
}

/* An assistant message. @earlier: a user turn follows it; @last: nothing follows it. */
static void put_assistant(builder *b, const qe_template_message *m, bool earlier, bool last)
{
    const qe_template *t = b->self;
    const char *text = m->text, *reasoning = m->reasoning;
    gsize n = m->n_bytes, n_reasoning = reasoning != NULL ? strlen(reasoning) : 0;
    /* Given beside the text, reasoning is not looked for in it. */
    bool given = t->form.rebuilds_think && reasoning != NULL;
    bool has_text;

    put_head(b, QE_TEMPLATE_ASSISTANT);
    if (t->form.rebuilds_think && !given)
        get_reasoning(text, n, &reasoning, &n_reasoning);
    if (!given && (t->form.rebuilds_think || (t->form.strips && earlier)))
        cut_reasoning(&text, &n);
    has_text = n > 0;
    if (t->form.rebuilds_think && !earlier) {
        if (n_reasoning > 0 || last) {
            strip_front(&reasoning, &n_reasoning);
            strip_back(reasoning, &n_reasoning);
            put_id(b, t->think_id);
            put_text(b, "\n", 1);
            put_text(b, reasoning, n_reasoning);
            put_text(b, "\n", 1);
            put_id(b, t->think_end_id);
            put_text(b, "\n\n", 2);
            strip_front(&text, &n);
        }
        put_text(b, text, n);
    } else if (t->form.rebuilds_think || (t->form.strips && earlier)) {
        put_text(b, text, n);
    } else {
        put_assistant_text(b, text, n);
    }
    put_calls(b, m, has_text);
    put_end(b);
}

/* The system turn that offers tools. @system: the first message when it is a system message, else NULL. */
static void put_tools(builder *b, const char *const *tools, const qe_template_message *system)
{
    static const char head[] = "# Tools\n\nYou may call one or more functions to assist with the user "
                               "query.\n\nYou are provided with "
                               "function signatures within <tools></tools> XML tags:\n<tools>";
    static const char end[] =
        "\n</tools>\n\nFor each function call, return a json object with function name and arguments within "
        "<tool_call></tool_call> XML tags:\n<tool_call>\n{\"name\": <function-name>, \"arguments\": "
        "<args-json-object>}\n</tool_call>";

    put_head(b, QE_TEMPLATE_SYSTEM);
    if (system != NULL) {
        put_text(b, system->text, system->n_bytes);
        put_text(b, "\n\n", 2);
    }
    put_text(b, head, strlen(head));
    for (guint i = 0; tools[i] != NULL; i++) {
        put_text(b, "\n", 1);
        put_text(b, tools[i], strlen(tools[i]));
    }
    put_tagged(b, end, strlen(end), N_TAGS);
    put_end(b);
}

/* What a tool gave. @first, @last: of those in a row. */
static void put_response(builder *b, const qe_template_message *m, bool first, bool last)
{
    if (first)
        put_head(b, QE_TEMPLATE_TOOL);
    put_text(b, "\n", 1);
    put_tag(b, TAG_RESPONSE);
    put_text(b, "\n", 1);
    put_text(b, m->text, m->n_bytes);
    put_text(b, "\n", 1);
    put_tag(b, TAG_RESPONSE_END);
    if (last)
        put_end(b);
}

static void put_generation(builder *b, qe_template_thinking thinking)
{
    put_head(b, QE_TEMPLATE_ASSISTANT);
    if (b->self->form.thinking_forced) {
        put_id(b, b->self->think_id);
        put_text(b, "\n", 1);
    } else if (b->self->form.thinking_switch && thinking == QE_TEMPLATE_NO_THINK) {
        put_id(b, b->self->think_id);
        put_text(b, "\n\n", 2);
        put_id(b, b->self->think_end_id);
        put_text(b, "\n\n", 2);
    }
    flush_text(b);
}

/* ---- Public ---- */

qe_template *qe_template_new(const char *dir, qe_tokenizer *tokenizer, GError **error)
{
    g_autoptr(qe_template) self = g_new0(qe_template, 1);
    g_autoptr(GArray) prefix = g_array_new(FALSE, FALSE, sizeof(uint32_t));

    self->tokenizer = qe_tokenizer_ref(tokenizer);
    if (!template_read(self, dir, error))
        return NULL;
    builder b = begin(self, prefix, error);
    put_head(&b, QE_TEMPLATE_ASSISTANT);
    if (!finish(&b, 0))
        return NULL;
    self->n_reply_prefix = prefix->len;
    return g_steal_pointer(&self);
}

void qe_template_free(qe_template *self)
{
    if (self == NULL)
        return;
    qe_tokenizer_unref(self->tokenizer);
    g_free(self);
}

bool qe_template_has_thinking(const qe_template *self)
{
    return self->form.thinking_switch;
}

bool qe_template_forces_thinking(const qe_template *self)
{
    return self->form.thinking_forced;
}

bool qe_template_strips_reasoning(const qe_template *self)
{
    return self->form.strips;
}

uint32_t qe_template_end_id(const qe_template *self)
{
    return self->end_id;
}

int64_t qe_template_eos_id(const qe_template *self)
{
    return self->eos_id;
}

uint32_t qe_template_n_reply_prefix(const qe_template *self)
{
    return self->n_reply_prefix;
}

bool qe_template_append_message(const qe_template *self, qe_template_role role, const char *text,
    gsize n_bytes, GArray *ids, GError **error)
{
    builder b = begin(self, ids, error);
    guint before = ids->len;
    qe_template_message m = {.role = role, .text = text, .n_bytes = n_bytes};

    if (role == QE_TEMPLATE_ASSISTANT) {
        put_assistant(&b, &m, true, false);
    } else if (role == QE_TEMPLATE_TOOL) {
        put_response(&b, &m, true, true);
    } else {
        put_head(&b, role);
        put_text(&b, text, n_bytes);
        put_end(&b);
    }
    return finish(&b, before);
}

bool qe_template_append_generation(
    const qe_template *self, qe_template_thinking thinking, GArray *ids, GError **error)
{
    builder b = begin(self, ids, error);
    guint before = ids->len;

    put_generation(&b, thinking);
    return finish(&b, before);
}

bool qe_template_append_reply(
    const qe_template *self, const char *text, gsize n_bytes, GArray *ids, GError **error)
{
    builder b = begin(self, ids, error);
    guint before = ids->len;

    if (self->form.thinking_forced && n_bytes >= 8 && memcmp(text, "<think>\n", 8) == 0) {
        text += 8;
        n_bytes -= 8;
    }
    put_assistant_text(&b, text, n_bytes);
    flush_text(&b);
    return finish(&b, before);
}

bool qe_template_append_close(const qe_template *self, bool ended, GArray *ids, GError **error)
{
    builder b = begin(self, ids, error);
    guint before = ids->len;

    if (!ended)
        put_id(&b, self->end_id);
    put_text(&b, "\n", 1);
    return finish(&b, before);
}

bool qe_template_strip_reply(
    const qe_template *self, const uint32_t *ids, uint32_t n_ids, GArray *out, bool *changed, GError **error)
{
    g_autoptr(GString) bytes = g_string_new(NULL);
    g_autofree gsize *ends = g_new(gsize, (gsize)n_ids + 1);
    const char *rest;
    gsize n_rest, cut;
    uint32_t i;

    *changed = false;
    for (i = 0; i < n_ids; i++) {
        gsize n = 0;
        const char *token = qe_tokenizer_token_bytes(self->tokenizer, ids[i], &n);

        if (token != NULL)
            g_string_append_len(bytes, token, (gssize)n);
        ends[i] = bytes->len;
    }
    rest = bytes->str;
    n_rest = bytes->len;
    if (self->form.strips)
        cut_reasoning(&rest, &n_rest);
    cut = (gsize)(rest - bytes->str);
    for (i = 0; cut > 0 && i < n_ids && ends[i] <= cut; i++)
        *changed = true;
    if (i < n_ids && cut > (i > 0 ? ends[i - 1] : 0)) {
        /* The cut lies inside a token, "\n\nHi" say: its rest is the one piece that must be encoded again. */
        *changed = true;
        if (!qe_tokenizer_encode(self->tokenizer, rest, ends[i] - cut, QE_ENCODE_PLAIN, out, error))
            return false;
        i++;
    }
    g_array_append_vals(out, ids + i, n_ids - i);
    return true;
}

static bool has_prefix(const qe_template_message *m, const char *word)
{
    return m->n_bytes >= strlen(word) && memcmp(m->text, word, strlen(word)) == 0;
}

static bool has_suffix(const qe_template_message *m, const char *word)
{
    return m->n_bytes >= strlen(word) && memcmp(m->text + m->n_bytes - strlen(word), word, strlen(word)) == 0;
}

bool qe_template_render(const qe_template *self, const qe_template_message *messages, uint32_t n_messages,
    qe_template_thinking thinking, bool generation_prompt, GArray *ids, GError **error)
{
    return qe_template_render_tools(
        self, NULL, messages, n_messages, thinking, generation_prompt, ids, error);
}

bool qe_template_render_tools(const qe_template *self, const char *const *tools,
    const qe_template_message *messages, uint32_t n_messages, qe_template_thinking thinking,
    bool generation_prompt, GArray *ids, GError **error)
{
    bool has_tools = tools != NULL && tools[0] != NULL;
    const qe_template_message *system =
        has_tools && n_messages > 0 && messages[0].role == QE_TEMPLATE_SYSTEM ? &messages[0] : NULL;
    builder b = begin(self, ids, error);
    guint before = ids->len;
    /* The family counts from the end of the list when there is no user turn; the shipped model from before it. */
    int64_t last_user = self->form.tool_responses ? (int64_t)n_messages - 1 : -1;

    for (int64_t i = (int64_t)n_messages - 1; i >= 0; i--)
        if (messages[i].role == QE_TEMPLATE_USER &&
            !(self->form.tool_responses && has_prefix(&messages[i], "<tool_response>") &&
                has_suffix(&messages[i], "</tool_response>"))) {
            last_user = i;
            break;
        }
    if (has_tools)
        put_tools(&b, tools, system);
    for (uint32_t i = system != NULL; i < n_messages; i++) {
        const qe_template_message *m = &messages[i];

        if (m->role == QE_TEMPLATE_ASSISTANT) {
            put_assistant(&b, m, (int64_t)i <= last_user, i + 1 == n_messages);
        } else if (m->role == QE_TEMPLATE_TOOL) {
            put_response(&b, m, i == 0 || messages[i - 1].role != QE_TEMPLATE_TOOL,
                i + 1 == n_messages || messages[i + 1].role != QE_TEMPLATE_TOOL);
        } else {
            put_head(&b, m->role);
            put_text(&b, m->text, m->n_bytes);
            put_end(&b);
        }
    }
    if (generation_prompt)
        put_generation(&b, thinking);
    return finish(&b, before);
}
