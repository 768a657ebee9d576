/* qe-json.c: a strict, iterative JSON scanner, and typed access on top of json-glib.
 *
 * 1. The scanner never recurses; its stack is is_object[], whose length is the depth limit.
 * 2. The whole text is known to be UTF-8 without NUL before the first token, so decoded strings are C strings.
 * 3. json-glib only ever sees text that the scanner has accepted in full.
 *
 * Nothing here is shared between calls; any thread may use it on its own reader. */
#include "engine/qe-json.h"
#include <errno.h>
#include <fcntl.h>
#include <math.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

/* ---- files ----------------------------------------------------------------------------------------------------- */

static const char *file_kind(mode_t mode)
{
    if (S_ISDIR(mode))
        return "a folder";
    if (S_ISFIFO(mode))
        return "a FIFO";
    if (S_ISCHR(mode) || S_ISBLK(mode))
        return "a device";
    if (S_ISSOCK(mode))
        return "a socket";
    return "something else";
}

int qe_file_open_regular(const char *path, uint64_t *n_bytes, GError **error)
{
    /* O_NONBLOCK: opening a FIFO without a writer would wait for one. */
    int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY);
    if (fd < 0) {
        g_set_error(error, QE_ERROR, QE_ERROR_FILE, "%s: cannot open: %s", path, g_strerror(errno));
        return -1;
    }
    struct stat st;
    if (fstat(fd, &st) != 0) {
        g_set_error(error, QE_ERROR, QE_ERROR_FILE, "%s: cannot examine: %s", path, g_strerror(errno));
        close(fd);
        return -1;
    }
    if (!S_ISREG(st.st_mode)) {
        g_set_error(error, QE_ERROR, QE_ERROR_FILE, "%s: expected a regular file, found %s", path,
            file_kind(st.st_mode));
        close(fd);
        return -1;
    }
    *n_bytes = (uint64_t)st.st_size;
    return fd;
}

bool qe_file_read(const char *path, size_t max_bytes, char **data, size_t *n_bytes, GError **error)
{
    uint64_t size = 0;
    int fd = qe_file_open_regular(path, &size, error);
    if (fd < 0)
        return false;
    char *buf = NULL;
    if (size > max_bytes) {
        g_set_error(error, QE_ERROR, QE_ERROR_FORMAT,
            "%s: expected at most %zu bytes, found %" G_GUINT64_FORMAT, path, max_bytes, size);
        goto fail;
    }
    buf = g_try_malloc((size_t)size + 1);
    if (buf == NULL) {
        g_set_error(
            error, QE_ERROR, QE_ERROR_NO_MEMORY, "%s: no memory for %" G_GUINT64_FORMAT " bytes", path, size);
        goto fail;
    }
    size_t n = 0;
    while (n < size) {
        ssize_t got = read(fd, buf + n, (size_t)size - n);
        if (got < 0 && errno == EINTR)
            continue;
        if (got <= 0) {
            g_set_error(error, QE_ERROR, QE_ERROR_FILE,
                "%s: cannot read: expected %" G_GUINT64_FORMAT " bytes, found %zu%s%s", path, size, n,
                got < 0 ? ": " : "", got < 0 ? g_strerror(errno) : "");
            goto fail;
        }
        n += (size_t)got;
    }
    close(fd);
    buf[n] = '\0';
    *data = buf;
    *n_bytes = n;
    return true;
fail:
    close(fd);
    g_free(buf);
    return false;
}

/* ---- the scanner ----------------------------------------------------------------------------------------------- */

enum {
    STATE_VALUE,        /* start of the document, or after ':' or an array's ',' */
    STATE_VALUE_OR_END, /* after '[' */
    STATE_KEY,          /* after an object's ',' */
    STATE_KEY_OR_END,   /* after '{' */
    STATE_COMMA_OR_END, /* after a value inside something */
    STATE_DONE,         /* after the root value */
    STATE_ERROR,
};

const char *qe_json_token_name(qe_json_token token)
{
    static const char *const names[] = {"an error", "the end", "an object", "the end of an object", "a list",
        "the end of a list", "a key", "a string", "an integer", "a number", "true", "false", "null"};
    return (size_t)token < G_N_ELEMENTS(names) ? names[token] : "?";
}

static qe_json_token scan_error(qe_json_reader *self, const char *expected, GError **error)
{
    char found[32];
    if (self->pos >= self->n_bytes)
        g_strlcpy(found, "the end of the text", sizeof found);
    else if (g_ascii_isgraph(self->data[self->pos]))
        g_snprintf(found, sizeof found, "'%c'", self->data[self->pos]);
    else
        g_snprintf(found, sizeof found, "byte 0x%02x", (unsigned char)self->data[self->pos]);
    g_set_error(error, QE_ERROR, QE_ERROR_FORMAT, "%s: not valid JSON at byte %zu: expected %s, found %s",
        self->label, self->pos, expected, found);
    self->state = STATE_ERROR;
    return QE_JSON_ERROR;
}

bool qe_json_reader_init(
    qe_json_reader *self, const char *label, const char *data, size_t n_bytes, GError **error)
{
    memset(self, 0, sizeof *self);
    self->label = label;
    self->data = data;
    self->n_bytes = n_bytes;
    self->state = STATE_VALUE;
    self->text = g_string_new(NULL);
    const char *end = NULL;
    if (n_bytes > 0 && !g_utf8_validate_len(data, n_bytes, &end)) {
        g_set_error(error, QE_ERROR, QE_ERROR_FORMAT, "%s: not valid JSON: byte %zu is %s", label,
            (size_t)(end - data), *end == '\0' ? "NUL" : "not UTF-8");
        self->state = STATE_ERROR;
        return false;
    }
    return true;
}

void qe_json_reader_clear(qe_json_reader *self)
{
    if (self->text != NULL)
        g_string_free(self->text, TRUE);
    self->text = NULL;
}

static void after_value(qe_json_reader *self)
{
    self->state = self->depth == 0 ? STATE_DONE : STATE_COMMA_OR_END;
}

static int hex4(const qe_json_reader *self, size_t pos)
{
    int value = 0;
    if (self->n_bytes - pos < 4)
        return -1;
    for (size_t i = 0; i < 4; i++) {
        int digit = g_ascii_xdigit_value(self->data[pos + i]);
        if (digit < 0)
            return -1;
        value = value * 16 + digit;
    }
    return value;
}

/* At the 'u' of an escape. Joins surrogate pairs; refuses lone ones, which UTF-8 cannot hold, and U+0000. */
static bool scan_unicode_escape(qe_json_reader *self, GError **error)
{
    int unit = hex4(self, self->pos + 1);
    gunichar c = (gunichar)unit;
    if (unit < 0) {
        scan_error(self, "four hexadecimal digits after \\u", error);
        return false;
    }
    self->pos += 5;
    if (unit >= 0xd800 && unit <= 0xdfff) {
        int low = -1;
        if (unit < 0xdc00 && self->n_bytes - self->pos >= 6 && self->data[self->pos] == '\\' &&
            self->data[self->pos + 1] == 'u')
            low = hex4(self, self->pos + 2);
        if (low < 0xdc00 || low > 0xdfff) {
            scan_error(self, "the second half of a surrogate pair", error);
            return false;
        }
        self->pos += 6;
        c = 0x10000 + (((gunichar)unit - 0xd800) << 10) + ((gunichar)low - 0xdc00);
    }
    if (c == 0) {
        self->pos -= 5;
        scan_error(self, "a character other than \\u0000", error);
        return false;
    }
    g_string_append_unichar(self->text, c);
    return true;
}

/* At the opening quote. */
static bool scan_string(qe_json_reader *self, GError **error)
{
    static const char from[] = "\"\\/bfnrt", to[] = "\"\\/\b\f\n\r\t";
    g_string_truncate(self->text, 0);
    self->pos++;
    for (;;) {
        size_t start = self->pos;
        while (self->pos < self->n_bytes && self->data[self->pos] != '"' && self->data[self->pos] != '\\' &&
               (unsigned char)self->data[self->pos] >= 0x20)
            self->pos++;
        g_string_append_len(self->text, self->data + start, (gssize)(self->pos - start));
        if (self->pos >= self->n_bytes || (unsigned char)self->data[self->pos] < 0x20) {
            scan_error(self, "a closing '\"'", error);
            return false;
        }
        if (self->data[self->pos++] == '"')
            return true;
        if (self->pos < self->n_bytes && self->data[self->pos] == 'u') {
            if (!scan_unicode_escape(self, error))
                return false;
            continue;
        }
        const char *at = self->pos < self->n_bytes ? strchr(from, self->data[self->pos]) : NULL;
        if (at == NULL) {
            scan_error(self, "an escape of JSON", error);
            return false;
        }
        g_string_append_c(self->text, to[at - from]);
        self->pos++;
    }
}

static size_t scan_digits(qe_json_reader *self)
{
    size_t start = self->pos;
    while (self->pos < self->n_bytes && g_ascii_isdigit(self->data[self->pos]))
        self->pos++;
    return self->pos - start;
}

static qe_json_token scan_number(qe_json_reader *self, GError **error)
{
    size_t start = self->pos;
    bool is_integer = true;
    if (self->data[self->pos] == '-')
        self->pos++;
    if (self->pos < self->n_bytes && self->data[self->pos] == '0')
        self->pos++;
    else if (scan_digits(self) == 0)
        return scan_error(self, "a digit", error);
    if (self->pos < self->n_bytes && self->data[self->pos] == '.') {
        is_integer = false;
        self->pos++;
        if (scan_digits(self) == 0)
            return scan_error(self, "a digit", error);
    }
    if (self->pos < self->n_bytes && (self->data[self->pos] == 'e' || self->data[self->pos] == 'E')) {
        is_integer = false;
        self->pos++;
        if (self->pos < self->n_bytes && (self->data[self->pos] == '+' || self->data[self->pos] == '-'))
            self->pos++;
        if (scan_digits(self) == 0)
            return scan_error(self, "a digit", error);
    }
    size_t n = self->pos - start;
    char digits[QE_JSON_NUMBER_BYTES_MAX + 1];
    if (n > QE_JSON_NUMBER_BYTES_MAX) {
        g_set_error(error, QE_ERROR, QE_ERROR_FORMAT,
            "%s: number at byte %zu: expected at most %d digits, found %zu", self->label, start,
            QE_JSON_NUMBER_BYTES_MAX, n);
        self->state = STATE_ERROR;
        return QE_JSON_ERROR;
    }
    memcpy(digits, self->data + start, n);
    digits[n] = '\0';
    self->number = g_ascii_strtod(digits, NULL);
    self->big_integer = false;
    after_value(self);
    if (!is_integer)
        return QE_JSON_NUMBER;
    errno = 0;
    self->integer = g_ascii_strtoll(digits, NULL, 10);
    if (errno == 0)
        return QE_JSON_INTEGER;
    self->big_integer = true;
    return QE_JSON_NUMBER;
}

static qe_json_token open_container(qe_json_reader *self, bool is_object, GError **error)
{
    if (self->depth >= QE_JSON_DEPTH_MAX) {
        g_set_error(error, QE_ERROR, QE_ERROR_FORMAT,
            "%s: nested too deeply at byte %zu: expected at most %d levels", self->label, self->pos,
            QE_JSON_DEPTH_MAX);
        self->state = STATE_ERROR;
        return QE_JSON_ERROR;
    }
    self->is_object[self->depth++] = is_object;
    self->pos++;
    self->state = is_object ? STATE_KEY_OR_END : STATE_VALUE_OR_END;
    return is_object ? QE_JSON_OBJECT : QE_JSON_ARRAY;
}

static qe_json_token close_container(qe_json_reader *self, qe_json_token token)
{
    self->depth--;
    self->pos++;
    after_value(self);
    return token;
}

static qe_json_token scan_value(qe_json_reader *self, GError **error)
{
    static const struct {
        const char *word;
        qe_json_token token;
    } words[] = {{"true", QE_JSON_TRUE}, {"false", QE_JSON_FALSE}, {"null", QE_JSON_NULL}};
    if (self->pos >= self->n_bytes)
        return scan_error(self, "a value", error);
    char c = self->data[self->pos];
    if (c == '{' || c == '[')
        return open_container(self, c == '{', error);
    if (c == '"') {
        if (!scan_string(self, error))
            return QE_JSON_ERROR;
        after_value(self);
        return QE_JSON_STRING;
    }
    if (c == '-' || g_ascii_isdigit(c))
        return scan_number(self, error);
    for (size_t i = 0; i < G_N_ELEMENTS(words); i++) {
        size_t n = strlen(words[i].word);
        if (self->n_bytes - self->pos >= n && memcmp(self->data + self->pos, words[i].word, n) == 0) {
            self->pos += n;
            after_value(self);
            return words[i].token;
        }
    }
    return scan_error(self, "a value", error);
}

static void skip_space(qe_json_reader *self)
{
    while (self->pos < self->n_bytes && (self->data[self->pos] == ' ' || self->data[self->pos] == '\t' ||
                                            self->data[self->pos] == '\n' || self->data[self->pos] == '\r'))
        self->pos++;
}

static qe_json_token scan_key(qe_json_reader *self, GError **error)
{
    if (self->pos >= self->n_bytes || self->data[self->pos] != '"')
        return scan_error(self, "a key in quotes", error);
    if (!scan_string(self, error))
        return QE_JSON_ERROR;
    skip_space(self);
    if (self->pos >= self->n_bytes || self->data[self->pos] != ':')
        return scan_error(self, "':'", error);
    self->pos++;
    self->state = STATE_VALUE;
    return QE_JSON_KEY;
}

qe_json_token qe_json_reader_next(qe_json_reader *self, GError **error)
{
    skip_space(self);
    char c = self->pos < self->n_bytes ? self->data[self->pos] : '\0';
    bool in_object = self->depth > 0 && self->is_object[self->depth - 1];
    switch (self->state) {
    case STATE_VALUE:
        return scan_value(self, error);
    case STATE_VALUE_OR_END:
        return c == ']' ? close_container(self, QE_JSON_ARRAY_END) : scan_value(self, error);
    case STATE_KEY_OR_END:
        return c == '}' ? close_container(self, QE_JSON_OBJECT_END) : scan_key(self, error);
    case STATE_COMMA_OR_END:
        if (c == (in_object ? '}' : ']'))
            return close_container(self, in_object ? QE_JSON_OBJECT_END : QE_JSON_ARRAY_END);
        if (c != ',')
            return scan_error(self, in_object ? "',' or '}'" : "',' or ']'", error);
        self->pos++;
        skip_space(self);
        return in_object ? scan_key(self, error) : scan_value(self, error);
    case STATE_DONE:
        if (self->pos < self->n_bytes)
            return scan_error(self, "the end of the text", error);
        return QE_JSON_END;
    default:
        if (error != NULL && *error == NULL)
            g_set_error(error, QE_ERROR, QE_ERROR_FORMAT, "%s: not valid JSON", self->label);
        return QE_JSON_ERROR;
    }
}

bool qe_json_reader_skip(qe_json_reader *self, qe_json_token first, GError **error)
{
    if (first != QE_JSON_OBJECT && first != QE_JSON_ARRAY)
        return first != QE_JSON_ERROR;
    uint32_t outer = self->depth - 1;
    while (self->depth > outer)
        if (qe_json_reader_next(self, error) == QE_JSON_ERROR)
            return false;
    return true;
}

/* ---- whole documents ------------------------------------------------------------------------------------------- */

/* One pass over the text: grammar, depth, repeated keys and integer range. */
static bool scan_document(qe_json_reader *reader, qe_json_flags flags, GError **error)
{
    GHashTable *keys[QE_JSON_DEPTH_MAX + 1] = {NULL}; /* of the object open at each depth */
    bool ok = false;
    for (;;) {
        qe_json_token token = qe_json_reader_next(reader, error);
        if (token == QE_JSON_ERROR)
            break;
        if (token == QE_JSON_END) {
            ok = true;
            break;
        }
        if (token == QE_JSON_OBJECT)
            g_clear_pointer(&keys[reader->depth], g_hash_table_unref);
        if (token == QE_JSON_KEY) {
            GHashTable **set = &keys[reader->depth];
            if (*set == NULL)
                *set = g_hash_table_new_full(g_str_hash, g_str_equal, g_free, NULL);
            if (!g_hash_table_add(*set, g_strdup(reader->text->str))) {
                g_autofree char *key = qe_json_excerpt(reader->text->str);
                g_set_error(error, QE_ERROR, QE_ERROR_FORMAT, "%s: the key \"%s\" is there twice",
                    reader->label, key);
                break;
            }
        }
        if (token == QE_JSON_NUMBER && reader->big_integer && !(flags & QE_JSON_BIG_INTEGERS)) {
            g_set_error(error, QE_ERROR, QE_ERROR_FORMAT, "%s: the integer before byte %zu is out of range",
                reader->label, reader->pos);
            break;
        }
    }
    for (size_t i = 0; i < G_N_ELEMENTS(keys); i++)
        g_clear_pointer(&keys[i], g_hash_table_unref);
    return ok;
}

JsonObject *qe_json_parse(
    const char *label, const char *data, size_t n_bytes, qe_json_flags flags, GError **error)
{
    qe_json_reader reader;
    bool ok =
        qe_json_reader_init(&reader, label, data, n_bytes, error) && scan_document(&reader, flags, error);
    qe_json_reader_clear(&reader);
    if (!ok)
        return NULL;
    g_autoptr(JsonParser) parser = json_parser_new_immutable();
    g_autoptr(GError) local = NULL;
    if (!json_parser_load_from_data(parser, data, (gssize)n_bytes, &local)) {
        g_set_error(error, QE_ERROR, QE_ERROR_FORMAT, "%s: not valid JSON: %s", label, local->message);
        return NULL;
    }
    JsonNode *root = json_parser_get_root(parser);
    if (root == NULL || !JSON_NODE_HOLDS_OBJECT(root)) {
        g_set_error(error, QE_ERROR, QE_ERROR_FORMAT, "%s: expected an object, found something else", label);
        return NULL;
    }
    return json_object_ref(json_node_get_object(root));
}

static JsonNode *member(const qe_json_view *view, const char *field)
{
    JsonNode *node = json_object_get_member(view->object, field);
    return node == NULL || JSON_NODE_HOLDS_NULL(node) ? NULL : node;
}

bool qe_json_has(const qe_json_view *view, const char *field)
{
    return member(view, field) != NULL;
}

char *qe_json_excerpt(const char *text)
{
    if (g_utf8_strlen(text, -1) <= 60)
        return g_strdup(text);
    g_autofree char *head = g_utf8_substring(text, 0, 60);
    return g_strconcat(head, "...", NULL);
}

static char *describe_node(JsonNode *node)
{
    if (node == NULL)
        return g_strdup("nothing");
    if (JSON_NODE_HOLDS_NULL(node))
        return g_strdup("null");
    if (JSON_NODE_HOLDS_OBJECT(node))
        return g_strdup("an object");
    if (JSON_NODE_HOLDS_ARRAY(node))
        return g_strdup("a list");
    switch (json_node_get_value_type(node)) {
    case G_TYPE_BOOLEAN:
        return g_strdup(json_node_get_boolean(node) ? "true" : "false");
    case G_TYPE_INT64:
        return g_strdup_printf("%" G_GINT64_FORMAT, (int64_t)json_node_get_int(node));
    case G_TYPE_DOUBLE: {
        char text[G_ASCII_DTOSTR_BUF_SIZE];
        return g_strdup(g_ascii_dtostr(text, sizeof text, json_node_get_double(node)));
    }
    default: {
        const char *text = json_node_get_string(node);
        g_autofree char *head = qe_json_excerpt(text);
        return g_strdup_printf("\"%s\"", head);
    }
    }
}

char *qe_json_describe(const qe_json_view *view, const char *field)
{
    return describe_node(json_object_get_member(view->object, field));
}

static bool member_error(const qe_json_view *view, const char *field, const char *expected, GError **error)
{
    g_autofree char *found = qe_json_describe(view, field);
    g_set_error(error, QE_ERROR, QE_ERROR_FORMAT, "%s: %s%s: expected %s, found %s", view->label,
        view->prefix, field, expected, found);
    return false;
}

/* The member, or NULL when it may be and is absent (*@ok true) or must not be (*@ok false, @error set). */
static JsonNode *lookup(
    const qe_json_view *view, const char *field, const char *expected, bool *found, bool *ok, GError **error)
{
    JsonNode *node = member(view, field);
    *ok = node != NULL || found != NULL;
    if (found != NULL)
        *found = node != NULL;
    if (!*ok)
        member_error(view, field, expected, error);
    return node;
}

bool qe_json_get_int(const qe_json_view *view, const char *field, int64_t min, int64_t max, bool *found,
    int64_t *value, GError **error)
{
    bool ok;
    char expected[96];
    g_snprintf(
        expected, sizeof expected, "an integer from %" G_GINT64_FORMAT " to %" G_GINT64_FORMAT, min, max);
    JsonNode *node = lookup(view, field, expected, found, &ok, error);
    if (node == NULL)
        return ok;
    if (!JSON_NODE_HOLDS_VALUE(node) || json_node_get_value_type(node) != G_TYPE_INT64)
        return member_error(view, field, expected, error);
    int64_t n = json_node_get_int(node);
    if (n < min || n > max)
        return member_error(view, field, expected, error);
    *value = n;
    return true;
}

bool qe_json_get_u32(const qe_json_view *view, const char *field, uint32_t min, uint32_t max, bool *found,
    uint32_t *value, GError **error)
{
    int64_t wide = *value;
    if (!qe_json_get_int(view, field, min, max, found, &wide, error))
        return false;
    *value = (uint32_t)wide;
    return true;
}

bool qe_json_get_double(const qe_json_view *view, const char *field, double min, double max, bool *found,
    double *value, GError **error)
{
    bool ok;
    char expected[96], lo[G_ASCII_DTOSTR_BUF_SIZE], hi[G_ASCII_DTOSTR_BUF_SIZE];
    g_ascii_formatd(lo, sizeof lo, "%.9g", min);
    g_ascii_formatd(hi, sizeof hi, "%.9g", max);
    g_snprintf(expected, sizeof expected, "a number from %s to %s", lo, hi);
    JsonNode *node = lookup(view, field, expected, found, &ok, error);
    if (node == NULL)
        return ok;
    if (!JSON_NODE_HOLDS_VALUE(node))
        return member_error(view, field, expected, error);
    GType type = json_node_get_value_type(node);
    if (type != G_TYPE_INT64 && type != G_TYPE_DOUBLE)
        return member_error(view, field, expected, error);
    double x = type == G_TYPE_INT64 ? (double)json_node_get_int(node) : json_node_get_double(node);
    if (!isfinite(x) || !(x >= min && x <= max))
        return member_error(view, field, expected, error);
    *value = x;
    return true;
}

bool qe_json_get_bool(const qe_json_view *view, const char *field, bool *found, bool *value, GError **error)
{
    bool ok;
    JsonNode *node = lookup(view, field, "true or false", found, &ok, error);
    if (node == NULL)
        return ok;
    if (!JSON_NODE_HOLDS_VALUE(node) || json_node_get_value_type(node) != G_TYPE_BOOLEAN)
        return member_error(view, field, "true or false", error);
    *value = json_node_get_boolean(node);
    return true;
}

bool qe_json_get_string(
    const qe_json_view *view, const char *field, bool *found, const char **value, GError **error)
{
    bool ok;
    JsonNode *node = lookup(view, field, "a string", found, &ok, error);
    if (node == NULL)
        return ok;
    if (!JSON_NODE_HOLDS_VALUE(node) || json_node_get_value_type(node) != G_TYPE_STRING)
        return member_error(view, field, "a string", error);
    *value = json_node_get_string(node);
    return true;
}

bool qe_json_get_object(const qe_json_view *view, const char *field, const char *prefix, bool *found,
    qe_json_view *value, GError **error)
{
    bool ok;
    JsonNode *node = lookup(view, field, "an object", found, &ok, error);
    if (node == NULL)
        return ok;
    if (!JSON_NODE_HOLDS_OBJECT(node))
        return member_error(view, field, "an object", error);
    *value = (qe_json_view){view->label, prefix, json_node_get_object(node)};
    return true;
}

/* ---- Writing ---- */

void qe_json_write_escaped(GString *out, const char *text)
{
    static const char *const from = "\"\\\b\f\n\r\t", *const to = "\"\\bfnrt";
    for (const char *p = text; *p; p++) {
        const char *found = strchr(from, *p);
        if (found)
            g_string_append_printf(out, "\\%c", to[found - from]);
        else if ((guchar)*p < 0x20)
            g_string_append_printf(out, "\\u%04x", (guchar)*p);
        else
            g_string_append_c(out, *p);
    }
}

void qe_json_write_string(GString *out, const char *text)
{
    g_string_append_c(out, '"');
    qe_json_write_escaped(out, text);
    g_string_append_c(out, '"');
}
