/* test-app-keys.c: the keyboard. Tab reaches all that can be acted on, in each window and state, and comes out of everything
 * again; Escape does one thing a press, in its order; text keys are not stolen. See ui-harness.h. */
#include <string.h>

#include "app/quire-cache-panel.h"
#include "app/quire-chat-settings-window.h"
#include "app/quire-compare-setup.h"
#include "app/quire-compare-view.h"
#include "app/quire-limits.h"
#include "app/quire-message-row.h"
#include "app/quire-models-window.h"
#include "app/quire-preferences-window.h"
#include "app/quire-room-window.h"
#include "app/quire-settings.h"
#include "app/quire-sidebar.h"
#include "app/quire-why-gpu.h"
#include "tests/app/fake-im.h"
#include "tests/app/ui-harness.h"

/* ---- Tab ---- */

static const char *state_name;
static guint n_faults, n_stops;

static void fault(const char *what, GtkWidget *widget)
{
    g_autofree char *text = describe_widget(widget);

    n_faults++;
    g_printerr("# %s: %s: %s\n", state_name, what, text);
}

static gboolean can_focus(GtkWidget *widget)
{
    for (GtkWidget *w = widget; w != NULL; w = gtk_widget_get_parent(w))
        if (!gtk_widget_get_can_focus(w) || !gtk_widget_get_child_visible(w))
            return FALSE;
    return gtk_widget_get_focusable(widget) && gtk_widget_get_mapped(widget) &&
           gtk_widget_is_sensitive(widget);
}

/* Within these the arrow keys move: Tab reaches one. */
static GtkWidget *get_group(GtkWidget *widget)
{
    for (GtkWidget *w = widget; w != NULL; w = gtk_widget_get_parent(w)) {
        const char *type = G_OBJECT_TYPE_NAME(w);

        if (GTK_IS_LIST_VIEW(w) || GTK_IS_COLUMN_VIEW(w) || GTK_IS_POPOVER_MENU(w) ||
            GTK_IS_STACK_SWITCHER(w) || strcmp(type, "AdwTabBox") == 0)
            return w;
        /* Choices of which one is taken. */
        if (GTK_IS_CHECK_BUTTON(w))
            return gtk_widget_get_parent(w);
    }
    return NULL;
}

/* Containers that scroll take the focus where nothing in them does; they are nothing to act on. */
static gboolean is_control(GtkWidget *widget)
{
    return can_focus(widget) && !GTK_IS_SCROLLED_WINDOW(widget) && !GTK_IS_VIEWPORT(widget) &&
           !GTK_IS_LIST_BOX(widget) && !GTK_IS_LIST_VIEW(widget) && !GTK_IS_COLUMN_VIEW(widget) &&
           strcmp(G_OBJECT_TYPE_NAME(widget), "GtkColumnListView") != 0;
}

/* The widgets that get the focus by Tab, each once. */
static GHashTable *walk(GtkWidget *scope, GtkDirectionType direction)
{
    GHashTable *seen = g_hash_table_new(NULL, NULL);
    GtkRoot *root = gtk_widget_get_root(scope);

    gtk_root_set_focus(root, NULL);
    while (gtk_widget_child_focus(scope, direction)) {
        GtkWidget *focus = gtk_root_get_focus(root);

        if (focus == NULL || !g_hash_table_add(seen, focus))
            break;
    }
    return seen;
}

static gboolean has_group(GHashTable *seen, GtkWidget *group)
{
    GHashTableIter iter;
    gpointer widget;

    g_hash_table_iter_init(&iter, seen);
    while (group != NULL && g_hash_table_iter_next(&iter, &widget, NULL))
        if (get_group(widget) == group)
            return TRUE;
    return FALSE;
}

/* A row may give the focus to what is in it. */
static gboolean has_inside(GHashTable *seen, GtkWidget *row)
{
    GHashTableIter iter;
    gpointer widget;

    g_hash_table_iter_init(&iter, seen);
    while (GTK_IS_LIST_BOX_ROW(row) && g_hash_table_iter_next(&iter, &widget, NULL))
        if (gtk_widget_is_ancestor(widget, row))
            return TRUE;
    return FALSE;
}

static gboolean is_reached(GHashTable *seen, GtkWidget *widget)
{
    return g_hash_table_contains(seen, widget) || has_group(seen, get_group(widget)) ||
           has_inside(seen, widget);
}

static void check_below(GtkWidget *widget, GHashTable *forward, GHashTable *backward)
{
    if (is_control(widget)) {
        n_stops++;
        if (!is_reached(forward, widget))
            fault("Tab does not reach", widget);
        if (!is_reached(backward, widget))
            fault("Shift+Tab does not reach", widget);
    }
    if (GTK_IS_TEXT_VIEW(widget) && gtk_widget_get_mapped(widget) &&
        gtk_text_view_get_accepts_tab(GTK_TEXT_VIEW(widget)))
        fault("Tab does not leave", widget);
    for (GtkWidget *child = gtk_widget_get_first_child(widget); child != NULL;
         child = gtk_widget_get_next_sibling(child))
        /* What lies above has a walk of its own. */
        if (!GTK_IS_NATIVE(child) && gtk_widget_get_mapped(child))
            check_below(child, forward, backward);
}

static void check_tab(const char *state, GtkWidget *scope)
{
    g_autoptr(GHashTable) forward = NULL;
    g_autoptr(GHashTable) backward = NULL;
    guint before = n_stops;
    GtkRoot *root;
    GtkWidget *focus;

    g_assert_nonnull(scope);
    state_name = state;
    wait_ms(300);
    root = gtk_widget_get_root(scope);
    focus = gtk_root_get_focus(root);
    forward = walk(scope, GTK_DIR_TAB_FORWARD);
    backward = walk(scope, GTK_DIR_TAB_BACKWARD);
    check_below(scope, forward, backward);
    g_test_message("%s: %u controls, %u stops", state, n_stops - before, g_hash_table_size(forward));
    g_assert_cmpuint(n_stops, >, before);
    gtk_root_set_focus(root, focus);
}

static gboolean act(const char *action)
{
    return gtk_widget_activate_action(GTK_WIDGET(window), action, NULL);
}

static GtkWidget *chat(void)
{
    return GTK_WIDGET(quire_window_get_chat(window));
}

static gboolean is_sensitive(gpointer widget)
{
    return gtk_widget_is_sensitive(widget);
}

static gboolean is_mapped(gpointer widget)
{
    return gtk_widget_get_mapped(widget);
}

/* A window that opens by @action of what is in front, then closes by Escape. */
static void check_window(const char *state, const char *action, GType type)
{
    GtkWidget *w;

    g_assert_true(gtk_widget_activate_action(chat(), action, NULL));
    while ((w = find_window(type)) == NULL || !gtk_widget_get_mapped(w))
        wait_ms(50);
    check_tab(state, w);
    /* Keys go where the pointer is: there is no window manager. */
    gtk_window_close(GTK_WINDOW(w));
    wait_for(state, has_no_window_of, GSIZE_TO_POINTER(type));
}

static void check_popover(const char *state, GtkWidget *button)
{
    GtkWidget *popover;

    gtk_menu_button_popup(GTK_MENU_BUTTON(button));
    popover = GTK_WIDGET(gtk_menu_button_get_popover(GTK_MENU_BUTTON(button)));
    wait_for(state, is_mapped, popover);
    check_tab(state, popover);
    gtk_menu_button_popdown(GTK_MENU_BUTTON(button));
    wait_ms(300);
}

/* The menu button below @root that has @tooltip. */
static GtkWidget *find_menu(GtkWidget *root, const char *tooltip)
{
    if (GTK_IS_MENU_BUTTON(root) && gtk_widget_get_tooltip_text(root) != NULL &&
        g_str_has_prefix(gtk_widget_get_tooltip_text(root), tooltip))
        return root;
    for (GtkWidget *child = gtk_widget_get_first_child(root); child != NULL;
         child = gtk_widget_get_next_sibling(child)) {
        GtkWidget *found = find_menu(child, tooltip);

        if (found != NULL)
            return found;
    }
    return NULL;
}

static void show_markdown(void)
{
    static const char markdown[] =
        "See [the notes](https://example.org/a):\n\n| tier | pages |\n|:--|--:|\n| host | 12 |\n\n"
        "```c\nint main (void) { return 0; }\n```\n";
    qe_update update = {.state = QE_REQUEST_DONE,
        .finish = QE_FINISH_STOP,
        .text = (char *)markdown,
        .n_text = sizeof markdown - 1,
        .receipt = {
            .n_prompt = 20, .n_new = 20, .n_generated = 40, .first_token_ms = 14, .first_mismatch = -1}};

    quire_message_apply(quire_conversation_get_last_reply(conversation()), &update);
}

static void test_tab_chat(void)
{
    g_autoptr(QuireMessage) user = NULL;

    open_window(1180, 760);
    check_tab("empty", GTK_WIDGET(window));
    say("My name is Oda.", 2);
    wait_for("the reply", is_idle, NULL);
    show_markdown();
    check_tab("reply", GTK_WIDGET(window));
    key("F12");
    check_tab("panel", GTK_WIDGET(window));
    gtk_toggle_button_set_active(
        GTK_TOGGLE_BUTTON(find(find(GTK_WIDGET(window), QUIRE_TYPE_CACHE_PANEL), GTK_TYPE_TOGGLE_BUTTON)),
        TRUE);
    check_tab("panel's table", GTK_WIDGET(window));
    key("F12");
    user = g_list_model_get_item(G_LIST_MODEL(conversation()), 0);
    g_assert_true(gtk_widget_activate_action(chat(), "chat.edit", "u", quire_message_get_seq(user)));
    g_assert_true(gtk_widget_activate_action(chat(), "chat.find", NULL));
    check_tab("edit and find", GTK_WIDGET(window));
    act("win.new-tab");
    wait_for("an empty chat", has_n_messages, GUINT_TO_POINTER(0));
    gtk_text_buffer_set_text(draft(), "a draft", -1);
    check_tab("two tabs", GTK_WIDGET(window));
    check_popover("main menu", find_menu(GTK_WIDGET(window), "Main Menu"));
    check_popover("chat menu", find_menu(GTK_WIDGET(window), "Chat Menu"));
    check_popover("model", find_menu(chat(), "Model"));
    check_popover("cache mode", find_menu(chat(), "Cache mode"));
    gtk_window_set_default_size(GTK_WINDOW(window), 360, 640);
    wait_ms(400);
    check_tab("narrow", GTK_WIDGET(window));
    close_window();
    g_assert_cmpuint(n_faults, ==, 0);
}

static void test_tab_windows(void)
{
    open_window(1180, 760);
    say("My name is Oda.", 2);
    wait_for("the reply", is_idle, NULL);
    check_window("preferences", "app.preferences", QUIRE_TYPE_PREFERENCES_WINDOW);
    check_window("models", "app.models", QUIRE_TYPE_MODELS_WINDOW);
    check_window("chat settings", "chat.settings", QUIRE_TYPE_CHAT_SETTINGS_WINDOW);
    check_window("make room", "chat.make-room", QUIRE_TYPE_ROOM_WINDOW);
    check_window("why no GPU", "win.why-gpu", ADW_TYPE_WINDOW);
    check_window("about", "app.about", ADW_TYPE_ABOUT_WINDOW);
    close_window();
    g_assert_cmpuint(n_faults, ==, 0);
}

static gboolean has_compare(gpointer data)
{
    return find(GTK_WIDGET(window), QUIRE_TYPE_COMPARE_VIEW) != NULL;
}

static gboolean has_compared(gpointer view)
{
    return quire_compare_view_get_comparison(view) != NULL && !quire_compare_view_is_running(view);
}

static void test_tab_compare(void)
{
    QuireCompareView *view;
    GtkWidget *start;

    open_window(1180, 760);
    say("My name is Oda.", 2);
    wait_for("the reply", is_idle, NULL);
    g_assert_true(gtk_widget_activate_action(chat(), "chat.compare-modes", NULL));
    wait_for("the comparison", has_compare, NULL);
    view = QUIRE_COMPARE_VIEW(find(GTK_WIDGET(window), QUIRE_TYPE_COMPARE_VIEW));
    quire_compare_setup_set_timed(quire_compare_view_get_setup(view), 3);
    start = quire_compare_setup_get_start(quire_compare_view_get_setup(view));
    wait_for("Start", is_sensitive, start);
    check_tab("compare: set-up", GTK_WIDGET(window));
    g_signal_emit_by_name(start, "clicked");
    check_tab("compare: running", GTK_WIDGET(window));
    wait_for("the result", has_compared, view);
    check_tab("compare: result", GTK_WIDGET(window));
    close_window();
    g_assert_cmpuint(n_faults, ==, 0);
}

/* ---- Escape ---- */

static gboolean panel_is_open(gpointer wanted)
{
    GtkWidget *panel = find(GTK_WIDGET(window), QUIRE_TYPE_CACHE_PANEL);

    return adw_flap_get_reveal_flap(ADW_FLAP(gtk_widget_get_ancestor(panel, ADW_TYPE_FLAP))) ==
           GPOINTER_TO_INT(wanted);
}

static gboolean find_is_open(gpointer wanted)
{
    return quire_find_bar_is_open(quire_chat_view_get_find_bar(quire_window_get_chat(window))) ==
           GPOINTER_TO_INT(wanted);
}

static gboolean is_hidden(gpointer widget)
{
    return !gtk_widget_get_mapped(widget);
}

static gboolean composes(gpointer wanted)
{
    return fake_im_is_composing() == GPOINTER_TO_INT(wanted);
}

typedef struct {
    gboolean composing, popover, find, panel, running;
} Open;

static GtkWidget *ring_popover;

static void check_open(Open wanted)
{
    wait_ms(200); /* for what an Escape too many would do */
    g_assert_cmpint(fake_im_is_composing(), ==, wanted.composing);
    g_assert_cmpint(gtk_widget_get_mapped(ring_popover), ==, wanted.popover);
    g_assert_true(find_is_open(GINT_TO_POINTER(wanted.find)));
    g_assert_true(panel_is_open(GINT_TO_POINTER(wanted.panel)));
    g_assert_cmpint(!is_idle(NULL), ==, wanted.running);
}

/* All that Escape closes at once, over a reply that reads for a long time: a press closes one, from the top. */
static void test_escape(void)
{
    g_autoptr(GString) text = g_string_new(NULL);
    GtkWidget *ring;

    for (int i = 0; i < 1200; i++)
        g_string_append(text, "my name is Oda ");
    open_window(360, 640);
    gtk_text_buffer_set_text(draft(), text->str, -1);
    g_assert_true(quire_composer_send(quire_chat_view_get_composer(quire_window_get_chat(window))));
    wait_for("the message", has_n_messages, GUINT_TO_POINTER(2));
    ring = GTK_WIDGET(quire_composer_get_ring(quire_chat_view_get_composer(quire_window_get_chat(window))));
    ring = find(ring, GTK_TYPE_MENU_BUTTON);
    ring_popover = GTK_WIDGET(gtk_menu_button_get_popover(GTK_MENU_BUTTON(ring)));
    key("ctrl+f");
    wait_for("the bar", find_is_open, GINT_TO_POINTER(TRUE));
    act("win.toggle-panel");
    wait_for("the panel", panel_is_open, GINT_TO_POINTER(TRUE));

    key("ctrl+l");
    wait_for("the composer", focus_is_in, quire_chat_view_get_composer(quire_window_get_chat(window)));
    fake_im_set_active(TRUE);
    type("ni");
    wait_for("preedit", composes, GINT_TO_POINTER(TRUE));
    check_open((Open){TRUE, FALSE, TRUE, TRUE, TRUE});
    key("Escape");
    wait_for("no preedit", composes, GINT_TO_POINTER(FALSE));
    fake_im_set_active(FALSE);
    check_open((Open){FALSE, FALSE, TRUE, TRUE, TRUE});

    gtk_menu_button_popup(GTK_MENU_BUTTON(ring));
    wait_for("the popover", is_mapped, ring_popover);
    check_open((Open){FALSE, TRUE, TRUE, TRUE, TRUE});
    key("Escape");
    wait_for("no popover", is_hidden, ring_popover);
    check_open((Open){FALSE, FALSE, TRUE, TRUE, TRUE});

    key("Escape");
    wait_for("no bar", find_is_open, GINT_TO_POINTER(FALSE));
    check_open((Open){FALSE, FALSE, FALSE, TRUE, TRUE});
    key("Escape");
    wait_for("no panel", panel_is_open, GINT_TO_POINTER(FALSE));
    check_open((Open){FALSE, FALSE, FALSE, FALSE, TRUE});
    key("Escape");
    wait_for("the end", is_idle, NULL);
    check_open((Open){FALSE, FALSE, FALSE, FALSE, FALSE});
    close_window();
}

/* ---- Text keys ---- */

static int get_cursor(void)
{
    int position;

    g_object_get(draft(), "cursor-position", &position, NULL);
    return position;
}

static gboolean cursor_is(gpointer position)
{
    return get_cursor() == GPOINTER_TO_INT(position);
}

/* Home and End, with all that is held, are the draft's, though the tabs of AdwTabView would have them. */
static void test_text_keys(void)
{
    AdwTabPage *page;

    open_window(1180, 760);
    act("win.new-tab");
    act("win.new-tab");
    wait_for("an empty chat", has_n_messages, GUINT_TO_POINTER(0));
    page = adw_tab_view_get_nth_page(quire_window_get_tab_view(window), 1);
    adw_tab_view_set_selected_page(quire_window_get_tab_view(window), page);
    key("ctrl+l");
    wait_for("the composer", focus_is_in, quire_chat_view_get_composer(quire_window_get_chat(window)));
    gtk_text_buffer_set_text(draft(), "one\ntwo", -1);
    static const struct {
        const char *key;
        int cursor;
    } steps[] = {{"ctrl+End", 7}, {"Home", 4}, {"End", 7}, {"ctrl+Home", 0}, {"End", 3},
        {"shift+ctrl+End", 7}, {"shift+ctrl+Home", 0}, {"shift+End", 3}, {"shift+Home", 0}, {"ctrl+End", 7}};
    for (gsize i = 0; i < G_N_ELEMENTS(steps); i++) {
        key(steps[i].key);
        wait_for(steps[i].key, cursor_is, GINT_TO_POINTER(steps[i].cursor));
        g_assert_true(adw_tab_view_get_selected_page(quire_window_get_tab_view(window)) == page);
        g_assert_cmpint(adw_tab_view_get_page_position(quire_window_get_tab_view(window), page), ==, 1);
    }
    close_window();
}

static void add_tests(void)
{
    g_test_add_func("/app/keys/tab-chat", test_tab_chat);
    g_test_add_func("/app/keys/tab-windows", test_tab_windows);
    g_test_add_func("/app/keys/tab-compare", test_tab_compare);
    g_test_add_func("/app/keys/escape", test_escape);
    g_test_add_func("/app/keys/text", test_text_keys);
}

int main(int argc, char **argv)
{
    return ui_main(argc, argv, NULL, add_tests);
}
