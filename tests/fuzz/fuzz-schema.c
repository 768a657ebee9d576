/* fuzz-schema.c: any bytes as a JSON schema and as a list of tools. A grammar that comes out is walked: every byte that may
 * come next is tried, and some text goes on or ends at each place. */
#include <string.h>
#include "engine/qe-grammar.h"
#include "engine/qe-matcher.h"
#include "engine/qe-schema.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n_bytes);

/* A vocabulary is not needed to read bytes: one without tokens. */
static qe_vocab *no_tokens(void)
{
    static qe_vocab vocab = {.n_refs = 1};
    return &vocab;
}

static void walk(qe_grammar *grammar)
{
    qe_matcher *m = qe_matcher_new(grammar, no_tokens());
    uint32_t state = 1;
    for (int i = 0; i < 60; i++) {
        uint8_t next[256];
        int n = 0;
        for (int b = 0; b < 256; b++) {
            char c = (char)b;
            if (qe_matcher_allows(m, &c, 1))
                next[n++] = (uint8_t)b;
        }
        g_assert(n > 0 || qe_matcher_is_whole(m));
        if (n == 0)
            break;
        state = state * 1664525u + 1013904223u;
        char c = (char)next[(state >> 8) % (uint32_t)n];
        bool ok = qe_matcher_take_bytes(m, &c, 1);
        g_assert(ok);
    }
    qe_matcher_free(m);
}

static void check(qe_grammar *grammar, GError *error, bool walkable)
{
    g_assert((grammar == NULL) == (error != NULL));
    g_assert(!error || (error->domain == QE_ERROR && g_utf8_validate(error->message, -1, NULL)));
    if (grammar && walkable)
        walk(grammar);
    qe_grammar_unref(grammar);
    g_clear_error(&error);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n_bytes)
{
    GError *error = NULL;
    qe_grammar *grammar = qe_schema_to_grammar((const char *)data, n_bytes, &error);
    check(grammar, error, true);
    error = NULL;
    grammar = qe_schema_tools_to_grammar((const char *)data, n_bytes, NULL, true, &error);
    check(grammar, error, false); /* a tokenizer would be asked for its control tokens */
    return 0;
}
