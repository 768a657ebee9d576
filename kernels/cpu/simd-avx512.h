/* simd-avx512.h: the vector layer over AVX-512 (F, BW, VL, DQ): 16 float lanes.
 *
 * The ops are written once, in simd-matmul.h, simd-attend.h and simd-rows.h, against the names defined here and in
 * simd-avx2.h; each ops-*.c includes one layer and then those three. Everything is static, so the two coexist.
 * Nothing here reads or writes a lane that the caller did not ask for. */
#pragma once
#include <immintrin.h>
#include "kernels/cpu/qk-cpu-ops.h"

#define SIMD_INLINE static inline __attribute__((always_inline))

#define SIMD_ISA_NAME    "avx512"
#define SIMD_WIDTH       16 /* float lanes */
#define SIMD_MATMUL_ROWS 6  /* rows of a register tile of 4 outputs: 24 sums + 6 x + 1 w of 32 registers */
#define SIMD_SCORE_ROWS  6  /* query heads of a tile of 4 vectors of keys, likewise */

typedef __m512 vec;

SIMD_INLINE vec v_zero(void)
{
    return _mm512_setzero_ps();
}
SIMD_INLINE vec v_set1(float x)
{
    return _mm512_set1_ps(x);
}
SIMD_INLINE vec v_add(vec a, vec b)
{
    return _mm512_add_ps(a, b);
}
SIMD_INLINE vec v_sub(vec a, vec b)
{
    return _mm512_sub_ps(a, b);
}
SIMD_INLINE vec v_mul(vec a, vec b)
{
    return _mm512_mul_ps(a, b);
}
SIMD_INLINE vec v_div(vec a, vec b)
{
    return _mm512_div_ps(a, b);
}
/* a * b + c, rounded once. */
SIMD_INLINE vec v_fma(vec a, vec b, vec c)
{
    return _mm512_fmadd_ps(a, b, c);
}
/* c - a * b, rounded once. */
SIMD_INLINE vec v_fnma(vec a, vec b, vec c)
{
    return _mm512_fnmadd_ps(a, b, c);
}
/* @b where either is NaN. */
SIMD_INLINE vec v_max(vec a, vec b)
{
    return _mm512_max_ps(a, b);
}
SIMD_INLINE vec v_min(vec a, vec b)
{
    return _mm512_min_ps(a, b);
}

/* The first @n lanes, 1 <= n < SIMD_WIDTH; the functions named _n touch these only, and load 0 into the others. */
SIMD_INLINE __mmask16 v_mask(uint32_t n)
{
    return (__mmask16)((1u << n) - 1u);
}
SIMD_INLINE vec v_load(const float *p)
{
    return _mm512_loadu_ps(p);
}
SIMD_INLINE vec v_load_n(const float *p, uint32_t n)
{
    return _mm512_maskz_loadu_ps(v_mask(n), p);
}
SIMD_INLINE void v_store(float *p, vec a)
{
    _mm512_storeu_ps(p, a);
}
SIMD_INLINE void v_store_n(float *p, vec a, uint32_t n)
{
    _mm512_mask_storeu_ps(p, v_mask(n), a);
}
/* Lanes from @n on become @fill. */
SIMD_INLINE vec v_keep_n(vec a, vec fill, uint32_t n)
{
    return _mm512_mask_blend_ps(v_mask(n), fill, a);
}

SIMD_INLINE vec v_widen(__m256i x)
{
    return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(x), 16));
}
SIMD_INLINE vec v_load_bf16(const qk_bf16 *p)
{
    return v_widen(_mm256_loadu_si256((const __m256i *)p));
}
SIMD_INLINE vec v_load_bf16_n(const qk_bf16 *p, uint32_t n)
{
    return v_widen(_mm256_maskz_loadu_epi16(v_mask(n), p));
}
/* To nearest, ties to even; a NaN is made quiet so that cutting its low bits cannot turn it into infinity. */
SIMD_INLINE __m256i v_narrow(vec a)
{
    __m512i u = _mm512_castps_si512(a);
    __m512i odd = _mm512_and_si512(_mm512_srli_epi32(u, 16), _mm512_set1_epi32(1));
    __m512i rounded = _mm512_add_epi32(u, _mm512_add_epi32(odd, _mm512_set1_epi32(0x7fff)));
    __mmask16 nan = _mm512_cmp_ps_mask(a, a, _CMP_UNORD_Q);
    rounded = _mm512_mask_or_epi32(rounded, nan, u, _mm512_set1_epi32(0x400000));
    return _mm512_cvtepi32_epi16(_mm512_srli_epi32(rounded, 16));
}
SIMD_INLINE void v_store_bf16(qk_bf16 *p, vec a)
{
    _mm256_storeu_si256((__m256i *)p, v_narrow(a));
}
SIMD_INLINE void v_store_bf16_n(qk_bf16 *p, vec a, uint32_t n)
{
    _mm256_mask_storeu_epi16(p, v_mask(n), v_narrow(a));
}

/* A lane of two bf16 (element 2j low, 2j + 1 high), as memory holds them: each widened. */
SIMD_INLINE vec v_pair_low(vec a)
{
    return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_castps_si512(a), 16));
}
SIMD_INLINE vec v_pair_high(vec a)
{
    return _mm512_castsi512_ps(_mm512_and_si512(_mm512_castps_si512(a), _mm512_set1_epi32((int)0xffff0000u)));
}

/* Bit patterns with the sign cleared, compared as whole numbers. */
SIMD_INLINE vec v_abs(vec a)
{
    return _mm512_castsi512_ps(_mm512_and_si512(_mm512_castps_si512(a), _mm512_set1_epi32(0x7fffffff)));
}
SIMD_INLINE vec v_max_bits(vec a, vec b)
{
    return _mm512_castsi512_ps(_mm512_max_epi32(_mm512_castps_si512(a), _mm512_castps_si512(b)));
}
SIMD_INLINE uint32_t v_max_bits_lanes(vec a)
{
    return (uint32_t)_mm512_reduce_max_epi32(_mm512_castps_si512(a));
}

/* Half floats: to nearest even; exact. */
SIMD_INLINE qk_f16 v_to_f16(float x)
{
    __m256i half = _mm512_cvtps_ph(_mm512_set1_ps(x), _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
    return (qk_f16)_mm256_cvtsi256_si32(half);
}
SIMD_INLINE float v_from_f16(qk_f16 x)
{
    return _mm512_cvtss_f32(_mm512_cvtph_ps(_mm256_set1_epi16((short)x)));
}
SIMD_INLINE vec v_load_f16(const qk_f16 *p)
{
    return _mm512_cvtph_ps(_mm256_loadu_si256((const __m256i *)p));
}

/* Whole numbers of 8 bits, as floats. Stores round to nearest even and expect what fits. */
SIMD_INLINE vec v_load_i8(const int8_t *p)
{
    return _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(_mm_loadu_si128((const __m128i *)p)));
}
SIMD_INLINE vec v_load_i8_n(const int8_t *p, uint32_t n)
{
    return _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(_mm_maskz_loadu_epi8(v_mask(n), p)));
}
SIMD_INLINE void v_store_i8(int8_t *p, vec a)
{
    _mm_storeu_si128((__m128i *)p, _mm512_cvtsepi32_epi8(_mm512_cvtps_epi32(a)));
}
SIMD_INLINE void v_store_i8_n(int8_t *p, vec a, uint32_t n)
{
    _mm_mask_storeu_epi8(p, v_mask(n), _mm512_cvtsepi32_epi8(_mm512_cvtps_epi32(a)));
}
/* A lane of four int8 (element 4j lowest), as memory holds them: each as a float. */
SIMD_INLINE void v_split_i8(vec a, vec out[4])
{
    __m512i x = _mm512_castps_si512(a);
    out[0] = _mm512_cvtepi32_ps(_mm512_srai_epi32(_mm512_slli_epi32(x, 24), 24));
    out[1] = _mm512_cvtepi32_ps(_mm512_srai_epi32(_mm512_slli_epi32(x, 16), 24));
    out[2] = _mm512_cvtepi32_ps(_mm512_srai_epi32(_mm512_slli_epi32(x, 8), 24));
    out[3] = _mm512_cvtepi32_ps(_mm512_srai_epi32(x, 24));
}

/* Sums of the lanes of four vectors. The tree: lane j takes j + 8, then j + 4, j + 2, j + 1. */
SIMD_INLINE __m128 v_sum4(vec a, vec b, vec c, vec d)
{
    vec ab = v_add(_mm512_shuffle_f32x4(a, b, 0x44), _mm512_shuffle_f32x4(a, b, 0xee));
    vec cd = v_add(_mm512_shuffle_f32x4(c, d, 0x44), _mm512_shuffle_f32x4(c, d, 0xee));
    vec s = v_add(_mm512_shuffle_f32x4(ab, cd, 0x88), _mm512_shuffle_f32x4(ab, cd, 0xdd));
    s = v_add(s, _mm512_permute_ps(s, 0x4e));
    s = v_add(s, _mm512_permute_ps(s, 0xb1));
    const __m512i first = _mm512_setr_epi32(0, 4, 8, 12, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0);
    return _mm512_castps512_ps128(_mm512_permutexvar_ps(first, s));
}
/* One sum, by the same tree. */
SIMD_INLINE float v_sum(vec a)
{
    __m256 s8 = _mm256_add_ps(_mm512_castps512_ps256(a), _mm512_extractf32x8_ps(a, 1));
    __m128 s = _mm_add_ps(_mm256_castps256_ps128(s8), _mm256_extractf128_ps(s8, 1));
    s = _mm_add_ps(s, _mm_permute_ps(s, 0x4e));
    return _mm_cvtss_f32(_mm_add_ss(s, _mm_movehdup_ps(s)));
}
SIMD_INLINE float v_max_lanes(vec a)
{
    return _mm512_reduce_max_ps(a);
}

/* r[i] lane j becomes r[j] lane i; lanes are moved as 32-bit patterns. */
SIMD_INLINE void v_transpose(vec r[SIMD_WIDTH])
{
    vec t[16];
#pragma GCC unroll 16
    for (int i = 0; i < 16; i += 4) { /* 4x4 blocks within 128-bit quarters */
        __m512d lo01 = _mm512_castps_pd(_mm512_unpacklo_ps(r[i], r[i + 1]));
        __m512d hi01 = _mm512_castps_pd(_mm512_unpackhi_ps(r[i], r[i + 1]));
        __m512d lo23 = _mm512_castps_pd(_mm512_unpacklo_ps(r[i + 2], r[i + 3]));
        __m512d hi23 = _mm512_castps_pd(_mm512_unpackhi_ps(r[i + 2], r[i + 3]));
        t[i] = _mm512_castpd_ps(_mm512_unpacklo_pd(lo01, lo23));
        t[i + 1] = _mm512_castpd_ps(_mm512_unpackhi_pd(lo01, lo23));
        t[i + 2] = _mm512_castpd_ps(_mm512_unpacklo_pd(hi01, hi23));
        t[i + 3] = _mm512_castpd_ps(_mm512_unpackhi_pd(hi01, hi23));
    }
#pragma GCC unroll 16
    for (int i = 0; i < 4; i++) { /* then the 4x4 blocks themselves */
        vec a = _mm512_shuffle_f32x4(t[i], t[i + 4], 0x88);
        vec b = _mm512_shuffle_f32x4(t[i], t[i + 4], 0xdd);
        vec c = _mm512_shuffle_f32x4(t[i + 8], t[i + 12], 0x88);
        vec d = _mm512_shuffle_f32x4(t[i + 8], t[i + 12], 0xdd);
        r[i] = _mm512_shuffle_f32x4(a, c, 0x88);
        r[i + 4] = _mm512_shuffle_f32x4(b, d, 0x88);
        r[i + 8] = _mm512_shuffle_f32x4(a, c, 0xdd);
        r[i + 12] = _mm512_shuffle_f32x4(b, d, 0xdd);
    }
}

/* @x to the nearest integer, ties to even. */
SIMD_INLINE vec v_round(vec x)
{
    return _mm512_roundscale_ps(x, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
}
/* a * 2^n for whole n, with overflow to infinity and gradual underflow. */
SIMD_INLINE vec v_scale2(vec a, vec n)
{
    return _mm512_scalef_ps(a, n);
}

static bool simd_supported(void)
{
    /* The compiler's run-time part also asks the operating system (XCR0) whether it saves the registers. */
    return __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
           __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512dq") &&
           __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma");
}
