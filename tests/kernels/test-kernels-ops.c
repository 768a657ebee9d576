/* test-kernels-ops.c: the reference table against float64 formulas written here, and its rounding and edge cases. */
#include "kernels/cpu/operands.h"
#include "kernels/cpu/qk-cpu-ops.h"
#include "tests/kernels/fixture.h"
#include "tests/kernels/tap.h"
#include <math.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

static const qk_cpu_ops *ops;
static uint64_t seed = 11;

static void randomise(float *x, size_t n, double scale)
{
    for (size_t i = 0; i < n; i++)
        x[i] = (float)(scale * fixture_random(&seed));
}

/* |got - want| relative to the scale of what was summed. */
static bool near(double got, double want, double scale, double tolerance)
{
    return fabs(got - want) <= tolerance * (scale + 1e-30);
}

static void test_bf16(void)
{
    bool exact = true, back = true;
    for (uint32_t i = 0; i < 0x10000; i++) {
        qk_bf16 in = (qk_bf16)i, out;
        float f;
        ops->bf16_to_f32(&f, &in, 1);
        uint32_t bits;
        memcpy(&bits, &f, sizeof(bits));
        exact = exact && bits == i << 16;
        ops->f32_to_bf16(&out, &f, 1);
        back = back && (isnan(f) ? (out & 0x7fff) > 0x7f80 : out == in);
    }
    tap_ok(exact, "bf16 widens exactly, all 65,536 values");
    tap_ok(back, "and comes back");

    static const struct {
        uint32_t bits;
        qk_bf16 want;
    } cases[] = {
        {0x3f808000, 0x3f80}, /* halfway, even below */
        {0x3f818000, 0x3f82}, /* halfway, even above */
        {0x3f808001, 0x3f81},
        {0x3f807fff, 0x3f80},
        {0xbf818000, 0xbf82},
        {0x7f7fffff, 0x7f80}, /* the largest float rounds to infinity */
        {0x7f7f7fff, 0x7f7f},
        {0x7f800000, 0x7f80},
        {0xff800000, 0xff80},
        {0x80000000, 0x8000},
        {0x00008000, 0x0000},
        {0x00018000, 0x0002},
    };
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        float f;
        qk_bf16 got;
        memcpy(&f, &cases[i].bits, sizeof(f));
        ops->f32_to_bf16(&got, &f, 1);
        tap_ok(got == cases[i].want, "%08x rounds to %04x (got %04x)", cases[i].bits, cases[i].want, got);
    }
    uint32_t low_nan = 0x7f800001;
    float f;
    qk_bf16 got;
    memcpy(&f, &low_nan, sizeof(f));
    ops->f32_to_bf16(&got, &f, 1);
    tap_ok((got & 0x7fff) > 0x7f80, "a NaN with a low payload stays a NaN (%04x)", got);
}

static void test_matmul(void)
{
    static const struct {
        uint32_t rows, in, out;
    } sizes[] = {{1, 1, 1}, {1, 16, 5}, {3, 17, 4}, {5, 31, 9}, {2, 257, 33}, {17, 130, 21}};
    for (size_t s = 0; s < sizeof(sizes) / sizeof(sizes[0]); s++) {
        const uint32_t rows = sizes[s].rows, in = sizes[s].in, out = sizes[s].out;
        const size_t x_stride = in + 3, y_stride = out + 2;
        float x[17 * 133], w[33 * 257], y[17 * 35], z[17 * 35];
        qk_bf16 h[33 * 257];
        tap_require(rows * x_stride <= sizeof(x) / sizeof(x[0]));
        randomise(x, rows * x_stride, 1);
        randomise(w, (size_t)in * out, 1);
        ops->f32_to_bf16(h, w, in * out);
        bool ok = true, ok_bf16 = true, untouched = true, same = true;
        for (size_t i = 0; i < sizeof(y) / sizeof(y[0]); i++)
            y[i] = z[i] = 12345;
        ops->matmul_f32(y, y_stride, x, x_stride, w, rows, in, 0, out);
        /* In pieces, row by row. */
        for (uint32_t r = 0; r < rows; r++) {
            ops->matmul_f32(z + r * y_stride, y_stride, x + r * x_stride, x_stride, w, 1, in, 0, out / 2);
            ops->matmul_f32(z + r * y_stride, y_stride, x + r * x_stride, x_stride, w, 1, in, out / 2, out);
        }
        same = memcmp(y, z, sizeof(y)) == 0;
        ops->matmul_bf16(z, y_stride, x, x_stride, h, rows, in, 0, out);
        for (uint32_t r = 0; r < rows; r++) {
            for (uint32_t o = 0; o < out; o++) {
                double sum = 0, sum_bf16 = 0, size = 0;
                for (uint32_t i = 0; i < in; i++) {
                    double a = (double)x[r * x_stride + i], b = (double)w[(size_t)o * in + i];
                    sum += a * b;
                    size += fabs(a * b);
                    sum_bf16 += a * fixture_from_bf16(h[(size_t)o * in + i]);
                }
                ok = ok && near((double)y[r * y_stride + o], sum, size, 1e-6);
                ok_bf16 = ok_bf16 && near((double)z[r * y_stride + o], sum_bf16, size, 1e-6);
            }
            for (size_t o = out; o < y_stride; o++)
                untouched = untouched && y[r * y_stride + o] == 12345;
        }
        tap_ok(ok && ok_bf16 && untouched, "matmul of [%u, %u] and [%u, %u]", rows, in, out, in);
        tap_ok(same, "and the same bits in pieces");
    }
}

static void test_rows(void)
{
    static const uint32_t sizes[] = {1, 2, 7, 16, 50, 128, 1000};
    for (size_t s = 0; s < sizeof(sizes) / sizeof(sizes[0]); s++) {
        const uint32_t n = sizes[s];
        float x[1000], w[1000], y[1000], g[1000];
        randomise(x, n, 3);
        randomise(w, n, 2);
        double sum = 0;
        for (uint32_t i = 0; i < n; i++)
            sum += (double)x[i] * (double)x[i];
        ops->rms_norm(y, x, w, n, 1e-5f);
        memcpy(g, x, sizeof(g));
        ops->rms_norm(g, g, w, n, 1e-5f);
        bool ok = memcmp(g, y, n * sizeof(*g)) == 0, silu_ok = true, add_ok = true;
        for (uint32_t i = 0; i < n; i++) {
            double want = (double)x[i] / sqrt(sum / n + (double)1e-5f) * (double)w[i];
            ok = ok && near((double)y[i], want, fabs(want), 1e-6);
        }
        tap_ok(ok, "rms_norm of %u, also in place", n);
        randomise(g, n, 20);
        memcpy(y, g, sizeof(y));
        ops->silu_mul(y, x, n);
        for (uint32_t i = 0; i < n; i++) {
            double want = (double)g[i] / (1 + exp(-(double)g[i])) * (double)x[i];
            silu_ok = silu_ok && near((double)y[i], want, fabs(want), 2e-6);
        }
        memcpy(y, g, sizeof(y));
        ops->add(y, x, n);
        for (uint32_t i = 0; i < n; i++)
            add_ok = add_ok && y[i] == g[i] + x[i];
        tap_ok(silu_ok && add_ok, "silu_mul and add of %u", n);
    }
    float gate[4] = {-200, 200, 0, -0.0f}, up[4] = {3, 3, 3, 3};
    ops->silu_mul(gate, up, 4);
    tap_ok(gate[0] == 0 && gate[1] == 600 && gate[2] == 0 && gate[3] == 0, "silu_mul does not overflow");
}

/* A head of 1..8 at position 3, base 1e6; pairs are (i, i + 4). */
static void test_rope(void)
{
    static const double want[8] = {
        -1.695593, 1.422650, 2.978987, 3.999241, -4.808842, 6.162472, 7.008968, 8.000379};
    float x[8] = {1, 2, 3, 4, 5, 6, 7, 8}, cos_sin[8];
    for (int i = 0; i < 4; i++) {
        double angle = 3 * pow(1e6, -2.0 * i / 8);
        cos_sin[i] = (float)cos(angle);
        cos_sin[i + 4] = (float)sin(angle);
    }
    ops->rope(x, cos_sin, 8);
    bool ok = true;
    for (int i = 0; i < 8; i++)
        ok = ok && fabs((double)x[i] - want[i]) < 2e-6;
    tap_ok(ok, "rope turns 1..8 at position 3 by halves");
}

static void attend_naive(
    const float *q, const float *k, const float *v, uint32_t n, uint32_t dim, double *out, double *lse)
{
    double score[QK_SPAN_TOKENS], max = -INFINITY, sum = 0;
    for (uint32_t j = 0; j < n; j++) {
        score[j] = 0;
        for (uint32_t d = 0; d < dim; d++)
            score[j] += (double)q[d] * (double)k[j * dim + d];
        score[j] /= sqrt(dim);
        max = fmax(max, score[j]);
    }
    for (uint32_t d = 0; d < dim; d++)
        out[d] = 0;
    for (uint32_t j = 0; j < n; j++)
        sum += exp(score[j] - max);
    for (uint32_t j = 0; j < n; j++)
        for (uint32_t d = 0; d < dim; d++)
            out[d] += exp(score[j] - max) / sum * (double)v[j * dim + d];
    *lse = max + log(sum);
}

static void test_attend(uint32_t dim, uint32_t n_q, double magnitude)
{
    enum { ROWS = QK_CPU_ATTEND_ROWS_MAX, DIM = 80, HEADS = 5 };
    static float k[QK_SPAN_TOKENS * DIM], v[QK_SPAN_TOKENS * DIM], q[ROWS * HEADS * DIM];
    static float out[ROWS * HEADS * DIM], lse[ROWS * HEADS], alone[HEADS * DIM], alone_lse[HEADS];
    const size_t floats = qk_cpu_attend_scratch_floats(n_q, dim);
    float *scratch = aligned_alloc(64, (floats * sizeof(float) + 63) / 64 * 64);
    tap_require(scratch != NULL && dim <= DIM && n_q <= HEADS);
    randomise(k, (size_t)QK_SPAN_TOKENS * dim, magnitude);
    randomise(v, (size_t)QK_SPAN_TOKENS * dim, 1);
    randomise(q, (size_t)ROWS * n_q * dim, magnitude);
    const void *k_pages[16], *v_pages[16];
    for (uint32_t p = 0; p < 16; p++) {
        k_pages[p] = k + (size_t)p * QK_PAGE_TOKENS * dim;
        v_pages[p] = v + (size_t)p * QK_PAGE_TOKENS * dim;
    }
    uint32_t n_keys[ROWS];
    const float *qs[ROWS];
    float *outs[ROWS], *lses[ROWS];
    for (uint32_t r = 0; r < ROWS; r++) {
        n_keys[r] = r == 0 ? 1 : r == 1 ? 15 : r == 15 ? 256 : 12 * r + r % 3;
        qs[r] = q + (size_t)r * n_q * dim;
        outs[r] = out + (size_t)r * n_q * dim;
        lses[r] = lse + (size_t)r * n_q;
    }
    qk_cpu_attend a = {k_pages, v_pages, dim * sizeof(float), dim, n_q, ROWS, n_keys, qs,
        (float)(1 / sqrt(dim)), outs, lses, scratch};
    ops->attend_f32(&a);
    bool ok = true, same = true;
    for (uint32_t r = 0; r < ROWS; r++) {
        for (uint32_t h = 0; h < n_q; h++) {
            double want[DIM], want_lse;
            attend_naive(qs[r] + h * dim, k, v, n_keys[r], dim, want, &want_lse);
            ok = ok && near((double)lses[r][h], want_lse, fabs(want_lse) + 1, 2e-6);
            for (uint32_t d = 0; d < dim; d++)
                ok = ok && near((double)outs[r][h * dim + d], want[d], 1, magnitude > 1 ? 2e-4 : 2e-6);
        }
        qk_cpu_attend one = a;
        float *one_out = alone, *one_lse = alone_lse;
        one.n_rows = 1;
        one.n_keys = &n_keys[r];
        one.q = &qs[r];
        one.out = &one_out;
        one.lse = &one_lse;
        ops->attend_f32(&one);
        same = same && memcmp(alone, outs[r], n_q * dim * sizeof(float)) == 0 &&
               memcmp(alone_lse, lses[r], n_q * sizeof(float)) == 0;
    }
    tap_ok(ok, "attention of head_dim %u, %u heads, magnitude %g", dim, n_q, magnitude);
    tap_ok(same, "and the same bits for a row alone");
    free(scratch);
}

static void test_merge(void)
{
    enum { DIM = 7, HEADS = 3 };
    float a[HEADS * DIM], b[HEADS * DIM], out[HEADS * DIM];
    float a_lse[HEADS] = {1.5f, -80, 300}, b_lse[HEADS] = {1.0f, 20, 301.5f}, lse[HEADS];
    randomise(a, HEADS * DIM, 1);
    randomise(b, HEADS * DIM, 1);
    for (int h = 0; h < HEADS; h++)
        lse[h] = -INFINITY;
    memset(out, 0xff, sizeof(out));
    ops->merge(out, lse, a, a_lse, HEADS, DIM);
    tap_ok(memcmp(out, a, sizeof(a)) == 0 && memcmp(lse, a_lse, sizeof(lse)) == 0,
        "an empty accumulator becomes the span");
    ops->merge(out, lse, b, b_lse, HEADS, DIM);
    bool ok = true;
    for (int h = 0; h < HEADS; h++) {
        double m = fmax((double)a_lse[h], (double)b_lse[h]);
        double wa = exp((double)a_lse[h] - m), wb = exp((double)b_lse[h] - m);
        ok = ok && near((double)lse[h], m + log(wa + wb), fabs(m), 1e-6);
        for (int d = 0; d < DIM; d++)
            ok = ok && near((double)out[h * DIM + d],
                           (wa * (double)a[h * DIM + d] + wb * (double)b[h * DIM + d]) / (wa + wb), 1, 1e-6);
    }
    tap_ok(ok, "the merge is the lse-weighted mean, without overflow");
}

/* ---- The inner loops under AddressSanitizer, operands.h ---------------------------------------------------------- */

/* A product whose operands are on the heap, and lack @short_x or @short_w elements at their ends. */
static void short_matmul(bool bf16, uint32_t short_x, uint32_t short_w)
{
    enum { ROWS = 3, IN = 40, OUT = 5 };
    const size_t w_size = bf16 ? sizeof(qk_bf16) : sizeof(float);
    float *x = calloc(ROWS * IN - short_x, sizeof(*x)), y[ROWS * OUT];
    void *w = calloc(OUT * IN - short_w, w_size);
    tap_require(x != NULL && w != NULL);
    if (bf16)
        ops->matmul_bf16(y, OUT, x, IN, w, ROWS, IN, 0, OUT);
    else
        ops->matmul_f32(y, OUT, x, IN, w, ROWS, IN, 0, OUT);
    free(x);
    free(w);
}

/* One row over one page, whose query or output lacks its last element. */
static void short_attend(uint32_t short_q, uint32_t short_out)
{
    enum { DIM = 32 };
    static float page[QK_PAGE_TOKENS * DIM], lse[1];
    const void *pages[] = {page};
    const size_t scratch_bytes = qk_cpu_attend_scratch_floats(1, DIM) * sizeof(float);
    float *scratch = aligned_alloc(64, (scratch_bytes + 63) / 64 * 64);
    float *q = calloc(DIM - short_q, sizeof(*q)), *out = calloc(DIM - short_out, sizeof(*out));
    tap_require(q != NULL && out != NULL && scratch != NULL);
    const float *qs[] = {q};
    float *outs[] = {out}, *lses[] = {lse};
    const uint32_t n_keys[] = {QK_PAGE_TOKENS};
    ops->attend_f32(
        &(qk_cpu_attend){pages, pages, DIM * sizeof(float), DIM, 1, 1, n_keys, qs, 1, outs, lses, scratch});
    free(scratch);
    free(q);
    free(out);
}

/* Runs in a process of its own, which a sanitizer ends. */
static bool is_reported(int which)
{
    fflush(stdout);
    const pid_t pid = fork();
    tap_require(pid >= 0);
    if (pid == 0) {
        tap_require(freopen("/dev/null", "w", stderr) != NULL);
        switch (which) {
        case 1:
            short_matmul(true, 1, 0);
            break;
        case 2:
            short_matmul(true, 0, 1);
            break;
        case 3:
            short_matmul(false, 1, 0);
            break;
        case 4:
            short_matmul(false, 0, 1);
            break;
        case 5:
            short_attend(1, 0);
            break;
        case 6:
            short_attend(0, 1);
            break;
        default:
            short_matmul(true, 0, 0), short_matmul(false, 0, 0), short_attend(0, 0);
        }
        _exit(0);
    }
    int status;
    tap_require(waitpid(pid, &status, 0) == pid);
    return !(WIFEXITED(status) && WEXITSTATUS(status) == 0);
}

static void test_operands(void)
{
    tap_ok(!is_reported(0), "whole operands: nothing is reported");
#ifdef QK_ADDRESS_SANITIZER
    static const char *const names[] = {"x of a bf16 product", "w of a bf16 product",
        "x of a float32 product", "w of a float32 product", "a query", "an output of attention"};
    for (int i = 0; i < 6; i++)
        tap_ok(is_reported(i + 1), "%s that is one element short is reported", names[i]);
#else
    tap_skip("operands that are too short: this build has no AddressSanitizer");
#endif
}

int main(void)
{
    ops = qk_cpu_ops_get("reference");
    tap_require(ops != NULL);
    tap_ok(ops == &qk_cpu_ops_reference, "the reference is found by name");
    tap_ok(qk_cpu_ops_get("mmx") == NULL, "an unknown instruction set is not");
    setenv("QUIRE_ISA", "reference", 1);
    tap_ok(qk_cpu_ops_get(NULL) == ops, "QUIRE_ISA chooses");
    setenv("QUIRE_ISA", "none", 1);
    tap_ok(qk_cpu_ops_get(NULL) == NULL, "and may be wrong");
    unsetenv("QUIRE_ISA");
    tap_ok(qk_cpu_ops_get(NULL) != NULL, "without it there is always one");
    test_bf16();
    test_matmul();
    test_rows();
    test_rope();
    test_attend(16, 2, 1);
    test_attend(64, 1, 1);
    test_attend(34, 5, 1);
    test_attend(80, 4, 6);
    test_merge();
    test_operands();
    return tap_done();
}
