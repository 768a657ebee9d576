/* server-reply.h: requests in the engine, as the server follows them. Main context only. See server-reply.c. */
#pragma once
#include "app/server/server-private.h"

G_BEGIN_DECLS

/* One request in the engine: a choice of an answer. */
typedef struct _SrvChoice SrvChoice;
/* @update: borrowed; its state is DONE in the last call. */
typedef void (*SrvNewsFunc) (SrvChoice *choice, const qe_update *update, gpointer user);

/* Starts @params (its wakeup is overwritten) in params->session. @named: that session's name, whose use is counted; NULL: the
 * session is the choice's own, and behind its last news it is kept for others to share (@keep) or closed. NULL with
 * @error; an own session is closed then, too. */
SrvChoice *srv_choice_start (QuireServer *self, qe_generate_params *params, const char *named,
                             gboolean keep, SrvNewsFunc news, gpointer user, SrvError *error);
qe_session_id srv_choice_get_session (SrvChoice *choice);
/* While held, news stays in the engine, whose outbox is bounded: then the request pauses. */
void srv_choice_hold (SrvChoice *choice, gboolean hold);
/* Nobody wants it any more: cancels it, and there will be no news. @choice is not to be used any more. */
void srv_choice_abandon (SrvChoice *choice);

G_END_DECLS
