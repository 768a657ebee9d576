/* host-attend.c: attention over pages in host memory, by threads of its own: the outside partial of qk.h, ready to use.
 *
 *   out, lse = softmax(q . K / sqrt(head_dim)) V over one whole span, for each (row, span) item and query head
 *
 * The work of a call is cut into *units*: up to 16 rows of a sequence x one span x one kv head. A unit is one call of the
 * CPU backend's attend op, so that a slice of K and V is read once for all query heads and rows that share it. One row over
 * n spans reads n * n_kv_heads * 16 pages * 2 * slice bytes and is bound by that: at 256K tokens of a model of 8 kv heads of
 * 128 in bf16, 1.07 GB a layer.
 *
 * Invariants
 *  1. The op's result for a row depends on that row alone, so neither tiles, chunks nor threads change a bit.
 *  2. Every item belongs to exactly one unit a kv head: *blocks* of items with one sequence and the same spans in each of
 *     consecutive rows are found in the list as it is. A list in another order costs speed, nothing else.
 *  3. Everything that the plan and the items name is checked before the first unit runs.
 *
 * Any thread may call; calls of one attender run one after the other. The caller's thread is one of the n_threads. */
#include <math.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include "kernels/cpu/pool.h"
#include "kernels/cpu/qk-cpu-ops.h"

#define SPAN_PAGES      (QK_SPAN_TOKENS / QK_PAGE_TOKENS)
#define SCRATCH_ALIGN   64u
#define CACHE_LINE      64u
#define SPIN_NS         400000u /* between two layers of a step the device does the rest of one: less than this */
#define CHUNKS_A_THREAD 32u     /* what the slowest thread can be late by is 1/32 of the work */
#define N_THREADS_MAX   1024u
#define N_LAYOUTS_MAX   2u

/* Rows [row, row + n_rows) of a sequence, each with the same n_spans items, one row's after the other's. */
typedef struct {
    uint32_t item, n_rows, n_spans;
    uint32_t unit_begin;
} item_block;

struct qk_host_attender {
    const qk_cpu_ops *ops;
    qk_pool *pool;
    qk_shape shape; /* rope_inv_freq is not kept */
    qk_kv_layout layouts[N_LAYOUTS_MAX];
    uint32_t n_layouts;
    float *scratch; /* [n_threads, scratch_floats] */
    size_t scratch_floats;

    pthread_mutex_t lock; /* held through a call; guards the rest */
    item_block *blocks;   /* grows to what a call needs */
    uint32_t blocks_max;
};

/* ---- One unit ------------------------------------------------------------------------------------------------ */

typedef struct {
    const qk_cpu_ops *ops;
    const qk_shape *shape;
    const qk_kv_layout *layout;
    uint32_t layer, kv_head;
    const void *const *pages; /* of the span */
    uint32_t n_rows;
    const uint32_t *n_keys; /* [n_rows] */
    const float *q;         /* of the first row, all heads; the next row's follows */
    float *out, *lse;       /* of the first row, all heads */
    size_t item_stride;     /* items between two rows' results */
    float *scratch;
} unit;

static uint64_t slice_offset(const qk_kv_layout *layout, uint32_t layer, uint32_t kv_head)
{
    return layer * layout->layer_stride + kv_head * layout->head_stride;
}

static void run_unit(const unit *u)
{
    const uint32_t dim = u->shape->head_dim, n_heads = u->shape->n_heads;
    const uint32_t n_q = n_heads / u->shape->n_kv_heads;
    const size_t q_dim = (size_t)n_heads * dim, head = (size_t)u->kv_head * n_q;
    const uint64_t offset = slice_offset(u->layout, u->layer, u->kv_head);
    const void *k_pages[SPAN_PAGES], *v_pages[SPAN_PAGES];
    const float *q[QK_CPU_ATTEND_ROWS_MAX];
    float *out[QK_CPU_ATTEND_ROWS_MAX], *lse[QK_CPU_ATTEND_ROWS_MAX];
    for (uint32_t p = 0; p * QK_PAGE_TOKENS < u->n_keys[0]; p++) {
        k_pages[p] = (const char *)u->pages[p] + offset;
        v_pages[p] = (const char *)u->pages[p] + offset + u->layout->v_offset;
    }
    for (uint32_t r = 0; r < u->n_rows; r++) {
        q[r] = u->q + r * q_dim + head * dim;
        out[r] = u->out + r * u->item_stride * q_dim + head * dim;
        lse[r] = u->lse + r * u->item_stride * n_heads + head;
    }
    const qk_cpu_attend a = {
        .k_pages = k_pages,
        .v_pages = v_pages,
        .token_stride = u->layout->token_stride,
        .head_dim = dim,
        .n_q = n_q,
        .n_rows = u->n_rows,
        .n_keys = u->n_keys,
        .q = q,
        .scale = (float)(1.0 / sqrt((double)dim)),
        .out = out,
        .lse = lse,
        .scratch = u->scratch,
        .scale_offset = u->layout->scale_offset,
    };
    qk_cpu_attend_pages(u->ops, u->layout->dtype, &a);
}

/* Asks for a unit's first keys, which nothing inside the op could ask for early. */
static void prefetch_unit(const unit *u)
{
    const char *slice = (const char *)u->pages[0] + slice_offset(u->layout, u->layer, u->kv_head);
    for (size_t i = 0; i < (size_t)QK_PAGE_TOKENS * u->layout->token_stride; i += CACHE_LINE)
        __builtin_prefetch(slice + i);
}

static float *scratch_new(uint32_t n, size_t floats)
{
    return aligned_alloc(SCRATCH_ALIGN, n * floats * sizeof(float));
}

/* Of one thread, a multiple of the alignment. */
static size_t scratch_floats(const qk_shape *shape)
{
    const size_t unit_floats = SCRATCH_ALIGN / sizeof(float);
    const size_t n = qk_cpu_attend_scratch_floats(shape->n_heads / shape->n_kv_heads, shape->head_dim);
    return (n + unit_floats - 1) / unit_floats * unit_floats;
}

qk_status qk_host_attend_span(const char *isa, const qk_shape *shape, const qk_kv_layout *layout,
    uint32_t layer, const void *const *pages, uint32_t n_keys, const float *q, float *out, float *lse)
{
    const qk_cpu_ops *ops = qk_cpu_ops_get(isa);
    if (ops == NULL)
        return QK_UNSUPPORTED;
    if (n_keys == 0 || n_keys > QK_SPAN_TOKENS || layer >= shape->n_layers)
        return QK_INVALID;
    float *scratch = scratch_new(1, scratch_floats(shape));
    if (scratch == NULL)
        return QK_NO_MEMORY;
    for (uint32_t g = 0; g < shape->n_kv_heads; g++) {
        const unit u = {
            .ops = ops,
            .shape = shape,
            .layout = layout,
            .layer = layer,
            .kv_head = g,
            .pages = pages,
            .n_rows = 1,
            .n_keys = &n_keys,
            .q = q,
            .out = out,
            .lse = lse,
            .scratch = scratch,
        };
        run_unit(&u);
    }
    free(scratch);
    return QK_OK;
}

/* ---- The attender -------------------------------------------------------------------------------------------- */

qk_status qk_host_attender_new(const char *isa, uint32_t n_threads, const qk_shape *shape,
    const qk_kv_layout *layouts, uint32_t n_layouts, qk_host_attender **out)
{
    *out = NULL;
    const qk_cpu_ops *ops = qk_cpu_ops_get(isa);
    if (ops == NULL)
        return QK_UNSUPPORTED;
    n_threads = n_threads > 0 ? n_threads : qk_pool_n_cores();
    if (n_layouts == 0 || n_layouts > N_LAYOUTS_MAX || n_threads > N_THREADS_MAX || shape->n_kv_heads == 0 ||
        shape->n_heads % shape->n_kv_heads != 0)
        return QK_INVALID;
    qk_host_attender *self = calloc(1, sizeof(*self));
    if (self == NULL)
        return QK_NO_MEMORY;
    pthread_mutex_init(&self->lock, NULL);
    self->ops = ops;
    self->shape = *shape;
    self->shape.rope_inv_freq = NULL;
    memcpy(self->layouts, layouts, n_layouts * sizeof(*layouts));
    self->n_layouts = n_layouts;
    self->scratch_floats = scratch_floats(shape);
    self->scratch = scratch_new(n_threads, self->scratch_floats);
    self->pool = self->scratch != NULL ? qk_pool_new_spinning(n_threads, SPIN_NS) : NULL;
    if (self->pool == NULL) {
        qk_host_attender_free(self);
        return QK_NO_MEMORY;
    }
    *out = self;
    return QK_OK;
}

void qk_host_attender_free(qk_host_attender *self)
{
    if (self == NULL)
        return;
    qk_pool_free(self->pool);
    pthread_mutex_destroy(&self->lock);
    free(self->scratch);
    free(self->blocks);
    free(self);
}

/* ---- Calls --------------------------------------------------------------------------------------------------- */

typedef struct {
    qk_host_attender *self;
    const qk_partial_args *args;
    const qk_kv_layout *layout;
    uint32_t n_blocks, n_units, chunk_units;
} call;

/* First of the item's pages in the plan's table. */
static uint32_t first_page(const qk_plan *plan, const qk_partial_item *item)
{
    return plan->seqs[item->seq].page_begin + item->span * SPAN_PAGES;
}

static bool item_is_sound(const qk_plan *plan, const qk_partial_item *item)
{
    if (item->seq >= plan->n_seqs || item->row >= plan->n_rows)
        return false;
    if (((uint64_t)item->span + 1) * QK_SPAN_TOKENS > plan->seqs[item->seq].start)
        return false;
    const void *const *pages = plan->host_pages + first_page(plan, item);
    for (uint32_t p = 0; p < SPAN_PAGES; p++)
        if (pages[p] == NULL)
            return false;
    return true;
}

/* The largest block that begins at @first. */
static item_block block_at(const qk_partial_args *args, uint32_t first)
{
    const qk_partial_item *items = args->items + first;
    const uint32_t n_left = args->n_items - first;
    item_block block = {.item = first, .n_rows = 1, .n_spans = 1};
    while (block.n_spans < n_left && items[block.n_spans].row == items[0].row &&
           items[block.n_spans].seq == items[0].seq)
        block.n_spans++;
    for (uint32_t at = block.n_spans; n_left - at >= block.n_spans; at += block.n_spans, block.n_rows++) {
        for (uint32_t i = 0; i < block.n_spans; i++)
            if (items[at + i].seq != items[0].seq || items[at + i].row != items[0].row + block.n_rows ||
                items[at + i].span != items[i].span)
                return block;
    }
    return block;
}

static uint32_t n_tiles(const item_block *block)
{
    return (block->n_rows + QK_CPU_ATTEND_ROWS_MAX - 1) / QK_CPU_ATTEND_ROWS_MAX;
}

static qk_status cut_blocks(call *c)
{
    qk_host_attender *self = c->self;
    for (uint32_t item = 0; item < c->args->n_items;) {
        if (c->n_blocks == self->blocks_max) {
            const uint32_t n = 2 * self->blocks_max + 16;
            item_block *blocks = realloc(self->blocks, n * sizeof(*blocks));
            if (blocks == NULL)
                return QK_NO_MEMORY;
            self->blocks = blocks;
            self->blocks_max = n;
        }
        item_block *block = &self->blocks[c->n_blocks++];
        *block = block_at(c->args, item);
        block->unit_begin = c->n_units;
        const uint64_t n_units =
            (uint64_t)n_tiles(block) * block->n_spans * self->shape.n_kv_heads + c->n_units;
        if (n_units > UINT32_MAX)
            return QK_INVALID;
        c->n_units = (uint32_t)n_units;
        item += block->n_rows * block->n_spans;
    }
    return QK_OK;
}

/* Units in the order of memory: by block, tile, span, kv head. */
static unit unit_at(const call *c, uint32_t index)
{
    static const uint32_t whole[] = {[0 ... QK_CPU_ATTEND_ROWS_MAX - 1] = QK_SPAN_TOKENS};
    const qk_host_attender *self = c->self;
    const qk_shape *shape = &self->shape;
    uint32_t low = 0, high = c->n_blocks - 1;
    while (low < high) {
        const uint32_t middle = low + (high - low + 1) / 2;
        if (self->blocks[middle].unit_begin <= index)
            low = middle;
        else
            high = middle - 1;
    }
    const item_block *block = &self->blocks[low];
    index -= block->unit_begin;
    const uint32_t kv_head = index % shape->n_kv_heads, span = index / shape->n_kv_heads % block->n_spans;
    const uint32_t row = index / shape->n_kv_heads / block->n_spans * QK_CPU_ATTEND_ROWS_MAX;
    const uint32_t n_left = block->n_rows - row;
    const size_t item = block->item + (size_t)row * block->n_spans + span;
    const size_t q_dim = (size_t)shape->n_heads * shape->head_dim;
    const qk_partial_item *first = &c->args->items[item];
    return (unit){
        .ops = self->ops,
        .shape = shape,
        .layout = c->layout,
        .layer = c->args->layer,
        .kv_head = kv_head,
        .pages = c->args->plan->host_pages + first_page(c->args->plan, first),
        .n_rows = n_left < QK_CPU_ATTEND_ROWS_MAX ? n_left : QK_CPU_ATTEND_ROWS_MAX,
        .n_keys = whole,
        .q = c->args->q + first->row * q_dim,
        .out = c->args->out + item * q_dim,
        .lse = c->args->lse + item * shape->n_heads,
        .item_stride = block->n_spans,
    };
}

static void run_chunk(void *user, uint32_t index, uint32_t worker)
{
    const call *c = user;
    const uint32_t begin = index * c->chunk_units, n_left = c->n_units - begin;
    const uint32_t n = n_left < c->chunk_units ? n_left : c->chunk_units;
    unit next = unit_at(c, begin);
    for (uint32_t i = 0; i < n; i++) {
        unit u = next;
        u.scratch = c->self->scratch + worker * c->self->scratch_floats;
        if (i + 1 < n) {
            next = unit_at(c, begin + i + 1);
            prefetch_unit(&next);
        }
        run_unit(&u);
    }
}

static qk_status attend(call *c)
{
    const qk_partial_args *args = c->args;
    for (uint32_t i = 0; i < args->n_items; i++)
        if (!item_is_sound(args->plan, &args->items[i]))
            return QK_INVALID;
    qk_status status = cut_blocks(c);
    if (status != QK_OK)
        return status;
    /* Long chunks follow the memory over the heads of a span; short ones balance. */
    const uint32_t n_threads = qk_pool_n_threads(c->self->pool), n_heads = c->self->shape.n_kv_heads;
    c->chunk_units = c->n_units / (n_threads * CHUNKS_A_THREAD);
    c->chunk_units = c->chunk_units > n_heads ? n_heads : c->chunk_units < 1 ? 1 : c->chunk_units;
    qk_pool_run(c->self->pool, run_chunk, c, (c->n_units - 1) / c->chunk_units + 1);
    return QK_OK;
}

qk_status qk_host_attend(void *attender, const qk_partial_args *args)
{
    qk_host_attender *self = attender;
    const qk_plan *plan = args->plan;
    if (plan == NULL || plan->host_pages == NULL || plan->kv_class >= self->n_layouts ||
        args->layer >= self->shape.n_layers)
        return QK_INVALID;
    if (args->n_items == 0)
        return QK_OK;
    call c = {.self = self, .args = args, .layout = &self->layouts[plan->kv_class]};
    pthread_mutex_lock(&self->lock);
    qk_status status = attend(&c);
    pthread_mutex_unlock(&self->lock);
    return status;
}
