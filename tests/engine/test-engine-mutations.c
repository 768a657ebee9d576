/* test-engine-mutations.c: the comparison with the reference must fail when the cache or the model is wrong.
 *
 * Each case loads a model folder straight onto the CPU backend (kernels/qk.h), fills pages with the first N_PAST tokens
 * of a prompt, spoils one thing and computes the next token's logits. Unspoiled they are within the tolerance of the
 * reference; spoiled they must be several tolerances away (10 with float32 pages, 2 with bf16). The spoiled things are
 * those that a page cache gets wrong (a
 * page dropped, doubled, swapped, stale, off by a token) and those that a loader gets wrong (score scale, order of the
 * rotated pairs, YaRN, the output matrix).
 *
 * One fault is invisible to any tolerance: two full pages swapped. Keys carry their position in their rotation, so
 * attention over a set of keys does not depend on their order; only the sums' rounding does. The test says so with
 * bits, and swaps the partly filled last page to get a wrong result. */
#include <math.h>
#include <string.h>
#include "engine/qe-model.h"
#include "kernels/qk.h"
#include "tests/engine/fixture.h"

#define N_PAST  100u /* 6 full pages and 4 tokens */
#define N_TABLE 7u
#define N_POOL  8u /* the last is never written */

typedef enum {
    MODEL_RIGHT,
    MODEL_SCALE,         /* scores twice as large */
    MODEL_PAIRS,         /* rotates neighbours (2i, 2i + 1) instead of (i, i + head_dim / 2) */
    MODEL_ROPE_FACTOR,   /* YaRN without its attention factor */
    MODEL_ROPE_UNSCALED, /* no YaRN at all */
    MODEL_TIED,          /* the embedding instead of lm_head */
} model_fault;

typedef struct {
    qe_model *folder;
    qk_layer_tensors *layers;
    GPtrArray *copies; /* spoiled weights */
    double inv_freq[QE_MODEL_HEAD_DIM_MAX / 2];
    qk_shape shape;
    qk_kv_layout layout;
    qk_backend *backend;
    qk_model *model;
    qk_context *context;
    qk_step *step;
    qk_buffer *pages, *staging; /* [N_POOL] pages each */
} world;

/* What a step reads: a table of pages and how many tokens it takes for cached. */
typedef struct {
    uint32_t table[N_TABLE + 1];
    uint32_t start;
} view;

static qk_tensor tensor(const qe_weight *w)
{
    return (qk_tensor){w->data, w->dtype == QE_DTYPE_BF16 ? QK_BF16 : QK_F32, w->rows, w->cols};
}

/* Rows of each head reordered so that rotating (i, i + half) rotates what was (2i, 2i + 1). */
static qk_tensor reorder_heads(world *w, qk_tensor t, uint32_t n_dims, uint32_t row_elements)
{
    g_assert_cmpint(t.dtype, ==, QK_BF16);
    uint32_t dim = w->shape.head_dim, half = dim / 2;
    const uint16_t *from = t.data;
    uint16_t *to = g_new(uint16_t, (gsize)n_dims * row_elements);
    g_ptr_array_add(w->copies, to);
    for (uint32_t d = 0; d < n_dims; d++) {
        uint32_t in_head = d % dim;
        uint32_t source = d - in_head + (in_head < half ? 2 * in_head : 2 * (in_head - half) + 1);
        memcpy(to + (gsize)d * row_elements, from + (gsize)source * row_elements, row_elements * sizeof *to);
    }
    t.data = to;
    return t;
}

static qk_tensor twice(world *w, qk_tensor t)
{
    float *to = g_new(float, t.cols);
    g_ptr_array_add(w->copies, to);
    for (uint32_t i = 0; i < t.cols; i++) {
        uint32_t bits = (uint32_t)((const uint16_t *)t.data)[i] << 16;
        memcpy(&to[i], &bits, sizeof bits);
        to[i] *= 2;
    }
    return (qk_tensor){to, QK_F32, t.rows, t.cols};
}

static void spoil_layer(world *w, qk_layer_tensors *l, model_fault fault)
{
    const qk_shape *s = &w->shape;
    if (fault == MODEL_SCALE)
        l->q_norm = twice(w, l->q_norm);
    if (fault == MODEL_PAIRS) {
        l->q = reorder_heads(w, l->q, s->n_heads * s->head_dim, s->hidden);
        l->k = reorder_heads(w, l->k, s->n_kv_heads * s->head_dim, s->hidden);
        l->q_norm = reorder_heads(w, l->q_norm, s->head_dim, 1);
        l->k_norm = reorder_heads(w, l->k_norm, s->head_dim, 1);
    }
}

static void load(world *w, model_fault fault)
{
    const qe_config *c = qe_model_get_config(w->folder);
    const qe_model_weights *from = qe_model_get_weights(w->folder);
    for (uint32_t i = 0; i < c->head_dim / 2; i++)
        w->inv_freq[i] =
            fault == MODEL_ROPE_UNSCALED ? pow(c->rope_theta, -2.0 * i / c->head_dim) : c->rope_inv_freq[i];
    bool plain = fault == MODEL_ROPE_FACTOR || fault == MODEL_ROPE_UNSCALED;
    w->shape = (qk_shape){c->n_layers, c->n_heads, c->n_kv_heads, c->head_dim, c->hidden, c->ffn, c->vocab,
        c->max_positions, (float)c->rms_eps, plain ? 1 : (float)c->rope_attn_factor, w->inv_freq};
    w->layers = g_new0(qk_layer_tensors, c->n_layers);
    for (uint32_t i = 0; i < c->n_layers; i++) {
        const qe_layer_weights *l = &from->layers[i];
        w->layers[i] = (qk_layer_tensors){tensor(&l->attn_norm), tensor(&l->q), tensor(&l->k), tensor(&l->v),
            tensor(&l->q_norm), tensor(&l->k_norm), tensor(&l->o), tensor(&l->ffn_norm), tensor(&l->gate),
            tensor(&l->up), tensor(&l->down)};
        spoil_layer(w, &w->layers[i], fault);
    }
    const qk_model_desc desc = {w->shape, tensor(&from->embed), tensor(&from->final_norm),
        tensor(fault == MODEL_TIED ? &from->embed : &from->lm_head), w->layers};
    g_assert_cmpint(qk_model_load(w->backend, &desc, NULL, NULL, &w->model), ==, QK_OK);
}

static void world_init(world *w, const fx_file *fx, qk_dtype dtype, model_fault fault)
{
    g_autoptr(GError) error = NULL;
    char message[256];
    *w = (world){.copies = g_ptr_array_new_with_free_func(g_free)};
    w->folder = qe_model_open(fx->model_dir, &error);
    g_assert_no_error(error);
    g_assert_cmpint(
        qk_backend_open("cpu", &(qk_backend_options){.n_threads = 2}, &w->backend, message, sizeof message),
        ==, QK_OK);
    load(w, fault);
    qk_kv_layout_page_major(&w->shape, dtype, &w->layout);
    const qk_context_params params = {.rows_max = N_PAST,
        .seqs_max = 1,
        .pages_max = N_POOL,
        .outputs_max = 1,
        .logits_max = 1,
        .slots_max = 1,
        .layout = w->layout};
    g_assert_cmpint(qk_context_new(w->model, &params, &w->context), ==, QK_OK);
    g_assert_cmpint(qk_step_new(w->context, &w->step), ==, QK_OK);
    uint64_t n_bytes = N_POOL * w->layout.page_bytes;
    g_assert_cmpint(qk_buffer_new(w->backend, QK_MEMORY_DEVICE, n_bytes, &w->pages), ==, QK_OK);
    g_assert_cmpint(qk_buffer_new(w->backend, QK_MEMORY_HOST, n_bytes, &w->staging), ==, QK_OK);
    g_assert_cmpint(qk_fill_submit(w->backend, QK_STREAM_COMPUTE, w->pages, 0, n_bytes, 0), ==, QK_OK);
}

static void world_clear(world *w)
{
    qk_step_free(w->step);
    qk_context_free(w->context);
    qk_model_free(w->model);
    qk_buffer_free(w->pages);
    qk_buffer_free(w->staging);
    qk_backend_free(w->backend);
    qe_model_unref(w->folder);
    g_ptr_array_unref(w->copies);
    g_free(w->layers);
}

/* One step of @n rows at v->start over the view's pages; returns the last row's logits, borrowed. */
static const float *compute(world *w, const view *v, const uint32_t *ids, uint32_t n)
{
    qk_plan *plan = qk_step_plan(w->step);
    plan->n_rows = n;
    plan->n_seqs = plan->n_outputs = 1;
    plan->n_pages = (v->start + n + QK_PAGE_TOKENS - 1) / QK_PAGE_TOKENS;
    for (uint32_t i = 0; i < n; i++)
        plan->tokens[i] = (int32_t)ids[i];
    for (uint32_t i = 0; i < plan->n_pages; i++)
        plan->pages[i] = w->pages->address + v->table[i] * w->layout.page_bytes;
    plan->seqs[0] = (qk_seq){.n_rows = n, .start = v->start, .n_pages = plan->n_pages};
    plan->outputs[0] = (qk_output){.row = n - 1, .flags = QK_OUTPUT_LOGITS, .slot = QK_NO_SLOT};
    g_assert_cmpint(qk_step_submit(w->step), ==, QK_OK);
    g_assert_cmpint(qk_step_wait(w->step), ==, QK_OK);
    return qk_step_result(w->step)->logits;
}

static void move_pages(world *w, bool to_host)
{
    qk_event *event;
    const qk_copy copy = {to_host ? w->staging : w->pages, 0, to_host ? w->pages : w->staging, 0,
        N_POOL * w->layout.page_bytes};
    g_assert_cmpint(qk_copy_submit(w->backend, QK_STREAM_COMPUTE, &copy, 1), ==, QK_OK);
    g_assert_cmpint(qk_event_new(w->backend, &event), ==, QK_OK);
    g_assert_cmpint(qk_event_record(event, QK_STREAM_COMPUTE), ==, QK_OK);
    g_assert_cmpint(qk_event_wait(event), ==, QK_OK);
    qk_event_free(event);
}

/* ---- Faults of the cache: they edit the pages' bytes in @image or the view ---- */

typedef struct {
    world *w;
    uint8_t *image;       /* [N_POOL] pages */
    const uint8_t *stale; /* the same of another prompt */
    view v;
} scene;

/* A token's K or V of one head in a page of an image. */
static uint8_t *slot(const scene *s, const uint8_t *image, uint32_t page, uint32_t layer, uint32_t head,
    bool v, uint32_t token)
{
    const qk_kv_layout *l = &s->w->layout;
    return (uint8_t *)image + page * l->page_bytes + layer * l->layer_stride + head * l->head_stride +
           (v ? l->v_offset : 0) + token * l->token_stride;
}

static gsize slot_bytes(const scene *s)
{
    return s->w->shape.head_dim * (s->w->layout.dtype == QK_F32 ? 4u : 2u);
}

#define FOR_SLOTS(s, layer, head)                                                                            \
    for (uint32_t layer = 0; layer < (s)->w->shape.n_layers; layer++)                                        \
        for (uint32_t head = 0; head < (s)->w->shape.n_kv_heads; head++)

static void right(scene *s)
{
    g_assert_cmpuint(s->v.start, ==, N_PAST);
}

static void dropped(scene *s) /* the table closes up, the count stays */
{
    memmove(&s->v.table[2], &s->v.table[3], 4 * sizeof s->v.table[0]);
    s->v.table[6] = N_POOL - 1;
}

static void dropped_whole(scene *s) /* and the count follows */
{
    memmove(&s->v.table[2], &s->v.table[3], 4 * sizeof s->v.table[0]);
    s->v.start -= QK_PAGE_TOKENS;
}

static void doubled(scene *s)
{
    s->v.table[3] = s->v.table[2];
}

static void swap(scene *s, uint32_t a, uint32_t b)
{
    uint32_t t = s->v.table[a];
    s->v.table[a] = s->v.table[b];
    s->v.table[b] = t;
}

static void swapped_full(scene *s)
{
    swap(s, 1, 4);
}

static void swapped_last(scene *s)
{
    swap(s, 5, 6);
}

static void stale_page(scene *s)
{
    gsize n = s->w->layout.page_bytes;
    memcpy(s->image + 3 * n, s->stale + 3 * n, n);
}

static void stale_tail(scene *s) /* the last tokens before the new one */
{
    FOR_SLOTS(s, layer, head)
    {
        for (uint32_t token = 0; token < N_PAST % QK_PAGE_TOKENS; token++) {
            for (int v = 0; v < 2; v++)
                memcpy(slot(s, s->image, 6, layer, head, v, token),
                    slot(s, s->stale, 6, layer, head, v, token), slot_bytes(s));
        }
    }
}

static void start_early(scene *s)
{
    s->v.start--;
}

static void start_late(scene *s)
{
    s->v.start++;
}

static void shifted_tokens(
    scene *s) /* every page's tokens lie one slot late: the last is lost, the first is empty */
{
    for (uint32_t page = 0; page < N_TABLE; page++) {
        FOR_SLOTS(s, layer, head)
        {
            for (int v = 0; v < 2; v++) {
                uint8_t *first = slot(s, s->image, page, layer, head, v, 0);
                memmove(first + s->w->layout.token_stride, first,
                    (QK_PAGE_TOKENS - 1) * s->w->layout.token_stride);
                memset(first, 0, slot_bytes(s));
            }
        }
    }
}

static void exchange(uint8_t *a, uint8_t *b, gsize n)
{
    for (gsize i = 0; i < n; i++) {
        uint8_t t = a[i];
        a[i] = b[i];
        b[i] = t;
    }
}

static void keys_for_values(scene *s)
{
    FOR_SLOTS(s, layer, head)
    {
        for (uint32_t token = 0; token < QK_PAGE_TOKENS; token++)
            exchange(slot(s, s->image, 2, layer, head, false, token),
                slot(s, s->image, 2, layer, head, true, token), slot_bytes(s));
    }
}

static void heads_exchanged(scene *s)
{
    for (uint32_t layer = 0; layer < s->w->shape.n_layers; layer++) {
        for (uint32_t token = 0; token < QK_PAGE_TOKENS; token++) {
            for (int v = 0; v < 2; v++)
                exchange(slot(s, s->image, 2, layer, 0, v, token), slot(s, s->image, 2, layer, 1, v, token),
                    slot_bytes(s));
        }
    }
}

static float get(const scene *s, const uint8_t *at, uint32_t d)
{
    uint32_t bits;
    if (s->w->layout.dtype == QK_F32)
        memcpy(&bits, at + 4 * d, 4);
    else
        bits = (uint32_t)((const uint16_t *)(const void *)at)[d] << 16;
    float value;
    memcpy(&value, &bits, 4);
    return value;
}

static void put(const scene *s, uint8_t *at, uint32_t d, float value)
{
    uint32_t bits;
    memcpy(&bits, &value, 4);
    if (s->w->layout.dtype == QK_F32)
        memcpy(at + 4 * d, &bits, 4);
    else
        ((uint16_t *)(void *)at)[d] = (uint16_t)((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
}

static void rotated_by_one(scene *s) /* the keys of all pages stand one position too far */
{
    uint32_t half = s->w->shape.head_dim / 2;
    for (uint32_t i = 0; i < N_PAST; i++) {
        FOR_SLOTS(s, layer, head)
        {
            uint8_t *k = slot(s, s->image, i / QK_PAGE_TOKENS, layer, head, false, i % QK_PAGE_TOKENS);
            for (uint32_t d = 0; d < half; d++) {
                double a = get(s, k, d), b = get(s, k, d + half), angle = s->w->inv_freq[d];
                put(s, k, d, (float)(a * cos(angle) - b * sin(angle)));
                put(s, k, d + half, (float)(b * cos(angle) + a * sin(angle)));
            }
        }
    }
}

typedef struct {
    const char *name;
    void (*spoil)(scene *s);
    bool invisible; /* differs in bits, not beyond the tolerance */
} fault;

static const fault faults[] = {
    {"nothing", right, true},
    {"page dropped, table closed up", dropped, false},
    {"page dropped, count too", dropped_whole, false},
    {"page doubled", doubled, false},
    {"full pages swapped", swapped_full, true},
    {"last page swapped", swapped_last, false},
    {"page stale", stale_page, false},
    {"last tokens stale", stale_tail, false},
    {"start one early", start_early, false},
    {"start one late", start_late, false},
    {"tokens one slot late", shifted_tokens, false},
    {"keys for values", keys_for_values, false},
    {"heads exchanged", heads_exchanged, false},
    {"keys rotated one too far", rotated_by_one, false},
};

typedef struct {
    const char *model, *prompt;
    qk_dtype dtype;
} config;

static const view whole = {.table = {0, 1, 2, 3, 4, 5, 6, 7}};

static void fill(world *w, const uint32_t *ids, uint8_t *image)
{
    compute(w, &whole, ids, N_PAST);
    move_pages(w, true);
    memcpy(image, w->staging->host, N_POOL * w->layout.page_bytes);
}

static void test_cache(gconstpointer data)
{
    const config *c = data;
    double factor = c->dtype == QK_F32 ? 10 : 2;
    g_autoptr(fx_file) fx = fx_open(c->model);
    const fx_prompt *prompt = fx_find(fx, c->prompt);
    g_assert_cmpuint(prompt->n_ids, >, N_PAST);
    double tolerance = fx_tolerance(prompt, N_PAST, c->dtype == QK_BF16);
    world w;
    world_init(&w, fx, c->dtype, MODEL_RIGHT);
    gsize n_bytes = N_POOL * w.layout.page_bytes;
    g_autofree uint8_t *image = g_malloc(n_bytes);
    g_autofree uint8_t *stale = g_malloc(n_bytes);
    uint32_t other[N_PAST];
    for (uint32_t i = 0; i < N_PAST; i++)
        other[i] = prompt->ids[N_PAST - 1 - i];
    fill(&w, other, stale);
    fill(&w, prompt->ids, image);
    g_autofree float *unspoiled = NULL;
    for (guint i = 0; i < G_N_ELEMENTS(faults); i++) {
        g_autofree uint8_t *spoiled = g_memdup2(image, n_bytes);
        scene s = {&w, spoiled, stale, whole};
        s.v.start = N_PAST;
        faults[i].spoil(&s);
        memcpy(w.staging->host, spoiled, n_bytes);
        move_pages(&w, false);
        const float *logits = compute(&w, &s.v, &prompt->ids[N_PAST], 1);
        double error = fx_compare(fx, prompt, N_PAST, logits).relative;
        g_test_message("%s: error %.3g, %.3g tolerances", faults[i].name, error, error / tolerance);
        if (faults[i].invisible)
            g_assert_cmpfloat(error, <=, tolerance);
        else
            g_assert_cmpfloat(error, >, factor * tolerance);
        if (!unspoiled)
            unspoiled = g_memdup2(logits, fx->vocab * sizeof(float));
        else
            g_assert_true(memcmp(unspoiled, logits, fx->vocab * sizeof(float)) != 0);
    }
    world_clear(&w);
}

/* ---- Faults of the model ---- */

static void test_model(void)
{
    const struct {
        const char *name, *model, *prompt;
        model_fault fault;
    } cases[] = {
        {"nothing", "demo-model", "chinese", MODEL_RIGHT},
        {"scores twice as large", "demo-model", "chinese", MODEL_SCALE},
        {"neighbours rotated", "demo-model", "chinese", MODEL_PAIRS},
        {"nothing", "tiny-random", "random-130", MODEL_RIGHT},
        {"scores twice as large", "tiny-random", "random-130", MODEL_SCALE},
        {"neighbours rotated", "tiny-random", "random-130", MODEL_PAIRS},
        {"embedding for lm_head", "tiny-random", "random-130", MODEL_TIED},
        {"nothing", "tiny-yarn", "random-120", MODEL_RIGHT},
        {"no attention factor", "tiny-yarn", "random-120", MODEL_ROPE_FACTOR},
        {"no YaRN", "tiny-yarn", "random-120", MODEL_ROPE_UNSCALED},
    };
    for (guint i = 0; i < G_N_ELEMENTS(cases); i++) {
        g_autoptr(fx_file) fx = fx_open(cases[i].model);
        const fx_prompt *prompt = fx_find(fx, cases[i].prompt);
        world w;
        world_init(&w, fx, QK_F32, cases[i].fault);
        view v = whole;
        compute(&w, &v, prompt->ids, N_PAST);
        v.start = N_PAST;
        const float *logits = compute(&w, &v, &prompt->ids[N_PAST], 1);
        double error = fx_compare(fx, prompt, N_PAST, logits).relative;
        g_test_message("%s, %s: error %.3g", cases[i].model, cases[i].name, error);
        if (cases[i].fault == MODEL_RIGHT)
            g_assert_cmpfloat(error, <=, 1e-4);
        else
            g_assert_cmpfloat(error, >, 100 * 1e-4);
        world_clear(&w);
    }
}

int main(int argc, char **argv)
{
    static const config configs[] = {
        {"demo-model", "chinese", QK_F32},
        {"demo-model", "chinese", QK_BF16},
        {"tiny-random", "random-130", QK_F32},
        {"tiny-yarn", "random-120", QK_F32},
    };
    g_test_init(&argc, &argv, NULL);
    for (guint i = 0; i < G_N_ELEMENTS(configs); i++) {
        g_autofree char *path = g_strdup_printf(
            "/engine/mutations/%s/%s", configs[i].model, configs[i].dtype == QK_F32 ? "f32" : "bf16");
        g_test_add_data_func(path, &configs[i], test_cache);
    }
    g_test_add_func("/engine/mutations/model", test_model);
    return g_test_run();
}
