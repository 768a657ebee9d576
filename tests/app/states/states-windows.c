/* states-windows.c: states of the windows beside the chat's. A load that takes its time needs a device that is not there yet,
 * see mock-card.h. */
#include <adwaita.h>
#include <glib/gstdio.h>
#include <string.h>

#include "app/quire-chat-settings-window.h"
#include "app/quire-limits.h"
#include "app/quire-model-list.h"
#include "app/quire-model-row.h"
#include "app/quire-models-window.h"
#include "app/quire-preferences-window.h"
#include "app/quire-settings.h"
#include "app/quire-why-gpu.h"
#include "app/quire-window-private.h"
#include "tests/app/mock-card.h"
#include "tests/app/states/states.h"
#include "tests/app/ui-harness.h"

/* ---- The engine's device ---- */

static void hold_load(void)
{
    mock_card_use = TRUE;
    mock_card_hold(TRUE);
    quire_application_restart_engine(application);
    wait_for("a load", engine_state_is, GINT_TO_POINTER(QE_ENGINE_LOADING));
}

static void let_load(void)
{
    mock_card_hold(FALSE);
    mock_card_use = FALSE;
    quire_application_restart_engine(application);
    wait_for("an engine", engine_is_settled, NULL);
}

static gboolean has_bar(gpointer data)
{
    GtkWidget *bar = find(GTK_WIDGET(window), g_type_from_name("QuireEngineBar"));

    return quire_engine_bar_get_urgency(QUIRE_ENGINE_BAR(bar)) == QUIRE_URGENCY_PROGRESS;
}

static void show_loading(void)
{
    hold_load();
    wait_for("the bar", has_bar, NULL);
}

/* The card's memory was given back. */
static void show_released(void)
{
    mock_card_use = TRUE;
    quire_application_restart_engine(application);
    wait_for("an engine", engine_is_settled, NULL);
    show_done();
    g_action_group_activate_action(G_ACTION_GROUP(application), "release-memory", NULL);
    wait_for("the release", engine_state_is, GINT_TO_POINTER(QE_ENGINE_RELEASED));
}

/* ---- Windows ---- */

static GtkWidget *found_window;

GtkWidget *other_window(GType type)
{
    GtkWidget *found = NULL;
    GList *windows = gtk_window_list_toplevels();

    for (GList *l = windows; l != NULL; l = l->next)
        if (G_TYPE_CHECK_INSTANCE_TYPE(l->data, type) && gtk_widget_get_mapped(l->data))
            found = l->data;
    g_list_free(windows);
    return found;
}

static gboolean has_window(gpointer type)
{
    found_window = other_window(GPOINTER_TO_SIZE(type));
    return found_window != NULL;
}

static gboolean has_a_width(gpointer data)
{
    return gtk_widget_get_width(found_window) > 0;
}

static gboolean has_width(gpointer data)
{
    return gtk_widget_get_width(found_window) <= look_width;
}

/* As wide as the look at most. A size that is asked for before the window has its first one is lost. */
static void fit_window(void)
{
    int width, height;

    wait_for("its first size", has_a_width, NULL);
    wait_ms(30);
    gtk_window_get_default_size(GTK_WINDOW(found_window), &width, &height);
    if (width <= look_width && height <= look_height)
        return;
    gtk_window_set_default_size(GTK_WINDOW(found_window), width <= 0 ? -1 : MIN(width, look_width),
        height <= 0 ? -1 : MIN(height, look_height));
    wait_for("its width", has_width, NULL);
}

GtkWidget *wait_window(GType type)
{
    wait_for(g_type_name(type), has_window, GSIZE_TO_POINTER(type));
    if (type != GTK_TYPE_SHORTCUTS_WINDOW)
        fit_window();
    return found_window;
}

/* ---- Models ---- */

static char *folders;

static void write_text(const char *dir, const char *name, const char *text)
{
    g_autofree char *folder = g_build_filename(folders, dir, NULL);
    g_autofree char *path = g_build_filename(folder, name, NULL);

    g_mkdir_with_parents(folder, 0755);
    g_assert_true(g_file_set_contents(path, text, -1, NULL));
}

/* The shipped model under another name; with @cut, without the half of its second shard. */
static void link_model(const char *name, gboolean cut)
{
    const char *from = g_getenv("QUIRE_TEST_MODEL");
    g_autofree char *to = g_build_filename(folders, name, NULL);
    g_autoptr(GDir) dir = g_dir_open(from, 0, NULL);
    const char *file;

    g_mkdir_with_parents(to, 0755);
    while ((file = g_dir_read_name(dir)) != NULL) {
        g_autofree char *a = g_build_filename(from, file, NULL);
        g_autofree char *b = g_build_filename(to, file, NULL);
        g_autofree char *data = NULL;
        gsize n;

        if (!g_file_test(a, G_FILE_TEST_IS_REGULAR))
            continue;
        g_assert_true(g_file_get_contents(a, &data, &n, NULL));
        if (cut && strstr(file, "00002-of") != NULL)
            n /= 2;
        g_assert_true(g_file_set_contents(b, data, (gssize)n, NULL));
    }
}

/* What people have on their disks: a whole model, a cut one, other formats, another architecture, one that is gone. */
static void make_folders(void)
{
    if (folders != NULL)
        return;
    folders = g_dir_make_tmp("quire-models-XXXXXX", NULL);
    link_model("second-model", FALSE);
    link_model("broken-copy", TRUE);
    write_text("Qwen3-4B-GGUF", "Qwen3-4B-Q4_K_M.gguf", "GGUF\x03");
    write_text("Llama-3.2-1B", "config.json",
        "{\"architectures\": [\"LlamaForCausalLM\"], \"model_type\": \"llama\"}");
    write_text("Qwen3-4B-AWQ", "config.json",
        "{\"architectures\": [\"Qwen3ForCausalLM\"], \"model_type\": \"qwen3\", "
        "\"quantization_config\": {\"quant_method\": \"awq\", \"bits\": 4}}");
    write_text("Qwen3-30B-A3B-Instruct-2507-with-a-long-name", "config.json",
        "{\"architectures\": [\"Qwen3MoeForCausalLM\"], \"model_type\": \"qwen3_moe\"}");
}

static gboolean all_read(gpointer data)
{
    QuireModelList *list = quire_models_window_get_list(QUIRE_MODELS_WINDOW(found_window));
    guint n = g_list_model_get_n_items(G_LIST_MODEL(list));

    for (guint i = 0; i < n; i++) {
        g_autoptr(QuireModelItem) item = g_list_model_get_item(G_LIST_MODEL(list), i);

        if (quire_model_item_get_facts(item) == NULL)
            return FALSE;
    }
    return n >= GPOINTER_TO_UINT(data);
}

static void open_models(void)
{
    g_action_group_activate_action(G_ACTION_GROUP(application), "models", NULL);
    wait_window(QUIRE_TYPE_MODELS_WINDOW);
}

static void show_models(void)
{
    g_autoptr(GFile) file = NULL;

    make_folders();
    file = g_file_new_for_path(folders);
    open_models();
    quire_model_list_add(quire_models_window_get_list(QUIRE_MODELS_WINDOW(found_window)), file);
    wait_for("the folders", all_read, GUINT_TO_POINTER(7));
}

static void expand(GtkWidget *root, gboolean current)
{
    if (QUIRE_IS_MODEL_ROW(root) && quire_model_row_is_current(QUIRE_MODEL_ROW(root)) == current)
        adw_expander_row_set_expanded(ADW_EXPANDER_ROW(root), TRUE);
    for (GtkWidget *child = gtk_widget_get_first_child(root); child != NULL;
         child = gtk_widget_get_next_sibling(child))
        expand(child, current);
}

static gboolean is_high(gpointer a)
{
    return gtk_adjustment_get_upper(a) > gtk_adjustment_get_page_size(a) &&
           gtk_adjustment_get_page_size(a) > 0;
}

static void scroll(GtkWidget *root, double share)
{
    GtkWidget *scrolled = find(root, GTK_TYPE_SCROLLED_WINDOW);
    GtkAdjustment *a = gtk_scrolled_window_get_vadjustment(GTK_SCROLLED_WINDOW(scrolled));

    /* It has no height before it was drawn. */
    wait_for("its height", is_high, a);
    gtk_adjustment_set_value(a, (gtk_adjustment_get_upper(a) - gtk_adjustment_get_page_size(a)) * share);
    /* Not where the focus comes. */
    gtk_window_set_focus(GTK_WINDOW(root), NULL);
}

static void show_models_end(void)
{
    show_models();
    scroll(found_window, 1);
}

static void show_model_facts(void)
{
    open_models();
    wait_for("the facts", all_read, GUINT_TO_POINTER(1));
    expand(found_window, TRUE);
}

static void show_model_problem(void)
{
    show_models();
    expand(found_window, FALSE);
    scroll(found_window, 0.5);
}

static void show_models_loading(void)
{
    hold_load();
    open_models();
}

static void forget_models(void)
{
    g_settings_reset(quire_settings_get_default(), "model-folders");
    g_settings_reset(quire_settings_get_default(), "model-folder");
}

/* ---- Preferences ---- */

static void open_preferences(void)
{
    g_action_group_activate_action(G_ACTION_GROUP(application), "preferences", NULL);
    wait_window(QUIRE_TYPE_PREFERENCES_WINDOW);
}

static void show_preferences_memory(void)
{
    open_preferences();
    scroll(found_window, 0.3);
}

static void show_preferences_replies(void)
{
    open_preferences();
    scroll(found_window, 0.65);
}

static void show_preferences_end(void)
{
    open_preferences();
    scroll(found_window, 1);
}

#ifdef QUIRE_HAVE_SERVER
static gboolean server_runs(gpointer data)
{
    return quire_local_server_get_uri(quire_application_get_server(application)) != NULL;
}

static void show_server(void)
{
    GSettings *settings = quire_settings_get_default();
    /* A port that is free. */
    g_autoptr(GSocketListener) listener = g_socket_listener_new();

    g_settings_set_uint(settings, "server-port", g_socket_listener_add_any_inet_port(listener, NULL, NULL));
    g_socket_listener_close(listener);
    g_settings_set_boolean(settings, "server", TRUE);
    wait_for("the server", server_runs, NULL);
    open_preferences();
    scroll(found_window, 1);
}

static void stop_server(void)
{
    g_settings_reset(quire_settings_get_default(), "server");
    g_settings_reset(quire_settings_get_default(), "server-port");
}
#endif

static void show_limits(void)
{
    g_action_group_activate_action(G_ACTION_GROUP(application), "limits", g_variant_new_string("host"));
    wait_ms(50);
    for (GList *l = gtk_application_get_windows(GTK_APPLICATION(application)); l != NULL; l = l->next) {
        GtkWidget *limits = find(l->data, QUIRE_TYPE_LIMITS);

        if (limits == NULL)
            continue;
        wait_window(G_OBJECT_TYPE(l->data));
        quire_limits_set_host_mib(QUIRE_LIMITS(limits), 64);
        quire_limits_set_disk(QUIRE_LIMITS(limits), TRUE, 512);
        return;
    }
    g_assert_not_reached();
}

static GtkWidget *why_window(void)
{
    GList *windows = gtk_window_list_toplevels();
    GtkWidget *found = NULL;

    for (GList *l = windows; l != NULL; l = l->next)
        if (l->data != window && gtk_window_get_transient_for(l->data) == GTK_WINDOW(window) &&
            gtk_widget_get_mapped(l->data))
            found = l->data;
    g_list_free(windows);
    return found;
}

static gboolean has_why(gpointer data)
{
    found_window = why_window();
    return found_window != NULL && find(found_window, ADW_TYPE_PREFERENCES_GROUP) != NULL;
}

static void show_why_gpu(void)
{
    quire_why_gpu_present(GTK_WINDOW(window));
    wait_for("the facts", has_why, NULL);
    fit_window();
}

/* ---- A chat's settings ---- */

static void open_chat_settings(void)
{
    g_action_group_activate_action(
        quire_chat_view_get_actions(quire_window_get_chat(window)), "settings", NULL);
    wait_window(QUIRE_TYPE_CHAT_SETTINGS_WINDOW);
}

static void show_chat_settings(void)
{
    turn_shown("My name is Oda.");
    open_chat_settings();
    gtk_text_buffer_set_text(gtk_text_view_get_buffer(GTK_TEXT_VIEW(find(found_window, GTK_TYPE_TEXT_VIEW))),
        "Answer in one short sentence, as a pirate would.", -1);
}

static void show_chat_values(void)
{
    show_chat_settings();
    adw_expander_row_set_enable_expansion(ADW_EXPANDER_ROW(find(found_window, ADW_TYPE_EXPANDER_ROW)), TRUE);
    adw_expander_row_set_expanded(ADW_EXPANDER_ROW(find(found_window, ADW_TYPE_EXPANDER_ROW)), TRUE);
    scroll(found_window, 1);
}

/* ---- Help ---- */

static void show_shortcuts(void)
{
    act("win.show-help-overlay");
    wait_window(GTK_TYPE_SHORTCUTS_WINDOW);
}

static void show_about(void)
{
    g_action_group_activate_action(G_ACTION_GROUP(application), "about", NULL);
    wait_window(ADW_TYPE_ABOUT_WINDOW);
}

static const State states[] = {
    {"loading", show_loading, let_load},
    {"released", show_released, let_load},
    {"models", show_models, forget_models},
    {"models-end", show_models_end, forget_models},
    {"models-facts", show_model_facts, NULL},
    {"models-problem", show_model_problem, forget_models},
    {"models-loading", show_models_loading, let_load},
    {"preferences", open_preferences, NULL},
    {"preferences-memory", show_preferences_memory, NULL},
    {"preferences-replies", show_preferences_replies, NULL},
    {"preferences-end", show_preferences_end, NULL},
#ifdef QUIRE_HAVE_SERVER
    {"server", show_server, stop_server},
#endif
    {"limits", show_limits, NULL},
    {"why-gpu", show_why_gpu, NULL},
    {"chat-settings", show_chat_settings, NULL},
    {"chat-values", show_chat_values, NULL},
    {"shortcuts", show_shortcuts, NULL},
    {"about", show_about, NULL},
};

const StateTable states_windows = {states, G_N_ELEMENTS(states)};
