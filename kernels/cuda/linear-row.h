/* linear-row.h: what products of one row are made of, for linear.cu (one product) and linear-chain.cu (those between two
 * attentions): x in shared memory, and the sum over a unit of 512 inputs of one row of W, in two forms. Device code, for
 * these two files.
 *
 *   FMA  x as float32, products and sums on CUDA cores
 *   MMA  x as the sum of two bf16 numbers (16 bits of it at least), on tensor cores, with a third of the instructions
 *
 * Both read 2 KiB of x in shared memory for 1 KiB of weights. Us a layer of the reference model on an H200: products launched
 * one by one 56.1 (FMA) and 58.1 (MMA) on Hopper's path, 63.2 and 64.3 on the portable one; in one launch there 59.3 (MMA). */
#pragma once
#include "kernels/cuda/linear.h"

#define GEMV_WARPS       16u
#define GEMV_THREADS     (GEMV_WARPS * QKC_WARP)
#define GEMV_UNIT        512u            /* inputs of a unit: 64 chunks of 8, two for each lane */
#define GEMV_UNIT_CHUNKS (GEMV_UNIT / 8) /* 16-byte chunks */
#define X_UNIT_BYTES     (GEMV_UNIT * 4) /* of x in shared memory, for each unit */
#define X_BATCH          5u              /* quads that a thread loads at a time */
#define ALL_LANES        0xffffffffu

typedef enum { GEMV_FMA, GEMV_MMA } gemv_form;

static __host__ __device__ __forceinline__ uint32_t gemv_units(uint32_t n_in)
{
    return (n_in + GEMV_UNIT - 1) / GEMV_UNIT;
}

static __device__ __forceinline__ float warp_sum(float v)
{
#pragma unroll
    for (uint32_t d = QKC_WARP / 2; d > 0; d /= 2)
        v += __shfl_xor_sync(ALL_LANES, v, d);
    return v;
}

/* ---- x ------------------------------------------------------------------------------------------------------- */

/* Elements 4 @i to 4 @i + 3 of x into their place. FMA: quads with even @i and quads with odd @i each lie together, so that a
 * warp reads those of neighbouring chunks without conflicts. MMA: a unit's 64 chunks of 8 high halves come before its 64 of
 * low ones. */
template <gemv_form FORM>
static __device__ __forceinline__ void put_quad(void *xs, uint32_t i, uint32_t units, float4 v)
{
    if constexpr (FORM == GEMV_FMA) {
        ((float4 *)xs)[i % 2 * units * GEMV_UNIT_CHUNKS + i / 2] = v;
    } else {
        uint2 high, low;
        split_bf16(v.x, v.y, &high.x, &low.x);
        split_bf16(v.z, v.w, &high.y, &low.y);
        uint2 *to = (uint2 *)((char *)xs + i / (GEMV_UNIT / 4) * X_UNIT_BYTES) + i % (GEMV_UNIT / 4);
        to[0] = high;
        to[GEMV_UNIT / 4] = low;
    }
}

/* All threads: x (times the norm's weights) to shared memory, zeros from n_in to the end of the last unit; returns the
 * thread's part of the sum of squares. A batch of loads is on its way before the first is used. */
template <gemv_form FORM>
static __device__ __forceinline__ float stage_x(
    const float *x, const float *norm, uint32_t n_in, uint32_t units, void *xs)
{
    const uint32_t n_quads = units * (GEMV_UNIT / 4);
    const float4 *x4 = (const float4 *)x, *norm4 = (const float4 *)norm;
    float squares = 0;
#pragma unroll 1
    for (uint32_t base = threadIdx.x; base < n_quads; base += X_BATCH * GEMV_THREADS) {
        float4 v[X_BATCH];
#pragma unroll
        for (uint32_t b = 0; b < X_BATCH; b++) {
            const uint32_t i = base + b * GEMV_THREADS;
            v[b] = i < n_in / 4 ? __ldcg(x4 + i) : make_float4(0, 0, 0, 0);
        }
#pragma unroll
        for (uint32_t b = 0; b < X_BATCH; b++) {
            const uint32_t i = base + b * GEMV_THREADS;
            if (i >= n_quads)
                break;
            float4 a = v[b];
            if (norm && i < n_in / 4) {
                const float4 w = __ldg(norm4 + i);
                squares += a.x * a.x + a.y * a.y + a.z * a.z + a.w * a.w;
                a.x *= w.x, a.y *= w.y, a.z *= w.z, a.w *= w.w;
            }
            put_quad<FORM>(xs, i, units, a);
        }
    }
    return squares;
}

/* 1 / the root mean square, of the warps' sums of squares. */
static __device__ __forceinline__ float norm_factor(const float *squares, uint32_t n_in, float eps)
{
    float total = 0;
    for (uint32_t i = 0; i < GEMV_WARPS; i++)
        total += squares[i];
    return 1.0f / sqrtf(total / (float)n_in + eps);
}

/* ---- A unit -------------------------------------------------------------------------------------------------- */

/* Two bf16 in a word: the low half is the first. */
static __device__ __forceinline__ float low(uint32_t v)
{
    return __uint_as_float(v << 16);
}
static __device__ __forceinline__ float high(uint32_t v)
{
    return __uint_as_float(v & 0xffff0000u);
}

static __device__ __forceinline__ float dot8(uint4 w, float4 a, float4 b)
{
    float even = low(w.x) * a.x, odd = high(w.x) * a.y;
    even = fmaf(low(w.y), a.z, even), odd = fmaf(high(w.y), a.w, odd);
    even = fmaf(low(w.z), b.x, even), odd = fmaf(high(w.z), b.y, odd);
    even = fmaf(low(w.w), b.z, even), odd = fmaf(high(w.w), b.w, odd);
    return even + odd;
}

/* The sum over unit @unit, in lane 0. @w: the lane's chunks, those of its number and of 32 more.
 *
 * MMA: the 64 chunks are 8 slices. Lanes 4 g to 4 g + 3 hold slice g: of the weights as column g, of x as row g (high
 * halves) and row g + 8 (low ones). Of the 8 x 8 sums of products those of a slice with itself count; they are in lanes 0,
 * 4, 9, 13, 18, 22, 27 and 31. Eight rows of W as columns would use all of them, but 64 bytes of each of 8 rows are read
 * at half the rate of 512 that lie together. */
template <gemv_form FORM>
static __device__ __forceinline__ float unit_sum(
    const uint4 (&w)[2], const void *xs, uint32_t unit, uint32_t units)
{
    const uint32_t lane = threadIdx.x % QKC_WARP;
    if constexpr (FORM == GEMV_FMA) {
        const float4 *a = (const float4 *)xs + unit * GEMV_UNIT_CHUNKS + lane;
        const float4 *b = a + units * GEMV_UNIT_CHUNKS;
        return warp_sum(dot8(w[0], a[0], b[0]) + dot8(w[1], a[QKC_WARP], b[QKC_WARP]));
    } else {
        const uint4 *x = (const uint4 *)((const char *)xs + unit * X_UNIT_BYTES) + lane;
        float c[2][4] = {};
#pragma unroll
        for (uint32_t h = 0; h < 2; h++) {
            const uint4 a = x[h * QKC_WARP], b = x[GEMV_UNIT_CHUNKS + h * QKC_WARP];
            mma_bf16(c[0], a.x, b.x, a.y, b.y, w[h].x, w[h].y);
            mma_bf16(c[1], a.z, b.z, a.w, b.w, w[h].z, w[h].w);
        }
        const bool odd = lane / 4 % 2 != 0, mine = lane / 8 == lane % 4;
        const float high_sum = odd ? c[0][1] + c[1][1] : c[0][0] + c[1][0];
        const float low_sum = odd ? c[0][3] + c[1][3] : c[0][2] + c[1][2];
        float s = mine ? high_sum + low_sum : 0;
        s += __shfl_xor_sync(ALL_LANES, s, 4);
        s += __shfl_xor_sync(ALL_LANES, s, 9);
        return s + __shfl_xor_sync(ALL_LANES, s, 18);
    }
}

/* A warp: asks for unit @unit of row @row of W, which is @n_in long; zeros past its end. */
static __device__ __forceinline__ void copy_unit(
    const qkc_bf16 *w, uint32_t n_in, uint32_t row, uint32_t unit, uint4 *slot, uint64_t policy)
{
    const uint32_t lane = threadIdx.x % QKC_WARP;
    const qkc_bf16 *src = w + (size_t)row * n_in + unit * GEMV_UNIT;
    const uint32_t left = n_in / 8 - unit * GEMV_UNIT_CHUNKS; /* chunks of the row from here on */
#pragma unroll
    for (uint32_t h = 0; h < 2; h++) {
        const uint32_t chunk = h * QKC_WARP + lane;
        const bool inside = chunk < left;
        linear_copy16(slot + chunk, inside ? src + chunk * 8 : w, inside ? 16 : 0, policy);
    }
}

/* Adds up the units of matrix row @row of the block. */
static __device__ __forceinline__ float row_sum(const float *sums, uint32_t row, uint32_t units)
{
    float s = 0;
#pragma unroll 8
    for (uint32_t u = 0; u < units; u++)
        s += sums[row * units + u];
    return s;
}

/* Output @i of a block's @n, whose up rows lie behind its gate rows (QKC_SILU_MUL). @old: what QKC_ADD adds to. */
static __device__ __forceinline__ float output(
    const float *sums, uint32_t i, uint32_t n, uint32_t units, qkc_then then, float scale, float old)
{
    float y = row_sum(sums, i, units) * scale;
    if (then == QKC_ADD)
        y += old;
    else if (then == QKC_SILU_MUL)
        y = linear_silu(y) * (row_sum(sums, n + i, units) * scale);
    return y;
}
