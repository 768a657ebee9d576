/* cuda-ops.h: the launchers of the CUDA kernels, one group a file. No backend objects here, so that tests/gpu calls
 * each op alone. Internal to kernels/cuda and tests/gpu.
 *
 *   linear.cu               y = W x for few rows, streaming W at memory bandwidth, with what stands around it fused
 *   linear-hopper.cu        2 to 64 rows of it with wgmma, sm_90a only (linear-hopper.h)
 *   rows.cu                 one row at a time: prepare (plan, embedding, RoPE tables), RMSNorm, heads, SiLU
 *   attn-decode.cu          attention of sequences with one new row each: the whole stage in one launch
 *   attn-select.cu          before it, for sequences that leave pages out: bounds of pages, the choice of pages
 *   kv-int8.cu              int8 pages as bf16 ones, for the kernels below
 *   attn-prefill.cu         attention of any rows, portable (mma.sync)
 *   attn-prefill-hopper.cu  the same with wgmma, sm_90a only
 *   sample.cu               logits to token
 *   top.cu                  the most probable tokens
 *
 * Two ways through a layer (cuda-step.cu):
 *   few rows (n_rows <= QKC_SMALL_ROWS), activations float32:
 *     linear(norm+QKV) -> attend_decode (or heads + attend_prefill) -> linear(O, +x) -> linear(norm+gate,up, SiLU)
 *     -> linear(down, +x)
 *   many rows, activations bf16, x float32:
 *     rms_norm -> cublasLt QKV -> heads -> attend_prefill -> cublasLt O (+x) -> rms_norm -> cublasLt gate,up -> silu_mul
 *     -> cublasLt down (+x)
 *
 * Conventions
 *  1. Every launcher enqueues on launch->stream, is legal inside stream capture, allocates nothing, and returns the
 *     launch's error. Row counts are read on the device where a `const uint32_t *` is taken: a captured launch is then
 *     right for every n_rows up to its `rows_max`.
 *  2. Programmatic dependent launch (launch->pdl): a kernel may start before its predecessor has ended. So every kernel
 *     here executes qkc_pdl_wait() before it reads or writes anything that another kernel of the step writes or reads;
 *     before it, only weights and tables that are constant over the step may be touched. Every thread block executes it
 *     on every path, an early return included. qkc_pdl_trigger() comes as early as useful.
 *  3. All device memory is at least 16-byte aligned; n_in, head_dim and hidden are multiples of 8.
 *  4. Weights are bf16 row-major [n_out, n_in]; norm weights float32; sums float32 or better.
 *  5. The result for given inputs is the same in every run: no floating-point atomics, fixed orders of sums.
 *  6. launch->hopper selects kernels that need sm_90a; without it a kernel runs on sm_80 and newer, with at most 99 KB
 *     of shared memory a block. */
#pragma once
#include <cuda_bf16.h>
#include <cuda_runtime.h>
#include "kernels/qk.h"

typedef __nv_bfloat16 qkc_bf16;

#define QKC_SMALL_ROWS 64u /* rows of a step that go the first way */
#define QKC_WARP       32u

typedef struct {
    cudaStream_t stream;
    bool pdl;    /* sm_90 and newer: launch with programmatic stream serialization */
    bool hopper; /* sm_90 exactly: kernels built for sm_90a may be used */
    int n_sms;
} qkc_launch;

/* ---- Launching ----------------------------------------------------------------------------------------------- */

#ifdef __CUDACC__
__device__ __forceinline__ void qkc_pdl_wait(void)
{
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
    asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}

__device__ __forceinline__ void qkc_pdl_trigger(void)
{
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
    asm volatile("griddepcontrol.launch_dependents;" :::);
#endif
}

/* Launches @kernel with the launch's attributes, and with @more if that is not NULL. Raise its dynamic shared memory limit
 * before, once, outside capture (each file has a qkc_*_init() where it needs that). */
template <typename... Params, typename... Args>
static inline cudaError_t qkc_start_with(const qkc_launch *launch, const cudaLaunchAttribute *more,
    void (*kernel)(Params...), dim3 grid, dim3 block, size_t smem, Args... args)
{
    cudaLaunchAttribute attributes[2];
    cudaLaunchConfig_t config = {};
    config.gridDim = grid;
    config.blockDim = block;
    config.dynamicSmemBytes = smem;
    config.stream = launch->stream;
    config.attrs = attributes;
    if (more != NULL)
        attributes[config.numAttrs++] = *more;
    if (launch->pdl) {
        attributes[config.numAttrs].id = cudaLaunchAttributeProgrammaticStreamSerialization;
        attributes[config.numAttrs++].val.programmaticStreamSerializationAllowed = 1;
    }
    return cudaLaunchKernelEx(&config, kernel, Params(args)...);
}

template <typename... Params, typename... Args>
static inline cudaError_t qkc_start(
    const qkc_launch *launch, void (*kernel)(Params...), dim3 grid, dim3 block, size_t smem, Args... args)
{
    return qkc_start_with(launch, NULL, kernel, grid, block, smem, args...);
}

/* In clusters of @n blocks. */
template <typename... Params, typename... Args>
static inline cudaError_t qkc_start_clusters(const qkc_launch *launch, uint32_t n, void (*kernel)(Params...),
    dim3 grid, dim3 block, size_t smem, Args... args)
{
    cudaLaunchAttribute cluster;
    cluster.id = cudaLaunchAttributeClusterDimension;
    cluster.val.clusterDim.x = n;
    cluster.val.clusterDim.y = cluster.val.clusterDim.z = 1;
    return qkc_start_with(launch, &cluster, kernel, grid, block, smem, args...);
}

/* Lets @kernel have all shared memory that a block may have on the current device. */
static inline cudaError_t qkc_allow_shared_memory(const void *kernel)
{
    int device = 0, most = 0;
    cudaFuncAttributes a;
    cudaError_t code = cudaGetDevice(&device);
    if (code == cudaSuccess)
        code = cudaDeviceGetAttribute(&most, cudaDevAttrMaxSharedMemoryPerBlockOptin, device);
    if (code == cudaSuccess)
        code = cudaFuncGetAttributes(&a, kernel);
    if (code == cudaSuccess)
        code = cudaFuncSetAttribute(
            kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, most - (int)a.sharedSizeBytes);
    return code;
}
#endif

/* Raise shared memory limits and read device properties; once a process and device, before the first launch and outside
 * capture. Each is idempotent. */
cudaError_t qkc_linear_init(void);
cudaError_t qkc_attend_decode_init(void);
cudaError_t qkc_select_init(void);
cudaError_t qkc_attend_prefill_init(void);
cudaError_t qkc_attend_prefill_hopper_init(void);
cudaError_t qkc_linear_hopper_init(void);
cudaError_t qkc_sample_init(void);

/* ---- The plan on the device ---------------------------------------------------------------------------------- */

/* What a step's kernels read. The arrays have their context's maxima. Filled by qkc_prepare() at the head of each step;
 * constant during the rest of it, but for `state`. Passed by value. */
typedef struct {
    uint32_t *counts;   /* [4]: n_rows, n_seqs, n_pages, n_outputs */
    int32_t *token;     /* [rows_max]: slots resolved */
    uint32_t *position; /* [rows_max] */
    uint32_t *row_seq;  /* [rows_max]: index into seqs */
    float *cos_sin;  /* [rows_max, head_dim]: head_dim / 2 cosines, then as many sines, times rope_factor */
    qk_seq *seqs;    /* [seqs_max] */
    uint64_t *pages; /* [pages_max]: without QK_PAGE_HOST */
    qk_output *outputs; /* [outputs_max] */
    uint32_t *
        state; /* [1]: a qk_status. QK_OK, or QK_CANCELLED or QK_INVALID: later kernels may return at once, and
                           the sampler changes no slot and no history */
} qkc_plan;

/* A submitted plan in mapped pinned host memory, written by the host before the launch: the plan's own arrays, and what
 * the first kernel reads in their place. A read over PCIe takes more than a microsecond, and the reads of one line by
 * several blocks are served one after the other: what several blocks need is there once for each, on a line of its
 * own. Arrays have room for whole 16 bytes. */
#define QKC_PLAN_READERS 5u
#define QKC_LINE_ROWS    8u /* rows that share a line of 128 bytes */
typedef struct {
    uint32_t counts[4]; /* n_rows, n_seqs, n_pages, n_outputs */
    uint32_t alone[28];
} qkc_host_counts;
typedef struct {
    int32_t token; /* >= 0 an id, else ~slot */
    uint32_t position, seq;
    uint32_t used; /* 1; 0: the plan does not have this row */
} qkc_host_row;
typedef struct {
    const qkc_host_counts *counts;             /* [QKC_PLAN_READERS], all the same */
    const qkc_host_row *rows;                  /* [rows_max rounded up to QKC_LINE_ROWS] */
    const int32_t *tokens;                     /* [rows_max]: as in rows */
    const qk_seq *seqs;                        /* [seqs_max] */
    const uint64_t *pages;                     /* [pages_max] */
    const qk_output *outputs;                  /* [outputs_max] */
    uint32_t seqs_max, pages_max, outputs_max; /* what may be read, whatever the counts say */
    const volatile uint32_t *cancel;           /* [1]: not 0: give the step up at the next layer */
} qkc_host_plan;

/* ---- rows.cu ------------------------------------------------------------------------------------------------- */

typedef struct {
    qkc_host_plan from;
    qkc_plan to;
    const int32_t *slots;   /* [slots_max] device: -1 until written */
    const qkc_bf16 *embed;  /* [vocab, hidden] */
    float *x;               /* [rows_max, hidden]: receives the embeddings */
    const double *inv_freq; /* [head_dim / 2] device */
    float rope_factor;
    uint32_t head_dim, hidden;
    uint32_t rows_max; /* of this launch: the grid covers them */
    uint32_t *zeros;   /* [n_zeros]: set to 0 */
    uint32_t n_zeros;
} qkc_prepare_args;

/* Fills what of a host plan is made of the others, for a launch whose rows_max is at most @rows_max: host code. */
void qkc_write_rows(const qk_plan *plan, uint32_t rows_max, qkc_host_counts *counts, qkc_host_row *rows);

/* Copies the plan to the device (pages without QK_PAGE_HOST), finds each row's token, fills cos_sin (angles in float64,
 * as the CPU backend) and x. A
 * row that takes an unwritten slot sets *state to QK_INVALID; else *state becomes QK_OK. head_dim is 64 or 128. */
cudaError_t qkc_prepare(const qkc_launch *launch, const qkc_prepare_args *args);

/* out[r] = bf16(x[g(r)] * rsqrt(mean(x[g(r)]^2) + eps) * weight), g(r) = outputs[r].row when @gather, else r. Rows from
 * the plan's count on (n_outputs when gathering) up to rows_max get zeros. One thread latches plan.state from
 * @cancel when that is not NULL and not 0. */
cudaError_t qkc_rms_norm(const qkc_launch *launch, qkc_bf16 *out, const float *x, const float *weight,
    float eps, uint32_t hidden, uint32_t rows_max, qkc_plan plan, bool gather,
    const volatile uint32_t *cancel);

/* Norm and rotation of every row's heads; keys and values go to their pages, rounded to bf16 or quantised from float32.
 * The input is float32 (few rows) or bf16
 * (many rows): exactly one of qkv_f32 and qkv_bf16 is set. */
typedef struct {
    const float *qkv_f32;         /* [rows, q_dim + 2 * kv_dim]: q heads, then k heads, then v heads */
    const qkc_bf16 *qkv_bf16;     /* the same */
    qkc_bf16 *q;                  /* [rows_max, q_dim]: after q-norm and RoPE, not scaled */
    const float *q_norm, *k_norm; /* [head_dim] */
    float eps;
    uint32_t n_heads, n_kv_heads, head_dim, layer, rows_max;
    qk_kv_layout layout; /* bf16 or int8 */
    qkc_plan plan;
} qkc_heads_args;
cudaError_t qkc_heads(const qkc_launch *launch, const qkc_heads_args *args);

/* act[r, i] = bf16(silu(gate_up[r, i]) * gate_up[r, ffn + i]), in float32. Rows from @rows_max on are left alone, also
 * when the plan has them. */
cudaError_t qkc_silu_mul(const qkc_launch *launch, qkc_bf16 *act, const qkc_bf16 *gate_up, uint32_t ffn,
    uint32_t rows_max, qkc_plan plan);

/* ---- linear.cu ----------------------------------------------------------------------------------------------- */

typedef enum {
    QKC_STORE,    /* y[r, o] = sum */
    QKC_ADD,      /* y[r, o] += sum */
    QKC_SILU_MUL, /* W is [2 * n_out, n_in], gate rows then up rows: y[r, o] = silu(sum_gate) * sum_up */
} qkc_then;

/* y = W f(x) for n_rows <= rows_max <= QKC_SMALL_ROWS, f being RMSNorm when norm is set. The input is rounded to bf16
 * after f where tensor cores are used. */
typedef struct {
    const qkc_bf16 *w; /* [n_out (twice that for QKC_SILU_MUL), n_in] */
    const float *x;    /* [rows, n_in] */
    const float *norm; /* [n_in] or NULL */
    float eps;
    float *y; /* [rows, n_out] */
    uint32_t n_out, n_in, rows_max;
    qkc_then then;
    bool
        gather; /* row i of the work is x row outputs[i].row and y row i; their number is n_outputs, not n_rows */
    qkc_plan plan;
} qkc_linear_args;
cudaError_t qkc_linear(const qkc_launch *launch, const qkc_linear_args *args);

/* ---- linear-chain.cu ----------------------------------------------------------------------------------------- */

/* @n products of one row (rows_max 1, no gather, the same plan), each of which may read what those before wrote, in one
 * cooperative launch. @arrived: [n - 1] device, 0. The results are those of qkc_linear() to the last bit. Not on Hopper's
 * path, where kernels overlap. */
#define QKC_CHAIN_MAX 4u
bool qkc_linear_chain_suits(const qkc_launch *launch, const qkc_linear_args *args, uint32_t n);
cudaError_t qkc_linear_chain(
    const qkc_launch *launch, const qkc_linear_args *args, uint32_t n, uint32_t *arrived);

/* ---- attn-decode.cu ------------------------------------------------------------------------------------------ */

/* Attention where every sequence has one new row (row r is sequence r), the whole stage: norm and rotation of q and k,
 * the new key and value into their page, attention over the pages, merging.
 *
 * A sequence of n keys is cut at multiples of QK_SPAN_TOKENS * ceil(ceil(n / QK_SPAN_TOKENS) / QKC_ITEMS_A_SEQ): a
 * function of its length alone. Pieces' results (normalised, float32, with their log-sum-exp) are merged in position
 * order in float32.
 *
 * With launch->pdl a launch with layer > 0 reads the plan (not its state), cos_sin and older keys and values before its
 * wait: in the stream, the same step's launch with layer - 1 comes before it, and that triggers after its own wait. A
 * given-up step (plan.state) leaves the output alone; its new keys and values may or may not be written.
 *
 * With @lse pages at address 0 are outside: whole spans, none of them with the new token; their keys do not count. Cuts
 * and orders of sums stay those of the sequence's length. Without it no page may be at address 0. */
#define QKC_ITEMS_A_SEQ 64u
typedef struct {
    const float *qkv;   /* [rows_max, q_dim + 2 * kv_dim]: raw, out of the QKV product */
    float *out;         /* [rows_max, q_dim] */
    qkc_bf16 *out_bf16; /* NULL, or the same rounded, in place of out */
    const float *q_norm, *k_norm;
    float eps;
    uint32_t n_heads, n_kv_heads, head_dim, layer, rows_max;
    qk_kv_layout layout; /* bf16 or int8 */
    qkc_plan plan;
    void *
        workspace; /* qkc_attend_decode_bytes(); zeroed once by its owner, left zeroed where it counts: in the first
                        qkc_attend_decode_bytes(0, ...), the rest may be overwritten between launches */
    const volatile uint32_t *cancel; /* latched into plan.state when not NULL */
    bool
        trigger; /* let the next kernel start when all blocks are at their last piece, not when they have ended */
    /* A launch over some of the work: of the list of all sequences' pieces, sequence by sequence in position order, those
     * from first_piece on that are below end_piece (0: all). A layer's launches have each piece once, and what ends last
     * merges. They are not programmatic. */
    uint32_t first_piece, end_piece;
    /* With sequences that leave pages out (qk.h): the pages that they attend to lie in the page table from lists_begin on
     * (at least pages_max), those for the next kv head lists_stride further, sequence by sequence; a sequence is cut as one
     * of so many pages. lists_stride 0: all sequences attend to all of their pages. */
    uint32_t lists_begin, lists_stride;
    float
        *lse; /* [rows_max, n_heads]: receives ln of the sum of exp(q.k / sqrt(head_dim)); NULL: not wanted */
} qkc_attend_decode_args;
uint32_t qkc_attend_decode_piece_keys(uint32_t n_keys); /* of a sequence of @n_keys */
size_t qkc_attend_decode_bytes(uint32_t seqs_max, uint32_t n_heads, uint32_t n_kv_heads, uint32_t head_dim);
cudaError_t qkc_attend_decode(const qkc_launch *launch, const qkc_attend_decode_args *args);

/* ---- attn-select.cu ------------------------------------------------------------------------------------------ */

/* Of a sequence with one row: how many of its pages it attends to. */
static __host__ __device__ __forceinline__ uint32_t qkc_pages_attended(
    uint32_t n_pages, uint32_t n_sink, uint32_t n_recent, uint32_t n_chosen)
{
    const uint64_t n = (uint64_t)n_sink + n_recent + n_chosen;
    return n_recent > 0 && n < n_pages ? (uint32_t)n : n_pages;
}

/* Makes bounds of bf16 pages: of @items (a host array, read before the return), all layers and kv heads. */
cudaError_t qkc_make_bounds(const qkc_launch *launch, const qk_bounds *items, uint32_t n,
    const qk_kv_layout *layout, uint32_t n_layers, uint32_t n_kv_heads, uint32_t head_dim);

/* The choice of pages of a layer, for the sequences of a decode step that leave pages out: scores, then the lists that
 * qkc_attend_decode() takes. Two launches. */
typedef struct {
    const float *qkv; /* as for qkc_attend_decode() */
    const float *q_norm;
    float eps;
    uint32_t n_heads, n_kv_heads, head_dim, layer, rows_max;
    qkc_plan plan;          /* pages: has the lists behind it */
    const uint64_t *bounds; /* [pages_max]: of the plan's pages */
    uint32_t *keys;         /* [n_kv_heads, pages_max]: scores as integers that compare like them */
    uint32_t pages_max,
        n_scored_max; /* n_scored_max: pages between sinks and recent ones, of one sequence at most */
    uint32_t lists_begin, lists_stride;
    uint32_t warp_pages; /* set by qkc_select() */
} qkc_select_args;
cudaError_t qkc_select(const qkc_launch *launch, const qkc_select_args *args);
/* The launches have the shape of n_scored_max, what they do that of the plan. So captured ones serve all plans of a size. */
#define QKC_SELECT_SIZES 4u
uint32_t qkc_select_size(uint32_t n_scored_max);                   /* the smallest that has so many pages */
uint32_t qkc_select_size_pages(uint32_t size, uint32_t pages_max); /* n_scored_max of such launches */

/* ---- kv-int8.cu ---------------------------------------------------------------------------------------------- */

/* Keys and values of one layer of int8 pages, rounded to bf16, for attention kernels that read bf16. Their page table gets
 * the places at the same indices; they are attended to as layer 0 of @to_layout. */
typedef struct {
    char *to;            /* [n_pages, to_layout.layer_stride] */
    uint64_t *to_pages;  /* [pages_max]: of the entries from @first_page on, @n_pages are written */
    uint32_t first_page; /* in the plan's page table */
    uint32_t n_pages;
    uint32_t n_kv_heads, head_dim, layer;
    qk_kv_layout layout, to_layout; /* int8; bf16 */
    qkc_plan plan;                  /* its pages: device memory, or host memory that the device can read */
} qkc_dequantise_args;
cudaError_t qkc_dequantise(const qkc_launch *launch, const qkc_dequantise_args *args);
/* A bf16 page of one layer without gaps. */
void qkc_widened_layout(uint32_t n_kv_heads, uint32_t head_dim, qk_kv_layout *out);

/* ---- attn-prefill.cu, attn-prefill-hopper.cu ----------------------------------------------------------------- */

/* Attention of rows whose q is ready and whose keys and values are in their pages. Causal: a row at position p attends
 * to keys 0..p of its sequence. The host knows the plan's sequences and cuts the work into tiles before the launch.
 *
 * A tile is up to `tile_rows` consecutive rows of one sequence for all query heads of one kv head, over the keys
 * [key_begin, key_end). Where a sequence's keys are cut, its tiles have `n_parts` parts for the same rows; their results
 * go to the parts workspace and a second kernel merges them in position order. Where keys are cut depends on the
 * sequence's start and n_rows (and on the shape, the device and part_rows_max) alone, never on the step's other
 * sequences: when the parts of all do not fit the workspace at once, the launch runs in rounds that reuse it. */
typedef struct {
    uint32_t seq, row, n_rows; /* row: index into the plan's rows */
    uint32_t key_begin,
        key_end; /* key_begin is a multiple of QK_SPAN_TOKENS; key_end <= last row's position + 1 */
    uint32_t part, n_parts; /* n_parts 1: the tile writes the output itself */
    uint32_t part_slot; /* first row of this tile in the parts workspace (rows of [n_heads, head_dim] + lse):
                                    part p's row t is at part 0's part_slot + p * n_rows + t */
} qkc_tile;

typedef struct {
    const qkc_bf16 *q;  /* [rows, q_dim] */
    qkc_bf16 *out_bf16; /* [rows, q_dim], or NULL */
    float *out_f32;     /* [rows, q_dim], or NULL; exactly one is set */
    uint32_t n_heads, n_kv_heads, head_dim, layer;
    qk_kv_layout layout; /* bf16; int8 where qkc_attend_prefill_takes_int8(), see there */
    qkc_plan plan;
    const qkc_tile *tiles; /* device: in each round the longest first */
    uint32_t n_tiles;      /* set by qkc_attend_prefill(): of this round */
    const qkc_tile
        *merges; /* device: one for each group of parts: its rows, n_parts, part_slot of its first part */
    uint32_t n_merges; /* set by qkc_attend_prefill(): of this round */
    float *parts_out;  /* [part_rows_max, q_dim] */
    float *parts_lse;  /* [part_rows_max, n_heads] */
    float *state;      /* [rows_max, n_heads, head_dim + QKC_STATE_EXTRA]: of qkc_attend_prefill_range() */
    uint32_t range_begin, range_end; /* set by qkc_attend_prefill_range() */
} qkc_attend_prefill_args;

/* What a tile that is not at its end keeps of each row and head: its sums of P V as they are, the four sums of
 * exponentials of the threads that share a row, the largest score; three are unused. */
#define QKC_STATE_EXTRA 8u

/* Tiles and merges that run together: their parts are in the workspace at the same time. */
typedef struct {
    uint32_t tile, n_tiles, merge, n_merges;
} qkc_round;

#define QKC_PARTS_MAX  64u  /* of a sequence */
#define QKC_ROUNDS_MAX 130u /* 1 + 2 * QKC_PARTS_MAX: enough when part_rows_max >= rows_max */
typedef struct {
    uint32_t n_tiles, n_merges;
    uint32_t n_part_rows; /* the largest of all rounds */
    uint32_t n_rounds;
    qkc_round rounds[QKC_ROUNDS_MAX];
} qkc_tiling;

/* Room for tiles, and for merges. */
uint32_t qkc_tiles_max(uint32_t rows_max, uint32_t seqs_max, uint32_t n_heads, uint32_t n_kv_heads);
/* What part_rows_max should be: then it hardly ever limits the parts of a sequence. */
uint32_t qkc_part_rows_max(uint32_t rows_max);
/* Cuts a plan into tiles: host code, no CUDA call, no allocation. tiles and merges are host arrays with room for
 * qkc_tiles_max(); the caller copies them to the device. Any part_rows_max will do: a sequence has so few parts that
 * they fit it alone. */
void qkc_cut_tiles(const qk_plan *plan, uint32_t n_heads, uint32_t n_kv_heads, uint32_t head_dim, bool hopper,
    int n_sms, uint32_t part_rows_max, qkc_tile *tiles, qkc_tile *merges, qkc_tiling *out);
/* The same without the sequences that @leave_out has true for. */
void qkc_cut_other_tiles(const qk_plan *plan, const bool *leave_out, uint32_t n_heads, uint32_t n_kv_heads,
    uint32_t head_dim, bool hopper, int n_sms, uint32_t part_rows_max, qkc_tile *tiles, qkc_tile *merges,
    qkc_tiling *out);
/* @tiling: host; as it came from qkc_cut_tiles(), with hopper = launch->hopper and the same shape. args->tiles and
 * args->merges are the whole arrays. */
cudaError_t qkc_attend_prefill(
    const qkc_launch *launch, const qkc_attend_prefill_args *args, const qkc_tiling *tiling);

/* Whether qkc_attend_prefill() takes pages of this int8 layout: parts that begin at multiples of 16 bytes. Its result has the
 * bits of that over qkc_dequantise()'s copies: the same numbers are made in shared memory, anew for each tile. So it is for
 * few rows over many keys. Ranges of keys are for bf16 alone. */
bool qkc_attend_prefill_takes_int8(const qk_kv_layout *layout);

/* The same for one sequence, in several launches over ranges of its keys: for keys that pass through a ring. The ranges
 * are given from the last keys to the first, without gaps, each beginning at a multiple of QK_SPAN_TOKENS. A tile goes on
 * where the launch before left it: its bits are those of one launch over everything. Since a row has one place for its
 * state, a launch must not end one part that another launch has begun and begin one that another will end:
 * qkc_range_cut(). @tiles: the sequence's own, of qkc_cut_sequence_tiles(). The merges are a launch of their own, after
 * the last range. */
cudaError_t qkc_attend_prefill_range(const qkc_launch *launch, const qkc_attend_prefill_args *args,
    const qkc_round *tiles, uint32_t key_begin, uint32_t key_end);
cudaError_t qkc_attend_prefill_merge(
    const qkc_launch *launch, const qkc_attend_prefill_args *args, const qkc_round *tiles);
/* The tiles of sequence @seq alone, as qkc_cut_tiles() cuts them: @first says where in @tiles and @merges they go, and
 * gets how many there are. Returns into how many parts its keys are cut. */
uint32_t qkc_cut_sequence_tiles(const qk_plan *plan, uint32_t seq, uint32_t n_heads, uint32_t n_kv_heads,
    uint32_t head_dim, bool hopper, int n_sms, uint32_t part_rows_max, qkc_tile *tiles, qkc_tile *merges,
    qkc_round *first);
/* Where a range of a sequence of @n_keys in @n_parts is to be cut in two launches: @key_begin when one will do, else a key
 * in between. */
uint32_t qkc_range_cut(uint32_t n_keys, uint32_t n_parts, uint32_t key_begin, uint32_t key_end);

/* The portable kernel has two forms: 4 warps of 32 rows, two blocks an SM (cards with 160 KB of shared memory an SM),
 * and 8 warps of 16 rows, one block an SM. qkc_attend_prefill_init() chooses; tests and benchmarks choose themselves. */
typedef enum { QKC_PREFILL_WIDE, QKC_PREFILL_NARROW } qkc_prefill_form;
void qkc_attend_prefill_choose(qkc_prefill_form form);

/* Called when launch->hopper and the shape suits (qkc_attend_prefill_hopper_runs()). Does args->n_tiles tiles from
 * args->tiles on, of their keys those in the range when @in_range; merges nothing. */
bool qkc_attend_prefill_hopper_runs(uint32_t n_heads, uint32_t n_kv_heads, uint32_t head_dim);
uint32_t qkc_attend_prefill_hopper_tile_rows(uint32_t n_heads, uint32_t n_kv_heads, uint32_t head_dim);
cudaError_t qkc_attend_prefill_hopper(
    const qkc_launch *launch, const qkc_attend_prefill_args *args, bool in_range);

/* ---- sample.cu ----------------------------------------------------------------------------------------------- */

/* For each output of the plan: what kernels/cpu/sample.c computes from the same logits, history and sampling. */
typedef struct {
    const float *logits; /* [outputs_max, vocab]: row i is output i's */
    uint32_t vocab;
    uint32_t outputs_max; /* of this launch; n_outputs is read from the plan */
    qkc_plan plan;
    int32_t *slots;            /* [slots_max] device */
    uint16_t *history;         /* [slots_max, vocab] device: a qk_seen each, as in kernels/cpu/sample.h */
    const uint32_t *masks;     /* [masks_max, qk_mask_words(vocab)] device: the plan's */
    const qk_bias *biases;     /* [biases_max] device: the plan's */
    qk_output_result *results; /* [outputs_max]: mapped pinned host memory */
    uint32_t *status;          /* [1]: mapped pinned host memory: receives plan.state, after the results */
    void *workspace;           /* qkc_sample_bytes(); zeroed once by its owner, left zeroed where it counts */
} qkc_sample_args;
size_t qkc_sample_bytes(uint32_t outputs_max, uint32_t vocab);
cudaError_t qkc_sample(const qkc_launch *launch, const qkc_sample_args *args);

/* ---- top.cu -------------------------------------------------------------------------------------------------- */

/* For each output: its n_top most probable ids, as qk_sample_top() of kernels/cpu/sample.h. */
typedef struct {
    const float *logits; /* [n_outputs, vocab] */
    uint32_t vocab, n_outputs;
    const qk_output *outputs; /* [n_outputs] device-visible */
    qk_top *tops;             /* [n_outputs, QK_TOP_MAX]: mapped pinned host memory */
} qkc_top_args;
cudaError_t qkc_top(const qkc_launch *launch, const qkc_top_args *args);
