/* linear-chain.cu: several products of one row in one launch, each of the ones before: O, gate and up, down, and QKV of the
 * next layer. For cards whose kernels do not overlap (before compute capability 9.0), where each beginning and end of a
 * kernel is lost: a decode step of the reference model makes 75 launches instead of 183.
 *
 *  1. Units, sums and their orders are those of linear.cu's MMA form: the results are the same to the last bit.
 *  2. One block runs on each SM, all at the same time: the launch is cooperative, which the driver refuses rather than
 *     letting blocks wait for others that cannot start.
 *  3. A block owns a range of every product's outputs. When it has stored those of one it counts itself in, and waits until
 *     all have (release and acquire at the scope of the device) before it reads the next product's x.
 *  4. The warps' rings go on across products: while the blocks meet, the next product's weights arrive. That takes about 3 us
 *     (an H200), in which 132 rings of 48 KiB hold 6 MB, or 1.4 us of the memory's rate; on a card with 1 TB/s it is all
 *     of the time.
 *  5. All blocks pass all meetings whatever the step's state is; a step that was given up stores nothing. */
#include "kernels/cuda/linear-row.h"

typedef struct {
    const qkc_bf16 *w;
    const float *x, *norm;
    float *y;
    uint32_t n_out, n_in;
    uint32_t units;                /* of a row */
    uint32_t step_rows, step_unit; /* from a warp's unit to its next */
    qkc_then then;
} chain_product;

typedef struct {
    chain_product product[QKC_CHAIN_MAX];
    uint32_t n;
    const uint32_t *count, *state;
    uint32_t *arrived; /* [n - 1]: blocks that have stored their outputs of a product */
    float eps;
    uint32_t ring_at, sums_at; /* byte offsets in shared memory */
} chain_params;

/* A block's outputs of a product, and its matrix rows: those past n are the outputs' up rows (QKC_SILU_MUL). */
typedef struct {
    uint32_t first, n, n_rows;
} chain_share;

/* The next unit that a warp asks for. */
typedef struct {
    uint32_t q, row, unit; /* q: the product; n when there is no more */
    chain_share share;
} chain_cursor;

static __device__ __forceinline__ chain_share share_of(const chain_product &c)
{
    chain_share s;
    s.first = c.n_out * blockIdx.x / gridDim.x;
    s.n = c.n_out * (blockIdx.x + 1) / gridDim.x - s.first;
    s.n_rows = c.then == QKC_SILU_MUL ? 2 * s.n : s.n;
    return s;
}

/* To the warp's first unit of product @q, or of the next one that has some for it. */
static __device__ __forceinline__ void enter(const chain_params &p, chain_cursor *at, uint32_t q)
{
    const uint32_t warp = threadIdx.x / QKC_WARP;
    for (; q < p.n; q++) {
        const chain_product &c = p.product[q];
        at->share = share_of(c);
        at->row = warp / c.units;
        at->unit = warp % c.units;
        if (at->row < at->share.n_rows)
            break;
    }
    at->q = q;
}

/* Asks for the cursor's unit, if there is one, and moves on. Always one commit group. */
static __device__ __forceinline__ void ask(
    const chain_params &p, chain_cursor *at, uint4 *slot, uint64_t policy)
{
    if (at->q < p.n) {
        const chain_product &c = p.product[at->q];
        const chain_share &s = at->share;
        const uint32_t row = at->row < s.n ? s.first + at->row : c.n_out + s.first + at->row - s.n;
        copy_unit(c.w, c.n_in, row, at->unit, slot, policy);
        at->row += c.step_rows;
        at->unit += c.step_unit;
        if (at->unit >= c.units) {
            at->unit -= c.units;
            at->row++;
        }
        if (at->row >= s.n_rows)
            enter(p, at, at->q + 1);
    }
    copy_commit();
}

/* All threads: this block's outputs are stored. */
static __device__ __forceinline__ void arrive(uint32_t *arrived)
{
    __syncthreads();
    if (threadIdx.x == 0)
        asm volatile("red.release.gpu.global.add.u32 [%0], 1;" ::"l"(arrived) : "memory");
}

/* All threads: until all blocks' are. */
static __device__ __forceinline__ void wait_for_all(const uint32_t *arrived)
{
    if (threadIdx.x == 0) {
        uint32_t n;
        do
            asm volatile("ld.acquire.gpu.global.u32 %0, [%1];" : "=r"(n) : "l"(arrived) : "memory");
        while (n < gridDim.x);
    }
    __syncthreads();
}

template <uint32_t DEPTH>
__global__ void __launch_bounds__(GEMV_THREADS, 1) chain(const __grid_constant__ chain_params p)
{
    extern __shared__ __align__(128) unsigned char smem[];
    __shared__ float squares[GEMV_WARPS];
    const uint32_t warp = threadIdx.x / QKC_WARP, lane = threadIdx.x % QKC_WARP;
    const uint64_t policy = linear_stream_policy();
    uint4 *ring = (uint4 *)(smem + p.ring_at) + warp * DEPTH * GEMV_UNIT_CHUNKS;
    float *sums = (float *)(smem + p.sums_at);
    bool triggered = false;

    chain_cursor at;
    enter(p, &at, 0);
#pragma unroll
    for (uint32_t d = 0; d < DEPTH; d++)
        ask(p, &at, ring + d * GEMV_UNIT_CHUNKS, policy);

    qkc_pdl_wait();
    const bool stores = __ldcg(p.count) != 0 && __ldcg(p.state) == QK_OK;
    uint32_t slot = 0;
    for (uint32_t q = 0; q < p.n; q++) {
        const chain_product &c = p.product[q];
        const chain_share s = share_of(c);
        const uint32_t units = c.units, n_units = s.n_rows * units, step = c.step_unit;
        if (q > 0)
            wait_for_all(p.arrived + q - 1);
        float old = 0;
        if (c.then == QKC_ADD && threadIdx.x < s.n)
            old = __ldcg(c.y + s.first + threadIdx.x);
        float part = stage_x<GEMV_MMA>(c.x, c.norm, c.n_in, units, smem);
        if (c.norm) {
            part = warp_sum(part);
            if (lane == 0)
                squares[warp] = part;
        }
        __syncthreads();

        uint32_t unit = warp % units;
        for (uint32_t i = warp; i < n_units; i += GEMV_WARPS) {
            uint4 *from = ring + slot * GEMV_UNIT_CHUNKS;
            copy_wait<DEPTH - 1>();
            const uint4 w[2] = {from[lane], from[QKC_WARP + lane]};
            ask(p, &at, from, policy);
            if (!triggered && at.q == p.n) {
                qkc_pdl_trigger();
                triggered = true;
            }
            const float sum = unit_sum<GEMV_MMA>(w, smem, unit, units);
            if (lane == 0)
                sums[i] = sum;
            unit += step;
            unit -= unit >= units ? units : 0;
            slot = slot + 1 == DEPTH ? 0 : slot + 1;
        }
        __syncthreads();
        if (stores && threadIdx.x < s.n) {
            const float scale = c.norm ? norm_factor(squares, c.n_in, p.eps) : 1;
            c.y[s.first + threadIdx.x] = output(sums, threadIdx.x, s.n, units, c.then, scale, old);
        }
        if (q + 1 < p.n)
            arrive(p.arrived + q);
    }
}

/* ---- Launching ----------------------------------------------------------------------------------------------- */

typedef void (*chain_fn)(const chain_params);
static const chain_fn chain_of_depth[] = {NULL, NULL, chain<2>, chain<3>, chain<4>, chain<5>};
#define DEPTH_MIN 2u
#define DEPTH_MAX 5u

cudaError_t qkc_linear_chain_init(void)
{
    cudaError_t code = cudaSuccess;
    for (uint32_t depth = DEPTH_MIN; depth <= DEPTH_MAX && code == cudaSuccess; depth++)
        code = qkc_allow_shared_memory((const void *)chain_of_depth[depth]);
    return code;
}

/* The deepest ring beside x and the sums; 0 when there is none. */
static uint32_t choose(
    const qkc_launch *launch, const qkc_linear_args *args, uint32_t n, chain_params *p, size_t *smem)
{
    size_t x = 0, sums = 0;
    if (n == 0 || n > QKC_CHAIN_MAX || launch->hopper)
        return 0;
    for (uint32_t i = 0; i < n; i++) {
        const uint32_t units = gemv_units(args[i].n_in);
        const uint32_t outputs = (args[i].n_out + launch->n_sms - 1) / launch->n_sms;
        if (args[i].n_in == 0 || args[i].n_in % 8 || args[i].rows_max != 1 || args[i].gather ||
            outputs > GEMV_THREADS || (uint64_t)args[i].n_out * launch->n_sms > UINT32_MAX)
            return 0;
        x = max(x, (size_t)units * X_UNIT_BYTES);
        sums = max(sums, (size_t)outputs * (args[i].then == QKC_SILU_MUL ? 2 : 1) * units * sizeof(float));
    }
    p->ring_at = (uint32_t)x;
    for (uint32_t depth = DEPTH_MAX; depth >= DEPTH_MIN; depth--) {
        p->sums_at = (uint32_t)(x + GEMV_WARPS * depth * GEMV_UNIT * sizeof(qkc_bf16));
        *smem = p->sums_at + (sums + 15) / 16 * 16;
        if (*smem + 128 <= QKC_LINEAR_SMEM_PORTABLE)
            return depth;
    }
    return 0;
}

bool qkc_linear_chain_suits(const qkc_launch *launch, const qkc_linear_args *args, uint32_t n)
{
    chain_params p;
    size_t smem;
    return choose(launch, args, n, &p, &smem) != 0;
}

cudaError_t qkc_linear_chain(
    const qkc_launch *launch, const qkc_linear_args *args, uint32_t n, uint32_t *arrived)
{
    chain_params p = {};
    size_t smem;
    const uint32_t depth = choose(launch, args, n, &p, &smem);
    if (depth == 0)
        return cudaErrorInvalidValue;
    p.n = n;
    p.count = args->plan.counts;
    p.state = args->plan.state;
    p.arrived = arrived;
    p.eps = args->eps;
    for (uint32_t i = 0; i < n; i++) {
        chain_product *c = &p.product[i];
        c->w = args[i].w, c->x = args[i].x, c->norm = args[i].norm, c->y = args[i].y;
        c->n_out = args[i].n_out, c->n_in = args[i].n_in;
        c->units = gemv_units(args[i].n_in);
        c->step_rows = GEMV_WARPS / c->units, c->step_unit = GEMV_WARPS % c->units;
        c->then = args[i].then;
    }
    cudaLaunchAttribute cooperative;
    cooperative.id = cudaLaunchAttributeCooperative;
    cooperative.val.cooperative = 1;
    return qkc_start_with(
        launch, &cooperative, chain_of_depth[depth], dim3(launch->n_sms), dim3(GEMV_THREADS), smem, p);
}
