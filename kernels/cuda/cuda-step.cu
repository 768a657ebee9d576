/* cuda-step.cu: contexts and steps: workspace, penalty history, parameter buffers, decode graphs, submission, results.
 *
 * A decode step (every sequence has one new row, at most QKC_SMALL_ROWS of them, some outputs) is one graph launch: each
 * step object has a graph for each power of two rows, captured from qkc_layers() when the step is made. All that changes
 * from step to step lies in the step's mapped pinned plan, which the graph's first kernel copies to the device. Decode
 * steps with sequences that leave pages out have graphs of their own, for a few sizes of the choice: each is captured
 * when it is first needed, since most conversations never need one. Other steps are launched kernel by kernel, decode
 * steps with outside pages among them (cuda-partial.cu).
 *
 * Invariants
 *  1. Each block of memory is laid out by one function that also counts it, so that qkc_context_measure() cannot
 *     disagree with qkc_context_new(). After qkc_step_new() nothing here allocates, but for such a graph: where there is
 *     no room for it, the step is launched kernel by kernel.
 *  2. The workspace belongs to the context: steps run one after the other on COMPUTE, and with them copies of logits to
 *     the host and of histories to the device. The first kernel of a step is no programmatic launch, so it starts after
 *     all of that.
 *  3. Slots and history change in the sampler alone (cuda-ops.h), when the step was not given up, and by set_history.
 *  4. The host touches a step's pinned memory only while the step does not run, but for the cancel word.
 *  5. A running step ends in finish(), once, found by poll or wait; both then report the same status. With outside pages
 *     that is when the device has ended it and the partial function's thread has left it.
 *  6. On a lost device freeing leaves the driver alone: the memory goes with its context.
 *  7. A step that times its parts is launched kernel by kernel, with an event behind each part.
 *
 * Device memory for the reference model with 2,048 rows, 91 outputs and 64 slots, in MiB: x 20; a block of 86 that is
 * in turn norm + gate,up + act (gate,up for at most 1,024 rows at a time), q + qkv (40), q + attention + its parts, the
 * decode attention's parts (65) and the logits (53); cublasLt's workspace 32; rows of few and of outputs 7; history 19;
 * RoPE tables 1; the sampler's less than 1: 158 in all. A ring for host pages adds its bytes and 34 of states of tiles
 * between two of its parts. Host memory: 16 pinned a step, for 27 rows of raw logits, and 53
 * of address space that takes memory when raw logits are asked for. Selective attention adds 8 bytes for each entry of
 * the page table to both, and lists of pages: 1 MiB for 16,384 pages.
 *
 * Engine thread, but for cancel. */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>
#include "kernels/cuda/cuda-step.h"
extern "C" {
#include "kernels/cpu/sample.h"
}

#define ALIGN_BYTES    256u
#define UP_ROWS_MAX    1024u
#define DOWN_ROWS_MAX  2048u
#define PART_ROWS_MIN  4096u /* rows of attention parts, unless fewer do */
#define WARM_UP_PAGES  64u   /* of the steps that load kernels: keys enough for parts */
#define SPIN_NS        200000
#define SLEEP_NS       30000
#define STATUS_NOT_YET ((uint32_t)QK_PENDING)

static qkc_backend *backend_of(const qkc_context *ctx)
{
    return (qkc_backend *)ctx->head.backend;
}

static const qk_shape *shape_of(const qkc_context *ctx)
{
    return &((const qkc_model *)ctx->head.model)->head.shape;
}

static cudaStream_t compute(const qkc_context *ctx)
{
    return backend_of(ctx)->streams[QK_STREAM_COMPUTE];
}

/* At the head of every call that uses the driver. */
static qk_status enter(qkc_backend *backend)
{
    if (qkc_refuse(backend))
        return QK_DEVICE_LOST;
    cudaError_t code = cudaSetDevice(backend->device);
    return code == cudaSuccess ? QK_OK
                               : qkc_fail(backend, QK_UNSUPPORTED, code, "selecting %s", backend->name);
}

/* ---- Blocks -------------------------------------------------------------------------------------------------- */

/* Hands out aligned pieces of one block, or only counts them when it has none. */
typedef struct {
    char *base;
    uint64_t used;
    bool overflow;
} arena;

static void *take_bytes(arena *a, uint64_t n, uint64_t element_bytes)
{
    uint64_t bytes, end;
    if (__builtin_mul_overflow(n, element_bytes, &bytes) ||
        __builtin_add_overflow(bytes, ALIGN_BYTES - 1, &bytes) ||
        __builtin_add_overflow(a->used, bytes / ALIGN_BYTES * ALIGN_BYTES, &end)) {
        a->overflow = true;
        return NULL;
    }
    void *piece = a->base != NULL ? a->base + a->used : NULL;
    a->used = end;
    return piece;
}

template <typename T> static void take(arena *a, T **field, uint64_t n)
{
    *field = (T *)take_bytes(a, n, sizeof(T));
}

static uint32_t min_u32(uint32_t a, uint32_t b)
{
    return a < b ? a : b;
}

static uint32_t round_up(uint32_t n, uint32_t unit)
{
    return (n + unit - 1) / unit * unit;
}

static void set_dimensions(qkc_context *ctx)
{
    const qk_shape *shape = shape_of(ctx);
    const qk_context_params *p = &ctx->head.params;
    ctx->q_dim = shape->n_heads * shape->head_dim;
    ctx->kv_dim = shape->n_kv_heads * shape->head_dim;
    ctx->qkv_dim = ctx->q_dim + 2 * ctx->kv_dim;
    ctx->small_max = min_u32(p->rows_max, QKC_SMALL_ROWS);
    ctx->decode_max = min_u32(ctx->small_max, p->seqs_max);
    ctx->rows_pad = round_up(p->rows_max, QKC_GEMM_ROWS_UNIT);
    ctx->up_max = min_u32(ctx->rows_pad, UP_ROWS_MAX);
    ctx->down_max = min_u32(ctx->rows_pad, DOWN_ROWS_MAX);
    ctx->tiles_max = qkc_tiles_max(p->rows_max, p->seqs_max, shape->n_heads, shape->n_kv_heads);
}

static uint64_t max_u64(uint64_t a, uint64_t b)
{
    return a > b ? a : b;
}

/* What need not outlive its stage of a layer. Each stage's buffers begin at @begin; @decode_end is where the decode
 * attention's workspace ends, which begins before @begin with what has to stay. The parts get what is left. */
static void lay_out_shared(qkc_context *ctx, arena *a, uint64_t decode_end)
{
    const qk_shape *shape = shape_of(ctx);
    const qk_context_params *p = &ctx->head.params;
    const bool many = p->rows_max > QKC_SMALL_ROWS;
    const uint64_t begin = a->used, rows = many ? ctx->rows_pad : p->rows_max;
    uint64_t end = decode_end;

    take(a, &ctx->logits, (uint64_t)p->outputs_max * shape->vocab);
    end = max_u64(end, a->used);
    a->used = begin;
    take(a, &ctx->select_keys, p->select_max > 0 ? (uint64_t)shape->n_kv_heads * p->pages_max : 0);
    end = max_u64(end, a->used);
    a->used = begin;
    if (many) {
        take(a, &ctx->norm, rows * shape->hidden);
        take(a, &ctx->gate_up, (uint64_t)ctx->up_max * 2 * shape->ffn);
        take(a, &ctx->act, (uint64_t)ctx->down_max * shape->ffn);
        end = max_u64(end, a->used);
        /* q takes norm's place once QKV is computed, which must not lie in either. */
        a->used = begin;
        take_bytes(a, rows * shape->hidden, sizeof(*ctx->norm));
        const uint64_t after_norm = a->used;
        a->used = begin;
        take(a, &ctx->q, rows * ctx->q_dim);
        a->used = max_u64(a->used, after_norm);
        const uint64_t after_q = a->used;
        take(a, &ctx->qkv, rows * ctx->qkv_dim);
        end = max_u64(end, a->used);
        a->used = after_q;
        take(a, &ctx->attn, rows * ctx->q_dim);
    } else {
        take(a, &ctx->q, rows * ctx->q_dim);
    }
    const uint64_t row_bytes = ((uint64_t)ctx->q_dim + shape->n_heads) * sizeof(float);
    const uint64_t left = end > a->used + 2 * ALIGN_BYTES ? (end - a->used - 2 * ALIGN_BYTES) / row_bytes : 0;
    const uint64_t least = min_u32(qkc_part_rows_max(p->rows_max), PART_ROWS_MIN);
    ctx->part_rows_max = (uint32_t)max_u64(left < UINT32_MAX ? left : UINT32_MAX, least);
    take(a, &ctx->parts_out, (uint64_t)ctx->part_rows_max * ctx->q_dim);
    take(a, &ctx->parts_lse, (uint64_t)ctx->part_rows_max * shape->n_heads);
    a->used = max_u64(end, a->used);
}

/* Whether some steps attend to ranges of keys in turn. */
static bool has_ranges(const qkc_context *ctx)
{
    return ctx->head.params.ring_bytes > 0 || ctx->widened.n_pages > 0;
}

static void lay_out_device(qkc_context *ctx, arena *a)
{
    const qk_shape *shape = shape_of(ctx);
    const qk_context_params *p = &ctx->head.params;
    const uint64_t rows = p->rows_max, outputs = p->outputs_max;
    const bool many = rows > QKC_SMALL_ROWS;

    take(a, &ctx->plan.counts, 4);
    take(a, &ctx->plan.state, 4);
    take(a, &ctx->plan.token, rows);
    take(a, &ctx->plan.position, rows);
    take(a, &ctx->plan.row_seq, rows);
    take(a, &ctx->plan.cos_sin, rows * shape->head_dim);
    take(a, &ctx->plan.seqs, p->seqs_max);
    take(a, &ctx->plan.pages, p->pages_max + (uint64_t)shape->n_kv_heads * p->select_max);
    take(a, &ctx->bounds, p->select_max > 0 ? p->pages_max : 0);
    take(a, &ctx->plan.outputs, outputs);
    take(a, &ctx->x, (uint64_t)ctx->rows_pad * shape->hidden);
    take(a, &ctx->small_qkv, (uint64_t)ctx->small_max * ctx->qkv_dim);
    take(a, &ctx->small_attn, (uint64_t)ctx->small_max * ctx->q_dim);
    take(a, &ctx->small_act, (uint64_t)ctx->small_max * shape->ffn);
    const uint64_t wide = many || ctx->small_max > 1 ? QKC_SMALL_ROWS : 0;
    take(a, &ctx->wide_in, wide * max_u64(shape->hidden, ctx->q_dim));
    take(a, &ctx->wide_up, wide * max_u64(2 * shape->ffn, ctx->q_dim));
    take(a, &ctx->wide_act, wide * shape->ffn);
    take(a, &ctx->wide_squares, wide * QKC_LINEAR_HOPPER_GROUPS);
    take(a, &ctx->out_x, many ? outputs * shape->hidden : 0);
    take(a, &ctx->out_attn, many ? outputs * ctx->q_dim : 0);
    take(a, &ctx->tail_counts, many ? (outputs + QKC_SMALL_ROWS - 1) / QKC_SMALL_ROWS * 4 : 0);
    take(a, &ctx->tiles, ctx->tiles_max);
    take(a, &ctx->merges, ctx->tiles_max);
    take(a, &ctx->partial_index, p->partial_max > 0 ? ctx->decode_max : 0);
    take(a, &ctx->partial_count, p->partial_max > 0 ? 1 : 0);
    take(a, &ctx->partial_lse, p->partial_max > 0 ? (uint64_t)ctx->decode_max * shape->n_heads : 0);
    take(a, &ctx->arrived, QKC_CHAIN_MAX * shape->n_layers);
    take(a, &ctx->slots, p->slots_max);
    take(a, &ctx->history, (uint64_t)p->slots_max * shape->vocab);
    take(a, &ctx->masks, (uint64_t)p->masks_max * qk_mask_words(shape->vocab));
    take(a, &ctx->biases, p->biases_max);
    ctx->gemm_workspace = take_bytes(a, many ? QKC_GEMM_WORKSPACE_BYTES : 0, 1);
    ctx->sample_workspace = take_bytes(a, qkc_sample_bytes(p->outputs_max, shape->vocab), 1);

    if (p->ring_bytes > 0) {
        qkc_ring *ring = &ctx->ring;
        ring->memory = (char *)take_bytes(a, p->ring_bytes, 1);
        take(a, &ring->places, p->pages_max);
        take(a, &ring->scattered, p->pages_max);
    }
    if (ctx->widened.n_pages > 0) {
        ctx->widened.memory =
            (char *)take_bytes(a, ctx->widened.n_pages * ctx->widened.layout.layer_stride, 1);
        take(a, &ctx->widened.pages, p->pages_max);
    }
    if (has_ranges(ctx))
        take(a, &ctx->ring.state, rows * shape->n_heads * (shape->head_dim + QKC_STATE_EXTRA));

    /* Only the beginning of the decode attention's workspace, the part that no sequence needs, has to stay as it is. */
    const uint64_t decode_begin = a->used;
    ctx->decode_workspace =
        take_bytes(a, qkc_attend_decode_bytes(0, shape->n_heads, shape->n_kv_heads, shape->head_dim), 1);
    lay_out_shared(ctx, a,
        decode_begin +
            qkc_attend_decode_bytes(ctx->decode_max, shape->n_heads, shape->n_kv_heads, shape->head_dim));
}

static void lay_out_host(qkc_context *ctx, arena *a)
{
    for (uint32_t i = 0; i < QKC_HISTORY_STAGES; i++)
        take(a, &ctx->stage[i], ctx->head.params.slots_max > 0 ? shape_of(ctx)->vocab : 0);
    take(a, &ctx->slots_copy, ctx->head.params.slots_max);
    const uint64_t rows = ctx->head.params.partial_max > 0 ? ctx->decode_max : 0;
    take(a, &ctx->partial_q, rows * ctx->q_dim);
    take(a, &ctx->partial_folded, rows * ctx->q_dim);
    take(a, &ctx->partial_folded_lse, rows * shape_of(ctx)->n_heads);
}

static void lay_out_stream(qkc_stream *stream, const qk_context_params *p, arena *a)
{
    const uint64_t n_groups = p->pages_max / (QK_SPAN_TOKENS / QK_PAGE_TOKENS) + (uint64_t)p->seqs_max;
    take(a, &stream->is_streamed, p->seqs_max);
    take(a, &stream->seqs, p->seqs_max);
    take(a, &stream->groups, n_groups);
    take(a, &stream->ranges, 2 * (n_groups + p->seqs_max));
    take(a, &stream->runs, p->pages_max);
    take(a, &stream->scattered, p->pages_max);
    take(a, &stream->places, p->pages_max);
    take(a, &stream->order, p->pages_max);
}

static void lay_out_step(qkc_step *step, arena *a)
{
    const qkc_context *ctx = (const qkc_context *)step->head.context;
    const qk_context_params *p = &ctx->head.params;
    const uint64_t vocab = shape_of(ctx)->vocab;
    take(a, &step->counts, QKC_PLAN_READERS);
    take(a, &step->rows, round_up(p->rows_max, QKC_LINE_ROWS));
    take(a, &step->cancel, 1);
    take(a, &step->status_word, 1);
    take(a, &step->plan.tokens, p->rows_max);
    take(a, &step->plan.seqs, p->seqs_max);
    take(a, &step->plan.outputs, p->outputs_max);
    take(a, &step->results, p->outputs_max);
    take(a, &step->tops, (uint64_t)p->outputs_max * QK_TOP_MAX);
    step->plan.masks = NULL;
    step->plan.biases = NULL;
    if (p->masks_max > 0)
        take(a, &step->plan.masks, (uint64_t)p->masks_max * qk_mask_words((uint32_t)vocab));
    if (p->biases_max > 0)
        take(a, &step->plan.biases, p->biases_max);
    take(a, &step->plan.pages, p->pages_max);
    step->plan.host_pages = NULL;
    if (p->partial_max > 0)
        take(a, &step->plan.host_pages, p->pages_max);
    step->plan.bounds = NULL;
    if (p->select_max > 0)
        take(a, &step->plan.bounds, p->pages_max);
    take(a, &step->tiles, ctx->tiles_max);
    take(a, &step->merges, ctx->tiles_max);
    take(a, &step->staged, p->logits_max * vocab);
    if (has_ranges(ctx))
        lay_out_stream(&step->stream, p, a);
    if (p->partial_max > 0) {
        take(a, &step->outside.ready, shape_of(ctx)->n_layers);
        take(a, &step->outside.answer, shape_of(ctx)->n_layers);
        take(a, &step->outside.index, ctx->decode_max);
        take(a, &step->outside.items, p->partial_max);
    }
    if (p->logits_max > 0 &&
        __builtin_mul_overflow((uint64_t)p->outputs_max * sizeof(float), vocab, &step->logits_bytes))
        a->overflow = true;
}

/* ---- Context ------------------------------------------------------------------------------------------------- */

const qk_kv_layout *qkc_layout_of(const qkc_context *ctx, uint32_t kv_class)
{
    const qk_context_params *p = &ctx->head.params;
    if (kv_class == 0)
        return &p->layout;
    return kv_class == 1 && p->layout_1.page_bytes > 0 ? &p->layout_1 : NULL;
}

static qk_status check_layout(qkc_context *ctx, const qk_kv_layout *layout, const char *name)
{
    qkc_backend *backend = backend_of(ctx);
    if (layout->dtype != QK_BF16 && layout->dtype != QK_I8)
        return qkc_fail(backend, QK_UNSUPPORTED, cudaSuccess,
            "context: %s.dtype is f32, but the CUDA backend keeps KV in bf16 or int8", name);
    if (layout->token_stride % 16 != 0 || layout->v_offset % 16 != 0 || layout->head_stride % 16 != 0 ||
        layout->layer_stride % 16 != 0 || layout->page_bytes % 16 != 0 || layout->scale_offset % 16 != 0)
        return qkc_fail(backend, QK_UNSUPPORTED, cudaSuccess,
            "context: a stride of %s (token %u, value %llu, head %llu, layer %llu, page %llu, scale %llu) is "
            "not a multiple of 16 bytes",
            name, layout->token_stride, (unsigned long long)layout->v_offset,
            (unsigned long long)layout->head_stride, (unsigned long long)layout->layer_stride,
            (unsigned long long)layout->page_bytes, (unsigned long long)layout->scale_offset);
    return QK_OK;
}

/* What this backend does not run of what the interface allows. */
static qk_status check_params(qkc_context *ctx)
{
    qkc_backend *backend = backend_of(ctx);
    const qk_context_params *p = &ctx->head.params;
    const qk_shape *shape = shape_of(ctx);
    qk_status status;
    if ((status = check_layout(ctx, &p->layout, "layout")) != QK_OK)
        return status;
    if (p->layout_1.page_bytes > 0 && (status = check_layout(ctx, &p->layout_1, "layout_1")) != QK_OK)
        return status;
    if ((shape->head_dim != 64 && shape->head_dim != 128) || shape->n_heads / shape->n_kv_heads > 8 ||
        shape->hidden % 8 != 0 || shape->ffn % 8 != 0)
        return qkc_fail(backend, QK_UNSUPPORTED, cudaSuccess,
            "context: head_dim %u, %u query heads a kv head, hidden %u, ffn %u: the CUDA backend runs "
            "head_dim 64 and "
            "128, at most 8 query heads a kv head, hidden and ffn that are multiples of 8",
            shape->head_dim, shape->n_heads / shape->n_kv_heads, shape->hidden, shape->ffn);
    qkc_widened_plan(ctx);
    return qkc_ring_plan(ctx);
}

/* Fills the sizes of @ctx, whose head is set. */
static qk_status count(qkc_context *ctx, qk_sizes *out)
{
    qk_status status = check_params(ctx);
    if (status != QK_OK)
        return status;
    qkc_step step = {};
    step.head.context = (qk_context *)ctx;
    arena device = {}, host = {}, of_step = {};
    set_dimensions(ctx);
    lay_out_device(ctx, &device);
    lay_out_host(ctx, &host);
    lay_out_step(&step, &of_step);
    uint64_t step_bytes, host_bytes;
    if (device.overflow || host.overflow || of_step.overflow ||
        __builtin_add_overflow(of_step.used, step.logits_bytes + sizeof(step), &step_bytes) ||
        step_bytes > UINT64_MAX / 4 ||
        __builtin_add_overflow(2 * step_bytes, host.used + sizeof(*ctx), &host_bytes) ||
        __builtin_add_overflow(host_bytes, qkc_partial_bytes(ctx), &host_bytes))
        return qkc_fail(backend_of(ctx), QK_NO_MEMORY, cudaSuccess, "context: sizes overflow 64 bits");
    ctx->block_bytes = device.used;
    ctx->host_bytes = host.used;
    out->device_bytes = device.used;
    out->host_bytes = host_bytes;
    return QK_OK;
}

qk_status qkc_context_measure(qk_model *model, const qk_context_params *params, qk_sizes *out)
{
    qkc_context ctx = {};
    ctx.head.backend = ((qkc_model *)model)->head.backend;
    ctx.head.model = model;
    ctx.head.params = *params;
    return count(&ctx, out);
}

/* A kind of product with its algorithms, which it then runs once each. */
static qk_status prepare_product(qkc_context *ctx, uint32_t rows, uint32_t n_out, uint32_t n_in,
    qk_dtype y_dtype, bool add, const qkc_bf16 *w, const qkc_bf16 *x, void *y)
{
    qk_status status = qkc_gemm_prepare(ctx->gemm, rows, n_out, n_in, y_dtype, add);
    if (status != QK_OK)
        return status;
    qkc_gemm_args a = {};
    a.x = x, a.w = w, a.y = y;
    a.y_dtype = y_dtype;
    a.n_rows = rows, a.n_out = n_out, a.n_in = n_in;
    a.add = add;
    return qkc_gemm_warm(ctx->gemm, compute(ctx), ctx->gemm_workspace, &a);
}

static qk_status prepare_products(qkc_context *ctx)
{
    qkc_backend *backend = backend_of(ctx);
    const qk_shape *shape = shape_of(ctx);
    const qkc_layer *layer = &((const qkc_model *)ctx->head.model)->layers[0];
    qk_status status = QK_OK;
    if (ctx->head.params.rows_max <= QKC_SMALL_ROWS)
        return QK_OK;
    if (backend->gemm == NULL)
        status = qkc_gemm_new(backend, &backend->gemm);
    ctx->gemm = backend->gemm;
    if (status == QK_OK)
        status = prepare_product(
            ctx, ctx->rows_pad, ctx->qkv_dim, shape->hidden, QK_BF16, false, layer->qkv, ctx->norm, ctx->qkv);
    if (status == QK_OK)
        status = prepare_product(
            ctx, ctx->rows_pad, shape->hidden, ctx->q_dim, QK_F32, true, layer->o, ctx->attn, ctx->x);
    if (status == QK_OK)
        status = prepare_product(ctx, ctx->up_max, 2 * shape->ffn, shape->hidden, QK_BF16, false,
            layer->gate_up, ctx->norm, ctx->gate_up);
    if (status == QK_OK)
        status = prepare_product(
            ctx, ctx->down_max, shape->hidden, shape->ffn, QK_F32, true, layer->down, ctx->act, ctx->x);
    if (status == QK_OK)
        status = prepare_product(ctx, QKC_SMALL_ROWS, ctx->qkv_dim, shape->hidden, QK_F32, false, layer->qkv,
            ctx->wide_in, ctx->small_qkv);
    /* Logits of fewer outputs have not the room for a whole unit of rows. */
    if (status == QK_OK && ctx->head.params.outputs_max >= QKC_SMALL_ROWS)
        status = prepare_product(ctx, QKC_SMALL_ROWS, shape->vocab, shape->hidden, QK_F32, false,
            ((const qkc_model *)ctx->head.model)->lm_head, ctx->wide_in, ctx->logits);
    return status;
}

/* Memory, events, the products' algorithms, zeroed counters and history, slots at -1. */
static qk_status start_context(qkc_context *ctx)
{
    qkc_backend *backend = backend_of(ctx);
    const qk_context_params *p = &ctx->head.params;
    cudaError_t code = cudaMalloc(&ctx->block, ctx->block_bytes);
    if (code != cudaSuccess)
        return qkc_fail_memory(backend, code, "the workspace", ctx->block_bytes);
    if (ctx->host_bytes > 0)
        code = cudaHostAlloc(&ctx->host_block, ctx->host_bytes, cudaHostAllocMapped | cudaHostAllocPortable);
    if (code != cudaSuccess)
        return qkc_fail(backend, QK_NO_MEMORY, code, "context: no host memory for %llu pinned bytes",
            (unsigned long long)ctx->host_bytes);
    arena device = {(char *)ctx->block, 0, false}, host = {(char *)ctx->host_block, 0, false};
    lay_out_device(ctx, &device);
    lay_out_host(ctx, &host);
    for (uint32_t i = 0; i < QKC_HISTORY_STAGES && code == cudaSuccess; i++)
        code = cudaEventCreateWithFlags(&ctx->stage_done[i], cudaEventDisableTiming | cudaEventBlockingSync);
    if (code == cudaSuccess)
        code = qkc_ring_start(ctx);
    if (code == cudaSuccess)
        code = cudaMemsetAsync(ctx->block, 0, ctx->block_bytes, compute(ctx));
    if (code == cudaSuccess && p->slots_max > 0)
        code = cudaMemsetAsync(ctx->slots, 0xff, p->slots_max * sizeof(*ctx->slots), compute(ctx));
    if (code != cudaSuccess)
        return qkc_fail(backend, QK_UNSUPPORTED, code, "context: clearing the workspace");
    qk_status status = prepare_products(ctx);
    if (status == QK_OK && p->partial_max > 0)
        status = qkc_partial_new(ctx);
    if (status != QK_OK)
        return status;
    code = cudaStreamSynchronize(compute(ctx));
    return code == cudaSuccess ? QK_OK
                               : qkc_fail(backend, QK_UNSUPPORTED, code, "context: trying the products");
}

qk_status qkc_context_new(qk_model *model, const qk_context_params *params, qk_context **out)
{
    qkc_backend *backend = (qkc_backend *)((qkc_model *)model)->head.backend;
    qk_status status = enter(backend);
    if (status != QK_OK)
        return status;
    qkc_context *ctx = (qkc_context *)calloc(1, sizeof(*ctx));
    if (ctx == NULL)
        return qkc_fail(backend, QK_NO_MEMORY, cudaSuccess, "context: no memory");
    ctx->head.backend = &backend->head;
    ctx->head.model = model;
    ctx->head.params = *params;
    qk_sizes sizes;
    status = count(ctx, &sizes);
    if (status == QK_OK)
        status = start_context(ctx);
    if (status != QK_OK) {
        qkc_context_free((qk_context *)ctx);
        return status;
    }
    *out = (qk_context *)ctx;
    return QK_OK;
}

void qkc_context_free(qk_context *context)
{
    qkc_context *ctx = (qkc_context *)context;
    qkc_partial_free(ctx->partial);
    if (!qkc_is_lost(backend_of(ctx))) {
        cudaSetDevice(backend_of(ctx)->device);
        cudaStreamSynchronize(compute(ctx)); /* a history may be on its way */
        for (uint32_t i = 0; i < QKC_HISTORY_STAGES; i++)
            if (ctx->stage_done[i] != NULL)
                cudaEventDestroy(ctx->stage_done[i]);
        qkc_ring_stop(ctx);
        cudaFreeHost(ctx->host_block);
        cudaFree(ctx->block);
        cudaGetLastError();
    }
    free(ctx);
}

/* Goes through one of a few pinned buffers, in COMPUTE's order: running steps keep the history that was theirs. */
qk_status qkc_context_set_history(
    qk_context *context, uint32_t slot, const int32_t *ids, size_t n_ids, size_t n_prompt)
{
    qkc_context *ctx = (qkc_context *)context;
    qkc_backend *backend = backend_of(ctx);
    const uint64_t vocab = shape_of(ctx)->vocab;
    const uint64_t bytes = vocab * sizeof(*ctx->history);
    uint16_t *history = ctx->history + slot * vocab;
    qk_status status = enter(backend);
    if (status != QK_OK)
        return status;
    cudaError_t code;
    if (n_ids == 0) {
        code = cudaMemsetAsync(history, 0, bytes, compute(ctx));
    } else {
        const uint32_t i = ctx->next_stage;
        ctx->next_stage = (i + 1) % QKC_HISTORY_STAGES;
        code = cudaEventSynchronize(ctx->stage_done[i]); /* at once when it was never recorded */
        if (code == cudaSuccess) {
            uint16_t *stage = ctx->stage[i];
            memset(stage, 0, bytes);
            for (size_t k = 0; k < n_ids; k++)
                stage[ids[k]] = qk_seen_add(stage[ids[k]], k >= n_prompt);
            code = cudaMemcpyAsync(history, stage, bytes, cudaMemcpyHostToDevice, compute(ctx));
        }
        if (code == cudaSuccess)
            code = cudaEventRecord(ctx->stage_done[i], compute(ctx));
    }
    return code == cudaSuccess ? QK_OK : qkc_fail(backend, QK_UNSUPPORTED, code, "history of slot %u", slot);
}

qk_status qkc_bounds_submit(qk_context *context, uint32_t kv_class, const qk_bounds *bounds, uint32_t n)
{
    qkc_context *ctx = (qkc_context *)context;
    qkc_backend *backend = backend_of(ctx);
    const qk_shape *shape = shape_of(ctx);
    qk_status status = enter(backend);
    if (status != QK_OK)
        return status;
    uint64_t bits = 0;
    for (uint32_t i = 0; i < n; i++)
        bits |= (bounds[i].page & ~(uint64_t)QK_PAGE_HOST) | bounds[i].bounds;
    if (bits % 16 != 0)
        return qkc_fail(backend, QK_UNSUPPORTED, cudaSuccess, "bounds: an address is not a multiple of 16");
    qkc_launch launch = {};
    launch.stream = compute(ctx);
    cudaError_t code = qkc_make_bounds(&launch, bounds, n, qkc_layout_of(ctx, kv_class), shape->n_layers,
        shape->n_kv_heads, shape->head_dim);
    return code == cudaSuccess ? QK_OK : qkc_fail(backend, QK_UNSUPPORTED, code, "bounds of %u pages", n);
}

/* ---- Graphs -------------------------------------------------------------------------------------------------- */

static qkc_launch launch_on(const qkc_backend *backend, cudaStream_t stream)
{
    qkc_launch launch = {};
    launch.stream = stream;
    launch.pdl = backend->pdl;
    launch.hopper = backend->hopper;
    launch.n_sms = backend->n_sms;
    return launch;
}

/* Rows of bucket @i: 1, 2, 4, ... up to the most sequences of a decode step; 0 when there is no such bucket. */
static uint32_t bucket_rows(const qkc_context *ctx, uint32_t i)
{
    if (i > 0 && (1u << (i - 1)) >= ctx->decode_max)
        return 0;
    return min_u32(1u << i, ctx->decode_max);
}

static_assert((1u << (QKC_BUCKETS_MAX - 1)) >= QKC_SMALL_ROWS, "a bucket for every decode step");

static qk_status make_graph(
    qkc_step *step, cudaStream_t stream, uint32_t kv_class, uint32_t kind, uint32_t bucket)
{
    qkc_context *ctx = (qkc_context *)step->head.context;
    qkc_backend *backend = backend_of(ctx);
    qkc_pass pass = {};
    pass.context = ctx;
    pass.step = step;
    pass.launch = launch_on(backend, stream);
    pass.kind = QKC_PASS_DECODE;
    pass.layout = qkc_layout_of(ctx, kv_class);
    pass.n_rows = bucket_rows(ctx, bucket);
    pass.n_outputs = min_u32(pass.n_rows, ctx->head.params.outputs_max);
    pass.n_scored_max = kind > 0 ? qkc_select_size_pages(kind - 1, ctx->head.params.pages_max) : 0;
    cudaGraphExec_t *exec = &step->graphs[kv_class][kind][bucket];

    /* Relaxed: the first launch of a kernel loads it, which stricter modes may refuse. The stream is ours alone. */
    cudaGraph_t graph = NULL;
    cudaError_t code = cudaStreamBeginCapture(stream, cudaStreamCaptureModeRelaxed);
    if (code != cudaSuccess)
        return qkc_fail(backend, QK_UNSUPPORTED, code, "step: beginning a graph");
    qk_status status = qkc_layers(&pass);
    code = cudaStreamEndCapture(stream, &graph);
    if (status == QK_OK && code == cudaSuccess)
        code = cudaGraphInstantiate(exec, graph, 0);
    if (status == QK_OK && code == cudaSuccess)
        code = cudaGraphUpload(*exec, stream);
    if (graph != NULL)
        cudaGraphDestroy(graph);
    if (status == QK_OK && code != cudaSuccess)
        status = qkc_fail(backend, QK_UNSUPPORTED, code, "step: making the graph of %u rows", pass.n_rows);
    return status;
}

/* Every bucket of kind 0 (@kv_class QKC_KV_CLASSES), or one graph. */
static qk_status make_graphs(qkc_step *step, uint32_t kv_class, uint32_t kind, uint32_t bucket)
{
    const qkc_context *ctx = (const qkc_context *)step->head.context;
    cudaStream_t stream = NULL;
    if (ctx->head.params.outputs_max == 0)
        return QK_OK;
    cudaError_t code = cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking);
    if (code != cudaSuccess)
        return qkc_fail(backend_of(ctx), QK_UNSUPPORTED, code, "step: a stream for graphs");
    qk_status status = QK_OK;
    if (kv_class < QKC_KV_CLASSES)
        status = make_graph(step, stream, kv_class, kind, bucket);
    for (uint32_t k = 0; kv_class == QKC_KV_CLASSES && k < QKC_KV_CLASSES && qkc_layout_of(ctx, k); k++)
        for (uint32_t i = 0; i < QKC_BUCKETS_MAX && bucket_rows(ctx, i) > 0 && status == QK_OK; i++)
            status = make_graph(step, stream, k, 0, i);
    code = cudaStreamSynchronize(stream);
    if (status == QK_OK && code != cudaSuccess)
        status = qkc_fail(backend_of(ctx), QK_UNSUPPORTED, code, "step: uploading graphs");
    cudaStreamDestroy(stream);
    return status;
}

/* ---- Step objects -------------------------------------------------------------------------------------------- */

/* A step over garbage: @n_rows rows behind some cached ones, all pages being @page, one output without a slot. */
static qk_status run_garbage(
    qkc_step *step, uint32_t kv_class, uint32_t n_rows, const void *page, bool streamed)
{
    const qk_context_params *p = &((const qkc_context *)step->head.context)->head.params;
    qk_plan *plan = &step->plan;
    const uint32_t pages_max = min_u32(p->pages_max, WARM_UP_PAGES);
    if (n_rows > p->rows_max || n_rows > pages_max * QK_PAGE_TOKENS)
        return QK_OK;
    plan->n_rows = n_rows;
    plan->n_seqs = 1;
    plan->n_pages = pages_max;
    plan->n_outputs = min_u32(p->outputs_max, 1);
    plan->kv_class = kv_class;
    for (uint32_t i = 0; i < n_rows; i++)
        plan->tokens[i] = 0;
    for (uint32_t i = 0; i < pages_max; i++)
        plan->pages[i] = (uint64_t)(uintptr_t)page;
    if (streamed && n_rows + QK_PAGE_TOKENS <= pages_max * QK_PAGE_TOKENS)
        plan->pages[0] |= QK_PAGE_HOST; /* device memory goes through the ring as well */
    qk_seq seq = {};
    seq.n_rows = n_rows;
    seq.start = pages_max * QK_PAGE_TOKENS - n_rows;
    seq.n_pages = pages_max;
    plan->seqs[0] = seq;
    if (plan->n_outputs > 0) {
        qk_output output = {};
        output.row = n_rows - 1;
        output.flags = QK_OUTPUT_SAMPLE;
        output.slot = QK_NO_SLOT;
        output.n_top = 1;
        output.sampling.top_p = 1;
        output.sampling.repetition_penalty = 1;
        plan->outputs[0] = output;
    }
    qk_status status = qkc_step_submit((qk_step *)step);
    return status == QK_OK ? qkc_step_wait((qk_step *)step) : status;
}

/* Kernels come to the device when they first run, which takes time and memory: before the first prompt, not in it. */
static qk_status warm_up(qkc_step *step)
{
    qkc_context *ctx = (qkc_context *)step->head.context;
    qkc_backend *backend = backend_of(ctx);
    void *page = NULL;
    if (ctx->is_warm)
        return QK_OK;
    const uint64_t bytes = max_u64(ctx->head.params.layout.page_bytes, ctx->head.params.layout_1.page_bytes);
    cudaError_t code = cudaMalloc(&page, bytes);
    if (code == cudaSuccess)
        code = cudaMemsetAsync(page, 0, bytes, compute(ctx));
    if (code != cudaSuccess) {
        cudaFree(page);
        return qkc_fail_memory(backend, code, "a page to try kernels with", bytes);
    }
    qk_status status = QK_OK;
    const uint32_t n_rows[] = {1, 2, QKC_SMALL_ROWS + 1};
    for (uint32_t k = 0; k < QKC_KV_CLASSES && qkc_layout_of(ctx, k) != NULL; k++)
        for (uint32_t i = 0; i < sizeof(n_rows) / sizeof(n_rows[0]) && status == QK_OK; i++)
            status = run_garbage(step, k, n_rows[i], page, false);
    for (uint32_t k = 0; k < QKC_KV_CLASSES && qkc_layout_of(ctx, k) != NULL; k++)
        for (uint32_t i = 1; i < sizeof(n_rows) / sizeof(n_rows[0]) && status == QK_OK; i++)
            if (ctx->head.params.ring_bytes > 0)
                status = run_garbage(step, k, n_rows[i], page, true);
    if (!qkc_is_lost(backend))
        cudaFree(page);
    memset(step->block, 0, step->block_bytes);
    step->plan.n_rows = step->plan.n_seqs = step->plan.n_pages = step->plan.n_outputs = 0;
    step->plan.kv_class = step->plan.host_path = 0;
    ctx->is_warm = status == QK_OK;
    return status;
}

static qk_status start_step(qkc_step *step)
{
    qkc_backend *backend = (qkc_backend *)step->head.backend;
    arena a = {};
    lay_out_step(step, &a);
    step->block_bytes = a.used;
    cudaError_t code = cudaHostAlloc(&step->block, a.used, cudaHostAllocMapped | cudaHostAllocPortable);
    if (code != cudaSuccess)
        return qkc_fail(backend, QK_NO_MEMORY, code, "step: no host memory for %llu pinned bytes",
            (unsigned long long)a.used);
    memset(step->block, 0, a.used);
    a = {(char *)step->block, 0, false};
    lay_out_step(step, &a);
    if (step->logits_bytes > 0) {
        void *logits = mmap(NULL, step->logits_bytes, PROT_READ | PROT_WRITE,
            MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
        if (logits == MAP_FAILED)
            return qkc_fail(backend, QK_NO_MEMORY, cudaSuccess,
                "step: no host memory for %llu bytes of logits: %s", (unsigned long long)step->logits_bytes,
                strerror(errno));
        step->logits = (float *)logits;
    }
    step->result.outputs = step->results;
    step->result.logits = step->logits;
    step->result.tops = step->tops;
    code = cudaEventCreateWithFlags(&step->done, cudaEventDisableTiming);
    if (code != cudaSuccess)
        return qkc_fail(backend, QK_UNSUPPORTED, code, "step: an event");
    qk_status status = make_graphs(step, QKC_KV_CLASSES, 0, 0);
    return status == QK_OK ? warm_up(step) : status;
}

qk_status qkc_step_new(qk_context *context, qk_step **out)
{
    qkc_backend *backend = backend_of((qkc_context *)context);
    qk_status status = enter(backend);
    if (status != QK_OK)
        return status;
    qkc_step *step = (qkc_step *)calloc(1, sizeof(*step));
    if (step == NULL)
        return qkc_fail(backend, QK_NO_MEMORY, cudaSuccess, "step: no memory");
    step->head.backend = &backend->head;
    step->head.context = context;
    status = start_step(step);
    if (status != QK_OK) {
        qkc_step_free((qk_step *)step);
        return status;
    }
    *out = (qk_step *)step;
    return QK_OK;
}

void qkc_step_free(qk_step *base)
{
    qkc_step *step = (qkc_step *)base;
    qkc_backend *backend = (qkc_backend *)step->head.backend;
    if (step->running)
        qkc_step_wait(base);
    if (!qkc_is_lost(backend)) {
        cudaSetDevice(backend->device);
        for (uint32_t i = 0; i < sizeof(step->graphs) / sizeof(step->graphs[0][0][0]); i++)
            if ((&step->graphs[0][0][0])[i] != NULL)
                cudaGraphExecDestroy((&step->graphs[0][0][0])[i]);
        if (step->done != NULL)
            cudaEventDestroy(step->done);
        cudaFreeHost(step->block);
        cudaGetLastError();
    }
    qkc_marks_free(step, qkc_is_lost(backend));
    if (step->logits != NULL)
        munmap(step->logits, step->logits_bytes);
    free(step);
}

qk_plan *qkc_step_plan(qk_step *step)
{
    return &((qkc_step *)step)->plan;
}

const qk_result *qkc_step_result(qk_step *step)
{
    return &((qkc_step *)step)->result;
}

void qkc_step_cancel(qk_step *step)
{
    __atomic_store_n(((qkc_step *)step)->cancel, 1u, __ATOMIC_RELEASE);
}

/* ---- Submitting ---------------------------------------------------------------------------------------------- */

bool qkc_takes_hopper(const qkc_context *ctx)
{
    const qk_shape *shape = shape_of(ctx);
    return backend_of(ctx)->hopper &&
           qkc_attend_prefill_hopper_runs(shape->n_heads, shape->n_kv_heads, shape->head_dim);
}

/* Tiles of the plan, cut into the step's pinned memory (behind those of streamed sequences) and sent to the device. */
static qk_status send_tiles(qkc_step *step, qkc_pass *pass)
{
    qkc_context *ctx = pass->context;
    qkc_backend *backend = backend_of(ctx);
    const qk_shape *shape = shape_of(ctx);
    const uint32_t n_tiles = pass->is_streamed ? step->stream.n_tiles : 0,
                   n_merges = pass->is_streamed ? step->stream.n_merges : 0;
    qkc_cut_other_tiles(&step->plan, pass->is_streamed ? step->stream.is_streamed : NULL, shape->n_heads,
        shape->n_kv_heads, shape->head_dim, qkc_takes_hopper(ctx), backend->n_sms, ctx->part_rows_max,
        step->tiles + n_tiles, step->merges + n_merges, &pass->tiling);
    cudaError_t code = cudaMemcpyAsync(ctx->tiles, step->tiles,
        (n_tiles + pass->tiling.n_tiles) * sizeof(*step->tiles), cudaMemcpyHostToDevice, compute(ctx));
    if (code == cudaSuccess && n_merges + pass->tiling.n_merges > 0)
        code = cudaMemcpyAsync(ctx->merges, step->merges,
            (n_merges + pass->tiling.n_merges) * sizeof(*step->merges), cudaMemcpyHostToDevice, compute(ctx));
    return code == cudaSuccess ? QK_OK : qkc_fail(backend, QK_UNSUPPORTED, code, "step: sending tiles");
}

/* The bucket that the graph of the plan's decode step is in. */
static uint32_t find_bucket(const qkc_context *ctx, uint32_t n_rows)
{
    uint32_t bucket = 0;
    while (bucket_rows(ctx, bucket) < n_rows)
        bucket++;
    return bucket;
}

/* A decode step that is streamed, or has outside pages, is launched for as many rows as the graph in whose place it is:
 * products of few rows go other ways than those of more. */
static qk_status launch_pass(qkc_step *step, bool decode, bool streamed, bool outside, uint32_t n_scored_max)
{
    qkc_context *ctx = (qkc_context *)step->head.context;
    const qk_plan *plan = &step->plan;
    qkc_pass pass = {};
    pass.context = ctx;
    pass.step = step;
    pass.launch = launch_on(backend_of(ctx), compute(ctx));
    pass.launch.pdl &= !plan->profile; /* events stand between the launches */
    pass.layout = qkc_layout_of(ctx, plan->kv_class);
    pass.kind = decode ? QKC_PASS_DECODE : plan->n_rows <= QKC_SMALL_ROWS ? QKC_PASS_FEW : QKC_PASS_MANY;
    pass.is_streamed = streamed;
    pass.outside = outside;
    pass.n_scored_max = n_scored_max;
    pass.n_rows = plan->n_rows;
    pass.n_outputs = plan->n_outputs;
    if (decode && plan->n_outputs > 0) {
        pass.n_rows = bucket_rows(ctx, find_bucket(ctx, plan->n_rows));
        pass.n_outputs = min_u32(pass.n_rows, ctx->head.params.outputs_max);
    }
    if (streamed) {
        const uint32_t n_layers = shape_of(ctx)->n_layers;
        cudaError_t code = qkc_stream_begin(step, decode || plan->n_outputs > 0 ? n_layers : n_layers - 1);
        if (code != cudaSuccess)
            return qkc_fail(backend_of(ctx), QK_UNSUPPORTED, code, "step: beginning to copy host pages");
    }
    qk_status status = outside ? qkc_partial_begin(step) : decode ? QK_OK : send_tiles(step, &pass);
    return status == QK_OK ? qkc_layers(&pass) : status;
}

/* The graph of the plan's decode step. NULL: there is none, because memory ran out or the device was lost. */
static cudaGraphExec_t find_graph(qkc_step *step, uint32_t n_scored_max)
{
    const qkc_context *ctx = (const qkc_context *)step->head.context;
    const uint32_t bucket = find_bucket(ctx, step->plan.n_rows), kv_class = step->plan.kv_class;
    const uint32_t kind = n_scored_max > 0 ? 1 + qkc_select_size(n_scored_max) : 0;
    cudaGraphExec_t *exec = &step->graphs[kv_class][kind][bucket];
    if (*exec == NULL && !step->has_no_room)
        step->has_no_room = make_graphs(step, kv_class, kind, bucket) != QK_OK;
    return *exec;
}

static qk_status launch_graph(qkc_step *step, cudaGraphExec_t graph)
{
    const qkc_context *ctx = (const qkc_context *)step->head.context;
    cudaError_t code = cudaGraphLaunch(graph, compute(ctx));
    return code == cudaSuccess ? QK_OK
                               : qkc_fail(backend_of(ctx), QK_UNSUPPORTED, code,
                                     "step: launching the graph for %u rows", step->plan.n_rows);
}

/* The plan's addresses of bounds, masks and biases, where there are any, to where kernels read them; the step before has read
 * its own. */
static qk_status send_extras(qkc_step *step, uint32_t n_scored_max)
{
    qkc_context *ctx = (qkc_context *)step->head.context;
    const qk_plan *plan = &step->plan;
    const uint64_t mask_bytes = qk_mask_words(shape_of(ctx)->vocab) * sizeof(*plan->masks);
    cudaError_t code = cudaSuccess;
    if (n_scored_max > 0)
        code = cudaMemcpyAsync(ctx->bounds, plan->bounds, plan->n_pages * sizeof(*plan->bounds),
            cudaMemcpyHostToDevice, compute(ctx));
    if (code == cudaSuccess && plan->n_masks > 0)
        code = cudaMemcpyAsync(
            ctx->masks, plan->masks, plan->n_masks * mask_bytes, cudaMemcpyHostToDevice, compute(ctx));
    if (code == cudaSuccess && plan->n_biases > 0)
        code = cudaMemcpyAsync(ctx->biases, plan->biases, plan->n_biases * sizeof(*plan->biases),
            cudaMemcpyHostToDevice, compute(ctx));
    return code == cudaSuccess ? QK_OK
                               : qkc_fail(backend_of(ctx), QK_UNSUPPORTED, code,
                                     "step: sending bounds' addresses, masks and biases");
}

static cudaError_t list_tops(qkc_step *step)
{
    qkc_context *ctx = (qkc_context *)step->head.context;
    bool any = false;
    for (uint32_t i = 0; i < step->plan.n_outputs; i++)
        any = any || step->plan.outputs[i].n_top > 0;
    if (!any)
        return cudaSuccess;
    const qkc_launch launch = launch_on(backend_of(ctx), compute(ctx));
    qkc_top_args a = {};
    a.logits = ctx->logits;
    a.vocab = shape_of(ctx)->vocab;
    a.n_outputs = step->plan.n_outputs;
    a.outputs = ctx->plan.outputs;
    a.tops = step->tops;
    return qkc_top(&launch, &a);
}

/* Alternatives and copies of the raw logits that were asked for, then the event that ends the step. */
static qk_status enqueue_end(qkc_step *step)
{
    qkc_context *ctx = (qkc_context *)step->head.context;
    const uint64_t vocab = shape_of(ctx)->vocab;
    cudaError_t code = list_tops(step);
    uint64_t n = 0;
    for (uint32_t i = 0; i < step->plan.n_outputs && code == cudaSuccess; i++)
        if (step->plan.outputs[i].flags & QK_OUTPUT_LOGITS)
            code = cudaMemcpyAsync(step->staged + n++ * vocab, ctx->logits + i * vocab, vocab * sizeof(float),
                cudaMemcpyDeviceToHost, compute(ctx));
    if (code == cudaSuccess)
        code = qkc_mark(step, QK_PART_SAMPLE);
    if (code == cudaSuccess)
        code = cudaEventRecord(step->done, compute(ctx));
    return code == cudaSuccess ? QK_OK : qkc_fail(backend_of(ctx), QK_UNSUPPORTED, code, "step: ending it");
}

static void set_status(qkc_step *step, qk_status status)
{
    step->running = false;
    step->status = status;
    snprintf(step->error, sizeof(step->error), "%s", ((qkc_backend *)step->head.backend)->error);
}

/* Kernels read pages 16 bytes at a time, which the interface does not promise. Sets whether any is in host memory. */
static qk_status check_pages(const qkc_step *step, bool *any_host)
{
    uint64_t bits = 0;
    for (uint32_t i = 0; i < step->plan.n_pages; i++)
        bits |= step->plan.pages[i];
    *any_host = (bits & QK_PAGE_HOST) != 0;
    return (bits & ~(uint64_t)QK_PAGE_HOST) % 16 == 0
               ? QK_OK
               : qkc_fail((qkc_backend *)step->head.backend, QK_UNSUPPORTED, cudaSuccess,
                     "step: a page's address is not a multiple of 16");
}

/* The most pages that are scored of one sequence; 0: none leaves pages out. Bounds are read 8 bytes at a time. */
static qk_status check_select(const qkc_step *step, bool decode, uint32_t *n_scored_max)
{
    uint64_t bits = 0;
    *n_scored_max = 0;
    for (uint32_t s = 0; s < step->plan.n_seqs; s++) {
        const qk_seq *seq = &step->plan.seqs[s];
        if (!qk_seq_leaves_out(seq))
            continue;
        const uint32_t n = seq->n_pages - seq->n_sink - seq->n_recent;
        *n_scored_max = *n_scored_max > n ? *n_scored_max : n;
        for (uint32_t p = 0; p < n; p++)
            bits |= step->plan.bounds[seq->page_begin + seq->n_sink + p];
    }
    qkc_backend *backend = (qkc_backend *)step->head.backend;
    if (*n_scored_max > 0 && !decode)
        return qkc_fail(backend, QK_UNSUPPORTED, cudaSuccess,
            "step: %u sequences with some that leave pages out; on CUDA they can be %u", step->plan.n_seqs,
            ((const qkc_context *)step->head.context)->decode_max);
    return bits % 16 == 0 ? QK_OK
                          : qkc_fail(backend, QK_UNSUPPORTED, cudaSuccess,
                                "step: an address of bounds is not a multiple of 16");
}

static qk_status fail_outside(const qkc_step *step, bool decode)
{
    qkc_context *ctx = (qkc_context *)step->head.context;
    if (decode)
        return qkc_fail(backend_of(ctx), QK_UNSUPPORTED, cudaSuccess,
            "step: pages at address 0 beside host pages to be streamed; expected host_path read");
    return qkc_fail(backend_of(ctx), QK_UNSUPPORTED, cudaSuccess,
        "step: pages at address 0 with %u rows of %u sequences; on CUDA they need one row each, at most %u",
        step->plan.n_rows, step->plan.n_seqs, ctx->decode_max);
}

/* Whether the attention of any rows is to int8 pages' copies: from so many rows on, for below that the kernel that reads
 * int8 pages is faster although each of its tiles makes the numbers anew (the bits are the same). With host pages to be
 * streamed there are copies in any case. */
#define WIDENED_ROWS 513u
static bool is_widened(const qkc_context *ctx, const qk_plan *plan)
{
    const qk_kv_layout *layout = qkc_layout_of(ctx, plan->kv_class);
    return layout->dtype == QK_I8 && (plan->n_rows >= WIDENED_ROWS || !qkc_attend_prefill_takes_int8(layout));
}

qk_status qkc_step_submit(qk_step *base)
{
    qkc_step *step = (qkc_step *)base;
    qkc_context *ctx = (qkc_context *)step->head.context;
    const qk_plan *plan = &step->plan;
    bool any_host = false;
    qk_status status = enter(backend_of(ctx));
    if (status == QK_OK)
        status = check_pages(step, &any_host);
    if (status != QK_OK)
        return status;
    const bool single = plan->n_seqs == plan->n_rows, decode = single && plan->n_rows <= ctx->decode_max;
    uint32_t n_scored_max;
    if ((status = check_select(step, decode, &n_scored_max)) != QK_OK)
        return status;
    const bool reads_host = plan->host_path == QK_HOST_READ || n_scored_max > 0;
    const bool takes_host = any_host && !(single && reads_host);
    const bool streamed = takes_host || (!decode && is_widened(ctx, plan));
    const bool outside = qkc_partial_is_needed(step);
    if (outside && (!decode || streamed))
        return fail_outside(step, decode);
    step->marks.n = 0;
    step->result.profile = NULL;
    if (plan->profile && (status = qkc_marks_make(step)) != QK_OK)
        return status;
    if (streamed && (status = qkc_stream_build(step, decode, takes_host)) != QK_OK)
        return status;
    /* A graph has up to decode_max rows. */
    qkc_write_rows(plan, decode ? ctx->decode_max : plan->n_rows, step->counts, step->rows);
    step->outside.status = QK_OK;
    __atomic_store_n(step->cancel, 0u, __ATOMIC_RELAXED);
    __atomic_store_n(step->status_word, STATUS_NOT_YET, __ATOMIC_RELEASE);

    status = send_extras(step, n_scored_max);
    cudaGraphExec_t graph = NULL;
    if (status == QK_OK && decode && !streamed && !outside && !plan->profile && plan->n_outputs > 0)
        graph = find_graph(step, n_scored_max);
    if (status == QK_OK)
        status = graph != NULL ? launch_graph(step, graph)
                               : launch_pass(step, decode, streamed, outside, n_scored_max);
    if (status == QK_OK)
        status = enqueue_end(step);
    if (status == QK_OK) {
        step->running = true;
        step->status = QK_PENDING;
        return QK_OK;
    }
    set_status(step, status);
    qkc_partial_abandon(step);
    if (status != QK_DEVICE_LOST) { /* what was launched reads the step's memory, and the plan's pages */
        cudaStreamSynchronize(backend_of(ctx)->streams[QK_STREAM_TO_DEVICE]);
        cudaStreamSynchronize(compute(ctx));
    }
    return status;
}

/* ---- Ending -------------------------------------------------------------------------------------------------- */

/* Names the row that took an unwritten slot; a step behind may have written it in the meantime. */
static qk_status fail_slot(qkc_step *step)
{
    qkc_context *ctx = (qkc_context *)step->head.context;
    const qk_plan *plan = &step->plan;
    const uint32_t n_slots = ctx->head.params.slots_max;
    cudaError_t code =
        cudaMemcpy(ctx->slots_copy, ctx->slots, n_slots * sizeof(*ctx->slots), cudaMemcpyDeviceToHost);
    if (code != cudaSuccess)
        return qkc_fail(backend_of(ctx), QK_DEVICE_LOST, code, "step: reading the token slots");
    for (uint32_t row = 0; row < plan->n_rows; row++)
        if (plan->tokens[row] < 0 && ctx->slots_copy[~plan->tokens[row]] < 0)
            return qkc_fail(backend_of(ctx), QK_INVALID, cudaSuccess,
                "step: row %u takes slot %u, which no step has written", row, (uint32_t)~plan->tokens[row]);
    return qkc_fail(
        backend_of(ctx), QK_INVALID, cudaSuccess, "step: a row takes a slot that no step had written");
}

static qk_status fail_partial(qkc_step *step)
{
    return qkc_fail((qkc_backend *)step->head.backend, step->outside.status, cudaSuccess,
        "step: the outside partial function failed in layer %u", step->outside.failed_layer);
}

/* The step has come to its end on the device: its status, and its raw logits to where the result says. */
static void finish(qkc_step *step)
{
    qkc_context *ctx = (qkc_context *)step->head.context;
    const uint32_t word = __atomic_load_n(step->status_word, __ATOMIC_ACQUIRE);
    const uint64_t vocab = shape_of(ctx)->vocab;
    uint64_t n = 0;
    switch (word) {
    case QK_OK:
        for (uint32_t i = 0; i < step->plan.n_outputs; i++)
            if (step->plan.outputs[i].flags & QK_OUTPUT_LOGITS)
                memcpy(step->logits + i * vocab, step->staged + n++ * vocab, vocab * sizeof(float));
        if (step->plan.profile)
            qkc_marks_sum(step);
        step->running = false;
        step->status = QK_OK;
        return;
    case QK_CANCELLED:
        if (step->outside.status != QK_OK) {
            set_status(step, fail_partial(step));
            return;
        }
        set_status(
            step, qkc_fail(backend_of(ctx), QK_CANCELLED, cudaSuccess, "step: cancelled between two layers"));
        return;
    case QK_INVALID:
        set_status(step, fail_slot(step));
        return;
    default:
        set_status(step, qkc_fail(backend_of(ctx), QK_UNSUPPORTED, cudaSuccess,
                             "step: ended without a status (%u)", word));
    }
}

/* A step that was never submitted reads as done. */
qk_status qkc_step_poll(qk_step *base)
{
    qkc_step *step = (qkc_step *)base;
    if (!step->running)
        return step->status;
    qkc_backend *backend = (qkc_backend *)step->head.backend;
    qk_status status = enter(backend);
    if (status != QK_OK) {
        qkc_partial_abandon(step);
        set_status(step, status);
        return status;
    }
    cudaError_t code = cudaEventQuery(step->done);
    if (code == cudaErrorNotReady || (code == cudaSuccess && qkc_partial_is_busy(step)))
        return QK_PENDING;
    if (code != cudaSuccess)
        qkc_partial_abandon(step);
    if (code == cudaSuccess)
        finish(step);
    else
        set_status(step, qkc_fail(backend, QK_DEVICE_LOST, code, "step of %u rows, %u outputs",
                             step->plan.n_rows, step->plan.n_outputs));
    return step->status;
}

static int64_t now_ns(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return t.tv_sec * INT64_C(1000000000) + t.tv_nsec;
}

/* A short step is met at once; a long one costs no processor. */
qk_status qkc_step_wait(qk_step *base)
{
    qkc_step *step = (qkc_step *)base;
    const int64_t begin = now_ns();
    qk_status status;
    while ((status = qkc_step_poll(base)) == QK_PENDING)
        if (now_ns() - begin > SPIN_NS) {
            const struct timespec pause = {0, SLEEP_NS};
            nanosleep(&pause, NULL);
        }
    if (status == QK_OK)
        return QK_OK;
    return qkc_fail((qkc_backend *)step->head.backend, status, cudaSuccess, "%s", step->error);
}
