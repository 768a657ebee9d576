/* qe-vocab.h: the bytes of a tokenizer's tokens as a trie, for constraints. Internal; immutable after creation but for its
 * reference count; any thread.
 *
 * In the trie are the ordinary tokens. Added tokens (control tokens, "<think>", "<tool_call>") are not: a constraint names
 * them or they are not allowed. The nodes lie in depth-first order, children by ascending byte: a subtree is a range. */
#pragma once
#include <glib.h>
#include <stdbool.h>
#include <stdint.h>
#include "engine/qe-tokenizer.h"

G_BEGIN_DECLS

typedef struct {
    uint32_t end;              /* one past the last node of its subtree */
    uint32_t id_begin, id_end; /* strings that end here: part of the trie's ids */
    uint16_t depth;            /* 1 for a string's first byte */
    uint8_t byte;
} qe_vocab_node;

typedef struct {
    qe_vocab_node *nodes; /* [n_nodes] */
    uint32_t n_nodes, depth_max;
    uint32_t *ids; /* [n_ids] by bytes, then by id */
    uint32_t n_ids;
} qe_vocab_trie;

typedef struct {
    const uint8_t *bytes; /* [n], n >= 1 */
    uint32_t n, id;
} qe_vocab_string;

/* Sorts @strings. qe_vocab_clear() frees what @out has. */
void qe_vocab_build(qe_vocab_trie *out, qe_vocab_string *strings, uint32_t n);
void qe_vocab_clear(qe_vocab_trie *trie);

typedef struct {
    qe_tokenizer *tokenizer;
    qe_vocab_trie trie;
    struct qe_string_table *strings; /* what tokens do in JSON strings */
    int n_refs;                      /* atomic */
} qe_vocab;

/* Takes some tens of milliseconds for 150,000 tokens. @tokenizer: a reference is taken. Returns: owned. */
qe_vocab *qe_vocab_new(qe_tokenizer *tokenizer);
qe_vocab *qe_vocab_ref(qe_vocab *self);
void qe_vocab_unref(qe_vocab *self); /* NULL is fine */

G_END_DECLS
