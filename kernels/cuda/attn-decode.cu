/* attn-decode.cu: the attention stage of a step in which every sequence has one new row, in one launch.
 *
 *   q, k = rope(rms_norm(q)), rope(rms_norm(k)); k, v -> the page of the new position
 *   out = sum over the keys of softmax(q.k / sqrt(head_dim)) v
 *
 * An item is one piece of one sequence (cuda-ops.h says where sequences are cut) for one kv head. The grid is fixed by
 * the device; each block derives the list of items, by sequence, kv head and piece, from the sequences' lengths and walks a
 * run of neighbours, the runs being equally long: what belongs to a sequence and kv head it makes ready once. In a block,
 * warp w takes the pages w, w + 8, ... of the piece, each warp for all query heads of the kv head, with a running maximum and
 * sum; the eight results are then merged in the order of the warps. Pieces' results go to the workspace, where the block that
 * has all pieces, or the last one to arrive, merges them in position order.
 *
 * Keys and values go from memory into a warp's registers by units of one bf16 page or two int8 pages (attn-decode.h);
 * int8 pages of a unit are 8 apart, so that short sequences, too, keep all warps busy. The next unit's keys are asked for
 * as soon as this one's have been multiplied, its values likewise, over the borders of items: 8 KB a warp and 128 KB an SM
 * are on their way (about 30 KB would cover the latency).
 *
 * Pages at address 0 are outside: somebody else attends to their keys (cuda-partial.cu). The kernel has a second form
 * for plans with such pages, chosen by args.lse: it takes them as not there and also gives the rows' log-sum-exp. A warp
 * or a piece without any key has weight 0; the last page is never outside, so that each row has some key.
 *
 * Precision: q (times log2(e) / sqrt(head_dim)) and P each enter as the sum of two bf16 numbers, since the tensor cores
 * idle here anyway: the rest is as with float32 throughout. The test allows 1e-4 of a row's norm against float64.
 *
 * Invariants
 *  1. A row's result depends on its sequence alone: its length says where it is cut, which warp takes which page and in
 *     which order results are added; not the batch, the grid, or who is last.
 *  2. Only keys below the sequence's length count. Of the last page the rows past it are loaded and thrown away
 *     (masked scores; values, or their scales, replaced by zero), so that what they hold, NaN included, does not matter.
 *  3. The new key and value are read from the QKV product by the block that has the sequence's last piece, which alone
 *     uses them, rounded to bf16 or quantised as the page gets them. Nothing else in the page is written.
 *  4. A block that has some but not all pieces of a sequence and kv head counts them in the pair's counter, also when the
 *     step has been given up: so the counters are back at zero after every launch, or after the last of those that share
 *     the pieces.
 *  5. Reads before qkc_pdl_wait(): in a launch with layer > 0 the plan (but for its state), the pages' older keys and
 *     values, the cos_sin table. That relies on this: the step's attention of the layer before was this kernel too,
 *     which triggers its dependents after its own wait, every kernel of the step waits before it ends, and the plan and
 *     the older tokens were complete before that first attention's wait ended. With layer 0 only weights are read.
 *
 * Cost at the reference shape (32 query heads, 8 kv heads of 128): 4 KB a key and layer. 32K keys: 134 MB, 32.5 us at
 * 4.13 TB/s (H200); 4 FLOP a byte, 16 as done here. Workspace: 2 KB written and read an item, against 128 KB of keys and
 * values or more. At 128 keys there are 8 items of 8 warps with a page each, and latency is all.
 * Int8: 2 KB a key and layer; 32K keys: 68 MB, 16.5 us. A number costs 1.25 (key) or 1.5 (value) integer operations: about
 * 350 of a scheduler's 1,050 cycles a page at that rate. */
#include "kernels/cuda/attn-decode.h"
#include "kernels/cuda/attn-head.h"

/* ---- The list of items --------------------------------------------------------------------------------------- */

static __host__ __device__ __forceinline__ uint32_t piece_keys(uint32_t n_keys)
{
    const uint32_t n_spans = (n_keys + QK_SPAN_TOKENS - 1) / QK_SPAN_TOKENS;
    return QK_SPAN_TOKENS * ((n_spans + QKC_ITEMS_A_SEQ - 1) / QKC_ITEMS_A_SEQ);
}

/* How many pages the sequence's lists have; 0: it leaves none out and has none. *@n_keys becomes the listed pages'. */
static __device__ __forceinline__ uint32_t list_seq(const decode_params &p, uint32_t seq, uint32_t *n_keys)
{
    const qk_seq *from = &p.a.plan.seqs[seq];
    const uint32_t n_pages = __ldcg(&from->n_pages);
    const uint32_t n =
        qkc_pages_attended(n_pages, __ldcg(&from->n_sink), __ldcg(&from->n_recent), __ldcg(&from->n_chosen));
    *n_keys -= (n_pages - n) * QK_PAGE_TOKENS;
    return n < n_pages ? n : 0;
}

/* Where the launch's pieces are in the list of all sequences'. */
static __device__ __forceinline__ uint32_t launched(const decode_params &p, uint32_t piece)
{
    const uint32_t n = max(piece, p.a.first_piece);
    return (p.a.end_piece > 0 ? min(n, p.a.end_piece) : n) - p.a.first_piece;
}

/* One warp: the sequences' lengths, pages, and running count of pieces, then which items are the block's. Of sequences that
 * leave pages out it is the listed pages that count; their lists lie behind the page table, one after the other for each
 * kv head. */
template <int D> static __device__ void list_pieces(const decode_params &p, block_memory<D> &s)
{
    const uint32_t lane = threadIdx.x % QKC_WARP;
    const uint32_t n_seqs = min(__ldcg(p.a.plan.counts + 1), QKC_SMALL_ROWS);
    uint32_t before = 0, listed = 0;
    for (uint32_t base = 0; base < QKC_SMALL_ROWS; base += QKC_WARP) {
        const uint32_t seq = base + lane;
        uint32_t n = 0, n_keys = 0, n_listed = 0;
        if (seq < n_seqs) {
            n_keys = __ldcg(&p.a.plan.seqs[seq].start) + 1;
            s.page[seq] = __ldcg(&p.a.plan.seqs[seq].page_begin);
            if (p.a.lists_stride > 0)
                n_listed = list_seq(p, seq, &n_keys);
            const uint32_t size = piece_keys(n_keys);
            n = (n_keys + size - 1) / size;
        }
        const uint32_t n_own = n;
        for (uint32_t d = 1; d < QKC_WARP; d *= 2) {
            const uint32_t other = __shfl_up_sync(ALL_LANES, n, d);
            n += lane >= d ? other : 0;
        }
        if (p.a.lists_stride > 0) {
            uint32_t end = n_listed;
            for (uint32_t d = 1; d < QKC_WARP; d *= 2) {
                const uint32_t other = __shfl_up_sync(ALL_LANES, end, d);
                end += lane >= d ? other : 0;
            }
            if (n_listed > 0)
                s.page[seq] = p.a.lists_begin + listed + end - n_listed;
            listed += __shfl_sync(ALL_LANES, end, QKC_WARP - 1);
        }
        s.keys[seq] = n_keys;
        s.end[seq] = launched(p, before + n);
        if (before + n - n_own < p.a.first_piece && before + n > p.a.first_piece)
            s.skip = p.a.first_piece - (before + n - n_own);
        before += __shfl_sync(ALL_LANES, n, QKC_WARP - 1);
    }
    const uint32_t n_items = launched(p, before) * p.a.n_kv_heads;
    if (lane == 0) {
        s.run = n_items <= gridDim.x ? min(blockIdx.x, n_items) : (uint64_t)n_items * blockIdx.x / gridDim.x;
        s.run_end = n_items <= gridDim.x ? min(blockIdx.x + 1, n_items)
                                         : (uint64_t)n_items * (blockIdx.x + 1) / gridDim.x;
    }
}

/* A whole warp calls it: puts item @index of the list into slot @to; one without pages past the block's end. */
template <int D>
static __device__ void find_item(const decode_params &p, block_memory<D> &s, uint32_t index, item_info *to)
{
    const uint32_t lane = threadIdx.x % QKC_WARP;
    const uint32_t before =
        index / p.a.n_kv_heads; /* in the list by sequences, as if heads were the inner ones */
    const uint32_t seq = __popc(__ballot_sync(ALL_LANES, s.end[lane] <= before)) +
                         __popc(__ballot_sync(ALL_LANES, s.end[QKC_WARP + lane] <= before));
    if (lane != 0)
        return;
    if (index >= s.run_end) {
        to->n_pages = 0;
        return;
    }
    const uint32_t first = seq > 0 ? s.end[seq - 1] : 0, n_here = s.end[seq] - first;
    const uint32_t rest = index - first * p.a.n_kv_heads, head = rest / n_here, i = rest % n_here;
    const uint32_t n_keys = s.keys[seq], size = piece_keys(n_keys), n_pieces = (n_keys + size - 1) / size;
    const uint32_t piece = i + (first == 0 ? s.skip : 0), begin = piece * size;
    const bool last = piece + 1 == n_pieces;
    uint32_t page = s.page[seq];
    if (page >= p.a.lists_begin)
        page += head * p.a.lists_stride;
    to->head = head;
    to->seq = seq;
    to->piece = piece;
    to->n_pieces = n_pieces;
    to->page = page + begin / QK_PAGE_TOKENS;
    to->n_pages = ((last ? n_keys - begin : size) + QK_PAGE_TOKENS - 1) / QK_PAGE_TOKENS;
    to->n_tail = last ? (n_keys - 1) % QK_PAGE_TOKENS + 1 : 0;
    const uint32_t n_before = min(i, index - s.run);
    to->n_left = min(n_here - 1 - i, s.run_end - 1 - index);
    to->n_mine = n_before + 1 + to->n_left;
    to->new_page = piece + to->n_left + 1 == n_pieces ? page + (n_keys - 1) / QK_PAGE_TOKENS : NO_PAGE;
    to->new_row = (n_keys - 1) % QK_PAGE_TOKENS;
}

/* The address of page @i of an item out of the plan; 0 past its end. */
static __device__ __forceinline__ uint64_t page_address(
    const decode_params &p, const volatile item_info &it, uint32_t i)
{
    return i < it.n_pages ? __ldcg((const unsigned long long *)p.a.plan.pages + it.page + i) : 0;
}

/* Where in the plan the unit is whose first page is page @i, as unit_registers says. Both of its pages are in one span:
 * so both are outside, or none is. */
template <bool I8>
static __device__ __forceinline__ uint64_t unit_address(
    const decode_params &p, const volatile item_info &it, uint32_t i)
{
    return page_address(p, it, I8 && lane_again() >= 16 ? i + WARPS : i);
}

/* The same into shared memory, without a register or a scoreboard that loads of keys and values wait for, too: the pair of
 * neighbouring addresses that has the page's, because copies past the L1 cache are of 16 bytes. */
template <bool I8>
static __device__ __forceinline__ void ask_unit(
    const decode_params &p, uint64_t (&to)[2][2], const volatile item_info &it, uint32_t i)
{
    const uint32_t lane = lane_again();
    if (lane % 16 == 0 && (I8 || lane == 0)) {
        const uint32_t page = i + (I8 && lane >= 16 ? WARPS : 0), n_pages = it.n_pages;
        const uintptr_t from = (uintptr_t)(p.a.plan.pages + it.page + (page < n_pages ? page : 0));
        const uint32_t bytes = page >= n_pages ? 0 : from % 16 == 0 && page + 1 == n_pages ? 8 : 16;
        asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(
                         (uint32_t)__cvta_generic_to_shared(to[lane / 16])),
                     "l"(from & ~(uintptr_t)15), "r"(bytes)
                     : "memory");
    }
}

/* A whole warp: what it asked for is there. */
static __device__ __forceinline__ void wait_units(void)
{
    asm volatile("cp.async.wait_all;" ::: "memory");
    __syncwarp();
}

template <bool I8>
static __device__ __forceinline__ uint64_t asked_unit(
    const decode_params &p, const uint64_t (&from)[2][2], const volatile item_info &it, uint32_t i)
{
    const bool second = I8 && lane_again() >= 16; /* an even number of pages further */
    const uint32_t place = (uint32_t)(uintptr_t)(p.a.plan.pages + it.page + i) / sizeof(uint64_t) % 2;
    return *(const volatile uint64_t *)&from[second][place];
}

/* Where the layer's keys of a kv head begin; NULL for page 0. */
static __device__ __forceinline__ char *head_in_page(const decode_params &p, uint64_t page, uint32_t head)
{
    return page == 0 ? NULL : (char *)(uintptr_t)(page + p.layer_offset + head * p.a.layout.head_stride);
}

/* The same of a unit: NULL in all lanes or in none. */
template <bool I8>
static __device__ __forceinline__ const char *head_in_unit(
    const decode_params &p, uint64_t unit, uint32_t head)
{
    if (I8) {
        const uint64_t other = __shfl_xor_sync(ALL_LANES, (unsigned long long)unit, 16);
        unit = unit != 0 ? unit : other;
    }
    return head_in_page(p, unit, head);
}

/* Of the unit whose first page is page @i. */
template <bool I8>
static __device__ __forceinline__ uint32_t tail_of(const volatile item_info &it, uint32_t i)
{
    if (!I8)
        return i + 1 == it.n_pages ? it.n_tail : 0;
    const uint32_t n_pages = it.n_pages, n_tail = it.n_tail;
    if (i + WARPS >= n_pages)
        return i + 1 == n_pages && n_tail > 0 ? n_tail : QK_PAGE_TOKENS + NO_NEW_KEY;
    return i + WARPS + 1 == n_pages && n_tail > 0 ? QK_PAGE_TOKENS + n_tail : 0;
}

/* ---- The new token ------------------------------------------------------------------------------------------- */

/* A lane's elements of half a head as bf16, into shared memory or a page. */
template <int D>
static __device__ __forceinline__ void put_half(void *to, uint32_t lane, const float (&x)[D / 64])
{
    if constexpr (D == 128)
        ((__nv_bfloat162 *)to)[lane] = __floats2bfloat162_rn(x[0], x[1]);
    else
        ((qkc_bf16 *)to)[lane] = __float2bfloat16_rn(x[0]);
}

/* A lane's elements of half a query head, @half being its first dimension. */
template <int D, bool I8>
static __device__ void put_query(
    uint32_t *to, uint32_t half, uint32_t lane, const float (&x)[D / 64], float q_scale)
{
    if constexpr (D == 128 && !I8) {
        uint2 both;
        split_bf16(x[0] * q_scale, x[1] * q_scale, &both.x, &both.y);
        *(uint2 *)(to + half + 2 * lane) = both;
    } else {
#pragma unroll
        for (int e = 0; e < D / 64; e++) {
            const float value = x[e] * q_scale;
            const qkc_bf16 high = __float2bfloat16_rn(value);
            char *at = (char *)to + q_offset<I8>(half + lane * (D / 64) + e);
            *(qkc_bf16 *)at = high;
            *(qkc_bf16 *)(at + 4) = __float2bfloat16_rn(value - __bfloat162float(high));
        }
    }
}

/* The new key or value into its page and into shared memory. @to: where the kv head's keys or values begin. */
template <int D>
static __device__ __forceinline__ void put_new_bf16(const decode_params &p, block_memory<D> &s, char *to,
    uint32_t token, bool is_v, uint32_t lane, const float (&x)[D / 64], const float (&y)[D / 64])
{
    to += (size_t)token * p.a.layout.token_stride;
    put_half<D>(s.new_kv[is_v], lane, x);
    put_half<D>(s.new_kv[is_v] + D, lane, y);
    put_half<D>(to, lane, x);
    put_half<D>(to + D, lane, y);
}

/* A lane's elements of half a head as int8 numbers. */
template <int D>
static __device__ __forceinline__ void put_half_int8(
    char *page, char *shared, uint32_t lane, const float (&x)[D / 64], float scale)
{
    const uint32_t q = qkc_i8_value(x[0], scale);
    if constexpr (D == 128) {
        const uint16_t both = (uint16_t)(q | qkc_i8_value(x[1], scale) << 8);
        ((uint16_t *)page)[lane] = both;
        ((uint16_t *)shared)[lane] = both;
    } else {
        page[lane] = (char)q;
        shared[lane] = (char)q;
    }
}

template <int D>
static __device__ __forceinline__ void put_new_int8(const decode_params &p, block_memory<D> &s, char *to,
    uint32_t token, bool is_v, uint32_t lane, const float (&x)[D / 64], const float (&y)[D / 64])
{
    uint32_t size = 0;
#pragma unroll
    for (int e = 0; e < D / 64; e++)
        size = max(size, max(qkc_i8_size(x[e]), qkc_i8_size(y[e])));
    const uint16_t bits = qkc_i8_scale(__reduce_max_sync(ALL_LANES, size));
    const float scale = qkc_i8_float(bits);
    if (lane == 0) {
        s.new_scale[is_v] = bits;
        *(uint16_t *)(to + p.a.layout.scale_offset + token * sizeof(uint16_t)) = bits;
    }
    to += (size_t)token * p.a.layout.token_stride;
    put_half_int8<D>(to, s.new_kv[is_v], lane, x, scale);
    put_half_int8<D>(to + D / 2, s.new_kv[is_v] + D / 2, lane, y, scale);
}

/* All warps: the query heads of the item's sequence into shared memory and, when the block has the new token, the new key and
 * value into shared memory and their page. */
template <int D, bool I8>
static __device__ void ready_heads(const decode_params &p, block_memory<D> &s, const item_info &it)
{
    const uint32_t lane = threadIdx.x % QKC_WARP, warp = threadIdx.x / QKC_WARP;
    const uint32_t q_dim = p.a.n_heads * D, kv_dim = p.a.n_kv_heads * D;
    const float *row = p.a.qkv + (size_t)it.seq * (q_dim + 2 * kv_dim);
    const float *cos_sin = p.a.plan.cos_sin + (size_t)it.seq * D;
    const uint32_t n = p.n_q + (it.new_page != NO_PAGE ? 2 : 0);
    for (uint32_t u = warp; u < n; u += WARPS) {
        float x[D / 64], y[D / 64];
        if (u < p.n_q) {
            get_head<D>(x, y, row + (it.head * p.n_q + u) * D, p.a.q_norm, cos_sin, p.a.eps, lane);
            put_query<D, I8>(s.q[u], 0, lane, x, p.q_scale);
            put_query<D, I8>(s.q[u], D / 2, lane, y, p.q_scale);
            continue;
        }
        const bool is_v = u > p.n_q;
        const uint64_t page = __ldcg((const unsigned long long *)p.a.plan.pages + it.new_page);
        char *to = head_in_page(p, page, it.head);
        to += is_v ? p.a.layout.v_offset : 0;
        get_head<D>(x, y, row + q_dim + (is_v ? kv_dim : 0) + it.head * D, is_v ? NULL : p.a.k_norm, cos_sin,
            p.a.eps, lane);
        if (I8)
            put_new_int8<D>(p, s, to, it.new_row, is_v, lane, x, y);
        else
            put_new_bf16<D>(p, s, to, it.new_row, is_v, lane, x, y);
    }
}

/* ---- An item ------------------------------------------------------------------------------------------------- */

/* The start of attend_pages(). */
template <int D> static __device__ __forceinline__ void clear_result(warp_result<D> &w)
{
#pragma unroll
    for (int tile = 0; tile < D / 16; tile++)
#pragma unroll
        for (int i = 0; i < 4; i++)
            w.o[tile][i] = 0;
    w.max = -INFINITY;
    w.sum = 0;
}

/* One warp's pages of @it. Its first unit is in @r or on its way and s.ahead says where its second is; on return the
 * former holds for its first unit of @next, which is where s.next says. Of pages outside nothing is asked for. */
template <int D, bool OUTSIDE>
static __device__ __forceinline__ void attend_pages(const decode_params &p, block_memory<D> &s,
    const volatile item_info &it, const volatile item_info &next, unit_registers<D, false> &r,
    warp_result<D> &w)
{
    const uint32_t warp = threadIdx.x / QKC_WARP;
    bool here = !OUTSIDE || page_address(p, it, warp) != 0; /* the page whose turn it is */
    clear_result(w);

    /* Without a page here the loop below does not ask for one of the next item's. */
    if (warp >= it.n_pages) {
        wait_units();
        const uint64_t address = asked_unit<false>(p, s.next[warp], next, warp);
        if (address != 0)
            load_unit(p, r, head_in_page(p, address, next.head));
    }
#pragma unroll 1
    for (uint32_t i = warp; i < it.n_pages; i += WARPS) {
        const bool inside = i + WARPS < it.n_pages;
        const uint32_t tail = tail_of<false>(it, i);
        float weight[4];
        if (tail > 0)
            patch_keys(s, r, tail);
        __syncwarp(); /* here and below: also keeps the compiler from asking for a page before there is room */
        if (here)
            score(s, r, weight);
        wait_units();
        const uint64_t address = inside ? asked_unit<false>(p, s.ahead[warp], it, i + WARPS)
                                        : asked_unit<false>(p, s.next[warp], next, warp);
        const char *page = head_in_page(p, address, inside ? it.head : next.head);
        if (page != NULL)
            load_keys(p, r, page);
        if (tail > 0)
            mask_scores(weight, tail);
        if (here)
            join(w, weight);
        if (tail > 0)
            patch_values(s, r, tail);
        __syncwarp();
        if (here)
            add_values(w, r, weight);
        __syncwarp();
        if (page != NULL)
            load_values(p, r, page);
        here = !OUTSIDE || page != NULL;
        if (i + 2 * WARPS < it.n_pages)
            ask_unit<false>(p, s.ahead[warp], it, i + 2 * WARPS);
    }
}

/* The same with int8 pages. Three quarters of a unit are on their way or wait for their turn; where one was multiplied,
 * the third after it is asked for. */
template <int D, bool OUTSIDE>
static __device__ __forceinline__ void attend_pages(const decode_params &p, block_memory<D> &s,
    const volatile item_info &it, const volatile item_info &next, unit_registers<D, true> &r,
    warp_result<D> &w)
{
    constexpr uint32_t STEP = 2 * WARPS;
    const uint32_t warp = threadIdx.x / QKC_WARP;
    const char *unit = head_in_unit<true>(p, unit_address<true>(p, it, warp), it.head);
    clear_result(w);

    if (warp >= it.n_pages) {
        wait_units();
        const uint64_t address = asked_unit<true>(p, s.next[warp], next, warp);
        const char *first = head_in_unit<true>(p, address, next.head);
        if (first != NULL)
            load_unit(p, r, first);
    }
#pragma unroll 1
    for (uint32_t i = warp; i < it.n_pages; i += STEP) {
        const bool inside = i + STEP < it.n_pages, here = !OUTSIDE || unit != NULL;
        const uint32_t tail = tail_of<true>(it, i);
        float weight[8];
        if (tail > 0)
            patch_keys(s, r, tail);
        __syncwarp();
        if (here) {
            score(s, r, weight, 0);
            __syncwarp();
            load_values(p, r, unit, 1);
            score(s, r, weight, 1);
        }
        wait_units();
        const uint64_t address = inside ? asked_unit<true>(p, s.ahead[warp], it, i + STEP)
                                        : asked_unit<true>(p, s.next[warp], next, warp);
        unit = head_in_unit<true>(p, address, inside ? it.head : next.head);
        if (unit != NULL)
            load_keys(p, r, unit, 0);
        if (here) {
            if (tail > 0)
                mask_scores(weight, tail);
            join(w, weight);
            if (tail > 0)
                patch_values(s, r, tail);
            __syncwarp();
            add_values(w, r, weight, 0);
        }
        __syncwarp();
        if (unit != NULL)
            load_keys(p, r, unit, 1);
        if (here)
            add_values(w, r, weight, 1);
        __syncwarp();
        if (unit != NULL)
            load_values(p, r, unit, 0);
        if (i + 2 * STEP < it.n_pages)
            ask_unit<true>(p, s.ahead[warp], it, i + 2 * STEP);
    }
}

/* One warp's result into shared memory. */
template <int D, bool I8>
static __device__ __forceinline__ void put_result(block_memory<D> &s, warp_result<D> &w, uint32_t n_q)
{
    const uint32_t lane = threadIdx.x % QKC_WARP, warp = threadIdx.x / QKC_WARP, g = lane / 4, t = lane % 4;
    w.sum += __shfl_xor_sync(ALL_LANES, w.sum, 1);
    w.sum += __shfl_xor_sync(ALL_LANES, w.sum, 2);
    if (t == 0 && g < n_q) {
        s.max[warp][g] = w.max;
        s.sum[warp][g] = w.sum;
    }
#pragma unroll
    for (int i = 0; i < 2; i++) {
        const uint32_t head = 2 * t + i;
        if (head >= n_q)
            continue;
#pragma unroll
        for (int tile = 0; tile < D / 16; tile += 2) {
            const uint32_t d = I8 ? D / 8 * g + 2 * tile : tile / 4 * 64 + 8 * g + tile % 4 * 2;
            *(float4 *)(s.out[warp][head] + d) =
                make_float4(w.o[tile][i], w.o[tile][i + 2], w.o[tile + 1][i], w.o[tile + 1][i + 2]);
        }
    }
}

/* Four numbers of the output, from number @at on. */
static __device__ __forceinline__ void put_output(const decode_params &p, size_t at, float4 o)
{
    if (p.a.out_bf16 == NULL) {
        __stcg((float4 *)(p.a.out + at), o);
        return;
    }
    const uint2 both = make_uint2(pack_bf16(o.x, o.y), pack_bf16(o.z, o.w));
    __stcg((uint2 *)(p.a.out_bf16 + at), both);
}

/* All warps: the warps' results become the item's: the row's output when the sequence has one piece, else a part in the
 * workspace. */
template <int D, bool OUTSIDE>
static __device__ __forceinline__ void merge_warps(
    const decode_params &p, const block_memory<D> &s, const item_info &it)
{
    const uint32_t n_warps = min(it.n_pages, WARPS), n_heads = p.a.n_heads;
    float *parts = p.parts + it.seq * p.seq_floats;
    float *lse = parts + (size_t)QKC_ITEMS_A_SEQ * n_heads * D;
    for (uint32_t i = threadIdx.x; i < p.n_q * (D / 4); i += THREADS) {
        const uint32_t head = i / (D / 4), d = i % (D / 4) * 4, out_head = it.head * p.n_q + head;
        float max = s.max[0][head], sum = 0;
        for (uint32_t w = 1; w < n_warps; w++)
            max = fmaxf(max, s.max[w][head]);
        if (OUTSIDE && max == -INFINITY) /* no key at all: zeros of weight 0 */
            max = 0;
        float4 o = make_float4(0, 0, 0, 0);
#pragma unroll
        for (uint32_t w = 0; w < WARPS; w++) {
            if (w >= n_warps)
                break;
            const float scale = exp2_approx(s.max[w][head] - max);
            const float4 x = *(const float4 *)(s.out[w][head] + d);
            sum += s.sum[w][head] * scale;
            o.x += x.x * scale;
            o.y += x.y * scale;
            o.z += x.z * scale;
            o.w += x.w * scale;
        }
        const float inv = OUTSIDE && sum == 0 ? 0 : 1.0f / sum;
        o = make_float4(o.x * inv, o.y * inv, o.z * inv, o.w * inv);
        if (it.n_pieces == 1)
            put_output(p, ((size_t)it.seq * n_heads + out_head) * D + d, o);
        else
            __stcg((float4 *)(parts + ((size_t)it.piece * n_heads + out_head) * D + d), o);
        if (d == 0 && it.n_pieces > 1)
            __stcg(lse + out_head * QKC_ITEMS_A_SEQ + it.piece, max + log2f(sum));
        if (OUTSIDE && d == 0 && it.n_pieces == 1)
            p.a.lse[it.seq * n_heads + out_head] = (max + log2f(sum)) * LN_2;
    }
}

/* ---- The pieces of a sequence -------------------------------------------------------------------------------- */

/* One thread: counts the block's pieces of a sequence and kv head in. True when the others' have been. */
static __device__ __forceinline__ bool count_in(const decode_params &p, const item_info &it)
{
    uint32_t *counter = p.counters + it.seq * p.a.n_kv_heads + it.head;
    if (atomicAdd(counter, it.n_mine) + it.n_mine < it.n_pieces)
        return false;
    *counter = 0;
    return true;
}

/* All warps, in the block that came last or has all: the parts of the sequence, in position order. Each group of threads sums a
 * run of neighbouring parts; the groups' sums are added in order. */
template <int D, bool OUTSIDE>
static __device__ __forceinline__ void merge_parts(
    const decode_params &p, block_memory<D> &s, const item_info &it)
{
    const uint32_t lane = threadIdx.x % QKC_WARP, warp = threadIdx.x / QKC_WARP, n = it.n_pieces;
    const uint32_t n_heads = p.a.n_heads, first_head = it.head * p.n_q;
    const float *parts = p.parts + it.seq * p.seq_floats + (size_t)first_head * D;
    const float *lse = p.parts + it.seq * p.seq_floats +
                       ((size_t)QKC_ITEMS_A_SEQ * D * n_heads + first_head * QKC_ITEMS_A_SEQ);
    if (warp < p.n_q) {
        const float a = lane < n ? __ldcg(lse + warp * QKC_ITEMS_A_SEQ + lane) : -INFINITY;
        const float b = lane + 32 < n ? __ldcg(lse + warp * QKC_ITEMS_A_SEQ + lane + 32) : -INFINITY;
        float max = fmaxf(a, b);
#pragma unroll
        for (int d = 16; d > 0; d /= 2)
            max = fmaxf(max, __shfl_xor_sync(ALL_LANES, max, d));
        const float ea = exp2_approx(a - max), eb = exp2_approx(b - max);
        float sum = ea + eb;
#pragma unroll
        for (int d = 16; d > 0; d /= 2)
            sum += __shfl_xor_sync(ALL_LANES, sum, d);
        s.weight[warp][lane] = ea / sum;
        s.weight[warp][lane + 32] = eb / sum;
        if (OUTSIDE && lane == 0)
            p.a.lse[it.seq * n_heads + first_head + warp] = (max + log2f(sum)) * LN_2;
    }
    __syncthreads();

    const uint32_t n_columns = p.n_q * (D / 4), n_groups = min(THREADS / n_columns, WARPS);
    const uint32_t a_group = (n + n_groups - 1) / n_groups, group = threadIdx.x / n_columns;
    const uint32_t column = threadIdx.x % n_columns, head = column / (D / 4);
    float4 *sums = (float4 *)s.out; /* [n_groups, n_columns] */
    if (group < n_groups) {
        const uint32_t begin = min(group * a_group, n), end = min(begin + a_group, n);
        float4 o = make_float4(0, 0, 0, 0);
#pragma unroll 8
        for (uint32_t i = begin; i < end; i++) {
            const float4 x = __ldcg((const float4 *)(parts + (size_t)i * n_heads * D) + column);
            const float scale = s.weight[head][i];
            o.x += x.x * scale;
            o.y += x.y * scale;
            o.z += x.z * scale;
            o.w += x.w * scale;
        }
        sums[group * n_columns + column] = o;
    }
    __syncthreads();
    if (threadIdx.x < n_columns) {
        float4 o = sums[column];
        for (uint32_t i = 1; i < n_groups; i++) {
            const float4 x = sums[i * n_columns + column];
            o.x += x.x;
            o.y += x.y;
            o.z += x.z;
            o.w += x.w;
        }
        put_output(p, ((size_t)it.seq * n_heads + first_head) * D + column * 4, o);
    }
}

/* All warps, after merge_warps() of the block's last piece of a sequence and kv head of several pieces. */
template <int D, bool OUTSIDE>
static __device__ __forceinline__ void finish_pieces(
    const decode_params &p, block_memory<D> &s, const item_info &it)
{
    const bool has_all = it.n_mine == it.n_pieces;
    if (!has_all)
        __threadfence();
    __syncthreads();
    if (!has_all) {
        if (threadIdx.x == 0)
            s.is_last = count_in(p, it);
        __syncthreads();
        if (!s.is_last)
            return;
        __threadfence();
    }
    merge_parts<D, OUTSIDE>(p, s, it);
}

/* ---- The kernel ---------------------------------------------------------------------------------------------- */

/* What of the first item is neither keys nor values and may have left the L2 cache since the last layer. */
template <int D> static __device__ __forceinline__ void hint_item(const decode_params &p, const item_info &it)
{
    const uint32_t line = threadIdx.x % QKC_WARP * 32, warp = threadIdx.x / QKC_WARP;
    if (line >= D)
        return;
    if (warp == 0)
        prefetch_l2(p.a.plan.cos_sin + (size_t)it.seq * D + line);
    else if (warp == 1)
        prefetch_l2(p.a.q_norm + line);
    else if (warp == 2)
        prefetch_l2(p.a.k_norm + line);
}

/* One warp: counts the block's items in without their work: the step has been given up. */
template <int D> static __device__ void count_items(const decode_params &p, block_memory<D> &s)
{
    item_info *it = &s.item[0];
    for (uint32_t index = s.run; index < s.run_end; index++) {
        find_item(p, s, index, it);
        __syncwarp();
        if (threadIdx.x == 0 && it->n_left == 0 && it->n_mine < it->n_pieces)
            count_in(p, *it);
        __syncwarp();
    }
}

/* The block's items, one after the other. The first pages of the first are on their way into @r. */
template <int D, bool I8, bool OUTSIDE>
static __device__ __forceinline__ void attend_items(
    const decode_params &p, block_memory<D> &s, unit_registers<D, I8> &r, uint32_t state)
{
    constexpr uint32_t STEP = I8 ? 2 * WARPS : WARPS;
    const uint32_t warp = threadIdx.x / QKC_WARP;
#pragma unroll 1
    for (uint32_t k = 0; s.item[k % 3].n_pages > 0; k++) {
        const item_info &it = s.item[k % 3], &next = s.item[(k + 1) % 3];
        ask_unit<I8>(p, s.next[warp], next, warp);
        ask_unit<I8>(p, s.ahead[warp], it, warp + STEP);
        if (p.a.trigger && next.n_pages == 0)
            qkc_pdl_trigger();
        if (k == 0 || s.item[(k + 2) % 3].n_left == 0) /* the item before was the last of others */
            ready_heads<D, I8>(p, s, it);
        if (k == 0 && state != QK_OK) /* it may be changing: one thread's view is enough */
            s.given_up = 1;
        __syncthreads();
        if (s.given_up) {
            wait_units();
            if (warp == 0)
                count_items(p, s);
            return;
        }
        if (warp == 0) /* in the slot of item k - 1, which no warp looks at any more */
            find_item(p, s, s.run + k + 2, &s.item[(k + 2) % 3]);
        __syncwarp();
        warp_result<D> w;
        attend_pages<D, OUTSIDE>(p, s, it, next, r, w);
        if (warp < it.n_pages)
            put_result<D, I8>(s, w, p.n_q);
        __syncthreads();
        merge_warps<D, OUTSIDE>(p, s, it);
        if (it.n_pieces > 1 && it.n_left == 0)
            finish_pieces<D, OUTSIDE>(p, s, it);
    }
}

template <int D, bool I8, bool OUTSIDE>
__global__ void __launch_bounds__(THREADS, BLOCKS_A_SM) attend_decode(const __grid_constant__ decode_params p)
{
    __shared__ block_memory<D> s;
    const uint32_t warp = threadIdx.x / QKC_WARP;
    /* Over the bus: while the kernel before still runs, and in the block that is the last to get work. */
    const bool cancelled =
        p.a.cancel != NULL && blockIdx.x + 1 == gridDim.x && threadIdx.x == 0 && *p.a.cancel != 0;

    /* Rows of heads that do not exist stay zero. */
    for (uint32_t i = threadIdx.x; i < sizeof(s.q) / sizeof(uint4); i += THREADS)
        ((uint4 *)s.q)[i] = make_uint4(0, 0, 0, 0);
    if (!p.early)
        qkc_pdl_wait();
    if (threadIdx.x == 0)
        s.given_up = 0;
    if (warp == 0) {
        if (threadIdx.x == 0)
            s.skip = 0;
        __syncwarp();
        list_pieces(p, s);
        __syncwarp();
        find_item(p, s, s.run, &s.item[0]);
        find_item(p, s, s.run + 1, &s.item[1]);
    }
    __syncthreads();

    unit_registers<D, I8> r;
    const uint64_t first = unit_address<I8>(p, s.item[0], warp);
    const char *unit = head_in_unit<I8>(p, first, s.item[0].head);
    if (unit != NULL) {
        hint_item<D>(p, s.item[0]);
        load_unit(p, r, unit);
    }
    /* No trigger but where the caller says so: the next kernel's blocks would be placed while this one's fill some SMs, two
     * and more to an SM, and its work then runs on a part of them (with products on CUDA cores an H200 took 4.0 instead of
     * 3.2 ms a token at 8K keys). */
    if (p.early)
        qkc_pdl_wait();
    if (cancelled)
        atomicCAS(p.a.plan.state, (uint32_t)QK_OK, (uint32_t)QK_CANCELLED);
    if (s.item[0].n_pages == 0)
        return;
    attend_items<D, I8, OUTSIDE>(p, s, r, __ldcg(p.a.plan.state));
}

/* ---- Host ---------------------------------------------------------------------------------------------------- */

static size_t seq_floats(uint32_t n_heads, uint32_t head_dim)
{
    return (size_t)QKC_ITEMS_A_SEQ * n_heads * (head_dim + 1);
}

size_t qkc_attend_decode_bytes(uint32_t seqs_max, uint32_t n_heads, uint32_t n_kv_heads, uint32_t head_dim)
{
    const uint32_t n_seqs = seqs_max < QKC_SMALL_ROWS ? seqs_max : QKC_SMALL_ROWS;
    return COUNTERS_BYTES(n_kv_heads) + n_seqs * seq_floats(n_heads, head_dim) * sizeof(float);
}

typedef void (*decode_kernel)(const decode_params);

/* NULL when there is none. */
static decode_kernel kernel_of(uint32_t head_dim, bool is_int8, bool outside)
{
    static const decode_kernel kernels[2][2][2] = {
        {{attend_decode<64, false, false>, attend_decode<64, false, true>},
            {attend_decode<64, true, false>, attend_decode<64, true, true>}},
        {{attend_decode<128, false, false>, attend_decode<128, false, true>},
            {attend_decode<128, true, false>, attend_decode<128, true, true>}},
    };
    return head_dim == 64 || head_dim == 128 ? kernels[head_dim == 128][is_int8][outside] : NULL;
}

/* Static shared memory alone. Loads the forms that no context tries before its first step. */
cudaError_t qkc_attend_decode_init(void)
{
    cudaFuncAttributes attributes;
    cudaError_t code = cudaSuccess;
    for (uint32_t i = 0; i < 4 && code == cudaSuccess; i++)
        code = cudaFuncGetAttributes(&attributes, kernel_of(i < 2 ? 64 : 128, i % 2 != 0, true));
    return code;
}

/* Loads are of 16 bytes, and of 4 where scales are. */
static bool layout_suits(const qk_kv_layout *l)
{
    const uint64_t strides = l->token_stride | l->v_offset | l->head_stride | l->layer_stride;
    return strides % 16 == 0 && (l->dtype == QK_BF16 || (l->dtype == QK_I8 && l->scale_offset % 4 == 0));
}

uint32_t qkc_attend_decode_piece_keys(uint32_t n_keys)
{
    return piece_keys(n_keys);
}

cudaError_t qkc_attend_decode(const qkc_launch *launch, const qkc_attend_decode_args *args)
{
    const uint32_t n_kv_heads = args->n_kv_heads, n_q = n_kv_heads > 0 ? args->n_heads / n_kv_heads : 0;
    const decode_kernel kernel = kernel_of(args->head_dim, args->layout.dtype == QK_I8, args->lse != NULL);
    if (n_q < 1 || n_q > HEADS || n_q * n_kv_heads != args->n_heads || !layout_suits(&args->layout) ||
        args->rows_max < 1 || args->rows_max > QKC_SMALL_ROWS || kernel == NULL)
        return cudaErrorInvalidValue;
    decode_params p = {};
    p.a = *args;
    p.layer_offset = args->layer * args->layout.layer_stride;
    p.n_q = n_q;
    p.counters = (uint32_t *)args->workspace;
    p.parts = (float *)((char *)args->workspace + COUNTERS_BYTES(n_kv_heads));
    p.seq_floats = seq_floats(args->n_heads, args->head_dim);
    p.q_scale = (float)(LOG2_E / sqrt((double)args->head_dim));
    p.early = launch->pdl && args->layer > 0 && args->lists_stride == 0; /* lists are of this layer */

    const uint32_t n_items_max = args->rows_max * n_kv_heads * QKC_ITEMS_A_SEQ;
    const uint32_t n_resident = BLOCKS_A_SM * (uint32_t)launch->n_sms;
    const dim3 grid(n_items_max < n_resident ? n_items_max : n_resident);
    return qkc_start(launch, kernel, grid, dim3(THREADS), 0, p);
}
