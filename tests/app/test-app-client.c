/* Tests of the parts without GTK: layout table, titles, thinking, figures. */
#include <libintl.h>
#include <locale.h>
#include <string.h>

#include "app/quire-cache-modes.h"
#include "app/quire-conversation.h"
#include "app/quire-engine-client.h"
#include "app/quire-format.h"
#include "app/quire-layout.h"
#include "app/quire-thinking.h"
#include "app/quire-title.h"
#include "app/quire-words.h"

static void test_layout(void)
{
    const struct {
        int width;
        double scale;
        gboolean open, sidebar, panel, panes;
    } cases[] = {
        {360, 1, TRUE, FALSE, FALSE},
        {599, 1, FALSE, FALSE, FALSE},
        {600, 1, TRUE, TRUE, FALSE},
        {679, 1, TRUE, TRUE, FALSE},
        {680, 1, TRUE, FALSE, TRUE},
        {680, 1, FALSE, TRUE, TRUE},
        {999, 1, TRUE, FALSE, TRUE},
        {1000, 1, TRUE, TRUE, TRUE},
        {1000, 1.5, TRUE, TRUE, FALSE},
        {899, 1.5, TRUE, FALSE, FALSE},
        {0, 1, TRUE, FALSE, FALSE},
        {4000, 1, FALSE, TRUE, TRUE},
        {1399, 1, TRUE, FALSE, TRUE, TRUE},
        {1399, 1, FALSE, TRUE, TRUE, TRUE},
        {1400, 1, TRUE, TRUE, TRUE, TRUE},
        {600, 1, TRUE, TRUE, FALSE, TRUE},
    };

    for (gsize i = 0; i < G_N_ELEMENTS(cases); i++) {
        QuireLayout layout =
            quire_layout_for_width(cases[i].width, cases[i].scale, cases[i].open, cases[i].panes);

        g_test_message("width %d, scale %g", cases[i].width, cases[i].scale);
        g_assert_cmpint(layout.sidebar_docked, ==, cases[i].sidebar);
        g_assert_cmpint(layout.panel_docked, ==, cases[i].panel);
    }
    g_assert_true(quire_layout_is_narrow(599, 1));
    g_assert_false(quire_layout_is_narrow(600, 1));
}

static void test_title(void)
{
    const struct {
        const char *text, *title;
    } cases[] = {
        {"Hello", "Hello"},
        {"  two\n\n words\t", "two words"},
        {"", ""},
        {"\xff\xfe", "\xef\xbf\xbd\xef\xbf\xbd"},
        {"What is the capital of the country that lies to the north of here?",
            "What is the capital of the country…"},
        {"aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa",
            "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa…"},
        {"总结三点", "总结三点"},
    };

    for (gsize i = 0; i < G_N_ELEMENTS(cases); i++) {
        g_autofree char *title = quire_title_from_text(cases[i].text);

        g_assert_cmpstr(title, ==, cases[i].title);
    }
}

static void test_thinking(void)
{
    const struct {
        const char *text, *thinking, *answer;
        gboolean open;
    } cases[] = {
        {"plain", "", "plain", FALSE},
        {"", "", "", FALSE},
        {"<", "", "", TRUE},
        {"<thin", "", "", TRUE},
        {"<thing> is", "", "<thing> is", FALSE},
        {"<think>", "", "", TRUE},
        {"<think>\nso", "so", "", TRUE},
        {"<think>\nso\n</thi", "so\n</thi", "", TRUE},
        {"<think>\nso\n</think>\n\nyes", "so", "yes", FALSE},
        {"<think>\n\n</think>\n\nyes", "", "yes", FALSE},
        {"\n<think>a</think>b</think>", "a", "b</think>", FALSE},
        {"say <think> aloud", "", "say <think> aloud", FALSE},
    };

    for (gsize i = 0; i < G_N_ELEMENTS(cases); i++) {
        QuireThinking parts = quire_thinking_split(cases[i].text, strlen(cases[i].text));
        g_autofree char *thinking = g_strndup(parts.thinking, parts.n_thinking);
        g_autofree char *answer = g_strndup(parts.answer, parts.n_answer);

        g_test_message("%s", cases[i].text);
        g_assert_cmpstr(thinking != NULL ? thinking : "", ==, cases[i].thinking);
        g_assert_cmpstr(answer, ==, cases[i].answer);
        g_assert_cmpint(parts.open, ==, cases[i].open);
    }
}

static void assert_text(char *have, const char *want)
{
    g_assert_cmpstr(have, ==, want);
    g_free(have);
}

static void test_figures(void)
{
    assert_text(quire_format_ms(0), "0 ms");
    assert_text(quire_format_ms(99.4), "99 ms");
    assert_text(quire_format_ms(140), "0.14 s");
    assert_text(quire_format_ms(12345), "12 s");
    assert_text(quire_format_ms(65000), "1 min 5 s");
    assert_text(quire_format_speed(4.25), "4.2 tok/s");
    assert_text(quire_format_speed(96.4), "96 tok/s");
    assert_text(quire_format_count_short(980), "980");
    assert_text(quire_format_count_short(16896), "16.5K");
    assert_text(quire_format_count_short(262144), "256K");
}

static void test_states(void)
{
    g_autoptr(QuireMessage) message = quire_message_new(QE_ROLE_ASSISTANT, "");
    qe_update update = {.state = QE_REQUEST_QUEUED, .n_before = 2};

    g_assert_true(quire_message_is_running(message));
    quire_message_apply(message, &update);
    assert_text(quire_format_progress(message), "Queued (2 before)");
    update = (qe_update){.state = QE_REQUEST_PREFILL, .n_prompt = 100, .n_prompt_done = 60};
    quire_message_apply(message, &update);
    assert_text(quire_format_progress(message), "Reading 60 of 100 tokens");
    update = (qe_update){.state = QE_REQUEST_DECODE, .text = (char *)"a\0b", .n_text = 3};
    update.receipt.decode_tokens_per_s = 96;
    quire_message_apply(message, &update);
    assert_text(quire_format_progress(message), "96 tok/s");
    {
        gsize n_bytes;

        g_assert_cmpmem(quire_message_get_text(message, &n_bytes), 3, "a\0b", 3);
        g_assert_cmpuint(n_bytes, ==, 3);
    }

    update = (qe_update){.state = QE_REQUEST_DONE, .finish = QE_FINISH_CANCELLED};
    update.receipt = (qe_receipt){.n_prompt = 30,
        .n_reused = 14,
        .n_new = 16,
        .n_generated = 3,
        .first_token_ms = 140,
        .decode_tokens_per_s = 96,
        .first_mismatch = -1};
    quire_message_apply(message, &update);
    g_assert_false(quire_message_is_running(message));
    {
        g_auto(GStrv) figures = quire_format_receipt_figures(message);
        g_autofree char *line = g_strjoinv(" · ", figures);

        g_assert_cmpstr(line, ==, "Stopped · 0.14 s to first token · 96 tok/s · 16 new · 14 reused");
    }
}

/* What a turn brought back from slower tiers, and why it could not go on from all of it. */
static void test_receipt(void)
{
    g_autoptr(QuireMessage) message = quire_message_new(QE_ROLE_ASSISTANT, "");
    qe_update update = {.state = QE_REQUEST_DONE, .finish = QE_FINISH_STOP};
    g_auto(GStrv) figures = NULL, rows = NULL;
    g_autofree char *line = NULL, *table = NULL;

    update.receipt = (qe_receipt){.mode = QE_CACHE_TIERED,
        .n_prompt = 2000,
        .n_reused = 400,
        .n_shared = 16,
        .n_restored_host = 320,
        .n_restored_disk = 64,
        .n_on_host = 16,
        .n_new = 1600,
        .n_recomputed = 1500,
        .first_mismatch = 412,
        .mismatch = QE_MISMATCH_EDITED,
        .skipped_share = 0.62,
        .restore_ms = 12};
    quire_message_apply(message, &update);
    figures = quire_format_receipt_figures(message);
    line = g_strjoinv(" · ", figures);
    g_assert_cmpstr(line, ==,
        "1600 new · 400 reused · 320 from host · 64 from disk · 16 read in host memory · 1500 computed again "
        "· "
        "the chat was changed at token 412");
    rows = quire_format_receipt_table(message);
    g_assert_cmpuint(g_strv_length(rows) % 2, ==, 0);
    table = g_strjoinv("|", rows);
    g_assert_nonnull(strstr(table, "|Cache mode|Tiered|"));
    g_assert_nonnull(strstr(table, "|Why not all was reused|the chat was changed at token 412|"));
    g_assert_nonnull(strstr(table, "|Bringing back took|12 ms|"));
    g_assert_nonnull(strstr(table, "|Pages left out|62 %|"));

    for (int m = QE_MISMATCH_NONE; m <= QE_MISMATCH_MODE; m++) {
        g_autofree char *words = NULL;

        update.receipt.mismatch = m;
        words = quire_format_mismatch(&update.receipt);
        g_assert_cmpint(words == NULL, ==, m == QE_MISMATCH_NONE);
    }
    update.receipt =
        (qe_receipt){.mode = QE_CACHE_REBUILD, .mismatch = QE_MISMATCH_MODE, .first_mismatch = -1};
    assert_text(quire_format_mismatch(&update.receipt), "the mode Rebuild keeps nothing");
    update.receipt.mode = QE_CACHE_TIERED;
    assert_text(quire_format_mismatch(&update.receipt), "the cache mode was changed");
}

/* Each choice is a mode that the engine takes, with words of its own. */
static void test_choices(void)
{
    for (guint i = 0; i < QUIRE_N_CACHE_CHOICES; i++) {
        qe_cache_config config;
        g_autoptr(GError) error = NULL;

        quire_cache_choice_get_config(i, &config);
        g_assert_true(qe_cache_config_check(&config, &error));
        g_assert_no_error(error);
        bool approximate = config.mode == QE_CACHE_TIERED_INT8 || config.mode == QE_CACHE_SELECTIVE;
        g_autofree char *name = quire_cache_choice_dup_name(i);
        g_assert_cmpint(quire_cache_choice_is_approximate(i), ==, approximate);
        g_assert_cmpint(quire_cache_choice_get_error_note(i) != NULL, ==, approximate);
        g_assert_cmpint(strstr(name, "approximate") != NULL, ==, approximate);
        g_assert_cmpint(quire_cache_choice_is_offered(i, NULL), ==, !approximate);
        for (guint j = 0; j < i; j++) {
            g_assert_cmpstr(quire_cache_choice_get_title(i), !=, quire_cache_choice_get_title(j));
            g_assert_cmpstr(quire_cache_choice_get_description(i), !=, quire_cache_choice_get_description(j));
        }
    }
    g_assert_cmpuint(quire_cache_count_again(QE_CACHE_SESSION, QE_CACHE_TIERED, 100), ==, 0);
    g_assert_cmpuint(quire_cache_count_again(QE_CACHE_SESSION, QE_CACHE_PAGED, 100), ==, 100);
    g_assert_cmpuint(quire_cache_count_again(QE_CACHE_REBUILD, QE_CACHE_SESSION, 100), ==, 100);
    g_assert_cmpuint(quire_cache_count_again(QE_CACHE_TIERED, QE_CACHE_TIERED_INT8, 100), ==, 100);
    g_assert_cmpuint(quire_cache_count_again(QE_CACHE_TIERED_INT8, QE_CACHE_TIERED_INT8, 100), ==, 0);
    g_assert_cmpuint(quire_cache_count_again(QE_CACHE_SELECTIVE, QE_CACHE_TIERED, 100), ==, 100);
    g_assert_cmpuint(quire_cache_count_again(QE_CACHE_TIERED_INT8, QE_CACHE_SELECTIVE, 100), ==, 100);
    g_assert_cmpuint(quire_cache_count_again(QE_CACHE_SELECTIVE, QE_CACHE_SELECTIVE, 100), ==, 0);
    const qe_memory_plan plans[] = {{.page_bytes_int8 = 1}, {.has_selective = true}};
    for (guint p = 0; p < 2; p++) {
        g_assert_cmpint(quire_cache_choice_is_offered(QUIRE_CACHE_TIERED_INT8, &plans[p]), ==, p == 0);
        g_assert_cmpint(quire_cache_choice_is_offered(QUIRE_CACHE_SELECTIVE, &plans[p]), ==, p == 1);
        g_assert_true(quire_cache_choice_is_offered(QUIRE_CACHE_ARTICLE, &plans[p]));
    }
    /* The lengths that the words name are the engine's. */
    qe_cache_config config;
    quire_cache_choice_get_config(QUIRE_CACHE_SELECTIVE, &config);
    g_assert_cmpuint(qe_cache_identity_tokens(&config), ==, 2624);
    g_assert_cmpuint(config.sink_length, ==, 64);
    g_assert_cmpuint(config.recent_length, ==, 512);
    g_assert_cmpuint(config.select_length, ==, 2048);
}

static void test_cost(void)
{
    /* 1,000 tokens of bf16 on the GPU, four times as many beside it. */
    qe_memory_plan plan = {.on_device = true,
        .page_bytes = 64 * 1024,
        .page_bytes_int8 = 36 * 1024,
        .kv = 63 * 64 * 1024,
        .host_kv = 252 * 64 * 1024};

    assert_text(quire_cache_format_cost(&plan, QE_CACHE_SESSION, QUIRE_CACHE_AUTO, QUIRE_CACHE_TIERED, 160),
        "The next turn computes nothing again.\n160 tokens: 640.0 KiB on the GPU");
    assert_text(quire_cache_format_cost(&plan, QE_CACHE_SESSION, QUIRE_CACHE_AUTO, QUIRE_CACHE_TIERED, 1600),
        "The next turn computes nothing again.\n1600 tokens: 3.9 MiB on the GPU and 2.3 MiB in host memory");
    assert_text(quire_cache_format_cost(&plan, QE_CACHE_TIERED, QUIRE_CACHE_AUTO, QUIRE_CACHE_REBUILD, 160),
        "The next turn, and every one after it, computes 160 tokens again.\n160 tokens: 640.0 KiB on the "
        "GPU");
    assert_text(
        quire_cache_format_cost(&plan, QE_CACHE_TIERED, QUIRE_CACHE_AUTO, QUIRE_CACHE_TIERED_INT8, 160),
        "The next turn computes 160 tokens again, once.\n160 tokens: 360.0 KiB on the GPU");
    assert_text(quire_cache_format_cost(&plan, QE_CACHE_TIERED, QUIRE_CACHE_AUTO, QUIRE_CACHE_SESSION, 1600),
        "The next turn computes nothing again.\nIts 1600 tokens need 6.2 MiB, more than this mode has: a "
        "turn "
        "will be refused.");
    assert_text(quire_cache_format_cost(NULL, QE_CACHE_TIERED, QUIRE_CACHE_AUTO, QUIRE_CACHE_SESSION, 0),
        "The chat is empty: the change costs nothing.");
    assert_text(quire_cache_format_cost(NULL, QE_CACHE_TIERED, QUIRE_CACHE_AUTO, QUIRE_CACHE_AUTO, 10),
        "This mode is in use.");
    g_assert_cmpint(quire_cache_choice_resolve(QUIRE_CACHE_AUTO, &plan), ==, QE_CACHE_TIERED);
    plan.host_kv = 0;
    g_assert_cmpint(quire_cache_choice_resolve(QUIRE_CACHE_AUTO, &plan), ==, QE_CACHE_SESSION);
}

/* ---- With an engine ---- */

static gboolean wake_cb(gpointer data)
{
    return G_SOURCE_CONTINUE; /* the loop looks again though nothing happened */
}

/* On the CPU the memory beside the cache is what was asked for; "Automatic" follows it as the engine's does. */
static void test_plan(void)
{
    const guint64 mib = 1 << 20;
    guint tick = g_timeout_add(20, wake_cb, NULL);

    for (guint64 host = 0; host <= 24 * mib; host += 24 * mib) {
        g_autoptr(QuireEngineClient) client = quire_engine_client_new();
        g_autoptr(GError) error = NULL;
        qe_engine_options options = {
            .backend = "cpu", .n_threads = 1, .kv_bytes_max = 16 * mib, .host_bytes_max = host};
        const qe_memory_plan *plan;
        const qe_snapshot *snapshot;
        const qe_session_view *session = NULL;
        qe_session_options session_options;
        qe_session_id id;

        g_assert_true(quire_engine_client_start(client, &options, &error));
        g_assert_no_error(error);
        quire_engine_client_load(client, g_getenv("QUIRE_TEST_MODEL"));
        while ((plan = quire_engine_client_get_plan(client)) == NULL)
            g_main_context_iteration(NULL, TRUE);
        snapshot = quire_engine_client_get_snapshot(client);
        g_assert_cmpuint(plan->host_kv, ==, host);
        g_assert_cmpuint(plan->kv, ==, 16 * mib);
        g_assert_cmpuint(plan->host_kv_tokens, ==, host / plan->page_bytes * 16);
        g_assert_cmpuint(plan->kv + plan->host_kv, ==, snapshot->tiers[QE_TIER_HOST].bytes_max);
        qe_session_options_init(&session_options);
        id = quire_engine_client_open_session(client, &session_options, &error);
        g_assert_no_error(error);
        while ((session = quire_engine_client_find_session(client, id)) == NULL)
            g_main_context_iteration(NULL, TRUE);
        g_assert_cmpint(quire_cache_choice_resolve(QUIRE_CACHE_AUTO, plan), ==, session->mode);
        g_assert_cmpint(session->mode, ==, host > 0 ? QE_CACHE_TIERED : QE_CACHE_SESSION);
    }
    g_source_remove(tick);
}

/* ---- In another language ---- */

static void test_words(void)
{
    const struct {
        const char *said, *words;
    } cases[] = {
        {"The CUDA module is missing: this copy of Quire was built or installed without it.",
            "缺少 CUDA 模块：此 Quire 在构建或安装时未包含该模块。"},
        {"Out of memory on NVIDIA H200: 3.1 of 139.8 GiB are free; close other programs that use the GPU.",
            "NVIDIA H200 内存不足：空闲 3.1 GiB，共 139.8 GiB；请关闭其他使用 GPU 的程序。"},
        {"The prompt has 9000 tokens, the context holds 8192",
            "提示词有 9000 个词元，上下文只能容纳 8192 个"},
        /* A sentence within another. */
        {"The device was lost: The GPU was lost (an illegal address): load the model again, or else restart "
         "Quire.",
            "与设备的连接已丢失：与 The GPU 的连接已丢失（an illegal address）：请重新加载模型，或重新启动 "
            "Quire。"},
        {"KV memory of 12 bytes holds no page: one has 8 bytes",
            "12 字节的 KV 内存容纳不下一页：每页 8 字节"},
        /* Files of models, and what is expected and found there. */
        {"model.safetensors: tensor lm_head.weight is missing: expected [151936, 2560], since "
         "tie_word_embeddings is false",
            "model.safetensors：缺少张量 lm_head.weight：因为 tie_word_embeddings 为 false，所以应为 "
            "[151936, 2560]"},
        {"model.safetensors: tensor a.b is missing: expected [64]",
            "model.safetensors：缺少张量 a.b：应为 [64]"},
        {"config.json: hidden_size: expected a number from 1 to 16384, found nothing",
            "config.json：hidden_size：应为 1 到 16384 之间的数字，实际为 无"},
        {"AMD EPYC, AVX-512, 2 threads", "AMD EPYC，AVX-512，2 个线程"},
        {"CPU, portable code, 1 thread", "CPU，可移植代码，1 个线程"},
        /* What is not known stays, and so does what only begins like a sentence that is. */
        {"model.safetensors: cannot hear: No such file or directory",
            "model.safetensors: cannot hear: No such file or directory"},
        {"No model is loaded. Or is there?", "No model is loaded. Or is there?"},
        {"The prompt has 9000 tokens", "The prompt has 9000 tokens"},
        {"", ""},
        {NULL, NULL},
    };
    const char *const *forms = quire_words_get_forms();

    g_setenv("LANGUAGE", "zh_CN", TRUE);
    if (setlocale(LC_ALL, "C.UTF-8") == NULL) {
        g_test_skip("no locale besides C");
        return;
    }
    bindtextdomain("quire", g_getenv("QUIRE_TEST_LOCALE_DIR"));
    bind_textdomain_codeset("quire", "UTF-8");
    textdomain("quire");
    for (gsize i = 0; i < G_N_ELEMENTS(cases); i++)
        g_assert_cmpstr(quire_words(cases[i].said), ==, cases[i].words);
    for (gsize i = 0; forms[i] != NULL; i++)
        g_assert_cmpstr(gettext(forms[i]), !=, forms[i]);
}

int main(int argc, char **argv)
{
    g_test_init(&argc, &argv, NULL);
    g_test_add_func("/app/layout/widths", test_layout);
    g_test_add_func("/app/conversation/title", test_title);
    g_test_add_func("/app/thinking/split", test_thinking);
    g_test_add_func("/app/format/figures", test_figures);
    g_test_add_func("/app/message/states", test_states);
    g_test_add_func("/app/message/receipt", test_receipt);
    g_test_add_func("/app/cache-modes/choices", test_choices);
    g_test_add_func("/app/cache-modes/cost", test_cost);
    g_test_add_func("/app/engine-client/plan", test_plan);
    /* The last one: the language stays. */
    g_test_add_func("/words/engine", test_words);
    return g_test_run();
}
