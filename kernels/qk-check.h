/* qk-check.h: the argument checks behind the public functions of qk.h. Internal to kernels/.
 *
 * Each returns QK_OK, or QK_INVALID (for sizes past what memory can hold: QK_NO_MEMORY) with one line in @error that
 * names the field, what is expected and what was found. None of them touches a device. qk_plan_check() is in
 * qk-backend.h. */
#pragma once
#include "kernels/qk-backend.h"

/* What may be registered and wrapped. */
qk_status qk_check_host_memory(const void *host, uint64_t bytes, char *error, size_t error_size);
qk_status qk_check_copies(const qk_backend *backend, qk_stream stream, const qk_copy *copies, uint32_t n,
    char *error, size_t error_size);
qk_status qk_check_fill(const qk_backend *backend, qk_stream stream, const qk_buffer *dst, uint64_t offset,
    uint64_t bytes, char *error, size_t error_size);
qk_status qk_check_shape(const qk_shape *shape, char *error, size_t error_size);
qk_status qk_check_model_desc(const qk_model_desc *desc, char *error, size_t error_size);
qk_status qk_check_layout(const qk_kv_layout *layout, const qk_shape *shape, char *error, size_t error_size);
qk_status qk_check_context_params(
    const qk_context_params *params, const qk_shape *shape, char *error, size_t error_size);
qk_status qk_check_bounds(const qk_context_params *params, uint32_t kv_class, const qk_bounds *bounds,
    uint32_t n, char *error, size_t error_size);
qk_status qk_check_sampling(const qk_sampling *sampling, char *error, size_t error_size);
