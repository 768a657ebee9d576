/* attn-prefill-hopper.cu: attention of prompt rows with wgmma, built for sm_90a alone, head_dim 128.
 *
 * One thread block does one tile for one kv head: up to 128 packed query rows (packed row r is token r / n_q and
 * head r % n_q of the kv head's n_q query heads) over the tile's keys, in blocks of 128 keys, from the last block
 * to the first, so that what needs the causal mask comes first. Three warpgroups:
 *   0     copies: K and V blocks from the pages into rings of N_STAGES slots. Pages lie anywhere, so each thread
 *         copies 16 bytes at a time (cp.async) to where wgmma's 128-byte swizzle wants them.
 *         Blocks of int8 pages are copied as they are to rings of their own, and from there written to the slots as bf16;
 *         warpgroup 0 does that for K, a fourth one for V.
 *   1, 2  64 packed rows each: S = Q K^T from shared memory into registers, online softmax there, O += P V with P
 *         from registers as the A operand.
 * The products of block i overlap the softmax in two ways. Within a warpgroup, S(i) and O += P(i-1) V(i-1) are in
 * flight together and S(i)'s softmax runs while the second one still does. Between the two, named barriers make
 * one issue its products while the other is in its softmax. (The schedule of FlashAttention-3, Shah et al. 2024,
 * section 3.)
 *
 * Invariants
 *  1. Items are copied in the order K0 K1 V0 K2 V1 .. K(n-1) V(n-2) V(n-1), n blocks numbered as they are
 *     processed. K(i) and V(i) have slot i % N_STAGES of their rings.
 *  2. full[slot] counts 128: each copying thread, once its own bytes of the item have landed (cp.async.wait_group)
 *     and after its fence.proxy.async, since cp.async writes by the generic proxy and wgmma reads by the async
 *     proxy. A thread arrives for an item after it has issued the next item, so one item is always on its way.
 *     empty[slot] counts 8: each computing warp, after wgmma.wait_group has shown its products of that slot done.
 *     Use u of a slot waits for parity u & 1 of full, and before it is filled for parity (u & 1) ^ 1 of empty
 *     (which a fresh barrier passes for u = 0).
 *  3. No deadlock. The computing warps free K(i) in step i, having waited for K(0..i) and V(0..i-1), and V(i) in
 *     step i + 1, having waited for K(0..i+1) and V(0..i+1). The copying threads block only on an empty slot, and
 *     then all items but the newest (the pending one) have been arrived for. With N = N_STAGES >= 3:
 *       K(i), V(i-2) pending, needs K(i-N) free: K up to i-N, V up to i-N-1 < i-2.
 *       V(i), K(i+1) pending, needs V(i-N) free: K up to i-N+1 < i+1, V up to i-N+1 <= i-2.
 *       V(n-1), V(n-2) pending, needs V(n-1-N) free: K up to n-N, V up to n-N <= n-3.
 *     So what a copying thread waits for never waits for the pending item.
 *     A tile of at most 64 packed rows has one computing warpgroup, which arrives twice for what both arrive for once.
 *     Both computing warpgroups run the same number of steps, n - 1. turn[1] gets n - 1 arrivals (warpgroup 1's, one
 *     a step) and n - 1 waits; turn[0] gets 1 + (n - 1) arrivals (warpgroup 1's own first one, then warpgroup 2's)
 *     and n - 1 waits in the steps and one after them. A wait for a turn depends on the other's previous step only.
 *  4. Keys at key_end and beyond are never read: their places are zero-filled, and masked. So what lies in memory
 *     there cannot reach the result (0 * NaN). A row that sees no key of the tile gets zeros and lse -inf.
 *  5. Nothing depends on the grid: same tiles, same bits. A launch over a range of the keys begins with the registers that
 *     the one before it ended with, and the arithmetic of a block does not depend on where it stands in the code: which
 *     products are contracted is written out. So a tile may be interrupted between any two blocks.
 *
 * Layout in shared memory: Q, a K slot and a V slot are each [2 halves of 64 dims][128 rows][128 bytes], the
 * 16-byte piece c of row r at place c ^ (r & 7): 8 rows are one swizzle atom of 1,024 bytes. As K-major operands
 * (Q and K) groups of 8 rows are 1,024 bytes apart and 16 dims are 32 bytes within the atom. As MN-major operand
 * (V: n is the dim, k the key) groups of 8 keys are 1,024 bytes apart (stride offset), groups of 64 dims 16,384
 * (leading offset).
 *
 * Cost: 4 * head_dim FLOP a query head, row and key: 8.8 TFLOP a layer for the 32K prompt of the reference shape
 * (causal: half of 32,768^2 pairs, 32 heads), 11.1 ms at 790 TFLOP/s; 317 TFLOP and 401 ms over 36 layers. For
 * every block of 128 keys 64 KB come from L2: at 600 TFLOP/s that is 4.7 TB/s over the chip, which is why a block
 * has 128 rows and not 64, and why the grid walks one kv head's tiles before the next (16 MB of keys and values,
 * which L2 keeps). Of int8 pages half as much comes from L2, and the copying warps spend about 5 instructions for each of a
 * block's numbers: 1,280 for every scheduler, of the 2,048 cycles that its products take at the peak. */
#include "kernels/cuda/cuda-ops.h"
#include "kernels/cuda/kv-int8.h"
#include "kernels/cuda/ptx.h"

#define HEAD_DIM   128u
#define TILE_ROWS  128u /* packed rows of a block */
#define BLOCK_KEYS 128u
#define GROUP      128u /* threads of a warpgroup */

#define HALF_BYTES (128u * 128u)     /* 128 rows of 64 dims */
#define ITEM_BYTES (2u * HALF_BYTES) /* Q, a block of K, a block of V */

/* Where things lie for bf16 and for int8 pages. */
#define N_STAGED     4u                             /* int8 blocks on their way: two of K, two of V */
#define STAGED_BYTES (BLOCK_KEYS * (HEAD_DIM + 2u)) /* the block's numbers, then its scales */
template <bool I8> struct place {
    static constexpr uint32_t N_THREADS = (I8 ? 4 : 3) * GROUP;
    static constexpr uint32_t N_STAGES = I8 ? 2 : 3;
    static constexpr uint32_t Q = 0, K = ITEM_BYTES, V = K + N_STAGES * ITEM_BYTES;
    static constexpr uint32_t STAGED = V + N_STAGES * ITEM_BYTES;
    static constexpr uint32_t BARRIERS = STAGED + (I8 ? N_STAGED * STAGED_BYTES : 0);
    static constexpr uint32_t BYTES = BARRIERS + 4 * N_STAGES * 8 + 1024; /* the last: to align the start */
};

static_assert(place<false>::N_STAGES >= 3 && place<true>::N_STAGES >= 2, "see invariant 3");
static_assert(place<true>::BYTES <= 227u << 10 && place<false>::BYTES <= 227u << 10, "");

/* Registers: 40 * 128 + 232 * 256 = 168 * 384, what the launch gives; of int8 pages 32 * 256 + 224 * 256 = 128 * 512. */
#define COPY_REGISTERS(I8)    ((I8) ? 32 : 40)
#define COMPUTE_REGISTERS(I8) ((I8) ? 224 : 232)

/* Named barriers; 0 is __syncthreads(). */
#define BARRIER_Q    1u /* + 0, 1: a computing warpgroup's Q is in place */
#define BARRIER_TURN 3u /* + 0, 1: that warpgroup may issue its products */
#define BARRIER_COPY 5u /* + 0, 1: of the threads that copy int8 keys, values: a block is there */

#define SCALE      0.08838834764831845f /* 1 / sqrt(HEAD_DIM) */
#define SCALE_LOG2 0.12751743082459868f /* that times log2(e) */

/* ---- Single instructions ------------------------------------------------------------------------------------- */

static __device__ __forceinline__ void barrier_arrive(uint32_t barrier, uint32_t n)
{
    asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0], %1;" ::"r"(barrier), "r"(n) : "memory");
}

/* The named barrier completes when @n threads have arrived or wait. */
static __device__ __forceinline__ void named_sync(uint32_t id, uint32_t n)
{
    asm volatile("bar.sync %0, %1;" ::"r"(id), "r"(n) : "memory");
}

static __device__ __forceinline__ void named_arrive(uint32_t id, uint32_t n)
{
    asm volatile("bar.arrive %0, %1;" ::"r"(id), "r"(n) : "memory");
}

/* Shared memory written before is seen by wgmma after. */
static __device__ __forceinline__ void fence_async(void)
{
    asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
}

/* ---- wgmma --------------------------------------------------------------------------------------------------- */

/* Keeps uses of registers on their side of the asynchronous products, which the compiler does not see. */
template <int N> static __device__ __forceinline__ void pin(float (&r)[N])
{
#pragma unroll
    for (int i = 0; i < N; i++)
        asm volatile("" : "+f"(r[i])::"memory");
}

template <int N> static __device__ __forceinline__ void pin(uint32_t (&r)[N])
{
#pragma unroll
    for (int i = 0; i < N; i++)
        asm volatile("" : "+r"(r[i])::"memory");
}

#define D4(x, d, i)  x((d)[i]), x((d)[i + 1]), x((d)[i + 2]), x((d)[i + 3])
#define D16(x, d, i) D4(x, d, i), D4(x, d, i + 4), D4(x, d, i + 8), D4(x, d, i + 12)
#define D64(x, d)    D16(x, d, 0), D16(x, d, 16), D16(x, d, 32), D16(x, d, 48)
#define D64_TEXT                                                                                             \
    "{%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, "                                \
    "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31, "                       \
    "%32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47, "                       \
    "%48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63}"
#define WGMMA "wgmma.mma_async.sync.aligned.m64n128k16.f32.bf16.bf16 "

/* d = a b^T (or += with ADD): a [64, 16] and b [128, 16] in shared memory, K-major. Element i of thread t's d is row
 * 16 * (t / 32) + t % 32 / 4 + 8 * (i / 2 % 2), column 8 * (i / 4) + 2 * (t % 4) + i % 2. */
template <bool ADD>
static __device__ __forceinline__ void wgmma_shared(float (&d)[64], uint64_t a, uint64_t b)
{
#define OUT(r) "+f"(r)
    asm volatile("{\n"
                 ".reg .pred p;\n"
                 "setp.ne.b32 p, %66, 0;\n" WGMMA D64_TEXT ", %64, %65, p, 1, 1, 0, 0;\n"
                 "}\n"
                 : D64(OUT, d)
                 : "l"(a), "l"(b), "n"(ADD ? 1 : 0));
#undef OUT
}

/* d += a b: a [64, 16] in registers (pairs of neighbouring columns, placed as in d), b [16, 128] in shared memory,
 * MN-major. */
static __device__ __forceinline__ void wgmma_registers(float (&d)[64], const uint32_t *a, uint64_t b)
{
#define OUT(r) "+f"(r)
    asm volatile("{\n"
                 ".reg .pred p;\n"
                 "setp.ne.b32 p, 1, 0;\n" WGMMA D64_TEXT ", {%64, %65, %66, %67}, %68, p, 1, 1, 1;\n"
                 "}\n"
                 : D64(OUT, d)
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b));
#undef OUT
}

/* ---- The copying warpgroup ----------------------------------------------------------------------------------- */

/* A position in a ring: use number phase + 2 * anything of the slot. */
typedef struct {
    uint32_t slot, phase;
} cursor;

template <uint32_t N> static __device__ __forceinline__ cursor next(cursor c)
{
    c.slot++;
    if (c.slot == N) {
        c.slot = 0;
        c.phase ^= 1;
    }
    return c;
}

typedef struct {
    uint32_t full_k, empty_k, full_v, empty_v; /* [N_STAGES] barriers each */
    uint32_t q, k, v, staged;
} shared_map;

template <bool I8> static __device__ __forceinline__ shared_map map_shared(uint32_t base)
{
    using p = place<I8>;
    shared_map m;
    m.q = base + p::Q;
    m.k = base + p::K;
    m.v = base + p::V;
    m.staged = base + p::STAGED;
    m.full_k = base + p::BARRIERS;
    m.empty_k = m.full_k + p::N_STAGES * 8;
    m.full_v = m.empty_k + p::N_STAGES * 8;
    m.empty_v = m.full_v + p::N_STAGES * 8;
    return m;
}

/* One block's keys or values. Lane l holds the address of page l % 8 of the block. In each of 16 passes the threads
 * copy 8 rows of 256 bytes; the first @n_valid rows of the block exist. */
static __device__ __forceinline__ void copy_item(
    uint32_t slot, uint64_t page, int n_valid, uint32_t thread, uint32_t token_stride)
{
    const uint32_t row = thread / 16, piece = thread % 16;
    const uint32_t to = slot + piece / 8 * HALF_BYTES + row * 128 + ((piece % 8 ^ row) << 4);
    const uint32_t from = row * token_stride + piece * 16;
    uint64_t base = 0;
#pragma unroll
    for (uint32_t i = 0; i < BLOCK_KEYS / 8; i++) {
        if (i % 2 == 0)
            base = __shfl_sync(0xffffffffu, page, i / 2) + from;
        copy_16(to + i * 1024, base + i % 2 * 8 * token_stride, (int)(row + 8 * i) < n_valid);
    }
    copy_commit();
}

/* All but the newest @LEFT groups of this thread's copies have landed: says so. */
template <int LEFT> static __device__ __forceinline__ void finish_item(uint32_t full)
{
    copy_wait<LEFT>();
    fence_async();
    barrier_arrive(full);
}

static __device__ void copy_blocks(const qkc_attend_prefill_args &a, const qkc_tile &tile,
    const shared_map &m, const uint64_t *pages, uint32_t kv_head, uint32_t n_blocks, uint32_t thread)
{
    const uint64_t offset = a.layer * a.layout.layer_stride + kv_head * a.layout.head_stride;
    const uint32_t lane_key = thread % 8 * QK_PAGE_TOKENS;
    uint32_t key = tile.key_begin + (n_blocks - 1) * BLOCK_KEYS; /* first of block i */
    auto page_of = [&](uint32_t first) {
        const uint32_t k = first + lane_key;
        return k < tile.key_end ? pages[k / QK_PAGE_TOKENS] + offset : (uint64_t)(uintptr_t)a.q;
    };
    uint64_t page = page_of(key), page_before = 0;
    cursor at = {0, 0}, before = {0, 0};
    uint32_t pending = 0;
    for (uint32_t i = 0; i < n_blocks; i++) {
        const uint64_t page_after = i + 1 < n_blocks ? page_of(key - BLOCK_KEYS) : 0;
        barrier_wait(m.empty_k + at.slot * 8, at.phase ^ 1);
        copy_item(m.k + at.slot * ITEM_BYTES, page, (int)(tile.key_end - key), thread, a.layout.token_stride);
        if (i > 0) {
            finish_item<1>(pending);
            pending = m.full_k + at.slot * 8;
            barrier_wait(m.empty_v + before.slot * 8, before.phase ^ 1);
            copy_item(m.v + before.slot * ITEM_BYTES, page_before + a.layout.v_offset,
                (int)(tile.key_end - (key + BLOCK_KEYS)), thread, a.layout.token_stride);
            finish_item<1>(pending);
            pending = m.full_v + before.slot * 8;
        } else {
            pending = m.full_k + at.slot * 8;
        }
        before = at;
        at = next<place<false>::N_STAGES>(at);
        page_before = page;
        page = page_after;
        key -= BLOCK_KEYS;
    }
    barrier_wait(m.empty_v + before.slot * 8, before.phase ^ 1);
    copy_item(m.v + before.slot * ITEM_BYTES, page_before + a.layout.v_offset,
        (int)(tile.key_end - tile.key_begin), thread, a.layout.token_stride);
    finish_item<1>(pending);
    finish_item<0>(m.full_v + before.slot * 8);
}

/* ---- The copying warpgroup over int8 pages ------------------------------------------------------------------- */

static __device__ __forceinline__ uint4 read_16(uint32_t from)
{
    uint4 x;
    asm volatile("ld.shared.v4.u32 {%0, %1, %2, %3}, [%4];"
                 : "=r"(x.x), "=r"(x.y), "=r"(x.z), "=r"(x.w)
                 : "r"(from)
                 : "memory");
    return x;
}

static __device__ __forceinline__ void write_16(uint32_t to, uint4 x)
{
    asm volatile("st.shared.v4.u32 [%0], {%1, %2, %3, %4};" ::"r"(to), "r"(x.x), "r"(x.y), "r"(x.z), "r"(x.w)
                 : "memory");
}

static __device__ __forceinline__ uint16_t read_2(uint32_t from)
{
    uint16_t x;
    asm volatile("ld.shared.u16 %0, [%1];" : "=h"(x) : "r"(from) : "memory");
    return x;
}

/* One block's keys or values as they lie in the pages: the 16-byte piece c of row r at place c ^ (r & 7), the scales
 * behind them. Lane l holds the address of page l % 8 of the block. */
static __device__ __forceinline__ void stage_item(
    uint32_t to, uint64_t page, int n_valid, uint32_t thread, const qk_kv_layout &layout)
{
    const uint32_t row = thread / 8, piece = thread % 8;
    const uint32_t at = to + row * HEAD_DIM + ((piece ^ row % 8) << 4);
    const uint32_t from = row * layout.token_stride + piece * 16;
#pragma unroll
    for (uint32_t i = 0; i < BLOCK_KEYS / QK_PAGE_TOKENS; i++)
        copy_16(at + i * QK_PAGE_TOKENS * HEAD_DIM, __shfl_sync(0xffffffffu, page, i) + from,
            (int)(row + QK_PAGE_TOKENS * i) < n_valid);
    const uint64_t scales = __shfl_sync(0xffffffffu, page, thread / 2 % 8) + layout.scale_offset;
    if (thread < 16) /* 8 scales each */
        copy_16(
            to + BLOCK_KEYS * HEAD_DIM + thread * 16, scales + thread % 2 * 16, (int)(thread * 8) < n_valid);
}

/* A staged block as bf16 to where wgmma wants it: a thread has a row. Rows from @n_valid on become zeros, whatever their
 * scales are. */
static __device__ __forceinline__ void widen_item(uint32_t slot, uint32_t staged, int n_valid, uint32_t row)
{
    const float s = qkc_i8_float(read_2(staged + BLOCK_KEYS * HEAD_DIM + 2 * row));
    const float scale = (int)row < n_valid ? s : 0.0f;
    const uint32_t from = staged + row * HEAD_DIM, to = slot + row * 128, at = row % 8;
#pragma unroll 2
    for (uint32_t p = 0; p < HEAD_DIM / 16; p++) {
        const uint32_t half = to + p / 4 * HALF_BYTES, c = p % 4 * 2;
        uint4 low, high;
        qkc_i8_to_bf16(read_16(from + ((p ^ at) << 4)), scale, &low, &high);
        write_16(half + ((c ^ at) << 4), low);
        write_16(half + ((c + 1 ^ at) << 4), high);
    }
}

/* One warpgroup's items, K or V, each from its pages to one of two places (item n to n % 2) and from there, as bf16, to its
 * slot. Item n + 1 sets out when all copying threads have done with item n - 1. An item is arrived for as soon as it is
 * written, and K and V do not wait for each other: so two slots are enough, see invariant 3. */
static __device__ void widen_blocks(const qkc_attend_prefill_args &a, const qkc_tile &tile,
    const shared_map &m, const uint64_t *pages, uint32_t kv_head, uint32_t n_blocks, bool is_v,
    uint32_t thread)
{
    constexpr uint32_t N = place<true>::N_STAGES;
    const uint64_t offset =
        a.layer * a.layout.layer_stride + kv_head * a.layout.head_stride + (is_v ? a.layout.v_offset : 0);
    const uint32_t full = is_v ? m.full_v : m.full_k, empty = is_v ? m.empty_v : m.empty_k;
    const uint32_t slots = is_v ? m.v : m.k, staged = m.staged + (is_v ? 2 * STAGED_BYTES : 0);
    const uint32_t last = tile.key_begin + (n_blocks - 1) * BLOCK_KEYS; /* first key of item 0 */
    auto page_of = [&](uint32_t n) {
        const uint32_t key = last - n * BLOCK_KEYS + thread % 8 * QK_PAGE_TOKENS;
        return n < n_blocks && key < tile.key_end ? pages[key / QK_PAGE_TOKENS] + offset
                                                  : (uint64_t)(uintptr_t)a.q;
    };
    uint64_t page = page_of(0);
    auto stage = [&](uint32_t n) {
        if (n < n_blocks)
            stage_item(staged + n % 2 * STAGED_BYTES, page, (int)tile.key_end - (int)(last - n * BLOCK_KEYS),
                thread, a.layout);
        copy_commit();
        page = page_of(n + 1);
    };
    stage(0);
    for (uint32_t n = 0; n < n_blocks; n++) {
        const uint32_t at = n % N, parity = n / N % 2;
        copy_wait<0>();
        named_sync(BARRIER_COPY + is_v, GROUP);
        stage(n + 1);
        barrier_wait(empty + at * 8, parity ^ 1);
        widen_item(slots + at * ITEM_BYTES, staged + n % 2 * STAGED_BYTES,
            (int)tile.key_end - (int)(last - n * BLOCK_KEYS), thread);
        fence_async();
        barrier_arrive(full + at * 8);
    }
}

/* ---- The computing warpgroups -------------------------------------------------------------------------------- */

/* One thread's share of 64 rows: two rows, 8 apart. */
typedef struct {
    float o[64];    /* [64, HEAD_DIM] sum of P V, in units of exp2(max * SCALE_LOG2) */
    float s[64];    /* [64, BLOCK_KEYS] scores, then their exponentials */
    uint32_t p[32]; /* those in bf16: A operands of 8 products */
    float max[2];   /* of the raw scores so far */
    float sum[2];   /* of this thread's columns alone */
    float rescale[2];
    int limit[2]; /* of the tile's keys, counted from key_begin, that the rows see */
} rows;

static __device__ __forceinline__ void load_q(const qkc_attend_prefill_args &a, const qkc_tile &tile,
    const shared_map &m, uint32_t kv_head, uint32_t n_q, uint32_t group, uint32_t thread)
{
    const uint32_t piece = thread % 16;
    const size_t q_dim = (size_t)a.n_heads * HEAD_DIM;
#pragma unroll
    for (uint32_t i = 0; i < 8; i++) {
        const uint32_t r = group * 64 + i * 8 + thread / 16;
        const uint32_t token = r / n_q, head = kv_head * n_q + r % n_q;
        const bool valid = token < tile.n_rows;
        const qkc_bf16 *from = a.q;
        if (valid)
            from += (tile.row + token) * q_dim + head * HEAD_DIM + piece * 8;
        copy_16(m.q + piece / 8 * HALF_BYTES + r * 128 + ((piece % 8 ^ r % 8) << 4),
            (uint64_t)(uintptr_t)from, valid);
    }
    copy_commit();
    copy_wait<0>();
    fence_async();
    named_sync(BARRIER_Q + group, GROUP);
}

/* s = Q K^T of one block; committed, not waited for. */
static __device__ __forceinline__ void issue_scores(rows &r, uint64_t q, uint64_t k)
{
    pin(r.s);
    wgmma_fence();
    wgmma_shared<false>(r.s, q, k);
#pragma unroll
    for (uint32_t i = 1; i < HEAD_DIM / 16; i++) {
        const uint32_t at = i / 4 * (HALF_BYTES >> 4) + i % 4 * 2;
        wgmma_shared<true>(r.s, q + at, k + at);
    }
    wgmma_commit();
}

/* o += P V of one block; committed, not waited for. */
static __device__ __forceinline__ void issue_output(rows &r, uint64_t v)
{
    pin(r.o);
    pin(r.p);
    wgmma_fence();
#pragma unroll
    for (uint32_t i = 0; i < BLOCK_KEYS / 16; i++)
        wgmma_registers(r.o, &r.p[4 * i], v + i * (2048u >> 4));
    wgmma_commit();
}

/* Online softmax of the block in s, whose first key is @first counted from key_begin. Leaves the exponentials in s,
 * and in rescale what the sums so far, o included, have to be multiplied with. */
template <bool MASKED> static __device__ __forceinline__ void soften(rows &r, int first, uint32_t lane)
{
#pragma unroll
    for (int h = 0; h < 2; h++) {
        if (MASKED) {
            const int n = r.limit[h] - first - (int)(2 * (lane % 4));
#pragma unroll
            for (int g = 0; g < 16; g++) {
                r.s[4 * g + 2 * h] = 8 * g < n ? r.s[4 * g + 2 * h] : -INFINITY;
                r.s[4 * g + 2 * h + 1] = 8 * g + 1 < n ? r.s[4 * g + 2 * h + 1] : -INFINITY;
            }
        }
        float m0 = r.s[2 * h], m1 = r.s[2 * h + 1];
#pragma unroll
        for (int g = 1; g < 16; g++) {
            m0 = fmaxf(m0, r.s[4 * g + 2 * h]);
            m1 = fmaxf(m1, r.s[4 * g + 2 * h + 1]);
        }
        m0 = fmaxf(m0, m1);
        m0 = fmaxf(m0, __shfl_xor_sync(0xffffffffu, m0, 1));
        m0 = fmaxf(m0, __shfl_xor_sync(0xffffffffu, m0, 2));
        m0 = fmaxf(m0, r.max[h]);
        /* A row that has seen no key keeps -inf; 0 then stands for it in the exponents, which stay -inf. */
        const float base = MASKED && m0 == -INFINITY ? 0.0f : __fmul_rn(m0, SCALE_LOG2);
        /* Not contracted: exactly 1 when the maximum stays. */
        r.rescale[h] = exp2_approx(__fsub_rn(__fmul_rn(r.max[h], SCALE_LOG2), base));
        r.max[h] = m0;
        float sum0 = 0, sum1 = 0;
#pragma unroll
        for (int g = 0; g < 16; g++) {
            float &x = r.s[4 * g + 2 * h], &y = r.s[4 * g + 2 * h + 1];
            x = exp2_approx(fmaf(x, SCALE_LOG2, -base));
            y = exp2_approx(fmaf(y, SCALE_LOG2, -base));
            sum0 += x;
            sum1 += y;
        }
        r.sum[h] = fmaf(r.sum[h], r.rescale[h], sum0 + sum1);
    }
}

/* s to the A operands of the next products: column group g of s is half of k step g / 2. */
static __device__ __forceinline__ void pack_p(rows &r)
{
#pragma unroll
    for (int i = 0; i < 32; i++)
        r.p[i] = pack_bf16(r.s[2 * i], r.s[2 * i + 1]);
}

/* Waits for V of the block whose exponentials are in s. This stands before the wait for the other product, not after
 * it, because its loop ends a basic block: without that ptxas moves wgmma's wait ahead of the exponentials, which are
 * to run under the product. */
static __device__ __forceinline__ void wait_values(rows &r, const shared_map &m, cursor at)
{
    pin(r.s);
    pin(r.sum);
    barrier_wait(m.full_v + at.slot * 8, at.phase);
}

/* @turn: as in step(); a warpgroup alone arrives for the other too. */
static __device__ __forceinline__ void release(uint32_t empty, uint32_t turn, uint32_t lane)
{
    if (lane == 0)
        barrier_arrive(empty, 2 * GROUP / turn);
}

/* Block i > 0: its scores and softmax, and the output of block i - 1 (whose place is @before, and whose V is there). @turn:
 * threads that take turns: 2 * GROUP, or GROUP when the warpgroup is alone; its turn barriers are then complete at once. */
template <bool MASKED>
static __device__ __forceinline__ void step(rows &r, const shared_map &m, uint64_t q, uint64_t k, uint64_t v,
    cursor at, cursor before, int first, uint32_t turn, uint32_t group, uint32_t lane)
{
    barrier_wait(m.full_k + at.slot * 8, at.phase);
    named_sync(BARRIER_TURN + group, turn);
    issue_scores(r, q, k + at.slot * (ITEM_BYTES >> 4));
    issue_output(r, v + before.slot * (ITEM_BYTES >> 4));
    named_arrive(BARRIER_TURN + (group ^ 1), turn);
    wgmma_wait<1>();
    pin(r.s);
    release(m.empty_k + at.slot * 8, turn, lane);
    soften<MASKED>(r, first, lane);
    wait_values(r, m, at);
    wgmma_wait<0>();
    pin(r.o);
    pin(r.p);
    release(m.empty_v + before.slot * 8, turn, lane);
    pack_p(r);
#pragma unroll
    for (int i = 0; i < 64; i++)
        r.o[i] *= r.rescale[i / 2 % 2];
}

/* Writes the two rows of the thread: o / sum, and for a part the log of the sum. */
static __device__ __forceinline__ void store_rows(const qkc_attend_prefill_args &a, const qkc_tile &tile,
    rows &r, uint32_t kv_head, uint32_t n_q, uint32_t row, uint32_t lane)
{
    const size_t q_dim = (size_t)a.n_heads * HEAD_DIM;
#pragma unroll
    for (int h = 0; h < 2; h++) {
        float sum = r.sum[h];
        sum += __shfl_xor_sync(0xffffffffu, sum, 1);
        sum += __shfl_xor_sync(0xffffffffu, sum, 2);
        const uint32_t token = (row + 8 * h) / n_q, head = kv_head * n_q + (row + 8 * h) % n_q;
        if (token >= tile.n_rows)
            continue;
        const float by = sum > 0 ? 1.0f / sum : 0.0f;
        const bool is_part = tile.n_parts > 1;
        const size_t to_row = is_part ? tile.part_slot + token : tile.row + token;
        const size_t to = to_row * q_dim + head * HEAD_DIM + lane % 4 * 2;
        if (is_part && lane % 4 == 0)
            a.parts_lse[to_row * a.n_heads + head] = sum > 0 ? fmaf(r.max[h], SCALE, logf(sum)) : -INFINITY;
        if (!is_part && a.out_bf16) {
#pragma unroll
            for (int g = 0; g < 16; g++)
                *(uint32_t *)&a.out_bf16[to + 8 * g] =
                    pack_bf16(r.o[4 * g + 2 * h] * by, r.o[4 * g + 2 * h + 1] * by);
        } else {
            float *out = is_part ? a.parts_out : a.out_f32;
#pragma unroll
            for (int g = 0; g < 16; g++)
                *(float2 *)&out[to + 8 * g] =
                    make_float2(r.o[4 * g + 2 * h] * by, r.o[4 * g + 2 * h + 1] * by);
        }
    }
}

/* Where a row of a head keeps its state, for the lane. */
static __device__ __forceinline__ float *state_of(
    const qkc_attend_prefill_args &a, const qkc_tile &tile, uint32_t kv_head, uint32_t n_q, uint32_t row)
{
    const uint32_t token = row / n_q, head = kv_head * n_q + row % n_q;
    return token < tile.n_rows
               ? a.state + ((size_t)(tile.row + token) * a.n_heads + head) * (HEAD_DIM + QKC_STATE_EXTRA)
               : NULL;
}

static __device__ __forceinline__ void load_state(const qkc_attend_prefill_args &a, const qkc_tile &tile,
    rows &r, uint32_t kv_head, uint32_t n_q, uint32_t row, uint32_t lane)
{
#pragma unroll
    for (int h = 0; h < 2; h++) {
        const float *from = state_of(a, tile, kv_head, n_q, row + 8 * h);
        if (from == NULL)
            continue;
#pragma unroll
        for (int g = 0; g < 16; g++) {
            const float2 o = __ldcg((const float2 *)(from + 8 * g + lane % 4 * 2));
            r.o[4 * g + 2 * h] = o.x;
            r.o[4 * g + 2 * h + 1] = o.y;
        }
        r.sum[h] = __ldcg(from + HEAD_DIM + lane % 4);
        r.max[h] = __ldcg(from + HEAD_DIM + 4);
    }
}

static __device__ __forceinline__ void store_state(const qkc_attend_prefill_args &a, const qkc_tile &tile,
    const rows &r, uint32_t kv_head, uint32_t n_q, uint32_t row, uint32_t lane)
{
#pragma unroll
    for (int h = 0; h < 2; h++) {
        float *to = state_of(a, tile, kv_head, n_q, row + 8 * h);
        if (to == NULL)
            continue;
#pragma unroll
        for (int g = 0; g < 16; g++)
            __stcg((float2 *)(to + 8 * g + lane % 4 * 2),
                make_float2(r.o[4 * g + 2 * h], r.o[4 * g + 2 * h + 1]));
        __stcg(to + HEAD_DIM + lane % 4, r.sum[h]);
        if (lane % 4 == 0)
            __stcg(to + HEAD_DIM + 4, r.max[h]);
    }
}

/* @position: of the tile's first row. */
template <bool RANGE, bool I8>
static __device__ void compute_rows(const qkc_attend_prefill_args &a, const qkc_tile &tile, bool resumes,
    const shared_map &m, uint32_t kv_head, uint32_t n_q, uint32_t position, uint32_t n_blocks, uint32_t group,
    uint32_t thread)
{
    const uint32_t lane = thread % 32, row = group * 64 + thread / 32 * 16 + lane / 4;
    const uint32_t turn = tile.n_rows * n_q <= TILE_ROWS / 2 ? GROUP : 2 * GROUP;
    rows r;
#pragma unroll
    for (int i = 0; i < 64; i++)
        r.o[i] = r.s[i] = 0;
    for (int h = 0; h < 2; h++) {
        r.max[h] = -INFINITY;
        r.sum[h] = 0;
        r.limit[h] = (int)min(position + (row + 8 * h) / n_q + 1, tile.key_end) - (int)tile.key_begin;
    }
    /* Blocks before this one are seen whole by every row. */
    const int n_seen = (int)min(position + 1, tile.key_end) - (int)tile.key_begin;
    const uint32_t n_whole = n_seen > 0 ? (uint32_t)n_seen / BLOCK_KEYS : 0;

    if (RANGE && resumes)
        load_state(a, tile, r, kv_head, n_q, row, lane);
    load_q(a, tile, m, kv_head, n_q, group, thread);
    const uint64_t q = wgmma_descriptor(m.q + group * 64 * 128, 16);
    const uint64_t k = wgmma_descriptor(m.k, 16);
    const uint64_t v = wgmma_descriptor(m.v, HALF_BYTES);
    if (group == 0)
        named_arrive(BARRIER_TURN, turn);

    cursor at = {0, 0}, before;
    barrier_wait(m.full_k, 0);
    issue_scores(r, q, k);
    wgmma_wait<0>();
    pin(r.s);
    release(m.empty_k, turn, lane);
    int block = (int)n_blocks - 1;
    soften<true>(r, block * (int)BLOCK_KEYS, lane);
    wait_values(r, m, at);
    pack_p(r);
    if (RANGE) {
#pragma unroll
        for (int i = 0; i < 64; i++)
            r.o[i] *= r.rescale[i / 2 % 2];
    }
    for (block--; block >= (int)n_whole; block--) {
        before = at;
        at = next<place<I8>::N_STAGES>(at);
        step<true>(r, m, q, k, v, at, before, block * (int)BLOCK_KEYS, turn, group, lane);
    }
    for (; block >= 0; block--) {
        before = at;
        at = next<place<I8>::N_STAGES>(at);
        step<false>(r, m, q, k, v, at, before, block * (int)BLOCK_KEYS, turn, group, lane);
    }
    if (group == 0)
        named_sync(BARRIER_TURN, turn);
    issue_output(r, v + at.slot * (ITEM_BYTES >> 4));
    wgmma_wait<0>();
    pin(r.o);
    if (RANGE) { /* read anew: registers are short in the loop */
        const qkc_tile whole = a.tiles[blockIdx.x];
        if (a.range_begin > whole.key_begin)
            store_state(a, whole, r, blockIdx.y, n_q, row, lane);
        else
            store_rows(a, whole, r, blockIdx.y, n_q, row, lane);
    } else {
        store_rows(a, tile, r, kv_head, n_q, row, lane);
    }
}

/* ---- The kernel ---------------------------------------------------------------------------------------------- */

/* Grid: x the tiles, y the kv heads. RANGE: of each tile the keys in the launch's range. I8: the pages are int8. */
template <bool RANGE, bool I8>
static __global__ void __launch_bounds__(place<I8>::N_THREADS, 1)
    attend_prefill_hopper(const __grid_constant__ qkc_attend_prefill_args a)
{
    extern __shared__ uint8_t shared[];
    const uint32_t base = (shared_of(shared) + 1023u) & ~1023u;
    const shared_map m = map_shared<I8>(base);
    if (threadIdx.x == 0) {
        for (uint32_t i = 0; i < place<I8>::N_STAGES; i++) {
            barrier_init(m.full_k + i * 8, GROUP);
            barrier_init(m.full_v + i * 8, GROUP);
            barrier_init(m.empty_k + i * 8, 8);
            barrier_init(m.empty_v + i * 8, 8);
        }
    }
    __syncthreads();
    qkc_pdl_wait();
    qkc_pdl_trigger();
    if (*a.plan.state != QK_OK)
        return;

    qkc_tile tile = a.tiles[blockIdx.x];
    bool resumes = false; /* later keys of the tile were in another launch */
    if (RANGE) {
        const uint32_t begin = max(tile.key_begin, a.range_begin), end = min(tile.key_end, a.range_end);
        if (begin >= end)
            return;
        resumes = end < tile.key_end;
        tile.key_begin = begin;
        tile.key_end = end;
    }
    const qk_seq *seq = &a.plan.seqs[tile.seq];
    const uint32_t kv_head = blockIdx.y, n_q = a.n_heads / a.n_kv_heads;
    const uint32_t n_keys = tile.key_end > tile.key_begin ? tile.key_end - tile.key_begin : 0;
    /* A tile without keys runs one block that is masked whole. */
    const uint32_t n_blocks = n_keys > 0 ? (n_keys + BLOCK_KEYS - 1) / BLOCK_KEYS : 1;
    const uint32_t warpgroup = __shfl_sync(0xffffffffu, threadIdx.x / GROUP, 0), thread = threadIdx.x % GROUP;
    if (warpgroup % 3 == 0) {
        asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(COPY_REGISTERS(I8)));
        if (I8)
            widen_blocks(
                a, tile, m, a.plan.pages + seq->page_begin, kv_head, n_blocks, warpgroup == 3, thread);
        else
            copy_blocks(a, tile, m, a.plan.pages + seq->page_begin, kv_head, n_blocks, thread);
    } else if (warpgroup == 1 || tile.n_rows * n_q > TILE_ROWS / 2) {
        asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(COMPUTE_REGISTERS(I8)));
        const uint32_t position = seq->start + (tile.row - seq->row_begin);
        compute_rows<RANGE, I8>(a, tile, resumes, m, kv_head, n_q, position, n_blocks, warpgroup - 1, thread);
    }
}

/* ---- Launching ----------------------------------------------------------------------------------------------- */

/* Packing leaves 128 % n_q rows of a tile unused: at most an eighth. */
bool qkc_attend_prefill_hopper_runs(uint32_t n_heads, uint32_t n_kv_heads, uint32_t head_dim)
{
    if (head_dim != HEAD_DIM || n_kv_heads == 0 || n_heads % n_kv_heads != 0 || n_heads == 0)
        return false;
    const uint32_t n_q = n_heads / n_kv_heads;
    return n_q <= TILE_ROWS && TILE_ROWS % n_q <= TILE_ROWS / 8;
}

uint32_t qkc_attend_prefill_hopper_tile_rows(uint32_t n_heads, uint32_t n_kv_heads, uint32_t head_dim)
{
    return TILE_ROWS / (n_heads / n_kv_heads);
}

/* On a device without sm_90 code for it the kernel is never launched, and there is nothing to set. */
cudaError_t qkc_attend_prefill_hopper_init(void)
{
    int device, major, minor;
    cudaError_t code = cudaGetDevice(&device);
    if (code == cudaSuccess)
        code = cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, device);
    if (code == cudaSuccess)
        code = cudaDeviceGetAttribute(&minor, cudaDevAttrComputeCapabilityMinor, device);
    if (code != cudaSuccess || major != 9 || minor != 0)
        return code;
    code = cudaFuncSetAttribute(attend_prefill_hopper<false, false>,
        cudaFuncAttributeMaxDynamicSharedMemorySize, place<false>::BYTES);
    if (code == cudaSuccess)
        code = cudaFuncSetAttribute(attend_prefill_hopper<true, false>,
            cudaFuncAttributeMaxDynamicSharedMemorySize, place<false>::BYTES);
    if (code == cudaSuccess)
        code = cudaFuncSetAttribute(attend_prefill_hopper<false, true>,
            cudaFuncAttributeMaxDynamicSharedMemorySize, place<true>::BYTES);
    return code;
}

/* The tiles alone; their parts are merged by the caller. */
cudaError_t qkc_attend_prefill_hopper(
    const qkc_launch *launch, const qkc_attend_prefill_args *args, bool in_range)
{
    const dim3 grid(args->n_tiles, args->n_kv_heads);
    if (args->n_tiles == 0)
        return cudaSuccess;
    if (args->layout.dtype == QK_I8)
        return in_range ? cudaErrorInvalidValue
                        : qkc_start(launch, attend_prefill_hopper<false, true>, grid,
                              dim3(place<true>::N_THREADS), place<true>::BYTES, *args);
    return qkc_start(launch,
        in_range ? attend_prefill_hopper<true, false> : attend_prefill_hopper<false, false>, grid,
        dim3(place<false>::N_THREADS), place<false>::BYTES, *args);
}
