/* bench-tokenizer.c: how fast a tokenizer loads and encodes.
 *
 *     bench-tokenizer TOKENIZER-DIR [TEXT-FILE]
 *
 * Prints one CSV line a measurement: name, bytes, tokens, best seconds of several runs, MB/s (10^6 bytes). Without
 * TEXT-FILE it makes texts of its own: English, Chinese, source code, and the awkward ones. */
#include <glib.h>
#include <stdio.h>
#include <string.h>
#include "engine/qe-tokenizer.h"

#define RUNS 5

static void measure(const qe_tokenizer *tokenizer, const char *name, const char *text, gsize n)
{
    double best = G_MAXDOUBLE;
    guint n_ids = 0;
    for (int run = 0; run < RUNS; run++) {
        g_autoptr(GArray) ids = g_array_new(FALSE, FALSE, sizeof(uint32_t));
        g_autoptr(GError) error = NULL;
        gint64 begin = g_get_monotonic_time();
        if (!qe_tokenizer_encode(tokenizer, text, n, QE_ENCODE_PLAIN, ids, &error))
            g_error("%s", error->message);
        best = MIN(best, (double)(g_get_monotonic_time() - begin) / 1e6);
        n_ids = ids->len;
    }
    printf("%s,%zu,%u,%.4f,%.1f\n", name, (size_t)n, n_ids, best, (double)n / 1e6 / best);
}

static GString *repeat(const char *unit, gsize n_bytes)
{
    GString *out = g_string_sized_new(n_bytes + strlen(unit));
    while (out->len < n_bytes)
        g_string_append(out, unit);
    return out;
}

/* Words of many kinds, so that no small table of pieces would do. */
static GString *words(gsize n_bytes)
{
    static const char *const parts[] = {"an", "ber", "con", "dis", "er", "fl", "ing", "ment", "over", "pre",
        "qu", "st", "tion", "un", "ver", "work", "yes", "light", "stone", "paper"};
    g_autoptr(GRand) rand = g_rand_new_with_seed(1);
    GString *out = g_string_sized_new(n_bytes + 64);
    while (out->len < n_bytes) {
        int n = g_rand_int_range(rand, 1, 4);
        for (int i = 0; i < n; i++)
            g_string_append(out, parts[g_rand_int_range(rand, 0, G_N_ELEMENTS(parts))]);
        g_string_append(out, g_rand_int_range(rand, 0, 12) ? " " : ".\n");
    }
    return out;
}

int main(int argc, char **argv)
{
    if (argc < 2) {
        fprintf(stderr, "usage: bench-tokenizer TOKENIZER-DIR [TEXT-FILE]\n");
        return 2;
    }
    double best = G_MAXDOUBLE;
    g_autoptr(qe_tokenizer) tokenizer = NULL;
    for (int run = 0; run < RUNS; run++) {
        g_autoptr(GError) error = NULL;
        g_clear_pointer(&tokenizer, qe_tokenizer_unref);
        gint64 begin = g_get_monotonic_time();
        tokenizer = qe_tokenizer_new(argv[1], &error);
        best = MIN(best, (double)(g_get_monotonic_time() - begin) / 1e6);
        if (tokenizer == NULL) {
            fprintf(stderr, "bench-tokenizer: %s\n", error->message);
            return 1;
        }
    }
    printf("name,bytes,tokens,seconds,mb_per_s\nload,,%u,%.4f,\n", qe_tokenizer_n_tokens(tokenizer), best);
    if (argc > 2) {
        g_autoptr(GError) error = NULL;
        g_autofree char *text = NULL;
        gsize n;
        if (!g_file_get_contents(argv[2], &text, &n, &error)) {
            fprintf(stderr, "bench-tokenizer: %s\n", error->message);
            return 1;
        }
        measure(tokenizer, "file", text, n);
        return 0;
    }
    static const struct {
        const char *name, *unit;
    } units[] = {
        {"english",
            "The keeper of the library wrote, in 1897, that nobody's memory holds more than a few pages; she "
            "didn't mean it as a complaint.\n\nEvery evening she counted 42 lamps, and every morning 41.\n"},
        {"chinese", "人工智能是计算机科学的一个分支。我们每天都在使用它,例如翻译、搜索和写作。\n"},
        {"code",
            "    for (size_t i = 0; i < n; i++) {\n        if (table[i].key == key && !deleted(table[i]))\n"
            "            return &table[i];\n    }\n"},
        {"combining",
            "Tie\u0302\u0301ng Vie\u0323\u0302t re\u0301sume\u0301 \u0928\u092e\u0938\u094d\u0924\u0947 "},
        {"one_letter", "Z"},
        {"spaces", " "},
        {"newlines", "\n"},
        {"marks", "\u0301\u0316"},
    };
    g_autoptr(GString) mixed = words(4 << 20);
    measure(tokenizer, "words", mixed->str, mixed->len);
    for (guint i = 0; i < G_N_ELEMENTS(units); i++) {
        g_autoptr(GString) text = repeat(units[i].unit, 1 << 20);
        measure(tokenizer, units[i].name, text->str, text->len);
    }
    g_autoptr(GString) large = repeat("Z", 4 << 20);
    measure(tokenizer, "one_letter_x4", large->str, large->len);
    return 0;
}
