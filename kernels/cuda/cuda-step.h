/* cuda-step.h: a context's workspace and a step's buffers, shared by cuda-step.cu, which makes and submits them,
 * cuda-layers.cu, which launches a step's kernels on them, and cuda-stream.cu, which brings host pages to those kernels.
 * Internal to kernels/cuda. */
#pragma once
#include "kernels/cuda/cuda-backend.h"
#include "kernels/cuda/linear-hopper.h"

#define QKC_BUCKETS_MAX 8u /* graphs of a step: of each kind */
#define QKC_GRAPH_KINDS                                                                                      \
    (1u + QKC_SELECT_SIZES) /* 0: no sequence leaves pages out; else 1 + the size of the choice */
#define QKC_HISTORY_STAGES 4u
#define QKC_KV_CLASSES     2u

/* ---- Host pages on their way (cuda-stream.cu) ---------------------------------------------------------------- */

#define QKC_RING_PARTS_MAX 4u
#define QKC_NO_GROUP       UINT32_MAX

/* Where in the ring an entry of the plan's page table will be; group QKC_NO_GROUP: it stays where it is. */
typedef struct {
    uint32_t group, slot;
} qkc_place;
/* Neighbouring pages of host memory, for as many slots. */
typedef struct {
    uint64_t from; /* device-visible address of the first */
    uint32_t slot, n_pages;
} qkc_run;
typedef struct {
    uint64_t address;
    uint32_t page; /* index in the plan's page table */
} qkc_far_page;
/* Pages that are in one part of the ring together: runs, and pages alone. */
typedef struct {
    uint32_t run, n_runs, page, n_pages;
} qkc_group;
/* A launch of the attention. */
typedef struct {
    uint32_t seq; /* index in the stream's seqs */
    uint32_t key_begin, key_end;
    uint32_t group;         /* what it needs; QKC_NO_GROUP: only pages in device memory */
    bool is_first, is_last; /* of its group's */
    bool ends;              /* the last of its sequence */
} qkc_range;
typedef struct {
    uint32_t seq;     /* index in the plan's seqs */
    uint32_t n_parts; /* of its keys */
    qkc_round tiles;
} qkc_streamed_seq;

/* Of a context with ring_bytes. Device memory unless said. */
typedef struct {
    char *memory;
    uint64_t part_bytes;
    uint32_t n_parts;
    qkc_place *places;  /* [pages_max] */
    qkc_run *scattered; /* [pages_max] */
    float *state;       /* [rows_max, n_heads, head_dim + QKC_STATE_EXTRA]: of tiles between two ranges */
    cudaEvent_t begun, copied[QKC_RING_PARTS_MAX], used[QKC_RING_PARTS_MAX];
} qkc_ring;

/* Of a context with int8 pages: bf16 copies of some of one sequence's pages of one layer, made before a launch of the
 * attention of many rows, or of any to pages out of the ring. Small enough to stay in the L2 cache. Device memory. */
#define QKC_WIDENED_PAGES 512u
typedef struct {
    char *memory;        /* [n_pages, layout.layer_stride] */
    uint64_t *pages;     /* [pages_max]: the page table of the copies */
    uint32_t n_pages;    /* whole spans; 0: there are no int8 pages */
    qk_kv_layout layout; /* bf16, of one layer */
} qkc_widened;

/* How a step's plan is attended to in several launches, the same in every layer: sequences whose host pages go through the
 * ring, and, in steps of many rows, all with int8 pages. Pinned host memory, there when the context has a ring or
 * int8 pages. */
typedef struct {
    bool is_decode, overlaps;
    bool takes_host;   /* host pages go through the ring; else kernels read them in place */
    bool is_widened;   /* each launch attends to copies in qkc_widened */
    uint32_t n_layers; /* whose attention is computed */
    uint32_t n_seqs, n_groups, n_ranges, n_runs, n_scattered;
    uint32_t n_tiles, n_merges; /* of the streamed sequences: the first of the step's */
    bool *is_streamed;          /* [seqs_max] */
    qkc_streamed_seq *seqs;     /* [seqs_max] */
    qkc_group *groups; /* [pages_max / 16 + seqs_max]: of the sequences in turn, from the last keys on */
    qkc_range *ranges; /* [2 * (pages_max / 16 + 2 * seqs_max)]: in the order of their launches */
    qkc_run *runs, *scattered; /* [pages_max] */
    qkc_place *places;         /* [pages_max] */
    qkc_far_page *order;       /* [pages_max] */
} qkc_stream;

/* ---- Contexts and steps -------------------------------------------------------------------------------------- */

typedef struct qkc_partial qkc_partial; /* cuda-partial.cu */

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
        wide_in; /* [QKC_SMALL_ROWS, max(hidden, q_dim)]: rows of products that take bf16; NULL without such rows */
    qkc_bf16 *wide_up;   /* [QKC_SMALL_ROWS, max(2 * ffn, q_dim)] */
    qkc_bf16 *wide_act;  /* [QKC_SMALL_ROWS, ffn] */
    float *wide_squares; /* [QKC_LINEAR_HOPPER_GROUPS, QKC_SMALL_ROWS] */
    float *out_x;        /* [outputs_max, hidden]: output rows of x, after the last attention of many rows */
    float *out_attn;     /* [outputs_max, q_dim] */
    uint32_t *tail_counts; /* [ceil(outputs_max / QKC_SMALL_ROWS), 4]: plan.counts of each block of outputs */
    qkc_tile *tiles, *merges; /* [tiles_max] */
    uint32_t *arrived;        /* [n_layers, QKC_CHAIN_MAX]: of qkc_linear_chain() */
    int32_t *slots;           /* [slots_max]: -1 until written */
    uint16_t *history;        /* [slots_max, vocab] */
    uint32_t *masks;          /* [masks_max, qk_mask_words(vocab)]: the running step's */
    qk_bias *biases;          /* [biases_max]: the running step's */
    void *gemm_workspace, *decode_workspace, *sample_workspace;
    uint64_t
        *bounds; /* [pages_max] with select_max, as below; the lists of chosen pages are behind plan.pages */
    uint32_t *
        select_keys; /* [n_kv_heads, pages_max]: in the decode attention's workspace, before that writes there */

    qkc_bf16 *q;       /* [rows_pad, q_dim] */
    qkc_bf16 *norm;    /* [rows_pad, hidden] */
    qkc_bf16 *qkv;     /* [rows_pad, qkv_dim] */
    qkc_bf16 *attn;    /* [rows_pad, q_dim] */
    float *parts_out;  /* [part_rows_max, q_dim] */
    float *parts_lse;  /* [part_rows_max, n_heads] */
    qkc_bf16 *gate_up; /* [up_max, 2 * ffn] */
    qkc_bf16 *act;     /* [down_max, ffn] */
    float *logits;     /* [outputs_max, vocab] */

    /* With outside pages (partial_max > 0). The thread that calls the partial function; NULL without. */
    qkc_partial *partial;
    uint32_t *partial_index; /* [decode_max]: a row's place among those with outside pages, or UINT32_MAX */
    uint32_t *partial_count; /* [1] */
    float *partial_lse;      /* [decode_max, n_heads]: of the device's own pages */
    float *partial_q;        /* mapped: [decode_max, q_dim] */
    float *partial_folded; /* mapped: [decode_max, q_dim] by index: what the outside items of a row come to */
    float *partial_folded_lse; /* mapped: [decode_max, n_heads] */

    uint16_t *stage[QKC_HISTORY_STAGES]; /* host: [vocab] each: a history on its way */
    int32_t *slots_copy;                 /* host: [slots_max] */
    cudaEvent_t stage_done[QKC_HISTORY_STAGES];
    uint32_t next_stage;
    bool is_warm; /* a step has run every kind of pass */
    qkc_ring ring;
    qkc_widened widened;
} qkc_context;

typedef enum {
    QKC_PASS_DECODE, /* few rows, each a sequence */
    QKC_PASS_FEW,    /* few rows */
    QKC_PASS_MANY,
} qkc_pass_kind;

typedef struct {
    uint32_t word;
    uint32_t alone[15];
} qkc_line;

/* A step's part in attention to outside pages; all pointers NULL when partial_max is 0. Arrays are mapped pinned. */
typedef struct {
    qkc_line *ready;        /* [n_layers]: raised by the device when the layer's q is there */
    qkc_line *answer;       /* [n_layers]: raised by the thread when the folded rows are there */
    uint32_t *index;        /* [decode_max]: copied to the context's */
    qk_partial_item *items; /* [partial_max] */
    uint32_t n_items;
    int busy;         /* __atomic: the thread may still use the step and what its plan names */
    int abandoned;    /* __atomic: the thread is to leave */
    qk_status status; /* of the partial function; the thread's until it is not busy any more */
    uint32_t failed_layer;
    struct qkc_step *next; /* in the thread's queue */
} qkc_outside;

/* Marks of a step that times its parts: an event behind each stretch of launches, and what that stretch was. */
typedef struct {
    cudaEvent_t *events; /* [n_max]: made by the first such step; events[0] is the step's begin */
    qk_part *parts;      /* [n_max]: of what lies between an event and the one before */
    uint32_t n_max, n;   /* n: recorded in the running step */
    qk_profile result;
} qkc_marks;
/* A layer has at most so many marks, and a step so many more. */
#define QKC_MARKS_LAYER 5u
#define QKC_MARKS_STEP  4u

typedef struct qkc_step {
    qk_step_head head;
    void *block; /* mapped pinned */
    uint64_t block_bytes;
    qk_plan plan;
    qkc_host_counts *counts;   /* [QKC_PLAN_READERS] */
    qkc_host_row *rows;        /* [rows_max rounded up to QKC_LINE_ROWS] */
    uint32_t *cancel;          /* [1] */
    uint32_t *status_word;     /* [1] */
    qk_output_result *results; /* [outputs_max] */
    qk_top *tops;              /* [outputs_max, QK_TOP_MAX] */
    qkc_tile *tiles, *merges;  /* [tiles_max] */
    float *staged;             /* [logits_max, vocab]: of the flagged outputs, one after the other */
    float *logits; /* [outputs_max, vocab]: pageable, only what is written takes memory; NULL without */
    uint64_t logits_bytes;

    qkc_stream stream;
    cudaGraphExec_t graphs[QKC_KV_CLASSES][QKC_GRAPH_KINDS][QKC_BUCKETS_MAX]; /* kind 0: made with the step */
    bool has_no_room;                                                         /* for another graph */
    cudaEvent_t done;
    qkc_marks marks;
    qkc_outside outside;
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
    bool is_streamed;           /* by step->stream; its tiles come before those of @tiling */
    bool outside;               /* QKC_PASS_DECODE: some pages are outside */
    uint32_t n_scored_max;      /* QKC_PASS_DECODE: as in qkc_select_args; 0: no sequence leaves pages out */
    uint32_t n_rows, n_outputs; /* at most so many; of a captured pass: its bucket. n_outputs 0: none */
    qkc_tiling tiling;          /* of QKC_PASS_FEW and QKC_PASS_MANY: what step->tiles were copied from */
} qkc_pass;

/* The layout of a plan's pages; NULL when the context has none of that class. */
const qk_kv_layout *qkc_layout_of(const qkc_context *ctx, uint32_t kv_class);

bool qkc_takes_hopper(const qkc_context *ctx); /* whether prompt rows go through the Hopper kernel */

/* Sets the ring's parts from the context's params: QK_UNSUPPORTED when it is too small. Then its events, at last freed. */
qk_status qkc_ring_plan(qkc_context *ctx);
void qkc_widened_plan(qkc_context *ctx); /* how many pages */
cudaError_t qkc_ring_start(qkc_context *ctx);
void qkc_ring_stop(qkc_context *ctx);

/* Deals the plan's host pages into groups, unless kernels read them in place (@takes_host false), and lists the launches:
 * host work alone. QK_UNSUPPORTED: the ring does not do. */
qk_status qkc_stream_build(qkc_step *step, bool is_decode, bool takes_host);
void qkc_stream_clear(qkc_step *step);
/* Once a step, before anything else of it; the attention of @n_layers layers will be launched. */
cudaError_t qkc_stream_begin(qkc_step *step, uint32_t n_layers);
/* Once a layer, before its ranges: the page table gets the layer's places. Around the launches of each range: */
cudaError_t qkc_stream_place(const qkc_launch *launch, qkc_step *step, uint32_t layer);
cudaError_t qkc_stream_before(qkc_step *step, uint32_t layer, const qkc_range *range);
cudaError_t qkc_stream_after(qkc_step *step, uint32_t layer, const qkc_range *range);

/* Times of a step's parts (cuda-marks.cu). Events are made for the first such step; a step that is done is summed. */
qk_status qkc_marks_make(qkc_step *step);
void qkc_marks_free(qkc_step *step, bool is_lost);
void qkc_marks_sum(qkc_step *step);
/* In a step that times its parts: what was launched since the last mark is @part. The first mark is the step's begin. */
cudaError_t qkc_mark(qkc_step *step, qk_part part);

/* Launches everything from the plan to the status word, in order. On failure the backend has the line. */
qk_status qkc_layers(const qkc_pass *pass);

/* ---- Outside pages (cuda-partial.cu) ------------------------------------------------------------------------- */

/* Ordinary memory that a context takes for them; UINT64_MAX: too much to count. */
uint64_t qkc_partial_bytes(const qkc_context *ctx);
qk_status qkc_partial_new(qkc_context *ctx);      /* sets ctx->partial, also when it fails */
void qkc_partial_free(qkc_partial *partial);      /* NULL is fine; no step may be busy. Calls no driver */
bool qkc_partial_is_needed(const qkc_step *step); /* the plan has pages at address 0 */
/* Before the launches of a decode pass with outside pages: gives the step to the thread. The caller then launches all
 * layers or abandons the step. */
qk_status qkc_partial_begin(qkc_step *step);
bool qkc_partial_is_busy(const qkc_step *step);
/* Makes the thread leave the step, with all its layers answered, and waits for that: for one call of the partial function
 * at most. A step that was never given is left already. */
void qkc_partial_abandon(qkc_step *step);
/* The two launches of a layer, around the attention. */
cudaError_t qkc_partial_publish(const qkc_pass *pass, uint32_t layer);
cudaError_t qkc_partial_merge(const qkc_pass *pass, uint32_t layer);
