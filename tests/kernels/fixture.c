/* fixture.c: see fixture.h. The float64 pass shares nothing with the backend but the weights. */
#include "tests/kernels/fixture.h"
#include "tests/kernels/tap.h"
#include <math.h>
#include <string.h>

const qk_shape fixture_small = {
    .n_layers = 2,
    .n_heads = 4,
    .n_kv_heads = 2,
    .head_dim = 16,
    .hidden = 50,
    .ffn = 75,
    .vocab = 131,
    .max_positions = 4096,
    .rms_eps = 1e-6f,
    .rope_factor = 1,
};
const qk_shape fixture_medium = {
    .n_layers = 2,
    .n_heads = 6,
    .n_kv_heads = 2,
    .head_dim = 64,
    .hidden = 97,
    .ffn = 210,
    .vocab = 203,
    .max_positions = 4096,
    .rms_eps = 1e-5f,
    .rope_factor = 1.1f,
};

double fixture_random(uint64_t *state)
{
    uint64_t z = *state += 0x9E3779B97F4A7C15u; /* splitmix64 */
    z = (z ^ z >> 30) * 0xBF58476D1CE4E5B9u;
    z = (z ^ z >> 27) * 0x94D049BB133111EBu;
    z ^= z >> 31;
    return (double)(z >> 11) * 0x1p-52 - 1.0;
}

double fixture_from_bf16(uint16_t x)
{
    uint32_t bits = (uint32_t)x << 16;
    float f;
    memcpy(&f, &bits, sizeof(f));
    return (double)f;
}

static qk_tensor random_tensor(
    fixture_model *m, qk_dtype dtype, uint32_t rows, uint32_t cols, double mean, double scale, uint64_t *seed)
{
    const size_t n = (size_t)rows * cols;
    void *data = malloc(n * (dtype == QK_BF16 ? 2 : 4));
    tap_require(data != NULL);
    for (size_t i = 0; i < n; i++) {
        float x = (float)(mean + scale * fixture_random(seed));
        uint32_t bits;
        memcpy(&bits, &x, sizeof(bits));
        if (dtype == QK_BF16)
            ((uint16_t *)data)[i] = (uint16_t)(bits >> 16);
        else
            ((float *)data)[i] = x;
    }
    m->blocks[m->n_blocks++] = data;
    return (qk_tensor){.data = data, .dtype = dtype, .rows = rows, .cols = cols};
}

fixture_model *fixture_model_new(const qk_shape *shape, qk_dtype dtype, uint64_t seed)
{
    fixture_model *m = calloc(1, sizeof(*m));
    tap_require(m != NULL);
    const uint32_t n_layers = shape->n_layers, hidden = shape->hidden, ffn = shape->ffn;
    const uint32_t q_dim = shape->n_heads * shape->head_dim, kv_dim = shape->n_kv_heads * shape->head_dim;
    const qk_dtype norm = dtype == QK_BF16 ? QK_F32 : QK_BF16;
    m->blocks = calloc(11u * n_layers + 3, sizeof(*m->blocks));
    m->layers = calloc(n_layers, sizeof(*m->layers));
    m->inv_freq = calloc(shape->head_dim / 2, sizeof(double));
    tap_require(m->blocks != NULL && m->layers != NULL && m->inv_freq != NULL);
    for (uint32_t i = 0; i < shape->head_dim / 2; i++)
        m->inv_freq[i] = pow(1e6, -2.0 * i / shape->head_dim);
    for (uint32_t l = 0; l < n_layers; l++) {
        qk_layer_tensors *t = &m->layers[l];
        const double in = 1.7 / sqrt(hidden);
        t->attn_norm = random_tensor(m, norm, 1, hidden, 1, 0.3, &seed);
        t->q = random_tensor(m, dtype, q_dim, hidden, 0, in, &seed);
        t->k = random_tensor(m, dtype, kv_dim, hidden, 0, in, &seed);
        t->v = random_tensor(m, dtype, kv_dim, hidden, 0, in, &seed);
        t->q_norm = random_tensor(m, norm, 1, shape->head_dim, 1.2, 0.3, &seed);
        t->k_norm = random_tensor(m, norm, 1, shape->head_dim, 1.2, 0.3, &seed);
        t->o = random_tensor(m, dtype, hidden, q_dim, 0, 1.7 / sqrt(q_dim), &seed);
        t->ffn_norm = random_tensor(m, norm, 1, hidden, 1, 0.3, &seed);
        t->gate = random_tensor(m, dtype, ffn, hidden, 0, in, &seed);
        t->up = random_tensor(m, dtype, ffn, hidden, 0, in, &seed);
        t->down = random_tensor(m, dtype, hidden, ffn, 0, 1.7 / sqrt(ffn), &seed);
    }
    m->desc.shape = *shape;
    m->desc.shape.rope_inv_freq = m->inv_freq;
    m->desc.layers = m->layers;
    m->desc.embed = random_tensor(m, dtype, shape->vocab, hidden, 0, 1, &seed);
    m->desc.final_norm = random_tensor(m, norm, 1, hidden, 1, 0.3, &seed);
    m->desc.lm_head = random_tensor(m, dtype, shape->vocab, hidden, 0, 1.7 / sqrt(hidden), &seed);
    return m;
}

void fixture_model_free(fixture_model *m)
{
    for (size_t i = 0; i < m->n_blocks; i++)
        free(m->blocks[i]);
    free(m->blocks);
    free(m->layers);
    free(m->inv_freq);
    free(m);
}

void fixture_model_sharpen(fixture_model *m)
{
    for (uint32_t l = 0; l < m->desc.shape.n_layers; l++) {
        const qk_tensor *norms[] = {&m->layers[l].q_norm, &m->layers[l].k_norm};
        for (int i = 0; i < 2; i++) {
            float *w = (float *)(uintptr_t)norms[i]->data;
            tap_require(norms[i]->dtype == QK_F32);
            for (uint32_t d = 0; d < norms[i]->cols; d++)
                w[d] *= 1.2f;
        }
    }
}

/* ---- The float64 pass ------------------------------------------------------------------------------------------ */

static double at(const qk_tensor *t, uint32_t row, uint32_t col)
{
    size_t i = (size_t)row * t->cols + col;
    return t->dtype == QK_BF16 ? fixture_from_bf16(((const uint16_t *)t->data)[i])
                               : (double)((const float *)t->data)[i];
}

static void linear(double *y, const double *x, const qk_tensor *w)
{
    for (uint32_t o = 0; o < w->rows; o++) {
        y[o] = 0;
        for (uint32_t i = 0; i < w->cols; i++)
            y[o] += x[i] * at(w, o, i);
    }
}

static void norm(double *y, const double *x, const qk_tensor *w, double eps)
{
    double sum = 0;
    for (uint32_t i = 0; i < w->cols; i++)
        sum += x[i] * x[i];
    double scale = 1 / sqrt(sum / w->cols + eps);
    for (uint32_t i = 0; i < w->cols; i++)
        y[i] = x[i] * scale * at(w, 0, i);
}

static void norm_and_rotate(double *x, const qk_tensor *w, const qk_shape *s, uint32_t position)
{
    norm(x, x, w, (double)s->rms_eps);
    for (uint32_t i = 0; i < s->head_dim / 2; i++) {
        double angle = position * s->rope_inv_freq[i], f = (double)s->rope_factor;
        double a = x[i], b = x[i + s->head_dim / 2];
        x[i] = (a * cos(angle) - b * sin(angle)) * f;
        x[i + s->head_dim / 2] = (b * cos(angle) + a * sin(angle)) * f;
    }
}

static double *doubles(size_t n)
{
    double *p = calloc(n, sizeof(*p));
    tap_require(p != NULL);
    return p;
}

/* Whether row @t at its kv head attends to key j: @sees[j]. @q: of the group's heads; @k: of the kv head, @k_stride doubles
 * between keys. */
static void choose_keys(fixture_select *c, const qk_shape *s, uint32_t t, const double *q, const double *k,
    size_t k_stride, bool *sees)
{
    const uint32_t dim = s->head_dim, group = s->n_heads / s->n_kv_heads;
    const uint32_t n_pages = t / QK_PAGE_TOKENS + 1, n_kept = c->n_sink + c->n_recent + c->n_chosen;
    for (uint32_t j = 0; j <= t; j++)
        sees[j] = true;
    if (t < c->first_row || n_pages <= n_kept)
        return;
    const uint32_t first = c->n_sink, n = n_pages - c->n_recent - first;
    double *score = doubles(n);
    bool *taken = calloc(n, sizeof(*taken));
    tap_require(taken != NULL);
    for (uint32_t p = 0; p < n; p++) {
        for (uint32_t h = 0; h < group; h++) {
            for (uint32_t d = 0; d < dim; d++) {
                double low = INFINITY, high = -INFINITY;
                for (uint32_t i = 0; i < QK_PAGE_TOKENS; i++) {
                    const double x = k[((first + p) * QK_PAGE_TOKENS + i) * k_stride + d];
                    low = fmin(low, x);
                    high = fmax(high, x);
                }
                score[p] += fmax(q[h * dim + d] * low, q[h * dim + d] * high);
            }
        }
    }
    double edge = INFINITY, next = -INFINITY;
    for (uint32_t i = 0; i <= c->n_chosen; i++) {
        uint32_t best = n;
        for (uint32_t p = 0; p < n; p++)
            if (!taken[p] && (best == n || score[p] > score[best]))
                best = p;
        taken[best] = i < c->n_chosen;
        edge = i < c->n_chosen ? score[best] : edge;
        next = i < c->n_chosen ? next : score[best];
    }
    if (c->n_chosen > 0)
        c->margin = fmin(c->margin, (edge - next) / fabs(edge));
    for (uint32_t p = 0; p < n; p++) {
        c->n_left_out += !taken[p];
        for (uint32_t i = 0; i < QK_PAGE_TOKENS; i++)
            sees[(first + p) * QK_PAGE_TOKENS + i] = taken[p];
    }
    free(score);
    free(taken);
}

void fixture_forward(const fixture_model *m, const int32_t *tokens, uint32_t n, double *logits)
{
    fixture_select exact = {.first_row = n};
    fixture_forward_select(m, tokens, n, &exact, logits);
}

void fixture_forward_select(
    const fixture_model *m, const int32_t *tokens, uint32_t n, fixture_select *select, double *logits)
{
    select->margin = INFINITY;
    select->n_left_out = 0;
    const qk_shape *s = &m->desc.shape;
    const uint32_t hidden = s->hidden, dim = s->head_dim, group = s->n_heads / s->n_kv_heads;
    const uint32_t q_dim = s->n_heads * dim, kv_dim = s->n_kv_heads * dim;
    double *x = doubles((size_t)n * hidden), *h = doubles(hidden), *add = doubles(hidden);
    double *q = doubles((size_t)n * q_dim), *k = doubles((size_t)n * kv_dim),
           *v = doubles((size_t)n * kv_dim);
    bool *sees = calloc(n, sizeof(*sees));
    tap_require(sees != NULL);
    double *a = doubles(q_dim), *p = doubles(n), *gate = doubles(s->ffn), *up = doubles(s->ffn);
    for (uint32_t t = 0; t < n; t++)
        for (uint32_t i = 0; i < hidden; i++)
            x[(size_t)t * hidden + i] = at(&m->desc.embed, (uint32_t)tokens[t], i);
    for (uint32_t l = 0; l < s->n_layers; l++) {
        const qk_layer_tensors *w = &m->layers[l];
        for (uint32_t t = 0; t < n; t++) {
            norm(h, x + (size_t)t * hidden, &w->attn_norm, (double)s->rms_eps);
            linear(q + (size_t)t * q_dim, h, &w->q);
            linear(k + (size_t)t * kv_dim, h, &w->k);
            linear(v + (size_t)t * kv_dim, h, &w->v);
            for (uint32_t i = 0; i < s->n_heads; i++)
                norm_and_rotate(q + (size_t)t * q_dim + i * dim, &w->q_norm, s, t);
            for (uint32_t i = 0; i < s->n_kv_heads; i++)
                norm_and_rotate(k + (size_t)t * kv_dim + i * dim, &w->k_norm, s, t);
        }
        for (uint32_t t = 0; t < n; t++) {
            memset(a, 0, q_dim * sizeof(*a));
            for (uint32_t i = 0; i < s->n_heads; i++) {
                const double *qi = q + (size_t)t * q_dim + i * dim;
                if (i % group == 0)
                    choose_keys(select, s, t, qi, k + i / group * dim, kv_dim, sees);
                double max = -INFINITY, sum = 0;
                for (uint32_t j = 0; j <= t; j++) {
                    p[j] = sees[j] ? 0 : -INFINITY;
                    for (uint32_t d = 0; d < dim; d++)
                        p[j] += qi[d] * k[(size_t)j * kv_dim + i / group * dim + d];
                    p[j] /= sqrt(dim);
                    max = fmax(max, p[j]);
                }
                for (uint32_t j = 0; j <= t; j++)
                    sum += p[j] = exp(p[j] - max);
                for (uint32_t j = 0; j <= t; j++)
                    for (uint32_t d = 0; d < dim; d++)
                        a[i * dim + d] += p[j] / sum * v[(size_t)j * kv_dim + i / group * dim + d];
            }
            double *xt = x + (size_t)t * hidden;
            linear(add, a, &w->o);
            for (uint32_t i = 0; i < hidden; i++)
                xt[i] += add[i];
            norm(h, xt, &w->ffn_norm, (double)s->rms_eps);
            linear(gate, h, &w->gate);
            linear(up, h, &w->up);
            for (uint32_t i = 0; i < s->ffn; i++)
                gate[i] = gate[i] / (1 + exp(-gate[i])) * up[i];
            linear(add, gate, &w->down);
            for (uint32_t i = 0; i < hidden; i++)
                xt[i] += add[i];
        }
    }
    for (uint32_t t = 0; t < n; t++) {
        norm(h, x + (size_t)t * hidden, &m->desc.final_norm, (double)s->rms_eps);
        linear(logits + (size_t)t * s->vocab, h, &m->desc.lm_head);
    }
    double *all[] = {x, h, add, q, k, v, a, p, gate, up};
    for (size_t i = 0; i < sizeof(all) / sizeof(all[0]); i++)
        free(all[i]);
    free(sees);
}

/* ---- Rig ------------------------------------------------------------------------------------------------------- */

void rig_open(rig *r, const fixture_model *model, const rig_options *o)
{
    char error[256] = "";
    *r = (rig){.source = model, .n_pages = o->n_pages};
    const qk_backend_options options = {.n_threads = o->n_threads, .isa = o->isa};
    r->backend = o->opened;
    if (r->backend == NULL && qk_backend_open(o->backend != NULL ? o->backend : "cpu", &options, &r->backend,
                                  error, sizeof(error)) != QK_OK)
        tap_note("%s", error);
    tap_require(r->backend != NULL);
    if (qk_model_load(r->backend, &model->desc, NULL, NULL, &r->model) != QK_OK)
        tap_note("%s", qk_backend_error(r->backend));
    tap_require(r->model != NULL);
    r->params = (qk_context_params){
        .rows_max = o->rows_max,
        .seqs_max = o->seqs_max > 0   ? o->seqs_max
                    : o->rows_max < 8 ? o->rows_max
                                      : 8,
        .pages_max = o->n_pages,
        .outputs_max = o->rows_max,
        .logits_max = o->rows_max,
        .slots_max = o->slots_max,
        .masks_max = o->masks_max,
        .biases_max = o->biases_max,
        .partial_max = o->partial_max,
        .partial = o->partial,
        .partial_user = o->partial_user,
        .ring_bytes = o->ring_bytes,
        .select_max = o->select_max,
    };
    qk_kv_layout_page_major(&model->desc.shape, o->kv_dtype, &r->params.layout);
    if (o->kv_dtype_1 != NULL)
        qk_kv_layout_page_major(&model->desc.shape, *o->kv_dtype_1, &r->params.layout_1);
    if (qk_context_new(r->model, &r->params, &r->context) != QK_OK)
        tap_note("%s", qk_backend_error(r->backend));
    tap_require(r->context != NULL);
    for (int i = 0; i < 2; i++)
        tap_require(qk_step_new(r->context, &r->steps[i]) == QK_OK);
    const uint64_t page_bytes = r->params.layout.page_bytes > r->params.layout_1.page_bytes
                                    ? r->params.layout.page_bytes
                                    : r->params.layout_1.page_bytes;
    const uint64_t bytes = o->n_pages * page_bytes;
    tap_require(qk_buffer_new(r->backend, QK_MEMORY_DEVICE, bytes, &r->pages) == QK_OK);
    /* Bytes that nobody wrote are NaN: whoever reads them shows. */
    tap_require(qk_fill_submit(r->backend, QK_STREAM_COMPUTE, r->pages, 0, bytes, 0x7fc07fc0) == QK_OK);
}

void rig_close(rig *r)
{
    /* Fills may still be queued behind the last step. */
    qk_event *event;
    tap_require(qk_event_new(r->backend, &event) == QK_OK);
    tap_require(qk_event_record(event, QK_STREAM_COMPUTE) == QK_OK && qk_event_wait(event) == QK_OK);
    qk_event_free(event);
    qk_step_free(r->steps[0]);
    qk_step_free(r->steps[1]);
    qk_context_free(r->context);
    qk_model_free(r->model);
    qk_buffer_free(r->pages);
    qk_backend_free(r->backend);
}

uint64_t rig_page(const rig *r, uint32_t page)
{
    tap_require(page < r->n_pages);
    const qk_kv_layout *layout = r->kv_class == 0 ? &r->params.layout : &r->params.layout_1;
    return r->pages->address + page * layout->page_bytes;
}

void rig_fill(rig *r, uint32_t step, const rig_rows *rows, uint32_t n)
{
    qk_plan *plan = qk_step_plan(r->steps[step]);
    plan->n_rows = plan->n_pages = plan->n_outputs = plan->n_masks = plan->n_biases = 0;
    plan->n_seqs = n;
    plan->kv_class = r->kv_class;
    plan->host_path = QK_HOST_READ;
    for (uint32_t s = 0; s < n; s++) {
        const uint32_t n_pages = (rows[s].start + rows[s].n_rows + QK_PAGE_TOKENS - 1) / QK_PAGE_TOKENS;
        plan->seqs[s] = (qk_seq){
            .row_begin = plan->n_rows,
            .n_rows = rows[s].n_rows,
            .start = rows[s].start,
            .page_begin = plan->n_pages,
            .n_pages = n_pages,
        };
        tap_require(plan->n_rows + rows[s].n_rows <= r->params.rows_max);
        tap_require(plan->n_pages + n_pages <= r->params.pages_max);
        for (uint32_t p = 0; p < n_pages; p++)
            plan->pages[plan->n_pages++] = rows[s].pages[p] == UINT32_MAX ? 0 : rig_page(r, rows[s].pages[p]);
        for (uint32_t i = 0; i < rows[s].n_rows; i++, plan->n_rows++) {
            plan->tokens[plan->n_rows] = rows[s].tokens[i];
            plan->outputs[plan->n_outputs++] =
                (qk_output){.row = plan->n_rows, .flags = QK_OUTPUT_LOGITS, .slot = QK_NO_SLOT};
        }
    }
}

qk_status rig_run(rig *r, const rig_rows *rows, uint32_t n, float *logits)
{
    rig_fill(r, 0, rows, n);
    qk_status status = qk_step_submit(r->steps[0]);
    if (status == QK_OK)
        status = qk_step_wait(r->steps[0]);
    if (status != QK_OK)
        tap_note("%s: %s", qk_status_name(status), qk_backend_error(r->backend));
    else if (logits != NULL)
        memcpy(logits, qk_step_result(r->steps[0])->logits,
            (size_t)rows[0].n_rows * r->source->desc.shape.vocab * sizeof(*logits));
    return status;
}
