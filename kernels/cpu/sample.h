/* sample.h: logits to token, exactly as the sampling comment of qk.h says. Internal to kernels/cpu.
 *
 * Weights are e^((z - max z) / temperature) in float32; sums of weights are float64. Ties at the edge of top_k and
 * top_p go to the lowest ids. Everything is a function of (logits, extras, sampling): no state, no thread. */
#pragma once
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include "kernels/qk.h"

/* The history of one vocabulary entry: whether it was seen at all, and how often in the reply. */
typedef uint16_t qk_seen;
enum { QK_SEEN = 0x8000, QK_SEEN_COUNT = 0x7fff };

static inline qk_seen qk_seen_add(qk_seen seen, bool in_reply)
{
    uint32_t count = seen & QK_SEEN_COUNT;
    if (in_reply && count < QK_SEEN_COUNT)
        count++;
    return (qk_seen)(QK_SEEN | count);
}

/* What an output brings of its own; all zero: nothing. */
typedef struct {
    const qk_seen *history; /* [vocab] or NULL */
    const qk_bias *bias;    /* [n_bias], ascending ids */
    uint32_t n_bias;
    const uint32_t *mask; /* [qk_mask_words(vocab)] or NULL */
} qk_sample_extras;

typedef struct {
    float *z; /* [vocab]: logits after penalties, bias and mask; an id that is masked out has -INFINITY */
    float *weight; /* [vocab]: of the candidates */
    uint32_t *id;  /* [vocab]: of the candidates, ascending */
} qk_sample_scratch;

/* @logits: [vocab], raw. @extras: may be NULL. vocab >= 1. Fills @out completely. */
void qk_sample(const float *logits, uint32_t vocab, const qk_sample_extras *extras,
    const qk_sampling *sampling, const qk_sample_scratch *scratch, qk_output_result *out);

/* The @n_top most probable ids into @out [n_top]. n_top <= vocab. */
void qk_sample_top(
    const float *logits, uint32_t vocab, uint32_t n_top, const qk_sample_scratch *scratch, qk_top *out);
