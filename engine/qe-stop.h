/* qe-stop.h: finds stop strings in text that arrives in pieces. Internal; one thread at a time.
 *
 * Text that may be the beginning of a stop string is held back until it is decided, so nothing of a stop string is ever
 * delivered. The match that ends first wins; of several that end at the same byte, the longest. */
#pragma once
#include <glib.h>
#include <stdbool.h>
#include "engine/qe-error.h"
G_BEGIN_DECLS

typedef struct qe_stop_matcher qe_stop_matcher;

/* @stops: NULL-terminated list of strings, copied; NULL or empty: nothing ever stops. QE_ERROR_INVALID: an empty string,
 * or more than QE_STOP_STRINGS_MAX strings or QE_STOP_BYTES_MAX bytes of one. Returns: owned. */
qe_stop_matcher *qe_stop_matcher_new(const char *const *stops, GError **error) G_GNUC_WARN_UNUSED_RESULT;
void qe_stop_matcher_free(qe_stop_matcher *self); /* NULL is fine */

/* Appends to @out the text that is certain by now. True once a stop string is complete: @out then ends right before it,
 * later calls append nothing and return true again. */
bool qe_stop_matcher_push(
    qe_stop_matcher *self, const char *text, gsize n, GString *out) G_GNUC_WARN_UNUSED_RESULT;
/* The end of the text: what was held back is delivered (nothing after a stop). The matcher is as new. */
void qe_stop_matcher_flush(qe_stop_matcher *self, GString *out);
/* The index of the stop string that was found, -1 before. */
int qe_stop_matcher_get_found(const qe_stop_matcher *self);

G_DEFINE_AUTOPTR_CLEANUP_FUNC(qe_stop_matcher, qe_stop_matcher_free)
G_END_DECLS
