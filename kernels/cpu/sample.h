/* sample.h: logits to token, exactly as the sampling comment of qk.h says. Internal to kernels/cpu.
 *
 * Weights are e^((z - max z) / temperature) in float32; sums of weights are float64. Ties at the edge of top_k and
 * top_p go to the lowest ids. Everything is a function of (logits, history, sampling): no state, no thread. */
#pragma once
#include <stddef.h>
#include <stdint.h>
#include "kernels/qk.h"

/* A history byte of one vocabulary entry. */
enum { QK_SEEN = 1, QK_SEEN_IN_REPLY = 2 };

typedef struct {
    float *z;      /* [vocab]: penalised logits */
    float *weight; /* [vocab]: of the candidates */
    uint32_t *id;  /* [vocab]: of the candidates, ascending */
} qk_sample_scratch;

/* @logits: [vocab], raw. @history: [vocab] bytes or NULL. vocab >= 1. Fills @out completely. */
void qk_sample(const float *logits, uint32_t vocab, const uint8_t *history, const qk_sampling *sampling,
    const qk_sample_scratch *scratch, qk_output_result *out);
