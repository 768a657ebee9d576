/* test-app-token.c: where the local server's token is kept. The keyring is a real one, gnome-keyring, on the test's own bus and
 * in its own folders; without it only the file is tested. */
#include <glib/gstdio.h>
#include <string.h>

#include "app/quire-paths.h"
#include "app/quire-token.h"

#define WAIT_MS_MAX  120000
#define SERVICE      "org.freedesktop.secrets"
#define SERVICE_PATH "/org/freedesktop/secrets"
#define COLLECTION   SERVICE_PATH "/collection/login"

/* ---- What is asked of the program ---- */

typedef struct {
    gboolean done, in_keyring;
    char *token;
    GError *error;
} Answer;

static void token_cb(GObject *source, GAsyncResult *result, gpointer data)
{
    Answer *answer = data;

    answer->token = quire_token_get_finish(result, &answer->in_keyring, &answer->error);
    answer->done = TRUE;
}

static gboolean late_cb(gpointer data)
{
    g_error("waited too long for a token");
    return G_SOURCE_REMOVE;
}

/* Returns: owned; NULL with @error. */
static char *get(gboolean renew, GCancellable *cancellable, gboolean *in_keyring, GError **error)
{
    Answer answer = {0};
    guint id = g_timeout_add(WAIT_MS_MAX, late_cb, NULL);

    quire_token_get_async(renew, cancellable, token_cb, &answer);
    while (!answer.done)
        g_main_context_iteration(NULL, TRUE);
    g_source_remove(id);
    *in_keyring = answer.in_keyring;
    if (answer.error != NULL)
        g_propagate_error(error, answer.error);
    return answer.token;
}

/* Expects it in that place. */
static char *expect(gboolean renew, gboolean in_keyring)
{
    g_autoptr(GError) error = NULL;
    gboolean is_in_keyring = !in_keyring;
    char *token = get(renew, NULL, &is_in_keyring, &error);

    g_assert_no_error(error);
    g_assert_cmpint(is_in_keyring, ==, in_keyring);
    g_assert_cmpuint(strlen(token), >, 40);
    return token;
}

static char *dup_path(void)
{
    g_autofree char *history = quire_dup_history_path();
    g_autofree char *dir = g_path_get_dirname(history);

    return g_build_filename(dir, "server-token", NULL);
}

/* The file's word, without the line's end; NULL when there is none. Its mode is checked. */
static char *dup_file(void)
{
    g_autofree char *path = dup_path();
    char *text = NULL;
    GStatBuf info;

    if (g_stat(path, &info) != 0)
        return NULL;
    g_assert_cmpint(info.st_mode & 0777, ==, 0600);
    g_assert_true(g_file_get_contents(path, &text, NULL, NULL));
    return g_strchomp(text);
}

static void remove_file(void)
{
    g_autofree char *path = dup_path();

    g_unlink(path);
}

/* ---- Tests ---- */

static void test_file(void)
{
    g_autofree char *first = expect(FALSE, FALSE), *same = expect(FALSE, FALSE), *second = NULL, *kept = NULL;
    g_autofree char *written = dup_file(), *path = dup_path();
    g_autoptr(GError) error = NULL;
    gboolean in_keyring;

    g_assert_cmpstr(first, ==, same);
    g_assert_cmpstr(first, ==, written);
    second = expect(TRUE, FALSE);
    g_assert_cmpstr(first, !=, second);
    kept = expect(FALSE, FALSE);
    g_assert_cmpstr(second, ==, kept);

    /* One that others may read is not used. */
    g_chmod(path, 0644);
    g_assert_null(get(FALSE, NULL, &in_keyring, &error));
    g_assert_nonnull(error);
    g_assert_nonnull(strstr(error->message, "0600"));
    remove_file();
}

#ifdef QUIRE_HAVE_SECRET
/* ---- The keyring, asked by the bus ---- */

static GDBusConnection *bus;
static GSubprocess *keyring;

static GVariant *call(const char *interface, const char *path, const char *method, GVariant *parameters)
{
    g_autoptr(GError) error = NULL;
    GVariant *reply = g_dbus_connection_call_sync(
        bus, SERVICE, path, interface, method, parameters, NULL, G_DBUS_CALL_FLAGS_NONE, -1, NULL, &error);

    g_assert_no_error(error);
    return reply;
}

/* Items of this use, unlocked and locked. */
static guint n_items(void)
{
    GVariantBuilder attributes;
    g_autoptr(GVariant) reply = NULL, unlocked = NULL, locked = NULL;

    g_variant_builder_init(&attributes, G_VARIANT_TYPE("a{ss}"));
    g_variant_builder_add(&attributes, "{ss}", "use", "server");
    g_variant_builder_add(&attributes, "{ss}", "xdg:schema", "io.github.quire_chat.Quire.Token");
    reply = call(
        "org.freedesktop.Secret.Service", SERVICE_PATH, "SearchItems", g_variant_new("(a{ss})", &attributes));
    g_variant_get(reply, "(@ao@ao)", &unlocked, &locked);
    return (guint)(g_variant_n_children(unlocked) + g_variant_n_children(locked));
}

static void lock(void)
{
    const char *const paths[] = {COLLECTION, NULL};
    g_autoptr(GVariant) reply =
        call("org.freedesktop.Secret.Service", SERVICE_PATH, "Lock", g_variant_new("(^ao)", paths));
}

static gboolean has_collection(void)
{
    g_autoptr(GVariant) reply =
        g_dbus_connection_call_sync(bus, SERVICE, SERVICE_PATH, "org.freedesktop.Secret.Service", "ReadAlias",
            g_variant_new("(s)", "default"), NULL, G_DBUS_CALL_FLAGS_NONE, -1, NULL, NULL);
    const char *path = "/";

    if (reply != NULL)
        g_variant_get(reply, "(&o)", &path);
    return strcmp(path, COLLECTION) == 0;
}

/* With the collection that a log-in makes, open. */
static void start_keyring(void)
{
    const char *const argv[] = {
        "gnome-keyring-daemon", "--foreground", "--components=secrets", "--unlock", NULL};
    g_autoptr(GError) error = NULL;
    gint64 end = g_get_monotonic_time() + (gint64)WAIT_MS_MAX * 1000;

    keyring = g_subprocess_newv(argv,
        G_SUBPROCESS_FLAGS_STDIN_PIPE | G_SUBPROCESS_FLAGS_STDOUT_SILENCE | G_SUBPROCESS_FLAGS_STDERR_SILENCE,
        &error);
    g_assert_no_error(error);
    g_assert_true(
        g_output_stream_write_all(g_subprocess_get_stdin_pipe(keyring), "password", 8, NULL, NULL, &error));
    g_assert_true(g_output_stream_close(g_subprocess_get_stdin_pipe(keyring), NULL, &error));
    while (!has_collection()) {
        g_assert_cmpint(g_get_monotonic_time(), <, end);
        g_usleep(20000);
    }
}

static void stop_keyring(void)
{
    g_subprocess_send_signal(keyring, SIGTERM);
    g_subprocess_wait(keyring, NULL, NULL);
    g_clear_object(&keyring);
}

/* ---- With a keyring ---- */

static void test_keyring(void)
{
    g_autofree char *first = NULL, *same = NULL, *second = NULL, *kept = NULL, *file = NULL;

    start_keyring();
    g_assert_cmpuint(n_items(), ==, 0);
    first = expect(FALSE, TRUE);
    same = expect(FALSE, TRUE);
    g_assert_cmpstr(first, ==, same);
    g_assert_cmpuint(n_items(), ==, 1);
    second = expect(TRUE, TRUE);
    g_assert_cmpstr(first, !=, second);
    kept = expect(FALSE, TRUE);
    g_assert_cmpstr(second, ==, kept);
    g_assert_cmpuint(n_items(), ==, 1);
    file = dup_file();
    g_assert_null(file);

    /* It outlives the daemon. */
    stop_keyring();
    start_keyring();
    g_clear_pointer(&kept, g_free);
    kept = expect(FALSE, TRUE);
    g_assert_cmpstr(second, ==, kept);
}

/* Nobody unlocks it, since nothing here can ask for the password: the file takes its place, and keeps it until there is a
 * new token. */
static void test_locked(void)
{
    g_autofree char *before = expect(FALSE, TRUE), *after = NULL, *kept = NULL, *renewed = NULL, *file = NULL;

    lock();
    after = expect(FALSE, FALSE);
    g_assert_cmpstr(before, !=, after);
    renewed = expect(TRUE, FALSE);
    g_assert_cmpstr(after, !=, renewed);
    stop_keyring();
    start_keyring();
    /* The keyring has the first one still, which was replaced twice. */
    kept = expect(FALSE, FALSE);
    g_assert_cmpstr(kept, ==, renewed);
    g_free(kept);
    kept = expect(TRUE, TRUE);
    g_assert_cmpstr(kept, !=, before);
    file = dup_file();
    g_assert_null(file);
    g_assert_cmpuint(n_items(), ==, 1);
}

/* Whoever lost interest finds both places as they were. */
static void test_cancelled(void)
{
    g_autoptr(GCancellable) cancellable = g_cancellable_new();
    g_autoptr(GError) error = NULL;
    g_autofree char *before = expect(FALSE, TRUE), *after = NULL, *file = NULL;
    gboolean in_keyring;

    g_cancellable_cancel(cancellable);
    g_assert_null(get(FALSE, cancellable, &in_keyring, &error));
    g_assert_error(error, G_IO_ERROR, G_IO_ERROR_CANCELLED);
    file = dup_file();
    g_assert_null(file);
    after = expect(FALSE, TRUE);
    g_assert_cmpstr(before, ==, after);
    stop_keyring();
}
#endif

int main(int argc, char **argv)
{
    g_test_init(&argc, &argv, NULL);
    g_test_add_func("/app/token/file", test_file);
#ifdef QUIRE_HAVE_SECRET
    g_autoptr(GError) error = NULL;
    g_autofree char *daemon = g_find_program_in_path("gnome-keyring-daemon");

    bus = g_bus_get_sync(G_BUS_TYPE_SESSION, NULL, &error);
    g_assert_no_error(error);
    if (daemon != NULL) {
        g_test_add_func("/app/token/keyring", test_keyring);
        g_test_add_func("/app/token/locked", test_locked);
        g_test_add_func("/app/token/cancelled", test_cancelled);
    } else
        g_test_message("gnome-keyring is not installed: only the file is tested");
#endif
    return g_test_run();
}
