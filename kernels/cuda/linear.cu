/* linear.cu: y = W f(x) for few rows. */
#include "kernels/cuda/cuda-ops.h"

#define THREADS 256u

cudaError_t qkc_linear_init(void)
{
    return cudaSuccess;
}

__device__ static float warp_sum(float v)
{
    for (int o = 16; o > 0; o >>= 1)
        v += __shfl_xor_sync(0xffffffffu, v, o);
    return v;
}

__device__ static float dot(const qkc_bf16 *w, const float *x, const float *norm, uint32_t n)
{
    float sum = 0;
    for (uint32_t i = threadIdx.x % 32 * 8; i < n; i += 256) {
        uint4 u = *(const uint4 *)(w + i);
        const uint32_t p[4] = {u.x, u.y, u.z, u.w};
        for (int j = 0; j < 4; j++) {
            float a = x[i + 2 * j], b = x[i + 2 * j + 1];
            if (norm) {
                a *= norm[i + 2 * j];
                b *= norm[i + 2 * j + 1];
            }
            sum = fmaf(__uint_as_float(p[j] << 16), a, sum);
            sum = fmaf(__uint_as_float(p[j] & 0xffff0000u), b, sum);
        }
    }
    return warp_sum(sum);
}

/* One warp an output of every row. */
__global__ static void linear(qkc_linear_args a)
{
    qkc_pdl_trigger();
    qkc_pdl_wait();
    const uint32_t o = (blockIdx.x * THREADS + threadIdx.x) / 32, r = blockIdx.y;
    const uint32_t n_rows = a.gather ? a.plan.counts[3] : a.plan.counts[0];
    if (o >= a.n_out || r >= n_rows)
        return;
    const float *x = a.x + (size_t)(a.gather ? a.plan.outputs[r].row : r) * a.n_in;
    float scale = 1;
    if (a.norm) {
        float sum = 0;
        for (uint32_t i = threadIdx.x % 32; i < a.n_in; i += 32)
            sum = fmaf(x[i], x[i], sum);
        scale = 1.0f / sqrtf(warp_sum(sum) / (float)a.n_in + a.eps);
    }
    float v = dot(a.w + (size_t)o * a.n_in, x, a.norm, a.n_in) * scale;
    if (a.then == QKC_SILU_MUL) {
        float up = dot(a.w + (size_t)(o + a.n_out) * a.n_in, x, a.norm, a.n_in) * scale;
        v = v / (1.0f + expf(-v)) * up;
    }
    float *y = a.y + (size_t)r * a.n_out + o;
    if (threadIdx.x % 32 == 0)
        *y = a.then == QKC_ADD ? *y + v : v;
}

cudaError_t qkc_linear(const qkc_launch *launch, const qkc_linear_args *args)
{
    dim3 grid((args->n_out * 32 + THREADS - 1) / THREADS, args->rows_max);
    return qkc_start(launch, linear, grid, dim3(THREADS), 0, *args);
}
