/* qk-registry.c: the public functions of qk.h.
 *
 * Backends are found by name in one table. Each function below checks its arguments (qk-check.c), leaves a refusal's
 * reason in the backend's check_error, and else calls the backend's table. Pointers that must not be NULL are the
 * caller's duty, as in any C library; counts, ranges and contents are checked here. */
#include "kernels/cuda/qk-cuda.h"
#include "kernels/qk-check.h"
#include <assert.h>
#include <dlfcn.h>
#include <limits.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

const char *qk_status_name(qk_status status)
{
    switch (status) {
    case QK_OK:
        return "ok";
    case QK_PENDING:
        return "pending";
    case QK_CANCELLED:
        return "cancelled";
    case QK_NO_MEMORY:
        return "no memory";
    case QK_UNSUPPORTED:
        return "unsupported";
    case QK_INVALID:
        return "invalid";
    case QK_DEVICE_LOST:
        return "device lost";
    }
    return "unknown status";
}

/* ---- Backends ------------------------------------------------------------------------------------------------ */

/* CUDA is a module of its own, opened at run time, so that this library needs no driver and no CUDA library. It is
 * looked for once a process, and never closed: the CUDA runtime in it registers exit handlers. */
#define CUDA_MODULE "quire-cuda.so"
#ifndef QK_MODULE_DIR
#define QK_MODULE_DIR ""
#endif

static struct {
    pthread_once_t once;
    const qk_cuda_module_table *table; /* NULL: see reason */
    char reason[160];
} cuda = {.once = PTHREAD_ONCE_INIT};

/* Opens @path when it is there. Returns whether the search ends here. A path can be longer than a reason, so it is left
 * out: what is wrong comes first. */
static bool open_cuda_module(const char *path)
{
    if (access(path, F_OK) != 0)
        return false;
    void *handle = dlopen(path, RTLD_NOW | RTLD_LOCAL);
    if (handle == NULL) {
        const char *words = dlerror();
        if (strncmp(words, path, strlen(path)) == 0)
            words += strlen(path) + strspn(words + strlen(path), ": ");
        snprintf(cuda.reason, sizeof(cuda.reason),
            "The CUDA module cannot be opened (%.80s): install Quire again.", words);
        return true;
    }
    qk_cuda_module_fn get = (qk_cuda_module_fn)dlsym(handle, QK_CUDA_MODULE_SYMBOL);
    const qk_cuda_module_table *table = get != NULL ? get() : NULL;
    if (table == NULL || table->abi_version != QK_ABI_VERSION)
        snprintf(cuda.reason, sizeof(cuda.reason),
            "The CUDA module belongs to another version of Quire: install both from the same build.");
    else
        cuda.table = table;
    return true;
}

/* QUIRE_CUDA_MODULE names the file; else it lies where it was installed, or beside a program that runs from its build
 * folder or from a folder that was moved as a whole. */
static void find_cuda_module(void)
{
    const char *named = getenv("QUIRE_CUDA_MODULE");
    if (named != NULL && *named != '\0') {
        if (!open_cuda_module(named))
            snprintf(cuda.reason, sizeof(cuda.reason),
                "The CUDA module is missing: QUIRE_CUDA_MODULE names a file that is not there.");
        return;
    }
    static const char *const beside[] = {
        "", "../lib/quire/", "kernels/cuda/", "../kernels/cuda/", "../../kernels/cuda/"};
    char exe[PATH_MAX], path[PATH_MAX + 64];
    if (*QK_MODULE_DIR != '\0' && open_cuda_module(QK_MODULE_DIR "/" CUDA_MODULE))
        return;
    ssize_t n = readlink("/proc/self/exe", exe, sizeof(exe) - 1);
    if (n > 0) {
        exe[n] = '\0';
        *(strrchr(exe, '/') + 1) = '\0';
        for (size_t i = 0; i < sizeof(beside) / sizeof(beside[0]); i++) {
            snprintf(path, sizeof(path), "%s%s" CUDA_MODULE, exe, beside[i]);
            if (open_cuda_module(path))
                return;
        }
    }
    snprintf(cuda.reason, sizeof(cuda.reason),
        "The CUDA module is missing: this copy of Quire was built or installed without it.");
}

static const qk_cuda_module_table *cuda_table(void)
{
    pthread_once(&cuda.once, find_cuda_module);
    return cuda.table;
}

static void cuda_probe(qk_probe *out)
{
    if (cuda_table() != NULL)
        cuda.table->probe(out);
    else
        snprintf(out->reason, sizeof(out->reason), "%s", cuda.reason);
}

static size_t cuda_list_devices(qk_device *out, size_t n)
{
    return cuda_table() != NULL ? cuda.table->list_devices(out, n) : 0;
}

static qk_status cuda_estimate(
    const qk_shape *shape, bool tied, const qk_context_params *params, qk_sizes *model, qk_sizes *context)
{
    return cuda_table() != NULL ? cuda.table->estimate(shape, tied, params, model, context) : QK_UNSUPPORTED;
}

static qk_status cuda_open(
    const qk_backend_options *options, qk_backend **out, char *error, size_t error_size)
{
    if (cuda_table() != NULL)
        return cuda.table->open(options, out, error, error_size);
    snprintf(error, error_size, "cuda: %s", cuda.reason);
    return QK_UNSUPPORTED;
}

static const struct {
    const char *name;
    void (*probe)(qk_probe *out);                     /* fills all but the name; @out comes zeroed */
    size_t (*list_devices)(qk_device *out, size_t n); /* optional: the backend has one device */
    qk_status (*estimate)(const qk_shape *shape, bool tied, const qk_context_params *params, qk_sizes *model,
        qk_sizes *context); /* optional */
    qk_status (*open)(const qk_backend_options *options, qk_backend **out, char *error, size_t error_size);
} backends[] = {
    {"cuda", cuda_probe, cuda_list_devices, cuda_estimate, cuda_open},
    {"cpu", qk_cpu_probe, NULL, NULL, qk_cpu_open},
};

#define N_BACKENDS (sizeof(backends) / sizeof(backends[0]))

static void probe(size_t i, qk_probe *out)
{
    memset(out, 0, sizeof(*out));
    backends[i].probe(out);
    out->name = backends[i].name;
}

size_t qk_probe_backends(qk_probe *out, size_t n)
{
    for (size_t i = 0; i < N_BACKENDS && i < n; i++)
        probe(i, &out[i]);
    return N_BACKENDS;
}

size_t qk_list_devices(const char *backend, qk_device *out, size_t n)
{
    for (size_t i = 0; i < N_BACKENDS; i++) {
        if (strcmp(backend, backends[i].name) == 0 && backends[i].list_devices != NULL) {
            memset(out, 0, n * sizeof(*out));
            return backends[i].list_devices(out, n);
        }
    }
    return 0;
}

qk_status qk_estimate(const char *backend, const qk_shape *shape, bool tied, const qk_context_params *params,
    qk_sizes *model, qk_sizes *context)
{
    for (size_t i = 0; i < N_BACKENDS; i++) {
        if (strcmp(backend, backends[i].name) == 0 && backends[i].estimate != NULL)
            return backends[i].estimate(shape, tied, params, model, context);
    }
    return QK_UNSUPPORTED;
}

qk_status qk_backend_open(
    const char *name, const qk_backend_options *options, qk_backend **out, char *error, size_t error_size)
{
    static const qk_backend_options defaults = {0};
    *out = NULL;
    for (size_t i = 0; i < N_BACKENDS; i++) {
        if (strcmp(name, backends[i].name) == 0)
            return backends[i].open(options != NULL ? options : &defaults, out, error, error_size);
    }
    snprintf(error, error_size, "no backend is called \"%s\"", name);
    return QK_UNSUPPORTED;
}

void qk_backend_free(qk_backend *backend)
{
    if (backend != NULL)
        backend->ops->close(backend);
}

const char *qk_backend_error(const qk_backend *backend)
{
    return backend->check_error[0] != '\0' ? backend->check_error : backend->ops->error(backend);
}

void qk_backend_get_info(qk_backend *backend, qk_backend_info *out)
{
    memset(out, 0, sizeof(*out));
    out->utilization = -1;
    backend->ops->get_info(backend, out);
}

/* Runs a check with the backend's line as its error, and returns when it fails. */
#define CHECK(backend, call)                                                                                 \
    do {                                                                                                     \
        (backend)->check_error[0] = '\0';                                                                    \
        char *error = (backend)->check_error;                                                                \
        const size_t error_size = sizeof((backend)->check_error);                                            \
        qk_status check_status = (call);                                                                     \
        if (check_status != QK_OK)                                                                           \
            return check_status;                                                                             \
    } while (0)

static qk_status require(bool condition, char *error, size_t error_size, const char *line)
{
    if (condition)
        return QK_OK;
    snprintf(error, error_size, "%s", line);
    return QK_INVALID;
}

#define REQUIRE(backend, condition, line) CHECK(backend, require(condition, error, error_size, line))

qk_status qk_backend_measure(qk_backend *backend, qk_measure what, double *out)
{
    REQUIRE(backend, what == QK_MEASURE_READ_BYTES_PER_S || what == QK_MEASURE_F32_FLOPS,
        "measure: no such quantity");
    return backend->ops->measure(backend, what, out);
}

/* ---- Memory, copies, events ---------------------------------------------------------------------------------- */

qk_status qk_buffer_new(qk_backend *backend, qk_memory memory, uint64_t bytes, qk_buffer **out)
{
    *out = NULL;
    REQUIRE(backend, bytes > 0, "buffer: 0 bytes, expected at least 1");
    REQUIRE(backend, memory == QK_MEMORY_DEVICE || memory == QK_MEMORY_HOST, "buffer: no such memory");
    return backend->ops->buffer_new(backend, memory, bytes, out);
}

void qk_buffer_free(qk_buffer *buffer)
{
    if (buffer != NULL)
        buffer->backend->ops->buffer_free(buffer);
}

/* Any thread: leaves the backend's line alone. */
qk_status qk_host_register(qk_backend *backend, void *host, uint64_t bytes, char *error, size_t error_size)
{
    qk_status status = qk_check_host_memory(host, bytes, error, error_size);
    if (status != QK_OK)
        return status;
    if (backend->ops->host_register != NULL)
        return backend->ops->host_register(backend, host, bytes, error, error_size);
    snprintf(error, error_size, "%s: this backend registers no host memory", backend->ops->name);
    return QK_UNSUPPORTED;
}

void qk_host_unregister(qk_backend *backend, void *host)
{
    if (backend->ops->host_unregister != NULL)
        backend->ops->host_unregister(backend, host);
}

qk_status qk_buffer_wrap(qk_backend *backend, void *host, uint64_t bytes, qk_buffer **out)
{
    *out = NULL;
    CHECK(backend, qk_check_host_memory(host, bytes, error, error_size));
    if (backend->ops->buffer_wrap != NULL)
        return backend->ops->buffer_wrap(backend, host, bytes, out);
    snprintf(backend->check_error, sizeof(backend->check_error), "%s: this backend wraps no host memory",
        backend->ops->name);
    return QK_UNSUPPORTED;
}

qk_status qk_copy_submit(qk_backend *backend, qk_stream stream, const qk_copy *copies, uint32_t n)
{
    CHECK(backend, qk_check_copies(backend, stream, copies, n, error, error_size));
    return backend->ops->copy_submit(backend, stream, copies, n);
}

qk_status qk_fill_submit(
    qk_backend *backend, qk_stream stream, qk_buffer *dst, uint64_t offset, uint64_t bytes, uint32_t word)
{
    CHECK(backend, qk_check_fill(backend, stream, dst, offset, bytes, error, error_size));
    return backend->ops->fill_submit(backend, stream, dst, offset, bytes, word);
}

static qk_backend *event_backend(qk_event *event)
{
    return ((qk_event_head *)event)->backend;
}

qk_status qk_event_new(qk_backend *backend, qk_event **out)
{
    *out = NULL;
    backend->check_error[0] = '\0';
    return backend->ops->event_new(backend, out);
}

void qk_event_free(qk_event *event)
{
    if (event != NULL)
        event_backend(event)->ops->event_free(event);
}

qk_status qk_event_record(qk_event *event, qk_stream stream)
{
    qk_backend *backend = event_backend(event);
    REQUIRE(backend, (unsigned)stream < QK_N_STREAMS, "event: no such stream");
    return backend->ops->event_record(event, stream);
}

/* Any thread: leaves the backend's line alone. */
qk_status qk_event_query(qk_event *event)
{
    return event_backend(event)->ops->event_query(event);
}

qk_status qk_event_wait(qk_event *event)
{
    event_backend(event)->check_error[0] = '\0';
    return event_backend(event)->ops->event_wait(event);
}

qk_status qk_stream_wait(qk_backend *backend, qk_stream stream, qk_event *event)
{
    REQUIRE(backend, (unsigned)stream < QK_N_STREAMS, "stream wait: no such stream");
    REQUIRE(backend, event_backend(event) == backend, "stream wait: the event belongs to another backend");
    return backend->ops->stream_wait(backend, stream, event);
}

/* ---- Model and KV layout ------------------------------------------------------------------------------------- */

qk_status qk_model_load(
    qk_backend *backend, const qk_model_desc *desc, qk_progress_fn progress, void *user, qk_model **out)
{
    *out = NULL;
    CHECK(backend, qk_check_model_desc(desc, error, error_size));
    return backend->ops->model_load(backend, desc, progress, user, out);
}

void qk_model_free(qk_model *model)
{
    if (model != NULL)
        ((qk_model_head *)model)->backend->ops->model_free(model);
}

void qk_kv_layout_page_major(const qk_shape *shape, qk_dtype dtype, qk_kv_layout *out)
{
    const uint32_t element = dtype == QK_F32 ? 4 : dtype == QK_BF16 ? 2 : 1;
    const bool scaled = dtype == QK_I8;
    out->dtype = dtype;
    out->token_stride = shape->head_dim * element;
    const uint64_t tokens_bytes = (uint64_t)out->token_stride * QK_PAGE_TOKENS;
    out->scale_offset = scaled ? tokens_bytes : 0;
    out->v_offset = tokens_bytes + (scaled ? QK_PAGE_TOKENS * sizeof(uint16_t) : 0);
    out->head_stride = 2 * out->v_offset;
    out->layer_stride = out->head_stride * shape->n_kv_heads;
    out->page_bytes = (out->layer_stride * shape->n_layers + 63) / 64 * 64;
}

/* ---- Contexts and steps -------------------------------------------------------------------------------------- */

static const qk_shape *model_shape(const qk_model *model)
{
    return &((const qk_model_head *)model)->shape;
}

qk_status qk_context_measure(qk_model *model, const qk_context_params *params, qk_sizes *out)
{
    qk_backend *backend = ((qk_model_head *)model)->backend;
    memset(out, 0, sizeof(*out));
    CHECK(backend, qk_check_context_params(params, model_shape(model), error, error_size));
    return backend->ops->context_measure(model, params, out);
}

qk_status qk_context_new(qk_model *model, const qk_context_params *params, qk_context **out)
{
    qk_backend *backend = ((qk_model_head *)model)->backend;
    *out = NULL;
    CHECK(backend, qk_check_context_params(params, model_shape(model), error, error_size));
    return backend->ops->context_new(model, params, out);
}

void qk_context_free(qk_context *context)
{
    if (context != NULL)
        ((qk_context_head *)context)->backend->ops->context_free(context);
}

qk_status qk_context_set_history(
    qk_context *context, uint32_t slot, const int32_t *ids, size_t n_ids, size_t n_prompt)
{
    const qk_context_head *head = (const qk_context_head *)context;
    qk_backend *backend = head->backend;
    REQUIRE(backend, slot < head->params.slots_max, "history: no such slot");
    REQUIRE(backend, n_prompt <= n_ids, "history: n_prompt above n_ids");
    const uint32_t vocab = model_shape(head->model)->vocab;
    bool all_known = true;
    for (size_t i = 0; i < n_ids && all_known; i++)
        all_known = ids[i] >= 0 && (uint32_t)ids[i] < vocab;
    REQUIRE(backend, all_known, "history: an id outside the vocabulary");
    return backend->ops->context_set_history(context, slot, ids, n_ids, n_prompt);
}

static qk_step_head *step_head(qk_step *step)
{
    return (qk_step_head *)step;
}

uint64_t qk_bounds_bytes(const qk_shape *shape, qk_dtype dtype)
{
    const uint64_t element = dtype == QK_F32 ? 4 : dtype == QK_BF16 ? 2 : 1;
    return (2 * element * shape->head_dim * shape->n_kv_heads * shape->n_layers + 63) / 64 * 64;
}

qk_status qk_bounds_submit(qk_context *context, uint32_t kv_class, const qk_bounds *bounds, uint32_t n)
{
    const qk_context_head *head = (const qk_context_head *)context;
    qk_backend *backend = head->backend;
    CHECK(backend, qk_check_bounds(&head->params, kv_class, bounds, n, error, error_size));
    if (backend->ops->bounds_submit != NULL)
        return backend->ops->bounds_submit(context, kv_class, bounds, n);
    snprintf(backend->check_error, sizeof(backend->check_error), "%s: this backend chooses no pages",
        backend->ops->name);
    return QK_UNSUPPORTED;
}

qk_status qk_step_new(qk_context *context, qk_step **out)
{
    qk_backend *backend = ((qk_context_head *)context)->backend;
    *out = NULL;
    backend->check_error[0] = '\0';
    return backend->ops->step_new(context, out);
}

void qk_step_free(qk_step *step)
{
    if (step != NULL)
        step_head(step)->backend->ops->step_free(step);
}

qk_plan *qk_step_plan(qk_step *step)
{
    return step_head(step)->backend->ops->step_plan(step);
}

qk_status qk_step_submit(qk_step *step)
{
    qk_backend *backend = step_head(step)->backend;
    const qk_context_head *context = (const qk_context_head *)step_head(step)->context;
    const qk_backend_ops *ops = backend->ops;
    REQUIRE(backend, ops->step_poll(step) != QK_PENDING, "submit: the step is still running");
    CHECK(backend, qk_plan_check(ops->step_plan(step), model_shape(context->model), &context->params, error,
                       error_size));
    return ops->step_submit(step);
}

qk_status qk_step_poll(qk_step *step)
{
    return step_head(step)->backend->ops->step_poll(step);
}

qk_status qk_step_wait(qk_step *step)
{
    step_head(step)->backend->check_error[0] = '\0';
    return step_head(step)->backend->ops->step_wait(step);
}

void qk_step_cancel(qk_step *step)
{
    if (step != NULL)
        step_head(step)->backend->ops->step_cancel(step);
}

const qk_result *qk_step_result(qk_step *step)
{
    return step_head(step)->backend->ops->step_result(step);
}
