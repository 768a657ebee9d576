/* qe-matcher.h: where a text stands in a grammar, and which tokens may come next. Internal; one thread at a time.
 *
 * The state is the set of stacks that the bytes so far leave possible. Stacks share their lower parts: a cell is a node,
 * the progress in it and the cell below; equal cells are one, so equal stacks are one number.
 *
 * Which tokens may come next is found by walking the vocabulary's trie with the state: a subtree ends with the byte that
 * no stack takes. That is quick wherever few tokens fit. Inside a string nearly all fit: what a string reads does not
 * depend on what lies around it, so for each of its places it is worked out once a vocabulary which tokens stay inside
 * (a bitset), and which leave it, with the bytes behind the closing quote. Only those bytes, some hundred different ones,
 * are matched with the rest of the stack. */
#pragma once
#include <glib.h>
#include <stdbool.h>
#include <stdint.h>
#include "engine/qe-grammar.h"
#include "engine/qe-vocab.h"

G_BEGIN_DECLS

typedef struct qe_matcher qe_matcher;

/* Both are referenced. Stands at the beginning. */
qe_matcher *qe_matcher_new(qe_grammar *grammar, qe_vocab *vocab);
void qe_matcher_free(qe_matcher *self); /* NULL is fine */

bool qe_matcher_is_whole(const qe_matcher *self); /* what was read is a whole text of the grammar */
/* Whether some text goes on with @bytes. */
bool qe_matcher_allows(qe_matcher *self, const char *bytes, gsize n);
/* The same, and goes on with them; when false nothing changes. */
bool qe_matcher_take_bytes(qe_matcher *self, const char *bytes, gsize n);
bool qe_matcher_take_token(qe_matcher *self, uint32_t id);
/* Sets the bits of the ids that may come next in @words [n_words], clears all others. Ids past the end are left out.
 * Returns whether there is any. */
bool qe_matcher_fill(qe_matcher *self, uint32_t *words, uint32_t n_words);

G_END_DECLS
