/* linear-test.h: what the tests of products of few rows share: the reference of one output, weights that the device fills, the
 * rate of reading. */
#pragma once
#include "tests/gpu/gpu-test.h"

static const float EPS = 1e-6f;

static inline const char *then_name(qkc_then then)
{
    return then == QKC_STORE ? "store" : then == QKC_ADD ? "add" : "silu";
}

/* The sum of a[k] b[k], and the root of the terms' squares. @n is a multiple of 4. */
template <typename T>
static void reference_sum(const float *a, const T *b, uint32_t n, double *sum, double *terms)
{
    double s[4] = {0, 0, 0, 0}, q[4] = {0, 0, 0, 0};
    for (uint32_t k = 0; k < n; k += 4)
        for (int e = 0; e < 4; e++) {
            const double v = (double)a[k + e] * (double)b[k + e];
            s[e] += v, q[e] += v * v;
        }
    *sum = s[0] + s[1] + s[2] + s[3];
    *terms = sqrt(q[0] + q[1] + q[2] + q[3]);
}

/* An output from its sums (gate and up with QKC_SILU_MUL, else the first). @size: what its error is compared with: the root of
 * its terms' squares and itself, so that one that nearly cancels does not count as wrong. */
static inline double reference_output(
    qkc_then then, const double sum[2], const double terms[2], double old, double *size)
{
    double y = sum[0] + (then == QKC_ADD ? old : 0), t = terms[0];
    if (then == QKC_SILU_MUL) {
        y = sum[0] / (1 + exp(-sum[0])) * sum[1];
        t = terms[0] * (fabs(sum[1]) + terms[1]) + fabs(sum[0]) * terms[1];
    }
    *size = sqrt(y * y + t * t);
    return y;
}

/* The worst relative error of one of @n_rows rows of @n_out outputs @y(i): a row that is wrong is not hidden by larger ones. NaN
 * when anything is. */
template <typename F>
static double worst_row_of(
    uint32_t n_rows, uint32_t n_out, const std::vector<double> &ref, const std::vector<double> &size, F y)
{
    double worst = 0;
    for (uint32_t r = 0; r < n_rows; r++) {
        double d = 0, n = 0;
        for (size_t i = (size_t)r * n_out; i < (size_t)(r + 1) * n_out; i++) {
            d += (y(i) - ref[i]) * (y(i) - ref[i]);
            n += size[i] * size[i];
        }
        const double e = sqrt(d / (n > 0 ? n : 1));
        if (!(e <= worst))
            worst = e;
    }
    return worst;
}

/* 2 * @n bf16 numbers within @scale. */
static __global__ void fill_weights(uint32_t *w, size_t n, float scale)
{
    for (size_t i = (size_t)blockIdx.x * blockDim.x + threadIdx.x; i < n;
         i += (size_t)gridDim.x * blockDim.x) {
        uint32_t a = (uint32_t)i * 2654435761u ^ (uint32_t)(i >> 32), b;
        a ^= a >> 15, a *= 2246822519u, a ^= a >> 13;
        b = a * 3266489917u;
        __nv_bfloat162 v = __floats2bfloat162_rn(
            (float)(int32_t)a * (scale / 2147483648.0f), (float)(int32_t)b * (scale / 2147483648.0f));
        w[i] = *(uint32_t *)&v;
    }
}

static __global__ void __launch_bounds__(512) read_only(const uint4 *p, size_t n, uint32_t *out)
{
    const size_t step = (size_t)gridDim.x * blockDim.x;
    uint32_t x = 0;
    size_t i = (size_t)blockIdx.x * blockDim.x + threadIdx.x;
    for (; i + 7 * step < n; i += 8 * step) {
        uint4 v[8];
#pragma unroll
        for (int j = 0; j < 8; j++)
            v[j] = __ldcs(p + i + j * step);
#pragma unroll
        for (int j = 0; j < 8; j++)
            x ^= v[j].x ^ v[j].y ^ v[j].z ^ v[j].w;
    }
    if (x == 0x12345678)
        *out = x;
}

/* GB/s of reading @bytes at @p, which it prints; @scratch: a word of the device. */
static inline double read_rate(const void *p, size_t bytes, uint32_t *scratch)
{
    const size_t n = bytes / 16 / (132 * 4 * 512 * 8) * (132 * 4 * 512 * 8);
    const double ms = gpu_time(0, 5, [&](int) { read_only<<<132 * 4, 512>>>((const uint4 *)p, n, scratch); });
    const double gbs = (double)n * 16 / ms / 1e6;
    printf("read only: %.0f GB/s over %.2f GB\n", gbs, (double)n * 16 / 1e9);
    return gbs;
}
