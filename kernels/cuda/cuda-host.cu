/* cuda-host.cu: host memory that the device reads: registering memory of the caller's own, buffers over it, and where
 * each piece of pinned memory ends.
 *
 *  1. A list in the backend has every pinned range of its own (registered here, or a host buffer of cuda-backend.cu),
 *     ordered by address: a single copy must not cross from one to the next, even where they are neighbours.
 *  2. Registering and unregistering come from any thread: the device is selected for that thread, errors go to the
 *     caller's line and never to backend->error, and no error is left behind for the thread's next call. The list has
 *     a lock, which is never held over a call of the driver.
 *  3. After a loss the list alone is cleaned up: what was pinned went with the context. */
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "kernels/cuda/cuda-backend.h"

/* ---- The list ------------------------------------------------------------------------------------------------ */

void qkc_pins_init(qkc_pins *pins)
{
    pthread_mutex_init(&pins->lock, NULL);
}

void qkc_pins_clear(qkc_pins *pins)
{
    pthread_mutex_destroy(&pins->lock);
    free(pins->ranges);
}

/* The first range that begins above @address (a host address). The lock is held. */
static size_t upper(const qkc_pins *pins, uint64_t host)
{
    size_t low = 0, high = pins->n;
    while (low < high) {
        const size_t middle = (low + high) / 2;
        if (pins->ranges[middle].host <= host)
            low = middle + 1;
        else
            high = middle;
    }
    return low;
}

/* The range that has @host, or NULL. The lock is held. */
static const qkc_pin *find(const qkc_pins *pins, uint64_t host)
{
    const size_t i = upper(pins, host);
    if (i == 0 || host - pins->ranges[i - 1].host >= pins->ranges[i - 1].bytes)
        return NULL;
    return &pins->ranges[i - 1];
}

bool qkc_pins_add(qkc_pins *pins, const qkc_pin *pin)
{
    bool added = false;
    pthread_mutex_lock(&pins->lock);
    if (pins->n == pins->n_max) {
        const size_t n_max = pins->n_max > 0 ? 2 * pins->n_max : 64;
        qkc_pin *grown = (qkc_pin *)realloc(pins->ranges, n_max * sizeof(*grown));
        if (grown != NULL) {
            pins->ranges = grown;
            pins->n_max = n_max;
        }
    }
    if (pins->n < pins->n_max) {
        const size_t at = upper(pins, pin->host);
        memmove(pins->ranges + at + 1, pins->ranges + at, (pins->n - at) * sizeof(*pin));
        pins->ranges[at] = *pin;
        pins->n++;
        added = true;
    }
    pthread_mutex_unlock(&pins->lock);
    return added;
}

bool qkc_pins_remove(qkc_pins *pins, uint64_t host)
{
    pthread_mutex_lock(&pins->lock);
    const size_t i = upper(pins, host);
    const bool found = i > 0 && pins->ranges[i - 1].host == host;
    if (found) {
        memmove(pins->ranges + i - 1, pins->ranges + i, (pins->n - i) * sizeof(*pins->ranges));
        pins->n--;
    }
    pthread_mutex_unlock(&pins->lock);
    return found;
}

/* The driver gives pinned memory the same address on both sides wherever Quire runs, but the list does not need it: a
 * range is looked for by what the device uses. */
uint64_t qkc_pins_end(qkc_pins *pins, uint64_t address)
{
    uint64_t end = 0;
    pthread_mutex_lock(&pins->lock);
    const qkc_pin *pin = find(pins, address);
    if (pin != NULL && pin->address == pin->host)
        end = pin->address + pin->bytes;
    for (size_t i = 0; i < pins->n && end == 0; i++)
        if (address >= pins->ranges[i].address && address - pins->ranges[i].address < pins->ranges[i].bytes)
            end = pins->ranges[i].address + pins->ranges[i].bytes;
    pthread_mutex_unlock(&pins->lock);
    return end;
}

/* ---- Registering --------------------------------------------------------------------------------------------- */

/* Any thread. Selects the device for it and takes the thread out of what a graph capture elsewhere forbids, until
 * leave_thread(). */
static cudaError_t enter_thread(qkc_backend *self, cudaStreamCaptureMode *mode)
{
    *mode = cudaStreamCaptureModeRelaxed;
    const cudaError_t code = cudaSetDevice(self->device);
    cudaThreadExchangeStreamCaptureMode(mode);
    return code;
}

static void leave_thread(cudaStreamCaptureMode mode)
{
    cudaThreadExchangeStreamCaptureMode(&mode);
    cudaGetLastError();
}

__attribute__((format(printf, 4, 5))) static qk_status refuse(
    char *error, size_t error_size, qk_status status, const char *format, ...)
{
    va_list args;
    va_start(args, format);
    if (error != NULL && error_size > 0)
        vsnprintf(error, error_size, format, args);
    va_end(args);
    return status;
}

qk_status qkc_host_register(qk_backend *backend, void *host, uint64_t bytes, char *error, size_t error_size)
{
    qkc_backend *self = (qkc_backend *)backend;
    cudaStreamCaptureMode mode;
    void *address = NULL;
    if (qkc_is_lost(self))
        return refuse(error, error_size, QK_DEVICE_LOST, "%s was lost; load the model again", self->name);
    cudaError_t code = enter_thread(self, &mode);
    if (code == cudaSuccess)
        code = cudaHostRegister(host, bytes, cudaHostRegisterPortable | cudaHostRegisterMapped);
    const bool pinned = code == cudaSuccess;
    if (pinned)
        code = cudaHostGetDevicePointer(&address, host, 0);
    const qkc_pin pin = {(uint64_t)(uintptr_t)host, (uint64_t)(uintptr_t)address, bytes};
    const bool listed = code == cudaSuccess && qkc_pins_add(&self->pins, &pin);
    if (pinned && !listed)
        cudaHostUnregister(host);
    leave_thread(mode);
    if (listed)
        return QK_OK;
    if (code == cudaSuccess)
        return refuse(
            error, error_size, QK_NO_MEMORY, "host memory: no memory for the list of pinned memory");
    if (qkc_note_loss(self, code))
        return refuse(error, error_size, QK_DEVICE_LOST, "host memory: %s", cudaGetErrorString(code));
    return refuse(error, error_size, code == cudaErrorNotSupported ? QK_UNSUPPORTED : QK_NO_MEMORY,
        "host memory: the system does not pin %llu bytes at %p: %s", (unsigned long long)bytes, host,
        cudaGetErrorString(code));
}

void qkc_host_unregister(qk_backend *backend, void *host)
{
    qkc_backend *self = (qkc_backend *)backend;
    cudaStreamCaptureMode mode;
    if (!qkc_pins_remove(&self->pins, (uint64_t)(uintptr_t)host) || qkc_is_lost(self))
        return;
    cudaError_t code = enter_thread(self, &mode);
    if (code == cudaSuccess)
        code = cudaHostUnregister(host);
    leave_thread(mode);
    qkc_note_loss(self, code);
}

/* ---- Buffers over it ----------------------------------------------------------------------------------------- */

qk_status qkc_buffer_wrap(qk_backend *backend, void *host, uint64_t bytes, qk_buffer **out)
{
    qkc_backend *self = (qkc_backend *)backend;
    if (qkc_refuse(self))
        return QK_DEVICE_LOST;
    qkc_buffer *buffer = (qkc_buffer *)calloc(1, sizeof(*buffer));
    if (buffer == NULL)
        return qkc_fail(self, QK_NO_MEMORY, cudaSuccess, "buffer: no host memory");
    buffer->head.backend = backend;
    buffer->head.memory = QK_MEMORY_HOST;
    buffer->head.bytes = bytes;
    buffer->head.host = host;
    buffer->is_wrapped = true;
    /* Only memory that is registered to its end has one address for all of it. */
    const uint64_t begin = (uint64_t)(uintptr_t)host;
    pthread_mutex_lock(&self->pins.lock);
    const qkc_pin *pin = find(&self->pins, begin);
    if (pin != NULL && bytes <= pin->bytes - (begin - pin->host))
        buffer->head.address = pin->address + (begin - pin->host);
    pthread_mutex_unlock(&self->pins.lock);
    *out = &buffer->head;
    return QK_OK;
}
