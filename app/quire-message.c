/* quire-message.c: one message of a conversation. See quire-message.h. */
#include "app/quire-message.h"

#include <json-glib/json-glib.h>

struct _QuireMessage
{
  GObject parent_instance;

  qe_role role;
  QuireReplyState state;
  GString *text;
  QuireReply reply;
  guint seq, parent;
  guint version, n_versions;
  gint64 created;
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
    {
      self->reply.reading_us = g_get_monotonic_time ();
      self->reply.n_read_at = update->n_prompt_done;
    }
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
quire_message_set_began (QuireMessage *self, gint64 began_us)
{
  self->reply.began_us = began_us;
}

void
quire_message_set_saved (QuireMessage *self)
{
  self->reply.saved_ms = (double)(g_get_monotonic_time () - self->reply.began_us) / 1000;
}

void
quire_message_set_cause (QuireMessage *self, QuireCause cause, guint at)
{
  self->reply.cause = cause;
  self->reply.cause_at = at;
}

void
quire_message_set_shown (QuireMessage *self, gint64 now_us)
{
  if (self->reply.shown_ms > 0)
    return;
  self->reply.shown_ms = (double)(now_us - self->reply.began_us) / 1000;
  g_signal_emit (self, changed_signal, 0);
}

void
quire_message_fail (QuireMessage *self, const GError *error)
{
  self->state = QUIRE_REPLY_FAILED;
  set_error (self, error);
  g_signal_emit (self, changed_signal, 0);
}

void
quire_message_end (QuireMessage *self, QuireReplyState state)
{
  self->state = state;
  g_signal_emit (self, changed_signal, 0);
}

/* ---- Its place ---- */

guint
quire_message_get_seq (QuireMessage *self)
{
  return self->seq;
}

guint
quire_message_get_parent (QuireMessage *self)
{
  return self->parent;
}

gint64
quire_message_get_created (QuireMessage *self)
{
  return self->created;
}

void
quire_message_set_place (QuireMessage *self, guint seq, guint parent)
{
  self->seq = seq;
  self->parent = parent;
}

guint
quire_message_get_version (QuireMessage *self, guint *n_versions)
{
  if (n_versions != NULL)
    *n_versions = self->n_versions;
  return self->version;
}

void
quire_message_set_version (QuireMessage *self, guint version, guint n_versions)
{
  if (self->version == version && self->n_versions == n_versions)
    return;
  self->version = version;
  self->n_versions = n_versions;
  g_signal_emit (self, changed_signal, 0);
}

gboolean
quire_message_can_continue (QuireMessage *self)
{
  return self->role == QE_ROLE_ASSISTANT && self->text->len > 0
         && (self->state == QUIRE_REPLY_STOPPED || self->state == QUIRE_REPLY_LENGTH
             || self->state == QUIRE_REPLY_INTERRUPTED);
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
  self->version = self->n_versions = 1;
  self->created = g_get_real_time ();
  self->reply.receipt.first_mismatch = -1;
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

/* ---- The history's form ---- */

typedef enum
{
  FIGURE_UINT,
  FIGURE_DOUBLE,
} FigureKind;

static const struct
{
  const char *name;
  gsize offset;
  FigureKind kind;
} figures[] = {
  { "n_prompt", G_STRUCT_OFFSET (qe_receipt, n_prompt), FIGURE_UINT },
  { "n_reused", G_STRUCT_OFFSET (qe_receipt, n_reused), FIGURE_UINT },
  { "n_shared", G_STRUCT_OFFSET (qe_receipt, n_shared), FIGURE_UINT },
  { "n_restored_host", G_STRUCT_OFFSET (qe_receipt, n_restored_host), FIGURE_UINT },
  { "n_restored_disk", G_STRUCT_OFFSET (qe_receipt, n_restored_disk), FIGURE_UINT },
  { "n_on_host", G_STRUCT_OFFSET (qe_receipt, n_on_host), FIGURE_UINT },
  { "n_new", G_STRUCT_OFFSET (qe_receipt, n_new), FIGURE_UINT },
  { "n_recomputed", G_STRUCT_OFFSET (qe_receipt, n_recomputed), FIGURE_UINT },
  { "n_generated", G_STRUCT_OFFSET (qe_receipt, n_generated), FIGURE_UINT },
  { "restore_ms", G_STRUCT_OFFSET (qe_receipt, restore_ms), FIGURE_DOUBLE },
  { "restore_disk_ms", G_STRUCT_OFFSET (qe_receipt, restore_disk_ms), FIGURE_DOUBLE },
  { "queue_ms", G_STRUCT_OFFSET (qe_receipt, queue_ms), FIGURE_DOUBLE },
  { "first_token_ms", G_STRUCT_OFFSET (qe_receipt, first_token_ms), FIGURE_DOUBLE },
  { "prefill_ms", G_STRUCT_OFFSET (qe_receipt, prefill_ms), FIGURE_DOUBLE },
  { "decode_ms", G_STRUCT_OFFSET (qe_receipt, decode_ms), FIGURE_DOUBLE },
  { "prefill_tokens_per_s", G_STRUCT_OFFSET (qe_receipt, prefill_tokens_per_s), FIGURE_DOUBLE },
  { "decode_tokens_per_s", G_STRUCT_OFFSET (qe_receipt, decode_tokens_per_s), FIGURE_DOUBLE },
};

char *
quire_message_dup_receipt (QuireMessage *self)
{
  g_autoptr (JsonBuilder) builder = NULL;
  g_autoptr (JsonNode) node = NULL;
  const qe_receipt *receipt = &self->reply.receipt;
  g_autofree char *seed = g_strdup_printf ("%" G_GUINT64_FORMAT, receipt->seed);

  if (self->role != QE_ROLE_ASSISTANT || self->state < QUIRE_REPLY_DONE
      || (receipt->n_prompt == 0 && self->reply.error == NULL))
    return NULL;
  builder = json_builder_new ();
  json_builder_begin_object (builder);
  for (gsize i = 0; i < G_N_ELEMENTS (figures); i++)
    {
      gconstpointer field = G_STRUCT_MEMBER_P (receipt, figures[i].offset);

      json_builder_set_member_name (builder, figures[i].name);
      if (figures[i].kind == FIGURE_UINT)
        json_builder_add_int_value (builder, *(const uint32_t *)field);
      else
        json_builder_add_double_value (builder, *(const double *)field);
    }
  json_builder_set_member_name (builder, "cause");
  json_builder_add_int_value (builder, self->reply.cause);
  json_builder_set_member_name (builder, "cause_at");
  json_builder_add_int_value (builder, self->reply.cause_at);
  json_builder_set_member_name (builder, "saved_ms");
  json_builder_add_double_value (builder, self->reply.saved_ms);
  json_builder_set_member_name (builder, "shown_ms");
  json_builder_add_double_value (builder, self->reply.shown_ms);
  json_builder_set_member_name (builder, "mode");
  json_builder_add_string_value (builder, qe_cache_mode_name (receipt->mode));
  json_builder_set_member_name (builder, "first_mismatch");
  json_builder_add_int_value (builder, receipt->first_mismatch);
  json_builder_set_member_name (builder, "mismatch");
  json_builder_add_int_value (builder, receipt->mismatch);
  /* As text: a JSON number need not hold 64 bits. */
  json_builder_set_member_name (builder, "seed");
  json_builder_add_string_value (builder, seed);
  if (self->reply.error != NULL)
    {
      json_builder_set_member_name (builder, "error");
      json_builder_add_string_value (builder, self->reply.error);
      json_builder_set_member_name (builder, "error_code");
      json_builder_add_int_value (builder, self->reply.error_code);
    }
  json_builder_end_object (builder);
  node = json_builder_get_root (builder);
  return json_to_string (node, FALSE);
}

static void
read_receipt (QuireMessage *self, const char *json)
{
  g_autoptr (JsonNode) node = json_from_string (json, NULL);
  JsonObject *object
      = node != NULL && JSON_NODE_HOLDS_OBJECT (node) ? json_node_get_object (node) : NULL;
  qe_receipt *receipt = &self->reply.receipt;
  const char *text;

  if (object == NULL)
    return;
  for (gsize i = 0; i < G_N_ELEMENTS (figures); i++)
    {
      gpointer field = G_STRUCT_MEMBER_P (receipt, figures[i].offset);
      double value = json_object_get_double_member_with_default (object, figures[i].name, 0);

      if (figures[i].kind == FIGURE_UINT)
        *(uint32_t *)field = value > 0 && value <= G_MAXUINT32 ? (uint32_t)value : 0;
      else
        *(double *)field = value > 0 ? value : 0;
    }
  self->reply.cause = (QuireCause)CLAMP (
      json_object_get_int_member_with_default (object, "cause", 0), 0, QUIRE_CAUSE_SYSTEM);
  self->reply.cause_at = (guint)CLAMP (
      json_object_get_int_member_with_default (object, "cause_at", 0), 0, G_MAXINT32);
  self->reply.saved_ms
      = MAX (json_object_get_double_member_with_default (object, "saved_ms", 0), 0);
  self->reply.shown_ms
      = MAX (json_object_get_double_member_with_default (object, "shown_ms", 0), 0);
  text = json_object_get_string_member_with_default (object, "mode", "auto");
  if (text == NULL || !qe_cache_mode_parse (text, &receipt->mode, NULL))
    receipt->mode = QE_CACHE_AUTO;
  receipt->first_mismatch = json_object_get_int_member_with_default (object, "first_mismatch", -1);
  receipt->mismatch = (qe_mismatch)CLAMP (
      json_object_get_int_member_with_default (object, "mismatch", 0), 0, QE_MISMATCH_MODE);
  text = json_object_get_string_member_with_default (object, "seed", NULL);
  receipt->seed = text != NULL ? g_ascii_strtoull (text, NULL, 10) : 0;
  self->reply.error = g_strdup (json_object_get_string_member_with_default (object, "error", NULL));
  self->reply.error_code
      = (int)json_object_get_int_member_with_default (object, "error_code", QE_ERROR_FAILED);
}

QuireMessage *
quire_message_new_stored (qe_role role, QuireReplyState state, const char *text, gsize n_bytes,
                          gint64 created, const char *receipt)
{
  QuireMessage *self = quire_message_new (role, "");

  g_string_append_len (self->text, text, (gssize)n_bytes);
  /* One that ran is not running any more, whatever was stored. */
  self->state = role == QE_ROLE_USER       ? QUIRE_REPLY_DONE
                : state < QUIRE_REPLY_DONE ? QUIRE_REPLY_INTERRUPTED
                                           : state;
  self->created = created;
  if (receipt != NULL)
    read_receipt (self, receipt);
  if (self->state == QUIRE_REPLY_FAILED && self->reply.error == NULL)
    self->reply.error = g_strdup ("");
  return self;
}
