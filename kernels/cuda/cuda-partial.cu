/* cuda-partial.cu: decode steps with outside pages: the context's partial function attends to their keys, on a thread of
 * the backend, while the device attends to its own, and the two results are merged.
 *
 * A layer, on COMPUTE, with P the thread:
 *
 *   QKV -> publish -> attention of the own pages, with log-sum-exp -> merge -> O ...
 *             |                                                        ^
 *             v  q, then ready[layer]                                  |  folded row, then answer[layer]
 *             P: the partial function over the layer's items; a row's items are folded in position order
 *
 * All that passes between device and thread lies in mapped pinned memory: 16 KiB a row each way at the reference shape,
 * whatever the number of items. The merge kernel waits for the answer by reading it over the bus, the thread for q by
 * reading memory: a signal is on its way for about the time of a bus transfer, 1 to 2 us. Host functions between events
 * of a side stream would do the same with a driver thread's wake-up and two stream switches in every layer, which is some
 * tens of microseconds; and a host function must not run long, which a partial function does. The launches are those of
 * any eager pass, so submitting does not wait for any of it.
 *
 * Invariants
 *  1. The thread never calls CUDA, so that whatever the driver waits for, a kernel that waits for the thread ends.
 *  2. It answers every layer of every step that it was given: after a failure, a cancel or a loss all that are left with
 *     GIVEN_UP. The publish kernel raises every layer's word too, with GIVEN_UP once the step's state says so.
 *  3. A merge that finds GIVEN_UP gives the step up (plan.state), so that a step never ends well without an answer.
 *  4. A step that has ended on the device still runs for the host until the thread has left it: only then are the plan and
 *     the pages that it names the caller's again. qkc_partial_is_busy() says so, qkc_partial_abandon() waits for it.
 *  5. One q and one folded result a context: the thread serves steps in the order of their submission, and the device
 *     publishes a layer's q only behind the merge of the layer before.
 *  6. Sums run in position order in float32, on the host and in the merge: the same bits in every run. Many items (16 MiB
 *     a row and layer at 256K keys) are folded by a few threads, each for heads of its own.
 *
 * Engine thread, but for serve(), help_fold() and what they call. */
#include <math.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>
#include "kernels/cuda/cuda-step.h"

#define SPAN_PAGES    (QK_SPAN_TOKENS / QK_PAGE_TOKENS)
#define NO_PARTIAL    UINT32_MAX
#define WARPS_MAX     32u
#define MERGE_WARPS   8u
#define POLL_NS       100
#define HELPERS_MAX   3u
#define HELP_BYTES    ((size_t)4 << 20) /* of results, from which on waking the helpers pays */
#define LOOKS         256u              /* between two looks at the clock */
#define SPIN_FIRST_NS 200000            /* steps before may take long */
#define SPIN_NS       2000000           /* a layer of the reference model takes less than 100 us */
#define SLEEP_NS      20000

enum { NOT_YET = 0, READY, GIVEN_UP };

typedef struct {
    struct qkc_partial *partial;
    pthread_t thread;
    uint32_t share; /* 1 on; the thread that serves has share 0 */
} fold_helper;

struct qkc_partial {
    qkc_context *ctx;
    fold_helper helpers[HELPERS_MAX];
    uint32_t n_helpers;
    pthread_cond_t help;
    uint32_t turn;         /* under lock: counts the folds that the helpers were called to */
    const qkc_step *folds; /* under lock: the step to fold */
    uint32_t n_at_work;    /* __atomic: helpers that have not ended their share */
    pthread_t thread;
    pthread_mutex_t lock;
    pthread_cond_t wake;
    qkc_step *first, *last; /* given and not yet begun; under lock */
    bool stop;              /* under lock */
    bool runs;              /* the thread was started */
    float *block;           /* what follows, [block_bytes] of ordinary memory */
    uint64_t block_bytes;
    float *out;       /* [partial_max, q_dim] */
    float *lse;       /* [partial_max, n_heads] */
    float *acc;       /* [q_dim] */
    float *max, *sum; /* [n_heads] */
};

static qkc_backend *backend_of(const qkc_context *ctx)
{
    return (qkc_backend *)ctx->head.backend;
}

static const qk_shape *shape_of(const qkc_context *ctx)
{
    return &((const qkc_model *)ctx->head.model)->head.shape;
}

/* ---- Kernels ------------------------------------------------------------------------------------------------- */

typedef struct {
    const float *qkv;         /* [rows, qkv_dim] */
    const float *q_norm;      /* [head_dim] */
    const float *cos_sin;     /* [rows, head_dim] */
    const uint32_t *index;    /* [rows]: NO_PARTIAL: nobody asks for this row */
    const uint32_t *state;    /* plan.state */
    uint32_t *count;          /* [1]: blocks that are done; back at 0 at the end */
    float *q;                 /* [rows, n_heads, head_dim], mapped */
    volatile uint32_t *ready; /* [1], mapped */
    uint32_t n_heads, qkv_dim;
    float eps;
} publish_args;

/* A block is a row, a warp one head after the other: norm and rotation as in attn-decode.cu. */
template <int D>
static __global__ void __launch_bounds__(WARPS_MAX *QKC_WARP) publish_kernel(const publish_args p)
{
    qkc_pdl_trigger();
    const uint32_t row = blockIdx.x, lane = threadIdx.x % QKC_WARP, n_warps = blockDim.x / QKC_WARP;
    qkc_pdl_wait();
    const bool given_up = __ldcg(p.state) != QK_OK;
    if (!given_up && __ldcg(p.index + row) != NO_PARTIAL)
        for (uint32_t head = threadIdx.x / QKC_WARP; head < p.n_heads; head += n_warps) {
            const float *from = p.qkv + (size_t)row * p.qkv_dim + (size_t)head * D;
            float *to = p.q + ((size_t)row * p.n_heads + head) * D;
            float x[D / 64], y[D / 64], sum = 0;
#pragma unroll
            for (int e = 0; e < D / 64; e++) {
                x[e] = __ldcg(from + e * 32 + lane);
                y[e] = __ldcg(from + D / 2 + e * 32 + lane);
                sum += x[e] * x[e] + y[e] * y[e];
            }
#pragma unroll
            for (int d = 16; d > 0; d /= 2)
                sum += __shfl_xor_sync(0xffffffffu, sum, d);
            const float scale = 1.0f / sqrtf(sum / D + p.eps);
#pragma unroll
            for (int e = 0; e < D / 64; e++) {
                const uint32_t d = e * 32 + lane;
                const float c = __ldcg(p.cos_sin + (size_t)row * D + d);
                const float s = __ldcg(p.cos_sin + (size_t)row * D + D / 2 + d);
                const float a = x[e] * scale * p.q_norm[d], b = y[e] * scale * p.q_norm[D / 2 + d];
                to[d] = a * c - b * s;
                to[D / 2 + d] = b * c + a * s;
            }
        }
    __syncthreads();
    if (threadIdx.x != 0)
        return;
    __threadfence_system();
    if (atomicInc(p.count, gridDim.x - 1) == gridDim.x - 1) {
        __threadfence_system();
        *p.ready = given_up ? GIVEN_UP : READY;
    }
}

typedef struct {
    float *attn;             /* [rows, n_heads, head_dim]: the device's result, then the merged one */
    const float *lse;        /* [rows, n_heads]: of the former */
    const uint32_t *index;   /* [rows] */
    const float *folded;     /* [rows with items, n_heads, head_dim], mapped */
    const float *folded_lse; /* [rows with items, n_heads], mapped */
    const uint32_t *answer;  /* [1], mapped */
    uint32_t *state;         /* plan.state */
    uint32_t n_heads;
} merge_args;

static __device__ __forceinline__ uint32_t load_acquire_system(const uint32_t *from)
{
    uint32_t v;
    asm volatile("ld.acquire.sys.global.u32 %0, [%1];" : "=r"(v) : "l"(from) : "memory");
    return v;
}

/* One thread: waits for the answer unless the step has been given up, and gives it up when the answer says so. */
static __device__ __forceinline__ uint32_t await_answer(const merge_args &p)
{
    if (__ldcg(p.state) != QK_OK)
        return GIVEN_UP;
    uint32_t answer;
    while ((answer = load_acquire_system(p.answer)) == NOT_YET)
        __nanosleep(POLL_NS);
    if (answer == GIVEN_UP)
        atomicCAS(p.state, (uint32_t)QK_OK, (uint32_t)QK_CANCELLED);
    return answer;
}

/* A warp is a head; blockIdx.y is the row. The host's part is read past every cache. */
template <int D>
static __global__ void __launch_bounds__(MERGE_WARPS *QKC_WARP) merge_kernel(const merge_args p)
{
    __shared__ uint32_t answer;
    qkc_pdl_trigger();
    qkc_pdl_wait();
    const uint32_t row = blockIdx.y, at = __ldcg(p.index + row), lane = threadIdx.x % QKC_WARP;
    const uint32_t head = blockIdx.x * MERGE_WARPS + threadIdx.x / QKC_WARP;
    if (at == NO_PARTIAL)
        return;
    if (threadIdx.x == 0)
        answer = await_answer(p);
    __syncthreads();
    if (answer != READY || head >= p.n_heads)
        return;
    const size_t own = (size_t)row * p.n_heads + head, other = (size_t)at * p.n_heads + head;
    const float2 *theirs = (const float2 *)(p.folded + other * D) + lane;
    float2 *ours = (float2 *)(p.attn + own * D) + lane;
    float2 b[D / 64];
#pragma unroll
    for (int e = 0; e < D / 64; e++)
        b[e] = __ldcv(theirs + e * 32);
    const float lse_b = __ldcv(p.folded_lse + other), lse_a = __ldcg(p.lse + own);
    const float max = fmaxf(lse_a, lse_b), wa = expf(lse_a - max), wb = expf(lse_b - max);
    const float inv = 1.0f / (wa + wb);
#pragma unroll
    for (int e = 0; e < D / 64; e++) {
        const float2 a = __ldcg(ours + e * 32);
        __stcg(ours + e * 32, make_float2((a.x * wa + b[e].x * wb) * inv, (a.y * wa + b[e].y * wb) * inv));
    }
}

cudaError_t qkc_partial_publish(const qkc_pass *pass, uint32_t layer)
{
    const qkc_context *ctx = pass->context;
    const qk_shape *shape = shape_of(ctx);
    publish_args p = {};
    p.qkv = ctx->small_qkv;
    p.q_norm = ((const qkc_model *)ctx->head.model)->layers[layer].q_norm;
    p.cos_sin = ctx->plan.cos_sin;
    p.index = ctx->partial_index;
    p.state = ctx->plan.state;
    p.count = ctx->partial_count;
    p.q = ctx->partial_q;
    p.ready = &pass->step->outside.ready[layer].word;
    p.n_heads = shape->n_heads;
    p.qkv_dim = ctx->qkv_dim;
    p.eps = shape->rms_eps;
    const dim3 block(QKC_WARP * (shape->n_heads < WARPS_MAX ? shape->n_heads : WARPS_MAX));
    return qkc_start(&pass->launch, shape->head_dim == 128 ? publish_kernel<128> : publish_kernel<64>,
        dim3(pass->n_rows), block, 0, p);
}

cudaError_t qkc_partial_merge(const qkc_pass *pass, uint32_t layer)
{
    const qkc_context *ctx = pass->context;
    const qk_shape *shape = shape_of(ctx);
    merge_args p = {};
    p.attn = ctx->small_attn;
    p.lse = ctx->partial_lse;
    p.index = ctx->partial_index;
    p.folded = ctx->partial_folded;
    p.folded_lse = ctx->partial_folded_lse;
    p.answer = &pass->step->outside.answer[layer].word;
    p.state = ctx->plan.state;
    p.n_heads = shape->n_heads;
    const dim3 grid((shape->n_heads + MERGE_WARPS - 1) / MERGE_WARPS, pass->n_rows);
    return qkc_start(&pass->launch, shape->head_dim == 128 ? merge_kernel<128> : merge_kernel<64>, grid,
        dim3(MERGE_WARPS * QKC_WARP), 0, p);
}

/* ---- The thread ---------------------------------------------------------------------------------------------- */

static int64_t now_ns(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return t.tv_sec * INT64_C(1000000000) + t.tv_nsec;
}

static void pause_a_moment(void)
{
#if defined(__x86_64__)
    __builtin_ia32_pause();
#endif
}

static void sleep_ns(long ns)
{
    const struct timespec pause = {0, ns};
    nanosleep(&pause, NULL);
}

static bool is_asked_to_end(const qkc_step *step)
{
    return __atomic_load_n(&step->outside.abandoned, __ATOMIC_ACQUIRE) != 0 ||
           __atomic_load_n(step->cancel, __ATOMIC_ACQUIRE) != 0;
}

/* Waits for the layer's q. False when the step is to be left. */
static bool await_ready(const qkc_step *step, uint32_t layer)
{
    const qkc_backend *backend = (const qkc_backend *)step->head.backend;
    const uint32_t *word = &step->outside.ready[layer].word;
    const int64_t begin = now_ns(), spin = layer == 0 ? SPIN_FIRST_NS : SPIN_NS;
    bool slow = false;
    for (;;) {
        for (uint32_t i = 0; i < (slow ? 1 : LOOKS); i++) {
            const uint32_t seen = __atomic_load_n(word, __ATOMIC_ACQUIRE);
            if (seen != NOT_YET)
                return seen == READY && !is_asked_to_end(step);
            pause_a_moment();
        }
        /* A cancel alone is left to the device, which gives the step up and then raises the word. */
        if (__atomic_load_n(&step->outside.abandoned, __ATOMIC_ACQUIRE) != 0 || qkc_is_lost(backend))
            return false;
        slow = slow || now_ns() - begin > spin;
        if (slow)
            sleep_ns(SLEEP_NS);
    }
}

/* Of heads [first, last) the items [begin, end) of one row become one result, @folded and @folded_lse. */
static void fold_row(qkc_partial *self, uint32_t first, uint32_t last, uint32_t begin, uint32_t end,
    float *folded, float *folded_lse)
{
    const uint32_t n_heads = shape_of(self->ctx)->n_heads, dim = shape_of(self->ctx)->head_dim;
    const size_t q_dim = self->ctx->q_dim;
    for (uint32_t h = first; h < last; h++) {
        self->max[h] = -INFINITY;
        self->sum[h] = 0;
    }
    for (uint32_t i = begin; i < end; i++)
        for (uint32_t h = first; h < last; h++) {
            const float lse = self->lse[(size_t)i * n_heads + h];
            self->max[h] = lse > self->max[h] ? lse : self->max[h];
        }
    memset(self->acc + (size_t)first * dim, 0, (size_t)(last - first) * dim * sizeof(float));
    for (uint32_t i = begin; i < end; i++)
        for (uint32_t h = first; h < last; h++) {
            const float lse = self->lse[(size_t)i * n_heads + h];
            if (lse == -INFINITY)
                continue;
            const float *__restrict__ out = self->out + i * q_dim + (size_t)h * dim;
            float *__restrict__ acc = self->acc + (size_t)h * dim;
            const float w = expf(lse - self->max[h]);
            self->sum[h] += w;
            for (uint32_t d = 0; d < dim; d++)
                acc[d] += w * out[d];
        }
    for (uint32_t h = first; h < last; h++) {
        const float inv = self->sum[h] == 0 ? 0 : 1 / self->sum[h];
        folded_lse[h] = self->sum[h] == 0 ? -INFINITY : self->max[h] + logf(self->sum[h]);
        for (uint32_t d = 0; d < dim; d++)
            folded[h * dim + d] = self->acc[h * dim + d] * inv;
    }
}

/* One of @n_shares parts of the heads, of all rows. */
static void fold_share(qkc_partial *self, const qkc_step *step, uint32_t share, uint32_t n_shares)
{
    const qkc_context *ctx = self->ctx;
    const qkc_outside *o = &step->outside;
    const uint32_t n_heads = shape_of(ctx)->n_heads;
    const uint32_t first = share * n_heads / n_shares, last = (share + 1) * n_heads / n_shares;
    for (uint32_t begin = 0, end, n = 0; begin < o->n_items; begin = end, n++) {
        for (end = begin + 1; end < o->n_items && o->items[end].row == o->items[begin].row; end++)
            ;
        fold_row(self, first, last, begin, end, ctx->partial_folded + (size_t)n * ctx->q_dim,
            ctx->partial_folded_lse + (size_t)n * n_heads);
    }
}

static void fold(qkc_partial *self, const qkc_step *step)
{
    const uint32_t n = self->n_helpers;
    if (n == 0 || (size_t)step->outside.n_items * self->ctx->q_dim * sizeof(float) < HELP_BYTES) {
        fold_share(self, step, 0, 1);
        return;
    }
    __atomic_store_n(&self->n_at_work, n, __ATOMIC_RELAXED);
    pthread_mutex_lock(&self->lock);
    self->folds = step;
    self->turn++;
    pthread_cond_broadcast(&self->help);
    pthread_mutex_unlock(&self->lock);
    fold_share(self, step, 0, n + 1);
    while (__atomic_load_n(&self->n_at_work, __ATOMIC_ACQUIRE) > 0)
        pause_a_moment();
}

static void *help_fold(void *user)
{
    const fold_helper *helper = (const fold_helper *)user;
    qkc_partial *self = helper->partial;
    uint32_t seen = 0;
    pthread_mutex_lock(&self->lock);
    for (;;) {
        while (self->turn == seen && !self->stop)
            pthread_cond_wait(&self->help, &self->lock);
        if (self->turn == seen)
            break;
        seen = self->turn;
        const qkc_step *step = self->folds;
        pthread_mutex_unlock(&self->lock);
        fold_share(self, step, helper->share, self->n_helpers + 1);
        __atomic_fetch_sub(&self->n_at_work, 1, __ATOMIC_RELEASE);
        pthread_mutex_lock(&self->lock);
    }
    pthread_mutex_unlock(&self->lock);
    return NULL;
}

static qk_status call_partial(qkc_partial *self, qkc_step *step, uint32_t layer)
{
    const qk_context_params *params = &self->ctx->head.params;
    qk_partial_args args = {};
    args.plan = &step->plan;
    args.layer = layer;
    args.n_items = step->outside.n_items;
    args.items = step->outside.items;
    args.q = self->ctx->partial_q;
    args.out = self->out;
    args.lse = self->lse;
    const qk_status status = params->partial(params->partial_user, &args);
    /* What a step cannot end with for this reason. */
    return status == QK_PENDING || status == QK_DEVICE_LOST ? QK_INVALID : status;
}

static void serve_step(qkc_partial *self, qkc_step *step)
{
    qkc_outside *o = &step->outside;
    const uint32_t n_layers = shape_of(self->ctx)->n_layers;
    uint32_t layer = 0;
    for (; layer < n_layers && await_ready(step, layer); layer++) {
        const qk_status status = call_partial(self, step, layer);
        if (status != QK_OK) {
            o->status = status;
            o->failed_layer = layer;
            break;
        }
        fold(self, step);
        __atomic_store_n(&o->answer[layer].word, (uint32_t)READY, __ATOMIC_RELEASE);
    }
    for (; layer < n_layers; layer++)
        __atomic_store_n(&o->answer[layer].word, (uint32_t)GIVEN_UP, __ATOMIC_RELEASE);
    __atomic_store_n(&o->busy, 0, __ATOMIC_RELEASE); /* the step is no longer ours */
}

static void *serve(void *user)
{
    qkc_partial *self = (qkc_partial *)user;
    pthread_mutex_lock(&self->lock);
    for (;;) {
        while (self->first == NULL && !self->stop)
            pthread_cond_wait(&self->wake, &self->lock);
        qkc_step *step = self->first;
        if (step == NULL)
            break;
        self->first = step->outside.next;
        if (self->first == NULL)
            self->last = NULL;
        pthread_mutex_unlock(&self->lock);
        serve_step(self, step);
        pthread_mutex_lock(&self->lock);
    }
    pthread_mutex_unlock(&self->lock);
    return NULL;
}

/* ---- Steps --------------------------------------------------------------------------------------------------- */

/* Lists the items by row, then by span, for a plan with one row a sequence; also which rows have some. */
static uint32_t list_items(qkc_step *step)
{
    qkc_outside *o = &step->outside;
    const qk_plan *plan = &step->plan;
    const uint32_t rows_max = ((const qkc_context *)step->head.context)->decode_max;
    uint32_t n_items = 0, n_rows = 0;
    for (uint32_t row = 0; row < rows_max; row++)
        o->index[row] = NO_PARTIAL;
    for (uint32_t s = 0; s < plan->n_seqs; s++) {
        const qk_seq *seq = &plan->seqs[s];
        const uint32_t before = n_items;
        for (uint32_t span = 0; span < seq->start / QK_SPAN_TOKENS; span++) {
            if (plan->pages[seq->page_begin + span * SPAN_PAGES] != 0)
                continue;
            o->items[n_items].seq = s;
            o->items[n_items].row = seq->row_begin;
            o->items[n_items++].span = span;
        }
        if (n_items > before)
            o->index[seq->row_begin] = n_rows++;
    }
    return n_items;
}

bool qkc_partial_is_needed(const qkc_step *step)
{
    const qk_plan *plan = &step->plan;
    if (((const qkc_context *)step->head.context)->partial == NULL)
        return false;
    for (uint32_t s = 0; s < plan->n_seqs; s++)
        for (uint32_t span = 0; span < plan->seqs[s].start / QK_SPAN_TOKENS; span++)
            if (plan->pages[plan->seqs[s].page_begin + span * SPAN_PAGES] == 0)
                return true;
    return false;
}

qk_status qkc_partial_begin(qkc_step *step)
{
    qkc_context *ctx = (qkc_context *)step->head.context;
    qkc_partial *self = ctx->partial;
    qkc_outside *o = &step->outside;
    const uint32_t n_layers = shape_of(ctx)->n_layers;
    memset(o->ready, 0, n_layers * sizeof(*o->ready));
    memset(o->answer, 0, n_layers * sizeof(*o->answer));
    o->n_items = list_items(step);
    o->status = QK_OK;
    o->next = NULL;
    cudaError_t code = cudaMemcpyAsync(ctx->partial_index, o->index, ctx->decode_max * sizeof(*o->index),
        cudaMemcpyHostToDevice, backend_of(ctx)->streams[QK_STREAM_COMPUTE]);
    if (code != cudaSuccess)
        return qkc_fail(backend_of(ctx), QK_UNSUPPORTED, code, "step: sending the rows with outside pages");
    __atomic_store_n(&o->abandoned, 0, __ATOMIC_RELAXED);
    __atomic_store_n(&o->busy, 1, __ATOMIC_RELAXED);
    pthread_mutex_lock(&self->lock);
    if (self->last != NULL)
        self->last->outside.next = step;
    else
        self->first = step;
    self->last = step;
    pthread_cond_signal(&self->wake);
    pthread_mutex_unlock(&self->lock);
    return QK_OK;
}

bool qkc_partial_is_busy(const qkc_step *step)
{
    return __atomic_load_n(&step->outside.busy, __ATOMIC_ACQUIRE) != 0;
}

void qkc_partial_abandon(qkc_step *step)
{
    __atomic_store_n(&step->outside.abandoned, 1, __ATOMIC_RELEASE);
    while (qkc_partial_is_busy(step))
        sleep_ns(SLEEP_NS);
}

/* ---- Contexts ------------------------------------------------------------------------------------------------ */

uint64_t qkc_partial_bytes(const qkc_context *ctx)
{
    const uint64_t n_heads = shape_of(ctx)->n_heads, q_dim = ctx->q_dim;
    const uint64_t n = ctx->head.params.partial_max;
    /* Below 2^26 items of at most 2^48 floats: no sum or product overflows but this one. */
    uint64_t floats, bytes;
    if (n == 0)
        return 0;
    if (__builtin_mul_overflow(n, q_dim + n_heads, &floats) ||
        __builtin_add_overflow(floats, q_dim + 2 * n_heads, &floats) ||
        __builtin_mul_overflow(floats, sizeof(float), &bytes))
        return UINT64_MAX;
    return bytes;
}

/* A quarter of the processors that the process may use, as far as they are for helpers. */
static uint32_t helpers_wanted(void)
{
    cpu_set_t set;
    const uint32_t n = sched_getaffinity(0, sizeof(set), &set) == 0 ? (uint32_t)CPU_COUNT(&set) / 4 : 0;
    return n < HELPERS_MAX ? n : HELPERS_MAX;
}

/* False without the thread that serves; with fewer helpers it only takes longer. */
static bool start_threads(qkc_partial *self)
{
    const uint32_t n = helpers_wanted();
    /* Signals are for the program's other threads. */
    sigset_t all, old;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &old);
    pthread_mutex_lock(&self->lock); /* no helper looks at their number before it is final */
    for (uint32_t i = 0; i < n; i++) {
        fold_helper *helper = &self->helpers[i];
        helper->partial = self;
        helper->share = i + 1;
        if (pthread_create(&helper->thread, NULL, help_fold, helper) != 0)
            break;
        self->n_helpers++;
    }
    pthread_mutex_unlock(&self->lock);
    self->runs = pthread_create(&self->thread, NULL, serve, self) == 0;
    pthread_sigmask(SIG_SETMASK, &old, NULL);
    return self->runs;
}

static qk_status start_partial(qkc_partial *self)
{
    qkc_context *ctx = self->ctx;
    const uint64_t n = ctx->head.params.partial_max, n_heads = shape_of(ctx)->n_heads;
    self->block_bytes = qkc_partial_bytes(ctx);
    void *block = mmap(
        NULL, self->block_bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (block == MAP_FAILED)
        return qkc_fail(backend_of(ctx), QK_NO_MEMORY, cudaSuccess,
            "context: no host memory for %llu bytes of partial results",
            (unsigned long long)self->block_bytes);
    self->block = (float *)block;
    self->out = self->block;
    self->lse = self->out + n * ctx->q_dim;
    self->acc = self->lse + n * n_heads;
    self->max = self->acc + ctx->q_dim;
    self->sum = self->max + n_heads;

    if (!start_threads(self))
        return qkc_fail(
            backend_of(ctx), QK_NO_MEMORY, cudaSuccess, "context: no thread for the partial function");

    /* Code comes to the device before the first step, not in it. */
    cudaFuncAttributes attributes;
    const bool wide = shape_of(ctx)->head_dim == 128;
    cudaError_t code = cudaFuncGetAttributes(&attributes, wide ? publish_kernel<128> : publish_kernel<64>);
    if (code == cudaSuccess)
        code = cudaFuncGetAttributes(&attributes, wide ? merge_kernel<128> : merge_kernel<64>);
    return code == cudaSuccess
               ? QK_OK
               : qkc_fail(backend_of(ctx), QK_UNSUPPORTED, code, "context: loading the kernels that merge");
}

qk_status qkc_partial_new(qkc_context *ctx)
{
    qkc_partial *self = (qkc_partial *)calloc(1, sizeof(*self));
    if (self == NULL)
        return qkc_fail(backend_of(ctx), QK_NO_MEMORY, cudaSuccess, "context: no memory");
    self->ctx = ctx;
    pthread_mutex_init(&self->lock, NULL);
    pthread_cond_init(&self->wake, NULL);
    pthread_cond_init(&self->help, NULL);
    ctx->partial = self; /* freed with the context, whatever follows */
    return start_partial(self);
}

void qkc_partial_free(qkc_partial *self)
{
    if (self == NULL)
        return;
    pthread_mutex_lock(&self->lock);
    self->stop = true;
    pthread_cond_signal(&self->wake);
    pthread_cond_broadcast(&self->help);
    pthread_mutex_unlock(&self->lock);
    if (self->runs)
        pthread_join(self->thread, NULL);
    for (uint32_t i = 0; i < self->n_helpers; i++)
        pthread_join(self->helpers[i].thread, NULL);
    if (self->block != NULL)
        munmap(self->block, self->block_bytes);
    pthread_cond_destroy(&self->wake);
    pthread_cond_destroy(&self->help);
    pthread_mutex_destroy(&self->lock);
    free(self);
}
