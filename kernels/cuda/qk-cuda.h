/* qk-cuda.h: what the CUDA module exports. The registry opens the module at run time and asks for this one table, so
 * that one build of the program runs with and without a GPU, a driver and the CUDA libraries. No CUDA header here. */
#pragma once
#include "kernels/qk-backend.h"

#ifdef __cplusplus
extern "C" {
#endif

#define QK_CUDA_MODULE_SYMBOL "qk_cuda_module"

typedef struct {
    uint32_t abi_version;         /* QK_ABI_VERSION of the build; checked before anything else */
    void (*probe)(qk_probe *out); /* as in the registry's table: fills all but the name */
    size_t (*list_devices)(qk_device *out, size_t n);
    qk_status (*estimate)(const qk_shape *shape, bool tied, const qk_context_params *params, qk_sizes *model,
        qk_sizes *context); /* as qk_estimate() */
    qk_status (*open)(const qk_backend_options *options, qk_backend **out, char *error, size_t error_size);
} qk_cuda_module_table;

typedef const qk_cuda_module_table *(*qk_cuda_module_fn)(void);

#ifdef __cplusplus
}
#endif
