/* quire-aside.c: see quire-aside.h.
 *
 * WAITING until the engine is idle (or at once, when it does not yield), ASKED while the fork is there, OVER after done.
 * An aside whose turn came to nothing goes from ASKED back to WAITING. */
#include "app/quire-aside.h"

#include <string.h>

#define TRIES_MAX 4

typedef enum
{
  WAITING,
  ASKED,
  OVER,
} State;

struct _QuireAside
{
  QuireEngineClient *client;
  QuireAsideQuestion question; /* its text and history are owned */
  QuireAsideFn done;
  QuireAsideProgressFn progress;
  gpointer user_data;
  State state;
  guint n_tries;
  guint64 idle_from; /* snapshots of an earlier number do not know of the last turn yet */
  qe_session_id fork;
  qe_request *request;
  GString *text;
  guint begin_id;
};

static void
drop_fork (QuireAside *self)
{
  g_clear_pointer (&self->request, qe_request_unref);
  quire_engine_client_close_session (self->client, self->fork);
  self->fork = 0;
}

/* The last thing that is done with @self here: it may be freed in the call. */
static void
end (QuireAside *self, const char *text, const qe_receipt *receipt)
{
  /* The text is @self's, which may go in the call. */
  g_autofree char *copy = g_strdup (text);

  drop_fork (self);
  self->state = OVER;
  self->done (copy, receipt, self->user_data);
}

static gboolean
is_idle (QuireAside *self)
{
  const qe_snapshot *snapshot = quire_engine_client_get_snapshot (self->client);

  return snapshot != NULL && snapshot->serial >= self->idle_from && snapshot->n_running == 0
         && snapshot->n_queued == 0;
}

static void
begin (QuireAside *self)
{
  qe_generate_params params;
  qe_message message = { QE_ROLE_USER, self->question.question, -1 };
  g_autoptr (GArray) messages = g_array_new (FALSE, FALSE, sizeof message);

  self->n_tries++;
  if (self->question.session != 0)
    self->fork = quire_engine_client_fork_session (self->client, self->question.session,
                                                   self->question.keep_messages, NULL);
  else
    {
      qe_session_options options;

      qe_session_options_init (&options);
      self->fork = quire_engine_client_open_session (self->client, &options, NULL);
      g_array_append_vals (messages, self->question.history, self->question.n_history);
    }
  g_array_append_val (messages, message);
  if (self->fork == 0)
    {
      end (self, NULL, NULL);
      return;
    }
  qe_generate_params_init (&params, quire_engine_client_get_status (self->client)->model);
  params.session = self->fork;
  params.messages = (const qe_message *)(gpointer)messages->data;
  params.n_messages = messages->len;
  params.whole_history = self->question.session == 0;
  params.max_tokens = self->question.max_tokens;
  params.thinking = QE_THINKING_OFF;
  params.sampling.temperature = 0;
  params.sampling.repetition_penalty = 1;
  g_string_truncate (self->text, 0);
  self->request = quire_engine_client_generate_aside (self->client, &params, NULL);
  if (self->request == NULL)
    {
      end (self, NULL, NULL);
      return;
    }
  self->state = ASKED;
}

static gboolean
begin_cb (gpointer user_data)
{
  QuireAside *self = user_data;

  self->begin_id = 0;
  if (self->state == WAITING && (!self->question.yields || is_idle (self)))
    begin (self);
  return G_SOURCE_REMOVE;
}

static void
begin_soon (QuireAside *self)
{
  if (self->begin_id == 0)
    self->begin_id = g_idle_add (begin_cb, self);
}

static void
snapshot_changed_cb (QuireAside *self)
{
  if (self->state == WAITING && is_idle (self))
    begin_soon (self);
}

static void
news_cb (QuireAside *self)
{
  qe_update update = { 0 };

  if (self->state != ASKED)
    return;
  if (!qe_request_take (self->request, &update))
    {
      qe_update_clear (&update);
      return;
    }
  if (update.n_text > 0)
    g_string_append_len (self->text, update.text, update.n_text);
  if (update.state == QE_REQUEST_DONE)
    {
      gboolean ok = update.finish != QE_FINISH_ERROR && update.finish != QE_FINISH_CANCELLED;
      qe_receipt receipt = update.receipt;

      qe_update_clear (&update);
      end (self, ok ? self->text->str : NULL, ok ? &receipt : NULL);
      return;
    }
  if (update.n_text > 0 && self->progress != NULL)
    self->progress (self->text->str, self->user_data);
  qe_update_clear (&update);
}

static void
turn_asked_cb (QuireAside *self)
{
  const qe_snapshot *snapshot = quire_engine_client_get_snapshot (self->client);

  if (!self->question.yields || self->state == OVER)
    return;
  /* The next one may have been on its way. */
  self->idle_from = snapshot != NULL ? snapshot->serial + 2 : 0;
  if (self->state != ASKED)
    return;
  drop_fork (self);
  self->state = WAITING;
  if (self->n_tries >= TRIES_MAX)
    end (self, NULL, NULL);
}

/* The ids belong to a model that is going. */
static void
sessions_lost_cb (QuireAside *self)
{
  if (self->state == OVER)
    return;
  self->fork = 0;
  end (self, NULL, NULL);
}

/* Returns: owned, its texts too. */
static const qe_message *
copy_history (const QuireAsideQuestion *question)
{
  qe_message *history = g_new0 (qe_message, question->n_history + 1);

  for (guint i = 0; i < question->n_history; i++)
    {
      const qe_message *m = &question->history[i];
      gsize n = m->n_bytes < 0 ? strlen (m->text) : (gsize)m->n_bytes;

      history[i] = (qe_message){ m->role, g_memdup2 (m->text, n + 1), (gssize)n };
    }
  return history;
}

QuireAside *
quire_aside_new (QuireEngineClient *client, const QuireAsideQuestion *question, QuireAsideFn done,
                 gpointer user_data)
{
  QuireAside *self = g_new0 (QuireAside, 1);

  self->client = g_object_ref (client);
  self->question = *question;
  self->question.question = g_strdup (question->question);
  self->question.history = copy_history (question);
  self->done = done;
  self->user_data = user_data;
  self->text = g_string_new (NULL);
  g_signal_connect_swapped (client, "snapshot-changed", G_CALLBACK (snapshot_changed_cb), self);
  g_signal_connect_swapped (client, "news", G_CALLBACK (news_cb), self);
  g_signal_connect_swapped (client, "turn-asked", G_CALLBACK (turn_asked_cb), self);
  g_signal_connect_swapped (client, "sessions-lost", G_CALLBACK (sessions_lost_cb), self);
  begin_soon (self);
  return self;
}

void
quire_aside_set_progress (QuireAside *self, QuireAsideProgressFn progress)
{
  self->progress = progress;
}

void
quire_aside_free (QuireAside *self)
{
  if (self == NULL)
    return;
  g_signal_handlers_disconnect_by_data (self->client, self);
  g_clear_handle_id (&self->begin_id, g_source_remove);
  drop_fork (self);
  g_object_unref (self->client);
  for (guint i = 0; i < self->question.n_history; i++)
    g_free ((char *)self->question.history[i].text);
  g_free ((qe_message *)self->question.history);
  g_free ((char *)self->question.question);
  g_string_free (self->text, TRUE);
  g_free (self);
}
