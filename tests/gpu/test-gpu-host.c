/* test-gpu-host.c: KV pages in host memory, through qk.h: the bits of every step must be those of the same pages in
 * device memory.
 *
 *   test-gpu-host [--path portable|hopper] [--self] [--small]     the checks
 *   test-gpu-host --bench [--layers N] [--tokens N]      times at the shape of a 4B model with random weights
 *
 * --self: the CPU backend in the module's place, which checks these checks on a machine without a GPU. --small: pages lie in
 * one order on the host, not in three, for sanitizers.
 *
 * A prompt is computed over device pages. Its pages are then copied to registered host memory (one mapping, registered in
 * two pieces, so that neighbours may belong to different registrations), and wherever a case puts a page on the host its
 * copy on the device becomes NaN. Rows behind the prompt are then computed over the mixture and compared by memcmp. */
#include "tests/gpu/host-bench.h"
#include "tests/gpu/gpu-paths.h"
#include "tests/kernels/fixture.h"
#include "tests/kernels/tap.h"
#include <math.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>

enum { ROWS_MAX = 640, SEQS_MAX = 8, MAX_PAGES = 512, N_PROMPT = 5003, VOCAB = 512 };

static struct {
    const char *backend, *isa, *name; /* what is tested */
    bool self, small;
} subject = {.backend = "cuda"};

static void require_ok(qk_backend *backend, qk_status status, const char *what)
{
    if (status != QK_OK)
        tap_note("%s: %s: %s", what, qk_status_name(status), qk_backend_error(backend));
    tap_require(status == QK_OK);
}

static uint32_t below(uint64_t *seed, uint32_t n)
{
    return (uint32_t)((fixture_random(seed) + 1) / 2 * n);
}

static double now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

/* ---- Memory ------------------------------------------------------------------------------------------------------ */

/* A mapping of the caller's own, registered in pieces. */
typedef struct {
    qk_backend *backend;
    char *memory;
    uint64_t bytes, piece;
    qk_buffer *buffer; /* over all of it; address 0, since no single registration covers it */
} slab;

static void slab_map(slab *s, qk_backend *backend, uint64_t bytes, uint64_t piece)
{
    s->backend = backend;
    s->piece = (piece + 4095) / 4096 * 4096;
    s->bytes = (bytes + s->piece - 1) / s->piece * s->piece;
    s->memory = mmap(NULL, s->bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    tap_require(s->memory != MAP_FAILED);
}

static void slab_register(slab *s)
{
    char error[256] = "";
    for (uint64_t at = 0; at < s->bytes; at += s->piece) {
        const qk_status status = qk_host_register(s->backend, s->memory + at, s->piece, error, sizeof(error));
        if (status != QK_OK)
            tap_note("%s", error);
        tap_require(status == QK_OK);
    }
}

static void slab_free(slab *s)
{
    for (uint64_t at = 0; at < s->bytes; at += s->piece)
        qk_host_unregister(s->backend, s->memory + at);
    munmap(s->memory, s->bytes);
}

/* Where the device sees a byte of it. */
static uint64_t slab_address(const slab *s, uint64_t offset)
{
    qk_buffer *buffer;
    const uint64_t piece = offset / s->piece * s->piece;
    require_ok(s->backend, qk_buffer_wrap(s->backend, s->memory + piece, s->piece, &buffer), "wrapping");
    const uint64_t address = buffer->address;
    qk_buffer_free(buffer);
    tap_require(address != 0);
    return address + (offset - piece);
}

/* ---- A world: a model, a prompt in device pages, its copy on the host ---------------------------------------------- */

typedef struct {
    fixture_model *source;
    qk_backend *backend;
    qk_model *model;
    qk_context *context;
    qk_context_params params;
    qk_step *steps[2];
    qk_kv_layout layout; /* of the class in use */
    uint32_t kv_class;
    uint32_t n_pages; /* of the prompt, the last not full, and as many more for its continuations */
    qk_buffer *pages; /* [n_pages]: the prompt, and behind it what continuations write */
    qk_buffer *mixed; /* [n_pages]: the prompt with NaN in what is on the host */
    char *copy;       /* [n_pages] pages of the prompt, as the device has them */
    slab host;        /* [n_pages] pages, in the order of `place` */
    uint32_t place[MAX_PAGES];
    uint64_t host_address[MAX_PAGES];
    bool on_host[MAX_PAGES];
    int32_t tokens[N_PROMPT + ROWS_MAX];
    float *want, *got; /* [ROWS_MAX, VOCAB] */
    uint64_t seed;
} world;

static void context_open(world *w, uint64_t ring_bytes)
{
    w->params.ring_bytes = ring_bytes;
    require_ok(w->backend, qk_context_new(w->model, &w->params, &w->context), "context");
    for (int i = 0; i < 2; i++)
        require_ok(w->backend, qk_step_new(w->context, &w->steps[i]), "step");
}

static void context_close(world *w)
{
    qk_step_free(w->steps[0]);
    qk_step_free(w->steps[1]);
    qk_context_free(w->context);
}

/* A sequence of a step: rows behind the first @start tokens of the prompt. */
typedef struct {
    uint32_t start, n_rows;
    bool streams; /* its pages before @start lie where `on_host` says; else all of them in device memory */
} part;

static uint64_t page_address(const world *w, uint32_t page, bool mixed)
{
    if (mixed && w->on_host[page])
        return w->host_address[page] | QK_PAGE_HOST;
    return (mixed ? w->mixed : w->pages)->address + page * w->layout.page_bytes;
}

/* All sequences share the prompt's pages; what they write lies in pages of their own, where they continue the prompt. */
static void fill(
    world *w, uint32_t step, const part *parts, uint32_t n, qk_host_path path, const uint32_t *tails)
{
    qk_plan *plan = qk_step_plan(w->steps[step]);
    plan->n_rows = plan->n_pages = plan->n_outputs = 0;
    plan->n_seqs = n;
    plan->kv_class = w->kv_class;
    plan->host_path = path;
    for (uint32_t i = 0; i < n; i++) {
        const uint32_t end = parts[i].start + parts[i].n_rows, own = parts[i].start / QK_PAGE_TOKENS;
        qk_seq *seq = &plan->seqs[i];
        *seq = (qk_seq){.row_begin = plan->n_rows,
            .n_rows = parts[i].n_rows,
            .start = parts[i].start,
            .page_begin = plan->n_pages,
            .n_pages = (end + QK_PAGE_TOKENS - 1) / QK_PAGE_TOKENS};
        for (uint32_t p = 0; p < seq->n_pages; p++)
            plan->pages[plan->n_pages++] =
                p < own ? page_address(w, p, parts[i].streams) : page_address(w, tails[i] + p - own, false);
        for (uint32_t r = 0; r < parts[i].n_rows; r++) {
            plan->tokens[plan->n_rows] = w->tokens[parts[i].start + r];
            plan->outputs[plan->n_outputs++] =
                (qk_output){.row = plan->n_rows++, .flags = QK_OUTPUT_LOGITS, .slot = QK_NO_SLOT};
        }
    }
}

static void copy_page(const world *w, uint32_t to, uint32_t from)
{
    const uint64_t bytes = w->layout.page_bytes;
    require_ok(w->backend,
        qk_copy_submit(w->backend, QK_STREAM_COMPUTE,
            &(qk_copy){w->pages, to * bytes, w->pages, from * bytes, bytes}, 1),
        "copying a page");
}

/* Pages that the sequences write: behind the prompt's, the first a copy of the prompt's page in which they start. */
static void give_tails(world *w, const part *parts, uint32_t n, uint32_t *tails)
{
    uint32_t at = (N_PROMPT + QK_PAGE_TOKENS - 1) / QK_PAGE_TOKENS;
    for (uint32_t i = 0; i < n; i++) {
        const uint32_t own = parts[i].start / QK_PAGE_TOKENS;
        tails[i] = at;
        if (parts[i].start % QK_PAGE_TOKENS != 0)
            copy_page(w, at, own);
        at += (parts[i].start % QK_PAGE_TOKENS + parts[i].n_rows + QK_PAGE_TOKENS - 1) / QK_PAGE_TOKENS;
    }
    tap_require(at <= w->n_pages);
}

static qk_status run(world *w, const part *parts, uint32_t n, qk_host_path path, float *logits)
{
    uint32_t tails[SEQS_MAX];
    give_tails(w, parts, n, tails);
    fill(w, 0, parts, n, path, tails);
    qk_status status = qk_step_submit(w->steps[0]);
    if (status == QK_OK)
        status = qk_step_wait(w->steps[0]);
    if (status == QK_OK)
        memcpy(logits, qk_step_result(w->steps[0])->logits,
            (size_t)qk_step_plan(w->steps[0])->n_rows * VOCAB * sizeof(float));
    return status;
}

/* ---- Moving pages ------------------------------------------------------------------------------------------------ */

typedef enum { ADJACENT, SCATTERED, REVERSED, N_ORDERS } order;
static const char *const order_names[N_ORDERS] = {"adjacent", "scattered", "reversed"};

/* Host copies of all pages of the prompt. */
static void place_on_host(world *w, order o)
{
    const uint32_t n = N_PROMPT / QK_PAGE_TOKENS;
    for (uint32_t p = 0; p < n; p++)
        w->place[p] = o == REVERSED ? n - 1 - p : p;
    for (uint32_t p = n - 1; o == SCATTERED && p > 0; p--) {
        const uint32_t j = below(&w->seed, p + 1), page = w->place[p];
        w->place[p] = w->place[j];
        w->place[j] = page;
    }
    for (uint32_t p = 0; p < n; p++) {
        memcpy(w->host.memory + w->place[p] * w->layout.page_bytes, w->copy + p * w->layout.page_bytes,
            w->layout.page_bytes);
        w->host_address[p] = slab_address(&w->host, w->place[p] * w->layout.page_bytes);
    }
}

typedef enum { ALL_BEFORE, RANDOM_HALF, PREFIX, SUFFIX, ONE, N_CHOICES } choice;
static const char *const choice_names[N_CHOICES] = {
    "all pages", "a random half", "the first third", "the last third", "one page"};

/* Which of the first @n pages go to the host; what stands for them on the device becomes NaN. */
static void choose(world *w, choice c, uint32_t n)
{
    const uint64_t bytes = w->layout.page_bytes;
    memset(w->on_host, 0, sizeof(w->on_host));
    require_ok(w->backend,
        qk_copy_submit(
            w->backend, QK_STREAM_COMPUTE, &(qk_copy){w->mixed, 0, w->pages, 0, w->n_pages * bytes}, 1),
        "copying the prompt");
    for (uint32_t p = 0; p < n; p++) {
        w->on_host[p] = c == ALL_BEFORE || (c == RANDOM_HALF && below(&w->seed, 2)) ||
                        (c == PREFIX && p < n / 3) || (c == SUFFIX && p >= n - n / 3) ||
                        (c == ONE && p == n / 2);
        if (w->on_host[p])
            require_ok(w->backend,
                qk_fill_submit(w->backend, QK_STREAM_COMPUTE, w->mixed, p * bytes, bytes, 0x7fc07fc0),
                "poisoning");
    }
}

/* ---- Opening ----------------------------------------------------------------------------------------------------- */

/* Rows of the second class lie further apart. */
static qk_kv_layout wide_layout(const qk_shape *shape)
{
    qk_kv_layout l = {.dtype = QK_BF16, .token_stride = 2 * shape->head_dim + 32};
    l.v_offset = QK_PAGE_TOKENS * l.token_stride;
    l.head_stride = 2 * l.v_offset + 64;
    l.layer_stride = shape->n_kv_heads * l.head_stride;
    l.page_bytes = shape->n_layers * l.layer_stride;
    return l;
}

/* Of the second class. @dtype: QK_BF16, in rows that lie further apart, or QK_I8. */
static void second_layout(const qk_shape *shape, qk_dtype dtype, qk_kv_layout *out)
{
    if (dtype == QK_I8)
        qk_kv_layout_page_major(shape, QK_I8, out);
    else
        *out = wide_layout(shape);
}

static void world_open(world *w, const qk_shape *shape, uint32_t kv_class, qk_dtype second)
{
    char error[256] = "";
    memset(w, 0, sizeof(*w));
    w->seed = 77 + shape->head_dim;
    w->kv_class = kv_class;
    w->source = fixture_model_new(shape, QK_BF16, 5);
    const qk_status opened = qk_backend_open(
        subject.backend, &(qk_backend_options){.isa = subject.isa}, &w->backend, error, sizeof(error));
    if (opened != QK_OK)
        tap_note("%s", error);
    tap_require(opened == QK_OK);
    require_ok(w->backend, qk_model_load(w->backend, &w->source->desc, NULL, NULL, &w->model), "model");
    w->params = (qk_context_params){.rows_max = ROWS_MAX,
        .seqs_max = SEQS_MAX,
        .pages_max = SEQS_MAX * MAX_PAGES,
        .outputs_max = ROWS_MAX,
        .logits_max = ROWS_MAX};
    qk_kv_layout_page_major(shape, QK_BF16, &w->params.layout);
    second_layout(shape, second, &w->params.layout_1);
    w->layout = kv_class == 0 ? w->params.layout : w->params.layout_1;
    w->n_pages = (N_PROMPT + ROWS_MAX) / QK_PAGE_TOKENS + 2 * SEQS_MAX;
    tap_require(w->n_pages <= MAX_PAGES);
    const uint64_t bytes = w->n_pages * w->layout.page_bytes;
    require_ok(w->backend, qk_buffer_new(w->backend, QK_MEMORY_DEVICE, bytes, &w->pages), "pages");
    require_ok(w->backend, qk_buffer_new(w->backend, QK_MEMORY_DEVICE, bytes, &w->mixed), "pages");
    require_ok(
        w->backend, qk_fill_submit(w->backend, QK_STREAM_COMPUTE, w->pages, 0, bytes, 0x7fc07fc0), "fill");
    slab_map(&w->host, w->backend, bytes, (bytes / 2 / w->layout.page_bytes) * w->layout.page_bytes);
    slab_register(&w->host);
    w->copy = aligned_alloc(4096, (bytes + 4095) / 4096 * 4096);
    w->want = malloc(ROWS_MAX * VOCAB * sizeof(float));
    w->got = malloc(ROWS_MAX * VOCAB * sizeof(float));
    tap_require(w->copy != NULL && w->want != NULL && w->got != NULL);
    for (uint32_t i = 0; i < N_PROMPT + ROWS_MAX; i++)
        w->tokens[i] = (int32_t)below(&w->seed, VOCAB);
}

/* Computes the prompt and keeps its pages. */
static void compute_prompt(world *w)
{
    const uint64_t bytes = w->n_pages * w->layout.page_bytes;
    context_open(w, 0);
    for (uint32_t at = 0; at < N_PROMPT; at += ROWS_MAX) {
        const uint32_t n = N_PROMPT - at < ROWS_MAX ? N_PROMPT - at : ROWS_MAX;
        const uint32_t own = at / QK_PAGE_TOKENS;
        tap_require(at % QK_PAGE_TOKENS == 0);
        fill(w, 0, &(part){at, n, false}, 1, QK_HOST_READ, &own);
        qk_step_plan(w->steps[0])->n_outputs = 0;
        require_ok(w->backend, qk_step_submit(w->steps[0]), "prompt");
        require_ok(w->backend, qk_step_wait(w->steps[0]), "prompt");
    }
    qk_buffer *copy;
    qk_event *event;
    require_ok(
        w->backend, qk_buffer_wrap(w->backend, w->copy, (bytes + 4095) / 4096 * 4096, &copy), "wrapping");
    if (!subject.self)
        tap_ok(copy->address == 0, "%s: memory that is not registered has no device address", subject.name);
    require_ok(w->backend,
        qk_copy_submit(w->backend, QK_STREAM_COMPUTE, &(qk_copy){copy, 0, w->pages, 0, bytes}, 1), "saving");
    require_ok(w->backend, qk_event_new(w->backend, &event), "event");
    require_ok(w->backend, qk_event_record(event, QK_STREAM_COMPUTE), "event");
    require_ok(w->backend, qk_event_wait(event), "event");
    qk_event_free(event);
    qk_buffer_free(copy);
    context_close(w);
}

static void world_close(world *w)
{
    slab_free(&w->host);
    qk_buffer_free(w->pages);
    qk_buffer_free(w->mixed);
    qk_model_free(w->model);
    qk_backend_free(w->backend);
    fixture_model_free(w->source);
    free(w->copy);
    free(w->want);
    free(w->got);
}

/* ---- The same bits ------------------------------------------------------------------------------------------------- */

static const struct {
    const char *name;
    part parts[SEQS_MAX];
    uint32_t n;
} steps[] = {
    {"2 rows", {{4700, 2, true}}, 1},
    {"64 rows", {{4888, 64, true}}, 1},
    {"65 rows", {{3001, 65, true}}, 1},
    {"640 rows", {{N_PROMPT, ROWS_MAX, true}}, 1},
    {"two prompts and three replies",
        {{1500, 90, true}, {4000, 1, true}, {2000, 33, false}, {700, 1, false}, {4500, 200, true},
            {31, 1, true}},
        6},
    {"one reply", {{4999, 1, true}}, 1},
    {"five replies", {{4999, 1, true}, {300, 1, true}, {4000, 1, false}, {2559, 1, true}, {17, 1, false}}, 5},
};

static uint32_t n_rows_of(uint32_t step)
{
    uint32_t n = 0;
    for (uint32_t i = 0; i < steps[step].n; i++)
        n += steps[step].parts[i].n_rows;
    return n;
}

static bool is_decode(uint32_t step)
{
    return n_rows_of(step) == steps[step].n;
}

/* Every step over every choice of pages, in one context. Returns how many differ from the same without host pages. */
static uint32_t count_different(world *w, order o, uint32_t *n_compared)
{
    uint32_t n_different = 0;
    place_on_host(w, o);
    for (uint32_t s = 0; s < sizeof(steps) / sizeof(steps[0]); s++) {
        const size_t bytes = (size_t)n_rows_of(s) * VOCAB * sizeof(float);
        part on_device[SEQS_MAX];
        memcpy(on_device, steps[s].parts, sizeof(on_device));
        for (uint32_t i = 0; i < steps[s].n; i++)
            on_device[i].streams = false;
        require_ok(w->backend, run(w, on_device, steps[s].n, QK_HOST_READ, w->want), steps[s].name);
        for (choice c = 0; c < N_CHOICES; c++) {
            choose(w, c, steps[s].parts[0].start / QK_PAGE_TOKENS);
            for (int path = is_decode(s) ? QK_HOST_READ : QK_HOST_STREAM; path <= QK_HOST_STREAM; path++) {
                memset(w->got, 0xff, bytes);
                require_ok(w->backend, run(w, steps[s].parts, steps[s].n, (qk_host_path)path, w->got),
                    steps[s].name);
                const bool same = memcmp(w->want, w->got, bytes) == 0;
                n_different += !same;
                ++*n_compared;
                if (!same)
                    tap_note("%s, %s on the host, %s, %s, ring of %llu: not the same bits", steps[s].name,
                        choice_names[c], order_names[o], path == QK_HOST_READ ? "read" : "streamed",
                        (unsigned long long)w->params.ring_bytes);
            }
        }
    }
    return n_different;
}

/* A host page with another page's content must show: so what is compared above depends on it. (Two that take each other's
 * place need not: keys carry their positions, so only the order of a sum changes.) */
static void test_mutation(world *w)
{
    const uint64_t bytes = w->layout.page_bytes;
    const uint32_t picked[] = {3, 5, 6}; /* 640 rows, a reply, five replies */
    uint32_t n_seen = 0, n = 0;
    place_on_host(w, ADJACENT);
    for (uint32_t k = 0; k < 3; k++) {
        const uint32_t s = picked[k];
        choose(w, ALL_BEFORE, steps[s].parts[0].start / QK_PAGE_TOKENS);
        for (int path = is_decode(s) ? QK_HOST_READ : QK_HOST_STREAM; path <= QK_HOST_STREAM; path++) {
            const size_t size = (size_t)n_rows_of(s) * VOCAB * sizeof(float);
            place_on_host(w, ADJACENT);
            require_ok(
                w->backend, run(w, steps[s].parts, steps[s].n, (qk_host_path)path, w->want), steps[s].name);
            memcpy(w->host.memory + 40 * bytes, w->copy + 150 * bytes, bytes);
            require_ok(
                w->backend, run(w, steps[s].parts, steps[s].n, (qk_host_path)path, w->got), steps[s].name);
            const bool shows = memcmp(w->want, w->got, size) != 0;
            if (!shows)
                tap_note("%s, %s: another page's content does not show", steps[s].name,
                    path == QK_HOST_READ ? "read in place" : "streamed");
            n_seen += shows;
            n++;
        }
    }
    tap_ok(n_seen == n, "%s, head_dim %u: a page with another content shows in %u of %u steps", subject.name,
        w->source->desc.shape.head_dim, n_seen, n);
}

static void *register_elsewhere(void *user)
{
    world *w = user;
    char error[256];
    uintptr_t n_failed = 0;
    for (int i = 0; i < 20; i++) {
        slab s;
        slab_map(&s, w->backend, 1 << 20, 1 << 20);
        n_failed += qk_host_register(w->backend, s.memory, s.bytes, error, sizeof(error)) != QK_OK;
        slab_free(&s);
    }
    return (void *)n_failed;
}

/* Streamed steps given up in the middle; and memory registered on another thread meanwhile. */
static void test_cancel(world *w)
{
    const part whole = {N_PROMPT, ROWS_MAX, true};
    const size_t bytes = (size_t)ROWS_MAX * VOCAB * sizeof(float);
    uint32_t n_cancelled = 0, n_done = 0, n_other = 0, n_wrong = 0, tails[1];
    pthread_t thread;
    void *n_failed = NULL;
    place_on_host(w, SCATTERED);
    choose(w, ALL_BEFORE, N_PROMPT / QK_PAGE_TOKENS);
    require_ok(w->backend, run(w, &whole, 1, QK_HOST_READ, w->want), "a prompt");
    tap_require(pthread_create(&thread, NULL, register_elsewhere, w) == 0);
    for (uint32_t k = 0; k < 24; k++) {
        give_tails(w, &whole, 1, tails);
        for (uint32_t i = 0; i < 2; i++) {
            fill(w, i, &whole, 1, QK_HOST_READ, tails);
            require_ok(w->backend, qk_step_submit(w->steps[i]), "a step to cancel");
        }
        const double begin = now();
        while (now() - begin < k % 8 * 100e-6)
            ;
        for (uint32_t i = 0; i < 2; i++)
            qk_step_cancel(w->steps[i]);
        for (uint32_t i = 0; i < 2; i++) {
            const qk_status status = qk_step_wait(w->steps[i]);
            n_cancelled += status == QK_CANCELLED;
            n_done += status == QK_OK;
            n_other += status != QK_OK && status != QK_CANCELLED;
        }
        if (k % 4 == 0) {
            require_ok(w->backend, run(w, &whole, 1, QK_HOST_READ, w->got), "a prompt after cancelling");
            n_wrong += memcmp(w->want, w->got, bytes) != 0;
        }
    }
    pthread_join(thread, &n_failed);
    tap_ok(n_other == 0 && n_wrong == 0,
        "%s: of 48 streamed steps %u were cancelled, %u done; the steps after them have the same bits",
        subject.name, n_cancelled, n_done);
    tap_ok(n_failed == NULL, "%s: memory is registered on another thread meanwhile", subject.name);
}

static void test_refusals(world *w)
{
    const uint64_t slice = w->layout.layer_stride;
    char error[256] = "";
    qk_context *context = NULL;
    qk_context_params params = w->params;
    qk_sizes without, with;
    if (subject.self)
        return;
    context_open(w, 0);
    choose(w, ALL_BEFORE, N_PROMPT / QK_PAGE_TOKENS);
    qk_status status = run(w, &(part){N_PROMPT, 2, true}, 1, QK_HOST_READ, w->got);
    tap_ok(status == QK_UNSUPPORTED, "%s: host pages without a ring: %s", subject.name,
        qk_backend_error(w->backend));
    status = run(w, &(part){N_PROMPT, 1, true}, 1, QK_HOST_STREAM, w->got);
    tap_ok(status == QK_UNSUPPORTED, "and streamed in a reply: %s", qk_backend_error(w->backend));
    require_ok(
        w->backend, run(w, &(part){N_PROMPT, 1, true}, 1, QK_HOST_READ, w->got), "a reply without a ring");
    require_ok(w->backend, run(w, &(part){N_PROMPT, 2, false}, 1, QK_HOST_READ, w->got),
        "device pages without a ring");
    context_close(w);
    params.ring_bytes = 20 * slice;
    status = qk_context_new(w->model, &params, &context);
    tap_ok(status == QK_UNSUPPORTED && context == NULL, "too small a ring: %s", qk_backend_error(w->backend));
    params.ring_bytes = 0;
    require_ok(w->backend, qk_context_measure(w->model, &params, &without), "measuring");
    params.ring_bytes = 64 << 20;
    require_ok(w->backend, qk_context_measure(w->model, &params, &with), "measuring");
    tap_ok(with.device_bytes >= without.device_bytes + (64 << 20), "the ring counts: %llu bytes more",
        (unsigned long long)(with.device_bytes - without.device_bytes));

    status = qk_host_register(w->backend, w->host.memory, w->host.piece, error, sizeof(error));
    tap_ok(status == QK_NO_MEMORY && error[0] != '\0', "registered twice: %s", error);
    qk_host_unregister(w->backend, w->copy);
    tap_ok(true, "what is not registered is ignored");
}

/* ---- All of it ----------------------------------------------------------------------------------------------------- */

static void test_world(const qk_shape *shape, uint32_t kv_class, qk_dtype second)
{
    world *w = calloc(1, sizeof(*w));
    tap_require(w != NULL);
    world_open(w, shape, kv_class, second);
    compute_prompt(w);
    /* In spans of a layer of the larger layout: the least, an odd number, less than a sequence, all. */
    const uint64_t stride = w->params.layout.layer_stride, stride_1 = w->params.layout_1.layer_stride;
    const uint64_t span = QK_SPAN_TOKENS / QK_PAGE_TOKENS * (stride > stride_1 ? stride : stride_1);
    const uint64_t rings[] = {2 * span + 512, 7 * span + 48, 16 * span, 64 * span};
    for (uint32_t r = 0; r < sizeof(rings) / sizeof(rings[0]); r++) {
        uint32_t n = 0, n_different = 0;
        context_open(w, rings[r]);
        for (order o = subject.small ? SCATTERED : 0; o < (subject.small ? SCATTERED + 1 : N_ORDERS); o++)
            n_different += count_different(w, o, &n);
        tap_ok(n_different == 0,
            "%s, head_dim %u, class %u%s, ring of %llu: %u of %u steps have the same bits", subject.name,
            shape->head_dim, kv_class, w->layout.dtype == QK_I8 ? " of int8" : "",
            (unsigned long long)rings[r], n - n_different, n);
        if (r == (subject.self ? 0u : 1u)) {
            test_mutation(w);
            test_cancel(w);
        }
        context_close(w);
        if (subject.self && r == 0)
            break;
    }
    if (kv_class == 0)
        test_refusals(w);
    world_close(w);
    free(w);
}

static qk_shape shape_of(uint32_t head_dim, uint32_t n_heads, uint32_t n_kv_heads)
{
    return (qk_shape){.n_layers = 3,
        .n_heads = n_heads,
        .n_kv_heads = n_kv_heads,
        .head_dim = head_dim,
        .hidden = 256,
        .ffn = 256,
        .vocab = VOCAB,
        .max_positions = 8192,
        .rms_eps = 1e-6f,
        .rope_factor = 1};
}

int main(int argc, char **argv)
{
    const char *wanted = NULL;
    host_bench_options bench = {.n_layers = 36, .n_tokens = 250000};
    bool benches = false;
    for (int i = 1; i < argc; i++) {
        if (strcmp(argv[i], "--self") == 0)
            subject.self = true;
        else if (strcmp(argv[i], "--small") == 0)
            subject.small = true;
        else if (strcmp(argv[i], "--bench") == 0)
            benches = true;
        else if (strcmp(argv[i], "--path") == 0 && i + 1 < argc)
            wanted = argv[++i];
        else if (strcmp(argv[i], "--layers") == 0 && i + 1 < argc)
            bench.n_layers = (uint32_t)atoi(argv[++i]);
        else if (strcmp(argv[i], "--tokens") == 0 && i + 1 < argc)
            bench.n_tokens = (uint32_t)atoi(argv[++i]);
        else {
            fprintf(stderr,
                "usage: test-gpu-host [--path portable|hopper] [--self] [--small] | --bench [--layers N] "
                "[--tokens N]\n");
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
    if (benches)
        return host_bench(&bench);
    for (int p = 0; p < GPU_PATHS; p++) {
        if (!gpu_path_begin(p, wanted, subject.self, &subject.backend, &subject.isa, &subject.name))
            continue;
        const qk_shape large = shape_of(128, 8, 2), small = shape_of(64, 4, 4);
        test_world(&large, 0, QK_BF16);
        test_world(&large, 1, QK_I8);
        if (!subject.self) {
            test_world(&large, 1, QK_BF16);
            test_world(&small, 0, QK_BF16);
            test_world(&small, 1, QK_I8);
        }
    }
    return tap_done();
}
