/* linear.h: what linear.cu (one row) and linear-mma.cu (2 to 64 rows) share: the choices that a benchmark may vary, and
 * the few instructions that have no C form. Internal to these two files and tests/gpu/test-gpu-linear.cu. */
#pragma once
#include "kernels/cuda/cuda-ops.h"
#ifdef __CUDACC__
#include "kernels/cuda/ptx.h"
#endif

/* How a product is launched; it never changes the result's value for one row. Zero means the default of the path. */
typedef struct {
    uint32_t depth; /* one row: stages of a warp's ring, 2 to 6 (1 KiB each); fewer where they do not fit */
    uint32_t
        ahead_kib; /* more rows: what a block asks into the L2 behind its ring before it waits; UINT32_MAX: nothing */
    uint32_t per_sm;  /* one row: blocks that share an SM */
    uint32_t cluster; /* more rows, Hopper: blocks that split the inputs of the same rows: 1, 2, 4, 8 */
    uint32_t
        warps_m; /* more rows: warps of a block with rows of their own; the other factor of 8 splits inputs */
    bool early;  /* let the next kernel start at once, not when the last weights have been asked for */
} qkc_linear_tuning;

cudaError_t qkc_linear_tuned(
    const qkc_launch *launch, const qkc_linear_args *args, const qkc_linear_tuning *tuning);

cudaError_t qkc_linear_chain_init(void);
cudaError_t qkc_linear_mma_init(void);
cudaError_t qkc_linear_mma(
    const qkc_launch *launch, const qkc_linear_args *args, const qkc_linear_tuning *tuning);

/* Shared memory of a block that leaves room for a block of the next kernel on the same SM (sm_90: 228 KiB an SM, 1 KiB
 * of it taken by each block), and the most a block of the portable path may have. */
#define QKC_LINEAR_SMEM_HALF     (113u << 10)
#define QKC_LINEAR_SMEM_PORTABLE (99u << 10)
#define QKC_LINEAR_SMEM_SM89     (100u << 10) /* of an SM of sm_86 and sm_89 */
#define QKC_LINEAR_SMEM_TAKEN    (1u << 10)
#define QKC_LINEAR_SMEM_MAX      (227u << 10)

#ifdef __CUDACC__
/* Weights are read once a step: they are the first to leave the L2. */
static __device__ __forceinline__ uint64_t linear_stream_policy(void)
{
    uint64_t policy;
    asm("createpolicy.fractional.L2::evict_first.b64 %0, 1.0;" : "=l"(policy));
    return policy;
}

/* 16 bytes from global to shared memory past the L1; zeros when @bytes is 0 (then @src is not read). */
static __device__ __forceinline__ void linear_copy16(
    void *dst, const void *src, uint32_t bytes, uint64_t policy)
{
    asm volatile("cp.async.cg.shared.global.L2::cache_hint [%0], [%1], 16, %2, %3;" ::"r"(shared_of(dst)),
                 "l"(src), "r"(bytes), "l"(policy)
                 : "memory");
}

static __device__ __forceinline__ void linear_prefetch_l2(const void *p)
{
    asm volatile("prefetch.global.L2 [%0];" ::"l"(p));
}

static __device__ __forceinline__ float linear_silu(float v)
{
    return v / (1.0f + expf(-v));
}
#endif
