/* quire-history-private.h: what the files of the database share. */
#pragma once
#include <sqlite3.h>
#include "app/quire-history-db.h"

struct _QuireHistoryDb
{
  sqlite3 *sqlite;
  gboolean read_only;
};

/* Opening, schema, migrations, damage: quire-history-schema.c. */
gboolean quire_history_exec (sqlite3 *sqlite, const char *sql, GError **error);
/* Sets @error from @sqlite's last failure. */
void quire_history_set_error (sqlite3 *sqlite, int rc, const char *what, GError **error);
/* What the index can answer: every word has three characters. Returns: its query, owned; NULL otherwise. */
char *quire_history_dup_index_query (const char *query);
