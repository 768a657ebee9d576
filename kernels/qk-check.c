/* qk-check.c: everything a caller can get wrong, said in one line each.
 *
 * Sums and products are taken in 64 bits, or with an overflow check, so that no count in a plan can wrap around a
 * limit. A plan that passes is safe to run on any backend: kernels check nothing. */
#include "kernels/qk-check.h"
#include <math.h>
#include <stdarg.h>
#include <stdio.h>

#define SPAN_PAGES  (QK_SPAN_TOKENS / QK_PAGE_TOKENS)
#define DIM_MAX     (1u << 24) /* of any single dimension but the vocabulary's: keeps products within 64 bits */
#define HOST_UNIT   4096u      /* of the caller's own host memory: the smallest page of an MMU */
#define COUNT_MAX   (1u << 26) /* of rows, pages, outputs, ... in a context */
#define VALUE(type) ((unsigned long long)(type))

__attribute__((format(printf, 3, 4))) static qk_status invalid(
    char *error, size_t error_size, const char *format, ...)
{
    if (error != NULL && error_size > 0) {
        va_list args;
        va_start(args, format);
        vsnprintf(error, error_size, format, args);
        va_end(args);
    }
    return QK_INVALID;
}

#define FAIL(...) return invalid(error, error_size, __VA_ARGS__)

/* ---- Memory, copies and fills ---------------------------------------------------------------------------------------- */

qk_status qk_check_host_memory(const void *host, uint64_t bytes, char *error, size_t error_size)
{
    uint64_t address = (uint64_t)(uintptr_t)host, end;
    if (host == NULL)
        FAIL("host memory: no address");
    if (bytes == 0)
        FAIL("host memory: 0 bytes, expected at least %u", HOST_UNIT);
    if (address % HOST_UNIT != 0 || bytes % HOST_UNIT != 0)
        FAIL("host memory: %llu bytes at %#llx, expected multiples of %u", VALUE(bytes), VALUE(address),
            HOST_UNIT);
    if (__builtin_add_overflow(address, bytes, &end) || end > UINTPTR_MAX)
        FAIL("host memory: %llu bytes at %#llx end past the address space", VALUE(bytes), VALUE(address));
    return QK_OK;
}

static bool in_range(const qk_buffer *buffer, uint64_t offset, uint64_t bytes)
{
    return offset <= buffer->bytes && bytes <= buffer->bytes - offset;
}

qk_status qk_check_copies(const qk_backend *backend, qk_stream stream, const qk_copy *copies, uint32_t n,
    char *error, size_t error_size)
{
    if ((unsigned)stream >= QK_N_STREAMS)
        FAIL("copy: stream %u, expected below %u", (unsigned)stream, (unsigned)QK_N_STREAMS);
    if (n > 0 && copies == NULL)
        FAIL("copy: no array for %u copies", n);
    for (uint32_t i = 0; i < n; i++) {
        const qk_copy *c = &copies[i];
        if (c->dst == NULL || c->src == NULL)
            FAIL("copy %u: no %s buffer", i, c->dst == NULL ? "destination" : "source");
        if (c->dst->backend != backend || c->src->backend != backend)
            FAIL("copy %u: the %s belongs to another backend", i,
                c->dst->backend != backend ? "destination" : "source");
        if (!in_range(c->dst, c->dst_offset, c->bytes))
            FAIL("copy %u: destination bytes %llu + %llu past the buffer's %llu", i, VALUE(c->dst_offset),
                VALUE(c->bytes), VALUE(c->dst->bytes));
        if (!in_range(c->src, c->src_offset, c->bytes))
            FAIL("copy %u: source bytes %llu + %llu past the buffer's %llu", i, VALUE(c->src_offset),
                VALUE(c->bytes), VALUE(c->src->bytes));
        if (c->dst == c->src && c->dst_offset < c->src_offset + c->bytes &&
            c->src_offset < c->dst_offset + c->bytes)
            FAIL("copy %u: source %llu and destination %llu overlap over %llu bytes", i, VALUE(c->src_offset),
                VALUE(c->dst_offset), VALUE(c->bytes));
    }
    return QK_OK;
}

qk_status qk_check_fill(const qk_backend *backend, qk_stream stream, const qk_buffer *dst, uint64_t offset,
    uint64_t bytes, char *error, size_t error_size)
{
    if ((unsigned)stream >= QK_N_STREAMS)
        FAIL("fill: stream %u, expected below %u", (unsigned)stream, (unsigned)QK_N_STREAMS);
    if (dst == NULL)
        FAIL("fill: no buffer");
    if (dst->backend != backend)
        FAIL("fill: the buffer belongs to another backend");
    if (offset % 4 != 0 || bytes % 4 != 0)
        FAIL("fill: offset %llu and bytes %llu, expected multiples of 4", VALUE(offset), VALUE(bytes));
    if (!in_range(dst, offset, bytes))
        FAIL(
            "fill: bytes %llu + %llu past the buffer's %llu", VALUE(offset), VALUE(bytes), VALUE(dst->bytes));
    return QK_OK;
}

/* ---- Models -------------------------------------------------------------------------------------------------- */

qk_status qk_check_shape(const qk_shape *shape, char *error, size_t error_size)
{
    const struct {
        const char *name;
        uint32_t value, max;
    } dims[] = {
        {"n_layers", shape->n_layers, 1u << 16},
        {"n_heads", shape->n_heads, 1u << 16},
        {"n_kv_heads", shape->n_kv_heads, 1u << 16},
        {"head_dim", shape->head_dim, 1u << 14},
        {"hidden", shape->hidden, DIM_MAX},
        {"ffn", shape->ffn, DIM_MAX},
        {"vocab", shape->vocab, (uint32_t)INT32_MAX / 2},
        {"max_positions", shape->max_positions, (uint32_t)INT32_MAX},
    };
    for (size_t i = 0; i < sizeof(dims) / sizeof(dims[0]); i++)
        if (dims[i].value == 0 || dims[i].value > dims[i].max)
            FAIL("shape: %s is %u, expected 1 to %u", dims[i].name, dims[i].value, dims[i].max);
    if (shape->n_heads % shape->n_kv_heads != 0)
        FAIL("shape: n_heads %u is not a multiple of n_kv_heads %u", shape->n_heads, shape->n_kv_heads);
    if (shape->head_dim % 2 != 0)
        FAIL("shape: head_dim is %u, expected an even number", shape->head_dim);
    if (VALUE(shape->n_heads) * shape->head_dim > DIM_MAX)
        FAIL("shape: n_heads %u times head_dim %u, expected at most %u", shape->n_heads, shape->head_dim,
            DIM_MAX);
    if (!(shape->rms_eps >= 0) || !isfinite(shape->rms_eps))
        FAIL("shape: rms_eps is %g, expected a finite number of at least 0", (double)shape->rms_eps);
    if (!(shape->rope_factor > 0) || !isfinite(shape->rope_factor))
        FAIL("shape: rope_factor is %g, expected a finite number above 0", (double)shape->rope_factor);
    return QK_OK;
}

static qk_status check_tensor(const qk_tensor *t, const char *name, int layer, uint32_t rows, uint32_t cols,
    char *error, size_t error_size)
{
    char where[48];
    if (layer < 0)
        snprintf(where, sizeof(where), "%s", name);
    else
        snprintf(where, sizeof(where), "layer %d %s", layer, name);
    if (t->data == NULL)
        FAIL("model: %s has no data", where);
    if (t->dtype != QK_BF16 && t->dtype != QK_F32)
        FAIL("model: %s has dtype %d, expected bf16 or f32", where, (int)t->dtype);
    if (t->rows != rows || t->cols != cols)
        FAIL("model: %s is [%u, %u], expected [%u, %u]", where, t->rows, t->cols, rows, cols);
    if ((uintptr_t)t->data % (t->dtype == QK_BF16 ? 2 : 4) != 0)
        FAIL("model: %s is not aligned to its elements", where);
    return QK_OK;
}

qk_status qk_check_model_desc(const qk_model_desc *desc, char *error, size_t error_size)
{
    const qk_shape *s = &desc->shape;
    qk_status status = qk_check_shape(s, error, error_size);
    if (status != QK_OK)
        return status;
    if (s->rope_inv_freq == NULL)
        FAIL("shape: no rope_inv_freq");
    for (uint32_t i = 0; i < s->head_dim / 2; i++)
        if (!isfinite(s->rope_inv_freq[i]))
            FAIL("shape: rope_inv_freq %u is not finite", i);
    if (desc->layers == NULL)
        FAIL("model: no layers");

    const uint32_t q_dim = s->n_heads * s->head_dim, kv_dim = s->n_kv_heads * s->head_dim;
    const struct {
        const char *name;
        size_t offset;
        uint32_t rows, cols;
    } parts[] = {
        {"attn_norm", offsetof(qk_layer_tensors, attn_norm), 1, s->hidden},
        {"q", offsetof(qk_layer_tensors, q), q_dim, s->hidden},
        {"k", offsetof(qk_layer_tensors, k), kv_dim, s->hidden},
        {"v", offsetof(qk_layer_tensors, v), kv_dim, s->hidden},
        {"q_norm", offsetof(qk_layer_tensors, q_norm), 1, s->head_dim},
        {"k_norm", offsetof(qk_layer_tensors, k_norm), 1, s->head_dim},
        {"o", offsetof(qk_layer_tensors, o), s->hidden, q_dim},
        {"ffn_norm", offsetof(qk_layer_tensors, ffn_norm), 1, s->hidden},
        {"gate", offsetof(qk_layer_tensors, gate), s->ffn, s->hidden},
        {"up", offsetof(qk_layer_tensors, up), s->ffn, s->hidden},
        {"down", offsetof(qk_layer_tensors, down), s->hidden, s->ffn},
    };
    status = check_tensor(&desc->embed, "embed", -1, s->vocab, s->hidden, error, error_size);
    if (status == QK_OK)
        status = check_tensor(&desc->final_norm, "final_norm", -1, 1, s->hidden, error, error_size);
    if (status == QK_OK)
        status = check_tensor(&desc->lm_head, "lm_head", -1, s->vocab, s->hidden, error, error_size);
    for (uint32_t l = 0; l < s->n_layers; l++) {
        for (size_t i = 0; i < sizeof(parts) / sizeof(parts[0]) && status == QK_OK; i++) {
            const void *tensor = (const char *)&desc->layers[l] + parts[i].offset;
            status =
                check_tensor(tensor, parts[i].name, (int)l, parts[i].rows, parts[i].cols, error, error_size);
        }
    }
    return status;
}

/* ---- Contexts ------------------------------------------------------------------------------------------------ */

/* Sets *sum to base + n * step unless that overflows. */
static bool extent(uint64_t base, uint64_t n, uint64_t step, uint64_t *sum)
{
    uint64_t product;
    return !__builtin_mul_overflow(n, step, &product) && !__builtin_add_overflow(base, product, sum);
}

static uint64_t element_bytes(const qk_kv_layout *layout)
{
    return layout->dtype == QK_F32 ? 4 : layout->dtype == QK_BF16 ? 2 : 1;
}

/* What a page's address and the strides between slices are multiples of: the element, or the scales' fp16. */
static uint64_t page_alignment(const qk_kv_layout *layout)
{
    return layout->dtype == QK_F32 ? 4 : 2;
}

/* The scales of a slice lie behind its tokens, and no slice reaches into the next. @slice: a slice's bytes without its
 * scales, then with them. */
static qk_status check_scales(
    const qk_kv_layout *layout, const qk_shape *shape, uint64_t *slice, char *error, size_t error_size)
{
    const uint64_t scales = QK_PAGE_TOKENS * sizeof(uint16_t);
    if (layout->scale_offset % sizeof(uint16_t) != 0)
        FAIL("layout: scale_offset %llu, expected a multiple of 2", VALUE(layout->scale_offset));
    if (layout->scale_offset < *slice)
        FAIL("layout: scale_offset %llu overlaps the tokens, expected at least %llu",
            VALUE(layout->scale_offset), VALUE(*slice));
    if (__builtin_add_overflow(layout->scale_offset, scales, slice))
        FAIL("layout: scale_offset %llu overflows 64 bits", VALUE(layout->scale_offset));

    /* From the smallest stride to the largest: what one step spans may not reach into the next. */
    struct {
        const char *name;
        uint64_t stride, n;
    } dims[] = {
        {"v_offset", layout->v_offset, 2},
        {"head_stride", layout->head_stride, shape->n_kv_heads},
        {"layer_stride", layout->layer_stride, shape->n_layers},
    };
    uint64_t reach = *slice;
    for (unsigned done = 0; done != 7;) {
        unsigned next = 3;
        for (unsigned d = 0; d < 3; d++)
            if ((done & 1u << d) == 0 && (next == 3 || dims[d].stride < dims[next].stride))
                next = d;
        done |= 1u << next;
        if (dims[next].n == 1)
            continue;
        if (dims[next].stride < reach)
            FAIL("layout: %s %llu overlaps scales or tokens, expected at least %llu", dims[next].name,
                VALUE(dims[next].stride), VALUE(reach));
        if (!extent(reach, dims[next].n - 1, dims[next].stride, &reach))
            FAIL("layout: strides overflow 64 bits");
    }
    return QK_OK;
}

qk_status qk_check_layout(const qk_kv_layout *layout, const qk_shape *shape, char *error, size_t error_size)
{
    if (layout->dtype != QK_F32 && layout->dtype != QK_BF16 && layout->dtype != QK_I8)
        FAIL("layout: dtype %d, expected f32, bf16 or int8", (int)layout->dtype);
    const bool scaled = layout->dtype == QK_I8;
    const uint64_t element = element_bytes(layout), unit = page_alignment(layout);
    const uint64_t row_bytes = element * shape->head_dim;
    if (layout->token_stride < row_bytes)
        FAIL("layout: token_stride %u, expected at least %llu", layout->token_stride, VALUE(row_bytes));
    if (layout->token_stride % element != 0 || layout->v_offset % unit != 0 ||
        layout->head_stride % unit != 0 || layout->layer_stride % unit != 0)
        FAIL("layout: a stride is not a multiple of the %s %llu bytes", scaled ? "scale's" : "element's",
            VALUE(unit));

    uint64_t slice, end;
    if (!extent(row_bytes, QK_PAGE_TOKENS - 1, layout->token_stride, &slice))
        FAIL("layout: strides overflow 64 bits");
    if (scaled) {
        qk_status status = check_scales(layout, shape, &slice, error, error_size);
        if (status != QK_OK)
            return status;
    } else if (layout->scale_offset != 0) {
        FAIL(
            "layout: scale_offset %llu, expected 0 for a layout without scales", VALUE(layout->scale_offset));
    }
    if (!extent(slice, 1, layout->v_offset, &end) ||
        !extent(end, shape->n_kv_heads - 1, layout->head_stride, &end) ||
        !extent(end, shape->n_layers - 1, layout->layer_stride, &end))
        FAIL("layout: strides overflow 64 bits");
    if (end > layout->page_bytes)
        FAIL("layout: the last element ends at byte %llu of a page of %llu", VALUE(end),
            VALUE(layout->page_bytes));
    return QK_OK;
}

qk_status qk_check_context_params(
    const qk_context_params *params, const qk_shape *shape, char *error, size_t error_size)
{
    const struct {
        const char *name;
        uint32_t value, min;
    } counts[] = {
        {"rows_max", params->rows_max, 1},
        {"seqs_max", params->seqs_max, 1},
        {"pages_max", params->pages_max, 1},
        {"outputs_max", params->outputs_max, 0},
        {"logits_max", params->logits_max, 0},
        {"slots_max", params->slots_max, 0},
        {"masks_max", params->masks_max, 0},
        {"biases_max", params->biases_max, 0},
        {"partial_max", params->partial_max, 0},
        {"select_max", params->select_max, 0},
    };
    for (size_t i = 0; i < sizeof(counts) / sizeof(counts[0]); i++)
        if (counts[i].value < counts[i].min || counts[i].value > COUNT_MAX)
            FAIL("context: %s is %u, expected %u to %u", counts[i].name, counts[i].value, counts[i].min,
                COUNT_MAX);
    if (params->seqs_max > params->rows_max)
        FAIL("context: seqs_max %u above rows_max %u", params->seqs_max, params->rows_max);
    if (params->outputs_max > params->rows_max)
        FAIL("context: outputs_max %u above rows_max %u", params->outputs_max, params->rows_max);
    if (params->logits_max > params->outputs_max)
        FAIL("context: logits_max %u above outputs_max %u", params->logits_max, params->outputs_max);
    if (params->partial_max > 0 && params->partial == NULL)
        FAIL("context: partial_max %u without a partial function", params->partial_max);
    qk_status status = qk_check_layout(&params->layout, shape, error, error_size);
    if (status != QK_OK || params->layout_1.page_bytes == 0)
        return status;
    char line[160];
    if (qk_check_layout(&params->layout_1, shape, line, sizeof(line)) != QK_OK)
        FAIL("context: layout_1: %s", line);
    return QK_OK;
}

qk_status qk_check_bounds(const qk_context_params *params, uint32_t kv_class, const qk_bounds *bounds,
    uint32_t n, char *error, size_t error_size)
{
    if (kv_class > 1 || (kv_class == 1 && params->layout_1.page_bytes == 0))
        FAIL("bounds: kv_class is %u, expected %s", kv_class,
            params->layout_1.page_bytes == 0 ? "0: the context has no layout_1" : "0 or 1");
    const qk_kv_layout *layout = kv_class == 0 ? &params->layout : &params->layout_1;
    if (params->select_max == 0 || layout->dtype == QK_I8) {
        invalid(error, error_size, "bounds: %s",
            params->select_max == 0 ? "select_max of the context is 0" : "int8 pages have none");
        return QK_UNSUPPORTED;
    }
    const uint64_t unit = page_alignment(layout);
    for (uint32_t i = 0; i < n; i++) {
        const uint64_t page = bounds[i].page & ~(uint64_t)QK_PAGE_HOST;
        if (page == 0 || page % unit != 0)
            FAIL("bounds[%u].page: address %#llx, expected a multiple of %llu that is not 0", i, VALUE(page),
                VALUE(unit));
        if (bounds[i].bounds == 0 || bounds[i].bounds % unit != 0)
            FAIL("bounds[%u].bounds: address %#llx, expected a multiple of %llu that is not 0", i,
                VALUE(bounds[i].bounds), VALUE(unit));
    }
    return QK_OK;
}

/* ---- Plans --------------------------------------------------------------------------------------------------- */

qk_status qk_check_sampling(const qk_sampling *s, char *error, size_t error_size)
{
    if (!(s->temperature >= 0) || !isfinite(s->temperature))
        FAIL("sampling: temperature %g, expected a finite number of at least 0", (double)s->temperature);
    if (!(s->top_p <= 1) || !isfinite(s->top_p))
        FAIL("sampling: top_p %g, expected at most 1", (double)s->top_p);
    if (!(s->min_p >= 0 && s->min_p <= 1))
        FAIL("sampling: min_p %g, expected 0 to 1", (double)s->min_p);
    if (!(s->repetition_penalty > 0) || !isfinite(s->repetition_penalty))
        FAIL("sampling: repetition_penalty %g, expected a finite number above 0",
            (double)s->repetition_penalty);
    if (!isfinite(s->presence_penalty))
        FAIL("sampling: presence_penalty %g, expected a finite number", (double)s->presence_penalty);
    if (!isfinite(s->frequency_penalty))
        FAIL("sampling: frequency_penalty %g, expected a finite number", (double)s->frequency_penalty);
    return QK_OK;
}

/* Whether @pages [@n] are all aligned addresses of device memory. Without a branch a page: a step of a long context names
 * thousands of them, hardly ever others. */
static bool are_plain(const uint64_t *pages, uint32_t n, uint64_t unit)
{
    uint64_t bits = 0, n_zero = 0;
    for (uint32_t p = 0; p < n; p++) {
        bits |= pages[p];
        n_zero += pages[p] == 0;
    }
    return n_zero == 0 && (bits & (QK_PAGE_HOST | (unit - 1))) == 0;
}

/* The sequence's pages: those outside are whole spans that end before its new rows, those in host memory end there
 * too. Adds the outside items. */
static qk_status check_pages(const qk_plan *plan, uint32_t s, const qk_context_params *params,
    uint64_t *n_items, char *error, size_t error_size)
{
    const qk_seq *seq = &plan->seqs[s];
    const uint64_t *pages = plan->pages + seq->page_begin;
    const uint64_t unit = page_alignment(qk_plan_layout(plan, params));
    for (uint32_t first = 0; first < seq->n_pages; first += SPAN_PAGES) {
        uint32_t n = seq->n_pages - first < SPAN_PAGES ? seq->n_pages - first : SPAN_PAGES, n_outside = 0;
        if (are_plain(pages + first, n, unit))
            continue;
        for (uint32_t p = first; p < first + n; p++) {
            const uint64_t address = pages[p] & ~(uint64_t)QK_PAGE_HOST;
            const bool in_host = (pages[p] & QK_PAGE_HOST) != 0;
            n_outside += pages[p] == 0;
            if ((address & (unit - 1)) !=
                0) /* a power of two; a division a page would show in long contexts */
                FAIL("plan: seqs[%u] page %u: address %#llx is not aligned to %llu", s, p, VALUE(address),
                    VALUE(unit));
            if (in_host && address == 0)
                FAIL("plan: seqs[%u] page %u: QK_PAGE_HOST on address 0", s, p);
            if (in_host && ((uint64_t)p + 1) * QK_PAGE_TOKENS > seq->start)
                FAIL("plan: seqs[%u] page %u: QK_PAGE_HOST on a page that the step writes, from position %u "
                     "on",
                    s, p, seq->start);
        }
        if (n_outside == 0)
            continue;
        if (n_outside != SPAN_PAGES || ((uint64_t)first + SPAN_PAGES) * QK_PAGE_TOKENS > seq->start)
            FAIL("plan: seqs[%u] pages %u to %u: %u at address 0, expected a whole span before start %u", s,
                first, first + n - 1, n_outside, seq->start);
        if (plan->host_path != QK_HOST_READ)
            FAIL("plan: seqs[%u] page %u is outside, and host_path is %u, expected %u", s, first,
                plan->host_path, (unsigned)QK_HOST_READ);
        if (params->partial == NULL)
            FAIL("plan: seqs[%u] page %u is outside, but the context has no partial function", s, first);
        *n_items += seq->n_rows;
    }
    return QK_OK;
}

/* A sequence's part in selective attention. Adds its pages to @n_attended when it leaves some out. */
static qk_status check_select(const qk_plan *plan, uint32_t s, const qk_context_params *params,
    uint64_t *n_attended, char *error, size_t error_size)
{
    const qk_seq *seq = &plan->seqs[s];
    if (seq->n_recent == 0 && (seq->n_sink != 0 || seq->n_chosen != 0))
        FAIL("plan: seqs[%u].n_recent is 0 with n_sink %u and n_chosen %u, expected at least 1", s,
            seq->n_sink, seq->n_chosen);
    if (!qk_seq_leaves_out(seq))
        return QK_OK;
    const qk_kv_layout *layout = qk_plan_layout(plan, params);
    const uint64_t unit = page_alignment(layout);
    if (params->select_max == 0)
        FAIL("plan: seqs[%u] leaves pages out, but select_max of the context is 0", s);
    if (layout->dtype == QK_I8)
        FAIL("plan: seqs[%u] leaves pages out, but its pages are int8", s);
    if (plan->n_rows != plan->n_seqs)
        FAIL("plan: seqs[%u] leaves pages out beside sequences of more than one row", s);
    for (uint32_t p = 0; p < seq->n_pages; p++) {
        const bool scored = p >= seq->n_sink && p < seq->n_pages - seq->n_recent;
        const uint64_t bounds = scored ? plan->bounds[seq->page_begin + p] : unit;
        if (plan->pages[seq->page_begin + p] == 0)
            FAIL("plan: seqs[%u] leaves pages out, and page %u is outside", s, p);
        if (bounds == 0 || bounds % unit != 0)
            FAIL("plan: seqs[%u] page %u: bounds at %#llx, expected a multiple of %llu that is not 0", s, p,
                VALUE(bounds), VALUE(unit));
    }
    *n_attended += qk_seq_n_attended(seq);
    return QK_OK;
}

static qk_status check_seqs(const qk_plan *plan, const qk_shape *shape, const qk_context_params *params,
    char *error, size_t error_size)
{
    uint64_t row = 0, n_items = 0, n_attended = 0;
    for (uint32_t s = 0; s < plan->n_seqs; s++) {
        const qk_seq *seq = &plan->seqs[s];
        if (seq->row_begin != row)
            FAIL("plan: seqs[%u].row_begin is %u, expected %llu", s, seq->row_begin, VALUE(row));
        if (seq->n_rows == 0 || seq->n_rows > plan->n_rows - row)
            FAIL(
                "plan: seqs[%u].n_rows is %u, expected 1 to %llu", s, seq->n_rows, VALUE(plan->n_rows - row));
        row += seq->n_rows;
        uint64_t end = (uint64_t)seq->start + seq->n_rows;
        if (end > shape->max_positions)
            FAIL("plan: seqs[%u] ends at position %llu, expected at most %u", s, VALUE(end),
                shape->max_positions);
        uint64_t n_pages = (end + QK_PAGE_TOKENS - 1) / QK_PAGE_TOKENS;
        if (seq->n_pages != n_pages)
            FAIL("plan: seqs[%u].n_pages is %u, expected %llu for %llu positions", s, seq->n_pages,
                VALUE(n_pages), VALUE(end));
        if ((uint64_t)seq->page_begin + seq->n_pages > plan->n_pages)
            FAIL("plan: seqs[%u].page_begin is %u, with %u pages past n_pages %u", s, seq->page_begin,
                seq->n_pages, plan->n_pages);
        qk_status status = check_pages(plan, s, params, &n_items, error, error_size);
        if (status == QK_OK)
            status = check_select(plan, s, params, &n_attended, error, error_size);
        if (status != QK_OK)
            return status;
    }
    if (row != plan->n_rows)
        FAIL("plan: the sequences have %llu rows, expected n_rows %u", VALUE(row), plan->n_rows);
    if (n_attended > params->select_max)
        FAIL("plan: %llu pages of sequences that leave pages out, expected at most %u", VALUE(n_attended),
            params->select_max);
    if (n_items > params->partial_max)
        FAIL("plan: %llu outside items, expected at most %u", VALUE(n_items), params->partial_max);
    return QK_OK;
}

static bool mask_allows_any(const uint32_t *mask, uint32_t vocab)
{
    for (uint32_t i = 0; i < vocab / 32; i++)
        if (mask[i] != 0)
            return true;
    return vocab % 32 != 0 && (mask[vocab / 32] & ((1u << vocab % 32) - 1)) != 0;
}

/* The output's mask, bias list and number of alternatives. */
static qk_status check_extras(
    const qk_plan *plan, uint32_t i, const qk_shape *shape, char *error, size_t error_size)
{
    const qk_output *out = &plan->outputs[i];
    const bool samples = (out->flags & QK_OUTPUT_SAMPLE) != 0, masked = (out->flags & QK_OUTPUT_MASK) != 0;
    if (!samples && (masked || out->n_bias > 0 || out->n_top > 0))
        FAIL("plan: outputs[%u] has a mask, a bias or n_top, but draws no token", i);
    if (masked && out->mask >= plan->n_masks)
        FAIL("plan: outputs[%u].mask is %u, expected below n_masks %u", i, out->mask, plan->n_masks);
    if (!masked && out->mask != 0)
        FAIL("plan: outputs[%u].mask is %u without QK_OUTPUT_MASK, expected 0", i, out->mask);
    const size_t words = qk_mask_words(shape->vocab);
    if (masked && !mask_allows_any(plan->masks + out->mask * words, shape->vocab))
        FAIL("plan: outputs[%u].mask %u allows no id", i, out->mask);
    if (out->n_top > QK_TOP_MAX || out->n_top > shape->vocab)
        FAIL("plan: outputs[%u].n_top is %u, expected at most %u", i, out->n_top,
            QK_TOP_MAX < shape->vocab ? QK_TOP_MAX : shape->vocab);
    if (out->bias_begin > plan->n_biases || out->n_bias > plan->n_biases - out->bias_begin)
        FAIL("plan: outputs[%u] has biases [%u, +%u), past n_biases %u", i, out->bias_begin, out->n_bias,
            plan->n_biases);
    for (uint32_t k = 0; k < out->n_bias; k++) {
        const qk_bias *bias = &plan->biases[out->bias_begin + k];
        if (bias->id >= shape->vocab || (k > 0 && bias->id <= bias[-1].id))
            FAIL("plan: outputs[%u] bias %u is of id %u, expected ascending ids below %u", i, k, bias->id,
                shape->vocab);
        if (!isfinite(bias->value))
            FAIL("plan: outputs[%u] bias %u is %g, expected a finite number", i, k, (double)bias->value);
    }
    return QK_OK;
}

static qk_status check_outputs(const qk_plan *plan, const qk_shape *shape, const qk_context_params *params,
    char *error, size_t error_size)
{
    const uint32_t all = QK_OUTPUT_SAMPLE | QK_OUTPUT_LOGITS | QK_OUTPUT_MASK;
    uint32_t n_logits = 0;
    for (uint32_t i = 0; i < plan->n_outputs; i++) {
        const qk_output *out = &plan->outputs[i];
        if (out->row >= plan->n_rows)
            FAIL("plan: outputs[%u].row is %u, expected below %u", i, out->row, plan->n_rows);
        if (i > 0 && out->row <= plan->outputs[i - 1].row)
            FAIL("plan: outputs[%u].row is %u, expected above %u", i, out->row, plan->outputs[i - 1].row);
        if (out->flags == 0 || (out->flags & ~all) != 0)
            FAIL("plan: outputs[%u].flags is %#x, expected 1 to %u", i, out->flags, all);
        if (out->slot != QK_NO_SLOT && out->slot >= params->slots_max)
            FAIL("plan: outputs[%u].slot is %u, expected below %u", i, out->slot, params->slots_max);
        if (out->reserved != 0)
            FAIL("plan: outputs[%u].reserved is %u, expected 0", i, out->reserved);
        for (uint32_t j = 0; out->slot != QK_NO_SLOT && j < i; j++)
            if (plan->outputs[j].slot == out->slot)
                FAIL("plan: outputs[%u].slot is %u, which outputs[%u] has", i, out->slot, j);
        qk_status status = check_extras(plan, i, shape, error, error_size);
        if (status != QK_OK)
            return status;
        n_logits += (out->flags & QK_OUTPUT_LOGITS) != 0;
        if (out->flags & QK_OUTPUT_SAMPLE) {
            char line[160];
            if (qk_check_sampling(&out->sampling, line, sizeof(line)) != QK_OK)
                FAIL("plan: outputs[%u]: %s", i, line);
        }
    }
    if (n_logits > params->logits_max)
        FAIL("plan: %u outputs want logits, expected at most %u", n_logits, params->logits_max);
    return QK_OK;
}

qk_status qk_plan_check(const qk_plan *plan, const qk_shape *shape, const qk_context_params *params,
    char *error, size_t error_size)
{
    const struct {
        const char *name;
        uint32_t value, min, max;
    } counts[] = {
        {"n_rows", plan->n_rows, 1, params->rows_max},
        {"n_seqs", plan->n_seqs, 1, params->seqs_max},
        {"n_pages", plan->n_pages, 1, params->pages_max},
        {"n_outputs", plan->n_outputs, 0, params->outputs_max},
        {"n_masks", plan->n_masks, 0, params->masks_max},
        {"n_biases", plan->n_biases, 0, params->biases_max},
    };
    for (size_t i = 0; i < sizeof(counts) / sizeof(counts[0]); i++)
        if (counts[i].value < counts[i].min || counts[i].value > counts[i].max)
            FAIL("plan: %s is %u, expected %u to %u", counts[i].name, counts[i].value, counts[i].min,
                counts[i].max);
    if (plan->kv_class > 1 || (plan->kv_class == 1 && params->layout_1.page_bytes == 0))
        FAIL("plan: kv_class is %u, expected %s", plan->kv_class,
            params->layout_1.page_bytes == 0 ? "0: the context has no layout_1" : "0 or 1");
    if (plan->host_path > QK_HOST_STREAM)
        FAIL("plan: host_path is %u, expected %u or %u", plan->host_path, (unsigned)QK_HOST_READ,
            (unsigned)QK_HOST_STREAM);
    if (plan->profile > 1)
        FAIL("plan: profile is %u, expected 0 or 1", plan->profile);
    for (uint32_t r = 0; r < plan->n_rows; r++) {
        int32_t token = plan->tokens[r];
        if (token >= 0 && (uint32_t)token >= shape->vocab)
            FAIL("plan: tokens[%u] is %d, expected below %u", r, token, shape->vocab);
        if (token < 0 && (uint32_t)~token >= params->slots_max)
            FAIL("plan: tokens[%u] names slot %u, expected below %u", r, (uint32_t)~token, params->slots_max);
    }
    qk_status status = check_seqs(plan, shape, params, error, error_size);
    return status == QK_OK ? check_outputs(plan, shape, params, error, error_size) : status;
}
