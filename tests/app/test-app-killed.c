/* test-app-killed.c: conversations survive SIGKILL at any point. No GTK.
 *
 * A child (this program again) writes with the shipped model as the window would: it sends, edits, regenerates, goes on,
 * flips, moves to the trash and back, and erases, through QuireConversation and QuireHistory, with pages on disk; each
 * few kills it first has to migrate an older database. It says on a pipe what a user has seen. After each kill the parent
 * holds the database to that: it opens and is sound, every message that the model was asked about is there, a reply
 * lacks no text that was on the screen for more than a second, the search finds what is shown. For some, the next answer
 * is compared with that of a session that knows nothing of the past.
 *
 * QUIRE_TEST_KILLS: how often (24). QUIRE_TEST_KILL_DELAY: the longest life in ms (1200). QUIRE_TEST_KILL_LACK: text
 * that was shown for so many ms must be there (default 5000: what a busy machine's disk may take beside the second that
 * the application promises; the largest lack seen is printed). QUIRE_TEST_SEED: of the first child. */
#include <fcntl.h>
#include <glib/gstdio.h>
#include <signal.h>
#include <sqlite3.h>
#include <stdio.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "app/quire-conversation.h"
#include "tests/app/history-undo.h"

static const char *program;

/* ---- The child ---- */

typedef struct {
    QuireHistory *history;
    QuireEngineClient *client;
    QuireConversation *conversation;
    GRand *random;
    guint32 seed;
    guint n_said;
    guint stop_id;
} Child;

/* One write a line, so that a kill cuts between lines. */
static void G_GNUC_PRINTF(1, 2) tell(const char *format, ...)
{
    g_autofree char *line = NULL;
    va_list args;
    gsize n;

    va_start(args, format);
    line = g_strdup_vprintf(format, args);
    va_end(args);
    n = strlen(line);
    if (write(STDOUT_FILENO, line, n) != (ssize_t)n)
        _exit(9);
}

static gboolean draw(Child *c, int percent)
{
    return g_rand_int_range(c->random, 0, 100) < percent;
}

static const char *chat_id(QuireConversation *conversation)
{
    return quire_history_item_get(quire_conversation_get_item(conversation))->id;
}

static void iterate_until(gboolean (*condition)(gpointer), gpointer data)
{
    while (!condition(data))
        g_main_context_iteration(NULL, TRUE);
}

static gboolean history_is_open(gpointer history)
{
    return quire_history_is_open(history);
}

static gboolean client_is_ready(gpointer client)
{
    return quire_engine_client_is_ready(client);
}

static gboolean is_quiet(gpointer conversation)
{
    return quire_conversation_is_loaded(conversation) && !quire_conversation_is_running(conversation);
}

/* What a user sees: once the engine speaks, the message is safe ("u"); the reply's text as it grows ("r"). */
static void reply_changed_cb(QuireMessage *reply, QuireConversation *conversation)
{
    guint n = g_list_model_get_n_items(G_LIST_MODEL(conversation));
    gsize n_bytes;

    quire_message_get_text(reply, &n_bytes);
    if (quire_message_get_state(reply) != QUIRE_REPLY_WAITING &&
        g_object_get_data(G_OBJECT(reply), "told") == NULL) {
        g_autoptr(QuireMessage) user = g_list_model_get_item(G_LIST_MODEL(conversation), n - 2);

        g_object_set_data(G_OBJECT(reply), "told", reply);
        tell("u %s %u %s\n", chat_id(conversation), quire_message_get_seq(user),
            quire_message_get_text(user, NULL));
    }
    tell("r %s %u %" G_GSIZE_FORMAT " %" G_GINT64_FORMAT "\n", chat_id(conversation),
        quire_message_get_seq(reply), n_bytes, g_get_monotonic_time());
}

static void begin(Child *c, gboolean begun)
{
    QuireMessage *reply = quire_conversation_get_last_reply(c->conversation);

    if (!begun)
        return;
    tell("b %s %u\n", chat_id(c->conversation), quire_message_get_seq(reply));
    g_signal_connect_object(reply, "changed", G_CALLBACK(reply_changed_cb), c->conversation, 0);
}

static void pump_cb(QuireConversation *conversation)
{
    quire_conversation_pump(conversation);
}

static void show(Child *c, QuireHistoryItem *item)
{
    if (c->conversation != NULL) {
        quire_conversation_close(c->conversation);
        g_object_unref(c->conversation);
    }
    c->conversation = quire_conversation_new_kept(c->client, c->history, item);
    g_signal_connect(c->conversation, "news", G_CALLBACK(pump_cb), NULL);
    if (item != NULL)
        quire_conversation_load(c->conversation);
    iterate_until(is_quiet, c->conversation);
    quire_conversation_warm(c->conversation);
}

/* A random conversation in (or out of) the trash; NULL: there is none. Owned. */
static QuireHistoryItem *pick(Child *c, gboolean deleted)
{
    GListModel *items = quire_history_get_items(c->history);
    guint n = g_list_model_get_n_items(items);
    guint at = n > 0 ? (guint)g_rand_int_range(c->random, 0, (gint32)n) : 0;

    for (guint i = 0; i < n; i++) {
        g_autoptr(QuireHistoryItem) item = g_list_model_get_item(items, (at + i) % n);
        const QuireStoredChat *chat = quire_history_item_get(item);

        if ((chat->deleted != 0) == deleted && strcmp(chat->id, "filler") != 0)
            return g_steal_pointer(&item);
    }
    return NULL;
}

static QuireMessage *pick_message(Child *c)
{
    guint n = g_list_model_get_n_items(G_LIST_MODEL(c->conversation));

    return n == 0 ? NULL
                  : g_list_model_get_item(G_LIST_MODEL(c->conversation),
                        (guint)g_rand_int_range(c->random, 0, (gint32)n / 2) * 2);
}

static char *dup_words(Child *c)
{
    static const char *const words[] = {
        "My name is Oda.", "What is my name?", "Tell me a story.", "What is a KV cache?", "Thank you."};

    return g_strdup_printf(
        "w%ux%uw %s", c->seed, ++c->n_said, words[g_rand_int_range(c->random, 0, G_N_ELEMENTS(words))]);
}

static void change_trash(Child *c)
{
    g_autoptr(QuireHistoryItem) item = pick(c, draw(c, 50));

    if (item == NULL)
        return;
    if (quire_history_item_get(item)->deleted == 0) {
        if (item == quire_conversation_get_item(c->conversation))
            show(c, NULL);
        quire_history_set_deleted(c->history, item, TRUE);
    } else if (draw(c, 60)) {
        quire_history_set_deleted(c->history, item, FALSE);
    } else {
        tell("e %s\n", quire_history_item_get(item)->id);
        quire_engine_client_delete_files(c->client, quire_history_item_get(item)->id);
        quire_history_erase(c->history, item);
    }
}

static gboolean stop_cb(gpointer data)
{
    Child *c = data;

    c->stop_id = 0;
    quire_conversation_stop(c->conversation);
    return G_SOURCE_REMOVE;
}

static void act(Child *c)
{
    static const guint lengths[] = {6, 40, 400};
    QuireTurnSettings settings = {.max_tokens = lengths[g_rand_int_range(c->random, 0, 3)]};
    g_autofree char *text = dup_words(c);
    g_autoptr(QuireMessage) message = pick_message(c);
    int what = g_rand_int_range(c->random, 0, 100);

    qe_sampling_params_init(&settings.sampling, quire_engine_client_get_status(c->client)->model);
    settings.sampling.temperature = 1.3f;
    if (what < 45 && g_list_model_get_n_items(G_LIST_MODEL(c->conversation)) < 10)
        begin(c, quire_conversation_send(c->conversation, text, &settings));
    else if (what < 58 && message != NULL)
        begin(c, quire_conversation_edit(c->conversation, message, text, &settings));
    else if (what < 66)
        begin(c, quire_conversation_regenerate(c->conversation, &settings));
    else if (what < 72)
        begin(c, quire_conversation_continue(c->conversation, &settings));
    else if (what < 80 && message != NULL)
        quire_conversation_flip(c->conversation, message, draw(c, 50) ? 1 : -1);
    else if (what < 90)
        change_trash(c);
    else {
        g_autoptr(QuireHistoryItem) item = draw(c, 50) ? pick(c, FALSE) : NULL;

        show(c, item);
    }
    if (quire_conversation_is_running(c->conversation) && draw(c, 25))
        c->stop_id = g_timeout_add((guint)g_rand_int_range(c->random, 0, 500), stop_cb, c);
    iterate_until(is_quiet, c->conversation);
    g_clear_handle_id(&c->stop_id, g_source_remove);
}

static void child_start(Child *c, const char *dir, guint32 seed)
{
    g_autofree char *path = g_build_filename(dir, "history.db", NULL);
    g_autofree char *pages = g_build_filename(dir, "pages", NULL);
    g_autoptr(GError) error = NULL;
    qe_engine_options options = {.backend = "cpu",
        .isa = "reference",
        .n_threads = 1,
        .kv_bytes_max = 16 << 20,
        .host_bytes_max = 16 << 20,
        .disk_dir = pages,
        .disk_bytes_max = 64 << 20};

    *c = (Child){.seed = seed, .random = g_rand_new_with_seed(seed)};
    c->history = quire_history_new(path);
    c->client = quire_engine_client_new();
    if (!quire_engine_client_start(c->client, &options, &error))
        g_error("%s", error->message);
    quire_engine_client_load(c->client, g_getenv("QUIRE_TEST_MODEL"));
    iterate_until(history_is_open, c->history);
    if (quire_history_get_trouble(c->history) != NULL)
        g_error("%s", quire_history_get_trouble(c->history));
    iterate_until(client_is_ready, c->client);
    show(c, NULL);
    tell("s\n");
}

static void child_end(Child *c)
{
    quire_conversation_close(c->conversation);
    g_object_unref(c->conversation);
    g_object_unref(c->client);
    quire_history_close(c->history);
    while (g_main_context_iteration(NULL, FALSE)) {
    }
    g_object_unref(c->history);
    g_rand_free(c->random);
}

static void write_for_ever(const char *dir, guint32 seed)
{
    Child c;

    tell("o\n");
    child_start(&c, dir, seed);
    for (;;)
        act(&c);
}

static gboolean request_is_done(gpointer data)
{
    g_usleep(1000);
    return ((QuireMessage *)data == NULL) || !quire_message_is_running(data);
}

/* The conversation goes on; then a session without a past, that shares with none, is asked the same. */
static int compare_answers(const char *dir, const char *id)
{
    g_autoptr(GError) error = NULL;
    g_autoptr(GArray) prompt = NULL;
    g_autoptr(GString) fresh = g_string_new(NULL);
    QuireTurnSettings settings = {.max_tokens = 24};
    qe_session_options options;
    qe_generate_params params;
    qe_request *request;
    gboolean done = FALSE;
    gsize n_bytes;
    const char *text;
    QuireMessage *reply;
    Child c;

    child_start(&c, dir, 0);
    show(&c, quire_history_find(c.history, id));
    qe_sampling_params_init(&settings.sampling, quire_engine_client_get_status(c.client)->model);
    settings.sampling.temperature = 0;
    g_assert_true(quire_conversation_send(c.conversation, "What is my name?", &settings));
    iterate_until(is_quiet, c.conversation);
    reply = quire_conversation_get_last_reply(c.conversation);
    iterate_until(request_is_done, reply);
    text = quire_message_get_text(reply, &n_bytes);
    tell("reused %u of %u\n", quire_message_get_reply(reply)->receipt.n_reused,
        quire_message_get_reply(reply)->receipt.n_prompt);

    prompt = quire_conversation_dup_last_prompt(c.conversation);
    qe_session_options_init(&options);
    options.cache.use_cache = false;
    qe_generate_params_init(&params, quire_engine_client_get_status(c.client)->model);
    params.session = quire_engine_client_open_session(c.client, &options, &error);
    params.sampling = settings.sampling;
    params.max_tokens = settings.max_tokens;
    params.whole_history = true;
    params.messages = (const qe_message *)(gpointer)prompt->data;
    params.n_messages = prompt->len;
    request = quire_engine_client_generate(c.client, &params, &error);
    g_assert_no_error(error);
    while (!done) {
        qe_update update = {0};

        if (qe_request_take(request, &update)) {
            g_string_append_len(fresh, update.text, (gssize)update.n_text);
            done = update.state == QE_REQUEST_DONE;
            g_assert_cmpuint(update.receipt.n_reused, ==, 0);
        }
        qe_update_clear(&update);
        if (!done)
            g_main_context_iteration(NULL, FALSE), qe_request_wait(request, 20);
    }
    g_assert_cmpuint(fresh->len, ==, n_bytes);
    g_assert_cmpmem(fresh->str, fresh->len, text, n_bytes);
    qe_request_unref(request);
    child_end(&c);
    return 0;
}

/* ---- The parent ---- */

typedef struct {
    gsize n_bytes;
    gint64 when; /* it was shown */
} Shown;

/* What users have seen, over all kills of one database. */
typedef struct {
    char *dir, *path;
    GHashTable *safe;   /* "CHAT SEQ" -> text of the user's message */
    GHashTable *shown;  /* "CHAT SEQ" -> GArray of Shown, of the last child */
    GHashTable *erased; /* ids whose erasing was asked for */
    guint n_user, n_replies, n_backups, n_answers;
    gint64 lack_us_max;
} Witness;

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

static guint number_from_environment(const char *name, guint otherwise)
{
    const char *value = g_getenv(name);

    return value != NULL ? (guint)g_ascii_strtoull(value, NULL, 10) : otherwise;
}

static int query_int(sqlite3 *db, const char *sql)
{
    sqlite3_stmt *statement = NULL;
    int value;

    g_assert_cmpint(sqlite3_prepare_v2(db, sql, -1, &statement, NULL), ==, SQLITE_OK);
    g_assert_cmpint(sqlite3_step(statement), ==, SQLITE_ROW);
    value = sqlite3_column_int(statement, 0);
    sqlite3_finalize(statement);
    return value;
}

static void execute(sqlite3 *db, const char *sql)
{
    char *message = NULL;

    if (sqlite3_exec(db, sql, NULL, NULL, &message) != SQLITE_OK)
        g_error("%s: %s", sql, message);
}

/* A chat of many messages, so that a migration lasts. */
static void fill(Witness *w)
{
    g_auto(QuireHistoryOpening) opening = {0};
    g_autoptr(GError) error = NULL;
    g_autoptr(QuireHistoryDb) db = quire_history_db_open(w->path, &opening, &error);
    g_autoptr(GPtrArray) messages = g_ptr_array_new_with_free_func((GDestroyNotify)quire_stored_message_free);
    QuireStoredChat chat = {.id = (char *)"filler", .title = (char *)"filler", .tab = -1, .leaf = 1500};

    g_assert_no_error(error);
    for (guint seq = 1; seq <= chat.leaf; seq++) {
        g_autoptr(GString) text = g_string_new("filler");

        for (guint k = 0; k < 40; k++)
            g_string_append_printf(text, " number%u", seq * 41 + k);
        g_ptr_array_add(
            messages, quire_stored_message_new(seq, seq - 1, seq % 2 == 1 ? QE_ROLE_USER : QE_ROLE_ASSISTANT,
                          QUIRE_REPLY_DONE, text->str, text->len));
    }
    g_assert_true(quire_history_db_save(db, chat.id, &chat, messages, &error));
}

/* The file as the kill left it, before the application has seen it. Returns its schema's number. */
static int check_file(const char *path)
{
    sqlite3 *db = NULL;
    sqlite3_stmt *statement = NULL;
    int version;

    g_assert_cmpint(sqlite3_open(path, &db), ==, SQLITE_OK);
    g_assert_cmpint(sqlite3_prepare_v2(db, "PRAGMA integrity_check", -1, &statement, NULL), ==, SQLITE_OK);
    g_assert_cmpint(sqlite3_step(statement), ==, SQLITE_ROW);
    g_assert_cmpstr((const char *)sqlite3_column_text(statement, 0), ==, "ok");
    sqlite3_finalize(statement);
    version = history_version(db);
    if (version > 1) /* it has the search's index */
        execute(db, "INSERT INTO message_text (message_text, rank) VALUES ('integrity-check', 1)");
    sqlite3_close(db);
    return version;
}

static gboolean found(QuireHistoryDb *db, const char *id, const char *query)
{
    g_autoptr(GError) error = NULL;
    g_autoptr(GPtrArray) ids = quire_history_db_search(db, query, &error);

    g_assert_no_error(error);
    return g_ptr_array_find_with_equal_func(ids, id, g_str_equal, NULL);
}

/* The first word of eight letters and digits or more; NULL: none. */
static char *dup_word(const char *text)
{
    for (const char *p = text; *p != '\0'; p++) {
        gsize n = 0;

        while (g_ascii_isalnum(p[n]))
            n++;
        if (n >= 8)
            return g_strndup(p, n);
        p += n > 0 ? n - 1 : 0;
    }
    return NULL;
}

static void check_reply(
    Witness *w, const char *key, const QuireStoredMessage *m, gint64 killed, gint64 lack_us)
{
    GArray *shown = g_hash_table_lookup(w->shown, key);

    g_assert_cmpint(m->state, >=, QUIRE_REPLY_DONE); /* none is left as running */
    if (shown == NULL)
        return;
    w->n_replies++;
    for (guint i = 0; i < shown->len; i++) {
        const Shown *s = &g_array_index(shown, Shown, i);

        if (s->n_bytes <= m->n_bytes)
            continue;
        w->lack_us_max = MAX(w->lack_us_max, killed - s->when);
        if (killed - s->when > lack_us)
            g_error("%s: %" G_GSIZE_FORMAT " bytes were shown for %" G_GINT64_FORMAT " ms, %" G_GSIZE_FORMAT
                    " are there",
                key, s->n_bytes, (killed - s->when) / 1000, m->n_bytes);
        break;
    }
}

static void check_all(Witness *w, gint64 killed, gint64 lack_us)
{
    g_auto(QuireHistoryOpening) opening = {0};
    g_autoptr(GError) error = NULL;
    g_autoptr(GHashTable) present = g_hash_table_new_full(g_str_hash, g_str_equal, g_free, g_free);
    g_autoptr(GPtrArray) chats = NULL;
    g_autoptr(QuireHistoryDb) db = quire_history_db_open(w->path, &opening, &error);
    GHashTableIter iter;
    gpointer key, value;

    g_assert_no_error(error);
    g_assert_null(opening.moved_to);
    g_assert_false(opening.read_only);
    chats = quire_history_db_list(db, &error);
    g_assert_no_error(error);
    for (guint i = 0; i < chats->len; i++) {
        const QuireStoredChat *chat = g_ptr_array_index(chats, i);
        g_autoptr(GPtrArray) messages = quire_history_db_load(db, chat->id, &error);
        gboolean leaf = messages->len == 0;

        g_assert_no_error(error);
        for (guint k = 0; k < messages->len; k++) {
            const QuireStoredMessage *m = g_ptr_array_index(messages, k);
            char *name = g_strdup_printf("%s %u", chat->id, m->seq);

            g_assert_cmpuint(m->parent, <, m->seq);
            leaf |= m->seq == chat->leaf;
            if (m->role == QE_ROLE_ASSISTANT)
                check_reply(w, name, m, killed, lack_us);
            g_hash_table_insert(present, name, g_strndup(m->text, m->n_bytes));
            /* The search finds it, unless it is in the trash. Of the filler a sample is enough. */
            if (strcmp(chat->id, "filler") != 0 || k % 500 == 0) {
                g_autofree char *word = dup_word(m->text);

                if (word != NULL)
                    g_assert_cmpint(found(db, chat->id, word), ==, chat->deleted == 0);
            }
        }
        g_assert_true(leaf);
    }
    g_assert_true(g_hash_table_contains(present, "filler 1500"));
    g_hash_table_iter_init(&iter, w->safe);
    while (g_hash_table_iter_next(&iter, &key, &value)) {
        g_autofree char *id = g_strndup(key, strcspn(key, " "));

        if (!g_hash_table_contains(w->erased, id))
            g_assert_cmpstr(g_hash_table_lookup(present, key), ==, value);
    }
}

static void note_line(Witness *w, const char *line)
{
    g_auto(GStrv) parts = g_strsplit(line, " ", 4);
    guint n = g_strv_length(parts);
    g_autofree char *key = n >= 3 ? g_strdup_printf("%s %s", parts[1], parts[2]) : NULL;

    if (n == 4 && line[0] == 'u') {
        g_hash_table_insert(w->safe, g_strdup(key), g_strdup(parts[3]));
        w->n_user++;
    } else if (n == 3 && line[0] == 'b')
        g_hash_table_remove(w->shown, key);
    else if (n == 2 && line[0] == 'e')
        g_hash_table_add(w->erased, g_strdup(parts[1]));
    else if (n == 4 && line[0] == 'r') {
        GArray *shown = g_hash_table_lookup(w->shown, key);
        Shown s = {(gsize)g_ascii_strtoull(parts[3], NULL, 10),
            (gint64)g_ascii_strtoull(strrchr(line, ' '), NULL, 10)};

        if (shown == NULL) {
            shown = g_array_new(FALSE, FALSE, sizeof(Shown));
            g_hash_table_insert(w->shown, g_strdup(key), shown);
        }
        g_array_append_val(shown, s);
    }
}

static pid_t start(const char *how, const char *dir, const char *what, int *fd)
{
    int fds[2];
    pid_t pid;

    g_assert_cmpint(pipe(fds), ==, 0);
    fcntl(fds[1], F_SETPIPE_SZ, 1 << 20);
    pid = fork();
    if (pid == 0) {
        dup2(fds[1], STDOUT_FILENO);
        close(fds[0]);
        close(fds[1]);
        execl(program, program, how, dir, what, (char *)NULL);
        _exit(8);
    }
    close(fds[1]);
    *fd = fds[0];
    return pid;
}

static char *read_all(int fd)
{
    GString *said = g_string_new(NULL);
    char buffer[4096];
    ssize_t n;

    while ((n = read(fd, buffer, sizeof buffer)) > 0)
        g_string_append_len(said, buffer, n);
    close(fd);
    return g_string_free(said, FALSE);
}

static void read_bytes(int fd, char *out, gsize n)
{
    while (n > 0) {
        ssize_t got = read(fd, out, n);

        g_assert_cmpint(got, >, 0);
        out += got;
        n -= (gsize)got;
    }
}

/* Copies made before migrations are whole. FALSE: there is none. */
static gboolean check_backup(Witness *w)
{
    g_autofree char *backup = g_strconcat(w->path, ".1.bak", NULL);
    sqlite3 *db = NULL;

    if (!g_file_test(backup, G_FILE_TEST_EXISTS))
        return FALSE;
    g_assert_cmpint(check_file(backup), ==, 1);
    g_assert_cmpint(sqlite3_open(backup, &db), ==, SQLITE_OK);
    g_assert_cmpint(query_int(db, "SELECT count(*) FROM message WHERE chat = 'filler'"), ==, 1500);
    sqlite3_close(db);
    g_unlink(backup);
    return TRUE;
}

static void check_answer(Witness *w)
{
    g_autofree char *id = NULL, *said = NULL;
    int fd, status;
    pid_t pid;

    {
        g_auto(QuireHistoryOpening) opening = {0};
        g_autoptr(QuireHistoryDb) db = quire_history_db_open(w->path, &opening, NULL);
        g_autoptr(GPtrArray) chats = quire_history_db_list(db, NULL);
        gint64 newest = 0;

        for (guint i = 0; i < chats->len; i++) {
            const QuireStoredChat *chat = g_ptr_array_index(chats, i);

            if (chat->deleted == 0 && chat->updated > newest && strcmp(chat->id, "filler") != 0) {
                newest = chat->updated;
                g_free(id);
                id = g_strdup(chat->id);
            }
        }
    }
    if (id == NULL)
        return;
    pid = start("--answer", w->dir, id, &fd);
    said = read_all(fd);
    g_assert_cmpint(waitpid(pid, &status, 0), ==, pid);
    g_test_message("%s", said);
    g_assert_true(WIFEXITED(status));
    g_assert_cmpint(WEXITSTATUS(status), ==, 0);
    w->n_answers++;
}

static void witness_begin(Witness *w)
{
    /* SIGKILL takes nothing from the system's cache, so memory does for a disk, and more happens between two kills. */
    w->dir = g_strdup("/dev/shm/quire-killed-XXXXXX");
    if (g_getenv("TMPDIR") != NULL || g_mkdtemp(w->dir) == NULL) {
        g_free(w->dir);
        w->dir = g_dir_make_tmp("quire-killed-XXXXXX", NULL);
    }
    w->path = g_build_filename(w->dir, "history.db", NULL);
    w->safe = g_hash_table_new_full(g_str_hash, g_str_equal, g_free, g_free);
    w->shown = g_hash_table_new_full(g_str_hash, g_str_equal, g_free, (GDestroyNotify)g_array_unref);
    w->erased = g_hash_table_new_full(g_str_hash, g_str_equal, g_free, NULL);
    fill(w);
}

static void witness_end(Witness *w)
{
    remove_tree(w->dir);
    g_free(w->dir);
    g_free(w->path);
    g_hash_table_unref(w->safe);
    g_hash_table_unref(w->shown);
    g_hash_table_unref(w->erased);
}

static void test_killed(void)
{
    guint n_kills = number_from_environment("QUIRE_TEST_KILLS", 24), n_older = 0, n_mid = 0;
    guint delay_ms = number_from_environment("QUIRE_TEST_KILL_DELAY", 1200);
    gint64 lack_us = number_from_environment("QUIRE_TEST_KILL_LACK", 5000) * (gint64)1000;
    guint32 seed = number_from_environment("QUIRE_TEST_SEED", 1);
    g_autoptr(GRand) random = g_rand_new_with_seed(seed);
    Witness w = {0};

    witness_begin(&w);
    for (guint i = 0; i < n_kills; i++) {
        g_autofree char *said = NULL, *name = g_strdup_printf("%u", seed + i);
        g_auto(GStrv) lines = NULL;
        gboolean migrate = i % 4 == 3;
        gint64 killed;
        int fd, status, version;
        pid_t pid;
        char first[4];

        if (i % 100 == 99) { /* the files stay small */
            guint n_user = w.n_user, n_replies = w.n_replies, n_backups = w.n_backups,
                  n_answers = w.n_answers;
            gint64 lack = w.lack_us_max;

            witness_end(&w);
            w = (Witness){.n_user = n_user,
                .n_replies = n_replies,
                .n_backups = n_backups,
                .n_answers = n_answers,
                .lack_us_max = lack};
            witness_begin(&w);
        }
        if (migrate)
            history_go_back(w.path, 1);
        pid = start("--write", w.dir, name, &fd);
        /* A migration is met within it, from the moment that the child is about to open the file; most others while it
         * writes; some at any time. */
        if (migrate)
            read_bytes(fd, first, 2);
        else if (i % 4 != 0)
            read_bytes(fd, first, 4);
        g_usleep((gulong)g_rand_int_range(random, 0, (gint32)(migrate ? 600 : delay_ms)) * 1000 +
                 (gulong)g_rand_int_range(random, 0, 1000));
        killed = g_get_monotonic_time();
        kill(pid, SIGKILL);
        g_assert_cmpint(waitpid(pid, &status, 0), ==, pid);
        g_assert_true(WIFSIGNALED(status));
        said = read_all(fd);
        lines = g_strsplit(said, "\n", -1);
        g_hash_table_remove_all(w.shown);
        for (int k = 0; lines[k] != NULL && lines[k + 1] != NULL; k++) /* the last is cut or empty */
            note_line(&w, lines[k]);
        version = check_file(w.path);
        n_older += migrate;
        n_mid += migrate && version < QUIRE_HISTORY_VERSION;
        w.n_backups += check_backup(&w); /* the child's; then that of a migration that begins here */
        check_all(&w, killed, lack_us);
        g_assert_true(check_backup(&w) == (version == 1));
        if (i % 12 == 11)
            check_answer(&w);
    }
    g_test_message(
        "%u kills: %u acknowledged messages, %u replies, the largest lack %.0f ms; %u in or near a "
        "migration, of which %u before its end and %u after its backup; %u answers compared",
        n_kills, w.n_user, w.n_replies, (double)w.lack_us_max / 1000, n_older, n_mid, w.n_backups,
        w.n_answers);
    g_assert_cmpuint(w.n_user, >, 0);
    g_assert_cmpuint(w.n_replies, >, 0);
    witness_end(&w);
}

int main(int argc, char **argv)
{
    program = argv[0];
    if (argc == 4 && strcmp(argv[1], "--write") == 0)
        write_for_ever(argv[2], (guint32)g_ascii_strtoull(argv[3], NULL, 10));
    if (argc == 4 && strcmp(argv[1], "--answer") == 0)
        return compare_answers(argv[2], argv[3]);
    g_test_init(&argc, &argv, NULL);
    g_test_add_func("/app/killed", test_killed);
    return g_test_run();
}
