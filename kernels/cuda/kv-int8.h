/* kv-int8.h: a vector of QK_I8 pages on the device (the format is at qk_kv_layout in qk.h). Device code, for CUDA sources.
 *
 * Quantising gives the bytes of the CPU backend's f32_to_i8() for the same float32 input: IEEE division and rounding, and
 * its words for what is not a number: the scale of a vector with NaN or infinity is NaN, one that overflows fp16 is
 * infinity, and all q of both are 0, so that such a vector shows as NaN wherever it is used. */
#pragma once
#include <cuda_bf16.h>
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

/* Four int8 numbers as bf16, which is exact: those in bytes 0 and 2, and those in bytes 1 and 3. With the seven low bits
 * as mantissa under the exponent of 128, which counts ones, x is 128 + (q & 127); y, the same of the sign's bit, which is
 * the exponent's last, is 128 or 256; q = x - y. */
static __device__ __forceinline__ void qkc_i8_widen(uint32_t four, uint32_t *even, uint32_t *odd)
{
    uint32_t part[2] = {four, four >> 8};
#pragma unroll
    for (int i = 0; i < 2; i++) {
        uint32_t x = (part[i] & 0x007f007fu) | 0x43004300u, y = (part[i] & 0x00800080u) | 0x43004300u;
        __nv_bfloat162 q =
            __hsub2(*reinterpret_cast<__nv_bfloat162 *>(&x), *reinterpret_cast<__nv_bfloat162 *>(&y));
        part[i] = *reinterpret_cast<uint32_t *>(&q);
    }
    *even = part[0];
    *odd = part[1];
}

/* 16 numbers times their scale, rounded to bf16: what attention kernels that read bf16 see of int8 pages. With q + 128 in the
 * second byte of a float whose ulp is 1/128, that float is 65,536 + 2 (q + 128) = 2 q + 65,792. Times s / 2, less 65,792 s / 2,
 * which has 20 bits, that is q s, which has 18: a fused multiply-add gives it exactly. */
static __device__ __forceinline__ void qkc_i8_to_bf16(uint4 from, float scale, uint4 *low, uint4 *high)
{
    const uint32_t word[4] = {from.x, from.y, from.z, from.w};
    const float by = 0.5f * scale, less = -65792.0f * by;
    uint32_t out[8];
#pragma unroll
    for (int i = 0; i < 4; i++) {
        const uint32_t positive = word[i] ^ 0x80808080u; /* q + 128 */
        float x[4];
#pragma unroll
        for (int j = 0; j < 4; j++)
            x[j] = fmaf(__uint_as_float(__byte_perm(positive, 0x47800000u, 0x7604u | j << 4)), by, less);
        const __nv_bfloat162 first = __floats2bfloat162_rn(x[0], x[1]),
                             second = __floats2bfloat162_rn(x[2], x[3]);
        out[2 * i] = *reinterpret_cast<const uint32_t *>(&first);
        out[2 * i + 1] = *reinterpret_cast<const uint32_t *>(&second);
    }
    *low = make_uint4(out[0], out[1], out[2], out[3]);
    *high = make_uint4(out[4], out[5], out[6], out[7]);
}
