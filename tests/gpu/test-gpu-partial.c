/* test-gpu-partial.c: decode steps with outside pages on the CUDA module, through qk.h.
 *
 *   test-gpu-partial [--small] [--path portable|hopper] [--self] [--bench]
 *
 * --small: one shape, few steps. --self: the CPU backend takes the module's place, which checks these checks on a machine
 * without a GPU. --bench: what the mechanism takes of a layer's time, with a partial function that does nothing.
 *
 * The partial function here is the plain one: qk_host_attend_span() for each item, over a copy of all pages in host memory
 * that is found through the plan's host_pages.
 *
 * 1. Numbers. A step with spans outside is compared with the same step over device pages alone, and with the CPU's
 *    reference arithmetic, by ||got - want|| / ||want||. The bound is test-gpu-step's: what rounding to bf16 explains.
 * 2. Mutations. A wrong page, or a span's result that is left out, must break that bound.
 * 3. Promises: submit returns at once, steps behind one another, failures, cancelling, refusals, the order of items. */
#include "tests/gpu/gpu-paths.h"
#include "tests/kernels/fixture.h"
#include "tests/kernels/tap.h"
#include <math.h>
#include <semaphore.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

enum {
    N_SEQS = 4,
    SPAN_PAGES = QK_SPAN_TOKENS / QK_PAGE_TOKENS,
    PAGES_A_SEQ = 64,
    N_PAGES = 200,
    ROWS_MAX = 1000,
    SEQS_MAX = 8,
    PARTIAL_MAX = 64,
    BENCH_LAYERS = 36,
    BENCH_TOKENS = 8292,
    BENCH_PAGES = 4 * (BENCH_TOKENS / QK_PAGE_TOKENS + 1),
    BENCH_STEPS = 60,
};

static struct {
    const char *backend, *isa, *name; /* what is tested */
    bool small, self;
} subject = {.backend = "cuda"};

typedef struct {
    const char *name;
    uint32_t n_heads, n_kv_heads, head_dim, hidden, ffn, vocab, n_layers;
} shape_case;

static const shape_case cases[] = {
    {"64 x 8:2", 8, 2, 64, 256, 768, 1000, 3},
    {"128 x 4:4", 4, 4, 128, 256, 512, 1003, 2},
    {"128 x 8:1", 8, 1, 128, 512, 768, 1000, 2},
    {"128 x 40:8", 40, 8, 128, 256, 512, 600, 2},
};

static double tolerance(uint32_t n_layers)
{
    return 4 * 0x1p-9 / sqrt(3.0) * sqrt(8.0 * n_layers);
}

/* ---- The partial function -------------------------------------------------------------------------------------- */

typedef struct {
    const qk_shape *shape;
    const qk_kv_layout *layout;
    bool empty;       /* does nothing: times */
    uint32_t drop;    /* mutation: this item of each call weighs nothing; UINT32_MAX: none */
    uint32_t fail_at; /* the layer in which it returns @status; UINT32_MAX: none */
    qk_status status; /* what it returns there */
    bool gated;       /* waits for @go in layer 0, after posting @entered */
    sem_t entered, go;
    /* What the calls were like; read when no step runs. */
    uint32_t n_calls, n_bad, n_items, layer;
    int inside; /* __atomic */
} outside;

static const void *no_pages[SPAN_PAGES];

static bool items_right(const outside *o, const qk_partial_args *args)
{
    bool right = args->plan != NULL && args->n_items > 0 && args->layer == o->layer;
    for (uint32_t i = 0; i < args->n_items && right; i++) {
        const qk_partial_item *it = &args->items[i], *before = i > 0 ? it - 1 : NULL;
        const qk_seq *seq = &args->plan->seqs[it->seq];
        right =
            it->seq < args->plan->n_seqs && it->row == seq->row_begin &&
            (it->span + 1) * QK_SPAN_TOKENS <= seq->start &&
            args->plan->pages[seq->page_begin + it->span * SPAN_PAGES] == 0 &&
            (before == NULL || before->row < it->row || (before->row == it->row && before->span < it->span));
    }
    return right;
}

static qk_status attend_items(outside *o, const qk_partial_args *args)
{
    const size_t n_heads = o->shape->n_heads, q_dim = n_heads * o->shape->head_dim;
    for (uint32_t i = 0; i < args->n_items; i++) {
        const qk_partial_item *it = &args->items[i];
        if (o->empty || i == o->drop) {
            for (size_t h = 0; h < n_heads; h++)
                args->lse[i * n_heads + h] = -INFINITY;
            memset(args->out + i * q_dim, 0, o->empty ? 0 : q_dim * sizeof(float));
            continue;
        }
        const uint32_t first = args->plan->seqs[it->seq].page_begin + it->span * SPAN_PAGES;
        const void *const *pages = args->plan->host_pages != NULL ? args->plan->host_pages + first : no_pages;
        if (pages[0] == NULL)
            return QK_INVALID;
        const qk_status status = qk_host_attend_span(NULL, o->shape, o->layout, args->layer, pages,
            QK_SPAN_TOKENS, args->q + it->row * q_dim, args->out + i * q_dim, args->lse + i * n_heads);
        if (status != QK_OK)
            return status;
    }
    return QK_OK;
}

static qk_status partial(void *user, const qk_partial_args *args)
{
    outside *o = user;
    __atomic_store_n(&o->inside, 1, __ATOMIC_RELEASE);
    if (args->layer == 0)
        o->layer = 0;
    o->n_bad += !items_right(o, args);
    o->layer++;
    o->n_calls++;
    o->n_items = args->n_items;
    if (o->gated && args->layer == 0) {
        sem_post(&o->entered);
        sem_wait(&o->go);
    }
    const qk_status status = args->layer == o->fail_at ? o->status : attend_items(o, args);
    __atomic_store_n(&o->inside, 0, __ATOMIC_RELEASE);
    return status;
}

/* ---- A model, sequences in its pages, and a copy of all pages in host memory -------------------------------------- */

typedef struct {
    int32_t tokens[ROWS_MAX];
    uint32_t at;                 /* tokens in the cache; the step's row comes behind them */
    uint32_t pages[PAGES_A_SEQ]; /* of the pool */
    uint32_t outside;            /* bit s: span s is outside */
    float *want;                 /* [vocab]: the reference's logits of the row */
} sequence;

typedef struct {
    const shape_case *shape;
    fixture_model *model;
    rig r;
    outside o;
    qk_buffer *host; /* all pages */
    sequence q[N_SEQS];
    double limit;
} test;

static qk_shape shape_from(const shape_case *c)
{
    return (qk_shape){.n_layers = c->n_layers,
        .n_heads = c->n_heads,
        .n_kv_heads = c->n_kv_heads,
        .head_dim = c->head_dim,
        .hidden = c->hidden,
        .ffn = c->ffn,
        .vocab = c->vocab,
        .max_positions = 16384,
        .rms_eps = 1e-6f,
        .rope_factor = 1};
}

static void open_rig(test *t, uint32_t rows_max, uint32_t n_pages, uint32_t partial_max)
{
    t->o = (outside){.shape = &t->model->desc.shape, .drop = UINT32_MAX, .fail_at = UINT32_MAX};
    tap_require(sem_init(&t->o.entered, 0, 0) == 0 && sem_init(&t->o.go, 0, 0) == 0);
    rig_open(&t->r, t->model,
        &(rig_options){.backend = subject.backend,
            .isa = subject.isa,
            .kv_dtype = QK_BF16,
            .rows_max = rows_max,
            .n_pages = n_pages,
            .slots_max = 8,
            .seqs_max = rows_max < SEQS_MAX ? rows_max : SEQS_MAX,
            .partial_max = partial_max,
            .partial = partial,
            .partial_user = &t->o});
    t->o.layout = &t->r.params.layout;
}

static void copy_pages(test *t)
{
    const qk_copy copy = {t->host, 0, t->r.pages, 0, t->host->bytes};
    qk_event *event;
    tap_require(qk_event_new(t->r.backend, &event) == QK_OK);
    tap_require(qk_copy_submit(t->r.backend, QK_STREAM_TO_HOST, &copy, 1) == QK_OK);
    tap_require(qk_event_record(event, QK_STREAM_TO_HOST) == QK_OK && qk_event_wait(event) == QK_OK);
    qk_event_free(event);
}

/* The reference's logits of each sequence's row, on the CPU backend. */
static void run_reference(test *t)
{
    rig r;
    uint32_t pages[PAGES_A_SEQ];
    const uint32_t vocab = t->shape->vocab;
    for (uint32_t i = 0; i < PAGES_A_SEQ; i++)
        pages[i] = i;
    float *logits = malloc((size_t)ROWS_MAX * vocab * sizeof(*logits));
    tap_require(logits != NULL);
    rig_open(&r, t->model,
        &(rig_options){
            .isa = "reference", .kv_dtype = QK_BF16, .rows_max = ROWS_MAX, .n_pages = PAGES_A_SEQ});
    for (uint32_t s = 0; s < N_SEQS; s++) {
        sequence *q = &t->q[s];
        rig_rows rows = {q->tokens, q->at + 1, 0, pages};
        tap_require(rig_run(&r, &rows, 1, logits) == QK_OK);
        q->want = malloc(vocab * sizeof(*q->want));
        tap_require(q->want != NULL);
        memcpy(q->want, logits + (size_t)q->at * vocab, vocab * sizeof(*q->want));
    }
    rig_close(&r);
    free(logits);
}

static test *test_new(const shape_case *c)
{
    /* Ends of spans and pages among them. */
    static const uint32_t lengths[2][N_SEQS] = {{900, 512, 300, 70}, {530, 512, 300, 70}};
    const qk_shape shape = shape_from(c);
    uint64_t seed = 3 + c->n_heads;
    uint32_t page = 0;
    test *t = calloc(1, sizeof(*t));
    tap_require(t != NULL);
    t->shape = c;
    t->limit = tolerance(c->n_layers);
    t->model = fixture_model_new(&shape, QK_BF16, 300 + c->n_heads + c->head_dim);
    fixture_model_sharpen(t->model);
    open_rig(t, ROWS_MAX, N_PAGES, PARTIAL_MAX);
    for (uint32_t s = 0; s < N_SEQS; s++) {
        sequence *q = &t->q[s];
        q->at = lengths[subject.small][s];
        for (uint32_t i = 0; i < ROWS_MAX; i++)
            q->tokens[i] = (int32_t)((fixture_random(&seed) + 1) / 2 * c->vocab);
        for (uint32_t p = 0; p <= q->at / QK_PAGE_TOKENS; p++, page++)
            q->pages[p] = page * 77 % N_PAGES; /* in no order; 77 and N_PAGES have no common factor */
        rig_rows rows = {q->tokens, q->at, 0, q->pages};
        tap_require(rig_run(&t->r, &rows, 1, NULL) == QK_OK);
    }
    tap_require(page <= N_PAGES);
    run_reference(t);
    tap_require(qk_buffer_new(t->r.backend, QK_MEMORY_HOST, t->r.pages->bytes, &t->host) == QK_OK);
    copy_pages(t);
    return t;
}

static void test_free(test *t)
{
    for (uint32_t s = 0; s < N_SEQS; s++)
        free(t->q[s].want);
    qk_buffer_free(t->host);
    rig_close(&t->r);
    sem_destroy(&t->o.entered);
    sem_destroy(&t->o.go);
    fixture_model_free(t->model);
    free(t);
}

static uint32_t n_spans(const sequence *q)
{
    return q->at / QK_SPAN_TOKENS;
}

/* One row of each sequence in @which (bits), with logits. Returns how many items that makes. */
static uint32_t fill(test *t, uint32_t step, uint32_t which)
{
    rig_rows rows[N_SEQS] = {{0}};
    uint32_t pages[N_SEQS][PAGES_A_SEQ], n = 0, n_items = 0;
    for (uint32_t s = 0; s < N_SEQS; s++) {
        const sequence *q = &t->q[s];
        if ((which & 1u << s) == 0)
            continue;
        for (uint32_t p = 0; p <= q->at / QK_PAGE_TOKENS; p++)
            pages[n][p] = q->outside & 1u << p / SPAN_PAGES ? UINT32_MAX : q->pages[p];
        for (uint32_t span = 0; span < n_spans(q); span++)
            n_items += (q->outside & 1u << span) != 0;
        rows[n] = (rig_rows){q->tokens + q->at, 1, q->at, pages[n]};
        n++;
    }
    rig_fill(&t->r, step, rows, n);
    qk_plan *plan = qk_step_plan(t->r.steps[step]);
    for (uint32_t s = 0, at = 0; s < N_SEQS; s++)
        for (uint32_t p = 0; (which & 1u << s) != 0 && p <= t->q[s].at / QK_PAGE_TOKENS; p++, at++)
            plan->host_pages[at] = plan->pages[at] == 0 ? (const char *)t->host->host +
                                                              t->q[s].pages[p] * t->r.params.layout.page_bytes
                                                        : NULL;
    return n_items;
}

static void submit(test *t, uint32_t step)
{
    const qk_status status = qk_step_submit(t->r.steps[step]);
    if (status != QK_OK)
        tap_note("%s: %s", qk_status_name(status), qk_backend_error(t->r.backend));
    tap_require(status == QK_OK);
}

static void wait_ok(test *t, uint32_t step)
{
    const qk_status status = qk_step_wait(t->r.steps[step]);
    if (status != QK_OK)
        tap_note("%s: %s", qk_status_name(status), qk_backend_error(t->r.backend));
    tap_require(status == QK_OK);
}

/* ||got - want|| / ||want||; infinite when an element of got is not finite. */
static double row_error(const float *want, const float *got, uint32_t vocab)
{
    double diff = 0, size = 0;
    for (uint32_t i = 0; i < vocab; i++) {
        const double w = (double)want[i], d = (double)got[i] - w;
        diff += d * d;
        size += w * w;
    }
    return isfinite(diff) ? sqrt(diff / size) : INFINITY;
}

/* Of the rows of the step that has ended, against the reference, the worst. */
static double step_error(test *t, uint32_t step, uint32_t which)
{
    const float *got = qk_step_result(t->r.steps[step])->logits;
    double worst = 0;
    for (uint32_t s = 0; s < N_SEQS; s++) {
        if ((which & 1u << s) == 0)
            continue;
        const double e = row_error(t->q[s].want, got, t->shape->vocab);
        worst = e > worst ? e : worst;
        got += t->shape->vocab;
    }
    return worst;
}

static double run(test *t, uint32_t which)
{
    fill(t, 0, which);
    submit(t, 0);
    wait_ok(t, 0);
    return step_error(t, 0, which);
}

static void set_outside(test *t, uint32_t a, uint32_t b, uint32_t c)
{
    const uint32_t masks[N_SEQS] = {a, b, c, 0};
    for (uint32_t s = 0; s < N_SEQS; s++)
        t->q[s].outside = masks[s] & ((1u << n_spans(&t->q[s])) - 1);
}

/* ---- 1. Numbers ---------------------------------------------------------------------------------------------------- */

static void compare(test *t, uint32_t which, const char *what)
{
    const uint32_t vocab = t->shape->vocab,
                   masks[N_SEQS] = {t->q[0].outside, t->q[1].outside, t->q[2].outside, t->q[3].outside};
    const size_t bytes = (size_t)N_SEQS * vocab * sizeof(float);
    float *inside = calloc(1, bytes), *first = calloc(1, bytes);
    uint32_t n_rows = 0;
    double apart = 0;
    tap_require(inside != NULL && first != NULL);
    for (uint32_t s = 0; s < N_SEQS; s++)
        n_rows += (which & 1u << s) != 0;
    const size_t used = n_rows * vocab * sizeof(float);
    set_outside(t, 0, 0, 0);
    const double error_inside = run(t, which);
    memcpy(inside, qk_step_result(t->r.steps[0])->logits, used);

    for (uint32_t s = 0; s < N_SEQS; s++)
        t->q[s].outside = masks[s];
    t->o.n_calls = t->o.n_bad = t->o.n_items = 0;
    const uint32_t n_items = fill(t, 0, which);
    submit(t, 0);
    wait_ok(t, 0);
    const double error = step_error(t, 0, which);
    const float *got = qk_step_result(t->r.steps[0])->logits;
    for (uint32_t i = 0; i < n_rows; i++) {
        const double e = row_error(inside + (size_t)i * vocab, got + (size_t)i * vocab, vocab);
        apart = e > apart ? e : apart;
    }
    memcpy(first, got, used);
    const bool calls_right = t->o.n_bad == 0 && (n_items == 0 || t->o.n_items == n_items) &&
                             t->o.n_calls == (n_items > 0 ? t->shape->n_layers : 0);
    run(t, which);
    const bool same = memcmp(first, qk_step_result(t->r.steps[0])->logits, used) == 0;
    tap_ok(error < t->limit && apart < t->limit && calls_right && same,
        "%s, %s: %s: %u rows, %u items: %.2g off the reference (%.2g inside), %.2g off inside, below "
        "%.2g%s%s",
        subject.name, t->shape->name, what, n_rows, n_items, error, error_inside, apart, t->limit,
        calls_right ? "" : ", the calls were wrong", same ? "" : ", other bits the second time");
    free(inside);
    free(first);
}

static void test_numbers(test *t)
{
    uint64_t seed = 17;
    set_outside(t, 0, 0, 0);
    compare(t, 15, "nothing outside");
    set_outside(t, ~0u, ~0u, ~0u);
    compare(t, 1, "every span but the last");
    compare(t, 2, "all before a new page");
    compare(t, 15, "every span but the last, of all");
    set_outside(t, 1, 0, 0);
    compare(t, 15, "one sequence's first span");
    set_outside(t, 0, 0, 1);
    compare(t, 14, "the third sequence's first span");
    for (uint32_t k = 0; k < (subject.small ? 3u : 10u); k++) {
        const uint32_t bits = (uint32_t)((fixture_random(&seed) + 1) * 0x1p30);
        set_outside(t, bits, bits >> 4, bits >> 8);
        const uint32_t which = bits >> 12 & 15;
        compare(t, which != 0 ? which : 15, "random spans");
    }
}

/* ---- 2. Mutations --------------------------------------------------------------------------------------------------- */

static void test_mutations(test *t)
{
    const uint64_t page_bytes = t->r.params.layout.page_bytes;
    set_outside(t, ~0u, 0, 0);
    for (uint32_t k = 0; k < 3; k++) {
        fill(t, 0, 3);
        qk_plan *plan = qk_step_plan(t->r.steps[0]);
        if (k == 0) /* a page of another sequence */
            plan->host_pages[3] = (const char *)t->host->host + t->q[1].pages[3] * page_bytes;
        else if (k == 1) /* a page twice */
            plan->host_pages[SPAN_PAGES + 2] = plan->host_pages[5];
        else
            t->o.drop = 1;
        submit(t, 0);
        wait_ok(t, 0);
        const double error = step_error(t, 0, 1);
        tap_ok(!(error < t->limit), "%s, %s: %s shows: %.2g", subject.name, t->shape->name,
            k == 0   ? "a wrong page in host_pages"
            : k == 1 ? "a page in place of another"
                     : "a span without its part",
            error);
        t->o.drop = UINT32_MAX;
    }
    const double error = run(t, 3);
    tap_ok(error < t->limit, "and the step without them is right: %.2g", error);
}

/* ---- 3. Promises ------------------------------------------------------------------------------------------------------ */

/* Submitting returns while the partial function has not, also of the step behind; both are then right. */
static void test_behind(test *t)
{
    set_outside(t, 1, ~0u, 0);
    t->o.gated = true;
    fill(t, 0, 3);
    submit(t, 0);
    sem_wait(&t->o.entered);
    set_outside(t, 2, 0, 1);
    fill(t, 1, 7);
    submit(t, 1);
    tap_ok(qk_step_poll(t->r.steps[0]) == QK_PENDING && qk_step_poll(t->r.steps[1]) == QK_PENDING,
        "%s: two steps are on their way while the partial function waits", subject.name);
    sem_post(&t->o.go);
    sem_wait(&t->o.entered);
    sem_post(&t->o.go);
    wait_ok(t, 0);
    wait_ok(t, 1);
    t->o.gated = false;
    const double first = step_error(t, 0, 3), second = step_error(t, 1, 7);
    tap_ok(first < t->limit && second < t->limit && t->o.n_bad == 0, "and both are right: %.2g and %.2g",
        first, second);
}

static void test_failures(test *t)
{
    static const qk_status statuses[] = {QK_INVALID, QK_UNSUPPORTED, QK_NO_MEMORY};
    set_outside(t, ~0u, 1, 0);
    for (uint32_t k = 0; k < 3; k++) {
        t->o.fail_at = k % t->shape->n_layers;
        t->o.status = statuses[k];
        t->o.n_calls = 0;
        fill(t, 0, 7);
        submit(t, 0);
        const qk_status status = qk_step_wait(t->r.steps[0]);
        tap_ok(status == statuses[k] && t->o.n_calls == t->o.fail_at + 1,
            "%s: a partial that fails in layer %u: %s", subject.name, t->o.fail_at,
            qk_backend_error(t->r.backend));
        tap_ok(qk_step_poll(t->r.steps[0]) == statuses[k], "and so it is said again");
        t->o.fail_at = UINT32_MAX;
        const double error = run(t, 7);
        tap_ok(error < t->limit, "and the next step is right: %.2g", error);
    }
    /* The failed step's status is not the next one's. */
    set_outside(t, 0, 0, 0);
    const double error = run(t, 15);
    tap_ok(error < t->limit, "and one without outside pages: %.2g", error);
}

static void test_cancel(test *t)
{
    set_outside(t, ~0u, 0, 0);
    t->o.gated = true;
    t->o.n_calls = 0;
    fill(t, 0, 3);
    submit(t, 0);
    sem_wait(&t->o.entered);
    qk_step_cancel(t->r.steps[0]);
    usleep(1000);
    const qk_status held = qk_step_poll(t->r.steps[0]);
    sem_post(&t->o.go);
    const qk_status status = qk_step_wait(t->r.steps[0]);
    const bool left = __atomic_load_n(&t->o.inside, __ATOMIC_ACQUIRE) == 0;
    tap_ok(held == QK_PENDING && status == QK_CANCELLED && left && t->o.n_calls == 1,
        "%s: a step cancelled in its first layer is given up, after %u calls, all of them over", subject.name,
        t->o.n_calls);
    t->o.gated = false;
    const double error = run(t, 3);
    tap_ok(error < t->limit, "and the next step is right: %.2g", error);
    /* At any moment: it ends, one way or the other. */
    uint32_t n_other = 0;
    for (uint32_t k = 0; k < (subject.small ? 5u : 30u); k++) {
        fill(t, k % 2, 3);
        submit(t, k % 2);
        usleep(k * 10);
        qk_step_cancel(t->r.steps[k % 2]);
        const qk_status s = qk_step_wait(t->r.steps[k % 2]);
        n_other += s != QK_CANCELLED && !(s == QK_OK && step_error(t, k % 2, 3) < t->limit);
    }
    tap_ok(n_other == 0, "cancelled steps end cancelled or right: %u do not", n_other);
}

static void test_refusals(test *t)
{
    static const int32_t unwritten = ~7;
    uint32_t pages[PAGES_A_SEQ];
    sequence *q = &t->q[0];
    set_outside(t, 1, 0, 0);
    for (uint32_t p = 0; p < PAGES_A_SEQ; p++)
        pages[p] = p < SPAN_PAGES ? UINT32_MAX : q->pages[p];
    if (!subject.self) {
        rig_rows rows = {q->tokens + q->at - 8, 8, q->at - 8, pages};
        rig_fill(&t->r, 0, &rows, 1);
        const qk_status status = qk_step_submit(t->r.steps[0]);
        tap_ok(status == QK_UNSUPPORTED, "%s: eight rows of a sequence: %s", subject.name,
            qk_backend_error(t->r.backend));
    }
    t->o.n_calls = 0;
    fill(t, 0, 1);
    qk_step_plan(t->r.steps[0])->tokens[0] = unwritten;
    submit(t, 0);
    const qk_status status = qk_step_wait(t->r.steps[0]);
    tap_ok(
        status == QK_INVALID, "%s: a slot never written: %s", subject.name, qk_backend_error(t->r.backend));
    t->o.n_calls = 0;
    fill(t, 0, 1);
    qk_step_plan(t->r.steps[0])->n_outputs = 0;
    submit(t, 0);
    wait_ok(t, 0);
    tap_ok(t->o.n_bad == 0, "%s: a step without outputs", subject.name);
    const double error = run(t, 15);
    tap_ok(error < t->limit, "and the next step is right: %.2g", error);
}

/* A context is freed right behind its last step, and a step while it runs. */
static void test_ends(const shape_case *c)
{
    test *t = test_new(c);
    set_outside(t, ~0u, ~0u, ~0u);
    fill(t, 0, 15);
    fill(t, 1, 15);
    submit(t, 0);
    submit(t, 1);
    qk_step_free(t->r.steps[0]);
    qk_step_free(t->r.steps[1]);
    t->r.steps[0] = t->r.steps[1] = NULL;
    tap_ok(__atomic_load_n(&t->o.inside, __ATOMIC_ACQUIRE) == 0, "%s: freed steps have ended", subject.name);
    test_free(t);
}

/* ---- Times ------------------------------------------------------------------------------------------------------------ */

static int compare_doubles(const void *a, const void *b)
{
    const double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

/* Median microseconds of a step of @n_seqs rows whose first @n_outside spans are outside. */
static double bench_step(test *t, uint32_t n_seqs, uint32_t n_outside)
{
    enum { A_SEQ = BENCH_TOKENS / QK_PAGE_TOKENS + 1 };
    static uint32_t pages[4][A_SEQ];
    static const int32_t token = 1;
    double us[BENCH_STEPS];
    rig_rows rows[4];
    for (uint32_t s = 0; s < n_seqs; s++) {
        for (uint32_t p = 0; p < A_SEQ; p++)
            pages[s][p] = p < n_outside * SPAN_PAGES ? UINT32_MAX : s * A_SEQ + p;
        rows[s] = (rig_rows){&token, 1, BENCH_TOKENS, pages[s]};
    }
    for (uint32_t i = 0; i < BENCH_STEPS; i++) {
        struct timespec a, b;
        rig_fill(&t->r, 0, rows, n_seqs);
        for (uint32_t k = 0; k < n_seqs; k++)
            qk_step_plan(t->r.steps[0])->outputs[k].flags = QK_OUTPUT_SAMPLE,
            qk_step_plan(t->r.steps[0])->outputs[k].sampling =
                (qk_sampling){.top_p = 1, .repetition_penalty = 1};
        clock_gettime(CLOCK_MONOTONIC, &a);
        submit(t, 0);
        wait_ok(t, 0);
        clock_gettime(CLOCK_MONOTONIC, &b);
        us[i] = (double)(b.tv_sec - a.tv_sec) * 1e6 + (double)(b.tv_nsec - a.tv_nsec) * 1e-3;
    }
    qsort(us, BENCH_STEPS, sizeof(us[0]), compare_doubles);
    return us[BENCH_STEPS / 2];
}

static int bench_all(void)
{
    static const shape_case c = {"128 x 32:8", 32, 8, 128, 512, 512, 1000, BENCH_LAYERS};
    static const uint32_t outsides[] = {1, 4, 32};
    const qk_shape shape = shape_from(&c);
    test *t = calloc(1, sizeof(*t));
    tap_require(t != NULL);
    t->shape = &c;
    t->model = fixture_model_new(&shape, QK_BF16, 5);
    subject.name = "best";
    open_rig(t, SEQS_MAX, BENCH_PAGES, 4 * BENCH_TOKENS / QK_SPAN_TOKENS);
    t->o.empty = true;
    tap_require(
        qk_fill_submit(t->r.backend, QK_STREAM_COMPUTE, t->r.pages, 0, t->r.pages->bytes, 0) == QK_OK);
    for (uint32_t n_seqs = 1; n_seqs <= 4; n_seqs *= 4) {
        const double inside = bench_step(t, n_seqs, 0);
        printf("# %u x %u keys, %u layers, all inside: %.1f us a layer\n", n_seqs, BENCH_TOKENS + 1,
            BENCH_LAYERS, inside / BENCH_LAYERS);
        for (uint32_t i = 0; i < sizeof(outsides) / sizeof(outsides[0]); i++) {
            const double us = bench_step(t, n_seqs, outsides[i]);
            printf("# %u x %u keys, %2u spans outside, empty partial function: %.1f us a layer, %+.1f\n",
                n_seqs, BENCH_TOKENS + 1, outsides[i], us / BENCH_LAYERS, (us - inside) / BENCH_LAYERS);
        }
    }
    rig_close(&t->r);
    fixture_model_free(t->model);
    free(t);
    return 0;
}

/* ---- All of it ---------------------------------------------------------------------------------------------------------- */

static void test_subject(void)
{
    const uint32_t n = subject.small ? 1 : subject.self ? 2 : sizeof(cases) / sizeof(cases[0]);
    for (uint32_t i = 0; i < n; i++) {
        test *t = test_new(&cases[i]);
        test_numbers(t);
        test_mutations(t);
        if (i == 0) {
            test_behind(t);
            test_failures(t);
            test_cancel(t);
            test_refusals(t);
        }
        test_free(t);
        if (i == 0)
            test_ends(&cases[i]);
    }
}

int main(int argc, char **argv)
{
    const char *wanted = NULL;
    bool bench = false;
    for (int i = 1; i < argc; i++) {
        if (strcmp(argv[i], "--small") == 0)
            subject.small = true;
        else if (strcmp(argv[i], "--self") == 0)
            subject.self = true;
        else if (strcmp(argv[i], "--bench") == 0)
            bench = true;
        else if (strcmp(argv[i], "--path") == 0 && i + 1 < argc)
            wanted = argv[++i];
        else {
            fprintf(
                stderr, "usage: test-gpu-partial [--small] [--path portable|hopper] [--self] [--bench]\n");
            return 2;
        }
    }
    char error[256] = "";
    qk_backend *backend = NULL;
    if (subject.self)
        subject.backend = "cpu";
    if (qk_backend_open(subject.backend, NULL, &backend, error, sizeof(error)) != QK_OK) {
        printf("1..0 # SKIP %s\n", error);
        return 0;
    }
    qk_backend_free(backend);
    if (bench)
        return bench_all();
    for (int p = 0; p < GPU_PATHS; p++) {
        if (!gpu_path_begin(p, wanted, subject.self, &subject.backend, &subject.isa, &subject.name))
            continue;
        test_subject();
    }
    return tap_done();
}
