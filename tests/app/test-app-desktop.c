/* test-app-desktop.c: what the application and the desktop say to each other over the bus. The real application in this
 * process, other ends from fake-desktop.c. See ui-harness.h. */
#include <glib/gstdio.h>
#include <string.h>

#include "app/quire-background.h"
#include "app/quire-engine-bar.h"
#include "app/quire-message-row.h"
#include "app/quire-settings.h"
#include "app/quire-sidebar.h"
#include "tests/app/fake-desktop.h"
#include "tests/app/ui-harness.h"

#define APP_PATH "/io/github/quire_chat/Quire"

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

/* As another process does it: by the bus, @target a string or NULL. */
static void call_action(const char *action, const char *target)
{
    GDBusConnection *bus = g_application_get_dbus_connection(G_APPLICATION(application));
    GVariantBuilder parameter;
    gboolean done = FALSE;

    g_variant_builder_init(&parameter, G_VARIANT_TYPE("av"));
    if (target != NULL)
        g_variant_builder_add(&parameter, "v", g_variant_new_string(target));
    g_dbus_connection_call(bus, QUIRE_APP_ID, APP_PATH, "org.freedesktop.Application", "ActivateAction",
        g_variant_new("(sava{sv})", action, &parameter, NULL), NULL, G_DBUS_CALL_FLAGS_NONE, -1, NULL,
        called_cb, &done);
    wait_for(action, is_set, &done);
}

static const char *front_id(void)
{
    return quire_history_item_get(quire_conversation_get_item(conversation()))->id;
}

static gboolean front_is(gpointer id)
{
    return quire_window_get_chat(window) != NULL && strcmp(front_id(), id) == 0;
}

static gboolean is_chat_idle(gpointer data)
{
    return !quire_conversation_is_running(data);
}

static gboolean is_released(gpointer data)
{
    return fake_desktop_n_inhibitors() == 0;
}

/* Sends in the front tab and opens another before the reply ends, so that it ends unseen. Returns: the chat, owned. */
static QuireConversation *say_and_leave(const char *text)
{
    QuireConversation *asked = g_object_ref(conversation());

    quire_chat_view_send(quire_window_get_chat(window), text);
    g_assert_true(quire_conversation_is_running(asked));
    quire_window_new_chat(window);
    return asked;
}

static void test_notification(void)
{
    guint n_added = fake_desktop_count("AddNotification"), n_removed;
    g_autoptr(QuireConversation) asked = NULL;
    g_autoptr(GVariant) call = NULL, notification = NULL, target = NULL;
    g_autofree char *words = NULL;
    const char *app_id, *id, *title = NULL, *body = NULL, *action = NULL;
    gsize n_bytes;

    open_window(900, 600);
    asked = say_and_leave("Tell me a story.");
    wait_for("the end of the reply", is_chat_idle, asked);
    wait_calls("AddNotification", n_added + 1);
    call = fake_desktop_dup_last("AddNotification");
    g_variant_get(call, "(&s&s@a{sv})", &app_id, &id, &notification);
    g_assert_cmpstr(app_id, ==, QUIRE_APP_ID);
    g_assert_cmpstr(id, ==, quire_history_item_get(quire_conversation_get_item(asked))->id);
    g_assert_true(g_variant_lookup(notification, "title", "&s", &title));
    g_assert_cmpstr(title, ==, "Tell me a story.");
    g_assert_true(g_variant_lookup(notification, "body", "&s", &body));
    words = g_strndup(quire_message_get_text(quire_conversation_get_last_reply(asked), &n_bytes), 12);
    g_assert_true(g_str_has_prefix(body, words));
    g_assert_true(g_variant_lookup(notification, "default-action", "&s", &action));
    g_assert_cmpstr(action, ==, "app.open-chat");
    target = g_variant_lookup_value(notification, "default-action-target", G_VARIANT_TYPE_STRING);
    g_assert_cmpstr(g_variant_get_string(target, NULL), ==, id);

    /* Its action brings the chat to the front; it has been seen then. */
    n_removed = fake_desktop_count("RemoveNotification");
    g_assert_false(front_is((gpointer)id));
    call_action("open-chat", id);
    wait_for("the chat in front", front_is, (gpointer)id);
    wait_calls("RemoveNotification", n_removed + 1);

    /* In front of the user there is nothing to notify of; neither when a reply is stopped, or ends with its window. */
    n_added = fake_desktop_count("AddNotification");
    say("What is a KV cache?", 4);
    wait_for("the end of the reply", is_idle, NULL);
    {
        g_autoptr(QuireConversation) stopped = say_and_leave("Tell me a story.");

        quire_conversation_stop(stopped);
        wait_for("the stop", is_chat_idle, stopped);
    }
    {
        g_autoptr(QuireConversation) closed = say_and_leave("Tell me a story.");

        close_window();
        wait_for("the end", is_chat_idle, closed);
    }
    g_assert_cmpuint(fake_desktop_count("AddNotification"), ==, n_added);
}

/* With the focus in another window the front tab's reply is not seen either, until the window has it again. */
static void test_unfocused(void)
{
    GtkWidget *other = gtk_window_new();
    guint n_added, n_removed;
    const char *id;

    open_window(700, 500);
    n_added = fake_desktop_count("AddNotification");
    gtk_window_present(GTK_WINDOW(other));
    gtk_window_set_default_size(GTK_WINDOW(other), 200, 200);
    {
        FakeDesktopCalls wanted = {"AddNotification", n_added + 1};

        for (int i = 0; i < 200 && gtk_window_is_active(GTK_WINDOW(window)); i++)
            wait_ms(50);
        g_assert_false(gtk_window_is_active(GTK_WINDOW(window)));
        quire_chat_view_send(quire_window_get_chat(window), "Tell me a story.");
        wait_for("the notification", fake_desktop_has_calls, &wanted);
    }
    id = front_id();
    n_removed = fake_desktop_count("RemoveNotification");
    gtk_window_destroy(GTK_WINDOW(other));
    {
        const char *focus[] = {
            "xdotool", "search", "--onlyvisible", "--name", "^Tell me a story", "windowfocus", NULL};

        run(focus);
    }
    wait_calls("RemoveNotification", n_removed + 1);
    {
        g_autoptr(GVariant) call = fake_desktop_dup_last("RemoveNotification");
        const char *removed;

        g_variant_get(call, "(&s&s)", NULL, &removed);
        g_assert_cmpstr(removed, ==, id);
    }
    close_window();
}

static void test_inhibit(void)
{
    guint n = fake_desktop_count("Inhibit");
    g_autoptr(GVariant) call = NULL;
    const char *app_id, *reason;
    guint32 flags;

    /* Loading the first model took one, and gave it back. */
    g_assert_cmpuint(n, >=, 1);
    open_window(900, 600);
    wait_for("no inhibitor", is_released, NULL);
    n = fake_desktop_count("Inhibit");
    say("Tell me a story.", 2);
    wait_calls("Inhibit", n + 1);
    call = fake_desktop_dup_last("Inhibit");
    g_variant_get(call, "(&su&su)", &app_id, NULL, &reason, &flags);
    g_assert_cmpstr(app_id, ==, QUIRE_APP_ID);
    g_assert_cmpstr(reason, !=, "");
    g_assert_cmpuint(flags, ==, GTK_APPLICATION_INHIBIT_SUSPEND);
    wait_for("the end of the reply", is_idle, NULL);
    wait_for("no inhibitor", is_released, NULL);
    close_window();
}

static gboolean state_is(gpointer data)
{
    return quire_background_get_state(*(QuireBackground **)data) != QUIRE_BACKGROUND_ASKING;
}

static void test_background(void)
{
    QuireBackground *background = quire_background_new(G_APPLICATION(application));
    g_autoptr(GVariant) call = NULL, options = NULL;
    gboolean autostart = TRUE;
    const char *reason = NULL;
    guint n;

    /* Outside of a sandbox nobody is asked. */
    quire_background_request(background, "Serve");
    g_assert_cmpint(quire_background_get_state(background), ==, QUIRE_BACKGROUND_ALLOWED);
    g_assert_cmpuint(fake_desktop_count("RequestBackground"), ==, 0);
    quire_background_release(background);
    g_assert_cmpint(quire_background_get_state(background), ==, QUIRE_BACKGROUND_OFF);

    g_setenv("GTK_USE_PORTAL", "1", TRUE);
    fake_desktop_set_answer(1);
    quire_background_request(background, "Serve the model");
    g_assert_cmpint(quire_background_get_state(background), ==, QUIRE_BACKGROUND_ASKING);
    quire_background_request(background, "Twice");
    wait_for("an answer", state_is, &background);
    g_assert_cmpint(quire_background_get_state(background), ==, QUIRE_BACKGROUND_ALLOWED);
    g_assert_cmpuint(fake_desktop_count("RequestBackground"), ==, 1);
    call = fake_desktop_dup_last("RequestBackground");
    options = g_variant_get_child_value(call, 1);
    g_assert_true(g_variant_lookup(options, "reason", "&s", &reason));
    g_assert_cmpstr(reason, ==, "Serve the model");
    g_assert_true(g_variant_lookup(options, "autostart", "b", &autostart));
    g_assert_false(autostart);
    wait_calls("SetStatus", 1);
    quire_background_release(background);

    fake_desktop_set_answer(0);
    quire_background_request(background, "No");
    wait_for("an answer", state_is, &background);
    g_assert_cmpint(quire_background_get_state(background), ==, QUIRE_BACKGROUND_DENIED);

    /* Let go while the user is still being asked: the question is taken back. */
    fake_desktop_set_answer(-1);
    n = fake_desktop_count("RequestBackground");
    quire_background_request(background, "Perhaps");
    wait_calls("RequestBackground", n + 1);
    g_object_unref(background);
    wait_calls("Close", 1);
    g_unsetenv("GTK_USE_PORTAL");
}

static gboolean model_is(gpointer dir)
{
    return is_ready(NULL) &&
           g_strcmp0(quire_engine_client_get_model_dir(quire_application_get_client(application)), dir) == 0;
}

/* What the bar above the chat says. */
static gboolean bar_says(gpointer text)
{
    GtkWidget *bar = find(GTK_WIDGET(window), QUIRE_TYPE_ENGINE_BAR);
    GtkWidget *label = find(bar, GTK_TYPE_LABEL);

    return gtk_widget_get_mapped(label) && strstr(gtk_label_get_text(GTK_LABEL(label)), text) != NULL;
}

/* A second start hands its folder to the first, whether it is named from here or by its file. */
static void test_open_folder(void)
{
    const char *program = g_getenv("QUIRE_PROGRAM"), *before = g_getenv("QUIRE_TEST_MODEL");
    const char *other = g_getenv("QUIRE_TEST_OTHER_MODEL");
    g_autofree char *file = g_build_filename(before, "config.json", NULL);
    g_autofree char *nothing = g_dir_make_tmp("no-model-XXXXXX", NULL);
    g_autofree char *remembered = NULL;
    const char *good[] = {program, other, NULL}, *by_file[] = {program, file, NULL};
    const char *bad[] = {program, nothing, NULL};

    open_window(900, 600);
    run(good);
    wait_for("the other model", model_is, (gpointer)other);
    remembered = g_settings_get_string(quire_settings_get_default(), "model-folder");
    g_assert_cmpstr(remembered, ==, "");

    run(bad);
    wait_for("why the folder is no model", bar_says, (gpointer) "config.json");
    screenshot("desktop-1-no-model.png");
    g_assert_true(model_is((gpointer)other));

    run(by_file);
    wait_for("the first model", model_is, (gpointer)before);
    g_rmdir(nothing);
    close_window();
}

static gboolean has_n_tabs(gpointer n)
{
    return adw_tab_view_get_n_pages(quire_window_get_tab_view(window)) == GPOINTER_TO_INT(n);
}

static gboolean is_searching(gpointer text)
{
    GtkWidget *entry = find(find(GTK_WIDGET(window), QUIRE_TYPE_SIDEBAR), GTK_TYPE_SEARCH_ENTRY);

    return strcmp(gtk_editable_get_text(GTK_EDITABLE(entry)), text) == 0;
}

static void test_actions(void)
{
    open_window(900, 600);
    call_action("new-chat", NULL);
    wait_for("another tab", has_n_tabs, GINT_TO_POINTER(2));
    call_action("search", "a story");
    wait_for("the search", is_searching, (gpointer) "a story");
    /* A chat that is not there any more: the window comes, nothing else. */
    call_action("open-chat", "no such chat");
    g_assert_true(has_n_tabs(GINT_TO_POINTER(2)));
    close_window();
}

/* ---- What a search found ---- */

static GtkWidget *row_of(guint seq)
{
    GtkWidget *row = last_row();

    while (row != NULL && quire_message_get_seq(quire_message_row_get_message(QUIRE_MESSAGE_ROW(row))) != seq)
        row = gtk_widget_get_prev_sibling(row);
    return row;
}

/* How many labels below @widget have a word on a coloured ground. */
static guint n_marked(GtkWidget *widget)
{
    guint n = 0;

    if (GTK_IS_LABEL(widget) && gtk_label_get_attributes(GTK_LABEL(widget)) != NULL) {
        g_autoptr(PangoAttrIterator) at =
            pango_attr_list_get_iterator(gtk_label_get_attributes(GTK_LABEL(widget)));

        do
            n += pango_attr_iterator_get(at, PANGO_ATTR_BACKGROUND) != NULL;
        while (pango_attr_iterator_next(at));
    }
    for (GtkWidget *child = gtk_widget_get_first_child(widget); child != NULL;
         child = gtk_widget_get_next_sibling(child))
        n += n_marked(child);
    return n;
}

static gboolean is_in_sight(GtkWidget *row)
{
    GtkWidget *transcript = quire_chat_view_get_transcript(quire_window_get_chat(window));
    double x, y;

    return gtk_widget_translate_coordinates(row, transcript, 0, 0, &x, &y) &&
           y < gtk_widget_get_height(transcript) && y + gtk_widget_get_height(row) > 0;
}

/* One place is marked, and it is in message @data, in sight. */
static gboolean is_shown(gpointer data)
{
    GtkWidget *row = row_of(GPOINTER_TO_UINT(data));

    return row != NULL && is_in_sight(row) && n_marked(row) == 1 && n_marked(gtk_widget_get_parent(row)) == 1;
}

static gboolean is_open_at(gpointer data)
{
    QuireChatView *chat = quire_window_get_chat(window);
    GtkWidget *row = chat != NULL ? row_of(GPOINTER_TO_UINT(data)) : NULL;

    return row != NULL && is_in_sight(row) && !quire_find_bar_is_open(quire_chat_view_get_find_bar(chat)) &&
           n_marked(gtk_widget_get_parent(row)) == 0;
}

static void open_found(const char *id, guint seq, const char *words)
{
    g_autofree char *target = g_strdup_printf("%s/%u %s", id, seq, words);

    call_action("open-found", target);
}

/* The chat opens at its end, and only its newest messages have rows: what is found lies far above. */
static void test_found(void)
{
    g_autofree char *id = NULL;

    open_window(900, 600);
    id = add_chat("Sixty messages", 60, 80);
    open_found(id, 11, "sealed page");
    wait_for("the place in message 11", is_shown, GUINT_TO_POINTER(11));
    screenshot("desktop-2-found.png");
    /* The entry tells of its new text some time later: the place stays. */
    wait_ms(400);
    g_assert_true(is_shown(GUINT_TO_POINTER(11)));

    /* In the same tab. The words stand apart in the message: its first one is marked. */
    open_found(id, 40, "tokens sealed");
    wait_for("the place in message 40", is_shown, GUINT_TO_POINTER(40));
    g_assert_cmpint(adw_tab_view_get_n_pages(quire_window_get_tab_view(window)), ==, 1);

    /* Words that the reply does not show as they were written, and a message that is not there. */
    open_found(id, 4, "**16");
    wait_for("message 4", is_open_at, GUINT_TO_POINTER(4));
    open_found(id, 61, "sealed");
    wait_ms(600);
    g_assert_true(is_open_at(GUINT_TO_POINTER(4)));
    close_window();
}

static void add_tests(void)
{
    g_test_add_func("/app/desktop/notification", test_notification);
    g_test_add_func("/app/desktop/notification-unfocused", test_unfocused);
    g_test_add_func("/app/desktop/inhibit", test_inhibit);
    g_test_add_func("/app/desktop/background", test_background);
    g_test_add_func("/app/desktop/open-folder", test_open_folder);
    g_test_add_func("/app/desktop/actions", test_actions);
    g_test_add_func("/app/desktop/found", test_found);
}

int main(int argc, char **argv)
{
    fake_desktop_start();
    return ui_main(argc, argv, NULL, add_tests);
}
