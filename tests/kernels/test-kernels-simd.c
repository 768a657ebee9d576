/* test-kernels-simd.c: every op of the vector instruction sets this machine has, against float64 formulas and against
 * the rule that a row's bits do not depend on its company.
 *
 * Every array is its own heap block of the exact size, begun one element off alignment, so that a sanitizer sees a
 * read past an end. What an op must not read or use is NaN. Prints TAP; exits 77 when no set is supported. */
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "kernels/cpu/qk-cpu-ops.h"

static int n_tests, n_failed;
static bool test_ok;
static const qk_cpu_ops *ops;

__attribute__((format(printf, 1, 2))) static void fail(const char *format, ...)
{
    if (test_ok) { /* the first failure of a test is the useful one */
        va_list args;
        va_start(args, format);
        printf("# ");
        vprintf(format, args);
        printf("\n");
        va_end(args);
    }
    test_ok = false;
}

static void run_test(const char *name, void (*test)(void))
{
    test_ok = true;
    test();
    n_tests++;
    n_failed += !test_ok;
    printf("%s %d - /kernels/simd/%s/%s\n", test_ok ? "ok" : "not ok", n_tests, ops->name, name);
    fflush(stdout);
}

/* ---- Data ----------------------------------------------------------------------------------------------------- */

static uint64_t random_state = 0x9e3779b97f4a7c15u;

static uint32_t random_u32(void)
{
    random_state ^= random_state << 13;
    random_state ^= random_state >> 7;
    random_state ^= random_state << 17;
    return (uint32_t)(random_state >> 32);
}

static float random_float(void) /* (-1, 1), with a few large values, as activations have */
{
    float value = (float)((double)random_u32() / 2147483648.0 - 1.0);
    return random_u32() % 50 == 0 ? 20.0f * value : value;
}

/* Blocks of @n elements of @size whose data begins one element into the allocation. */
static void *block_new(size_t n, size_t size)
{
    char *base = malloc((n + 1) * size);
    if (base == NULL) {
        abort();
    }
    memset(base, 0xff, (n + 1) * size); /* NaN, as float and as bf16 */
    return base + size;
}

static void block_free(void *block, size_t size)
{
    free((char *)block - size);
}

static float *floats_new(size_t n)
{
    float *x = block_new(n, sizeof(float));
    for (size_t i = 0; i < n; i++) {
        x[i] = random_float();
    }
    return x;
}

static void floats_free(float *x)
{
    block_free(x, sizeof(float));
}

static float bf16_value(qk_bf16 x)
{
    uint32_t bits = (uint32_t)x << 16;
    float value;
    memcpy(&value, &bits, sizeof value);
    return value;
}

static uint32_t float_bits(float x)
{
    uint32_t bits;
    memcpy(&bits, &x, sizeof bits);
    return bits;
}

/* To nearest even, by counting in the float64 neighbours rather than by the usual bit trick. */
static qk_bf16 bf16_nearest(float x)
{
    qk_bf16 down = (qk_bf16)(float_bits(x) >> 16);
    if (isnan(x)) {
        return (qk_bf16)(down | 0x40);
    }
    if (isinf(x)) {
        return down;
    }
    qk_bf16 up = (qk_bf16)(down + 1);
    double below = bf16_value(down);
    double above = (up & 0x7fff) == 0x7f80 ? copysign(ldexp(1, 128), below) : bf16_value(up);
    double to_below = fabs(x - below), to_above = fabs(above - x);
    return to_below < to_above || (to_below == to_above && down % 2 == 0) ? down : up;
}

/* ---- Products ------------------------------------------------------------------------------------------------- */

typedef struct {
    uint32_t n_rows, n_in, n_out;
    bool is_bf16;
    size_t x_stride, y_stride;
    float *x, *y, *w32;
    qk_bf16 *w16;
} product;

static void product_run(
    const product *p, float *y, uint32_t row, uint32_t n_rows, uint32_t o_begin, uint32_t o_end)
{
    const float *x = p->x + row * p->x_stride;
    if (p->is_bf16) {
        ops->matmul_bf16(y, p->y_stride, x, p->x_stride, p->w16, n_rows, p->n_in, o_begin, o_end);
    } else {
        ops->matmul_f32(y, p->y_stride, x, p->x_stride, p->w32, n_rows, p->n_in, o_begin, o_end);
    }
}

static void product_check_values(const product *p)
{
    for (uint32_t r = 0; r < p->n_rows; r++) {
        for (uint32_t o = 0; o < p->n_out; o++) {
            double want = 0, size = 0;
            for (uint32_t i = 0; i < p->n_in; i++) {
                size_t at = (size_t)o * p->n_in + i;
                double term = (double)p->x[r * p->x_stride + i] *
                              (double)(p->is_bf16 ? bf16_value(p->w16[at]) : p->w32[at]);
                want += term;
                size += fabs(term);
            }
            double got = p->y[r * p->y_stride + o];
            if (!(fabs(got - want) <= 2e-6 * size)) {
                fail("%u rows, %u in: y[%u][%u] is %.9g, expected %.9g", p->n_rows, p->n_in, r, o, got, want);
            }
        }
    }
}

/* Each row alone, outputs in three ranges: the same bits, and nothing written outside the range. */
static void product_check_alone(const product *p)
{
    const uint32_t cut1 = p->n_out / 3, cut2 = p->n_out - p->n_out / 4;
    float *y = floats_new(p->n_out);
    for (uint32_t r = 0; r < p->n_rows; r++) {
        for (uint32_t o = 0; o < p->n_out; o++) {
            y[o] = 12345.0f;
        }
        product_run(p, y, r, 1, cut1, cut2);
        for (uint32_t o = 0; o < p->n_out; o++) {
            if ((o < cut1 || o >= cut2) && y[o] != 12345.0f) {
                fail("%u in: output %u outside [%u, %u) was written", p->n_in, o, cut1, cut2);
            }
        }
        product_run(p, y, r, 1, cut2, p->n_out);
        product_run(p, y, r, 1, 0, cut1);
        if (memcmp(y, p->y + r * p->y_stride, p->n_out * sizeof(float)) != 0) {
            fail("%u rows, %u in, %u out: row %u alone has other bits", p->n_rows, p->n_in, p->n_out, r);
        }
    }
    floats_free(y);
}

static void product_case(uint32_t n_rows, uint32_t n_in, uint32_t n_out, bool is_bf16)
{
    product p = {n_rows, n_in, n_out, is_bf16, n_in + 3, n_out + 1, NULL, NULL, NULL, NULL};
    const size_t n_w = (size_t)n_in * n_out;
    p.x = floats_new((n_rows - 1) * p.x_stride + n_in);
    p.y = floats_new((n_rows - 1) * p.y_stride + n_out);
    p.w32 = is_bf16 ? NULL : floats_new(n_w);
    p.w16 = is_bf16 ? block_new(n_w, sizeof(qk_bf16)) : NULL;
    for (uint32_t r = 0; r + 1 < n_rows; r++) { /* what lies between rows is not for reading */
        memset(p.x + r * p.x_stride + n_in, 0xff, 3 * sizeof(float));
    }
    for (size_t i = 0; is_bf16 && i < n_w; i++) {
        p.w16[i] = bf16_nearest(random_float());
    }
    product_run(&p, p.y, 0, n_rows, 0, n_out);
    product_check_values(&p);
    product_check_alone(&p);
    floats_free(p.x);
    floats_free(p.y);
    if (is_bf16) {
        block_free(p.w16, sizeof(qk_bf16));
    } else {
        floats_free(p.w32);
    }
}

static void product_cases(bool is_bf16)
{
    static const uint32_t sizes[] = {1, 2, 7, 8, 9, 15, 16, 17, 31, 33, 48, 100, 256, 1023, 1041, 3072};
    for (size_t s = 0; s < sizeof sizes / sizeof *sizes; s++) {
        for (uint32_t n_rows = 1; n_rows <= 8; n_rows++) {
            product_case(n_rows, sizes[s], 1 + random_u32() % 12, is_bf16);
        }
        product_case(9 + random_u32() % 12, sizes[s], 41, is_bf16);
    }
    product_case(2, 5003, 6, is_bf16);
    product_case(7, 4100, 77, is_bf16); /* several blocks of outputs, several of inputs */
    product_case(16, 1024, 70, is_bf16);
    product_case(37, 3072, 35, is_bf16);
}

static void test_matmul_bf16(void)
{
    product_cases(true);
}

static void test_matmul_f32(void)
{
    product_cases(false);
}

/* An empty range does nothing; a row that overflowed does not touch its neighbours. */
static void test_matmul_edges(void)
{
    float *x = floats_new(2 * 64), *w = floats_new(5 * 64), *y = floats_new(2 * 5), *alone = floats_new(5);
    y[0] = 7.0f;
    ops->matmul_f32(y, 5, x, 64, w, 2, 64, 3, 3);
    ops->matmul_f32(y, 5, x, 64, w, 0, 64, 0, 5);
    if (y[0] != 7.0f) {
        fail("an empty product wrote an output");
    }
    x[10] = NAN;
    ops->matmul_f32(y, 5, x, 64, w, 2, 64, 0, 5);
    ops->matmul_f32(alone, 5, x + 64, 64, w, 1, 64, 0, 5);
    for (int o = 0; o < 5; o++) {
        if (!isnan(y[o]) || float_bits(y[5 + o]) != float_bits(alone[o])) {
            fail("NaN of row 0: outputs %g and %g", y[o], y[5 + o]);
        }
    }
    floats_free(x);
    floats_free(w);
    floats_free(y);
    floats_free(alone);
}

/* ---- One row -------------------------------------------------------------------------------------------------- */

static bool near(double got, double want, double relative, double absolute)
{
    return fabs(got - want) <= relative * fabs(want) + absolute;
}

static void test_rms_norm(void)
{
    for (uint32_t n = 1; n < 1100; n += n < 70 ? 1 : 101) {
        float *x = floats_new(n), *weight = floats_new(n), *y = floats_new(n);
        double squares = 0;
        for (uint32_t i = 0; i < n; i++) {
            squares += (double)x[i] * x[i];
        }
        ops->rms_norm(y, x, weight, n, 1e-6f);
        for (uint32_t i = 0; i < n; i++) {
            double want = x[i] / sqrt(squares / n + 1e-6) * weight[i];
            if (!near(y[i], want, 2e-6, 0)) {
                fail("n %u: y[%u] is %.9g, expected %.9g", n, i, y[i], want);
            }
        }
        ops->rms_norm(x, x, weight, n, 1e-6f);
        if (memcmp(x, y, n * sizeof(float)) != 0) {
            fail("n %u: in place has other bits", n);
        }
        floats_free(x);
        floats_free(weight);
        floats_free(y);
    }
}

static void test_rope(void)
{
    for (uint32_t n = 2; n <= 140; n += 2) {
        float *x = floats_new(n), *table = floats_new(n), *y = floats_new(n);
        memcpy(y, x, n * sizeof(float));
        ops->rope(y, table, n);
        for (uint32_t i = 0; i < n / 2; i++) {
            double a = x[i], b = x[i + n / 2], c = table[i], s = table[i + n / 2];
            double size = fabs(a) + fabs(b);
            if (!near(y[i], a * c - b * s, 0, 2e-7 * 20 * size) ||
                !near(y[i + n / 2], b * c + a * s, 0, 2e-7 * 20 * size)) {
                fail("n %u: pair %u is %.9g, %.9g", n, i, y[i], y[i + n / 2]);
            }
        }
        floats_free(x);
        floats_free(table);
        floats_free(y);
    }
}

static void test_add(void)
{
    for (uint32_t n = 0; n < 70; n++) {
        float *x = floats_new(n), *y = floats_new(n), *before = floats_new(n);
        memcpy(before, y, n * sizeof(float));
        ops->add(y, x, n);
        for (uint32_t i = 0; i < n; i++) {
            if (y[i] != before[i] + x[i]) {
                fail("n %u: y[%u] is %.9g", n, i, y[i]);
            }
        }
        floats_free(x);
        floats_free(y);
        floats_free(before);
    }
}

/* Dense over the useful range. Where the gate is far below 0 the result is gate * exp(gate), so the bound holds exp. */
static void test_silu_mul(void)
{
    const uint32_t n = 40000 + 5;
    float *gate = floats_new(n), *up = floats_new(n), *x = floats_new(n);
    for (uint32_t i = 0; i < n; i++) {
        x[i] = gate[i] = -86.0f + (float)i * (172.0f / 40000.0f);
    }
    ops->silu_mul(gate, up, n);
    for (uint32_t i = 0; i < n; i++) {
        double want = x[i] / (1 + exp(-(double)x[i])) * up[i];
        if (!near(gate[i], want, 4e-7, 1e-38)) {
            fail("silu(%.9g) * %.9g is %.9g, expected %.9g", x[i], up[i], gate[i], want);
        }
        float one = x[i];
        ops->silu_mul(&one, &up[i], 1);
        if (float_bits(one) != float_bits(gate[i])) {
            fail("silu(%.9g) in a tail has other bits", x[i]);
        }
    }
    floats_free(gate);
    floats_free(up);
    floats_free(x);
    float extreme[] = {-INFINITY, -3e38f, -200.0f, 0.0f, 200.0f, 3e38f, INFINITY, NAN};
    const float ones[] = {1, 1, 1, 1, 1, 1, 1, 1};
    ops->silu_mul(extreme, ones, 8);
    if (!(extreme[1] == 0 && fabsf(extreme[2]) < 1e-30f && extreme[3] == 0 && extreme[4] == 200.0f &&
            extreme[5] == 3e38f && extreme[6] == INFINITY && isnan(extreme[7]))) {
        fail("silu of extremes: %g %g %g %g %g %g %g", extreme[1], extreme[2], extreme[3], extreme[4],
            extreme[5], extreme[6], extreme[7]);
    }
}

static void test_bf16(void)
{
    static const uint32_t lows[] = {0, 1, 0x7fff, 0x8000, 0x8001, 0xffff};
    const uint32_t n = 65536;
    qk_bf16 *all = block_new(n, sizeof(qk_bf16)), *back = block_new(n, sizeof(qk_bf16));
    float *wide = floats_new(n);
    for (uint32_t i = 0; i < n; i++) {
        all[i] = (qk_bf16)i;
    }
    ops->bf16_to_f32(wide, all, n);
    for (uint32_t i = 0; i < n; i++) {
        if (float_bits(wide[i]) != i << 16) {
            fail("bf16 %04x became %08x", i, float_bits(wide[i]));
        }
    }
    for (size_t l = 0; l < sizeof lows / sizeof *lows; l++) {
        for (uint32_t i = 0; i < n; i++) {
            uint32_t bits = i << 16 | lows[l];
            memcpy(&wide[i], &bits, sizeof bits);
        }
        ops->f32_to_bf16(back, wide, n);
        for (uint32_t i = 0; i < n; i++) {
            bool good = isnan(wide[i]) ? isnan(bf16_value(back[i])) : back[i] == bf16_nearest(wide[i]);
            if (!good) {
                fail("%08x became bf16 %04x", float_bits(wide[i]), back[i]);
            }
        }
    }
    block_free(all, sizeof(qk_bf16));
    block_free(back, sizeof(qk_bf16));
    floats_free(wide);
    for (uint32_t m = 0; m < 40; m++) { /* tails */
        float *x = floats_new(m), *y = floats_new(m);
        qk_bf16 *h = block_new(m, sizeof(qk_bf16));
        ops->f32_to_bf16(h, x, m);
        ops->bf16_to_f32(y, h, m);
        for (uint32_t i = 0; i < m; i++) {
            if (h[i] != bf16_nearest(x[i]) || y[i] != bf16_value(h[i])) {
                fail("n %u: element %u", m, i);
            }
        }
        floats_free(x);
        floats_free(y);
        block_free(h, sizeof(qk_bf16));
    }
}

/* ---- Attention ------------------------------------------------------------------------------------------------ */

/* One span: pages of their own, each a K slice and a V slice that end with the last key anyone may read. */
typedef struct {
    bool is_bf16;
    uint32_t head_dim, n_q, n_rows, n_keys_max;
    uint32_t n_keys[QK_CPU_ATTEND_ROWS_MAX];
    size_t token_stride;
    void *k[QK_SPAN_TOKENS / QK_PAGE_TOKENS], *v[QK_SPAN_TOKENS / QK_PAGE_TOKENS];
    float *q[QK_CPU_ATTEND_ROWS_MAX], *out[QK_CPU_ATTEND_ROWS_MAX], *lse[QK_CPU_ATTEND_ROWS_MAX];
} span;

static double span_element(const span *s, void *const *pages, uint32_t t, uint32_t d)
{
    const char *token = (const char *)pages[t / QK_PAGE_TOKENS] + (t % QK_PAGE_TOKENS) * s->token_stride;
    if (s->is_bf16) {
        return bf16_value(((const qk_bf16 *)(const void *)token)[d]);
    }
    return ((const float *)(const void *)token)[d];
}

static void span_fill(const span *s, void *page, uint32_t n_tokens, float value)
{
    for (uint32_t t = 0; t < n_tokens; t++) {
        char *token = (char *)page + t * s->token_stride;
        for (uint32_t d = 0; d < s->head_dim; d++) {
            float x = value == 0 ? random_float() : value;
            if (s->is_bf16) {
                ((qk_bf16 *)(void *)token)[d] = bf16_nearest(x);
            } else {
                ((float *)(void *)token)[d] = x;
            }
        }
    }
}

/* Rows see n_keys_max, n_keys_max - step, ... keys. */
static void span_init(
    span *s, bool is_bf16, uint32_t head_dim, uint32_t n_q, uint32_t n_rows, uint32_t n_keys, uint32_t step)
{
    const size_t element = is_bf16 ? sizeof(qk_bf16) : sizeof(float);
    *s = (span){.is_bf16 = is_bf16, .head_dim = head_dim, .n_q = n_q, .n_rows = n_rows, .n_keys_max = n_keys};
    s->token_stride = (head_dim + 4) * element;
    for (uint32_t p = 0; p * QK_PAGE_TOKENS < n_keys; p++) {
        uint32_t n_tokens = n_keys - p * QK_PAGE_TOKENS;
        n_tokens = n_tokens < QK_PAGE_TOKENS ? n_tokens : QK_PAGE_TOKENS;
        size_t n = ((n_tokens - 1) * s->token_stride) / element + head_dim;
        s->k[p] = block_new(n, element);
        s->v[p] = block_new(n, element);
        span_fill(s, s->k[p], n_tokens, 0);
        span_fill(s, s->v[p], n_tokens, 0);
    }
    for (uint32_t r = 0; r < n_rows; r++) {
        uint32_t less = (n_rows - 1 - r) * step;
        s->n_keys[r] = less < n_keys ? n_keys - less : 1;
        s->q[r] = floats_new((size_t)n_q * head_dim);
        s->out[r] = floats_new((size_t)n_q * head_dim);
        s->lse[r] = floats_new(n_q);
    }
}

static void span_clear(span *s)
{
    const size_t element = s->is_bf16 ? sizeof(qk_bf16) : sizeof(float);
    for (uint32_t p = 0; p * QK_PAGE_TOKENS < s->n_keys_max; p++) {
        block_free(s->k[p], element);
        block_free(s->v[p], element);
    }
    for (uint32_t r = 0; r < s->n_rows; r++) {
        floats_free(s->q[r]);
        floats_free(s->out[r]);
        floats_free(s->lse[r]);
    }
}

/* Rows [row, row + n_rows) and, of each, heads [head, head + n_q), into @out and @lse. */
static void span_attend(const span *s, uint32_t row, uint32_t n_rows, uint32_t head, uint32_t n_q,
    float *const *out, float *const *lse)
{
    const float *q[QK_CPU_ATTEND_ROWS_MAX];
    for (uint32_t r = 0; r < n_rows; r++) {
        q[r] = s->q[row + r] + (size_t)head * s->head_dim;
    }
    size_t n_scratch = (qk_cpu_attend_scratch_floats(n_q, s->head_dim) + 15) / 16 * 16;
    float *scratch = aligned_alloc(64, n_scratch * sizeof(float));
    memset(scratch, 0xff, n_scratch * sizeof(float));
    qk_cpu_attend a = {
        .k_pages = (const void *const *)s->k,
        .v_pages = (const void *const *)s->v,
        .token_stride = s->token_stride,
        .head_dim = s->head_dim,
        .n_q = n_q,
        .n_rows = n_rows,
        .n_keys = s->n_keys + row,
        .q = q,
        .scale = (float)(1 / sqrt(s->head_dim)),
        .out = out,
        .lse = lse,
        .scratch = scratch,
    };
    if (s->is_bf16) {
        ops->attend_bf16(&a);
    } else {
        ops->attend_f32(&a);
    }
    free(scratch);
}

/* The formula, in float64; @want: [head_dim]; @size: the same with |v|, and @score_size the largest score with |q k|,
 * to measure errors by. Returns the log-sum-exp. */
static double span_formula(
    const span *s, uint32_t row, uint32_t head, double *want, double *size, double *score_size)
{
    double score[QK_SPAN_TOKENS], max = -INFINITY, sum = 0;
    const uint32_t n = s->n_keys[row];
    *score_size = 0;
    for (uint32_t t = 0; t < n; t++) {
        double absolute = 0;
        score[t] = 0;
        for (uint32_t d = 0; d < s->head_dim; d++) {
            double term = (double)s->q[row][head * s->head_dim + d] * span_element(s, s->k, t, d);
            score[t] += term;
            absolute += fabs(term);
        }
        score[t] /= sqrt(s->head_dim);
        *score_size = fmax(*score_size, absolute / sqrt(s->head_dim));
        max = fmax(max, score[t]);
    }
    memset(want, 0, s->head_dim * sizeof *want);
    memset(size, 0, s->head_dim * sizeof *size);
    for (uint32_t t = 0; t < n; t++) {
        double p = exp(score[t] - max);
        sum += p;
        for (uint32_t d = 0; d < s->head_dim; d++) {
            want[d] += p * span_element(s, s->v, t, d);
            size[d] += p * fabs(span_element(s, s->v, t, d));
        }
    }
    for (uint32_t d = 0; d < s->head_dim; d++) {
        want[d] /= sum;
        size[d] /= sum;
    }
    return max + log(sum);
}

static void span_check_values(const span *s)
{
    double *want = calloc(s->head_dim, sizeof *want), *size = calloc(s->head_dim, sizeof *size);
    for (uint32_t r = 0; r < s->n_rows; r++) {
        for (uint32_t h = 0; h < s->n_q; h++) {
            double score_size, lse = span_formula(s, r, h, want, size, &score_size);
            const double error = 1e-6 + 2e-6 * score_size; /* of a score, and relative of a weight */
            bool good = near(s->lse[r][h], lse, 2e-7, error);
            for (uint32_t d = 0; d < s->head_dim; d++) {
                good = good && near(s->out[r][h * s->head_dim + d], want[d], 0, 2 * error * size[d]);
            }
            if (!good) {
                fail("dim %u, row %u of %u, head %u of %u, %u keys: lse %.9g, expected %.9g; out[0] %.9g, "
                     "expected %.9g",
                    s->head_dim, r, s->n_rows, h, s->n_q, s->n_keys[r], s->lse[r][h], lse,
                    s->out[r][h * s->head_dim], want[0]);
            }
        }
    }
    free(want);
    free(size);
}

static void span_check_same(const span *s, uint32_t row, uint32_t head, const float *out, float lse)
{
    const float *had = s->out[row] + (size_t)head * s->head_dim;
    if (memcmp(out, had, s->head_dim * sizeof(float)) != 0 ||
        float_bits(lse) != float_bits(s->lse[row][head])) {
        fail("dim %u, row %u of %u, head %u of %u, %u keys: alone has other bits", s->head_dim, row,
            s->n_rows, head, s->n_q, s->n_keys[row]);
    }
}

/* Each row alone, and each head alone, has the bits it had in the tile. */
static void span_check_alone(const span *s)
{
    float *out = floats_new((size_t)s->n_q * s->head_dim), *lse = floats_new(s->n_q);
    for (uint32_t r = 0; r < s->n_rows; r++) {
        span_attend(s, r, 1, 0, s->n_q, &out, &lse);
        for (uint32_t h = 0; h < s->n_q; h++) {
            span_check_same(s, r, h, out + (size_t)h * s->head_dim, lse[h]);
        }
        uint32_t head = random_u32() % s->n_q;
        float *one = floats_new(s->head_dim), *one_lse = floats_new(1);
        span_attend(s, r, 1, head, 1, &one, &one_lse);
        span_check_same(s, r, head, one, one_lse[0]);
        floats_free(one);
        floats_free(one_lse);
    }
    floats_free(out);
    floats_free(lse);
}

static void span_cases(bool is_bf16)
{
    static const uint32_t dims[] = {64, 128, 1, 8, 24, 33, 80, 96, 112, 256};
    static const uint32_t keys[] = {1, 2, 15, 16, 17, 64, 100, 255, 256};
    for (size_t i = 0; i < sizeof dims / sizeof *dims; i++) {
        for (size_t k = 0; k < sizeof keys / sizeof *keys; k++) {
            span s;
            span_init(&s, is_bf16, dims[i], 1 + random_u32() % 8, 1, keys[k], 0);
            span_attend(&s, 0, 1, 0, s.n_q, s.out, s.lse);
            span_check_values(&s);
            span_check_alone(&s);
            span_clear(&s);
            uint32_t n_rows = 2 + random_u32() % (QK_CPU_ATTEND_ROWS_MAX - 1);
            span_init(&s, is_bf16, dims[i], 1 + random_u32() % 8, n_rows, keys[k], random_u32() % 4);
            span_attend(&s, 0, n_rows, 0, s.n_q, s.out, s.lse);
            span_check_values(&s);
            span_check_alone(&s);
            span_clear(&s);
        }
    }
    span s;
    span_init(&s, is_bf16, 128, 8, QK_CPU_ATTEND_ROWS_MAX, 256, 1); /* the largest tile */
    span_attend(&s, 0, s.n_rows, 0, s.n_q, s.out, s.lse);
    span_check_values(&s);
    span_check_alone(&s);
    span_clear(&s);
}

static void test_attend_bf16(void)
{
    span_cases(true);
}

static void test_attend_f32(void)
{
    span_cases(false);
}

/* Keys that only the last row sees become NaN (then infinite): earlier rows keep their bits, the last one shows it. */
static void test_attend_causal(void)
{
    for (int round = 0; round < 4; round++) {
        const bool is_bf16 = round % 2 == 0;
        const float poison = round < 2 ? NAN : INFINITY;
        for (uint32_t n_keys = 3; n_keys <= 256; n_keys += 23) {
            span s;
            span_init(&s, is_bf16, n_keys % 2 ? 64 : 128, 2, 2, n_keys, 1);
            span_attend(&s, 0, 2, 0, 2, s.out, s.lse);
            float *before = floats_new(2 * s.head_dim);
            memcpy(before, s.out[0], 2 * s.head_dim * sizeof(float));
            const uint32_t last = n_keys - 1;
            span_fill(&s, (char *)s.k[last / 16] + (last % 16) * s.token_stride, 1, poison);
            span_fill(&s, (char *)s.v[last / 16] + (last % 16) * s.token_stride, 1, poison);
            span_attend(&s, 0, 2, 0, 2, s.out, s.lse);
            if (memcmp(before, s.out[0], 2 * s.head_dim * sizeof(float)) != 0) {
                fail("%u keys: a key behind the row's last changed it", n_keys);
            }
            if (isfinite(s.out[1][0]) || isfinite(s.out[1][s.head_dim])) {
                fail("%u keys: the row did not read its own last key", n_keys);
            }
            floats_free(before);
            span_clear(&s);
        }
    }
}

/* Large scores: exp must not overflow, and one key takes all. */
static void test_attend_large_scores(void)
{
    span s;
    span_init(&s, false, 64, 2, 3, 200, 7);
    for (uint32_t r = 0; r < s.n_rows; r++) {
        for (uint32_t i = 0; i < s.n_q * s.head_dim; i++) {
            s.q[r][i] *= 300.0f;
        }
    }
    span_attend(&s, 0, s.n_rows, 0, s.n_q, s.out, s.lse);
    double want[64], size[64], score_size;
    for (uint32_t r = 0; r < s.n_rows; r++) {
        double lse = span_formula(&s, r, 1, want, size, &score_size);
        if (!near(s.lse[r][1], lse, 2e-6, 0)) {
            fail("row %u: lse %.9g, expected %.9g", r, s.lse[r][1], lse);
        }
        for (uint32_t d = 0; d < s.head_dim; d++) {
            if (!isfinite(s.out[r][d])) {
                fail("row %u: out[%u] is %g", r, d, s.out[r][d]);
            }
        }
    }
    span_clear(&s);
}

/* Two spans merged are the softmax over both. An empty accumulator becomes the span bit for bit. */
static void test_merge(void)
{
    static const uint32_t dims[] = {64, 128, 5, 17};
    for (size_t i = 0; i < 4; i++) {
        const uint32_t dim = dims[i], n = 3;
        float *a = floats_new(n * dim), *b = floats_new(n * dim), *out = floats_new(n * dim);
        float a_lse[3] = {1.5f, -3.0f, 80.0f}, b_lse[3] = {1.25f, 4.0f, -60.0f};
        float lse[3] = {-INFINITY, -INFINITY, -INFINITY};
        memset(out, 0xff, n * dim * sizeof(float)); /* an empty one may hold anything */
        ops->merge(out, lse, a, a_lse, n, dim);
        if (memcmp(out, a, n * dim * sizeof(float)) != 0 || memcmp(lse, a_lse, sizeof lse) != 0) {
            fail("dim %u: merging into nothing is not a copy", dim);
        }
        ops->merge(out, lse, b, b_lse, n, dim);
        for (uint32_t h = 0; h < n; h++) {
            double wa = exp((double)a_lse[h]), wb = exp((double)b_lse[h]);
            if (!near(lse[h], log(wa + wb), 3e-7, 1e-7)) {
                fail("dim %u: lse %.9g, expected %.9g", dim, lse[h], log(wa + wb));
            }
            for (uint32_t d = 0; d < dim; d++) {
                double va = a[h * dim + d], vb = b[h * dim + d];
                double want = (wa * va + wb * vb) / (wa + wb);
                if (!near(out[h * dim + d], want, 0, 1e-6 * (fabs(va) + fabs(vb)))) {
                    fail("dim %u: out[%u][%u] is %.9g, expected %.9g", dim, h, d, out[h * dim + d], want);
                }
            }
        }
        floats_free(a);
        floats_free(b);
        floats_free(out);
    }
}

int main(void)
{
    static const char *const isas[] = {"avx2", "avx512"};
    bool any = false;
    for (size_t i = 0; i < sizeof isas / sizeof *isas; i++) {
        ops = qk_cpu_ops_get(isas[i]);
        if (ops == NULL) {
            printf("ok %d - /kernels/simd/%s # SKIP not on this machine\n", ++n_tests, isas[i]);
            continue;
        }
        any = true;
        run_test("matmul-bf16", test_matmul_bf16);
        run_test("matmul-f32", test_matmul_f32);
        run_test("matmul-edges", test_matmul_edges);
        run_test("rms-norm", test_rms_norm);
        run_test("rope", test_rope);
        run_test("add", test_add);
        run_test("silu-mul", test_silu_mul);
        run_test("bf16", test_bf16);
        run_test("attend-bf16", test_attend_bf16);
        run_test("attend-f32", test_attend_f32);
        run_test("attend-causal", test_attend_causal);
        run_test("attend-large-scores", test_attend_large_scores);
        run_test("merge", test_merge);
    }
    printf("1..%d\n", n_tests);
    if (!any) {
        return 77;
    }
    return n_failed > 0;
}
