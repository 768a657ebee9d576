/* cpu-context.c: the objects around a step: its context's workspace, token slots and penalty history, and the step's
 * own parameter and result buffers.
 *
 * Each is one block, laid out by one function that also counts it (lay_out_*), so that qk_context_measure() cannot
 * disagree with qk_context_new(). After qk_cpu_step_new() nothing here allocates. Engine thread, but for cancel and
 * run_command(), which is the COMPUTE thread's way into a step. */
#include "kernels/cpu/cpu-backend.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- Blocks -------------------------------------------------------------------------------------------------- */

void *qk_cpu_arena_take(qk_cpu_arena *arena, uint64_t n, uint64_t element_bytes)
{
    uint64_t bytes, end;
    if (__builtin_mul_overflow(n, element_bytes, &bytes) ||
        __builtin_add_overflow(bytes, QK_CPU_ALIGN - 1, &bytes) ||
        __builtin_add_overflow(arena->used, bytes / QK_CPU_ALIGN * QK_CPU_ALIGN, &end)) {
        arena->overflow = true;
        return NULL;
    }
    void *piece = arena->base != NULL ? arena->base + arena->used : NULL;
    arena->used = end;
    return piece;
}

#define TAKE(arena, field, n) ((field) = qk_cpu_arena_take((arena), (n), sizeof(*(field))))

static void lay_out_context(qk_cpu_context *ctx, qk_cpu_arena *a)
{
    const qk_shape *shape = &((qk_cpu_model *)ctx->head.model)->head.shape;
    const qk_context_params *p = &ctx->head.params;
    const uint64_t rows = p->rows_max, vocab = shape->vocab;
    const uint32_t n_threads = qk_pool_n_threads(((qk_cpu_backend *)ctx->head.backend)->pool);

    const uint64_t context_pages = ((uint64_t)shape->max_positions + QK_PAGE_TOKENS - 1) / QK_PAGE_TOKENS;
    const uint64_t n_seq_pages = context_pages < p->pages_max ? context_pages : p->pages_max;
    ctx->q_dim = shape->n_heads * shape->head_dim;
    ctx->kv_dim = shape->n_kv_heads * shape->head_dim;
    ctx->n_q = shape->n_heads / shape->n_kv_heads;
    TAKE(a, ctx->x, rows * shape->hidden);
    TAKE(a, ctx->norm, rows * shape->hidden);
    TAKE(a, ctx->q, rows * ctx->q_dim);
    TAKE(a, ctx->k, rows * ctx->kv_dim);
    TAKE(a, ctx->v, rows * ctx->kv_dim);
    TAKE(a, ctx->attn, rows * ctx->q_dim);
    TAKE(a, ctx->attn_lse, rows * shape->n_heads);
    TAKE(a, ctx->proj, rows * shape->hidden);
    TAKE(a, ctx->gate, rows * shape->ffn);
    TAKE(a, ctx->up, rows * shape->ffn);
    TAKE(a, ctx->cos_sin, rows * shape->head_dim);
    TAKE(a, ctx->logits, p->outputs_max * vocab);
    TAKE(a, ctx->row_seq, rows);
    TAKE(a, ctx->position, rows);
    TAKE(a, ctx->token, rows);

    /* Enough to split one row of every sequence that the page table can hold. */
    ctx->n_split_max = p->pages_max / (QK_SPAN_TOKENS / QK_PAGE_TOKENS) + p->seqs_max;
    TAKE(a, ctx->tiles, rows);
    TAKE(a, ctx->jobs, rows + ctx->n_split_max);
    TAKE(a, ctx->folds, rows);
    TAKE(a, ctx->split_out, (uint64_t)ctx->n_split_max * ctx->q_dim);
    TAKE(a, ctx->split_lse, (uint64_t)ctx->n_split_max * shape->n_heads);
    TAKE(a, ctx->selects, p->select_max > 0 ? p->seqs_max : 0);
    TAKE(a, ctx->chosen, (uint64_t)p->select_max * shape->n_kv_heads);
    TAKE(a, ctx->seq_item, p->seqs_max);
    TAKE(a, ctx->seq_n_outside, p->seqs_max);
    TAKE(a, ctx->items, p->partial_max);
    TAKE(a, ctx->partial_out, (uint64_t)p->partial_max * ctx->q_dim);
    TAKE(a, ctx->partial_lse, (uint64_t)p->partial_max * shape->n_heads);
    TAKE(a, ctx->slots, p->slots_max);
    TAKE(a, ctx->history, p->slots_max * vocab);

    TAKE(a, ctx->scratch, n_threads);
    for (uint32_t i = 0; i < n_threads; i++) {
        qk_cpu_scratch s;
        const uint64_t tile = (uint64_t)QK_CPU_ATTEND_ROWS_MAX * ctx->n_q;
        TAKE(a, s.attend, qk_cpu_attend_scratch_floats(ctx->n_q, shape->head_dim));
        TAKE(a, s.span_out, tile * shape->head_dim);
        TAKE(a, s.span_lse, tile);
        TAKE(a, s.scores, p->select_max > 0 ? ctx->n_q : 0);
        TAKE(a, s.keys, p->select_max > 0 ? n_seq_pages : 0);
        TAKE(a, s.sample.z, p->outputs_max > 0 ? vocab : 0);
        TAKE(a, s.sample.weight, p->outputs_max > 0 ? vocab : 0);
        TAKE(a, s.sample.id, p->outputs_max > 0 ? vocab : 0);
        if (ctx->scratch != NULL)
            ctx->scratch[i] = s;
    }
}

static void lay_out_step(qk_cpu_step *step, qk_cpu_arena *a)
{
    const qk_cpu_context *ctx = (const qk_cpu_context *)step->head.context;
    const qk_context_params *p = &ctx->head.params;
    const uint64_t vocab = ((qk_cpu_model *)ctx->head.model)->head.shape.vocab;
    TAKE(a, step->plan.tokens, p->rows_max);
    TAKE(a, step->plan.seqs, p->seqs_max);
    TAKE(a, step->plan.pages, p->pages_max);
    step->plan.host_pages = NULL;
    if (p->partial_max > 0)
        TAKE(a, step->plan.host_pages, p->pages_max);
    step->plan.bounds = NULL;
    if (p->select_max > 0)
        TAKE(a, step->plan.bounds, p->pages_max);
    TAKE(a, step->plan.outputs, p->outputs_max);
    step->plan.masks = NULL;
    step->plan.biases = NULL;
    if (p->masks_max > 0)
        TAKE(a, step->plan.masks, (uint64_t)p->masks_max * qk_mask_words((uint32_t)vocab));
    if (p->biases_max > 0)
        TAKE(a, step->plan.biases, p->biases_max);
    TAKE(a, step->outputs, p->outputs_max);
    TAKE(a, step->tops, (uint64_t)p->outputs_max * QK_TOP_MAX);
    step->logits = NULL;
    if (p->logits_max > 0)
        TAKE(a, step->logits, p->outputs_max * vocab);
}

/* ---- Context ------------------------------------------------------------------------------------------------- */

qk_status qk_cpu_context_measure(qk_model *model, const qk_context_params *params, qk_sizes *out)
{
    qk_backend *backend = ((qk_cpu_model *)model)->head.backend;
    qk_cpu_context ctx = {.head = {.backend = backend, .model = model, .params = *params}};
    qk_cpu_step step = {.head = {.backend = backend, .context = (qk_context *)&ctx}};
    qk_cpu_arena context_arena = {0}, step_arena = {0};
    lay_out_context(&ctx, &context_arena);
    lay_out_step(&step, &step_arena);
    if (context_arena.overflow || step_arena.overflow || step_arena.used > UINT64_MAX / 4)
        return qk_cpu_fail((qk_cpu_backend *)backend, QK_NO_MEMORY, "context: sizes overflow 64 bits");
    out->device_bytes = context_arena.used + sizeof(ctx);
    out->host_bytes = 2 * (step_arena.used + sizeof(step));
    return QK_OK;
}

qk_status qk_cpu_context_new(qk_model *model, const qk_context_params *params, qk_context **out)
{
    qk_backend *backend = ((qk_cpu_model *)model)->head.backend;
    qk_sizes sizes;
    qk_status status = qk_cpu_context_measure(model, params, &sizes);
    if (status != QK_OK)
        return status;
    qk_cpu_context *ctx = calloc(1, sizeof(*ctx));
    if (ctx == NULL)
        return qk_cpu_fail((qk_cpu_backend *)backend, QK_NO_MEMORY, "context: no memory");
    ctx->head = (qk_context_head){.backend = backend, .model = model, .params = *params};
    ctx->block_bytes = sizes.device_bytes - sizeof(*ctx);
    ctx->block = qk_cpu_memory_new(ctx->block_bytes);
    if (ctx->block == NULL) {
        status = qk_cpu_fail((qk_cpu_backend *)backend, QK_NO_MEMORY,
            "context: no host memory for a workspace of %llu bytes", (unsigned long long)ctx->block_bytes);
        free(ctx);
        return status;
    }
    qk_cpu_arena arena = {.base = ctx->block};
    lay_out_context(ctx, &arena);
    for (uint32_t i = 0; i < params->slots_max; i++)
        ctx->slots[i] = -1;
    *out = (qk_context *)ctx;
    return QK_OK;
}

void qk_cpu_context_free(qk_context *context)
{
    qk_cpu_context *ctx = (qk_cpu_context *)context;
    qk_cpu_memory_free(ctx->block, ctx->block_bytes);
    free(ctx);
}

qk_status qk_cpu_context_set_history(
    qk_context *context, uint32_t slot, const int32_t *ids, size_t n_ids, size_t n_prompt)
{
    qk_cpu_context *ctx = (qk_cpu_context *)context;
    const uint64_t vocab = ((qk_cpu_model *)ctx->head.model)->head.shape.vocab;
    /* Steps in flight read and extend the history that was theirs. */
    qk_cpu_wait_idle((qk_cpu_backend *)ctx->head.backend, QK_STREAM_COMPUTE);
    qk_seen *history = ctx->history + slot * vocab;
    memset(history, 0, vocab * sizeof(*history));
    for (size_t i = 0; i < n_ids; i++)
        history[ids[i]] = qk_seen_add(history[ids[i]], i >= n_prompt);
    return QK_OK;
}

/* ---- Step objects -------------------------------------------------------------------------------------------- */

static void run_command(void *user)
{
    qk_cpu_step *step = user;
    atomic_store(&step->status, (int)qk_cpu_step_run(step));
}

qk_status qk_cpu_step_new(qk_context *context, qk_step **out)
{
    qk_cpu_backend *backend = (qk_cpu_backend *)((qk_cpu_context *)context)->head.backend;
    qk_cpu_step *step = calloc(1, sizeof(*step));
    if (step == NULL)
        return qk_cpu_fail(backend, QK_NO_MEMORY, "step: no memory");
    step->head = (qk_step_head){.backend = &backend->head, .context = context};
    qk_cpu_arena arena = {0};
    lay_out_step(step, &arena);
    step->block_bytes = arena.used;
    step->block = qk_cpu_memory_new(step->block_bytes);
    if (step->block == NULL) {
        qk_status status = qk_cpu_fail(backend, QK_NO_MEMORY, "step: no host memory for %llu bytes",
            (unsigned long long)step->block_bytes);
        free(step);
        return status;
    }
    arena = (qk_cpu_arena){.base = step->block};
    lay_out_step(step, &arena);
    step->cmd = (qk_cpu_cmd){.kind = QK_CPU_CALL, .u.call = {run_command, step}};
    step->result = (qk_result){.outputs = step->outputs, .logits = step->logits, .tops = step->tops};
    *out = (qk_step *)step;
    return QK_OK;
}

void qk_cpu_step_free(qk_step *base)
{
    qk_cpu_step *step = (qk_cpu_step *)base;
    qk_cpu_wait_seq((qk_cpu_backend *)step->head.backend, QK_STREAM_COMPUTE, step->seq);
    qk_cpu_memory_free(step->block, step->block_bytes);
    free(step);
}

qk_plan *qk_cpu_step_plan(qk_step *step)
{
    return &((qk_cpu_step *)step)->plan;
}

qk_status qk_cpu_step_submit(qk_step *base)
{
    qk_cpu_step *step = (qk_cpu_step *)base;
    atomic_store(&step->cancel, false);
    atomic_store(&step->status, (int)QK_PENDING);
    step->seq = qk_cpu_enqueue((qk_cpu_backend *)step->head.backend, QK_STREAM_COMPUTE, &step->cmd);
    return QK_OK;
}

/* A step that was never submitted reads as done. */
qk_status qk_cpu_step_poll(qk_step *step)
{
    return (qk_status)atomic_load(&((qk_cpu_step *)step)->status);
}

qk_status qk_cpu_step_wait(qk_step *base)
{
    qk_cpu_step *step = (qk_cpu_step *)base;
    qk_cpu_backend *backend = (qk_cpu_backend *)step->head.backend;
    qk_cpu_wait_seq(backend, QK_STREAM_COMPUTE, step->seq);
    qk_status status = qk_cpu_step_poll(base);
    return status == QK_OK ? status : qk_cpu_fail(backend, status, "%s", step->error);
}

void qk_cpu_step_cancel(qk_step *step)
{
    atomic_store(&((qk_cpu_step *)step)->cancel, true);
}

const qk_result *qk_cpu_step_result(qk_step *step)
{
    return &((qk_cpu_step *)step)->result;
}
