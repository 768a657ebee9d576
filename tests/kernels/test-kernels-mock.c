/* test-kernels-mock.c: the mock device computes the CPU backend's bits, is late and out of order where streams allow it
 * and never where events forbid it, fails on request, and catches callers' mistakes. Plain C, TAP. */
#include "kernels/qk-mock.h"
#include "tests/kernels/fixture.h"

#include <errno.h>
#include <pthread.h>
#include <semaphore.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#define REQUIRE(condition)                                                                                   \
    do {                                                                                                     \
        if (!(condition)) {                                                                                  \
            printf("Bail out! %s:%d: %s\n", __FILE__, __LINE__, #condition);                                 \
            exit(1);                                                                                         \
        }                                                                                                    \
    } while (0)

enum { VOCAB = 131, OUT_FLOATS = 4 * 16 }; /* of fixture_small; OUT_FLOATS: a row's attention output */
enum { N_PAGES = 40, ROWS_MAX = 64, N_PROMPT = 45, N_GEN = 12 };

/* ---- A device with the model on it, and what a small engine keeps ---- */

typedef struct {
    sem_t entered, go; /* the gate: a step with outside pages stops in its partial function */
} gate;

typedef struct {
    qk_backend *backend;
    qk_model *model;
    qk_context *context;
    qk_step *steps[2];
    qk_buffer *pages, *host;
    qk_kv_layout layout;
    gate gate;
} device;

static fixture_model *model_new(bool tied)
{
    fixture_model *m = fixture_model_new(&fixture_small, QK_BF16, 1);
    REQUIRE(m->desc.shape.vocab == VOCAB && m->desc.shape.n_heads * m->desc.shape.head_dim == OUT_FLOATS);
    if (tied)
        m->desc.lm_head = m->desc.embed;
    return m;
}

static qk_status gate_partial(void *user, const qk_partial_args *args)
{
    gate *g = user;
    if (args->layer == 0) {
        sem_post(&g->entered);
        while (sem_wait(&g->go) != 0)
            REQUIRE(errno == EINTR);
    }
    memset(args->out, 0, (size_t)args->n_items * OUT_FLOATS * sizeof(float));
    memset(args->lse, 0, (size_t)args->n_items * 4 * sizeof(float));
    return QK_OK;
}

/* Everything that can fail for want of memory or a lost device, in order of making. */
static qk_status device_build(device *r, const fixture_model *m)
{
    qk_context_params params = {.rows_max = ROWS_MAX,
        .seqs_max = 4,
        .pages_max = 80,
        .outputs_max = 4,
        .logits_max = 4,
        .slots_max = 4,
        .partial_max = 64,
        .partial = gate_partial,
        .partial_user = &r->gate};
    qk_kv_layout_page_major(&m->desc.shape, QK_BF16, &r->layout);
    params.layout = r->layout;
    qk_status status = qk_model_load(r->backend, &m->desc, NULL, NULL, &r->model);
    if (status == QK_OK)
        status = qk_context_new(r->model, &params, &r->context);
    for (int i = 0; i < 2 && status == QK_OK; i++)
        status = qk_step_new(r->context, &r->steps[i]);
    if (status == QK_OK)
        status = qk_buffer_new(r->backend, QK_MEMORY_DEVICE, N_PAGES * r->layout.page_bytes, &r->pages);
    if (status == QK_OK)
        status = qk_buffer_new(r->backend, QK_MEMORY_HOST, N_PAGES * r->layout.page_bytes, &r->host);
    return status;
}

static void device_clear(device *r)
{
    qk_step_free(r->steps[0]);
    qk_step_free(r->steps[1]);
    qk_context_free(r->context);
    qk_model_free(r->model);
    qk_buffer_free(r->pages);
    qk_buffer_free(r->host);
    qk_backend *backend = r->backend;
    gate g = r->gate;
    memset(r, 0, sizeof(*r));
    r->backend = backend;
    r->gate = g;
}

static void device_open(device *r, const fixture_model *m, const qk_mock_options *options)
{
    char error[256] = "";
    memset(r, 0, sizeof(*r));
    sem_init(&r->gate.entered, 0, 0);
    sem_init(&r->gate.go, 0, 0);
    qk_status status;
    if (options != NULL) {
        status = qk_mock_open(options, &r->backend, error, sizeof(error));
    } else {
        const qk_backend_options cpu = {.n_threads = 1};
        status = qk_backend_open("cpu", &cpu, &r->backend, error, sizeof(error));
    }
    if (status != QK_OK)
        printf("# %s\n", error);
    REQUIRE(status == QK_OK);
    if (m != NULL)
        REQUIRE(device_build(r, m) == QK_OK);
}

static void device_close(device *r)
{
    device_clear(r);
    qk_backend_free(r->backend);
    sem_destroy(&r->gate.entered);
    sem_destroy(&r->gate.go);
}

/* One sequence, @n_rows tokens from @start on, in the pages from @first_page on, the last row sampled into slot 0. */
static void fill_plan(device *r, qk_step *step, const int32_t *tokens, uint32_t start, uint32_t n_rows,
    uint32_t first_page, float penalty)
{
    qk_plan *plan = qk_step_plan(step);
    uint32_t n_pages = (start + n_rows + QK_PAGE_TOKENS - 1) / QK_PAGE_TOKENS;
    plan->n_rows = n_rows;
    plan->n_seqs = 1;
    plan->n_pages = n_pages;
    plan->n_outputs = 1;
    memcpy(plan->tokens, tokens, n_rows * sizeof(*tokens));
    plan->seqs[0] = (qk_seq){.n_rows = n_rows, .start = start, .n_pages = n_pages};
    for (uint32_t p = 0; p < n_pages; p++)
        plan->pages[p] = r->pages->address + (first_page + p) * r->layout.page_bytes;
    plan->outputs[0] = (qk_output){.row = n_rows - 1,
        .flags = QK_OUTPUT_SAMPLE | QK_OUTPUT_LOGITS,
        .slot = 0,
        .sampling = {.seed = 7,
            .position = start + n_rows,
            .temperature = 1,
            .top_p = 0.95f,
            .repetition_penalty = penalty}};
}

typedef struct {
    int32_t tokens[N_GEN];
    float logits[N_GEN][VOCAB];
} story;

static qk_status take_result(qk_step *step, story *out, uint32_t i)
{
    qk_status status = qk_step_wait(step);
    if (status == QK_OK) {
        const qk_result *result = qk_step_result(step);
        out->tokens[i] = result->outputs[0].token;
        memcpy(out->logits[i], result->logits, sizeof(out->logits[i]));
    }
    return status;
}

/* Prefill in two chunks, then decode one step ahead of the host, tokens passed on by slot. */
static qk_status play(device *r, story *out)
{
    int32_t prompt[N_PROMPT], slot = ~0;
    for (int i = 0; i < N_PROMPT; i++)
        prompt[i] = (i * 37 + 11) % VOCAB;
    qk_status status =
        qk_fill_submit(r->backend, QK_STREAM_COMPUTE, r->pages, 0, r->pages->bytes, UINT32_MAX);
    if (status == QK_OK)
        status = qk_context_set_history(r->context, 0, prompt, N_PROMPT, N_PROMPT);
    fill_plan(r, r->steps[1], prompt, 0, 20, 0, 1);
    qk_step_plan(r->steps[1])->n_outputs = 0;
    if (status == QK_OK)
        status = qk_step_submit(r->steps[1]);
    fill_plan(r, r->steps[0], prompt + 20, 20, N_PROMPT - 20, 0, 1.3f);
    if (status == QK_OK)
        status = qk_step_submit(r->steps[0]);
    if (status == QK_OK)
        status = qk_step_wait(r->steps[1]);
    for (uint32_t i = 1; i < N_GEN && status == QK_OK; i++) {
        fill_plan(r, r->steps[i % 2], &slot, N_PROMPT + i - 1, 1, 0, 1.3f);
        status = qk_step_submit(r->steps[i % 2]);
        if (status == QK_OK)
            status = take_result(r->steps[(i - 1) % 2], out, i - 1);
    }
    return status == QK_OK ? take_result(r->steps[(N_GEN - 1) % 2], out, N_GEN - 1) : status;
}

/* ---- Tests ---- */

static void test_equal_bits(void)
{
    for (int tied = 0; tied < 2; tied++) {
        fixture_model *m = model_new(tied);
        device cpu, mock;
        story want, got;
        device_open(&cpu, m, NULL);
        REQUIRE(play(&cpu, &want) == QK_OK);
        device_close(&cpu);
        for (uint64_t seed = 0; seed < 6; seed++) {
            device_open(&mock, m, &(qk_mock_options){.seed = seed, .delay_us_max = 300, .n_threads = 1});
            memset(&got, 0, sizeof(got));
            REQUIRE(play(&mock, &got) == QK_OK);
            REQUIRE(memcmp(&want, &got, sizeof(want)) == 0);
            qk_mock_stats stats;
            qk_mock_get_stats(mock.backend, &stats);
            REQUIRE(stats.n_steps == N_GEN + 1);
            device_close(&mock);
        }
        fixture_model_free(m);
    }
}

/* The mock has weights of its own: those of the caller may change or go. */
static void weights_copied(bool tied)
{
    fixture_model *m = model_new(tied);
    device cpu, mock;
    story want, got;
    device_open(&cpu, m, NULL);
    REQUIRE(play(&cpu, &want) == QK_OK);
    device_close(&cpu);
    device_open(&mock, m, &(qk_mock_options){.n_threads = 1});
    memset((void *)m->desc.embed.data, 0xff, (size_t)VOCAB * m->desc.embed.cols * 2);
    fixture_model_free(m);
    memset(&got, 0, sizeof(got));
    REQUIRE(play(&mock, &got) == QK_OK);
    REQUIRE(memcmp(&want, &got, sizeof(want)) == 0);
    device_close(&mock);
}

static void test_weights_copied(void)
{
    weights_copied(false);
    weights_copied(true);
}

static bool host_can_read(uint64_t address)
{
    int ends[2];
    REQUIRE(pipe(ends) == 0);
    long n = syscall(SYS_write, ends[1], address, 1); /* the kernel looks, and says EFAULT */
    close(ends[0]);
    close(ends[1]);
    return n == 1;
}

static void test_memory(void)
{
    fixture_model *m = model_new(false);
    device r;
    device_open(&r, m, &(qk_mock_options){.seed = 3, .n_threads = 1});
    REQUIRE(r.pages->host == NULL);
    REQUIRE(r.pages->address != 0 && r.pages->address % 64 == 0);
    REQUIRE(!host_can_read(r.pages->address));
    REQUIRE(r.host->address == (uint64_t)(uintptr_t)r.host->host);
    REQUIRE(host_can_read(r.host->address));
    qk_backend_info info;
    qk_backend_get_info(r.backend, &info);
    REQUIRE(!info.is_host && strcmp(info.name, "mock") == 0);

    /* A page past the buffer's end, or in no buffer. */
    int32_t token = 1;
    fill_plan(&r, r.steps[0], &token, 0, 1, N_PAGES, 1);
    REQUIRE(qk_step_submit(r.steps[0]) == QK_INVALID);
    REQUIRE(strstr(qk_backend_error(r.backend), "pages[0]") != NULL);
    fill_plan(&r, r.steps[0], &token, 0, 1, N_PAGES - 1, 1);
    qk_step_plan(r.steps[0])->pages[0] += 64;
    REQUIRE(qk_step_submit(r.steps[0]) == QK_INVALID);
    qk_step_plan(r.steps[0])->pages[0] = r.host->address; /* pages in host memory are fine */
    REQUIRE(qk_step_submit(r.steps[0]) == QK_OK);
    REQUIRE(qk_step_wait(r.steps[0]) == QK_OK);
    device_close(&r);
    fixture_model_free(m);
}

/* A step writes a page; the page goes to the host on another stream. Returns in how many of @n tries the host got what
 * was there before the step. The host itself always waits for the copy. */
static int count_stale(uint64_t seed, int n, bool with_event, uint64_t *n_reordered)
{
    fixture_model *m = model_new(false);
    device r;
    device_open(&r, m, &(qk_mock_options){.seed = seed, .delay_us_max = 200, .n_threads = 1});
    qk_event *computed, *copied;
    REQUIRE(qk_event_new(r.backend, &computed) == QK_OK);
    REQUIRE(qk_event_new(r.backend, &copied) == QK_OK);
    int n_stale = 0;
    for (int i = 0; i < n; i++) {
        int32_t tokens[QK_PAGE_TOKENS];
        for (uint32_t t = 0; t < QK_PAGE_TOKENS; t++)
            tokens[t] = (int32_t)((uint32_t)i * 5 + t) % VOCAB;
        qk_copy copy = {.dst = r.host, .src = r.pages, .bytes = r.layout.page_bytes};
        qk_copy again = copy;
        again.dst_offset = r.layout.page_bytes;
        fill_plan(&r, r.steps[0], tokens, 0, QK_PAGE_TOKENS, 0, 1);
        REQUIRE(qk_step_submit(r.steps[0]) == QK_OK);
        REQUIRE(qk_event_record(computed, QK_STREAM_COMPUTE) == QK_OK);
        if (with_event)
            REQUIRE(qk_stream_wait(r.backend, QK_STREAM_TO_HOST, computed) == QK_OK);
        REQUIRE(qk_copy_submit(r.backend, QK_STREAM_TO_HOST, &copy, 1) == QK_OK);
        REQUIRE(qk_event_record(copied, QK_STREAM_TO_HOST) == QK_OK);
        REQUIRE(qk_event_wait(copied) == QK_OK);
        REQUIRE(qk_event_query(copied) == QK_OK);
        REQUIRE(qk_event_wait(computed) == QK_OK);
        REQUIRE(qk_step_wait(r.steps[0]) == QK_OK);
        REQUIRE(qk_copy_submit(r.backend, QK_STREAM_TO_HOST, &again, 1) == QK_OK);
        REQUIRE(qk_event_record(copied, QK_STREAM_TO_HOST) == QK_OK);
        REQUIRE(qk_event_wait(copied) == QK_OK);
        const char *bytes = r.host->host;
        n_stale += memcmp(bytes, bytes + r.layout.page_bytes, r.layout.page_bytes) != 0;
    }
    qk_mock_stats stats;
    qk_mock_get_stats(r.backend, &stats);
    *n_reordered += stats.n_reordered;
    qk_event_free(computed);
    qk_event_free(copied);
    device_close(&r);
    fixture_model_free(m);
    return n_stale;
}

static void test_missing_event(void)
{
    uint64_t n_reordered = 0, n_with = 0;
    int n_stale = 0;
    for (uint64_t seed = 0; seed < 4; seed++) {
        REQUIRE(count_stale(seed, 25, true, &n_with) == 0);
        n_stale += count_stale(seed, 25, false, &n_reordered);
    }
    printf("# without the event %d of 100 copies were stale, %llu operations overtook\n", n_stale,
        (unsigned long long)n_reordered);
    REQUIRE(n_stale > 0 && n_stale < 100);
    REQUIRE(n_reordered > 0);
    REQUIRE(n_with == 0); /* where all is ordered by events nothing overtakes */
}

/* The other way: an upload that compute does not wait for. The bytes go up, around on the device, and back. */
static void test_upload_order(void)
{
    device r;
    device_open(&r, NULL, &(qk_mock_options){.seed = 9, .delay_us_max = 100, .n_threads = 1});
    qk_buffer *host, *a, *b;
    qk_event *events[2];
    REQUIRE(qk_buffer_new(r.backend, QK_MEMORY_HOST, 256, &host) == QK_OK);
    REQUIRE(qk_buffer_new(r.backend, QK_MEMORY_DEVICE, 128, &a) == QK_OK);
    REQUIRE(qk_buffer_new(r.backend, QK_MEMORY_DEVICE, 128, &b) == QK_OK);
    for (int i = 0; i < 2; i++)
        REQUIRE(qk_event_new(r.backend, &events[i]) == QK_OK);
    int n_stale[2] = {0};
    for (int i = 0; i < 120; i++) {
        bool with_event = i % 2 == 1;
        memset(host->host, i + 1, 128);
        const qk_copy up = {.dst = a, .src = host, .bytes = 128}, across = {.dst = b, .src = a, .bytes = 128},
                      down = {.dst = host, .dst_offset = 128, .src = b, .bytes = 128};
        REQUIRE(qk_copy_submit(r.backend, QK_STREAM_TO_DEVICE, &up, 1) == QK_OK);
        REQUIRE(qk_event_record(events[0], QK_STREAM_TO_DEVICE) == QK_OK);
        if (with_event)
            REQUIRE(qk_stream_wait(r.backend, QK_STREAM_COMPUTE, events[0]) == QK_OK);
        REQUIRE(qk_copy_submit(r.backend, QK_STREAM_COMPUTE, &across, 1) == QK_OK);
        REQUIRE(qk_event_record(events[1], QK_STREAM_COMPUTE) == QK_OK);
        REQUIRE(qk_stream_wait(r.backend, QK_STREAM_TO_HOST, events[1]) == QK_OK);
        REQUIRE(qk_copy_submit(r.backend, QK_STREAM_TO_HOST, &down, 1) == QK_OK);
        REQUIRE(qk_event_record(events[1], QK_STREAM_TO_HOST) == QK_OK); /* an event may be used again */
        REQUIRE(qk_event_wait(events[1]) == QK_OK);
        REQUIRE(qk_event_wait(events[0]) == QK_OK);
        n_stale[with_event] += memcmp(host->host, (char *)host->host + 128, 128) != 0;
    }
    REQUIRE(n_stale[0] > 0);
    REQUIRE(n_stale[1] == 0);
    for (int i = 0; i < 2; i++)
        qk_event_free(events[i]);
    qk_buffer_free(a);
    qk_buffer_free(b);
    qk_buffer_free(host);
    device_close(&r);
}

/* A plan for one row at position 256, whose first span is outside: the step stops at the gate. */
static void fill_gated_plan(device *r, qk_step *step)
{
    int32_t token = 5;
    fill_plan(r, step, &token, QK_SPAN_TOKENS, 1, 0, 1);
    for (uint32_t p = 0; p < QK_SPAN_TOKENS / QK_PAGE_TOKENS; p++)
        qk_step_plan(step)->pages[p] = 0;
}

static void test_steps_are_late(void)
{
    fixture_model *m = model_new(false);
    device r;
    device_open(&r, m, &(qk_mock_options){.n_threads = 1});
    int32_t token = 3;
    fill_plan(&r, r.steps[0], &token, 0, 1, 0, 1);
    REQUIRE(qk_step_submit(r.steps[0]) == QK_OK);
    REQUIRE(qk_step_wait(r.steps[0]) == QK_OK);
    REQUIRE(qk_step_poll(r.steps[0]) == QK_OK);
    float before = qk_step_result(r.steps[0])->logits[0];

    fill_gated_plan(&r, r.steps[0]);
    REQUIRE(qk_step_submit(r.steps[0]) == QK_OK);
    sem_wait(&r.gate.entered); /* it runs, and cannot end */
    REQUIRE(qk_step_poll(r.steps[0]) == QK_PENDING);
    REQUIRE(qk_step_submit(r.steps[0]) == QK_INVALID);
    REQUIRE(qk_step_result(r.steps[0])->logits[0] == before); /* read too early: the old step's */
    qk_event *event;
    REQUIRE(qk_event_new(r.backend, &event) == QK_OK);
    REQUIRE(qk_event_query(event) == QK_OK); /* never recorded: nothing to wait for */
    REQUIRE(qk_event_record(event, QK_STREAM_COMPUTE) == QK_OK);
    REQUIRE(qk_event_query(event) == QK_PENDING);
    sem_post(&r.gate.go);
    REQUIRE(qk_step_wait(r.steps[0]) == QK_OK);
    REQUIRE(qk_step_result(r.steps[0])->logits[0] != before);
    REQUIRE(qk_event_wait(event) == QK_OK);
    qk_event_free(event);

    /* Cancel one that runs, between its two layers, and one behind it that waits. */
    fill_gated_plan(&r, r.steps[0]);
    fill_plan(&r, r.steps[1], &token, 0, 1, 0, 1);
    REQUIRE(qk_step_submit(r.steps[0]) == QK_OK);
    REQUIRE(qk_step_submit(r.steps[1]) == QK_OK);
    sem_wait(&r.gate.entered);
    qk_step_cancel(r.steps[1]);
    qk_step_cancel(r.steps[0]);
    sem_post(&r.gate.go);
    REQUIRE(qk_step_wait(r.steps[0]) == QK_CANCELLED);
    qk_status behind = qk_step_wait(r.steps[1]);
    REQUIRE(behind == QK_CANCELLED || behind == QK_OK);
    REQUIRE(qk_step_submit(r.steps[1]) == QK_OK); /* the cancellation was of that submission only */
    REQUIRE(qk_step_wait(r.steps[1]) == QK_OK);

    /* A plan that changes while it waits is caught, whatever of it. */
    for (int what = 0; what < 5; what++) {
        qk_plan *plan = qk_step_plan(r.steps[1]);
        fill_gated_plan(&r, r.steps[0]);
        fill_gated_plan(&r, r.steps[1]);
        REQUIRE(qk_step_submit(r.steps[0]) == QK_OK);
        REQUIRE(qk_step_submit(r.steps[1]) == QK_OK);
        sem_wait(&r.gate.entered);
        if (what == 0)
            plan->tokens[0] ^= 1;
        else if (what == 1)
            plan->host_pages[3] = &r;
        else if (what == 2)
            plan->host_path = QK_HOST_STREAM;
        else if (what == 3)
            plan->kv_class = 1;
        else
            plan->pages[16] += 64;
        sem_post(&r.gate.go);
        REQUIRE(qk_step_wait(r.steps[1]) == QK_INVALID);
        REQUIRE(strstr(qk_backend_error(r.backend), "changed") != NULL);
        REQUIRE(qk_step_wait(r.steps[0]) == QK_OK);
        plan->host_pages[3] = NULL;
        plan->host_path = QK_HOST_READ;
        plan->kv_class = 0;
    }
    device_close(&r);
    fixture_model_free(m);
}

static void test_out_of_memory(void)
{
    fixture_model *m = model_new(false);
    device r;
    story want, got;
    device_open(&r, m, NULL);
    REQUIRE(play(&r, &want) == QK_OK);
    device_close(&r);

    /* Each allocation in turn. */
    device_open(&r, NULL, &(qk_mock_options){.n_threads = 1});
    for (uint32_t nth = 1; nth <= 6; nth++) {
        qk_mock_fail_alloc(r.backend, nth);
        REQUIRE(device_build(&r, m) == QK_NO_MEMORY);
        REQUIRE(strstr(qk_backend_error(r.backend), "on request") != NULL);
        device_clear(&r);
        qk_mock_stats stats;
        qk_mock_get_stats(r.backend, &stats);
        REQUIRE(stats.device_bytes == 0 && stats.n_buffers == 0);
    }
    qk_mock_fail_alloc(r.backend, 7); /* there is no seventh */
    REQUIRE(device_build(&r, m) == QK_OK);
    qk_mock_stats all;
    qk_mock_get_stats(r.backend, &all);
    REQUIRE(all.n_buffers == 2 && all.device_bytes_peak >= all.device_bytes);
    REQUIRE(play(&r, &got) == QK_OK);
    REQUIRE(memcmp(&want, &got, sizeof(want)) == 0);
    device_close(&r);

    /* A byte budget: all of it is enough, one byte less is not. */
    device_open(&r, NULL, &(qk_mock_options){.n_threads = 1, .memory_bytes = all.device_bytes});
    REQUIRE(device_build(&r, m) == QK_OK);
    qk_backend_info info;
    qk_backend_get_info(r.backend, &info);
    REQUIRE(info.memory_total == all.device_bytes && info.memory_free == 0);
    qk_buffer *one;
    REQUIRE(qk_buffer_new(r.backend, QK_MEMORY_DEVICE, 1, &one) == QK_NO_MEMORY);
    REQUIRE(strstr(qk_backend_error(r.backend), "in use") != NULL);
    REQUIRE(qk_buffer_new(r.backend, QK_MEMORY_HOST, 1, &one) == QK_OK);
    qk_buffer_free(one);
    device_close(&r);
    device_open(&r, NULL, &(qk_mock_options){.n_threads = 1, .memory_bytes = all.device_bytes - 1});
    REQUIRE(device_build(&r, m) == QK_NO_MEMORY);
    device_close(&r);
    fixture_model_free(m);
}

/* The device goes at each operation in turn: every call says so from then on, nothing hangs, freeing works. */
static void test_lost(void)
{
    fixture_model *m = model_new(false);
    uint32_t n_lost = 0;
    for (uint32_t nth = 1; nth <= N_GEN + 4; nth++) {
        device r;
        story got;
        device_open(&r, m, &(qk_mock_options){.seed = nth, .delay_us_max = 50, .n_threads = 1});
        qk_event *event;
        REQUIRE(qk_event_new(r.backend, &event) == QK_OK);
        qk_mock_lose_at(r.backend, nth);
        qk_status status = play(&r, &got);
        const qk_copy copy = {.dst = r.host, .src = r.pages, .bytes = 64};
        if (status == QK_OK)
            status = qk_copy_submit(r.backend, QK_STREAM_TO_HOST, &copy, 1);
        if (status == QK_OK)
            status = qk_event_record(event, QK_STREAM_TO_HOST);
        if (status == QK_OK)
            status = qk_stream_wait(r.backend, QK_STREAM_COMPUTE, event);
        if (status == QK_OK)
            status = qk_event_wait(event);
        REQUIRE(status == QK_OK || status == QK_DEVICE_LOST);
        if (status == QK_DEVICE_LOST) {
            n_lost++;
            qk_buffer *buffer;
            qk_model *model;
            REQUIRE(strstr(qk_backend_error(r.backend), "lost") != NULL);
            REQUIRE(qk_event_query(event) == QK_DEVICE_LOST);
            REQUIRE(qk_event_wait(event) == QK_DEVICE_LOST);
            REQUIRE(qk_event_record(event, QK_STREAM_COMPUTE) == QK_DEVICE_LOST);
            REQUIRE(qk_stream_wait(r.backend, QK_STREAM_COMPUTE, event) == QK_DEVICE_LOST);
            REQUIRE(qk_buffer_new(r.backend, QK_MEMORY_DEVICE, 64, &buffer) == QK_DEVICE_LOST);
            REQUIRE(qk_copy_submit(r.backend, QK_STREAM_TO_HOST, &copy, 1) == QK_DEVICE_LOST);
            REQUIRE(qk_fill_submit(r.backend, QK_STREAM_COMPUTE, r.pages, 0, 64, 0) == QK_DEVICE_LOST);
            REQUIRE(qk_model_load(r.backend, &m->desc, NULL, NULL, &model) == QK_DEVICE_LOST);
            REQUIRE(qk_context_set_history(r.context, 0, NULL, 0, 0) == QK_DEVICE_LOST);
            for (int i = 0; i < 2; i++) {
                REQUIRE(qk_step_poll(r.steps[i]) == QK_DEVICE_LOST);
                REQUIRE(qk_step_wait(r.steps[i]) == QK_DEVICE_LOST);
                REQUIRE(qk_step_submit(r.steps[i]) == QK_DEVICE_LOST);
                qk_step_cancel(r.steps[i]);
            }
        }
        qk_event_free(event);
        device_close(&r);
    }
    REQUIRE(n_lost == N_GEN + 3); /* a fill, N_GEN + 1 steps, a copy; the last round loses nothing */
    fixture_model_free(m);
}

static bool give_up(void *user, uint64_t done, uint64_t total)
{
    uint32_t *n_calls = user;
    REQUIRE(done > 0 && done <= total);
    return ++*n_calls < 3;
}

static void test_load_given_up(void)
{
    fixture_model *m = model_new(false);
    device r;
    device_open(&r, NULL, &(qk_mock_options){.n_threads = 1});
    uint32_t n_calls = 0;
    REQUIRE(qk_model_load(r.backend, &m->desc, give_up, &n_calls, &r.model) == QK_CANCELLED);
    REQUIRE(n_calls == 3 && r.model == NULL);
    qk_mock_stats stats;
    qk_mock_get_stats(r.backend, &stats);
    REQUIRE(stats.device_bytes == 0 && stats.device_bytes_peak > 0);
    device_close(&r);
    fixture_model_free(m);
}

/* ---- Host memory of the caller's own ---- */

enum { MAP_BYTES = 4 * 4096 };

static void *map_new(void)
{
    void *map = mmap(NULL, MAP_BYTES, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    REQUIRE(map != MAP_FAILED);
    return map;
}

static void copy_and_wait(qk_backend *backend, qk_stream stream, qk_copy copy)
{
    qk_event *event;
    REQUIRE(qk_copy_submit(backend, stream, &copy, 1) == QK_OK);
    REQUIRE(qk_event_new(backend, &event) == QK_OK);
    REQUIRE(qk_event_record(event, stream) == QK_OK);
    REQUIRE(qk_event_wait(event) == QK_OK);
    qk_event_free(event);
}

/* Bytes go from the wrapped memory to the device and to another place in it, in order of the stream and late. */
static void copy_around(qk_backend *backend, qk_buffer *wrapped, unsigned char *map)
{
    qk_buffer *far;
    REQUIRE(qk_buffer_new(backend, QK_MEMORY_DEVICE, MAP_BYTES, &far) == QK_OK);
    for (int i = 0; i < 4096; i++)
        map[i] = (unsigned char)(i * 7 + 1);
    memset(map + 8192, 0, 4096);
    copy_and_wait(backend, QK_STREAM_TO_DEVICE, (qk_copy){far, 64, wrapped, 0, 4096});
    copy_and_wait(backend, QK_STREAM_TO_HOST, (qk_copy){wrapped, 8192, far, 64, 4096});
    REQUIRE(memcmp(map, map + 8192, 4096) == 0);
    qk_buffer_free(far);
}

static void test_wrap_cpu(void)
{
    char error[256] = "";
    device r;
    device_open(&r, NULL, NULL);
    unsigned char *map = map_new();
    qk_buffer *wrapped;
    REQUIRE(qk_host_register(r.backend, map, MAP_BYTES, error, sizeof(error)) == QK_OK);
    REQUIRE(qk_buffer_wrap(r.backend, map, MAP_BYTES, &wrapped) == QK_OK);
    REQUIRE(wrapped->address == (uint64_t)(uintptr_t)map && wrapped->host == map);
    REQUIRE(wrapped->memory == QK_MEMORY_HOST && wrapped->bytes == MAP_BYTES);
    copy_around(r.backend, wrapped, map);
    const qk_copy past = {wrapped, MAP_BYTES - 63, wrapped, 0, 64};
    REQUIRE(qk_copy_submit(r.backend, QK_STREAM_TO_HOST, &past, 1) == QK_INVALID);
    qk_buffer_free(wrapped);
    qk_host_unregister(r.backend, map);
    map[0] = 1; /* freeing the buffer left the memory alone */
    REQUIRE(munmap(map, MAP_BYTES) == 0);
    device_close(&r);
}

static void test_wrap(void)
{
    char error[256] = "";
    device r;
    qk_mock_stats stats;
    device_open(&r, NULL, &(qk_mock_options){.seed = 2, .delay_us_max = 100, .n_threads = 1});
    unsigned char *map = map_new();
    qk_buffer *plain, *wrapped, *part, *refused;

    REQUIRE(qk_buffer_wrap(r.backend, map, MAP_BYTES, &plain) == QK_OK);
    REQUIRE(plain->address == 0 && plain->host == map);
    copy_around(r.backend, plain, map);

    REQUIRE(qk_host_register(r.backend, map + 4096, MAP_BYTES - 4096, error, sizeof(error)) == QK_OK);
    REQUIRE(plain->address == 0); /* made before */
    REQUIRE(qk_buffer_wrap(r.backend, map, MAP_BYTES, &wrapped) == QK_OK);
    REQUIRE(wrapped->address == 0); /* registered in part */
    qk_buffer_free(wrapped);
    REQUIRE(qk_buffer_wrap(r.backend, map + 8192, 4096, &part) == QK_OK);
    REQUIRE(
        part->address != 0 && part->address % 64 == 0 && part->address != (uint64_t)(uintptr_t)part->host);
    REQUIRE(!host_can_read(part->address));
    REQUIRE(qk_host_register(r.backend, map, 8192, error, sizeof(error)) == QK_INVALID);
    REQUIRE(strstr(error, "already") != NULL);
    qk_mock_get_stats(r.backend, &stats);
    REQUIRE(stats.n_registered == 1 && stats.registered_bytes == MAP_BYTES - 4096);
    qk_host_unregister(r.backend, map); /* where nothing begins */
    qk_host_unregister(r.backend, map + 4096);
    qk_host_unregister(r.backend, map + 4096);
    qk_mock_get_stats(r.backend, &stats);
    REQUIRE(stats.n_registered == 0 && stats.registered_bytes == 0 && stats.n_buffers == 2);
    qk_buffer_free(part);

    REQUIRE(qk_host_register(r.backend, map, MAP_BYTES, error, sizeof(error)) == QK_OK);
    REQUIRE(qk_buffer_wrap(r.backend, map, MAP_BYTES, &wrapped) == QK_OK && wrapped->address != 0);
    copy_around(r.backend, wrapped, map);
    qk_buffer_free(wrapped);
    qk_buffer_free(plain);
    qk_host_unregister(r.backend, map);

    /* Wrapping is an allocation. */
    qk_mock_fail_alloc(r.backend, 1);
    REQUIRE(qk_buffer_wrap(r.backend, map, MAP_BYTES, &refused) == QK_NO_MEMORY && refused == NULL);
    REQUIRE(strstr(qk_backend_error(r.backend), "on request") != NULL);
    REQUIRE(qk_buffer_wrap(r.backend, map + 64, 4096, &refused) == QK_INVALID && refused == NULL);
    REQUIRE(strstr(qk_backend_error(r.backend), "4096") != NULL);
    REQUIRE(munmap(map, MAP_BYTES) == 0);
    device_close(&r);
}

static void test_register_refused(void)
{
    char error[256] = "", line[256];
    device r;
    device_open(&r, NULL, &(qk_mock_options){.n_threads = 1, .refuse_register = 2});
    unsigned char *map = map_new();
    qk_buffer *wrapped;
    /* The backend's own line is of another call, and stays. */
    REQUIRE(qk_buffer_wrap(r.backend, NULL, 4096, &wrapped) == QK_INVALID);
    snprintf(line, sizeof(line), "%s", qk_backend_error(r.backend));
    REQUIRE(qk_host_register(r.backend, map, 4096, error, sizeof(error)) == QK_OK);
    REQUIRE(qk_host_register(r.backend, map + 4096, 4096, error, sizeof(error)) == QK_NO_MEMORY);
    REQUIRE(strstr(error, "refused") != NULL);
    REQUIRE(qk_host_register(r.backend, map + 4096, 4096, error, sizeof(error)) == QK_OK);
    qk_mock_refuse_register(r.backend, QK_MOCK_ALL);
    for (int i = 0; i < 3; i++)
        REQUIRE(qk_host_register(r.backend, map + 8192, 4096, error, sizeof(error)) == QK_NO_MEMORY);
    REQUIRE(qk_host_register(r.backend, map + 8192, 1, error, sizeof(error)) == QK_INVALID);
    REQUIRE(strstr(error, "4096") != NULL);
    REQUIRE(qk_host_register(r.backend, map + 8192, 4096, NULL, 0) == QK_NO_MEMORY);
    REQUIRE(strcmp(qk_backend_error(r.backend), line) == 0);
    /* It works all the same, without an address. */
    REQUIRE(qk_buffer_wrap(r.backend, map, MAP_BYTES, &wrapped) == QK_OK && wrapped->address == 0);
    copy_around(r.backend, wrapped, map);
    qk_buffer_free(wrapped);
    qk_mock_refuse_register(r.backend, 0);
    REQUIRE(qk_host_register(r.backend, map + 8192, 4096, error, sizeof(error)) == QK_OK);
    for (int i = 0; i < 3; i++)
        qk_host_unregister(r.backend, map + i * 4096);
    REQUIRE(munmap(map, MAP_BYTES) == 0);
    device_close(&r);
}

static void *register_often(void *user)
{
    qk_backend *backend = user;
    char error[256];
    unsigned char *map = map_new();
    for (int i = 0; i < 300; i++) {
        REQUIRE(qk_host_register(backend, map, MAP_BYTES, error, sizeof(error)) == QK_OK);
        qk_host_unregister(backend, map);
    }
    REQUIRE(munmap(map, MAP_BYTES) == 0);
    return NULL;
}

/* Beside everything else that the engine does. */
static void test_register_on_a_thread(void)
{
    fixture_model *m = model_new(false);
    for (int is_mock = 0; is_mock < 2; is_mock++) {
        device r;
        story want, got;
        pthread_t threads[2];
        device_open(&r, m, is_mock ? &(qk_mock_options){.delay_us_max = 50, .n_threads = 1} : NULL);
        REQUIRE(play(&r, &want) == QK_OK);
        for (int i = 0; i < 2; i++)
            REQUIRE(pthread_create(&threads[i], NULL, register_often, r.backend) == 0);
        REQUIRE(play(&r, &got) == QK_OK);
        REQUIRE(memcmp(&want, &got, sizeof(want)) == 0);
        for (int i = 0; i < 2; i++)
            pthread_join(threads[i], NULL);
        device_close(&r);
    }
    fixture_model_free(m);
}

static void test_lost_with_host_memory(void)
{
    char error[256] = "";
    device r;
    device_open(&r, NULL, &(qk_mock_options){.n_threads = 1, .lose_at = 1});
    unsigned char *map = map_new();
    qk_buffer *device_buffer, *wrapped, *other;
    qk_event *event;
    REQUIRE(qk_host_register(r.backend, map, 8192, error, sizeof(error)) == QK_OK);
    REQUIRE(qk_buffer_wrap(r.backend, map, 8192, &wrapped) == QK_OK);
    REQUIRE(qk_buffer_new(r.backend, QK_MEMORY_DEVICE, 4096, &device_buffer) == QK_OK);
    REQUIRE(qk_event_new(r.backend, &event) == QK_OK);
    memset(map, 3, MAP_BYTES);
    const qk_copy copies[3] = {{wrapped, 0, device_buffer, 0, 4096}, {wrapped, 4096, device_buffer, 0, 4096},
        {wrapped, 0, device_buffer, 0, 4096}};
    REQUIRE(qk_copy_submit(r.backend, QK_STREAM_TO_HOST, copies, 3) == QK_OK);
    qk_event_record(event, QK_STREAM_TO_HOST);
    REQUIRE(qk_event_wait(event) == QK_DEVICE_LOST);
    REQUIRE(qk_host_register(r.backend, map + 8192, 4096, error, sizeof(error)) == QK_DEVICE_LOST);
    REQUIRE(strstr(error, "lost") != NULL);
    REQUIRE(qk_buffer_wrap(r.backend, map, 8192, &other) == QK_DEVICE_LOST && other == NULL);
    qk_host_unregister(r.backend, map);
    for (int i = 0; i < MAP_BYTES; i++)
        REQUIRE(map[i] == 3); /* what the host had is there still */
    qk_event_free(event);
    qk_buffer_free(wrapped);
    qk_buffer_free(device_buffer);
    REQUIRE(munmap(map, MAP_BYTES) == 0);
    device_close(&r);
}

/* ---- What aborts ---- */

/* In a child, since it ends in abort(). */
static void require_abort(void (*misuse)(void))
{
    fflush(stdout);
    pid_t child = fork();
    REQUIRE(child >= 0);
    if (child == 0) {
        setrlimit(RLIMIT_CORE, &(struct rlimit){0});
        REQUIRE(freopen("/dev/null", "w", stderr) != NULL);
        misuse();
        _exit(0);
    }
    int status;
    REQUIRE(waitpid(child, &status, 0) == child);
    REQUIRE(WIFSIGNALED(status) && WTERMSIG(status) == SIGABRT);
}

static void free_in_flight(void)
{
    qk_backend *backend;
    qk_buffer *a;
    char error[256];
    qk_mock_open(&(qk_mock_options){.delay_us_max = 20000, .n_threads = 1}, &backend, error, sizeof(error));
    qk_buffer_new(backend, QK_MEMORY_DEVICE, 64, &a);
    for (int i = 0; i < 200; i++)
        qk_fill_submit(backend, QK_STREAM_COMPUTE, a, 0, 64, 0);
    qk_buffer_free(a);
}

/* 200 late copies from wrapped registered memory. */
static qk_backend *copy_wrapped(void *map, qk_buffer **wrapped)
{
    qk_backend *backend;
    qk_buffer *to;
    char error[256];
    qk_mock_open(&(qk_mock_options){.delay_us_max = 20000, .n_threads = 1}, &backend, error, sizeof(error));
    qk_host_register(backend, map, MAP_BYTES, error, sizeof(error));
    qk_buffer_wrap(backend, map, MAP_BYTES, wrapped);
    qk_buffer_new(backend, QK_MEMORY_DEVICE, MAP_BYTES, &to);
    const qk_copy copy = {to, 0, *wrapped, 0, MAP_BYTES};
    for (int i = 0; i < 200; i++)
        qk_copy_submit(backend, QK_STREAM_TO_DEVICE, &copy, 1);
    return backend;
}

static void free_wrapped_in_flight(void)
{
    qk_buffer *wrapped;
    copy_wrapped(map_new(), &wrapped);
    qk_buffer_free(wrapped);
}

static void unregister_in_flight(void)
{
    qk_buffer *wrapped;
    void *map = map_new();
    qk_host_unregister(copy_wrapped(map, &wrapped), map);
}

static void close_registered(void)
{
    qk_backend *backend;
    char error[256];
    qk_mock_open(&(qk_mock_options){.n_threads = 1}, &backend, error, sizeof(error));
    qk_host_register(backend, map_new(), MAP_BYTES, error, sizeof(error));
    qk_backend_free(backend);
}

static void test_aborts(void)
{
    require_abort(free_in_flight);
    require_abort(free_wrapped_in_flight);
    require_abort(unregister_in_flight);
    require_abort(close_registered);
}

int main(void)
{
    static const struct {
        const char *name;
        void (*run)(void);
    } tests[] = {
        {"aborts", test_aborts},
        {"equal-bits", test_equal_bits},
        {"weights-copied", test_weights_copied},
        {"memory", test_memory},
        {"missing-event", test_missing_event},
        {"upload-order", test_upload_order},
        {"steps-are-late", test_steps_are_late},
        {"out-of-memory", test_out_of_memory},
        {"lost", test_lost},
        {"load-given-up", test_load_given_up},
        {"wrap-cpu", test_wrap_cpu},
        {"wrap", test_wrap},
        {"register-refused", test_register_refused},
        {"register-on-a-thread", test_register_on_a_thread},
        {"lost-with-host-memory", test_lost_with_host_memory},
    };
    const int n = (int)(sizeof(tests) / sizeof(tests[0]));
    setvbuf(stdout, NULL, _IOLBF, 0);
    alarm(240); /* a deadlock fails the test instead of hanging it */
    printf("1..%d\n", n);
    for (int i = 0; i < n; i++) {
        tests[i].run();
        printf("ok %d - /kernels/mock/%s\n", i + 1, tests[i].name);
    }
    return 0;
}
