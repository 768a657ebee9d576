/* quire-conversation.c: one chat. See quire-conversation.h; its branches are in quire-tree.c.
 *
 * Invariants
 * 1. saving || request != NULL exactly while the last message is a running reply.
 * 2. Messages alternate user, assistant. A turn that does not count, see counts(), is shown but is no part of the
 *    history.
 * 3. in_step: the session's messages are exactly the history. Only then a turn sends its new message alone.
 * 4. The engine is asked for a reply only after the user's message is on the disk, or is known not to get there. */
#include "app/quire-conversation.h"

#include <string.h>

#include "app/quire-aside.h"
#include "app/quire-attachment.h"
#include "app/quire-reading-speed.h"
#include "app/quire-settings.h"
#include "app/quire-title.h"
#include "app/quire-tree.h"

/* A running reply is saved so often, and is pumped at least each quarter of a second. */
#define SAVE_MS 700

typedef enum
{
  ASK_NEW,      /* after the session's messages, of which keep stay */
  ASK_CONTINUE, /* goes on with the reply */
} AskKind;

struct _QuireConversation
{
  GObject parent_instance;

  QuireEngineClient *client;
  QuireHistory *history; /* or NULL */
  QuireHistoryItem *item;
  QuireTree *tree;
  gboolean loaded, loading;
  GCancellable *cancellable;
  qe_session_id session;
  gboolean in_step;
  qe_request *request;
  QuireCause cause; /* why the next turn will not go on from all that is there */
  guint cause_at;

  gboolean saving, stop_asked; /* the turn is on its way to the disk; the user stopped it there */
  QuireTurnSettings settings;  /* of that turn, as the two below */
  AskKind kind;
  guint keep;
  guint save_id;
  QuireAside *title; /* the model is asked for a title; or NULL */
};

enum
{
  PROP_0,
  PROP_TITLE,
  PROP_RUNNING,
  PROP_CACHE,
  PROP_LOADED,
  N_PROPS
};
static GParamSpec *properties[N_PROPS];
enum
{
  NEWS,
  SETTINGS_CHANGED,
  N_SIGNALS
};
static guint signals[N_SIGNALS];

static GType
get_item_type (GListModel *model)
{
  return QUIRE_TYPE_MESSAGE;
}

static guint
get_n_items (GListModel *model)
{
  return quire_tree_get_path (QUIRE_CONVERSATION (model)->tree)->len;
}

static gpointer
get_item (GListModel *model, guint position)
{
  GPtrArray *path = quire_tree_get_path (QUIRE_CONVERSATION (model)->tree);

  if (position >= path->len)
    return NULL;
  return g_object_ref (g_ptr_array_index (path, position));
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
quire_model_dup_digest (const qe_model_info *model)
{
  return g_strdup_printf ("%u-%u-%u-%u-%u-%" G_GUINT64_FORMAT, model->n_layers, model->hidden,
                          model->ffn, model->n_kv_heads, model->vocab, model->weight_bytes);
}

static QuireStoredChat *
stored (QuireConversation *self)
{
  return quire_history_item_edit (self->item);
}

QuireEngineClient *
quire_conversation_get_client (QuireConversation *self)
{
  return self->client;
}

QuireHistory *
quire_conversation_get_history (QuireConversation *self)
{
  return self->history;
}

QuireHistoryItem *
quire_conversation_get_item (QuireConversation *self)
{
  return self->item;
}

const char *
quire_conversation_get_title (QuireConversation *self)
{
  return stored (self)->title;
}

qe_session_id
quire_conversation_get_session (QuireConversation *self)
{
  return self->session;
}

gboolean
quire_conversation_is_running (QuireConversation *self)
{
  return self->saving || self->request != NULL;
}

gboolean
quire_conversation_is_loaded (QuireConversation *self)
{
  return self->loaded;
}

/* Of several, the first in the prompt is the one that costs. */
static void
add_cause (QuireConversation *self, QuireCause cause, guint at)
{
  if (cause < self->cause)
    return;
  self->cause = cause;
  self->cause_at = at;
}

static QuireMessage *
nth (QuireConversation *self, guint i)
{
  return g_ptr_array_index (quire_tree_get_path (self->tree), i);
}

QuireMessage *
quire_conversation_get_last_reply (QuireConversation *self)
{
  guint n = quire_tree_get_path (self->tree)->len;
  QuireMessage *last = n > 0 ? nth (self, n - 1) : NULL;

  return last != NULL && quire_message_get_role (last) == QE_ROLE_ASSISTANT ? last : NULL;
}

/* ---- Keeping ---- */

static QuireStoredMessage *
store (QuireMessage *message)
{
  gsize n_bytes;
  const char *text = quire_message_get_text (message, &n_bytes);
  QuireStoredMessage *out = quire_stored_message_new (
      quire_message_get_seq (message), quire_message_get_parent (message),
      (int)quire_message_get_role (message), (int)quire_message_get_state (message), text, n_bytes);

  out->created = quire_message_get_created (message);
  out->receipt = quire_message_dup_receipt (message);
  return out;
}

/* The conversation's own record. One without messages and draft is not kept, unless it was before. */
static void
save_item (QuireConversation *self)
{
  if (self->history == NULL
      || (quire_tree_get_nodes (self->tree)->len == 0 && stored (self)->draft == NULL
          && quire_history_find (self->history, stored (self)->id) == NULL))
    return;
  quire_history_save (self->history, self->item, NULL, NULL, NULL);
}

static gboolean
save_reply_cb (gpointer user_data)
{
  QuireConversation *self = user_data;
  QuireMessage *reply = quire_conversation_get_last_reply (self);

  self->save_id = 0;
  if (reply != NULL)
    quire_history_save_message (self->history, stored (self)->id, store (reply));
  return G_SOURCE_REMOVE;
}

static void
save_reply_soon (QuireConversation *self)
{
  if (self->history != NULL && self->save_id == 0)
    self->save_id = g_timeout_add (SAVE_MS, save_reply_cb, self);
}

static void
save_reply_now (QuireConversation *self)
{
  g_clear_handle_id (&self->save_id, g_source_remove);
  if (self->history != NULL)
    save_reply_cb (self);
}

static void
loaded_cb (GObject *source, GAsyncResult *result, gpointer user_data)
{
  g_autoptr (QuireConversation) self = user_data;
  g_autoptr (GError) error = NULL;
  g_autoptr (GPtrArray) messages = quire_history_load_finish (result, &error);
  guint n_before = quire_tree_get_path (self->tree)->len;

  if (g_error_matches (error, G_IO_ERROR, G_IO_ERROR_CANCELLED) || self->client == NULL)
    return;
  self->loading = FALSE;
  self->loaded = TRUE;
  for (guint i = 0; messages != NULL && i < messages->len; i++)
    {
      const QuireStoredMessage *m = g_ptr_array_index (messages, i);
      g_autoptr (QuireMessage) message = quire_message_new_stored (
          (qe_role)m->role, (QuireReplyState)m->state, m->text, m->n_bytes, m->created, m->receipt);

      quire_message_set_place (message, m->seq, m->parent);
      quire_tree_add (self->tree, message);
    }
  quire_tree_set_leaf (self->tree, stored (self)->leaf);
  g_list_model_items_changed (G_LIST_MODEL (self), 0, n_before,
                              quire_tree_get_path (self->tree)->len);
  g_object_notify_by_pspec (G_OBJECT (self), properties[PROP_LOADED]);
}

void
quire_conversation_load (QuireConversation *self)
{
  if (self->loaded || self->loading)
    return;
  self->loading = TRUE;
  quire_history_load_async (self->history, stored (self)->id, self->cancellable, loaded_cb,
                            g_object_ref (self));
}

gboolean
quire_conversation_set_title (QuireConversation *self, const char *title, QuireTitleSource source)
{
  if (!quire_history_item_set_title (self->item, title, source))
    return FALSE;
  save_item (self);
  return TRUE;
}

void
quire_conversation_set_draft (QuireConversation *self, const char *draft)
{
  const char *wanted = draft != NULL && draft[0] != '\0' ? draft : NULL;

  if (g_strcmp0 (stored (self)->draft, wanted) == 0)
    return;
  g_free (stored (self)->draft);
  stored (self)->draft = g_strdup (wanted);
  save_item (self);
}

void
quire_conversation_set_system (QuireConversation *self, const char *system)
{
  const char *wanted = system != NULL && system[0] != '\0' ? system : NULL;

  if (g_strcmp0 (stored (self)->system, wanted) == 0)
    return;
  g_free (stored (self)->system);
  stored (self)->system = g_strdup (wanted);
  self->in_step = FALSE;
  add_cause (self, QUIRE_CAUSE_SYSTEM, 0);
  save_item (self);
  g_signal_emit (self, signals[SETTINGS_CHANGED], 0);
}

const char *
quire_conversation_get_system (QuireConversation *self)
{
  return stored (self)->system;
}

void
quire_conversation_get_settings (QuireConversation *self, QuireChatSettings *out)
{
  quire_chat_settings_from_json (stored (self)->sampling, out);
}

static void
keep_settings (QuireConversation *self, const QuireChatSettings *settings)
{
  g_free (stored (self)->sampling);
  stored (self)->sampling = quire_chat_settings_to_json (settings);
  save_item (self);
  g_signal_emit (self, signals[SETTINGS_CHANGED], 0);
}

void
quire_conversation_set_settings (QuireConversation *self, const QuireChatSettings *settings)
{
  QuireChatSettings before, wanted = *settings;

  quire_conversation_get_settings (self, &before);
  wanted.left_out = before.left_out;
  wanted.n_context = before.n_context;
  wanted.n_context_at = before.n_context_at;
  keep_settings (self, &wanted);
}

guint
quire_conversation_get_left_out (QuireConversation *self)
{
  QuireChatSettings settings;

  quire_conversation_get_settings (self, &settings);
  return settings.left_out;
}

/* ---- What counts ---- */

/* A turn that failed, or was stopped before a word came, left nothing that later turns build on. */
static gboolean
counts (QuireMessage *reply)
{
  gsize n_bytes;
  QuireReplyState state = quire_message_get_state (reply);

  quire_message_get_text (reply, &n_bytes);
  return state != QUIRE_REPLY_FAILED
         && ((state != QUIRE_REPLY_STOPPED && state != QUIRE_REPLY_INTERRUPTED) || n_bytes > 0);
}

static void
append_message (GArray *history, QuireMessage *message)
{
  gsize n_bytes;
  const char *text = quire_message_get_text (message, &n_bytes);
  qe_message m = { quire_message_get_role (message), text, (gssize)n_bytes };

  g_array_append_val (history, m);
}

static gboolean
turn_counts (QuireConversation *self, guint i, guint left_out)
{
  return counts (nth (self, i + 1)) && quire_message_get_seq (nth (self, i + 1)) > left_out;
}

/* The system prompt and the messages that count, each a pair of user and assistant, up to index @end. Text is borrowed. */
static GArray *
collect_history (QuireConversation *self, guint end)
{
  GArray *history = g_array_new (FALSE, TRUE, sizeof (qe_message));
  guint left_out = quire_conversation_get_left_out (self);

  if (stored (self)->system != NULL)
    {
      qe_message system = { QE_ROLE_SYSTEM, stored (self)->system, -1 };

      g_array_append_val (history, system);
    }
  for (guint i = 0; i + 1 < end; i += 2)
    {
      if (!turn_counts (self, i, left_out))
        continue;
      append_message (history, nth (self, i));
      append_message (history, nth (self, i + 1));
    }
  return history;
}

GArray *
quire_conversation_dup_turns (QuireConversation *self)
{
  GArray *turns = g_array_new (FALSE, FALSE, sizeof (QuireTurn));
  guint left_out = quire_conversation_get_left_out (self);

  for (guint i = 0; i + 1 < quire_tree_get_path (self->tree)->len; i += 2)
    {
      QuireTurn turn = { nth (self, i), nth (self, i + 1) };

      if (turn_counts (self, i, left_out))
        g_array_append_val (turns, turn);
    }
  return turns;
}

gboolean
quire_conversation_leave_out (QuireConversation *self, guint n, guint n_context)
{
  g_autoptr (GArray) turns = quire_conversation_dup_turns (self);
  QuireChatSettings settings;

  if (quire_conversation_is_running (self) || n > turns->len)
    return FALSE;
  quire_conversation_get_settings (self, &settings);
  settings.left_out
      = n > 0 ? quire_message_get_seq (g_array_index (turns, QuireTurn, n - 1).reply) : 0;
  settings.n_context = n_context;
  settings.n_context_at = stored (self)->leaf;
  self->in_step = FALSE;
  add_cause (self, QUIRE_CAUSE_LEFT_OUT, 0);
  keep_settings (self, &settings);
  return TRUE;
}

gboolean
quire_conversation_is_in_step (QuireConversation *self)
{
  return self->in_step && self->session != 0;
}

/* ---- The cache ---- */

QuireCacheChoice
quire_conversation_get_cache (QuireConversation *self)
{
  int cache = stored (self)->cache;

  /* It may be a newer version's. */
  return cache < QUIRE_N_CACHE_CHOICES ? (QuireCacheChoice)cache : QUIRE_CACHE_AUTO;
}

gboolean
quire_conversation_set_cache (QuireConversation *self, QuireCacheChoice choice, GError **error)
{
  qe_cache_config config;

  if (choice == quire_conversation_get_cache (self))
    return TRUE;
  if (quire_conversation_is_running (self))
    {
      g_set_error_literal (error, QE_ERROR, QE_ERROR_BUSY, "A reply is running.");
      return FALSE;
    }
  quire_cache_choice_get_config (choice, &config);
  if (self->session != 0
      && !quire_engine_client_set_session_cache (self->client, self->session, &config, error))
    return FALSE;
  stored (self)->cache = (int)choice;
  save_item (self);
  g_object_notify_by_pspec (G_OBJECT (self), properties[PROP_CACHE]);
  return TRUE;
}

qe_cache_mode
quire_conversation_get_cache_mode (QuireConversation *self)
{
  const qe_session_view *view = quire_engine_client_find_session (self->client, self->session);

  if (view != NULL)
    return view->mode;
  return quire_cache_choice_resolve (quire_conversation_get_cache (self),
                                     quire_engine_client_get_plan (self->client));
}

guint
quire_conversation_get_n_tokens (QuireConversation *self)
{
  const qe_session_view *view = quire_engine_client_find_session (self->client, self->session);

  return view != NULL ? view->n_tokens : 0;
}

/* A reply's figures say where it begins: behind its prompt, of which the user's message is the end. Those of earlier replies count
 * from the same beginning as long as they are in order. */
QuireMessage *
quire_conversation_find_token (QuireConversation *self, guint token)
{
  guint left_out = quire_conversation_get_left_out (self), end = G_MAXUINT;
  QuireMessage *user = NULL; /* the first one whose reply is known */

  for (guint i = quire_tree_get_path (self->tree)->len; i > 0; i--)
    {
      QuireMessage *message = nth (self, i - 1);
      const qe_receipt *r = &quire_message_get_reply (message)->receipt;

      if (quire_message_get_seq (message) <= left_out)
        return NULL;
      if (quire_message_get_role (message) == QE_ROLE_USER)
        {
          user = message;
          continue;
        }
      /* One that runs has no figures yet. */
      if (r->n_prompt == 0 && end == G_MAXUINT)
        continue;
      if (r->n_prompt == 0 || r->n_prompt >= end)
        return NULL;
      if (token >= r->n_prompt + r->n_generated && user != NULL)
        return user;
      if (token >= r->n_prompt)
        return message;
      end = r->n_prompt;
    }
  return end != G_MAXUINT ? user : NULL;
}

guint
quire_conversation_get_n_context (QuireConversation *self)
{
  guint n_tokens = quire_conversation_get_n_tokens (self);
  QuireMessage *last = quire_conversation_get_last_reply (self);
  const qe_receipt *receipt = last != NULL ? &quire_message_get_reply (last)->receipt : NULL;
  QuireChatSettings settings;

  /* The session still has what is left out, until the next turn; a chat that begins with a summary has none. */
  quire_conversation_get_settings (self, &settings);
  if (settings.n_context > 0 && settings.n_context_at == stored (self)->leaf)
    return settings.n_context;

  return n_tokens == 0 && receipt != NULL ? receipt->n_prompt + receipt->n_generated : n_tokens;
}

GArray *
quire_conversation_dup_last_prompt (QuireConversation *self)
{
  guint n = quire_tree_get_path (self->tree)->len;
  GArray *prompt = collect_history (self, n >= 2 ? n - 2 : 0);

  if (n >= 2)
    append_message (prompt, nth (self, n - 2));
  else
    g_array_set_size (prompt, 0);
  return prompt;
}

GArray *
quire_conversation_dup_prompt_of (QuireConversation *self, guint seq)
{
  GPtrArray *path = quire_tree_get_path (self->tree);

  for (guint i = 1; seq != 0 && i < path->len; i += 2)
    if (quire_message_get_seq (nth (self, i)) == seq)
      {
        GArray *prompt = collect_history (self, i - 1);

        append_message (prompt, nth (self, i - 1));
        return prompt;
      }
  return quire_conversation_dup_last_prompt (self);
}

static qe_session_id
open_session (QuireConversation *self, GError **error)
{
  qe_session_options options;

  qe_session_options_init (&options);
  quire_cache_choice_get_config (quire_conversation_get_cache (self), &options.cache);
  options.disk_key = stored (self)->id;
  return quire_engine_client_open_session (self->client, &options, error);
}

void
quire_conversation_warm (QuireConversation *self)
{
  if (self->session != 0 || !self->loaded || quire_conversation_is_running (self)
      || quire_tree_get_path (self->tree)->len == 0 || !quire_engine_client_is_ready (self->client))
    return;
  self->session = open_session (self, NULL);
  self->in_step = FALSE;
}

/* ---- Turns ---- */

static void
notify_running (QuireConversation *self)
{
  quire_history_item_set_running (self->item, quire_conversation_is_running (self));
  g_object_notify_by_pspec (G_OBJECT (self), properties[PROP_RUNNING]);
}

static void
end_request (QuireConversation *self)
{
  if (!quire_conversation_is_running (self))
    return;
  g_clear_pointer (&self->request, qe_request_unref);
  self->saving = FALSE;
  notify_running (self);
}

/* ---- The title ---- */

static void
title_cb (const char *text, const qe_receipt *receipt, gpointer user_data)
{
  QuireConversation *self = user_data;
  GString *about = g_string_new (NULL);
  g_autofree char *title = NULL;

  g_clear_pointer (&self->title, quire_aside_free);
  for (guint i = 0; i < MIN (quire_tree_get_path (self->tree)->len, 2); i++)
    g_string_append_printf (about, "%s\n", quire_message_get_text (nth (self, i), NULL));
  if (text != NULL)
    title = quire_title_from_reply (text, about->str);
  g_string_free (about, TRUE);
  /* Else the first words stay. */
  if (title != NULL)
    quire_conversation_set_title (self, title, QUIRE_TITLE_MODEL);
}

/* After the first reply, on a fork of the session: it costs the conversation nothing. In a mode that keeps nothing between
 * turns it would cost all of it, and the first words have to do. */
static void
ask_title (QuireConversation *self)
{
  qe_cache_mode mode = quire_conversation_get_cache_mode (self);
  const QuireAsideQuestion question = { .session = self->session,
                                        .keep_messages = QE_KEEP_ALL,
                                        .question = quire_title_question (),
                                        .max_tokens = QUIRE_TITLE_TOKENS_MAX,
                                        .yields = TRUE };

  if (mode == QE_CACHE_REBUILD || mode == QE_CACHE_PAGED)
    return;
  if (!self->settings.auto_title || self->title != NULL || self->session == 0 || !self->in_step
      || stored (self)->title_source != QUIRE_TITLE_WORDS
      || quire_tree_get_path (self->tree)->len != 2)
    return;
  self->title = quire_aside_new (self->client, &question, title_cb, self);
}

/* It is the model that writes from here on. */
static void
record_model (QuireConversation *self)
{
  const qe_model_info *model = quire_engine_client_get_status (self->client)->model;
  QuireStoredChat *chat = stored (self);

  if (model == NULL)
    return;
  g_free (chat->model_name);
  g_free (chat->model_dir);
  g_free (chat->model_digest);
  chat->model_name = quire_model_dup_name (model);
  chat->model_dir = g_strdup (model->dir);
  chat->model_digest = quire_model_dup_digest (model);
}

/* The messages of the prompt: the new one alone where the session is in step, else all. Text is borrowed. */
static GArray *
collect_prompt (QuireConversation *self, qe_generate_params *params)
{
  guint n = quire_tree_get_path (self->tree)->len;
  GArray *prompt;

  if (self->in_step && self->kind == ASK_NEW)
    {
      prompt = collect_history (self, self->keep == 0 ? 2 : 0);
      g_array_set_size (prompt, self->keep == 0 && stored (self)->system != NULL ? 1 : 0);
      params->keep_messages = self->keep;
    }
  else
    {
      prompt = collect_history (self, n - 2);
      params->whole_history = true;
    }
  append_message (prompt, nth (self, n - 2));
  if (self->kind == ASK_CONTINUE)
    {
      append_message (prompt, nth (self, n - 1));
      params->continue_reply = true;
    }
  params->messages = (const qe_message *)(gpointer)prompt->data;
  params->n_messages = prompt->len;
  return prompt;
}

/* Asks the engine for the reply that the last two messages are. */
static void
ask (QuireConversation *self)
{
  QuireMessage *reply = quire_conversation_get_last_reply (self);
  g_autoptr (GArray) prompt = NULL;
  g_autoptr (GError) error = NULL;
  qe_generate_params params;

  if (self->session == 0)
    {
      self->session = open_session (self, &error);
      self->in_step = quire_tree_get_path (self->tree)->len == 2;
      self->keep = 0;
    }
  if (self->session != 0)
    {
      qe_generate_params_init (&params, quire_engine_client_get_status (self->client)->model);
      params.session = self->session;
      params.sampling = self->settings.sampling;
      params.max_tokens = self->settings.max_tokens;
      params.thinking = self->settings.thinking;
      prompt = collect_prompt (self, &params);
      quire_message_set_saved (reply);
      quire_message_set_cause (reply, self->cause, self->cause_at);
      self->cause = QUIRE_CAUSE_NONE;
      self->request = quire_engine_client_generate (self->client, &params, &error);
    }

  if (self->request == NULL)
    {
      self->in_step = FALSE;
      quire_message_fail (reply, error);
      save_reply_now (self);
      end_request (self);
      return;
    }
  self->in_step = TRUE;
  self->saving = FALSE;
}

static void
turn_saved_cb (GObject *source, GAsyncResult *result, gpointer user_data)
{
  g_autoptr (QuireConversation) self = user_data;

  /* What could not be saved shows as the history's trouble; the answer is worth having all the same. */
  quire_history_save_finish (result, NULL);
  if (!self->saving || self->client == NULL)
    return;
  if (self->stop_asked || !quire_engine_client_is_ready (self->client))
    {
      quire_message_end (quire_conversation_get_last_reply (self), QUIRE_REPLY_STOPPED);
      self->in_step = FALSE;
      save_reply_now (self);
      end_request (self);
      return;
    }
  ask (self);
}

/* The last two messages of the path are a new turn of which the last @n_new are new: save, then ask. */
static void
begin_turn (QuireConversation *self, guint n_new, AskKind kind, guint keep,
            const QuireTurnSettings *settings)
{
  guint n = quire_tree_get_path (self->tree)->len;
  QuireStoredChat *chat = stored (self);

  self->settings = *settings;
  self->kind = kind;
  self->keep = keep;
  self->saving = TRUE;
  self->stop_asked = FALSE;
  chat->updated = g_get_real_time ();
  chat->leaf = quire_message_get_seq (nth (self, n - 1));
  if (settings->asked_us != 0)
    quire_message_set_began (nth (self, n - 1), settings->asked_us);
  record_model (self);
  if (self->history == NULL)
    ask (self);
  else
    {
      GPtrArray *messages
          = g_ptr_array_new_with_free_func ((GDestroyNotify)quire_stored_message_free);

      for (guint i = n - n_new; i < n; i++)
        g_ptr_array_add (messages, store (nth (self, i)));
      quire_history_save (self->history, self->item, messages, turn_saved_cb, g_object_ref (self));
    }
  quire_history_item_changed (self->item);
  notify_running (self);
}

static gboolean
can_begin (QuireConversation *self)
{
  return self->loaded && !quire_conversation_is_running (self)
         && quire_engine_client_is_ready (self->client);
}

static void
add_message (QuireConversation *self, qe_role role, const char *text)
{
  g_autoptr (QuireMessage) message = quire_message_new (role, text);
  GPtrArray *path = quire_tree_get_path (self->tree);
  guint parent = path->len > 0 ? quire_message_get_seq (nth (self, path->len - 1)) : 0;

  quire_message_set_place (message, quire_tree_next_seq (self->tree), parent);
  quire_tree_push (self->tree, message);
}

gboolean
quire_conversation_send (QuireConversation *self, const char *text,
                         const QuireTurnSettings *settings)
{
  guint n = quire_tree_get_path (self->tree)->len;

  if (!can_begin (self))
    return FALSE;

  if (stored (self)->title_source == QUIRE_TITLE_NONE)
    {
      const char *written;
      gsize n_written;
      g_autoptr (GPtrArray) files
          = quire_attachments_split (text, strlen (text), &written, &n_written);
      gboolean blank = written[strspn (written, " \t\n")] == '\0';
      g_autofree char *title = quire_title_from_text (
          blank && files->len > 0 ? ((QuireAttachment *)g_ptr_array_index (files, 0))->name
                                  : written);

      quire_history_item_set_title (self->item, title, QUIRE_TITLE_WORDS);
    }
  g_clear_pointer (&stored (self)->draft, g_free);
  add_message (self, QE_ROLE_USER, text);
  add_message (self, QE_ROLE_ASSISTANT, "");
  g_list_model_items_changed (G_LIST_MODEL (self), n, 0, 2);
  begin_turn (self, 2, ASK_NEW, QE_KEEP_ALL, settings);
  return TRUE;
}

gboolean
quire_conversation_regenerate (QuireConversation *self, const QuireTurnSettings *settings)
{
  guint n = quire_tree_get_path (self->tree)->len;
  g_autoptr (GArray) history = NULL;
  QuireMessage *old = quire_conversation_get_last_reply (self);

  if (n < 2 || old == NULL || !can_begin (self))
    return FALSE;

  history = collect_history (self, n - 2);
  if (counts (old))
    {
      quire_tree_cut (self->tree, n - 1);
      add_message (self, QE_ROLE_ASSISTANT, "");
    }
  else
    {
      /* What said nothing is no version to go back to. */
      g_autoptr (QuireMessage) again = quire_message_new (QE_ROLE_ASSISTANT, "");

      quire_message_set_place (again, quire_message_get_seq (old), quire_message_get_parent (old));
      quire_tree_replace (self->tree, old, again);
    }
  g_list_model_items_changed (G_LIST_MODEL (self), n - 1, 1, 1);
  add_cause (self, QUIRE_CAUSE_REGENERATED, 0);
  begin_turn (self, 1, ASK_NEW, history->len, settings);
  return TRUE;
}

gboolean
quire_conversation_continue (QuireConversation *self, const QuireTurnSettings *settings)
{
  guint n = quire_tree_get_path (self->tree)->len;
  QuireMessage *old = quire_conversation_get_last_reply (self);

  if (n < 2 || old == NULL || !quire_message_can_continue (old) || !can_begin (self))
    return FALSE;

  quire_tree_cut (self->tree, n - 1);
  add_message (self, QE_ROLE_ASSISTANT, quire_message_get_text (old, NULL));
  g_list_model_items_changed (G_LIST_MODEL (self), n - 1, 1, 1);
  begin_turn (self, 1, ASK_CONTINUE, 0, settings);
  return TRUE;
}

gboolean
quire_conversation_edit (QuireConversation *self, QuireMessage *message, const char *text,
                         const QuireTurnSettings *settings)
{
  guint n = quire_tree_get_path (self->tree)->len, at;
  g_autoptr (GArray) history = NULL;

  if (!can_begin (self) || quire_message_get_role (message) != QE_ROLE_USER
      || !g_ptr_array_find (quire_tree_get_path (self->tree), message, &at))
    return FALSE;

  history = collect_history (self, at);
  quire_tree_cut (self->tree, at);
  add_message (self, QE_ROLE_USER, text);
  add_message (self, QE_ROLE_ASSISTANT, "");
  g_list_model_items_changed (G_LIST_MODEL (self), at, n - at, 2);
  add_cause (self, QUIRE_CAUSE_EDITED, at + 1);
  begin_turn (self, 2, ASK_NEW, history->len, settings);
  return TRUE;
}

gboolean
quire_conversation_flip (QuireConversation *self, QuireMessage *message, int by)
{
  guint n = quire_tree_get_path (self->tree)->len, at, n_new;

  if (quire_conversation_is_running (self) || !quire_tree_flip (self->tree, message, by, &at))
    return FALSE;
  n_new = quire_tree_get_path (self->tree)->len;
  self->in_step = FALSE;
  add_cause (self, QUIRE_CAUSE_FLIPPED, 0);
  stored (self)->leaf = quire_message_get_seq (nth (self, n_new - 1));
  g_list_model_items_changed (G_LIST_MODEL (self), at, n - at, n_new - at);
  save_item (self);
  return TRUE;
}

void
quire_conversation_stop (QuireConversation *self)
{
  self->stop_asked = TRUE;
  if (self->request != NULL)
    qe_request_cancel (self->request);
}

void
quire_conversation_pump (QuireConversation *self)
{
  qe_update update = { 0 };
  QuireMessage *reply;

  if (self->request == NULL)
    return;
  if (!qe_request_take (self->request, &update))
    {
      qe_update_clear (&update);
      return;
    }

  reply = quire_conversation_get_last_reply (self);
  g_object_ref (self);
  quire_message_apply (reply, &update);
  if (update.state == QE_REQUEST_DONE && !counts (reply))
    self->in_step = FALSE;
  if (update.state == QE_REQUEST_DONE)
    {
      quire_reading_speed_note (self->client, &update.receipt);
      save_reply_now (self);
      /* The frame with the words of a short one is still to come, and with it the last figure. */
      if (quire_message_get_reply (reply)->shown_ms <= 0)
        save_reply_soon (self);
      end_request (self);
      if (update.finish == QE_FINISH_STOP || update.finish == QE_FINISH_LENGTH)
        ask_title (self);
    }
  else if (update.n_text > 0)
    save_reply_soon (self);
  qe_update_clear (&update);
  g_object_unref (self);
}

static void
close_as (QuireConversation *self, QuireReplyState state)
{
  /* What it said last is kept too. */
  quire_conversation_pump (self);
  if (quire_conversation_is_running (self))
    {
      if (self->request != NULL)
        qe_request_cancel (self->request);
      quire_message_end (quire_conversation_get_last_reply (self), state);
      save_reply_now (self);
      end_request (self);
    }
  g_clear_pointer (&self->title, quire_aside_free);
  if (self->session != 0)
    quire_engine_client_close_session (self->client, self->session);
  self->session = 0;
  self->in_step = FALSE;
}

void
quire_conversation_close (QuireConversation *self)
{
  close_as (self, QUIRE_REPLY_STOPPED);
}

void
quire_conversation_interrupt (QuireConversation *self)
{
  close_as (self, QUIRE_REPLY_INTERRUPTED);
}

/* ---- The engine's signals ---- */

static void
news_cb (QuireConversation *self)
{
  if (self->request != NULL)
    g_signal_emit (self, signals[NEWS], 0);
}

/* The id belongs to a model that is going: closing it could hit a later session of the same number. */
static void
sessions_lost_cb (QuireConversation *self)
{
  self->session = 0;
  quire_conversation_close (self);
}

static void
item_changed_cb (QuireConversation *self)
{
  g_object_notify_by_pspec (G_OBJECT (self), properties[PROP_TITLE]);
}

/* ---- Object ---- */

static void
quire_conversation_get_property (GObject *object, guint id, GValue *value, GParamSpec *pspec)
{
  QuireConversation *self = QUIRE_CONVERSATION (object);

  switch (id)
    {
    case PROP_TITLE:
      g_value_set_string (value, quire_conversation_get_title (self));
      break;
    case PROP_RUNNING:
      g_value_set_boolean (value, quire_conversation_is_running (self));
      break;
    case PROP_CACHE:
      g_value_set_int (value, (int)quire_conversation_get_cache (self));
      break;
    case PROP_LOADED:
      g_value_set_boolean (value, self->loaded);
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
  g_cancellable_cancel (self->cancellable);
  g_clear_handle_id (&self->save_id, g_source_remove);
  g_clear_object (&self->client);
  G_OBJECT_CLASS (quire_conversation_parent_class)->dispose (object);
}

static void
quire_conversation_finalize (GObject *object)
{
  QuireConversation *self = QUIRE_CONVERSATION (object);

  g_clear_object (&self->history);
  g_clear_object (&self->item);
  g_object_unref (self->cancellable);
  quire_tree_free (self->tree);
  G_OBJECT_CLASS (quire_conversation_parent_class)->finalize (object);
}

static void
quire_conversation_class_init (QuireConversationClass *klass)
{
  GObjectClass *object_class = G_OBJECT_CLASS (klass);
  static const char *names[N_SIGNALS] = { "news", "settings-changed" };

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
  properties[PROP_LOADED] = g_param_spec_boolean ("loaded", NULL, NULL, FALSE,
                                                  G_PARAM_READABLE | G_PARAM_STATIC_STRINGS);
  g_object_class_install_properties (object_class, N_PROPS, properties);
  for (int i = 0; i < N_SIGNALS; i++)
    signals[i] = g_signal_new (names[i], G_TYPE_FROM_CLASS (klass), G_SIGNAL_RUN_LAST, 0, NULL,
                               NULL, NULL, G_TYPE_NONE, 0);
}

static void
quire_conversation_init (QuireConversation *self)
{
  self->tree = quire_tree_new ();
  self->cancellable = g_cancellable_new ();
}

QuireConversation *
quire_conversation_new_kept (QuireEngineClient *client, QuireHistory *history,
                             QuireHistoryItem *item)
{
  QuireConversation *self = g_object_new (QUIRE_TYPE_CONVERSATION, NULL);

  self->client = g_object_ref (client);
  self->history = history != NULL ? g_object_ref (history) : NULL;
  self->item = item != NULL ? g_object_ref (item) : quire_history_item_new ();
  self->loaded = item == NULL;
  g_signal_connect_object (self->item, "changed", G_CALLBACK (item_changed_cb), self,
                           G_CONNECT_SWAPPED);
  g_signal_connect_object (client, "news", G_CALLBACK (news_cb), self, G_CONNECT_SWAPPED);
  g_signal_connect_object (client, "sessions-lost", G_CALLBACK (sessions_lost_cb), self,
                           G_CONNECT_SWAPPED);
  return self;
}

QuireConversation *
quire_conversation_new (QuireEngineClient *client)
{
  return quire_conversation_new_kept (client, NULL, NULL);
}
