/* host-sample.c: qk_host_sample(): the CPU backend's draw from logits that the host has. No state; any thread. */
#include <math.h>
#include <stdlib.h>
#include "kernels/cpu/sample.h"

static void see(qk_seen *history, const qk_host_draw *draw)
{
    for (size_t i = 0; i < draw->n_ids; i++)
        if (draw->ids[i] < draw->vocab)
            history[draw->ids[i]] = qk_seen_add(history[draw->ids[i]], false);
}

qk_status qk_host_sample(const qk_host_draw *draw, qk_output_result *out, qk_top *tops)
{
    const qk_sampling *s = draw->sampling;
    bool penalised =
        s->repetition_penalty != 1.0f || s->presence_penalty != 0.0f || s->frequency_penalty != 0.0f;
    qk_seen *history = penalised ? calloc(draw->vocab, sizeof(*history)) : NULL;
    qk_sample_scratch scratch = {
        .z = malloc(draw->vocab * sizeof(float)),
        .weight = malloc(draw->vocab * sizeof(float)),
        .id = malloc(draw->vocab * sizeof(uint32_t)),
    };
    bool ok =
        scratch.z != NULL && scratch.weight != NULL && scratch.id != NULL && (history != NULL || !penalised);
    if (ok) {
        if (history != NULL)
            see(history, draw);
        const qk_sample_extras extras = {history, draw->bias, draw->n_bias, draw->mask};
        qk_sample(draw->logits, draw->vocab, &extras, s, &scratch, out);
        for (uint32_t i = 0; i < draw->n_top && (out->flags & QK_RESULT_NOT_FINITE) != 0; i++)
            tops[i] = (qk_top){0, NAN};
        if (draw->n_top > 0 && (out->flags & QK_RESULT_NOT_FINITE) == 0)
            qk_sample_top(draw->logits, draw->vocab, draw->n_top, &scratch, tops);
    }
    free(history);
    free(scratch.z);
    free(scratch.weight);
    free(scratch.id);
    return ok ? QK_OK : QK_NO_MEMORY;
}
