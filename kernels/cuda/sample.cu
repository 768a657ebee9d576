/* sample.cu: logits to token: what kernels/cpu/sample.c computes, by many blocks an output, in one launch.
 *
 * Every candidate has a 64-bit *rank key*: the order-preserving integer of its logit after penalties and bias, then its
 * id turned
 * round. A larger key comes earlier in the descending order, ties go to the lowest id, no two are equal. top_k and top_p
 * are each "everything from this key up", and so is one after the other. To find such a key:
 *
 *   scan     every block looks at its part of the row: NaN, maxima, sum of exponentials of the raw logits
 *   rounds   a band of keys that holds the cut is split into BINS; every block sums its candidates by bin; with all
 *            blocks' sums the bin with the cut is the next band. A round also lists its band's candidates
 *   cut      when a band had at most LIST_MAX of them, they are ordered and added up one by one
 *   draw     every warp sums what is kept of its part; the block that comes last finds the part, then the id
 *
 * Between them the blocks of an output wait for each other, except before the last step and in greedy rows, which
 * need the scan alone: there only the last block goes on.
 *
 * Invariants
 *  1. Waiting cannot hang: the grid has at most as many blocks as there are multiprocessors, and each fits beside
 *     nothing. All blocks of an output take the same decisions, from the same numbers.
 *  2. No floating-point atomics: a thread adds its candidates in ascending order, threads, warps and blocks are
 *     added in the order of their numbers or by a fixed tree. Lists are in no order; they are ranked by comparing keys.
 *  3. A weight is bit for bit the CPU's: the same float32 operations, none contracted. Sums of weights are float64 in
 *     another order than the CPU's, so a draw can differ where its target lies within rounding of a boundary.
 *  4. A band is measured again by other bins, in another order of sums. Where its mass then falls short of the target
 *     that it reached before, the lowest bin with any mass, or the last candidate listed, takes the cut.
 *  5. What blocks tell each other lies in two sets of pieces, used in turn: one that a slow block still reads is not
 *     the one that a fast block writes. Pieces are read past the L1 cache.
 *  6. Slots and history change when plan.state is QK_OK, by one thread an output, after all its blocks are through.
 *  7. Counters are 0 at the end of the launch, as they were before it.
 *
 * Where an output has many blocks it has no other output to do; with one block nobody else is waited for. Only there do
 * blocks loop over outputs.
 *
 * Bytes, for a vocabulary of 151,936: 608 KB of logits, in L2 from the product before. Each pass takes about a
 * microsecond on 75 multiprocessors, what follows it (reduction, meeting, merging) about two: greedy 3 to 4 us, each of
 * the usual 1 to 3 rounds 3 us, cut 2 us, draw 4 us. */
#include "kernels/cuda/cuda-ops.h"
#include <float.h>
extern "C" {
#include "kernels/cpu/sample.h"
}

#define THREADS         512u
#define WARPS           (THREADS / QKC_WARP)
#define BINS            16u   /* a warp each when they are added up */
#define LIST_MAX        256u  /* candidates that are ordered one by one: two threads each */
#define BLOCK_ELEMENTS  2048u /* a part of the row is at least so long: 4 elements a thread */
#define ROW_BLOCKS_MAX  128u
#define BLOCKS_MAX      256u
#define RANGES_A_THREAD (ROW_BLOCKS_MAX * WARPS / THREADS)
#define GREEDY_BELOW    1e-5f
#define EXP_UNDERFLOW   (-87.0f)
#define FIRST_BIN_WIDTH 0.75 /* of top_p's first round, in units of the temperature: e^-0.75 a bin */
#define VALUE_ROUNDS    4u   /* so many rounds split by the logit; the others by the key, which ends surely */
#define NONE            UINT32_MAX
#define ALL_LANES       0xffffffffu

static_assert(
    BINS == WARPS && LIST_MAX * 2 == THREADS && LIST_MAX == 8 * QKC_WARP, "work is dealt out by these");
static_assert(ROW_BLOCKS_MAX % QKC_WARP == 0 && ROW_BLOCKS_MAX * WARPS % THREADS == 0, "and these");

/* What is known of a part of the row, or of all of it. */
typedef struct {
    uint64_t best_raw,
        best; /* largest rank keys: of the finite raw logits, of the candidates' after penalties and bias; 0: none */
    double sum;         /* of e^(raw - max) */
    float max;          /* of the finite raw logits; -FLT_MAX: none */
    uint32_t min_order; /* smallest order key of those */
    uint32_t bad;       /* NaN or Inf among the raw logits */
} scan_stats;

/* One block's share of what all blocks of an output have to know. */
typedef struct {
    scan_stats stats;
    double mass[BINS];
    double warp_mass[WARPS];
    uint64_t list[LIST_MAX];
    uint32_t n_listed; /* may exceed LIST_MAX: then the list is not whole */
} piece;

typedef struct {
    uint32_t n;
    uint32_t alone[31]; /* a line of its own */
} counter;

typedef struct {
    counter n_done;              /* outputs */
    counter arrived[BLOCKS_MAX]; /* of an output's blocks, over all its meetings */
    piece pieces[2][BLOCKS_MAX];
} workspace;

typedef struct {
    double bin[BINS][THREADS]; /* each thread has its column */
    double mass[BINS], warp_sum[WARPS];
    scan_stats warp_stats[WARPS], stats;
    uint64_t edge[BINS + 1], cut;
    uint64_t list[LIST_MAX], sorted[LIST_MAX];
    double before;
    uint32_t place[LIST_MAX], offset[ROW_BLOCKS_MAX + 1];
    uint32_t n_listed, found, last, token;
    bool is_last;
} shared;

/* One output and this block's place in it. The same in all threads. */
typedef struct {
    const float *logits;     /* [vocab] */
    const uint16_t *history; /* [vocab], or NULL where nothing is penalised */
    const qk_bias *bias;     /* [n_bias], ascending ids */
    const uint32_t *mask;    /* or NULL: ids without their bit are no candidates */
    const qk_output *output;
    uint32_t n_bias;
    bool adjusts; /* any of the three */
    qk_sampling sampling;
    uint32_t vocab, id_bits;
    uint32_t rank, n_blocks;      /* this block among the output's */
    uint32_t block_len, warp_len; /* elements of a block's and of a warp's part: multiples of 4 */
    uint32_t begin, end;          /* this block's part */
    uint32_t n_meetings;          /* so far */
    bool whole_quads;             /* four logits may be read at once */
    uint32_t *arrived;
    piece *pieces;      /* [2][BLOCKS_MAX], from this output's first block on */
    float max, inverse; /* of the candidates; 1 / temperature */
    uint64_t keep;      /* rank keys below it are cut */
} work;

/* ---- Numbers as the CPU has them ----------------------------------------------------------------------------- */

static __device__ __forceinline__ float times_plus(float a, float b, float c)
{
    return __fadd_rn(__fmul_rn(a, b), c);
}

static __device__ __forceinline__ float exp_below_zero(float x)
{
    const float clamped = x < EXP_UNDERFLOW ? EXP_UNDERFLOW : x;
    const int32_t n = __float2int_rz(times_plus(clamped, 1.44269504f, -0.5f));
    const float n_real = __int2float_rn(n);
    float r = __fsub_rn(clamped, __fmul_rn(n_real, 0.693145752f));
    r = __fsub_rn(r, __fmul_rn(n_real, 1.42860677e-6f));
    float p = times_plus(1.0f / 5040, r, 1.0f / 720);
    p = times_plus(p, r, 1.0f / 120);
    p = times_plus(p, r, 1.0f / 24);
    p = times_plus(p, r, 1.0f / 6);
    p = times_plus(p, r, 0.5f);
    p = times_plus(p, r, 1.0f);
    p = times_plus(p, r, 1.0f);
    const float power = __uint_as_float((uint32_t)(n + 127) << 23);
    return x < EXP_UNDERFLOW ? 0.0f : __fmul_rn(p, power);
}

static __device__ __forceinline__ float clamp_finite(float x)
{
    return x > FLT_MAX ? FLT_MAX : x < -FLT_MAX ? -FLT_MAX : x;
}

static __device__ __forceinline__ float penalise(float x, uint32_t seen, const qk_sampling &s)
{
    if (seen & QK_SEEN)
        x = clamp_finite(x > 0 ? __fdiv_rn(x, s.repetition_penalty) : __fmul_rn(x, s.repetition_penalty));
    if (seen & QK_SEEN_COUNT) {
        const float count = __uint2float_rn(seen & QK_SEEN_COUNT);
        x = clamp_finite(__fsub_rn(x, __fmul_rn(s.frequency_penalty, count)));
        x = clamp_finite(__fsub_rn(x, s.presence_penalty));
    }
    return x;
}

/* An id that is masked out has minus infinity: it is below every band and weighs nothing. */
static __device__ __forceinline__ bool is_candidate(float z)
{
    return z >= -FLT_MAX;
}

/* Larger floats give larger keys; -0 counts as 0. */
static __device__ __forceinline__ uint32_t order_key(float z)
{
    const uint32_t bits = __float_as_uint(__fadd_rn(z, 0.0f));
    return bits & 0x80000000u ? ~bits : bits | 0x80000000u;
}

static __device__ __forceinline__ float float_of_key(uint32_t key)
{
    return __uint_as_float(key & 0x80000000u ? key & 0x7fffffffu : ~key);
}

static __device__ __forceinline__ uint32_t id_mask(const work &w)
{
    return (uint32_t)((1ull << w.id_bits) - 1);
}

static __device__ __forceinline__ uint64_t rank_key(const work &w, float z, uint32_t id)
{
    return (uint64_t)order_key(z) << w.id_bits | (id_mask(w) - id);
}

static __device__ __forceinline__ uint32_t id_of(const work &w, uint64_t key)
{
    return id_mask(w) - ((uint32_t)key & id_mask(w));
}

static __device__ __forceinline__ float logit_of(const work &w, uint64_t key)
{
    return float_of_key((uint32_t)(key >> w.id_bits));
}

/* The least rank key of that logit: no id has a smaller one. */
static __device__ __forceinline__ uint64_t floor_key(const work &w, double z)
{
    return (uint64_t)order_key(__double2float_rn(z)) << w.id_bits;
}

static __device__ __forceinline__ float weight_of(const work &w, float z)
{
    return exp_below_zero(__fmul_rn(__fsub_rn(z, w.max), w.inverse));
}

/* Philox4x32-10, as kernels/cpu/philox.h has it: uniform in [0, 1), of (seed, position) alone. */
static __device__ double philox_uniform(uint64_t seed, uint64_t position)
{
    uint32_t k0 = (uint32_t)seed, k1 = (uint32_t)(seed >> 32);
    uint32_t c0 = (uint32_t)position, c1 = (uint32_t)(position >> 32), c2 = 0, c3 = 0;
    for (int round = 0; round < 10; round++) {
        const uint64_t p0 = (uint64_t)0xD2511F53u * c0, p1 = (uint64_t)0xCD9E8D57u * c2;
        c0 = (uint32_t)(p1 >> 32) ^ c1 ^ k0;
        c1 = (uint32_t)p1;
        c2 = (uint32_t)(p0 >> 32) ^ c3 ^ k1;
        c3 = (uint32_t)p0;
        k0 += 0x9E3779B9u;
        k1 += 0xBB67AE85u;
    }
    const uint64_t bits = (uint64_t)c0 << 32 | c1;
    return (double)(bits >> 11) * 0x1p-53;
}

/* ---- Reading the row ----------------------------------------------------------------------------------------- */

typedef struct {
    float raw[4], z[4]; /* z: after penalties, bias and mask; not set when the output has none of them */
} quad;

/* The place in the bias list of the first id that is not below @id. */
static __device__ __forceinline__ uint32_t find_bias(const work &w, uint32_t id)
{
    uint32_t low = 0, high = w.n_bias;
    while (low < high) {
        const uint32_t middle = (low + high) / 2;
        if (w.bias[middle].id < id)
            low = middle + 1;
        else
            high = middle;
    }
    return low;
}

/* Elements [i, i + 4) after penalties, bias and mask; i is a multiple of 4. Past the vocabulary they mean nothing. */
static __device__ __forceinline__ void adjust_quad(const work &w, uint32_t i, quad *q)
{
#pragma unroll
    for (uint32_t j = 0; j < 4; j++)
        q->z[j] = q->raw[j];
    if (w.history != NULL) {
        uint32_t seen[4] = {0, 0, 0, 0};
        if (w.whole_quads) {
            const uint2 v = *(const uint2 *)(w.history + i);
            seen[0] = v.x & 0xffff, seen[1] = v.x >> 16, seen[2] = v.y & 0xffff, seen[3] = v.y >> 16;
        } else {
#pragma unroll
            for (uint32_t j = 0; j < 4; j++)
                if (i + j < w.vocab)
                    seen[j] = w.history[i + j];
        }
#pragma unroll
        for (uint32_t j = 0; j < 4; j++)
            q->z[j] = penalise(q->z[j], seen[j], w.sampling);
    }
    if (w.n_bias > 0) {
        for (uint32_t k = find_bias(w, i); k < w.n_bias && w.bias[k].id < i + 4; k++) {
            const qk_bias bias = w.bias[k];
#pragma unroll
            for (uint32_t j = 0; j < 4; j++)
                if (bias.id == i + j)
                    q->z[j] = clamp_finite(__fadd_rn(q->z[j], bias.value));
        }
    }
    if (w.mask != NULL) {
        const uint32_t allowed = w.mask[i / 32] >> i % 32;
#pragma unroll
        for (uint32_t j = 0; j < 4; j++)
            if ((allowed >> j & 1) == 0)
                q->z[j] = __int_as_float(0xff800000);
    }
}

static __device__ __forceinline__ quad load_quad(const work &w, uint32_t i)
{
    quad q = {};
    if (w.whole_quads) {
        const float4 v = *(const float4 *)(w.logits + i);
        q.raw[0] = v.x, q.raw[1] = v.y, q.raw[2] = v.z, q.raw[3] = v.w;
    } else {
#pragma unroll
        for (uint32_t j = 0; j < 4; j++)
            if (i + j < w.vocab)
                q.raw[j] = w.logits[i + j];
    }
    if (w.adjusts)
        adjust_quad(w, i, &q);
    return q;
}

static __device__ __forceinline__ float adjusted(const work &w, const quad &q, uint32_t j)
{
    return w.adjusts ? q.z[j] : q.raw[j];
}

/* Calls @f(i, n, quad) for the elements [begin, end), four at a time (n: how many of them count), by threads @at of
 * @n_threads. @begin is a multiple of 4. Two quads are on the way at a time. */
template <typename F>
static __device__ __forceinline__ void for_quads(
    const work &w, uint32_t begin, uint32_t end, uint32_t at, uint32_t n_threads, F f)
{
    const uint32_t step = 4 * n_threads;
    for (uint32_t i = begin + 4 * at; i < end; i += 2 * step) {
        const uint32_t next = i + step;
        const quad a = load_quad(w, i);
        quad b = a;
        if (next < end)
            b = load_quad(w, next);
        f(i, min(4u, end - i), a);
        if (next < end)
            f(next, min(4u, end - next), b);
    }
}

static __device__ __forceinline__ float load_one(const work &w, uint32_t id)
{
    float z = w.logits[id];
    if (w.history != NULL)
        z = penalise(z, w.history[id], w.sampling);
    if (w.n_bias > 0) {
        const uint32_t k = find_bias(w, id);
        if (k < w.n_bias && w.bias[k].id == id)
            z = clamp_finite(__fadd_rn(z, w.bias[k].value));
    }
    const bool out = w.mask != NULL && (w.mask[id / 32] >> id % 32 & 1) == 0;
    return out ? __int_as_float(0xff800000) : z;
}

/* The candidate's weight, or 0 when it was cut. */
static __device__ __forceinline__ float kept_weight(const work &w, float z, uint32_t id)
{
    const float weight = weight_of(w, z);
    return rank_key(w, z, id) >= w.keep && weight >= w.sampling.min_p ? weight : 0.0f;
}

/* ---- Sums and meetings --------------------------------------------------------------------------------------- */

static __device__ __forceinline__ double warp_sum(double v)
{
#pragma unroll
    for (int delta = 16; delta > 0; delta /= 2)
        v += __shfl_xor_sync(ALL_LANES, v, delta);
    return v;
}

/* The sum over the threads before this one; @total: over all. */
static __device__ double block_scan(shared &sh, double v, double *total)
{
    const uint32_t lane = threadIdx.x % QKC_WARP, warp = threadIdx.x / QKC_WARP;
    double upto = v;
#pragma unroll
    for (uint32_t delta = 1; delta < QKC_WARP; delta *= 2) {
        const double other = __shfl_up_sync(ALL_LANES, upto, delta);
        if (lane >= delta)
            upto += other;
    }
    double before = __shfl_up_sync(ALL_LANES, upto, 1);
    if (lane == 0)
        before = 0;
    __syncthreads(); /* the scan before this one has been read */
    if (lane == QKC_WARP - 1)
        sh.warp_sum[warp] = upto;
    __syncthreads();
    double base = 0, all = 0;
#pragma unroll
    for (uint32_t i = 0; i < WARPS; i++) {
        if (i == warp)
            base = all;
        all += sh.warp_sum[i];
    }
    *total = all;
    return base + before;
}

/* This block's piece for the meeting that comes next. */
static __device__ __forceinline__ piece *own_piece(const work &w)
{
    return w.pieces + (w.n_meetings % 2) * BLOCKS_MAX + w.rank;
}

/* The piece of the output's block @j for the meeting that was. */
static __device__ __forceinline__ const piece *met_piece(const work &w, uint32_t j)
{
    return w.pieces + ((w.n_meetings - 1) % 2) * BLOCKS_MAX + j;
}

/* Waits until all blocks of the output have come here. Their pieces can then be read. */
static __device__ void meet(work &w)
{
    __syncthreads();
    w.n_meetings++;
    if (threadIdx.x == 0) {
        const uint32_t all = w.n_meetings * w.n_blocks;
        uint32_t n;
        __threadfence();
        n = atomicAdd(w.arrived, 1) + 1;
        while (n < all)
            asm volatile("ld.acquire.gpu.global.u32 %0, [%1];" : "=r"(n) : "l"(w.arrived) : "memory");
        __threadfence();
    }
    __syncthreads();
}

/* The same without waiting: true in the block that comes last, which has everybody's pieces. */
static __device__ bool come_last(work &w, shared &sh)
{
    __syncthreads();
    w.n_meetings++;
    if (threadIdx.x == 0) {
        __threadfence();
        sh.is_last = atomicAdd(w.arrived, 1) + 1 == w.n_meetings * w.n_blocks;
        __threadfence();
    }
    __syncthreads();
    return sh.is_last;
}

/* ---- Scan ---------------------------------------------------------------------------------------------------- */

static __device__ __forceinline__ scan_stats no_stats(void)
{
    return {0, 0, 0, -FLT_MAX, UINT32_MAX, 0};
}

static __device__ __forceinline__ scan_stats merge_stats(const scan_stats &a, const scan_stats &b)
{
    scan_stats m;
    m.best_raw = max(a.best_raw, b.best_raw);
    m.best = max(a.best, b.best);
    m.max = fmaxf(a.max, b.max);
    m.sum = a.sum * (double)expf(a.max - m.max) + b.sum * (double)expf(b.max - m.max);
    m.min_order = min(a.min_order, b.min_order);
    m.bad = a.bad | b.bad;
    return m;
}

/* The same in all lanes. */
static __device__ __forceinline__ scan_stats warp_stats(scan_stats s)
{
    const float own_max = s.max;
#pragma unroll
    for (int delta = 16; delta > 0; delta /= 2) {
        s.best_raw = max(s.best_raw, __shfl_xor_sync(ALL_LANES, s.best_raw, delta));
        s.best = max(s.best, __shfl_xor_sync(ALL_LANES, s.best, delta));
        s.max = fmaxf(s.max, __shfl_xor_sync(ALL_LANES, s.max, delta));
        s.min_order = min(s.min_order, __shfl_xor_sync(ALL_LANES, s.min_order, delta));
        s.bad |= __shfl_xor_sync(ALL_LANES, s.bad, delta);
    }
    s.sum = warp_sum(s.sum * (double)expf(own_max - s.max));
    return s;
}

/* Looks at this block's part and leaves what it found in its piece. */
static __device__ void scan_part(const work &w, shared &sh)
{
    scan_stats s = no_stats();
    float sum = 0;
    for_quads(w, w.begin, w.end, threadIdx.x, THREADS, [&](uint32_t i, uint32_t n, const quad &q) {
        float most = s.max;
#pragma unroll
        for (uint32_t j = 0; j < 4; j++) {
            const bool finite = fabsf(q.raw[j]) <= FLT_MAX;
            if (j < n && finite)
                most = fmaxf(most, q.raw[j]);
            s.bad |= j < n && !finite;
        }
        if (most > s.max) {
            sum *= __expf(s.max - most);
            s.max = most;
        }
#pragma unroll
        for (uint32_t j = 0; j < 4; j++) {
            if (j >= n || !(fabsf(q.raw[j]) <= FLT_MAX))
                continue;
            const float z = adjusted(w, q, j);
            sum += __expf(q.raw[j] - s.max);
            s.best_raw = max(s.best_raw, rank_key(w, q.raw[j], i + j));
            if (is_candidate(z)) {
                s.best = max(s.best, rank_key(w, z, i + j));
                s.min_order = min(s.min_order, order_key(z));
            }
        }
    });
    s.sum = (double)sum;

    const uint32_t lane = threadIdx.x % QKC_WARP, warp = threadIdx.x / QKC_WARP;
    s = warp_stats(s);
    if (lane == 0)
        sh.warp_stats[warp] = s;
    __syncthreads();
    if (warp == 0) {
        s = warp_stats(lane < WARPS ? sh.warp_stats[lane] : no_stats());
        if (lane == 0)
            own_piece(w)->stats = s;
    }
}

/* All blocks' statistics, into shared memory, and what follows from them into @w. */
static __device__ void merge_scan(work &w, shared &sh)
{
    if (threadIdx.x < QKC_WARP) {
        scan_stats s = no_stats();
        for (uint32_t j = threadIdx.x; j < w.n_blocks; j += QKC_WARP) {
            const scan_stats *from = &met_piece(w, j)->stats;
            scan_stats other;
            other.best_raw = __ldcg((const unsigned long long *)&from->best_raw);
            other.best = __ldcg((const unsigned long long *)&from->best);
            other.sum = __ldcg(&from->sum);
            other.max = __ldcg(&from->max);
            other.min_order = __ldcg(&from->min_order);
            other.bad = __ldcg(&from->bad);
            s = merge_stats(s, other);
        }
        s = warp_stats(s);
        if (threadIdx.x == 0)
            sh.stats = s;
    }
    __syncthreads();
    w.max = logit_of(w, sh.stats.best);
}

/* ---- The cut ------------------------------------------------------------------------------------------------- */

/* What is looked for: the key of the candidate with which the sum of masses from the largest key down reaches
 * @target. A mass is a weight, or 1. The cut lies in [lo, hi]; @above is the mass of the keys above hi. */
typedef struct {
    uint64_t lo, hi;
    double above, target;
    bool by_count;
} band;

/* Bin b of a round holds the keys [edge[b + 1], edge[b]). */
static __device__ void set_edges(const work &w, shared &sh, const band &b, uint32_t round)
{
    const uint32_t j = threadIdx.x;
    if (j > BINS)
        return;
    uint64_t edge;
    if (j == 0) {
        edge = b.hi + 1;
    } else if (j == BINS) {
        edge = b.lo;
    } else if (round == 0 && !b.by_count) {
        edge = floor_key(w, (double)w.max - FIRST_BIN_WIDTH * j * (double)w.sampling.temperature);
    } else if (round < VALUE_ROUNDS && b.hi >> w.id_bits != b.lo >> w.id_bits) {
        const double high = logit_of(w, b.hi), low = logit_of(w, b.lo);
        edge = floor_key(w, high - (high - low) * ((double)j / BINS));
    } else {
        edge = b.hi + 1 - (b.hi - b.lo) / BINS * j;
    }
    sh.edge[j] = max(b.lo, min(b.hi + 1, edge));
}

/* Sums this block's candidates of the band by bin, and lists them when @listing, into its piece. */
static __device__ void measure_part(const work &w, shared &sh, const band &b, bool listing)
{
    piece *own = own_piece(w);
    const uint32_t lane = threadIdx.x % QKC_WARP, warp = threadIdx.x / QKC_WARP;
    for (uint32_t i = 0; i < BINS; i++)
        sh.bin[i][threadIdx.x] = 0;
    if (threadIdx.x == 0)
        sh.n_listed = 0;
    __syncthreads();
    for_quads(w, w.begin, w.end, threadIdx.x, THREADS, [&](uint32_t i, uint32_t n, const quad &q) {
#pragma unroll
        for (uint32_t j = 0; j < 4; j++) {
            const float z = adjusted(w, q, j);
            const uint64_t key = rank_key(w, z, i + j);
            if (j >= n || key < b.lo || key > b.hi)
                continue;
            uint32_t at = key < sh.edge[8] ? 8 : 0;
            at += key < sh.edge[at + 4] ? 4 : 0;
            at += key < sh.edge[at + 2] ? 2 : 0;
            at += key < sh.edge[at + 1] ? 1 : 0;
            sh.bin[at][threadIdx.x] += b.by_count ? 1.0 : (double)weight_of(w, z);
            if (listing) {
                const uint32_t place = atomicAdd(&sh.n_listed, 1);
                if (place < LIST_MAX)
                    own->list[place] = key;
            }
        }
    });
    __syncthreads();
    double sum = 0;
    for (uint32_t i = lane; i < THREADS; i += QKC_WARP)
        sum += sh.bin[warp][i];
    sum = warp_sum(sum);
    if (lane == 0)
        own->mass[warp] = sum;
    if (threadIdx.x == 0)
        own->n_listed = sh.n_listed;
}

/* All blocks' bins into shared memory; returns how many candidates all blocks listed. */
static __device__ uint32_t merge_bins(const work &w, shared &sh)
{
    const uint32_t lane = threadIdx.x % QKC_WARP, warp = threadIdx.x / QKC_WARP;
    double sum = 0;
    uint32_t n = 0;
    for (uint32_t j = lane; j < w.n_blocks; j += QKC_WARP) {
        sum += __ldcg(&met_piece(w, j)->mass[warp]);
        n += __ldcg(&met_piece(w, j)->n_listed);
    }
    sum = warp_sum(sum);
    n = __reduce_add_sync(ALL_LANES, n);
    if (lane == 0)
        sh.mass[warp] = sum;
    __syncthreads();
    return n;
}

/* Copies the @n listed candidates of all blocks into shared memory, in no order. */
static __device__ void gather_lists(const work &w, shared &sh, uint32_t n)
{
    const uint32_t t = threadIdx.x;
    if (t < QKC_WARP) { /* offsets, a few blocks a lane */
        constexpr uint32_t EACH = ROW_BLOCKS_MAX / QKC_WARP;
        uint32_t count[EACH], sum = 0;
#pragma unroll
        for (uint32_t i = 0; i < EACH; i++) {
            const uint32_t j = t * EACH + i;
            count[i] = j < w.n_blocks ? __ldcg(&met_piece(w, j)->n_listed) : 0;
            sum += count[i];
        }
        uint32_t upto = sum;
#pragma unroll
        for (uint32_t delta = 1; delta < QKC_WARP; delta *= 2) {
            const uint32_t other = __shfl_up_sync(ALL_LANES, upto, delta);
            if (t >= delta)
                upto += other;
        }
        uint32_t at = upto - sum;
#pragma unroll
        for (uint32_t i = 0; i < EACH; i++) {
            sh.offset[t * EACH + i] = at;
            at += count[i];
        }
        if (t == QKC_WARP - 1)
            sh.offset[ROW_BLOCKS_MAX] = at;
    }
    __syncthreads();
    if (t < n) {
        uint32_t low = 0, high = ROW_BLOCKS_MAX; /* offset[low] <= t < offset[high] */
        while (high - low > 1) {
            const uint32_t middle = (low + high) / 2;
            if (sh.offset[middle] <= t)
                low = middle;
            else
                high = middle;
        }
        sh.list[t] = __ldcg((const unsigned long long *)&met_piece(w, low)->list[t - sh.offset[low]]);
    }
    if (t < LIST_MAX)
        sh.place[t] = 0;
    __syncthreads();
}

/* Orders the band's @n candidates and walks them down to the target. Returns the key of the one that reaches it, or of
 * the last one. */
static __device__ uint64_t cut_in_list(const work &w, shared &sh, const band &b, uint32_t n)
{
    const uint32_t t = threadIdx.x, mine = t % LIST_MAX;
    gather_lists(w, sh, n);
    if (mine < n) { /* two threads count how many are larger, in one half of the list each */
        const uint64_t key = sh.list[mine];
        const uint32_t first = t / LIST_MAX * (LIST_MAX / 2), end = min(n, first + LIST_MAX / 2);
        uint32_t n_larger = 0;
        for (uint32_t i = first; i < end; i++)
            n_larger += sh.list[i] > key;
        atomicAdd(&sh.place[mine], n_larger);
    }
    __syncthreads();
    if (t < n)
        sh.sorted[sh.place[t]] = sh.list[t];
    __syncthreads();
    if (t < QKC_WARP) {
        double mass[8], sum = 0;
#pragma unroll
        for (uint32_t i = 0; i < 8; i++) {
            const uint32_t at = 8 * t + i;
            mass[i] = at >= n ? 0 : b.by_count ? 1 : (double)weight_of(w, logit_of(w, sh.sorted[at]));
            sum += mass[i];
        }
        double upto = sum;
#pragma unroll
        for (uint32_t delta = 1; delta < QKC_WARP; delta *= 2) {
            const double other = __shfl_up_sync(ALL_LANES, upto, delta);
            if (t >= delta)
                upto += other;
        }
        double before = __shfl_up_sync(ALL_LANES, upto, 1);
        double reached = b.above + (t == 0 ? 0 : before);
        uint32_t found = n - 1;
#pragma unroll
        for (uint32_t i = 0; i < 8; i++) {
            reached += mass[i];
            if (reached >= b.target)
                found = min(found, 8 * t + i);
        }
        found = __reduce_min_sync(ALL_LANES, found);
        if (t == 0)
            sh.cut = sh.sorted[found];
    }
    __syncthreads();
    return sh.cut;
}

/* Narrows the band to the bin in which the target is reached: the lowest one with any mass, when rounding left the
 * target just out of reach. */
static __device__ void narrow(const shared &sh, band *b)
{
    uint32_t bin = 0;
    double above = b->above, above_bin = above;
    for (uint32_t i = 0; i < BINS; i++) {
        if (!(sh.mass[i] > 0))
            continue;
        bin = i;
        above_bin = above;
        if (above + sh.mass[i] >= b->target)
            break;
        above += sh.mass[i];
    }
    b->above = above_bin;
    b->hi = sh.edge[bin] - 1;
    b->lo = sh.edge[bin + 1];
}

/* @share: top_k by count, else top_p. @listing: the first round's band is known to have at most LIST_MAX. */
static __device__ uint64_t find_cut(work &w, shared &sh, bool by_count, double share, bool listing)
{
    band b = {0, sh.stats.best, 0, share, by_count};
    double low = float_of_key(sh.stats.min_order);
    if (!by_count) /* weights below this are 0 */
        low = fmax(low, (double)w.max - (1 - (double)EXP_UNDERFLOW) * (double)w.sampling.temperature);
    b.lo = max(w.keep, floor_key(w, low));
    for (uint32_t round = 0;; round++, listing = true) {
        set_edges(w, sh, b, round);
        measure_part(w, sh, b, listing);
        meet(w);
        const uint32_t n = merge_bins(w, sh);
        if (round == 0 && !by_count) {
            double total = 0;
            for (uint32_t i = 0; i < BINS; i++)
                total += sh.mass[i];
            b.target = share * total;
        }
        if (listing && n <= LIST_MAX)
            return cut_in_list(w, sh, b, n);
        narrow(sh, &b);
        __syncthreads(); /* before the next edges */
    }
}

/* ---- The draw ------------------------------------------------------------------------------------------------ */

/* Sums what is kept of each warp's part. */
static __device__ void weigh_parts(const work &w)
{
    const uint32_t lane = threadIdx.x % QKC_WARP, warp = threadIdx.x / QKC_WARP;
    const uint32_t begin = min(w.end, w.begin + warp * w.warp_len), end = min(w.end, begin + w.warp_len);
    double sum = 0;
    for_quads(w, begin, end, lane, QKC_WARP, [&](uint32_t i, uint32_t n, const quad &q) {
#pragma unroll
        for (uint32_t j = 0; j < 4; j++)
            if (j < n)
                sum += (double)kept_weight(w, adjusted(w, q, j), i + j);
    });
    sum = warp_sum(sum);
    if (lane == 0)
        own_piece(w)->warp_mass[warp] = sum;
}

/* Of @n masses, n_each a thread, side by side: the first with which the sum exceeds @target, or the last that is not 0,
 * or NONE. @before: this thread's sum of what lies before its masses. sh.before: the sum before the one that is chosen.
 * @mass(j): this thread's mass j, of which there are @n_each. */
template <typename Mass>
static __device__ uint32_t choose(shared &sh, uint32_t n_each, double before, double target, Mass mass)
{
    const uint32_t first = threadIdx.x * n_each;
    if (threadIdx.x == 0) {
        sh.found = NONE;
        sh.last = 0; /* one more than the index */
    }
    __syncthreads();
    uint32_t found = NONE, last = 0;
    double sum = before;
    for (uint32_t j = 0; j < n_each && found == NONE; j++) {
        const double m = mass(j);
        if (m == 0)
            continue;
        sum += m;
        last = first + j + 1;
        if (sum > target)
            found = first + j;
    }
    if (found != NONE)
        atomicMin(&sh.found, found);
    if (last != 0)
        atomicMax(&sh.last, last);
    __syncthreads();
    const uint32_t chosen = sh.found != NONE ? sh.found : sh.last - 1; /* NONE when all are 0 */
    if (chosen != NONE && chosen / n_each == threadIdx.x) {
        sum = before;
        for (uint32_t j = 0; first + j < chosen; j++)
            sum += mass(j);
        sh.before = sum;
    }
    __syncthreads();
    return chosen;
}

/* The last block: first the warp's part in which the target lies, then the id in it. The same in all threads. */
static __device__ uint32_t draw(const work &w, shared &sh)
{
    const uint32_t t = threadIdx.x, n_ranges = w.n_blocks * WARPS;
    double mass[RANGES_A_THREAD], sum = 0, total;
#pragma unroll
    for (uint32_t j = 0; j < RANGES_A_THREAD; j++) {
        const uint32_t range = t * RANGES_A_THREAD + j;
        mass[j] = range < n_ranges ? __ldcg(&met_piece(w, range / WARPS)->warp_mass[range % WARPS]) : 0;
        sum += mass[j];
    }
    double before = block_scan(sh, sum, &total);
    const double target = philox_uniform(w.sampling.seed, w.sampling.position) * total;
    const uint32_t range = choose(sh, RANGES_A_THREAD, before, target, [&](uint32_t j) { return mass[j]; });
    if (range == NONE)
        return 0;

    const double base = sh.before;
    const uint32_t block_begin = range / WARPS * w.block_len,
                   block_end = min(w.vocab, block_begin + w.block_len);
    const uint32_t begin = block_begin + range % WARPS * w.warp_len, end = min(block_end, begin + w.warp_len);
    const uint32_t n_each = (end - begin + THREADS - 1) / THREADS;
    auto one = [&](uint32_t j) {
        const uint32_t id = begin + t * n_each + j;
        return id < end ? (double)kept_weight(w, load_one(w, id), id) : 0.0;
    };
    sum = 0;
    for (uint32_t j = 0; j < n_each; j++)
        sum += one(j);
    before = base + block_scan(sh, sum, &total);
    return begin + choose(sh, n_each, before, target, one);
}

/* ---- One output, and all of them ----------------------------------------------------------------------------- */

static __device__ void deliver_status(const qkc_sample_args &a, uint32_t state)
{
    __threadfence_system();
    *(volatile uint32_t *)a.status = state;
}

/* One thread, once an output: the result to the host, then the slot and the history. */
static __device__ void deliver(
    const qkc_sample_args &a, uint32_t o, uint32_t n_outputs, uint32_t slot, const qk_output_result &result)
{
    workspace *ws = (workspace *)a.workspace;
    *(int4 *)&a.results[o] = make_int4(
        result.token, (int32_t)result.flags, __float_as_int(result.logprob), __float_as_int(result.logit));
    if (slot != QK_NO_SLOT && result.token >= 0) {
        a.slots[slot] = result.token;
        uint16_t *seen = &a.history[(size_t)slot * a.vocab + (uint32_t)result.token];
        const uint32_t count = *seen & QK_SEEN_COUNT;
        *seen = (uint16_t)(QK_SEEN | min(count + 1, (uint32_t)QK_SEEN_COUNT));
    }
    __threadfence_system();
    if (atomicAdd(&ws->n_done.n, 1) + 1 == n_outputs) {
        ws->n_done.n = 0;
        deliver_status(a, QK_OK);
    }
}

/* Thread 0 of the last block. */
static __device__ void finish(const qkc_sample_args &a, const work &w, const scan_stats &s, uint32_t o,
    uint32_t n_outputs, uint32_t token)
{
    qk_output_result result;
    *w.arrived = 0;
    result.token = (int32_t)token;
    result.flags = s.bad ? QK_RESULT_NOT_FINITE : 0;
    result.logit = w.logits[token];
    result.logprob =
        s.bad ? __int_as_float(0x7fc00000) : (float)((double)result.logit - (double)s.max - log(s.sum));
    deliver(a, o, n_outputs, w.output->slot, result);
}

/* The token, in all threads of the last block; false in the other blocks. */
static __device__ bool pick(work &w, shared &sh, uint32_t *token)
{
    const qk_sampling &s = w.sampling;
    scan_part(w, sh);
    if (s.temperature < GREEDY_BELOW || s.top_p <= 0.0f || s.top_k == 1) {
        if (!come_last(w, sh))
            return false;
        merge_scan(w, sh);
    } else {
        meet(w);
        merge_scan(w, sh);
        if (!sh.stats.bad) {
            const bool cut_k = s.top_k > 0 && s.top_k < w.vocab, cut_p = s.top_p < 1.0f;
            if (cut_k)
                w.keep = find_cut(w, sh, true, (double)s.top_k, w.vocab <= LIST_MAX);
            if (cut_p)
                w.keep = find_cut(
                    w, sh, false, (double)s.top_p, w.vocab <= LIST_MAX || (cut_k && s.top_k <= LIST_MAX));
            weigh_parts(w);
            if (!come_last(w, sh))
                return false;
            *token = draw(w, sh);
            return true;
        }
        if (!come_last(w, sh))
            return false;
    }
    const uint64_t best = sh.stats.bad ? sh.stats.best_raw : sh.stats.best;
    *token = best != 0 ? id_of(w, best) : 0;
    return true;
}

static __device__ void sample_output(
    const qkc_sample_args &a, shared &sh, uint32_t o, uint32_t n_outputs, uint32_t rank, uint32_t n_blocks)
{
    workspace *ws = (workspace *)a.workspace;
    const qk_output *output = &a.plan.outputs[o];
    if ((output->flags & QK_OUTPUT_SAMPLE) == 0) {
        if (rank == 0 && threadIdx.x == 0)
            deliver(a, o, n_outputs, QK_NO_SLOT, {-1, 0, 0, 0});
        return;
    }
    work w = {};
    w.output = output;
    w.sampling = output->sampling;
    w.logits = a.logits + (size_t)o * a.vocab;
    if (output->slot != QK_NO_SLOT &&
        (w.sampling.repetition_penalty != 1.0f || w.sampling.presence_penalty != 0.0f ||
            w.sampling.frequency_penalty != 0.0f))
        w.history = a.history + (size_t)output->slot * a.vocab;
    w.n_bias = output->n_bias;
    w.bias = a.biases + output->bias_begin;
    if (output->flags & QK_OUTPUT_MASK)
        w.mask = a.masks + (size_t)output->mask * ((a.vocab + 31) / 32);
    w.adjusts = w.history != NULL || w.n_bias > 0 || w.mask != NULL;
    w.vocab = a.vocab;
    w.id_bits = 32 - __clz((int)(a.vocab - 1));
    w.rank = rank;
    w.n_blocks = n_blocks;
    w.block_len = ((a.vocab + n_blocks - 1) / n_blocks + 3) / 4 * 4;
    w.warp_len = ((w.block_len + WARPS - 1) / WARPS + 3) / 4 * 4;
    w.begin = min(a.vocab, rank * w.block_len);
    w.end = min(a.vocab, w.begin + w.block_len);
    w.whole_quads = a.vocab % 4 == 0;
    w.inverse = __fdiv_rn(1.0f, w.sampling.temperature);
    w.arrived = &ws->arrived[blockIdx.x - rank].n;
    w.pieces = &ws->pieces[0][blockIdx.x - rank];
    uint32_t token;
    if (pick(w, sh, &token) && threadIdx.x == 0)
        finish(a, w, sh.stats, o, n_outputs, token);
}

static __host__ __device__ uint32_t row_blocks_max(uint32_t vocab)
{
    const uint32_t n = (vocab - 1) / BLOCK_ELEMENTS + 1;
    return n < ROW_BLOCKS_MAX ? n : ROW_BLOCKS_MAX;
}

static __global__ void __launch_bounds__(THREADS, 1) sample_kernel(const __grid_constant__ qkc_sample_args a)
{
    extern __shared__ __align__(16) unsigned char dynamic[];
    shared &sh = *(shared *)dynamic;
    qkc_pdl_trigger();
    qkc_pdl_wait();
    const uint32_t state = *a.plan.state, n_outputs = min(a.plan.counts[3], a.outputs_max);
    if (state != QK_OK || n_outputs == 0) {
        if (blockIdx.x == 0 && threadIdx.x == 0)
            deliver_status(a, state);
        return;
    }
    const uint32_t n_blocks = min(max(gridDim.x / n_outputs, 1u), row_blocks_max(a.vocab));
    const uint32_t n_groups = gridDim.x / n_blocks, group = blockIdx.x / n_blocks;
    if (group >= n_groups)
        return;
    for (uint32_t o = group; o < n_outputs; o += n_groups) {
        sample_output(a, sh, o, n_outputs, blockIdx.x % n_blocks, n_blocks);
        __syncthreads();
    }
}

cudaError_t qkc_sample_init(void)
{
    return cudaFuncSetAttribute(
        sample_kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, (int)sizeof(shared));
}

size_t qkc_sample_bytes(uint32_t outputs_max, uint32_t vocab)
{
    return sizeof(workspace);
}

cudaError_t qkc_sample(const qkc_launch *launch, const qkc_sample_args *args)
{
    if (args->vocab == 0 || (uintptr_t)args->results % 16 != 0 || (uintptr_t)args->workspace % 16 != 0)
        return cudaErrorInvalidValue;
    const uint64_t useful = (uint64_t)args->outputs_max * row_blocks_max(args->vocab);
    uint32_t n = (uint32_t)launch->n_sms < BLOCKS_MAX ? (uint32_t)launch->n_sms : BLOCKS_MAX;
    if (useful < n)
        n = useful > 0 ? (uint32_t)useful : 1;
    return qkc_start(launch, sample_kernel, dim3(n), dim3(THREADS), sizeof(shared), *args);
}
