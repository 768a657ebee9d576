/* qe-sched.h: which rows go into the next step. Internal; pure functions over plain structs, no I/O.
 *
 * A step is bounded by its predicted milliseconds, not by tokens: ms = a + b rows + c attended, where attended counts the
 * keys that all rows look at. The three numbers follow the measured steps (recursive least squares that forgets). */
#pragma once
#include <glib.h>
#include <stdbool.h>
#include <stdint.h>

G_BEGIN_DECLS

typedef struct {
    double a, b, c;  /* ms, ms a row, ms a row and key; all >= 0 */
    double prior[3]; /* where the fit is pulled to while little is known */
    double xx[3][3]; /* decayed sums of x x^T */
    double xy[3];    /* decayed sums of x y */
    uint64_t n_steps;
} qe_cost;

/* The prior from the model's size: a slow core that reads 8 GB/s and does 30 GFLOP/s; a card (@is_device) that reads
 * 500 GB/s and does 50 TFLOP/s. */
void qe_cost_init(
    qe_cost *cost, bool is_device, uint64_t weight_bytes, uint64_t n_params, uint64_t attend_flops_per_key);
void qe_cost_observe(qe_cost *cost, double rows, double attended, double ms);
double qe_cost_predict(const qe_cost *cost, double rows, double attended);
/* Keys that @n_rows rows from position @start attend to. */
double qe_cost_attended(uint32_t start, uint32_t n_rows);

typedef struct {
    uint32_t start;        /* position of the first row */
    uint32_t n_known;      /* rows that could be computed now, >= 1 */
    bool decode;           /* one row that advances a running reply: always taken */
    uint32_t n_logit_rows; /* the last n of n_known want raw logits copied out */
    uint32_t n_rows_max;   /* no more of them in one step; 0: as many as fit */
    uint32_t n_rows;       /* result: rows taken, 0: not in this step */
} qe_sched_item;

typedef struct {
    double ms_max;
    uint32_t rows_max, logits_max, seqs_max, outputs_max;
} qe_sched_limits;

/* Fills n_rows of @items, which come in order of arrival. Decodes first, in order, as far as rows_max and seqs_max go
 * (@rotate: where to begin among the decodes, so that nobody starves when they do not all fit). Then prompts, oldest
 * first, until the predicted time is used; the oldest prompt always gets QE_PREFILL_ROWS_MIN rows. Returns the predicted
 * milliseconds. */
double qe_sched_plan(
    const qe_cost *cost, const qe_sched_limits *limits, qe_sched_item *items, uint32_t n, uint32_t rotate);

/* Admission. Pages of the pool that a new request may count on: all pages, less what running sessions hold
 * (@n_pinned), less what they were promised and have not taken yet (@n_promised). */
bool qe_sched_admits(uint32_t n_pages_max, uint32_t n_pinned, uint32_t n_promised, uint32_t n_needed);

G_END_DECLS
