/* test-app-ui.c: the real application with the shipped model, driven by real key events. See ui-harness.h. */
#include <glib/gstdio.h>
#include <string.h>

#include "app/quire-markdown-view.h"
#include "app/quire-message-row.h"
#include "app/quire-settings.h"
#include "tests/app/fake-im.h"
#include "tests/app/ui-harness.h"

/* ---- Tests ---- */

typedef struct {
    guint n_growths;
    guint n_blocks_seen;
    gsize n_last;
} Growth;

static void count_growth_cb(QuireMessage *message, gpointer data)
{
    Growth *growth = data;
    gsize n_bytes;
    GtkWidget *view = find(last_row(), QUIRE_TYPE_MARKDOWN_VIEW);

    quire_message_get_text(message, &n_bytes);
    g_assert_cmpuint(n_bytes, >=, growth->n_last);
    if (n_bytes > growth->n_last)
        growth->n_growths++;
    growth->n_last = n_bytes;
    growth->n_blocks_seen = quire_markdown_view_get_n_blocks(QUIRE_MARKDOWN_VIEW(view));
}

static void watch_reply_cb(GListModel *model, guint position, guint removed, guint added, gpointer data)
{
    QuireMessage *reply = quire_conversation_get_last_reply(QUIRE_CONVERSATION(model));

    *(Growth *)data = (Growth){0};
    g_signal_connect_after(reply, "changed", G_CALLBACK(count_growth_cb), data);
}

static gboolean has_other_reply(gpointer old)
{
    return quire_conversation_get_last_reply(conversation()) != old && is_idle(NULL);
}

/* The reply is seen in at least three growing states. The shipped model is fast and the machine may be busy, so a
 * reply that came in fewer is asked for again. */
static void test_streaming(void)
{
    Growth growth = {0};

    open_window(900, 600);
    g_signal_connect(conversation(), "items-changed", G_CALLBACK(watch_reply_cb), &growth);
    say("Tell me a story.", 2);
    wait_for("the end of the reply", is_idle, NULL);
    for (int i = 0; i < 20 && growth.n_growths < 3; i++) {
        g_autoptr(QuireMessage) old = g_object_ref(quire_conversation_get_last_reply(conversation()));

        key("ctrl+r");
        wait_for("another reply", has_other_reply, old);
    }
    g_assert_cmpuint(growth.n_growths, >=, 3);
    g_assert_cmpuint(growth.n_blocks_seen, >=, 1);
    g_signal_handlers_disconnect_by_func(conversation(), watch_reply_cb, &growth);
    close_window();
}

static void test_two_turns(void)
{
    const char *first = "Tell me a story.", *second = "What is a KV cache?";
    g_autofree char *json = NULL, *expected = NULL, *reply = NULL, *quoted = NULL;
    qe_receipt r1, r2;

    open_window(1200, 800);
    screenshot("ui-1-empty.png");
    g_assert_cmpuint(n_pages_used(), ==, 0);

    say(first, 2);
    /* Message, empty reply and caret are there before the engine has said anything. */
    g_assert_nonnull(last_row());
    g_assert_true(draft_is(""));
    wait_for("the end of the reply", is_idle, NULL);
    screenshot("ui-2-first.png");

    reply = dup_reply();
    g_assert_cmpstr(reply, !=, "");
    json = g_strdup_printf("[{\"role\":\"user\",\"content\":\"%s\"}]", first);
    expected = dup_cli_reply(json);
    g_assert_cmpstr(reply, ==, expected);
    r1 = *receipt();
    g_assert_cmpuint(r1.n_reused, ==, 0);
    g_assert_cmpuint(n_pages_used(), >, 0);
    g_assert_cmpstr(quire_conversation_get_title(conversation()), ==, first);

    say(second, 4);
    wait_for("the end of the second reply", is_idle, NULL);
    screenshot("ui-3-second.png");
    r2 = *receipt();
    /* All of the first turn is in the cache save its last token: that was chosen, never read. */
    g_assert_cmpuint(r2.n_reused, ==, r1.n_prompt + r1.n_generated - 1);
    g_assert_cmpuint(r2.n_new, ==, r2.n_prompt - r2.n_reused);

    quoted = quote(reply);
    g_free(g_steal_pointer(&json));
    json = g_strdup_printf("[{\"role\":\"user\",\"content\":\"%s\"},"
                           "{\"role\":\"assistant\",\"content\":%s},"
                           "{\"role\":\"user\",\"content\":\"%s\"}]",
        first, quoted, second);
    g_free(g_steal_pointer(&expected));
    g_free(g_steal_pointer(&reply));
    expected = dup_cli_reply(json);
    reply = dup_reply();
    g_assert_cmpstr(reply, ==, expected);

    /* Closing the tab frees its pages; an empty chat takes its place, and undo brings the words back. */
    key("ctrl+w");
    wait_for("freed pages", pages_are, GUINT_TO_POINTER(0));
    g_assert_true(has_n_messages(GUINT_TO_POINTER(0)));
    screenshot("ui-4-closed.png");
    key("ctrl+shift+t");
    wait_for("the reopened chat", has_n_messages, GUINT_TO_POINTER(4));

    /* Its next turn reads the whole conversation anew. */
    say("Thank you.", 6);
    wait_for("the third reply", is_idle, NULL);
    g_assert_cmpuint(receipt()->n_reused, ==, 0);
    g_assert_cmpuint(receipt()->n_new, >, r2.n_prompt);
    close_window();
}

static void test_regenerate(void)
{
    g_autoptr(QuireMessage) old = NULL;
    g_autofree char *first = NULL, *again = NULL;

    open_window(900, 600);
    say("My name is Oda.", 2);
    wait_for("the reply", is_idle, NULL);
    first = dup_reply();
    old = g_object_ref(quire_conversation_get_last_reply(conversation()));
    key("ctrl+r");
    wait_for("another reply", has_other_reply, old);
    wait_for("the same number of messages", has_n_messages, GUINT_TO_POINTER(2));
    again = dup_reply();
    g_assert_cmpstr(again, ==, first);

    say("What is my name?", 4);
    wait_for("the reply", is_idle, NULL);
    g_free(again);
    again = dup_reply();
    g_assert_nonnull(strstr(again, "Oda"));
    close_window();
}

static gboolean has_text(gpointer data)
{
    gsize n_bytes;

    quire_message_get_text(quire_conversation_get_last_reply(conversation()), &n_bytes);
    return n_bytes > 0;
}

static void test_stop(void)
{
    gsize n_bytes;

    open_window(900, 600);
    g_settings_set_uint(quire_settings_get_default(), "threads", 1);
    say("Tell me a story.", 2);
    wait_for("first words", has_text, NULL);
    if (is_idle(NULL))
        g_test_message("the reply was over before it could be stopped");
    key("Escape");
    wait_for("the end", is_idle, NULL);
    quire_message_get_text(quire_conversation_get_last_reply(conversation()), &n_bytes);
    g_assert_cmpuint(n_bytes, >, 0);

    /* The chat goes on from what was said. */
    say("Thank you.", 4);
    wait_for("the reply", is_idle, NULL);
    g_assert_cmpuint(receipt()->n_reused, >, 0);
    close_window();
}

/* Enter, Shift+Enter, keypad Enter, and Enter while a reply runs. */
static void test_enter(void)
{
    open_window(900, 600);
    type("one");
    wait_for("the typed text", draft_is, "one");
    key("shift+Return");
    type("two");
    wait_for("two lines", draft_is, "one\ntwo");
    g_assert_true(has_n_messages(GUINT_TO_POINTER(0)));

    key("KP_Enter");
    wait_for("the message", has_n_messages, GUINT_TO_POINTER(2));
    g_assert_true(draft_is(""));

    /* A draft written while the reply runs is neither lost nor sent. */
    gtk_text_buffer_set_text(draft(), "next", -1);
    if (!is_idle(NULL)) {
        g_assert_false(quire_composer_send(quire_chat_view_get_composer(quire_window_get_chat(window))));
        g_assert_true(draft_is("next"));
        g_assert_true(has_n_messages(GUINT_TO_POINTER(2)));
    }
    wait_for("the reply", is_idle, NULL);
    g_assert_true(draft_is("next"));
    key("Return");
    wait_for("the message", has_n_messages, GUINT_TO_POINTER(4));
    wait_for("the reply", is_idle, NULL);

    /* Blank text is not sent. */
    type("  ");
    key("Return");
    wait_ms(100);
    g_assert_true(has_n_messages(GUINT_TO_POINTER(4)));
    close_window();
}

/* The input method sees Enter first; while it composes nothing is sent. */
static void test_input_method(void)
{
    g_autoptr(QuireMessage) user = NULL;
    gsize n_bytes;

    open_window(900, 600);
    fake_im_set_active(TRUE);
    type("ni");
    g_assert_true(fake_im_is_composing());
    g_assert_true(draft_is(""));
    key("Return"); /* takes the candidate */
    wait_for("the committed text", draft_is, "NI");
    g_assert_false(fake_im_is_composing());
    g_assert_true(has_n_messages(GUINT_TO_POINTER(0)));
    key("Return"); /* sends */
    wait_for("the message", has_n_messages, GUINT_TO_POINTER(2));
    fake_im_set_active(FALSE);
    wait_for("the reply", is_idle, NULL);
    wait_ms(50);
    g_assert_true(has_n_messages(GUINT_TO_POINTER(2)));
    user = g_list_model_get_item(G_LIST_MODEL(conversation()), 0);
    g_assert_cmpstr(quire_message_get_text(user, &n_bytes), ==, "NI");
    g_assert_true(draft_is(""));
    close_window();
}

static gboolean at_end(gpointer data)
{
    GtkAdjustment *a = quire_chat_view_get_adjustment(quire_window_get_chat(window));

    return gtk_adjustment_get_upper(a) - gtk_adjustment_get_page_size(a) - gtk_adjustment_get_value(a) < 1;
}

static gboolean overflows(gpointer data)
{
    GtkAdjustment *a = quire_chat_view_get_adjustment(quire_window_get_chat(window));

    return gtk_adjustment_get_upper(a) > gtk_adjustment_get_page_size(a) + 100;
}

/* The view follows the text, stops following when the user scrolls up, and does not move when a reply ends. */
static void test_scrolling(void)
{
    GtkAdjustment *a;
    double value;
    guint n = 0;

    open_window(600, 400);
    a = quire_chat_view_get_adjustment(quire_window_get_chat(window));
    do {
        n += 2;
        say("Tell me a story.", n);
        wait_for("the reply", is_idle, NULL);
        wait_ms(100);
    } while (!overflows(NULL));
    wait_for("the end in sight", at_end, NULL);

    gtk_adjustment_set_value(a, 0);
    value = gtk_adjustment_get_value(a);
    {
        QuireTurnSettings settings;

        /* A turn that the user did not send from here (sending goes to the end). */
        quire_settings_get_turn(
            quire_engine_client_get_status(quire_application_get_client(application))->model, &settings);
        quire_conversation_send(conversation(), "Tell me a story.", &settings);
    }
    wait_for("the reply", is_idle, NULL);
    wait_ms(200);
    g_assert_cmpfloat(gtk_adjustment_get_value(a), ==, value);
    g_assert_false(at_end(NULL));
    close_window();
}

static gboolean has_failed(gpointer data)
{
    return quire_engine_client_get_status(quire_application_get_client(application))->state ==
           QE_ENGINE_FAILED;
}

/* A folder that is no model is refused in words and the model stays; a load that fails can be left again. */
static void test_bad_model(void)
{
    QuireEngineClient *client = quire_application_get_client(application);
    g_autofree char *dir = g_dir_make_tmp("quire-test-XXXXXX", NULL);
    g_autofree char *good = quire_settings_dup_model_dir();

    open_window(900, 600);
    quire_application_choose_model(application, dir, GTK_WINDOW(window));
    wait_ms(500);
    g_assert_true(quire_engine_client_is_ready(client));
    screenshot("ui-5-bad-folder.png");

    quire_engine_client_load(client, dir);
    wait_for("the failure", has_failed, NULL);
    g_assert_nonnull(quire_engine_client_get_status(client)->error);
    wait_ms(300);
    screenshot("ui-6-failed.png");
    quire_engine_client_load(client, good);
    wait_for("a model", is_ready, NULL);
    g_rmdir(dir);
    close_window();
}

/* Two chats at once: each has its own session; closing one leaves the other's pages. */
static void test_two_chats(void)
{
    guint n_first;

    open_window(1200, 800);
    say("My name is Oda.", 2);
    wait_for("the reply", is_idle, NULL);
    wait_ms(300);
    n_first = n_pages_used();
    key("ctrl+t");
    wait_for("an empty chat", has_n_messages, GUINT_TO_POINTER(0));
    say("Tell me a story.", 2);
    wait_for("the reply", is_idle, NULL);
    wait_ms(300);
    g_assert_cmpuint(n_pages_used(), >, n_first);
    g_assert_cmpint(adw_tab_view_get_n_pages(quire_window_get_tab_view(window)), ==, 2);
    key("F12");
    wait_ms(600);
    screenshot("ui-7-panel.png");
    key("ctrl+w");
    wait_for("the first chat's pages", pages_are, GUINT_TO_POINTER(n_first));
    close_window();
}

/* The window can be as narrow as a phone, with the sidebar's menu still in reach. */
static void test_narrow(void)
{
    GtkWidget *content;
    int minimum;

    open_window(360, 640);
    say("My name is Oda.", 2);
    wait_for("the reply", is_idle, NULL);
    type("a draft");
    wait_ms(400);
    /* Without the border that a window without a compositor has. */
    content = adw_application_window_get_content(ADW_APPLICATION_WINDOW(window));
    gtk_widget_measure(
        adw_bin_get_child(ADW_BIN(content)), GTK_ORIENTATION_HORIZONTAL, -1, &minimum, NULL, NULL, NULL);
    g_assert_cmpint(minimum, <=, 360);
    screenshot("ui-9-narrow.png");
    gtk_window_set_default_size(GTK_WINDOW(window), 1190, 640);
    wait_ms(400);
    key("F12");
    wait_ms(500);
    /* Sidebar and panel are docked, and do not widen the window's minimum. */
    gtk_widget_measure(content, GTK_ORIENTATION_HORIZONTAL, -1, &minimum, NULL, NULL, NULL);
    g_assert_cmpint(minimum, <=, 360);
    key("F12");
    gtk_window_set_default_size(GTK_WINDOW(window), 360, 640);
    wait_ms(500);
    key("F9");
    wait_ms(500);
    screenshot("ui-10-narrow-sidebar.png");
    key("F12");
    wait_ms(500);
    screenshot("ui-11-narrow-panel.png");
    close_window();
}

/* Right to left: the whole window mirrored. */
static void test_rtl(void)
{
    gtk_widget_set_default_direction(GTK_TEXT_DIR_RTL);
    open_window(1200, 800);
    say("My name is Oda.", 2);
    wait_for("the reply", is_idle, NULL);
    key("F12");
    wait_ms(600);
    screenshot("ui-12-rtl.png");
    close_window();
    gtk_widget_set_default_direction(GTK_TEXT_DIR_LTR);
}

/* Preferences open and close. Another cache size leaves the engine and its pages; another number of threads starts
 * another engine, and the chat goes on. */
static void test_preferences(void)
{
    /* What tests before this one have set is in force first. */
    quire_application_apply_settings(application);
    wait_for("a model", is_ready, NULL);
    open_window(900, 600);
    say("My name is Oda.", 2);
    wait_for("the reply", is_idle, NULL);
    key("ctrl+comma");
    wait_for("preferences", has_preferences, GINT_TO_POINTER(TRUE));
    wait_ms(300);
    screenshot("ui-13-preferences.png");
    g_settings_set_uint(quire_settings_get_default(), "cache-mib", 64);
    key("Escape");
    wait_for("no preferences", has_preferences, GINT_TO_POINTER(FALSE));
    say("What is my name?", 4);
    wait_for("the reply", is_idle, NULL);
    g_assert_cmpuint(receipt()->n_reused, >, 0);
    key("ctrl+comma");
    wait_for("preferences", has_preferences, GINT_TO_POINTER(TRUE));
    g_settings_set_uint(quire_settings_get_default(), "threads", 2);
    key("Escape");
    wait_for("no preferences", has_preferences, GINT_TO_POINTER(FALSE));
    wait_for("a model", is_ready, NULL);
    say("And what is my name?", 6);
    wait_for("the reply", is_idle, NULL);
    g_assert_cmpuint(receipt()->n_reused, ==, 0);
    {
        g_autofree char *reply = dup_reply();

        g_assert_nonnull(strstr(reply, "Oda"));
    }
    g_settings_reset(quire_settings_get_default(), "cache-mib");
    g_settings_set_uint(quire_settings_get_default(), "threads", 1);
    quire_application_apply_settings(application);
    wait_for("a model", is_ready, NULL);
    /* The window goes while preferences are open above it. */
    key("ctrl+comma");
    wait_for("preferences", has_preferences, GINT_TO_POINTER(TRUE));
    close_window();
    wait_for("no preferences", has_preferences, GINT_TO_POINTER(FALSE));
}

/* Counts the buttons under @root; each must have words or a tooltip. GTK's own title and
 * close buttons, which name themselves, are left out. */
static guint check_buttons(GtkWidget *root)
{
    guint n = 0;

    if (GTK_IS_WINDOW_CONTROLS(root) || !gtk_widget_get_visible(root) ||
        gtk_widget_has_css_class(root, "close"))
        return 0;
    if (GTK_IS_BUTTON(root) || GTK_IS_MENU_BUTTON(root)) {
        const char *tooltip = gtk_widget_get_tooltip_text(root);

        if ((tooltip == NULL || tooltip[0] == '\0') && !says_something(root))
            g_error("a button without a name in a %s", G_OBJECT_TYPE_NAME(gtk_widget_get_parent(root)));
        return 1;
    }
    for (GtkWidget *child = gtk_widget_get_first_child(root); child != NULL;
         child = gtk_widget_get_next_sibling(child))
        n += check_buttons(child);
    return n;
}

static void test_button_names(void)
{
    open_window(1200, 800);
    say("My name is Oda.", 2);
    wait_for("the reply", is_idle, NULL);
    g_assert_cmpuint(check_buttons(GTK_WIDGET(window)), >=, 10);
    close_window();
}

/* A window that closes while a reply runs stops it. */
static void test_close_running(void)
{
    open_window(900, 600);
    say("Tell me a story.", 2);
    close_window();
}

/* Rows made of made-up replies: thinking, Markdown, bytes that are no text, a failure. */
static void test_rows(void)
{
    static const char markdown[] =
        "<think>\nThe user wants a table.\n</think>\n\n## Pages\n\nA page holds **16 tokens**, see "
        "[the notes](https://example.org/a?b=1&c=2):\n\n| tier | pages | bytes |\n|:--|--:|--:|\n"
        "| host | 12 | 768 KiB |\n| *GPU* | 0 | 0 |\n\n1. sealed pages are shared\n   - never "
        "written again\n2. the tail page is not\n\n> Closing a tab frees both.\n\n```c\nint "
        "main (void)\n{\n  return 1 < 2 && puts (\"pages\"); /* a long line that has to scroll "
        "sideways inside its own box */\n}\n```\n\nEnd \xff\0 of it.";
    qe_update done = {.state = QE_REQUEST_DONE,
        .finish = QE_FINISH_STOP,
        .text = (char *)markdown,
        .n_text = sizeof markdown - 1};
    qe_update failed = {.state = QE_REQUEST_DONE, .finish = QE_FINISH_ERROR, .text = (char *)""};
    g_autoptr(QuireMessage) user = quire_message_new(QE_ROLE_USER, "a\xff"
                                                                   "b");
    g_autoptr(QuireMessage) reply = quire_message_new(QE_ROLE_ASSISTANT, "");
    g_autoptr(QuireMessage) bad = quire_message_new(QE_ROLE_ASSISTANT, "");
    GtkWidget *box = gtk_box_new(GTK_ORIENTATION_VERTICAL, 18);
    GtkWidget *shown = gtk_window_new();
    GtkWidget *rows[3];

    done.receipt = (qe_receipt){.n_prompt = 16512,
        .n_reused = 16384,
        .n_new = 128,
        .n_generated = 210,
        .first_token_ms = 140,
        .decode_tokens_per_s = 96,
        .first_mismatch = -1};
    failed.error =
        g_error_new_literal(QE_ERROR, QE_ERROR_NUMERIC, "The model gave an invalid number at token 88.");
    rows[0] = quire_message_row_new(user);
    rows[1] = quire_message_row_new(reply);
    rows[2] = quire_message_row_new(bad);
    for (int i = 0; i < 3; i++)
        gtk_box_append(GTK_BOX(box), rows[i]);
    gtk_widget_add_css_class(box, "quire-transcript");
    gtk_window_set_child(GTK_WINDOW(shown), box);
    gtk_window_set_default_size(GTK_WINDOW(shown), 600, 760);
    gtk_window_present(GTK_WINDOW(shown));
    wait_ms(100);

    /* Every length of the text, as it might stream, is shown without a complaint. */
    for (gsize n = 0; n < sizeof markdown - 1; n += 7) {
        qe_update part = {.state = QE_REQUEST_DECODE,
            .text = (char *)markdown + n,
            .n_text = MIN(7, sizeof markdown - 1 - n)};

        quire_message_apply(reply, &part);
        g_main_context_iteration(NULL, FALSE);
    }
    done.n_text = 0;
    quire_message_apply(reply, &done);
    quire_message_apply(bad, &failed);
    quire_message_row_set_last(QUIRE_MESSAGE_ROW(rows[2]), TRUE);
    g_assert_nonnull(find(rows[1], GTK_TYPE_EXPANDER));
    g_assert_cmpuint(
        quire_markdown_view_get_n_blocks(QUIRE_MARKDOWN_VIEW(find(rows[1], QUIRE_TYPE_MARKDOWN_VIEW))), ==,
        9);
    wait_ms(300);
    screenshot("ui-8-rows.png");
    g_error_free(failed.error);
    gtk_window_destroy(GTK_WINDOW(shown));
}

static void add_tests(void)
{
    g_test_add_func("/app/ui/streaming", test_streaming);
    g_test_add_func("/app/ui/two-turns", test_two_turns);
    g_test_add_func("/app/ui/regenerate", test_regenerate);
    g_test_add_func("/app/ui/stop", test_stop);
    g_test_add_func("/app/ui/enter", test_enter);
    g_test_add_func("/app/ui/input-method", test_input_method);
    g_test_add_func("/app/ui/scrolling", test_scrolling);
    g_test_add_func("/app/ui/two-chats", test_two_chats);
    g_test_add_func("/app/ui/bad-model", test_bad_model);
    g_test_add_func("/app/ui/close-running", test_close_running);
    g_test_add_func("/app/ui/rows", test_rows);
    g_test_add_func("/app/ui/preferences", test_preferences);
    g_test_add_func("/app/ui/narrow", test_narrow);
    g_test_add_func("/app/ui/rtl", test_rtl);
    g_test_add_func("/app/ui/button-names", test_button_names);
}

int main(int argc, char **argv)
{
    return ui_main(argc, argv, NULL, add_tests);
}
