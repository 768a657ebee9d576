/* kv-int8.cu: int8 pages as bf16 ones, for many rows, whose tiles share them, and for ranges of keys.
 *
 * A value q * s, which float32 holds exactly, is rounded to bf16: a relative error of at most 2^-9, which the decode
 * attention, computing with q and s, does not have. It depends on the page's bytes alone, so that what is computed from
 * it does not depend on where a page lies, nor on what else is in the step.
 *
 * Bytes and floor, H200 at 4.1 TB/s, 8 kv heads of 128: 33 KB read and 66 KB written a page and layer; 8K keys: 17 + 34
 * MB, 12.3 us. */
#include "kernels/cuda/cuda-ops.h"
#include "kernels/cuda/kv-int8.h"

#define THREADS 256u

/* D threads have a page's keys and values of one head: each has 16 dimensions of one token of both. */
template <uint32_t D>
static __global__ void __launch_bounds__(THREADS)
    dequantise_kernel(const __grid_constant__ qkc_dequantise_args a)
{
    constexpr uint32_t LANES = D / 16; /* of a token */
    qkc_pdl_wait();
    qkc_pdl_trigger();
    if (*a.plan.state != QK_OK)
        return;
    const uint32_t unit = blockIdx.x * (THREADS / D) + threadIdx.x / D, head = unit % a.n_kv_heads;
    const uint32_t page = unit / a.n_kv_heads, thread = threadIdx.x % D, token = thread / LANES;
    if (page >= a.n_pages)
        return;
    const char *from =
        (const char *)(uintptr_t)__ldcg((const unsigned long long *)a.plan.pages + a.first_page + page);
    from += a.layer * a.layout.layer_stride + head * a.layout.head_stride;
    char *to_page = a.to + page * a.to_layout.layer_stride;
    char *to =
        to_page + head * a.to_layout.head_stride + token * a.to_layout.token_stride + thread % LANES * 32;
    uint4 q[2];
    uint16_t scale[2];
#pragma unroll
    for (int v = 0; v < 2; v++) {
        const char *side = from + (v ? a.layout.v_offset : 0);
        q[v] = __ldcg((const uint4 *)(side + token * a.layout.token_stride + thread % LANES * 16));
        scale[v] = __ldcg((const uint16_t *)(side + a.layout.scale_offset) + token);
    }
#pragma unroll
    for (int v = 0; v < 2; v++) {
        uint4 low, high, *side = (uint4 *)(to + (v ? a.to_layout.v_offset : 0));
        qkc_i8_to_bf16(q[v], qkc_i8_float(scale[v]), &low, &high);
        __stcg(side, low);
        __stcg(side + 1, high);
    }
    if (head == 0 && thread == 0)
        a.to_pages[a.first_page + page] = (uint64_t)(uintptr_t)to_page;
}

void qkc_widened_layout(uint32_t n_kv_heads, uint32_t head_dim, qk_kv_layout *out)
{
    *out = {};
    out->dtype = QK_BF16;
    out->token_stride = head_dim * (uint32_t)sizeof(qkc_bf16);
    out->v_offset = (uint64_t)QK_PAGE_TOKENS * out->token_stride;
    out->head_stride = 2 * out->v_offset;
    out->layer_stride = out->page_bytes = n_kv_heads * out->head_stride;
}

cudaError_t qkc_dequantise(const qkc_launch *launch, const qkc_dequantise_args *args)
{
    const qk_kv_layout *from = &args->layout, *to = &args->to_layout;
    const uint64_t strides = from->token_stride | from->v_offset | from->head_stride | from->layer_stride |
                             to->token_stride | to->v_offset | to->head_stride | to->layer_stride;
    if (from->dtype != QK_I8 || to->dtype != QK_BF16 || strides % 16 != 0 || from->scale_offset % 2 != 0 ||
        (args->head_dim != 64 && args->head_dim != 128))
        return cudaErrorInvalidValue;
    if (args->n_pages == 0)
        return cudaSuccess;
    const uint64_t n_units = (uint64_t)args->n_pages * args->n_kv_heads, a_block = THREADS / args->head_dim;
    return qkc_start(launch, args->head_dim == 128 ? dequantise_kernel<128> : dequantise_kernel<64>,
        dim3((uint32_t)((n_units + a_block - 1) / a_block)), dim3(THREADS), 0, *args);
}
