/* simd-avx2.h: the vector layer over AVX2, FMA and F16C: 8 float lanes. See simd-avx512.h, whose names it mirrors. */
#pragma once
#include <cpuid.h>
#include <immintrin.h>
#include "kernels/cpu/qk-cpu-ops.h"

#define SIMD_INLINE static inline __attribute__((always_inline))

#define SIMD_ISA_NAME    "avx2"
#define SIMD_WIDTH       8
#define SIMD_MATMUL_ROWS 3 /* of 4 outputs: 12 sums + 3 x + 1 w of 16 registers */
#define SIMD_SCORE_ROWS  3

typedef __m256 vec;

SIMD_INLINE vec v_zero(void)
{
    return _mm256_setzero_ps();
}
SIMD_INLINE vec v_set1(float x)
{
    return _mm256_set1_ps(x);
}
SIMD_INLINE vec v_add(vec a, vec b)
{
    return _mm256_add_ps(a, b);
}
SIMD_INLINE vec v_sub(vec a, vec b)
{
    return _mm256_sub_ps(a, b);
}
SIMD_INLINE vec v_mul(vec a, vec b)
{
    return _mm256_mul_ps(a, b);
}
SIMD_INLINE vec v_div(vec a, vec b)
{
    return _mm256_div_ps(a, b);
}
SIMD_INLINE vec v_fma(vec a, vec b, vec c)
{
    return _mm256_fmadd_ps(a, b, c);
}
SIMD_INLINE vec v_fnma(vec a, vec b, vec c)
{
    return _mm256_fnmadd_ps(a, b, c);
}
SIMD_INLINE vec v_max(vec a, vec b)
{
    return _mm256_max_ps(a, b);
}
SIMD_INLINE vec v_min(vec a, vec b)
{
    return _mm256_min_ps(a, b);
}

SIMD_INLINE __m256i v_mask(uint32_t n)
{
    return _mm256_cmpgt_epi32(_mm256_set1_epi32((int)n), _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7));
}
SIMD_INLINE vec v_load(const float *p)
{
    return _mm256_loadu_ps(p);
}
SIMD_INLINE vec v_load_n(const float *p, uint32_t n)
{
    return _mm256_maskload_ps(p, v_mask(n));
}
SIMD_INLINE void v_store(float *p, vec a)
{
    _mm256_storeu_ps(p, a);
}
SIMD_INLINE void v_store_n(float *p, vec a, uint32_t n)
{
    _mm256_maskstore_ps(p, v_mask(n), a);
}
SIMD_INLINE vec v_keep_n(vec a, vec fill, uint32_t n)
{
    return _mm256_blendv_ps(fill, a, _mm256_castsi256_ps(v_mask(n)));
}

SIMD_INLINE vec v_widen(__m128i x)
{
    return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(x), 16));
}
SIMD_INLINE vec v_load_bf16(const qk_bf16 *p)
{
    return v_widen(_mm_loadu_si128((const __m128i *)p));
}
/* AVX2 has no masked 16-bit load: the few elements go through the stack. */
SIMD_INLINE vec v_load_bf16_n(const qk_bf16 *p, uint32_t n)
{
    qk_bf16 part[8] = {0};
    for (uint32_t i = 0; i < n; i++) {
        part[i] = p[i];
    }
    return v_load_bf16(part);
}
SIMD_INLINE __m128i v_narrow(vec a)
{
    __m256i u = _mm256_castps_si256(a);
    __m256i odd = _mm256_and_si256(_mm256_srli_epi32(u, 16), _mm256_set1_epi32(1));
    __m256i rounded = _mm256_add_epi32(u, _mm256_add_epi32(odd, _mm256_set1_epi32(0x7fff)));
    __m256i quiet = _mm256_or_si256(u, _mm256_set1_epi32(0x400000));
    __m256i nan = _mm256_castps_si256(_mm256_cmp_ps(a, a, _CMP_UNORD_Q));
    rounded = _mm256_srli_epi32(_mm256_blendv_epi8(rounded, quiet, nan), 16);
    return _mm_packus_epi32(_mm256_castsi256_si128(rounded), _mm256_extracti128_si256(rounded, 1));
}
SIMD_INLINE void v_store_bf16(qk_bf16 *p, vec a)
{
    _mm_storeu_si128((__m128i *)p, v_narrow(a));
}
SIMD_INLINE void v_store_bf16_n(qk_bf16 *p, vec a, uint32_t n)
{
    qk_bf16 part[8];
    v_store_bf16(part, a);
    for (uint32_t i = 0; i < n; i++) {
        p[i] = part[i];
    }
}

SIMD_INLINE vec v_pair_low(vec a)
{
    return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_castps_si256(a), 16));
}
SIMD_INLINE vec v_pair_high(vec a)
{
    return _mm256_and_ps(a, _mm256_castsi256_ps(_mm256_set1_epi32((int)0xffff0000u)));
}

SIMD_INLINE vec v_abs(vec a)
{
    return _mm256_and_ps(a, _mm256_castsi256_ps(_mm256_set1_epi32(0x7fffffff)));
}
SIMD_INLINE vec v_max_bits(vec a, vec b)
{
    return _mm256_castsi256_ps(_mm256_max_epi32(_mm256_castps_si256(a), _mm256_castps_si256(b)));
}
SIMD_INLINE uint32_t v_max_bits_lanes(vec a)
{
    __m256i u = _mm256_castps_si256(a);
    __m128i m = _mm_max_epi32(_mm256_castsi256_si128(u), _mm256_extracti128_si256(u, 1));
    m = _mm_max_epi32(m, _mm_shuffle_epi32(m, 0x4e));
    return (uint32_t)_mm_cvtsi128_si32(_mm_max_epi32(m, _mm_shuffle_epi32(m, 0xb1)));
}

SIMD_INLINE qk_f16 v_to_f16(float x)
{
    return (qk_f16)_mm_cvtsi128_si32(_mm_cvtps_ph(_mm_set_ss(x), _MM_FROUND_TO_NEAREST_INT));
}
SIMD_INLINE float v_from_f16(qk_f16 x)
{
    return _mm_cvtss_f32(_mm_cvtph_ps(_mm_cvtsi32_si128(x)));
}
SIMD_INLINE vec v_load_f16(const qk_f16 *p)
{
    return _mm256_cvtph_ps(_mm_loadu_si128((const __m128i *)p));
}

SIMD_INLINE vec v_load_i8(const int8_t *p)
{
    return _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(_mm_loadl_epi64((const __m128i *)p)));
}
SIMD_INLINE vec v_load_i8_n(const int8_t *p, uint32_t n)
{
    int8_t part[8] = {0};
    for (uint32_t i = 0; i < n; i++) {
        part[i] = p[i];
    }
    return v_load_i8(part);
}
SIMD_INLINE void v_store_i8(int8_t *p, vec a)
{
    __m256i u = _mm256_cvtps_epi32(a);
    __m128i words = _mm_packs_epi32(_mm256_castsi256_si128(u), _mm256_extracti128_si256(u, 1));
    _mm_storel_epi64((__m128i *)p, _mm_packs_epi16(words, words));
}
SIMD_INLINE void v_store_i8_n(int8_t *p, vec a, uint32_t n)
{
    int8_t part[8];
    v_store_i8(part, a);
    for (uint32_t i = 0; i < n; i++) {
        p[i] = part[i];
    }
}
SIMD_INLINE void v_split_i8(vec a, vec out[4])
{
    __m256i x = _mm256_castps_si256(a);
    out[0] = _mm256_cvtepi32_ps(_mm256_srai_epi32(_mm256_slli_epi32(x, 24), 24));
    out[1] = _mm256_cvtepi32_ps(_mm256_srai_epi32(_mm256_slli_epi32(x, 16), 24));
    out[2] = _mm256_cvtepi32_ps(_mm256_srai_epi32(_mm256_slli_epi32(x, 8), 24));
    out[3] = _mm256_cvtepi32_ps(_mm256_srai_epi32(x, 24));
}

/* The tree: lane j takes j + 4, then j + 2, j + 1. */
SIMD_INLINE __m128 v_sum4(vec a, vec b, vec c, vec d)
{
    vec ab = v_add(_mm256_permute2f128_ps(a, b, 0x20), _mm256_permute2f128_ps(a, b, 0x31));
    vec cd = v_add(_mm256_permute2f128_ps(c, d, 0x20), _mm256_permute2f128_ps(c, d, 0x31));
    vec s = v_add(_mm256_shuffle_ps(ab, cd, 0x44), _mm256_shuffle_ps(ab, cd, 0xee)); /* aacc, bbdd */
    s = v_add(_mm256_shuffle_ps(s, s, 0x88), _mm256_shuffle_ps(s, s, 0xdd));         /* ac, bd */
    return _mm_unpacklo_ps(_mm256_castps256_ps128(s), _mm256_extractf128_ps(s, 1));
}
SIMD_INLINE float v_sum(vec a)
{
    __m128 s = _mm_add_ps(_mm256_castps256_ps128(a), _mm256_extractf128_ps(a, 1));
    s = _mm_add_ps(s, _mm_permute_ps(s, 0x4e));
    return _mm_cvtss_f32(_mm_add_ss(s, _mm_movehdup_ps(s)));
}
SIMD_INLINE float v_max_lanes(vec a)
{
    __m128 m = _mm_max_ps(_mm256_castps256_ps128(a), _mm256_extractf128_ps(a, 1));
    m = _mm_max_ps(m, _mm_permute_ps(m, 0x4e));
    return _mm_cvtss_f32(_mm_max_ss(m, _mm_movehdup_ps(m)));
}

SIMD_INLINE void v_transpose(vec r[SIMD_WIDTH])
{
    vec t[8];
#pragma GCC unroll 8
    for (int i = 0; i < 8; i += 4) {
        __m256d lo01 = _mm256_castps_pd(_mm256_unpacklo_ps(r[i], r[i + 1]));
        __m256d hi01 = _mm256_castps_pd(_mm256_unpackhi_ps(r[i], r[i + 1]));
        __m256d lo23 = _mm256_castps_pd(_mm256_unpacklo_ps(r[i + 2], r[i + 3]));
        __m256d hi23 = _mm256_castps_pd(_mm256_unpackhi_ps(r[i + 2], r[i + 3]));
        t[i] = _mm256_castpd_ps(_mm256_unpacklo_pd(lo01, lo23));
        t[i + 1] = _mm256_castpd_ps(_mm256_unpackhi_pd(lo01, lo23));
        t[i + 2] = _mm256_castpd_ps(_mm256_unpacklo_pd(hi01, hi23));
        t[i + 3] = _mm256_castpd_ps(_mm256_unpackhi_pd(hi01, hi23));
    }
#pragma GCC unroll 8
    for (int i = 0; i < 4; i++) {
        r[i] = _mm256_permute2f128_ps(t[i], t[i + 4], 0x20);
        r[i + 4] = _mm256_permute2f128_ps(t[i], t[i + 4], 0x31);
    }
}

SIMD_INLINE vec v_round(vec x)
{
    return _mm256_round_ps(x, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
}
/* Two factors, so that 2^n may leave the normal range while the product need not; |n| < 252. */
SIMD_INLINE vec v_scale2(vec a, vec n)
{
    __m256i whole = _mm256_cvtps_epi32(n);
    __m256i half = _mm256_srai_epi32(whole, 1);
    __m256i rest = _mm256_sub_epi32(whole, half);
    const __m256i bias = _mm256_set1_epi32(127);
    vec f0 = _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_add_epi32(half, bias), 23));
    vec f1 = _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_add_epi32(rest, bias), 23));
    return v_mul(v_mul(a, f0), f1);
}

/* F16C is asked for by its bit, since not every compiler knows its name; the system saves its registers with AVX's. */
static bool simd_supported(void)
{
    unsigned eax, ebx, ecx = 0, edx;
    return __get_cpuid(1, &eax, &ebx, &ecx, &edx) != 0 && (ecx & bit_F16C) != 0 &&
           __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma");
}
