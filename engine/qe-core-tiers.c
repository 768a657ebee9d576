/* qe-core-tiers.c: cache modes, and which pages are on the device.
 *
 * The order in which room is made on the device for a request that needs pages:
 *   1. cached pages that nobody holds (the pool does that by itself)
 *   2. pages of idle sessions that the host has too: oldest session first, from its end; those that sessions share later
 *   3. copies to the host that are on their way are waited for, and 2 again
 *   4. the session's own oldest pages, when its mode is tiered: they are attended to in host memory
 *   5. pages of idle sessions that only the device has: those sessions compute them again (qe_core_drop_oldest)
 * Never: what running sessions of other requests hold, and what is being loaded.
 *
 * Invariant: pages move only here and in the pool; a plan is filled after the moves of its round. */
#include <string.h>
#include "engine/qe-core.h"
#include "engine/qe-limits.h"

/* ---- Modes ---- */

static bool is_tiered(qe_cache_mode mode)
{
    return mode == QE_CACHE_TIERED || mode == QE_CACHE_TIERED_INT8;
}

/* What @config comes to on this engine: never AUTO; a tiered mode without a host tier is a session. */
static qe_cache_mode resolve(const qe_core *core, const qe_cache_config *config)
{
    bool host = core->pool && qe_kv_pool_has_host(core->pool) && config->offload_to_cpu;
    switch (config->mode) {
    case QE_CACHE_AUTO:
    case QE_CACHE_TIERED:
        return host ? QE_CACHE_TIERED : QE_CACHE_SESSION;
    default:
        return config->mode;
    }
}

static qe_session_policy policy_of(const qe_core *core, const qe_cache_config *config, qe_cache_mode mode)
{
    uint32_t cap = config->gpu_max_length + config->hot_cache_length;
    bool keeps = mode != QE_CACHE_REBUILD && mode != QE_CACHE_PAGED;
    return (qe_session_policy){
        .contiguous = mode == QE_CACHE_REBUILD,
        .shared = keeps && config->use_cache,
        .tiered = is_tiered(mode) && core->pool && qe_kv_pool_has_host(core->pool) && config->offload_to_cpu,
        .device_tokens_max = is_tiered(mode) ? cap : 0,
    };
}

void qe_core_apply_cache(qe_core *core, qe_timeline *t, const qe_cache_config *config)
{
    qe_cache_mode mode = resolve(core, config);
    bool kept = t->mode != QE_CACHE_REBUILD && t->mode != QE_CACHE_PAGED;
    bool keeps = mode != QE_CACHE_REBUILD && mode != QE_CACHE_PAGED;
    t->cache = *config;
    /* What a mode that keeps nothing has left is no use to the next, and the other way round. */
    if (t->mode != mode && (!kept || !keeps) && !core->lost) {
        qe_session_uncache(t->session, 0);
        qe_session_release_reserved(t->session);
        t->mode_changed = t->mode != QE_CACHE_AUTO && qe_session_n_ids(t->session) > 0;
    }
    t->mode = mode;
    qe_session_policy policy = policy_of(core, config, mode);
    qe_session_set_policy(t->session, &policy);
}

void qe_core_set_cache(qe_core *core, qe_session_id id, const qe_cache_config *cache)
{
    qe_timeline *t = g_hash_table_lookup(core->timelines, &id);
    if (!t || t->request || !core->pool)
        return;
    if (core->lost)
        t->cache = *cache; /* applied at the recovery */
    else
        qe_core_apply_cache(core, t, cache);
    qe_stats_touch(core->stats);
}

uint32_t qe_core_capacity(const qe_core *core, const qe_timeline *t)
{
    const qe_session_policy *policy = qe_session_get_policy(t->session);
    uint64_t n_pages = qe_kv_pool_n_max(core->pool);
    if (policy->tiered)
        n_pages += qe_kv_slots_n_max(qe_kv_pool_host_slots(core->pool));
    if (t->cache.max_cache_size)
        n_pages = MIN(n_pages, t->cache.max_cache_size);
    return (uint32_t)MIN((uint64_t)core->context_max, n_pages * QK_PAGE_TOKENS);
}

/* ---- Making room ---- */

/* For each page: how many running sessions other than @but hold it. [n_pages] of core->page_counts. */
static const uint32_t *count_pins(qe_core *core, const qe_timeline *but)
{
    guint n = MAX(qe_kv_pool_n_pages(core->pool), 1);
    g_array_set_size(core->page_counts, n);
    uint32_t *pins = (uint32_t *)(void *)core->page_counts->data;
    memset(pins, 0, n * sizeof *pins);
    for (guint i = 0; i < core->running->len; i++) {
        const qe_request *r = core->running->pdata[i];
        if (r->timeline != but)
            qe_session_count_pages(r->timeline->session, pins);
    }
    return pins;
}

static bool is_idle(const qe_timeline *t)
{
    return !t->request || t->request->state == QE_REQUEST_QUEUED;
}

static int compare_last_used(gconstpointer a, gconstpointer b)
{
    const qe_timeline *x = *(qe_timeline *const *)a, *y = *(qe_timeline *const *)b;
    if (is_idle(x) && is_idle(y) && (x->request != NULL) != (y->request != NULL))
        return x->request ? 1 : -1; /* one whose request waits goes after those without any */
    return (x->last_used > y->last_used) - (x->last_used < y->last_used);
}

/* Idle sessions but @keep, the one used longest ago first. */
static GPtrArray *list_idle(qe_core *core, const qe_timeline *keep)
{
    GPtrArray *list = g_ptr_array_new();
    GHashTableIter iter;
    void *value;
    g_hash_table_iter_init(&iter, core->timelines);
    while (g_hash_table_iter_next(&iter, NULL, &value)) {
        qe_timeline *t = value;
        if (t != keep && is_idle(t) && qe_session_n_pages(t->session) > 0)
            g_ptr_array_add(list, t);
    }
    g_ptr_array_sort(list, compare_last_used);
    return list;
}

uint32_t qe_core_demote_idle(qe_core *core, const qe_timeline *keep, uint32_t n)
{
    uint32_t n_gone = 0;
    if (!qe_kv_pool_has_host(core->pool))
        return 0;
    const uint32_t *pins = count_pins(core, NULL);
    g_autoptr(GPtrArray) idle = list_idle(core, keep);
    for (int shared = 0; shared < 2; shared++) {
        for (guint i = 0; i < idle->len && n_gone < n; i++) {
            qe_timeline *t = idle->pdata[i];
            n_gone += qe_session_demote(t->session, n - n_gone, shared, pins);
        }
    }
    if (n_gone)
        qe_stats_touch(core->stats);
    return n_gone;
}

/* The session's own oldest pages, but for the newest span (of a small tier, a quarter). */
static uint32_t spill(qe_core *core, qe_timeline *t, uint32_t n)
{
    uint32_t n_pages = qe_session_n_cached(t->session) / QK_PAGE_TOKENS;
    uint32_t n_kept = MIN(QK_SPAN_TOKENS / QK_PAGE_TOKENS, qe_kv_pool_n_max(core->pool) / 4);
    if (!qe_session_get_policy(t->session)->tiered || n_pages <= n_kept)
        return 0;
    const uint32_t *pins = count_pins(core, t);
    uint32_t n_gone = qe_session_spill(t->session, n, n_pages - n_kept, false, pins);
    if (n_gone < n)
        n_gone += qe_session_spill(t->session, n - n_gone, n_pages - n_kept, true, pins);
    if (n_gone)
        qe_stats_touch(core->stats);
    return n_gone;
}

/* Takes note of a copy that is on its way, waiting for it, so that its page can give up a slot. */
static bool wait_for_move(qe_core *core)
{
    g_autoptr(GError) error = NULL;
    if (!qe_kv_pool_submit_moves(core->pool, &error)) {
        qe_core_lose(core, error->message);
        return false;
    }
    if (qe_kv_pool_wait_move(core->pool, &error))
        return true;
    if (error) {
        qe_core_lose(core, error->message);
        return false;
    }
    return qe_kv_pool_n_to_store(core->pool) > 0 && qe_kv_pool_wait_host_slab(core->pool);
}

/* Host slots for pages that wait to be stored: the idle session used longest ago gives up all it has there. */
static bool make_host_room(qe_core *core, const qe_timeline *keep)
{
    if (qe_kv_pool_n_to_store(core->pool) == 0 || qe_kv_pool_n_host_available(core->pool) > 0)
        return false;
    g_autoptr(GPtrArray) idle = list_idle(core, keep);
    for (guint i = 0; i < idle->len; i++) {
        qe_timeline *t = idle->pdata[i];
        if (!qe_session_get_policy(t->session)->tiered)
            continue;
        qe_session_uncache(t->session, 0);
        qe_session_release_reserved(t->session);
        t->evicted = true;
        qe_stats_touch(core->stats);
        return true;
    }
    return false;
}

#define ROOM_PAGES 32u /* made at a time: finding them costs more than giving them up */

bool qe_core_make_room(qe_core *core, qe_timeline *t)
{
    if (!qe_kv_pool_has_host(core->pool))
        return false;
    if (qe_core_demote_idle(core, t, ROOM_PAGES) > 0)
        return true;
    /* What this session can spill needs no waiting for others, but idle ones go first: their copies may be under way. */
    if (wait_for_move(core))
        return true;
    if (core->lost)
        return false;
    return spill(core, t, ROOM_PAGES) > 0 || make_host_room(core, t);
}

void qe_core_enforce_cap(qe_core *core, qe_timeline *t)
{
    const qe_session_policy *policy = qe_session_get_policy(t->session);
    if (!policy->tiered || policy->device_tokens_max == 0)
        return;
    uint32_t cap = policy->device_tokens_max / QK_PAGE_TOKENS;
    uint32_t n_on = qe_session_n_on_device(t->session), n_pages = qe_session_n_pages(t->session);
    if (n_on > cap)
        qe_session_spill(t->session, n_on - cap, n_pages > cap ? n_pages - cap : 0, false, NULL);
}

/* ---- Bringing pages back ---- */

uint32_t qe_core_restore(qe_core *core, qe_timeline *t, uint32_t n_needed)
{
    uint32_t n_off = qe_session_n_off_device(t->session);
    if (n_off == 0)
        return 0;
    uint32_t n_loading = qe_session_n_loading(t->session), n_wanted = n_off - n_loading;
    const qe_session_policy *policy = qe_session_get_policy(t->session);
    if (policy->device_tokens_max) {
        uint32_t cap = policy->device_tokens_max / QK_PAGE_TOKENS;
        uint32_t n_on = qe_session_n_on_device(t->session) + n_loading;
        n_wanted = MIN(n_wanted, cap > n_on ? cap - n_on : 0);
    }
    uint64_t n_room = (uint64_t)n_wanted + n_needed;
    uint32_t n_available = qe_kv_pool_n_available(core->pool);
    if (n_available < n_room)
        n_available += qe_core_demote_idle(core, t, (uint32_t)(n_room - n_available));
    n_wanted = MIN(n_wanted, n_available > n_needed ? n_available - n_needed : 0);
    uint32_t n_free = qe_kv_slots_n_available(qe_kv_pool_device_slots(core->pool));
    if (n_free < n_wanted)
        qe_kv_pool_evict_cached(core->pool, n_wanted - n_free);
    g_autoptr(GError) error = NULL;
    int64_t n = qe_session_load(t->session, n_wanted, &error);
    if (n < 0 || !qe_kv_pool_submit_moves(core->pool, &error)) {
        qe_core_lose(core, error->message);
        return 0;
    }
    if (n > 0)
        qe_stats_touch(core->stats);
    return (uint32_t)n;
}

void qe_core_prefetch(qe_core *core, qe_session_id id)
{
    qe_timeline *t = g_hash_table_lookup(core->timelines, &id);
    if (!t || core->lost || !core->pool)
        return;
    t->last_used = ++core->clock;
    if (!t->request)
        qe_core_restore(core, t, QE_KV_RESERVE_TOKENS / QK_PAGE_TOKENS);
}

/* ---- A round's moves ---- */

bool qe_core_move(qe_core *core)
{
    g_autoptr(GError) error = NULL;
    if (!qe_kv_pool_has_host(core->pool))
        return true;
    bool landed = qe_kv_pool_poll(core->pool, &error);
    if (!error && (qe_kv_pool_n_loading(core->pool) || qe_kv_pool_n_to_store(core->pool)))
        qe_kv_pool_submit_moves(core->pool, &error);
    if (landed)
        qe_stats_touch(core->stats);
    if (error)
        qe_core_lose(core, error->message);
    return error == NULL;
}

bool qe_core_wait_moves(qe_core *core)
{
    g_autoptr(GError) error = NULL;
    if (!qe_kv_pool_has_host(core->pool) || qe_kv_pool_n_moving(core->pool) == 0)
        return false;
    bool landed = qe_kv_pool_wait_move(core->pool, &error);
    if (error)
        qe_core_lose(core, error->message);
    if (landed)
        qe_stats_touch(core->stats);
    return landed;
}
