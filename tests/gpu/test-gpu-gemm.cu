/* test-gpu-gemm.cu: large products against float64. `--bench`: the reference model's products, weights cold. */
#include <chrono>
#include <string>
#include <thread>
#include "kernels/cuda/cuda-backend.h"
#include "tests/gpu/gpu-test.h"

#define GUARD_ROWS 3u /* behind the rounded row count: must stay as they are */

typedef struct {
    uint32_t n_rows, n_out, n_in;
    bool add; /* and float32 out */
} shape;

static uint32_t rounded(uint32_t n)
{
    return (n + QKC_GEMM_ROWS_UNIT - 1) / QKC_GEMM_ROWS_UNIT * QKC_GEMM_ROWS_UNIT;
}

/* Calls @fn(i) for i < n on all cores. */
template <typename F> static void parallel(uint32_t n, F fn)
{
    const uint32_t n_threads = std::max(1u, std::min(16u, std::thread::hardware_concurrency()));
    std::vector<std::thread> threads;
    for (uint32_t t = 0; t < n_threads; t++)
        threads.emplace_back([=] {
            for (uint32_t i = t; i < n; i += n_threads)
                fn(i);
        });
    for (std::thread &t : threads)
        t.join();
}

static std::vector<float> to_float(const std::vector<qkc_bf16> &v)
{
    std::vector<float> out(v.size());
    for (size_t i = 0; i < v.size(); i++)
        out[i] = __bfloat162float(v[i]);
    return out;
}

static std::vector<double> reference(
    const shape &s, const std::vector<float> &x, const std::vector<float> &w, const float *before)
{
    std::vector<double> y((size_t)s.n_rows * s.n_out);
    parallel(s.n_out, [&](uint32_t o) {
        for (uint32_t r = 0; r < s.n_rows; r++) {
            double sum = before != NULL ? (double)before[(size_t)r * s.n_out + o] : 0;
            for (uint32_t i = 0; i < s.n_in; i++)
                sum += (double)x[(size_t)r * s.n_in + i] * (double)w[(size_t)o * s.n_in + i];
            y[(size_t)r * s.n_out + o] = sum;
        }
    });
    return y;
}

static bool all_ones(const void *data, size_t bytes)
{
    const uint8_t *p = (const uint8_t *)data;
    return std::all_of(p, p + bytes, [](uint8_t b) { return b == 0xff; });
}

/* The product of one shape: right, the same again, nothing behind the rounded rows; rows past n_rows are NaN. */
template <typename T>
static void test_shape(qkc_gemm *gemm, cudaStream_t stream, void *workspace, const shape &s, uint64_t seed)
{
    Random random(seed);
    const uint32_t n_pad = rounded(s.n_rows);
    Array<qkc_bf16> x((size_t)n_pad * s.n_in), w((size_t)s.n_out * s.n_in);
    Array<T> y((size_t)(n_pad + GUARD_ROWS) * s.n_out);
    for (size_t i = 0; i < x.host.size(); i++)
        x.host[i] = __float2bfloat16(i < (size_t)s.n_rows * s.n_in ? random.normal() : NAN);
    for (qkc_bf16 &v : w.host)
        v = __float2bfloat16(random.normal() * 0.05f);
    x.up();
    w.up();
    memset((void *)y.host.data(), 0xff, y.host.size() * sizeof(T));
    std::vector<float> before;
    if (s.add) {
        for (size_t i = 0; i < (size_t)s.n_rows * s.n_out; i++)
            y.host[i] = (T)random.normal();
        for (size_t i = 0; i < (size_t)s.n_rows * s.n_out; i++)
            before.push_back((float)y.host[i]);
    }
    const std::vector<T> start = y.host;

    qkc_gemm_args a = {};
    a.x = x.dev, a.w = w.dev, a.y = y.dev;
    a.y_dtype = sizeof(T) == 4 ? QK_F32 : QK_BF16;
    a.n_rows = s.n_rows, a.n_out = s.n_out, a.n_in = s.n_in, a.add = s.add;
    y.up();
    bool ran = qkc_gemm_run(gemm, stream, workspace, &a) == QK_OK;
    CUDA_OK(cudaStreamSynchronize(stream));
    y.down();
    const std::vector<T> first = y.host;
    y.host = start;
    y.up();
    ran = ran && qkc_gemm_run(gemm, stream, workspace, &a) == QK_OK;
    CUDA_OK(cudaStreamSynchronize(stream));
    y.down();

    const std::vector<double> ref =
        reference(s, to_float(x.host), to_float(w.host), s.add ? before.data() : NULL);
    const size_t n = (size_t)s.n_rows * s.n_out;
    const double error = relative_error(first.data(), ref.data(), n), bound = sizeof(T) == 4 ? 5e-5 : 2.5e-3;
    const bool same = memcmp((const void *)first.data(), (const void *)y.host.data(), n * sizeof(T)) == 0;
    const bool guarded =
        all_ones(y.host.data() + (size_t)n_pad * s.n_out, (size_t)GUARD_ROWS * s.n_out * sizeof(T));
    tap_ok(ran && error < bound && same && guarded,
        "[%u, %u] x [%u, %u]^T %s: error %.2g of %.2g, %s again, rows behind %s", s.n_rows, s.n_in, s.n_out,
        s.n_in, s.add ? "added to f32" : "to bf16", error, bound, same ? "the same" : "ANOTHER",
        guarded ? "untouched" : "WRITTEN");
}

static void test_products(qkc_backend *backend, cudaStream_t stream)
{
    static const shape shapes[] = {
        {1, 256, 256, false},
        {1, 256, 512, true},
        {63, 640, 256, false},
        {64, 256, 640, true},
        {65, 1536, 1024, false},
        {127, 1024, 3072, true},
        {128, 6144, 320, false},
        {200, 2560, 1024, true},
        {333, 640, 2560, false},
        {512, 264, 1032, true},
        {513, 264, 1032, false},
        {700, 2560, 512, true},
        {130, 19456, 256, false},
        {96, 256, 9728, true},
        {80, 320, 512, true},
        {81, 320, 512, false},
        {129, 2560, 512, true},
        {145, 640, 2560, false},
        {256, 320, 512, true},
        {257, 320, 512, false},
        {321, 320, 512, true},
    };
    qkc_gemm *gemm = NULL;
    void *workspace = NULL;
    CUDA_OK(cudaMalloc(&workspace, QKC_GEMM_WORKSPACE_BYTES));
    if (!tap_ok(qkc_gemm_new(backend, &gemm) == QK_OK, "cublasLt opens: %s", backend->error))
        return;
    for (size_t i = 0; i < sizeof(shapes) / sizeof(shapes[0]); i++) {
        const shape *s = &shapes[i];
        const qk_dtype dtype = s->add ? QK_F32 : QK_BF16;
        /* In two goes: the second keeps what the first chose. */
        const uint32_t half = s->n_rows / 2 + 1;
        if (qkc_gemm_prepare(gemm, half, s->n_out, s->n_in, dtype, s->add) != QK_OK ||
            qkc_gemm_prepare(gemm, s->n_rows, s->n_out, s->n_in, dtype, s->add) != QK_OK)
            tap_ok(false, "preparing [%u, %u] x [%u, %u]: %s", s->n_rows, s->n_in, s->n_out, s->n_in,
                backend->error);
        else if (s->add)
            test_shape<float>(gemm, stream, workspace, *s, i + 1);
        else
            test_shape<qkc_bf16>(gemm, stream, workspace, *s, i + 1);
    }
    qkc_gemm_args unknown = {};
    unknown.n_rows = 1, unknown.n_out = unknown.n_in = 8;
    tap_ok(qkc_gemm_run(gemm, stream, workspace, &unknown) == QK_INVALID,
        "a product that was not prepared is refused: %s", backend->error);
    unknown.n_rows = 1000, unknown.n_out = unknown.n_in = 256, unknown.y_dtype = QK_BF16;
    tap_ok(qkc_gemm_run(gemm, stream, workspace, &unknown) == QK_INVALID, "and one of more rows: %s",
        backend->error);
    qkc_gemm_free(gemm);
    cudaFree(workspace);
}

/* ---- Bench --------------------------------------------------------------------------------------------------- */

static double ms_since(std::chrono::steady_clock::time_point begin)
{
    return std::chrono::duration<double, std::milli>(std::chrono::steady_clock::now() - begin).count();
}

typedef struct {
    const char *name;
    uint32_t n_out, n_in;
    bool add;
} product;

static const product products[] = {
    {"QKV", 6144, 2560, false},
    {"O", 2560, 4096, true},
    {"gate,up", 19456, 2560, false},
    {"down", 2560, 9728, true},
};

static void bench_prepare(qkc_backend *backend, uint32_t rows_max)
{
    qkc_gemm *gemm = NULL;
    auto begin = std::chrono::steady_clock::now();
    tap_require(qkc_gemm_new(backend, &gemm) == QK_OK);
    const double new_ms = ms_since(begin);
    begin = std::chrono::steady_clock::now();
    for (const product &p : products)
        tap_require(
            qkc_gemm_prepare(gemm, rows_max, p.n_out, p.n_in, p.add ? QK_F32 : QK_BF16, p.add) == QK_OK);
    const double ms = ms_since(begin);
    printf("# new %.2f ms; algorithms of 4 products up to %u rows: %.2f ms\n", new_ms, rows_max, ms);
    qkc_gemm_free(gemm);
}

static void bench_product(
    qkc_backend *backend, cudaStream_t stream, void *workspace, qkc_gemm *gemm, const product &p)
{
    static const uint32_t rows[] = {64, 128, 129, 145, 192, 256, 512, 1024, 2048, 4096};
    const uint32_t rows_max = 4096;
    const size_t w_elements = (size_t)p.n_out * p.n_in, w_bytes = w_elements * sizeof(qkc_bf16);
    const int n_sets = (int)((256u << 20) / w_bytes) + 2;
    Array<qkc_bf16> x((size_t)rows_max * p.n_in), w((size_t)n_sets * w_elements);
    Array<float> y((size_t)rows_max * p.n_out);
    Random random(7);
    for (qkc_bf16 &v : x.host)
        v = __float2bfloat16(random.uniform());
    /* Random bits cost power as real weights do; one set's worth, repeated. */
    for (size_t i = 0; i < w_elements; i++)
        w.host[i] = __float2bfloat16(random.uniform() * 0.05f);
    for (int i = 1; i < n_sets; i++)
        memcpy((void *)&w.host[i * w_elements], (const void *)w.host.data(), w_bytes);
    x.up();
    w.up();
    y.zero();

    qkc_gemm_args a = {};
    a.x = x.dev, a.y = y.dev, a.w = w.dev;
    a.y_dtype = p.add ? QK_F32 : QK_BF16;
    a.n_rows = rows_max, a.n_out = p.n_out, a.n_in = p.n_in, a.add = p.add;
    tap_require(qkc_gemm_prepare(gemm, rows_max, p.n_out, p.n_in, a.y_dtype, p.add) == QK_OK);
    auto begin = std::chrono::steady_clock::now();
    tap_require(qkc_gemm_warm(gemm, stream, workspace, &a) == QK_OK);
    CUDA_OK(cudaStreamSynchronize(stream));
    printf("# %s: every algorithm once: %.2f ms\n", p.name, ms_since(begin));
    for (uint32_t n : rows) {
        a.n_rows = n;
        bool ran = true;
        const double ms = gpu_time(stream, 40, [&](int i) {
            a.w = w.dev + (size_t)(i % n_sets) * w_elements;
            ran = ran && qkc_gemm_run(gemm, stream, workspace, &a) == QK_OK;
        });
        tap_require(ran);
        const double y_bytes = (double)n * p.n_out * (p.add ? 8 : 2);
        const double bytes = (double)w_bytes + (double)n * p.n_in * 2 + y_bytes;
        printf("# %-8s %5u rows: %8.1f us  %6.1f TFLOP/s  %6.0f GB/s\n", p.name, n, ms * 1e3,
            2.0 * n * (double)w_elements / (ms * 1e9), bytes / (ms * 1e6));
    }
}

static void bench(qkc_backend *backend, cudaStream_t stream)
{
    qkc_gemm *gemm = NULL;
    void *workspace = NULL;
    CUDA_OK(cudaMalloc(&workspace, QKC_GEMM_WORKSPACE_BYTES));
    bench_prepare(backend, 2048);
    bench_prepare(backend, 2048);
    bench_prepare(backend, 8192);
    tap_require(qkc_gemm_new(backend, &gemm) == QK_OK);
    for (const product &p : products)
        bench_product(backend, stream, workspace, gemm, p);
    qkc_gemm_free(gemm);
    cudaFree(workspace);
}

int main(int argc, char **argv)
{
    gpu_require();
    cudaStream_t stream;
    CUDA_OK(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
    qkc_backend backend = {};
    snprintf(backend.name, sizeof(backend.name), "device 0");
    if (argc > 1 && strcmp(argv[1], "--bench") == 0) {
        bench(&backend, stream);
        return 0;
    }
    test_products(&backend, stream);
    return tap_done();
}
