/* cuda-step.h: a context's workspace and a step's buffers, shared by cuda-step.cu, which makes and submits them, and
 * cuda-layers.cu, which launches a step's kernels on them. Internal to kernels/cuda. */
#pragma once
#include "kernels/cuda/cuda-backend.h"

#define QKC_BUCKETS_MAX    8u /* graphs of a step */
#define QKC_HISTORY_STAGES 4u
#define QKC_KV_CLASSES     2u

/* Device memory unless said. Names in brackets share memory, see lay_out_device(). */
typedef struct {
    qk_context_head head;
    qkc_gemm *gemm; /* the backend's; NULL when rows_max <= QKC_SMALL_ROWS */
    uint32_t q_dim, kv_dim, qkv_dim;
    uint32_t small_max;        /* rows of the few-rows path: min(rows_max, QKC_SMALL_ROWS) */
    uint32_t decode_max;       /* sequences of a decode step: min(small_max, seqs_max) */
    uint32_t rows_pad;         /* rows_max rounded up to QKC_GEMM_ROWS_UNIT */
    uint32_t up_max, down_max; /* rows of one gate,up product and of one down product */
    uint32_t tiles_max, part_rows_max;

    void *block;
    uint64_t block_bytes;
    void *host_block; /* mapped pinned */
    uint64_t host_bytes;

    qkc_plan plan;
    float *x;          /* [rows_pad, hidden] */
    float *small_qkv;  /* [small_max, qkv_dim] */
    float *small_attn; /* [small_max, q_dim] */
    float *small_act;  /* [small_max, ffn] */
    qkc_bf16 *
        wide_in; /* [QKC_SMALL_ROWS, max(hidden, q_dim)]: few rows that go through cublasLt; NULL without it */
    qkc_bf16 *wide_up;  /* [QKC_SMALL_ROWS, 2 * ffn] */
    qkc_bf16 *wide_act; /* [QKC_SMALL_ROWS, ffn] */
    float *out_x;       /* [outputs_max, hidden]: output rows of x, after the last attention of many rows */
    float *out_attn;    /* [outputs_max, q_dim] */
    uint32_t *tail_counts; /* [ceil(outputs_max / QKC_SMALL_ROWS), 4]: plan.counts of each block of outputs */
    qkc_tile *tiles, *merges; /* [tiles_max] */
    int32_t *slots;           /* [slots_max]: -1 until written */
    uint8_t *history;         /* [slots_max, vocab] */
    void *gemm_workspace, *decode_workspace, *sample_workspace;

    qkc_bf16 *q;       /* [rows_pad, q_dim] */
    qkc_bf16 *norm;    /* [rows_pad, hidden] */
    qkc_bf16 *qkv;     /* [rows_pad, qkv_dim] */
    qkc_bf16 *attn;    /* [rows_pad, q_dim] */
    float *parts_out;  /* [part_rows_max, q_dim] */
    float *parts_lse;  /* [part_rows_max, n_heads] */
    qkc_bf16 *gate_up; /* [up_max, 2 * ffn] */
    qkc_bf16 *act;     /* [down_max, ffn] */
    float *logits;     /* [outputs_max, vocab] */

    uint8_t *stage[QKC_HISTORY_STAGES]; /* host: [vocab] each: a history on its way */
    int32_t *slots_copy;                /* host: [slots_max] */
    cudaEvent_t stage_done[QKC_HISTORY_STAGES];
    uint32_t next_stage;
    bool is_warm; /* a step has run every kind of pass */
} qkc_context;

typedef enum {
    QKC_PASS_DECODE, /* few rows, each a sequence */
    QKC_PASS_FEW,    /* few rows */
    QKC_PASS_MANY,
} qkc_pass_kind;

typedef struct {
    qk_step_head head;
    void *block; /* mapped pinned */
    uint64_t block_bytes;
    qk_plan plan;
    qkc_host_counts *counts;   /* [QKC_PLAN_READERS] */
    qkc_host_row *rows;        /* [rows_max rounded up to QKC_LINE_ROWS] */
    uint32_t *cancel;          /* [1] */
    uint32_t *status_word;     /* [1] */
    qk_output_result *results; /* [outputs_max] */
    qkc_tile *tiles, *merges;  /* [tiles_max] */
    float *staged;             /* [logits_max, vocab]: of the flagged outputs, one after the other */
    float *logits; /* [outputs_max, vocab]: pageable, only what is written takes memory; NULL without */
    uint64_t logits_bytes;

    cudaGraphExec_t graphs[QKC_KV_CLASSES][QKC_BUCKETS_MAX];
    cudaEvent_t done;
    bool running;
    qk_status status; /* of the last submission that has ended */
    char error[256];
    qk_result result;
} qkc_step;

/* One pass of the model, as it is launched or captured. */
typedef struct {
    qkc_context *context;
    qkc_step *step;
    qkc_launch launch;
    qkc_pass_kind kind;
    const qk_kv_layout *layout; /* the plan's kv_class' */
    uint32_t n_rows, n_outputs; /* at most so many; of a captured pass: its bucket. n_outputs 0: none */
    qkc_tiling tiling;          /* of QKC_PASS_FEW and QKC_PASS_MANY: what step->tiles were copied from */
} qkc_pass;

/* The layout of a plan's pages; NULL when the context has none of that class. */
const qk_kv_layout *qkc_layout_of(const qkc_context *ctx, uint32_t kv_class);

/* Launches everything from the plan to the status word, in order. On failure the backend has the line. */
qk_status qkc_layers(const qkc_pass *pass);
