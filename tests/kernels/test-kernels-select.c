/* test-kernels-select.c: selective attention: the ops, the choice against float64, and that it depends on nothing else:
 * not on threads, the batch or where pages are. The same on the mock device, where all of it comes late.
 *
 *   test-kernels-select [cuda]   with an argument: what holds on every backend, on that one */
#include "kernels/cpu/qk-cpu-ops.h"
#include "kernels/cpu/select.h"
#include "kernels/qk-mock.h"
#include "tests/kernels/fixture.h"
#include "tests/kernels/tap.h"
#include <math.h>
#include <string.h>

#define N_TOKENS  420u
#define N_PROMPT  380u
#define N_PAGES   64u
#define N_ROWS    (N_TOKENS - N_PROMPT)
#define SEQ_PAGES ((N_TOKENS + QK_PAGE_TOKENS - 1) / QK_PAGE_TOKENS)

static const char *const isas[] = {"reference", "avx2", "avx512"};

/* ---- Ops ------------------------------------------------------------------------------------------------------- */

static float random_float(uint64_t *seed)
{
    return (float)(3 * fixture_random(seed));
}

static void test_bounds(void)
{
    enum { DIM = 24, STRIDE = 30 };
    float keys[QK_PAGE_TOKENS * STRIDE], bounds[2 * DIM];
    uint16_t bf16[QK_PAGE_TOKENS * STRIDE], bf16_bounds[2 * DIM];
    uint64_t seed = 3;
    bool right = true, right_bf16 = true;
    for (uint32_t i = 0; i < QK_PAGE_TOKENS * STRIDE; i++) {
        keys[i] = random_float(&seed);
        uint32_t bits;
        memcpy(&bits, &keys[i], 4);
        bf16[i] = (uint16_t)(bits >> 16);
    }
    keys[7 * STRIDE + 5] = NAN;
    bf16[15 * STRIDE + 6] = 0x7fc0;
    qk_bounds_of_slice(QK_F32, keys, STRIDE * 4, DIM, bounds);
    qk_bounds_of_slice(QK_BF16, bf16, STRIDE * 2, DIM, bf16_bounds);
    for (uint32_t d = 0; d < DIM; d++) {
        double low = INFINITY, high = -INFINITY, low_bf16 = INFINITY, high_bf16 = -INFINITY;
        for (uint32_t t = 0; t < QK_PAGE_TOKENS; t++) {
            low = fmin(low, (double)keys[t * STRIDE + d]);
            high = fmax(high, (double)keys[t * STRIDE + d]);
            low_bf16 = fmin(low_bf16, fixture_from_bf16(bf16[t * STRIDE + d]));
            high_bf16 = fmax(high_bf16, fixture_from_bf16(bf16[t * STRIDE + d]));
        }
        const double b[] = {(double)bounds[d], (double)bounds[DIM + d], fixture_from_bf16(bf16_bounds[d]),
            fixture_from_bf16(bf16_bounds[DIM + d])};
        right = right && (d == 5 ? isnan(b[0]) && isnan(b[1]) : b[0] == low && b[1] == high);
        right_bf16 =
            right_bf16 && (d == 6 ? isnan(b[2]) && isnan(b[3]) : b[2] == low_bf16 && b[3] == high_bf16);
    }
    tap_ok(right, "bounds of f32 keys, one of them NaN");
    tap_ok(right_bf16, "bounds of bf16 keys, one of them NaN");
}

/* By looking for the largest again and again. */
static void test_largest(void)
{
    enum { N = 300 };
    static const float odd[] = {NAN, INFINITY, -INFINITY, 0.0f, -0.0f, -1e-30f};
    uint32_t keys[N], out[N];
    uint64_t seed = 5;
    bool right = true;
    for (uint32_t round = 0; round < 200 && right; round++) {
        const uint32_t n = 1 + (uint32_t)((fixture_random(&seed) + 1) / 2 * N) % N;
        const uint32_t k = (uint32_t)((fixture_random(&seed) + 1) / 2 * (n + 1)) % (n + 1);
        bool want[N] = {false};
        for (uint32_t i = 0; i < n; i++) {
            float x = random_float(&seed);
            if (round % 2 == 0)
                x = rintf(x); /* ties */
            if (round % 3 == 0 && i % 17 == 0)
                x = odd[i / 17 % 6];
            keys[i] = qk_select_key(x);
        }
        for (uint32_t i = 0; i < k; i++) {
            uint32_t best = N;
            for (uint32_t j = 0; j < n; j++)
                if (!want[j] && (best == N || keys[j] > keys[best]))
                    best = j;
            want[best] = true;
        }
        right = qk_select_largest(keys, n, k, 1000, out) == k;
        for (uint32_t i = 0, at = 0; i < n && right; i++)
            if (want[i])
                right = out[at++] == 1000 + i;
    }
    tap_ok(right, "the largest keys, ties to the first");
    tap_ok(qk_select_key(-1.5f) < qk_select_key(-1.0f) && qk_select_key(-1.0f) < qk_select_key(-0.0f) &&
               qk_select_key(0.0f) < qk_select_key(1e-30f) && qk_select_key(2.0f) < qk_select_key(INFINITY) &&
               qk_select_key(INFINITY) < qk_select_key(NAN) && qk_select_key(-NAN) == qk_select_key(NAN),
        "keys compare as scores do");
}

static void test_scores(const qk_cpu_ops *ops)
{
    static const uint32_t dims[] = {1, 15, 16, 17, 64, 100, 128};
    double worst = 0;
    uint64_t seed = 9;
    for (size_t i = 0; i < sizeof(dims) / sizeof(dims[0]); i++) {
        for (uint32_t n_q = 1; n_q <= 7; n_q++) {
            const uint32_t dim = dims[i];
            float q[7 * 128], bounds[2 * 128], scores[2][7];
            uint16_t bf16[2 * 128];
            for (uint32_t d = 0; d < n_q * dim; d++)
                q[d] = random_float(&seed);
            for (uint32_t d = 0; d < 2 * dim; d++) {
                uint32_t bits;
                bounds[d] = random_float(&seed);
                memcpy(&bits, &bounds[d], 4);
                bf16[d] = (uint16_t)(bits >> 16);
                bits &= 0xffff0000u;
                memcpy(&bounds[d], &bits, 4);
            }
            ops->bound_scores_f32(scores[0], q, n_q, dim, bounds);
            ops->bound_scores_bf16(scores[1], q, n_q, dim, bf16);
            for (uint32_t h = 0; h < n_q; h++) {
                double sum = 0, size = 0;
                for (uint32_t d = 0; d < dim; d++) {
                    const double x = (double)q[h * dim + d];
                    const double term = fmax(x * (double)bounds[d], x * (double)bounds[dim + d]);
                    sum += term;
                    size += fabs(term);
                }
                for (uint32_t k = 0; k < 2; k++)
                    worst = fmax(worst, fabs((double)scores[k][h] - sum) / size);
            }
        }
    }
    tap_ok(worst < 1e-6, "%s: scores within %.2g of float64", ops->name, worst);
}

/* ---- Steps ----------------------------------------------------------------------------------------------------- */

static int32_t tokens[N_TOKENS], other_tokens[N_TOKENS];
static uint32_t in_order[N_PAGES];
static const fixture_model *model;
static uint32_t vocab;

typedef struct {
    uint32_t n_sink, n_recent, n_chosen;
} choice;

/* A rig with bounds for each of its pages. */
typedef struct {
    rig r;
    qk_buffer *bounds;
    uint64_t bounds_bytes;
} selector;

static void open_selector(selector *s, const fixture_model *m, const rig_options *options)
{
    rig_options o = *options;
    o.n_pages = o.n_pages > 0 ? o.n_pages : N_PAGES;
    o.rows_max = N_PROMPT + 2;
    o.select_max = 64;
    rig_open(&s->r, m, &o);
    s->bounds_bytes = qk_bounds_bytes(&m->desc.shape, o.kv_dtype);
    tap_require(
        qk_buffer_new(s->r.backend, QK_MEMORY_DEVICE, N_PAGES * s->bounds_bytes, &s->bounds) == QK_OK);
    tap_require(qk_fill_submit(s->r.backend, QK_STREAM_COMPUTE, s->bounds, 0, N_PAGES * s->bounds_bytes,
                    0x7fc07fc0) == QK_OK);
}

static void close_selector(selector *s)
{
    qk_event *event;
    tap_require(qk_event_new(s->r.backend, &event) == QK_OK);
    tap_require(qk_event_record(event, QK_STREAM_COMPUTE) == QK_OK && qk_event_wait(event) == QK_OK);
    qk_event_free(event);
    qk_buffer_free(s->bounds);
    rig_close(&s->r);
}

static void make_bounds(selector *s, const uint32_t *pages, uint32_t begin, uint32_t end)
{
    qk_bounds items[N_PAGES];
    for (uint32_t p = begin; p < end; p++)
        items[p - begin] =
            (qk_bounds){rig_page(&s->r, pages[p]), s->bounds->address + pages[p] * s->bounds_bytes};
    tap_require(qk_bounds_submit(s->r.context, 0, items, end - begin) == QK_OK);
}

/* The prompt into the pages, and the bounds of its full pages. */
static void prefill(selector *s, const uint32_t *pages)
{
    rig_rows rows = {tokens, N_PROMPT, 0, pages};
    tap_require(rig_run(&s->r, &rows, 1, NULL) == QK_OK);
    make_bounds(s, pages, 0, N_PROMPT / QK_PAGE_TOKENS);
}

/* Steps time their parts, which a card launches kernel by kernel instead of as a graph. */
static bool timed;

/* The prompt's full pages, as they are now, in host memory; NULL: pages are where they were. */
static qk_buffer *moved;

static void move_to_host(selector *s)
{
    const uint64_t bytes = N_PAGES * s->r.params.layout.page_bytes;
    qk_event *event;
    tap_require(qk_buffer_new(s->r.backend, QK_MEMORY_HOST, bytes, &moved) == QK_OK);
    const qk_copy copy = {moved, 0, s->r.pages, 0, bytes};
    tap_require(qk_copy_submit(s->r.backend, QK_STREAM_COMPUTE, &copy, 1) == QK_OK);
    tap_require(qk_fill_submit(s->r.backend, QK_STREAM_COMPUTE, s->r.pages, 0,
                    N_PROMPT / QK_PAGE_TOKENS * s->r.params.layout.page_bytes, 0x7fc07fc0) == QK_OK);
    tap_require(qk_event_new(s->r.backend, &event) == QK_OK);
    tap_require(qk_event_record(event, QK_STREAM_COMPUTE) == QK_OK && qk_event_wait(event) == QK_OK);
    qk_event_free(event);
}

/* A step of @rows, of which sequence @which leaves pages out; its logits. */
static qk_status decode_at(
    selector *s, const rig_rows *rows, uint32_t n, uint32_t which, const choice *c, float *logits)
{
    const uint32_t *pages = rows[which].pages;
    rig_fill(&s->r, 0, rows, n);
    qk_plan *plan = qk_step_plan(s->r.steps[0]);
    qk_seq *seq = &plan->seqs[which];
    plan->profile = timed;
    seq->n_sink = c->n_sink;
    seq->n_recent = c->n_recent;
    seq->n_chosen = c->n_chosen;
    for (uint32_t p = 0; p < seq->n_pages; p++)
        plan->bounds[seq->page_begin + p] = s->bounds->address + pages[p] * s->bounds_bytes;
    for (uint32_t p = 0; moved != NULL && p < N_PROMPT / QK_PAGE_TOKENS; p++)
        plan->pages[seq->page_begin + p] =
            (moved->address + pages[p] * s->r.params.layout.page_bytes) | QK_PAGE_HOST;
    qk_status status = qk_step_submit(s->r.steps[0]);
    if (status == QK_OK)
        status = qk_step_wait(s->r.steps[0]);
    if (status == QK_OK)
        memcpy(logits, qk_step_result(s->r.steps[0])->logits + which * vocab, vocab * sizeof(*logits));
    else
        tap_note("%s", qk_backend_error(s->r.backend));
    return status;
}

/* Row @t alone (or before an exact row of another sequence); its logits. */
static qk_status decode(
    selector *s, uint32_t t, const uint32_t *pages, const choice *c, bool beside, float *logits)
{
    uint32_t other[N_PAGES];
    for (uint32_t i = 0; i < 20; i++)
        other[i] = 40 + i;
    rig_rows rows[2] = {{other_tokens + t % 50, 1, t % 50, other}, {tokens + t, 1, t, pages}};
    return decode_at(s, rows + (beside ? 0 : 1), beside ? 2 : 1, beside ? 1 : 0, c, logits);
}

/* The prompt, then row after row. @logits: [N_ROWS, vocab]. */
static void run_all(selector *s, const uint32_t *pages, const choice *c, bool beside, float *logits)
{
    prefill(s, pages);
    for (uint32_t t = N_PROMPT; t < N_TOKENS; t++) {
        if (t % QK_PAGE_TOKENS == 0)
            make_bounds(s, pages, t / QK_PAGE_TOKENS - 1, t / QK_PAGE_TOKENS);
        tap_require(decode(s, t, pages, c, beside, logits + (size_t)(t - N_PROMPT) * vocab) == QK_OK);
    }
}

static bool same(const float *a, const float *b)
{
    return memcmp(a, b, (size_t)N_ROWS * vocab * sizeof(*a)) == 0;
}

static double worst_error(const float *got, const double *want)
{
    double worst = 0;
    for (uint32_t r = 0; r < N_ROWS; r++) {
        double scale = 0, error = 0;
        for (uint32_t i = 0; i < vocab; i++) {
            scale = fmax(scale, fabs(want[(size_t)r * vocab + i]));
            error = fmax(error, fabs((double)got[(size_t)r * vocab + i] - want[(size_t)r * vocab + i]));
        }
        worst = isnan(error / scale) ? INFINITY : fmax(worst, error / scale);
    }
    return worst;
}

static float *rows_new(void)
{
    float *rows = calloc((size_t)N_ROWS * vocab, sizeof(*rows));
    tap_require(rows != NULL);
    return rows;
}

static const choice small_choice = {1, 2, 4};

/* Against float64: with the float32 pages that it has, too. */
static void test_reference(const char *isa)
{
    double *want = calloc((size_t)N_TOKENS * vocab, sizeof(*want)),
           *exact = calloc((size_t)N_TOKENS * vocab, 8);
    float *got = rows_new();
    tap_require(want != NULL && exact != NULL);
    fixture_select c = {.first_row = N_PROMPT, .n_sink = 1, .n_recent = 2, .n_chosen = 4};
    fixture_forward_select(model, tokens, N_TOKENS, &c, want);
    fixture_forward(model, tokens, N_TOKENS, exact);
    tap_require(c.margin > 1e-5); /* else another seed */
    selector s;
    open_selector(&s, model, &(rig_options){.n_threads = 2, .isa = isa, .kv_dtype = QK_F32});
    run_all(&s, in_order, &small_choice, false, got);
    const double error = worst_error(got, want + (size_t)N_PROMPT * vocab);
    tap_ok(error < 1e-5, "%s: the chosen pages' attention: worst relative error %.2g", isa, error);
    const double other = worst_error(got, exact + (size_t)N_PROMPT * vocab);
    tap_ok(other > 1e-3 && c.n_left_out > 0, "%s: exact attention is something else: %.2g", isa, other);

    /* A page with another's bounds, and a page too many or too few: all of them show. */
    prefill(&s, in_order);
    uint32_t n_wrong = 0, n_tried = 0;
    for (uint32_t p = c.n_sink; p < SEQ_PAGES - 4; p++, n_tried++) {
        make_bounds(&s, in_order, p, p + 1);
        const qk_copy copy = {
            s.bounds, p * s.bounds_bytes, s.bounds, (p + 1) * s.bounds_bytes, s.bounds_bytes};
        float row[256];
        tap_require(qk_copy_submit(s.r.backend, QK_STREAM_COMPUTE, &copy, 1) == QK_OK);
        tap_require(decode(&s, N_PROMPT, in_order, &small_choice, false, row) == QK_OK);
        n_wrong += memcmp(row, got, vocab * sizeof(*row)) != 0;
        make_bounds(&s, in_order, p, p + 1);
    }
    tap_ok(n_wrong * 4 > n_tried, "%s: wrong bounds of one page are seen in %u of %u cases", isa, n_wrong,
        n_tried);
    float row[256];
    tap_require(decode(&s, N_PROMPT, in_order, &small_choice, false, row) == QK_OK);
    tap_ok(memcmp(row, got, vocab * sizeof(*row)) == 0, "%s: and not with the right ones", isa);
    for (uint32_t i = 3; i <= 5; i += 2) {
        const choice wrong = {1, 2, i};
        tap_require(decode(&s, N_PROMPT, in_order, &wrong, false, row) == QK_OK);
        tap_ok(memcmp(row, got, vocab * sizeof(*row)) != 0, "%s: %u pages are not 4", isa, i);
    }
    close_selector(&s);
    free(want);
    free(exact);
    free(got);
}

/* Up to the identity length it is the same as exact, to the bit, and bounds are not looked at. */
static void test_identity(qk_dtype dtype, const char *name)
{
    float *exact = rows_new(), *got = rows_new();
    selector s;
    open_selector(&s, model, &(rig_options){.n_threads = 2, .kv_dtype = dtype});
    const choice none = {0, 0, 0}, all = {4, 3, SEQ_PAGES - 7}, less = {4, 3, SEQ_PAGES - 8};
    run_all(&s, in_order, &none, false, exact);
    run_all(&s, in_order, &all, false, got);
    tap_ok(same(exact, got), "%s pages: as exact below the identity length", name);
    for (uint32_t t = N_PROMPT; t < N_TOKENS; t++)
        tap_require(decode(&s, t, in_order, &less, false, got + (size_t)(t - N_PROMPT) * vocab) == QK_OK);
    uint32_t n_same = 0;
    while (n_same < N_ROWS && memcmp(exact + n_same * vocab, got + n_same * vocab, vocab * 4) == 0)
        n_same++;
    tap_ok(n_same == (SEQ_PAGES - 1) * QK_PAGE_TOKENS - N_PROMPT,
        "%s pages: with one page less the first %u rows are, then not", name, n_same);
    close_selector(&s);
    free(exact);
    free(got);
}

/* Wherever pages are; and what is read. */
static void test_pages(selector *s, const float *want, const char *name)
{
    float *got = rows_new();
    uint32_t shuffled[N_PAGES];
    for (uint32_t i = 0; i < N_PAGES; i++)
        shuffled[i] = i < 32 ? (i * 13 + 5) % 32 : i;
    run_all(s, shuffled, &small_choice, false, got);
    tap_ok(same(want, got), "%s: wherever they are", name);
    prefill(s, in_order);
    move_to_host(s);
    for (uint32_t t = N_PROMPT; t < N_TOKENS; t++) {
        if (t % QK_PAGE_TOKENS == 0)
            make_bounds(s, in_order, t / QK_PAGE_TOKENS - 1, t / QK_PAGE_TOKENS);
        tap_require(
            decode(s, t, in_order, &small_choice, false, got + (size_t)(t - N_PROMPT) * vocab) == QK_OK);
    }
    tap_ok(same(want, got), "%s: the prompt's in host memory", name);
    qk_buffer_free(moved);
    moved = NULL;

    /* Pages that are not chosen are not read. */
    const choice middle_out = {2, 3, 0}, one = {2, 3, 1};
    float row[2][256];
    prefill(s, in_order);
    tap_require(decode(s, N_PROMPT, in_order, &middle_out, false, row[0]) == QK_OK);
    const uint64_t page_bytes = s->r.params.layout.page_bytes, n_pages = N_PROMPT / QK_PAGE_TOKENS + 1;
    tap_require(qk_fill_submit(s->r.backend, QK_STREAM_COMPUTE, s->r.pages, 2 * page_bytes,
                    (n_pages - 5) * page_bytes, 0x7fc07fc0) == QK_OK);
    tap_require(decode(s, N_PROMPT, in_order, &middle_out, false, row[1]) == QK_OK);
    tap_ok(memcmp(row[0], row[1], vocab * 4) == 0 && isfinite(row[0][0]), "%s: others are not read", name);
    make_bounds(s, in_order, 2, 3);
    tap_require(decode(s, N_PROMPT, in_order, &one, false, row[1]) == QK_OK);
    tap_ok(isnan(row[1][0]), "%s: one with NaN among its keys is chosen", name);
    free(got);
}

/* The bits depend on nothing but tokens and choice. */
static void test_invariance(qk_dtype dtype, const char *name)
{
    float *want = rows_new(), *got = rows_new();
    selector s;
    open_selector(&s, model, &(rig_options){.n_threads = 1, .kv_dtype = dtype});
    run_all(&s, in_order, &small_choice, false, want);
    test_pages(&s, want, name);
    run_all(&s, in_order, &small_choice, true, got);
    tap_ok(same(want, got), "%s pages: beside another sequence", name);
    close_selector(&s);

    for (uint32_t n_threads = 3; n_threads <= 5; n_threads += 2) {
        open_selector(&s, model, &(rig_options){.n_threads = n_threads, .kv_dtype = dtype});
        run_all(&s, in_order, &small_choice, false, got);
        tap_ok(same(want, got), "%s pages: with %u threads", name, n_threads);
        close_selector(&s);
    }
    for (uint32_t seed = 1; seed <= 2; seed++) {
        const qk_mock_options options = {.seed = seed, .delay_us_max = 100, .n_threads = 2};
        char error[256];
        qk_backend *mock = NULL;
        tap_require(qk_mock_open(&options, &mock, error, sizeof(error)) == QK_OK);
        open_selector(&s, model, &(rig_options){.opened = mock, .kv_dtype = dtype});
        run_all(&s, in_order, &small_choice, seed == 2, got);
        tap_ok(same(want, got), "%s pages: on the mock device", name);
        test_pages(&s, want, "mock");
        close_selector(&s);
    }
    free(want);
    free(got);
}

/* A context of @n pages, those of the prompt again and again; its new token alone in the last one. */
static void decode_far(selector *s, uint32_t *pages, uint32_t n, const choice *c, float *logits)
{
    for (uint32_t p = 0; p < n; p++)
        pages[p] = p % (N_PROMPT / QK_PAGE_TOKENS);
    pages[n - 1] = N_PROMPT / QK_PAGE_TOKENS + 1;
    tap_require(
        decode_at(s, &(rig_rows){tokens, 1, (n - 1) * QK_PAGE_TOKENS, pages}, 1, 0, c, logits) == QK_OK);
}

/* A card captures steps that leave pages out for a few sizes of the choice: such a step is the one that is launched kernel by
 * kernel, to the bit, at both ends of each size and whatever was captured before. */
static void test_sizes(const char *backend)
{
    static const uint32_t n_pages[] = {40, 1029, 1030, 4101, 4102, 16389, 16390, 17000, 1029, 40};
    static const choice some = {2, 3, 40};
    const qk_shape shape = {
        .n_layers = 1,
        .n_heads = 2,
        .n_kv_heads = 1,
        .head_dim = 64,
        .hidden = 64,
        .ffn = 64,
        .vocab = 200,
        .max_positions = 17000 * QK_PAGE_TOKENS,
        .rms_eps = 1e-6f,
        .rope_factor = 1,
    };
    uint32_t *pages = calloc(17000, sizeof(*pages));
    fixture_model *m = fixture_model_new(&shape, QK_BF16, 12);
    selector s;
    tap_require(pages != NULL);
    model = m;
    vocab = shape.vocab;
    fixture_model_sharpen(m);
    open_selector(&s, model, &(rig_options){.backend = backend, .kv_dtype = QK_BF16, .n_pages = 17000});
    prefill(&s, in_order);
    float rows[3][256] = {{0}};
    for (size_t i = 0; i < sizeof(n_pages) / sizeof(n_pages[0]); i++) {
        timed = true;
        decode_far(&s, pages, n_pages[i], &some, rows[0]);
        timed = false;
        decode_far(&s, pages, n_pages[i], &some, rows[1]);
        decode_far(&s, pages, n_pages[i], &(choice){0, 0, 0}, rows[2]);
        tap_ok(memcmp(rows[0], rows[1], vocab * sizeof(float)) == 0 && isfinite(rows[0][0]),
            "%s: %u of %u pages chosen in a captured step", backend, some.n_chosen, n_pages[i]);
        tap_ok((memcmp(rows[1], rows[2], vocab * sizeof(float)) == 0) == (n_pages[i] <= 45),
            "%s: which is not all of them", backend);
    }
    close_selector(&s);
    fixture_model_free(m);
    free(pages);
}

/* The same on a card, as far as its own rules promise bits; and against the CPU where nothing is to be chosen, which
 * rounding could turn. */
static void test_backend(const char *backend)
{
    static const qk_shape shape = {
        .n_layers = 2,
        .n_heads = 8,
        .n_kv_heads = 2,
        .head_dim = 64,
        .hidden = 128,
        .ffn = 192,
        .vocab = 200,
        .max_positions = 4096,
        .rms_eps = 1e-6f,
        .rope_factor = 1,
    };
    static const choice middle_out = {2, 3, 0};
    fixture_model *m = fixture_model_new(&shape, QK_BF16, 12);
    model = m;
    vocab = shape.vocab;
    float *want = rows_new(), *exact = rows_new();
    selector s;
    open_selector(&s, model, &(rig_options){.backend = backend, .kv_dtype = QK_BF16});
    run_all(&s, in_order, &small_choice, false, want);
    run_all(&s, in_order, &(choice){0, 0, 0}, false, exact);
    tap_ok(!same(want, exact), "%s: selective is not exact", backend);
    test_pages(&s, want, backend);
    for (int beside = 0; beside < 2; beside++) {
        float *launched = rows_new();
        timed = false;
        run_all(&s, in_order, &small_choice, beside, want);
        timed = true;
        run_all(&s, in_order, &small_choice, beside, launched);
        timed = false;
        tap_ok(same(want, launched), "%s: kernel by kernel%s", backend, beside ? ", beside another" : "");
        free(launched);
    }
    run_all(&s, in_order, &(choice){4, 3, SEQ_PAGES - 7}, false, want);
    tap_ok(same(want, exact), "%s: as exact below the identity length", backend);
    run_all(&s, in_order, &middle_out, false, want);
    close_selector(&s);

    double *reference = calloc((size_t)N_ROWS * vocab, sizeof(*reference));
    tap_require(reference != NULL);
    open_selector(&s, model, &(rig_options){.n_threads = 2, .kv_dtype = QK_BF16});
    run_all(&s, in_order, &middle_out, false, exact);
    close_selector(&s);
    for (size_t i = 0; i < (size_t)N_ROWS * vocab; i++)
        reference[i] = (double)exact[i];
    const double error = worst_error(want, reference);
    tap_ok(error < 5e-2, "%s: sinks and recent pages alone: %.2g from the CPU", backend, error);
    free(reference);
    free(want);
    free(exact);
    fixture_model_free(m);
}

/* ---- What is refused ------------------------------------------------------------------------------------------- */

static void test_refused(void)
{
    selector s;
    float row[256];
    open_selector(&s, model, &(rig_options){.n_threads = 1, .kv_dtype = QK_BF16});
    prefill(&s, in_order);
    const choice too_many = {30, 30, 30}, no_recent = {1, 0, 3};
    tap_ok(decode(&s, N_PROMPT, in_order, &no_recent, false, row) == QK_INVALID, "no recent page");
    tap_ok(
        decode(&s, N_PROMPT, in_order, &too_many, false, row) == QK_OK, "a choice larger than the sequence");
    rig_rows rows = {tokens + N_PROMPT, 2, N_PROMPT, in_order};
    rig_fill(&s.r, 0, &rows, 1);
    qk_step_plan(s.r.steps[0])->seqs[0].n_recent = 2;
    tap_ok(qk_step_submit(s.r.steps[0]) == QK_OK && qk_step_wait(s.r.steps[0]) == QK_OK,
        "a sequence of two rows attends to everything");
    rig_rows pair[2] = {{tokens + N_PROMPT, 1, N_PROMPT, in_order}, {other_tokens, 2, 0, in_order + 50}};
    rig_fill(&s.r, 0, pair, 2);
    qk_plan *plan = qk_step_plan(s.r.steps[0]);
    plan->seqs[0].n_recent = 2;
    for (uint32_t p = 0; p < plan->n_pages; p++)
        plan->bounds[p] = s.bounds->address;
    tap_ok(qk_step_submit(s.r.steps[0]) == QK_INVALID, "beside more rows: %s", qk_backend_error(s.r.backend));
    rig_fill(&s.r, 0, pair, 1);
    plan->seqs[0].n_recent = 2;
    for (uint32_t p = 0; p < plan->n_pages; p++)
        plan->bounds[p] = p == 9 ? 0 : s.bounds->address;
    tap_ok(qk_step_submit(s.r.steps[0]) == QK_INVALID, "no bounds: %s", qk_backend_error(s.r.backend));
    plan->bounds[9] = s.bounds->address;
    plan->pages[9] = 0;
    tap_ok(qk_step_submit(s.r.steps[0]) == QK_INVALID, "an outside page: %s", qk_backend_error(s.r.backend));
    const qk_bounds nowhere = {0, s.bounds->address};
    tap_ok(qk_bounds_submit(s.r.context, 0, &nowhere, 1) == QK_INVALID, "%s", qk_backend_error(s.r.backend));
    tap_ok(qk_bounds_submit(s.r.context, 1, &nowhere, 1) == QK_INVALID, "%s", qk_backend_error(s.r.backend));
    close_selector(&s);

    rig plain;
    rig_open(&plain, model,
        &(rig_options){.n_threads = 1, .kv_dtype = QK_BF16, .rows_max = N_PROMPT, .n_pages = N_PAGES});
    rig_fill(&plain, 0, pair, 1);
    plan = qk_step_plan(plain.steps[0]);
    plan->seqs[0].n_recent = 2;
    tap_ok(plan->bounds == NULL && qk_step_submit(plain.steps[0]) == QK_INVALID, "a context without: %s",
        qk_backend_error(plain.backend));
    const qk_bounds item = {rig_page(&plain, 0), rig_page(&plain, 1)};
    tap_ok(qk_bounds_submit(plain.context, 0, &item, 1) == QK_UNSUPPORTED, "%s",
        qk_backend_error(plain.backend));
    rig_close(&plain);
}

static void make_tokens(uint32_t n)
{
    uint64_t seed = 21;
    for (uint32_t t = 0; t < N_TOKENS; t++) {
        tokens[t] = (int32_t)((fixture_random(&seed) + 1) / 2 * n);
        other_tokens[t] = (int32_t)((fixture_random(&seed) + 1) / 2 * n);
    }
    for (uint32_t i = 0; i < N_PAGES; i++)
        in_order[i] = i;
}

int main(int argc, char **argv)
{
    if (argc > 1) {
        char error[256] = "";
        qk_backend *probe = NULL;
        if (qk_backend_open(argv[1], NULL, &probe, error, sizeof(error)) != QK_OK) {
            printf("1..0 # SKIP %s\n", error);
            return 0;
        }
        qk_backend_free(probe);
        make_tokens(200);
        test_backend(argv[1]);
        test_sizes(argv[1]);
        return tap_done();
    }
    test_bounds();
    test_largest();
    for (size_t i = 0; i < sizeof(isas) / sizeof(isas[0]); i++) {
        if (qk_cpu_ops_get(isas[i]) != NULL)
            test_scores(qk_cpu_ops_get(isas[i]));
        else
            tap_skip("%s is not on this machine", isas[i]);
    }
    fixture_model *m = fixture_model_new(&fixture_small, QK_F32, 11);
    model = m;
    vocab = m->desc.shape.vocab;
    make_tokens(vocab);
    for (size_t i = 0; i < sizeof(isas) / sizeof(isas[0]); i++)
        if (qk_cpu_ops_get(isas[i]) != NULL)
            test_reference(isas[i]);
    test_identity(QK_F32, "f32");
    test_identity(QK_BF16, "bf16");
    test_invariance(QK_F32, "f32");
    test_invariance(QK_BF16, "bf16");
    test_refused();
    fixture_model_free(m);
    return tap_done();
}
