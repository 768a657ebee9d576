/* test-app-search.c: the search provider, as the desktop's shell uses it: the bus starts the program that was built, and
 * it searches a real database, which this process holds open and writes to as the application does. */
#include <glib/gstdio.h>
#include <string.h>

#include "app/quire-history-find.h"
#include "app/quire-message.h"
#include "app/quire-paths.h"

#define APP_PATH   "/io/github/quire_chat/Quire"
#define PROVIDER   QUIRE_APP_ID ".SearchProvider"
#define N_CHATS    400
#define N_MESSAGES 20

static GDBusConnection *bus;
static QuireHistoryDb *db;

/* ---- The database ---- */

static void save(const char *id, const char *title, gint64 updated, const char *const *texts)
{
    g_autoptr(GError) error = NULL;
    g_autoptr(GPtrArray) messages = g_ptr_array_new_with_free_func((GDestroyNotify)quire_stored_message_free);
    QuireStoredChat chat = {
        .id = (char *)id, .title = (char *)title, .updated = updated, .created = updated, .tab = -1};

    for (guint i = 0; texts[i] != NULL; i++)
        g_ptr_array_add(
            messages, quire_stored_message_new(i + 1, i, i % 2 == 0 ? QE_ROLE_USER : QE_ROLE_ASSISTANT,
                          i % 2 == 0 ? QUIRE_REPLY_WAITING : QUIRE_REPLY_DONE, texts[i], strlen(texts[i])));
    chat.leaf = messages->len;
    g_assert_true(quire_history_db_save(db, id, &chat, messages, &error));
    g_assert_no_error(error);
}

static void set_deleted(const char *id, const char *title, gint64 updated)
{
    g_autoptr(GError) error = NULL;
    QuireStoredChat chat = {.id = (char *)id,
        .title = (char *)title,
        .updated = updated,
        .created = updated,
        .tab = -1,
        .deleted = 1};

    g_assert_true(quire_history_db_save(db, id, &chat, NULL, &error));
    g_assert_no_error(error);
}

/* Years of chats, with words that are everywhere and words that are in one place. */
static void fill(void)
{
    g_autofree char *path = quire_dup_history_path();
    g_autoptr(GError) error = NULL;
    g_auto(QuireHistoryOpening) opening = {0};
    g_autofree char *filler = g_strnfill(1500, 'x');
    const char *const walk[] = {"How do I fold a paper crane?",
        "**Begin** with a square.\n\nFold it along both diagonals; the origami crane needs sharp creases.",
        NULL};
    const char *const title[] = {"Hello", "Hi", NULL}, *const cjk[] = {"写一首关于月亮的诗", "好的。", NULL};
    const char *const trash[] = {"The origami that was thrown away", "Gone.", NULL};

    db = quire_history_db_open(path, &opening, &error);
    g_assert_no_error(error);
    for (guint i = 0; i < N_CHATS; i++) {
        g_autofree char *id = g_strdup_printf("filler-%u", i), *words = g_strdup_printf("Number %u", i);
        g_autofree char *text = g_strdup_printf("the common words and number%u %s", i, filler);
        const char *texts[N_MESSAGES + 1] = {0};

        for (guint j = 0; j < N_MESSAGES; j++)
            texts[j] = text;
        save(id, words, 1000 + i, texts);
    }
    save("walk", "A crane", 500000, walk);
    save("title", "Origami for beginners", 400000, title);
    save("cjk", "", 300000, cjk);
    save("trash", "Origami in the trash", 600000, trash);
    set_deleted("trash", "Origami in the trash", 600000);
}

/* ---- The client ---- */

static GVariant *call(const char *method, GVariant *parameters)
{
    g_autoptr(GError) error = NULL;
    GVariant *reply = g_dbus_connection_call_sync(bus, PROVIDER, APP_PATH "/SearchProvider",
        "org.gnome.Shell.SearchProvider2", method, parameters, NULL, G_DBUS_CALL_FLAGS_NONE, 60000, NULL,
        &error);

    g_assert_no_error(error);
    return reply;
}

/* @words: separated by spaces. Returns: identifiers, owned. */
static char **search(const char *words)
{
    g_auto(GStrv) terms = g_strsplit(words, " ", -1);
    g_autoptr(GVariant) reply = call("GetInitialResultSet", g_variant_new("(^as)", terms));
    char **results;

    g_variant_get(reply, "(^as)", &results);
    return results;
}

static void assert_found(const char *words, const char *expected)
{
    g_auto(GStrv) found = search(words);
    g_autofree char *joined = g_strjoinv(" ", found);

    g_assert_cmpstr(joined, ==, expected);
}

static void test_results(void)
{
    /* By its title first, then by what was said; nothing of the trash. */
    assert_found("origami", "title/0 walk/2");
    /* Every word must be there, in whatever case, and parts of words count. */
    assert_found("SHARP diago", "walk/2");
    assert_found("sharp nowhere", "");
    assert_found("月亮", "cjk/1");
    assert_found("", "");
    assert_found("number7", "filler-79/20 filler-78/20 filler-77/20 filler-76/20 filler-75/20 filler-74/20 "
                            "filler-73/20 filler-72/20 filler-71/20 filler-70/20");
    {
        const char *previous[] = {"title/0", "walk/2", NULL}, *terms[] = {"origami", "crane", NULL};
        g_autoptr(GVariant) reply = call("GetSubsearchResultSet", g_variant_new("(^as^as)", previous, terms));
        g_autofree const char **results = NULL;

        g_variant_get(reply, "(^a&s)", &results);
        g_assert_cmpstr(results[0], ==, "walk/2");
        g_assert_null(results[1]);
    }
    /* What is typed meant as nothing but text. */
    assert_found("\"sharp", "");
    assert_found("sharp* OR", "");
}

static void test_metas(void)
{
    g_auto(GStrv) found = search("creases");
    const char *identifiers[] = {found[0], "title/0", "cjk/1", "trash/1", "nonsense", "no/chat/7", NULL};
    g_autoptr(GVariant) reply = call("GetResultMetas", g_variant_new("(^as)", identifiers));
    g_autoptr(GVariant) metas = g_variant_get_child_value(reply, 0);
    const char *const names[] = {"A crane", "Origami for beginners", "New Chat"};
    const char *const texts[] = {
        "**Begin** with a square. Fold it along both diagonals; the origami crane needs sharp creases.", "Hi",
        "写一首关于月亮的诗"};

    g_assert_cmpuint(g_variant_n_children(metas), ==, 3);
    for (guint i = 0; i < 3; i++) {
        g_autoptr(GVariant) meta = g_variant_get_child_value(metas, i);
        const char *id, *name, *text, *icon;

        g_assert_true(g_variant_lookup(meta, "id", "&s", &id));
        g_assert_true(g_variant_lookup(meta, "name", "&s", &name));
        g_assert_true(g_variant_lookup(meta, "description", "&s", &text));
        g_assert_true(g_variant_lookup(meta, "gicon", "&s", &icon));
        g_assert_cmpstr(id, ==, identifiers[i]);
        g_assert_cmpstr(name, ==, names[i]);
        g_assert_cmpstr(text, ==, texts[i]);
        g_assert_cmpstr(icon, ==, QUIRE_APP_ID);
    }
}

static void test_excerpt(void)
{
    g_autofree char *long_text = g_strdup_printf("%0500d needle %0500d", 1, 2);
    g_autofree char *middle = quire_excerpt(long_text, "NEEDLE", 60);
    g_autofree char *start = quire_excerpt("one\ntwo\t\n three", "", 100);
    g_autofree char *cut = quire_excerpt("日本語のとても長い文", "", 3);

    g_assert_nonnull(strstr(middle, "needle"));
    g_assert_true(g_str_has_prefix(middle, "…") && g_str_has_suffix(middle, "…"));
    g_assert_cmpint(g_utf8_strlen(middle, -1), <=, 62);
    g_assert_cmpstr(start, ==, "one two three");
    g_assert_cmpstr(cut, ==, "日本語…");
}

/* A file that is held or written to is no reason to fail; neither is one that is not there, or no database. */
static void test_databases(void)
{
    g_autofree char *path = quire_dup_history_path(), *aside = g_strconcat(path, ".aside", NULL);
    const char *const more[] = {"A quokka smiles.", "So it does.", NULL};

    save("more", "", 700000, more);
    assert_found("quokka", "more/1");

    g_assert_cmpint(g_rename(path, aside), ==, 0);
    assert_found("quokka", "");
    g_assert_false(g_file_test(path, G_FILE_TEST_EXISTS));
    g_assert_true(g_file_set_contents(path, "This is no database, whatever its name says.", -1, NULL));
    assert_found("quokka", "");
    g_assert_cmpint(g_rename(aside, path), ==, 0);
    assert_found("quokka", "more/1");
}

/* The service is light: neither a toolkit nor a model is in it. The time is said, not judged: the machine may be busy. */
static void test_light(void)
{
    g_autoptr(GError) error = NULL;
    g_autoptr(GVariant) reply = g_dbus_connection_call_sync(bus, "org.freedesktop.DBus",
        "/org/freedesktop/DBus", "org.freedesktop.DBus", "GetConnectionUnixProcessID",
        g_variant_new("(s)", PROVIDER), NULL, G_DBUS_CALL_FLAGS_NONE, -1, NULL, &error);
    const char *const queries[] = {"number399", "the common words", "x", "nothing that is there", "q z"};
    g_autofree char *maps = NULL, *path = NULL;
    guint32 pid;

    g_assert_no_error(error);
    g_variant_get(reply, "(u)", &pid);
    path = g_strdup_printf("/proc/%u/maps", pid);
    g_assert_true(g_file_get_contents(path, &maps, NULL, &error));
    g_assert_no_error(error);
    g_assert_nonnull(strstr(maps, "libsqlite3"));
    g_assert_null(strstr(maps, "libgtk"));
    g_assert_null(strstr(maps, "safetensors"));

    for (guint i = 0; i < G_N_ELEMENTS(queries); i++) {
        gint64 best = G_MAXINT64;
        guint n = 0;

        for (guint j = 0; j < 5; j++) {
            gint64 began = g_get_monotonic_time();
            g_auto(GStrv) found = search(queries[i]);

            best = MIN(best, g_get_monotonic_time() - began);
            n = g_strv_length(found);
        }
        g_assert_cmpuint(n, <=, 10);
        g_test_message(
            "“%s” in %d messages: %u results in %.1f ms", queries[i], N_CHATS * N_MESSAGES, n, best / 1e3);
    }
}

/* The time is kept: a search that is late from the start finds no message, and ends. */
static void test_until(void)
{
    g_autofree char *path = quire_dup_history_path();
    g_autoptr(GError) error = NULL;
    g_autoptr(QuireHistoryDb) reader = quire_history_db_open_to_read(path, &error);
    g_autoptr(GPtrArray) late = NULL, in_time = NULL;

    g_assert_no_error(error);
    late = quire_history_db_find(reader, "q z", 10, g_get_monotonic_time());
    g_assert_cmpuint(late->len, ==, 0);
    in_time = quire_history_db_find(reader, "origami", 10, G_MAXINT64);
    g_assert_cmpuint(in_time->len, ==, 2);
}

static gboolean has_window(const char *title)
{
    const char *argv[] = {"xdotool", "search", "--onlyvisible", "--name", title, NULL};
    int status = 1;

    g_assert_true(g_spawn_sync(NULL, (char **)argv, NULL, G_SPAWN_SEARCH_PATH | G_SPAWN_STDOUT_TO_DEV_NULL,
        NULL, NULL, NULL, NULL, &status, NULL));
    return status == 0;
}

static gboolean has_owner(const char *name)
{
    g_autoptr(GVariant) reply = g_dbus_connection_call_sync(bus, "org.freedesktop.DBus",
        "/org/freedesktop/DBus", "org.freedesktop.DBus", "NameHasOwner", g_variant_new("(s)", name), NULL,
        G_DBUS_CALL_FLAGS_NONE, -1, NULL, NULL);
    gboolean has;

    g_variant_get(reply, "(b)", &has);
    return has;
}

/* A result that is chosen opens the application, which the bus starts, at that chat; the next one goes to the same. */
static void test_activate(void)
{
    const char *terms[] = {"origami", NULL};
    g_autoptr(GVariant) first = NULL, second = NULL, unknown = NULL, quit = NULL;
    g_autoptr(GError) error = NULL;
    int i;

    g_assert_false(has_owner(QUIRE_APP_ID));
    first = call("ActivateResult", g_variant_new("(s^asu)", "walk/2", terms, 0u));
    for (i = 0; i < 1200 && !has_window("^A crane$"); i++)
        g_usleep(100000);
    g_assert_cmpint(i, <, 1200);
    second = call("ActivateResult", g_variant_new("(s^asu)", "title/0", terms, 0u));
    for (i = 0; i < 1200 && !has_window("^Origami for beginners$"); i++)
        g_usleep(100000);
    g_assert_cmpint(i, <, 1200);
    g_assert_false(has_window("^A crane$"));
    unknown = call("ActivateResult", g_variant_new("(s^asu)", "nonsense", terms, 0u));

    quit = g_dbus_connection_call_sync(bus, QUIRE_APP_ID, APP_PATH, "org.freedesktop.Application",
        "ActivateAction", g_variant_new("(sava{sv})", "quit", NULL, NULL), NULL, G_DBUS_CALL_FLAGS_NONE, -1,
        NULL, &error);
    g_assert_no_error(error);
    for (i = 0; i < 1200 && has_owner(QUIRE_APP_ID); i++)
        g_usleep(100000);
    g_assert_cmpint(i, <, 1200);
}

/* ---- Running ---- */

/* The services as they are installed, with the programs that were built. */
static void add_service(const char *dir, const char *name, const char *template, const char *built)
{
    g_autofree char *file = g_strdup_printf("%s/%s.service", dir, name), *text = NULL, *exec = NULL,
                    *changed = NULL;
    g_autoptr(GError) error = NULL;
    const char *line, *options;

    g_assert_true(g_file_get_contents(template, &text, NULL, &error));
    g_assert_no_error(error);
    line = strstr(text, "Exec=");
    g_assert_nonnull(line);
    options = line + strcspn(line, " \n");
    exec = g_strndup(text, line - text);
    changed = g_strconcat(exec, "Exec=", built, options, NULL);
    g_assert_true(g_file_set_contents(file, changed, -1, &error));
    g_assert_no_error(error);
}

int main(int argc, char **argv)
{
    g_autofree char *dir = g_dir_make_tmp("quire-services-XXXXXX", NULL);
    g_autofree char *display = g_strdup(g_getenv("DISPLAY"));
    g_autoptr(GTestDBus) test_bus = g_test_dbus_new(G_TEST_DBUS_NONE);
    g_autoptr(GError) error = NULL;
    g_autofree char *app_file = g_strdup_printf("%s/" QUIRE_APP_ID ".service", dir);
    g_autofree char *provider_file = g_strdup_printf("%s/" PROVIDER ".service", dir);
    int rc;

    g_test_init(&argc, &argv, NULL);
    add_service(dir, QUIRE_APP_ID, argv[1], g_getenv("QUIRE_PROGRAM"));
    add_service(dir, PROVIDER, argv[2], g_getenv("QUIRE_SEARCH"));
    g_test_dbus_add_service_dir(test_bus, dir);
    fill();
    /* The services inherit the environment of the bus, and the application among them needs the display that the test bus
     * takes away. */
    g_setenv("DISPLAY", display, TRUE);
    g_test_dbus_up(test_bus);
    g_setenv("DISPLAY", display, TRUE);
    bus = g_bus_get_sync(G_BUS_TYPE_SESSION, NULL, &error);
    g_assert_no_error(error);

    g_test_add_func("/app/search/results", test_results);
    g_test_add_func("/app/search/metas", test_metas);
    g_test_add_func("/app/search/excerpt", test_excerpt);
    g_test_add_func("/app/search/databases", test_databases);
    g_test_add_func("/app/search/light", test_light);
    g_test_add_func("/app/search/until", test_until);
    g_test_add_func("/app/search/activate", test_activate);
    rc = g_test_run();

    g_clear_object(&bus);
    g_test_dbus_down(test_bus);
    quire_history_db_free(db);
    g_unlink(app_file);
    g_unlink(provider_file);
    g_rmdir(dir);
    return rc;
}
