/* fake-cuda.c: a CUDA module with one card that looks usable and fails at opening in the way that $FAKE_CUDA names:
 * "memory", "lost" or "broken". It carries no CUDA: what is tested is how the engine takes it. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "kernels/cuda/qk-cuda.h"

static void probe(qk_probe *out)
{
    out->available = true;
    snprintf(out->device, sizeof(out->device), "Test Card");
}

static size_t list_devices(qk_device *out, size_t n)
{
    if (n > 0) {
        snprintf(out->id, sizeof(out->id), "GPU-test");
        snprintf(out->name, sizeof(out->name), "Test Card");
        out->memory_total = 24ull << 30;
        out->memory_free = 20ull << 30;
        out->usable = true;
    }
    return 1;
}

static qk_status estimate(
    const qk_shape *shape, bool tied, const qk_context_params *params, qk_sizes *model, qk_sizes *context)
{
    *model = (qk_sizes){.device_bytes = 8ull << 30};
    *context = (qk_sizes){.device_bytes = (1ull << 30) + ((uint64_t)params->partial_max << 20)};
    return QK_OK;
}

static qk_status open_backend(
    const qk_backend_options *options, qk_backend **out, char *error, size_t error_size)
{
    const char *how = getenv("FAKE_CUDA");
    snprintf(error, error_size, "the test card fails");
    if (how != NULL && strcmp(how, "memory") == 0)
        return QK_NO_MEMORY;
    return how != NULL && strcmp(how, "lost") == 0 ? QK_DEVICE_LOST : QK_INVALID;
}

__attribute__((visibility("default"))) const qk_cuda_module_table *qk_cuda_module(void);
const qk_cuda_module_table *qk_cuda_module(void)
{
    static const qk_cuda_module_table table = {QK_ABI_VERSION, probe, list_devices, estimate, open_backend};
    return &table;
}
