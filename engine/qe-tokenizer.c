/* qe-tokenizer.c: see qe-tokenizer.h.
 *
 * The way of a text: repair of ill-formed bytes; added tokens that are looked for in the text as given cut it into
 * segments; each segment is normalised; the other added tokens cut it further; the pre-tokenizer cuts pieces; BPE gives
 * ids. PLAIN leaves out both cuts by added tokens.
 *
 * 1. Nothing changes after qe_tokenizer_new() but the reference count and what qe-bpe.c's memo learns (see there).
 * 2. Of the added tokens that begin at a position the longest is taken, and positions go from left to right. */
#include "engine/qe-tokenizer.h"
#include <errno.h>
#include <string.h>
#include "engine/qe-json.h"
#include "engine/qe-limits.h"
#include "engine/qe-nfc.h"
#include "engine/qe-tokenizer-file.h"
#include "engine/qe-utf8.h"

typedef struct {
    const char *text;
    gsize n;
    uint32_t id;
} added;

/* Added tokens sorted by their bytes, and where each first byte's begin. */
typedef struct {
    GArray *tokens; /* added */
    uint32_t first[257];
} added_set;

struct qe_tokenizer {
    gatomicrefcount n_refs;
    qe_tokenizer_file file;
    GPtrArray *normalized; /* char *, owned: contents in normal form */
    added_set as_given, in_normal_form;
    int64_t eos;
};

/* ---- Added tokens ---- */

static int compare_added(const void *a, const void *b)
{
    const added *x = a, *y = b;
    int order = memcmp(x->text, y->text, MIN(x->n, y->n));
    return order != 0 ? order : (x->n > y->n) - (x->n < y->n);
}

static void added_set_sort(added_set *set)
{
    g_array_sort(set->tokens, compare_added);
    memset(set->first, 0, sizeof set->first);
    for (guint i = 0; i < set->tokens->len; i++)
        set->first[(uint8_t)g_array_index(set->tokens, added, i).text[0] + 1]++;
    for (int byte = 0; byte < 256; byte++)
        set->first[byte + 1] += set->first[byte];
}

/* The longest token that begins at @text, or NULL. Narrows the range of tokens that share the text's first @depth bytes,
 * byte by byte, so many tokens with a common beginning cost little. */
static const added *added_set_match(const added_set *set, const char *text, gsize n)
{
    const added *tokens = (const added *)(gpointer)set->tokens->data, *best = NULL;
    guint low = set->first[(uint8_t)*text], high = set->first[(uint8_t)*text + 1];
    for (gsize depth = 1; low < high; depth++) {
        if (tokens[low].n == depth)
            best = &tokens[low++]; /* a token that is a beginning of others sorts first */
        if (depth == n)
            break;
        uint8_t byte = (uint8_t)text[depth];
        guint begin = low, end = high;
        while (begin < end) {
            guint middle = begin + (end - begin) / 2;
            if ((uint8_t)tokens[middle].text[depth] < byte)
                begin = middle + 1;
            else
                end = middle;
        }
        low = begin;
        end = high;
        while (begin < end) {
            guint middle = begin + (end - begin) / 2;
            if ((uint8_t)tokens[middle].text[depth] <= byte)
                begin = middle + 1;
            else
                end = middle;
        }
        high = begin;
    }
    return best;
}

/* The first token in the text and where it begins; NULL when there is none. */
static const added *added_set_search(const added_set *set, const char *text, gsize n, gsize *at)
{
    if (set->tokens->len == 0)
        return NULL;
    for (gsize i = 0; i < n; i++) {
        uint8_t byte = (uint8_t)text[i];
        if (set->first[byte] == set->first[byte + 1])
            continue;
        const added *found = added_set_match(set, text + i, n - i);
        if (found != NULL) {
            *at = i;
            return found;
        }
    }
    return NULL;
}

/* ---- Making ---- */

/* Two added tokens with the same text cannot both be found. */
static bool check_added(const added_set *set, const char *label, GError **error)
{
    for (guint i = 1; i < set->tokens->len; i++) {
        const added *a = &g_array_index(set->tokens, added, i - 1),
                    *b = &g_array_index(set->tokens, added, i);
        if (compare_added(a, b) == 0) {
            g_set_error(error, QE_ERROR, QE_ERROR_FORMAT,
                "%s: added_tokens: expected each content once, found \"%s\" with the ids %u and %u", label,
                a->text, a->id, b->id);
            return false;
        }
    }
    return true;
}

static bool build_added(qe_tokenizer *self, const char *label, GError **error)
{
    self->normalized = g_ptr_array_new_with_free_func(g_free);
    self->as_given.tokens = g_array_new(FALSE, FALSE, sizeof(added));
    self->in_normal_form.tokens = g_array_new(FALSE, FALSE, sizeof(added));
    for (guint i = 0; i < self->file.added->len; i++) {
        const qe_added_token *token = &g_array_index(self->file.added, qe_added_token, i);
        added a = {token->content, strlen(token->content), token->id};
        gsize n_normal;
        char *normal = token->normalized && self->file.nfc ? qe_nfc_normalize(a.text, a.n, &n_normal) : NULL;
        if (normal != NULL) {
            g_ptr_array_add(self->normalized, normal);
            a.text = normal;
            a.n = n_normal;
        }
        g_array_append_val(token->normalized ? self->in_normal_form.tokens : self->as_given.tokens, a);
    }
    added_set_sort(&self->as_given);
    added_set_sort(&self->in_normal_form);
    return check_added(&self->as_given, label, error) && check_added(&self->in_normal_form, label, error);
}

static bool read_config(qe_tokenizer *self, const char *dir, GError **error)
{
    g_autofree char *path = g_build_filename(dir, "tokenizer_config.json", NULL);
    g_autofree char *data = NULL, *eos = NULL;
    size_t n;
    uint32_t id;
    if (!g_file_test(path, G_FILE_TEST_EXISTS))
        return true;
    if (!qe_file_read(path, QE_TOKENIZER_CONFIG_BYTES_MAX, &data, &n, error) ||
        !qe_tokenizer_config_parse(path, data, n, &eos, error))
        return false;
    if (eos == NULL)
        return true;
    if (!qe_tokenizer_find(self, eos, &id)) {
        g_autofree char *shown = qe_json_excerpt(eos);
        g_set_error(error, QE_ERROR, QE_ERROR_FORMAT,
            "%s: eos_token: expected an added token of tokenizer.json, found \"%s\"", path, shown);
        return false;
    }
    self->eos = id;
    return true;
}

qe_tokenizer *qe_tokenizer_new(const char *dir, GError **error)
{
    g_autofree char *path = g_build_filename(dir, "tokenizer.json", NULL);
    g_autofree char *data = NULL;
    size_t n;
    if (!qe_file_read(path, QE_TOKENIZER_BYTES_MAX, &data, &n, error))
        return NULL;
    g_autoptr(qe_tokenizer) self = qe_tokenizer_parse(path, data, n, error);
    if (self == NULL || !read_config(self, dir, error))
        return NULL;
    return g_steal_pointer(&self);
}

qe_tokenizer *qe_tokenizer_parse(const char *label, const char *data, gsize n, GError **error)
{
    g_autoptr(qe_tokenizer) self = g_new0(qe_tokenizer, 1);
    g_atomic_ref_count_init(&self->n_refs);
    self->eos = -1;
    if (!qe_tokenizer_file_parse(&self->file, label, data, n, error) || !build_added(self, label, error))
        return NULL;
    return g_steal_pointer(&self);
}

qe_tokenizer *qe_tokenizer_ref(qe_tokenizer *self)
{
    g_atomic_ref_count_inc(&self->n_refs);
    return self;
}

void qe_tokenizer_unref(qe_tokenizer *self)
{
    if (self == NULL || !g_atomic_ref_count_dec(&self->n_refs))
        return;
    g_clear_pointer(&self->as_given.tokens, g_array_unref);
    g_clear_pointer(&self->in_normal_form.tokens, g_array_unref);
    g_clear_pointer(&self->normalized, g_ptr_array_unref);
    qe_tokenizer_file_clear(&self->file);
    g_free(self);
}

/* ---- Encoding ---- */

typedef struct {
    const qe_tokenizer *self;
    GArray *ids;
} encoding;

static bool encode_piece(void *user, const char *piece, gsize n, GError **error)
{
    encoding *e = user;
    return qe_bpe_encode(e->self->file.bpe, piece, n, e->ids, error);
}

/* Text in normal form without added tokens. */
static bool encode_pieces(encoding *e, const char *text, gsize n, GError **error)
{
    return n == 0 || qe_pretok_run(e->self->file.pretok, text, n, encode_piece, e, error);
}

typedef bool (*segment_fn)(encoding *e, const char *text, gsize n, GError **error);

static bool encode_around(
    encoding *e, const added_set *set, const char *text, gsize n, segment_fn fn, GError **error)
{
    const added *found;
    gsize at;
    while ((found = added_set_search(set, text, n, &at)) != NULL) {
        if (!fn(e, text, at, error))
            return false;
        g_array_append_val(e->ids, found->id);
        text += at + found->n;
        n -= at + found->n;
    }
    return fn(e, text, n, error);
}

static bool encode_plain(encoding *e, const char *text, gsize n, GError **error)
{
    gsize n_normal;
    g_autofree char *normal = e->self->file.nfc ? qe_nfc_normalize(text, n, &n_normal) : NULL;
    return normal ? encode_pieces(e, normal, n_normal, error) : encode_pieces(e, text, n, error);
}

static bool encode_segment(encoding *e, const char *text, gsize n, GError **error)
{
    gsize n_normal = n;
    g_autofree char *normal = e->self->file.nfc ? qe_nfc_normalize(text, n, &n_normal) : NULL;
    return encode_around(
        e, &e->self->in_normal_form, normal ? normal : text, normal ? n_normal : n, encode_pieces, error);
}

bool qe_tokenizer_encode(const qe_tokenizer *self, const char *text, gsize n_bytes, qe_encode_flags flags,
    GArray *ids, GError **error)
{
    encoding e = {self, ids};
    guint n_before = ids->len;
    g_autoptr(GString) repaired = NULL;
    if (n_bytes > QE_TEXT_BYTES_MAX) {
        g_set_error(error, QE_ERROR, QE_ERROR_INVALID,
            "text: expected at most %u bytes, found %" G_GSIZE_FORMAT, QE_TEXT_BYTES_MAX, n_bytes);
        return false;
    }
    if (n_bytes == 0)
        return true;
    if (qe_utf8_valid_prefix(text, n_bytes) != n_bytes) {
        repaired = g_string_sized_new(n_bytes + 16);
        qe_utf8_append_repaired(repaired, text, n_bytes);
        text = repaired->str;
        n_bytes = repaired->len;
    }
    bool ok = flags & QE_ENCODE_ADDED_TOKENS
                  ? encode_around(&e, &self->as_given, text, n_bytes, encode_segment, error)
                  : encode_plain(&e, text, n_bytes, error);
    if (!ok)
        g_array_set_size(ids, n_before);
    return ok;
}

/* ---- Decoding ---- */

char *qe_tokenizer_decode(
    const qe_tokenizer *self, const uint32_t *ids, gsize n_ids, bool skip_special, gsize *n_out)
{
    GString *text = g_string_new(NULL);
    qe_utf8_filter filter;
    qe_utf8_filter_init(&filter);
    for (gsize i = 0; i < n_ids; i++) {
        gsize n;
        const char *bytes = qe_tokenizer_token_bytes(self, ids[i], &n);
        if (bytes != NULL && !(skip_special && qe_tokenizer_is_special(self, ids[i])))
            qe_utf8_filter_push(&filter, bytes, n, text);
    }
    qe_utf8_filter_flush(&filter, text);
    if (n_out != NULL)
        *n_out = text->len;
    return g_string_free(text, FALSE);
}

const char *qe_tokenizer_token_bytes(const qe_tokenizer *self, uint32_t id, gsize *n_bytes)
{
    return qe_bpe_bytes(self->file.bpe, id, n_bytes);
}

uint32_t qe_tokenizer_n_tokens(const qe_tokenizer *self)
{
    return qe_bpe_n_tokens(self->file.bpe);
}

bool qe_tokenizer_has_token(const qe_tokenizer *self, uint32_t id)
{
    return qe_bpe_flags(self->file.bpe, id) != 0;
}

bool qe_tokenizer_is_added(const qe_tokenizer *self, uint32_t id)
{
    return qe_bpe_flags(self->file.bpe, id) & QE_TOKEN_ADDED;
}

bool qe_tokenizer_is_special(const qe_tokenizer *self, uint32_t id)
{
    return qe_bpe_flags(self->file.bpe, id) & QE_TOKEN_SPECIAL;
}

bool qe_tokenizer_find(const qe_tokenizer *self, const char *content, uint32_t *id)
{
    for (guint i = 0; i < self->file.added->len; i++) {
        const qe_added_token *token = &g_array_index(self->file.added, qe_added_token, i);
        if (g_str_equal(token->content, content)) {
            *id = token->id;
            return true;
        }
    }
    return false;
}

int64_t qe_tokenizer_get_eos(const qe_tokenizer *self)
{
    return self->eos;
}
