/* qe-measure.c: the machine's ceilings, and a ballast in a card's memory, on a backend of their own. Blocking; any thread
 * but a UI's. */
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

struct qe_ballast {
    qk_backend *backend;
    qk_buffer *buffer;
};

/* What to hold so that @leave bytes are this process's; 0 with @error. */
static uint64_t bytes_to_hold(const qk_backend_info *info, uint64_t leave, GError **error)
{
    if (info->memory_process == 0)
        g_set_error(error, QE_ERROR, QE_ERROR_UNSUPPORTED,
            "The driver does not tell how much of the card this process has");
    else if (info->memory_process >= leave)
        g_set_error(error, QE_ERROR, QE_ERROR_NO_MEMORY,
            "The context alone takes %" G_GUINT64_FORMAT
            " bytes of the card: expected a limit above it, found %" G_GUINT64_FORMAT,
            info->memory_process, leave);
    else if (info->memory_free <= leave - info->memory_process)
        g_set_error(error, QE_ERROR, QE_ERROR_NO_MEMORY,
            "The card has %" G_GUINT64_FORMAT " bytes free: less than the limit of %" G_GUINT64_FORMAT
            " leaves",
            info->memory_free, leave);
    else
        return info->memory_free - (leave - info->memory_process);
    return 0;
}

qe_ballast *qe_ballast_new(const char *device, uint64_t hold, uint64_t leave, GError **error)
{
    const qk_backend_options options = {.device = device};
    qe_ballast *self = g_new0(qe_ballast, 1);
    char message[256] = "";
    qk_backend_info info;
    qk_status status = qk_backend_open("cuda", &options, &self->backend, message, sizeof message);
    if (status != QK_OK) {
        self->backend = NULL;
        g_set_error(error, QE_ERROR, QE_ERROR_UNSUPPORTED, "A ballast needs a card: %s", message);
        goto fail;
    }
    qk_backend_get_info(self->backend, &info);
    if (hold == 0)
        hold = bytes_to_hold(&info, leave, error) / 64 * 64;
    if (hold == 0)
        goto fail;
    status = qk_buffer_new(self->backend, QK_MEMORY_DEVICE, hold, &self->buffer);
    if (status == QK_OK)
        return self;
    self->buffer = NULL;
    g_set_error(error, QE_ERROR, QE_ERROR_NO_MEMORY, "The ballast: %s", qk_backend_error(self->backend));
fail:
    qe_ballast_free(self);
    return NULL;
}

uint64_t qe_ballast_bytes(const qe_ballast *self)
{
    return self ? self->buffer->bytes : 0;
}

void qe_ballast_free(qe_ballast *self)
{
    if (!self)
        return;
    qk_buffer_free(self->buffer);
    qk_backend_free(self->backend);
    g_free(self);
}
