/* history-undo.h: a history file goes back to an older schema, as an older Quire would have left it. Test only. */
#pragma once

#include <glib.h>
#include <sqlite3.h>

#include "app/quire-history-db.h"

/* The last step's first. A new step of quire-history-schema.c needs its undoing here. */
static const char *const history_undo[] = {
    [4] = "ALTER TABLE chat DROP COLUMN kind;",
    [3] = "DROP TABLE preset;",
    [2] = "DROP TRIGGER message_added; DROP TRIGGER message_changed; DROP TRIGGER message_erased;"
          "DROP TABLE message_text;",
};
G_STATIC_ASSERT(G_N_ELEMENTS(history_undo) == QUIRE_HISTORY_VERSION + 1);

static inline int history_version(sqlite3 *db)
{
    sqlite3_stmt *statement = NULL;
    int version;

    g_assert_cmpint(sqlite3_prepare_v2(db, "PRAGMA user_version", -1, &statement, NULL), ==, SQLITE_OK);
    g_assert_cmpint(sqlite3_step(statement), ==, SQLITE_ROW);
    version = sqlite3_column_int(statement, 0);
    sqlite3_finalize(statement);
    return version;
}

/* To @version, 1 at least; a file that is older stays as it is. */
static inline void history_go_back(const char *path, int version)
{
    sqlite3 *db = NULL;

    g_assert_cmpint(sqlite3_open(path, &db), ==, SQLITE_OK);
    for (int at = history_version(db); at > version; at--) {
        g_autofree char *sql =
            g_strdup_printf("BEGIN; %s PRAGMA user_version = %d; COMMIT", history_undo[at], at - 1);

        if (sqlite3_exec(db, sql, NULL, NULL, NULL) != SQLITE_OK)
            g_error("%s: %s", sql, sqlite3_errmsg(db));
    }
    g_assert_cmpint(sqlite3_close(db), ==, SQLITE_OK);
}
