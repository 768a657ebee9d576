/* qe-kv-bounds.c: where the bounds of pages lie, for selective attention, and when they are made.
 *
 * Bounds are a 16th of a page, always in device memory. Their *blocks* are device slots of the pool, cut into places: so
 * they come out of the same budget as pages, by the same ways of making room, and no memory is torn between the two. A
 * page has bounds while somebody holds it and a session of the selective mode looks for it; they are made again from the
 * page, on whatever tier that is, when they are needed again.
 *
 * Invariants:
 *  1. A block has a device slot that no page has, and goes when its last place is given back.
 *  2. A place belongs to one page, and that page has a reference.
 *  3. Bounds count as made only when the page was SEALED as their making was enqueued: its bytes are final then. Those of
 *     a page that a step in flight fills are made anew for every step that wants them.
 * Making is on COMPUTE, behind the steps that filled the page and before those that look at the bounds. A place that goes
 * to another page, or as a slot to a page, is written behind the steps that read it, like every device slot. */
#include "engine/qe-kv-pool.h"

static qe_page_info *info_of(const qe_kv_pool *pool, qe_page page)
{
    g_assert(page < pool->n_pages);
    return &pool->pages[page];
}

static qe_bounds_block *block_at(const qe_kv_pool *pool, uint32_t i)
{
    return &g_array_index(pool->blocks, qe_bounds_block, i);
}

void qe_kv_pool_set_bounds(qe_kv_pool *pool, uint64_t bytes)
{
    g_assert(pool->n_pages == 0 && bytes <= pool->layout.page_bytes && bytes % 64 == 0);
    pool->bounds_bytes = bytes;
    pool->block_places = bytes > 0 ? (uint32_t)(pool->layout.page_bytes / bytes) : 0;
}

/* Another device slot for places. */
static bool add_block(qe_kv_pool *pool, GError **error)
{
    qe_slot slot;
    uint32_t at = 0;
    if (!qe_kv_pool_take_device(pool, &slot, error))
        return false;
    while (at < pool->blocks->len && block_at(pool, at)->n_used > 0)
        at++;
    if (at == pool->blocks->len) {
        const qe_bounds_block none = {.slot = QE_SLOT_NONE};
        g_array_append_val(pool->blocks, none);
        qe_free_map_resize(&pool->free_places, pool->blocks->len * pool->block_places);
    }
    *block_at(pool, at) = (qe_bounds_block){.slot = slot};
    for (uint32_t i = 0; i < pool->block_places; i++)
        qe_free_map_add(&pool->free_places, at * pool->block_places + i);
    pool->n_blocks++;
    return true;
}

bool qe_kv_page_take_bounds(qe_kv_pool *pool, qe_page page, GError **error)
{
    qe_page_info *info = info_of(pool, page);
    g_assert(pool->bounds_bytes > 0 && info->n_refs > 0);
    if (info->bounds > 0)
        return true;
    if (qe_free_map_lowest(&pool->free_places) == UINT32_MAX && !add_block(pool, error))
        return false;
    uint32_t place = qe_free_map_lowest(&pool->free_places);
    qe_free_map_remove(&pool->free_places, place);
    block_at(pool, place / pool->block_places)->n_used++;
    info->bounds = place + 1;
    info->bounds_made = false;
    pool->n_bounds++;
    return true;
}

bool qe_kv_page_drop_bounds(qe_kv_pool *pool, qe_page page)
{
    qe_page_info *info = info_of(pool, page);
    if (info->bounds == 0)
        return false;
    uint32_t place = info->bounds - 1, at = place / pool->block_places;
    qe_bounds_block *block = block_at(pool, at);
    info->bounds = 0;
    info->bounds_made = false;
    pool->bounds_epoch++;
    pool->n_bounds--;
    qe_free_map_add(&pool->free_places, place);
    if (--block->n_used > 0)
        return false;
    for (uint32_t i = 0; i < pool->block_places; i++)
        qe_free_map_remove(&pool->free_places, at * pool->block_places + i);
    qe_kv_slots_give(pool->device, block->slot);
    block->slot = QE_SLOT_NONE;
    pool->n_blocks--;
    return true;
}

void qe_kv_pool_forget_bounds(qe_kv_pool *pool)
{
    for (qe_page page = 0; page < pool->n_pages; page++) {
        pool->pages[page].bounds = 0;
        pool->pages[page].bounds_made = false;
    }
    g_array_set_size(pool->blocks, 0);
    qe_free_map_clear(&pool->free_places);
    pool->n_blocks = pool->n_bounds = 0;
    pool->bounds_epoch++;
}

uint64_t qe_kv_page_bounds(const qe_kv_pool *pool, qe_page page)
{
    const qe_page_info *info = info_of(pool, page);
    if (info->bounds == 0)
        return 0;
    uint32_t place = info->bounds - 1;
    return qe_kv_slots_address(pool->device, block_at(pool, place / pool->block_places)->slot) +
           place % pool->block_places * pool->bounds_bytes;
}

bool qe_kv_page_bounds_are_made(const qe_kv_pool *pool, qe_page page)
{
    return info_of(pool, page)->bounds_made;
}

bool qe_kv_pool_make_bounds(
    qe_kv_pool *pool, qk_context *context, const qe_page *pages, uint32_t n, GError **error)
{
    g_autoptr(GArray) items = g_array_new(FALSE, FALSE, sizeof(qk_bounds));
    for (uint32_t i = 0; i < n; i++) {
        if (qe_kv_page_bounds_are_made(pool, pages[i]))
            continue;
        const qk_bounds item = {qe_kv_page_plan_address(pool, pages[i]), qe_kv_page_bounds(pool, pages[i])};
        g_array_append_val(items, item);
    }
    if (items->len == 0)
        return true;
    qk_status status = qk_bounds_submit(context, 0, (const qk_bounds *)(const void *)items->data, items->len);
    if (status != QK_OK) {
        g_set_error(error, QE_ERROR, qe_kv_pool_error_code(status),
            "cannot make the bounds of %u KV pages: %s: %s", items->len, qk_status_name(status),
            qk_backend_error(pool->backend));
        return false;
    }
    for (uint32_t i = 0; i < n; i++)
        info_of(pool, pages[i])->bounds_made = info_of(pool, pages[i])->state == QE_PAGE_SEALED;
    return true;
}

uint64_t qe_kv_pool_bounds_epoch(const qe_kv_pool *pool)
{
    return pool->bounds_epoch;
}

uint32_t qe_kv_pool_n_bounds_slots(const qe_kv_pool *pool)
{
    return pool->n_blocks;
}

#define BROKEN(error, ...) (g_set_error(error, QE_ERROR, QE_ERROR_FAILED, "KV bounds: " __VA_ARGS__), false)

bool qe_kv_pool_check_bounds(const qe_kv_pool *pool, uint8_t *seen, GError **error)
{
    uint32_t n_blocks = 0, n_used = 0, n_pages = 0;
    for (guint i = 0; i < pool->blocks->len; i++) {
        const qe_bounds_block *block = block_at(pool, i);
        if (block->n_used == 0)
            continue;
        if (!qe_kv_slots_is_used(pool->device, block->slot) || seen[block->slot])
            return BROKEN(error, "block %u has device slot %u, which is free or another's", i, block->slot);
        seen[block->slot] = 1;
        n_blocks++;
        n_used += block->n_used;
    }
    g_autofree uint8_t *taken = g_new0(uint8_t, pool->blocks->len * pool->block_places + 1);
    for (qe_page page = 0; page < pool->n_pages; page++) {
        const qe_page_info *info = &pool->pages[page];
        if (info->bounds == 0)
            continue;
        if (info->n_refs == 0)
            return BROKEN(error, "page %u has bounds and no reference", page);
        if (info->bounds > pool->blocks->len * pool->block_places || taken[info->bounds - 1] ||
            qe_free_map_has(&pool->free_places, info->bounds - 1))
            return BROKEN(error, "page %u has place %u, which is free or another's", page, info->bounds - 1);
        taken[info->bounds - 1] = 1;
        n_pages++;
    }
    if (n_blocks != pool->n_blocks || n_used != n_pages || n_pages != pool->n_bounds ||
        qe_free_map_count(&pool->free_places) != n_blocks * pool->block_places - n_used)
        return BROKEN(error,
            "%u blocks with %u places in use, %u pages with bounds; the counters say %u and %u", n_blocks,
            n_used, n_pages, pool->n_blocks, pool->n_bounds);
    return true;
}
