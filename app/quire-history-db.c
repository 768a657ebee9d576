/* quire-history-db.c: reads and writes conversations. See quire-history-db.h; opening is in quire-history-schema.c.
 *
 * Reading never trusts a row: a value of the wrong kind gets a default, and where a page of the file is damaged, rows
 * before and behind it are read from both ends. */
#include "app/quire-history-db.h"

#include <string.h>

#include "app/quire-history-private.h"
#include "app/quire-message.h"

/* ---- Records ---- */

QuireStoredChat *
quire_stored_chat_copy (const QuireStoredChat *chat)
{
  QuireStoredChat *copy = g_memdup2 (chat, sizeof *chat);

  copy->id = g_strdup (chat->id);
  copy->title = g_strdup (chat->title);
  copy->model_name = g_strdup (chat->model_name);
  copy->model_dir = g_strdup (chat->model_dir);
  copy->model_digest = g_strdup (chat->model_digest);
  copy->system = g_strdup (chat->system);
  copy->sampling = g_strdup (chat->sampling);
  copy->draft = g_strdup (chat->draft);
  return copy;
}

void
quire_stored_chat_clear (QuireStoredChat *chat)
{
  g_clear_pointer (&chat->id, g_free);
  g_clear_pointer (&chat->title, g_free);
  g_clear_pointer (&chat->model_name, g_free);
  g_clear_pointer (&chat->model_dir, g_free);
  g_clear_pointer (&chat->model_digest, g_free);
  g_clear_pointer (&chat->system, g_free);
  g_clear_pointer (&chat->sampling, g_free);
  g_clear_pointer (&chat->draft, g_free);
}

void
quire_stored_chat_free (QuireStoredChat *chat)
{
  quire_stored_chat_clear (chat);
  g_free (chat);
}

QuireStoredMessage *
quire_stored_message_new (guint seq, guint parent, int role, int state, const char *text,
                          gsize n_bytes)
{
  QuireStoredMessage *message = g_new0 (QuireStoredMessage, 1);

  message->seq = seq;
  message->parent = parent;
  message->role = role;
  message->state = state;
  message->text = g_malloc (n_bytes + 1);
  memcpy (message->text, text, n_bytes);
  message->text[n_bytes] = '\0';
  message->n_bytes = n_bytes;
  message->created = g_get_real_time ();
  return message;
}

void
quire_stored_message_free (QuireStoredMessage *message)
{
  g_free (message->text);
  g_free (message->receipt);
  g_free (message);
}

/* ---- Statements ---- */

static sqlite3_stmt *
prepare (QuireHistoryDb *db, const char *sql, GError **error)
{
  sqlite3_stmt *statement = NULL;
  int rc = sqlite3_prepare_v2 (db->sqlite, sql, -1, &statement, NULL);

  if (rc != SQLITE_OK)
    quire_history_set_error (db->sqlite, rc, "The history", error);
  return statement;
}

/* Runs a statement that returns nothing, and frees it. */
static gboolean
finish (QuireHistoryDb *db, sqlite3_stmt *statement, GError **error)
{
  int rc;

  if (statement == NULL)
    return FALSE;
  rc = sqlite3_step (statement);
  if (rc != SQLITE_DONE)
    quire_history_set_error (db->sqlite, rc, "The history", error);
  sqlite3_finalize (statement);
  return rc == SQLITE_DONE;
}

static void
bind_text (sqlite3_stmt *statement, int i, const char *text)
{
  if (text != NULL)
    sqlite3_bind_text (statement, i, text, -1, SQLITE_STATIC);
}

/* Returns: owned; NULL for what is no text, or empty. */
static char *
dup_column (sqlite3_stmt *statement, int i)
{
  const char *text = (const char *)sqlite3_column_text (statement, i);

  return text != NULL && text[0] != '\0' ? g_utf8_make_valid (text, -1) : NULL;
}

/* ---- Writing ---- */

static gboolean
put_chat (QuireHistoryDb *db, const QuireStoredChat *chat, GError **error)
{
  sqlite3_stmt *s = prepare (
      db,
      "INSERT INTO chat (id, title, title_source, model_name, model_dir, model_digest, cache,"
      " system, sampling, created, updated, pinned, deleted, tab, front, draft, leaf,"
      " kind) VALUES (?1,?2,?3,?4,?5,?6,?7,?8,?9,?10,?11,?12,?13,?14,?15,?16,?17,?18)"
      " ON CONFLICT (id) DO UPDATE SET title=?2, title_source=?3, model_name=?4, model_dir=?5,"
      " model_digest=?6, cache=?7, system=?8, sampling=?9, created=?10, updated=?11, pinned=?12,"
      " deleted=?13, tab=?14, front=?15, draft=?16, leaf=?17, kind=?18",
      error);

  if (s == NULL)
    return FALSE;
  bind_text (s, 1, chat->id);
  bind_text (s, 2, chat->title);
  sqlite3_bind_int (s, 3, (int)chat->title_source);
  bind_text (s, 4, chat->model_name);
  bind_text (s, 5, chat->model_dir);
  bind_text (s, 6, chat->model_digest);
  sqlite3_bind_int (s, 7, chat->cache);
  bind_text (s, 8, chat->system);
  bind_text (s, 9, chat->sampling);
  sqlite3_bind_int64 (s, 10, chat->created);
  sqlite3_bind_int64 (s, 11, chat->updated);
  sqlite3_bind_int (s, 12, chat->pinned);
  sqlite3_bind_int64 (s, 13, chat->deleted);
  sqlite3_bind_int (s, 14, chat->tab);
  sqlite3_bind_int (s, 15, chat->front);
  bind_text (s, 16, chat->draft);
  sqlite3_bind_int64 (s, 17, chat->leaf);
  sqlite3_bind_int (s, 18, (int)chat->kind);
  return finish (db, s, error);
}

static gboolean
put_message (QuireHistoryDb *db, const char *id, const QuireStoredMessage *m, GError **error)
{
  sqlite3_stmt *s
      = prepare (db,
                 "INSERT INTO message (chat, seq, parent, role, state, created, text)"
                 " VALUES (?1,?2,?3,?4,?5,?6,?7)"
                 " ON CONFLICT (chat, seq) DO UPDATE SET parent=?3, role=?4, state=?5, text=?7",
                 error);

  if (s == NULL)
    return FALSE;
  bind_text (s, 1, id);
  sqlite3_bind_int64 (s, 2, m->seq);
  sqlite3_bind_int64 (s, 3, m->parent);
  sqlite3_bind_int (s, 4, m->role);
  sqlite3_bind_int (s, 5, m->state);
  sqlite3_bind_int64 (s, 6, m->created);
  sqlite3_bind_text64 (s, 7, m->text, m->n_bytes, SQLITE_STATIC, SQLITE_UTF8);
  if (!finish (db, s, error))
    return FALSE;
  if (m->receipt == NULL)
    return TRUE;

  s = prepare (db, "INSERT OR REPLACE INTO receipt (chat, seq, figures) VALUES (?1,?2,?3)", error);
  if (s == NULL)
    return FALSE;
  bind_text (s, 1, id);
  sqlite3_bind_int64 (s, 2, m->seq);
  bind_text (s, 3, m->receipt);
  return finish (db, s, error);
}

static gboolean
begin (QuireHistoryDb *db, GError **error)
{
  if (!db->read_only)
    return quire_history_exec (db->sqlite, "BEGIN IMMEDIATE", error);
  g_set_error_literal (error, QUIRE_HISTORY_ERROR, QUIRE_HISTORY_ERROR_READ_ONLY,
                       "The history was written by a newer version");
  return FALSE;
}

static gboolean
end (QuireHistoryDb *db, gboolean ok, GError **error)
{
  if (ok && quire_history_exec (db->sqlite, "COMMIT", error))
    return TRUE;
  sqlite3_exec (db->sqlite, "ROLLBACK", NULL, NULL, NULL);
  return FALSE;
}

gboolean
quire_history_db_save (QuireHistoryDb *db, const char *id, const QuireStoredChat *chat,
                       GPtrArray *messages, GError **error)
{
  gboolean ok;

  if (!begin (db, error))
    return FALSE;
  ok = chat == NULL || put_chat (db, chat, error);
  for (guint i = 0; ok && messages != NULL && i < messages->len; i++)
    ok = put_message (db, chat != NULL ? chat->id : id, g_ptr_array_index (messages, i), error);
  return end (db, ok, error);
}

gboolean
quire_history_db_erase (QuireHistoryDb *db, const char *id, GError **error)
{
  static const char *const deletions[]
      = { "DELETE FROM message WHERE chat = ?1", "DELETE FROM receipt WHERE chat = ?1",
          "DELETE FROM chat WHERE id = ?1" };
  gboolean ok = TRUE;

  if (!begin (db, error))
    return FALSE;
  for (gsize i = 0; ok && i < G_N_ELEMENTS (deletions); i++)
    {
      sqlite3_stmt *s = prepare (db, deletions[i], error);

      if (s != NULL)
        bind_text (s, 1, id);
      ok = finish (db, s, error);
    }
  return end (db, ok, error);
}

/* ---- Reading ---- */

static QuireStoredChat *
read_chat (sqlite3_stmt *s)
{
  QuireStoredChat *chat;
  gint64 now = g_get_real_time ();
  char *id = dup_column (s, 0);

  if (id == NULL)
    return NULL;
  chat = g_new0 (QuireStoredChat, 1);
  chat->id = id;
  chat->title = dup_column (s, 1);
  chat->title_source = (QuireTitleSource)CLAMP (sqlite3_column_int (s, 2), 0, QUIRE_TITLE_USER);
  chat->model_name = dup_column (s, 3);
  chat->model_dir = dup_column (s, 4);
  chat->model_digest = dup_column (s, 5);
  chat->cache = MAX (sqlite3_column_int (s, 6), 0);
  chat->system = dup_column (s, 7);
  chat->sampling = dup_column (s, 8);
  chat->created = sqlite3_column_int64 (s, 9);
  chat->updated = sqlite3_column_int64 (s, 10);
  /* A time out of range would break the groups of the list. */
  if (chat->updated <= 0 || chat->updated > now + G_TIME_SPAN_DAY)
    chat->updated = chat->created > 0 && chat->created <= now ? chat->created : now;
  if (chat->created <= 0)
    chat->created = chat->updated;
  chat->pinned = sqlite3_column_int (s, 11) != 0;
  chat->deleted = MAX (sqlite3_column_int64 (s, 12), 0);
  chat->tab = MAX (sqlite3_column_int (s, 13), -1);
  chat->front = sqlite3_column_int (s, 14) != 0;
  chat->draft = dup_column (s, 15);
  chat->leaf = (guint)CLAMP (sqlite3_column_int64 (s, 16), 0, G_MAXUINT32);
  chat->kind = sqlite3_column_int (s, 17) == QUIRE_KIND_COMPARISON ? QUIRE_KIND_COMPARISON
                                                                   : QUIRE_KIND_CHAT;
  return chat;
}

GPtrArray *
quire_history_db_list (QuireHistoryDb *db, GError **error)
{
  static const char *const orders[] = { "ASC", "DESC" };
  GPtrArray *chats = g_ptr_array_new_with_free_func ((GDestroyNotify)quire_stored_chat_free);
  g_autoptr (GHashTable) seen = g_hash_table_new (g_str_hash, g_str_equal);
  int rc = SQLITE_ERROR;

  for (gsize i = 0; i < G_N_ELEMENTS (orders) && rc != SQLITE_DONE; i++)
    {
      g_autofree char *sql
          = g_strdup_printf ("SELECT id, title, title_source, model_name, model_dir, model_digest,"
                             " cache, system, sampling, created, updated, pinned, deleted, tab,"
                             " front, draft, leaf, kind FROM chat ORDER BY rowid %s",
                             orders[i]);
      sqlite3_stmt *s = prepare (db, sql, i == 0 ? error : NULL);

      if (s == NULL)
        break;
      while ((rc = sqlite3_step (s)) == SQLITE_ROW)
        {
          QuireStoredChat *chat = read_chat (s);

          if (chat == NULL || !g_hash_table_add (seen, chat->id))
            {
              g_clear_pointer (&chat, quire_stored_chat_free);
              continue;
            }
          g_ptr_array_add (chats, chat);
        }
      sqlite3_finalize (s);
    }
  return chats;
}

static QuireStoredMessage *
read_message (sqlite3_stmt *s)
{
  gint64 seq = sqlite3_column_int64 (s, 0), parent = sqlite3_column_int64 (s, 1);
  int role = sqlite3_column_int (s, 2), state = sqlite3_column_int (s, 3);
  const char *text = (const char *)sqlite3_column_text (s, 5);
  gsize n_bytes = text != NULL ? (gsize)sqlite3_column_bytes (s, 5) : 0;
  QuireStoredMessage *message;

  if (seq <= 0 || seq > G_MAXINT32)
    return NULL;
  if (state < QUIRE_REPLY_WAITING || state >= QUIRE_N_REPLY_STATES)
    state = QUIRE_REPLY_DONE;
  /* One that cannot be is one that is not found: mend_tree() gives another. */
  if (parent < 0 || parent >= seq)
    parent = G_MAXUINT;
  message = quire_stored_message_new ((guint)seq, (guint)parent, role, state,
                                      text != NULL ? text : "", n_bytes);
  message->created = sqlite3_column_int64 (s, 4);
  message->receipt = dup_column (s, 6);
  return message;
}

static int
by_seq (gconstpointer a, gconstpointer b)
{
  guint left = (*(QuireStoredMessage *const *)a)->seq,
        right = (*(QuireStoredMessage *const *)b)->seq;

  return left < right ? -1 : left > right;
}

/* Every message but the first has a parent that is there and of the other role. */
static void
mend_tree (GPtrArray *messages)
{
  g_autoptr (GHashTable) by_number = g_hash_table_new (NULL, NULL);

  for (guint i = 0; i < messages->len; i++)
    {
      QuireStoredMessage *m = g_ptr_array_index (messages, i);
      const QuireStoredMessage *parent
          = g_hash_table_lookup (by_number, GUINT_TO_POINTER (m->parent));
      gboolean lost = parent == NULL && (m->parent != 0 || m->role != QE_ROLE_USER);

      if (lost && i > 0)
        {
          parent = g_ptr_array_index (messages, i - 1);
          m->parent = parent->seq;
        }
      else if (parent == NULL)
        m->parent = 0;
      if (m->role != QE_ROLE_USER && m->role != QE_ROLE_ASSISTANT)
        m->role = parent == NULL || parent->role == QE_ROLE_ASSISTANT ? QE_ROLE_USER
                                                                      : QE_ROLE_ASSISTANT;
      g_hash_table_insert (by_number, GUINT_TO_POINTER (m->seq), m);
    }
}

GPtrArray *
quire_history_db_load (QuireHistoryDb *db, const char *id, GError **error)
{
  static const char *const orders[] = { "ASC", "DESC" };
  GPtrArray *messages = g_ptr_array_new_with_free_func ((GDestroyNotify)quire_stored_message_free);
  g_autoptr (GHashTable) seen = g_hash_table_new (NULL, NULL);
  int rc = SQLITE_ERROR;

  for (gsize i = 0; i < G_N_ELEMENTS (orders) && rc != SQLITE_DONE; i++)
    {
      /* The figures are looked up apart: damage in their table costs them alone. */
      g_autofree char *sql = g_strdup_printf (
          "SELECT seq, parent, role, state, created, text,"
          " (SELECT figures FROM receipt r WHERE r.chat = m.chat AND r.seq = m.seq)"
          " FROM message m WHERE chat = ?1 ORDER BY seq %s",
          orders[i]);
      sqlite3_stmt *s = prepare (db, sql, i == 0 ? error : NULL);

      if (s == NULL)
        break;
      bind_text (s, 1, id);
      while ((rc = sqlite3_step (s)) == SQLITE_ROW)
        {
          QuireStoredMessage *message = read_message (s);

          if (message == NULL || !g_hash_table_add (seen, GUINT_TO_POINTER (message->seq)))
            {
              g_clear_pointer (&message, quire_stored_message_free);
              continue;
            }
          g_ptr_array_add (messages, message);
        }
      sqlite3_finalize (s);
    }
  g_ptr_array_sort (messages, by_seq);
  mend_tree (messages);
  return messages;
}

/* ---- Presets ---- */

GPtrArray *
quire_history_db_list_presets (QuireHistoryDb *db)
{
  GPtrArray *presets = quire_presets_new ();
  sqlite3_stmt *s
      = prepare (db, "SELECT name, system, settings, is_default FROM preset ORDER BY name", NULL);

  while (s != NULL && sqlite3_step (s) == SQLITE_ROW)
    {
      g_autofree char *name = dup_column (s, 0);
      g_autofree char *system = dup_column (s, 1);
      g_autofree char *settings = dup_column (s, 2);
      QuirePreset *preset;

      if (name == NULL)
        continue;
      preset = quire_preset_new (name, system, settings);
      preset->is_default
          = sqlite3_column_int (s, 3) != 0 && quire_presets_get_default (presets) == NULL;
      g_ptr_array_add (presets, preset);
    }
  sqlite3_finalize (s);
  return presets;
}

gboolean
quire_history_db_save_presets (QuireHistoryDb *db, GPtrArray *presets, GError **error)
{
  gboolean ok;

  if (!begin (db, error))
    return FALSE;
  ok = quire_history_exec (db->sqlite, "DELETE FROM preset", error);
  for (guint i = 0; ok && i < presets->len; i++)
    {
      const QuirePreset *preset = g_ptr_array_index (presets, i);
      sqlite3_stmt *s = prepare (
          db, "INSERT INTO preset (name, system, settings, is_default) VALUES (?1,?2,?3,?4)",
          error);

      if (s != NULL)
        {
          bind_text (s, 1, preset->name);
          bind_text (s, 2, preset->system);
          bind_text (s, 3, preset->settings);
          sqlite3_bind_int (s, 4, preset->is_default);
        }
      ok = finish (db, s, error);
    }
  return end (db, ok, error);
}

/* ---- Searching ---- */

gboolean
quire_history_matches (const char *text, const char *query)
{
  g_autofree char *valid = g_utf8_make_valid (text, -1);
  g_autofree char *folded = g_utf8_casefold (valid, -1);
  g_autofree char *needles = g_utf8_casefold (query, -1);
  g_auto (GStrv) words = g_strsplit_set (needles, " \t\n", -1);

  for (int i = 0; words[i] != NULL; i++)
    if (words[i][0] != '\0' && strstr (folded, words[i]) == NULL)
      return FALSE;
  return TRUE;
}

char *
quire_history_dup_index_query (const char *query)
{
  g_auto (GStrv) words = g_strsplit_set (query, " \t\n", -1);
  GString *out = g_string_new (NULL);

  for (int i = 0; words[i] != NULL; i++)
    {
      if (words[i][0] == '\0')
        continue;
      if (g_utf8_strlen (words[i], -1) < 3)
        {
          g_string_free (out, TRUE);
          return NULL;
        }
      g_string_append (out, out->len > 0 ? " AND \"" : "\"");
      for (const char *p = words[i]; *p != '\0'; p++)
        {
          if (*p == '"')
            g_string_append_c (out, '"');
          g_string_append_c (out, *p);
        }
      g_string_append_c (out, '"');
    }
  return g_string_free (out, out->len == 0);
}

static gboolean
collect (QuireHistoryDb *db, const char *sql, const char *query, GPtrArray *ids, GError **error)
{
  sqlite3_stmt *s = prepare (db, sql, error);
  int rc;

  if (s == NULL)
    return FALSE;
  bind_text (s, 1, query);
  while ((rc = sqlite3_step (s)) == SQLITE_ROW)
    g_ptr_array_add (ids, g_strdup ((const char *)sqlite3_column_text (s, 0)));
  if (rc != SQLITE_DONE)
    quire_history_set_error (db->sqlite, rc, "The history", error);
  sqlite3_finalize (s);
  return rc == SQLITE_DONE;
}

GPtrArray *
quire_history_db_search (QuireHistoryDb *db, const char *query, GError **error)
{
  g_autoptr (GPtrArray) ids = g_ptr_array_new_with_free_func (g_free);
  g_autofree char *valid = g_utf8_make_valid (query, -1);
  g_autofree char *index_query = quire_history_dup_index_query (valid);

  if (index_query != NULL
      && collect (db,
                  "SELECT DISTINCT m.chat FROM message_text t JOIN message m ON m.n = t.rowid"
                  " JOIN chat c ON c.id = m.chat WHERE message_text MATCH ?1 AND c.deleted = 0",
                  index_query, ids, NULL))
    return g_steal_pointer (&ids);

  /* Short words, and an index that is damaged or of another version: every text is read. */
  g_ptr_array_set_size (ids, 0);
  if (!collect (db,
                "SELECT DISTINCT m.chat FROM message m JOIN chat c ON c.id = m.chat"
                " WHERE c.deleted = 0 AND quire_matches (m.text, ?1)",
                valid, ids, error))
    return NULL;
  return g_steal_pointer (&ids);
}
