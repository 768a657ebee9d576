/* qe-vocab.c: tokens sorted by their bytes, and the trie over them. See qe-vocab.h. */
#include "engine/qe-vocab.h"
#include <stdlib.h>
#include <string.h>
#include "engine/qe-strings.h"

typedef qe_vocab_string token;

static int compare_tokens(const void *a, const void *b)
{
    const token *x = a, *y = b;
    int order = memcmp(x->bytes, y->bytes, MIN(x->n, y->n));
    if (order != 0)
        return order;
    if (x->n != y->n)
        return x->n < y->n ? -1 : 1;
    return (x->id > y->id) - (x->id < y->id);
}

static token *list_tokens(const qe_tokenizer *tokenizer, uint32_t *n_out)
{
    uint32_t n = qe_tokenizer_n_tokens(tokenizer), n_listed = 0;
    token *tokens = g_new(token, MAX(n, 1));
    for (uint32_t id = 0; id < n; id++) {
        gsize n_bytes = 0;
        const char *bytes = qe_tokenizer_token_bytes(tokenizer, id, &n_bytes);
        if (!bytes || n_bytes == 0 || n_bytes > UINT16_MAX || qe_tokenizer_is_added(tokenizer, id))
            continue;
        tokens[n_listed++] = (token){(const uint8_t *)bytes, (uint32_t)n_bytes, id};
    }
    *n_out = n_listed;
    return tokens;
}

static uint32_t common_prefix(const token *a, const token *b)
{
    uint32_t n = 0;
    while (n < a->n && n < b->n && a->bytes[n] == b->bytes[n])
        n++;
    return n;
}

/* Tokens come in order, so a node is complete when one with another byte at its depth comes. */
void qe_vocab_build(qe_vocab_trie *self, qe_vocab_string *tokens, uint32_t n)
{
    *self = (qe_vocab_trie){0};
    if (n)
        qsort(tokens, n, sizeof *tokens, compare_tokens);
    GArray *nodes = g_array_new(FALSE, FALSE, sizeof(qe_vocab_node));
    uint32_t *ids = g_new(uint32_t, MAX(n, 1));
    GArray *path = g_array_new(FALSE, FALSE, sizeof(uint32_t)); /* nodes open, by depth */
    for (uint32_t i = 0; i < n; i++) {
        uint32_t keep = i ? common_prefix(&tokens[i - 1], &tokens[i]) : 0;
        while (path->len > keep) {
            uint32_t last = g_array_index(path, uint32_t, path->len - 1);
            g_array_index(nodes, qe_vocab_node, last).end = nodes->len;
            g_array_set_size(path, path->len - 1);
        }
        for (uint32_t d = keep; d < tokens[i].n; d++) {
            qe_vocab_node node = {
                .id_begin = i, .id_end = i, .depth = (uint16_t)(d + 1), .byte = tokens[i].bytes[d]};
            uint32_t at = nodes->len;
            g_array_append_val(nodes, node);
            g_array_append_val(path, at);
        }
        ids[i] = tokens[i].id;
        uint32_t leaf = g_array_index(path, uint32_t, path->len - 1);
        g_array_index(nodes, qe_vocab_node, leaf).id_end = i + 1;
        self->depth_max = MAX(self->depth_max, tokens[i].n);
    }
    for (guint d = 0; d < path->len; d++)
        g_array_index(nodes, qe_vocab_node, g_array_index(path, uint32_t, d)).end = nodes->len;
    g_array_unref(path);
    self->n_nodes = nodes->len;
    self->nodes = (qe_vocab_node *)(void *)g_array_free(nodes, FALSE);
    self->ids = ids;
    self->n_ids = n;
}

void qe_vocab_clear(qe_vocab_trie *trie)
{
    g_clear_pointer(&trie->nodes, g_free);
    g_clear_pointer(&trie->ids, g_free);
    trie->n_nodes = trie->n_ids = 0;
}

qe_vocab *qe_vocab_new(qe_tokenizer *tokenizer)
{
    qe_vocab *self = g_new0(qe_vocab, 1);
    uint32_t n;
    g_autofree token *tokens = list_tokens(tokenizer, &n);
    self->n_refs = 1;
    self->tokenizer = qe_tokenizer_ref(tokenizer);
    qe_vocab_build(&self->trie, tokens, n);
    self->strings = qe_string_table_new(self);
    return self;
}

qe_vocab *qe_vocab_ref(qe_vocab *self)
{
    g_atomic_int_inc(&self->n_refs);
    return self;
}

void qe_vocab_unref(qe_vocab *self)
{
    if (!self || !g_atomic_int_dec_and_test(&self->n_refs))
        return;
    qe_tokenizer_unref(self->tokenizer);
    qe_vocab_clear(&self->trie);
    qe_string_table_free(self->strings);
    g_free(self);
}
