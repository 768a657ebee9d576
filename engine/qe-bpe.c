/* qe-bpe.c: see qe-bpe.h.
 *
 * 1. slots[] finds ids by (raw, bytes): open addressing, at most half full. pairs[] finds (rank, id) by two ids.
 * 2. A merge's two parts and its result are tokens, and the result's bytes are the parts' bytes joined.
 * 3. Encoding merges the pair of lowest rank, leftmost first, until no pair has a rank. Two ways give the same ids: a
 *    scan for short pieces, and a heap over a linked list, O(n log n), for long ones.
 * 4. memo[id] answers "does this whole token's text encode to just this token?", which most pieces ask. It is filled on
 *    demand. Every thread would write the same answer, so relaxed atomics are enough and the object stays immutable to
 *    its callers. */
#include "engine/qe-bpe.h"
#include <string.h>
#include "engine/qe-limits.h"

#define NO_ID        UINT32_MAX
#define NO_RANK      UINT32_MAX
#define SHORT_PIECE  48
#define ALPHABET_END 0x144 /* characters from here on stand for no byte */

enum { MEMO_UNKNOWN, MEMO_WHOLE, MEMO_SPLIT };

typedef struct {
    uint32_t begin, n; /* in blob */
} span;

typedef struct {
    uint32_t hash, id; /* id NO_ID: free. The hash spares most looks at other tokens' bytes */
} slot;

typedef struct {
    uint64_t key; /* left << 32 | right; EMPTY_PAIR: free */
    uint32_t rank, id;
} pair;
#define EMPTY_PAIR UINT64_MAX

struct qe_bpe {
    char *label;
    GByteArray *blob;
    GArray *spans;     /* span [n_tokens] */
    GByteArray *flags; /* [n_tokens] */
    slot *slots;       /* [n_slots] */
    uint32_t n_slots, n_used;
    pair *pairs; /* [n_pairs_max] */
    uint32_t n_pairs_max, n_pairs;
    uint32_t byte_ids[256];
    uint32_t longest; /* bytes of the longest token text can yield */
    uint8_t *memo;    /* [n_memo], see 4 */
    uint32_t n_memo;
    bool ignore_merges;
    int16_t alphabet[ALPHABET_END]; /* character to byte, -1: none */
};

static uint32_t hash_bytes(const char *bytes, gsize n, bool raw)
{
    const uint64_t k = 0x9e3779b97f4a7c15u;
    uint64_t h = (n + (raw ? 0x51ed27u : 0)) * k, word;
    while (n >= 8) {
        memcpy(&word, bytes, 8);
        h = (h ^ word) * k;
        h ^= h >> 29;
        bytes += 8;
        n -= 8;
    }
    word = 0;
    memcpy(&word, bytes, n);
    h = (h ^ word) * k;
    h ^= h >> 32;
    h *= k;
    return (uint32_t)(h >> 32);
}

static void build_alphabet(qe_bpe *self)
{
    memset(self->alphabet, 0xff, sizeof self->alphabet);
    int next = 0x100;
    for (int byte = 0; byte < 256; byte++) {
        bool printable = (byte >= 0x21 && byte <= 0x7e) || (byte >= 0xa1 && byte <= 0xac) ||
                         (byte >= 0xae && byte <= 0xff);
        self->alphabet[printable ? byte : next++] = (int16_t)byte;
    }
    g_assert(next == ALPHABET_END);
}

/* Appends to @out the bytes that the string spells, or the string itself (returns true: raw). */
static bool spell(const qe_bpe *self, const char *text, gsize n, GByteArray *out)
{
    guint begin = out->len;
    g_byte_array_set_size(out, begin + (guint)n);
    uint8_t *to = out->data + begin;
    for (gsize i = 0; i < n;) {
        uint8_t first = (uint8_t)text[i];
        uint32_t c = first;
        gsize step = 1;
        if (first >= 0xc0 && first < 0xe0 && i + 1 < n) {
            c = (uint32_t)(first & 0x1f) << 6 | ((uint8_t)text[i + 1] & 0x3f);
            step = 2;
        } else if (first >= 0x80) {
            c = ALPHABET_END;
        }
        if (c >= ALPHABET_END || self->alphabet[c] < 0) {
            memcpy(out->data + begin, text, n);
            return true;
        }
        *to++ = (uint8_t)self->alphabet[c];
        i += step;
    }
    g_byte_array_set_size(out, (guint)(to - out->data));
    return false;
}

static const char *token_bytes(const qe_bpe *self, uint32_t id, gsize *n)
{
    const span *s = &g_array_index(self->spans, span, id);
    *n = s->n;
    return (const char *)self->blob->data + s->begin;
}

/* The slot that holds these bytes, or the free one where they belong. */
static slot *find_slot(const qe_bpe *self, uint32_t hash, const char *bytes, gsize n, bool raw)
{
    uint32_t mask = self->n_slots - 1;
    for (uint32_t at = hash & mask;; at = (at + 1) & mask) {
        slot *s = &self->slots[at];
        if (s->id == NO_ID)
            return s;
        if (s->hash != hash)
            continue;
        gsize n_found;
        const char *found = token_bytes(self, s->id, &n_found);
        if (n_found == n && ((self->flags->data[s->id] & QE_TOKEN_RAW) != 0) == raw &&
            memcmp(found, bytes, n) == 0)
            return s;
    }
}

static uint32_t find_id(const qe_bpe *self, const char *bytes, gsize n, bool raw)
{
    return find_slot(self, hash_bytes(bytes, n, raw), bytes, n, raw)->id;
}

static slot *new_slots(uint32_t n)
{
    slot *slots = g_new(slot, n);
    memset(slots, 0xff, sizeof *slots * n);
    return slots;
}

static void grow_slots(qe_bpe *self)
{
    slot *old = self->slots;
    uint32_t n_old = self->n_slots;
    self->n_slots *= 2;
    self->slots = new_slots(self->n_slots);
    for (uint32_t i = 0; i < n_old; i++) {
        if (old[i].id == NO_ID)
            continue;
        uint32_t at = old[i].hash & (self->n_slots - 1);
        while (self->slots[at].id != NO_ID)
            at = (at + 1) & (self->n_slots - 1);
        self->slots[at] = old[i];
    }
    g_free(old);
}

/* The pair's place, or the free one where it belongs. */
static pair *find_pair(const qe_bpe *self, uint64_t key)
{
    uint32_t mask = self->n_pairs_max - 1;
    uint64_t h = key * 0x9e3779b97f4a7c15u;
    uint32_t at = (uint32_t)(h >> 32) & mask;
    while (self->pairs[at].key != key && self->pairs[at].key != EMPTY_PAIR)
        at = (at + 1) & mask;
    return &self->pairs[at];
}

static void grow_pairs(qe_bpe *self)
{
    pair *old = self->pairs;
    uint32_t n_old = self->n_pairs_max;
    self->n_pairs_max *= 2;
    self->pairs = g_new(pair, self->n_pairs_max);
    memset(self->pairs, 0xff, sizeof(pair) * self->n_pairs_max);
    for (uint32_t i = 0; i < n_old; i++)
        if (old[i].key != EMPTY_PAIR)
            *find_pair(self, old[i].key) = old[i];
    g_free(old);
}

qe_bpe *qe_bpe_new(const char *label, gsize n_file_bytes)
{
    qe_bpe *self = g_new0(qe_bpe, 1);
    self->label = g_strdup(label);
    self->blob = g_byte_array_new();
    self->spans = g_array_new(FALSE, TRUE, sizeof(span));
    self->flags = g_byte_array_new();
    /* Room for what such files hold (75 bytes a token with its merge); both tables grow when it is more. */
    self->n_slots = 1u << 10;
    while (self->n_slots < 2 * (n_file_bytes / 80) && self->n_slots < 2 * QE_MODEL_VOCAB_MAX)
        self->n_slots *= 2;
    self->slots = new_slots(self->n_slots);
    self->n_pairs_max = self->n_slots;
    self->pairs = g_new(pair, self->n_pairs_max);
    memset(self->pairs, 0xff, sizeof(pair) * self->n_pairs_max);
    build_alphabet(self);
    return self;
}

void qe_bpe_free(qe_bpe *self)
{
    if (self == NULL)
        return;
    g_free(self->label);
    g_byte_array_unref(self->blob);
    g_array_unref(self->spans);
    g_byte_array_unref(self->flags);
    g_free(self->slots);
    g_free(self->pairs);
    g_free(self->memo);
    g_free(self);
}

static char *excerpt(const char *text, gsize n)
{
    g_autofree char *valid = g_utf8_make_valid(text, (gssize)MIN(n, 240));
    if (g_utf8_strlen(valid, -1) <= 60)
        return g_steal_pointer(&valid);
    g_autofree char *head = g_utf8_substring(valid, 0, 60);
    return g_strconcat(head, "...", NULL);
}

static bool check_id(
    const qe_bpe *self, const char *field, const char *text, gsize n, int64_t id, GError **error)
{
    if (id >= 0 && id < (int64_t)QE_MODEL_VOCAB_MAX)
        return true;
    g_autofree char *shown = excerpt(text, n);
    g_set_error(error, QE_ERROR, QE_ERROR_FORMAT,
        "%s: %s: the id of \"%s\": expected 0 to %u, found %" G_GINT64_FORMAT, self->label, field, shown,
        QE_MODEL_VOCAB_MAX - 1, id);
    return false;
}

/* Makes @id a token of blob[begin .. end). */
static void put_token(qe_bpe *self, uint32_t id, guint begin, uint8_t flags)
{
    if (id >= self->spans->len) {
        guint n_old = self->flags->len;
        g_array_set_size(self->spans, id + 1);
        g_byte_array_set_size(self->flags, id + 1);
        memset(self->flags->data + n_old, 0, id + 1 - n_old);
    }
    g_array_index(self->spans, span, id) = (span){begin, self->blob->len - begin};
    self->flags->data[id] = flags;
}

bool qe_bpe_add_token(qe_bpe *self, const char *text, gsize n, int64_t id, GError **error)
{
    if (!check_id(self, "model.vocab", text, n, id, error))
        return false;
    g_autofree char *shown = NULL;
    if (n == 0) {
        g_set_error(error, QE_ERROR, QE_ERROR_FORMAT,
            "%s: model.vocab: expected a token of at least one character, found \"\" (id %" G_GINT64_FORMAT
            ")",
            self->label, id);
        return false;
    }
    if (qe_bpe_flags(self, (uint32_t)id) != 0) {
        gsize n_other;
        const char *other = token_bytes(self, (uint32_t)id, &n_other);
        g_autofree char *other_shown = excerpt(other, n_other);
        shown = excerpt(text, n);
        g_set_error(error, QE_ERROR, QE_ERROR_FORMAT,
            "%s: model.vocab: expected each id once, found id %" G_GINT64_FORMAT
            " for \"%s\" and for the bytes of \"%s\"",
            self->label, id, shown, other_shown);
        return false;
    }
    if (self->blob->len > INT32_MAX - n) {
        g_set_error(
            error, QE_ERROR, QE_ERROR_UNSUPPORTED, "%s: model.vocab: more than 2 GiB of tokens", self->label);
        return false;
    }
    guint begin = self->blob->len;
    bool raw = spell(self, text, n, self->blob);
    const char *bytes = (const char *)self->blob->data + begin;
    uint32_t hash = hash_bytes(bytes, self->blob->len - begin, raw);
    slot *place = find_slot(self, hash, bytes, self->blob->len - begin, raw);
    if (place->id != NO_ID) {
        shown = excerpt(text, n);
        g_set_error(error, QE_ERROR, QE_ERROR_FORMAT,
            "%s: model.vocab: expected each token once, found \"%s\" with the ids %u and %" G_GINT64_FORMAT,
            self->label, shown, place->id, id);
        g_byte_array_set_size(self->blob, begin);
        return false;
    }
    *place = (slot){hash, (uint32_t)id};
    put_token(self, (uint32_t)id, begin, (uint8_t)(QE_TOKEN_PRESENT | (raw ? QE_TOKEN_RAW : 0)));
    if (!raw)
        self->longest = MAX(self->longest, self->blob->len - begin);
    if (++self->n_used * 2 > self->n_slots)
        grow_slots(self);
    return true;
}

bool qe_bpe_seal_vocab(qe_bpe *self, GError **error)
{
    for (int byte = 0; byte < 256; byte++) {
        char text = (char)byte;
        self->byte_ids[byte] = find_id(self, &text, 1, false);
        if (self->byte_ids[byte] == NO_ID) {
            g_set_error(error, QE_ERROR, QE_ERROR_FORMAT,
                "%s: model.vocab: expected a token for each of the 256 bytes (byte-level BPE), found none "
                "for byte 0x%02x",
                self->label, byte);
            return false;
        }
    }
    self->n_memo = self->spans->len;
    self->memo = g_new0(uint8_t, self->n_memo);
    return true;
}

static bool merge_error(const qe_bpe *self, const char *left, gsize n_left, const char *right, gsize n_right,
    const char *problem, GError **error)
{
    g_autofree char *left_shown = excerpt(left, n_left);
    g_autofree char *right_shown = excerpt(right, n_right);
    g_set_error(error, QE_ERROR, QE_ERROR_FORMAT, "%s: model.merges[%u] (\"%s\", \"%s\"): %s", self->label,
        self->n_pairs, left_shown, right_shown, problem);
    return false;
}

bool qe_bpe_add_merge(
    qe_bpe *self, const char *left, gsize n_left, const char *right, gsize n_right, GError **error)
{
    /* The three strings are spelled at the blob's end and dropped again. */
    guint begin = self->blob->len;
    if (n_left + n_right > INT32_MAX / 4 || begin > INT32_MAX - 2 * (n_left + n_right))
        return merge_error(self, left, n_left, right, n_right, "too long", error);
    bool left_raw = spell(self, left, n_left, self->blob);
    guint middle = self->blob->len;
    bool right_raw = spell(self, right, n_right, self->blob);
    guint end = self->blob->len;
    const char *at = (const char *)self->blob->data;
    uint32_t left_id = find_id(self, at + begin, middle - begin, left_raw);
    uint32_t right_id = find_id(self, at + middle, end - middle, right_raw);
    uint32_t id;
    if (!left_raw && !right_raw) {
        id = find_id(self, at + begin, end - begin, false);
    } else {
        g_byte_array_append(self->blob, (const guint8 *)left, (guint)n_left);
        g_byte_array_append(self->blob, (const guint8 *)right, (guint)n_right);
        id = find_id(self, (const char *)self->blob->data + end, n_left + n_right, true);
    }
    g_byte_array_set_size(self->blob, begin);
    if (left_id == NO_ID)
        return merge_error(self, left, n_left, right, n_right,
            "expected two tokens of model.vocab, found no such left part", error);
    if (right_id == NO_ID)
        return merge_error(self, left, n_left, right, n_right,
            "expected two tokens of model.vocab, found no such right part", error);
    if (id == NO_ID)
        return merge_error(self, left, n_left, right, n_right,
            "expected the joined token in model.vocab, found none", error);
    pair *p = find_pair(self, (uint64_t)left_id << 32 | right_id);
    if (p->key != EMPTY_PAIR)
        return merge_error(
            self, left, n_left, right, n_right, "expected each pair once, found it a second time", error);
    *p = (pair){(uint64_t)left_id << 32 | right_id, self->n_pairs, id};
    if (++self->n_pairs * 2 > self->n_pairs_max)
        grow_pairs(self);
    return true;
}

void qe_bpe_set_ignore_merges(qe_bpe *self, bool ignore_merges)
{
    self->ignore_merges = ignore_merges;
}

bool qe_bpe_add_added(qe_bpe *self, const char *content, gsize n, int64_t id, bool special, GError **error)
{
    if (!check_id(self, "added_tokens", content, n, id, error))
        return false;
    g_autofree char *shown = excerpt(content, n);
    uint8_t flags = qe_bpe_flags(self, (uint32_t)id);
    if (flags & QE_TOKEN_ADDED) {
        g_set_error(error, QE_ERROR, QE_ERROR_FORMAT,
            "%s: added_tokens: expected each id once, found id %" G_GINT64_FORMAT " again for \"%s\"",
            self->label, id, shown);
        return false;
    }
    guint begin = self->blob->len;
    if (n == 0 || n > INT32_MAX / 4 || begin > INT32_MAX - n) {
        g_set_error(error, QE_ERROR, QE_ERROR_FORMAT,
            "%s: added_tokens: the content of id %" G_GINT64_FORMAT ": expected some text, found %zu bytes",
            self->label, id, (size_t)n);
        return false;
    }
    /* The vocabulary may hold the same string; then the ids are one. */
    bool raw = spell(self, content, n, self->blob);
    uint32_t in_vocab = find_id(self, (const char *)self->blob->data + begin, self->blob->len - begin, raw);
    g_byte_array_set_size(self->blob, begin);
    if (flags != 0 && in_vocab != (uint32_t)id) {
        g_set_error(error, QE_ERROR, QE_ERROR_FORMAT,
            "%s: added_tokens: \"%s\": expected an id that model.vocab does not use, found id "
            "%" G_GINT64_FORMAT,
            self->label, shown, id);
        return false;
    }
    if (in_vocab != NO_ID && in_vocab != (uint32_t)id) {
        g_set_error(error, QE_ERROR, QE_ERROR_FORMAT,
            "%s: added_tokens: \"%s\": expected its id in model.vocab, %u, found id %" G_GINT64_FORMAT,
            self->label, shown, in_vocab, id);
        return false;
    }
    if (flags == 0) {
        g_byte_array_append(self->blob, (const guint8 *)content, (guint)n);
        put_token(self, (uint32_t)id, begin, QE_TOKEN_PRESENT | QE_TOKEN_RAW);
    }
    self->flags->data[id] |= (uint8_t)(QE_TOKEN_ADDED | (special ? QE_TOKEN_SPECIAL : 0));
    return true;
}

uint32_t qe_bpe_n_tokens(const qe_bpe *self)
{
    return self->spans->len;
}

uint8_t qe_bpe_flags(const qe_bpe *self, uint32_t id)
{
    return id < self->flags->len ? self->flags->data[id] : 0;
}

const char *qe_bpe_bytes(const qe_bpe *self, uint32_t id, gsize *n)
{
    *n = 0;
    return qe_bpe_flags(self, id) != 0 ? token_bytes(self, id, n) : NULL;
}

/* ---- Encoding ---- */

static inline uint32_t pair_rank(const qe_bpe *self, uint32_t left, uint32_t right, uint32_t *id)
{
    const pair *p = find_pair(self, (uint64_t)left << 32 | right);
    if (p->key == EMPTY_PAIR)
        return NO_RANK;
    *id = p->id;
    return p->rank;
}

/* @n <= SHORT_PIECE. Returns how many ids are left in @ids. */
static gsize merge_short(const qe_bpe *self, const char *piece, gsize n, uint32_t *ids)
{
    uint32_t ranks[SHORT_PIECE], joined[SHORT_PIECE]; /* of the pair (i, i + 1) */
    for (gsize i = 0; i < n; i++)
        ids[i] = self->byte_ids[(uint8_t)piece[i]];
    for (gsize i = 0; i + 1 < n; i++)
        ranks[i] = pair_rank(self, ids[i], ids[i + 1], &joined[i]);
    while (n > 1) {
        gsize best = 0;
        for (gsize i = 1; i + 1 < n; i++)
            if (ranks[i] < ranks[best])
                best = i;
        if (ranks[best] == NO_RANK)
            break;
        ids[best] = joined[best];
        n--;
        for (gsize i = best + 1; i < n; i++)
            ids[i] = ids[i + 1];
        for (gsize i = best + 1; i + 1 < n; i++) {
            ranks[i] = ranks[i + 1];
            joined[i] = joined[i + 1];
        }
        if (best + 1 < n)
            ranks[best] = pair_rank(self, ids[best], ids[best + 1], &joined[best]);
        if (best > 0)
            ranks[best - 1] = pair_rank(self, ids[best - 1], ids[best], &joined[best - 1]);
    }
    return n;
}

/* A binary heap of (rank << 32 | position): lowest rank first, then leftmost. */
static void heap_push(uint64_t *heap, gsize *n, uint64_t value)
{
    gsize at = (*n)++;
    while (at > 0 && heap[(at - 1) / 2] > value) {
        heap[at] = heap[(at - 1) / 2];
        at = (at - 1) / 2;
    }
    heap[at] = value;
}

static uint64_t heap_pop(uint64_t *heap, gsize *n)
{
    uint64_t top = heap[0], last = heap[--*n];
    gsize at = 0;
    for (;;) {
        gsize child = 2 * at + 1;
        if (child >= *n)
            break;
        if (child + 1 < *n && heap[child + 1] < heap[child])
            child++;
        if (heap[child] >= last)
            break;
        heap[at] = heap[child];
        at = child;
    }
    heap[at] = last;
    return top;
}

/* The same for any length. An entry of the heap is stale when its position's pair has another rank by now. Each of the at
 * most n - 1 merges pops one entry and pushes at most two, so 2 n places are enough. */
static bool merge_long(const qe_bpe *self, const char *piece, gsize n, GArray *out, GError **error)
{
    uint32_t *ids = g_try_new(uint32_t, n), *next = g_try_new(uint32_t, n),
             *previous = g_try_new(uint32_t, n);
    uint32_t *ranks = g_try_new(uint32_t, n);
    uint64_t *heap = g_try_new(uint64_t, 2 * n);
    gsize n_heap = 0;
    bool ok = ids && next && previous && ranks && heap;
    if (!ok) {
        g_set_error(error, QE_ERROR, QE_ERROR_NO_MEMORY,
            "no memory to encode an unbroken run of %zu bytes of text", (size_t)n);
        goto out;
    }
    uint32_t joined = 0;
    for (gsize i = 0; i < n; i++) {
        ids[i] = self->byte_ids[(uint8_t)piece[i]];
        next[i] = (uint32_t)i + 1;
        previous[i] = (uint32_t)i - 1; /* of the first: never read */
    }
    ranks[n - 1] = NO_RANK;
    for (gsize i = 0; i + 1 < n; i++) {
        ranks[i] = pair_rank(self, ids[i], ids[i + 1], &joined);
        if (ranks[i] != NO_RANK)
            heap_push(heap, &n_heap, (uint64_t)ranks[i] << 32 | i);
    }
    while (n_heap > 0) {
        uint64_t top = heap_pop(heap, &n_heap);
        uint32_t at = (uint32_t)top, rank = (uint32_t)(top >> 32);
        if (ranks[at] != rank)
            continue;
        uint32_t gone = next[at];
        pair_rank(self, ids[at], ids[gone], &joined);
        ids[at] = joined;
        next[at] = next[gone];
        ranks[gone] = NO_RANK;
        ranks[at] = NO_RANK;
        if (next[at] < n) {
            previous[next[at]] = at;
            ranks[at] = pair_rank(self, ids[at], ids[next[at]], &joined);
            if (ranks[at] != NO_RANK)
                heap_push(heap, &n_heap, (uint64_t)ranks[at] << 32 | at);
        }
        if (at > 0) {
            uint32_t before = previous[at];
            ranks[before] = pair_rank(self, ids[before], ids[at], &joined);
            if (ranks[before] != NO_RANK)
                heap_push(heap, &n_heap, (uint64_t)ranks[before] << 32 | before);
        }
    }
    for (gsize i = 0; i < n; i = next[i])
        g_array_append_val(out, ids[i]);
out:
    g_free(ids);
    g_free(next);
    g_free(previous);
    g_free(ranks);
    g_free(heap);
    return ok;
}

bool qe_bpe_encode(const qe_bpe *self, const char *piece, gsize n, GArray *ids, GError **error)
{
    if (n == 1) {
        g_array_append_val(ids, self->byte_ids[(uint8_t)*piece]);
        return true;
    }
    uint32_t whole = n <= self->longest ? find_id(self, piece, n, false) : NO_ID;
    uint8_t memo = MEMO_UNKNOWN;
    if (whole != NO_ID) {
        memo = __atomic_load_n(&self->memo[whole], __ATOMIC_RELAXED);
        if (memo == MEMO_WHOLE || self->ignore_merges) {
            g_array_append_val(ids, whole);
            return true;
        }
    }
    guint n_before = ids->len;
    if (n <= SHORT_PIECE) {
        uint32_t merged[SHORT_PIECE];
        gsize n_merged = merge_short(self, piece, n, merged);
        g_array_append_vals(ids, merged, (guint)n_merged);
    } else if (!merge_long(self, piece, n, ids, error)) {
        return false;
    }
    if (whole != NO_ID && memo == MEMO_UNKNOWN) {
        bool is_whole = ids->len == n_before + 1 && g_array_index(ids, uint32_t, n_before) == whole;
        __atomic_store_n(&self->memo[whole], is_whole ? MEMO_WHOLE : MEMO_SPLIT, __ATOMIC_RELAXED);
    }
    return true;
}
