/* qe-request.h: a request: what was asked, the way back to the reader, and where the engine thread stands with it.
 * Internal. The asking part is constant after qe_request_new(); `cancelled` is atomic; the rest is the engine thread's. */
#pragma once
#include <glib.h>
#include <stdbool.h>
#include <stdint.h>
#include "engine/qe-guide.h"
#include "engine/qe-outbox.h"
#include "engine/qe-queue.h"
#include "engine/qe-reply.h"
#include "engine/qe.h"
#include "kernels/qk.h"

G_BEGIN_DECLS

typedef struct {
    qe_role role;
    char *text; /* owned; not NUL-terminated in meaning: n_bytes counts */
    gsize n_bytes;
    char *reasoning;     /* owned; may be NULL */
    qe_tool_call *calls; /* owned, and what they name */
    uint32_t n_calls;
} qe_request_message;

struct qe_timeline;

struct qe_request {
    gint n_refs;     /* atomic */
    qe_queue *queue; /* owned reference: the request may outlive its engine */
    qe_outbox *outbox;
    gint cancelled; /* atomic */

    /* What was asked. */
    gint64 called; /* monotonic microseconds */
    qe_session_id session_id;
    uint32_t keep_messages, n_messages;
    qe_request_message *messages;
    bool whole_history;
    char **tools;        /* of qe_tools_spell(); NULL: none */
    bool continue_reply; /* the last message is a reply that goes on */
    uint32_t *ids;       /* [n_ids]; NULL unless the prompt is exact ids */
    uint32_t n_ids;
    qe_thinking thinking;
    qk_sampling sampling;
    uint32_t max_tokens;
    char **stop; /* may be NULL */
    bool ignore_eos, no_reuse;
    uint32_t n_top, n_profile;
    qk_bias *bias; /* [n_bias], ascending ids */
    uint32_t n_bias;
    bool logprobs;
    uint32_t n_top_logprobs;
    qe_constraint *constraint; /* a reference; may be NULL */
    /* eval: no reply; the logits of [eval_first, n_ids) go to eval_out, which outlives the request's end. */
    bool is_eval;
    uint32_t eval_first;
    float *eval_out;

    /* Engine thread. */
    uint64_t serial;              /* order of arrival */
    struct qe_timeline *timeline; /* borrowed; NULL before the prompt is there and after the end */
    qe_request_state state;
    bool paused;        /* its outbox is full */
    bool restoring;     /* pages are on their way to the device */
    uint32_t epoch;     /* grows whenever planned positions stop to count */
    uint32_t slot;      /* QK_NO_SLOT unless running */
    uint32_t pos;       /* next position to plan */
    uint32_t n_unread;  /* tokens drawn by steps in flight */
    bool opens_thought; /* the prompt ends with "<think>\n", which the reply's text begins with */
    bool history_set;   /* the slot has this request's penalty history */
    bool top_known, reuse_counted;
    bool begun_known;  /* its first token was drawn from logits that were kept */
    bool known_failed; /* those are no good: it is computed */
    uint32_t n_prompt, n_generated, n_generate_max;
    bool max_is_context; /* n_generate_max comes from the context, not from max_tokens */
    uint32_t n_stripped; /* tokens of earlier replies that were put again without reasoning */
    gint64 admitted, restore_begun, disk_begun, first_token, last_token, last_progress;
    uint64_t n_pages_seen, n_pages_skipped; /* by the reply's tokens */
    qe_receipt receipt;
    qe_reply *reply; /* ids to text; owned */
    qe_guide *guide; /* what the constraint allows next; owned; NULL without one */
};

/* Returns: owned. Checks every argument; texts are copied. */
qe_request *qe_request_new(
    qe_queue *queue, const qe_generate_params *params, gsize outbox_bytes, GError **error);
/* @ids: copied; @out borrowed until the end. */
qe_request *qe_request_new_eval(
    qe_queue *queue, qe_session_id session, const uint32_t *ids, uint32_t n_ids, uint32_t first, float *out);

static inline bool qe_request_is_cancelled(const qe_request *self)
{
    return g_atomic_int_get(&self->cancelled) != 0;
}

static inline bool qe_request_has_penalty(const qe_request *self)
{
    return self->sampling.repetition_penalty != 1.0f || self->sampling.presence_penalty != 0.0f ||
           self->sampling.frequency_penalty != 0.0f;
}

G_END_DECLS
