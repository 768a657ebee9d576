/* kv-int8.h: a vector of QK_I8 pages on the device (the format is at qk_kv_layout in qk.h). Device code, for CUDA sources.
 *
 * Quantising gives the bytes of the CPU backend's f32_to_i8() for the same float32 input: IEEE division and rounding, and
 * its words for what is not a number: the scale of a vector with NaN or infinity is NaN, one that overflows fp16 is
 * infinity, and all q of both are 0, so that such a vector shows as NaN wherever it is used. */
#pragma once
#include <cuda_fp16.h>
#include <stdint.h>

/* Of a vector's elements the largest of these words says the scale: |x| as bits, in which infinity comes after every
 * number and NaN after infinity. */
static __device__ __forceinline__ uint32_t qkc_i8_size(float x)
{
    return __float_as_uint(x) & 0x7fffffffu;
}

/* The scale's fp16 bits. @size: the vector's largest qkc_i8_size(). */
static __device__ __forceinline__ uint16_t qkc_i8_scale(uint32_t size)
{
    const uint32_t infinity = 0x7f800000u;
    if (size == 0 || size >= infinity)
        return size == 0 ? 0 : 0x7e00;
    const float s = fmaxf(__fdiv_rn(__uint_as_float(size), 127.0f), 6.103515625e-05f); /* 2^-14 */
    return __half_as_ushort(__float2half_rn(s));
}

static __device__ __forceinline__ float qkc_i8_float(uint16_t scale)
{
    return __half2float(__ushort_as_half(scale));
}

/* One element in the low byte; @s: the vector's scale. */
static __device__ __forceinline__ uint32_t qkc_i8_value(float x, float s)
{
    if (!(s > 0.0f && s < __uint_as_float(0x7f800000u)))
        return 0;
    const float q = fminf(fmaxf(rintf(__fdiv_rn(x, s)), -127.0f), 127.0f);
    return (uint32_t)__float2int_rn(q) & 0xffu;
}
