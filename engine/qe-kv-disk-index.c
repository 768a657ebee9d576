/* qe-kv-disk-index.c: writes and reads index files (format: qe-kv-disk-index.h). Pure functions; any thread.
 *
 * Invariants:
 *  1. Parsing takes any bytes: nothing is read past @n, and no size is multiplied out before its bound was checked.
 *  2. A parsed listing obeys all that encode demands: encode(parse(x)) = x. */
#include "engine/qe-kv-disk-index.h"
#include <string.h>
#include "engine/qe-limits.h"

#define PRIME_1 0x9E3779B185EBCA87ull
#define PRIME_2 0xC2B2AE3D27D4EB4Full
#define PRIME_3 0x165667B19E3779F9ull
#define PRIME_4 0x85EBCA77C2B2AE63ull
#define PRIME_5 0x27D4EB2F165667C5ull

enum {
    AT_VERSION = 8,
    AT_HEADER_BYTES = 12,
    AT_DIGEST = 16,
    AT_PAGE_BYTES = 48,
    AT_CONVERSATION_BYTES = 56,
    AT_N_PAGES = 60,
    AT_N_LOGITS = 64,
    AT_LOGITS_TOKENS = 68,
    AT_CONVERSATION = 72,
    AT_ROOT = 200,
    AT_TAIL = 216,
    AT_ZEROS = 280,
    AT_CHECKSUM = 288,
    RECORD_IDS = 16,
    RECORD_CHECKSUM = 80,
    RECORD_SLOT = 88,
    RECORD_ZEROS = 92,
};
G_STATIC_ASSERT(AT_CONVERSATION + QE_KV_DISK_CONVERSATION_MAX == AT_ROOT);
G_STATIC_ASSERT(AT_CHECKSUM + 8 == QE_KV_INDEX_HEADER_BYTES);
G_STATIC_ASSERT(RECORD_ZEROS + 4 == QE_KV_INDEX_RECORD_BYTES);

static uint32_t get_u32(const uint8_t *p)
{
    uint32_t v;
    memcpy(&v, p, sizeof v);
    return GUINT32_FROM_LE(v);
}

static uint64_t get_u64(const uint8_t *p)
{
    uint64_t v;
    memcpy(&v, p, sizeof v);
    return GUINT64_FROM_LE(v);
}

static void put_u32(uint8_t *p, uint32_t v)
{
    v = GUINT32_TO_LE(v);
    memcpy(p, &v, sizeof v);
}

static void put_u64(uint8_t *p, uint64_t v)
{
    v = GUINT64_TO_LE(v);
    memcpy(p, &v, sizeof v);
}

static inline uint64_t rotate(uint64_t v, int n)
{
    return (v << n) | (v >> (64 - n));
}

static inline uint64_t lane_round(uint64_t acc, uint64_t input)
{
    return rotate(acc + input * PRIME_2, 31) * PRIME_1;
}

static inline uint64_t merge_lane(uint64_t acc, uint64_t lane)
{
    return (acc ^ lane_round(0, lane)) * PRIME_1 + PRIME_4;
}

uint64_t qe_kv_disk_checksum(const void *bytes, size_t n, uint64_t seed)
{
    const uint8_t *p = bytes, *end = p + n;
    uint64_t acc = seed + PRIME_5;
    if (n >= 32) {
        uint64_t a = seed + PRIME_1 + PRIME_2, b = seed + PRIME_2, c = seed, d = seed - PRIME_1;
        for (; (size_t)(end - p) >= 32; p += 32) {
            a = lane_round(a, get_u64(p));
            b = lane_round(b, get_u64(p + 8));
            c = lane_round(c, get_u64(p + 16));
            d = lane_round(d, get_u64(p + 24));
        }
        acc = rotate(a, 1) + rotate(b, 7) + rotate(c, 12) + rotate(d, 18);
        acc = merge_lane(merge_lane(merge_lane(merge_lane(acc, a), b), c), d);
    }
    acc += n;
    for (; end - p >= 8; p += 8)
        acc = rotate(acc ^ lane_round(0, get_u64(p)), 27) * PRIME_1 + PRIME_4;
    if (end - p >= 4) {
        acc = rotate(acc ^ (get_u32(p) * PRIME_1), 23) * PRIME_2 + PRIME_3;
        p += 4;
    }
    for (; p < end; p++)
        acc = rotate(acc ^ (*p * PRIME_5), 11) * PRIME_1;
    acc = (acc ^ (acc >> 33)) * PRIME_2;
    acc = (acc ^ (acc >> 29)) * PRIME_3;
    return acc ^ (acc >> 32);
}

uint64_t qe_kv_disk_page_checksum(const void *bytes, size_t n, const qe_page_key *key)
{
    return qe_kv_disk_checksum(bytes, n, get_u64(key->b));
}

uint64_t qe_kv_index_bytes(uint64_t n_pages, uint64_t n_logits)
{
    return QE_KV_INDEX_HEADER_BYTES + n_pages * QE_KV_INDEX_RECORD_BYTES + 4 * n_logits + 8;
}

void qe_kv_disk_listing_clear(qe_kv_disk_listing *listing)
{
    g_free(listing->pages);
    g_free(listing->checksums);
    g_free(listing->slots);
    g_free(listing->logits);
    memset(listing, 0, sizeof *listing);
}

uint8_t *qe_kv_index_encode(const qe_kv_index_identity *identity, const qe_kv_disk_listing *listing)
{
    size_t n = (size_t)qe_kv_index_bytes(listing->n_pages, listing->n_logits);
    size_t n_conversation = strlen(identity->conversation);
    uint8_t *data = g_malloc0(n), *p = data + QE_KV_INDEX_HEADER_BYTES;
    memcpy(data, QE_KV_INDEX_MAGIC, 8);
    put_u32(data + AT_VERSION, QE_KV_INDEX_VERSION);
    put_u32(data + AT_HEADER_BYTES, QE_KV_INDEX_HEADER_BYTES);
    memcpy(data + AT_DIGEST, identity->digest, QE_KV_DISK_DIGEST_BYTES);
    put_u64(data + AT_PAGE_BYTES, identity->page_bytes);
    put_u32(data + AT_CONVERSATION_BYTES, (uint32_t)n_conversation);
    put_u32(data + AT_N_PAGES, listing->n_pages);
    put_u32(data + AT_N_LOGITS, listing->n_logits);
    put_u32(data + AT_LOGITS_TOKENS, listing->logits_n_tokens);
    memcpy(data + AT_CONVERSATION, identity->conversation, n_conversation);
    if (listing->n_pages > 0)
        memcpy(data + AT_ROOT, listing->pages[0].parent.b, QE_PAGE_KEY_BYTES);
    for (uint32_t i = 0; i < listing->n_tail; i++)
        put_u32(data + AT_TAIL + 4 * i, listing->tail_ids[i]);
    put_u64(data + AT_CHECKSUM, qe_kv_disk_checksum(data, AT_CHECKSUM, 0));
    for (uint32_t i = 0; i < listing->n_pages; i++, p += QE_KV_INDEX_RECORD_BYTES) {
        memcpy(p, listing->pages[i].key.b, QE_PAGE_KEY_BYTES);
        for (uint32_t j = 0; j < QE_PAGE_KEY_TOKENS; j++)
            put_u32(p + RECORD_IDS + 4 * j, listing->pages[i].ids[j]);
        put_u64(p + RECORD_CHECKSUM, listing->checksums[i]);
        put_u32(p + RECORD_SLOT, listing->slots[i]);
    }
    for (uint32_t i = 0; i < listing->n_logits; i++, p += 4) {
        uint32_t bits;
        memcpy(&bits, &listing->logits[i], sizeof bits);
        put_u32(p, bits);
    }
    put_u64(p, qe_kv_disk_checksum(data, n - 8, 0));
    return data;
}

G_GNUC_PRINTF(2, 3) static bool refuse(GError **error, const char *format, ...)
{
    va_list args;
    va_start(args, format);
    g_autofree char *text = g_strdup_vprintf(format, args);
    va_end(args);
    g_set_error_literal(error, QE_ERROR, QE_ERROR_FORMAT, text);
    return false;
}

static bool is_zero(const uint8_t *p, size_t n)
{
    for (size_t i = 0; i < n; i++)
        if (p[i] != 0)
            return false;
    return true;
}

/* What the file is: format, model, conversation. */
static bool check_header(
    const char *name, const uint8_t *data, size_t n, const qe_kv_index_identity *identity, GError **error)
{
    uint32_t version, n_conversation;
    if (n < QE_KV_INDEX_HEADER_BYTES + 8)
        return refuse(error, "%s: header length: the file has %zu bytes, an index at least %u", name, n,
            QE_KV_INDEX_HEADER_BYTES + 8);
    if (memcmp(data, QE_KV_INDEX_MAGIC, 8) != 0)
        return refuse(error, "%s: magic: this is not an index of KV pages", name);
    version = get_u32(data + AT_VERSION);
    if (version != QE_KV_INDEX_VERSION) {
        g_set_error(error, QE_ERROR, QE_ERROR_UNSUPPORTED, "%s: version: expected %u, found %u", name,
            QE_KV_INDEX_VERSION, version);
        return false;
    }
    if (get_u32(data + AT_HEADER_BYTES) != QE_KV_INDEX_HEADER_BYTES)
        return refuse(error, "%s: header length: expected %u, found %u", name, QE_KV_INDEX_HEADER_BYTES,
            get_u32(data + AT_HEADER_BYTES));
    if (memcmp(data + AT_DIGEST, identity->digest, QE_KV_DISK_DIGEST_BYTES) != 0)
        return refuse(error, "%s: digest: the pages are of another model, layout or build", name);
    if (get_u64(data + AT_PAGE_BYTES) != identity->page_bytes)
        return refuse(error, "%s: page bytes: expected %" G_GUINT64_FORMAT ", found %" G_GUINT64_FORMAT, name,
            identity->page_bytes, get_u64(data + AT_PAGE_BYTES));
    if (get_u64(data + AT_CHECKSUM) != qe_kv_disk_checksum(data, AT_CHECKSUM, 0))
        return refuse(error, "%s: header checksum differs", name);
    n_conversation = get_u32(data + AT_CONVERSATION_BYTES);
    if (n_conversation != strlen(identity->conversation) || n_conversation > QE_KV_DISK_CONVERSATION_MAX ||
        memcmp(data + AT_CONVERSATION, identity->conversation, n_conversation) != 0)
        return refuse(error, "%s: conversation: the file is of another conversation", name);
    if (!is_zero(data + AT_CONVERSATION + n_conversation, QE_KV_DISK_CONVERSATION_MAX - n_conversation) ||
        !is_zero(data + AT_ZEROS, AT_CHECKSUM - AT_ZEROS))
        return refuse(error, "%s: header: padding is not zero", name);
    return true;
}

/* Counts, the file's length and the checksum over all. Fills the counts of @out. */
static bool check_counts(
    const char *name, const uint8_t *data, size_t n, qe_kv_disk_listing *out, GError **error)
{
    uint32_t n_pages = get_u32(data + AT_N_PAGES), n_logits = get_u32(data + AT_N_LOGITS);
    uint32_t n_tokens = get_u32(data + AT_LOGITS_TOKENS);
    uint32_t n_tail = n_logits > 0 ? n_tokens % QE_PAGE_KEY_TOKENS : 0;
    if (n_pages > QE_KV_DISK_PAGES_MAX)
        return refuse(error, "%s: %u pages; the limit is %u", name, n_pages, QE_KV_DISK_PAGES_MAX);
    if (n_logits > QE_MODEL_VOCAB_MAX)
        return refuse(error, "%s: %u logits; the limit is %u", name, n_logits, QE_MODEL_VOCAB_MAX);
    if (n != qe_kv_index_bytes(n_pages, n_logits))
        return refuse(error, "%s: length: expected %" G_GUINT64_FORMAT " bytes, found %zu", name,
            qe_kv_index_bytes(n_pages, n_logits), n);
    if (get_u64(data + n - 8) != qe_kv_disk_checksum(data, n - 8, 0))
        return refuse(error, "%s: index checksum differs", name);
    if (n_logits > 0 ? n_tokens / QE_PAGE_KEY_TOKENS > n_pages : n_tokens != 0)
        return refuse(error, "%s: logits after %u tokens, but %u pages", name, n_tokens, n_pages);
    if (!is_zero(data + AT_TAIL + 4 * n_tail, 4 * (QE_PAGE_KEY_TOKENS - n_tail)) ||
        (n_pages == 0 && !is_zero(data + AT_ROOT, QE_PAGE_KEY_BYTES)))
        return refuse(error, "%s: header: unused fields are not zero", name);
    out->n_pages = n_pages;
    out->n_logits = n_logits;
    out->logits_n_tokens = n_tokens;
    out->n_tail = n_tail;
    return true;
}

static bool parse_records(
    const char *name, const uint8_t *data, qe_kv_disk_listing *out, uint8_t *slots_seen, GError **error)
{
    const uint8_t *p = data + QE_KV_INDEX_HEADER_BYTES;
    qe_page_key parent;
    memcpy(parent.b, data + AT_ROOT, QE_PAGE_KEY_BYTES);
    for (uint32_t i = 0; i < out->n_pages; i++, p += QE_KV_INDEX_RECORD_BYTES) {
        qe_kv_disk_page *page = &out->pages[i];
        uint32_t slot = get_u32(p + RECORD_SLOT);
        memcpy(page->key.b, p, QE_PAGE_KEY_BYTES);
        page->parent = parent;
        for (uint32_t j = 0; j < QE_PAGE_KEY_TOKENS; j++)
            page->ids[j] = get_u32(p + RECORD_IDS + 4 * j);
        out->checksums[i] = get_u64(p + RECORD_CHECKSUM);
        out->slots[i] = slot;
        if (slot >= QE_KV_INDEX_SLOTS_MAX || (slots_seen[slot / 8] & (1u << (slot % 8))) != 0)
            return refuse(error, "%s: page %u: slot %u is out of range or taken", name, i, slot);
        slots_seen[slot / 8] |= (uint8_t)(1u << (slot % 8));
        if (!is_zero(p + RECORD_ZEROS, 4))
            return refuse(error, "%s: page %u: padding is not zero", name, i);
        qe_page_key expected = qe_page_key_child(&parent, page->ids);
        if (!qe_page_key_equal(&page->key, &expected))
            return refuse(
                error, "%s: page %u: its key does not follow from the page before and its ids", name, i);
        parent = page->key;
    }
    return true;
}

bool qe_kv_index_parse(const char *name, const uint8_t *data, size_t n, const qe_kv_index_identity *identity,
    qe_kv_disk_listing *out, GError **error)
{
    memset(out, 0, sizeof *out);
    if (!check_header(name, data, n, identity, error) || !check_counts(name, data, n, out, error)) {
        memset(out, 0, sizeof *out);
        return false;
    }
    out->pages = g_new0(qe_kv_disk_page, MAX(out->n_pages, 1));
    out->checksums = g_new0(uint64_t, MAX(out->n_pages, 1));
    out->slots = g_new0(uint32_t, MAX(out->n_pages, 1));
    g_autofree uint8_t *slots_seen = g_malloc0(QE_KV_INDEX_SLOTS_MAX / 8);
    if (!parse_records(name, data, out, slots_seen, error)) {
        qe_kv_disk_listing_clear(out);
        return false;
    }
    const uint32_t n_before = out->logits_n_tokens / QE_PAGE_KEY_TOKENS; /* pages */
    for (uint32_t i = 0; i < out->n_tail; i++) {
        out->tail_ids[i] = get_u32(data + AT_TAIL + 4 * i);
        if (n_before < out->n_pages && out->pages[n_before].ids[i] != out->tail_ids[i]) {
            qe_kv_disk_listing_clear(out);
            return refuse(error, "%s: logits after tokens that page %u does not begin with", name, n_before);
        }
    }
    if (out->n_logits > 0) {
        const uint8_t *p = data + n - 8 - 4 * (size_t)out->n_logits;
        out->logits = g_new(float, out->n_logits);
        for (uint32_t i = 0; i < out->n_logits; i++, p += 4) {
            uint32_t bits = get_u32(p);
            memcpy(&out->logits[i], &bits, sizeof bits);
        }
    }
    return true;
}
