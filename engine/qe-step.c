/* qe-step.c: plans and results of a context's two steps.
 *
 * Invariants:
 *  1. Steps run, and are waited for, in submission order; `oldest` is the next to wait for.
 *  2. A step in flight is named in the queue's cancel registry, and only then.
 *  3. Every member in flight holds a reference to its request.
 * Nothing is allocated between begin and wait: member arrays have the size of the context's seqs_max. */
#include "engine/qe-step.h"
#include <string.h>
#include "engine/qe-request.h"
#include "engine/qe-sched.h"

typedef struct {
    qk_step *step;
    qe_step_member *members; /* [seqs_max] */
    const void **names;      /* [seqs_max]: the same requests, for the cancel registry */
    uint32_t n_members;
    double attended, predicted_ms;
    uint32_t n_prefill, n_decode;
    bool heavy;
    qe_host_path path;
    gint64 submitted; /* monotonic microseconds */
} lane;

struct qe_steps {
    qe_queue *queue;
    qk_context_params params;
    uint32_t mask_words;
    lane lanes[2];
    uint32_t oldest, n_in_flight;
    bool held; /* lanes[oldest ^ 1]'s members of the last wait are still referenced */
    uint32_t held_lane;
    gint64 last_done; /* when the step before was done */
};

static void drop_members(lane *l)
{
    for (uint32_t i = 0; i < l->n_members; i++)
        qe_request_unref(l->members[i].request);
    l->n_members = 0;
}

static void drop_held(qe_steps *self)
{
    if (self->held)
        drop_members(&self->lanes[self->held_lane]);
    self->held = false;
}

qk_status qe_steps_new(
    qk_context *context, qe_queue *queue, const qk_context_params *params, uint32_t vocab, qe_steps **out)
{
    qe_steps *self = g_new0(qe_steps, 1);
    self->mask_words = qk_mask_words(vocab);
    self->queue = qe_queue_ref(queue);
    self->params = *params;
    for (int i = 0; i < 2; i++) {
        qk_status status = qk_step_new(context, &self->lanes[i].step);
        if (status != QK_OK) {
            self->lanes[i].step = NULL;
            qe_steps_free(self);
            return status;
        }
        self->lanes[i].members = g_new0(qe_step_member, params->seqs_max);
        self->lanes[i].names = g_new0(const void *, params->seqs_max);
    }
    *out = self;
    return QK_OK;
}

void qe_steps_free(qe_steps *self)
{
    if (!self)
        return;
    drop_held(self);
    for (uint32_t i = 0; i < 2; i++)
        qe_queue_set_step(self->queue, i, NULL, NULL, 0);
    for (uint32_t i = 0; i < 2; i++) {
        qk_step_free(self->lanes[i].step);
        drop_members(&self->lanes[i]);
        g_free(self->lanes[i].members);
        g_free(self->lanes[i].names);
    }
    qe_queue_unref(self->queue);
    g_free(self);
}

uint32_t qe_steps_n_in_flight(const qe_steps *self)
{
    return self->n_in_flight;
}

static const lane *lane_in_flight(const qe_steps *self, uint32_t i)
{
    return &self->lanes[(self->oldest + i) & 1];
}

double qe_steps_predicted_in_flight(const qe_steps *self)
{
    double ms = 0;
    for (uint32_t i = 0; i < self->n_in_flight; i++)
        ms += lane_in_flight(self, i)->predicted_ms;
    return ms;
}

bool qe_steps_prefill_in_flight(const qe_steps *self)
{
    for (uint32_t i = 0; i < self->n_in_flight; i++) {
        if (lane_in_flight(self, i)->n_prefill)
            return true;
    }
    return false;
}

static lane *next_lane(qe_steps *self)
{
    return &self->lanes[(self->oldest + self->n_in_flight) & 1];
}

bool qe_steps_begin(qe_steps *self, uint32_t kv_class, bool heavy, qe_host_path path)
{
    if (self->n_in_flight == 2)
        return false;
    drop_held(self);
    lane *l = next_lane(self);
    g_assert(l->n_members == 0);
    qk_plan *plan = qk_step_plan(l->step);
    plan->n_rows = plan->n_seqs = plan->n_pages = plan->n_outputs = 0;
    plan->n_masks = plan->n_biases = 0;
    plan->kv_class = kv_class;
    plan->profile = 0;
    /* A backend on host memory looks at neither. */
    plan->host_path = path == QE_HOST_PATH_READ ? QK_HOST_READ : QK_HOST_STREAM;
    l->attended = 0;
    l->n_prefill = l->n_decode = 0;
    l->heavy = heavy;
    l->path = path;
    return true;
}

uint32_t qe_steps_n_rows(const qe_steps *self)
{
    const lane *l = &self->lanes[(self->oldest + self->n_in_flight) & 1];
    return qk_step_plan(l->step)->n_rows;
}

static uint32_t add_logits(qk_plan *plan, uint32_t row)
{
    plan->outputs[plan->n_outputs] = (qk_output){
        .row = row,
        .flags = QK_OUTPUT_LOGITS,
        .slot = QK_NO_SLOT,
        .sampling = {.top_p = 1, .repetition_penalty = 1},
    };
    return plan->n_outputs++;
}

static uint32_t add_draw(const qe_steps *self, qk_plan *plan, uint32_t row, uint32_t flags, uint32_t slot,
    const qe_step_draw *draw)
{
    qk_output *output = &plan->outputs[plan->n_outputs];
    *output = (qk_output){
        .row = row,
        .flags = flags | QK_OUTPUT_SAMPLE,
        .slot = slot,
        .n_top = draw->n_top,
        .sampling = draw->sampling,
    };
    if (draw->masked) {
        g_assert(plan->n_masks < self->params.masks_max);
        output->flags |= QK_OUTPUT_MASK;
        output->mask = plan->n_masks++;
    }
    if (draw->n_bias) {
        g_assert(draw->n_bias <= self->params.biases_max - plan->n_biases);
        output->bias_begin = plan->n_biases;
        output->n_bias = draw->n_bias;
        memcpy(plan->biases + plan->n_biases, draw->bias, draw->n_bias * sizeof *draw->bias);
        plan->n_biases += draw->n_bias;
    }
    return plan->n_outputs++;
}

/* Whole spans before the rows whose pages the host has all and the device has not are attended to by the CPU. */
static bool is_outside(const qe_kv_pool *pool, const qe_page *pages, uint32_t span, uint32_t start)
{
    const uint32_t n = QK_SPAN_TOKENS / QK_PAGE_TOKENS;
    if ((span + 1) * QK_SPAN_TOKENS > start)
        return false;
    bool any = false;
    for (uint32_t i = span * n; i < (span + 1) * n; i++) {
        if (!qe_kv_page_host(pool, pages[i]))
            return false;
        any |= !qe_kv_page_on_device(pool, pages[i]);
    }
    return any;
}

static void add_pages(const lane *l, qk_plan *plan, const qe_step_member *m, const qe_kv_pool *pool,
    const qe_page *pages, const uint64_t *addresses, uint32_t n_pages)
{
    const uint32_t span_pages = QK_SPAN_TOKENS / QK_PAGE_TOKENS;
    bool leaves_out = m->n_attended < m->n_pages; /* those pages are chosen on the device and read by it */
    bool on_cpu =
        l->heavy && l->path == QE_HOST_PATH_CPU && plan->host_pages && m->n_rows == 1 && !leaves_out;
    bool outside = false; /* the span that page i is in */
    memcpy(plan->pages + plan->n_pages, addresses, n_pages * sizeof *addresses);
    if (plan->host_pages)
        memset(plan->host_pages + plan->n_pages, 0, n_pages * sizeof *plan->host_pages);
    for (uint32_t i = 0; i < n_pages && (on_cpu || leaves_out); i++) {
        uint32_t at = plan->n_pages + i;
        if (i % span_pages == 0)
            outside = on_cpu && is_outside(pool, pages, i / span_pages, m->start);
        if (outside) {
            plan->pages[at] = 0;
            plan->host_pages[at] = qe_kv_page_host(pool, pages[i]);
        }
        if (leaves_out && i >= m->select.n_sink && i < n_pages - m->select.n_recent)
            plan->bounds[at] = qe_kv_page_bounds(pool, pages[i]);
        /* What the CPU has no whole span of, as the end of the context, is read beside it: nothing is streamed. */
        if (outside)
            plan->host_path = QK_HOST_READ;
    }
}

uint32_t *qe_steps_add(qe_steps *self, const qe_step_member *member, const uint32_t *ids, uint32_t slot,
    const qe_step_draw *draw, qe_session *session)
{
    lane *l = next_lane(self);
    qk_plan *plan = qk_step_plan(l->step);
    uint32_t n_pages = (member->start + member->n_rows + QK_PAGE_TOKENS - 1) / QK_PAGE_TOKENS;
    g_assert(l->n_members < self->params.seqs_max);
    g_assert(plan->n_rows + member->n_rows <= self->params.rows_max);
    g_assert(n_pages <= self->params.pages_max - plan->n_pages);
    g_assert(ids || member->n_rows == 1);

    qe_step_member *m = &l->members[l->n_members];
    *m = *member;
    qe_request_ref(m->request);
    l->names[l->n_members++] = m->request;

    uint32_t row = plan->n_rows;
    qk_seq *seq = &plan->seqs[plan->n_seqs++];
    *seq = (qk_seq){
        .row_begin = row,
        .n_rows = m->n_rows,
        .start = m->start,
        .page_begin = plan->n_pages,
        .n_pages = n_pages,
        .n_sink = m->select.n_sink,
        .n_recent = m->select.n_recent,
        .n_chosen = m->select.n_chosen,
    };
    m->n_pages = n_pages;
    m->n_attended = qk_seq_n_attended(seq);
    for (uint32_t i = 0; i < m->n_rows; i++)
        plan->tokens[row + i] = ids ? (int32_t)ids[i] : ~(int32_t)slot;
    add_pages(l, plan, m, qe_session_pool(session), qe_session_pages(session),
        qe_session_plan_addresses(session, n_pages), n_pages);
    plan->n_pages += n_pages;
    plan->n_rows += m->n_rows;

    uint32_t last = row + m->n_rows - 1;
    if (m->n_logits) {
        m->logits_output = plan->n_outputs;
        for (uint32_t i = 0; i < m->n_logits; i++)
            add_logits(plan, last + 1 - m->n_logits + i);
    }
    if (m->samples)
        m->sample_output =
            add_draw(self, plan, last, m->wants_top || m->keeps_logits ? QK_OUTPUT_LOGITS : 0u, slot, draw);
    l->attended += qe_cost_attended(m->start - (m->n_pages - m->n_attended) * QK_PAGE_TOKENS, m->n_rows);
    plan->profile |= m->profile;
    if (m->decode)
        l->n_decode++;
    else
        l->n_prefill += m->n_rows;
    if (!m->samples || !draw->masked)
        return NULL;
    return plan->masks + (gsize)plan->outputs[m->sample_output].mask * self->mask_words;
}

qk_status qe_steps_submit(qe_steps *self, double predicted_ms)
{
    lane *l = next_lane(self);
    l->predicted_ms = predicted_ms;
    l->submitted = g_get_monotonic_time();
    qk_status status = qk_step_submit(l->step);
    if (status != QK_OK) {
        drop_members(l);
        return status;
    }
    uint32_t which = (uint32_t)(l - self->lanes);
    self->n_in_flight++;
    qe_queue_set_step(self->queue, which, l->step, l->names, l->n_members);
    /* A cancel that came between planning and the registry found no step to cancel: it is given up here. */
    for (uint32_t i = 0; i < l->n_members; i++) {
        if (qe_request_is_cancelled(l->members[i].request)) {
            qe_queue_cancel_all(self->queue);
            break;
        }
    }
    return QK_OK;
}

bool qe_steps_wait(qe_steps *self, qe_step_done *done)
{
    if (self->n_in_flight == 0)
        return false;
    drop_held(self);
    lane *l = &self->lanes[self->oldest];
    qk_status status = qk_step_wait(l->step);
    gint64 now = g_get_monotonic_time();
    qe_queue_set_step(self->queue, self->oldest, NULL, NULL, 0);
    *done = (qe_step_done){
        .status = status,
        .n_members = l->n_members,
        .members = l->members,
        .result = status == QK_OK ? qk_step_result(l->step) : NULL,
        .ms = (double)(now - MAX(l->submitted, self->last_done)) / 1000,
        .rows = qk_step_plan(l->step)->n_rows,
        .attended = l->attended,
        .heavy = l->heavy,
        .n_prefill = l->n_prefill,
        .n_decode = l->n_decode,
    };
    self->last_done = now;
    self->held = true;
    self->held_lane = self->oldest;
    self->oldest ^= 1;
    self->n_in_flight--;
    return true;
}
