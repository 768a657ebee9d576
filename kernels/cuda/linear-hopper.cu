/* linear-hopper.cu: y = W x of 2 to 64 rows on sm_90a, W streamed by the tensor copy engine (TMA) into wgmma: the few
 * instructions that this takes leave a block nothing to do but to keep its ring full.
 *
 * W is wgmma's A operand (64 outputs an instruction), x, bf16, its B operand (8 to 64 rows); both come as tiles of 64
 * inputs (128 bytes a row, 128-byte swizzle).
 *
 *  1. A group (a cluster of 1 to 8 blocks) owns `rows` neighbouring rows of W; its blocks split the inputs. With
 *     QKC_SILU_MUL the rows are those of rows / 2 outputs, 8 gate rows and their 8 up rows in turn, which one box of a
 *     tensor map of four dimensions brings.
 *  2. One warp asks for tiles, four multiply, one finds the norm's factors. A stage of the ring holds a tile of W and one of
 *     x. The ring's tiles of W are asked for before qkc_pdl_wait(), the next kernel may start at once, and a block takes at most
 *     half an SM's shared memory: while the kernel before adds up its sums, this one's weights arrive.
 *  3. Rows of a tile past `rows` belong to the next stage, or to x: the products with them go nowhere. What lies behind the
 *     tensors is read as zeros; rows of x past the count may hold anything, since a row of y depends on its row of x alone.
 *  4. The sums go to shared memory, where the ring was; a group's blocks add up a share of the work's rows each, over the
 *     ranks in order.
 *  5. RMSNorm is spread over the kernels around: who makes x (QKC_ADD with next_norm) also leaves bf16(x * weight) and, for
 *     each group, the sum of squares of its part of the row; who takes it adds those up, in order, and multiplies its own
 *     sums by rsqrt(mean + eps). (A factor changes no relative rounding error.)
 *
 * Floor (H200): the weights' as in linear.cu, 48.9 us a layer of the reference shape. Through the L2 goes, beside W, of x
 * n_rows / rows as much: with 16 rows 10 to 20%, with 64 rows 40 to 80%. */
#include "kernels/cuda/linear-hopper.h"
#include "kernels/cuda/linear.h"
#include <cuda.h>

#define TILE_K      64u /* inputs of a stage: 128 bytes, what the swizzle spans */
#define LINE        128u
#define WARPS       4u                       /* that multiply */
#define THREADS     ((WARPS + 2) * QKC_WARP) /* one more asks for tiles, one finds the norm's factors */
#define STAGES_MAX  16u
#define CLUSTER_MAX 8u
#define ROWS_MAX    192u /* of W a block: three tiles of 64 */
#define COLUMNS     4    /* of the sums that a warp adds up at a time */
#define ALL_LANES   0xffffffffu

typedef struct {
    CUtensorMap w, x;
    const uint32_t *count, *state;
    const float *squares; /* [n_squares, QKC_SMALL_ROWS] */
    float *y;
    qkc_bf16 *y16;
    const float *next_norm;
    float *next_squares;
    float eps, inv_norm; /* 1 / the length of the row that squares are of */
    uint32_t n_squares;
    uint32_t n_out, n_tiles; /* tiles of the inputs */
    uint32_t rows, stages, cluster;
    uint32_t scales_at; /* byte offset in shared memory */
    bool add, early;
} hopper_params;

/* ---- Instructions -------------------------------------------------------------------------------------------- */

static __device__ __forceinline__ void barrier_expect(uint32_t barrier, uint32_t bytes)
{
    asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(barrier), "r"(bytes)
                 : "memory");
}

static __device__ __forceinline__ void ask_x(
    uint32_t to, const CUtensorMap *map, uint32_t k, uint32_t barrier)
{
    asm volatile("cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1, "
                 "{%2, %3}], [%4];" ::"r"(to),
                 "l"(map), "r"(k), "r"(0), "r"(barrier)
                 : "memory");
}

/* @row: of W, or with SILU a block of 8 outputs. */
template <bool SILU>
static __device__ __forceinline__ void ask_w(
    uint32_t to, const CUtensorMap *map, uint32_t k, uint32_t row, uint32_t barrier, uint64_t policy)
{
    if (SILU)
        asm volatile("cp.async.bulk.tensor.4d.shared::cluster.global.mbarrier::complete_tx::bytes.L2::cache_"
                     "hint [%0], "
                     "[%1, {%2, %3, %3, %4}], [%5], %6;" ::"r"(to),
                     "l"(map), "r"(k), "r"(0), "r"(row), "r"(barrier), "l"(policy)
                     : "memory");
    else
        asm volatile("cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes.L2::cache_"
                     "hint [%0], "
                     "[%1, {%2, %3}], [%4], %5;" ::"r"(to),
                     "l"(map), "r"(k), "r"(row), "r"(barrier), "l"(policy)
                     : "memory");
}

/* All blocks of the group; whole warps call it. */
static __device__ __forceinline__ void group_barrier(uint32_t cluster)
{
    if (cluster == 1) {
        __syncthreads();
        return;
    }
    __syncwarp();
    asm volatile("barrier.cluster.arrive.release.aligned;\n"
                 "barrier.cluster.wait.acquire.aligned;" ::
                     : "memory");
}

/* Of block @rank's shared memory, which is this block's with rank 0 of 1. */
static __device__ __forceinline__ float4 group_load(uint32_t address, uint32_t rank, uint32_t cluster)
{
    float4 v;
    if (cluster == 1) {
        asm volatile("ld.shared.v4.f32 {%0, %1, %2, %3}, [%4];"
                     : "=f"(v.x), "=f"(v.y), "=f"(v.z), "=f"(v.w)
                     : "r"(address)
                     : "memory");
        return v;
    }
    asm volatile("{\n"
                 ".reg .b32 a;\n"
                 "mapa.shared::cluster.u32 a, %4, %5;\n"
                 "ld.shared::cluster.v4.f32 {%0, %1, %2, %3}, [a];\n"
                 "}\n"
                 : "=f"(v.x), "=f"(v.y), "=f"(v.z), "=f"(v.w)
                 : "r"(address), "r"(rank)
                 : "memory");
    return v;
}

/* ---- wgmma --------------------------------------------------------------------------------------------------- */

#define D4(d, i)  "+f"((d)[i]), "+f"((d)[i + 1]), "+f"((d)[i + 2]), "+f"((d)[i + 3])
#define D8(d, i)  D4(d, i), D4(d, i + 4)
#define D16(d, i) D8(d, i), D8(d, i + 8)
#define WGMMA(n, d, a, b)                                                                                    \
    "{\n.reg .pred p;\nsetp.ne.b32 p, 1, 0;\n"                                                               \
    "wgmma.mma_async.sync.aligned.m64n" n "k16.f32.bf16.bf16 {" d "}, " a ", " b ", p, 1, 1, 0, 0;\n}"
#define R4  "%0, %1, %2, %3"
#define R8  R4 ", %4, %5, %6, %7"
#define R16 R8 ", %8, %9, %10, %11, %12, %13, %14, %15"
#define R32 R16 ", %16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31"

/* d += a b^T: a [64, 16] and b [N, 16] in shared memory. Element i of thread t's d is row 16 * (t / 32) + t % 32 / 4 +
 * 8 * (i / 2 % 2), column 8 * (i / 4) + 2 * (t % 4) + i % 2. */
static __device__ __forceinline__ void multiply(float (&d)[4], uint64_t a, uint64_t b)
{
    asm volatile(WGMMA("8", R4, "%4", "%5") : D4(d, 0) : "l"(a), "l"(b));
}
static __device__ __forceinline__ void multiply(float (&d)[8], uint64_t a, uint64_t b)
{
    asm volatile(WGMMA("16", R8, "%8", "%9") : D8(d, 0) : "l"(a), "l"(b));
}
static __device__ __forceinline__ void multiply(float (&d)[16], uint64_t a, uint64_t b)
{
    asm volatile(WGMMA("32", R16, "%16", "%17") : D16(d, 0) : "l"(a), "l"(b));
}
static __device__ __forceinline__ void multiply(float (&d)[32], uint64_t a, uint64_t b)
{
    asm volatile(WGMMA("64", R32, "%32", "%33") : D16(d, 0), D16(d, 16) : "l"(a), "l"(b));
}

/* ---- A block ------------------------------------------------------------------------------------------------- */

/* Where part @i of @n of the range [0, end) begins; parts are equal to within one, the longer ones first. */
static __device__ __forceinline__ uint32_t cut(uint32_t end, uint32_t i, uint32_t n)
{
    return i * (end / n) + min(i, end % n);
}

/* Shared memory, in bytes from its start, which is aligned to 1,024: stages of W, stages of x, then 2 barriers a stage. */
typedef struct {
    uint32_t w, x, full, empty, w_bytes, x_bytes;
} shared_map;

template <int N>
static __device__ __forceinline__ shared_map map_shared(const hopper_params &p, uint32_t base)
{
    shared_map m;
    m.w_bytes = p.rows * LINE;
    m.x_bytes = N * LINE;
    m.w = base;
    m.x = m.w + p.stages * m.w_bytes;
    m.full = base + p.stages * (m.w_bytes + m.x_bytes);
    m.empty = m.full + p.stages * 8;
    return m;
}

/* One thread: the tiles [first, end). */
template <bool SILU>
static __device__ __forceinline__ void ask_tiles(
    const hopper_params &p, const shared_map &m, uint32_t first, uint32_t end, uint32_t row)
{
    const uint64_t policy = linear_stream_policy();
    const uint32_t n = end - first, n_ahead = min(n, p.stages);
    for (uint32_t i = 0; i < n_ahead; i++) {
        barrier_expect(m.full + i * 8, m.w_bytes + m.x_bytes);
        ask_w<SILU>(m.w + i * m.w_bytes, &p.w, (first + i) * TILE_K, row, m.full + i * 8, policy);
    }
    if (p.early || n == n_ahead)
        qkc_pdl_trigger();
    qkc_pdl_wait();
    for (uint32_t i = 0; i < n_ahead; i++)
        ask_x(m.x + i * m.x_bytes, &p.x, (first + i) * TILE_K, m.full + i * 8);
    uint32_t slot = 0, parity = 0;
    for (uint32_t i = n_ahead; i < n; i++) {
        barrier_wait(m.empty + slot * 8, parity);
        barrier_expect(m.full + slot * 8, m.w_bytes + m.x_bytes);
        ask_w<SILU>(m.w + slot * m.w_bytes, &p.w, (first + i) * TILE_K, row, m.full + slot * 8, policy);
        ask_x(m.x + slot * m.x_bytes, &p.x, (first + i) * TILE_K, m.full + slot * 8);
        if (++slot == p.stages)
            slot = 0, parity ^= 1;
    }
    if (!p.early && n > n_ahead)
        qkc_pdl_trigger();
}

template <int N, int MT>
static __device__ __forceinline__ void multiply_tiles(
    const hopper_params &p, const shared_map &m, uint32_t n, float (&sums)[MT][N / 2])
{
    const uint32_t lane = threadIdx.x % QKC_WARP;
    uint32_t slot = 0, parity = 0, before = 0;
    for (uint32_t i = 0; i < n; i++) {
        barrier_wait(m.full + slot * 8, parity);
        const uint64_t a = wgmma_descriptor(m.w + slot * m.w_bytes, 16),
                       b = wgmma_descriptor(m.x + slot * m.x_bytes, 16);
        wgmma_fence();
#pragma unroll
        for (int k = 0; k < (int)TILE_K / 16; k++)
#pragma unroll
            for (int t = 0; t < MT; t++)
                multiply(sums[t], a + t * (64 * LINE >> 4) + 2 * k, b + 2 * k);
        wgmma_commit();
        wgmma_wait<1>(); /* all but this tile's: two stages at least, or it would wait for itself */
        if (i > 0 && lane == 0)
            barrier_arrive(m.empty + before * 8);
        before = slot;
        if (++slot == p.stages)
            slot = 0, parity ^= 1;
    }
    wgmma_wait<0>();
}

/* The sums lie as [N][rows + 4]: the 4 keep stores off equal banks. */
template <int N, int MT>
static __device__ __forceinline__ void put_sums(
    const hopper_params &p, float *to, const float (&sums)[MT][N / 2])
{
    const uint32_t lane = threadIdx.x % QKC_WARP, warp = threadIdx.x / QKC_WARP, stride = p.rows + 4;
#pragma unroll
    for (int t = 0; t < MT; t++)
#pragma unroll
        for (int h = 0; h < 2; h++) {
            const uint32_t row = t * 64 + warp * 16 + h * 8 + lane / 4;
            if (row >= p.rows)
                continue;
#pragma unroll
            for (int j = 0; j < N / 8; j++)
#pragma unroll
                for (int e = 0; e < 2; e++)
                    to[(j * 8 + lane % 4 * 2 + e) * stride + row] = sums[t][j * 4 + h * 2 + e];
        }
}

static __device__ __forceinline__ uint2 pack4(float4 v)
{
    return make_uint2(pack_bf16(v.x, v.y), pack_bf16(v.z, v.w));
}

/* The norm's factors of N rows; a whole warp calls it. */
template <int N> static __device__ __forceinline__ void find_scales(const hopper_params &p, float *scales)
{
#pragma unroll 1
    for (uint32_t row = threadIdx.x % QKC_WARP; row < N; row += QKC_WARP) {
        float sum = 0;
#pragma unroll 16
        for (uint32_t i = 0; i < p.n_squares; i++)
            sum += __ldcg(p.squares + i * QKC_SMALL_ROWS + row);
        scales[row] = p.n_squares > 0 ? 1.0f / sqrtf(sum * p.inv_norm + p.eps) : 1;
    }
}

/* What a warp's first columns had in y before, of QKC_ADD: lane l asks for outputs 4 l to 4 l + 3 of the group's, early. */
static __device__ __forceinline__ void get_old(
    const hopper_params &p, uint32_t group, uint32_t column, uint32_t end, float4 (&old)[COLUMNS])
{
    const uint32_t first = group * p.rows, o = threadIdx.x % QKC_WARP * 4;
#pragma unroll
    for (int c = 0; c < COLUMNS; c++) {
        const uint32_t row = column + c * WARPS;
        old[c] = make_float4(0, 0, 0, 0);
        if (p.add && row < end && o < min(p.rows, p.n_out - first))
            old[c] = __ldcg((const float4 *)(p.y + (size_t)row * p.n_out + first + o));
    }
}

/* A warp: the columns (rows of y) @column + i * WARPS below @end, i < COLUMNS, of the group's outputs. @old: what
 * get_old() gave, if these are the first ones. */
template <bool SILU>
static __device__ __forceinline__ void finish_columns(const hopper_params &p, uint32_t sums,
    const float *scales, uint32_t group, uint32_t column, uint32_t end, const float4 (&old)[COLUMNS],
    bool has_old)
{
    const uint32_t lane = threadIdx.x % QKC_WARP, stride = p.rows + 4;
    const uint32_t n = SILU ? p.rows / 2 : p.rows, first = group * n, n_here = min(n, p.n_out - first);
    float squares[COLUMNS] = {};
    for (uint32_t o = lane * 4; o < n_here; o += QKC_WARP * 4) {
        const uint32_t at = SILU ? o / 8 * 16 + o % 8 : o;
        float4 v[COLUMNS], u[COLUMNS];
#pragma unroll
        for (int c = 0; c < COLUMNS; c++) {
            v[c] = u[c] = make_float4(0, 0, 0, 0);
            if (!SILU && p.add && column + c * WARPS < end)
                u[c] =
                    has_old && o < QKC_WARP * 4
                        ? old[c]
                        : __ldcg((const float4 *)(p.y + (size_t)(column + c * WARPS) * p.n_out + first + o));
        }
        for (uint32_t rank = 0; rank < p.cluster; rank++)
#pragma unroll
            for (int c = 0; c < COLUMNS; c++) {
                if (column + c * WARPS >= end)
                    continue;
                const uint32_t from = sums + ((column + c * WARPS) * stride + at) * sizeof(float);
                v[c] = add4(v[c], group_load(from, rank, p.cluster));
                if (SILU)
                    u[c] = add4(u[c], group_load(from + 8 * sizeof(float), rank, p.cluster));
            }
#pragma unroll
        for (int c = 0; c < COLUMNS; c++) {
            const uint32_t row = column + c * WARPS;
            if (row >= end)
                continue;
            const float f = scales[row];
            const size_t to = (size_t)row * p.n_out + first + o;
            float4 x = make_float4(v[c].x * f, v[c].y * f, v[c].z * f, v[c].w * f);
            if (SILU) {
                x.x = linear_silu(x.x) * (u[c].x * f), x.y = linear_silu(x.y) * (u[c].y * f);
                x.z = linear_silu(x.z) * (u[c].z * f), x.w = linear_silu(x.w) * (u[c].w * f);
                *(uint2 *)(p.y16 + to) = pack4(x);
                continue;
            }
            x = add4(x, u[c]);
            *(float4 *)(p.y + to) = x;
            if (p.next_norm == NULL)
                continue;
            squares[c] += x.x * x.x + x.y * x.y + x.z * x.z + x.w * x.w;
            const float4 w = __ldg((const float4 *)(p.next_norm + first + o));
            *(uint2 *)(p.y16 + to) = pack4(make_float4(x.x * w.x, x.y * w.y, x.z * w.z, x.w * w.w));
        }
    }
#pragma unroll
    for (int c = 0; c < COLUMNS; c++) {
        if (SILU || p.next_norm == NULL)
            break;
        float sum = squares[c];
#pragma unroll
        for (int d = 16; d > 0; d /= 2)
            sum += __shfl_xor_sync(ALL_LANES, sum, d);
        if (lane == 0 && column + c * WARPS < end)
            p.next_squares[group * QKC_SMALL_ROWS + column + c * WARPS] = sum;
    }
}

template <int N, int MT, bool SILU>
__global__ void __launch_bounds__(THREADS, 2) linear_hopper(const __grid_constant__ hopper_params p)
{
    extern __shared__ __align__(1024) unsigned char smem[];
    const uint32_t warp = threadIdx.x / QKC_WARP, lane = threadIdx.x % QKC_WARP;
    const uint32_t group = blockIdx.x / p.cluster, rank = blockIdx.x % p.cluster;
    const uint32_t first = cut(p.n_tiles, rank, p.cluster), end = cut(p.n_tiles, rank + 1, p.cluster);
    const shared_map m = map_shared<N>(p, shared_of(smem));

    if (threadIdx.x == WARPS * QKC_WARP) {
        for (uint32_t i = 0; i < p.stages; i++) {
            barrier_init(m.full + i * 8, 1);
            barrier_init(m.empty + i * 8, WARPS);
        }
        asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
    }
    __syncthreads();
    float *scales = (float *)(smem + p.scales_at);
    if (warp >= WARPS) {
        if (warp == WARPS && lane == 0)
            ask_tiles<SILU>(p, m, first, end, group * (SILU ? p.rows / 16 : p.rows));
        __syncwarp();
        qkc_pdl_wait();
        if (warp > WARPS)
            find_scales<N>(p, scales);
        group_barrier(p.cluster);
    } else {
        float sums[MT][N / 2] = {};
        multiply_tiles<N, MT>(p, m, end - first, sums);
        qkc_pdl_wait();
        const uint32_t count = __ldcg(p.state) == QK_OK ? min(__ldcg(p.count), (uint32_t)N) : 0;
        asm volatile("bar.sync 1, %0;" ::"n"(WARPS * QKC_WARP) : "memory"); /* nobody multiplies any more */
        put_sums<N, MT>(p, (float *)smem, sums);
        const uint32_t column = cut(count, rank, p.cluster) + warp,
                       column_end = cut(count, rank + 1, p.cluster);
        float4 old[COLUMNS];
        get_old(p, group, column, SILU ? 0 : column_end, old);
        group_barrier(p.cluster);
        for (uint32_t c = column; c < column_end; c += WARPS * COLUMNS)
            finish_columns<SILU>(p, shared_of(smem), scales, group, c, column_end, old, c == column);
    }
    if (p.cluster > 1)
        group_barrier(p.cluster); /* others may still read this block's sums */
}

/* ---- Launching ----------------------------------------------------------------------------------------------- */

typedef void (*hopper_fn)(const hopper_params);

template <int N> static hopper_fn pick_n(uint32_t m_tiles, bool silu)
{
    if (m_tiles <= 1)
        return silu ? linear_hopper<N, 1, true> : linear_hopper<N, 1, false>;
    if (m_tiles == 2)
        return silu ? linear_hopper<N, 2, true> : linear_hopper<N, 2, false>;
    return silu ? linear_hopper<N, 3, true> : linear_hopper<N, 3, false>;
}

static hopper_fn pick(uint32_t n, uint32_t m_tiles, bool silu)
{
    return n == 8    ? pick_n<8>(m_tiles, silu)
           : n == 16 ? pick_n<16>(m_tiles, silu)
           : n == 32 ? pick_n<32>(m_tiles, silu)
                     : pick_n<64>(m_tiles, silu);
}

static decltype(&cuTensorMapEncodeTiled) encode_tiled;

cudaError_t qkc_linear_hopper_init(void)
{
    void *fn = NULL;
    cudaDriverEntryPointQueryResult found = cudaDriverEntryPointSymbolNotFound;
#if CUDART_VERSION >= 12050
    cudaError_t code =
        cudaGetDriverEntryPointByVersion("cuTensorMapEncodeTiled", &fn, 12000, cudaEnableDefault, &found);
#else
    cudaError_t code = cudaGetDriverEntryPoint("cuTensorMapEncodeTiled", &fn, cudaEnableDefault, &found);
#endif
    if (code == cudaSuccess && (found != cudaDriverEntryPointSuccess || fn == NULL))
        code = cudaErrorSymbolNotFound;
    encode_tiled = (decltype(encode_tiled))fn;
    for (uint32_t n = 8; n <= 64 && code == cudaSuccess; n *= 2)
        for (uint32_t m = 1; m <= 3 && code == cudaSuccess; m++)
            for (int silu = 0; silu < 2 && code == cudaSuccess; silu++)
                code = cudaFuncSetAttribute((const void *)pick(n, m, silu != 0),
                    cudaFuncAttributeMaxDynamicSharedMemorySize, QKC_LINEAR_SMEM_HALF);
    return code;
}

static uint32_t divide_up(uint32_t a, uint32_t b)
{
    return a / b + (a % b != 0);
}

static uint32_t round_up(uint32_t a, uint32_t unit)
{
    return divide_up(a, unit) * unit;
}

typedef struct {
    uint32_t n, rows, groups, cluster, stages;
    size_t scales_at, smem;
} hopper_shape;

/* The ring and its barriers, past which products read in the last stage's rows that are none of the block's, and where the
 * sums will be; then the rows' scales. */
static void lay_out(hopper_shape *s)
{
    const size_t ring = (size_t)s->stages * ((s->rows + s->n) * LINE + 16);
    const size_t read = (size_t)((s->stages - 1) * s->rows + round_up(s->rows, 64)) * LINE;
    const size_t sums = (size_t)s->n * (s->rows + 4) * sizeof(float);
    s->scales_at = ring > sums ? ring : sums;
    s->smem = s->scales_at + s->n * sizeof(float);
    if (s->smem < read)
        s->smem = read;
}

/* The smallest cluster whose groups have enough rows that x, which goes through the L2 once a group, costs little beside W. */
static void choose(const qkc_launch *launch, const qkc_linear_hopper_args *args,
    const qkc_linear_hopper_tuning *tuning, hopper_shape *s)
{
    const bool silu = args->then == QKC_SILU_MUL;
    const uint32_t w_rows = args->n_out * (silu ? 2 : 1), unit = silu ? 16 : 8;
    s->n = args->rows_max <= 8 ? 8 : args->rows_max <= 16 ? 16 : args->rows_max <= 32 ? 32 : 64;
    for (s->cluster = 1;; s->cluster *= 2) {
        /* Graphics processing clusters have 16 or 18 SMs: larger clusters find room on a multiple of 16 of them. */
        uint32_t sms = launch->n_sms;
        if (s->cluster > 2 && sms > 16)
            sms -= sms % 16;
        s->rows = round_up(divide_up(w_rows, sms / s->cluster > 0 ? sms / s->cluster : 1), unit);
        if (tuning->cluster ? s->cluster >= tuning->cluster : s->rows >= 64 || s->cluster == CLUSTER_MAX)
            break;
    }
    if (tuning->rows)
        s->rows = round_up(tuning->rows, unit);
    if (s->rows > ROWS_MAX)
        s->rows = tuning->rows || s->n > 32 ? ROWS_MAX : 160;
    s->groups = divide_up(w_rows, s->rows);
    /* Where that leaves whole rows to each block, two share an SM with half the inputs each: more of W is under way. */
    if (!tuning->cluster && s->cluster == 1 && s->rows > 96 && s->groups <= (uint32_t)launch->n_sms)
        s->cluster = 2;
    s->stages = tuning->stages > 1 && tuning->stages < STAGES_MAX ? tuning->stages : STAGES_MAX;
    for (lay_out(s); s->smem > QKC_LINEAR_SMEM_HALF; lay_out(s))
        s->stages--;
}

static bool encode_w(const qkc_linear_hopper_args *args, const hopper_shape *s, CUtensorMap *map)
{
    const bool silu = args->then == QKC_SILU_MUL;
    const cuuint64_t row = (cuuint64_t)args->n_in * sizeof(qkc_bf16);
    const cuuint64_t dims[] = {args->n_in, silu ? 8 : args->n_out, 2, args->n_out / 8};
    const cuuint64_t strides[] = {row, row * args->n_out, row * 8};
    const cuuint32_t box[] = {TILE_K, silu ? 8 : s->rows, 2, s->rows / 16}, ones[] = {1, 1, 1, 1};
    return encode_tiled(map, CU_TENSOR_MAP_DATA_TYPE_BFLOAT16, silu ? 4 : 2, (void *)args->w, dims, strides,
               box, ones, CU_TENSOR_MAP_INTERLEAVE_NONE, CU_TENSOR_MAP_SWIZZLE_128B,
               CU_TENSOR_MAP_L2_PROMOTION_L2_128B, CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE) == CUDA_SUCCESS;
}

static bool encode_x(const qkc_linear_hopper_args *args, const hopper_shape *s, CUtensorMap *map)
{
    const cuuint64_t dims[] = {args->n_in, args->rows_max},
                     strides[] = {(cuuint64_t)args->n_in * sizeof(qkc_bf16)};
    const cuuint32_t box[] = {TILE_K, s->n}, ones[] = {1, 1};
    return encode_tiled(map, CU_TENSOR_MAP_DATA_TYPE_BFLOAT16, 2, (void *)args->x, dims, strides, box, ones,
               CU_TENSOR_MAP_INTERLEAVE_NONE, CU_TENSOR_MAP_SWIZZLE_128B, CU_TENSOR_MAP_L2_PROMOTION_L2_128B,
               CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE) == CUDA_SUCCESS;
}

bool qkc_linear_hopper_suits(uint32_t n_out, uint32_t n_in)
{
    return n_out > 0 && n_in > 0 && n_out % 8 == 0 && n_in % 8 == 0;
}

uint32_t qkc_linear_hopper_groups(const qkc_launch *launch, const qkc_linear_hopper_args *args)
{
    const qkc_linear_hopper_tuning none = {};
    hopper_shape s = {};
    choose(launch, args, &none, &s);
    return s.groups;
}

cudaError_t qkc_linear_hopper_tuned(
    const qkc_launch *launch, const qkc_linear_hopper_args *args, const qkc_linear_hopper_tuning *tuning)
{
    if (!qkc_linear_hopper_suits(args->n_out, args->n_in) || args->rows_max < 1 ||
        args->rows_max > QKC_SMALL_ROWS || encode_tiled == NULL)
        return cudaErrorInvalidValue;
    hopper_shape s = {};
    choose(launch, args, tuning, &s);
    hopper_params p = {};
    if (args->next_norm != NULL && s.groups > QKC_LINEAR_HOPPER_GROUPS)
        return cudaErrorInvalidValue;
    if (!encode_w(args, &s, &p.w) || !encode_x(args, &s, &p.x))
        return cudaErrorInvalidValue;
    p.count = args->plan.counts + (args->outputs ? 3 : 0);
    p.state = args->plan.state;
    p.squares = args->squares;
    p.n_squares = args->squares != NULL ? args->n_squares : 0;
    p.inv_norm = 1.0f / (float)args->n_in;
    p.eps = args->eps;
    p.y = args->y;
    p.y16 = args->y16;
    p.next_norm = args->next_norm;
    p.next_squares = args->next_squares;
    p.n_out = args->n_out;
    p.n_tiles = divide_up(args->n_in, TILE_K);
    p.rows = s.rows;
    p.stages = s.stages;
    p.scales_at = s.scales_at;
    p.cluster = s.cluster;
    p.add = args->then == QKC_ADD;
    p.early = !tuning->late;
    return qkc_start_clusters(launch, s.cluster, pick(s.n, divide_up(s.rows, 64), args->then == QKC_SILU_MUL),
        dim3(s.groups * s.cluster), dim3(THREADS), s.smem, p);
}

cudaError_t qkc_linear_hopper(const qkc_launch *launch, const qkc_linear_hopper_args *args)
{
    const qkc_linear_hopper_tuning none = {};
    return qkc_linear_hopper_tuned(launch, args, &none);
}
