/* test-engine-utf8.c: broken and cut UTF-8, the streaming filter, and stop strings across pieces. */
#include <glib.h>
#include <string.h>
#include "engine/qe-limits.h"
#include "engine/qe-stop.h"
#include "engine/qe-utf8.h"

#define FFFD QE_UTF8_REPLACEMENT

static const struct {
    const char *bytes;
    gsize n;
    const char *repaired;
} broken[] = {
    {"\xe7\x8c", 2, FFFD}, {"\x41\xff\xfe\x42", 4, "A" FFFD FFFD "B"}, {"\xe2\x82\x41", 3, FFFD "A"},
    {"\xc0\xaf", 2, FFFD FFFD},                         /* overlong */
    {"\xed\xa0\x80", 3, FFFD FFFD FFFD},                /* a surrogate */
    {"\xf0\x9f\xab", 3, FFFD},                          /* cut */
    {"\xf0\x80\x80\x41", 4, FFFD FFFD FFFD "A"},        /* overlong */
    {"\xf4\x90\x80\x80", 4, FFFD FFFD FFFD FFFD},       /* past U+10FFFF */
    {"\xf5\x80", 2, FFFD FFFD},                         /* no lead byte */
    {"\x80\xbf", 2, FFFD FFFD},                         /* only continuation bytes */
    {"\xf0\x9f\xf0\x9f\x98\x80", 6, FFFD "\U0001f600"}, /* cut by another character */
    {"\xe1\x80\xe2\xf0\x91\x92\xf1\xbf\x41", 9,
        FFFD FFFD FFFD FFFD "A"}, /* The Unicode Standard, table 3-11 */
    {"\xc0\xaf\xe0\x80\xbf\xf0\x81\x82\x41", 9, FFFD FFFD FFFD FFFD FFFD FFFD FFFD FFFD "A"}, /* table 3-8 */
    {"plain", 5, "plain"}, {"\xc3\xa4\xe4\xbd\xa0\xf0\x9f\x98\x80", 9, "\u00e4\u4f60\U0001f600"},
    {"\xf4\x8f\xbf\xbf\xef\xbf\xbf", 7, "\xf4\x8f\xbf\xbf\xef\xbf\xbf"}, /* the last ones are characters */
};

static void test_repair(void)
{
    for (guint i = 0; i < G_N_ELEMENTS(broken); i++) {
        g_autoptr(GString) out = g_string_new(NULL);
        g_autofree char *copy = g_memdup2(broken[i].bytes, broken[i].n); /* exact, for the sanitizer */
        qe_utf8_append_repaired(out, copy, broken[i].n);
        g_assert_cmpstr(out->str, ==, broken[i].repaired);
        gsize prefix = qe_utf8_valid_prefix(copy, broken[i].n);
        g_assert_cmpint(prefix == broken[i].n, ==, g_utf8_validate_len(copy, broken[i].n, NULL));
    }
    /* Behind a long valid beginning, at every offset of the word-wise scan; NUL is a character. */
    for (gsize n = 0; n < 40; n++) {
        g_autoptr(GString) text = g_string_new(NULL);
        for (gsize i = 0; i < n; i++)
            g_string_append_c(text, (char)(i % 7));
        g_string_append_len(text, "\xe4\xb8", 2);
        g_assert_cmpuint(qe_utf8_valid_prefix(text->str, text->len), ==, n);
    }
}

/* However the bytes are cut, the filter delivers what the repair of the whole gives, and only whole characters. */
static void test_filter_cuts(void)
{
    for (guint i = 0; i < G_N_ELEMENTS(broken); i++)
        for (guint cuts = 0; cuts < 1u << (broken[i].n - 1); cuts++) {
            g_autoptr(GString) out = g_string_new(NULL);
            qe_utf8_filter filter;
            qe_utf8_filter_init(&filter);
            for (gsize begin = 0, end = 1; end <= broken[i].n; end++) {
                if (end < broken[i].n && !(cuts & 1u << (end - 1)))
                    continue;
                g_autofree char *piece = g_memdup2(broken[i].bytes + begin, end - begin);
                qe_utf8_filter_push(&filter, piece, end - begin, out);
                g_assert_true(g_utf8_validate(out->str, (gssize)out->len, NULL));
                begin = end;
            }
            qe_utf8_filter_flush(&filter, out);
            g_assert_cmpstr(out->str, ==, broken[i].repaired);
        }
}

static void test_filter_stream(void)
{
    /* What each token delivers. */
    static const char *const streams[][8] = {
        {"\xf0\x9f", "\xab", "\xa0", NULL},
        {"\xf0\x9f\x91\xa9", "\xe2\x80", "\x8d", "\xf0\x9f\x9a\x80", NULL},
        {"\xe0\xa4\xa8", "\xe0\xa4\xae", "\xe0\xa4\xb8", "\xe0\xa5\x8d\xe0\xa4", "\xa4", "\xe0\xa5\x87",
            NULL},
    };
    static const char *const delivered[][8] = {
        {"", "", "\U0001fae0"},
        {"\U0001f469", "", "\u200d", "\U0001f680"},
        {"\u0928", "\u092e", "\u0938", "\u094d", "\u0924", "\u0947"},
    };
    for (guint i = 0; i < G_N_ELEMENTS(streams); i++) {
        qe_utf8_filter filter;
        qe_utf8_filter_init(&filter);
        for (guint k = 0; streams[i][k]; k++) {
            g_autoptr(GString) out = g_string_new(NULL);
            qe_utf8_filter_push(&filter, streams[i][k], strlen(streams[i][k]), out);
            g_assert_cmpstr(out->str, ==, delivered[i][k]);
        }
        g_autoptr(GString) rest = g_string_new(NULL);
        qe_utf8_filter_flush(&filter, rest);
        g_assert_cmpstr(rest->str, ==, "");
    }
    /* The stream ends inside a character; the filter is as new afterwards. NUL passes. */
    qe_utf8_filter filter;
    qe_utf8_filter_init(&filter);
    g_autoptr(GString) out = g_string_new(NULL);
    qe_utf8_filter_push(&filter, "ab\xe4\xb8", 4, out);
    g_assert_cmpstr(out->str, ==, "ab");
    qe_utf8_filter_push(&filter, NULL, 0, out);
    qe_utf8_filter_flush(&filter, out);
    g_assert_cmpstr(out->str, ==, "ab" FFFD);
    g_string_truncate(out, 0);
    qe_utf8_filter_push(&filter, "a\0b", 3, out);
    qe_utf8_filter_flush(&filter, out);
    g_assert_cmpmem(out->str, out->len, "a\0b", 3);
}

/* ---- Stop strings ---- */

static qe_stop_matcher *matcher(const char *const *stops)
{
    g_autoptr(GError) error = NULL;
    qe_stop_matcher *self = qe_stop_matcher_new(stops, &error);
    g_assert_no_error(error);
    return self;
}

#define STOPS(...) ((const char *const[]){__VA_ARGS__, NULL})

static void test_stop_tokens(void)
{
    g_autoptr(qe_stop_matcher) m = matcher(STOPS("een bl"));
    g_autoptr(GString) out = g_string_new(NULL);
    g_assert_false(qe_stop_matcher_push(m, "red", 3, out));
    g_assert_cmpstr(out->str, ==, "red");
    g_assert_false(qe_stop_matcher_push(m, " green", 6, out));
    g_assert_cmpstr(out->str, ==, "red gr");
    g_assert_cmpint(qe_stop_matcher_get_found(m), ==, -1);
    g_assert_true(qe_stop_matcher_push(m, " blue", 5, out));
    g_assert_cmpstr(out->str, ==, "red gr");
    g_assert_cmpint(qe_stop_matcher_get_found(m), ==, 0);
    g_assert_true(qe_stop_matcher_push(m, " pink", 5, out));
    qe_stop_matcher_flush(m, out);
    g_assert_cmpstr(out->str, ==, "red gr");
}

/* @text in every way to cut it into pieces: always the same text, and never more than before the stop. */
static void check_stop(const char *const *stops, const char *text, const char *want, int found)
{
    gsize n = strlen(text);
    for (guint cuts = 0; cuts < 1u << (n - 1); cuts++) {
        g_autoptr(qe_stop_matcher) m = matcher(stops);
        g_autoptr(GString) out = g_string_new(NULL);
        bool stopped = false;
        for (gsize begin = 0, end = 1; end <= n; end++) {
            if (end < n && !(cuts & 1u << (end - 1)))
                continue;
            stopped = qe_stop_matcher_push(m, text + begin, end - begin, out);
            g_assert_true(g_str_has_prefix(want, out->str));
            begin = end;
        }
        g_assert_cmpint(stopped, ==, found >= 0);
        g_assert_cmpint(qe_stop_matcher_get_found(m), ==, found);
        qe_stop_matcher_flush(m, out);
        g_assert_cmpstr(out->str, ==, want);
    }
}

static void test_stop_cuts(void)
{
    check_stop(STOPS("aab"), "aaabc", "a", 0);
    check_stop(STOPS("aab"), "aaaaa", "aaaaa", -1);
    check_stop(STOPS("abac"), "ababac", "ab", 0);
    check_stop(STOPS("xyz", "bc"), "abcxyz", "a", 1);
    check_stop(STOPS("abcd", "bc"), "xabcd", "xa", 1); /* ends first */
    check_stop(STOPS("c", "abc"), "xabc", "x", 1);     /* end together: the longest */
    check_stop(STOPS("abcx", "bcy"), "abcy", "a", 1);  /* one fails while the other goes on */
    check_stop(STOPS("end"), "the en", "the en", -1);  /* held back, then delivered */
    check_stop(STOPS("\n\n"), "a\nb\n\nc", "a\nb", 0);
    check_stop(STOPS("\u00e9"), "caf\u00e9s", "caf", 0);
    check_stop(STOPS("a"), "a", "", 0);
}

static void test_stop_none(void)
{
    g_autoptr(GString) out = g_string_new(NULL);
    g_autoptr(qe_stop_matcher) none = matcher(NULL);
    g_assert_false(qe_stop_matcher_push(none, "text", 4, out));
    g_assert_cmpstr(out->str, ==, "text");
    const char *const empty_list[] = {NULL};
    g_autoptr(qe_stop_matcher) empty = matcher(empty_list);
    g_assert_false(qe_stop_matcher_push(empty, "!", 1, out));
    qe_stop_matcher_flush(empty, out);
    g_assert_cmpstr(out->str, ==, "text!");
    /* As new after a flush: "e" from before does not count. */
    g_autoptr(qe_stop_matcher) m = matcher(STOPS("end"));
    g_string_truncate(out, 0);
    g_assert_false(qe_stop_matcher_push(m, "e", 1, out));
    qe_stop_matcher_flush(m, out);
    g_assert_false(qe_stop_matcher_push(m, "nd", 2, out));
    g_assert_cmpstr(out->str, ==, "end");
}

static void test_stop_refused(void)
{
    g_autoptr(GError) error = NULL;
    g_assert_null(qe_stop_matcher_new(STOPS("a", ""), &error));
    g_assert_error(error, QE_ERROR, QE_ERROR_INVALID);
    g_clear_error(&error);
    g_autofree char *longest = g_strnfill(QE_STOP_BYTES_MAX + 1, 'x');
    g_assert_null(qe_stop_matcher_new(STOPS(longest), &error));
    g_assert_error(error, QE_ERROR, QE_ERROR_INVALID);
    longest[QE_STOP_BYTES_MAX] = '\0';
    g_autoptr(qe_stop_matcher) m = matcher(STOPS(longest));
    g_autoptr(GString) out = g_string_new(NULL);
    g_assert_true(qe_stop_matcher_push(m, longest, QE_STOP_BYTES_MAX, out));
    g_assert_cmpuint(out->len, ==, 0);
    const char *many[QE_STOP_STRINGS_MAX + 2] = {NULL};
    for (guint i = 0; i <= QE_STOP_STRINGS_MAX; i++)
        many[i] = "x";
    g_clear_error(&error);
    g_assert_null(qe_stop_matcher_new(many, &error));
    g_assert_error(error, QE_ERROR, QE_ERROR_INVALID);
}

/* Random text over two letters against a plain search. */
static void test_stop_random(void)
{
    g_autoptr(GRand) rand = g_rand_new_with_seed(11);
    for (int round = 0; round < 4000; round++) {
        char stops[3][8], text[40];
        const char *list[4] = {NULL};
        int n_stops = g_rand_int_range(rand, 1, 4), n_text = g_rand_int_range(rand, 1, 39);
        for (int i = 0; i < n_stops; i++) {
            int n = g_rand_int_range(rand, 1, 7);
            for (int k = 0; k < n; k++)
                stops[i][k] = g_rand_boolean(rand) ? 'a' : 'b';
            stops[i][n] = '\0';
            list[i] = stops[i];
        }
        for (int k = 0; k < n_text; k++)
            text[k] = g_rand_boolean(rand) ? 'a' : 'b';
        text[n_text] = '\0';
        gsize cut = (gsize)n_text;
        bool found = false;
        for (gsize end = 1; end <= (gsize)n_text && !found; end++)
            for (int i = 0; i < n_stops; i++) {
                gsize n = strlen(stops[i]);
                if (n <= end && memcmp(text + end - n, stops[i], n) == 0) {
                    cut = found ? MIN(cut, end - n) : end - n;
                    found = true;
                }
            }
        g_autoptr(qe_stop_matcher) m = matcher(list);
        g_autoptr(GString) out = g_string_new(NULL);
        bool stopped = false;
        for (int at = 0; at < n_text;) {
            int step = g_rand_int_range(rand, 1, 6), n = MIN(step, n_text - at);
            stopped = qe_stop_matcher_push(m, text + at, (gsize)n, out);
            at += n;
        }
        qe_stop_matcher_flush(m, out);
        g_assert_cmpint(stopped, ==, found);
        g_assert_cmpmem(out->str, out->len, text, cut);
    }
}

int main(int argc, char **argv)
{
    g_test_init(&argc, &argv, NULL);
    g_test_add_func("/engine/utf8/repair", test_repair);
    g_test_add_func("/engine/utf8/filter-cuts", test_filter_cuts);
    g_test_add_func("/engine/utf8/filter-stream", test_filter_stream);
    g_test_add_func("/engine/stop/tokens", test_stop_tokens);
    g_test_add_func("/engine/stop/cuts", test_stop_cuts);
    g_test_add_func("/engine/stop/none", test_stop_none);
    g_test_add_func("/engine/stop/refused", test_stop_refused);
    g_test_add_func("/engine/stop/random", test_stop_random);
    return g_test_run();
}
