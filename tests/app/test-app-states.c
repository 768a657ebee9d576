/* test-app-states.c: every state of the window in every look: rendered to PNG files, and held to rules.
 *
 * A look is a style, a width, a direction, a text size, or words half as long again. For each state in each look:
 * no warning came, the window could be 360 px wide (390 with large text), no widget lies outside its parent, no label is
 * cut outside a list, every control has a name. Tiers stand out from what they are drawn on by 3:1.
 *
 * QUIRE_TEST_STATES: "all", or names of states and looks, by commas (default: all states in light at 1200, and the other
 * looks for a few). QUIRE_TEST_SHOTS: where the pictures go. High contrast needs a start of its own:
 * ADW_DEBUG_HIGH_CONTRAST=1. A language: QUIRE_TEST_LOCALE_DIR=BUILD/po LANGUAGE=zh_CN. To add a state: a function that brings the window there, and a line in states[]. */
#include <dlfcn.h>
#include <locale.h>
#include <math.h>
#include <string.h>

#include "app/quire-announcer.h"
#include "app/quire-cache-panel.h"
#include "app/quire-cache-popover.h"
#include "app/quire-engine-bar.h"
#include "app/quire-message-row.h"
#include "app/quire-model-popover.h"
#include "app/quire-page-map.h"
#include "app/quire-settings.h"
#include "app/quire-sidebar.h"
#include "app/quire-status-line.h"
#include "tests/app/ui-harness.h"

/* ---- Longer words ---- */

static gboolean pseudo;
/* The C library's, where a language is asked for. */
static char *(*translate)(
    const char *domain, const char *one, const char *many, unsigned long n, int category);

/* In the place of the C library's: the text in brackets and longer by 40 percent, so that what is not translated, and what
 * has no room, shows. Texts of other libraries stay. */
static char *lengthen(const char *domain, const char *id)
{
    static GHashTable *made;
    const char *text = strchr(id, '\004');
    char *out;

    if (translate != NULL && !pseudo)
        return translate(domain, id, id, 1, LC_MESSAGES);
    if (!pseudo || (domain != NULL && strcmp(domain, "quire") != 0))
        return (char *)id;
    text = text != NULL ? text + 1 : id;
    if (made == NULL)
        made = g_hash_table_new(g_str_hash, g_str_equal);
    out = g_hash_table_lookup(made, text);
    if (out == NULL) {
        g_autofree char *tail =
            g_strndup("~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~", MIN(strlen(text) * 4 / 10 + 1, 40));

        out = g_strdup_printf("[%s %s]", text, tail);
        g_hash_table_insert(made, g_strdup(text), out);
    }
    return out;
}

char *gettext(const char *id);
char *dgettext(const char *domain, const char *id);
char *dcgettext(const char *domain, const char *id, int category);
char *ngettext(const char *one, const char *many, unsigned long n);
char *dngettext(const char *domain, const char *one, const char *many, unsigned long n);
char *bindtextdomain(const char *domain, const char *dir);
char *bind_textdomain_codeset(const char *domain, const char *codeset);
char *textdomain(const char *domain);

char *gettext(const char *id)
{
    return lengthen(NULL, id);
}

char *dgettext(const char *domain, const char *id)
{
    return lengthen(domain, id);
}

char *dcgettext(const char *domain, const char *id, int category)
{
    return lengthen(domain, id);
}

char *ngettext(const char *one, const char *many, unsigned long n)
{
    return dngettext(NULL, one, many, n);
}

char *dngettext(const char *domain, const char *one, const char *many, unsigned long n)
{
    if (translate != NULL && !pseudo)
        return translate(domain, one, many, n, LC_MESSAGES);
    return lengthen(domain, n == 1 ? one : many);
}

/* ---- The rules ---- */

static const char *state_name, *look_name;
static guint n_faults, n_shown;
static GHashTable *told;

static void G_GNUC_PRINTF(1, 2) fault(const char *format, ...)
{
    g_autofree char *text = NULL;
    va_list args;

    va_start(args, format);
    text = g_strdup_vprintf(format, args);
    va_end(args);
    n_faults++;
    if (g_hash_table_add(told, g_strdup(text)))
        g_printerr("# %s, %s: %s\n", state_name, look_name, text);
}

static GLogWriterOutput log_cb(GLogLevelFlags level, const GLogField *fields, gsize n_fields, gpointer data)
{
    const char *domain = "", *message = "";

    for (gsize i = 0; i < n_fields; i++)
        if (strcmp(fields[i].key, "GLIB_DOMAIN") == 0)
            domain = fields[i].value;
        else if (strcmp(fields[i].key, "MESSAGE") == 0)
            message = fields[i].value;
    if ((level & (G_LOG_LEVEL_CRITICAL | G_LOG_LEVEL_WARNING)) != 0 && state_name != NULL)
        fault("%s: %s", domain, message);
    return (level & G_LOG_LEVEL_MASK) >= G_LOG_LEVEL_INFO
               ? G_LOG_WRITER_HANDLED
               : g_log_writer_default(level & ~G_LOG_FLAG_FATAL, fields, n_fields, data);
}

static char *describe(GtkWidget *widget)
{
    GString *out = g_string_new(NULL);

    if (GTK_IS_LABEL(widget))
        g_string_append_printf(out, "“%.40s” ", gtk_label_get_text(GTK_LABEL(widget)));
    else if (gtk_widget_get_tooltip_text(widget) != NULL)
        g_string_append_printf(out, "(%s) ", gtk_widget_get_tooltip_text(widget));
    for (int i = 0; widget != NULL && i < 5; i++, widget = gtk_widget_get_parent(widget))
        g_string_append_printf(out, "%s%s", i > 0 ? " < " : "", G_OBJECT_TYPE_NAME(widget));
    return g_string_free(out, FALSE);
}

static gboolean within(GtkWidget *widget, const char *const *types)
{
    for (; widget != NULL; widget = gtk_widget_get_parent(widget))
        for (int i = 0; types[i] != NULL; i++)
            if (strcmp(G_OBJECT_TYPE_NAME(widget), types[i]) == 0)
                return TRUE;
    return FALSE;
}

static gboolean is_named(GtkWidget *widget)
{
    const char *tooltip = gtk_widget_get_tooltip_text(widget);
    GtkAccessible *accessible = GTK_ACCESSIBLE(widget);

    return (tooltip != NULL && tooltip[0] != '\0') || says_something(widget) ||
           gtk_test_accessible_has_property(accessible, GTK_ACCESSIBLE_PROPERTY_LABEL) ||
           gtk_test_accessible_has_relation(accessible, GTK_ACCESSIBLE_RELATION_LABELLED_BY);
}

static gboolean is_control(GtkWidget *widget)
{
    /* What libraries build in: window buttons and a tab's own name themselves. */
    static const char *const theirs[] = {"GtkWindowControls", "AdwTab", "GtkSpinButton", "GtkDropDown",
        "GtkColumnView", "AdwPreferencesWindow", "GtkSearchEntry", "GtkExpander", NULL};

    if (GTK_IS_TEXT_VIEW(widget) || GTK_IS_SEARCH_ENTRY(widget) || GTK_IS_SPIN_BUTTON(widget) ||
        GTK_IS_DROP_DOWN(widget) || GTK_IS_SWITCH(widget) || GTK_IS_CHECK_BUTTON(widget) ||
        GTK_IS_ENTRY(widget) || QUIRE_IS_PAGE_MAP(widget))
        return !within(gtk_widget_get_parent(widget), theirs);
    return (GTK_IS_BUTTON(widget) || GTK_IS_MENU_BUTTON(widget)) && !within(widget, theirs) &&
           !GTK_IS_MENU_BUTTON(gtk_widget_get_parent(widget));
}

static void check_place(GtkWidget *widget)
{
    /* These move or cut their children on purpose. */
    static const char *const cutting[] = {"GtkViewport", "GtkRevealer", "AdwFlap", "GtkStack", "AdwTabBox",
        "AdwTabView", "GtkListView", "GtkColumnView", "GtkColumnListView", "GtkScrolledWindow", "GtkText",
        "GtkTextView", "GtkSourceView", "GtkSwitch", "GtkScale", "GtkRange", "GtkPopoverContent",
        "GtkOverlay", "AdwTabPage", "AdwTab", "AdwFadingLabel", "GtkColumnViewRowWidget", "GtkListItemWidget",
        "GtkTreeExpander", "GtkProgressBar", "GtkTrough", NULL};
    GtkWidget *parent = gtk_widget_get_parent(widget);
    graphene_rect_t r;
    float w, h;

    if (parent == NULL || GTK_IS_NATIVE(widget) || GTK_IS_NATIVE(parent) || gtk_widget_get_width(widget) == 0)
        return;
    for (int i = 0; cutting[i] != NULL; i++)
        if (strcmp(G_OBJECT_TYPE_NAME(parent), cutting[i]) == 0)
            return;
    if (!gtk_widget_compute_bounds(widget, parent, &r))
        return;
    w = (float)gtk_widget_get_width(parent);
    h = (float)gtk_widget_get_height(parent);
    /* Margins of the style may be negative by a pixel or two. */
    if (r.origin.x < -13 || r.origin.y < -13 || r.origin.x + r.size.width > w + 13 ||
        r.origin.y + r.size.height > h + 13) {
        g_autofree char *text = describe(widget);

        fault("outside its parent (%.0f,%.0f %.0fx%.0f in %.0fx%.0f): %s", r.origin.x, r.origin.y,
            r.size.width, r.size.height, w, h, text);
    }
}

static void check_widget(GtkWidget *widget)
{
    static const char *const titled[] = {"QuireCachePanel", "QuireComposer", NULL};
    static const char *const lists[] = {"GtkListBoxRow", "GtkListBox", "GtkListView", "GtkColumnView",
        "AdwTab", "AdwWindowTitle", "QuireSidebar", "GtkDropDown", "AdwActionRow", NULL};

    if (!gtk_widget_get_visible(widget) || !gtk_widget_get_child_visible(widget) ||
        !gtk_widget_get_mapped(widget))
        return;
    /* One pixel, with words for screen readers alone. */
    if (QUIRE_IS_ANNOUNCER(widget))
        return;
    check_place(widget);
    if (GTK_IS_LABEL(widget) && pango_layout_is_ellipsized(gtk_label_get_layout(GTK_LABEL(widget))) &&
        gtk_widget_get_width(widget) > 0 && !within(widget, lists) &&
        /* Titles of chats, and the names on the composer's two buttons, may be of any length. */
        !within(widget, titled)) {
        g_autofree char *text = describe(widget);

        fault("cut: %s", text);
    }
    if (is_control(widget) && !is_named(widget)) {
        g_autofree char *text = describe(widget);

        fault("no name: %s", text);
    }
    for (GtkWidget *child = gtk_widget_get_first_child(widget); child != NULL;
         child = gtk_widget_get_next_sibling(child))
        check_widget(child);
}

static double luminance(const GdkRGBA *c)
{
    const double v[3] = {c->red, c->green, c->blue};
    double l[3];

    for (int i = 0; i < 3; i++)
        l[i] = v[i] <= 0.04045 ? v[i] / 12.92 : pow((v[i] + 0.055) / 1.055, 2.4);
    return 0.2126 * l[0] + 0.7152 * l[1] + 0.0722 * l[2];
}

static void check_contrast(void)
{
    static const char *const names[] = {"quire_tier_gpu", "quire_tier_host", "quire_tier_disk"};
    GtkStyleContext *context = gtk_widget_get_style_context(GTK_WIDGET(window));
    GdkRGBA ground, color;

    if (!gtk_style_context_lookup_color(context, "window_bg_color", &ground)) {
        fault("the style has no window_bg_color");
        return;
    }
    for (gsize i = 0; i < G_N_ELEMENTS(names); i++) {
        double a = luminance(&ground), b;

        if (!gtk_style_context_lookup_color(context, names[i], &color)) {
            fault("no colour %s", names[i]);
            continue;
        }
        b = luminance(&color);
        if ((MAX(a, b) + 0.05) / (MIN(a, b) + 0.05) < 3)
            fault("%s has a contrast of %.2f", names[i], (MAX(a, b) + 0.05) / (MIN(a, b) + 0.05));
    }
}

static void check_minimum(int most)
{
    GtkWidget *content = adw_application_window_get_content(ADW_APPLICATION_WINDOW(window));
    int minimum;

    gtk_widget_measure(content, GTK_ORIENTATION_HORIZONTAL, -1, &minimum, NULL, NULL, NULL);
    if (minimum > most)
        fault("the window is at least %d px wide", minimum);
}

/* The window itself, and what lies over it, each in a file: there is no compositor to put them together. */
static void shoot(GtkWidget *widget, const char *suffix)
{
    g_autofree char *name = g_strdup_printf("%s-%s%s.png", state_name, look_name, suffix);
    g_autofree char *dir = g_build_filename(
        g_getenv("QUIRE_TEST_SHOTS") != NULL ? g_getenv("QUIRE_TEST_SHOTS") : g_get_tmp_dir(), "states",
        NULL);
    g_autofree char *path = g_build_filename(dir, name, NULL);
    g_autoptr(GdkPaintable) paintable = gtk_widget_paintable_new(widget);
    GtkSnapshot *snapshot = gtk_snapshot_new();
    GskRenderNode *node;
    int width = gtk_widget_get_width(widget), height = gtk_widget_get_height(widget);

    gdk_paintable_snapshot(paintable, snapshot, width, height);
    node = gtk_snapshot_free_to_node(snapshot);
    if (node == NULL)
        return;
    g_mkdir_with_parents(dir, 0755);
    {
        g_autoptr(GdkTexture) texture =
            gsk_renderer_render_texture(gtk_native_get_renderer(gtk_widget_get_native(widget)), node,
                &GRAPHENE_RECT_INIT(0, 0, (float)width, (float)height));

        gdk_texture_save_to_png(texture, path);
    }
    gsk_render_node_unref(node);
}

static void shoot_popovers(GtkWidget *widget, guint *n)
{
    if (GTK_IS_POPOVER(widget) && gtk_widget_get_mapped(widget)) {
        g_autofree char *suffix = g_strdup_printf("+%u", ++*n);

        shoot(widget, suffix);
    }
    for (GtkWidget *child = gtk_widget_get_first_child(widget); child != NULL;
         child = gtk_widget_get_next_sibling(child))
        shoot_popovers(child, n);
}

/* ---- States ---- */

static void do_nothing(void)
{
}

static const char markdown[] =
    "<think>\nThe user wants a table.\n</think>\n\n## Pages\n\nA page holds **16 tokens**, see [the notes]"
    "(https://example.org/a?b=1):\n\n| tier | pages | bytes |\n|:--|--:|--:|\n| host | 12 | 768 KiB |\n| "
    "*GPU* | 0 | 0 |\n\n"
    "1. sealed pages are shared\n   - never written again\n2. the tail page is not\n\n> Closing a tab frees "
    "both.\n\n"
    "```c\nint main (void)\n{\n  return 1 < 2 && puts (\"pages\"); /* a long line that has to scroll "
    "sideways in its box */\n}\n"
    "```\n\n- [x] read\n- [ ] written\n\nEuler: $e^{i\\pi} + 1 = 0$.\n\n中文也可以，العربية أيضا.";

static void apply(
    QuireMessage *reply, qe_request_state state, const char *text, qe_finish finish, GError *error)
{
    qe_update update = {.state = state,
        .finish = finish,
        .text = (char *)text,
        .n_text = strlen(text),
        .error = error,
        .n_prompt = 16512,
        .n_prompt_done = 6120,
        .receipt = {.n_prompt = 16512,
            .n_reused = 16384,
            .n_new = 128,
            .n_generated = 210,
            .first_token_ms = 140,
            .decode_tokens_per_s = 96,
            .first_mismatch = -1}};

    quire_message_apply(reply, &update);
}

/* A turn of which the engine knows nothing: its reply is in the state that is wanted. */
static QuireMessage *turn_shown(const char *text)
{
    QuireTurnSettings settings;

    quire_settings_get_turn(
        quire_engine_client_get_status(quire_application_get_client(application))->model, &settings);
    settings.max_tokens = 1;
    g_assert_true(quire_conversation_send(conversation(), text, &settings));
    wait_for("the reply", is_idle, NULL);
    return quire_conversation_get_last_reply(conversation());
}

static void show_done(void)
{
    apply(turn_shown("What is a page? Show me a table, and how it looks in C."), QE_REQUEST_DONE, markdown,
        QE_FINISH_STOP, NULL);
}

static void show_reading(void)
{
    apply(turn_shown("Read this."), QE_REQUEST_PREFILL, "", QE_FINISH_STOP, NULL);
}

static void show_queued(void)
{
    apply(turn_shown("After the others."), QE_REQUEST_QUEUED, "", QE_FINISH_STOP, NULL);
}

static void show_writing(void)
{
    apply(turn_shown("Tell me more."), QE_REQUEST_DECODE,
        " and so on, for a while, until there is a second line of it, or a third", QE_FINISH_STOP, NULL);
}

static void show_cut(void)
{
    apply(turn_shown("Tell me all."), QE_REQUEST_DONE, "All of it would be", QE_FINISH_LENGTH, NULL);
}

static void fail_with(qe_error_code code, const char *words)
{
    g_autoptr(GError) error = g_error_new_literal(QE_ERROR, (int)code, words);

    apply(turn_shown("Will it work?"), QE_REQUEST_DONE, "", QE_FINISH_ERROR, error);
}

static void show_memory_error(void)
{
    fail_with(QE_ERROR_NO_MEMORY, "Not enough GPU memory for 40,000 tokens (5.5 GiB needed, 3.1 free).");
}

static void show_lost_error(void)
{
    fail_with(QE_ERROR_DEVICE_LOST, "The GPU was lost. The conversation is safe.");
}

static gboolean receipt_opens(GtkWidget *widget)
{
    if (QUIRE_IS_STATUS_LINE(widget)) {
        GtkWidget *button = find(widget, GTK_TYPE_TOGGLE_BUTTON);

        if (button == NULL)
            button = find(widget, GTK_TYPE_BUTTON);
        return button != NULL && gtk_widget_activate(button);
    }
    for (GtkWidget *child = gtk_widget_get_first_child(widget); child != NULL;
         child = gtk_widget_get_next_sibling(child))
        if (receipt_opens(child))
            return TRUE;
    return FALSE;
}

static void show_receipt(void)
{
    show_done();
    wait_ms(100);
    receipt_opens(last_row());
}

static void show_long_user(void)
{
    g_autoptr(GString) text = g_string_new("A word ");

    for (int i = 0; i < 60; i++)
        g_string_append(
            text, i % 9 == 0 ? "averyveryverylongwordwithoutanyplacewhereitcouldbreak " : "and another ");
    turn_shown(text->str);
}

static void act(const char *action)
{
    gtk_widget_activate_action(GTK_WIDGET(window), action, NULL);
}

static void show_edit(void)
{
    GtkWidget *row;

    show_done();
    row = gtk_widget_get_prev_sibling(last_row());
    quire_message_row_edit(QUIRE_MESSAGE_ROW(row));
}

static void show_versions(void)
{
    QuireTurnSettings settings;

    turn_shown("Say it again.");
    quire_settings_get_turn(
        quire_engine_client_get_status(quire_application_get_client(application))->model, &settings);
    settings.max_tokens = 8;
    quire_conversation_regenerate(conversation(), &settings);
    wait_for("the reply", is_idle, NULL);
}

static void show_panel(void)
{
    show_done();
    if (!g_settings_get_boolean(quire_settings_get_default(), "panel-open"))
        act("win.toggle-panel");
}

static void show_table(void)
{
    GtkWidget *button;

    show_panel();
    button = find(find(GTK_WIDGET(window), QUIRE_TYPE_CACHE_PANEL), GTK_TYPE_TOGGLE_BUTTON);
    gtk_toggle_button_set_active(GTK_TOGGLE_BUTTON(button), TRUE);
}

static void show_sidebar(void)
{
    g_autofree char *a = add_chat("Norse history and a title that is too long for its row by far", 2, 20);
    g_autofree char *b = add_chat("总结三点", 2, 20);
    GtkWidget *flap = find(GTK_WIDGET(window), ADW_TYPE_FLAP);

    gtk_widget_activate_action(GTK_WIDGET(window), "win.chat-pin", "s", a);
    adw_flap_set_reveal_flap(ADW_FLAP(flap), TRUE);
}

static void show_no_result(void)
{
    GtkWidget *sidebar;

    show_sidebar();
    sidebar = find(GTK_WIDGET(window), QUIRE_TYPE_SIDEBAR);
    gtk_editable_set_text(GTK_EDITABLE(find(sidebar, GTK_TYPE_SEARCH_ENTRY)), "nothing says this");
}

static void show_trash(void)
{
    show_sidebar();
    quire_sidebar_set_trash(QUIRE_SIDEBAR(find(GTK_WIDGET(window), QUIRE_TYPE_SIDEBAR)), TRUE);
}

static void show_modes(void)
{
    quire_composer_choose_cache(quire_chat_view_get_composer(quire_window_get_chat(window)));
}

static void show_tabs(void)
{
    show_done();
    for (int i = 0; i < 3; i++) {
        quire_window_new_chat(window);
        turn_shown(i == 1 ? "A second chat with quite a long title in its tab" : "Another");
    }
}

static void show_model_error(void)
{
    quire_window_show_model_error(window, "“broken-copy” cannot be read: model-00002-of-00003.safetensors is "
                                          "cut: 1.1 of 4.9 GB. Copy it again.");
}

static void show_draft(void)
{
    gtk_text_buffer_set_text(draft(),
        "one\ntwo\nthree lines, of which the last one is rather longer than the others, so it wraps", -1);
}

static void show_find(void)
{
    show_done();
    gtk_widget_activate_action(GTK_WIDGET(quire_window_get_chat(window)), "chat.find", NULL);
}

static void show_toast(void)
{
    show_done();
    quire_chat_view_add_toast(quire_window_get_chat(window), adw_toast_new("Chat moved to the trash"));
}

typedef struct {
    const char *name;
    void (*set_up)(void);
    gboolean often; /* in the looks of a short run */
} State;

static const State states[] = {
    {"empty", do_nothing, TRUE},
    {"done", show_done, TRUE},
    {"panel", show_panel, TRUE},
    {"draft", show_draft, FALSE},
    {"queued", show_queued, FALSE},
    {"reading", show_reading, FALSE},
    {"writing", show_writing, FALSE},
    {"cut", show_cut, FALSE},
    {"receipt", show_receipt, TRUE},
    {"error-memory", show_memory_error, TRUE},
    {"error-lost", show_lost_error, FALSE},
    {"long-user", show_long_user, FALSE},
    {"edit", show_edit, FALSE},
    {"versions", show_versions, FALSE},
    {"table", show_table, FALSE},
    {"sidebar", show_sidebar, TRUE},
    {"no-result", show_no_result, FALSE},
    {"trash", show_trash, FALSE},
    {"modes", show_modes, FALSE},
    {"tabs", show_tabs, FALSE},
    {"model-error", show_model_error, FALSE},
    {"find", show_find, FALSE},
    {"toast", show_toast, FALSE},
};

typedef struct {
    const char *name;
    int width, height;
    gboolean dark, rtl, pseudo, large;
    gboolean all; /* a short run shows all states in it */
} Look;

static const Look looks[] = {
    {"light-1200", 1200, 760, FALSE, FALSE, FALSE, FALSE, TRUE},
    {"light-900", 900, 600, FALSE, FALSE, FALSE, FALSE, FALSE},
    {"light-360", 360, 640, FALSE, FALSE, FALSE, FALSE, FALSE},
    {"dark-1200", 1200, 760, TRUE, FALSE, FALSE, FALSE, FALSE},
    {"dark-900", 900, 600, TRUE, FALSE, FALSE, FALSE, FALSE},
    {"dark-360", 360, 640, TRUE, FALSE, FALSE, FALSE, FALSE},
    {"rtl-1200", 1200, 760, FALSE, TRUE, FALSE, FALSE, FALSE},
    {"rtl-360", 360, 640, FALSE, TRUE, FALSE, FALSE, FALSE},
    {"pseudo-1200", 1200, 760, FALSE, FALSE, TRUE, FALSE, FALSE},
    {"pseudo-360", 360, 640, FALSE, FALSE, TRUE, FALSE, FALSE},
    {"large-1200", 1200, 760, FALSE, FALSE, FALSE, TRUE, FALSE},
    {"large-390", 390, 640, FALSE, FALSE, FALSE, TRUE, FALSE},
};

static gboolean is_wanted(const State *state, const Look *look)
{
    const char *asked = g_getenv("QUIRE_TEST_STATES");
    g_auto(GStrv) words = g_strsplit(asked != NULL ? asked : "", ",", -1);
    gboolean any_state = FALSE, any_look = FALSE;

    if (asked == NULL)
        return look->all || state->often;
    if (strcmp(asked, "all") == 0)
        return TRUE;
    for (gsize i = 0; i < G_N_ELEMENTS(states); i++)
        any_state |= g_strv_contains((const char *const *)words, states[i].name);
    for (gsize i = 0; i < G_N_ELEMENTS(looks); i++)
        any_look |= g_strv_contains((const char *const *)words, looks[i].name);
    return (!any_state || g_strv_contains((const char *const *)words, state->name)) &&
           (!any_look || g_strv_contains((const char *const *)words, look->name));
}

static gboolean is_still(gpointer data)
{
    GdkFrameClock *clock = gtk_widget_get_frame_clock(GTK_WIDGET(window));

    return clock != NULL && gdk_frame_clock_get_frame_counter(clock) >= *(gint64 *)data;
}

static void wait_frames(int n)
{
    gint64 wanted = gdk_frame_clock_get_frame_counter(gtk_widget_get_frame_clock(GTK_WIDGET(window))) + n;

    /* An idle window draws nothing: each frame is asked for. */
    gdk_frame_clock_begin_updating(gtk_widget_get_frame_clock(GTK_WIDGET(window)));
    wait_for("frames", is_still, &wanted);
    gdk_frame_clock_end_updating(gtk_widget_get_frame_clock(GTK_WIDGET(window)));
}

static void show_state(const State *state, const Look *look)
{
    guint n = 0;

    open_window(look->width, look->height);
    state_name = state->name;
    look_name = look->name;
    state->set_up();
    wait_ms(150);
    wait_frames(8);
    check_widget(GTK_WIDGET(window));
    check_minimum(look->large ? 390 : 360);
    check_contrast();
    shoot(GTK_WIDGET(window), "");
    shoot_popovers(GTK_WIDGET(window), &n);
    n_shown++;
    state_name = NULL;
    g_settings_set_boolean(quire_settings_get_default(), "panel-open", FALSE);
    close_window();
}

static void test_look(gconstpointer data)
{
    const Look *look = data;
    AdwStyleManager *style = adw_style_manager_get_default();
    GtkSettings *settings = gtk_settings_get_default();
    guint before = n_faults;

    adw_style_manager_set_color_scheme(
        style, look->dark ? ADW_COLOR_SCHEME_FORCE_DARK : ADW_COLOR_SCHEME_FORCE_LIGHT);
    gtk_widget_set_default_direction(look->rtl ? GTK_TEXT_DIR_RTL : GTK_TEXT_DIR_LTR);
    g_object_set(settings, "gtk-xft-dpi", (int)(96 * 1024 * (look->large ? 1.5 : 1)), "gtk-enable-animations",
        FALSE, NULL);
    pseudo = look->pseudo;
    for (gsize i = 0; i < G_N_ELEMENTS(states); i++)
        if (is_wanted(&states[i], look))
            show_state(&states[i], look);
    pseudo = FALSE;
    gtk_widget_set_default_direction(GTK_TEXT_DIR_LTR);
    g_object_set(settings, "gtk-xft-dpi", 96 * 1024, "gtk-enable-animations", TRUE, NULL);
    adw_style_manager_set_color_scheme(style, ADW_COLOR_SCHEME_DEFAULT);
    g_test_message("%u states shown so far, %u faults here", n_shown, n_faults - before);
    if (n_faults > before)
        g_test_fail_printf("%u faults", n_faults - before);
}

static void add_tests(void)
{
    /* A warning is a fault of its state, not the end. */
    g_log_set_always_fatal(G_LOG_FATAL_MASK);
    for (gsize i = 0; i < G_N_ELEMENTS(looks); i++) {
        g_autofree char *path = g_strdup_printf("/app/states/%s", looks[i].name);

        for (gsize k = 0; k < G_N_ELEMENTS(states); k++)
            if (is_wanted(&states[k], &looks[i])) {
                g_test_add_data_func(path, &looks[i], test_look);
                break;
            }
    }
}

int main(int argc, char **argv)
{
    told = g_hash_table_new_full(g_str_hash, g_str_equal, g_free, NULL);
    if (g_getenv("QUIRE_TEST_LOCALE_DIR") != NULL) {
        setlocale(LC_ALL, "");
        bindtextdomain("quire", g_getenv("QUIRE_TEST_LOCALE_DIR"));
        bind_textdomain_codeset("quire", "UTF-8");
        textdomain("quire");
        *(void **)&translate = dlsym(RTLD_NEXT, "dcngettext");
    }
    /* GTK's own stand-in for a screen reader knows the names of widgets. */
    g_setenv("GTK_A11Y", "test", TRUE);
    g_setenv("G_DEBUG", "", TRUE);
    g_log_set_writer_func(log_cb, NULL, NULL);
    return ui_main(argc, argv, NULL, add_tests);
}
