/* cpu-attend.c: a layer's attention, cut into jobs.
 *
 * The plan's rows are cut into tiles of up to 16 rows of one sequence, and keys into spans of QK_SPAN_TOKENS. One
 * (tile, kv head, span) is one call of the attend op; a row's spans are then merged from the first to the last. Two
 * ways lead to the same bits, since neither op looks at how it is called:
 *   folded: one job does all spans of a (tile, kv head), merging as it goes. For prefill, where tiles abound;
 *   split:  each span is a job of its own with its result in a split slot, and a second region folds. For decode over
 *           a long cache, where there are few tiles, and for tiles that wait for outside spans.
 * A row that leaves pages out attends to its chosen pages, another list for each kv head, as to a sequence of that many:
 * both ways as above.
 * The outside partial function runs as one more job of the first region, beside the others.
 *
 * COMPUTE thread, with the pool. */
#include "kernels/cpu/cpu-backend.h"
#include <math.h>
#include <stdlib.h>
#include <string.h>

#define SPAN_PAGES (QK_SPAN_TOKENS / QK_PAGE_TOKENS)
#define ALL_SPANS  UINT32_MAX
#define NO_SPLIT   UINT32_MAX

static bool span_is_outside(const qk_plan *plan, const qk_seq *seq, uint32_t span)
{
    return plan->pages[seq->page_begin + span * SPAN_PAGES] == 0;
}

/* Lists the outside items by row, then by span. */
static uint32_t list_items(qk_cpu_context *ctx, const qk_plan *plan)
{
    uint32_t n_items = 0;
    for (uint32_t s = 0; s < plan->n_seqs; s++) {
        const qk_seq *seq = &plan->seqs[s];
        const uint32_t n_spans = seq->start / QK_SPAN_TOKENS; /* that lie whole before the first row */
        ctx->seq_item[s] = n_items;
        ctx->seq_n_outside[s] = 0;
        for (uint32_t span = 0; span < n_spans; span++)
            ctx->seq_n_outside[s] += span_is_outside(plan, seq, span);
        if (ctx->seq_n_outside[s] == 0)
            continue;
        for (uint32_t row = seq->row_begin; row < seq->row_begin + seq->n_rows; row++)
            for (uint32_t span = 0; span < n_spans; span++)
                if (span_is_outside(plan, seq, span))
                    ctx->items[n_items++] = (qk_partial_item){.seq = s, .row = row, .span = span};
    }
    return n_items;
}

static uint32_t cut_tiles(qk_cpu_context *ctx, const qk_plan *plan, uint32_t *n_selects)
{
    uint32_t n_tiles = 0, n_chosen = 0;
    for (uint32_t s = 0; s < plan->n_seqs; s++) {
        const qk_seq *seq = &plan->seqs[s];
        const uint32_t n_left_out = seq->n_pages - qk_seq_n_attended(seq); /* 0, or it has one row */
        const uint32_t chosen = n_chosen;
        if (n_left_out > 0) {
            ctx->selects[(*n_selects)++] = n_tiles;
            n_chosen += qk_seq_n_attended(seq);
        }
        for (uint32_t r = 0; r < seq->n_rows; r += QK_CPU_ATTEND_ROWS_MAX) {
            uint32_t n = seq->n_rows - r < QK_CPU_ATTEND_ROWS_MAX ? seq->n_rows - r : QK_CPU_ATTEND_ROWS_MAX;
            ctx->tiles[n_tiles++] = (qk_cpu_tile){
                .seq = s,
                .row = seq->row_begin + r,
                .n_rows = n,
                .n_spans = (seq->start + r + n - 1 - n_left_out * QK_PAGE_TOKENS) / QK_SPAN_TOKENS + 1,
                .split = NO_SPLIT,
                .n_left_out = n_left_out,
                .chosen = chosen,
                .has_outside = ctx->seq_n_outside[s] > 0,
            };
        }
    }
    return n_tiles;
}

void qk_cpu_attend_prepare(qk_cpu_context *ctx, const qk_plan *plan, qk_cpu_attend_plan *out)
{
    const qk_shape *shape = &((qk_cpu_model *)ctx->head.model)->head.shape;
    const uint32_t n_threads = qk_pool_n_threads(((qk_cpu_backend *)ctx->head.backend)->pool);
    *out = (qk_cpu_attend_plan){.ctx = ctx, .plan = plan};
    out->n_items = list_items(ctx, plan);
    out->n_tiles = cut_tiles(ctx, plan, &out->n_selects);

    /* With this many folded jobs the threads stay busy to the end without splitting. */
    const bool few_jobs = (uint64_t)out->n_tiles * shape->n_kv_heads < 4 * (uint64_t)n_threads;
    uint32_t n_split = 0;
    /* Late tiles see the most spans: they go first. */
    for (uint32_t t = out->n_tiles; t-- > 0;) {
        qk_cpu_tile *tile = &ctx->tiles[t];
        const uint64_t n_slots = (uint64_t)tile->n_rows * tile->n_spans;
        const bool wants_split = tile->has_outside || (few_jobs && tile->n_spans > 1);
        if (wants_split && n_slots <= ctx->n_split_max - n_split) {
            const qk_seq *seq = &plan->seqs[tile->seq];
            tile->split = n_split;
            n_split += (uint32_t)n_slots;
            for (uint32_t span = 0; span < tile->n_spans; span++)
                if (!tile->has_outside || !span_is_outside(plan, seq, span))
                    ctx->jobs[out->n_jobs++] = (qk_cpu_attend_job){.tile = t, .span = span};
            ctx->folds[out->n_folds++] = (qk_cpu_attend_job){.tile = t, .span = ALL_SPANS};
        } else if (tile->has_outside) {
            ctx->folds[out->n_folds++] = (qk_cpu_attend_job){.tile = t, .span = ALL_SPANS};
        } else {
            ctx->jobs[out->n_jobs++] = (qk_cpu_attend_job){.tile = t, .span = ALL_SPANS};
        }
    }
}

typedef struct {
    const qk_cpu_attend_plan *ap;
    uint32_t layer;
    qk_status partial_status;
} layer_call;

/* Keys of the span that a row at @position sees. */
static uint32_t keys_seen(uint32_t position, uint32_t span)
{
    uint32_t before = span * QK_SPAN_TOKENS;
    if (position < before)
        return 0;
    return position + 1 - before < QK_SPAN_TOKENS ? position + 1 - before : QK_SPAN_TOKENS;
}

/* Of row @r of the tile: its position, among its chosen pages where it leaves some out. */
static uint32_t position_of(const qk_cpu_context *ctx, const qk_cpu_tile *tile, uint32_t r)
{
    return ctx->position[tile->row + r] - tile->n_left_out * QK_PAGE_TOKENS;
}

/* Rows of the tile that see nothing of the span: a prefix of it. */
static uint32_t first_row_of(const qk_cpu_context *ctx, const qk_cpu_tile *tile, uint32_t span)
{
    uint32_t r = 0;
    while (r < tile->n_rows && keys_seen(position_of(ctx, tile, r), span) == 0)
        r++;
    return r;
}

/* One span of rows @first.. of a tile for one kv head. Row r's result goes to @out + r * out_stride (n_q heads of
 * head_dim) and @lse + r * lse_stride. */
static void attend_span(const layer_call *call, const qk_cpu_tile *tile, uint32_t kv_head, uint32_t span,
    uint32_t first, float *out, size_t out_stride, float *lse, size_t lse_stride, float *scratch)
{
    qk_cpu_context *ctx = call->ap->ctx;
    const qk_plan *plan = call->ap->plan;
    const qk_seq *seq = &plan->seqs[tile->seq];
    const qk_kv_layout *layout = qk_cpu_layout(ctx, plan);
    const uint32_t dim = ((qk_cpu_model *)ctx->head.model)->head.shape.head_dim;
    const void *k_pages[SPAN_PAGES], *v_pages[SPAN_PAGES];
    uint32_t n_keys[QK_CPU_ATTEND_ROWS_MAX];
    const float *q[QK_CPU_ATTEND_ROWS_MAX];
    float *outs[QK_CPU_ATTEND_ROWS_MAX], *lses[QK_CPU_ATTEND_ROWS_MAX];
    uint32_t n = 0;
    for (uint32_t r = first; r < tile->n_rows; r++, n++) {
        n_keys[n] = keys_seen(position_of(ctx, tile, r), span);
        q[n] = ctx->q + (size_t)(tile->row + r) * ctx->q_dim + (size_t)kv_head * ctx->n_q * dim;
        outs[n] = out + r * out_stride;
        lses[n] = lse + r * lse_stride;
    }
    const uint32_t n_pages = (n_keys[n - 1] + QK_PAGE_TOKENS - 1) / QK_PAGE_TOKENS;
    const uint64_t offset = call->layer * layout->layer_stride + kv_head * layout->head_stride;
    const uint32_t *chosen = tile->n_left_out == 0
                                 ? NULL
                                 : ctx->chosen + kv_head * (size_t)ctx->head.params.select_max + tile->chosen;
    for (uint32_t p = 0; p < n_pages; p++) {
        const uint32_t i = span * SPAN_PAGES + p;
        const uint64_t address = plan->pages[seq->page_begin + (chosen != NULL ? chosen[i] : i)];
        const char *page = (const char *)(uintptr_t)(address & ~(uint64_t)QK_PAGE_HOST);
        k_pages[p] = page + offset;
        v_pages[p] = page + offset + layout->v_offset;
    }
    const qk_cpu_attend a = {
        .k_pages = k_pages,
        .v_pages = v_pages,
        .token_stride = layout->token_stride,
        .head_dim = dim,
        .n_q = ctx->n_q,
        .n_rows = n,
        .n_keys = n_keys,
        .q = q,
        .scale = (float)(1.0 / sqrt((double)dim)),
        .out = outs,
        .lse = lses,
        .scratch = scratch,
        .scale_offset = layout->scale_offset,
    };
    qk_cpu_attend_pages(((qk_cpu_backend *)ctx->head.backend)->ops, layout->dtype, &a);
}

/* All spans of a (tile, kv head), from the first to the last, into ctx->attn. A span's result comes from the outside
 * partial, from its split slots, or is computed here. */
static void fold_tile(
    const layer_call *call, const qk_cpu_tile *tile, uint32_t kv_head, qk_cpu_scratch *scratch)
{
    qk_cpu_context *ctx = call->ap->ctx;
    const qk_plan *plan = call->ap->plan;
    const qk_seq *seq = &plan->seqs[tile->seq];
    const qk_shape *shape = &((qk_cpu_model *)ctx->head.model)->head.shape;
    const qk_cpu_ops *ops = ((qk_cpu_backend *)ctx->head.backend)->ops;
    const uint32_t dim = shape->head_dim, n_q = ctx->n_q, n_heads = shape->n_heads;
    const size_t head = (size_t)kv_head * n_q;

    float *acc = ctx->attn + (size_t)tile->row * ctx->q_dim + head * dim;
    float *acc_lse = ctx->attn_lse + (size_t)tile->row * n_heads + head;
    for (uint32_t r = 0; r < tile->n_rows; r++)
        for (uint32_t h = 0; h < n_q; h++)
            acc_lse[(size_t)r * n_heads + h] = -INFINITY;

    for (uint32_t span = 0, n_outside = 0; span < tile->n_spans; span++) {
        const uint32_t first = first_row_of(ctx, tile, span);
        const float *out, *lse;
        size_t out_stride = ctx->q_dim, lse_stride = n_heads; /* between rows */
        if (tile->has_outside && span_is_outside(plan, seq, span)) {
            const uint32_t per_row = ctx->seq_n_outside[tile->seq];
            const size_t item =
                ctx->seq_item[tile->seq] + (size_t)(tile->row - seq->row_begin) * per_row + n_outside++;
            out = ctx->partial_out + item * ctx->q_dim + head * dim;
            lse = ctx->partial_lse + item * n_heads + head;
            out_stride *= per_row;
            lse_stride *= per_row;
        } else if (tile->split != NO_SPLIT) {
            const size_t slot = tile->split + (size_t)span * tile->n_rows;
            out = ctx->split_out + slot * ctx->q_dim + head * dim;
            lse = ctx->split_lse + slot * n_heads + head;
        } else if (span == 0) {
            /* The first span becomes the accumulator exactly: computed in its place. */
            attend_span(
                call, tile, kv_head, span, first, acc, out_stride, acc_lse, lse_stride, scratch->attend);
            continue;
        } else {
            out_stride = (size_t)n_q * dim;
            lse_stride = n_q;
            attend_span(call, tile, kv_head, span, first, scratch->span_out, out_stride, scratch->span_lse,
                lse_stride, scratch->attend);
            out = scratch->span_out;
            lse = scratch->span_lse;
        }
        for (uint32_t r = first; r < tile->n_rows; r++)
            ops->merge(acc + (size_t)r * ctx->q_dim, acc_lse + (size_t)r * n_heads, out + r * out_stride,
                lse + r * lse_stride, n_q, dim);
    }
}

static void run_job(void *user, uint32_t index, uint32_t worker)
{
    layer_call *call = user;
    const qk_cpu_attend_plan *ap = call->ap;
    qk_cpu_context *ctx = ap->ctx;
    const qk_shape *shape = &((qk_cpu_model *)ctx->head.model)->head.shape;
    if (ap->n_items > 0 && index-- == 0) {
        const qk_partial_args args = {
            .plan = ap->plan,
            .layer = call->layer,
            .n_items = ap->n_items,
            .items = ctx->items,
            .q = ctx->q,
            .out = ctx->partial_out,
            .lse = ctx->partial_lse,
        };
        call->partial_status = ctx->head.params.partial(ctx->head.params.partial_user, &args);
        return;
    }
    const qk_cpu_attend_job *job = &ctx->jobs[index / shape->n_kv_heads];
    const uint32_t kv_head = index % shape->n_kv_heads;
    const qk_cpu_tile *tile = &ctx->tiles[job->tile];
    if (job->span == ALL_SPANS) {
        fold_tile(call, tile, kv_head, &ctx->scratch[worker]);
        return;
    }
    const size_t slot = tile->split + (size_t)job->span * tile->n_rows, head = (size_t)kv_head * ctx->n_q;
    attend_span(call, tile, kv_head, job->span, first_row_of(ctx, tile, job->span),
        ctx->split_out + slot * ctx->q_dim + head * shape->head_dim, ctx->q_dim,
        ctx->split_lse + slot * shape->n_heads + head, shape->n_heads, ctx->scratch[worker].attend);
}

static void run_fold(void *user, uint32_t index, uint32_t worker)
{
    const layer_call *call = user;
    qk_cpu_context *ctx = call->ap->ctx;
    const uint32_t n_kv_heads = ((qk_cpu_model *)ctx->head.model)->head.shape.n_kv_heads;
    const qk_cpu_tile *tile = &ctx->tiles[ctx->folds[index / n_kv_heads].tile];
    fold_tile(call, tile, index % n_kv_heads, &ctx->scratch[worker]);
}

qk_status qk_cpu_attend_layer(const qk_cpu_attend_plan *ap, uint32_t layer)
{
    qk_pool *pool = ((qk_cpu_backend *)ap->ctx->head.backend)->pool;
    const uint32_t n_kv_heads = ((qk_cpu_model *)ap->ctx->head.model)->head.shape.n_kv_heads;
    layer_call call = {.ap = ap, .layer = layer, .partial_status = QK_OK};
    qk_cpu_select_layer(ap, layer);
    qk_pool_run(pool, run_job, &call, ap->n_jobs * n_kv_heads + (ap->n_items > 0));
    if (call.partial_status != QK_OK)
        return call.partial_status;
    qk_pool_run(pool, run_fold, &call, ap->n_folds * n_kv_heads);
    return QK_OK;
}
