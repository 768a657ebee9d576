/* quire-message.h: one message of a conversation, with the state of its reply. No GTK. Main thread only. */
#pragma once
#include <glib-object.h>
#include "engine/qe.h"

G_BEGIN_DECLS

/* The values are stored in the history. */
typedef enum
{
  QUIRE_REPLY_WAITING, /* sent; the engine has not spoken yet */
  QUIRE_REPLY_QUEUED,
  QUIRE_REPLY_READING,
  QUIRE_REPLY_WRITING,
  QUIRE_REPLY_DONE,
  QUIRE_REPLY_LENGTH,  /* cut at the token limit */
  QUIRE_REPLY_CONTEXT, /* cut where the context was full */
  QUIRE_REPLY_STOPPED,
  QUIRE_REPLY_FAILED,
  QUIRE_REPLY_INTERRUPTED, /* Quire ended while it ran */
  QUIRE_N_REPLY_STATES,
} QuireReplyState;

/* What the user did that a turn could not go on from all that was computed. The first in the prompt counts most. The values are
 * stored. */
typedef enum
{
  QUIRE_CAUSE_NONE, /* nothing: see the receipt */
  QUIRE_CAUSE_REGENERATED,
  QUIRE_CAUSE_EDITED,   /* a message */
  QUIRE_CAUSE_FLIPPED,  /* to another version */
  QUIRE_CAUSE_LEFT_OUT, /* turns were left out, or taken in again */
  QUIRE_CAUSE_SYSTEM,   /* another system prompt */
} QuireCause;

#define QUIRE_TYPE_MESSAGE (quire_message_get_type ())
G_DECLARE_FINAL_TYPE (QuireMessage, quire_message, QUIRE, MESSAGE, GObject)

/* Signal: changed. Emitted after any change below; a view redraws from the fields. */

QuireMessage *quire_message_new (qe_role role, const char *text);
qe_role quire_message_get_role (QuireMessage *self);
/* Borrowed until the next change; may hold NUL, so use the length. */
const char *quire_message_get_text (QuireMessage *self, gsize *n_bytes);
QuireReplyState quire_message_get_state (QuireMessage *self);
gboolean quire_message_is_running (QuireMessage *self);

/* The figures of a reply. Borrowed. */
typedef struct
{
  guint n_before; /* queued requests ahead */
  guint n_prompt, n_prompt_done;
  gint64
      began_us; /* g_get_monotonic_time() of sending: of the key event's arrival, where there was one */
  gint64 reading_us; /* of the first step of reading; 0 before it */
  guint n_read_at;   /* n_prompt_done then */
  double saved_ms;   /* from began_us until the engine was asked: the message was on the disk */
  double
      shown_ms; /* from began_us until the first frame with a word of the reply was painted; 0: not known */
  qe_receipt receipt;
  QuireCause cause;
  guint cause_at; /* EDITED: which message of the chat, from 1 */
  char *error;    /* FAILED: the engine's words */
  int error_code; /* FAILED: qe_error_code */
} QuireReply;
const QuireReply *quire_message_get_reply (QuireMessage *self);

/* Its place in the conversation's tree. @parent: 0 for the first message. @created: microseconds of the epoch. */
guint quire_message_get_seq (QuireMessage *self);
guint quire_message_get_parent (QuireMessage *self);
gint64 quire_message_get_created (QuireMessage *self);
void quire_message_set_place (QuireMessage *self, guint seq, guint parent);
/* Which of how many versions with the same message before it, from 1. Setting emits changed when it differs. */
guint quire_message_get_version (QuireMessage *self, guint *n_versions);
void quire_message_set_version (QuireMessage *self, guint version, guint n_versions);
/* A reply that has text but was not ended by the model. */
gboolean quire_message_can_continue (QuireMessage *self);

/* From the history: a message that does not run. @receipt: what quire_message_dup_receipt() gave, or NULL. */
QuireMessage *quire_message_new_stored (qe_role role, QuireReplyState state, const char *text,
                                        gsize n_bytes, gint64 created, const char *receipt);
/* The figures of a reply that ended, as JSON. NULL: there are none. Returns: owned. */
char *quire_message_dup_receipt (QuireMessage *self);

/* For the conversation: when it was asked for, and that the engine is asked now. */
void quire_message_set_began (QuireMessage *self, gint64 began_us);
void quire_message_set_saved (QuireMessage *self);
void quire_message_set_cause (QuireMessage *self, QuireCause cause, guint at);
/* For the view: its first words were painted, at @now_us. Emits changed. */
void quire_message_set_shown (QuireMessage *self, gint64 now_us);
/* For the conversation: ends a reply that was running, as @state. */
void quire_message_end (QuireMessage *self, QuireReplyState state);
/* For the conversation: takes over what @update says and emits changed. */
void quire_message_apply (QuireMessage *self, const qe_update *update);
void quire_message_fail (QuireMessage *self, const GError *error);

G_END_DECLS
