/* qe-host-paths.h: how decode reads host pages on a machine, as it was measured there and kept in a file. Internal; any
 * thread. */
#pragma once
#include <glib.h>
#include <stdbool.h>
#include "engine/qe.h"
#include "kernels/qk.h"

G_BEGIN_DECLS

/* What a choice depends on: device, model shape, page class and the host's threads. Returns: owned. */
char *qe_host_paths_key(const char *device, const qk_shape *shape, qk_dtype pages);
/* The choice for @wanted: itself, unless it is AUTO; then what @file (NULL: none) has under @key, else the default. *why:
 * owned, one sentence without its full stop. */
qe_host_path qe_host_paths_choose(const char *file, const char *key, qe_host_path wanted, char **why);

G_END_DECLS
