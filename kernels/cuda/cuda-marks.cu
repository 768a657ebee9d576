/* cuda-marks.cu: the times of a step's parts: an event behind each stretch of launches, and what that stretch was. */
#include <stdlib.h>
#include <string.h>
#include "kernels/cuda/cuda-step.h"

static uint32_t marks_max(const qkc_step *step)
{
    const qkc_context *ctx = (const qkc_context *)step->head.context;
    return ((const qkc_model *)ctx->head.model)->head.shape.n_layers * QKC_MARKS_LAYER + QKC_MARKS_STEP;
}

qk_status qkc_marks_make(qkc_step *step)
{
    qkc_backend *backend = (qkc_backend *)step->head.backend;
    qkc_marks *marks = &step->marks;
    const uint32_t n_max = marks_max(step);
    if (marks->n_max > 0)
        return QK_OK;
    if (marks->events == NULL)
        marks->events = (cudaEvent_t *)calloc(n_max, sizeof(*marks->events));
    if (marks->parts == NULL)
        marks->parts = (qk_part *)calloc(n_max, sizeof(*marks->parts));
    if (marks->events == NULL || marks->parts == NULL)
        return qkc_fail(backend, QK_NO_MEMORY, cudaSuccess, "step: no memory for the times of its parts");
    for (uint32_t i = 0; i < n_max; i++) {
        cudaError_t code = marks->events[i] == NULL ? cudaEventCreate(&marks->events[i]) : cudaSuccess;
        if (code != cudaSuccess)
            return qkc_fail(backend, QK_UNSUPPORTED, code, "step: an event to time its parts with");
    }
    marks->n_max = n_max;
    return QK_OK;
}

void qkc_marks_free(qkc_step *step, bool is_lost)
{
    qkc_marks *marks = &step->marks;
    const uint32_t n_max = marks_max(step);
    for (uint32_t i = 0; i < n_max && marks->events != NULL && !is_lost; i++)
        if (marks->events[i] != NULL)
            cudaEventDestroy(marks->events[i]);
    free(marks->events);
    free(marks->parts);
}

cudaError_t qkc_mark(qkc_step *step, qk_part part)
{
    qkc_marks *marks = &step->marks;
    if (!step->plan.profile || marks->n == marks->n_max)
        return cudaSuccess;
    marks->parts[marks->n] = part;
    return cudaEventRecord(
        marks->events[marks->n++], ((qkc_backend *)step->head.backend)->streams[QK_STREAM_COMPUTE]);
}

void qkc_marks_sum(qkc_step *step)
{
    qkc_marks *marks = &step->marks;
    const bool apart = marks->result.kv_in_attend;
    memset(&marks->result, 0, sizeof(marks->result));
    marks->result.kv_in_attend = apart;
    for (uint32_t i = 1; i < marks->n; i++) {
        float ms = 0;
        if (cudaEventElapsedTime(&ms, marks->events[i - 1], marks->events[i]) == cudaSuccess)
            marks->result.ms[marks->parts[i]] += ms;
    }
    step->result.profile = &marks->result;
}
