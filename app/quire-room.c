/* quire-room.c: see quire-room.h. */
#include "app/quire-room.h"

#include <glib/gi18n.h>
#include <string.h>

#define MIB (1024 * 1024)

typedef struct
{
  QuireConversation *conversation;
  QuireRoom *room;
  gboolean has_system, has_draft;
} Reading;

void
quire_room_free (QuireRoom *room)
{
  if (room == NULL)
    return;
  g_clear_pointer (&room->turns, g_array_unref);
  g_free (room);
}

static void
reading_free (gpointer data)
{
  Reading *reading = data;

  g_object_unref (reading->conversation);
  quire_room_free (reading->room);
  g_free (reading);
}

static void
add_text (GPtrArray *texts, QuireMessage *message)
{
  gsize n_bytes;
  const char *text = quire_message_get_text (message, &n_bytes);

  g_ptr_array_add (texts, g_utf8_make_valid (text, (gssize)n_bytes));
}

/* What the kernel says is to be had; 0 where it does not. */
static guint64
available_bytes (void)
{
  g_autofree char *text = NULL;
  const char *line;

  if (!g_file_get_contents ("/proc/meminfo", &text, NULL, NULL))
    return 0;
  line = strstr (text, "MemAvailable:");
  return line != NULL ? g_ascii_strtoull (line + strlen ("MemAvailable:"), NULL, 10) * 1024 : 0;
}

static void
plan_raise (QuireRoom *room, const qe_snapshot *snapshot)
{
  guint64 bytes;

  if (room->limit.n_memory >= room->limit.n_model || snapshot == NULL)
    return;
  bytes = (guint64)(room->limit.n_model - room->limit.n_memory) * room->limit.token_bytes;
  room->free_bytes = snapshot->device.memory_total > 0
                         ? snapshot->device.memory_total
                               - MIN (snapshot->device.memory_used, snapshot->device.memory_total)
                         : available_bytes ();
  room->raise_bytes = (bytes + MIB - 1) / MIB * MIB;
  room->raise_to = room->limit.n_model;
}

static void
plan (Reading *reading)
{
  QuireRoom *room = reading->room;
  QuireEngineClient *client = quire_conversation_get_client (reading->conversation);
  const qe_snapshot *snapshot = quire_engine_client_get_snapshot (client);
  QuireMessage *last = quire_conversation_get_last_reply (reading->conversation);

  quire_context_get_limit (quire_engine_client_get_status (client)->model, snapshot,
                           quire_conversation_get_cache_mode (reading->conversation), &room->limit);
  if (last != NULL)
    room->tokens_per_s = quire_message_get_reply (last)->receipt.prefill_tokens_per_s;
  quire_context_plan_drop ((const guint *)(gpointer)room->turns->data, room->turns->len, &room->use,
                           room->limit.n_max, &room->drop);
  quire_context_plan_summary ((const guint *)(gpointer)room->turns->data, room->turns->len,
                              &room->use, room->limit.n_max, &room->summary);
  plan_raise (room, snapshot);
}

static void
counted_cb (GObject *source, GAsyncResult *result, gpointer user_data)
{
  g_autoptr (GTask) task = user_data;
  Reading *reading = g_task_get_task_data (task);
  GError *error = NULL;
  g_autoptr (GArray) counts
      = quire_engine_client_count_list_finish (QUIRE_ENGINE_CLIENT (source), result, &error);
  QuireRoom *room = reading->room;
  guint i = 0;

  if (counts == NULL)
    {
      g_task_return_error (task, error);
      return;
    }
  if (reading->has_system)
    room->use.n_system = g_array_index (counts, guint, i++) + QUIRE_CONTEXT_MESSAGE_TOKENS;
  if (reading->has_draft)
    room->use.n_draft = g_array_index (counts, guint, i++);
  for (; i + 1 < counts->len; i += 2)
    {
      guint n = g_array_index (counts, guint, i) + g_array_index (counts, guint, i + 1)
                + 2 * QUIRE_CONTEXT_MESSAGE_TOKENS;

      g_array_append_val (room->turns, n);
      room->use.n_history += n;
    }
  plan (reading);
  g_task_return_pointer (task, g_steal_pointer (&reading->room), (GDestroyNotify)quire_room_free);
}

void
quire_room_read_async (QuireConversation *conversation, const char *draft,
                       GCancellable *cancellable, GAsyncReadyCallback callback, gpointer user_data)
{
  GTask *task = g_task_new (NULL, cancellable, callback, user_data);
  Reading *reading = g_new0 (Reading, 1);
  g_autoptr (GArray) turns = quire_conversation_dup_turns (conversation);
  g_autoptr (GPtrArray) texts = g_ptr_array_new_with_free_func (g_free);
  const char *system = quire_conversation_get_system (conversation);

  reading->conversation = g_object_ref (conversation);
  reading->room = g_new0 (QuireRoom, 1);
  reading->room->turns = g_array_new (FALSE, FALSE, sizeof (guint));
  reading->has_system = system != NULL;
  reading->has_draft = draft[0] != '\0';
  if (system != NULL)
    g_ptr_array_add (texts, g_strdup (system));
  if (reading->has_draft)
    g_ptr_array_add (texts, g_strdup (draft));
  for (guint i = 0; i < turns->len; i++)
    {
      add_text (texts, g_array_index (turns, QuireTurn, i).user);
      add_text (texts, g_array_index (turns, QuireTurn, i).reply);
    }
  g_ptr_array_add (texts, NULL);
  g_task_set_task_data (task, reading, reading_free);
  quire_engine_client_count_list_async (quire_conversation_get_client (conversation),
                                        (const char *const *)texts->pdata, cancellable, counted_cb,
                                        task);
}

QuireRoom *
quire_room_read_finish (GAsyncResult *result, GError **error)
{
  return g_task_propagate_pointer (G_TASK (result), error);
}

double
quire_room_seconds (const QuireRoom *room, guint n)
{
  return room->tokens_per_s > 0 ? n / room->tokens_per_s : 0;
}

gboolean
quire_room_drop (QuireConversation *conversation, const QuireRoom *room)
{
  return room->drop.n_turns > 0
         && quire_conversation_leave_out (conversation, room->drop.n_turns,
                                          MAX (room->drop.n_read, 1));
}

/* ---- A summary ---- */

static const char question[]
    = "Sum up this chat in at most 200 words, in the language of the chat, as notes for yourself: "
      "what was asked, what was "
      "decided, all names and numbers that matter, and what is still open. Nothing else.";

QuireAside *
quire_room_sum_up (QuireConversation *conversation, const QuireRoom *room, QuireAsideFn done,
                   gpointer user_data)
{
  g_autoptr (GArray) history = g_array_new (FALSE, FALSE, sizeof (qe_message));
  g_autoptr (GArray) turns = quire_conversation_dup_turns (conversation);
  const char *system = quire_conversation_get_system (conversation);
  QuireAsideQuestion q = { .question = question, .max_tokens = QUIRE_SUMMARY_TOKENS_MAX };
  qe_message m = { QE_ROLE_SYSTEM, system, -1 };
  guint n = MIN (room->summary.n_summed, turns->len);

  if (system != NULL)
    g_array_append_val (history, m);
  for (guint i = 0; i < n; i++)
    {
      const QuireTurn *turn = &g_array_index (turns, QuireTurn, i);
      gsize n_bytes;

      m.role = QE_ROLE_USER;
      m.text = quire_message_get_text (turn->user, &n_bytes);
      m.n_bytes = (gssize)n_bytes;
      g_array_append_val (history, m);
      m.role = QE_ROLE_ASSISTANT;
      m.text = quire_message_get_text (turn->reply, &n_bytes);
      m.n_bytes = (gssize)n_bytes;
      g_array_append_val (history, m);
    }
  if (quire_conversation_is_in_step (conversation))
    {
      q.session = quire_conversation_get_session (conversation);
      q.keep_messages = history->len;
    }
  else
    {
      q.history = (const qe_message *)(gpointer)history->data;
      q.n_history = history->len;
    }
  return quire_aside_new (quire_conversation_get_client (conversation), &q, done, user_data);
}

/* @message under another number. */
static QuireStoredMessage *
copy_message (QuireMessage *message, guint seq)
{
  gsize n_bytes;
  const char *text = quire_message_get_text (message, &n_bytes);
  QuireStoredMessage *copy
      = quire_stored_message_new (seq, seq - 1, (int)quire_message_get_role (message),
                                  (int)quire_message_get_state (message), text, n_bytes);

  copy->created = quire_message_get_created (message);
  return copy;
}

QuireHistoryItem *
quire_room_new_chat (QuireConversation *conversation, const QuireRoom *room, const char *summary,
                     guint n_summary, const char *draft, GPtrArray **messages)
{
  const QuireStoredChat *old = quire_history_item_get (quire_conversation_get_item (conversation));
  g_autoptr (GArray) turns = quire_conversation_dup_turns (conversation);
  QuireHistoryItem *item = quire_history_item_new ();
  QuireStoredChat *chat = quire_history_item_edit (item);
  g_autofree char *stripped = g_strstrip (g_strdup (summary));
  QuireChatSettings settings;
  guint seq = 0;

  *messages = g_ptr_array_new_with_free_func ((GDestroyNotify)quire_stored_message_free);
  for (guint i = room->summary.n_summed; i < turns->len; i++)
    {
      g_ptr_array_add (*messages, copy_message (g_array_index (turns, QuireTurn, i).user, ++seq));
      g_ptr_array_add (*messages, copy_message (g_array_index (turns, QuireTurn, i).reply, ++seq));
    }
  /* Not translated: it is the model's. */
  chat->system = g_strdup_printf ("%s%sSummary of the conversation so far:\n%s",
                                  old->system != NULL ? old->system : "",
                                  old->system != NULL ? "\n\n" : "", stripped);
  quire_chat_settings_from_json (old->sampling, &settings);
  settings.left_out = 0;
  settings.n_context = room->use.n_system + n_summary + 2 * QUIRE_CONTEXT_MESSAGE_TOKENS;
  for (guint i = room->summary.n_summed; i < room->turns->len; i++)
    settings.n_context += g_array_index (room->turns, guint, i);
  settings.n_context_at = seq;
  chat->sampling = quire_chat_settings_to_json (&settings);
  /* Translators: the title of a chat that goes on in another one. */
  chat->title = g_strdup_printf (_ ("%s (continued)"), old->title != NULL ? old->title : "");
  chat->title_source = MAX (old->title_source, QUIRE_TITLE_MODEL);
  chat->model_name = g_strdup (old->model_name);
  chat->model_dir = g_strdup (old->model_dir);
  chat->model_digest = g_strdup (old->model_digest);
  chat->cache = old->cache;
  chat->draft = draft[0] != '\0' ? g_strdup (draft) : NULL;
  chat->leaf = seq;
  return item;
}
