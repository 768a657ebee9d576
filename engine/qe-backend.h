/* qe-backend.h: the engine's side of qk.h: which backends there are, opening one, statuses as errors. Internal. */
#pragma once
#include <glib.h>
#include <stdbool.h>
#include <stdint.h>
#include "engine/qe-error.h"
#include "kernels/qk.h"

G_BEGIN_DECLS

/* How the engine gets its backend, each time it needs one (first load, recovery). Tests give their own. */
typedef qk_status (*qe_backend_open_fn)(void *user, qk_backend **out, char *error, size_t error_size);
typedef struct {
    qe_backend_open_fn open; /* NULL: by the fields below */
    void *user;
    char *name; /* NULL: the first that is available */
    char *isa;
    char *device; /* NULL: the best; else an id or index, see qk_backend_options */
    uint32_t n_threads;
} qe_backend_opener;

/* Returns NULL with @error. @last_resort: when the opener leaves the choice, take the one that always runs (the CPU). */
qk_backend *qe_backend_open(const qe_backend_opener *opener, bool last_resort, GError **error);
/* Whether qe_backend_open() may be tried again with @last_resort: the opener leaves the choice of the backend. */
bool qe_backend_has_choice(const qe_backend_opener *opener);

/* QE_ERROR for a status other than QK_OK: "@what: words of the backend". @backend may be NULL. */
void qe_backend_set_error(GError **error, qk_backend *backend, qk_status status, const char *what);

G_END_DECLS
