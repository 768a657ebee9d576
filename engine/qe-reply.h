/* qe-reply.h: one reply's way from ids to text: bytes of the token, whole UTF-8 characters, stop strings. Internal; one
 * thread at a time. Special tokens give no text. */
#pragma once
#include <glib.h>
#include <stdbool.h>
#include <stdint.h>
#include "engine/qe-tokenizer.h"

G_BEGIN_DECLS

typedef struct qe_reply qe_reply;

/* @tokenizer: referenced. @stop: NULL-terminated, or NULL; copied. */
qe_reply *qe_reply_new(qe_tokenizer *tokenizer, const char *const *stop);
void qe_reply_free(qe_reply *self); /* NULL is fine */

/* Appends to @out what has become certain: whole characters that cannot be the beginning of a stop string. Returns true
 * when a stop string is complete: @out then ends before it and nothing more will come. */
bool qe_reply_push(qe_reply *self, uint32_t id, GString *out) G_GNUC_WARN_UNUSED_RESULT;
/* The end of the reply: what was held back. A character that never became whole gives U+FFFD. */
void qe_reply_flush(qe_reply *self, GString *out);

G_END_DECLS
