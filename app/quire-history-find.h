/* quire-history-find.h: searches the database of conversations without changing it, within a time. No GTK. For programs
 * beside the application, which may have the database open meanwhile. */
#pragma once
#include "app/quire-history-db.h"

G_BEGIN_DECLS

/* Opens the database in @path, which must be there, to read it alone. NULL with @error: there is nothing to search. */
QuireHistoryDb *quire_history_db_open_to_read (const char *path, GError **error);

typedef struct
{
  char *id;
  guint seq; /* the newest message that holds the words; 0: the title does */
} QuireFound;

void quire_found_free (QuireFound *found);

/* Conversations out of the trash whose title, or one message of which, holds every word of @query: those by title first,
 * each kind newest first, at most @n_max. What is not found by @until (g_get_monotonic_time()) is left out. Never fails: a
 * database that cannot be searched has nothing. Returns: (element-type QuireFound) owned. */
GPtrArray *quire_history_db_find (QuireHistoryDb *db, const char *query, guint n_max, gint64 until);

/* The words of @found for a list. @title: owned, "" where it has none. @text: owned, one line of the message around the
 * first word of @query that is in it; of a conversation found by title its last message begins it. FALSE: it is not there
 * or in the trash. */
gboolean quire_history_db_describe (QuireHistoryDb *db, const QuireFound *found, const char *query,
                                    char **title, char **text);

/* "ID/SEQ" and back; NULL for what is none. Returns: owned. */
char *quire_found_to_string (const QuireFound *found);
QuireFound *quire_found_from_string (const char *text);

/* About @n_max characters of @text around the first word of @query that is in it, in one line, with "…" where it is cut.
 * Returns: owned. */
char *quire_excerpt (const char *text, const char *query, guint n_max);

G_DEFINE_AUTOPTR_CLEANUP_FUNC (QuireFound, quire_found_free)

G_END_DECLS
