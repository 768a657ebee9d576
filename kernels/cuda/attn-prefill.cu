/* attn-prefill.cu: attention of rows whose q is ready, portable (mma.sync, cp.async, sm_80 and newer); the merging of
 * parts; the host's cutting of a plan into tiles, for this kernel and for the Hopper one.
 *
 * One thread block does one tile for one kv head: up to 128 packed query rows (packed row r is token r / n_q and head
 * r % n_q of the kv head's n_q query heads) over the tile's keys, in blocks of 64 keys, from the last block to the first,
 * so that what needs the causal mask comes first. Each warp holds its rows' scores and output sums in registers: S = Q K^T,
 * online softmax, O += P V, with P from registers (the form of FlashAttention-2, Dao 2023). Two forms:
 *   wide    4 warps of 32 rows, two blocks an SM: a fragment of K or V is read from shared memory once for 32 rows,
 *           which is what keeps shared memory behind the tensor cores of sm_80 and sm_90;
 *   narrow  8 warps of 16 rows, one block an SM, Q in registers: where an SM has 100 KB.
 *
 * Invariants
 *  1. K and V blocks are items K0 V0 K1 V1 .. (blocks numbered as they are processed) in a ring of three slots; each
 *     item is one cp.async group, empty past the end. The half step that uses item n first waits until one group at most
 *     is outstanding: n + 2 have been committed, so n has landed. Then a barrier: n has landed for everyone, and nobody uses
 *     item n - 1 any more, whose slot item n + 2 gets. Q travels with K0. Items of int8 pages land in two places of their own;
 *     behind the barrier all threads write item n as bf16 to its slot, there is a second barrier, and n + 2 sets out.
 *  2. Keys at key_end and beyond are never read: their places are zero-filled, and masked. So what lies in memory there
 *     cannot reach the result (0 * NaN). A row that sees no key of the tile gets zeros and lse -inf; the places of rows that
 *     do not exist are zeros and are not written.
 *  3. A row's bits depend on its tile alone, and tiles on the sequence's start and n_rows (cut_sequence()): same bits in
 *     every step and every run. Rows that are masked in a block add exact zeros to sums and multiply them by exact ones.
 *     A launch over a range of the keys begins with the registers that the one before it ended with: a tile may be
 *     interrupted between any two blocks, and contractions are written out so that both kinds of launch compute the same.
 *  4. Parts of a round have disjoint places in the workspace; the merge adds them in position order.
 *
 * Layout in shared memory: rows of head_dim bf16, the 16-byte piece c of row r at place c ^ (r & 7): eight rows of one
 * piece (ldmatrix) and eight pieces of one row (cp.async) lie in different banks.
 *
 * Cost (reference shape, 32 query and 8 kv heads of 128): 4 * head_dim FLOP a query head, row and key: 8.8 TFLOP a layer
 * for a 32K prompt, 24 ms at 370 TFLOP/s, about what mma.sync reaches on an H200. K and V are read once a tile: 32 KB for
 * 128 * 64 * 4 * 128 = 4.2 MFLOP, 2.8 TB/s out of L2 at that rate. Shared memory (wide): 40 KB of fragments a warp and 32 KB
 * of copies a block for those 4.2 MFLOP, 1,536 cycles at 128 bytes each: 630 TFLOP/s. */
#include "kernels/cuda/cuda-ops.h"
#include "kernels/cuda/kv-int8.h"
#include "kernels/cuda/ptx.h"
#include <algorithm>
#include <math.h>
#include <string.h>

#define TILE_ROWS  128 /* packed rows of a block */
#define BLOCK_KEYS 64
#define N_SLOTS    3

/* ---- Single instructions ------------------------------------------------------------------------------------- */

/* Four 8x8 matrices; lane l gives the address of row l % 8 of matrix l / 8. */
static __device__ __forceinline__ void load_4(uint32_t (&r)[4], uint32_t address)
{
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
                 : "r"(address)
                 : "memory");
}

static __device__ __forceinline__ void load_4_transposed(uint32_t (&r)[4], uint32_t address)
{
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
                 : "r"(address)
                 : "memory");
}

/* d += a b: a [16, 16], b [16, 8]. Elements of d: rows l / 4 and l / 4 + 8, columns 2 * (l % 4) and the next. */
static __device__ __forceinline__ void mma(float (&d)[4], const uint32_t *a, uint32_t b0, uint32_t b1)
{
    asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, "
        "{%0, %1, %2, %3};"
        : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

/* ---- The portable kernel ------------------------------------------------------------------------------------- */

/* What the forms differ in, and what follows from it. M: 16-row groups of a warp. */
template <int DIM, int M> struct form {
    static constexpr int N_WARPS = TILE_ROWS / (16 * M);
    static constexpr int N_THREADS = 32 * N_WARPS;
    static constexpr int BLOCKS_AN_SM = M == 2 ? 2 : 1;
    static constexpr bool Q_IN_REGISTERS = M == 1 || DIM == 64;
    static constexpr int ROW_BYTES = DIM * 2;
    static constexpr int PIECES = DIM / 8; /* of 16 bytes in a row */
    static constexpr int SLOT_BYTES = BLOCK_KEYS * ROW_BYTES;
    static constexpr int STAGED_BYTES = BLOCK_KEYS * (DIM + 2); /* of int8: numbers, then scales */
    static constexpr int bytes(bool i8)
    {
        return TILE_ROWS * ROW_BYTES + (i8 ? 2 * (SLOT_BYTES + STAGED_BYTES) : N_SLOTS * SLOT_BYTES);
    }
};

/* One thread's share of 16 * M rows: of each group of 16 two rows, 8 apart. */
template <int DIM, int M> struct rows {
    float o[M][DIM / 8][4];        /* sums of P V, in units of exp2(max * scale_log2) */
    float s[M][BLOCK_KEYS / 8][4]; /* scores, then their exponentials */
    float max[M][2];               /* of the raw scores so far */
    float sum[M][2];               /* of this thread's columns alone */
    uint32_t q[M][DIM / 16][4];    /* A operands, where they stay in registers */
};

/* One block's keys or values, the first @n_valid of which exist. Lane l holds the address of page l % 4 of the block. */
template <int DIM, int M>
static __device__ __forceinline__ void copy_block(
    uint32_t slot, uint64_t page, int n_valid, uint32_t thread, uint32_t token_stride)
{
    using f = form<DIM, M>;
    constexpr int STEP = f::N_THREADS / f::PIECES; /* rows a pass: 8, 16 or 32 */
    const uint32_t row = thread / f::PIECES, piece = thread % f::PIECES;
    const uint32_t to = slot + row * f::ROW_BYTES + ((piece ^ (row & 7)) << 4);
    const uint32_t from = row % QK_PAGE_TOKENS * token_stride + piece * 16;
#pragma unroll
    for (int i = 0; i < BLOCK_KEYS / STEP; i++) {
        const uint32_t index = (i * STEP + (STEP == 32 ? row : 0)) / QK_PAGE_TOKENS;
        const uint64_t base = __shfl_sync(0xffffffffu, page, index) + from;
        const uint32_t within = i * STEP % QK_PAGE_TOKENS * token_stride;
        copy_16(to + i * STEP * f::ROW_BYTES, base + within, (int)(row + i * STEP) < n_valid);
    }
}

/* The same of int8 pages, as the bytes lie there: the 16-byte piece c of row r at place c ^ (r & 7), of 64 dims at place
 * c ^ (r / 2 & 3), the scales behind all rows. */
template <int DIM, int M>
static __device__ __forceinline__ void stage_block(
    uint32_t to, uint64_t page, int n_valid, uint32_t thread, const qk_kv_layout &layout)
{
    constexpr int PIECES = DIM / 16, STEP = form<DIM, M>::N_THREADS / PIECES; /* rows a pass: 16, 32 or 64 */
    const uint32_t piece = thread % PIECES;
#pragma unroll
    for (int i = 0; i < BLOCK_KEYS / STEP; i++) {
        const uint32_t row = i * STEP + thread / PIECES;
        const uint64_t base = __shfl_sync(0xffffffffu, page, row / QK_PAGE_TOKENS);
        const uint32_t at = piece ^ (DIM == 128 ? row & 7 : row / 2 & 3);
        copy_16(to + row * DIM + (at << 4), base + row % QK_PAGE_TOKENS * layout.token_stride + piece * 16,
            (int)row < n_valid);
    }
    const uint64_t scales = __shfl_sync(0xffffffffu, page, thread / 2 % 4) + layout.scale_offset;
    if (thread < BLOCK_KEYS / 8) /* 8 scales each */
        copy_16(to + BLOCK_KEYS * DIM + thread * 16, scales + thread % 2 * 16, (int)(thread * 8) < n_valid);
}

/* A staged block as bf16 to its slot. Rows from @n_valid on become zeros, whatever their scales are. */
template <int DIM, int M>
static __device__ __forceinline__ void widen_block(
    uint8_t *slot, const uint8_t *staged, int n_valid, uint32_t thread)
{
    using f = form<DIM, M>;
    constexpr int N = DIM / 16 * BLOCK_KEYS / f::N_THREADS; /* pieces of a thread */
    const uint32_t row = thread % BLOCK_KEYS, first = thread / BLOCK_KEYS * N;
    const float s = qkc_i8_float(*(const uint16_t *)&staged[BLOCK_KEYS * DIM + 2 * row]);
    const float scale = (int)row < n_valid ? s : 0.0f;
#pragma unroll
    for (uint32_t p = first; p < first + N; p++) {
        const uint32_t at = p ^ (DIM == 128 ? row & 7 : row / 2 & 3);
        uint4 low, high;
        qkc_i8_to_bf16(*(const uint4 *)&staged[row * DIM + (at << 4)], scale, &low, &high);
        *(uint4 *)&slot[row * f::ROW_BYTES + ((2 * p ^ (row & 7)) << 4)] = low;
        *(uint4 *)&slot[row * f::ROW_BYTES + ((2 * p + 1 ^ (row & 7)) << 4)] = high;
    }
}

template <int DIM, int M>
static __device__ __forceinline__ void copy_q(const qkc_attend_prefill_args &a, const qkc_tile &tile,
    uint32_t q, uint32_t kv_head, uint32_t n_q, uint32_t thread)
{
    using f = form<DIM, M>;
    constexpr int STEP = f::N_THREADS / f::PIECES;
    const uint32_t piece = thread % f::PIECES;
    const uint32_t tile_row = tile.row, n_rows = tile.n_rows; /* not read anew after each copy */
    const size_t q_dim = (size_t)a.n_heads * DIM;
#pragma unroll 4
    for (int i = 0; i < TILE_ROWS / STEP; i++) {
        const uint32_t row = i * STEP + thread / f::PIECES;
        const uint32_t token = row / n_q, head = kv_head * n_q + row % n_q;
        const bool valid = token < n_rows;
        const qkc_bf16 *from = valid ? a.q + (tile_row + token) * q_dim + head * DIM + piece * 8 : a.q;
        copy_16(q + row * f::ROW_BYTES + ((piece ^ (row & 7)) << 4), (uint64_t)(uintptr_t)from, valid);
    }
}

/* s = Q K^T. @q, @k: this lane's ldmatrix address at the first piece; piece 2 i is at that ^ 32 i. */
template <int DIM, int M>
static __device__ __forceinline__ void compute_scores(rows<DIM, M> &r, uint32_t q, uint32_t k)
{
    using f = form<DIM, M>;
#pragma unroll
    for (int m = 0; m < M; m++)
#pragma unroll
        for (int n = 0; n < BLOCK_KEYS / 8; n++)
#pragma unroll
            for (int e = 0; e < 4; e++)
                r.s[m][n][e] = 0;
#pragma unroll
    for (int i = 0; i < DIM / 16; i++) {
        uint32_t loaded[M][4];
        if (!f::Q_IN_REGISTERS)
#pragma unroll
            for (int m = 0; m < M; m++)
                load_4(loaded[m], (q ^ (i << 5)) + m * 16 * f::ROW_BYTES);
#pragma unroll
        for (int n = 0; n < BLOCK_KEYS / 16; n++) {
            uint32_t b[4];
            load_4(b, (k ^ (i << 5)) + n * 16 * f::ROW_BYTES);
#pragma unroll
            for (int m = 0; m < M; m++) {
                const uint32_t *w = f::Q_IN_REGISTERS ? r.q[m][i] : loaded[m];
                mma(r.s[m][2 * n], w, b[0], b[1]);
                mma(r.s[m][2 * n + 1], w, b[2], b[3]);
            }
        }
    }
}

/* o += P V, P being s in bf16: columns 16 i and on of s are the A operand of keys 16 i and on. */
template <int DIM, int M> static __device__ __forceinline__ void compute_output(rows<DIM, M> &r, uint32_t v)
{
#pragma unroll
    for (int i = 0; i < BLOCK_KEYS / 16; i++) {
        uint32_t p[M][4];
#pragma unroll
        for (int m = 0; m < M; m++)
#pragma unroll
            for (int e = 0; e < 4; e++)
                p[m][e] = pack_bf16(r.s[m][2 * i + e / 2][e % 2 * 2], r.s[m][2 * i + e / 2][e % 2 * 2 + 1]);
#pragma unroll
        for (int n = 0; n < DIM / 16; n++) {
            uint32_t b[4];
            load_4_transposed(b, (v ^ (n << 5)) + i * 16 * form<DIM, M>::ROW_BYTES);
#pragma unroll
            for (int m = 0; m < M; m++) {
                mma(r.o[m][2 * n], p[m], b[0], b[1]);
                mma(r.o[m][2 * n + 1], p[m], b[2], b[3]);
            }
        }
    }
}

/* -inf to the scores of keys that a row does not see. @first: the block's first key; @row: the lane's first packed row;
 * @position: of the tile's first row; @key_end: no row sees it. */
template <int DIM, int M>
static __device__ __forceinline__ void mask_scores(rows<DIM, M> &r, uint32_t first, uint32_t row,
    uint32_t n_q, uint32_t position, uint32_t key_end, uint32_t lane)
{
#pragma unroll
    for (int m = 0; m < M; m++)
#pragma unroll
        for (int h = 0; h < 2; h++) {
            const uint32_t limit = min(position + (row + 16 * m + 8 * h) / n_q + 1, key_end);
            const int n_seen = (int)limit - (int)first - (int)(lane % 4 * 2);
#pragma unroll
            for (int n = 0; n < BLOCK_KEYS / 8; n++) {
                r.s[m][n][2 * h] = 8 * n < n_seen ? r.s[m][n][2 * h] : -INFINITY;
                r.s[m][n][2 * h + 1] = 8 * n + 1 < n_seen ? r.s[m][n][2 * h + 1] : -INFINITY;
            }
        }
}

/* Online softmax of the block in s; the sums so far are brought to the new maximum. */
template <int DIM, int M> static __device__ __forceinline__ void soften(rows<DIM, M> &r, float scale_log2)
{
    float rescale[M][2];
    bool changed = false;
#pragma unroll
    for (int m = 0; m < M; m++)
#pragma unroll
        for (int h = 0; h < 2; h++) {
            float x = fmaxf(r.s[m][0][2 * h], r.s[m][0][2 * h + 1]);
#pragma unroll
            for (int n = 1; n < BLOCK_KEYS / 8; n++)
                x = fmaxf(x, fmaxf(r.s[m][n][2 * h], r.s[m][n][2 * h + 1]));
            x = fmaxf(x, __shfl_xor_sync(0xffffffffu, x, 1));
            x = fmaxf(x, __shfl_xor_sync(0xffffffffu, x, 2));
            x = fmaxf(x, r.max[m][h]);
            /* A row that has seen no key keeps -inf; 0 then stands for it in the exponents, which stay -inf. */
            const float base = x == -INFINITY ? 0.0f : __fmul_rn(x, scale_log2);
            /* Not contracted: exactly 1 when the maximum stays. */
            rescale[m][h] = exp2_approx(__fmul_rn(r.max[m][h], scale_log2) - base);
            changed |= x != r.max[m][h];
            r.max[m][h] = x;
            float sum = 0;
#pragma unroll
            for (int n = 0; n < BLOCK_KEYS / 8; n++) {
                float &y = r.s[m][n][2 * h], &z = r.s[m][n][2 * h + 1];
                y = exp2_approx(fmaf(y, scale_log2, -base));
                z = exp2_approx(fmaf(z, scale_log2, -base));
                sum += y + z;
            }
            r.sum[m][h] = fmaf(r.sum[m][h], rescale[m][h], sum);
        }
    if (__any_sync(0xffffffffu, changed)) {
#pragma unroll
        for (int m = 0; m < M; m++)
#pragma unroll
            for (int n = 0; n < DIM / 8; n++)
#pragma unroll
                for (int e = 0; e < 4; e++)
                    r.o[m][n][e] *= rescale[m][e / 2];
    }
}

/* float32 rows straight from registers: to the output, or to the parts with their log-sum-exp. */
template <int DIM, int M>
static __device__ __forceinline__ void store_f32(const qkc_attend_prefill_args &a, const qkc_tile &tile,
    const rows<DIM, M> &r, float scale, uint32_t row, uint32_t kv_head, uint32_t n_q, uint32_t lane)
{
    const bool is_part = tile.n_parts > 1;
    float *out = is_part ? a.parts_out : a.out_f32;
#pragma unroll
    for (int m = 0; m < M; m++)
#pragma unroll
        for (int h = 0; h < 2; h++) {
            const uint32_t packed = row + 16 * m + 8 * h;
            const uint32_t token = packed / n_q, head = kv_head * n_q + packed % n_q;
            if (token >= tile.n_rows)
                continue;
            const size_t to_row = (is_part ? tile.part_slot : tile.row) + token;
            float *to = out + (to_row * a.n_heads + head) * DIM + lane % 4 * 2;
#pragma unroll
            for (int n = 0; n < DIM / 8; n++)
                *(float2 *)&to[8 * n] = make_float2(r.o[m][n][2 * h], r.o[m][n][2 * h + 1]);
            if (is_part && lane % 4 == 0)
                a.parts_lse[to_row * a.n_heads + head] =
                    r.sum[m][h] > 0 ? fmaf(r.max[m][h], scale, logf(r.sum[m][h])) : -INFINITY;
        }
}

/* bf16 rows through the warp's own part of Q's memory, so that whole rows are written. @q: first of its rows. */
template <int DIM, int M>
static __device__ __forceinline__ void store_bf16(const qkc_attend_prefill_args &a, const qkc_tile &tile,
    const rows<DIM, M> &r, uint8_t *q, uint32_t first_row, uint32_t kv_head, uint32_t n_q, uint32_t lane)
{
    using f = form<DIM, M>;
    constexpr int STEP = 32 / f::PIECES;
    __syncwarp();
#pragma unroll
    for (int m = 0; m < M; m++)
#pragma unroll
        for (int h = 0; h < 2; h++) {
            uint8_t *to = q + (16 * m + 8 * h + lane / 4) * f::ROW_BYTES + lane % 4 * 4;
#pragma unroll
            for (int n = 0; n < DIM / 8; n++)
                *(uint32_t *)&to[(n ^ (lane / 4)) << 4] = pack_bf16(r.o[m][n][2 * h], r.o[m][n][2 * h + 1]);
        }
    __syncwarp();
    const uint32_t piece = lane % f::PIECES;
#pragma unroll 4
    for (int i = 0; i < 16 * M / STEP; i++) {
        const uint32_t row = i * STEP + lane / f::PIECES;
        const uint32_t token = (first_row + row) / n_q, head = kv_head * n_q + (first_row + row) % n_q;
        if (token < tile.n_rows)
            *(uint4 *)&a.out_bf16[((size_t)(tile.row + token) * a.n_heads + head) * DIM + piece * 8] =
                *(const uint4 *)&q[row * f::ROW_BYTES + ((piece ^ (row & 7)) << 4)];
    }
}

/* Divides the sums; a row that saw no key becomes zeros. */
template <int DIM, int M> static __device__ __forceinline__ void normalise(rows<DIM, M> &r)
{
#pragma unroll
    for (int m = 0; m < M; m++)
#pragma unroll
        for (int h = 0; h < 2; h++) {
            float sum = r.sum[m][h];
            sum += __shfl_xor_sync(0xffffffffu, sum, 1);
            sum += __shfl_xor_sync(0xffffffffu, sum, 2);
            r.sum[m][h] = sum;
            const float by = sum == 0.0f ? 0.0f : __fdividef(1.0f, sum);
#pragma unroll
            for (int n = 0; n < DIM / 8; n++) {
                r.o[m][n][2 * h] *= by;
                r.o[m][n][2 * h + 1] *= by;
            }
        }
}

/* The registers of a tile that is not at its end, from (or, with STORE, to) the state of its rows. @row: the lane's first
 * packed row. */
template <bool STORE, int DIM, int M>
static __device__ __forceinline__ void move_state(const qkc_attend_prefill_args &a, const qkc_tile &tile,
    rows<DIM, M> &r, uint32_t row, uint32_t kv_head, uint32_t n_q, uint32_t lane)
{
#pragma unroll
    for (int m = 0; m < M; m++)
#pragma unroll
        for (int h = 0; h < 2; h++) {
            const uint32_t packed = row + 16 * m + 8 * h;
            const uint32_t token = packed / n_q, head = kv_head * n_q + packed % n_q;
            if (token >= tile.n_rows)
                continue;
            float *at = a.state + ((size_t)(tile.row + token) * a.n_heads + head) * (DIM + QKC_STATE_EXTRA);
            float2 *o = (float2 *)(at + lane % 4 * 2);
#pragma unroll
            for (int n = 0; n < DIM / 8; n++) {
                if (STORE) {
                    __stcg(o + 4 * n, make_float2(r.o[m][n][2 * h], r.o[m][n][2 * h + 1]));
                } else {
                    const float2 x = __ldcg(o + 4 * n);
                    r.o[m][n][2 * h] = x.x;
                    r.o[m][n][2 * h + 1] = x.y;
                }
            }
            if (STORE) {
                __stcg(at + DIM + lane % 4, r.sum[m][h]);
                if (lane % 4 == 0)
                    __stcg(at + DIM + 4, r.max[m][h]);
            } else {
                r.sum[m][h] = __ldcg(at + DIM + lane % 4);
                r.max[m][h] = __ldcg(at + DIM + 4);
            }
        }
}

/* Grid: tile by tile, the kv heads of each, so that the longest of all heads start first. RANGE: of each tile the keys in
 * the launch's range. I8: the pages are int8; items n have two places of bytes and two slots, both at n % 2, and n + 2 sets
 * out when n has been widened. */
template <int DIM, int M, bool RANGE, bool I8>
static __global__ void __launch_bounds__(form<DIM, M>::N_THREADS, form<DIM, M>::BLOCKS_AN_SM)
    attend_prefill(const __grid_constant__ qkc_attend_prefill_args a, float scale, float scale_log2)
{
    using f = form<DIM, M>;
    extern __shared__ __align__(1024) uint8_t shared[];
    qkc_pdl_wait();
    qkc_pdl_trigger();
    if (*a.plan.state != QK_OK)
        return;

    const qkc_tile &tile = a.tiles[blockIdx.x / a.n_kv_heads];
    uint32_t key_begin = tile.key_begin, key_end = tile.key_end;
    bool resumes = false, goes_on = false; /* later keys were in another launch; earlier ones will be */
    if (RANGE) {
        resumes = a.range_end < key_end;
        goes_on = a.range_begin > key_begin;
        key_begin = max(key_begin, a.range_begin);
        key_end = min(key_end, a.range_end);
        if (key_begin >= key_end)
            return;
    }
    const qk_seq *seq = &a.plan.seqs[tile.seq];
    const uint64_t *pages = a.plan.pages + seq->page_begin;
    const uint32_t kv_head = blockIdx.x % a.n_kv_heads, n_q = a.n_heads / a.n_kv_heads;
    const uint32_t thread = threadIdx.x, lane = thread % 32, warp = thread / 32;
    const uint32_t position = seq->start + (tile.row - seq->row_begin); /* of the tile's first row */
    const int n_keys = (int)(key_end - key_begin);
    const int n_blocks = (n_keys + BLOCK_KEYS - 1) / BLOCK_KEYS;
    /* Blocks before this one are seen whole by every row. */
    const int n_whole = ((int)min(position + 1, key_end) - (int)key_begin) / BLOCK_KEYS;
    const uint32_t first_row = warp * 16 * M;
    const bool has_rows = first_row < tile.n_rows * n_q;

    const uint32_t q_base = shared_of(shared);
    uint32_t k_slot = q_base + TILE_ROWS * f::ROW_BYTES, v_slot = k_slot + f::SLOT_BYTES,
             free_slot = v_slot + f::SLOT_BYTES; /* I8: where bytes are staged */
    /* This lane's ldmatrix addresses: of 16 rows (Q, V), and of two groups of 8 rows, two pieces each (K). */
    const uint32_t at_rows = lane % 16 * f::ROW_BYTES + (((lane / 16) ^ (lane & 7)) << 4);
    const uint32_t at_keys = (lane % 8 + lane / 16 * 8) * f::ROW_BYTES + (((lane / 8 & 1) ^ (lane & 7)) << 4);
    const uint32_t q_at = q_base + first_row * f::ROW_BYTES + at_rows;

    const uint64_t offset = a.layer * a.layout.layer_stride + kv_head * a.layout.head_stride;
    auto page_of = [&](int block) {
        const uint32_t key = key_begin + block * BLOCK_KEYS + lane % 4 * QK_PAGE_TOKENS;
        return block >= 0 && key < key_end ? pages[key / QK_PAGE_TOKENS] + offset : (uint64_t)(uintptr_t)a.q;
    };
    auto copy = [&](uint32_t slot, uint64_t page, int block) {
        if (block >= 0 && I8)
            stage_block<DIM, M>(slot, page, n_keys - block * BLOCK_KEYS, thread, a.layout);
        else if (block >= 0)
            copy_block<DIM, M>(slot, page, n_keys - block * BLOCK_KEYS, thread, a.layout.token_stride);
        copy_commit();
    };
    const uint32_t staged_k = free_slot, staged_v = free_slot + f::STAGED_BYTES;
    auto widen = [&](uint32_t slot, uint32_t staged, int block) {
        widen_block<DIM, M>(
            shared + (slot - q_base), shared + (staged - q_base), n_keys - block * BLOCK_KEYS, thread);
        __syncthreads();
    };

    uint64_t page = page_of(n_blocks - 1);
    copy_q<DIM, M>(a, tile, q_base, kv_head, n_q, thread);
    copy(I8 ? staged_k : k_slot, page, n_blocks - 1);
    copy(I8 ? staged_v : v_slot, page + a.layout.v_offset, n_blocks - 1);
    page = page_of(n_blocks - 2);

    rows<DIM, M> r;
#pragma unroll
    for (int m = 0; m < M; m++) {
#pragma unroll
        for (int n = 0; n < DIM / 8; n++)
#pragma unroll
            for (int e = 0; e < 4; e++)
                r.o[m][n][e] = 0;
        r.max[m][0] = r.max[m][1] = -INFINITY;
        r.sum[m][0] = r.sum[m][1] = 0;
    }
    if (RANGE && resumes && has_rows)
        move_state<false, DIM, M>(a, tile, r, first_row + lane / 4, kv_head, n_q, lane);
    if (f::Q_IN_REGISTERS) {
        copy_wait<1>();
        __syncthreads();
#pragma unroll
        for (int m = 0; m < M; m++)
#pragma unroll
            for (int i = 0; i < DIM / 16; i++)
                load_4(r.q[m][i], (q_at ^ (i << 5)) + m * 16 * f::ROW_BYTES);
    }

#pragma unroll 1
    for (int block = n_blocks - 1; block >= 0; block--) {
        copy_wait<1>();
        __syncthreads();
        if (I8)
            widen(k_slot, staged_k, block);
        copy(I8 ? staged_k : free_slot, page, block - 1);
        if (has_rows) {
            compute_scores<DIM, M>(r, q_at, k_slot + at_keys);
            if (block >= n_whole)
                mask_scores<DIM, M>(
                    r, key_begin + block * BLOCK_KEYS, first_row + lane / 4, n_q, position, key_end, lane);
            soften<DIM, M>(r, scale_log2);
        }
        copy_wait<1>();
        __syncthreads();
        if (I8)
            widen(v_slot, staged_v, block);
        copy(I8 ? staged_v : k_slot, page + a.layout.v_offset, block - 1);
        page = page_of(block - 2);
        if (has_rows)
            compute_output<DIM, M>(r, v_slot + at_rows);
        if (I8)
            continue;
        const uint32_t used = v_slot;
        v_slot = k_slot;
        k_slot = free_slot;
        free_slot = used;
    }

    if (!has_rows)
        return;
    if (RANGE && goes_on) {
        move_state<true, DIM, M>(a, tile, r, first_row + lane / 4, kv_head, n_q, lane);
        return;
    }
    normalise<DIM, M>(r);
    if (tile.n_parts > 1 || a.out_f32)
        store_f32<DIM, M>(a, tile, r, scale, first_row + lane / 4, kv_head, n_q, lane);
    else
        store_bf16<DIM, M>(a, tile, r, shared + first_row * f::ROW_BYTES, first_row, kv_head, n_q, lane);
}

/* ---- Merging parts ------------------------------------------------------------------------------------------- */

#define MERGE_WARPS 8

/* A warp merges one row of one head: sum over parts of exp(lse - largest lse) * out, in position order, over the sum of
 * those weights. Grid: x the groups of parts, y what MERGE_WARPS warps do of its rows and heads. */
template <int DIM>
static __global__ void __launch_bounds__(32 * MERGE_WARPS, 4)
    merge_parts(const __grid_constant__ qkc_attend_prefill_args a)
{
    constexpr int N = DIM / 32; /* elements of a lane */
    qkc_pdl_wait();
    qkc_pdl_trigger();
    if (*a.plan.state != QK_OK)
        return;
    const qkc_tile merge = a.merges[blockIdx.x];
    const uint32_t lane = threadIdx.x % 32, work = blockIdx.y * MERGE_WARPS + threadIdx.x / 32;
    const uint32_t token = work / a.n_heads, head = work % a.n_heads;
    if (token >= merge.n_rows)
        return;

    const size_t first = (size_t)(merge.part_slot + token) * a.n_heads + head;
    const size_t stride = (size_t)merge.n_rows * a.n_heads; /* between parts */
    float lse[QKC_PARTS_MAX / 32];                          /* of parts lane and lane + 32 */
    float largest = -INFINITY;
#pragma unroll
    for (uint32_t i = 0; i < QKC_PARTS_MAX / 32; i++) {
        const uint32_t part = 32 * i + lane;
        lse[i] = part < merge.n_parts ? a.parts_lse[first + part * stride] : -INFINITY;
        largest = fmaxf(largest, lse[i]);
    }
#pragma unroll
    for (int i = 16; i > 0; i /= 2)
        largest = fmaxf(largest, __shfl_xor_sync(0xffffffffu, largest, i));
    float weights = 0, out[N] = {};
#pragma unroll
    for (uint32_t i = 0; i < QKC_PARTS_MAX / 32; i++) {
        const float mine = expf(lse[i] - largest);
        const uint32_t n = merge.n_parts > 32 * i ? min(merge.n_parts - 32 * i, 32u) : 0;
#pragma unroll 8
        for (uint32_t part = 0; part < n; part++) {
            const float weight = __shfl_sync(0xffffffffu, mine, part);
            const float *from = a.parts_out + (first + (32 * i + part) * stride) * DIM + lane * N;
            float x[N];
            if (N == 4)
                *(float4 *)x = *(const float4 *)from;
            else
                *(float2 *)x = *(const float2 *)from;
            weights += weight;
#pragma unroll
            for (int j = 0; j < N; j++)
                out[j] = fmaf(weight, x[j], out[j]);
        }
    }
    const size_t to = ((size_t)(merge.row + token) * a.n_heads + head) * DIM + lane * N;
    const float by = __fdividef(1.0f, weights); /* 1 <= weights <= n_parts */
#pragma unroll
    for (int j = 0; j < N; j += 2) {
        if (a.out_f32)
            *(float2 *)&a.out_f32[to + j] = make_float2(out[j] * by, out[j + 1] * by);
        else
            *(uint32_t *)&a.out_bf16[to + j] = pack_bf16(out[j] * by, out[j + 1] * by);
    }
}

/* ---- Launching ----------------------------------------------------------------------------------------------- */

static qkc_prefill_form portable_form = QKC_PREFILL_NARROW;

void qkc_attend_prefill_choose(qkc_prefill_form form)
{
    portable_form = form;
}

template <int DIM, int M> static cudaError_t raise_shared_memory(void)
{
    cudaError_t code = cudaFuncSetAttribute(attend_prefill<DIM, M, false, false>,
        cudaFuncAttributeMaxDynamicSharedMemorySize, form<DIM, M>::bytes(false));
    if (code == cudaSuccess)
        code = cudaFuncSetAttribute(attend_prefill<DIM, M, true, false>,
            cudaFuncAttributeMaxDynamicSharedMemorySize, form<DIM, M>::bytes(false));
    if (code == cudaSuccess)
        code = cudaFuncSetAttribute(attend_prefill<DIM, M, false, true>,
            cudaFuncAttributeMaxDynamicSharedMemorySize, form<DIM, M>::bytes(true));
    return code;
}

cudaError_t qkc_attend_prefill_init(void)
{
    int device, bytes;
    cudaError_t code = cudaGetDevice(&device);
    if (code == cudaSuccess)
        code = cudaDeviceGetAttribute(&bytes, cudaDevAttrMaxSharedMemoryPerMultiprocessor, device);
    if (code == cudaSuccess)
        portable_form = bytes >= (160 << 10) ? QKC_PREFILL_WIDE : QKC_PREFILL_NARROW;
    if (code == cudaSuccess)
        code = raise_shared_memory<128, 1>();
    if (code == cudaSuccess)
        code = raise_shared_memory<128, 2>();
    if (code == cudaSuccess)
        code = raise_shared_memory<64, 1>();
    if (code == cudaSuccess)
        code = raise_shared_memory<64, 2>();
    return code;
}

template <int DIM, int M>
static cudaError_t start_tiles(const qkc_launch *launch, const qkc_attend_prefill_args *args, bool in_range)
{
    const double scale = 1.0 / sqrt((double)DIM);
    const bool i8 = args->layout.dtype == QK_I8;
    return qkc_start(launch,
        i8         ? attend_prefill<DIM, M, false, true>
        : in_range ? attend_prefill<DIM, M, true, false>
                   : attend_prefill<DIM, M, false, false>,
        dim3(args->n_tiles * args->n_kv_heads), dim3(form<DIM, M>::N_THREADS), form<DIM, M>::bytes(i8), *args,
        (float)scale, (float)(scale * M_LOG2E));
}

static bool takes_hopper(bool hopper, uint32_t n_heads, uint32_t n_kv_heads, uint32_t head_dim)
{
    return hopper && qkc_attend_prefill_hopper_runs(n_heads, n_kv_heads, head_dim);
}

static bool runs(const qkc_attend_prefill_args *args)
{
    return (args->head_dim == 128 || args->head_dim == 64) && args->n_heads % args->n_kv_heads == 0 &&
           args->n_heads / args->n_kv_heads <= TILE_ROWS &&
           (args->layout.dtype != QK_I8 || qkc_attend_prefill_takes_int8(&args->layout));
}

bool qkc_attend_prefill_takes_int8(const qk_kv_layout *layout)
{
    return layout->dtype == QK_I8 && (layout->token_stride | layout->v_offset | layout->head_stride |
                                         layout->layer_stride | layout->scale_offset) %
                                             16 ==
                                         0;
}

static cudaError_t start_all_tiles(
    const qkc_launch *launch, const qkc_attend_prefill_args *args, bool in_range)
{
    const bool wide = portable_form == QKC_PREFILL_WIDE;
    if (takes_hopper(launch->hopper, args->n_heads, args->n_kv_heads, args->head_dim))
        return qkc_attend_prefill_hopper(launch, args, in_range);
    if (args->head_dim == 128)
        return wide ? start_tiles<128, 2>(launch, args, in_range)
                    : start_tiles<128, 1>(launch, args, in_range);
    return wide ? start_tiles<64, 2>(launch, args, in_range) : start_tiles<64, 1>(launch, args, in_range);
}

static cudaError_t start_merges(const qkc_launch *launch, const qkc_attend_prefill_args *args)
{
    if (args->n_merges == 0)
        return cudaSuccess;
    /* A tile's rows and heads are at most TILE_ROWS * n_kv_heads. */
    const dim3 grid(args->n_merges, (TILE_ROWS * args->n_kv_heads + MERGE_WARPS - 1) / MERGE_WARPS);
    if (args->head_dim == 128)
        return qkc_start(launch, merge_parts<128>, grid, dim3(32 * MERGE_WARPS), 0, *args);
    return qkc_start(launch, merge_parts<64>, grid, dim3(32 * MERGE_WARPS), 0, *args);
}

static qkc_attend_prefill_args args_of_round(const qkc_attend_prefill_args *args, const qkc_round *round)
{
    qkc_attend_prefill_args a = *args;
    a.tiles += round->tile;
    a.n_tiles = round->n_tiles;
    a.merges += round->merge;
    a.n_merges = round->n_merges;
    return a;
}

cudaError_t qkc_attend_prefill(
    const qkc_launch *launch, const qkc_attend_prefill_args *args, const qkc_tiling *tiling)
{
    if (!runs(args))
        return cudaErrorInvalidValue;
    for (uint32_t i = 0; i < tiling->n_rounds; i++) {
        const qkc_attend_prefill_args a = args_of_round(args, &tiling->rounds[i]);
        cudaError_t code = start_all_tiles(launch, &a, false);
        if (code == cudaSuccess)
            code = start_merges(launch, &a);
        if (code != cudaSuccess)
            return code;
    }
    return cudaSuccess;
}

cudaError_t qkc_attend_prefill_range(const qkc_launch *launch, const qkc_attend_prefill_args *args,
    const qkc_round *tiles, uint32_t key_begin, uint32_t key_end)
{
    qkc_attend_prefill_args a = args_of_round(args, tiles);
    if (!runs(args) || args->layout.dtype == QK_I8 || args->state == NULL || key_begin >= key_end ||
        key_begin % QK_SPAN_TOKENS != 0)
        return cudaErrorInvalidValue;
    if (a.n_tiles == 0)
        return cudaSuccess;
    a.range_begin = key_begin;
    a.range_end = key_end;
    return start_all_tiles(launch, &a, true);
}

cudaError_t qkc_attend_prefill_merge(
    const qkc_launch *launch, const qkc_attend_prefill_args *args, const qkc_round *tiles)
{
    const qkc_attend_prefill_args a = args_of_round(args, tiles);
    return runs(args) ? start_merges(launch, &a) : cudaErrorInvalidValue;
}

/* ---- Cutting a plan into tiles ------------------------------------------------------------------------------- */

/* The duration of a launch is estimated in the time that a block takes for a span of keys. */
#define BLOCK_COST 0.25 /* a block's start and end */
#define MERGE_COST 0.4  /* the merge's launch */
#define PART_COST  3e-7 /* a float of a part, written and read */

static uint32_t tile_tokens(uint32_t n_heads, uint32_t n_kv_heads, uint32_t head_dim, bool hopper)
{
    if (takes_hopper(hopper, n_heads, n_kv_heads, head_dim))
        return qkc_attend_prefill_hopper_tile_rows(n_heads, n_kv_heads, head_dim);
    return TILE_ROWS / (n_heads / n_kv_heads);
}

/* What decides where a sequence's keys are cut. */
typedef struct {
    uint32_t start, n_rows;
    uint32_t tile_tokens, n_heads, n_kv_heads, head_dim;
    uint32_t n_slots; /* blocks that run at once: two an SM, of the Hopper kernel one */
} cut_input;

/* Half of a tile's warps have nothing to do: its blocks take about half the time. */
static bool is_small(uint32_t n_rows, uint32_t tile_tokens)
{
    return 2 * n_rows <= tile_tokens;
}

static uint32_t n_spans_of(uint32_t n_keys)
{
    return n_keys / QK_SPAN_TOKENS + (n_keys % QK_SPAN_TOKENS > 0);
}

static uint32_t tile_keys(const cut_input *in, uint32_t tile)
{
    return in->start + std::min((tile + 1) * in->tile_tokens, in->n_rows);
}

/* First key of part @part: the sequence's spans are dealt out evenly. */
static uint32_t part_begin(uint32_t n_spans, uint32_t n_parts, uint32_t part)
{
    return (uint32_t)((uint64_t)n_spans * part / n_parts) * QK_SPAN_TOKENS;
}

/* Parts of a tile with @n_keys keys: those that begin before its end. */
static uint32_t parts_of(uint32_t n_spans, uint32_t n_parts, uint32_t n_keys)
{
    uint32_t n = n_parts;
    while (part_begin(n_spans, n_parts, n - 1) >= n_keys)
        n--;
    return n;
}

/* Blocks that take the same time, or slots that become free at the same time. */
typedef struct {
    double time;
    uint32_t n;
} timed;
#define TIMES_MAX 64u

/* Adds @n with @time to a list in ascending order. When there is no room for another time they get the next shorter one. */
static void add_timed(timed *list, uint32_t *n_list, double time, uint32_t n)
{
    uint32_t i = *n_list;
    while (i > 0 && list[i - 1].time > time)
        i--;
    if (i > 0 && (list[i - 1].time == time || *n_list == TIMES_MAX)) {
        list[i - 1].n += n;
    } else if (*n_list == TIMES_MAX) {
        list[0].n += n;
    } else {
        memmove(list + i + 1, list + i, (*n_list - i) * sizeof(*list));
        list[i] = {time, n};
        (*n_list)++;
    }
}

/* Spans of time until all tiles of the sequence are done, when its keys are cut in @n_parts: blocks are handed out
 * longest first, each to the slot that is free first. */
static double estimate(const cut_input *in, uint32_t n_parts)
{
    const uint32_t n_tiles = (in->n_rows + in->tile_tokens - 1) / in->tile_tokens;
    const uint32_t n_spans = n_spans_of(in->start + in->n_rows);
    timed blocks[TIMES_MAX], slots[TIMES_MAX];
    uint32_t n_blocks = 0, n_slots = 0;
    for (uint32_t t = 0; t < n_tiles; t++) {
        const uint32_t n_keys = tile_keys(in, t);
        const double share = is_small(in->n_rows - t * in->tile_tokens, in->tile_tokens) ? 0.5 : 1.0;
        for (uint32_t p = 0; p < n_parts && part_begin(n_spans, n_parts, p) < n_keys; p++) {
            const uint32_t end = std::min(part_begin(n_spans, n_parts, p + 1), n_keys);
            const uint32_t n = n_spans_of(end - part_begin(n_spans, n_parts, p));
            add_timed(blocks, &n_blocks, n * share + BLOCK_COST, in->n_kv_heads);
        }
    }
    add_timed(slots, &n_slots, 0, in->n_slots);
    while (n_blocks > 0) {
        timed *block = &blocks[n_blocks - 1];
        const double time = slots[0].time + block->time;
        const uint32_t n = std::min(block->n, slots[0].n);
        block->n -= n;
        slots[0].n -= n;
        if (block->n == 0)
            n_blocks--;
        if (slots[0].n == 0)
            memmove(slots, slots + 1, --n_slots * sizeof(*slots));
        add_timed(slots, &n_slots, time, n);
    }
    double time = slots[n_slots - 1].time;
    if (n_parts > 1)
        time += MERGE_COST + PART_COST * in->n_rows * n_parts * in->n_heads * in->head_dim;
    return time;
}

/* Into how many parts the keys of a sequence are cut. Looks at this sequence alone. */
static uint32_t cut_sequence(const cut_input *in, uint32_t part_rows_max)
{
    const uint32_t n_tiles = (in->n_rows + in->tile_tokens - 1) / in->tile_tokens;
    const uint32_t n_blocks = n_tiles * in->n_kv_heads;
    const uint32_t most =
        std::min({n_spans_of(in->start + in->n_rows), QKC_PARTS_MAX, part_rows_max / in->n_rows});
    if (n_blocks >= 2 * in->n_slots)
        return 1;
    uint32_t best = 1;
    double best_time = estimate(in, 1);
    for (uint32_t n = 2; n <= most && (n - 1) * n_blocks < 3 * in->n_slots; n++) {
        const double time = estimate(in, n);
        if (time < best_time) {
            best_time = time;
            best = n;
        }
    }
    return best;
}

uint32_t qkc_tiles_max(uint32_t rows_max, uint32_t seqs_max, uint32_t n_heads, uint32_t n_kv_heads)
{
    const uint32_t tokens =
        std::min(tile_tokens(n_heads, n_kv_heads, 128, false), tile_tokens(n_heads, n_kv_heads, 128, true));
    const uint32_t n_whole = rows_max / tokens + std::min(rows_max, seqs_max); /* without parts */
    return n_whole * QKC_PARTS_MAX;
}

uint32_t qkc_part_rows_max(uint32_t rows_max)
{
    return std::max(rows_max, 1024u);
}

/* The tiles of one sequence, and their merges; returns the rows of parts used, the first of which is @part_slot. */
static uint32_t list_tiles(const cut_input *in, const qk_seq *seq, uint32_t index, uint32_t n_parts,
    uint32_t part_slot, qkc_tile *tiles, qkc_tile *merges, qkc_tiling *out)
{
    const uint32_t n_spans = n_spans_of(in->start + in->n_rows);
    uint32_t n_part_rows = 0;
    for (uint32_t first = 0, t = 0; first < in->n_rows; first += in->tile_tokens, t++) {
        const uint32_t n_keys = tile_keys(in, t);
        qkc_tile tile = {};
        tile.seq = index;
        tile.row = seq->row_begin + first;
        tile.n_rows = std::min(in->tile_tokens, in->n_rows - first);
        tile.n_parts = parts_of(n_spans, n_parts, n_keys);
        tile.part_slot = part_slot + n_part_rows;
        tile.key_end = n_keys;
        if (tile.n_parts > 1)
            merges[out->n_merges++] = tile;
        for (uint32_t p = 0; p < tile.n_parts; p++) {
            tile.part = p;
            tile.key_begin = part_begin(n_spans, n_parts, p);
            tile.key_end = std::min(part_begin(n_spans, n_parts, p + 1), n_keys);
            tiles[out->n_tiles++] = tile;
            tile.part_slot += tile.n_rows;
        }
        if (tile.n_parts > 1)
            n_part_rows += tile.n_rows * tile.n_parts;
    }
    return n_part_rows;
}

static void end_round(uint32_t tile_tokens, qkc_tile *tiles, qkc_tiling *out)
{
    qkc_round *round = &out->rounds[out->n_rounds];
    round->n_tiles = out->n_tiles - round->tile;
    round->n_merges = out->n_merges - round->merge;
    if (round->n_tiles == 0)
        return;
    const auto duration = [=](const qkc_tile &t) {
        return (uint64_t)(t.key_end - t.key_begin) * (is_small(t.n_rows, tile_tokens) ? 1 : 2);
    };
    std::sort(tiles + round->tile, tiles + out->n_tiles, [=](const qkc_tile &a, const qkc_tile &b) {
        const uint64_t n = duration(a), m = duration(b);
        return n != m ? n > m : a.row != b.row ? a.row < b.row : a.part < b.part;
    });
    out->n_rounds++;
}

static cut_input cutting_for(uint32_t n_heads, uint32_t n_kv_heads, uint32_t head_dim, bool hopper, int n_sms)
{
    cut_input in = {};
    in.tile_tokens = tile_tokens(n_heads, n_kv_heads, head_dim, hopper);
    in.n_heads = n_heads;
    in.n_kv_heads = n_kv_heads;
    in.head_dim = head_dim;
    in.n_slots = (uint32_t)std::max(n_sms, 1) * (takes_hopper(hopper, n_heads, n_kv_heads, head_dim) ? 1 : 2);
    return in;
}

void qkc_cut_other_tiles(const qk_plan *plan, const bool *leave_out, uint32_t n_heads, uint32_t n_kv_heads,
    uint32_t head_dim, bool hopper, int n_sms, uint32_t part_rows_max, qkc_tile *tiles, qkc_tile *merges,
    qkc_tiling *out)
{
    cut_input in = cutting_for(n_heads, n_kv_heads, head_dim, hopper, n_sms);
    out->n_tiles = out->n_merges = out->n_part_rows = out->n_rounds = 0;
    out->rounds[0] = {};
    uint32_t n_used = 0; /* part rows of this round */
    for (uint32_t i = 0; i < plan->n_seqs; i++) {
        const qk_seq *seq = &plan->seqs[i];
        in.start = seq->start;
        in.n_rows = seq->n_rows;
        if (in.n_rows == 0 || (leave_out != NULL && leave_out[i]))
            continue;
        uint32_t n_parts = cut_sequence(&in, part_rows_max);
        if (n_parts > 1 && n_parts * in.n_rows > part_rows_max - n_used) {
            if (out->n_rounds + 1 < QKC_ROUNDS_MAX) {
                end_round(in.tile_tokens, tiles, out);
                out->rounds[out->n_rounds] = {out->n_tiles, 0, out->n_merges, 0};
                n_used = 0;
            } else {
                n_parts = 1;
            }
        }
        n_used += list_tiles(&in, seq, i, n_parts, n_used, tiles, merges, out);
        out->n_part_rows = std::max(out->n_part_rows, n_used);
    }
    end_round(in.tile_tokens, tiles, out);
}

void qkc_cut_tiles(const qk_plan *plan, uint32_t n_heads, uint32_t n_kv_heads, uint32_t head_dim, bool hopper,
    int n_sms, uint32_t part_rows_max, qkc_tile *tiles, qkc_tile *merges, qkc_tiling *out)
{
    qkc_cut_other_tiles(
        plan, NULL, n_heads, n_kv_heads, head_dim, hopper, n_sms, part_rows_max, tiles, merges, out);
}

uint32_t qkc_cut_sequence_tiles(const qk_plan *plan, uint32_t seq, uint32_t n_heads, uint32_t n_kv_heads,
    uint32_t head_dim, bool hopper, int n_sms, uint32_t part_rows_max, qkc_tile *tiles, qkc_tile *merges,
    qkc_round *first)
{
    cut_input in = cutting_for(n_heads, n_kv_heads, head_dim, hopper, n_sms);
    in.start = plan->seqs[seq].start;
    in.n_rows = plan->seqs[seq].n_rows;
    qkc_tiling t;
    t.n_tiles = t.n_merges = t.n_part_rows = t.n_rounds = 0;
    t.rounds[0] = {};
    const uint32_t n_parts = cut_sequence(&in, part_rows_max);
    list_tiles(&in, &plan->seqs[seq], seq, n_parts, 0, tiles + first->tile, merges + first->merge, &t);
    end_round(in.tile_tokens, tiles + first->tile, &t);
    first->n_tiles = t.n_tiles;
    first->n_merges = t.n_merges;
    return n_parts;
}

uint32_t qkc_range_cut(uint32_t n_keys, uint32_t n_parts, uint32_t key_begin, uint32_t key_end)
{
    const uint32_t n_spans = n_spans_of(n_keys);
    uint32_t begin = 0; /* of the part that has the range's last key */
    if (key_end >= n_keys)
        return key_begin;
    for (uint32_t p = 1; p < n_parts; p++) {
        const uint32_t at = part_begin(n_spans, n_parts, p);
        if (at == key_begin || at == key_end)
            return key_begin;
        if (at < key_end)
            begin = at;
    }
    return std::max(begin, key_begin);
}
