/* test-app-cache.c: cache modes and tiers in the real application, on the CPU with a host tier. See ui-harness.h. */
#include <string.h>

#include "app/quire-cache-popover.h"
#include "app/quire-format.h"
#include "app/quire-message-row.h"
#include "app/quire-page-map.h"
#include "app/quire-settings.h"
#include "app/quire-tier-row.h"
#include "tests/app/ui-harness.h"

#define HOST_MIB 64

static const qe_snapshot *snapshot(void)
{
    return quire_engine_client_get_snapshot(quire_application_get_client(application));
}

static QuireCachePopover *popover(void)
{
    return QUIRE_CACHE_POPOVER(find(
        GTK_WIDGET(quire_chat_view_get_composer(quire_window_get_chat(window))), QUIRE_TYPE_CACHE_POPOVER));
}

static gboolean popover_is(gpointer shown)
{
    return gtk_widget_get_mapped(GTK_WIDGET(popover())) == GPOINTER_TO_INT(shown);
}

static gboolean mode_is(gpointer choice)
{
    return quire_conversation_get_cache(conversation()) == GPOINTER_TO_UINT(choice);
}

static gboolean has_cost(gpointer words)
{
    return strstr(quire_cache_popover_get_cost(popover()), words) != NULL;
}

/* By keys alone: open, move to the mode, read the cost, use it. @n_down: rows from the present mode. */
static void choose(int n_down, QuireCacheChoice expected, const char *shot)
{
    key("ctrl+m");
    wait_for("the modes", popover_is, GINT_TO_POINTER(TRUE));
    wait_ms(200);
    for (int i = 0; i < ABS(n_down); i++)
        key(n_down > 0 ? "Down" : "Up");
    wait_for("the cost", has_cost, (gpointer) "The next turn");
    if (shot != NULL) {
        wait_ms(200);
        screenshot(shot);
    }
    key("alt+u");
    wait_for("the mode", mode_is, GUINT_TO_POINTER(expected));
    wait_for("no modes", popover_is, GINT_TO_POINTER(FALSE));
    wait_ms(100);
}

static void turn(const char *text, guint n_messages)
{
    say(text, n_messages);
    wait_for("the reply", is_idle, NULL);
}

/* A mode that keeps its pages reads only what is new; one that keeps nothing reads all of it, and says so. */
static void test_modes(void)
{
    g_autofree char *words = NULL;
    guint n_prompt;

    open_window(1180, 780);
    turn("My name is Oda.", 2);
    turn("What is a KV cache?", 4);
    g_assert_cmpuint(receipt()->n_reused, >, 0);
    g_assert_cmpint(receipt()->mode, ==, QE_CACHE_TIERED); /* automatic: there is a host tier */
    n_prompt = receipt()->n_prompt;

    choose(1, QUIRE_CACHE_REBUILD, "cache-1-modes.png");
    turn("What is my name?", 6);
    g_assert_cmpint(receipt()->mode, ==, QE_CACHE_REBUILD);
    g_assert_cmpuint(receipt()->n_reused, ==, 0);
    g_assert_cmpuint(receipt()->n_new, ==, receipt()->n_prompt);
    g_assert_cmpuint(receipt()->n_prompt, >, n_prompt);
    g_assert_cmpint(receipt()->mismatch, ==, QE_MISMATCH_MODE);
    words = quire_format_mismatch(receipt());
    g_assert_cmpstr(words, ==, "the mode Rebuild keeps nothing");
    {
        g_autofree char *reply = dup_reply();

        g_assert_nonnull(strstr(reply, "Oda"));
    }

    choose(2, QUIRE_CACHE_SESSION, NULL);
    turn("Thank you.", 8);
    turn("And what is my name?", 10);
    g_assert_cmpint(receipt()->mode, ==, QE_CACHE_SESSION);
    g_assert_cmpuint(receipt()->n_reused, >, n_prompt);
    g_assert_cmpint(receipt()->mismatch, ==, QE_MISMATCH_NONE);
    {
        g_autofree char *reply = dup_reply();

        g_assert_nonnull(strstr(reply, "Oda"));
    }
    screenshot("cache-2-receipt.png");
    close_window();
}

/* Pages of 8 bits are offered where the engine has them; changing to them computes the chat again, once. */
static void test_int8(void)
{
    open_window(900, 640);
    turn("My name is Oda.", 2);
    wait_ms(300);
    if (!quire_cache_choice_is_offered(QUIRE_CACHE_TIERED_INT8,
            quire_engine_client_get_plan(quire_application_get_client(application)))) {
        g_test_skip("the engine has no pages of 8 bits here");
        close_window();
        return;
    }
    choose(QUIRE_CACHE_TIERED_INT8 - QUIRE_CACHE_AUTO, QUIRE_CACHE_TIERED_INT8, "cache-9-int8.png");
    turn("What is a KV cache?", 4);
    g_assert_cmpint(receipt()->mode, ==, QE_CACHE_TIERED_INT8);
    g_assert_cmpuint(receipt()->n_reused, ==, 0);
    g_assert_cmpint(receipt()->mismatch, ==, QE_MISMATCH_MODE);
    turn("What is my name?", 6);
    g_assert_cmpuint(receipt()->n_reused, >, 0);
    g_assert_cmpint(receipt()->mismatch, ==, QE_MISMATCH_NONE);
    close_window();
}

/* The selective mode says that it is approximate where it is chosen, in use and compared; a short chat leaves nothing out. */
static void test_selective(void)
{
    open_window(900, 700);
    turn("My name is Oda.", 2);
    wait_ms(300);
    choose(QUIRE_CACHE_SELECTIVE - QUIRE_CACHE_AUTO, QUIRE_CACHE_SELECTIVE, "cache-10-selective.png");
    turn("What is my name?", 4);
    g_assert_cmpint(receipt()->mode, ==, QE_CACHE_SELECTIVE);
    g_assert_cmpuint(receipt()->n_reused, ==, 0);
    g_assert_cmpint(receipt()->mismatch, ==, QE_MISMATCH_MODE);
    g_assert_cmpfloat(receipt()->skipped_share, ==, 0);
    {
        g_autofree char *reply = dup_reply();

        g_assert_nonnull(strstr(reply, "Oda"));
    }
    turn("Thank you.", 6);
    g_assert_cmpuint(receipt()->n_reused, >, 0);
    g_assert_cmpint(receipt()->mismatch, ==, QE_MISMATCH_NONE);
    close_window();
}

/* The cost is shown before anything changes, and leaving without the button changes nothing. */
static void test_cost_first(void)
{
    guint n_tokens;

    open_window(900, 640);
    turn("Tell me a story.", 2);
    wait_ms(300);
    n_tokens = quire_conversation_get_n_tokens(conversation());
    g_assert_cmpuint(n_tokens, >, 0);
    key("ctrl+m");
    wait_for("the modes", popover_is, GINT_TO_POINTER(TRUE));
    g_assert_true(has_cost((gpointer) "This mode is in use."));
    quire_cache_popover_select(popover(), QUIRE_CACHE_PAGED);
    {
        g_autofree char *want = g_strdup_printf("computes %u tokens again", n_tokens);

        g_assert_nonnull(strstr(quire_cache_popover_get_cost(popover()), want));
        g_assert_nonnull(strstr(quire_cache_popover_get_cost(popover()), "KiB"));
    }
    key("Escape");
    wait_for("no modes", popover_is, GINT_TO_POINTER(FALSE));
    g_assert_true(mode_is(GUINT_TO_POINTER(QUIRE_CACHE_AUTO)));
    close_window();
}

/* While a reply runs the mode cannot be changed, by the button or otherwise. */
static void test_busy(void)
{
    g_autoptr(GError) error = NULL;
    GtkWidget *button;

    open_window(900, 640);
    say("Tell me a story.", 2);
    button = gtk_widget_get_ancestor(GTK_WIDGET(popover()), GTK_TYPE_MENU_BUTTON);
    g_assert_nonnull(button);
    if (!is_idle(NULL)) {
        g_assert_false(gtk_widget_get_sensitive(button));
        g_assert_nonnull(strstr(gtk_widget_get_tooltip_text(button), "stop it first"));
        g_assert_false(quire_conversation_set_cache(conversation(), QUIRE_CACHE_PAGED, &error));
        g_assert_error(error, QE_ERROR, QE_ERROR_BUSY);
        screenshot("cache-3-busy.png");
    }
    wait_for("the reply", is_idle, NULL);
    g_assert_true(gtk_widget_get_sensitive(button));
    g_assert_true(mode_is(GUINT_TO_POINTER(QUIRE_CACHE_AUTO)));
    close_window();
}

static guint count_rows(GtkWidget *root)
{
    guint n = QUIRE_IS_TIER_ROW(root);

    for (GtkWidget *child = gtk_widget_get_first_child(root); child != NULL;
         child = gtk_widget_get_next_sibling(child))
        n += count_rows(child);
    return n;
}

/* The host tier is there with the size of the settings, and the figures add up. */
static guint seq_of(guint token)
{
    QuireMessage *message = quire_conversation_find_token(conversation(), token);

    return message != NULL ? quire_message_get_seq(message) : 0;
}

/* A message that was gone to is shown to be it for a moment. */
static gboolean is_flashed(gpointer seq)
{
    for (GtkWidget *row = last_row(); row != NULL; row = gtk_widget_get_prev_sibling(row))
        if (gtk_widget_has_css_class(row, "quire-flash"))
            return quire_message_get_seq(quire_message_row_get_message(QUIRE_MESSAGE_ROW(row))) ==
                   GPOINTER_TO_UINT(seq);
    return FALSE;
}

/* A cell of the map is of the message that its first token is of: it is said over it, and Enter or a click goes there. */
static void test_pages_of_messages(void)
{
    qe_receipt first;
    GtkWidget *map;
    GtkAdjustment *adjustment, *panel;
    g_autofree char *tip = NULL;

    open_window(1180, 460);
    turn("Tell me a story.", 2);
    first = *receipt();
    turn("Tell me another story.", 4);
    /* Tokens are counted through both turns: system prompt and question, reply, question, reply. */
    g_assert_cmpuint(seq_of(0), ==, 1);
    g_assert_cmpuint(seq_of(first.n_prompt - 1), ==, 1);
    g_assert_cmpuint(seq_of(first.n_prompt), ==, 2);
    g_assert_cmpuint(seq_of(first.n_prompt + first.n_generated - 1), ==, 2);
    g_assert_cmpuint(seq_of(first.n_prompt + first.n_generated), ==, 3);
    g_assert_cmpuint(seq_of(receipt()->n_prompt - 1), ==, 3);
    g_assert_cmpuint(seq_of(receipt()->n_prompt), ==, 4);
    g_assert_cmpuint(seq_of(receipt()->n_prompt + receipt()->n_generated + 5), ==, 4);
    key("F12");
    wait_ms(600);
    map = find(GTK_WIDGET(window), QUIRE_TYPE_PAGE_MAP);
    adjustment = quire_chat_view_get_adjustment(quire_window_get_chat(window));
    g_assert_cmpfloat(gtk_adjustment_get_value(adjustment), >, 0);
    gtk_widget_grab_focus(map);
    key("Home");
    key("Return");
    wait_for("the first message", is_flashed, GUINT_TO_POINTER(1));
    g_assert_cmpfloat(gtk_adjustment_get_value(adjustment), <, 24);
    screenshot("cache-5-page.png");
    key("End");
    key("Return");
    wait_for("the last message", is_flashed, GUINT_TO_POINTER(4));
    tip = quire_page_map_dup_words(QUIRE_PAGE_MAP(map), 0);
    g_assert_nonnull(strstr(tip, "“Tell me a story.”"));
    panel = gtk_scrolled_window_get_vadjustment(
        GTK_SCROLLED_WINDOW(gtk_widget_get_ancestor(map, GTK_TYPE_SCROLLED_WINDOW)));
    /* What is above the map may still change its height, and a tooltip may lie over it: then it is clicked at again. */
    for (int i = 0; i < 60 && !is_flashed(GUINT_TO_POINTER(1)); i++) {
        double x, y, dx, dy;
        g_autofree char *at_x = NULL, *at_y = NULL;
        const char *click[] = {"xdotool", "mousemove", NULL, NULL, "click", "1", NULL};

        /* Away from the window's edge. */
        gtk_adjustment_set_value(panel, gtk_adjustment_get_upper(panel));
        wait_ms(200);
        g_assert_true(gtk_widget_translate_coordinates(map, GTK_WIDGET(window), 4, 4, &x, &y));
        gtk_native_get_surface_transform(GTK_NATIVE(window), &dx, &dy);
        click[2] = at_x = g_strdup_printf("%.0f", x + dx);
        click[3] = at_y = g_strdup_printf("%.0f", y + dy);
        run(click);
        wait_ms(700);
    }
    g_assert_true(is_flashed(GUINT_TO_POINTER(1)));
    key("F12");
    close_window();
}

static void test_tiers(void)
{
    const qe_session_view *view;
    guint n = 0;

    open_window(1180, 780);
    turn("Tell me a story.", 2);
    key("F12");
    wait_ms(600);
    g_assert_true(snapshot()->tiers[QE_TIER_HOST].present);
    /* On the CPU the host tier is shown with the pages that the model computes in: both are memory of the host. */
    g_assert_cmpuint(snapshot()->tiers[QE_TIER_HOST].bytes_max, >=, (guint64)HOST_MIB << 20);
    g_assert_false(snapshot()->tiers[QE_TIER_GPU].present);
    g_assert_nonnull(snapshot()->tiers[QE_TIER_GPU].reason);
    g_assert_false(snapshot()->tiers[QE_TIER_DISK].present);
    g_assert_nonnull(snapshot()->tiers[QE_TIER_DISK].reason);
    g_assert_cmpuint(count_rows(GTK_WIDGET(window)), ==, QE_N_TIERS);
    view = quire_engine_client_find_session(
        quire_application_get_client(application), quire_conversation_get_session(conversation()));
    g_assert_nonnull(view);
    for (int tier = 0; tier < QE_N_TIERS; tier++)
        n += view->n_pages_tier[tier];
    g_assert_cmpuint(n, ==, view->n_pages);
    screenshot("cache-4-panel.png");
    key("F12");
    close_window();
}

/* The choices fit a narrow window. */
static void test_narrow(void)
{
    GtkWidget *content;
    int minimum;

    open_window(360, 640);
    turn("My name is Oda.", 2);
    type("a draft");
    wait_ms(400);
    content = adw_application_window_get_content(ADW_APPLICATION_WINDOW(window));
    gtk_widget_measure(
        adw_bin_get_child(ADW_BIN(content)), GTK_ORIENTATION_HORIZONTAL, -1, &minimum, NULL, NULL, NULL);
    g_assert_cmpint(minimum, <=, 360);
    key("ctrl+m");
    wait_for("the modes", popover_is, GINT_TO_POINTER(TRUE));
    wait_ms(300);
    gtk_widget_measure(GTK_WIDGET(popover()), GTK_ORIENTATION_HORIZONTAL, -1, &minimum, NULL, NULL, NULL);
    g_assert_cmpint(minimum, <=, 360);
    screenshot("cache-6-narrow.png");
    key("Escape");
    wait_for("no modes", popover_is, GINT_TO_POINTER(FALSE));
    close_window();
}

/* The settings reach the engine as it wants them. */
static void test_settings(void)
{
    GSettings *settings = quire_settings_get_default();
    QuireEngineSettings engine;

    quire_settings_get_engine(NULL, &engine);
    g_assert_cmpuint(engine.options.host_bytes_max, ==, (guint64)HOST_MIB << 20);
    g_assert_cmpint(engine.options.host_path, ==, QE_HOST_PATH_AUTO);
    g_assert_null(engine.options.disk_dir);
    g_assert_cmpuint(engine.options.disk_bytes_max, ==, 0);
    quire_engine_settings_clear(&engine);

    g_settings_set_string(settings, "host-memory", "auto");
    g_settings_set_string(settings, "host-path", "cpu");
    g_settings_set_boolean(settings, "disk-tier", TRUE);
    g_settings_set_uint(settings, "disk-mib", 100);
    quire_settings_get_engine(NULL, &engine);
    g_assert_cmpuint(engine.options.host_bytes_max, ==, 0);
    g_assert_cmpint(engine.options.host_path, ==, QE_HOST_PATH_CPU);
    g_assert_true(g_str_has_prefix(engine.options.disk_dir, g_get_user_cache_dir()));
    g_assert_true(g_str_has_suffix(engine.options.disk_dir, "/quire/kv"));
    g_assert_cmpuint(engine.options.disk_bytes_max, ==, 100ull << 20);
    quire_engine_settings_clear(&engine);

    g_settings_set_string(settings, "host-memory", "off");
    quire_settings_get_engine(NULL, &engine);
    g_assert_cmpuint(engine.options.host_bytes_max, ==, 1);
    quire_engine_settings_clear(&engine);

    g_settings_set_string(settings, "host-memory", "size");
    g_settings_reset(settings, "host-path");
    g_settings_reset(settings, "disk-tier");
    g_settings_reset(settings, "disk-mib");
}

/* The mode of new chats is the settings'; preferences show what host memory comes to. */
static void test_preferences(void)
{
    GSettings *settings = quire_settings_get_default();

    g_settings_set_string(settings, "cache-mode", "session");
    open_window(900, 640);
    g_assert_true(mode_is(GUINT_TO_POINTER(QUIRE_CACHE_SESSION)));
    turn("My name is Oda.", 2);
    g_assert_cmpint(receipt()->mode, ==, QE_CACHE_SESSION);
    key("ctrl+comma");
    wait_for("preferences", has_preferences, GINT_TO_POINTER(TRUE));
    wait_ms(800);
    screenshot("cache-8-preferences.png");
    key("Escape");
    wait_for("no preferences", has_preferences, GINT_TO_POINTER(FALSE));
    close_window();
    g_settings_reset(settings, "cache-mode");
}

static void prepare(GSettings *settings)
{
    g_settings_set_string(settings, "backend", "cpu");
    g_settings_set_string(settings, "host-memory", "size");
    g_settings_set_uint(settings, "host-mib", HOST_MIB);
}

static void add_tests(void)
{
    g_test_add_func("/app/cache/modes", test_modes);
    g_test_add_func("/app/cache/int8", test_int8);
    g_test_add_func("/app/cache/selective", test_selective);
    g_test_add_func("/app/cache/cost-first", test_cost_first);
    g_test_add_func("/app/cache/busy", test_busy);
    g_test_add_func("/app/cache/tiers", test_tiers);
    g_test_add_func("/app/cache/pages-of-messages", test_pages_of_messages);
    g_test_add_func("/app/cache/narrow", test_narrow);
    g_test_add_func("/app/cache/settings", test_settings);
    g_test_add_func("/app/cache/preferences", test_preferences);
}

int main(int argc, char **argv)
{
    return ui_main(argc, argv, prepare, add_tests);
}
