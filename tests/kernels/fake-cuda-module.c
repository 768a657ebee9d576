/* fake-cuda-module.c: modules that are not Quire's, for test-kernels-registry.c. FAKE_ABI: the version it claims; without
 * it, the module lacks the symbol altogether. */
#include "kernels/cuda/qk-cuda.h"
#include <stdio.h>
#include <string.h>

#ifdef FAKE_ABI
const qk_cuda_module_table *qk_cuda_module(void);

static void probe(qk_probe *out)
{
    out->available = true;
    snprintf(out->device, sizeof(out->device), "Fake GPU");
}

static size_t list_devices(qk_device *out, size_t n)
{
    if (n > 0) {
        snprintf(out[0].id, sizeof(out[0].id), "GPU-fake");
        out[0].usable = true;
    }
    return 1;
}

static qk_status estimate(
    const qk_shape *shape, bool tied, const qk_context_params *params, qk_sizes *model, qk_sizes *context)
{
    model->device_bytes = tied ? 1 : 2;
    context->device_bytes = 3;
    return QK_OK;
}

static qk_status open_backend(
    const qk_backend_options *options, qk_backend **out, char *error, size_t error_size)
{
    snprintf(
        error, error_size, "cuda: fake, device %s", options->device != NULL ? options->device : "of choice");
    return QK_UNSUPPORTED;
}

static const qk_cuda_module_table table = {FAKE_ABI, probe, list_devices, estimate, open_backend};

const qk_cuda_module_table *qk_cuda_module(void)
{
    return &table;
}
#else
int quire_fake_module(void);
int quire_fake_module(void)
{
    return 0;
}
#endif
