/* attn-decode.cu: the attention stage of a step in which every sequence has one new row, in one launch.
 *
 *   q, k = rope(rms_norm(q)), rope(rms_norm(k)); k, v -> the page of the new position
 *   out = sum over the keys of softmax(q.k / sqrt(head_dim)) v
 *
 * An item is one piece of one sequence (cuda-ops.h says where sequences are cut) for one kv head. The grid is fixed by
 * the device; its blocks walk the list of items, which each block derives from the sequences' lengths. In a block, warp
 * w takes the pages w, w + 8, ... of the piece, each warp for all query heads of the kv head, with a running maximum and
 * sum; the eight results are then merged in the order of the warps. Pieces' results go to the workspace; the block that
 * was last with a sequence's merges them in position order when its items are done.
 *
 * A page of 16 keys goes from memory straight into the registers of a warp in the order in which mma.m16n8k16 wants it,
 * without shared memory and without barriers:
 *   S = q K^T: A's rows are the high halves of up to 8 query heads, then their low halves; B's columns are 8 keys; the k
 *     index is the dimension, permuted so that 16 bytes of a key are two steps' operands of one lane.
 *   O^T = V^T P^T: A's rows are 16 dimensions, its k index 16 keys; B's columns are query heads, and a lane holds of P
 *     what it got of S. A lane loads the same 8 dimensions of 4 keys, which byte permutations pair; a warp's load covers
 *     whole lines of 128 bytes.
 * The next page's keys are asked for as soon as this page's have been multiplied, its values likewise, over the borders
 * of items: 8 KB a warp and 128 KB an SM are on their way. Pages behind these are asked into the L2, the next item's
 * first ones while this item is worked on, so that memory is busy while results are merged and heads are made ready.
 *
 * Precision: q (times log2(e) / sqrt(head_dim)) and P each enter as the sum of two bf16 numbers, since the tensor cores
 * idle here anyway: the rest is as with float32 throughout. The test allows 1e-4 of a row's norm against float64.
 *
 * Invariants
 *  1. A row's result depends on its sequence alone: its length says where it is cut, which warp takes which page and in
 *     which order results are added; not the batch, the grid, or who is last.
 *  2. Only keys below the sequence's length count. Of the last page the rows past it are loaded and thrown away
 *     (masked scores, values replaced by zero), so that what they hold, NaN included, does not matter.
 *  3. The new key and value are read from the QKV product by the block that has the sequence's last piece, which alone
 *     uses them, rounded to bf16 as the page gets them. Nothing else in the page is written.
 *  4. Every item of a sequence of several pieces counts itself in the sequence's counter, also when the step has been
 *     given up: so the counters wrap back to zero in every launch.
 *  5. Reads before qkc_pdl_wait(): in a launch with layer > 0 the plan (but for its state), the pages' older keys and
 *     values, the cos_sin table. That relies on this: the step's attention of the layer before was this kernel too,
 *     which triggers its dependents after its own wait, every kernel of the step waits before it ends, and the plan and
 *     the older tokens were complete before that first attention's wait ended. With layer 0 only weights are read.
 *
 * Cost at the reference shape (32 query heads, 8 kv heads of 128): 4 KB a key and layer. 32K keys: 134 MB, 32.5 us at
 * 4.13 TB/s (H200); 4 FLOP a byte, 16 as done here. Workspace: 2 KB written and read an item, against 128 KB of keys and
 * values or more. At 128 keys there are 8 items of 8 warps with a page each, and latency is all. */
#include <math.h>
#include "kernels/cuda/attn-decode.h"

#define WARPS        8u
#define THREADS      (WARPS * QKC_WARP)
#define BLOCKS_A_SM  2
#define HEADS        8u /* query heads of a kv head, padded to the columns of an instruction */
#define ALL_LANES    0xffffffffu
#define FAR_LANE     16u /* this one and those after it look further ahead in the list of pages */
#define COUNTER      ((WARPS - 1) * QKC_WARP) /* the thread that counts items in */
#define PARTS_A_TIME 8u
#define MERGES_MAX   2048u
#define LOG2_E       1.44269504088896340736

/* Where things lie in the workspace: the counters of 64 sequences, then a record for each sequence. Independent of how
 * many sequences it was made for. */
#define COUNTERS_BYTES(n_kv_heads)                                                                           \
    (((size_t)QKC_SMALL_ROWS * (n_kv_heads) * sizeof(uint32_t) + 255) / 256 * 256)

typedef struct {
    qkc_attend_decode_args a;
    uint64_t layer_offset; /* of the layer in a page */
    uint32_t n_q;          /* query heads of a kv head */
    uint32_t *counters;    /* [QKC_SMALL_ROWS, n_kv_heads] */
    float *parts;          /* a sequence's record: [QKC_ITEMS_A_SEQ, n_heads, head_dim], then lse (base 2) of
                              [n_heads, QKC_ITEMS_A_SEQ] */
    size_t seq_floats;     /* of a record */
    float q_scale;         /* log2(e) / sqrt(head_dim) */
    bool early;            /* invariant 5 */
    uint32_t ahead;        /* qkc_decode_tuning */
} decode_params;

/* One piece of one sequence for one kv head. In shared memory: registers are short. */
typedef struct {
    uint32_t head, seq, piece, n_pieces;
    uint32_t page, n_pages; /* index of its first page in the plan; how many */
    uint32_t n_tail;        /* keys of the last page, when that holds the new token; else 0 */
} item_info;

/* A block's shared memory. */
template <int D> struct block_memory {
    /* For each two dimensions the two high halves, then the two low ones, bf16. The pad keeps reads off equal banks. */
    alignas(16) uint32_t q[HEADS][D + 4];
    alignas(16) qkc_bf16 new_kv[2][D];          /* the new key and value */
    alignas(16) float out[WARPS][HEADS][D + 4]; /* not normalised */
    float max[WARPS][HEADS], sum[WARPS][HEADS];
    float weight[HEADS][QKC_ITEMS_A_SEQ];
    uint32_t end[QKC_SMALL_ROWS];  /* pieces of the sequences up to and with this one */
    uint32_t keys[QKC_SMALL_ROWS]; /* the sequence's length, with the new token */
    uint32_t page[QKC_SMALL_ROWS]; /* where its pages begin in the plan */
    uint32_t n_pieces;             /* of all sequences */
    uint32_t given_up;
    uint32_t n_merges;
    uint16_t
        merge[MERGES_MAX]; /* seq * n_kv_heads + head of what this block is to merge: it was the last there */
    uint64_t next[WARPS];  /* address of the warp's first page in the next item; 0: none */
    uint64_t second[WARPS][2]; /* of its pages 1 and p.ahead in this item */
    /* The block's items in turn, item k in slot k % 4, one without pages past the last. */
    item_info item[4];
};

/* A page of one kv head in a warp's registers. Lane = 4 * g + t. */
template <int D> struct page_registers {
    uint4 k[2][D / 32]; /* keys g and g + 8; dimensions 32 * c + 8 * t and the next 7 */
    uint4 v[4][D / 64]; /* keys 2 * t + {0, 1, 8, 9}; dimensions 64 * h + 8 * g and the next 7 */
};

/* A lane's part of a head of the QKV product, and of its position's table. */
template <int D> struct head_values {
    float x[D / 64], y[D / 64]; /* of the first half, and D / 2 further */
    float cos_of[D / 64], sin_of[D / 64];
};

/* One warp's results so far. */
template <int D> struct warp_result {
    /* Of query heads 2 * t and 2 * t + 1. Tile 4 * h + e: dimension 64 * h + 8 * g + 2 * e of both heads, then the
     * dimension after it of both heads. */
    float o[D / 16][4];
    float max, sum; /* of query head g: base 2; this lane's keys alone */
};

/* ---- Instructions -------------------------------------------------------------------------------------------- */

/* Past the L1 cache, which may have a page as it was before another SM appended to it: kernels overlap here. */
static __device__ __forceinline__ uint4 load_stream(const char *from)
{
    uint4 v;
    asm volatile("ld.global.cg.L2::128B.v4.u32 {%0, %1, %2, %3}, [%4];"
                 : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
                 : "l"(from));
    return v;
}

/* Stays where it is written: the compiler must not gather such loads, which would need registers. */
static __device__ __forceinline__ uint4 load_shared(uint32_t from)
{
    uint4 v;
    asm volatile("ld.shared.v4.u32 {%0, %1, %2, %3}, [%4];"
                 : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
                 : "r"(from));
    return v;
}

/* The lane's number, asked for again each time: what follows from it need not stay in registers. */
static __device__ __forceinline__ uint32_t lane_again(void)
{
    uint32_t lane;
    asm volatile("mov.u32 %0, %%laneid;" : "=r"(lane));
    return lane;
}

static __device__ __forceinline__ void prefetch_l2(const void *at)
{
    asm volatile("prefetch.global.L2 [%0];" ::"l"(at));
}

/* @bytes: a multiple of 16. */
static __device__ __forceinline__ void prefetch_l2_bulk(const void *at, uint32_t bytes)
{
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
    asm volatile("cp.async.bulk.prefetch.L2.global [%0], %1;" ::"l"(at), "r"(bytes) : "memory");
#endif
}

/* c += a b: a is 16 x 16, b 16 x 8. */
static __device__ __forceinline__ void multiply(
    float (&c)[4], uint32_t a0, uint32_t a1, uint32_t a2, uint32_t a3, uint32_t b0, uint32_t b1)
{
    asm volatile(
        "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, "
        "{%0, %1, %2, %3};"
        : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
        : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "r"(b0), "r"(b1));
}

static __device__ __forceinline__ float exp2_of(float x)
{
    float y;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}

static __device__ __forceinline__ uint32_t bits_of(__nv_bfloat162 x)
{
    return *reinterpret_cast<uint32_t *>(&x);
}

/* x and y (in the low half) as bf16 numbers, and what that leaves out as bf16 numbers. */
static __device__ __forceinline__ void split(float x, float y, uint32_t *high, uint32_t *low)
{
    const __nv_bfloat162 h = __floats2bfloat162_rn(x, y);
    *high = bits_of(h);
    *low = bits_of(__floats2bfloat162_rn(x - __low2float(h), y - __high2float(h)));
}

static __device__ __forceinline__ uint32_t word_of(const uint4 &v, int i)
{
    return i == 0 ? v.x : i == 1 ? v.y : i == 2 ? v.z : v.w;
}

/* ---- The list of items --------------------------------------------------------------------------------------- */

static __host__ __device__ __forceinline__ uint32_t piece_keys(uint32_t n_keys)
{
    const uint32_t n_spans = (n_keys + QK_SPAN_TOKENS - 1) / QK_SPAN_TOKENS;
    return QK_SPAN_TOKENS * ((n_spans + QKC_ITEMS_A_SEQ - 1) / QKC_ITEMS_A_SEQ);
}

/* One warp: the sequences' lengths, pages, and running count of pieces. Rows that the launch could have are read before
 * their number is known. */
template <int D> static __device__ void list_pieces(const decode_params &p, block_memory<D> &s)
{
    const uint32_t lane = lane_again();
    uint32_t start[2] = {0, 0}, page[2] = {0, 0}, before = 0;
#pragma unroll
    for (uint32_t i = 0; i < 2; i++)
        if (i * QKC_WARP + lane < p.a.rows_max) {
            start[i] = __ldcg(&p.a.plan.seqs[i * QKC_WARP + lane].start);
            page[i] = __ldcg(&p.a.plan.seqs[i * QKC_WARP + lane].page_begin);
        }
    const uint32_t n_seqs = min(__ldcg(p.a.plan.counts + 1), p.a.rows_max);
#pragma unroll
    for (uint32_t i = 0; i < 2; i++) {
        const uint32_t seq = i * QKC_WARP + lane;
        uint32_t n = 0, n_keys = 0;
        if (seq < n_seqs) {
            n_keys = start[i] + 1;
            s.page[seq] = page[i];
            const uint32_t size = piece_keys(n_keys);
            n = (n_keys + size - 1) / size;
        }
        for (uint32_t d = 1; d < QKC_WARP; d *= 2) {
            const uint32_t other = __shfl_up_sync(ALL_LANES, n, d);
            n += lane >= d ? other : 0;
        }
        s.keys[seq] = n_keys;
        s.end[seq] = before + n;
        before += __shfl_sync(ALL_LANES, n, QKC_WARP - 1);
    }
    if (lane == 0)
        s.n_pieces = before;
}

/* A whole warp calls it: puts item @index of the list into slot @to; one without pages past the list's end. */
template <int D>
static __device__ void find_item(const decode_params &p, block_memory<D> &s, uint32_t index, item_info *to)
{
    const uint32_t lane = lane_again();
    const uint32_t piece = index / p.a.n_kv_heads;
    const uint32_t seq = __popc(__ballot_sync(ALL_LANES, s.end[lane] <= piece)) +
                         __popc(__ballot_sync(ALL_LANES, s.end[QKC_WARP + lane] <= piece));
    if (lane != 0)
        return;
    if (piece >= s.n_pieces) {
        to->n_pages = 0;
        return;
    }
    const uint32_t first = seq > 0 ? s.end[seq - 1] : 0;
    const uint32_t n_keys = s.keys[seq], size = piece_keys(n_keys), begin = (piece - first) * size;
    const bool last = piece + 1 == s.end[seq];
    to->head = index % p.a.n_kv_heads;
    to->seq = seq;
    to->piece = piece - first;
    to->n_pieces = s.end[seq] - first;
    to->page = s.page[seq] + begin / QK_PAGE_TOKENS;
    to->n_pages = ((last ? n_keys - begin : size) + QK_PAGE_TOKENS - 1) / QK_PAGE_TOKENS;
    to->n_tail = last ? (n_keys - 1) % QK_PAGE_TOKENS + 1 : 0;
}

/* The address of page @i of an item out of the plan; 0 past its end. */
static __device__ __forceinline__ uint64_t page_address(
    const decode_params &p, const volatile item_info &it, uint32_t i)
{
    return i < it.n_pages ? __ldcg((const unsigned long long *)p.a.plan.pages + it.page + i) : 0;
}

/* Where the layer's keys of a kv head begin; NULL for page 0. */
static __device__ __forceinline__ char *head_in_page(const decode_params &p, uint64_t page, uint32_t head)
{
    return page == 0 ? NULL : (char *)(uintptr_t)(page + p.layer_offset + head * p.a.layout.head_stride);
}

/* Asks pages of a kv head into the L2: those whose addresses the lanes from @first_lane on have in @at, up to the first
 * that is NULL. */
template <int D, bool BULK>
static __device__ __forceinline__ void prefetch_pages(
    const decode_params &p, const char *at, uint32_t first_lane, uint32_t n_lanes)
{
    const uint32_t lane = lane_again(), stride = p.a.layout.token_stride;
    if constexpr (BULK) {
        if (at != NULL && lane - first_lane < n_lanes) {
            const uint32_t bytes = (QK_PAGE_TOKENS - 1) * stride + 2 * D;
            prefetch_l2_bulk(at, bytes);
            prefetch_l2_bulk(at + p.a.layout.v_offset, bytes);
        }
    } else {
        const uint32_t token = D == 128 ? lane / 2 : lane % 16;
        const uint32_t offset = token * stride + (D == 128 ? lane % 2 * 128 : 0);
#pragma unroll 1
        for (uint32_t i = 0; i < n_lanes; i++) {
            const char *page = (const char *)__shfl_sync(ALL_LANES, (unsigned long long)at, first_lane + i);
            if (page == NULL)
                break;
            if (D == 128 || lane < 16)
                prefetch_l2(page + offset);
            if (D == 128 || lane >= 16)
                prefetch_l2(page + offset + p.a.layout.v_offset);
        }
    }
}

/* ---- The new token ------------------------------------------------------------------------------------------- */

/* A lane's elements of half a head: D / 64 neighbours. */
template <int D>
static __device__ __forceinline__ void get_half(float (&x)[D / 64], const float *from, uint32_t lane)
{
    if constexpr (D == 128) {
        const float2 v = __ldcg((const float2 *)from + lane);
        x[0] = v.x;
        x[1] = v.y;
    } else {
        x[0] = __ldcg(from + lane);
    }
}

/* The same as bf16, into shared memory or a page. */
template <int D>
static __device__ __forceinline__ void put_half(void *to, uint32_t lane, const float (&x)[D / 64])
{
    if constexpr (D == 128)
        ((__nv_bfloat162 *)to)[lane] = __floats2bfloat162_rn(x[0], x[1]);
    else
        ((qkc_bf16 *)to)[lane] = __float2bfloat16_rn(x[0]);
}

/* One warp: normalises and rotates a head. */
template <int D>
static __device__ __forceinline__ void turn_head(
    head_values<D> &h, const float *norm, float eps, uint32_t lane)
{
    float norm_x[D / 64], norm_y[D / 64];
    get_half<D>(norm_x, norm, lane);
    get_half<D>(norm_y, norm + D / 2, lane);
    float sum = 0;
#pragma unroll
    for (int e = 0; e < D / 64; e++)
        sum += h.x[e] * h.x[e] + h.y[e] * h.y[e];
#pragma unroll
    for (int d = 16; d > 0; d /= 2)
        sum += __shfl_xor_sync(ALL_LANES, sum, d);
    const float scale = 1.0f / sqrtf(sum / D + eps);
#pragma unroll
    for (int e = 0; e < D / 64; e++) {
        const float a = h.x[e] * scale * norm_x[e], b = h.y[e] * scale * norm_y[e];
        h.x[e] = a * h.cos_of[e] - b * h.sin_of[e];
        h.y[e] = b * h.cos_of[e] + a * h.sin_of[e];
    }
}

/* A lane's elements of half a query head, @half being its first dimension. */
template <int D>
static __device__ void put_query(
    uint32_t *to, uint32_t half, uint32_t lane, const float (&x)[D / 64], float q_scale)
{
    if constexpr (D == 128) {
        uint2 both;
        split(x[0] * q_scale, x[1] * q_scale, &both.x, &both.y);
        *(uint2 *)(to + half + 2 * lane) = both;
    } else {
        const uint32_t i = half + lane;
        const float value = x[0] * q_scale;
        const qkc_bf16 high = __float2bfloat16_rn(value);
        qkc_bf16 *at = (qkc_bf16 *)(to + i / 2 * 2) + i % 2;
        at[0] = high;
        at[2] = __float2bfloat16_rn(value - __bfloat162float(high));
    }
}

/* Heads that an item reads from the QKV product: its query heads and, when it has the new token, the new key and
 * value. */
static __device__ __forceinline__ uint32_t heads_of(const decode_params &p, const item_info &it)
{
    return it.n_pages == 0 ? 0 : p.n_q + (it.n_tail > 0 ? 2 : 0);
}

/* One warp: asks for head @u of these. */
template <int D>
static __device__ __forceinline__ void ask_head(
    const decode_params &p, const item_info &it, uint32_t u, head_values<D> &h)
{
    const uint32_t lane = lane_again();
    const uint32_t q_dim = p.a.n_heads * D, kv_dim = p.a.n_kv_heads * D;
    const float *from = p.a.qkv + (size_t)it.seq * (q_dim + 2 * kv_dim);
    from += u < p.n_q ? (it.head * p.n_q + u) * D : q_dim + (u - p.n_q) * kv_dim + it.head * D;
    const float *cos_sin = p.a.plan.cos_sin + (size_t)it.seq * D;
    get_half<D>(h.x, from, lane);
    get_half<D>(h.y, from + D / 2, lane);
    get_half<D>(h.cos_of, cos_sin, lane);
    get_half<D>(h.sin_of, cos_sin + D / 2, lane);
}

/* One warp: query heads into shared memory, the new key and value into shared memory and their page. */
template <int D>
static __device__ __forceinline__ void put_head(
    const decode_params &p, block_memory<D> &s, const item_info &it, uint32_t u, head_values<D> &h)
{
    const uint32_t lane = lane_again();
    if (u < p.n_q) {
        turn_head<D>(h, p.a.q_norm, p.a.eps, lane);
        put_query<D>(s.q[u], 0, lane, h.x, p.q_scale);
        put_query<D>(s.q[u], D / 2, lane, h.y, p.q_scale);
        return;
    }
    const bool is_v = u > p.n_q;
    char *to = head_in_page(p, page_address(p, it, it.n_pages - 1), it.head);
    to += (is_v ? p.a.layout.v_offset : 0) + (size_t)(it.n_tail - 1) * p.a.layout.token_stride;
    if (!is_v)
        turn_head<D>(h, p.a.k_norm, p.a.eps, lane);
    put_half<D>(s.new_kv[is_v], lane, h.x);
    put_half<D>(s.new_kv[is_v] + D / 2, lane, h.y);
    put_half<D>(to, lane, h.x);
    put_half<D>(to + D, lane, h.y);
}

/* All warps: the item's heads; a warp's first is in @h or on its way. */
template <int D>
static __device__ __forceinline__ void put_heads(
    const decode_params &p, block_memory<D> &s, const item_info &it, head_values<D> &h)
{
    const uint32_t n = heads_of(p, it);
    for (uint32_t u = threadIdx.x / QKC_WARP; u < n; u += WARPS) {
        if (u >= WARPS)
            ask_head(p, it, u, h);
        put_head(p, s, it, u, h);
    }
}

/* ---- A page -------------------------------------------------------------------------------------------------- */

template <int D>
static __device__ __forceinline__ void load_keys(
    const decode_params &p, page_registers<D> &r, const char *page)
{
    const uint32_t lane = lane_again(), g = lane / 4, t = lane % 4, stride = p.a.layout.token_stride;
    const char *from = page + g * stride + t * 16;
#pragma unroll
    for (int i = 0; i < 2; i++)
#pragma unroll
        for (int c = 0; c < D / 32; c++)
            r.k[i][c] = load_stream(from + i * 8 * stride + c * 64);
}

template <int D>
static __device__ __forceinline__ void load_values(
    const decode_params &p, page_registers<D> &r, const char *page)
{
    const uint32_t lane = lane_again(), g = lane / 4, t = lane % 4, stride = p.a.layout.token_stride;
    const char *from = page + p.a.layout.v_offset + 2 * t * stride + g * 16;
#pragma unroll
    for (int j = 0; j < 4; j++)
#pragma unroll
        for (int h = 0; h < D / 64; h++)
            r.v[j][h] = load_stream(from + (j % 2 + j / 2 * 8) * stride + h * 128);
}

/* The new key in place of what the page had there. */
template <int D>
static __device__ __forceinline__ void patch_keys(
    const block_memory<D> &s, page_registers<D> &r, uint32_t n_tail)
{
    const uint32_t lane = lane_again(), g = lane / 4, t = lane % 4;
#pragma unroll
    for (int i = 0; i < 2; i++)
        if (g + i * 8 == n_tail - 1)
#pragma unroll
            for (int c = 0; c < D / 32; c++)
                r.k[i][c] = *(const uint4 *)(s.new_kv[0] + c * 32 + t * 8);
}

/* The new value in its place, and zeros past it. */
template <int D>
static __device__ __forceinline__ void patch_values(
    const block_memory<D> &s, page_registers<D> &r, uint32_t n_tail)
{
    const uint32_t lane = lane_again(), g = lane / 4, t = lane % 4;
#pragma unroll
    for (int j = 0; j < 4; j++) {
        const uint32_t key = 2 * t + j % 2 + j / 2 * 8;
        if (key >= n_tail - 1)
#pragma unroll
            for (int h = 0; h < D / 64; h++)
                r.v[j][h] = key == n_tail - 1 ? *(const uint4 *)(s.new_kv[1] + h * 64 + g * 8)
                                              : make_uint4(0, 0, 0, 0);
    }
}

/* Scores, base 2, of head g and keys 2 * t + {0, 1, 8, 9}. */
template <int D>
static __device__ __forceinline__ void score(
    const block_memory<D> &s, const page_registers<D> &r, float (&score)[4])
{
    const uint32_t g = threadIdx.x % QKC_WARP / 4, t = threadIdx.x % 4;
    const uint32_t at = (uint32_t)__cvta_generic_to_shared(s.q[g]) + t * 32;
    float sum[2][4] = {
        {0, 0, 0, 0}, {0, 0, 0, 0}}; /* by 8 keys: with the high halves, then with the low ones */
#pragma unroll
    for (int c = 0; c < D / 32; c++) {
        uint4 q = load_shared(at + c * 128);
        multiply(sum[0], q.x, q.y, q.z, q.w, r.k[0][c].x, r.k[0][c].y);
        multiply(sum[1], q.x, q.y, q.z, q.w, r.k[1][c].x, r.k[1][c].y);
        q = load_shared(at + c * 128 + 16);
        multiply(sum[0], q.x, q.y, q.z, q.w, r.k[0][c].z, r.k[0][c].w);
        multiply(sum[1], q.x, q.y, q.z, q.w, r.k[1][c].z, r.k[1][c].w);
    }
#pragma unroll
    for (int i = 0; i < 4; i++)
        score[i] = sum[i / 2][i % 2] + sum[i / 2][i % 2 + 2];
}

/* Keys past the last one weigh nothing. */
static __device__ __forceinline__ void mask_scores(float (&score)[4], uint32_t n_tail)
{
#pragma unroll
    for (int i = 0; i < 4; i++)
        score[i] = 2 * (threadIdx.x % 4) + i % 2 + i / 2 * 8 < n_tail ? score[i] : -INFINITY;
}

/* The page's keys join the running softmax: scores become weights, what was summed before is scaled. */
template <int D> static __device__ __forceinline__ void join(warp_result<D> &w, float (&score)[4])
{
    float max = fmaxf(fmaxf(score[0], score[1]), fmaxf(score[2], score[3]));
    max = fmaxf(max, __shfl_xor_sync(ALL_LANES, max, 1));
    max = fmaxf(max, __shfl_xor_sync(ALL_LANES, max, 2));
    if (__any_sync(ALL_LANES, max > w.max)) {
        max = fmaxf(max, w.max);
        const float scale = exp2_of(w.max - max);
        const float scale0 = __shfl_sync(ALL_LANES, scale, threadIdx.x % 4 * 8); /* of head 2 * t */
        const float scale1 = __shfl_sync(ALL_LANES, scale, threadIdx.x % 4 * 8 + 4);
        w.max = max;
        w.sum *= scale;
#pragma unroll
        for (int tile = 0; tile < D / 16; tile++) {
            w.o[tile][0] *= scale0;
            w.o[tile][1] *= scale1;
            w.o[tile][2] *= scale0;
            w.o[tile][3] *= scale1;
        }
    }
#pragma unroll
    for (int i = 0; i < 4; i++)
        score[i] = exp2_of(score[i] - w.max);
    w.sum += (score[0] + score[1]) + (score[2] + score[3]);
}

template <int D>
static __device__ __forceinline__ void add_values(
    warp_result<D> &w, const page_registers<D> &r, const float (&weight)[4])
{
    uint32_t high[2], low[2];
    split(weight[0], weight[1], &high[0], &low[0]);
    split(weight[2], weight[3], &high[1], &low[1]);
#pragma unroll
    for (int h = 0; h < D / 64; h++)
#pragma unroll
        for (int e = 0; e < 4; e++) {
            const uint32_t x0 = word_of(r.v[0][h], e), x1 = word_of(r.v[1][h], e);
            const uint32_t x2 = word_of(r.v[2][h], e), x3 = word_of(r.v[3][h], e);
            const uint32_t a0 = __byte_perm(x0, x1, 0x5410), a1 = __byte_perm(x0, x1, 0x7632);
            const uint32_t a2 = __byte_perm(x2, x3, 0x5410), a3 = __byte_perm(x2, x3, 0x7632);
            multiply(w.o[4 * h + e], a0, a1, a2, a3, high[0], high[1]);
            multiply(w.o[4 * h + e], a0, a1, a2, a3, low[0], low[1]);
        }
}

/* ---- An item ------------------------------------------------------------------------------------------------- */

/* One warp's pages of @it. Its first page is in @r or on its way; on return that holds for its first page of @next, whose
 * address is s.next[]. FAR_LANE and those after it look p.ahead pages ahead. */
template <int D, bool BULK>
static __device__ __forceinline__ void attend_pages(const decode_params &p, const block_memory<D> &s,
    const volatile item_info &it, const volatile item_info &next, page_registers<D> &r, warp_result<D> &w)
{
    const uint32_t warp = threadIdx.x / QKC_WARP;
    const volatile uint64_t *next_address = &s.next[warp];
#pragma unroll
    for (int tile = 0; tile < D / 16; tile++)
#pragma unroll
        for (int i = 0; i < 4; i++)
            w.o[tile][i] = 0;
    w.max = -INFINITY;
    w.sum = 0;

    /* Without a page here the loop below does not ask for one of the next item's. */
    if (warp >= it.n_pages && *next_address != 0) {
        const char *page = head_in_page(p, *next_address, next.head);
        load_keys(p, r, page);
        load_values(p, r, page);
    }
    uint64_t ahead = *(const volatile uint64_t *)&s.second[warp][lane_again() / FAR_LANE];
#pragma unroll 1
    for (uint32_t i = warp; i < it.n_pages; i += WARPS) {
        const bool inside = i + WARPS < it.n_pages;
        const uint32_t n_tail = i + 1 == it.n_pages ? it.n_tail : 0;
        float weight[4];
        if (n_tail > 0)
            patch_keys(s, r, n_tail);
        __syncwarp(); /* here and below: also keeps the compiler from asking for a page before there is room */
        score(s, r, weight);
        __syncwarp();
        const char *at = head_in_page(p, ahead, it.head);
        const char *page = inside ? (const char *)__shfl_sync(ALL_LANES, (unsigned long long)at, 0)
                                  : head_in_page(p, *next_address, next.head);
        if (page != NULL)
            load_keys(p, r, page);
        if (p.ahead > 0)
            prefetch_pages<D, BULK>(p, at, FAR_LANE, 1);
        if (n_tail > 0)
            mask_scores(weight, n_tail);
        join(w, weight);
        if (n_tail > 0)
            patch_values(s, r, n_tail);
        __syncwarp();
        add_values(w, r, weight);
        __syncwarp();
        if (page != NULL)
            load_values(p, r, page);
        ahead = page_address(p, it, i + WARPS * (lane_again() < FAR_LANE ? 2 : p.ahead + 1));
    }
}

/* One warp's result into shared memory. */
template <int D>
static __device__ __forceinline__ void put_result(block_memory<D> &s, warp_result<D> &w, uint32_t n_q)
{
    const uint32_t lane = lane_again(), warp = threadIdx.x / QKC_WARP, g = lane / 4, t = lane % 4;
    w.sum += __shfl_xor_sync(ALL_LANES, w.sum, 1);
    w.sum += __shfl_xor_sync(ALL_LANES, w.sum, 2);
    if (t == 0 && g < n_q) {
        s.max[warp][g] = w.max;
        s.sum[warp][g] = w.sum;
    }
#pragma unroll
    for (int i = 0; i < 2; i++) {
        const uint32_t head = 2 * t + i;
        if (head >= n_q)
            continue;
#pragma unroll
        for (int h = 0; h < D / 64; h++)
#pragma unroll
            for (int e = 0; e < 4; e += 2)
                *(float4 *)(s.out[warp][head] + 64 * h + 8 * g + 2 * e) = make_float4(w.o[4 * h + e][i],
                    w.o[4 * h + e][i + 2], w.o[4 * h + e + 1][i], w.o[4 * h + e + 1][i + 2]);
    }
}

/* All warps: the warps' results become the item's: the row's output when the sequence has one piece, else a part in the
 * workspace. */
template <int D>
static __device__ __forceinline__ void merge_warps(
    const decode_params &p, const block_memory<D> &s, const item_info &it)
{
    const uint32_t n_warps = min(it.n_pages, WARPS), n_heads = p.a.n_heads;
    float *parts = p.parts + it.seq * p.seq_floats;
    float *lse = parts + (size_t)QKC_ITEMS_A_SEQ * n_heads * D;
    float *to =
        it.n_pieces == 1 ? p.a.out + (size_t)it.seq * n_heads * D : parts + (size_t)it.piece * n_heads * D;
    for (uint32_t i = threadIdx.x; i < p.n_q * (D / 4); i += THREADS) {
        const uint32_t head = i / (D / 4), d = i % (D / 4) * 4, out_head = it.head * p.n_q + head;
        float max = s.max[0][head], sum = 0;
        for (uint32_t w = 1; w < n_warps; w++)
            max = fmaxf(max, s.max[w][head]);
        float4 o = make_float4(0, 0, 0, 0);
#pragma unroll
        for (uint32_t w = 0; w < WARPS; w++) {
            if (w >= n_warps)
                break;
            const float scale = exp2_of(s.max[w][head] - max);
            const float4 x = *(const float4 *)(s.out[w][head] + d);
            sum += s.sum[w][head] * scale;
            o.x += x.x * scale;
            o.y += x.y * scale;
            o.z += x.z * scale;
            o.w += x.w * scale;
        }
        const float inv = 1.0f / sum;
        __stcg((float4 *)(to + (size_t)out_head * D + d),
            make_float4(o.x * inv, o.y * inv, o.z * inv, o.w * inv));
        if (d == 0 && it.n_pieces > 1)
            __stcg(lse + out_head * QKC_ITEMS_A_SEQ + it.piece, max + log2f(sum));
    }
}

/* ---- The pieces of a sequence -------------------------------------------------------------------------------- */

/* One thread, after a barrier that follows the block's last store of the item's part: counts the item in. Returns how
 * many of its sequence and kv head were before it. What these stored is then visible to the block, after a barrier. */
static __device__ __forceinline__ uint32_t count_in(const decode_params &p, const item_info &it)
{
    uint32_t before;
    asm volatile("atom.acq_rel.gpu.global.inc.u32 %0, [%1], %2;"
                 : "=r"(before)
                 : "l"(p.counters + it.seq * p.a.n_kv_heads + it.head), "r"(it.n_pieces - 1)
                 : "memory");
    return before;
}

/* All warps, in the block that came last: the parts of the sequence, in position order. Each group of threads sums a
 * run of neighbouring parts; the groups' sums are added in order. */
template <int D>
static __device__ __forceinline__ void merge_parts(
    const decode_params &p, block_memory<D> &s, uint32_t seq, uint32_t kv_head)
{
    const uint32_t lane = lane_again(), warp = threadIdx.x / QKC_WARP;
    const uint32_t n = s.end[seq] - (seq > 0 ? s.end[seq - 1] : 0);
    const uint32_t n_heads = p.a.n_heads, first_head = kv_head * p.n_q;
    const float *parts = p.parts + seq * p.seq_floats + (size_t)first_head * D;
    const float *lse =
        p.parts + seq * p.seq_floats + ((size_t)QKC_ITEMS_A_SEQ * D * n_heads + first_head * QKC_ITEMS_A_SEQ);
    const uint32_t n_columns = p.n_q * (D / 4), n_groups = min(THREADS / n_columns, WARPS);
    const uint32_t a_group = (n + n_groups - 1) / n_groups, group = threadIdx.x / n_columns;
    const uint32_t column = threadIdx.x % n_columns, head = column / (D / 4);
    const uint32_t begin = min(group * a_group, n), end = group < n_groups ? min(begin + a_group, n) : begin;
    float4 x[PARTS_A_TIME]; /* the first ones are asked for before the weights are */
#pragma unroll
    for (uint32_t j = 0; j < PARTS_A_TIME; j++)
        if (begin + j < end)
            x[j] = __ldcg((const float4 *)(parts + (size_t)(begin + j) * n_heads * D) + column);
    if (warp < p.n_q) {
        const float a = lane < n ? __ldcg(lse + warp * QKC_ITEMS_A_SEQ + lane) : -INFINITY;
        const float b = lane + 32 < n ? __ldcg(lse + warp * QKC_ITEMS_A_SEQ + lane + 32) : -INFINITY;
        float max = fmaxf(a, b);
#pragma unroll
        for (int d = 16; d > 0; d /= 2)
            max = fmaxf(max, __shfl_xor_sync(ALL_LANES, max, d));
        const float ea = exp2_of(a - max), eb = exp2_of(b - max);
        float sum = ea + eb;
#pragma unroll
        for (int d = 16; d > 0; d /= 2)
            sum += __shfl_xor_sync(ALL_LANES, sum, d);
        s.weight[warp][lane] = ea / sum;
        s.weight[warp][lane + 32] = eb / sum;
    }
    __syncthreads();

    float4 *sums = (float4 *)s.out; /* [n_groups, n_columns] */
    if (group < n_groups) {
        float4 o = make_float4(0, 0, 0, 0);
        for (uint32_t base = begin; base < end; base += PARTS_A_TIME) {
#pragma unroll
            for (uint32_t j = 0; j < PARTS_A_TIME; j++)
                if (base > begin && base + j < end)
                    x[j] = __ldcg((const float4 *)(parts + (size_t)(base + j) * n_heads * D) + column);
#pragma unroll
            for (uint32_t j = 0; j < PARTS_A_TIME; j++) {
                if (base + j >= end)
                    break;
                const float scale = s.weight[head][base + j];
                o.x += x[j].x * scale;
                o.y += x[j].y * scale;
                o.z += x[j].z * scale;
                o.w += x[j].w * scale;
            }
        }
        sums[group * n_columns + column] = o;
    }
    __syncthreads();
    if (threadIdx.x < n_columns) {
        float4 o = sums[column];
        for (uint32_t i = 1; i < n_groups; i++) {
            const float4 x = sums[i * n_columns + column];
            o.x += x.x;
            o.y += x.y;
            o.z += x.z;
            o.w += x.w;
        }
        __stcg((float4 *)(p.a.out + ((size_t)seq * n_heads + first_head) * D) + column, o);
    }
}

/* COUNTER: takes note of what is to be merged here, when the item that found @before others was the last. */
template <int D>
static __device__ __forceinline__ void note_merge(
    const decode_params &p, block_memory<D> &s, const item_info &it, uint32_t before)
{
    if (before == it.n_pieces - 1)
        s.merge[s.n_merges++] = (uint16_t)(it.seq * p.a.n_kv_heads + it.head);
}

/* ---- The kernel ---------------------------------------------------------------------------------------------- */

/* What of the first item is neither keys nor values and may have left the L2 cache since the last layer. */
template <int D> static __device__ __forceinline__ void hint_item(const decode_params &p, const item_info &it)
{
    const uint32_t line = threadIdx.x % QKC_WARP * 32, warp = threadIdx.x / QKC_WARP;
    if (line >= D)
        return;
    if (warp == 0)
        prefetch_l2(p.a.plan.cos_sin + (size_t)it.seq * D + line);
    else if (warp == 1)
        prefetch_l2(p.a.q_norm + line);
    else if (warp == 2)
        prefetch_l2(p.a.k_norm + line);
}

/* One warp: counts the block's items in without their work: the step has been given up. */
template <int D> static __device__ void count_items(const decode_params &p, block_memory<D> &s)
{
    item_info *it = &s.item[0];
    for (uint32_t index = blockIdx.x; index < s.n_pieces * p.a.n_kv_heads; index += gridDim.x) {
        find_item(p, s, index, it);
        if (threadIdx.x == 0 && it->n_pieces > 1)
            count_in(p, *it);
    }
}

/* Looks up pages of the warp, a lane each: from lane 0 on the first ones of @it, in FAR_LANE and the next what
 * attend_pages() is to know of @before, the item before it. */
static __device__ __forceinline__ uint64_t look_up(
    const decode_params &p, const item_info &before, const item_info &it)
{
    const uint32_t lane = lane_again(), warp = threadIdx.x / QKC_WARP;
    if (lane < FAR_LANE)
        return lane <= p.ahead ? page_address(p, it, warp + WARPS * lane) : 0;
    return page_address(p, before, warp + WARPS * (lane == FAR_LANE ? 1 : p.ahead));
}

/* Keeps that, and asks for the first pages of @it. */
template <int D, bool BULK>
static __device__ __forceinline__ void look_ahead(
    const decode_params &p, block_memory<D> &s, const item_info &it, uint64_t found)
{
    const uint32_t lane = lane_again(), warp = threadIdx.x / QKC_WARP;
    if (lane == 0)
        s.next[warp] = found;
    if (lane - FAR_LANE < 2)
        s.second[warp][lane - FAR_LANE] = found;
    prefetch_pages<D, BULK>(p, head_in_page(p, found, it.head), 0, p.ahead);
}

/* The block's items, one after the other: the first one's heads are in shared memory, its first pages on their way into
 * @r. The barriers of item k: A, after which all results are in shared memory and item k + 2 is known; B, after which
 * they have been read and the heads of item k + 1 are there. An item is counted in while the next one's pages are
 * multiplied; sequences are merged when all is done, with the registers that pages had. */
template <int D, bool BULK>
static __device__ __forceinline__ void attend_items(
    const decode_params &p, block_memory<D> &s, page_registers<D> &r)
{
    const uint32_t warp = threadIdx.x / QKC_WARP;
    uint32_t before = 0; /* COUNTER's: what it found when it counted item k - 1 in */
#pragma unroll 1
    for (uint32_t k = 0; s.item[k % 4].n_pages > 0; k++) {
        const item_info &it = s.item[k % 4], &next = s.item[(k + 1) % 4], &then = s.item[(k + 2) % 4];
        warp_result<D> w;
        attend_pages<D, BULK>(p, s, it, next, r, w);
        head_values<D> h;
        if (warp < heads_of(p, next))
            ask_head(p, next, warp, h);
        if (warp < it.n_pages)
            put_result(s, w, p.n_q);
        if (threadIdx.x == COUNTER && k > 0 && s.item[(k + 3) % 4].n_pieces > 1)
            note_merge(p, s, s.item[(k + 3) % 4], before);
        if (warp == WARPS - 1) /* in the slot of item k - 2 */
            find_item(p, s, blockIdx.x + (k + 2) * gridDim.x, &s.item[(k + 2) % 4]);
        __syncthreads(); /* A */
        const uint64_t found = look_up(p, next, then);
        merge_warps(p, s, it);
        put_heads(p, s, next, h);
        look_ahead<D, BULK>(p, s, then, found);
        __syncthreads(); /* B */
        if (threadIdx.x == COUNTER && it.n_pieces > 1) {
            before = count_in(p, it);
            if (next.n_pages == 0)
                note_merge(p, s, it, before);
        }
    }
    __syncthreads();
    for (uint32_t i = 0; i < s.n_merges; i++) {
        merge_parts(p, s, s.merge[i] / p.a.n_kv_heads, s.merge[i] % p.a.n_kv_heads);
        __syncthreads(); /* s.out and s.weight are free again */
    }
}

/* All warps: the list, the block's first two items, and the wish for their pages. */
template <int D, bool BULK>
static __device__ __forceinline__ void begin_items(
    const decode_params &p, block_memory<D> &s, page_registers<D> &r)
{
    const uint32_t warp = threadIdx.x / QKC_WARP;
    const item_info &it = s.item[0];
    if (threadIdx.x == 0)
        s.given_up = s.n_merges = 0;
    if (warp == 0) {
        list_pieces(p, s);
        __syncwarp();
        find_item(p, s, blockIdx.x, &s.item[0]);
    }
    __syncthreads();
    const uint64_t found = look_up(p, it, it), first = __shfl_sync(ALL_LANES, found, 0);
    if (first != 0) {
        load_keys(p, r, head_in_page(p, first, it.head));
        load_values(p, r, head_in_page(p, first, it.head));
        hint_item<D>(p, it);
        if (p.ahead > 1)
            prefetch_pages<D, BULK>(p, head_in_page(p, found, it.head), 1, p.ahead - 1);
    }
    if (warp == 0)
        find_item(p, s, blockIdx.x + gridDim.x, &s.item[1]);
    __syncthreads();
    look_ahead<D, BULK>(p, s, s.item[1], look_up(p, it, s.item[1]));
}

/* This block's share of the next kernel's weights. They are constant: no wait is needed. */
static __device__ void prefetch_next(const decode_params &p)
{
    const char *next = (const char *)p.a.next;
    const size_t n_lines = p.a.next_bytes / 128;
    for (size_t i = (size_t)blockIdx.x * THREADS + threadIdx.x; i < n_lines; i += (size_t)gridDim.x * THREADS)
        asm volatile("prefetch.global.L2 [%0];" ::"l"(next + i * 128));
}

template <int D, bool BULK>
__global__ void __launch_bounds__(THREADS, BLOCKS_A_SM) attend_decode(const __grid_constant__ decode_params p)
{
    __shared__ block_memory<D> s;
    const uint32_t warp = threadIdx.x / QKC_WARP;
    /* Over the bus: while the kernel before still runs, and in the block that is the last to get work. */
    const bool cancelled =
        p.a.cancel != NULL && blockIdx.x + 1 == gridDim.x && threadIdx.x == 0 && *p.a.cancel != 0;

    /* Rows of heads that do not exist stay zero. */
    for (uint32_t i = threadIdx.x; i < sizeof(s.q) / sizeof(uint4); i += THREADS)
        ((uint4 *)s.q)[i] = make_uint4(0, 0, 0, 0);
    if (!p.early)
        qkc_pdl_wait();
    page_registers<D> r;
    begin_items<D, BULK>(p, s, r);
    if (s.item[0].n_pages == 0)
        prefetch_next(p);
    /* No trigger: the next kernel's blocks would be placed while this one's fill some SMs, two and more to an SM, and its
     * work then runs on a part of them (an H200 took 4.0 instead of 3.2 ms a token at 8K keys). */
    if (p.early)
        qkc_pdl_wait();
    if (cancelled)
        atomicCAS(p.a.plan.state, (uint32_t)QK_OK, (uint32_t)QK_CANCELLED);
    if (s.item[0].n_pages == 0)
        return;

    const uint32_t state = __ldcg(p.a.plan.state);
    head_values<D> h;
    if (warp < heads_of(p, s.item[0]))
        ask_head(p, s.item[0], warp, h);
    put_heads(p, s, s.item[0], h);
    if (state != QK_OK) /* it may be changing: one thread's view is enough */
        s.given_up = 1;
    __syncthreads();
    if (s.given_up) {
        if (warp == 0)
            count_items(p, s);
        return;
    }
    attend_items<D, BULK>(p, s, r);
}

/* ---- Host ---------------------------------------------------------------------------------------------------- */

static size_t seq_floats(uint32_t n_heads, uint32_t head_dim)
{
    return (size_t)QKC_ITEMS_A_SEQ * n_heads * (head_dim + 1);
}

size_t qkc_attend_decode_bytes(uint32_t seqs_max, uint32_t n_heads, uint32_t n_kv_heads, uint32_t head_dim)
{
    const uint32_t n_seqs = seqs_max < QKC_SMALL_ROWS ? seqs_max : QKC_SMALL_ROWS;
    return COUNTERS_BYTES(n_kv_heads) + n_seqs * seq_floats(n_heads, head_dim) * sizeof(float);
}

cudaError_t qkc_attend_decode_init(void)
{
    return cudaSuccess; /* static shared memory alone */
}

qkc_decode_tuning qkc_decode_default(const qkc_launch *launch)
{
    qkc_decode_tuning t = {};
    t.ahead = 2;
    t.per_sm = BLOCKS_A_SM;
    t.bulk = launch->hopper;
    return t;
}

cudaError_t qkc_attend_decode(const qkc_launch *launch, const qkc_attend_decode_args *args)
{
    const qkc_decode_tuning tuning = qkc_decode_default(launch);
    return qkc_attend_decode_tuned(launch, args, &tuning);
}

cudaError_t qkc_attend_decode_tuned(
    const qkc_launch *launch, const qkc_attend_decode_args *args, const qkc_decode_tuning *tuning)
{
    const uint32_t n_kv_heads = args->n_kv_heads, n_q = n_kv_heads > 0 ? args->n_heads / n_kv_heads : 0;
    if (n_q < 1 || n_q > HEADS || n_q * n_kv_heads != args->n_heads || args->layout.dtype != QK_BF16 ||
        args->rows_max < 1 || args->rows_max > QKC_SMALL_ROWS || tuning->ahead > QKC_DECODE_AHEAD_MAX ||
        tuning->per_sm < 1 || tuning->per_sm > BLOCKS_A_SM || args->rows_max * n_kv_heads > MERGES_MAX)
        return cudaErrorInvalidValue;
    decode_params p = {};
    p.a = *args;
    p.layer_offset = args->layer * args->layout.layer_stride;
    p.n_q = n_q;
    p.counters = (uint32_t *)args->workspace;
    p.parts = (float *)((char *)args->workspace + COUNTERS_BYTES(n_kv_heads));
    p.seq_floats = seq_floats(args->n_heads, args->head_dim);
    p.q_scale = (float)(LOG2_E / sqrt((double)args->head_dim));
    p.early = launch->pdl && args->layer > 0;
    p.ahead = tuning->ahead;

    const uint32_t n_items_max = args->rows_max * n_kv_heads * QKC_ITEMS_A_SEQ;
    const uint32_t n_resident = tuning->per_sm * (uint32_t)launch->n_sms;
    const dim3 grid(n_items_max < n_resident ? n_items_max : n_resident);
    const bool bulk = tuning->bulk && launch->hopper;
    if (args->head_dim == 128)
        return qkc_start(
            launch, bulk ? attend_decode<128, true> : attend_decode<128, false>, grid, dim3(THREADS), 0, p);
    if (args->head_dim == 64)
        return qkc_start(
            launch, bulk ? attend_decode<64, true> : attend_decode<64, false>, grid, dim3(THREADS), 0, p);
    return cudaErrorInvalidValue;
}
