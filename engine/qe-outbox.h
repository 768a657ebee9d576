/* qe-outbox.h: what a request has for its reader: text, ids, the latest state. Internal.
 *
 * One writer (the engine thread), one reader at a time. Every function locks; none blocks except qe_outbox_wait().
 * The writer asks qe_outbox_is_full() before it computes more: a full outbox pauses its request, text is never dropped. The
 * bound is max_bytes plus what one step and the end of the reply add. */
#pragma once
#include <glib.h>
#include <stdbool.h>
#include <stdint.h>
#include "engine/qe.h"

G_BEGIN_DECLS

typedef struct qe_outbox qe_outbox;

/* @max_bytes: of text, QE_OUTBOX_BYTES by default. @wakeup: may be NULL; called on the writer's thread, without a lock,
 * when the outbox goes from nothing new to
 * something new, and not again until the reader has taken. */
qe_outbox *qe_outbox_new(gsize max_bytes, qe_wakeup_fn wakeup, void *user);
void qe_outbox_free(qe_outbox *self);

/* Writer. Each may wake the reader. */
void qe_outbox_push(qe_outbox *self, const char *text, gsize n_text, const uint32_t *ids, uint32_t n_ids);
/* One token, its text and, when not NULL, its log-probabilities (always or never). */
void qe_outbox_push_token(
    qe_outbox *self, const char *text, gsize n_text, uint32_t id, const qe_token_logprobs *logprobs);
void qe_outbox_set_queued(qe_outbox *self, uint32_t n_before);
void qe_outbox_set_progress(qe_outbox *self, qe_request_state state, uint32_t n_prompt,
    uint32_t n_prompt_done, const qe_receipt *receipt);
void qe_outbox_set_top(qe_outbox *self, const qe_top *top, uint32_t n);
/* @ranges: consumed. */
void qe_outbox_set_ranges(qe_outbox *self, qe_message_range *ranges, uint32_t n);
/* The last word; @error: consumed, may be NULL. Later writes are a bug. */
void qe_outbox_finish(qe_outbox *self, qe_finish finish, const qe_receipt *receipt, GError *error);
bool qe_outbox_is_full(qe_outbox *self);

/* Reader. @was_full: whether the take made room in a full outbox, so that the caller tells the engine. */
bool qe_outbox_take(qe_outbox *self, qe_update *out, bool *was_full);
bool qe_outbox_wait(qe_outbox *self, int timeout_ms);

G_END_DECLS
