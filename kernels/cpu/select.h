/* select.h: the parts of selective attention that tests and other backends' tests use too. Internal to kernels.
 *
 * Plain C, any thread. */
#pragma once
#include "kernels/qk.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Of one kv head of one layer: the smallest keys, then the largest. */
static inline size_t qk_bounds_slice_bytes(const qk_shape *shape, qk_dtype dtype)
{
    return 2 * (size_t)shape->head_dim * (dtype == QK_BF16 ? 2 : 4);
}

/* @keys: a page's 16 keys of one kv head, @token_stride bytes apart. @bounds: [2][head_dim]. @dtype: bf16 or f32. */
void qk_bounds_of_slice(
    qk_dtype dtype, const void *keys, size_t token_stride, uint32_t head_dim, void *bounds);

/* Integers that compare as the scores do; a NaN is the largest. */
uint32_t qk_select_key(float score);

/* @out: @first plus the indices of the @k largest of @n keys (@k <= @n), ascending; of equal ones the first. Returns k. */
uint32_t qk_select_largest(const uint32_t *keys, uint32_t n, uint32_t k, uint32_t first, uint32_t *out);

#ifdef __cplusplus
}
#endif
