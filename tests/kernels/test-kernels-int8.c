/* test-kernels-int8.c: int8 KV pages: the quantiser byte for byte, attention over its pages, and pages that a step wrote.
 *
 * 1. The quantiser is compared with the formula of qk.h written here in float64 (without the backend's bit patterns),
 *    for every instruction set on this machine: zeros, subnormals, ties of the scale and of the values, the ends of
 *    fp16, NaN and infinity. Bytes must be equal, so the sets agree among themselves.
 * 2. Attention is compared with float64 over the values q * s, and for each row alone bit for bit. Slices are heap
 *    blocks that end with the last scale anyone may read; what lies behind a row's last key is NaN.
 * 3. Every int8 page of a step is compared with the float32 values that the same step stores in an f32 page. */
#include "kernels/cpu/qk-cpu-ops.h"
#include "tests/kernels/fixture.h"
#include "tests/kernels/tap.h"
#include <math.h>
#include <string.h>

static const char *const isas[] = {"reference", "avx2", "avx512"};
static const qk_cpu_ops *ops;
static uint64_t seed = 5;

static uint32_t below(uint32_t n)
{
    return (uint32_t)((fixture_random(&seed) + 1) / 2 * n);
}

/* ---- The formula ------------------------------------------------------------------------------------------------ */

static double half_value(qk_f16 h)
{
    const int exponent = h >> 10 & 31, mantissa = h & 1023;
    const double sign = h & 0x8000 ? -1 : 1;
    if (exponent == 31)
        return mantissa != 0 ? (double)NAN : sign * (double)INFINITY;
    return sign * (exponent == 0 ? ldexp(mantissa, -24) : ldexp(1024 + mantissa, exponent - 25));
}

/* The fp16 nearest to @x >= 2^-14, ties to even, by counting in its unit: whole numbers and powers of 2 alone. */
static qk_f16 half_nearest(double x)
{
    int exponent;
    frexp(x, &exponent); /* x in [2^(exponent - 1), 2^exponent) */
    double units = nearbyint(ldexp(x, 11 - exponent));
    if (units == 2048) {
        units = 1024;
        exponent++;
    }
    if (exponent > 16)
        return 0x7c00;
    return (qk_f16)((exponent + 14) << 10 | ((int)units - 1024));
}

static void formula(int8_t *q, qk_f16 *scale, const float *x, uint32_t n)
{
    double m = 0;
    bool finite = true;
    for (uint32_t i = 0; i < n; i++) {
        finite = finite && isfinite(x[i]);
        m = fmax(m, fabs((double)x[i]));
    }
    /* The quotient of two floats, rounded to float64 and then to float32, is rounded as if at once. */
    *scale = !finite ? 0x7e00 : m == 0 ? 0 : half_nearest(fmax((double)(float)(m / 127), 0x1p-14));
    const double s = half_value(*scale);
    for (uint32_t i = 0; i < n; i++) {
        q[i] = 0;
        if (s > 0 && isfinite(s))
            q[i] = (int8_t)fmin(fmax(nearbyint((double)(float)((double)x[i] / s)), -127), 127);
    }
}

/* ---- Quantiser -------------------------------------------------------------------------------------------------- */

#define N_MAX 300u

/* One vector in a block that ends with it; the bytes around the result must stay. */
static bool quantises(const float *values, uint32_t n)
{
    float *x = malloc(n * sizeof(*x));
    int8_t *block = malloc(n + 2), want[N_MAX];
    qk_f16 scale = 0x1234, want_scale;
    tap_require(x != NULL && block != NULL && n <= N_MAX);
    memcpy(x, values, n * sizeof(*x));
    memset(block, 0x55, n + 2);
    ops->f32_to_i8(block + 1, &scale, x, n);
    formula(want, &want_scale, x, n);
    bool ok =
        scale == want_scale && memcmp(block + 1, want, n) == 0 && block[0] == 0x55 && block[n + 1] == 0x55;
    if (!ok)
        tap_note("%u values, the first %.9g: scale %04x, expected %04x; q[0] %d, expected %d", n,
            (double)x[0], scale, want_scale, block[1], want[0]);
    free(x);
    free(block);
    return ok;
}

static void test_random(void)
{
    bool ok = true;
    float x[N_MAX];
    for (uint32_t round = 0; round < 20000; round++) {
        const uint32_t n = round % 3 == 0 ? 128 : round % 3 == 1 ? 64 : 1 + below(N_MAX);
        const double size = ldexp(1 + fixture_random(&seed) / 2, (int)below(60) - 38);
        for (uint32_t i = 0; i < n; i++) {
            x[i] = (float)(size * fixture_random(&seed));
            if (below(40) == 0)
                x[i] *= 8;
            if (below(40) == 0)
                x[i] = below(2) == 0 ? 0.0f : -0.0f;
        }
        ok = quantises(x, n) && ok;
    }
    /* Any bits at all: most vectors have a NaN or overflow, short ones need not. */
    for (uint32_t round = 0; round < 20000; round++) {
        const uint32_t n = 1 + below(round % 2 == 0 ? 3 : 40);
        for (uint32_t i = 0; i < n; i++) {
            uint32_t bits = below(1u << 16) << 16 | below(1u << 16);
            memcpy(&x[i], &bits, sizeof(bits));
        }
        ok = quantises(x, n) && ok;
    }
    tap_ok(ok, "%s: 40,000 vectors have the formula's bytes", ops->name);
}

/* One element of @n is @value, at every place of interest; the others are @rest. */
static bool one_among(float value, float rest, uint32_t n)
{
    static const uint32_t places[] = {0, 1, 7, 8, 15, 16, 31, 63, 64, 96, 127, 128, 129};
    bool ok = true;
    float x[N_MAX];
    for (size_t p = 0; p < sizeof(places) / sizeof(places[0]) && places[p] < n; p++) {
        for (uint32_t i = 0; i < n; i++)
            x[i] = rest;
        x[places[p]] = value;
        ok = quantises(x, n) && ok;
        x[places[p]] = -value;
        ok = quantises(x, n) && ok;
    }
    return ok;
}

static void test_edges(void)
{
    static const struct {
        const char *name;
        float m; /* the largest value */
        qk_f16 scale;
        int8_t q; /* of it */
    } cases[] = {
        {"nothing but zeros", 0.0f, 0x0000, 0},
        {"the smallest subnormal", 0x1p-149f, 0x0400, 0},
        {"the smallest normal float", 0x1p-126f, 0x0400, 0},
        {"half a step of the smallest scale, a tie to 0", 0x1p-15f, 0x0400, 0},
        {"one and a half, a tie to 2", 1.5f * 0x1p-14f, 0x0400, 2},
        {"the largest of the smallest scale", 127 * 0x1p-14f, 0x0400, 127},
        {"just below it", 126.99999f * 0x1p-14f, 0x0400, 127},
        {"a scale of 1", 127.0f, 0x3c00, 127},
        {"a scale between two halves, a tie to the even one below", 127 * 0x1.002p0f, 0x3c00, 127},
        {"and to the even one above", 127 * 0x1.006p0f, 0x3c02, 127},
        {"a scale that carries to the next power of 2", 127 * 0x1.ffep0f, 0x4000, 127},
        {"the largest half", 127 * 65504.0f, 0x7bff, 127},
        {"just below the last tie", 127 * 65519.5f, 0x7bff, 127},
        {"the last tie: infinity", 127 * 65520.0f, 0x7c00, 0},
        {"the largest float", 0x1.fffffep127f, 0x7c00, 0},
        {"infinity", INFINITY, 0x7e00, 0},
        {"NaN", NAN, 0x7e00, 0},
    };
    for (size_t c = 0; c < sizeof(cases) / sizeof(cases[0]); c++) {
        float x[3] = {0.0f, cases[c].m, -0.0f};
        int8_t q[3];
        qk_f16 scale;
        ops->f32_to_i8(q, &scale, x, 3);
        const bool ok = scale == cases[c].scale && q[1] == cases[c].q && q[0] == 0 && q[2] == 0;
        tap_ok(ok && one_among(cases[c].m, 0.0f, 130) && one_among(cases[c].m, 1e-3f, 128),
            "%s: %s: scale %04x, q %d", ops->name, cases[c].name, scale, q[1]);
    }
    /* Values halfway between two steps go to the even one, for scales of every power of 2. */
    bool ties = true, saturates = true;
    for (int exponent = -14; exponent <= 15; exponent++) {
        float x[N_MAX];
        int8_t q[N_MAX];
        qk_f16 scale;
        x[0] = (float)ldexp(127, exponent);
        for (int i = 0; i < 253; i++)
            x[1 + i] = (float)ldexp(i - 126 + 0.5, exponent);
        ties = quantises(x, 254) && ties;
        ops->f32_to_i8(q, &scale, x, 254);
        for (int i = 0; i < 253; i++)
            ties = ties && q[1 + i] % 2 == 0 && abs(2 * q[1 + i] - (2 * (i - 126) + 1)) == 1;
        /* A scale that was rounded down: the largest value is past 127 steps, and the result is not. */
        x[0] = (float)ldexp(127 * (1 + 0x1p-11 - 0x1p-20), exponent);
        x[1] = -x[0];
        ops->f32_to_i8(q, &scale, x, 2);
        saturates = saturates && (exponent == -14 || half_value(scale) == ldexp(1, exponent)) &&
                    q[0] == 127 && q[1] == -127;
    }
    tap_ok(ties, "%s: ties of values go to even", ops->name);
    tap_ok(saturates, "%s: no value is beyond 127", ops->name);
    bool visible = true;
    float x[64] = {0};
    int8_t q[64];
    qk_f16 scale;
    static const float bad[] = {NAN, -INFINITY, 1e30f};
    for (int i = 0; i < 3; i++) {
        x[40] = bad[i];
        ops->f32_to_i8(q, &scale, x, 64);
        for (int d = 0; d < 64; d++)
            visible = visible && isnan(q[d] * half_value(scale));
    }
    tap_ok(visible, "%s: what cannot be stored reads as NaN", ops->name);
}

/* Error of one vector: half a step, a step being at most max / 127 and half a unit of fp16 more. */
static void test_error(void)
{
    double worst = 0;
    for (int round = 0; round < 2000; round++) {
        float x[128], m = 0;
        int8_t q[128];
        qk_f16 scale;
        for (int d = 0; d < 128; d++) {
            x[d] = (float)fixture_random(&seed);
            m = fmaxf(m, fabsf(x[d]));
        }
        ops->f32_to_i8(q, &scale, x, 128);
        for (int d = 0; d < 128; d++)
            worst = fmax(worst, fabs(q[d] * half_value(scale) - (double)x[d]) / (double)m);
    }
    tap_ok(worst <= 0.5 / 127 * (1 + 0x1p-11) * (1 + 1e-6),
        "%s: the error is at most %.5f of the largest value", ops->name, worst);
}

/* ---- Attention -------------------------------------------------------------------------------------------------- */

typedef struct {
    uint32_t dim, n_q, n_rows, n_keys_max;
    size_t token_stride, scale_offset;
    void *k[16], *v[16]; /* slices: K and V of one head */
    uint32_t n_keys[QK_CPU_ATTEND_ROWS_MAX];
    float *q[QK_CPU_ATTEND_ROWS_MAX], *out[QK_CPU_ATTEND_ROWS_MAX], *lse[QK_CPU_ATTEND_ROWS_MAX];
} span;

static qk_f16 *scale_of(const span *s, void *slice, uint32_t t)
{
    return (qk_f16 *)(void *)((char *)slice + s->scale_offset) + t % QK_PAGE_TOKENS;
}

static int8_t *token_of(const span *s, void *slice, uint32_t t)
{
    return (int8_t *)slice + t % QK_PAGE_TOKENS * s->token_stride;
}

static double value_of(const span *s, void *const *slices, uint32_t t, uint32_t d)
{
    void *slice = slices[t / QK_PAGE_TOKENS];
    return token_of(s, slice, t)[d] * half_value(*scale_of(s, slice, t));
}

static float *random_floats(size_t n, double size)
{
    float *x = malloc(n * sizeof(*x));
    tap_require(x != NULL);
    for (size_t i = 0; i < n; i++)
        x[i] = (float)(size * fixture_random(&seed));
    return x;
}

/* Rows see n_keys_max, n_keys_max - step, ... keys. What no key owns in a slice is 0x7f: a NaN as a scale. */
static void span_init(span *s, uint32_t dim, uint32_t n_q, uint32_t n_rows, uint32_t n_keys, uint32_t step)
{
    *s = (span){.dim = dim, .n_q = n_q, .n_rows = n_rows, .n_keys_max = n_keys};
    s->token_stride = dim + below(2) * 6;
    s->scale_offset = (s->token_stride * (QK_PAGE_TOKENS - 1) + dim + 1) / 2 * 2 + below(2) * 2;
    for (uint32_t p = 0; p * QK_PAGE_TOKENS < n_keys; p++) {
        uint32_t n =
            n_keys - p * QK_PAGE_TOKENS < QK_PAGE_TOKENS ? n_keys - p * QK_PAGE_TOKENS : QK_PAGE_TOKENS;
        for (int side = 0; side < 2; side++) {
            void *slice = malloc(s->scale_offset + n * sizeof(qk_f16));
            tap_require(slice != NULL);
            memset(slice, 0x7f, s->scale_offset + n * sizeof(qk_f16));
            for (uint32_t t = 0; t < n; t++) {
                float *x = random_floats(dim, below(20) == 0 ? 30 : 1);
                if (below(30) == 0)
                    memset(x, 0, dim * sizeof(*x));
                ops->f32_to_i8(token_of(s, slice, t), scale_of(s, slice, t), x, dim);
                free(x);
            }
            *(side == 0 ? &s->k[p] : &s->v[p]) = slice;
        }
    }
    for (uint32_t r = 0; r < n_rows; r++) {
        const uint32_t less = (n_rows - 1 - r) * step;
        s->n_keys[r] = less < n_keys ? n_keys - less : 1;
        s->q[r] = random_floats((size_t)n_q * dim, 1);
        s->out[r] = random_floats((size_t)n_q * dim, 1);
        s->lse[r] = random_floats(n_q, 1);
    }
}

static void span_clear(span *s)
{
    for (int p = 0; p < 16; p++) {
        free(s->k[p]);
        free(s->v[p]);
    }
    for (uint32_t r = 0; r < s->n_rows; r++) {
        free(s->q[r]);
        free(s->out[r]);
        free(s->lse[r]);
    }
}

/* Rows [row, row + n_rows) and of each heads [head, head + n_q). */
static void span_attend(const span *s, uint32_t row, uint32_t n_rows, uint32_t head, uint32_t n_q,
    float *const *out, float *const *lse)
{
    const float *q[QK_CPU_ATTEND_ROWS_MAX];
    for (uint32_t r = 0; r < n_rows; r++)
        q[r] = s->q[row + r] + (size_t)head * s->dim;
    const size_t bytes = (qk_cpu_attend_scratch_floats(n_q, s->dim) * sizeof(float) + 63) / 64 * 64;
    float *scratch = aligned_alloc(64, bytes);
    tap_require(scratch != NULL);
    memset(scratch, 0xff, bytes);
    const qk_cpu_attend a = {
        .k_pages = (const void *const *)s->k,
        .v_pages = (const void *const *)s->v,
        .token_stride = s->token_stride,
        .scale_offset = s->scale_offset,
        .head_dim = s->dim,
        .n_q = n_q,
        .n_rows = n_rows,
        .n_keys = s->n_keys + row,
        .q = q,
        .scale = (float)(1 / sqrt(s->dim)),
        .out = out,
        .lse = lse,
        .scratch = scratch,
    };
    qk_cpu_attend_pages(ops, QK_I8, &a);
    free(scratch);
}

/* The largest error of a row and head, in units of its bound: one float32 rounding for each term of a score or sum. */
static double span_error(const span *s, uint32_t row, uint32_t head)
{
    double score[QK_SPAN_TOKENS], max = -INFINITY, sum = 0, score_size = 0, worst;
    const uint32_t n = s->n_keys[row];
    for (uint32_t t = 0; t < n; t++) {
        double size = 0;
        score[t] = 0;
        for (uint32_t d = 0; d < s->dim; d++) {
            const double term = (double)s->q[row][head * s->dim + d] * value_of(s, s->k, t, d) / sqrt(s->dim);
            score[t] += term;
            size += fabs(term);
        }
        score_size = fmax(score_size, size);
        max = fmax(max, score[t]);
    }
    for (uint32_t t = 0; t < n; t++)
        sum += exp(score[t] - max);
    const double bound = 3e-7 + 5e-7 * score_size, lse = max + log(sum);
    worst = fabs((double)s->lse[row][head] - lse) / (bound + 2e-7 * fabs(lse));
    for (uint32_t d = 0; d < s->dim; d++) {
        double want = 0, size = 0;
        for (uint32_t t = 0; t < n; t++) {
            const double term = exp(score[t] - max) / sum * value_of(s, s->v, t, d);
            want += term;
            size += fabs(term);
        }
        const double error = fabs((double)s->out[row][head * s->dim + d] - want);
        worst = error <= 2 * bound * size ? fmax(worst, size > 0 ? error / (2 * bound * size) : 0) : INFINITY;
    }
    return worst;
}

/* The row's heads together, and one of them alone, have the bits of the tile. */
static bool span_alone(const span *s, uint32_t row)
{
    float *out = random_floats((size_t)s->n_q * s->dim, 1), *lse = random_floats(s->n_q, 1);
    span_attend(s, row, 1, 0, s->n_q, &out, &lse);
    bool same = memcmp(out, s->out[row], (size_t)s->n_q * s->dim * sizeof(float)) == 0 &&
                memcmp(lse, s->lse[row], s->n_q * sizeof(float)) == 0;
    const uint32_t head = below(s->n_q);
    span_attend(s, row, 1, head, 1, &out, &lse);
    same = same && memcmp(out, s->out[row] + (size_t)head * s->dim, s->dim * sizeof(float)) == 0 &&
           memcmp(lse, s->lse[row] + head, sizeof(float)) == 0;
    free(out);
    free(lse);
    return same;
}

static void test_attend(void)
{
    static const uint32_t dims[] = {64, 128, 16, 34, 80, 96, 256, 2};
    static const uint32_t heads[] = {1, 4, 5, 8};
    static const uint32_t keys[] = {1, 2, 15, 16, 17, 64, 100, 255, 256};
    for (size_t i = 0; i < sizeof(dims) / sizeof(dims[0]); i++) {
        double worst = 0;
        bool same = true;
        for (size_t h = 0; h < sizeof(heads) / sizeof(heads[0]); h++) {
            for (size_t k = 0; k < sizeof(keys) / sizeof(keys[0]); k++) {
                const uint32_t n_rows = k % 3 == 0 ? 1 : k == 8 ? 16 : 2 + below(14);
                span s;
                span_init(&s, dims[i], heads[h], n_rows, keys[k], below(4));
                span_attend(&s, 0, n_rows, 0, s.n_q, s.out, s.lse);
                for (uint32_t r = 0; r < n_rows; r++) {
                    same = span_alone(&s, r) && same;
                    if (r == 0 || r == n_rows - 1)
                        for (uint32_t q = 0; q < s.n_q; q++)
                            worst = fmax(worst, span_error(&s, r, q));
                }
                span_clear(&s);
            }
        }
        tap_ok(worst <= 1, "%s: attention of head_dim %u, 1 to 8 heads: %.2f of the bound", ops->name,
            dims[i], worst);
        tap_ok(same, "%s: and the same bits for a row or a head alone", ops->name);
    }
}

/* A key behind a row's last may be anything; a row shows what is wrong with a key of its own. */
static void test_poison(void)
{
    static const qk_f16 poisons[] = {0x7e00, 0x7c00, 0xfe00};
    bool hidden = true, shown = true;
    for (uint32_t n_keys = 3; n_keys <= 256; n_keys += 11) {
        for (int side = 0; side < 2; side++) {
            span s;
            span_init(&s, n_keys % 2 ? 64 : 128, 2, 2, n_keys, 1);
            span_attend(&s, 0, 2, 0, 2, s.out, s.lse);
            const size_t bytes = (size_t)2 * s.dim * sizeof(float);
            float *before = malloc(bytes);
            tap_require(before != NULL);
            memcpy(before, s.out[0], bytes);
            const uint32_t last = n_keys - 1;
            void *slice = side == 0 ? s.k[last / QK_PAGE_TOKENS] : s.v[last / QK_PAGE_TOKENS];
            *scale_of(&s, slice, last) = poisons[n_keys % 3];
            memset(token_of(&s, slice, last), 0, s.dim); /* as the quantiser leaves it */
            span_attend(&s, 0, 2, 0, 2, s.out, s.lse);
            hidden = hidden && memcmp(before, s.out[0], bytes) == 0;
            for (uint32_t i = 0; i < 2 * s.dim; i++)
                shown = shown && isnan(s.out[1][i]);
            free(before);
            span_clear(&s);
        }
    }
    tap_ok(hidden, "%s: a scale behind a row's last key does not reach it", ops->name);
    tap_ok(shown, "%s: a NaN or infinite scale of its own shows in every element", ops->name);
}

/* The reference is the f32 attention over the values q * s, bit for bit: they are exact in float32. */
static void test_reference(void)
{
    span s;
    span_init(&s, 80, 4, 9, 201, 3);
    span_attend(&s, 0, 9, 0, 4, s.out, s.lse);
    span wide = s;
    wide.token_stride = s.dim * sizeof(float);
    for (uint32_t p = 0; p * QK_PAGE_TOKENS < s.n_keys_max; p++) {
        wide.k[p] = calloc(QK_PAGE_TOKENS, wide.token_stride);
        wide.v[p] = calloc(QK_PAGE_TOKENS, wide.token_stride);
        tap_require(wide.k[p] != NULL && wide.v[p] != NULL);
    }
    bool exact = true;
    for (uint32_t t = 0; t < s.n_keys_max; t++) {
        for (uint32_t d = 0; d < s.dim; d++) {
            const double k = value_of(&s, s.k, t, d), v = value_of(&s, s.v, t, d);
            const size_t at = t % QK_PAGE_TOKENS * s.dim + d;
            ((float *)wide.k[t / QK_PAGE_TOKENS])[at] = (float)k;
            ((float *)wide.v[t / QK_PAGE_TOKENS])[at] = (float)v;
            exact = exact && (double)(float)k == k && (double)(float)v == v;
        }
    }
    float *out[QK_CPU_ATTEND_ROWS_MAX], *lse[QK_CPU_ATTEND_ROWS_MAX];
    bool same = true;
    for (uint32_t r = 0; r < s.n_rows; r++) {
        out[r] = random_floats((size_t)s.n_q * s.dim, 1);
        lse[r] = random_floats(s.n_q, 1);
    }
    float *scratch = aligned_alloc(64, (qk_cpu_attend_scratch_floats(4, 80) * sizeof(float) + 63) / 64 * 64);
    tap_require(scratch != NULL);
    const qk_cpu_attend a = {(const void *const *)wide.k, (const void *const *)wide.v, wide.token_stride,
        s.dim, s.n_q, s.n_rows, s.n_keys, (const float *const *)s.q, (float)(1 / sqrt(s.dim)), out, lse,
        scratch, 0};
    ops->attend_f32(&a);
    for (uint32_t r = 0; r < s.n_rows; r++) {
        same = same && memcmp(out[r], s.out[r], (size_t)s.n_q * s.dim * sizeof(float)) == 0 &&
               memcmp(lse[r], s.lse[r], s.n_q * sizeof(float)) == 0;
        free(out[r]);
        free(lse[r]);
    }
    tap_ok(exact && same, "reference: int8 attention is f32 attention over the exact values");
    for (uint32_t p = 0; p < 16; p++) {
        if (p * QK_PAGE_TOKENS < s.n_keys_max) {
            free(wide.k[p]);
            free(wide.v[p]);
        }
    }
    free(scratch);
    span_clear(&s);
}

/* ---- Pages of a step -------------------------------------------------------------------------------------------- */

#define N_TOKENS 70u
#define N_PAGES  6u

static void read_pages(rig *r, qk_buffer **host)
{
    const uint64_t bytes = N_PAGES * r->params.layout.page_bytes;
    tap_require(qk_buffer_new(r->backend, QK_MEMORY_HOST, bytes, host) == QK_OK);
    const qk_copy copy = {*host, 0, r->pages, 0, bytes};
    qk_event *event;
    tap_require(qk_event_new(r->backend, &event) == QK_OK);
    tap_require(qk_copy_submit(r->backend, QK_STREAM_TO_HOST, &copy, 1) == QK_OK);
    tap_require(qk_event_record(event, QK_STREAM_TO_HOST) == QK_OK && qk_event_wait(event) == QK_OK);
    qk_event_free(event);
}

static const char *slice_of(
    const qk_buffer *host, const qk_kv_layout *l, uint32_t page, uint32_t head, bool v)
{
    return (const char *)host->host + page * l->page_bytes + head * l->head_stride + (v ? l->v_offset : 0);
}

/* The first layer's keys and values do not depend on what pages hold. */
static void test_pages(const qk_shape *shape)
{
    static const uint32_t pages[] = {4, 1, 3, 0, 2};
    int32_t tokens[N_TOKENS];
    fixture_model *m = fixture_model_new(shape, QK_BF16, 8);
    rig int8, f32;
    rig_options options = {
        .n_threads = 2, .isa = ops->name, .kv_dtype = QK_I8, .rows_max = 64, .n_pages = N_PAGES};
    rig_open(&int8, m, &options);
    options.kv_dtype = QK_F32;
    rig_open(&f32, m, &options);
    for (uint32_t i = 0; i < N_TOKENS; i++)
        tokens[i] = (int32_t)below(shape->vocab);
    for (uint32_t at = 0; at < N_TOKENS; at += 35) {
        rig_rows rows = {tokens + at, 35, at, pages};
        tap_require(rig_run(&int8, &rows, 1, NULL) == QK_OK && rig_run(&f32, &rows, 1, NULL) == QK_OK);
    }
    qk_buffer *int8_host, *f32_host;
    read_pages(&int8, &int8_host);
    read_pages(&f32, &f32_host);
    bool ok = true;
    const qk_kv_layout *l = &int8.params.layout, *wide = &f32.params.layout;
    for (uint32_t t = 0; t < N_TOKENS; t++) {
        const uint32_t page = pages[t / QK_PAGE_TOKENS], in_page = t % QK_PAGE_TOKENS;
        for (uint32_t i = 0; i < 2 * shape->n_kv_heads; i++) {
            const char *from = slice_of(f32_host, wide, page, i / 2, i % 2), *got;
            int8_t want[N_MAX];
            qk_f16 scale;
            formula(want, &scale, (const float *)(const void *)(from + in_page * wide->token_stride),
                shape->head_dim);
            got = slice_of(int8_host, l, page, i / 2, i % 2);
            ok = ok && memcmp(got + in_page * l->token_stride, want, shape->head_dim) == 0 &&
                 memcmp(got + l->scale_offset + 2 * in_page, &scale, 2) == 0;
        }
    }
    tap_ok(ok, "%s, head_dim %u: a step writes the quantised keys and values where the layout says",
        ops->name, shape->head_dim);
    const char *untouched = slice_of(int8_host, l, 5, 0, false);
    const char *behind = slice_of(int8_host, l, pages[4], 0, false) + l->scale_offset + 2 * (N_TOKENS % 16);
    static const uint8_t fresh[] = {0xc0, 0x7f, 0xc0, 0x7f};
    tap_ok(
        memcmp(untouched, fresh, 4) == 0 && memcmp(behind, fresh, 4) == 0, "%s: and nothing else", ops->name);
    qk_buffer_free(int8_host);
    qk_buffer_free(f32_host);
    rig_close(&int8);
    rig_close(&f32);
    fixture_model_free(m);
}

/* A weight that is not a number: the result says so, whatever the pages' type. */
static void test_not_finite(void)
{
    fixture_model *m = fixture_model_new(&fixture_small, QK_F32, 8);
    qk_tensor *v = &m->layers[0].v;
    ((float *)(uintptr_t)v->data)[3] = NAN;
    rig r;
    rig_open(&r, m,
        &(rig_options){.n_threads = 1, .isa = ops->name, .kv_dtype = QK_I8, .rows_max = 8, .n_pages = 1});
    const int32_t tokens[] = {1, 2, 3};
    const uint32_t page = 0;
    rig_fill(&r, 0, &(rig_rows){tokens, 3, 0, &page}, 1);
    qk_plan *plan = qk_step_plan(r.steps[0]);
    plan->n_outputs = 1;
    plan->outputs[0] = (qk_output){.row = 2,
        .flags = QK_OUTPUT_SAMPLE,
        .slot = QK_NO_SLOT,
        .sampling = {.temperature = 0, .top_p = 1, .repetition_penalty = 1}};
    tap_require(qk_step_submit(r.steps[0]) == QK_OK && qk_step_wait(r.steps[0]) == QK_OK);
    const qk_output_result *result = qk_step_result(r.steps[0])->outputs;
    tap_ok((result->flags & QK_RESULT_NOT_FINITE) != 0, "%s: NaN in a value shows in the result's flags",
        ops->name);
    rig_close(&r);
    fixture_model_free(m);
}

int main(void)
{
    for (size_t i = 0; i < sizeof(isas) / sizeof(isas[0]); i++) {
        ops = qk_cpu_ops_get(isas[i]);
        if (ops == NULL) {
            tap_skip("%s is not on this machine or not in this build", isas[i]);
            continue;
        }
        test_random();
        test_edges();
        test_error();
        test_attend();
        test_poison();
        test_pages(&fixture_small);
        test_pages(&fixture_medium);
        test_not_finite();
    }
    ops = qk_cpu_ops_get("reference");
    test_reference();
    return tap_done();
}
