/* bench-constraint.c: how long a constraint's mask takes, token by token: bench-constraint TOKENIZER_DIR [VOCAB]
 *
 * Random JSON is written token by token with a schema and as any object; timed are filling the mask and taking the token
 * together, by the CPU time of the thread, which what else runs on the machine changes little. The first line is what a
 * vocabulary costs once. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include "engine/qe-matcher.h"
#include "engine/qe-schema.h"
#include "engine/qe-strings.h"

#define SCHEMA                                                                                               \
    "{\"type\":\"object\",\"properties\":{\"name\":{\"type\":\"string\"},\"age\":{\"type\":\"integer\"},"    \
    "\"mail\":{\"type\":\"string\",\"maxLength\":60},\"kind\":{\"enum\":[\"person\",\"company\"]},"          \
    "\"notes\":{\"type\":\"array\",\"items\":{\"type\":\"string\"}},\"more\":{\"type\":\"object\"}},"        \
    "\"required\":[\"name\",\"age\",\"mail\",\"kind\",\"notes\",\"more\"]}"

/* Microseconds of CPU time that this thread has used. */
static double now_us(void)
{
    struct timespec t;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
    return (double)t.tv_sec * 1e6 + (double)t.tv_nsec / 1e3;
}

static int compare(const void *a, const void *b)
{
    const double *x = a, *y = b;
    return (*x > *y) - (*x < *y);
}

static uint32_t pick(const qe_vocab *v, const uint32_t *mask, uint32_t n_words, GRand *random)
{
    uint32_t found = UINT32_MAX, seen = 0;
    bool closing = g_rand_int_range(random, 0, 6) == 0;
    for (int round = 0; round < 2 && found == UINT32_MAX; round++) {
        for (uint32_t id = 0; id < n_words * 32; id++) {
            gsize n = 0;
            if (!(mask[id / 32] >> id % 32 & 1))
                continue;
            const char *bytes = qe_tokenizer_token_bytes(v->tokenizer, id, &n);
            if (closing && round == 0 && !strchr("\"}]", bytes[n - 1]))
                continue;
            if (g_rand_int_range(random, 0, (gint)++seen) == 0)
                found = id;
        }
    }
    return found;
}

/* Schemas that leave many stacks open at once: 60 names that may each be left out, 16 kinds of objects that begin alike, 400
 * values that share their beginnings, and trees. */
static char *many_members(void)
{
    GString *s = g_string_new("{\"type\":\"object\",\"properties\":{");
    for (int i = 0; i < 60; i++)
        g_string_append_printf(
            s, "%s\"field_%d\":{\"type\":\"%s\"}", i ? "," : "", i, i % 2 ? "string" : "number");
    g_string_append(s, "}}");
    return g_string_free(s, FALSE);
}

static char *many_kinds(void)
{
    GString *s = g_string_new("{\"type\":\"array\",\"minItems\":20,\"items\":{\"anyOf\":[");
    for (int i = 0; i < 16; i++)
        g_string_append_printf(s,
            "%s{\"type\":\"object\",\"properties\":{\"text\":{\"type\":\"string\"},\"n%d\":{\"type\":"
            "\"integer\"}},"
            "\"required\":[\"text\",\"n%d\"]}",
            i ? "," : "", i, i);
    g_string_append(s, "]}}");
    return g_string_free(s, FALSE);
}

static char *many_values(void)
{
    GString *s = g_string_new("{\"type\":\"array\",\"minItems\":50,\"items\":{\"enum\":[");
    for (int i = 0; i < 400; i++)
        g_string_append_printf(s, "%s\"value of the number %d\"", i ? "," : "", i * 37);
    g_string_append(s, "]}}");
    return g_string_free(s, FALSE);
}

#define TREE                                                                                                 \
    "{\"$ref\":\"#/$defs/node\",\"$defs\":{\"node\":{\"type\":\"object\",\"properties\":{\"name\":"          \
    "{\"type\":\"string\",\"maxLength\":12},\"more\":{\"type\":\"array\",\"items\":{\"$ref\":\"#/$defs/"     \
    "node\"}}},"                                                                                             \
    "\"required\":[\"name\",\"more\"]}}}"

static void measure(const char *name, qe_grammar *grammar, qe_vocab *v, uint32_t n_words)
{
    enum { N = 4000 };
    g_autofree double *us = g_new(double, N);
    g_autofree uint32_t *mask = g_new(uint32_t, n_words);
    GRand *random = g_rand_new_with_seed(7);
    qe_matcher *m = qe_matcher_new(grammar, v);
    double sum = 0;
    for (int i = 0; i < N; i++) {
        double begin = now_us();
        enum { REPEAT = 5 };
        for (int k = 0; k < REPEAT; k++)
            qe_matcher_fill(m, mask, n_words);
        us[i] = (now_us() - begin) / REPEAT;
        uint32_t id = pick(v, mask, n_words, random);
        begin = now_us();
        if (id == UINT32_MAX || (qe_matcher_is_whole(m) && g_rand_boolean(random))) {
            qe_matcher_free(m);
            m = qe_matcher_new(grammar, v);
        } else {
            qe_matcher_take_token(m, id);
        }
        us[i] += now_us() - begin;
        sum += us[i];
    }
    qsort(us, N, sizeof *us, compare);
    printf("%-12s mask and token: mean %.1f us, p50 %.1f, p90 %.1f, p99 %.1f, worst %.1f\n", name, sum / N,
        us[N / 2], us[N * 9 / 10], us[N * 99 / 100], us[N - 1]);
    qe_matcher_free(m);
    g_rand_free(random);
}

int main(int argc, char **argv)
{
    g_autoptr(GError) error = NULL;
    if (argc < 2) {
        fprintf(stderr, "usage: bench-constraint TOKENIZER_DIR [VOCAB]\n");
        return 2;
    }
    g_autoptr(qe_tokenizer) tokenizer = qe_tokenizer_new(argv[1], &error);
    if (!tokenizer) {
        fprintf(stderr, "%s\n", error->message);
        return 1;
    }
    uint32_t n = argc > 2 ? (uint32_t)atoi(argv[2]) : qe_tokenizer_n_tokens(tokenizer);
    double begin = now_us();
    qe_vocab *v = qe_vocab_new(tokenizer);
    printf("%u tokens, %u trie nodes: made in %.1f ms\n", v->trie.n_ids, v->trie.n_nodes,
        (now_us() - begin) / 1000);
    const qe_string_uses *inside = &v->strings->uses[QE_STRING_INSIDE];
    printf("%u tokens leave a string, with %u nodes of text behind it\n", inside->leavers->len,
        inside->suffixes.n_nodes);
    g_autoptr(qe_grammar) any = qe_schema_to_grammar("{\"type\":\"object\"}", 17, &error);
    g_autoptr(qe_grammar) person = qe_schema_to_grammar(SCHEMA, strlen(SCHEMA), &error);
    g_assert_no_error(error);
    measure("any object", any, v, (n + 31) / 32);
    measure("schema", person, v, (n + 31) / 32);
    const char *names[] = {"60 members", "16 kinds", "400 values", "tree"};
    char *schemas[] = {many_members(), many_kinds(), many_values(), g_strdup(TREE)};
    for (gsize i = 0; i < G_N_ELEMENTS(schemas); i++) {
        g_autoptr(qe_grammar) grammar = qe_schema_to_grammar(schemas[i], strlen(schemas[i]), &error);
        g_assert_no_error(error);
        measure(names[i], grammar, v, (n + 31) / 32);
        g_free(schemas[i]);
    }
    qe_vocab_unref(v);
    return 0;
}
