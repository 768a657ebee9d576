/* attn-select.cu: selective attention (qk.h says what is chosen): bounds of pages, their scores, the lists of pages that
 * attn-decode.cu then attends to as to shorter sequences.
 *
 *   make_bounds  a warp a (page, layer, kv head): 16 keys -> the smallest and the largest of each dimension
 *   score        a block a chunk of a sequence's pages for one kv head: bounds and q -> keys
 *   choose       a block a (sequence, kv head): keys -> the list, in the order of the pages
 *
 * Keys are the scores' bits so turned that they compare as the scores do, NaN being the largest: then the nth largest is
 * found bit by bit, by counting the keys that are not below a threshold. The keys of 16,384 pages stay in the block's
 * registers meanwhile. Counting needs no atomics, whose cost would depend on how alike the scores are, and gives one answer:
 * of equal keys at the edge the first.
 *
 * Every kernel waits for its predecessor before it reads anything (cuda-ops.h, convention 2): q is this layer's.
 *
 * Cost at the reference shape (8 kv heads of 128) and 256K tokens: bounds are 4 KB a page and layer, 67 MB, 16 us at 4.1
 * TB/s; 32 rounds of counting and 16 of writing, about 10 us; the attention is that of 2,624 tokens. Making bounds reads half
 * of a page. */
#include "kernels/cuda/attn-head.h"

#define ALL_LANES      0xffffffffu
#define BOUNDS_WARPS   8u
#define BOUNDS_ITEMS   128u /* of a launch: 2 KB of parameters */
#define SCORE_WARPS    8u
#define WARP_PAGES     16u
#define SCORE_PAGES    (SCORE_WARPS * WARP_PAGES) /* of a block */
#define HEADS_MAX      8u
#define CHOOSE_THREADS 1024u
#define CHOOSE_WARPS   (CHOOSE_THREADS / QKC_WARP)
#define HELD_KEYS      16 /* in a thread's registers */

static_assert(CHOOSE_WARPS == QKC_WARP, "one lane reads one warp's count");

/* ---- Bounds -------------------------------------------------------------------------------------------------- */

typedef struct {
    qk_bounds item[BOUNDS_ITEMS];
    qk_kv_layout layout;
    uint32_t n_layers, n_kv_heads;
} bounds_params;

static __device__ __forceinline__ uint32_t min_of(uint32_t a, uint32_t b)
{
    const __nv_bfloat162 m =
        __hmin2_nan(*reinterpret_cast<__nv_bfloat162 *>(&a), *reinterpret_cast<__nv_bfloat162 *>(&b));
    return *reinterpret_cast<const uint32_t *>(&m);
}

static __device__ __forceinline__ uint32_t max_of(uint32_t a, uint32_t b)
{
    const __nv_bfloat162 m =
        __hmax2_nan(*reinterpret_cast<__nv_bfloat162 *>(&a), *reinterpret_cast<__nv_bfloat162 *>(&b));
    return *reinterpret_cast<const uint32_t *>(&m);
}

/* A lane's D / 64 words, of two dimensions each. */
template <int D> static __device__ __forceinline__ void load_words(uint32_t (&x)[D / 64], const char *from)
{
    const uint32_t lane = threadIdx.x % QKC_WARP;
    if constexpr (D == 128) {
        const uint2 v = __ldcg((const uint2 *)from + lane);
        x[0] = v.x, x[1] = v.y;
    } else {
        x[0] = __ldcg((const uint32_t *)from + lane);
    }
}

template <int D> static __device__ __forceinline__ void store_words(char *to, const uint32_t (&x)[D / 64])
{
    const uint32_t lane = threadIdx.x % QKC_WARP;
    if constexpr (D == 128)
        __stcg((uint2 *)to + lane, make_uint2(x[0], x[1]));
    else
        __stcg((uint32_t *)to + lane, x[0]);
}

template <int D>
__global__ void __launch_bounds__(BOUNDS_WARPS *QKC_WARP) make_bounds(const __grid_constant__ bounds_params p)
{
    const uint32_t slice = blockIdx.x * BOUNDS_WARPS + threadIdx.x / QKC_WARP;
    if (slice >= p.n_layers * p.n_kv_heads)
        return;
    const qk_bounds &item = p.item[blockIdx.y];
    const char *keys = (const char *)(uintptr_t)(item.page & ~(uint64_t)QK_PAGE_HOST) +
                       slice / p.n_kv_heads * p.layout.layer_stride +
                       slice % p.n_kv_heads * p.layout.head_stride;
    uint32_t x[QK_PAGE_TOKENS][D / 64];
#pragma unroll
    for (int t = 0; t < (int)QK_PAGE_TOKENS; t++)
        load_words<D>(x[t], keys + t * p.layout.token_stride);
    uint32_t min[D / 64], max[D / 64];
#pragma unroll
    for (int w = 0; w < D / 64; w++) {
        min[w] = max[w] = x[0][w];
#pragma unroll
        for (int t = 1; t < (int)QK_PAGE_TOKENS; t++) {
            min[w] = min_of(min[w], x[t][w]);
            max[w] = max_of(max[w], x[t][w]);
        }
    }
    char *to = (char *)(uintptr_t)item.bounds + (size_t)slice * 2 * D * sizeof(qkc_bf16);
    store_words<D>(to, min);
    store_words<D>(to + D * sizeof(qkc_bf16), max);
}

cudaError_t qkc_make_bounds(const qkc_launch *launch, const qk_bounds *items, uint32_t n,
    const qk_kv_layout *layout, uint32_t n_layers, uint32_t n_kv_heads, uint32_t head_dim)
{
    if (layout->dtype != QK_BF16 || (head_dim != 64 && head_dim != 128))
        return cudaErrorInvalidValue;
    cudaError_t code = cudaSuccess;
    qkc_launch plain = *launch;
    plain.pdl = false;
    for (uint32_t done = 0; done < n && code == cudaSuccess; done += BOUNDS_ITEMS) {
        bounds_params p = {};
        const uint32_t n_items = n - done < BOUNDS_ITEMS ? n - done : BOUNDS_ITEMS;
        for (uint32_t i = 0; i < n_items; i++)
            p.item[i] = items[done + i];
        p.layout = *layout;
        p.n_layers = n_layers;
        p.n_kv_heads = n_kv_heads;
        const dim3 grid((n_layers * n_kv_heads + BOUNDS_WARPS - 1) / BOUNDS_WARPS, n_items);
        code = qkc_start(&plain, head_dim == 64 ? make_bounds<64> : make_bounds<128>, grid,
            dim3(BOUNDS_WARPS * QKC_WARP), 0, p);
    }
    return code;
}

/* ---- Scores -------------------------------------------------------------------------------------------------- */

/* Of a sequence: the pages that are scored, and where its lists begin. */
typedef struct {
    uint32_t page_begin, n_pages, n_sink, n_recent, n_chosen;
    uint32_t n_scored; /* 0: it leaves none out */
    uint32_t list;
} seq_choice;

/* One thread. */
static __device__ seq_choice read_seq(const qkc_select_args &a, uint32_t seq)
{
    seq_choice c = {};
    if (seq >= __ldcg(a.plan.counts + 1))
        return c;
    for (uint32_t s = 0; s <= seq; s++) {
        const qk_seq *from = &a.plan.seqs[s];
        c.n_pages = __ldcg(&from->n_pages);
        c.n_sink = __ldcg(&from->n_sink), c.n_recent = __ldcg(&from->n_recent),
        c.n_chosen = __ldcg(&from->n_chosen);
        const uint32_t n = qkc_pages_attended(c.n_pages, c.n_sink, c.n_recent, c.n_chosen);
        if (s < seq)
            c.list += n < c.n_pages ? n : 0;
        else if (n < c.n_pages)
            c.n_scored = c.n_pages - c.n_sink - c.n_recent;
    }
    c.page_begin = __ldcg(&a.plan.seqs[seq].page_begin);
    return c;
}

static __device__ __forceinline__ uint32_t key_of(float score)
{
    const uint32_t bits = __float_as_uint(score);
    if ((bits & 0x7fffffffu) > 0x7f800000u)
        return 0xffffffffu;
    return bits & 0x80000000u ? ~bits : bits | 0x80000000u;
}

/* This lane's part of a bound of q . k: dimensions D / 32 * lane and those next to it. */
template <int D>
static __device__ __forceinline__ float part_of(
    const float (&q)[D / 32], const uint32_t (&min)[D / 64], const uint32_t (&max)[D / 64])
{
    float sum = 0;
#pragma unroll
    for (int w = 0; w < D / 64; w++) {
        /* A bf16 number is the upper half of a float32 one. */
        sum += fmaxf(q[2 * w] * __uint_as_float(min[w] << 16), q[2 * w] * __uint_as_float(max[w] << 16));
        sum += fmaxf(q[2 * w + 1] * __uint_as_float(min[w] & 0xffff0000u),
            q[2 * w + 1] * __uint_as_float(max[w] & 0xffff0000u));
    }
    return sum;
}

template <int D, int N_Q>
__global__ void __launch_bounds__(SCORE_WARPS *QKC_WARP)
    score_pages(const __grid_constant__ qkc_select_args a)
{
    __shared__ seq_choice c;
    __shared__ float heads[N_Q][D];
    const uint32_t lane = threadIdx.x % QKC_WARP, warp = threadIdx.x / QKC_WARP;
    const uint32_t head = blockIdx.y, seq = blockIdx.z;
    qkc_pdl_wait();
    qkc_pdl_trigger();
    if (threadIdx.x == 0)
        c = read_seq(a, seq);
    __syncthreads();
    if (blockIdx.x * SCORE_PAGES >= c.n_scored)
        return;
    if (warp < N_Q) {
        float x[D / 64], y[D / 64];
        const float *row = a.qkv + (size_t)seq * (a.n_heads + 2 * a.n_kv_heads) * D;
        get_head<D>(
            x, y, row + (head * N_Q + warp) * D, a.q_norm, a.plan.cos_sin + (size_t)seq * D, a.eps, lane);
#pragma unroll
        for (int e = 0; e < D / 64; e++) {
            heads[warp][lane * (D / 64) + e] = x[e];
            heads[warp][D / 2 + lane * (D / 64) + e] = y[e];
        }
    }
    __syncthreads();
    float q[N_Q][D / 32];
#pragma unroll
    for (int h = 0; h < N_Q; h++)
#pragma unroll
        for (int e = 0; e < D / 32; e++)
            q[h][e] = heads[h][lane * (D / 32) + e];

    const uint32_t first = blockIdx.x * SCORE_PAGES + warp * WARP_PAGES;
    const uint32_t n = first < c.n_scored ? min(c.n_scored - first, WARP_PAGES) : 0;
    const uint32_t page = c.page_begin + c.n_sink + first; /* in the plan */
    const size_t slice = ((size_t)a.layer * a.n_kv_heads + head) * 2 * D * sizeof(qkc_bf16);
    const unsigned long long held = lane < n ? __ldcg((const unsigned long long *)a.bounds + page + lane) : 0;
    uint32_t key = 0; /* of page @lane */
#pragma unroll 4
    for (uint32_t i = 0; i < n; i++) {
        const char *from = (const char *)__shfl_sync(ALL_LANES, held, i) + slice;
        uint32_t min[D / 64], max[D / 64], best = 0;
        load_words<D>(min, from);
        load_words<D>(max, from + D * sizeof(qkc_bf16));
#pragma unroll
        for (int h = 0; h < N_Q; h++) {
            float sum = part_of<D>(q[h], min, max);
#pragma unroll
            for (int d = 16; d > 0; d /= 2)
                sum += __shfl_xor_sync(ALL_LANES, sum, d);
            const uint32_t k = key_of(sum);
            best = k > best ? k : best;
        }
        key = lane == i ? best : key;
    }
    if (lane < n)
        __stcg(a.keys + (size_t)head * a.pages_max + page + lane, key);
}

/* ---- Choosing ------------------------------------------------------------------------------------------------ */

/* The sum over the block of @n, and in @before that of the warps before this one. @counts: [CHOOSE_WARPS], not that of the
 * call before. */
static __device__ __forceinline__ uint32_t sum_over_block(uint32_t *counts, uint32_t n, uint32_t *before)
{
    const uint32_t lane = threadIdx.x % QKC_WARP, warp = threadIdx.x / QKC_WARP;
    n = __reduce_add_sync(ALL_LANES, n);
    if (lane == 0)
        counts[warp] = n;
    __syncthreads();
    const uint32_t other = counts[lane];
    *before = __reduce_add_sync(ALL_LANES, lane < warp ? other : 0);
    return __reduce_add_sync(ALL_LANES, other);
}

/* How many of the keys are at least @threshold. */
static __device__ __forceinline__ uint32_t count_keys(
    const uint32_t (&held)[HELD_KEYS], const uint32_t *keys, uint32_t n, uint32_t threshold, uint32_t *counts)
{
    uint32_t count = 0, before;
#pragma unroll
    for (int j = 0; j < HELD_KEYS; j++)
        count += held[j] >= threshold;
    for (uint32_t i = HELD_KEYS * CHOOSE_THREADS + threadIdx.x; i < n; i += CHOOSE_THREADS)
        count += __ldcg(keys + i) >= threshold;
    return sum_over_block(counts, count, &before);
}

__global__ void __launch_bounds__(CHOOSE_THREADS) choose_pages(const __grid_constant__ qkc_select_args a)
{
    __shared__ seq_choice c;
    __shared__ uint32_t counts[2][CHOOSE_WARPS];
    const uint32_t tid = threadIdx.x, lane = tid % QKC_WARP, head = blockIdx.x;
    qkc_pdl_wait();
    qkc_pdl_trigger();
    if (tid == 0)
        c = read_seq(a, blockIdx.y);
    __syncthreads();
    const uint32_t n = c.n_scored, k = c.n_chosen;
    if (n == 0)
        return;
    const uint64_t *pages = a.plan.pages + c.page_begin;
    uint64_t *list = a.plan.pages + a.lists_begin + (size_t)head * a.lists_stride + c.list;
    for (uint32_t i = tid; i < c.n_sink; i += CHOOSE_THREADS)
        list[i] = pages[i];
    for (uint32_t i = tid; i < c.n_recent; i += CHOOSE_THREADS)
        list[c.n_sink + k + i] = pages[c.n_pages - c.n_recent + i];
    if (k == 0)
        return;
    pages += c.n_sink;
    list += c.n_sink;

    const uint32_t *keys = a.keys + (size_t)head * a.pages_max + c.page_begin + c.n_sink;
    uint32_t held[HELD_KEYS]; /* 0, which no score has, where there is none */
#pragma unroll
    for (int j = 0; j < HELD_KEYS; j++) {
        const uint32_t i = j * CHOOSE_THREADS + tid;
        held[j] = i < n ? __ldcg(keys + i) : 0;
    }
    uint32_t edge = 0, turn = 0;
    for (uint32_t bit = 1u << 31; bit > 0; bit /= 2)
        if (count_keys(held, keys, n, edge | bit, counts[turn++ % 2]) >= k)
            edge |= bit;
    const uint32_t n_above =
        edge == 0xffffffffu ? 0 : count_keys(held, keys, n, edge + 1, counts[turn++ % 2]);
    const uint32_t n_equal = k - n_above; /* so many of those at the edge, the first ones */

    /* Above the edge in the upper half of a word, at it in the lower one: a round has fewer than 65,536 of each. */
    uint32_t above = 0, equal = 0;
    for (uint32_t j = 0; j * CHOOSE_THREADS < n; j++) {
        const uint32_t i = j * CHOOSE_THREADS + tid;
        const uint32_t key = i < n ? __ldcg(keys + i) : 0;
        const bool is_above = key > edge, is_equal = key == edge && i < n;
        const uint32_t above_mask = __ballot_sync(ALL_LANES, is_above),
                       equal_mask = __ballot_sync(ALL_LANES, is_equal), lower = (1u << lane) - 1;
        uint32_t before;
        const uint32_t all =
            sum_over_block(counts[turn++ % 2], (is_above ? 1u << 16 : 0) + (is_equal ? 1u : 0), &before);
        const uint32_t n_above_before = above + (before >> 16) + __popc(above_mask & lower);
        const uint32_t n_equal_before = equal + (before & 0xffffu) + __popc(equal_mask & lower);
        if (is_above || (is_equal && n_equal_before < n_equal))
            list[n_above_before + min(n_equal_before, n_equal)] = pages[i];
        above += all >> 16;
        equal += all & 0xffffu;
    }
}

/* ---- Host ---------------------------------------------------------------------------------------------------- */

typedef void (*score_kernel)(const qkc_select_args);

template <int D> static score_kernel score_kernel_of(uint32_t n_q)
{
    static const score_kernel kernels[HEADS_MAX] = {score_pages<D, 1>, score_pages<D, 2>, score_pages<D, 3>,
        score_pages<D, 4>, score_pages<D, 5>, score_pages<D, 6>, score_pages<D, 7>, score_pages<D, 8>};
    return n_q >= 1 && n_q <= HEADS_MAX ? kernels[n_q - 1] : NULL;
}

/* Kernels come to the device when they are first asked for: not in the first selective step. */
cudaError_t qkc_select_init(void)
{
    cudaFuncAttributes attributes;
    cudaError_t code = cudaFuncGetAttributes(&attributes, choose_pages);
    if (code == cudaSuccess)
        code = cudaFuncGetAttributes(&attributes, make_bounds<64>);
    if (code == cudaSuccess)
        code = cudaFuncGetAttributes(&attributes, make_bounds<128>);
    for (uint32_t n_q = 1; n_q <= HEADS_MAX && code == cudaSuccess; n_q *= 2) {
        code = cudaFuncGetAttributes(&attributes, score_kernel_of<64>(n_q));
        if (code == cudaSuccess)
            code = cudaFuncGetAttributes(&attributes, score_kernel_of<128>(n_q));
    }
    return code;
}

cudaError_t qkc_select(const qkc_launch *launch, const qkc_select_args *args)
{
    const uint32_t n_kv_heads = args->n_kv_heads, n_q = n_kv_heads > 0 ? args->n_heads / n_kv_heads : 0;
    const score_kernel score = args->head_dim == 64    ? score_kernel_of<64>(n_q)
                               : args->head_dim == 128 ? score_kernel_of<128>(n_q)
                                                       : NULL;
    if (score == NULL || n_q * n_kv_heads != args->n_heads || args->rows_max < 1 ||
        args->rows_max > QKC_SMALL_ROWS || args->n_scored_max < 1)
        return cudaErrorInvalidValue;
    const dim3 grid((args->n_scored_max + SCORE_PAGES - 1) / SCORE_PAGES, n_kv_heads, args->rows_max);
    cudaError_t code = qkc_start(launch, score, grid, dim3(SCORE_WARPS * QKC_WARP), 0, *args);
    return code == cudaSuccess ? qkc_start(launch, choose_pages, dim3(n_kv_heads, args->rows_max),
                                     dim3(CHOOSE_THREADS), 0, *args)
                               : code;
}
