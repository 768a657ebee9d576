/* test-kernels-check.c: each malformed field of a plan, a context and a model is refused, and the message names it. */
#include "kernels/qk-check.h"
#include "tests/kernels/fixture.h"
#include "tests/kernels/tap.h"
#include <math.h>
#include <string.h>

static char line[256];

static qk_status no_partial(void *user, const qk_partial_args *args)
{
    return QK_UNSUPPORTED;
}

/* ---- Plans ------------------------------------------------------------------------------------------------------ */

/* Two sequences: 3 rows from 600 on with span 0 outside, 2 rows from 0 on. */
typedef struct {
    qk_plan plan;
    qk_context_params params;
    qk_shape shape;
    int32_t tokens[8];
    qk_seq seqs[4];
    uint64_t pages[64];
    qk_output outputs[4];
} sample_plan;

static void set_up(sample_plan *s)
{
    memset(s, 0, sizeof(*s));
    s->shape = fixture_small;
    s->params = (qk_context_params){.rows_max = 8,
        .seqs_max = 4,
        .pages_max = 64,
        .outputs_max = 4,
        .logits_max = 1,
        .slots_max = 5,
        .partial_max = 3,
        .partial = no_partial};
    qk_kv_layout_page_major(&s->shape, QK_F32, &s->params.layout);
    s->plan = (qk_plan){
        .n_rows = 5,
        .n_seqs = 2,
        .n_pages = 39,
        .n_outputs = 2,
        .tokens = s->tokens,
        .seqs = s->seqs,
        .pages = s->pages,
        .outputs = s->outputs,
    };
    s->tokens[0] = 130;
    s->tokens[1] = ~4;
    s->seqs[0] = (qk_seq){.row_begin = 0, .n_rows = 3, .start = 600, .page_begin = 0, .n_pages = 38};
    s->seqs[1] = (qk_seq){.row_begin = 3, .n_rows = 2, .start = 0, .page_begin = 38, .n_pages = 1};
    for (int i = 0; i < 64; i++)
        s->pages[i] = i < 16 ? 0 : 4096u * (i + 1);
    for (int i = 0; i < 2; i++)
        s->outputs[i] = (qk_output){.row = i == 0 ? 2 : 4,
            .flags = QK_OUTPUT_SAMPLE,
            .slot = (uint32_t)i,
            .sampling = {.temperature = 1, .top_p = 1, .repetition_penalty = 1}};
    s->outputs[1].flags = QK_OUTPUT_SAMPLE | QK_OUTPUT_LOGITS;
}

static qk_status check(const sample_plan *s)
{
    line[0] = '\0';
    return qk_plan_check(&s->plan, &s->shape, &s->params, line, sizeof(line));
}

#define REFUSED(word, ...)                                                                                   \
    do {                                                                                                     \
        sample_plan s;                                                                                       \
        set_up(&s);                                                                                          \
        __VA_ARGS__;                                                                                         \
        qk_status status = check(&s);                                                                        \
        tap_ok(status == QK_INVALID && strstr(line, word) != NULL, "%s: %s", #__VA_ARGS__, line);            \
    } while (0)

/* A mask and two biases for output 0. */
static void set_extras(sample_plan *s, uint32_t *mask, qk_bias *biases)
{
    s->params.masks_max = s->plan.n_masks = 1;
    s->params.biases_max = s->plan.n_biases = s->outputs[0].n_bias = 2;
    s->plan.masks = mask;
    s->plan.biases = biases;
    s->outputs[0].flags = QK_OUTPUT_SAMPLE | QK_OUTPUT_MASK;
}

static void accept_extras(uint32_t *mask, qk_bias *biases)
{
    sample_plan s;
    set_up(&s);
    set_extras(&s, mask, biases);
    tap_ok(check(&s) == QK_OK, "a mask and a bias list: %s", line);
}

static void test_extras(void)
{
    REFUSED("draws no token", s.outputs[0].flags = QK_OUTPUT_MASK);
    REFUSED("draws no token", s.outputs[0].flags = QK_OUTPUT_LOGITS, s.outputs[0].n_top = 1);
    REFUSED("outputs[0].n_top", s.outputs[0].n_top = QK_TOP_MAX + 1);
    REFUSED("n_masks", s.plan.n_masks = 1);
    REFUSED("n_biases", s.plan.n_biases = 1);
    uint32_t mask[64] = {0};
    qk_bias biases[2] = {{3, 1}, {5, -1}};
    REFUSED("mask 0 allows no id", set_extras(&s, mask, biases));
    mask[qk_mask_words(fixture_small.vocab) - 1] =
        fixture_small.vocab % 32 ? ~0u << fixture_small.vocab % 32 : 0;
    REFUSED("mask 0 allows no id", set_extras(&s, mask, biases));
    mask[0] = 1;
    accept_extras(mask, biases);
    REFUSED("outputs[0].mask", set_extras(&s, mask, biases), s.outputs[0].mask = 1);
    REFUSED("without QK_OUTPUT_MASK", s.outputs[0].mask = 1);
    REFUSED("past n_biases", set_extras(&s, mask, biases), s.outputs[0].bias_begin = 1);
    REFUSED("ascending", set_extras(&s, mask, biases), biases[0].id = 5);
    biases[0].id = 3;
    REFUSED("ascending", set_extras(&s, mask, biases), biases[1].id = fixture_small.vocab);
    biases[1].id = 5;
    REFUSED("finite", set_extras(&s, mask, biases), biases[1].value = INFINITY);
    biases[1].value = -1;
}

static void test_plan(void)
{
    sample_plan good;
    set_up(&good);
    tap_ok(check(&good) == QK_OK, "a plan that uses every feature passes %s", line);
    good.plan.n_outputs = 0;
    tap_ok(check(&good) == QK_OK, "a plan without outputs passes");

    REFUSED("n_rows", s.plan.n_rows = 0);
    REFUSED("n_rows", s.plan.n_rows = 9);
    REFUSED("n_rows", s.plan.n_rows = UINT32_MAX);
    REFUSED("n_seqs", s.plan.n_seqs = 0);
    REFUSED("n_seqs", s.plan.n_seqs = 5);
    REFUSED("n_pages", s.plan.n_pages = 0);
    REFUSED("n_pages", s.plan.n_pages = 65);
    REFUSED("n_outputs", s.plan.n_outputs = 5);
    REFUSED("tokens[2]", s.tokens[2] = 131);
    REFUSED("tokens[2]", s.tokens[2] = INT32_MAX);
    REFUSED("tokens[4]", s.tokens[4] = ~5);
    REFUSED("tokens[4]", s.tokens[4] = INT32_MIN);
    REFUSED("seqs[0].row_begin", s.seqs[0].row_begin = 1);
    REFUSED("seqs[1].row_begin", s.seqs[1].row_begin = 2);
    REFUSED("seqs[0].n_rows", s.seqs[0].n_rows = 0);
    REFUSED("seqs[1].n_rows", s.seqs[1].n_rows = 3);
    REFUSED("seqs[0].n_rows", s.seqs[0].n_rows = UINT32_MAX);
    REFUSED("n_rows", s.seqs[1].n_rows = 1);
    REFUSED("position", s.seqs[0].start = 4094);
    REFUSED("position", s.seqs[0].start = UINT32_MAX);
    REFUSED("seqs[0].n_pages", s.seqs[0].n_pages = 37);
    REFUSED("seqs[0].n_pages", s.seqs[0].n_pages = 39);
    REFUSED("seqs[0].n_pages", s.seqs[0].start = 606);
    REFUSED("seqs[1].page_begin", s.seqs[1].page_begin = 39);
    REFUSED("seqs[1].page_begin", s.seqs[1].page_begin = UINT32_MAX);
    REFUSED("seqs[1].n_recent", s.seqs[1].n_sink = 1);
    REFUSED("seqs[1].n_recent", s.seqs[1].n_chosen = 1);
    REFUSED("seqs[0] page", s.pages[20] = 0);
    REFUSED("seqs[0] page", s.pages[3] = 4096);
    REFUSED("seqs[1] page", s.pages[38] = 0);
    REFUSED("seqs[0] page", memset(s.pages + 32, 0, 6 * sizeof(s.pages[0])));
    REFUSED("aligned", s.pages[20] = 4098);
    REFUSED("aligned", s.pages[20] = 4098 | QK_PAGE_HOST);
    REFUSED("QK_PAGE_HOST on address 0", s.pages[20] = QK_PAGE_HOST);
    REFUSED("QK_PAGE_HOST on address 0", s.pages[3] = QK_PAGE_HOST);
    REFUSED("seqs[0] page 37: QK_PAGE_HOST", s.pages[37] |= QK_PAGE_HOST);
    REFUSED("seqs[1] page 0: QK_PAGE_HOST", s.pages[38] |= QK_PAGE_HOST);
    REFUSED("kv_class is 1", s.plan.kv_class = 1);
    REFUSED("kv_class is 2", s.plan.kv_class = 2; s.params.layout_1 = s.params.layout);
    REFUSED("kv_class", s.plan.kv_class = UINT32_MAX);
    REFUSED("host_path", s.plan.host_path = 2);
    REFUSED("host_path", s.plan.host_path = UINT32_MAX);
    REFUSED("is outside, and host_path is 1, expected 0", s.plan.host_path = QK_HOST_STREAM);
    REFUSED("partial function", s.params.partial = NULL);
    REFUSED("outside items", s.params.partial_max = 2);
    REFUSED("outputs[1].row", s.outputs[1].row = 5);
    REFUSED("outputs[1].row", s.outputs[1].row = 2);
    REFUSED("outputs[1].row", s.outputs[1].row = 1);
    REFUSED("outputs[0].flags", s.outputs[0].flags = 0);
    REFUSED("outputs[0].flags", s.outputs[0].flags = 8);
    REFUSED("outputs[0].slot", s.outputs[0].slot = 5);
    REFUSED("outputs[1].slot", s.outputs[1].slot = 0);
    REFUSED("outputs[0].reserved", s.outputs[0].reserved = 1);
    REFUSED("logits", s.outputs[0].flags = QK_OUTPUT_LOGITS);
    REFUSED("temperature", s.outputs[0].sampling.temperature = -1);
    REFUSED("temperature", s.outputs[0].sampling.temperature = INFINITY);
    REFUSED("temperature", s.outputs[0].sampling.temperature = NAN);
    REFUSED("top_p", s.outputs[0].sampling.top_p = 1.5f);
    REFUSED("top_p", s.outputs[0].sampling.top_p = NAN);
    REFUSED("min_p", s.outputs[0].sampling.min_p = -0.1f);
    REFUSED("min_p", s.outputs[0].sampling.min_p = NAN);
    REFUSED("repetition_penalty", s.outputs[0].sampling.repetition_penalty = 0);
    REFUSED("repetition_penalty", s.outputs[0].sampling.repetition_penalty = NAN);
    REFUSED("presence_penalty", s.outputs[0].sampling.presence_penalty = NAN);
    REFUSED("frequency_penalty", s.outputs[0].sampling.frequency_penalty = NAN);

    sample_plan s;
    set_up(&s);
    for (int p = 16; p < 37; p++)
        s.pages[p] |= QK_PAGE_HOST;
    tap_ok(check(&s) == QK_OK, "host pages up to the last one before the rows pass %s", line);
    s.seqs[0].start = 592; /* the first row begins page 37 */
    s.seqs[0].n_rows = 3;
    tap_ok(check(&s) == QK_OK, "also where the rows begin a page %s", line);
    s.seqs[0].start = 591;
    tap_ok(check(&s) == QK_INVALID, "and not where page 36 still is written: %s", line);
    set_up(&s);
    qk_kv_layout_page_major(&s.shape, QK_BF16, &s.params.layout_1);
    s.plan.kv_class = 1;
    s.pages[20] = 4098;
    tap_ok(check(&s) == QK_OK, "kv_class 1 has layout_1's alignment %s", line);
    s.plan.kv_class = 0;
    tap_ok(check(&s) == QK_INVALID, "kv_class 0 does not: %s", line);
    set_up(&s);
    s.outputs[0].flags = QK_OUTPUT_LOGITS;
    s.params.logits_max = 2;
    s.outputs[0].sampling.temperature = NAN;
    tap_ok(check(&s) == QK_OK, "sampling is not looked at where nothing is sampled");
    set_up(&s);
    s.seqs[0].start = 512 + 4000; /* 4515 positions */
    tap_ok(check(&s) == QK_INVALID, "past max_positions");
    set_up(&s);
    /* Start 255: span 0 is not whole before the rows. */
    s.seqs[0] = (qk_seq){.row_begin = 0, .n_rows = 3, .start = 255, .page_begin = 0, .n_pages = 17};
    tap_ok(check(&s) == QK_INVALID, "an outside span that the rows write: %s", line);
    s.seqs[0].start = 256;
    tap_ok(check(&s) == QK_OK, "and one that ends where they begin");
}

/* ---- Layouts, contexts, models ------------------------------------------------------------------------------------ */

static void test_context(void)
{
    sample_plan s;
    set_up(&s);
    qk_context_params p;
#define BAD_PARAMS(word, ...)                                                                                \
    do {                                                                                                     \
        p = s.params;                                                                                        \
        __VA_ARGS__;                                                                                         \
        line[0] = '\0';                                                                                      \
        tap_ok(qk_check_context_params(&p, &s.shape, line, sizeof(line)) == QK_INVALID &&                    \
                   strstr(line, word) != NULL,                                                               \
            "%s: %s", #__VA_ARGS__, line);                                                                   \
    } while (0)
    tap_ok(qk_check_context_params(&s.params, &s.shape, line, sizeof(line)) == QK_OK, "good parameters pass");
    BAD_PARAMS("rows_max", p.rows_max = 0);
    BAD_PARAMS("rows_max", p.rows_max = UINT32_MAX);
    BAD_PARAMS("seqs_max", p.seqs_max = 9);
    BAD_PARAMS("pages_max", p.pages_max = 0);
    BAD_PARAMS("outputs_max", p.outputs_max = 9);
    BAD_PARAMS("logits_max", p.logits_max = 5);
    BAD_PARAMS("partial", p.partial = NULL);
    BAD_PARAMS("dtype", p.layout.dtype = (qk_dtype)3);
    BAD_PARAMS("scale_offset 2, expected 0", p.layout.scale_offset = 2);
    BAD_PARAMS("token_stride", p.layout.token_stride = 60);
    BAD_PARAMS("stride", p.layout.token_stride = 66);
    BAD_PARAMS("page", p.layout.page_bytes -= 4);
    BAD_PARAMS("overflow", p.layout.layer_stride = UINT64_MAX - 3);
    BAD_PARAMS("overflow", p.layout.v_offset = UINT64_MAX - 3);
    BAD_PARAMS("layout_1", p.layout_1 = p.layout; p.layout_1.page_bytes -= 4);
    BAD_PARAMS("layout_1", p.layout_1 = p.layout; p.layout_1.dtype = (qk_dtype)3);
    BAD_PARAMS("layout_1", p.layout_1.page_bytes = 1);
    p = s.params;
    qk_kv_layout_page_major(&s.shape, QK_I8, &p.layout_1);
    tap_ok(qk_check_context_params(&p, &s.shape, line, sizeof(line)) == QK_OK, "two layouts pass");

    qk_kv_layout l;
    qk_kv_layout_page_major(&fixture_medium, QK_BF16, &l);
    tap_ok(l.token_stride == 128 && l.v_offset == 2048 && l.head_stride == 4096 && l.layer_stride == 8192 &&
               l.page_bytes == 16384,
        "page-major strides of 2 layers, 2 heads of 64 in bf16");
}

/* Int8 pages: the layout as numbers, and what their scales may not do. */
static void test_int8_layout(void)
{
    qk_shape shape = {.n_layers = 28, .n_heads = 16, .n_kv_heads = 8, .head_dim = 128};
    qk_kv_layout l, bad;
    qk_kv_layout_page_major(&shape, QK_I8, &l);
    tap_ok(l.dtype == QK_I8 && l.token_stride == 128 && l.scale_offset == 2048 && l.v_offset == 2080 &&
               l.head_stride == 4160 && l.layer_stride == 33280 && l.page_bytes == 931840,
        "page-major strides of 28 layers, 8 heads of 128 in int8");
    qk_kv_layout_page_major(&shape, QK_BF16, &bad);
    tap_ok(bad.scale_offset == 0 && bad.page_bytes == 1835008, "bf16 pages have no scales");
    bool aligned = true, good = true;
    for (uint32_t dim = 2; dim <= 256; dim += 2) {
        for (uint32_t heads = 1; heads <= 3; heads++) {
            const qk_shape any = {.n_layers = heads, .n_heads = heads, .n_kv_heads = heads, .head_dim = dim};
            qk_kv_layout_page_major(&any, QK_I8, &bad);
            aligned = aligned && bad.page_bytes % 64 == 0;
            good = good && qk_check_layout(&bad, &any, line, sizeof(line)) == QK_OK;
        }
    }
    tap_ok(aligned && good, "int8 pages of any shape are multiples of 64 and pass");

#define BAD_LAYOUT(word, ...)                                                                                \
    do {                                                                                                     \
        bad = l;                                                                                             \
        __VA_ARGS__;                                                                                         \
        line[0] = '\0';                                                                                      \
        tap_ok(                                                                                              \
            qk_check_layout(&bad, &shape, line, sizeof(line)) == QK_INVALID && strstr(line, word) != NULL,   \
            "%s: %s", #__VA_ARGS__, line);                                                                   \
    } while (0)
    BAD_LAYOUT("token_stride 127", bad.token_stride = 127);
    BAD_LAYOUT("multiple of 2", bad.scale_offset = 2049);
    BAD_LAYOUT("overlaps the tokens", bad.scale_offset = 2046);
    BAD_LAYOUT("overlaps the tokens", bad.scale_offset = 0);
    BAD_LAYOUT("overlaps the tokens", bad.token_stride = 130);
    BAD_LAYOUT("overflows", bad.scale_offset = UINT64_MAX - 1);
    BAD_LAYOUT("v_offset 2080 overlaps", bad.scale_offset = 2050);
    BAD_LAYOUT("v_offset 2048 overlaps", bad.v_offset = 2048);
    BAD_LAYOUT("v_offset 0 overlaps", bad.v_offset = 0);
    BAD_LAYOUT("head_stride 4158 overlaps", bad.head_stride = 4158);
    BAD_LAYOUT("layer_stride 33278 overlaps", bad.layer_stride = 33278);
    BAD_LAYOUT("the scale's 2", bad.v_offset = 2081);
    BAD_LAYOUT("the scale's 2", bad.head_stride = 4161);
    BAD_LAYOUT("the scale's 2", bad.layer_stride = 33281);
    BAD_LAYOUT("page", bad.page_bytes -= 2);
    BAD_LAYOUT("overflow", bad.layer_stride = UINT64_MAX - 1);
    BAD_LAYOUT("overflow", bad.head_stride = UINT64_MAX - 1);
#undef BAD_LAYOUT
    /* [K|V][layer][head], with room between: other strides are fine. */
    bad = l;
    bad.scale_offset += 6;
    bad.head_stride = 2090;
    bad.layer_stride = 8 * bad.head_stride + 4;
    bad.v_offset = 28 * bad.layer_stride;
    bad.page_bytes = 2 * bad.v_offset;
    tap_ok(qk_check_layout(&bad, &shape, line, sizeof(line)) == QK_OK, "other strides pass %s", line);
    shape.n_layers = shape.n_kv_heads = 1;
    bad = l;
    bad.head_stride = bad.layer_stride = 0;
    tap_ok(qk_check_layout(&bad, &shape, line, sizeof(line)) == QK_OK, "one head needs no stride %s", line);

    sample_plan s;
    set_up(&s);
    qk_kv_layout_page_major(&s.shape, QK_I8, &s.params.layout);
    s.pages[20] = 4098;
    tap_ok(check(&s) == QK_OK, "an int8 page on an even address passes %s", line);
    s.pages[20] = 4097;
    tap_ok(check(&s) == QK_OK, "and an odd one is a host page's %s", line);
}

static void test_host_memory(void)
{
    const struct {
        uintptr_t host;
        uint64_t bytes;
        const char *word;
    } bad[] = {
        {0, 4096, "no address"},
        {8192, 0, "0 bytes"},
        {8192, 4095, "multiples of 4096"},
        {8192, 6144, "multiples of 4096"},
        {8192 + 64, 4096, "multiples of 4096"},
        {8192, UINT64_MAX - 4095, "past the address space"},
    };
    for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++) {
        line[0] = '\0';
        tap_ok(qk_check_host_memory((void *)bad[i].host, bad[i].bytes, line, sizeof(line)) == QK_INVALID &&
                   strstr(line, bad[i].word) != NULL,
            "host memory: %s", line);
    }
    tap_ok(qk_check_host_memory((void *)(uintptr_t)8192, 4096, line, sizeof(line)) == QK_OK, "a good range");
}

static qk_status check_desc(const qk_model_desc *desc)
{
    line[0] = '\0';
    return qk_check_model_desc(desc, line, sizeof(line));
}

static void test_model(void)
{
    fixture_model *m = fixture_model_new(&fixture_small, QK_BF16, 1);
    qk_layer_tensors layers[2];
    qk_model_desc d;
#define BAD_MODEL(word, ...)                                                                                 \
    do {                                                                                                     \
        d = m->desc;                                                                                         \
        memcpy(layers, m->layers, sizeof(layers));                                                           \
        d.layers = layers;                                                                                   \
        __VA_ARGS__;                                                                                         \
        tap_ok(check_desc(&d) == QK_INVALID && strstr(line, word) != NULL, "%s: %s", #__VA_ARGS__, line);    \
    } while (0)
    tap_ok(check_desc(&m->desc) == QK_OK, "a good model passes %s", line);
    BAD_MODEL("n_layers", d.shape.n_layers = 0);
    BAD_MODEL("n_kv_heads", d.shape.n_kv_heads = 3);
    BAD_MODEL("head_dim", d.shape.head_dim = 15);
    BAD_MODEL("vocab", d.shape.vocab = UINT32_MAX);
    BAD_MODEL("rms_eps", d.shape.rms_eps = NAN);
    BAD_MODEL("rope_factor", d.shape.rope_factor = 0);
    BAD_MODEL("rope_inv_freq", d.shape.rope_inv_freq = NULL);
    BAD_MODEL("no layers", d.layers = NULL);
    BAD_MODEL("layer 1 q is [64, 51]", layers[1].q.cols = 51);
    BAD_MODEL("layer 0 down", layers[0].down.rows = 1);
    BAD_MODEL("layer 1 k_norm", layers[1].k_norm.data = NULL);
    BAD_MODEL("layer 1 up", layers[1].up.dtype = QK_I8);
    BAD_MODEL("aligned", layers[0].gate.data = (const char *)layers[0].gate.data + 1);
    BAD_MODEL("embed", d.embed.rows = 130);
    BAD_MODEL("lm_head", d.lm_head.rows = 132);
    BAD_MODEL("final_norm", d.final_norm.rows = 2);
    fixture_model_free(m);
}

/* The public functions refuse before the backend sees anything, and the line is the backend's. */
static void test_public(void)
{
    fixture_model *m = fixture_model_new(&fixture_small, QK_BF16, 1);
    rig r;
    rig_open(&r, m,
        &(rig_options){.n_threads = 1, .kv_dtype = QK_F32, .rows_max = 4, .n_pages = 4, .slots_max = 2});
    const int32_t tokens[] = {1, 2};
    const uint32_t pages[] = {0};
    rig_fill(&r, 0, &(rig_rows){tokens, 2, 0, pages}, 1);
    qk_step_plan(r.steps[0])->tokens[1] = 131;
    tap_ok(
        qk_step_submit(r.steps[0]) == QK_INVALID && strstr(qk_backend_error(r.backend), "tokens[1]") != NULL,
        "submit: %s", qk_backend_error(r.backend));
    tap_ok(qk_step_poll(r.steps[0]) == QK_OK, "and nothing was submitted");
    qk_step_plan(r.steps[0])->tokens[1] = 130;
    tap_ok(qk_step_submit(r.steps[0]) == QK_OK && qk_step_wait(r.steps[0]) == QK_OK &&
               qk_backend_error(r.backend)[0] == '\0',
        "the corrected plan runs, and the old line is gone");
    static const int32_t ids[] = {0, 131};
    tap_ok(qk_context_set_history(r.context, 2, ids, 1, 0) == QK_INVALID &&
               qk_context_set_history(r.context, 1, ids, 2, 0) == QK_INVALID &&
               qk_context_set_history(r.context, 1, ids, 1, 2) == QK_INVALID &&
               qk_context_set_history(r.context, 1, ids, 1, 1) == QK_OK,
        "histories: slot, ids and n_prompt");
    qk_context *context;
    qk_context_params p = r.params;
    p.rows_max = p.outputs_max = 1u << 26;
    tap_ok(qk_context_new(r.model, &p, &context) == QK_NO_MEMORY && context == NULL, "an absurd context: %s",
        qk_backend_error(r.backend));
    rig_close(&r);
    fixture_model_free(m);
}

int main(void)
{
    test_extras();
    test_plan();
    test_context();
    test_int8_layout();
    test_host_memory();
    test_model();
    test_public();
    return tap_done();
}
