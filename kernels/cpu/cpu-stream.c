/* cpu-stream.c: three queues with a thread each.
 *
 * Invariants
 *  1. A stream's commands run one after the other in the order of submission; `completed` counts those that ran.
 *  2. An event is (stream, number): it has fired when that stream's `completed` has reached the number. Recording
 *     enqueues nothing. What a stream waits for is read when the wait is enqueued, so recording the event again
 *     changes no earlier wait, and a wait can only name work that is already queued: streams cannot deadlock.
 *  3. Commands come from a free list that only grows while more are in flight than ever before; a step brings its own.
 *
 * One lock guards all queues: it is held for a few instructions, a few times a step. */
#include "kernels/cpu/cpu-backend.h"
#include <stdlib.h>
#include <string.h>

#define EVENT_SEQ_BITS 56

typedef struct {
    qk_event_head head;
    _Atomic uint64_t mark; /* stream << EVENT_SEQ_BITS | number; 0: never recorded, which counts as fired */
} qk_cpu_event;

static void run_command(const qk_cpu_cmd *cmd)
{
    switch (cmd->kind) {
    case QK_CPU_COPY:
        for (uint32_t i = 0; i < cmd->u.copy.n; i++)
            memcpy(cmd->u.copy.item[i].dst, cmd->u.copy.item[i].src, cmd->u.copy.item[i].bytes);
        break;
    case QK_CPU_FILL:
        for (size_t i = 0; i < cmd->u.fill.n_words; i++)
            cmd->u.fill.dst[i] = cmd->u.fill.word;
        break;
    case QK_CPU_BOUNDS:
        qk_cpu_bounds_run((qk_cpu_context *)cmd->u.bounds.context, cmd->u.bounds.kv_class, cmd->u.bounds.item,
            cmd->u.bounds.n);
        break;
    case QK_CPU_CALL:
        cmd->u.call.fn(cmd->u.call.user);
        break;
    case QK_CPU_WAIT:
        break;
    }
}

static void *stream_main(void *arg)
{
    qk_cpu_stream *stream = arg;
    qk_cpu_backend *self = stream->backend;
    pthread_mutex_lock(&self->lock);
    while (true) {
        while (stream->head == NULL && !self->quit)
            pthread_cond_wait(&stream->wake, &self->lock);
        qk_cpu_cmd *cmd = stream->head;
        if (cmd == NULL)
            break;
        stream->head = cmd->next;
        if (stream->head == NULL)
            stream->tail = NULL;
        bool pooled = cmd->pooled;
        if (cmd->kind == QK_CPU_WAIT) {
            const qk_cpu_stream *other = &self->streams[cmd->u.wait.stream];
            while (other->completed < cmd->u.wait.seq)
                pthread_cond_wait(&self->done, &self->lock);
        } else {
            pthread_mutex_unlock(&self->lock);
            run_command(cmd);
            pthread_mutex_lock(&self->lock);
        }
        /* An unpooled command may be enqueued again by its owner as soon as it counts as completed. */
        if (pooled) {
            cmd->next = self->free_cmds;
            self->free_cmds = cmd;
        }
        stream->completed++;
        pthread_cond_broadcast(&self->done);
    }
    pthread_mutex_unlock(&self->lock);
    return NULL;
}

bool qk_cpu_streams_start(qk_cpu_backend *self)
{
    for (int i = 0; i < QK_N_STREAMS; i++) {
        self->streams[i].backend = self;
        pthread_cond_init(&self->streams[i].wake, NULL);
    }
    for (int i = 0; i < QK_N_STREAMS; i++) {
        qk_cpu_stream *stream = &self->streams[i];
        stream->started = pthread_create(&stream->thread, NULL, stream_main, stream) == 0;
        if (!stream->started)
            return false;
    }
    return true;
}

void qk_cpu_streams_stop(qk_cpu_backend *self)
{
    pthread_mutex_lock(&self->lock);
    self->quit = true;
    for (int i = 0; i < QK_N_STREAMS; i++)
        pthread_cond_signal(&self->streams[i].wake);
    pthread_mutex_unlock(&self->lock);
    for (int i = 0; i < QK_N_STREAMS; i++)
        if (self->streams[i].started)
            pthread_join(self->streams[i].thread, NULL);
    for (int i = 0; i < QK_N_STREAMS; i++)
        pthread_cond_destroy(&self->streams[i].wake);
    while (self->free_cmds != NULL) {
        qk_cpu_cmd *cmd = self->free_cmds;
        self->free_cmds = cmd->next;
        free(cmd);
    }
}

static void append(qk_cpu_stream *stream, qk_cpu_cmd *cmd)
{
    cmd->next = NULL;
    if (stream->tail != NULL)
        stream->tail->next = cmd;
    else
        stream->head = cmd;
    stream->tail = cmd;
    stream->submitted++;
}

uint64_t qk_cpu_enqueue(qk_cpu_backend *self, qk_stream stream, qk_cpu_cmd *cmd)
{
    pthread_mutex_lock(&self->lock);
    append(&self->streams[stream], cmd);
    uint64_t seq = self->streams[stream].submitted;
    pthread_cond_signal(&self->streams[stream].wake);
    pthread_mutex_unlock(&self->lock);
    return seq;
}

void qk_cpu_wait_seq(qk_cpu_backend *self, qk_stream stream, uint64_t seq)
{
    pthread_mutex_lock(&self->lock);
    while (self->streams[stream].completed < seq)
        pthread_cond_wait(&self->done, &self->lock);
    pthread_mutex_unlock(&self->lock);
}

void qk_cpu_wait_idle(qk_cpu_backend *self, qk_stream stream)
{
    pthread_mutex_lock(&self->lock);
    uint64_t seq = self->streams[stream].submitted;
    pthread_mutex_unlock(&self->lock);
    qk_cpu_wait_seq(self, stream, seq);
}

/* A chain of @n commands, from the free list as far as it goes; NULL when memory is short. */
static qk_cpu_cmd *commands_new(qk_cpu_backend *self, uint32_t n)
{
    qk_cpu_cmd *chain = NULL;
    pthread_mutex_lock(&self->lock);
    for (; n > 0 && self->free_cmds != NULL; n--) {
        qk_cpu_cmd *cmd = self->free_cmds;
        self->free_cmds = cmd->next;
        cmd->next = chain;
        chain = cmd;
    }
    pthread_mutex_unlock(&self->lock);
    for (; n > 0; n--) {
        qk_cpu_cmd *cmd = calloc(1, sizeof(*cmd));
        if (cmd == NULL)
            break;
        cmd->pooled = true;
        cmd->next = chain;
        chain = cmd;
    }
    if (n == 0)
        return chain;
    pthread_mutex_lock(&self->lock);
    while (chain != NULL) {
        qk_cpu_cmd *cmd = chain;
        chain = cmd->next;
        cmd->next = self->free_cmds;
        self->free_cmds = cmd;
    }
    pthread_mutex_unlock(&self->lock);
    return NULL;
}

static char *buffer_data(const qk_buffer *buffer)
{
    return (char *)(uintptr_t)buffer->address;
}

qk_status qk_cpu_copy_submit(qk_backend *backend, qk_stream stream, const qk_copy *copies, uint32_t n)
{
    qk_cpu_backend *self = (qk_cpu_backend *)backend;
    if (n == 0)
        return QK_OK;
    qk_cpu_cmd *chain = commands_new(self, (n - 1) / QK_CPU_COPIES + 1);
    if (chain == NULL)
        return qk_cpu_fail(self, QK_NO_MEMORY, "copy: no memory for %u queue entries", n);
    for (uint32_t i = 0; i < n;) {
        qk_cpu_cmd *cmd = chain;
        chain = cmd->next;
        cmd->kind = QK_CPU_COPY;
        cmd->u.copy.n = 0;
        for (; i < n && cmd->u.copy.n < QK_CPU_COPIES; i++) {
            uint32_t at = cmd->u.copy.n++;
            cmd->u.copy.item[at].dst = buffer_data(copies[i].dst) + copies[i].dst_offset;
            cmd->u.copy.item[at].src = buffer_data(copies[i].src) + copies[i].src_offset;
            cmd->u.copy.item[at].bytes = copies[i].bytes;
        }
        qk_cpu_enqueue(self, stream, cmd);
    }
    return QK_OK;
}

qk_status qk_cpu_fill_submit(
    qk_backend *backend, qk_stream stream, qk_buffer *dst, uint64_t offset, uint64_t bytes, uint32_t word)
{
    qk_cpu_backend *self = (qk_cpu_backend *)backend;
    qk_cpu_cmd *cmd = commands_new(self, 1);
    if (cmd == NULL)
        return qk_cpu_fail(self, QK_NO_MEMORY, "fill: no memory for a queue entry");
    cmd->kind = QK_CPU_FILL;
    cmd->u.fill.dst = (uint32_t *)(void *)(buffer_data(dst) + offset);
    cmd->u.fill.n_words = bytes / 4;
    cmd->u.fill.word = word;
    qk_cpu_enqueue(self, stream, cmd);
    return QK_OK;
}

qk_status qk_cpu_bounds_submit(qk_context *context, uint32_t kv_class, const qk_bounds *bounds, uint32_t n)
{
    qk_cpu_backend *self = (qk_cpu_backend *)((qk_cpu_context *)context)->head.backend;
    if (n == 0)
        return QK_OK;
    qk_cpu_cmd *chain = commands_new(self, (n - 1) / QK_CPU_BOUNDS_ITEMS + 1);
    if (chain == NULL)
        return qk_cpu_fail(self, QK_NO_MEMORY, "bounds: no memory for %u queue entries", n);
    for (uint32_t i = 0; i < n; i += QK_CPU_BOUNDS_ITEMS) {
        qk_cpu_cmd *cmd = chain;
        chain = cmd->next;
        cmd->kind = QK_CPU_BOUNDS;
        cmd->u.bounds.context = context;
        cmd->u.bounds.kv_class = kv_class;
        cmd->u.bounds.n = n - i < QK_CPU_BOUNDS_ITEMS ? n - i : QK_CPU_BOUNDS_ITEMS;
        memcpy(cmd->u.bounds.item, bounds + i, cmd->u.bounds.n * sizeof(*bounds));
        qk_cpu_enqueue(self, QK_STREAM_COMPUTE, cmd);
    }
    return QK_OK;
}

/* ---- Events -------------------------------------------------------------------------------------------------- */

qk_status qk_cpu_event_new(qk_backend *backend, qk_event **out)
{
    qk_cpu_event *event = calloc(1, sizeof(*event));
    if (event == NULL)
        return qk_cpu_fail((qk_cpu_backend *)backend, QK_NO_MEMORY, "event: no memory");
    event->head.backend = backend;
    *out = (qk_event *)event;
    return QK_OK;
}

void qk_cpu_event_free(qk_event *event)
{
    free(event);
}

/* Splits the event's mark; its number. */
static uint64_t event_seq(qk_event *event, qk_stream *stream)
{
    uint64_t mark = atomic_load(&((qk_cpu_event *)event)->mark);
    *stream = (qk_stream)(mark >> EVENT_SEQ_BITS);
    return mark & (((uint64_t)1 << EVENT_SEQ_BITS) - 1);
}

static qk_cpu_backend *event_backend(qk_event *event)
{
    return (qk_cpu_backend *)((qk_cpu_event *)event)->head.backend;
}

qk_status qk_cpu_event_record(qk_event *event, qk_stream stream)
{
    qk_cpu_backend *self = event_backend(event);
    pthread_mutex_lock(&self->lock);
    uint64_t seq = self->streams[stream].submitted;
    pthread_mutex_unlock(&self->lock);
    atomic_store(&((qk_cpu_event *)event)->mark, (uint64_t)stream << EVENT_SEQ_BITS | seq);
    return QK_OK;
}

qk_status qk_cpu_event_query(qk_event *event)
{
    qk_cpu_backend *self = event_backend(event);
    qk_stream stream;
    uint64_t seq = event_seq(event, &stream);
    pthread_mutex_lock(&self->lock);
    bool fired = self->streams[stream].completed >= seq;
    pthread_mutex_unlock(&self->lock);
    return fired ? QK_OK : QK_PENDING;
}

qk_status qk_cpu_event_wait(qk_event *event)
{
    qk_stream stream;
    uint64_t seq = event_seq(event, &stream);
    qk_cpu_wait_seq(event_backend(event), stream, seq);
    return QK_OK;
}

qk_status qk_cpu_stream_wait(qk_backend *backend, qk_stream stream, qk_event *event)
{
    qk_cpu_backend *self = (qk_cpu_backend *)backend;
    qk_cpu_cmd *cmd = commands_new(self, 1);
    if (cmd == NULL)
        return qk_cpu_fail(self, QK_NO_MEMORY, "stream wait: no memory for a queue entry");
    cmd->kind = QK_CPU_WAIT;
    cmd->u.wait.seq = event_seq(event, &cmd->u.wait.stream);
    qk_cpu_enqueue(self, stream, cmd);
    return QK_OK;
}
