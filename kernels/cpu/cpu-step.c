/* cpu-step.c: one pass of the model over a plan's rows.
 *
 *   x = embed[token]
 *   per layer: h = rms_norm(x); q, k, v = h Wq, h Wk, h Wv; q, k = rope(rms_norm(q)), rope(rms_norm(k)) by head;
 *              k, v -> pages; a = attention(q, pages); x += a Wo;
 *              h = rms_norm(x); x += (silu(h Wgate) * (h Wup)) Wdown
 *   for output rows: logits = rms_norm(x) Whead; token = sample(logits)
 *
 * Invariants
 *  1. Every op works on one row (or one row and head, or one output column of a row) with a fixed order of sums, so
 *     cutting the work differently gives the same bits. Cuts of output columns begin at multiples of COLUMN_UNIT, so
 *     that an elementwise op meets every column at the same place of a vector.
 *  2. Pages are written before any row attends, and a row reads its own keys back from the page: what a later step
 *     sees is what this one saw.
 *  3. After the last layer's attention only output rows matter; the others are dropped from the workspace.
 *  4. Slots and history change in the sampling stage alone, after the last look at the cancel flag.
 *
 * COMPUTE thread, with the pool. */
#include "kernels/cpu/cpu-backend.h"
#include <math.h>
#include <stdio.h>
#include <string.h>
#include <time.h>

#define COLUMN_UNIT 32u     /* output columns of a chunk: a multiple of this */
#define CHUNK_BYTES 131072u /* of weights: fits the level 2 cache beside the rows */
/* Few rows read each weight once: long chunks keep the streams of a tile far apart and the prefetchers at work. The
 * 0.6B shape decoded in 23.7 ms a token with these, in 26.6 with the chunks of many rows (2 threads, best of 4). */
#define STREAM_ROWS_MAX        8u
#define STREAM_CHUNK_BYTES     4194304u
#define STREAM_CHUNKS_A_THREAD 2u
#define CHUNK_ROWS             128u
#define CHUNKS_A_THREAD        4u
#define SERIAL_ELEMENTS        8192u /* less elementwise work than this is not worth waking a thread for */

typedef struct {
    qk_cpu_step *step;
    qk_cpu_context *ctx;
    const qk_cpu_model *model;
    const qk_shape *shape;
    const qk_cpu_ops *ops;
    qk_pool *pool;
    const qk_plan *plan;
    const qk_cpu_layer *layer; /* the current one */
    uint32_t layer_idx;
    uint32_t n_rows;     /* rows in the workspace */
    qk_profile *profile; /* NULL: parts are not timed */
    int64_t marked_ns;   /* when the last part ended */
} run;

static int64_t now_ns(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return t.tv_sec * INT64_C(1000000000) + t.tv_nsec;
}

/* What ran since the last mark was @part. */
static void mark(run *r, qk_part part)
{
    if (r->profile == NULL)
        return;
    const int64_t now = now_ns();
    r->profile->ms[part] += (double)(now - r->marked_ns) / 1e6;
    r->marked_ns = now;
}

static qk_status fail(qk_cpu_step *step, qk_status status, const char *line)
{
    snprintf(step->error, sizeof(step->error), "%s", line);
    return status;
}

/* ---- Linear layers ------------------------------------------------------------------------------------------- */

typedef struct {
    const qk_cpu_linear *w;
    float *y; /* [n_rows, w->n_out] */
    uint32_t chunk_columns, chunk_begin;
} linear_part;

typedef enum { THEN_NOTHING, THEN_ADD_TO_X, THEN_SILU_MUL } linear_then;

/* Up to three layers of the same input in one region. */
typedef struct {
    const run *r;
    const float *x; /* [n_rows, w->n_in] */
    linear_part part[3];
    uint32_t n_parts, n_row_chunks;
    linear_then then;
} linear_stage;

static void multiply(const run *r, const qk_cpu_linear *w, float *y, const float *x, uint32_t n_rows,
    uint32_t begin, uint32_t end)
{
    if (w->dtype == QK_BF16)
        r->ops->matmul_bf16(y, w->n_out, x, w->n_in, w->data, n_rows, w->n_in, begin, end);
    else
        r->ops->matmul_f32(y, w->n_out, x, w->n_in, w->data, n_rows, w->n_in, begin, end);
}

static void run_linear_chunk(void *user, uint32_t index, uint32_t worker)
{
    const linear_stage *stage = user;
    const run *r = stage->r;
    uint32_t p = 0;
    while (p + 1 < stage->n_parts && index >= stage->part[p + 1].chunk_begin)
        p++;
    const linear_part *part = &stage->part[p];
    const qk_cpu_linear *w = part->w;
    index -= part->chunk_begin;
    const uint32_t begin = index / stage->n_row_chunks * part->chunk_columns;
    const uint32_t end = w->n_out - begin < part->chunk_columns ? w->n_out : begin + part->chunk_columns;
    const uint32_t row = index % stage->n_row_chunks * CHUNK_ROWS;
    const uint32_t n_rows = r->n_rows - row < CHUNK_ROWS ? r->n_rows - row : CHUNK_ROWS;
    const float *x = stage->x + (size_t)row * w->n_in;
    float *y = part->y + (size_t)row * w->n_out;

    multiply(r, w, y, x, n_rows, begin, end);
    if (stage->then == THEN_ADD_TO_X) {
        float *to = r->ctx->x + (size_t)row * w->n_out;
        for (uint32_t i = 0; i < n_rows; i++)
            r->ops->add(to + (size_t)i * w->n_out + begin, y + (size_t)i * w->n_out + begin, end - begin);
    } else if (stage->then == THEN_SILU_MUL) {
        float *up = r->ctx->up + (size_t)row * w->n_out;
        multiply(r, &r->layer->up, up, x, n_rows, begin, end);
        for (uint32_t i = 0; i < n_rows; i++)
            r->ops->silu_mul(
                y + (size_t)i * w->n_out + begin, up + (size_t)i * w->n_out + begin, end - begin);
    }
}

static void add_part(linear_stage *stage, const qk_cpu_linear *w, float *y)
{
    stage->part[stage->n_parts++] = (linear_part){.w = w, .y = y};
}

static void run_linear(linear_stage *stage)
{
    const run *r = stage->r;
    const bool stream = r->n_rows <= STREAM_ROWS_MAX;
    const uint32_t chunk_bytes = stream ? STREAM_CHUNK_BYTES : CHUNK_BYTES;
    const uint32_t chunks_at_least =
        qk_pool_n_threads(r->pool) * (stream ? STREAM_CHUNKS_A_THREAD : CHUNKS_A_THREAD);
    uint32_t n_chunks = 0;
    stage->n_row_chunks = (r->n_rows + CHUNK_ROWS - 1) / CHUNK_ROWS;
    for (uint32_t p = 0; p < stage->n_parts; p++) {
        linear_part *part = &stage->part[p];
        const uint32_t row_bytes = part->w->n_in * (part->w->dtype == QK_BF16 ? 2 : 4);
        uint32_t columns = chunk_bytes / row_bytes;
        uint32_t fair = part->w->n_out / chunks_at_least;
        columns = (columns < fair ? columns : fair) / COLUMN_UNIT * COLUMN_UNIT;
        part->chunk_columns = columns > 0 ? columns : COLUMN_UNIT;
        part->chunk_begin = n_chunks;
        n_chunks += ((part->w->n_out - 1) / part->chunk_columns + 1) * stage->n_row_chunks;
    }
    qk_pool_run(r->pool, run_linear_chunk, stage, n_chunks);
}

/* ---- Row by row ---------------------------------------------------------------------------------------------- */

/* Runs a function of single rows over all @n rows, on the pool when a row's @elements make it worth it. */
static void for_rows(const run *r, qk_pool_fn fn, uint32_t n, uint32_t elements)
{
    if ((uint64_t)n * elements >= SERIAL_ELEMENTS) {
        qk_pool_run(r->pool, fn, (void *)r, n);
        return;
    }
    for (uint32_t i = 0; i < n; i++)
        fn((void *)r, i, 0);
}

static void begin_row(void *user, uint32_t row, uint32_t worker)
{
    const run *r = user;
    const qk_cpu_linear *embed = &r->model->embed;
    const uint32_t hidden = r->shape->hidden, half = r->shape->head_dim / 2;
    const size_t at = (size_t)r->ctx->token[row] * hidden;
    float *x = r->ctx->x + (size_t)row * hidden;
    if (embed->dtype == QK_BF16)
        r->ops->bf16_to_f32(x, (const qk_bf16 *)embed->data + at, hidden);
    else
        memcpy(x, (const float *)embed->data + at, hidden * sizeof(*x));

    float *cos_sin = r->ctx->cos_sin + (size_t)row * r->shape->head_dim;
    for (uint32_t i = 0; i < half; i++) {
        double angle = r->model->inv_freq[i] * (double)r->ctx->position[row];
        cos_sin[i] = (float)(cos(angle) * (double)r->shape->rope_factor);
        cos_sin[half + i] = (float)(sin(angle) * (double)r->shape->rope_factor);
    }
}

static void norm_row(const run *r, uint32_t row, const float *weight)
{
    const size_t at = (size_t)row * r->shape->hidden;
    r->ops->rms_norm(r->ctx->norm + at, r->ctx->x + at, weight, r->shape->hidden, r->shape->rms_eps);
}

static void attn_norm_row(void *user, uint32_t row, uint32_t worker)
{
    const run *r = user;
    norm_row(r, row, r->layer->attn_norm);
}

static void ffn_norm_row(void *user, uint32_t row, uint32_t worker)
{
    const run *r = user;
    norm_row(r, row, r->layer->ffn_norm);
}

static void final_norm_row(void *user, uint32_t row, uint32_t worker)
{
    const run *r = user;
    norm_row(r, row, r->model->final_norm);
}

/* A vector of @token to its place in a head's K or V slice. */
static void store(const run *r, const qk_kv_layout *layout, char *slice, uint32_t token, const float *from)
{
    const uint32_t dim = r->shape->head_dim;
    char *to = slice + token * (size_t)layout->token_stride;
    if (layout->dtype == QK_BF16)
        r->ops->f32_to_bf16((qk_bf16 *)(void *)to, from, dim);
    else if (layout->dtype == QK_I8)
        r->ops->f32_to_i8((int8_t *)to, (qk_f16 *)(void *)(slice + layout->scale_offset) + token, from, dim);
    else
        memcpy(to, from, dim * sizeof(*from));
}

/* Norm and rotation of the row's heads; its key and value go to their page. */
static void heads_row(void *user, uint32_t row, uint32_t worker)
{
    const run *r = user;
    qk_cpu_context *ctx = r->ctx;
    const qk_kv_layout *layout = qk_cpu_layout(ctx, r->plan);
    const uint32_t dim = r->shape->head_dim, position = ctx->position[row];
    const float *cos_sin = ctx->cos_sin + (size_t)row * dim;
    float *q = ctx->q + (size_t)row * ctx->q_dim, *k = ctx->k + (size_t)row * ctx->kv_dim;
    const float *v = ctx->v + (size_t)row * ctx->kv_dim;
    for (uint32_t h = 0; h < r->shape->n_heads; h++, q += dim) {
        r->ops->rms_norm(q, q, r->layer->q_norm, dim, r->shape->rms_eps);
        r->ops->rope(q, cos_sin, dim);
    }
    const qk_seq *seq = &r->plan->seqs[ctx->row_seq[row]];
    char *page = (char *)(uintptr_t)r->plan->pages[seq->page_begin + position / QK_PAGE_TOKENS];
    page += r->layer_idx * layout->layer_stride;
    for (uint32_t g = 0; g < r->shape->n_kv_heads; g++, k += dim, v += dim, page += layout->head_stride) {
        r->ops->rms_norm(k, k, r->layer->k_norm, dim, r->shape->rms_eps);
        r->ops->rope(k, cos_sin, dim);
        store(r, layout, page, position % QK_PAGE_TOKENS, k);
        store(r, layout, page + layout->v_offset, position % QK_PAGE_TOKENS, v);
    }
}

/* ---- The step ------------------------------------------------------------------------------------------------ */

/* Positions, and tokens out of their slots. */
static qk_status resolve_rows(const run *r)
{
    qk_cpu_context *ctx = r->ctx;
    for (uint32_t s = 0; s < r->plan->n_seqs; s++) {
        const qk_seq *seq = &r->plan->seqs[s];
        for (uint32_t i = 0; i < seq->n_rows; i++) {
            const uint32_t row = seq->row_begin + i;
            int32_t token = r->plan->tokens[row];
            if (token < 0) {
                uint32_t slot = (uint32_t)~token;
                token = ctx->slots[slot];
                if (token < 0) {
                    char line[96];
                    snprintf(line, sizeof(line), "step: row %u takes slot %u, which no step has written", row,
                        slot);
                    return fail(r->step, QK_INVALID, line);
                }
            }
            ctx->token[row] = token;
            ctx->position[row] = seq->start + i;
            ctx->row_seq[row] = s;
        }
    }
    return QK_OK;
}

/* Moves the output rows to the front of x and attn. */
static void keep_output_rows(run *r)
{
    qk_cpu_context *ctx = r->ctx;
    const uint32_t hidden = r->shape->hidden;
    for (uint32_t i = 0; i < r->plan->n_outputs; i++) {
        const uint32_t row = r->plan->outputs[i].row; /* ascending: row >= i */
        if (row == i)
            continue;
        memcpy(ctx->x + (size_t)i * hidden, ctx->x + (size_t)row * hidden, hidden * sizeof(*ctx->x));
        memcpy(ctx->attn + (size_t)i * ctx->q_dim, ctx->attn + (size_t)row * ctx->q_dim,
            ctx->q_dim * sizeof(*ctx->attn));
    }
    r->n_rows = r->plan->n_outputs;
}

static qk_status run_layer(run *r, const qk_cpu_attend_plan *ap)
{
    qk_cpu_context *ctx = r->ctx;
    const qk_cpu_layer *layer = r->layer;
    for_rows(r, attn_norm_row, r->n_rows, r->shape->hidden);
    linear_stage qkv = {.r = r, .x = ctx->norm};
    add_part(&qkv, &layer->q, ctx->q);
    add_part(&qkv, &layer->k, ctx->k);
    add_part(&qkv, &layer->v, ctx->v);
    run_linear(&qkv);
    mark(r, QK_PART_PROJECT);
    for_rows(r, heads_row, r->n_rows, ctx->q_dim + 2 * ctx->kv_dim);
    mark(r, QK_PART_KV);

    qk_status status = qk_cpu_attend_layer(ap, r->layer_idx);
    if (status != QK_OK)
        return fail(r->step, status, "step: the outside partial function failed");
    if (r->layer_idx + 1 == r->shape->n_layers)
        keep_output_rows(r);
    mark(r, QK_PART_ATTEND);
    if (r->n_rows == 0)
        return QK_OK;

    linear_stage o = {.r = r, .x = ctx->attn, .then = THEN_ADD_TO_X};
    add_part(&o, &layer->o, ctx->proj);
    run_linear(&o);
    mark(r, QK_PART_PROJECT);
    for_rows(r, ffn_norm_row, r->n_rows, r->shape->hidden);
    linear_stage gate = {.r = r, .x = ctx->norm, .then = THEN_SILU_MUL};
    add_part(&gate, &layer->gate, ctx->gate);
    run_linear(&gate);
    linear_stage down = {.r = r, .x = ctx->gate, .then = THEN_ADD_TO_X};
    add_part(&down, &layer->down, ctx->proj);
    run_linear(&down);
    mark(r, QK_PART_MLP);
    return QK_OK;
}

static void sample_output(void *user, uint32_t index, uint32_t worker)
{
    const run *r = user;
    qk_cpu_context *ctx = r->ctx;
    const qk_output *output = &r->plan->outputs[index];
    const uint64_t vocab = r->shape->vocab;
    const float *logits = ctx->logits + index * vocab;
    qk_output_result *result = &r->step->outputs[index];
    if (output->flags & QK_OUTPUT_LOGITS)
        memcpy(r->step->logits + index * vocab, logits, vocab * sizeof(*logits));
    *result = (qk_output_result){.token = -1};
    if ((output->flags & QK_OUTPUT_SAMPLE) == 0)
        return;
    qk_seen *history = output->slot != QK_NO_SLOT ? ctx->history + output->slot * vocab : NULL;
    const qk_sample_scratch *scratch = &ctx->scratch[worker].sample;
    qk_sample_extras extras = {.history = history, .n_bias = output->n_bias};
    if (output->n_bias > 0)
        extras.bias = r->plan->biases + output->bias_begin;
    if (output->flags & QK_OUTPUT_MASK)
        extras.mask = r->plan->masks + (size_t)output->mask * qk_mask_words((uint32_t)vocab);
    qk_sample(logits, (uint32_t)vocab, &extras, &output->sampling, scratch, result);
    if (output->n_top > 0)
        qk_sample_top(logits, (uint32_t)vocab, output->n_top, scratch, r->step->tops + index * QK_TOP_MAX);
    if (output->slot != QK_NO_SLOT) {
        ctx->slots[output->slot] = result->token;
        history[result->token] = qk_seen_add(history[result->token], true);
    }
}

static bool is_cancelled(const run *r)
{
    return atomic_load(&r->step->cancel);
}

qk_status qk_cpu_step_run(qk_cpu_step *step)
{
    qk_cpu_context *ctx = (qk_cpu_context *)step->head.context;
    const qk_cpu_backend *backend = (const qk_cpu_backend *)step->head.backend;
    run r = {
        .step = step,
        .ctx = ctx,
        .model = (const qk_cpu_model *)ctx->head.model,
        .shape = &((const qk_cpu_model *)ctx->head.model)->head.shape,
        .ops = backend->ops,
        .pool = backend->pool,
        .plan = &step->plan,
        .n_rows = step->plan.n_rows,
    };
    step->result.profile = NULL;
    if (r.plan->profile) {
        step->profile = (qk_profile){0};
        step->result.profile = r.profile = &step->profile;
        r.marked_ns = now_ns();
    }
    if (is_cancelled(&r))
        return fail(step, QK_CANCELLED, "step: cancelled before it began");
    qk_status status = resolve_rows(&r);
    if (status != QK_OK)
        return status;
    qk_cpu_attend_plan ap;
    qk_cpu_attend_prepare(ctx, r.plan, &ap);
    for_rows(&r, begin_row, r.n_rows, r.shape->hidden + 16 * r.shape->head_dim);
    mark(&r, QK_PART_EMBED);

    for (r.layer_idx = 0; r.layer_idx < r.shape->n_layers; r.layer_idx++) {
        if (is_cancelled(&r))
            return fail(step, QK_CANCELLED, "step: cancelled between two layers");
        r.layer = &r.model->layers[r.layer_idx];
        status = run_layer(&r, &ap);
        if (status != QK_OK)
            return status;
    }
    if (is_cancelled(&r))
        return fail(step, QK_CANCELLED, "step: cancelled before its outputs");
    if (r.n_rows == 0)
        return QK_OK;
    for_rows(&r, final_norm_row, r.n_rows, r.shape->hidden);
    linear_stage head = {.r = &r, .x = ctx->norm};
    add_part(&head, &r.model->lm_head, ctx->logits);
    run_linear(&head);
    mark(&r, QK_PART_HEAD);
    if (is_cancelled(&r))
        return fail(step, QK_CANCELLED, "step: cancelled before its outputs");
    qk_pool_run(r.pool, sample_output, &r, r.plan->n_outputs);
    mark(&r, QK_PART_SAMPLE);
    return QK_OK;
}
