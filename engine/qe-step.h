/* qe-step.h: the two steps of a context: fills their plans, submits, and reads results one step late. Internal; engine
 * thread, except what the cancel registry of qe-queue.h does. The sole caller of the backend's step.
 *
 *   qe_steps_begin -> qe_steps_add for each sequence -> qe_steps_submit -> ... -> qe_steps_wait (the oldest in flight) */
#pragma once
#include <glib.h>
#include <stdbool.h>
#include <stdint.h>
#include "engine/qe-kv-pages.h"
#include "engine/qe-queue.h"
#include "engine/qe-session.h"
#include "engine/qe.h"
#include "kernels/qk.h"

G_BEGIN_DECLS

struct qe_request;

/* One sequence of a step, and what to do with its results. */
typedef struct {
    struct qe_request *request; /* one reference while the step is in flight */
    uint32_t epoch; /* of the request when it was planned; results of an older epoch do not count */
    uint32_t start, n_rows;
    bool decode;                  /* the row advances a running reply; else prompt rows */
    bool samples;                 /* its last row draws a token */
    uint32_t sample_output;       /* index of that output */
    bool wants_top, keeps_logits; /* the logits of that output are wanted too */
    bool profile;                 /* the step is to time its parts */
    uint32_t n_logits;            /* eval: the last n rows copy their logits out */
    uint32_t logits_output;       /* index of the first of them */
    qe_session_select select;     /* of a decode row; all 0: exact */
    uint32_t n_pages, n_attended; /* filled in: of the sequence; of them, those that a row attends to */
} qe_step_member;

/* How a member's token is drawn. */
typedef struct {
    qk_sampling sampling;
    uint32_t n_top;
    const qk_bias *bias; /* [n_bias], ascending ids; copied */
    uint32_t n_bias;
    bool masked;
} qe_step_draw;

typedef struct {
    qk_status status;
    uint32_t n_members;
    const qe_step_member *members; /* valid until the next wait */
    const qk_result *result;       /* QK_OK only; valid until the next submit */
    double ms;                     /* how long the device worked on it */
    double rows, attended;
    bool heavy;                   /* as begun */
    uint32_t n_prefill, n_decode; /* rows of prompts, of running replies */
} qe_step_done;

typedef struct qe_steps qe_steps;

/* Makes both steps. QK_OK or why not. */
qk_status qe_steps_new(
    qk_context *context, qe_queue *queue, const qk_context_params *params, uint32_t vocab, qe_steps **out);
void qe_steps_free(qe_steps *self); /* waits for steps in flight; drops their references. NULL is fine */

uint32_t qe_steps_n_in_flight(const qe_steps *self);
double qe_steps_predicted_in_flight(const qe_steps *self); /* ms */
bool qe_steps_prefill_in_flight(const qe_steps *self);

/* false when both steps are in flight. @heavy: some of its pages are off the device; @path says how they are read. */
bool qe_steps_begin(qe_steps *self, uint32_t kv_class, bool heavy, qe_host_path path);
/* @ids: [member->n_rows] known tokens; or NULL for one row that takes its token from @slot. Reads the
 * page table of @session: its first ceil((start + n_rows) / 16) pages. @draw: for member->samples. Fills in the member's output indices. Returns
 * the words to fill with the mask when the draw is masked, else NULL. */
uint32_t *qe_steps_add(qe_steps *self, const qe_step_member *member, const uint32_t *ids, uint32_t slot,
    const qe_step_draw *draw, qe_session *session);
uint32_t qe_steps_n_rows(const qe_steps *self); /* of the plan begun */
/* On failure the plan is forgotten, its references dropped; nothing was enqueued. */
qk_status qe_steps_submit(qe_steps *self, double predicted_ms);
/* Waits for the oldest step in flight. Its members' references stay until the next call here. */
bool qe_steps_wait(qe_steps *self, qe_step_done *done);

G_END_DECLS
