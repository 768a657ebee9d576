/* qe-core-run.c: rounds of computing: who may start, what the next step holds, what its results mean.
 *
 *   waiting --admit--> running --finish--> gone
 *      ^------preempt-----/
 *
 * A running request stands at `pos`: positions before it are computed or in a step in flight. Its row at `pos` is a known
 * id of the session, or, when pos = n_ids and a token is unread, the token in its slot. So step n+1 is submitted before
 * the host knows step n's token; what turns out not to count (the reply ended, the request went) is ignored by its epoch,
 * and its KV position is written again by whoever comes next.
 *
 * Invariants of a running request: n_cached <= pos <= n_ids + n_unread; n_unread <= 2; after its restart pos = n_cached,
 * and then pos < n_ids: there is always a row to compute. */
#include "engine/qe-core.h"
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include "engine/qe-limits.h"
#include "engine/qe-turn.h"

static double ms_between(gint64 from, gint64 to)
{
    return from && to > from ? (double)(to - from) / 1000 : 0;
}

/* ---- Progress as the reader sees it ---- */

static void report(qe_request *request)
{
    qe_receipt *receipt = &request->receipt;
    gint64 now = g_get_monotonic_time();
    receipt->n_generated = request->n_generated;
    if (request->n_pages_seen)
        receipt->skipped_share = (double)request->n_pages_skipped / (double)request->n_pages_seen;
    receipt->prefill_ms = ms_between(request->admitted, request->first_token ? request->first_token : now);
    receipt->first_token_ms = ms_between(request->called, request->first_token);
    receipt->decode_ms = ms_between(request->first_token, request->last_token);
    if (receipt->prefill_ms > 0 && request->first_token && !request->begun_known)
        receipt->prefill_tokens_per_s = receipt->n_new * 1000.0 / receipt->prefill_ms;
    if (receipt->decode_ms > 0)
        receipt->decode_tokens_per_s = (request->n_generated - 1) * 1000.0 / receipt->decode_ms;
    uint32_t n_cached = qe_session_n_cached(request->timeline->session);
    qe_outbox_set_progress(
        request->outbox, request->state, request->n_prompt, MIN(n_cached, request->n_prompt), receipt);
}

/* ---- Pages ---- */

static bool is_paused(const qe_request *request)
{
    return request->paused;
}

/* Drops what was planned and not read: the request goes on from its committed tokens. */
static void restart(qe_request *request)
{
    request->epoch++;
    request->n_unread = 0;
    request->history_set = false;
    request->pos = qe_session_n_cached(request->timeline->session);
}

static void insert_by_serial(GPtrArray *list, qe_request *request)
{
    guint at = list->len;
    while (at > 0 && ((qe_request *)list->pdata[at - 1])->serial > request->serial)
        at--;
    g_ptr_array_insert(list, (gint)at, request);
}

/* Back to the queue, without its pages on the device; what the host has not is computed again when it is admitted again. */
static void preempt(qe_core *core, qe_request *request)
{
    qe_timeline *t = request->timeline;
    core->slot_used[request->slot] = false;
    request->slot = QK_NO_SLOT;
    qe_session_release_reserved(t->session);
    if (qe_session_demote(t->session, UINT32_MAX, false, NULL) == 0) {
        qe_session_uncache(t->session, 0);
        t->evicted = true;
    }
    request->restoring = false;
    restart(request);
    request->state = QE_REQUEST_QUEUED;
    g_ptr_array_remove(core->running, request);
    insert_by_serial(core->waiting, request);
    qe_stats_touch(core->stats);
}

/* Whose pages go when no idle session has any: a paused request, else the youngest that is younger than @request. */
static qe_request *pick_victim(qe_core *core, const qe_request *request)
{
    qe_request *victim = NULL;
    for (guint i = 0; i < core->running->len; i++) {
        qe_request *r = core->running->pdata[i];
        if (r == request || qe_session_n_on_device(r->timeline->session) == 0)
            continue;
        if (is_paused(r))
            return r;
        if (r->serial > request->serial)
            victim = r;
    }
    return victim;
}

/* The device refused the copy that going on inside a page, or in a longer run of pages, needs: the tokens of that page, or
 * of all, are computed again instead. false: there are none, so it was no such copy. */
static bool forget_part(qe_request *request)
{
    qe_session *session = request->timeline->session;
    qe_receipt *receipt = &request->receipt;
    uint32_t n_cached = qe_session_n_cached(session);
    bool all = qe_session_get_policy(session)->contiguous;
    uint32_t n_kept = all ? 0 : n_cached / QK_PAGE_TOKENS * QK_PAGE_TOKENS, n_gone = n_cached - n_kept;
    if (n_gone == 0)
        return false;
    qe_session_uncache(session, n_kept);
    restart(request);
    receipt->n_recomputed += n_gone;
    if (receipt->n_reused > n_kept) {
        receipt->n_new += receipt->n_reused - n_kept;
        receipt->n_reused = n_kept;
    }
    return true;
}

/* Pages for the first @n_tokens of @request, and, for a decode row, what it chooses pages by. When there are none: room
 * is made by moving pages to the host, then by dropping
 * idle sessions' (qe-core-tiers.c says in which order); then younger requests give theirs; then
 * it waits itself; and only when it has the pool to itself it fails. false: it has them not, now or for good. */
static bool ensure_pages(qe_core *core, qe_request *request, uint32_t n_tokens, bool decode)
{
    for (;;) {
        GError *error = NULL;
        qe_session *session = request->timeline->session;
        if (!qe_core_hold_limit(core, request->timeline, n_tokens, &error)) {
            if (!core->lost && qe_steps_n_in_flight(core->steps) == 0)
                qe_core_finish(core, request, QE_FINISH_ERROR, g_steal_pointer(&error));
            g_clear_error(&error); /* what the steps in flight fill can go when they have been read */
            return false;
        }
        if (qe_session_reserve(session, n_tokens, &error) &&
            (!decode || qe_session_take_bounds(session, n_tokens, &error))) {
            if (core->check)
                qe_core_check_limit(core, request->timeline);
            return true;
        }
        if (g_error_matches(error, QE_ERROR, QE_ERROR_DEVICE_LOST)) {
            qe_core_lose(core, error->message);
            g_error_free(error);
            return false;
        }
        if (g_error_matches(error, QE_ERROR, QE_ERROR_REFUSED) && forget_part(request)) {
            g_error_free(error);
            return false;
        }
        if (!g_error_matches(error, QE_ERROR, QE_ERROR_NO_MEMORY)) {
            qe_core_finish(core, request, QE_FINISH_ERROR, error);
            return false;
        }
        if (qe_core_make_room(core, request->timeline) ||
            (!core->lost && qe_core_drop_oldest(core, request->timeline))) {
            g_error_free(error);
            continue;
        }
        bool tiered = qe_session_get_policy(request->timeline->session)->tiered;
        if (core->lost || (tiered && qe_steps_n_in_flight(core->steps) > 0)) {
            /* What the steps in flight fill can go to the host when they have been read. */
            g_error_free(error);
            return false;
        }
        qe_request *victim = pick_victim(core, request);
        if (victim) {
            preempt(core, victim);
        } else if (core->running->len > 1) {
            preempt(core, request);
            g_error_free(error);
            return false;
        } else {
            qe_core_finish(core, request, QE_FINISH_ERROR, error);
            return false;
        }
        g_error_free(error);
    }
}

/* ---- Admission ---- */

/* Tokens that admission counts on for @request. */
static uint32_t promised_tokens(const qe_core *core, const qe_request *request)
{
    uint32_t n_ids = qe_session_n_ids(request->timeline->session);
    uint32_t n_reply =
        request->max_tokens ? request->n_generate_max : MIN(request->n_generate_max, QE_KV_RESERVE_TOKENS);
    if (request->is_eval)
        n_reply = 0;
    uint64_t n = MAX((uint64_t)request->n_prompt + n_reply, n_ids);
    return (uint32_t)MIN(n, qe_core_capacity(core, request->timeline));
}

/* Device pages that @t needs at once beyond those it has. A tiered session needs no more than a step's: its older pages can
 * go to the host meanwhile. */
static uint32_t pages_promised(const qe_core *core, const qe_request *request)
{
    const qe_session *session = request->timeline->session;
    uint32_t n_tokens = promised_tokens(core, request), n = qe_session_pages_needed(session, n_tokens);
    uint32_t n_bounds =
        qe_session_leaves_out(session, n_tokens) ? n_tokens / (QK_PAGE_TOKENS * QK_PAGE_TOKENS) + 1 : 0;
    if (qe_session_get_policy(session)->tiered)
        n = MIN(n, (core->params.rows_max + QK_SPAN_TOKENS) / QK_PAGE_TOKENS);
    return n + n_bounds;
}

/* Counts the pages of @session that have to stay on the device while it runs. */
static void pin_pages(const qe_session *session, uint32_t *counts)
{
    const qe_page *pages = qe_session_pages(session);
    bool tiered = qe_session_get_policy(session)->tiered;
    for (uint32_t i = 0; i < qe_session_n_pages(session); i++) {
        if (!tiered || !qe_kv_page_on_host(qe_session_pool(session), pages[i]))
            counts[pages[i]]++;
    }
}

static bool may_start(qe_core *core, qe_request *request)
{
    qe_kv_pool *pool = qe_session_pool(request->timeline->session);
    uint32_t *counts = qe_core_page_counts(core, pool);
    uint64_t n_promised = 0;
    for (guint i = 0; i < core->running->len; i++) {
        const qe_request *r = core->running->pdata[i];
        if (is_paused(r) || qe_session_pool(r->timeline->session) != pool)
            continue;
        pin_pages(r->timeline->session, counts);
        n_promised += pages_promised(core, r);
    }
    pin_pages(request->timeline->session, counts);
    uint32_t n_pinned = 0;
    for (uint32_t i = 0; i < qe_kv_pool_n_pages(pool); i++)
        n_pinned += counts[i] != 0;
    n_pinned += qe_kv_pool_n_bounds_slots(pool);
    uint32_t n_needed = pages_promised(core, request);
    /* What the pool can really hold: less than its budget once the device refused a slab. */
    uint32_t n_pages_max = qe_kv_pool_n_used(pool) + qe_kv_pool_n_available(pool);
    return qe_sched_admits(n_pages_max, n_pinned, (uint32_t)MIN(n_promised, UINT32_MAX), n_needed);
}

/* Why the turn computes more than its new tokens; @again: it computes some that were known. */
static void explain_mismatch(qe_timeline *t, qe_request *request, bool again)
{
    qe_receipt *receipt = &request->receipt;
    if (receipt->first_mismatch >= 0)
        receipt->mismatch = request->n_stripped ? QE_MISMATCH_STRIPPED : QE_MISMATCH_EDITED;
    if (again && receipt->mismatch == QE_MISMATCH_NONE) {
        bool by_mode =
            t->mode == QE_CACHE_REBUILD || t->mode == QE_CACHE_PAGED || t->mode_changed || request->no_reuse;
        receipt->mismatch = by_mode ? QE_MISMATCH_MODE : t->evicted ? QE_MISMATCH_EVICTED : QE_MISMATCH_NONE;
        if (receipt->mismatch != QE_MISMATCH_NONE)
            receipt->first_mismatch = qe_session_n_cached(t->session);
    }
    t->mode_changed = t->evicted = false;
}

static void count_reuse(qe_timeline *t, qe_request *request)
{
    qe_receipt *receipt = &request->receipt;
    uint32_t n_cached = qe_session_n_cached(t->session);
    uint32_t n_known = MIN(t->n_computed, qe_session_n_ids(t->session));
    uint32_t n_again = n_known > n_cached ? n_known - n_cached : 0;
    if (!request->reuse_counted) {
        receipt->mode = t->mode;
        receipt->n_prompt = request->n_prompt;
        receipt->n_reused = n_cached;
        receipt->n_new = request->n_prompt - n_cached;
        receipt->n_recomputed = n_again + request->n_stripped;
        explain_mismatch(t, request, n_known > n_cached);
        request->reuse_counted = true;
    } else {
        receipt->n_recomputed += n_again;
    }
}

/* Memory that could not be registered holds pages for a later restore; a step cannot read them there. */
static void drop_unreadable(qe_request *request)
{
    qe_timeline *t = request->timeline;
    uint32_t n_readable = qe_session_first_unreadable(t->session);
    if (n_readable == qe_session_n_pages(t->session))
        return;
    qe_session_uncache(t->session, n_readable * QK_PAGE_TOKENS);
    t->evicted = true;
    restart(request);
}

/* Pages of the session that are on the host come back first, as far as there is room beside those that it will fill. */
static void restore(qe_core *core, qe_request *request)
{
    qe_timeline *t = request->timeline;
    uint32_t n = qe_core_restore(core, t, pages_promised(core, request));
    if (core->lost)
        return;
    drop_unreadable(request);
    request->restoring = qe_session_n_loading(t->session) > 0;
    request->restore_begun = g_get_monotonic_time();
    /* What came from the disk just now came by way of the host. */
    uint32_t n_disk = request->reuse_counted ? 0 : request->receipt.n_restored_disk;
    request->receipt.n_restored_host += n * QK_PAGE_TOKENS - MIN(n * QK_PAGE_TOKENS, n_disk);
    request->receipt.n_on_host =
        (qe_session_n_off_device(t->session) - qe_session_n_loading(t->session)) * QK_PAGE_TOKENS;
}

/* Whether @request waits for pages. The first look after they have landed notes the time. */
static bool is_restoring(qe_request *request)
{
    if (request->restoring && qe_session_n_loading(request->timeline->session) == 0) {
        qe_receipt *receipt = &request->receipt;
        request->restoring = false;
        receipt->restore_ms += ms_between(request->restore_begun, g_get_monotonic_time());
        /* What the device refused to take stays on the host. */
        uint32_t n_off = qe_session_n_off_device(request->timeline->session) * QK_PAGE_TOKENS;
        if (n_off > receipt->n_on_host) {
            receipt->n_restored_host -= MIN(n_off - receipt->n_on_host, receipt->n_restored_host);
            receipt->n_on_host = n_off;
            drop_unreadable(request);
        }
    }
    return request->restoring;
}

/* Goes on from pages found by name. Returns the tokens gained; @n_disk: those of them whose pages came from the disk. */
static uint32_t adopt(qe_timeline *t, uint32_t keep, uint32_t *n_disk)
{
    qe_kv_counters before, after;
    qe_kv_pool_get_counters(qe_session_pool(t->session), &before);
    uint32_t n = qe_session_adopt(t->session, keep);
    qe_kv_pool_get_counters(qe_session_pool(t->session), &after);
    *n_disk = (uint32_t)(after.n_found_imported - before.n_found_imported) * QK_PAGE_TOKENS;
    return n;
}

static void begin_reply(qe_core *core, qe_request *request, const float *logits);

/* The logits that the reply's first token is drawn from, when they were kept: then it needs no step and no page. Returns:
 * owned; NULL: they are not known, or not wanted. */
static float *dup_known_logits(qe_core *core, const qe_request *request)
{
    bool begins = request->n_generated == 0 && request->n_generate_max > 0 && !request->no_reuse &&
                  !request->known_failed;
    return begins && !request->is_eval ? qe_core_disk_dup_logits(core, request->timeline) : NULL;
}

static void note_admitted(qe_request *request)
{
    if (request->admitted == 0) {
        request->admitted = g_get_monotonic_time();
        request->receipt.queue_ms = ms_between(request->called, request->admitted);
    }
}

static void start(qe_core *core, qe_request *request)
{
    qe_timeline *t = request->timeline;
    bool keeps = t->mode != QE_CACHE_REBUILD && t->mode != QE_CACHE_PAGED;
    if ((request->no_reuse || !keeps) && !request->reuse_counted)
        qe_session_uncache(t->session, 0);
    /* The last row's logits exist only when it is computed, or were kept; an eval wants those of its rows. */
    g_autofree float *known = dup_known_logits(core, request);
    uint32_t keep = qe_session_n_ids(t->session) - (known ? 0 : 1);
    if (request->is_eval)
        keep = MIN(keep, request->eval_first);
    if (qe_session_n_cached(t->session) > keep)
        qe_session_uncache(t->session, keep);
    uint32_t n_disk = 0, n_shared = request->no_reuse ? 0 : adopt(t, keep, &n_disk);
    request->receipt.n_restored_disk += n_disk;
    qe_session_set_run(t->session, promised_tokens(core, request));
    restart(request);
    /* Pages that were found may be on the device. What cannot go now ensure_pages() sees to. */
    qe_core_hold_limit(core, t, 0, NULL);
    if (core->lost)
        return;
    restore(core, request);
    if (core->lost)
        return;
    if (!request->reuse_counted)
        request->receipt.n_shared = n_shared - n_disk;
    count_reuse(t, request);
    for (uint32_t slot = 0; slot < QE_RUNNING_MAX; slot++) {
        if (!core->slot_used[slot]) {
            core->slot_used[slot] = true;
            request->slot = slot;
            break;
        }
    }
    g_assert(request->slot != QK_NO_SLOT);
    note_admitted(request);
    request->state = request->n_generated ? QE_REQUEST_DECODE : QE_REQUEST_PREFILL;
    g_ptr_array_remove(core->waiting, request);
    insert_by_serial(core->running, request);
    report(request);
    qe_stats_touch(core->stats);
    if (known)
        begin_reply(core, request, known);
}

/* Whether its conversation's pages are still being read from the disk, and worth the wait. The look after they are there
 * notes the time. */
static bool waits_for_disk(qe_core *core, qe_request *request)
{
    gint64 now = g_get_monotonic_time();
    if (qe_core_disk_is_reading(request->timeline)) {
        if (request->disk_begun == 0)
            request->disk_begun = now;
        gint64 next = qe_core_disk_look(core, request->timeline, request->disk_begun);
        if (next > 0) {
            core->look_at = core->look_at ? MIN(core->look_at, next) : next;
            return true;
        }
    }
    double ms = ms_between(request->disk_begun, now);
    request->receipt.restore_ms += ms;
    request->receipt.restore_disk_ms += ms;
    request->disk_begun = 0;
    return false;
}

/* The first token of a reply whose pages are on their way from the disk: only the second one needs them. Should the reply end
 * with it, its receipt says that nothing was computed; else start() counts what came. */
static void begin_before_pages(qe_core *core, qe_request *request)
{
    g_autofree float *known = dup_known_logits(core, request);
    if (!known)
        return;
    qe_request_ref(request);
    note_admitted(request);
    request->receipt.mode = request->timeline->mode;
    request->receipt.n_prompt = request->receipt.n_reused = request->n_prompt;
    begin_reply(core, request, known);
    if (request->state != QE_REQUEST_DONE)
        request->state = QE_REQUEST_QUEUED; /* as one that was preempted */
    qe_request_unref(request);
}

/* First come, first served: nobody overtakes a request that waits for pages, except one whose reader is away or whose pages
 * are on their way from the disk. */
static void admit(qe_core *core)
{
    bool changed = false;
    for (guint i = 0; i < core->waiting->len && core->running->len < QE_RUNNING_MAX;) {
        qe_request *request = core->waiting->pdata[i];
        bool is_full = qe_outbox_is_full(request->outbox);
        if (is_full || waits_for_disk(core, request)) {
            if (!is_full)
                begin_before_pages(core, request);
            if (i < core->waiting->len && core->waiting->pdata[i] == request) /* that was not all of it */
                i++;
            continue;
        }
        if (core->running->len > 0 && !may_start(core, request))
            break;
        request->paused = false;
        start(core, request);
        if (core->lost)
            return;
        changed = true;
    }
    for (guint i = 0; i < core->waiting->len; i++) {
        qe_request *request = core->waiting->pdata[i];
        qe_outbox_set_queued(request->outbox, i);
    }
    if (changed)
        qe_stats_touch(core->stats);
}

/* ---- One step: planning ---- */

typedef struct {
    qe_request *request;
    uint32_t epoch;
    bool from_slot;
    bool heavy;        /* some of its pages are off the device */
    uint32_t n_select; /* selective: pages that its row attends to; 0: all of them */
} candidate;

/* Whether the logits behind its prompt are kept with its conversation on disk. */
static bool keeps_logits(const qe_request *request)
{
    return request->timeline->disk && request->n_generated == 0 && !request->is_eval;
}

/* The row or rows that @request could compute now; false: none. */
static bool next_rows(qe_request *request, candidate *c, qe_sched_item *item)
{
    if (is_paused(request) || is_restoring(request) ||
        request->n_generated + request->n_unread >= MAX(request->n_generate_max, 1))
        return false;
    /* What the next token may be depends on the one that is not known yet: no running ahead. */
    if (request->guide && request->n_unread > 0 && !qe_guide_is_free(request->guide))
        return false;
    uint32_t n_ids = qe_session_n_ids(request->timeline->session);
    *c = (candidate){.request = request, .epoch = request->epoch};
    *item = (qe_sched_item){.start = request->pos};
    /* The page that it goes on in counts against its limit, too: where that is copied, the copy and what it is made from. */
    const qe_session *session = request->timeline->session;
    uint64_t limit_rows =
        (uint64_t)qe_core_limit(request->timeline) * QK_PAGE_TOKENS - request->pos % QK_PAGE_TOKENS;
    if (request->pos == qe_session_n_cached(session) && qe_session_copies_page(session))
        limit_rows -= QK_PAGE_TOKENS;
    item->n_rows_max = (uint32_t)MIN(limit_rows, (uint64_t)UINT32_MAX);
    if (request->pos < n_ids) {
        item->n_known = n_ids - request->pos;
        item->decode = request->n_generated > 0 && item->n_known == 1;
        if (request->is_eval && qe_session_get_policy(request->timeline->session)->select.n_recent) {
            /* As a reply would: what comes before is a prompt, the rest goes row by row. */
            item->decode = request->pos >= request->eval_first;
            item->n_known = item->decode ? 1 : request->eval_first - request->pos;
            item->n_logit_rows = item->decode;
        } else if (request->is_eval)
            item->n_logit_rows = MIN(item->n_known, n_ids - request->eval_first);
        else if ((request->n_top && !request->top_known) || keeps_logits(request))
            item->n_logit_rows = 1;
        return true;
    }
    if (request->n_unread == 0)
        return false; /* an eval whose last rows are in flight */
    item->n_known = 1;
    item->decode = true;
    c->from_slot = true;
    return true;
}

static void fail_status(qe_core *core, qe_request *request, qk_status status, const char *what)
{
    GError *error = NULL;
    qe_backend_set_error(&error, core->backend, status, what);
    qe_core_finish(core, request, QE_FINISH_ERROR, error);
}

/* Adds @request's rows to the plan begun. false: it was ended instead. */
static bool add_rows(qe_core *core, const candidate *c, const qe_sched_item *item)
{
    qe_request *request = c->request;
    qe_session *session = request->timeline->session;
    bool last = item->n_rows == item->n_known;
    qe_step_member member = {
        .request = request,
        .epoch = request->epoch,
        .start = request->pos,
        .n_rows = item->n_rows,
        .decode = item->decode,
        .samples = last && !request->is_eval,
    };
    /* The step that draws token k of the reply, counted from 1, is one of the last n_profile. */
    member.profile = item->decode && request->n_profile > 0 &&
                     request->n_generated + request->n_unread + request->n_profile >= request->n_generate_max;
    if (request->is_eval) {
        uint32_t end = request->pos + item->n_rows;
        member.n_logits = end > request->eval_first ? MIN(item->n_rows, end - request->eval_first) : 0;
    }
    member.wants_top = member.samples && request->n_top && !request->top_known && request->n_unread == 0;
    member.keeps_logits = member.samples && keeps_logits(request) && request->n_unread == 0;
    qe_step_draw draw = {
        .sampling = request->sampling,
        .n_top = MIN(request->n_top_logprobs, qe_model_get_config(core->model)->vocab),
        .bias = request->bias,
        .n_bias = request->n_bias,
        .masked = request->guide != NULL,
    };
    draw.sampling.position = (uint64_t)request->pos + item->n_rows;
    if (member.samples && !request->history_set) {
        if (qe_request_has_penalty(request)) {
            qk_status status = qk_context_set_history(core->context, request->slot,
                (const int32_t *)qe_session_ids(session), qe_session_n_ids(session), request->n_prompt);
            if (status == QK_DEVICE_LOST) {
                qe_core_lose(core, qk_backend_error(core->backend));
                return false;
            }
            if (status != QK_OK) {
                fail_status(core, request, status, "Cannot set the penalty history");
                return false;
            }
        }
        request->history_set = true;
    }
    if (item->decode) {
        GError *error = NULL;
        member.select = qe_session_get_policy(session)->select;
        if (!qe_session_make_bounds(session, core->context, request->pos + 1, &error)) {
            if (g_error_matches(error, QE_ERROR, QE_ERROR_DEVICE_LOST)) {
                qe_core_lose(core, error->message);
                g_error_free(error);
            } else {
                qe_core_finish(core, request, QE_FINISH_ERROR, error);
            }
            return false;
        }
    }
    const uint32_t *ids = c->from_slot ? NULL : qe_session_ids(session) + request->pos;
    uint32_t *mask = qe_steps_add(core->steps, &member, ids, request->slot, &draw, session);
    if (mask)
        qe_guide_fill(request->guide, mask);
    request->pos += item->n_rows;
    request->n_unread += member.samples;
    return true;
}

/* How long the step may take: short when somebody else would wait for it. */
static double step_bound(const qe_core *core)
{
    uint32_t n_active = core->waiting->len;
    for (guint i = 0; i < core->running->len; i++)
        n_active += !is_paused(core->running->pdata[i]);
    return n_active > 1 ? core->step_ms_shared : core->step_ms_alone;
}

/* A step has pages of one class. With sessions of both the class alternates; leaves the candidates of one. */
static uint32_t pick_class(qe_core *core, candidate *candidates, qe_sched_item *items, uint32_t *n)
{
    uint32_t counts[QE_KV_CLASSES] = {0}, n_kept = 0;
    for (uint32_t i = 0; i < *n; i++)
        counts[candidates[i].request->timeline->kv_class]++;
    uint32_t chosen = counts[0] == 0;
    if (counts[0] && counts[1])
        chosen = core->last_class = !core->last_class;
    for (uint32_t i = 0; i < *n; i++) {
        if (candidates[i].request->timeline->kv_class != chosen)
            continue;
        candidates[n_kept] = candidates[i];
        items[n_kept++] = items[i];
    }
    *n = n_kept;
    return chosen;
}

/* Steps of sessions with pages off the device, one session each, take turns with steps of all others: a kind goes when
 * the other has had the device for as long as its last step took. Leaves the candidates of the kind that goes now. */
static bool pick_kind(qe_core *core, candidate *candidates, qe_sched_item *items, uint32_t *n)
{
    uint32_t n_heavy = 0, n_kept = 0;
    for (uint32_t i = 0; i < *n; i++)
        n_heavy += candidates[i].heavy;
    if (n_heavy == 0)
        return false;
    bool heavy = n_heavy == *n || core->light_ms_since >= core->heavy_ms;
    uint32_t chosen = heavy ? core->rotate % n_heavy : 0, k = 0;
    for (uint32_t i = 0; i < *n; i++) {
        if (candidates[i].heavy != heavy || (heavy && k++ != chosen))
            continue;
        candidates[n_kept] = candidates[i];
        items[n_kept++] = items[i];
    }
    *n = n_kept;
    return heavy;
}

/* How many pages the row attends to when it leaves some out, else 0. */
static uint32_t count_select(const qe_request *request, const qe_sched_item *item)
{
    const qe_session *session = request->timeline->session;
    const qe_session_select *s = &qe_session_get_policy(session)->select;
    return item->decode && qe_session_leaves_out(session, request->pos + 1)
               ? s->n_sink + s->n_recent + s->n_chosen
               : 0;
}

/* In a step with rows that leave pages out each sequence has one row, and so many pages in all as a context lists. With
 * prompts at work such steps take turns with theirs; leaves the candidates of one. */
static void split_selective(qe_core *core, candidate *candidates, qe_sched_item *items, uint32_t *n)
{
    uint32_t n_selective = 0, n_many = 0, n_kept = 0, n_pages = 0;
    for (uint32_t i = 0; i < *n; i++) {
        n_selective += candidates[i].n_select > 0;
        n_many += items[i].n_known > 1;
    }
    if (n_selective == 0)
        return;
    bool selective = n_many == 0 || !core->last_selective;
    core->last_selective = selective;
    uint32_t first = core->rotate % n_selective, k = 0; /* the one that is sure to go */
    for (uint32_t i = 0; i < *n; i++) {
        if (candidates[i].n_select > 0 && k++ == first)
            n_pages = candidates[i].n_select;
    }
    k = 0;
    for (uint32_t i = 0; i < *n; i++) {
        uint32_t n_select = candidates[i].n_select;
        bool keep = selective ? items[i].n_known == 1 : n_select == 0;
        if (n_select > 0 && k++ != first) {
            keep = keep && n_pages + n_select <= core->params.select_max;
            n_pages += keep ? n_select : 0;
        }
        if (!keep)
            continue;
        candidates[n_kept] = candidates[i];
        items[n_kept++] = items[i];
    }
    *n = n_kept;
}

#define SYNTHETIC_PAGES 128u /* filled in a round; of a small device tier a quarter */

/* The next pages of a synthetic session's prompt. They count as computed. */
static bool fill_synthetic(qe_core *core, qe_request *request)
{
    qe_timeline *t = request->timeline;
    uint32_t end = (request->n_prompt - 1) / QK_PAGE_TOKENS * QK_PAGE_TOKENS;
    uint32_t n_round = CLAMP(qe_kv_pool_n_max(qe_session_pool(t->session)) / 4, 1, SYNTHETIC_PAGES);
    n_round = MIN(n_round, qe_core_limit(t));
    uint32_t n = MIN(end - request->pos, n_round * QK_PAGE_TOKENS), epoch = request->epoch;
    GError *error = NULL;
    if (!ensure_pages(core, request, request->pos + n, false) || request->epoch != epoch)
        return false;
    if (!qe_core_write_synthetic(core, t, request->pos / QK_PAGE_TOKENS, n / QK_PAGE_TOKENS, &error)) {
        qe_core_finish(core, request, QE_FINISH_ERROR, error);
        return false;
    }
    qe_session_commit(t->session, n);
    request->pos += n;
    request->receipt.n_synthetic += n;
    request->receipt.n_new -= n;
    qe_core_enforce_limit(core, t);
    t->n_computed = MAX(t->n_computed, request->pos);
    report(request);
    return true;
}

/* Fills of one request that waits for it; *filled: pages were. false: none waits. */
static bool fill_any(qe_core *core, bool *filled)
{
    for (guint i = 0; i < core->running->len; i++) {
        qe_request *r = core->running->pdata[i];
        if (!r->timeline->synthetic || r->is_eval || is_paused(r) || is_restoring(r) || r->n_generated > 0 ||
            r->receipt.n_reused > 0 || r->pos % QK_PAGE_TOKENS != 0 || r->pos != r->receipt.n_synthetic ||
            r->pos + QK_PAGE_TOKENS >= r->n_prompt)
            continue;
        qe_request_ref(r);
        *filled = fill_synthetic(core, r);
        qe_request_unref(r);
        return true;
    }
    return false;
}

static bool submit_step(qe_core *core)
{
    candidate candidates[QE_RUNNING_MAX];
    qe_sched_item items[QE_RUNNING_MAX];
    uint32_t n = 0;
    bool prefill = false;

    /* Behind a cancelled step nothing is planned until its follower was read: a plan on the follower's tokens would fail as
     * that did, and so on. */
    if (qe_steps_n_in_flight(core->steps) == 2 || core->follows_cancelled)
        return false;
    bool filled;
    if (fill_any(core, &filled))
        return filled && !core->lost;
    for (guint i = 0; i < core->running->len; i++) {
        qe_request *r = core->running->pdata[i];
        if (next_rows(r, &candidates[n], &items[n])) {
            candidates[n].heavy = qe_session_n_off_device(r->timeline->session) > 0;
            candidates[n].n_select = count_select(r, &items[n]);
            n++;
        }
    }
    bool heavy = pick_kind(core, candidates, items, &n);
    uint32_t kv_class = n > 0 ? pick_class(core, candidates, items, &n) : 0;
    split_selective(core, candidates, items, &n);
    for (uint32_t i = 0; i < n; i++)
        prefill |= !items[i].decode;
    if (n == 0)
        return false;
    /* A heavy step takes so long to enqueue and to run that reading the one before it late would hold its token back. */
    if (heavy && qe_steps_n_in_flight(core->steps))
        return false;
    /* Two long steps in flight would make a newcomer wait twice: with prompts at work the second waits for the first
     * unless both are short. Decoding always stays one step ahead. */
    double bound = step_bound(core);
    if (qe_steps_n_in_flight(core->steps) && (prefill || qe_steps_prefill_in_flight(core->steps)) &&
        qe_steps_predicted_in_flight(core->steps) > bound / 4)
        return false;
    qe_sched_limits limits = {
        .ms_max =
            heavy ? INFINITY : bound, /* reading the host's pages costs the same for few rows and for many */
        .rows_max = core->params.rows_max,
        .logits_max = core->params.logits_max,
        .seqs_max = core->params.seqs_max,
        .outputs_max = core->params.outputs_max,
    };
    double predicted = qe_sched_plan(&core->cost, &limits, items, n, core->rotate++ % n);

    /* Pages first, oldest request first: taking some may preempt a younger one, which then has no rows in the plan. */
    for (uint32_t i = 0; i < n; i++) {
        qe_request *r = candidates[i].request;
        if (items[i].n_rows == 0 || r->epoch != candidates[i].epoch)
            continue;
        qe_request_ref(r);
        bool ready = ensure_pages(core, r, r->pos + items[i].n_rows, items[i].decode);
        bool lost = core->lost != NULL;
        if (lost) {
            qe_request_unref(r);
            return false;
        }
        if (!ready || r->epoch != candidates[i].epoch)
            items[i].n_rows = 0;
        qe_request_unref(r);
    }
    /* Pages taken may have pushed the session's own to the host, or brought a plain one among the heavy. */
    if (!qe_steps_begin(core->steps, kv_class, heavy, core->host_paths[kv_class]))
        return false;
    for (uint32_t i = 0; i < n; i++) {
        if (items[i].n_rows == 0 || candidates[i].request->epoch != candidates[i].epoch)
            continue;
        add_rows(core, &candidates[i], &items[i]);
        if (core->lost)
            return false;
    }
    if (qe_steps_n_rows(core->steps) == 0)
        /* Somebody was preempted or ended, or waits for the step in flight: look again. */
        return qe_steps_n_in_flight(core->steps) == 0;
    qk_status status = qe_steps_submit(core->steps, predicted);
    if (status == QK_OK)
        return true;
    if (status == QK_DEVICE_LOST) {
        qe_core_lose(core, qk_backend_error(core->backend));
        return false;
    }
    for (uint32_t i = 0; i < n; i++) {
        if (items[i].n_rows && g_ptr_array_find(core->running, candidates[i].request, NULL))
            fail_status(core, candidates[i].request, status, "The step was refused");
    }
    return true;
}

/* ---- One step: results ---- */

static int compare_top(const void *a, const void *b)
{
    const qe_top *x = a, *y = b;
    if (x->logit != y->logit)
        return x->logit < y->logit ? 1 : -1;
    return (x->id > y->id) - (x->id < y->id);
}

static void give_top(qe_core *core, qe_request *request, const float *logits)
{
    uint32_t vocab = qe_model_get_config(core->model)->vocab;
    g_autofree qe_top *top = g_new(qe_top, vocab);
    double sum = 0;
    float max = -INFINITY;
    for (uint32_t i = 0; i < vocab; i++)
        max = fmaxf(max, logits[i]);
    for (uint32_t i = 0; i < vocab; i++)
        sum += exp((double)logits[i] - max);
    for (uint32_t i = 0; i < vocab; i++)
        top[i] = (qe_top){i, logits[i], (float)((double)logits[i] - max - log(sum))};
    qsort(top, vocab, sizeof *top, compare_top);
    qe_outbox_set_top(request->outbox, top, MIN(request->n_top, vocab));
    request->top_known = true;
}

static void list_logprobs(
    qe_token_logprobs *out, const qk_output_result *output, const qk_top *tops, uint32_t n_top)
{
    *out = (qe_token_logprobs){.id = (uint32_t)output->token, .logprob = output->logprob, .n_top = n_top};
    for (uint32_t i = 0; i < n_top; i++) {
        out->top[i].id = tops[i].id;
        out->top[i].logprob = tops[i].logprob;
    }
}

/* The token at the end of the session is known now: text, ends. @logprobs: NULL when they are not wanted. */
static void accept_token(qe_core *core, qe_request *request, uint32_t id, const qe_token_logprobs *logprobs)
{
    qe_timeline *t = request->timeline;
    gint64 now = g_get_monotonic_time();
    if (request->first_token == 0)
        request->first_token = now;
    request->last_token = now;
    request->state = QE_REQUEST_DECODE;
    request->n_generated++;
    qe_session_append_ids(t->session, &id, 1);

    bool ends = !request->ignore_eos && qe_eos_list_contains(&core->eos, id);
    qe_turn_extend(core, t, request, ends);
    g_autoptr(GString) text = g_string_new(NULL);
    /* Any id can be an end id; it is never part of the text, also when its token is an ordinary word. */
    if (request->opens_thought && request->n_generated == 1)
        g_string_append(text, "<think>\n");
    bool stopped = !ends && qe_reply_push(request->reply, id, text);
    qe_outbox_push_token(request->outbox, text->str, text->len, id, logprobs);
    bool bound = false;
    bool obeys = !request->guide || qe_guide_accept(request->guide, id, ends, &bound);
    if (qe_outbox_is_full(request->outbox)) {
        request->paused = true;
        qe_stats_touch(core->stats);
    }
    report(request);
    if (!obeys)
        qe_core_finish(core, request, QE_FINISH_ERROR,
            g_error_new(QE_ERROR, QE_ERROR_FAILED,
                "The reply cannot go on as its constraint demands after %u tokens", request->n_generated));
    else if (ends || stopped)
        qe_core_finish(core, request, QE_FINISH_STOP, NULL);
    else if (request->n_generated >= request->n_generate_max)
        qe_core_finish(core, request, request->max_is_context ? QE_FINISH_CONTEXT : QE_FINISH_LENGTH, NULL);
    else if (bound)
        restart(request); /* what was drawn behind "</think>" was drawn freely */
}

/* The K and V of a row that gave NaN may be no better: nothing of this session's cache is used again. */
static void fail_numeric(qe_core *core, qe_request *request)
{
    qe_session *session = request->timeline->session;
    GError *error = g_error_new(QE_ERROR, QE_ERROR_NUMERIC, "The model gave an invalid number at token %u",
        qe_session_n_ids(session));
    qe_session_uncache(session, 0);
    qe_core_disk_distrust(core, request->timeline);
    qe_core_finish(core, request, QE_FINISH_ERROR, error);
}

static void add_profile(qe_profile *to, const qk_profile *from, double ms)
{
    to->n_steps++;
    to->step_ms += ms;
    to->embed_ms += from->ms[QK_PART_EMBED];
    to->project_ms += from->ms[QK_PART_PROJECT];
    to->kv_ms += from->ms[QK_PART_KV];
    to->attend_ms += from->ms[QK_PART_ATTEND];
    to->mlp_ms += from->ms[QK_PART_MLP];
    to->head_ms += from->ms[QK_PART_HEAD];
    to->sample_ms += from->ms[QK_PART_SAMPLE];
    to->kv_in_attend = from->kv_in_attend;
}

/* @tops: [n_top_logprobs], looked at when they are wanted. */
static void accept_output(
    qe_core *core, qe_request *request, const qk_output_result *output, const qk_top *tops)
{
    if (!request->logprobs) {
        accept_token(core, request, (uint32_t)output->token, NULL);
        return;
    }
    uint32_t n_top = MIN(request->n_top_logprobs, qe_model_get_config(core->model)->vocab);
    qe_token_logprobs logprobs;
    list_logprobs(&logprobs, output, tops, n_top);
    accept_token(core, request, (uint32_t)output->token, &logprobs);
}

/* Draws the reply's first token from the logits behind the prompt, which were kept: what of the prompt is not cached is
 * computed beside that token. */
static void begin_reply(qe_core *core, qe_request *request, const float *logits)
{
    qe_session *session = request->timeline->session;
    const uint32_t vocab = qe_model_get_config(core->model)->vocab;
    g_autofree uint32_t *mask = request->guide ? g_new(uint32_t, qk_mask_words(vocab)) : NULL;
    qk_sampling sampling = request->sampling;
    qk_output_result output;
    qk_top tops[QK_TOP_MAX];
    sampling.position = qe_session_n_ids(session);
    if (mask)
        qe_guide_fill(request->guide, mask);
    const qk_host_draw draw = {
        .logits = logits,
        .vocab = vocab,
        .ids = qe_session_ids(session),
        .n_ids = qe_session_n_ids(session),
        .bias = request->bias,
        .n_bias = request->n_bias,
        .mask = mask,
        .n_top = MIN(request->n_top_logprobs, vocab),
        .sampling = &sampling,
    };
    if (qk_host_sample(&draw, &output, tops) != QK_OK || output.flags != 0 || output.token < 0) {
        request->known_failed = true;
        qe_session_uncache(session, qe_session_n_ids(session) - 1); /* computed as always */
        restart(request);
        return;
    }
    request->begun_known = true;
    if (request->n_top)
        give_top(core, request, logits);
    qe_request_ref(request);
    accept_output(core, request, &output, tops);
    qe_request_unref(request);
}

static void apply_member(qe_core *core, const qe_step_member *m, const qk_result *result, double ms)
{
    qe_request *request = m->request;
    if (request->epoch != m->epoch || request->state == QE_REQUEST_DONE)
        return;
    qe_timeline *t = request->timeline;
    g_assert(qe_session_n_cached(t->session) == m->start);
    qe_session_commit(t->session, m->n_rows);
    qe_core_enforce_limit(core, t);
    t->n_computed = MAX(t->n_computed, qe_session_n_cached(t->session));
    if (m->select.n_recent) {
        request->n_pages_seen += m->n_pages;
        request->n_pages_skipped += m->n_pages - m->n_attended;
    }

    uint32_t vocab = qe_model_get_config(core->model)->vocab;
    if (request->is_eval) {
        uint32_t first = m->start + m->n_rows - m->n_logits - request->eval_first;
        if (m->n_logits)
            memcpy(request->eval_out + (gsize)first * vocab, result->logits + (gsize)m->logits_output * vocab,
                (gsize)m->n_logits * vocab * sizeof(float));
        report(request);
        if (m->start + m->n_rows == request->n_prompt)
            qe_core_finish(core, request, QE_FINISH_LENGTH, NULL);
        return;
    }
    if (!m->samples) {
        report(request);
        return;
    }
    request->n_unread--;
    if (m->profile && result->profile)
        add_profile(&request->receipt.profile, result->profile, ms);
    const qk_output_result *output = &result->outputs[m->sample_output];
    if (m->wants_top)
        give_top(core, request, result->logits + (gsize)m->sample_output * vocab);
    if (m->keeps_logits && !(output->flags & QK_RESULT_NOT_FINITE))
        qe_core_disk_keep_logits(
            core, t, m->start + m->n_rows, result->logits + (gsize)m->sample_output * vocab);
    if (output->flags & QK_RESULT_NOT_FINITE || output->token < 0 || (uint32_t)output->token >= vocab)
        fail_numeric(core, request);
    else if (request->n_generate_max == 0)
        qe_core_finish(core, request, QE_FINISH_CONTEXT, NULL);
    else
        accept_output(core, request, output, result->tops + (gsize)m->sample_output * QK_TOP_MAX);
}

/* The checker over the pools and every session: a broken invariant is a bug, and going on would corrupt replies. */
static void check_all(qe_core *core)
{
    for (int c = 0; c < QE_KV_CLASSES && core->pools[c]; c++) {
        g_autoptr(GError) error = NULL;
        uint32_t n = qe_kv_pool_n_pages(core->pools[c]);
        g_autofree uint32_t *counts = g_new0(uint32_t, MAX(n, 1));
        GHashTableIter iter;
        void *value;
        g_hash_table_iter_init(&iter, core->timelines);
        while (g_hash_table_iter_next(&iter, NULL, &value)) {
            const qe_timeline *t = value;
            if (qe_session_pool(t->session) != core->pools[c])
                continue;
            if (!qe_session_check(t->session, &error))
                g_error("session %" G_GUINT64_FORMAT ": %s", t->id, error->message);
            qe_session_count_pages(t->session, counts);
        }
        if (!qe_kv_pool_check(core->pools[c], counts, &error))
            g_error("page pool %d: %s", c, error->message);
    }
}

/* A step that was cancelled drew no tokens, and the one submitted behind it may take some of them from their slots: then it
 * fails as a whole (QK_INVALID), with members that have nothing to do with either. To those it is cancelled, too: they go on
 * from what they have. */
static void forgive_follower(qe_core *core, qe_step_done *done)
{
    bool follows = core->follows_cancelled;
    core->follows_cancelled = done->status == QK_CANCELLED && qe_steps_n_in_flight(core->steps) > 0;
    if (follows && done->status == QK_INVALID)
        done->status = QK_CANCELLED;
}

static void read_step(qe_core *core)
{
    qe_step_done done;
    if (!qe_steps_wait(core->steps, &done))
        return;
    forgive_follower(core, &done);
    if (done.status == QK_DEVICE_LOST) {
        qe_core_lose(core, qk_backend_error(core->backend));
        return;
    }
    if (done.status == QK_OK) {
        if (done.heavy) { /* its time says nothing about the others' */
            core->heavy_ms = done.ms;
            core->light_ms_since = 0;
        } else {
            core->light_ms_since += done.ms;
            qe_cost_observe(&core->cost, done.rows, done.attended, done.ms);
        }
        qe_stats_count(core->stats, done.n_prefill, done.n_decode);
    }
    for (uint32_t i = 0; i < done.n_members; i++) {
        const qe_step_member *m = &done.members[i];
        if (done.status == QK_OK)
            apply_member(core, m, done.result, done.ms);
        else if (m->request->epoch != m->epoch || m->request->state == QE_REQUEST_DONE)
            continue;
        else if (done.status == QK_CANCELLED)
            restart(m->request);
        else
            fail_status(core, m->request, done.status, "A step failed");
    }
    if (core->check)
        check_all(core);
}

/* ---- The round ---- */

static bool end_cancelled(qe_core *core, GPtrArray *list)
{
    for (guint i = 0; i < list->len; i++) {
        qe_request *request = list->pdata[i];
        if (qe_request_is_cancelled(request)) {
            qe_core_finish(core, request, QE_FINISH_CANCELLED, NULL);
            return true;
        }
    }
    return false;
}

bool qe_core_advance(qe_core *core)
{
    core->look_at = 0;
    if (core->lost || !core->steps)
        return false;
    while (end_cancelled(core, core->running) || end_cancelled(core, core->waiting))
        ;
    for (guint i = 0; i < core->running->len; i++) {
        qe_request *request = core->running->pdata[i];
        if (request->paused && !qe_outbox_is_full(request->outbox))
            request->paused = false;
    }
    if (!qe_core_move(core))
        return false;
    admit(core);
    bool submitted = !core->lost && submit_step(core);
    core->landed = false;
    if (core->lost || !qe_core_move(core))
        return false;
    uint32_t n_in_flight = qe_steps_n_in_flight(core->steps);
    if (core->trim_due && n_in_flight == 0 && core->running->len == 0) {
        core->trim_due = false;
        for (int c = 0; c < QE_KV_CLASSES && core->pools[c]; c++) {
            if (qe_kv_pool_trim(core->pools[c], c == 0) > 0)
                qe_stats_touch(core->stats);
        }
    }
    if (n_in_flight == 2 || (n_in_flight == 1 && !submitted)) {
        read_step(core);
        return !core->lost;
    }
    /* With nothing to compute, copies are waited for, but for those that have landed since the look for work: a request
     * may wait for them, and the host gets its pages. */
    return submitted || core->landed || qe_core_wait_moves(core);
}
