/* states-chat.c: states of a chat, its composer, the list of chats and the cache panel. */
#include <adwaita.h>
#include <sqlite3.h>
#include <string.h>

#include "app/quire-cache-panel.h"
#include "app/quire-chips.h"
#include "app/quire-message-row.h"
#include "app/quire-paths.h"
#include "app/quire-settings.h"
#include "app/quire-sidebar.h"
#include "app/quire-status-line.h"
#include "app/quire-title.h"
#include "app/quire-window-private.h"
#include "tests/app/states/states.h"
#include "tests/app/ui-harness.h"

static QuireEngineClient *client(void)
{
    return quire_application_get_client(application);
}

static QuireComposer *composer(void)
{
    return quire_chat_view_get_composer(quire_window_get_chat(window));
}

static void get_settings(QuireTurnSettings *out, guint max_tokens)
{
    quire_settings_get_turn(quire_engine_client_get_status(client())->model, out);
    out->max_tokens = max_tokens;
}

void act(const char *action)
{
    gtk_widget_activate_action(GTK_WIDGET(window), action, NULL);
}

static void chat_act(const char *action)
{
    g_action_group_activate_action(quire_chat_view_get_actions(quire_window_get_chat(window)), action, NULL);
}

GtkWidget *find_by_action(GtkWidget *root, const char *action)
{
    if (GTK_IS_BUTTON(root) && gtk_widget_get_mapped(root) &&
        g_strcmp0(gtk_actionable_get_action_name(GTK_ACTIONABLE(root)), action) == 0)
        return root;
    for (GtkWidget *child = gtk_widget_get_first_child(root); child != NULL;
         child = gtk_widget_get_next_sibling(child)) {
        GtkWidget *found = find_by_action(child, action);

        if (found != NULL)
            return found;
    }
    return NULL;
}

static void act_nothing(void)
{
}

/* ---- Replies ---- */

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
        .n_before = 2,
        .n_prompt = 4224,
        .n_prompt_done = 1536,
        .receipt = {.n_prompt = 4224,
            .n_reused = 4096,
            .n_restored_host = 1024,
            .n_new = 128,
            .n_generated = 210,
            .first_token_ms = 140,
            .restore_ms = 41,
            .prefill_ms = 62,
            .decode_tokens_per_s = 96,
            .first_mismatch = -1}};

    quire_message_apply(reply, &update);
}

QuireMessage *turn_shown(const char *text)
{
    QuireTurnSettings settings;

    get_settings(&settings, 1);
    g_assert_true(quire_conversation_send(conversation(), text, &settings));
    wait_for("the reply", is_idle, NULL);
    return quire_conversation_get_last_reply(conversation());
}

/* The conversation runs, for nobody takes what the engine has: the reply is what the state says. */
static QuireMessage *turn_held(const char *text)
{
    QuireTurnSettings settings;

    g_signal_handlers_block_matched(conversation(), G_SIGNAL_MATCH_ID | G_SIGNAL_MATCH_DATA,
        g_signal_lookup("news", QUIRE_TYPE_CONVERSATION), 0, NULL, NULL, quire_window_get_chat(window));
    get_settings(&settings, 1);
    g_assert_true(quire_conversation_send(conversation(), text, &settings));
    return quire_conversation_get_last_reply(conversation());
}

/* ---- Stored chats ---- */

static gboolean is_loaded(gpointer id)
{
    return quire_window_get_chat(window) != NULL && quire_conversation_is_loaded(conversation()) &&
           strcmp(quire_history_item_get(quire_conversation_get_item(conversation()))->id, id) == 0;
}

static void open_chat(const char *id)
{
    gtk_widget_activate_action(GTK_WIDGET(window), "win.chat-open", "s", id);
    wait_for("the stored chat", is_loaded, (gpointer)id);
}

static void saved_cb(GObject *source, GAsyncResult *result, gpointer data)
{
    quire_history_save_finish(result, NULL);
    *(gboolean *)data = TRUE;
}

static void save(QuireHistoryItem *item, GPtrArray *messages)
{
    gboolean saved = FALSE;

    quire_history_save(quire_application_get_history(application), item, messages, saved_cb, &saved);
    wait_for("the written chat", is_set, &saved);
}

static QuireStoredMessage *stored_new(guint seq, qe_role role, QuireReplyState state, const char *text)
{
    return quire_stored_message_new(seq, seq - 1, role, (int)state, text, strlen(text));
}

/* A chat of one turn whose reply ended so, from the history. @error: or NULL. */
static void show_reply(const char *question, const char *answer, qe_finish finish, GError *error)
{
    g_autoptr(QuireHistoryItem) item = quire_history_item_new();
    g_autoptr(QuireMessage) reply = quire_message_new(QE_ROLE_ASSISTANT, "");
    /* Files come before what was written. */
    const char *written = strrchr(question, '\n');
    g_autofree char *title = quire_title_from_text(written != NULL ? written + 1 : question);
    GPtrArray *messages = g_ptr_array_new_with_free_func((GDestroyNotify)quire_stored_message_free);
    QuireStoredChat *chat = quire_history_item_edit(item);
    QuireStoredMessage *stored;

    apply(reply, QE_REQUEST_DONE, answer, finish, error);
    quire_history_item_set_title(item, title, QUIRE_TITLE_WORDS);
    chat->created = chat->updated = g_get_real_time();
    chat->leaf = 2;
    stored = stored_new(2, QE_ROLE_ASSISTANT, quire_message_get_state(reply), answer);
    stored->receipt = quire_message_dup_receipt(reply);
    g_ptr_array_add(messages, stored_new(1, QE_ROLE_USER, QUIRE_REPLY_DONE, question));
    g_ptr_array_add(messages, stored);
    save(item, messages);
    open_chat(chat->id);
}

void show_done(void)
{
    show_reply("What is a page? Show me a table, and how it looks in C.", markdown, QE_FINISH_STOP, NULL);
}

/* ---- Replies that run ---- */

static void show_waiting(void)
{
    turn_held("Hello?");
}

static void show_queued(void)
{
    apply(turn_held("After the others."), QE_REQUEST_QUEUED, "", QE_FINISH_STOP, NULL);
}

static void show_reading(void)
{
    QuireMessage *reply = turn_held("Read this.");

    apply(reply, QE_REQUEST_PREFILL, "", QE_FINISH_STOP, NULL);
    /* For two seconds so far: the bar is for what takes its time. */
    ((QuireReply *)quire_message_get_reply(reply))->reading_us -= 2 * G_USEC_PER_SEC;
    ((QuireReply *)quire_message_get_reply(reply))->n_read_at = 256;
    apply(reply, QE_REQUEST_PREFILL, "", QE_FINISH_STOP, NULL);
}

static void show_writing(void)
{
    apply(turn_held("Tell me more."), QE_REQUEST_DECODE,
        "It goes on, for a while, until there is a second line of it, or a third: a fox and an owl live in "
        "an "
        "old tower by the sea, and none of them",
        QE_FINISH_STOP, NULL);
    gtk_text_buffer_set_text(draft(), "and then", -1);
    /* Enter while a reply runs. */
    quire_composer_send(composer());
}

static void show_thinking(void)
{
    QuireMessage *reply = turn_held("Think first.");

    apply(reply, QE_REQUEST_DECODE,
        "<think>\nThe user asks for a thought. A good one has a beginning and an end", QE_FINISH_STOP, NULL);
    gtk_expander_set_expanded(GTK_EXPANDER(find(last_row(), GTK_TYPE_EXPANDER)), TRUE);
}

/* ---- Replies that ended ---- */

static void show_cut(void)
{
    show_reply("Tell me all.", "All of it would be", QE_FINISH_LENGTH, NULL);
}

static void show_stopped(void)
{
    show_reply("Tell me all.", "All of it would be", QE_FINISH_CANCELLED, NULL);
}

static void show_context_end(void)
{
    show_reply("Tell me all.", "All of it would be", QE_FINISH_CONTEXT, NULL);
}

static void fail_with(qe_error_code code, const char *words)
{
    g_autoptr(GError) error = g_error_new_literal(QE_ERROR, (int)code, words);

    show_reply("Will it work?", "", QE_FINISH_ERROR, error);
}

static void show_memory_error(void)
{
    fail_with(QE_ERROR_NO_MEMORY, "Not enough GPU memory for 40,000 tokens (5.5 GiB needed, 3.1 free).");
}

static void show_lost_error(void)
{
    fail_with(QE_ERROR_DEVICE_LOST, "The GPU was lost. The conversation is safe.");
}

static void show_context_error(void)
{
    fail_with(QE_ERROR_CONTEXT_LENGTH, "The prompt has 41204 tokens, the context holds 40000");
}

static void show_receipt(void)
{
    show_done();
    g_signal_emit_by_name(find(find(last_row(), QUIRE_TYPE_STATUS_LINE), GTK_TYPE_BUTTON), "clicked");
}

static void show_long_user(void)
{
    g_autoptr(GString) text = g_string_new("A word ");

    for (int i = 0; i < 60; i++)
        g_string_append(
            text, i % 9 == 0 ? "averyveryverylongwordwithoutanyplacewhereitcouldbreak " : "and another ");
    turn_shown(text->str);
}

static void show_edit(void)
{
    show_done();
    quire_message_row_edit(QUIRE_MESSAGE_ROW(gtk_widget_get_prev_sibling(last_row())));
}

static void show_versions(void)
{
    QuireTurnSettings settings;

    turn_shown("Say it again.");
    get_settings(&settings, 8);
    quire_conversation_regenerate(conversation(), &settings);
    wait_for("the reply", is_idle, NULL);
    get_settings(&settings, 4);
    quire_conversation_edit(conversation(),
        quire_message_row_get_message(QUIRE_MESSAGE_ROW(gtk_widget_get_prev_sibling(last_row()))),
        "Say it once more.", &settings);
    wait_for("the reply", is_idle, NULL);
    quire_conversation_flip(conversation(),
        quire_message_row_get_message(QUIRE_MESSAGE_ROW(gtk_widget_get_prev_sibling(last_row()))), -1);
}

static void show_left_out(void)
{
    turn_shown("My name is Oda.");
    turn_shown("What is my name?");
    quire_conversation_leave_out(conversation(), 1, 40);
}

static void show_system(void)
{
    turn_shown("Who are you?");
    quire_conversation_set_system(conversation(), "Answer in one short sentence, as a pirate would.");
    gtk_expander_set_expanded(
        GTK_EXPANDER(find(GTK_WIDGET(quire_window_get_chat(window)), GTK_TYPE_EXPANDER)), TRUE);
}

static void show_interrupted(void)
{
    static const char part[] = "Once upon a time a fox and an owl lived in an old tower by the";
    g_autoptr(QuireHistoryItem) item = quire_history_item_new();
    GPtrArray *messages = g_ptr_array_new_with_free_func((GDestroyNotify)quire_stored_message_free);
    QuireStoredChat *chat = quire_history_item_edit(item);

    quire_history_item_set_title(item, "Tell me a story", QUIRE_TITLE_USER);
    chat->created = chat->updated = g_get_real_time();
    chat->leaf = 2;
    g_ptr_array_add(messages, stored_new(1, QE_ROLE_USER, QUIRE_REPLY_DONE, "Tell me a story."));
    g_ptr_array_add(messages, stored_new(2, QE_ROLE_ASSISTANT, QUIRE_REPLY_INTERRUPTED, part));
    save(item, messages);
    open_chat(chat->id);
}

static gboolean is_high(gpointer data)
{
    GtkAdjustment *a = quire_chat_view_get_adjustment(quire_window_get_chat(window));

    return gtk_adjustment_get_upper(a) > gtk_adjustment_get_page_size(a) * 2;
}

/* Somewhere above the end. */
static void show_above(void)
{
    g_autofree char *id = add_chat("A long chat", 12, 200);
    GtkAdjustment *a;

    open_chat(id);
    wait_for("a high transcript", is_high, NULL);
    a = quire_chat_view_get_adjustment(quire_window_get_chat(window));
    gtk_adjustment_set_value(a, gtk_adjustment_get_upper(a) - gtk_adjustment_get_page_size(a) * 2);
}

/* Another model wrote it. */
static char *add_other_chat(void)
{
    g_autofree char *id = add_chat("Of another model", 2, 100);
    QuireHistoryItem *item = quire_history_find(quire_application_get_history(application), id);
    QuireStoredChat *chat = quire_history_item_edit(item);

    g_free(chat->model_name);
    g_free(chat->model_dir);
    g_free(chat->model_digest);
    chat->model_name = g_strdup("Qwen3 8B Instruct");
    chat->model_dir = g_strdup(g_getenv("QUIRE_TEST_MODEL"));
    chat->model_digest = g_strdup("another");
    save(item, NULL);
    return g_steal_pointer(&id);
}

static void show_other_model(void)
{
    g_autofree char *id = add_other_chat();

    open_chat(id);
}

/* ---- Bars ---- */

static void execute(const char *sql)
{
    g_autofree char *path = quire_dup_history_path();
    sqlite3 *db;

    g_assert_cmpint(sqlite3_open(path, &db), ==, SQLITE_OK);
    sqlite3_busy_timeout(db, 10000);
    g_assert_cmpint(sqlite3_exec(db, sql, NULL, NULL, NULL), ==, SQLITE_OK);
    sqlite3_close(db);
}

static gboolean has_trouble(gpointer wanted)
{
    return (quire_history_get_trouble(quire_application_get_history(application)) != NULL) ==
           GPOINTER_TO_INT(wanted);
}

/* Writes fail, as on a full disk. */
static void break_history(void)
{
    g_autoptr(QuireHistoryItem) item = quire_history_item_new();
    GPtrArray *messages = g_ptr_array_new_with_free_func((GDestroyNotify)quire_stored_message_free);

    execute("CREATE TRIGGER no_room BEFORE INSERT ON message BEGIN SELECT RAISE(ABORT, 'no room'); END");
    g_ptr_array_add(messages, stored_new(1, QE_ROLE_USER, QUIRE_REPLY_DONE, "Hello."));
    save(item, messages);
    wait_for("the trouble", has_trouble, GINT_TO_POINTER(TRUE));
}

static void mend_history(void)
{
    execute("DROP TRIGGER IF EXISTS no_room");
    quire_history_clear_trouble(quire_application_get_history(application));
    wait_for("no trouble", has_trouble, GINT_TO_POINTER(FALSE));
}

static void show_trouble(void)
{
    show_done();
    break_history();
}

static void show_model_error(void)
{
    quire_window_show_model_error(window, "“broken-copy” cannot be read: model-00002-of-00003.safetensors is "
                                          "cut: 1.1 of 4.9 GB. Copy it again.");
}

/* Everything at once; one is shown. */
static void show_bars(void)
{
    g_autofree char *id = add_other_chat();

    open_chat(id);
    break_history();
    show_model_error();
    g_assert_true(quire_model_bar_is_asking(quire_chat_view_get_model_bar(quire_window_get_chat(window))));
}

static gboolean state_is(gpointer state)
{
    return quire_engine_client_get_status(client())->state == (qe_engine_state)GPOINTER_TO_INT(state);
}

static void show_no_model(void)
{
    quire_engine_client_unload(client());
    wait_for("no model", state_is, GINT_TO_POINTER(QE_ENGINE_EMPTY));
}

static void load_model(void)
{
    quire_engine_client_load(client(), g_getenv("QUIRE_TEST_MODEL"));
    wait_for("the model", is_ready, NULL);
}

/* ---- The composer ---- */

static void show_draft(void)
{
    gtk_text_buffer_set_text(draft(),
        "one\ntwo\nthree lines, of which the last one is rather longer than the others, so it wraps", -1);
}

static gboolean has_n_files(gpointer n)
{
    return quire_composer_get_attachments(composer())->len == GPOINTER_TO_UINT(n);
}

static void attach(guint n)
{
    static const char *const names[] = {"notes.txt", "a-file-with-a-rather-long-name-2026.log", "main.c"};
    g_autofree char *dir = g_dir_make_tmp("quire-attach-XXXXXX", NULL);

    for (guint i = 0; i < n; i++) {
        g_autofree char *path = g_build_filename(dir, names[i], NULL);
        g_autoptr(GFile) file = g_file_new_for_path(path);

        g_assert_true(g_file_set_contents(path, "My name is Oda.\n", -1, NULL));
        quire_composer_attach(composer(), file);
        wait_for("the file", has_n_files, GUINT_TO_POINTER(i + 1));
        g_file_delete(file, NULL, NULL);
    }
    rmdir(dir);
}

static void show_attachments(void)
{
    g_autofree char *text = NULL;

    attach(3);
    gtk_text_buffer_set_text(draft(), "What have these in common?", -1);
    text = quire_composer_dup_text(composer());
    quire_composer_clear(composer());
    show_reply(text, "Three files, all of them about Oda.", QE_FINISH_STOP, NULL);
    attach(2);
    gtk_text_buffer_set_text(draft(), "What is in them?", -1);
}

static gboolean memory_is(gpointer mib)
{
    const qe_snapshot *snapshot = quire_engine_client_get_snapshot(client());

    return snapshot != NULL && snapshot->tiers[QE_TIER_HOST].bytes_max == (guint64)GPOINTER_TO_UINT(mib)
                                                                              << 20;
}

static gboolean has_much_memory(gpointer data)
{
    return quire_engine_client_get_snapshot(client())->tiers[QE_TIER_HOST].bytes_max > 64 << 20;
}

static gboolean ring_says(gpointer text)
{
    return strstr(quire_context_ring_get_text(quire_composer_get_ring(composer())), text) != NULL;
}

/* In pseudo-English too. */
static void fill_context(guint n_words, const char *percent)
{
    g_autoptr(GString) text = g_string_new("Please remember:");

    quire_engine_client_set_cache(client(), 4 << 20);
    wait_for("little memory", memory_is, GUINT_TO_POINTER(4));
    turn_shown("My name is Oda.");
    for (guint i = 0; i < n_words; i++)
        g_string_append_printf(text, " number %u,", i % 10);
    gtk_text_buffer_set_text(draft(), text->str, -1);
    wait_for(percent, ring_says, (gpointer)percent);
}

static void show_context_75(void)
{
    fill_context(208, "8");
}

static void show_context_90(void)
{
    fill_context(232, "9");
}

static void show_context_full(void)
{
    fill_context(260, "100");
}

static void show_context_popover(void)
{
    show_context_full();
    gtk_menu_button_popup(
        GTK_MENU_BUTTON(find(GTK_WIDGET(quire_composer_get_ring(composer())), GTK_TYPE_MENU_BUTTON)));
}

static GtkWidget *room;

static gboolean room_is_read(gpointer data)
{
    return find(room, ADW_TYPE_ACTION_ROW) != NULL;
}

static void show_room(void)
{
    show_context_full();
    chat_act("make-room");
    room = wait_window(g_type_from_name("QuireRoomWindow"));
    wait_for("the choices", room_is_read, NULL);
}

static void give_memory(void)
{
    quire_engine_client_set_cache(client(), 0);
    wait_for("memory", has_much_memory, NULL);
}

static void show_modes(void)
{
    quire_composer_choose_cache(composer());
}

static void show_approximate(void)
{
    g_autoptr(GError) error = NULL;

    show_done();
    quire_conversation_set_cache(conversation(), QUIRE_CACHE_TIERED_INT8, &error);
    g_assert_no_error(error);
}

/* The first menu button of the composer is the model's. */
static void popup_model(void)
{
    gtk_menu_button_popup(GTK_MENU_BUTTON(find(GTK_WIDGET(composer()), GTK_TYPE_MENU_BUTTON)));
}

/* ---- The window ---- */

static void show_tabs(void)
{
    show_done();
    for (int i = 0; i < 3; i++) {
        quire_window_new_chat(window);
        turn_shown(i == 1 ? "A second chat with quite a long title in its tab" : "Another");
    }
}

static void show_find(void)
{
    show_done();
    chat_act("find");
    gtk_editable_set_text(
        GTK_EDITABLE(
            find(GTK_WIDGET(quire_chat_view_get_find_bar(quire_window_get_chat(window))), GTK_TYPE_EDITABLE)),
        "page");
}

static void show_not_found(void)
{
    show_done();
    chat_act("find");
    gtk_editable_set_text(
        GTK_EDITABLE(
            find(GTK_WIDGET(quire_chat_view_get_find_bar(quire_window_get_chat(window))), GTK_TYPE_EDITABLE)),
        "nowhere in the text");
}

static void show_toast(void)
{
    g_autofree char *id = NULL;

    show_done();
    id = add_chat("Tax letter", 2, 20);
    gtk_widget_activate_action(GTK_WIDGET(window), "win.chat-delete", "s", id);
}

static GtkWidget *find_menu(GtkWidget *root, GMenuModel *model)
{
    if (GTK_IS_MENU_BUTTON(root) && gtk_menu_button_get_menu_model(GTK_MENU_BUTTON(root)) == model)
        return root;
    for (GtkWidget *child = gtk_widget_get_first_child(root); child != NULL;
         child = gtk_widget_get_next_sibling(child)) {
        GtkWidget *found = find_menu(child, model);

        if (found != NULL)
            return found;
    }
    return NULL;
}

static void show_menu(void)
{
    show_done();
    gtk_menu_button_popup(GTK_MENU_BUTTON(find_menu(GTK_WIDGET(window), window->chat_menu)));
}

/* ---- The list of chats ---- */

static void add_chats(void)
{
    static const char *const titles[] = {"Norse history and a title that is too long for its row by far",
        "总结三点", "Tax letter", "Recipe for bread"};

    for (gsize i = 0; i < G_N_ELEMENTS(titles); i++) {
        g_autofree char *id = add_chat(titles[i], 2, 20);
        QuireHistoryItem *item = quire_history_find(quire_application_get_history(application), id);

        quire_history_item_edit(item)->updated -= (gint64)i * i * 3 * 24 * 3600 * G_USEC_PER_SEC;
        quire_history_item_changed(item);
        if (i == 0)
            gtk_widget_activate_action(GTK_WIDGET(window), "win.chat-pin", "s", id);
    }
}

static QuireSidebar *sidebar(void)
{
    return QUIRE_SIDEBAR(find(GTK_WIDGET(window), QUIRE_TYPE_SIDEBAR));
}

static void show_sidebar(void)
{
    add_chats();
    adw_flap_set_reveal_flap(window->sidebar_flap, TRUE);
}

static void show_no_chats(void)
{
    adw_flap_set_reveal_flap(window->sidebar_flap, TRUE);
}

static void show_search(void)
{
    show_sidebar();
    gtk_editable_set_text(GTK_EDITABLE(find(GTK_WIDGET(sidebar()), GTK_TYPE_SEARCH_ENTRY)), "bread");
}

static void show_no_result(void)
{
    show_sidebar();
    gtk_editable_set_text(
        GTK_EDITABLE(find(GTK_WIDGET(sidebar()), GTK_TYPE_SEARCH_ENTRY)), "nothing says this");
}

static void show_trash(void)
{
    show_sidebar();
    for (guint i = 0; i < 2; i++) {
        g_autofree char *id = add_chat(i == 0 ? "A chat that is not wanted" : "Another", 2, 20);

        gtk_widget_activate_action(GTK_WIDGET(window), "win.chat-delete", "s", id);
    }
    quire_sidebar_set_trash(sidebar(), TRUE);
}

static void show_empty_trash(void)
{
    show_no_chats();
    quire_sidebar_set_trash(sidebar(), TRUE);
}

static void show_rename(void)
{
    GListModel *items;

    show_sidebar();
    wait_ms(50);
    items = quire_history_get_items(quire_application_get_history(application));
    g_autoptr(QuireHistoryItem) item = g_list_model_get_item(items, 0);
    quire_sidebar_rename(sidebar(), item);
}

/* ---- The cache panel ---- */

static void show_panel(void)
{
    turn_shown("My name is Oda, and I would like to know what a page is.");
    turn_shown("What is my name?");
    if (!adw_flap_get_reveal_flap(window->panel_flap))
        act("win.toggle-panel");
}

static void show_empty_panel(void)
{
    act("win.toggle-panel");
}

static void press_table(void)
{
    GtkWidget *button = find(GTK_WIDGET(window->panel), GTK_TYPE_TOGGLE_BUTTON);

    gtk_toggle_button_set_active(GTK_TOGGLE_BUTTON(button), TRUE);
}

static void show_table(void)
{
    show_panel();
    press_table();
}

/* Three tiers in use, two chats, pages on their way: what a machine with a card shows. */
static void show_tiers(void)
{
    enum { PAGES_A = 384, PAGES_B = 150, SECONDS = 300 };
    static qe_cell a[PAGES_A], b[PAGES_B];
    static uint32_t history[SECONDS], tiers[QE_N_TIERS][SECONDS];
    qe_session_view sessions[2];
    qe_snapshot snapshot = {.serial = 1, .page_tokens = 16, .page_bytes = 2359296};
    QuireConversation *first, *second;

    turn_shown("What is a page?");
    first = conversation();
    quire_window_new_chat(window);
    turn_shown("A second chat with quite a long title");
    second = conversation();
    for (guint i = 0; i < PAGES_A; i++) {
        guint tier = i < 190 ? QE_TIER_GPU : i < 300 ? QE_TIER_HOST : QE_TIER_DISK;

        a[i] = (qe_cell){
            (guint8)(tier | (i < 24 ? QE_CELL_SHARED : 0) | (i >= 180 && i < 190 ? QE_CELL_MOVING : 0) |
                     (i == PAGES_A - 1 ? QE_CELL_TAIL : 0)),
            i < 24 ? 2 : 1, i == PAGES_A - 1 ? 5 : 16, 0};
    }
    for (guint i = 0; i < PAGES_B; i++)
        b[i] = (qe_cell){(guint8)(QE_TIER_GPU | (i < 24 ? QE_CELL_SHARED : 0)), i < 24 ? 2 : 1, 16, 0};
    for (guint i = 0; i < SECONDS; i++) {
        tiers[QE_TIER_GPU][i] = MIN(340, i * 2);
        tiers[QE_TIER_HOST][i] = i < 120 ? 0 : (i - 120) / 2;
        tiers[QE_TIER_DISK][i] = i < 220 ? 0 : i - 220;
        history[i] = tiers[QE_TIER_GPU][i] + tiers[QE_TIER_HOST][i] + tiers[QE_TIER_DISK][i];
    }
    sessions[0] = (qe_session_view){.id = quire_conversation_get_session(first),
        .n_tokens = PAGES_A * 16 - 11,
        .n_pages = PAGES_A,
        .n_pages_shared = 24,
        .n_pages_tier = {190, 110, 84},
        .bytes = PAGES_A * snapshot.page_bytes,
        .mode = QE_CACHE_TIERED,
        .cells = a};
    sessions[1] = (qe_session_view){.id = quire_conversation_get_session(second),
        .n_tokens = PAGES_B * 16,
        .n_pages = PAGES_B,
        .n_pages_shared = 24,
        .n_pages_tier = {PAGES_B, 0, 0},
        .bytes = PAGES_B * snapshot.page_bytes,
        .running = true,
        .mode = QE_CACHE_TIERED,
        .cells = b};
    snapshot.tiers[QE_TIER_GPU] = (qe_tier_view){.present = true,
        .n_pages_used = 340,
        .n_pages_shared = 24,
        .n_pages_max = 364,
        .bytes_used = 340 * snapshot.page_bytes,
        .bytes_max = 364 * snapshot.page_bytes,
        .bytes_reserved = 364 * snapshot.page_bytes,
        .bytes_out = 194 * snapshot.page_bytes};
    snapshot.tiers[QE_TIER_HOST] = (qe_tier_view){.present = true,
        .n_pages_used = 110,
        .n_pages_max = 1820,
        .bytes_used = 110 * snapshot.page_bytes,
        .bytes_max = 4ull << 30,
        .bytes_reserved = 1ull << 30,
        .bytes_pinned = 1ull << 30,
        .note = (char *)"The system pinned only 1.0 GiB: the rest is copied twice."};
    snapshot.tiers[QE_TIER_DISK] = (qe_tier_view){.present = true,
        .n_pages_used = 84,
        .n_pages_max = 7280,
        .bytes_used = 84 * snapshot.page_bytes,
        .bytes_max = 16ull << 30};
    snapshot.device = (qe_device_view){.memory_total = 24ull << 30,
        .memory_used = 11ull << 30,
        .memory_process = 9ull << 30,
        .weights = 7ull << 30,
        .workspace = 700 << 20,
        .utilization = 87};
    snapshot.n_sessions = 2;
    snapshot.sessions = sessions;
    snapshot.n_history = SECONDS;
    snapshot.history = history;
    for (guint i = 0; i < QE_N_TIERS; i++)
        snapshot.tier_history[i] = tiers[i];
    snapshot.n_pages_cached = 40;
    if (!adw_flap_get_reveal_flap(window->panel_flap))
        act("win.toggle-panel");
    g_signal_handlers_block_matched(client(), G_SIGNAL_MATCH_ID | G_SIGNAL_MATCH_DATA,
        g_signal_lookup("snapshot-changed", G_OBJECT_TYPE(client())), 0, NULL, NULL, window);
    quire_cache_panel_set_snapshot(window->panel, &snapshot);
}

static void show_tiers_table(void)
{
    show_tiers();
    press_table();
}

/* The CPU does the work although a card might. */
static void show_note(void)
{
    g_settings_set_boolean(quire_settings_get_default(), "cpu-note-closed", FALSE);
    g_signal_emit_by_name(client(), "status-changed");
}

static void close_note(void)
{
    g_settings_set_boolean(quire_settings_get_default(), "cpu-note-closed", TRUE);
}

static const State states[] = {
    {"empty", act_nothing, NULL},
    {"note", show_note, close_note},
    {"no-model", show_no_model, load_model},
    {"done", show_done, NULL},
    {"waiting", show_waiting, NULL},
    {"queued", show_queued, NULL},
    {"reading", show_reading, NULL},
    {"writing", show_writing, NULL},
    {"thinking", show_thinking, NULL},
    {"cut", show_cut, NULL},
    {"stopped", show_stopped, NULL},
    {"interrupted", show_interrupted, NULL},
    {"context-end", show_context_end, NULL},
    {"receipt", show_receipt, NULL},
    {"error-memory", show_memory_error, NULL},
    {"error-lost", show_lost_error, NULL},
    {"error-context", show_context_error, NULL},
    {"long-user", show_long_user, NULL},
    {"edit", show_edit, NULL},
    {"versions", show_versions, NULL},
    {"left-out", show_left_out, NULL},
    {"system", show_system, NULL},
    {"above", show_above, NULL},
    {"other-model", show_other_model, NULL},
    {"trouble", show_trouble, mend_history},
    {"model-error", show_model_error, NULL},
    {"bars", show_bars, mend_history},
    {"draft", show_draft, NULL},
    {"attachments", show_attachments, NULL},
    {"context-75", show_context_75, give_memory},
    {"context-90", show_context_90, give_memory},
    {"context-full", show_context_full, give_memory},
    {"context-popover", show_context_popover, give_memory},
    {"room", show_room, give_memory},
    {"modes", show_modes, NULL},
    {"approximate", show_approximate, NULL},
    {"model-popover", popup_model, NULL},
    {"tabs", show_tabs, NULL},
    {"find", show_find, NULL},
    {"not-found", show_not_found, NULL},
    {"toast", show_toast, NULL},
    {"menu", show_menu, NULL},
    {"sidebar", show_sidebar, NULL},
    {"no-chats", show_no_chats, NULL},
    {"search", show_search, NULL},
    {"no-result", show_no_result, NULL},
    {"trash", show_trash, NULL},
    {"empty-trash", show_empty_trash, NULL},
    {"rename", show_rename, NULL},
    {"panel", show_panel, NULL},
    {"panel-empty", show_empty_panel, NULL},
    {"panel-table", show_table, NULL},
    {"tiers", show_tiers, NULL},
    {"tiers-table", show_tiers_table, NULL},
};

const StateTable states_chat = {states, G_N_ELEMENTS(states)};
