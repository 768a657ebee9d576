/* qe-measure.c: the machine's ceilings, measured on a backend of its own. Blocking; any thread but a UI's. */
#include "engine/qe.h"
#include "kernels/qk.h"

bool qe_measure_machine(const char *backend, const char *isa, uint32_t n_threads, double *read_bytes_per_s,
    double *flops, GError **error)
{
    qk_backend_options options = {.n_threads = n_threads, .isa = isa};
    qk_backend *device = NULL;
    char message[256] = "";
    qk_status status =
        qk_backend_open(backend != NULL ? backend : "cpu", &options, &device, message, sizeof message);

    if (status == QK_OK)
        status = qk_backend_measure(device, QK_MEASURE_READ_BYTES_PER_S, read_bytes_per_s);
    if (status == QK_OK)
        status = qk_backend_measure(device, QK_MEASURE_F32_FLOPS, flops);
    if (status != QK_OK)
        g_set_error(error, QE_ERROR, QE_ERROR_FAILED, "measuring the machine: %s: %s", qk_status_name(status),
            device != NULL ? qk_backend_error(device) : message);
    qk_backend_free(device);
    return status == QK_OK;
}
