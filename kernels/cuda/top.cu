/* top.cu: the most probable ids of an output, with their log-probabilities: what qk_sample_top() of kernels/cpu/sample.c
 * computes. Launched behind a step's other kernels, and only when some output lists any, so that others pay nothing.
 *
 * A block does an output. It reads the row twice. First every warp finds its largest logit: of these the n-th largest is
 * a bound that n ids reach. Then the ids at or above it are listed, few more than n for logits without many ties, and
 * ranked by comparing each with all. A list that does not fit (equal logits) is replaced by n rounds, each of which
 * looks for the largest below the one before.
 *
 * Keys order logits, and ids among equal ones; the sum of exponentials is float64. For a vocabulary of 151,936: two reads
 * of 608 KB out of L2 by one multiprocessor, an estimated 15 to 20 us. */
#include "kernels/cuda/cuda-ops.h"
#include <float.h>

#define THREADS   1024u
#define WARPS     (THREADS / QKC_WARP)
#define LIST_MAX  2048u
#define ALL_LANES 0xffffffffu

static_assert(WARPS == QKC_WARP && QK_TOP_MAX <= WARPS, "a lane for each warp's largest, and enough of them");

typedef struct {
    uint64_t warp_key[WARPS], bound, last;
    double warp_sum[WARPS];
    uint64_t list[LIST_MAX];
    uint32_t n_listed, bad;
} shared;

/* Larger logits have larger keys, of equal ones the lower id; -0 counts as 0. No key is 0. */
static __device__ __forceinline__ uint64_t key_of(float z, uint32_t id)
{
    const uint32_t bits = __float_as_uint(__fadd_rn(z, 0.0f));
    return (uint64_t)(bits & 0x80000000u ? ~bits : bits | 0x80000000u) << 32 | ~id;
}

static __device__ __forceinline__ float logit_of(uint64_t key)
{
    const uint32_t order = (uint32_t)(key >> 32);
    return __uint_as_float(order & 0x80000000u ? order & 0x7fffffffu : ~order);
}

static __device__ __forceinline__ uint64_t warp_max(uint64_t key)
{
#pragma unroll
    for (int delta = 16; delta > 0; delta /= 2)
        key = max(key, (uint64_t)__shfl_xor_sync(ALL_LANES, (unsigned long long)key, delta));
    return key;
}

/* The largest key below @below, the same in all threads. */
static __device__ uint64_t largest_below(shared &sh, const float *z, uint32_t vocab, uint64_t below)
{
    uint64_t best = 0;
    for (uint32_t i = threadIdx.x; i < vocab; i += THREADS) {
        const uint64_t key = key_of(z[i], i);
        if (key < below)
            best = max(best, key);
    }
    best = warp_max(best);
    __syncthreads(); /* what was there has been read */
    if (threadIdx.x % QKC_WARP == 0)
        sh.warp_key[threadIdx.x / QKC_WARP] = best;
    __syncthreads();
    if (threadIdx.x < QKC_WARP) {
        best = warp_max(sh.warp_key[threadIdx.x]);
        if (threadIdx.x == 0)
            sh.last = best;
    }
    __syncthreads();
    return sh.last;
}

/* Every warp's largest key, and whether all logits are finite. */
static __device__ void scan(shared &sh, const float *z, uint32_t vocab)
{
    uint64_t best = 0;
    uint32_t bad = 0;
    for (uint32_t i = threadIdx.x; i < vocab; i += THREADS) {
        bad |= !(fabsf(z[i]) <= FLT_MAX);
        best = max(best, key_of(z[i], i));
    }
    best = warp_max(best);
    if (threadIdx.x % QKC_WARP == 0)
        sh.warp_key[threadIdx.x / QKC_WARP] = best;
    bad = (uint32_t)__syncthreads_or((int)bad);
    if (threadIdx.x == 0)
        sh.bad = bad;
}

/* The n-th largest of the warps' keys; 0, which takes all ids, when fewer warps have any. And the largest logit. */
static __device__ float set_bound(shared &sh, uint32_t n)
{
    if (threadIdx.x < QKC_WARP) {
        const uint64_t mine = sh.warp_key[threadIdx.x];
        uint32_t n_larger = 0;
        for (uint32_t j = 0; j < WARPS; j++)
            n_larger += sh.warp_key[j] > mine;
        if (threadIdx.x == 0) {
            sh.bound = 0;
            sh.n_listed = 0;
        }
        __syncwarp();
        if (n_larger == n - 1 && mine != 0) /* keys differ, but for those of warps without an id */
            sh.bound = mine;
    }
    __syncthreads();
    const float max = logit_of(warp_max(sh.warp_key[threadIdx.x % QKC_WARP]));
    return max;
}

/* Lists the keys from the bound up; returns ln of the sum of e^(z - max), the same in all threads. */
static __device__ double list_keys(shared &sh, const float *z, uint32_t vocab, float max)
{
    double sum = 0;
    for (uint32_t i = threadIdx.x; i < vocab; i += THREADS) {
        const uint64_t key = key_of(z[i], i);
        sum += (double)expf(z[i] - max);
        if (key < sh.bound)
            continue;
        const uint32_t place = atomicAdd(&sh.n_listed, 1);
        if (place < LIST_MAX)
            sh.list[place] = key;
    }
#pragma unroll
    for (int delta = 16; delta > 0; delta /= 2)
        sum += __shfl_xor_sync(ALL_LANES, sum, delta);
    if (threadIdx.x % QKC_WARP == 0)
        sh.warp_sum[threadIdx.x / QKC_WARP] = sum;
    __syncthreads();
    sum = 0;
    for (uint32_t j = 0; j < WARPS; j++)
        sum += sh.warp_sum[j];
    return log(sum);
}

static __device__ __forceinline__ qk_top top_of(uint64_t key, float max, double log_sum)
{
    return {~(uint32_t)key, (float)((double)logit_of(key) - (double)max - log_sum)};
}

static __global__ void __launch_bounds__(THREADS, 1)
    top_kernel(const float *logits, uint32_t vocab, const qk_output *outputs, qk_top *tops)
{
    __shared__ shared sh;
    const uint32_t n = outputs[blockIdx.x].n_top;
    const float *z = logits + (size_t)blockIdx.x * vocab;
    qk_top *to = tops + (size_t)blockIdx.x * QK_TOP_MAX;
    if (n == 0)
        return;
    scan(sh, z, vocab);
    __syncthreads();
    if (sh.bad) {
        if (threadIdx.x < n)
            to[threadIdx.x] = {threadIdx.x, __int_as_float(0x7fc00000)};
        return;
    }
    const float max = set_bound(sh, n);
    const double log_sum = list_keys(sh, z, vocab, max);
    const uint32_t n_listed = sh.n_listed;
    if (n_listed <= LIST_MAX) {
        for (uint32_t i = threadIdx.x; i < n_listed; i += THREADS) {
            uint32_t place = 0;
            for (uint32_t j = 0; j < n_listed; j++)
                place += sh.list[j] > sh.list[i];
            if (place < n)
                to[place] = top_of(sh.list[i], max, log_sum);
        }
        return;
    }
    uint64_t key = UINT64_MAX;
    for (uint32_t i = 0; i < n; i++) {
        key = largest_below(sh, z, vocab, key);
        if (threadIdx.x == 0)
            to[i] = top_of(key, max, log_sum);
    }
}

cudaError_t qkc_top(const qkc_launch *launch, const qkc_top_args *args)
{
    if (args->n_outputs == 0)
        return cudaSuccess;
    qkc_launch plain = *launch;
    plain.pdl = false; /* reads what the step's kernels wrote */
    return qkc_start(&plain, top_kernel, dim3(args->n_outputs), dim3(THREADS), 0, args->logits, args->vocab,
        args->outputs, args->tops);
}
