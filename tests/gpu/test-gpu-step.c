/* test-gpu-step.c: the CUDA module as a whole, through qk.h, against the CPU backend's reference arithmetic.
 *
 *   test-gpu-step [--small] [--path portable|hopper] [--self]
 *
 * --small: one shape and short sequences, for compute-sanitizer. --self: the CPU backend's fastest instruction set takes
 * the module's place, which checks these checks (the mutations above all) on a machine without a GPU.
 *
 * 1. Numbers. Every row of every step is compared with the same position of its stream in one reference pass, by
 *    ||got - want|| / ||want||. Page tables are in random order over a pool whose unwritten bytes are NaN.
 * 2. Mutations. What 1. accepts must be refused when a page is swapped, zeroed or taken from elsewhere: the query and
 *    key norms are large enough that one page of keys moves the logits past the tolerance. (Swapping two full pages of
 *    one sequence changes nothing, rightly: keys carry their rotation. So a swap takes the half-filled last page.)
 * 3. Promises: slots, pipelining, history, cancelling, refusals, determinism, steady memory.
 *
 * The tolerance is what rounding to bf16 explains. One rounding has a relative error of 2^-9 / sqrt(3) rms; a layer has
 * about eight that count (two norms' outputs, q, k, v, attention's output, the gated product, and one more where
 * products are kept in bf16). They add as squares and norms and attention amplify little: four times the sum. */
#include "kernels/cpu/sample.h"
#include "tests/gpu/gpu-paths.h"
#include "tests/kernels/fixture.h"
#include "tests/kernels/tap.h"
#include <math.h>
#include <string.h>
#include <unistd.h>

enum { N_STREAMS = 3, BIASES_A_ROW = 64, N_PAGES = 320, ROWS_MAX = 640, SEQS_MAX = 80 };

static struct {
    const char *backend, *isa, *name; /* what is tested */
    bool small, self;
    uint32_t n_drawn; /* tokens of a reply */
} subject = {.backend = "cuda", .n_drawn = 40};

typedef struct {
    const char *name;
    uint32_t n_heads, n_kv_heads, head_dim, hidden, ffn, vocab, n_layers;
    bool tied;
} shape_case;

static const shape_case cases[] = {
    {"64 x 8:2", 8, 2, 64, 256, 768, 1000, 3, false},
    {"128 x 4:4, tied", 4, 4, 128, 256, 512, 1003, 2, true},
    {"128 x 4:2, tied", 4, 2, 128, 320, 640, 616, 2, true},
    {"64 x 10:2", 10, 2, 64, 320, 768, 1000, 2, false},
    {"128 x 5:1", 5, 1, 128, 256, 768, 1000, 2, false},
    {"128 x 8:1, tied", 8, 1, 128, 512, 768, 1000, 2, true},
    {"64 x 3:3", 3, 3, 64, 256, 256, 512, 2, false},
};

static double tolerance(uint32_t n_layers)
{
    return 4 * 0x1p-9 / sqrt(3.0) * sqrt(8.0 * n_layers);
}

/* ---- Streams: tokens and what the reference says of each position ---------------------------------------------- */

typedef struct {
    uint32_t n;
    int32_t *tokens;
    float *want; /* [n, vocab] */
} stream;

typedef struct {
    const shape_case *shape;
    fixture_model *model;
    stream streams[N_STREAMS];
    double limit;
} bench;

static bench *bench_new(const shape_case *c)
{
    static const uint32_t lengths[2][N_STREAMS] = {{600, 330, 90}, {300, 70, 30}};
    const qk_shape shape = {
        .n_layers = c->n_layers,
        .n_heads = c->n_heads,
        .n_kv_heads = c->n_kv_heads,
        .head_dim = c->head_dim,
        .hidden = c->hidden,
        .ffn = c->ffn,
        .vocab = c->vocab,
        .max_positions = 4096,
        .rms_eps = 1e-6f,
        .rope_factor = 1,
    };
    bench *b = calloc(1, sizeof(*b));
    tap_require(b != NULL);
    b->shape = c;
    b->limit = tolerance(c->n_layers);
    b->model = fixture_model_new(&shape, QK_BF16, 100 + c->n_heads + c->head_dim);
    fixture_model_sharpen(b->model);
    if (c->tied)
        b->model->desc.lm_head = b->model->desc.embed;

    rig r;
    uint32_t pages[N_PAGES];
    uint64_t seed = 7 + c->hidden;
    for (uint32_t i = 0; i < N_PAGES; i++)
        pages[i] = i;
    rig_open(&r, b->model,
        &(rig_options){.isa = "reference", .kv_dtype = QK_BF16, .rows_max = ROWS_MAX, .n_pages = N_PAGES});
    for (uint32_t s = 0; s < N_STREAMS; s++) {
        stream *st = &b->streams[s];
        st->n = lengths[subject.small][s];
        st->tokens = malloc(st->n * sizeof(*st->tokens));
        st->want = malloc((size_t)st->n * c->vocab * sizeof(*st->want));
        tap_require(st->tokens != NULL && st->want != NULL);
        for (uint32_t i = 0; i < st->n; i++)
            st->tokens[i] = (int32_t)((fixture_random(&seed) + 1) / 2 * c->vocab);
        tap_require(rig_run(&r, &(rig_rows){st->tokens, st->n, 0, pages}, 1, st->want) == QK_OK);
    }
    rig_close(&r);
    return b;
}

static void bench_free(bench *b)
{
    for (uint32_t s = 0; s < N_STREAMS; s++) {
        free(b->streams[s].tokens);
        free(b->streams[s].want);
    }
    fixture_model_free(b->model);
    free(b);
}

/* ---- Sequences over the subject's pool --------------------------------------------------------------------------- */

typedef struct {
    const stream *stream;
    uint32_t at; /* tokens in the cache */
    uint32_t pages[64];
} sequence;

typedef struct {
    const bench *b;
    rig r;
    uint32_t free_pages[N_PAGES]; /* in random order */
    uint32_t n_free;
    double worst; /* relative error of any row since the last report */
    uint32_t n_rows;
} runner;

static void shuffle_pages(runner *t, uint64_t seed)
{
    t->n_free = N_PAGES;
    for (uint32_t i = 0; i < N_PAGES; i++)
        t->free_pages[i] = i;
    for (uint32_t i = N_PAGES - 1; i > 0; i--) {
        const uint32_t j = (uint32_t)((fixture_random(&seed) + 1) / 2 * (i + 1));
        const uint32_t page = t->free_pages[i];
        t->free_pages[i] = t->free_pages[j];
        t->free_pages[j] = page;
    }
}

static rig_options subject_options(uint32_t rows_max, uint32_t seqs_max)
{
    return (rig_options){.backend = subject.backend,
        .isa = subject.isa,
        .kv_dtype = QK_BF16,
        .rows_max = rows_max,
        .n_pages = N_PAGES,
        .slots_max = 8,
        .masks_max = 64,
        .biases_max = 64 * BIASES_A_ROW,
        .seqs_max = seqs_max};
}

static void runner_open(runner *t, const bench *b, uint32_t rows_max)
{
    const rig_options options = subject_options(rows_max, rows_max < SEQS_MAX ? rows_max : SEQS_MAX);
    memset(t, 0, sizeof(*t));
    t->b = b;
    rig_open(&t->r, b->model, &options);
    shuffle_pages(t, 11);
}

static void runner_close(runner *t)
{
    rig_close(&t->r);
}

static void sequence_begin(runner *t, sequence *q, uint32_t s)
{
    *q = (sequence){.stream = &t->b->streams[s]};
    const uint32_t n = (q->stream->n + QK_PAGE_TOKENS - 1) / QK_PAGE_TOKENS;
    tap_require(n <= 64 && n <= t->n_free);
    for (uint32_t p = 0; p < n; p++)
        q->pages[p] = t->free_pages[--t->n_free];
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

/* One step: @n_rows[i] new tokens of @q[i], all of them compared. Returns the worst error; advances the sequences. */
static double run_step(runner *t, sequence *const *q, const uint32_t *n_rows, uint32_t n)
{
    const uint32_t vocab = t->b->shape->vocab;
    rig_rows rows[SEQS_MAX] = {{0}};
    double worst = 0;
    for (uint32_t i = 0; i < n; i++) {
        tap_require(q[i]->at + n_rows[i] <= q[i]->stream->n);
        rows[i] = (rig_rows){q[i]->stream->tokens + q[i]->at, n_rows[i], q[i]->at, q[i]->pages};
    }
    tap_require(rig_run(&t->r, rows, n, NULL) == QK_OK);
    const float *got = qk_step_result(t->r.steps[0])->logits;
    for (uint32_t i = 0; i < n; i++) {
        for (uint32_t k = 0; k < n_rows[i]; k++, got += vocab) {
            const double error = row_error(q[i]->stream->want + (size_t)(q[i]->at + k) * vocab, got, vocab);
            worst = error > worst ? error : worst;
        }
        q[i]->at += n_rows[i];
        t->n_rows += n_rows[i];
    }
    t->worst = worst > t->worst ? worst : t->worst;
    return worst;
}

static void run_one(runner *t, sequence *q, uint32_t n_rows)
{
    run_step(t, &q, &n_rows, 1);
}

static void report(runner *t, const char *what)
{
    tap_ok(t->worst < t->b->limit, "%s, %s: %s: worst of %u rows %.2g, below %.2g", subject.name,
        t->b->shape->name, what, t->n_rows, t->worst, t->b->limit);
    t->worst = 0;
    t->n_rows = 0;
}

/* ---- 1. Numbers ---------------------------------------------------------------------------------------------------- */

static void test_chunks(runner *t)
{
    static const uint32_t chunks[] = {1, 7, 16, 2, 40, 64, 65, 33, 3, 129, 180};
    sequence q;
    shuffle_pages(t, 1);
    sequence_begin(t, &q, 0);
    run_one(t, &q, q.stream->n);
    report(t, "a prompt at once");
    sequence_begin(t, &q, 0);
    for (uint32_t i = 0; i < sizeof(chunks) / sizeof(chunks[0]) && q.at + chunks[i] <= q.stream->n; i++)
        run_one(t, &q, chunks[i]);
    report(t, "in chunks");
    sequence_begin(t, &q, 0);
    /* Up to and over the ends of pages and of the spans at 256 and 512. */
    run_one(t, &q, 1);
    while (q.at < 40)
        run_one(t, &q, 1);
    run_one(t, &q, 205);
    while (q.at < 275)
        run_one(t, &q, 1);
    if (q.stream->n > 540) {
        run_one(t, &q, 230);
        while (q.at < 540)
            run_one(t, &q, 1);
    }
    report(t, "token by token");
}

static void test_ragged(runner *t)
{
    sequence q[6], *all[6];
    uint32_t n[6];
    shuffle_pages(t, 2);
    for (uint32_t i = 0; i < 6; i++) {
        static const uint32_t begin[6] = {3, 66, 17, 250, 40, 1};
        sequence_begin(t, &q[i], i % N_STREAMS);
        all[i] = &q[i];
        n[i] = begin[i] < q[i].stream->n / 2 ? begin[i] : q[i].stream->n / 2;
    }
    run_step(t, all, n, 6);
    report(t, "six prompts in one step");
    for (uint32_t k = 0; k < (subject.small ? 3u : 10u); k++)
        run_step(t, all, (uint32_t[]){1, 1, 1, 1, 1, 1}, 6);
    report(t, "six replies in one step");
    run_step(t, all, (uint32_t[]){1, 1, 1, 40, 1, 1}, 6);
    run_step(t, all, (uint32_t[]){1, 1, 90 < q[2].stream->n - q[2].at ? 90 : 1, 1, 1, 2}, 6);
    run_step(t, all + 1, (uint32_t[]){1, 1, 130 < q[3].stream->n - q[3].at ? 130 : 5, 1}, 4);
    report(t, "prompts and replies in one step");
}

static void test_many(runner *t)
{
    static sequence q[SEQS_MAX];
    static const uint32_t batches[] = {70, 70, 64, 65, 33, 32, 16, 8, 7, 2};
    sequence *all[SEQS_MAX];
    uint32_t n[SEQS_MAX];
    shuffle_pages(t, 3);
    for (uint32_t i = 0; i < 70; i++) {
        /* Short ones: their pages come from what a whole stream would take. */
        q[i] = (sequence){.stream = &t->b->streams[i % N_STREAMS]};
        for (uint32_t p = 0; p < 2; p++)
            q[i].pages[p] = t->free_pages[--t->n_free];
        all[i] = &q[i];
        n[i] = 1 + i % 8;
    }
    run_step(t, all, n, 70);
    for (uint32_t i = 0; i < 70; i++)
        n[i] = 1;
    for (uint32_t k = 0; k < sizeof(batches) / sizeof(batches[0]); k++)
        run_step(t, all, n, batches[k]);
    report(t, "up to 70 short sequences in one step");
}

/* ---- 2. Mutations --------------------------------------------------------------------------------------------------- */

typedef enum {
    FOREIGN_PAGE,
    SWAPPED_TAIL,
    ZEROED_PAGE,
    ZEROED_TAIL,
    COPIED_PAGE,
    POISONED_PAGE,
    N_MUTATIONS
} mutation;

static void apply(runner *t, mutation m, sequence *a, const sequence *b)
{
    rig *r = &t->r;
    const uint64_t bytes = r->params.layout.page_bytes;
    const uint32_t tail = a->at / QK_PAGE_TOKENS, other = 3, page = a->pages[m == ZEROED_TAIL ? tail : other];
    qk_status status = QK_OK;
    switch (m) {
    case FOREIGN_PAGE:
        a->pages[other] = b->pages[other];
        break;
    case SWAPPED_TAIL:
        a->pages[other] = a->pages[tail];
        a->pages[tail] = page;
        break;
    case ZEROED_PAGE:
    case ZEROED_TAIL:
        status = qk_fill_submit(r->backend, QK_STREAM_COMPUTE, r->pages, page * bytes, bytes, 0);
        break;
    case POISONED_PAGE:
        status = qk_fill_submit(r->backend, QK_STREAM_COMPUTE, r->pages, page * bytes, bytes, 0x7fc07fc0);
        break;
    case COPIED_PAGE:
        status = qk_copy_submit(r->backend, QK_STREAM_COMPUTE,
            &(qk_copy){r->pages, page * bytes, r->pages, b->pages[2] * bytes, bytes}, 1);
        break;
    case N_MUTATIONS:
        break;
    }
    tap_require(status == QK_OK);
}

/* Prefills two sequences, mutates, and looks at the next @n_rows rows of the first. */
static double mutated_error(runner *t, int m, uint32_t n_rows)
{
    sequence a, b, *pa = &a;
    shuffle_pages(t, 4);
    sequence_begin(t, &a, 0);
    sequence_begin(t, &b, 1);
    run_step(t, (sequence *[]){&a, &b}, (uint32_t[]){subject.small ? 121 : 409, subject.small ? 66 : 200}, 2);
    if (m < N_MUTATIONS)
        apply(t, (mutation)m, &a, &b);
    return run_step(t, &pa, &n_rows, 1);
}

static void test_mutations(runner *t)
{
    static const char *const names[N_MUTATIONS] = {"another sequence's page",
        "the last page swapped with a full one", "a page zeroed", "the last page zeroed",
        "a page copied over another", "a page poisoned"};
    static const uint32_t rows[] = {1, 12, 100};
    const double limit = t->b->limit;
    for (uint32_t k = 0; k < 3; k++) {
        const double clean = mutated_error(t, N_MUTATIONS, rows[k]);
        tap_ok(clean < limit, "%s, %s: %u rows over intact pages: %.2g", subject.name, t->b->shape->name,
            rows[k], clean);
        for (int m = 0; m < N_MUTATIONS; m++) {
            const double error = mutated_error(t, m, rows[k]);
            tap_ok(!(error < limit), "%s, %s: %u rows: %s shows: %.2g", subject.name, t->b->shape->name,
                rows[k], names[m], error);
        }
    }
    t->worst = 0;
    t->n_rows = 0;
}

/* ---- 3. Slots --------------------------------------------------------------------------------------------------------- */

enum { N_DRAWN = 40, N_PROMPT = 50 };
static const qk_sampling warm = {.temperature = 0.9f, .top_p = 0.95f, .top_k = 50, .repetition_penalty = 1};

static void submit(rig *r, uint32_t step)
{
    const qk_status status = qk_step_submit(r->steps[step]);
    if (status != QK_OK)
        tap_note("%s: %s", qk_status_name(status), qk_backend_error(r->backend));
    tap_require(status == QK_OK);
}

/* A step of sequences whose last rows sample into their slots (first_slot + i). */
static void fill_sampling(
    rig *r, uint32_t step, const rig_rows *rows, uint32_t n, uint32_t first_slot, qk_sampling sampling)
{
    rig_fill(r, step, rows, n);
    qk_plan *plan = qk_step_plan(r->steps[step]);
    plan->n_outputs = n;
    for (uint32_t i = 0; i < n; i++) {
        sampling.position = rows[i].start + rows[i].n_rows;
        plan->outputs[i] = (qk_output){.row = plan->seqs[i].row_begin + rows[i].n_rows - 1,
            .flags = QK_OUTPUT_SAMPLE,
            .slot = first_slot == QK_NO_SLOT ? QK_NO_SLOT : first_slot + i,
            .sampling = sampling};
    }
}

static int32_t token_of(rig *r, uint32_t step, uint32_t output)
{
    const qk_status status = qk_step_wait(r->steps[step]);
    if (status != QK_OK)
        tap_note("%s: %s", qk_status_name(status), qk_backend_error(r->backend));
    tap_require(status == QK_OK);
    return qk_step_result(r->steps[step])->outputs[output].token;
}

/* @n sequences of the same prompt's shifted tokens; each reply's tokens to @drawn [n][N_DRAWN]. By the host: each token
 * is read and fed back. Ahead: a step is submitted before the one before it is waited for, and takes its tokens from
 * the slots. */
static void generate(
    runner *t, const sequence *q, uint32_t n, bool ahead, qk_sampling s, int32_t drawn[][N_DRAWN])
{
    rig *r = &t->r;
    rig_rows rows[8] = {{0}};
    int32_t slots[8];
    for (uint32_t i = 0; i < n; i++) {
        slots[i] = ~(int32_t)i;
        rows[i] = (rig_rows){q[i].stream->tokens + i, i % 2 == 0 ? N_PROMPT / 2 : 7, 0, q[i].pages};
    }
    fill_sampling(r, 0, rows, n, 0, s);
    submit(r, 0);
    for (uint32_t k = 0; k < subject.n_drawn; k++) {
        const uint32_t step = ahead ? k % 2 : 0, next = ahead ? (k + 1) % 2 : 0;
        if (!ahead)
            for (uint32_t i = 0; i < n; i++)
                drawn[i][k] = token_of(r, step, i);
        for (uint32_t i = 0; i < n; i++)
            rows[i] =
                (rig_rows){ahead ? &slots[i] : &drawn[i][k], 1, rows[i].start + rows[i].n_rows, q[i].pages};
        if (ahead || k + 1 < subject.n_drawn) {
            fill_sampling(r, next, rows, n, 0, s);
            submit(r, next);
        }
        if (ahead)
            for (uint32_t i = 0; i < n; i++)
                drawn[i][k] = token_of(r, step, i);
    }
    if (ahead)
        token_of(r, subject.n_drawn % 2, 0); /* one step too many: its token is dropped */
}

static void test_slots(runner *t)
{
    int32_t host[5][N_DRAWN] = {{0}}, ahead[5][N_DRAWN] = {{0}}, again[5][N_DRAWN] = {{0}};
    sequence q[5], elsewhere[5];
    shuffle_pages(t, 5);
    for (uint32_t i = 0; i < 5; i++)
        sequence_begin(t, &q[i], i % 2);
    qk_sampling s = warm;
    for (uint32_t n = 1; n <= 5; n += 4) {
        for (int greedy = 0; greedy < 2; greedy++) {
            s.temperature = greedy ? 0 : warm.temperature;
            s.seed = 42;
            const size_t bytes = n * sizeof(host[0]);
            generate(t, q, n, false, s, host);
            generate(t, q, n, true, s, ahead);
            tap_ok(memcmp(host, ahead, bytes) == 0,
                "%s, %s, %u at once%s: tokens fed on the device are the host's", subject.name,
                t->b->shape->name, n, greedy ? ", greedy" : "");
            generate(t, q, n, true, s, again);
            tap_ok(memcmp(ahead, again, bytes) == 0, "and again over the same pages");
            shuffle_pages(t, 6);
            for (uint32_t i = 0; i < 5; i++)
                sequence_begin(t, &elsewhere[i], i % 2);
            generate(t, elsewhere, n, true, s, again);
            tap_ok(memcmp(ahead, again, bytes) == 0, "and over pages elsewhere");
            s.seed = 43;
            generate(t, q, n, true, s, again);
            tap_ok(
                (memcmp(ahead, again, bytes) == 0) == greedy, "another seed: another reply, but for greedy");
        }
    }
}

static void test_invalid_slot(runner *t)
{
    const int32_t unwritten = ~7;
    sequence q;
    float want[1024], got[1024];
    const uint32_t vocab = t->b->shape->vocab;
    tap_require(vocab <= 1024);
    shuffle_pages(t, 7);
    sequence_begin(t, &q, 0);
    rig_rows prompt = {q.stream->tokens, N_PROMPT, 0, q.pages};
    fill_sampling(&t->r, 0, &prompt, 1, 0, warm);
    submit(&t->r, 0);
    const int32_t drawn = token_of(&t->r, 0, 0);
    rig_rows next = {&drawn, 1, N_PROMPT, q.pages}, bad = {&unwritten, 1, N_PROMPT, q.pages};
    tap_require(rig_run(&t->r, &next, 1, want) == QK_OK);

    fill_sampling(&t->r, 0, &bad, 1, 0, warm);
    submit(&t->r, 0);
    const qk_status status = qk_step_wait(t->r.steps[0]);
    tap_ok(
        status == QK_INVALID, "%s: a slot never written: %s", subject.name, qk_backend_error(t->r.backend));
    const int32_t slot = ~0;
    rig_rows by_slot = {&slot, 1, N_PROMPT, q.pages};
    tap_require(rig_run(&t->r, &by_slot, 1, got) == QK_OK);
    tap_ok(
        memcmp(want, got, vocab * sizeof(*want)) == 0, "the step sampled nothing, and the next one is right");
}

/* ---- Sampling against the CPU's sampler ------------------------------------------------------------------------------- */

static qk_sampling random_sampling(uint64_t *seed, bool penalties)
{
    static const float temperatures[] = {0, 0.3f, 0.7f, 1, 1.5f}, top_ps[] = {1, 0.9f, 0.5f, 0.1f, 0};
    static const uint32_t top_ks[] = {0, 1, 20, 50, 5000};
#define PICK(array) array[(uint32_t)((fixture_random(seed) + 1) / 2 * (sizeof(array) / sizeof(array[0])))]
    qk_sampling s = {
        .seed = (uint64_t)((fixture_random(seed) + 1) * 0x1p40),
        .position = (uint64_t)((fixture_random(seed) + 1) * 20000),
        .temperature = PICK(temperatures),
        .top_p = PICK(top_ps),
        .top_k = PICK(top_ks),
        .min_p = fixture_random(seed) > 0 ? 0 : 0.05f,
        .repetition_penalty = penalties ? 1.3f : 1,
        .presence_penalty = penalties ? 0.7f : 0,
        .frequency_penalty = penalties ? 0.3f : 0,
    };
#undef PICK
    return s;
}

typedef struct {
    uint32_t n_draws, n_other, n_bad, n_bad_tops;
} sampled;

static bool same_tops(
    const qk_top *got, uint32_t n, const float *logits, uint32_t vocab, const qk_sample_scratch *scratch)
{
    qk_top want[QK_TOP_MAX];
    bool same = true;
    qk_sample_top(logits, vocab, n, scratch, want);
    for (uint32_t i = 0; i < n; i++)
        same = same && got[i].id == want[i].id && fabsf(got[i].logprob - want[i].logprob) <= 1e-3f;
    return same;
}

static uint32_t random_word(uint64_t *seed)
{
    return (uint32_t)((fixture_random(seed) + 1) * 0x1p31);
}

/* Gives output @i of the plan a mask, a bias list and alternatives, each in some of the outputs. */
static void add_extras(qk_plan *plan, uint32_t i, uint32_t vocab, uint64_t *seed)
{
    qk_output *o = &plan->outputs[i];
    const uint32_t words = qk_mask_words(vocab);
    o->n_top = i % 3 == 0 ? 0 : i % (QK_TOP_MAX + 1);
    if (i % 4 == 1 || i % 4 == 2) {
        uint32_t *mask = plan->masks + (size_t)plan->n_masks * words;
        for (uint32_t k = 0; k < words; k++)
            mask[k] = i % 8 < 4 ? random_word(seed) : 0;
        mask[words / 2] |= 1;
        o->flags |= QK_OUTPUT_MASK;
        o->mask = plan->n_masks++;
    }
    if (i % 4 >= 2) {
        o->bias_begin = plan->n_biases;
        for (uint32_t id = i, n = 0; id < vocab && n < BIASES_A_ROW;
             n++, id += 1 + random_word(seed) % (vocab / 64 + 1))
            plan->biases[plan->n_biases++] = (qk_bias){id, (float)(random_word(seed) % 200) / 10 - 10};
        o->n_bias = plan->n_biases - o->bias_begin;
    }
}

static void compare_sampled(const qk_plan *plan, const qk_result *result, uint32_t vocab, qk_seen *history,
    const qk_sample_scratch *scratch, sampled *count)
{
    for (uint32_t i = 0; i < plan->n_outputs; i++) {
        const qk_output *o = &plan->outputs[i];
        const float *logits = result->logits + (size_t)i * vocab;
        const qk_output_result *got = &result->outputs[i];
        qk_seen *seen = o->slot != QK_NO_SLOT ? history + (size_t)o->slot * vocab : NULL;
        qk_output_result want;
        qk_sample_extras extras = {.history = seen, .n_bias = o->n_bias};
        if (o->n_bias > 0)
            extras.bias = plan->biases + o->bias_begin;
        if (o->flags & QK_OUTPUT_MASK)
            extras.mask = plan->masks + (size_t)o->mask * qk_mask_words(vocab);
        qk_sample(logits, vocab, &extras, &o->sampling, scratch, &want);
        count->n_bad_tops +=
            !same_tops(result->tops + (size_t)i * QK_TOP_MAX, o->n_top, logits, vocab, scratch);
        count->n_draws++;
        if (got->token < 0 || (uint32_t)got->token >= vocab || got->flags != want.flags) {
            count->n_bad++;
            continue;
        }
        if (got->token != want.token) {
            count->n_other++;
            tap_note("temperature %g, top_p %g, top_k %u, min_p %g: %d, the CPU draws %d",
                (double)o->sampling.temperature, (double)o->sampling.top_p, o->sampling.top_k,
                (double)o->sampling.min_p, got->token, want.token);
        } else if (fabsf(got->logprob - want.logprob) > 1e-3f) {
            count->n_bad++;
        }
        count->n_bad += got->logit != logits[got->token];
        if (seen != NULL)
            seen[got->token] = qk_seen_add(seen[got->token], true);
    }
}

static void test_sampling(runner *t)
{
    const uint32_t vocab = t->b->shape->vocab, n_rows = 64, n_steps = subject.small ? 3 : 40;
    qk_seen *history = calloc((size_t)8 * vocab, sizeof(*history));
    qk_sample_scratch scratch = {
        malloc(vocab * sizeof(float)), malloc(vocab * sizeof(float)), malloc(vocab * sizeof(uint32_t))};
    uint64_t seed = 3;
    sampled count = {0};
    sequence q;
    tap_require(history != NULL && scratch.z != NULL && scratch.weight != NULL && scratch.id != NULL);
    shuffle_pages(t, 8);
    sequence_begin(t, &q, 0);
    for (uint32_t slot = 0; slot < 8; slot++) {
        tap_require(qk_context_set_history(t->r.context, slot, q.stream->tokens, 30, 15) == QK_OK);
        for (uint32_t i = 0; i < 30; i++) {
            qk_seen *seen = &history[slot * vocab + (uint32_t)q.stream->tokens[i]];
            *seen = qk_seen_add(*seen, i >= 15);
        }
    }
    for (uint32_t k = 0; k < n_steps; k++) {
        rig_rows rows = {q.stream->tokens + k, n_rows, 0, q.pages};
        rig_fill(&t->r, k % 2, &rows, 1);
        qk_plan *plan = qk_step_plan(t->r.steps[k % 2]);
        for (uint32_t i = 0; i < n_rows; i++) {
            plan->outputs[i].flags = QK_OUTPUT_SAMPLE | QK_OUTPUT_LOGITS;
            plan->outputs[i].slot = i % 8 == 0 ? i / 8 : QK_NO_SLOT;
            plan->outputs[i].sampling = random_sampling(&seed, i % 16 == 0);
            add_extras(plan, i, vocab, &seed);
        }
        submit(&t->r, k % 2);
        token_of(&t->r, k % 2, 0);
        compare_sampled(plan, qk_step_result(t->r.steps[k % 2]), vocab, history, &scratch, &count);
    }
    tap_ok(count.n_bad == 0, "%s: %u draws: ids, flags, logits and log-probabilities are right in all but %u",
        subject.name, count.n_draws, count.n_bad);
    tap_ok(count.n_bad_tops == 0, "the most probable ids are the CPU's in all but %u", count.n_bad_tops);
    /* A draw within rounding of a boundary may fall on the other side of it; the sampler's own test looks at each. */
    tap_ok(count.n_other * 1000 <= count.n_draws,
        "%u of them differ from the CPU's draw from the same logits", count.n_other);
    for (uint32_t slot = 0; slot < 8; slot++)
        tap_require(qk_context_set_history(t->r.context, slot, NULL, 0, 0) == QK_OK);
    free(history);
    free(scratch.z);
    free(scratch.weight);
    free(scratch.id);
}

static void test_history(runner *t)
{
    const uint32_t vocab = t->b->shape->vocab;
    bool seen[1024] = {false}, repeated = false;
    qk_sampling s = {.top_p = 1, .repetition_penalty = 1, .presence_penalty = 1e6f};
    int32_t slot = ~1, drawn;
    sequence q;
    tap_require(vocab <= 1024);
    shuffle_pages(t, 9);
    sequence_begin(t, &q, 0);
    tap_require(qk_context_set_history(t->r.context, 1, q.stream->tokens, N_PROMPT, N_PROMPT) == QK_OK);
    rig_rows rows = {q.stream->tokens, N_PROMPT, 0, q.pages};
    fill_sampling(&t->r, 0, &rows, 1, 1, s);
    submit(&t->r, 0);
    for (uint32_t k = 1; k <= subject.n_drawn; k++) {
        rows = (rig_rows){&slot, 1, N_PROMPT + k - 1, q.pages};
        fill_sampling(&t->r, k % 2, &rows, 1, 1, s);
        submit(&t->r, k % 2);
        drawn = token_of(&t->r, (k - 1) % 2, 0);
        repeated = repeated || seen[drawn];
        seen[drawn] = true;
    }
    token_of(&t->r, subject.n_drawn % 2, 0);
    tap_ok(!repeated, "%s: sampling into a slot adds to its history: %u tokens, none twice", subject.name,
        subject.n_drawn);
    tap_require(qk_context_set_history(t->r.context, 1, NULL, 0, 0) == QK_OK);
}

/* ---- Cancelling --------------------------------------------------------------------------------------------------------- */

static void test_cancel(runner *t)
{
    const uint32_t vocab = t->b->shape->vocab;
    float want[1024], got[1024];
    const int32_t slot = ~0;
    uint32_t n_cancelled = 0, n_done = 0, n_wrong = 0;
    sequence q, large;
    qk_sampling s = {.top_p = 1, .repetition_penalty = 1, .presence_penalty = 1e6f};
    tap_require(vocab <= 1024);
    /* On a quick device the steps would be over before the wish to cancel comes: more and more fills go before them. */
    const uint64_t blocker_bytes = 16u << 20;
    uint32_t n_fills = 0;
    qk_buffer *blocker;
    tap_require(qk_buffer_new(t->r.backend, QK_MEMORY_DEVICE, blocker_bytes, &blocker) == QK_OK);
    shuffle_pages(t, 10);
    sequence_begin(t, &q, 1);
    sequence_begin(t, &large, 0);
    rig_rows prompt = {q.stream->tokens, N_PROMPT, 0, q.pages};
    rig_rows long_prompt = {large.stream->tokens, large.stream->n, 0, large.pages};
    for (uint32_t k = 0; k < 40 && (n_cancelled < 8 || k < 12); k++) {
        tap_require(qk_context_set_history(t->r.context, 0, NULL, 0, 0) == QK_OK);
        fill_sampling(&t->r, 0, &prompt, 1, 0, s);
        submit(&t->r, 0);
        const int32_t drawn = token_of(&t->r, 0, 0);
        /* A long step and one behind it, both given up at some point of their way. */
        rig_rows behind = {&slot, 1, N_PROMPT, q.pages};
        fill_sampling(&t->r, 0, &long_prompt, 1, 0, s);
        fill_sampling(&t->r, 1, &behind, 1, 0, s);
        if (k % 6 == 5 && n_cancelled == 0)
            n_fills = n_fills > 0 ? 4 * n_fills : 8;
        for (uint32_t i = 0; i < n_fills; i++)
            tap_require(
                qk_fill_submit(t->r.backend, QK_STREAM_COMPUTE, blocker, 0, blocker_bytes, i) == QK_OK);
        submit(&t->r, 0);
        submit(&t->r, 1);
        usleep(k % 4 * 20);
        qk_step_cancel(t->r.steps[0]);
        qk_step_cancel(t->r.steps[1]);
        const qk_status first = qk_step_wait(t->r.steps[0]), second = qk_step_wait(t->r.steps[1]);
        n_cancelled += (first == QK_CANCELLED) + (second == QK_CANCELLED);
        n_done += (first == QK_OK) + (second == QK_OK);
        if (first != QK_CANCELLED || second != QK_CANCELLED)
            continue;
        /* The slot still holds the prompt's token, and the history that token alone. */
        rig_rows by_slot = {&slot, 1, N_PROMPT, q.pages}, by_token = {&drawn, 1, N_PROMPT, q.pages};
        tap_require(rig_run(&t->r, &by_slot, 1, got) == QK_OK && rig_run(&t->r, &by_token, 1, want) == QK_OK);
        n_wrong += memcmp(want, got, vocab * sizeof(*want)) != 0;
        want[drawn] = -INFINITY;
        int32_t best = 0;
        for (uint32_t i = 0; i < vocab; i++)
            best = want[i] > want[best] ? (int32_t)i : best;
        fill_sampling(&t->r, 0, &by_token, 1, 0, s);
        submit(&t->r, 0);
        n_wrong += token_of(&t->r, 0, 0) != best;
    }
    tap_ok(n_cancelled > 0, "%s: %u steps were cancelled, %u were done before", subject.name, n_cancelled,
        n_done);
    qk_buffer_free(blocker);
    tap_ok(n_wrong == 0, "a cancelled step leaves slot and history alone: %u wrong", n_wrong);
    qk_step_cancel(t->r.steps[0]);
    large.at = 0;
    t->worst = 0;
    run_one(t, &large, large.stream->n);
    report(t, "after cancelling a finished step, a prompt");
    tap_require(qk_context_set_history(t->r.context, 0, NULL, 0, 0) == QK_OK);
}

/* ---- Outputs, refusals, memory
 * -------------------------------------------------------------------------------------------- */

static void test_outputs(runner *t)
{
    const uint32_t vocab = t->b->shape->vocab;
    const uint64_t bytes = t->r.params.layout.page_bytes;
    sequence q, other;
    shuffle_pages(t, 12);
    sequence_begin(t, &q, 0);
    rig_rows rows = {q.stream->tokens, 90, 0, q.pages};
    rig_fill(&t->r, 0, &rows, 1);
    qk_step_plan(t->r.steps[0])->n_outputs = 0;
    submit(&t->r, 0);
    tap_ok(qk_step_wait(t->r.steps[0]) == QK_OK, "%s: a step without outputs", subject.name);
    q.at = 90;
    run_one(t, &q, 3);
    report(t, "the rows after it");

    /* Some rows' logits only, in the order of the outputs. */
    static const uint32_t picked[] = {0, 7, 8, 88};
    rig_fill(&t->r, 1, &rows, 1);
    qk_plan *plan = qk_step_plan(t->r.steps[1]);
    plan->n_outputs = 4;
    for (uint32_t i = 0; i < 4; i++)
        plan->outputs[i] = (qk_output){.row = picked[i], .flags = QK_OUTPUT_LOGITS, .slot = QK_NO_SLOT};
    submit(&t->r, 1);
    tap_ok(token_of(&t->r, 1, 2) == -1, "nothing sampled: token -1");
    for (uint32_t i = 0; i < 4; i++) {
        const double error = row_error(q.stream->want + (size_t)picked[i] * vocab,
            qk_step_result(t->r.steps[1])->logits + (size_t)i * vocab, vocab);
        t->worst = error > t->worst ? error : t->worst;
        t->n_rows++;
    }
    report(t, "logits of picked rows");

    /* NaN in one sequence's page is said of that sequence, and of no other, and leaves with it. */
    sequence_begin(t, &other, 2);
    other.at = 0;
    run_one(t, &other, 20);
    tap_require(qk_fill_submit(t->r.backend, QK_STREAM_COMPUTE, t->r.pages, q.pages[1] * bytes, bytes,
                    0x7fc07fc0) == QK_OK);
    rig_rows two[2] = {
        {q.stream->tokens + 93, 1, 93, q.pages}, {other.stream->tokens + 20, 1, 20, other.pages}};
    fill_sampling(&t->r, 0, two, 2, QK_NO_SLOT, warm);
    submit(&t->r, 0);
    token_of(&t->r, 0, 0);
    const qk_output_result *o = qk_step_result(t->r.steps[0])->outputs;
    tap_ok((o[0].flags & QK_RESULT_NOT_FINITE) && o[0].token >= 0 && (uint32_t)o[0].token < vocab,
        "NaN logits are flagged");
    tap_ok(o[1].flags == 0, "and not those of the sequence beside");
    q.at = 0;
    t->worst = 0;
    run_one(t, &q, 93);
    report(t, "after that, a prompt");
}

static void test_refusals(runner *t)
{
    rig *r = &t->r;
    qk_context_params params = r->params;
    qk_context *context = NULL;
    qk_backend *none = NULL;
    char error[256] = "";
    sequence q;
    if (!subject.self) {
        qk_kv_layout_page_major(&t->b->model->desc.shape, QK_F32, &params.layout);
        qk_status status = qk_context_new(r->model, &params, &context);
        tap_ok(status == QK_UNSUPPORTED && context == NULL, "%s: float32 pages: %s", subject.name,
            qk_backend_error(r->backend));
        status = qk_backend_open("cuda", &(qk_backend_options){.device = "99"}, &none, error, sizeof(error));
        tap_ok(status != QK_OK && none == NULL && error[0] != '\0', "device 99: %s", error);
        fixture_model *m = fixture_model_new(&fixture_small, QK_BF16, 1);
        qk_model *model = NULL;
        status = qk_model_load(r->backend, &m->desc, NULL, NULL, &model);
        tap_ok(status == QK_UNSUPPORTED && model == NULL, "head_dim 16: %s", qk_backend_error(r->backend));
        fixture_model_free(m);
    }
    error[0] = '\0';
    qk_backend_options options = {.isa = "abacus"};
    tap_ok(qk_backend_open(subject.backend, &options, &none, error, sizeof(error)) == QK_UNSUPPORTED &&
               error[0] != '\0',
        "a path of another name: %s", error);
    shuffle_pages(t, 13);
    sequence_begin(t, &q, 0);
    rig_rows rows = {q.stream->tokens, 5, 0, q.pages};
    rig_fill(r, 0, &rows, 1);
    qk_step_plan(r->steps[0])->seqs[0].n_pages++;
    const qk_status wrong = qk_step_submit(r->steps[0]);
    tap_ok(wrong == QK_INVALID, "a wrong plan: %s", qk_backend_error(r->backend));
    run_one(t, &q, 70);
    report(t, "after the refusals, a prompt");
}

/* Nothing is allocated on a step's way: the device's free memory before and after many steps of all sizes. */
static void test_memory(runner *t)
{
    qk_backend_info before, after;
    uint64_t seed = 4;
    sequence q;
    if (subject.self || subject.small) {
        tap_skip("device memory: %s", subject.self ? "the CPU backend stands in for it"
                                                   : "sanitizers and other programs take of it meanwhile");
        return;
    }
    shuffle_pages(t, 14);
    sequence_begin(t, &q, 0);
    const uint32_t n_steps = subject.small ? 30 : 200;
    for (uint32_t k = 0; k < n_steps + 2; k++) {
        const uint32_t n =
            k % 3 == 0 ? 1 : 1 + (uint32_t)((fixture_random(&seed) + 1) / 2 * (q.stream->n - 1));
        rig_rows rows = {q.stream->tokens, n, 0, q.pages};
        if (k >= 2)
            tap_require(qk_step_wait(t->r.steps[k % 2]) == QK_OK);
        if (k == 2)
            qk_backend_get_info(t->r.backend, &before);
        fill_sampling(&t->r, k % 2, &rows, 1, 0, warm);
        submit(&t->r, k % 2);
    }
    token_of(&t->r, 0, 0);
    token_of(&t->r, 1, 0);
    qk_backend_get_info(t->r.backend, &after);
    /* Where the driver tells the process's own share, others may come and go beside it. */
    const bool steady = before.memory_process > 0 ? before.memory_process == after.memory_process
                                                  : before.memory_free == after.memory_free;
    tap_ok(steady,
        "%s: %u steps: free device memory went from %llu to %llu bytes, the process's share from %llu to "
        "%llu",
        subject.name, n_steps, (unsigned long long)before.memory_free, (unsigned long long)after.memory_free,
        (unsigned long long)before.memory_process, (unsigned long long)after.memory_process);
}

/* The same request in two fresh contexts, over differently placed pages: the same bits. */
static void test_determinism(const bench *b)
{
    const uint32_t vocab = b->shape->vocab, n = 150 < b->streams[0].n ? 150 : b->streams[0].n, n_decoded = 20;
    const size_t bytes = (size_t)(n + n_decoded) * vocab * sizeof(float);
    float *logits[2];
    for (uint32_t k = 0; k < 2; k++) {
        runner t;
        sequence q;
        runner_open(&t, b, ROWS_MAX);
        shuffle_pages(&t, 20 + k);
        sequence_begin(&t, &q, 0);
        logits[k] = malloc(bytes);
        tap_require(logits[k] != NULL);
        rig_rows rows = {q.stream->tokens, n, 0, q.pages};
        tap_require(rig_run(&t.r, &rows, 1, logits[k]) == QK_OK);
        for (uint32_t i = 0; i < n_decoded; i++) {
            rows = (rig_rows){q.stream->tokens + n + i, 1, n + i, q.pages};
            tap_require(rig_run(&t.r, &rows, 1, logits[k] + (size_t)(n + i) * vocab) == QK_OK);
        }
        runner_close(&t);
    }
    tap_ok(memcmp(logits[0], logits[1], bytes) == 0, "%s, %s: the same request gives the same bits",
        subject.name, b->shape->name);
    free(logits[0]);
    free(logits[1]);
}

/* ---- All of it
 * -------------------------------------------------------------------------------------------------------------- */

static void test_subject(bench *const *benches, uint32_t n)
{
    for (uint32_t i = 0; i < n; i++) {
        runner t;
        runner_open(&t, benches[i], ROWS_MAX);
        test_chunks(&t);
        test_ragged(&t);
        test_many(&t);
        test_mutations(&t);
        if (i == 0) {
            test_slots(&t);
            test_invalid_slot(&t);
            test_sampling(&t);
            test_history(&t);
            test_cancel(&t);
            test_outputs(&t);
            test_refusals(&t);
            test_memory(&t);
        }
        runner_close(&t);
        if (i == 0) {
            /* A step as large as its context. */
            const uint32_t rows_max = benches[i]->streams[0].n;
            sequence q;
            runner_open(&t, benches[i], rows_max);
            sequence_begin(&t, &q, 0);
            run_one(&t, &q, rows_max);
            report(&t, "as many rows as there may be");
            runner_close(&t);
        }
        if (i < 2)
            test_determinism(benches[i]);
    }
}

int main(int argc, char **argv)
{
    const char *wanted = NULL;
    for (int i = 1; i < argc; i++) {
        if (strcmp(argv[i], "--small") == 0)
            subject.small = true, subject.n_drawn = 10;
        else if (strcmp(argv[i], "--self") == 0)
            subject.self = true;
        else if (strcmp(argv[i], "--path") == 0 && i + 1 < argc)
            wanted = argv[++i];
        else {
            fprintf(stderr, "usage: test-gpu-step [--small] [--path portable|hopper] [--self]\n");
            return 2;
        }
    }
    char error[256] = "";
    qk_backend *backend = NULL;
    if (!subject.self && qk_backend_open("cuda", NULL, &backend, error, sizeof(error)) != QK_OK) {
        printf("1..0 # SKIP %s\n", error);
        return 0;
    }
    qk_backend_free(backend);

    bench *benches[sizeof(cases) / sizeof(cases[0])];
    const uint32_t n = subject.small ? 1 : subject.self ? 3 : sizeof(cases) / sizeof(cases[0]);
    for (uint32_t i = 0; i < n; i++)
        benches[i] = bench_new(&cases[i]);
    for (int p = 0; p < GPU_PATHS; p++) {
        if (!gpu_path_begin(p, wanted, subject.self, &subject.backend, &subject.isa, &subject.name))
            continue;
        test_subject(benches, n);
    }
    for (uint32_t i = 0; i < n; i++)
        bench_free(benches[i]);
    return tap_done();
}
