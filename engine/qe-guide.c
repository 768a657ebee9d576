/* qe-guide.c: a constraint at work on one reply. See qe-guide.h. */
#include "engine/qe-guide.h"
#include <string.h>
#include "engine/qe-constraint.h"
#include "engine/qe-matcher.h"

struct qe_guide {
    qe_matcher *matcher;
    qe_vocab *vocab;
    qe_eos_list eos;
    uint32_t vocab_size, n_words;
    int64_t think, think_end; /* -1: the vocabulary has no such token */
    bool thinking, may_think;
    bool stuck; /* no token of the vocabulary can go on */
};

static int64_t find(const qe_vocab *vocab, const char *content)
{
    uint32_t id;
    return qe_tokenizer_find(vocab->tokenizer, content, &id) ? (int64_t)id : -1;
}

qe_guide *qe_guide_new(qe_constraint *constraint, qe_vocab *vocab, uint32_t vocab_size,
    const qe_eos_list *eos, qe_guide_start start)
{
    qe_guide *self = g_new0(qe_guide, 1);
    self->matcher = qe_matcher_new(constraint->grammar, vocab);
    self->vocab = qe_vocab_ref(vocab);
    self->eos = *eos;
    self->vocab_size = vocab_size;
    self->n_words = (vocab_size + 31) / 32;
    self->think = find(vocab, "<think>");
    self->think_end = find(vocab, "</think>");
    /* Without an end there is no thinking that could be waited for. */
    self->thinking = start == QE_GUIDE_IS_THINKING && self->think_end >= 0;
    self->may_think = start == QE_GUIDE_MAY_THINK && self->think >= 0 && self->think_end >= 0;
    return self;
}

void qe_guide_free(qe_guide *self)
{
    if (!self)
        return;
    qe_matcher_free(self->matcher);
    qe_vocab_unref(self->vocab);
    g_free(self);
}

bool qe_guide_is_free(const qe_guide *self)
{
    return self->thinking;
}

static void set_id(const qe_guide *self, uint32_t *words, uint32_t id, bool on)
{
    if (id >= self->vocab_size)
        return;
    if (on)
        words[id / 32] |= 1u << id % 32;
    else
        words[id / 32] &= ~(1u << id % 32);
}

static void set_ends(const qe_guide *self, uint32_t *words, bool on)
{
    for (uint32_t i = 0; i < self->eos.n; i++)
        set_id(self, words, self->eos.ids[i], on);
}

/* All that the vocabulary has but the ends. */
static void fill_thinking(const qe_guide *self, uint32_t *words)
{
    uint32_t n = MIN(qe_tokenizer_n_tokens(self->vocab->tokenizer), self->vocab_size);
    memset(words, 0, self->n_words * sizeof *words);
    memset(words, 0xff, n / 32 * sizeof *words);
    if (n % 32)
        words[n / 32] = (1u << n % 32) - 1;
    set_ends(self, words, false);
}

void qe_guide_fill(qe_guide *self, uint32_t *words)
{
    if (self->thinking) {
        fill_thinking(self, words);
        return;
    }
    bool any = qe_matcher_fill(self->matcher, words, self->n_words);
    /* An end id may also be an ordinary token; drawn, it ends the reply. */
    set_ends(self, words, qe_matcher_is_whole(self->matcher));
    any = any || qe_matcher_is_whole(self->matcher);
    if (self->may_think)
        set_id(self, words, (uint32_t)self->think, true);
    self->stuck = !any && !self->may_think;
    if (self->stuck)
        set_ends(self, words, true);
}

bool qe_guide_accept(qe_guide *self, uint32_t id, bool ends, bool *bound)
{
    *bound = false;
    bool may_think = self->may_think;
    self->may_think = false;
    if (ends)
        return !self->thinking && qe_matcher_is_whole(self->matcher);
    if (self->thinking) {
        self->thinking = (int64_t)id != self->think_end;
        *bound = !self->thinking;
        return true;
    }
    if (may_think && (int64_t)id == self->think) {
        self->thinking = true;
        return true;
    }
    return qe_matcher_take_token(self->matcher, id);
}
