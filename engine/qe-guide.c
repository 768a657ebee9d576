/* qe-guide.c: a constraint at work on one reply. See qe-guide.h. */
#include "engine/qe-guide.h"
#include <string.h>
#include "engine/qe-constraint.h"
#include "engine/qe-matcher.h"

static const char call_tag[] = "<tool_call>";

struct qe_guide {
    qe_matcher *matcher;
    qe_vocab *vocab;
    qe_eos_list eos;
    uint32_t vocab_size, n_words;
    int64_t think, think_end; /* -1: the vocabulary has no such token */
    int64_t call;             /* "<tool_call>"; -1: the vocabulary spells it */
    bool thinking, may_think;
    bool watching, no_call; /* free until a call; for ever, without one */
    bool in_thought;        /* while watching */
    GString *tail;          /* while watching a vocabulary that spells it: the last bytes */
    bool stuck;             /* no token of the vocabulary can go on */
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
    if (constraint->grammar)
        self->matcher = qe_matcher_new(constraint->grammar, vocab);
    self->vocab = qe_vocab_ref(vocab);
    self->eos = *eos;
    self->vocab_size = vocab_size;
    self->n_words = (vocab_size + 31) / 32;
    self->think = find(vocab, "<think>");
    self->think_end = find(vocab, "</think>");
    self->call = find(vocab, call_tag);
    if (constraint->kind != QE_CONSTRAINT_WHOLE) {
        self->no_call = constraint->kind == QE_CONSTRAINT_NO_CALL;
        self->watching = true;
        self->in_thought = start == QE_GUIDE_IS_THINKING && self->think_end >= 0;
        self->tail = g_string_new(NULL);
        return self;
    }
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
    if (self->tail)
        g_string_free(self->tail, TRUE);
    qe_vocab_unref(self->vocab);
    g_free(self);
}

bool qe_guide_is_free(const qe_guide *self)
{
    return self->thinking || self->watching;
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

/* All that the vocabulary has; @ends: the ends too. */
static void fill_free(const qe_guide *self, uint32_t *words, bool ends)
{
    uint32_t n = MIN(qe_tokenizer_n_tokens(self->vocab->tokenizer), self->vocab_size);
    memset(words, 0, self->n_words * sizeof *words);
    memset(words, 0xff, n / 32 * sizeof *words);
    if (n % 32)
        words[n / 32] = (1u << n % 32) - 1;
    set_ends(self, words, ends);
}

void qe_guide_fill(qe_guide *self, uint32_t *words)
{
    if (self->thinking) {
        fill_free(self, words, false);
        return;
    }
    if (self->watching) {
        fill_free(self, words, true);
        if (self->no_call && self->call >= 0)
            set_id(self, words, (uint32_t)self->call, false);
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

/* Whether @id begins a call, which the matcher has taken then. */
static bool begins_call(qe_guide *self, uint32_t id)
{
    if (self->call >= 0)
        return (int64_t)id == self->call && qe_matcher_take_token(self->matcher, id);
    gsize n = 0;
    const char *bytes = qe_tokenizer_token_bytes(self->vocab->tokenizer, id, &n), *found;
    if (bytes)
        g_string_append_len(self->tail, bytes, (gssize)n);
    found = g_strstr_len(self->tail->str, (gssize)self->tail->len, call_tag);
    if (found &&
        qe_matcher_take_bytes(self->matcher, found, self->tail->len - (gsize)(found - self->tail->str)))
        return true;
    /* What may still become the tag stays. */
    if (self->tail->len >= strlen(call_tag))
        g_string_erase(self->tail, 0, (gssize)(self->tail->len - strlen(call_tag) + 1));
    return false;
}

static void watch(qe_guide *self, uint32_t id, bool *bound)
{
    if ((int64_t)id == self->think)
        self->in_thought = true;
    else if ((int64_t)id == self->think_end)
        self->in_thought = false;
    else if (!self->in_thought && !self->no_call && begins_call(self, id)) {
        self->watching = false;
        *bound = true;
    }
}

bool qe_guide_accept(qe_guide *self, uint32_t id, bool ends, bool *bound)
{
    *bound = false;
    bool may_think = self->may_think;
    self->may_think = false;
    if (self->watching) {
        if (!ends)
            watch(self, id, bound);
        return true;
    }
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
