/* fake-backend.c: see the header. Streams are all the same here: work is done when it is submitted, which is one of the
 * orders that the streams' rules allow. */
#include "tests/engine/fake-backend.h"

#include <stdlib.h>
#include <string.h>

struct fake_backend {
    qk_backend base;
    uint32_t n_buffers, n_copies, n_fills, fail_alloc;
    bool is_lost;
    char error[160];
};

typedef struct {
    qk_buffer base;
    char *bytes;
} fake_buffer;

static qk_status fake_fail(fake_backend *fake, qk_status status, const char *what)
{
    g_snprintf(fake->error, sizeof fake->error, "fake: %s", what);
    return status;
}

static qk_status fake_buffer_new(qk_backend *backend, qk_memory memory, uint64_t bytes, qk_buffer **out)
{
    fake_backend *fake = (fake_backend *)backend;
    if (fake->is_lost)
        return fake_fail(fake, QK_DEVICE_LOST, "device lost");
    if (fake->fail_alloc > 0 && --fake->fail_alloc == 0)
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
    ((fake_backend *)base->backend)->n_buffers--;
    free(buffer->bytes);
    g_free(buffer);
}

static qk_status fake_copy_submit(qk_backend *backend, qk_stream stream, const qk_copy *copies, uint32_t n)
{
    fake_backend *fake = (fake_backend *)backend;
    if (fake->is_lost)
        return fake_fail(fake, QK_DEVICE_LOST, "device lost");
    for (uint32_t i = 0; i < n; i++) {
        const qk_copy *c = &copies[i];
        g_assert_true(c->dst_offset <= c->dst->bytes && c->bytes <= c->dst->bytes - c->dst_offset);
        g_assert_true(c->src_offset <= c->src->bytes && c->bytes <= c->src->bytes - c->src_offset);
        memcpy(((fake_buffer *)c->dst)->bytes + c->dst_offset, ((fake_buffer *)c->src)->bytes + c->src_offset,
            c->bytes);
        fake->n_copies++;
    }
    return QK_OK;
}

static qk_status fake_fill_submit(
    qk_backend *backend, qk_stream stream, qk_buffer *dst, uint64_t offset, uint64_t bytes, uint32_t word)
{
    fake_backend *fake = (fake_backend *)backend;
    if (fake->is_lost)
        return fake_fail(fake, QK_DEVICE_LOST, "device lost");
    g_assert_true(offset % 4 == 0 && bytes % 4 == 0);
    g_assert_true(offset <= dst->bytes && bytes <= dst->bytes - offset);
    for (uint64_t i = 0; i < bytes; i += 4)
        memcpy(((fake_buffer *)dst)->bytes + offset + i, &word, 4);
    fake->n_fills++;
    return QK_OK;
}

static const char *fake_error(const qk_backend *backend)
{
    return ((const fake_backend *)backend)->error;
}

/* Events fire at once. */
static qk_status fake_event_new(qk_backend *backend, qk_event **out)
{
    qk_event_head *head = g_new0(qk_event_head, 1);
    head->backend = backend;
    *out = (qk_event *)head;
    return QK_OK;
}

static void fake_event_free(qk_event *event)
{
    g_free(event);
}

static qk_status fake_event_record(qk_event *event, qk_stream stream)
{
    return QK_OK;
}

static qk_status fake_event_wait(qk_event *event)
{
    return QK_OK;
}

static const qk_backend_ops fake_ops = {
    .abi_version = QK_ABI_VERSION,
    .name = "fake",
    .error = fake_error,
    .buffer_new = fake_buffer_new,
    .buffer_free = fake_buffer_free,
    .copy_submit = fake_copy_submit,
    .fill_submit = fake_fill_submit,
    .event_new = fake_event_new,
    .event_free = fake_event_free,
    .event_record = fake_event_record,
    .event_wait = fake_event_wait,
};

fake_backend *fake_backend_new(void)
{
    fake_backend *fake = g_new0(fake_backend, 1);
    fake->base.ops = &fake_ops;
    return fake;
}

void fake_backend_free(fake_backend *fake)
{
    g_assert_cmpuint(fake->n_buffers, ==, 0);
    g_free(fake);
}

qk_backend *fake_backend_of(fake_backend *fake)
{
    return &fake->base;
}

void fake_backend_fail_alloc(fake_backend *fake, uint32_t nth)
{
    fake->fail_alloc = nth;
}

void fake_backend_lose(fake_backend *fake)
{
    fake->is_lost = true;
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
