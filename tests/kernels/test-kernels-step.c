/* test-kernels-step.c: a step's numbers against the float64 pass, and its promises: tokens fed on the device, order,
 * cancelling, penalty history, sizes. */
#include "kernels/cpu/philox.h"
#include "kernels/cpu/qk-cpu-ops.h"
#include "tests/kernels/fixture.h"
#include "tests/kernels/tap.h"
#include <math.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#define N_TOKENS 540u
#define N_PAGES  64u

static int32_t tokens[N_TOKENS];
static uint32_t in_order[N_PAGES];

static void make_tokens(uint32_t vocab)
{
    uint64_t seed = 5;
    for (uint32_t i = 0; i < N_TOKENS; i++)
        tokens[i] = (int32_t)((fixture_random(&seed) + 1) / 2 * vocab);
    for (uint32_t i = 0; i < N_PAGES; i++)
        in_order[i] = i;
}

/* The largest relative error (norm of the difference over norm) of any position. */
static double worst_error(const double *want, const float *got, uint32_t n, uint32_t vocab)
{
    double worst = 0;
    for (uint32_t t = 0; t < n; t++) {
        double diff = 0, size = 0;
        for (uint32_t i = 0; i < vocab; i++) {
            double w = want[(size_t)t * vocab + i], g = (double)got[(size_t)t * vocab + i];
            diff += (w - g) * (w - g);
            size += w * w;
        }
        double error = sqrt(diff / size);
        worst = error > worst || isnan(error) ? error : worst;
    }
    return worst;
}

static void test_numbers(const qk_shape *shape, qk_dtype weights)
{
    static const char *const isas[] = {"reference", "avx2", "avx512"};
    static const struct {
        const char *name;
        qk_dtype dtype;
        double tolerance;
    } pages[] = {{"f32", QK_F32, 1e-5}, {"bf16", QK_BF16, 1e-2}, {"int8", QK_I8, 4e-2}};
    const uint32_t vocab = shape->vocab;
    fixture_model *m = fixture_model_new(shape, weights, 21);
    make_tokens(vocab);
    double *want = malloc((size_t)N_TOKENS * vocab * sizeof(*want));
    double *bf16 = malloc((size_t)N_TOKENS * vocab * sizeof(*bf16));
    float *got = malloc((size_t)N_TOKENS * vocab * sizeof(*got));
    tap_require(want != NULL && bf16 != NULL && got != NULL);
    fixture_forward(m, tokens, N_TOKENS, want);
    for (size_t i = 0; i < sizeof(isas) / sizeof(isas[0]); i++) {
        if (qk_cpu_ops_get(isas[i]) == NULL) {
            tap_skip("%s is not on this machine or not in this build", isas[i]);
            continue;
        }
        for (size_t p = 0; p < sizeof(pages) / sizeof(pages[0]); p++) {
            rig r;
            rig_open(&r, m,
                &(rig_options){.n_threads = 2,
                    .isa = isas[i],
                    .kv_dtype = pages[p].dtype,
                    .rows_max = N_TOKENS,
                    .n_pages = N_PAGES});
            rig_rows first = {tokens, 300, 0, in_order}, rest = {tokens + 300, 240, 300, in_order};
            tap_require(rig_run(&r, &first, 1, got) == QK_OK);
            tap_require(rig_run(&r, &rest, 1, got + (size_t)300 * vocab) == QK_OK);
            double error = worst_error(want, got, N_TOKENS, vocab);
            tap_ok(error < pages[p].tolerance, "%s, head_dim %u, %s pages: worst relative error %.2g",
                isas[i], shape->head_dim, pages[p].name, error);
            for (size_t j = 0; j < (size_t)N_TOKENS * vocab && pages[p].dtype == QK_BF16; j++)
                bf16[j] = (double)got[j];
            if (pages[p].dtype == QK_I8) {
                error = worst_error(bf16, got, N_TOKENS, vocab);
                tap_ok(error < pages[p].tolerance, "%s, head_dim %u, int8 against bf16 pages: %.2g", isas[i],
                    shape->head_dim, error);
            }
            rig_close(&r);
        }
    }
    free(want);
    free(bf16);
    free(got);
    fixture_model_free(m);
}

/* ---- Slots ------------------------------------------------------------------------------------------------------ */

static const qk_sampling warm = {.temperature = 1.2f, .top_p = 0.95f, .top_k = 50, .repetition_penalty = 1};

static rig small_rig(const fixture_model *m)
{
    rig r;
    rig_open(&r, m,
        &(rig_options){
            .n_threads = 2, .kv_dtype = QK_BF16, .rows_max = 32, .n_pages = N_PAGES, .slots_max = 4});
    return r;
}

/* A step of one sequence whose last row samples into @slot. */
static void fill_sampling(rig *r, uint32_t step, const rig_rows *rows, uint32_t slot, qk_sampling sampling)
{
    rig_fill(r, step, rows, 1);
    qk_plan *plan = qk_step_plan(r->steps[step]);
    sampling.position = rows->start + rows->n_rows;
    plan->n_outputs = 1;
    plan->outputs[0] =
        (qk_output){.row = plan->n_rows - 1, .flags = QK_OUTPUT_SAMPLE, .slot = slot, .sampling = sampling};
}

static int32_t token_of(rig *r, uint32_t step)
{
    qk_status status = qk_step_wait(r->steps[step]);
    if (status != QK_OK)
        tap_note("%s", qk_backend_error(r->backend));
    tap_require(status == QK_OK);
    return qk_step_result(r->steps[step])->outputs[0].token;
}

enum { N_DRAWN = 40, N_PROMPT = 20 };

/* The host reads each token and feeds it back. */
static void generate_by_host(rig *r, const uint32_t *pages, qk_sampling s, int32_t *drawn)
{
    rig_rows rows = {tokens, N_PROMPT, 0, pages};
    for (uint32_t i = 0; i < N_DRAWN; i++) {
        fill_sampling(r, 0, &rows, QK_NO_SLOT, s);
        tap_require(qk_step_submit(r->steps[0]) == QK_OK);
        drawn[i] = token_of(r, 0);
        rows = (rig_rows){&drawn[i], 1, N_PROMPT + i, pages};
    }
}

/* Each step is submitted before the one before it is waited for, and takes its token from the slot. */
static void generate_ahead(rig *r, const uint32_t *pages, qk_sampling s, int32_t *drawn)
{
    const int32_t from_slot = ~2;
    rig_rows rows = {tokens, N_PROMPT, 0, pages};
    fill_sampling(r, 0, &rows, 2, s);
    tap_require(qk_step_submit(r->steps[0]) == QK_OK);
    for (uint32_t i = 1; i <= N_DRAWN; i++) {
        rows = (rig_rows){&from_slot, 1, N_PROMPT + i - 1, pages};
        fill_sampling(r, i % 2, &rows, 2, s);
        tap_require(qk_step_submit(r->steps[i % 2]) == QK_OK);
        drawn[i - 1] = token_of(r, (i - 1) % 2);
    }
    token_of(r, N_DRAWN % 2); /* one step too many: its token is dropped */
}

static void test_slots(const fixture_model *m)
{
    int32_t host[N_DRAWN], ahead[N_DRAWN], again[N_DRAWN], other[N_DRAWN];
    rig r = small_rig(m);
    qk_sampling s = warm;
    s.seed = 42;
    generate_by_host(&r, in_order, s, host);
    generate_ahead(&r, in_order, s, ahead);
    tap_ok(memcmp(host, ahead, sizeof(host)) == 0, "tokens fed on the device are those fed by the host");
    /* The overshoot's position is rewritten, not trusted. */
    generate_ahead(&r, in_order, s, again);
    tap_ok(memcmp(host, again, sizeof(host)) == 0, "and again over the same pages");
    s.seed = 43;
    generate_ahead(&r, in_order, s, other);
    tap_ok(memcmp(host, other, sizeof(host)) != 0, "another seed gives another reply");
    s.seed = 42;
    s.temperature = 0;
    generate_ahead(&r, in_order, s, other);
    s.seed = 1;
    generate_by_host(&r, in_order, s, again);
    tap_ok(memcmp(other, again, sizeof(other)) == 0, "a greedy reply does not know its seed");

    const int32_t unwritten = ~3;
    rig_rows rows = {&unwritten, 1, 0, in_order};
    rig_fill(&r, 0, &rows, 1);
    tap_require(qk_step_submit(r.steps[0]) == QK_OK);
    tap_ok(qk_step_wait(r.steps[0]) == QK_INVALID, "a slot never written: %s", qk_backend_error(r.backend));
    rig_close(&r);
}

/* Two sequences sample into two slots; one starts late. Each gets what it gets alone. */
static void test_slots_batched(const fixture_model *m)
{
    int32_t alone[2][N_DRAWN], together[2][N_DRAWN];
    uint32_t pages[2][N_PAGES];
    for (uint32_t i = 0; i < N_PAGES / 2; i++) {
        pages[0][i] = i;
        pages[1][i] = N_PAGES / 2 + i;
    }
    rig r = small_rig(m);
    qk_sampling s = warm;
    for (uint32_t q = 0; q < 2; q++) {
        s.seed = 7 + q;
        generate_by_host(&r, pages[q], s, alone[q]);
    }
    const uint32_t delay = 3;
    for (uint32_t i = 0; i < N_DRAWN + delay; i++) {
        const int32_t from_slot[2] = {~0, ~1};
        rig_rows rows[2];
        uint32_t which[2], n = 0;
        for (uint32_t q = 0; q < 2; q++) {
            if (i < q * delay || i - q * delay >= N_DRAWN)
                continue;
            const uint32_t at = i - q * delay;
            which[n] = q;
            rows[n++] = at == 0 ? (rig_rows){tokens, N_PROMPT, 0, pages[q]}
                                : (rig_rows){&from_slot[q], 1, N_PROMPT + at - 1, pages[q]};
        }
        rig_fill(&r, 0, rows, n);
        qk_plan *plan = qk_step_plan(r.steps[0]);
        plan->n_outputs = n;
        for (uint32_t k = 0; k < n; k++) {
            s.seed = 7 + which[k];
            s.position = rows[k].start + rows[k].n_rows;
            plan->outputs[k] = (qk_output){.row = plan->seqs[k].row_begin + rows[k].n_rows - 1,
                .flags = QK_OUTPUT_SAMPLE,
                .slot = which[k],
                .sampling = s};
        }
        tap_require(qk_step_submit(r.steps[0]) == QK_OK && qk_step_wait(r.steps[0]) == QK_OK);
        for (uint32_t k = 0; k < n; k++)
            together[which[k]][i - which[k] * delay] = qk_step_result(r.steps[0])->outputs[k].token;
    }
    tap_ok(memcmp(alone, together, sizeof(alone)) == 0, "two replies in one batch are the two alone");
    rig_close(&r);
}

/* ---- Cancelling --------------------------------------------------------------------------------------------------- */

/* Holds a step inside its first layer until the test lets go. */
typedef struct {
    _Atomic bool reached, go_on;
    _Atomic uint32_t n_calls;
} hold;

static qk_status hold_partial(void *user, const qk_partial_args *args)
{
    hold *h = user;
    h->n_calls++;
    h->reached = true;
    while (!h->go_on)
        usleep(100);
    for (uint32_t i = 0; i < args->n_items; i++)
        for (uint32_t head = 0; head < fixture_small.n_heads; head++)
            args->lse[i * fixture_small.n_heads + head] = -INFINITY;
    memset(args->out, 0, args->n_items * fixture_small.n_heads * fixture_small.head_dim * sizeof(float));
    return QK_OK;
}

static void test_cancel(const fixture_model *m)
{
    hold h = {0};
    uint32_t pages[N_PAGES];
    rig r;
    rig_open(&r, m,
        &(rig_options){.n_threads = 2,
            .kv_dtype = QK_F32,
            .rows_max = 32,
            .n_pages = N_PAGES,
            .slots_max = 4,
            .partial_max = 4,
            .partial = hold_partial,
            .partial_user = &h});
    qk_sampling s = warm;
    rig_rows prompt = {tokens, N_PROMPT, 0, in_order};
    fill_sampling(&r, 0, &prompt, 0, s);
    tap_require(qk_step_submit(r.steps[0]) == QK_OK);
    const int32_t drawn = token_of(&r, 0);

    /* A step that stands in its first layer, with one span outside, and one queued behind it. */
    for (uint32_t i = 0; i < N_PAGES; i++)
        pages[i] = i < 16 ? UINT32_MAX : i;
    rig_rows held = {tokens, 1, 256, pages}, queued = {tokens + 1, 1, N_PROMPT, in_order};
    fill_sampling(&r, 0, &held, 0, s);
    fill_sampling(&r, 1, &queued, 0, s);
    tap_require(qk_step_submit(r.steps[0]) == QK_OK);
    tap_require(qk_step_submit(r.steps[1]) == QK_OK);
    while (!h.reached)
        usleep(100);
    tap_ok(qk_step_poll(r.steps[0]) == QK_PENDING && qk_step_poll(r.steps[1]) == QK_PENDING,
        "submit returned while both steps are pending");
    tap_ok(qk_step_submit(r.steps[0]) == QK_INVALID, "a pending step is not submitted again: %s",
        qk_backend_error(r.backend));
    qk_step_cancel(r.steps[0]);
    qk_step_cancel(r.steps[1]);
    h.go_on = true;
    tap_ok(qk_step_wait(r.steps[0]) == QK_CANCELLED && h.n_calls == 1, "cancelled within its first layer: %s",
        qk_backend_error(r.backend));
    tap_ok(qk_step_wait(r.steps[1]) == QK_CANCELLED, "cancelled before it began: %s",
        qk_backend_error(r.backend));

    /* The slot still holds the prompt's token: feeding it equals feeding the token. */
    const int32_t from_slot = ~0;
    rig_rows by_slot = {&from_slot, 1, N_PROMPT, in_order}, by_token = {&drawn, 1, N_PROMPT, in_order};
    float a[131], b[131];
    tap_require(rig_run(&r, &by_slot, 1, a) == QK_OK && rig_run(&r, &by_token, 1, b) == QK_OK);
    tap_ok(memcmp(a, b, sizeof(a)) == 0, "a cancelled step leaves the slot, and its flag ends with it");
    rig_rows after = {tokens, 1, 256, pages};
    tap_ok(rig_run(&r, &after, 1, NULL) == QK_OK && h.n_calls == 3, "the same plan runs when nobody cancels");
    qk_step_cancel(r.steps[0]);
    tap_ok(qk_step_wait(r.steps[0]) == QK_OK && rig_run(&r, &by_token, 1, NULL) == QK_OK,
        "cancelling a finished step means nothing to the next");
    rig_close(&r);
}

/* ---- History, results, sizes ---------------------------------------------------------------------------------------- */

static void test_history(const fixture_model *m)
{
    rig r = small_rig(m);
    const uint32_t vocab = m->desc.shape.vocab;
    qk_sampling s = warm;
    s.temperature = 0;
    s.presence_penalty = 1e6f; /* whoever has been said is not said again */
    int32_t drawn[40];
    rig_rows rows = {tokens, N_PROMPT, 0, in_order};
    bool seen[131] = {false}, repeated = false;
    tap_require(vocab == 131 && qk_context_set_history(r.context, 1, tokens, N_PROMPT, N_PROMPT) == QK_OK);
    for (uint32_t i = 0; i < 40; i++) {
        fill_sampling(&r, 0, &rows, 1, s);
        tap_require(qk_step_submit(r.steps[0]) == QK_OK);
        drawn[i] = token_of(&r, 0);
        repeated = repeated || seen[drawn[i]];
        seen[drawn[i]] = true;
        rows = (rig_rows){&drawn[i], 1, N_PROMPT + i, in_order};
    }
    tap_ok(!repeated, "sampling into a slot adds to its history: 40 tokens, none twice");

    rows = (rig_rows){tokens, N_PROMPT, 0, in_order};
    tap_require(qk_context_set_history(r.context, 1, NULL, 0, 0) == QK_OK);
    fill_sampling(&r, 0, &rows, 1, s);
    tap_require(qk_step_submit(r.steps[0]) == QK_OK);
    tap_ok(token_of(&r, 0) == drawn[0], "an emptied history starts over");
    tap_require(qk_context_set_history(r.context, 1, drawn, 1, 1) == QK_OK);
    fill_sampling(&r, 0, &rows, 1, s);
    tap_require(qk_step_submit(r.steps[0]) == QK_OK);
    tap_ok(token_of(&r, 0) == drawn[0], "the prompt's ids bear no presence penalty");
    tap_require(qk_context_set_history(r.context, 1, drawn, 1, 0) == QK_OK);
    fill_sampling(&r, 0, &rows, 1, s);
    tap_require(qk_step_submit(r.steps[0]) == QK_OK);
    tap_ok(token_of(&r, 0) != drawn[0], "the reply's do");
    rig_close(&r);
}

static void test_results(const fixture_model *m)
{
    rig r = small_rig(m);
    const uint32_t vocab = m->desc.shape.vocab;
    float all[20 * 131];
    rig_rows rows = {tokens, 20, 0, in_order};
    tap_require(rig_run(&r, &rows, 1, all) == QK_OK);
    const qk_result *result = qk_step_result(r.steps[0]);
    tap_ok(result->outputs[0].token == -1, "nothing sampled: token -1");

    /* Outputs of some rows only: the same bits, in the outputs' order. */
    rig_fill(&r, 0, &rows, 1);
    qk_plan *plan = qk_step_plan(r.steps[0]);
    static const uint32_t picked[] = {0, 7, 8, 19};
    plan->n_outputs = 4;
    for (uint32_t i = 0; i < 4; i++)
        plan->outputs[i] = (qk_output){.row = picked[i],
            .flags = QK_OUTPUT_LOGITS | (i == 2 ? QK_OUTPUT_SAMPLE : 0),
            .slot = QK_NO_SLOT,
            .sampling = {.top_p = 1, .repetition_penalty = 1}};
    tap_require(qk_step_submit(r.steps[0]) == QK_OK && qk_step_wait(r.steps[0]) == QK_OK);
    bool same = true;
    for (uint32_t i = 0; i < 4; i++)
        same = same &&
               memcmp(result->logits + (size_t)i * vocab, all + (size_t)picked[i] * vocab, vocab * 4) == 0;
    tap_ok(same, "logits of picked rows are those of all rows");
    uint32_t best = 0;
    double sum = 0;
    const float *row = all + (size_t)8 * vocab;
    for (uint32_t i = 0; i < vocab; i++)
        best = row[i] > row[best] ? i : best;
    for (uint32_t i = 0; i < vocab; i++)
        sum += exp((double)row[i] - (double)row[best]);
    const qk_output_result *out = &result->outputs[2];
    tap_ok((uint32_t)out->token == best && out->logit == row[best] && out->flags == 0 &&
               fabs((double)out->logprob + log(sum)) < 1e-5,
        "greedy token %d, logit %g, log-probability %g", out->token, (double)out->logit,
        (double)out->logprob);

    plan->n_outputs = 0;
    tap_ok(
        qk_step_submit(r.steps[0]) == QK_OK && qk_step_wait(r.steps[0]) == QK_OK, "a step without outputs");
    float next[131], want[131];
    rig_rows one = {tokens + 20, 1, 20, in_order};
    tap_require(rig_run(&r, &one, 1, want) == QK_OK);
    rig_fill(&r, 1, &rows, 1);
    qk_step_plan(r.steps[1])->n_outputs = 0;
    tap_require(qk_step_submit(r.steps[1]) == QK_OK && qk_step_wait(r.steps[1]) == QK_OK);
    tap_require(rig_run(&r, &one, 1, next) == QK_OK);
    tap_ok(memcmp(next, want, sizeof(want)) == 0, "still fills the cache");

    /* NaN in a page that the row reads reaches the logits, and is said. */
    tap_require(qk_fill_submit(r.backend, QK_STREAM_COMPUTE, r.pages, 0, 64, 0x7fc07fc0) == QK_OK);
    fill_sampling(&r, 0, &one, 0, warm);
    tap_require(qk_step_submit(r.steps[0]) == QK_OK && qk_step_wait(r.steps[0]) == QK_OK);
    const qk_output_result *first = &result->outputs[0];
    tap_ok((first->flags & QK_RESULT_NOT_FINITE) && first->token >= 0 && (uint32_t)first->token < vocab,
        "NaN logits are flagged");
    rig_close(&r);
}

static bool count_progress(void *user, uint64_t done, uint64_t total)
{
    uint64_t *state = user; /* last done, total, calls left */
    tap_require(done > state[0] && done <= total && (state[1] == 0 || state[1] == total));
    state[0] = done;
    state[1] = total;
    return state[2] == 0 || --state[2] > 0;
}

static void test_sizes(const fixture_model *m)
{
    rig r = small_rig(m);
    qk_sizes small, large;
    qk_context_params p = r.params;
    tap_require(qk_context_measure(r.model, &p, &small) == QK_OK);
    p.rows_max *= 2;
    tap_require(qk_context_measure(r.model, &p, &large) == QK_OK);
    tap_ok(small.device_bytes > 0 && small.host_bytes > 0 && large.device_bytes > small.device_bytes,
        "measured: %llu and %llu bytes", (unsigned long long)small.device_bytes,
        (unsigned long long)small.host_bytes);
    uint64_t state[3] = {0};
    qk_model *model;
    tap_ok(qk_model_load(r.backend, &m->desc, count_progress, state, &model) == QK_OK && state[0] == state[1],
        "loading reports progress to its end");
    qk_model_free(model);
    uint64_t stop[3] = {0, 0, 3};
    tap_ok(qk_model_load(r.backend, &m->desc, count_progress, stop, &model) == QK_CANCELLED && model == NULL,
        "and can be given up");
    double bytes = 0, flops = 0;
    tap_require(qk_backend_measure(r.backend, QK_MEASURE_READ_BYTES_PER_S, &bytes) == QK_OK);
    tap_require(qk_backend_measure(r.backend, QK_MEASURE_F32_FLOPS, &flops) == QK_OK);
    tap_ok(bytes > 1e8, "read bandwidth %.1f GB/s", bytes / 1e9);
    tap_ok(flops > 1e8, "multiply-add rate %.1f GFLOP/s", flops / 1e9);
    tap_ok(qk_backend_measure(r.backend, (qk_measure)9, &flops) == QK_INVALID, "no such measure");
    rig_close(&r);
}

/* ---- Parts ------------------------------------------------------------------------------------------------------ */

static double ms_now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec * 1e3 + (double)t.tv_nsec / 1e6;
}

/* A step that times its parts gives the same bits; all its parts took time, and together not more than the step. */
static void test_parts(const fixture_model *m)
{
    const uint32_t vocab = m->desc.shape.vocab;
    float *plain = malloc(32u * vocab * sizeof(*plain));
    tap_require(plain != NULL);
    rig r = small_rig(m);
    rig_rows rows = {tokens, 32, 0, in_order};
    tap_require(rig_run(&r, &rows, 1, plain) == QK_OK);
    tap_ok(qk_step_result(r.steps[0])->profile == NULL, "no parts where none were asked for");

    fill_sampling(&r, 0, &rows, 1, warm);
    qk_plan *plan = qk_step_plan(r.steps[0]);
    plan->outputs[0].flags |= QK_OUTPUT_LOGITS;
    plan->profile = 1;
    const double begin = ms_now();
    tap_require(qk_step_submit(r.steps[0]) == QK_OK && qk_step_wait(r.steps[0]) == QK_OK);
    const double wall = ms_now() - begin;
    const qk_result *result = qk_step_result(r.steps[0]);
    tap_ok(memcmp(result->logits, plain + 31u * vocab, vocab * sizeof(*plain)) == 0,
        "timing the parts changes no bit");
    tap_require(result->profile != NULL);
    double sum = 0, least = wall;
    for (uint32_t p = 0; p < QK_N_PARTS; p++) {
        sum += result->profile->ms[p];
        least = fmin(least, result->profile->ms[p]);
    }
    tap_ok(least > 0 && sum <= wall, "every part took time, all of them %.3f of %.3f ms", sum, wall);
    tap_ok(!result->profile->kv_in_attend, "keys and values go to their pages in a stage of their own");

    plan->profile = 2;
    tap_ok(qk_step_submit(r.steps[0]) == QK_INVALID, "profile is 0 or 1");
    plan->profile = 0;
    tap_require(qk_step_submit(r.steps[0]) == QK_OK && qk_step_wait(r.steps[0]) == QK_OK);
    tap_ok(qk_step_result(r.steps[0])->profile == NULL, "the next step does not report the last one's");
    rig_close(&r);
    free(plain);
}

int main(void)
{
    test_numbers(&fixture_small, QK_BF16);
    test_numbers(&fixture_medium, QK_F32);
    fixture_model *m = fixture_model_new(&fixture_small, QK_BF16, 22);
    make_tokens(m->desc.shape.vocab);
    test_slots(m);
    test_slots_batched(m);
    test_cancel(m);
    test_history(m);
    test_results(m);
    test_sizes(m);
    test_parts(m);
    fixture_model_free(m);
    return tap_done();
}
