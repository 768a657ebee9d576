/* test-app-chat.c: titles, settings of a chat, attachments, the context and what is done when it is full. See
 * ui-harness.h. */
#include <glib/gstdio.h>
#include <string.h>

#include "app/quire-aside.h"
#include "app/quire-cache-panel.h"
#include "app/quire-chat-settings-window.h"
#include "app/quire-chips.h"
#include "app/quire-format.h"
#include "app/quire-markdown-view.h"
#include "app/quire-markdown.h"
#include "app/quire-message-row.h"
#include "app/quire-pace.h"
#include "app/quire-room-window.h"
#include "app/quire-settings.h"
#include "app/quire-status-line.h"
#include "app/quire-title.h"
#include "app/quire-sidebar.h"
#include "tests/app/fake-im.h"
#include "tests/app/ui-harness.h"

static QuireEngineClient *client(void)
{
    return quire_application_get_client(application);
}

static const QuireStoredChat *stored(void)
{
    return quire_history_item_get(quire_conversation_get_item(conversation()));
}

/* ---- Titles ---- */

typedef struct {
    gboolean done;
    char *text;
    qe_receipt receipt;
} Answer;

static void answered_cb(const char *text, const qe_receipt *receipt, gpointer data)
{
    Answer *answer = data;

    answer->done = TRUE;
    answer->text = g_strdup(text);
    if (receipt != NULL)
        answer->receipt = *receipt;
}

static gboolean has_n_sessions(gpointer n)
{
    return quire_engine_client_get_snapshot(client())->n_sessions == GPOINTER_TO_UINT(n);
}

/* A question aside finds all that the chat has computed, and leaves it as it was. */
static void test_aside(void)
{
    Answer answer = {0};
    QuireAside *aside;
    guint n_tokens;

    open_window(900, 600);
    say("My name is Oda.", 2);
    wait_for("the reply", is_idle, NULL);
    n_tokens = receipt()->n_prompt + receipt()->n_generated;
    {
        const QuireAsideQuestion question = {.session = quire_conversation_get_session(conversation()),
            .keep_messages = QE_KEEP_ALL,
            .question = quire_title_question(),
            .max_tokens = QUIRE_TITLE_TOKENS_MAX,
            .yields = TRUE};

        aside = quire_aside_new(client(), &question, answered_cb, &answer);
    }
    wait_for("the answer", is_set, &answer.done);
    quire_aside_free(aside);
    g_assert_nonnull(answer.text);
    g_assert_cmpuint(answer.receipt.n_generated, >, 0);
    /* Full pages are shared, the open one was copied: nothing of the chat is read again, save its last token, whose keys
     * nobody has computed yet. */
    g_assert_cmpuint(answer.receipt.n_reused, >=, n_tokens - 1);
    g_assert_cmpuint(answer.receipt.n_recomputed, <=, 1);
    wait_for("one session", has_n_sessions, GUINT_TO_POINTER(1));
    g_free(answer.text);

    say("What is my name?", 4);
    wait_for("the reply", is_idle, NULL);
    g_assert_cmpuint(receipt()->n_reused, >=, n_tokens - 1);
    {
        g_autofree char *reply = dup_reply();

        g_assert_nonnull(strstr(reply, "Oda"));
    }
    close_window();
}

static void max_sessions_cb(guint *max)
{
    const qe_snapshot *snapshot = quire_engine_client_get_snapshot(client());

    *max = MAX(*max, snapshot->n_sessions);
}

static gboolean is_two(gpointer n)
{
    return *(guint *)n >= 2;
}

/* The model is asked once, after the first reply; a title of the user's is not touched; a turn comes first. */
static void test_title(void)
{
    guint max = 0;
    gulong id;

    g_settings_set_boolean(quire_settings_get_default(), "auto-title", TRUE);
    open_window(900, 600);
    id = g_signal_connect_swapped(client(), "snapshot-changed", G_CALLBACK(max_sessions_cb), &max);
    say("My name is Oda.", 2);
    wait_for("the fork", is_two, &max);
    wait_for("one session", has_n_sessions, GUINT_TO_POINTER(1));
    g_assert_true(is_idle(NULL));
    wait_ms(100);
    g_assert_cmpint(stored()->title_source, >=, QUIRE_TITLE_WORDS);
    g_assert_cmpstr(stored()->title, !=, "");
    max = 0;
    say("What is my name?", 4);
    wait_for("the reply", is_idle, NULL);
    wait_ms(300);
    g_assert_cmpuint(max, ==, 1);

    g_assert_true(quire_conversation_set_title(conversation(), "Mine", QUIRE_TITLE_USER));
    g_assert_false(quire_conversation_set_title(conversation(), "The model's", QUIRE_TITLE_MODEL));
    g_assert_cmpstr(stored()->title, ==, "Mine");

    /* The next turn does not wait for a title, and the tab may go at any time. */
    key("ctrl+t");
    wait_for("an empty chat", has_n_messages, GUINT_TO_POINTER(0));
    max = 0;
    say("Tell me a story.", 2);
    wait_for("the reply", is_idle, NULL);
    say("Another one.", 4);
    wait_for("the reply", is_idle, NULL);
    g_assert_cmpint(stored()->title_source, >=, QUIRE_TITLE_WORDS);

    /* In a mode that keeps nothing a title would cost a whole turn: none is asked for. */
    close_window();
    open_window(900, 600);
    g_assert_true(quire_conversation_set_cache(conversation(), QUIRE_CACHE_REBUILD, NULL));
    max = 0;
    say("My name is Oda.", 2);
    wait_for("the reply", is_idle, NULL);
    wait_ms(300);
    g_assert_cmpuint(max, ==, 1);
    g_assert_cmpint(stored()->title_source, ==, QUIRE_TITLE_WORDS);
    g_signal_handler_disconnect(client(), id);
    close_window();
    g_settings_set_boolean(quire_settings_get_default(), "auto-title", FALSE);
}

/* ---- The context ---- */

static QuireComposer *composer(void)
{
    return quire_chat_view_get_composer(quire_window_get_chat(window));
}

static gboolean room_is_read(gpointer data)
{
    GtkWidget *w = find_window(QUIRE_TYPE_ROOM_WINDOW);

    return w != NULL && find(w, ADW_TYPE_ACTION_ROW) != NULL;
}

static void click_in_room(const char *label)
{
    GtkWidget *button;

    g_assert_true(
        gtk_widget_activate_action(GTK_WIDGET(quire_window_get_chat(window)), "chat.make-room", NULL));
    wait_for("the choices", room_is_read, NULL);
    wait_ms(300);
    screenshot(label[1] == 'L' ? "chat-3-room.png" : "chat-4-room.png");
    button = find_button(find_window(QUIRE_TYPE_ROOM_WINDOW), label);
    g_assert_nonnull(button);
    g_signal_emit_by_name(button, "clicked");
    wait_for("no choices", has_no_window_of, GSIZE_TO_POINTER(QUIRE_TYPE_ROOM_WINDOW));
}

static gboolean memory_is(gpointer mib)
{
    return quire_engine_client_get_snapshot(client())->tiers[QE_TIER_HOST].bytes_max ==
           (guint64)GPOINTER_TO_UINT(mib) << 20;
}

static gboolean memory_is_over(gpointer mib)
{
    return quire_engine_client_get_snapshot(client())->tiers[QE_TIER_HOST].bytes_max >
           (guint64)GPOINTER_TO_UINT(mib) << 20;
}

static const char *ring_text(void)
{
    return quire_context_ring_get_text(quire_composer_get_ring(composer()));
}

static gboolean ring_says(gpointer text)
{
    return strcmp(ring_text(), text) == 0;
}

static gboolean ring_ends_with(gpointer text)
{
    return g_str_has_suffix(ring_text(), text);
}

static char *dup_words(guint n)
{
    GString *text = g_string_new("Please remember:");

    for (guint i = 0; i < n; i++)
        g_string_append_printf(text, " number %u,", i % 10);
    return g_string_free(text, FALSE);
}

static void set_draft(guint n_words)
{
    g_autofree char *text = dup_words(n_words);

    gtk_text_buffer_set_text(draft(), text, -1);
}

static gboolean is_another(gpointer id)
{
    return strcmp(stored()->id, id) != 0 && quire_conversation_is_loaded(conversation());
}

/* Memory for 1,024 tokens: the ring warns, a draft that is too long is not sent, and each of the three ways makes room. */
static void test_room(void)
{
    g_autofree char *id = NULL;
    guint n_before;

    open_window(1000, 760);
    quire_engine_client_set_cache(client(), 4 << 20);
    wait_for("little memory", memory_is, GUINT_TO_POINTER(4));
    wait_for("the limit", ring_ends_with, "/ 1.0K");
    set_draft(100);
    wait_for("the count", ring_ends_with, "/ 1.0K");
    g_assert_true(quire_composer_send(composer()));
    wait_for("the message", has_n_messages, GUINT_TO_POINTER(2));
    wait_for("the reply", is_idle, NULL);
    say("Tell me a story.", 4);
    wait_for("the reply", is_idle, NULL);
    n_before = receipt()->n_prompt;
    wait_ms(300);
    screenshot("chat-1-ring.png");
    set_draft(120);
    wait_for("a full ring", ring_says, "100 % full");
    g_assert_false(quire_composer_send(composer()));
    g_assert_true(has_n_messages(GUINT_TO_POINTER(4)));
    wait_ms(200);
    screenshot("chat-2-too-long.png");

    click_in_room("_Leave Out");
    g_assert_cmpuint(quire_conversation_get_left_out(conversation()), ==, 2);
    wait_ms(300);
    screenshot("chat-5-left-out.png");
    gtk_text_buffer_set_text(draft(), "What is my name?", -1);
    g_assert_true(quire_composer_send(composer()));
    wait_for("the message", has_n_messages, GUINT_TO_POINTER(6));
    wait_for("the reply", is_idle, NULL);
    g_assert_cmpuint(receipt()->n_prompt, <, n_before);
    g_assert_cmpuint(receipt()->n_prompt, >, 20);
    /* It is kept, and can be taken back. */
    g_assert_nonnull(stored()->sampling);
    g_assert_true(
        gtk_widget_activate_action(GTK_WIDGET(quire_window_get_chat(window)), "chat.take-in", NULL));
    g_assert_cmpuint(quire_conversation_get_left_out(conversation()), ==, 0);
    g_assert_null(stored()->sampling);
    say("And now?", 8);
    wait_for("the reply", is_idle, NULL);
    g_assert_cmpuint(receipt()->n_prompt, >, n_before);

    id = g_strdup(stored()->id);
    set_draft(90);
    wait_for("a full ring", ring_says, "100 % full");
    click_in_room("_Sum Up");
    wait_for("another chat", is_another, id);
    /* The first turn came along as a summary, the others as they were, and the draft waits. */
    wait_for("its messages", has_n_messages, GUINT_TO_POINTER(6));
    g_assert_nonnull(
        strstr(quire_conversation_get_system(conversation()), "Summary of the conversation so far:\n"));
    {
        g_autofree char *text = dup_words(90);

        g_assert_true(draft_is(text));
    }
    wait_ms(400);
    screenshot("chat-6-summary.png");
    gtk_text_buffer_set_text(draft(), "Hello", -1);
    g_assert_true(quire_composer_send(composer()));
    wait_for("the message", has_n_messages, GUINT_TO_POINTER(8));
    wait_for("the reply", is_idle, NULL);
    g_assert_cmpuint(receipt()->n_generated, >, 0);

    set_draft(220);
    wait_for("a full ring", ring_says, "100 % full");
    click_in_room("_Raise");
    wait_for("more memory", memory_is_over, GUINT_TO_POINTER(31));
    wait_for("room", ring_ends_with, "/ 8.0K");
    g_assert_true(quire_composer_send(composer()));
    wait_for("the message", has_n_messages, GUINT_TO_POINTER(10));
    wait_for("the reply", is_idle, NULL);
    g_settings_reset(quire_settings_get_default(), "cache-mib");
    quire_engine_client_set_cache(client(), 0);
    close_window();
}

/* ---- Settings of a chat ---- */

static GtkWidget *settings_window(void)
{
    return find_window(QUIRE_TYPE_CHAT_SETTINGS_WINDOW);
}

static gboolean has_settings(gpointer wanted)
{
    return (settings_window() != NULL) == GPOINTER_TO_INT(wanted);
}

static gboolean has_cost(gpointer data)
{
    return quire_chat_settings_window_get_cost(QUIRE_CHAT_SETTINGS_WINDOW(settings_window()))[0] != '\0';
}

static void click(const char *label)
{
    GtkWidget *button = find_button(settings_window(), label);

    g_assert_nonnull(button);
    g_assert_true(gtk_widget_is_sensitive(button));
    g_signal_emit_by_name(button, "clicked");
}

static void set_system(const char *text)
{
    gtk_text_buffer_set_text(
        gtk_text_view_get_buffer(GTK_TEXT_VIEW(find(settings_window(), GTK_TYPE_TEXT_VIEW))), text, -1);
}

static GPtrArray *presets(void)
{
    return quire_history_get_presets(quire_application_get_history(application));
}

/* System prompt and sampling act from the next turn on, what they cost is said before, and a preset keeps both. */
static void test_chat_settings(void)
{
    GtkWidget *w;
    guint n_before;

    open_window(900, 760);
    say("My name is Oda.", 2);
    wait_for("the reply", is_idle, NULL);
    n_before = receipt()->n_prompt + receipt()->n_generated;
    key("alt+Return");
    wait_for("the settings", has_settings, GINT_TO_POINTER(TRUE));
    wait_ms(400);
    w = settings_window();
    g_assert_cmpstr(quire_chat_settings_window_get_cost(QUIRE_CHAT_SETTINGS_WINDOW(w)), ==, "");
    set_system("Answer in one short sentence.");
    wait_for("the cost", has_cost, NULL);
    adw_expander_row_set_enable_expansion(ADW_EXPANDER_ROW(find_row(w, "Values for This Chat")), TRUE);
    gtk_spin_button_set_value(GTK_SPIN_BUTTON(find(find_row(w, "Longest reply"), GTK_TYPE_SPIN_BUTTON)), 3);
    gtk_spin_button_set_value(GTK_SPIN_BUTTON(find(find_row(w, "Temperature"), GTK_TYPE_SPIN_BUTTON)), 0);
    wait_ms(500);
    screenshot("chat-7-settings.png");
    /* As a preset, renamed, and the default. */
    gtk_editable_set_text(GTK_EDITABLE(find_row(w, "Name")), "Brief");
    click("_Save");
    g_assert_cmpuint(presets()->len, ==, 1);
    gtk_editable_set_text(GTK_EDITABLE(find_row(w, "Name")), "Short");
    click("_Rename");
    g_assert_null(quire_presets_find(presets(), "Brief"));
    g_assert_nonnull(quire_presets_find(presets(), "Short"));
    gtk_check_button_set_active(GTK_CHECK_BUTTON(find(w, GTK_TYPE_CHECK_BUTTON)), TRUE);
    g_assert_nonnull(quire_presets_get_default(presets()));
    /* Nothing is applied yet. */
    g_assert_null(quire_conversation_get_system(conversation()));
    click("_Apply");
    wait_for("no settings", has_settings, GINT_TO_POINTER(FALSE));
    g_assert_cmpstr(quire_conversation_get_system(conversation()), ==, "Answer in one short sentence.");

    say("What is my name?", 4);
    wait_for("the reply", is_idle, NULL);
    g_assert_cmpuint(receipt()->n_generated, ==, 3);
    g_assert_cmpint(
        quire_message_get_state(quire_conversation_get_last_reply(conversation())), ==, QUIRE_REPLY_LENGTH);
    /* The prompt comes first: all was read again. */
    g_assert_cmpuint(receipt()->n_new, >, n_before);
    g_assert_cmpint(receipt()->mismatch, ==, QE_MISMATCH_EDITED);
    {
        g_autofree char *why = quire_format_why(quire_conversation_get_last_reply(conversation()));

        g_assert_true(g_str_has_prefix(why, "the system prompt was changed, from token "));
    }
    wait_ms(300);
    screenshot("chat-8-system.png");

    key("ctrl+t");
    wait_for("an empty chat", has_n_messages, GUINT_TO_POINTER(0));
    g_assert_cmpstr(quire_conversation_get_system(conversation()), ==, "Answer in one short sentence.");
    key("alt+Return");
    wait_for("the settings", has_settings, GINT_TO_POINTER(TRUE));
    wait_ms(200);
    w = settings_window();
    adw_combo_row_set_selected(ADW_COMBO_ROW(find_row(w, "Take From")), 1);
    click("_Delete");
    g_assert_cmpuint(presets()->len, ==, 0);
    key("Escape");
    wait_for("no settings", has_settings, GINT_TO_POINTER(FALSE));
    close_window();
}

/* ---- Files ---- */

static gboolean has_n_files(gpointer n)
{
    return quire_composer_get_attachments(composer())->len == GPOINTER_TO_UINT(n);
}

static void refused_cb(char **why, const char *words)
{
    g_free(*why);
    *why = g_strdup(words);
}

static gboolean is_refused(gpointer why)
{
    return *(char **)why != NULL;
}

static GFile *write_file(const char *dir, const char *name, const char *data, gsize n_bytes)
{
    g_autofree char *path = g_build_filename(dir, name, NULL);

    g_assert_true(g_file_set_contents(path, data, (gssize)n_bytes, NULL));
    return g_file_new_for_path(path);
}

static QuireChips *chips_of(GtkWidget *root)
{
    return QUIRE_CHIPS(find(root, QUIRE_TYPE_CHIPS));
}

static gboolean stored_draft_has(gpointer text)
{
    return stored()->draft != NULL && strstr(stored()->draft, text) != NULL;
}

/* A file becomes a chip, is kept with the draft, goes with the message, and comes back as a chip. */
static void test_attach(void)
{
    g_autofree char *dir = g_dir_make_tmp("quire-attach-XXXXXX", NULL), *why = NULL, *id = NULL;
    g_autofree char *big = g_strnfill(QUIRE_ATTACHMENT_BYTES_MAX + 1, 'a');
    g_autoptr(GFile) notes = write_file(dir, "notes.txt", "My name is Oda.\n", 16);
    g_autoptr(GFile) binary = write_file(dir, "photo.png", "\x89PNG\0\0", 6);
    g_autoptr(GFile) large = write_file(dir, "large.log", big, QUIRE_ATTACHMENT_BYTES_MAX + 1);
    gulong handler;
    guint n_prompt;

    open_window(900, 700);
    handler = g_signal_connect_swapped(composer(), "refused", G_CALLBACK(refused_cb), &why);
    quire_composer_attach(composer(), binary);
    wait_for("a refusal", is_refused, &why);
    g_assert_nonnull(strstr(why, "photo.png"));
    wait_ms(300);
    screenshot("chat-9-refused.png");
    g_clear_pointer(&why, g_free);
    quire_composer_attach(composer(), large);
    wait_for("a refusal", is_refused, &why);
    g_assert_nonnull(strstr(why, "at most 4.0"));
    g_signal_handler_disconnect(composer(), handler);

    {
        g_autoptr(GFile) other = write_file(dir, "other.txt", "Nothing to see.\n", 16);
        GSList list = {.data = notes};
        GdkFileList *files = gdk_file_list_new_from_list(&list);

        quire_composer_attach_list(composer(), files);
        g_boxed_free(GDK_TYPE_FILE_LIST, files);
        wait_for("a chip", has_n_files, GUINT_TO_POINTER(1));
        quire_composer_attach(composer(), other);
        wait_for("two chips", has_n_files, GUINT_TO_POINTER(2));
        wait_ms(300);
        screenshot("chat-10-chips.png");
        g_signal_emit_by_name(chips_of(GTK_WIDGET(composer())), "removed", 1);
        wait_for("one chip", has_n_files, GUINT_TO_POINTER(1));
        g_file_delete(other, NULL, NULL);
        /* Copied files are pasted as files. */
        list.data = notes;
        files = gdk_file_list_new_from_list(&list);
        gdk_clipboard_set(gtk_widget_get_clipboard(GTK_WIDGET(window)), GDK_TYPE_FILE_LIST, files);
        g_boxed_free(GDK_TYPE_FILE_LIST, files);
        key("ctrl+v");
        wait_for("the pasted file", has_n_files, GUINT_TO_POINTER(2));
        g_signal_emit_by_name(chips_of(GTK_WIDGET(composer())), "removed", 1);
        wait_for("one chip", has_n_files, GUINT_TO_POINTER(1));
    }
    g_assert_cmpuint(
        ((QuireAttachment *)g_ptr_array_index(quire_composer_get_attachments(composer()), 0))->n_tokens, >,
        3);
    type("What is my name?");
    wait_for("the typed text", draft_is, "What is my name?");
    wait_for("the saved draft", stored_draft_has, "My name is Oda.");
    key("Return");
    wait_for("the message", has_n_messages, GUINT_TO_POINTER(2));
    wait_for("no chip", has_n_files, GUINT_TO_POINTER(0));
    wait_for("the reply", is_idle, NULL);
    n_prompt = receipt()->n_prompt;
    g_assert_cmpuint(n_prompt, >, 30);
    g_assert_cmpstr(stored()->title, ==, "What is my name?");
    g_assert_cmpuint(quire_chips_get_n(chips_of(gtk_widget_get_prev_sibling(last_row()))), ==, 1);
    wait_ms(300);
    screenshot("chat-11-sent.png");
    id = g_strdup(stored()->id);
    close_window();

    open_window(900, 700);
    g_assert_true(gtk_widget_activate_action(GTK_WIDGET(window), "win.chat-open", "s", id));
    wait_for("the messages", has_n_messages, GUINT_TO_POINTER(2));
    g_assert_cmpuint(quire_chips_get_n(chips_of(gtk_widget_get_prev_sibling(last_row()))), ==, 1);
    close_window();
    g_file_delete(notes, NULL, NULL);
    g_file_delete(binary, NULL, NULL);
    g_file_delete(large, NULL, NULL);
    g_rmdir(dir);
}

/* ---- Formulas ---- */

static const char formulas[] =
    "The roots of $ax^2 + bx + c = 0$ are\n\n\\[ x_{1,2} = \\frac{-b \\pm \\sqrt{b^2 - 4ac}}{2a} \\]\n\nand "
    "for "
    "\\(n \\in \\mathbb{N}\\) we have\n\n$$\\sum_{i=1}^{n} i = \\frac{n(n+1)}{2}, \\qquad \\int_0^\\infty "
    "e^{-x^2} dx = "
    "\\frac{\\sqrt{\\pi}}{2}$$\n\nAttention: \\(\\text{softmax}\\left(\\frac{QK^T}{\\sqrt{d_k}}\\right)V\\). "
    "It costs $5 to $10, "
    "`$x$` is code, and what is not known stays: $\\unknown{x}$.\n\n$$A = \\begin{pmatrix} 1 & 2 \\\\ 3 & 4 "
    "\\end{pmatrix}$$\n\n- [x] nested\n  - list with $\\alpha_1$\n    1. deeper\n\n| $n$ | $2^n$ "
    "|\n|---|---:|\n| 10 | "
    "1024 |\n";

/* However much of it has streamed, the markup is well formed; formulas that stand alone are blocks of their own. */
static void test_formulas(void)
{
    g_autoptr(QuireMessage) reply = quire_message_new(QE_ROLE_ASSISTANT, "");
    qe_update done = {.state = QE_REQUEST_DONE,
        .finish = QE_FINISH_STOP,
        .text = (char *)formulas,
        .n_text = sizeof formulas - 1};
    GtkWidget *shown = gtk_window_new(), *row = quire_message_row_new(reply);
    guint n_math = 0;

    for (gsize n = 0; n < sizeof formulas; n++) {
        g_autoptr(GPtrArray) blocks = quire_markdown_parse(formulas, n);

        n_math = 0;
        for (guint i = 0; i < blocks->len; i++) {
            const QuireBlock *block = g_ptr_array_index(blocks, i);
            g_autoptr(GError) error = NULL;

            n_math += block->kind == QUIRE_BLOCK_MATH;
            if (block->markup != NULL)
                pango_parse_markup(block->markup, -1, 0, NULL, NULL, NULL, &error);
            g_assert_no_error(error);
        }
    }
    g_assert_cmpuint(n_math, ==, 3);
    gtk_widget_add_css_class(row, "quire-transcript");
    gtk_window_set_child(GTK_WINDOW(shown), row);
    gtk_window_set_default_size(GTK_WINDOW(shown), 620, 640);
    gtk_window_present(GTK_WINDOW(shown));
    quire_message_apply(reply, &done);
    wait_ms(400);
    screenshot("chat-12-formulas.png");
    gtk_window_destroy(GTK_WINDOW(shown));
}

/* ---- Reading ---- */

static guint count_sentences(const char *text)
{
    gsize n = strlen(text), from = 0;
    guint count = 0;

    for (gsize i = 1; i <= n; i++) {
        gsize end = quire_sentences_end(text, i, from, i == n);

        count += end > from;
        from = end;
    }
    return count;
}

/* A reply is said as it is written, no sentence twice; and how long its first word took to the screen is known. */
static void test_reading(void)
{
    g_autofree char *reply = NULL;
    QuireAnnouncer *announcer;
    const QuireReply *figures;
    GtkWidget *status;
    guint n;

    open_window(900, 760);
    announcer = quire_chat_view_get_announcer(quire_window_get_chat(window));
    say("Tell me a story.", 2);
    wait_for("the reply", is_idle, NULL);
    wait_ms(200);
    reply = dup_reply();
    n = quire_announcer_get_n(announcer);
    g_assert_cmpuint(n, >=, 2);
    g_assert_cmpuint(n, <=, count_sentences(reply));
    g_assert_cmpstr(quire_announcer_get_last(announcer), !=, "");
    g_assert_nonnull(strstr(reply, quire_announcer_get_last(announcer)));
    figures = quire_message_get_reply(quire_conversation_get_last_reply(conversation()));
    g_assert_cmpfloat(figures->saved_ms, >, 0);
    g_assert_cmpfloat(figures->shown_ms, >, figures->saved_ms + figures->receipt.first_token_ms);
    status = find(last_row(), QUIRE_TYPE_STATUS_LINE);
    g_signal_emit_by_name(find(status, GTK_TYPE_BUTTON), "clicked");
    wait_ms(500);
    screenshot("chat-13-receipt.png");
    close_window();
}

/* ---- Finding, keys ---- */

static QuireFindBar *find_bar(void)
{
    return quire_chat_view_get_find_bar(quire_window_get_chat(window));
}

static gboolean find_says(gpointer text)
{
    return strcmp(quire_find_bar_get_text(find_bar()), text) == 0;
}

static gboolean find_is_open(gpointer wanted)
{
    return quire_find_bar_is_open(find_bar()) == GPOINTER_TO_INT(wanted);
}

/* Ctrl+F finds what is shown, in any case; Escape closes the bar first, and stops a reply only then. */
static void test_find(void)
{
    open_window(1200, 800);
    say("My name is Oda.", 2);
    wait_for("the reply", is_idle, NULL);
    say("Tell me a story.", 4);
    wait_for("the reply", is_idle, NULL);
    key("ctrl+f");
    wait_for("the bar", find_is_open, GINT_TO_POINTER(TRUE));
    type("oDA");
    wait_for("the places", find_says, "1 of 2");
    key("Return");
    wait_for("the next", find_says, "2 of 2");
    wait_ms(300);
    screenshot("chat-14-find.png");
    key("ctrl+g");
    wait_for("round", find_says, "1 of 2");
    key("shift+ctrl+g");
    wait_for("back", find_says, "2 of 2");
    type("xyz");
    wait_for("nothing", find_says, "Not found");
    key("Escape");
    wait_for("no bar", find_is_open, GINT_TO_POINTER(FALSE));
    wait_for("the composer", focus_is_in, composer());

    key("ctrl+f");
    wait_for("the bar", find_is_open, GINT_TO_POINTER(TRUE));
    key("ctrl+l");
    wait_for("the composer", focus_is_in, composer());
    say("Tell me a story.", 6);
    key("Escape");
    wait_for("no bar", find_is_open, GINT_TO_POINTER(FALSE));
    if (!is_idle(NULL)) {
        key("Escape");
        wait_for("the end", is_idle, NULL);
    }
    /* Both the bar's Escape and a reply's: it was not the first one that stopped it. */
    g_assert_cmpint(
        quire_message_get_state(quire_conversation_get_last_reply(conversation())), >=, QUIRE_REPLY_DONE);

    key("F6");
    wait_for("the list", focus_is_in, find(GTK_WIDGET(window), QUIRE_TYPE_SIDEBAR));
    key("F6");
    wait_for("the messages", focus_is_in, quire_chat_view_get_transcript(quire_window_get_chat(window)));
    key("F6");
    wait_for("the composer", focus_is_in, composer());
    key("shift+F6");
    wait_for("the messages", focus_is_in, quire_chat_view_get_transcript(quire_window_get_chat(window)));
    close_window();
}

static gboolean title_is(gpointer title)
{
    return g_strcmp0(stored()->title, title) == 0;
}

static gboolean composes(gpointer wanted)
{
    return fake_im_is_composing() == GPOINTER_TO_INT(wanted);
}

static gboolean has_editor(gpointer data)
{
    return find(gtk_widget_get_prev_sibling(last_row()), GTK_TYPE_TEXT_VIEW) != NULL;
}

/* Where Enter does something, it is the input method's while that holds text; the next one acts, once. */
static void test_input_methods(void)
{
    g_autoptr(QuireMessage) user = NULL;
    g_autofree char *text = NULL;
    GtkWidget *search, *view;

    open_window(1200, 800);
    say("My name is Oda.", 2);
    wait_for("the reply", is_idle, NULL);
    user = g_list_model_get_item(G_LIST_MODEL(conversation()), 0);

    /* Rename. */
    g_assert_true(gtk_widget_activate_action(GTK_WIDGET(window), "win.chat-rename", "s", stored()->id));
    wait_ms(300);
    key("ctrl+a");
    key("BackSpace");
    fake_im_set_active(TRUE);
    type("ab");
    wait_for("preedit", composes, GINT_TO_POINTER(TRUE));
    key("Return");
    wait_for("no preedit", composes, GINT_TO_POINTER(FALSE));
    wait_ms(100);
    g_assert_cmpstr(stored()->title, ==, "My name is Oda.");
    key("Return");
    wait_for("the title", title_is, "AB");

    /* Search in all chats. */
    key("ctrl+t");
    wait_for("an empty chat", has_n_messages, GUINT_TO_POINTER(0));
    key("ctrl+shift+f");
    search = find(find(GTK_WIDGET(window), QUIRE_TYPE_SIDEBAR), GTK_TYPE_SEARCH_ENTRY);
    wait_for("the search", focus_is_in, search);
    type("ab");
    wait_for("preedit", composes, GINT_TO_POINTER(TRUE));
    key("Return");
    wait_for("no preedit", composes, GINT_TO_POINTER(FALSE));
    g_assert_cmpstr(gtk_editable_get_text(GTK_EDITABLE(search)), ==, "AB");
    wait_ms(300);
    g_assert_true(has_n_messages(GUINT_TO_POINTER(0)));
    key("Return");
    wait_for("the chat", has_n_messages, GUINT_TO_POINTER(2));
    gtk_editable_set_text(GTK_EDITABLE(search), "");

    /* Find in the chat. */
    key("ctrl+f");
    wait_for("the bar", find_is_open, GINT_TO_POINTER(TRUE));
    type("oda");
    wait_for("preedit", composes, GINT_TO_POINTER(TRUE));
    key("Return");
    wait_for("the places", find_says, "1 of 2");
    key("Return");
    wait_for("the next", find_says, "2 of 2");
    key("Escape");
    wait_for("no bar", find_is_open, GINT_TO_POINTER(FALSE));

    /* Edit: Enter is a new line there, the input method's first. */
    g_assert_true(gtk_widget_activate_action(
        GTK_WIDGET(quire_window_get_chat(window)), "chat.edit", "u", quire_message_get_seq(user)));
    wait_for("the editor", has_editor, NULL);
    view = find(gtk_widget_get_prev_sibling(last_row()), GTK_TYPE_TEXT_VIEW);
    wait_for("its focus", focus_is_in, view);
    key("ctrl+a");
    key("BackSpace");
    type("hi");
    wait_for("preedit", composes, GINT_TO_POINTER(TRUE));
    key("Return");
    wait_for("no preedit", composes, GINT_TO_POINTER(FALSE));
    g_object_get(gtk_text_view_get_buffer(GTK_TEXT_VIEW(view)), "text", &text, NULL);
    g_assert_cmpstr(text, ==, "HI");
    g_assert_true(is_idle(NULL));
    fake_im_set_active(FALSE);
    key("Escape");
    wait_ms(200);
    g_assert_true(has_n_messages(GUINT_TO_POINTER(2)));
    close_window();
}

/* ---- Narrow ---- */

static void check_narrow(GtkWidget *content, const char *what)
{
    int minimum;

    gtk_widget_measure(content, GTK_ORIENTATION_HORIZONTAL, -1, &minimum, NULL, NULL, NULL);
    if (minimum > 360)
        g_error("%s needs %d pixels", what, minimum);
}

static GtkWidget *main_content(void)
{
    return adw_bin_get_child(ADW_BIN(adw_application_window_get_content(ADW_APPLICATION_WINDOW(window))));
}

static gboolean flap_is_open(gpointer wanted)
{
    GtkWidget *panel = find(GTK_WIDGET(window), QUIRE_TYPE_CACHE_PANEL);

    return adw_flap_get_reveal_flap(ADW_FLAP(gtk_widget_get_ancestor(panel, ADW_TYPE_FLAP))) ==
           GPOINTER_TO_INT(wanted);
}

/* On a window as wide as a phone nothing is cut off: files, a draft that is too long, the find bar, and the windows. */
static void test_narrow(void)
{
    g_autofree char *dir = g_dir_make_tmp("quire-narrow-XXXXXX", NULL);
    g_autoptr(GFile) file =
        write_file(dir, "a-file-with-a-rather-long-name-2026.txt", "My name is Oda.\n", 16);
    GtkWidget *w;

    open_window(360, 640);
    quire_engine_client_set_cache(client(), 4 << 20);
    wait_for("little memory", memory_is, GUINT_TO_POINTER(4));
    say("My name is Oda.", 2);
    wait_for("the reply", is_idle, NULL);
    quire_composer_attach(composer(), file);
    wait_for("a chip", has_n_files, GUINT_TO_POINTER(1));
    set_draft(190);
    wait_ms(600);
    check_narrow(main_content(), "80 percent");
    screenshot("chat-20-narrow-80.png");
    set_draft(215);
    wait_ms(600);
    check_narrow(main_content(), "92 percent");
    screenshot("chat-21-narrow-92.png");
    set_draft(260);
    wait_for("a full ring", ring_says, "100 % full");
    key("ctrl+f");
    wait_for("the bar", find_is_open, GINT_TO_POINTER(TRUE));
    wait_ms(400);
    check_narrow(main_content(), "too long");
    screenshot("chat-22-narrow-too-long.png");
    key("Escape");
    wait_for("no bar", find_is_open, GINT_TO_POINTER(FALSE));
    gtk_menu_button_popup(
        GTK_MENU_BUTTON(find(GTK_WIDGET(quire_composer_get_ring(composer())), GTK_TYPE_MENU_BUTTON)));
    wait_ms(500);
    screenshot("chat-23-narrow-context.png");
    key("Escape");
    wait_ms(300);

    /* What lies over the chat goes with an Escape, one at a time. */
    key("F12");
    wait_for("the panel", flap_is_open, GINT_TO_POINTER(TRUE));
    wait_ms(300);
    key("Escape");
    wait_for("no panel", flap_is_open, GINT_TO_POINTER(FALSE));

    g_assert_true(
        gtk_widget_activate_action(GTK_WIDGET(quire_window_get_chat(window)), "chat.make-room", NULL));
    wait_for("the choices", room_is_read, NULL);
    w = find_window(QUIRE_TYPE_ROOM_WINDOW);
    gtk_window_set_default_size(GTK_WINDOW(w), 360, 560);
    wait_ms(400);
    check_narrow(adw_window_get_content(ADW_WINDOW(w)), "the choices");
    screenshot("chat-24-narrow-room.png");
    gtk_window_close(GTK_WINDOW(w));
    wait_for("no choices", has_no_window_of, GSIZE_TO_POINTER(QUIRE_TYPE_ROOM_WINDOW));

    g_assert_true(
        gtk_widget_activate_action(GTK_WIDGET(quire_window_get_chat(window)), "chat.settings", NULL));
    wait_for("the settings", has_settings, GINT_TO_POINTER(TRUE));
    w = settings_window();
    gtk_window_set_default_size(GTK_WINDOW(w), 360, 620);
    adw_expander_row_set_enable_expansion(ADW_EXPANDER_ROW(find_row(w, "Values for This Chat")), TRUE);
    wait_ms(400);
    check_narrow(adw_window_get_content(ADW_WINDOW(w)), "the settings");
    screenshot("chat-25-narrow-settings.png");
    gtk_window_close(GTK_WINDOW(w));
    wait_for("no settings", has_settings, GINT_TO_POINTER(FALSE));
    quire_engine_client_set_cache(client(), 0);
    close_window();
    g_file_delete(file, NULL, NULL);
    g_rmdir(dir);
}

static void add_tests(void)
{
    g_test_add_func("/app/chat/narrow", test_narrow);
    g_test_add_func("/app/chat/find", test_find);
    g_test_add_func("/app/chat/input-methods", test_input_methods);
    g_test_add_func("/app/chat/reading", test_reading);
    g_test_add_func("/app/chat/formulas", test_formulas);
    g_test_add_func("/app/chat/attach", test_attach);
    g_test_add_func("/app/chat/settings", test_chat_settings);
    g_test_add_func("/app/chat/room", test_room);
    g_test_add_func("/app/chat/aside", test_aside);
    g_test_add_func("/app/chat/title", test_title);
}

int main(int argc, char **argv)
{
    return ui_main(argc, argv, NULL, add_tests);
}
