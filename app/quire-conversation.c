/* quire-conversation.c: one chat. See quire-conversation.h.
 *
 * Invariants
 * 1. request != NULL exactly while the last message is a running reply.
 * 2. Messages alternate user, assistant. A turn that does not count, see counts(), is shown but is no part of the
 *    history.
 * 3. in_step: the session's messages are exactly the history. Only then a turn sends its new message alone. */
#include "app/quire-conversation.h"

struct _QuireConversation
{
  GObject parent_instance;

  QuireEngineClient *client;
  GPtrArray *messages; /* (element-type QuireMessage) */
  char *title;
  qe_session_id session;
  QuireCacheChoice cache;
  char *disk_key;
  gboolean in_step;
  qe_request *request;
};

enum
{
  PROP_0,
  PROP_TITLE,
  PROP_RUNNING,
  PROP_CACHE,
  N_PROPS
};
static GParamSpec *properties[N_PROPS];
static guint news_signal;

static GType
get_item_type (GListModel *model)
{
  return QUIRE_TYPE_MESSAGE;
}

static guint
get_n_items (GListModel *model)
{
  return QUIRE_CONVERSATION (model)->messages->len;
}

static gpointer
get_item (GListModel *model, guint position)
{
  QuireConversation *self = QUIRE_CONVERSATION (model);

  if (position >= self->messages->len)
    return NULL;
  return g_object_ref (g_ptr_array_index (self->messages, position));
}

static void
list_model_init (GListModelInterface *iface)
{
  iface->get_item_type = get_item_type;
  iface->get_n_items = get_n_items;
  iface->get_item = get_item;
}

G_DEFINE_FINAL_TYPE_WITH_CODE (QuireConversation, quire_conversation, G_TYPE_OBJECT,
                               G_IMPLEMENT_INTERFACE (G_TYPE_LIST_MODEL, list_model_init))

char *
quire_title_from_text (const char *text)
{
  enum
  {
    TITLE_CHARS_MAX = 40
  };
  g_autofree char *valid = g_utf8_make_valid (text, -1);
  GString *title = g_string_new (NULL);
  gboolean space = FALSE;
  guint n = 0;

  for (const char *p = valid; *p != '\0'; p = g_utf8_next_char (p))
    {
      gunichar c = g_utf8_get_char (p);

      if (g_unichar_isspace (c) || g_unichar_iscntrl (c))
        {
          space = title->len > 0;
          continue;
        }
      if (n >= TITLE_CHARS_MAX || (space && n >= TITLE_CHARS_MAX - 10))
        {
          g_string_append (title, "…");
          break;
        }
      if (space)
        {
          g_string_append_c (title, ' ');
          n++;
          space = FALSE;
        }
      g_string_append_unichar (title, c);
      n++;
    }

  return g_string_free (title, FALSE);
}

QuireEngineClient *
quire_conversation_get_client (QuireConversation *self)
{
  return self->client;
}

const char *
quire_conversation_get_title (QuireConversation *self)
{
  return self->title;
}

qe_session_id
quire_conversation_get_session (QuireConversation *self)
{
  return self->session;
}

gboolean
quire_conversation_is_running (QuireConversation *self)
{
  return self->request != NULL;
}

QuireMessage *
quire_conversation_get_last_reply (QuireConversation *self)
{
  QuireMessage *last;

  if (self->messages->len == 0)
    return NULL;
  last = g_ptr_array_index (self->messages, self->messages->len - 1);
  return quire_message_get_role (last) == QE_ROLE_ASSISTANT ? last : NULL;
}

/* ---- Turns ---- */

/* A turn that failed, or was stopped before a word came, left nothing that later turns build on. */
static gboolean
counts (QuireMessage *reply)
{
  gsize n_bytes;

  quire_message_get_text (reply, &n_bytes);
  return quire_message_get_state (reply) != QUIRE_REPLY_FAILED
         && (quire_message_get_state (reply) != QUIRE_REPLY_STOPPED || n_bytes > 0);
}

/* The messages that count, each a pair of user and assistant, up to index @end. Text is borrowed. */
static GArray *
collect_history (QuireConversation *self, guint end)
{
  GArray *history = g_array_new (FALSE, TRUE, sizeof (qe_message));

  for (guint i = 0; i + 1 < end; i += 2)
    {
      QuireMessage *reply = g_ptr_array_index (self->messages, i + 1);

      if (!counts (reply))
        continue;
      for (guint j = i; j < i + 2; j++)
        {
          QuireMessage *message = g_ptr_array_index (self->messages, j);
          gsize n_bytes;
          const char *text = quire_message_get_text (message, &n_bytes);
          qe_message m = { quire_message_get_role (message), text, (gssize)n_bytes };

          g_array_append_val (history, m);
        }
    }

  return history;
}

/* ---- The cache ---- */

QuireCacheChoice
quire_conversation_get_cache (QuireConversation *self)
{
  return self->cache;
}

gboolean
quire_conversation_set_cache (QuireConversation *self, QuireCacheChoice choice, GError **error)
{
  qe_cache_config config;

  if (choice == self->cache)
    return TRUE;
  if (self->request != NULL)
    {
      g_set_error_literal (error, QE_ERROR, QE_ERROR_BUSY, "A reply is running.");
      return FALSE;
    }
  quire_cache_choice_get_config (choice, &config);
  if (self->session != 0
      && !quire_engine_client_set_session_cache (self->client, self->session, &config, error))
    return FALSE;
  self->cache = choice;
  g_object_notify_by_pspec (G_OBJECT (self), properties[PROP_CACHE]);
  return TRUE;
}

qe_cache_mode
quire_conversation_get_cache_mode (QuireConversation *self)
{
  const qe_session_view *view = quire_engine_client_find_session (self->client, self->session);

  if (view != NULL)
    return view->mode;
  return quire_cache_choice_resolve (self->cache, quire_engine_client_get_plan (self->client));
}

guint
quire_conversation_get_n_tokens (QuireConversation *self)
{
  const qe_session_view *view = quire_engine_client_find_session (self->client, self->session);

  return view != NULL ? view->n_tokens : 0;
}

GArray *
quire_conversation_dup_last_prompt (QuireConversation *self)
{
  guint n = self->messages->len;
  GArray *prompt = collect_history (self, n >= 2 ? n - 2 : 0);

  if (n >= 2)
    {
      gsize n_bytes;
      const char *text
          = quire_message_get_text (g_ptr_array_index (self->messages, n - 2), &n_bytes);
      qe_message message = { QE_ROLE_USER, text, (gssize)n_bytes };

      g_array_append_val (prompt, message);
    }
  return prompt;
}

static qe_session_id
open_session (QuireConversation *self, GError **error)
{
  qe_session_options options;

  qe_session_options_init (&options);
  quire_cache_choice_get_config (self->cache, &options.cache);
  options.disk_key = self->disk_key;
  return quire_engine_client_open_session (self->client, &options, error);
}

/* ---- Turns ---- */

static void
end_request (QuireConversation *self)
{
  if (self->request == NULL)
    return;
  g_clear_pointer (&self->request, qe_request_unref);
  g_object_notify_by_pspec (G_OBJECT (self), properties[PROP_RUNNING]);
}

/* Asks the engine for the reply that the last two messages are. @keep: messages of the session that stay. */
static void
ask (QuireConversation *self, const QuireTurnSettings *settings, guint keep)
{
  guint n = self->messages->len;
  QuireMessage *user = g_ptr_array_index (self->messages, n - 2);
  QuireMessage *reply = g_ptr_array_index (self->messages, n - 1);
  g_autoptr (GArray) whole = NULL;
  g_autoptr (GError) error = NULL;
  qe_generate_params params;
  gsize n_bytes;
  const char *text = quire_message_get_text (user, &n_bytes);
  qe_message message = { QE_ROLE_USER, text, (gssize)n_bytes };

  if (self->session == 0)
    {
      self->session = open_session (self, &error);
      self->in_step = n == 2;
    }

  if (self->session != 0)
    {
      qe_generate_params_init (&params, quire_engine_client_get_status (self->client)->model);
      params.session = self->session;
      params.sampling = settings->sampling;
      params.max_tokens = settings->max_tokens;
      params.thinking = settings->thinking;
      if (self->in_step)
        {
          params.keep_messages = keep;
          params.messages = &message;
          params.n_messages = 1;
        }
      else
        {
          whole = collect_history (self, n - 2);
          g_array_append_val (whole, message);
          params.whole_history = true;
          params.messages = (const qe_message *)(gpointer)whole->data;
          params.n_messages = whole->len;
        }
      self->request = quire_engine_client_generate (self->client, &params, &error);
    }

  if (self->request == NULL)
    {
      self->in_step = FALSE;
      quire_message_fail (reply, error);
      return;
    }
  self->in_step = TRUE;
  g_object_notify_by_pspec (G_OBJECT (self), properties[PROP_RUNNING]);
}

gboolean
quire_conversation_send (QuireConversation *self, const char *text,
                         const QuireTurnSettings *settings)
{
  guint n = self->messages->len;

  if (self->request != NULL || !quire_engine_client_is_ready (self->client))
    return FALSE;

  if (self->title == NULL)
    {
      self->title = quire_title_from_text (text);
      g_object_notify_by_pspec (G_OBJECT (self), properties[PROP_TITLE]);
    }
  g_ptr_array_add (self->messages, quire_message_new (QE_ROLE_USER, text));
  g_ptr_array_add (self->messages, quire_message_new (QE_ROLE_ASSISTANT, ""));
  g_list_model_items_changed (G_LIST_MODEL (self), n, 0, 2);
  ask (self, settings, QE_KEEP_ALL);
  return TRUE;
}

gboolean
quire_conversation_regenerate (QuireConversation *self, const QuireTurnSettings *settings)
{
  guint n = self->messages->len;
  g_autoptr (GArray) history = NULL;

  if (n < 2 || self->request != NULL || !quire_engine_client_is_ready (self->client))
    return FALSE;

  history = collect_history (self, n - 2);
  g_ptr_array_remove_index (self->messages, n - 1);
  g_ptr_array_add (self->messages, quire_message_new (QE_ROLE_ASSISTANT, ""));
  g_list_model_items_changed (G_LIST_MODEL (self), n - 1, 1, 1);
  ask (self, settings, history->len);
  return TRUE;
}

void
quire_conversation_stop (QuireConversation *self)
{
  if (self->request != NULL)
    qe_request_cancel (self->request);
}

void
quire_conversation_pump (QuireConversation *self)
{
  qe_update update = { 0 };
  QuireMessage *reply;

  if (self->request == NULL || !qe_request_take (self->request, &update))
    return;

  reply = g_ptr_array_index (self->messages, self->messages->len - 1);
  g_object_ref (self);
  quire_message_apply (reply, &update);
  if (update.state == QE_REQUEST_DONE && !counts (reply))
    self->in_step = FALSE;
  if (update.state == QE_REQUEST_DONE)
    end_request (self);
  qe_update_clear (&update);
  g_object_unref (self);
}

void
quire_conversation_close (QuireConversation *self)
{
  if (self->request != NULL)
    {
      QuireMessage *reply = g_ptr_array_index (self->messages, self->messages->len - 1);
      qe_update stopped = { .state = QE_REQUEST_DONE, .finish = QE_FINISH_CANCELLED };

      qe_request_cancel (self->request);
      stopped.receipt = quire_message_get_reply (reply)->receipt;
      quire_message_apply (reply, &stopped);
      end_request (self);
    }
  if (self->session != 0)
    quire_engine_client_close_session (self->client, self->session);
  self->session = 0;
  self->in_step = FALSE;
}

/* ---- The engine's signals ---- */

static void
news_cb (QuireConversation *self)
{
  if (self->request != NULL)
    g_signal_emit (self, news_signal, 0);
}

/* The id belongs to a model that is going: closing it could hit a later session of the same number. */
static void
sessions_lost_cb (QuireConversation *self)
{
  self->session = 0;
  quire_conversation_close (self);
}

/* ---- Object ---- */

static void
quire_conversation_get_property (GObject *object, guint id, GValue *value, GParamSpec *pspec)
{
  QuireConversation *self = QUIRE_CONVERSATION (object);

  switch (id)
    {
    case PROP_TITLE:
      g_value_set_string (value, self->title);
      break;
    case PROP_RUNNING:
      g_value_set_boolean (value, self->request != NULL);
      break;
    case PROP_CACHE:
      g_value_set_int (value, (int)self->cache);
      break;
    default:
      G_OBJECT_WARN_INVALID_PROPERTY_ID (object, id, pspec);
    }
}

static void
quire_conversation_dispose (GObject *object)
{
  QuireConversation *self = QUIRE_CONVERSATION (object);

  if (self->client != NULL)
    quire_conversation_close (self);
  g_clear_object (&self->client);
  G_OBJECT_CLASS (quire_conversation_parent_class)->dispose (object);
}

static void
quire_conversation_finalize (GObject *object)
{
  QuireConversation *self = QUIRE_CONVERSATION (object);

  g_ptr_array_unref (self->messages);
  g_free (self->title);
  g_free (self->disk_key);
  G_OBJECT_CLASS (quire_conversation_parent_class)->finalize (object);
}

static void
quire_conversation_class_init (QuireConversationClass *klass)
{
  GObjectClass *object_class = G_OBJECT_CLASS (klass);

  object_class->get_property = quire_conversation_get_property;
  object_class->dispose = quire_conversation_dispose;
  object_class->finalize = quire_conversation_finalize;
  properties[PROP_TITLE]
      = g_param_spec_string ("title", NULL, NULL, NULL, G_PARAM_READABLE | G_PARAM_STATIC_STRINGS);
  properties[PROP_RUNNING] = g_param_spec_boolean ("running", NULL, NULL, FALSE,
                                                   G_PARAM_READABLE | G_PARAM_STATIC_STRINGS);
  properties[PROP_CACHE]
      = g_param_spec_int ("cache", NULL, NULL, 0, QUIRE_N_CACHE_CHOICES - 1, QUIRE_CACHE_AUTO,
                          G_PARAM_READABLE | G_PARAM_STATIC_STRINGS);
  g_object_class_install_properties (object_class, N_PROPS, properties);
  news_signal = g_signal_new ("news", G_TYPE_FROM_CLASS (klass), G_SIGNAL_RUN_LAST, 0, NULL, NULL,
                              NULL, G_TYPE_NONE, 0);
}

static void
quire_conversation_init (QuireConversation *self)
{
  self->messages = g_ptr_array_new_with_free_func (g_object_unref);
  self->disk_key = g_uuid_string_random ();
}

QuireConversation *
quire_conversation_new (QuireEngineClient *client)
{
  QuireConversation *self = g_object_new (QUIRE_TYPE_CONVERSATION, NULL);

  self->client = g_object_ref (client);
  g_signal_connect_object (client, "news", G_CALLBACK (news_cb), self, G_CONNECT_SWAPPED);
  g_signal_connect_object (client, "sessions-lost", G_CALLBACK (sessions_lost_cb), self,
                           G_CONNECT_SWAPPED);
  return self;
}
