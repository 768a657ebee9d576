/* cuda-model.cu: weights, from the mapped file through pinned staging into one block of device memory.
 *
 *  1. One cudaMalloc holds all of a model: per layer q,k,v as one matrix, o, gate and up as one, down; then the
 *     embedding, the head unless tied, and at the end the vectors (norms, inv_freq). Every part is 256-byte aligned.
 *  2. Matrices become bf16 (float32 is rounded to nearest, ties to even), norms float32, on the way through staging.
 *  3. Workers take chunks in the order of the source's addresses, so that a file is read from front to back. Each has
 *     its own staging slots and stream: it fills a slot, enqueues the copy, and goes on with the next slot. A slot is
 *     filled again after its copy's event.
 *  4. Workers touch no backend object. The calling thread reports progress and joins them on every way out; nothing of
 *     them outlives the call.
 *
 * Expected time for 8.04 GB in the page cache: a worker copies about 8 GB/s, eight of them more than the link carries,
 * so the link is the bound: 8.04 GB / 55 GB/s = 0.15 s on PCIe 5.0 x16, / 25 GB/s = 0.32 s on PCIe 4.0 x16. To it come
 * the page tables of the mapping (2 million pages at about 0.1 us, over the workers: 0.03 s), pinning 48 MiB of staging
 * (0.02 s) and the device allocation (a few ms).
 *
 * Reading the mapping may fail with SIGBUS when the file shrinks: its owner's matter. */
#include "kernels/cuda/cuda-backend.h"
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

#ifndef MADV_POPULATE_READ
#define MADV_POPULATE_READ 22 /* Linux 5.14 */
#endif

#define PART_ALIGN     256u
#define WORKERS_MAX    16u
#define SLOTS_MAX      8u
#define PROGRESS_BYTES (64ull << 20)
#define PROGRESS_NS    20000000l
#define PARTS_A_LAYER  11u
#define PARTS_BESIDE   4u /* embedding, head, final norm, inv_freq */
#define HEADS_A_KV_MAX 8u

/* ---- What goes where ----------------------------------------------------------------------------------------- */

typedef enum {
    ELEMENT_F32 = QK_F32,
    ELEMENT_BF16 = QK_BF16,
    ELEMENT_F64, /* inv_freq: copied as it is */
} element;

/* n elements at src, of type from, become n elements of type to at block + offset. */
typedef struct {
    const void *src;
    uint64_t offset, n;
    element from, to;
} part;

/* Elements [begin, begin + n) of one part, or n_parts whole parts that lie one behind the other in the block. */
typedef struct {
    uint32_t part, n_parts;
    uint64_t begin, n;
} chunk;

static uint32_t element_bytes(element type)
{
    return type == ELEMENT_BF16 ? 2 : type == ELEMENT_F32 ? 4 : 8;
}

/* The parts of a model: [0, n_vectors) in the order of the block, then matrices in the order of the source. */
typedef struct {
    part *parts;
    uint32_t n_parts, n_vectors;
    uint64_t block_bytes; /* padding included */
    bool overflow;
    qkc_model *model; /* offsets stand in its pointers until the block exists */
} placement;

/* Room for n elements of @to at the end of the block. */
static uint64_t place(placement *p, uint64_t n, element to)
{
    uint64_t offset = p->block_bytes, bytes;
    p->overflow |= __builtin_mul_overflow(n, (uint64_t)element_bytes(to), &bytes);
    p->overflow |= __builtin_add_overflow(offset, bytes, &p->block_bytes);
    p->overflow |= __builtin_add_overflow(p->block_bytes, (uint64_t)PART_ALIGN - 1, &p->block_bytes);
    p->block_bytes = p->block_bytes / PART_ALIGN * PART_ALIGN;
    return offset;
}

static void add_part(placement *p, const void *src, element from, uint64_t offset, uint64_t n, element to)
{
    part *it = &p->parts[p->n_parts++];
    it->src = src;
    it->from = from;
    it->to = to;
    it->offset = offset;
    it->n = n;
}

static uint64_t tensor_n(const qk_tensor *t)
{
    return (uint64_t)t->rows * t->cols; /* at most 2^32 times 2^32, and within the shape's limits */
}

/* Matrices one behind the other, as one. Returns its offset. */
static uint64_t place_matrices(placement *p, const qk_tensor *const *tensors, uint32_t n_tensors)
{
    uint64_t n = 0;
    for (uint32_t i = 0; i < n_tensors; i++)
        p->overflow |= __builtin_add_overflow(n, tensor_n(tensors[i]), &n);
    const uint64_t offset = place(p, n, ELEMENT_BF16);
    uint64_t at = offset;
    for (uint32_t i = 0; i < n_tensors; i++) {
        add_part(p, tensors[i]->data, (element)tensors[i]->dtype, at, tensor_n(tensors[i]), ELEMENT_BF16);
        at += tensor_n(tensors[i]) * 2;
    }
    return offset;
}

static uint64_t place_vector(placement *p, const qk_tensor *t)
{
    const uint64_t offset = place(p, tensor_n(t), ELEMENT_F32);
    add_part(p, t->data, (element)t->dtype, offset, tensor_n(t), ELEMENT_F32);
    return offset;
}

static int by_source(const void *a, const void *b)
{
    const uintptr_t x = (uintptr_t)((const part *)a)->src, y = (uintptr_t)((const part *)b)->src;
    return x < y ? -1 : x > y;
}

template <typename T> static void set_offset(const T **pointer, uint64_t offset)
{
    *pointer = (const T *)(uintptr_t)offset;
}

template <typename T> static void rebase(const T **pointer, const void *block)
{
    *pointer = (const T *)((uintptr_t)block + (uintptr_t)*pointer);
}

/* Lays the block out. p->parts has room for every part. */
static void place_model(placement *p, const qk_model_desc *desc)
{
    qkc_model *model = p->model;
    const qk_shape *s = &desc->shape;
    /* Vectors last in the block, but first in the list: matrices are sorted behind them. */
    part *parts = p->parts;
    const uint32_t n_vectors = s->n_layers * 4 + 2;
    p->parts += n_vectors;
    for (uint32_t l = 0; l < s->n_layers; l++) {
        const qk_layer_tensors *t = &desc->layers[l];
        const qk_tensor *qkv[] = {&t->q, &t->k, &t->v}, *o[] = {&t->o}, *gate_up[] = {&t->gate, &t->up},
                        *down[] = {&t->down};
        set_offset(&model->layers[l].qkv, place_matrices(p, qkv, 3));
        set_offset(&model->layers[l].o, place_matrices(p, o, 1));
        set_offset(&model->layers[l].gate_up, place_matrices(p, gate_up, 2));
        set_offset(&model->layers[l].down, place_matrices(p, down, 1));
    }
    const qk_tensor *embed[] = {&desc->embed}, *lm_head[] = {&desc->lm_head};
    set_offset(&model->embed, place_matrices(p, embed, 1));
    model->lm_head = model->embed;
    if (desc->lm_head.data != desc->embed.data)
        set_offset(&model->lm_head, place_matrices(p, lm_head, 1));
    const uint32_t n_matrices = p->n_parts;
    qsort(p->parts, n_matrices, sizeof(*p->parts), by_source);

    p->parts = parts;
    p->n_parts = 0;
    for (uint32_t l = 0; l < s->n_layers; l++) {
        const qk_layer_tensors *t = &desc->layers[l];
        set_offset(&model->layers[l].attn_norm, place_vector(p, &t->attn_norm));
        set_offset(&model->layers[l].ffn_norm, place_vector(p, &t->ffn_norm));
        set_offset(&model->layers[l].q_norm, place_vector(p, &t->q_norm));
        set_offset(&model->layers[l].k_norm, place_vector(p, &t->k_norm));
    }
    set_offset(&model->final_norm, place_vector(p, &desc->final_norm));
    const uint64_t inv_freq = place(p, s->head_dim / 2, ELEMENT_F64);
    set_offset(&model->inv_freq, inv_freq);
    add_part(p, s->rope_inv_freq, ELEMENT_F64, inv_freq, s->head_dim / 2, ELEMENT_F64);
    p->n_vectors = p->n_parts;
    p->n_parts += n_matrices;
}

/* Without tensors: the same parts by their shapes. */
qk_status qkc_model_measure(const qk_shape *s, bool tied, qk_sizes *out)
{
    const uint64_t q_dim = (uint64_t)s->n_heads * s->head_dim, kv_dim = (uint64_t)s->n_kv_heads * s->head_dim;
    const struct {
        uint64_t rows, cols, n;
        element type;
    } kinds[] = {
        {q_dim + 2 * kv_dim, s->hidden, s->n_layers, ELEMENT_BF16},
        {s->hidden, q_dim, s->n_layers, ELEMENT_BF16},
        {2 * (uint64_t)s->ffn, s->hidden, s->n_layers, ELEMENT_BF16},
        {s->hidden, s->ffn, s->n_layers, ELEMENT_BF16},
        {s->vocab, s->hidden, tied ? 1u : 2u, ELEMENT_BF16},
        {1, s->hidden, 2 * (uint64_t)s->n_layers + 1, ELEMENT_F32},
        {1, s->head_dim, 2 * (uint64_t)s->n_layers, ELEMENT_F32},
        {1, s->head_dim / 2, 1, ELEMENT_F64},
    };
    uint64_t total = 0;
    bool overflow = false;
    for (size_t i = 0; i < sizeof(kinds) / sizeof(kinds[0]); i++) {
        placement one = {};
        uint64_t n, bytes;
        overflow |= __builtin_mul_overflow(kinds[i].rows, kinds[i].cols, &n);
        place(&one, n, kinds[i].type);
        overflow |= one.overflow;
        overflow |= __builtin_mul_overflow(one.block_bytes, kinds[i].n, &bytes);
        overflow |= __builtin_add_overflow(total, bytes, &total);
    }
    out->device_bytes = total;
    out->host_bytes = 0; /* staging is freed when the model is loaded */
    return overflow ? QK_NO_MEMORY : QK_OK;
}

static void rebase_model(qkc_model *model, const void *block)
{
    for (uint32_t l = 0; l < model->head.shape.n_layers; l++) {
        qkc_layer *layer = &model->layers[l];
        rebase(&layer->qkv, block);
        rebase(&layer->o, block);
        rebase(&layer->gate_up, block);
        rebase(&layer->down, block);
        rebase(&layer->attn_norm, block);
        rebase(&layer->ffn_norm, block);
        rebase(&layer->q_norm, block);
        rebase(&layer->k_norm, block);
    }
    rebase(&model->embed, block);
    rebase(&model->lm_head, block);
    rebase(&model->final_norm, block);
    rebase(&model->inv_freq, block);
}

static uint64_t part_bytes(const part *p)
{
    return p->n * element_bytes(p->to);
}

/* Cuts the parts into chunks of at most chunk_bytes of staging; counts when @out is NULL. A group of vectors is one chunk
 * as long as it fits. */
static uint64_t cut_chunks(const placement *p, uint64_t chunk_bytes, chunk *out)
{
    uint64_t n_chunks = 0;
    for (uint32_t i = 0; i < p->n_parts;) {
        const part *first = &p->parts[i];
        uint32_t n_parts = 1;
        while (i + n_parts < p->n_vectors) {
            const part *next = &p->parts[i + n_parts];
            if (next->offset + part_bytes(next) - first->offset > chunk_bytes)
                break;
            n_parts++;
        }
        const uint64_t step = n_parts > 1 ? first->n : chunk_bytes / element_bytes(first->to);
        for (uint64_t begin = 0; begin < first->n; begin += step) {
            if (out != NULL) {
                chunk *c = &out[n_chunks];
                c->part = i;
                c->n_parts = n_parts;
                c->begin = begin;
                c->n = first->n - begin < step ? first->n - begin : step;
            }
            n_chunks++;
        }
        i += n_parts;
    }
    return n_chunks;
}

/* ---- Conversion ---------------------------------------------------------------------------------------------- */

/* To nearest, ties to even. A NaN stays one. */
static void bf16_from_f32(uint16_t *out, const float *in, uint64_t n)
{
    for (uint64_t i = 0; i < n; i++) {
        uint32_t bits;
        memcpy(&bits, &in[i], sizeof(bits));
        const uint32_t rounded = (bits + 0x7fffu + ((bits >> 16) & 1)) >> 16;
        const uint32_t nan = (bits >> 16) | 0x40u;
        out[i] = (uint16_t)((bits & 0x7fffffffu) > 0x7f800000u ? nan : rounded);
    }
}

static void f32_from_bf16(float *out, const uint16_t *in, uint64_t n)
{
    for (uint64_t i = 0; i < n; i++) {
        const uint32_t bits = (uint32_t)in[i] << 16;
        memcpy(&out[i], &bits, sizeof(bits));
    }
}

static const char *part_source(const part *p, uint64_t begin)
{
    return (const char *)p->src + begin * element_bytes(p->from);
}

static void convert(void *out, const part *p, uint64_t begin, uint64_t n)
{
    const void *src = part_source(p, begin);
    if (p->from == p->to)
        memcpy(out, src, n * element_bytes(p->to));
    else if (p->to == ELEMENT_BF16)
        bf16_from_f32((uint16_t *)out, (const float *)src, n);
    else
        f32_from_bf16((float *)out, (const uint16_t *)src, n);
}

/* ---- Workers ------------------------------------------------------------------------------------------------- */

typedef struct {
    const part *parts;
    const chunk *chunks;
    uint64_t n_chunks;
    char *block, *staging;
    int device;
    qkc_load_tuning tuning;
    uint64_t page_bytes;
    uint64_t next;      /* __atomic: the chunk to take */
    uint64_t done;      /* __atomic: bytes enqueued */
    int stop;           /* __atomic */
    int code;           /* __atomic: the first cudaError_t */
    uint32_t n_running; /* under lock */
    uint64_t n_marks;   /* under lock: PROGRESS_BYTES passed */
    pthread_mutex_t lock;
    pthread_cond_t changed;
} loading;

typedef struct {
    loading *load;
    pthread_t thread;
    uint32_t index;
} worker;

static void fail_load(loading *load, cudaError_t code)
{
    int none = cudaSuccess;
    __atomic_compare_exchange_n(&load->code, &none, (int)code, false, __ATOMIC_ACQ_REL, __ATOMIC_ACQUIRE);
    __atomic_store_n(&load->stop, 1, __ATOMIC_RELEASE);
}

/* Advice may be refused (an old kernel, memory that is no mapping): the pages then come one by one. */
static void advise(const loading *load, const chunk *c, int advice)
{
    if (c->n_parts > 1)
        return;
    const part *p = &load->parts[c->part];
    const uintptr_t begin = (uintptr_t)part_source(p, c->begin) / load->page_bytes * load->page_bytes;
    const uintptr_t end = (uintptr_t)part_source(p, c->begin + c->n);
    madvise((void *)begin, end - begin, advice);
}

/* Fills @slot with the chunk. Returns its bytes, and where they go in *offset. */
static uint64_t fill_slot(const loading *load, const chunk *c, char *slot, uint64_t *offset)
{
    const part *p = &load->parts[c->part];
    if (c->n_parts == 1) {
        *offset = p->offset + c->begin * element_bytes(p->to);
        convert(slot, p, c->begin, c->n);
        return c->n * element_bytes(p->to);
    }
    const part *last = p + c->n_parts - 1;
    const uint64_t bytes = last->offset + part_bytes(last) - p->offset;
    *offset = p->offset;
    memset(slot, 0, bytes);
    for (const part *it = p; it <= last; it++)
        convert(slot + (it->offset - p->offset), it, 0, it->n);
    return bytes;
}

static void add_done(loading *load, uint64_t bytes)
{
    const uint64_t done = __atomic_add_fetch(&load->done, bytes, __ATOMIC_ACQ_REL);
    if (done / PROGRESS_BYTES == (done - bytes) / PROGRESS_BYTES)
        return;
    pthread_mutex_lock(&load->lock);
    load->n_marks++;
    pthread_cond_signal(&load->changed);
    pthread_mutex_unlock(&load->lock);
}

static cudaError_t load_chunks(loading *load, uint32_t worker_index, cudaStream_t stream, cudaEvent_t *events)
{
    const uint32_t n_slots = load->tuning.n_slots;
    char *slots = load->staging + (uint64_t)worker_index * n_slots * load->tuning.chunk_bytes;
    cudaError_t code = cudaSuccess;
    for (uint64_t turn = 0; code == cudaSuccess; turn++) {
        const uint64_t i = __atomic_fetch_add(&load->next, 1, __ATOMIC_RELAXED);
        if (i >= load->n_chunks || __atomic_load_n(&load->stop, __ATOMIC_ACQUIRE) != 0)
            break;
        /* A file that is not in memory is read ahead of its turn. */
        if (i + 2 * load->tuning.n_workers < load->n_chunks)
            advise(load, &load->chunks[i + 2 * load->tuning.n_workers], MADV_WILLNEED);
        advise(load, &load->chunks[i], MADV_POPULATE_READ);
        const uint32_t slot = (uint32_t)(turn % n_slots);
        uint64_t offset;
        if (turn >= n_slots)
            code = cudaEventSynchronize(events[slot]);
        if (code != cudaSuccess)
            break;
        char *staged = slots + slot * load->tuning.chunk_bytes;
        const uint64_t bytes = fill_slot(load, &load->chunks[i], staged, &offset);
        code = cudaMemcpyAsync(load->block + offset, staged, bytes, cudaMemcpyHostToDevice, stream);
        if (code == cudaSuccess)
            code = cudaEventRecord(events[slot], stream);
        add_done(load, bytes);
    }
    const cudaError_t end =
        cudaStreamSynchronize(stream); /* the slots are freed after this, whatever happened */
    return code != cudaSuccess ? code : end;
}

static void *run_worker(void *user)
{
    worker *self = (worker *)user;
    loading *load = self->load;
    cudaStream_t stream = NULL;
    cudaEvent_t events[SLOTS_MAX] = {};
    cudaError_t code = cudaSetDevice(load->device);
    if (code == cudaSuccess)
        code = cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking);
    for (uint32_t i = 0; i < load->tuning.n_slots && code == cudaSuccess; i++)
        code = cudaEventCreateWithFlags(&events[i], cudaEventDisableTiming);
    if (code == cudaSuccess)
        code = load_chunks(load, self->index, stream, events);
    for (uint32_t i = 0; i < load->tuning.n_slots; i++)
        if (events[i] != NULL)
            cudaEventDestroy(events[i]);
    if (stream != NULL)
        cudaStreamDestroy(stream);
    if (code != cudaSuccess)
        fail_load(load, code);
    pthread_mutex_lock(&load->lock);
    load->n_running--;
    pthread_cond_signal(&load->changed);
    pthread_mutex_unlock(&load->lock);
    return NULL;
}

/* Workers leave the program's signals to its other threads, but for those that a faulty access raises. */
static uint32_t start_workers(loading *load, worker *workers)
{
    sigset_t blocked, before;
    sigfillset(&blocked);
    sigdelset(&blocked, SIGBUS);
    sigdelset(&blocked, SIGSEGV);
    sigdelset(&blocked, SIGILL);
    sigdelset(&blocked, SIGFPE);
    pthread_sigmask(SIG_SETMASK, &blocked, &before);
    uint32_t n = 0;
    load->n_running = load->tuning.n_workers;
    while (n < load->tuning.n_workers) {
        workers[n].load = load;
        workers[n].index = n;
        if (pthread_create(&workers[n].thread, NULL, run_worker, &workers[n]) != 0)
            break;
        n++;
    }
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    pthread_mutex_lock(&load->lock);
    load->n_running -= load->tuning.n_workers - n;
    pthread_mutex_unlock(&load->lock);
    return n;
}

/* Reports progress until the workers are done. False when the caller gave up. */
static bool watch_workers(loading *load, qk_progress_fn progress, void *user, uint64_t total)
{
    bool wanted = true;
    uint64_t n_marks = 0;
    pthread_mutex_lock(&load->lock);
    while (load->n_running > 0) {
        struct timespec until;
        clock_gettime(CLOCK_MONOTONIC, &until);
        until.tv_nsec += PROGRESS_NS;
        until.tv_sec += until.tv_nsec / 1000000000;
        until.tv_nsec %= 1000000000;
        int waited = 0;
        while (load->n_running > 0 && load->n_marks == n_marks && waited == 0)
            waited = pthread_cond_timedwait(&load->changed, &load->lock, &until);
        n_marks = load->n_marks;
        pthread_mutex_unlock(&load->lock);
        uint64_t done = __atomic_load_n(&load->done, __ATOMIC_ACQUIRE);
        done = done < total ? done : total; /* the padding between vectors travels too */
        if (wanted && progress != NULL && !progress(user, done, total)) {
            wanted = false;
            __atomic_store_n(&load->stop, 1, __ATOMIC_RELEASE);
        }
        pthread_mutex_lock(&load->lock);
    }
    pthread_mutex_unlock(&load->lock);
    return wanted;
}

/* ---- Loading ------------------------------------------------------------------------------------------------- */

void qkc_load_default_tuning(qkc_load_tuning *out)
{
    cpu_set_t cpus;
    int n_cpus = sched_getaffinity(0, sizeof(cpus), &cpus) == 0 ? CPU_COUNT(&cpus) : 2;
    out->chunk_bytes = 2u << 20;
    out->n_slots = 3;
    out->n_workers = n_cpus < 4 ? 1 : n_cpus > 16 ? 8 : (unsigned)n_cpus / 2;
}

/* What these kernels run beyond what is well formed. */
static qk_status check_shape(qkc_backend *self, const qk_shape *s)
{
    const struct {
        const char *name;
        uint32_t value;
    } eighths[] = {{"hidden", s->hidden}, {"ffn", s->ffn}, {"n_heads * head_dim", s->n_heads * s->head_dim}};
    if (s->head_dim != 64 && s->head_dim != 128)
        return qkc_fail(self, QK_UNSUPPORTED, cudaSuccess,
            "model: head_dim is %u, expected 64 or 128 on CUDA", s->head_dim);
    if (s->n_heads / s->n_kv_heads > HEADS_A_KV_MAX)
        return qkc_fail(self, QK_UNSUPPORTED, cudaSuccess,
            "model: %u query heads share one of %u key heads, expected at most %u on CUDA",
            s->n_heads / s->n_kv_heads, s->n_kv_heads, HEADS_A_KV_MAX);
    for (size_t i = 0; i < sizeof(eighths) / sizeof(eighths[0]); i++)
        if (eighths[i].value % 8 != 0)
            return qkc_fail(self, QK_UNSUPPORTED, cudaSuccess,
                "model: %s is %u, expected a multiple of 8 on CUDA", eighths[i].name, eighths[i].value);
    return QK_OK;
}

void qkc_model_free(qk_model *model)
{
    qkc_model *self = (qkc_model *)model;
    qkc_backend *backend = (qkc_backend *)self->head.backend;
    if (self->block != NULL && !qkc_is_lost(backend) && cudaSetDevice(backend->device) == cudaSuccess) {
        cudaFree(self->block);
        cudaGetLastError();
    }
    free(self->layers);
    free(self);
}

/* Runs the workers over the chunks; load->block, parts and tuning are set. */
static qk_status run_load(
    qkc_backend *self, loading *load, qk_progress_fn progress, void *user, uint64_t total)
{
    worker workers[WORKERS_MAX];
    pthread_condattr_t attributes;
    pthread_condattr_init(&attributes);
    pthread_condattr_setclock(&attributes, CLOCK_MONOTONIC);
    pthread_mutex_init(&load->lock, NULL);
    pthread_cond_init(&load->changed, &attributes);
    pthread_condattr_destroy(&attributes);
    load->page_bytes = (uint64_t)sysconf(_SC_PAGESIZE);

    const uint32_t n_workers = start_workers(load, workers);
    bool wanted = watch_workers(load, progress, user, total);
    for (uint32_t i = 0; i < n_workers; i++)
        pthread_join(workers[i].thread, NULL);
    pthread_cond_destroy(&load->changed);
    pthread_mutex_destroy(&load->lock);

    const cudaError_t code = (cudaError_t)load->code;
    if (code != cudaSuccess)
        return qkc_fail(self, QK_UNSUPPORTED, code, "model: copying weights to the GPU");
    if (n_workers == 0)
        return qkc_fail(
            self, QK_NO_MEMORY, cudaSuccess, "model: no thread can be started to load the weights");
    /* The last word is the caller's too. */
    if (wanted && progress != NULL)
        wanted = progress(user, total, total);
    return wanted ? QK_OK : qkc_fail(self, QK_CANCELLED, cudaSuccess, "model: loading was given up");
}

static unsigned clamp(unsigned value, unsigned max)
{
    return value < 1 ? 1 : value > max ? max : value;
}

/* Allocates the block, the staging and the chunk list, and loads. */
static qk_status load_block(
    qkc_backend *self, placement *p, const qkc_load_tuning *tuning, qk_progress_fn progress, void *user)
{
    loading load = {};
    void *block = NULL, *staging = NULL;
    load.parts = p->parts;
    load.tuning = *tuning;
    load.device = self->device;
    load.n_chunks = cut_chunks(p, tuning->chunk_bytes, NULL);
    chunk *chunks = (chunk *)malloc(load.n_chunks * sizeof(*chunks));
    if (chunks == NULL)
        return qkc_fail(self, QK_NO_MEMORY, cudaSuccess, "model: no host memory for a list of %llu chunks",
            (unsigned long long)load.n_chunks);
    cut_chunks(p, tuning->chunk_bytes, chunks);
    load.chunks = chunks;
    load.tuning.n_slots = clamp(tuning->n_slots, SLOTS_MAX);
    load.tuning.n_workers =
        clamp(tuning->n_workers, load.n_chunks < WORKERS_MAX ? (unsigned)load.n_chunks : WORKERS_MAX);

    uint64_t total = 0;
    for (uint32_t i = 0; i < p->n_parts; i++)
        total += part_bytes(&p->parts[i]);
    const uint64_t staging_bytes =
        (uint64_t)load.tuning.n_workers * load.tuning.n_slots * tuning->chunk_bytes;
    cudaError_t code = cudaMalloc(&block, p->block_bytes);
    qk_status status =
        code == cudaSuccess ? QK_OK : qkc_fail_memory(self, code, "model: weights", p->block_bytes);
    if (status == QK_OK &&
        (code = cudaHostAlloc(&staging, staging_bytes, cudaHostAllocPortable)) != cudaSuccess)
        status = qkc_fail(self, QK_NO_MEMORY, code, "model: %llu bytes of pinned host memory to load through",
            (unsigned long long)staging_bytes);
    if (status == QK_OK) {
        load.block = (char *)block;
        load.staging = (char *)staging;
        status = run_load(self, &load, progress, user, total);
    }
    if (staging != NULL && !qkc_is_lost(self))
        cudaFreeHost(staging);
    p->model->block = block; /* freed with the model when the load failed */
    p->model->block_bytes = p->block_bytes;
    free(chunks);
    return status;
}

qk_status qkc_model_load_tuned(qk_backend *backend, const qk_model_desc *desc, qk_progress_fn progress,
    void *user, const qkc_load_tuning *tuning, qk_model **out)
{
    qkc_backend *self = (qkc_backend *)backend;
    const qk_shape *shape = &desc->shape;
    if (qkc_refuse(self))
        return QK_DEVICE_LOST;
    cudaError_t code = cudaSetDevice(self->device);
    if (code != cudaSuccess)
        return qkc_fail(self, QK_UNSUPPORTED, code, "selecting %s", self->name);
    qk_status status = check_shape(self, shape);
    if (status != QK_OK)
        return status;

    placement p = {};
    qkc_model *model = (qkc_model *)calloc(1, sizeof(*model));
    if (model == NULL)
        return qkc_fail(self, QK_NO_MEMORY, cudaSuccess, "model: no host memory");
    model->head.backend = backend;
    model->head.shape = *shape;
    model->head.shape.rope_inv_freq = NULL;
    model->layers = (qkc_layer *)calloc(shape->n_layers, sizeof(*model->layers));
    p.model = model;
    p.parts = (part *)calloc((size_t)shape->n_layers * PARTS_A_LAYER + PARTS_BESIDE, sizeof(*p.parts));
    if (model->layers == NULL || p.parts == NULL) {
        status =
            qkc_fail(self, QK_NO_MEMORY, cudaSuccess, "model: no host memory for %u layers", shape->n_layers);
    } else {
        place_model(&p, desc);
        status = p.overflow
                     ? qkc_fail(self, QK_NO_MEMORY, cudaSuccess, "model: more weights than memory can hold")
                     : load_block(self, &p, tuning, progress, user);
    }
    free(p.parts);
    if (status == QK_OK) {
        rebase_model(model, model->block);
        *out = (qk_model *)model;
    } else {
        qkc_model_free((qk_model *)model);
    }
    return status;
}

qk_status qkc_model_load(
    qk_backend *backend, const qk_model_desc *desc, qk_progress_fn progress, void *user, qk_model **out)
{
    qkc_load_tuning tuning;
    qkc_load_default_tuning(&tuning);
    return qkc_model_load_tuned(backend, desc, progress, user, &tuning, out);
}
