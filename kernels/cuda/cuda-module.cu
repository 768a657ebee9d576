/* cuda-module.cu: the module's one exported symbol. */
#include "kernels/cuda/cuda-backend.h"
#include "kernels/cuda/qk-cuda.h"
#include <stdio.h>

static void probe(qk_probe *out)
{
    int device;
    out->available =
        qkc_find_device(NULL, &device, out->device, sizeof(out->device), out->reason, sizeof(out->reason));
}

#define ESTIMATE_SMS 132 /* of the card assumed: a large one */

/* Counting a context asks of the model only its shape, and of the backend what the card is: neither needs to exist. */
static qk_status estimate(
    const qk_shape *shape, bool tied, const qk_context_params *params, qk_sizes *model, qk_sizes *context)
{
    qkc_backend some_backend = {};
    qkc_model some_model = {};
    some_backend.n_sms = ESTIMATE_SMS;
    some_backend.capability = 90;
    some_backend.pdl = some_backend.hopper = true;
    some_model.head.backend = &some_backend.head;
    some_model.head.shape = *shape;
    qk_status status = qkc_model_measure(shape, tied, model);
    return status == QK_OK ? qkc_context_measure((qk_model *)&some_model, params, context) : status;
}

static const qk_cuda_module_table table = {
    .abi_version = QK_ABI_VERSION,
    .probe = probe,
    .list_devices = qkc_list_devices,
    .estimate = estimate,
    .open = qkc_open,
};

extern "C" __attribute__((visibility("default"))) const qk_cuda_module_table *qk_cuda_module(void);
const qk_cuda_module_table *qk_cuda_module(void)
{
    return &table;
}
