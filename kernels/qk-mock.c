/* qk-mock.c: the mock's memory, streams, events and faults. qk-mock-model.c has models, contexts and steps.
 *
 * Operations wait in one queue a stream. One worker thread, again and again: waits until some stream's head may run
 * (its event waits are satisfied), holds everything back for a random time, then runs one of the heads that may run,
 * chosen at random. So any order that the streams and events allow happens sooner or later, and no other:
 *  1. Operations of one stream run in order, one operation at a time over all streams.
 *  2. Behind a wait for an event's recording nothing of that stream runs before the recording has.
 *  3. Nothing runs inside a submit: what the host sees right after one is what was there before.
 *  4. When the device is lost all queued operations are dropped, all waits return, and nothing runs any more.
 *
 * Device memory is real memory under false addresses: shifted by a constant into the part of the address space that no
 * host pointer can have, so a host that dereferences one faults. Registered host memory has false addresses too, by
 * another constant. Fresh and freed memory holds garbage. Freeing a buffer that queued work names is a caller's bug and
 * aborts. Threads: the engine's, the worker, and any for query, register and unregister. */
#include "kernels/qk-mock-internal.h"

#include <assert.h>
#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

typedef struct {
    qk_event_head head;
    mock_mark *mark; /* the last recording; NULL before the first */
} mock_event;

qk_status qk_mock_fail(qk_mock *mock, qk_status status, const char *format, ...)
{
    va_list args;
    va_start(args, format);
    vsnprintf(mock->error, sizeof(mock->error), format, args);
    va_end(args);
    return status;
}

qk_status qk_mock_check_lost(qk_mock *mock)
{
    pthread_mutex_lock(&mock->lock);
    bool lost = mock->lost;
    pthread_mutex_unlock(&mock->lock);
    return lost ? qk_mock_fail(mock, QK_DEVICE_LOST, "mock: the device was lost on request") : QK_OK;
}

uint64_t qk_mock_random(qk_mock *mock) /* splitmix64 */
{
    uint64_t z = (mock->random += 0x9e3779b97f4a7c15ull);
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9ull;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebull;
    return z ^ (z >> 31);
}

/* ---- The worker ---- */

void qk_mock_enqueue(qk_mock *mock, qk_stream stream, mock_op *op)
{
    op->next = NULL;
    op->serial = mock->next_serial++;
    op->loses = false;
    if (op->kind != MOCK_RECORD && op->kind != MOCK_WAIT && op->kind != MOCK_CALL && mock->lose_at > 0)
        op->loses = --mock->lose_at == 0;
    if (mock->tails[stream] != NULL)
        mock->tails[stream]->next = op;
    else
        mock->heads[stream] = op;
    mock->tails[stream] = op;
    pthread_cond_signal(&mock->work);
}

static mock_op *dequeue(qk_mock *mock, uint32_t stream)
{
    mock_op *op = mock->heads[stream];
    mock->heads[stream] = op->next;
    if (op->next == NULL)
        mock->tails[stream] = NULL;
    return op;
}

static void mark_unref(mock_mark *mark)
{
    if (mark != NULL && --mark->n_refs == 0)
        free(mark);
}

/* Marks @op as over, for those who wait for it, and frees it where it is ours. */
static void op_finish(qk_mock *mock, mock_op *op)
{
    switch (op->kind) {
    case MOCK_STEP: /* its status says it */
        break;
    case MOCK_CALL:
        *op->call.done = true;
        break;
    case MOCK_RECORD:
        op->mark->done = true;
        mark_unref(op->mark);
        free(op);
        break;
    case MOCK_WAIT:
        mark_unref(op->mark);
        free(op);
        break;
    case MOCK_COPY:
    case MOCK_FILL:
    case MOCK_BOUNDS:
        free(op);
        break;
    }
    pthread_cond_broadcast(&mock->done);
}

/* Streams whose head may run. Waits that are over are taken out. */
static uint32_t runnable(qk_mock *mock, uint32_t streams[QK_N_STREAMS])
{
    uint32_t n = 0;
    for (uint32_t s = 0; s < QK_N_STREAMS; s++) {
        mock_op *op;
        while ((op = mock->heads[s]) != NULL && op->kind == MOCK_WAIT && op->mark->done)
            op_finish(mock, dequeue(mock, s));
        if (op != NULL && op->kind != MOCK_WAIT)
            streams[n++] = s;
    }
    return n;
}

static void lose(qk_mock *mock)
{
    mock->lost = true;
    for (uint32_t s = 0; s < QK_N_STREAMS; s++) {
        while (mock->heads[s] != NULL) {
            mock_op *op = dequeue(mock, s);
            if (op->kind == MOCK_STEP)
                op->step->status = QK_DEVICE_LOST;
            op_finish(mock, op);
        }
    }
}

static void run_fill(const mock_op *op)
{
    unsigned char *to = ((mock_buffer *)op->fill.dst)->bytes + op->fill.offset;
    for (uint64_t i = 0; i < op->fill.bytes; i += 4)
        memcpy(to + i, &op->fill.word, 4);
}

static void run_copy(const qk_copy *copy)
{
    memcpy(((mock_buffer *)copy->dst)->bytes + copy->dst_offset,
        ((mock_buffer *)copy->src)->bytes + copy->src_offset, copy->bytes);
}

/* Lock held on entry and return. */
static void run(qk_mock *mock, mock_op *op)
{
    for (uint32_t s = 0; s < QK_N_STREAMS; s++) {
        if (op->kind != MOCK_RECORD && mock->heads[s] != NULL && mock->heads[s]->serial < op->serial) {
            mock->stats.n_reordered++;
            break;
        }
    }
    if (op->loses) {
        if (op->kind == MOCK_STEP)
            op->step->status = QK_DEVICE_LOST;
        lose(mock);
        return;
    }
    switch (op->kind) {
    case MOCK_STEP:
        mock->stats.n_steps++;
        qk_mock_step_run(mock, op->step);
        break;
    case MOCK_CALL:
        pthread_mutex_unlock(&mock->lock);
        pthread_mutex_lock(&mock->inner_lock);
        op->call.run(op->call.user);
        pthread_mutex_unlock(&mock->inner_lock);
        pthread_mutex_lock(&mock->lock);
        break;
    case MOCK_COPY:
        mock->stats.n_copies++;
        pthread_mutex_unlock(&mock->lock);
        run_copy(&op->copy);
        pthread_mutex_lock(&mock->lock);
        break;
    case MOCK_FILL:
        pthread_mutex_unlock(&mock->lock);
        run_fill(op);
        pthread_mutex_lock(&mock->lock);
        break;
    case MOCK_BOUNDS:
        pthread_mutex_unlock(&mock->lock);
        qk_mock_bounds_run(mock, op);
        pthread_mutex_lock(&mock->lock);
        break;
    case MOCK_RECORD:
    case MOCK_WAIT:
        break;
    }
}

static void hold_back(qk_mock *mock)
{
    if (mock->delay_us_max == 0)
        return;
    uint64_t us = qk_mock_random(mock) % ((uint64_t)mock->delay_us_max + 1);
    struct timespec time = {.tv_sec = (time_t)(us / 1000000), .tv_nsec = (long)(us % 1000000) * 1000};
    pthread_mutex_unlock(&mock->lock);
    while (nanosleep(&time, &time) != 0 && errno == EINTR)
        continue;
    pthread_mutex_lock(&mock->lock);
}

static void *worker_main(void *user)
{
    qk_mock *mock = user;
    uint32_t streams[QK_N_STREAMS];
    pthread_mutex_lock(&mock->lock);
    for (;;) {
        while (runnable(mock, streams) == 0 && !mock->quit)
            pthread_cond_wait(&mock->work, &mock->lock);
        if (runnable(mock, streams) == 0)
            break;
        hold_back(mock);
        uint32_t n = runnable(mock, streams);
        assert(n > 0);
        mock->running = dequeue(mock, streams[qk_mock_random(mock) % n]);
        run(mock, mock->running);
        mock_op *op = mock->running;
        mock->running = NULL;
        op_finish(mock, op);
    }
    pthread_mutex_unlock(&mock->lock);
    return NULL;
}

/* ---- Memory ---- */

qk_status qk_mock_charge(qk_mock *mock, uint64_t device_bytes, const char *what)
{
    pthread_mutex_lock(&mock->lock);
    qk_mock_stats *stats = &mock->stats;
    bool fails = mock->fail_alloc > 0 && --mock->fail_alloc == 0;
    uint64_t in_use = stats->device_bytes;
    bool fits = mock->memory_bytes == 0 ||
                (in_use <= mock->memory_bytes && device_bytes <= mock->memory_bytes - in_use);
    if (!fails && fits) {
        stats->device_bytes += device_bytes;
        if (stats->device_bytes > stats->device_bytes_peak)
            stats->device_bytes_peak = stats->device_bytes;
    }
    pthread_mutex_unlock(&mock->lock);
    if (fails)
        return qk_mock_fail(mock, QK_NO_MEMORY, "mock: %s of %llu bytes fails on request", what,
            (unsigned long long)device_bytes);
    if (!fits)
        return qk_mock_fail(mock, QK_NO_MEMORY, "mock: %s of %llu bytes: %llu of %llu are in use", what,
            (unsigned long long)device_bytes, (unsigned long long)in_use,
            (unsigned long long)mock->memory_bytes);
    return QK_OK;
}

void qk_mock_uncharge(qk_mock *mock, uint64_t device_bytes)
{
    pthread_mutex_lock(&mock->lock);
    assert(mock->stats.device_bytes >= device_bytes);
    mock->stats.device_bytes -= device_bytes;
    pthread_mutex_unlock(&mock->lock);
}

static qk_status mock_buffer_new(qk_backend *backend, qk_memory memory, uint64_t bytes, qk_buffer **out)
{
    qk_mock *mock = (qk_mock *)backend;
    uint64_t device_bytes = memory == QK_MEMORY_DEVICE ? bytes : 0;
    qk_status status = qk_mock_check_lost(mock);
    if (status == QK_OK)
        status =
            qk_mock_charge(mock, device_bytes, memory == QK_MEMORY_DEVICE ? "a buffer" : "a host buffer");
    if (status != QK_OK)
        return status;

    mock_buffer *buffer = calloc(1, sizeof(*buffer));
    if (buffer != NULL && bytes <= SIZE_MAX - 63)
        buffer->bytes = aligned_alloc(64, (size_t)(bytes + 63) / 64 * 64);
    if (buffer == NULL || buffer->bytes == NULL) {
        free(buffer);
        qk_mock_uncharge(mock, device_bytes);
        return qk_mock_fail(
            mock, QK_NO_MEMORY, "mock: no host memory for a buffer of %llu bytes", (unsigned long long)bytes);
    }
    memset(buffer->bytes, 0xcb, bytes);
    bool is_host = memory == QK_MEMORY_HOST;
    buffer->base = (qk_buffer){.backend = backend,
        .memory = memory,
        .bytes = bytes,
        .address = (uint64_t)(uintptr_t)buffer->bytes + (is_host ? 0 : mock->address_offset),
        .host = is_host ? buffer->bytes : NULL};
    pthread_mutex_lock(&mock->lock);
    buffer->next = mock->buffers;
    mock->buffers = buffer;
    mock->stats.n_buffers++;
    pthread_mutex_unlock(&mock->lock);
    *out = &buffer->base;
    return QK_OK;
}

static bool op_touches(const mock_op *op, const mock_buffer *buffer)
{
    uint64_t begin = (uint64_t)(uintptr_t)buffer->bytes;
    switch (op->kind) {
    case MOCK_COPY:
        return op->copy.dst == &buffer->base || op->copy.src == &buffer->base;
    case MOCK_FILL:
        return op->fill.dst == &buffer->base;
    case MOCK_STEP:
        return qk_mock_step_touches(op->step, begin, begin + buffer->base.bytes, !buffer->wrapped);
    case MOCK_BOUNDS:
        return (op->bounds.item.page & ~(uint64_t)QK_PAGE_HOST) - begin < buffer->base.bytes ||
               op->bounds.item.bounds - begin < buffer->base.bytes;
    default:
        return false;
    }
}

/* Lock held. */
static void abort_in_flight(const qk_mock *mock, const mock_buffer *buffer, const char *what)
{
    bool in_flight = mock->running != NULL && op_touches(mock->running, buffer);
    for (uint32_t s = 0; s < QK_N_STREAMS; s++)
        for (const mock_op *op = mock->heads[s]; op != NULL; op = op->next)
            in_flight = in_flight || op_touches(op, buffer);
    if (in_flight) {
        fprintf(stderr, "mock: %s while work that touches it is in flight\n", what);
        abort();
    }
}

static void mock_buffer_free(qk_buffer *base)
{
    qk_mock *mock = (qk_mock *)base->backend;
    mock_buffer *buffer = (mock_buffer *)base;
    pthread_mutex_lock(&mock->lock);
    abort_in_flight(mock, buffer, "a buffer is freed");
    mock_buffer **at = &mock->buffers;
    while (*at != buffer)
        at = &(*at)->next;
    *at = buffer->next;
    mock->stats.n_buffers--;
    pthread_mutex_unlock(&mock->lock);
    if (base->memory == QK_MEMORY_DEVICE)
        qk_mock_uncharge(mock, base->bytes);
    if (!buffer->wrapped) {
        memset(buffer->bytes, 0xdb, base->bytes);
        free(buffer->bytes);
    }
    free(buffer);
}

uint64_t qk_mock_translate(const qk_mock *mock, uint64_t page, uint64_t bytes)
{
    const uint64_t bit = page & QK_PAGE_HOST, address = page - bit;
    for (const mock_buffer *b = mock->buffers; b != NULL; b = b->next) {
        if ((b->wrapped && b->region == NULL) || (bit != 0 && b->base.memory == QK_MEMORY_DEVICE))
            continue;
        uint64_t offset = address - b->base.address; /* wraps to more than any size when below */
        if (offset < b->base.bytes && bytes <= b->base.bytes - offset)
            return ((uint64_t)(uintptr_t)b->bytes + offset) | bit;
    }
    return 0;
}

/* ---- The caller's own host memory ---- */

static qk_status mock_host_register(
    qk_backend *backend, void *host, uint64_t bytes, char *error, size_t error_size)
{
    qk_mock *mock = (qk_mock *)backend;
    mock_region *region = calloc(1, sizeof(*region));
    if (region == NULL) {
        snprintf(error, error_size, "mock: no host memory for a registration");
        return QK_NO_MEMORY;
    }
    *region = (mock_region){.host = host, .bytes = bytes};
    qk_status status = QK_OK;
    pthread_mutex_lock(&mock->lock);
    bool refused =
        mock->refuse_register == QK_MOCK_ALL || (mock->refuse_register > 0 && --mock->refuse_register == 0);
    bool overlaps = false;
    for (const mock_region *r = mock->regions; r != NULL; r = r->next)
        overlaps = overlaps || (r->host < region->host + bytes && region->host < r->host + r->bytes);
    if (mock->lost) {
        status = QK_DEVICE_LOST;
        snprintf(error, error_size, "mock: the device was lost on request");
    } else if (overlaps) {
        status = QK_INVALID;
        snprintf(error, error_size, "mock: %llu bytes at %p are registered already, in part or whole",
            (unsigned long long)bytes, host);
    } else if (refused) {
        status = QK_NO_MEMORY;
        snprintf(error, error_size, "mock: registering %llu bytes is refused on request",
            (unsigned long long)bytes);
    } else {
        region->next = mock->regions;
        mock->regions = region;
        mock->stats.n_registered++;
        mock->stats.registered_bytes += bytes;
        region = NULL;
    }
    pthread_mutex_unlock(&mock->lock);
    free(region);
    return status;
}

/* After a loss nothing is in flight any more: it only forgets. */
static void mock_host_unregister(qk_backend *backend, void *host)
{
    qk_mock *mock = (qk_mock *)backend;
    pthread_mutex_lock(&mock->lock);
    mock_region **at = &mock->regions;
    while (*at != NULL && (*at)->host != host)
        at = &(*at)->next;
    mock_region *region = *at;
    if (region != NULL) {
        for (mock_buffer *b = mock->buffers; b != NULL; b = b->next) {
            if (b->region != region)
                continue;
            if (!mock->lost)
                abort_in_flight(mock, b, "host memory is unregistered");
            b->region = NULL;
        }
        *at = region->next;
        mock->stats.n_registered--;
        mock->stats.registered_bytes -= region->bytes;
    }
    pthread_mutex_unlock(&mock->lock);
    free(region);
}

static qk_status mock_buffer_wrap(qk_backend *backend, void *host, uint64_t bytes, qk_buffer **out)
{
    qk_mock *mock = (qk_mock *)backend;
    qk_status status = qk_mock_check_lost(mock);
    if (status == QK_OK)
        status = qk_mock_charge(mock, 0, "a buffer around host memory");
    if (status != QK_OK)
        return status;
    mock_buffer *buffer = calloc(1, sizeof(*buffer));
    if (buffer == NULL)
        return qk_mock_fail(mock, QK_NO_MEMORY, "mock: no host memory for a buffer");
    buffer->bytes = host;
    buffer->wrapped = true;
    buffer->base = (qk_buffer){.backend = backend, .memory = QK_MEMORY_HOST, .bytes = bytes, .host = host};
    pthread_mutex_lock(&mock->lock);
    for (mock_region *r = mock->regions; r != NULL; r = r->next)
        if (r->host <= buffer->bytes && buffer->bytes + bytes <= r->host + r->bytes)
            buffer->region = r;
    if (buffer->region != NULL)
        buffer->base.address = (uint64_t)(uintptr_t)host + mock->host_offset;
    buffer->next = mock->buffers;
    mock->buffers = buffer;
    mock->stats.n_buffers++;
    pthread_mutex_unlock(&mock->lock);
    *out = &buffer->base;
    return QK_OK;
}

/* ---- Copies and fills ---- */

static qk_status mock_copy_submit(qk_backend *backend, qk_stream stream, const qk_copy *copies, uint32_t n)
{
    qk_mock *mock = (qk_mock *)backend;
    qk_status status = qk_mock_check_lost(mock);
    pthread_mutex_lock(&mock->lock);
    bool refused = n > 0 && mock->refuse_copy > 0 && --mock->refuse_copy == 0;
    if (refused && mock->refuse_copies > 1) {
        mock->refuse_copy = 1;
        mock->refuse_copies -= mock->refuse_copies != QK_MOCK_ALL;
    }
    pthread_mutex_unlock(&mock->lock);
    for (uint32_t i = 0; i < (refused ? n / 2 : n) && status == QK_OK; i++) {
        mock_op *op = calloc(1, sizeof(*op));
        if (op == NULL)
            return qk_mock_fail(mock, QK_NO_MEMORY, "mock: no host memory for a copy");
        op->kind = MOCK_COPY;
        op->copy = copies[i];
        pthread_mutex_lock(&mock->lock);
        if (mock->lost)
            free(op);
        else
            qk_mock_enqueue(mock, stream, op);
        pthread_mutex_unlock(&mock->lock);
    }
    if (status == QK_OK && refused)
        return qk_mock_fail(mock, QK_NO_MEMORY, "mock: of %u copies half are refused on request", n);
    return status;
}

static qk_status mock_fill_submit(
    qk_backend *backend, qk_stream stream, qk_buffer *dst, uint64_t offset, uint64_t bytes, uint32_t word)
{
    qk_mock *mock = (qk_mock *)backend;
    qk_status status = qk_mock_check_lost(mock);
    if (status != QK_OK)
        return status;
    mock_op *op = calloc(1, sizeof(*op));
    if (op == NULL)
        return qk_mock_fail(mock, QK_NO_MEMORY, "mock: no host memory for a fill");
    op->kind = MOCK_FILL;
    op->fill.dst = dst;
    op->fill.offset = offset;
    op->fill.bytes = bytes;
    op->fill.word = word;
    pthread_mutex_lock(&mock->lock);
    if (mock->lost)
        free(op);
    else
        qk_mock_enqueue(mock, stream, op);
    pthread_mutex_unlock(&mock->lock);
    return QK_OK;
}

/* ---- Events ---- */

static qk_status mock_event_new(qk_backend *backend, qk_event **out)
{
    qk_mock *mock = (qk_mock *)backend;
    qk_status status = qk_mock_check_lost(mock);
    if (status != QK_OK)
        return status;
    mock_event *event = calloc(1, sizeof(*event));
    if (event == NULL)
        return qk_mock_fail(mock, QK_NO_MEMORY, "mock: no host memory for an event");
    event->head.backend = backend;
    *out = (qk_event *)event;
    return QK_OK;
}

static void mock_event_free(qk_event *base)
{
    mock_event *event = (mock_event *)base;
    qk_mock *mock = (qk_mock *)event->head.backend;
    pthread_mutex_lock(&mock->lock);
    mark_unref(event->mark);
    pthread_mutex_unlock(&mock->lock);
    free(event);
}

/* Enqueues a recording of, or a wait for, @mark (a new recording, or the event's last one). */
static qk_status submit_mark(qk_mock *mock, mock_op_kind kind, qk_stream stream, mock_mark *mark)
{
    mock_op *op = calloc(1, sizeof(*op));
    if (op == NULL)
        return qk_mock_fail(mock, QK_NO_MEMORY, "mock: no host memory for an event");
    op->kind = kind;
    op->mark = mark;
    pthread_mutex_lock(&mock->lock);
    if (mock->lost) {
        free(op);
    } else {
        mark->n_refs++;
        qk_mock_enqueue(mock, stream, op);
    }
    pthread_mutex_unlock(&mock->lock);
    return QK_OK;
}

static qk_status mock_event_record(qk_event *base, qk_stream stream)
{
    mock_event *event = (mock_event *)base;
    qk_mock *mock = (qk_mock *)event->head.backend;
    qk_status status = qk_mock_check_lost(mock);
    if (status != QK_OK)
        return status;
    mock_mark *mark = calloc(1, sizeof(*mark));
    if (mark == NULL)
        return qk_mock_fail(mock, QK_NO_MEMORY, "mock: no host memory for an event");
    mark->n_refs = 1;
    pthread_mutex_lock(&mock->lock);
    mark_unref(event->mark);
    event->mark = mark;
    pthread_mutex_unlock(&mock->lock);
    return submit_mark(mock, MOCK_RECORD, stream, mark);
}

static qk_status mock_event_query(qk_event *base)
{
    mock_event *event = (mock_event *)base;
    qk_mock *mock = (qk_mock *)event->head.backend;
    pthread_mutex_lock(&mock->lock);
    qk_status status = mock->lost                                  ? QK_DEVICE_LOST
                       : event->mark != NULL && !event->mark->done ? QK_PENDING
                                                                   : QK_OK;
    pthread_mutex_unlock(&mock->lock);
    return status;
}

static qk_status mock_event_wait(qk_event *base)
{
    mock_event *event = (mock_event *)base;
    qk_mock *mock = (qk_mock *)event->head.backend;
    pthread_mutex_lock(&mock->lock);
    while (!mock->lost && event->mark != NULL && !event->mark->done)
        pthread_cond_wait(&mock->done, &mock->lock);
    pthread_mutex_unlock(&mock->lock);
    return qk_mock_check_lost(mock);
}

static qk_status mock_stream_wait(qk_backend *backend, qk_stream stream, qk_event *base)
{
    mock_event *event = (mock_event *)base;
    qk_mock *mock = (qk_mock *)backend;
    qk_status status = qk_mock_check_lost(mock);
    if (status != QK_OK || event->mark == NULL) /* an event never recorded holds nothing up */
        return status;
    return submit_mark(mock, MOCK_WAIT, stream, event->mark);
}

/* ---- The backend ---- */

static void mock_close(qk_backend *backend)
{
    qk_mock *mock = (qk_mock *)backend;
    assert(mock->buffers == NULL);
    pthread_mutex_lock(&mock->lock);
    if (mock->regions != NULL) {
        fputs("mock: host memory is still registered when the backend is freed\n", stderr);
        abort();
    }
    mock->quit = true;
    pthread_cond_signal(&mock->work);
    pthread_mutex_unlock(&mock->lock);
    pthread_join(mock->worker, NULL);
    for (uint32_t s = 0; s < QK_N_STREAMS; s++)
        assert(
            mock->heads[s] == NULL); /* a wait names work that is queued before it, so all queues run dry */
    qk_backend_free(mock->inner);
    pthread_cond_destroy(&mock->work);
    pthread_cond_destroy(&mock->done);
    pthread_mutex_destroy(&mock->lock);
    pthread_mutex_destroy(&mock->inner_lock);
    free(mock);
}

static const char *mock_error(const qk_backend *backend)
{
    return ((const qk_mock *)backend)->error;
}

static void mock_get_info(qk_backend *backend, qk_backend_info *out)
{
    qk_mock *mock = (qk_mock *)backend;
    qk_backend_info inner;
    pthread_mutex_lock(&mock->inner_lock);
    qk_backend_get_info(mock->inner, &inner);
    pthread_mutex_unlock(&mock->inner_lock);
    *out = (qk_backend_info){.name = "mock", .n_threads = inner.n_threads};
    snprintf(out->device, sizeof(out->device), "mock on %.80s", inner.device);
    memcpy(out->kernels, inner.kernels, sizeof(out->kernels));
    pthread_mutex_lock(&mock->lock);
    out->memory_total = mock->memory_bytes;
    if (mock->memory_bytes > mock->stats.device_bytes)
        out->memory_free = mock->memory_bytes - mock->stats.device_bytes;
    pthread_mutex_unlock(&mock->lock);
}

static qk_status mock_measure(qk_backend *backend, qk_measure what, double *out)
{
    qk_mock *mock = (qk_mock *)backend;
    qk_status status = qk_mock_check_lost(mock);
    if (status != QK_OK)
        return status;
    pthread_mutex_lock(&mock->inner_lock);
    status = qk_backend_measure(mock->inner, what, out);
    if (status != QK_OK)
        qk_mock_fail(mock, status, "%s", qk_backend_error(mock->inner));
    pthread_mutex_unlock(&mock->inner_lock);
    return status;
}

static qk_backend_ops mock_ops = {
    .abi_version = QK_ABI_VERSION,
    .name = "mock",
    .close = mock_close,
    .error = mock_error,
    .get_info = mock_get_info,
    .measure = mock_measure,
    .buffer_new = mock_buffer_new,
    .buffer_free = mock_buffer_free,
    .host_register = mock_host_register,
    .host_unregister = mock_host_unregister,
    .buffer_wrap = mock_buffer_wrap,
    .copy_submit = mock_copy_submit,
    .fill_submit = mock_fill_submit,
    .event_new = mock_event_new,
    .event_free = mock_event_free,
    .event_record = mock_event_record,
    .event_query = mock_event_query,
    .event_wait = mock_event_wait,
    .stream_wait = mock_stream_wait,
};
static pthread_once_t mock_ops_once = PTHREAD_ONCE_INIT;

static void fill_ops(void)
{
    qk_mock_model_ops(&mock_ops);
}

qk_status qk_mock_open(const qk_mock_options *options, qk_backend **out, char *error, size_t error_size)
{
    *out = NULL;
    pthread_once(&mock_ops_once, fill_ops);
    qk_mock *mock = calloc(1, sizeof(*mock));
    if (mock == NULL) {
        snprintf(error, error_size, "mock: no host memory");
        return QK_NO_MEMORY;
    }
    const qk_backend_options inner = {.n_threads = options->n_threads, .isa = options->isa};
    qk_status status = qk_backend_open("cpu", &inner, &mock->inner, error, error_size);
    if (status != QK_OK) {
        free(mock);
        return status;
    }
    mock->base.ops = &mock_ops;
    mock->random = options->seed;
    /* Bits 47 and up of a host pointer are 0; here bit 54 is set. */
    mock->address_offset = (0x40 | (qk_mock_random(mock) & 0x3f)) << 48;
    mock->host_offset = (0x80 | (qk_mock_random(mock) & 0x3f)) << 48;
    mock->delay_us_max = options->delay_us_max;
    mock->memory_bytes = options->memory_bytes;
    mock->fail_alloc = options->fail_alloc;
    mock->lose_at = options->lose_at;
    mock->refuse_register = options->refuse_register;
    mock->refuse_copy = options->refuse_copy;
    mock->refuse_copies = options->refuse_copies;
    mock->want_fresh = options->want_fresh;
    pthread_mutex_init(&mock->lock, NULL);
    pthread_mutex_init(&mock->inner_lock, NULL);
    pthread_cond_init(&mock->work, NULL);
    pthread_cond_init(&mock->done, NULL);
    if (pthread_create(&mock->worker, NULL, worker_main, mock) != 0) {
        snprintf(error, error_size, "mock: cannot start a thread");
        qk_backend_free(mock->inner);
        free(mock);
        return QK_NO_MEMORY;
    }
    *out = &mock->base;
    return QK_OK;
}

void qk_mock_fail_alloc(qk_backend *backend, uint32_t nth)
{
    qk_mock *mock = (qk_mock *)backend;
    pthread_mutex_lock(&mock->lock);
    mock->fail_alloc = nth;
    pthread_mutex_unlock(&mock->lock);
}

void qk_mock_lose_at(qk_backend *backend, uint32_t nth)
{
    qk_mock *mock = (qk_mock *)backend;
    pthread_mutex_lock(&mock->lock);
    mock->lose_at = nth;
    pthread_mutex_unlock(&mock->lock);
}

void qk_mock_refuse_copy(qk_backend *backend, uint32_t nth, uint32_t n)
{
    qk_mock *mock = (qk_mock *)backend;
    pthread_mutex_lock(&mock->lock);
    mock->refuse_copy = nth;
    mock->refuse_copies = n;
    pthread_mutex_unlock(&mock->lock);
}

void qk_mock_refuse_register(qk_backend *backend, uint32_t nth)
{
    qk_mock *mock = (qk_mock *)backend;
    pthread_mutex_lock(&mock->lock);
    mock->refuse_register = nth;
    pthread_mutex_unlock(&mock->lock);
}

void qk_mock_get_stats(qk_backend *backend, qk_mock_stats *out)
{
    qk_mock *mock = (qk_mock *)backend;
    pthread_mutex_lock(&mock->lock);
    *out = mock->stats;
    pthread_mutex_unlock(&mock->lock);
}
