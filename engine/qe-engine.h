/* qe-engine.h: the engine beside its public face: how tests give it a backend of their own. Internal. */
#pragma once
#include "engine/qe-backend.h"
#include "engine/qe.h"

G_BEGIN_DECLS

/* As qe_engine_new(), with @open called on the engine thread each time a backend is needed (options->backend, isa and
 * n_threads are not used then). The engine frees what it gives. */
qe_engine *qe_engine_new_with_backend(
    const qe_engine_options *options, qe_backend_open_fn open, void *user, GError **error);

G_END_DECLS
