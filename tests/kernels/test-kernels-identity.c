/* test-kernels-identity.c: promise 4 of qk.h, bit for bit, and the mutations that must break it.
 *
 * One prompt of 600 tokens (two whole spans and a part) is run whole; then in chunks, token by token, among other
 * sequences, on other numbers of threads, over permuted and moved pages, under other strides, after a rewind, and with
 * spans computed outside. Each time every logit of every compared row must have the same bits. The same comparison
 * must fail when a page is dropped, doubled, swapped, stale or one token off.
 *
 *   test-kernels-identity [f32|bf16|int8]   the pages' type; all of them without one */
#include "kernels/cpu/qk-cpu-ops.h"
#include "tests/kernels/fixture.h"
#include "tests/kernels/tap.h"
#include <string.h>

#define N_TOKENS   600u
#define N_PAGES    160u
#define PAGES_USED ((N_TOKENS + QK_PAGE_TOKENS - 1) / QK_PAGE_TOKENS)
#define SPAN_PAGES (QK_SPAN_TOKENS / QK_PAGE_TOKENS)

static int32_t tokens[N_TOKENS], other_tokens[N_TOKENS];
static uint32_t in_order[N_PAGES];
static const fixture_model *model;
static uint32_t vocab;
static float *want, *got; /* [N_TOKENS, vocab] */

static bool same(uint32_t begin, uint32_t n)
{
    return memcmp(want + (size_t)begin * vocab, got + (size_t)begin * vocab, (size_t)n * vocab * 4) == 0;
}

static void forget(void)
{
    memset(got, 0xff, (size_t)N_TOKENS * vocab * sizeof(*got));
}

static void open_rig(rig *r, const char *isa, qk_dtype kv, uint32_t n_threads)
{
    rig_open(r, model,
        &(rig_options){
            .n_threads = n_threads, .isa = isa, .kv_dtype = kv, .rows_max = 700, .n_pages = N_PAGES});
}

/* Tokens [begin, end) in steps of @chunk rows, into @got. */
static void run_range(rig *r, const uint32_t *pages, uint32_t begin, uint32_t end, uint32_t chunk)
{
    for (uint32_t at = begin; at < end; at += chunk) {
        uint32_t n = end - at < chunk ? end - at : chunk;
        rig_rows rows = {tokens + at, n, at, pages};
        tap_require(rig_run(r, &rows, 1, got + (size_t)at * vocab) == QK_OK);
    }
}

static void test_chunks(rig *r, const char *name)
{
    static const uint32_t chunks[] = {1, 7, 16, 36, 37, 64, 255, 256, 257, 599};
    for (size_t i = 0; i < sizeof(chunks) / sizeof(chunks[0]); i++) {
        if (model->desc.shape.head_dim > 16 && i % 4 != 0)
            continue; /* the larger model takes a sample */
        forget();
        run_range(r, in_order, 0, N_TOKENS, chunks[i]);
        tap_ok(same(0, N_TOKENS), "%s: chunks of %u give the bits of the whole prompt", name, chunks[i]);
    }
    /* The prompt of 37 tokens, from nothing and with 10 tokens cached. */
    static const uint32_t short_chunks[] = {1, 16, 36, 37, 64};
    for (size_t i = 0; i < sizeof(short_chunks) / sizeof(short_chunks[0]); i++) {
        for (uint32_t cached = 0; cached <= 10; cached += 10) {
            forget();
            if (cached > 0)
                run_range(r, in_order, 0, cached, cached);
            run_range(r, in_order, cached, 37, short_chunks[i]);
            tap_ok(same(0, 37), "%s: 37 tokens, %u cached, chunks of %u", name, cached, short_chunks[i]);
        }
    }
}

/* Two companions advance in the same steps, one before and one behind, at other lengths. */
static void test_batch(rig *r, const char *name)
{
    uint32_t pages_a[N_PAGES], pages_b[N_PAGES];
    for (uint32_t i = 0; i < 60; i++) {
        pages_a[i] = 60 + i;
        pages_b[i] = 120 + i % 40;
    }
    forget();
    uint32_t at = 0, a = 0, b = 0;
    for (uint32_t step = 0; at < N_TOKENS; step++) {
        uint32_t n = step % 3 == 0 ? 33 : 1 + step % 5, n_a = 1 + step % 4, n_b = step % 2 ? 1 : 19;
        n = N_TOKENS - at < n ? N_TOKENS - at : n;
        rig_rows rows[3] = {{other_tokens + a, n_a, a, pages_a}, {tokens + at, n, at, in_order},
            {other_tokens + b, n_b, b, pages_b}};
        rig_fill(r, step % 2, rows, 3);
        tap_require(qk_step_submit(r->steps[step % 2]) == QK_OK);
        tap_require(qk_step_wait(r->steps[step % 2]) == QK_OK);
        const float *logits = qk_step_result(r->steps[step % 2])->logits + (size_t)n_a * vocab;
        memcpy(got + (size_t)at * vocab, logits, (size_t)n * vocab * sizeof(*got));
        at += n;
        a = a + n_a < 500 ? a + n_a : 0;
        b = b + n_b < 500 ? b + n_b : 0;
    }
    tap_ok(same(0, N_TOKENS), "%s: among two other sequences", name);
}

static void move_page(rig *r, uint32_t to, uint32_t from)
{
    const uint64_t bytes = r->params.layout.page_bytes;
    const qk_copy copy = {r->pages, to * bytes, r->pages, from * bytes, bytes};
    tap_require(qk_copy_submit(r->backend, QK_STREAM_COMPUTE, &copy, 1) == QK_OK);
}

static void fill_page(rig *r, uint32_t page, uint32_t word)
{
    const uint64_t bytes = r->params.layout.page_bytes;
    tap_require(qk_fill_submit(r->backend, QK_STREAM_COMPUTE, r->pages, page * bytes, bytes, word) == QK_OK);
}

static void test_pages(rig *r, const char *name)
{
    uint32_t shuffled[N_PAGES];
    uint64_t seed = 77;
    memcpy(shuffled, in_order, sizeof(shuffled));
    for (uint32_t i = N_PAGES - 1; i > 0; i--) {
        uint32_t j = (uint32_t)((fixture_random(&seed) + 1) / 2 * (i + 1));
        uint32_t t = shuffled[i];
        shuffled[i] = shuffled[j];
        shuffled[j] = t;
    }
    forget();
    run_range(r, shuffled, 0, N_TOKENS, 200);
    tap_ok(same(0, N_TOKENS), "%s: pages in a random order", name);

    forget();
    run_range(r, in_order, 0, 300, 300);
    uint32_t moved[N_PAGES];
    for (uint32_t i = 0; i < PAGES_USED; i++) {
        moved[i] = 2 * PAGES_USED - i;
        move_page(r, moved[i], i);
        fill_page(r, i, 0x7fc07fc0);
    }
    run_range(r, moved, 300, N_TOKENS, 1);
    tap_ok(same(0, N_TOKENS), "%s: every page moved after 300 tokens", name);

    /* A fork after 300 tokens shares the full pages and has a copy of the last one; both go on in the same steps. */
    forget();
    run_range(r, in_order, 0, 300, 300);
    memcpy(moved, in_order, sizeof(moved));
    for (uint32_t i = 300 / QK_PAGE_TOKENS; i < PAGES_USED; i++)
        moved[i] = PAGES_USED + i;
    move_page(r, moved[300 / QK_PAGE_TOKENS], 300 / QK_PAGE_TOKENS);
    for (uint32_t at = 300; at < 340; at += 5) {
        rig_rows rows[2] = {{tokens + at, 5, at, moved}, {other_tokens + at, 5, at, in_order}};
        tap_require(rig_run(r, rows, 2, got + (size_t)at * vocab) == QK_OK);
    }
    tap_ok(same(0, 340), "%s: a fork, beside the one it came from", name);

    run_range(r, in_order, 0, N_TOKENS, N_TOKENS);
    rig_rows wrong = {other_tokens + 560, 40, 560, in_order};
    tap_require(rig_run(r, &wrong, 1, NULL) == QK_OK);
    forget();
    run_range(r, in_order, 560, N_TOKENS, 11);
    tap_ok(same(560, 40), "%s: rewound over 40 tokens of another ending", name);
}

static void test_strides(const char *isa, qk_dtype kv, const char *name)
{
    rig r;
    open_rig(&r, isa, kv, 2);
    /* [K|V][layer][head][token][dim] with padding, in a context of its own. */
    const qk_shape *shape = &model->desc.shape;
    qk_kv_layout *layout = &r.params.layout;
    const uint64_t old_page_bytes = layout->page_bytes;
    layout->token_stride += 12;
    layout->head_stride = (uint64_t)layout->token_stride * QK_PAGE_TOKENS + 20;
    if (kv == QK_I8) {
        layout->scale_offset = layout->head_stride - 14;
        layout->head_stride += 32;
    }
    layout->layer_stride = layout->head_stride * shape->n_kv_heads;
    layout->v_offset = layout->layer_stride * shape->n_layers;
    layout->page_bytes = 2 * layout->v_offset;
    tap_require(layout->page_bytes < 2 * old_page_bytes); /* half the pages fit the buffer */
    for (int i = 0; i < 2; i++)
        qk_step_free(r.steps[i]);
    qk_context_free(r.context);
    tap_require(qk_context_new(r.model, &r.params, &r.context) == QK_OK);
    for (int i = 0; i < 2; i++)
        tap_require(qk_step_new(r.context, &r.steps[i]) == QK_OK);
    forget();
    run_range(&r, in_order, 0, N_TOKENS, 150);
    tap_ok(same(0, N_TOKENS), "%s: under other strides", name);
    rig_close(&r);
}

/* ---- Outside spans ---------------------------------------------------------------------------------------------- */

typedef struct {
    rig *r;
    const char *isa;
    const qk_buffer *host; /* all pages, in order */
    uint32_t span_shift;   /* mutation: answers with this many spans further on */
    uint32_t n_keys;       /* mutation: of a span */
    uint32_t n_calls, n_items;
    qk_status status;
} outside;

static qk_status outside_partial(void *user, const qk_partial_args *args)
{
    outside *o = user;
    const qk_shape *shape = &model->desc.shape;
    const size_t q_dim = shape->n_heads * shape->head_dim;
    o->n_calls++;
    o->n_items = args->n_items;
    for (uint32_t i = 0; i < args->n_items; i++) {
        const qk_partial_item *item = &args->items[i];
        const void *pages[SPAN_PAGES];
        for (uint32_t p = 0; p < SPAN_PAGES; p++)
            pages[p] = (const char *)o->host->host +
                       ((item->span + o->span_shift) % 2 * SPAN_PAGES + p) * o->r->params.layout.page_bytes;
        qk_status status = qk_host_attend_span(o->isa, shape, &o->r->params.layout, args->layer, pages,
            o->n_keys, args->q + item->row * q_dim, args->out + i * q_dim, args->lse + i * shape->n_heads);
        if (status != QK_OK)
            return status;
    }
    return o->status;
}

static void test_outside(const char *isa, qk_dtype kv, uint32_t n_threads, const char *name)
{
    rig r;
    outside o = {.r = &r, .isa = isa, .n_keys = QK_SPAN_TOKENS};
    rig_open(&r, model,
        &(rig_options){
            .n_threads = n_threads,
            .isa = isa,
            .kv_dtype = kv,
            .rows_max = 700,
            .n_pages = N_PAGES,
            .partial_max = 300,
            .partial = outside_partial,
            .partial_user = &o,
        });
    forget();
    run_range(&r, in_order, 0, N_TOKENS, N_TOKENS);
    tap_ok(same(0, N_TOKENS) && o.n_calls == 0, "%s: no outside pages, no call", name);

    qk_buffer *host;
    const uint64_t bytes = PAGES_USED * r.params.layout.page_bytes;
    tap_require(qk_buffer_new(r.backend, QK_MEMORY_HOST, bytes, &host) == QK_OK);
    const qk_copy copy = {host, 0, r.pages, 0, bytes};
    qk_event *event;
    tap_require(qk_event_new(r.backend, &event) == QK_OK);
    tap_require(qk_copy_submit(r.backend, QK_STREAM_TO_HOST, &copy, 1) == QK_OK);
    tap_require(qk_event_record(event, QK_STREAM_TO_HOST) == QK_OK && qk_event_wait(event) == QK_OK);
    qk_event_free(event);
    o.host = host;
    /* What is outside is not on the device any more. */
    for (uint32_t p = 0; p < 2 * SPAN_PAGES; p++)
        fill_page(&r, p, 0x7fc07fc0);

    static const uint32_t starts[] = {512, 599, 560, 513};
    for (uint32_t which = 1; which <= 3; which++) {
        uint32_t pages[N_PAGES];
        memcpy(pages, in_order, sizeof(pages));
        for (uint32_t s = 0; s < 2; s++)
            for (uint32_t p = 0; p < SPAN_PAGES && (which & 1u << s); p++)
                pages[s * SPAN_PAGES + p] = UINT32_MAX;
        /* The spans that are inside need their pages back. */
        for (uint32_t s = 0; s < 2; s++) {
            const uint64_t span_bytes = SPAN_PAGES * r.params.layout.page_bytes;
            const qk_copy back = {r.pages, s * span_bytes, host, s * span_bytes, span_bytes};
            if ((which & 1u << s) == 0)
                tap_require(qk_copy_submit(r.backend, QK_STREAM_COMPUTE, &back, 1) == QK_OK);
        }
        for (size_t i = 0; i < sizeof(starts) / sizeof(starts[0]); i++) {
            const uint32_t start = starts[i], n = N_TOKENS - start;
            forget();
            o.n_calls = 0;
            run_range(&r, pages, start, N_TOKENS, n);
            tap_ok(same(start, n) && o.n_calls == 2 && o.n_items == n * (which == 3 ? 2 : 1),
                "%s: spans %s outside, rows from %u on", name,
                which == 3   ? "0 and 1"
                : which == 1 ? "0"
                             : "1",
                start);
        }
        forget();
        o.span_shift = 1;
        run_range(&r, pages, 560, N_TOKENS, 40);
        /* With both outside the merge of the two is the same either way round. */
        tap_ok(which == 3 || !same(560, 40), "%s: mutation: the outside partial of another span shows", name);
        o.span_shift = 0;
        forget();
        o.n_keys = QK_SPAN_TOKENS - 1;
        run_range(&r, pages, 560, N_TOKENS, 40);
        tap_ok(!same(560, 40), "%s: mutation: an outside partial that lacks a key shows", name);
        o.n_keys = QK_SPAN_TOKENS;
        o.status = QK_UNSUPPORTED;
        rig_rows rows = {tokens + 560, 40, 560, pages};
        tap_ok(rig_run(&r, &rows, 1, NULL) == QK_UNSUPPORTED, "%s: a partial's failure is the step's", name);
        o.status = QK_OK;
        for (uint32_t p = 0; p < 2 * SPAN_PAGES; p++)
            fill_page(&r, p, 0x7fc07fc0);
    }
    qk_buffer_free(host);
    rig_close(&r);
}

/* ---- Mutations -------------------------------------------------------------------------------------------------- */

static void test_mutations(rig *r, const char *name)
{
    uint32_t pages[N_PAGES];
    const uint64_t bytes = r->params.layout.page_bytes;
    const uint32_t spare = N_PAGES - 1, begin = 580;
    run_range(r, in_order, 0, N_TOKENS, N_TOKENS);

#define MUTATED(text, ...)                                                                                   \
    do {                                                                                                     \
        memcpy(pages, in_order, sizeof(pages));                                                              \
        __VA_ARGS__;                                                                                         \
        forget();                                                                                            \
        run_range(r, pages, begin, N_TOKENS, 20);                                                            \
        tap_ok(!same(begin, 20), "%s: mutation: %s", name, text);                                            \
    } while (0)

    MUTATED("a dropped page (zeros) shows", fill_page(r, spare, 0); pages[3] = spare);
    MUTATED("a doubled page shows", pages[5] = pages[4]);
    MUTATED("two swapped pages show", pages[2] = 9; pages[9] = 2);
    MUTATED("a page swapped with the next span's shows", pages[2] = 20; pages[20] = 2);
    rig_rows other = {other_tokens, 16, 0, &spare};
    MUTATED("a stale page shows", tap_require(rig_run(r, &other, 1, NULL) == QK_OK); pages[0] = spare);
    /* Page 7 as it was one token earlier: its last token has not been written. */
    const uint64_t token_bytes = r->params.layout.token_stride;
    MUTATED("a page that lacks its last token shows", move_page(r, spare, 7);
            tap_require(qk_fill_submit(r->backend, QK_STREAM_COMPUTE, r->pages,
                            spare * bytes + 15 * token_bytes, token_bytes, 0) == QK_OK);
            pages[7] = spare);
    /* The lowest bit of one value element of the last layer. */
    const qk_kv_layout *l = &r->params.layout;
    const uint64_t offset = spare * bytes + l->layer_stride + l->v_offset + 4;
    uint32_t word = l->dtype == QK_I8 ? 0x5a5b5c5du : l->dtype == QK_BF16 ? 0x3f803f81u : 0x3f800001u;
    MUTATED("one element of V that differs shows", move_page(r, spare, 30);
            tap_require(qk_fill_submit(r->backend, QK_STREAM_COMPUTE, r->pages, offset, 4, word) == QK_OK);
            pages[30] = spare);
    for (uint32_t side = 0; side < 2 && l->dtype == QK_I8; side++) {
        /* Two tokens' scales of 1: the values had other ones. */
        const uint64_t scales = spare * bytes + l->head_stride + side * l->v_offset + l->scale_offset;
        MUTATED(side == 0 ? "scales of K that differ show" : "scales of V that differ show",
                move_page(r, spare, 30);
                tap_require(
                    qk_fill_submit(r->backend, QK_STREAM_COMPUTE, r->pages, scales, 4, 0x3c003c00) == QK_OK);
                pages[30] = spare);
    }
#undef MUTATED

    forget();
    run_range(r, in_order, begin, N_TOKENS, 20);
    tap_ok(same(begin, 20), "%s: and nothing shows without a mutation", name);

    /* One position off: the same tokens one place earlier. Overwrites the cache, so it comes last. */
    rig_rows early = {tokens + begin, 20, begin - 1, in_order};
    forget();
    tap_require(rig_run(r, &early, 1, got + (size_t)begin * vocab) == QK_OK);
    tap_ok(!same(begin, 20), "%s: mutation: positions off by one show", name);
}

static const char *const dtype_names[] = {[QK_F32] = "f32", [QK_BF16] = "bf16", [QK_I8] = "int8"};

static void test_isa(const char *isa, qk_dtype kv)
{
    char name[32];
    snprintf(name, sizeof(name), "%s %s", isa, dtype_names[kv]);
    rig r;
    open_rig(&r, isa, kv, 2);
    forget();
    run_range(&r, in_order, 0, N_TOKENS, N_TOKENS);
    memcpy(want, got, (size_t)N_TOKENS * vocab * sizeof(*want));
    test_chunks(&r, name);
    test_batch(&r, name);
    test_pages(&r, name);
    test_mutations(&r, name);
    rig_close(&r);
    static const uint32_t n_threads[] = {1, 3, 7};
    for (size_t i = 0; i < sizeof(n_threads) / sizeof(n_threads[0]); i++) {
        open_rig(&r, isa, kv, n_threads[i]);
        forget();
        run_range(&r, in_order, 0, N_TOKENS, N_TOKENS);
        tap_ok(same(0, N_TOKENS), "%s: whole on %u threads", name, n_threads[i]);
        forget();
        run_range(&r, in_order, 590, N_TOKENS, 1);
        tap_ok(same(590, 10), "%s: token by token on %u threads", name, n_threads[i]);
        rig_close(&r);
    }
    test_strides(isa, kv, name);
    test_outside(isa, kv, 1, name);
    test_outside(isa, kv, 3, name);
}

int main(int argc, char **argv)
{
    static const char *const isas[] = {"reference", "avx2", "avx512"};
    for (int large = 0; large < 2; large++) {
        fixture_model *m =
            fixture_model_new(large ? &fixture_medium : &fixture_small, large ? QK_F32 : QK_BF16, 3);
        model = m;
        vocab = m->desc.shape.vocab;
        want = malloc((size_t)N_TOKENS * vocab * sizeof(*want));
        got = malloc((size_t)N_TOKENS * vocab * sizeof(*got));
        tap_require(want != NULL && got != NULL);
        uint64_t seed = 9;
        for (uint32_t i = 0; i < N_TOKENS; i++) {
            tokens[i] = (int32_t)((fixture_random(&seed) + 1) / 2 * vocab);
            other_tokens[i] = (int32_t)((fixture_random(&seed) + 1) / 2 * vocab);
        }
        for (uint32_t i = 0; i < N_PAGES; i++)
            in_order[i] = i;
        for (size_t i = 0; i < sizeof(isas) / sizeof(isas[0]); i++) {
            if (qk_cpu_ops_get(isas[i]) == NULL) {
                tap_skip("%s is not on this machine or not in this build", isas[i]);
                continue;
            }
            for (int kv = QK_F32; kv <= QK_I8; kv++)
                if (argc < 2 || strcmp(argv[1], dtype_names[kv]) == 0)
                    test_isa(isas[i], (qk_dtype)kv);
        }
        free(want);
        free(got);
        fixture_model_free(m);
    }
    return tap_done();
}
