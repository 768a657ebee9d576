/* test-gpu-select.cu: bounds, the choice of pages and attention to the chosen ones, against float64 on the host. Pages stand
 * in the sequences several times, so that scores are equal and the first of equals has to be taken. */
#include "tests/gpu/gpu-test.h"
extern "C" {
#include "kernels/cpu/select.h"
}

static qkc_launch paths[2];

typedef struct {
    uint32_t n_keys; /* with the new one */
    uint32_t n_sink, n_recent, n_chosen;
} sequence;

static float from_bf16(uint16_t x)
{
    const uint32_t bits = (uint32_t)x << 16;
    float f;
    memcpy(&f, &bits, 4);
    return f;
}

static uint16_t to_bf16(float x)
{
    uint32_t bits;
    memcpy(&bits, &x, 4);
    return (uint16_t)((bits + 0x7fffu + (bits >> 16 & 1)) >> 16);
}

/* One decode step's worth of attention. */
struct Case {
    uint32_t dim, n_kv, n_q, n_layers = 2, layer = 1, n_distinct;
    std::vector<sequence> seqs;
    qk_shape shape = {};
    qk_kv_layout layout = {};
    uint64_t bounds_bytes;
    std::vector<uint32_t>
        table; /* page table: index of the distinct page; the last of a sequence is its own */
    std::vector<uint32_t> begin;
    std::vector<double> out;                               /* [n_seqs, n_heads, dim] */
    std::vector<double> q;                                 /* the same: normalised and rotated */
    std::vector<std::vector<std::vector<uint32_t>>> lists; /* [n_seqs][n_kv]: chosen indices, all */
    double margin = INFINITY;
};

static void set_up(Case &c, Random &random)
{
    c.shape.n_layers = c.n_layers, c.shape.n_kv_heads = c.n_kv, c.shape.n_heads = c.n_kv * c.n_q;
    c.shape.head_dim = c.dim;
    qk_kv_layout_page_major(&c.shape, QK_BF16, &c.layout);
    c.bounds_bytes = qk_bounds_bytes(&c.shape, QK_BF16);
    uint32_t own = c.n_distinct - (uint32_t)c.seqs.size();
    for (const sequence &s : c.seqs) {
        const uint32_t n_pages = (s.n_keys + 15) / 16;
        c.begin.push_back((uint32_t)c.table.size());
        for (uint32_t p = 0; p + 1 < n_pages; p++)
            c.table.push_back(random.below(c.n_distinct - (uint32_t)c.seqs.size()));
        c.table.push_back(own++);
    }
}

static const uint16_t *slice_of(
    const Case &c, const std::vector<uint16_t> &pages, uint32_t page, uint32_t head)
{
    return pages.data() +
           (page * c.layout.page_bytes + c.layer * c.layout.layer_stride + head * c.layout.head_stride) / 2;
}

static void reference(Case &c, const std::vector<uint16_t> &pages, const std::vector<float> &qkv,
    const std::vector<float> &q_norm, const std::vector<float> &k_norm, const std::vector<float> &cos_sin,
    float eps)
{
    const uint32_t dim = c.dim, n_heads = c.n_kv * c.n_q, width = (n_heads + 2 * c.n_kv) * dim;
    c.out.assign(c.seqs.size() * n_heads * dim, 0);
    c.lists.resize(c.seqs.size());
    for (size_t s = 0; s < c.seqs.size(); s++) {
        const sequence &seq = c.seqs[s];
        const uint32_t n_pages = (seq.n_keys + 15) / 16, n_kept = seq.n_sink + seq.n_recent + seq.n_chosen;
        auto head_of = [&](uint32_t at, const std::vector<float> *norm) {
            std::vector<double> x(dim), y(dim);
            double sum = 0;
            for (uint32_t d = 0; d < dim; d++)
                sum += (double)qkv[s * width + at + d] * qkv[s * width + at + d];
            for (uint32_t d = 0; d < dim; d++)
                x[d] = norm ? qkv[s * width + at + d] / sqrt(sum / dim + eps) * (*norm)[d]
                            : qkv[s * width + at + d];
            for (uint32_t d = 0; norm && d < dim / 2; d++) {
                const double co = cos_sin[s * dim + d], si = cos_sin[s * dim + dim / 2 + d];
                y[d] = x[d] * co - x[d + dim / 2] * si;
                y[d + dim / 2] = x[d + dim / 2] * co + x[d] * si;
            }
            return norm ? y : x;
        };
        for (uint32_t head = 0; head < c.n_kv; head++) {
            std::vector<std::vector<double>> q;
            for (uint32_t h = 0; h < c.n_q; h++)
                q.push_back(head_of((head * c.n_q + h) * dim, &q_norm));
            const std::vector<double> new_k = head_of((n_heads + head) * dim, &k_norm);
            const std::vector<double> new_v = head_of((n_heads + c.n_kv + head) * dim, NULL);
            std::vector<uint32_t> list;
            if (seq.n_recent == 0 || n_kept >= n_pages) {
                for (uint32_t p = 0; p < n_pages; p++)
                    list.push_back(p);
            } else {
                std::vector<std::pair<double, uint32_t>> scores;
                for (uint32_t p = seq.n_sink; p < n_pages - seq.n_recent; p++) {
                    const uint16_t *k = slice_of(c, pages, c.table[c.begin[s] + p], head);
                    double all = 0;
                    for (uint32_t h = 0; h < c.n_q; h++) {
                        double sum = 0;
                        for (uint32_t d = 0; d < dim; d++) {
                            double low = INFINITY, high = -INFINITY;
                            for (uint32_t t = 0; t < 16; t++) {
                                low = std::min(low, (double)from_bf16(k[t * dim + d]));
                                high = std::max(high, (double)from_bf16(k[t * dim + d]));
                            }
                            sum += std::max(q[h][d] * low, q[h][d] * high);
                        }
                        all += sum;
                    }
                    scores.push_back({-all, p});
                }
                std::sort(scores.begin(), scores.end());
                for (uint32_t p = 0; p < seq.n_sink; p++)
                    list.push_back(p);
                for (uint32_t i = 0; i < seq.n_chosen; i++)
                    list.push_back(scores[i].second);
                for (uint32_t p = n_pages - seq.n_recent; p < n_pages; p++)
                    list.push_back(p);
                std::sort(list.begin(), list.end());
                /* Equal scores are of the same page, and no near miss. */
                for (uint32_t i = seq.n_chosen; seq.n_chosen > 0 && i < scores.size(); i++) {
                    const double gap = scores[i].first - scores[seq.n_chosen - 1].first;
                    if (gap > 0) {
                        c.margin = std::min(c.margin, gap / fabs(scores[i].first));
                        break;
                    }
                }
            }
            for (uint32_t h = 0; h < c.n_q; h++) {
                std::vector<double> score;
                double max = -INFINITY, sum = 0;
                auto each = [&](auto fn) {
                    size_t at = 0;
                    for (uint32_t p : list) {
                        const uint16_t *k = slice_of(c, pages, c.table[c.begin[s] + p], head);
                        for (uint32_t t = 0; t < 16 && p * 16 + t < seq.n_keys; t++)
                            fn(at++, k + t * dim, p * 16 + t + 1 == seq.n_keys);
                    }
                };
                each([&](size_t, const uint16_t *k, bool is_new) {
                    double x = 0;
                    for (uint32_t d = 0; d < dim; d++)
                        x += q[h][d] *
                             (is_new ? (double)from_bf16(to_bf16((float)new_k[d])) : from_bf16(k[d]));
                    score.push_back(x / sqrt(dim));
                    max = std::max(max, score.back());
                });
                double *out = &c.out[(s * n_heads + head * c.n_q + h) * dim];
                each([&](size_t at, const uint16_t *k, bool is_new) {
                    const double w = exp(score[at] - max);
                    sum += w;
                    for (uint32_t d = 0; d < dim; d++)
                        out[d] += w * (is_new ? (double)from_bf16(to_bf16((float)new_v[d]))
                                              : from_bf16(k[c.layout.v_offset / 2 + d]));
                });
                for (uint32_t d = 0; d < dim; d++)
                    out[d] /= sum;
            }
            c.lists[s].push_back(list);
        }
    }
}

static void run_case(const char *name, uint32_t dim, uint32_t n_kv, uint32_t n_q, uint32_t n_distinct,
    std::vector<sequence> seqs, uint64_t seed, bool on_host)
{
    Case c;
    Random random(seed);
    c.dim = dim, c.n_kv = n_kv, c.n_q = n_q, c.n_distinct = n_distinct, c.seqs = seqs;
    set_up(c, random);
    const uint32_t n_seqs = (uint32_t)seqs.size(), n_heads = n_kv * n_q, width = (n_heads + 2 * n_kv) * dim;
    const uint32_t pages_max = (uint32_t)c.table.size() + 5;
    uint32_t n_listed = 0, n_scored_max = 0, stride;
    const float eps = 1e-6f;

    std::vector<uint16_t> host_pages(n_distinct * c.layout.page_bytes / 2);
    for (uint16_t &x : host_pages)
        x = to_bf16(random.normal());
    uint16_t *pages;
    CUDA_OK(on_host ? cudaHostAlloc(&pages, host_pages.size() * 2, cudaHostAllocMapped)
                    : cudaMalloc(&pages, host_pages.size() * 2));
    CUDA_OK(cudaMemcpy(pages, host_pages.data(), host_pages.size() * 2, cudaMemcpyDefault));
    /* Pages that hold the new tokens are written: always in device memory. */
    Array<uint16_t> own(n_seqs * c.layout.page_bytes / 2);
    memcpy(own.host.data(), host_pages.data() + (n_distinct - n_seqs) * c.layout.page_bytes / 2,
        own.host.size() * 2);
    own.up();

    Array<float> qkv(n_seqs * width), q_norm(dim), k_norm(dim), cos_sin(n_seqs * dim),
        out(n_seqs * n_heads * dim);
    for (float &x : qkv.host)
        x = random.normal();
    for (uint32_t d = 0; d < dim; d++)
        q_norm.host[d] = 1 + 0.3f * random.uniform(), k_norm.host[d] = 1 + 0.3f * random.uniform();
    for (uint32_t s = 0; s < n_seqs; s++)
        for (uint32_t d = 0; d < dim / 2; d++) {
            const float angle = 3 * random.uniform();
            cos_sin.host[s * dim + d] = cosf(angle), cos_sin.host[s * dim + dim / 2 + d] = sinf(angle);
        }
    qkv.up(), q_norm.up(), k_norm.up(), cos_sin.up();
    reference(c, host_pages, qkv.host, q_norm.host, k_norm.host, cos_sin.host, eps);

    Array<uint32_t> counts(4), state(4);
    Array<qk_seq> plan_seqs(n_seqs);
    Array<uint64_t> bounds_table(pages_max);
    Array<char> bounds(n_distinct * c.bounds_bytes);
    counts.host = {n_seqs, n_seqs, (uint32_t)c.table.size(), 0};
    state.host = {QK_OK, 0, 0, 0};
    for (uint32_t s = 0; s < n_seqs; s++) {
        const uint32_t n_pages = (seqs[s].n_keys + 15) / 16;
        qk_seq seq = {};
        seq.row_begin = s, seq.n_rows = 1, seq.start = seqs[s].n_keys - 1;
        seq.page_begin = c.begin[s], seq.n_pages = n_pages;
        seq.n_sink = seqs[s].n_sink, seq.n_recent = seqs[s].n_recent, seq.n_chosen = seqs[s].n_chosen;
        plan_seqs.host[s] = seq;
        if (qk_seq_leaves_out(&seq)) {
            n_listed += qk_seq_n_attended(&seq);
            n_scored_max = std::max(n_scored_max, n_pages - seq.n_sink - seq.n_recent);
        }
    }
    stride = n_listed + 3;
    Array<uint64_t> table(pages_max + n_kv * stride);
    Array<uint32_t> keys(n_kv * pages_max);
    std::vector<qk_bounds> items;
    auto address = [&](uint32_t page) {
        return page >= n_distinct - n_seqs
                   ? (uint64_t)(uintptr_t)own.dev + (page - (n_distinct - n_seqs)) * c.layout.page_bytes
                   : (uint64_t)(uintptr_t)pages + page * c.layout.page_bytes;
    };
    for (size_t i = 0; i < c.table.size(); i++) {
        table.host[i] = address(c.table[i]);
        bounds_table.host[i] = (uint64_t)(uintptr_t)bounds.dev + c.table[i] * c.bounds_bytes;
    }
    for (uint32_t p = 0; p < n_distinct - n_seqs; p++)
        items.push_back({address(p) | (on_host ? QK_PAGE_HOST : 0),
            (uint64_t)(uintptr_t)bounds.dev + p * c.bounds_bytes});
    counts.up(), plan_seqs.up(), bounds_table.up();

    for (int path = 0; path < 2 && paths[path].n_sms > 0; path++) {
        const qkc_launch *l = &paths[path];
        const char *form = gpu_path_name(l);
        bounds.poison(), out.poison(), keys.poison();
        state.up(), table.up();
        Array<char> workspace(qkc_attend_decode_bytes(n_seqs, n_heads, n_kv, dim));
        workspace.zero();
        CUDA_OK(qkc_make_bounds(l, items.data(), (uint32_t)items.size(), &c.layout, c.n_layers, n_kv, dim));
        qkc_select_args a = {};
        a.qkv = qkv.dev, a.q_norm = q_norm.dev, a.eps = eps;
        a.n_heads = n_heads, a.n_kv_heads = n_kv, a.head_dim = dim, a.layer = c.layer, a.rows_max = n_seqs;
        a.plan.counts = counts.dev, a.plan.seqs = plan_seqs.dev, a.plan.pages = table.dev;
        a.plan.cos_sin = cos_sin.dev, a.plan.state = state.dev;
        a.bounds = bounds_table.dev, a.keys = keys.dev, a.pages_max = pages_max;
        a.n_scored_max = n_scored_max, a.lists_begin = pages_max, a.lists_stride = stride;
        CUDA_OK(qkc_select(l, &a));
        qkc_attend_decode_args d = {};
        d.qkv = qkv.dev, d.out = out.dev, d.q_norm = q_norm.dev, d.k_norm = k_norm.dev, d.eps = eps;
        d.n_heads = n_heads, d.n_kv_heads = n_kv, d.head_dim = dim, d.layer = c.layer, d.rows_max = n_seqs;
        d.layout = c.layout, d.plan = a.plan, d.workspace = workspace.dev;
        d.lists_begin = pages_max, d.lists_stride = stride;
        CUDA_OK(qkc_attend_decode(l, &d));
        CUDA_OK(cudaStreamSynchronize(l->stream));
        bounds.down(), table.down(), out.down();

        bool right = true;
        std::vector<uint16_t> want(2 * dim);
        for (uint32_t p = 0; p < n_distinct - n_seqs; p++)
            for (uint32_t layer = 0; layer < c.n_layers; layer++)
                for (uint32_t h = 0; h < n_kv; h++) {
                    const uint16_t *k =
                        host_pages.data() +
                        (p * c.layout.page_bytes + layer * c.layout.layer_stride + h * c.layout.head_stride) /
                            2;
                    qk_bounds_of_slice(QK_BF16, k, c.layout.token_stride, dim, want.data());
                    const uint16_t *got = (const uint16_t *)(bounds.host.data() + p * c.bounds_bytes) +
                                          (layer * n_kv + h) * 2 * dim;
                    for (uint32_t i = 0; i < 2 * dim; i++)
                        right = right && from_bf16(got[i]) == from_bf16(want[i]);
                }
        tap_ok(right, "%s, %s: bounds of %u pages", name, form, (uint32_t)items.size());

        uint32_t base = 0, n_wrong = 0, n_lists = 0;
        for (uint32_t s = 0; s < n_seqs; s++) {
            if (!qk_seq_leaves_out(&plan_seqs.host[s]))
                continue;
            for (uint32_t h = 0; h < n_kv; h++, n_lists++)
                for (uint32_t i = 0; i < c.lists[s][h].size(); i++)
                    n_wrong += table.host[pages_max + h * stride + base + i] !=
                               table.host[c.begin[s] + c.lists[s][h][i]];
            base += qk_seq_n_attended(&plan_seqs.host[s]);
        }
        tap_require(c.margin > 1e-6);
        tap_ok(n_wrong == 0, "%s, %s: %u lists (margin %.1e): %u wrong entries", name, form, n_lists,
            c.margin, n_wrong);
        double worst = 0;
        for (uint32_t r = 0; r < n_seqs * n_heads; r++)
            worst = std::max(worst, relative_error(&out.host[r * dim], &c.out[r * dim], dim));
        tap_ok(worst < 1e-4, "%s, %s: attention within %.1e", name, form, worst);
    }
    cudaGetLastError();
    on_host ? cudaFreeHost(pages) : cudaFree(pages);
}

/* Times at the reference shape: 36 layers are this 36 times. */
static void bench(void)
{
    const uint32_t dim = 128, n_kv = 8, n_heads = 32, n_pages_of[] = {512, 2048, 8192, 16384};
    qk_shape shape = {};
    shape.n_layers = 1, shape.n_kv_heads = n_kv, shape.n_heads = n_heads, shape.head_dim = dim;
    qk_kv_layout layout;
    qk_kv_layout_page_major(&shape, QK_BF16, &layout);
    const uint64_t bounds_bytes = qk_bounds_bytes(&shape, QK_BF16);
    for (uint32_t n_pages : n_pages_of) {
        Array<char> pages(n_pages * layout.page_bytes), bounds(n_pages * bounds_bytes);
        Array<float> qkv((n_heads + 2 * n_kv) * dim), norm(dim), cos_sin(dim), out(n_heads * dim);
        Array<uint32_t> counts(4), state(4), keys(n_kv * n_pages);
        Array<qk_seq> seqs(1);
        Array<uint64_t> table(n_pages + n_kv * 164), bounds_table(n_pages);
        Array<char> workspace(qkc_attend_decode_bytes(1, n_heads, n_kv, dim));
        Random random(n_pages);
        for (size_t i = 0; i < pages.host.size() / 2; i++)
            ((uint16_t *)pages.host.data())[i] = to_bf16(random.normal());
        for (float &x : qkv.host)
            x = random.normal();
        for (uint32_t d = 0; d < dim; d++)
            norm.host[d] = 1, cos_sin.host[d] = d < dim / 2;
        counts.host = {1, 1, n_pages, 0}, state.host = {QK_OK, 0, 0, 0};
        qk_seq seq = {};
        seq.n_rows = 1, seq.start = n_pages * 16 - 1, seq.n_pages = n_pages;
        seq.n_sink = 4, seq.n_recent = 32, seq.n_chosen = 128;
        seqs.host[0] = seq;
        std::vector<qk_bounds> items;
        for (uint32_t p = 0; p < n_pages; p++) {
            table.host[p] = (uint64_t)(uintptr_t)pages.dev + p * layout.page_bytes;
            bounds_table.host[p] = (uint64_t)(uintptr_t)bounds.dev + p * bounds_bytes;
            items.push_back({table.host[p], bounds_table.host[p]});
        }
        pages.up(), qkv.up(), norm.up(), cos_sin.up(), counts.up(), state.up(), seqs.up(), table.up(),
            bounds_table.up();
        workspace.zero();
        const qkc_launch *l = &paths[paths[1].n_sms > 0 ? 1 : 0];
        qkc_select_args a = {};
        a.qkv = qkv.dev, a.q_norm = norm.dev, a.eps = 1e-6f;
        a.n_heads = n_heads, a.n_kv_heads = n_kv, a.head_dim = dim, a.rows_max = 1;
        a.plan.counts = counts.dev, a.plan.seqs = seqs.dev, a.plan.pages = table.dev;
        a.plan.cos_sin = cos_sin.dev, a.plan.state = state.dev;
        a.bounds = bounds_table.dev, a.keys = keys.dev, a.pages_max = n_pages;
        a.n_scored_max = n_pages - 36, a.lists_begin = n_pages, a.lists_stride = 164;
        qkc_attend_decode_args d = {};
        d.qkv = qkv.dev, d.out = out.dev, d.q_norm = norm.dev, d.k_norm = norm.dev, d.eps = 1e-6f;
        d.n_heads = n_heads, d.n_kv_heads = n_kv, d.head_dim = dim, d.rows_max = 1;
        d.layout = layout, d.plan = a.plan, d.workspace = workspace.dev;
        const double t_bounds = gpu_time(l->stream, 5,
            [&](int) { CUDA_OK(qkc_make_bounds(l, items.data(), n_pages, &layout, 1, n_kv, dim)); });
        const double t_exact = gpu_time(l->stream, 20, [&](int) { CUDA_OK(qkc_attend_decode(l, &d)); });
        d.lists_begin = n_pages, d.lists_stride = 164;
        const double t_select = gpu_time(l->stream, 20, [&](int) { CUDA_OK(qkc_select(l, &a)); });
        const double t_both = gpu_time(l->stream, 20, [&](int) {
            CUDA_OK(qkc_select(l, &a));
            CUDA_OK(qkc_attend_decode(l, &d));
        });
        printf("# %6u tokens, a layer: exact %.1f us; choosing %.1f us, with the attention %.1f us; making "
               "bounds %.1f us\n",
            n_pages * 16, t_exact * 1e3, t_select * 1e3, t_both * 1e3, t_bounds * 1e3);
    }
}

int main(int argc, char **argv)
{
    gpu_require();
    paths[1].n_sms = 0;
    gpu_paths(paths);
    CUDA_OK(qkc_attend_decode_init());
    CUDA_OK(qkc_select_init());
    if (argc > 1 && strcmp(argv[1], "--bench") == 0) {
        bench();
        return 0;
    }
    run_case("8 kv heads of 128", 128, 8, 4, 200, {{1500, 2, 3, 10}}, 1, false);
    run_case("in host memory", 128, 8, 4, 200, {{1500, 2, 3, 10}}, 2, true);
    run_case("several sequences", 64, 2, 3, 300,
        {{100, 0, 0, 0}, {2001, 1, 2, 20}, {40, 4, 32, 128}, {5000, 4, 32, 100}, {4097, 0, 1, 0}}, 3, false);
    run_case("one query head", 64, 4, 1, 80, {{1033, 0, 5, 7}}, 4, false);
    run_case("eight query heads", 128, 1, 8, 80, {{999, 3, 2, 40}, {1000, 3, 2, 40}}, 5, false);
    run_case("more keys than registers hold", 64, 2, 2, 400,
        {{330000, 4, 32, 128}, {262144 + 700, 4, 32, 3000}}, 6, false);
    run_case("defaults at 32K", 128, 8, 4, 500, {{32768, 4, 32, 128}}, 7, false);
    return tap_done();
}
