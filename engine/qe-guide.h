/* qe-guide.h: a constraint at work on one reply. Internal; engine thread.
 *
 *   free (thinking, until "</think>": anything but an end) --"</think>"--> bound by the grammar --> whole: may end
 *
 * A reply that need not think, but may, is bound from its first token on, which may also be "<think>".
 *
 * Of a constraint that waits for "<tool_call>" (qe-constraint.h) all is free, ends too, until that stands outside a think
 * block; a tag that the vocabulary has as a token counts only as that token, else its letters do. */
#pragma once
#include <glib.h>
#include <stdbool.h>
#include <stdint.h>
#include "engine/qe-config.h"
#include "engine/qe-tokenizer.h"
#include "engine/qe-vocab.h"
#include "engine/qe.h"

G_BEGIN_DECLS

typedef struct qe_guide qe_guide;

typedef enum {
    QE_GUIDE_NO_THINKING, /* the constraint holds from the first token on */
    QE_GUIDE_MAY_THINK,   /* the same, but "<think>" may come first */
    QE_GUIDE_IS_THINKING, /* the prompt ends inside a think block */
} qe_guide_start;

/* @constraint, @vocab: referenced. @eos: ids that end a reply, copied. @vocab_size: of the model, at least the tokenizer's. */
qe_guide *qe_guide_new(qe_constraint *constraint, qe_vocab *vocab, uint32_t vocab_size,
    const qe_eos_list *eos, qe_guide_start start);
void qe_guide_free(qe_guide *self); /* NULL is fine */

/* Whether the next token's mask is the same whatever the tokens are that are drawn but not accepted yet. */
bool qe_guide_is_free(const qe_guide *self);
/* The ids that may come next into @words [qk_mask_words(vocab_size)]. Where no token of the vocabulary can go on, which a
 * tokenizer without a token for each byte can lead to, these are the ends. */
void qe_guide_fill(qe_guide *self, uint32_t *words);
/* Goes on behind @id. @ends: it is an end of the reply. false: it was not allowed, nothing changes. *@bound: set when the
 * guide was free and now is not: tokens drawn behind @id do not count. */
bool qe_guide_accept(qe_guide *self, uint32_t id, bool ends, bool *bound);

G_END_DECLS
