/* test-gpu-rows.cu: prepare, RMSNorm, heads, SiLU. What is exact on the CPU (tokens, positions, embeddings, copies,
 * values into pages) is compared bit for bit, cosines and sines within one unit in the last place, the rest with
 * float64 within half a unit in bf16's last place. Every output array is filled with NaN before and longer than the
 * work: what must not be touched is looked at too. */
#include "tests/gpu/gpu-test.h"

/* Mapped pinned host memory. */
template <typename T> struct Pinned {
    T *host = nullptr, *dev = nullptr;
    explicit Pinned(size_t n)
    {
        CUDA_OK(cudaHostAlloc((void **)&host, std::max<size_t>(n, 4) * sizeof(T), cudaHostAllocMapped));
        CUDA_OK(cudaHostGetDevicePointer((void **)&dev, host, 0));
    }
    Pinned(const Pinned &) = delete;
    ~Pinned()
    {
        cudaFreeHost(host);
    }
};

/* A plan in host memory and its copy on the device, each array with some room behind it. */
struct Plan {
    uint32_t rows_max, head_dim, seqs_max, pages_max, outputs_max;
    Pinned<uint32_t> counts, cancel;
    Pinned<qkc_host_counts> copies;
    Pinned<qkc_host_row> rows;
    Pinned<int32_t> tokens;
    Pinned<qk_seq> seqs;
    Pinned<uint64_t> pages;
    Pinned<qk_output> outputs;
    Array<uint32_t> d_counts, d_position, d_row_seq, d_state;
    Array<int32_t> d_token;
    Array<float> d_cos_sin;
    Array<qk_seq> d_seqs;
    Array<uint64_t> d_pages;
    Array<qk_output> d_outputs;
    Plan(uint32_t n_rows, uint32_t n_seqs, uint32_t n_pages, uint32_t n_outputs, uint32_t dim)
        : rows_max(n_rows), head_dim(dim), seqs_max(n_seqs), pages_max(n_pages), outputs_max(n_outputs),
          counts(4), cancel(1), copies(QKC_PLAN_READERS), rows(n_rows + QKC_LINE_ROWS), tokens(n_rows),
          seqs(n_seqs), pages(n_pages), outputs(n_outputs), d_counts(4), d_position(n_rows),
          d_row_seq(n_rows), d_state(1), d_token(n_rows), d_cos_sin((size_t)n_rows * dim), d_seqs(n_seqs),
          d_pages(n_pages), d_outputs(n_outputs)
    {
        *cancel.host = 0;
    }
    /* As the host does before a launch of up to @launch_rows rows, over what was there before. */
    void write(uint32_t launch_rows)
    {
        qk_plan plan = {};
        plan.n_rows = counts.host[0], plan.n_seqs = counts.host[1];
        plan.n_pages = counts.host[2], plan.n_outputs = counts.host[3];
        plan.tokens = tokens.host, plan.seqs = seqs.host, plan.pages = pages.host,
        plan.outputs = outputs.host;
        memset((void *)copies.host, 0xff, QKC_PLAN_READERS * sizeof(*copies.host));
        memset((void *)rows.host, 0xff, (rows_max + QKC_LINE_ROWS) * sizeof(*rows.host));
        qkc_write_rows(&plan, launch_rows, copies.host, rows.host);
    }
    void poison()
    {
        d_counts.poison(), d_position.poison(), d_row_seq.poison(), d_state.poison(), d_token.poison();
        d_cos_sin.poison(), d_seqs.poison(), d_pages.poison(), d_outputs.poison();
    }
    qkc_host_plan from() const
    {
        return {copies.dev, rows.dev, tokens.dev, seqs.dev, pages.dev, outputs.dev, seqs_max, pages_max,
            outputs_max, cancel.dev};
    }
    qkc_plan to() const
    {
        return {d_counts.dev, d_token.dev, d_position.dev, d_row_seq.dev, d_cos_sin.dev, d_seqs.dev,
            d_pages.dev, d_outputs.dev, d_state.dev};
    }
    /* Sequences of these lengths at random starts, with their pages in order; n_outputs on ascending rows. */
    void fill(Random &random, const std::vector<uint32_t> &lengths, uint32_t start_max, uint32_t n_outputs)
    {
        uint32_t row = 0, page = 0, s = 0;
        for (uint32_t n : lengths) {
            qk_seq seq = {row, n, random.below(start_max), page, 0, 0};
            seq.n_pages = (seq.start + n + QK_PAGE_TOKENS - 1) / QK_PAGE_TOKENS;
            seqs.host[s++] = seq;
            row += n, page += seq.n_pages;
        }
        for (uint32_t i = 0; i < page; i++)
            pages.host[i] = ((uint64_t)random.next() << 32 | random.next()) & ~(uint64_t)QK_PAGE_HOST;
        for (uint32_t i = 0; i < n_outputs; i++) {
            uint8_t *bytes = (uint8_t *)&outputs.host[i];
            for (size_t j = 0; j < sizeof(qk_output); j++)
                bytes[j] = (uint8_t)random.next();
            outputs.host[i].row = (uint32_t)((uint64_t)i * row / n_outputs);
        }
        counts.host[0] = row, counts.host[1] = s, counts.host[2] = page, counts.host[3] = n_outputs;
    }
    /* The device's arrays as qkc_prepare() would leave them, but for cosines and sines. */
    void upload()
    {
        for (int i = 0; i < 4; i++)
            d_counts.host[i] = counts.host[i];
        for (uint32_t s = 0; s < counts.host[1]; s++) {
            d_seqs.host[s] = seqs.host[s];
            for (uint32_t i = 0; i < seqs.host[s].n_rows; i++) {
                d_position.host[seqs.host[s].row_begin + i] = seqs.host[s].start + i;
                d_row_seq.host[seqs.host[s].row_begin + i] = s;
            }
        }
        std::copy(pages.host, pages.host + counts.host[2], d_pages.host.begin());
        std::copy(outputs.host, outputs.host + counts.host[3], d_outputs.host.begin());
        d_state.host[0] = QK_OK;
        d_counts.up(), d_seqs.up(), d_position.up(), d_row_seq.up(), d_pages.up(), d_outputs.up(),
            d_state.up();
    }
};

static bool all_poison(const void *p, size_t n)
{
    const uint8_t *bytes = (const uint8_t *)p;
    return std::all_of(bytes, bytes + n, [](uint8_t b) { return b == 0xff; });
}

/* The first @n elements are @expected, the others untouched. */
template <typename T> static bool same_then_poison(Array<T> &a, const T *expected, size_t n)
{
    a.down();
    return memcmp(a.host.data(), expected, n * sizeof(T)) == 0 &&
           all_poison(a.host.data() + n, (a.host.size() - n) * sizeof(T));
}

static float bf16_to_float(qkc_bf16 x)
{
    return __bfloat162float(x);
}

static uint16_t bits_of(qkc_bf16 x)
{
    uint16_t bits;
    memcpy(&bits, &x, sizeof(bits));
    return bits;
}

/* How far @out is from @ref, in halves of the unit in bf16's last place (8 significant bits) at @ref; @slack is what
 * float32 may have lost before. Rounded right it is at most 1. */
static double halves_off(qkc_bf16 out, double ref, double slack)
{
    int exponent = -125;
    if (ref != 0)
        frexp(ref, &exponent);
    const double half = ldexp(1, std::max(exponent, -125) - 9);
    const double off = (fabs((double)bf16_to_float(out) - ref) - slack) / half;
    return isnan(off) ? INFINITY : off;
}
#define ROUNDED 1.0001 /* of halves_off(): right */

static std::vector<double> inverse_frequencies(uint32_t head_dim)
{
    std::vector<double> f(head_dim / 2);
    for (uint32_t i = 0; i < head_dim / 2; i++)
        f[i] = pow(1e6, -2.0 * i / head_dim);
    return f;
}

/* ---- Prepare ------------------------------------------------------------------------------------------------- */

#define VOCAB   1000u
#define N_SLOTS 96u

struct PrepareCase {
    const char *name;
    std::vector<uint32_t> lengths;
    uint32_t rows_more, start_max, n_outputs, hidden, head_dim;
};

static std::vector<uint32_t> mixed_lengths(uint32_t n)
{
    std::vector<uint32_t> lengths;
    for (uint32_t i = 0; i < n; i++)
        lengths.push_back(1 + i * 7 % 5);
    return lengths;
}

static uint32_t count_cos_sin_errors(const Plan &p, const std::vector<double> &inv_freq, float factor)
{
    uint32_t n_bad = 0, half = p.head_dim / 2;
    for (uint32_t s = 0; s < p.counts.host[1]; s++) {
        for (uint32_t i = 0; i < p.seqs.host[s].n_rows; i++) {
            const float *row = &p.d_cos_sin.host[(size_t)(p.seqs.host[s].row_begin + i) * p.head_dim];
            for (uint32_t d = 0; d < half; d++) {
                double angle = inv_freq[d] * (double)(p.seqs.host[s].start + i);
                float c = (float)(cos(angle) * (double)factor), sn = (float)(sin(angle) * (double)factor);
                n_bad += !(row[d] >= nextafterf(c, -INFINITY) && row[d] <= nextafterf(c, INFINITY));
                n_bad += !(
                    row[half + d] >= nextafterf(sn, -INFINITY) && row[half + d] <= nextafterf(sn, INFINITY));
            }
        }
    }
    return n_bad;
}

static void test_prepare(const qkc_launch *launch, const PrepareCase &c, uint64_t seed)
{
    Random random(seed);
    uint32_t n_rows = 0, pages_max = 3;
    for (uint32_t n : c.lengths) {
        n_rows += n;
        pages_max += (c.start_max + n) / QK_PAGE_TOKENS + 1;
    }
    const uint32_t rows_max = n_rows + c.rows_more;
    Plan p(rows_max, (uint32_t)c.lengths.size() + 2, pages_max, c.n_outputs + 2, c.head_dim);
    p.fill(random, c.lengths, c.start_max, c.n_outputs);
    Array<int32_t> slots(N_SLOTS);
    for (uint32_t i = 0; i < N_SLOTS; i++)
        slots.host[i] = i < N_SLOTS / 2 ? (int32_t)random.below(VOCAB) : -1;
    slots.up();
    Array<qkc_bf16> embed((size_t)VOCAB * c.hidden);
    for (auto &e : embed.host)
        e = __float2bfloat16(random.normal());
    embed.up();
    Array<double> inv_freq(c.head_dim / 2);
    inv_freq.host = inverse_frequencies(c.head_dim);
    inv_freq.up();
    Array<float> x((size_t)rows_max * c.hidden);

    std::vector<int32_t> token(n_rows);
    std::vector<float> rows((size_t)n_rows * c.hidden);
    for (uint32_t r = 0; r < rows_max; r++)
        p.tokens.host[r] =
            random.below(3) == 0 ? ~(int32_t)random.below(N_SLOTS / 2) : (int32_t)random.below(VOCAB);
    for (uint32_t r = 0; r < n_rows; r++) {
        const int32_t id = p.tokens.host[r];
        token[r] = id < 0 ? slots.host[~id] : id;
        for (uint32_t i = 0; i < c.hidden; i++)
            rows[(size_t)r * c.hidden + i] = bf16_to_float(embed.host[(size_t)token[r] * c.hidden + i]);
    }
    qkc_prepare_args args = {
        p.from(), p.to(), slots.dev, embed.dev, x.dev, inv_freq.dev, 1.25f, c.head_dim, c.hidden, rows_max};
    /* First a row that takes an unwritten slot: the state says so, and the next run's must not. */
    const uint32_t victim = random.below(n_rows);
    const int32_t kept = p.tokens.host[victim];
    p.tokens.host[victim] = ~(int32_t)(N_SLOTS - 1);
    p.write(rows_max);
    CUDA_OK(qkc_prepare(launch, &args));
    CUDA_OK(cudaStreamSynchronize(launch->stream));
    p.d_state.down();
    tap_ok(
        p.d_state.host[0] == QK_INVALID, "prepare, %s, %s: an unwritten slot", gpu_path_name(launch), c.name);

    p.tokens.host[victim] = kept;
    p.write(rows_max);
    p.poison(), x.poison();
    p.d_state.host[0] = QK_INVALID;
    p.d_state.up();
    CUDA_OK(qkc_prepare(launch, &args));
    CUDA_OK(cudaStreamSynchronize(launch->stream));
    std::vector<uint32_t> position, row_seq;
    for (uint32_t s = 0; s < c.lengths.size(); s++)
        for (uint32_t i = 0; i < c.lengths[s]; i++) {
            position.push_back(p.seqs.host[s].start + i);
            row_seq.push_back(s);
        }
    const uint32_t ok = QK_OK, *counts = p.counts.host;
    const bool plan = same_then_poison(p.d_state, &ok, 1) && same_then_poison(p.d_counts, counts, 4) &&
                      same_then_poison(p.d_seqs, p.seqs.host, counts[1]) &&
                      same_then_poison(p.d_pages, p.pages.host, counts[2]) &&
                      same_then_poison(p.d_outputs, p.outputs.host, counts[3]);
    tap_ok(plan, "prepare, %s, %s: the plan", gpu_path_name(launch), c.name);
    const bool exact = same_then_poison(p.d_token, token.data(), n_rows) &&
                       same_then_poison(p.d_position, position.data(), n_rows) &&
                       same_then_poison(p.d_row_seq, row_seq.data(), n_rows) &&
                       same_then_poison(x, rows.data(), rows.size());
    tap_ok(exact, "prepare, %s, %s: tokens, positions, embeddings", gpu_path_name(launch), c.name);
    p.d_cos_sin.down();
    const uint32_t n_bad = count_cos_sin_errors(p, inv_freq.host, args.rope_factor);
    const size_t used = (size_t)n_rows * c.head_dim;
    tap_ok(n_bad == 0 &&
               all_poison(p.d_cos_sin.host.data() + used, (p.d_cos_sin.host.size() - used) * sizeof(float)),
        "prepare, %s, %s: cosines and sines (%u off)", gpu_path_name(launch), c.name, n_bad);
}

/* ---- RMSNorm ------------------------------------------------------------------------------------------------- */

static void test_rms_norm(
    const qkc_launch *launch, uint32_t hidden, uint32_t n, uint32_t rows_max, bool gather)
{
    Random random(hidden * 31 + n + gather);
    const uint32_t n_rows = gather ? 3 * n + 1 : n;
    Plan p(std::max(n_rows, 1u), 1, 1, std::max(n, 1u), 64);
    p.fill(random, {std::max(n_rows, 1u)}, 1, gather ? n : 0);
    p.counts.host[0] = n_rows;
    p.counts.host[2] = 0;
    p.upload();
    Array<float> x((size_t)std::max(n_rows, 1u) * hidden), weight(hidden);
    for (auto &v : x.host)
        v = random.normal() * 3;
    for (auto &v : weight.host)
        v = 1 + random.uniform();
    x.up(), weight.up();
    Array<qkc_bf16> out((size_t)(rows_max + 1) * hidden);
    std::vector<qkc_bf16> first;
    bool good = true, same = true;
    double worst = 0;
    for (int run = 0; run < 2; run++) {
        out.poison();
        CUDA_OK(qkc_rms_norm(
            launch, out.dev, x.dev, weight.dev, 1e-6f, hidden, rows_max, p.to(), gather, p.cancel.dev));
        CUDA_OK(cudaStreamSynchronize(launch->stream));
        out.down();
        if (run == 0)
            first = out.host;
        same &= memcmp(first.data(), out.host.data(), first.size() * sizeof(qkc_bf16)) == 0;
    }
    for (uint32_t r = 0; r < rows_max; r++) {
        const qkc_bf16 *row = &out.host[(size_t)r * hidden];
        if (r >= n) {
            for (uint32_t i = 0; i < hidden; i++)
                good &= bits_of(row[i]) == 0;
            continue;
        }
        const float *from = &x.host[(size_t)(gather ? p.outputs.host[r].row : r) * hidden];
        double sum = 0;
        for (uint32_t i = 0; i < hidden; i++)
            sum += (double)from[i] * from[i];
        const double scale = 1 / sqrt(sum / hidden + 1e-6);
        for (uint32_t i = 0; i < hidden; i++)
            worst = std::max(worst, halves_off(row[i], from[i] * scale * weight.host[i],
                                        1e-6 * fabs(from[i] * scale * weight.host[i])));
    }
    good &= all_poison(&out.host[(size_t)rows_max * hidden], hidden * sizeof(qkc_bf16));
    p.d_state.down();
    tap_ok(good && worst <= ROUNDED && p.d_state.host[0] == QK_OK,
        "rms_norm, %s: hidden %u, %u of %u rows%s (%.5f half units off, the rest %s)", gpu_path_name(launch),
        hidden, n, rows_max, gather ? ", gathered" : "", worst, good ? "right" : "wrong");
    tap_ok(same, "rms_norm, %s: the same bits twice", gpu_path_name(launch));

    *p.cancel.host = 1;
    CUDA_OK(qkc_rms_norm(launch, out.dev, x.dev, weight.dev, 1e-6f, hidden, rows_max, p.to(), gather, NULL));
    CUDA_OK(cudaStreamSynchronize(launch->stream));
    p.d_state.down();
    bool latched = p.d_state.host[0] == QK_OK;
    CUDA_OK(qkc_rms_norm(
        launch, out.dev, x.dev, weight.dev, 1e-6f, hidden, rows_max, p.to(), gather, p.cancel.dev));
    CUDA_OK(cudaStreamSynchronize(launch->stream));
    p.d_state.down();
    latched &= p.d_state.host[0] == QK_CANCELLED;
    tap_ok(latched, "rms_norm, %s: latches the wish to cancel", gpu_path_name(launch));
}

/* ---- Heads --------------------------------------------------------------------------------------------------- */

struct HeadsCase {
    uint32_t n_heads, n_kv_heads, head_dim;
    std::vector<uint32_t> lengths;
    uint32_t rows_more;
    bool bf16;
};

struct HeadsData {
    uint32_t n_rows = 0, dim, q_dim, kv_dim;
    Array<float> qkv, q_norm, k_norm;
    Array<qkc_bf16> qkv_bf16;
    HeadsData(const HeadsCase &c, uint32_t rows_max)
        : dim(c.head_dim), q_dim(c.n_heads * dim), kv_dim(c.n_kv_heads * dim),
          qkv((size_t)rows_max * (q_dim + 2 * kv_dim)), q_norm(dim), k_norm(dim), qkv_bf16(qkv.host.size())
    {
    }
};

/* The head's norm and rotation in float64, and what float32 may lose of each element. */
static void turn(
    double *out, double *slack, const float *x, const float *norm, const float *cos_sin, uint32_t dim)
{
    double sum = 0;
    std::vector<double> y(dim);
    for (uint32_t i = 0; i < dim; i++)
        sum += (double)x[i] * x[i];
    for (uint32_t i = 0; i < dim; i++)
        y[i] = x[i] / sqrt(sum / dim + 1e-6) * norm[i];
    for (uint32_t i = 0; i < dim / 2; i++) {
        const double c = cos_sin[i], s = cos_sin[dim / 2 + i], a = y[i], b = y[i + dim / 2];
        out[i] = a * c - b * s;
        out[i + dim / 2] = b * c + a * s;
        slack[i] = slack[i + dim / 2] = 2e-6 * (fabs(a) + fabs(b));
    }
}

static void test_heads(const qkc_launch *launch, const HeadsCase &c)
{
    Random random(c.n_heads * 131 + c.n_kv_heads * 7 + c.head_dim + c.lengths.size());
    uint32_t n_rows = 0, n_pages = 0;
    for (uint32_t n : c.lengths)
        n_rows += n, n_pages += (100 + n) / QK_PAGE_TOKENS + 1;
    const uint32_t rows_max = n_rows + c.rows_more, n_layers = 3, layer = 1, dim = c.head_dim;
    HeadsData d(c, rows_max);
    Plan p(rows_max, (uint32_t)c.lengths.size(), n_pages, 1, dim);
    p.fill(random, c.lengths, 100, 0);
    qk_shape shape = {};
    shape.n_layers = n_layers, shape.n_kv_heads = c.n_kv_heads, shape.head_dim = dim;
    qk_kv_layout layout;
    qk_kv_layout_page_major(&shape, QK_BF16, &layout);
    Array<qkc_bf16> pool(layout.page_bytes / sizeof(qkc_bf16) * n_pages), q((size_t)rows_max * d.q_dim);
    std::vector<uint32_t> order(n_pages);
    for (uint32_t i = 0; i < n_pages; i++)
        order[i] = i;
    for (uint32_t i = n_pages - 1; i > 0; i--)
        std::swap(order[i], order[random.below(i + 1)]);
    for (uint32_t i = 0; i < p.counts.host[2]; i++)
        p.pages.host[i] = (uint64_t)(uintptr_t)pool.dev + order[i] * layout.page_bytes;
    p.upload();
    for (auto &v : p.d_cos_sin.host)
        v = random.uniform();
    p.d_cos_sin.up();
    for (size_t i = 0; i < d.qkv.host.size(); i++) {
        d.qkv_bf16.host[i] = __float2bfloat16(random.normal() * 2);
        d.qkv.host[i] = c.bf16 ? bf16_to_float(d.qkv_bf16.host[i]) : random.normal() * 2;
    }
    for (uint32_t i = 0; i < dim; i++)
        d.q_norm.host[i] = 1 + random.uniform(), d.k_norm.host[i] = 1 + random.uniform();
    d.qkv.up(), d.qkv_bf16.up(), d.q_norm.up(), d.k_norm.up();
    qkc_heads_args args = {c.bf16 ? NULL : d.qkv.dev, c.bf16 ? d.qkv_bf16.dev : NULL, q.dev, d.q_norm.dev,
        d.k_norm.dev, 1e-6f, c.n_heads, c.n_kv_heads, dim, layer, rows_max, layout, p.to()};
    pool.poison(), q.poison();
    CUDA_OK(qkc_heads(launch, &args));
    CUDA_OK(cudaStreamSynchronize(launch->stream));
    pool.down(), q.down();

    double q_worst = 0, k_worst = 0;
    bool v_good = true;
    std::vector<double> ref(dim), slack(dim);
    std::vector<qkc_bf16> rest =
        pool.host; /* what is checked is poisoned in it: the remainder must be poison */
    for (uint32_t r = 0; r < n_rows; r++) {
        const float *row = &d.qkv.host[(size_t)r * (d.q_dim + 2 * d.kv_dim)],
                    *cs = &p.d_cos_sin.host[(size_t)r * dim];
        for (uint32_t h = 0; h < c.n_heads; h++) {
            turn(ref.data(), slack.data(), row + h * dim, d.q_norm.host.data(), cs, dim);
            for (uint32_t i = 0; i < dim; i++)
                q_worst = std::max(
                    q_worst, halves_off(q.host[(size_t)r * d.q_dim + h * dim + i], ref[i], slack[i]));
        }
        const uint32_t position = p.d_position.host[r];
        const qk_seq &seq = p.seqs.host[p.d_row_seq.host[r]];
        const uint64_t page = order[seq.page_begin + position / QK_PAGE_TOKENS] * layout.page_bytes;
        for (uint32_t g = 0; g < c.n_kv_heads; g++) {
            const uint64_t at = (page + layer * layout.layer_stride + g * layout.head_stride +
                                    position % QK_PAGE_TOKENS * (uint64_t)layout.token_stride) /
                                sizeof(qkc_bf16),
                           v_at = at + layout.v_offset / sizeof(qkc_bf16);
            turn(ref.data(), slack.data(), row + d.q_dim + g * dim, d.k_norm.host.data(), cs, dim);
            for (uint32_t i = 0; i < dim; i++) {
                k_worst = std::max(k_worst, halves_off(pool.host[at + i], ref[i], slack[i]));
                v_good &= bits_of(pool.host[v_at + i]) ==
                          bits_of(__float2bfloat16(row[d.q_dim + d.kv_dim + g * dim + i]));
            }
            memset((void *)&rest[at], 0xff, dim * sizeof(qkc_bf16));
            memset((void *)&rest[v_at], 0xff, dim * sizeof(qkc_bf16));
        }
    }
    const char *name = gpu_path_name(launch), *type = c.bf16 ? "bf16" : "float32";
    const bool untouched =
        all_poison(&q.host[0] + (size_t)n_rows * d.q_dim, (size_t)c.rows_more * d.q_dim * 2);
    tap_ok(q_worst <= ROUNDED && untouched,
        "heads, %s, %u:%u heads of %u, %u of %u rows of %s: queries (%.5f half units off, the rest %s)", name,
        c.n_heads, c.n_kv_heads, dim, n_rows, rows_max, type, q_worst, untouched ? "untouched" : "touched");
    tap_ok(k_worst <= ROUNDED, "heads, %s: keys (%.5f half units off)", name, k_worst);
    tap_ok(v_good, "heads, %s: values, bit for bit", name);
    tap_ok(all_poison(rest.data(), rest.size() * sizeof(qkc_bf16)), "heads, %s: nothing else in the pages",
        name);
}

/* ---- SiLU ---------------------------------------------------------------------------------------------------- */

static void test_silu_mul(const qkc_launch *launch, uint32_t ffn, uint32_t n_rows, uint32_t rows_max)
{
    Random random(ffn + n_rows);
    Plan p(rows_max, 1, 1, 1, 64);
    p.fill(random, {n_rows}, 1, 0);
    p.counts.host[2] = 0;
    p.upload();
    Array<qkc_bf16> gate_up((size_t)rows_max * 2 * ffn), act((size_t)rows_max * ffn);
    for (auto &v : gate_up.host)
        v = __float2bfloat16(random.normal() * (random.below(16) == 0 ? 40 : 3));
    gate_up.up();
    act.poison();
    CUDA_OK(qkc_silu_mul(launch, act.dev, gate_up.dev, ffn, rows_max, p.to()));
    CUDA_OK(cudaStreamSynchronize(launch->stream));
    act.down();
    double worst = 0;
    for (uint32_t r = 0; r < n_rows; r++)
        for (uint32_t i = 0; i < ffn; i++) {
            const double g = bf16_to_float(gate_up.host[(size_t)r * 2 * ffn + i]);
            const double u = bf16_to_float(gate_up.host[(size_t)r * 2 * ffn + ffn + i]);
            const double ref = g / (1 + exp(-g)) * u;
            worst = std::max(worst, halves_off(act.host[(size_t)r * ffn + i], ref, 1e-5 * fabs(ref) + 1e-30));
        }
    const size_t used = (size_t)n_rows * ffn;
    const bool untouched = all_poison(&act.host[0] + used, (act.host.size() - used) * 2);
    tap_ok(worst <= ROUNDED && untouched,
        "silu_mul, %s: ffn %u, %u of %u rows (%.5f half units off, the rest %s)", gpu_path_name(launch), ffn,
        n_rows, rows_max, worst, untouched ? "untouched" : "touched");
}

/* ---- Times --------------------------------------------------------------------------------------------------- */

static void report(const char *op, const qkc_launch *launch, uint32_t rows, double ms, double bytes)
{
    printf("%-32s %-8s %5u rows  %8.2f us", op, gpu_path_name(launch), rows, ms * 1e3);
    if (bytes > 0)
        printf("  %7.1f MB  %6.0f GB/s", bytes / 1e6, bytes / ms / 1e6);
    printf("\n");
}

/* Milliseconds of one of @n launches that run one after the other out of a graph, as in a step. */
template <typename F> static double chain_time(const qkc_launch *launch, int n, F fn)
{
    const cudaGraphExec_t exec = gpu_capture(launch->stream, [&] {
        for (int i = 0; i < n; i++)
            fn(i);
    });
    const double ms =
        gpu_time(launch->stream, 15, [&](int) { CUDA_OK(cudaGraphLaunch(exec, launch->stream)); });
    cudaGraphExecDestroy(exec);
    return ms / n;
}

static void bench(const qkc_launch *launch)
{
    const uint32_t hidden = 2560, ffn = 9728, rows = 2048, sets = 4, n_chain = 16;
    Random random(1);
    HeadsCase c = {32, 8, 128, {rows}, 0, true};
    HeadsData d(c, rows * sets);
    Plan p(rows, 64, 4096 + 64, 64, 128);
    qk_shape shape = {};
    shape.n_layers = 1, shape.n_kv_heads = 8, shape.head_dim = 128;
    qk_kv_layout layout;
    qk_kv_layout_page_major(&shape, QK_BF16, &layout);
    Array<qkc_bf16> pool(layout.page_bytes / 2 * 260 * sets), q((size_t)rows * d.q_dim * sets);
    Array<float> x((size_t)rows * hidden * sets), weight(hidden);
    Array<qkc_bf16> out((size_t)rows * hidden * sets), gate_up((size_t)rows * 2 * ffn * 2),
        act((size_t)rows * ffn * 2);
    Array<qkc_bf16> embed((size_t)20000 * hidden);
    Array<int32_t> slots(4);
    Array<double> inv_freq(64);
    inv_freq.host = inverse_frequencies(128);
    inv_freq.up(), x.zero(), weight.zero(), d.qkv_bf16.zero(), d.q_norm.zero(), d.k_norm.zero(),
        gate_up.zero();
    embed.zero(), slots.zero();

    const struct {
        uint32_t n, pages; /* rows, pages of each sequence */
    } prepares[] = {
        {1, 8}, {1, 256}, {1, 2048}, {2, 64}, {16, 64}, {64, 8}, {64, 64}, {256, 2048}, {rows, 2048}};
    for (const auto &c : prepares) {
        const bool prompt = c.n > 64;
        p.fill(
            random, prompt ? std::vector<uint32_t>{c.n} : std::vector<uint32_t>(c.n, 1), 1, prompt ? 1 : c.n);
        for (uint32_t i = 0; i < p.counts.host[1]; i++) {
            qk_seq &seq = p.seqs.host[i];
            seq.page_begin = i * c.pages, seq.n_pages = c.pages;
            seq.start = c.pages * QK_PAGE_TOKENS - seq.n_rows;
        }
        p.counts.host[2] = p.counts.host[1] * c.pages;
        for (uint32_t i = 0; i < c.n; i++)
            p.tokens.host[i] = prompt ? (int32_t)random.below(20000) : ~0;
        p.write(c.n);
        qkc_prepare_args args = {
            p.from(), p.to(), slots.dev, embed.dev, x.dev, inv_freq.dev, 1, 128, hidden, c.n};
        char name[32];
        snprintf(name, sizeof(name), "prepare, %u pages a sequence", c.pages);
        report(name, launch, c.n,
            chain_time(launch, n_chain, [&](int) { CUDA_OK(qkc_prepare(launch, &args)); }), 0);
    }
    for (uint32_t n : {64u, 256u, rows}) {
        p.fill(random, {n}, 1, 0);
        for (uint32_t i = 0; i < p.counts.host[2]; i++)
            p.pages.host[i] = (uint64_t)(uintptr_t)pool.dev + i * layout.page_bytes;
        p.upload();
        p.d_cos_sin.zero();
        double ms = chain_time(launch, n_chain, [&](int i) {
            const size_t at = (size_t)(i % sets) * rows * hidden;
            CUDA_OK(qkc_rms_norm(
                launch, out.dev + at, x.dev + at, weight.dev, 1e-6f, hidden, n, p.to(), false, p.cancel.dev));
        });
        report("rms_norm", launch, n, ms, (double)n * hidden * 6);
        ms = chain_time(launch, n_chain, [&](int i) {
            const size_t s = i % sets;
            qkc_heads_args args = {NULL, d.qkv_bf16.dev + s * rows * 6144, q.dev + s * rows * d.q_dim,
                d.q_norm.dev, d.k_norm.dev, 1e-6f, 32, 8, 128, 0, n, layout, p.to()};
            CUDA_OK(qkc_heads(launch, &args));
        });
        report("heads", launch, n, ms, (double)n * 6144 * 4);
        ms = chain_time(launch, n_chain, [&](int i) {
            const size_t at = (size_t)(i % 2) * rows * ffn;
            CUDA_OK(qkc_silu_mul(launch, act.dev + at, gate_up.dev + 2 * at, ffn, n, p.to()));
        });
        report("silu_mul", launch, n, ms, (double)n * ffn * 6);
    }
}

int main(int argc, char **argv)
{
    gpu_require();
    qkc_launch paths[2];
    const int n_paths = gpu_paths(paths);
    if (argc > 1 && strcmp(argv[1], "--bench") == 0) {
        for (int i = 0; i < n_paths; i++)
            bench(&paths[i]);
        return 0;
    }
    const PrepareCase prepare_cases[] = {
        {"one row", {1}, 0, 3000, 1, 2560, 128},
        {"one row of 64", {1}, 63, 1000000, 0, 256, 64},
        {"one row, many pages", {1}, 0, 1000000, 1, 256, 128},
        {"64 sequences, many pages", std::vector<uint32_t>(64, 1), 0, 30000, 64, 256, 128},
        {"five sequences", {1, 1, 1, 1, 1}, 3, 500, 5, 256, 128},
        {"64 sequences", std::vector<uint32_t>(64, 1), 0, 5000, 64, 1024, 128},
        {"one prompt", {300}, 84, 40000, 1, 264, 128},
        {"prompts and replies", {100, 1, 1, 35}, 11, 2000, 4, 512, 64},
        {"a long prompt", {1, 1999}, 48, 100, 2, 2560, 128},
        {"many sequences", mixed_lengths(300), 100, 700, 301, 256, 64},
        {"many rows", {9000}, 7, 20000, 3, 256, 128},
    };
    for (int i = 0; i < n_paths; i++) {
        const qkc_launch *l = &paths[i];
        uint64_t seed = 1;
        for (const PrepareCase &c : prepare_cases)
            test_prepare(l, c, seed++);
        for (uint32_t hidden : {8u, 256u, 520u, 1024u, 2048u, 2560u, 4096u, 5120u})
            test_rms_norm(l, hidden, 5, 7, false);
        test_rms_norm(l, 2560, 300, 300, false);
        test_rms_norm(l, 1024, 64, 128, true);
        test_rms_norm(l, 2560, 0, 3, true);
        test_rms_norm(l, 2560, 1, 1, true);
        test_heads(l, {32, 8, 128, {40, 1, 1, 17}, 5, true});
        test_heads(l, {32, 8, 128, {1, 1, 1}, 0, false});
        test_heads(l, {16, 8, 128, {33}, 31, true});
        test_heads(l, {14, 2, 64, {3, 50}, 1, true});
        test_heads(l, {14, 2, 64, {3, 5}, 1, false});
        test_heads(l, {40, 8, 128, {70}, 0, true});
        test_heads(l, {8, 8, 64, {9}, 2, false});
        test_heads(l, {5, 1, 128, {19}, 2, true});
        test_heads(l, {1, 1, 64, {2}, 0, true});
        test_silu_mul(l, 96, 3, 5);
        test_silu_mul(l, 8, 1, 1);
        test_silu_mul(l, 9728, 70, 128);
        test_silu_mul(l, 3072, 257, 257);
    }
    return tap_done();
}
