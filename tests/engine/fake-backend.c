/* fake-backend.c: see the header. Each stream is a queue; work that is not late is done as soon as it is enqueued, which is
 * one of the orders that the streams' rules allow. */
#include "tests/engine/fake-backend.h"

#include <stdlib.h>
#include <string.h>

/* One recording of an event. The event and every operation that names it hold a reference. */
typedef struct {
    uint32_t n_refs;
    bool is_done;
    qk_stream stream;
} mark;

typedef struct {
    enum { OP_COPY, OP_FILL, OP_CALL, OP_RECORD, OP_WAIT } kind;
    qk_copy copy;
    uint32_t word; /* OP_FILL: of copy's destination */
    fake_call run;
    void *user;
    mark *mark;
} op;

typedef struct {
    qk_event_head head;
    mark *mark; /* NULL: never recorded */
} fake_event;

typedef struct {
    char *host;
    uint64_t bytes;
} region;

struct fake_backend {
    qk_backend base;
    qk_context_head context;
    uint32_t n_buffers, n_copies, n_fills;
    uint32_t faults[FAKE_N_FAULTS], faults_more[FAKE_N_FAULTS];
    bool is_lost, is_late;
    GQueue streams[QK_N_STREAMS]; /* op */
    GMutex lock;                  /* over what registering touches */
    GArray *regions;              /* region */
    char error[160];
};

typedef struct {
    qk_buffer base;
    char *bytes;
    bool wrapped;
} fake_buffer;

static qk_status fake_fail(fake_backend *fake, qk_status status, const char *what)
{
    g_snprintf(fake->error, sizeof fake->error, "fake: %s", what);
    return status;
}

/* Whether this one is to fail. */
static bool is_due(fake_backend *fake, fake_fault what)
{
    if (fake->faults[what] == 0 || --fake->faults[what] > 0)
        return false;
    if (fake->faults_more[what] > 0) {
        fake->faults_more[what]--;
        fake->faults[what] = 1;
    }
    return true;
}

/* ---- Streams ---- */

static void unref_mark(mark *m)
{
    if (m && --m->n_refs == 0)
        g_free(m);
}

static void do_fill(const op *o)
{
    char *at = ((fake_buffer *)o->copy.dst)->bytes + o->copy.dst_offset;
    for (uint64_t i = 0; i < o->copy.bytes; i += 4)
        memcpy(at + i, &o->word, 4);
}

static void do_copy(const op *o)
{
    const qk_copy *c = &o->copy;
    memcpy(((fake_buffer *)c->dst)->bytes + c->dst_offset, ((fake_buffer *)c->src)->bytes + c->src_offset,
        c->bytes);
}

bool fake_backend_advance(fake_backend *fake, qk_stream stream)
{
    op *o = g_queue_peek_head(&fake->streams[stream]);
    if (!o || (o->kind == OP_WAIT && !o->mark->is_done))
        return false;
    g_queue_pop_head(&fake->streams[stream]);
    if (o->kind == OP_COPY) {
        do_copy(o);
        fake->n_copies++;
    } else if (o->kind == OP_FILL) {
        do_fill(o);
        fake->n_fills++;
    } else if (o->kind == OP_CALL) {
        o->run(o->user, true);
    } else if (o->kind == OP_RECORD) {
        o->mark->is_done = true;
    }
    unref_mark(o->mark);
    g_free(o);
    return true;
}

/* Does what @m needs, and nothing else. */
static void reach(fake_backend *fake, const mark *m)
{
    while (!m->is_done) {
        const op *o = g_queue_peek_head(&fake->streams[m->stream]);
        g_assert_nonnull(o);
        if (o->kind == OP_WAIT)
            reach(fake, o->mark);
        g_assert_true(fake_backend_advance(fake, m->stream));
    }
}

void fake_backend_drain(fake_backend *fake)
{
    bool any = true;
    while (any) {
        any = false;
        for (qk_stream s = QK_STREAM_COMPUTE; s < QK_N_STREAMS; s++)
            any |= fake_backend_advance(fake, s);
    }
    for (qk_stream s = QK_STREAM_COMPUTE; s < QK_N_STREAMS; s++)
        g_assert_cmpuint(fake->streams[s].length, ==, 0);
}

static void enqueue(fake_backend *fake, qk_stream stream, op o)
{
    g_queue_push_tail(&fake->streams[stream], g_memdup2(&o, sizeof o));
    if (!fake->is_late)
        fake_backend_drain(fake);
}

static void forget_work(fake_backend *fake)
{
    for (int s = 0; s < QK_N_STREAMS; s++) {
        op *o;
        while ((o = g_queue_pop_head(&fake->streams[s]))) {
            if (o->kind == OP_CALL)
                o->run(o->user, false);
            unref_mark(o->mark);
            g_free(o);
        }
    }
}

/* Queued work would touch what is not there any more. */
static void must_be_at_rest(const fake_backend *fake, const char *begin, uint64_t bytes)
{
    for (int s = 0; s < QK_N_STREAMS; s++) {
        for (const GList *l = fake->streams[s].head; l; l = l->next) {
            const op *o = l->data;
            const qk_buffer *ends[] = {o->copy.dst, o->copy.src};
            for (int i = 0; i < 2; i++) {
                const fake_buffer *b = (const fake_buffer *)ends[i];
                if (b)
                    g_assert_false(b->bytes >= begin && b->bytes < begin + bytes);
            }
        }
    }
}

/* ---- Memory ---- */

static qk_status fake_buffer_new(qk_backend *backend, qk_memory memory, uint64_t bytes, qk_buffer **out)
{
    fake_backend *fake = (fake_backend *)backend;
    if (fake->is_lost)
        return fake_fail(fake, QK_DEVICE_LOST, "device lost");
    if (is_due(fake, FAKE_ALLOC))
        return fake_fail(fake, QK_NO_MEMORY, "allocation fails on request");
    fake_buffer *buffer = g_new0(fake_buffer, 1);
    buffer->bytes = aligned_alloc(64, (bytes + 63) / 64 * 64);
    g_assert_nonnull(buffer->bytes);
    memset(buffer->bytes, 0x5a, bytes);
    buffer->base = (qk_buffer){
        .backend = backend,
        .memory = memory,
        .bytes = bytes,
        .address = (uint64_t)(uintptr_t)buffer->bytes,
        .host = memory == QK_MEMORY_HOST ? buffer->bytes : NULL,
    };
    fake->n_buffers++;
    *out = &buffer->base;
    return QK_OK;
}

static void fake_buffer_free(qk_buffer *base)
{
    fake_buffer *buffer = (fake_buffer *)base;
    fake_backend *fake = (fake_backend *)base->backend;
    must_be_at_rest(fake, buffer->bytes, base->bytes);
    fake->n_buffers--;
    if (!buffer->wrapped)
        free(buffer->bytes);
    g_free(buffer);
}

static qk_status fake_host_register(
    qk_backend *backend, void *host, uint64_t bytes, char *error, size_t error_size)
{
    fake_backend *fake = (fake_backend *)backend;
    g_mutex_lock(&fake->lock);
    bool refused = is_due(fake, FAKE_REGISTER);
    if (!refused && !fake->is_lost)
        g_array_append_val(fake->regions, ((region){host, bytes}));
    g_mutex_unlock(&fake->lock);
    if (refused)
        g_snprintf(error, error_size, "fake: registering fails on request");
    return fake->is_lost ? QK_DEVICE_LOST : refused ? QK_UNSUPPORTED : QK_OK;
}

static void fake_host_unregister(qk_backend *backend, void *host)
{
    fake_backend *fake = (fake_backend *)backend;
    g_mutex_lock(&fake->lock);
    for (guint i = 0; i < fake->regions->len; i++) {
        const region *r = &g_array_index(fake->regions, region, i);
        if (r->host != host)
            continue;
        must_be_at_rest(fake, r->host, r->bytes);
        g_array_remove_index_fast(fake->regions, i--);
    }
    g_mutex_unlock(&fake->lock);
}

static qk_status fake_buffer_wrap(qk_backend *backend, void *host, uint64_t bytes, qk_buffer **out)
{
    fake_backend *fake = (fake_backend *)backend;
    if (fake->is_lost)
        return fake_fail(fake, QK_DEVICE_LOST, "device lost");
    if (is_due(fake, FAKE_WRAP))
        return fake_fail(fake, QK_NO_MEMORY, "wrapping fails on request");
    fake_buffer *buffer = g_new0(fake_buffer, 1);
    buffer->bytes = host;
    buffer->wrapped = true;
    buffer->base = (qk_buffer){.backend = backend, .memory = QK_MEMORY_HOST, .bytes = bytes, .host = host};
    g_mutex_lock(&fake->lock);
    for (guint i = 0; i < fake->regions->len; i++) {
        if (g_array_index(fake->regions, region, i).host == host)
            buffer->base.address = (uint64_t)(uintptr_t)host;
    }
    g_mutex_unlock(&fake->lock);
    fake->n_buffers++;
    *out = &buffer->base;
    return QK_OK;
}

/* ---- Work ---- */

static qk_status fake_copy_submit(qk_backend *backend, qk_stream stream, const qk_copy *copies, uint32_t n)
{
    fake_backend *fake = (fake_backend *)backend;
    if (fake->is_lost)
        return fake_fail(fake, QK_DEVICE_LOST, "device lost");
    bool fails = is_due(fake, FAKE_COPY);
    for (uint32_t i = 0; i < (fails ? n / 2 : n); i++) {
        const qk_copy *c = &copies[i];
        g_assert_true(c->dst_offset <= c->dst->bytes && c->bytes <= c->dst->bytes - c->dst_offset);
        g_assert_true(c->src_offset <= c->src->bytes && c->bytes <= c->src->bytes - c->src_offset);
        enqueue(fake, stream, (op){.kind = OP_COPY, .copy = *c});
    }
    return fails ? fake_fail(fake, QK_NO_MEMORY, "a copy fails on request") : QK_OK;
}

static qk_status fake_fill_submit(
    qk_backend *backend, qk_stream stream, qk_buffer *dst, uint64_t offset, uint64_t bytes, uint32_t word)
{
    fake_backend *fake = (fake_backend *)backend;
    if (fake->is_lost)
        return fake_fail(fake, QK_DEVICE_LOST, "device lost");
    if (is_due(fake, FAKE_FILL))
        return fake_fail(fake, QK_NO_MEMORY, "a fill fails on request");
    g_assert_true(offset % 4 == 0 && bytes % 4 == 0);
    g_assert_true(offset <= dst->bytes && bytes <= dst->bytes - offset);
    enqueue(fake, stream,
        (op){.kind = OP_FILL, .copy = {.dst = dst, .dst_offset = offset, .bytes = bytes}, .word = word});
    return QK_OK;
}

void fake_backend_call(fake_backend *fake, qk_stream stream, fake_call run, void *user)
{
    if (fake->is_lost)
        run(user, false);
    else
        enqueue(fake, stream, (op){.kind = OP_CALL, .run = run, .user = user});
}

static void make_bounds(void *user, bool done)
{
    qk_bounds *b = user;
    if (done)
        memcpy((void *)(uintptr_t)b->bounds, (const void *)(uintptr_t)(b->page & ~(uint64_t)QK_PAGE_HOST),
            FAKE_BOUNDS_BYTES);
    g_free(b);
}

static qk_status fake_bounds_submit(
    qk_context *context, uint32_t kv_class, const qk_bounds *bounds, uint32_t n)
{
    fake_backend *fake = (fake_backend *)((qk_context_head *)context)->backend;
    if (fake->is_lost)
        return fake_fail(fake, QK_DEVICE_LOST, "device lost");
    if (is_due(fake, FAKE_COPY))
        return fake_fail(fake, QK_NO_MEMORY, "making bounds fails on request");
    for (uint32_t i = 0; i < n; i++)
        fake_backend_call(fake, QK_STREAM_COMPUTE, make_bounds, g_memdup2(&bounds[i], sizeof bounds[i]));
    return QK_OK;
}

qk_context *fake_backend_context(fake_backend *fake, const qk_kv_layout *layout)
{
    fake->context = (qk_context_head){.backend = &fake->base, .params = {.select_max = 1, .layout = *layout}};
    return (qk_context *)&fake->context;
}

static const char *fake_error(const qk_backend *backend)
{
    return ((const fake_backend *)backend)->error;
}

static qk_status fake_event_new(qk_backend *backend, qk_event **out)
{
    fake_backend *fake = (fake_backend *)backend;
    if (fake->is_lost)
        return fake_fail(fake, QK_DEVICE_LOST, "device lost");
    if (is_due(fake, FAKE_EVENT))
        return fake_fail(fake, QK_NO_MEMORY, "an event fails on request");
    fake_event *event = g_new0(fake_event, 1);
    event->head.backend = backend;
    *out = (qk_event *)event;
    return QK_OK;
}

static void fake_event_free(qk_event *self)
{
    fake_event *event = (fake_event *)self;
    unref_mark(event->mark);
    g_free(event);
}

static fake_backend *backend_of(const fake_event *event)
{
    return (fake_backend *)event->head.backend;
}

static qk_status fake_event_record(qk_event *self, qk_stream stream)
{
    fake_event *event = (fake_event *)self;
    if (backend_of(event)->is_lost)
        return fake_fail(backend_of(event), QK_DEVICE_LOST, "device lost");
    unref_mark(event->mark);
    event->mark = g_new0(mark, 1);
    event->mark->n_refs = 2;
    event->mark->stream = stream;
    enqueue(backend_of(event), stream, (op){.kind = OP_RECORD, .mark = event->mark});
    return QK_OK;
}

static qk_status fake_event_query(qk_event *self)
{
    const fake_event *event = (const fake_event *)self;
    if (backend_of(event)->is_lost)
        return fake_fail(backend_of(event), QK_DEVICE_LOST, "device lost");
    return event->mark && !event->mark->is_done ? QK_PENDING : QK_OK;
}

static qk_status fake_event_wait(qk_event *self)
{
    const fake_event *event = (const fake_event *)self;
    if (backend_of(event)->is_lost)
        return fake_fail(backend_of(event), QK_DEVICE_LOST, "device lost");
    if (event->mark)
        reach(backend_of(event), event->mark);
    return QK_OK;
}

static qk_status fake_stream_wait(qk_backend *backend, qk_stream stream, qk_event *self)
{
    const fake_event *event = (const fake_event *)self;
    fake_backend *fake = (fake_backend *)backend;
    if (fake->is_lost)
        return fake_fail(fake, QK_DEVICE_LOST, "device lost");
    if (event->mark && !event->mark->is_done) {
        event->mark->n_refs++;
        enqueue(fake, stream, (op){.kind = OP_WAIT, .mark = event->mark});
    }
    return QK_OK;
}

static const qk_backend_ops fake_ops = {
    .abi_version = QK_ABI_VERSION,
    .name = "fake",
    .error = fake_error,
    .buffer_new = fake_buffer_new,
    .buffer_free = fake_buffer_free,
    .host_register = fake_host_register,
    .host_unregister = fake_host_unregister,
    .buffer_wrap = fake_buffer_wrap,
    .bounds_submit = fake_bounds_submit,
    .copy_submit = fake_copy_submit,
    .fill_submit = fake_fill_submit,
    .event_new = fake_event_new,
    .event_free = fake_event_free,
    .event_record = fake_event_record,
    .event_query = fake_event_query,
    .event_wait = fake_event_wait,
    .stream_wait = fake_stream_wait,
};

fake_backend *fake_backend_new(void)
{
    fake_backend *fake = g_new0(fake_backend, 1);
    fake->base.ops = &fake_ops;
    g_mutex_init(&fake->lock);
    fake->regions = g_array_new(FALSE, FALSE, sizeof(region));
    return fake;
}

void fake_backend_free(fake_backend *fake)
{
    forget_work(fake);
    g_assert_cmpuint(fake->n_buffers, ==, 0);
    g_assert_cmpuint(fake->regions->len, ==, 0);
    g_array_unref(fake->regions);
    g_mutex_clear(&fake->lock);
    g_free(fake);
}

qk_backend *fake_backend_of(fake_backend *fake)
{
    return &fake->base;
}

void fake_backend_fail_run(fake_backend *fake, fake_fault what, uint32_t nth, uint32_t n)
{
    g_mutex_lock(&fake->lock);
    fake->faults[what] = nth;
    fake->faults_more[what] = n - 1;
    g_mutex_unlock(&fake->lock);
}

void fake_backend_fail(fake_backend *fake, fake_fault what, uint32_t nth)
{
    fake_backend_fail_run(fake, what, nth, 1);
}

void fake_backend_fail_none(fake_backend *fake)
{
    for (int i = 0; i < FAKE_N_FAULTS; i++)
        fake_backend_fail(fake, (fake_fault)i, 0);
}

void fake_backend_fail_alloc(fake_backend *fake, uint32_t nth)
{
    fake_backend_fail(fake, FAKE_ALLOC, nth);
}

void fake_backend_be_late(fake_backend *fake)
{
    fake->is_late = true;
}

void fake_backend_lose(fake_backend *fake)
{
    fake->is_lost = true;
    forget_work(fake);
}

uint32_t fake_backend_n_buffers(const fake_backend *fake)
{
    return fake->n_buffers;
}

uint32_t fake_backend_n_copies(const fake_backend *fake)
{
    return fake->n_copies;
}

uint32_t fake_backend_n_fills(const fake_backend *fake)
{
    return fake->n_fills;
}
