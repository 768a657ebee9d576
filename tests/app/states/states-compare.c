/* states-compare.c: states of a comparison. What its panes have is made up, so that each of their states is there. */
#include <adwaita.h>
#include <string.h>

#include "app/quire-compare-view.h"
#include "app/quire-window-private.h"
#include "tests/app/states/states.h"
#include "tests/app/ui-harness.h"

static QuireComparison *made; /* what is shown; it outlives the window */

static QuireCompareView *view(void)
{
    return quire_window_get_compare(window);
}

static void free_made(void)
{
    g_clear_pointer(&made, quire_comparison_free);
}

static gboolean can_start(gpointer data)
{
    return gtk_widget_get_sensitive(quire_compare_setup_get_start(quire_compare_view_get_setup(view())));
}

static void show_setup(void)
{
    turn_shown("My name is Oda.");
    turn_shown("What is my name?");
    act("win.compare");
    wait_for("the counted tokens", can_start, NULL);
}

/* Its own prompt, and more panes than the memory holds. */
static void show_setup_prompt(void)
{
    GtkWidget *text;

    act("win.compare");
    text = find(GTK_WIDGET(quire_compare_view_get_setup(view())), GTK_TYPE_TEXT_VIEW);
    gtk_text_buffer_set_text(gtk_text_view_get_buffer(GTK_TEXT_VIEW(text)),
        "Please tell me a long story of a fox and an owl that live in an old tower by the sea.", -1);
    wait_for("the counted tokens", can_start, NULL);
    for (guint c = 0; c < QUIRE_N_CACHE_CHOICES; c++) {
        GtkWidget *check =
            quire_compare_setup_get_check(quire_compare_view_get_setup(view()), (QuireCacheChoice)c);

        if (check != NULL)
            gtk_check_button_set_active(GTK_CHECK_BUTTON(check), TRUE);
    }
    quire_compare_setup_set_interleaved(quire_compare_view_get_setup(view()), TRUE);
}

/* ---- Results ---- */

/* Words as tokens. */
static void stream(QuirePane *pane, const char *text, gsize n_words)
{
    g_auto(GStrv) words = g_strsplit(text, " ", -1);

    for (gsize i = 0; words[i] != NULL && i < n_words; i++) {
        QuireToken token = {.id = g_str_hash(words[i]), .logprob = -0.08f, .n_top = 2};

        g_string_append_printf(pane->text, "%s%s", i > 0 ? " " : "", words[i]);
        token.end = (guint)pane->text->len;
        quire_piece_set(token.top[0].text, words[i], strlen(words[i]));
        token.top[0].logprob = -0.71f;
        quire_piece_set(token.top[1].text, "only", 4);
        token.top[1].logprob = -0.74f;
        g_array_append_val(pane->tokens, token);
    }
}

static void time_pane(QuirePane *pane, double cold, double warm, double each, guint64 gpu, guint64 host)
{
    for (guint i = 0; i < QUIRE_COMPARE_REPEATS; i++) {
        double by = 1 + 0.03 * i;

        quire_samples_add(&pane->cold_ms, cold * by);
        quire_samples_add(&pane->warm_ms, warm * by);
        quire_samples_add(&pane->ms_per_token, each * by);
        quire_samples_add(&pane->e2e_ms, (warm + each * 256) * by);
    }
    for (guint t = 0; t < 8; t++) {
        QuireComparedTurn turn = {.n_prompt = 1024 * (t + 1), .n_reused = warm < cold ? 1024 * t : 0};

        for (guint i = 0; i < QUIRE_COMPARE_REPEATS; i++)
            quire_samples_add(
                &turn.first_token_ms, warm * (1 + 0.04 * i) * (warm < cold ? 1 : (t + 1) / 8.0));
        g_array_append_val(pane->turns, turn);
    }
    pane->live_ms = cold;
    pane->live_ms_per_token = each;
    pane->peak[QE_TIER_GPU] = gpu;
    pane->peak[QE_TIER_HOST] = host;
    pane->n_prompt = pane->n_done = 8192;
    pane->state = QUIRE_PANE_DONE;
}

static const char story[] = "A fox and an owl lived in an old tower by the sea. The fox slept by day and the "
                            "owl by night, so that they met "
                            "at dawn and at dusk. Then they told each other what they had seen: ships, "
                            "stars, a whale, and once a lamp that "
                            "moved over the water although there was no ship to carry it.";
static const char other_story[] = "A fox and an owl lived in an old tower by the sea. The fox slept by day "
                                  "and the owl at noon, for she was a very "
                                  "old owl and the sun kept her warm.";

static void begin(guint n_panes)
{
    static const QuireCacheChoice choices[] = {
        QUIRE_CACHE_REBUILD, QUIRE_CACHE_SESSION, QUIRE_CACHE_TIERED, QUIRE_CACHE_TIERED_INT8};

    made = quire_comparison_new();
    made->title = g_strdup("Norse history");
    made->prompt =
        g_strdup("Please tell me a story of a fox and an owl that live in an old tower by the sea.");
    made->model_name = g_strdup("Qwen3 4B Instruct");
    made->device = g_strdup("NVIDIA GeForce RTX 4090 D");
    made->on_gpu = made->greedy = TRUE;
    made->seed = 42;
    made->n_timed = 256;
    made->n_turns = 8;
    made->base_bytes = 8ull << 30;
    for (guint i = 0; i < n_panes; i++)
        quire_comparison_add_pane(made, choices[i]);
}

static void show_made(gboolean running)
{
    GtkWidget *result;

    act("win.compare");
    result = GTK_WIDGET(quire_compare_view_get_result(view()));
    quire_compare_result_set(QUIRE_COMPARE_RESULT(result), made);
    quire_compare_result_set_can_use(QUIRE_COMPARE_RESULT(result), TRUE);
    quire_compare_result_update(QUIRE_COMPARE_RESULT(result), running);
    gtk_stack_set_visible_child(GTK_STACK(gtk_widget_get_parent(result)), result);
}

static void make_result(void)
{
    begin(4);
    for (guint i = 0; i < 4; i++)
        stream(quire_comparison_get_pane(made, i), i == 3 ? other_story : story, 1000);
    time_pane(quire_comparison_get_pane(made, 0), 820, 819, 12.4, 1ull << 30, 0);
    time_pane(quire_comparison_get_pane(made, 1), 824, 41, 12.5, 1ull << 30, 0);
    time_pane(quire_comparison_get_pane(made, 2), 831, 190, 13.1, 300 << 20, 900 << 20);
    time_pane(quire_comparison_get_pane(made, 3), 829, 150, 12.9, 160 << 20, 480 << 20);
}

static void show_result(void)
{
    make_result();
    show_made(FALSE);
}

static void show_turns(void)
{
    show_result();
    quire_compare_result_show_turns(quire_compare_view_get_result(view()));
}

static void show_running(void)
{
    QuirePane *pane;

    begin(4);
    pane = quire_comparison_get_pane(made, 0);
    stream(pane, story, 1000);
    time_pane(pane, 820, 819, 12.4, 1ull << 30, 0);
    pane = quire_comparison_get_pane(made, 1);
    stream(pane, story, 1000);
    pane->live_ms = 824;
    pane->live_ms_per_token = 12.6;
    pane->state = QUIRE_PANE_TIMING;
    pane->n_run = 2;
    pane = quire_comparison_get_pane(made, 2);
    stream(pane, story, 20);
    pane->live_ms = 190;
    pane->state = QUIRE_PANE_STREAMING;
    show_made(TRUE);
}

/* Panes that end badly; each leaves the others be. */
static void show_failed(void)
{
    QuirePane *pane;

    begin(4);
    pane = quire_comparison_get_pane(made, 0);
    stream(pane, story, 30);
    pane->state = QUIRE_PANE_STOPPED;
    pane->live_ms = 820;
    pane = quire_comparison_get_pane(made, 1);
    pane->state = QUIRE_PANE_UNFIT;
    pane->needed = 18ull << 30;
    pane->allowed = 12ull << 30;
    pane = quire_comparison_get_pane(made, 2);
    pane->state = QUIRE_PANE_FAILED;
    pane->error = g_strdup("The GPU was lost while the second turn was read.");
    pane = quire_comparison_get_pane(made, 3);
    pane->state = QUIRE_PANE_READING;
    pane->n_done = 2048;
    pane->n_prompt = 8192;
    show_made(TRUE);
}

static void show_interleaved(void)
{
    begin(3);
    made->interleaved = TRUE;
    for (guint i = 0; i < 3; i++) {
        QuirePane *pane = quire_comparison_get_pane(made, i);

        stream(pane, story, 40 - 6 * i);
        pane->state = QUIRE_PANE_STREAMING;
        pane->live_ms = 900 + 20 * i;
        pane->live_ms_per_token = 31;
    }
    show_made(TRUE);
}

static gboolean has_kept(gpointer data)
{
    return view() != NULL && gtk_widget_get_mapped(GTK_WIDGET(view())) &&
           quire_compare_view_get_comparison(view()) != NULL;
}

static void saved_cb(GObject *source, GAsyncResult *result, gpointer data)
{
    quire_history_save_finish(result, NULL);
    *(gboolean *)data = TRUE;
}

/* From the list of chats, with what it says of the mode that is asked for. @damaged: its messages are not its own. */
static void open_kept(gboolean damaged)
{
    g_autoptr(QuireHistoryItem) item = quire_history_item_new();
    QuireStoredChat *chat = quire_history_item_edit(item);
    GPtrArray *messages;
    gboolean saved = FALSE;

    make_result();
    made->source = g_strdup("gone");
    chat->title = g_strdup("Compare: Norse history");
    chat->title_source = QUIRE_TITLE_USER;
    chat->kind = QUIRE_KIND_COMPARISON;
    chat->created = chat->updated = g_get_real_time();
    messages = quire_comparison_dup_messages(made);
    if (damaged) {
        QuireStoredMessage *first = g_ptr_array_index(messages, 0);

        g_free(first->receipt);
        first->receipt = g_strdup("{\"format\":");
    }
    quire_history_save(quire_application_get_history(application), item, messages, saved_cb, &saved);
    wait_for("the stored comparison", is_set, &saved);
    gtk_widget_activate_action(GTK_WIDGET(window), "win.chat-open", "s", chat->id);
}

static void show_kept(void)
{
    open_kept(FALSE);
    wait_for("the kept comparison", has_kept, NULL);
}

static gboolean is_missing(gpointer data)
{
    GtkWidget *page = view() != NULL ? find(GTK_WIDGET(view()), ADW_TYPE_STATUS_PAGE) : NULL;

    return page != NULL && gtk_widget_get_child_visible(page) && gtk_widget_get_mapped(page);
}

static void show_damaged(void)
{
    open_kept(TRUE);
    wait_for("the damaged comparison", is_missing, NULL);
}

static const State states[] = {
    {"compare-setup", show_setup, NULL},
    {"compare-prompt", show_setup_prompt, NULL},
    {"compare-running", show_running, free_made},
    {"compare-failed", show_failed, free_made},
    {"compare-interleaved", show_interleaved, free_made},
    {"compare-result", show_result, free_made},
    {"compare-turns", show_turns, free_made},
    {"compare-kept", show_kept, free_made},
    {"compare-damaged", show_damaged, free_made},
};

const StateTable states_compare = {states, G_N_ELEMENTS(states)};
