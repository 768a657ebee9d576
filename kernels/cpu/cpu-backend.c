/* cpu-backend.c: opening and closing, what the device is, buffers, and loading a model.
 *
 * A model's weights stay where the caller has them (a mapped file); only the norm vectors, which every row reads, are
 * widened to float32 here. Loading touches every page of the weights once, so that the first step does not pay for
 * the disk and progress can be shown. Engine thread throughout. */
#include "kernels/cpu/cpu-backend.h"
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/sysinfo.h>

#define HUGE_PAGE_BYTES  ((uint64_t)2 << 20)
#define SMALL_PAGE_BYTES 4096u
#define PROGRESS_BYTES   ((uint64_t)16 << 20)
#define N_THREADS_MAX    1024u

qk_status qk_cpu_fail(qk_cpu_backend *self, qk_status status, const char *format, ...)
{
    va_list args;
    va_start(args, format);
    vsnprintf(self->error, sizeof(self->error), format, args);
    va_end(args);
    return status;
}

/* ---- Memory -------------------------------------------------------------------------------------------------- */

static uint64_t physical_bytes(void)
{
    struct sysinfo info;
    return sysinfo(&info) == 0 ? (uint64_t)info.totalram * info.mem_unit : 0;
}

/* What can be had without swapping; 0 when unknown. */
static uint64_t available_bytes(void)
{
    unsigned long long kib = 0;
    FILE *f = fopen("/proc/meminfo", "re");
    if (f == NULL)
        return 0;
    char line[160];
    while (fgets(line, sizeof(line), f) != NULL && sscanf(line, "MemAvailable: %llu kB", &kib) != 1)
        continue;
    fclose(f);
    return (uint64_t)kib * 1024;
}

static uint64_t round_up(uint64_t bytes, uint64_t unit)
{
    return (bytes + unit - 1) / unit * unit;
}

void *qk_cpu_memory_new(uint64_t bytes)
{
    /* The kernel would promise more than there is and kill somebody later. */
    uint64_t physical = physical_bytes();
    if (bytes > (physical > 0 ? physical : SIZE_MAX / 4))
        return NULL;
    if (bytes < HUGE_PAGE_BYTES) {
        void *small = aligned_alloc(QK_CPU_ALIGN, round_up(bytes, QK_CPU_ALIGN));
        if (small != NULL)
            memset(small, 0, bytes);
        return small;
    }
    /* Map one huge page more than needed and give back what lies outside the aligned part. */
    uint64_t size = round_up(bytes, HUGE_PAGE_BYTES), mapped = size + HUGE_PAGE_BYTES;
    char *map = mmap(NULL, mapped, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (map == MAP_FAILED)
        return NULL;
    uint64_t front = (HUGE_PAGE_BYTES - (uintptr_t)map % HUGE_PAGE_BYTES) % HUGE_PAGE_BYTES;
    if (front > 0)
        munmap(map, front);
    if (mapped - front > size)
        munmap(map + front + size, mapped - front - size);
    madvise(map + front, size, MADV_HUGEPAGE);
    return map + front;
}

void qk_cpu_memory_free(void *memory, uint64_t bytes)
{
    if (memory == NULL)
        return;
    if (bytes < HUGE_PAGE_BYTES)
        free(memory);
    else
        munmap(memory, round_up(bytes, HUGE_PAGE_BYTES));
}

typedef struct {
    qk_buffer base;
    bool wrapped; /* the memory is the caller's */
} cpu_buffer;

static qk_buffer *buffer_around(
    qk_backend *backend, qk_memory memory, void *data, uint64_t bytes, bool wrapped)
{
    cpu_buffer *buffer = calloc(1, sizeof(*buffer));
    if (buffer == NULL)
        return NULL;
    buffer->base = (qk_buffer){
        .backend = backend,
        .memory = memory,
        .bytes = bytes,
        .address = (uint64_t)(uintptr_t)data,
        .host = memory == QK_MEMORY_HOST ? data : NULL,
    };
    buffer->wrapped = wrapped;
    return &buffer->base;
}

static qk_status buffer_new(qk_backend *backend, qk_memory memory, uint64_t bytes, qk_buffer **out)
{
    qk_cpu_backend *self = (qk_cpu_backend *)backend;
    void *data = qk_cpu_memory_new(bytes);
    *out = data != NULL ? buffer_around(backend, memory, data, bytes, false) : NULL;
    if (*out == NULL) {
        qk_cpu_memory_free(data, bytes);
        return qk_cpu_fail(
            self, QK_NO_MEMORY, "buffer: no host memory for %llu bytes", (unsigned long long)bytes);
    }
    return QK_OK;
}

static void buffer_free(qk_buffer *buffer)
{
    if (!((cpu_buffer *)buffer)->wrapped)
        qk_cpu_memory_free((void *)(uintptr_t)buffer->address, buffer->bytes);
    free(buffer);
}

/* The device is the host: all its memory is visible as it is. */
static qk_status host_register(
    qk_backend *backend, void *host, uint64_t bytes, char *error, size_t error_size)
{
    return QK_OK;
}

static void host_unregister(qk_backend *backend, void *host)
{
}

static qk_status buffer_wrap(qk_backend *backend, void *host, uint64_t bytes, qk_buffer **out)
{
    *out = buffer_around(backend, QK_MEMORY_HOST, host, bytes, true);
    return *out != NULL ? QK_OK
                        : qk_cpu_fail((qk_cpu_backend *)backend, QK_NO_MEMORY, "buffer: no host memory");
}

/* ---- Model --------------------------------------------------------------------------------------------------- */

static uint64_t tensor_bytes(const qk_tensor *t)
{
    return (uint64_t)t->rows * t->cols * (t->dtype == QK_BF16 ? 2 : 4);
}

static qk_cpu_linear linear_from(const qk_tensor *t)
{
    return (qk_cpu_linear){.data = t->data, .dtype = t->dtype, .n_out = t->rows, .n_in = t->cols};
}

/* Widens a vector to *next and moves that behind it. */
static const float *take_norm(const qk_cpu_ops *ops, const qk_tensor *t, float **next)
{
    float *norm = *next;
    if (t->dtype == QK_BF16)
        ops->bf16_to_f32(norm, t->data, t->cols);
    else
        memcpy(norm, t->data, t->cols * sizeof(float));
    *next += t->cols;
    return norm;
}

typedef struct {
    qk_progress_fn fn;
    void *user;
    uint64_t done, total;
} load_progress;

/* Reads one byte of each page of the tensor. False when the caller gives up. */
static bool touch_tensor(const qk_tensor *t, load_progress *progress)
{
    const volatile char *data = t->data;
    uint64_t bytes = tensor_bytes(t);
    for (uint64_t begin = 0; begin < bytes; begin += PROGRESS_BYTES) {
        uint64_t n = bytes - begin < PROGRESS_BYTES ? bytes - begin : PROGRESS_BYTES;
        for (uint64_t i = 0; i < n; i += SMALL_PAGE_BYTES)
            (void)data[begin + i];
        progress->done += n;
        if (progress->fn != NULL && !progress->fn(progress->user, progress->done, progress->total))
            return false;
    }
    return true;
}

static bool touch_weights(const qk_model_desc *desc, load_progress *progress)
{
    const bool tied = desc->lm_head.data == desc->embed.data;
    const uint32_t n_layers = desc->shape.n_layers;
    progress->total = tensor_bytes(&desc->embed) + (tied ? 0 : tensor_bytes(&desc->lm_head));
    for (int pass = 0; pass < 2; pass++) {
        for (uint32_t l = 0; l < n_layers; l++) {
            const qk_layer_tensors *t = &desc->layers[l];
            const qk_tensor *linears[] = {&t->q, &t->k, &t->v, &t->o, &t->gate, &t->up, &t->down};
            for (size_t i = 0; i < sizeof(linears) / sizeof(linears[0]); i++) {
                if (pass == 0)
                    progress->total += tensor_bytes(linears[i]);
                else if (!touch_tensor(linears[i], progress))
                    return false;
            }
        }
    }
    return touch_tensor(&desc->embed, progress) && (tied || touch_tensor(&desc->lm_head, progress));
}

static void model_free(qk_model *model)
{
    qk_cpu_model *self = (qk_cpu_model *)model;
    free(self->layers);
    free(self->norms);
    free(self->inv_freq);
    free(self);
}

static qk_status model_load(
    qk_backend *backend, const qk_model_desc *desc, qk_progress_fn progress, void *user, qk_model **out)
{
    qk_cpu_backend *self = (qk_cpu_backend *)backend;
    const qk_shape *shape = &desc->shape;
    load_progress state = {.fn = progress, .user = user};
    if (!touch_weights(desc, &state))
        return qk_cpu_fail(self, QK_CANCELLED, "model: loading was given up");

    const size_t n_norms =
        (size_t)shape->n_layers * 2 * ((size_t)shape->hidden + shape->head_dim) + shape->hidden;
    qk_cpu_model *model = calloc(1, sizeof(*model));
    if (model == NULL)
        return qk_cpu_fail(self, QK_NO_MEMORY, "model: no memory");
    model->layers = calloc(shape->n_layers, sizeof(*model->layers));
    model->norms = calloc(n_norms, sizeof(*model->norms));
    model->inv_freq = calloc(shape->head_dim / 2, sizeof(*model->inv_freq));
    if (model->layers == NULL || model->norms == NULL || model->inv_freq == NULL) {
        model_free((qk_model *)model);
        return qk_cpu_fail(self, QK_NO_MEMORY, "model: no memory for %zu norm weights", n_norms);
    }
    model->head.backend = backend;
    model->head.shape = *shape;
    model->head.shape.rope_inv_freq = NULL;
    memcpy(model->inv_freq, shape->rope_inv_freq, shape->head_dim / 2 * sizeof(double));

    float *next = model->norms;
    for (uint32_t l = 0; l < shape->n_layers; l++) {
        const qk_layer_tensors *t = &desc->layers[l];
        qk_cpu_layer *layer = &model->layers[l];
        layer->q = linear_from(&t->q);
        layer->k = linear_from(&t->k);
        layer->v = linear_from(&t->v);
        layer->o = linear_from(&t->o);
        layer->gate = linear_from(&t->gate);
        layer->up = linear_from(&t->up);
        layer->down = linear_from(&t->down);
        layer->attn_norm = take_norm(self->ops, &t->attn_norm, &next);
        layer->q_norm = take_norm(self->ops, &t->q_norm, &next);
        layer->k_norm = take_norm(self->ops, &t->k_norm, &next);
        layer->ffn_norm = take_norm(self->ops, &t->ffn_norm, &next);
    }
    model->final_norm = take_norm(self->ops, &desc->final_norm, &next);
    model->embed = linear_from(&desc->embed);
    model->lm_head = linear_from(&desc->lm_head);
    *out = (qk_model *)model;
    return QK_OK;
}

/* ---- Device -------------------------------------------------------------------------------------------------- */

/* "AMD EPYC, AVX-512, 2 threads" */
static void describe(const qk_cpu_ops *ops, uint32_t n_threads, char *out, size_t size)
{
    static const char *const isa_names[][2] = {{"avx512", "AVX-512"}, {"avx2", "AVX2"}};
    const char *isa = "portable code";
    for (size_t i = 0; i < sizeof(isa_names) / sizeof(isa_names[0]); i++)
        if (strcmp(ops->name, isa_names[i][0]) == 0)
            isa = isa_names[i][1];

    char model[64] = "CPU", line[256];
    FILE *f = fopen("/proc/cpuinfo", "re");
    while (f != NULL && fgets(line, sizeof(line), f) != NULL) {
        const char *colon = strchr(line, ':');
        if (strncmp(line, "model name", 10) != 0 || colon == NULL)
            continue;
        colon += 1 + strspn(colon + 1, " \t");
        snprintf(model, sizeof(model), "%.*s", (int)strcspn(colon, "\n"), colon);
        for (size_t n = strlen(model); n > 0 && model[n - 1] == ' '; n--)
            model[n - 1] = '\0';
        break;
    }
    if (f != NULL)
        fclose(f);
    if (n_threads == 1)
        snprintf(out, size, "%s, %s, 1 thread", model, isa);
    else
        snprintf(out, size, "%s, %s, %u threads", model, isa, n_threads);
}

void qk_cpu_probe(qk_probe *out)
{
    const qk_cpu_ops *ops = qk_cpu_ops_get(NULL);
    if (ops == NULL) {
        snprintf(out->reason, sizeof(out->reason), "QUIRE_ISA names an instruction set that is not here.");
        return;
    }
    out->available = true;
    describe(ops, qk_pool_n_cores(), out->device, sizeof(out->device));
}

static void get_info(qk_backend *backend, qk_backend_info *out)
{
    qk_cpu_backend *self = (qk_cpu_backend *)backend;
    out->name = "cpu";
    out->is_host = true;
    out->memory_total = physical_bytes();
    out->memory_free = available_bytes();
    out->n_threads = qk_pool_n_threads(self->pool);
    memcpy(out->device, self->device, sizeof(out->device));
    snprintf(out->kernels, sizeof(out->kernels), "%s", self->ops->name);
}

typedef struct {
    qk_cpu_backend *self;
    qk_measure what;
    double value;
} measure_call;

static void run_measure(void *user)
{
    measure_call *call = user;
    call->value = call->what == QK_MEASURE_READ_BYTES_PER_S ? qk_cpu_measure_read(call->self->pool)
                                                            : qk_cpu_measure_flops(call->self->pool);
}

static qk_status measure(qk_backend *backend, qk_measure what, double *out)
{
    qk_cpu_backend *self = (qk_cpu_backend *)backend;
    measure_call call = {.self = self, .what = what};
    qk_cpu_cmd cmd = {.kind = QK_CPU_CALL, .u.call = {run_measure, &call}};
    qk_cpu_wait_seq(self, QK_STREAM_COMPUTE, qk_cpu_enqueue(self, QK_STREAM_COMPUTE, &cmd));
    *out = call.value;
    return call.value > 0 ? QK_OK : qk_cpu_fail(self, QK_NO_MEMORY, "measure: no memory to read from");
}

static const char *get_error(const qk_backend *backend)
{
    return ((const qk_cpu_backend *)backend)->error;
}

static void close_backend(qk_backend *backend)
{
    qk_cpu_backend *self = (qk_cpu_backend *)backend;
    qk_cpu_streams_stop(self);
    qk_pool_free(self->pool);
    pthread_cond_destroy(&self->done);
    pthread_mutex_destroy(&self->lock);
    free(self);
}

static const qk_backend_ops cpu_backend_ops = {
    .abi_version = QK_ABI_VERSION,
    .name = "cpu",
    .close = close_backend,
    .error = get_error,
    .get_info = get_info,
    .measure = measure,
    .buffer_new = buffer_new,
    .buffer_free = buffer_free,
    .host_register = host_register,
    .host_unregister = host_unregister,
    .buffer_wrap = buffer_wrap,
    .copy_submit = qk_cpu_copy_submit,
    .fill_submit = qk_cpu_fill_submit,
    .event_new = qk_cpu_event_new,
    .event_free = qk_cpu_event_free,
    .event_record = qk_cpu_event_record,
    .event_query = qk_cpu_event_query,
    .event_wait = qk_cpu_event_wait,
    .stream_wait = qk_cpu_stream_wait,
    .model_load = model_load,
    .model_free = model_free,
    .context_measure = qk_cpu_context_measure,
    .context_new = qk_cpu_context_new,
    .context_free = qk_cpu_context_free,
    .context_set_history = qk_cpu_context_set_history,
    .bounds_submit = qk_cpu_bounds_submit,
    .step_new = qk_cpu_step_new,
    .step_free = qk_cpu_step_free,
    .step_plan = qk_cpu_step_plan,
    .step_submit = qk_cpu_step_submit,
    .step_poll = qk_cpu_step_poll,
    .step_wait = qk_cpu_step_wait,
    .step_cancel = qk_cpu_step_cancel,
    .step_result = qk_cpu_step_result,
};

qk_status qk_cpu_open(const qk_backend_options *options, qk_backend **out, char *error, size_t error_size)
{
    const qk_cpu_ops *ops = qk_cpu_ops_get(options->isa);
    if (ops == NULL) {
        const char *isa = options->isa != NULL ? options->isa : getenv("QUIRE_ISA");
        snprintf(error, error_size, "cpu: the instruction set \"%s\" is not known or not on this machine",
            isa != NULL ? isa : "");
        return QK_UNSUPPORTED;
    }
    uint32_t n_threads = options->n_threads > 0 ? options->n_threads : qk_pool_n_cores();
    if (n_threads > N_THREADS_MAX) {
        snprintf(error, error_size, "cpu: %u threads, expected at most %u", n_threads, N_THREADS_MAX);
        return QK_INVALID;
    }
    qk_cpu_backend *self = calloc(1, sizeof(*self));
    if (self == NULL) {
        snprintf(error, error_size, "cpu: no memory");
        return QK_NO_MEMORY;
    }
    self->head.ops = &cpu_backend_ops;
    self->ops = ops;
    pthread_mutex_init(&self->lock, NULL);
    pthread_cond_init(&self->done, NULL);
    self->pool = qk_pool_new(n_threads);
    if (!qk_cpu_streams_start(self) || self->pool == NULL) {
        close_backend((qk_backend *)self);
        snprintf(error, error_size, "cpu: cannot start %u threads", n_threads);
        return QK_NO_MEMORY;
    }
    describe(ops, n_threads, self->device, sizeof(self->device));
    *out = (qk_backend *)self;
    return QK_OK;
}
