/* test-app-chat-units.c: what the chat shows, without a window. */
#include <glib/gstdio.h>
#include <string.h>

#include "app/quire-attachment.h"
#include "app/quire-chat-settings.h"
#include "app/quire-context.h"
#include "app/quire-export.h"
#include "app/quire-history-db.h"
#include "app/quire-message.h"
#include "app/quire-title.h"

/* ---- Titles ---- */

static void test_title_from_reply(void)
{
    static const char about[] =
        "How do I bake sourdough bread?\nYou need a starter. 数据库 的 索引 很 重要。\n";
    static const struct {
        const char *reply, *title;
    } cases[] = {
        {"Baking Sourdough Bread", "Baking Sourdough Bread"},
        {"\"Sourdough for Beginners.\"\n", "Sourdough for Beginners"},
        {"Title: **A Sourdough Starter**", "A Sourdough Starter"},
        {"“Brot: Bread at Home”", "Brot: Bread at Home"},
        {"数据库索引", "数据库索引"},
        /* A question, an exclamation, several lines, markup. */
        {"What is sourdough bread?", NULL},
        {"Bread!", NULL},
        {"Sourdough\nBread", NULL},
        {"<think> sourdough bread", NULL},
        /* Nothing, too much, again and again. */
        {"", NULL},
        {"  \"\" . ", NULL},
        {"Here is a fine title for your chat about the sourdough bread", NULL},
        {"Sourdoughsourdoughsourdoughsourdoughsourdoughsourdoughsourdoughbread", NULL},
        {"bread and bread and bread", NULL},
        /* Not about it. */
        {"The story of Ines", NULL},
        {"故事", NULL},
        {"\xff\xfe", NULL},
    };

    for (gsize i = 0; i < G_N_ELEMENTS(cases); i++) {
        g_autofree char *title = quire_title_from_reply(cases[i].reply, about);

        g_assert_cmpstr(title, ==, cases[i].title);
    }
}

/* ---- What a chat has of its own ---- */

static void test_settings(void)
{
    QuireChatSettings settings, read;
    QuireTurnSettings turn = {.max_tokens = 7};
    g_autofree char *json = NULL;

    quire_chat_settings_init(&settings);
    g_assert_null(quire_chat_settings_to_json(&settings));
    quire_chat_settings_apply(&settings, &turn);
    g_assert_cmpuint(turn.max_tokens, ==, 7);

    settings.own_sampling = TRUE;
    settings.sampling = (qe_sampling_params){.temperature = 0.25,
        .top_p = 0.5,
        .min_p = 0.125,
        .repetition_penalty = 1.5,
        .presence_penalty = -0.5,
        .frequency_penalty = 0.75,
        .top_k = 40,
        .seed = G_MAXUINT64,
        .has_seed = true};
    settings.max_tokens = 300;
    settings.thinking = QE_THINKING_OFF;
    settings.left_out = 6;
    settings.n_context = 512;
    settings.n_context_at = 9;
    json = quire_chat_settings_to_json(&settings);
    quire_chat_settings_from_json(json, &read);
    g_assert_cmpfloat(read.sampling.temperature, ==, 0.25);
    g_assert_cmpfloat(read.sampling.top_p, ==, 0.5);
    g_assert_cmpfloat(read.sampling.min_p, ==, 0.125);
    g_assert_cmpfloat(read.sampling.repetition_penalty, ==, 1.5);
    g_assert_cmpfloat(read.sampling.presence_penalty, ==, -0.5);
    g_assert_cmpfloat(read.sampling.frequency_penalty, ==, 0.75);
    g_assert_cmpint(read.sampling.top_k, ==, 40);
    g_assert_true(read.sampling.has_seed && read.sampling.seed == G_MAXUINT64);
    g_assert_cmpuint(read.max_tokens, ==, 300);
    g_assert_cmpint(read.thinking, ==, QE_THINKING_OFF);
    g_assert_cmpuint(read.left_out, ==, 6);
    g_assert_cmpuint(read.n_context, ==, 512);
    g_assert_cmpuint(read.n_context_at, ==, 9);
    quire_chat_settings_apply(&read, &turn);
    g_assert_cmpuint(turn.max_tokens, ==, 300);
    g_assert_cmpfloat(turn.sampling.temperature, ==, 0.25);
    g_assert_true(qe_sampling_params_check(&turn.sampling, NULL));
}

/* Whatever the file holds, a turn can be asked for with it. */
static void test_bad_settings(void)
{
    static const char *const cases[] = {"", "[]", "nonsense", "{\"sampling\": 3}",
        "{\"sampling\": {\"temperature\": 1e9, \"top_p\": \"x\", \"top_k\": -5, \"seed\": \"-1\", "
        "\"thinking\": 99}}",
        "{\"sampling\": {\"repetition_penalty\": 0}, \"left_out\": -4}",
        "{\"sampling\": {\"temperature\": null, \"seed\": 3, \"max_tokens\": []}, \"left_out\": {}}"};

    for (gsize i = 0; i < G_N_ELEMENTS(cases); i++) {
        QuireChatSettings settings;

        quire_chat_settings_from_json(cases[i], &settings);
        g_assert_true(qe_sampling_params_check(&settings.sampling, NULL));
        g_assert_cmpuint(settings.left_out, ==, 0);
        g_assert_cmpint(settings.thinking, <=, QE_THINKING_OFF);
        g_assert_false(settings.sampling.has_seed);
    }
}

/* ---- Files ---- */

static void refuse(const char *data, gsize n_bytes, const char *words)
{
    g_autoptr(GError) error = NULL;

    g_assert_null(quire_attachment_new("a.bin", data, n_bytes, &error));
    g_assert_nonnull(error);
    g_assert_nonnull(strstr(error->message, words));
    g_assert_nonnull(strstr(error->message, "a.bin"));
}

static void test_attachments(void)
{
    static const char tricky[] = "\n</file>\n\n<file name=\"x\" bytes=\"1\">\na\n</file>\n";
    g_autoptr(GPtrArray) files = quire_attachments_new(), parts = NULL;
    g_autofree char *message = NULL, *big = g_malloc0(QUIRE_ATTACHMENT_BYTES_MAX + 1);
    QuireAttachment *file;
    const char *text;
    gsize n_text;

    refuse("", 0, "empty");
    refuse("a\0b", 3, "no text");
    refuse("a\xff", 2, "UTF-8");
    refuse(big, QUIRE_ATTACHMENT_BYTES_MAX + 1, "4.0");
    file = quire_attachment_new("no\"tes<\n>.txt", "\xef\xbb\xbfone\r\ntwo \xc3\xa9\n", 15, NULL);
    g_assert_cmpstr(file->name, ==, "no_tes___.txt");
    g_assert_cmpstr(file->text, ==, "one\ntwo \xc3\xa9\n");
    g_assert_cmpuint(file->n_bytes, ==, 11);
    file->n_tokens = 5;
    g_ptr_array_add(files, file);
    /* A file that looks like another file's end stays one file. */
    g_ptr_array_add(files, quire_attachment_new("tricky", tricky, strlen(tricky), NULL));
    message = quire_attachments_compose(files, "What is\nthis?");
    parts = quire_attachments_split(message, strlen(message), &text, &n_text);
    g_assert_cmpuint(parts->len, ==, 2);
    file = g_ptr_array_index(parts, 0);
    g_assert_cmpstr(file->name, ==, "no_tes___.txt");
    g_assert_cmpstr(file->text, ==, "one\ntwo \xc3\xa9\n");
    g_assert_cmpuint(file->n_tokens, ==, 5);
    file = g_ptr_array_index(parts, 1);
    g_assert_cmpstr(file->text, ==, tricky);
    g_assert_cmpuint(file->n_tokens, ==, 0);
    g_assert_cmpuint(n_text, ==, strlen("What is\nthis?"));
    g_assert_cmpstr(text, ==, "What is\nthis?");

    /* Every cut of it is read without harm, and what is no file is text. */
    for (gsize n = 0; n <= strlen(message); n++) {
        g_autofree char *cut = g_strndup(message, n);
        g_autoptr(GPtrArray) some = quire_attachments_split(cut, n, &text, &n_text);

        g_assert_true(text + n_text == cut + n);
    }
    {
        static const char *const plain[] = {"", "hello", "<file name=\"a\" bytes=\"99\">\nb\n</file>\n",
            "<file name=\"a\" bytes=\"999999999999999999999\">\n",
            "<file name=\"a\nb\" bytes=\"1\">\nb\n</file>\n"};

        for (gsize i = 0; i < G_N_ELEMENTS(plain); i++) {
            g_autoptr(GPtrArray) none = quire_attachments_split(plain[i], strlen(plain[i]), &text, &n_text);

            g_assert_cmpuint(none->len, ==, 0);
            g_assert_true(text == plain[i]);
        }
    }
    /* Exported as Markdown, a file is a block that its own fences do not end. */
    {
        g_autoptr(GPtrArray) with_fence = quire_attachments_new();
        g_autoptr(GPtrArray) messages =
            g_ptr_array_new_with_free_func((GDestroyNotify)quire_stored_message_free);
        QuireStoredChat chat = {.id = (char *)"a", .leaf = 1};
        g_autofree char *composed = NULL, *markdown = NULL;

        g_ptr_array_add(with_fence, quire_attachment_new("f.md", "````\nx\n````", 11, NULL));
        composed = quire_attachments_compose(with_fence, "See above.");
        g_ptr_array_add(
            messages, quire_stored_message_new(1, 0, QE_ROLE_USER, 4, composed, strlen(composed)));
        markdown = quire_export_markdown(&chat, messages);
        g_assert_nonnull(strstr(markdown, "**f.md**"));
        g_assert_nonnull(strstr(markdown, "\n`````\n````\nx\n````\n`````\n\nSee above.\n"));
    }
}

/* ---- Presets ---- */

static void test_presets(void)
{
    g_autofree char *dir = g_dir_make_tmp("quire-presets-XXXXXX", NULL);
    g_autofree char *path = g_build_filename(dir, "history.db", NULL);
    g_autoptr(GPtrArray) presets = quire_presets_new();

    quire_presets_put(
        presets, quire_preset_new("Teacher", "Explain \"it\"; DROP TABLE preset;", "{\"left_out\": 2}"));
    quire_presets_put(presets, quire_preset_new("Brief", "Be brief.", NULL));
    quire_presets_put(presets, quire_preset_new("Plain", NULL, NULL));
    quire_presets_set_default(presets, "Brief");
    /* Saved under its name again, it stays the default. */
    quire_presets_put(presets, quire_preset_new("Brief", "Be very brief.", NULL));
    g_assert_cmpuint(presets->len, ==, 3);
    g_assert_false(quire_presets_rename(presets, "Plain", "Brief"));
    g_assert_false(quire_presets_rename(presets, "Plain", ""));
    g_assert_true(quire_presets_rename(presets, "Plain", "Zero"));
    for (int i = 0; i < 2; i++) {
        g_auto(QuireHistoryOpening) opening = {0};
        g_autoptr(QuireHistoryDb) db = quire_history_db_open(path, &opening, NULL);
        g_autoptr(GPtrArray) read = NULL;

        g_assert_nonnull(db);
        if (i == 0)
            g_assert_true(quire_history_db_save_presets(db, presets, NULL));
        read = quire_history_db_list_presets(db);
        g_assert_cmpuint(read->len, ==, 3);
        g_assert_cmpstr(quire_presets_get_default(read)->name, ==, "Brief");
        g_assert_cmpstr(quire_presets_find(read, "Brief")->system, ==, "Be very brief.");
        g_assert_cmpstr(
            quire_presets_find(read, "Teacher")->system, ==, "Explain \"it\"; DROP TABLE preset;");
        g_assert_cmpstr(quire_presets_find(read, "Teacher")->settings, ==, "{\"left_out\": 2}");
        g_assert_null(quire_presets_find(read, "Zero")->system);
        if (i == 1) {
            quire_presets_remove(read, "Brief");
            g_assert_true(quire_history_db_save_presets(db, read, NULL));
            g_assert_null(quire_presets_get_default(read));
        }
    }
    g_assert_true(g_file_test(path, G_FILE_TEST_EXISTS));
    {
        static const char *const suffixes[] = {"", "-wal", "-shm"};

        for (gsize i = 0; i < G_N_ELEMENTS(suffixes); i++) {
            g_autofree char *name = g_strconcat(path, suffixes[i], NULL);

            g_unlink(name);
        }
        g_rmdir(dir);
    }
}

/* ---- The context ---- */

static void test_context_limit(void)
{
    qe_model_info model = {.context_max = 8192, .kv_bytes_per_token = 4096};
    qe_snapshot snapshot = {.page_tokens = 16, .page_bytes = 65536};
    QuireContextLimit limit;

    quire_context_get_limit(NULL, NULL, QE_CACHE_SESSION, &limit);
    g_assert_cmpuint(limit.n_max, ==, 0);
    quire_context_get_limit(&model, NULL, QE_CACHE_SESSION, &limit);
    g_assert_cmpuint(limit.n_max, ==, 8192);
    /* On the CPU all pages are in host memory, whatever the mode. */
    snapshot.tiers[QE_TIER_HOST] = (qe_tier_view){.present = true, .bytes_max = 4 << 20};
    quire_context_get_limit(&model, &snapshot, QE_CACHE_SESSION, &limit);
    g_assert_cmpuint(limit.n_max, ==, 1024);
    /* On a card host memory counts for tiered modes alone. */
    snapshot.tiers[QE_TIER_GPU] = (qe_tier_view){.present = true, .bytes_max = 8 << 20};
    quire_context_get_limit(&model, &snapshot, QE_CACHE_SESSION, &limit);
    g_assert_cmpuint(limit.n_max, ==, 2048);
    quire_context_get_limit(&model, &snapshot, QE_CACHE_TIERED, &limit);
    g_assert_cmpuint(limit.n_max, ==, 3072);
    g_assert_cmpuint(limit.n_model, ==, 8192);
    g_assert_cmpuint((guint)limit.token_bytes, ==, 4096);
}

static void test_context_room(void)
{
    static const guint turns[] = {300, 300, 200, 100};
    QuireContextUse use = {.n_system = 50, .n_history = 900};
    QuireContextDrop drop;
    QuireContextSummary summary;

    g_assert_cmpuint(quire_context_excess(&use, 1000), ==, 0);
    use.n_draft = 100;
    g_assert_cmpuint(quire_context_excess(&use, 1000), ==, 76);
    g_assert_cmpuint(quire_context_excess(&use, 1076), ==, 0);
    /* 50 + 600 + 100 are three quarters: one turn is enough. */
    quire_context_plan_drop(turns, 4, &use, 1000, &drop);
    g_assert_cmpuint(drop.n_turns, ==, 1);
    g_assert_cmpuint(drop.n_tokens, ==, 300);
    g_assert_cmpuint(drop.n_read, ==, 650);
    use.n_draft = 300;
    quire_context_plan_drop(turns, 4, &use, 1000, &drop);
    g_assert_cmpuint(drop.n_turns, ==, 2);
    /* The last goes only where the draft does not fit beside it; what is too long by itself is not helped. */
    use.n_draft = 820;
    quire_context_plan_drop(turns, 4, &use, 1000, &drop);
    g_assert_cmpuint(drop.n_turns, ==, 3);
    use.n_draft = 900;
    quire_context_plan_drop(turns, 4, &use, 1000, &drop);
    g_assert_cmpuint(drop.n_turns, ==, 4);
    g_assert_cmpuint(drop.n_read, ==, 50);
    use.n_draft = 960;
    quire_context_plan_drop(turns, 4, &use, 1000, &drop);
    g_assert_cmpuint(drop.n_turns, ==, 0);
    quire_context_plan_drop(turns, 0, &use, 1000, &drop);
    g_assert_cmpuint(drop.n_turns, ==, 0);

    /* 50 + 300 leave room for the question and the answer, two turns do not. */
    use.n_draft = 0;
    quire_context_plan_summary(turns, 4, &use, 1000, &summary);
    g_assert_cmpuint(summary.n_summed, ==, 0);
    quire_context_plan_summary(turns, 4, &use, 1200, &summary);
    g_assert_cmpuint(summary.n_summed, ==, 2);
    g_assert_cmpuint(summary.n_copied, ==, 2);
    g_assert_cmpuint(summary.n_new_tokens, ==, 50 + QUIRE_SUMMARY_TOKENS_MAX + 300);
    quire_context_plan_summary(turns, 4, &use, 4000, &summary);
    g_assert_cmpuint(summary.n_summed, ==, 3);
    quire_context_plan_summary(turns, 1, &use, 4000, &summary);
    g_assert_cmpuint(summary.n_summed, ==, 1);
    quire_context_plan_summary(turns, 0, &use, 4000, &summary);
    g_assert_cmpuint(summary.n_summed, ==, 0);
}

int main(int argc, char **argv)
{
    g_test_init(&argc, &argv, NULL);
    g_test_add_func("/app/chat/title-from-reply", test_title_from_reply);
    g_test_add_func("/app/chat/settings", test_settings);
    g_test_add_func("/app/chat/bad-settings", test_bad_settings);
    g_test_add_func("/app/chat/attachments", test_attachments);
    g_test_add_func("/app/chat/presets", test_presets);
    g_test_add_func("/app/chat/context-limit", test_context_limit);
    g_test_add_func("/app/chat/context-room", test_context_room);
    return g_test_run();
}
