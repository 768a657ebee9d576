/* test-gpu-attn-decode.cu: qkc_attend_decode() against float64 arithmetic on the host, norm and rotation included.
 *
 * The pool is NaN but for the keys and values that a sequence may read, and its pages lie in random order. After a run
 * the whole pool is compared with what it was: only the new rows may differ, and these are checked by themselves. The
 * reference takes the new key and value from there. */
#include <string>
#include <thread>
#include "tests/gpu/gpu-test.h"

#define TOLERANCE    1e-4 /* of a row's norm; the kernel's sums are float32 with split bf16 operands */
#define MUTATION     1e-2 /* what a wrong key at least changes */
#define LAYERS       2u
#define OLD_SEED     77u
#define HOST_THREADS 16u
#define BENCH_LAYERS 36u
#define BENCH_BYTES  300000000.0 /* of keys and values between two uses of the same */
#define READ_BYTES   ((size_t)4 << 30)

static float f32_from_bf16(uint16_t x)
{
    uint32_t bits = (uint32_t)x << 16;
    float f;
    memcpy(&f, &bits, sizeof(f));
    return f;
}

static uint16_t bf16_from_f32(float x)
{
    uint32_t bits;
    memcpy(&bits, &x, sizeof(bits));
    return (uint16_t)((bits + 0x7fffu + (bits >> 16 & 1)) >> 16);
}

struct Shape {
    uint32_t head_dim, n_kv_heads, n_q, layer, rows_max;
    uint32_t row_pad;           /* bytes between tokens beyond a row */
    bool int8;                  /* pages */
    std::vector<uint32_t> keys; /* of each sequence, the new one included */
    uint64_t seed;

    uint32_t n_heads() const
    {
        return n_kv_heads * n_q;
    }
    uint32_t q_dim() const
    {
        return n_heads() * head_dim;
    }
    uint32_t row_floats() const
    {
        return (n_heads() + 2 * n_kv_heads) * head_dim;
    }
};

static uint32_t n_pages_of(uint32_t n_keys)
{
    return (n_keys + QK_PAGE_TOKENS - 1) / QK_PAGE_TOKENS;
}

/* All of a launch's memory, host and device. */
struct Work {
    Shape shape;
    qk_kv_layout layout = {};
    uint32_t n_pages = 0, n_pool = 0;
    std::vector<uint32_t> page_of; /* pool page of each entry of the plan's page table */
    Array<uint8_t> pool;
    Array<float> qkv, out, q_norm, k_norm, cos_sin;
    Array<uint32_t> counts, state;
    Array<qk_seq> seqs;
    Array<uint64_t> pages;
    Array<uint8_t> workspace;
    Array<float> lse;
    std::vector<uint8_t> before;  /* the pool before the run */
    std::vector<uint8_t> outside; /* of each entry of the plan's page table: its address is 0 */
    bool wants_lse = false;       /* takes the kernel's form for pages outside */
    uint32_t *cancel = nullptr;   /* mapped host memory */

    static uint32_t pages_of(const Shape &s)
    {
        uint32_t n = 0;
        for (uint32_t keys : s.keys)
            n += n_pages_of(keys);
        return n;
    }
    static qk_kv_layout layout_of(const Shape &s)
    {
        qk_kv_layout l = {};
        l.dtype = s.int8 ? QK_I8 : QK_BF16;
        l.token_stride = s.head_dim * (s.int8 ? 1 : 2) + s.row_pad;
        l.v_offset = (uint64_t)QK_PAGE_TOKENS * l.token_stride;
        l.scale_offset = s.int8 ? l.v_offset : 0;
        l.v_offset += s.int8 ? QK_PAGE_TOKENS * sizeof(uint16_t) : 0;
        l.head_stride = 2 * l.v_offset;
        l.layer_stride = s.n_kv_heads * l.head_stride;
        l.page_bytes = LAYERS * l.layer_stride;
        return l;
    }

    explicit Work(const Shape &s)
        : shape(s), layout(layout_of(s)), n_pages(pages_of(s)), n_pool(n_pages + 5),
          pool((size_t)n_pool * layout.page_bytes), qkv((size_t)s.rows_max * s.row_floats()),
          out((size_t)s.rows_max * s.q_dim()), q_norm(s.head_dim), k_norm(s.head_dim),
          cos_sin((size_t)s.rows_max * s.head_dim), counts(4), state(1), seqs(s.rows_max), pages(n_pages + 3),
          workspace(qkc_attend_decode_bytes(s.rows_max, s.n_heads(), s.n_kv_heads, s.head_dim)),
          lse((size_t)s.rows_max * s.n_heads()), outside(n_pages)
    {
        CUDA_OK(cudaHostAlloc(&cancel, sizeof(*cancel), cudaHostAllocMapped));
        *cancel = 0;
        /* Counters only: parts that are read before they are written show. */
        CUDA_OK(cudaMemset(workspace.dev, 0, QKC_SMALL_ROWS * s.n_kv_heads * sizeof(uint32_t)));
        fill();
    }
    ~Work()
    {
        cudaFreeHost(cancel);
    }

    uint8_t *at(std::vector<uint8_t> &in, uint32_t seq, uint32_t key, uint32_t head, bool v)
    {
        const uint32_t page = page_of[seqs.host[seq].page_begin + key / QK_PAGE_TOKENS];
        return &in[page * layout.page_bytes + shape.layer * layout.layer_stride + head * layout.head_stride +
                   (v ? layout.v_offset : 0) + key % QK_PAGE_TOKENS * (size_t)layout.token_stride];
    }
    uint16_t *scale_at(std::vector<uint8_t> &in, uint32_t seq, uint32_t key, uint32_t head, bool v)
    {
        const uint32_t token = key % QK_PAGE_TOKENS;
        return (uint16_t *)(at(in, seq, key, head, v) - token * (size_t)layout.token_stride +
                            layout.scale_offset) +
               token;
    }
    /* A key or value as the pool has it. */
    void get(std::vector<double> &out, uint32_t seq, uint32_t key, uint32_t head, bool v)
    {
        const uint8_t *from = at(pool.host, seq, key, head, v);
        const double scale = shape.int8 ? host_from_f16(*scale_at(pool.host, seq, key, head, v)) : 1;
        for (uint32_t d = 0; d < shape.head_dim; d++)
            out[d] = shape.int8 ? (double)(int8_t)from[d] * scale
                                : (double)f32_from_bf16(((const uint16_t *)from)[d]);
    }
    void fill();
    void fill_old(uint32_t seq, uint64_t seed);
    void upload();
    qkc_attend_decode_args args();
    void run(const qkc_launch *l);
    double error(uint32_t seq, uint32_t n_keys);
    double lse_error(uint32_t seq);
};

/* A sequence's keys and values depend on @seed alone. */
void Work::fill_old(uint32_t seq, uint64_t seed)
{
    Random r(seed);
    for (uint32_t key = 0; key + 1 < shape.keys[seq]; key++)
        for (uint32_t head = 0; head < shape.n_kv_heads; head++)
            for (int v = 0; v < 2; v++) {
                uint8_t *to = at(pool.host, seq, key, head, v);
                std::vector<float> x(shape.head_dim);
                for (float &value : x)
                    value = v ? r.normal() + 0.5f : r.normal();
                if (shape.int8)
                    host_quantise(
                        (int8_t *)to, scale_at(pool.host, seq, key, head, v), x.data(), shape.head_dim);
                else
                    for (uint32_t d = 0; d < shape.head_dim; d++)
                        ((uint16_t *)to)[d] = bf16_from_f32(x[d]);
            }
}

void Work::fill()
{
    Random r(shape.seed);
    for (auto &b : pool.host)
        b = 0xff;
    std::vector<uint32_t> order(n_pool);
    for (uint32_t i = 0; i < n_pool; i++)
        order[i] = i;
    for (uint32_t i = n_pool - 1; i > 0; i--)
        std::swap(order[i], order[r.below(i + 1)]);
    page_of.assign(order.begin(), order.begin() + n_pages);

    const uint32_t n_seqs = (uint32_t)shape.keys.size(), dim = shape.head_dim;
    const uint32_t poison[4] = {n_seqs, n_seqs, n_pages, n_seqs};
    std::copy(poison, poison + 4, counts.host.begin());
    uint32_t page = 0;
    for (uint32_t i = 0; i < n_seqs; i++) {
        qk_seq s = {};
        s.row_begin = i;
        s.n_rows = 1;
        s.start = shape.keys[i] - 1;
        s.page_begin = page;
        s.n_pages = n_pages_of(shape.keys[i]);
        page += s.n_pages;
        seqs.host[i] = s;
        fill_old(i, OLD_SEED + shape.keys[i]);
        /* So does the new row, so that a sequence is the same alone. */
        Random row(shape.keys[i]);
        for (uint32_t j = 0; j < shape.row_floats(); j++)
            qkv.host[(size_t)i * shape.row_floats() + j] = 2.0f * row.normal();
        for (uint32_t d = 0; d < dim / 2; d++) {
            const double angle = (double)s.start * pow(1e6, -2.0 * d / dim);
            cos_sin.host[(size_t)i * dim + d] = (float)cos(angle);
            cos_sin.host[(size_t)i * dim + dim / 2 + d] = (float)sin(angle);
        }
    }
    /* Rows without a sequence: what is read there shows. */
    for (size_t i = (size_t)n_seqs * shape.row_floats(); i < qkv.host.size(); i++)
        qkv.host[i] = NAN;
    for (size_t i = (size_t)n_seqs * dim; i < cos_sin.host.size(); i++)
        cos_sin.host[i] = NAN;
    for (uint32_t i = n_seqs; i < shape.rows_max; i++)
        memset(&seqs.host[i], 0x7f, sizeof(qk_seq));
    Random weights(dim);
    for (uint32_t d = 0; d < dim; d++) {
        q_norm.host[d] =
            1.5f + 0.5f * weights.uniform(); /* scores with a deviation of about 1.5: some keys stand out */
        k_norm.host[d] = 1.0f + 0.5f * weights.uniform();
    }
    upload();
}

void Work::upload()
{
    for (uint32_t i = 0; i < n_pages + 3; i++)
        pages.host[i] = i >= n_pages ? 0x7f7f7f7f7f7f7f70ull
                        : outside[i] ? 0
                                     : (uint64_t)(uintptr_t)pool.dev + page_of[i] * layout.page_bytes;
    state.host[0] = QK_OK;
    pool.up();
    qkv.up();
    q_norm.up();
    k_norm.up();
    cos_sin.up();
    counts.up();
    state.up();
    seqs.up();
    pages.up();
    out.poison();
    lse.poison();
    before = pool.host;
}

qkc_attend_decode_args Work::args()
{
    qkc_attend_decode_args a = {};
    a.qkv = qkv.dev;
    a.out = out.dev;
    a.q_norm = q_norm.dev;
    a.k_norm = k_norm.dev;
    a.eps = 1e-6f;
    a.n_heads = shape.n_heads();
    a.n_kv_heads = shape.n_kv_heads;
    a.head_dim = shape.head_dim;
    a.layer = shape.layer;
    a.rows_max = shape.rows_max;
    a.layout = layout;
    a.plan.counts = counts.dev;
    a.plan.cos_sin = cos_sin.dev;
    a.plan.seqs = seqs.dev;
    a.plan.pages = pages.dev;
    a.plan.state = state.dev;
    a.workspace = workspace.dev;
    a.cancel = cancel;
    a.lse = wants_lse ? lse.dev : NULL;
    return a;
}

/* Afterwards out.host and pool.host have what the launch left. */
void Work::run(const qkc_launch *l)
{
    const qkc_attend_decode_args a = args();
    CUDA_OK(qkc_attend_decode(l, &a));
    CUDA_OK(cudaStreamSynchronize(l->stream));
    out.down();
    lse.down();
    pool.down();
    state.down();
}

/* ---- The reference ------------------------------------------------------------------------------------------- */

static void norm_and_turn(std::vector<double> &x, const float *weight, const float *cos_sin, double eps)
{
    const size_t n = x.size();
    double sum = 0;
    for (double v : x)
        sum += v * v;
    const double scale = 1.0 / sqrt(sum / (double)n + eps);
    for (size_t i = 0; i < n; i++)
        x[i] *= scale * weight[i];
    for (size_t i = 0; i < n / 2; i++) {
        const double a = x[i], b = x[i + n / 2], c = cos_sin[i], s = cos_sin[i + n / 2];
        x[i] = a * c - b * s;
        x[i + n / 2] = b * c + a * s;
    }
}

static std::vector<double> head_of(Work &w, uint32_t seq, uint32_t head)
{
    const float *from = &w.qkv.host[(size_t)seq * w.shape.row_floats() + (size_t)head * w.shape.head_dim];
    return std::vector<double>(from, from + w.shape.head_dim);
}

/* Over the keys of pages that are not outside; returns the log-sum-exp. */
static double attend_reference(Work &w, uint32_t seq, uint32_t head, uint32_t n_keys, double *out)
{
    const uint32_t dim = w.shape.head_dim, kv_head = head / w.shape.n_q;
    std::vector<double> q = head_of(w, seq, head), score(n_keys), kv(dim);
    norm_and_turn(q, w.q_norm.host.data(), &w.cos_sin.host[(size_t)seq * dim], 1e-6);
    double max = -INFINITY, sum = 0;
    for (uint32_t key = 0; key < n_keys; key++) {
        w.get(kv, seq, key, kv_head, false);
        double dot = 0;
        for (uint32_t d = 0; d < dim; d++)
            dot += q[d] * kv[d];
        score[key] = dot / sqrt((double)dim);
        if (w.outside[w.seqs.host[seq].page_begin + key / QK_PAGE_TOKENS])
            score[key] = -INFINITY;
        max = std::max(max, score[key]);
    }
    std::fill(out, out + dim, 0.0);
    for (uint32_t key = 0; key < n_keys; key++) {
        w.get(kv, seq, key, kv_head, true);
        const double p = exp(score[key] - max);
        if (p == 0)
            continue;
        sum += p;
        for (uint32_t d = 0; d < dim; d++)
            out[d] += p * kv[d];
    }
    for (uint32_t d = 0; d < dim; d++)
        out[d] /= sum;
    return max + log(sum);
}

/* Of a sequence's row, with the new key and value as the launch left them in the page. */
double Work::error(uint32_t seq, uint32_t n_keys)
{
    std::vector<double> ref(shape.q_dim());
    std::vector<std::thread> threads;
    for (uint32_t t = 0; t < HOST_THREADS; t++)
        threads.emplace_back([&, t] {
            for (uint32_t head = t; head < shape.n_heads(); head += HOST_THREADS)
                attend_reference(*this, seq, head, n_keys, &ref[(size_t)head * shape.head_dim]);
        });
    for (auto &t : threads)
        t.join();
    return relative_error(&out.host[(size_t)seq * shape.q_dim()], ref.data(), ref.size());
}

/* The largest difference of a head's log-sum-exp. */
double Work::lse_error(uint32_t seq)
{
    std::vector<double> out(shape.head_dim);
    double worst = 0;
    for (uint32_t head = 0; head < shape.n_heads(); head++) {
        const double want = attend_reference(*this, seq, head, shape.keys[seq], out.data());
        const double e = fabs((double)lse.host[(size_t)seq * shape.n_heads() + head] - want);
        worst = e > worst || e != e ? e : worst;
    }
    return worst;
}

/* How many elements of the new row of a head are wrong: of values all that differ, of keys, whose float32 may differ,
 * those more than one place off. */
static uint32_t count_wrong(Work &w, uint32_t seq, uint32_t head, bool v, const std::vector<double> &x)
{
    const uint32_t dim = w.shape.head_dim, key = w.shape.keys[seq] - 1;
    const uint8_t *is = w.at(w.pool.host, seq, key, head, v);
    uint32_t n_wrong = 0;
    std::vector<float> exact(x.begin(), x.end());
    std::vector<int8_t> q(dim);
    uint16_t scale = 0;
    if (w.shape.int8) {
        host_quantise(q.data(), &scale, exact.data(), dim);
        n_wrong += abs((int)scale - (int)*w.scale_at(w.pool.host, seq, key, head, v)) > (v ? 0 : 1);
    }
    for (uint32_t d = 0; d < dim; d++) {
        const int off = w.shape.int8 ? (int)(int8_t)is[d] - (int)q[d]
                                     : (int)((const uint16_t *)is)[d] - (int)bf16_from_f32(exact[d]);
        n_wrong += abs(off) > (v ? 0 : 1);
    }
    return n_wrong;
}

/* The new rows, then the pool's other bytes. */
static bool new_rows_right(Work &w)
{
    const uint32_t dim = w.shape.head_dim;
    uint32_t n_wrong = 0;
    std::vector<uint8_t> rest = w.pool.host;
    for (uint32_t seq = 0; seq < w.shape.keys.size(); seq++)
        for (uint32_t head = 0; head < w.shape.n_kv_heads; head++) {
            std::vector<double> k = head_of(w, seq, w.shape.n_heads() + head);
            std::vector<double> v = head_of(w, seq, w.shape.n_heads() + w.shape.n_kv_heads + head);
            norm_and_turn(k, w.k_norm.host.data(), &w.cos_sin.host[(size_t)seq * dim], 1e-6);
            const uint32_t key = w.shape.keys[seq] - 1;
            n_wrong += count_wrong(w, seq, head, false, k) + count_wrong(w, seq, head, true, v);
            for (int side = 0; side < 2; side++) {
                memcpy(w.at(rest, seq, key, head, side), w.at(w.before, seq, key, head, side),
                    (w.shape.int8 ? 1 : 2) * dim);
                if (w.shape.int8)
                    *w.scale_at(rest, seq, key, head, side) = *w.scale_at(w.before, seq, key, head, side);
            }
        }
    const bool same = rest == w.before;
    if (n_wrong > 0 || !same)
        tap_note("%u elements of the new keys and values are wrong; the rest of the pool is %s", n_wrong,
            same ? "unchanged" : "changed");
    return n_wrong == 0 && same;
}

/* Rows without a sequence keep their poison; the counters are zero. */
static bool rest_untouched(Work &w)
{
    for (size_t i = w.shape.keys.size() * w.shape.q_dim(); i < w.out.host.size(); i++) {
        uint32_t bits;
        memcpy(&bits, &w.out.host[i], sizeof(bits));
        if (bits != 0xffffffffu)
            return false;
    }
    w.workspace.down();
    for (size_t i = 0; i < (size_t)QKC_SMALL_ROWS * w.shape.n_kv_heads * sizeof(uint32_t); i++)
        if (w.workspace.host[i] != 0)
            return false;
    return true;
}

static bool int8_pages; /* of the shapes made now */

/* ---- Checks -------------------------------------------------------------------------------------------------- */

static std::string keys_text(const Shape &s)
{
    std::string text;
    for (size_t i = 0; i < s.keys.size() && i < 4; i++)
        text += (i > 0 ? "," : "") + std::to_string(s.keys[i]);
    return s.keys.size() > 4 ? text + ",... (" + std::to_string(s.keys.size()) + ")" : text;
}

static void check_shape(const qkc_launch *l, const Shape &s)
{
    Work w(s);
    w.run(l);
    const bool rows = new_rows_right(w), rest = rest_untouched(w);
    double worst = 0;
    for (uint32_t seq = 0; seq < s.keys.size(); seq++) {
        const double e = w.error(seq, s.keys[seq]);
        worst = e > worst || e != e ? e : worst;
    }
    tap_ok(worst < TOLERANCE && rows && rest,
        "%s, %s: head_dim %u, %u x %u heads, layer %u, rows %zu of %u, keys %s: error %.2e%s%s",
        gpu_path_name(l), s.int8 ? "int8" : "bf16", s.head_dim, s.n_kv_heads, s.n_q, s.layer, s.keys.size(),
        s.rows_max, keys_text(s).c_str(), worst, rows ? "" : ", new rows wrong",
        rest ? "" : ", touched what is not its own");

    const std::vector<float> first = w.out.host;
    for (int again = 0; again < 3; again++) {
        w.out.poison();
        w.run(l);
        if (memcmp(first.data(), w.out.host.data(), first.size() * sizeof(float)) != 0) {
            tap_ok(false, "%s: the same again: run %d differs", gpu_path_name(l), again + 2);
            return;
        }
    }
}

static Shape shape_of(
    uint32_t dim, uint32_t n_kv, uint32_t n_q, std::vector<uint32_t> keys, uint32_t rows_max)
{
    Shape s = {};
    s.head_dim = dim;
    s.n_kv_heads = n_kv;
    s.n_q = n_q;
    s.keys = std::move(keys);
    s.rows_max = rows_max;
    s.int8 = int8_pages;
    s.seed = dim + n_q + s.keys.size() * 131 + s.keys[0];
    return s;
}

static void check_lengths(const qkc_launch *l)
{
    for (uint32_t n : {1u, 2u, 15u, 16u, 17u, 31u, 33u, 127u, 128u, 129u, 255u, 256u, 257u, 511u, 512u, 513u,
             1000u, 2047u, 4999u, 5000u})
        check_shape(l, shape_of(128, 2, 4, {n}, 1));
    for (uint32_t n : {1u, 16u, 255u, 257u, 1023u, 3001u})
        check_shape(l, shape_of(64, 3, 5, {n}, 1));
    /* Longer than 64 spans: pieces of 512 keys and more. */
    for (uint32_t n : {16384u, 16385u, 17001u, 32768u, 33333u, 40000u})
        check_shape(l, shape_of(128, 1, 4, {n}, 1));
    Shape layer1 = shape_of(128, 8, 4, {700}, 1);
    layer1.layer = 1; /* reads ahead of the wait */
    check_shape(l, layer1);
    layer1.row_pad = 32;
    check_shape(l, layer1);
}

static void check_heads(const qkc_launch *l)
{
    for (uint32_t dim : {64u, 128u})
        for (uint32_t n_q : {1u, 2u, 3u, 4u, 5u, 6u, 7u, 8u})
            check_shape(l, shape_of(dim, 2, n_q, {777, 40, 1300}, 3));
    check_shape(l, shape_of(128, 1, 8, {300}, 1));
    check_shape(l, shape_of(64, 8, 2, {300, 301}, 8));
}

static void check_batches(const qkc_launch *l)
{
    Random r(9);
    for (uint32_t n : {1u, 2u, 7u, 31u, 32u, 33u, 64u}) {
        std::vector<uint32_t> keys;
        for (uint32_t i = 0; i < n; i++)
            keys.push_back(1 + r.below(i % 5 == 0 ? 1500 : 400));
        Shape s = shape_of(n % 2 ? 128 : 64, 2, 4, keys, n < 60 ? n + 4 : 64);
        s.layer = n % 2;
        check_shape(l, s);
    }
    /* Many more items than blocks, and one long sequence among short ones. */
    check_shape(l, shape_of(64, 8, 2, std::vector<uint32_t>(48, 1100), 64));
    check_shape(l, shape_of(128, 4, 4, {5, 9000, 17, 256}, 64));
}

/* A sequence's row is the same bits alone and in a batch, wherever it stands. */
static void check_independence(const qkc_launch *l)
{
    const std::vector<uint32_t> keys = {300, 5000, 17, 1024, 2049, 1};
    Work all(shape_of(128, 2, 4, keys, 64));
    all.run(l);
    bool same = true;
    for (uint32_t i = 0; i < keys.size(); i++) {
        Work one(shape_of(128, 2, 4, {keys[i]}, 1));
        one.run(l);
        same = same && memcmp(one.out.host.data(), &all.out.host[(size_t)i * all.shape.q_dim()],
                           all.shape.q_dim() * sizeof(float)) == 0;
    }
    tap_ok(same, "%s: a row is the same bits alone and in a batch of %zu", gpu_path_name(l), keys.size());
}

/* Wrong pages and lengths are seen by the comparison: none of these may pass. */
static void check_mutations(const qkc_launch *l)
{
    const Shape s = shape_of(128, 2, 4, {90, 75}, 2);
    double least = INFINITY;
    for (int kind = 0; kind < (s.int8 ? 7 : 5); kind++) {
        Work w(s);
        if (kind == 0) { /* a page of another sequence */
            std::swap(w.page_of[1], w.page_of[7]);
        } else if (kind == 1) { /* the last page not in its place */
            std::swap(w.page_of[4], w.page_of[5]);
        } else if (kind == 2) { /* a page of zeros */
            memset(&w.pool.host[w.page_of[2] * w.layout.page_bytes], 0, w.layout.page_bytes);
        } else if (kind >= 5) { /* scales of a page's keys, or values, doubled */
            for (uint32_t key = 32; key < 48; key++)
                for (uint32_t head = 0; head < s.n_kv_heads; head++)
                    *w.scale_at(w.pool.host, 0, key, head, kind == 6) += 1 << 10;
        } else { /* a key too few; a key too many */
            w.seqs.host[0].start += kind == 3 ? -1 : 1;
        }
        w.upload();
        w.run(l);
        /* What should have been: the unchanged plan over the unchanged pool, with the new rows as written. */
        Work right(s);
        right.run(l);
        right.out.host = w.out.host;
        const double e = right.error(0, s.keys[0]);
        tap_note("%s: mutation %d: error %.2e", gpu_path_name(l), kind, e);
        least = !(e >= least) && e == e ? e : least;
    }
    tap_ok(least > MUTATION, "%s: a wrong page or length changes at least %.1e of a row", gpu_path_name(l),
        least);
}

/* Spans outside: skipped, and the row's log-sum-exp is that of the others. @share: of the spans before a new token, how
 * many in 8 are outside; 8: all of them. */
static void check_outside(const qkc_launch *l, const Shape &s, uint32_t share)
{
    Work w(s), plain(s);
    Random r(s.seed + share);
    uint32_t n_outside = 0, n_spans = 0;
    for (uint32_t seq = 0; seq < s.keys.size(); seq++)
        for (uint32_t span = 0; (span + 1) * QK_SPAN_TOKENS < s.keys[seq]; span++, n_spans++) {
            if (seq % 3 == 1 || r.below(8) >= share)
                continue; /* some sequences have nothing outside */
            n_outside++;
            for (uint32_t p = 0; p < QK_SPAN_TOKENS / QK_PAGE_TOKENS; p++)
                w.outside[w.seqs.host[seq].page_begin + span * (QK_SPAN_TOKENS / QK_PAGE_TOKENS) + p] = 1;
        }
    w.wants_lse = true;
    w.upload();
    w.run(l);
    plain.run(l);
    const bool rows = new_rows_right(w), rest = rest_untouched(w);
    double worst = 0, worst_lse = 0;
    bool same = true;
    for (uint32_t seq = 0; seq < s.keys.size(); seq++) {
        const double e = w.error(seq, s.keys[seq]), e_lse = w.lse_error(seq);
        worst = e > worst || e != e ? e : worst;
        worst_lse = e_lse > worst_lse || e_lse != e_lse ? e_lse : worst_lse;
        if (seq % 3 == 1 || share == 0)
            same = same && memcmp(&w.out.host[(size_t)seq * s.q_dim()],
                               &plain.out.host[(size_t)seq * s.q_dim()], s.q_dim() * sizeof(float)) == 0;
    }
    tap_ok(worst < TOLERANCE && worst_lse < TOLERANCE && rows && rest && same,
        "%s: head_dim %u, %u x %u heads, layer %u, keys %s, %u of %u spans outside: error %.2e, log-sum-exp "
        "%.2e%s%s%s",
        gpu_path_name(l), s.head_dim, s.n_kv_heads, s.n_q, s.layer, keys_text(s).c_str(), n_outside, n_spans,
        worst, worst_lse, rows ? "" : ", new rows wrong", rest ? "" : ", touched what is not its own",
        same ? "" : ", rows without pages outside differ from the plain form's");
    const std::vector<float> first = w.out.host, first_lse = w.lse.host;
    w.out.poison();
    w.lse.poison();
    w.run(l);
    tap_ok(memcmp(first.data(), w.out.host.data(), first.size() * sizeof(float)) == 0 &&
               memcmp(first_lse.data(), w.lse.host.data(), first_lse.size() * sizeof(float)) == 0,
        "%s: and again the same bits", gpu_path_name(l));
}

static void check_outsides(const qkc_launch *l)
{
    for (uint32_t share : {0u, 2u, 5u, 8u}) {
        check_outside(l, shape_of(128, 2, 4, {257}, 1), share);
        check_outside(l, shape_of(128, 2, 4, {256, 513, 4000}, 4), share);
        check_outside(l, shape_of(64, 3, 5, {3001, 1025, 700, 1}, 8), share);
        /* Pieces of several spans, some with none left. */
        check_outside(l, shape_of(128, 1, 4, {33333, 20000}, 2), share);
        Shape layer1 = shape_of(128, 8, 4, {1500, 300, 2817, 40}, 16);
        layer1.layer = 1; /* reads ahead of the wait */
        check_outside(l, layer1, share);
    }
    check_outside(l, shape_of(64, 8, 2, std::vector<uint32_t>(48, 1100), 64), 6);
}

/* A step that was given up: nothing waits, nothing counts, the counters stay zero; the cancel flag is latched. */
static void check_state(const qkc_launch *l)
{
    Work w(shape_of(128, 2, 4, {1500, 40, 700}, 8));
    w.run(l);
    const std::vector<float> first = w.out.host;
    tap_ok(w.state.host[0] == QK_OK, "%s: the state stays without a cancel", gpu_path_name(l));

    *w.cancel = 1;
    w.run(l);
    tap_ok(w.state.host[0] == QK_CANCELLED && rest_untouched(w),
        "%s: a cancel is latched, the counters are zero", gpu_path_name(l));
    w.out.poison();
    w.run(l);
    bool written = false;
    for (float x : w.out.host)
        written = written || x == x;
    tap_ok(!written && w.state.host[0] == QK_CANCELLED && rest_untouched(w),
        "%s: a cancelled step writes no output, the counters are zero", gpu_path_name(l));

    *w.cancel = 1;
    w.state.host[0] = QK_INVALID;
    w.state.up();
    w.run(l);
    tap_ok(w.state.host[0] == QK_INVALID, "%s: a cancel does not hide an invalid step", gpu_path_name(l));

    *w.cancel = 0;
    w.state.host[0] = QK_OK;
    w.state.up();
    w.run(l);
    tap_ok(memcmp(first.data(), w.out.host.data(), first.size() * sizeof(float)) == 0,
        "%s: the step after gives the same bits as ever", gpu_path_name(l));
}

/* One captured launch for other lengths and numbers of sequences. */
static void check_capture(const qkc_launch *l)
{
    Work big(shape_of(128, 2, 4, {2000, 900, 1, 300, 4000}, 8));
    const qkc_attend_decode_args a = big.args();
    const cudaGraphExec_t exec = gpu_capture(l->stream, [&] { CUDA_OK(qkc_attend_decode(l, &a)); });
    bool right = true;
    for (int round = 0; round < 3; round++) {
        const std::vector<uint32_t> keys = round == 0 ? big.shape.keys
                                           : round == 1
                                               ? std::vector<uint32_t>{257, 3000}
                                               : std::vector<uint32_t>{1, 16, 4096, 77, 512, 100, 33};
        Work w(shape_of(128, 2, 4, keys, 8));
        /* The same plan at the captured launch's addresses. */
        tap_require(w.n_pages <= big.pages.host.size());
        CUDA_OK(
            cudaMemcpy(big.pages.dev, w.pages.dev, w.n_pages * sizeof(uint64_t), cudaMemcpyDeviceToDevice));
        CUDA_OK(cudaMemcpy(big.seqs.dev, w.seqs.dev, 8 * sizeof(qk_seq), cudaMemcpyDeviceToDevice));
        CUDA_OK(cudaMemcpy(big.counts.dev, w.counts.dev, 4 * sizeof(uint32_t), cudaMemcpyDeviceToDevice));
        CUDA_OK(
            cudaMemcpy(big.qkv.dev, w.qkv.dev, w.qkv.host.size() * sizeof(float), cudaMemcpyDeviceToDevice));
        CUDA_OK(cudaMemcpy(
            big.cos_sin.dev, w.cos_sin.dev, w.cos_sin.host.size() * sizeof(float), cudaMemcpyDeviceToDevice));
        big.out.poison();
        CUDA_OK(cudaGraphLaunch(exec, l->stream));
        CUDA_OK(cudaStreamSynchronize(l->stream));
        big.out.down();
        w.run(l);
        right = right && memcmp(big.out.host.data(), w.out.host.data(),
                             keys.size() * w.shape.q_dim() * sizeof(float)) == 0;
    }
    tap_ok(right, "%s: one captured launch is right for other lengths and numbers of sequences",
        gpu_path_name(l));
    cudaGraphExecDestroy(exec);
}

static void check_workspace(void)
{
    const size_t bytes = qkc_attend_decode_bytes(64, 32, 8, 128);
    tap_ok(bytes <= 70000000, "the workspace for 64 sequences of the reference shape is %.1f MB",
        (double)bytes / 1e6);
}

/* ---- Times --------------------------------------------------------------------------------------------------- */

__global__ void fill_random(uint32_t *to, size_t n)
{
    for (size_t i = blockIdx.x * (size_t)blockDim.x + threadIdx.x; i < n;
         i += (size_t)gridDim.x * blockDim.x) {
        const uint32_t x = (uint32_t)i * 2654435761u + (uint32_t)(i >> 20) * 40503u;
        to[i] = (x ^ x >> 15) & ~0x40004000u; /* bf16 below 2 in size, both signs */
    }
}

static __global__ void read_all(const uint4 *from, size_t n, uint32_t *out)
{
    uint32_t sum = 0;
    const size_t stride = (size_t)gridDim.x * blockDim.x;
    for (size_t i = blockIdx.x * (size_t)blockDim.x + threadIdx.x; i < n; i += 4 * stride) {
        uint4 v[4];
#pragma unroll
        for (int j = 0; j < 4; j++)
            v[j] = i + j * stride < n ? __ldcs(from + i + j * stride) : make_uint4(0, 0, 0, 0);
#pragma unroll
        for (int j = 0; j < 4; j++)
            sum ^= v[j].x ^ v[j].y ^ v[j].z ^ v[j].w;
    }
    if (sum == 0x12345678u)
        *out = sum;
}

static double read_bandwidth(const qkc_launch *l, const uint8_t *pool, size_t bytes)
{
    Array<uint32_t> out(1);
    const double ms = gpu_time(l->stream, 7, [&](int) {
        read_all<<<l->n_sms * 8, 256, 0, l->stream>>>((const uint4 *)pool, bytes / sizeof(uint4), out.dev);
    });
    return (double)bytes / ms * 1e3;
}

/* A chain of a model's layers, captured, over page tables in turn so that keys and values come from memory. */
static void bench(const qkc_launch *l, uint8_t *pool, size_t pool_bytes, double bandwidth, uint32_t n_keys,
    uint32_t n_seqs, bool int8)
{
    const uint32_t dim = 128, n_kv = 8, n_heads = 32, a_seq = n_pages_of(n_keys), n_pages = a_seq * n_seqs;
    qk_shape shape = {};
    shape.n_layers = BENCH_LAYERS, shape.n_kv_heads = n_kv, shape.head_dim = dim;
    qk_kv_layout layout;
    qk_kv_layout_page_major(&shape, int8 ? QK_I8 : QK_BF16, &layout);
    const double bytes = 2.0 * n_kv * (int8 ? dim + 2 : 2 * dim) * n_keys * n_seqs; /* a launch */
    const uint32_t n_pool = (uint32_t)(pool_bytes / layout.page_bytes);
    const uint32_t n_sets =
        std::min(n_pool / n_pages, std::max(1u, (uint32_t)ceil(BENCH_BYTES / bytes / BENCH_LAYERS)));
    if (n_sets == 0) {
        printf("# %u keys x %u: not enough memory\n", n_keys, n_seqs);
        return;
    }

    Array<uint64_t> pages((size_t)n_sets * n_pages);
    Array<uint32_t> counts(4), state(1);
    Array<qk_seq> seqs(n_seqs);
    Array<float> qkv((size_t)n_seqs * (n_heads + 2 * n_kv) * dim), out((size_t)n_seqs * n_heads * dim),
        norm(dim);
    Array<float> cos_sin((size_t)n_seqs * dim);
    Array<uint8_t> workspace(qkc_attend_decode_bytes(n_seqs, n_heads, n_kv, dim));
    Random r(3);
    std::vector<uint32_t> order(n_pool);
    for (uint32_t i = 0; i < n_pool; i++)
        order[i] = i;
    for (uint32_t i = n_pool - 1; i > 0; i--)
        std::swap(order[i], order[r.below(i + 1)]);
    for (size_t i = 0; i < pages.host.size(); i++)
        pages.host[i] = (uint64_t)(uintptr_t)pool + order[i] * layout.page_bytes;
    counts.host = {n_seqs, n_seqs, n_pages, n_seqs};
    for (uint32_t i = 0; i < n_seqs; i++) {
        seqs.host[i] = {};
        seqs.host[i].row_begin = i;
        seqs.host[i].n_rows = 1;
        seqs.host[i].start = n_keys - 1;
        seqs.host[i].page_begin = i * a_seq;
        seqs.host[i].n_pages = a_seq;
    }
    for (auto &x : qkv.host)
        x = r.normal();
    std::fill(norm.host.begin(), norm.host.end(), 1.0f);
    std::fill(cos_sin.host.begin(), cos_sin.host.end(), 0.7f);
    state.host[0] = QK_OK;
    for (Array<float> *a : {&qkv, &norm, &cos_sin})
        a->up();
    pages.up();
    counts.up();
    seqs.up();
    state.up();
    workspace.zero();

    std::vector<cudaGraphExec_t> exec(n_sets);
    for (uint32_t set = 0; set < n_sets; set++) {
        qkc_attend_decode_args a = {};
        a.qkv = qkv.dev;
        a.out = out.dev;
        a.q_norm = a.k_norm = norm.dev;
        a.eps = 1e-6f;
        a.n_heads = n_heads;
        a.n_kv_heads = n_kv;
        a.head_dim = dim;
        a.rows_max = n_seqs;
        a.layout = layout;
        a.plan.counts = counts.dev;
        a.plan.cos_sin = cos_sin.dev;
        a.plan.seqs = seqs.dev;
        a.plan.pages = pages.dev + (size_t)set * n_pages;
        a.plan.state = state.dev;
        a.workspace = workspace.dev;
        exec[set] = gpu_capture(l->stream, [&] {
            for (a.layer = 0; a.layer < BENCH_LAYERS; a.layer++)
                CUDA_OK(qkc_attend_decode(l, &a));
        });
    }
    const double ms = gpu_time(
        l->stream, 24, [&](int i) { CUDA_OK(cudaGraphLaunch(exec[(uint32_t)i % n_sets], l->stream)); });
    const double us = ms * 1e3 / BENCH_LAYERS;
    printf(
        "# %-8s %s %6u keys x %2u: %7.2f us a launch, %6.1f MB, %5.0f GB/s, %5.1f %% of read bandwidth (%u "
        "page sets)\n",
        gpu_path_name(l), int8 ? "int8" : "bf16", n_keys, n_seqs, us, bytes / 1e6, bytes / us / 1e3,
        100 * bytes / (us * 1e-6) / bandwidth, n_sets);
    for (auto e : exec)
        cudaGraphExecDestroy(e);
}

/* @only: keys and sequences of the one case to measure, or NULL. */
static int bench_all(const qkc_launch *paths, int n_paths, const uint32_t *only)
{
    uint8_t *pool;
    size_t n_free, n_all;
    CUDA_OK(cudaMemGetInfo(&n_free, &n_all));
    /* 128K keys and more, in as much memory as there is */
    const size_t pool_bytes = std::min((size_t)8192 * 36 * 65536 + ((size_t)1 << 30), n_free / 10 * 9);
    CUDA_OK(cudaMalloc(&pool, pool_bytes));
    fill_random<<<1024, 256>>>((uint32_t *)pool, pool_bytes / 4);
    CUDA_OK(cudaDeviceSynchronize());
    const double bandwidth = read_bandwidth(&paths[0], pool, READ_BYTES);
    printf("# read bandwidth %.0f GB/s\n", bandwidth / 1e9);
    const uint32_t cases[][2] = {{128, 1}, {1024, 1}, {4096, 1}, {8192, 1}, {16384, 1}, {32768, 1},
        {131072, 1}, {1024, 16}, {1024, 64}};
    for (int i = 0; i < n_paths; i++) {
        if (only != NULL)
            bench(&paths[i], pool, pool_bytes, bandwidth, only[0], only[1], false);
        else
            for (const auto &c : cases)
                for (bool int8 : {false, true})
                    bench(&paths[i], pool, pool_bytes, bandwidth, c[0], c[1], int8);
    }
    cudaFree(pool);
    return 0;
}

int main(int argc, char **argv)
{
    qkc_launch paths[2];
    gpu_require();
    const int n_paths = gpu_paths(paths);
    CUDA_OK(qkc_attend_decode_init());
    if (argc > 1 && strcmp(argv[1], "--bench") == 0) {
        const uint32_t only[2] = {
            argc > 3 ? (uint32_t)atoi(argv[2]) : 0, argc > 3 ? (uint32_t)atoi(argv[3]) : 0};
        return bench_all(paths, n_paths, argc > 3 ? only : NULL);
    }
    check_workspace();
    for (int i = 0; i < 2 * n_paths; i++) {
        int8_pages = i >= n_paths;
        const qkc_launch *l = &paths[i % n_paths];
        check_lengths(l);
        check_heads(l);
        check_batches(l);
        check_independence(l);
        check_mutations(l);
        check_outsides(l);
        check_state(l);
        check_capture(l);
    }
    return tap_done();
}
