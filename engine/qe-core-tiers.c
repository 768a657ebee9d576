/* qe-core-tiers.c: cache modes, and which pages are on the device.
 *
 * The order in which room is made on the device for a request that needs pages:
 *   1. cached pages that nobody holds (the pool does that by itself)
 *   2. pages of idle sessions that the host has too: oldest session first, from its end; those that sessions share later
 *   3. copies to the host that are on their way are waited for, and 2 again
 *   4. the session's own oldest pages, when its mode is tiered: they are attended to in host memory
 *   5. host pages that are being written to the disk are waited for
 *   6. pages of idle sessions that only the device has, and those behind: such sessions compute them again
 *      (qe_core_drop_oldest)
 * Never: what running sessions of other requests hold, and what is being loaded.
 *
 * A conversation's own limit on the device (gpu_max_length + hot_cache_length) comes before that: its oldest pages go to the
 * host, and those are waited for, before it takes another one. What running sessions without the limit hold too is theirs. Only where the device cannot
 * read host memory, since the system pins none, the limit cannot hold; the tier's note says so.
 *
 * Invariant: pages move only here and in the pool; a plan is filled after the moves of its round. */
#include <string.h>
#include "engine/qe-core.h"
#include "engine/qe-limits.h"

/* ---- Modes ---- */

static qe_kv_pool *pool_of(const qe_timeline *t)
{
    return qe_session_pool(t->session);
}

static bool is_tiered(qe_cache_mode mode)
{
    return mode == QE_CACHE_TIERED || mode == QE_CACHE_TIERED_INT8 || mode == QE_CACHE_SELECTIVE;
}

/* What @config comes to on this engine: never AUTO; a tiered mode without a host tier is a session. */
static qe_cache_mode resolve(const qe_core *core, const qe_cache_config *config)
{
    bool host = core->pools[0] && qe_kv_pool_has_host(core->pools[0]) && config->offload_to_cpu;
    switch (config->mode) {
    case QE_CACHE_AUTO:
    case QE_CACHE_TIERED:
        return host ? QE_CACHE_TIERED : QE_CACHE_SESSION;
    case QE_CACHE_TIERED_INT8:
        return core->pools[1] ? QE_CACHE_TIERED_INT8 : QE_CACHE_SESSION;
    case QE_CACHE_SELECTIVE:
        return core->params.select_max ? QE_CACHE_SELECTIVE : host ? QE_CACHE_TIERED : QE_CACHE_SESSION;
    default:
        return config->mode;
    }
}

static qe_session_policy policy_of(
    const qe_core *core, const qe_timeline *t, const qe_cache_config *config, qe_cache_mode mode)
{
    uint32_t cap = config->gpu_max_length + config->hot_cache_length;
    bool keeps = mode != QE_CACHE_REBUILD && mode != QE_CACHE_PAGED;
    qe_session_select select = {0};
    if (mode == QE_CACHE_SELECTIVE)
        select = (qe_session_select){config->sink_length / QK_PAGE_TOKENS,
            config->recent_length / QK_PAGE_TOKENS, config->select_length / QK_PAGE_TOKENS};
    return (qe_session_policy){
        .select = select,
        .contiguous = mode == QE_CACHE_REBUILD,
        .shared = keeps && config->use_cache && !t->synthetic,
        .tiered = is_tiered(mode) && core->pools[0] && qe_kv_pool_has_host(core->pools[0]) &&
                  config->offload_to_cpu,
        .device_tokens_max = is_tiered(mode) ? cap : 0,
    };
}

/* A mode that computes something else than the one asked for would is refused, not replaced. */
static void judge_mode(const qe_core *core, qe_timeline *t, qe_cache_mode wanted)
{
    g_clear_error(&t->no_mode);
    if (wanted == QE_CACHE_TIERED_INT8 && !core->pools[1])
        g_set_error(&t->no_mode, QE_ERROR, QE_ERROR_UNSUPPORTED,
            "The cache mode tiered-int8 is not offered here: the device has no int8 pages");
    if (wanted == QE_CACHE_SELECTIVE && !core->params.select_max)
        g_set_error(&t->no_mode, QE_ERROR, QE_ERROR_UNSUPPORTED,
            "The cache mode selective is not offered here: the device cannot choose pages");
}

void qe_core_apply_cache(qe_core *core, qe_timeline *t, const qe_cache_config *config)
{
    qe_cache_mode mode = resolve(core, config);
    judge_mode(core, t, config->mode);
    bool kept = t->mode != QE_CACHE_REBUILD && t->mode != QE_CACHE_PAGED;
    bool keeps = mode != QE_CACHE_REBUILD && mode != QE_CACHE_PAGED;
    t->cache = *config;
    uint32_t kv_class = mode == QE_CACHE_TIERED_INT8 && core->pools[1];
    if (kv_class != t->kv_class) { /* pages of another kind: the ids stay, their KV is computed again */
        qe_core_disk_leave(core, t);
        qe_session *session = qe_core_rebuild_session(core->pools[kv_class], t->session);
        t->mode_changed = qe_session_n_cached(t->session) > 0;
        qe_session_free(t->session);
        t->session = session;
        t->kv_class = kv_class;
    }
    qe_session_policy policy = policy_of(core, t, config, mode);
    const qe_session_select *select = &qe_session_get_policy(t->session)->select;
    bool selects_anew = memcmp(select, &policy.select, sizeof *select) != 0;
    /* What a mode that keeps nothing has left is no use to the next, and the other way round; and what was computed under
     * selective attention is no use to others, nor theirs to it. */
    if (((t->mode != mode && (!kept || !keeps)) || selects_anew) && !core->lost) {
        qe_session_uncache(t->session, 0);
        qe_session_release_reserved(t->session);
        t->mode_changed |= t->mode != QE_CACHE_AUTO && qe_session_n_ids(t->session) > 0;
    }
    if (selects_anew)
        qe_core_disk_distrust(core, t);
    t->mode = mode;
    qe_session_set_policy(t->session, &policy);
}

void qe_core_set_cache(qe_core *core, qe_session_id id, const qe_cache_config *cache)
{
    qe_timeline *t = g_hash_table_lookup(core->timelines, &id);
    if (!t || t->request || !core->pools[0])
        return;
    if (core->lost)
        t->cache = *cache; /* applied at the recovery */
    else
        qe_core_apply_cache(core, t, cache);
    if (!core->lost)
        qe_core_hold_limit(core, t, 0, NULL);
    qe_core_disk_update(core, t);
    qe_stats_touch(core->stats);
}

uint32_t qe_core_limit(const qe_timeline *t)
{
    const qe_session_policy *policy = qe_session_get_policy(t->session);
    return policy->tiered && policy->device_tokens_max ? policy->device_tokens_max / QK_PAGE_TOKENS
                                                       : UINT32_MAX;
}

uint32_t qe_core_capacity(const qe_core *core, const qe_timeline *t)
{
    const qe_session_policy *policy = qe_session_get_policy(t->session);
    uint64_t n_pages = MIN(qe_kv_pool_n_max(pool_of(t)), qe_core_limit(t));
    if (policy->tiered)
        n_pages += qe_kv_slots_n_max(qe_kv_pool_host_slots(pool_of(t)));
    if (policy->select
            .n_recent) { /* the bounds of 16 pages take the device slot of one, of three quarters at most */
        const qe_session_select *s = &policy->select;
        uint64_t n_all = (uint64_t)s->n_sink + s->n_recent + s->n_chosen; /* needs no bounds */
        uint64_t n_bounds_max = qe_kv_pool_n_max(pool_of(t)) * 3ull / 4;
        uint64_t n_with = MIN(n_pages * QK_PAGE_TOKENS / (QK_PAGE_TOKENS + 1), n_bounds_max * QK_PAGE_TOKENS);
        n_pages = MAX(n_with, MIN(n_pages, n_all));
    }
    if (t->cache.max_cache_size)
        n_pages = MIN(n_pages, t->cache.max_cache_size);
    return (uint32_t)MIN((uint64_t)core->context_max, n_pages * QK_PAGE_TOKENS);
}

/* ---- Making room ---- */

uint32_t *qe_core_page_counts(qe_core *core, const qe_kv_pool *pool)
{
    guint n = MAX(qe_kv_pool_n_pages(pool), 1);
    g_array_set_size(core->page_counts, n);
    uint32_t *counts = (uint32_t *)(void *)core->page_counts->data;
    memset(counts, 0, n * sizeof *counts);
    return counts;
}

/* For each page of @pool: how many running sessions other than @but hold it. In the scratch of qe_core_page_counts(). */
static const uint32_t *count_pins(qe_core *core, const qe_kv_pool *pool, const qe_timeline *but)
{
    uint32_t *pins = qe_core_page_counts(core, pool);
    for (guint i = 0; i < core->running->len; i++) {
        const qe_request *r = core->running->pdata[i];
        if (r->timeline != but && pool_of(r->timeline) == pool)
            qe_session_count_pages(r->timeline->session, pins);
    }
    return pins;
}

static bool is_idle(const qe_timeline *t)
{
    return !t->request || t->request->state == QE_REQUEST_QUEUED;
}

/* Of two idle sessions, which gives its pages first: one whose request waits goes after those without any. */
static int compare_idle(gconstpointer a, gconstpointer b)
{
    const qe_timeline *x = *(qe_timeline *const *)a, *y = *(qe_timeline *const *)b;
    if ((x->request != NULL) != (y->request != NULL))
        return x->request ? 1 : -1;
    return (x->last_used > y->last_used) - (x->last_used < y->last_used);
}

/* Idle sessions of @pool (NULL: of all) that have pages, but @keep, the one used longest ago first. */
static GPtrArray *list_idle(qe_core *core, const qe_kv_pool *pool, const qe_timeline *keep)
{
    GPtrArray *list = g_ptr_array_new();
    GHashTableIter iter;
    void *value;
    g_hash_table_iter_init(&iter, core->timelines);
    while (g_hash_table_iter_next(&iter, NULL, &value)) {
        qe_timeline *t = value;
        if (t != keep && (!pool || pool_of(t) == pool) && is_idle(t) && qe_session_n_pages(t->session) > 0)
            g_ptr_array_add(list, t);
    }
    g_ptr_array_sort(list, compare_idle);
    return list;
}

/* The session's pages go, in all tiers; it computes its tokens again. */
static void give_up(qe_core *core, qe_timeline *t)
{
    qe_session_uncache(t->session, 0);
    qe_session_release_reserved(t->session);
    t->evicted = true;
    qe_stats_touch(core->stats);
}

/* The session's pages go, from the first one on that only the device has. */
static void give_up_device(qe_core *core, qe_timeline *t)
{
    qe_session_drop_lost(t->session);
    qe_session_demote(t->session, UINT32_MAX, false, NULL);
    t->evicted = true;
    qe_stats_touch(core->stats);
}

bool qe_core_drop_oldest(qe_core *core, const qe_timeline *keep)
{
    g_autoptr(GPtrArray) idle = list_idle(core, NULL, keep);
    for (guint i = 0; i < idle->len; i++) {
        qe_timeline *t = idle->pdata[i];
        uint32_t n = qe_session_n_on_device(t->session);
        if (n == 0)
            continue;
        give_up_device(core, t);
        if (qe_session_n_on_device(t->session) == n)
            give_up(core, t);
        return true;
    }
    return false;
}

/* Takes note of a copy that is on its way, waiting for it, so that its page can give up a slot. */
static bool wait_for_move(qe_core *core, qe_kv_pool *pool)
{
    g_autoptr(GError) error = NULL;
    if (qe_kv_pool_n_to_store(pool) > 0 && qe_kv_slots_n_free(qe_kv_pool_host_slots(pool)) == 0)
        qe_core_spare_host(core, pool, 1);
    if (!qe_kv_pool_submit_moves(pool, &error)) {
        qe_core_lose(core, error->message);
        return false;
    }
    if (qe_kv_pool_wait_move(pool, &error))
        return true;
    if (error) {
        qe_core_lose(core, error->message);
        return false;
    }
    return qe_kv_pool_n_to_store(pool) > 0 && qe_kv_pool_wait_host_slab(pool);
}

static uint32_t demote_pool(qe_core *core, const qe_kv_pool *pool, const qe_timeline *keep, uint32_t n)
{
    uint32_t n_gone = 0;
    if (!pool || !qe_kv_pool_has_host(pool))
        return 0;
    const uint32_t *pins = count_pins(core, pool, NULL);
    g_autoptr(GPtrArray) idle = list_idle(core, pool, keep);
    for (int shared = 0; shared < 2; shared++) {
        for (guint i = 0; i < idle->len && n_gone < n; i++) {
            qe_timeline *t = idle->pdata[i];
            n_gone += qe_session_demote(t->session, n - n_gone, shared, pins);
        }
    }
    return n_gone;
}

static qe_kv_pool *other_pool(const qe_core *core, const qe_kv_pool *pool)
{
    return pool == core->pools[0] ? core->pools[1] : core->pools[0];
}

/* The other class's slabs that can be spared go back to what both share. */
static bool take_from_other(qe_core *core, const qe_kv_pool *pool, const qe_timeline *keep)
{
    qe_kv_pool *other = other_pool(core, pool);
    if (!other || qe_kv_pool_n_reserved(other) == 0)
        return false;
    if (qe_kv_pool_trim(other, 0) > 0)
        return true;
    if (qe_kv_pool_evict_cached(other, UINT32_MAX) + demote_pool(core, other, keep, UINT32_MAX) > 0 &&
        qe_kv_pool_trim(other, 0) > 0)
        return true;
    /* Pages whose copies are on their way to the host can go when those are there. */
    return qe_kv_pool_n_moving(other) + qe_kv_pool_n_to_store(other) > 0 && wait_for_move(core, other);
}

uint32_t qe_core_demote_idle(qe_core *core, const qe_timeline *keep, const qe_kv_pool *pool, uint32_t n)
{
    uint32_t n_gone = demote_pool(core, pool, keep, n);
    if (n_gone)
        qe_stats_touch(core->stats);
    return n_gone;
}

uint64_t qe_core_device_bytes_used(const qe_core *core)
{
    uint64_t bytes = 0;
    for (int c = 0; c < QE_KV_CLASSES && core->pools[c]; c++)
        bytes += qe_kv_pool_n_used(core->pools[c]) * qe_kv_pool_page_bytes(core->pools[c]);
    return bytes;
}

bool qe_core_shrink(qe_core *core)
{
    for (int c = 0; c < QE_KV_CLASSES && core->pools[c]; c++) {
        if (qe_kv_pool_evict_cached(core->pools[c], 1) > 0 ||
            qe_core_demote_idle(core, NULL, core->pools[c], 1) > 0)
            return true;
    }
    return qe_core_drop_oldest(core, NULL);
}

/* The session's own oldest pages, but for the newest span (of a small tier, a quarter). */
static uint32_t spill(qe_core *core, qe_timeline *t, uint32_t n)
{
    uint32_t n_pages = qe_session_n_cached(t->session) / QK_PAGE_TOKENS;
    uint32_t n_kept = MIN(QK_SPAN_TOKENS / QK_PAGE_TOKENS, qe_kv_pool_n_max(pool_of(t)) / 4);
    if (!qe_session_get_policy(t->session)->tiered || n_pages <= n_kept)
        return 0;
    const uint32_t *pins = count_pins(core, pool_of(t), t);
    uint32_t n_gone = qe_session_spill(t->session, n, n_pages - n_kept, false, pins);
    if (n_gone < n)
        n_gone += qe_session_spill(t->session, n - n_gone, n_pages - n_kept, true, pins);
    if (n_gone)
        qe_stats_touch(core->stats);
    return n_gone;
}

#define SPARED_PAGES 64u /* cached pages that go at a time until a slab is free */

/* One host slab of @pool: a free one, else one that cached pages leave. */
static bool free_host_slab(qe_kv_pool *pool)
{
    const qe_kv_slots *host = qe_kv_pool_host_slots(pool);
    uint32_t n_slabs = qe_kv_slots_n_slabs(host);
    if (n_slabs == 0 || (!qe_kv_slots_can_trim(host, n_slabs - 1) && qe_kv_pool_n_cached(pool) == 0))
        return false;
    while (qe_kv_pool_n_moving(pool) > 0 && qe_kv_pool_wait_move(pool, NULL))
        ;
    do {
        if (qe_kv_pool_trim_host(pool, 1) > 0)
            return true;
    } while (qe_kv_pool_evict_cached_host(pool, SPARED_PAGES) > 0);
    return false;
}

uint32_t qe_core_spare_host(qe_core *core, qe_kv_pool *pool, uint32_t n)
{
    qe_kv_pool *other = other_pool(core, pool);
    uint32_t n_room = qe_kv_pool_n_host_available(pool);
    while (n_room < n && other && qe_kv_pool_has_host(other) && free_host_slab(other))
        n_room = qe_kv_pool_n_host_available(pool);
    return n_room;
}

/* Host slots for pages that wait to be stored: the idle session used longest ago gives up all it has there, one of this class
 * rather than of the other, whose memory comes by whole slabs only. */
static bool make_host_room(qe_core *core, const qe_timeline *keep)
{
    qe_kv_pool *pool = pool_of(keep);
    if (qe_kv_pool_n_to_store(pool) == 0 || qe_kv_pool_n_host_available(pool) > 0)
        return false;
    if (qe_core_spare_host(core, pool, 1) > 0)
        return true;
    for (int c = 0; c < QE_KV_CLASSES; c++) {
        g_autoptr(GPtrArray) idle = list_idle(core, c == 0 ? pool : other_pool(core, pool), keep);
        for (guint i = 0; i < idle->len; i++) {
            qe_timeline *t = idle->pdata[i];
            if ((pool_of(t) == pool) == (c == 0) && qe_session_get_policy(t->session)->tiered) {
                give_up(core, t);
                return true;
            }
        }
    }
    return false;
}

#define ROOM_PAGES 32u /* made at a time: finding them costs more than giving them up */

bool qe_core_make_room(qe_core *core, qe_timeline *t)
{
    qe_kv_pool *pool = pool_of(t);
    if (take_from_other(core, pool, t))
        return true;
    if (!qe_kv_pool_has_host(pool))
        return false;
    if (qe_core_demote_idle(core, t, pool, ROOM_PAGES) > 0)
        return true;
    /* What this session can spill needs no waiting for others, but idle ones go first: their copies may be under way. */
    if (wait_for_move(core, pool))
        return true;
    if (core->lost)
        return false;
    if (spill(core, t, ROOM_PAGES) > 0 || make_host_room(core, t))
        return true;
    return qe_kv_pool_n_to_store(pool) > 0 && qe_core_disk_wait(core);
}

/* Pages of @t on the device or on their way to it that count against its limit. @pins: of count_pins(). */
static uint32_t count_limited(qe_timeline *t, const uint32_t *pins)
{
    const qe_page *pages = qe_session_pages(t->session);
    uint32_t n = 0;
    for (uint32_t i = 0; i < qe_session_n_pages(t->session); i++) {
        bool there =
            qe_kv_page_on_device(pool_of(t), pages[i]) || qe_kv_page_is_loading(pool_of(t), pages[i]);
        n += there && pins[pages[i]] == 0;
    }
    return n;
}

/* Host memory that the system does not pin cannot be attended to: pages that lie there stay on the device. */
static bool has_unreadable(const qe_timeline *t)
{
    const qe_page *pages = qe_session_pages(t->session);
    for (uint32_t i = 0; i < qe_session_n_pages(t->session); i++) {
        if (qe_kv_page_on_host(pool_of(t), pages[i]) && !qe_kv_page_is_readable_on_host(pool_of(t), pages[i]))
            return true;
    }
    return false;
}

void qe_core_check_limit(qe_core *core, qe_timeline *t)
{
    uint32_t limit = qe_core_limit(t);
    if (limit == UINT32_MAX || has_unreadable(t))
        return;
    uint32_t n = count_limited(t, count_pins(core, pool_of(t), t));
    if (n > limit)
        g_error("session %" G_GUINT64_FORMAT " has %u pages on the device, its limit is %u", t->id, n, limit);
}

/* Gives up device copies of the session's oldest pages until @n_more would be within its limit, as far as the host has them. */
static bool spill_to_limit(qe_core *core, qe_timeline *t, uint32_t n_more)
{
    uint32_t limit = qe_core_limit(t), n_gone = 0;
    uint64_t n = (uint64_t)qe_session_n_on_device(t->session) + qe_session_n_loading(t->session) + n_more;
    if (n <= limit)
        return true;
    const uint32_t *pins = count_pins(core, pool_of(t), t);
    n = (uint64_t)count_limited(t, pins) + n_more;
    for (int shared = 0; shared < 2 && n > limit; shared++) {
        uint32_t n_past = (uint32_t)MIN(n - limit, (uint64_t)UINT32_MAX);
        uint32_t n_now = qe_session_spill(t->session, n_past, UINT32_MAX, shared, pins);
        n -= n_now;
        n_gone += n_now;
    }
    if (n_gone)
        qe_stats_touch(core->stats);
    return n <= limit;
}

void qe_core_enforce_limit(qe_core *core, qe_timeline *t)
{
    if (qe_core_limit(t) == UINT32_MAX)
        return;
    spill_to_limit(core, t, 0);
}

bool qe_core_hold_limit(qe_core *core, qe_timeline *t, uint32_t n_tokens, GError **error)
{
    if (qe_core_limit(t) == UINT32_MAX)
        return true;
    uint32_t n_more = qe_session_pages_needed(t->session, n_tokens);
    while (!spill_to_limit(core, t, n_more)) {
        qe_kv_pool *pool = pool_of(t);
        bool waited = wait_for_move(core, pool);
        if (core->lost)
            return false;
        if (waited || make_host_room(core, t) || (qe_kv_pool_n_to_store(pool) > 0 && qe_core_disk_wait(core)))
            continue;
        if (has_unreadable(t))
            return true;
        g_set_error(error, QE_ERROR, QE_ERROR_NO_MEMORY,
            "The conversation may have %u tokens on the device, and host memory has no room for the others",
            qe_core_limit(t) * QK_PAGE_TOKENS);
        return false;
    }
    return true;
}

/* ---- Bringing pages back ---- */

uint32_t qe_core_restore(qe_core *core, qe_timeline *t, uint32_t n_needed)
{
    uint32_t n_off = qe_session_n_off_device(t->session);
    if (n_off == 0)
        return 0;
    uint32_t n_loading = qe_session_n_loading(t->session), n_wanted = n_off - n_loading;
    uint32_t limit = qe_core_limit(t);
    if (limit < UINT32_MAX) { /* what it will fill would push the same number out again */
        uint32_t n_on = qe_session_n_on_device(t->session) + n_loading + MIN(n_needed, limit / 2);
        n_wanted = MIN(n_wanted, limit > n_on ? limit - n_on : 0);
    }
    uint64_t n_room = (uint64_t)n_wanted + n_needed;
    uint32_t n_available = qe_kv_pool_n_available(pool_of(t));
    if (n_available < n_room)
        n_available += qe_core_demote_idle(core, t, pool_of(t), (uint32_t)(n_room - n_available));
    n_wanted = MIN(n_wanted, n_available > n_needed ? n_available - n_needed : 0);
    uint32_t n_free = qe_kv_slots_n_available(qe_kv_pool_device_slots(pool_of(t)));
    if (n_free < n_wanted)
        qe_kv_pool_evict_cached(pool_of(t), n_wanted - n_free);
    g_autoptr(GError) error = NULL;
    int64_t n = qe_session_load(t->session, n_wanted, &error);
    if (n < 0 || !qe_kv_pool_submit_moves(pool_of(t), &error)) {
        qe_core_lose(core, error->message);
        return 0;
    }
    if (n > 0)
        qe_stats_touch(core->stats);
    uint32_t n_now = qe_session_n_loading(t->session); /* less when the device refused some */
    return n_now > n_loading ? n_now - n_loading : 0;
}

void qe_core_prefetch(qe_core *core, qe_session_id id)
{
    qe_timeline *t = g_hash_table_lookup(core->timelines, &id);
    if (!t || core->lost || !core->pools[0])
        return;
    t->last_used = ++core->clock;
    if (!t->request)
        qe_core_restore(core, t, QE_KV_RESERVE_TOKENS / QK_PAGE_TOKENS);
}

/* ---- A round's moves ---- */

/* Registering host memory holds the driver back, and with it the launches of a prompt's steps: 27 GB/s of pages against the
 * hundreds of launches of each step. So while a prompt is computed, or waits for that, and half of the device's room is left,
 * no more of it is made; what the host has no slots for waits. */
static bool spares_prompts(const qe_core *core, const qe_kv_pool *pool)
{
    if (core->is_host || qe_kv_pool_n_available(pool) < qe_kv_pool_n_max(pool) / 2)
        return false;
    for (guint i = 0; i < core->running->len; i++) {
        const qe_request *r = core->running->pdata[i];
        if (r->state == QE_REQUEST_PREFILL && !r->paused)
            return true;
    }
    for (guint i = 0; i < core->waiting->len; i++) {
        const qe_request *r = core->waiting->pdata[i];
        if (r->n_generated == 0 && !qe_outbox_is_full(r->outbox))
            return true;
    }
    return false;
}

bool qe_core_move(qe_core *core)
{
    bool landed = false;
    for (int c = 0; c < QE_KV_CLASSES && core->pools[c]; c++) {
        qe_kv_pool *pool = core->pools[c];
        g_autoptr(GError) error = NULL;
        if (!qe_kv_pool_has_host(pool))
            continue;
        landed |= qe_kv_pool_poll(pool, &error);
        bool later = spares_prompts(core, pool);
        uint32_t n_to_store = qe_kv_pool_n_to_store(pool);
        uint32_t n_free = qe_kv_slots_n_free(qe_kv_pool_host_slots(pool));
        if (qe_kv_pool_n_reserved(pool) > 0 && !later)
            qe_kv_pool_prepare_host(pool, MIN(QE_HOST_AHEAD_BYTES, core->host_bytes / QE_HOST_AHEAD_SHARE));
        if (n_to_store && !later && n_free == 0)
            qe_core_spare_host(core, pool, 1);
        if (!error && (qe_kv_pool_n_loading(pool) || (n_to_store && (!later || n_free >= n_to_store))))
            qe_kv_pool_submit_moves(pool, &error);
        if (error) {
            qe_core_lose(core, error->message);
            return false;
        }
    }
    qe_core_disk_advance(core);
    if (landed) {
        core->landed = true;
        qe_stats_touch(core->stats);
    }
    return true;
}

bool qe_core_store_all(qe_core *core)
{
    for (int c = 0; c < QE_KV_CLASSES && core->pools[c]; c++) {
        qe_kv_pool *pool = core->pools[c];
        while (qe_kv_pool_has_host(pool) &&
               (qe_kv_pool_n_moving(pool) > 0 || qe_kv_pool_n_to_store(pool) > 0) &&
               wait_for_move(core, pool))
            ;
        if (core->lost)
            return false;
    }
    return true;
}

bool qe_core_wait_moves(qe_core *core)
{
    for (int c = 0; c < QE_KV_CLASSES && core->pools[c]; c++) {
        g_autoptr(GError) error = NULL;
        if (!qe_kv_pool_has_host(core->pools[c]) || qe_kv_pool_n_moving(core->pools[c]) == 0)
            continue;
        bool landed = qe_kv_pool_wait_move(core->pools[c], &error);
        if (error) {
            qe_core_lose(core, error->message);
            return false;
        }
        if (landed) {
            qe_stats_touch(core->stats);
            return true;
        }
    }
    /* With nothing else to do, stores that were put off get their memory. */
    for (int c = 0; c < QE_KV_CLASSES && core->pools[c]; c++) {
        if (qe_kv_pool_has_host(core->pools[c]) && qe_kv_pool_n_to_store(core->pools[c]) > 0 &&
            qe_kv_pool_wait_host_slab(core->pools[c]))
            return true;
    }
    return qe_core_disk_wait_slab(core);
}
