/* fuzz-utf8.c: any bytes, cut anywhere, through the streaming filter and the stop matcher. The first byte seeds the cuts
 * and is the stop string's length. */
#include <glib.h>
#include <stdint.h>
#include <string.h>
#include "engine/qe-stop.h"
#include "engine/qe-utf8.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n_bytes);

static void check_filter(const char *text, gsize n, unsigned seed)
{
    g_autoptr(GString) whole = g_string_new(NULL);
    g_autoptr(GString) streamed = g_string_new(NULL);
    qe_utf8_filter filter;
    qe_utf8_filter_init(&filter);
    qe_utf8_append_repaired(whole, text, n);
    for (gsize at = 0; at < n;) {
        seed = seed * 1103515245u + 12345u;
        gsize step = MIN(1 + (seed >> 16) % 5, n - at);
        qe_utf8_filter_push(&filter, text + at, step, streamed);
        at += step;
    }
    qe_utf8_filter_flush(&filter, streamed);
    g_assert(g_string_equal(whole, streamed));
    g_assert(qe_utf8_valid_prefix(whole->str, whole->len) == whole->len);
    const char *end = whole->str + whole->len;
    for (const char *p = whole->str; p < end;) {
        const char *nul = memchr(p, 0, (gsize)(end - p));
        g_assert(g_utf8_validate(p, (nul ? nul : end) - p, NULL));
        p = nul ? nul + 1 : end;
    }
}

static void check_stop(const char *text, gsize n, unsigned n_stop, unsigned seed)
{
    g_autofree char *stop = g_strndup(text, MIN(n_stop, n));
    const char *stops[] = {stop, NULL};
    gsize n_found = strlen(stop);
    g_autoptr(qe_stop_matcher) matcher = qe_stop_matcher_new(stops, NULL);
    g_assert((matcher != NULL) == (n_found > 0));
    if (matcher == NULL)
        return;
    /* The stop string is the text's own beginning; shifted by one it must be found where a plain search finds it. */
    const char *at = n > 1 ? memmem(text + 1, n - 1, stop, n_found) : NULL;
    g_autoptr(GString) out = g_string_new(NULL);
    bool stopped = false;
    for (gsize i = 1; i < n;) {
        seed = seed * 1103515245u + 12345u;
        gsize step = MIN(1 + (seed >> 16) % 7, n - i);
        stopped = qe_stop_matcher_push(matcher, text + i, step, out);
        i += step;
    }
    qe_stop_matcher_flush(matcher, out);
    g_assert(stopped == (at != NULL));
    gsize n_want = at ? (gsize)(at - text) - 1 : n > 0 ? n - 1 : 0;
    g_assert(out->len == n_want && (n_want == 0 || memcmp(out->str, text + 1, n_want) == 0));
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n_bytes)
{
    if (n_bytes == 0)
        return 0;
    g_autofree char *text = g_memdup2(data + 1, n_bytes - 1);
    gsize n = n_bytes - 1;
    check_filter(text ? text : "", n, data[0]);
    check_stop(text ? text : "", n, data[0] % 9, data[0]);
    return 0;
}
