/* cpu-backend.h: the CPU backend's objects, shared by its few files. Internal to kernels/cpu.
 *
 *   cpu-backend.c  opening, information, buffers, model load
 *   cpu-stream.c   the three streams, events, copies and fills
 *   cpu-context.c  workspace, token slots, penalty history, step objects
 *   cpu-step.c     one step: the layer loop
 *   cpu-attend.c   the attention stage of a layer
 *   cpu-select.c   selective attention: bounds, choosing pages
 *   measure.c      read bandwidth and multiply-add rate
 *
 * Threads: the engine's thread calls in; each stream has a thread that takes its commands in order; the COMPUTE
 * stream's thread is thread 0 of the pool. */
#pragma once
#include <pthread.h>
#include <stdatomic.h>
#include "kernels/cpu/pool.h"
#include "kernels/cpu/qk-cpu-ops.h"
#include "kernels/cpu/sample.h"
#include "kernels/qk-backend.h"

#define QK_CPU_ALIGN 64u

/* ---- Streams ------------------------------------------------------------------------------------------------- */

#define QK_CPU_COPIES 16u /* in one command */

#define QK_CPU_BOUNDS_ITEMS 16u /* in one command */

typedef enum { QK_CPU_COPY, QK_CPU_FILL, QK_CPU_WAIT, QK_CPU_CALL, QK_CPU_BOUNDS } qk_cpu_cmd_kind;

typedef struct qk_cpu_cmd {
    struct qk_cpu_cmd *next;
    qk_cpu_cmd_kind kind;
    bool pooled; /* goes back to the backend's free list; else its owner keeps it */
    union {
        struct {
            uint32_t n;
            struct {
                void *dst;
                const void *src;
                size_t bytes;
            } item[QK_CPU_COPIES];
        } copy;
        struct {
            uint32_t *dst;
            size_t n_words;
            uint32_t word;
        } fill;
        struct {
            qk_stream stream;
            uint64_t seq;
        } wait;
        struct {
            void (*fn)(void *user);
            void *user;
        } call;
        struct {
            qk_context *context;
            uint32_t kv_class, n;
            qk_bounds item[QK_CPU_BOUNDS_ITEMS];
        } bounds;
    } u;
} qk_cpu_cmd;

struct qk_cpu_backend;

typedef struct {
    struct qk_cpu_backend *backend;
    pthread_t thread;
    bool started;
    pthread_cond_t wake;
    qk_cpu_cmd *head, *tail;
    uint64_t submitted, completed; /* commands; number n is done when completed >= n */
} qk_cpu_stream;

typedef struct qk_cpu_backend {
    qk_backend head;
    const qk_cpu_ops *ops;
    qk_pool *pool;
    char device[96];
    char error[256]; /* engine thread only */

    pthread_mutex_t lock; /* guards everything below */
    pthread_cond_t done;  /* some stream's completed has grown */
    qk_cpu_cmd *free_cmds;
    qk_cpu_stream streams[QK_N_STREAMS];
    bool quit;
} qk_cpu_backend;

__attribute__((format(printf, 3, 4))) qk_status qk_cpu_fail(
    qk_cpu_backend *self, qk_status status, const char *format, ...);

bool qk_cpu_streams_start(qk_cpu_backend *self);
void qk_cpu_streams_stop(qk_cpu_backend *self); /* runs what is queued first */

/* Enqueues @cmd, which its owner keeps until it is done. Returns its number on the stream. */
uint64_t qk_cpu_enqueue(qk_cpu_backend *self, qk_stream stream, qk_cpu_cmd *cmd);
/* The host waits for that number. */
void qk_cpu_wait_seq(qk_cpu_backend *self, qk_stream stream, uint64_t seq);
void qk_cpu_wait_idle(qk_cpu_backend *self, qk_stream stream);

qk_status qk_cpu_copy_submit(qk_backend *backend, qk_stream stream, const qk_copy *copies, uint32_t n);
qk_status qk_cpu_fill_submit(
    qk_backend *backend, qk_stream stream, qk_buffer *dst, uint64_t offset, uint64_t bytes, uint32_t word);
qk_status qk_cpu_event_new(qk_backend *backend, qk_event **out);
void qk_cpu_event_free(qk_event *event);
qk_status qk_cpu_event_record(qk_event *event, qk_stream stream);
qk_status qk_cpu_event_query(qk_event *event);
qk_status qk_cpu_event_wait(qk_event *event);
qk_status qk_cpu_stream_wait(qk_backend *backend, qk_stream stream, qk_event *event);
qk_status qk_cpu_bounds_submit(qk_context *context, uint32_t kv_class, const qk_bounds *bounds, uint32_t n);

/* ---- Models -------------------------------------------------------------------------------------------------- */

typedef struct {
    const void *data; /* [n_out, n_in], the caller's memory */
    qk_dtype dtype;
    uint32_t n_out, n_in;
} qk_cpu_linear;

typedef struct {
    qk_cpu_linear q, k, v, o, gate, up, down;
    const float *attn_norm, *q_norm, *k_norm, *ffn_norm;
} qk_cpu_layer;

typedef struct {
    qk_model_head head;
    qk_cpu_linear embed, lm_head;
    const float *final_norm;
    qk_cpu_layer *layers;
    float *norms;     /* all norm vectors, as float32 */
    double *inv_freq; /* [head_dim / 2] */
} qk_cpu_model;

/* ---- Contexts ------------------------------------------------------------------------------------------------ */

/* Hands out aligned pieces of one block, or only counts them when it has none. */
typedef struct {
    char *base;
    uint64_t used;
    bool overflow;
} qk_cpu_arena;

void *qk_cpu_arena_take(qk_cpu_arena *arena, uint64_t n, uint64_t element_bytes);

/* A tile of up to QK_CPU_ATTEND_ROWS_MAX consecutive rows of one sequence. */
typedef struct {
    uint32_t seq, row, n_rows; /* row: in the plan */
    uint32_t n_spans;    /* that its last row sees; of a row that leaves pages out: of its chosen pages */
    uint32_t split;      /* first of its n_rows * n_spans split slots, or UINT32_MAX: folded as it goes */
    uint32_t n_left_out; /* pages */
    uint32_t chosen;     /* where its lists begin in the context's */
    bool has_outside;
} qk_cpu_tile;

typedef struct {
    uint32_t tile;
    uint32_t span; /* UINT32_MAX: all of them, folded */
} qk_cpu_attend_job;

/* One thread's scratch. */
typedef struct {
    float *attend;   /* qk_cpu_attend_scratch_floats() */
    float *span_out; /* [QK_CPU_ATTEND_ROWS_MAX, n_q, head_dim] */
    float *span_lse; /* [QK_CPU_ATTEND_ROWS_MAX, n_q] */
    float *scores;   /* [n_q] */
    uint32_t *keys;  /* [pages of a sequence] with select_max, else none */
    qk_sample_scratch sample;
} qk_cpu_scratch;

typedef struct {
    qk_context_head head;
    void *block; /* the arena's memory */
    uint64_t block_bytes;
    uint32_t q_dim, kv_dim, n_q; /* n_heads * head_dim, n_kv_heads * head_dim, query heads of a kv head */

    float *x;           /* [rows_max, hidden]: the residual stream */
    float *norm;        /* [rows_max, hidden] */
    float *q;           /* [rows_max, q_dim] */
    float *k, *v;       /* [rows_max, kv_dim] */
    float *attn;        /* [rows_max, q_dim]: attention's output */
    float *attn_lse;    /* [rows_max, n_heads] */
    float *proj;        /* [rows_max, hidden]: what the residual stream gains */
    float *gate, *up;   /* [rows_max, ffn] */
    float *cos_sin;     /* [rows_max, head_dim]: head_dim / 2 cosines, then as many sines */
    float *logits;      /* [outputs_max, vocab] */
    uint32_t *row_seq;  /* [rows_max] */
    uint32_t *position; /* [rows_max] */
    int32_t *token;     /* [rows_max]: slots resolved */

    qk_cpu_tile *tiles;       /* [rows_max] */
    qk_cpu_attend_job *jobs;  /* [rows_max + n_split_max]: no need to wait for the outside partial */
    qk_cpu_attend_job *folds; /* [rows_max]: those that come after */
    uint32_t n_split_max;     /* (row, span) pairs whose partial results can be kept */
    float *split_out;         /* [n_split_max, q_dim] */
    float *split_lse;         /* [n_split_max, n_heads] */

    uint32_t *selects; /* [seqs_max]: tiles that leave pages out */
    uint32_t *chosen;  /* [n_kv_heads, select_max]: indices of pages in their sequence, ascending */

    uint32_t *seq_item;      /* [seqs_max]: a sequence's first outside item */
    uint32_t *seq_n_outside; /* [seqs_max]: its outside spans */
    qk_partial_item *items;  /* [partial_max] */
    float *partial_out;      /* [partial_max, q_dim] */
    float *partial_lse;      /* [partial_max, n_heads] */

    qk_cpu_scratch *scratch; /* [n_threads] */
    int32_t *slots;          /* [slots_max]: -1 until written. COMPUTE thread */
    qk_seen *history;        /* [slots_max, vocab] */
} qk_cpu_context;

/* Of the plan's pages. */
static inline const qk_kv_layout *qk_cpu_layout(const qk_cpu_context *ctx, const qk_plan *plan)
{
    return qk_plan_layout(plan, &ctx->head.params);
}

typedef struct {
    qk_step_head head;
    void *block;
    uint64_t block_bytes;
    qk_plan plan;
    qk_cpu_cmd cmd;
    uint64_t seq;              /* of the submission on COMPUTE */
    atomic_int status;         /* a qk_status */
    atomic_bool cancel;        /* of the running submission */
    char error[200];           /* written by COMPUTE before the status */
    qk_output_result *outputs; /* [outputs_max] */
    qk_top *tops;              /* [outputs_max, QK_TOP_MAX] */
    float *logits;             /* [outputs_max, vocab]; NULL when logits_max is 0 */
    qk_profile profile;        /* of a plan that asked for it */
    qk_result result;
} qk_cpu_step;

qk_status qk_cpu_context_measure(qk_model *model, const qk_context_params *params, qk_sizes *out);
qk_status qk_cpu_context_new(qk_model *model, const qk_context_params *params, qk_context **out);
void qk_cpu_context_free(qk_context *context);
qk_status qk_cpu_context_set_history(
    qk_context *context, uint32_t slot, const int32_t *ids, size_t n_ids, size_t n_prompt);
qk_status qk_cpu_step_new(qk_context *context, qk_step **out);
void qk_cpu_step_free(qk_step *step);
qk_plan *qk_cpu_step_plan(qk_step *step);
qk_status qk_cpu_step_submit(qk_step *step);
qk_status qk_cpu_step_poll(qk_step *step);
qk_status qk_cpu_step_wait(qk_step *step);
void qk_cpu_step_cancel(qk_step *step);
const qk_result *qk_cpu_step_result(qk_step *step);

/* Runs the step's plan on the COMPUTE thread; its status. Fills step->error when that is not QK_OK. */
qk_status qk_cpu_step_run(qk_cpu_step *step);

/* ---- Attention ----------------------------------------------------------------------------------------------- */

/* Cuts the plan into tiles and jobs, once a step. */
typedef struct {
    qk_cpu_context *ctx;
    const qk_plan *plan;
    uint32_t n_tiles, n_jobs, n_folds, n_items, n_selects;
} qk_cpu_attend_plan;

void qk_cpu_attend_prepare(qk_cpu_context *ctx, const qk_plan *plan, qk_cpu_attend_plan *out);
/* ctx->q over the pages -> ctx->attn, for every row of the plan. The partial function's status. */
qk_status qk_cpu_attend_layer(const qk_cpu_attend_plan *ap, uint32_t layer);

/* ctx->q and the pages' bounds -> ctx->chosen. */
void qk_cpu_select_layer(const qk_cpu_attend_plan *ap, uint32_t layer);
void qk_cpu_bounds_run(qk_cpu_context *ctx, uint32_t kv_class, const qk_bounds *bounds, uint32_t n);

/* ---- Memory and measurement ---------------------------------------------------------------------------------- */

/* Zeroed, aligned to QK_CPU_ALIGN, large blocks on huge pages where the system has them. NULL when there is not so
 * much memory. */
void *qk_cpu_memory_new(uint64_t bytes);
void qk_cpu_memory_free(void *memory, uint64_t bytes);

/* On the COMPUTE thread. 0 when memory is short. */
double qk_cpu_measure_read(qk_pool *pool);
double qk_cpu_measure_flops(qk_pool *pool);
