/* test-app-a11y.c: the application as somebody has it who does not see it: the real program in a process of its own, with
 * a history and settings of its own, used by keys and by what AT-SPI offers alone.
 *
 * Each test begins with a new chat. The engine's own counters come from the local server. QUIRE_TEST_TREES: a folder where the
 * trees of all states go, for people. */
#include <glib/gstdio.h>
#include <libsoup/soup.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <json-glib/json-glib.h>

#include "app/quire-format.h"
#include "tests/app/at-client.h"

#define WAIT_MS_MAX 60000

static guint port;
static char *settings_path;
static GSubprocess *app;

/* ---- Keys ---- */

static void xdotool(const char *const *argv)
{
    g_autoptr(GError) error = NULL;
    int status;

    g_spawn_sync(NULL, (char **)argv, NULL, G_SPAWN_SEARCH_PATH, NULL, NULL, NULL, NULL, &status, &error);
    g_assert_no_error(error);
    g_spawn_check_wait_status(status, &error);
    g_assert_no_error(error);
}

static void key(const char *name)
{
    const char *argv[] = {"xdotool", "key", name, NULL};

    xdotool(argv);
}

static void type(const char *text)
{
    const char *argv[] = {"xdotool", "type", "--delay", "5", text, NULL};

    xdotool(argv);
}

/* For people. */
static void keep_tree(const char *name, AtNode *tree)
{
    const char *dir = g_getenv("QUIRE_TEST_TREES");
    g_autofree char *file = g_strconcat(name, ".txt", NULL);
    g_autofree char *path = dir != NULL ? g_build_filename(dir, file, NULL) : NULL;
    g_autofree char *dump = at_dump(tree);

    if (path != NULL)
        g_file_set_contents(path, dump, -1, NULL);
}

/* ---- Waiting ---- */

typedef gboolean (*Condition)(AtNode *tree, gpointer data);

/* Reads the tree until @condition holds. Returns: the tree; owned. */
static AtNode *wait_for(const char *what, Condition condition, gpointer data)
{
    gint64 end = g_get_monotonic_time() + WAIT_MS_MAX * (gint64)1000;

    for (;;) {
        AtNode *tree = at_read(FALSE);

        if (condition(tree, data))
            return tree;
        if (g_get_monotonic_time() > end) {
            keep_tree("late", tree);
            for (guint i = 0; i < tree->children->len; i++)
                g_printerr(
                    "# there is the window “%s”\n", ((AtNode *)g_ptr_array_index(tree->children, i))->name);
            g_error("waited too long for: %s", what);
        }
        at_node_free(tree);
        g_usleep(50 * 1000);
    }
}

typedef struct {
    const char *role, *name;
    const char *inside; /* of something named so; NULL: anywhere */
} Thing;

static AtNode *find_thing(AtNode *tree, const Thing *thing)
{
    AtNode *in = thing->inside != NULL ? at_find(tree, NULL, thing->inside) : tree;

    return in != NULL ? at_find(in, thing->role, thing->name) : NULL;
}

static gboolean has_thing(AtNode *tree, gpointer thing)
{
    return find_thing(tree, thing) != NULL;
}

static gboolean lacks_thing(AtNode *tree, gpointer thing)
{
    return find_thing(tree, thing) == NULL;
}

/* Returns: the path of what is of @role and named @name, once it is there. */
static const char *await(const char *role, const char *name)
{
    Thing thing = {role, name, NULL};
    g_autoptr(AtNode) tree = wait_for(name, has_thing, &thing);

    return find_thing(tree, &thing)->path;
}

static void await_gone(const char *role, const char *name)
{
    Thing thing = {role, name, NULL};
    g_autoptr(AtNode) tree = wait_for(name, lacks_thing, &thing);
}

static gboolean act_below(AtNode *node, const char *role, const char *name)
{
    if (strcmp(node->name, name) == 0 && strcmp(at_role(node), role) == 0 && at_do(node->path, NULL))
        return TRUE;
    for (guint i = 0; i < node->children->len; i++)
        if (act_below(g_ptr_array_index(node->children, i), role, name))
            return TRUE;
    return FALSE;
}

/* Does what a screen reader's "activate" does, with the first of that role and name that can. */
static void act(const char *role, const char *name)
{
    Thing thing = {role, name, NULL};
    g_autoptr(AtNode) tree = wait_for(name, has_thing, &thing);

    if (!act_below(tree, role, name))
        g_error("no action at the %s “%s”", role, name);
}

/* ---- The focus ---- */

/* What got the focus last; NULL: nothing since the last time. */
static const char *take_focus(void)
{
    g_autoptr(GPtrArray) events = at_take_events();

    for (guint i = events->len; i-- > 0;) {
        const AtEvent *event = g_ptr_array_index(events, i);

        if (strcmp(event->member, "StateChanged") == 0 && strcmp(event->detail, "focused") == 0 &&
            event->value != 0)
            return event->path;
    }
    return NULL;
}

static const char *press(const char *name)
{
    const char *path = NULL;

    at_listen();
    key(name);
    for (int i = 0; i < 50 && path == NULL; i++) {
        path = take_focus();
        if (path == NULL)
            g_usleep(10 * 1000);
    }
    return path;
}

/* Presses a key until the focus is at what is of @role and named @name. */
static void press_to(const char *key_name, const char *role, const char *name)
{
    for (int i = 0; i < 100; i++) {
        const char *path = press(key_name);
        g_autofree char *have_role = path != NULL ? at_dup_role(path) : g_strdup("nothing");
        g_autofree char *have_name = path != NULL ? at_dup_name(path) : g_strdup("");

        g_test_message("%s: %s “%s”", key_name, have_role, have_name);
        if (strcmp(have_role, role) == 0 && strcmp(have_name, name) == 0)
            return;
    }
    g_error("%s does not reach the %s “%s”", key_name, role, name);
}

/* From the search, which has a key, into the list of chats: to its first line, which is a heading, and down. */
static void reach_row(const char *title)
{
    press_to("ctrl+shift+f", "search box", "Search chats");
    press("Tab");
    press("Home");
    press_to("Down", "list item", title);
}

/* ---- Names ---- */

static gboolean is_type_name(const char *name)
{
    return g_regex_match_simple("^(Gtk|Adw|Quire|Gdk)[A-Z]", name, 0, 0);
}

/* What somebody acts on, or is told by. */
static gboolean needs_name(AtNode *node)
{
    static const char *const roles[] = {"button", "toggle button", "checkbox", "radio", "switch", "combo box",
        "text box", "search box", "spin button", "slider", "tab", "list item", "menu", "menu item",
        "menu item checkbox", "menu item radio", "list", "row", "table", "tree grid", "grid cell", "cell",
        "log", "meter", "progress bar", "alert dialog", "dialog", "window", "link", NULL};

    return g_strv_contains(roles, at_role(node));
}

/* The libraries build these and do not show them, or show nothing in them. A combo names its rows as it opens. */
static gboolean is_hidden(AtNode *node)
{
    double width, height;

    if (strcmp(at_role(node), "list item") == 0)
        for (AtNode *in = node->parent; in != NULL; in = in->parent)
            if (strcmp(at_role(in), "combo box") == 0)
                return TRUE;

    at_get_size(node->path, &width, &height);
    return width <= 0 || height <= 0;
}

static char *describe(AtNode *node)
{
    GString *out = g_string_new(NULL);

    for (int i = 0; node != NULL && i < 7; i++, node = node->parent)
        g_string_append_printf(out, "%s%s “%s”%s%s", i > 0 ? " < " : "", at_role(node), node->name,
            node->description[0] != '\0' ? " " : "", node->description);
    return g_string_free(out, FALSE);
}

static void collect_faults(AtNode *node, GPtrArray *faults)
{
    gboolean focused = at_has(node, AT_STATE_FOCUSABLE) && strcmp(at_role(node), "group") != 0;
    const char *fault = NULL;

    if (needs_name(node) || focused) {
        if (node->name[0] == '\0' || is_type_name(node->name))
            fault = "no name";
        else if (g_str_has_suffix(node->name, "-symbolic"))
            fault = "named as its icon";
        else if (strcmp(at_role(node), "button") == 0 && strchr(node->name, '_') != NULL)
            fault = "an underscore in its name";
    }
    if (fault != NULL && !is_hidden(node)) {
        g_autofree char *where = describe(node);

        g_ptr_array_add(faults, g_strdup_printf("%s: %s", fault, where));
    }
    for (guint i = 0; i < node->children->len; i++)
        collect_faults(g_ptr_array_index(node->children, i), faults);
}

static guint n_faults;

/* Looks at all that is there now. */
static void check_names(const char *state)
{
    static GHashTable *told;
    g_autoptr(AtNode) tree = at_read(TRUE);
    g_autoptr(GPtrArray) faults = g_ptr_array_new_with_free_func(g_free);

    if (told == NULL)
        told = g_hash_table_new_full(g_str_hash, g_str_equal, g_free, NULL);
    keep_tree(state, tree);
    collect_faults(tree, faults);
    for (guint i = 0; i < faults->len; i++)
        if (g_hash_table_add(told, g_strdup(g_ptr_array_index(faults, i)))) {
            n_faults++;
            g_printerr("# %s: %s\n", state, (char *)g_ptr_array_index(faults, i));
        }
}

/* ---- What the engine counts ---- */

/* Returns: the session of the chat in front in /v1/cache: the one with most tokens; owned. */
static JsonObject *fetch_session(void)
{
    g_autoptr(SoupSession) http = soup_session_new();
    g_autofree char *uri = g_strdup_printf("http://127.0.0.1:%u/v1/cache", port);
    g_autoptr(SoupMessage) message = soup_message_new("GET", uri);
    g_autoptr(GError) error = NULL;
    g_autoptr(GBytes) body = soup_session_send_and_read(http, message, NULL, &error);
    g_autoptr(JsonParser) parser = json_parser_new();
    JsonObject *best = NULL;
    JsonArray *sessions;

    g_assert_no_error(error);
    json_parser_load_from_data(parser, g_bytes_get_data(body, NULL), (gssize)g_bytes_get_size(body), &error);
    g_assert_no_error(error);
    sessions = json_object_get_array_member(json_node_get_object(json_parser_get_root(parser)), "sessions");
    for (guint i = 0; i < json_array_get_length(sessions); i++) {
        JsonObject *session = json_array_get_object_element(sessions, i);

        if (best == NULL ||
            json_object_get_int_member(session, "tokens") > json_object_get_int_member(best, "tokens"))
            best = session;
    }
    g_assert_nonnull(best);
    return json_object_ref(best);
}

/* ---- Chats ---- */

static gboolean is_fresh(AtNode *tree, gpointer data)
{
    AtNode *composer = at_find(tree, "text box", "Message");

    return composer != NULL && at_has(composer, AT_STATE_FOCUSED) &&
           at_find(tree, "button", "Tell me a story.") != NULL;
}

static gboolean has_said(AtNode *tree, gpointer data)
{
    Thing reply = {"button", "Regenerate Reply", NULL};

    return at_find(tree, "button", "Stop") == NULL && find_thing(tree, &reply) != NULL;
}

/* Types @text and sends it. */
static void say(const char *text)
{
    key("ctrl+l");
    type(text);
    key("Return");
}

/* ---- Start and end ---- */

static guint free_port(void)
{
    g_autoptr(GSocket) socket =
        g_socket_new(G_SOCKET_FAMILY_IPV4, G_SOCKET_TYPE_STREAM, G_SOCKET_PROTOCOL_TCP, NULL);
    g_autoptr(GInetAddress) loopback = g_inet_address_new_loopback(G_SOCKET_FAMILY_IPV4);
    g_autoptr(GSocketAddress) any = g_inet_socket_address_new(loopback, 0);
    g_autoptr(GSocketAddress) got = NULL;

    g_assert_true(g_socket_bind(socket, any, FALSE, NULL));
    got = g_socket_get_local_address(socket, NULL);
    return g_inet_socket_address_get_port(G_INET_SOCKET_ADDRESS(got));
}

/* Frames of which nobody knows here. */
static void no_animations(void)
{
    g_autofree char *dir = g_build_filename(g_get_user_config_dir(), "gtk-4.0", NULL);
    g_autofree char *path = g_build_filename(dir, "settings.ini", NULL);
    g_autoptr(GError) error = NULL;

    g_mkdir_with_parents(dir, 0700);
    g_file_set_contents(path, "[Settings]\ngtk-enable-animations=0\n", -1, &error);
    g_assert_no_error(error);
}

static void start_app(void)
{
    const char *group = "io/github/quire_chat/Quire";
    g_autoptr(GKeyFile) settings = g_key_file_new();
    g_autoptr(GSubprocessLauncher) launcher = g_subprocess_launcher_new(G_SUBPROCESS_FLAGS_NONE);
    g_autofree char *dir = g_build_filename(g_get_user_config_dir(), "glib-2.0", "settings", NULL);
    gint64 end = g_get_monotonic_time() + WAIT_MS_MAX * (gint64)1000;
    g_autoptr(GError) error = NULL;
    guint pid;

    port = free_port();
    g_key_file_set_string(settings, group, "custom-sampling", "true");
    g_key_file_set_string(settings, group, "temperature", "0.0");
    g_key_file_set_string(settings, group, "auto-title", "false");
    g_key_file_set_string(settings, group, "threads", "uint32 1");
    g_key_file_set_string(settings, group, "window-width", "1180");
    g_key_file_set_string(settings, group, "window-height", "640");
    g_key_file_set_string(settings, group, "server", "true");
    {
        g_autofree char *value = g_strdup_printf("uint32 %u", port);

        g_key_file_set_string(settings, group, "server-port", value);
    }
    g_mkdir_with_parents(dir, 0700);
    no_animations();
    settings_path = g_build_filename(dir, "keyfile", NULL);
    g_key_file_save_to_file(settings, settings_path, &error);
    g_assert_no_error(error);
    g_subprocess_launcher_setenv(launcher, "GTK_A11Y", "atspi", TRUE);
    g_subprocess_launcher_setenv(launcher, "GSETTINGS_BACKEND", "keyfile", TRUE);
    app = g_subprocess_launcher_spawn(launcher, &error, g_getenv("QUIRE_PROGRAM"), NULL);
    g_assert_no_error(error);
    pid = (guint)atoi(g_subprocess_get_identifier(app));
    while (!at_find_program(pid, 500) && g_subprocess_get_identifier(app) != NULL)
        if (g_get_monotonic_time() > end)
            break;
    if (!at_find_program(pid, 500))
        g_error("the program is not on the accessibility bus");
}

static void end_app(void)
{
    g_autoptr(GError) error = NULL;

    key("ctrl+q");
    g_assert_true(g_subprocess_wait_check(app, NULL, &error));
    g_assert_no_error(error);
    g_clear_object(&app);
}

/* ---- Tests ---- */

static guint count_things(AtNode *node, const char *role, const char *name)
{
    guint n =
        (name == NULL || strcmp(node->name, name) == 0) && (role == NULL || strcmp(at_role(node), role) == 0);

    for (guint i = 0; i < node->children->len; i++)
        n += count_things(g_ptr_array_index(node->children, i), role, name);
    return n;
}

static gboolean has_n_tabs(AtNode *tree, gpointer n)
{
    return count_things(tree, "button", "Close Tab") == GPOINTER_TO_UINT(n);
}

/* A new chat, alone in the window. */
static void begin(void)
{
    g_autoptr(AtNode) two = NULL;
    g_autoptr(AtNode) one = NULL;
    g_autoptr(AtNode) fresh = NULL;

    act("button", "New Chat");
    two = wait_for("two tabs", has_n_tabs, GUINT_TO_POINTER(2));
    g_assert_true(at_do(at_find(two, "button", "Close Tab")->path, NULL));
    one = wait_for("one tab", has_n_tabs, GUINT_TO_POINTER(1));
    key("ctrl+l");
    fresh = wait_for("an empty chat", is_fresh, NULL);
}

/* Waits until a reply has ended. Returns: the tree. */
static AtNode *await_reply(void)
{
    return wait_for("the end of the reply", has_said, NULL);
}

static gboolean is_shown_message(AtNode *tree, gpointer text)
{
    AtNode *log = at_find(tree, "log", "Conversation");

    return log != NULL && at_find(log, "label", text) != NULL && has_said(tree, NULL);
}

static void await_message(const char *text)
{
    g_autoptr(AtNode) tree = wait_for(text, is_shown_message, (gpointer)text);
}

/* The newest reply's line of figures. Returns: owned. */
static AtNode *find_receipt(AtNode *node)
{
    for (guint i = node->children->len; i-- > 0;) {
        AtNode *found = find_receipt(g_ptr_array_index(node->children, i));

        if (found != NULL)
            return found;
    }
    return strcmp(node->description, "What this reply took") == 0 ? node : NULL;
}

/* Sends, and stops the reply by the button that is there for it. Returns: whether it was in time. */
static gboolean say_and_stop(const char *text)
{
    const char *send = await("button", "Send");
    g_autoptr(AtNode) tree = NULL;
    guint n_clicks = 0;
    AtNode *receipt;

    say(text);
    /* Within 300 ms of the start a click is taken for Send's second, and does nothing. */
    for (int i = 0; i < 1000 && n_clicks < 20; i++) {
        g_autofree char *name = at_dup_name(send);

        if (strcmp(name, "Stop") == 0) {
            if (!at_do(send, NULL)) /* the reply has ended since, and there is nothing to send */
                break;
            n_clicks++;
            g_usleep(50 * 1000);
        } else if (n_clicks > 0)
            break;
        else
            g_usleep(5 * 1000);
    }
    tree = await_reply();
    receipt = find_receipt(tree);
    g_test_message("receipt: %s", receipt != NULL ? receipt->name : "none");
    return receipt != NULL && strstr(receipt->name, "Stopped") != NULL;
}

/* New chat, send, stop, edit, flip. */
static void test_turns(void)
{
    gboolean stopped = FALSE;

    begin();
    say("My name is Oda.");
    at_node_free(await_reply());
    check_names("reply");
    for (int i = 0; i < 5 && !stopped; i++)
        stopped = say_and_stop("Tell me a story.");
    g_assert_true(stopped);
    await_message("Tell me a story.");

    act("button", "Edit Message");
    await("text box", "Edit your message");
    check_names("edit");
    key("ctrl+a");
    type("My name is Ben.");
    act("button", "Send"); /* the editor's: it comes before the composer's */
    await_message("My name is Ben.");
    {
        g_autoptr(AtNode) tree = await_reply();

        g_assert_null(at_find(at_find(tree, "log", "Conversation"), "label", "Tell me a story."));
    }
    check_names("versions");
    act("button", "Previous Version");
    await_message("Tell me a story.");
    await_message("My name is Oda.");
    act("button", "Next Version");
    await_message("My name is Ben.");
}

/* ---- The panel's table ---- */

static gboolean has_row(AtNode *tree, gpointer name)
{
    AtNode *table = at_find(tree, "tree grid", "Cache by chat");

    return table != NULL && at_find(table, "row", name) != NULL;
}

/* The row of the chat in front as the engine's counters make it. Returns: owned. */
static char *dup_row(const char *title)
{
    g_autoptr(JsonObject) session = fetch_session();
    const char *cells = json_object_get_string_member(session, "cells");
    guint n_pages[3] = {0};
    g_autofree char *size = quire_format_bytes((guint64)json_object_get_int_member(session, "bytes"));

    for (const char *c = cells; *c != '\0'; c++)
        n_pages[*c - (g_ascii_isdigit(*c) ? '0' : g_ascii_islower(*c) ? 'a' : 'A')]++;
    return g_strdup_printf("%s, Tokens: %d, GPU: %u, Host: %u, Disk: %u, Shared: %d, Size: %s, Mode: Session",
        title, (int)json_object_get_int_member(session, "tokens"), n_pages[0], n_pages[1], n_pages[2],
        (int)json_object_get_int_member(session, "pages_shared"), size);
}

static void check_row(const char *title)
{
    g_autofree char *wanted = dup_row(title);
    g_autoptr(AtNode) tree = wait_for(wanted, has_row, wanted);
    AtNode *row = at_find(at_find(tree, "tree grid", "Cache by chat"), "row", wanted);
    g_auto(GStrv) cells = g_strsplit(wanted, ", ", -1);

    g_test_message("%s", wanted);
    g_assert_cmpuint(row->children->len, ==, g_strv_length(cells));
    for (guint i = 0; i < row->children->len; i++) {
        AtNode *cell = g_ptr_array_index(row->children, i);
        AtNode *label = g_ptr_array_index(cell->children, 0);

        /* What is heard is what is seen. */
        g_assert_cmpstr(cell->name, ==, cells[i]);
        g_assert_true(g_str_has_suffix(cell->name, label->name));
    }
}

static void test_panel(void)
{
    begin();
    key("F12");
    say("My name is Oda.");
    at_node_free(await_reply());
    act("button", "Show as a Table");
    check_row("My name is Oda.");
    check_names("panel-table");
    say("What is my name?");
    await_message("What is my name?");
    check_row("My name is Oda.");
    key("F12");
}

/* ---- Compare ---- */

static gboolean has_compared(AtNode *tree, gpointer data)
{
    AtNode *table = at_find(tree, "table", "Figures of the modes");

    return at_find(tree, "button", "Run Again") != NULL && at_find(tree, "button", "Stop") == NULL &&
           table != NULL && at_find(table, "cell", NULL) != NULL;
}

static gboolean can_start(AtNode *tree, gpointer data)
{
    AtNode *start = at_find(tree, "button", "Start");

    return start != NULL && at_has(start, AT_STATE_SENSITIVE);
}

static void collect_role(AtNode *node, const char *role, GPtrArray *out)
{
    if (strcmp(at_role(node), role) == 0)
        g_ptr_array_add(out, (gpointer)node);
    for (guint i = 0; i < node->children->len; i++)
        collect_role(g_ptr_array_index(node->children, i), role, out);
}

/* Each mode has a cell for each column, which says both, and what is seen in it. */
static void check_table(AtNode *table, const char *const *modes)
{
    g_autoptr(GPtrArray) columns = g_ptr_array_new();
    g_autoptr(GPtrArray) rows = g_ptr_array_new();
    g_autoptr(GPtrArray) cells = g_ptr_array_new();

    collect_role(table, "column header", columns);
    collect_role(table, "row header", rows);
    collect_role(table, "cell", cells);
    g_assert_cmpuint(rows->len, ==, g_strv_length((char **)modes));
    g_assert_cmpuint(columns->len, >, 0);
    g_assert_cmpuint(cells->len, ==, rows->len * columns->len);
    for (guint i = 0; i < cells->len; i++) {
        AtNode *cell = g_ptr_array_index(cells, i);
        AtNode *value = g_ptr_array_index(cell->children, 0);

        g_test_message("%s", cell->name);
        g_assert_cmpstr(
            ((AtNode *)g_ptr_array_index(rows, i / columns->len))->name, ==, modes[i / columns->len]);
        g_assert_true(g_str_has_prefix(cell->name, modes[i / columns->len]));
        g_assert_nonnull(strstr(cell->name, value->name));
    }
}

static void test_compare(void)
{
    static const char *const modes[] = {"Rebuild", "Session", NULL};
    begin();
    say("My name is Oda.");
    at_node_free(await_reply());
    key("ctrl+shift+m");
    await("combo box", "Timed Reply");
    check_names("compare-setup");
    /* The shortest: the last of the list. */
    press_to("Tab", "combo box", "Timed Reply");
    key("space");
    await("list item", "32 Tokens"); /* its rows have names as they are shown */
    key("End");
    key("Return");
    at_node_free(wait_for("Start", can_start, NULL));
    act("button", "Start");
    await("button", "Stop");
    check_names("compare-running");
    {
        g_autoptr(AtNode) tree = wait_for("the result", has_compared, NULL);
        g_autoptr(GPtrArray) tables = g_ptr_array_new();

        collect_role(tree, "table", tables);
        g_assert_cmpuint(tables->len, ==, 2);
        check_table(g_ptr_array_index(tables, 0), modes);
    }
    check_names("compare-result");
    key("ctrl+w");
}

/* ---- Delete and undo ---- */

static void test_delete(void)
{
    begin();
    say("What is a page?");
    at_node_free(await_reply());
    await("list item", "What is a page?");
    reach_row("What is a page?");
    key("Delete");
    await("button", "Undo");
    await_gone("list item", "What is a page?");
    check_names("deleted");
    act("button", "Undo");
    await("list item", "What is a page?");
}

/* ---- What is said of a reply ---- */

/* Real presses of Tab go round the window: each moves the focus, to what has a name. */
static void test_tab(void)
{
    g_autofree char *role = NULL;
    guint n = 0;

    begin();
    say("My name is Oda.");
    at_node_free(await_reply());
    key("ctrl+l");
    do {
        const char *path = press("Tab");
        g_autofree char *name = path != NULL ? at_dup_name(path) : NULL;

        if (path == NULL)
            g_error("Tab does not leave the %s after %u stops", role, n);
        g_free(role);
        role = at_dup_role(path);
        g_test_message("%s “%s”", role, name);
        g_assert_true(name[0] != '\0' && !is_type_name(name));
        n++;
    } while (strcmp(role, "text box") != 0 && n < 100);
    g_assert_cmpuint(n, >=, 15);
    g_assert_cmpuint(n, <, 100);
}

/* Roles whose changes a screen reader says by itself. */
static void collect_speakers(AtNode *node, GHashTable *paths)
{
    static const char *const roles[] = {"status", "alert", "alert dialog", "timer", "marquee", NULL};

    if (g_strv_contains(roles, at_role(node)))
        g_hash_table_add(paths, (gpointer)node->path);
    for (guint i = 0; i < node->children->len; i++)
        collect_speakers(g_ptr_array_index(node->children, i), paths);
}

/* The words of the newest reply, with one space between. Returns: owned. */
static char *dup_reply(AtNode *tree)
{
    g_autoptr(GPtrArray) items = g_ptr_array_new();
    g_autoptr(GPtrArray) labels = g_ptr_array_new();
    g_autoptr(GString) text = g_string_new(NULL);
    AtNode *view;

    collect_role(at_find(tree, "log", "Conversation"), "list item", items);
    view = at_find(g_ptr_array_index(items, items->len - 1), "widget", "QuireMarkdownView");
    collect_role(view, "label", labels);
    for (guint i = 0; i < labels->len; i++)
        g_string_append_printf(
            text, "%s%s", i > 0 ? " " : "", ((AtNode *)g_ptr_array_index(labels, i))->name);
    return g_string_free(g_steal_pointer(&text), FALSE);
}

static guint count_sentences(const char *text)
{
    g_auto(GStrv) parts = g_regex_split_simple("[.!?:]+(\\s+|$)", text, 0, 0);
    guint n = 0;

    for (char **part = parts; *part != NULL; part++)
        n += g_strstrip(*part)[0] != '\0';
    return n;
}

/* While a reply streams, what a screen reader says by itself is the reply, in whole sentences, each once and in order. */
static void test_announcements(void)
{
    g_autoptr(GPtrArray) events = NULL;
    g_autoptr(GHashTable) speakers = g_hash_table_new(NULL, NULL);
    g_autoptr(GString) said = g_string_new(NULL);
    g_autoptr(AtNode) tree = NULL;
    g_autofree char *reply = NULL;
    guint n = 0, n_grown = 0;

    begin();
    at_listen();
    say("What is a KV cache?");
    tree = await_reply();
    events = at_take_events();
    collect_speakers(tree, speakers);
    reply = dup_reply(tree);
    for (guint i = 0; i < events->len; i++) {
        const AtEvent *event = g_ptr_array_index(events, i);

        if (strcmp(event->member, "Announcement") != 0 &&
            (strcmp(event->member, "PropertyChange") != 0 || strcmp(event->detail, "accessible-name") != 0))
            continue;
        if (strcmp(event->member, "Announcement") != 0 && !g_hash_table_contains(speakers, event->path)) {
            n_grown += event->text != NULL && event->text[0] != '\0' && g_str_has_prefix(reply, event->text);
            continue;
        }
        /* What is cleared says nothing. */
        if (event->text == NULL || is_type_name(event->text))
            continue;
        g_test_message("%s", event->text);
        g_string_append_printf(said, "%s%s", n > 0 ? " " : "", event->text);
        n++;
    }
    g_test_message("%u sentences said of a text that came in %u pieces", n, n_grown);
    g_assert_cmpuint(n, >, 0);
    g_assert_cmpuint(n, <=, count_sentences(reply));
    g_assert_cmpstr(said->str, ==, reply);
}

/* Opens a state by a key, or by the @role and name of what is acted on; it is there when @sign is. */
typedef struct {
    const char *state;
    const char *key, *role, *name;
    const char *sign_role, *sign;
} Opening;

static const Opening openings[] = {
    {"main-menu", NULL, "button", "Main Menu", "menu item", "Preferences"},
    {"chat-menu", NULL, "button", "Chat Menu", "menu item", "Chat Settings…"},
    {"model-popover", NULL, "button", "Model", "button", "Models…"},
    {"cache-popover", "ctrl+m", NULL, NULL, "button", "Use This Mode"},
    {"context-popover", NULL, "button", "Context used", "label", "Memory"},
    {"find", "ctrl+f", NULL, NULL, "search box", "Find in this chat"},
    {"preferences", "ctrl+comma", NULL, NULL, "list item", "Longest reply"},
    {"chat-settings", "alt+Return", NULL, NULL, "button", "Apply"},
    {"shortcuts", "ctrl+question", NULL, NULL, "label", "Send message"},
    {"why-no-gpu", NULL, "button", "Why?", "button", "Check Again"},
};

static gboolean is_restored(AtNode *tree, gpointer data)
{
    const Opening *opening = data;
    AtNode *composer = at_find(tree, "text box", "Message");

    return composer != NULL &&
           (at_find(tree, opening->sign_role, opening->sign) == NULL || at_has(composer, AT_STATE_FOCUSED));
}

static void open_and_close(const Opening *opening)
{
    if (opening->key != NULL)
        key(opening->key);
    else
        act(opening->role, opening->name);
    await(opening->sign_role, opening->sign);
    check_names(opening->state);
    key("Escape");
    at_node_free(wait_for(opening->state, is_restored, (gpointer)opening));
    key("ctrl+l");
}

static void test_names(void)
{
    begin();
    check_names("empty");
    say("My name is Oda.");
    at_node_free(await_reply());
    for (gsize i = 0; i < G_N_ELEMENTS(openings); i++)
        open_and_close(&openings[i]);
    /* What is two steps away. */
    act("button", "Model");
    act("button", "Models…");
    await("button", "Add Model Folders");
    check_names("models");
    key("Escape");
    await_gone("button", "Add Model Folders");
    act("button", "Main Menu");
    act("menu item", "About Quire");
    await("window", "About");
    check_names("about");
    key("Escape");
    await_gone("window", "About");
    key("F12");
    act("button", "Host memory: Limits of this tier");
    await("list item", "These limits are in force.");
    check_names("limits");
    key("Escape");
    await_gone("list item", "These limits are in force.");
    key("F12");
    reach_row("My name is Oda.");
    key("Menu");
    await("menu item", "Rename…");
    check_names("row-menu");
    key("Escape");
    await_gone("menu item", "Rename…");
    key("F2");
    await("text box", "Title");
    check_names("rename");
    key("Escape");
    await_gone("text box", "Title");
    g_assert_cmpuint(n_faults, ==, 0);
}

int main(int argc, char **argv)
{
    g_autofree char *reason = NULL;
    int rc;

    g_test_init(&argc, &argv, NULL);
    if (!at_open(&reason)) {
        g_print("1..0 # SKIP no accessibility bus: %s\n", reason);
        return 0;
    }
    start_app();
    g_test_add_func("/app/a11y/turns", test_turns);
    g_test_add_func("/app/a11y/panel", test_panel);
    g_test_add_func("/app/a11y/compare", test_compare);
    g_test_add_func("/app/a11y/delete", test_delete);
    g_test_add_func("/app/a11y/announcements", test_announcements);
    g_test_add_func("/app/a11y/tab", test_tab);
    g_test_add_func("/app/a11y/names", test_names);
    rc = g_test_run();
    end_app();
    at_close();
    g_free(settings_path);
    return rc;
}
