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

static const qk_cuda_module_table table = {
    QK_ABI_VERSION,
    probe,
    qkc_list_devices,
    qkc_open,
};

extern "C" __attribute__((visibility("default"))) const qk_cuda_module_table *qk_cuda_module(void);
const qk_cuda_module_table *qk_cuda_module(void)
{
    return &table;
}
