/* ptx.h: instructions without a C form that several kernels use, and the few lines around them. Device code; those of wgmma
 * and of mbarriers that count bytes need sm_90a, and are there for the files that are built for it alone. */
#pragma once
#include <cuda_bf16.h>
#include <stdint.h>

/* ---- Shared memory ------------------------------------------------------------------------------------------- */

static __device__ __forceinline__ uint32_t shared_of(const void *p)
{
    return (uint32_t)__cvta_generic_to_shared(p);
}

/* 16 bytes from global to shared memory, past the L1 cache; zeros and no read when not @valid. */
static __device__ __forceinline__ void copy_16(uint32_t to, uint64_t from, bool valid)
{
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(to), "l"(from), "r"(valid ? 16u : 0u)
                 : "memory");
}

static __device__ __forceinline__ void copy_commit(void)
{
    asm volatile("cp.async.commit_group;" ::: "memory");
}

/* Until at most @N of this thread's newest groups are under way. */
template <int N> static __device__ __forceinline__ void copy_wait(void)
{
    asm volatile("cp.async.wait_group %0;" ::"n"(N) : "memory");
}

/* ---- Numbers ------------------------------------------------------------------------------------------------- */

static __device__ __forceinline__ float exp2_approx(float x)
{
    float y;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}

/* Two numbers as bf16, @low in the lower half. */
static __device__ __forceinline__ uint32_t pack_bf16(float low, float high)
{
    uint32_t y;
    asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(y) : "f"(high), "f"(low));
    return y;
}

/* x and y (in the upper half) as bf16 numbers, and what that leaves out as bf16 numbers. */
static __device__ __forceinline__ void split_bf16(float x, float y, uint32_t *high, uint32_t *low)
{
    const __nv_bfloat162 h = __floats2bfloat162_rn(x, y);
    const __nv_bfloat162 l = __floats2bfloat162_rn(x - __low2float(h), y - __high2float(h));
    *high = *(const uint32_t *)&h;
    *low = *(const uint32_t *)&l;
}

static __device__ __forceinline__ float4 add4(float4 a, float4 b)
{
    return make_float4(a.x + b.x, a.y + b.y, a.z + b.z, a.w + b.w);
}

/* c += a b: a is 16 x 16, b 16 x 8. Stays where it is written. */
static __device__ __forceinline__ void mma_bf16(
    float (&c)[4], uint32_t a0, uint32_t a1, uint32_t a2, uint32_t a3, uint32_t b0, uint32_t b1)
{
    asm volatile(
        "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, "
        "{%0, %1, %2, %3};"
        : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
        : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "r"(b0), "r"(b1));
}

/* ---- mbarriers (sm_90) --------------------------------------------------------------------------------------- */

static __device__ __forceinline__ void barrier_init(uint32_t barrier, uint32_t n_arrivals)
{
    asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(barrier), "r"(n_arrivals) : "memory");
}

static __device__ __forceinline__ void barrier_arrive(uint32_t barrier)
{
    asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(barrier) : "memory");
}

static __device__ __forceinline__ void barrier_wait(uint32_t barrier, uint32_t parity)
{
    uint32_t done;
    do {
        asm volatile("{\n"
                     ".reg .pred p;\n"
                     "mbarrier.try_wait.parity.shared::cta.b64 p, [%1], %2;\n"
                     "selp.u32 %0, 1, 0, p;\n"
                     "}\n"
                     : "=r"(done)
                     : "r"(barrier), "r"(parity)
                     : "memory");
    } while (!done);
}

/* ---- wgmma (sm_90a) ------------------------------------------------------------------------------------------ */

static __device__ __forceinline__ void wgmma_fence(void)
{
    asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
}

static __device__ __forceinline__ void wgmma_commit(void)
{
    asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
}

template <int N> static __device__ __forceinline__ void wgmma_wait(void)
{
    asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(N) : "memory");
}

/* A matrix descriptor: address, leading offset and stride offset (1,024: 8 rows of 128 bytes) in units of 16 bytes at bits 0,
 * 16 and 32; 128-byte swizzle is 1 at bit 62. The leading offset has no meaning for K-major operands with this swizzle (16 bytes
 * by convention). */
static __device__ __forceinline__ uint64_t wgmma_descriptor(uint32_t address, uint32_t leading_bytes)
{
    return 1ull << 62 | (uint64_t)(1024u >> 4) << 32 | (uint64_t)(leading_bytes >> 4) << 16 |
           (address & 0x3ffffu) >> 4;
}
