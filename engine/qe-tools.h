/* qe-tools.h: the tools of a request, in the spelling that chat templates give them. Internal; any thread (no shared state).
 *
 * Templates write tools with a `tojson` that is Python's json.dumps (ensure_ascii off): ", " and ": " between values, members
 * in their order, no escape that JSON does not demand, floats in their shortest form ("1.0", "1e-05"). The model was trained
 * on that text. */
#pragma once
#include <glib.h>
#include <stdbool.h>
#include "engine/qe-error.h"

G_BEGIN_DECLS

/* Each element of the JSON array @tools. Errors: QE_ERROR_FORMAT (no array, over a limit of qe-json.h, a member twice);
 * @tools is bounded by QE_SCHEMA_BYTES_MAX: QE_ERROR_INVALID. Returns: owned, NULL-terminated (g_strfreev). */
char **qe_tools_spell(const char *tools, gsize n_bytes, GError **error);

G_END_DECLS
