/* cuda-layers.cu: the launches of one pass of the model, in order: the same function for capture and for eager steps.
 *
 *   prepare                                                plan, tokens, positions, embeddings
 *   decode, few rows:  a layer is  linear(norm + QKV), attention, linear(O) += x, linear(norm + gate,up, SiLU),
 *                                  linear(down) += x; then linear(norm + lm_head) of the output rows, sample
 *                      (with outside pages two more launches around the attention: cuda-partial.cu; one row on the
 *                      portable path: all that lies between two attentions in one launch, linear-chain.cu)
 *   2 to 32 rows, Hopper: the same five launches by linear-hopper.cu: O and down leave the next norm's input, the attention and
 *                      SiLU bf16; a norm of its own before the first layer and lm_head
 *   16 rows on, else:  the same, each product by cublasLt, with a norm or a rounding before it and SiLU behind gate,up
 *   many rows:         a layer is  rms_norm, QKV, heads, attention, O += x, rms_norm, (gate,up, SiLU) by row blocks,
 *                                  down += x; after the last attention only the output rows go on, the few-rows way
 *
 * Invariants
 *  1. Nothing but launches on launch.stream: legal inside capture (the many-rows pass is never captured, cublasLt's
 *     products of few rows are).
 *  2. Every kernel waits for its predecessor before it ends (cuda-ops.h), so that a buffer may be overwritten by the
 *     next kernel but one without a thought for programmatic launches.
 *  3. After the last layer's keys and values are written, rows that are no outputs need nothing more. A pass without
 *     outputs ends there, with its status.
 *  4. A step that has been given up (plan.state) still makes all its launches; the sampler then changes nothing.
 *  5. A row block's kernels take the plan of the whole step: they touch no row from their rows_max on.
 *
 * Launches and bytes a layer of the reference model (36 layers):
 *   decode        5 launches, 183 a step; one row on the portable path 2, 75 a step. 202 MB of weights, 48 us at 4.2 TB/s, and
 *                 4 KB a key; activations (of 64 rows: 1.6 + 1.0 + 2.5 + 0.7 MB) stay in the level 2 cache.
 *   few rows      6 or 7
 *   2,048 rows    10 to 12: 413 GFLOP, 520 us at 790 TFLOP/s; of activations 21+10 (norm), 10+25 (QKV), 25+25 (heads),
 *                 17+17 (attention), 17+42 (O), 21+10, 2x(5+40), 2x(40+20), 40+42 MB: 520 MB, 125 us were all of it
 *                 to go to memory, most of it under the products
 *   outputs       778 MB for lm_head, 185 us, for each 64 output rows */
#include "kernels/cuda/cuda-step.h"

#define LATCH_LAYERS 4u /* a few-rows pass looks at the cancel word before every so many layers */
#define COPY_THREADS 256u

/* ---- Small kernels ------------------------------------------------------------------------------------------- */

/* They read past the L1 cache, which is not kept coherent between kernels that overlap. */

/* A block is an output: its rows of x and attn to the front, attn as float32. Hidden and q_dim are multiples of 8. The
 * first block also writes the counts for each block of QKC_SMALL_ROWS outputs: n_rows and n_outputs are their number. */
static __global__ void __launch_bounds__(COPY_THREADS)
    gather_kernel(float *out_x, float *out_attn, uint32_t *tail_counts, const float *x, const qkc_bf16 *attn,
        uint32_t hidden, uint32_t q_dim, qkc_plan plan)
{
    qkc_pdl_trigger();
    qkc_pdl_wait();
    const uint32_t i = blockIdx.x, n_outputs = __ldcg(plan.counts + 3);
    if (i == 0)
        for (uint32_t b = threadIdx.x; b * QKC_SMALL_ROWS < n_outputs; b += COPY_THREADS) {
            const uint32_t n = min(n_outputs - b * QKC_SMALL_ROWS, QKC_SMALL_ROWS);
            *(uint4 *)(tail_counts + 4 * b) =
                make_uint4(n, __ldcg(plan.counts + 1), __ldcg(plan.counts + 2), n);
        }
    if (i >= n_outputs)
        return;
    const uint32_t row = __ldcg(&plan.outputs[i].row);
    const float4 *from = (const float4 *)(x + (size_t)row * hidden);
    float4 *to = (float4 *)(out_x + (size_t)i * hidden);
    for (uint32_t v = threadIdx.x; v < hidden / 4; v += COPY_THREADS)
        to[v] = __ldcg(from + v);
    const uint2 *halves = (const uint2 *)(attn + (size_t)row * q_dim);
    float4 *wide = (float4 *)(out_attn + (size_t)i * q_dim);
    for (uint32_t v = threadIdx.x; v < q_dim / 4; v += COPY_THREADS) {
        const uint2 h = __ldcg(halves + v);
        wide[v] = make_float4(__uint_as_float(h.x << 16), __uint_as_float(h.x & 0xffff0000u),
            __uint_as_float(h.y << 16), __uint_as_float(h.y & 0xffff0000u));
    }
}

/* A block is a row: float32 to bf16. @n is a multiple of 8. */
static __global__ void __launch_bounds__(COPY_THREADS)
    round_kernel(qkc_bf16 *out, const float *x, uint32_t n, qkc_plan plan)
{
    qkc_pdl_trigger();
    qkc_pdl_wait();
    if (blockIdx.x >= __ldcg(plan.counts))
        return;
    const float4 *from = (const float4 *)(x + (size_t)blockIdx.x * n);
    __nv_bfloat162 *to = (__nv_bfloat162 *)(out + (size_t)blockIdx.x * n);
    for (uint32_t v = threadIdx.x; v < n / 4; v += COPY_THREADS) {
        const float4 a = __ldcg(from + v);
        to[2 * v] = __floats2bfloat162_rn(a.x, a.y);
        to[2 * v + 1] = __floats2bfloat162_rn(a.z, a.w);
    }
}

static __global__ void latch_kernel(qkc_plan plan, const volatile uint32_t *cancel)
{
    qkc_pdl_trigger();
    const uint32_t asked = *cancel;
    qkc_pdl_wait();
    if (asked != 0 && __ldcg(plan.state) == QK_OK)
        *plan.state = QK_CANCELLED;
}

/* For passes without outputs, which have no sampler to do it. */
static __global__ void report_kernel(qkc_plan plan, volatile uint32_t *status)
{
    qkc_pdl_trigger();
    qkc_pdl_wait();
    *status = __ldcg(plan.state);
    __threadfence_system();
}

/* ---- A pass's way -------------------------------------------------------------------------------------------- */

/* Where the launching stands; after the first failure nothing more is launched. */
typedef struct {
    const qkc_pass *pass;
    qkc_context *ctx;
    qkc_step *step;
    const qkc_launch *launch;
    const qkc_model *model;
    const qk_shape *shape;
    const qk_kv_layout *layout; /* of the step's pages */
    uint32_t layer;
    qk_status status;
} way;

static bool ok(way *w, const char *what, cudaError_t code)
{
    if (code == cudaSuccess)
        return true;
    w->status = qkc_fail((qkc_backend *)w->ctx->head.backend, QK_UNSUPPORTED, code,
        "step: launching %s of layer %u for %u rows", what, w->layer, w->pass->n_rows);
    return false;
}

/* What was launched since the last mark is @part. */
static bool mark(way *w, qk_part part)
{
    return ok(w, "a mark", qkc_mark(w->step, part));
}

static bool is_last(const way *w)
{
    return w->layer + 1 == w->shape->n_layers;
}

static qkc_host_plan host_plan(const qkc_step *step)
{
    const qk_context_params *p = &((const qkc_context *)step->head.context)->head.params;
    qkc_host_plan from = {};
    from.counts = step->counts;
    from.rows = step->rows;
    from.tokens = step->plan.tokens;
    from.seqs = step->plan.seqs;
    from.pages = step->plan.pages;
    from.outputs = step->plan.outputs;
    from.seqs_max = p->seqs_max;
    from.pages_max = p->pages_max;
    from.outputs_max = p->outputs_max;
    from.cancel = step->cancel;
    return from;
}

/* Not a programmatic launch: the step before may be reading the plan until its very end. */
static bool prepare(way *w)
{
    qkc_launch launch = *w->launch;
    launch.pdl = false;
    qkc_prepare_args a = {};
    a.from = host_plan(w->step);
    a.to = w->ctx->plan;
    a.slots = w->ctx->slots;
    a.embed = w->model->embed;
    a.x = w->ctx->x;
    a.inv_freq = w->model->inv_freq;
    a.rope_factor = w->shape->rope_factor;
    a.head_dim = w->shape->head_dim;
    a.hidden = w->shape->hidden;
    a.rows_max = w->pass->n_rows;
    a.zeros = w->ctx->arrived;
    a.n_zeros = QKC_CHAIN_MAX * w->shape->n_layers;
    return ok(w, "prepare", qkc_prepare(&launch, &a));
}

static bool report(way *w)
{
    return ok(w, "report",
        qkc_start(w->launch, report_kernel, dim3(1), dim3(1), 0, w->ctx->plan,
            (volatile uint32_t *)w->step->status_word));
}

static bool sample(way *w)
{
    qkc_sample_args a = {};
    a.logits = w->ctx->logits;
    a.vocab = w->shape->vocab;
    a.outputs_max = w->pass->n_outputs;
    a.plan = w->ctx->plan;
    a.slots = w->ctx->slots;
    a.history = w->ctx->history;
    a.masks = w->ctx->masks;
    a.biases = w->ctx->biases;
    a.results = w->step->results;
    a.status = w->step->status_word;
    a.workspace = w->ctx->sample_workspace;
    return ok(w, "sample", qkc_sample(w->launch, &a));
}

/* ---- Few rows ------------------------------------------------------------------------------------------------ */

/* The rows that linear layers work on: those of the pass, or a block of the outputs of many. */
typedef struct {
    float *x;    /* [n_max, hidden] */
    float *attn; /* [n_max, q_dim] */
    uint32_t n_max;
    uint32_t room; /* rows that x and attn have memory for */
    qkc_plan plan;
} small_rows;

/* From so many rows on cublasLt's products, with kernels around them, beat linear-mma.cu's where linear-hopper.cu does not run
 * (an H200, us a layer of the reference model: 16 rows 140, 32 rows 223, 64 rows 585; cublasLt with norms and SiLU about 112 at
 * each). */
#define WIDE_ROWS 16u

/* Whether @n_max rows go through cublasLt. It reads and writes whole units of rows: @room is what the buffers have. */
static bool is_wide(const way *w, uint32_t n_max, uint32_t room)
{
    return w->ctx->gemm != NULL && room >= QKC_GEMM_ROWS_UNIT && n_max >= WIDE_ROWS;
}

static bool typed_product(way *w, const qkc_bf16 *weight, const qkc_bf16 *x, void *y, qk_dtype y_dtype,
    uint32_t n_rows, uint32_t n_out, uint32_t n_in, bool add)
{
    qkc_gemm_args a = {};
    a.x = x, a.w = weight, a.y = y;
    a.y_dtype = y_dtype;
    a.n_rows = n_rows, a.n_out = n_out, a.n_in = n_in;
    a.add = add;
    w->status = qkc_gemm_run(w->ctx->gemm, w->launch->stream, w->ctx->gemm_workspace, &a);
    return w->status == QK_OK;
}

/* The rows' norm as bf16; those behind the count become zeros. */
static bool wide_norm(way *w, const small_rows *r, const float *weight, bool gather)
{
    return ok(w, "norm",
        qkc_rms_norm(w->launch, w->ctx->wide_in, r->x, weight, w->shape->rms_eps, w->shape->hidden, r->n_max,
            r->plan, gather, NULL));
}

static bool wide_rest(way *w, const small_rows *r)
{
    const qkc_layer *layer = &w->model->layers[w->layer];
    qkc_context *ctx = w->ctx;
    const uint32_t hidden = w->shape->hidden, ffn = w->shape->ffn, n = r->n_max;
    return ok(w, "rounding",
               qkc_start(w->launch, round_kernel, dim3(n), dim3(COPY_THREADS), 0, ctx->wide_in,
                   (const float *)r->attn, ctx->q_dim, r->plan)) &&
           typed_product(w, layer->o, ctx->wide_in, r->x, QK_F32, n, hidden, ctx->q_dim, true) &&
           mark(w, QK_PART_PROJECT) && wide_norm(w, r, layer->ffn_norm, false) &&
           typed_product(w, layer->gate_up, ctx->wide_in, ctx->wide_up, QK_BF16, n, 2 * ffn, hidden, false) &&
           ok(w, "SiLU", qkc_silu_mul(w->launch, ctx->wide_act, ctx->wide_up, ffn, n, r->plan)) &&
           typed_product(w, layer->down, ctx->wide_act, r->x, QK_F32, n, hidden, ffn, true) &&
           mark(w, QK_PART_MLP);
}

static qkc_linear_args linear_args(const way *w, const small_rows *r)
{
    qkc_linear_args a = {};
    a.eps = w->shape->rms_eps;
    a.rows_max = r->n_max;
    a.plan = r->plan;
    return a;
}

/* ---- Few rows on Hopper -------------------------------------------------------------------------------------- */

/* To so many rows linear-hopper.cu's products beat cublasLt's, which need 75 us a layer of the reference model at 64 rows where
 * these need 88 (an H200; at 16 rows 67, and a whole step 4.2 ms against 4.4). */
#define HOPPER_ROWS 32u

/* linear-hopper.cu's products take bf16 and leave the next norm to the product behind: buffers are wide_in (norms' outputs),
 * wide_up (attention's) and wide_act. */
static bool is_hopper(const way *w, uint32_t n_max)
{
    return w->launch->hopper && n_max > 1 && n_max <= HOPPER_ROWS && w->ctx->wide_in != NULL &&
           qkc_linear_hopper_suits(w->ctx->qkv_dim, w->shape->hidden) &&
           qkc_linear_hopper_suits(w->shape->ffn, w->ctx->q_dim) &&
           w->shape->hidden <= QKC_LINEAR_HOPPER_HIDDEN_MAX;
}

static qkc_linear_hopper_args hopper_args(const way *w, const small_rows *r, const qkc_bf16 *weight,
    const qkc_bf16 *x, uint32_t n_out, uint32_t n_in)
{
    qkc_linear_hopper_args a = {};
    a.w = weight, a.x = x;
    a.n_out = n_out, a.n_in = n_in, a.rows_max = r->n_max;
    a.eps = w->shape->rms_eps;
    a.plan = r->plan;
    return a;
}

/* O and down: x += W a; @next: the norm's weight that the product behind wants, or NULL. */
static qkc_linear_hopper_args hopper_add(const way *w, const small_rows *r, const qkc_bf16 *weight,
    const qkc_bf16 *a, uint32_t n_in, const float *next)
{
    qkc_linear_hopper_args add = hopper_args(w, r, weight, a, w->shape->hidden, n_in);
    add.y = r->x, add.then = QKC_ADD;
    add.y16 = w->ctx->wide_in, add.next_norm = next, add.next_squares = w->ctx->wide_squares;
    return add;
}

/* The squares that such a product left. */
static void take_squares(const way *w, qkc_linear_hopper_args *a, const qkc_linear_hopper_args *from)
{
    a->squares = w->ctx->wide_squares;
    a->n_squares = qkc_linear_hopper_groups(w->launch, from);
}

static bool hopper_qkv(way *w, const small_rows *r)
{
    const qkc_layer *layer = &w->model->layers[w->layer];
    qkc_linear_hopper_args a =
        hopper_args(w, r, layer->qkv, w->ctx->wide_in, w->ctx->qkv_dim, w->shape->hidden);
    a.y = w->ctx->small_qkv, a.then = QKC_STORE;
    if (w->layer == 0) {
        if (!wide_norm(w, r, layer->attn_norm, false))
            return false;
    } else {
        const qkc_linear_hopper_args before = hopper_add(w, r, NULL, NULL, w->shape->ffn, layer->attn_norm);
        take_squares(w, &a, &before);
    }
    return ok(w, "QKV", qkc_linear_hopper(w->launch, &a));
}

/* Whether the attention rounds its output itself. */
static bool attends_to_bf16(const way *w)
{
    return w->pass->kind == QKC_PASS_DECODE && !w->pass->outside && is_hopper(w, w->pass->n_rows);
}

static bool hopper_rest(way *w, const small_rows *r)
{
    const qkc_layer *layer = &w->model->layers[w->layer];
    qkc_context *ctx = w->ctx;
    const uint32_t hidden = w->shape->hidden, ffn = w->shape->ffn;
    if (!attends_to_bf16(w) && !ok(w, "rounding",
                                   qkc_start(w->launch, round_kernel, dim3(r->n_max), dim3(COPY_THREADS), 0,
                                       ctx->wide_up, (const float *)r->attn, ctx->q_dim, r->plan)))
        return false;
    const qkc_linear_hopper_args o = hopper_add(w, r, layer->o, ctx->wide_up, ctx->q_dim, layer->ffn_norm);
    qkc_linear_hopper_args up = hopper_args(w, r, layer->gate_up, ctx->wide_in, ffn, hidden);
    up.y16 = ctx->wide_act, up.then = QKC_SILU_MUL;
    take_squares(w, &up, &o);
    const qkc_linear_hopper_args down =
        hopper_add(w, r, layer->down, ctx->wide_act, ffn, is_last(w) ? NULL : layer[1].attn_norm);
    return ok(w, "O", qkc_linear_hopper(w->launch, &o)) && mark(w, QK_PART_PROJECT) &&
           ok(w, "gate and up", qkc_linear_hopper(w->launch, &up)) &&
           ok(w, "down", qkc_linear_hopper(w->launch, &down)) && mark(w, QK_PART_MLP);
}

static bool hopper_lm_head(way *w, const small_rows *r, bool gather, float *logits)
{
    qkc_linear_hopper_args a =
        hopper_args(w, r, w->model->lm_head, w->ctx->wide_in, w->shape->vocab, w->shape->hidden);
    a.y = logits, a.then = QKC_STORE, a.outputs = gather;
    return wide_norm(w, r, w->model->final_norm, gather) &&
           ok(w, "lm_head", qkc_linear_hopper(w->launch, &a));
}

static qkc_linear_args qkv_product(const way *w, const small_rows *r, const qkc_layer *layer)
{
    qkc_linear_args a = linear_args(w, r);
    a.w = layer->qkv, a.x = r->x, a.norm = layer->attn_norm, a.y = w->ctx->small_qkv;
    a.n_out = w->ctx->qkv_dim, a.n_in = w->shape->hidden, a.then = QKC_STORE;
    return a;
}

/* The layer's products behind its attention: O, gate and up, down. */
static void rest_products(const way *w, const small_rows *r, qkc_linear_args args[3])
{
    const qkc_layer *layer = &w->model->layers[w->layer];
    const uint32_t hidden = w->shape->hidden, ffn = w->shape->ffn;
    qkc_linear_args *o = &args[0], *up = &args[1], *down = &args[2];
    *o = *up = *down = linear_args(w, r);
    o->w = layer->o, o->x = r->attn, o->y = r->x;
    o->n_out = hidden, o->n_in = w->ctx->q_dim, o->then = QKC_ADD;
    up->w = layer->gate_up, up->x = r->x, up->norm = layer->ffn_norm, up->y = w->ctx->small_act;
    up->n_out = ffn, up->n_in = hidden, up->then = QKC_SILU_MUL;
    down->w = layer->down, down->x = w->ctx->small_act, down->y = r->x;
    down->n_out = hidden, down->n_in = ffn, down->then = QKC_ADD;
}

/* Whether what lies between two attentions is one launch: the same for every layer, whose shapes are the same. */
static bool is_chained(const way *w, const small_rows *r)
{
    if (w->pass->kind != QKC_PASS_DECODE || w->pass->n_rows != 1 || w->step->plan.profile)
        return false;
    qkc_linear_args args[QKC_CHAIN_MAX];
    rest_products(w, r, args);
    args[3] = qkv_product(w, r, &w->model->layers[w->layer]);
    return qkc_linear_chain_suits(w->launch, args, QKC_CHAIN_MAX);
}

/* From the attention's output to the layer's end, and where the products are chained to the next one's QKV. */
static bool small_rest(way *w, const small_rows *r)
{
    if (is_hopper(w, r->n_max))
        return hopper_rest(w, r);
    if (is_wide(w, r->n_max, r->room))
        return wide_rest(w, r);
    qkc_linear_args args[QKC_CHAIN_MAX];
    uint32_t n = 3;
    rest_products(w, r, args);
    if (is_chained(w, r)) {
        if (!is_last(w))
            args[n++] = qkv_product(w, r, &w->model->layers[w->layer + 1]);
        return ok(w, "O, gate and up, down, QKV",
            qkc_linear_chain(w->launch, args, n, w->ctx->arrived + w->layer * QKC_CHAIN_MAX));
    }
    return ok(w, "O", qkc_linear(w->launch, &args[0])) && mark(w, QK_PART_PROJECT) &&
           ok(w, "gate and up", qkc_linear(w->launch, &args[1])) &&
           ok(w, "down", qkc_linear(w->launch, &args[2])) && mark(w, QK_PART_MLP);
}

/* @room: rows that @logits has memory for. */
static bool lm_head(way *w, const small_rows *r, bool gather, float *logits, uint32_t room)
{
    if (is_hopper(w, r->n_max) && qkc_linear_hopper_suits(w->shape->vocab, w->shape->hidden))
        return hopper_lm_head(w, r, gather, logits);
    if (is_wide(w, r->n_max, room))
        return wide_norm(w, r, w->model->final_norm, gather) &&
               typed_product(w, w->model->lm_head, w->ctx->wide_in, logits, QK_F32, r->n_max, w->shape->vocab,
                   w->shape->hidden, false);
    qkc_linear_args a = linear_args(w, r);
    a.w = w->model->lm_head, a.x = r->x, a.norm = w->model->final_norm, a.y = logits;
    a.n_out = w->shape->vocab, a.n_in = w->shape->hidden, a.then = QKC_STORE;
    a.gather = gather;
    return ok(w, "lm_head", qkc_linear(w->launch, &a));
}

static bool small_qkv(way *w, const small_rows *r)
{
    const qkc_layer *layer = &w->model->layers[w->layer];
    if (is_hopper(w, r->n_max))
        return hopper_qkv(w, r);
    if (is_wide(w, r->n_max, w->ctx->small_max))
        return wide_norm(w, r, layer->attn_norm, false) &&
               typed_product(w, layer->qkv, w->ctx->wide_in, w->ctx->small_qkv, QK_F32, r->n_max,
                   w->ctx->qkv_dim, w->shape->hidden, false);
    if (w->layer > 0 && is_chained(w, r)) /* the layer before did it */
        return true;
    const qkc_linear_args a = qkv_product(w, r, layer);
    return ok(w, "QKV", qkc_linear(w->launch, &a));
}

/* The pieces from @first on below @end in the list of all sequences'. */
static bool attend_some(way *w, qkc_attend_decode_args a, uint32_t first, uint32_t end)
{
    qkc_launch launch = *w->launch;
    launch.pdl = false; /* events stand between the launches */
    a.first_piece = first;
    a.end_piece = end;
    return first == end || ok(w, "attention of pieces", qkc_attend_decode(&launch, &a));
}

/* Those of one sequence with pages in host memory, as these arrive. @first: its first piece in the list. */
static bool attend_ranges_of(way *w, const qkc_attend_decode_args *a, uint32_t seq, uint32_t first)
{
    const qkc_stream *stream = &w->step->stream;
    const uint32_t size = qkc_attend_decode_piece_keys(w->step->plan.seqs[seq].start + 1);
    for (uint32_t i = 0; i < stream->n_ranges; i++) {
        const qkc_range *range = &stream->ranges[i];
        if (stream->seqs[range->seq].seq == seq &&
            (!ok(w, "a wait for host pages", qkc_stream_before(w->step, w->layer, range)) ||
                !attend_some(
                    w, *a, first + range->key_begin / size, first + (range->key_end + size - 1) / size) ||
                !ok(w, "copies of host pages", qkc_stream_after(w->step, w->layer, range))))
            return false;
    }
    return true;
}

/* A layer's attention in several launches: streamed sequences one after the other, what is between them at once. */
static bool attend_pieces(way *w, const qkc_attend_decode_args *a)
{
    const qkc_stream *stream = &w->step->stream;
    const qk_plan *plan = &w->step->plan;
    qkc_launch launch = *w->launch;
    uint32_t at = 0, done = 0; /* pieces of the sequences so far; of them launched */
    launch.pdl = false;
    if (!ok(w, "places in the ring", qkc_stream_place(&launch, w->step, w->layer)))
        return false;
    for (uint32_t i = 0; i < plan->n_seqs; i++) {
        const uint32_t n_keys = plan->seqs[i].start + 1, size = qkc_attend_decode_piece_keys(n_keys);
        const uint32_t end = at + (n_keys + size - 1) / size;
        if (stream->is_streamed[i]) {
            if (!attend_some(w, *a, done, at) || !attend_ranges_of(w, a, i, at))
                return false;
            done = end;
        }
        at = end;
    }
    return attend_some(w, *a, done, at);
}

/* The lists of pages of sequences that leave some out. */
static bool select_pages(way *w)
{
    qkc_context *ctx = w->ctx;
    qkc_select_args a = {};
    a.qkv = ctx->small_qkv;
    a.q_norm = w->model->layers[w->layer].q_norm;
    a.eps = w->shape->rms_eps;
    a.n_heads = w->shape->n_heads, a.n_kv_heads = w->shape->n_kv_heads, a.head_dim = w->shape->head_dim;
    a.layer = w->layer;
    a.rows_max = w->pass->n_rows;
    a.plan = ctx->plan;
    a.bounds = ctx->bounds;
    a.keys = ctx->select_keys;
    a.pages_max = ctx->head.params.pages_max;
    a.n_scored_max = w->pass->n_scored_max;
    a.lists_begin = a.pages_max;
    a.lists_stride = ctx->head.params.select_max;
    return ok(w, "choosing pages", qkc_select(w->launch, &a));
}

static bool attend_decode(way *w)
{
    const qkc_layer *layer = &w->model->layers[w->layer];
    qkc_attend_decode_args a = {};
    a.qkv = w->ctx->small_qkv;
    a.out = w->ctx->small_attn;
    a.out_bf16 = attends_to_bf16(w) ? w->ctx->wide_up : NULL;
    a.trigger =
        attends_to_bf16(w); /* a product that needs few instructions a byte runs well two blocks to an SM */
    a.q_norm = layer->q_norm, a.k_norm = layer->k_norm;
    a.eps = w->shape->rms_eps;
    a.n_heads = w->shape->n_heads, a.n_kv_heads = w->shape->n_kv_heads, a.head_dim = w->shape->head_dim;
    a.layer = w->layer;
    a.rows_max = w->pass->n_rows;
    a.layout = *w->layout;
    a.plan = w->ctx->plan;
    a.workspace = w->ctx->decode_workspace;
    a.cancel = w->step->cancel;
    a.lse = w->pass->outside ? w->ctx->partial_lse : NULL;
    if (w->pass->n_scored_max > 0) {
        if (!select_pages(w))
            return false;
        a.lists_begin = w->ctx->head.params.pages_max;
        a.lists_stride = w->ctx->head.params.select_max;
    }
    if (w->pass->is_streamed)
        return attend_pieces(w, &a);
    return ok(w, "attention", qkc_attend_decode(w->launch, &a));
}

/* With outside pages: q to the host before, the host's part to the device's behind. */
static bool attend_decode_outside(way *w)
{
    return ok(w, "publishing q", qkc_partial_publish(w->pass, w->layer)) && attend_decode(w) &&
           ok(w, "merging", qkc_partial_merge(w->pass, w->layer));
}

/* ---- Attention of any rows ----------------------------------------------------------------------------------- */

static bool heads(way *w)
{
    const qkc_layer *layer = &w->model->layers[w->layer];
    const bool many = w->pass->kind == QKC_PASS_MANY;
    qkc_heads_args a = {};
    a.qkv_f32 = many ? NULL : w->ctx->small_qkv;
    a.qkv_bf16 = many ? w->ctx->qkv : NULL;
    a.q = w->ctx->q;
    a.q_norm = layer->q_norm, a.k_norm = layer->k_norm;
    a.eps = w->shape->rms_eps;
    a.n_heads = w->shape->n_heads, a.n_kv_heads = w->shape->n_kv_heads, a.head_dim = w->shape->head_dim;
    a.layer = w->layer;
    a.rows_max = w->pass->n_rows;
    a.layout = *w->layout;
    a.plan = w->ctx->plan;
    return ok(w, "heads", qkc_heads(w->launch, &a));
}

static qkc_attend_prefill_args attend_args(const way *w)
{
    const bool many = w->pass->kind == QKC_PASS_MANY;
    qkc_attend_prefill_args a = {};
    a.q = w->ctx->q;
    a.out_bf16 = many ? w->ctx->attn : NULL;
    a.out_f32 = many ? NULL : w->ctx->small_attn;
    a.n_heads = w->shape->n_heads, a.n_kv_heads = w->shape->n_kv_heads, a.head_dim = w->shape->head_dim;
    a.layer = w->layer;
    a.layout = *w->layout;
    a.plan = w->ctx->plan;
    a.tiles = w->ctx->tiles, a.merges = w->ctx->merges;
    a.parts_out = w->ctx->parts_out, a.parts_lse = w->ctx->parts_lse;
    a.state = w->ctx->ring.state;
    return a;
}

/* @n_pages int8 pages from entry @first_page of the page table on as bf16, behind @n_before others. */
static bool widen(way *w, const qkc_launch *launch, uint32_t first_page, uint32_t n_pages, uint32_t n_before)
{
    const qkc_widened *widened = &w->ctx->widened;
    qkc_dequantise_args a = {};
    a.to = widened->memory + n_before * widened->layout.layer_stride;
    a.to_pages = widened->pages;
    a.first_page = first_page;
    a.n_pages = n_pages;
    a.n_kv_heads = w->shape->n_kv_heads, a.head_dim = w->shape->head_dim, a.layer = w->layer;
    a.layout = *w->layout, a.to_layout = widened->layout;
    a.plan = w->ctx->plan;
    return ok(w, "int8 pages as bf16", qkc_dequantise(launch, &a));
}

static bool widen_range(way *w, const qkc_launch *launch, const qkc_range *range)
{
    const qk_seq *seq = &w->step->plan.seqs[w->step->stream.seqs[range->seq].seq];
    const uint32_t first = range->key_begin / QK_PAGE_TOKENS;
    const uint32_t end = (range->key_end + QK_PAGE_TOKENS - 1) / QK_PAGE_TOKENS;
    return widen(w, launch, seq->page_begin + first, end - first, 0);
}

/* All of the sequences that are not streamed: neighbours in the page table together. */
static bool widen_others(way *w, const qkc_launch *launch)
{
    const qk_plan *plan = &w->step->plan;
    uint32_t first = 0, n = 0, n_before = 0;
    for (uint32_t i = 0; i < plan->n_seqs; i++) {
        const qk_seq *seq = &plan->seqs[i];
        if (w->step->stream.is_streamed[i])
            continue;
        if (n > 0 && seq->page_begin != first + n) {
            if (!widen(w, launch, first, n, n_before))
                return false;
            n_before += n;
            n = 0;
        }
        if (n == 0)
            first = seq->page_begin;
        n += seq->n_pages;
    }
    return widen(w, launch, first, n, n_before);
}

/* Sequences with pages in host memory, range by range as these arrive, and in steps of many rows those with int8 pages,
 * which are attended to in copies. The launches are not programmatic: events stand between them. */
static bool attend_ranges(way *w, const qkc_attend_prefill_args *a)
{
    const qkc_stream *stream = &w->step->stream;
    qkc_launch launch = *w->launch;
    launch.pdl = false;
    if (!ok(w, "places in the ring", qkc_stream_place(&launch, w->step, w->layer)))
        return false;
    for (uint32_t i = 0; i < stream->n_ranges; i++) {
        const qkc_range *range = &stream->ranges[i];
        const qkc_round *tiles = &stream->seqs[range->seq].tiles;
        if (!ok(w, "a wait for host pages", qkc_stream_before(w->step, w->layer, range)) ||
            (stream->is_widened && !widen_range(w, &launch, range)) ||
            !ok(w, "attention of a range",
                qkc_attend_prefill_range(&launch, a, tiles, range->key_begin, range->key_end)) ||
            !ok(w, "copies of host pages", qkc_stream_after(w->step, w->layer, range)) ||
            (range->ends && !ok(w, "merging", qkc_attend_prefill_merge(&launch, a, tiles))))
            return false;
    }
    return true;
}

static bool attend(way *w)
{
    qkc_attend_prefill_args a = attend_args(w);
    qkc_launch launch = *w->launch;
    if (!w->pass->is_streamed)
        return ok(w, "attention", qkc_attend_prefill(&launch, &a, &w->pass->tiling));
    if (w->step->stream.is_widened) {
        launch.pdl = false; /* page tables change between the launches */
        a.layer = 0;
        a.layout = w->ctx->widened.layout;
        a.plan.pages = w->ctx->widened.pages;
        if (!widen_others(w, &launch))
            return false;
    }
    qkc_attend_prefill_args others = a;
    others.tiles += w->step->stream.n_tiles;
    others.merges += w->step->stream.n_merges;
    return ok(w, "attention", qkc_attend_prefill(&launch, &others, &w->pass->tiling)) && attend_ranges(w, &a);
}

/* In a decode step that times its parts: the heads once more by themselves, for the attention's kernel does them too. It
 * writes what that kernel will write again, and a q that nobody reads. */
static bool time_heads(way *w)
{
    if (!w->step->plan.profile || w->pass->kind != QKC_PASS_DECODE)
        return true;
    w->step->marks.result.kv_in_attend = true;
    return heads(w) && mark(w, QK_PART_KV);
}

/* ---- Passes of few rows -------------------------------------------------------------------------------------- */

static bool few_layer(way *w, const small_rows *r)
{
    const bool ends_here = is_last(w) && w->pass->n_outputs == 0;
    if (!small_qkv(w, r) || !mark(w, QK_PART_PROJECT))
        return false;
    if (w->pass->kind == QKC_PASS_DECODE) /* writes keys and values too */
        return time_heads(w) && (w->pass->outside ? attend_decode_outside(w) : attend_decode(w)) &&
               mark(w, QK_PART_ATTEND) && (ends_here || small_rest(w, r));
    if (!heads(w) || !mark(w, QK_PART_KV))
        return false;
    return ends_here || (attend(w) && mark(w, QK_PART_ATTEND) && small_rest(w, r));
}

static bool few_pass(way *w)
{
    small_rows r = {w->ctx->x, w->ctx->small_attn, w->pass->n_rows, w->ctx->small_max, w->ctx->plan};
    for (w->layer = 0; w->layer < w->shape->n_layers; w->layer++) {
        if (w->pass->kind == QKC_PASS_FEW && w->layer % LATCH_LAYERS == 0 &&
            !ok(w, "cancel",
                qkc_start(w->launch, latch_kernel, dim3(1), dim3(1), 0, w->ctx->plan,
                    (const volatile uint32_t *)w->step->cancel)))
            return false;
        if (!few_layer(w, &r))
            return false;
    }
    if (w->pass->n_outputs == 0)
        return report(w);
    r.n_max = w->pass->n_outputs;
    return lm_head(w, &r, true, w->ctx->logits, w->ctx->head.params.outputs_max) && mark(w, QK_PART_HEAD) &&
           sample(w);
}

/* ---- Many rows ----------------------------------------------------------------------------------------------- */

static uint32_t round_rows(uint32_t n)
{
    return (n + QKC_GEMM_ROWS_UNIT - 1) / QKC_GEMM_ROWS_UNIT * QKC_GEMM_ROWS_UNIT;
}

/* Rows of each of the fewest blocks of at most @max rows, about equal, a multiple of the unit as @max is. */
static uint32_t block_rows(uint32_t n, uint32_t max)
{
    const uint32_t n_blocks = (n + max - 1) / max;
    return round_rows((n + n_blocks - 1) / n_blocks);
}

static bool product(way *w, const qkc_bf16 *weight, const qkc_bf16 *x, void *y, uint32_t n_rows,
    uint32_t n_out, uint32_t n_in, bool add)
{
    return typed_product(w, weight, x, y, add ? QK_F32 : QK_BF16, n_rows, n_out, n_in, add);
}

static bool many_norm(way *w, const float *weight, const uint32_t *cancel)
{
    return ok(w, "norm",
        qkc_rms_norm(w->launch, w->ctx->norm, w->ctx->x, weight, w->shape->rms_eps, w->shape->hidden,
            round_rows(w->pass->n_rows), w->ctx->plan, false, cancel));
}

/* Gate,up and SiLU in blocks that mostly stay in the level 2 cache; down in larger ones, for it has few columns. */
static bool many_ffn(way *w)
{
    const qkc_layer *layer = &w->model->layers[w->layer];
    qkc_context *ctx = w->ctx;
    const uint32_t hidden = w->shape->hidden, ffn = w->shape->ffn, n = w->pass->n_rows;
    const uint32_t outer = block_rows(n, ctx->down_max);
    for (uint32_t at = 0; at < n; at += outer) {
        const uint32_t n_down = n - at < outer ? n - at : outer;
        const uint32_t inner = block_rows(n_down, ctx->up_max);
        for (uint32_t row = 0; row < n_down; row += inner) {
            const uint32_t n_up = n_down - row < inner ? n_down - row : inner;
            if (!product(w, layer->gate_up, ctx->norm + (size_t)(at + row) * hidden, ctx->gate_up, n_up,
                    2 * ffn, hidden, false) ||
                !ok(w, "SiLU",
                    qkc_silu_mul(
                        w->launch, ctx->act + (size_t)row * ffn, ctx->gate_up, ffn, n_up, ctx->plan)))
                return false;
        }
        if (!product(w, layer->down, ctx->act, ctx->x + (size_t)at * hidden, n_down, hidden, ffn, true))
            return false;
    }
    return true;
}

/* The last layer's rest and lm_head for the output rows, 64 at a time. */
static bool many_outputs(way *w)
{
    qkc_context *ctx = w->ctx;
    const uint32_t n = w->pass->n_outputs, hidden = w->shape->hidden;
    const uint32_t outputs_max = ctx->head.params.outputs_max;
    if (!ok(w, "gather",
            qkc_start(w->launch, gather_kernel, dim3(n), dim3(COPY_THREADS), 0, ctx->out_x, ctx->out_attn,
                ctx->tail_counts, (const float *)ctx->x, (const qkc_bf16 *)ctx->attn, hidden, ctx->q_dim,
                ctx->plan)))
        return false;
    for (uint32_t at = 0; at < n; at += QKC_SMALL_ROWS) {
        small_rows r = {ctx->out_x + (size_t)at * hidden, ctx->out_attn + (size_t)at * ctx->q_dim,
            n - at < ctx->small_max ? n - at : ctx->small_max, outputs_max - at, ctx->plan};
        r.plan.counts = ctx->tail_counts + at / QKC_SMALL_ROWS * 4;
        r.plan.outputs += at;
        if (!small_rest(w, &r) ||
            !lm_head(w, &r, false, ctx->logits + (size_t)at * w->shape->vocab, outputs_max - at) ||
            !mark(w, QK_PART_HEAD))
            return false;
    }
    return sample(w);
}

static bool many_pass(way *w)
{
    qkc_context *ctx = w->ctx;
    const uint32_t hidden = w->shape->hidden, n = w->pass->n_rows;
    for (w->layer = 0; w->layer < w->shape->n_layers; w->layer++) {
        const qkc_layer *layer = &w->model->layers[w->layer];
        if (!many_norm(w, layer->attn_norm, w->step->cancel) ||
            !product(w, layer->qkv, ctx->norm, ctx->qkv, n, ctx->qkv_dim, hidden, false) ||
            !mark(w, QK_PART_PROJECT) || !heads(w) || !mark(w, QK_PART_KV))
            return false;
        if (is_last(w))
            return w->pass->n_outputs == 0 ? report(w)
                                           : attend(w) && mark(w, QK_PART_ATTEND) && many_outputs(w);
        if (!attend(w) || !mark(w, QK_PART_ATTEND) ||
            !product(w, layer->o, ctx->attn, ctx->x, n, hidden, ctx->q_dim, true) ||
            !mark(w, QK_PART_PROJECT) || !many_norm(w, layer->ffn_norm, NULL) || !many_ffn(w) ||
            !mark(w, QK_PART_MLP))
            return false;
    }
    return true;
}

qk_status qkc_layers(const qkc_pass *pass)
{
    way w = {};
    w.pass = pass;
    w.ctx = pass->context;
    w.step = pass->step;
    w.launch = &pass->launch;
    w.model = (const qkc_model *)pass->context->head.model;
    w.shape = &w.model->head.shape;
    w.layout = pass->layout;
    w.step->marks.result.kv_in_attend = false;
    if (mark(&w, QK_PART_EMBED) && prepare(&w) && mark(&w, QK_PART_EMBED) &&
        (pass->kind == QKC_PASS_MANY ? many_pass(&w) : few_pass(&w)))
        return QK_OK;
    return w.status;
}
