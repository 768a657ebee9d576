/* test-gpu-linear-hopper.cu: qkc_linear_hopper() against float64 on the host. `--bench [rows...]` times the layers' chain
 * instead, weights cold, and what else could be chosen. */
#include "tests/gpu/linear-test.h"
#include "kernels/cuda/linear-hopper.h"

/* ---- The reference ------------------------------------------------------------------------------------------- */

typedef struct {
    uint32_t n_out, n_in, rows_max, n_rows;
    qkc_then then;
    bool norm, next, outputs;
} Case;

static const uint32_t N_SQUARES = 37;

struct Inputs {
    Array<qkc_bf16> w, x;
    Array<float> squares, next, y0;
    Array<uint32_t> counts, state;
    Inputs(const Case &c, Random &random)
        : w((size_t)c.n_out * (c.then == QKC_SILU_MUL ? 2 : 1) * c.n_in), x((size_t)c.rows_max * c.n_in),
          squares(N_SQUARES * QKC_SMALL_ROWS), next(c.n_out), y0((size_t)c.rows_max * c.n_out), counts(4),
          state(1)
    {
        const float scale = 1.0f / sqrtf((float)c.n_in);
        for (auto &v : w.host)
            v = __float2bfloat16_rn(random.uniform() * 1.7f * scale);
        for (size_t i = 0; i < x.host.size(); i++) /* rows of different size; those past the count are NaN */
            x.host[i] =
                __float2bfloat16_rn(i / c.n_in < c.n_rows ? random.normal() * (1 + i / c.n_in % 5) : NAN);
        for (size_t i = 0; i < squares.host.size(); i++)
            squares.host[i] = i % QKC_SMALL_ROWS < c.n_rows ? 50 * (1 + random.uniform()) : NAN;
        for (auto &v : next.host)
            v = 1 + 0.5f * random.uniform();
        for (auto &v : y0.host)
            v = random.normal();
        counts.host = {77777, 77777, 77777, 77777};
        counts.host[c.outputs ? 3 : 0] = c.n_rows;
        state.host = {QK_OK};
        w.up(), x.up(), squares.up(), next.up(), y0.up(), counts.up(), state.up();
    }
};

/* [n_rows, n_out]; @size: of each, as reference_output(). */
static std::vector<double> reference(const Case &c, const Inputs &in, std::vector<double> &size)
{
    std::vector<double> y((size_t)c.n_rows * c.n_out), scale(c.n_rows, 1.0);
    size.resize(y.size());
    for (uint32_t r = 0; r < c.n_rows && c.norm; r++) {
        double sum = 0;
        for (uint32_t i = 0; i < N_SQUARES; i++)
            sum += in.squares.host[i * QKC_SMALL_ROWS + r];
        scale[r] = 1 / sqrt(sum / c.n_in + EPS);
    }
    std::vector<float> w(in.w.host.size()), x(in.x.host.size());
    in_parallel(64, [&](uint32_t i) {
        for (size_t j = w.size() * i / 64; j < w.size() * (i + 1) / 64; j++)
            w[j] = __bfloat162float(in.w.host[j]);
    });
    for (size_t j = 0; j < x.size(); j++)
        x[j] = __bfloat162float(in.x.host[j]);
    in_parallel(c.n_out, [&](uint32_t o) {
        for (uint32_t r = 0; r < c.n_rows; r++) {
            double sum[2] = {0, 0}, terms[2] = {0, 0};
            for (int half = 0; half < (c.then == QKC_SILU_MUL ? 2 : 1); half++) {
                const float *a = &w[((size_t)half * c.n_out + o) * c.n_in], *b = &x[(size_t)r * c.n_in];
                reference_sum(a, b, c.n_in, &sum[half], &terms[half]);
                sum[half] *= scale[r], terms[half] *= scale[r];
            }
            const size_t at = (size_t)r * c.n_out + o;
            y[at] = reference_output(c.then, sum, terms, in.y0.host[at], &size[at]);
        }
    });
    return y;
}

/* ---- Checks -------------------------------------------------------------------------------------------------- */

struct Outputs {
    Array<float> y, squares;
    Array<qkc_bf16> y16;
    explicit Outputs(const Case &c)
        : y((size_t)c.rows_max * c.n_out), squares(c.n_out * QKC_SMALL_ROWS),
          y16((size_t)c.rows_max * c.n_out)
    {
    }
};

static qkc_linear_hopper_args arguments(const Case &c, const Inputs &in, const Outputs &out)
{
    qkc_linear_hopper_args a = {};
    a.w = in.w.dev;
    a.x = in.x.dev;
    if (c.norm)
        a.squares = in.squares.dev, a.n_squares = N_SQUARES;
    a.eps = EPS;
    a.y = out.y.dev;
    a.y16 = out.y16.dev;
    if (c.next)
        a.next_norm = in.next.dev, a.next_squares = out.squares.dev;
    a.n_out = c.n_out, a.n_in = c.n_in, a.rows_max = c.rows_max;
    a.then = c.then;
    a.outputs = c.outputs;
    a.plan.counts = in.counts.dev;
    a.plan.state = in.state.dev;
    return a;
}

/* Runs once; y starts as y0 for QKC_ADD, all else as NaN. */
static void run(const qkc_launch *l, const Case &c, const Inputs &in, const qkc_linear_hopper_tuning *tuning,
    Outputs &out)
{
    out.y.poison(), out.y16.poison(), out.squares.poison();
    if (c.then == QKC_ADD)
        CUDA_OK(
            cudaMemcpy(out.y.dev, in.y0.dev, out.y.host.size() * sizeof(float), cudaMemcpyDeviceToDevice));
    const qkc_linear_hopper_args a = arguments(c, in, out);
    CUDA_OK(tuning != NULL ? qkc_linear_hopper_tuned(l, &a, tuning) : qkc_linear_hopper(l, &a));
    CUDA_OK(cudaStreamSynchronize(l->stream));
    out.y.down(), out.y16.down(), out.squares.down();
}

static double worst_row(
    const Case &c, const Outputs &out, const std::vector<double> &ref, const std::vector<double> &size)
{
    return worst_row_of(c.n_rows, c.n_out, ref, size, [&](size_t i) {
        return c.then == QKC_SILU_MUL ? (double)__bfloat162float(out.y16.host[i]) : (double)out.y.host[i];
    });
}

/* What the next product takes is bf16(y * next) to the last bit, and the squares of y. */
static bool next_right(const Case &c, const Inputs &in, const Outputs &out, uint32_t n_groups)
{
    bool right = true;
    for (uint32_t r = 0; r < c.n_rows && c.next; r++) {
        double squares = 0, sum = 0;
        for (uint32_t o = 0; o < c.n_out; o++) {
            const size_t at = (size_t)r * c.n_out + o;
            const float v = __bfloat162float(__float2bfloat16_rn(out.y.host[at] * in.next.host[o]));
            right = right && __bfloat162float(out.y16.host[at]) == v;
            squares += (double)out.y.host[at] * out.y.host[at];
        }
        for (uint32_t i = 0; i < n_groups; i++)
            sum += out.squares.host[i * QKC_SMALL_ROWS + r];
        right = right && fabs(sum - squares) < 1e-5 * squares;
    }
    return right;
}

template <typename T> static bool all_ones(const std::vector<T> &v, size_t from)
{
    for (size_t i = from * sizeof(T); i < v.size() * sizeof(T); i++)
        if (((const uint8_t *)v.data())[i] != 0xff)
            return false;
    return true;
}

static bool rows_beyond_untouched(const Case &c, const Inputs &in, const Outputs &out)
{
    const size_t from = (size_t)c.n_rows * c.n_out;
    const bool y = c.then == QKC_ADD ? memcmp(out.y.host.data() + from, in.y0.host.data() + from,
                                           (out.y.host.size() - from) * sizeof(float)) == 0
                                     : all_ones(out.y.host, c.then == QKC_SILU_MUL ? 0 : from);
    return y && all_ones(out.y16.host, c.then == QKC_SILU_MUL || c.next ? from : 0);
}

static void check(const qkc_launch *l, const Case &c, const std::vector<qkc_linear_hopper_tuning> &tunings)
{
    static uint64_t seed = 1;
    Random random(seed++);
    Inputs in(c, random);
    std::vector<double> size, ref = reference(c, in, size);
    /* Tensor cores truncate their float32 sums, so that errors grow with their number; SiLU's output is bf16. */
    const double most = 1e-5 + 5e-9 * c.n_in + (c.then == QKC_SILU_MUL ? 3e-3 : 0);
    Outputs out(c), again(c);
    const uint32_t n_groups = [&] {
        const qkc_linear_hopper_args a = arguments(c, in, out);
        return qkc_linear_hopper_groups(l, &a);
    }();
    for (size_t t = 0; t <= tunings.size(); t++) {
        const qkc_linear_hopper_tuning *tuning = t ? &tunings[t - 1] : NULL;
        run(l, c, in, tuning, out);
        run(l, c, in, tuning, again);
        const double error = worst_row(c, out, ref, size);
        const bool untouched = rows_beyond_untouched(c, in, out),
                   next = tuning || next_right(c, in, out, n_groups);
        const bool same =
            memcmp(out.y.host.data(), again.y.host.data(), out.y.host.size() * sizeof(float)) == 0 &&
            memcmp((const void *)out.y16.host.data(), (const void *)again.y16.host.data(),
                out.y16.host.size() * sizeof(qkc_bf16)) == 0;
        tap_ok(error < most && untouched && next && same,
            "%s [%u, %u] rows %u of %u%s%s%s tuning %zu: error %.1e%s%s%s", then_name(c.then), c.n_out,
            c.n_in, c.n_rows, c.rows_max, c.norm ? " norm" : "", c.next ? " next" : "",
            c.outputs ? " outputs" : "", t, error, untouched ? "" : ", ROWS BEYOND CHANGED",
            next ? "" : ", NEXT WRONG", same ? "" : ", NOT THE SAME TWICE");
    }
}

/* A cancelled step, or one without rows, ends without an error and without a store. */
static void check_nothing_to_do(const qkc_launch *l)
{
    for (uint32_t rows_max : {2u, 16u, 64u})
        for (qkc_then then : {QKC_STORE, QKC_ADD, QKC_SILU_MUL}) {
            Case c = {304, 2560, rows_max, 0, then, true, then == QKC_ADD, false};
            Random random(7);
            Inputs in(c, random);
            Outputs out(c);
            run(l, c, in, NULL, out);
            bool untouched = rows_beyond_untouched(c, in, out) && all_ones(out.squares.host, 0);
            in.counts.host[0] = rows_max;
            in.state.host[0] = QK_CANCELLED;
            in.counts.up(), in.state.up();
            run(l, c, in, NULL, out);
            untouched = untouched && rows_beyond_untouched(c, in, out) && all_ones(out.squares.host, 0);
            tap_ok(untouched, "%s: no rows of %u, and a cancelled step", then_name(then), rows_max);
        }
}

/* The products of layers, the norms between them carried on, in buffers of their own. */
struct Chain {
    uint32_t hidden, q_dim, qkv_dim, ffn, n_layers, vocab;
    size_t layer; /* weights */
    qkc_bf16 *w = nullptr;
    Array<float> x, qkv, logits, norm, squares;
    Array<qkc_bf16> x16, attn16, act16;
    Array<uint32_t> counts, state;

    Chain(uint32_t hidden, uint32_t q_dim, uint32_t qkv_dim, uint32_t ffn, uint32_t n_layers, uint32_t vocab)
        : hidden(hidden), q_dim(q_dim), qkv_dim(qkv_dim), ffn(ffn), n_layers(n_layers), vocab(vocab),
          layer((size_t)qkv_dim * hidden + (size_t)hidden * q_dim + (size_t)3 * ffn * hidden), x(64 * hidden),
          qkv(64 * qkv_dim), logits((size_t)64 * vocab), norm(hidden),
          squares(QKC_LINEAR_HOPPER_GROUPS * QKC_SMALL_ROWS), x16(64 * hidden), attn16(64 * q_dim),
          act16((size_t)64 * ffn), counts(4), state(1)
    {
        CUDA_OK(cudaMalloc(&w, bytes()));
        for (auto &v : norm.host)
            v = 1;
        state.host = {QK_OK};
        norm.up(), state.up();
        start(1);
    }
    ~Chain()
    {
        cudaFree(w);
    }
    size_t bytes() const
    {
        return (n_layers * layer + (size_t)vocab * hidden) * sizeof(qkc_bf16);
    }
    void start(uint64_t seed)
    {
        Random random(seed);
        for (auto &v : x.host)
            v = random.normal();
        for (size_t i = 0; i < x16.host.size(); i++)
            x16.host[i] = __float2bfloat16_rn(x.host[i]);
        for (auto &v : attn16.host)
            v = __float2bfloat16_rn(random.normal());
        for (auto &v : squares.host)
            v = (float)hidden;
        x.up(), x16.up(), attn16.up(), squares.up();
        act16.poison(), qkv.poison(), logits.poison();
    }
    /* Product @i of layer @l: QKV, O, gate and up, down; 4: lm_head. */
    qkc_linear_hopper_args product(const qkc_launch *launch, uint32_t rows, uint32_t l, uint32_t i)
    {
        qkc_linear_hopper_args a = {};
        a.w = w + l * layer;
        a.eps = EPS;
        a.rows_max = rows;
        a.plan.counts = counts.dev, a.plan.state = state.dev;
        a.n_in = hidden, a.x = x16.dev;
        if (i == 0 || i == 2) /* by the product before, or in the first layer some numbers */
            a.squares = squares.dev, a.n_squares = n_squares(launch, rows, i == 0 ? 3 : 1);
        if (i == 0)
            a.y = qkv.dev, a.n_out = qkv_dim;
        if (i == 1)
            a.w += (size_t)qkv_dim * hidden, a.x = attn16.dev, a.n_in = q_dim;
        if (i == 2)
            a.w += (size_t)qkv_dim * hidden + (size_t)hidden * q_dim, a.n_out = ffn, a.y16 = act16.dev,
                                                                      a.then = QKC_SILU_MUL;
        if (i == 3)
            a.w += (size_t)qkv_dim * hidden + (size_t)hidden * q_dim + (size_t)2 * ffn * hidden,
                a.x = act16.dev, a.n_in = ffn;
        if (i == 1 || i == 3)
            a.n_out = hidden, a.y = x.dev, a.y16 = x16.dev, a.next_norm = norm.dev,
            a.next_squares = squares.dev, a.then = QKC_ADD;
        if (i == 4)
            a.w = w + n_layers * layer, a.y = logits.dev, a.n_out = vocab, a.outputs = true;
        return a;
    }
    uint32_t n_squares(const qkc_launch *launch, uint32_t rows, uint32_t i)
    {
        qkc_linear_hopper_args a = {};
        a.n_out = hidden, a.n_in = i == 1 ? q_dim : ffn, a.rows_max = rows, a.then = QKC_ADD;
        return qkc_linear_hopper_groups(launch, &a);
    }
    static double bytes_of(const qkc_linear_hopper_args &a)
    {
        return 2.0 * a.n_in * a.n_out * (a.then == QKC_SILU_MUL ? 2 : 1);
    }
};

/* A captured chain of dependent products replays to what the same calls give one by one: with overlapping launches a
 * kernel that read too early would differ. */
static void check_chain(const qkc_launch *l, uint32_t rows)
{
    Chain chain(768, 1024, 1536, 2304, 12, 8);
    fill_weights<<<256, 256>>>((uint32_t *)chain.w, chain.bytes() / 4, 0.05f);
    chain.counts.host = {rows, rows, rows, rows};
    chain.counts.up();
    auto layers = [&](bool wait) {
        for (uint32_t i = 0; i < chain.n_layers; i++)
            for (uint32_t j = 0; j < 4; j++) {
                const qkc_linear_hopper_args a = chain.product(l, rows, i, j);
                CUDA_OK(qkc_linear_hopper(l, &a));
                if (wait)
                    CUDA_OK(cudaStreamSynchronize(l->stream));
            }
    };
    CUDA_OK(cudaDeviceSynchronize());
    layers(true);
    chain.x.down(), chain.qkv.down();
    const std::vector<float> want = chain.x.host, want_qkv = chain.qkv.host;
    const cudaGraphExec_t exec = gpu_capture(l->stream, [&] { layers(false); });
    uint32_t n_different = 0;
    bool finite = true;
    for (uint32_t i = 0; i < 20; i++) {
        chain.start(1);
        CUDA_OK(cudaGraphLaunch(exec, l->stream));
        CUDA_OK(cudaStreamSynchronize(l->stream));
        chain.x.down(), chain.qkv.down();
        n_different +=
            memcmp(chain.x.host.data(), want.data(), want.size() * sizeof(float)) != 0 ||
            memcmp(chain.qkv.host.data(), want_qkv.data(), (size_t)rows * chain.qkv_dim * sizeof(float)) != 0;
        for (uint32_t k = 0; k < rows * chain.hidden; k++)
            finite = finite && std::isfinite(chain.x.host[k]);
    }
    CUDA_OK(cudaGraphExecDestroy(exec));
    tap_ok(n_different == 0 && finite,
        "%u layers of %u rows in a graph, %u of 20 runs differ from single calls%s", chain.n_layers, rows,
        n_different, finite ? "" : ", NOT FINITE");
}

static void check_all(const qkc_launch *l)
{
    const std::vector<qkc_linear_hopper_tuning> none;
    std::vector<qkc_linear_hopper_tuning> many;
    for (uint32_t cluster = 1; cluster <= 8; cluster *= 2)
        for (uint32_t rows : {16u, 80u, 96u, 136u, 192u})
            many.push_back({cluster, rows, cluster == 2 ? 2u : 0u, cluster == 4});
    const qkc_then thens[] = {QKC_STORE, QKC_ADD, QKC_SILU_MUL};
    const uint32_t odd_out[] = {8, 40, 136, 1000}, odd_in[] = {8, 264, 520, 1000};
    uint32_t n = 0;
    for (uint32_t rows_max : {2u, 8u, 16u, 32u, 64u})
        for (qkc_then then : thens)
            for (uint32_t n_out : odd_out)
                for (uint32_t n_in : odd_in) {
                    Random random(n++);
                    const uint32_t n_rows = random.below(2) ? rows_max : 1 + random.below(rows_max);
                    check(l,
                        {n_out, n_in, rows_max, n_rows, then, random.below(2) != 0,
                            then == QKC_ADD && random.below(2), random.below(2) != 0},
                        none);
                }
    for (uint32_t rows_max : {3u, 16u, 27u, 64u}) { /* the models' shapes */
        const uint32_t n_rows = (rows_max * 3 + 3) / 4;
        check(l, {6144, 2560, rows_max, n_rows, QKC_STORE, true, false, false}, none);
        check(l, {2560, 4096, rows_max, rows_max, QKC_ADD, false, true, false}, none);
        check(l, {2560, 9728, rows_max, n_rows, QKC_ADD, false, true, false}, none);
        check(l, {9728, 2560, rows_max, n_rows, QKC_SILU_MUL, true, false, false}, none);
        check(l, {768, 256, rows_max, rows_max, QKC_SILU_MUL, true, false, false}, none);
        check(l, {256, 768, rows_max, rows_max, QKC_ADD, false, true, false}, none);
        check(l, {80008, 256, rows_max, n_rows, QKC_STORE, false, false, true}, none);
    }
    for (uint32_t rows_max : {8u, 16u, 32u, 64u}) {
        check(l, {1528, 1288, rows_max, rows_max - 1, QKC_SILU_MUL, true, false, false}, many);
        check(l, {616, 4104, rows_max, rows_max, QKC_ADD, true, true, true}, many);
    }
    check_nothing_to_do(l);
    for (uint32_t rows : {2u, 8u, 16u, 32u, 64u})
        check_chain(l, rows);
}

/* ---- Times --------------------------------------------------------------------------------------------------- */

struct Bench {
    Chain chain;
    double read_gbs;
    Bench() : chain(2560, 4096, 6144, 9728, 36, 151936)
    {
        fill_weights<<<2048, 256>>>((uint32_t *)chain.w, chain.bytes() / 4, 0.03f);
        CUDA_OK(cudaDeviceSynchronize());
        read_gbs = read_rate(chain.w, chain.bytes(), chain.counts.dev);
    }
    /* Of a graph of the products @mask (bit i: product i) of all layers (4: once), with a tuning for each product. */
    void line(const qkc_launch *l, uint32_t rows, const char *name, uint32_t mask,
        const qkc_linear_hopper_tuning *tunings, const char *what)
    {
        double n_bytes = 0;
        chain.counts.host = {rows, rows, 0, rows};
        chain.counts.up();
        chain.start(3);
        auto products = [&] {
            for (uint32_t i = 0; i < chain.n_layers; i++)
                for (uint32_t j = 0; j < 5; j++)
                    if (mask >> j & 1 && (j < 4 || i == chain.n_layers - 1)) {
                        const qkc_linear_hopper_args a = chain.product(l, rows, i, j);
                        n_bytes += Chain::bytes_of(a);
                        CUDA_OK(qkc_linear_hopper_tuned(l, &a, &tunings[j]));
                    }
        };
        const double us = gpu_time_graph(l->stream, products, [] {});
        const double gbs = n_bytes / us / 1e3;
        printf("rows %2u  %-8s %8.2f us  %5.0f GB/s  %5.1f%%  %s\n", rows, name,
            mask == 16 ? us : us / chain.n_layers, gbs, 100 * gbs / read_gbs, what);
        fflush(stdout);
    }
};

static void bench(const qkc_launch *l, const std::vector<uint32_t> &rows, bool variants)
{
    static const char *names[] = {"QKV", "O", "gate,up", "down", "lm_head"};
    const qkc_linear_hopper_tuning defaults[5] = {};
    Bench b;
    for (uint32_t n : rows) {
        for (uint32_t j = 0; j < 5; j++)
            b.line(l, n, names[j], 1u << j, defaults, "");
        b.line(l, n, "chain", 15, defaults, "<- of a layer");
        b.line(l, n, "step", 31, defaults, "with lm_head");
    }
    for (uint32_t n : rows) {
        if (!variants)
            break;
        char what[96];
        for (uint32_t stages : {0u, 4u, 3u})
            for (bool late : {false, true}) {
                const qkc_linear_hopper_tuning t = {0, 0, stages, late}, same[5] = {t, t, t, t, t};
                snprintf(what, sizeof(what), "stages %u%s", stages, late ? " late" : "");
                b.line(l, n, "chain", 15, same, what);
            }
        static const uint32_t shapes[4][4][2] = {
            {{1, 48}, {2, 96}, {2, 48}, {1, 24}},
            {{4, 80}, {2, 40}, {4, 88}, {2, 24}},
            {{1, 160}, {2, 160}, {2, 192}, {2, 144}},
            {{4, 80}, {2, 40}, {4, 88}, {2, 24}},
        };
        for (uint32_t j = 0; j < 4; j++)
            for (const auto &s : shapes[j]) {
                qkc_linear_hopper_tuning one[5] = {};
                one[j].cluster = s[0], one[j].rows = s[1];
                snprintf(what, sizeof(what), "cluster %u rows %u", s[0], s[1]);
                b.line(l, n, names[j], 1u << j, one, what);
            }
    }
}

int main(int argc, char **argv)
{
    qkc_launch paths[2];
    gpu_require();
    if (gpu_paths(paths) < 2) {
        printf("1..0 # SKIP no card of compute capability 9.0\n");
        return 0;
    }
    CUDA_OK(qkc_linear_hopper_init());
    if (argc > 1 && strncmp(argv[1], "--bench", 7) == 0) {
        std::vector<uint32_t> rows;
        for (int i = 2; i < argc; i++)
            rows.push_back((uint32_t)atoi(argv[i]));
        if (rows.empty())
            rows = {2, 8, 16, 32, 64};
        bench(&paths[1], rows, strcmp(argv[1], "--bench-all") == 0);
        return 0;
    }
    check_all(&paths[1]);
    return tap_done();
}
