/* qe-nfc.h: Unicode normalisation form C in linear time. Internal; any thread (no shared state). */
#pragma once
#include <glib.h>
G_BEGIN_DECLS

/* @text: well-formed UTF-8 of @n bytes, NUL allowed. Returns: NULL when it is in form C already, else the normalised
 * text, owned, with its length in *@n_out and a NUL after it. */
char *qe_nfc_normalize(const char *text, gsize n, gsize *n_out) G_GNUC_WARN_UNUSED_RESULT;

G_END_DECLS
