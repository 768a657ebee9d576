/* cuda-stream.cu: pages in host memory on their way to the attention: layer by layer through a ring on the device.
 *
 * A sequence's keys are dealt into groups, from the last to the first, as the attention takes them. A group's host pages
 * fit one part of the ring; its other pages stay where they are. In each layer, for group after group:
 *   TO_DEVICE  waits until the attention that last used the part has ended, copies the layer's slices of the pages
 *   COMPUTE    waits for that, attends to the group's keys (one or two launches), says that the part is free
 * Copies are enqueued as far ahead as there are parts: those of a layer's first groups run under the rest of the layer
 * before. The plan's page table on the device gets, once a layer, the places in the ring, less where the layer lies in a
 * page: so kernels find a slice where they would find it in the page.
 *
 * A streamed step that is no decode step attends to bf16 copies of int8 pages (qkc_widened). Sequences without host pages whose copies fit
 * together are attended to in one launch, as others are; all others are dealt, in groups that also fit, and each launch
 * has another before it that makes the copies, from the ring or from the pages.
 *
 * Invariants
 *  1. Ring index = layer * n_groups + group; its part is that modulo n_parts. The copy of index i is enqueued when the
 *     attention of i - n_parts has been, whose event it waits for; copies of a step begin when all work on COMPUTE before
 *     the step has ended. So an event is recorded anew only when nothing more is to wait for its last meaning.
 *  2. A group begins and ends at multiples of its unit (a span; in decode steps a piece): where the attention is cut
 *     does not depend on the ring, and with range launches (attn-prefill.cu) no bit does.
 *  3. Slots are given out in the order of the pages' addresses. Neighbours become one 2-D copy, which never crosses the end
 *     of a pinned range; what is not part of a run of RUN_PAGES_MIN is read by one kernel a group.
 *  4. Every copy that was enqueued is waited for by an attention launch of the same step: when the step has ended, nobody
 *     reads the plan's host pages any more. (A step that fails to launch waits for both streams.)
 *  5. A given-up step still makes all its copies: 0.6 s for 250K tokens of the reference model at most.
 *
 * Cost (reference shape): 64 KiB a page and layer. 250K tokens in host memory: 1.0 GB a layer, 19 ms at 54 GB/s; the
 * attention of 2,048 rows to them 8.6 TFLOP, 14 ms at 600 TFLOP/s. A range launch reads and writes 36 MB of state, 20 us,
 * which is why parts should be tens of MiB. */
#include <algorithm>
#include "kernels/cuda/cuda-step.h"

#define RUN_PAGES_MIN  32u /* neighbouring pages worth a copy of their own */
#define GATHER_BLOCKS  8u  /* 256 KB on their way over the bus cover its latency five times */
#define GATHER_THREADS 256u
#define GATHER_VECTORS 8u /* of 16 bytes, of a thread at a time */
#define PLACE_THREADS  256u
#define SPAN_PAGES     (QK_SPAN_TOKENS / QK_PAGE_TOKENS)
#define PART_PAGES     128u /* parts get at least so many pages before there are more than two of them */

static qkc_backend *backend_of(const qkc_context *ctx)
{
    return (qkc_backend *)ctx->head.backend;
}

static const qk_shape *shape_of(const qkc_context *ctx)
{
    return &((const qkc_model *)ctx->head.model)->head.shape;
}

/* ---- The ring ------------------------------------------------------------------------------------------------ */

/* Bytes from the begin of a layer in a page to the end of its last element. */
static uint64_t slice_extent(const qk_kv_layout *layout, const qk_shape *shape)
{
    const uint64_t row = (uint64_t)shape->head_dim * (layout->dtype == QK_I8 ? 1 : 2);
    uint64_t head = (QK_PAGE_TOKENS - 1) * (uint64_t)layout->token_stride + row;
    if (layout->dtype == QK_I8)
        head = std::max(head, layout->scale_offset + 2 * QK_PAGE_TOKENS);
    return (shape->n_kv_heads - 1) * layout->head_stride + layout->v_offset + head;
}

qk_status qkc_ring_plan(qkc_context *ctx)
{
    const qk_context_params *p = &ctx->head.params;
    uint64_t slice = 0;
    if (p->ring_bytes == 0)
        return QK_OK;
    for (uint32_t k = 0; k < QKC_KV_CLASSES && qkc_layout_of(ctx, k) != NULL; k++) {
        const qk_kv_layout *layout = qkc_layout_of(ctx, k);
        if (slice_extent(layout, shape_of(ctx)) > layout->layer_stride)
            return qkc_fail(backend_of(ctx), QK_UNSUPPORTED, cudaSuccess,
                "context: layer_stride of %s is %llu, but a layer of a page has %llu bytes; the ring needs "
                "layers that "
                "lie apart",
                k == 0 ? "layout" : "layout_1", (unsigned long long)layout->layer_stride,
                (unsigned long long)slice_extent(layout, shape_of(ctx)));
        slice = std::max(slice, layout->layer_stride);
    }
    const uint64_t n_slots = p->ring_bytes / slice;
    const uint64_t n_parts =
        std::min(std::max(n_slots / PART_PAGES, (uint64_t)2), (uint64_t)QKC_RING_PARTS_MAX);
    ctx->ring.n_parts = (uint32_t)n_parts;
    ctx->ring.part_bytes = p->ring_bytes / n_parts / 256 * 256;
    if (ctx->ring.part_bytes < SPAN_PAGES * slice)
        return qkc_fail(backend_of(ctx), QK_UNSUPPORTED, cudaSuccess,
            "context: ring_bytes is %llu, expected 0 or at least %llu: two spans of one layer",
            (unsigned long long)p->ring_bytes, (unsigned long long)(2 * (SPAN_PAGES * slice + 256)));
    return QK_OK;
}

void qkc_widened_plan(qkc_context *ctx)
{
    qkc_widened *widened = &ctx->widened;
    const uint32_t pages_max = ctx->head.params.pages_max;
    widened->n_pages = 0;
    for (uint32_t k = 0; k < QKC_KV_CLASSES && qkc_layout_of(ctx, k) != NULL; k++)
        if (qkc_layout_of(ctx, k)->dtype == QK_I8)
            widened->n_pages = pages_max < QKC_WIDENED_PAGES
                                   ? (pages_max + SPAN_PAGES - 1) / SPAN_PAGES * SPAN_PAGES
                                   : QKC_WIDENED_PAGES;
    qkc_widened_layout(shape_of(ctx)->n_kv_heads, shape_of(ctx)->head_dim, &widened->layout);
}

cudaError_t qkc_ring_start(qkc_context *ctx)
{
    qkc_ring *ring = &ctx->ring;
    cudaError_t code = cudaSuccess;
    if (ctx->head.params.ring_bytes == 0)
        return code;
    code = cudaEventCreateWithFlags(&ring->begun, cudaEventDisableTiming);
    for (uint32_t i = 0; i < ring->n_parts && code == cudaSuccess; i++) {
        code = cudaEventCreateWithFlags(&ring->copied[i], cudaEventDisableTiming);
        if (code == cudaSuccess)
            code = cudaEventCreateWithFlags(&ring->used[i], cudaEventDisableTiming);
    }
    return code;
}

void qkc_ring_stop(qkc_context *ctx)
{
    qkc_ring *ring = &ctx->ring;
    if (ring->begun != NULL)
        cudaEventDestroy(ring->begun);
    for (uint32_t i = 0; i < QKC_RING_PARTS_MAX; i++) {
        if (ring->copied[i] != NULL)
            cudaEventDestroy(ring->copied[i]);
        if (ring->used[i] != NULL)
            cudaEventDestroy(ring->used[i]);
    }
}

/* ---- Dealing pages into groups ------------------------------------------------------------------------------- */

/* Whether the page is to go through the ring. */
static bool is_host(const qkc_step *step, uint32_t page)
{
    return step->stream.takes_host && (step->plan.pages[page] & QK_PAGE_HOST) != 0;
}

/* What the dealing of one sequence goes by. */
typedef struct {
    qkc_step *step;
    const qk_seq *seq;
    uint32_t index;      /* in the stream's seqs */
    uint32_t n_keys;     /* of the sequence, with its new rows */
    uint32_t unit_pages; /* a group ends at multiples of this */
    uint32_t n_slots;    /* pages of a part of the ring */
    uint32_t n_widened;  /* pages that a launch can attend to, of any kind */
} dealing;

/* Copies of the pages in stream->order, which is sorted by address: the slots are theirs in turn. */
static void list_copies(const dealing *d, uint32_t n)
{
    qkc_stream *stream = &d->step->stream;
    qkc_context *ctx = (qkc_context *)d->step->head.context;
    const uint64_t page_bytes = qkc_layout_of(ctx, d->step->plan.kv_class)->page_bytes;
    qkc_group *group = &stream->groups[stream->n_groups];
    group->run = stream->n_runs;
    group->page = stream->n_scattered;
    for (uint32_t i = 0; i < n;) {
        const uint64_t from = stream->order[i].address, end = qkc_pins_end(&backend_of(ctx)->pins, from);
        uint32_t k = 1;
        while (i + k < n && stream->order[i + k].address == from + k * page_bytes &&
               from + (k + 1) * page_bytes <= end)
            k++;
        if (k >= RUN_PAGES_MIN)
            stream->runs[stream->n_runs++] = {from, i, k};
        else
            for (uint32_t j = 0; j < k; j++)
                stream->scattered[stream->n_scattered++] = {from + j * page_bytes, i + j, 1};
        i += k;
    }
    group->n_runs = stream->n_runs - group->run;
    group->n_pages = stream->n_scattered - group->page;
}

static void add_range(
    const dealing *d, uint32_t begin, uint32_t end, uint32_t group, bool is_first, bool is_last)
{
    qkc_stream *stream = &d->step->stream;
    if (begin < end)
        stream->ranges[stream->n_ranges++] = {d->index, begin, end, group, is_first, is_last, begin == 0};
}

/* Keys [@begin, @end) become a group, or one without when they have no host pages. */
static void close_group(const dealing *d, uint32_t begin, uint32_t end)
{
    qkc_stream *stream = &d->step->stream;
    const qk_plan *plan = &d->step->plan;
    uint32_t n = 0, group = QKC_NO_GROUP;
    if (begin >= end)
        return;
    for (uint32_t p = begin / QK_PAGE_TOKENS; p * QK_PAGE_TOKENS < end; p++) {
        const uint32_t page = d->seq->page_begin + p;
        if (!is_host(d->step, page))
            continue;
        if (stream->places[page].group != QKC_NO_GROUP)
            stream->overlaps = true;
        else
            stream->order[n++] = {plan->pages[page] & ~(uint64_t)QK_PAGE_HOST, page};
    }
    if (n > 0) {
        std::sort(stream->order, stream->order + n, [](const qkc_far_page &a, const qkc_far_page &b) {
            return a.address != b.address ? a.address < b.address : a.page < b.page;
        });
        group = stream->n_groups;
        list_copies(d, n);
        for (uint32_t i = 0; i < n; i++)
            stream->places[stream->order[i].page] = {group, i};
        stream->n_groups++;
    }
    const uint32_t cut =
        stream->is_decode ? begin : qkc_range_cut(d->n_keys, stream->seqs[d->index].n_parts, begin, end);
    add_range(d, cut, end, group, true, cut == begin);
    add_range(d, begin, cut, group, false, true);
}

/* From the last unit to the first; the keys behind the last host page go alone, so that the attention need not wait.
 * Returns 0, or the host pages of a unit that a part of the ring has no room for. */
static uint32_t deal_pages(const dealing *d)
{
    const uint32_t n_pages = d->seq->n_pages, unit_keys = d->unit_pages * QK_PAGE_TOKENS;
    uint32_t end = d->n_keys, n_in = 0, n_all = 0; /* of the group: host pages, pages */
    bool is_tail = true;
    for (uint32_t unit = (n_pages + d->unit_pages - 1) / d->unit_pages; unit-- > 0;) {
        const uint32_t last = std::min((unit + 1) * d->unit_pages, n_pages);
        uint32_t n = 0;
        for (uint32_t p = unit * d->unit_pages; p < last; p++)
            n += is_host(d->step, d->seq->page_begin + p);
        if (n > d->n_slots)
            return n;
        const bool host_cut = n > 0 && (is_tail || n_in + n > d->n_slots);
        if (host_cut || n_all + d->unit_pages > d->n_widened) {
            const uint32_t begin = std::min((unit + 1) * unit_keys, d->n_keys);
            close_group(d, begin, end);
            end = begin;
            n_in = n_all = 0;
            is_tail = is_tail && !host_cut;
        }
        n_in += n;
        n_all += d->unit_pages;
    }
    close_group(d, 0, end);
    return 0;
}

/* The sequence's tiles, behind those of the streamed sequences before it. */
static void cut_tiles(qkc_step *step, qkc_streamed_seq *seq)
{
    qkc_context *ctx = (qkc_context *)step->head.context;
    const qk_shape *shape = shape_of(ctx);
    qkc_stream *stream = &step->stream;
    seq->tiles = {stream->n_tiles, 0, stream->n_merges, 0};
    seq->n_parts = qkc_cut_sequence_tiles(&step->plan, seq->seq, shape->n_heads, shape->n_kv_heads,
        shape->head_dim, qkc_takes_hopper(ctx), backend_of(ctx)->n_sms, ctx->part_rows_max, step->tiles,
        step->merges, &seq->tiles);
    stream->n_tiles += seq->tiles.n_tiles;
    stream->n_merges += seq->tiles.n_merges;
}

static qk_status refuse_ring(const qkc_context *ctx, uint32_t n_needed, uint32_t n_slots)
{
    return qkc_fail(backend_of(ctx), QK_UNSUPPORTED, cudaSuccess,
        "step: pages in host memory are to be streamed in groups of %u, but ring_bytes %llu has room for %u "
        "in each of "
        "its parts",
        n_needed, (unsigned long long)ctx->head.params.ring_bytes, n_slots);
}

void qkc_stream_clear(qkc_step *step)
{
    qkc_stream *stream = &step->stream;
    stream->n_seqs = stream->n_groups = stream->n_ranges = stream->n_runs = stream->n_scattered = 0;
    stream->n_tiles = stream->n_merges = 0;
    stream->overlaps = false;
}

qk_status qkc_stream_build(qkc_step *step, bool is_decode, bool takes_host)
{
    qkc_context *ctx = (qkc_context *)step->head.context;
    const qk_plan *plan = &step->plan;
    qkc_stream *stream = &step->stream;
    qkc_stream_clear(step);
    if (takes_host && ctx->head.params.ring_bytes == 0)
        return qkc_fail(backend_of(ctx), QK_UNSUPPORTED, cudaSuccess,
            "step: a page is in host memory and is to be streamed, but the context's ring_bytes is 0");
    const qk_kv_layout *layout = qkc_layout_of(ctx, plan->kv_class);
    stream->is_decode = is_decode;
    stream->takes_host = takes_host;
    stream->is_widened = layout->dtype == QK_I8 && !is_decode;
    for (uint32_t i = 0; i < plan->n_pages; i++)
        stream->places[i] = {QKC_NO_GROUP, 0};
    uint64_t n_entries = 0; /* the arrays have room for each entry of the page table once */
    for (uint32_t i = 0; i < plan->n_seqs; i++)
        n_entries += plan->seqs[i].n_pages;
    stream->overlaps = n_entries > plan->n_pages;
    uint32_t n_left = stream->is_widened ? ctx->widened.n_pages : UINT32_MAX;
    for (uint32_t i = 0; i < plan->n_seqs && !stream->overlaps; i++) {
        const qk_seq *seq = &plan->seqs[i];
        bool any = seq->n_pages > n_left;
        for (uint32_t p = 0; p < seq->n_pages && !any; p++)
            any = is_host(step, seq->page_begin + p);
        stream->is_streamed[i] = any;
        if (stream->is_widened && !any)
            n_left -= seq->n_pages;
    }
    for (uint32_t i = 0; i < plan->n_seqs && !stream->overlaps; i++) {
        if (!stream->is_streamed[i])
            continue;
        dealing d = {};
        d.step = step;
        d.seq = &plan->seqs[i];
        d.index = stream->n_seqs++;
        d.n_keys = d.seq->start + d.seq->n_rows;
        d.unit_pages = (is_decode ? qkc_attend_decode_piece_keys(d.n_keys) : QK_SPAN_TOKENS) / QK_PAGE_TOKENS;
        d.n_slots = (uint32_t)std::min(ctx->ring.part_bytes / layout->layer_stride, (uint64_t)UINT32_MAX);
        d.n_widened = stream->is_widened ? ctx->widened.n_pages : UINT32_MAX;
        stream->seqs[d.index].seq = i;
        stream->seqs[d.index].n_parts = 1;
        if (!is_decode)
            cut_tiles(step, &stream->seqs[d.index]);
        const uint32_t n_unfit = deal_pages(&d);
        if (n_unfit > 0)
            return refuse_ring(ctx, n_unfit, d.n_slots);
    }
    if (stream->overlaps)
        return qkc_fail(backend_of(ctx), QK_UNSUPPORTED, cudaSuccess,
            "step: two sequences share entries of the page table, some of them of int8 pages or in host "
            "memory");
    return QK_OK;
}

/* ---- Copying ------------------------------------------------------------------------------------------------- */

/* Slices of pages that lie anywhere in host memory, read past all caches. A warp takes 4 KB of one at a time. */
static __global__ void __launch_bounds__(GATHER_THREADS)
    gather_slices(char *part, const qkc_run *pages, uint32_t n_pages, uint64_t offset, uint32_t slice)
{
    constexpr uint32_t CHUNK = GATHER_VECTORS * QKC_WARP; /* vectors */
    const uint32_t n_vectors = slice / 16, n_chunks = (n_vectors + CHUNK - 1) / CHUNK;
    const uint32_t lane = threadIdx.x % QKC_WARP, n_warps = gridDim.x * (GATHER_THREADS / QKC_WARP);
    const uint64_t end = (uint64_t)n_pages * n_chunks;
    for (uint64_t c = blockIdx.x * (GATHER_THREADS / QKC_WARP) + threadIdx.x / QKC_WARP; c < end;
         c += n_warps) {
        const qkc_run page = pages[c / n_chunks];
        const uint32_t first = (uint32_t)(c % n_chunks) * CHUNK + lane;
        const uint4 *from = (const uint4 *)(uintptr_t)(page.from + offset);
        uint4 *to = (uint4 *)(part + (uint64_t)page.slot * slice);
        uint4 v[GATHER_VECTORS];
#pragma unroll
        for (uint32_t i = 0; i < GATHER_VECTORS; i++)
            if (first + i * QKC_WARP < n_vectors)
                v[i] = __ldcv(from + first + i * QKC_WARP);
#pragma unroll
        for (uint32_t i = 0; i < GATHER_VECTORS; i++)
            if (first + i * QKC_WARP < n_vectors)
                __stcg(to + first + i * QKC_WARP, v[i]);
    }
}

/* One entry of the page table a thread: where in the ring its page will be in this layer. */
static __global__ void __launch_bounds__(PLACE_THREADS)
    place_pages(uint64_t *pages, const qkc_place *places, uint32_t n_pages, uint64_t ring,
        uint64_t part_bytes, uint64_t slice, uint64_t first_index, uint32_t n_parts, uint64_t layer_offset)
{
    qkc_pdl_wait();
    qkc_pdl_trigger();
    const uint32_t i = blockIdx.x * PLACE_THREADS + threadIdx.x;
    if (i >= n_pages)
        return;
    const qkc_place place = places[i];
    if (place.group != QKC_NO_GROUP)
        pages[i] =
            ring + (first_index + place.group) % n_parts * part_bytes + place.slot * slice - layer_offset;
}

static uint64_t n_indices(const qkc_step *step)
{
    return (uint64_t)step->stream.n_groups * step->stream.n_layers;
}

/* Enqueues the copies of ring index @index, when there is one. */
static cudaError_t enqueue_copy(qkc_step *step, uint64_t index)
{
    qkc_context *ctx = (qkc_context *)step->head.context;
    qkc_ring *ring = &ctx->ring;
    const qkc_stream *stream = &step->stream;
    const qk_kv_layout *layout = qkc_layout_of(ctx, step->plan.kv_class);
    const cudaStream_t to_device = backend_of(ctx)->streams[QK_STREAM_TO_DEVICE];
    if (index >= n_indices(step))
        return cudaSuccess;
    const qkc_group *group = &stream->groups[index % stream->n_groups];
    const uint64_t offset = index / stream->n_groups * layout->layer_stride, slice = layout->layer_stride;
    const uint32_t i = (uint32_t)(index % ring->n_parts);
    char *part = ring->memory + i * ring->part_bytes;
    cudaError_t code = cudaSuccess;
    if (index >= ring->n_parts)
        code = cudaStreamWaitEvent(to_device, ring->used[i], 0);
    for (uint32_t r = 0; r < group->n_runs && code == cudaSuccess; r++) {
        const qkc_run *run = &stream->runs[group->run + r];
        code =
            cudaMemcpy2DAsync(part + run->slot * slice, slice, (const void *)(uintptr_t)(run->from + offset),
                layout->page_bytes, slice, run->n_pages, cudaMemcpyDefault, to_device);
    }
    if (code == cudaSuccess && group->n_pages > 0) {
        gather_slices<<<GATHER_BLOCKS, GATHER_THREADS, 0, to_device>>>(
            part, ring->scattered + group->page, group->n_pages, offset, (uint32_t)slice);
        code = cudaGetLastError();
    }
    if (code == cudaSuccess)
        code = cudaEventRecord(ring->copied[i], to_device);
    return code;
}

cudaError_t qkc_stream_begin(qkc_step *step, uint32_t n_layers)
{
    qkc_context *ctx = (qkc_context *)step->head.context;
    qkc_stream *stream = &step->stream;
    qkc_ring *ring = &ctx->ring;
    const cudaStream_t compute = backend_of(ctx)->streams[QK_STREAM_COMPUTE];
    stream->n_layers = n_layers;
    if (stream->n_groups == 0)
        return cudaSuccess;
    cudaError_t code = cudaMemcpyAsync(ring->places, stream->places,
        step->plan.n_pages * sizeof(*stream->places), cudaMemcpyHostToDevice, compute);
    if (code == cudaSuccess && stream->n_scattered > 0)
        code = cudaMemcpyAsync(ring->scattered, stream->scattered,
            stream->n_scattered * sizeof(*stream->scattered), cudaMemcpyHostToDevice, compute);
    if (code == cudaSuccess)
        code = cudaEventRecord(ring->begun, compute);
    if (code == cudaSuccess)
        code = cudaStreamWaitEvent(backend_of(ctx)->streams[QK_STREAM_TO_DEVICE], ring->begun, 0);
    for (uint32_t i = 0; i < ring->n_parts && code == cudaSuccess; i++)
        code = enqueue_copy(step, i);
    return code;
}

cudaError_t qkc_stream_place(const qkc_launch *launch, qkc_step *step, uint32_t layer)
{
    qkc_context *ctx = (qkc_context *)step->head.context;
    const qk_kv_layout *layout = qkc_layout_of(ctx, step->plan.kv_class);
    const uint32_t n_pages = step->plan.n_pages;
    if (step->stream.n_groups == 0)
        return cudaSuccess;
    return qkc_start(launch, place_pages, dim3((n_pages + PLACE_THREADS - 1) / PLACE_THREADS),
        dim3(PLACE_THREADS), 0, ctx->plan.pages, (const qkc_place *)ctx->ring.places, n_pages,
        (uint64_t)(uintptr_t)ctx->ring.memory, ctx->ring.part_bytes, layout->layer_stride,
        (uint64_t)layer * step->stream.n_groups, ctx->ring.n_parts, layer * layout->layer_stride);
}

cudaError_t qkc_stream_before(qkc_step *step, uint32_t layer, const qkc_range *range)
{
    qkc_context *ctx = (qkc_context *)step->head.context;
    if (range->group == QKC_NO_GROUP || !range->is_first)
        return cudaSuccess;
    const uint64_t index = (uint64_t)layer * step->stream.n_groups + range->group;
    return cudaStreamWaitEvent(
        backend_of(ctx)->streams[QK_STREAM_COMPUTE], ctx->ring.copied[index % ctx->ring.n_parts], 0);
}

cudaError_t qkc_stream_after(qkc_step *step, uint32_t layer, const qkc_range *range)
{
    qkc_context *ctx = (qkc_context *)step->head.context;
    if (range->group == QKC_NO_GROUP || !range->is_last)
        return cudaSuccess;
    const uint64_t index = (uint64_t)layer * step->stream.n_groups + range->group;
    const cudaError_t code = cudaEventRecord(
        ctx->ring.used[index % ctx->ring.n_parts], backend_of(ctx)->streams[QK_STREAM_COMPUTE]);
    return code == cudaSuccess ? enqueue_copy(step, index + ctx->ring.n_parts) : code;
}
