/* cuda-backend.h: the CUDA backend's objects, shared by its few files. Internal to kernels/cuda.
 *
 *   cuda-module.cu   the module's one exported symbol: probe, devices, open
 *   cuda-reason.cu   why CUDA cannot run here, in one sentence: a pure function
 *   cuda-nvml.cu     NVML, opened at run time: what the panel shows of a card
 *   cuda-device.cu   finding and choosing a device; what backends of one device share
 *   cuda-backend.cu  opening, information, buffers, streams, events, copies
 *   cuda-host.cu     registered host memory and buffers over it
 *   cuda-measure.cu  the measured ceilings
 *   cuda-model.cu    weights: from pageable memory to the device through pinned staging
 *   cuda-gemm.cu     cublasLt, opened at run time, with algorithms chosen before the first step
 *   cuda-step.cu     contexts and steps: workspace, graphs, submission, results
 *   cuda-layers.cu   the launches of one step, in order
 *   cuda-stream.cu   host pages through a ring on the device
 *   cuda-partial.cu  decode steps with pages that the host attends to: its thread, and the merge
 *
 * Threads: the engine's thread calls in; qk_step_cancel(), qk_event_query(), qk_host_register() and qk_host_unregister()
 * may come from any thread. A CUDA error that leaves the device unusable makes the backend lost for good (qkc_fail()).
 *
 * The model's weights are one device allocation; a context's workspace another. Nothing is allocated on a step's way. */
#pragma once
#include <pthread.h>
#include "kernels/cuda/cuda-ops.h"
#include "kernels/qk-backend.h"

/* ---- Backend ------------------------------------------------------------------------------------------------- */

/* Pinned host memory. */
typedef struct {
    uint64_t host, address; /* as the host and as the device see its begin */
    uint64_t bytes;
} qkc_pin;
typedef struct {
    pthread_mutex_t lock;
    qkc_pin *ranges; /* by host address, disjoint */
    size_t n, n_max;
} qkc_pins;

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
    qkc_pins pins;         /* any thread, under its lock */
    char name[96];         /* "NVIDIA H200" */
    char error[256];       /* engine thread only */
    int lost;              /* __atomic: the cudaError_t that lost the device; set once */
} qkc_backend;

/* Records what failed and the driver's words in backend->error, marks the backend lost when @code is sticky (launch
 * failure, illegal address, ECC, device removed, ...), and returns the status: QK_NO_MEMORY, QK_DEVICE_LOST or
 * QK_UNSUPPORTED. With code cudaSuccess: @status as it is. */
__attribute__((format(printf, 4, 5))) qk_status qkc_fail(
    qkc_backend *self, qk_status status, cudaError_t code, const char *format, ...);
bool qkc_is_lost(const qkc_backend *self);
/* Any thread. Marks the backend lost when @code says so, and returns whether it does. */
bool qkc_note_loss(qkc_backend *self, cudaError_t code);

/* At the head of a call: true when the device is lost, with a line in backend->error. Engine thread. */
bool qkc_refuse(qkc_backend *self);
/* "device memory: 8.0 GiB for @what, of which ..." as QK_NO_MEMORY; any other code as qkc_fail(). */
qk_status qkc_fail_memory(qkc_backend *self, cudaError_t code, const char *what, uint64_t bytes);

qk_status qkc_open(const qk_backend_options *options, qk_backend **out, char *error, size_t error_size);
qk_status qkc_measure(qk_backend *backend, qk_measure what, double *out); /* cuda-measure.cu */

/* ---- Host memory (cuda-host.cu) ------------------------------------------------------------------------------ */

typedef struct {
    qk_buffer head;
    bool is_wrapped; /* the memory is the caller's */
} qkc_buffer;

void qkc_pins_init(qkc_pins *pins);
void qkc_pins_clear(qkc_pins *pins);
/* Any thread. False when there is no memory for the list. */
bool qkc_pins_add(qkc_pins *pins, const qkc_pin *pin);
bool qkc_pins_remove(qkc_pins *pins, uint64_t host); /* whether a range begins there */
/* Where the pinned range around a device-visible address ends, likewise; 0: in none. A copy must end there. */
uint64_t qkc_pins_end(qkc_pins *pins, uint64_t address);

qk_status qkc_host_register(qk_backend *backend, void *host, uint64_t bytes, char *error, size_t error_size);
void qkc_host_unregister(qk_backend *backend, void *host);
qk_status qkc_buffer_wrap(qk_backend *backend, void *host, uint64_t bytes, qk_buffer **out);

/* ---- Devices (cuda-device.cu) -------------------------------------------------------------------------------- */

#define QKC_DEVICES_MAX 64

/* The best device (@wanted NULL), or that of an id or an index in decimal. False: @reason says why in one
 * sentence. Never creates a context. */
bool qkc_find_device(
    const char *wanted, int *device, char *name, size_t name_size, char *reason, size_t reason_size);
size_t qkc_list_devices(qk_device *out, size_t n);
/* The sentence for an error of opening @device. */
void qkc_explain(int device, cudaError_t code, char *reason, size_t reason_size);

/* All backends of a device share one CUDA context, so what loses one loses all. The last one to close a lost device
 * destroys that context, and the next to open gets a fresh one; until then qkc_device_enter() returns false. */
bool qkc_device_enter(int device);
void qkc_device_leave(int device);
void qkc_device_set_lost(int device, cudaError_t code);
cudaError_t qkc_device_lost(int device); /* any thread; cudaSuccess: not lost */
bool qkc_device_was_lost(int device);    /* any thread; at some time in this process */
unsigned qkc_device_n_open(int device);

/* ---- Reasons (cuda-reason.cu) -------------------------------------------------------------------------------- */

typedef struct {
    cudaError_t code;   /* of the call that failed, or cudaSuccess */
    bool has_library;   /* libcuda.so.1 can be opened */
    int driver_version; /* what cuDriverGetVersion() says: 12040 for CUDA 12.4; 0 unknown */
    int needed_version; /* CUDART_VERSION */
    const char *driver; /* "535.104.05", "" when unknown */
    int n_devices;
    const char *name;                   /* the device in question, "" for none */
    int capability;                     /* its major * 10 + minor */
    uint64_t memory_free, memory_total; /* 0: unknown */
} qkc_facts;

#define QKC_CAPABILITY_MIN  80
#define QKC_MEMORY_FREE_MIN (512ull << 20) /* a context and anything at all in it */

/* True when nothing speaks against the device; else false and one sentence of at most 159 bytes. Calls no driver. */
bool qkc_reason(const qkc_facts *facts, char *out, size_t size);
/* After this error the context cannot be used any more. */
bool qkc_code_is_lost(cudaError_t code);

/* ---- NVML (cuda-nvml.cu) ------------------------------------------------------------------------------------- */

typedef struct qkc_nvml {
    void *device;
    char id[48];            /* "GPU-..." or "MIG-..." */
    int64_t sampled_ms;     /* when the next two were read; 0: never */
    int32_t utilization;    /* -1 unknown */
    uint64_t process_bytes; /* 0 unknown */
} qkc_nvml;

/* Finds CUDA's device in NVML. False when NVML is missing or does not know it; out->id is set all the same. */
bool qkc_nvml_find(qkc_nvml *out, const cudaDeviceProp *device);
bool qkc_nvml_memory(const qkc_nvml *self, uint64_t *free_bytes, uint64_t *total_bytes);
/* Reads utilization and process_bytes, at most four times a second. */
void qkc_nvml_sample(qkc_nvml *self);
void qkc_nvml_driver(char *out, size_t size); /* "535.104.05"; "" unknown */

/* ---- Model (cuda-model.cu) ----------------------------------------------------------------------------------- */

typedef struct {
    const qkc_bf16 *qkv;               /* [q_dim + 2 * kv_dim, hidden]: q, k, v one after the other */
    const qkc_bf16 *o;                 /* [hidden, q_dim] */
    const qkc_bf16 *gate_up;           /* [2 * ffn, hidden]: gate, then up */
    const qkc_bf16 *down;              /* [hidden, ffn] */
    const float *attn_norm, *ffn_norm; /* [hidden] */
    const float *q_norm, *k_norm;      /* [head_dim] */
} qkc_layer;

typedef struct {
    qk_model_head head;
    qkc_layer *layers;       /* [n_layers], host */
    const qkc_bf16 *embed;   /* [vocab, hidden] */
    const qkc_bf16 *lm_head; /* the same when tied */
    const float *final_norm; /* [hidden] */
    const double *inv_freq;  /* [head_dim / 2], device */
    void *block;             /* all of the above's device memory */
    uint64_t block_bytes;
} qkc_model;

qk_status qkc_model_load(
    qk_backend *backend, const qk_model_desc *desc, qk_progress_fn progress, void *user, qk_model **out);
/* How the weights travel; the benchmark tries others than the default. */
typedef struct {
    size_t chunk_bytes; /* of one staged copy */
    unsigned n_slots;   /* staging chunks of each worker */
    unsigned n_workers;
} qkc_load_tuning;
void qkc_load_default_tuning(qkc_load_tuning *out);
qk_status qkc_model_load_tuned(qk_backend *backend, const qk_model_desc *desc, qk_progress_fn progress,
    void *user, const qkc_load_tuning *tuning, qk_model **out);
void qkc_model_free(qk_model *model);
/* What a model would take, counted from its shape alone: the block that the load makes. */
qk_status qkc_model_measure(const qk_shape *shape, bool tied, qk_sizes *out);

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
#define QKC_GEMM_ROWS_UNIT                                                                                   \
    64u /* n_rows are rounded up, at most to a multiple of this: x and y have room for that */
#define QKC_GEMM_WORKSPACE_BYTES (32u << 20)
/* Chooses the algorithm for every row count up to @rows_max, so that qkc_gemm_run() asks for none. */
qk_status qkc_gemm_prepare(
    qkc_gemm *gemm, uint32_t rows_max, uint32_t n_out, uint32_t n_in, qk_dtype y_dtype, bool add);
/* Reads and writes rows up to the rounded count. @workspace: QKC_GEMM_WORKSPACE_BYTES. */
qk_status qkc_gemm_run(qkc_gemm *gemm, cudaStream_t stream, void *workspace, const qkc_gemm_args *args);
/* Runs each algorithm that products of this kind up to args->n_rows rows use once, so that its code is on the device
 * before the first prompt. Leaves y undefined. */
qk_status qkc_gemm_warm(qkc_gemm *gemm, cudaStream_t stream, void *workspace, const qkc_gemm_args *args);

/* ---- Contexts and steps (cuda-step.cu) ----------------------------------------------------------------------- */

qk_status qkc_context_measure(qk_model *model, const qk_context_params *params, qk_sizes *out);
qk_status qkc_context_new(qk_model *model, const qk_context_params *params, qk_context **out);
void qkc_context_free(qk_context *context);
qk_status qkc_context_set_history(
    qk_context *context, uint32_t slot, const int32_t *ids, size_t n_ids, size_t n_prompt);
qk_status qkc_bounds_submit(qk_context *context, uint32_t kv_class, const qk_bounds *bounds, uint32_t n);
qk_status qkc_step_new(qk_context *context, qk_step **out);
void qkc_step_free(qk_step *step);
qk_plan *qkc_step_plan(qk_step *step);
qk_status qkc_step_submit(qk_step *step);
qk_status qkc_step_poll(qk_step *step);
qk_status qkc_step_wait(qk_step *step);
void qkc_step_cancel(qk_step *step);
const qk_result *qkc_step_result(qk_step *step);
