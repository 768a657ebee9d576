/* gpu-test.h: what the tests of single CUDA ops share: skipping without a device, device arrays, random data, relative
 * error, times. Every program takes `--bench` to print times instead of checking. */
#pragma once
#include <cuda_bf16.h>
#include <cuda_runtime.h>
#include <math.h>
#include <stdint.h>
#include <string.h>
#include <algorithm>
#include <cmath>
#include <thread>
#include <vector>
#include "kernels/cuda/cuda-ops.h"
#include "tests/kernels/tap.h"

#define CUDA_OK(call)                                                                                        \
    do {                                                                                                     \
        cudaError_t code_ = (call);                                                                          \
        if (code_ != cudaSuccess) {                                                                          \
            printf("Bail out! %s:%d: %s: %s\n", __FILE__, __LINE__, #call, cudaGetErrorString(code_));       \
            exit(1);                                                                                         \
        }                                                                                                    \
    } while (0)

/* Ends the program with a TAP skip when no device can be used. */
static inline void gpu_require(void)
{
    int n = 0;
    cudaError_t code = cudaGetDeviceCount(&n);
    if (code != cudaSuccess || n == 0) {
        printf("1..0 # SKIP no CUDA device: %s\n",
            code != cudaSuccess ? cudaGetErrorString(code) : "none found");
        exit(0);
    }
}

/* The paths to test on this device: portable first, then Hopper where it is one. Returns how many. */
static inline int gpu_paths(qkc_launch out[2])
{
    cudaDeviceProp p;
    CUDA_OK(cudaGetDeviceProperties(&p, 0));
    qkc_launch l = {};
    CUDA_OK(cudaStreamCreate(&l.stream));
    l.n_sms = p.multiProcessorCount;
    out[0] = l;
    if (p.major != 9)
        return 1;
    l.pdl = l.hopper = true;
    out[1] = l;
    return 2;
}
static inline const char *gpu_path_name(const qkc_launch *l)
{
    return l->hopper ? "hopper" : "portable";
}

/* Deterministic random numbers: uniform in [-1, 1) and, from sums of them, about normal. */
struct Random {
    uint64_t s;
    explicit Random(uint64_t seed) : s(seed * 0x9e3779b97f4a7c15ull + 1)
    {
    }
    uint32_t next()
    {
        s = s * 6364136223846793005ull + 1442695040888963407ull;
        return (uint32_t)(s >> 32);
    }
    uint32_t below(uint32_t n)
    {
        return (uint32_t)(((uint64_t)next() * n) >> 32);
    }
    float uniform()
    {
        return (float)(int32_t)next() * (1.0f / 2147483648.0f);
    }
    float normal()
    {
        return (uniform() + uniform() + uniform());
    } /* variance 1 */
};

/* A device array with a host copy. Fresh device memory is filled with NaN patterns, so that what a kernel failed to
 * write shows. */
template <typename T> struct Array {
    std::vector<T> host;
    T *dev = nullptr;
    explicit Array(size_t n) : host(n)
    {
        CUDA_OK(cudaMalloc(&dev, std::max<size_t>(n, 1) * sizeof(T)));
        CUDA_OK(cudaMemset(dev, 0xff, std::max<size_t>(n, 1) * sizeof(T)));
    }
    Array(const Array &) = delete;
    ~Array()
    {
        cudaFree(dev);
    }
    void up()
    {
        CUDA_OK(cudaMemcpy(dev, host.data(), host.size() * sizeof(T), cudaMemcpyHostToDevice));
    }
    void down()
    {
        CUDA_OK(cudaMemcpy(host.data(), dev, host.size() * sizeof(T), cudaMemcpyDeviceToHost));
    }
    void poison()
    {
        CUDA_OK(cudaMemset(dev, 0xff, host.size() * sizeof(T)));
    }
    void zero()
    {
        CUDA_OK(cudaMemset(dev, 0, host.size() * sizeof(T)));
    }
};

/* QK_I8 as qk.h has it, by other means than the device's: an fp16's bits from double arithmetic. */
static inline uint16_t host_f16(double x)
{
    int exponent;
    frexp(x, &exponent); /* x = m 2^exponent, m in [0.5, 1) */
    const double unit = ldexp(1, exponent - 11), rounded = nearbyint(x / unit) * unit;
    if (rounded >= 65536)
        return 0x7c00;
    frexp(rounded, &exponent);
    return (uint16_t)(((uint32_t)(exponent + 14) << 10) + ((uint32_t)ldexp(rounded, 11 - exponent) - 1024));
}
static inline double host_from_f16(uint16_t bits) /* of a normal number or 0 */
{
    const int exponent = bits >> 10 & 31;
    return exponent == 0 ? 0 : ldexp(1024 + (bits & 1023), exponent - 25);
}
static inline void host_quantise(int8_t *q, uint16_t *scale, const float *x, uint32_t n)
{
    float max = 0;
    bool odd = false;
    for (uint32_t i = 0; i < n; i++) {
        odd = odd || !std::isfinite(x[i]);
        max = std::max(max, fabsf(x[i]));
    }
    memset(q, 0, n);
    *scale = odd ? 0x7e00 : max == 0 ? 0 : host_f16(std::max(max / 127.0f, 0x1p-14f));
    if (*scale == 0 || *scale >= 0x7c00)
        return;
    for (uint32_t i = 0; i < n; i++)
        q[i] = (int8_t)std::min(std::max(nearbyintf(x[i] / (float)host_from_f16(*scale)), -127.0f), 127.0f);
}

/* ||out - ref|| / ||ref||; NaN when any element is. */
template <typename T> static double relative_error(const T *out, const double *ref, size_t n)
{
    double d = 0, r = 0;
    for (size_t i = 0; i < n; i++) {
        double e = (double)(float)out[i] - ref[i];
        d += e * e;
        r += ref[i] * ref[i];
    }
    return sqrt(d / (r > 0 ? r : 1));
}

/* Runs @fn(i) for i < n on some threads. */
template <typename F> static void in_parallel(uint32_t n, F fn)
{
    const uint32_t n_threads = std::min(n, std::max(1u, std::min(std::thread::hardware_concurrency(), 16u)));
    std::vector<std::thread> threads;
    for (uint32_t t = 0; t < n_threads; t++)
        threads.emplace_back([=] {
            for (uint32_t i = t; i < n; i += n_threads)
                fn(i);
        });
    for (auto &t : threads)
        t.join();
}

/* What @fn launches, as a graph; the caller destroys it. */
template <typename F> static cudaGraphExec_t gpu_capture(cudaStream_t stream, F fn)
{
    cudaGraph_t graph;
    cudaGraphExec_t exec;
    CUDA_OK(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal));
    fn();
    CUDA_OK(cudaStreamEndCapture(stream, &graph));
    CUDA_OK(cudaGraphInstantiate(&exec, graph, 0));
    CUDA_OK(cudaGraphDestroy(graph));
    return exec;
}

/* Median milliseconds of @n runs of @fn(i), each timed with events after a warm-up. */
template <typename F> static double gpu_time(cudaStream_t stream, int n, F fn)
{
    cudaEvent_t a, b;
    std::vector<float> t;
    CUDA_OK(cudaEventCreate(&a));
    CUDA_OK(cudaEventCreate(&b));
    for (int i = -3; i < n; i++) {
        CUDA_OK(cudaEventRecord(a, stream));
        fn(i < 0 ? 0 : i);
        CUDA_OK(cudaEventRecord(b, stream));
        CUDA_OK(cudaEventSynchronize(b));
        float ms = 0;
        CUDA_OK(cudaEventElapsedTime(&ms, a, b));
        if (i >= 0)
            t.push_back(ms);
    }
    std::sort(t.begin(), t.end());
    cudaEventDestroy(a);
    cudaEventDestroy(b);
    return t[t.size() / 2];
}

/* Microseconds of what @fn launches, as a graph, which begins after @ready(). */
template <typename F, typename G> static double gpu_time_graph(cudaStream_t stream, F fn, G ready)
{
    const cudaGraphExec_t exec = gpu_capture(stream, fn);
    ready();
    const double ms = gpu_time(stream, 7, [&](int) { CUDA_OK(cudaGraphLaunch(exec, stream)); });
    CUDA_OK(cudaGraphExecDestroy(exec));
    return ms * 1000;
}
