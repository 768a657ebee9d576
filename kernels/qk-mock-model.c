/* qk-mock-model.c: the mock's models, contexts and steps, each a shell around one of the CPU backend's.
 *
 *  1. Weights are copied at load into the mock's own memory: the caller's may go.
 *  2. A submit copies the plan, with page addresses translated, and returns; the step runs when its turn comes. A plan
 *     that changed in between was filled while the step was not idle: the step then ends as QK_INVALID.
 *  3. Results are copied out when the step is over. Read earlier, they are those of the step before.
 *  4. A step cancelled while it waits may be given up at once, or run and be cancelled inside, by chance.
 *  5. The CPU backend's token slots and histories are used as they are: it runs the steps in submission order.
 *  6. Host pages are computed in place whatever the plan's path; the ring is only counted, and asked for where a card
 *     would stream through it.
 * Device memory that is counted: weights, the ring, and all that the CPU backend says a context takes. */
#include "kernels/qk-mock-internal.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef struct {
    qk_model_head head;
    qk_model *inner;
    unsigned char *weights;
    uint64_t bytes;
} mock_model;

typedef struct {
    qk_context_head head;
    qk_context *inner;
    uint64_t bytes;
} mock_context;

/* ---- Models ---- */

static uint64_t tensor_bytes(const qk_tensor *t)
{
    uint64_t n = (uint64_t)t->rows * t->cols * (t->dtype == QK_F32 ? 4 : 2);
    return (n + 63) / 64 * 64;
}

/* The tensors of @desc and of @layers (its copy), each once; a tied lm_head is left out. @out: NULL to count. */
static uint32_t list_tensors(qk_model_desc *desc, qk_layer_tensors *layers, qk_tensor **out)
{
    uint32_t n = 0;
    qk_tensor *heads[] = {&desc->embed, &desc->final_norm, &desc->lm_head};
    for (uint32_t i = 0; i < 3; i++) {
        if (i == 2 && desc->lm_head.data == desc->embed.data)
            continue;
        if (out != NULL)
            out[n] = heads[i];
        n++;
    }
    for (uint32_t l = 0; l < desc->shape.n_layers; l++) {
        qk_layer_tensors *t = &layers[l];
        qk_tensor *const parts[] = {&t->attn_norm, &t->q, &t->k, &t->v, &t->q_norm, &t->k_norm, &t->o,
            &t->ffn_norm, &t->gate, &t->up, &t->down};
        for (uint32_t i = 0; i < sizeof(parts) / sizeof(parts[0]); i++) {
            if (out != NULL)
                out[n] = parts[i];
            n++;
        }
    }
    return n;
}

/* Copies what @tensors name to @model's memory and points them there. */
static qk_status upload(
    mock_model *model, qk_tensor **tensors, uint32_t n, qk_progress_fn progress, void *user)
{
    uint64_t at = 0;
    for (uint32_t i = 0; i < n; i++) {
        qk_tensor *t = tensors[i];
        memcpy(model->weights + at, t->data, (size_t)t->rows * t->cols * (t->dtype == QK_F32 ? 4 : 2));
        t->data = model->weights + at;
        at += tensor_bytes(t);
        if (progress != NULL && !progress(user, at, model->bytes))
            return QK_CANCELLED;
    }
    return QK_OK;
}

static void mock_model_free(qk_model *base)
{
    mock_model *model = (mock_model *)base;
    qk_mock *mock = (qk_mock *)model->head.backend;
    pthread_mutex_lock(&mock->inner_lock);
    qk_model_free(model->inner);
    pthread_mutex_unlock(&mock->inner_lock);
    qk_mock_uncharge(mock, model->bytes);
    free(model->weights);
    free(model);
}

static qk_status mock_model_load(qk_backend *backend, const qk_model_desc *caller_desc,
    qk_progress_fn progress, void *user, qk_model **out)
{
    qk_mock *mock = (qk_mock *)backend;
    qk_status status = qk_mock_check_lost(mock);
    if (status != QK_OK)
        return status;

    qk_model_desc desc = *caller_desc;
    uint32_t n_layers = desc.shape.n_layers;
    mock_model *model = calloc(1, sizeof(*model));
    qk_layer_tensors *layers = calloc(n_layers, sizeof(*layers));
    qk_tensor **tensors = calloc(3 + 11 * (size_t)n_layers, sizeof(*tensors));
    if (model == NULL || layers == NULL || tensors == NULL) {
        free(model);
        model = NULL;
        status = qk_mock_fail(mock, QK_NO_MEMORY, "mock: no host memory for a model");
        goto out;
    }
    memcpy(layers, desc.layers, n_layers * sizeof(*layers));
    desc.layers = layers;
    uint32_t n_tensors = list_tensors(&desc, layers, tensors);
    bool tied = desc.lm_head.data == desc.embed.data;
    for (uint32_t i = 0; i < n_tensors; i++)
        model->bytes += tensor_bytes(tensors[i]);
    model->head.backend = backend;
    model->head.shape = desc.shape;
    model->head.shape.rope_inv_freq = NULL;
    status = qk_mock_charge(mock, model->bytes, "weights");
    if (status != QK_OK) {
        free(model);
        model = NULL;
        goto out;
    }
    model->weights = aligned_alloc(64, model->bytes);
    if (model->weights == NULL) {
        status = qk_mock_fail(mock, QK_NO_MEMORY, "mock: no host memory for %llu bytes of weights",
            (unsigned long long)model->bytes);
        goto out;
    }
    status = upload(model, tensors, n_tensors, progress, user);
    if (status != QK_OK) {
        qk_mock_fail(mock, status, "mock: the load was given up");
        goto out;
    }
    if (tied)
        desc.lm_head.data = desc.embed.data;
    pthread_mutex_lock(&mock->inner_lock);
    status = qk_model_load(mock->inner, &desc, NULL, NULL, &model->inner);
    if (status != QK_OK)
        qk_mock_fail(mock, status, "%s", qk_backend_error(mock->inner));
    pthread_mutex_unlock(&mock->inner_lock);

out:
    free(layers);
    free(tensors);
    if (status == QK_OK)
        *out = (qk_model *)model;
    else if (model != NULL)
        mock_model_free((qk_model *)model);
    return status;
}

/* ---- Contexts ---- */

/* Bytes of a step's results on the host. */
static uint64_t result_bytes(const qk_shape *shape, const qk_context_params *params)
{
    uint64_t bytes = (uint64_t)params->outputs_max * (sizeof(qk_output_result) + QK_TOP_MAX * sizeof(qk_top));
    bytes += (uint64_t)params->masks_max * qk_mask_words(shape->vocab) * sizeof(uint32_t);
    bytes += (uint64_t)params->biases_max * sizeof(qk_bias);
    if (params->logits_max > 0)
        bytes += (uint64_t)params->outputs_max * shape->vocab * sizeof(float);
    return bytes;
}

static qk_status mock_context_measure(qk_model *base, const qk_context_params *params, qk_sizes *out)
{
    mock_model *model = (mock_model *)base;
    qk_mock *mock = (qk_mock *)model->head.backend;
    qk_status status = qk_mock_check_lost(mock);
    if (status != QK_OK)
        return status;
    qk_sizes inner;
    pthread_mutex_lock(&mock->inner_lock);
    status = qk_context_measure(model->inner, params, &inner);
    if (status != QK_OK)
        qk_mock_fail(mock, status, "%s", qk_backend_error(mock->inner));
    pthread_mutex_unlock(&mock->inner_lock);
    if (status == QK_OK &&
        __builtin_add_overflow(inner.device_bytes + inner.host_bytes, params->ring_bytes, &out->device_bytes))
        status = qk_mock_fail(
            mock, QK_NO_MEMORY, "mock: a ring of %llu bytes", (unsigned long long)params->ring_bytes);
    if (status == QK_OK) {
        out->host_bytes = 2 * result_bytes(&model->head.shape, params);
    }
    return status;
}

static qk_status mock_context_new(qk_model *base, const qk_context_params *params, qk_context **out)
{
    mock_model *model = (mock_model *)base;
    qk_mock *mock = (qk_mock *)model->head.backend;
    qk_sizes sizes;
    qk_status status = mock_context_measure(base, params, &sizes);
    if (status == QK_OK)
        status = qk_mock_charge(mock, sizes.device_bytes, "a context");
    if (status != QK_OK)
        return status;
    mock_context *context = calloc(1, sizeof(*context));
    if (context == NULL) {
        status = qk_mock_fail(mock, QK_NO_MEMORY, "mock: no host memory for a context");
        goto fail;
    }
    context->head = (qk_context_head){.backend = &mock->base, .model = base, .params = *params};
    context->bytes = sizes.device_bytes;
    pthread_mutex_lock(&mock->inner_lock);
    status = qk_context_new(model->inner, params, &context->inner);
    if (status != QK_OK)
        qk_mock_fail(mock, status, "%s", qk_backend_error(mock->inner));
    pthread_mutex_unlock(&mock->inner_lock);
    if (status != QK_OK)
        goto fail;
    *out = (qk_context *)context;
    return QK_OK;
fail:
    qk_mock_uncharge(mock, sizes.device_bytes);
    free(context);
    return status;
}

static void mock_context_free(qk_context *base)
{
    mock_context *context = (mock_context *)base;
    qk_mock *mock = (qk_mock *)context->head.backend;
    pthread_mutex_lock(&mock->inner_lock);
    qk_context_free(context->inner);
    pthread_mutex_unlock(&mock->inner_lock);
    qk_mock_uncharge(mock, context->bytes);
    free(context);
}

typedef struct {
    qk_mock *mock;
    qk_context *context;
    uint32_t slot;
    const int32_t *ids;
    size_t n_ids, n_prompt;
    qk_status status;
    char error[256];
} history_call;

static void run_history(void *user)
{
    history_call *call = user;
    call->status = qk_context_set_history(call->context, call->slot, call->ids, call->n_ids, call->n_prompt);
    if (call->status != QK_OK)
        snprintf(call->error, sizeof(call->error), "%s", qk_backend_error(call->mock->inner));
}

/* In COMPUTE's order, so that only the steps behind it see it; waits for its turn. */
static qk_status mock_context_set_history(
    qk_context *base, uint32_t slot, const int32_t *ids, size_t n_ids, size_t n_prompt)
{
    mock_context *context = (mock_context *)base;
    qk_mock *mock = (qk_mock *)context->head.backend;
    qk_status status = qk_mock_check_lost(mock);
    if (status != QK_OK)
        return status;
    history_call call = {.mock = mock,
        .context = context->inner,
        .slot = slot,
        .ids = ids,
        .n_ids = n_ids,
        .n_prompt = n_prompt,
        .status = QK_DEVICE_LOST};
    bool done = false;
    mock_op op = {.kind = MOCK_CALL, .call = {.run = run_history, .user = &call, .done = &done}};
    pthread_mutex_lock(&mock->lock);
    if (!mock->lost) {
        qk_mock_enqueue(mock, QK_STREAM_COMPUTE, &op);
        while (!done)
            pthread_cond_wait(&mock->done, &mock->lock);
    }
    pthread_mutex_unlock(&mock->lock);
    if (call.status == QK_DEVICE_LOST)
        return qk_mock_check_lost(mock);
    return call.status == QK_OK ? QK_OK : qk_mock_fail(mock, call.status, "%s", call.error);
}

/* ---- Bounds ---- */

static qk_status mock_bounds_submit(qk_context *base, uint32_t kv_class, const qk_bounds *bounds, uint32_t n)
{
    mock_context *context = (mock_context *)base;
    qk_mock *mock = (qk_mock *)context->head.backend;
    const qk_context_params *params = &context->head.params;
    const qk_kv_layout *layout = kv_class == 0 ? &params->layout : &params->layout_1;
    const qk_shape *shape = &((const qk_model_head *)context->head.model)->shape;
    qk_status status = qk_mock_check_lost(mock);
    for (uint32_t i = 0; i < n && status == QK_OK; i++) {
        mock_op *op = calloc(1, sizeof(*op));
        if (op == NULL)
            return qk_mock_fail(mock, QK_NO_MEMORY, "mock: no host memory for bounds");
        op->kind = MOCK_BOUNDS;
        op->bounds.inner = context->inner;
        op->bounds.kv_class = kv_class;
        pthread_mutex_lock(&mock->lock);
        op->bounds.item = (qk_bounds){
            .page = qk_mock_translate(mock, bounds[i].page, layout->page_bytes),
            .bounds = qk_mock_translate(mock, bounds[i].bounds, qk_bounds_bytes(shape, layout->dtype)),
        };
        const bool known = op->bounds.item.page != 0 && op->bounds.item.bounds != 0;
        if (mock->lost || !known)
            free(op);
        else
            qk_mock_enqueue(mock, QK_STREAM_COMPUTE, op);
        pthread_mutex_unlock(&mock->lock);
        if (!known)
            status = qk_mock_fail(mock, QK_INVALID, "bounds[%u]: %#llx, %#llx: no live buffer is there", i,
                (unsigned long long)bounds[i].page, (unsigned long long)bounds[i].bounds);
    }
    return status;
}

void qk_mock_bounds_run(qk_mock *mock, const mock_op *op)
{
    qk_event *event = NULL;
    pthread_mutex_lock(&mock->inner_lock);
    /* Until it is done: what comes next may be a copy that the CPU backend does not know of. */
    if (qk_bounds_submit(op->bounds.inner, op->bounds.kv_class, &op->bounds.item, 1) != QK_OK ||
        qk_event_new(mock->inner, &event) != QK_OK || qk_event_record(event, QK_STREAM_COMPUTE) != QK_OK ||
        qk_event_wait(event) != QK_OK)
        fprintf(stderr, "mock: bounds: %s\n", qk_backend_error(mock->inner));
    qk_event_free(event);
    pthread_mutex_unlock(&mock->inner_lock);
}

/* ---- Steps ---- */

static void step_free_memory(mock_step *step)
{
    free(step->plan.tokens);
    free(step->plan.seqs);
    free(step->plan.pages);
    free(step->plan.host_pages);
    free(step->plan.bounds);
    free(step->plan.outputs);
    free(step->plan.masks);
    free(step->plan.biases);
    free(step->outputs);
    free(step->tops);
    free(step->logits);
    free(step);
}

static qk_status mock_step_new(qk_context *base, qk_step **out)
{
    mock_context *context = (mock_context *)base;
    qk_mock *mock = (qk_mock *)context->head.backend;
    const qk_context_params *params = &context->head.params;
    qk_status status = qk_mock_check_lost(mock);
    if (status == QK_OK)
        status = qk_mock_charge(mock, 0, "a step");
    if (status != QK_OK)
        return status;

    mock_step *step = calloc(1, sizeof(*step));
    if (step == NULL)
        return qk_mock_fail(mock, QK_NO_MEMORY, "mock: no host memory for a step");
    size_t vocab = ((const qk_model_head *)context->head.model)->shape.vocab, n_outputs = params->outputs_max;
    step->head = (qk_step_head){.backend = &mock->base, .context = base};
    step->op = (mock_op){.kind = MOCK_STEP, .step = step};
    step->plan.tokens = calloc(params->rows_max, sizeof(*step->plan.tokens));
    step->plan.seqs = calloc(params->seqs_max, sizeof(*step->plan.seqs));
    step->plan.pages = calloc(params->pages_max, sizeof(*step->plan.pages));
    if (params->partial_max > 0)
        step->plan.host_pages = calloc(params->pages_max, sizeof(*step->plan.host_pages));
    if (params->select_max > 0)
        step->plan.bounds = calloc(params->pages_max, sizeof(*step->plan.bounds));
    step->plan.outputs = calloc(n_outputs + 1, sizeof(*step->plan.outputs));
    step->plan.masks =
        calloc(params->masks_max * (size_t)qk_mask_words((uint32_t)vocab) + 1, sizeof(uint32_t));
    step->plan.biases = calloc(params->biases_max + (size_t)1, sizeof(*step->plan.biases));
    step->outputs = calloc(n_outputs + 1, sizeof(*step->outputs));
    step->tops = calloc(n_outputs + 1, QK_TOP_MAX * sizeof(*step->tops));
    if (params->logits_max > 0)
        step->logits = calloc(n_outputs * vocab, sizeof(float));
    if (step->plan.tokens == NULL || step->plan.seqs == NULL || step->plan.pages == NULL ||
        step->plan.outputs == NULL || step->plan.masks == NULL || step->plan.biases == NULL ||
        step->outputs == NULL || step->tops == NULL ||
        (params->partial_max > 0 && step->plan.host_pages == NULL) ||
        (params->select_max > 0 && step->plan.bounds == NULL) ||
        (params->logits_max > 0 && step->logits == NULL)) {
        step_free_memory(step);
        return qk_mock_fail(mock, QK_NO_MEMORY, "mock: no host memory for a step");
    }
    step->result = (qk_result){.outputs = step->outputs, .logits = step->logits, .tops = step->tops};

    pthread_mutex_lock(&mock->inner_lock);
    status = qk_step_new(context->inner, &step->inner);
    if (status != QK_OK)
        qk_mock_fail(mock, status, "%s", qk_backend_error(mock->inner));
    pthread_mutex_unlock(&mock->inner_lock);
    if (status != QK_OK) {
        step_free_memory(step);
        return status;
    }
    *out = (qk_step *)step;
    return QK_OK;
}

static void wait_idle(qk_mock *mock, const mock_step *step)
{
    pthread_mutex_lock(&mock->lock);
    while (step->status == QK_PENDING)
        pthread_cond_wait(&mock->done, &mock->lock);
    pthread_mutex_unlock(&mock->lock);
}

static void mock_step_free(qk_step *base)
{
    mock_step *step = (mock_step *)base;
    qk_mock *mock = (qk_mock *)step->head.backend;
    wait_idle(mock, step);
    pthread_mutex_lock(&mock->inner_lock);
    qk_step_free(step->inner);
    pthread_mutex_unlock(&mock->inner_lock);
    step_free_memory(step);
}

static qk_plan *mock_step_plan(qk_step *base)
{
    return &((mock_step *)base)->plan;
}

static const qk_context_params *step_params(const mock_step *step)
{
    return &((const qk_context_head *)step->head.context)->params;
}

static uint64_t page_bytes(const mock_step *step, const qk_plan *plan)
{
    return qk_plan_layout(plan, step_params(step))->page_bytes;
}

/* Translates the pages that @plan's sequences name into @to. Lock held. Returns the first index that is refused, or
 * n_pages. */
static uint32_t translate_pages(const qk_mock *mock, const mock_step *step, const qk_plan *plan, uint64_t *to)
{
    const uint64_t bytes = page_bytes(step, plan);
    for (uint32_t s = 0; s < plan->n_seqs; s++) {
        const qk_seq *seq = &plan->seqs[s];
        for (uint32_t p = seq->page_begin; p < seq->page_begin + seq->n_pages; p++) {
            if (plan->pages[p] == 0)
                continue;
            to[p] = qk_mock_translate(mock, plan->pages[p], bytes);
            if (to[p] == 0)
                return p;
        }
    }
    return plan->n_pages;
}

/* The pages of @seq whose bounds are looked at: [*begin, *end) of the plan's. */
static void scored_pages(const qk_seq *seq, uint32_t *begin, uint32_t *end)
{
    *begin = *end = seq->page_begin;
    if (!qk_seq_leaves_out(seq))
        return;
    *begin += seq->n_sink;
    *end += seq->n_pages - seq->n_recent;
}

/* Translates the bounds that @plan's sequences look at into @to. Lock held. Returns the first index that is refused, or
 * n_pages. */
static uint32_t translate_bounds(
    const qk_mock *mock, const mock_step *step, const qk_plan *plan, uint64_t *to)
{
    const qk_shape *shape =
        &((const qk_model_head *)((const qk_context_head *)step->head.context)->model)->shape;
    const uint64_t bytes = qk_bounds_bytes(shape, qk_plan_layout(plan, step_params(step))->dtype);
    for (uint32_t s = 0; s < plan->n_seqs; s++) {
        uint32_t begin, end;
        scored_pages(&plan->seqs[s], &begin, &end);
        for (uint32_t p = begin; p < end; p++) {
            to[p] = qk_mock_translate(mock, plan->bounds[p], bytes);
            if (to[p] == 0)
                return p;
        }
    }
    return plan->n_pages;
}

/* What a card does with host pages needs its ring: QK_HOST_STREAM, and every step in which a sequence has many rows. */
static bool lacks_ring(const mock_step *step)
{
    const qk_plan *plan = &step->plan;
    bool has_host = false, streams = plan->host_path == QK_HOST_STREAM, reads = false;
    for (uint32_t s = 0; s < plan->n_seqs; s++) {
        const qk_seq *seq = &plan->seqs[s];
        streams = streams || seq->n_rows > 1;
        reads = reads || qk_seq_leaves_out(seq);
        for (uint32_t p = seq->page_begin; p < seq->page_begin + seq->n_pages; p++)
            has_host = has_host || (plan->pages[p] & QK_PAGE_HOST) != 0;
    }
    return has_host && streams && !reads && step_params(step)->ring_bytes == 0;
}

static size_t mask_bytes(const mock_step *step, const qk_plan *plan)
{
    const qk_context_head *context = (const qk_context_head *)step->head.context;
    return plan->n_masks * sizeof(uint32_t) *
           qk_mask_words(((const qk_model_head *)context->model)->shape.vocab);
}

/* All but the pages' addresses. */
static void copy_plan(const mock_step *step, qk_plan *to, const qk_plan *from)
{
    to->n_masks = from->n_masks;
    to->n_biases = from->n_biases;
    if (from->n_masks > 0)
        memcpy(to->masks, from->masks, mask_bytes(step, from));
    if (from->n_biases > 0)
        memcpy(to->biases, from->biases, from->n_biases * sizeof(*from->biases));
    to->n_rows = from->n_rows;
    to->n_seqs = from->n_seqs;
    to->n_pages = from->n_pages;
    to->n_outputs = from->n_outputs;
    to->kv_class = from->kv_class;
    to->host_path = from->host_path;
    to->profile = from->profile;
    memcpy(to->tokens, from->tokens, from->n_rows * sizeof(*from->tokens));
    memcpy(to->seqs, from->seqs, from->n_seqs * sizeof(*from->seqs));
    if (from->host_pages != NULL)
        memcpy(to->host_pages, from->host_pages, from->n_pages * sizeof(*from->host_pages));
    if (from->n_outputs > 0)
        memcpy(to->outputs, from->outputs, from->n_outputs * sizeof(*from->outputs));
}

static qk_status mock_step_submit(qk_step *base)
{
    mock_step *step = (mock_step *)base;
    qk_mock *mock = (qk_mock *)step->head.backend;
    qk_status status = qk_mock_check_lost(mock);
    if (status != QK_OK)
        return status;
    const qk_plan *plan = &step->plan;
    if (lacks_ring(step))
        return qk_mock_fail(mock, QK_UNSUPPORTED,
            "plan: host pages to stream, but the context has no ring (ring_bytes is 0)");
    qk_plan *inner = qk_step_plan(step->inner); /* idle as this step is */
    copy_plan(step, inner, plan);
    memset(inner->pages, 0, plan->n_pages * sizeof(*plan->pages));

    pthread_mutex_lock(&mock->lock);
    uint32_t bad = translate_pages(mock, step, plan, inner->pages);
    const bool bad_bounds =
        bad == plan->n_pages && (bad = translate_bounds(mock, step, plan, inner->bounds)) < plan->n_pages;
    if (bad == plan->n_pages && !mock->lost) {
        step->cancel = false;
        step->status = QK_PENDING;
        qk_mock_enqueue(mock, QK_STREAM_COMPUTE, &step->op);
    }
    pthread_mutex_unlock(&mock->lock);
    if (bad_bounds)
        return qk_mock_fail(mock, QK_INVALID, "plan: bounds[%u] at %#llx: no live buffer has them there", bad,
            (unsigned long long)plan->bounds[bad]);
    if (bad < plan->n_pages)
        return qk_mock_fail(mock, QK_INVALID,
            "plan: pages[%u] at %#llx: no live buffer has %llu bytes%s there", bad,
            (unsigned long long)plan->pages[bad], (unsigned long long)page_bytes(step, plan),
            (plan->pages[bad] & QK_PAGE_HOST) != 0 ? " of registered host memory" : "");
    return qk_mock_check_lost(mock);
}

/* Whether the caller's plan still is what was submitted. Lock held. */
static bool plan_unchanged(const qk_mock *mock, const mock_step *step)
{
    const qk_plan *a = &step->plan, *b = qk_step_plan(step->inner);
    if (a->n_rows != b->n_rows || a->n_seqs != b->n_seqs || a->n_pages != b->n_pages ||
        a->n_outputs != b->n_outputs || a->kv_class != b->kv_class || a->host_path != b->host_path ||
        a->profile != b->profile)
        return false;
    if (memcmp(a->tokens, b->tokens, a->n_rows * sizeof(*a->tokens)) != 0 ||
        memcmp(a->seqs, b->seqs, a->n_seqs * sizeof(*a->seqs)) != 0 ||
        (a->n_outputs > 0 && memcmp(a->outputs, b->outputs, a->n_outputs * sizeof(*a->outputs)) != 0))
        return false;
    if (a->n_masks != b->n_masks || a->n_biases != b->n_biases ||
        (a->n_masks > 0 && memcmp(a->masks, b->masks, mask_bytes(step, a)) != 0) ||
        (a->n_biases > 0 && memcmp(a->biases, b->biases, a->n_biases * sizeof(*a->biases)) != 0))
        return false;
    const uint64_t bytes = page_bytes(step, a);
    for (uint32_t s = 0; s < a->n_seqs; s++) {
        for (uint32_t p = a->seqs[s].page_begin; p < a->seqs[s].page_begin + a->seqs[s].n_pages; p++) {
            if (b->pages[p] != (a->pages[p] == 0 ? 0 : qk_mock_translate(mock, a->pages[p], bytes)))
                return false;
            if (a->pages[p] == 0 && a->host_pages[p] != b->host_pages[p])
                return false;
        }
        uint32_t begin, end;
        scored_pages(&a->seqs[s], &begin, &end);
        for (uint32_t p = begin; p < end; p++)
            if (b->bounds[p] != qk_mock_translate(mock, a->bounds[p], 1))
                return false;
    }
    return true;
}

bool qk_mock_step_touches(const mock_step *step, uint64_t begin, uint64_t end, bool outside)
{
    const qk_plan *plan = qk_step_plan(step->inner);
    for (uint32_t s = 0; s < plan->n_seqs; s++) {
        const qk_seq *seq = &plan->seqs[s];
        for (uint32_t p = seq->page_begin; p < seq->page_begin + seq->n_pages; p++) {
            uint64_t at = plan->pages[p];
            if (at == 0 && outside)
                at = (uint64_t)(uintptr_t)plan->host_pages[p];
            if (at >= begin && at < end)
                return true;
        }
        uint32_t first, last;
        scored_pages(seq, &first, &last);
        for (uint32_t p = first; p < last; p++)
            if (plan->bounds[p] >= begin && plan->bounds[p] < end)
                return true;
    }
    return false;
}

static void copy_results(mock_step *step)
{
    const qk_result *inner = qk_step_result(step->inner);
    const qk_plan *plan = qk_step_plan(step->inner);
    size_t vocab = ((const qk_model_head *)((const qk_context_head *)step->head.context)->model)->shape.vocab;
    for (uint32_t i = 0; i < plan->n_outputs; i++) {
        step->outputs[i] = inner->outputs[i];
        memcpy(step->tops + i * QK_TOP_MAX, inner->tops + i * QK_TOP_MAX,
            plan->outputs[i].n_top * sizeof(*step->tops));
        if (plan->outputs[i].flags & QK_OUTPUT_LOGITS)
            memcpy(step->logits + i * vocab, inner->logits + i * vocab, vocab * sizeof(float));
    }
    step->result.profile = NULL;
    if (inner->profile) {
        step->profile = *inner->profile;
        step->result.profile = &step->profile;
    }
}

static bool is_filled(const unsigned char *page, uint64_t bytes)
{
    for (uint64_t i = 0; i < bytes; i++)
        if (page[i] != 0xff)
            return false;
    return true;
}

/* Whether the pages that this step is the first to write were filled when they were handed out. */
static bool finds_fresh_pages(mock_step *step)
{
    const qk_plan *plan = qk_step_plan(step->inner);
    for (uint32_t s = 0; s < plan->n_seqs; s++) {
        const qk_seq *seq = &plan->seqs[s];
        uint32_t first = (seq->start + QK_PAGE_TOKENS - 1) / QK_PAGE_TOKENS;
        for (uint32_t p = first; p < seq->n_pages; p++) {
            const void *page =
                (const void *)(uintptr_t)(plan->pages[seq->page_begin + p] & ~(uint64_t)QK_PAGE_HOST);
            if (is_filled(page, page_bytes(step, plan)))
                continue;
            snprintf(step->error, sizeof(step->error),
                "plan: page %u of sequence %u, to be written from its first token on, was not filled", p, s);
            return false;
        }
    }
    return true;
}

void qk_mock_step_run(qk_mock *mock, mock_step *step)
{
    qk_status status = QK_OK;
    if (!plan_unchanged(mock, step)) {
        snprintf(step->error, sizeof(step->error), "plan: it was changed after the submit");
        status = QK_INVALID;
    } else if (step->cancel && (qk_mock_random(mock) & 1)) {
        status = QK_CANCELLED;
    } else if (mock->want_fresh && !finds_fresh_pages(step)) {
        status = QK_INVALID;
    }
    if (status != QK_OK) {
        step->status = status;
        return;
    }
    pthread_mutex_unlock(&mock->lock);

    pthread_mutex_lock(&mock->inner_lock);
    /* Under the lock: a cancel that comes once the step runs has to find it there. */
    pthread_mutex_lock(&mock->lock);
    status = qk_step_submit(step->inner);
    step->in_inner = status == QK_OK;
    if (step->in_inner && step->cancel)
        qk_step_cancel(step->inner);
    pthread_mutex_unlock(&mock->lock);
    if (status == QK_OK) {
        status = qk_step_wait(step->inner);
        pthread_mutex_lock(&mock->lock);
        step->in_inner = false;
        pthread_mutex_unlock(&mock->lock);
    }
    if (status == QK_OK)
        copy_results(step);
    else
        snprintf(step->error, sizeof(step->error), "%s", qk_backend_error(mock->inner));
    pthread_mutex_unlock(&mock->inner_lock);

    pthread_mutex_lock(&mock->lock);
    step->status = status;
}

static qk_status mock_step_poll(qk_step *base)
{
    mock_step *step = (mock_step *)base;
    qk_mock *mock = (qk_mock *)step->head.backend;
    pthread_mutex_lock(&mock->lock);
    qk_status status = mock->lost ? QK_DEVICE_LOST : step->status;
    pthread_mutex_unlock(&mock->lock);
    return status;
}

static qk_status mock_step_wait(qk_step *base)
{
    mock_step *step = (mock_step *)base;
    qk_mock *mock = (qk_mock *)step->head.backend;
    wait_idle(mock, step);
    qk_status status = qk_mock_check_lost(mock);
    if (status == QK_OK && step->status != QK_OK)
        status = qk_mock_fail(
            mock, step->status, "%s", step->status == QK_CANCELLED ? "mock: cancelled" : step->error);
    return status;
}

static void mock_step_cancel(qk_step *base)
{
    mock_step *step = (mock_step *)base;
    qk_mock *mock = (qk_mock *)step->head.backend;
    pthread_mutex_lock(&mock->lock);
    step->cancel = true;
    if (step->in_inner)
        qk_step_cancel(step->inner);
    pthread_mutex_unlock(&mock->lock);
}

static const qk_result *mock_step_result(qk_step *base)
{
    return &((mock_step *)base)->result;
}

void qk_mock_model_ops(qk_backend_ops *ops)
{
    ops->model_load = mock_model_load;
    ops->model_free = mock_model_free;
    ops->context_measure = mock_context_measure;
    ops->context_new = mock_context_new;
    ops->context_free = mock_context_free;
    ops->context_set_history = mock_context_set_history;
    ops->bounds_submit = mock_bounds_submit;
    ops->step_new = mock_step_new;
    ops->step_free = mock_step_free;
    ops->step_plan = mock_step_plan;
    ops->step_submit = mock_step_submit;
    ops->step_poll = mock_step_poll;
    ops->step_wait = mock_step_wait;
    ops->step_cancel = mock_step_cancel;
    ops->step_result = mock_step_result;
}
