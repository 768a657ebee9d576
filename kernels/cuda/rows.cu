/* rows.cu: what touches one row at a time: the head of a step (plan, embedding, RoPE tables), RMSNorm into bf16, norm
 * and rotation of heads with the write of keys and values (as bf16, or quantised: kv-int8.h), SiLU times up.
 *
 * Invariants
 *  1. Host memory is read with ld.volatile (never cached). A read over PCIe takes one to two microseconds, many at once
 *     hardly more, but those of one line by several blocks come one after the other. So no two blocks of qkc_prepare()
 *     read the same line, and each reads all it can before it knows how much of it counts. What is read and does not
 *     count is not written.
 *  2. qkc_prepare(): plan.state is written once, by the block that looks at all rows' slots. No block reads it. So the
 *     order in which blocks run does not matter, and the state of the step before cannot leak.
 *  3. Rows from the plan's count on are not read; only qkc_rms_norm() writes them (zeros).
 *  4. What another kernel of the step writes is read by plain loads through pointers without __restrict__: the compiler
 *     could move others above qkc_pdl_wait(). Weights go through __ldg().
 *  5. An element is summed in an order given by the launch's shape alone.
 *
 * Bytes and floor, H200 at 4.1 TB/s, hidden 2560, 32 + 2 * 8 heads of 128, ffn 9728:
 *   prepare   1 row: 5 KB of embedding; latency bound: PCIe read, slot, embedding row: about 4 us
 *             2048 rows: 64 KB over PCIe; 10 MB read, 22 MB written: 8 us behind the PCIe read
 *   rms_norm  2048 rows: 21 MB read, 10.5 MB written: 7.7 us
 *   heads     2048 rows: 25 MB read, 25 MB written: 12.3 us; int8 pages: 21 MB written: 11.3 us
 *   silu_mul  2048 rows: 80 MB read, 40 MB written: 29 us */
#include "kernels/cuda/cuda-ops.h"
#include "kernels/cuda/kv-int8.h"
#include <float.h>

#define PREPARE_THREADS      512u
#define PREPARE_COPIERS      (QKC_PLAN_READERS - 1) /* blocks; one more checks the slots */
#define PREPARE_COPY_THREADS (PREPARE_COPIERS * PREPARE_THREADS)
#define EARLY_PAGES_MIN      1024u /* read before the plan's count is known */
#define EARLY_PAGES_MAX      (2 * PREPARE_COPY_THREADS)
#define NORM_THREADS         128u
#define NORM_VECTORS_MAX     8u /* of 4 floats, kept in registers by each thread */
#define HEADS_THREADS        256u
#define SILU_THREADS         256u
#define SILU_VECTORS         2u /* of 8 elements, for each thread */

static inline uint32_t ceil_div(uint32_t a, uint32_t b)
{
    return (a + b - 1) / b;
}

/* ---- Eight bf16 at a time ------------------------------------------------------------------------------------ */

static __device__ __forceinline__ void unpack8(float out[8], uint4 v)
{
    const uint32_t w[4] = {v.x, v.y, v.z, v.w};
#pragma unroll
    for (int i = 0; i < 4; i++) {
        out[2 * i] = __uint_as_float(w[i] << 16);
        out[2 * i + 1] = __uint_as_float(w[i] & 0xffff0000u);
    }
}

static __device__ __forceinline__ uint32_t pack2(float low, float high)
{
    const __nv_bfloat162 both = __floats2bfloat162_rn(low, high);
    return (uint32_t)__bfloat16_as_ushort(both.x) | (uint32_t)__bfloat16_as_ushort(both.y) << 16;
}

static __device__ __forceinline__ uint4 pack8(const float v[8])
{
    return make_uint4(pack2(v[0], v[1]), pack2(v[2], v[3]), pack2(v[4], v[5]), pack2(v[6], v[7]));
}

static __device__ __forceinline__ void load8(float out[8], const float *p)
{
    const float4 a = *(const float4 *)p, b = *(const float4 *)(p + 4);
    out[0] = a.x, out[1] = a.y, out[2] = a.z, out[3] = a.w;
    out[4] = b.x, out[5] = b.y, out[6] = b.z, out[7] = b.w;
}

/* ---- Prepare ------------------------------------------------------------------------------------------------- */

static_assert(sizeof(qk_seq) % 8 == 0 && sizeof(qk_output) % 8 == 0, "copied by words of 8 bytes");
static_assert(sizeof(qkc_host_counts) == 128 && sizeof(qkc_host_row) * QKC_LINE_ROWS == 128, "lines");

void qkc_write_rows(const qk_plan *plan, uint32_t rows_max, qkc_host_counts *counts, qkc_host_row *rows)
{
    for (uint32_t i = 0; i < QKC_PLAN_READERS; i++) {
        counts[i].counts[0] = plan->n_rows;
        counts[i].counts[1] = plan->n_seqs;
        counts[i].counts[2] = plan->n_pages;
        counts[i].counts[3] = plan->n_outputs;
    }
    for (uint32_t s = 0; s < plan->n_seqs; s++) {
        const qk_seq *seq = &plan->seqs[s];
        for (uint32_t i = 0; i < seq->n_rows; i++) {
            const uint32_t row = seq->row_begin + i;
            rows[row] = {plan->tokens[row], seq->start + i, s, 1};
        }
    }
    const uint32_t end = ceil_div(rows_max, QKC_LINE_ROWS) * QKC_LINE_ROWS;
    for (uint32_t row = plan->n_rows; row < end; row++)
        rows[row] = {0, 0, 0, 0};
}

/* The @n rows of the block from @first on. A thread's values have one frequency. Threads are counted from the end:
 * those that have the fewer embedding vectors come first. */
static __device__ void write_cos_sin(
    const qkc_prepare_args &a, uint32_t first, uint32_t n, const qkc_host_row *rows, double frequency)
{
    const uint32_t half = a.head_dim / 2;
    for (uint32_t i = PREPARE_THREADS - 1 - threadIdx.x; i < n * half; i += PREPARE_THREADS) {
        const uint32_t row = i / half, d = i % half;
        double sine, cosine;
        sincos(__dmul_rn(frequency, (double)rows[row].position), &sine, &cosine);
        float *out = a.to.cos_sin + (size_t)(first + row) * a.head_dim;
        out[d] = (float)__dmul_rn(cosine, (double)a.rope_factor);
        out[half + d] = (float)__dmul_rn(sine, (double)a.rope_factor);
    }
}

/* @token: lane r's is that of the block's row r. All lanes stay in the loop, which shuffles it. */
static __device__ void write_embeddings(const qkc_prepare_args &a, uint32_t first, uint32_t n, int32_t token)
{
    constexpr uint32_t AHEAD = 5; /* vectors of a thread that are on the way together */
    const uint32_t n_vectors = a.hidden / 8, end = n * n_vectors, lane = threadIdx.x % QKC_WARP;
    for (uint32_t base = threadIdx.x - lane; base < end; base += AHEAD * PREPARE_THREADS) {
        uint4 v[AHEAD];
#pragma unroll
        for (uint32_t j = 0; j < AHEAD; j++) {
            const uint32_t i = base + lane + j * PREPARE_THREADS, row = min(i / n_vectors, QKC_LINE_ROWS - 1);
            const int32_t id = __shfl_sync(0xffffffffu, token, (int)row);
            if (i < end)
                v[j] = __ldg((const uint4 *)(a.embed + (size_t)id * a.hidden) + (i - row * n_vectors));
        }
#pragma unroll
        for (uint32_t j = 0; j < AHEAD; j++) {
            const uint32_t i = base + lane + j * PREPARE_THREADS;
            if (i >= end)
                break;
            float e[8];
            unpack8(e, v[j]);
            float4 *x = (float4 *)(a.x + (size_t)first * a.hidden) + 2 * i;
            x[0] = make_float4(e[0], e[1], e[2], e[3]);
            x[1] = make_float4(e[4], e[5], e[6], e[7]);
        }
    }
}

/* A line of rows. */
static __device__ void prepare_rows(const qkc_prepare_args &a)
{
    __shared__ qkc_host_row rows[QKC_LINE_ROWS];
    const uint32_t first = blockIdx.x * QKC_LINE_ROWS, t = threadIdx.x, lane = t % QKC_WARP;
    if (t < QKC_LINE_ROWS)
        *(uint4 *)&rows[t] = __ldcv((const uint4 *)(a.from.rows + first + t));
    const double frequency = __ldg(a.inv_freq + (PREPARE_THREADS - 1 - t) % (a.head_dim / 2));
    __syncthreads();
    qkc_pdl_wait();

    /* Each warp for itself: lane r has row r. Rows that are used come first. */
    const qkc_host_row mine = rows[lane % QKC_LINE_ROWS];
    const bool used = lane < QKC_LINE_ROWS && first + lane < a.rows_max && mine.used != 0;
    const uint32_t n = __popc(__ballot_sync(0xffffffffu, used));
    int32_t token = mine.token;
    if (used && token < 0) /* -1, unwritten, makes the step invalid; the row only has to stay in bounds */
        token = max(a.slots[~token], 0);
    if (t < QKC_WARP && used) {
        a.to.token[first + lane] = token;
        a.to.position[first + lane] = mine.position;
        a.to.row_seq[first + lane] = mine.seq;
    }
    write_embeddings(a, first, n, token);
    write_cos_sin(a, first, n, rows, frequency);
}

/* The block's copy of the counts, the same in all threads. */
static __device__ uint4 read_counts(const qkc_prepare_args &a, uint32_t reader)
{
    __shared__ uint4 counts;
    if (threadIdx.x == 0)
        counts = __ldcv((const uint4 *)a.from.counts[reader].counts);
    __syncthreads();
    return counts;
}

/* An array on its way: the first vectors are read before it is known how many there are, one by each thread. */
typedef struct {
    const uint4 *from;
    uint4 first;
    uint32_t n_first; /* at most PREPARE_COPY_THREADS */
} early;

/* @n: elements of @bytes, all of which may be read. */
static __device__ __forceinline__ early read_early(const void *from, uint32_t n, uint32_t bytes, uint32_t at)
{
    early e;
    e.from = (const uint4 *)from;
    e.n_first = (uint32_t)min((uint64_t)n * bytes / 16, (uint64_t)PREPARE_COPY_THREADS);
    e.first = at < e.n_first ? __ldcv(e.from + at) : make_uint4(0, 0, 0, 0);
    return e;
}

/* Writes the @n words of 8 bytes that there are, by all copying threads, without those of their bits that @without has. */
static __device__ void copy_words(void *to, const early &e, size_t n, uint32_t at, uint32_t without)
{
    uint4 *dst = (uint4 *)to;
    const size_t n_pairs = n / 2;
    auto kept = [without](uint4 v) { return make_uint4(v.x & ~without, v.y, v.z & ~without, v.w); };
    if (at < e.n_first && at < n_pairs)
        dst[at] = kept(e.first);
    if (n % 2 != 0 && n_pairs % PREPARE_COPY_THREADS == at) {
        const uint2 last =
            n_pairs < e.n_first ? make_uint2(e.first.x, e.first.y) : __ldcv((const uint2 *)e.from + n - 1);
        ((uint2 *)to)[n - 1] = make_uint2(last.x & ~without, last.y);
    }
    size_t i = at < e.n_first ? at + PREPARE_COPY_THREADS : at;
    for (; i + 3 * PREPARE_COPY_THREADS < n_pairs; i += 4 * PREPARE_COPY_THREADS) {
        uint4 v[4];
#pragma unroll
        for (int j = 0; j < 4; j++)
            v[j] = __ldcv(e.from + i + j * PREPARE_COPY_THREADS);
#pragma unroll
        for (int j = 0; j < 4; j++)
            dst[i + j * PREPARE_COPY_THREADS] = kept(v[j]);
    }
    for (; i < n_pairs; i += PREPARE_COPY_THREADS)
        dst[i] = kept(__ldcv(e.from + i));
}

static __device__ void prepare_copies(const qkc_prepare_args &a, uint32_t block)
{
    const uint32_t at = block * PREPARE_THREADS + threadIdx.x, rows = a.rows_max;
    const uint32_t n_pages = max(rows < EARLY_PAGES_MAX / 64 ? 64 * rows : EARLY_PAGES_MAX, EARLY_PAGES_MIN);
    const early pages = read_early(a.from.pages, min(n_pages, a.from.pages_max), sizeof(uint64_t), at),
                outputs = read_early(a.from.outputs, min(rows, a.from.outputs_max), sizeof(qk_output), at),
                seqs = read_early(a.from.seqs, min(rows, a.from.seqs_max), sizeof(qk_seq), at);
    const uint4 counts = read_counts(a, block);
    qkc_pdl_wait();
    copy_words(a.to.seqs, seqs, (size_t)counts.y * (sizeof(qk_seq) / 8), at, 0);
    copy_words(a.to.outputs, outputs, (size_t)counts.w * (sizeof(qk_output) / 8), at, 0);
    copy_words(a.to.pages, pages, counts.z, at, QK_PAGE_HOST);
}

/* The counts, and whether all slots that rows take are written. */
static __device__ void prepare_state(const qkc_prepare_args &a)
{
    const int4 *from = (const int4 *)a.from.tokens;
    int4 next = make_int4(0, 0, 0, 0);
    if (4 * threadIdx.x < a.rows_max)
        next = __ldcv(from + threadIdx.x);
    const uint4 counts = read_counts(a, PREPARE_COPIERS);
    const uint32_t n = min(counts.x, a.rows_max);
    int bad = 0;
    qkc_pdl_wait();
    for (uint32_t i = threadIdx.x; 4 * i < n; i += PREPARE_THREADS) {
        const int32_t id[4] = {next.x, next.y, next.z, next.w};
        if (4 * (i + PREPARE_THREADS) < n)
            next = __ldcv(from + i + PREPARE_THREADS);
#pragma unroll
        for (uint32_t j = 0; j < 4; j++)
            if (4 * i + j < n && id[j] < 0)
                bad |= a.slots[~id[j]] < 0;
    }
    for (uint32_t i = threadIdx.x; i < a.n_zeros; i += PREPARE_THREADS)
        a.zeros[i] = 0;
    bad = __syncthreads_or(bad);
    if (threadIdx.x == 0) {
        *(uint4 *)a.to.counts = counts;
        *a.to.state = bad ? QK_INVALID : QK_OK;
    }
}

static __global__ void __launch_bounds__(PREPARE_THREADS, 2)
    prepare_kernel(const __grid_constant__ qkc_prepare_args a, uint32_t n_row_blocks)
{
    qkc_pdl_trigger();
    if (blockIdx.x < n_row_blocks)
        prepare_rows(a);
    else if (blockIdx.x < n_row_blocks + PREPARE_COPIERS)
        prepare_copies(a, blockIdx.x - n_row_blocks);
    else
        prepare_state(a);
}

cudaError_t qkc_prepare(const qkc_launch *launch, const qkc_prepare_args *args)
{
    const qkc_host_plan *from = &args->from;
    const qkc_plan *to = &args->to;
    const uintptr_t bits = (uintptr_t)from->tokens | (uintptr_t)from->seqs | (uintptr_t)from->pages |
                           (uintptr_t)from->outputs | (uintptr_t)to->counts | (uintptr_t)to->seqs |
                           (uintptr_t)to->pages | (uintptr_t)to->outputs;
    const uintptr_t lines = (uintptr_t)from->counts | (uintptr_t)from->rows;
    if (bits % 16 != 0 || lines % 128 != 0 || args->hidden % 8 != 0 ||
        (args->head_dim != 64 && args->head_dim != 128))
        return cudaErrorInvalidValue;
    const uint32_t n_row_blocks = ceil_div(args->rows_max, QKC_LINE_ROWS);
    return qkc_start(launch, prepare_kernel, dim3(n_row_blocks + QKC_PLAN_READERS), dim3(PREPARE_THREADS), 0,
        *args, n_row_blocks);
}

/* ---- RMSNorm ------------------------------------------------------------------------------------------------- */

/* The sum over the block's threads, the same in each; @warp_sums: a float for each warp, used once. */
static __device__ __forceinline__ float block_sum(float sum, float *warp_sums)
{
    for (int delta = 16; delta > 0; delta /= 2)
        sum += __shfl_xor_sync(0xffffffffu, sum, delta);
    if (threadIdx.x % QKC_WARP == 0)
        warp_sums[threadIdx.x / QKC_WARP] = sum;
    __syncthreads();
    sum = 0;
#pragma unroll
    for (uint32_t w = 0; w < NORM_THREADS / QKC_WARP; w++)
        sum += warp_sums[w];
    return sum;
}

static __device__ __forceinline__ float sum_squares(float4 v)
{
    return v.x * v.x + v.y * v.y + (v.z * v.z + v.w * v.w);
}

static __device__ __forceinline__ uint2 scale_vector(float4 v, float scale, float4 w)
{
    return make_uint2(
        pack2(v.x * scale * w.x, v.y * scale * w.y), pack2(v.z * scale * w.z, v.w * scale * w.w));
}

/* One row. N: vectors of 4 floats that each thread keeps, NORM_THREADS apart; 0: x is read twice. */
template <uint32_t N>
static __device__ __forceinline__ void norm_row(
    uint2 *out, const float4 *x, const float4 *w, float eps, uint32_t hidden)
{
    __shared__ float warp_sums[NORM_THREADS / QKC_WARP];
    const uint32_t t = threadIdx.x, n_vectors = hidden / 4;
    float sum = 0;
    if constexpr (N > 0) {
        float4 v[N];
#pragma unroll
        for (uint32_t i = 0; i < N; i++) {
            const uint32_t at = t + i * NORM_THREADS;
            v[i] = at < n_vectors ? x[at] : make_float4(0, 0, 0, 0);
        }
#pragma unroll
        for (uint32_t i = 0; i < N; i++)
            sum += sum_squares(v[i]);
        const float scale = rsqrtf(block_sum(sum, warp_sums) / (float)hidden + eps);
#pragma unroll
        for (uint32_t i = 0; i < N; i++) {
            const uint32_t at = t + i * NORM_THREADS;
            if (at < n_vectors)
                out[at] = scale_vector(v[i], scale, __ldg(w + at));
        }
    } else {
        for (uint32_t at = t; at < n_vectors; at += NORM_THREADS)
            sum += sum_squares(x[at]);
        const float scale = rsqrtf(block_sum(sum, warp_sums) / (float)hidden + eps);
        for (uint32_t at = t; at < n_vectors; at += NORM_THREADS)
            out[at] = scale_vector(x[at], scale, __ldg(w + at));
    }
}

/* A block is a row. The look at @cancel goes over PCIe: it is begun first and used last. */
template <uint32_t N>
static __global__ void __launch_bounds__(NORM_THREADS)
    rms_norm_kernel(qkc_bf16 *out, const float *x, const float *weight, float eps, uint32_t hidden,
        qkc_plan plan, bool gather, const volatile uint32_t *cancel)
{
    const uint32_t r = blockIdx.x;
    uint32_t asked = 0;
    qkc_pdl_trigger();
    if (cancel != NULL && r == 0 && threadIdx.x == 0)
        asked = *cancel;
    qkc_pdl_wait();
    const uint32_t n = gather ? plan.counts[3] : plan.counts[0];
    if (*plan.state != QK_OK)
        return;
    uint2 *row_out = (uint2 *)(out + (size_t)r * hidden);
    if (r < n) {
        const float *row = x + (size_t)(gather ? plan.outputs[r].row : r) * hidden;
        norm_row<N>(row_out, (const float4 *)row, (const float4 *)weight, eps, hidden);
    } else {
        for (uint32_t i = threadIdx.x; i < hidden / 4; i += NORM_THREADS)
            row_out[i] = make_uint2(0, 0);
    }
    if (asked != 0)
        *plan.state = QK_CANCELLED;
}

cudaError_t qkc_rms_norm(const qkc_launch *launch, qkc_bf16 *out, const float *x, const float *weight,
    float eps, uint32_t hidden, uint32_t rows_max, qkc_plan plan, bool gather,
    const volatile uint32_t *cancel)
{
    if (hidden % 8 != 0)
        return cudaErrorInvalidValue;
    if (rows_max == 0)
        return cudaSuccess;
    static void (*const kernels[NORM_VECTORS_MAX + 1])(qkc_bf16 *, const float *, const float *, float,
        uint32_t, qkc_plan, bool, const volatile uint32_t *) = {rms_norm_kernel<0>, rms_norm_kernel<1>,
        rms_norm_kernel<2>, rms_norm_kernel<3>, rms_norm_kernel<4>, rms_norm_kernel<5>, rms_norm_kernel<6>,
        rms_norm_kernel<7>, rms_norm_kernel<8>};
    const uint32_t n = ceil_div(hidden / 4, NORM_THREADS);
    return qkc_start(launch, kernels[n <= NORM_VECTORS_MAX ? n : 0], dim3(rows_max), dim3(NORM_THREADS), 0,
        out, x, weight, eps, hidden, plan, gather, cancel);
}

/* ---- Heads --------------------------------------------------------------------------------------------------- */

/* Eight elements as they lie in memory; of bf16 the first half is used. */
typedef struct {
    uint4 low, high;
} raw8;

template <bool BF16> static __device__ __forceinline__ raw8 load_raw8(const qkc_heads_args &a, size_t at)
{
    raw8 raw = {};
    if (BF16) {
        raw.low = *(const uint4 *)(a.qkv_bf16 + at);
    } else {
        raw.low = *(const uint4 *)(a.qkv_f32 + at);
        raw.high = *(const uint4 *)(a.qkv_f32 + at + 4);
    }
    return raw;
}

template <bool BF16> static __device__ __forceinline__ void floats_of(float out[8], const raw8 &raw)
{
    if (BF16) {
        unpack8(out, raw.low);
    } else {
        out[0] = __uint_as_float(raw.low.x), out[1] = __uint_as_float(raw.low.y);
        out[2] = __uint_as_float(raw.low.z), out[3] = __uint_as_float(raw.low.w);
        out[4] = __uint_as_float(raw.high.x), out[5] = __uint_as_float(raw.high.y);
        out[6] = __uint_as_float(raw.high.z), out[7] = __uint_as_float(raw.high.w);
    }
}

/* Norm and rotation of a head by the LANES that hold it. */
template <uint32_t LANES>
static __device__ __forceinline__ void turn_head(
    float out[8], const float v[8], const float *norm, float eps, const float cosine[8], const float sine[8])
{
    const float4 w_low = __ldg((const float4 *)norm), w_high = __ldg((const float4 *)norm + 1);
    const float w[8] = {w_low.x, w_low.y, w_low.z, w_low.w, w_high.x, w_high.y, w_high.z, w_high.w};
    float sum = 0;
#pragma unroll
    for (int i = 0; i < 8; i++)
        sum += v[i] * v[i];
#pragma unroll
    for (uint32_t delta = LANES / 2; delta > 0; delta /= 2)
        sum += __shfl_xor_sync(0xffffffffu, sum, delta);
    const float scale = rsqrtf(sum / (float)(8 * LANES) + eps);
#pragma unroll
    for (int i = 0; i < 8; i++) {
        const float normed = v[i] * scale * w[i];
        const float partner = __shfl_xor_sync(0xffffffffu, normed, LANES / 2);
        out[i] = normed * cosine[i] + partner * sine[i];
    }
}

/* Where a row's keys and values go. */
typedef struct {
    uint64_t keys;  /* of kv head 0 in its page */
    uint32_t token; /* in the page */
} row_place;

static __device__ __forceinline__ row_place place_of(const qkc_heads_args &a, uint32_t row)
{
    const uint32_t position = a.plan.position[row];
    const qk_seq *seq = &a.plan.seqs[a.plan.row_seq[row]];
    return {
        a.plan.pages[seq->page_begin + position / QK_PAGE_TOKENS] + a.layer * a.layout.layer_stride,
        position % QK_PAGE_TOKENS,
    };
}

/* A head's scale, by the LANES that hold it: also called for what is not stored. */
template <uint32_t LANES> static __device__ __forceinline__ uint16_t scale_of(const float v[8])
{
    uint32_t size = 0;
#pragma unroll
    for (int i = 0; i < 8; i++)
        size = max(size, qkc_i8_size(v[i]));
#pragma unroll
    for (uint32_t delta = LANES / 2; delta > 0; delta /= 2)
        size = max(size, __shfl_xor_sync(0xffffffffu, size, delta));
    return qkc_i8_scale(size);
}

static __device__ __forceinline__ uint2 quantise8(const float v[8], uint16_t scale)
{
    const float s = qkc_i8_float(scale);
    uint32_t word[2] = {0, 0};
#pragma unroll
    for (int i = 0; i < 8; i++)
        word[i / 4] |= qkc_i8_value(v[i], s) << i % 4 * 8;
    return make_uint2(word[0], word[1]);
}

/* A block is a row; DIM / 8 lanes are a head, each with 8 elements side by side. A lane's elements lie at the same place
 * of every head it works on, so it reads its cosines and sines once. Element d turns with element d +- DIM / 2, which
 * the lane DIM / 16 away holds. A head is read while the one before it is worked on. */
template <uint32_t DIM, bool BF16, bool I8>
static __global__ void __launch_bounds__(HEADS_THREADS) heads_kernel(const __grid_constant__ qkc_heads_args a)
{
    constexpr uint32_t LANES = DIM / 8, STRIDE = HEADS_THREADS / LANES, HALF = DIM / 2;
    const uint32_t r = blockIdx.x, at = threadIdx.x % LANES * 8;
    const uint32_t n_qk = a.n_heads + a.n_kv_heads, n_all = n_qk + a.n_kv_heads;
    qkc_pdl_trigger();
    qkc_pdl_wait();
    if (r >= a.plan.counts[0] || *a.plan.state != QK_OK)
        return;
    uint32_t h = threadIdx.x / LANES;
    const size_t row_at = (size_t)r * n_all * DIM + at;
    raw8 next = {};
    if (h < n_all)
        next = load_raw8<BF16>(a, row_at + h * DIM);
    float cosine[8], sine[8];
    load8(cosine, a.plan.cos_sin + (size_t)r * DIM + at % HALF);
    load8(sine, a.plan.cos_sin + (size_t)r * DIM + HALF + at % HALF);
    if (at < HALF) /* the low half: x cos - partner sin; the high half: x cos + partner sin */
#pragma unroll
        for (int i = 0; i < 8; i++)
            sine[i] = -sine[i];
    const row_place place = place_of(a, r);
    const uint64_t offset = place.token * (uint64_t)a.layout.token_stride + at * (I8 ? 1 : sizeof(qkc_bf16));

    /* All lanes of a warp stay in the loop: shuffles take every lane of a head, and heads share warps. */
    const uint32_t n_rounds = (n_all + STRIDE - 1) / STRIDE;
    for (uint32_t round = 0; round < n_rounds; round++, h += STRIDE) {
        const bool is_v = h >= n_qk, is_k = !is_v && h >= a.n_heads;
        float v[8], turned[8];
        floats_of<BF16>(v, next);
        if (h + STRIDE < n_all)
            next = load_raw8<BF16>(a, row_at + (h + STRIDE) * DIM);
        turn_head<LANES>(turned, v, (is_k ? a.k_norm : a.q_norm) + at, a.eps, cosine, sine);
        if (!is_v)
#pragma unroll
            for (int i = 0; i < 8; i++)
                v[i] = turned[i];
        const uint16_t scale = I8 ? scale_of<LANES>(v) : 0;
        if (h >= n_all)
            continue;
        if (!is_v && !is_k) {
            *(uint4 *)(a.q + ((size_t)r * a.n_heads + h) * DIM + at) = pack8(v);
            continue;
        }
        const uint64_t to = place.keys + (h - (is_v ? n_qk : a.n_heads)) * a.layout.head_stride +
                            (is_v ? a.layout.v_offset : 0);
        if (I8) {
            *(uint2 *)(to + offset) = quantise8(v, scale);
            if (at == 0)
                *(uint16_t *)(to + a.layout.scale_offset + place.token * sizeof(uint16_t)) = scale;
        } else {
            *(uint4 *)(to + offset) = pack8(v);
        }
    }
}

typedef void (*heads_function)(qkc_heads_args);

template <uint32_t DIM> static heads_function heads_of(bool bf16, bool is_int8)
{
    if (is_int8)
        return bf16 ? heads_kernel<DIM, true, true> : heads_kernel<DIM, false, true>;
    return bf16 ? heads_kernel<DIM, true, false> : heads_kernel<DIM, false, false>;
}

cudaError_t qkc_heads(const qkc_launch *launch, const qkc_heads_args *args)
{
    const qk_kv_layout *layout = &args->layout;
    const uint64_t strides =
        layout->token_stride | layout->v_offset | layout->head_stride | layout->layer_stride;
    const bool bf16 = args->qkv_bf16 != NULL, is_int8 = layout->dtype == QK_I8;
    if ((args->head_dim != 64 && args->head_dim != 128) || (layout->dtype != QK_BF16 && !is_int8) ||
        strides % 16 != 0 || layout->scale_offset % 2 != 0 || bf16 == (args->qkv_f32 != NULL))
        return cudaErrorInvalidValue;
    if (args->rows_max == 0)
        return cudaSuccess;
    const heads_function kernel =
        args->head_dim == 64 ? heads_of<64>(bf16, is_int8) : heads_of<128>(bf16, is_int8);
    return qkc_start(launch, kernel, dim3(args->rows_max), dim3(HEADS_THREADS), 0, *args);
}

/* ---- SiLU ---------------------------------------------------------------------------------------------------- */

/* silu(g) * u. The exponential is held below 2^116, so that the fast division stays in its range. */
static __device__ __forceinline__ float silu_mul(float g, float u)
{
    return __fdividef(g, 1.0f + __expf(fminf(-g, 80.0f))) * u;
}

/* Vectors of 8 of all rows, one after the other; a block takes SILU_THREADS * SILU_VECTORS of them. */
static __global__ void __launch_bounds__(SILU_THREADS)
    silu_mul_kernel(qkc_bf16 *act, const qkc_bf16 *gate_up, uint32_t row_vectors, qkc_plan plan)
{
    qkc_pdl_trigger();
    qkc_pdl_wait();
    if (*plan.state != QK_OK)
        return;
    const uint64_t n = (uint64_t)plan.counts[0] * row_vectors;
    const uint64_t first = (uint64_t)blockIdx.x * (SILU_THREADS * SILU_VECTORS) + threadIdx.x;
    uint4 gate[SILU_VECTORS], up[SILU_VECTORS];
#pragma unroll
    for (uint32_t j = 0; j < SILU_VECTORS; j++) {
        const uint64_t i = first + j * SILU_THREADS;
        if (i < n) {
            const uint64_t row = i < UINT32_MAX ? (uint32_t)i / row_vectors : i / row_vectors;
            const uint4 *from = (const uint4 *)gate_up + i + row * row_vectors;
            gate[j] = __ldcs(from);
            up[j] = __ldcs(from + row_vectors);
        }
    }
#pragma unroll
    for (uint32_t j = 0; j < SILU_VECTORS; j++) {
        const uint64_t i = first + j * SILU_THREADS;
        if (i >= n)
            break;
        float g[8], u[8];
        unpack8(g, gate[j]);
        unpack8(u, up[j]);
#pragma unroll
        for (int k = 0; k < 8; k++)
            g[k] = silu_mul(g[k], u[k]);
        ((uint4 *)act)[i] = pack8(g);
    }
}

cudaError_t qkc_silu_mul(const qkc_launch *launch, qkc_bf16 *act, const qkc_bf16 *gate_up, uint32_t ffn,
    uint32_t rows_max, qkc_plan plan)
{
    if (ffn % 8 != 0)
        return cudaErrorInvalidValue;
    const uint64_t n = (uint64_t)rows_max * (ffn / 8), a_block = SILU_THREADS * SILU_VECTORS;
    if (n == 0)
        return cudaSuccess;
    return qkc_start(launch, silu_mul_kernel, dim3((uint32_t)((n + a_block - 1) / a_block)),
        dim3(SILU_THREADS), 0, act, gate_up, ffn / 8, plan);
}
