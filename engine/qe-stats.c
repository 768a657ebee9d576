/* qe-stats.c: rates, history and publication of the snapshot.
 *
 * Invariants:
 *  1. A published snapshot never changes; its memory goes with the last reference.
 *  2. After a change a publication follows within QE_SNAPSHOT_MS of the one before, and one more when the rates of the
 *     last second have decayed to zero. Then nothing is due. */
#include "engine/qe-stats.h"
#include <string.h>
#include "engine/qe-limits.h"
#include "engine/qe-lock.h"

#define RATE_BUCKETS 20
#define BUCKET_US    ((gint64)QE_RATE_MS * 1000 / RATE_BUCKETS)

typedef struct {
    gint64 index; /* time / BUCKET_US */
    uint32_t n_prefill, n_decode;
} rate_bucket;

typedef struct {
    qe_snapshot view; /* first: the public pointer */
    gint n_refs;      /* atomic */
    qe_session_view *sessions;
    qe_cell *cells;
    uint32_t history[1 + QE_N_TIERS][QE_HISTORY_SECONDS]; /* all tiers together, then each */
} snapshot;

struct qe_stats {
    qe_mutex lock; /* guards latest */
    snapshot *latest;
    /* engine thread */
    bool dirty, rates_live;
    uint64_t serial;
    gint64 last_publish;
    rate_bucket buckets[RATE_BUCKETS];
    uint32_t history[QE_HISTORY_SECONDS][1 + QE_N_TIERS]; /* a ring */
    uint32_t last_used[1 + QE_N_TIERS];                   /* as of the last publication */
    uint32_t n_history, history_next;
    gint64 history_second; /* of the newest entry */
    char *gpu_reason;      /* asked for once: probing asks the machine */
};

static gint n_snapshots; /* that exist, of all engines; atomically */

uint32_t qe_stats_n_snapshots(void)
{
    return (uint32_t)g_atomic_int_get(&n_snapshots);
}

void qe_snapshot_unref(const qe_snapshot *view)
{
    snapshot *self = (snapshot *)(void *)view;
    if (!self || !g_atomic_int_dec_and_test(&self->n_refs))
        return;
    for (int i = 0; i < QE_N_TIERS; i++) {
        g_free(self->view.tiers[i].reason);
        g_free(self->view.tiers[i].note);
    }
    g_free(self->sessions);
    g_free(self->cells);
    g_free(self);
    g_atomic_int_add(&n_snapshots, -1);
}

qe_stats *qe_stats_new(void)
{
    qe_stats *self = g_new0(qe_stats, 1);
    qe_mutex_init(&self->lock);
    for (int i = 0; i < RATE_BUCKETS; i++)
        self->buckets[i].index = -1;
    qe_stats_touch(self);
    qe_stats_publish(self, &(qe_stats_input){0});
    return self;
}

void qe_stats_free(qe_stats *self)
{
    if (!self)
        return;
    qe_snapshot_unref(&self->latest->view);
    qe_mutex_clear(&self->lock);
    g_free(self->gpu_reason);
    g_free(self);
}

void qe_stats_touch(qe_stats *self)
{
    self->dirty = true;
}

void qe_stats_count(qe_stats *self, uint32_t n_prefill, uint32_t n_decode)
{
    gint64 index = g_get_monotonic_time() / BUCKET_US;
    rate_bucket *b = &self->buckets[index % RATE_BUCKETS];
    if (b->index != index)
        *b = (rate_bucket){.index = index};
    b->n_prefill += n_prefill;
    b->n_decode += n_decode;
    self->dirty = self->rates_live = true;
}

gint64 qe_stats_deadline(const qe_stats *self)
{
    if (self->dirty)
        return self->last_publish + (gint64)QE_SNAPSHOT_MS * 1000;
    if (self->rates_live)
        return self->last_publish + (gint64)QE_RATE_MS * 1000;
    return 0;
}

static void measure_rates(qe_stats *self, gint64 now, qe_snapshot *view)
{
    uint64_t n_prefill = 0, n_decode = 0;
    for (int i = 0; i < RATE_BUCKETS; i++) {
        const rate_bucket *b = &self->buckets[i];
        if (b->index >= 0 && b->index > now / BUCKET_US - RATE_BUCKETS) {
            n_prefill += b->n_prefill;
            n_decode += b->n_decode;
        }
    }
    view->prefill_tokens_per_s = (double)n_prefill * 1000 / QE_RATE_MS;
    view->decode_tokens_per_s = (double)n_decode * 1000 / QE_RATE_MS;
    self->rates_live = n_prefill || n_decode;
}

/* One entry a second; seconds in which nothing was published had the pages of the publication before them. */
static void extend_history(qe_stats *self, gint64 now, const uint32_t used[1 + QE_N_TIERS])
{
    gint64 second = now / G_USEC_PER_SEC;
    gint64 missing = self->n_history ? second - self->history_second : 1;
    for (gint64 i = MIN(missing, (gint64)QE_HISTORY_SECONDS); i > 0; i--) {
        memcpy(self->history[self->history_next], i == 1 ? used : self->last_used, sizeof self->last_used);
        self->history_next = (self->history_next + 1) % QE_HISTORY_SECONDS;
        self->n_history = MIN(self->n_history + 1, QE_HISTORY_SECONDS);
    }
    if (missing == 0 && self->n_history)
        memcpy(self->history[(self->history_next + QE_HISTORY_SECONDS - 1) % QE_HISTORY_SECONDS], used,
            sizeof self->last_used);
    self->history_second = second;
    memcpy(self->last_used, used, sizeof self->last_used);
}

static bool is_loaded(const qe_stats_input *input)
{
    return input->pools && input->pools[0];
}

/* Which tier shows @page: the fastest that has it. */
static qe_tier tier_of(const qe_stats_input *input, const qe_kv_pool *pool, qe_page page)
{
    if (input->is_host || !qe_kv_page_on_device(pool, page))
        return QE_TIER_HOST;
    return QE_TIER_GPU;
}

static const qe_session_view *find_session(const qe_snapshot *s, qe_session_id id, uint32_t *at)
{
    while (*at < s->n_sessions && s->sessions[*at].id < id)
        ++*at;
    return *at < s->n_sessions && s->sessions[*at].id == id ? &s->sessions[*at] : NULL;
}

static bool has_same_cells(const qe_session_view *a, const qe_session_view *b)
{
    return a->n_pages == b->n_pages && memcmp(a->cells, b->cells, a->n_pages * sizeof *a->cells) == 0;
}

/* Since when each session's cells are as they are. Both lists are by id. */
static void date_cells(snapshot *s, const snapshot *before)
{
    uint32_t at = 0;
    for (uint32_t i = 0; i < s->view.n_sessions; i++) {
        qe_session_view *v = &s->sessions[i];
        const qe_session_view *old = before ? find_session(&before->view, v->id, &at) : NULL;
        v->changed = old && has_same_cells(old, v) ? old->changed : s->view.serial;
    }
}

static void fill_cells(snapshot *s, const qe_stats_input *input)
{
    gsize n_cells = 0;
    for (uint32_t i = 0; i < input->n_sessions; i++)
        n_cells += qe_session_n_pages(input->sessions[i].session);
    s->cells = g_new0(qe_cell, MAX(n_cells, 1));
    s->sessions = g_new0(qe_session_view, MAX(input->n_sessions, 1));
    qe_cell *cell = s->cells;
    for (uint32_t i = 0; i < input->n_sessions; i++) {
        const qe_session *session = input->sessions[i].session;
        const qe_page *pages = qe_session_pages(session);
        const qe_kv_pool *pool = qe_session_pool(session);
        uint32_t n_cached = qe_session_n_cached(session);
        qe_session_view *v = &s->sessions[i];
        *v = (qe_session_view){
            .id = qe_session_id_of(session),
            .n_tokens = qe_session_n_ids(session),
            .n_pages = qe_session_n_pages(session),
            .running = input->sessions[i].running,
            .mode = input->sessions[i].mode,
            .cells = cell,
        };
        v->bytes = v->n_pages * qe_kv_pool_page_bytes(pool);
        for (uint32_t k = 0; k < v->n_pages; k++, cell++) {
            uint32_t n_refs = qe_kv_page_refs(pool, pages[k]);
            uint32_t begin = k * QK_PAGE_TOKENS;
            qe_tier tier = tier_of(input, pool, pages[k]);
            v->n_pages_tier[tier]++;
            cell->flags = tier;
            if (qe_kv_page_is_moving(pool, pages[k]))
                cell->flags |= QE_CELL_MOVING;
            if (qe_kv_page_state(pool, pages[k]) == QE_PAGE_TAIL)
                cell->flags |= QE_CELL_TAIL;
            if (n_refs > 1) {
                cell->flags |= QE_CELL_SHARED;
                v->n_pages_shared++;
            }
            cell->n_refs = (uint8_t)MIN(n_refs, 255u);
            cell->n_tokens = (uint8_t)(n_cached > begin ? MIN(n_cached - begin, QK_PAGE_TOKENS) : 0);
        }
    }
    s->view.n_sessions = input->n_sessions;
    s->view.sessions = s->sessions;
}

/* Why there is no GPU tier, in the words of the backend that would give one. */
static char *gpu_reason(void)
{
    qk_probe probes[8];
    size_t n = MIN(qk_probe_backends(probes, G_N_ELEMENTS(probes)), G_N_ELEMENTS(probes));
    for (size_t i = 0; i < n; i++) {
        if (g_strcmp0(probes[i].name, "cpu") != 0)
            return g_strdup(probes[i].available ? "The model runs on the CPU." : probes[i].reason);
    }
    return g_strdup("This build has no GPU backend.");
}

/* A tier's slots as its view. */
static void fill_slots(qe_tier_view *view, const qe_kv_slots *slots, uint64_t page_bytes)
{
    view->present = true;
    view->n_pages_used += qe_kv_slots_n_used(slots);
    view->bytes_used += qe_kv_slots_n_used(slots) * page_bytes;
    view->bytes_reserved += qe_kv_slots_bytes_reserved(slots);
}

/* One class's pages. On the CPU both tiers lie in host memory and are one in the view. */
static void add_pool(qe_snapshot *view, const qe_kv_pool *pool, bool is_host, qe_tier_view *home)
{
    qe_tier_view *host = &view->tiers[QE_TIER_HOST];
    const qe_kv_slots *slots = qe_kv_pool_host_slots(pool);
    uint64_t page_bytes = qe_kv_pool_page_bytes(pool);
    qe_kv_counters counters;
    qe_kv_pool_get_counters(pool, &counters);
    fill_slots(home, qe_kv_pool_device_slots(pool), page_bytes);
    home->n_pages_shared += qe_kv_pool_n_shared(pool);
    home->bytes_bounds += qe_kv_pool_n_bounds_slots(pool) * page_bytes;
    if (slots) {
        fill_slots(host, slots, page_bytes);
        host->bytes_pinned += is_host ? 0 : qe_kv_slots_bytes_pinned(slots);
        if (!host->note)
            host->note = g_strdup(qe_kv_slots_note(slots));
        if (!host->note)
            host->note = g_strdup(qe_kv_pool_refusal(pool));
    }
    host->bytes_in += counters.bytes_stored;
    host->bytes_out += counters.bytes_loaded;
    if (home != host) {
        home->bytes_in += counters.bytes_loaded;
        home->bytes_out += counters.bytes_stored;
    }
    view->n_pages_cached += qe_kv_pool_n_cached(pool);
}

static void fill_disk(qe_snapshot *view, const qe_stats_disk *disk)
{
    qe_tier_view *tier = &view->tiers[QE_TIER_DISK];
    if (!disk || !disk->present) {
        tier->reason = g_strdup(disk && disk->reason ? disk->reason : "Off");
        return;
    }
    *tier = (qe_tier_view){
        .present = true,
        .n_pages_used = disk->n_pages,
        .n_pages_max = disk->n_pages_max,
        .bytes_used = disk->bytes_used,
        .bytes_max = disk->bytes_max,
        .bytes_reserved = disk->bytes_used,
        .bytes_in = disk->bytes_in,
        .bytes_out = disk->bytes_out,
        .note = g_strdup(disk->note),
    };
    view->tiers[QE_TIER_HOST].bytes_in += disk->bytes_out;
    view->tiers[QE_TIER_HOST].bytes_out += disk->bytes_in;
}

static void fill_tiers(qe_snapshot *view, const qe_stats_input *input, char *gpu)
{
    bool loaded = is_loaded(input);
    qe_tier_view *host = &view->tiers[QE_TIER_HOST];
    qe_tier_view *home = &view->tiers[input->is_host || !loaded ? QE_TIER_HOST : QE_TIER_GPU];
    fill_disk(view, input->disk);
    for (int c = 0; loaded && c < QE_KV_CLASSES && input->pools[c]; c++)
        add_pool(view, input->pools[c], input->is_host, home);
    if (loaded) {
        /* The budget is of bytes; in pages of the engine's own class. */
        const qe_kv_slots *slots = qe_kv_pool_host_slots(input->pools[0]);
        view->page_bytes = qe_kv_pool_page_bytes(input->pools[0]);
        home->n_pages_max += qe_kv_pool_n_max(input->pools[0]);
        if (slots)
            host->n_pages_max += qe_kv_slots_n_max(slots);
        home->bytes_max = home->n_pages_max * view->page_bytes;
        host->bytes_max = host->n_pages_max * view->page_bytes;
    } else {
        home->reason = g_strdup("No model is loaded.");
    }
    if (home != &view->tiers[QE_TIER_GPU])
        view->tiers[QE_TIER_GPU].reason = g_steal_pointer(&gpu);
    else if (!host->present)
        host->reason = g_strdup("Off");
    g_free(gpu);
}

static void fill_device(qe_device_view *view, const qe_stats_input *input)
{
    const qk_backend_info *d = input->device;
    *view = (qe_device_view){
        .memory_total = d->memory_total,
        .memory_used = d->memory_total - MIN(d->memory_free, d->memory_total),
        .memory_process = d->memory_process,
        .weights = is_loaded(input) ? input->weights : 0,
        .workspace = is_loaded(input) ? input->workspace : 0,
        .utilization = d->utilization,
    };
}

bool qe_stats_publish(qe_stats *self, const qe_stats_input *input)
{
    gint64 now = g_get_monotonic_time();
    gint64 deadline = qe_stats_deadline(self);
    if (deadline == 0 || (self->latest && now < deadline))
        return false;
    snapshot *s = g_new0(snapshot, 1);
    g_atomic_int_inc(&n_snapshots);
    g_atomic_int_set(&s->n_refs, 1);
    s->view.serial = ++self->serial;
    s->view.page_tokens = QK_PAGE_TOKENS;
    s->view.n_running = input->n_running;
    s->view.n_queued = input->n_queued;
    if (!self->gpu_reason)
        self->gpu_reason = gpu_reason();
    fill_tiers(&s->view, input, g_strdup(input->cpu_reason ? input->cpu_reason : self->gpu_reason));
    if (input->device)
        fill_device(&s->view.device, input);
    if (is_loaded(input)) {
        fill_cells(s, input);
        date_cells(s, self->latest);
    }
    measure_rates(self, now, &s->view);
    uint32_t used[1 + QE_N_TIERS] = {0};
    for (int i = 0; i < QE_N_TIERS; i++) {
        used[1 + i] = s->view.tiers[i].n_pages_used;
        used[0] += used[1 + i];
    }
    extend_history(self, now, used);
    s->view.n_history = self->n_history;
    s->view.history = s->history[0];
    for (int k = 0; k <= QE_N_TIERS; k++) {
        if (k > 0)
            s->view.tier_history[k - 1] = s->history[k];
        for (uint32_t i = 0; i < self->n_history; i++) {
            uint32_t at = self->history_next + QE_HISTORY_SECONDS - self->n_history + i;
            s->history[k][i] = self->history[at % QE_HISTORY_SECONDS][k];
        }
    }
    self->last_publish = now;
    self->dirty = false;

    qe_mutex_lock(&self->lock);
    snapshot *before = self->latest;
    self->latest = s;
    qe_mutex_unlock(&self->lock);
    if (before)
        qe_snapshot_unref(&before->view);
    return true;
}

const qe_snapshot *qe_stats_dup_snapshot(qe_stats *self)
{
    qe_mutex_lock(&self->lock);
    snapshot *s = self->latest;
    g_atomic_int_inc(&s->n_refs);
    qe_mutex_unlock(&self->lock);
    return &s->view;
}

/* ---- Changes ---- */

/* @before, @now: NULL where the session is not there. */
static void list_session(GArray *out, const qe_session_view *before, const qe_session_view *now)
{
    uint32_t n_before = before ? before->n_pages : 0, n_now = now ? now->n_pages : 0;
    for (uint32_t i = 0; i < MAX(n_before, n_now); i++) {
        qe_page_change change = {
            .session = now ? now->id : before->id,
            .page = i,
            .before = i < n_before ? before->cells[i].flags : QE_CELL_NONE,
            .now = i < n_now ? now->cells[i].flags : QE_CELL_NONE,
        };
        if (change.before != change.now)
            g_array_append_val(out, change);
    }
}

qe_page_change *qe_snapshot_list_changes(const qe_snapshot *since, const qe_snapshot *now, uint32_t *n)
{
    GArray *out = g_array_new(FALSE, FALSE, sizeof(qe_page_change));
    uint32_t a = 0, b = 0;
    while (a < since->n_sessions || b < now->n_sessions) {
        const qe_session_view *x = a < since->n_sessions ? &since->sessions[a] : NULL;
        const qe_session_view *y = b < now->n_sessions ? &now->sessions[b] : NULL;
        if (x && y && x->id == y->id) {
            if (y->changed > since->serial)
                list_session(out, x, y);
            a++, b++;
        } else if (!y || (x && x->id < y->id)) {
            list_session(out, x, NULL);
            a++;
        } else {
            list_session(out, NULL, y);
            b++;
        }
    }
    *n = out->len;
    return (qe_page_change *)(void *)g_array_free(out, out->len == 0);
}
