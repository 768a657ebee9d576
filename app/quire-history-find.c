/* quire-history-find.c: see quire-history-find.h.
 *
 * The index gives messages newest first, so the search ends as soon as enough conversations are found, however common the
 * words are. Words of fewer than three characters are not in it: then messages are read, conversation by conversation,
 * newest first. Either ends at the caller's time: SQLite asks on its way. */
#include "app/quire-history-find.h"

#include <string.h>

#include "app/quire-history-private.h"

#define EXCERPT_CHARS_MAX 120
/* Steps of SQLite's machine between two looks at the clock. */
#define STEPS_BETWEEN_LOOKS 2000

typedef struct
{
  char *id, *title;
} Chat;

static void
chat_free (Chat *chat)
{
  g_free (chat->id);
  g_free (chat->title);
  g_free (chat);
}

void
quire_found_free (QuireFound *found)
{
  g_free (found->id);
  g_free (found);
}

static QuireFound *
found_new (const char *id, guint seq)
{
  QuireFound *found = g_new (QuireFound, 1);

  found->id = g_strdup (id);
  found->seq = seq;
  return found;
}

char *
quire_found_to_string (const QuireFound *found)
{
  return g_strdup_printf ("%s/%u", found->id, found->seq);
}

QuireFound *
quire_found_from_string (const char *text)
{
  const char *slash = strrchr (text, '/');
  guint64 seq;

  if (slash == NULL || slash == text || !g_utf8_validate (text, -1, NULL)
      || !g_ascii_string_to_unsigned (slash + 1, 10, 0, G_MAXUINT32, &seq, NULL))
    return NULL;
  {
    g_autofree char *id = g_strndup (text, slash - text);

    return found_new (id, (guint)seq);
  }
}

/* ---- Searching ---- */

typedef struct
{
  QuireHistoryDb *db;
  const char *query;
  guint n_max;
  gint64 until;
  GPtrArray *chats;    /* (element-type Chat) newest first */
  GHashTable *by_id;   /* id: Chat */
  GHashTable *reached; /* ids that are in out */
  GPtrArray *out;
} Search;

static int
is_late_cb (void *user_data)
{
  const Search *search = user_data;

  return g_get_monotonic_time () >= search->until;
}

static sqlite3_stmt *
prepare (QuireHistoryDb *db, const char *sql)
{
  sqlite3_stmt *s = NULL;

  return sqlite3_prepare_v2 (db->sqlite, sql, -1, &s, NULL) == SQLITE_OK ? s : NULL;
}

static void
reach (Search *search, const Chat *chat, guint seq)
{
  if (search->out->len < search->n_max && g_hash_table_add (search->reached, chat->id))
    g_ptr_array_add (search->out, found_new (chat->id, seq));
}

static void
list_chats (Search *search)
{
  sqlite3_stmt *s
      = prepare (search->db, "SELECT id, title FROM chat WHERE deleted = 0 ORDER BY updated DESC");

  while (s != NULL && sqlite3_step (s) == SQLITE_ROW)
    {
      Chat *chat = g_new (Chat, 1);

      chat->id = g_strdup ((const char *)sqlite3_column_text (s, 0));
      chat->title = g_strdup ((const char *)sqlite3_column_text (s, 1));
      if (chat->id == NULL)
        {
          chat_free (chat);
          continue;
        }
      g_ptr_array_add (search->chats, chat);
      g_hash_table_insert (search->by_id, chat->id, chat);
    }
  sqlite3_finalize (s);
}

static void
find_titles (Search *search)
{
  for (guint i = 0; i < search->chats->len && search->out->len < search->n_max; i++)
    {
      const Chat *chat = g_ptr_array_index (search->chats, i);

      if (chat->title != NULL && quire_history_matches (chat->title, search->query))
        reach (search, chat, 0);
    }
}

/* FALSE: there is no index to ask. */
static gboolean
find_by_index (Search *search, const char *index_query)
{
  sqlite3_stmt *s = prepare (
      search->db, "SELECT m.chat, m.seq FROM message_text t JOIN message m ON m.n = t.rowid"
                  " WHERE message_text MATCH ?1 ORDER BY t.rowid DESC");
  int rc;

  if (s == NULL)
    return FALSE;
  sqlite3_bind_text (s, 1, index_query, -1, SQLITE_TRANSIENT);
  while (search->out->len < search->n_max && (rc = sqlite3_step (s)) == SQLITE_ROW)
    {
      const char *id = (const char *)sqlite3_column_text (s, 0);
      const Chat *chat = id != NULL ? g_hash_table_lookup (search->by_id, id) : NULL;

      if (chat != NULL)
        reach (search, chat, (guint)sqlite3_column_int64 (s, 1));
    }
  rc = sqlite3_finalize (s);
  return rc == SQLITE_OK || rc == SQLITE_INTERRUPT;
}

static void
find_by_reading (Search *search)
{
  sqlite3_stmt *s = prepare (search->db, "SELECT seq FROM message WHERE chat = ?1 AND"
                                         " quire_matches (text, ?2) ORDER BY seq DESC LIMIT 1");

  if (s == NULL)
    return;
  sqlite3_bind_text (s, 2, search->query, -1, SQLITE_TRANSIENT);
  for (guint i = 0; i < search->chats->len && search->out->len < search->n_max; i++)
    {
      const Chat *chat = g_ptr_array_index (search->chats, i);

      if (is_late_cb (search))
        break;
      sqlite3_bind_text (s, 1, chat->id, -1, SQLITE_TRANSIENT);
      if (sqlite3_step (s) == SQLITE_ROW)
        reach (search, chat, (guint)sqlite3_column_int64 (s, 0));
      sqlite3_reset (s);
    }
  sqlite3_finalize (s);
}

GPtrArray *
quire_history_db_find (QuireHistoryDb *db, const char *query, guint n_max, gint64 until)
{
  g_autofree char *valid = g_utf8_make_valid (query, -1);
  g_autofree char *index_query = quire_history_dup_index_query (valid);
  g_autoptr (GPtrArray) chats = g_ptr_array_new_with_free_func ((GDestroyNotify)chat_free);
  g_autoptr (GHashTable) by_id = g_hash_table_new (g_str_hash, g_str_equal);
  g_autoptr (GHashTable) reached = g_hash_table_new (g_str_hash, g_str_equal);
  Search search = { .db = db, .query = valid, .n_max = n_max, .until = until };

  search.chats = chats;
  search.by_id = by_id;
  search.reached = reached;
  search.out = g_ptr_array_new_with_free_func ((GDestroyNotify)quire_found_free);
  if (valid[strspn (valid, " \t\n")] == '\0')
    return search.out;

  sqlite3_progress_handler (db->sqlite, STEPS_BETWEEN_LOOKS, is_late_cb, &search);
  list_chats (&search);
  find_titles (&search);
  if (index_query == NULL || !find_by_index (&search, index_query))
    find_by_reading (&search);
  sqlite3_progress_handler (db->sqlite, 0, NULL, NULL);
  return search.out;
}

/* ---- Describing ---- */

/* Where the first of @words is in @folded, in characters; 0 when none is. */
static glong
find_word (const char *folded, char **words)
{
  const char *first = NULL;

  for (int i = 0; words[i] != NULL; i++)
    {
      const char *at = words[i][0] != '\0' ? strstr (folded, words[i]) : NULL;

      if (at != NULL && (first == NULL || at < first))
        first = at;
    }
  return first != NULL ? g_utf8_pointer_to_offset (folded, first) : 0;
}

char *
quire_excerpt (const char *text, const char *query, guint n_max)
{
  g_autofree char *valid = g_utf8_make_valid (text, -1);
  GString *line = g_string_new (NULL);
  gboolean gap = FALSE;

  for (const char *p = valid; *p != '\0'; p = g_utf8_next_char (p))
    {
      gunichar c = g_utf8_get_char (p);

      if (g_unichar_isspace (c) || g_unichar_iscntrl (c))
        gap = line->len > 0;
      else
        {
          if (gap)
            g_string_append_c (line, ' ');
          gap = FALSE;
          g_string_append_unichar (line, c);
        }
    }
  {
    g_autofree char *folded = g_utf8_casefold (line->str, -1);
    g_autofree char *needles = g_utf8_casefold (query, -1);
    g_auto (GStrv) words = g_strsplit_set (needles, " \t\n", -1);
    /* Folding changes the count of few characters: the place may be some off, so it gets a third of the room before it. */
    glong n = g_utf8_strlen (line->str, -1), at = find_word (folded, words);
    glong start = MAX (0, MIN (at - (glong)n_max / 3, n - (glong)n_max));
    const char *from = g_utf8_offset_to_pointer (line->str, start);
    const char *to = g_utf8_offset_to_pointer (from, MIN (n - start, (glong)n_max));
    char *out;

    if (start > 0)
      {
        const char *space = memchr (from, ' ', MIN (to - from, 20));

        from = space != NULL ? space + 1 : from;
      }
    out = g_strdup_printf ("%s%.*s%s", start > 0 ? "…" : "", (int)(to - from), from,
                           *to != '\0' ? "…" : "");
    g_string_free (line, TRUE);
    return out;
  }
}

gboolean
quire_history_db_describe (QuireHistoryDb *db, const QuireFound *found, const char *query,
                           char **title, char **text)
{
  sqlite3_stmt *s = prepare (db, "SELECT c.title, m.text FROM chat c LEFT JOIN message m ON"
                                 " m.chat = c.id AND (?2 = 0 OR m.seq = ?2)"
                                 " WHERE c.id = ?1 AND c.deleted = 0 ORDER BY m.seq DESC LIMIT 1");
  gboolean there = FALSE;

  if (s == NULL)
    return FALSE;
  sqlite3_bind_text (s, 1, found->id, -1, SQLITE_TRANSIENT);
  sqlite3_bind_int64 (s, 2, found->seq);
  if (sqlite3_step (s) == SQLITE_ROW)
    {
      const char *stored = (const char *)sqlite3_column_text (s, 0);
      const char *message = (const char *)sqlite3_column_text (s, 1);

      *title = quire_excerpt (stored != NULL ? stored : "", "", EXCERPT_CHARS_MAX);
      *text = quire_excerpt (message != NULL ? message : "", query, EXCERPT_CHARS_MAX);
      there = TRUE;
    }
  sqlite3_finalize (s);
  return there;
}
