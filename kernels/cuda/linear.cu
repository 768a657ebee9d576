/* linear.cu: y = W f(x) for one row: a matrix-vector product that streams W at memory bandwidth, with RMSNorm of the
 * input and the residual or SiLU(gate) * up at the output fused. More rows go to linear-mma.cu, and so does a row
 * that shared memory cannot hold beside a ring (n_in above about 16,500 on the portable path, 49,000 on Hopper's).
 *
 *  1. A block owns a contiguous range of outputs, equal over the grid to within one, and one block (a few on the portable
 *     path) runs on each SM for the kernel's whole life. Its weights are cut into units of 512 inputs (1 KiB) of one row;
 *     warp w takes units w, w + 16, ... of its rows, so that all warps stream equally whatever the shape.
 *  2. Each warp has a private ring of DEPTH units in shared memory, kept full by cp.async. A lane
 *     reads only bytes that it copied itself: cp.async needs no barrier. The ring is filled before qkc_pdl_wait().
 *  3. The next kernel is let go when a block has asked for its last weights (not at the start): its ring then fills behind
 *     ours, while our last units arrive, our sums are added up and this grid's memory is made visible.
 *  4. The norm's factor rsqrt(mean(x^2) + eps) is one number, so it multiplies the finished sum: blocks begin as soon as
 *     x * weight lies in shared memory, and the sum of squares is completed at the end.
 *  5. A unit's sum is reduced over the lanes in a fixed tree and stored apart; units of a row are added in order. Nothing
 *     depends on which warp was faster. How a unit is multiplied: linear-row.h.
 *  6. What other kernels write (x, y, plan) is read with ld.cg: the L1 of an SM is not kept coherent between kernels that
 *     overlap.
 *
 * Floor (H200, 4.13 TB/s): QKV [6144, 2560] 31.5 MB 7.6 us; O [2560, 4096] 21.0 MB 5.1 us; gate, up [19456, 2560] 99.6 MB
 * 24.1 us; down [2560, 9728] 49.8 MB 12.1 us: 48.9 us a layer; lm_head [151936, 2560] 778 MB 188 us. 2 FLOP a weight. */
#include "kernels/cuda/linear-row.h"

#define GEMV_SUMS_MAX  8192u /* unit sums of a block: 32 KiB of shared memory */
#define GEMV_DEPTH_MAX 6u
#define GEMV_TALL      65536u

typedef struct {
    const qkc_bf16 *w;
    const float *x, *norm;
    float *y;
    const uint32_t *count, *state;
    const qk_output *outputs; /* NULL: row 0 */
    float eps;
    uint32_t n_out, n_in;
    uint32_t units;   /* of a row */
    uint32_t ring_at; /* byte offsets in shared memory */
    uint32_t sums_at;
    qkc_then then;
    bool early;
} gemv_params;

/* ---- The ring ------------------------------------------------------------------------------------------------ */

/* The next unit that a warp asks for: unit @unit of the block's matrix row @row. */
typedef struct {
    uint32_t row, unit;
} gemv_cursor;

static __device__ __forceinline__ void advance(gemv_cursor *at, uint32_t units)
{
    at->row += GEMV_WARPS / units;
    at->unit += GEMV_WARPS % units;
    if (at->unit >= units) {
        at->unit -= units;
        at->row++;
    }
}

/* Asks for the cursor's unit, if it is one of the block's, and moves on. Always one commit group. */
static __device__ __forceinline__ void ask(const gemv_params &p, gemv_cursor *at, uint32_t first, uint32_t n,
    uint32_t n_rows, uint4 *slot, uint64_t policy)
{
    if (at->row < n_rows) {
        /* Rows past the block's outputs are their up rows (QKC_SILU_MUL). */
        uint32_t row = at->row < n ? first + at->row : p.n_out + first + at->row - n;
        copy_unit(p.w, p.n_in, row, at->unit, slot, policy);
        advance(at, p.units);
    }
    copy_commit();
}

/* ---- The product --------------------------------------------------------------------------------------------- */

template <uint32_t DEPTH, gemv_form FORM>
__global__ void __launch_bounds__(GEMV_THREADS, 2) gemv(gemv_params p)
{
    extern __shared__ __align__(128) unsigned char smem[];
    __shared__ float squares[GEMV_WARPS];
    const uint32_t warp = threadIdx.x / QKC_WARP, lane = threadIdx.x % QKC_WARP;
    const uint32_t first = (uint32_t)((uint64_t)p.n_out * blockIdx.x / gridDim.x);
    const uint32_t n = (uint32_t)((uint64_t)p.n_out * (blockIdx.x + 1) / gridDim.x) - first;
    const uint32_t n_rows = p.then == QKC_SILU_MUL ? 2 * n : n;
    const uint64_t policy = linear_stream_policy();
    uint4 *ring = (uint4 *)(smem + p.ring_at) + warp * DEPTH * GEMV_UNIT_CHUNKS;
    float *sums = (float *)(smem + p.sums_at);
    gemv_cursor at = {warp / p.units, warp % p.units};
    bool triggered = p.early;

    if (p.early)
        qkc_pdl_trigger();
#pragma unroll
    for (uint32_t d = 0; d < DEPTH; d++)
        ask(p, &at, first, n, n_rows, ring + d * GEMV_UNIT_CHUNKS, policy);
    if (!triggered && at.row >= n_rows) {
        qkc_pdl_trigger();
        triggered = true;
    }

    qkc_pdl_wait();
    const uint32_t count = __ldcg(p.count), state = __ldcg(p.state);
    /* What the outputs hold beyond their count is undefined. */
    const size_t x_row = p.outputs && count ? __ldcg(&p.outputs->row) : 0;
    float old = 0;
    if (p.then == QKC_ADD && threadIdx.x < n)
        old = __ldcg(p.y + first + threadIdx.x);
    float s = stage_x<FORM>(p.x + x_row * p.n_in, p.norm, p.n_in, p.units, smem);
    if (p.norm) {
        s = warp_sum(s);
        if (lane == 0)
            squares[warp] = s;
    }
    __syncthreads();

    const uint32_t n_units = n_rows * p.units;
    uint32_t slot = 0, unit = warp % p.units;
    for (uint32_t i = warp; i < n_units; i += GEMV_WARPS) {
        uint4 *from = ring + slot * GEMV_UNIT_CHUNKS;
        copy_wait<DEPTH - 1>();
        const uint4 w[2] = {from[lane], from[QKC_WARP + lane]};
        ask(p, &at, first, n, n_rows, from, policy);
        if (!triggered && at.row >= n_rows) {
            qkc_pdl_trigger();
            triggered = true;
        }
        float sum = unit_sum<FORM>(w, smem, unit, p.units);
        if (lane == 0)
            sums[i] = sum;
        unit += GEMV_WARPS % p.units;
        unit -= unit >= p.units ? p.units : 0;
        slot = slot + 1 == DEPTH ? 0 : slot + 1;
    }
    __syncthreads();
    if (count == 0 || state != QK_OK || threadIdx.x >= n)
        return;

    const float scale = p.norm ? norm_factor(squares, p.n_in, p.eps) : 1;
    p.y[first + threadIdx.x] = output(sums, threadIdx.x, n, p.units, p.then, scale, old);
}

/* ---- Launching ----------------------------------------------------------------------------------------------- */

typedef void (*gemv_fn)(gemv_params);
template <gemv_form FORM> static gemv_fn gemv_of_depth(uint32_t depth)
{
    switch (depth) {
    case 2:
        return gemv<2, FORM>;
    case 3:
        return gemv<3, FORM>;
    case 4:
        return gemv<4, FORM>;
    case 5:
        return gemv<5, FORM>;
    default:
        return gemv<6, FORM>;
    }
}

static gemv_fn gemv_pick(uint32_t depth, bool hopper)
{
    return hopper ? gemv_of_depth<GEMV_FMA>(depth) : gemv_of_depth<GEMV_MMA>(depth);
}

cudaError_t qkc_linear_init(void)
{
    cudaError_t code = cudaSuccess;
    for (uint32_t depth = 2; depth <= GEMV_DEPTH_MAX && code == cudaSuccess; depth++)
        for (int hopper = 0; hopper < 2 && code == cudaSuccess; hopper++)
            code = qkc_allow_shared_memory((const void *)gemv_pick(depth, hopper != 0));
    if (code == cudaSuccess)
        code = qkc_linear_chain_init();
    return code == cudaSuccess ? qkc_linear_mma_init() : code;
}

typedef struct {
    uint32_t depth, grid;
    size_t smem;
} gemv_shape;

/* The grid that gives each SM @per_sm blocks at a time, in as few rounds as the sums' space allows, and the deepest ring
 * that fits @limit bytes. False when none does. */
static bool gemv_fit(const qkc_launch *launch, const qkc_linear_args *args, uint32_t per_sm, uint32_t depth,
    size_t limit, gemv_shape *out)
{
    uint32_t units = gemv_units(args->n_in), rows = args->then == QKC_SILU_MUL ? 2 : 1;
    uint64_t blocks = (uint64_t)launch->n_sms * per_sm;
    uint32_t n_most = min(GEMV_SUMS_MAX / (units * rows), GEMV_THREADS); /* outputs of a block */
    if (n_most == 0)
        return false;
    uint64_t rounds = (args->n_out + blocks * n_most - 1) / (blocks * n_most);
    out->grid = (uint32_t)min(blocks * rounds, (uint64_t)args->n_out);
    uint32_t n = (args->n_out + out->grid - 1) / out->grid;
    for (out->depth = min(depth, GEMV_DEPTH_MAX); out->depth >= 2; out->depth--) {
        out->smem = (size_t)units * GEMV_UNIT * sizeof(float) + GEMV_WARPS * out->depth * GEMV_UNIT * 2 +
                    ((size_t)n * rows * units * sizeof(float) + 15) / 16 * 16;
        if (out->smem + 128 <= limit)
            return true;
    }
    return false;
}

static bool gemv_choose(
    const qkc_launch *launch, const qkc_linear_args *args, const qkc_linear_tuning *tuning, gemv_shape *out)
{
    uint32_t depth = tuning->depth ? tuning->depth : GEMV_DEPTH_MAX;
    const bool tall =
        args->n_out >= GEMV_TALL; /* lm_head: nothing runs beside it, two blocks fill an SM better */
    uint32_t per_sm = tuning->per_sm ? tuning->per_sm : launch->hopper && !tall ? 1 : 2;
    if (!launch->hopper) {
        /* Two blocks on an SM bridge each other's start and end. */
        if (gemv_fit(launch, args, per_sm, depth, QKC_LINEAR_SMEM_SM89 / per_sm - QKC_LINEAR_SMEM_TAKEN, out))
            return true;
        return gemv_fit(launch, args, 1, depth, QKC_LINEAR_SMEM_PORTABLE, out);
    }
    if (tall && gemv_fit(launch, args, per_sm, depth, QKC_LINEAR_SMEM_HALF * 2 / per_sm, out))
        return true;
    if (gemv_fit(launch, args, per_sm, depth, QKC_LINEAR_SMEM_HALF / per_sm, out))
        return true;
    return gemv_fit(launch, args, 1, depth, QKC_LINEAR_SMEM_MAX, out);
}

static cudaError_t gemv_start(const qkc_launch *launch, const qkc_linear_args *args,
    const qkc_linear_tuning *tuning, const gemv_shape *shape)
{
    gemv_params p = {};
    p.w = args->w;
    p.x = args->x;
    p.norm = args->norm;
    p.eps = args->eps;
    p.y = args->y;
    p.n_out = args->n_out;
    p.n_in = args->n_in;
    p.then = args->then;
    p.count = args->plan.counts + (args->gather ? 3 : 0);
    p.state = args->plan.state;
    p.outputs = args->gather ? args->plan.outputs : NULL;
    p.units = gemv_units(args->n_in);
    p.early = tuning->early;
    p.ring_at = p.units * GEMV_UNIT * sizeof(float);
    p.sums_at = p.ring_at + GEMV_WARPS * shape->depth * GEMV_UNIT * 2;
    gemv_fn fn = gemv_pick(shape->depth, launch->hopper);
    return qkc_start(launch, fn, dim3(shape->grid), dim3(GEMV_THREADS), shape->smem, p);
}

cudaError_t qkc_linear_tuned(
    const qkc_launch *launch, const qkc_linear_args *args, const qkc_linear_tuning *tuning)
{
    gemv_shape shape;
    if (args->n_out == 0 || args->rows_max == 0)
        return cudaSuccess;
    if (args->n_in == 0 || args->n_in % 8 || args->rows_max > QKC_SMALL_ROWS)
        return cudaErrorInvalidValue;
    if (args->rows_max == 1 && gemv_choose(launch, args, tuning, &shape))
        return gemv_start(launch, args, tuning, &shape);
    return qkc_linear_mma(launch, args, tuning);
}

cudaError_t qkc_linear(const qkc_launch *launch, const qkc_linear_args *args)
{
    const qkc_linear_tuning defaults = {};
    return qkc_linear_tuned(launch, args, &defaults);
}
