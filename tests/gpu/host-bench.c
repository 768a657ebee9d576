/* host-bench.c: registering host memory, restoring pages, prompts and replies over pages in host memory: at the shape of
 * a 4B model with random weights. Every linear layer has the same weights, since nobody reads the text; a page's bytes are
 * random bf16 numbers below one. */
#include "tests/gpu/host-bench.h"
#include "kernels/qk.h"
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>

enum { ROWS = 2048, HIDDEN = 2560, FFN = 9728, VOCAB = 151936, HEADS = 32, KV_HEADS = 8, DIM = 128 };
#define SLAB_PAGES 113u /* about 256 MiB */
#define RING_BYTES (256ull << 20)

typedef struct {
    qk_backend *backend;
    qk_model *model;
    qk_context *context;
    qk_step *step;
    qk_kv_layout layout;
    uint32_t n_pages;        /* of the prompt */
    uint64_t *host, *device; /* [n_pages] addresses, the latter with as many more as ROWS need */
    qk_buffer *pages, **slabs;
    void **maps;
    uint32_t n_slabs;
    uint64_t slab_bytes;
} bench;

static double now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

static void check(const bench *b, qk_status status, const char *what)
{
    if (status == QK_OK)
        return;
    printf("# %s: %s: %s\n", what, qk_status_name(status), qk_backend_error(b->backend));
    exit(1);
}

static void fill_random(uint16_t *to, size_t n, float scale)
{
    uint32_t x = 1;
    for (size_t i = 0; i < n; i++) {
        x = x * 1664525u + 1013904223u;
        const float value = (float)(int32_t)x * (1.0f / 2147483648.0f) * scale;
        uint32_t bits;
        memcpy(&bits, &value, 4);
        to[i] = (uint16_t)(bits >> 16);
    }
}

static void load(bench *b, uint32_t n_layers)
{
    static float ones[FFN];
    double inv_freq[DIM / 2];
    const size_t n = (size_t)VOCAB * HIDDEN;
    uint16_t *weights = malloc(n * 2);
    qk_layer_tensors *layers = calloc(n_layers, sizeof(*layers));
    if (weights == NULL || layers == NULL)
        exit(1);
    fill_random(weights, n, 0.03f);
    for (uint32_t i = 0; i < FFN; i++)
        ones[i] = 1;
    for (uint32_t i = 0; i < DIM / 2; i++)
        inv_freq[i] = pow(1e6, -2.0 * i / DIM);
    qk_model_desc desc = {.shape = {.n_layers = n_layers,
                              .n_heads = HEADS,
                              .n_kv_heads = KV_HEADS,
                              .head_dim = DIM,
                              .hidden = HIDDEN,
                              .ffn = FFN,
                              .vocab = VOCAB,
                              .max_positions = 262144,
                              .rms_eps = 1e-6f,
                              .rope_factor = 1,
                              .rope_inv_freq = inv_freq}};
#define LINEAR(out, in) ((qk_tensor){weights, QK_BF16, (out), (in)})
#define NORM(size)      ((qk_tensor){ones, QK_F32, 1, (size)})
    for (uint32_t l = 0; l < n_layers; l++)
        layers[l] = (qk_layer_tensors){.attn_norm = NORM(HIDDEN),
            .q = LINEAR(HEADS * DIM, HIDDEN),
            .k = LINEAR(KV_HEADS * DIM, HIDDEN),
            .v = LINEAR(KV_HEADS * DIM, HIDDEN),
            .q_norm = NORM(DIM),
            .k_norm = NORM(DIM),
            .o = LINEAR(HIDDEN, HEADS * DIM),
            .ffn_norm = NORM(HIDDEN),
            .gate = LINEAR(FFN, HIDDEN),
            .up = LINEAR(FFN, HIDDEN),
            .down = LINEAR(HIDDEN, FFN)};
    desc.embed = desc.lm_head = LINEAR(VOCAB, HIDDEN);
    desc.final_norm = NORM(HIDDEN);
    desc.layers = layers;
    check(b, qk_model_load(b->backend, &desc, NULL, NULL, &b->model), "model");
    qk_kv_layout_page_major(&desc.shape, QK_BF16, &b->layout);
    free(layers);
    free(weights);
}

/* Slabs with a prompt's pages: the time to pin them. */
static void make_pages(bench *b)
{
    const uint64_t page = b->layout.page_bytes;
    uint16_t *noise = malloc(page);
    char error[256] = "";
    double pinning = 0;
    b->slab_bytes = (SLAB_PAGES * page + 4095) / 4096 * 4096;
    b->n_slabs = (b->n_pages + SLAB_PAGES - 1) / SLAB_PAGES;
    b->slabs = calloc(b->n_slabs, sizeof(*b->slabs));
    b->maps = calloc(b->n_slabs, sizeof(*b->maps));
    b->host = calloc(b->n_pages, sizeof(*b->host));
    b->device = calloc(b->n_pages + ROWS / QK_PAGE_TOKENS + 1, sizeof(*b->device));
    if (noise == NULL || b->slabs == NULL || b->maps == NULL || b->host == NULL || b->device == NULL)
        exit(1);
    fill_random(noise, page / 2, 1);
    for (uint32_t s = 0; s < b->n_slabs; s++) {
        char *memory = mmap(NULL, b->slab_bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        if (memory == MAP_FAILED)
            exit(1);
        for (uint32_t p = 0; p < SLAB_PAGES; p++)
            memcpy(memory + p * page, noise, page);
        const double begin = now();
        if (qk_host_register(b->backend, memory, b->slab_bytes, error, sizeof(error)) != QK_OK) {
            printf("# registering: %s\n", error);
            exit(1);
        }
        pinning += now() - begin;
        b->maps[s] = memory;
        check(b, qk_buffer_wrap(b->backend, memory, b->slab_bytes, &b->slabs[s]), "wrapping");
        for (uint32_t p = s * SLAB_PAGES; p < b->n_pages && p < (s + 1) * SLAB_PAGES; p++)
            b->host[p] = b->slabs[s]->address + (p - s * SLAB_PAGES) * page;
    }
    printf("# registering %.1f GB in pieces of %.0f MB: %.2f s, %.2f GB/s\n",
        b->n_slabs * (double)b->slab_bytes * 1e-9, (double)b->slab_bytes * 1e-6, pinning,
        b->n_slabs * (double)b->slab_bytes / pinning * 1e-9);
    const uint32_t n_device = b->n_pages + ROWS / QK_PAGE_TOKENS + 1;
    check(b, qk_buffer_new(b->backend, QK_MEMORY_DEVICE, n_device * page, &b->pages), "device pages");
    check(b, qk_fill_submit(b->backend, QK_STREAM_COMPUTE, b->pages, 0, n_device * page, 0), "device pages");
    for (uint32_t p = 0; p < n_device; p++)
        b->device[p] = b->pages->address + p * page;
    free(noise);
}

static void time_restore(bench *b, const char *how, bool scattered)
{
    const uint32_t n = b->n_pages < 1024 ? b->n_pages : 1024;
    const uint64_t page = b->layout.page_bytes;
    qk_copy *copies = calloc(n, sizeof(*copies));
    qk_event *event;
    double best = INFINITY;
    check(b, qk_event_new(b->backend, &event), "event");
    for (uint32_t i = 0; i < n; i++) {
        const uint32_t p = scattered ? (uint32_t)((uint64_t)i * 7919 % n) : i;
        copies[i] = (qk_copy){b->pages, i * page, b->slabs[p / SLAB_PAGES], p % SLAB_PAGES * page, page};
    }
    for (int k = 0; k < 3; k++) {
        const double begin = now();
        check(b, qk_copy_submit(b->backend, QK_STREAM_TO_DEVICE, copies, n), "restoring");
        check(b, qk_event_record(event, QK_STREAM_TO_DEVICE), "event");
        check(b, qk_event_wait(event), "event");
        const double time = now() - begin;
        best = time < best ? time : best;
    }
    printf(
        "# restoring %u pages, %s: %.1f ms, %.1f GB/s\n", n, how, best * 1e3, n * (double)page / best * 1e-9);
    qk_event_free(event);
    free(copies);
}

typedef enum { ON_DEVICE, ON_HOST, ON_HOST_SCATTERED } where;

/* One step of @n_rows behind @start tokens, best of three: seconds, and the seconds that submitting took. */
static double time_step(
    bench *b, uint32_t start, uint32_t n_rows, where w, qk_host_path path, double *submitting)
{
    double best = INFINITY;
    qk_plan *plan = qk_step_plan(b->step);
    const uint32_t n_before = start / QK_PAGE_TOKENS;
    plan->n_rows = n_rows;
    plan->n_seqs = 1;
    plan->n_pages = (start + n_rows + QK_PAGE_TOKENS - 1) / QK_PAGE_TOKENS;
    plan->n_outputs = 1;
    plan->host_path = path;
    plan->seqs[0] = (qk_seq){.n_rows = n_rows, .start = start, .n_pages = plan->n_pages};
    for (uint32_t i = 0; i < n_rows; i++)
        plan->tokens[i] = (int32_t)(i * 37 % VOCAB);
    for (uint32_t p = 0; p < plan->n_pages; p++) {
        const uint32_t from = w == ON_HOST_SCATTERED ? (uint32_t)((uint64_t)p * 7919 % n_before) : p;
        plan->pages[p] = p < n_before && w != ON_DEVICE ? b->host[from] | QK_PAGE_HOST : b->device[p];
    }
    plan->outputs[0] = (qk_output){.row = n_rows - 1,
        .flags = QK_OUTPUT_SAMPLE,
        .slot = QK_NO_SLOT,
        .sampling = {.top_p = 1, .repetition_penalty = 1}};
    for (int k = 0; k < 3; k++) {
        const double begin = now();
        check(b, qk_step_submit(b->step), "a step");
        const double submitted = now() - begin;
        check(b, qk_step_wait(b->step), "a step");
        const double time = now() - begin;
        if (time < best) {
            best = time;
            *submitting = submitted;
        }
    }
    return best;
}

static void time_steps(bench *b, uint32_t n_tokens)
{
    const uint32_t start = n_tokens / QK_PAGE_TOKENS * QK_PAGE_TOKENS;
    const double bytes = start / QK_PAGE_TOKENS * (double)b->layout.page_bytes;
    static const struct {
        const char *name;
        where w;
        qk_host_path path;
    } ways[] = {
        {"on the device", ON_DEVICE, QK_HOST_READ},
        {"on the host, read", ON_HOST, QK_HOST_READ},
        {"on the host, streamed", ON_HOST, QK_HOST_STREAM},
        {"on the host, scattered, streamed", ON_HOST_SCATTERED, QK_HOST_STREAM},
    };
    for (uint32_t n_rows = ROWS; n_rows > 0; n_rows = n_rows == ROWS ? 1 : 0)
        for (uint32_t i = 0; i < sizeof(ways) / sizeof(ways[0]); i++) {
            double submitting = 0;
            if (n_rows > 1 && ways[i].path == QK_HOST_READ && ways[i].w != ON_DEVICE)
                continue; /* prompts are always streamed */
            const double time = time_step(b, start, n_rows, ways[i].w, ways[i].path, &submitting);
            printf(
                "# %4u rows on %6u tokens, %-32s %9.2f ms, of them %7.2f submitting; %7.1f GB/s of pages\n",
                n_rows, start, ways[i].name, time * 1e3, submitting * 1e3, bytes / time * 1e-9);
            fflush(stdout);
        }
}

int host_bench(const host_bench_options *options)
{
    bench b = {0};
    char error[256] = "";
    if (qk_backend_open("cuda", NULL, &b.backend, error, sizeof(error)) != QK_OK) {
        printf("1..0 # SKIP %s\n", error);
        return 0;
    }
    load(&b, options->n_layers);
    b.n_pages = (options->n_tokens - ROWS) / QK_PAGE_TOKENS;
    make_pages(&b);
    const qk_context_params params = {.rows_max = ROWS,
        .seqs_max = 4,
        .pages_max = b.n_pages + ROWS / QK_PAGE_TOKENS + 1,
        .outputs_max = 4,
        .ring_bytes = RING_BYTES,
        .layout = b.layout};
    check(&b, qk_context_new(b.model, &params, &b.context), "context");
    check(&b, qk_step_new(b.context, &b.step), "step");
    time_restore(&b, "in order", false);
    time_restore(&b, "scattered", true);
    const uint32_t tokens[] = {32768, 131072, b.n_pages * QK_PAGE_TOKENS};
    for (uint32_t i = 0; i < 3; i++)
        if (tokens[i] <= b.n_pages * QK_PAGE_TOKENS)
            time_steps(&b, tokens[i]);
    qk_step_free(b.step);
    qk_context_free(b.context);
    for (uint32_t s = 0; s < b.n_slabs; s++) {
        qk_buffer_free(b.slabs[s]);
        qk_host_unregister(b.backend, b.maps[s]);
        munmap(b.maps[s], b.slab_bytes);
    }
    qk_buffer_free(b.pages);
    qk_model_free(b.model);
    qk_backend_free(b.backend);
    free(b.slabs);
    free(b.maps);
    free(b.host);
    free(b.device);
    return 0;
}
