/* cpu-select.c: selective attention: bounds of pages, and which pages a row attends to.
 *
 *   score (an op)  bounds -> a key a page -> the n_chosen largest, ties to the lowest page
 *
 * Keys are the scores' bits, in an order in which integers compare as the scores do: so every choice has one answer, and
 * finding the nth largest takes four passes over the keys, one a byte. Cost a (row, layer, kv head): 1/16 of the bytes of
 * the keys and values that an exact row would read.
 *
 * The COMPUTE thread, with the pool. */
#include <math.h>
#include <string.h>
#include "kernels/cpu/cpu-backend.h"
#include "kernels/cpu/select.h"

/* ---- Bounds -------------------------------------------------------------------------------------------------- */

static float from_bf16(qk_bf16 x)
{
    const uint32_t bits = (uint32_t)x << 16;
    float f;
    memcpy(&f, &bits, sizeof(f));
    return f;
}

/* Exact: @x is one of the values that came from bf16. */
static qk_bf16 to_bf16(float x)
{
    uint32_t bits;
    memcpy(&bits, &x, sizeof(bits));
    return (qk_bf16)(bits >> 16);
}

static float element(qk_dtype dtype, const char *row, uint32_t d)
{
    return dtype == QK_BF16 ? from_bf16(((const qk_bf16 *)(const void *)row)[d])
                            : ((const float *)(const void *)row)[d];
}

static void put(qk_dtype dtype, char *row, uint32_t d, float x)
{
    if (dtype == QK_BF16)
        ((qk_bf16 *)(void *)row)[d] = to_bf16(x);
    else
        ((float *)(void *)row)[d] = x;
}

void qk_bounds_of_slice(
    qk_dtype dtype, const void *keys, size_t token_stride, uint32_t head_dim, void *bounds)
{
    char *min_row = bounds,
         *max_row = min_row + head_dim * (dtype == QK_BF16 ? sizeof(qk_bf16) : sizeof(float));
    for (uint32_t d = 0; d < head_dim; d++) {
        float min = element(dtype, keys, d), max = min;
        for (uint32_t t = 1; t < QK_PAGE_TOKENS; t++) {
            const float x = element(dtype, (const char *)keys + t * token_stride, d);
            if (x < min || isnan(x))
                min = x;
            if (x > max || isnan(x))
                max = x;
        }
        put(dtype, min_row, d, min);
        put(dtype, max_row, d, max);
    }
}

typedef struct {
    const qk_bounds *bounds;
    const qk_shape *shape;
    const qk_kv_layout *layout;
} bounds_call;

/* One layer of one page. */
static void make_bounds(void *user, uint32_t index, uint32_t worker)
{
    const bounds_call *call = user;
    const qk_shape *shape = call->shape;
    const qk_bounds *b = &call->bounds[index / shape->n_layers];
    const uint32_t layer = index % shape->n_layers;
    const char *keys = (const char *)(uintptr_t)(b->page & ~(uint64_t)QK_PAGE_HOST);
    char *to = (char *)(uintptr_t)b->bounds;
    const size_t slice = qk_bounds_slice_bytes(shape, call->layout->dtype);
    for (uint32_t head = 0; head < shape->n_kv_heads; head++)
        qk_bounds_of_slice(call->layout->dtype,
            keys + layer * call->layout->layer_stride + head * call->layout->head_stride,
            call->layout->token_stride, shape->head_dim,
            to + (layer * (size_t)shape->n_kv_heads + head) * slice);
}

void qk_cpu_bounds_run(qk_cpu_context *ctx, uint32_t kv_class, const qk_bounds *bounds, uint32_t n)
{
    const bounds_call call = {
        .bounds = bounds,
        .shape = &((const qk_cpu_model *)ctx->head.model)->head.shape,
        .layout = kv_class == 0 ? &ctx->head.params.layout : &ctx->head.params.layout_1,
    };
    qk_pool_run(
        ((qk_cpu_backend *)ctx->head.backend)->pool, make_bounds, (void *)&call, n * call.shape->n_layers);
}

/* ---- Choosing ------------------------------------------------------------------------------------------------ */

uint32_t qk_select_key(float score)
{
    uint32_t bits;
    memcpy(&bits, &score, sizeof(bits));
    if ((bits & 0x7fffffffu) > 0x7f800000u)
        return UINT32_MAX;
    return bits & 0x80000000u ? ~bits : bits | 0x80000000u;
}

/* The @k-th largest of the keys, 1 <= @k <= @n; and how many are larger. */
static uint32_t nth_largest(const uint32_t *keys, uint32_t n, uint32_t k, uint32_t *n_larger)
{
    uint32_t prefix = 0, mask = 0;
    *n_larger = 0;
    for (int shift = 24; shift >= 0; shift -= 8) {
        uint32_t counts[256] = {0}, digit = 255;
        for (uint32_t i = 0; i < n; i++)
            counts[keys[i] >> shift & 255] += (keys[i] & mask) == prefix;
        while (*n_larger + counts[digit] < k)
            *n_larger += counts[digit--];
        prefix |= digit << shift;
        mask |= 255u << shift;
    }
    return prefix;
}

uint32_t qk_select_largest(const uint32_t *keys, uint32_t n, uint32_t k, uint32_t first, uint32_t *out)
{
    uint32_t n_larger, n_out = 0;
    if (k == 0)
        return 0;
    const uint32_t edge = nth_largest(keys, n, k, &n_larger);
    uint32_t n_equal = k - n_larger; /* of those at the edge, the first so many */
    for (uint32_t i = 0; i < n; i++) {
        if (keys[i] < edge || (keys[i] == edge && n_equal == 0))
            continue;
        n_equal -= keys[i] == edge;
        out[n_out++] = first + i;
    }
    return n_out;
}

typedef struct {
    const qk_cpu_attend_plan *ap;
    uint32_t layer;
} select_call;

static uint32_t key_of(const float *scores, uint32_t n)
{
    float sum = scores[0];
    for (uint32_t i = 1; i < n; i++)
        sum += scores[i];
    return qk_select_key(sum);
}

/* The pages of one sequence for one kv head. */
static void choose(void *user, uint32_t index, uint32_t worker)
{
    const select_call *call = user;
    qk_cpu_context *ctx = call->ap->ctx;
    const qk_plan *plan = call->ap->plan;
    const qk_shape *shape = &((const qk_cpu_model *)ctx->head.model)->head.shape;
    const qk_cpu_ops *ops = ((const qk_cpu_backend *)ctx->head.backend)->ops;
    const qk_dtype dtype = qk_cpu_layout(ctx, plan)->dtype;
    const qk_cpu_tile *tile = &ctx->tiles[ctx->selects[index / shape->n_kv_heads]];
    const uint32_t kv_head = index % shape->n_kv_heads, dim = shape->head_dim;
    const qk_seq *seq = &plan->seqs[tile->seq];
    const uint32_t first = seq->n_sink, end = seq->n_pages - seq->n_recent;
    const float *q = ctx->q + (size_t)tile->row * ctx->q_dim + (size_t)kv_head * ctx->n_q * dim;
    const size_t slice = qk_bounds_slice_bytes(shape, dtype);
    const size_t offset = (call->layer * (size_t)shape->n_kv_heads + kv_head) * slice;
    qk_cpu_scratch *scratch = &ctx->scratch[worker];

    for (uint32_t p = first; p < end; p++) {
        const char *bounds = (const char *)(uintptr_t)plan->bounds[seq->page_begin + p] + offset;
        if (dtype == QK_BF16)
            ops->bound_scores_bf16(scratch->scores, q, ctx->n_q, dim, (const qk_bf16 *)(const void *)bounds);
        else
            ops->bound_scores_f32(scratch->scores, q, ctx->n_q, dim, (const float *)(const void *)bounds);
        scratch->keys[p - first] = key_of(scratch->scores, ctx->n_q);
    }
    uint32_t *out = ctx->chosen + kv_head * (size_t)ctx->head.params.select_max + tile->chosen;
    for (uint32_t p = 0; p < seq->n_sink; p++)
        *out++ = p;
    out += qk_select_largest(scratch->keys, end - first, seq->n_chosen, first, out);
    for (uint32_t p = end; p < seq->n_pages; p++)
        *out++ = p;
}

void qk_cpu_select_layer(const qk_cpu_attend_plan *ap, uint32_t layer)
{
    const uint32_t n_kv_heads = ((const qk_cpu_model *)ap->ctx->head.model)->head.shape.n_kv_heads;
    select_call call = {.ap = ap, .layer = layer};
    qk_pool_run(((qk_cpu_backend *)ap->ctx->head.backend)->pool, choose, &call, ap->n_selects * n_kv_heads);
}
