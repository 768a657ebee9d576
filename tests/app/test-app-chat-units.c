/* test-app-chat-units.c: what the chat shows, without a window. */
#include <glib/gstdio.h>
#include <string.h>

#include "app/quire-attachment.h"
#include "app/quire-chat-settings.h"
#include "app/quire-context.h"
#include "app/quire-export.h"
#include "app/quire-format.h"
#include "app/quire-history-db.h"
#include "app/quire-math.h"
#include "app/quire-message.h"
#include "app/quire-pace.h"
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

    {
        guint n_known;
        g_autofree char *rest = quire_attachments_compose_uncounted(files, "What is\nthis?", &n_known);

        g_assert_cmpuint(n_known, ==, 5);
        g_assert_null(strstr(rest, "one\ntwo"));
        g_assert_nonnull(strstr(rest, tricky));
        g_assert_true(g_str_has_suffix(rest, "What is\nthis?"));
    }

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

/* ---- Formulas ---- */

static void test_math(void)
{
    static const struct {
        const char *tex, *markup;
    } cases[] = {
        {"x^2", "<i>x</i><sup>2</sup>"},
        {"a_{ij} + b", "<i>a</i><sub><i>i</i><i>j</i></sub> + <i>b</i>"},
        {"e^{-x}", "<i>e</i><sup>−<i>x</i></sup>"},
        {"a-b", "<i>a</i> − <i>b</i>"},
        {"\\frac{1}{2}", "<sup>1</sup>⁄<sub>2</sub>"},
        {"\\frac{a+b+c}{d}", "(<i>a</i> + <i>b</i> + <i>c</i>) / <i>d</i>"},
        {"\\sqrt{x}", "√<i>x</i>"},
        {"\\sqrt[3]{x+1}", "<sup>3</sup>√(<i>x</i> + 1)"},
        {"\\alpha \\le \\beta", "α ≤ β"},
        {"\\sum_{i=1}^{n} i", "∑<sub><i>i</i> = 1</sub><sup><i>n</i></sup><i>i</i>"},
        {"\\text{if } x<0", "if <i>x</i> &lt; 0"},
        {"\\vec{v}", "<i>v\u20d7</i>"},
        {"\\left( \\frac{a}{b} \\right)", "(<sup><i>a</i></sup>⁄<sub><i>b</i></sub>)"},
        {"\\mathbb{R}^n", "ℝ<sup><i>n</i></sup>"},
        {"\\begin{pmatrix} 1 & 2 \\\\ 3 & 4 \\end{pmatrix}", "⎛ 1\u20032 ⎞\n⎝ 3\u20034 ⎠"},
        {"f(x) = \\begin{cases} 1 & x > 0 \\\\ 0 \\end{cases}",
            "<i>f</i>(<i>x</i>) = \n⎧ 1\u2003<i>x</i> &gt; 0 \n⎩ 0"},
        /* Not known, or broken: the source is shown. */
        {"\\unknown{x}", NULL},
        {"\\frac{a}", NULL},
        {"{x", NULL},
        {"x}", NULL},
        {"\\begin{tikzpicture}\\end{tikzpicture}", NULL},
        {"\\begin{matrix} 1 \\end{cases}", NULL},
        {"\\", NULL},
        {"", NULL},
        {"{{{{{{{{{{{{{{{{{{{{{{{{{{{{{{{{x}}}}}}}}}}}}}}}}}}}}}}}}}}}}}}}}", NULL},
        {"\\hat\\hat\\hat\\hat\\hat\\hat\\hat\\hat\\hat\\hat\\hat\\hat\\hat\\hat\\hat\\hat\\hat\\hat\\hat\\ha"
         "t\\hat\\hat\\hat\\hat\\hat\\hat\\hat x",
            NULL},
    };

    for (gsize i = 0; i < G_N_ELEMENTS(cases); i++) {
        g_autofree char *markup = quire_math_to_markup(cases[i].tex, strlen(cases[i].tex));

        g_test_message("%s", cases[i].tex);
        g_assert_cmpstr(markup, ==, cases[i].markup);
        /* Every prefix of it ends, and what it gives is well formed: no tag is left open. */
        for (gsize n = 0; n < strlen(cases[i].tex); n++) {
            g_autofree char *part = quire_math_to_markup(cases[i].tex, n);
            int depth = 0;

            for (const char *p = part; p != NULL && *p != '\0'; p++)
                if (*p == '<')
                    depth += p[1] == '/' ? -1 : 1;
            g_assert_cmpint(depth, ==, 0);
        }
    }
}

static void test_math_in_text(void)
{
    static const struct {
        const char *text;
        guint n;
        const char *first;
        gboolean display;
    } cases[] = {
        {"so $x_1*y*z$ is", 1, "x_1*y*z", FALSE},
        {"so \\( a \\) is", 1, "a", FALSE},
        {"\\[\n a = b\n\\]", 1, "a = b", TRUE},
        {"$$a$$ and $b$", 2, "a", TRUE},
        {"it costs $5 and $10", 0, NULL, FALSE},
        {"$10, `$x$`", 0, NULL, FALSE},
        {"from $5-$10 on", 0, NULL, FALSE},
        {"http://a/?b=$c&d=$e", 0, NULL, FALSE},
        {"`$x$` and ``a`$y$``", 0, NULL, FALSE},
        {"```\n$x$\n```\n", 0, NULL, FALSE},
        {"~~~\n$x$\n\n\\(y\\)", 0, NULL, FALSE},
        {"```\ncode\n```\n$x$", 1, "x", FALSE},
        {"\\$x$ and \\\\(a\\\\)", 0, NULL, FALSE},
        {"open $x\nclosed$ \\(a\n\nb\\)", 0, NULL, FALSE},
        {"$ x $ $$ $", 0, NULL, FALSE},
        {"\xef\xa3\xb0"
         "0\xef\xa3\xb1",
            0, NULL, FALSE},
    };

    for (gsize i = 0; i < G_N_ELEMENTS(cases); i++) {
        g_autoptr(GPtrArray) formulas = NULL;
        g_autofree char *text = quire_math_extract(cases[i].text, &formulas);

        g_test_message("%s", cases[i].text);
        g_assert_cmpuint(formulas->len, ==, cases[i].n);
        if (cases[i].n > 0) {
            g_assert_cmpstr(((QuireFormula *)formulas->pdata[0])->tex, ==, cases[i].first);
            g_assert_cmpint(((QuireFormula *)formulas->pdata[0])->display, ==, cases[i].display);
        }
        g_assert_true(g_utf8_validate(text, -1, NULL));
    }
}

/* ---- Reading ---- */

/* A burst is over after 50 ms, every step shows more, and no character is cut. */
static void test_pace(void)
{
    g_autofree char *text = g_malloc0(3001);
    QuirePace pace = {0};
    gsize shown = 0;

    for (int i = 0; i < 3000; i += 3)
        memcpy(text + i, "\xe6\x80\xbb", 3);
    /* Some words are shown at once. */
    g_assert_cmpuint(quire_pace_step(&pace, text, 21, 1000, 16667), ==, 21);
    for (gint64 now = 0; now <= 50000; now += 16667) {
        gsize n = quire_pace_step(&pace, text, 3000, 100000 + now, 16667);

        g_assert_cmpuint(n % 3, ==, 0);
        g_assert_cmpuint(n, >=, shown);
        if (now == 0)
            g_assert_cmpuint(n, <, 1500);
        shown = n;
    }
    g_assert_cmpuint(shown, ==, 3000);
    /* Late frames show all there is. */
    pace = (QuirePace){0};
    quire_pace_step(&pace, text, 3000, 100000, 16667);
    g_assert_cmpuint(quire_pace_step(&pace, text, 3000, 900000, 16667), ==, 3000);
    /* A text that became shorter (another version) does no harm. */
    g_assert_cmpuint(quire_pace_step(&pace, text, 30, 950000, 16667), ==, 30);
}

static void test_sentences(void)
{
    static const char text[] = "Hello there. It is **3.5** p.m. now!\n\n- one\n\n```c\nint a. "
                               "b;\n```\n\xe4\xbd\xa0\xe5\xa5\xbd\xe3\x80\x82\"End.\" Rest";
    GString *said = g_string_new(NULL);
    gsize from = 0;
    guint n = 0;

    /* As it streams, byte by byte: each sentence once, and in order. */
    for (gsize i = 1; i <= strlen(text); i++) {
        gsize end = quire_sentences_end(text, i, from, i == strlen(text));

        g_assert_cmpuint(end, >=, from);
        if (end > from) {
            g_autofree char *plain = quire_sentences_plain(text, from, end);

            if (plain[0] != '\0') {
                g_string_append_printf(said, "[%s]", plain);
                n++;
            }
            from = end;
        }
    }
    g_assert_cmpstr(said->str, ==,
        "[Hello there.][It is 3.5 p.m.][now!][- one][\xe4\xbd\xa0\xe5\xa5\xbd\xe3\x80\x82][\"End.\"][Rest]");
    g_assert_cmpuint(n, ==, 7);
    g_string_free(said, TRUE);
}

static void test_reading_words(void)
{
    g_autoptr(QuireMessage) message = quire_message_new(QE_ROLE_ASSISTANT, "");
    qe_update update = {.state = QE_REQUEST_PREFILL, .n_prompt = 1000, .n_prompt_done = 400};
    g_autofree char *words = NULL;

    update.receipt.n_restored_host = 400;
    quire_message_apply(message, &update);
    words = quire_format_progress(message);
    g_assert_cmpstr(words, ==, "Bringing back 400 tokens from host memory");
    /* Half a second for 200 of 600: the other 400 take a second more. */
    ((QuireReply *)quire_message_get_reply(message))->reading_us -= G_USEC_PER_SEC / 2;
    update.n_prompt_done = 600;
    quire_message_apply(message, &update);
    g_free(g_steal_pointer(&words));
    words = quire_format_progress(message);
    g_assert_true(g_str_has_prefix(words, "Reading 600 of 1000 tokens · "));
    g_assert_true(g_str_has_suffix(words, " s left"));
}

/* What a confused or hostile model may write at length is read in one go. */
static void test_math_floods(void)
{
    static const char *const pieces[] = {
        "\\(", "\\[", "$$ ", "$a", "`", "``a`", "\\(a\\)", "$x$ ", "\\[\n\n"};

    for (gsize i = 0; i < G_N_ELEMENTS(pieces); i++) {
        GString *flood = g_string_new(NULL);
        g_autoptr(GPtrArray) formulas = NULL;
        g_autofree char *out = NULL;

        while (flood->len < 400000)
            g_string_append(flood, pieces[i]);
        out = quire_math_extract(flood->str, &formulas);
        g_assert_true(g_utf8_validate(out, -1, NULL));
        if (strcmp(pieces[i], "$x$ ") == 0)
            g_assert_cmpuint(formulas->len, ==, 100000);
        g_string_free(flood, TRUE);
    }
}

static void test_table_lines(void)
{
    static const struct {
        const char *text, *out;
    } cases[] = {
        {"|a|b|\n|-|:-:|\n|1|2|", "|a|b|\n|---|:--:|\n|1|2|"},
        {"a | b\n--|--:\n", "a | b\n---|---:\n"},
        {"|---|\n", "|---|\n"},
        {"```\n|-|-|\n```", "```\n|-|-|\n```"},
        {"- a\n--\n- | b", "- a\n--\n- | b"},
    };

    for (gsize i = 0; i < G_N_ELEMENTS(cases); i++) {
        g_autoptr(GPtrArray) none = NULL;
        g_autofree char *out = quire_math_extract(cases[i].text, &none);

        g_assert_cmpstr(out, ==, cases[i].out);
    }
}

/* What the user did is said, where it was that; it is kept with the receipt, and a chat's settings with its JSON. */
static void test_why(void)
{
    static const struct {
        QuireCause cause;
        const char *words;
    } cases[] = {
        {QUIRE_CAUSE_NONE, "the chat was changed at token 412"},
        {QUIRE_CAUSE_REGENERATED, "the reply was written anew, from token 412 on"},
        {QUIRE_CAUSE_EDITED, "you edited message 3, from token 412 on"},
        {QUIRE_CAUSE_FLIPPED, "another version is shown, from token 412 on"},
        {QUIRE_CAUSE_LEFT_OUT, "turns were left out or taken in, from token 412 on"},
        {QUIRE_CAUSE_SYSTEM, "the system prompt was changed, from token 412 on"},
    };

    for (gsize i = 0; i < G_N_ELEMENTS(cases); i++) {
        g_autoptr(QuireMessage) message = quire_message_new(QE_ROLE_ASSISTANT, "a");
        g_autoptr(QuireMessage) again = NULL;
        qe_update update = {.state = QE_REQUEST_DONE, .finish = QE_FINISH_STOP, .text = (char *)""};
        g_autofree char *words = NULL, *json = NULL;

        update.receipt = (qe_receipt){.n_prompt = 500, .first_mismatch = 412, .mismatch = QE_MISMATCH_EDITED};
        quire_message_set_cause(message, cases[i].cause, 3);
        quire_message_apply(message, &update);
        json = quire_message_dup_receipt(message);
        again = quire_message_new_stored(QE_ROLE_ASSISTANT, QUIRE_REPLY_DONE, "a", 1, 1, json);
        words = quire_format_why(again);
        g_assert_cmpstr(words, ==, cases[i].words);
    }
    {
        g_autoptr(GPtrArray) messages =
            g_ptr_array_new_with_free_func((GDestroyNotify)quire_stored_message_free),
                             read = NULL;
        QuireStoredChat chat = {.id = (char *)"a", .sampling = (char *)"{\"left_out\": 2}", .leaf = 1};
        QuireStoredChat imported = {0};
        g_autofree char *json = NULL;

        g_ptr_array_add(messages, quire_stored_message_new(1, 0, QE_ROLE_USER, 4, "x", 1));
        json = quire_export_json(&chat, messages);
        read = quire_import_json(json, -1, &imported, NULL);
        g_assert_nonnull(read);
        g_assert_cmpstr(imported.sampling, ==, "{\"left_out\": 2}");
        quire_stored_chat_clear(&imported);
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
    g_test_add_func("/app/chat/math", test_math);
    g_test_add_func("/app/chat/math-in-text", test_math_in_text);
    g_test_add_func("/app/chat/pace", test_pace);
    g_test_add_func("/app/chat/sentences", test_sentences);
    g_test_add_func("/app/chat/reading-words", test_reading_words);
    g_test_add_func("/app/chat/math-floods", test_math_floods);
    g_test_add_func("/app/chat/table-lines", test_table_lines);
    g_test_add_func("/app/chat/why", test_why);
    g_test_add_func("/app/chat/presets", test_presets);
    g_test_add_func("/app/chat/context-limit", test_context_limit);
    g_test_add_func("/app/chat/context-room", test_context_room);
    return g_test_run();
}
