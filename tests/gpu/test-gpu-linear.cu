/* test-gpu-linear.cu: qkc_linear() against float64 on the host, for one row (float32 input, or as two bf16 numbers) and for 2
 * to 64 (tensor cores, input rounded to bf16), on both paths. `--bench [rows...]` times the layers' chain instead. */
#include "tests/gpu/linear-test.h"
#include "kernels/cuda/linear.h"

/* ---- The reference ------------------------------------------------------------------------------------------- */

typedef struct {
    uint32_t n_out, n_in, rows_max, n_rows;
    qkc_then then;
    bool norm, gather;
} Case;

static const uint32_t SOURCE_ROWS = 80; /* rows of x that gathered work may name */

static double rounded(double v)
{
    return (double)__bfloat162float(__float2bfloat16_rn((float)v));
}

struct Inputs {
    Array<qkc_bf16> w;
    Array<float> x, norm, y0;
    Array<uint32_t> counts, state;
    Array<qk_output> outputs;
    Inputs(const Case &c, Random &random)
        : w((size_t)c.n_out * (c.then == QKC_SILU_MUL ? 2 : 1) * c.n_in), x((size_t)SOURCE_ROWS * c.n_in),
          norm(c.n_in), y0((size_t)c.rows_max * c.n_out), counts(4), state(1), outputs(QKC_SMALL_ROWS)
    {
        float scale = 1.0f / sqrtf((float)c.n_in);
        for (auto &v : w.host)
            v = __float2bfloat16_rn(random.uniform() * 1.7f * scale);
        for (size_t i = 0; i < x.host.size(); i++) /* rows of different size, some elements large */
            x.host[i] = random.normal() * (1 + i / c.n_in % 5) * (random.below(50) == 0 ? 20 : 1);
        for (auto &v : norm.host)
            v = 1 + 0.5f * random.uniform();
        for (auto &v : y0.host)
            v = random.normal();
        counts.host = {77777, 77777, 77777, 77777};
        counts.host[c.gather ? 3 : 0] = c.n_rows;
        state.host = {QK_OK};
        memset(outputs.host.data(), 0xff, outputs.host.size() * sizeof(qk_output));
        for (uint32_t i = 0; i < c.n_rows; i++)
            outputs.host[i].row = i * (SOURCE_ROWS - 1) / QKC_SMALL_ROWS + random.below(2);
        w.up(), x.up(), norm.up(), y0.up(), counts.up(), state.up(), outputs.up();
    }
};

/* [n_rows, n_out]. @round: as the tensor cores' input is, bf16(x * weight). @size: of each, as
 * reference_output(). */
static std::vector<double> reference(const Case &c, const Inputs &in, bool round, std::vector<double> &size)
{
    size.resize((size_t)c.n_rows * c.n_out);
    std::vector<double> y((size_t)c.n_rows * c.n_out), f((size_t)c.n_rows * c.n_in), scale(c.n_rows, 1.0);
    for (uint32_t r = 0; r < c.n_rows; r++) {
        const float *x = &in.x.host[(size_t)(c.gather ? in.outputs.host[r].row : r) * c.n_in];
        double squares = 0;
        for (uint32_t k = 0; k < c.n_in; k++) {
            squares += (double)x[k] * x[k];
            float v = c.norm ? x[k] * in.norm.host[k] : x[k];
            f[(size_t)r * c.n_in + k] = round ? rounded(v) : c.norm ? (double)x[k] * in.norm.host[k] : x[k];
        }
        if (c.norm)
            scale[r] = 1 / sqrt(squares / c.n_in + EPS);
    }
    std::vector<float> w(in.w.host.size());
    in_parallel(64, [&](uint32_t i) {
        for (size_t j = w.size() * i / 64; j < w.size() * (i + 1) / 64; j++)
            w[j] = __bfloat162float(in.w.host[j]);
    });
    in_parallel(c.n_out, [&](uint32_t o) {
        for (uint32_t r = 0; r < c.n_rows; r++) {
            double sum[2] = {0, 0}, terms[2] = {0, 0};
            for (int half = 0; half < (c.then == QKC_SILU_MUL ? 2 : 1); half++) {
                const float *row = &w[((size_t)half * c.n_out + o) * c.n_in];
                const double *x = &f[(size_t)r * c.n_in];
                reference_sum(row, x, c.n_in, &sum[half], &terms[half]);
                sum[half] *= scale[r], terms[half] *= scale[r];
            }
            size_t at = (size_t)r * c.n_out + o;
            y[at] = reference_output(c.then, sum, terms, in.y0.host[at], &size[at]);
        }
    });
    return y;
}

/* ---- Checks -------------------------------------------------------------------------------------------------- */

static qkc_linear_args arguments(const Case &c, const Inputs &in, float *y)
{
    qkc_linear_args a = {};
    a.w = in.w.dev;
    a.x = in.x.dev;
    a.norm = c.norm ? in.norm.dev : NULL;
    a.eps = EPS;
    a.y = y;
    a.n_out = c.n_out;
    a.n_in = c.n_in;
    a.rows_max = c.rows_max;
    a.then = c.then;
    a.gather = c.gather;
    a.plan.counts = in.counts.dev;
    a.plan.state = in.state.dev;
    a.plan.outputs = in.outputs.dev;
    return a;
}

/* Runs once; y starts as y0 for QKC_ADD, else as NaN. */
static void run(
    const qkc_launch *l, const Case &c, const Inputs &in, const qkc_linear_tuning *tuning, Array<float> &y)
{
    if (c.then == QKC_ADD)
        CUDA_OK(cudaMemcpy(y.dev, in.y0.dev, y.host.size() * sizeof(float), cudaMemcpyDeviceToDevice));
    else
        y.poison();
    qkc_linear_args a = arguments(c, in, y.dev);
    CUDA_OK(tuning ? qkc_linear_tuned(l, &a, tuning) : qkc_linear(l, &a));
    CUDA_OK(cudaStreamSynchronize(l->stream));
    y.down();
}

static double worst_row(const Case &c, const std::vector<float> &y, const std::vector<double> &ref,
    const std::vector<double> &size)
{
    return worst_row_of(c.n_rows, c.n_out, ref, size, [&](size_t i) { return (double)y[i]; });
}

static bool rows_beyond_untouched(const Case &c, const std::vector<float> &y, const Inputs &in)
{
    std::vector<float> before(y.size());
    if (c.then == QKC_ADD)
        before = in.y0.host;
    else
        memset(before.data(), 0xff, before.size() * sizeof(float));
    size_t from = (size_t)c.n_rows * c.n_out;
    return memcmp(y.data() + from, before.data() + from, (y.size() - from) * sizeof(float)) == 0;
}

static void check(
    const qkc_launch *paths, int n_paths, const Case &c, const std::vector<qkc_linear_tuning> &tunings)
{
    static uint64_t seed = 1;
    Random random(seed++);
    Inputs in(c, random);
    const bool mma = c.rows_max > 1;
    std::vector<double> size, ref = reference(c, in, mma, size),
                              exact = mma ? reference(c, in, false, size) : ref;
    /* Tensor cores truncate their float32 sums, so that errors grow with their number; and one row on the portable path has
     * its input as two bf16 numbers. */
    const double most_rounding = c.n_out < 100 ? 1e-2 : 3e-3;
    for (int i = 0; i < n_paths; i++)
        for (size_t t = 0; t <= tunings.size(); t++) {
            const double most = mma ? 1e-5 + 5e-9 * c.n_in : paths[i].hopper ? 3e-6 : 6e-6;
            const qkc_linear_tuning *tuning = t ? &tunings[t - 1] : NULL;
            Array<float> y((size_t)c.rows_max * c.n_out), again((size_t)c.rows_max * c.n_out);
            run(&paths[i], c, in, tuning, y);
            run(&paths[i], c, in, tuning, again);
            double error = worst_row(c, y.host, ref, size), rounding = worst_row(c, y.host, exact, size);
            bool untouched = rows_beyond_untouched(c, y.host, in);
            bool same = memcmp(y.host.data(), again.host.data(), y.host.size() * sizeof(float)) == 0;
            tap_ok(error < most && rounding < most_rounding && untouched && same,
                "%s %s [%u, %u] rows %u of %u%s%s tuning %zu: error %.1e, with rounding %.1e%s%s",
                gpu_path_name(&paths[i]), then_name(c.then), c.n_out, c.n_in, c.n_rows, c.rows_max,
                c.norm ? " norm" : "", c.gather ? " gather" : "", t, error, rounding,
                untouched ? "" : ", ROWS BEYOND CHANGED", same ? "" : ", NOT THE SAME TWICE");
        }
}

/* A cancelled step, or one without outputs, ends without an error and, with no rows, without a store. */
static void check_nothing_to_do(const qkc_launch *l)
{
    for (uint32_t rows_max : {1u, 8u, 16u, 64u})
        for (int gather = 0; gather < 2; gather++) {
            Case c = {300, 2560, rows_max, 0, QKC_STORE, true, gather != 0};
            Random random(7);
            Inputs in(c, random);
            Array<float> y((size_t)rows_max * c.n_out);
            run(l, c, in, NULL, y);
            bool untouched = rows_beyond_untouched(c, y.host, in);
            in.counts.host[gather ? 3 : 0] = rows_max;
            in.state.host[0] = QK_CANCELLED;
            memset(in.outputs.host.data(), 0, in.outputs.host.size() * sizeof(qk_output));
            in.counts.up(), in.state.up(), in.outputs.up();
            run(l, c, in, NULL, y); /* may store or not */
            tap_ok(untouched, "%s: no rows of %u%s, and a cancelled step", gpu_path_name(l), rows_max,
                gather ? " gathered" : "");
        }
}

/* A captured chain of dependent products replays to what the same calls give one by one: with overlapping launches a
 * kernel that read too early would differ. */
static void check_chain(const qkc_launch *l, uint32_t rows)
{
    const uint32_t hidden = 768, ffn = 2304, n_layers = 12;
    Case gate = {ffn, hidden, rows, rows, QKC_SILU_MUL, true, false},
         down = {hidden, ffn, rows, rows, QKC_ADD, false, false};
    Random random(rows);
    Inputs a(gate, random), b(down, random);
    Array<float> x((size_t)rows * hidden), act((size_t)rows * ffn), want((size_t)rows * hidden);
    for (auto &v : x.host)
        v = random.normal();
    std::vector<float> first = x.host;
    auto layers = [&](bool wait) {
        for (uint32_t i = 0; i < n_layers; i++) {
            qkc_linear_args g = arguments(gate, a, act.dev), d = arguments(down, b, x.dev);
            g.x = x.dev, d.x = act.dev, d.plan = g.plan;
            CUDA_OK(qkc_linear(l, &g));
            if (wait)
                CUDA_OK(cudaStreamSynchronize(l->stream));
            CUDA_OK(qkc_linear(l, &d));
            if (wait)
                CUDA_OK(cudaStreamSynchronize(l->stream));
        }
    };
    x.up();
    layers(true);
    CUDA_OK(cudaMemcpy(want.host.data(), x.dev, want.host.size() * sizeof(float), cudaMemcpyDeviceToHost));
    const cudaGraphExec_t exec = gpu_capture(l->stream, [&] { layers(false); });
    uint32_t n_different = 0;
    bool finite = true;
    for (uint32_t i = 0; i < 20; i++) {
        x.host = first;
        x.up();
        act.poison();
        CUDA_OK(cudaGraphLaunch(exec, l->stream));
        CUDA_OK(cudaStreamSynchronize(l->stream));
        x.down();
        n_different += memcmp(x.host.data(), want.host.data(), x.host.size() * sizeof(float)) != 0;
        for (float v : x.host)
            finite &= std::isfinite(v);
    }
    CUDA_OK(cudaGraphExecDestroy(exec));
    tap_ok(n_different == 0 && finite,
        "%s: %u layers of %u rows in a graph, %u of 20 runs differ from single calls%s", gpu_path_name(l),
        n_layers, rows, n_different, finite ? "" : ", NOT FINITE");
}

/* Joined products give what the same products give one by one, to the last bit; a cancelled step ends. */
static void check_joined(const qkc_launch *l, uint32_t hidden, uint32_t q_dim, uint32_t ffn)
{
    const uint32_t n_layers = 6;
    Case o = {hidden, q_dim, 1, 1, QKC_ADD, false, false},
         up = {ffn, hidden, 1, 1, QKC_SILU_MUL, true, false},
         down = {hidden, ffn, 1, 1, QKC_ADD, false, false},
         qkv = {q_dim, hidden, 1, 1, QKC_STORE, true, false};
    Random random(hidden + ffn);
    Inputs io(o, random), iu(up, random), id(down, random), iq(qkv, random);
    Array<float> x(hidden), q(q_dim), act(ffn), want_x(hidden), want_q(q_dim);
    Array<uint32_t> arrived(n_layers * QKC_CHAIN_MAX);
    std::vector<float> x0(hidden), q0(q_dim);
    for (auto &v : x0)
        v = random.normal();
    for (auto &v : q0)
        v = random.normal();
    qkc_linear_args a[4] = {arguments(o, io, x.dev), arguments(up, iu, act.dev), arguments(down, id, x.dev),
        arguments(qkv, iq, q.dev)};
    a[0].x = q.dev, a[1].x = x.dev, a[2].x = act.dev, a[3].x = x.dev;
    for (int i = 1; i < 4; i++)
        a[i].plan = a[0].plan;
    auto start = [&]() {
        x.host = x0, q.host = q0;
        x.up(), q.up(), act.poison(), arrived.zero();
    };
    start();
    for (uint32_t i = 0; i < n_layers; i++)
        for (int j = 0; j < 4; j++) {
            CUDA_OK(qkc_linear(l, &a[j]));
            CUDA_OK(cudaStreamSynchronize(l->stream));
        }
    CUDA_OK(cudaMemcpy(want_x.host.data(), x.dev, hidden * sizeof(float), cudaMemcpyDeviceToHost));
    CUDA_OK(cudaMemcpy(want_q.host.data(), q.dev, q_dim * sizeof(float), cudaMemcpyDeviceToHost));
    uint32_t n_different = 0;
    bool finite = true, fits = qkc_linear_chain_suits(l, a, 4);
    for (uint32_t run = 0; run < 50 && fits; run++) {
        start();
        for (uint32_t i = 0; i < n_layers; i++)
            CUDA_OK(qkc_linear_chain(l, a, 4, arrived.dev + i * QKC_CHAIN_MAX));
        CUDA_OK(cudaStreamSynchronize(l->stream));
        x.down(), q.down();
        n_different += memcmp(x.host.data(), want_x.host.data(), hidden * sizeof(float)) != 0 ||
                       memcmp(q.host.data(), want_q.host.data(), q_dim * sizeof(float)) != 0;
        for (float v : q.host)
            finite &= std::isfinite(v);
    }
    io.state.host[0] = QK_CANCELLED;
    io.state.up();
    start();
    CUDA_OK(qkc_linear_chain(l, a, 4, arrived.dev));
    CUDA_OK(cudaStreamSynchronize(l->stream));
    x.down();
    bool untouched = memcmp(x.host.data(), x0.data(), hidden * sizeof(float)) == 0;
    tap_ok(fits && n_different == 0 && finite && untouched,
        "%s: joined products of [%u, %u, %u]: %u of 50 runs differ from single ones%s%s%s", gpu_path_name(l),
        hidden, q_dim, ffn, n_different, finite ? "" : ", NOT FINITE",
        untouched ? "" : ", A CANCELLED STEP STORED", fits ? "" : ", DOES NOT FIT");
}

static void check_all(const qkc_launch *paths, int n_paths)
{
    const std::vector<qkc_linear_tuning> none;
    std::vector<qkc_linear_tuning> one, more;
    for (uint32_t depth : {2u, 3u, 5u})
        for (int early = 0; early < 2; early++)
            one.push_back({depth, 0, depth == 3 ? 2u : 1u, 0, 0, early != 0});
    for (uint32_t cluster = 1; cluster <= 8; cluster *= 2)
        for (uint32_t m = 1; m <= 8; m *= 2)
            more.push_back({0, 0, 0, cluster, m, cluster == 2});
    const qkc_then thens[] = {QKC_STORE, QKC_ADD, QKC_SILU_MUL};
    const uint32_t odd_out[] = {1, 7, 40, 129, 333}, odd_in[] = {8, 264, 520, 1000};
    uint32_t n = 0;
    for (uint32_t rows_max : {1u, 2u, 4u, 8u, 16u, 32u, 64u})
        for (qkc_then then : thens)
            for (uint32_t n_out : odd_out)
                for (uint32_t n_in : odd_in) {
                    Random random(n++);
                    uint32_t n_rows = random.below(2) ? rows_max : 1 + random.below(rows_max);
                    check(paths, n_paths,
                        {n_out, n_in, rows_max, n_rows, then, random.below(2) != 0, random.below(2) != 0},
                        none);
                }
    for (uint32_t rows_max : {1u, 3u, 16u, 27u, 64u}) { /* the models' shapes */
        uint32_t n_rows = (rows_max * 3 + 3) / 4;
        check(paths, n_paths, {6144, 2560, rows_max, n_rows, QKC_STORE, true, false}, none);
        check(paths, n_paths, {2560, 4096, rows_max, rows_max, QKC_ADD, false, false}, none);
        check(paths, n_paths, {2560, 9728, rows_max, n_rows, QKC_ADD, false, false}, none);
        check(paths, n_paths, {9728, 2560, rows_max, n_rows, QKC_SILU_MUL, true, false}, none);
        check(paths, n_paths, {768, 256, rows_max, rows_max, QKC_SILU_MUL, true, false}, none);
        check(paths, n_paths, {256, 768, rows_max, rows_max, QKC_ADD, false, false}, none);
        check(paths, n_paths,
            {1000, rows_max > 1 ? 17408u : 16384u, rows_max, rows_max, QKC_STORE, true, true}, none);
        check(paths, n_paths, {80001, 256, rows_max, n_rows, QKC_STORE, true, true}, none);
    }
    check(paths, n_paths, {1531, 2560, 1, 1, QKC_SILU_MUL, true, false}, one);
    check(paths, n_paths, {611, 4104, 1, 1, QKC_ADD, true, true}, one);
    for (uint32_t rows_max : {8u, 16u, 32u, 64u}) {
        check(paths, n_paths, {1531, 1288, rows_max, rows_max - 1, QKC_SILU_MUL, true, false}, more);
        check(paths, n_paths, {611, 4104, rows_max, rows_max, QKC_ADD, true, true}, more);
    }
    for (int i = 0; i < n_paths; i++) {
        check_nothing_to_do(&paths[i]);
        if (!paths[i].hopper) { /* there products are not joined */
            check_joined(&paths[i], 2560, 4096, 9728);
            check_joined(&paths[i], 1024, 2048, 3072);
            check_joined(&paths[i], 64, 128, 200);
            check_joined(&paths[i], 8, 16, 8);
        }
        for (uint32_t rows : {1u, 8u, 16u, 32u, 64u})
            check_chain(&paths[i], rows);
    }
}

/* ---- Times --------------------------------------------------------------------------------------------------- */

struct Bench {
    static const uint32_t n_layers = 36, hidden = 2560, q_dim = 4096, qkv_dim = 6144, ffn = 9728,
                          vocab = 151936;
    size_t layer, head; /* weights */
    qkc_bf16 *w;
    Array<float> x, qkv, act, logits, norm;
    Array<uint32_t> counts, state;
    Array<qk_output> outputs;
    double read_gbs;

    Bench()
        : layer((size_t)qkv_dim * hidden + (size_t)hidden * q_dim + (size_t)3 * ffn * hidden),
          head((size_t)vocab * hidden), x(64 * hidden), qkv(64 * qkv_dim), act(64 * ffn),
          logits((size_t)64 * vocab), norm(hidden), counts(4), state(1), outputs(64)
    {
        size_t n = n_layers * layer + head;
        CUDA_OK(cudaMalloc(&w, n * 2));
        fill_weights<<<2048, 256>>>((uint32_t *)w, n / 2, 0.03f);
        Random random(3);
        for (auto &v : x.host)
            v = random.normal();
        for (auto &v : norm.host)
            v = 1;
        state.host = {QK_OK};
        for (uint32_t i = 0; i < 64; i++)
            outputs.host[i].row = i;
        x.up(), norm.up(), state.up(), outputs.up(), qkv.zero(), act.zero();
        CUDA_OK(cudaDeviceSynchronize());
        read_gbs = read_rate(w, n * 2, counts.dev);
    }
    ~Bench()
    {
        cudaFree(w);
    }

    /* Product @i of a layer: QKV, O, gate and up, down; 4: lm_head. */
    qkc_linear_args product(uint32_t rows, uint32_t l, uint32_t i)
    {
        qkc_linear_args a = {};
        const qkc_bf16 *at = w + l * layer;
        a.eps = EPS;
        a.rows_max = rows;
        a.plan.counts = counts.dev, a.plan.state = state.dev, a.plan.outputs = outputs.dev;
        if (i == 0)
            a.w = at, a.x = x.dev, a.norm = norm.dev, a.y = qkv.dev, a.n_out = qkv_dim, a.n_in = hidden;
        at += (size_t)qkv_dim * hidden;
        if (i == 1)
            a.w = at, a.x = qkv.dev, a.y = x.dev, a.n_out = hidden, a.n_in = q_dim, a.then = QKC_ADD;
        at += (size_t)hidden * q_dim;
        if (i == 2)
            a.w = at, a.x = x.dev, a.norm = norm.dev, a.y = act.dev, a.n_out = ffn, a.n_in = hidden,
            a.then = QKC_SILU_MUL;
        at += (size_t)2 * ffn * hidden;
        if (i == 3)
            a.w = at, a.x = act.dev, a.y = x.dev, a.n_out = hidden, a.n_in = ffn, a.then = QKC_ADD;
        if (i == 4)
            a.w = w + n_layers * layer, a.x = x.dev, a.norm = norm.dev, a.y = logits.dev, a.n_out = vocab,
            a.n_in = hidden, a.gather = true;
        return a;
    }
    static double bytes(const qkc_linear_args &a)
    {
        return 2.0 * a.n_in * a.n_out * (a.then == QKC_SILU_MUL ? 2 : 1);
    }

    /* Microseconds of a graph of the products @mask (bit i: product i) of all layers (4: once). */
    double time(
        const qkc_launch *l, uint32_t rows, uint32_t mask, const qkc_linear_tuning *tuning, double *n_bytes)
    {
        counts.host = {rows, rows, 0, rows};
        counts.up();
        *n_bytes = 0;
        auto products = [&] {
            for (uint32_t i = 0; i < n_layers; i++)
                for (uint32_t j = 0; j < 5; j++)
                    if (mask >> j & 1 && (j < 4 || i == n_layers - 1)) {
                        qkc_linear_args a = product(rows, i, j);
                        *n_bytes += bytes(a);
                        CUDA_OK(qkc_linear_tuned(l, &a, tuning));
                    }
        };
        return gpu_time_graph(l->stream, products, [&] { x.up(); });
    }
    /* The same of the joined products: O, gate and up, down, and QKV of the next layer. */
    double time_joined(const qkc_launch *l, double *n_bytes)
    {
        counts.host = {1, 1, 0, 1};
        counts.up();
        Array<uint32_t> arrived(n_layers * QKC_CHAIN_MAX);
        *n_bytes = 0;
        auto products = [&] {
            CUDA_OK(cudaMemsetAsync(arrived.dev, 0, arrived.host.size() * sizeof(uint32_t), l->stream));
            for (uint32_t i = 0; i < n_layers; i++) {
                qkc_linear_args a[4];
                for (uint32_t j = 0; j < 4; j++) {
                    a[j] = product(1, j < 3 ? i : (i + 1) % n_layers, (j + 1) % 4);
                    *n_bytes += bytes(a[j]);
                }
                CUDA_OK(qkc_linear_chain(l, a, 4, arrived.dev + i * QKC_CHAIN_MAX));
            }
        };
        return gpu_time_graph(l->stream, products, [&] { x.up(); });
    }
    void joined_line(const qkc_launch *l)
    {
        double n_bytes, us = time_joined(l, &n_bytes), gbs = n_bytes / us / 1e3;
        printf("%-8s rows  1  joined     %9.2f us/layer  %5.0f GB/s  %5.1f%%  <- of a layer, in one launch\n",
            gpu_path_name(l), us / n_layers, gbs, 100 * gbs / read_gbs);
        fflush(stdout);
    }
    void line(const qkc_launch *l, uint32_t rows, const char *name, uint32_t mask, const qkc_linear_tuning &t,
        const char *what)
    {
        double n_bytes, us = time(l, rows, mask, &t, &n_bytes), gbs = n_bytes / us / 1e3;
        printf("%-8s rows %2u  %-10s %9.2f us%s  %5.0f GB/s  %5.1f%%  %s\n", gpu_path_name(l), rows, name,
            mask == 16 ? us : us / n_layers, mask == 16 ? "      " : "/layer", gbs, 100 * gbs / read_gbs,
            what);
        fflush(stdout);
    }
};

static void bench(const qkc_launch *paths, int n_paths, const std::vector<uint32_t> &rows)
{
    static const char *names[] = {"QKV", "O", "gate,up", "down", "lm_head"};
    const qkc_linear_tuning defaults = {};
    Bench b;
    for (uint32_t n : rows)
        for (int i = 0; i < n_paths; i++) {
            const qkc_launch *l = &paths[i];
            for (uint32_t j = 0; j < 5; j++)
                b.line(l, n, names[j], 1u << j, defaults, "");
            if (n == 1 && !l->hopper)
                b.joined_line(l);
            b.line(l, n, "chain", 15, defaults, "<- of a layer");
            b.line(l, n, "step", 31, defaults, "with lm_head");
        }
    for (uint32_t n : rows) /* what else could be chosen, on the chain and single products */
        for (int i = 0; i < n_paths; i++) {
            const qkc_launch *l = &paths[i];
            char what[96];
            if (n == 1)
                for (int k = 0; k < (l->hopper ? 6 : 4); k++) {
                    static const int v[6][3] = {{2, 2, 0}, {3, 2, 0}, {2, 1, 0}, {4, 1, 0}, {6, 1, 1},
                        {4, 2, 1}}; /* depth, per SM, early */
                    qkc_linear_tuning t = {(uint32_t)v[k][0], 0, (uint32_t)v[k][1], 0, 0, v[k][2] != 0};
                    snprintf(what, sizeof(what), "depth %d, per SM %d%s", v[k][0], v[k][1],
                        v[k][2] ? ", early" : "");
                    b.line(l, n, "chain", 15, t, what);
                    if (k == 3)
                        b.line(l, n, "lm_head", 16, t, what);
                }
            else {
                if (l->hopper)
                    for (int k = 0; k < 4; k++) {
                        static const int v[4][2] = {{-1, 0}, {32, 0}, {128, 0}, {64, 1}};
                        qkc_linear_tuning t = {0, (uint32_t)v[k][0], 0, 0, 0, v[k][1] != 0};
                        snprintf(what, sizeof(what), "ahead %d%s", v[k][0], v[k][1] ? ", early" : "");
                        b.line(l, n, "chain", 15, t, what);
                    }
                for (uint32_t j = 0; j < 4; j++)
                    for (uint32_t c = l->hopper ? 1 : 8; c <= 8; c *= 2)
                        for (uint32_t m = 1; m <= 8; m *= 2) {
                            qkc_linear_tuning t = {0, 0, 0, c, m, false};
                            snprintf(what, sizeof(what), "cluster %u, warps m %u", l->hopper ? c : 1, m);
                            b.line(l, n, names[j], 1u << j, t, what);
                        }
            }
        }
}

int main(int argc, char **argv)
{
    qkc_launch paths[2];
    gpu_require();
    int n_paths = gpu_paths(paths);
    CUDA_OK(qkc_linear_init());
    if (argc > 1 && !strcmp(argv[1], "--bench")) {
        std::vector<uint32_t> rows;
        for (int i = 2; i < argc; i++)
            rows.push_back((uint32_t)atoi(argv[i]));
        if (rows.empty())
            rows = {1, 2, 4, 8, 16, 32, 64};
        bench(paths, n_paths, rows);
        return 0;
    }
    check_all(paths, n_paths);
    return tap_done();
}
