/* qk-backend.h: what a backend implements. Internal to kernels/. The public functions of qk.h live in qk-registry.c
 * and qk-check.c: they check arguments once, at the boundary, and call these; a backend need not check again.
 *
 * Every object's struct starts with the `head` shown here, so that the public functions find the backend. */
#pragma once
#include "kernels/qk.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct {
    uint32_t abi_version; /* QK_ABI_VERSION */
    const char *name;
    void (*close)(qk_backend *backend);
    const char *(*error)(const qk_backend *backend);
    void (*get_info)(qk_backend *backend, qk_backend_info *out);
    qk_status (*measure)(qk_backend *backend, qk_measure what, double *out);

    qk_status (*buffer_new)(qk_backend *backend, qk_memory memory, uint64_t bytes, qk_buffer **out);
    void (*buffer_free)(qk_buffer *buffer);
    /* All three optional: registering and wrapping are then QK_UNSUPPORTED. The first two on any thread, also beside
     * calls of the engine's: they write @error (never the backend's line) and touch nothing unguarded. */
    qk_status (*host_register)(
        qk_backend *backend, void *host, uint64_t bytes, char *error, size_t error_size);
    void (*host_unregister)(qk_backend *backend, void *host);
    qk_status (*buffer_wrap)(qk_backend *backend, void *host, uint64_t bytes, qk_buffer **out);
    qk_status (*copy_submit)(qk_backend *backend, qk_stream stream, const qk_copy *copies, uint32_t n);
    qk_status (*fill_submit)(qk_backend *backend, qk_stream stream, qk_buffer *dst, uint64_t offset,
        uint64_t bytes, uint32_t word);
    qk_status (*event_new)(qk_backend *backend, qk_event **out);
    void (*event_free)(qk_event *event);
    qk_status (*event_record)(qk_event *event, qk_stream stream);
    qk_status (*event_query)(qk_event *event);
    qk_status (*event_wait)(qk_event *event);
    qk_status (*stream_wait)(qk_backend *backend, qk_stream stream, qk_event *event);

    qk_status (*model_load)(
        qk_backend *backend, const qk_model_desc *desc, qk_progress_fn progress, void *user, qk_model **out);
    void (*model_free)(qk_model *model);
    qk_status (*context_measure)(qk_model *model, const qk_context_params *params, qk_sizes *out);
    qk_status (*context_new)(qk_model *model, const qk_context_params *params, qk_context **out);
    void (*context_free)(qk_context *context);
    qk_status (*context_set_history)(
        qk_context *context, uint32_t slot, const int32_t *ids, size_t n_ids, size_t n_prompt);
    /* Optional: no selective attention then. The kv_class is one that the context has; its pages are not int8. */
    qk_status (*bounds_submit)(qk_context *context, uint32_t kv_class, const qk_bounds *bounds, uint32_t n);
    qk_status (*step_new)(qk_context *context, qk_step **out);
    void (*step_free)(qk_step *step);
    qk_plan *(*step_plan)(qk_step *step);
    qk_status (*step_submit)(qk_step *step); /* the plan has passed qk_plan_check() */
    qk_status (*step_poll)(qk_step *step);
    qk_status (*step_wait)(qk_step *step);
    void (*step_cancel)(qk_step *step);
    const qk_result *(*step_result)(qk_step *step);
} qk_backend_ops;

struct qk_backend {
    const qk_backend_ops *ops;
    char check_error[256]; /* why the last call was refused before it reached ops; else empty */
};
typedef struct {
    qk_backend *backend;
    qk_shape shape; /* rope_inv_freq is not valid after the load */
} qk_model_head;
typedef struct {
    qk_backend *backend;
    qk_model *model;
    qk_context_params params;
} qk_context_head;
typedef struct {
    qk_backend *backend;
    qk_context *context;
} qk_step_head;
typedef struct {
    qk_backend *backend;
} qk_event_head;

/* The layout of the plan's pages; its kv_class is one that the context has. */
static inline const qk_kv_layout *qk_plan_layout(const qk_plan *plan, const qk_context_params *params)
{
    return plan->kv_class == 0 ? &params->layout : &params->layout_1;
}

/* Checks a plan against the context's limits and the model's shape. @error: one line naming field, expected, found. */
qk_status qk_plan_check(const qk_plan *plan, const qk_shape *shape, const qk_context_params *params,
    char *error, size_t error_size);

/* The CPU backend and the mock that wraps it. */
qk_status qk_cpu_open(const qk_backend_options *options, qk_backend **out, char *error, size_t error_size);
void qk_cpu_probe(qk_probe *out);

#ifdef __cplusplus
}
#endif
