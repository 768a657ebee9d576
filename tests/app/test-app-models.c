/* test-app-models.c: the Models window over real folders, chats of another model, limits, and what happens to the model
 * through a day: memory given back, a device that is lost or slept. Where a card is needed the engine gets the mock device,
 * see mock-card.h. */
#include <glib/gstdio.h>
#include <string.h>

#include "app/quire-gpu-facts.h"
#include "app/quire-keeper.h"
#include "app/quire-limits.h"
#include "app/quire-message-row.h"
#include "app/quire-model-bar.h"
#include "app/quire-model-row.h"
#include "app/quire-models-window.h"
#include "app/quire-reading-speed.h"
#include "app/quire-settings.h"
#include "app/quire-why-gpu.h"
#include "tests/app/mock-card.h"
#include "tests/app/ui-harness.h"

/* ---- The engine's device ---- */

static void set_mock(gboolean on)
{
    mock_card_use = on;
    quire_application_restart_engine(application);
    wait_for("an engine", engine_is_settled, NULL);
}

/* ---- Folders ---- */

static void copy_file(const char *from, const char *to)
{
    g_autoptr(GError) error = NULL;
    g_autofree char *data = NULL;
    gsize n;

    g_file_get_contents(from, &data, &n, &error);
    g_assert_no_error(error);
    g_file_set_contents(to, data, (gssize)n, &error);
    g_assert_no_error(error);
}

/* The shipped model again, under another name. Returns: owned. */
static char *copy_model(const char *root, const char *name)
{
    const char *from = g_getenv("QUIRE_TEST_MODEL");
    char *dir = g_build_filename(root, name, NULL);
    g_autoptr(GDir) files = g_dir_open(from, 0, NULL);
    const char *file;

    g_assert_cmpint(g_mkdir(dir, 0755), ==, 0);
    while ((file = g_dir_read_name(files)) != NULL) {
        g_autofree char *a = g_build_filename(from, file, NULL);
        g_autofree char *b = g_build_filename(dir, file, NULL);

        if (g_file_test(a, G_FILE_TEST_IS_REGULAR))
            copy_file(a, b);
    }
    return dir;
}

static void write_text(const char *dir, const char *name, const char *text)
{
    g_autofree char *path = g_build_filename(dir, name, NULL);

    g_mkdir_with_parents(dir, 0755);
    g_assert_true(g_file_set_contents(path, text, -1, NULL));
}

static char *folder(const char *root, const char *name)
{
    return g_build_filename(root, name, NULL);
}

/* Cuts the second shard of @dir to its half. */
static void cut_shard(const char *dir)
{
    g_autofree char *path = g_build_filename(dir, "model-00002-of-00002.safetensors", NULL);
    GStatBuf info;

    g_assert_cmpint(g_stat(path, &info), ==, 0);
    g_assert_cmpint(truncate(path, info.st_size / 2), ==, 0);
}

static void remove_tree(const char *dir)
{
    const char *argv[] = {"rm", "-r", dir, NULL};

    run(argv);
}

/* What people have on their disks: a whole model, a cut one, other formats, another architecture. */
static char *make_folders(void)
{
    char *root = g_dir_make_tmp("quire-models-XXXXXX", NULL);
    g_autofree char *whole = copy_model(root, "second-model");
    g_autofree char *broken = copy_model(root, "broken-copy");
    g_autofree char *gguf = folder(root, "Qwen3-4B-GGUF");
    g_autofree char *llama = folder(root, "Llama-3.2-1B");
    g_autofree char *awq = folder(root, "Qwen3-4B-AWQ");
    g_autofree char *lfs = copy_model(root, "clone-without-lfs");

    cut_shard(broken);
    write_text(gguf, "Qwen3-4B-Q4_K_M.gguf", "GGUF\x03");
    write_text(
        llama, "config.json", "{\"architectures\": [\"LlamaForCausalLM\"], \"model_type\": \"llama\"}");
    write_text(awq, "config.json",
        "{\"architectures\": [\"Qwen3ForCausalLM\"], \"model_type\": \"qwen3\", "
        "\"quantization_config\": {\"quant_method\": \"awq\", \"bits\": 4}}");
    write_text(lfs, "model-00001-of-00002.safetensors",
        "version https://git-lfs.github.com/spec/v1\noid sha256:00\nsize 4900000000\n");
    return root;
}

static void check_facts(
    const char *root, const char *name, QuireModelVerdict verdict, const char *format, const char *words)
{
    g_autofree char *dir = folder(root, name);
    QuireEngineSettings settings;
    g_autoptr(QuireModelFacts) facts = NULL;

    quire_settings_get_engine("cpu", &settings);
    facts = quire_model_facts_read(dir, &settings.options);
    quire_engine_settings_clear(&settings);
    g_test_message("%s: %s", name, facts->problem != NULL ? facts->problem : "fits");
    g_assert_cmpint(facts->verdict, ==, verdict);
    g_assert_cmpstr(facts->format, ==, format);
    if (words != NULL)
        g_assert_nonnull(strstr(facts->problem, words));
    else
        g_assert_null(facts->problem);
    g_assert_true(facts->problem == NULL || strstr(facts->problem, root) == NULL);
}

static void test_facts(void)
{
    g_autofree char *root = make_folders();
    g_autofree char *broken = folder(root, "broken-copy");
    g_autofree char *cut = folder(broken, "model-00002-of-00002.safetensors");
    g_autofree char *tokenizer = folder(root, "second-model/tokenizer.json");
    g_autoptr(GPtrArray) found = quire_model_folders_find(root);

    g_assert_cmpuint(found->len, ==, 6);
    check_facts(root, "second-model", QUIRE_MODEL_FITS, "bf16", NULL);
    check_facts(root, "broken-copy", QUIRE_MODEL_BROKEN, NULL, "Shard 2 of 2 is cut: ");
    check_facts(root, "clone-without-lfs", QUIRE_MODEL_BROKEN, NULL, "git lfs pull");
    check_facts(root, "Qwen3-4B-GGUF", QUIRE_MODEL_UNSUPPORTED, "GGUF", "does not load GGUF");
    check_facts(root, "Llama-3.2-1B", QUIRE_MODEL_UNSUPPORTED, "LlamaForCausalLM", "another architecture");
    check_facts(root, "Qwen3-4B-AWQ", QUIRE_MODEL_UNSUPPORTED, "AWQ, 4 bits", "quantised");
    check_facts(root, "nowhere", QUIRE_MODEL_GONE, NULL, "not there");
    g_assert_cmpint(g_unlink(cut), ==, 0);
    check_facts(root, "broken-copy", QUIRE_MODEL_BROKEN, NULL,
        "Shard 2 of 2 is missing: model-00002-of-00002.safetensors");
    /* The engine's own words have file, field, expected and found; the folder is left out. */
    g_assert_true(g_file_set_contents(tokenizer, "{}", -1, NULL));
    check_facts(root, "second-model", QUIRE_MODEL_BROKEN, NULL, "tokenizer.json: ");
    remove_tree(root);
}

/* ---- The window ---- */

static QuireModelsWindow *models(void)
{
    return (QuireModelsWindow *)find_window(QUIRE_TYPE_MODELS_WINDOW);
}

static gboolean has_models(gpointer wanted)
{
    return (models() != NULL) == GPOINTER_TO_INT(wanted);
}

/* A row of the window by its folder. */
static QuireModelRow *find_model(GtkWidget *root, const char *dir)
{
    if (QUIRE_IS_MODEL_ROW(root) &&
        strcmp(quire_model_item_get_dir(quire_model_row_get_item(QUIRE_MODEL_ROW(root))), dir) == 0)
        return QUIRE_MODEL_ROW(root);
    for (GtkWidget *child = gtk_widget_get_first_child(root); child != NULL;
         child = gtk_widget_get_next_sibling(child)) {
        QuireModelRow *row = find_model(child, dir);

        if (row != NULL)
            return row;
    }
    return NULL;
}

static const char *subtitle(const char *dir)
{
    QuireModelRow *row = find_model(GTK_WIDGET(models()), dir);

    return row != NULL ? adw_expander_row_get_subtitle(ADW_EXPANDER_ROW(row)) : "";
}

typedef struct {
    const char *dir, *text;
} Says;

static gboolean says(gpointer data)
{
    const Says *want = data;

    return strstr(subtitle(want->dir), want->text) != NULL;
}

static void wait_says(const char *dir, const char *text)
{
    wait_for(text, says, &(Says){dir, text});
}

static void open_models(void)
{
    g_action_group_activate_action(G_ACTION_GROUP(application), "models", NULL);
    wait_for("the models", has_models, GINT_TO_POINTER(TRUE));
}

static gboolean is_loaded_from(gpointer dir)
{
    const qe_engine_status *status = quire_engine_client_get_status(engine_client());

    return status->state == QE_ENGINE_READY && strcmp(status->model->dir, dir) == 0;
}

static gboolean has_no_row(gpointer dir)
{
    return find_model(GTK_WIDGET(models()), dir) == NULL;
}

static void test_window(void)
{
    g_autofree char *root = make_folders();
    g_autofree char *whole = folder(root, "second-model");
    g_autofree char *broken = folder(root, "broken-copy");
    g_autofree char *gguf = folder(root, "Qwen3-4B-GGUF");
    g_autofree char *shard = folder(broken, "model-00002-of-00002.safetensors");
    g_autofree char *good = folder(whole, "model-00002-of-00002.safetensors");
    g_autofree char *shipped = g_canonicalize_filename(g_getenv("QUIRE_TEST_MODEL"), NULL);
    g_autoptr(GFile) file = g_file_new_for_path(root);

    open_window(900, 600);
    open_models();
    quire_model_list_add(quire_models_window_get_list(models()), file);
    wait_says(whole, "fits: ");
    wait_says(broken, "Shard 2 of 2 is cut");
    wait_says(gguf, "GGUF");
    wait_says(shipped, "tokens on the CPU");
    wait_ms(400);
    screenshot("models-1-window.png");
    {
        g_auto(GStrv) kept = g_settings_get_strv(quire_settings_get_default(), "model-folders");

        g_assert_cmpuint(g_strv_length(kept), ==, 6);
    }

    /* What is mended is read again by itself. */
    copy_file(good, shard);
    wait_says(broken, "fits: ");
    g_assert_cmpint(g_unlink(shard), ==, 0);
    wait_says(broken, "is missing");

    /* Load, unload. */
    g_signal_emit_by_name(find_model(GTK_WIDGET(models()), whole), "load");
    wait_for("the second model", is_loaded_from, whole);
    wait_ms(300);
    adw_expander_row_set_expanded(ADW_EXPANDER_ROW(find_model(GTK_WIDGET(models()), whole)), TRUE);
    wait_ms(500);
    screenshot("models-2-loaded.png");
    g_signal_emit_by_name(find_model(GTK_WIDGET(models()), whole), "unload");
    wait_for("no model", engine_state_is, GINT_TO_POINTER(QE_ENGINE_EMPTY));
    wait_ms(300);
    screenshot("models-3-none.png");

    /* Off the list; the files stay. */
    g_signal_emit_by_name(find_model(GTK_WIDGET(models()), gguf), "remove");
    wait_for("the row to go", has_no_row, gguf);
    g_assert_true(g_file_test(gguf, G_FILE_TEST_IS_DIR));

    /* A folder that goes says so. */
    remove_tree(broken);
    wait_says(broken, "not there");
    gtk_window_set_default_size(GTK_WINDOW(models()), 360, 560);
    wait_ms(500);
    screenshot("models-4-narrow.png");
    g_signal_emit_by_name(find_model(GTK_WIDGET(models()), shipped), "load");
    wait_for("the shipped model", is_loaded_from, shipped);
    /* The last chat takes the window with it. */
    gtk_window_close(GTK_WINDOW(window));
    window = NULL;
    wait_for("no models window", has_models, GINT_TO_POINTER(FALSE));
    g_settings_reset(quire_settings_get_default(), "model-folders");
    g_settings_reset(quire_settings_get_default(), "model-folder");
    remove_tree(root);
}

/* A load shows that it goes on, and can be given up. */
static void test_loading(void)
{
    g_autofree char *shipped = g_canonicalize_filename(g_getenv("QUIRE_TEST_MODEL"), NULL);

    open_window(900, 600);
    mock_card_use = TRUE;
    mock_card_hold(TRUE);
    quire_application_restart_engine(application);
    wait_for("a load", engine_state_is, GINT_TO_POINTER(QE_ENGINE_LOADING));
    open_models();
    wait_says(shipped, "Loading…");
    wait_ms(700);
    screenshot("models-14-loading.png");
    g_assert_nonnull(find_button(GTK_WIDGET(models()), "Cancel"));
    g_signal_emit_by_name(find_button(GTK_WIDGET(models()), "Cancel"), "clicked");
    wait_for("no model", engine_state_is, GINT_TO_POINTER(QE_ENGINE_EMPTY));
    mock_card_hold(FALSE);
    wait_says(shipped, "fits: ");
    g_signal_emit_by_name(find_model(GTK_WIDGET(models()), shipped), "load");
    wait_for("the model", is_loaded_from, shipped);
    close_window();
    g_settings_reset(quire_settings_get_default(), "model-folder");
    set_mock(FALSE);
}

/* ---- A chat of another model ---- */

static QuireModelBar *bar(void)
{
    return QUIRE_MODEL_BAR(find(GTK_WIDGET(quire_window_get_chat(window)), QUIRE_TYPE_MODEL_BAR));
}

static gboolean is_asking(gpointer wanted)
{
    return quire_model_bar_is_asking(bar()) == GPOINTER_TO_INT(wanted);
}

static void test_other_model(void)
{
    g_autofree char *root = make_folders();
    g_autofree char *whole = folder(root, "second-model");
    g_autofree char *shipped = quire_settings_dup_model_dir();

    open_window(900, 600);
    say("Tell me a story.", 2);
    wait_for("the reply", is_idle, NULL);
    g_assert_true(is_asking(GINT_TO_POINTER(FALSE)));
    quire_application_load_model(application, whole);
    wait_for("the second model", is_loaded_from, whole);
    wait_for("the question", is_asking, GINT_TO_POINTER(TRUE));
    g_assert_nonnull(strstr(quire_model_bar_get_text(bar()), "This chat used Quire Demo"));
    g_assert_nonnull(strstr(quire_model_bar_get_text(bar()), "reads "));
    wait_ms(300);
    screenshot("models-5-other-model.png");

    /* Nothing goes on by itself. */
    type("Thank you.");
    wait_for("the typed text", draft_is, "Thank you.");
    key("Return");
    wait_ms(300);
    g_assert_true(has_n_messages(GUINT_TO_POINTER(2)));
    g_assert_true(draft_is("Thank you."));
    quire_model_bar_continue(bar());
    g_assert_true(is_asking(GINT_TO_POINTER(FALSE)));
    key("Return");
    wait_for("the message", has_n_messages, GUINT_TO_POINTER(4));
    wait_for("the reply", is_idle, NULL);
    g_assert_cmpuint(receipt()->n_reused, ==, 0);

    /* Now it is the second model's. */
    quire_application_load_model(application, shipped);
    wait_for("the first model", is_loaded_from, shipped);
    wait_for("the question", is_asking, GINT_TO_POINTER(TRUE));
    g_assert_nonnull(strstr(quire_model_bar_get_text(bar()), "This chat used second-model"));
    close_window();
    g_settings_reset(quire_settings_get_default(), "model-folders");
    g_settings_reset(quire_settings_get_default(), "model-folder");
    remove_tree(root);
}

/* ---- Limits ---- */

static QuireLimits *limits(void)
{
    for (GList *l = gtk_application_get_windows(GTK_APPLICATION(application)); l != NULL; l = l->next) {
        GtkWidget *found = find(l->data, QUIRE_TYPE_LIMITS);

        if (found != NULL)
            return QUIRE_LIMITS(found);
    }
    return NULL;
}

static gboolean can_apply(gpointer data)
{
    return limits() != NULL && quire_limits_can_apply(limits());
}

static gboolean effect_says(gpointer text)
{
    return strstr(quire_limits_get_effect(limits()), text) != NULL;
}

static gboolean has_cache_bytes(gpointer mib)
{
    const qe_snapshot *snapshot = quire_engine_client_get_snapshot(engine_client());

    return snapshot != NULL &&
           snapshot->tiers[QE_TIER_HOST].bytes_max / (1 << 20) == (uint64_t)GPOINTER_TO_INT(mib);
}

static void test_limits(void)
{
    open_window(1200, 800);
    say("My name is Oda.", 2);
    wait_for("the reply", is_idle, NULL);
    key("F12");
    wait_ms(300);
    g_action_group_activate_action(G_ACTION_GROUP(application), "limits", g_variant_new_string("host"));
    wait_for("the limits", (Condition)(void (*)(void))limits, NULL);
    g_assert_false(quire_limits_can_apply(limits()));
    quire_limits_set_cache_mib(limits(), 64);
    wait_for("what it comes to", can_apply, NULL);
    g_assert_nonnull(strstr(quire_limits_get_effect(limits()), "Applies at once"));
    wait_ms(300);
    screenshot("models-6-limits.png");
    /* Nothing was written before Apply. */
    g_assert_cmpuint(g_settings_get_uint(quire_settings_get_default(), "cache-mib"), ==, 0);
    quire_limits_apply(limits());
    wait_for("the limit", has_cache_bytes, GINT_TO_POINTER(64));
    gtk_window_close(GTK_WINDOW(gtk_widget_get_root(GTK_WIDGET(limits()))));
    gtk_window_present(GTK_WINDOW(window));
    wait_ms(200);
    gtk_widget_grab_focus(GTK_WIDGET(quire_window_get_chat(window)));
    say("What is my name?", 4);
    wait_for("the reply", is_idle, NULL);
    g_assert_cmpuint(receipt()->n_reused, >, 0);

    /* What the model is loaded with says so, and what that costs. */
    g_action_group_activate_action(G_ACTION_GROUP(application), "limits", g_variant_new_string("disk"));
    wait_for("the limits", (Condition)(void (*)(void))limits, NULL);
    quire_limits_set_disk(limits(), TRUE, 512);
    wait_for("what is missing", effect_says, "give it a size first");
    g_assert_false(quire_limits_can_apply(limits()));
    quire_limits_set_host_mib(limits(), 64);
    wait_for("what it comes to", can_apply, NULL);
    g_assert_nonnull(strstr(quire_limits_get_effect(limits()), "Loads the model again"));
    g_assert_nonnull(strstr(quire_limits_get_effect(limits()), "reads "));
    wait_ms(300);
    screenshot("models-7-limits-disk.png");
    gtk_window_close(GTK_WINDOW(gtk_widget_get_root(GTK_WIDGET(limits()))));
    g_settings_reset(quire_settings_get_default(), "cache-mib");
    quire_application_apply_settings(application);
    close_window();
}

/* ---- Through a day ---- */

/* Memory is given back on request; what is sent then brings the model back, and the pages that the host kept are used. */
static void test_release(void)
{
    set_mock(TRUE);
    open_window(900, 600);
    say("Tell me a story.", 2);
    wait_for("the reply", is_idle, NULL);
    g_action_group_activate_action(G_ACTION_GROUP(application), "release-memory", NULL);
    wait_for("the release", engine_state_is, GINT_TO_POINTER(QE_ENGINE_RELEASED));
    g_assert_nonnull(quire_engine_client_get_release_reason(engine_client()));
    wait_ms(500);
    screenshot("models-8-released.png");
    type("Thank you.");
    wait_for("the typed text", draft_is, "Thank you.");
    key("Return");
    wait_for("the message", has_n_messages, GUINT_TO_POINTER(4));
    wait_for("the reply", is_idle, NULL);
    g_assert_true(is_ready(NULL));
    g_assert_cmpuint(receipt()->n_reused, >, 0);
    close_window();
    set_mock(FALSE);
}

static void test_idle(void)
{
    GSettings *settings = quire_settings_get_default();

    open_window(900, 600);
    quire_keeper_set_minute_ms(quire_application_get_keeper(application), 20);
    g_settings_set_uint(settings, "unload-minutes", 15);
    wait_for("the release", engine_state_is, GINT_TO_POINTER(QE_ENGINE_RELEASED));
    g_assert_nonnull(strstr(quire_engine_client_get_release_reason(engine_client()), "15 idle minutes"));
    g_settings_reset(settings, "unload-minutes");
    quire_keeper_set_minute_ms(quire_application_get_keeper(application), 60000);
    quire_engine_client_recover(engine_client());
    wait_for("a model", is_ready, NULL);
    close_window();
}

static gboolean has_try_again(gpointer data)
{
    return last_row() != NULL && find_button(last_row(), data) != NULL;
}

static gboolean is_done(gpointer data)
{
    QuireMessage *reply = quire_conversation_get_last_reply(conversation());

    return reply != NULL && quire_message_get_state(reply) == QUIRE_REPLY_DONE;
}

/* The device goes in the middle of a reply: its place says so, one button brings the model back, the chat goes on. */
static void test_lost(void)
{
    GtkWidget *button;

    set_mock(TRUE);
    open_window(900, 600);
    say("My name is Oda.", 2);
    wait_for("the reply", is_idle, NULL);
    qk_mock_lose_at(mock_card_last, 3);
    say("Tell me a story.", 4);
    wait_for("the loss", engine_state_is, GINT_TO_POINTER(QE_ENGINE_LOST));
    wait_for("the end of the reply", is_idle, NULL);
    wait_for("the row's button", has_try_again, "Try Again");
    wait_ms(300);
    screenshot("models-9-lost.png");
    button = find_button(last_row(), "Try Again");
    g_signal_emit_by_name(button, "clicked");
    wait_for("a model", is_ready, NULL);
    wait_for("the whole reply", is_done, NULL);
    {
        g_autofree char *reply = dup_reply();
        g_autofree char *want = dup_cli_reply(
            "[{\"role\": \"user\", \"content\": \"My name is Oda.\"}, "
            "{\"role\": \"assistant\", \"content\": \"Nice to meet you, Oda! How can I help?\"}, "
            "{\"role\": \"user\", \"content\": \"Tell me a story.\"}]");

        g_assert_cmpstr(reply, ==, want);
    }
    close_window();
    set_mock(FALSE);
}

static gboolean owns_name(gpointer data)
{
    return *(gboolean *)data;
}

static void owned_cb(GDBusConnection *bus, const char *name, gpointer data)
{
    *(gboolean *)data = TRUE;
}

static gboolean was_opened_again(gpointer before)
{
    return mock_card_n_opened > GPOINTER_TO_UINT(before) && is_ready(NULL);
}

/* The machine slept and its card did not come back: the device is asked after the sleep, and loaded again by itself. */
static void test_sleep(void)
{
    gboolean owned = FALSE;
    g_autoptr(GDBusConnection) bus = g_bus_get_sync(G_BUS_TYPE_SYSTEM, NULL, NULL);
    guint before;
    guint id;

    set_mock(TRUE);
    before = mock_card_n_opened;
    g_assert_nonnull(bus);
    id = g_bus_own_name_on_connection(
        bus, "org.freedesktop.login1", G_BUS_NAME_OWNER_FLAGS_NONE, owned_cb, NULL, &owned, NULL);
    wait_for("the login manager's name", owns_name, &owned);
    open_window(900, 600);
    say("My name is Oda.", 2);
    wait_for("the reply", is_idle, NULL);
    wait_ms(300);
    qk_mock_lose_at(mock_card_last, 1);
    for (int sleeps = 1; sleeps >= 0; sleeps--)
        g_assert_true(g_dbus_connection_emit_signal(bus, NULL, "/org/freedesktop/login1",
            "org.freedesktop.login1.Manager", "PrepareForSleep", g_variant_new("(b)", sleeps), NULL));
    wait_for("the card again", was_opened_again, GUINT_TO_POINTER(before));
    say("What is my name?", 4);
    wait_for("the reply", is_idle, NULL);
    {
        g_autofree char *reply = dup_reply();

        g_assert_nonnull(strstr(reply, "Oda"));
    }
    close_window();
    g_bus_unown_name(id);
    set_mock(FALSE);
}

/* The mapped button of @action below @root can be clicked. */
static gboolean is_sensitive_for(GtkWidget *root, const char *action)
{
    if (GTK_IS_BUTTON(root) && gtk_widget_get_mapped(root) &&
        g_strcmp0(gtk_actionable_get_action_name(GTK_ACTIONABLE(root)), action) == 0)
        return gtk_widget_is_sensitive(root);
    for (GtkWidget *child = gtk_widget_get_first_child(root); child != NULL;
         child = gtk_widget_get_next_sibling(child))
        if (is_sensitive_for(child, action))
            return TRUE;
    return FALSE;
}

/* The buttons find their actions in the window of now. */
static gboolean has_regenerate(gpointer data)
{
    GActionGroup *actions = quire_chat_view_get_actions(quire_window_get_chat(window));

    return g_action_group_get_action_enabled(actions, "regenerate") &&
           is_sensitive_for(last_row(), "chat.regenerate");
}

/* A tab that is dragged out becomes a window of its own; both have the list of chats, and the chat goes on there. */
static void test_second_window(void)
{
    QuireWindow *first;
    AdwTabView *from, *to = NULL;
    AdwTabPage *page;

    open_window(1000, 700);
    first = window;
    say("My name is Oda.", 2);
    wait_for("the reply", is_idle, NULL);
    key("ctrl+t");
    wait_for("an empty chat", has_n_messages, GUINT_TO_POINTER(0));
    from = quire_window_get_tab_view(first);
    g_assert_cmpint(adw_tab_view_get_n_pages(from), ==, 2);
    page = adw_tab_view_get_nth_page(from, 0);
    g_signal_emit_by_name(from, "create-window", &to);
    g_assert_nonnull(to);
    adw_tab_view_transfer_page(from, page, to, 0);
    window = QUIRE_WINDOW(gtk_widget_get_ancestor(GTK_WIDGET(to), QUIRE_TYPE_WINDOW));
    g_assert_true(window != first);
    g_assert_cmpint(adw_tab_view_get_n_pages(from), ==, 1);
    g_assert_cmpint(adw_tab_view_get_n_pages(to), ==, 1);
    gtk_window_present(GTK_WINDOW(window));
    wait_ms(500);
    screenshot("models-10-two-windows.png");
    gtk_widget_grab_focus(GTK_WIDGET(quire_window_get_chat(window)));
    g_assert_true(has_n_messages(GUINT_TO_POINTER(2)));
    wait_for("actions that work", has_regenerate, NULL);
    gtk_text_buffer_set_text(draft(), "What is my name?", -1);
    quire_composer_send(quire_chat_view_get_composer(quire_window_get_chat(window)));
    wait_for("the message", has_n_messages, GUINT_TO_POINTER(4));
    wait_for("the reply", is_idle, NULL);
    g_assert_cmpuint(receipt()->n_reused, >, 0);
    gtk_window_close(GTK_WINDOW(first));
    wait_ms(200);
    close_window();
}

/* ---- Idle ---- */

static guint n_polls, n_frames;
static GPollFunc poll_before;

static int count_poll(GPollFD *fds, guint n_fds, int timeout)
{
    int rc = poll_before(fds, n_fds, timeout);

    n_polls += timeout != 0;
    return rc;
}

/* With the panel hidden and nothing asked, nothing is drawn, and the main loop wakes once a second at most. */
static void test_idle_wakeups(void)
{
    const guint seconds = 6;
    GdkFrameClock *clock;
    gulong handler;

    /* The text cursor stops to blink by itself, after ten seconds if nothing else is set. */
    g_object_set(gtk_settings_get_default(), "gtk-cursor-blink-timeout", 1, NULL);
    open_window(900, 600);
    say("My name is Oda.", 2);
    wait_for("the reply", is_idle, NULL);
    wait_ms(6000);
    clock = gtk_widget_get_frame_clock(GTK_WIDGET(window));
    handler = g_signal_connect_swapped(clock, "paint", G_CALLBACK(g_atomic_int_inc), &n_frames);
    poll_before = g_main_context_get_poll_func(NULL);
    g_main_context_set_poll_func(NULL, count_poll);
    n_polls = n_frames = 0;
    wait_ms(seconds * 1000);
    g_main_context_set_poll_func(NULL, poll_before);
    g_signal_handler_disconnect(clock, handler);
    g_test_message("%u wake-ups and %u frames in %u s", n_polls, n_frames, seconds);
    g_assert_cmpuint(n_frames, ==, 0);
    /* One is this test's own timer. */
    g_assert_cmpuint(n_polls, <=, seconds + 1);
    gtk_settings_reset_property(gtk_settings_get_default(), "gtk-cursor-blink-timeout");
    close_window();
}

/* ---- Why no GPU ---- */

static void check_advice(const char *root, const char *advice, const char *command)
{
    g_autoptr(QuireGpuFacts) facts = quire_gpu_facts_read(root);
    g_autofree char *text = quire_gpu_facts_format(facts);

    if (facts->reason == NULL) {
        g_test_message("this machine has a card that works");
        return;
    }
    g_test_message("%s", facts->advice);
    g_assert_nonnull(strstr(facts->advice, advice));
    g_assert_cmpstr(facts->command, ==, command);
    g_assert_nonnull(strstr(text, "Driver in the kernel: "));
}

static void test_why_gpu(void)
{
    g_autofree char *root = g_dir_make_tmp("quire-gpu-XXXXXX", NULL);
    g_autofree char *etc = folder(root, "etc");
    g_autofree char *card = folder(root, "sys/bus/pci/devices/0000:01:00.0");
    g_autofree char *driver = folder(root, "sys/module/nvidia");
    g_autofree char *uvm = folder(root, "sys/module/nvidia_uvm");
    g_autofree char *dev = folder(root, "dev");

    write_text(etc, "os-release", "NAME=\"Debian GNU/Linux\"\nID=debian\n");
    check_advice(root, "no NVIDIA graphics card", NULL);
    write_text(card, "vendor", "0x10de\n");
    write_text(card, "class", "0x030000\n");
    check_advice(root, "has no NVIDIA driver", "sudo apt install nvidia-driver");
    write_text(driver, "version", "535.183.01\n");
    check_advice(root, "Quire needs 580 or newer", "sudo apt install nvidia-driver");
    write_text(driver, "version", "580.65.06\n");
    check_advice(root, "not loaded", "sudo modprobe nvidia_uvm");
    write_text(uvm, "refcnt", "0\n");
    write_text(dev, "nvidia-uvm", "");
    check_advice(root, "in Quire itself", NULL);

    open_window(900, 700);
    quire_why_gpu_present(GTK_WINDOW(window));
    wait_ms(1500);
    screenshot("models-11-why-gpu.png");
    close_window();
    remove_tree(root);
}

/* What an empty chat says, in both ways to be seen. */
static void test_empty(void)
{
    open_window(1000, 760);
    wait_ms(500);
    screenshot("models-12-empty.png");
    g_assert_true(gtk_widget_has_focus(GTK_WIDGET(
        quire_composer_get_text_view(quire_chat_view_get_composer(quire_window_get_chat(window))))));
    close_window();
    open_window(360, 640);
    wait_ms(500);
    screenshot("models-13-empty-narrow.png");
    close_window();
}

static void add_tests(void)
{
    g_test_add_func("/app/models/facts", test_facts);
    g_test_add_func("/app/models/window", test_window);
    g_test_add_func("/app/models/loading", test_loading);
    g_test_add_func("/app/models/other-model", test_other_model);
    g_test_add_func("/app/models/limits", test_limits);
    g_test_add_func("/app/models/empty", test_empty);
    g_test_add_func("/app/models/why-gpu", test_why_gpu);
    g_test_add_func("/app/models/second-window", test_second_window);
    g_test_add_func("/app/models/idle-wakeups", test_idle_wakeups);
    g_test_add_func("/app/models/release", test_release);
    g_test_add_func("/app/models/idle", test_idle);
    g_test_add_func("/app/models/lost", test_lost);
    g_test_add_func("/app/models/sleep", test_sleep);
}

int main(int argc, char **argv)
{
    /* The bus of this run is the system's too: a test plays the login manager on it. */
    g_setenv("DBUS_SYSTEM_BUS_ADDRESS", g_getenv("DBUS_SESSION_BUS_ADDRESS"), TRUE);
    return ui_main(argc, argv, NULL, add_tests);
}
