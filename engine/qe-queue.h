/* qe-queue.h: the way from other threads to the engine thread: a bounded queue of owned commands, and the means to
 * end a running step early. Internal. Reference-counted, because a request may outlive its engine.
 *
 * Cancelling is two things: the request's own flag (qe-request.h), and here: waking the engine thread when it sleeps and
 * asking the backend to give up the steps in flight when the request is in one of them. */
#pragma once
#include <glib.h>
#include <stdbool.h>
#include <stdint.h>
#include "engine/qe-error.h"
#include "engine/qe.h"
#include "kernels/qk.h"

G_BEGIN_DECLS

typedef enum {
    QE_COMMAND_LOAD,
    QE_COMMAND_UNLOAD,
    QE_COMMAND_RECOVER,
    QE_COMMAND_OPEN,
    QE_COMMAND_FORK,
    QE_COMMAND_CLOSE,
    QE_COMMAND_SET_KV,
    QE_COMMAND_SET_CACHE,
    QE_COMMAND_PREFETCH,
    QE_COMMAND_GENERATE,
    QE_COMMAND_DELETE_FILES,
    QE_COMMAND_RELEASE,
    QE_COMMAND_CHECK,
} qe_command_kind;

typedef struct {
    qe_command_kind kind;
    uint64_t serial; /* LOAD, UNLOAD, RECOVER: which call; a later one makes it stale */
    char *dir;       /* LOAD: owned */
    uint64_t session, parent;
    uint32_t keep_messages;
    void *request;         /* GENERATE: one reference to a qe_request */
    uint64_t kv_bytes;     /* SET_KV */
    qe_cache_config cache; /* OPEN, SET_CACHE */
    char *disk_key;        /* OPEN: owned; may be NULL. DELETE_FILES: owned */
    bool synthetic;        /* OPEN */
} qe_command;

typedef struct qe_queue qe_queue;

qe_queue *qe_queue_new(void);
qe_queue *qe_queue_ref(qe_queue *self);
void qe_queue_unref(qe_queue *self); /* commands left in it must have been popped */

/* Any thread. @command: consumed on success. QE_ERROR_BUSY at QE_COMMANDS_MAX (@force: not counted, for the few that must
 * not fail), QE_ERROR_FAILED once closed. */
bool qe_queue_push(qe_queue *self, qe_command *command, bool force, GError **error);
/* Any thread: makes a sleeping engine thread look again (a cancel flag, room in an outbox). */
void qe_queue_kick(qe_queue *self);
/* Any thread: the engine thread ends; from now on pushes fail. */
void qe_queue_close(qe_queue *self);
bool qe_queue_is_closed(qe_queue *self);

/* Engine thread. Pops a command, or NULL. With @wait, sleeps until a command, a kick, the close or @deadline (monotonic
 * microseconds; 0: none). */
qe_command *qe_queue_pop(qe_queue *self, bool wait, gint64 deadline);

/* Engine thread. Names the steps that run, so that another thread can cancel them; NULL clears. @members: opaque ids of
 * the requests in it, borrowed until cleared. */
void qe_queue_set_step(qe_queue *self, uint32_t which, qk_step *step, const void *const *members, uint32_t n);
/* Any thread: cancels all steps in flight when @member is in one of them, and wakes the engine thread. All of them,
 * since a later one takes tokens from an earlier one. */
void qe_queue_cancel(qe_queue *self, const void *member);
/* Any thread: cancels all steps in flight whatever they hold. */
void qe_queue_cancel_all(qe_queue *self);

G_END_DECLS
