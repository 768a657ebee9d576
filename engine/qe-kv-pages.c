/* qe-kv-pages.c: states, references and names of KV pages.
 *
 *            alloc, copy                     seal
 *   FREE ----------------> TAIL (1 ref) <----------> SEALED (n refs) ---+ ref: n + 1
 *    ^ ^                     |             unseal       |  |    ^-------+ unref: n - 1
 *    | +------- unref -------+    (one ref, no copy     |  |
 *    |                             on its way)          |  | unref of the last, named and a host tier is there
 *    +----------------- unref of the last --------------+  v
 *    ^                                                  SEALED without a reference: cached --find: 1 ref--> SEALED
 *    +------ evicted ----------------------------------------+
 *
 * Invariants, proved by qe_kv_pool_check(): those of qe-kv-pages.h, and:
 *  5. The index names exactly the pages that are `named`, each under its key.
 *  6. The counters count.
 *
 * Who may hold a page's bytes: nobody but the tiers. The pool knows a page's addresses; it never reads the bytes. Pages
 * are freed while steps that use them still run: that is sound because fills and copies into TAIL pages go to COMPUTE, the
 * stream of the steps, and copies on other streams wait for COMPUTE first (qe-kv-move.c); so the next holder's bytes land
 * behind the last holder's.
 *
 * Cost: alloc, ref, unref, seal, find are O(1). Thread: the engine's. */
#include <string.h>
#include "engine/qe-kv-pool.h"

#define SLAB_BYTES      (32ull << 20)  /* what a default device slab aims at */
#define HOST_SLAB_BYTES (128ull << 20) /* the same for the host */
#define NAN_WORD        0xffffffffu    /* NaN as float32 and as two bf16 */

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
    pool->debug_fill = debug_fill;
    if (slab_pages == 0)
        slab_pages = (uint32_t)MAX(SLAB_BYTES / layout->page_bytes, QK_SPAN_TOKENS / QK_PAGE_TOKENS);
    pool->device = qe_kv_slots_new(&(qe_kv_slots_params){
        .backend = backend,
        .memory = QK_MEMORY_DEVICE,
        .slot_bytes = layout->page_bytes,
        .n_max = n_pages_max,
        .slab_slots = MIN(slab_pages, n_pages_max),
    });
    pool->index = g_hash_table_new_full(qe_page_key_hash_func, qe_page_key_equal_func, g_free, NULL);
    pool->oldest_cached = pool->newest_cached = QE_PAGE_NONE;
    pool->placement_epoch = 1;
    pool->to_store = g_array_new(FALSE, FALSE, sizeof(qe_page));
    pool->to_load = g_array_new(FALSE, FALSE, sizeof(qe_page));
    pool->spare_moves = g_ptr_array_new();
    pool->blocks = g_array_new(FALSE, FALSE, sizeof(qe_bounds_block));
    pool->bounds_epoch = 1;
    return pool;
}

void qe_kv_pool_add_host(qe_kv_pool *pool, uint32_t n_max, uint32_t slab_pages, bool background,
    qe_kv_ledger *device_ledger, qe_kv_ledger *host_ledger)
{
    g_assert(!pool->host && pool->n_pages == 0);
    uint64_t page_bytes = pool->layout.page_bytes;
    qe_kv_slots_set_ledger(pool->device, device_ledger);
    if (n_max == 0)
        return;
    if (slab_pages == 0)
        slab_pages = (uint32_t)MAX(HOST_SLAB_BYTES / page_bytes, 1);
    slab_pages = MIN(slab_pages, MAX(n_max / 8, 1)); /* what one class has no use for, the other may have */
    pool->host = qe_kv_slots_new(&(qe_kv_slots_params){
        .backend = pool->backend,
        .memory = QK_MEMORY_HOST,
        .slot_bytes = page_bytes,
        .n_max = n_max,
        .slab_slots = MIN(slab_pages, n_max),
        .ledger = host_ledger,
        .background = background,
    });
}

void qe_kv_pool_on_host_slab(qe_kv_pool *pool, void (*made)(void *user), void *user)
{
    if (pool->host)
        qe_kv_slots_set_made(pool->host, made, user);
}

void qe_kv_pool_set_seed(qe_kv_pool *pool, const qe_page_key *seed)
{
    pool->seed = *seed;
}

static void free_arrays(qe_kv_pool *pool)
{
    g_clear_pointer(&pool->pages, g_free);
    qe_free_map_free(&pool->free_pages);
    g_hash_table_remove_all(pool->index);
    pool->oldest_cached = pool->newest_cached = QE_PAGE_NONE;
    pool->pages_room = 0;
    pool->n_pages = pool->n_tail = pool->n_sealed = pool->n_shared = pool->n_dying = pool->n_cached = 0;
    g_array_set_size(pool->to_store, 0);
    g_array_set_size(pool->to_load, 0);
    pool->n_to_store = pool->n_moving = pool->n_loading = pool->n_importing = pool->n_pinned = 0;
}

void qe_kv_pool_free(qe_kv_pool *pool)
{
    if (pool == NULL)
        return;
    while (pool->backend && qe_kv_pool_wait_move(pool, NULL))
        ;
    if (pool->backend && qe_kv_slots_n_reserved(pool->device) > 0)
        qe_kv_pool_wait_compute(pool);
    qe_kv_pool_clear_moves(pool);
    g_assert(pool->n_tail == 0);
    g_assert(pool->n_importing == 0 && pool->n_pinned == 0);
    g_assert(pool->n_sealed == pool->n_cached);
    free_arrays(pool);
    qe_kv_slots_free(pool->device);
    qe_kv_slots_free(pool->host);
    g_hash_table_unref(pool->index);
    g_array_unref(pool->to_store);
    g_array_unref(pool->to_load);
    g_ptr_array_unref(pool->spare_moves);
    g_array_unref(pool->blocks);
    qe_free_map_free(&pool->free_places);
    g_free(pool->refusal);
    g_free(pool);
}

int qe_kv_pool_error_code(qk_status status)
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

/* Of a copy or fill that was not enqueued, for whatever reason. */
static int refusal_code(qk_status status)
{
    return status == QK_DEVICE_LOST ? QE_ERROR_DEVICE_LOST : QE_ERROR_REFUSED;
}

static qe_page_info *info_of(const qe_kv_pool *pool, qe_page page)
{
    g_assert(page < pool->n_pages);
    return &pool->pages[page];
}

/* ---- A lost device ---- */

void qe_kv_pool_detach(qe_kv_pool *pool)
{
    qe_kv_pool_clear_moves(pool);
    g_array_set_size(pool->to_load, 0);
    g_array_set_size(pool->to_store, 0);
    pool->n_moving = pool->n_loading = pool->n_to_store = 0;
    qe_kv_pool_forget_bounds(pool);
    for (qe_page page = 0; page < pool->n_pages; page++) {
        qe_page_info *info = &pool->pages[page];
        info->device = COPY_NONE;
        info->to_store = false;
        if (info->host == COPY_MOVING && !info->importing) {
            qe_kv_slots_give(pool->host, info->host_slot);
            info->host = COPY_NONE;
        }
        if (info->state == QE_PAGE_SEALED && info->host == COPY_NONE)
            qe_kv_pool_unname(pool, page);
        if (info->state == QE_PAGE_SEALED && info->n_refs == 0 && (info->host == COPY_NONE || info->dying))
            qe_kv_pool_destroy_page(pool, page);
    }
    qe_kv_slots_detach(pool->device);
    if (pool->host)
        qe_kv_slots_detach(pool->host);
    pool->placement_epoch++;
    pool->backend = NULL;
}

bool qe_kv_pool_attach(qe_kv_pool *pool, qk_backend *backend, uint32_t n_pages_max, GError **error)
{
    g_assert(!pool->backend);
    if (pool->host && !qe_kv_slots_attach(pool->host, backend, error))
        return false;
    if (!qe_kv_slots_attach(pool->device, backend, error)) /* never: it has no slabs */
        g_assert_not_reached();
    pool->backend = backend;
    pool->placement_epoch++; /* the host's pages have other addresses */
    qe_kv_slots_set_max(pool->device, n_pages_max);
    return true;
}

/* ---- Size ---- */

bool qe_kv_pool_warm(qe_kv_pool *pool, GError **error)
{
    return qe_kv_slots_warm(pool->device, error);
}

/* Fills and copies of pages that are free by now may still be queued. */
bool qe_kv_pool_wait_compute(qe_kv_pool *pool)
{
    qk_event *event = NULL;
    bool ok = qk_event_new(pool->backend, &event) == QK_OK &&
              qk_event_record(event, QK_STREAM_COMPUTE) == QK_OK && qk_event_wait(event) == QK_OK;
    qk_event_free(event);
    return ok;
}

uint32_t qe_kv_pool_trim(qe_kv_pool *pool, uint32_t n_slabs_kept)
{
    /* Asking first costs less than a wait for nothing. */
    if (!qe_kv_slots_can_trim(pool->device, n_slabs_kept) || !qe_kv_pool_wait_compute(pool))
        return 0;
    return qe_kv_slots_trim(pool->device, n_slabs_kept);
}

void qe_kv_pool_prepare_host(qe_kv_pool *pool, uint64_t bytes)
{
    if (pool->host)
        qe_kv_slots_prepare(pool->host, (uint32_t)MIN(bytes / pool->layout.page_bytes, (uint64_t)UINT32_MAX));
}

uint32_t qe_kv_pool_trim_host(qe_kv_pool *pool, uint32_t n_slabs)
{
    if (!pool->host || pool->n_moving > 0)
        return 0;
    uint32_t n_there = qe_kv_slots_n_slabs(pool->host), n_kept = n_there > n_slabs ? n_there - n_slabs : 0;
    if (!qe_kv_slots_can_trim(pool->host, n_kept) || !qe_kv_pool_wait_compute(pool))
        return 0;
    return qe_kv_slots_trim(pool->host, n_kept);
}

void qe_kv_pool_set_max(qe_kv_pool *pool, uint32_t n_pages_max)
{
    g_assert(n_pages_max > 0 && n_pages_max < QE_PAGE_NONE);
    qe_kv_slots_set_max(pool->device, n_pages_max);
}

/* ---- Pages: taking ---- */

qe_page qe_kv_pool_take_page(qe_kv_pool *pool)
{
    qe_page page = qe_free_map_lowest(&pool->free_pages);
    if (page == UINT32_MAX) {
        if (pool->n_pages == pool->pages_room) {
            pool->pages_room = MAX(64, pool->pages_room + pool->pages_room / 2);
            pool->pages = g_renew(qe_page_info, pool->pages, pool->pages_room);
            qe_free_map_resize(&pool->free_pages, pool->pages_room);
        }
        page = pool->n_pages++;
        pool->pages[page] = (qe_page_info){0};
    } else {
        qe_free_map_remove(&pool->free_pages, page);
    }
    qe_page_info *info = info_of(pool, page);
    g_assert(info->state == QE_PAGE_FREE && info->n_refs == 0);
    *info = (qe_page_info){.older = QE_PAGE_NONE, .newer = QE_PAGE_NONE};
    return page;
}

/* A FREE page becomes TAIL with the device slot @slot. */
static qe_page page_new(qe_kv_pool *pool, qe_slot slot)
{
    qe_page page = qe_kv_pool_take_page(pool);
    qe_page_info *info = info_of(pool, page);
    info->n_refs = 1;
    info->state = QE_PAGE_TAIL;
    info->device = COPY_READY;
    info->device_slot = slot;
    pool->n_tail++;
    return page;
}

/* A device slot, for which cached pages give theirs. Memory that was never used is taken first. */
bool qe_kv_pool_take_device(qe_kv_pool *pool, qe_slot *slot, GError **error)
{
    g_autoptr(GError) local = NULL;
    if (qe_kv_slots_take(pool->device, slot, &local))
        return true;
    uint32_t n_used = qe_kv_slots_n_used(pool->device), n_max = qe_kv_slots_n_max(pool->device);
    uint32_t n = n_used > n_max ? n_used - n_max + 1 : 1; /* after a cut of the budget one is not enough */
    if (g_error_matches(local, QE_ERROR, QE_ERROR_NO_MEMORY) && qe_kv_pool_evict_cached(pool, n) > 0)
        return qe_kv_slots_take(pool->device, slot, error);
    g_propagate_error(error, g_steal_pointer(&local));
    return false;
}

static bool fill_fresh(qe_kv_pool *pool, qe_page page, GError **error)
{
    if (!pool->debug_fill)
        return true;
    uint64_t offset;
    qk_buffer *slab = qe_kv_page_buffer(pool, page, &offset);
    qk_status status =
        qk_fill_submit(pool->backend, QK_STREAM_COMPUTE, slab, offset, pool->layout.page_bytes, NAN_WORD);
    if (status == QK_OK)
        return true;
    g_set_error(error, QE_ERROR, refusal_code(status),
        "cannot fill KV page %u of %" G_GUINT64_FORMAT " bytes: %s: %s", page, pool->layout.page_bytes,
        qk_status_name(status), qk_backend_error(pool->backend));
    return false;
}

bool qe_kv_page_alloc(qe_kv_pool *pool, qe_page *out, GError **error)
{
    qe_slot slot;
    if (!qe_kv_pool_take_device(pool, &slot, error))
        return false;
    qe_page page = page_new(pool, slot);
    if (!fill_fresh(pool, page, error)) {
        qe_kv_page_unref(pool, page);
        return false;
    }
    *out = page;
    return true;
}

bool qe_kv_page_alloc_run(qe_kv_pool *pool, uint32_t n, qe_page *out, GError **error)
{
    qe_slot first;
    g_autoptr(GError) local = NULL;
    if (!qe_kv_slots_has_run(pool->device, n))
        qe_kv_pool_trim(pool, 0); /* slabs too short for it go before one that is long enough comes */
    if (!qe_kv_slots_take_run(pool->device, n, &first, &local)) {
        bool room = g_error_matches(local, QE_ERROR, QE_ERROR_NO_MEMORY) &&
                    (qe_kv_pool_evict_cached(pool, UINT32_MAX) > 0) + (qe_kv_pool_trim(pool, 0) > 0);
        if (!room) {
            g_propagate_error(error, g_steal_pointer(&local));
            return false;
        }
        if (!qe_kv_slots_take_run(pool->device, n, &first, error))
            return false;
    }
    for (uint32_t i = 0; i < n; i++)
        out[i] = page_new(pool, first + i);
    for (uint32_t i = 0; i < n; i++) {
        if (!fill_fresh(pool, out[i], error)) {
            for (uint32_t k = 0; k < n; k++)
                qe_kv_page_unref(pool, out[k]);
            return false;
        }
    }
    return true;
}

/* Where a page can be copied from: the device, else the host. */
static qk_buffer *source_of(const qe_kv_pool *pool, qe_page page, uint64_t *offset)
{
    const qe_page_info *info = info_of(pool, page);
    if (info->device == COPY_READY)
        return qe_kv_slots_buffer(pool->device, info->device_slot, offset);
    g_assert(info->host == COPY_READY);
    return qe_kv_slots_buffer(pool->host, info->host_slot, offset);
}

bool qe_kv_page_copy_run(qe_kv_pool *pool, const qe_page *from, const qe_page *to, uint32_t n, GError **error)
{
    g_autofree qk_copy *copies = g_new0(qk_copy, MAX(n, 1));
    for (uint32_t i = 0; i < n; i++) {
        copies[i].bytes = pool->layout.page_bytes;
        copies[i].src = source_of(pool, from[i], &copies[i].src_offset);
        copies[i].dst = qe_kv_page_buffer(pool, to[i], &copies[i].dst_offset);
    }
    qk_status status = n ? qk_copy_submit(pool->backend, QK_STREAM_COMPUTE, copies, n) : QK_OK;
    if (status == QK_OK)
        return true;
    g_set_error(error, QE_ERROR, refusal_code(status),
        "cannot copy to KV page %u of %" G_GUINT64_FORMAT " bytes: %s: %s", to[0], pool->layout.page_bytes,
        qk_status_name(status), qk_backend_error(pool->backend));
    return false;
}

bool qe_kv_page_copy(qe_kv_pool *pool, qe_page page, qe_page *out, GError **error)
{
    g_assert(qe_kv_page_state(pool, page) != QE_PAGE_FREE);
    qe_slot slot;
    /* The page has a reference, so taking a slot does not evict it. */
    if (!qe_kv_pool_take_device(pool, &slot, error))
        return false;
    qe_page fresh = page_new(pool, slot);
    if (!qe_kv_page_copy_run(pool, &page, &fresh, 1, error)) {
        qe_kv_page_unref(pool, fresh);
        return false;
    }
    *out = fresh;
    return true;
}

/* ---- Pages: references ---- */

void qe_kv_pool_cache_page(qe_kv_pool *pool, qe_page page)
{
    qe_page_info *info = info_of(pool, page);
    qe_kv_page_drop_bounds(pool, page);
    info->cached = true;
    info->older = pool->newest_cached;
    info->newer = QE_PAGE_NONE;
    if (pool->newest_cached != QE_PAGE_NONE)
        pool->pages[pool->newest_cached].newer = page;
    else
        pool->oldest_cached = page;
    pool->newest_cached = page;
    pool->n_cached++;
}

void qe_kv_pool_uncache(qe_kv_pool *pool, qe_page page)
{
    qe_page_info *info = info_of(pool, page);
    if (!info->cached)
        return;
    if (info->older != QE_PAGE_NONE)
        pool->pages[info->older].newer = info->newer;
    else
        pool->oldest_cached = info->newer;
    if (info->newer != QE_PAGE_NONE)
        pool->pages[info->newer].older = info->older;
    else
        pool->newest_cached = info->older;
    info->older = info->newer = QE_PAGE_NONE;
    info->cached = false;
    pool->n_cached--;
}

void qe_kv_pool_unname(qe_kv_pool *pool, qe_page page)
{
    qe_page_info *info = info_of(pool, page);
    if (info->named)
        g_hash_table_remove(pool->index, &info->key);
    info->named = false;
}

static bool is_moving(const qe_page_info *info)
{
    return info->device == COPY_MOVING || info->host == COPY_MOVING;
}

void qe_kv_pool_destroy_page(qe_kv_pool *pool, qe_page page)
{
    qe_page_info *info = info_of(pool, page);
    g_assert(info->n_refs == 0);
    qe_kv_pool_uncache(pool, page);
    qe_kv_pool_unname(pool, page);
    qe_kv_page_drop_bounds(pool, page);
    if (info->to_store) {
        info->to_store = false;
        pool->n_to_store--;
    }
    if (is_moving(info) || info->n_pins) { /* its slots are needed until the copy has landed */
        if (!info->dying)
            pool->n_dying++;
        info->dying = true;
        return;
    }
    if (info->dying)
        pool->n_dying--;
    if (info->device != COPY_NONE)
        qe_kv_slots_give(pool->device, info->device_slot);
    if (info->host != COPY_NONE)
        qe_kv_slots_give(pool->host, info->host_slot);
    if (info->state == QE_PAGE_TAIL)
        pool->n_tail--;
    else
        pool->n_sealed--;
    *info = (qe_page_info){.older = QE_PAGE_NONE, .newer = QE_PAGE_NONE};
    qe_free_map_add(&pool->free_pages, page);
}

void qe_kv_page_ref(qe_kv_pool *pool, qe_page page)
{
    qe_page_info *info = info_of(pool, page);
    g_assert(info->state == QE_PAGE_SEALED);
    g_assert(info->n_refs < UINT32_MAX);
    g_assert(!info->dying);
    qe_kv_pool_uncache(pool, page);
    info->n_refs++;
    if (info->n_refs == 2)
        pool->n_shared++;
}

void qe_kv_page_unref(qe_kv_pool *pool, qe_page page)
{
    qe_page_info *info = info_of(pool, page);
    g_assert(info->state != QE_PAGE_FREE);
    g_assert(info->n_refs > 0);
    info->n_refs--;
    if (info->n_refs == 1)
        pool->n_shared--;
    if (info->n_refs > 0)
        return;
    if (info->state == QE_PAGE_SEALED && info->named && pool->host)
        qe_kv_pool_cache_page(pool, page);
    else
        qe_kv_pool_destroy_page(pool, page);
}

void qe_kv_page_seal(qe_kv_pool *pool, qe_page page)
{
    qe_page_info *info = info_of(pool, page);
    g_assert(info->state == QE_PAGE_TAIL);
    g_assert(info->n_refs == 1);
    info->state = QE_PAGE_SEALED;
    pool->n_tail--;
    pool->n_sealed++;
}

bool qe_kv_page_can_unseal(const qe_kv_pool *pool, qe_page page)
{
    const qe_page_info *info = info_of(pool, page);
    return info->state == QE_PAGE_SEALED && info->n_refs == 1 && info->device == COPY_READY &&
           !is_moving(info) && info->n_pins == 0;
}

void qe_kv_page_unseal(qe_kv_pool *pool, qe_page page)
{
    qe_page_info *info = info_of(pool, page);
    g_assert(qe_kv_page_can_unseal(pool, page));
    qe_kv_page_drop_bounds(pool, page);
    qe_kv_pool_unname(pool, page);
    info->has_key = false;
    if (info->to_store) {
        info->to_store = false;
        pool->n_to_store--;
    }
    if (info->host == COPY_READY) {
        qe_kv_slots_give(pool->host, info->host_slot);
        info->host = COPY_NONE;
    }
    info->state = QE_PAGE_TAIL;
    pool->n_sealed--;
    pool->n_tail++;
}

/* ---- Names ---- */

static bool ids_equal(const uint32_t *a, const uint32_t *b)
{
    return memcmp(a, b, QK_PAGE_TOKENS * sizeof *a) == 0;
}

/* The page named @key with these very ids and this very parent. */
static qe_page look_up(
    const qe_kv_pool *pool, const qe_page_key *key, const qe_page_key *parent, const uint32_t *ids)
{
    guint found = GPOINTER_TO_UINT(g_hash_table_lookup(pool->index, key));
    if (found == 0)
        return QE_PAGE_NONE;
    const qe_page_info *info = info_of(pool, found - 1);
    if (!ids_equal(info->ids, ids) || !qe_page_key_equal(&info->parent, parent))
        return QE_PAGE_NONE;
    return found - 1;
}

qe_page qe_kv_pool_find(qe_kv_pool *pool, const qe_page_key *parent, const uint32_t ids[QK_PAGE_TOKENS])
{
    if (!parent)
        parent = &pool->seed;
    qe_page_key key = qe_page_key_child(parent, ids);
    qe_page page = look_up(pool, &key, parent, ids);
    if (page == QE_PAGE_NONE)
        return QE_PAGE_NONE;
    qe_kv_page_ref(pool, page);
    pool->counters.n_found++;
    if (pool->pages[page].imported) {
        pool->pages[page].imported = false;
        pool->counters.n_found_imported++;
    }
    return page;
}

void qe_kv_pool_name(qe_kv_pool *pool, qe_page page)
{
    qe_page_info *info = info_of(pool, page);
    g_hash_table_insert(pool->index, g_memdup2(&info->key, sizeof info->key), GUINT_TO_POINTER(page + 1));
    info->named = true;
}

const qe_page_key *qe_kv_pool_seed(const qe_kv_pool *pool)
{
    return &pool->seed;
}

qe_page qe_kv_page_publish(
    qe_kv_pool *pool, qe_page page, const qe_page_key *parent, const uint32_t ids[QK_PAGE_TOKENS])
{
    qe_page_info *info = info_of(pool, page);
    g_assert(info->state == QE_PAGE_SEALED && info->n_refs > 0);
    if (info->named)
        return page;
    if (!parent)
        parent = &pool->seed;
    qe_page_key key = qe_page_key_child(parent, ids);
    qe_page other = look_up(pool, &key, parent, ids);
    if (other != QE_PAGE_NONE && pool->pages[other].device == COPY_READY) {
        qe_kv_page_ref(pool, other);
        qe_kv_page_unref(pool, page);
        return other;
    }
    /* One that only a lower tier has gives its name to the one on the device. */
    if (other != QE_PAGE_NONE && pool->pages[other].cached)
        qe_kv_pool_destroy_page(pool, other);
    info->has_key = true;
    info->key = key;
    info->parent = *parent;
    memcpy(info->ids, ids, sizeof info->ids);
    if (!g_hash_table_contains(pool->index, &key)) /* else another page keeps the name */
        qe_kv_pool_name(pool, page);
    return page;
}

const qe_page_key *qe_kv_page_key(const qe_kv_pool *pool, qe_page page)
{
    const qe_page_info *info = info_of(pool, page);
    return info->has_key ? &info->key : NULL;
}

/* ---- Questions ---- */

qe_page_state qe_kv_page_state(const qe_kv_pool *pool, qe_page page)
{
    return info_of(pool, page)->state;
}

uint32_t qe_kv_page_refs(const qe_kv_pool *pool, qe_page page)
{
    return info_of(pool, page)->n_refs;
}

bool qe_kv_page_on_device(const qe_kv_pool *pool, qe_page page)
{
    return info_of(pool, page)->device == COPY_READY;
}

bool qe_kv_page_on_host(const qe_kv_pool *pool, qe_page page)
{
    return info_of(pool, page)->host == COPY_READY;
}

bool qe_kv_page_is_loading(const qe_kv_pool *pool, qe_page page)
{
    return info_of(pool, page)->device == COPY_MOVING;
}

bool qe_kv_page_is_moving(const qe_kv_pool *pool, qe_page page)
{
    return is_moving(info_of(pool, page));
}

uint64_t qe_kv_page_address(const qe_kv_pool *pool, qe_page page)
{
    const qe_page_info *info = info_of(pool, page);
    return info->device != COPY_NONE ? qe_kv_slots_address(pool->device, info->device_slot) : 0;
}

uint64_t qe_kv_page_plan_address(const qe_kv_pool *pool, qe_page page)
{
    const qe_page_info *info = info_of(pool, page);
    if (info->device == COPY_READY)
        return qe_kv_slots_address(pool->device, info->device_slot);
    g_assert(info->host == COPY_READY);
    uint64_t address = qe_kv_slots_address(pool->host, info->host_slot);
    return address ? address | QK_PAGE_HOST : 0;
}

bool qe_kv_page_is_readable_on_host(const qe_kv_pool *pool, qe_page page)
{
    const qe_page_info *info = info_of(pool, page);
    return info->host == COPY_READY && qe_kv_slots_address(pool->host, info->host_slot) != 0;
}

const void *qe_kv_page_host(const qe_kv_pool *pool, qe_page page)
{
    const qe_page_info *info = info_of(pool, page);
    return info->host == COPY_READY ? qe_kv_slots_host(pool->host, info->host_slot) : NULL;
}

qk_buffer *qe_kv_page_buffer(const qe_kv_pool *pool, qe_page page, uint64_t *offset)
{
    const qe_page_info *info = info_of(pool, page);
    g_assert(info->device != COPY_NONE);
    return qe_kv_slots_buffer(pool->device, info->device_slot, offset);
}

uint32_t qe_kv_pool_n_pages(const qe_kv_pool *pool)
{
    return pool->n_pages;
}

uint32_t qe_kv_pool_n_max(const qe_kv_pool *pool)
{
    return qe_kv_slots_n_max(pool->device);
}

uint32_t qe_kv_pool_n_reserved(const qe_kv_pool *pool)
{
    return qe_kv_slots_n_reserved(pool->device);
}

uint32_t qe_kv_pool_n_used(const qe_kv_pool *pool)
{
    return qe_kv_slots_n_used(pool->device);
}

uint32_t qe_kv_pool_n_shared(const qe_kv_pool *pool)
{
    return pool->n_shared;
}

uint32_t qe_kv_pool_n_cached(const qe_kv_pool *pool)
{
    return pool->n_cached;
}

uint32_t qe_kv_pool_n_available(const qe_kv_pool *pool)
{
    uint32_t n_used = qe_kv_slots_n_used(pool->device), n_max = qe_kv_slots_n_max(pool->device);
    uint32_t n_over = n_used > n_max ? n_used - n_max : 0, n_cached = 0;
    for (qe_page page = pool->oldest_cached; page != QE_PAGE_NONE; page = pool->pages[page].newer)
        n_cached += pool->pages[page].device == COPY_READY && !is_moving(&pool->pages[page]);
    return qe_kv_slots_n_available(pool->device) + (n_cached > n_over ? n_cached - n_over : 0);
}

uint64_t qe_kv_pool_page_bytes(const qe_kv_pool *pool)
{
    return pool->layout.page_bytes;
}

const qe_kv_slots *qe_kv_pool_device_slots(const qe_kv_pool *pool)
{
    return pool->device;
}

const qe_kv_slots *qe_kv_pool_host_slots(const qe_kv_pool *pool)
{
    return pool->host;
}

void qe_kv_pool_get_counters(const qe_kv_pool *pool, qe_kv_counters *out)
{
    *out = pool->counters;
}

const char *qe_kv_pool_refusal(const qe_kv_pool *pool)
{
    return pool->refusal;
}

/* ---- The checker ---- */

#define BROKEN(error, ...) (g_set_error(error, QE_ERROR, QE_ERROR_FAILED, "KV pool: " __VA_ARGS__), false)

static const char *const state_names[] = {"FREE", "TAIL", "SEALED"};

static bool check_references(
    const qe_kv_pool *pool, qe_page page, const qe_page_info *info, uint32_t n_entries, GError **error)
{
    if (info->state > QE_PAGE_SEALED)
        return BROKEN(error, "page %u has no valid state (%u)", page, info->state);
    const char *name = state_names[info->state];
    bool may_be_held = info->state == QE_PAGE_SEALED && !info->cached && !info->dying && !info->importing;
    bool must_be_held = may_be_held || info->state == QE_PAGE_TAIL;
    if (must_be_held != (info->n_refs > 0))
        return BROKEN(error, "page %u is %s%s with %u references", page, name,
            info->cached      ? " and cached"
            : info->dying     ? " and dying"
            : info->importing ? " and imported"
                              : "",
            info->n_refs);
    if (info->state == QE_PAGE_TAIL && info->n_refs != 1)
        return BROKEN(error, "page %u is TAIL with %u references, expected 1", page, info->n_refs);
    if (info->n_refs != n_entries)
        return BROKEN(error, "page %u (%s) has %u references, but page tables name it %u times", page, name,
            info->n_refs, n_entries);
    if (qe_free_map_has(&pool->free_pages, page) != (info->state == QE_PAGE_FREE))
        return BROKEN(error, "page %u is %s, but the free map says otherwise", page, name);
    return true;
}

static bool check_copies(const qe_kv_pool *pool, qe_page page, const qe_page_info *info, GError **error)
{
    const char *name = state_names[info->state];
    if (info->state == QE_PAGE_FREE && (info->device != COPY_NONE || info->host != COPY_NONE))
        return BROKEN(error, "page %u is FREE and has a slot", page);
    if (info->state == QE_PAGE_TAIL && (info->device != COPY_READY || info->host != COPY_NONE))
        return BROKEN(error, "page %u is TAIL with its device copy in state %u and its host copy in %u", page,
            info->device, info->host);
    if (info->importing && (info->state != QE_PAGE_SEALED || info->device != COPY_NONE ||
                               info->host != COPY_MOVING || info->named || info->cached || info->dying))
        return BROKEN(error, "page %u (%s) is being imported, yet somebody's", page, name);
    if (info->n_pins > 0 && (info->state != QE_PAGE_SEALED || info->host != COPY_READY))
        return BROKEN(error, "page %u (%s) is pinned with its host copy in state %u", page, name, info->host);
    if (info->state == QE_PAGE_SEALED && info->device != COPY_READY && info->host != COPY_READY &&
        !info->importing)
        return BROKEN(error, "page %u is SEALED and no tier has its bytes", page);
    if (info->device != COPY_NONE && !qe_kv_slots_is_used(pool->device, info->device_slot))
        return BROKEN(error, "page %u (%s) has device slot %u, which is free", page, name, info->device_slot);
    if (info->host != COPY_NONE && !qe_kv_slots_is_used(pool->host, info->host_slot))
        return BROKEN(error, "page %u (%s) has host slot %u, which is free", page, name, info->host_slot);
    if (info->named && (info->state != QE_PAGE_SEALED || !info->has_key ||
                           GPOINTER_TO_UINT(g_hash_table_lookup(pool->index, &info->key)) != page + 1))
        return BROKEN(error, "page %u (%s) is named, but the index does not know it", page, name);
    if (info->cached && !info->named)
        return BROKEN(error, "page %u is cached without a name", page);
    if (info->dying && (info->named || (!is_moving(info) && info->n_pins == 0)))
        return BROKEN(error, "page %u is dying, yet %s", page, info->named ? "named" : "at rest");
    return true;
}

/* Two pages in one slot: @seen has a byte a slot. */
static bool check_slot(
    uint8_t *seen, qe_page page, uint8_t copy, qe_slot slot, const char *tier, GError **error)
{
    if (copy == COPY_NONE)
        return true;
    if (seen[slot])
        return BROKEN(error, "page %u is in %s slot %u, which another page has", page, tier, slot);
    seen[slot] = 1;
    return true;
}

typedef struct {
    uint32_t n_states[3], n_shared, n_dying, n_cached, n_named, n_to_store, n_moving, n_loading;
    uint32_t n_device, n_host, n_importing, n_pinned;
} tally;

static void count_page(tally *t, const qe_page_info *info)
{
    t->n_states[info->state]++;
    t->n_shared += info->n_refs >= 2;
    t->n_dying += info->dying;
    t->n_cached += info->cached;
    t->n_named += info->named;
    t->n_to_store += info->to_store;
    t->n_moving += is_moving(info) && !info->importing;
    t->n_importing += info->importing;
    t->n_pinned += info->n_pins > 0;
    t->n_loading += info->device == COPY_MOVING;
    t->n_device += info->device != COPY_NONE;
    t->n_host += info->host != COPY_NONE;
}

static bool check_tally(const qe_kv_pool *pool, const tally *t, GError **error)
{
    const struct {
        const char *what;
        uint32_t found, counter;
    } rows[] = {
        {"TAIL pages", t->n_states[QE_PAGE_TAIL], pool->n_tail},
        {"SEALED pages", t->n_states[QE_PAGE_SEALED], pool->n_sealed},
        {"FREE pages", t->n_states[QE_PAGE_FREE], qe_free_map_count(&pool->free_pages)},
        {"shared pages", t->n_shared, pool->n_shared},
        {"dying pages", t->n_dying, pool->n_dying},
        {"cached pages", t->n_cached, pool->n_cached},
        {"named pages", t->n_named, g_hash_table_size(pool->index)},
        {"pages to store", t->n_to_store, pool->n_to_store},
        {"moving pages", t->n_moving, pool->n_moving},
        {"loading pages", t->n_loading, pool->n_loading},
        {"imported pages", t->n_importing, pool->n_importing},
        {"pinned pages", t->n_pinned, pool->n_pinned},
        {"pages and bounds on the device", t->n_device + pool->n_blocks, qe_kv_slots_n_used(pool->device)},
        {"pages on the host", t->n_host, pool->host ? qe_kv_slots_n_used(pool->host) : 0},
    };
    for (guint i = 0; i < G_N_ELEMENTS(rows); i++) {
        if (rows[i].found != rows[i].counter)
            return BROKEN(
                error, "%u %s, but the counter says %u", rows[i].found, rows[i].what, rows[i].counter);
    }
    return true;
}

bool qe_kv_pool_check(const qe_kv_pool *pool, const uint32_t *n_entries, GError **error)
{
    tally t = {0};
    g_autofree uint8_t *on_device = g_new0(uint8_t, qe_kv_slots_n_reserved(pool->device) + 1);
    g_autofree uint8_t *on_host = g_new0(uint8_t, (pool->host ? qe_kv_slots_n_reserved(pool->host) : 0) + 1);
    for (qe_page page = 0; page < pool->n_pages; page++) {
        const qe_page_info *info = &pool->pages[page];
        if (!check_references(pool, page, info, n_entries[page], error) ||
            !check_copies(pool, page, info, error) ||
            !check_slot(on_device, page, info->device, info->device_slot, "device", error) ||
            !check_slot(on_host, page, info->host, info->host_slot, "host", error))
            return false;
        count_page(&t, info);
    }
    uint32_t n_listed = 0;
    for (qe_page page = pool->oldest_cached; page != QE_PAGE_NONE; page = pool->pages[page].newer)
        n_listed++;
    if (n_listed != pool->n_cached)
        return BROKEN(
            error, "the list of cached pages has %u, the counter says %u", n_listed, pool->n_cached);
    return check_tally(pool, &t, error) && qe_kv_pool_check_bounds(pool, on_device, error) &&
           qe_kv_slots_check(pool->device, error) && (!pool->host || qe_kv_slots_check(pool->host, error));
}
