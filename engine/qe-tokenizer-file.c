/* qe-tokenizer-file.c: see qe-tokenizer-file.h. The layout is that of the `tokenizers` library, version "1.0".
 *
 * The token-by-token reader is used, not json-glib: the file has 300,000 strings, and a tree of them costs seconds and
 * hundreds of megabytes.
 *
 * 1. Whatever would change the ids and is not done here (another model, normaliser or pre-tokenizer, dropout, affixes,
 *    token flags) is an error. Fields that cannot change them (post_processor, truncation, padding) are passed over: a
 *    chat template writes all special tokens itself.
 * 2. Members may come in any order: merges that come before the vocabulary are read in a second pass. */
#include "engine/qe-tokenizer-file.h"
#include <string.h>
#include "engine/qe-json.h"

typedef struct {
    qe_tokenizer_file *file;
    qe_json_reader reader;
    const char *label;
    GError **error;
    bool vocab_done, merges_done;
} loader;

static bool expected(loader *l, const char *field, const char *what, qe_json_token found)
{
    if (found == QE_JSON_ERROR)
        return false; /* the reader has set the error */
    g_autofree char *shown = found == QE_JSON_STRING ? qe_json_excerpt(l->reader.text->str) : NULL;
    if (shown)
        g_set_error(l->error, QE_ERROR, QE_ERROR_FORMAT, "%s: %s: expected %s, found \"%s\"", l->label, field,
            what, shown);
    else
        g_set_error(l->error, QE_ERROR, QE_ERROR_FORMAT, "%s: %s: expected %s, found %s", l->label, field,
            what, qe_json_token_name(found));
    return false;
}

static bool unsupported(loader *l, const char *field, const char *what, const char *found)
{
    g_autofree char *shown = qe_json_excerpt(found);
    g_set_error(l->error, QE_ERROR, QE_ERROR_UNSUPPORTED, "%s: %s: expected %s, found %s", l->label, field,
        what, shown);
    return false;
}

static bool twice(loader *l, const char *field)
{
    g_set_error(l->error, QE_ERROR, QE_ERROR_FORMAT, "%s: %s: expected once, found twice", l->label, field);
    return false;
}

static qe_json_token next(loader *l)
{
    return qe_json_reader_next(&l->reader, l->error);
}

static bool skip(loader *l)
{
    qe_json_token first = next(l);
    return first != QE_JSON_ERROR && qe_json_reader_skip(&l->reader, first, l->error);
}

static bool read_bool(loader *l, const char *field, bool *value)
{
    qe_json_token t = next(l);
    if (t != QE_JSON_TRUE && t != QE_JSON_FALSE)
        return expected(l, field, "true or false", t);
    *value = t == QE_JSON_TRUE;
    return true;
}

/* A string (owned in *@value, which must be NULL before) or, when @nullable, null. */
static bool read_string(loader *l, const char *field, bool nullable, char **value)
{
    qe_json_token t = next(l);
    if (*value != NULL)
        return twice(l, field);
    if (t == QE_JSON_NULL && nullable)
        return true;
    if (t != QE_JSON_STRING)
        return expected(l, field, nullable ? "a string or null" : "a string", t);
    *value = g_strndup(l->reader.text->str, l->reader.text->len);
    return true;
}

/* Walks an object that was just opened: returns 1 with the key in *@key (owned by the caller, freed here on the next
 * call), 0 at its end, -1 on errors. */
static int next_key(loader *l, char **key)
{
    g_clear_pointer(key, g_free);
    qe_json_token t = next(l);
    if (t == QE_JSON_KEY) {
        *key = g_strdup(l->reader.text->str);
        return 1;
    }
    return t == QE_JSON_OBJECT_END ? 0 : -1;
}

static const char *const added_fields[] = {
    "id", "content", "special", "normalized", "single_word", "lstrip", "rstrip"};

static bool read_added_token(loader *l)
{
    enum { ID, CONTENT, SPECIAL, NORMALIZED, SINGLE_WORD, LSTRIP, RSTRIP, N_FIELDS };
    int64_t id = -1;
    bool flag[N_FIELDS] = {false};
    guint seen = 0;
    g_autofree char *content = NULL, *key = NULL;
    int more;
    while ((more = next_key(l, &key)) > 0) {
        guint i = 0;
        while (i < N_FIELDS && !g_str_equal(key, added_fields[i]))
            i++;
        if (i == N_FIELDS) {
            if (!skip(l))
                return false;
            continue;
        }
        g_autofree char *field = g_strdup_printf("added_tokens[%u].%s", l->file->added->len, added_fields[i]);
        if (seen & 1u << i)
            return twice(l, field);
        seen |= 1u << i;
        if (i == ID) {
            qe_json_token t = next(l);
            if (t != QE_JSON_INTEGER || l->reader.integer < 0 || l->reader.integer > UINT32_MAX)
                return expected(l, field, "a token id", t);
            id = l->reader.integer;
        } else if (i == CONTENT) {
            if (!read_string(l, field, false, &content))
                return false;
        } else if (!read_bool(l, field, &flag[i])) {
            return false;
        } else if (i >= SINGLE_WORD && flag[i]) {
            return unsupported(l, field, "false", "true");
        }
    }
    if (more < 0)
        return false;
    if (id < 0 || content == NULL || *content == '\0') {
        g_set_error(l->error, QE_ERROR, QE_ERROR_FORMAT,
            "%s: added_tokens[%u]: expected an id and a content, found none", l->label, l->file->added->len);
        return false;
    }
    /* The library's default: special tokens are looked for in the text as given, others in the normalised text. */
    if (!(seen & 1u << NORMALIZED))
        flag[NORMALIZED] = !flag[SPECIAL];
    qe_added_token token = {g_steal_pointer(&content), (uint32_t)id, flag[SPECIAL], flag[NORMALIZED]};
    g_array_append_val(l->file->added, token);
    return true;
}

static bool read_added_tokens(loader *l)
{
    if (l->file->added != NULL)
        return twice(l, "added_tokens");
    l->file->added = g_array_new(FALSE, TRUE, sizeof(qe_added_token));
    qe_json_token t = next(l);
    if (t == QE_JSON_NULL)
        return true;
    if (t != QE_JSON_ARRAY)
        return expected(l, "added_tokens", "a list", t);
    while ((t = next(l)) == QE_JSON_OBJECT)
        if (!read_added_token(l))
            return false;
    return t == QE_JSON_ARRAY_END || expected(l, "added_tokens", "objects", t);
}

static bool read_normalizer(loader *l)
{
    qe_json_token t = next(l);
    if (t == QE_JSON_NULL)
        return true;
    if (t != QE_JSON_OBJECT)
        return expected(l, "normalizer", "an object or null", t);
    g_autofree char *key = NULL, *type = NULL;
    int more;
    while ((more = next_key(l, &key)) > 0)
        if (!(g_str_equal(key, "type") ? read_string(l, "normalizer.type", false, &type) : skip(l)))
            return false;
    if (more < 0)
        return false;
    if (type == NULL || !g_str_equal(type, "NFC"))
        return unsupported(l, "normalizer.type", "NFC, or no normalizer", type ? type : "nothing");
    l->file->nfc = true;
    return true;
}

/* The members of one pre-tokenizer that matter. */
typedef struct {
    char *type, *regex, *behavior;
    bool invert, use_regex, add_prefix_space;
    bool has_list;
} step;

static void step_clear(step *s)
{
    g_free(s->type);
    g_free(s->regex);
    g_free(s->behavior);
}
G_DEFINE_AUTO_CLEANUP_CLEAR_FUNC(step, step_clear)

static bool add_split(loader *l, const char *where, const char *pattern)
{
    g_autofree char *label = g_strdup_printf("%s: %s", l->label, where);
    return qe_pretok_add_split(l->file->pretok, label, pattern, l->error);
}

static bool finish_step(loader *l, const char *where, const step *s, bool *byte_level)
{
    g_autofree char *field = g_strconcat(where, ".type", NULL);
    if (*byte_level)
        return unsupported(l, field, "ByteLevel as the last step", s->type ? s->type : "another step");
    if (s->type && g_str_equal(s->type, "ByteLevel")) {
        g_autofree char *prefix = g_strconcat(where, ".add_prefix_space", NULL);
        *byte_level = true;
        if (s->add_prefix_space)
            return unsupported(l, prefix, "false", "true");
        return !s->use_regex || add_split(l, where, qe_pretok_gpt2_pattern);
    }
    if (s->type == NULL || !g_str_equal(s->type, "Split"))
        return unsupported(l, field, "Split, ByteLevel or a Sequence of them", s->type ? s->type : "nothing");
    g_autofree char *behavior = g_strconcat(where, ".behavior", NULL),
                    *invert = g_strconcat(where, ".invert", NULL);
    g_autofree char *pattern = g_strconcat(where, ".pattern.Regex", NULL);
    if (s->behavior == NULL || !g_str_equal(s->behavior, "Isolated"))
        return unsupported(l, behavior, "Isolated", s->behavior ? s->behavior : "nothing");
    if (s->invert)
        return unsupported(l, invert, "false", "true");
    if (s->regex == NULL)
        return unsupported(l, pattern, "a regular expression", "nothing");
    return add_split(l, pattern, s->regex);
}

static bool read_pattern(loader *l, const char *where, step *s)
{
    g_autofree char *field = g_strconcat(where, ".pattern", NULL), *key = NULL;
    qe_json_token t = next(l);
    int more;
    if (t != QE_JSON_OBJECT)
        return expected(l, field, "an object", t);
    while ((more = next_key(l, &key)) > 0) {
        if (!g_str_equal(key, "Regex"))
            return unsupported(l, field, "Regex", key);
        if (!read_string(l, field, false, &s->regex))
            return false;
    }
    return more == 0;
}

static bool read_pre_tokenizer(loader *l, const char *where, bool nested, bool *byte_level);

static bool read_step_list(loader *l, const char *where, bool *byte_level)
{
    g_autofree char *field = g_strconcat(where, ".pretokenizers", NULL);
    qe_json_token t = next(l);
    if (t != QE_JSON_ARRAY)
        return expected(l, field, "a list", t);
    for (guint i = 0; (t = next(l)) == QE_JSON_OBJECT; i++) {
        g_autofree char *inner = g_strdup_printf("%s[%u]", field, i);
        if (!read_pre_tokenizer(l, inner, true, byte_level))
            return false;
    }
    return t == QE_JSON_ARRAY_END || expected(l, field, "objects", t);
}

/* Inside the object. */
static bool read_pre_tokenizer(loader *l, const char *where, bool nested, bool *byte_level)
{
    g_auto(step) s = {.use_regex = true, .add_prefix_space = false};
    g_autofree char *key = NULL;
    int more;
    while ((more = next_key(l, &key)) > 0) {
        g_autofree char *field = g_strconcat(where, ".", key, NULL);
        bool ok;
        if (g_str_equal(key, "type")) {
            ok = read_string(l, field, false, &s.type);
        } else if (g_str_equal(key, "pretokenizers") && !nested) {
            ok = s.has_list ? twice(l, field) : read_step_list(l, where, byte_level);
            s.has_list = true;
        } else if (g_str_equal(key, "pattern")) {
            ok = read_pattern(l, where, &s);
        } else if (g_str_equal(key, "behavior")) {
            ok = read_string(l, field, false, &s.behavior);
        } else if (g_str_equal(key, "invert")) {
            ok = read_bool(l, field, &s.invert);
        } else if (g_str_equal(key, "use_regex")) {
            ok = read_bool(l, field, &s.use_regex);
        } else if (g_str_equal(key, "add_prefix_space")) {
            ok = read_bool(l, field, &s.add_prefix_space);
        } else {
            ok = skip(l);
        }
        if (!ok)
            return false;
    }
    if (more < 0)
        return false;
    bool is_sequence = s.type && g_str_equal(s.type, "Sequence");
    if (is_sequence != s.has_list) {
        g_autofree char *field = g_strconcat(where, ".type", NULL);
        return unsupported(l, field, "Split, ByteLevel or a Sequence of them", s.type ? s.type : "nothing");
    }
    return is_sequence || finish_step(l, where, &s, byte_level);
}

static bool read_decoder(loader *l)
{
    qe_json_token t = next(l);
    if (t != QE_JSON_OBJECT)
        return expected(l, "decoder", "an object", t);
    g_autofree char *key = NULL, *type = NULL;
    int more;
    while ((more = next_key(l, &key)) > 0)
        if (!(g_str_equal(key, "type") ? read_string(l, "decoder.type", false, &type) : skip(l)))
            return false;
    if (more < 0)
        return false;
    if (type == NULL || !g_str_equal(type, "ByteLevel"))
        return unsupported(l, "decoder.type", "ByteLevel", type ? type : "nothing");
    return true;
}

static bool read_vocab(loader *l)
{
    if (l->vocab_done)
        return twice(l, "model.vocab");
    qe_json_token t = next(l);
    if (t != QE_JSON_OBJECT)
        return expected(l, "model.vocab", "an object", t);
    g_autoptr(GString) token = g_string_new(NULL);
    while ((t = next(l)) == QE_JSON_KEY) {
        g_string_assign(token, l->reader.text->str);
        t = next(l);
        if (t != QE_JSON_INTEGER) {
            g_autofree char *shown = qe_json_excerpt(token->str);
            g_autofree char *field = g_strdup_printf("model.vocab[\"%s\"]", shown);
            return expected(l, field, "a token id", t);
        }
        if (!qe_bpe_add_token(l->file->bpe, token->str, token->len, l->reader.integer, l->error))
            return false;
    }
    if (t != QE_JSON_OBJECT_END)
        return false;
    l->vocab_done = true;
    return qe_bpe_seal_vocab(l->file->bpe, l->error);
}

/* ["left", "right"], of which the bracket was read, or "left right". */
static bool read_merge(loader *l, guint i, qe_json_token first, GString *left)
{
    const GString *text = l->reader.text;
    g_autofree char *field = NULL;
    if (first == QE_JSON_STRING) {
        const char *space = strchr(text->str, ' ');
        if (space == NULL || strchr(space + 1, ' ') != NULL) {
            field = g_strdup_printf("model.merges[%u]", i);
            return expected(l, field, "two tokens with one space between them", first);
        }
        return qe_bpe_add_merge(l->file->bpe, text->str, (gsize)(space - text->str), space + 1,
            text->len - (gsize)(space + 1 - text->str), l->error);
    }
    qe_json_token t = first;
    if (first == QE_JSON_ARRAY && (t = next(l)) == QE_JSON_STRING) {
        g_string_assign(left, text->str);
        t = next(l);
        if (t == QE_JSON_STRING) {
            if (!qe_bpe_add_merge(l->file->bpe, left->str, left->len, text->str, text->len, l->error))
                return false;
            t = next(l);
            if (t == QE_JSON_ARRAY_END)
                return true;
        }
    }
    field = g_strdup_printf("model.merges[%u]", i);
    return expected(l, field, "a list of two strings", t);
}

static bool read_merges(loader *l)
{
    if (l->merges_done)
        return twice(l, "model.merges");
    qe_json_token t = next(l);
    if (t != QE_JSON_ARRAY)
        return expected(l, "model.merges", "a list", t);
    if (!l->vocab_done)
        return qe_json_reader_skip(&l->reader, t, l->error);
    g_autoptr(GString) left = g_string_new(NULL);
    guint i = 0;
    for (; (t = next(l)) != QE_JSON_ARRAY_END; i++) {
        if (t == QE_JSON_ERROR || !read_merge(l, i, t, left))
            return false;
    }
    l->merges_done = true;
    return true;
}

/* A model field that must be off: null, false, 0 or "". */
static bool read_off(loader *l, const char *key)
{
    g_autofree char *field = g_strconcat("model.", key, NULL);
    qe_json_token t = next(l);
    bool off = t == QE_JSON_NULL || t == QE_JSON_FALSE || (t == QE_JSON_STRING && l->reader.text->len == 0) ||
               ((t == QE_JSON_INTEGER || t == QE_JSON_NUMBER) && l->reader.number == 0);
    if (off || t == QE_JSON_ERROR)
        return off;
    return unsupported(l, field, "null, false, 0 or \"\"",
        t == QE_JSON_STRING ? l->reader.text->str : qe_json_token_name(t));
}

static bool read_model(loader *l)
{
    static const char *const off[] = {
        "dropout", "continuing_subword_prefix", "end_of_word_suffix", "byte_fallback"};
    qe_json_token t = next(l);
    if (t != QE_JSON_OBJECT)
        return expected(l, "model", "an object", t);
    g_autofree char *key = NULL, *type = NULL;
    int more;
    while ((more = next_key(l, &key)) > 0) {
        bool ok, is_off = false, ignore_merges;
        for (guint i = 0; i < G_N_ELEMENTS(off); i++)
            is_off |= g_str_equal(key, off[i]);
        if (g_str_equal(key, "type")) {
            ok = read_string(l, "model.type", false, &type);
            if (ok && !g_str_equal(type, "BPE"))
                return unsupported(l, "model.type", "BPE", type);
        } else if (g_str_equal(key, "vocab")) {
            ok = read_vocab(l);
        } else if (g_str_equal(key, "merges")) {
            ok = read_merges(l);
        } else if (g_str_equal(key, "ignore_merges")) {
            ok = read_bool(l, "model.ignore_merges", &ignore_merges);
            if (ok)
                qe_bpe_set_ignore_merges(l->file->bpe, ignore_merges);
        } else {
            ok = is_off ? read_off(l, key) : skip(l);
        }
        if (!ok)
            return false;
    }
    return more == 0;
}

/* The second pass of invariant 2. */
static bool read_only_merges(loader *l)
{
    g_autofree char *key = NULL;
    int more;
    if (next(l) != QE_JSON_OBJECT)
        return false;
    while ((more = next_key(l, &key)) > 0) {
        if (!g_str_equal(key, "model")) {
            if (!skip(l))
                return false;
            continue;
        }
        g_autofree char *inner = NULL;
        if (next(l) != QE_JSON_OBJECT)
            return false;
        while ((more = next_key(l, &inner)) > 0)
            if (!(g_str_equal(inner, "merges") ? read_merges(l) : skip(l)))
                return false;
        if (more < 0)
            return false;
    }
    return more == 0;
}

static bool read_file(loader *l)
{
    enum { ADDED, NORMALIZER, PRE_TOKENIZER, MODEL, DECODER, N_FIELDS };
    static const char *const fields[] = {"added_tokens", "normalizer", "pre_tokenizer", "model", "decoder"};
    guint seen = 0;
    bool byte_level = false;
    g_autofree char *key = NULL;
    int more;
    qe_json_token t = next(l);
    if (t != QE_JSON_OBJECT)
        return expected(l, "the file", "an object", t);
    while ((more = next_key(l, &key)) > 0) {
        guint i = 0;
        bool ok = true;
        while (i < N_FIELDS && !g_str_equal(key, fields[i]))
            i++;
        if (i < N_FIELDS && (seen & 1u << i))
            return twice(l, key);
        seen |= i < N_FIELDS ? 1u << i : 0;
        if (i == ADDED) {
            ok = read_added_tokens(l);
        } else if (i == NORMALIZER) {
            ok = read_normalizer(l);
        } else if (i == MODEL) {
            ok = read_model(l);
        } else if (i == DECODER) {
            ok = read_decoder(l);
        } else if (i == PRE_TOKENIZER) {
            t = next(l);
            ok = t == QE_JSON_OBJECT ? read_pre_tokenizer(l, "pre_tokenizer", false, &byte_level)
                                     : expected(l, "pre_tokenizer", "an object", t);
        } else {
            ok = skip(l);
        }
        if (!ok)
            return false;
    }
    if (more < 0 || next(l) != QE_JSON_END)
        return false;
    for (guint i = PRE_TOKENIZER; i < N_FIELDS; i++)
        if (!(seen & 1u << i)) {
            g_set_error(l->error, QE_ERROR, QE_ERROR_FORMAT, "%s: %s: expected an object, found nothing",
                l->label, fields[i]);
            return false;
        }
    if (!byte_level)
        return unsupported(l, "pre_tokenizer.type", "a ByteLevel step", "none");
    if (!l->vocab_done) {
        g_set_error(l->error, QE_ERROR, QE_ERROR_FORMAT, "%s: model.vocab: expected an object, found nothing",
            l->label);
        return false;
    }
    return true;
}

bool qe_tokenizer_file_parse(
    qe_tokenizer_file *file, const char *label, const char *data, gsize n, GError **error)
{
    loader l = {.file = file, .label = label, .error = error};
    memset(file, 0, sizeof *file);
    file->bpe = qe_bpe_new(label, n);
    file->pretok = qe_pretok_new();
    bool ok = qe_json_reader_init(&l.reader, label, data, n, error) && read_file(&l);
    qe_json_reader_clear(&l.reader);
    if (ok && !l.merges_done) {
        ok = qe_json_reader_init(&l.reader, label, data, n, error) && read_only_merges(&l);
        qe_json_reader_clear(&l.reader);
        if (ok && !l.merges_done) {
            g_set_error(
                error, QE_ERROR, QE_ERROR_FORMAT, "%s: model.merges: expected a list, found nothing", label);
            ok = false;
        }
    }
    if (ok && file->added == NULL)
        file->added = g_array_new(FALSE, TRUE, sizeof(qe_added_token));
    for (guint i = 0; ok && i < file->added->len; i++) {
        const qe_added_token *token = &g_array_index(file->added, qe_added_token, i);
        ok = qe_bpe_add_added(
            file->bpe, token->content, strlen(token->content), token->id, token->special, error);
    }
    if (!ok)
        qe_tokenizer_file_clear(file);
    return ok;
}

void qe_tokenizer_file_clear(qe_tokenizer_file *file)
{
    for (guint i = 0; file->added && i < file->added->len; i++)
        g_free(g_array_index(file->added, qe_added_token, i).content);
    if (file->added)
        g_array_unref(file->added);
    qe_bpe_free(file->bpe);
    qe_pretok_free(file->pretok);
    memset(file, 0, sizeof *file);
}

bool qe_tokenizer_config_parse(const char *label, const char *data, gsize n, char **eos, GError **error)
{
    *eos = NULL;
    JsonObject *root = qe_json_parse(label, data, n, QE_JSON_BIG_INTEGERS, error);
    if (root == NULL)
        return false;
    qe_json_view view = {label, "", root}, inner;
    const char *text = NULL;
    bool found = false, ok;
    JsonNode *node = json_object_get_member(root, "eos_token");
    if (node && JSON_NODE_HOLDS_OBJECT(node))
        ok = qe_json_get_object(&view, "eos_token", "eos_token.", NULL, &inner, error) &&
             qe_json_get_string(&inner, "content", NULL, &text, error);
    else
        ok = qe_json_get_string(&view, "eos_token", &found, &text, error);
    if (ok)
        *eos = g_strdup(text);
    json_object_unref(root);
    return ok;
}
