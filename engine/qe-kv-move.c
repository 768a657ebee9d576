/* qe-kv-move.c: copies of pages between the tiers.
 *
 *   store: device -> host on TO_HOST, after COMPUTE and TO_DEVICE as they stand: the host slot may have had a page that a
 *          running step reads in place or that a load is reading. The bytes themselves are final: a page is sealed when the
 *          step that filled it has been read.
 *   load:  host -> device on TO_DEVICE, after COMPUTE as it stands: the device slot may have had a page that a running
 *          step reads or writes. A plan may name the page once the copy has landed; nothing on COMPUTE waits.
 *
 * Invariants:
 *  1. A page in a move has both slots until the move has landed, whatever becomes of its references meanwhile.
 *  2. Moves of one kind land in order; `moves` has them oldest first.
 * So a copy never reads or writes a slot that somebody else has. Who fills or reads host slots from outside (the disk
 * tier) is no stream's: an import waits for COMPUTE before it hands its slot out, a pin keeps one as it is. */
#include <string.h>
#include "engine/qe-kv-pool.h"

#define MOVE_BYTES    (64ull << 20) /* of one move: short enough that a reader of its event does not wait long */
#define MOVES_MAX     64u           /* of a kind on their way; the rest waits its turn */
#define SKIPS_LOG_MAX 8u /* stores refused again and again are tried at every 2nd, 4th, ... 256th chance */

bool qe_kv_pool_has_host(const qe_kv_pool *pool)
{
    return pool->host != NULL;
}

static qe_page_info *info_of(const qe_kv_pool *pool, qe_page page)
{
    g_assert(page < pool->n_pages);
    return &pool->pages[page];
}

static bool fail(qe_kv_pool *pool, qk_status status, const char *what, GError **error)
{
    g_set_error(error, QE_ERROR, qe_kv_pool_error_code(status), "cannot %s KV pages: %s: %s", what,
        qk_status_name(status), qk_backend_error(pool->backend));
    return false;
}

/* ---- Asking ---- */

void qe_kv_page_store(qe_kv_pool *pool, qe_page page)
{
    qe_page_info *info = info_of(pool, page);
    g_assert(info->state == QE_PAGE_SEALED);
    if (!pool->host || info->to_store || info->host != COPY_NONE || info->device != COPY_READY)
        return;
    info->to_store = true;
    pool->n_to_store++;
    g_array_append_val(pool->to_store, page);
}

bool qe_kv_page_load(qe_kv_pool *pool, qe_page page, GError **error)
{
    qe_page_info *info = info_of(pool, page);
    g_assert(info->state == QE_PAGE_SEALED && info->host == COPY_READY);
    if (info->device != COPY_NONE)
        return true;
    if (!qe_kv_slots_take(pool->device, &info->device_slot, error))
        return false;
    info->device = COPY_MOVING;
    pool->n_moving++;
    pool->n_loading++;
    g_array_append_val(pool->to_load, page);
    return true;
}

/* ---- Giving up ---- */

bool qe_kv_page_drop_device(qe_kv_pool *pool, qe_page page)
{
    qe_page_info *info = info_of(pool, page);
    if (info->state != QE_PAGE_SEALED || info->device != COPY_READY || info->host != COPY_READY)
        return false;
    qe_kv_slots_give(pool->device, info->device_slot);
    info->device = COPY_NONE;
    pool->placement_epoch++;
    return true;
}

bool qe_kv_page_drop_host(qe_kv_pool *pool, qe_page page)
{
    qe_page_info *info = info_of(pool, page);
    if (info->device != COPY_READY || info->host != COPY_READY || info->n_pins > 0)
        return false;
    qe_kv_slots_give(pool->host, info->host_slot);
    info->host = COPY_NONE;
    return true;
}

uint32_t qe_kv_pool_evict_cached(qe_kv_pool *pool, uint32_t n)
{
    uint32_t n_gone = 0;
    for (qe_page page = pool->oldest_cached; page != QE_PAGE_NONE && n_gone < n;) {
        qe_page next = pool->pages[page].newer;
        const qe_page_info *info = info_of(pool, page);
        if (info->device == COPY_READY && info->host != COPY_MOVING) {
            if (!qe_kv_page_drop_device(pool, page)) {
                qe_kv_pool_destroy_page(pool, page);
                pool->counters.n_evicted++;
            }
            n_gone++;
        }
        page = next;
    }
    return n_gone;
}

uint32_t qe_kv_pool_evict_cached_host(qe_kv_pool *pool, uint32_t n)
{
    uint32_t n_gone = 0;
    for (qe_page page = pool->oldest_cached; page != QE_PAGE_NONE && n_gone < n;) {
        qe_page next = pool->pages[page].newer;
        const qe_page_info *info = info_of(pool, page);
        if (info->host == COPY_READY && info->device != COPY_MOVING && info->n_pins == 0) {
            qe_kv_pool_destroy_page(pool, page);
            pool->counters.n_evicted++;
            n_gone++;
        }
        page = next;
    }
    return n_gone;
}

/* ---- Enqueueing ---- */

/* Makes @stream wait for what is enqueued on @before now. */
static qk_status wait_for(qe_kv_pool *pool, qk_stream stream, qk_stream before)
{
    qk_status status = QK_OK;
    if (!pool->order)
        status = qk_event_new(pool->backend, &pool->order);
    if (status == QK_OK)
        status = qk_event_record(pool->order, before);
    if (status == QK_OK)
        status = qk_stream_wait(pool->backend, stream, pool->order);
    return status;
}

static qk_status move_new(qe_kv_pool *pool, qe_move **out)
{
    if (pool->spare_moves->len > 0) {
        *out = g_ptr_array_steal_index_fast(pool->spare_moves, pool->spare_moves->len - 1);
        g_array_set_size((*out)->pages, 0);
        return QK_OK;
    }
    qk_event *event;
    qk_status status = qk_event_new(pool->backend, &event);
    if (status == QK_OK) {
        *out = g_new0(qe_move, 1);
        (*out)->event = event;
        (*out)->pages = g_array_new(FALSE, FALSE, sizeof(qe_page));
    }
    return status;
}

static void move_free(qe_move *move)
{
    qk_event_free(move->event);
    g_array_unref(move->pages);
    g_free(move);
}

static void fill_copy(const qe_kv_pool *pool, qe_page page, qe_move_kind kind, qk_copy *copy)
{
    const qe_page_info *info = info_of(pool, page);
    uint64_t device_offset, host_offset;
    qk_buffer *device = qe_kv_slots_buffer(pool->device, info->device_slot, &device_offset);
    qk_buffer *host = qe_kv_slots_buffer(pool->host, info->host_slot, &host_offset);
    *copy = kind == MOVE_STORE ? (qk_copy){host, host_offset, device, device_offset, pool->layout.page_bytes}
                               : (qk_copy){device, device_offset, host, host_offset, pool->layout.page_bytes};
}

/* Enqueues one move of @n pages. When it cannot and *@begun, some of the copies may be under way all the same. */
static qk_status enqueue(qe_kv_pool *pool, qe_move_kind kind, const qe_page *pages, uint32_t n, bool *begun)
{
    qk_stream stream = kind == MOVE_STORE ? QK_STREAM_TO_HOST : QK_STREAM_TO_DEVICE;
    g_autofree qk_copy *copies = g_new0(qk_copy, n);
    for (uint32_t i = 0; i < n; i++)
        fill_copy(pool, pages[i], kind, &copies[i]);
    qe_move *move = NULL;
    qk_status status = wait_for(pool, stream, QK_STREAM_COMPUTE);
    if (status == QK_OK && kind == MOVE_STORE)
        status = wait_for(pool, stream, QK_STREAM_TO_DEVICE);
    if (status == QK_OK)
        status = move_new(pool, &move);
    *begun = status == QK_OK;
    if (status == QK_OK)
        status = qk_copy_submit(pool->backend, stream, copies, n);
    if (status == QK_OK)
        status = qk_event_record(move->event, stream);
    if (status != QK_OK) {
        if (move)
            g_ptr_array_add(pool->spare_moves, move);
        return status;
    }
    g_array_append_vals(move->pages, pages, n);
    g_queue_push_tail(&pool->moves[kind], move);
    return QK_OK;
}

/* Waits for all that is enqueued on @stream: then the slots of a refused move are nobody's again. */
static qk_status settle(qe_kv_pool *pool, qk_stream stream)
{
    qk_status status = qk_event_record(pool->order, stream);
    return status == QK_OK ? qk_event_wait(pool->order) : status;
}

/* Enqueues one move of @n pages, whose slots are taken and whose states say so. A device that refuses it, as one does
 * that is short of memory for the moment, is asked once more when the stream is empty, and then *@refused is set: no copy
 * is under way and the caller undoes the states. false with @error: the device is lost, or does not say when its copies end. */
static bool submit(
    qe_kv_pool *pool, qe_move_kind kind, const qe_page *pages, uint32_t n, bool *refused, GError **error)
{
    const char *what = kind == MOVE_STORE ? "store" : "load";
    qk_status status = QK_OK;
    *refused = false;
    for (int try = 0; try < 2; try++) {
        bool begun;
        status = enqueue(pool, kind, pages, n, &begun);
        if (status == QK_OK) {
            pool->n_refused_in_row = 0;
            return true;
        }
        if (status == QK_DEVICE_LOST)
            return fail(pool, status, what, error);
        g_free(pool->refusal);
        pool->refusal =
            g_strdup_printf("The device refused to %s %u KV pages, which stay where they are: %s: %s", what,
                n, qk_status_name(status), qk_backend_error(pool->backend));
        if (begun)
            status = settle(pool, kind == MOVE_STORE ? QK_STREAM_TO_HOST : QK_STREAM_TO_DEVICE);
        if (begun && status != QK_OK)
            return fail(pool, status, what, error);
    }
    pool->counters.n_refused += n;
    pool->n_refused_in_row++;
    *refused = true;
    return true;
}

static uint32_t pages_a_move(const qe_kv_pool *pool)
{
    return (uint32_t)MAX(MOVE_BYTES / pool->layout.page_bytes, 1);
}

/* The pages of @batch are to be stored as before: they were not. */
static void undo_stores(qe_kv_pool *pool, const GArray *batch)
{
    for (guint i = 0; i < batch->len; i++) {
        qe_page_info *info = info_of(pool, g_array_index(batch, qe_page, i));
        info->host = COPY_NONE;
        qe_kv_slots_give(pool->host, info->host_slot);
        pool->n_moving--;
        info->to_store = true;
        pool->n_to_store++;
    }
    g_array_prepend_vals(pool->to_store, batch->data, batch->len);
}

/* Nothing that waits to be loaded is: what waits for it goes on with the host's copies. */
static void undo_loads(qe_kv_pool *pool)
{
    for (guint i = 0; i < pool->to_load->len; i++) {
        qe_page page = g_array_index(pool->to_load, qe_page, i);
        qe_page_info *info = info_of(pool, page);
        info->device = COPY_NONE;
        qe_kv_slots_give(pool->device, info->device_slot);
        pool->n_moving--;
        pool->n_loading--;
        if (info->dying)
            qe_kv_pool_destroy_page(pool, page);
    }
    g_array_set_size(pool->to_load, 0);
}

static bool take_host(qe_kv_pool *pool, qe_slot *slot)
{
    if (qe_kv_slots_take(pool->host, slot, NULL))
        return true;
    /* Only at the budget: a slab that is being made is waited for. */
    return qe_kv_slots_n_available(pool->host) == 0 && qe_kv_pool_evict_cached_host(pool, 1) > 0 &&
           qe_kv_slots_take(pool->host, slot, NULL);
}

static bool submit_stores(qe_kv_pool *pool, GError **error)
{
    uint32_t at = 0, n_batch = pages_a_move(pool);
    bool ok = true, room = true, refused = false;
    g_autoptr(GArray) batch = g_array_new(FALSE, FALSE, sizeof(qe_page));
    if (pool->n_stores_skipped < (1u << MIN(pool->n_refused_in_row, SKIPS_LOG_MAX)) - 1) {
        pool->n_stores_skipped++;
        return true;
    }
    pool->n_stores_skipped = 0;
    while (ok && room && !refused && at < pool->to_store->len && pool->moves[MOVE_STORE].length < MOVES_MAX) {
        g_array_set_size(batch, 0);
        while (at < pool->to_store->len && batch->len < n_batch) {
            qe_page page = g_array_index(pool->to_store, qe_page, at);
            qe_page_info *info = info_of(pool, page);
            if (!info->to_store) { /* it has changed since, or stands here twice */
                at++;
                continue;
            }
            room = take_host(pool, &info->host_slot);
            if (!room)
                break;
            at++;
            info->to_store = false;
            pool->n_to_store--;
            info->host = COPY_MOVING;
            pool->n_moving++;
            g_array_append_val(batch, page);
        }
        if (batch->len > 0) {
            ok = submit(
                pool, MOVE_STORE, (const qe_page *)(const void *)batch->data, batch->len, &refused, error);
        }
    }
    if (at > 0)
        g_array_remove_range(pool->to_store, 0, at);
    if (!ok || refused)
        undo_stores(pool, batch);
    return ok;
}

/* Loads whose page has died meanwhile go on all the same: the slot is given back when they have landed. */
static bool submit_loads(qe_kv_pool *pool, GError **error)
{
    uint32_t at = 0, n_batch = pages_a_move(pool);
    bool ok = true, refused = false;
    while (ok && !refused && at < pool->to_load->len && pool->moves[MOVE_LOAD].length < MOVES_MAX) {
        uint32_t n = MIN(n_batch, pool->to_load->len - at);
        ok = submit(pool, MOVE_LOAD, &g_array_index(pool->to_load, qe_page, at), n, &refused, error);
        if (ok && !refused)
            at += n;
    }
    if (at > 0)
        g_array_remove_range(pool->to_load, 0, at);
    if (refused)
        undo_loads(pool);
    return ok;
}

bool qe_kv_pool_submit_moves(qe_kv_pool *pool, GError **error)
{
    if (!pool->host)
        return true;
    qe_kv_slots_poll(pool->host);
    if (pool->to_load->len > 0 && !submit_loads(pool, error))
        return false;
    if (pool->to_store->len > 0 && !submit_stores(pool, error))
        return false;
    return true;
}

/* ---- Landing ---- */

static void land(qe_kv_pool *pool, qe_move_kind kind, qe_move *move)
{
    for (guint i = 0; i < move->pages->len; i++) {
        qe_page page = g_array_index(move->pages, qe_page, i);
        qe_page_info *info = info_of(pool, page);
        pool->n_moving--;
        if (kind == MOVE_STORE) {
            info->host = COPY_READY;
            pool->counters.bytes_stored += pool->layout.page_bytes;
        } else {
            info->device = COPY_READY;
            pool->placement_epoch++;
            pool->n_loading--;
            pool->counters.bytes_loaded += pool->layout.page_bytes;
        }
        if (info->dying)
            qe_kv_pool_destroy_page(pool, page);
    }
    g_ptr_array_add(pool->spare_moves, move);
}

bool qe_kv_pool_poll(qe_kv_pool *pool, GError **error)
{
    bool any = false;
    if (pool->host && qe_kv_slots_poll(pool->host))
        any = true;
    for (int kind = 0; kind < QE_MOVE_KINDS; kind++) {
        while (pool->moves[kind].length > 0) {
            qe_move *move = g_queue_peek_head(&pool->moves[kind]);
            qk_status status = qk_event_query(move->event);
            if (status == QK_PENDING)
                break;
            if (status != QK_OK) {
                fail(pool, status, kind == MOVE_STORE ? "store" : "load", error);
                return any;
            }
            g_queue_pop_head(&pool->moves[kind]);
            land(pool, (qe_move_kind)kind, move);
            any = true;
        }
    }
    return any;
}

bool qe_kv_pool_wait_move(qe_kv_pool *pool, GError **error)
{
    qe_move_kind kind = pool->moves[MOVE_LOAD].length > 0 ? MOVE_LOAD : MOVE_STORE;
    if (pool->moves[kind].length == 0)
        return false;
    qe_move *move = g_queue_peek_head(&pool->moves[kind]);
    qk_status status = qk_event_wait(move->event);
    if (status != QK_OK) {
        fail(pool, status, kind == MOVE_STORE ? "store" : "load", error);
        return false;
    }
    g_queue_pop_head(&pool->moves[kind]);
    land(pool, kind, move);
    return true;
}

uint32_t qe_kv_pool_n_moving(const qe_kv_pool *pool)
{
    return pool->n_moving;
}

uint32_t qe_kv_pool_n_loading(const qe_kv_pool *pool)
{
    return pool->n_loading;
}

uint64_t qe_kv_pool_placement_epoch(const qe_kv_pool *pool)
{
    return pool->placement_epoch;
}

uint32_t qe_kv_pool_n_host_available(const qe_kv_pool *pool)
{
    if (!pool->host)
        return 0;
    uint32_t n = qe_kv_slots_n_available(pool->host);
    for (qe_page page = pool->oldest_cached; page != QE_PAGE_NONE; page = pool->pages[page].newer)
        n += pool->pages[page].host == COPY_READY && pool->pages[page].device != COPY_MOVING &&
             pool->pages[page].n_pins == 0;
    return n;
}

/* ---- From and to the outside ---- */

qe_import qe_kv_pool_import(qe_kv_pool *pool, const qe_page_key *parent, const uint32_t ids[QK_PAGE_TOKENS],
    qe_page *page, void **bytes)
{
    qe_slot slot;
    if (!parent)
        parent = &pool->seed;
    qe_page_key key = qe_page_key_child(parent, ids);
    if (g_hash_table_contains(pool->index, &key))
        return QE_IMPORT_EXISTS;
    if (!take_host(pool, &slot))
        return qe_kv_slots_n_available(pool->host) > 0 ? QE_IMPORT_WAIT : QE_IMPORT_FULL;
    /* What a copy or a step that is in flight still reads there is not to be written over. Loads keep their slots. */
    if (!pool->backend || !qe_kv_pool_wait_compute(pool)) {
        qe_kv_slots_give(pool->host, slot);
        return QE_IMPORT_FAILED;
    }
    *page = qe_kv_pool_take_page(pool);
    qe_page_info *info = info_of(pool, *page);
    info->state = QE_PAGE_SEALED;
    info->host = COPY_MOVING;
    info->host_slot = slot;
    info->importing = true;
    info->has_key = true;
    info->key = key;
    info->parent = *parent;
    memcpy(info->ids, ids, sizeof info->ids);
    pool->n_sealed++;
    pool->n_importing++;
    *bytes = qe_kv_slots_host(pool->host, slot);
    return QE_IMPORT_TAKEN;
}

void qe_kv_page_import_done(qe_kv_pool *pool, qe_page page, bool ok)
{
    qe_page_info *info = info_of(pool, page);
    g_assert(info->importing);
    info->importing = false;
    info->host = COPY_READY;
    info->imported = true;
    pool->n_importing--;
    if (!ok || g_hash_table_contains(pool->index, &info->key)) { /* somebody computed it meanwhile */
        qe_kv_pool_destroy_page(pool, page);
        return;
    }
    qe_kv_pool_name(pool, page);
    qe_kv_pool_cache_page(pool, page);
}

void qe_kv_page_pin(qe_kv_pool *pool, qe_page page)
{
    qe_page_info *info = info_of(pool, page);
    g_assert(info->state == QE_PAGE_SEALED && info->host == COPY_READY);
    pool->n_pinned += info->n_pins++ == 0;
}

void qe_kv_page_unpin(qe_kv_pool *pool, qe_page page)
{
    qe_page_info *info = info_of(pool, page);
    g_assert(info->n_pins > 0);
    if (--info->n_pins > 0)
        return;
    pool->n_pinned--;
    if (info->dying)
        qe_kv_pool_destroy_page(pool, page);
}

bool qe_kv_pool_wait_host_slab(qe_kv_pool *pool)
{
    return pool->host && qe_kv_slots_wait(pool->host);
}

uint32_t qe_kv_pool_n_to_store(const qe_kv_pool *pool)
{
    return pool->n_to_store;
}

void qe_kv_pool_clear_moves(qe_kv_pool *pool)
{
    for (int kind = 0; kind < QE_MOVE_KINDS; kind++) {
        qe_move *move;
        while ((move = g_queue_pop_head(&pool->moves[kind])))
            move_free(move);
    }
    for (guint i = 0; i < pool->spare_moves->len; i++)
        move_free(pool->spare_moves->pdata[i]);
    g_ptr_array_set_size(pool->spare_moves, 0);
    g_clear_pointer(&pool->order, qk_event_free);
}
