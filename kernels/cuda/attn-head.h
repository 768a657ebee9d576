/* attn-head.h: a warp reads one head out of the QKV product of a decode step, normalised and rotated: for attn-decode.cu,
 * which attends with it, and attn-select.cu, which chooses pages by it. Device code. */
#pragma once
#include "kernels/cuda/cuda-ops.h"

/* A lane's elements of half a head: D / 64 neighbours. */
template <int D>
static __device__ __forceinline__ void get_half(float (&x)[D / 64], const float *from, uint32_t lane)
{
    if constexpr (D == 128) {
        const float2 v = __ldcg((const float2 *)from + lane);
        x[0] = v.x;
        x[1] = v.y;
    } else {
        x[0] = __ldcg(from + lane);
    }
}

/* One warp: reads a head; with @norm it is normalised and rotated. A lane gets elements of the first half in @x and
 * those D / 2 further in @y. All loads come before the first use of any. */
template <int D>
static __device__ __forceinline__ void get_head(float (&x)[D / 64], float (&y)[D / 64], const float *from,
    const float *norm, const float *cos_sin, float eps, uint32_t lane)
{
    float norm_x[D / 64], norm_y[D / 64], cos_of[D / 64], sin_of[D / 64];
    get_half<D>(x, from, lane);
    get_half<D>(y, from + D / 2, lane);
    if (norm == NULL)
        return;
    get_half<D>(norm_x, norm, lane);
    get_half<D>(norm_y, norm + D / 2, lane);
    get_half<D>(cos_of, cos_sin, lane);
    get_half<D>(sin_of, cos_sin + D / 2, lane);
    float sum = 0;
#pragma unroll
    for (int e = 0; e < D / 64; e++)
        sum += x[e] * x[e] + y[e] * y[e];
#pragma unroll
    for (int d = 16; d > 0; d /= 2)
        sum += __shfl_xor_sync(0xffffffffu, sum, d);
    const float scale = 1.0f / sqrtf(sum / D + eps);
#pragma unroll
    for (int e = 0; e < D / 64; e++) {
        const float a = x[e] * scale * norm_x[e], b = y[e] * scale * norm_y[e];
        x[e] = a * cos_of[e] - b * sin_of[e];
        y[e] = b * cos_of[e] + a * sin_of[e];
    }
}
