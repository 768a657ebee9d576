/* fake-backend.h: buffers, copies and fills in host memory, done at once, for tests of page bookkeeping. No model, no
 * steps. A QK_MEMORY_DEVICE buffer has no host pointer: bytes come and go by copies, as on a device. */
#pragma once
#include <glib.h>
#include "kernels/qk-backend.h"

typedef struct fake_backend fake_backend;

fake_backend *fake_backend_new(void);
void fake_backend_free(fake_backend *fake); /* asserts that every buffer is freed */
qk_backend *fake_backend_of(fake_backend *fake);

void fake_backend_fail_alloc(fake_backend *fake, uint32_t nth); /* from now, 1 is the next; 0 none */
void fake_backend_lose(fake_backend *fake); /* from now on everything but freeing gives QK_DEVICE_LOST */

uint32_t fake_backend_n_buffers(const fake_backend *fake);
uint32_t fake_backend_n_copies(const fake_backend *fake);
uint32_t fake_backend_n_fills(const fake_backend *fake);
