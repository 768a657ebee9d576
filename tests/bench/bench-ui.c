/* bench-ui.c: how long the window keeps its main loop, with the CPU engine at work. See ui-harness.h.
 *
 * bench-ui [--json FILE] [--tokens N] [--history MESSAGES] [--rate TOKENS/S] [--no-compute] [-p /bench/NAME ...]
 *                                                                                      by tests/app/run-headless.sh
 *
 * The application is the real one in a window under Xvfb, the engine computes every token of the shipped model with its
 * context limit raised; what it draws is replaced by a text with paragraphs, lists, code and tables, at 200 tokens/s at
 * most (see paced-backend.h). Where the CPU does not compute as many, --no-compute leaves the decode steps out.
 * Times of the main thread: wall, CPU, and how long it was ready while others had the CPUs. GTK draws with its software
 * renderer here; its part is "render", which a GPU's renderer does elsewhere. */
#include <gio/gio.h>
#include <json-glib/json-glib.h>
#include <math.h>
#include <string.h>
#include <sys/utsname.h>

#include "app/quire-cache-panel.h"
#include "app/quire-message-row.h"
#include "app/quire-page-map.h"
#include "app/quire-settings.h"
#include "engine/qe-engine.h"
#include "tests/app/ui-harness.h"
#include "tests/bench/loop-meter.h"
#include "tests/bench/paced-backend.h"

#define CONTEXT_MAX "65536"
#define OPEN_RUNS   7
#define N_LONGEST   12

static char *json_file;
static int n_reply = 3000, n_history = 50; /* messages of about 400 tokens: 20,000 and more */
static double rate = 200;
static gboolean no_compute;
static JsonBuilder *json;

qe_engine *__wrap_qe_engine_new(const qe_engine_options *options, GError **error);

qe_engine *__wrap_qe_engine_new(const qe_engine_options *options, GError **error)
{
    return qe_engine_new_with_backend(options, paced_backend_open, NULL, error);
}

/* ---- Figures ---- */

static void add(const char *name, double value)
{
    json_builder_set_member_name(json, name);
    json_builder_add_double_value(json, value);
}

static void begin_figures(const char *name)
{
    json_builder_set_member_name(json, name);
    json_builder_begin_object(json);
}

static void end_figures(void)
{
    json_builder_end_object(json);
}

typedef double (*Field)(const MeterIteration *iteration);

static double wall(const MeterIteration *i)
{
    return i->all.wall_ms;
}

static double cpu(const MeterIteration *i)
{
    return i->all.cpu_ms;
}

static double waited(const MeterIteration *i)
{
    return i->all.wait_ms;
}

/* What it would have taken if the thread had got a CPU whenever it was ready. */
static double own(const MeterIteration *i)
{
    return i->all.wall_ms - i->all.wait_ms;
}

static double update(const MeterIteration *i)
{
    return i->update_ms;
}

static double layout(const MeterIteration *i)
{
    return i->layout_ms;
}

static double snapshot(const MeterIteration *i)
{
    return i->snapshot_ms;
}

static double render(const MeterIteration *i)
{
    return i->render_ms;
}

static double but_render(const MeterIteration *i)
{
    return i->all.cpu_ms - i->render_ms;
}

static void show_field(GArray *iterations, const char *name, Field field, gboolean painted)
{
    g_autofree double *values = g_new(double, iterations->len + 1);
    double sum = 0, p50, p99, most;
    guint n = 0;

    for (guint i = 0; i < iterations->len; i++) {
        const MeterIteration *at = &g_array_index(iterations, MeterIteration, i);

        if (painted && !at->painted)
            continue;
        sum += values[n] = field(at);
        n++;
    }
    p50 = meter_percentile(values, n, 0.5);
    p99 = meter_percentile(values, n, 0.99);
    most = n > 0 ? values[n - 1] : 0;
    g_print("#   %-28s mean %6.2f  p50 %6.2f  p99 %6.2f  max %6.2f ms\n", name, n > 0 ? sum / n : 0, p50, p99,
        most);
    begin_figures(name);
    add("mean_ms", n > 0 ? sum / n : 0);
    add("p50_ms", p50);
    add("p99_ms", p99);
    add("max_ms", most);
    end_figures();
}

static guint count_painted(GArray *iterations)
{
    guint n = 0;

    for (guint i = 0; i < iterations->len; i++)
        n += g_array_index(iterations, MeterIteration, i).painted;
    return n;
}

static void show_iterations(GArray *iterations)
{
    g_print("#   %u iterations, %u of them with a frame\n", iterations->len, count_painted(iterations));
    add("iterations", iterations->len);
    add("frames", count_painted(iterations));
    show_field(iterations, "iteration, wall", wall, FALSE);
    show_field(iterations, "iteration, wall - wait", own, FALSE);
    show_field(iterations, "iteration, CPU", cpu, FALSE);
    show_field(iterations, "iteration, CPU - render", but_render, FALSE);
    show_field(iterations, "iteration, waited", waited, FALSE);
    show_field(iterations, "frame, CPU", cpu, TRUE);
    show_field(iterations, "frame, CPU - render", but_render, TRUE);
    show_field(iterations, "frame: callbacks", update, TRUE);
    show_field(iterations, "frame: layout", layout, TRUE);
    show_field(iterations, "frame: snapshot", snapshot, TRUE);
    show_field(iterations, "frame: render", render, TRUE);
}

static int longest_first(const void *a, const void *b)
{
    const MeterIteration *x = *(MeterIteration *const *)a, *y = *(MeterIteration *const *)b;

    return (x->all.cpu_ms < y->all.cpu_ms) - (x->all.cpu_ms > y->all.cpu_ms);
}

/* The iterations that took most of the thread's time, and how many tokens were written by then. */
static void show_longest(GArray *iterations)
{
    g_autofree MeterIteration **order = g_new(MeterIteration *, iterations->len + 1);

    for (guint i = 0; i < iterations->len; i++)
        order[i] = &g_array_index(iterations, MeterIteration, i);
    qsort(order, iterations->len, sizeof *order, longest_first);
    for (guint i = 0; i < MIN(iterations->len, N_LONGEST); i++)
        g_print("#   token %5u: CPU %6.2f (wall %6.2f): callbacks %5.2f  layout %5.2f  snapshot %5.2f  "
                "render %5.2f ms\n",
            order[i]->progress, order[i]->all.cpu_ms, order[i]->all.wall_ms, order[i]->update_ms,
            order[i]->layout_ms, order[i]->snapshot_ms, order[i]->render_ms);
}

/* ---- The text that is written ---- */

static const char *const parts[] = {
    "A page holds **16 tokens** and is *sealed* when it is full; a sealed page is shared by all who need it, "
    "and what "
    "was computed once need not be computed again, as long as the tokens before it are the same.\n\n",
    "## What moves where\n\n",
    "- the card keeps what is hot\n- the host keeps what is warm, and it is attended to `in place`\n"
    "- the disk keeps the rest\n\n",
    "```c\nstatic int\nfind_page (const Pool *pool, uint64_t hash)\n{\n"
    "  for (size_t i = hash % pool->n; pool->slots[i].used; i = (i + 1) % pool->n)\n"
    "    if (pool->slots[i].hash == hash)\n      return pool->slots[i].page;\n"
    "  return -1; /* it is not there */\n}\n```\n\n",
    "The bound of a page is the largest product that any of its keys can have with the query; pages are read "
    "in the "
    "order of their bounds, until what is left cannot change the result any more.\n\n",
    "| tier | bytes a token | latency |\n| --- | ---: | ---: |\n| card | 4,096 | 1 us |\n| host | 4,096 | 20 "
    "us |\n"
    "| disk | 4,096 | 200 us |\n\n",
    "1. Find the longest prefix that is there.\n2. Bring its pages back, the first ones first.\n"
    "3. Compute what is new, and seal each page as it fills.\n\n",
};

static void write_next_reply(guint n_tokens)
{
    qe_tokenizer *tokenizer = quire_engine_client_dup_tokenizer(quire_application_get_client(application));
    g_autoptr(GArray) ids = g_array_new(FALSE, FALSE, sizeof(uint32_t));
    g_autoptr(GArray) end = g_array_new(FALSE, FALSE, sizeof(uint32_t));

    for (guint i = 0; ids->len < n_tokens; i++) {
        const char *part = parts[i % G_N_ELEMENTS(parts)];

        g_assert_true(qe_tokenizer_encode(tokenizer, part, strlen(part), QE_ENCODE_PLAIN, ids, NULL));
    }
    g_assert_true(qe_tokenizer_encode(tokenizer, "<|im_end|>", 10, QE_ENCODE_ADDED_TOKENS, end, NULL));
    g_assert_cmpuint(end->len, ==, 1);
    paced_backend_set_script(
        (const uint32_t *)(gpointer)ids->data, n_tokens, g_array_index(end, uint32_t, 0), rate);
    qe_tokenizer_unref(tokenizer);
}

/* ---- A reply streams ---- */

static gboolean is_loaded(gpointer data)
{
    (void)data;
    return quire_window_get_chat(window) != NULL && quire_conversation_is_loaded(conversation());
}

static gboolean has_rows(gpointer data)
{
    (void)data;
    return is_loaded(NULL) && last_row() != NULL && gtk_widget_get_height(last_row()) > 0;
}

static gboolean is_writing(gpointer data)
{
    QuireMessage *reply = quire_conversation_get_last_reply(conversation());

    (void)data;
    return reply != NULL && quire_message_get_state(reply) >= QUIRE_REPLY_WRITING;
}

/* Reading 20,000 tokens takes its time where others have the CPUs. */
static void wait_long(Condition condition)
{
    while (!condition(NULL))
        g_main_context_iteration(NULL, TRUE);
}

static guint n_written(void)
{
    return receipt()->n_generated;
}

static void open_chat(guint n_messages, guint n_tokens)
{
    g_autofree char *id = add_chat("A chat", n_messages, n_tokens);

    g_assert_true(gtk_widget_activate_action(GTK_WIDGET(window), "win.chat-open", "s", id));
    wait_for("the messages", has_rows, NULL);
    wait_ms(1000);
}

/* CPU milliseconds a token, of the tokens [from, to). */
static double cost_a_token(GArray *iterations, guint from, guint to)
{
    double ms = 0;

    for (guint i = 0; i < iterations->len; i++) {
        const MeterIteration *at = &g_array_index(iterations, MeterIteration, i);

        if (at->progress >= from && at->progress < to)
            ms += at->all.cpu_ms - at->render_ms;
    }
    return ms / (to - from);
}

static void stream(const char *name, gboolean panel_open)
{
    g_autoptr(GArray) reading = NULL, writing = NULL;
    guint n, part = (guint)n_reply / 6;
    MeterTime begin, took;

    g_settings_set_boolean(quire_settings_get_default(), "panel-open", panel_open);
    open_window(1200, 780);
    open_chat((guint)n_history, 300);
    write_next_reply((guint)n_reply);
    n = g_list_model_get_n_items(G_LIST_MODEL(conversation()));
    type("Tell me how pages move.");
    wait_for("the typed text", draft_is, (gpointer) "Tell me how pages move.");
    meter_begin(GTK_WINDOW(window), NULL);
    quire_chat_view_send(quire_window_get_chat(window), "Tell me how pages move.");
    wait_for("a reply", has_n_messages, GUINT_TO_POINTER(n + 2));
    wait_long(is_writing);
    reading = meter_end();
    g_print("# %u tokens read in %.1f s\n", receipt()->n_prompt, receipt()->prefill_ms / 1e3);
    begin = meter_now();
    meter_begin(GTK_WINDOW(window), n_written);
    wait_long(is_idle);
    writing = meter_end();
    took = meter_since(begin);
    g_assert_cmpuint(n_written(), >=, (guint)n_reply);
    g_print("# %s: %u tokens of prompt, %u tokens written at %.0f a second\n", name, receipt()->n_prompt,
        n_written(), n_written() / (took.wall_ms / 1e3));
    begin_figures(name);
    add("prompt_tokens", receipt()->n_prompt);
    add("written_tokens", n_written());
    add("tokens_per_s", n_written() / (took.wall_ms / 1e3));
    begin_figures("reading");
    g_print("#  while the prompt is read\n");
    show_iterations(reading);
    end_figures();
    begin_figures("writing");
    g_print("#  while the reply is written\n");
    show_iterations(writing);
    show_longest(writing);
    g_print("#   CPU a token, without render: %.3f ms for the first %u, %.3f ms for the last\n",
        cost_a_token(writing, 0, part), part, cost_a_token(writing, (guint)n_reply - part, (guint)n_reply));
    g_print("#   the main thread had a CPU for %.0f %% of the time\n", 100 * took.cpu_ms / took.wall_ms);
    add("cpu_ms_a_token_first", cost_a_token(writing, 0, part));
    add("cpu_ms_a_token_last", cost_a_token(writing, (guint)n_reply - part, (guint)n_reply));
    add("cpu_share", took.cpu_ms / took.wall_ms);
    end_figures();
    end_figures();
    paced_backend_set_script(NULL, 0, 0, 0);
    close_window();
}

static void bench_stream(void)
{
    stream("stream, panel hidden", FALSE);
}

static void bench_stream_panel(void)
{
    stream("stream, panel shown", TRUE);
}

/* ---- 1,000 messages are opened ---- */

static MeterTime open_began, open_took;
static gboolean open_painted;

static void painted_cb(void)
{
    if (!open_painted && has_rows(NULL)) {
        open_took = meter_since(open_began);
        open_painted = TRUE;
    }
}

static void show_values(const char *name, double *values, guint n)
{
    double median = meter_percentile(values, n, 0.5);

    g_print("#   %-28s median %6.1f  min %6.1f  max %6.1f ms\n", name, median, values[0], values[n - 1]);
    begin_figures(name);
    add("median_ms", median);
    add("min_ms", values[0]);
    add("max_ms", values[n - 1]);
    end_figures();
}

static void bench_open(void)
{
    double wall_ms[OPEN_RUNS], cpu_ms[OPEN_RUNS], own_ms[OPEN_RUNS];
    g_autoptr(GArray) iterations = NULL;
    g_autofree char *id = NULL;

    g_settings_set_boolean(quire_settings_get_default(), "panel-open", FALSE);
    begin_figures("open 1,000 messages");
    g_print("# 1,000 messages of 300 tokens to the first painted frame\n");
    for (guint i = 0; i < OPEN_RUNS; i++) {
        GdkFrameClock *frames;
        gulong handler;

        open_window(1200, 780);
        if (id == NULL)
            id = add_chat("Long", 1000, 300);
        wait_ms(500);
        frames = gtk_widget_get_frame_clock(GTK_WIDGET(window));
        open_painted = FALSE;
        handler = g_signal_connect(frames, "after-paint", G_CALLBACK(painted_cb), NULL);
        if (i == OPEN_RUNS - 1)
            meter_begin(GTK_WINDOW(window), NULL);
        open_began = meter_now();
        g_assert_true(gtk_widget_activate_action(GTK_WIDGET(window), "win.chat-open", "s", id));
        wait_for("a painted frame", is_set, &open_painted);
        g_signal_handler_disconnect(frames, handler);
        wall_ms[i] = open_took.wall_ms;
        cpu_ms[i] = open_took.cpu_ms;
        own_ms[i] = open_took.wall_ms - open_took.wait_ms;
        if (i == OPEN_RUNS - 1) {
            wait_ms(1000);
            iterations = meter_end();
        }
        g_assert_cmpuint(g_list_model_get_n_items(G_LIST_MODEL(conversation())), ==, 1000);
        if (i == 0)
            g_print("#   %u rows were made, the first time %.1f ms wall\n",
                quire_chat_view_get_n_rows(quire_window_get_chat(window)), wall_ms[0]);
        close_window();
    }
    show_values("wall", wall_ms, OPEN_RUNS);
    show_values("wall - wait", own_ms, OPEN_RUNS);
    show_values("main thread's CPU", cpu_ms, OPEN_RUNS);
    show_iterations(iterations);
    end_figures();
}

/* ---- The page map ---- */

#define MAP_PAGES   16384u
#define MAP_UPDATES 60

static double map_ms; /* spent in the map's own code since it was zeroed */
static void (*map_snapshot)(GtkWidget *widget, GtkSnapshot *snapshot);

static void map_snapshot_cb(GtkWidget *widget, GtkSnapshot *snapshot_to)
{
    MeterTime begin = meter_now();

    map_snapshot(widget, snapshot_to);
    map_ms += meter_since(begin).cpu_ms;
}

static guint n_frames;

static void frame_cb(void)
{
    n_frames++;
}

static gboolean has_frame(gpointer data)
{
    (void)data;
    return n_frames > 0;
}

typedef void (*Change)(qe_cell *pages, guint i, guint *n_pages);

static void change_tail(qe_cell *pages, guint i, guint *n_pages)
{
    (void)i;
    if (pages[*n_pages - 1].n_tokens < 16)
        pages[*n_pages - 1].n_tokens++;
    else
        pages[(*n_pages)++] = (qe_cell){.flags = QE_TIER_GPU | QE_CELL_TAIL, .n_refs = 1, .n_tokens = 1};
}

static void change_first(qe_cell *pages, guint i, guint *n_pages)
{
    (void)n_pages;
    pages[0].flags = i % 2 ? QE_TIER_HOST : QE_TIER_DISK;
}

/* As pages move while a conversation is restored: 64 here and there. */
static void change_some(qe_cell *pages, guint i, guint *n_pages)
{
    for (guint k = 0; k < 64; k++)
        pages[k * 257u % *n_pages].flags = i % 2 ? QE_TIER_HOST : QE_TIER_DISK;
}

static void change_all(qe_cell *pages, guint i, guint *n_pages)
{
    for (guint k = 0; k < *n_pages; k++)
        pages[k].flags = i % 2 ? QE_TIER_HOST : QE_TIER_DISK;
}

static const char *map_title(qe_session_id session, gpointer user_data)
{
    (void)session, (void)user_data;
    return "A chat";
}

static void update_map(const char *name, QuireCachePanel *panel, Change change)
{
    g_autofree qe_cell *pages = g_new(qe_cell, MAP_PAGES + MAP_UPDATES);
    g_autofree uint32_t *zeros = g_new0(uint32_t, 300);
    double apply[MAP_UPDATES], draw[MAP_UPDATES], sum[MAP_UPDATES];
    guint n_pages = MAP_PAGES;
    g_autoptr(GArray) iterations = NULL;

    for (guint i = 0; i < n_pages; i++)
        pages[i] =
            (qe_cell){.flags = (uint8_t)(i < 8192 ? QE_TIER_HOST : QE_TIER_GPU), .n_refs = 1, .n_tokens = 16};
    for (int i = -1; i < MAP_UPDATES; i++) {
        qe_session_view view = {.id = 99, .n_tokens = n_pages * 16, .mode = QE_CACHE_TIERED, .cells = pages};
        qe_snapshot all = {.page_tokens = 16, .page_bytes = 65536, .n_sessions = 1, .sessions = &view};
        MeterTime begin;

        if (i >= 0)
            change(pages, (guint)i, &n_pages);
        view.n_pages = n_pages;
        view.bytes = (uint64_t)n_pages * all.page_bytes;
        for (guint k = 0; k < n_pages; k++)
            view.n_pages_tier[pages[k].flags & QE_CELL_TIER_MASK]++;
        for (int t = 0; t < QE_N_TIERS; t++)
            all.tier_history[t] = zeros;
        all.history = zeros;
        all.tiers[QE_TIER_GPU].present = all.tiers[QE_TIER_HOST].present = true;
        map_ms = 0;
        n_frames = 0;
        if (i == 0)
            meter_begin(GTK_WINDOW(window), NULL);
        begin = meter_now();
        quire_cache_panel_set_snapshot(panel, &all);
        if (i >= 0)
            apply[i] = meter_since(begin).cpu_ms;
        if (i >= 0)
            wait_for("a frame", has_frame, NULL);
        if (i >= 0) {
            draw[i] = map_ms;
            sum[i] = apply[i] + draw[i];
        }
        wait_ms(i < 0 ? 500 : 100);
    }
    iterations = meter_end();
    begin_figures(name);
    g_print("#  %s\n", name);
    show_values("applied to the panel, CPU", apply, MAP_UPDATES);
    show_values("the map drawn, CPU", draw, MAP_UPDATES);
    show_values("both, CPU", sum, MAP_UPDATES);
    show_field(iterations, "frame: layout", layout, TRUE);
    show_field(iterations, "frame: snapshot", snapshot, TRUE);
    show_field(iterations, "frame: render", render, TRUE);
    end_figures();
}

static void bench_map(void)
{
    GtkWidgetClass *map_class = g_type_class_ref(QUIRE_TYPE_PAGE_MAP);
    QuireCachePanel *panel;
    GdkFrameClock *frames;
    gulong handler;

    g_settings_set_boolean(quire_settings_get_default(), "panel-open", TRUE);
    g_object_set(gtk_settings_get_default(), "gtk-cursor-blink", FALSE, NULL);
    open_window(1200, 780);
    wait_ms(2000);
    panel = QUIRE_CACHE_PANEL(find(GTK_WIDGET(window), QUIRE_TYPE_CACHE_PANEL));
    quire_cache_panel_set_title_func(panel, map_title, NULL);
    frames = gtk_widget_get_frame_clock(GTK_WIDGET(window));
    handler = g_signal_connect(frames, "after-paint", G_CALLBACK(frame_cb), NULL);
    map_snapshot = map_class->snapshot;
    map_class->snapshot = map_snapshot_cb;
    g_print("# the page map at %u pages\n", MAP_PAGES);
    begin_figures("page map");
    update_map("the conversation grows", panel, change_tail);
    update_map("the first page moves", panel, change_first);
    update_map("64 pages move", panel, change_some);
    update_map("all pages move", panel, change_all);
    end_figures();
    map_class->snapshot = map_snapshot;
    g_type_class_unref(map_class);
    g_signal_handler_disconnect(frames, handler);
    g_object_set(gtk_settings_get_default(), "gtk-cursor-blink", TRUE, NULL);
    close_window();
    g_settings_set_boolean(quire_settings_get_default(), "panel-open", FALSE);
}

/* ---- The first token ---- */

#define FIRST_RUNS 9

static guint n_frames_before_row;
static gboolean row_seen;
static guint n_wanted;

/* Frames from the key until one has the user's message and the caret of the reply. */
static void count_until_row_cb(void)
{
    GtkWidget *row = last_row();

    if (row_seen)
        return;
    n_frames_before_row++;
    row_seen = has_n_messages(GUINT_TO_POINTER(n_wanted)) && row != NULL && gtk_widget_get_height(row) > 0 &&
               gtk_widget_get_height(gtk_widget_get_prev_sibling(row)) > 0;
}

static gboolean key_cb(GtkEventController *controller, guint keyval, guint keycode, GdkModifierType state)
{
    (void)controller, (void)keycode, (void)state;
    if (keyval == GDK_KEY_Return) {
        n_frames_before_row = 0;
        row_seen = FALSE;
    }
    return FALSE;
}

static gboolean was_shown(gpointer data)
{
    (void)data;
    return is_idle(NULL) &&
           quire_message_get_reply(quire_conversation_get_last_reply(conversation()))->shown_ms > 0;
}

static void bench_first(void)
{
    double key_to_screen[FIRST_RUNS], saved[FIRST_RUNS], queue[FIRST_RUNS], restore[FIRST_RUNS],
        prefill[FIRST_RUNS], decode[FIRST_RUNS], paint[FIRST_RUNS];
    GtkEventController *keys = gtk_event_controller_key_new();
    GdkFrameClock *frames;
    gulong handler;
    guint n_frames_most = 0;

    open_window(1200, 780);
    open_chat((guint)n_history, 300);
    frames = gtk_widget_get_frame_clock(GTK_WIDGET(window));
    handler = g_signal_connect(frames, "after-paint", G_CALLBACK(count_until_row_cb), NULL);
    gtk_event_controller_set_propagation_phase(keys, GTK_PHASE_CAPTURE);
    g_signal_connect(keys, "key-pressed", G_CALLBACK(key_cb), NULL);
    gtk_widget_add_controller(GTK_WIDGET(window), keys);
    row_seen = TRUE;
    for (int i = -1; i < FIRST_RUNS; i++) {
        const QuireReply *reply;

        write_next_reply(60);
        n_wanted = g_list_model_get_n_items(G_LIST_MODEL(conversation())) + 2;
        say("And what then?", n_wanted);
        wait_long(was_shown);
        g_assert_true(row_seen);
        reply = quire_message_get_reply(quire_conversation_get_last_reply(conversation()));
        if (i < 0) /* reads all of the history */
            continue;
        n_frames_most = MAX(n_frames_most, n_frames_before_row);
        key_to_screen[i] = reply->shown_ms;
        saved[i] = reply->saved_ms;
        queue[i] = reply->receipt.queue_ms;
        restore[i] = reply->receipt.restore_ms;
        prefill[i] = reply->receipt.prefill_ms;
        decode[i] = reply->receipt.first_token_ms - queue[i] - restore[i] - prefill[i];
        paint[i] = reply->shown_ms - reply->saved_ms - reply->receipt.first_token_ms;
    }
    g_print("# the first token of a turn on 20,000 tokens\n");
    begin_figures("first token");
    show_values("key to screen", key_to_screen, FIRST_RUNS);
    show_values("saving", saved, FIRST_RUNS);
    show_values("queue", queue, FIRST_RUNS);
    show_values("restore", restore, FIRST_RUNS);
    show_values("prefill", prefill, FIRST_RUNS);
    show_values("first decode", decode, FIRST_RUNS);
    show_values("paint", paint, FIRST_RUNS);
    g_print("#   the message and the caret are in frame %u after the key\n", n_frames_most);
    add("frames_to_message", n_frames_most);
    end_figures();
    g_signal_handler_disconnect(frames, handler);
    paced_backend_set_script(NULL, 0, 0, 0);
    close_window();
}

/* ---- Nothing happens ---- */

static void bench_idle(void)
{
    g_autoptr(GArray) iterations = NULL;

    g_object_set(gtk_settings_get_default(), "gtk-cursor-blink", FALSE, NULL);
    open_window(1200, 780);
    open_chat((guint)n_history, 300);
    wait_ms(3000);
    meter_begin(GTK_WINDOW(window), NULL);
    wait_ms(10000);
    iterations = meter_end();
    g_print(
        "# idle, panel hidden, 10 s: %u wake-ups, %u frames\n", iterations->len, count_painted(iterations));
    begin_figures("idle");
    add("wake_ups", iterations->len);
    add("frames", count_painted(iterations));
    end_figures();
    g_object_set(gtk_settings_get_default(), "gtk-cursor-blink", TRUE, NULL);
    close_window();
}

/* ---- Running ---- */

/* The shipped model's files under another configuration. */
static char *long_model(const char *root)
{
    const char *from = g_getenv("QUIRE_TEST_MODEL");
    g_autoptr(GDir) files = g_dir_open(from, 0, NULL);
    g_autoptr(GRegex) limit = g_regex_new("(\"max_position_embeddings\": *)[0-9]+", 0, 0, NULL);
    const char *name;

    g_assert_nonnull(files);
    while ((name = g_dir_read_name(files)) != NULL) {
        g_autofree char *a = g_build_filename(from, name, NULL), *b = g_build_filename(root, name, NULL);
        g_autofree char *target = g_canonicalize_filename(a, NULL);
        g_autoptr(GFile) link = g_file_new_for_path(b);

        if (strcmp(name, "config.json") == 0) {
            g_autofree char *text = NULL, *wanted = NULL;

            g_assert_true(g_file_get_contents(a, &text, NULL, NULL));
            wanted = g_regex_replace(limit, text, -1, 0, "\\g<1>" CONTEXT_MAX, 0, NULL);
            g_assert_true(g_file_set_contents(b, wanted, -1, NULL));
        } else
            g_assert_true(g_file_make_symbolic_link(link, target, NULL, NULL));
    }
    return g_strdup(root);
}

static void prepare(GSettings *settings)
{
    g_autofree char *root = g_dir_make_tmp("quire-bench-XXXXXX", NULL);
    g_autofree char *dir = long_model(root);

    g_log_set_always_fatal(
        G_LOG_FATAL_MASK | G_LOG_LEVEL_CRITICAL); /* a warning shows, and is no reason to end */
    g_settings_set_string(settings, "model-folder", dir);
    g_settings_set_boolean(settings, "panel-open", FALSE);
    g_settings_set_uint(settings, "max-tokens", 0);
}

static void add_benches(void)
{
    g_test_add_func("/bench/open", bench_open);
    g_test_add_func("/bench/map", bench_map);
    g_test_add_func("/bench/first", bench_first);
    g_test_add_func("/bench/idle", bench_idle);
    g_test_add_func("/bench/stream", bench_stream);
    g_test_add_func("/bench/stream-panel", bench_stream_panel);
}

static double load_average(void)
{
    g_autofree char *text = NULL;

    return g_file_get_contents("/proc/loadavg", &text, NULL, NULL) ? g_ascii_strtod(text, NULL) : -1;
}

int main(int argc, char **argv)
{
    const GOptionEntry entries[] = {
        {"json", 0, 0, G_OPTION_ARG_FILENAME, &json_file, "Write the figures there, too", "FILE"},
        {"tokens", 0, 0, G_OPTION_ARG_INT, &n_reply, "Length of the reply that streams", "N"},
        {"history", 0, 0, G_OPTION_ARG_INT, &n_history, "Messages that are there before (an even number)",
            "N"},
        {"no-compute", 0, 0, G_OPTION_ARG_NONE, &no_compute, "Write tokens that are not computed", NULL},
        {"rate", 0, 0, G_OPTION_ARG_DOUBLE, &rate, "Tokens a second at most", "N"},
        {0},
    };
    g_autoptr(GOptionContext) context = g_option_context_new(NULL);
    g_autoptr(GDateTime) date = g_date_time_new_now_utc();
    g_autofree char *day = g_date_time_format_iso8601(date);
    g_autoptr(GError) error = NULL;
    int rc;

    g_option_context_set_ignore_unknown_options(context, TRUE);
    g_option_context_add_main_entries(context, entries, NULL);
    if (!g_option_context_parse(context, &argc, &argv, &error) || n_reply < 600 || n_history < 2 ||
        n_history % 2 != 0) {
        g_printerr(
            "%s\n", error != NULL ? error->message : "--tokens: 600 at least; --history: an even number");
        return 2;
    }
    paced_backend_set_computes(!no_compute);
    g_unsetenv("QUIRE_ISA"); /* the test's display asks for the slowest */
    json = json_builder_new();
    json_builder_begin_object(json);
    json_builder_set_member_name(json, "date");
    json_builder_add_string_value(json, day);
    add("load_before", load_average());
    g_print("# %s, %u CPUs, load %.1f, renderer %s\n", day, g_get_num_processors(), load_average(),
        g_getenv("GSK_RENDERER") != NULL ? g_getenv("GSK_RENDERER") : "GTK's choice");
    rc = ui_main(argc, argv, prepare, add_benches);
    add("load_after", load_average());
    json_builder_end_object(json);
    if (json_file != NULL) {
        g_autoptr(JsonGenerator) generator = json_generator_new();
        g_autoptr(JsonNode) root = json_builder_get_root(json);

        json_generator_set_pretty(generator, TRUE);
        json_generator_set_root(generator, root);
        if (!json_generator_to_file(generator, json_file, &error)) {
            g_printerr("%s\n", error->message);
            rc = 1;
        }
    }
    g_object_unref(json);
    return rc;
}
