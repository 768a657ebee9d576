/* attn-decode.h: what attn-decode.cu is made of below an item: a block's memory, and a warp's work on a *unit* of its
 * pages, which is one bf16 page or two int8 pages: 8 KB of keys and values at 128 dimensions. Device code, for that file.
 *
 * A unit goes from memory straight into the registers of a warp in the order in which mma.m16n8k16 wants it, without
 * shared memory and without barriers:
 *   S = q K^T: A's rows are the high halves of up to 8 query heads, then their low halves; B's columns are 8 keys; the k
 *     index is the dimension, permuted so that 16 bytes of a key are two steps' operands of one lane (int8: four).
 *   O^T = V^T P^T: A's rows are 16 dimensions, its k index 16 keys; B's columns are query heads, and a lane holds of P
 *     what it got of S. A lane loads the same 8 dimensions of 4 keys (int8: 16), which byte permutations pair; a warp's
 *     load covers whole lines of 128 bytes.
 *
 * Int8 numbers become bf16 in registers, which is exact, at 2.5 integer and one floating-point operation for two
 * (qkc_i8_widen).
 * Scales stay out of the products: q.K^T in int8 numbers, summed in float32, times the key's scale (float32) is the score;
 * the weight exp2(score - max) counts as it is in the row's sum, and times the key's V scale (float32, one rounding) it is
 * what is split into two bf16 numbers and multiplied with V in int8 numbers. */
#pragma once
#include <math.h>
#include "kernels/cuda/cuda-ops.h"
#include "kernels/cuda/kv-int8.h"
#include "kernels/cuda/ptx.h"

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
    /* Of the sequence and kv head the block has n_mine pieces one after the other, this one with n_left behind it. When the
     * last is the sequence's last, page new_page of the plan gets the new token in row new_row; else new_page is NO_PAGE. */
    uint32_t n_mine, n_left, new_page, new_row;
} item_info;
#define NO_PAGE UINT32_MAX

/* A block's shared memory. */
template <int D> struct block_memory {
    /* For two dimensions the two high halves, then the two low ones, bf16, for which two: see q_offset(). The pad keeps
     * reads off equal banks. */
    alignas(16) uint32_t q[HEADS][D + 4];
    alignas(16) char new_kv[2][2 * D];          /* the new key and value as the page gets them */
    uint16_t new_scale[2];                      /* int8 pages: theirs */
    alignas(16) float out[WARPS][HEADS][D + 4]; /* not normalised */
    float max[WARPS][HEADS], sum[WARPS][HEADS];
    float weight[HEADS][QKC_ITEMS_A_SEQ];
    uint32_t end[QKC_SMALL_ROWS];  /* the launch's pieces of the sequences up to and with this one */
    uint32_t keys[QKC_SMALL_ROWS]; /* the sequence's length, with the new token */
    uint32_t page[QKC_SMALL_ROWS]; /* where its pages begin in the plan */
    uint32_t skip;                 /* pieces before the launch's of the first sequence that has some */
    uint32_t run, run_end;         /* the block's items, in their list */
    uint32_t is_last, given_up;
    /* Where the warp's first unit in the next item is, and the unit after the next in this one; 0: there is none. Of each
     * page the pair of the plan's addresses that has it: see ask_unit(). */
    alignas(16) uint64_t next[WARPS][2][2], ahead[WARPS][2][2];
    /* The block's items in turn, item k in slot k % 3, one without pages past the last. */
    item_info item[3];
};

/* Where a unit lies is one address a lane, in the plan or of the keys of a kv head in it. Int8: lanes 0-15 have the first
 * page's and lanes 16-31 the second's, which lies WARPS pages further in the sequence. Where there is none they get the
 * first page's again, and its keys do not count.
 *
 * Its tail says which keys count when not all do (0): the first so many. The last of them is the new one, which is not in
 * its page yet, unless NO_NEW_KEY is added. */
#define NO_NEW_KEY 64u

/* A unit of one kv head in a warp's registers. Lane = 4 * g + t. */
template <int D, bool I8> struct unit_registers {
    uint4 k[2][D / 32]; /* keys g and g + 8; dimensions 32 * c + 8 * t and the next 7 */
    uint4 v[4][D / 64]; /* keys 2 * t + {0, 1, 8, 9}; dimensions 64 * h + 8 * g and the next 7 */
};
template <int D> struct unit_registers<D, true> {
    uint4 k[4][D / 64];        /* keys 8 * b + g; dimensions 64 * c + 16 * t and the next 15 */
    uint32_t v[2][4][D / 32];  /* keys 16 * i + 2 * t + {0, 1, 8, 9}; D / 8 dimensions from D / 8 * g on */
    uint32_t k_scale, v_scale; /* fp16, of keys 2 * (lane % 16) and the next */
};

/* One warp's results so far. */
template <int D> struct warp_result {
    /* Of query heads 2 * t and 2 * t + 1: a dimension of both heads, then the dimension after it of both heads. Tile
     * 4 * h + e: dimension 64 * h + 8 * g + 2 * e; with int8 pages tile i: dimension D / 8 * g + 2 * i. */
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

static __device__ __forceinline__ uint2 load_stream_8(const char *from)
{
    uint2 v;
    asm volatile("ld.global.cg.L2::128B.v2.u32 {%0, %1}, [%2];" : "=r"(v.x), "=r"(v.y) : "l"(from));
    return v;
}

static __device__ __forceinline__ uint32_t load_stream_4(const char *from)
{
    uint32_t v;
    asm volatile("ld.global.cg.L2::128B.u32 %0, [%1];" : "=r"(v) : "l"(from));
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

static __device__ __forceinline__ uint32_t word_of(const uint4 &v, int i)
{
    return i == 0 ? v.x : i == 1 ? v.y : i == 2 ? v.z : v.w;
}

/* Scales of keys 8 * @block + 2 * t and the next. */
static __device__ __forceinline__ float2 scales_of(uint32_t held, int block)
{
    uint32_t both = __shfl_sync(ALL_LANES, held, 4 * block + threadIdx.x % 4);
    return __half22float2(*reinterpret_cast<__half2 *>(&both));
}

/* Where in block_memory.q[head] the high half of a dimension is, in bytes; its low half is 4 bytes further. bf16 pages:
 * dimensions lie in their order. Int8: as lanes need them, four dimensions of a lane being those in bytes 0 and 2, then
 * those in bytes 1 and 3 (qkc_i8_widen); what the lanes t read together lies 32 bytes apart. */
template <bool I8> static __device__ __forceinline__ uint32_t q_offset(uint32_t d)
{
    if (!I8)
        return d / 2 * 8 + d % 2 * 2;
    const uint32_t t = d % 64 / 16, word = d % 16 / 4, byte = d % 4;
    return d / 64 * 256 + word / 2 * 128 + t * 32 + word % 2 * 16 + byte % 2 * 8 + byte / 2 * 2;
}

/* ---- Loading a unit ------------------------------------------------------------------------------------------ */

template <int D>
static __device__ __forceinline__ void load_keys(
    const decode_params &p, unit_registers<D, false> &r, const char *page)
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
    const decode_params &p, unit_registers<D, false> &r, const char *page)
{
    const uint32_t lane = lane_again(), g = lane / 4, t = lane % 4, stride = p.a.layout.token_stride;
    const char *from = page + p.a.layout.v_offset + 2 * t * stride + g * 16;
#pragma unroll
    for (int j = 0; j < 4; j++)
#pragma unroll
        for (int h = 0; h < D / 64; h++)
            r.v[j][h] = load_stream(from + (j % 2 + j / 2 * 8) * stride + h * 128);
}

/* The first or second page of a unit, for all lanes. */
static __device__ __forceinline__ const char *page_of(const char *unit, int i)
{
    return (const char *)__shfl_sync(ALL_LANES, (unsigned long long)unit, 16 * i);
}

/* The lane's two scales; @offset: from a page's keys to the scales. */
static __device__ __forceinline__ uint32_t load_scales(const char *unit, uint64_t offset)
{
    const uint32_t lane = lane_again();
    const char *page = (const char *)__shfl_sync(ALL_LANES, (unsigned long long)unit, lane % 16 * 2);
    return load_stream_4(page + offset + lane % 8 * 4);
}

/* The keys of page @i of the unit, and with the first all scales. */
template <int D>
static __device__ __forceinline__ void load_keys(
    const decode_params &p, unit_registers<D, true> &r, const char *unit, int i)
{
    const uint32_t lane = lane_again(), g = lane / 4, t = lane % 4, stride = p.a.layout.token_stride;
    if (i == 0)
        r.k_scale = load_scales(unit, p.a.layout.scale_offset);
    const char *from = page_of(unit, i) + g * stride + t * 16;
#pragma unroll
    for (int b = 0; b < 2; b++)
#pragma unroll
        for (int c = 0; c < D / 64; c++)
            r.k[2 * i + b][c] = load_stream(from + b * 8 * stride + c * 64);
}

/* The values of page @i of the unit, and with the first all scales. */
template <int D>
static __device__ __forceinline__ void load_values(
    const decode_params &p, unit_registers<D, true> &r, const char *unit, int i)
{
    const uint32_t lane = lane_again(), g = lane / 4, t = lane % 4, stride = p.a.layout.token_stride;
    if (i == 0)
        r.v_scale = load_scales(unit, p.a.layout.v_offset + p.a.layout.scale_offset);
    const char *from = page_of(unit, i) + p.a.layout.v_offset + 2 * t * stride + g * (D / 8);
#pragma unroll
    for (int j = 0; j < 4; j++) {
        const char *key = from + (j % 2 + j / 2 * 8) * stride;
        if constexpr (D == 128) {
            const uint4 v = load_stream(key);
            r.v[i][j][0] = v.x, r.v[i][j][1] = v.y, r.v[i][j][2] = v.z, r.v[i][j][3] = v.w;
        } else {
            const uint2 v = load_stream_8(key);
            r.v[i][j][0] = v.x, r.v[i][j][1] = v.y;
        }
    }
}

/* What of a unit is asked for before its turn. */
template <int D, bool I8>
static __device__ __forceinline__ void load_unit(
    const decode_params &p, unit_registers<D, I8> &r, const char *unit)
{
    if constexpr (I8) {
        load_keys(p, r, unit, 0);
        load_keys(p, r, unit, 1);
        load_values(p, r, unit, 0);
    } else {
        load_keys(p, r, unit);
        load_values(p, r, unit);
    }
}

/* ---- The end of a sequence ----------------------------------------------------------------------------------- */

/* The new key in place of what the page had there. */
template <int D>
static __device__ __forceinline__ void patch_keys(
    const block_memory<D> &s, unit_registers<D, false> &r, uint32_t tail)
{
    const uint32_t lane = lane_again(), g = lane / 4, t = lane % 4;
#pragma unroll
    for (int i = 0; i < 2; i++)
        if (g + i * 8 == tail - 1)
#pragma unroll
            for (int c = 0; c < D / 32; c++)
                r.k[i][c] = *(const uint4 *)(s.new_kv[0] + c * 64 + t * 16);
}

/* The new value in its place, and zeros past it. */
template <int D>
static __device__ __forceinline__ void patch_values(
    const block_memory<D> &s, unit_registers<D, false> &r, uint32_t tail)
{
    const uint32_t lane = lane_again(), g = lane / 4, t = lane % 4;
#pragma unroll
    for (int j = 0; j < 4; j++) {
        const uint32_t key = 2 * t + j % 2 + j / 2 * 8;
        if (key >= tail - 1)
#pragma unroll
            for (int h = 0; h < D / 64; h++)
                r.v[j][h] = key == tail - 1 ? *(const uint4 *)(s.new_kv[1] + h * 128 + g * 16)
                                            : make_uint4(0, 0, 0, 0);
    }
}

/* The lane's two scales, with the new one in its place and zeros for keys that do not count. */
static __device__ __forceinline__ uint32_t patch_scales(
    uint32_t held, uint32_t lane, uint32_t tail, uint32_t new_scale)
{
    const uint32_t key = lane % 16 * 2, n_keys = tail % NO_NEW_KEY;
    uint32_t low = held & 0xffffu, high = held >> 16;
    low = key == tail - 1 ? new_scale : key < n_keys ? low : 0;
    high = key + 1 == tail - 1 ? new_scale : key + 1 < n_keys ? high : 0;
    return low | high << 16;
}

template <int D>
static __device__ __forceinline__ void patch_keys(
    const block_memory<D> &s, unit_registers<D, true> &r, uint32_t tail)
{
    const uint32_t lane = lane_again(), g = lane / 4, t = lane % 4;
    r.k_scale = patch_scales(r.k_scale, lane, tail, s.new_scale[0]);
#pragma unroll
    for (int b = 0; b < 4; b++)
        if (g + b * 8 == tail - 1)
#pragma unroll
            for (int c = 0; c < D / 64; c++)
                r.k[b][c] = *(const uint4 *)(s.new_kv[0] + c * 64 + t * 16);
}

/* Values past the new one are some numbers times a scale of 0. */
template <int D>
static __device__ __forceinline__ void patch_values(
    const block_memory<D> &s, unit_registers<D, true> &r, uint32_t tail)
{
    const uint32_t lane = lane_again(), g = lane / 4, t = lane % 4;
    r.v_scale = patch_scales(r.v_scale, lane, tail, s.new_scale[1]);
#pragma unroll
    for (int i = 0; i < 2; i++)
#pragma unroll
        for (int j = 0; j < 4; j++)
            if (16 * i + 2 * t + j % 2 + j / 2 * 8 == tail - 1)
#pragma unroll
                for (int e = 0; e < D / 32; e++)
                    r.v[i][j][e] = *(const uint32_t *)(s.new_kv[1] + g * (D / 8) + e * 4);
}

/* Keys past the last one weigh nothing. */
template <int N> static __device__ __forceinline__ void mask_scores(float (&score)[N], uint32_t tail)
{
    const uint32_t n_keys = N == 8 ? tail % NO_NEW_KEY : tail;
#pragma unroll
    for (int i = 0; i < N; i++)
        score[i] = 2 * (threadIdx.x % 4) + i % 2 + i / 2 * 8 < n_keys ? score[i] : -INFINITY;
}

/* ---- Scores and weights -------------------------------------------------------------------------------------- */

/* Scores, base 2, of head g and keys 2 * t + {0, 1, 8, 9}, for int8 pages also 16 further. */
template <int D>
static __device__ __forceinline__ void score(
    const block_memory<D> &s, const unit_registers<D, false> &r, float (&score)[4])
{
    const uint32_t g = threadIdx.x % QKC_WARP / 4, t = threadIdx.x % 4;
    const uint32_t at = shared_of(s.q[g]) + t * 32;
    float sum[2][4] = {
        {0, 0, 0, 0}, {0, 0, 0, 0}}; /* by 8 keys: with the high halves, then with the low ones */
#pragma unroll
    for (int c = 0; c < D / 32; c++) {
        uint4 q = load_shared(at + c * 128);
        mma_bf16(sum[0], q.x, q.y, q.z, q.w, r.k[0][c].x, r.k[0][c].y);
        mma_bf16(sum[1], q.x, q.y, q.z, q.w, r.k[1][c].x, r.k[1][c].y);
        q = load_shared(at + c * 128 + 16);
        mma_bf16(sum[0], q.x, q.y, q.z, q.w, r.k[0][c].z, r.k[0][c].w);
        mma_bf16(sum[1], q.x, q.y, q.z, q.w, r.k[1][c].z, r.k[1][c].w);
    }
#pragma unroll
    for (int i = 0; i < 4; i++)
        score[i] = sum[i / 2][i % 2] + sum[i / 2][i % 2 + 2];
}

/* Of page @i of the unit. */
template <int D>
static __device__ __forceinline__ void score(
    const block_memory<D> &s, const unit_registers<D, true> &r, float (&score)[8], int i)
{
    const uint32_t g = threadIdx.x % QKC_WARP / 4, t = threadIdx.x % 4;
    const uint32_t at = shared_of(s.q[g]) + t * 32;
    float sum[2][4] = {{0, 0, 0, 0}, {0, 0, 0, 0}}; /* as above */
#pragma unroll
    for (int c = 0; c < D / 64; c++)
#pragma unroll
        for (int e = 0; e < 4; e++) {
            const uint4 q = load_shared(at + c * 256 + e / 2 * 128 + e % 2 * 16);
#pragma unroll
            for (int b = 0; b < 2; b++) {
                uint32_t even, odd;
                qkc_i8_widen(word_of(r.k[2 * i + b][c], e), &even, &odd);
                mma_bf16(sum[b], q.x, q.y, q.z, q.w, even, odd);
            }
        }
#pragma unroll
    for (int b = 0; b < 2; b++) {
        const float2 scale = scales_of(r.k_scale, 2 * i + b);
        score[4 * i + 2 * b] = (sum[b][0] + sum[b][2]) * scale.x;
        score[4 * i + 2 * b + 1] = (sum[b][1] + sum[b][3]) * scale.y;
    }
}

template <int N> static __device__ __forceinline__ float max_of(const float (&x)[N])
{
    if constexpr (N == 8)
        return fmaxf(
            fmaxf(fmaxf(x[0], x[1]), fmaxf(x[2], x[3])), fmaxf(fmaxf(x[4], x[5]), fmaxf(x[6], x[7])));
    else
        return fmaxf(fmaxf(x[0], x[1]), fmaxf(x[2], x[3]));
}

/* The unit's keys join the running softmax: scores become weights, what was summed before is scaled. */
template <int D, int N> static __device__ __forceinline__ void join(warp_result<D> &w, float (&score)[N])
{
    float max = max_of(score);
    max = fmaxf(max, __shfl_xor_sync(ALL_LANES, max, 1));
    max = fmaxf(max, __shfl_xor_sync(ALL_LANES, max, 2));
    if (__any_sync(ALL_LANES, max > w.max)) {
        max = fmaxf(max, w.max);
        const float scale = exp2_approx(w.max - max);
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
    for (int i = 0; i < N; i++)
        score[i] = exp2_approx(score[i] - w.max);
#pragma unroll
    for (int i = 0; i < N; i += 4)
        w.sum += (score[i] + score[i + 1]) + (score[i + 2] + score[i + 3]);
}

template <int D>
static __device__ __forceinline__ void add_values(
    warp_result<D> &w, const unit_registers<D, false> &r, const float (&weight)[4])
{
    uint32_t high[2], low[2];
    split_bf16(weight[0], weight[1], &high[0], &low[0]);
    split_bf16(weight[2], weight[3], &high[1], &low[1]);
#pragma unroll
    for (int h = 0; h < D / 64; h++)
#pragma unroll
        for (int e = 0; e < 4; e++) {
            const uint32_t x0 = word_of(r.v[0][h], e), x1 = word_of(r.v[1][h], e);
            const uint32_t x2 = word_of(r.v[2][h], e), x3 = word_of(r.v[3][h], e);
            const uint32_t a0 = __byte_perm(x0, x1, 0x5410), a1 = __byte_perm(x0, x1, 0x7632);
            const uint32_t a2 = __byte_perm(x2, x3, 0x5410), a3 = __byte_perm(x2, x3, 0x7632);
            mma_bf16(w.o[4 * h + e], a0, a1, a2, a3, high[0], high[1]);
            mma_bf16(w.o[4 * h + e], a0, a1, a2, a3, low[0], low[1]);
        }
}

/* Of page @i of the unit. */
template <int D>
static __device__ __forceinline__ void add_values(
    warp_result<D> &w, const unit_registers<D, true> &r, const float (&weight)[8], int i)
{
    uint32_t high[2], low[2];
#pragma unroll
    for (int b = 0; b < 2; b++) {
        const float2 scale = scales_of(r.v_scale, 2 * i + b);
        split_bf16(weight[4 * i + 2 * b] * scale.x, weight[4 * i + 2 * b + 1] * scale.y, &high[b], &low[b]);
    }
#pragma unroll
    for (int tile = 0; tile < D / 16; tile++) { /* two of a word's four dimensions */
        const uint32_t order = tile % 2 == 0 ? 0x5410 : 0x7632;
        uint32_t a0, a1, a2, a3;
        qkc_i8_widen(__byte_perm(r.v[i][0][tile / 2], r.v[i][1][tile / 2], order), &a0, &a1);
        qkc_i8_widen(__byte_perm(r.v[i][2][tile / 2], r.v[i][3][tile / 2], order), &a2, &a3);
        mma_bf16(w.o[tile], a0, a1, a2, a3, high[0], high[1]);
        mma_bf16(w.o[tile], a0, a1, a2, a3, low[0], low[1]);
    }
}
