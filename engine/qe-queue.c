/* qe-queue.c: commands in, cancellation in. One mutex guards all of it and is held for pointer moves only. */
#include "engine/qe-queue.h"
#include "engine/qe-limits.h"
#include "engine/qe-lock.h"

typedef struct {
    qk_step *step;
    const void *const *members;
    uint32_t n_members;
} step_in_flight;

struct qe_queue {
    gint n_refs; /* atomic */
    qe_mutex lock;
    qe_cond cond;
    GQueue commands; /* qe_command, owned */
    bool kicked, closed;
    step_in_flight steps[2];
};

qe_queue *qe_queue_new(void)
{
    qe_queue *self = g_new0(qe_queue, 1);
    g_atomic_int_set(&self->n_refs, 1);
    qe_mutex_init(&self->lock);
    qe_cond_init(&self->cond);
    g_queue_init(&self->commands);
    return self;
}

qe_queue *qe_queue_ref(qe_queue *self)
{
    g_atomic_int_inc(&self->n_refs);
    return self;
}

void qe_queue_unref(qe_queue *self)
{
    if (!self || !g_atomic_int_dec_and_test(&self->n_refs))
        return;
    g_assert(g_queue_is_empty(&self->commands));
    qe_cond_clear(&self->cond);
    qe_mutex_clear(&self->lock);
    g_free(self);
}

bool qe_queue_push(qe_queue *self, qe_command *command, bool force, GError **error)
{
    bool ok = false;
    qe_mutex_lock(&self->lock);
    if (self->closed) {
        g_set_error(error, QE_ERROR, QE_ERROR_FAILED, "The engine is shutting down");
    } else if (!force && g_queue_get_length(&self->commands) >= QE_COMMANDS_MAX) {
        g_set_error(
            error, QE_ERROR, QE_ERROR_BUSY, "%u commands wait for the engine already", QE_COMMANDS_MAX);
    } else {
        g_queue_push_tail(&self->commands, command);
        qe_cond_broadcast(&self->cond);
        ok = true;
    }
    qe_mutex_unlock(&self->lock);
    return ok;
}

void qe_queue_kick(qe_queue *self)
{
    qe_mutex_lock(&self->lock);
    self->kicked = true;
    qe_cond_broadcast(&self->cond);
    qe_mutex_unlock(&self->lock);
}

void qe_queue_close(qe_queue *self)
{
    qe_mutex_lock(&self->lock);
    self->closed = true;
    qe_cond_broadcast(&self->cond);
    qe_mutex_unlock(&self->lock);
}

bool qe_queue_is_closed(qe_queue *self)
{
    qe_mutex_lock(&self->lock);
    bool closed = self->closed;
    qe_mutex_unlock(&self->lock);
    return closed;
}

qe_command *qe_queue_pop(qe_queue *self, bool wait, gint64 deadline)
{
    qe_mutex_lock(&self->lock);
    while (wait && g_queue_is_empty(&self->commands) && !self->kicked && !self->closed) {
        if (deadline == 0)
            qe_cond_wait(&self->cond, &self->lock);
        else if (!qe_cond_wait_until(&self->cond, &self->lock, deadline))
            break;
    }
    self->kicked = false;
    qe_command *command = g_queue_pop_head(&self->commands);
    qe_mutex_unlock(&self->lock);
    return command;
}

void qe_queue_set_step(qe_queue *self, uint32_t which, qk_step *step, const void *const *members, uint32_t n)
{
    qe_mutex_lock(&self->lock);
    self->steps[which] = (step_in_flight){step, members, n};
    qe_mutex_unlock(&self->lock);
}

static void cancel_steps(qe_queue *self)
{
    for (guint i = 0; i < G_N_ELEMENTS(self->steps); i++) {
        if (self->steps[i].step)
            qk_step_cancel(self->steps[i].step);
    }
}

void qe_queue_cancel(qe_queue *self, const void *member)
{
    qe_mutex_lock(&self->lock);
    bool found = false;
    for (guint i = 0; i < G_N_ELEMENTS(self->steps) && !found; i++) {
        for (uint32_t k = 0; self->steps[i].step && k < self->steps[i].n_members && !found; k++)
            found = self->steps[i].members[k] == member;
    }
    if (found)
        cancel_steps(self);
    self->kicked = true;
    qe_cond_broadcast(&self->cond);
    qe_mutex_unlock(&self->lock);
}

void qe_queue_cancel_all(qe_queue *self)
{
    qe_mutex_lock(&self->lock);
    cancel_steps(self);
    self->kicked = true;
    qe_cond_broadcast(&self->cond);
    qe_mutex_unlock(&self->lock);
}
