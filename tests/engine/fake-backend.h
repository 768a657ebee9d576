/* fake-backend.h: buffers, copies and fills in host memory, for tests of page bookkeeping. No model, no steps. A
 * QK_MEMORY_DEVICE buffer has no host pointer: bytes come and go by copies, as on a device.
 *
 * Work is done when it is submitted, or, once it is *late*, when somebody waits for it and no sooner than that needs, or
 * when the test lets some of it happen: so each stream may be any way behind the others that events allow. A buffer that
 * is freed and memory that is unregistered under queued work end the test. Addresses are those of the host, so a test can
 * read what a kernel would. */
#pragma once
#include <glib.h>
#include "kernels/qk-backend.h"

typedef struct fake_backend fake_backend;

fake_backend *fake_backend_new(void);
void fake_backend_free(fake_backend *fake); /* asserts that every buffer is freed and nothing is registered */
qk_backend *fake_backend_of(fake_backend *fake);

/* For bounds of pages (FAKE_BOUNDS_BYTES each): those of a page are its first bytes as they are. Borrowed. */
#define FAKE_BOUNDS_BYTES 64u
qk_context *fake_backend_context(fake_backend *fake, const qk_kv_layout *layout);

void fake_backend_fail_alloc(fake_backend *fake, uint32_t nth); /* from now, 1 is the next; 0 none */
void fake_backend_lose(fake_backend *fake); /* from now on everything but freeing gives QK_DEVICE_LOST */

uint32_t fake_backend_n_buffers(const fake_backend *fake);
uint32_t fake_backend_n_copies(const fake_backend *fake); /* done */
uint32_t fake_backend_n_fills(const fake_backend *fake);

/* What can be made to fail. Registering may happen on any thread, all else on the test's. */
typedef enum {
    FAKE_ALLOC,    /* a buffer: QK_NO_MEMORY */
    FAKE_WRAP,     /* a buffer around host memory: QK_NO_MEMORY */
    FAKE_REGISTER, /* QK_UNSUPPORTED */
    FAKE_COPY,     /* an array of copies, half of which is enqueued all the same: QK_NO_MEMORY */
    FAKE_FILL,     /* QK_NO_MEMORY */
    FAKE_EVENT,    /* a new event: QK_NO_MEMORY */
    FAKE_N_FAULTS
} fake_fault;
void fake_backend_fail(
    fake_backend *fake, fake_fault what, uint32_t nth); /* from now, 1 is the next; 0 none */
void fake_backend_fail_run(
    fake_backend *fake, fake_fault what, uint32_t nth, uint32_t n); /* and n in a row */
void fake_backend_fail_none(fake_backend *fake);

void fake_backend_be_late(fake_backend *fake);
/* Does the first piece of work of @stream, if events allow. false: there is none, or it has to wait. */
bool fake_backend_advance(fake_backend *fake, qk_stream stream);
void fake_backend_drain(fake_backend *fake); /* does all */
/* @run: called when its turn on @stream comes, with @done; after a loss with false, and does no more than free @user. */
typedef void (*fake_call)(void *user, bool done);
void fake_backend_call(fake_backend *fake, qk_stream stream, fake_call run, void *user);
