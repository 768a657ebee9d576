/* test-app-work.c: how much work the window does, counted, not timed. See ui-harness.h. */
#include <string.h>

#include "app/quire-cache-panel.h"
#include "app/quire-code-block.h"
#include "app/quire-find-text.h"
#include "app/quire-highlight.h"
#include "app/quire-markdown-view.h"
#include "app/quire-message-row.h"
#include "app/quire-page-map.h"
#include "app/quire-settings.h"
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

/* ---- Frames ---- */

static guint n_frames;

static void count_frame(void)
{
    n_frames++;
}

static gboolean has_frames(gpointer n)
{
    return n_frames >= GPOINTER_TO_UINT(n);
}

static GtkWidget *code_view;
static guint n_lines;
static int heights[16]; /* of the view, in the frame that it got its line in */

static void add_line(GtkWidget *markdown)
{
    g_autoptr(GString) text = g_string_new("A list of numbers:\n\n```c\n");

    if (n_lines + 1 == G_N_ELEMENTS(heights))
        return;
    n_lines++;
    for (guint i = 0; i < n_lines; i++)
        g_string_append_printf(text, "int number_%u = %u;\n", i, i);
    quire_markdown_view_set_text(QUIRE_MARKDOWN_VIEW(markdown), text->str, text->len);
}

static void note_height(GtkWidget *markdown)
{
    code_view = find(markdown, GTK_TYPE_TEXT_VIEW);
    if (code_view != NULL && heights[n_lines] == 0)
        heights[n_lines] = gtk_widget_get_height(code_view);
}

static gboolean has_all_lines(gpointer data)
{
    return heights[G_N_ELEMENTS(heights) - 1] > 0;
}

/* A code block that grows is as high as its lines in the very frame that shows them. */
static void test_code_height(void)
{
    GtkWidget *own = gtk_window_new(), *box = gtk_box_new(GTK_ORIENTATION_VERTICAL, 0);
    GtkWidget *markdown = quire_markdown_view_new();
    GdkFrameClock *frames;
    int settled, line;

    gtk_window_set_default_size(GTK_WINDOW(own), 500, 600);
    gtk_widget_set_valign(markdown, GTK_ALIGN_START);
    gtk_box_append(GTK_BOX(box), markdown);
    gtk_window_set_child(GTK_WINDOW(own), box);
    gtk_window_present(GTK_WINDOW(own));
    frames = gtk_widget_get_frame_clock(own);
    g_signal_connect_object(frames, "update", G_CALLBACK(add_line), markdown, G_CONNECT_SWAPPED);
    g_signal_connect_object(frames, "after-paint", G_CALLBACK(note_height), markdown, G_CONNECT_SWAPPED);
    gdk_frame_clock_begin_updating(frames);
    wait_for("all lines", has_all_lines, NULL);
    gdk_frame_clock_end_updating(frames);
    wait_ms(1500); /* the view has found its height by itself */
    settled = gtk_widget_get_height(code_view);
    g_assert_cmpint(heights[n_lines], ==, settled);
    line = (settled - heights[1]) / (int)(n_lines - 1);
    g_assert_cmpint(line, >, 8);
    for (guint i = 1; i <= n_lines; i++)
        g_assert_cmpint(heights[i], ==, settled - (int)(n_lines - i) * line);
    gtk_window_destroy(GTK_WINDOW(own));
}

/* ---- Finding ---- */

static QuireFindBar *find_bar(void)
{
    return quire_chat_view_get_find_bar(quire_window_get_chat(window));
}

static gboolean find_says(gpointer text)
{
    return strcmp(quire_find_bar_get_text(find_bar()), text) == 0;
}

static GtkWidget *row_of(guint seq)
{
    GtkWidget *row = last_row();

    while (row != NULL && quire_message_get_seq(quire_message_row_get_message(QUIRE_MESSAGE_ROW(row))) != seq)
        row = gtk_widget_get_prev_sibling(row);
    return row;
}

/* A reply that is searched for something in each of its paragraphs is on the screen. */
static gboolean is_in_sight(gpointer seq)
{
    GtkWidget *row = row_of(GPOINTER_TO_UINT(seq)),
              *transcript = quire_chat_view_get_transcript(quire_window_get_chat(window));
    graphene_rect_t bounds;

    return row != NULL && gtk_widget_get_height(row) > 0 &&
           gtk_widget_compute_bounds(row, transcript, &bounds) &&
           bounds.origin.y < (float)gtk_widget_get_height(transcript) &&
           bounds.origin.y + bounds.size.height > 0;
}

static void find_words(const char *words)
{
    gtk_editable_set_text(GTK_EDITABLE(find(GTK_WIDGET(find_bar()), GTK_TYPE_SEARCH_ENTRY)), words);
}

static guint count_in_text(const char *words)
{
    g_autoptr(QuireFindText) texts = quire_find_text_new();
    glong n;
    g_autofree gunichar *needle = quire_find_fold(words, &n);
    guint count = 0;

    for (guint i = 0; i < g_list_model_get_n_items(G_LIST_MODEL(conversation())); i++) {
        g_autoptr(QuireMessage) message = g_list_model_get_item(G_LIST_MODEL(conversation()), i);

        count += quire_find_text_count(texts, message, needle, n);
    }
    return count;
}

static void open_stored(guint n_messages, guint n_tokens)
{
    g_autofree char *id = NULL;

    open_window(900, 600);
    id = add_chat("A chat", n_messages, n_tokens);
    g_assert_true(gtk_widget_activate_action(GTK_WIDGET(window), "win.chat-open", "s", id));
    wait_for("the messages", is_loaded, NULL);
    wait_for("all of them", has_n_messages, GUINT_TO_POINTER(n_messages));
    wait_for("rows", overflows, NULL);
    wait_ms(300);
}

static guint n_chat_rows(void)
{
    return quire_chat_view_get_n_rows(quire_window_get_chat(window));
}

/* What the text is counted to have, the rows show. */
static void test_find_text(void)
{
    static const char *const words[] = {
        "holds 16 tokens and is sealed when", "hot", "A", "**", "the card keeps"};

    open_stored(12, 100);
    quire_chat_view_make_row(quire_window_get_chat(window), 1);
    g_assert_cmpuint(n_chat_rows(), ==, 12);
    g_assert_true(gtk_widget_activate_action(GTK_WIDGET(quire_window_get_chat(window)), "chat.find", NULL));
    for (guint i = 0; i < G_N_ELEMENTS(words); i++) {
        g_autofree char *says = g_strdup_printf("1 of %u", count_in_text(words[i]));

        g_assert_cmpuint(count_in_text(words[i]), >, 0);
        find_words(words[i]);
        wait_for("as many in the rows", find_says, says);
    }
    close_window();
}

/* Scrolls to the end of what there is: the bar holds its place in sight for some frames. */
static gboolean finds_rows_below(gpointer n)
{
    if (has_rows(n))
        return TRUE;
    gtk_adjustment_set_value(
        adjustment(), gtk_adjustment_get_upper(adjustment()) - gtk_adjustment_get_page_size(adjustment()));
    return FALSE;
}

static gboolean is_above_end(gpointer data)
{
    return from_end() > 1;
}

static gboolean is_at_end(gpointer data)
{
    return from_end() < 1;
}

/* The button that is shown over a transcript which is not at its end. */
static GtkWidget *jump(void)
{
    GtkWidget *transcript = quire_chat_view_get_transcript(quire_window_get_chat(window)),
              *child = gtk_widget_get_first_child(gtk_widget_get_ancestor(transcript, GTK_TYPE_OVERLAY));

    while (child != NULL && !gtk_widget_has_css_class(child, "quire-jump"))
        child = gtk_widget_get_next_sibling(child);
    g_assert_true(gtk_revealer_get_reveal_child(GTK_REVEALER(child)));
    return child;
}

/* Of 1,000 messages those around the place that is gone to get rows, and no others. */
static void test_find_rows(void)
{
    static const char *const words = "holds 16 tokens and is sealed when";
    g_autofree char *first = NULL, *last = NULL;
    double value;
    guint n;

    open_stored(1000, 300);
    n = count_in_text(words);
    g_assert_cmpuint(n, >, 500);
    first = g_strdup_printf("1 of %u", n);
    last = g_strdup_printf("%u of %u", n, n);
    g_assert_true(gtk_widget_activate_action(GTK_WIDGET(quire_window_get_chat(window)), "chat.find", NULL));
    g_assert_cmpuint(n_chat_rows(), <=, 32);
    find_words(words);
    wait_for("the first place", find_says, first);
    wait_for("the first reply", is_in_sight, GUINT_TO_POINTER(2));
    wait_ms(500);
    screenshot("work-find-first.png");
    g_assert_true(is_in_sight(GUINT_TO_POINTER(2)));
    g_assert_cmpuint(n_chat_rows(), <=, 32);
    g_assert_null(row_of(1000));
    quire_find_bar_step(find_bar(), -1);
    wait_for("the last place", find_says, last);
    wait_for("the last reply", is_in_sight, GUINT_TO_POINTER(1000));
    wait_ms(500);
    g_assert_cmpuint(n_chat_rows(), <=, 32);
    g_assert_null(row_of(2));
    /* From the beginning again: who reads on down gets the rows after those, and what is in sight stays. */
    quire_find_bar_step(find_bar(), 1);
    wait_for("the first reply", is_in_sight, GUINT_TO_POINTER(2));
    wait_ms(500);
    wait_frames(24); /* a machine that is busy draws few in that time, and the bar counts them */
    wait_for("rows below", finds_rows_below, GUINT_TO_POINTER(n_chat_rows() + 1));
    value = gtk_adjustment_get_value(adjustment());
    wait_for("their place", is_above_end, NULL);
    g_assert_cmpfloat_with_epsilon(gtk_adjustment_get_value(adjustment()), value, 16);
    /* The way back to the end. */
    g_signal_emit_by_name(find(jump(), GTK_TYPE_BUTTON), "clicked");
    wait_for("the last message", is_in_sight, GUINT_TO_POINTER(1000));
    wait_for("the end", is_at_end, NULL);
    g_assert_cmpuint(n_chat_rows(), <=, 32);
    close_window();
}

static gboolean has_language(gpointer buffer)
{
    return gtk_source_buffer_get_language(buffer) != NULL;
}

/* What all languages need is read ahead, once the model is there. */
static gboolean has_read(gpointer data)
{
    return quire_highlight_get_n_read() > 0;
}

/* The frame that code comes in reads no language, and each is read once, also when its first code is gone. */
static void test_highlight(void)
{
    guint n_read;

    wait_for("what all code needs", has_read, NULL);
    n_read = quire_highlight_get_n_read();
    for (int i = 0; i < 3; i++) {
        GtkWidget *block = g_object_ref_sink(quire_code_block_new());
        GtkSourceBuffer *buffer;

        quire_code_block_set_code(QUIRE_CODE_BLOCK(block), "SELECT page FROM pool;", "sql");
        buffer = quire_code_block_get_buffer(QUIRE_CODE_BLOCK(block));
        if (i == 0) {
            g_assert_null(gtk_source_buffer_get_language(buffer));
            g_assert_cmpuint(quire_highlight_get_n_read(), ==, n_read);
            wait_for("the language", has_language, buffer);
        }
        g_assert_cmpstr(gtk_source_language_get_id(gtk_source_buffer_get_language(buffer)), ==, "sql");
        g_assert_cmpuint(quire_highlight_get_n_read(), ==, n_read + 1);
        g_object_unref(block);
    }
}

/* A block whose fence is still being written, or that goes, waits for nothing. */
static void test_highlight_later(void)
{
    GtkWidget *block = g_object_ref_sink(quire_code_block_new());
    GtkSourceBuffer *buffer;
    guint n_read;

    wait_for("what all code needs", has_read, NULL);
    n_read = quire_highlight_get_n_read();
    quire_code_block_set_code(QUIRE_CODE_BLOCK(block), "end", "ru");
    quire_code_block_set_code(QUIRE_CODE_BLOCK(block), "end", "lua");
    g_object_unref(block);
    block = g_object_ref_sink(quire_code_block_new());
    quire_code_block_set_code(QUIRE_CODE_BLOCK(block), "end", "lua");
    quire_code_block_set_code(QUIRE_CODE_BLOCK(block), "end", "ruby");
    buffer = quire_code_block_get_buffer(QUIRE_CODE_BLOCK(block));
    wait_for("the language", has_language, buffer);
    g_assert_cmpstr(gtk_source_language_get_id(gtk_source_buffer_get_language(buffer)), ==, "ruby");
    g_assert_cmpuint(quire_highlight_get_n_read(), ==, n_read + 1);
    quire_code_block_set_code(QUIRE_CODE_BLOCK(block), "end", NULL);
    g_assert_null(gtk_source_buffer_get_language(buffer));
    g_object_unref(block);
}

static guint64 n_painted_after(GtkWidget *map, const qe_cell *pages, guint n_pages)
{
    guint64 before = quire_page_map_get_n_painted(QUIRE_PAGE_MAP(map));

    n_frames = 0;
    quire_page_map_set_pages(QUIRE_PAGE_MAP(map), pages, n_pages, "A chat");
    gtk_widget_queue_draw(gtk_widget_get_parent(map));
    wait_for("a frame", has_frames, GUINT_TO_POINTER(2));
    return quire_page_map_get_n_painted(QUIRE_PAGE_MAP(map)) - before;
}

/* Of a large conversation, 8 pages a cell, only cells that change are drawn. */
static void test_map(void)
{
    enum { N = 16000 };
    g_autofree qe_cell *pages = g_new0(qe_cell, N + 16);
    GtkWidget *own = gtk_window_new(), *map = quire_page_map_new();
    GtkSnapshot *snapshot = gtk_snapshot_new();
    g_autoptr(GskRenderNode) node = NULL;
    QuireMapLayout layout;
    GdkFrameClock *frames;

    for (guint i = 0; i < N + 16; i++)
        pages[i] = (qe_cell){.flags = QE_TIER_GPU, .n_refs = 1, .n_tokens = 16};
    gtk_window_set_default_size(GTK_WINDOW(own), 300, 700);
    gtk_window_set_child(GTK_WINDOW(own), map);
    gtk_window_present(GTK_WINDOW(own));
    frames = gtk_widget_get_frame_clock(own);
    g_signal_connect(frames, "after-paint", G_CALLBACK(count_frame), NULL);
    gdk_frame_clock_begin_updating(frames);
    n_painted_after(map, pages, N);
    g_assert_cmpuint(n_painted_after(map, pages, N), ==, 0);
    pages[0].flags = QE_TIER_HOST;
    g_assert_cmpuint(n_painted_after(map, pages, N), ==, 1);
    /* Its cell showed the worst of its pages before. */
    pages[1].flags = QE_TIER_HOST;
    g_assert_cmpuint(n_painted_after(map, pages, N), ==, 0);
    /* The last cell is filled, then a new one begins. */
    pages[N - 1].n_tokens = 3;
    g_assert_cmpuint(n_painted_after(map, pages, N), ==, 1);
    pages[N - 1].n_tokens = 16;
    g_assert_cmpuint(n_painted_after(map, pages, N + 1), ==, 2);
    /* The last cell goes, and the one before it looks full with one page as with eight. */
    g_assert_cmpuint(n_painted_after(map, pages, N - 7), ==, 0);
    g_assert_cmpuint(n_painted_after(map, pages, N + 1), ==, 1);
    for (guint i = 0; i < 64; i++)
        pages[(i + 1) * 240].flags |= QE_CELL_MOVING;
    g_assert_cmpuint(n_painted_after(map, pages, N + 1), ==, 64);
    /* A renderer in software goes through all nodes in each frame: there is one a row of some 30 cells. */
    quire_map_layout_compute(&layout, N + 1, gtk_widget_get_width(map));
    GTK_WIDGET_GET_CLASS(map)->snapshot(map, snapshot);
    node = gtk_snapshot_free_to_node(snapshot);
    g_assert_cmpint(gsk_render_node_get_node_type(node), ==, GSK_CONTAINER_NODE);
    g_assert_cmpuint(gsk_container_node_get_n_children(node), ==, layout.n_rows);
    for (guint i = 0; i < layout.n_rows; i++)
        g_assert_cmpint(
            gsk_render_node_get_node_type(gsk_container_node_get_child(node, i)), ==, GSK_TEXTURE_NODE);
    gdk_frame_clock_end_updating(frames);
    g_signal_handlers_disconnect_by_func(frames, G_CALLBACK(count_frame), NULL);
    gtk_window_destroy(GTK_WINDOW(own));
}

static guint n_wanted, n_frames_to_message;
static gboolean has_caret;

/* Whether the user's message and the caret of the reply were in the frame. */
static void look_for_message(void)
{
    GtkWidget *row = last_row(), *user = row != NULL ? gtk_widget_get_prev_sibling(row) : NULL;

    if (n_wanted == 0)
        return;
    n_frames_to_message++;
    if (!has_n_messages(GUINT_TO_POINTER(n_wanted)) || user == NULL || gtk_widget_get_height(user) == 0)
        return;
    for (GtkWidget *child = gtk_widget_get_first_child(row); child != NULL;
         child = gtk_widget_get_next_sibling(child))
        has_caret |= gtk_widget_has_css_class(child, "quire-caret") && gtk_widget_get_mapped(child) &&
                     gtk_widget_get_height(child) > 0;
    n_wanted = 0;
}

static gboolean return_pressed(
    GtkEventController *controller, guint keyval, guint keycode, GdkModifierType state)
{
    if (keyval == GDK_KEY_Return) {
        n_wanted = g_list_model_get_n_items(G_LIST_MODEL(conversation())) + 2;
        n_frames_to_message = 0;
        has_caret = FALSE;
    }
    return GDK_EVENT_PROPAGATE;
}

static gboolean has_shown(gpointer data)
{
    return quire_message_get_reply(quire_conversation_get_last_reply(conversation()))->shown_ms > 0;
}

/* The user's message and a caret are painted on the frame after Enter, and the first word's way to the screen is measured,
 * of a reply too that is over before a frame comes. */
static void test_enter(void)
{
    GtkEventController *keys = gtk_event_controller_key_new();
    GdkFrameClock *frames;
    gulong handler;

    open_window(900, 600);
    frames = gtk_widget_get_frame_clock(GTK_WIDGET(window));
    handler = g_signal_connect(frames, "after-paint", G_CALLBACK(look_for_message), NULL);
    gtk_event_controller_set_propagation_phase(keys, GTK_PHASE_CAPTURE);
    g_signal_connect(keys, "key-pressed", G_CALLBACK(return_pressed), NULL);
    gtk_widget_add_controller(GTK_WIDGET(window), keys);
    for (guint i = 0; i < 2; i++) {
        const QuireReply *reply;

        g_settings_set_uint(quire_settings_get_default(), "max-tokens", i == 0 ? 40 : 1);
        say("Hello", 2 * (i + 1));
        wait_for("the reply", is_idle, NULL);
        wait_for("its first word", has_shown, NULL);
        g_assert_cmpuint(n_frames_to_message, ==, 1);
        g_assert_true(has_caret);
        reply = quire_message_get_reply(quire_conversation_get_last_reply(conversation()));
        /* The parts are in the order in which they come, and none is more than what is before the screen has it. */
        g_assert_cmpfloat(reply->saved_ms, >, 0);
        g_assert_cmpfloat(receipt()->first_token_ms, >=,
            receipt()->queue_ms + receipt()->restore_ms + receipt()->prefill_ms - 1);
        g_assert_cmpfloat(reply->shown_ms, >=, reply->saved_ms + receipt()->first_token_ms - 1);
    }
    g_settings_reset(quire_settings_get_default(), "max-tokens");
    g_signal_handler_disconnect(frames, handler);
    close_window();
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
    gulong handler;

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
    n_wakes = n_frames = 0;
    handler = g_signal_connect(
        gtk_widget_get_frame_clock(GTK_WIDGET(window)), "after-paint", G_CALLBACK(count_frame), NULL);
    wait_ms(5000);
    g_main_context_set_poll_func(NULL, poll_before);
    g_signal_handler_disconnect(gtk_widget_get_frame_clock(GTK_WIDGET(window)), handler);
    g_assert_cmpuint(n_frames, ==, 0);
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
    g_test_add_func("/app/work/find-text", test_find_text);
    g_test_add_func("/app/work/find-rows", test_find_rows);
    g_test_add_func("/app/work/hidden", test_hidden);
    g_test_add_func("/app/work/code-height", test_code_height);
    g_test_add_func("/app/work/highlight", test_highlight);
    g_test_add_func("/app/work/highlight-later", test_highlight_later);
    g_test_add_func("/app/work/map", test_map);
    g_test_add_func("/app/work/enter", test_enter);
}

int main(int argc, char **argv)
{
    return ui_main(argc, argv, NULL, add_tests);
}
