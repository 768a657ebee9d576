/* ui-harness.c: see ui-harness.h. */
#include "tests/app/ui-harness.h"
#include <string.h>

#include "app/quire-message-row.h"
#include "app/quire-preferences-window.h"
#include "app/quire-settings.h"
#include "tests/app/fake-im.h"

#define WAIT_MS_MAX 120000

QuireApplication *application;
QuireWindow *window;

static gboolean timeout_cb(gpointer data)
{
    *(gboolean *)data = TRUE;
    return G_SOURCE_REMOVE;
}

/* Runs the main loop until @condition holds. */
void wait_for(const char *what, Condition condition, gpointer data)
{
    gboolean late = FALSE;
    guint id = g_timeout_add(WAIT_MS_MAX, timeout_cb, &late);

    while (!condition(data) && !late)
        g_main_context_iteration(NULL, TRUE);
    if (late)
        g_error("waited too long for: %s", what);
    g_source_remove(id);
}

void wait_ms(guint ms)
{
    gboolean over = FALSE;

    g_timeout_add(ms, timeout_cb, &over);
    while (!over)
        g_main_context_iteration(NULL, TRUE);
}

gboolean is_set(gpointer data)
{
    return *(gboolean *)data;
}

static void exited_cb(GObject *source, GAsyncResult *result, gpointer data)
{
    g_assert_true(g_subprocess_wait_check_finish(G_SUBPROCESS(source), result, NULL));
    *(gboolean *)data = TRUE;
}

/* Runs a command while the main loop goes on. */
void run(const char *const *argv)
{
    g_autoptr(GError) error = NULL;
    g_autoptr(GSubprocess) process = g_subprocess_newv(argv, G_SUBPROCESS_FLAGS_NONE, &error);
    gboolean done = FALSE;

    g_assert_no_error(error);
    g_subprocess_wait_check_async(process, NULL, exited_cb, &done);
    wait_for(argv[0], is_set, &done);
}

void key(const char *name)
{
    const char *argv[] = {"xdotool", "key", name, NULL};

    run(argv);
}

void type(const char *text)
{
    const char *argv[] = {"xdotool", "type", "--delay", "5", text, NULL};

    run(argv);
}

void screenshot(const char *name)
{
    const char *dir = g_getenv("QUIRE_TEST_SHOTS");
    g_autofree char *path = NULL;
    g_autofree char *tool = g_find_program_in_path("import");

    if (dir == NULL || tool == NULL)
        return;
    g_mkdir_with_parents(dir, 0755);
    path = g_build_filename(dir, name, NULL);
    {
        const char *argv[] = {"import", "-window", "root", path, NULL};
        run(argv);
    }
}

/* ---- What is asked of the application ---- */

QuireConversation *conversation(void)
{
    return quire_chat_view_get_conversation(quire_window_get_chat(window));
}

GtkTextBuffer *draft(void)
{
    return gtk_text_view_get_buffer(
        quire_composer_get_text_view(quire_chat_view_get_composer(quire_window_get_chat(window))));
}

char *dup_draft(void)
{
    g_autofree char *text = NULL;

    g_object_get(draft(), "text", &text, NULL);
    return g_steal_pointer(&text);
}

gboolean draft_is(gpointer text)
{
    g_autofree char *have = dup_draft();

    return strcmp(have, text) == 0;
}

gboolean is_ready(gpointer data)
{
    return quire_engine_client_is_ready(quire_application_get_client(application));
}

QuireEngineClient *engine_client(void)
{
    return quire_application_get_client(application);
}

gboolean engine_state_is(gpointer state)
{
    return quire_engine_client_get_status(engine_client())->state == (qe_engine_state)GPOINTER_TO_INT(state);
}

gboolean engine_is_settled(gpointer data)
{
    return is_ready(NULL) && quire_engine_client_get_snapshot(engine_client()) != NULL;
}

gboolean is_idle(gpointer data)
{
    return !quire_conversation_is_running(conversation());
}

gboolean has_n_messages(gpointer n)
{
    return g_list_model_get_n_items(G_LIST_MODEL(conversation())) == GPOINTER_TO_UINT(n);
}

/* By open chats: what none holds may stay, to be found again. */
guint n_pages_used(void)
{
    const qe_snapshot *snapshot = quire_engine_client_get_snapshot(quire_application_get_client(application));
    guint n = 0;

    g_assert_nonnull(snapshot);
    for (guint i = 0; i < snapshot->n_sessions; i++)
        n += snapshot->sessions[i].n_pages;
    return n;
}

gboolean pages_are(gpointer n)
{
    return n_pages_used() == GPOINTER_TO_UINT(n);
}

char *dup_reply(void)
{
    gsize n_bytes;
    const char *text = quire_message_get_text(quire_conversation_get_last_reply(conversation()), &n_bytes);

    return g_strndup(text, n_bytes);
}

const qe_receipt *receipt(void)
{
    return &quire_message_get_reply(quire_conversation_get_last_reply(conversation()))->receipt;
}

/* What quire-cli answers to the same messages, greedily. */
char *dup_cli_reply(const char *json)
{
    g_autoptr(GError) error = NULL;
    g_autoptr(GSubprocess) process = g_subprocess_new(
        G_SUBPROCESS_FLAGS_STDIN_PIPE | G_SUBPROCESS_FLAGS_STDOUT_PIPE, &error, g_getenv("QUIRE_CLI"),
        "generate", "--model", g_getenv("QUIRE_TEST_MODEL"), "--messages", "-", "--temperature", "0", NULL);
    char *text = NULL;

    g_assert_no_error(error);
    g_assert_true(g_subprocess_communicate_utf8(process, json, NULL, &text, NULL, &error));
    g_assert_no_error(error);
    g_assert_true(g_subprocess_get_successful(process));
    g_strchomp(text);
    return text;
}

char *quote(const char *text)
{
    GString *json = g_string_new("\"");

    for (const char *p = text; *p != '\0'; p++)
        if (*p == '"' || *p == '\\')
            g_string_append_printf(json, "\\%c", *p);
        else if (*p == '\n')
            g_string_append(json, "\\n");
        else
            g_string_append_c(json, *p);
    g_string_append_c(json, '"');
    return g_string_free(json, FALSE);
}

/* ---- Finding widgets ---- */

GtkWidget *find(GtkWidget *root, GType type)
{
    if (G_TYPE_CHECK_INSTANCE_TYPE(root, type))
        return root;
    for (GtkWidget *child = gtk_widget_get_first_child(root); child != NULL;
         child = gtk_widget_get_next_sibling(child)) {
        GtkWidget *found = find(child, type);

        if (found != NULL)
            return found;
    }
    return NULL;
}

GtkWidget *find_button(GtkWidget *root, const char *label)
{
    if (GTK_IS_BUTTON(root) && g_strcmp0(gtk_button_get_label(GTK_BUTTON(root)), label) == 0 &&
        gtk_widget_get_mapped(root))
        return root;
    for (GtkWidget *child = gtk_widget_get_first_child(root); child != NULL;
         child = gtk_widget_get_next_sibling(child)) {
        GtkWidget *found = find_button(child, label);

        if (found != NULL)
            return found;
    }
    return NULL;
}

GtkWidget *find_row(GtkWidget *root, const char *title)
{
    if (ADW_IS_PREFERENCES_ROW(root) &&
        g_strcmp0(adw_preferences_row_get_title(ADW_PREFERENCES_ROW(root)), title) == 0)
        return root;
    for (GtkWidget *child = gtk_widget_get_first_child(root); child != NULL;
         child = gtk_widget_get_next_sibling(child)) {
        GtkWidget *found = find_row(child, title);

        if (found != NULL)
            return found;
    }
    return NULL;
}

GtkWidget *find_window(GType type)
{
    GListModel *windows = gtk_window_get_toplevels();

    for (guint i = 0; i < g_list_model_get_n_items(windows); i++) {
        g_autoptr(GtkWidget) w = g_list_model_get_item(windows, i);

        if (G_TYPE_CHECK_INSTANCE_TYPE(w, type))
            return w;
    }
    return NULL;
}

gboolean has_no_window_of(gpointer type)
{
    return find_window(GPOINTER_TO_SIZE(type)) == NULL;
}

gboolean says_something(GtkWidget *widget)
{
    if (GTK_IS_LABEL(widget) && gtk_label_get_text(GTK_LABEL(widget))[0] != '\0')
        return TRUE;
    for (GtkWidget *child = gtk_widget_get_first_child(widget); child != NULL;
         child = gtk_widget_get_next_sibling(child))
        if (says_something(child))
            return TRUE;
    return FALSE;
}

char *describe_widget(GtkWidget *widget)
{
    GString *out = g_string_new(NULL);

    if (GTK_IS_LABEL(widget))
        g_string_append_printf(out, "“%.40s” ", gtk_label_get_text(GTK_LABEL(widget)));
    else if (gtk_widget_get_tooltip_text(widget) != NULL)
        g_string_append_printf(out, "(%s) ", gtk_widget_get_tooltip_text(widget));
    for (int i = 0; widget != NULL && i < 7; i++, widget = gtk_widget_get_parent(widget))
        g_string_append_printf(out, "%s%s", i > 0 ? " < " : "", G_OBJECT_TYPE_NAME(widget));
    return g_string_free(out, FALSE);
}

gboolean focus_is_in(gpointer widget)
{
    GtkWidget *focus = gtk_window_get_focus(GTK_WINDOW(window));

    return focus != NULL && (focus == widget || gtk_widget_is_ancestor(focus, widget));
}

GtkWidget *last_row(void)
{
    GtkWidget *row = find(GTK_WIDGET(quire_window_get_chat(window)), QUIRE_TYPE_MESSAGE_ROW);

    return row != NULL ? gtk_widget_get_last_child(gtk_widget_get_parent(row)) : NULL;
}

/* ---- A window of its own for each test ---- */

void open_window(int width, int height)
{
    g_settings_set_int(quire_settings_get_default(), "window-width", width);
    g_settings_set_int(quire_settings_get_default(), "window-height", height);
    window = quire_window_new(application);
    quire_window_new_chat(window);
    gtk_window_present(GTK_WINDOW(window));
    wait_for("a model", is_ready, NULL);
    wait_ms(300);
}

void close_window(void)
{
    gtk_window_close(GTK_WINDOW(window));
    window = NULL;
    wait_for("freed pages", pages_are, GUINT_TO_POINTER(0));
}

void say(const char *text, guint n_messages)
{
    type(text);
    wait_for("the typed text", draft_is, (gpointer)text);
    key("Return");
    wait_for("the message", has_n_messages, GUINT_TO_POINTER(n_messages));
}

static void saved_cb(GObject *source, GAsyncResult *result, gpointer data)
{
    g_autoptr(GError) error = NULL;

    quire_history_save_finish(result, &error);
    g_assert_no_error(error);
    *(gboolean *)data = TRUE;
}

char *add_chat(const char *title, guint n_messages, guint n_tokens)
{
    static const char *const paragraphs[] = {"A page holds **16 tokens** and is *sealed* when it is full; a "
                                             "sealed page is shared by all who need it. ",
        "What was computed once need not be computed again, as long as the tokens before it are the same. ",
        "- the card keeps what is hot\n- the host keeps what is warm\n- the disk keeps the rest\n\n"};
    GPtrArray *messages = g_ptr_array_new_with_free_func((GDestroyNotify)quire_stored_message_free);
    g_autoptr(QuireHistoryItem) item = quire_history_item_new();
    QuireStoredChat *chat = quire_history_item_edit(item);
    gboolean saved = FALSE;

    quire_history_item_set_title(item, title, QUIRE_TITLE_USER);
    chat->created = chat->updated = g_get_real_time();
    chat->tab = -1;
    chat->leaf = n_messages;
    for (guint seq = 1; seq <= n_messages; seq++) {
        g_autoptr(GString) text = g_string_new(NULL);

        /* About 20 tokens a sentence. */
        for (guint i = 0; i < MAX(n_tokens / 20, 1); i++)
            g_string_append_printf(text, "%s%s", paragraphs[(seq + i) % 3], i % 4 == 3 ? "\n\n" : "");
        g_ptr_array_add(
            messages, quire_stored_message_new(seq, seq - 1, seq % 2 == 1 ? QE_ROLE_USER : QE_ROLE_ASSISTANT,
                          QUIRE_REPLY_DONE, text->str, text->len));
    }
    quire_history_save(quire_application_get_history(application), item, messages, saved_cb, &saved);
    wait_for("the stored chat", is_set, &saved);
    return g_strdup(chat->id);
}

gboolean has_preferences(gpointer wanted)
{
    return (find_window(QUIRE_TYPE_PREFERENCES_WINDOW) != NULL) == GPOINTER_TO_INT(wanted);
}

/* ---- Running ---- */

static gboolean has_no_window(gpointer data)
{
    return gtk_application_get_windows(GTK_APPLICATION(application)) == NULL;
}

static gboolean is_active(gpointer data)
{
    return gtk_window_is_active(GTK_WINDOW(window));
}

static int test_rc;

static gboolean run_tests_cb(gpointer data);

static void activated_cb(void)
{
    static gboolean once;

    if (!once)
        g_idle_add(run_tests_cb, NULL);
    once = TRUE;
}

/* Runs inside g_application_run(), so that the application starts and ends as it does for a user. */
static gboolean run_tests_cb(gpointer data)
{
    /* The application lives while windows come and go. */
    g_application_hold(G_APPLICATION(application));
    window = QUIRE_WINDOW(gtk_application_get_active_window(GTK_APPLICATION(application)));
    wait_for("a model", is_ready, NULL);
    close_window();
    test_rc = g_test_run();
    /* The end is a user's: Ctrl+Q, with preferences open above a window. */
    open_window(900, 600);
    /* Without a window manager the focus may be where the last test's window was. */
    gtk_window_present(GTK_WINDOW(window));
    wait_for("the focus", is_active, NULL);
    key("ctrl+comma");
    wait_for("preferences", has_preferences, GINT_TO_POINTER(TRUE));
    wait_ms(200);
    key("ctrl+q");
    wait_for("no window", has_no_window, NULL);
    g_application_release(G_APPLICATION(application));
    return G_SOURCE_REMOVE;
}

/* The display has no desktop: here is who is told of notifications, else GIO warns that nobody is. On a connection of its
 * own, for the application is on the bus too. */
static void notify_cb(GDBusConnection *connection, const char *sender, const char *path,
    const char *interface, const char *method, GVariant *parameters, GDBusMethodInvocation *invocation,
    gpointer user_data)
{
    (void)connection, (void)sender, (void)path, (void)interface, (void)parameters, (void)user_data;
    g_dbus_method_invocation_return_value(
        invocation, strcmp(method, "Notify") == 0 ? g_variant_new("(u)", 1u) : NULL);
}

static GDBusConnection *serve_notifications(void)
{
    static const GDBusInterfaceVTable vtable = {.method_call = notify_cb};
    const char *xml =
        "<node><interface name='org.freedesktop.Notifications'>"
        "<method name='Notify'><arg type='s' direction='in'/><arg type='u' direction='in'/>"
        "<arg type='s' direction='in'/><arg type='s' direction='in'/><arg type='s' direction='in'/>"
        "<arg type='as' direction='in'/><arg type='a{sv}' direction='in'/>"
        "<arg type='i' direction='in'/><arg type='u' direction='out'/></method>"
        "<method name='CloseNotification'><arg type='u' direction='in'/></method>"
        "</interface></node>";
    g_autoptr(GDBusNodeInfo) node = g_dbus_node_info_new_for_xml(xml, NULL);
    g_autofree char *address = g_dbus_address_get_for_bus_sync(G_BUS_TYPE_SESSION, NULL, NULL);
    GDBusConnection *connection = address == NULL ? NULL
                                                  : g_dbus_connection_new_for_address_sync(address,
                                                        G_DBUS_CONNECTION_FLAGS_AUTHENTICATION_CLIENT |
                                                            G_DBUS_CONNECTION_FLAGS_MESSAGE_BUS_CONNECTION,
                                                        NULL, NULL, NULL);

    if (connection == NULL)
        return NULL;
    g_dbus_connection_register_object(
        connection, "/org/freedesktop/Notifications", node->interfaces[0], &vtable, NULL, NULL, NULL);
    g_bus_own_name_on_connection(
        connection, "org.freedesktop.Notifications", G_BUS_NAME_OWNER_FLAGS_NONE, NULL, NULL, NULL, NULL);
    return connection;
}

int ui_main(int argc, char **argv, void (*prepare)(GSettings *settings), void (*add_tests)(void))
{
    GSettings *settings;

    g_test_init(&argc, &argv, NULL);
    if (!gtk_init_check()) {
        g_print("1..0 # SKIP no display\n");
        return 77;
    }
    fake_im_register();

    settings = quire_settings_get_default();
    g_settings_set_boolean(settings, "custom-sampling", TRUE);
    g_settings_set_double(settings, "temperature", 0);
    /* Titles stay the first words, by which tests find their chats. */
    g_settings_set_boolean(settings, "auto-title", FALSE);
    if (prepare != NULL)
        prepare(settings);
    add_tests();

    g_autoptr(GDBusConnection) bus = serve_notifications();
    application = quire_application_new();
    g_signal_connect_after(application, "activate", G_CALLBACK(activated_cb), NULL);
    g_assert_cmpint(g_application_run(G_APPLICATION(application), 1, argv), ==, 0);
    /* All windows are gone: nothing else may hold the application. */
    g_assert_finalize_object(application);
    return test_rc;
}

static gboolean has_frames(gpointer data)
{
    return gdk_frame_clock_get_frame_counter(gtk_widget_get_frame_clock(GTK_WIDGET(window))) >=
           *(gint64 *)data;
}

/* An idle window draws nothing: each frame is asked for. */
void wait_frames(guint n)
{
    GdkFrameClock *clock = gtk_widget_get_frame_clock(GTK_WIDGET(window));
    gint64 wanted = gdk_frame_clock_get_frame_counter(clock) + n;

    gdk_frame_clock_begin_updating(clock);
    wait_for("frames", has_frames, &wanted);
    gdk_frame_clock_end_updating(clock);
}
