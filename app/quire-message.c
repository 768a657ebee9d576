/* quire-message.c: one message of a conversation. See quire-message.h. */
#include "app/quire-message.h"

struct _QuireMessage
{
  GObject parent_instance;

  qe_role role;
  QuireReplyState state;
  GString *text;
  QuireReply reply;
};

G_DEFINE_FINAL_TYPE (QuireMessage, quire_message, G_TYPE_OBJECT)

static guint changed_signal;

const char *
quire_message_get_text (QuireMessage *self, gsize *n_bytes)
{
  if (n_bytes != NULL)
    *n_bytes = self->text->len;
  return self->text->str;
}

qe_role
quire_message_get_role (QuireMessage *self)
{
  return self->role;
}

QuireReplyState
quire_message_get_state (QuireMessage *self)
{
  return self->state;
}

gboolean
quire_message_is_running (QuireMessage *self)
{
  return self->state < QUIRE_REPLY_DONE;
}

const QuireReply *
quire_message_get_reply (QuireMessage *self)
{
  return &self->reply;
}

static QuireReplyState
state_of_update (const qe_update *update)
{
  switch (update->state)
    {
    case QE_REQUEST_QUEUED:
      return QUIRE_REPLY_QUEUED;
    case QE_REQUEST_PREFILL:
      return QUIRE_REPLY_READING;
    case QE_REQUEST_DECODE:
      return QUIRE_REPLY_WRITING;
    case QE_REQUEST_DONE:
    default:
      break;
    }

  switch (update->finish)
    {
    case QE_FINISH_LENGTH:
      return QUIRE_REPLY_LENGTH;
    case QE_FINISH_CONTEXT:
      return QUIRE_REPLY_CONTEXT;
    case QE_FINISH_CANCELLED:
      return QUIRE_REPLY_STOPPED;
    case QE_FINISH_ERROR:
      return QUIRE_REPLY_FAILED;
    case QE_FINISH_STOP:
    case QE_FINISH_NONE:
    default:
      return QUIRE_REPLY_DONE;
    }
}

static void
set_error (QuireMessage *self, const GError *error)
{
  g_clear_pointer (&self->reply.error, g_free);
  if (error == NULL)
    return;
  self->reply.error = g_strdup (error->message);
  self->reply.error_code = error->domain == QE_ERROR ? error->code : QE_ERROR_FAILED;
}

void
quire_message_apply (QuireMessage *self, const qe_update *update)
{
  self->state = state_of_update (update);
  if (self->state == QUIRE_REPLY_READING && self->reply.reading_us == 0)
    self->reply.reading_us = g_get_monotonic_time ();
  if (update->n_text > 0)
    g_string_append_len (self->text, update->text, update->n_text);
  self->reply.n_before = update->n_before;
  self->reply.n_prompt = update->n_prompt;
  self->reply.n_prompt_done = update->n_prompt_done;
  self->reply.receipt = update->receipt;
  set_error (self, update->error);
  g_signal_emit (self, changed_signal, 0);
}

void
quire_message_fail (QuireMessage *self, const GError *error)
{
  self->state = QUIRE_REPLY_FAILED;
  set_error (self, error);
  g_signal_emit (self, changed_signal, 0);
}

static void
quire_message_finalize (GObject *object)
{
  QuireMessage *self = QUIRE_MESSAGE (object);

  g_string_free (self->text, TRUE);
  g_free (self->reply.error);
  G_OBJECT_CLASS (quire_message_parent_class)->finalize (object);
}

static void
quire_message_class_init (QuireMessageClass *klass)
{
  G_OBJECT_CLASS (klass)->finalize = quire_message_finalize;
  changed_signal = g_signal_new ("changed", G_TYPE_FROM_CLASS (klass), G_SIGNAL_RUN_LAST, 0, NULL,
                                 NULL, NULL, G_TYPE_NONE, 0);
}

static void
quire_message_init (QuireMessage *self)
{
  self->text = g_string_new (NULL);
}

QuireMessage *
quire_message_new (qe_role role, const char *text)
{
  QuireMessage *self = g_object_new (QUIRE_TYPE_MESSAGE, NULL);

  self->role = role;
  self->state = role == QE_ROLE_ASSISTANT ? QUIRE_REPLY_WAITING : QUIRE_REPLY_DONE;
  self->reply.began_us = g_get_monotonic_time ();
  g_string_append (self->text, text);
  return self;
}
