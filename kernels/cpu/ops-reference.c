/* ops-reference.c: every op of the CPU backend in plain C: the definition that faster tables are compared with, and
 * what runs on a machine without AVX2.
 *
 * Dot products keep LANES partial sums, lane i taking the elements i, i + LANES, ..., and fold them by halves: an
 * order that depends on the length alone, with a smaller error than one running sum. */
#include "kernels/cpu/operands.h"
#include "kernels/cpu/qk-cpu-ops.h"
#include <assert.h>
#include <math.h>
#include <string.h>

#define LANES 16

static bool always(void)
{
    return true;
}

QK_INNER static inline float f32_from_bf16(qk_bf16 x)
{
    uint32_t bits = (uint32_t)x << 16;
    float f;
    memcpy(&f, &bits, sizeof(f));
    return f;
}

static inline qk_bf16 bf16_from_f32(float x)
{
    uint32_t bits;
    memcpy(&bits, &x, sizeof(bits));
    if ((bits & 0x7fffffffu) > 0x7f800000u)
        return (qk_bf16)(bits >> 16 | 0x40); /* keep a NaN whose payload is all in the low half a NaN */
    return (qk_bf16)((bits + 0x7fffu + (bits >> 16 & 1)) >> 16);
}

/* Also of what the quantiser never writes: subnormals. */
static inline float f32_from_f16(qk_f16 x)
{
    const uint32_t exponent = x >> 10 & 0x1f, mantissa = x & 0x3ff;
    float f;
    if (exponent == 0) {
        f = (float)mantissa * 0x1p-24f;
        return x & 0x8000 ? -f : f;
    }
    uint32_t bits = (uint32_t)(x & 0x8000) << 16 | mantissa << 13;
    bits |= exponent == 0x1f ? 0x7f800000u : (exponent + 112) << 23;
    memcpy(&f, &bits, sizeof(f));
    return f;
}

/* @x: at least 2^-14, so that no result is subnormal; not NaN. */
static inline qk_f16 f16_from_f32(float x)
{
    uint32_t bits;
    memcpy(&bits, &x, sizeof(bits));
    bits += 0xfffu + (bits >> 13 & 1); /* ties to even; a carry out of the mantissa raises the exponent */
    const uint32_t half = (bits - (112u << 23)) >> 13;
    return (qk_f16)(half < 0x7c00 ? half : 0x7c00);
}

QK_INNER static inline float fold(float *lane)
{
    for (int width = LANES / 2; width > 0; width /= 2)
        for (int i = 0; i < width; i++)
            lane[i] += lane[i + width];
    return lane[0];
}

/* The caller checks both operands. */
QK_INNER static float dot_f32(const float *x, const float *w, uint32_t n)
{
    float lane[LANES] = {0};
    uint32_t i = 0;
    for (; i + LANES <= n; i += LANES)
        for (uint32_t j = 0; j < LANES; j++)
            lane[j] += x[i + j] * w[i + j];
    for (uint32_t j = 0; i + j < n; j++)
        lane[j] += x[i + j] * w[i + j];
    return fold(lane);
}

QK_INNER static float dot_bf16(const float *x, const qk_bf16 *w, uint32_t n)
{
    float lane[LANES] = {0};
    uint32_t i = 0;
    for (; i + LANES <= n; i += LANES)
        for (uint32_t j = 0; j < LANES; j++)
            lane[j] += x[i + j] * f32_from_bf16(w[i + j]);
    for (uint32_t j = 0; i + j < n; j++)
        lane[j] += x[i + j] * f32_from_bf16(w[i + j]);
    return fold(lane);
}

/* y += a x. The caller checks both. */
QK_INNER static void add_scaled(float *y, float a, const float *x, uint32_t n)
{
    for (uint32_t i = 0; i < n; i++)
        y[i] += a * x[i];
}

static void check_matmul(const float *x, size_t x_stride, const void *w, size_t w_row_bytes, uint32_t n_rows,
    uint32_t n_in, uint32_t o_begin, uint32_t o_end)
{
    for (uint32_t r = 0; r < n_rows; r++)
        qk_check_operand(x + r * x_stride, n_in * sizeof(*x));
    qk_check_operand((const char *)w + o_begin * w_row_bytes, (o_end - o_begin) * w_row_bytes);
}

/* y[r][o] = sum over i of x[r][i] * w[o][i] */
static void matmul_bf16(float *y, size_t y_stride, const float *x, size_t x_stride, const qk_bf16 *w,
    uint32_t n_rows, uint32_t n_in, uint32_t o_begin, uint32_t o_end)
{
    check_matmul(x, x_stride, w, n_in * sizeof(*w), n_rows, n_in, o_begin, o_end);
    for (uint32_t o = o_begin; o < o_end; o++)
        for (uint32_t r = 0; r < n_rows; r++)
            y[r * y_stride + o] = dot_bf16(x + r * x_stride, w + (size_t)o * n_in, n_in);
}

static void matmul_f32(float *y, size_t y_stride, const float *x, size_t x_stride, const float *w,
    uint32_t n_rows, uint32_t n_in, uint32_t o_begin, uint32_t o_end)
{
    check_matmul(x, x_stride, w, n_in * sizeof(*w), n_rows, n_in, o_begin, o_end);
    for (uint32_t o = o_begin; o < o_end; o++)
        for (uint32_t r = 0; r < n_rows; r++)
            y[r * y_stride + o] = dot_f32(x + r * x_stride, w + (size_t)o * n_in, n_in);
}

/* y = x / sqrt(mean(x^2) + eps) * weight */
static void rms_norm(float *y, const float *x, const float *weight, uint32_t n, float eps)
{
    double sum = 0;
    for (uint32_t i = 0; i < n; i++)
        sum += (double)x[i] * x[i];
    float scale = (float)(1.0 / sqrt(sum / n + (double)eps));
    for (uint32_t i = 0; i < n; i++)
        y[i] = x[i] * scale * weight[i];
}

/* (a, b) = (x[i], x[i + n/2]) turns by the angle whose cosine and sine are given */
static void rope(float *x, const float *cos_sin, uint32_t n)
{
    const float *cos_of = cos_sin, *sin_of = cos_sin + n / 2;
    for (uint32_t i = 0; i < n / 2; i++) {
        float a = x[i], b = x[i + n / 2];
        x[i] = a * cos_of[i] - b * sin_of[i];
        x[i + n / 2] = b * cos_of[i] + a * sin_of[i];
    }
}

static void add(float *y, const float *x, uint32_t n)
{
    for (uint32_t i = 0; i < n; i++)
        y[i] += x[i];
}

/* gate = gate * sigmoid(gate) * up */
static void silu_mul(float *gate, const float *up, uint32_t n)
{
    for (uint32_t i = 0; i < n; i++)
        gate[i] = gate[i] / (1.0f + expf(-gate[i])) * up[i];
}

static void bf16_to_f32(float *y, const qk_bf16 *x, uint32_t n)
{
    for (uint32_t i = 0; i < n; i++)
        y[i] = f32_from_bf16(x[i]);
}

static void f32_to_bf16(qk_bf16 *y, const float *x, uint32_t n)
{
    for (uint32_t i = 0; i < n; i++)
        y[i] = bf16_from_f32(x[i]);
}

/* |x| is compared as a bit pattern: in it infinity comes after every number, and NaN after infinity. */
static void f32_to_i8(int8_t *q, qk_f16 *scale, const float *x, uint32_t n)
{
    uint32_t max = 0;
    for (uint32_t i = 0; i < n; i++) {
        uint32_t bits;
        memcpy(&bits, &x[i], sizeof(bits));
        bits &= 0x7fffffffu;
        max = bits > max ? bits : max;
    }
    memset(q, 0, n);
    *scale = 0;
    if (max >= 0x7f800000u)
        *scale = 0x7e00;
    if (max == 0 || max >= 0x7f800000u)
        return;
    float m;
    memcpy(&m, &max, sizeof(m));
    *scale = f16_from_f32(fmaxf(m / 127.0f, 0x1p-14f));
    if (*scale == 0x7c00)
        return;
    const float s = f32_from_f16(*scale);
    for (uint32_t i = 0; i < n; i++)
        q[i] = (int8_t)fminf(fmaxf(rintf(x[i] / s), -127.0f), 127.0f);
}

/* One row: score[j] = scale * q.k[j]; m = max score; p[j] = exp(score[j] - m); out = sum p[j] v[j] / sum p[j];
 * lse = m + ln(sum p[j]). @kv: the span's K then V as floats, [2][QK_SPAN_TOKENS, head_dim]. */
static void attend_row(const qk_cpu_attend *a, uint32_t row, uint32_t head, const float *kv, float *score)
{
    uint32_t n_keys = a->n_keys[row], dim = a->head_dim;
    const float *k = kv, *v = kv + (size_t)QK_SPAN_TOKENS * dim;
    const float *q = a->q[row] + (size_t)head * dim;
    float *out = a->out[row] + (size_t)head * dim;
    qk_check_operand(q, dim * sizeof(*q));
    qk_check_operand(k, (size_t)n_keys * dim * sizeof(*k));
    qk_check_operand(v, (size_t)n_keys * dim * sizeof(*v));
    qk_check_operand(out, dim * sizeof(*out));

    float max = -INFINITY;
    for (uint32_t j = 0; j < n_keys; j++) {
        score[j] = dot_f32(q, k + (size_t)j * dim, dim) * a->scale;
        max = fmaxf(max, score[j]);
    }
    float sum = 0;
    memset(out, 0, dim * sizeof(*out));
    for (uint32_t j = 0; j < n_keys; j++) {
        float p = expf(score[j] - max);
        sum += p;
        add_scaled(out, p, v + (size_t)j * dim, dim);
    }
    for (uint32_t d = 0; d < dim; d++)
        out[d] /= sum;
    a->lse[row][head] = max + logf(sum);
}

/* Exact: 8 bits times 11. */
static void i8_to_f32(float *y, const int8_t *q, qk_f16 scale, uint32_t n)
{
    const float s = f32_from_f16(scale);
    for (uint32_t i = 0; i < n; i++)
        y[i] = (float)q[i] * s;
}

static void attend(const qk_cpu_attend *a, qk_dtype dtype)
{
    uint32_t n_keys = 0, dim = a->head_dim;
    assert(a->n_rows <= QK_CPU_ATTEND_ROWS_MAX);
    for (uint32_t r = 0; r < a->n_rows; r++)
        if (a->n_keys[r] > n_keys)
            n_keys = a->n_keys[r];
    assert(n_keys <= QK_SPAN_TOKENS);

    float *kv = a->scratch, *score = kv + 2 * (size_t)QK_SPAN_TOKENS * dim;
    for (uint32_t side = 0; side < 2; side++) {
        const void *const *pages = side == 0 ? a->k_pages : a->v_pages;
        float *dst = kv + side * (size_t)QK_SPAN_TOKENS * dim;
        for (uint32_t j = 0; j < n_keys; j++) {
            const char *slice = pages[j / QK_PAGE_TOKENS];
            const char *src = slice + j % QK_PAGE_TOKENS * a->token_stride;
            if (dtype == QK_BF16)
                bf16_to_f32(dst + (size_t)j * dim, (const qk_bf16 *)(const void *)src, dim);
            else if (dtype == QK_I8)
                i8_to_f32(dst + (size_t)j * dim, (const int8_t *)src,
                    ((const qk_f16 *)(const void *)(slice + a->scale_offset))[j % QK_PAGE_TOKENS], dim);
            else
                memcpy(dst + (size_t)j * dim, src, dim * sizeof(float));
        }
    }
    for (uint32_t r = 0; r < a->n_rows; r++)
        for (uint32_t h = 0; h < a->n_q; h++)
            attend_row(a, r, h, kv, score);
}

static void attend_bf16(const qk_cpu_attend *a)
{
    attend(a, QK_BF16);
}

static void attend_f32(const qk_cpu_attend *a)
{
    attend(a, QK_F32);
}

static void attend_i8(const qk_cpu_attend *a)
{
    attend(a, QK_I8);
}

static void bound_scores_f32(
    float *scores, const float *q, uint32_t n_q, uint32_t head_dim, const float *bounds)
{
    for (uint32_t h = 0; h < n_q; h++) {
        float lane[LANES] = {0};
        for (uint32_t d = 0; d < head_dim; d++) {
            const float low = q[h * head_dim + d] * bounds[d],
                        high = q[h * head_dim + d] * bounds[head_dim + d];
            lane[d % LANES] += low > high ? low : high;
        }
        scores[h] = fold(lane);
    }
}

static void bound_scores_bf16(
    float *scores, const float *q, uint32_t n_q, uint32_t head_dim, const qk_bf16 *bounds)
{
    for (uint32_t h = 0; h < n_q; h++) {
        float lane[LANES] = {0};
        for (uint32_t d = 0; d < head_dim; d++) {
            const float x = q[h * head_dim + d];
            const float low = x * f32_from_bf16(bounds[d]), high = x * f32_from_bf16(bounds[head_dim + d]);
            lane[d % LANES] += low > high ? low : high;
        }
        scores[h] = fold(lane);
    }
}

/* With m = max(lse, span_lse): a = e^(lse - m), b = e^(span_lse - m); out = (a out + b span) / (a + b) */
static void merge(
    float *out, float *lse, const float *span_out, const float *span_lse, uint32_t n, uint32_t head_dim)
{
    for (uint32_t h = 0; h < n; h++) {
        float *o = out + (size_t)h * head_dim;
        const float *s = span_out + (size_t)h * head_dim;
        if (lse[h] == -INFINITY) {
            memcpy(o, s, head_dim * sizeof(*o));
            lse[h] = span_lse[h];
            continue;
        }
        float m = fmaxf(lse[h], span_lse[h]);
        float a = expf(lse[h] - m), b = expf(span_lse[h] - m);
        float sum = a + b;
        float wa = a / sum, wb = b / sum;
        for (uint32_t d = 0; d < head_dim; d++)
            o[d] = o[d] * wa + s[d] * wb;
        lse[h] = m + logf(sum);
    }
}

const qk_cpu_ops qk_cpu_ops_reference = {
    .name = "reference",
    .supported = always,
    .matmul_bf16 = matmul_bf16,
    .matmul_f32 = matmul_f32,
    .rms_norm = rms_norm,
    .rope = rope,
    .add = add,
    .silu_mul = silu_mul,
    .bf16_to_f32 = bf16_to_f32,
    .f32_to_bf16 = f32_to_bf16,
    .f32_to_i8 = f32_to_i8,
    .attend_bf16 = attend_bf16,
    .attend_f32 = attend_f32,
    .attend_i8 = attend_i8,
    .bound_scores_bf16 = bound_scores_bf16,
    .bound_scores_f32 = bound_scores_f32,
    .merge = merge,
};
