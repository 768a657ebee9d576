/* test-app-history-db.c: the database of conversations, without a display. Crashes are real: a child process writes and is
 * killed. QUIRE_TEST_KILLS sets how often (60). */
#include <errno.h>
#include <glib/gstdio.h>
#include <signal.h>
#include <sqlite3.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include "app/quire-history-db.h"
#include "app/quire-message.h"
#include "tests/app/history-undo.h"

typedef struct {
    char *dir, *path;
} Fixture;

static void set_up(Fixture *f, gconstpointer data)
{
    f->dir = g_dir_make_tmp("quire-history-XXXXXX", NULL);
    f->path = g_build_filename(f->dir, "sub", "history.db", NULL);
}

static void remove_tree(const char *path)
{
    g_autoptr(GDir) dir = g_dir_open(path, 0, NULL);
    const char *name;

    while (dir != NULL && (name = g_dir_read_name(dir)) != NULL) {
        g_autofree char *child = g_build_filename(path, name, NULL);

        remove_tree(child);
    }
    g_remove(path);
}

static void tear_down(Fixture *f, gconstpointer data)
{
    remove_tree(f->dir);
    g_free(f->dir);
    g_free(f->path);
}

static QuireHistoryDb *open_db(Fixture *f)
{
    g_auto(QuireHistoryOpening) opening = {0};
    g_autoptr(GError) error = NULL;
    QuireHistoryDb *db = quire_history_db_open(f->path, &opening, &error);

    g_assert_no_error(error);
    g_assert_null(opening.moved_to);
    return db;
}

static GPtrArray *messages_new(void)
{
    return g_ptr_array_new_with_free_func((GDestroyNotify)quire_stored_message_free);
}

static void save(QuireHistoryDb *db, const char *id, const char *title, const char *const *texts)
{
    g_autoptr(GPtrArray) messages = messages_new();
    g_autoptr(GError) error = NULL;
    QuireStoredChat chat = {.id = (char *)id,
        .title = (char *)title,
        .created = g_get_real_time(),
        .updated = g_get_real_time(),
        .tab = -1};

    for (guint i = 0; texts != NULL && texts[i] != NULL; i++)
        g_ptr_array_add(
            messages, quire_stored_message_new(i + 1, i, i % 2 == 0 ? QE_ROLE_USER : QE_ROLE_ASSISTANT,
                          QUIRE_REPLY_DONE, texts[i], strlen(texts[i])));
    chat.leaf = messages->len;
    g_assert_true(quire_history_db_save(db, id, &chat, messages, &error));
    g_assert_no_error(error);
}

static guint n_found(QuireHistoryDb *db, const char *query)
{
    g_autoptr(GError) error = NULL;
    g_autoptr(GPtrArray) ids = quire_history_db_search(db, query, &error);

    g_assert_no_error(error);
    return ids->len;
}

static void run_sql(const char *path, const char *sql)
{
    sqlite3 *sqlite;
    char *message = NULL;

    g_assert_cmpint(sqlite3_open(path, &sqlite), ==, SQLITE_OK);
    sqlite3_exec(sqlite, sql, NULL, NULL, &message);
    g_assert_cmpstr(message, ==, NULL);
    sqlite3_close(sqlite);
}

/* ---- Tests ---- */

static void test_round_trip(Fixture *f, gconstpointer data)
{
    static const char nul[] = "a\0b \xf0\x9f\xa6\x89";
    g_autoptr(QuireHistoryDb) db = open_db(f);
    g_autoptr(GPtrArray) messages = messages_new(), chats = NULL, loaded = NULL;
    QuireStoredChat chat = {.id = (char *)"one",
        .title = (char *)"שלום 总结三点 🦉",
        .title_source = QUIRE_TITLE_USER,
        .model_name = (char *)"M",
        .model_dir = (char *)"/m",
        .model_digest = (char *)"d",
        .cache = 3,
        .system = (char *)"Be brief.",
        .sampling = (char *)"{}",
        .created = 5,
        .updated = 7,
        .pinned = TRUE,
        .deleted = 9,
        .tab = 2,
        .front = TRUE,
        .draft = (char *)"half\nwritten",
        .leaf = 2};
    const QuireStoredChat *read;
    const QuireStoredMessage *m;
    GStatBuf info;

    g_ptr_array_add(
        messages, quire_stored_message_new(1, 0, QE_ROLE_USER, QUIRE_REPLY_DONE, nul, sizeof nul - 1));
    g_ptr_array_add(messages, quire_stored_message_new(2, 1, QE_ROLE_ASSISTANT, QUIRE_REPLY_STOPPED, "", 0));
    ((QuireStoredMessage *)g_ptr_array_index(messages, 1))->receipt = g_strdup("{\"n\":1}");
    g_assert_true(quire_history_db_save(db, "one", &chat, messages, NULL));
    /* Again, changed: replaced, not added. */
    chat.cache = 4;
    g_assert_true(quire_history_db_save(db, "one", &chat, messages, NULL));
    g_clear_pointer(&db, quire_history_db_free);
    g_assert_cmpint(g_stat(f->path, &info), ==, 0);
    g_assert_cmpint(info.st_mode & 0777, ==, 0600);

    db = open_db(f);
    chats = quire_history_db_list(db, NULL);
    g_assert_cmpuint(chats->len, ==, 1);
    read = g_ptr_array_index(chats, 0);
    g_assert_cmpstr(read->id, ==, "one");
    g_assert_cmpstr(read->title, ==, chat.title);
    g_assert_cmpint(read->title_source, ==, QUIRE_TITLE_USER);
    g_assert_cmpstr(read->model_dir, ==, "/m");
    g_assert_cmpstr(read->model_digest, ==, "d");
    g_assert_cmpint(read->cache, ==, 4);
    g_assert_cmpstr(read->system, ==, "Be brief.");
    g_assert_cmpstr(read->draft, ==, "half\nwritten");
    g_assert_cmpint(read->created, ==, 5);
    g_assert_cmpint(read->deleted, ==, 9);
    g_assert_cmpint(read->tab, ==, 2);
    g_assert_true(read->pinned && read->front);
    g_assert_cmpuint(read->leaf, ==, 2);
    loaded = quire_history_db_load(db, "one", NULL);
    g_assert_cmpuint(loaded->len, ==, 2);
    m = g_ptr_array_index(loaded, 0);
    g_assert_cmpmem(m->text, m->n_bytes, nul, sizeof nul - 1);
    m = g_ptr_array_index(loaded, 1);
    g_assert_cmpint(m->state, ==, QUIRE_REPLY_STOPPED);
    g_assert_cmpint(m->parent, ==, 1);
    g_assert_cmpstr(m->receipt, ==, "{\"n\":1}");

    g_assert_true(quire_history_db_erase(db, "one", NULL));
    g_ptr_array_unref(loaded);
    loaded = quire_history_db_load(db, "one", NULL);
    g_assert_cmpuint(loaded->len, ==, 0);
}

static void test_search(Fixture *f, gconstpointer data)
{
    g_autoptr(QuireHistoryDb) db = open_db(f);
    const char *story[] = {"Tell me about ÖRTLICHE owls", "They say “Hoo”. 请用中文总结三点。", NULL};
    const char *hebrew[] = {"מה שלומך היום", "🦉🦉🦉 fine 100% \"quoted\" a_b", NULL};

    save(db, "a", "first", story);
    save(db, "b", "second", hebrew);
    g_assert_cmpuint(n_found(db, "owls"), ==, 1);
    g_assert_cmpuint(n_found(db, "OWLS tell"), ==, 1);
    g_assert_cmpuint(n_found(db, "örtliche"), ==, 1);
    g_assert_cmpuint(n_found(db, "ortl"), ==, 0);
    g_assert_cmpuint(n_found(db, "总结三点"), ==, 1);
    g_assert_cmpuint(n_found(db, "总结"), ==, 1); /* shorter than the index's pieces */
    g_assert_cmpuint(n_found(db, "שלומך"), ==, 1);
    g_assert_cmpuint(n_found(db, "🦉"), ==, 1);
    g_assert_cmpuint(n_found(db, "🦉🦉🦉"), ==, 1);
    g_assert_cmpuint(n_found(db, "100%"), ==, 1);
    g_assert_cmpuint(n_found(db, "a_b"), ==, 1);
    g_assert_cmpuint(n_found(db, "axb"), ==, 0);
    g_assert_cmpuint(n_found(db, "\"quoted\""), ==, 1);
    g_assert_cmpuint(n_found(db, "owls שלומך"), ==, 0);
    g_assert_cmpuint(n_found(db, "e"), ==, 2);
    g_assert_cmpuint(n_found(db, "NEAR AND OR ("), ==, 0);

    /* A text that grows is found by its new words alone. */
    {
        g_autoptr(GPtrArray) messages = messages_new();

        g_ptr_array_add(
            messages, quire_stored_message_new(2, 1, QE_ROLE_ASSISTANT, QUIRE_REPLY_DONE, "pelican", 7));
        g_assert_true(quire_history_db_save(db, "a", NULL, messages, NULL));
    }
    g_assert_cmpuint(n_found(db, "pelican"), ==, 1);
    g_assert_cmpuint(n_found(db, "总结三点"), ==, 0);
    /* The trash is not searched. */
    {
        QuireStoredChat chat = {.id = (char *)"a", .created = 1, .updated = 1, .deleted = 1, .tab = -1};

        g_assert_true(quire_history_db_save(db, "a", &chat, NULL, NULL));
    }
    g_assert_cmpuint(n_found(db, "pelican"), ==, 0);
    g_assert_true(quire_history_db_erase(db, "b", NULL));
    g_assert_cmpuint(n_found(db, "fine"), ==, 0);

    /* A damaged index: the texts are read instead. */
    save(db, "c", "third", story);
    g_clear_pointer(&db, quire_history_db_free);
    run_sql(f->path, "UPDATE message_text_data SET block = x'00112233'");
    {
        g_auto(QuireHistoryOpening) opening = {0};

        db = quire_history_db_open(f->path, &opening, NULL);
        g_assert_nonnull(db);
    }
    g_assert_cmpuint(n_found(db, "owls"), ==, 1);
}

/* A file of the first schema, as it was: it is copied, then brought up to date, and its text can be searched. */
static void test_migration(Fixture *f, gconstpointer data)
{
    g_autofree char *dir = g_path_get_dirname(f->path);
    g_autofree char *backup = g_strconcat(f->path, ".1.bak", NULL);
    g_autoptr(QuireHistoryDb) db = NULL;
    g_autoptr(GPtrArray) loaded = NULL;
    g_auto(QuireHistoryOpening) opening = {0};
    sqlite3 *sqlite;
    sqlite3_stmt *statement;

    g_mkdir_with_parents(dir, 0700);
    run_sql(f->path,
        "CREATE TABLE chat (id TEXT PRIMARY KEY NOT NULL, title TEXT, title_source INTEGER NOT NULL DEFAULT "
        "0,"
        " model_name TEXT, model_dir TEXT, model_digest TEXT, cache INTEGER NOT NULL DEFAULT 0, system TEXT,"
        " sampling TEXT, created INTEGER NOT NULL, updated INTEGER NOT NULL, pinned INTEGER NOT NULL DEFAULT "
        "0,"
        " deleted INTEGER NOT NULL DEFAULT 0, tab INTEGER NOT NULL DEFAULT -1, front INTEGER NOT NULL "
        "DEFAULT 0,"
        " draft TEXT, leaf INTEGER NOT NULL DEFAULT 0);"
        "CREATE TABLE message (n INTEGER PRIMARY KEY, chat TEXT NOT NULL, seq INTEGER NOT NULL, parent "
        "INTEGER NOT"
        " NULL, role INTEGER NOT NULL, state INTEGER NOT NULL, created INTEGER NOT NULL, text TEXT NOT NULL, "
        "UNIQUE"
        " (chat, seq));"
        "CREATE TABLE receipt (chat TEXT NOT NULL, seq INTEGER NOT NULL, figures TEXT, PRIMARY KEY (chat, "
        "seq))"
        " WITHOUT ROWID;"
        "INSERT INTO chat (id, title, created, updated) VALUES ('x', 'Old', 1, 1);"
        "INSERT INTO message (chat, seq, parent, role, state, created, text) VALUES ('x', 1, 0, 1, 4, 1, 'An "
        "old"
        " heron');"
        "PRAGMA user_version = 1;");
    db = quire_history_db_open(f->path, &opening, NULL);
    g_assert_nonnull(db);
    g_assert_cmpint(opening.version, ==, 1);
    g_assert_cmpstr(opening.backup, ==, backup);
    g_assert_cmpuint(n_found(db, "heron"), ==, 1);
    loaded = quire_history_db_load(db, "x", NULL);
    g_assert_cmpuint(loaded->len, ==, 1);

    g_assert_cmpint(sqlite3_open(backup, &sqlite), ==, SQLITE_OK);
    g_assert_cmpint(
        sqlite3_prepare_v2(sqlite, "SELECT text FROM message, pragma_user_version WHERE user_version = 1", -1,
            &statement, NULL),
        ==, SQLITE_OK);
    g_assert_cmpint(sqlite3_step(statement), ==, SQLITE_ROW);
    g_assert_cmpstr((const char *)sqlite3_column_text(statement, 0), ==, "An old heron");
    sqlite3_finalize(statement);
    sqlite3_close(sqlite);
}

/* The schema in the words that made it. */
static char *dup_schema(const char *path)
{
    g_autoptr(GString) schema = g_string_new(NULL);
    sqlite3 *sqlite;
    sqlite3_stmt *statement;

    g_assert_cmpint(sqlite3_open(path, &sqlite), ==, SQLITE_OK);
    g_assert_cmpint(
        sqlite3_prepare_v2(sqlite, "SELECT name || ': ' || ifnull(sql, '') FROM sqlite_master ORDER BY name",
            -1, &statement, NULL),
        ==, SQLITE_OK);
    while (sqlite3_step(statement) == SQLITE_ROW)
        g_string_append_printf(schema, "%s\n", sqlite3_column_text(statement, 0));
    sqlite3_finalize(statement);
    sqlite3_close(sqlite);
    return g_string_free(g_steal_pointer(&schema), FALSE);
}

/* A file of every schema that there was comes to the newest, with a copy of it beside it. */
static void test_migrations(Fixture *f, gconstpointer data)
{
    const char *texts[] = {"An old heron", NULL};
    g_autofree char *newest = NULL;

    {
        g_autoptr(QuireHistoryDb) db = open_db(f);

        save(db, "x", "Old", texts);
    }
    newest = dup_schema(f->path);
    for (int version = 1; version < QUIRE_HISTORY_VERSION; version++) {
        g_autofree char *backup = g_strdup_printf("%s.%d.bak", f->path, version);
        g_autofree char *older = NULL, *kept = NULL, *schema = NULL;
        g_autoptr(QuireHistoryDb) db = NULL;
        g_autoptr(GPtrArray) loaded = NULL;
        g_auto(QuireHistoryOpening) opening = {0};

        history_go_back(f->path, version);
        older = dup_schema(f->path);
        g_assert_cmpstr(older, !=, newest);
        db = quire_history_db_open(f->path, &opening, NULL);
        g_assert_nonnull(db);
        g_assert_cmpint(opening.version, ==, version);
        g_assert_cmpstr(opening.backup, ==, backup);
        g_assert_cmpuint(n_found(db, "heron"), ==, 1);
        loaded = quire_history_db_load(db, "x", NULL);
        g_assert_cmpuint(loaded->len, ==, 1);
        g_clear_pointer(&db, quire_history_db_free);
        schema = dup_schema(f->path);
        g_assert_cmpstr(schema, ==, newest);
        kept = dup_schema(backup);
        g_assert_cmpstr(kept, ==, older);
    }
}

/* A newer file is read, and not written to. */
static void test_newer(Fixture *f, gconstpointer data)
{
    const char *texts[] = {"kept", NULL};
    g_autoptr(QuireHistoryDb) db = open_db(f);
    g_autoptr(GError) error = NULL;
    g_autoptr(GPtrArray) chats = NULL;
    g_auto(QuireHistoryOpening) opening = {0};
    QuireStoredChat chat = {.id = (char *)"b", .created = 1, .updated = 1, .tab = -1};

    save(db, "a", "title", texts);
    g_clear_pointer(&db, quire_history_db_free);
    run_sql(f->path, "PRAGMA user_version = 99; ALTER TABLE chat ADD COLUMN colour TEXT");
    db = quire_history_db_open(f->path, &opening, &error);
    g_assert_no_error(error);
    g_assert_true(opening.read_only);
    g_assert_cmpint(opening.version, ==, 99);
    chats = quire_history_db_list(db, &error);
    g_assert_no_error(error);
    g_assert_cmpuint(chats->len, ==, 1);
    g_assert_false(quire_history_db_save(db, "b", &chat, NULL, &error));
    g_assert_error(error, QUIRE_HISTORY_ERROR, QUIRE_HISTORY_ERROR_READ_ONLY);
    g_clear_error(&error);
    g_assert_false(quire_history_db_erase(db, "a", &error));
    g_assert_error(error, QUIRE_HISTORY_ERROR, QUIRE_HISTORY_ERROR_READ_ONLY);
}

/* Wrong values in rows hide neither the row's text nor the others. */
static void test_damaged_rows(Fixture *f, gconstpointer data)
{
    const char *texts[] = {"one", "two", "three", "four", NULL};
    g_autoptr(QuireHistoryDb) db = open_db(f);
    g_autoptr(GPtrArray) chats = NULL, loaded = NULL;

    save(db, "a", "A", texts);
    save(db, "b", "B", texts);
    save(db, "c", "C", texts);
    g_clear_pointer(&db, quire_history_db_free);
    run_sql(f->path,
        "PRAGMA ignore_check_constraints = 1;"
        "UPDATE chat SET updated = 'soon', title = x'ff00ff', cache = -5, title_source = 77, leaf = -3,"
        " tab = -9 WHERE id = 'b';"
        "UPDATE message SET parent = 999, state = 'x' WHERE chat = 'b' AND seq = 3;"
        "UPDATE message SET role = 17 WHERE chat = 'b' AND seq = 2;"
        "DELETE FROM message WHERE chat = 'c' AND seq = 2;"
        "INSERT INTO receipt VALUES ('b', 2, x'00ff');");
    db = open_db(f);
    chats = quire_history_db_list(db, NULL);
    g_assert_cmpuint(chats->len, ==, 3);
    for (guint i = 0; i < chats->len; i++) {
        const QuireStoredChat *chat = g_ptr_array_index(chats, i);

        g_assert_cmpint(chat->updated, >, 0);
        g_assert_cmpint(chat->cache, >=, 0);
        g_assert_cmpint(chat->tab, >=, -1);
        if (chat->title != NULL)
            g_assert_true(g_utf8_validate(chat->title, -1, NULL));
    }
    loaded = quire_history_db_load(db, "b", NULL);
    g_assert_cmpuint(loaded->len, ==, 4);
    for (guint i = 0; i < 4; i++) {
        const QuireStoredMessage *m = g_ptr_array_index(loaded, i);

        g_assert_cmpstr(m->text, ==, texts[i]);
        g_assert_cmpuint(m->parent, ==, i);
        g_assert_cmpint(m->role, ==, i % 2 == 0 ? QE_ROLE_USER : QE_ROLE_ASSISTANT);
    }
    g_ptr_array_unref(loaded);
    loaded = quire_history_db_load(db, "c", NULL);
    g_assert_cmpuint(loaded->len, ==, 3);
    g_assert_cmpuint(((QuireStoredMessage *)g_ptr_array_index(loaded, 1))->parent, ==, 1);
}

static void overwrite(const char *path, gsize at, gsize n)
{
    g_autofree char *junk = g_malloc(n);
    FILE *file = g_fopen(path, "r+b");

    memset(junk, 0xa5, n);
    g_assert_nonnull(file);
    fseek(file, (long)at, SEEK_SET);
    g_assert_cmpuint(fwrite(junk, 1, n, file), ==, n);
    fclose(file);
}

/* A file that is no database, and one whose pages are spoilt, are put aside whole, and a new one is begun. */
static void test_damaged_file(Fixture *f, gconstpointer data)
{
    const char *texts[] = {"something", NULL};

    for (int kind = 0; kind < 3; kind++) {
        g_auto(QuireHistoryOpening) opening = {0};
        g_autoptr(QuireHistoryDb) db = open_db(f);
        g_autoptr(GPtrArray) chats = NULL;
        g_autoptr(GError) error = NULL;

        for (int i = 0; i < 200; i++) {
            g_autofree char *id = g_strdup_printf("id%d", i);

            save(db, id, "A title that takes some room in its page of the file", texts);
        }
        g_clear_pointer(&db, quire_history_db_free);
        if (kind == 0)
            g_file_set_contents(f->path, "This is no database at all, it is a letter.", -1, NULL);
        else if (kind == 1)
            overwrite(f->path, 0, 100);
        else
            overwrite(f->path, 4096, 8192);
        db = quire_history_db_open(f->path, &opening, &error);
        g_assert_no_error(error);
        g_assert_nonnull(db);
        g_assert_nonnull(opening.moved_to);
        g_assert_true(g_file_test(opening.moved_to, G_FILE_TEST_EXISTS));
        chats = quire_history_db_list(db, NULL);
        g_assert_cmpuint(chats->len, ==, 0);
        save(db, "new", "New", texts);
        g_assert_cmpuint(n_found(db, "something"), ==, 1);
        g_clear_pointer(&db, quire_history_db_free);
        remove_tree(f->dir);
    }
}

/* A place that cannot be written: an error that says so, nothing worse. */
static void test_unwritable(Fixture *f, gconstpointer data)
{
    g_auto(QuireHistoryOpening) opening = {0};
    g_autofree char *dir = g_path_get_dirname(f->path);
    g_autoptr(GError) error = NULL;

    /* The parent is a file: so it is for root too. */
    g_file_set_contents(dir, "", 0, NULL);
    g_assert_null(quire_history_db_open(f->path, &opening, &error));
    g_assert_error(error, QUIRE_HISTORY_ERROR, QUIRE_HISTORY_ERROR_READ_ONLY);
}

/* The disk fills up (a limit on the size of files, in a child): the write is refused with an error, what was there stays,
 * and later writes work again. */
static void test_full(Fixture *f, gconstpointer data)
{
    g_autoptr(QuireHistoryDb) db = open_db(f);
    g_autoptr(GPtrArray) loaded = NULL;
    const char *texts[] = {"before", NULL};
    int status;
    pid_t pid;

    save(db, "a", "A", texts);
    g_clear_pointer(&db, quire_history_db_free);
    pid = fork();
    if (pid == 0) {
        struct rlimit limit = {512 << 10, 512 << 10};
        g_auto(QuireHistoryOpening) opening = {0};
        g_autoptr(GPtrArray) messages = messages_new();
        g_autofree char *big = g_malloc(4 << 20);
        GError *error = NULL;
        int rc = 0;

        signal(SIGXFSZ, SIG_IGN);
        memset(big, 'x', 4 << 20);
        db = quire_history_db_open(f->path, &opening, NULL);
        setrlimit(RLIMIT_FSIZE, &limit);
        g_ptr_array_add(
            messages, quire_stored_message_new(2, 1, QE_ROLE_ASSISTANT, QUIRE_REPLY_DONE, big, 4 << 20));
        if (quire_history_db_save(db, "a", NULL, messages, &error) || error == NULL)
            rc = 1;
        g_ptr_array_set_size(messages, 0);
        g_ptr_array_add(
            messages, quire_stored_message_new(2, 1, QE_ROLE_ASSISTANT, QUIRE_REPLY_DONE, "small", 5));
        if (!quire_history_db_save(db, "a", NULL, messages, NULL))
            rc |= 2;
        _exit(rc);
    }
    g_assert_cmpint(waitpid(pid, &status, 0), ==, pid);
    g_assert_true(WIFEXITED(status));
    g_assert_cmpint(WEXITSTATUS(status), ==, 0);
    db = open_db(f);
    loaded = quire_history_db_load(db, "a", NULL);
    g_assert_cmpuint(loaded->len, ==, 2);
    g_assert_cmpstr(((QuireStoredMessage *)g_ptr_array_index(loaded, 0))->text, ==, "before");
    g_assert_cmpstr(((QuireStoredMessage *)g_ptr_array_index(loaded, 1))->text, ==, "small");
}

/* ---- Killed at any point ---- */

/* The child: turns, replies that grow, titles and deletions, for ever. After each commit it says so:
 * "+ID SEQ" a message is safe, "-ID" a conversation is to go, "=ID" it is gone. */
static void write_for_ever(const char *path, guint32 seed, int fd)
{
    g_auto(QuireHistoryOpening) opening = {0};
    QuireHistoryDb *db = quire_history_db_open(path, &opening, NULL);
    g_autoptr(GRand) random = g_rand_new_with_seed(seed);

    if (db == NULL)
        _exit(3);
    for (guint n = 0;; n++) {
        g_autofree char *id = g_strdup_printf("%u-%u", seed, n);
        guint n_turns = (guint)g_rand_int_range(random, 1, 5);
        QuireStoredChat chat = {.id = id, .title = id, .created = 1, .updated = g_get_real_time(), .tab = 0};

        for (guint seq = 1; seq <= 2 * n_turns; seq++) {
            g_autoptr(GPtrArray) messages = messages_new();
            g_autofree char *text = g_strdup_printf("word%u of message %u in %s", seed, seq, id);
            gboolean reply = seq % 2 == 0;

            chat.leaf = seq;
            g_ptr_array_add(
                messages, quire_stored_message_new(seq, seq - 1, reply ? QE_ROLE_ASSISTANT : QE_ROLE_USER,
                              reply ? QUIRE_REPLY_WRITING : QUIRE_REPLY_DONE, text, strlen(text)));
            if (!quire_history_db_save(db, id, &chat, messages, NULL))
                _exit(4);
            dprintf(fd, "+%s %u\n", id, seq);
            for (int grown = 0; reply && grown < 3; grown++) {
                QuireStoredMessage *m = g_ptr_array_index(messages, 0);
                char *longer = g_strconcat(m->text, " and more", NULL);

                g_free(m->text);
                m->text = longer;
                m->n_bytes = strlen(longer);
                m->state = grown == 2 ? QUIRE_REPLY_DONE : QUIRE_REPLY_WRITING;
                if (!quire_history_db_save(db, id, NULL, messages, NULL))
                    _exit(5);
            }
        }
        if (g_rand_int_range(random, 0, 4) == 0) {
            dprintf(fd, "-%s\n", id);
            if (!quire_history_db_erase(db, id, NULL))
                _exit(6);
            dprintf(fd, "=%s\n", id);
        }
    }
}

/* @safe: "ID SEQ" of messages that were acknowledged. @going, @gone: ids. */
static void check_all(const char *path, GHashTable *safe, GHashTable *going, GHashTable *gone)
{
    g_auto(QuireHistoryOpening) opening = {0};
    g_autoptr(GError) error = NULL;
    g_autoptr(QuireHistoryDb) db = quire_history_db_open(path, &opening, &error);
    g_autoptr(GHashTable) present = g_hash_table_new_full(g_str_hash, g_str_equal, g_free, NULL);
    g_autoptr(GPtrArray) chats = NULL;
    GHashTableIter iter;
    gpointer key;

    g_assert_no_error(error);
    g_assert_null(opening.moved_to); /* quick_check was passed */
    chats = quire_history_db_list(db, &error);
    g_assert_no_error(error);
    for (guint i = 0; i < chats->len; i++) {
        const QuireStoredChat *chat = g_ptr_array_index(chats, i);
        g_autoptr(GPtrArray) messages = quire_history_db_load(db, chat->id, &error);

        g_assert_no_error(error);
        g_assert_false(g_hash_table_contains(gone, chat->id));
        g_assert_cmpuint(messages->len, ==, chat->leaf);
        for (guint k = 0; k < messages->len; k++) {
            const QuireStoredMessage *m = g_ptr_array_index(messages, k);
            g_autofree char *head = g_strdup_printf(" of message %u in %s", m->seq, chat->id);

            g_assert_nonnull(strstr(m->text, head));
            /* None is left as running. */
            g_assert_cmpint(m->state, >=, QUIRE_REPLY_DONE);
            g_hash_table_add(present, g_strdup_printf("%s %u", chat->id, m->seq));
        }
    }
    g_hash_table_iter_init(&iter, safe);
    while (g_hash_table_iter_next(&iter, &key, NULL)) {
        g_autofree char *id = g_strndup(key, strcspn(key, " "));

        if (!g_hash_table_contains(going, id) && !g_hash_table_contains(present, key))
            g_error("lost: %s", (char *)key);
    }
    /* The search finds what is there, and only that. */
    {
        g_autoptr(GPtrArray) found = quire_history_db_search(db, "message", &error);

        g_assert_no_error(error);
        g_assert_cmpuint(found->len, ==, chats->len);
    }
}

static void note_line(const char *line, GHashTable *safe, GHashTable *going, GHashTable *gone)
{
    if (line[0] == '+')
        g_hash_table_add(safe, g_strdup(line + 1));
    else if (line[0] == '-')
        g_hash_table_add(going, g_strdup(line + 1));
    else if (line[0] == '=')
        g_hash_table_add(gone, g_strdup(line + 1));
}

static void test_killed(Fixture *f, gconstpointer data)
{
    g_autoptr(GHashTable) safe = g_hash_table_new_full(g_str_hash, g_str_equal, g_free, NULL);
    g_autoptr(GHashTable) going = g_hash_table_new_full(g_str_hash, g_str_equal, g_free, NULL);
    g_autoptr(GHashTable) gone = g_hash_table_new_full(g_str_hash, g_str_equal, g_free, NULL);
    const char *wanted = g_getenv("QUIRE_TEST_KILLS");
    guint n_safe = 0;
    guint n_kills = wanted != NULL ? (guint)g_ascii_strtoull(wanted, NULL, 10) : 60;

    for (guint i = 0; i < n_kills; i++) {
        g_autoptr(GString) said = g_string_new(NULL);
        g_auto(GStrv) lines = NULL;
        int fds[2], status;
        char buffer[4096];
        ssize_t n;
        pid_t pid;

        if (i % 100 == 99) /* the files stay small */
        {
            g_hash_table_remove_all(safe);
            g_hash_table_remove_all(going);
            g_hash_table_remove_all(gone);
            remove_tree(f->dir);
        }
        g_assert_cmpint(pipe(fds), ==, 0);
        pid = fork();
        if (pid == 0) {
            close(fds[0]);
            write_for_ever(f->path, i, fds[1]);
        }
        close(fds[1]);
        /* Any point, from before the file is there to many turns later. */
        g_usleep((gulong)g_test_rand_int_range(0, 60000));
        kill(pid, SIGKILL);
        g_assert_cmpint(waitpid(pid, &status, 0), ==, pid);
        g_assert_true(WIFSIGNALED(status));
        while ((n = read(fds[0], buffer, sizeof buffer)) > 0)
            g_string_append_len(said, buffer, n);
        close(fds[0]);
        lines = g_strsplit(said->str, "\n", -1);
        for (int k = 0; lines[k] != NULL && lines[k + 1] != NULL; k++) {
            note_line(lines[k], safe, going, gone);
            n_safe += lines[k][0] == '+';
        }
        check_all(f->path, safe, going, gone);
    }
    g_test_message("%u kills, %u acknowledged messages", n_kills, n_safe);
    g_assert_cmpuint(n_safe, >, 0);
}

int main(int argc, char **argv)
{
    g_test_init(&argc, &argv, NULL);
#define ADD(name, function) g_test_add("/app/history-db/" name, Fixture, NULL, set_up, function, tear_down)
    ADD("round-trip", test_round_trip);
    ADD("search", test_search);
    ADD("migration", test_migration);
    ADD("migrations", test_migrations);
    ADD("newer", test_newer);
    ADD("damaged-rows", test_damaged_rows);
    ADD("damaged-file", test_damaged_file);
    ADD("unwritable", test_unwritable);
    ADD("full", test_full);
    ADD("killed", test_killed);
    return g_test_run();
}
