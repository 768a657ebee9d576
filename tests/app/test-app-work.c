/* test-app-work.c: how much work the window does, counted, not timed. See ui-harness.h. */
#include <string.h>

#include "app/quire-cache-panel.h"
#include "app/quire-markdown-view.h"
#include "app/quire-message-row.h"
#include "tests/app/ui-harness.h"

/* ---- Tests ---- */

/* Blocks parsed for each of the last 100 tokens of a reply of @n_paragraphs. */
static double blocks_a_token(guint n_paragraphs)
{
    g_autoptr(GString) text = g_string_new(NULL);
    GtkWidget *view = g_object_ref_sink(quire_markdown_view_new());
    guint64 before = 0;
    guint n_tokens = 0;

    for (guint i = 0; i < n_paragraphs; i++)
        g_string_append(text,
            i % 5 == 4   ? "```c\nint main (void)\n{\n\n  return 0;\n}\n```\n\n"
            : i % 5 == 3 ? "- one\n- two\n\n- three\n\n"
                         : "A page holds **16 tokens**, and a sealed one is shared by all who need it.\n\n");
    for (gsize n = text->len > 400 ? text->len - 400 : 0; n <= text->len; n += 4, n_tokens++) {
        quire_markdown_view_set_text(QUIRE_MARKDOWN_VIEW(view), text->str, n);
        if (n_tokens == 0) /* what was there before it */
            before = quire_markdown_view_get_n_parsed(QUIRE_MARKDOWN_VIEW(view));
    }
    before = quire_markdown_view_get_n_parsed(QUIRE_MARKDOWN_VIEW(view)) - before;
    g_object_unref(view);
    return (double)before / n_tokens;
}

static void test_blocks(void)
{
    double a_short = blocks_a_token(15), a_long = blocks_a_token(1000);

    g_test_message("blocks parsed a token: %.2f, and %.2f at the end of 1,000", a_short, a_long);
    g_assert_cmpfloat(a_long, <=, 4);
    g_assert_cmpfloat(a_long, <=, a_short * 1.2 + 0.2);
}

static gboolean has_rows(gpointer n)
{
    return quire_window_get_chat(window) != NULL &&
           quire_chat_view_get_n_rows(quire_window_get_chat(window)) >= GPOINTER_TO_UINT(n);
}

static gboolean is_loaded(gpointer data)
{
    return quire_window_get_chat(window) != NULL && quire_conversation_is_loaded(conversation());
}

static GtkAdjustment *adjustment(void)
{
    return quire_chat_view_get_adjustment(quire_window_get_chat(window));
}

static gboolean overflows(gpointer data)
{
    return gtk_adjustment_get_upper(adjustment()) > 2 * gtk_adjustment_get_page_size(adjustment());
}

static double from_end(void)
{
    GtkAdjustment *a = adjustment();

    return gtk_adjustment_get_upper(a) - gtk_adjustment_get_page_size(a) - gtk_adjustment_get_value(a);
}

typedef struct {
    double upper, from_end;
} Place;

/* Rows were laid out above, and what was in sight is where it was; its own rows may still change their height a little. */
static gboolean has_grown_above(gpointer data)
{
    const Place *before = data;

    return gtk_adjustment_get_upper(adjustment()) > before->upper && ABS(from_end() - before->from_end) < 16;
}

/* A long conversation shows its end; rows for what is before come as one goes up, and what is in sight stays there. */
static void test_rows(void)
{
    guint n_rows;

    open_window(900, 600);
    {
        g_autofree char *id = add_chat("long", 1000, 300);

        g_assert_true(gtk_widget_activate_action(GTK_WIDGET(window), "win.chat-open", "s", id));
    }
    wait_for("the messages", is_loaded, NULL);
    wait_for("all of them", has_n_messages, GUINT_TO_POINTER(1000));
    wait_for("rows", overflows, NULL);
    wait_ms(300);
    n_rows = quire_chat_view_get_n_rows(quire_window_get_chat(window));
    g_test_message("%u rows for 1,000 messages", n_rows);
    g_assert_cmpuint(n_rows, <=, 32);
    g_assert_cmpfloat(from_end(), <, 1);
    while (n_rows < 100) {
        Place place;

        gtk_adjustment_set_value(adjustment(), 0);
        place = (Place){gtk_adjustment_get_upper(adjustment()), from_end()};
        wait_for("more rows", has_rows, GUINT_TO_POINTER(n_rows + 1));
        wait_for("the place that was in sight", has_grown_above, &place);
        n_rows = quire_chat_view_get_n_rows(quire_window_get_chat(window));
    }
    close_window();
    /* Of one that is not as long the first message is reached. */
    open_window(900, 600);
    {
        g_autofree char *id = add_chat("shorter", 40, 60);

        g_assert_true(gtk_widget_activate_action(GTK_WIDGET(window), "win.chat-open", "s", id));
    }
    wait_for("the messages", is_loaded, NULL);
    wait_for("all of them", has_n_messages, GUINT_TO_POINTER(40));
    wait_for("rows", overflows, NULL);
    while (!has_rows(GUINT_TO_POINTER(40))) {
        gtk_adjustment_set_value(adjustment(), 0);
        wait_ms(20);
    }
    close_window();
}

static QuireCachePanel *panel(void)
{
    return QUIRE_CACHE_PANEL(find(GTK_WIDGET(window), QUIRE_TYPE_CACHE_PANEL));
}

static guint n_wakes;
static GPollFunc poll_before;

static gint count_poll(GPollFD *fds, guint n_fds, gint timeout)
{
    gint rc = poll_before(fds, n_fds, timeout);

    if (timeout != 0)
        n_wakes++;
    return rc;
}

static gboolean panel_got_one(gpointer before)
{
    return quire_cache_panel_get_n_snapshots(panel()) > *(guint64 *)before;
}

/* With the panel hidden it gets nothing, whatever the engine does, and an idle window sleeps. */
static void test_hidden(void)
{
    guint64 before;

    /* A blinking cursor is the toolkit's, and ends by itself after ten seconds. */
    g_object_set(gtk_settings_get_default(), "gtk-cursor-blink", FALSE, NULL);
    open_window(900, 600);
    before = quire_cache_panel_get_n_snapshots(panel());
    say("Tell me a story.", 2);
    wait_for("the reply", is_idle, NULL);
    wait_ms(1500);
    g_assert_cmpuint(quire_cache_panel_get_n_snapshots(panel()), ==, before);

    wait_ms(2000);
    poll_before = g_main_context_get_poll_func(NULL);
    g_main_context_set_poll_func(NULL, count_poll);
    n_wakes = 0;
    wait_ms(5000);
    g_main_context_set_poll_func(NULL, poll_before);
    g_test_message("%u wake-ups in 5 s", n_wakes);
    /* One of them is that of the wait itself. */
    g_assert_cmpuint(n_wakes, <=, 5 + 1);

    key("F12");
    wait_for("a snapshot", panel_got_one, &before);
    g_object_set(gtk_settings_get_default(), "gtk-cursor-blink", TRUE, NULL);
    key("F12");
    close_window();
}

static void add_tests(void)
{
    g_test_add_func("/app/work/blocks", test_blocks);
    g_test_add_func("/app/work/rows", test_rows);
    g_test_add_func("/app/work/hidden", test_hidden);
}

int main(int argc, char **argv)
{
    return ui_main(argc, argv, NULL, add_tests);
}
