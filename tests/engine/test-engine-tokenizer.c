/* test-engine-tokenizer.c: ids and texts against the reference library's, and files that break the format.
 *
 * The real Qwen3 tokenizer is not in the repository: QUIRE_TEST_QWEN_TOKENIZER names a folder that has it
 * (tests/fetch-tokenizer.sh makes one); without it those tests are skipped. The shipped model's is always there. */
#include <json-glib/json-glib.h>
#include <glib/gstdio.h>
#include <pthread.h>
#include <string.h>
#include "engine/qe-bpe.h"
#include "engine/qe-nfc.h"
#include "engine/qe-pretok.h"
#include "engine/qe-tokenizer-file.h"
#include "engine/qe-tokenizer.h"

static qe_tokenizer *open_qwen(void)
{
    static qe_tokenizer *cached;
    const char *dir = g_getenv("QUIRE_TEST_QWEN_TOKENIZER");
    if (dir == NULL || *dir == '\0') {
        g_test_skip("QUIRE_TEST_QWEN_TOKENIZER is not set: run tests/fetch-tokenizer.sh");
        return NULL;
    }
    g_autofree char *path = g_build_filename(dir, "tokenizer.json", NULL);
    if (!g_file_test(path, G_FILE_TEST_EXISTS)) {
        g_test_skip("there is no tokenizer.json in $QUIRE_TEST_QWEN_TOKENIZER");
        return NULL;
    }
    if (cached == NULL) {
        g_autoptr(GError) error = NULL;
        cached = qe_tokenizer_new(dir, &error);
        g_assert_no_error(error);
    }
    return qe_tokenizer_ref(cached);
}

static qe_tokenizer *open_demo(void)
{
    g_autoptr(GError) error = NULL;
    qe_tokenizer *tokenizer = qe_tokenizer_new(g_getenv("QUIRE_TEST_MODEL"), &error);
    g_assert_no_error(error);
    return tokenizer;
}

static GArray *encode(const qe_tokenizer *tokenizer, const char *text, gsize n, qe_encode_flags flags)
{
    g_autoptr(GError) error = NULL;
    GArray *ids = g_array_new(FALSE, FALSE, sizeof(uint32_t));
    bool ok = qe_tokenizer_encode(tokenizer, text, n, flags, ids, &error);
    g_assert_no_error(error);
    g_assert_true(ok);
    return ids;
}

static char *show_ids(const uint32_t *ids, gsize n)
{
    GString *out = g_string_new("[");
    for (gsize i = 0; i < n; i++)
        g_string_append_printf(out, i ? ", %u" : "%u", ids[i]);
    g_string_append_c(out, ']');
    return g_string_free(out, FALSE);
}

static void check_ids_n(const qe_tokenizer *tokenizer, const char *text, gsize n_bytes, qe_encode_flags flags,
    const uint32_t *ids, gsize n)
{
    g_autoptr(GArray) got = encode(tokenizer, text, n_bytes, flags);
    if (got->len == n && (n == 0 || memcmp(got->data, ids, n * sizeof *ids) == 0))
        return;
    g_autofree char *want_text = show_ids(ids, n);
    g_autofree char *got_text = show_ids((const uint32_t *)(gpointer)got->data, got->len);
    g_autofree char *shown = g_strescape(text, NULL);
    g_test_message("\"%s\": expected %s, found %s", shown, want_text, got_text);
    g_test_fail();
}

/* check_ids(tokenizer, "text", flags, id, ...) */
#define check_ids(tokenizer, text, flags, ...)                                                               \
    do {                                                                                                     \
        static const uint32_t ids_[] = {__VA_ARGS__};                                                        \
        check_ids_n(tokenizer, text, sizeof text - 1, flags, ids_, G_N_ELEMENTS(ids_));                      \
    } while (0)

static void read_ids(JsonObject *object, const char *member, GArray *ids)
{
    JsonArray *array = json_object_get_array_member(object, member);
    g_array_set_size(ids, 0);
    for (guint i = 0; i < json_array_get_length(array); i++) {
        uint32_t id = (uint32_t)json_array_get_int_element(array, i);
        g_array_append_val(ids, id);
    }
}

/* json-glib's strings end at a NUL, so the file's \u0000 travels as a private character. */
#define NUL_STAND_IN "\xef\xa3\xbe" /* U+F8FE */
static GString *read_text(JsonObject *object)
{
    GString *text = g_string_new(json_object_get_string_member(object, "text"));
    char *at;
    while ((at = strstr(text->str, NUL_STAND_IN)) != NULL) {
        gsize pos = (gsize)(at - text->str);
        g_string_erase(text, (gssize)pos, 3);
        g_string_insert_c(text, (gssize)pos, '\1');
    }
    for (gsize i = 0; i < text->len; i++)
        if (text->str[i] == '\1')
            text->str[i] = '\0';
    return text;
}

static JsonParser *load_cases(void)
{
    g_autofree char *path =
        g_build_filename(g_getenv("QUIRE_TEST_FIXTURES"), "tokenizer", "qwen3-cases.json", NULL);
    g_autofree char *data = NULL;
    g_autoptr(GError) error = NULL;
    g_file_get_contents(path, &data, NULL, &error);
    g_assert_no_error(error);
    g_assert_null(strstr(data, "\\uf8fe"));
    g_assert_null(strstr(data, "\\u0001"));
    g_autoptr(GString) text = g_string_new(data);
    g_string_replace(text, "\\u0000", "\\uf8fe", 0);
    JsonParser *parser = json_parser_new();
    json_parser_load_from_data(parser, text->str, (gssize)text->len, &error);
    g_assert_no_error(error);
    return parser;
}

static void test_qwen_cases(void)
{
    g_autoptr(qe_tokenizer) tokenizer = open_qwen();
    if (tokenizer == NULL)
        return;
    g_autoptr(JsonParser) parser = load_cases();
    JsonArray *cases = json_node_get_array(json_parser_get_root(parser));
    g_autoptr(GArray) want = g_array_new(FALSE, FALSE, sizeof(uint32_t));
    guint n_plain = 0;
    for (guint i = 0; i < json_array_get_length(cases); i++) {
        JsonObject *object = json_array_get_object_element(cases, i);
        g_autoptr(GString) text = read_text(object);
        read_ids(object, "ids", want);
        check_ids_n(tokenizer, text->str, text->len, QE_ENCODE_ADDED_TOKENS, (uint32_t *)(gpointer)want->data,
            want->len);
        gsize n;
        g_autofree char *decoded =
            qe_tokenizer_decode(tokenizer, (uint32_t *)(gpointer)want->data, want->len, false, &n);
        gsize n_normal = text->len;
        g_autofree char *normal = qe_nfc_normalize(text->str, text->len, &n_normal);
        g_assert_cmpmem(decoded, n, normal ? normal : text->str, n_normal);
        if (json_object_has_member(object, "ids_plain")) {
            read_ids(object, "ids_plain", want);
            n_plain++;
        }
        check_ids_n(
            tokenizer, text->str, text->len, QE_ENCODE_PLAIN, (uint32_t *)(gpointer)want->data, want->len);
    }
    g_assert_cmpuint(json_array_get_length(cases), >, 100);
    g_assert_cmpuint(n_plain, >, 10);
    g_test_message("%u texts, %u with plain ids of their own", json_array_get_length(cases), n_plain);
}

static void test_qwen_regex(void)
{
    g_autoptr(qe_tokenizer) t = open_qwen();
    if (t == NULL)
        return;
    check_ids(t, "=>", QE_ENCODE_PLAIN, 2179);
    check_ids(t, "[i]:\n", QE_ENCODE_PLAIN, 989, 10343);
    check_ids(t, "y+=10;", QE_ENCODE_PLAIN, 88, 8496, 16, 15, 26);
    check_ids(t, "7 89", QE_ENCODE_PLAIN, 22, 220, 23, 24);
    check_ids(t, "\");\n", QE_ENCODE_PLAIN, 797);
    /* Thai: marks are not letters. */
    check_ids(t, "\u0e01\u0e33\u0e25\u0e31\u0e07", QE_ENCODE_PLAIN, 124660, 31782, 123874);
    check_ids(t, "\u0e2a\u0e27\u0e31\u0e2a\u0e14\u0e35", QE_ENCODE_PLAIN, 143126, 23271, 125136, 28319);
    check_ids(t, "\u0e17\u0e35\u0e48\u0e19\u0e35\u0e48", QE_ENCODE_PLAIN, 35884, 47171, 20184, 47171);
    /* The apostrophe rule comes first, ignores case, and needs no word end. */
    check_ids(t, "'then' or 'there'", QE_ENCODE_PLAIN, 944, 12032, 6, 476, 364, 18532, 6);
    check_ids(t, "'select' 'version'", QE_ENCODE_PLAIN, 594, 18957, 6, 364, 4366, 6);
    check_ids(t, "'reset'", QE_ENCODE_PLAIN, 2299, 746, 6);
    check_ids(t, "'Version", QE_ENCODE_PLAIN, 6, 42612, 5428, 290);
    check_ids(t, "'THEN", QE_ENCODE_PLAIN, 17323, 87921);
    check_ids(t, "don'there", QE_ENCODE_PLAIN, 15007, 944, 6739);
    check_ids(t, "'data'", QE_ENCODE_PLAIN, 4172, 459, 6);
    check_ids(t, "'llo", QE_ENCODE_PLAIN, 3278, 78);
}

static void test_qwen_normal_form(void)
{
    g_autoptr(qe_tokenizer) t = open_qwen();
    if (t == NULL)
        return;
    check_ids(t, "e\u0301", QE_ENCODE_PLAIN, 963);
    check_ids(t, "Tie\u0302\u0301ng Vie\u0323\u0302t", QE_ENCODE_PLAIN, 45351, 26068, 968, 128324);
    check_ids(t, "\u212b", QE_ENCODE_PLAIN, 144044);
    check_ids(t, "\u1112\u1161\u11ab", QE_ENCODE_PLAIN, 23573);
    check_ids(t, "x\u00b2", QE_ENCODE_PLAIN, 87, 29456);
    check_ids(t, "\ufb01", QE_ENCODE_PLAIN, 144300);
    check_ids(t, "\uff21", QE_ENCODE_PLAIN, 133054);
    check_ids(t, "\u0958", QE_ENCODE_PLAIN, 64704, 5502, 120);
    check_ids(t, "\u0915\u093c", QE_ENCODE_PLAIN, 64704, 5502, 120);
}

static void test_qwen_ill_formed(void)
{
    g_autoptr(qe_tokenizer) t = open_qwen();
    if (t == NULL)
        return;
    check_ids(t, "\xe7\x8c", QE_ENCODE_PLAIN, 5691);
    check_ids(t, "\x41\xff\xfe\x42", QE_ENCODE_PLAIN, 32, 9973, 33);
    check_ids(t, "\xe2\x82\x41", QE_ENCODE_PLAIN, 5691, 32);
    check_ids(t, "\xc0\xaf", QE_ENCODE_PLAIN, 9973);
    check_ids(t, "\xed\xa0\x80", QE_ENCODE_PLAIN, 57332);
    check_ids(t, "\xf0\x9f\xab", QE_ENCODE_PLAIN, 5691);
}

static void test_qwen_decode(void)
{
    g_autoptr(qe_tokenizer) t = open_qwen();
    if (t == NULL)
        return;
    static const uint32_t ids[] = {151667, 271, 151668, 271, 9707, 0, 151645};
    gsize n;
    g_autofree char *visible = qe_tokenizer_decode(t, ids, G_N_ELEMENTS(ids), true, &n);
    g_assert_cmpstr(visible, ==, "<think>\n\n</think>\n\nHello!");
    g_assert_cmpuint(n, ==, strlen(visible));
    g_autofree char *all = qe_tokenizer_decode(t, ids, G_N_ELEMENTS(ids), false, NULL);
    g_assert_cmpstr(all, ==, "<think>\n\n</think>\n\nHello!<|im_end|>");
    for (uint32_t id = 151643; id <= 151668; id++) {
        g_assert_true(qe_tokenizer_is_added(t, id));
        g_assert_cmpint(qe_tokenizer_is_special(t, id), ==, id <= 151656);
    }
    g_assert_false(qe_tokenizer_is_added(t, 151642));
    g_assert_cmpuint(qe_tokenizer_n_tokens(t), ==, 151669);
    g_assert_cmpint(qe_tokenizer_get_eos(t), ==, 151645);
    /* The model's vocabulary ends at 151,936. */
    static const uint32_t beyond[] = {151669, 9707, 151935, UINT32_MAX};
    g_assert_false(qe_tokenizer_has_token(t, 151669));
    g_assert_true(qe_tokenizer_has_token(t, 151668));
    g_autofree char *rest = qe_tokenizer_decode(t, beyond, G_N_ELEMENTS(beyond), false, NULL);
    g_assert_cmpstr(rest, ==, "Hello");
    uint32_t id;
    g_assert_true(qe_tokenizer_find(t, "</think>", &id));
    g_assert_cmpuint(id, ==, 151668);
    g_assert_false(qe_tokenizer_find(t, "Hello", &id));
    /* A character cut over three tokens. */
    static const uint32_t cut[] = {9284, 104, 254};
    g_autofree char *face = qe_tokenizer_decode(t, cut, 3, false, NULL);
    g_assert_cmpstr(face, ==, "\U0001fae0");
    g_autofree char *half = qe_tokenizer_decode(t, cut, 2, false, NULL);
    g_assert_cmpstr(half, ==, "\ufffd");
}

/* A text of @n times @unit. */
static char *repeat(const char *unit, gsize n)
{
    GString *out = g_string_sized_new(strlen(unit) * n);
    for (gsize i = 0; i < n; i++)
        g_string_append(out, unit);
    return g_string_free(out, FALSE);
}

static void check_repeated(const qe_tokenizer *t, const char *unit, gsize n, gsize n_same, uint32_t same,
    const uint32_t *rest, gsize n_rest)
{
    g_autofree char *text = repeat(unit, n);
    g_autoptr(GArray) ids = encode(t, text, strlen(text), QE_ENCODE_PLAIN);
    g_assert_cmpuint(ids->len, ==, n_same + n_rest);
    for (gsize i = 0; i < n_same; i++)
        g_assert_cmpuint(g_array_index(ids, uint32_t, i), ==, same);
    for (gsize i = 0; i < n_rest; i++)
        g_assert_cmpuint(g_array_index(ids, uint32_t, n_same + i), ==, rest[i]);
}

static void *long_runs(void *data)
{
    const qe_tokenizer *t = data;
    check_repeated(t, "Z", 50000, 25000, 33536, NULL, 0);
    check_repeated(t, "\n", 30000, 937, 79083, (const uint32_t[]){24616}, 1);
    check_repeated(t, "\r\n", 6000, 1500, 26238, NULL, 0);
    g_autofree char *spaces = repeat(" ", 40001);
    g_autofree char *text = g_strconcat(spaces, "q", NULL);
    g_autoptr(GArray) ids = encode(t, text, strlen(text), QE_ENCODE_PLAIN);
    g_assert_cmpuint(ids->len, ==, 314);
    for (guint i = 0; i < 312; i++)
        g_assert_cmpuint(g_array_index(ids, uint32_t, i), ==, 56940);
    g_assert_cmpuint(g_array_index(ids, uint32_t, 312), ==, 5238);
    g_assert_cmpuint(g_array_index(ids, uint32_t, 313), ==, 2804);
    /* A megabyte of one letter, and one of marks that all want to be reordered. */
    check_repeated(t, "Z", 1 << 20, 1 << 19, 33536, NULL, 0);
    g_autofree char *marks = repeat("\u0301\u0316", 1 << 18);
    g_autoptr(GArray) mark_ids = encode(t, marks, strlen(marks), QE_ENCODE_PLAIN);
    g_assert_cmpuint(mark_ids->len, >=, 1 << 18);
    return NULL;
}

static void run_on_small_stack(void *(*fn)(void *), void *data)
{
    pthread_t thread;
    pthread_attr_t attr;
    g_assert_cmpint(pthread_attr_init(&attr), ==, 0);
    g_assert_cmpint(pthread_attr_setstacksize(&attr, 256 << 10), ==, 0);
    g_assert_cmpint(pthread_create(&thread, &attr, fn, data), ==, 0);
    g_assert_cmpint(pthread_join(thread, NULL), ==, 0);
    pthread_attr_destroy(&attr);
}

static void test_qwen_long_runs(void)
{
    g_autoptr(qe_tokenizer) t = open_qwen();
    if (t != NULL)
        run_on_small_stack(long_runs, t);
}

static void test_demo_golden(void)
{
    g_autoptr(qe_tokenizer) t = open_demo();
    g_autofree char *path = g_build_filename(g_getenv("QUIRE_TEST_MODEL"), "training", "report.json", NULL);
    g_autoptr(JsonParser) parser = json_parser_new();
    g_autoptr(GError) error = NULL;
    json_parser_load_from_file(parser, path, &error);
    g_assert_no_error(error);
    JsonArray *golden =
        json_object_get_array_member(json_node_get_object(json_parser_get_root(parser)), "golden");
    g_autoptr(GArray) want = g_array_new(FALSE, FALSE, sizeof(uint32_t));
    g_assert_cmpuint(json_array_get_length(golden), >, 0);
    for (guint i = 0; i < json_array_get_length(golden); i++) {
        JsonObject *object = json_array_get_object_element(golden, i);
        const char *text = json_object_get_string_member(object, "text");
        read_ids(object, "ids", want);
        check_ids_n(
            t, text, strlen(text), QE_ENCODE_ADDED_TOKENS, (uint32_t *)(gpointer)want->data, want->len);
        read_ids(object, "greedy", want);
        g_autofree char *decoded =
            qe_tokenizer_decode(t, (uint32_t *)(gpointer)want->data, want->len, true, NULL);
        g_assert_cmpstr(decoded, ==, json_object_get_string_member(object, "greedy_text"));
    }
    g_assert_cmpint(qe_tokenizer_get_eos(t), ==, 6141);
    g_assert_cmpuint(qe_tokenizer_n_tokens(t), ==, 6144);
}

/* Any text comes back, in normal form. */
static void test_demo_round_trip(void)
{
    g_autoptr(qe_tokenizer) t = open_demo();
    g_autoptr(GRand) rand = g_rand_new_with_seed(20261202);
    for (int round = 0; round < 400; round++) {
        g_autoptr(GString) text = g_string_new(NULL);
        int n = g_rand_int_range(rand, 0, 60);
        for (int i = 0; i < n; i++) {
            static const gunichar ends[] = {0x80, 0x80, 0x250, 0x3000, 0xa000, 0xd800, 0x20000};
            gunichar c =
                (gunichar)g_rand_int_range(rand, 0, (int)ends[g_rand_int_range(rand, 0, G_N_ELEMENTS(ends))]);
            if (c == 0 || (c >= 0xd800 && c < 0xe000))
                g_string_append_c(text, '\0');
            else
                g_string_append_unichar(text, c);
        }
        gsize n_normal = text->len, n_decoded;
        g_autofree char *normal = qe_nfc_normalize(text->str, text->len, &n_normal);
        g_autoptr(GArray) ids = encode(t, text->str, text->len, QE_ENCODE_PLAIN);
        for (guint i = 0; i < ids->len; i++)
            g_assert_false(qe_tokenizer_is_added(t, g_array_index(ids, uint32_t, i)));
        g_autofree char *decoded =
            qe_tokenizer_decode(t, (uint32_t *)(gpointer)ids->data, ids->len, false, &n_decoded);
        g_assert_cmpmem(decoded, n_decoded, normal ? normal : text->str, n_normal);
    }
}

/* The normal form against GLib's own, which is right on text without NUL. */
static void test_normal_form(void)
{
    g_autoptr(GRand) rand = g_rand_new_with_seed(7);
    for (int round = 0; round < 3000; round++) {
        g_autoptr(GString) text = g_string_new(NULL);
        int n = g_rand_int_range(rand, 1, 12);
        for (int i = 0; i < n; i++) {
            static const gunichar ranges[][2] = {{0x41, 0x5b}, {0xc0, 0x250}, {0x300, 0x370}, {0x370, 0x500},
                {0x5b0, 0x5ef}, {0x900, 0xe00}, {0x1100, 0x1200}, {0x1e00, 0x2000}, {0x2000, 0x2b00},
                {0x3041, 0x3100}, {0xac00, 0xac60}, {0xf900, 0xfb60}, {0x11099, 0x110bb}, {0x1d15e, 0x1d1c1}};
            const gunichar *range = ranges[g_rand_int_range(rand, 0, G_N_ELEMENTS(ranges))];
            g_string_append_unichar(text, (gunichar)g_rand_int_range(rand, (int)range[0], (int)range[1]));
        }
        gsize n_out = text->len;
        g_autofree char *ours = qe_nfc_normalize(text->str, text->len, &n_out);
        g_autofree char *glib = g_utf8_normalize(text->str, (gssize)text->len, G_NORMALIZE_NFC);
        g_assert_cmpmem(ours ? ours : text->str, n_out, glib, strlen(glib));
        g_assert_true(ours == NULL || strcmp(ours, text->str) != 0);
    }
    /* Every character alone, and behind a letter. */
    for (gunichar c = 1; c < 0x30000; c++) {
        if (c >= 0xd800 && c < 0xe000)
            continue;
        char text[8] = "a";
        text[1 + g_unichar_to_utf8(c, text + 1)] = '\0';
        for (int from = 0; from < 2; from++) {
            gsize n = strlen(text + from), n_out = n;
            g_autofree char *ours = qe_nfc_normalize(text + from, n, &n_out);
            g_autofree char *glib = g_utf8_normalize(text + from, -1, G_NORMALIZE_NFC);
            g_assert_cmpmem(ours ? ours : text + from, n_out, glib, strlen(glib));
        }
    }
    gsize n_out;
    g_autofree char *with_nul = qe_nfc_normalize("e\0e\xcc\x81\0", 6, &n_out);
    g_assert_cmpmem(with_nul, n_out, "e\0\xc3\xa9\0", 5);
}

/* ---- Small files made here ---- */

typedef struct {
    const char *vocab;   /* entries after the 256 bytes, with a comma in front */
    const char *merges;  /* list items */
    const char *added;   /* list items */
    const char *members; /* instead of normalizer, pre_tokenizer, decoder */
    const char *model;   /* members in front of vocab, with a comma behind */
    bool merges_first;
} small;

#define MEMBERS                                                                                              \
    "\"normalizer\":null,\"decoder\":{\"type\":\"ByteLevel\"},\"pre_tokenizer\":{\"type\":\"ByteLevel\","    \
    "\"add_prefix_space\":false,\"use_regex\":true}"

static GString *small_file(const small *s)
{
    GString *vocab = g_string_new("\"vocab\":{"), *out = g_string_new("{");
    int next = 0x100;
    for (int byte = 0; byte < 256; byte++) {
        bool printable = (byte >= 0x21 && byte <= 0x7e) || (byte >= 0xa1 && byte <= 0xac) ||
                         (byte >= 0xae && byte <= 0xff);
        g_string_append_printf(vocab, "%s\"\\u%04x\":%d", byte ? "," : "", printable ? byte : next++, byte);
    }
    g_string_append_printf(vocab, "%s}", s->vocab ? s->vocab : "");
    g_autofree char *merges = g_strdup_printf("\"merges\":[%s]", s->merges ? s->merges : "");
    g_string_append_printf(out, "\"added_tokens\":[%s],%s,\"model\":{\"type\":\"BPE\",%s%s,%s}}",
        s->added ? s->added : "", s->members ? s->members : MEMBERS, s->model ? s->model : "",
        s->merges_first ? merges : vocab->str, s->merges_first ? vocab->str : merges);
    g_string_free(vocab, TRUE);
    return out;
}

static qe_tokenizer *small_tokenizer(const small *s)
{
    g_autoptr(GString) file = small_file(s);
    g_autoptr(GError) error = NULL;
    qe_tokenizer *t = qe_tokenizer_parse("small.json", file->str, file->len, &error);
    g_assert_no_error(error);
    return t;
}

static void check_refused(const small *s, int code, const char *part)
{
    g_autoptr(GString) file = small_file(s);
    g_autoptr(GError) error = NULL;
    g_autoptr(qe_tokenizer) t = qe_tokenizer_parse("small.json", file->str, file->len, &error);
    g_assert_null(t);
    g_assert_nonnull(error);
    if (!g_error_matches(error, QE_ERROR, code) || strstr(error->message, part) == NULL ||
        !g_str_has_prefix(error->message, "small.json: "))
        g_error(
            "expected code %d and \"%s\", found code %d and \"%s\"", code, part, error->code, error->message);
}

static void test_small_merges(void)
{
    /* Rank decides before position; a result may merge further; both spellings of merges. */
    for (int first = 0; first < 2; first++) {
        g_autoptr(qe_tokenizer) t = small_tokenizer(&(small){
            .vocab = ",\"ab\":256,\"bc\":257,\"abc\":258,\"aa\":259",
            .merges = "\"b c\",[\"a\",\"bc\"],\"a b\",[\"a\",\"a\"]",
            .merges_first = first,
        });
        check_ids(t, "abc", QE_ENCODE_PLAIN, 258);
        check_ids(t, "ab", QE_ENCODE_PLAIN, 256);
        check_ids(t, "aaa", QE_ENCODE_PLAIN, 259, 'a');
        check_ids(t, "aabc", QE_ENCODE_PLAIN, 'a', 258);
        check_ids(t, "a b", QE_ENCODE_PLAIN, 'a', ' ', 'b');
    }
    /* A token that no merge makes is found only when the file says so. */
    small s = {.vocab = ",\"xyz\":256"};
    g_autoptr(qe_tokenizer) strict = small_tokenizer(&s);
    check_ids(strict, "xyz", QE_ENCODE_PLAIN, 'x', 'y', 'z');
    check_ids(
        strict, "xyz", QE_ENCODE_PLAIN, 'x', 'y', 'z'); /* what the first call learned changes nothing */
    s.model = "\"ignore_merges\":true,";
    g_autoptr(qe_tokenizer) loose = small_tokenizer(&s);
    check_ids(loose, "xyz", QE_ENCODE_PLAIN, 256);
    check_ids(loose, "xyzx", QE_ENCODE_PLAIN, 'x', 'y', 'z', 'x');
    /* A vocabulary string outside the byte alphabet never comes out of encoding, but decodes to itself. */
    g_autoptr(qe_tokenizer) foreign =
        small_tokenizer(&(small){.vocab = ",\"\u4f60\":256", .model = "\"ignore_merges\":true,"});
    check_ids(foreign, "\u4f60", QE_ENCODE_PLAIN, 0xe4, 0xbd, 0xa0);
    g_autofree char *text = qe_tokenizer_decode(foreign, (const uint32_t[]){256}, 1, false, NULL);
    g_assert_cmpstr(text, ==, "\u4f60");
}

static void test_small_added(void)
{
    g_autoptr(qe_tokenizer) t = small_tokenizer(&(small){
        .members = "\"normalizer\":{\"type\":\"NFC\"},\"decoder\":{\"type\":\"ByteLevel\"},"
                   "\"pre_tokenizer\":{\"type\":\"ByteLevel\",\"use_regex\":true}",
        .added = "{\"id\":300,\"content\":\"<a>\",\"special\":true},{\"id\":301,\"content\":\"<a><b>\","
                 "\"special\":true},"
                 "{\"id\":302,\"content\":\"<ab\",\"special\":true},{\"id\":303,\"content\":\"\u00d6-"
                 "tok\",\"special\":false}",
    });
    check_ids(t, "<a>", QE_ENCODE_ADDED_TOKENS, 300);
    check_ids(t, "<a><b><a>", QE_ENCODE_ADDED_TOKENS, 301, 300); /* the longest */
    check_ids(t, "<<ab<a", QE_ENCODE_ADDED_TOKENS, '<', 302, '<', 'a');
    check_ids(t, "<a>", QE_ENCODE_PLAIN, '<', 'a', '>');
    /* Not special, so looked for in normal form; plain text, so its bytes are UTF-8. */
    check_ids(t, "O\u0308-tok", QE_ENCODE_ADDED_TOKENS, 303);
    gsize n;
    const char *bytes = qe_tokenizer_token_bytes(t, 303, &n);
    g_assert_cmpmem(bytes, n, "\xc3\x96-tok", 6);
    g_assert_false(qe_tokenizer_has_token(t, 299));
    g_assert_null(qe_tokenizer_token_bytes(t, 299, &n));
    g_assert_cmpuint(qe_tokenizer_n_tokens(t), ==, 304);
}

static void test_refused(void)
{
    static const struct {
        small s;
        int code;
        const char *part;
    } cases[] = {
        {{.vocab = ",\"ab\":5"}, QE_ERROR_FORMAT, "id 5"},
        {{.vocab = ",\"a\":256"}, QE_ERROR_FORMAT, "\"a\" with the ids 97 and 256"},
        {{.vocab = ",\"ab\":-1"}, QE_ERROR_FORMAT, "found -1"},
        {{.vocab = ",\"ab\":4194304"}, QE_ERROR_FORMAT, "found 4194304"},
        {{.vocab = ",\"ab\":\"x\""}, QE_ERROR_FORMAT,
            "model.vocab[\"ab\"]: expected a token id, found \"x\""},
        {{.vocab = ",\"ab\":1.5"}, QE_ERROR_FORMAT, "model.vocab[\"ab\"]"},
        {{.vocab = ",\"\":256"}, QE_ERROR_FORMAT, "at least one character"},
        {{.merges = "\"a b\""}, QE_ERROR_FORMAT, "model.merges[0] (\"a\", \"b\"): expected the joined token"},
        {{.vocab = ",\"ab\":256", .merges = "\"a b\",\"a b\""}, QE_ERROR_FORMAT, "model.merges[1]"},
        {{.vocab = ",\"abc\":256", .merges = "\"ab c\""}, QE_ERROR_FORMAT, "no such left part"},
        {{.vocab = ",\"abc\":256", .merges = "\"a bc\""}, QE_ERROR_FORMAT, "no such right part"},
        {{.merges = "\"ab\""}, QE_ERROR_FORMAT, "model.merges[0]: expected two tokens"},
        {{.merges = "\"a b c\""}, QE_ERROR_FORMAT, "model.merges[0]: expected two tokens"},
        {{.merges = "[\"a\"]"}, QE_ERROR_FORMAT, "model.merges[0]: expected a list of two strings"},
        {{.merges = "[\"a\",\"b\",\"c\"]", .vocab = ",\"ab\":256"}, QE_ERROR_FORMAT, "model.merges[0]"},
        {{.merges = "7"}, QE_ERROR_FORMAT, "model.merges[0]"},
        {{.added = "{\"id\":300,\"content\":\"\"}"}, QE_ERROR_FORMAT, "added_tokens[0]"},
        {{.added = "{\"content\":\"x\"}"}, QE_ERROR_FORMAT, "added_tokens[0]"},
        {{.added = "{\"id\":97,\"content\":\"<x>\"}"}, QE_ERROR_FORMAT, "id 97"},
        {{.added = "{\"id\":300,\"content\":\"a\"}"}, QE_ERROR_FORMAT, "97"},
        {{.added = "{\"id\":300,\"content\":\"<x>\"},{\"id\":300,\"content\":\"<y>\"}"}, QE_ERROR_FORMAT,
            "300"},
        {{.added = "{\"id\":300,\"content\":\"<x>\"},{\"id\":301,\"content\":\"<x>\"}"}, QE_ERROR_FORMAT,
            "301"},
        {{.added = "{\"id\":300,\"content\":\"<x>\",\"id\":301}"}, QE_ERROR_FORMAT, "added_tokens[0].id"},
        {{.added = "{\"id\":300,\"content\":\"<x>\",\"lstrip\":true}"}, QE_ERROR_UNSUPPORTED,
            "added_tokens[0].lstrip"},
        {{.added = "{\"id\":300,\"content\":7}"}, QE_ERROR_FORMAT,
            "added_tokens[0].content: expected a string"},
        {{.added = "{\"id\":99999999,\"content\":\"<x>\"}"}, QE_ERROR_FORMAT, "99999999"},
        {{.model = "\"dropout\":0.1,"}, QE_ERROR_UNSUPPORTED, "model.dropout"},
        {{.model = "\"byte_fallback\":true,"}, QE_ERROR_UNSUPPORTED, "model.byte_fallback"},
        {{.model = "\"end_of_word_suffix\":\"</w>\","}, QE_ERROR_UNSUPPORTED, "model.end_of_word_suffix"},
        {{.model = "\"ignore_merges\":1,"}, QE_ERROR_FORMAT, "model.ignore_merges"},
        {{.members = "\"normalizer\":{\"type\":\"NFKC\"}"}, QE_ERROR_UNSUPPORTED,
            "normalizer.type: expected NFC"},
        {{.members = "\"normalizer\":7"}, QE_ERROR_FORMAT, "normalizer: expected an object or null"},
        {{.members = "\"pre_tokenizer\":{\"type\":\"Whitespace\"}"}, QE_ERROR_UNSUPPORTED,
            "pre_tokenizer.type"},
        {{.members = "\"pre_tokenizer\":{\"type\":\"Sequence\",\"pretokenizers\":[{\"type\":\"Digits\"}]}"},
            QE_ERROR_UNSUPPORTED, "pre_tokenizer.pretokenizers[0].type"},
        {{.members = "\"pre_tokenizer\":{\"type\":\"Split\",\"behavior\":\"Removed\",\"pattern\":{\"Regex\":"
                     "\"a\"}}"},
            QE_ERROR_UNSUPPORTED, "pre_tokenizer.behavior"},
        {{.members = "\"pre_tokenizer\":{\"type\":\"Split\",\"behavior\":\"Isolated\",\"pattern\":{\"Regex\":"
                     "\"\\\\w\"}}"},
            QE_ERROR_UNSUPPORTED, "pre_tokenizer.pattern.Regex"},
        {{.members = "\"pre_tokenizer\":{\"type\":\"Split\",\"behavior\":\"Isolated\",\"pattern\":{\"Regex\":"
                     "\"(\"}}"},
            QE_ERROR_FORMAT, "regular expression"},
        {{.members = "\"pre_tokenizer\":{\"type\":\"Split\",\"behavior\":\"Isolated\",\"pattern\":{\"Regex\":"
                     "\"a\"}},"
                     "\"decoder\":{\"type\":\"ByteLevel\"}"},
            QE_ERROR_UNSUPPORTED, "a ByteLevel step"},
        {{.members = "\"pre_tokenizer\":{\"type\":\"ByteLevel\",\"add_prefix_space\":true}"},
            QE_ERROR_UNSUPPORTED, "add_prefix_space"},
        {{.members = "\"decoder\":{\"type\":\"WordPiece\"}"}, QE_ERROR_UNSUPPORTED, "decoder.type"},
        {{.members = "\"normalizer\":null"}, QE_ERROR_FORMAT,
            "pre_tokenizer: expected an object, found nothing"},
        {{.members = MEMBERS ",\"model\":{}"}, QE_ERROR_FORMAT, "model: expected once"},
    };
    for (guint i = 0; i < G_N_ELEMENTS(cases); i++)
        check_refused(&cases[i].s, cases[i].code, cases[i].part);
    /* A missing byte. */
    g_autoptr(GError) error = NULL;
    const char *tiny = "{\"pre_tokenizer\":{\"type\":\"ByteLevel\"},\"decoder\":{\"type\":\"ByteLevel\"},"
                       "\"model\":{\"type\":\"BPE\",\"vocab\":{\"a\":0},\"merges\":[]}}";
    g_assert_null(qe_tokenizer_parse("tiny.json", tiny, strlen(tiny), &error));
    g_assert_error(error, QE_ERROR, QE_ERROR_FORMAT);
    g_assert_nonnull(strstr(error->message, "256 bytes"));
}

/* Cut at any byte, the file is refused and nothing crashes. */
static void test_cut_files(void)
{
    g_autoptr(GString) file = small_file(&(small){.vocab = ",\"ab\":256",
        .merges = "\"a b\"",
        .added = "{\"id\":300,\"content\":\"<x>\",\"special\":true}"});
    for (gsize n = 0; n < file->len; n++) {
        g_autoptr(GError) error = NULL;
        g_autofree char *copy =
            g_memdup2(file->str, n + 1); /* so that the sanitizer sees a read past the end */
        g_assert_null(qe_tokenizer_parse("cut.json", copy, n, &error));
        g_assert_error(error, QE_ERROR, QE_ERROR_FORMAT);
    }
    g_autoptr(GError) error = NULL;
    g_assert_null(qe_tokenizer_new("/nowhere", &error));
    g_assert_error(error, QE_ERROR, QE_ERROR_FILE);
    g_assert_nonnull(strstr(error->message, "/nowhere/tokenizer.json"));
}

static bool collect_piece(void *user, const char *piece, gsize n, GError **error)
{
    g_string_append_len(user, piece, (gssize)n);
    g_string_append_c(user, '|');
    return true;
}

static void check_pieces(const qe_pretok *pretok, const char *text, const char *want)
{
    g_autoptr(GString) got = g_string_new(NULL);
    g_autoptr(GError) error = NULL;
    g_assert_true(qe_pretok_run(pretok, text, strlen(text), collect_piece, got, &error));
    g_assert_no_error(error);
    g_assert_cmpstr(got->str, ==, want);
}

static void test_pieces(void)
{
    g_autoptr(GError) error = NULL;
    g_autoptr(qe_pretok) two = qe_pretok_new();
    g_assert_true(qe_pretok_add_split(two, "test", "\\p{N}{1,3}", &error));
    g_assert_true(qe_pretok_add_split(two, "test", "[a-c]+", &error));
    check_pieces(two, "xabcx12345ca", "x|abc|x|123|45|ca|");
    g_autoptr(qe_pretok) empty = qe_pretok_new();
    g_assert_true(qe_pretok_add_split(empty, "test", "b*", &error)); /* matches nothing at most places */
    check_pieces(empty, "\u00e4bb\u00e4", "\u00e4|bb|\u00e4|");
    g_autoptr(qe_pretok) space = qe_pretok_new();
    g_assert_true(qe_pretok_add_split(space, "test", "\\s+|[^\\s]+", &error));
    check_pieces(space,
        "a\xc2\x85"
        "b\u180ec\u2028d\x1c",
        "a|\xc2\x85|b\u180ec|\u2028|d\x1c|");
    g_autoptr(qe_pretok) gpt2 = qe_pretok_new();
    g_assert_true(qe_pretok_add_split(gpt2, "test", qe_pretok_gpt2_pattern, &error));
    check_pieces(gpt2, "Don't  stop 123!\n", "Don|'t| | stop| 123|!|\n|");
    /* A letter of Unicode 15.1, a digit and a mark of 16, a symbol of 15: also with an older PCRE2. */
    g_autoptr(qe_pretok) newer = qe_pretok_new();
    g_assert_true(qe_pretok_add_split(
        newer, "test", "\\p{L}+|\\d|\\p{M}|\\p{So}|[^\\p{L}\\p{N}\\p{M}]|\\P{L}", &error));
    check_pieces(newer, "a\U0002ec0fb\U00010d40\U000113b8\U0001fa77..",
        "a\U0002ec0fb|\U00010d40|\U000113b8|\U0001fa77|.|.|");
    static const char *const refused[] = {"^a", "a$", "\\h", "\\w", "\\bx", "[[a]]", "[a&&b]", "[\\S]",
        "[\\P{L}]", "(?m:a)", "(*ACCEPT)", "\\p{Greek}", "\\pL", "a{2}+", "\\1", "(?<n>a)", "[]a]", "[a",
        "\\"};
    for (guint i = 0; i < G_N_ELEMENTS(refused); i++) {
        g_autoptr(GError) refusal = NULL;
        g_autofree char *pattern = qe_regex_translate("test", refused[i], &refusal);
        if (pattern != NULL)
            g_error("\"%s\" was not refused", refused[i]);
        g_assert_error(refusal, QE_ERROR, QE_ERROR_UNSUPPORTED);
    }
}

static bool add_length(void *user, const char *piece, gsize n, GError **error)
{
    g_array_append_val((GArray *)user, n);
    return true;
}

static GArray *lengths_of(const qe_pretok *pretok, const GString *text)
{
    g_autoptr(GError) error = NULL;
    GArray *lengths = g_array_new(FALSE, FALSE, sizeof(gsize));
    qe_pretok_run(pretok, text->str, text->len, add_length, lengths, &error);
    g_assert_no_error(error);
    return lengths;
}

/* Qwen's expression has code of its own for ASCII. It cuts every text as PCRE2 does, which gets the same expression in other
 * letters here: all texts of up to three signs out of those that differ, and random ones. */
static void test_qwen_pieces(void)
{
    static const char *const signs[] = {"a", "S", "l", "e", "'", "7", " ", "\t", "\n", "\r", "\v", "!", "-",
        "\x1c", "\x7f", "\u017f", "\u00e9", "\u00a0", "\u2028", "\u0301", "\u4e2d", "\u0663", "\u20ac"};
    enum { N = G_N_ELEMENTS(signs) };
    g_autoptr(GError) error = NULL;
    g_autoptr(qe_pretok) fast = qe_pretok_new(), slow = qe_pretok_new();
    g_autofree char *other = g_strdup_printf("(?:%s)", qe_pretok_qwen_pattern);
    g_assert_true(qe_pretok_add_split(fast, "test", qe_pretok_qwen_pattern, &error));
    g_assert_true(qe_pretok_add_split(slow, "test", other, &error));
    /* It is the one in the files: else all of this would be for nothing. */
    g_autofree char *path = g_build_filename(g_getenv("QUIRE_TEST_MODEL"), "tokenizer.json", NULL);
    g_autofree char *json = NULL;
    g_assert_true(g_file_get_contents(path, &json, NULL, &error));
    g_auto(GStrv) parts = g_strsplit(qe_pretok_qwen_pattern, "\\", -1);
    g_autofree char *escaped = g_strjoinv("\\\\", parts);
    g_assert_nonnull(strstr(json, escaped));
    g_autoptr(GRand) rand = g_rand_new_with_seed(5);
    g_autoptr(GString) text = g_string_new(NULL);
    for (guint i = 0; i < N * N * N + 3000; i++) {
        guint n = i < N * N * N ? 3 : (guint)g_rand_int_range(rand, 4, 60), k = i;
        g_string_truncate(text, 0);
        for (guint j = 0; j < n; j++, k /= N) {
            guint which = i < N * N * N ? k % N : (guint)g_rand_int_range(rand, 0, N);
            /* Mostly ASCII: longer runs of it. */
            if (n > 3 && g_rand_int_range(rand, 0, 4) > 0)
                which %= 15;
            g_string_append(text, signs[which]);
        }
        g_autoptr(GArray) a = lengths_of(fast, text), b = lengths_of(slow, text);
        if (a->len != b->len || memcmp(a->data, b->data, a->len * sizeof(gsize)) != 0) {
            g_autofree char *shown = g_strescape(text->str, NULL);
            g_error("\"%s\" is cut in another way", shown);
        }
    }
}

typedef struct {
    const qe_tokenizer *tokenizer;
    const char *text;
    GArray *ids;
} job;

static void *encode_job(void *data)
{
    job *j = data;
    j->ids = encode(j->tokenizer, j->text, strlen(j->text), QE_ENCODE_PLAIN);
    return NULL;
}

static void test_threads(void)
{
    g_autoptr(qe_tokenizer) t = open_demo();
    g_autoptr(qe_tokenizer) fresh = open_demo();
    g_autofree char *text =
        repeat("The keeper of the small library remembers 128 quiet names, mostly.\n", 400);
    g_autoptr(GArray) want = encode(fresh, text, strlen(text), QE_ENCODE_PLAIN);
    job jobs[4];
    pthread_t threads[4];
    for (int i = 0; i < 4; i++) {
        jobs[i] = (job){t, text, NULL};
        g_assert_cmpint(pthread_create(&threads[i], NULL, encode_job, &jobs[i]), ==, 0);
    }
    for (int i = 0; i < 4; i++) {
        pthread_join(threads[i], NULL);
        g_assert_cmpmem(jobs[i].ids->data, jobs[i].ids->len * 4, want->data, want->len * 4);
        g_array_unref(jobs[i].ids);
    }
}

/* A message of 16 MB, and one long run, whose ids must not depend on which of the two merge loops made them. */
static void test_large_text(void)
{
    g_autoptr(qe_tokenizer) t = open_demo();
    g_autofree char *unit = repeat("A line about pages and tokens.\n", 1000);
    g_autofree char *text = repeat(unit, 520);
    g_autoptr(GArray) one = encode(t, unit, strlen(unit), QE_ENCODE_PLAIN);
    g_autoptr(GArray) all = encode(t, text, strlen(text), QE_ENCODE_PLAIN);
    g_assert_cmpuint(strlen(text), >=, 16000000);
    g_assert_cmpuint(all->len, ==, one->len * 520);
    g_assert_cmpmem(all->data, one->len * 4, one->data, one->len * 4);
    /* Letters only: one piece. The same letters as short pieces are merged by the scan. */
    static const char *const words[] = {"remembering", "a", "understandable", "conversation", "zq"};
    for (gsize n_bytes = 44; n_bytes < 54; n_bytes++) {
        g_autoptr(GString) run = g_string_new(NULL);
        for (guint i = 0; run->len < n_bytes; i++)
            g_string_append(run, words[i % G_N_ELEMENTS(words)]);
        g_string_truncate(run, n_bytes);
        g_autoptr(GArray) ids = encode(t, run->str, run->len, QE_ENCODE_PLAIN);
        g_autofree char *decoded =
            qe_tokenizer_decode(t, (uint32_t *)(gpointer)ids->data, ids->len, false, NULL);
        g_assert_cmpstr(decoded, ==, run->str);
    }
}

int main(int argc, char **argv)
{
    g_test_init(&argc, &argv, NULL);
    g_test_add_func("/engine/tokenizer/qwen/cases", test_qwen_cases);
    g_test_add_func("/engine/tokenizer/qwen/regex", test_qwen_regex);
    g_test_add_func("/engine/tokenizer/qwen/normal-form", test_qwen_normal_form);
    g_test_add_func("/engine/tokenizer/qwen/ill-formed", test_qwen_ill_formed);
    g_test_add_func("/engine/tokenizer/qwen/decode", test_qwen_decode);
    g_test_add_func("/engine/tokenizer/qwen/long-runs", test_qwen_long_runs);
    g_test_add_func("/engine/tokenizer/demo/golden", test_demo_golden);
    g_test_add_func("/engine/tokenizer/demo/round-trip", test_demo_round_trip);
    g_test_add_func("/engine/tokenizer/normal-form", test_normal_form);
    g_test_add_func("/engine/tokenizer/small/merges", test_small_merges);
    g_test_add_func("/engine/tokenizer/small/added", test_small_added);
    g_test_add_func("/engine/tokenizer/refused", test_refused);
    g_test_add_func("/engine/tokenizer/cut-files", test_cut_files);
    g_test_add_func("/engine/tokenizer/pieces", test_pieces);
    g_test_add_func("/engine/tokenizer/qwen-pieces", test_qwen_pieces);
    g_test_add_func("/engine/tokenizer/threads", test_threads);
    g_test_add_func("/engine/tokenizer/large-text", test_large_text);
    return g_test_run();
}
