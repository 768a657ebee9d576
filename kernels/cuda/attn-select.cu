/* attn-select.cu: selective attention (qk.h says what is chosen): bounds of pages, their scores, the lists of pages that
 * attn-decode.cu then attends to as to shorter sequences.
 *
 *   make_bounds  a warp a (page, layer, kv head): 16 keys -> the smallest and the largest of each dimension
 *   score        a block a chunk of a sequence's pages for one kv head: bounds and q -> keys
 *   choose       a block a (sequence, kv head): keys -> the list, in the order of the pages
 *
 * Keys are the scores' bits so turned that they compare as the scores do, NaN being the largest: then the nth largest is
 * found two bits a round, by counting the keys that are not below three thresholds, from the first bit in which keys
 * differ. The keys of 16,384 pages stay in the block's registers meanwhile. Counting needs no atomics, whose cost would
 * depend on how alike the scores are, and gives one answer: of equal keys at the edge the first.
 *
 * Every kernel waits for its predecessor before it reads anything (cuda-ops.h, convention 2): q is this layer's.
 *
 * Cost at the reference shape (8 kv heads of 128) and 256K tokens: bounds are 4 KB a page and layer, 67 MB, 16 us at 4.1
 * TB/s; about a dozen rounds of counting; the attention is that of 2,624 tokens. Making bounds reads half of a page. */
#include "kernels/cuda/attn-head.h"

#define ALL_LANES    0xffffffffu
#define BOUNDS_WARPS 8u
#define BOUNDS_ITEMS 128u /* of a launch: 2 KB of parameters */
#define SCORE_WARPS  8u
#define WARP_PAGES_MAX                                                                                       \
    16u /* of a warp; of short sequences fewer, so that more blocks share the way to memory */
#define WARP_PAGES_MIN 4u
#define MANY_PAGES     4096u
#define HEADS_MAX      8u
#define CHOOSE_THREADS 512u
#define CHOOSE_WARPS   (CHOOSE_THREADS / QKC_WARP)

static_assert(CHOOSE_WARPS <= QKC_WARP, "one lane reads one warp's count");

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
    if (blockIdx.x * SCORE_WARPS * a.warp_pages >= c.n_scored)
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

    const uint32_t first = (blockIdx.x * SCORE_WARPS + warp) * a.warp_pages;
    const uint32_t n = first < c.n_scored ? min(c.n_scored - first, a.warp_pages) : 0;
    const uint32_t page = c.page_begin + c.n_sink + first; /* in the plan */
    const size_t slice = ((size_t)a.layer * a.n_kv_heads + head) * 2 * D * sizeof(qkc_bf16);
    const unsigned long long held = lane < n ? __ldcg((const unsigned long long *)a.bounds + page + lane) : 0;
    uint32_t key = 0; /* of page @lane */
#pragma unroll 4
    for (uint32_t i = 0; i < n; i++) {
        const char *from = (const char *)__shfl_sync(ALL_LANES, held, i) + slice;
        uint32_t min[D / 64], max[D / 64];
        float sum = 0;
        load_words<D>(min, from);
        load_words<D>(max, from + D * sizeof(qkc_bf16));
#pragma unroll
        for (int h = 0; h < N_Q; h++)
            sum += part_of<D>(q[h], min, max);
#pragma unroll
        for (int d = 16; d > 0; d /= 2)
            sum += __shfl_xor_sync(ALL_LANES, sum, d);
        key = lane == i ? key_of(sum) : key;
    }
    if (lane < n)
        __stcg(a.keys + (size_t)head * a.pages_max + page + lane, key);
}

/* ---- Choosing ------------------------------------------------------------------------------------------------ */

/* A warp's keys stand together, 32 of them in turn for its lanes. */
static __device__ __forceinline__ uint32_t key_index(uint32_t n_a_thread, uint32_t j)
{
    const uint32_t lane = threadIdx.x % QKC_WARP, warp = threadIdx.x / QKC_WARP;
    return (warp * n_a_thread + j) * QKC_WARP + lane;
}

/* A thread's keys: in registers when H > 0, else read again each time. */
template <int H> struct thread_keys {
    const uint32_t *from;
    uint32_t n, n_a_thread; /* of the block; of a thread: at most H */
    uint32_t held[H > 0 ? H : 1];

    __device__ __forceinline__ uint32_t read(uint32_t j) const
    {
        const uint32_t i = key_index(n_a_thread, j);
        return i < n ? __ldcg(from + i) : 0; /* which no score has */
    }
    template <typename F> __device__ __forceinline__ void each(F fn) const
    {
        if constexpr (H > 0) {
#pragma unroll
            for (int j = 0; j < H; j++)
                if (j < n_a_thread)
                    fn(j, held[j]);
        } else {
#pragma unroll 8
            for (uint32_t j = 0; j < n_a_thread; j++)
                fn(j, read(j));
        }
    }
};

/* Sums over the block. @counts: not that of the call before; before this call of each warp its own. */
template <int N>
static __device__ __forceinline__ void sum_over_block(uint32_t (*counts)[CHOOSE_WARPS], uint32_t (&n)[N])
{
    const uint32_t lane = threadIdx.x % QKC_WARP, warp = threadIdx.x / QKC_WARP;
#pragma unroll
    for (int i = 0; i < N; i++)
        n[i] = __reduce_add_sync(ALL_LANES, n[i]);
    if (lane == 0)
#pragma unroll
        for (int i = 0; i < N; i++)
            counts[i][warp] = n[i];
    __syncthreads();
#pragma unroll
    for (int i = 0; i < N; i++)
        n[i] = __reduce_add_sync(ALL_LANES, lane < CHOOSE_WARPS ? counts[i][lane] : 0);
}

/* The bits in which all keys agree from the top on, as the end of them: keys differ below bit *@n_bits, an even number. */
template <int H>
static __device__ __forceinline__ uint32_t common_prefix(
    const thread_keys<H> &keys, uint32_t (*counts)[CHOOSE_WARPS], uint32_t *n_bits)
{
    const uint32_t lane = threadIdx.x % QKC_WARP, warp = threadIdx.x / QKC_WARP;
    uint32_t low = 0xffffffffu, high = 0;
    keys.each([&](uint32_t, uint32_t key) {
        low = key != 0 && key < low ? key : low;
        high = key > high ? key : high;
    });
    low = __reduce_min_sync(ALL_LANES, low);
    high = __reduce_max_sync(ALL_LANES, high);
    if (lane == 0)
        counts[0][warp] = low, counts[1][warp] = high;
    __syncthreads();
    low = __reduce_min_sync(ALL_LANES, lane < CHOOSE_WARPS ? counts[0][lane] : 0xffffffffu);
    high = __reduce_max_sync(ALL_LANES, lane < CHOOSE_WARPS ? counts[1][lane] : 0);
    *n_bits = (32 - __clz(low ^ high) + 1) / 2 * 2;
    return *n_bits == 32 ? 0 : high >> *n_bits << *n_bits;
}

/* The @k-th largest key, two bits a round; *@n_above: how many are larger. */
template <int H>
static __device__ __forceinline__ uint32_t find_edge(
    const thread_keys<H> &keys, uint32_t k, uint32_t (*counts)[3][CHOOSE_WARPS], uint32_t *n_above)
{
    uint32_t n_bits, edge = common_prefix(keys, counts[0], &n_bits);
    *n_above = 0;
    for (uint32_t turn = 1; n_bits > 0; turn++) {
        n_bits -= 2;
        const uint32_t one = edge | 1u << n_bits, two = edge | 2u << n_bits, three = edge | 3u << n_bits;
        uint32_t n[3] = {0, 0, 0};
        keys.each([&](uint32_t, uint32_t key) {
            n[0] += key >= one;
            n[1] += key >= two;
            n[2] += key >= three;
        });
        sum_over_block(counts[turn % 2], n);
        if (n[2] >= k) {
            edge = three;
        } else {
            edge = n[1] >= k ? two : n[0] >= k ? one : edge;
            *n_above = n[1] >= k ? n[2] : n[0] >= k ? n[1] : n[0];
        }
    }
    return edge;
}

template <int H>
__global__ void __launch_bounds__(CHOOSE_THREADS) choose_pages(const __grid_constant__ qkc_select_args a)
{
    __shared__ seq_choice c;
    __shared__ uint32_t counts[2][3][CHOOSE_WARPS];
    const uint32_t tid = threadIdx.x, lane = tid % QKC_WARP, warp = tid / QKC_WARP, head = blockIdx.x;
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

    thread_keys<H> keys;
    keys.from = a.keys + (size_t)head * a.pages_max + c.page_begin + c.n_sink;
    keys.n = n;
    keys.n_a_thread = (n + CHOOSE_THREADS - 1) / CHOOSE_THREADS;
#pragma unroll
    for (int j = 0; j < H; j++)
        keys.held[j] = j < keys.n_a_thread ? keys.read(j) : 0;
    uint32_t n_above_all;
    const uint32_t edge = find_edge(keys, k, counts, &n_above_all);
    const uint32_t n_equal = k - n_above_all; /* so many of those at the edge, the first ones */

    uint32_t n_here[2] = {0, 0};
    keys.each([&](uint32_t, uint32_t key) {
        n_here[0] += key > edge;
        n_here[1] += key == edge;
    });
    __syncthreads(); /* counts may be those of the last round */
    sum_over_block(counts[0], n_here);
    uint32_t above = __reduce_add_sync(ALL_LANES, lane < warp ? counts[0][0][lane % CHOOSE_WARPS] : 0);
    uint32_t equal = __reduce_add_sync(ALL_LANES, lane < warp ? counts[0][1][lane % CHOOSE_WARPS] : 0);
    const uint32_t lower = (1u << lane) - 1;
    keys.each([&](uint32_t j, uint32_t key) {
        const uint32_t above_mask = __ballot_sync(ALL_LANES, key > edge),
                       equal_mask = __ballot_sync(ALL_LANES, key == edge);
        const uint32_t n_above = above + __popc(above_mask & lower),
                       n_before = equal + __popc(equal_mask & lower);
        if (key > edge || (key == edge && n_before < n_equal))
            list[n_above + min(n_before, n_equal)] = pages[key_index(keys.n_a_thread, j)];
        above += __popc(above_mask);
        equal += __popc(equal_mask);
    });
}

/* ---- Host ---------------------------------------------------------------------------------------------------- */

typedef void (*select_kernel)(const qkc_select_args);

template <int D> static select_kernel score_kernel_of(uint32_t n_q)
{
    static const select_kernel kernels[HEADS_MAX] = {score_pages<D, 1>, score_pages<D, 2>, score_pages<D, 3>,
        score_pages<D, 4>, score_pages<D, 5>, score_pages<D, 6>, score_pages<D, 7>, score_pages<D, 8>};
    return n_q >= 1 && n_q <= HEADS_MAX ? kernels[n_q - 1] : NULL;
}

/* Sizes are the reach of the choosing kernels. */
static const uint32_t size_pages[QKC_SELECT_SIZES - 1] = {
    2 * CHOOSE_THREADS, 8 * CHOOSE_THREADS, 32 * CHOOSE_THREADS};

uint32_t qkc_select_size(uint32_t n_scored_max)
{
    uint32_t size = 0;
    while (size < QKC_SELECT_SIZES - 1 && size_pages[size] < n_scored_max)
        size++;
    return size;
}

uint32_t qkc_select_size_pages(uint32_t size, uint32_t pages_max)
{
    return size < QKC_SELECT_SIZES - 1 && size_pages[size] < pages_max ? size_pages[size] : pages_max;
}

/* @n_a_thread: keys of a thread. */
static select_kernel choose_kernel_of(uint32_t n_a_thread)
{
    return n_a_thread <= 2    ? choose_pages<2>
           : n_a_thread <= 8  ? choose_pages<8>
           : n_a_thread <= 32 ? choose_pages<32>
                              : choose_pages<0>;
}

/* Kernels come to the device when they are first asked for: not in the first selective step. */
cudaError_t qkc_select_init(void)
{
    cudaFuncAttributes attributes;
    cudaError_t code = cudaFuncGetAttributes(&attributes, make_bounds<64>);
    for (uint32_t n = 1; n <= 64 && code == cudaSuccess; n *= 4)
        code = cudaFuncGetAttributes(&attributes, choose_kernel_of(n));
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
    const select_kernel score = args->head_dim == 64    ? score_kernel_of<64>(n_q)
                                : args->head_dim == 128 ? score_kernel_of<128>(n_q)
                                                        : NULL;
    if (score == NULL || n_q * n_kv_heads != args->n_heads || args->rows_max < 1 ||
        args->rows_max > QKC_SMALL_ROWS || args->n_scored_max < 1)
        return cudaErrorInvalidValue;
    qkc_select_args a = *args;
    a.warp_pages = a.n_scored_max > MANY_PAGES ? WARP_PAGES_MAX : WARP_PAGES_MIN;
    const uint32_t block_pages = SCORE_WARPS * a.warp_pages;
    const dim3 grid((a.n_scored_max + block_pages - 1) / block_pages, n_kv_heads, a.rows_max);
    cudaError_t code = qkc_start(launch, score, grid, dim3(SCORE_WARPS * QKC_WARP), 0, a);
    if (code != cudaSuccess)
        return code;
    const uint32_t n_a_thread = (a.n_scored_max + CHOOSE_THREADS - 1) / CHOOSE_THREADS;
    return qkc_start(
        launch, choose_kernel_of(n_a_thread), dim3(n_kv_heads, a.rows_max), dim3(CHOOSE_THREADS), 0, a);
}
