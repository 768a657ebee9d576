/* qe-request.c: requests as their readers see them: made from checked parameters, taken from, waited for, cancelled.
 * The engine thread's part of the struct is worked on in qe-core.c and qe-core-run.c. */
#include "engine/qe-request.h"
#include <string.h>
#include "engine/qe-limits.h"
#include "engine/qe-sampler.h"
#include "engine/qe-tools.h"

void qe_generate_params_init(qe_generate_params *params, const qe_model_info *info)
{
    *params = (qe_generate_params){.keep_messages = QE_KEEP_ALL};
    qe_sampling_params_init(&params->sampling, info);
}

const char *qe_finish_name(qe_finish finish)
{
    switch (finish) {
    case QE_FINISH_NONE:
        break;
    case QE_FINISH_STOP:
        return "stop";
    case QE_FINISH_LENGTH:
    case QE_FINISH_CONTEXT:
        return "length";
    case QE_FINISH_CANCELLED:
        return "cancelled";
    case QE_FINISH_ERROR:
        return "error";
    }
    return "";
}

static bool check_params(const qe_generate_params *params, GError **error)
{
    if (!qe_sampling_params_check(&params->sampling, error))
        return false;
    if (params->ids && (params->n_messages || params->whole_history)) {
        g_set_error(error, QE_ERROR, QE_ERROR_INVALID, "A request has messages or ids, not both");
        return false;
    }
    if (params->continue_reply && (!params->whole_history || params->n_messages < 2 ||
                                      params->messages[params->n_messages - 1].role != QE_ROLE_ASSISTANT)) {
        g_set_error(error, QE_ERROR, QE_ERROR_INVALID,
            "A reply is continued at the end of a whole history, after another message");
        return false;
    }
    bool has_tools = params->tools != NULL;
    for (uint32_t i = 0; i < params->n_messages; i++) {
        const qe_message *m = &params->messages[i];
        has_tools |= m->role == QE_ROLE_TOOL || m->n_calls > 0 || m->reasoning;
    }
    if (has_tools && !params->whole_history) {
        g_set_error(error, QE_ERROR, QE_ERROR_INVALID, "Tools and reasoning stand in a whole history only");
        return false;
    }
    if (!params->ids && params->n_messages == 0) {
        g_set_error(error, QE_ERROR, QE_ERROR_INVALID, "A request needs at least one message");
        return false;
    }
    if (params->ids && params->n_ids == 0) {
        g_set_error(error, QE_ERROR, QE_ERROR_INVALID, "A prompt of ids needs at least one id");
        return false;
    }
    if (params->n_top > QE_TOP_MAX) {
        g_set_error(
            error, QE_ERROR, QE_ERROR_INVALID, "n_top must be at most %d, not %u", QE_TOP_MAX, params->n_top);
        return false;
    }
    if (params->n_profile > params->max_tokens) {
        g_set_error(error, QE_ERROR, QE_ERROR_INVALID, "n_profile must be at most max_tokens (%u), not %u",
            params->max_tokens, params->n_profile);
        return false;
    }
    if (params->n_top_logprobs > QE_TOP_LOGPROBS_MAX) {
        g_set_error(error, QE_ERROR, QE_ERROR_INVALID, "n_top_logprobs must be at most %d, not %u",
            QE_TOP_LOGPROBS_MAX, params->n_top_logprobs);
        return false;
    }
    if (params->n_top_logprobs && !params->logprobs) {
        g_set_error(error, QE_ERROR, QE_ERROR_INVALID, "n_top_logprobs needs logprobs");
        return false;
    }
    if (params->constraint && params->ignore_eos) {
        g_set_error(error, QE_ERROR, QE_ERROR_INVALID, "A reply with a constraint cannot ignore its end");
        return false;
    }
    guint n_stop = params->stop ? g_strv_length((char **)params->stop) : 0;
    if (n_stop > QE_STOP_STRINGS_MAX) {
        g_set_error(error, QE_ERROR, QE_ERROR_INVALID, "At most %u stop strings, not %u", QE_STOP_STRINGS_MAX,
            n_stop);
        return false;
    }
    for (guint i = 0; i < n_stop; i++) {
        gsize n = strlen(params->stop[i]);
        if (n == 0 || n > QE_STOP_BYTES_MAX) {
            g_set_error(error, QE_ERROR, QE_ERROR_INVALID,
                "Stop string %u has %" G_GSIZE_FORMAT " bytes; allowed are 1 to %u", i, n, QE_STOP_BYTES_MAX);
            return false;
        }
    }
    return true;
}

/* Counts @text against the limit of a request's texts. */
static bool count_bytes(gsize n, gsize *total, GError **error)
{
    if (n <= QE_PROMPT_BYTES_MAX && (*total += n) <= QE_PROMPT_BYTES_MAX)
        return true;
    g_set_error(error, QE_ERROR, QE_ERROR_INVALID, "The messages have more than %u bytes of text",
        QE_PROMPT_BYTES_MAX);
    return false;
}

static bool copy_extras(qe_request_message *to, const qe_message *m, gsize *total, GError **error)
{
    if (m->reasoning && !count_bytes(strlen(m->reasoning), total, error))
        return false;
    to->reasoning = g_strdup(m->reasoning);
    to->calls = g_new0(qe_tool_call, m->n_calls);
    for (uint32_t i = 0; i < m->n_calls; i++) {
        const qe_tool_call *call = &m->calls[i];
        if (!count_bytes(strlen(call->name) + strlen(call->arguments), total, error))
            return false;
        to->calls[to->n_calls++] = (qe_tool_call){g_strdup(call->name), g_strdup(call->arguments)};
    }
    return true;
}

static void message_clear(qe_request_message *m)
{
    for (uint32_t i = 0; i < m->n_calls; i++) {
        g_free((char *)m->calls[i].name);
        g_free((char *)m->calls[i].arguments);
    }
    g_free(m->calls);
    g_free(m->reasoning);
    g_free(m->text);
}

static bool copy_messages(qe_request *self, const qe_generate_params *params, GError **error)
{
    gsize total = 0;
    self->n_messages = params->n_messages;
    self->messages = g_new0(qe_request_message, MAX(params->n_messages, 1));
    for (uint32_t i = 0; i < params->n_messages; i++) {
        const qe_message *m = &params->messages[i];
        gsize n = m->n_bytes < 0 ? strlen(m->text) : (gsize)m->n_bytes;
        if (!count_bytes(n, &total, error))
            return false;
        self->messages[i] = (qe_request_message){m->role, g_memdup2(m->text, n), n};
        if (!copy_extras(&self->messages[i], m, &total, error))
            return false;
    }
    if (!params->tools)
        return true;
    gsize n_tools = params->n_tools_bytes < 0 ? strlen(params->tools) : (gsize)params->n_tools_bytes;
    self->tools = qe_tools_spell(params->tools, n_tools, error);
    return self->tools != NULL;
}

static qe_request *request_alloc(qe_queue *queue)
{
    qe_request *self = g_new0(qe_request, 1);
    g_atomic_int_set(&self->n_refs, 1);
    self->queue = qe_queue_ref(queue);
    self->called = g_get_monotonic_time();
    self->slot = QK_NO_SLOT;
    self->sampling = (qk_sampling){.top_p = 1, .repetition_penalty = 1};
    return self;
}

qe_request *qe_request_new(
    qe_queue *queue, const qe_generate_params *params, gsize outbox_bytes, GError **error)
{
    if (!check_params(params, error))
        return NULL;
    qe_request *self = request_alloc(queue);
    self->outbox = qe_outbox_new(outbox_bytes, params->wakeup, params->wakeup_user);
    self->session_id = params->session;
    self->keep_messages = params->keep_messages;
    self->whole_history = params->whole_history;
    self->continue_reply = params->continue_reply;
    self->thinking = params->thinking;
    self->max_tokens = params->max_tokens;
    self->stop = g_strdupv((char **)params->stop);
    self->ignore_eos = params->ignore_eos;
    self->no_reuse = params->no_reuse;
    self->n_top = params->n_top;
    self->n_profile = params->n_profile;
    self->logprobs = params->logprobs;
    self->n_top_logprobs = params->n_top_logprobs;
    if (params->constraint)
        self->constraint = qe_constraint_ref(params->constraint);
    qe_sampler_to_kernel(&params->sampling, &self->sampling);
    self->n_bias = params->n_logit_bias;
    if (!qe_sampler_bias_to_kernel(params->logit_bias, params->n_logit_bias, &self->bias, error)) {
        qe_request_unref(self);
        return NULL;
    }
    if (params->ids) {
        self->ids = g_memdup2(params->ids, (gsize)params->n_ids * sizeof *params->ids);
        self->n_ids = params->n_ids;
    } else if (!copy_messages(self, params, error)) {
        qe_request_unref(self);
        return NULL;
    }
    return self;
}

qe_request *qe_request_new_eval(
    qe_queue *queue, qe_session_id session, const uint32_t *ids, uint32_t n_ids, uint32_t first, float *out)
{
    qe_request *self = request_alloc(queue);
    self->outbox = qe_outbox_new(QE_OUTBOX_BYTES, NULL, NULL);
    self->session_id = session;
    self->is_eval = true;
    self->ids = g_memdup2(ids, (gsize)n_ids * sizeof *ids);
    self->n_ids = n_ids;
    self->eval_first = first;
    self->eval_out = out;
    return self;
}

qe_request *qe_request_ref(qe_request *self)
{
    g_atomic_int_inc(&self->n_refs);
    return self;
}

void qe_request_unref(qe_request *self)
{
    if (!self || !g_atomic_int_dec_and_test(&self->n_refs))
        return;
    for (uint32_t i = 0; self->messages && i < self->n_messages; i++)
        message_clear(&self->messages[i]);
    g_free(self->messages);
    g_free(self->ids);
    g_strfreev(self->stop);
    g_strfreev(self->tools);
    qe_reply_free(self->reply);
    qe_guide_free(self->guide);
    qe_constraint_unref(self->constraint);
    g_free(self->bias);
    qe_outbox_free(self->outbox);
    qe_queue_unref(self->queue);
    g_free(self);
}

void qe_request_cancel(qe_request *self)
{
    g_atomic_int_set(&self->cancelled, 1);
    qe_queue_cancel(self->queue, self);
}

bool qe_request_take(qe_request *self, qe_update *out)
{
    bool was_full;
    bool news = qe_outbox_take(self->outbox, out, &was_full);
    if (was_full)
        qe_queue_kick(self->queue);
    return news;
}

bool qe_request_wait(qe_request *self, int timeout_ms)
{
    return qe_outbox_wait(self->outbox, timeout_ms);
}
