/* dump-logits.c: the logits of exact tokens from a backend's steps, with page tables of its own.
 *
 *   dump-logits --index FILE --ids FILE --out FILE [--backend NAME] [--isa NAME] [--decode N] [--mutate]
 *
 * The index is text, written by check-logits.py from a model folder, so that no JSON is read here:
 *   shape N_LAYERS N_HEADS N_KV_HEADS HEAD_DIM HIDDEN FFN VOCAB RMS_EPS ROPE_THETA
 *   tensor NAME FILE OFFSET ROWS COLS bf16|f32      NAME: embed, final_norm, lm_head, or LAYER.PART
 * The ids are little-endian int32. The output is float32 [n_ids, vocab].
 *
 * The prompt goes in ragged chunks, small and large; the last N ids one at a time. Pages lie in random order in a pool
 * whose unwritten bytes are NaN. With --mutate the pass is repeated with one thing wrong each time before the first of
 * the single steps, and the N rows' logits go to FILE.MUTATION [N, vocab]: whoever compares must refuse them. */
#include "kernels/qk-backend.h"
#include <errno.h>
#include <fcntl.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

enum { ROWS_MAX = 256, LAYERS_MAX = 256, FILES_MAX = 64, DONOR_ROWS = 64 };

static _Noreturn void die(const char *what, const char *why)
{
    fprintf(stderr, "dump-logits: %s: %s\n", what, why);
    exit(1);
}

typedef struct {
    char path[512];
    const unsigned char *data;
    uint64_t bytes;
} file;

typedef struct {
    qk_model_desc desc;
    qk_layer_tensors layers[LAYERS_MAX];
    double inv_freq[256];
    file files[FILES_MAX];
    uint32_t n_files;
} source;

static file map_file(const char *path)
{
    file f = {0};
    struct stat st;
    const int fd = open(path, O_RDONLY);
    if (fd < 0 || fstat(fd, &st) != 0 || st.st_size == 0)
        die(path, fd < 0 ? strerror(errno) : "cannot be read, or empty");
    f.bytes = (uint64_t)st.st_size;
    f.data = mmap(NULL, f.bytes, PROT_READ, MAP_SHARED, fd, 0);
    if (f.data == MAP_FAILED)
        die(path, strerror(errno));
    close(fd);
    snprintf(f.path, sizeof(f.path), "%s", path);
    return f;
}

static const file *find_file(source *s, const char *path)
{
    for (uint32_t i = 0; i < s->n_files; i++)
        if (strcmp(s->files[i].path, path) == 0)
            return &s->files[i];
    if (s->n_files == FILES_MAX)
        die(path, "too many files");
    s->files[s->n_files] = map_file(path);
    return &s->files[s->n_files++];
}

static qk_tensor *find_tensor(source *s, const char *name)
{
    static const struct {
        const char *name;
        size_t offset;
    } parts[] = {
        {"attn_norm", offsetof(qk_layer_tensors, attn_norm)},
        {"q", offsetof(qk_layer_tensors, q)},
        {"k", offsetof(qk_layer_tensors, k)},
        {"v", offsetof(qk_layer_tensors, v)},
        {"q_norm", offsetof(qk_layer_tensors, q_norm)},
        {"k_norm", offsetof(qk_layer_tensors, k_norm)},
        {"o", offsetof(qk_layer_tensors, o)},
        {"ffn_norm", offsetof(qk_layer_tensors, ffn_norm)},
        {"gate", offsetof(qk_layer_tensors, gate)},
        {"up", offsetof(qk_layer_tensors, up)},
        {"down", offsetof(qk_layer_tensors, down)},
    };
    char part[64];
    unsigned layer;
    if (strcmp(name, "embed") == 0)
        return &s->desc.embed;
    if (strcmp(name, "final_norm") == 0)
        return &s->desc.final_norm;
    if (strcmp(name, "lm_head") == 0)
        return &s->desc.lm_head;
    if (sscanf(name, "%u.%63s", &layer, part) == 2 && layer < LAYERS_MAX)
        for (size_t i = 0; i < sizeof(parts) / sizeof(parts[0]); i++)
            if (strcmp(part, parts[i].name) == 0)
                return (qk_tensor *)((char *)&s->layers[layer] + parts[i].offset);
    die(name, "no such tensor");
}

static void read_index(source *s, const char *path)
{
    char line[1024], name[64], where[512], dtype[8];
    unsigned long long offset;
    double theta = 0;
    qk_shape *h = &s->desc.shape;
    FILE *f = fopen(path, "r");
    if (f == NULL)
        die(path, strerror(errno));
    while (fgets(line, sizeof(line), f) != NULL) {
        unsigned rows, cols;
        if (sscanf(line, "shape %u %u %u %u %u %u %u %f %lf", &h->n_layers, &h->n_heads, &h->n_kv_heads,
                &h->head_dim, &h->hidden, &h->ffn, &h->vocab, &h->rms_eps, &theta) == 9)
            continue;
        if (sscanf(line, "tensor %63s %511s %llu %u %u %7s", name, where, &offset, &rows, &cols, dtype) != 6)
            die(path, "a line is neither shape nor tensor");
        const qk_dtype type = strcmp(dtype, "bf16") == 0 ? QK_BF16 : QK_F32;
        const file *data = find_file(s, where);
        if (offset > data->bytes || (uint64_t)rows * cols * (type == QK_BF16 ? 2 : 4) > data->bytes - offset)
            die(name, "past the end of its file");
        *find_tensor(s, name) = (qk_tensor){data->data + offset, type, rows, cols};
    }
    fclose(f);
    if (theta <= 0 || h->n_layers > LAYERS_MAX || h->head_dim > 512)
        die(path, "no shape, or one out of range");
    for (uint32_t i = 0; i < h->head_dim / 2; i++)
        s->inv_freq[i] = pow(theta, -2.0 * i / h->head_dim);
    h->rope_inv_freq = s->inv_freq;
    h->rope_factor = 1;
    h->max_positions = 65536;
    s->desc.layers = s->layers;
    if (s->desc.lm_head.data == NULL)
        s->desc.lm_head = s->desc.embed;
}

typedef struct {
    qk_backend *backend;
    qk_model *model;
    qk_context *context;
    qk_context_params params;
    qk_step *step;
    qk_buffer *pool;
    uint32_t n_pages; /* of one sequence; the pool has twice as many */
    uint64_t *pages;  /* [2 * n_pages]: the sequence's addresses, then the donor's */
} device;

static void ok(const device *d, qk_status status, const char *what)
{
    if (status != QK_OK) {
        fprintf(
            stderr, "dump-logits: %s: %s: %s\n", what, qk_status_name(status), qk_backend_error(d->backend));
        exit(1);
    }
}

static void open_device(device *d, const char *backend, const char *isa, const source *s, uint32_t n_ids)
{
    char error[256] = "";
    const qk_backend_options options = {.isa = isa};
    if (qk_backend_open(backend, &options, &d->backend, error, sizeof(error)) != QK_OK)
        die(backend, error);
    ok(d, qk_model_load(d->backend, &s->desc, NULL, NULL, &d->model), "model");
    d->n_pages = (n_ids + QK_PAGE_TOKENS - 1) / QK_PAGE_TOKENS;
    if (d->n_pages < DONOR_ROWS / QK_PAGE_TOKENS)
        d->n_pages = DONOR_ROWS / QK_PAGE_TOKENS;
    d->params = (qk_context_params){
        .rows_max = ROWS_MAX,
        .seqs_max = 4,
        .pages_max = 2 * d->n_pages,
        .outputs_max = ROWS_MAX,
        .logits_max = ROWS_MAX,
        .slots_max = 1,
    };
    qk_kv_layout_page_major(&s->desc.shape, QK_BF16, &d->params.layout);
    ok(d, qk_context_new(d->model, &d->params, &d->context), "context");
    ok(d, qk_step_new(d->context, &d->step), "step");
    const uint64_t page_bytes = d->params.layout.page_bytes, bytes = 2 * d->n_pages * page_bytes;
    ok(d, qk_buffer_new(d->backend, QK_MEMORY_DEVICE, bytes, &d->pool), "pages");
    ok(d, qk_fill_submit(d->backend, QK_STREAM_COMPUTE, d->pool, 0, bytes, 0x7fc07fc0), "fill");
    d->pages = malloc(2 * d->n_pages * sizeof(*d->pages));
    if (d->pages == NULL)
        die("pages", "out of memory");
    uint64_t state = 12345;
    for (uint32_t i = 0; i < 2 * d->n_pages; i++) {
        state = state * 6364136223846793005u + 1442695040888963407u;
        const uint32_t j = (uint32_t)((state >> 33) % (i + 1));
        d->pages[i] = d->pages[j];
        d->pages[j] = d->pool->address + i * page_bytes;
    }
}

/* @n rows from position @start over @pages; their logits to @out when that is not NULL. */
static void run_rows(device *d, const int32_t *ids, uint32_t start, uint32_t n, const uint64_t *pages,
    uint32_t vocab, FILE *out)
{
    qk_plan *plan = qk_step_plan(d->step);
    const uint32_t n_pages = (start + n + QK_PAGE_TOKENS - 1) / QK_PAGE_TOKENS;
    plan->n_rows = n;
    plan->n_seqs = 1;
    plan->n_pages = n_pages;
    plan->n_outputs = out != NULL ? n : 0;
    plan->seqs[0] = (qk_seq){.n_rows = n, .start = start, .n_pages = n_pages};
    memcpy(plan->pages, pages, n_pages * sizeof(*pages));
    memcpy(plan->tokens, ids + start, n * sizeof(*ids));
    for (uint32_t i = 0; i < plan->n_outputs; i++)
        plan->outputs[i] = (qk_output){.row = i, .flags = QK_OUTPUT_LOGITS, .slot = QK_NO_SLOT};
    ok(d, qk_step_submit(d->step), "submit");
    ok(d, qk_step_wait(d->step), "step");
    if (out != NULL && fwrite(qk_step_result(d->step)->logits, 4u * vocab, n, out) != n)
        die("output", strerror(errno));
}

static void run_prompt(device *d, const int32_t *ids, uint32_t n, uint32_t vocab, FILE *out)
{
    static const uint32_t chunks[] = {ROWS_MAX, 1, 7, 64, 65, 200, 3, 129};
    for (uint32_t at = 0, k = 0; at < n; k++) {
        uint32_t rows = chunks[k % (sizeof(chunks) / sizeof(chunks[0]))];
        rows = rows < n - at ? rows : n - at;
        run_rows(d, ids, at, rows, d->pages, vocab, out);
        at += rows;
    }
}

static const char *const mutations[] = {"none", "foreign", "swapped", "zeroed", "tail"};

static void mutate(device *d, uint32_t m, const int32_t *ids, uint32_t at, uint32_t vocab)
{
    const uint64_t page_bytes = d->params.layout.page_bytes;
    const uint32_t tail = (at - 1) / QK_PAGE_TOKENS, other = tail / 2;
    const uint64_t page = d->pages[other];
    switch (m) {
    case 1: /* another sequence's page, which holds the prompt's second half */
        run_rows(d, ids + at / 2, 0, DONOR_ROWS, d->pages + d->n_pages, vocab, NULL);
        d->pages[other] = d->pages[d->n_pages + 1];
        break;
    case 2: /* a full page and the half-filled last one */
        d->pages[other] = d->pages[tail];
        d->pages[tail] = page;
        break;
    case 3:
        ok(d, qk_fill_submit(d->backend, QK_STREAM_COMPUTE, d->pool, page - d->pool->address, page_bytes, 0),
            "fill");
        break;
    case 4:
        ok(d,
            qk_fill_submit(
                d->backend, QK_STREAM_COMPUTE, d->pool, d->pages[tail] - d->pool->address, page_bytes, 0),
            "fill");
        break;
    }
}

static void run_mutations(
    device *d, const int32_t *ids, uint32_t n, uint32_t n_decode, uint32_t vocab, const char *path)
{
    uint64_t *saved = malloc(2 * d->n_pages * sizeof(*saved));
    if (saved == NULL)
        die("pages", "out of memory");
    memcpy(saved, d->pages, 2 * d->n_pages * sizeof(*saved));
    for (uint32_t m = 0; m < sizeof(mutations) / sizeof(mutations[0]); m++) {
        char name[1024];
        snprintf(name, sizeof(name), "%s.%s", path, mutations[m]);
        FILE *out = fopen(name, "wb");
        if (out == NULL)
            die(name, strerror(errno));
        run_prompt(d, ids, n - n_decode, vocab, NULL);
        mutate(d, m, ids, n - n_decode, vocab);
        for (uint32_t i = n - n_decode; i < n; i++)
            run_rows(d, ids, i, 1, d->pages, vocab, out);
        if (fclose(out) != 0)
            die(name, strerror(errno));
        memcpy(d->pages, saved, 2 * d->n_pages * sizeof(*saved));
    }
    free(saved);
}

int main(int argc, char **argv)
{
    static source s;
    device d = {0};
    const char *index = NULL, *ids_path = NULL, *out_path = NULL, *backend = "cuda", *isa = NULL;
    uint32_t n_decode = 0;
    bool with_mutations = false;
    for (int i = 1; i < argc; i++) {
        const char *value = i + 1 < argc ? argv[i + 1] : NULL;
        if (strcmp(argv[i], "--mutate") == 0) {
            with_mutations = true;
            continue;
        }
        if (value == NULL)
            die(argv[i], "expected a value");
        if (strcmp(argv[i], "--index") == 0)
            index = value;
        else if (strcmp(argv[i], "--ids") == 0)
            ids_path = value;
        else if (strcmp(argv[i], "--out") == 0)
            out_path = value;
        else if (strcmp(argv[i], "--backend") == 0)
            backend = value;
        else if (strcmp(argv[i], "--isa") == 0)
            isa = value;
        else if (strcmp(argv[i], "--decode") == 0)
            n_decode = (uint32_t)strtoul(value, NULL, 10);
        else
            die(argv[i], "no such option");
        i++;
    }
    if (index == NULL || ids_path == NULL || out_path == NULL)
        die("usage", "needs --index, --ids and --out");
    read_index(&s, index);
    const file ids_file = map_file(ids_path);
    const int32_t *ids = (const int32_t *)(const void *)ids_file.data;
    const uint32_t n = (uint32_t)(ids_file.bytes / 4), vocab = s.desc.shape.vocab;
    if (n_decode >= n || n - n_decode < 2 * DONOR_ROWS)
        die(ids_path, "too few ids");
    FILE *out = fopen(out_path, "wb");
    if (out == NULL)
        die(out_path, strerror(errno));
    open_device(&d, backend, isa, &s, n);
    run_prompt(&d, ids, n - n_decode, vocab, out);
    for (uint32_t i = n - n_decode; i < n; i++)
        run_rows(&d, ids, i, 1, d.pages, vocab, out);
    if (fclose(out) != 0)
        die(out_path, strerror(errno));
    if (with_mutations)
        run_mutations(&d, ids, n, n_decode, vocab, out_path);
    qk_step_free(d.step);
    qk_context_free(d.context);
    qk_model_free(d.model);
    qk_buffer_free(d.pool);
    qk_backend_free(d.backend);
    free(d.pages);
    return 0;
}
