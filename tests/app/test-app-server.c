/* test-app-server.c: the local server in the real application: its switch in Preferences, what it says when it cannot start,
 * models that come and go under it, its token, and one scheduler for its clients and the tabs. The client is curl. */
#include <string.h>

#include "app/quire-local-server.h"
#include "app/quire-server-group.h"
#include "app/quire-settings.h"
#include "tests/app/fake-desktop.h"
#include "tests/app/ui-harness.h"

static GSettings *settings(void)
{
    return quire_settings_get_default();
}

static QuireLocalServer *server(void)
{
    return quire_application_get_server(application);
}

static const char *uri(void)
{
    return quire_local_server_get_uri(server());
}

static gboolean runs(gpointer wanted)
{
    return (uri() != NULL) == GPOINTER_TO_INT(wanted);
}

static void turn_on(void)
{
    g_settings_set_boolean(settings(), "server", TRUE);
    wait_for("the server", runs, GINT_TO_POINTER(TRUE));
}

/* Off, it gives back the pages that it kept for others to find, which the end of each test counts. */
static void turn_off(void)
{
    g_settings_set_boolean(settings(), "server", FALSE);
    g_assert_null(uri());
}

static gboolean has_problem(gpointer wanted)
{
    return (quire_local_server_get_problem(server()) != NULL) == GPOINTER_TO_INT(wanted);
}

/* ---- A client ---- */

typedef struct {
    GSubprocess *process;
    char *out; /* the body, and the status in a line of its own behind it; NULL while it runs */
} Fetch;

static void fetched_cb(GObject *source, GAsyncResult *result, gpointer data)
{
    Fetch *fetch = data;
    g_autoptr(GError) error = NULL;

    g_subprocess_communicate_utf8_finish(G_SUBPROCESS(source), result, &fetch->out, NULL, &error);
    g_assert_no_error(error);
}

static gboolean is_fetched(gpointer fetch)
{
    return ((Fetch *)fetch)->out != NULL;
}

/* @body: NULL for a GET; @token: may be NULL. */
static void fetch_begin(Fetch *fetch, const char *path, const char *body, const char *token)
{
    g_autoptr(GPtrArray) argv = g_ptr_array_new_with_free_func(g_free);
    g_autoptr(GError) error = NULL;

    *fetch = (Fetch){0};
    for (const char **a =
             (const char *[]){"curl", "-sS", "-m", "300", "--noproxy", "*", "-w", "\n%{http_code}", NULL};
         *a; a++)
        g_ptr_array_add(argv, g_strdup(*a));
    g_ptr_array_add(argv, g_strconcat(uri(), path, NULL));
    if (body != NULL) {
        g_ptr_array_add(argv, g_strdup("-H"));
        g_ptr_array_add(argv, g_strdup("Content-Type: application/json"));
        g_ptr_array_add(argv, g_strdup("-d"));
        g_ptr_array_add(argv, g_strdup(body));
    }
    if (token != NULL) {
        g_ptr_array_add(argv, g_strdup("-H"));
        g_ptr_array_add(argv, g_strconcat("Authorization: Bearer ", token, NULL));
    }
    g_ptr_array_add(argv, NULL);
    fetch->process =
        g_subprocess_newv((const char *const *)argv->pdata, G_SUBPROCESS_FLAGS_STDOUT_PIPE, &error);
    g_assert_no_error(error);
    g_subprocess_communicate_utf8_async(fetch->process, NULL, NULL, fetched_cb, fetch);
}

static void fetch_clear(Fetch *fetch)
{
    g_clear_object(&fetch->process);
    g_clear_pointer(&fetch->out, g_free);
}

/* Fetches and expects @status and @words. */
static void expect(
    const char *path, const char *body, const char *token, const char *status, const char *words)
{
    Fetch fetch;

    fetch_begin(&fetch, path, body, token);
    wait_for(path, is_fetched, &fetch);
    g_test_message("%s: %s", path, fetch.out);
    g_assert_true(g_str_has_suffix(fetch.out, status));
    g_assert_nonnull(strstr(fetch.out, words));
    fetch_clear(&fetch);
}

#define HELLO "{\"temperature\":0,\"max_tokens\":8,\"messages\":[{\"role\":\"user\",\"content\":\"Hello\"}]}"

/* ---- Preferences ---- */

static GtkWindow *preferences(void)
{
    GtkWidget *found = find_window(ADW_TYPE_PREFERENCES_WINDOW);

    g_assert_nonnull(found);
    return GTK_WINDOW(found);
}

static gboolean is_mapped(gpointer widget)
{
    return gtk_widget_get_mapped(widget);
}

static void shot(const char *name)
{
    GtkWidget *group = find(GTK_WIDGET(preferences()), QUIRE_TYPE_SERVER_GROUP);
    GtkWidget *scroller = gtk_widget_get_ancestor(group, GTK_TYPE_SCROLLED_WINDOW);
    GtkAdjustment *adjustment = gtk_scrolled_window_get_vadjustment(GTK_SCROLLED_WINDOW(scroller));

    gtk_adjustment_set_value(adjustment, gtk_adjustment_get_upper(adjustment));
    wait_ms(400);
    screenshot(name);
}

static void open_preferences(void)
{
    key("ctrl+comma");
    wait_for("preferences", has_preferences, GINT_TO_POINTER(TRUE));
    wait_for("the rows", is_mapped, find(GTK_WIDGET(preferences()), QUIRE_TYPE_SERVER_GROUP));
}

static guint16 any_port(GSocketListener *listener)
{
    g_autoptr(GError) error = NULL;
    guint16 port = g_socket_listener_add_any_inet_port(listener, NULL, &error);

    g_assert_no_error(error);
    return port;
}

static void free_port(void)
{
    g_autoptr(GSocketListener) listener = g_socket_listener_new();
    guint16 port = any_port(listener);

    g_socket_listener_close(listener);
    g_settings_set_uint(settings(), "server-port", port);
}

static void test_switch(void)
{
    open_window(1000, 760);
    wait_for("the model", is_ready, NULL);
    g_assert_false(g_settings_get_boolean(settings(), "server"));
    g_assert_null(uri());
    open_preferences();
    shot("server-off.png");
    free_port();
    g_assert_null(uri()); /* a port alone starts nothing */
    GtkWidget *toggle = find(find(GTK_WIDGET(preferences()), QUIRE_TYPE_SERVER_GROUP), GTK_TYPE_SWITCH);
    g_assert_true(gtk_widget_activate(toggle));
    wait_for("the server", runs, GINT_TO_POINTER(TRUE));
    g_assert_true(g_str_has_prefix(uri(), "http://127.0.0.1:"));
    g_assert_null(quire_local_server_get_token(server()));
    expect("v1/models", NULL, NULL, "200", "max_model_len");
    expect("v1/chat/completions", HELLO, NULL, "200", "finish_reason");
    shot("server-on.png");
    gtk_window_close(preferences());
    wait_for("no preferences", has_preferences, GINT_TO_POINTER(FALSE));

    /* Off is off at once, and the next start is on another port. */
    turn_off();
    close_window();
}

/* The row that says what becomes of the server without a window. */
static const char *stay_text(void)
{
    GtkWidget *group = find(GTK_WIDGET(preferences()), QUIRE_TYPE_SERVER_GROUP);
    GtkWidget *row = gtk_widget_get_next_sibling(find(group, ADW_TYPE_ACTION_ROW));

    return adw_action_row_get_subtitle(ADW_ACTION_ROW(row));
}

static gboolean stay_says(gpointer word)
{
    return strstr(stay_text(), word) != NULL;
}

/* What the desktop answered is what Preferences say; a no can be asked about again. */
static void test_stay(void)
{
    QuireBackground *stay = quire_application_get_stay(application);

    open_window(1000, 760);
    free_port();
    turn_on();
    g_assert_cmpint(quire_background_get_state(stay), ==, QUIRE_BACKGROUND_OFF);
    open_preferences();
    g_assert_true(stay_says((gpointer) "end with the last window"));
    g_setenv("GTK_USE_PORTAL", "1", TRUE);
    fake_desktop_set_answer(0);
    GtkWidget *group = find(GTK_WIDGET(preferences()), QUIRE_TYPE_SERVER_GROUP);
    GtkWidget *toggle = find(gtk_widget_get_next_sibling(find(group, ADW_TYPE_ACTION_ROW)), GTK_TYPE_SWITCH);
    g_assert_true(gtk_widget_activate(toggle));
    wait_for("what the desktop answered", stay_says, (gpointer) "does not allow it");
    shot("server-stay-denied.png");
    fake_desktop_set_answer(1);
    g_settings_set_boolean(settings(), "server-background", FALSE);
    g_assert_true(stay_says((gpointer) "end with the last window"));
    g_settings_set_boolean(settings(), "server-background", TRUE);
    wait_for("what the desktop answered", stay_says, (gpointer) "stays while the server runs");
    g_assert_cmpint(quire_background_get_state(stay), ==, QUIRE_BACKGROUND_ALLOWED);
    shot("server-stay.png");
    g_unsetenv("GTK_USE_PORTAL");
    gtk_window_close(preferences());
    wait_for("no preferences", has_preferences, GINT_TO_POINTER(FALSE));
    turn_off();
    g_assert_cmpint(quire_background_get_state(stay), ==, QUIRE_BACKGROUND_OFF);
    g_settings_reset(settings(), "server-background");
    close_window();
}

static void test_port_in_use(void)
{
    g_autoptr(GSocketListener) other = g_socket_listener_new();
    guint16 port;

    open_window(1000, 760);
    {
        g_autoptr(GInetAddress) loopback = g_inet_address_new_loopback(G_SOCKET_FAMILY_IPV4);
        g_autoptr(GSocketAddress) address = g_inet_socket_address_new(loopback, 0);
        g_autoptr(GSocketAddress) bound = NULL;

        g_assert_true(g_socket_listener_add_address(
            other, address, G_SOCKET_TYPE_STREAM, G_SOCKET_PROTOCOL_TCP, NULL, &bound, NULL));
        port = g_inet_socket_address_get_port(G_INET_SOCKET_ADDRESS(bound));
    }
    g_settings_set_uint(settings(), "server-port", port);
    g_settings_set_boolean(settings(), "server", TRUE);
    wait_for("a problem", has_problem, GINT_TO_POINTER(TRUE));
    g_autofree char *text = g_strdup_printf("%u", port);
    g_assert_nonnull(strstr(quire_local_server_get_problem(server()), text));
    g_assert_null(uri());
    open_preferences();
    shot("server-port-used.png");
    gtk_window_close(preferences());
    wait_for("no preferences", has_preferences, GINT_TO_POINTER(FALSE));
    free_port();
    wait_for("the server", runs, GINT_TO_POINTER(TRUE));
    g_assert_null(quire_local_server_get_problem(server()));
    expect("health", NULL, NULL, "200", "ok");
    turn_off();
    close_window();
}

/* ---- The model goes and comes ---- */

static void test_model_goes(void)
{
    QuireEngineClient *client = quire_application_get_client(application);
    Fetch running;

    open_window(1000, 760);
    wait_for("the model", is_ready, NULL);
    turn_on();
    g_autofree char *dir = g_strdup(quire_engine_client_get_model_dir(client));
    expect("v1/sessions", "{\"session_id\":\"kept\"}", NULL, "201", "kept");

    /* A request that runs ends with a reason when the model goes. */
    fetch_begin(&running, "v1/chat/completions",
        "{\"temperature\":1.9,\"seed\":5,\"top_p\":1,\"n\":4,\"messages\":[{\"role\":\"user\",\"content\":"
        "\"A story.\"}]}",
        NULL);
    expect("health", NULL, NULL, "200", "ok");
    quire_engine_client_unload(client);
    wait_for("the end", is_fetched, &running);
    g_assert_true(g_str_has_suffix(running.out, "503") || g_str_has_suffix(running.out, "200"));
    fetch_clear(&running);
    expect("v1/chat/completions", HELLO, NULL, "503", "No model is loaded");
    expect("health", NULL, NULL, "503", "no_model");

    quire_engine_client_load(client, dir);
    wait_for("the model", is_ready, NULL);
    expect("v1/chat/completions", HELLO, NULL, "200", "finish_reason");
    expect("v1/sessions", NULL, NULL, "200", "\"data\":[]");

    /* Another engine in its place. */
    quire_application_restart_engine(application);
    wait_for("the model", is_ready, NULL);
    expect("v1/chat/completions", HELLO, NULL, "200", "finish_reason");

    quire_engine_client_release(client, "The test takes it.");
    expect("health", NULL, NULL, "503", "released");
    /* Who asks has the model loaded again. */
    expect("v1/chat/completions", HELLO, NULL, "503", "given back");
    wait_for("the model", is_ready, NULL);
    expect("v1/chat/completions", HELLO, NULL, "200", "finish_reason");
    turn_off();
    close_window();
}

/* ---- One scheduler ---- */

static void test_shares_fairly(void)
{
    Fetch clients[3];

    open_window(1000, 760);
    wait_for("the model", is_ready, NULL);
    turn_on();
    /* Replies that would go on for long, more than a tab's turn takes, on every client. */
    for (gsize i = 0; i < G_N_ELEMENTS(clients); i++)
        fetch_begin(&clients[i], "v1/chat/completions",
            "{\"temperature\":1.9,\"seed\":5,\"top_p\":1,\"top_k\":0,\"logit_bias\":{\"6141\":-100,\"6139\":-"
            "100},\"n\":1,"
            "\"max_tokens\":300,\"messages\":[{\"role\":\"user\",\"content\":\"Tell me a story.\"}]}",
            NULL);
    for (;;) {
        const qe_snapshot *s = quire_engine_client_get_snapshot(quire_application_get_client(application));
        if (s != NULL && s->n_running == 3)
            break;
        g_main_context_iteration(NULL, TRUE);
    }
    say("What is 27 plus 15?", 2);
    wait_for("the reply", is_idle, NULL);
    g_autofree char *reply = dup_reply();
    g_assert_nonnull(strstr(reply, "42"));
    /* The tab's turn is over, and nobody who came before it had to be. */
    for (gsize i = 0; i < G_N_ELEMENTS(clients); i++)
        g_assert_null(clients[i].out);
    g_assert_cmpuint(receipt()->n_generated, >, 0);
    for (gsize i = 0; i < G_N_ELEMENTS(clients); i++) {
        wait_for("a client", is_fetched, &clients[i]);
        g_assert_true(g_str_has_suffix(clients[i].out, "200"));
        g_assert_nonnull(strstr(clients[i].out, "\"completion_tokens\": 300"));
        fetch_clear(&clients[i]);
    }
    turn_off();
    close_window();
}

/* ---- The network ---- */

static gboolean has_token(gpointer other_than)
{
    const char *token = quire_local_server_get_token(server());
    return token != NULL && uri() != NULL && g_strcmp0(token, other_than) != 0;
}

/* As it is to be read, less the places where a line may end. */
static gboolean shows_token(gpointer row)
{
    g_auto(GStrv) parts = g_strsplit(adw_action_row_get_subtitle(row), "\342\200\213", -1);
    g_autofree char *shown = g_strjoinv(NULL, parts);

    return strcmp(shown, quire_local_server_get_token(server())) == 0;
}

static gboolean is_narrow(gpointer widget)
{
    return gtk_widget_get_width(widget) <= 400;
}

static void test_token(void)
{
    open_window(1000, 760);
    wait_for("the model", is_ready, NULL);
    g_settings_set_boolean(settings(), "server-network", TRUE);
    turn_on();
    wait_for("a token", has_token, NULL);
    g_autofree char *token = g_strdup(quire_local_server_get_token(server()));
    g_assert_cmpuint(strlen(token), >, 30);
    expect("v1/models", NULL, NULL, "401", "authentication_error");
    expect("v1/models", NULL, token, "200", "max_model_len");
    open_preferences();
    shot("server-network.png");
    /* The token itself is shown when it is asked for. */
    GtkWidget *group = find(GTK_WIDGET(preferences()), QUIRE_TYPE_SERVER_GROUP);
    GtkWidget *reveal = find(group, GTK_TYPE_TOGGLE_BUTTON);
    GtkWidget *row = gtk_widget_get_ancestor(reveal, ADW_TYPE_ACTION_ROW);
    g_assert_null(strstr(adw_action_row_get_subtitle(ADW_ACTION_ROW(row)), token));
    g_assert_true(gtk_widget_activate(reveal));
    wait_for("the token itself", shows_token, row);
    shot("server-token.png");
    AdwStyleManager *style = adw_style_manager_get_default();
    adw_style_manager_set_color_scheme(style, ADW_COLOR_SCHEME_FORCE_DARK);
    shot("server-token-dark.png");
    adw_style_manager_set_color_scheme(style, ADW_COLOR_SCHEME_DEFAULT);
    gtk_window_set_default_size(preferences(), 360, 640);
    wait_for("a narrow window", is_narrow, preferences());
    wait_ms(100); /* the rows are higher now, and the last one is to be seen */
    shot("server-token-narrow.png");
    gtk_window_close(preferences());
    wait_for("no preferences", has_preferences, GINT_TO_POINTER(FALSE));

    quire_local_server_renew_token(server());
    wait_for("another token", has_token, token);
    expect("v1/models", NULL, token, "401", "authentication_error");
    expect("v1/models", NULL, quire_local_server_get_token(server()), "200", "max_model_len");

    /* It is the same after a restart, and this machine alone needs none. */
    g_autofree char *renewed = g_strdup(quire_local_server_get_token(server()));
    turn_off();
    turn_on();
    wait_for("the token", has_token, NULL);
    g_assert_cmpstr(quire_local_server_get_token(server()), ==, renewed);
    g_settings_set_boolean(settings(), "server-network", FALSE);
    wait_for("the server", runs, GINT_TO_POINTER(TRUE));
    g_assert_null(quire_local_server_get_token(server()));
    expect("v1/models", NULL, NULL, "200", "max_model_len");
    turn_off();
    close_window();
}

static void add_tests(void)
{
    g_autofree char *curl = g_find_program_in_path("curl");

    if (curl == NULL) {
        g_test_message("curl is not installed");
        return;
    }
    g_test_add_func("/app/server/switch", test_switch);
    g_test_add_func("/app/server/stay", test_stay);
    g_test_add_func("/app/server/port-in-use", test_port_in_use);
    g_test_add_func("/app/server/model-goes", test_model_goes);
    g_test_add_func("/app/server/shares-fairly", test_shares_fairly);
    g_test_add_func("/app/server/token", test_token);
}

int main(int argc, char **argv)
{
    fake_desktop_start();
    return ui_main(argc, argv, NULL, add_tests);
}
