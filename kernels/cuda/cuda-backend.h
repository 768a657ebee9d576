/* cuda-backend.h: the CUDA backend's objects, shared by its few files. Internal to kernels/cuda.
 *
 *   cuda-module.cu   the module's one exported symbol: probe, devices, open
 *   cuda-backend.cu  opening, information (NVML), buffers, streams, events, copies, measurement
 *   cuda-model.cu    weights: from pageable memory to the device through pinned staging
 *   cuda-gemm.cu     cublasLt, opened at run time, with algorithms chosen before the first step
 *   cuda-step.cu     contexts and steps: workspace, graphs, submission, results
 *   cuda-layers.cu   the launches of one step, in order
 *
 * Threads: the engine's thread calls in; qk_step_cancel() and qk_event_query() may come from any thread. A CUDA error
 * that leaves the device unusable makes the backend lost for good (qkc_fail()).
 *
 * The model's weights are one device allocation; a context's workspace another. Nothing is allocated on a step's way. */
#pragma once
#include "kernels/cuda/cuda-ops.h"
#include "kernels/qk-backend.h"

/* ---- Backend ------------------------------------------------------------------------------------------------- */

typedef struct {
    qk_backend head;
    int device; /* CUDA's index */
    int n_sms;
    int capability; /* major * 10 + minor */
    bool pdl, hopper;
    uint64_t memory_total;
    cudaStream_t streams[QK_N_STREAMS];
    struct qkc_gemm *gemm; /* cublasLt's handle and chosen algorithms; NULL until the first model */
    struct qkc_nvml *nvml; /* NULL when the library is missing */
    char name[96];         /* "NVIDIA H200" */
    char error[256];       /* engine thread only */
    int lost;              /* __atomic: set once */
} qkc_backend;

/* Records what failed and the driver's words in backend->error, marks the backend lost when @code is sticky (launch
 * failure, illegal address, ECC, device removed, ...), and returns the status: QK_NO_MEMORY, QK_DEVICE_LOST or
 * QK_UNSUPPORTED. With code cudaSuccess: @status as it is. */
__attribute__((format(printf, 4, 5))) qk_status qkc_fail(
    qkc_backend *self, qk_status status, cudaError_t code, const char *format, ...);
bool qkc_is_lost(const qkc_backend *self);

qk_status qkc_open(const qk_backend_options *options, qk_backend **out, char *error, size_t error_size);
/* Why CUDA cannot run here, as one sentence, or true and the best device's index and name. Never creates a context. */
bool qkc_find_device(const char *wanted, int *device, char *name, size_t name_size, char *reason, size_t reason_size);
size_t qkc_list_devices(qk_device *out, size_t n);

/* ---- Model (cuda-model.cu) ----------------------------------------------------------------------------------- */

typedef struct {
    const qkc_bf16 *qkv;     /* [q_dim + 2 * kv_dim, hidden]: q, k, v one after the other */
    const qkc_bf16 *o;       /* [hidden, q_dim] */
    const qkc_bf16 *gate_up; /* [2 * ffn, hidden]: gate, then up */
    const qkc_bf16 *down;    /* [hidden, ffn] */
    const float *attn_norm, *ffn_norm; /* [hidden] */
    const float *q_norm, *k_norm;      /* [head_dim] */
} qkc_layer;

typedef struct {
    qk_model_head head;
    qkc_layer *layers;         /* [n_layers], host */
    const qkc_bf16 *embed;     /* [vocab, hidden] */
    const qkc_bf16 *lm_head;   /* the same when tied */
    const float *final_norm;   /* [hidden] */
    const double *inv_freq;    /* [head_dim / 2], device */
    void *block;               /* all of the above's device memory */
    uint64_t block_bytes;
} qkc_model;

qk_status qkc_model_load(
    qk_backend *backend, const qk_model_desc *desc, qk_progress_fn progress, void *user, qk_model **out);
void qkc_model_free(qk_model *model);

/* ---- Large products (cuda-gemm.cu) --------------------------------------------------------------------------- */

/* y = x w^T: x [n_rows, n_in] bf16, w [n_out, n_in] bf16, y [n_rows, n_out] bf16 or float32; float32 sums. beta 1 adds
 * to y (float32 only). */
typedef struct {
    const qkc_bf16 *x, *w;
    void *y;
    qk_dtype y_dtype;
    uint32_t n_rows, n_out, n_in;
    bool add;
} qkc_gemm_args;
typedef struct qkc_gemm qkc_gemm;
qk_status qkc_gemm_new(qkc_backend *backend, qkc_gemm **out); /* opens cublasLt */
void qkc_gemm_free(qkc_gemm *gemm);
#define QKC_GEMM_ROWS_UNIT      64u /* n_rows are rounded up to a multiple of this: so many algorithms are kept */
#define QKC_GEMM_WORKSPACE_BYTES (32u << 20)
/* Chooses the algorithm for every row count up to @rows_max, so that qkc_gemm_run() asks for none. */
qk_status qkc_gemm_prepare(qkc_gemm *gemm, uint32_t rows_max, uint32_t n_out, uint32_t n_in, qk_dtype y_dtype, bool add);
qk_status qkc_gemm_run(qkc_gemm *gemm, cudaStream_t stream, void *workspace, const qkc_gemm_args *args);

/* ---- Contexts and steps (cuda-step.cu) ----------------------------------------------------------------------- */

qk_status qkc_context_measure(qk_model *model, const qk_context_params *params, qk_sizes *out);
qk_status qkc_context_new(qk_model *model, const qk_context_params *params, qk_context **out);
void qkc_context_free(qk_context *context);
qk_status qkc_context_set_history(
    qk_context *context, uint32_t slot, const int32_t *ids, size_t n_ids, size_t n_prompt);
qk_status qkc_step_new(qk_context *context, qk_step **out);
void qkc_step_free(qk_step *step);
qk_plan *qkc_step_plan(qk_step *step);
qk_status qkc_step_submit(qk_step *step);
qk_status qkc_step_poll(qk_step *step);
qk_status qkc_step_wait(qk_step *step);
void qkc_step_cancel(qk_step *step);
const qk_result *qkc_step_result(qk_step *step);
