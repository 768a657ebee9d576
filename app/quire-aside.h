/* quire-aside.h: a question about a conversation, asked on a throw-away fork of its session. No GTK. Main thread only.
 *
 * The fork shares the conversation's sealed pages and copies at most its last, open one; it is dropped with the answer.
 * The conversation's own session is not touched: its next turn reuses all that it would have. */
#pragma once
#include "app/quire-engine-client.h"

G_BEGIN_DECLS

typedef struct _QuireAside QuireAside;

typedef struct
{
  qe_session_id
      session; /* of the conversation; no reply runs there while the fork is made. 0: see @history */
  guint keep_messages; /* of it; QE_KEEP_ALL */
  /* Without a session: what comes before the question, in one of its own. Pages that are there are found by their content.
   * [n_history], copied. */
  const qe_message *history;
  guint n_history;
  const char *question; /* the user's turn on the fork */
  guint max_tokens;
  /* Waits until the engine has nothing else to do, and gives way to every turn that is asked for meanwhile: it is asked
   * again when the engine is idle, a few times at most. */
  gboolean yields;
} QuireAsideQuestion;

/* @text: the answer; NULL when there is none (an error, or the engine went). @receipt: NULL with @text. The aside is
 * over and may be freed. */
typedef void (*QuireAsideFn) (const char *text, const qe_receipt *receipt, gpointer user_data);
/* The answer so far, as it grows. */
typedef void (*QuireAsideProgressFn) (const char *text, gpointer user_data);

/* @done comes once, from the main loop, unless the aside is freed before. Returns: owned. */
QuireAside *quire_aside_new (QuireEngineClient *client, const QuireAsideQuestion *question,
                             QuireAsideFn done, gpointer user_data);
void quire_aside_set_progress (QuireAside *self, QuireAsideProgressFn progress);
/* Ends it, whatever it does, and drops the fork. NULL is fine. */
void quire_aside_free (QuireAside *self);

G_DEFINE_AUTOPTR_CLEANUP_FUNC (QuireAside, quire_aside_free)

G_END_DECLS
