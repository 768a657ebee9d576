/* qe-kv-pages.c: the pool of KV pages.
 *
 *            alloc, copy                     seal
 *   FREE ----------------> TAIL (1 ref) <----------> SEALED (n refs) ---+ ref: n + 1
 *    ^                       |             unseal          |    ^-------+ unref: n - 1
 *    +------- unref ---------+         (one ref only)      |
 *    +------------------------ unref of the last ----------+
 *
 * Invariants, proved by qe_kv_pool_check():
 *  1. FREE pages have no reference; every other page has at least one.
 *  2. A TAIL page has exactly one reference: its holder is the only writer.
 *  3. References counted here equal the page tables' entries.
 *  4. n_free + n_tail + n_sealed = n_reserved, and the free map has exactly the FREE pages.
 *
 * Who may hold a page's bytes: nobody but the device. The pool owns slabs (device buffers of slab_pages pages, shorter
 * where the budget ended) and knows a page's address; it never reads the bytes. Pages are freed while steps that write
 * them still run: that is sound because fills and copies of this file go to COMPUTE, the stream of the steps, so the
 * next holder's bytes land behind the last holder's. Slabs are a stack: the pool grows and shrinks at its end, and it
 * shrinks (qe_kv_pool_trim) only while no step runs.
 *
 * Cost: alloc, ref, unref, seal are O(1) (the free map is a tree of 64-bit words, six levels at most).
 * Thread: the engine's. */
#include "engine/qe-kv-pages.h"

#include <string.h>

#define SLAB_BYTES (32ull << 20) /* what a default slab aims at */
#define NAN_WORD   0xffffffffu   /* NaN as float32 and as two bf16 */
#define LEVELS_MAX 6             /* 64^6 > 2^32 */
#define WORD_BITS  64u

typedef struct {
    uint32_t n_refs;
    uint32_t state; /* qe_page_state */
    uint32_t slab;
} page_info;

typedef struct {
    qk_buffer *buffer;
    uint32_t first, n_pages;
} slab_info;

struct qe_kv_pool {
    qk_backend *backend;
    qk_kv_layout layout;
    uint32_t n_max, slab_pages;
    bool debug_fill;

    GArray *slabs;    /* slab_info, in page order */
    page_info *pages; /* [n_reserved] */
    uint32_t n_reserved, n_tail, n_sealed, n_shared;
    uint32_t n_cap; /* n_max, or n_reserved once a slab failed; only qe_kv_pool_n_available() looks at it */

    /* Free pages: bit p of level 0; a bit of level l + 1 says that the word below has any bit. */
    uint64_t *free_map[LEVELS_MAX];
    uint32_t n_levels;
};

/* ---- The free map ---- */

static void free_map_new(qe_kv_pool *pool)
{
    uint32_t n_bits = pool->n_max;
    do {
        uint32_t n_words = (uint32_t)(((uint64_t)n_bits + WORD_BITS - 1) / WORD_BITS);
        g_assert(pool->n_levels < LEVELS_MAX);
        pool->free_map[pool->n_levels++] = g_new0(uint64_t, n_words);
        n_bits = n_words;
    } while (n_bits > 1);
}

static void free_map_clear_all(qe_kv_pool *pool)
{
    uint32_t n_bits = MAX(pool->n_max, pool->n_reserved);
    for (uint32_t l = 0; l < pool->n_levels; l++) {
        uint32_t n_words = (uint32_t)(((uint64_t)n_bits + WORD_BITS - 1) / WORD_BITS);
        memset(pool->free_map[l], 0, n_words * sizeof(uint64_t));
        n_bits = n_words;
    }
}

static bool free_map_has(const qe_kv_pool *pool, qe_page page)
{
    return (pool->free_map[0][page / WORD_BITS] >> (page % WORD_BITS)) & 1;
}

static void free_map_add(qe_kv_pool *pool, qe_page page)
{
    uint32_t bit = page;
    for (uint32_t l = 0; l < pool->n_levels; l++) {
        uint64_t *word = &pool->free_map[l][bit / WORD_BITS];
        bool was_empty = *word == 0;
        *word |= 1ull << (bit % WORD_BITS);
        if (!was_empty)
            break;
        bit /= WORD_BITS;
    }
}

static void free_map_remove(qe_kv_pool *pool, qe_page page)
{
    uint32_t bit = page;
    for (uint32_t l = 0; l < pool->n_levels; l++) {
        uint64_t *word = &pool->free_map[l][bit / WORD_BITS];
        *word &= ~(1ull << (bit % WORD_BITS));
        if (*word != 0)
            break;
        bit /= WORD_BITS;
    }
}

static qe_page free_map_lowest(const qe_kv_pool *pool)
{
    uint32_t bit = 0;
    for (uint32_t l = pool->n_levels; l-- > 0;) {
        uint64_t word = pool->free_map[l][bit];
        if (word == 0) {
            g_assert(l == pool->n_levels - 1); /* below the top, a set bit promised one */
            return QE_PAGE_NONE;
        }
        bit = bit * WORD_BITS + (uint32_t)__builtin_ctzll(word);
    }
    return bit;
}

/* ---- The pool ---- */

qe_kv_pool *qe_kv_pool_new(qk_backend *backend, const qk_kv_layout *layout, uint32_t n_pages_max,
    uint32_t slab_pages, bool debug_fill)
{
    g_assert(backend != NULL);
    g_assert(layout->page_bytes > 0);
    g_assert(
        layout->page_bytes % 64 == 0); /* keeps every page as aligned as its slab; fills need words of 4 */
    g_assert(n_pages_max > 0 && n_pages_max < QE_PAGE_NONE);

    qe_kv_pool *pool = g_new0(qe_kv_pool, 1);
    pool->backend = backend;
    pool->layout = *layout;
    pool->n_max = n_pages_max;
    pool->n_cap = n_pages_max;
    if (slab_pages == 0)
        slab_pages = (uint32_t)MAX(SLAB_BYTES / layout->page_bytes, QK_SPAN_TOKENS / QK_PAGE_TOKENS);
    pool->slab_pages = MIN(slab_pages, n_pages_max);
    pool->debug_fill = debug_fill;
    pool->slabs = g_array_new(FALSE, FALSE, sizeof(slab_info));
    free_map_new(pool);
    return pool;
}

static slab_info *slab_at(const qe_kv_pool *pool, uint32_t i)
{
    return &g_array_index(pool->slabs, slab_info, i);
}

static void free_last_slab(qe_kv_pool *pool)
{
    qk_buffer_free(slab_at(pool, pool->slabs->len - 1)->buffer);
    g_array_set_size(pool->slabs, pool->slabs->len - 1);
}

void qe_kv_pool_forget(qe_kv_pool *pool)
{
    while (pool->slabs->len > 0)
        free_last_slab(pool);
    g_clear_pointer(&pool->pages, g_free);
    free_map_clear_all(pool);
    pool->n_reserved = pool->n_tail = pool->n_sealed = pool->n_shared = 0;
    pool->n_cap = pool->n_max;
}

void qe_kv_pool_free(qe_kv_pool *pool)
{
    if (pool == NULL)
        return;
    g_assert(pool->n_tail == 0);
    g_assert(pool->n_sealed == 0);
    while (pool->slabs->len > 0)
        free_last_slab(pool);
    g_array_free(pool->slabs, TRUE);
    for (uint32_t l = 0; l < pool->n_levels; l++)
        g_free(pool->free_map[l]);
    g_free(pool->pages);
    g_free(pool);
}

static int error_code(qk_status status)
{
    switch (status) {
    case QK_NO_MEMORY:
        return QE_ERROR_NO_MEMORY;
    case QK_DEVICE_LOST:
        return QE_ERROR_DEVICE_LOST;
    default:
        return QE_ERROR_FAILED;
    }
}

/* Adds one slab; its pages become FREE. */
static bool pool_grow(qe_kv_pool *pool, GError **error)
{
    uint64_t page_bytes = pool->layout.page_bytes;
    uint32_t n_pages =
        pool->n_max > pool->n_reserved ? MIN(pool->slab_pages, pool->n_max - pool->n_reserved) : 0;
    if (n_pages == 0) {
        g_set_error(error, QE_ERROR, QE_ERROR_NO_MEMORY,
            "no KV page left: all %u pages of %" G_GUINT64_FORMAT " bytes are in use and the limit is %u",
            pool->n_reserved, page_bytes, pool->n_max);
        return false;
    }

    qk_buffer *slab = NULL;
    qk_status status = QK_NO_MEMORY;
    const char *reason = "size overflows";
    if (page_bytes <= UINT64_MAX / n_pages) {
        status = qk_buffer_new(pool->backend, QK_MEMORY_DEVICE, n_pages * page_bytes, &slab);
        reason = qk_backend_error(pool->backend);
    }
    if (status != QK_OK) {
        if (status == QK_NO_MEMORY)
            pool->n_cap = pool->n_reserved;
        g_set_error(error, QE_ERROR, error_code(status),
            "cannot add %u KV pages of %" G_GUINT64_FORMAT " bytes to the %u there are (limit %u): %s: %s",
            n_pages, page_bytes, pool->n_reserved, pool->n_max, qk_status_name(status), reason);
        return false;
    }

    slab_info info = {.buffer = slab, .first = pool->n_reserved, .n_pages = n_pages};
    g_array_append_val(pool->slabs, info);
    pool->pages = g_renew(page_info, pool->pages, pool->n_reserved + n_pages);
    for (uint32_t i = 0; i < n_pages; i++) {
        pool->pages[pool->n_reserved] =
            (page_info){.n_refs = 0, .state = QE_PAGE_FREE, .slab = pool->slabs->len - 1};
        free_map_add(pool, pool->n_reserved);
        pool->n_reserved++;
    }
    pool->n_cap = pool->n_max;
    return true;
}

/* A page's place: its slab and the byte offset inside. */
static qk_buffer *page_place(const qe_kv_pool *pool, qe_page page, uint64_t *offset)
{
    g_assert(page < pool->n_reserved);
    const slab_info *slab = slab_at(pool, pool->pages[page].slab);
    *offset = (uint64_t)(page - slab->first) * pool->layout.page_bytes;
    return slab->buffer;
}

/* ---- Size ---- */

bool qe_kv_pool_warm(qe_kv_pool *pool, GError **error)
{
    return pool->slabs->len > 0 || pool_grow(pool, error);
}

static bool slab_is_free(const qe_kv_pool *pool, const slab_info *slab)
{
    for (uint32_t i = 0; i < slab->n_pages; i++) {
        if (pool->pages[slab->first + i].state != QE_PAGE_FREE)
            return false;
    }
    return true;
}

/* Fills and copies of pages that are free by now may still be queued. */
static bool wait_for_compute(qe_kv_pool *pool)
{
    qk_event *event = NULL;
    bool ok = qk_event_new(pool->backend, &event) == QK_OK &&
              qk_event_record(event, QK_STREAM_COMPUTE) == QK_OK && qk_event_wait(event) == QK_OK;
    qk_event_free(event);
    return ok;
}

uint32_t qe_kv_pool_trim(qe_kv_pool *pool, uint32_t n_slabs_kept)
{
    uint32_t n_before = pool->n_reserved;
    bool waited = false;
    while (pool->slabs->len > 0) {
        const slab_info *last = slab_at(pool, pool->slabs->len - 1);
        bool past_budget = last->first >= pool->n_max;
        if ((!past_budget && pool->slabs->len <= n_slabs_kept) || !slab_is_free(pool, last))
            break;
        if (!waited && !wait_for_compute(pool))
            break;
        waited = true;
        for (uint32_t i = 0; i < last->n_pages; i++)
            free_map_remove(pool, last->first + i);
        pool->n_reserved = last->first;
        free_last_slab(pool);
    }
    pool->n_cap = pool->n_max;
    return n_before - pool->n_reserved;
}

void qe_kv_pool_set_max(qe_kv_pool *pool, uint32_t n_pages_max)
{
    g_assert(n_pages_max > 0 && n_pages_max < QE_PAGE_NONE);
    for (uint32_t l = 0; l < pool->n_levels; l++)
        g_clear_pointer(&pool->free_map[l], g_free);
    pool->n_levels = 0;
    pool->n_max = MAX(n_pages_max, pool->n_reserved);
    free_map_new(pool);
    for (qe_page page = 0; page < pool->n_reserved; page++) {
        if (pool->pages[page].state == QE_PAGE_FREE)
            free_map_add(pool, page);
    }
    pool->n_max = n_pages_max;
    pool->n_cap = n_pages_max;
}

/* ---- Pages ---- */

/* The lowest free page as TAIL, its bytes undefined. */
static bool page_take(qe_kv_pool *pool, qe_page *out, GError **error)
{
    qe_page page = free_map_lowest(pool);
    if (page == QE_PAGE_NONE || qe_kv_pool_n_used(pool) >= pool->n_max) {
        if (!pool_grow(pool, error))
            return false;
        page = free_map_lowest(pool);
    }
    page_info *info = &pool->pages[page];
    g_assert(info->state == QE_PAGE_FREE);
    g_assert(info->n_refs == 0);
    free_map_remove(pool, page);
    info->state = QE_PAGE_TAIL;
    info->n_refs = 1;
    pool->n_tail++;
    *out = page;
    return true;
}

/* Gives @page back after the enqueueing of its first bytes failed with @status. */
static bool page_take_failed(
    qe_kv_pool *pool, qe_page page, qk_status status, const char *what, GError **error)
{
    g_set_error(error, QE_ERROR, error_code(status),
        "cannot %s KV page %u of %" G_GUINT64_FORMAT " bytes: %s: %s", what, page, pool->layout.page_bytes,
        qk_status_name(status), qk_backend_error(pool->backend));
    qe_kv_page_unref(pool, page);
    return false;
}

bool qe_kv_page_alloc(qe_kv_pool *pool, qe_page *out, GError **error)
{
    qe_page page;
    if (!page_take(pool, &page, error))
        return false;
    if (pool->debug_fill) {
        uint64_t offset;
        qk_buffer *slab = page_place(pool, page, &offset);
        qk_status status =
            qk_fill_submit(pool->backend, QK_STREAM_COMPUTE, slab, offset, pool->layout.page_bytes, NAN_WORD);
        if (status != QK_OK)
            return page_take_failed(pool, page, status, "fill", error);
    }
    *out = page;
    return true;
}

bool qe_kv_page_copy(qe_kv_pool *pool, qe_page page, qe_page *out, GError **error)
{
    g_assert(qe_kv_page_state(pool, page) != QE_PAGE_FREE);
    qe_page fresh;
    if (!page_take(pool, &fresh, error))
        return false;
    qk_copy copy = {.bytes = pool->layout.page_bytes};
    copy.src = page_place(pool, page, &copy.src_offset);
    copy.dst = page_place(pool, fresh, &copy.dst_offset);
    qk_status status = qk_copy_submit(pool->backend, QK_STREAM_COMPUTE, &copy, 1);
    if (status != QK_OK)
        return page_take_failed(pool, fresh, status, "copy to", error);
    *out = fresh;
    return true;
}

void qe_kv_page_ref(qe_kv_pool *pool, qe_page page)
{
    g_assert(page < pool->n_reserved);
    page_info *info = &pool->pages[page];
    g_assert(info->state == QE_PAGE_SEALED);
    g_assert(info->n_refs < UINT32_MAX);
    info->n_refs++;
    if (info->n_refs == 2)
        pool->n_shared++;
}

void qe_kv_page_unref(qe_kv_pool *pool, qe_page page)
{
    g_assert(page < pool->n_reserved);
    page_info *info = &pool->pages[page];
    g_assert(info->state != QE_PAGE_FREE);
    g_assert(info->n_refs > 0);
    info->n_refs--;
    if (info->n_refs == 1)
        pool->n_shared--;
    if (info->n_refs > 0)
        return;
    if (info->state == QE_PAGE_TAIL)
        pool->n_tail--;
    else
        pool->n_sealed--;
    info->state = QE_PAGE_FREE;
    free_map_add(pool, page);
}

void qe_kv_page_seal(qe_kv_pool *pool, qe_page page)
{
    g_assert(page < pool->n_reserved);
    page_info *info = &pool->pages[page];
    g_assert(info->state == QE_PAGE_TAIL);
    g_assert(info->n_refs == 1);
    info->state = QE_PAGE_SEALED;
    pool->n_tail--;
    pool->n_sealed++;
}

void qe_kv_page_unseal(qe_kv_pool *pool, qe_page page)
{
    g_assert(page < pool->n_reserved);
    page_info *info = &pool->pages[page];
    g_assert(info->state == QE_PAGE_SEALED);
    g_assert(info->n_refs == 1);
    info->state = QE_PAGE_TAIL;
    pool->n_sealed--;
    pool->n_tail++;
}

/* ---- Questions ---- */

qe_page_state qe_kv_page_state(const qe_kv_pool *pool, qe_page page)
{
    g_assert(page < pool->n_reserved);
    return pool->pages[page].state;
}

uint32_t qe_kv_page_refs(const qe_kv_pool *pool, qe_page page)
{
    g_assert(page < pool->n_reserved);
    return pool->pages[page].n_refs;
}

uint64_t qe_kv_page_address(const qe_kv_pool *pool, qe_page page)
{
    uint64_t offset;
    return page_place(pool, page, &offset)->address + offset;
}

qk_buffer *qe_kv_page_buffer(const qe_kv_pool *pool, qe_page page, uint64_t *offset)
{
    return page_place(pool, page, offset);
}

uint32_t qe_kv_pool_n_max(const qe_kv_pool *pool)
{
    return pool->n_max;
}

uint32_t qe_kv_pool_n_reserved(const qe_kv_pool *pool)
{
    return pool->n_reserved;
}

uint32_t qe_kv_pool_n_used(const qe_kv_pool *pool)
{
    return pool->n_tail + pool->n_sealed;
}

uint32_t qe_kv_pool_n_shared(const qe_kv_pool *pool)
{
    return pool->n_shared;
}

uint32_t qe_kv_pool_n_available(const qe_kv_pool *pool)
{
    uint32_t n_used = qe_kv_pool_n_used(pool);
    return pool->n_cap > n_used ? pool->n_cap - n_used : 0;
}

uint64_t qe_kv_pool_page_bytes(const qe_kv_pool *pool)
{
    return pool->layout.page_bytes;
}

/* ---- The checker ---- */

#define BROKEN(error, ...) (g_set_error(error, QE_ERROR, QE_ERROR_FAILED, "KV pool: " __VA_ARGS__), false)

static bool check_page(const qe_kv_pool *pool, qe_page page, uint32_t n_entries, GError **error)
{
    static const char *const names[] = {"FREE", "TAIL", "SEALED"};
    const page_info *info = &pool->pages[page];
    if (info->state > QE_PAGE_SEALED)
        return BROKEN(error, "page %u has no valid state (%u)", page, info->state);
    if ((info->state == QE_PAGE_FREE) != (info->n_refs == 0))
        return BROKEN(error, "page %u is %s with %u references", page, names[info->state], info->n_refs);
    if (info->state == QE_PAGE_TAIL && info->n_refs != 1)
        return BROKEN(error, "page %u is TAIL with %u references, expected 1", page, info->n_refs);
    if (info->n_refs != n_entries)
        return BROKEN(error, "page %u (%s) has %u references, but page tables name it %u times", page,
            names[info->state], info->n_refs, n_entries);
    if (free_map_has(pool, page) != (info->state == QE_PAGE_FREE))
        return BROKEN(error, "page %u is %s, but the free map says otherwise", page, names[info->state]);
    return true;
}

bool qe_kv_pool_check(const qe_kv_pool *pool, const uint32_t *n_entries, GError **error)
{
    uint32_t n_states[3] = {0}, n_shared = 0, n_free_bits = 0;
    for (qe_page page = 0; page < pool->n_reserved; page++) {
        if (!check_page(pool, page, n_entries[page], error))
            return false;
        n_states[pool->pages[page].state]++;
        n_shared += pool->pages[page].n_refs >= 2;
    }
    for (uint32_t i = 0; i < (MAX(pool->n_max, pool->n_reserved) + (uint64_t)WORD_BITS - 1) / WORD_BITS; i++)
        n_free_bits += (uint32_t)__builtin_popcountll(pool->free_map[0][i]);
    if (n_states[QE_PAGE_TAIL] != pool->n_tail || n_states[QE_PAGE_SEALED] != pool->n_sealed)
        return BROKEN(error, "%u TAIL and %u SEALED pages, but the counters say %u and %u",
            n_states[QE_PAGE_TAIL], n_states[QE_PAGE_SEALED], pool->n_tail, pool->n_sealed);
    if (n_shared != pool->n_shared)
        return BROKEN(error, "%u pages are shared, but the counter says %u", n_shared, pool->n_shared);
    if (n_free_bits != n_states[QE_PAGE_FREE])
        return BROKEN(error, "%u FREE pages, but the free map has %u", n_states[QE_PAGE_FREE], n_free_bits);
    if (pool->n_cap > pool->n_max || qe_kv_pool_n_used(pool) > pool->n_reserved)
        return BROKEN(error, "%u pages reserved and %u in use, but at most %u of %u may be", pool->n_reserved,
            qe_kv_pool_n_used(pool), pool->n_cap, pool->n_max);
    uint32_t n_slab_pages = 0;
    for (guint i = 0; i < pool->slabs->len; i++) {
        if (slab_at(pool, i)->first != n_slab_pages)
            return BROKEN(
                error, "slab %u starts at page %u, expected %u", i, slab_at(pool, i)->first, n_slab_pages);
        n_slab_pages += slab_at(pool, i)->n_pages;
    }
    if (n_slab_pages != pool->n_reserved)
        return BROKEN(
            error, "%u slabs hold %u pages, expected %u", pool->slabs->len, n_slab_pages, pool->n_reserved);
    return true;
}
