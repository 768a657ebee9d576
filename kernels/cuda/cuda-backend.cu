/* cuda-backend.cu: opening and closing, information, buffers, copies, fills, events.
 *
 *  1. Every call first asks whether the device is lost, and then does nothing but say so. Freeing skips the driver: the
 *     memory goes with the context, which the last backend to close destroys (cuda-device.cu).
 *  2. Streams are non-blocking: ordered among each other by events alone.
 *  3. Events are made without times and recorded without allocation. qk_event_query() may come from any thread: it leaves
 *     backend->error alone, selects the device for its own thread, and is allowed while a graph is captured elsewhere.
 *  4. Memory is asked of the driver in whole buffers (KV slabs are tens of MiB); what the driver refuses becomes a line
 *     that says how much was asked, how much is free and what to lower. Host memory is refused before the driver tries
 *     to pin more than there is.
 *
 * Engine thread, but for event_query(). */
#include "kernels/cuda/cuda-backend.h"
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static qkc_backend *backend_from(qk_backend *backend)
{
    return (qkc_backend *)backend;
}

/* ---- Errors -------------------------------------------------------------------------------------------------- */

static cudaError_t lost_code(const qkc_backend *self)
{
    cudaError_t code = (cudaError_t)__atomic_load_n(&self->lost, __ATOMIC_ACQUIRE);
    return code != cudaSuccess ? code : qkc_device_lost(self->device);
}

bool qkc_is_lost(const qkc_backend *self)
{
    return lost_code(self) != cudaSuccess;
}

/* Any thread. Returns whether the code means a loss. */
bool qkc_note_loss(qkc_backend *self, cudaError_t code)
{
    if (!qkc_code_is_lost(code))
        return false;
    qkc_device_set_lost(self->device, code);
    int none = cudaSuccess;
    __atomic_compare_exchange_n(&self->lost, &none, (int)code, false, __ATOMIC_ACQ_REL, __ATOMIC_ACQUIRE);
    return true;
}

qk_status qkc_fail(qkc_backend *self, qk_status status, cudaError_t code, const char *format, ...)
{
    va_list args;
    va_start(args, format);
    int n = vsnprintf(self->error, sizeof(self->error), format, args);
    va_end(args);
    if (code == cudaSuccess)
        return status;
    cudaGetLastError(); /* the next call's result is its own */
    if (n >= 0 && (size_t)n < sizeof(self->error))
        snprintf(self->error + n, sizeof(self->error) - (size_t)n, ": %s", cudaGetErrorString(code));
    if (qkc_note_loss(self, code))
        return QK_DEVICE_LOST;
    if (code == cudaErrorMemoryAllocation)
        return QK_NO_MEMORY;
    return status != QK_OK ? status : QK_UNSUPPORTED;
}

bool qkc_refuse(qkc_backend *self)
{
    cudaError_t code = lost_code(self);
    if (code == cudaSuccess)
        return false;
    snprintf(self->error, sizeof(self->error), "%s was lost (%s); load the model again", self->name,
        cudaGetErrorString(code));
    return true;
}

/* At the head of every call: QK_OK with the device current on this thread. */
static qk_status enter(qkc_backend *self)
{
    if (qkc_refuse(self))
        return QK_DEVICE_LOST;
    cudaError_t code = cudaSetDevice(self->device);
    return code == cudaSuccess ? QK_OK : qkc_fail(self, QK_UNSUPPORTED, code, "selecting %s", self->name);
}

/* "12.5 GiB" or, below one GiB, "640 MiB". */
static void format_bytes(char out[32], uint64_t bytes)
{
    if (bytes >= 1ull << 30)
        snprintf(out, 32, "%.1f GiB", (double)bytes / (1ull << 30));
    else if (bytes >= 1ull << 20)
        snprintf(out, 32, "%.1f MiB", (double)bytes / (1ull << 20));
    else
        snprintf(out, 32, "%llu bytes", (unsigned long long)bytes);
}

qk_status qkc_fail_memory(qkc_backend *self, cudaError_t code, const char *what, uint64_t bytes)
{
    size_t free_bytes = 0, total_bytes = 0;
    char asked[32], left[32], all[32];
    if (code != cudaErrorMemoryAllocation || cudaMemGetInfo(&free_bytes, &total_bytes) != cudaSuccess)
        return qkc_fail(self, QK_NO_MEMORY, code, "%s: %llu bytes", what, (unsigned long long)bytes);
    cudaGetLastError();
    format_bytes(asked, bytes);
    format_bytes(left, free_bytes);
    format_bytes(all, total_bytes);
    return qkc_fail(self, QK_NO_MEMORY, cudaSuccess,
        "%s: %s of GPU memory asked for, %s of %s are free; lower the KV memory or the context length, "
        "choose a smaller "
        "model, or close other programs that use the GPU",
        what, asked, left, all);
}

/* ---- Buffers ------------------------------------------------------------------------------------------------- */

/* Of host memory, what can be had without swapping; UINT64_MAX when unknown. */
static uint64_t host_available_bytes(void)
{
    unsigned long long kib = 0;
    bool found = false;
    char line[160];
    FILE *f = fopen("/proc/meminfo", "re");
    while (f != NULL && !found && fgets(line, sizeof(line), f) != NULL)
        found = sscanf(line, "MemAvailable: %llu kB", &kib) == 1;
    if (f != NULL)
        fclose(f);
    return found ? (uint64_t)kib * 1024 : UINT64_MAX;
}

static qk_status fail_host_memory(qkc_backend *self, uint64_t bytes, uint64_t available)
{
    char asked[32], left[32] = "an unknown part";
    format_bytes(asked, bytes);
    if (available != UINT64_MAX)
        format_bytes(left, available);
    return qkc_fail(self, QK_NO_MEMORY, cudaSuccess,
        "buffer: %s of host memory asked for, %s of it is available; lower the memory for idle "
        "conversations, or close "
        "other programs",
        asked, left);
}

static qk_status device_memory_new(qkc_backend *self, qk_buffer *buffer)
{
    void *data = NULL;
    cudaError_t code = cudaMalloc(&data, buffer->bytes);
    if (code != cudaSuccess)
        return qkc_fail_memory(self, code, "buffer", buffer->bytes);
    buffer->address = (uint64_t)(uintptr_t)data;
    return QK_OK;
}

static qk_status host_memory_new(qkc_backend *self, qk_buffer *buffer)
{
    uint64_t available = host_available_bytes();
    if (buffer->bytes > available)
        return fail_host_memory(self, buffer->bytes, available);
    void *data = NULL, *address = NULL;
    cudaError_t code = cudaHostAlloc(&data, buffer->bytes, cudaHostAllocPortable | cudaHostAllocMapped);
    if (code == cudaErrorMemoryAllocation) {
        cudaGetLastError();
        return fail_host_memory(self, buffer->bytes, available);
    }
    if (code == cudaSuccess && (code = cudaHostGetDevicePointer(&address, data, 0)) != cudaSuccess)
        cudaFreeHost(data);
    if (code != cudaSuccess)
        return qkc_fail(self, QK_UNSUPPORTED, code, "buffer: host memory for the device");
    const qkc_pin pin = {(uint64_t)(uintptr_t)data, (uint64_t)(uintptr_t)address, buffer->bytes};
    if (!qkc_pins_add(&self->pins, &pin)) {
        cudaFreeHost(data);
        return qkc_fail(self, QK_NO_MEMORY, cudaSuccess, "buffer: no memory for the list of pinned memory");
    }
    buffer->host = data;
    buffer->address = (uint64_t)(uintptr_t)address;
    return QK_OK;
}

static qk_status buffer_new(qk_backend *backend, qk_memory memory, uint64_t bytes, qk_buffer **out)
{
    qkc_backend *self = backend_from(backend);
    qk_status status = enter(self);
    if (status != QK_OK)
        return status;
    qk_buffer *buffer = (qk_buffer *)calloc(1, sizeof(qkc_buffer));
    if (buffer == NULL)
        return qkc_fail(self, QK_NO_MEMORY, cudaSuccess, "buffer: no host memory");
    buffer->backend = backend;
    buffer->memory = memory;
    buffer->bytes = bytes;
    status = memory == QK_MEMORY_HOST ? host_memory_new(self, buffer) : device_memory_new(self, buffer);
    if (status != QK_OK)
        free(buffer);
    else
        *out = buffer;
    return status;
}

static void buffer_free(qk_buffer *buffer)
{
    qkc_backend *self = backend_from(buffer->backend);
    if (((const qkc_buffer *)buffer)->is_wrapped) {
        free(buffer);
        return;
    }
    if (buffer->memory == QK_MEMORY_HOST)
        qkc_pins_remove(&self->pins, (uint64_t)(uintptr_t)buffer->host);
    if (!qkc_is_lost(self) && cudaSetDevice(self->device) == cudaSuccess) {
        cudaError_t code = buffer->memory == QK_MEMORY_HOST ? cudaFreeHost(buffer->host)
                                                            : cudaFree((void *)(uintptr_t)buffer->address);
        qkc_note_loss(self, code);
        cudaGetLastError();
    }
    free(buffer);
}

/* ---- Copies and fills ---------------------------------------------------------------------------------------- */

static cudaMemcpyKind copy_kind(const qk_copy *c)
{
    if (c->src->memory == QK_MEMORY_HOST)
        return c->dst->memory == QK_MEMORY_HOST ? cudaMemcpyHostToHost : cudaMemcpyHostToDevice;
    return c->dst->memory == QK_MEMORY_HOST ? cudaMemcpyDeviceToHost : cudaMemcpyDeviceToDevice;
}

/* Where a copy's side begins. Host memory that is not registered has no device-visible address. */
static void *side(const qk_buffer *buffer, uint64_t offset)
{
    return buffer->memory == QK_MEMORY_HOST ? (char *)buffer->host + offset
                                            : (char *)(uintptr_t)(buffer->address + offset);
}

static bool continues(const qk_copy *run, const qk_copy *next)
{
    return next->dst == run->dst && next->src == run->src &&
           next->dst_offset == run->dst_offset + run->bytes &&
           next->src_offset == run->src_offset + run->bytes;
}

/* Ranges that follow each other in both buffers become one copy: neighbouring pages move together. */
static qk_status copy_submit(qk_backend *backend, qk_stream stream, const qk_copy *copies, uint32_t n)
{
    qkc_backend *self = backend_from(backend);
    qk_status status = enter(self);
    for (uint32_t i = 0; i < n && status == QK_OK;) {
        qk_copy run = copies[i++];
        for (; i < n && continues(&run, &copies[i]); i++)
            run.bytes += copies[i].bytes;
        if (run.bytes == 0)
            continue;
        cudaError_t code = cudaMemcpyAsync(side(run.dst, run.dst_offset), side(run.src, run.src_offset),
            run.bytes, copy_kind(&run), self->streams[stream]);
        if (code != cudaSuccess)
            status =
                qkc_fail(self, QK_UNSUPPORTED, code, "copy of %llu bytes", (unsigned long long)run.bytes);
    }
    return status;
}

#define FILL_THREADS 256u

/* Words [0, n): single ones up to the first 16-byte boundary and behind the last, four at a time between. */
__global__ void fill_words(uint32_t *out, uint64_t n, uint64_t n_head, uint32_t word)
{
    const uint64_t n_quads = (n - n_head) / 4, n_tail = n - n_head - 4 * n_quads;
    const uint64_t i = (uint64_t)blockIdx.x * blockDim.x + threadIdx.x,
                   stride = (uint64_t)gridDim.x * blockDim.x;
    uint4 *quads = (uint4 *)(out + n_head);
    for (uint64_t q = i; q < n_quads; q += stride)
        quads[q] = make_uint4(word, word, word, word);
    if (i < n_head)
        out[i] = word;
    if (i < n_tail)
        out[n_head + 4 * n_quads + i] = word;
}

static qk_status fill_submit(
    qk_backend *backend, qk_stream stream, qk_buffer *dst, uint64_t offset, uint64_t bytes, uint32_t word)
{
    qkc_backend *self = backend_from(backend);
    qk_status status = enter(self);
    if (status != QK_OK || bytes == 0)
        return status;
    if (dst->address == 0)
        return qkc_fail(self, QK_UNSUPPORTED, cudaSuccess, "fill: the host memory is not registered");
    const uint64_t begin = dst->address + offset, n = bytes / 4;
    uint64_t n_head = (16 - begin % 16) % 16 / 4;
    if (n_head > n)
        n_head = n;
    const uint64_t blocks_wanted = (n / 4 + FILL_THREADS - 1) / FILL_THREADS,
                   blocks_max = (uint64_t)self->n_sms * 8;
    const unsigned n_blocks = (unsigned)(blocks_wanted < 1            ? 1
                                         : blocks_wanted > blocks_max ? blocks_max
                                                                      : blocks_wanted);
    fill_words<<<n_blocks, FILL_THREADS, 0, self->streams[stream]>>>(
        (uint32_t *)(uintptr_t)begin, n, n_head, word);
    cudaError_t code = cudaGetLastError();
    return code == cudaSuccess
               ? QK_OK
               : qkc_fail(self, QK_UNSUPPORTED, code, "fill of %llu bytes", (unsigned long long)bytes);
}

/* ---- Events -------------------------------------------------------------------------------------------------- */

typedef struct {
    qk_event_head head;
    cudaEvent_t event;
} qkc_event;

static qk_status event_new(qk_backend *backend, qk_event **out)
{
    qkc_backend *self = backend_from(backend);
    qk_status status = enter(self);
    if (status != QK_OK)
        return status;
    qkc_event *event = (qkc_event *)calloc(1, sizeof(*event));
    if (event == NULL)
        return qkc_fail(self, QK_NO_MEMORY, cudaSuccess, "event: no host memory");
    cudaError_t code = cudaEventCreateWithFlags(&event->event, cudaEventDisableTiming);
    if (code != cudaSuccess) {
        free(event);
        return qkc_fail(self, QK_NO_MEMORY, code, "event");
    }
    event->head.backend = backend;
    *out = (qk_event *)event;
    return QK_OK;
}

static void event_free(qk_event *event)
{
    qkc_event *self = (qkc_event *)event;
    qkc_backend *backend = backend_from(self->head.backend);
    if (!qkc_is_lost(backend) && cudaSetDevice(backend->device) == cudaSuccess) {
        cudaEventDestroy(self->event);
        cudaGetLastError();
    }
    free(self);
}

static qk_status event_record(qk_event *event, qk_stream stream)
{
    qkc_event *self = (qkc_event *)event;
    qkc_backend *backend = backend_from(self->head.backend);
    qk_status status = enter(backend);
    if (status != QK_OK)
        return status;
    cudaError_t code = cudaEventRecord(self->event, backend->streams[stream]);
    return code == cudaSuccess ? QK_OK : qkc_fail(backend, QK_UNSUPPORTED, code, "event: recording");
}

/* Any thread. */
static qk_status event_query(qk_event *event)
{
    qkc_event *self = (qkc_event *)event;
    qkc_backend *backend = backend_from(self->head.backend);
    if (qkc_is_lost(backend))
        return QK_DEVICE_LOST;
    /* Without a device of its own this thread would start the first one's context. A graph being captured on another
     * thread forbids queries unless this thread says that it takes no part. */
    cudaStreamCaptureMode mode = cudaStreamCaptureModeRelaxed;
    cudaError_t code = cudaSetDevice(backend->device);
    cudaThreadExchangeStreamCaptureMode(&mode);
    if (code == cudaSuccess)
        code = cudaEventQuery(self->event);
    cudaThreadExchangeStreamCaptureMode(&mode);
    cudaGetLastError();
    if (code == cudaSuccess)
        return QK_OK;
    if (code == cudaErrorNotReady)
        return QK_PENDING;
    qkc_note_loss(backend, code);
    return qkc_is_lost(backend) ? QK_DEVICE_LOST : QK_UNSUPPORTED;
}

static qk_status event_wait(qk_event *event)
{
    qkc_event *self = (qkc_event *)event;
    qkc_backend *backend = backend_from(self->head.backend);
    qk_status status = enter(backend);
    if (status != QK_OK)
        return status;
    cudaError_t code = cudaEventSynchronize(self->event);
    return code == cudaSuccess ? QK_OK : qkc_fail(backend, QK_UNSUPPORTED, code, "event: waiting");
}

static qk_status stream_wait(qk_backend *backend, qk_stream stream, qk_event *event)
{
    qkc_backend *self = backend_from(backend);
    qk_status status = enter(self);
    if (status != QK_OK)
        return status;
    cudaError_t code = cudaStreamWaitEvent(self->streams[stream], ((qkc_event *)event)->event, 0);
    return code == cudaSuccess ? QK_OK : qkc_fail(self, QK_UNSUPPORTED, code, "event: making a stream wait");
}

/* ---- Opening, information, closing --------------------------------------------------------------------------- */

static const char *get_error(const qk_backend *backend)
{
    return ((const qkc_backend *)backend)->error;
}

static void get_info(qk_backend *backend, qk_backend_info *out)
{
    qkc_backend *self = backend_from(backend);
    size_t free_bytes = 0, total_bytes = 0;
    out->name = "cuda";
    out->memory_total = self->memory_total;
    snprintf(out->device, sizeof(out->device), "%s", self->name);
    snprintf(out->kernels, sizeof(out->kernels), "%s sm_%d", self->hopper ? "hopper" : "portable",
        (int)self->capability);
    if (qkc_is_lost(self) || cudaSetDevice(self->device) != cudaSuccess)
        return;
    if (cudaMemGetInfo(&free_bytes, &total_bytes) == cudaSuccess)
        out->memory_free = free_bytes;
    if (self->nvml != NULL) {
        qkc_nvml_sample(self->nvml);
        out->utilization = self->nvml->utilization;
        out->memory_process = self->nvml->process_bytes;
    }
}

static void close_backend(qk_backend *backend)
{
    qkc_backend *self = backend_from(backend);
    bool lost = qkc_is_lost(self);
    if (!lost) {
        cudaSetDevice(self->device);
        for (int i = 0; i < QK_N_STREAMS; i++)
            if (self->streams[i] != NULL)
                qkc_note_loss(self, cudaStreamSynchronize(self->streams[i]));
    }
    if (self->gemm != NULL)
        qkc_gemm_free(self->gemm);
    for (int i = 0; i < QK_N_STREAMS && !qkc_is_lost(self); i++)
        if (self->streams[i] != NULL)
            cudaStreamDestroy(self->streams[i]);
    cudaGetLastError();
    free(self->nvml);
    qkc_pins_clear(&self->pins);
    qkc_device_leave(self->device);
    free(self);
}

static const qk_backend_ops qk_cuda_ops = {
    .abi_version = QK_ABI_VERSION,
    .name = "cuda",
    .close = close_backend,
    .error = get_error,
    .get_info = get_info,
    .measure = qkc_measure,
    .buffer_new = buffer_new,
    .buffer_free = buffer_free,
    .host_register = qkc_host_register,
    .host_unregister = qkc_host_unregister,
    .buffer_wrap = qkc_buffer_wrap,
    .copy_submit = copy_submit,
    .fill_submit = fill_submit,
    .event_new = event_new,
    .event_free = event_free,
    .event_record = event_record,
    .event_query = event_query,
    .event_wait = event_wait,
    .stream_wait = stream_wait,
    .model_load = qkc_model_load,
    .model_free = qkc_model_free,
    .context_measure = qkc_context_measure,
    .context_new = qkc_context_new,
    .context_free = qkc_context_free,
    .context_set_history = qkc_context_set_history,
    .bounds_submit = qkc_bounds_submit,
    .step_new = qkc_step_new,
    .step_free = qkc_step_free,
    .step_plan = qkc_step_plan,
    .step_submit = qkc_step_submit,
    .step_poll = qkc_step_poll,
    .step_wait = qkc_step_wait,
    .step_cancel = qkc_step_cancel,
    .step_result = qkc_step_result,
};

/* Starts the context, reads what the card is, makes the streams, prepares the kernels. */
static cudaError_t start(qkc_backend *self, bool portable)
{
    cudaDeviceProp prop;
    qkc_nvml nvml;
    cudaError_t code = cudaSetDevice(self->device);
    if (code == cudaSuccess)
        code = cudaFree(NULL);
    if (code == cudaSuccess)
        code = cudaGetDeviceProperties(&prop, self->device);
    if (code != cudaSuccess)
        return code;
    self->n_sms = prop.multiProcessorCount;
    self->capability = prop.major * 10 + prop.minor;
    self->memory_total = prop.totalGlobalMem;
    self->pdl = !portable && self->capability >= 90;
    self->hopper = !portable && self->capability == 90;
    if (qkc_nvml_find(&nvml, &prop) && (self->nvml = (qkc_nvml *)malloc(sizeof(nvml))) != NULL)
        *self->nvml = nvml;
    /* Kernels that fetch host pages must not stand behind the attention that they run ahead of. */
    int lowest = 0, highest = 0;
    code = cudaDeviceGetStreamPriorityRange(&lowest, &highest);
    for (int i = 0; i < QK_N_STREAMS && code == cudaSuccess; i++)
        code = cudaStreamCreateWithPriority(
            &self->streams[i], cudaStreamNonBlocking, i == QK_STREAM_TO_DEVICE ? highest : lowest);
    if (code == cudaSuccess)
        code = qkc_linear_init();
    if (code == cudaSuccess)
        code = qkc_attend_decode_init();
    if (code == cudaSuccess)
        code = qkc_select_init();
    if (code == cudaSuccess)
        code = qkc_attend_prefill_init();
    if (code == cudaSuccess && self->hopper)
        code = qkc_attend_prefill_hopper_init();
    if (code == cudaSuccess && self->hopper)
        code = qkc_linear_hopper_init();
    if (code == cudaSuccess)
        code = qkc_sample_init();
    return code;
}

/* Gives up an opened backend and says why. */
static qk_status give_up(qkc_backend *self, cudaError_t code, char *error, size_t error_size)
{
    char reason[160];
    cudaGetLastError();
    qkc_explain(self->device, code, reason, sizeof(reason));
    snprintf(error, error_size, "cuda: %s", reason);
    bool lost = qkc_note_loss(self, code);
    close_backend((qk_backend *)self);
    return lost ? QK_DEVICE_LOST : code == cudaErrorMemoryAllocation ? QK_NO_MEMORY : QK_UNSUPPORTED;
}

qk_status qkc_open(const qk_backend_options *options, qk_backend **out, char *error, size_t error_size)
{
    const char *isa = options->isa != NULL ? options->isa : "";
    const bool portable = strcmp(isa, "portable") == 0, hopper = strcmp(isa, "hopper") == 0;
    char reason[256];
    int device;
    if (*isa != '\0' && !portable && !hopper) {
        snprintf(
            error, error_size, "cuda: \"%s\" is no kernel set, expected \"portable\" or \"hopper\"", isa);
        return QK_UNSUPPORTED;
    }
    qkc_backend *self = (qkc_backend *)calloc(1, sizeof(*self));
    if (self == NULL) {
        snprintf(error, error_size, "cuda: no host memory");
        return QK_NO_MEMORY;
    }
    if (!qkc_find_device(options->device, &device, self->name, sizeof(self->name), reason, sizeof(reason))) {
        snprintf(error, error_size, "cuda: %s", reason);
        free(self);
        return QK_UNSUPPORTED;
    }
    if (!qkc_device_enter(device)) {
        snprintf(error, error_size, "cuda: %s was lost; unload every model on it before loading one again",
            self->name);
        free(self);
        return QK_DEVICE_LOST;
    }
    self->head.ops = &qk_cuda_ops;
    self->device = device;
    qkc_pins_init(&self->pins);
    cudaError_t code = start(self, portable);
    if (code == cudaErrorDevicesUnavailable && qkc_device_was_lost(device)) {
        /* Seen with a kernel that traps on an H200, driver 580: a process does not get the card back. */
        snprintf(error, error_size,
            "cuda: %s was lost and does not open again for this run of the program; restart Quire to use it",
            self->name);
        cudaGetLastError();
        close_backend((qk_backend *)self);
        return QK_UNSUPPORTED;
    }
    if (code != cudaSuccess)
        return give_up(self, code, error, error_size);
    if (hopper && !self->hopper) {
        snprintf(error, error_size,
            "cuda: %s has compute capability %d.%d; the kernel set \"hopper\" needs 9.0, \"portable\" runs "
            "here",
            self->name, self->capability / 10, self->capability % 10);
        close_backend((qk_backend *)self);
        return QK_UNSUPPORTED;
    }
    *out = (qk_backend *)self;
    return QK_OK;
}
