/* attn-decode.cu: the attention stage of a step in which every sequence has one new row, in one launch.
 *
 *   q, k = rope(rms_norm(q)), rope(rms_norm(k)); k, v -> the page of the new position
 *   out = sum over the keys of softmax(q.k / sqrt(head_dim)) v
 *
 * An item is one piece of one sequence (cuda-ops.h says where sequences are cut) for one kv head. The grid is fixed by
 * the device; its blocks walk the list of items, which each block derives from the sequences' lengths. In a block, warp
 * w takes the pages w, w + 8, ... of the piece, each warp for all query heads of the kv head, with a running maximum and
 * sum; the eight results are then merged in the order of the warps. Pieces' results go to the workspace, where the last
 * block to arrive merges them in position order.
 *
 * A page of 16 keys goes from memory straight into the registers of a warp in the order in which mma.m16n8k16 wants it,
 * without shared memory and without barriers:
 *   S = q K^T: A's rows are the high halves of up to 8 query heads, then their low halves; B's columns are 8 keys; the k
 *     index is the dimension, permuted so that 16 bytes of a key are two steps' operands of one lane.
 *   O^T = V^T P^T: A's rows are 16 dimensions, its k index 16 keys; B's columns are query heads, and a lane holds of P
 *     what it got of S. A lane loads the same 8 dimensions of 4 keys, which byte permutations pair; a warp's load covers
 *     whole lines of 128 bytes.
 * The next page's keys are asked for as soon as this page's have been multiplied, its values likewise, over the borders
 * of items: 8 KB a warp and 128 KB an SM are on their way (about 30 KB would cover the latency).
 *
 * Pages at address 0 are outside: somebody else attends to their keys (cuda-partial.cu). The kernel has a second form
 * for plans with such pages, chosen by args.lse: it takes them as not there and also gives the rows' log-sum-exp. A warp
 * or a piece without any key has weight 0; the last page is never outside, so that each row has some key.
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
 *     given up: so the counters wrap back to zero in every launch, or in the last of those that share the pieces.
 *  5. Reads before qkc_pdl_wait(): in a launch with layer > 0 the plan (but for its state), the pages' older keys and
 *     values, the cos_sin table. That relies on this: the step's attention of the layer before was this kernel too,
 *     which triggers its dependents after its own wait, every kernel of the step waits before it ends, and the plan and
 *     the older tokens were complete before that first attention's wait ended. With layer 0 only weights are read.
 *
 * Cost at the reference shape (32 query heads, 8 kv heads of 128): 4 KB a key and layer. 32K keys: 134 MB, 32.5 us at
 * 4.13 TB/s (H200); 4 FLOP a byte, 16 as done here. Workspace: 2 KB written and read an item, against 128 KB of keys and
 * values or more. At 128 keys there are 8 items of 8 warps with a page each, and latency is all. */
#include <math.h>
#include "kernels/cuda/cuda-ops.h"

#define WARPS       8u
#define THREADS     (WARPS * QKC_WARP)
#define BLOCKS_A_SM 2
#define HEADS       8u /* query heads of a kv head, padded to the columns of an instruction */
#define ALL_LANES   0xffffffffu
#define LOG2_E      1.44269504088896340736
#define LN_2        0.69314718055994530942f

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
    uint32_t n_pieces;             /* of all sequences; or where the launch's pieces end in their list */
    uint32_t is_last, given_up;
    uint64_t next[WARPS]; /* address of the warp's first page in the next item; 0: none */
    /* The block's items in turn, item k in slot k % 3, one without pages past the last. */
    item_info item[3];
};

/* A page of one kv head in a warp's registers. Lane = 4 * g + t. */
template <int D> struct page_registers {
    uint4 k[2][D / 32]; /* keys g and g + 8; dimensions 32 * c + 8 * t and the next 7 */
    uint4 v[4][D / 64]; /* keys 2 * t + {0, 1, 8, 9}; dimensions 64 * h + 8 * g and the next 7 */
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

/* One warp: the sequences' lengths, pages, and running count of pieces. */
template <int D> static __device__ void list_pieces(const decode_params &p, block_memory<D> &s)
{
    const uint32_t lane = threadIdx.x % QKC_WARP;
    const uint32_t n_seqs = min(__ldcg(p.a.plan.counts + 1), QKC_SMALL_ROWS);
    uint32_t before = 0;
    for (uint32_t base = 0; base < QKC_SMALL_ROWS; base += QKC_WARP) {
        const uint32_t seq = base + lane;
        uint32_t n = 0, n_keys = 0;
        if (seq < n_seqs) {
            n_keys = __ldcg(&p.a.plan.seqs[seq].start) + 1;
            s.page[seq] = __ldcg(&p.a.plan.seqs[seq].page_begin);
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
        s.n_pieces = p.a.end_piece > 0 ? min(before, p.a.end_piece) : before;
}

/* A whole warp calls it: puts item @index of the list into slot @to; one without pages past the list's end. */
template <int D>
static __device__ void find_item(const decode_params &p, block_memory<D> &s, uint32_t index, item_info *to)
{
    const uint32_t lane = threadIdx.x % QKC_WARP;
    const uint32_t piece = index / p.a.n_kv_heads + p.a.first_piece;
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

/* One warp: reads a head; with @norm it is normalised and rotated. A lane gets elements of the first half in @x and
 * those D / 2 further in @y. All loads come before the first use of any. */
template <int D>
static __device__ __forceinline__ void get_head(float (&x)[D / 64], float (&y)[D / 64], const float *from,
    const float *norm, const float *cos_sin, float eps, uint32_t lane)
{
    float norm_x[D / 64], norm_y[D / 64], cos_of[D / 64], sin_of[D / 64];
    get_half<D>(x, from, lane);
    get_half<D>(y, from + D / 2, lane);
    if (norm == NULL)
        return;
    get_half<D>(norm_x, norm, lane);
    get_half<D>(norm_y, norm + D / 2, lane);
    get_half<D>(cos_of, cos_sin, lane);
    get_half<D>(sin_of, cos_sin + D / 2, lane);
    float sum = 0;
#pragma unroll
    for (int e = 0; e < D / 64; e++)
        sum += x[e] * x[e] + y[e] * y[e];
#pragma unroll
    for (int d = 16; d > 0; d /= 2)
        sum += __shfl_xor_sync(ALL_LANES, sum, d);
    const float scale = 1.0f / sqrtf(sum / D + eps);
#pragma unroll
    for (int e = 0; e < D / 64; e++) {
        const float a = x[e] * scale * norm_x[e], b = y[e] * scale * norm_y[e];
        x[e] = a * cos_of[e] - b * sin_of[e];
        y[e] = b * cos_of[e] + a * sin_of[e];
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

/* All warps: the item's query heads into shared memory and, when it has the new token, the new key and value into
 * shared memory and their page. */
template <int D>
static __device__ void ready_heads(const decode_params &p, block_memory<D> &s, const item_info &it)
{
    const uint32_t lane = threadIdx.x % QKC_WARP, warp = threadIdx.x / QKC_WARP;
    const uint32_t q_dim = p.a.n_heads * D, kv_dim = p.a.n_kv_heads * D;
    const float *row = p.a.qkv + (size_t)it.seq * (q_dim + 2 * kv_dim);
    const float *cos_sin = p.a.plan.cos_sin + (size_t)it.seq * D;
    const uint32_t n = p.n_q + (it.n_tail > 0 ? 2 : 0);
    for (uint32_t u = warp; u < n; u += WARPS) {
        float x[D / 64], y[D / 64];
        if (u < p.n_q) {
            get_head<D>(x, y, row + (it.head * p.n_q + u) * D, p.a.q_norm, cos_sin, p.a.eps, lane);
            put_query<D>(s.q[u], 0, lane, x, p.q_scale);
            put_query<D>(s.q[u], D / 2, lane, y, p.q_scale);
            continue;
        }
        const bool is_v = u > p.n_q;
        char *to = head_in_page(p, page_address(p, it, it.n_pages - 1), it.head);
        to += (is_v ? p.a.layout.v_offset : 0) + (size_t)(it.n_tail - 1) * p.a.layout.token_stride;
        get_head<D>(x, y, row + q_dim + (is_v ? kv_dim : 0) + it.head * D, is_v ? NULL : p.a.k_norm, cos_sin,
            p.a.eps, lane);
        put_half<D>(s.new_kv[is_v], lane, x);
        put_half<D>(s.new_kv[is_v] + D / 2, lane, y);
        put_half<D>(to, lane, x);
        put_half<D>(to + D, lane, y);
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

/* One warp's pages of @it. Its first page is in @r or on its way and @second is the address of its second; on return the
 * former holds for its first page of @next, whose address is s.next[]. Of pages outside nothing is asked for. */
template <int D, bool OUTSIDE>
static __device__ __forceinline__ void attend_pages(const decode_params &p, const block_memory<D> &s,
    const volatile item_info &it, const volatile item_info &next, page_registers<D> &r, warp_result<D> &w,
    uint64_t second)
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
    bool here = !OUTSIDE || page_address(p, it, warp) != 0; /* the page whose turn it is */

    /* Without a page here the loop below does not ask for one of the next item's. */
    if (warp >= it.n_pages && *next_address != 0) {
        const char *page = head_in_page(p, *next_address, next.head);
        load_keys(p, r, page);
        load_values(p, r, page);
    }
    uint64_t ahead = second;
#pragma unroll 1
    for (uint32_t i = warp; i < it.n_pages; i += WARPS) {
        const bool inside = i + WARPS < it.n_pages;
        const uint32_t n_tail = i + 1 == it.n_pages ? it.n_tail : 0;
        float weight[4];
        if (n_tail > 0)
            patch_keys(s, r, n_tail);
        __syncwarp(); /* here and below: also keeps the compiler from asking for a page before there is room */
        if (here)
            score(s, r, weight);
        __syncwarp();
        if (!inside)
            ahead = *next_address;
        const char *page = head_in_page(p, ahead, inside ? it.head : next.head);
        if (page != NULL)
            load_keys(p, r, page);
        if (n_tail > 0)
            mask_scores(weight, n_tail);
        if (here)
            join(w, weight);
        if (n_tail > 0)
            patch_values(s, r, n_tail);
        __syncwarp();
        if (here)
            add_values(w, r, weight);
        __syncwarp();
        if (page != NULL)
            load_values(p, r, page);
        here = !OUTSIDE || page != NULL;
        ahead = page_address(p, it, i + 2 * WARPS);
    }
}

/* One warp's result into shared memory. */
template <int D>
static __device__ __forceinline__ void put_result(block_memory<D> &s, warp_result<D> &w, uint32_t n_q)
{
    const uint32_t lane = threadIdx.x % QKC_WARP, warp = threadIdx.x / QKC_WARP, g = lane / 4, t = lane % 4;
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
template <int D, bool OUTSIDE>
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
        if (OUTSIDE && max == -INFINITY) /* no key at all: zeros of weight 0 */
            max = 0;
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
        const float inv = OUTSIDE && sum == 0 ? 0 : 1.0f / sum;
        __stcg((float4 *)(to + (size_t)out_head * D + d),
            make_float4(o.x * inv, o.y * inv, o.z * inv, o.w * inv));
        if (d == 0 && it.n_pieces > 1)
            __stcg(lse + out_head * QKC_ITEMS_A_SEQ + it.piece, max + log2f(sum));
        if (OUTSIDE && d == 0 && it.n_pieces == 1)
            p.a.lse[it.seq * n_heads + out_head] = (max + log2f(sum)) * LN_2;
    }
}

/* ---- The pieces of a sequence -------------------------------------------------------------------------------- */

/* One thread: counts the item in. True when the others of its sequence and kv head have been. */
static __device__ __forceinline__ bool count_in(const decode_params &p, const item_info &it)
{
    return atomicInc(p.counters + it.seq * p.a.n_kv_heads + it.head, it.n_pieces - 1) == it.n_pieces - 1;
}

/* All warps, in the block that came last: the parts of the sequence, in position order. Each group of threads sums a
 * run of neighbouring parts; the groups' sums are added in order. */
template <int D, bool OUTSIDE>
static __device__ __forceinline__ void merge_parts(
    const decode_params &p, block_memory<D> &s, const item_info &it)
{
    const uint32_t lane = threadIdx.x % QKC_WARP, warp = threadIdx.x / QKC_WARP, n = it.n_pieces;
    const uint32_t n_heads = p.a.n_heads, first_head = it.head * p.n_q;
    const float *parts = p.parts + it.seq * p.seq_floats + (size_t)first_head * D;
    const float *lse = p.parts + it.seq * p.seq_floats +
                       ((size_t)QKC_ITEMS_A_SEQ * D * n_heads + first_head * QKC_ITEMS_A_SEQ);
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
        if (OUTSIDE && lane == 0)
            p.a.lse[it.seq * n_heads + first_head + warp] = (max + log2f(sum)) * LN_2;
    }
    __syncthreads();

    const uint32_t n_columns = p.n_q * (D / 4), n_groups = min(THREADS / n_columns, WARPS);
    const uint32_t a_group = (n + n_groups - 1) / n_groups, group = threadIdx.x / n_columns;
    const uint32_t column = threadIdx.x % n_columns, head = column / (D / 4);
    float4 *sums = (float4 *)s.out; /* [n_groups, n_columns] */
    if (group < n_groups) {
        const uint32_t begin = min(group * a_group, n), end = min(begin + a_group, n);
        float4 o = make_float4(0, 0, 0, 0);
#pragma unroll 8
        for (uint32_t i = begin; i < end; i++) {
            const float4 x = __ldcg((const float4 *)(parts + (size_t)i * n_heads * D) + column);
            const float scale = s.weight[head][i];
            o.x += x.x * scale;
            o.y += x.y * scale;
            o.z += x.z * scale;
            o.w += x.w * scale;
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
        __stcg((float4 *)(p.a.out + ((size_t)it.seq * n_heads + first_head) * D) + column, o);
    }
}

/* All warps, after merge_warps(), for a sequence of several pieces. */
template <int D, bool OUTSIDE>
static __device__ __forceinline__ void finish_piece(
    const decode_params &p, block_memory<D> &s, const item_info &it)
{
    __threadfence();
    __syncthreads();
    if (threadIdx.x == 0)
        s.is_last = count_in(p, it);
    __syncthreads();
    if (s.is_last) {
        __threadfence();
        merge_parts<D, OUTSIDE>(p, s, it);
    }
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
    for (uint32_t index = blockIdx.x; index < (s.n_pieces - p.a.first_piece) * p.a.n_kv_heads;
         index += gridDim.x) {
        find_item(p, s, index, it);
        __syncwarp();
        if (threadIdx.x == 0 && it->n_pieces > 1)
            count_in(p, *it);
        __syncwarp();
    }
}

/* The block's items, one after the other. The first pages of the first are on their way into @r. */
template <int D, bool OUTSIDE>
static __device__ __forceinline__ void attend_items(
    const decode_params &p, block_memory<D> &s, page_registers<D> &r, uint64_t second, uint32_t state)
{
    const uint32_t warp = threadIdx.x / QKC_WARP;
#pragma unroll 1
    for (uint32_t k = 0; s.item[k % 3].n_pages > 0; k++) {
        const item_info &it = s.item[k % 3], &next = s.item[(k + 1) % 3];
        const uint64_t address = page_address(p, next, warp);
        if (k > 0)
            second = page_address(p, it, warp + WARPS);
        ready_heads(p, s, it);
        if (k == 0 && state != QK_OK) /* it may be changing: one thread's view is enough */
            s.given_up = 1;
        s.next[warp] = address;
        __syncthreads();
        if (s.given_up) {
            if (warp == 0)
                count_items(p, s);
            return;
        }
        if (warp == 0) /* in the slot of item k - 1, which no warp looks at any more */
            find_item(p, s, blockIdx.x + (k + 2) * gridDim.x, &s.item[(k + 2) % 3]);
        __syncwarp();
        warp_result<D> w;
        attend_pages<D, OUTSIDE>(p, s, it, next, r, w, second);
        if (warp < it.n_pages)
            put_result(s, w, p.n_q);
        __syncthreads();
        merge_warps<D, OUTSIDE>(p, s, it);
        if (it.n_pieces > 1)
            finish_piece<D, OUTSIDE>(p, s, it);
    }
}

template <int D, bool OUTSIDE>
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
    if (threadIdx.x == 0)
        s.given_up = 0;
    if (warp == 0) {
        list_pieces(p, s);
        __syncwarp();
        find_item(p, s, blockIdx.x, &s.item[0]);
        find_item(p, s, blockIdx.x + gridDim.x, &s.item[1]);
    }
    __syncthreads();

    page_registers<D> r;
    const uint64_t first = page_address(p, s.item[0], warp),
                   second = page_address(p, s.item[0], warp + WARPS);
    if (first != 0) {
        hint_item<D>(p, s.item[0]);
        load_keys(p, r, head_in_page(p, first, s.item[0].head));
        load_values(p, r, head_in_page(p, first, s.item[0].head));
    }
    /* No trigger: the next kernel's blocks would be placed while this one's fill some SMs, two and more to an SM, and its
     * work then runs on a part of them (an H200 took 4.0 instead of 3.2 ms a token at 8K keys). */
    if (p.early)
        qkc_pdl_wait();
    if (cancelled)
        atomicCAS(p.a.plan.state, (uint32_t)QK_OK, (uint32_t)QK_CANCELLED);
    if (s.item[0].n_pages == 0)
        return;
    attend_items<D, OUTSIDE>(p, s, r, second, __ldcg(p.a.plan.state));
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

/* Static shared memory alone. Loads the forms that no context tries before its first step. */
cudaError_t qkc_attend_decode_init(void)
{
    cudaFuncAttributes attributes;
    cudaError_t code = cudaFuncGetAttributes(&attributes, attend_decode<128, true>);
    return code == cudaSuccess ? cudaFuncGetAttributes(&attributes, attend_decode<64, true>) : code;
}

uint32_t qkc_attend_decode_piece_keys(uint32_t n_keys)
{
    return piece_keys(n_keys);
}

cudaError_t qkc_attend_decode(const qkc_launch *launch, const qkc_attend_decode_args *args)
{
    const uint32_t n_kv_heads = args->n_kv_heads, n_q = n_kv_heads > 0 ? args->n_heads / n_kv_heads : 0;
    if (n_q < 1 || n_q > HEADS || n_q * n_kv_heads != args->n_heads || args->layout.dtype != QK_BF16 ||
        args->rows_max < 1 || args->rows_max > QKC_SMALL_ROWS)
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

    const uint32_t n_items_max = args->rows_max * n_kv_heads * QKC_ITEMS_A_SEQ;
    const uint32_t n_resident = BLOCKS_A_SM * (uint32_t)launch->n_sms;
    const dim3 grid(n_items_max < n_resident ? n_items_max : n_resident);
    if (args->head_dim != 64 && args->head_dim != 128)
        return cudaErrorInvalidValue;
    void (*kernel)(const decode_params) =
        args->head_dim == 128 ? attend_decode<128, false> : attend_decode<64, false>;
    if (args->lse != NULL)
        kernel = args->head_dim == 128 ? attend_decode<128, true> : attend_decode<64, true>;
    return qkc_start(launch, kernel, grid, dim3(THREADS), 0, p);
}
