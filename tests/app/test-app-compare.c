/* test-app-compare.c: comparisons in the real application, on the CPU with a host tier. See ui-harness.h. With
 * QUIRE_TEST_GALLERY set it renders the states at several widths instead, for people. */
#include <glib/gstdio.h>
#include <string.h>

#include "app/quire-compare-pane.h"
#include "app/quire-compare-table.h"
#include "app/quire-compare-view.h"
#include "app/quire-paths.h"
#include "app/quire-sidebar.h"
#include "app/quire-window-private.h"
#include "tests/app/ui-harness.h"

#define LONG_MESSAGE                                                                                         \
    "My name is Oda and I would like to know from you what my name is, now that I have said it."

static QuireCompareView *view(void)
{
    return quire_window_get_compare(window);
}

static gboolean compare_is(gpointer shown)
{
    return (view() != NULL) == GPOINTER_TO_INT(shown);
}

static gboolean can_start(gpointer data)
{
    return gtk_widget_get_sensitive(quire_compare_setup_get_start(quire_compare_view_get_setup(view())));
}

static gboolean is_started(gpointer data)
{
    return quire_compare_view_get_comparison(view()) != NULL;
}

static gboolean is_over(gpointer data)
{
    return quire_compare_view_get_comparison(view()) != NULL && !quire_compare_view_is_running(view());
}

static gboolean is_streaming(gpointer data)
{
    return is_over(NULL) ||
           quire_comparison_get_pane(quire_compare_view_get_comparison(view()), 0)->tokens->len > 4;
}

static void check(QuireCacheChoice choice, gboolean on)
{
    gtk_check_button_set_active(
        GTK_CHECK_BUTTON(quire_compare_setup_get_check(quire_compare_view_get_setup(view()), choice)), on);
}

static void turn(const char *text, guint n_messages)
{
    say(text, n_messages);
    wait_for("the reply", is_idle, NULL);
}

/* By keys: the tab, then Start. @timed: index of the shortest reply is 3. */
static void open_compare(guint timed)
{
    wait_ms(300);
    key("ctrl+shift+m");
    wait_for("the comparison", compare_is, GINT_TO_POINTER(TRUE));
    quire_compare_setup_set_timed(quire_compare_view_get_setup(view()), timed);
    wait_for("the counted tokens", can_start, NULL);
}

static void start(void)
{
    wait_ms(200);
    key("alt+s");
    wait_for("the start", is_started, NULL);
}

static gboolean no_compare_pages(gpointer before)
{
    return quire_compare_view_get_comparison(view()) != NULL && pages_are(before);
}

static gboolean sidebar_has(gpointer title)
{
    g_auto(GStrv) rows = quire_sidebar_dup_rows(QUIRE_SIDEBAR(find(GTK_WIDGET(window), QUIRE_TYPE_SIDEBAR)));

    return g_strv_contains((const char *const *)rows, title);
}

static GPtrArray *read_file(const char *id)
{
    g_autofree char *path = quire_dup_history_path();
    g_auto(QuireHistoryOpening) opening = {0};
    g_autoptr(QuireHistoryDb) db = quire_history_db_open(path, &opening, NULL);

    g_assert_nonnull(db);
    return quire_history_db_load(db, id, NULL);
}

static gboolean is_stored(gpointer id)
{
    g_autoptr(GPtrArray) messages = read_file(id);

    return messages->len > 0;
}

static char *dup_file(const char *name)
{
    g_autofree char *path = g_build_filename(g_get_tmp_dir(), name, NULL);
    g_autoptr(GFile) file = g_file_new_for_path(path);
    char *text = NULL;

    quire_compare_view_save(view(), file, g_str_has_suffix(name, ".png"));
    g_assert_true(g_file_get_contents(path, &text, NULL, NULL));
    g_unlink(path);
    return text;
}

static guint n_pages_of_chat(void)
{
    const qe_session_view *session = quire_engine_client_find_session(
        quire_application_get_client(application), quire_conversation_get_session(conversation()));

    return session != NULL ? session->n_pages : 0;
}

/* Two modes over a chat of two turns: the same tokens for both, of which one reads everything again and finds nothing of the
 * chat's; the chat stays as it is; the result is in the list. */
static void test_replay(void)
{
    const QuireComparison *c;
    QuireCompareTable *table;
    g_autofree char *id = NULL, *title = NULL, *csv = NULL, *png = NULL, *reply = NULL;
    guint n_before, n_chat, n_tokens, at;
    GtkWidget *chat;

    open_window(1180, 780);
    turn(LONG_MESSAGE, 2);
    turn("What is my name?", 4);
    wait_ms(300);
    reply = dup_reply();
    n_before = n_pages_used();
    n_chat = n_pages_of_chat();
    n_tokens = quire_conversation_get_n_tokens(conversation());
    g_assert_cmpuint(n_chat, >, 2);
    chat = GTK_WIDGET(quire_window_get_chat(window));

    open_compare(3);
    g_assert_nonnull(strstr(quire_compare_setup_get_need(quire_compare_view_get_setup(view())), "It fits."));
    wait_ms(400);
    screenshot("compare-1-setup.png");
    start();
    wait_for("the comparison's end", is_over, NULL);
    c = quire_compare_view_get_comparison(view());
    g_assert_cmpuint(c->panes->len, ==, 2);
    g_assert_cmpuint(c->n_turns, ==, 2);
    for (guint i = 0; i < 2; i++) {
        const QuirePane *pane = quire_comparison_get_pane(c, i);

        g_assert_cmpint(pane->state, ==, QUIRE_PANE_DONE);
        g_assert_cmpuint(pane->cold_ms.n, ==, QUIRE_COMPARE_REPEATS);
        g_assert_cmpuint(pane->warm_ms.n, ==, QUIRE_COMPARE_REPEATS);
        g_assert_cmpuint(pane->e2e_ms.n, ==, QUIRE_COMPARE_REPEATS);
        g_assert_cmpuint(pane->turns->len, ==, 2);
        g_assert_cmpuint(pane->peak[QE_TIER_HOST], >, 0);
        /* Its first turn finds nothing, though the chat has computed the very same pages. */
        g_assert_cmpuint(g_array_index(pane->turns, QuireComparedTurn, 0).n_reused, ==, 0);
        g_assert_cmpuint(pane->tokens->len, >, 0);
        g_assert_cmpuint(g_array_index(pane->tokens, QuireToken, 0).n_top, ==, QUIRE_COMPARE_TOP);
        g_assert_cmpstr(pane->text->str, ==, reply);
    }
    for (guint t = 0; t < 2; t++)
        g_assert_cmpuint(g_array_index(quire_comparison_get_pane(c, 0)->turns, QuireComparedTurn, t).n_prompt,
            ==, g_array_index(quire_comparison_get_pane(c, 1)->turns, QuireComparedTurn, t).n_prompt);
    g_assert_cmpuint(
        g_array_index(quire_comparison_get_pane(c, 0)->turns, QuireComparedTurn, 1).n_reused, ==, 0);
    g_assert_cmpuint(
        g_array_index(quire_comparison_get_pane(c, 1)->turns, QuireComparedTurn, 1).n_reused, >, 0);
    g_assert_cmpint(quire_comparison_align(c, 1, &at), ==, QUIRE_STREAM_SAME);

    /* The table says the same, in words. */
    table = QUIRE_COMPARE_TABLE(quire_compare_result_get_table(quire_compare_view_get_result(view())));
    for (guint column = 0; column < QUIRE_N_COLUMNS; column++) {
        g_autofree char *value = NULL, *range = NULL, *change = NULL, *words = NULL;
        g_autofree char *name = quire_comparison_dup_column_title(c, (QuireColumn)column);

        quire_comparison_dup_cell(
            c, quire_comparison_get_pane(c, 1), (QuireColumn)column, &value, &range, &change);
        g_assert_cmpstr(value, !=, "–");
        g_assert_cmpstr(change, !=, "");
        words = g_strdup_printf("Tiered, %s: %s %s", name, value, change);
        g_assert_cmpstr(quire_compare_table_get_cell(table, 1, column), ==, words);
    }
    g_assert_null(quire_compare_table_get_cell(table, 2, 0));
    wait_ms(300);
    screenshot("compare-2-done.png");

    /* All runs have closed their sessions; nothing of the chat was touched. */
    wait_for("freed sessions", no_compare_pages, GUINT_TO_POINTER(n_before));
    g_assert_cmpuint(quire_compare_get_n_sessions(quire_compare_view_get_compare(view())), ==, 0);
    csv = dup_file("quire-compare.csv");
    g_assert_true(g_str_has_prefix(csv, "model,device,mode,"));
    g_assert_nonnull(strstr(csv, ",rebuild,exact,first_token_cold,,ms,3,"));
    g_assert_nonnull(strstr(csv, ",tiered,exact,first_token_turn,2,ms,3,"));
    png = dup_file("quire-compare.png");
    g_assert_true(g_str_has_prefix(png, "\x89PNG"));
    id = g_strdup(quire_history_item_get(quire_compare_view_get_item(view()))->id);
    title = g_strdup(quire_compare_view_get_title(view()));
    key("ctrl+w");
    wait_for("the chat", compare_is, GINT_TO_POINTER(FALSE));
    g_assert_true(chat == GTK_WIDGET(quire_window_get_chat(window)));
    wait_for("freed pages", pages_are, GUINT_TO_POINTER(n_before));
    g_assert_cmpuint(n_pages_of_chat(), ==, n_chat);
    g_assert_cmpuint(quire_conversation_get_n_tokens(conversation()), ==, n_tokens);
    turn("Thank you.", 6);
    g_assert_cmpuint(receipt()->n_reused + 1, >=, n_tokens);
    close_window();

    /* It is in the file, and opens as it was, to be read only. */
    wait_for("the stored comparison", is_stored, id);
    open_window(1180, 780);
    wait_for("the entry", sidebar_has, title);
    g_assert_true(gtk_widget_activate_action(GTK_WIDGET(window), "win.chat-open", "s", id));
    wait_for("the comparison", compare_is, GINT_TO_POINTER(TRUE));
    wait_for("its figures", is_over, NULL);
    g_assert_null(quire_compare_view_get_setup(view()));
    {
        g_autofree char *again = dup_file("quire-compare.csv");

        g_assert_cmpstr(again, ==, csv);
    }
    g_assert_false(quire_compare_view_is_running(view()));
    wait_ms(300);
    screenshot("compare-3-kept.png");
    key("ctrl+w");
    wait_for("no comparison", compare_is, GINT_TO_POINTER(FALSE));
    close_window();
}

/* What panes have computed is found by nobody, and a tab closed while they run frees them and keeps what there is. */
static void test_close(void)
{
    g_autofree char *id = NULL;
    g_autoptr(GPtrArray) messages = NULL;
    g_autoptr(QuireComparison) kept = NULL;
    GtkTextView *text;

    open_window(900, 640);
    key("ctrl+shift+m");
    wait_for("the comparison", compare_is, GINT_TO_POINTER(TRUE));
    g_assert_false(can_start(NULL));
    text = GTK_TEXT_VIEW(find(GTK_WIDGET(quire_compare_view_get_setup(view())), GTK_TYPE_TEXT_VIEW));
    gtk_text_buffer_set_text(gtk_text_view_get_buffer(text),
        "Please tell me a long story of a fox and an owl that live in an old tower by the sea.", -1);
    wait_for("the counted tokens", can_start, NULL);
    start();
    wait_for("a stream", is_streaming, NULL);
    g_assert_true(quire_compare_view_is_running(view()));
    id = g_strdup(quire_history_item_get(quire_compare_view_get_item(view()))->id);
    screenshot("compare-4-running.png");
    key("ctrl+w");
    wait_for("no comparison", compare_is, GINT_TO_POINTER(FALSE));
    wait_for("freed pages", pages_are, GUINT_TO_POINTER(0));
    wait_for("the stored comparison", is_stored, id);
    messages = read_file(id);
    kept = quire_comparison_from_messages(messages);
    g_assert_nonnull(kept);
    g_assert_cmpint(quire_comparison_get_pane(kept, 0)->state, ==, QUIRE_PANE_STOPPED);
    g_assert_cmpuint(quire_comparison_get_pane(kept, 0)->text->len, >, 0);

    /* The chat's cache mode looks for pages of others. */
    turn("Please tell me a long story of a fox and an owl that live in an old tower by the sea.", 2);
    g_assert_cmpuint(receipt()->n_shared, ==, 0);
    g_assert_cmpuint(receipt()->n_reused, ==, 0);
    close_window();
}

/* Interleaved: streams of all panes, no figures in the table. */
static void test_interleaved(void)
{
    const QuireComparison *c;

    open_window(1180, 780);
    turn("My name is Oda.", 2);
    open_compare(3);
    check(QUIRE_CACHE_SESSION, TRUE);
    quire_compare_setup_set_interleaved(quire_compare_view_get_setup(view()), TRUE);
    start();
    wait_for("the comparison's end", is_over, NULL);
    c = quire_compare_view_get_comparison(view());
    g_assert_true(c->interleaved);
    g_assert_cmpuint(c->panes->len, ==, 3);
    for (guint i = 0; i < 3; i++) {
        const QuirePane *pane = quire_comparison_get_pane(c, i);

        g_assert_cmpint(pane->state, ==, QUIRE_PANE_DONE);
        g_assert_cmpuint(pane->warm_ms.n + pane->cold_ms.n + pane->e2e_ms.n, ==, 0);
        g_assert_cmpstr(pane->text->str, ==, quire_comparison_get_pane(c, 0)->text->str);
    }
    wait_ms(200);
    screenshot("compare-5-interleaved.png");
    close_window();
}

/* A window of 360 pixels holds the set-up and the result. */
static void test_narrow(void)
{
    int minimum;

    open_window(360, 640);
    turn("My name is Oda.", 2);
    open_compare(3);
    gtk_widget_measure(GTK_WIDGET(view()), GTK_ORIENTATION_HORIZONTAL, -1, &minimum, NULL, NULL, NULL);
    g_assert_cmpint(minimum, <=, 360);
    wait_ms(400);
    screenshot("compare-6-narrow-setup.png");
    start();
    wait_for("the comparison's end", is_over, NULL);
    wait_ms(300);
    gtk_widget_measure(GTK_WIDGET(view()), GTK_ORIENTATION_HORIZONTAL, -1, &minimum, NULL, NULL, NULL);
    g_assert_cmpint(minimum, <=, 360);
    screenshot("compare-7-narrow.png");
    close_window();
}

/* "Use This Mode" gives the chat another mode, after the cost was shown. */
static void test_use(void)
{
    GtkWidget *pane, *button;

    open_window(1180, 780);
    turn("My name is Oda.", 2);
    open_compare(3);
    start();
    wait_for("the comparison's end", is_over, NULL);
    wait_ms(300);
    pane = find(GTK_WIDGET(view()), QUIRE_TYPE_COMPARE_PANE);
    button = gtk_widget_get_last_child(pane);
    g_assert_true(GTK_IS_BUTTON(button));
    g_signal_emit_by_name(button, "clicked");
    wait_ms(400);
    screenshot("compare-8-use.png");
    button = find(find(button, GTK_TYPE_POPOVER), GTK_TYPE_BUTTON);
    g_assert_cmpstr(gtk_button_get_label(GTK_BUTTON(button)), ==, "Use Rebuild");
    g_signal_emit_by_name(button, "clicked");
    wait_ms(300);
    key("ctrl+w");
    wait_for("the chat", compare_is, GINT_TO_POINTER(FALSE));
    g_assert_cmpint(quire_conversation_get_cache(conversation()), ==, QUIRE_CACHE_REBUILD);
    close_window();
}

/* ---- For people ---- */

static void shoot(const char *what, int width, guint n)
{
    g_autofree char *name = g_strdup_printf("%s-%d-%u.png", what, width, n);

    wait_ms(400);
    screenshot(name);
}

static void test_gallery(void)
{
    static const int widths[] = {1200, 900, 360};
    static const QuireCacheChoice more[] = {QUIRE_CACHE_SESSION, QUIRE_CACHE_TIERED_INT8};

    for (guint n = 2; n <= 4; n++)
        for (guint w = 0; w < G_N_ELEMENTS(widths); w++) {
            open_window(widths[w], widths[w] == 360 ? 640 : 800);
            turn("My name is Oda.", 2);
            turn("What is a KV cache?", 4);
            turn("Tell me a story.", 6);
            open_compare(2);
            for (guint i = 2; i < n; i++)
                check(more[i - 2], TRUE);
            if (n == 2 || n == 4)
                shoot("setup", widths[w], n);
            start();
            wait_for("a stream", is_streaming, NULL);
            if (n == 4)
                shoot("running", widths[w], n);
            wait_for("the comparison's end", is_over, NULL);
            shoot("done", widths[w], n);
            if (n != 3) {
                GtkAdjustment *end = gtk_scrolled_window_get_vadjustment(GTK_SCROLLED_WINDOW(
                    gtk_widget_get_first_child(GTK_WIDGET(quire_compare_view_get_result(view())))));

                quire_compare_result_show_turns(quire_compare_view_get_result(view()));
                wait_ms(200);
                gtk_adjustment_set_value(end, gtk_adjustment_get_upper(end));
                shoot("turns", widths[w], n);
            }
            close_window();
        }
}

static void prepare(GSettings *settings)
{
    g_settings_set_string(settings, "backend", "cpu");
    g_settings_set_string(settings, "host-memory", "size");
    g_settings_set_uint(settings, "host-mib", 64);
}

static void add_tests(void)
{
    if (g_getenv("QUIRE_TEST_GALLERY") != NULL) {
        g_test_add_func("/app/compare/gallery", test_gallery);
        return;
    }
    g_test_add_func("/app/compare/replay", test_replay);
    g_test_add_func("/app/compare/close", test_close);
    g_test_add_func("/app/compare/interleaved", test_interleaved);
    g_test_add_func("/app/compare/narrow", test_narrow);
    g_test_add_func("/app/compare/use", test_use);
}

int main(int argc, char **argv)
{
    return ui_main(argc, argv, prepare, add_tests);
}
