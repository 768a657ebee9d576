/* simd-rows.h: what touches one row at a time: norm, rope, add, silu, conversions, exp. Over a vector layer, like
 * simd-matmul.h.
 *
 * 1. Element i is computed by the same operations whether it falls into a whole vector or into the tail.
 * 2. Memory-bound, all of them: each array is read and written once. */
#pragma once
#include <math.h>

/* e^x. n = round(x / ln 2), r = x - n ln 2 in [-0.347, 0.347] (ln 2 in two parts, so that n * high is exact for
 * |n| < 2^9), e^r by its Taylor polynomial of degree 7, whose remainder is below 8e-9 of e^r; then 2^n. Measured
 * against float64 over all of [-87, 88]: relative error below 1.2e-7. Above 88.73 infinity, below -104 zero, NaN
 * stays NaN. */
SIMD_INLINE vec v_exp(vec x)
{
    x = v_max(v_set1(-105.0f), v_min(v_set1(90.0f), x)); /* in this order NaN passes */
    vec n = v_round(v_mul(x, v_set1(0x1.715476p+0f)));
    vec r = v_fnma(n, v_set1(0x1.62e4p-1f), x);
    r = v_fnma(n, v_set1(0x1.7f7d1cp-20f), r);
    vec p = v_fma(r, v_set1(1.0f / 5040), v_set1(1.0f / 720));
    p = v_fma(r, p, v_set1(1.0f / 120));
    p = v_fma(r, p, v_set1(1.0f / 24));
    p = v_fma(r, p, v_set1(1.0f / 6));
    p = v_fma(r, p, v_set1(0.5f));
    p = v_fma(r, p, v_set1(1.0f));
    p = v_fma(r, p, v_set1(1.0f));
    return v_scale2(p, n);
}

/* The sum of squares is kept in lanes and added by v_sum()'s tree. */
static void simd_rms_norm(float *y, const float *x, const float *weight, uint32_t n, float eps)
{
    const uint32_t n_whole = n - n % SIMD_WIDTH;
    const uint32_t tail = n % SIMD_WIDTH;
    vec sum = v_zero();
    for (uint32_t i = 0; i < n_whole; i += SIMD_WIDTH) {
        vec v = v_load(x + i);
        sum = v_fma(v, v, sum);
    }
    if (tail > 0) {
        vec v = v_load_n(x + n_whole, tail);
        sum = v_fma(v, v, sum);
    }
    const vec factor = v_set1(1.0f / sqrtf(v_sum(sum) / (float)n + eps));
    for (uint32_t i = 0; i < n_whole; i += SIMD_WIDTH) {
        v_store(y + i, v_mul(v_mul(v_load(x + i), factor), v_load(weight + i)));
    }
    if (tail > 0) {
        vec v = v_mul(v_mul(v_load_n(x + n_whole, tail), factor), v_load_n(weight + n_whole, tail));
        v_store_n(y + n_whole, v, tail);
    }
}

static void simd_rope(float *x, const float *cos_sin, uint32_t n)
{
    const uint32_t half = n / 2;
    const float *cosines = cos_sin, *sines = cos_sin + half;
    float *low = x, *high = x + half;
    uint32_t i = 0;
    for (; half - i >= SIMD_WIDTH; i += SIMD_WIDTH) {
        vec a = v_load(low + i), b = v_load(high + i);
        vec c = v_load(cosines + i), s = v_load(sines + i);
        v_store(low + i, v_fnma(b, s, v_mul(a, c)));
        v_store(high + i, v_fma(a, s, v_mul(b, c)));
    }
    if (i < half) {
        const uint32_t tail = half - i;
        vec a = v_load_n(low + i, tail), b = v_load_n(high + i, tail);
        vec c = v_load_n(cosines + i, tail), s = v_load_n(sines + i, tail);
        v_store_n(low + i, v_fnma(b, s, v_mul(a, c)), tail);
        v_store_n(high + i, v_fma(a, s, v_mul(b, c)), tail);
    }
}

static void simd_add(float *y, const float *x, uint32_t n)
{
    uint32_t i = 0;
    for (; n - i >= SIMD_WIDTH; i += SIMD_WIDTH) {
        v_store(y + i, v_add(v_load(y + i), v_load(x + i)));
    }
    if (i < n) {
        v_store_n(y + i, v_add(v_load_n(y + i, n - i), v_load_n(x + i, n - i)), n - i);
    }
}

SIMD_INLINE vec v_silu_mul(vec gate, vec up)
{
    vec one = v_set1(1.0f);
    return v_mul(v_div(gate, v_add(one, v_exp(v_sub(v_zero(), gate)))), up);
}

static void simd_silu_mul(float *gate, const float *up, uint32_t n)
{
    uint32_t i = 0;
    for (; n - i >= SIMD_WIDTH; i += SIMD_WIDTH) {
        v_store(gate + i, v_silu_mul(v_load(gate + i), v_load(up + i)));
    }
    if (i < n) {
        v_store_n(gate + i, v_silu_mul(v_load_n(gate + i, n - i), v_load_n(up + i, n - i)), n - i);
    }
}

static void simd_bf16_to_f32(float *y, const qk_bf16 *x, uint32_t n)
{
    uint32_t i = 0;
    for (; n - i >= SIMD_WIDTH; i += SIMD_WIDTH) {
        v_store(y + i, v_load_bf16(x + i));
    }
    if (i < n) {
        v_store_n(y + i, v_load_bf16_n(x + i, n - i), n - i);
    }
}

/* The reference's bytes: |x| is compared as a bit pattern, which puts infinity after every number and NaN after
 * infinity; division and both roundings are IEEE's. */
static void simd_f32_to_i8(int8_t *q, qk_f16 *scale, const float *x, uint32_t n)
{
    const uint32_t n_whole = n - n % SIMD_WIDTH, tail = n % SIMD_WIDTH, infinity = 0x7f800000u;
    vec largest = v_zero();
    for (uint32_t i = 0; i < n_whole; i += SIMD_WIDTH) {
        largest = v_max_bits(largest, v_abs(v_load(x + i)));
    }
    if (tail > 0) {
        largest = v_max_bits(largest, v_abs(v_load_n(x + n_whole, tail)));
    }
    const uint32_t max = v_max_bits_lanes(largest);
    float s = 0.0f;
    *scale = max >= infinity ? 0x7e00 : 0;
    if (max > 0 && max < infinity) {
        memcpy(&s, &max, sizeof s);
        s /= 127.0f;
        *scale = v_to_f16(s > 0x1p-14f ? s : 0x1p-14f);
        s = v_from_f16(*scale);
    }
    if (!(s > 0.0f && s < INFINITY)) {
        memset(q, 0, n);
        return;
    }
    const vec divisor = v_set1(s), low = v_set1(-127.0f), high = v_set1(127.0f);
    for (uint32_t i = 0; i < n_whole; i += SIMD_WIDTH) {
        v_store_i8(q + i, v_min(high, v_max(low, v_div(v_load(x + i), divisor))));
    }
    if (tail > 0) {
        vec v = v_div(v_load_n(x + n_whole, tail), divisor);
        v_store_i8_n(q + n_whole, v_min(high, v_max(low, v)), tail);
    }
}

static void simd_f32_to_bf16(qk_bf16 *y, const float *x, uint32_t n)
{
    uint32_t i = 0;
    for (; n - i >= SIMD_WIDTH; i += SIMD_WIDTH) {
        v_store_bf16(y + i, v_load(x + i));
    }
    if (i < n) {
        v_store_bf16_n(y + i, v_load_n(x + i, n - i), n - i);
    }
}
