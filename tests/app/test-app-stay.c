/* test-app-stay.c: the local server without a window. The application is a process of its own here, with real keys and a real
 * end; the desktop around it is fake-desktop.c. */
#include <signal.h>
#include <string.h>
#include <gio/gio.h>

#include "tests/app/fake-desktop.h"

#define APP_PATH    "/io/github/quire_chat/Quire"
#define WAIT_MS_MAX 120000

static guint16 port;
static GDBusConnection *bus;

/* ---- Waiting ---- */

typedef gboolean (*Condition)(gpointer data);

static gboolean tick_cb(gpointer data)
{
    ++*(guint *)data;
    return G_SOURCE_CONTINUE;
}

/* What is awaited is in other processes: it is looked at again and again. */
static void wait_for(const char *what, Condition condition, gpointer data)
{
    guint n_ticks = 0, id = g_timeout_add(50, tick_cb, &n_ticks);

    while (!condition(data)) {
        if (n_ticks > WAIT_MS_MAX / 50)
            g_error("waited too long for: %s", what);
        g_main_context_iteration(NULL, TRUE);
    }
    g_source_remove(id);
}

static gboolean is_set(gpointer data)
{
    return *(gboolean *)data;
}

/* ---- The application ---- */

typedef struct {
    GSubprocess *process;
    gboolean exited;
} App;

static void exited_cb(GObject *source, GAsyncResult *result, gpointer data)
{
    g_assert_true(g_subprocess_wait_finish(G_SUBPROCESS(source), result, NULL));
    ((App *)data)->exited = TRUE;
}

static void write_settings(gboolean server, gboolean background)
{
    g_autofree char *path =
        g_build_filename(g_get_user_config_dir(), "glib-2.0", "settings", "keyfile", NULL);
    g_autofree char *dir = g_path_get_dirname(path);
    g_autofree char *text = g_strdup_printf("[io/github/quire_chat/Quire]\nserver=%s\nserver-background=%s\n"
                                            "server-port=uint32 %u\n",
        server ? "true" : "false", background ? "true" : "false", port);
    g_autoptr(GError) error = NULL;

    g_assert_cmpint(g_mkdir_with_parents(dir, 0700), ==, 0);
    g_assert_true(g_file_set_contents(path, text, -1, &error));
    g_assert_no_error(error);
}

/* @portal: as if in a sandbox. */
static void start(App *app, gboolean portal)
{
    g_autoptr(GSubprocessLauncher) launcher = g_subprocess_launcher_new(G_SUBPROCESS_FLAGS_NONE);
    g_autoptr(GError) error = NULL;

    g_subprocess_launcher_setenv(launcher, "GSETTINGS_BACKEND", "keyfile", TRUE);
    if (portal)
        g_subprocess_launcher_setenv(launcher, "GTK_USE_PORTAL", "1", TRUE);
    *app = (App){.process = g_subprocess_launcher_spawn(launcher, &error, g_getenv("QUIRE_PROGRAM"), NULL)};
    g_assert_no_error(error);
    g_subprocess_wait_async(app->process, NULL, exited_cb, app);
}

static gboolean has_exited(gpointer data)
{
    return ((App *)data)->exited;
}

static void expect_end(App *app)
{
    wait_for("the end of the application", has_exited, app);
    g_assert_true(g_subprocess_get_if_exited(app->process));
    g_assert_cmpint(g_subprocess_get_exit_status(app->process), ==, 0);
    g_clear_object(&app->process);
}

static gboolean has_window(gpointer wanted)
{
    const char *argv[] = {"xdotool", "search", "--onlyvisible", "--class", "quire", NULL};
    g_autoptr(GError) error = NULL;
    int status;

    g_assert_true(g_spawn_sync(NULL, (char **)argv, NULL,
        G_SPAWN_SEARCH_PATH | G_SPAWN_STDOUT_TO_DEV_NULL | G_SPAWN_STDERR_TO_DEV_NULL, NULL, NULL, NULL, NULL,
        &status, &error));
    g_assert_no_error(error);
    return g_spawn_check_wait_status(status, NULL) == GPOINTER_TO_INT(wanted);
}

static void key(const char *name)
{
    const char *argv[] = {"xdotool", "key", name, NULL};
    g_autoptr(GError) error = NULL;

    g_assert_true(
        g_spawn_sync(NULL, (char **)argv, NULL, G_SPAWN_SEARCH_PATH, NULL, NULL, NULL, NULL, NULL, &error));
    g_assert_no_error(error);
}

/* A new chat is empty: its tab is closed with the window. */
static void close_window(void)
{
    wait_for("a window", has_window, GINT_TO_POINTER(TRUE));
    key("ctrl+w");
    wait_for("no window", has_window, GINT_TO_POINTER(FALSE));
}

/* ---- Its server ---- */

/* Whether a model answers there. */
static gboolean answers(gpointer wanted)
{
    static const char request[] = "GET /health HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n";
    g_autoptr(GSocketClient) client = g_socket_client_new();
    g_autoptr(GSocketConnection) connection =
        g_socket_client_connect_to_host(client, "127.0.0.1", port, NULL, NULL);
    GIOStream *stream = G_IO_STREAM(connection);
    char answer[16] = "";
    gboolean ok;

    if (connection == NULL)
        return !GPOINTER_TO_INT(wanted);
    ok = g_output_stream_write_all(
             g_io_stream_get_output_stream(stream), request, strlen(request), NULL, NULL, NULL) &&
         g_input_stream_read_all(g_io_stream_get_input_stream(stream), answer, 12, NULL, NULL, NULL) &&
         strcmp(answer, "HTTP/1.1 200") == 0;
    return ok == GPOINTER_TO_INT(wanted);
}

/* ---- The desktop ---- */

static void wait_calls(const char *method, guint n)
{
    FakeDesktopCalls wanted = {method, n};

    wait_for(method, fake_desktop_has_calls, &wanted);
}

static void called_cb(GObject *source, GAsyncResult *result, gpointer data)
{
    g_autoptr(GError) error = NULL;
    g_autoptr(GVariant) reply = g_dbus_connection_call_finish(G_DBUS_CONNECTION(source), result, &error);

    g_assert_no_error(error);
    *(gboolean *)data = TRUE;
}

/* As a button of a notification does it. */
static void call_action(const char *action)
{
    gboolean done = FALSE;

    g_dbus_connection_call(bus, QUIRE_APP_ID, APP_PATH, "org.freedesktop.Application", "ActivateAction",
        g_variant_new("(sav@a{sv})", action, NULL, g_variant_new("a{sv}", NULL)), NULL,
        G_DBUS_CALL_FLAGS_NONE, -1, NULL, called_cb, &done);
    wait_for(action, is_set, &done);
}

/* ---- Tests ---- */

/* Whoever did not ask for it: the last window takes the server with it. */
static void test_ends(void)
{
    guint n = fake_desktop_count("AddNotification");
    App app;

    write_settings(TRUE, FALSE);
    start(&app, FALSE);
    wait_for("the server", answers, GINT_TO_POINTER(TRUE));
    close_window();
    expect_end(&app);
    g_assert_true(answers(GINT_TO_POINTER(FALSE)));
    g_assert_cmpuint(fake_desktop_count("AddNotification"), ==, n);
}

static void assert_notification(void)
{
    g_autoptr(GVariant) call = fake_desktop_dup_last("AddNotification"), notification = NULL, buttons = NULL,
                        button = NULL;
    g_autofree char *address = g_strdup_printf("http://127.0.0.1:%u/", port);
    const char *id, *body = NULL, *action = NULL;

    g_variant_get(call, "(&s&s@a{sv})", NULL, &id, &notification);
    g_assert_cmpstr(id, ==, "server-runs");
    g_assert_true(g_variant_lookup(notification, "body", "&s", &body));
    g_assert_nonnull(strstr(body, address));
    /* No default action: a click activates the application. */
    g_assert_false(g_variant_lookup(notification, "default-action", "&s", &action));
    buttons = g_variant_lookup_value(notification, "buttons", G_VARIANT_TYPE("aa{sv}"));
    g_assert_nonnull(buttons);
    button = g_variant_get_child_value(buttons, 0);
    g_assert_true(g_variant_lookup(button, "action", "&s", &action));
    g_assert_cmpstr(action, ==, "app.quit");
}

static void test_stays(void)
{
    guint n_added = fake_desktop_count("AddNotification"),
          n_removed = fake_desktop_count("RemoveNotification");
    App app, second;

    write_settings(TRUE, TRUE);
    start(&app, FALSE);
    wait_for("the server", answers, GINT_TO_POINTER(TRUE));
    close_window();
    wait_calls("AddNotification", n_added + 1);
    assert_notification();
    g_assert_true(answers(GINT_TO_POINTER(TRUE)));

    /* Started again, it is the same process that shows its window. */
    start(&second, FALSE);
    expect_end(&second);
    wait_for("the window", has_window, GINT_TO_POINTER(TRUE));
    wait_calls("RemoveNotification", n_removed + 1);
    g_assert_true(answers(GINT_TO_POINTER(TRUE)));

    close_window();
    wait_calls("AddNotification", n_added + 2);
    g_assert_false(app.exited);
    call_action("quit");
    expect_end(&app);
    wait_calls("RemoveNotification", n_removed + 2);
    g_assert_true(answers(GINT_TO_POINTER(FALSE)));

    /* Quitting ends it also from its window, without a notification. */
    start(&app, FALSE);
    wait_for("the server", answers, GINT_TO_POINTER(TRUE));
    wait_for("a window", has_window, GINT_TO_POINTER(TRUE));
    key("ctrl+q");
    expect_end(&app);
    g_assert_cmpuint(fake_desktop_count("AddNotification"), ==, n_added + 2);
    g_assert_cmpuint(fake_desktop_count("RequestBackground"), ==, 0);
}

/* With nothing left to serve there is nothing to stay for. */
static void test_switched_off(void)
{
    guint n_added = fake_desktop_count("AddNotification");
    App app;

    write_settings(TRUE, TRUE);
    start(&app, FALSE);
    wait_for("the server", answers, GINT_TO_POINTER(TRUE));
    close_window();
    wait_calls("AddNotification", n_added + 1);
    write_settings(FALSE, TRUE);
    expect_end(&app);
}

/* In a sandbox the desktop decides. */
static void test_portal(void)
{
    guint n_asked = fake_desktop_count("RequestBackground"), n_told = fake_desktop_count("SetStatus");
    App app;

    write_settings(TRUE, TRUE);
    fake_desktop_set_answer(0);
    start(&app, TRUE);
    wait_calls("RequestBackground", n_asked + 1);
    wait_for("the server", answers, GINT_TO_POINTER(TRUE));
    close_window();
    expect_end(&app);
    g_assert_cmpuint(fake_desktop_count("SetStatus"), ==, n_told);

    fake_desktop_set_answer(1);
    start(&app, TRUE);
    wait_calls("RequestBackground", n_asked + 2);
    wait_calls("SetStatus", n_told + 1);
    wait_for("the server", answers, GINT_TO_POINTER(TRUE));
    close_window();
    g_assert_true(answers(GINT_TO_POINTER(TRUE)));
    g_assert_false(app.exited);
    call_action("quit");
    expect_end(&app);
}

int main(int argc, char **argv)
{
    g_autoptr(GSocketListener) listener = g_socket_listener_new();
    g_autoptr(GError) error = NULL;

    g_test_init(&argc, &argv, NULL);
    fake_desktop_start();
    bus = g_bus_get_sync(G_BUS_TYPE_SESSION, NULL, &error);
    g_assert_no_error(error);
    port = g_socket_listener_add_any_inet_port(listener, NULL, &error);
    g_assert_no_error(error);
    g_socket_listener_close(listener);

    g_test_add_func("/app/stay/ends", test_ends);
    g_test_add_func("/app/stay/stays", test_stays);
    g_test_add_func("/app/stay/switched-off", test_switched_off);
    g_test_add_func("/app/stay/portal", test_portal);
    return g_test_run();
}
