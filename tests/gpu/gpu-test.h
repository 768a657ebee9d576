/* gpu-test.h: what the tests of single CUDA ops share: skipping without a device, device arrays, random data, relative
 * error, times. Every program takes `--bench` to print times instead of checking. */
#pragma once
#include <cuda_bf16.h>
#include <cuda_runtime.h>
#include <math.h>
#include <stdint.h>
#include <string.h>
#include <algorithm>
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
