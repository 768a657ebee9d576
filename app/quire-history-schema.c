/* quire-history-schema.c: opens the database, brings its schema up to date, and puts a damaged one aside.
 *
 * user_version is the schema's number. A step goes from one number to the next, in a transaction of its own that also
 * sets the number, so a kill leaves either. Before the first step of a database that has content, it is copied to
 * NAME.VERSION.bak, first under another name, so that a backup that is there is whole. */
#include <errno.h>
#include <glib/gstdio.h>
#include <string.h>

#include "app/quire-history-find.h"
#include "app/quire-history-private.h"
#include "app/quire-message.h"

/* A check of all pages reads the file: larger ones are only checked by being used. That of the search's index costs more. */
#define CHECK_BYTES_MAX (64 << 20)
#define CHECK_INDEX_BYTES_MAX (16 << 20)
#define READ_BUSY_MS_MAX 50

G_DEFINE_QUARK (quire - history - error - quark, quire_history_error)

static const char *const steps[QUIRE_HISTORY_VERSION] = {
  /* 0 to 1. The text stands alone with what its place in the tree needs; figures are in a table of their own, so that
   * nothing wrong in them can hide it. */
  "CREATE TABLE chat ("
  " id TEXT PRIMARY KEY NOT NULL, title TEXT, title_source INTEGER NOT NULL DEFAULT 0,"
  " model_name TEXT, model_dir TEXT, model_digest TEXT, cache INTEGER NOT NULL DEFAULT 0,"
  " system TEXT, sampling TEXT, created INTEGER NOT NULL, updated INTEGER NOT NULL,"
  " pinned INTEGER NOT NULL DEFAULT 0, deleted INTEGER NOT NULL DEFAULT 0,"
  " tab INTEGER NOT NULL DEFAULT -1, front INTEGER NOT NULL DEFAULT 0, draft TEXT,"
  " leaf INTEGER NOT NULL DEFAULT 0);"
  "CREATE TABLE message ("
  " n INTEGER PRIMARY KEY, chat TEXT NOT NULL, seq INTEGER NOT NULL, parent INTEGER NOT NULL,"
  " role INTEGER NOT NULL, state INTEGER NOT NULL, created INTEGER NOT NULL, text TEXT NOT NULL,"
  " UNIQUE (chat, seq));"
  "CREATE TABLE receipt (chat TEXT NOT NULL, seq INTEGER NOT NULL, figures TEXT,"
  " PRIMARY KEY (chat, seq)) WITHOUT ROWID;",
  /* 1 to 2: an index for the search. Pieces of three characters find parts of words, and text that has no spaces. */
  "CREATE VIRTUAL TABLE message_text USING fts5"
  " (text, content='message', content_rowid='n', tokenize='trigram');"
  "INSERT INTO message_text (message_text) VALUES ('rebuild');"
  "CREATE TRIGGER message_added AFTER INSERT ON message BEGIN"
  " INSERT INTO message_text (rowid, text) VALUES (new.n, new.text); END;"
  "CREATE TRIGGER message_changed AFTER UPDATE OF text ON message BEGIN"
  " INSERT INTO message_text (message_text, rowid, text) VALUES ('delete', old.n, old.text);"
  " INSERT INTO message_text (rowid, text) VALUES (new.n, new.text); END;"
  "CREATE TRIGGER message_erased AFTER DELETE ON message BEGIN"
  " INSERT INTO message_text (message_text, rowid, text) VALUES ('delete', old.n, old.text); END;",
  /* 2 to 3: named system prompts. */
  "CREATE TABLE preset ("
  " name TEXT PRIMARY KEY NOT NULL, system TEXT, settings TEXT, is_default INTEGER NOT NULL"
  " DEFAULT 0);",
  /* 3 to 4: comparisons stand in the list beside chats. */
  "ALTER TABLE chat ADD COLUMN kind INTEGER NOT NULL DEFAULT 0;",
};

void
quire_history_set_error (sqlite3 *sqlite, int rc, const char *what, GError **error)
{
  QuireHistoryError code = QUIRE_HISTORY_ERROR_FAILED;

  switch (rc & 0xff)
    {
    case SQLITE_FULL:
      code = QUIRE_HISTORY_ERROR_FULL;
      break;
    case SQLITE_READONLY:
    case SQLITE_CANTOPEN:
    case SQLITE_PERM:
      code = QUIRE_HISTORY_ERROR_READ_ONLY;
      break;
    case SQLITE_CORRUPT:
    case SQLITE_NOTADB:
      code = QUIRE_HISTORY_ERROR_DAMAGED;
      break;
    default:
      break;
    }
  g_set_error (error, QUIRE_HISTORY_ERROR, code, "%s: %s", what,
               sqlite != NULL ? sqlite3_errmsg (sqlite) : sqlite3_errstr (rc));
}

gboolean
quire_history_exec (sqlite3 *sqlite, const char *sql, GError **error)
{
  int rc = sqlite3_exec (sqlite, sql, NULL, NULL, NULL);

  if (rc == SQLITE_OK)
    return TRUE;
  quire_history_set_error (sqlite, rc, "The history", error);
  return FALSE;
}

/* -1 with @error when it cannot be read. */
static int
read_version (sqlite3 *sqlite, GError **error)
{
  sqlite3_stmt *statement = NULL;
  int version = -1;
  int rc = sqlite3_prepare_v2 (sqlite, "PRAGMA user_version", -1, &statement, NULL);

  if (rc == SQLITE_OK)
    rc = sqlite3_step (statement);
  if (rc == SQLITE_ROW)
    version = sqlite3_column_int (statement, 0);
  else
    quire_history_set_error (sqlite, rc, "The history", error);
  sqlite3_finalize (statement);
  return version;
}

static gboolean
is_sound (sqlite3 *sqlite)
{
  sqlite3_stmt *statement = NULL;
  gboolean sound = FALSE;

  if (sqlite3_prepare_v2 (sqlite, "PRAGMA quick_check(1)", -1, &statement, NULL) == SQLITE_OK
      && sqlite3_step (statement) == SQLITE_ROW)
    sound = g_strcmp0 ((const char *)sqlite3_column_text (statement, 0), "ok") == 0;
  sqlite3_finalize (statement);
  return sound;
}

static sqlite3 *
connect_to (const char *path, int flags, GError **error)
{
  sqlite3 *sqlite = NULL;
  int rc = sqlite3_open_v2 (path, &sqlite, flags | SQLITE_OPEN_NOMUTEX, NULL);

  if (rc == SQLITE_OK)
    {
      sqlite3_extended_result_codes (sqlite, 1);
      sqlite3_busy_timeout (sqlite, 5000);
      return sqlite;
    }
  quire_history_set_error (sqlite, rc, path, error);
  sqlite3_close (sqlite);
  return NULL;
}

/* A copy of what is committed, whole or not there. */
static gboolean
back_up (sqlite3 *sqlite, const char *path, int version, char **out, GError **error)
{
  g_autofree char *name = g_strdup_printf ("%s.%d.bak", path, version);
  g_autofree char *partial = g_strconcat (name, ".part", NULL);
  sqlite3 *copy;
  sqlite3_backup *backup;
  gboolean ok;

  g_unlink (partial);
  copy = connect_to (partial, SQLITE_OPEN_READWRITE | SQLITE_OPEN_CREATE, error);
  if (copy == NULL)
    return FALSE;
  backup = sqlite3_backup_init (copy, "main", sqlite, "main");
  ok = backup != NULL && sqlite3_backup_step (backup, -1) == SQLITE_DONE;
  ok &= backup != NULL && sqlite3_backup_finish (backup) == SQLITE_OK;
  if (!ok)
    quire_history_set_error (copy, sqlite3_errcode (copy), name, error);
  sqlite3_close (copy);
  if (!ok)
    return FALSE;
  g_chmod (partial, 0600);
  if (g_rename (partial, name) != 0)
    {
      g_set_error (error, QUIRE_HISTORY_ERROR, QUIRE_HISTORY_ERROR_FAILED, "%s: %s", name,
                   g_strerror (errno));
      return FALSE;
    }
  *out = g_steal_pointer (&name);
  return TRUE;
}

static gboolean
migrate (sqlite3 *sqlite, const char *path, int version, char **backup, GError **error)
{
  if (version > 0 && version < QUIRE_HISTORY_VERSION
      && !back_up (sqlite, path, version, backup, error))
    return FALSE;
  for (; version < QUIRE_HISTORY_VERSION; version++)
    {
      g_autofree char *sql = g_strdup_printf (
          "BEGIN IMMEDIATE; %s PRAGMA user_version = %d; COMMIT", steps[version], version + 1);

      if (!quire_history_exec (sqlite, sql, error))
        {
          sqlite3_exec (sqlite, "ROLLBACK", NULL, NULL, NULL);
          return FALSE;
        }
    }
  return TRUE;
}

/* Renames the database with its log; the log's index is made anew. */
static char *
move_aside (const char *path)
{
  g_autoptr (GDateTime) now = g_date_time_new_now_utc ();
  g_autofree char *stamp = g_date_time_format (now, "%Y%m%d-%H%M%S");
  char *name = NULL;
  g_autofree char *log = g_strconcat (path, "-wal", NULL);
  g_autofree char *index = g_strconcat (path, "-shm", NULL);
  g_autofree char *log_name = NULL;

  for (int i = 0; name == NULL; i++)
    {
      name = i == 0 ? g_strdup_printf ("%s.damaged-%s", path, stamp)
                    : g_strdup_printf ("%s.damaged-%s.%d", path, stamp, i);
      if (g_file_test (name, G_FILE_TEST_EXISTS))
        g_clear_pointer (&name, g_free);
    }
  log_name = g_strconcat (name, "-wal", NULL);
  if (g_rename (path, name) != 0)
    {
      g_free (name);
      return NULL;
    }
  g_rename (log, log_name);
  g_unlink (index);
  return name;
}

/* Opens what is there. NULL with @damaged set when it is no sound database. */
static sqlite3 *
open_existing (const char *path, QuireHistoryOpening *opening, gboolean *damaged, GError **error)
{
  sqlite3 *sqlite = connect_to (path, SQLITE_OPEN_READWRITE | SQLITE_OPEN_CREATE, error);
  GError *local = NULL;
  GStatBuf info;

  *damaged = FALSE;
  if (sqlite == NULL)
    return NULL;
  opening->version = read_version (sqlite, &local);
  if (opening->version > QUIRE_HISTORY_VERSION)
    {
      sqlite3_close (sqlite);
      opening->read_only = TRUE;
      return connect_to (path, SQLITE_OPEN_READONLY, error);
    }
  if (local == NULL && opening->version > 0 && g_stat (path, &info) == 0
      && info.st_size <= CHECK_BYTES_MAX && !is_sound (sqlite))
    g_set_error_literal (&local, QUIRE_HISTORY_ERROR, QUIRE_HISTORY_ERROR_DAMAGED, "Damaged");
  if (local == NULL)
    quire_history_exec (sqlite, "PRAGMA journal_mode = WAL; PRAGMA synchronous = FULL", &local);
  if (local == NULL)
    migrate (sqlite, path, opening->version, &opening->backup, &local);
  if (local == NULL)
    return sqlite;

  *damaged = g_error_matches (local, QUIRE_HISTORY_ERROR, QUIRE_HISTORY_ERROR_DAMAGED);
  g_propagate_error (error, local);
  sqlite3_close (sqlite);
  return NULL;
}

/* Is there content that is no database of ours (a file with tables but without our number)? Then it is damaged too: the
 * first step fails on the tables that are there, with an error that says no such thing. */
static gboolean
is_foreign (const char *path)
{
  sqlite3 *sqlite = connect_to (path, SQLITE_OPEN_READONLY, NULL);
  sqlite3_stmt *statement = NULL;
  gboolean foreign = FALSE;

  if (sqlite == NULL)
    return FALSE;
  if (read_version (sqlite, NULL) == 0
      && sqlite3_prepare_v2 (sqlite, "SELECT 1 FROM sqlite_schema", -1, &statement, NULL)
             == SQLITE_OK)
    foreign = sqlite3_step (statement) == SQLITE_ROW;
  sqlite3_finalize (statement);
  sqlite3_close (sqlite);
  return foreign;
}

static void
contains_function (sqlite3_context *context, int n, sqlite3_value **values)
{
  const char *text = (const char *)sqlite3_value_text (values[0]);
  const char *query = (const char *)sqlite3_value_text (values[1]);

  sqlite3_result_int (context,
                      text != NULL && query != NULL && quire_history_matches (text, query));
}

/* A damaged index would find nothing, or keep messages from being saved: it is made anew from the texts. */
static void
mend_index (sqlite3 *sqlite, const char *path)
{
  GStatBuf info;

  if (g_stat (path, &info) == 0 && info.st_size <= CHECK_INDEX_BYTES_MAX
      && sqlite3_exec (
             sqlite, "INSERT INTO message_text (message_text, rank) VALUES ('integrity-check', 1)",
             NULL, NULL, NULL)
             != SQLITE_OK)
    sqlite3_exec (sqlite, "INSERT INTO message_text (message_text) VALUES ('rebuild')", NULL, NULL,
                  NULL);
}

static QuireHistoryDb *
db_new (sqlite3 *sqlite, gboolean read_only)
{
  QuireHistoryDb *db = g_new0 (QuireHistoryDb, 1);

  sqlite3_create_function (sqlite, "quire_matches", 2, SQLITE_UTF8 | SQLITE_DETERMINISTIC, NULL,
                           contains_function, NULL, NULL);
  db->sqlite = sqlite;
  db->read_only = read_only;
  return db;
}

/* The caller has little time: a log that another process is about to restart is waited for no longer. */
QuireHistoryDb *
quire_history_db_open_to_read (const char *path, GError **error)
{
  sqlite3 *sqlite = connect_to (path, SQLITE_OPEN_READONLY, error);

  if (sqlite == NULL)
    return NULL;
  sqlite3_busy_timeout (sqlite, READ_BUSY_MS_MAX);
  return db_new (sqlite, TRUE);
}

QuireHistoryDb *
quire_history_db_open (const char *path, QuireHistoryOpening *opening, GError **error)
{
  g_autofree char *dir = g_path_get_dirname (path);
  g_autoptr (GError) local = NULL;
  gboolean existed = g_file_test (path, G_FILE_TEST_EXISTS), damaged;
  QuireHistoryDb *db;
  sqlite3 *sqlite;

  *opening = (QuireHistoryOpening){ 0 };
  if (g_mkdir_with_parents (dir, 0700) != 0)
    {
      g_set_error (error, QUIRE_HISTORY_ERROR, QUIRE_HISTORY_ERROR_READ_ONLY, "%s: %s", dir,
                   g_strerror (errno));
      return NULL;
    }
  sqlite = open_existing (path, opening, &damaged, &local);
  if (sqlite == NULL && existed && (damaged || is_foreign (path)))
    {
      opening->moved_to = move_aside (path);
      if (opening->moved_to != NULL)
        {
          g_clear_error (&local);
          opening->version = 0;
          sqlite = open_existing (path, opening, &damaged, &local);
        }
    }
  if (sqlite == NULL)
    {
      g_propagate_error (error, g_steal_pointer (&local));
      return NULL;
    }

  if (!existed || opening->moved_to != NULL)
    g_chmod (path, 0600);
  db = db_new (sqlite, opening->read_only);
  if (!db->read_only)
    {
      g_autofree char *sql
          = g_strdup_printf ("UPDATE message SET state = %d WHERE role = %d AND state < %d",
                             QUIRE_REPLY_INTERRUPTED, QE_ROLE_ASSISTANT, QUIRE_REPLY_DONE);

      sqlite3_exec (sqlite, sql, NULL, NULL, NULL);
      mend_index (sqlite, path);
    }
  return db;
}

void
quire_history_db_free (QuireHistoryDb *db)
{
  if (db == NULL)
    return;
  sqlite3_close (db->sqlite);
  g_free (db);
}

void
quire_history_opening_clear (QuireHistoryOpening *opening)
{
  g_clear_pointer (&opening->moved_to, g_free);
  g_clear_pointer (&opening->backup, g_free);
}
