/* linear-mma.cu: y = W f(x) for 2 to 64 rows on tensor cores (mma.sync m16n8k16, bf16 in, float32 sums): W streams once
 * at memory bandwidth, RMSNorm and the residual or SiLU(gate) * up are fused. One row goes to linear.cu. On Hopper
 * linear-hopper.cu does most of this file's work.
 *
 * W is the A operand (16 outputs), x the B operand (8 rows). 32 inputs are a k-block. A lane takes the 8 neighbouring
 * inputs 8 * (lane % 4) of a k-block of its row in one 16-byte load, for both operands: the two mma steps of a k-block
 * then see its inputs in another order, the same one on both sides, which leaves the sum as it is and needs no ldmatrix.
 *
 *  1. A group (a cluster of 1 to 8 blocks) owns a contiguous range of outputs. Its blocks split the inputs: a block holds
 *     its slice of x in shared memory as bf16 and all of the group's rows use it, so that x costs the L2 little beside W.
 *     A slice too long for that is staged tile by tile, again in each pass.
 *  2. The range is cut into `passes` * warps_m equal cells of at most 32 matrix rows (QKC_SILU_MUL: 16 gate rows and
 *     their 16 up rows). In a pass warp (m, k) multiplies cell m over part k of the block's slice.
 *  3. Each warp has a private ring of k-blocks (2 KiB each), kept full by cp.async across tiles and passes; a lane reads
 *     only bytes that it copied itself. The ring is filled before qkc_pdl_wait().
 *  4. After a pass the partial sums go to shared memory, and the group's blocks add them up, each for its share of the
 *     outputs, over ranks and then warps in order. All blocks of a group meet at the same barriers.
 *  5. The input is rounded as bf16(x * weight); the norm's factor rsqrt(mean(x^2) + eps) multiplies the finished sum: it
 *     needs the whole row, the staging only a slice. (A factor changes no relative rounding error.)
 *  6. What other kernels write (x, y, plan) is read with ld.cg, as in linear.cu. Rows from the count on are not stored.
 *
 * Floor (H200): the weights' as in linear.cu, 48.9 us a layer. FLOPs 2 * rows * weights: 12.9 GFLOP a layer at 64 rows,
 * about 30 us of mma.sync. Through the L2 goes, beside W, groups * rows * n_in * 4 bytes of x: at 64 rows and clusters of
 * 8 10.5 + 16.8 + 10.5 + 39.8 = 78 MB a layer. */
#include "kernels/cuda/linear.h"

#define MMA_WARPS   8u
#define MMA_THREADS (MMA_WARPS * QKC_WARP)
#define KB          32u /* inputs of a k-block */
#define KB_CHUNKS   (KB / 8)
#define CELL_ROWS   32u /* matrix rows of a cell: two m-tiles */
#define STAGE_UINT4 (4 * QKC_WARP)
#define CLUSTER_MAX 8u

typedef struct {
    const qkc_bf16 *w;
    const float *x, *norm;
    float *y;
    const uint32_t *count, *state;
    const qk_output *outputs; /* NULL: work row i is row i */
    float eps;
    uint32_t n_out, n_in;
    uint32_t cluster;
    uint32_t passes, warps_m;  /* warps_m is 1, 2, 4 or 8 */
    uint32_t tile_kb;          /* k-blocks of x that shared memory holds */
    uint32_t ahead;            /* 128-byte lines of each row that a warp asks into the L2 behind its ring */
    uint32_t ring_at, sums_at; /* byte offsets in shared memory */
    bool add, early;
} mma_params;

/* Stages of a warp's ring, and columns of 8 rows that are added up at a time: what shared memory allows. */
template <int NT> struct mma_shape {
    static constexpr int depth = NT <= 2 ? 3 : 2;
    static constexpr int n_sum = NT <= 4 ? NT : 4;
};

/* ---- Clusters ------------------------------------------------------------------------------------------------ */

template <bool CLUSTER> static __device__ __forceinline__ void group_barrier(void)
{
#if __CUDA_ARCH__ >= 900
    if (CLUSTER) {
        __syncwarp();
        asm volatile("barrier.cluster.arrive.release.aligned;\n"
                     "barrier.cluster.wait.acquire.aligned;" ::
                         : "memory");
        return;
    }
#endif
    __syncthreads();
}

/* The shared memory address of block @rank's @p. */
template <bool CLUSTER> static __device__ __forceinline__ uint32_t group_address(const void *p, uint32_t rank)
{
    uint32_t a = shared_of(p);
#if __CUDA_ARCH__ >= 900
    if (CLUSTER)
        asm volatile("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(a) : "r"(a), "r"(rank));
#endif
    return a;
}

template <bool CLUSTER> static __device__ __forceinline__ float4 group_load4(uint32_t address)
{
    float4 v;
#if __CUDA_ARCH__ >= 900
    if (CLUSTER) {
        asm volatile("ld.shared::cluster.v4.f32 {%0, %1, %2, %3}, [%4];"
                     : "=f"(v.x), "=f"(v.y), "=f"(v.z), "=f"(v.w)
                     : "r"(address)
                     : "memory");
        return v;
    }
#endif
    asm volatile("ld.shared.v4.f32 {%0, %1, %2, %3}, [%4];"
                 : "=f"(v.x), "=f"(v.y), "=f"(v.z), "=f"(v.w)
                 : "r"(address)
                 : "memory");
    return v;
}

template <bool CLUSTER> static __device__ __forceinline__ float group_load(uint32_t address)
{
    float v;
#if __CUDA_ARCH__ >= 900
    if (CLUSTER) {
        asm volatile("ld.shared::cluster.f32 %0, [%1];" : "=f"(v) : "r"(address) : "memory");
        return v;
    }
#endif
    asm volatile("ld.shared.f32 %0, [%1];" : "=f"(v) : "r"(address) : "memory");
    return v;
}

/* ---- Who does what ------------------------------------------------------------------------------------------- */

/* Where part @i of @n of the range [begin, end) begins; parts are equal to within one, the longer ones first. */
static __device__ __forceinline__ uint32_t cut(uint32_t begin, uint32_t end, uint32_t i, uint32_t n)
{
    uint32_t each = (end - begin) / n, left = end - begin - each * n;
    return begin + i * each + min(i, left);
}

typedef struct {
    uint32_t first, end; /* the group's outputs */
    uint32_t kb, kb_end; /* the block's slice of the inputs */
    uint32_t n_tiles;    /* of the slice */
    uint32_t rank;       /* in the group */
    uint32_t warp_m, warp_k, warps_k;
} mma_share;

static __device__ __forceinline__ mma_share share_of(const mma_params &p)
{
    const uint32_t warp = threadIdx.x / QKC_WARP, group = blockIdx.x / p.cluster;
    const uint32_t n_groups = gridDim.x / p.cluster, n_kb = (p.n_in + KB - 1) / KB;
    mma_share s;
    s.rank = blockIdx.x % p.cluster;
    s.first = cut(0, p.n_out, group, n_groups);
    s.end = cut(0, p.n_out, group + 1, n_groups);
    s.kb = cut(0, n_kb, s.rank, p.cluster);
    s.kb_end = cut(0, n_kb, s.rank + 1, p.cluster);
    s.n_tiles = (s.kb_end - s.kb + p.tile_kb - 1) / p.tile_kb;
    s.warp_m = warp % p.warps_m;
    s.warp_k = warp / p.warps_m;
    s.warps_k = MMA_WARPS / p.warps_m;
    return s;
}

/* The outputs of cell @m of pass @pass: [*begin, *end). */
static __device__ __forceinline__ void cell_of(
    const mma_params &p, const mma_share &s, uint32_t pass, uint32_t m, uint32_t *begin, uint32_t *end)
{
    uint32_t cell = pass * p.warps_m + m, n = p.passes * p.warps_m;
    *begin = cut(s.first, s.end, cell, n);
    *end = cut(s.first, s.end, cell + 1, n);
}

#define NO_ROW UINT32_MAX

/* The first chunk (8 weights) in W of row @r < CELL_ROWS of a cell, or NO_ROW when the cell has no such row. */
template <bool SILU>
static __device__ __forceinline__ uint32_t cell_row(
    const mma_params &p, uint32_t begin, uint32_t end, uint32_t r)
{
    uint32_t out = begin + (SILU ? r % 16 : r);
    if (out >= end)
        return NO_ROW;
    return (SILU && r >= 16 ? p.n_out + out : out) * (p.n_in / 8);
}

/* The k-blocks of tile @tile that warp_k multiplies. */
static __device__ __forceinline__ void warp_part(
    const mma_params &p, const mma_share &s, uint32_t tile, uint32_t *kb, uint32_t *kb_end)
{
    uint32_t begin = s.kb + tile * p.tile_kb, end = min(begin + p.tile_kb, s.kb_end);
    *kb = cut(begin, end, s.warp_k, s.warps_k);
    *kb_end = cut(begin, end, s.warp_k + 1, s.warps_k);
}

/* ---- The ring of W ------------------------------------------------------------------------------------------- */

/* The next k-block that a warp asks for. row[2 m + h]: this lane's row of m-tile m, upper or lower half, from its first
 * chunk of a k-block on; NO_ROW when there is none. */
typedef struct {
    uint32_t pass, tile, kb, kb_end;
    uint32_t row[4];
} mma_cursor;

template <bool SILU>
static __device__ __forceinline__ void enter_pass(const mma_params &p, const mma_share &s, mma_cursor *at)
{
    const uint32_t lane = threadIdx.x % QKC_WARP;
    uint32_t begin, end;
    cell_of(p, s, at->pass, s.warp_m, &begin, &end);
#pragma unroll
    for (uint32_t i = 0; i < 4; i++) {
        uint32_t row = cell_row<SILU>(p, begin, end, i * 8 + lane / 4);
        at->row[i] = row == NO_ROW ? NO_ROW : row + lane % 4;
    }
}

/* Moves on to the next tile or pass that has k-blocks for this warp; at->pass == passes at the end. */
template <bool SILU>
static __device__ __forceinline__ void settle(const mma_params &p, const mma_share &s, mma_cursor *at)
{
    while (at->kb == at->kb_end && at->pass < p.passes) {
        if (++at->tile >= s.n_tiles) {
            at->tile = 0;
            if (++at->pass == p.passes)
                return;
            enter_pass<SILU>(p, s, at);
        }
        warp_part(p, s, at->tile, &at->kb, &at->kb_end);
    }
}

/* Asks for the cursor's k-block and moves on. Always one commit group. */
template <bool SILU>
static __device__ __forceinline__ void ask(
    const mma_params &p, const mma_share &s, mma_cursor *at, uint4 *slot, uint64_t policy)
{
    const uint32_t lane = threadIdx.x % QKC_WARP;
    if (at->pass < p.passes) {
        bool inside = at->kb * KB_CHUNKS + lane % 4 < p.n_in / 8;
#pragma unroll
        for (uint32_t i = 0; i < 4; i++) {
            bool real = inside && at->row[i] != NO_ROW;
            const uint4 *src = (const uint4 *)p.w + (real ? at->row[i] + at->kb * KB_CHUNKS : 0);
            linear_copy16(slot + i * QKC_WARP + lane, src, real ? 16 : 0, policy);
        }
        at->kb++;
        settle<SILU>(p, s, at);
    }
    copy_commit();
}

/* Asks what lies behind the ring in the first tile of the first pass into the L2; lane r for row r of the cell. */
template <bool SILU>
static __device__ __forceinline__ void ask_ahead(const mma_params &p, const mma_share &s, uint32_t depth)
{
    uint32_t begin, end, kb, kb_end;
    cell_of(p, s, 0, s.warp_m, &begin, &end);
    warp_part(p, s, 0, &kb, &kb_end);
    uint32_t row = cell_row<SILU>(p, begin, end, threadIdx.x % QKC_WARP);
    if (row == NO_ROW)
        return;
    uint32_t from = (kb + depth) * KB, to = min(min(kb_end * KB, p.n_in), from + p.ahead * 64);
    for (uint32_t k = from; k < to; k += 64)
        linear_prefetch_l2(p.w + (size_t)row * 8 + k);
}

/* ---- x ------------------------------------------------------------------------------------------------------- */

/* The k-blocks [kb, kb_end) of the work's rows to shared memory as bf16, as lanes take them: 16 bytes for each k-block,
 * column of 8 rows and lane. Warp w stages the rows w, w + 8, ...; row[] is their x row or UINT32_MAX (zeros). squares[] of
 * the same rows, if not NULL, grow by their sums of squares. */
template <int NT, int BATCH>
static __device__ __forceinline__ void stage_x(
    const mma_params &p, uint32_t kb, uint32_t kb_end, const uint32_t *rows, uint4 *xs, float *squares)
{
    const uint32_t warp = threadIdx.x / QKC_WARP, lane = threadIdx.x % QKC_WARP;
#pragma unroll 1
    for (int j0 = 0; j0 < NT; j0 += BATCH) {
        float part[BATCH] = {};
        for (uint32_t c = lane; c < (kb_end - kb) * KB_CHUNKS; c += QKC_WARP) {
            const uint32_t k = (kb * KB_CHUNKS + c) * 8;
            const bool inside = k < p.n_in;
            float4 wa = make_float4(1, 1, 1, 1), wb = wa, a[BATCH], b[BATCH];
            if (p.norm && inside) {
                wa = __ldg((const float4 *)(p.norm + k));
                wb = __ldg((const float4 *)(p.norm + k) + 1);
            }
#pragma unroll
            for (int j = 0; j < BATCH; j++) {
                uint32_t row = rows[(j0 + j) * 8 + warp];
                a[j] = b[j] = make_float4(0, 0, 0, 0);
                if (inside && row != UINT32_MAX) {
                    const float4 *from = (const float4 *)(p.x + (size_t)row * p.n_in + k);
                    a[j] = __ldcg(from);
                    b[j] = __ldcg(from + 1);
                }
            }
#pragma unroll
            for (int j = 0; j < BATCH; j++) {
                float4 u = a[j], v = b[j];
                part[j] += u.x * u.x + u.y * u.y + u.z * u.z + u.w * u.w + v.x * v.x + v.y * v.y + v.z * v.z +
                           v.w * v.w;
                uint4 out;
                out.x = pack_bf16(u.x * wa.x, u.y * wa.y);
                out.y = pack_bf16(u.z * wa.z, u.w * wa.w);
                out.z = pack_bf16(v.x * wb.x, v.y * wb.y);
                out.w = pack_bf16(v.z * wb.z, v.w * wb.w);
                xs[(c / KB_CHUNKS * NT + j0 + j) * QKC_WARP + warp * 4 + c % KB_CHUNKS] = out;
            }
        }
#pragma unroll
        for (int j = 0; j < BATCH && squares; j++) {
#pragma unroll
            for (uint32_t d = QKC_WARP / 2; d > 0; d /= 2)
                part[j] += __shfl_xor_sync(0xffffffffu, part[j], d);
            if (lane == 0)
                squares[(j0 + j) * 8 + warp] += part[j];
        }
    }
}

/* ---- The product --------------------------------------------------------------------------------------------- */

/* One k-block: two m-tiles times NT columns. a[2 m + h]: rows of m-tile m, upper or lower half. */
template <int NT>
static __device__ __forceinline__ void multiply(float (*acc)[NT][4], const uint4 *a, const uint4 *xs)
{
#pragma unroll
    for (int j = 0; j < NT; j++) {
        uint4 b = xs[j * QKC_WARP];
#pragma unroll
        for (int m = 0; m < 2; m++) {
            mma_bf16(acc[m][j], a[2 * m].x, a[2 * m + 1].x, a[2 * m].y, a[2 * m + 1].y, b.x, b.y);
            mma_bf16(acc[m][j], a[2 * m].z, a[2 * m + 1].z, a[2 * m].w, a[2 * m + 1].w, b.z, b.w);
        }
    }
}

/* Partial sums lie as [warp_k][row][matrix row of the pass], the last with 4 floats to spare against bank conflicts. */
static __device__ __forceinline__ uint32_t sums_stride(const mma_params &p)
{
    return p.warps_m * CELL_ROWS + 4;
}

/* acc: the first of @N_SUM columns. */
template <int NT, int N_SUM>
static __device__ __forceinline__ void put_sums(
    const mma_params &p, const mma_share &s, const float (*acc)[NT][4], int j0, float *sums)
{
    const uint32_t lane = threadIdx.x % QKC_WARP, stride = sums_stride(p);
    float *to = sums + (s.warp_k * N_SUM * 8 + lane % 4 * 2) * stride + s.warp_m * CELL_ROWS + lane / 4;
#pragma unroll
    for (int j = 0; j < NT; j++) { /* all of them, so that acc[] keeps its registers */
        if (j < j0 || j >= j0 + N_SUM)
            continue;
#pragma unroll
        for (int m = 0; m < 2; m++)
#pragma unroll
            for (int i = 0; i < 4; i++)
                to[((j - j0) * 8 + i % 2) * stride + m * 16 + i / 2 * 8] = acc[m][j][i];
    }
}

/* The sum of a quad of outputs over the group's blocks and their warps. */
template <bool CLUSTER>
static __device__ __forceinline__ float4 total4(
    const mma_params &p, const mma_share &s, const float *from, uint32_t part_stride)
{
    float4 v = make_float4(0, 0, 0, 0);
    const uint32_t n = p.cluster * s.warps_k, shift = __ffs(s.warps_k) - 1;
#pragma unroll 4
    for (uint32_t i = 0; i < n; i++) {
        const float *part = from + (i & (s.warps_k - 1)) * part_stride;
        v = add4(v, group_load4<CLUSTER>(group_address<CLUSTER>(part, i >> shift)));
    }
    return v;
}

/* Adds up and stores the rows [row0, row0 + n_rows) of pass @pass: this block's share of them. A task is 4 neighbouring
 * outputs of one row. */
template <int N_SUM, bool CLUSTER, bool SILU>
static __device__ __forceinline__ void store_sums(const mma_params &p, const mma_share &s, uint32_t pass,
    uint32_t row0, uint32_t n_rows, const float *sums, const float *scale)
{
    const uint32_t stride = sums_stride(p), part = N_SUM * 8 * stride;
    const uint32_t cell_quads = SILU ? 4 : 8, quads = p.warps_m * cell_quads;
    for (uint32_t i = s.rank * MMA_THREADS + threadIdx.x; i < n_rows * quads; i += p.cluster * MMA_THREADS) {
        uint32_t row = i / quads, m = i % quads / cell_quads, r = i % cell_quads * 4, begin, end;
        cell_of(p, s, pass, m, &begin, &end);
        begin += r;
        if (begin >= end)
            continue;
        const float *from = sums + row * stride + m * CELL_ROWS + r;
        float *y = p.y + (size_t)(row0 + row) * p.n_out + begin;
        float old[4] = {0, 0, 0, 0};
        if (!SILU && p.add) {
#pragma unroll
            for (uint32_t e = 0; e < 4; e++)
                old[e] = begin + e < end ? __ldcg(y + e) : 0;
        }
        float4 v = total4<CLUSTER>(p, s, from, part), u = v;
        if (SILU)
            u = total4<CLUSTER>(p, s, from + 16, part);
        const float f = scale[row0 + row];
        const float a[4] = {v.x * f, v.y * f, v.z * f, v.w * f}, b[4] = {u.x * f, u.y * f, u.z * f, u.w * f};
#pragma unroll
        for (uint32_t e = 0; e < 4; e++)
            if (begin + e < end)
                y[e] = SILU ? linear_silu(a[e]) * b[e] : old[e] + a[e];
    }
}

/* scale[row] from the blocks' sums of squares. */
template <int NT, bool CLUSTER>
static __device__ __forceinline__ void find_scale(const mma_params &p, const float *squares, float *scale)
{
    if (threadIdx.x < NT * 8) {
        float sum = 0;
#pragma unroll 8
        for (uint32_t rank = 0; rank < p.cluster; rank++)
            sum += group_load<CLUSTER>(group_address<CLUSTER>(squares + threadIdx.x, rank));
        scale[threadIdx.x] = p.norm ? 1.0f / sqrtf(sum / (float)p.n_in + p.eps) : 1.0f;
    }
}

template <int NT, bool CLUSTER, bool SILU>
__global__ void __launch_bounds__(MMA_THREADS, NT == 8 && !CLUSTER ? 1 : 2) linear_mma(mma_params p)
{
    constexpr int DEPTH = mma_shape<NT>::depth, N_SUM = mma_shape<NT>::n_sum;
    extern __shared__ __align__(128) unsigned char smem[];
    __shared__ float squares[NT * 8], scale[NT * 8];
    __shared__ uint32_t rows[NT * 8], n_rows;
    const uint32_t warp = threadIdx.x / QKC_WARP, lane = threadIdx.x % QKC_WARP;
    const mma_share s = share_of(p);
    const uint64_t policy = linear_stream_policy();
    uint4 *xs = (uint4 *)smem, *ring = (uint4 *)(smem + p.ring_at) + warp * DEPTH * STAGE_UINT4;
    float *sums = (float *)(smem + p.sums_at);
    bool triggered = p.early;

    if (p.early)
        qkc_pdl_trigger();
    mma_cursor at = {};
    enter_pass<SILU>(p, s, &at);
    warp_part(p, s, 0, &at.kb, &at.kb_end);
    settle<SILU>(p, s, &at);
#pragma unroll
    for (int d = 0; d < DEPTH; d++)
        ask<SILU>(p, s, &at, ring + d * STAGE_UINT4, policy);
    ask_ahead<SILU>(p, s, DEPTH);

    qkc_pdl_wait();
    const uint32_t count = min(__ldcg(p.count), (uint32_t)NT * 8), state = __ldcg(p.state);
    if (count == 0 || state != QK_OK) { /* the same in all blocks of the group */
        copy_wait<0>();
        return;
    }
    if (threadIdx.x < NT * 8) {
        uint32_t row = threadIdx.x < count ? threadIdx.x : UINT32_MAX;
        rows[threadIdx.x] = p.outputs && threadIdx.x < count ? __ldcg(&p.outputs[threadIdx.x].row) : row;
        squares[threadIdx.x] = 0;
        n_rows = count; /* every thread's register would be one too many */
    }
    __syncthreads();

    /* While no sums are kept yet there are registers for many loads at a time. */
    stage_x < NT, NT<4 ? NT : 4>(p, s.kb, min(s.kb + p.tile_kb, s.kb_end), rows, xs, squares);
    __syncthreads();
    uint32_t slot = 0;
    for (uint32_t pass = 0; pass < p.passes; pass++) {
        float acc[2][NT][4] = {};
        for (uint32_t tile = 0; tile < s.n_tiles; tile++) {
            const uint32_t kb0 = s.kb + tile * p.tile_kb;
            if (s.n_tiles > 1 && (pass > 0 || tile > 0)) {
                __syncthreads(); /* nobody multiplies the tile before */
                stage_x < NT, NT<4          ? NT
                                  : NT == 4 ? 4
                                            : 2>(p, kb0, min(kb0 + p.tile_kb, s.kb_end), rows, xs,
                                  pass == 0 ? squares : NULL);
                __syncthreads();
            }
            uint32_t kb, kb_end;
            warp_part(p, s, tile, &kb, &kb_end);
            for (; kb < kb_end; kb++) {
                uint4 *from = ring + slot * STAGE_UINT4 + lane, a[4];
                copy_wait<DEPTH - 1>();
#pragma unroll
                for (int i = 0; i < 4; i++)
                    a[i] = from[i * QKC_WARP];
                ask<SILU>(p, s, &at, ring + slot * STAGE_UINT4, policy);
                if (!triggered && at.pass == p.passes) {
                    qkc_pdl_trigger();
                    triggered = true;
                }
                slot = slot + 1 == DEPTH ? 0 : slot + 1;
                multiply<NT>(acc, a, xs + (kb - kb0) * NT * QKC_WARP + lane);
            }
        }
#pragma unroll 1
        for (int j0 = 0; j0 < NT; j0 += N_SUM) {
            if (pass > 0 || j0 > 0)
                group_barrier<CLUSTER>(); /* all have read the sums before */
            put_sums<NT, N_SUM>(p, s, acc, j0, sums);
            group_barrier<CLUSTER>();
            if (pass == 0 && j0 == 0) {
                find_scale<NT, CLUSTER>(p, squares, scale);
                __syncthreads();
            }
            if (n_rows > (uint32_t)j0 * 8)
                store_sums<N_SUM, CLUSTER, SILU>(
                    p, s, pass, j0 * 8, min(n_rows - j0 * 8, (uint32_t)N_SUM * 8), sums, scale);
        }
    }
    if (CLUSTER)
        group_barrier<true>(); /* others may still read this block's sums */
}

/* ---- Launching ----------------------------------------------------------------------------------------------- */

typedef void (*mma_fn)(mma_params);
template <int NT> static mma_fn mma_pick_nt(bool cluster, bool silu)
{
    if (cluster)
        return silu ? linear_mma<NT, true, true> : linear_mma<NT, true, false>;
    return silu ? linear_mma<NT, false, true> : linear_mma<NT, false, false>;
}
static mma_fn mma_pick(uint32_t nt, bool cluster, bool silu)
{
    switch (nt) {
    case 1:
        return mma_pick_nt<1>(cluster, silu);
    case 2:
        return mma_pick_nt<2>(cluster, silu);
    case 4:
        return mma_pick_nt<4>(cluster, silu);
    default:
        return mma_pick_nt<8>(cluster, silu);
    }
}

cudaError_t qkc_linear_mma_init(void)
{
    int device = 0, major = 0;
    cudaError_t code = cudaGetDevice(&device);
    if (code == cudaSuccess)
        code = cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, device);
    for (uint32_t nt = 1; nt <= 8 && code == cudaSuccess; nt *= 2)
        for (int i = 0; i < (major >= 9 ? 4 : 2) && code == cudaSuccess; i++)
            code = qkc_allow_shared_memory((const void *)mma_pick(nt, i / 2, i % 2));
    return code;
}

typedef struct {
    uint32_t nt, cluster, groups, passes, warps_m, tile_kb;
    size_t x_bytes, ring_bytes, sums_bytes;
} mma_plan;

/* Of the ways to lay 8 warps over a group's rows and the slice's inputs the one with the least work on tensor cores and
 * adding up, both in estimated clocks of an SM: the ways differ by whole passes. */
static void choose_warps(const qkc_linear_args *args, uint32_t warps_m, mma_plan *plan)
{
    uint32_t n = (args->n_out + plan->groups - 1) / plan->groups;
    uint32_t cell = args->then == QKC_SILU_MUL ? CELL_ROWS / 2 : CELL_ROWS;
    uint32_t slice_kb = ((args->n_in + KB - 1) / KB + plan->cluster - 1) / plan->cluster;
    uint64_t best = UINT64_MAX;
    for (uint32_t m = 1; m <= MMA_WARPS; m *= 2) {
        uint32_t passes = (n + cell * m - 1) / (cell * m);
        uint64_t per_kb = 20 + 7 * plan->nt; /* of one cell, 4 tensor cores sharing the warps */
        uint64_t per_pass = 400 + 160 * plan->nt + (plan->cluster > 1 ? 600 : 0);
        if (plan->tile_kb < slice_kb)
            per_pass += slice_kb * plan->nt * 30; /* x is staged again */
        uint64_t cost = passes * (per_pass + per_kb * slice_kb * m);
        if (warps_m ? m == warps_m : cost < best) {
            best = cost;
            plan->passes = passes;
            plan->warps_m = m;
        }
    }
}

static void choose(
    const qkc_launch *launch, const qkc_linear_args *args, const qkc_linear_tuning *tuning, mma_plan *plan)
{
    const uint32_t n_kb = (args->n_in + KB - 1) / KB;
    plan->nt = args->rows_max <= 8 ? 1 : args->rows_max <= 16 ? 2 : args->rows_max <= 32 ? 4 : 8;
    uint32_t depth = plan->nt <= 2 ? 3 : 2, n_sum = plan->nt <= 4 ? plan->nt : 4;
    plan->ring_bytes = MMA_WARPS * depth * STAGE_UINT4 * sizeof(uint4);
    /* Most with 8 parts of one cell each. */
    plan->sums_bytes = MMA_WARPS * n_sum * 8 * (CELL_ROWS + 4) * sizeof(float);
    const uint32_t fixed = plan->ring_bytes + plan->sums_bytes + (2 << 10);
    const uint32_t room = ((launch->hopper ? QKC_LINEAR_SMEM_HALF : QKC_LINEAR_SMEM_PORTABLE) - fixed) /
                          (plan->nt * QKC_WARP * 16);
    uint32_t cluster = 1;
    if (launch->hopper) {
        while (cluster < CLUSTER_MAX && (n_kb + cluster - 1) / cluster > room)
            cluster *= 2;
        if (tuning->cluster)
            cluster = tuning->cluster;
        while (cluster > n_kb)
            cluster /= 2;
    }
    plan->cluster = cluster;
    plan->tile_kb = min((n_kb + cluster - 1) / cluster, room);
    plan->x_bytes = (size_t)plan->tile_kb * plan->nt * QKC_WARP * 16;
    /* Graphics processing clusters have 16 or 18 SMs: larger clusters find room on a multiple of 16 of them. */
    uint32_t sms = launch->n_sms;
    if (cluster > 2 && sms > 16)
        sms -= sms % 16;
    plan->groups = max(1u, min(sms / cluster, (args->n_out + 7) / 8));
    choose_warps(args, tuning->warps_m, plan);
}

cudaError_t qkc_linear_mma(
    const qkc_launch *launch, const qkc_linear_args *args, const qkc_linear_tuning *tuning)
{
    mma_plan plan = {};
    choose(launch, args, tuning, &plan);
    mma_params p = {};
    p.w = args->w;
    p.x = args->x;
    p.norm = args->norm;
    p.eps = args->eps;
    p.y = args->y;
    p.n_out = args->n_out;
    p.n_in = args->n_in;
    p.count = args->plan.counts + (args->gather ? 3 : 0);
    p.state = args->plan.state;
    p.outputs = args->gather ? args->plan.outputs : NULL;
    p.cluster = plan.cluster;
    p.passes = plan.passes;
    p.warps_m = plan.warps_m;
    p.tile_kb = plan.tile_kb;
    p.ahead = tuning->ahead_kib == UINT32_MAX ? 0 : (tuning->ahead_kib ? tuning->ahead_kib : 64) / 32;
    if (!launch->pdl)
        p.ahead = 0;
    p.ring_at = plan.x_bytes;
    p.sums_at = p.ring_at + plan.ring_bytes;
    p.add = args->then == QKC_ADD;
    p.early = tuning->early;
    mma_fn fn = mma_pick(plan.nt, plan.cluster > 1, args->then == QKC_SILU_MUL);
    size_t smem = p.sums_at + plan.sums_bytes;
    const dim3 grid(plan.groups * plan.cluster), block(MMA_THREADS);
    return plan.cluster == 1 ? qkc_start(launch, fn, grid, block, smem, p)
                             : qkc_start_clusters(launch, plan.cluster, fn, grid, block, smem, p);
}
