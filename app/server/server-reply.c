/* server-reply.c: follows requests in the engine.
 *
 * The engine thread says "there is news" by setting the flag of a request's cell and making one source ready; the main loop
 * then takes from the requests whose flag is set. A wakeup may come a moment after the last news was taken, so what it
 * touches, the cells and the source, lives as long as the process; at worst a new request in that cell is looked at once
 * for nothing.
 *
 * Invariants:
 *  1. A choice is in its cell from its start until its DONE was taken; so the engine never wakes for freed memory.
 *  2. An abandoned choice is cancelled and only waits for its DONE.
 *  3. A session of its own is closed after the last news; a named one is counted as in use until then. */
#include "app/server/server-reply.h"

struct _SrvChoice
{
  QuireServer *server;
  guint engine_serial;
  qe_request *request; /* owned */
  qe_session_id session;
  char *named; /* owned; NULL: the session is ours */
  gboolean keep;
  guint cell;
  gboolean held;
  SrvNewsFunc news; /* NULL: abandoned */
  gpointer user;
};

typedef struct
{
  gint news; /* atomic */
  SrvChoice *choice;
} Cell;

static Cell cells[SRV_REQUESTS_MAX];
static guint n_cells_used;
static GSource *wake_source;

/* Any thread. */
static void
wake (void *user)
{
  Cell *cell = user;

  g_atomic_int_set (&cell->news, 1);
  g_source_set_ready_time (wake_source, 0);
}

guint
srv_n_choices (void)
{
  return n_cells_used;
}

static void
choice_free (SrvChoice *c)
{
  QuireServer *self = c->server;
  gboolean same = self->engine != NULL && c->engine_serial == self->engine_serial;
  SrvSession *session = c->named != NULL ? srv_session_find (self, c->named) : NULL;

  if (session != NULL && session->id == c->session)
    {
      session->n_running--;
      session->last_used = g_get_monotonic_time ();
    }
  if (c->named == NULL && same && c->keep)
    srv_session_keep (self, c->session);
  else if (c->named == NULL && same)
    qe_engine_close_session (self->engine, c->session);
  cells[c->cell].choice = NULL;
  n_cells_used--;
  qe_request_unref (c->request);
  g_free (c->named);
  g_free (c);
}

static void
count (QuireServer *self, const qe_update *update)
{
  const qe_receipt *r = &update->receipt;
  SrvFigures *f = &self->figures;

  f->finished[update->finish]++;
  if (update->finish == QE_FINISH_ERROR)
    return;
  f->prompt_tokens += r->n_prompt;
  f->cached_tokens += r->n_reused;
  f->shared_tokens += r->n_shared;
  f->generated_tokens += r->n_generated;
  srv_histogram_add (&f->queue, r->queue_ms / 1000);
  if (r->n_generated > 0)
    srv_histogram_add (&f->first_token, r->first_token_ms / 1000);
  srv_histogram_add (&f->total, (r->queue_ms + r->prefill_ms + r->decode_ms) / 1000);
}

/* Takes what is there. Returns whether it was the last. */
static gboolean
choice_take (SrvChoice *c)
{
  qe_update update = { 0 };
  gboolean done;

  qe_request_take (c->request, &update);
  done = update.state == QE_REQUEST_DONE;
  if (done)
    count (c->server, &update);
  if (c->news != NULL)
    c->news (c, &update, c->user);
  qe_update_clear (&update);
  if (done)
    choice_free (c);
  return done;
}

static gboolean
wake_cb (gpointer user)
{
  g_source_set_ready_time (wake_source, -1);
  for (guint i = 0; i < SRV_REQUESTS_MAX; i++)
    {
      SrvChoice *c = cells[i].choice;

      if (c != NULL && !c->held && g_atomic_int_compare_and_exchange (&cells[i].news, 1, 0))
        choice_take (c);
    }
  return G_SOURCE_CONTINUE;
}

static gboolean
wake_dispatch (GSource *source, GSourceFunc callback, gpointer user)
{
  return callback (user);
}

static GSourceFuncs wake_funcs = { .dispatch = wake_dispatch };

static void
make_wake_source (void)
{
  if (wake_source != NULL)
    return;
  wake_source = g_source_new (&wake_funcs, sizeof (GSource));
  /* As the window's own: drawing and input go first. */
  g_source_set_priority (wake_source, G_PRIORITY_DEFAULT_IDLE);
  g_source_set_static_name (wake_source, "quire server wakeup");
  g_source_set_callback (wake_source, wake_cb, NULL, NULL);
  g_source_attach (wake_source, NULL);
}

SrvChoice *
srv_choice_start (QuireServer *self, qe_generate_params *params, const char *named, gboolean keep,
                  SrvNewsFunc news, gpointer user, SrvError *error)
{
  g_autoptr (GError) cause = NULL;
  SrvChoice *c;
  guint cell = 0;

  make_wake_source ();
  while (cell < SRV_REQUESTS_MAX && cells[cell].choice != NULL)
    cell++;
  g_assert (cell < SRV_REQUESTS_MAX); /* n_requests_max was checked */
  params->wakeup = wake;
  params->wakeup_user = &cells[cell];
  c = g_new0 (SrvChoice, 1);
  c->request = qe_engine_generate (self->engine, params, &cause);
  if (c->request == NULL)
    {
      if (named == NULL)
        qe_engine_close_session (self->engine, params->session);
      g_free (c);
      srv_error_from_engine (error, cause);
      return NULL;
    }
  c->server = self;
  c->engine_serial = self->engine_serial;
  c->session = params->session;
  c->named = g_strdup (named);
  c->keep = keep;
  c->cell = cell;
  c->news = news;
  c->user = user;
  cells[cell].choice = c;
  n_cells_used++;
  if (named != NULL)
    {
      SrvSession *session = srv_session_find (self, named);

      session->n_running++;
      session->n_requests++;
    }
  return c;
}

qe_session_id
srv_choice_get_session (SrvChoice *c)
{
  return c->session;
}

void
srv_choice_hold (SrvChoice *c, gboolean hold)
{
  c->held = hold;
  if (!hold && g_atomic_int_get (&cells[c->cell].news))
    g_source_set_ready_time (wake_source, 0);
}

void
srv_choice_abandon (SrvChoice *c)
{
  c->news = NULL;
  c->held = FALSE;
  qe_request_cancel (c->request);
  /* News that was held back is looked at now; it may be the last. */
  wake (&cells[c->cell]);
}

void
srv_choices_end (QuireServer *self)
{
  for (guint i = 0; i < SRV_REQUESTS_MAX; i++)
    if (cells[i].choice != NULL && cells[i].choice->server == self)
      qe_request_cancel (cells[i].choice->request);
  for (guint i = 0; i < SRV_REQUESTS_MAX; i++)
    while (cells[i].choice != NULL && cells[i].choice->server == self)
      {
        qe_request_wait (cells[i].choice->request, -1);
        if (choice_take (cells[i].choice))
          break;
      }
}
