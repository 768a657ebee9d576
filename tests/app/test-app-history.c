/* test-app-history.c: conversations that stay: the real application, with its history on disk. See ui-harness.h. */
#include <string.h>
#include <unistd.h>

#include "app/quire-engine-bar.h"
#include "app/quire-message-row.h"
#include "app/quire-model-bar.h"
#include "app/quire-paths.h"
#include "app/quire-settings.h"
#include "app/quire-sidebar.h"
#include "tests/app/ui-harness.h"

static QuireHistory *history(void)
{
    return quire_application_get_history(application);
}

static const char *front_id(void)
{
    return quire_history_item_get(quire_conversation_get_item(conversation()))->id;
}

static void act(const char *action, const char *id)
{
    g_assert_true(gtk_widget_activate_action(GTK_WIDGET(window), action, "s", id));
}

static QuireSidebar *sidebar(void)
{
    return QUIRE_SIDEBAR(find(GTK_WIDGET(window), QUIRE_TYPE_SIDEBAR));
}

static gboolean sidebar_has(const char *title)
{
    g_auto(GStrv) rows = quire_sidebar_dup_rows(sidebar());

    return g_strv_contains((const char *const *)rows, title);
}

/* What is shown, a line a message. */
static char *dup_transcript(void)
{
    GString *out = g_string_new(NULL);

    for (guint i = 0; i < g_list_model_get_n_items(G_LIST_MODEL(conversation())); i++) {
        g_autoptr(QuireMessage) m = g_list_model_get_item(G_LIST_MODEL(conversation()), i);
        gsize n_bytes;
        const char *text = quire_message_get_text(m, &n_bytes);

        g_string_append_printf(out, "%d %d %.*s\n", (int)quire_message_get_role(m),
            (int)quire_message_get_state(m), (int)n_bytes, text);
    }
    return g_string_free(out, FALSE);
}

static gboolean is_loaded(gpointer data)
{
    return quire_window_get_chat(window) != NULL && quire_conversation_is_loaded(conversation());
}

static gboolean has_n_tabs(gpointer n)
{
    return adw_tab_view_get_n_pages(quire_window_get_tab_view(window)) == GPOINTER_TO_INT(n);
}

static void counted_cb(GObject *source, GAsyncResult *result, gpointer data)
{
    g_autoptr(GPtrArray) messages = quire_history_load_finish(result, NULL);

    *(guint *)data = messages != NULL ? messages->len : 0;
}

static gboolean is_not_unset(gpointer data)
{
    return *(guint *)data != G_MAXUINT;
}

/* Messages of @id that are in the database. */
static guint n_stored(const char *id)
{
    guint n = G_MAXUINT;

    quire_history_load_async(history(), id, NULL, counted_cb, &n);
    wait_for("the stored messages", is_not_unset, &n);
    return n;
}

/* What a second process would find: the file is opened anew, beside the application. */
static GPtrArray *read_file(const char *id)
{
    g_autofree char *path = quire_dup_history_path();
    g_auto(QuireHistoryOpening) opening = {0};
    g_autoptr(QuireHistoryDb) db = quire_history_db_open(path, &opening, NULL);

    g_assert_nonnull(db);
    return quire_history_db_load(db, id, NULL);
}

/* ---- Tests ---- */

/* Sent, closed, opened from the sidebar: the same transcript, its figures too; and the next turn goes on. */
static void test_keep(void)
{
    g_autofree char *before = NULL, *after = NULL, *id = NULL;
    guint n_prompt;

    open_window(1200, 800);
    g_assert_false(sidebar_has("My name is Oda."));
    say("My name is Oda.", 2);
    g_assert_true(sidebar_has("My name is Oda."));
    wait_for("the reply", is_idle, NULL);
    g_assert_cmpuint(n_stored(front_id()), ==, 2);
    say("What is my name?", 4);
    wait_for("the reply", is_idle, NULL);
    type("half a dr");
    wait_for("the draft", draft_is, (gpointer) "half a dr");
    before = dup_transcript();
    n_prompt = receipt()->n_prompt;
    id = g_strdup(front_id());
    close_window();

    {
        g_autoptr(GPtrArray) stored = read_file(id);

        g_assert_cmpuint(stored->len, ==, 4);
    }
    open_window(1200, 800);
    act("win.chat-open", id);
    wait_for("the messages", is_loaded, NULL);
    wait_for("all of them", has_n_messages, GUINT_TO_POINTER(4));
    /* The untouched new chat made room. */
    g_assert_true(has_n_tabs(GINT_TO_POINTER(1)));
    after = dup_transcript();
    g_assert_cmpstr(after, ==, before);
    g_assert_cmpuint(receipt()->n_prompt, ==, n_prompt);
    g_assert_true(draft_is("half a dr"));
    wait_ms(300);
    screenshot("history-1-kept.png");
    gtk_text_buffer_set_text(draft(), "", 0);
    say("And what is my name?", 6);
    wait_for("the reply", is_idle, NULL);
    {
        g_autofree char *reply = dup_reply();

        g_assert_nonnull(strstr(reply, "Oda"));
    }
    close_window();
}

static gboolean sidebar_lists(gpointer title)
{
    return sidebar_has(title);
}

static gboolean sidebar_lacks(gpointer title)
{
    return !sidebar_has(title);
}

/* Titles and texts, in any case; nothing found is said; Enter opens the first. */
static void test_search(void)
{
    GtkWidget *entry;

    open_window(1200, 800);
    say("Tell me a story.", 2);
    wait_for("the reply", is_idle, NULL);
    key("ctrl+t");
    wait_for("an empty chat", has_n_messages, GUINT_TO_POINTER(0));
    say("What is a KV cache?", 2);
    wait_for("the reply", is_idle, NULL);
    act("win.chat-rename", front_id());
    wait_ms(300);
    key("ctrl+a");
    type("Zebra");
    screenshot("history-2-rename.png");
    key("Return");
    wait_for("the new title", sidebar_lists, "Zebra");
    g_assert_cmpstr(quire_conversation_get_title(conversation()), ==, "Zebra");

    key("ctrl+shift+f");
    wait_ms(200);
    entry = find(GTK_WIDGET(sidebar()), GTK_TYPE_SEARCH_ENTRY);
    type("zebRA");
    wait_for("the one title", sidebar_lacks, "Tell me a story.");
    g_assert_true(sidebar_has("Zebra"));
    /* A word that only the message has. */
    gtk_editable_set_text(GTK_EDITABLE(entry), "kv CACHE");
    wait_for("the one text", sidebar_lists, "Zebra");
    wait_for("no other", sidebar_lacks, "Tell me a story.");
    gtk_editable_set_text(GTK_EDITABLE(entry), "quetzalcoatl");
    wait_for("nothing", sidebar_lacks, "Zebra");
    wait_ms(200);
    screenshot("history-3-no-hits.png");
    gtk_editable_set_text(GTK_EDITABLE(entry), "me a st");
    wait_for("the other", sidebar_lists, "Tell me a story.");
    wait_for("no other", sidebar_lacks, "Zebra");
    key("Return");
    wait_for("the chat in front", draft_is, "");
    g_assert_cmpstr(quire_conversation_get_title(conversation()), ==, "Tell me a story.");
    gtk_editable_set_text(GTK_EDITABLE(entry), "");
    wait_for("all", sidebar_lists, "Zebra");
    close_window();
}

/* Deleting frees the pages and lists no more; undo brings all back; what is erased is gone from the file. */
static void test_delete(void)
{
    g_autofree char *id = NULL, *before = NULL, *after = NULL;
    guint n_before;

    open_window(1200, 800);
    n_before = n_pages_used();
    say("My name is Per.", 2);
    wait_for("the reply", is_idle, NULL);
    id = g_strdup(front_id());
    before = dup_transcript();
    g_assert_true(sidebar_has("My name is Per."));
    act("win.chat-pin", id);
    {
        g_auto(GStrv) rows = quire_sidebar_dup_rows(sidebar());

        g_assert_cmpstr(rows[0], ==, "[Pinned]");
        g_assert_cmpstr(rows[1], ==, "My name is Per.");
    }
    act("win.chat-delete", id);
    g_assert_false(sidebar_has("My name is Per."));
    wait_for("freed pages", pages_are, GUINT_TO_POINTER(n_before));
    wait_ms(400);
    screenshot("history-4-deleted.png");
    g_assert_cmpuint(n_stored(id), ==, 2);
    quire_sidebar_set_trash(sidebar(), TRUE);
    g_assert_true(sidebar_has("My name is Per."));
    wait_ms(200);
    screenshot("history-5-trash.png");
    act("win.chat-restore", id);
    wait_for("the messages", has_n_messages, GUINT_TO_POINTER(2));
    after = dup_transcript();
    g_assert_cmpstr(after, ==, before);
    g_assert_true(sidebar_has("My name is Per."));

    act("win.chat-delete", id);
    act("win.chat-erase", id);
    g_assert_cmpuint(n_stored(id), ==, 0);
    quire_sidebar_set_trash(sidebar(), TRUE);
    g_assert_false(sidebar_has("My name is Per."));
    close_window();
}

static gboolean has_reply_to(gpointer text)
{
    g_autoptr(QuireMessage) user = g_list_model_get_item(G_LIST_MODEL(conversation()), 2);

    return strcmp(quire_message_get_text(user, NULL), text) == 0;
}

/* Edit and regenerate keep the old version, flipping shows it with what followed, and the cache serves what is shared. */
static void test_branches(void)
{
    g_autofree char *first = NULL, *again = NULL, *id = NULL;
    g_autoptr(QuireMessage) user = NULL;
    guint n, n_prompt;

    open_window(1200, 800);
    say("My name is Oda.", 2);
    wait_for("the reply", is_idle, NULL);
    say("What is my name?", 4);
    wait_for("the reply", is_idle, NULL);
    first = dup_transcript();
    id = g_strdup(front_id());
    n_prompt = receipt()->n_prompt;

    user = g_list_model_get_item(G_LIST_MODEL(conversation()), 2);
    g_assert_true(gtk_widget_activate_action(
        GTK_WIDGET(quire_window_get_chat(window)), "chat.edit", "u", quire_message_get_seq(user)));
    wait_ms(300);
    key("ctrl+a");
    type("Tell me a story.");
    screenshot("history-6-edit.png");
    key("alt+s");
    wait_for("the other version", has_reply_to, "Tell me a story.");
    wait_for("the reply", is_idle, NULL);
    g_assert_true(has_n_messages(GUINT_TO_POINTER(4)));
    g_assert_cmpuint(receipt()->n_reused, >, 0);
    g_assert_cmpuint(receipt()->n_new, <, n_prompt);
    g_clear_object(&user);
    user = g_list_model_get_item(G_LIST_MODEL(conversation()), 2);
    g_assert_cmpuint(quire_message_get_version(user, &n), ==, 2);
    g_assert_cmpuint(n, ==, 2);
    wait_ms(300);
    screenshot("history-7-versions.png");

    g_assert_true(gtk_widget_activate_action(
        GTK_WIDGET(quire_window_get_chat(window)), "chat.flip", "(ui)", quire_message_get_seq(user), -1));
    again = dup_transcript();
    g_assert_cmpstr(again, ==, first);
    /* The next turn of the old branch finds the pages that both share. */
    say("Thank you.", 6);
    wait_for("the reply", is_idle, NULL);
    g_assert_cmpuint(receipt()->n_reused, >, 0);
    g_assert_cmpuint(n_stored(id), ==, 8);
    key("ctrl+r");
    wait_for("the start", has_n_messages, GUINT_TO_POINTER(6));
    wait_for("the reply", is_idle, NULL);
    g_assert_cmpuint(n_stored(id), ==, 9);
    g_free(g_steal_pointer(&again));
    again = dup_transcript();
    close_window();

    /* Read again, the same branch is shown. */
    open_window(900, 600);
    act("win.chat-open", id);
    wait_for("the messages", has_n_messages, GUINT_TO_POINTER(6));
    g_free(g_steal_pointer(&first));
    first = dup_transcript();
    g_assert_cmpstr(first, ==, again);
    close_window();
}

static gboolean has_words(gpointer data)
{
    gsize n_bytes;

    quire_message_get_text(quire_conversation_get_last_reply(conversation()), &n_bytes);
    return n_bytes > 8;
}

/* A window that closes in the middle of a reply: what was written comes back as interrupted, and goes on. */
static void test_interrupted(void)
{
    g_autofree char *id = NULL, *partial = NULL, *whole = NULL;
    QuireMessage *reply;

    open_window(1200, 800);
    say("Tell me a story.", 2);
    wait_for("words", has_words, NULL);
    if (is_idle(NULL)) {
        g_test_message("the reply was over before the window could be closed");
        close_window();
        return;
    }
    screenshot("history-8-running.png");
    id = g_strdup(front_id());
    close_window();

    open_window(1200, 800);
    act("win.chat-open", id);
    wait_for("the messages", has_n_messages, GUINT_TO_POINTER(2));
    reply = quire_conversation_get_last_reply(conversation());
    g_assert_cmpint(quire_message_get_state(reply), ==, QUIRE_REPLY_INTERRUPTED);
    g_assert_true(quire_message_can_continue(reply));
    partial = dup_reply();
    wait_ms(300);
    screenshot("history-9-interrupted.png");
    g_assert_true(
        gtk_widget_activate_action(GTK_WIDGET(quire_window_get_chat(window)), "chat.continue", NULL));
    wait_for("the rest", is_idle, NULL);
    whole = dup_reply();
    g_assert_true(g_str_has_prefix(whole, partial));
    g_assert_cmpuint(strlen(whole), >, strlen(partial));
    {
        g_autofree char *expected = dup_cli_reply("[{\"role\":\"user\",\"content\":\"Tell me a story.\"}]");

        g_assert_cmpstr(whole, ==, expected);
    }
    g_assert_cmpuint(n_stored(id), ==, 3);
    close_window();
}

/* Tabs that are restored: the one in front is read, the others are not until they are shown. */
static void test_restore(void)
{
    g_autofree char *second = NULL;
    AdwTabView *view;
    QuireConversation *other;
    const qe_receipt *receipt;
    guint n_context;

    /* Windows of the tests before were the last ones too. */
    for (guint i = 0; i < g_list_model_get_n_items(quire_history_get_items(history())); i++) {
        g_autoptr(QuireHistoryItem) item = g_list_model_get_item(quire_history_get_items(history()), i);

        quire_history_item_edit(item)->tab = -1;
    }
    open_window(1200, 800);
    say("My name is Ann.", 2);
    wait_for("the reply", is_idle, NULL);
    key("ctrl+t");
    wait_for("an empty chat", has_n_messages, GUINT_TO_POINTER(0));
    say("My name is Bo.", 2);
    wait_for("the reply", is_idle, NULL);
    second = dup_transcript();
    receipt = &quire_message_get_reply(quire_conversation_get_last_reply(conversation()))->receipt;
    n_context = receipt->n_prompt + receipt->n_generated;
    g_assert_cmpuint(n_context, >, 10);
    close_window();

    window = quire_window_new(application);
    quire_window_restore(window);
    gtk_window_present(GTK_WINDOW(window));
    view = quire_window_get_tab_view(window);
    wait_for("the messages", has_n_messages, GUINT_TO_POINTER(2));
    {
        g_autofree char *shown = dup_transcript();

        g_assert_cmpstr(shown, ==, second);
    }
    g_assert_cmpint(adw_tab_view_get_n_pages(view), ==, 2);
    other = quire_chat_view_get_conversation(
        QUIRE_CHAT_VIEW(adw_tab_page_get_child(adw_tab_view_get_nth_page(view, 0))));
    g_assert_true(other != conversation());
    g_assert_false(quire_conversation_is_loaded(other));
    g_assert_cmpuint(quire_conversation_get_session(other), ==, 0);
    g_assert_cmpuint(n_pages_used(), ==, 0);
    /* Nothing is computed yet, but what the context will take is known. */
    g_assert_cmpuint(quire_conversation_get_n_context(conversation()), ==, n_context);
    wait_ms(400);
    screenshot("history-10-restored.png");
    adw_tab_view_set_selected_page(view, adw_tab_view_get_nth_page(view, 0));
    wait_for("the messages", has_n_messages, GUINT_TO_POINTER(2));

    gtk_window_set_default_size(GTK_WINDOW(window), 360, 640);
    wait_ms(500);
    key("F9");
    wait_ms(500);
    screenshot("history-11-narrow.png");
    close_window();
}

static QuireModelBar *model_bar(void)
{
    return QUIRE_MODEL_BAR(find(GTK_WIDGET(quire_window_get_chat(window)), QUIRE_TYPE_MODEL_BAR));
}

static gboolean shows_bar(gpointer wanted)
{
    return gtk_widget_get_visible(GTK_WIDGET(model_bar())) == GPOINTER_TO_INT(wanted);
}

static gboolean is_revealed(GtkWidget *bar)
{
    return gtk_info_bar_get_revealed(GTK_INFO_BAR(find(bar, GTK_TYPE_INFO_BAR)));
}

/* A chat that another model wrote says so; going on is the user's choice, and is recorded. */
static void test_other_model(void)
{
    QuireStoredChat *chat;
    GtkWidget *engine_bar;

    open_window(900, 600);
    say("My name is Una.", 2);
    wait_for("the reply", is_idle, NULL);
    g_assert_true(shows_bar(GINT_TO_POINTER(FALSE)));
    chat = quire_history_item_edit(quire_conversation_get_item(conversation()));
    g_assert_nonnull(chat->model_digest);
    g_free(chat->model_digest);
    chat->model_digest = g_strdup("another");
    g_free(chat->model_name);
    chat->model_name = g_strdup("Qwen3 8B");
    key("ctrl+w");
    wait_for("an empty chat", has_n_messages, GUINT_TO_POINTER(0));
    key("ctrl+shift+t");
    wait_for("the chat", has_n_messages, GUINT_TO_POINTER(2));
    wait_for("the bar", shows_bar, GINT_TO_POINTER(TRUE));
    wait_ms(300);
    screenshot("history-13-other-model.png");
    /* What is worse is said in its place; who sends all the same is asked, and the message stays where it was typed. */
    engine_bar = find(GTK_WIDGET(window), QUIRE_TYPE_ENGINE_BAR);
    quire_engine_bar_set_error(QUIRE_ENGINE_BAR(engine_bar), "It broke.");
    g_assert_true(shows_bar(GINT_TO_POINTER(FALSE)));
    g_assert_true(is_revealed(engine_bar));
    type("And then?");
    wait_for("the draft", draft_is, (gpointer) "And then?");
    key("Return");
    wait_for("the question", shows_bar, GINT_TO_POINTER(TRUE));
    g_assert_false(is_revealed(engine_bar));
    g_assert_true(draft_is((gpointer) "And then?"));
    g_assert_true(has_n_messages(GUINT_TO_POINTER(2)));
    wait_ms(300);
    screenshot("history-14-insists.png");
    quire_engine_bar_set_error(QUIRE_ENGINE_BAR(engine_bar), NULL);
    gtk_text_buffer_set_text(draft(), "", -1);
    quire_model_bar_continue(model_bar());
    g_assert_true(shows_bar(GINT_TO_POINTER(FALSE)));
    say("What is my name?", 4);
    wait_for("the reply", is_idle, NULL);
    g_assert_cmpstr(chat->model_digest, !=, "another");
    close_window();
}

typedef struct {
    const char *path, *last;
} WrittenFile;

/* A new file is there before its contents are: it is written when it ends with its last words. */
static gboolean is_written(gpointer data)
{
    const WrittenFile *file = data;
    g_autofree char *text = NULL;

    return g_file_get_contents(file->path, &text, NULL, NULL) && g_str_has_suffix(text, file->last);
}

static gboolean is_other_chat(gpointer id)
{
    return strcmp(front_id(), id) != 0 && is_loaded(NULL) && has_n_messages(GUINT_TO_POINTER(2));
}

/* Out as Markdown and as JSON, and in again as another conversation with the same words. */
static void test_export(void)
{
    g_autofree char *dir = g_dir_make_tmp("quire-export-XXXXXX", NULL);
    g_autofree char *md = g_build_filename(dir, "a.md", NULL), *json = g_build_filename(dir, "a.json", NULL);
    g_autofree char *before = NULL, *after = NULL, *id = NULL, *text = NULL, *reply = NULL;
    g_autofree char *last = NULL;
    g_autoptr(GFile) md_file = g_file_new_for_path(md);
    g_autoptr(GFile) json_file = g_file_new_for_path(json);
    guint n;

    open_window(900, 600);
    say("My name is Ivy.", 2);
    wait_for("the reply", is_idle, NULL);
    before = dup_transcript();
    reply = dup_reply();
    id = g_strdup(front_id());
    quire_window_export(window, quire_conversation_get_item(conversation()), FALSE, md_file);
    last = g_strdup_printf("%s\n", reply);
    wait_for("the Markdown", is_written, &(WrittenFile){md, last});
    quire_window_export(window, quire_conversation_get_item(conversation()), TRUE, json_file);
    wait_for("the JSON", is_written, &(WrittenFile){json, "}"});
    g_assert_true(g_file_get_contents(md, &text, NULL, NULL));
    g_assert_nonnull(strstr(text, "# My name is Ivy."));
    g_assert_nonnull(strstr(text, reply));

    quire_window_import(window, json_file);
    wait_for("the imported chat", is_other_chat, id);
    after = dup_transcript();
    g_assert_cmpstr(after, ==, before);
    /* What is no chat of ours is refused, and nothing is added. */
    n = g_list_model_get_n_items(quire_history_get_items(history()));
    quire_window_import(window, md_file);
    wait_ms(300);
    screenshot("history-12-refused.png");
    g_assert_cmpuint(g_list_model_get_n_items(quire_history_get_items(history())), ==, n);
    g_file_delete(md_file, NULL, NULL);
    g_file_delete(json_file, NULL, NULL);
    rmdir(dir);
    close_window();
}

static void add_tests(void)
{
    g_test_add_func("/app/history/keep", test_keep);
    g_test_add_func("/app/history/search", test_search);
    g_test_add_func("/app/history/delete", test_delete);
    g_test_add_func("/app/history/branches", test_branches);
    g_test_add_func("/app/history/interrupted", test_interrupted);
    g_test_add_func("/app/history/other-model", test_other_model);
    g_test_add_func("/app/history/export", test_export);
    g_test_add_func("/app/history/restore", test_restore);
}

int main(int argc, char **argv)
{
    return ui_main(argc, argv, NULL, add_tests);
}
