/* test-kernels-host.c: pages in host memory of the caller's own, on the CPU backend and on the mock device: in plans with
 * QK_PAGE_HOST, outside with the attender as partial function, and pages of two classes in one context.
 *
 * Two sequences with 600 and 300 tokens in the cache go on in one step, with one row each or with many. Wherever their
 * pages lie, every logit must have the bits it has with all of them in device memory; what does not lie there is NaN
 * there. And a page of the host's that is taken for another must show. */
#include "kernels/cpu/qk-cpu-ops.h"
#include "kernels/qk-mock.h"
#include "tests/kernels/fixture.h"
#include "tests/kernels/tap.h"
#include <math.h>
#include <pthread.h>
#include <string.h>
#include <sys/mman.h>

enum {
    N_SEQS = 2,
    SEQ_PAGES = 40, /* of each sequence, whether it needs them or not */
    N_PAGES = N_SEQS * SEQ_PAGES,
    ROWS_MAX = 700,
    SPAN_PAGES = QK_SPAN_TOKENS / QK_PAGE_TOKENS,
    VOCAB = 101,
};
static const uint32_t cached[N_SEQS] = {600, 300};
static const uint32_t n_rows_few[N_SEQS] = {1, 1}, n_rows_many[N_SEQS] = {20, 3};
static const qk_shape shapes[] = {
    {2, 8, 2, 64, 48, 60, VOCAB, 4096, 1e-6f, 1, NULL},   /* 4 query heads share a kv head */
    {2, 10, 2, 128, 48, 60, VOCAB, 4096, 1e-6f, 1, NULL}, /* 5 */
};

static int32_t tokens[N_SEQS][640];
static uint32_t seq_pages[N_SEQS][SEQ_PAGES];

static void *map_new(uint64_t bytes)
{
    void *map = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    tap_require(map != MAP_FAILED);
    return map;
}

/* ---- A rig with a copy of its pages on the host -------------------------------------------------------------- */

typedef struct {
    qk_host_attender *attender;
    uint32_t n_calls, n_items;
} counted;

static qk_status counted_attend(void *user, const qk_partial_args *args)
{
    counted *c = user;
    c->n_calls++;
    c->n_items = args->n_items;
    return qk_host_attend(c->attender, args);
}

typedef enum { ON_DEVICE, ON_HOST, OUTSIDE } place;

typedef struct {
    rig r;
    counted partial;
    unsigned char *map; /* [N_PAGES] */
    uint64_t map_bytes, page_bytes;
    qk_buffer *host;
    place place[N_SEQS][SEQ_PAGES];
} world;

static qk_backend *mock_new(uint32_t n_threads, const char *isa, uint32_t delay_us_max)
{
    char error[256];
    qk_backend *mock;
    const qk_mock_options options = {
        .seed = 5, .delay_us_max = delay_us_max, .n_threads = n_threads, .isa = isa};
    tap_require(qk_mock_open(&options, &mock, error, sizeof(error)) == QK_OK);
    return mock;
}

static void wait_for(rig *r, qk_stream stream)
{
    qk_event *event;
    tap_require(qk_event_new(r->backend, &event) == QK_OK);
    tap_require(qk_event_record(event, stream) == QK_OK && qk_event_wait(event) == QK_OK);
    qk_event_free(event);
}

static void world_open(world *w, const fixture_model *model, rig_options options)
{
    char error[256] = "";
    memset(w, 0, sizeof(*w));
    options.rows_max = ROWS_MAX;
    options.n_pages = N_PAGES;
    options.partial_max = 64;
    options.partial = counted_attend;
    options.partial_user = &w->partial;
    rig_open(&w->r, model, &options);
    w->page_bytes = w->r.params.layout.page_bytes;
    w->map_bytes = (N_PAGES * w->page_bytes + 4095) / 4096 * 4096;
    w->map = map_new(w->map_bytes);
    tap_require(qk_host_register(w->r.backend, w->map, w->map_bytes, error, sizeof(error)) == QK_OK);
    tap_require(qk_buffer_wrap(w->r.backend, w->map, w->map_bytes, &w->host) == QK_OK);
    tap_require(w->host->address != 0 && w->host->host == w->map && w->host->memory == QK_MEMORY_HOST);

    /* Fill the cache and save all pages. */
    for (uint32_t s = 0; s < N_SEQS; s++) {
        rig_rows rows = {tokens[s], cached[s], 0, seq_pages[s]};
        tap_require(rig_run(&w->r, &rows, 1, NULL) == QK_OK);
    }
    const qk_copy save = {w->host, 0, w->r.pages, 0, N_PAGES * w->page_bytes};
    tap_require(qk_copy_submit(w->r.backend, QK_STREAM_TO_HOST, &save, 1) == QK_OK);
    wait_for(&w->r, QK_STREAM_TO_HOST);
}

static void world_close(world *w)
{
    wait_for(&w->r, QK_STREAM_COMPUTE);
    qk_buffer_free(w->host);
    qk_host_unregister(w->r.backend, w->map);
    munmap(w->map, w->map_bytes);
    rig_close(&w->r);
}

static void place_pages(world *w, uint32_t seq, uint32_t begin, uint32_t n, place where)
{
    for (uint32_t p = begin; p < begin + n; p++)
        w->place[seq][p] = where;
}

static unsigned char *host_page(const world *w, uint32_t page)
{
    return w->map + page * w->page_bytes;
}

/* Puts every page where it is said to be, and NaN on the device where it is not; fills the plan. */
static void world_fill(world *w, const uint32_t *n_rows)
{
    rig_rows rows[N_SEQS];
    const qk_copy restore = {w->r.pages, 0, w->host, 0, N_PAGES * w->page_bytes};
    tap_require(qk_copy_submit(w->r.backend, QK_STREAM_COMPUTE, &restore, 1) == QK_OK);
    for (uint32_t s = 0; s < N_SEQS; s++)
        rows[s] = (rig_rows){tokens[s] + cached[s], n_rows[s], cached[s], seq_pages[s]};
    rig_fill(&w->r, 0, rows, N_SEQS);
    qk_plan *plan = qk_step_plan(w->r.steps[0]);
    for (uint32_t s = 0; s < N_SEQS; s++) {
        for (uint32_t p = 0; p < plan->seqs[s].n_pages; p++) {
            const uint32_t page = seq_pages[s][p], at = plan->seqs[s].page_begin + p;
            plan->host_pages[at] = NULL;
            if (w->place[s][p] == ON_DEVICE)
                continue;
            tap_require(qk_fill_submit(w->r.backend, QK_STREAM_COMPUTE, w->r.pages, page * w->page_bytes,
                            w->page_bytes, 0x7fc07fc0) == QK_OK);
            plan->pages[at] =
                w->place[s][p] == ON_HOST ? (w->host->address + page * w->page_bytes) | QK_PAGE_HOST : 0;
            plan->host_pages[at] = w->place[s][p] == OUTSIDE ? host_page(w, page) : NULL;
        }
    }
}

static qk_status world_finish(world *w, float *logits)
{
    qk_status status = qk_step_submit(w->r.steps[0]);
    if (status == QK_OK)
        status = qk_step_wait(w->r.steps[0]);
    if (status == QK_OK)
        memcpy(logits, qk_step_result(w->r.steps[0])->logits,
            (size_t)qk_step_plan(w->r.steps[0])->n_rows * VOCAB * sizeof(*logits));
    return status;
}

static float want[2][23][VOCAB], got[23][VOCAB]; /* want: for few and for many rows */

static const uint32_t *rows_of(int many)
{
    return many ? n_rows_many : n_rows_few;
}

static bool as_wanted(world *w, int many)
{
    const uint32_t n = rows_of(many)[0] + rows_of(many)[1];
    memset(got, 0xff, sizeof(got));
    if (world_finish(w, got[0]) != QK_OK) {
        tap_note("%s", qk_backend_error(w->r.backend));
        return false;
    }
    return memcmp(got, want[many], n * sizeof(got[0])) == 0;
}

/* ---- The placements ------------------------------------------------------------------------------------------ */

static void run_placements(world *w, const char *name)
{
    static const char *const places[] = {
        "one span outside", "all spans outside", "device, host and outside mixed", "all on the host"};
    for (int many = 0; many < 2; many++) {
        for (size_t which = 0; which < 4; which++) {
            uint32_t n_spans[N_SEQS] = {0};
            memset(w->place, 0, sizeof(w->place));
            if (which == 0) {
                place_pages(w, 0, 0, SPAN_PAGES, OUTSIDE);
                n_spans[0] = 1;
            } else if (which == 1) {
                place_pages(w, 0, 0, 2 * SPAN_PAGES, OUTSIDE);
                place_pages(w, 1, 0, SPAN_PAGES, OUTSIDE);
                n_spans[0] = 2;
                n_spans[1] = 1;
            } else if (which == 2) {
                place_pages(w, 0, 0, SPAN_PAGES - 3, ON_HOST);
                place_pages(w, 0, SPAN_PAGES, SPAN_PAGES, OUTSIDE);
                place_pages(w, 0, 2 * SPAN_PAGES + 1, 3, ON_HOST);
                place_pages(w, 1, 0, SPAN_PAGES, OUTSIDE);
                n_spans[0] = n_spans[1] = 1;
            } else {
                for (uint32_t s = 0; s < N_SEQS; s++)
                    place_pages(w, s, 0, cached[s] / QK_PAGE_TOKENS, ON_HOST);
            }
            const uint32_t *n_rows = rows_of(many);
            const uint32_t n_items = n_rows[0] * n_spans[0] + n_rows[1] * n_spans[1];
            world_fill(w, n_rows);
            if (which == 3)
                qk_step_plan(w->r.steps[0])->host_path = QK_HOST_STREAM;
            w->partial.n_calls = w->partial.n_items = 0;
            tap_ok(as_wanted(w, many) && w->partial.n_calls == (n_items > 0 ? 2 : 0) &&
                       w->partial.n_items == n_items,
                "%s: %s, %s rows", name, places[which], many ? "many" : "single");
        }
    }
}

static void run_mutations(world *w, const char *name)
{
    memset(w->place, 0, sizeof(w->place));
    place_pages(w, 0, 0, SPAN_PAGES, ON_HOST);
    place_pages(w, 0, SPAN_PAGES, SPAN_PAGES, OUTSIDE);
    place_pages(w, 1, 0, SPAN_PAGES, OUTSIDE);
    qk_plan *plan = qk_step_plan(w->r.steps[0]);
    world_fill(w, n_rows_few);
    plan->host_pages[SPAN_PAGES + 5] = plan->host_pages[SPAN_PAGES + 6];
    tap_ok(!as_wanted(w, 0), "%s: mutation: a wrong page in host_pages shows", name);
    world_fill(w, n_rows_many);
    plan->host_pages[plan->seqs[1].page_begin] = plan->host_pages[SPAN_PAGES];
    tap_ok(!as_wanted(w, 1), "%s: mutation: another sequence's page in host_pages shows", name);
    world_fill(w, n_rows_few);
    plan->pages[3] = plan->pages[4];
    tap_ok(!as_wanted(w, 0), "%s: mutation: a wrong host page shows", name);
    world_fill(w, n_rows_few);
    plan->host_pages[2 * SPAN_PAGES - 1] = NULL;
    tap_ok(world_finish(w, got[0]) == QK_INVALID, "%s: an outside page without its place: %s", name,
        qk_backend_error(w->r.backend));
    world_fill(w, n_rows_few);
    tap_ok(as_wanted(w, 0), "%s: and nothing shows without a mutation", name);
}

static void test_placements(const qk_shape *shape, const char *isa, qk_dtype dtype)
{
    static const uint32_t attender_threads[] = {1, 2, 5, 0};
    static const char *const dtypes[] = {"f32", "bf16", "int8"};
    const bool is_best = qk_cpu_ops_get(isa) == qk_cpu_ops_get(NULL);
    fixture_model *model = fixture_model_new(shape, QK_BF16, 31);
    qk_kv_layout layout;
    qk_kv_layout_page_major(shape, dtype, &layout);
    for (int is_mock = 0; is_mock < 2; is_mock++) {
        world w;
        rig_options options = {.n_threads = 2, .isa = isa, .kv_dtype = dtype, .ring_bytes = 1u << 20};
        if (is_mock)
            options.opened = mock_new(2, isa, dtype == QK_BF16 ? 20 : 0);
        world_open(&w, model, options);
        for (int many = 0; many < 2 && !is_mock; many++) {
            world_fill(&w, rows_of(many));
            tap_require(world_finish(&w, want[many][0]) == QK_OK);
        }
        for (size_t i = 0; i < sizeof(attender_threads) / sizeof(attender_threads[0]); i++) {
            if (i != 1 && (is_mock || !is_best))
                continue; /* how a call is cut has nothing to do with the instruction set */
            char name[96];
            snprintf(name, sizeof(name), "%s, %s, %s, %u of %u, attender of %u", is_mock ? "mock" : "cpu",
                isa, dtypes[dtype], shape->n_heads, shape->head_dim, attender_threads[i]);
            tap_require(qk_host_attender_new(
                            isa, attender_threads[i], shape, &layout, 1, &w.partial.attender) == QK_OK);
            run_placements(&w, name);
            if (i == 1)
                run_mutations(&w, name);
            qk_host_attender_free(w.partial.attender);
        }
        world_close(&w);
    }
    fixture_model_free(model);
}

/* ---- The mock pretends to be a card -------------------------------------------------------------------------- */

static void test_card(const fixture_model *model)
{
    world w;
    rig_options options = {.kv_dtype = QK_BF16, .opened = mock_new(1, NULL, 50)};
    world_open(&w, model, options);
    qk_plan *plan = qk_step_plan(w.r.steps[0]);
    place_pages(&w, 0, 0, 4, ON_HOST);

    world_fill(&w, n_rows_few);
    tap_ok(world_finish(&w, got[0]) == QK_OK, "single rows read host pages without a ring");
    world_fill(&w, n_rows_few);
    plan->host_path = QK_HOST_STREAM;
    tap_ok(
        world_finish(&w, got[0]) == QK_UNSUPPORTED, "streaming needs one: %s", qk_backend_error(w.r.backend));
    static const uint32_t second_only[N_SEQS] = {1, 2};
    world_fill(&w, second_only);
    tap_ok(world_finish(&w, got[0]) == QK_UNSUPPORTED, "and so does a step with a sequence of two rows: %s",
        qk_backend_error(w.r.backend));
    memset(w.place, 0, sizeof(w.place));
    world_fill(&w, n_rows_many);
    tap_ok(world_finish(&w, got[0]) == QK_OK, "many rows without host pages do not");

    world_fill(&w, n_rows_few);
    plan->pages[2] |= QK_PAGE_HOST;
    tap_ok(
        world_finish(&w, got[0]) == QK_INVALID && strstr(qk_backend_error(w.r.backend), "pages[2]") != NULL,
        "a device page is not the host's: %s", qk_backend_error(w.r.backend));
    world_fill(&w, n_rows_few);
    plan->pages[2] = (uint64_t)(uintptr_t)w.map | QK_PAGE_HOST;
    tap_ok(world_finish(&w, got[0]) == QK_INVALID, "the host's address is not the device's: %s",
        qk_backend_error(w.r.backend));
    world_fill(&w, n_rows_few);
    plan->pages[2] = (w.host->address + w.map_bytes - w.page_bytes + 64) | QK_PAGE_HOST;
    tap_ok(world_finish(&w, got[0]) == QK_INVALID, "a page ends with its buffer: %s",
        qk_backend_error(w.r.backend));
    place_pages(&w, 0, 0, 4, ON_HOST);
    world_fill(&w, n_rows_few);
    wait_for(&w.r, QK_STREAM_COMPUTE); /* the copies that it made read the memory */
    qk_host_unregister(w.r.backend, w.map);
    tap_ok(world_finish(&w, got[0]) == QK_INVALID, "unregistered memory has no address any more: %s",
        qk_backend_error(w.r.backend));
    world_close(&w);

    qk_sizes small, large;
    options.opened = mock_new(1, NULL, 50);
    world_open(&w, model, options);
    qk_context_params params = w.r.params;
    tap_require(qk_context_measure(w.r.model, &params, &small) == QK_OK);
    params.ring_bytes = 1000;
    tap_require(qk_context_measure(w.r.model, &params, &large) == QK_OK);
    tap_ok(large.device_bytes == small.device_bytes + 1000 && large.host_bytes == small.host_bytes,
        "the ring is device memory");
    params.ring_bytes = UINT64_MAX;
    tap_ok(qk_context_measure(w.r.model, &params, &large) == QK_NO_MEMORY, "an absurd ring: %s",
        qk_backend_error(w.r.backend));
    world_close(&w);
}

/* ---- Page classes -------------------------------------------------------------------------------------------- */

/* A prompt in chunks of 100, each chunk in every class of @classes in turn. */
static void play_classes(rig *r, const uint32_t *classes, uint32_t n, float (*out)[300][VOCAB])
{
    for (uint32_t at = 0; at < 300; at += 100) {
        for (uint32_t i = 0; i < n; i++) {
            /* Pages of one class are clear of the other's: those of class 1 are larger and come later. */
            rig_rows rows = {tokens[i], 100, at, seq_pages[classes[i]]};
            r->kv_class = classes[i];
            tap_require(rig_run(r, &rows, 1, out[i][at]) == QK_OK);
        }
    }
}

static void test_classes(const fixture_model *model)
{
    static float alone[2][300][VOCAB], both[2][300][VOCAB], swapped[300][VOCAB];
    static const qk_dtype dtype_1 = QK_F32;
    static const uint32_t zero_one[] = {0, 1};
    const rig_options base = {.n_threads = 2, .rows_max = 100, .n_pages = N_PAGES};
    rig r;
    for (uint32_t i = 0; i < 2; i++) {
        rig_options options = base;
        options.kv_dtype = i == 0 ? QK_BF16 : dtype_1;
        rig_open(&r, model, &options);
        for (uint32_t at = 0; at < 300; at += 100) {
            rig_rows rows = {tokens[i], 100, at, seq_pages[0]};
            tap_require(rig_run(&r, &rows, 1, alone[i][at]) == QK_OK);
        }
        rig_close(&r);
    }
    for (int is_mock = 0; is_mock < 2; is_mock++) {
        rig_options options = base;
        options.kv_dtype = QK_BF16;
        options.kv_dtype_1 = &dtype_1;
        options.opened = is_mock ? mock_new(2, NULL, 50) : NULL;
        rig_open(&r, model, &options);
        memset(both, 0xff, sizeof(both));
        play_classes(&r, zero_one, 2, both);
        tap_ok(memcmp(both[0], alone[0], sizeof(both[0])) == 0, "%s: bf16 beside f32 is bf16 alone",
            is_mock ? "mock" : "cpu");
        tap_ok(memcmp(both[1], alone[1], sizeof(both[1])) == 0, "%s: and f32 is f32 alone",
            is_mock ? "mock" : "cpu");
        /* Mutation: the second prompt in the other class. */
        rig_rows rows = {tokens[1], 100, 0, seq_pages[0]};
        r.kv_class = 0;
        tap_require(rig_run(&r, &rows, 1, swapped[0]) == QK_OK);
        tap_ok(memcmp(swapped, alone[1], 100 * sizeof(swapped[0])) != 0, "%s: mutation: another class shows",
            is_mock ? "mock" : "cpu");
        rig_fill(&r, 0, &rows, 1);
        qk_step_plan(r.steps[0])->kv_class = 2;
        tap_ok(qk_step_submit(r.steps[0]) == QK_INVALID, "%s: %s", is_mock ? "mock" : "cpu",
            qk_backend_error(r.backend));
        if (is_mock) {
            /* The last page of the buffer holds a page of class 0, and half a page of class 1. */
            r.kv_class = 1;
            rig_fill(&r, 0, &(rig_rows){tokens[1], 1, 0, seq_pages[1]}, 1);
            const uint64_t end = r.pages->address + r.pages->bytes;
            qk_step_plan(r.steps[0])->pages[0] = end - r.params.layout.page_bytes;
            tap_ok(qk_step_submit(r.steps[0]) == QK_INVALID, "a page of class 1 is longer: %s",
                qk_backend_error(r.backend));
            qk_step_plan(r.steps[0])->kv_class = 0;
            tap_ok(qk_step_submit(r.steps[0]) == QK_OK && qk_step_wait(r.steps[0]) == QK_OK,
                "one of class 0 fits");
        }
        rig_close(&r);
    }
}

/* ---- The attender by itself ---------------------------------------------------------------------------------- */

enum { LIST_SPANS = 300, LIST_ROWS = 20, LIST_ITEMS = 900, LIST_PAGES = 64 };

typedef struct {
    qk_kv_layout layouts[2];
    qk_plan plan;
    qk_seq seqs[2];
    const void *host_pages[LIST_SPANS * SPAN_PAGES];
    unsigned char *bytes; /* [LIST_PAGES] pages of the larger layout */
    uint64_t page_bytes;
    qk_partial_item items[LIST_ITEMS];
    float *q, *out, *lse, *want_out, *want_lse;
    size_t out_floats, lse_floats;
} list;

static float *floats_new(size_t n, uint64_t *seed)
{
    float *f = malloc(n * sizeof(*f));
    tap_require(f != NULL);
    for (size_t i = 0; i < n; i++)
        f[i] = (float)fixture_random(seed);
    return f;
}

/* Many spans of few pages, two sequences. Pages hold numbers in both layouts: bf16 pairs are floats. */
static list *list_new(const qk_shape *shape)
{
    uint64_t seed = 4;
    list *l = calloc(1, sizeof(*l));
    tap_require(l != NULL);
    qk_kv_layout_page_major(shape, QK_BF16, &l->layouts[0]);
    qk_kv_layout_page_major(shape, QK_F32, &l->layouts[1]);
    l->page_bytes = l->layouts[1].page_bytes;
    l->bytes = (unsigned char *)floats_new(LIST_PAGES * l->page_bytes / sizeof(float), &seed);
    for (uint32_t i = 0; i < LIST_PAGES * l->page_bytes; i += 2) {
        const float f = (float)fixture_random(&seed);
        memcpy(l->bytes + i, (const char *)&f + 2, 2);
    }
    for (uint32_t p = 0; p < LIST_SPANS * SPAN_PAGES; p++)
        l->host_pages[p] = l->bytes + (p * 37 + p / 5) % LIST_PAGES * l->page_bytes;
    const uint32_t n = LIST_SPANS / 2;
    for (uint32_t s = 0; s < 2; s++)
        l->seqs[s] = (qk_seq){.row_begin = s * LIST_ROWS,
            .n_rows = LIST_ROWS,
            .start = n * QK_SPAN_TOKENS,
            .page_begin = s * n * SPAN_PAGES,
            .n_pages = n * SPAN_PAGES};
    l->plan = (qk_plan){.n_rows = 2 * LIST_ROWS,
        .n_seqs = 2,
        .n_pages = LIST_SPANS * SPAN_PAGES,
        .seqs = l->seqs,
        .host_pages = l->host_pages};
    const size_t q_dim = shape->n_heads * shape->head_dim;
    l->out_floats = LIST_ITEMS * q_dim;
    l->lse_floats = (size_t)LIST_ITEMS * shape->n_heads;
    l->q = floats_new(2 * LIST_ROWS * q_dim, &seed);
    l->out = floats_new(l->out_floats, &seed);
    l->want_out = floats_new(l->out_floats, &seed);
    l->lse = floats_new(l->lse_floats, &seed);
    l->want_lse = floats_new(l->lse_floats, &seed);
    return l;
}

static void list_free(list *l)
{
    float *all[] = {l->q, l->out, l->lse, l->want_out, l->want_lse};
    for (size_t i = 0; i < sizeof(all) / sizeof(all[0]); i++)
        free(all[i]);
    free(l->bytes);
    free(l);
}

static qk_partial_args list_args(list *l, uint32_t layer, uint32_t n_items)
{
    memset(l->out, 0xff, l->out_floats * sizeof(float));
    memset(l->lse, 0xff, l->lse_floats * sizeof(float));
    return (qk_partial_args){.plan = &l->plan,
        .layer = layer,
        .n_items = n_items,
        .items = l->items,
        .q = l->q,
        .out = l->out,
        .lse = l->lse};
}

/* Item by item. */
static void list_expect(list *l, const qk_shape *shape, uint32_t layer, uint32_t n_items)
{
    const size_t q_dim = shape->n_heads * shape->head_dim;
    for (uint32_t i = 0; i < n_items; i++) {
        const qk_partial_item *item = &l->items[i];
        const uint32_t first = l->seqs[item->seq].page_begin + item->span * SPAN_PAGES;
        tap_require(qk_host_attend_span(NULL, shape, &l->layouts[l->plan.kv_class], layer,
                        l->host_pages + first, QK_SPAN_TOKENS, l->q + item->row * q_dim,
                        l->want_out + i * q_dim, l->want_lse + i * shape->n_heads) == QK_OK);
    }
}

static bool list_equal(const list *l, const qk_shape *shape, uint32_t n_items)
{
    const size_t q_dim = shape->n_heads * shape->head_dim;
    return memcmp(l->out, l->want_out, n_items * q_dim * sizeof(float)) == 0 &&
           memcmp(l->lse, l->want_lse, n_items * shape->n_heads * sizeof(float)) == 0;
}

static uint32_t random_below(uint64_t *seed, uint32_t n)
{
    return (uint32_t)((fixture_random(seed) + 1) / 2 * n);
}

/* 0: one row over all spans of its sequence; 1: all rows over some; 2: rows with other spans each; 3: any order. */
static uint32_t list_items(list *l, int kind)
{
    uint32_t n = 0;
    uint64_t seed = 17;
    for (uint32_t s = 0; s < 2; s++) {
        for (uint32_t r = 0; r < (kind == 0 ? 1 : LIST_ROWS); r++) {
            const uint32_t n_spans = kind == 0 ? LIST_SPANS / 2 : kind == 1 ? 17 : 1 + (r + s) % 4;
            for (uint32_t i = 0; i < n_spans; i++)
                l->items[n++] = (qk_partial_item){
                    .seq = s, .row = s * LIST_ROWS + r, .span = kind == 2 ? i * 3 + r / 7 : i * 2 % 150};
        }
    }
    for (uint32_t i = n - 1; kind == 3 && i > 0; i--) {
        const uint32_t j = random_below(&seed, i + 1);
        const qk_partial_item t = l->items[i];
        l->items[i] = l->items[j];
        l->items[j] = t;
    }
    tap_require(n <= LIST_ITEMS);
    return n;
}

typedef struct {
    qk_host_attender *attender;
    const qk_shape *shape;
    list *list;
    uint32_t layer;
    bool ok;
} caller;

static void *call_often(void *user)
{
    caller *c = user;
    const uint32_t n = list_items(c->list, 1);
    list_expect(c->list, c->shape, c->layer, n);
    c->ok = true;
    for (int i = 0; i < 5; i++) {
        const qk_partial_args args = list_args(c->list, c->layer, n);
        c->ok = c->ok && qk_host_attend(c->attender, &args) == QK_OK && list_equal(c->list, c->shape, n);
    }
    return NULL;
}

static void test_attender(const qk_shape *shape)
{
    static const char *const kinds[] = {"one row", "tiles", "ragged rows", "any order"};
    static const uint32_t n_threads[] = {1, 2, 3, 8};
    qk_host_attender *a;
    list *l = list_new(shape);
    for (size_t t = 0; t < sizeof(n_threads) / sizeof(n_threads[0]); t++) {
        tap_require(qk_host_attender_new(NULL, n_threads[t], shape, l->layouts, 2, &a) == QK_OK);
        for (int kind = 0; kind < 4; kind++) {
            const uint32_t n = list_items(l, kind), layer = kind % 2;
            l->plan.kv_class = (uint32_t)t % 2;
            list_expect(l, shape, layer, n);
            const qk_partial_args args = list_args(l, layer, n);
            tap_ok(qk_host_attend(a, &args) == QK_OK && list_equal(l, shape, n),
                "heads of %u, %u threads, class %u, %u items, %s: as span by span", shape->head_dim,
                n_threads[t], l->plan.kv_class, n, kinds[kind]);
        }
        qk_host_attender_free(a);
    }

    l->plan.kv_class = 0;
    tap_require(qk_host_attender_new(NULL, 2, shape, l->layouts, 1, &a) == QK_OK);
    list_items(l, 0);
#define REFUSED(...)                                                                                         \
    do {                                                                                                     \
        qk_partial_args args = list_args(l, 0, 4);                                                           \
        qk_plan plan = l->plan;                                                                              \
        const qk_partial_item item = l->items[2];                                                            \
        const void *page = l->host_pages[7];                                                                 \
        args.plan = &plan;                                                                                   \
        __VA_ARGS__;                                                                                         \
        tap_ok(qk_host_attend(a, &args) == QK_INVALID, "refused: %s", #__VA_ARGS__);                         \
        l->items[2] = item;                                                                                  \
        l->host_pages[7] = page;                                                                             \
    } while (0)
    REFUSED(args.plan = NULL);
    REFUSED(plan.host_pages = NULL);
    REFUSED(plan.kv_class = 1);
    REFUSED(args.layer = 2);
    REFUSED(l->items[2].seq = 2);
    REFUSED(l->items[2].row = 2 * LIST_ROWS);
    REFUSED(l->items[2].span = LIST_SPANS / 2);
    REFUSED(l->items[2].span = UINT32_MAX);
    REFUSED(l->host_pages[7] = NULL);
#undef REFUSED
    const qk_partial_args none = list_args(l, 0, 0);
    tap_ok(qk_host_attend(a, &none) == QK_OK, "no items, nothing to do");

    /* Two that share it. */
    caller callers[2] = {{a, shape, l, 0, false}, {a, shape, list_new(shape), 1, false}};
    pthread_t threads[2];
    for (int i = 0; i < 2; i++)
        tap_require(pthread_create(&threads[i], NULL, call_often, &callers[i]) == 0);
    for (int i = 0; i < 2; i++)
        pthread_join(threads[i], NULL);
    tap_ok(callers[0].ok && callers[1].ok, "two callers at a time each get their own");
    list_free(callers[1].list);
    qk_host_attender_free(a);
    qk_host_attender_free(NULL);
    list_free(l);

    qk_kv_layout layout;
    qk_kv_layout_page_major(shape, QK_F32, &layout);
    tap_ok(qk_host_attender_new("sse9", 1, shape, &layout, 1, &a) == QK_UNSUPPORTED && a == NULL &&
               qk_host_attender_new(NULL, 1, shape, &layout, 0, &a) == QK_INVALID &&
               qk_host_attender_new(NULL, 1, shape, &layout, 3, &a) == QK_INVALID &&
               qk_host_attender_new(NULL, UINT32_MAX, shape, &layout, 1, &a) == QK_INVALID,
        "unknown instruction sets, and absurd counts");
}

int main(void)
{
    static const char *const isas[] = {"reference", "avx2", "avx512"};
    uint64_t seed = 9;
    for (uint32_t s = 0; s < N_SEQS; s++) {
        for (uint32_t i = 0; i < 640; i++)
            tokens[s][i] = (int32_t)random_below(&seed, VOCAB);
        for (uint32_t p = 0; p < SEQ_PAGES; p++)
            seq_pages[s][p] = s * SEQ_PAGES + (p * 7) % SEQ_PAGES; /* 7 and 40 have no common factor */
    }
    for (size_t i = 0; i < sizeof(isas) / sizeof(isas[0]); i++) {
        if (qk_cpu_ops_get(isas[i]) == NULL) {
            tap_skip("%s is not on this machine or not in this build", isas[i]);
            continue;
        }
        /* The reference takes its time: one shape is enough. */
        for (size_t s = 0; s < (i == 0 ? 1 : sizeof(shapes) / sizeof(shapes[0])); s++)
            for (int dtype = QK_F32; dtype <= QK_I8; dtype++)
                test_placements(&shapes[s], isas[i], (qk_dtype)dtype);
    }
    fixture_model *model = fixture_model_new(&shapes[0], QK_BF16, 31);
    test_card(model);
    test_classes(model);
    fixture_model_free(model);
    test_attender(&shapes[0]);
    test_attender(&shapes[1]);
    return tap_done();
}
