/* measure.c: the two ceilings that speeds are compared with, measured with the backend's own threads.
 *
 * Read bandwidth: every thread sums its part of a block larger than any cache. Multiply-add rate: every thread runs
 * chains of independent fused multiply-adds that live in registers. The best of a few passes counts, since
 * anything else that runs on the machine can only make a pass slower. */
#include "kernels/cpu/cpu-backend.h"
#include <string.h>
#include <time.h>
#if defined(__x86_64__)
#include <immintrin.h>
#endif

#define READ_BYTES     ((uint64_t)256 << 20)
#define READ_CHUNK     ((uint64_t)1 << 20)
#define MEASURE_NS     250000000u
#define FMA_CHAINS     24u
#define FMA_ITERATIONS 200000u
#define PASSES_MIN     3

typedef uint64_t (*read_fn)(const void *data, uint64_t bytes);
typedef uint32_t (*fma_fn)(uint32_t iterations, volatile float *sink); /* returns the width of a vector */

static uint64_t now_ns(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

static uint64_t read_plain(const void *data, uint64_t bytes)
{
    const uint64_t *p = data;
    uint64_t sum[8] = {0};
    for (uint64_t i = 0; i < bytes / 8; i += 8)
        for (int j = 0; j < 8; j++)
            sum[j] += p[i + j];
    return sum[0] + sum[1] + sum[2] + sum[3] + sum[4] + sum[5] + sum[6] + sum[7];
}

static uint32_t fma_plain(uint32_t iterations, volatile float *sink)
{
    float acc[FMA_CHAINS];
    for (uint32_t c = 0; c < FMA_CHAINS; c++)
        acc[c] = (float)c;
    for (uint32_t i = 0; i < iterations; i++)
        for (uint32_t c = 0; c < FMA_CHAINS; c++)
            acc[c] = acc[c] * 0.999f + 0.001f;
    float sum = 0;
    for (uint32_t c = 0; c < FMA_CHAINS; c++)
        sum += acc[c];
    *sink = sum;
    return 1;
}

#if defined(__x86_64__)
/* GCC's vector types give each instruction set the same text. */
#define DEFINE_X86(NAME, TARGET, BYTES, FMADD)                                                               \
    typedef float NAME##_f __attribute__((vector_size(BYTES)));                                              \
    typedef uint64_t NAME##_u __attribute__((vector_size(BYTES)));                                           \
    __attribute__((target(TARGET))) static uint64_t read_##NAME(const void *data, uint64_t bytes)            \
    {                                                                                                        \
        const NAME##_u *p = data;                                                                            \
        NAME##_u a = {0}, b = {0}, c = {0}, d = {0};                                                         \
        for (uint64_t i = 0; i < bytes / BYTES; i += 4) {                                                    \
            a += p[i];                                                                                       \
            b += p[i + 1];                                                                                   \
            c += p[i + 2];                                                                                   \
            d += p[i + 3];                                                                                   \
        }                                                                                                    \
        a += b + c + d;                                                                                      \
        uint64_t sum = 0;                                                                                    \
        for (unsigned i = 0; i < BYTES / 8; i++)                                                             \
            sum += a[i];                                                                                     \
        return sum;                                                                                          \
    }                                                                                                        \
    __attribute__((target(TARGET), optimize("O2"))) static uint32_t fma_##NAME(                              \
        uint32_t iterations, volatile float *sink)                                                           \
    {                                                                                                        \
        NAME##_f x, y, a[12];                                                                                \
        for (unsigned i = 0; i < BYTES / 4; i++) {                                                           \
            x[i] = 0.999f;                                                                                   \
            y[i] = 0.001f * (float)i;                                                                        \
            for (unsigned j = 0; j < 12; j++)                                                                \
                a[j][i] = (float)j;                                                                          \
        }                                                                                                    \
        for (uint32_t i = 0; i < 2 * iterations; i++)                                                        \
            _Pragma("GCC unroll 12") for (unsigned j = 0; j < 12; j++) a[j] = (NAME##_f)FMADD(a[j], x, y);   \
        float sum = 0;                                                                                       \
        for (unsigned j = 0; j < 12; j++)                                                                    \
            for (unsigned i = 0; i < BYTES / 4; i++)                                                         \
                sum += a[j][i];                                                                              \
        *sink = sum;                                                                                         \
        return BYTES / 4;                                                                                    \
    }

DEFINE_X86(avx2, "avx2,fma", 32, _mm256_fmadd_ps)
DEFINE_X86(avx512, "avx512f", 64, _mm512_fmadd_ps)
#endif

static read_fn best_read(void)
{
#if defined(__x86_64__)
    if (__builtin_cpu_supports("avx512f"))
        return read_avx512;
    if (__builtin_cpu_supports("avx2"))
        return read_avx2;
#endif
    return read_plain;
}

static fma_fn best_fma(void)
{
#if defined(__x86_64__)
    if (__builtin_cpu_supports("avx512f"))
        return fma_avx512;
    if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma"))
        return fma_avx2;
#endif
    return fma_plain;
}

typedef struct {
    char *data;
    read_fn read;
    fma_fn fma;
    _Atomic uint64_t sum; /* so that no read can be left out */
    _Atomic uint32_t width;
} job;

static void fill_chunk(void *user, uint32_t index, uint32_t worker)
{
    job *j = user;
    memset(j->data + index * READ_CHUNK, (int)index + 1, READ_CHUNK);
}

static void read_chunk(void *user, uint32_t index, uint32_t worker)
{
    job *j = user;
    atomic_fetch_add(&j->sum, j->read(j->data + index * READ_CHUNK, READ_CHUNK));
}

static void fma_chunk(void *user, uint32_t index, uint32_t worker)
{
    job *j = user;
    volatile float sink;
    atomic_store(&j->width, j->fma(FMA_ITERATIONS, &sink));
}

/* Seconds of the fastest of several passes over @n chunks. */
static double best_pass(qk_pool *pool, qk_pool_fn fn, job *j, uint32_t n)
{
    uint64_t begin = now_ns(), best = UINT64_MAX;
    for (int pass = 0; pass < PASSES_MIN || now_ns() - begin < MEASURE_NS; pass++) {
        uint64_t start = now_ns();
        qk_pool_run(pool, fn, j, n);
        uint64_t took = now_ns() - start;
        best = took < best ? took : best;
    }
    return (double)(best > 0 ? best : 1) * 1e-9;
}

double qk_cpu_measure_read(qk_pool *pool)
{
    job j = {.data = qk_cpu_memory_new(READ_BYTES), .read = best_read()};
    if (j.data == NULL)
        return 0;
    const uint32_t n = (uint32_t)(READ_BYTES / READ_CHUNK);
    qk_pool_run(pool, fill_chunk, &j, n);
    double seconds = best_pass(pool, read_chunk, &j, n);
    qk_cpu_memory_free(j.data, READ_BYTES);
    return (double)READ_BYTES / seconds;
}

double qk_cpu_measure_flops(qk_pool *pool)
{
    job j = {.fma = best_fma()};
    const uint32_t n = 4 * qk_pool_n_threads(pool);
    double seconds = best_pass(pool, fma_chunk, &j, n);
    return 2.0 * n * FMA_CHAINS * FMA_ITERATIONS * (double)atomic_load(&j.width) / seconds;
}
