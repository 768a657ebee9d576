/* test-gpu-kv-int8.cu: int8 pages: the quantiser byte by byte, what qkc_heads() appends, qkc_dequantise(), and attention of
 * any rows to them, which must have the bits of attention to the copies. */
#include "kernels/cuda/kv-int8.h"
#include "tests/gpu/gpu-test.h"

#define DIM 128u

/* ---- The quantiser ------------------------------------------------------------------------------------------- */

static __global__ void quantise(int8_t *q, uint16_t *scale, const float *x)
{
    const float v = x[blockIdx.x * DIM + threadIdx.x];
    __shared__ uint32_t size;
    if (threadIdx.x == 0)
        size = 0;
    __syncthreads();
    atomicMax(&size, qkc_i8_size(v));
    __syncthreads();
    const uint16_t s = qkc_i8_scale(size);
    q[blockIdx.x * DIM + threadIdx.x] = (int8_t)qkc_i8_value(v, qkc_i8_float(s));
    if (threadIdx.x == 0)
        scale[blockIdx.x] = s;
}

/* Vectors of many sizes, with ties, zeros, what is too small and too large for fp16, and what is no number. */
static std::vector<float> vectors(uint32_t *n)
{
    std::vector<float> x;
    Random r(11);
    for (int e = -140; e <= 30; e++)
        for (uint32_t d = 0; d < DIM; d++)
            x.push_back(ldexpf(r.normal(), e));
    for (float s : {0x1p-14f, 0x1p-10f, 0.5f, 3.0f, 500.0f}) /* halves of the scale: ties */
        for (uint32_t d = 0; d < DIM; d++)
            x.push_back(d == 0 ? 127 * s : ((float)r.below(254) - 127 + 0.5f) * s);
    for (int i = 0; i < 200; i++) /* scales halfway between two of fp16 */
        for (uint32_t d = 0; d < DIM; d++)
            x.push_back(d == 7 ? 127 * (1 + (float)(2 * i + 1) * 0x1p-11f) : r.normal() * 40);
    for (float special : {0.0f, -0.0f, (float)INFINITY, -(float)INFINITY, (float)NAN, 127 * 65519.0f,
             127 * 65520.0f, 3.4e38f, 1e-45f})
        for (uint32_t d = 0; d < DIM; d++)
            x.push_back(d == 100 ? special : d % 3 == 0 && special != 0 ? 1.0f : 0.0f);
    *n = (uint32_t)(x.size() / DIM);
    return x;
}

static void test_quantiser(const qkc_launch *l)
{
    uint32_t n = 0;
    const std::vector<float> in = vectors(&n);
    Array<float> x(in.size());
    Array<int8_t> q(in.size());
    Array<uint16_t> scale(n);
    x.host = in;
    x.up();
    quantise<<<n, DIM, 0, l->stream>>>(q.dev, scale.dev, x.dev);
    CUDA_OK(cudaStreamSynchronize(l->stream));
    q.down(), scale.down();
    uint32_t n_wrong = 0;
    for (uint32_t i = 0; i < n; i++) {
        int8_t want[DIM];
        uint16_t want_scale;
        host_quantise(want, &want_scale, &in[(size_t)i * DIM], DIM);
        n_wrong += want_scale != scale.host[i] || memcmp(want, &q.host[(size_t)i * DIM], DIM) != 0;
    }
    tap_ok(n_wrong == 0, "quantiser: %u of %u vectors have the right bytes", n - n_wrong, n);
}

/* ---- Appending and widening ---------------------------------------------------------------------------------- */

/* One sequence of @n_rows rows from position @start on, in pages of three layers in random order. */
struct Rows {
    uint32_t dim, n_kv, n_heads, n_rows, start, n_pages;
    qk_kv_layout layout;
    Array<float> qkv, norm, cos_sin;
    Array<qkc_bf16> q;
    Array<uint8_t> pool;
    Array<uint32_t> counts, position, row_seq, state;
    Array<qk_seq> seqs;
    Array<uint64_t> pages;
    std::vector<uint32_t> order;

    static qk_kv_layout layout_of(uint32_t dim, uint32_t n_kv)
    {
        qk_shape shape = {};
        qk_kv_layout layout;
        shape.n_layers = 3, shape.n_kv_heads = n_kv, shape.head_dim = dim;
        qk_kv_layout_page_major(&shape, QK_I8, &layout);
        return layout;
    }
    Rows(uint32_t dim_, uint32_t n_kv_, uint32_t n_rows_, uint32_t start_)
        : dim(dim_), n_kv(n_kv_), n_heads(n_kv_ * 2), n_rows(n_rows_), start(start_),
          n_pages((start + n_rows + QK_PAGE_TOKENS - 1) / QK_PAGE_TOKENS), layout(layout_of(dim, n_kv)),
          qkv((size_t)n_rows * (n_heads + 2 * n_kv) * dim), norm(dim), cos_sin((size_t)n_rows * dim),
          q((size_t)n_rows * n_heads * dim), pool(n_pages * layout.page_bytes), counts(4), position(n_rows),
          row_seq(n_rows), state(1), seqs(1), pages(n_pages)
    {
        Random r(dim + n_rows);
        for (auto &v : qkv.host)
            v = r.normal() * 3;
        for (auto &v : norm.host)
            v = 1 + 0.5f * r.uniform();
        for (auto &v : cos_sin.host)
            v = r.uniform();
        for (auto &b : pool.host)
            b = 0xff;
        for (uint32_t i = 0; i < n_pages; i++)
            order.push_back(n_pages - 1 - i);
        for (uint32_t i = 0; i < n_pages; i++)
            pages.host[i] = (uint64_t)(uintptr_t)pool.dev + order[i] * layout.page_bytes;
        for (uint32_t i = 0; i < n_rows; i++)
            position.host[i] = start + i, row_seq.host[i] = 0;
        seqs.host[0] = {0, n_rows, start, 0, n_pages, 0};
        counts.host = {n_rows, 1, n_pages, 0};
        state.host[0] = QK_OK;
        qkv.up(), norm.up(), cos_sin.up(), pool.up(), counts.up(), position.up(), row_seq.up(), state.up();
        seqs.up(), pages.up();
    }
    qkc_plan plan()
    {
        qkc_plan p = {};
        p.counts = counts.dev, p.position = position.dev, p.row_seq = row_seq.dev, p.cos_sin = cos_sin.dev;
        p.seqs = seqs.dev, p.pages = pages.dev, p.state = state.dev;
        return p;
    }
    void append(const qkc_launch *l, uint32_t layer)
    {
        qkc_heads_args a = {};
        a.qkv_f32 = qkv.dev, a.q = q.dev, a.q_norm = a.k_norm = norm.dev, a.eps = 1e-6f;
        a.n_heads = n_heads, a.n_kv_heads = n_kv, a.head_dim = dim, a.layer = layer, a.rows_max = n_rows;
        a.layout = layout, a.plan = plan();
        CUDA_OK(qkc_heads(l, &a));
        CUDA_OK(cudaStreamSynchronize(l->stream));
        pool.down();
    }
    uint8_t *side(uint32_t token, uint32_t head, uint32_t layer, bool v)
    {
        return &pool.host[order[token / QK_PAGE_TOKENS] * layout.page_bytes + layer * layout.layer_stride +
                          head * layout.head_stride + (v ? layout.v_offset : 0)];
    }
};

static void test_append(const qkc_launch *l, uint32_t dim, uint32_t n_kv, uint32_t n_rows, uint32_t start)
{
    const uint32_t layer = 1;
    Rows w(dim, n_kv, n_rows, start);
    w.append(l, layer);
    uint32_t n_values_wrong = 0, n_keys_wrong = 0;
    std::vector<uint8_t> rest = w.pool.host;
    std::vector<float> k(dim);
    std::vector<int8_t> want(dim);
    for (uint32_t i = 0; i < n_rows; i++)
        for (uint32_t head = 0; head < n_kv; head++)
            for (int v = 0; v < 2; v++) {
                const float *x =
                    &w.qkv.host[((size_t)i * (w.n_heads + 2 * n_kv) + w.n_heads + v * n_kv + head) * dim];
                const float *cs = &w.cos_sin.host[(size_t)i * dim];
                double sum = 0;
                for (uint32_t d = 0; d < dim; d++)
                    sum += (double)x[d] * x[d];
                const double f = 1 / sqrt(sum / dim + 1e-6);
                for (uint32_t d = 0; d < dim / 2; d++) {
                    const double a = x[d] * f * w.norm.host[d];
                    const double b = x[d + dim / 2] * f * w.norm.host[d + dim / 2];
                    k[d] = v ? x[d] : (float)(a * cs[d] - b * cs[d + dim / 2]);
                    k[d + dim / 2] = v ? x[d + dim / 2] : (float)(b * cs[d] + a * cs[d + dim / 2]);
                }
                const uint32_t token = start + i, in_page = token % QK_PAGE_TOKENS;
                uint8_t *side = w.side(token, head, layer, v), *row = side + in_page * w.layout.token_stride;
                uint16_t *scale = (uint16_t *)(side + w.layout.scale_offset) + in_page, want_scale;
                host_quantise(want.data(), &want_scale, k.data(), dim);
                bool right = abs((int)*scale - (int)want_scale) <= (v ? 0 : 1);
                for (uint32_t d = 0; d < dim; d++)
                    right = right && abs((int)(int8_t)row[d] - (int)want[d]) <= (v ? 0 : 1);
                (v ? n_values_wrong : n_keys_wrong) += !right;
                memset(&rest[row - w.pool.host.data()], 0xff, dim);
                memset(&rest[(uint8_t *)scale - w.pool.host.data()], 0xff, 2);
            }
    const bool untouched = std::all_of(rest.begin(), rest.end(), [](uint8_t b) { return b == 0xff; });
    tap_ok(n_values_wrong == 0 && n_keys_wrong == 0 && untouched,
        "%s: heads of %u x %u, %u rows from %u on: %u keys and %u values wrong, the rest %s",
        gpu_path_name(l), n_kv, dim, n_rows, start, n_keys_wrong, n_values_wrong,
        untouched ? "untouched" : "touched");
}

/* Every element of the copies, and their page table, for pages @first and on. */
static void test_dequantise(const qkc_launch *l, uint32_t dim, uint32_t n_kv, uint32_t n_rows, uint32_t first)
{
    const uint32_t layer = 2;
    Rows w(dim, n_kv, n_rows, 0);
    w.append(l, layer);
    qkc_dequantise_args a = {};
    qkc_widened_layout(n_kv, dim, &a.to_layout);
    const uint32_t n = w.n_pages - first;
    Array<uint8_t> to(n * a.to_layout.layer_stride + 256);
    Array<uint64_t> to_pages(w.n_pages + 1);
    a.to = (char *)to.dev, a.to_pages = to_pages.dev, a.first_page = first, a.n_pages = n;
    a.n_kv_heads = n_kv, a.head_dim = dim, a.layer = layer, a.layout = w.layout, a.plan = w.plan();
    CUDA_OK(qkc_dequantise(l, &a));
    CUDA_OK(cudaStreamSynchronize(l->stream));
    to.down(), to_pages.down();
    uint64_t n_wrong = 0;
    for (uint32_t token = first * QK_PAGE_TOKENS; token < n_rows; token++)
        for (uint32_t head = 0; head < n_kv; head++)
            for (int v = 0; v < 2; v++) {
                const uint32_t in_page = token % QK_PAGE_TOKENS;
                const uint8_t *side = w.side(token, head, layer, v);
                const double scale =
                    host_from_f16(((const uint16_t *)(side + w.layout.scale_offset))[in_page]);
                const qkc_bf16 *is =
                    (const qkc_bf16 *)&to
                        .host[(token / QK_PAGE_TOKENS - first) * a.to_layout.layer_stride +
                              head * a.to_layout.head_stride + (v ? a.to_layout.v_offset : 0) +
                              in_page * (size_t)a.to_layout.token_stride];
                for (uint32_t d = 0; d < dim; d++) {
                    const int8_t q = (int8_t)side[in_page * w.layout.token_stride + d];
                    const qkc_bf16 want = __float2bfloat16((float)(q * scale));
                    n_wrong += memcmp(&want, &is[d], sizeof(want)) != 0;
                }
            }
    bool placed = true;
    for (uint32_t i = 0; i <= w.n_pages; i++)
        placed = placed && to_pages.host[i] == (i < first || i == w.n_pages
                                                       ? UINT64_MAX
                                                       : (uint64_t)(uintptr_t)to.dev +
                                                             (i - first) * a.to_layout.layer_stride);
    const bool kept = std::all_of(to.host.end() - 256, to.host.end(), [](uint8_t b) { return b == 0xff; });
    tap_ok(n_wrong == 0 && placed && kept, "%s: %u pages of %u x %u as bf16: %llu elements wrong%s%s",
        gpu_path_name(l), n, n_kv, dim, (unsigned long long)n_wrong, placed ? "" : ", page table wrong",
        kept ? "" : ", written past the end");
}

/* Attention of the last rows of a sequence whose pages are filled. */
struct Attention {
    Rows w;
    uint32_t start, n_rows, layer = 1;
    Array<uint8_t> copies;
    Array<uint64_t> copied;
    Array<qkc_tile> tiles, merges;
    Array<float> parts_out, parts_lse, out;
    qk_kv_layout bf16;
    qkc_tiling tiling;

    Attention(const qkc_launch *l, uint32_t dim, uint32_t n_kv, uint32_t start_, uint32_t n_rows_)
        : w(dim, n_kv, start_ + n_rows_, 0), start(start_), n_rows(n_rows_),
          copies((size_t)w.n_pages * n_kv * 4 * QK_PAGE_TOKENS * dim), copied(w.n_pages),
          tiles(qkc_tiles_max(n_rows, 1, w.n_heads, n_kv)), merges(tiles.host.size()),
          parts_out((size_t)qkc_part_rows_max(n_rows) * w.n_heads * dim),
          parts_lse((size_t)qkc_part_rows_max(n_rows) * w.n_heads), out((size_t)n_rows * w.n_heads * dim)
    {
        w.append(l, layer);
        w.seqs.host[0] = {0, n_rows, start, 0, w.n_pages, 0};
        w.seqs.up();
        qkc_widened_layout(n_kv, dim, &bf16);
        qk_plan plan = {};
        plan.n_rows = n_rows, plan.n_seqs = 1, plan.n_pages = w.n_pages, plan.seqs = w.seqs.host.data();
        qkc_cut_tiles(&plan, w.n_heads, n_kv, dim, l->hopper, l->n_sms, qkc_part_rows_max(n_rows),
            tiles.host.data(), merges.host.data(), &tiling);
        tiles.up(), merges.up();
    }
    std::vector<float> run(const qkc_launch *l, bool direct)
    {
        qkc_dequantise_args d = {};
        d.to = (char *)copies.dev, d.to_pages = copied.dev, d.n_pages = w.n_pages;
        d.n_kv_heads = w.n_kv, d.head_dim = w.dim, d.layer = layer;
        d.layout = w.layout, d.to_layout = bf16, d.plan = w.plan();
        qkc_attend_prefill_args a = {};
        a.q = w.q.dev + (size_t)start * w.n_heads * w.dim;
        a.out_f32 = out.dev;
        a.n_heads = w.n_heads, a.n_kv_heads = w.n_kv, a.head_dim = w.dim;
        a.layer = direct ? layer : 0, a.layout = direct ? w.layout : bf16;
        a.plan = w.plan();
        a.tiles = tiles.dev, a.merges = merges.dev, a.parts_out = parts_out.dev, a.parts_lse = parts_lse.dev;
        out.poison(), parts_out.poison(), parts_lse.poison(), copies.poison(), copied.poison();
        if (!direct) {
            a.plan.pages = copied.dev;
            CUDA_OK(qkc_dequantise(l, &d));
        }
        CUDA_OK(qkc_attend_prefill(l, &a, &tiling));
        CUDA_OK(cudaStreamSynchronize(l->stream));
        out.down();
        return out.host;
    }
};

static void test_attention(
    const qkc_launch *l, const char *path, uint32_t dim, uint32_t n_kv, uint32_t start, uint32_t n_rows)
{
    Attention t(l, dim, n_kv, start, n_rows);
    const std::vector<float> want = t.run(l, false), got = t.run(l, true), again = t.run(l, true);
    const size_t bytes = want.size() * sizeof(float);
    bool finite = true;
    for (float x : got)
        finite = finite && std::isfinite(x);
    tap_ok(
        finite && memcmp(want.data(), got.data(), bytes) == 0 && memcmp(got.data(), again.data(), bytes) == 0,
        "%s: %u rows at %u, %u kv heads of %u, %u tiles: the bits of attention to the copies, and again",
        path, n_rows, start, n_kv, dim, t.tiling.n_tiles);
    /* A scale in the middle, of a value; then a key's numbers: each must show. */
    uint32_t n_seen = 0;
    const uint32_t token = (start + n_rows) / 2;
    for (int v = 1; v >= 0; v--) {
        uint8_t *side = t.w.side(token, n_kv - 1, t.layer, v);
        uint8_t *scale = side + t.w.layout.scale_offset + 2 * (token % QK_PAGE_TOKENS);
        scale[1] ^= v ? 0x80 : 0;
        for (uint32_t d = 0; d < dim && !v; d++)
            side[token % QK_PAGE_TOKENS * t.w.layout.token_stride + d] ^= 0x55;
        t.w.pool.up();
        const std::vector<float> other = t.run(l, true);
        n_seen += memcmp(other.data(), got.data(), bytes) != 0;
        const std::vector<float> other_want = t.run(l, false);
        n_seen += memcmp(other.data(), other_want.data(), bytes) == 0;
    }
    tap_ok(n_seen == 4, "%s: a scale and a key that are others show in both alike: %u of 4", path, n_seen);
}

static void test_attentions(const qkc_launch *l, const char *path)
{
    test_attention(l, path, 128, 3, 695, 5);
    test_attention(l, path, 128, 8, 2370, 130);
    test_attention(l, path, 128, 2, 0, 33);
    test_attention(l, path, 128, 1, 15, 1);
    test_attention(l, path, 128, 2, 1000, 300);
    test_attention(l, path, 64, 5, 230, 70);
    test_attention(l, path, 64, 1, 4000, 17);
}

static void bench(const qkc_launch *l)
{
    const uint32_t sets = 24;
    for (uint32_t n_pages : {64u, 512u}) {
        qkc_dequantise_args a = {};
        const qk_kv_layout layout = Rows::layout_of(128, 8);
        qkc_widened_layout(8, 128, &a.to_layout);
        Array<uint8_t> pool((size_t)sets * n_pages * layout.page_bytes),
            to(n_pages * a.to_layout.layer_stride);
        Array<uint64_t> pages(sets * n_pages), to_pages(sets * n_pages);
        Array<uint32_t> state(1);
        pool.zero(), state.zero();
        for (uint32_t i = 0; i < sets * n_pages; i++)
            pages.host[i] = (uint64_t)(uintptr_t)pool.dev + i * layout.page_bytes;
        pages.up();
        a.to = (char *)to.dev, a.to_pages = to_pages.dev, a.n_pages = n_pages;
        a.n_kv_heads = 8, a.head_dim = 128, a.layout = layout;
        a.plan.pages = pages.dev, a.plan.state = state.dev;
        const double ms = gpu_time(l->stream, 21, [&](int i) {
            a.first_page = (uint32_t)i % sets * n_pages;
            CUDA_OK(qkc_dequantise(l, &a));
        });
        const double bytes = n_pages * (double)(layout.layer_stride + a.to_layout.layer_stride);
        printf("# %-8s dequantise %4u pages: %7.2f us, %6.1f MB read and written, %5.0f GB/s\n",
            gpu_path_name(l), n_pages, ms * 1e3, bytes / 1e6, bytes / ms / 1e6);
    }
}

int main(int argc, char **argv)
{
    gpu_require();
    qkc_launch paths[2];
    const int n_paths = gpu_paths(paths);
    CUDA_OK(qkc_attend_prefill_init());
    CUDA_OK(qkc_attend_prefill_hopper_init());
    const bool benches = argc > 1 && strcmp(argv[1], "--bench") == 0;
    for (int i = 0; i < n_paths; i++) {
        const qkc_launch *l = &paths[i];
        if (benches) {
            bench(l);
            continue;
        }
        test_quantiser(l);
        test_append(l, 128, 8, 40, 5);
        test_append(l, 128, 1, 1, 31);
        test_append(l, 64, 3, 33, 0);
        test_append(l, 64, 5, 7, 15);
        test_dequantise(l, 128, 8, 100, 0);
        test_dequantise(l, 128, 3, 77, 2);
        test_dequantise(l, 64, 5, 50, 1);
        test_dequantise(l, 64, 1, 16, 0);
        if (i == 1) {
            test_attentions(l, "hopper");
            continue;
        }
        qkc_attend_prefill_choose(QKC_PREFILL_WIDE);
        test_attentions(l, "portable, wide");
        qkc_attend_prefill_choose(QKC_PREFILL_NARROW);
        test_attentions(l, "portable, narrow");
    }
    return benches ? 0 : tap_done();
}
