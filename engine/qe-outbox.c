/* qe-outbox.c: the bounded mailbox between the engine thread and a request's reader.
 *
 * Invariants:
 *  1. Text and ids leave in the order they came, each once.
 *  2. `news` is true exactly when something changed since the last take; only its rising edge calls the wakeup.
 *  3. After finish nothing changes.
 * The lock is held for memory copies only; the wakeup runs without it. */
#include "engine/qe-outbox.h"
#include <string.h>
#include "engine/qe-limits.h"
#include "engine/qe-lock.h"

struct qe_outbox {
    qe_mutex lock;
    qe_cond cond;
    qe_wakeup_fn wakeup;
    void *wakeup_user;
    gsize max_bytes;
    bool news, was_full;
    GString *text;
    GArray *ids;      /* uint32_t */
    GArray *logprobs; /* qe_token_logprobs: one an id, or none */
    qe_update latest; /* everything but text, ids, top and error */
    qe_top *top;
    uint32_t n_top;
    qe_message_range *ranges;
    uint32_t n_ranges;
    GError *error;
};

qe_outbox *qe_outbox_new(gsize max_bytes, qe_wakeup_fn wakeup, void *user)
{
    qe_outbox *self = g_new0(qe_outbox, 1);
    qe_mutex_init(&self->lock);
    qe_cond_init(&self->cond);
    self->max_bytes = max_bytes;
    self->wakeup = wakeup;
    self->wakeup_user = user;
    self->text = g_string_new(NULL);
    self->ids = g_array_new(FALSE, FALSE, sizeof(uint32_t));
    self->logprobs = g_array_new(FALSE, FALSE, sizeof(qe_token_logprobs));
    self->latest.state = QE_REQUEST_QUEUED;
    self->latest.receipt.first_mismatch = -1;
    return self;
}

void qe_outbox_free(qe_outbox *self)
{
    if (!self)
        return;
    g_string_free(self->text, TRUE);
    g_array_unref(self->ids);
    g_array_unref(self->logprobs);
    g_free(self->top);
    g_free(self->ranges);
    g_clear_error(&self->error);
    qe_cond_clear(&self->cond);
    qe_mutex_clear(&self->lock);
    g_free(self);
}

/* Leaves the lock and wakes the reader when this is the first news since its last take. */
static void unlock_with_news(qe_outbox *self)
{
    bool edge = !self->news;
    self->news = true;
    qe_cond_broadcast(&self->cond);
    qe_mutex_unlock(&self->lock);
    if (edge && self->wakeup)
        self->wakeup(self->wakeup_user);
}

static bool is_full(const qe_outbox *self)
{
    return self->text->len >= self->max_bytes || self->ids->len >= QE_OUTBOX_IDS;
}

static void push(qe_outbox *self, const char *text, gsize n_text, const uint32_t *ids, uint32_t n_ids,
    const qe_token_logprobs *logprobs)
{
    qe_mutex_lock(&self->lock);
    g_assert(self->latest.state != QE_REQUEST_DONE);
    g_assert(n_ids == 0 || self->logprobs->len == (logprobs ? self->ids->len : 0));
    if (logprobs)
        g_array_append_vals(self->logprobs, logprobs, n_ids);
    if (n_text)
        g_string_append_len(self->text, text, (gssize)n_text);
    if (n_ids)
        g_array_append_vals(self->ids, ids, n_ids);
    if (is_full(self))
        self->was_full = true;
    unlock_with_news(self);
}

void qe_outbox_push(qe_outbox *self, const char *text, gsize n_text, const uint32_t *ids, uint32_t n_ids)
{
    if (n_text == 0 && n_ids == 0)
        return;
    push(self, text, n_text, ids, n_ids, NULL);
}

void qe_outbox_push_token(
    qe_outbox *self, const char *text, gsize n_text, uint32_t id, const qe_token_logprobs *logprobs)
{
    push(self, text, n_text, &id, 1, logprobs);
}

void qe_outbox_set_queued(qe_outbox *self, uint32_t n_before)
{
    qe_mutex_lock(&self->lock);
    if (self->latest.state == QE_REQUEST_QUEUED && self->latest.n_before == n_before) {
        qe_mutex_unlock(&self->lock);
        return;
    }
    self->latest.state = QE_REQUEST_QUEUED;
    self->latest.n_before = n_before;
    unlock_with_news(self);
}

void qe_outbox_set_progress(qe_outbox *self, qe_request_state state, uint32_t n_prompt,
    uint32_t n_prompt_done, const qe_receipt *receipt)
{
    qe_mutex_lock(&self->lock);
    g_assert(self->latest.state != QE_REQUEST_DONE);
    self->latest.state = state;
    self->latest.n_before = 0;
    self->latest.n_prompt = n_prompt;
    self->latest.n_prompt_done = n_prompt_done;
    self->latest.receipt = *receipt;
    unlock_with_news(self);
}

void qe_outbox_set_top(qe_outbox *self, const qe_top *top, uint32_t n)
{
    qe_mutex_lock(&self->lock);
    g_free(self->top);
    self->top = g_memdup2(top, n * sizeof *top);
    self->n_top = n;
    unlock_with_news(self);
}

void qe_outbox_set_ranges(qe_outbox *self, qe_message_range *ranges, uint32_t n)
{
    qe_mutex_lock(&self->lock);
    g_free(self->ranges);
    self->ranges = ranges;
    self->n_ranges = n;
    qe_mutex_unlock(&self->lock); /* told with the last word */
}

void qe_outbox_finish(qe_outbox *self, qe_finish finish, const qe_receipt *receipt, GError *error)
{
    qe_mutex_lock(&self->lock);
    g_assert(self->latest.state != QE_REQUEST_DONE);
    self->latest.state = QE_REQUEST_DONE;
    self->latest.n_before = 0;
    self->latest.finish = finish;
    self->latest.receipt = *receipt;
    self->error = error;
    unlock_with_news(self);
}

bool qe_outbox_is_full(qe_outbox *self)
{
    qe_mutex_lock(&self->lock);
    bool full = is_full(self);
    qe_mutex_unlock(&self->lock);
    return full;
}

bool qe_outbox_take(qe_outbox *self, qe_update *out, bool *was_full)
{
    qe_mutex_lock(&self->lock);
    bool news = self->news;
    self->news = false;
    *was_full = self->was_full;
    self->was_full = false;
    *out = self->latest;
    out->n_text = self->text->len;
    out->text = g_string_free(self->text, FALSE);
    self->text = g_string_new(NULL);
    out->n_ids = self->ids->len;
    out->ids = (uint32_t *)(void *)g_array_free(self->ids, self->ids->len == 0);
    self->ids = g_array_new(FALSE, FALSE, sizeof(uint32_t));
    out->logprobs = self->logprobs->len
                        ? g_memdup2(self->logprobs->data, self->logprobs->len * sizeof *out->logprobs)
                        : NULL;
    g_array_set_size(self->logprobs, 0);
    out->n_top = self->n_top;
    out->top = self->n_top ? g_memdup2(self->top, self->n_top * sizeof *self->top) : NULL;
    out->error = self->error ? g_error_copy(self->error) : NULL;
    if (self->latest.state == QE_REQUEST_DONE && self->n_ranges > 0) {
        out->ranges = g_memdup2(self->ranges, self->n_ranges * sizeof *out->ranges);
        out->n_ranges = self->n_ranges;
    }
    qe_mutex_unlock(&self->lock);
    return news;
}

bool qe_outbox_wait(qe_outbox *self, int timeout_ms)
{
    gint64 end = timeout_ms < 0 ? 0 : g_get_monotonic_time() + (gint64)timeout_ms * 1000;
    qe_mutex_lock(&self->lock);
    while (!self->news && self->latest.state != QE_REQUEST_DONE) {
        if (timeout_ms < 0)
            qe_cond_wait(&self->cond, &self->lock);
        else if (!qe_cond_wait_until(&self->cond, &self->lock, end))
            break;
    }
    bool news = self->news || self->latest.state == QE_REQUEST_DONE;
    qe_mutex_unlock(&self->lock);
    return news;
}

void qe_update_clear(qe_update *update)
{
    g_clear_pointer(&update->text, g_free);
    g_clear_pointer(&update->ids, g_free);
    g_clear_pointer(&update->logprobs, g_free);
    g_clear_pointer(&update->top, g_free);
    g_clear_pointer(&update->ranges, g_free);
    g_clear_error(&update->error);
    update->n_text = 0;
    update->n_ids = update->n_top = update->n_ranges = 0;
}
