/* quire-compare.c: see quire-compare.h.
 *
 * Invariants
 * 1. session != 0 exactly while a run is under way; request != NULL while one of its two requests runs.
 * 2. A run whose request ended stays open for SETTLE_MS, so that a snapshot with all of its pages is seen. */
#include "app/quire-compare.h"

#define SETTLE_MS 250
#define SEED_DEFAULT 42

struct _QuireCompare
{
  GObject parent_instance;

  QuireEngineClient *client;
  QuireCompareRun runs[QUIRE_COMPARE_RUNS];
  GPtrArray *texts; /* owns what messages point to */
  GArray *messages; /* (element-type qe_message) */
  QuireTurnSettings settings;
  guint current;
  gboolean running;
  qe_session_id session;
  qe_request *request;
  guint settle_id;
};

G_DEFINE_FINAL_TYPE (QuireCompare, quire_compare, G_TYPE_OBJECT)

static guint changed_signal;

static void begin_run (QuireCompare *self);

static void
run_clear (QuireCompareRun *run)
{
  if (run->text != NULL)
    g_string_free (run->text, TRUE);
  g_clear_pointer (&run->ids, g_array_unref);
  g_free (run->error);
  *run = (QuireCompareRun){ 0 };
}

static void
drop_session (QuireCompare *self)
{
  g_clear_handle_id (&self->settle_id, g_source_remove);
  if (self->request != NULL)
    qe_request_cancel (self->request);
  g_clear_pointer (&self->request, qe_request_unref);
  if (self->session != 0)
    quire_engine_client_close_session (self->client, self->session);
  self->session = 0;
}

/* The present run is over, in whatever way; the next one begins. */
static void
end_run (QuireCompare *self, QuireRunState state, const char *error)
{
  QuireCompareRun *run = &self->runs[self->current];

  drop_session (self);
  run->state = state;
  run->error = g_strdup (error);
  self->current++;
  if (self->running && self->current < QUIRE_COMPARE_RUNS)
    begin_run (self);
  else
    {
      self->running = FALSE;
      g_signal_emit (self, changed_signal, 0);
    }
}

static gboolean
settled_cb (gpointer user_data)
{
  QuireCompare *self = user_data;

  self->settle_id = 0;
  end_run (self, QUIRE_RUN_DONE, NULL);
  return G_SOURCE_REMOVE;
}

/* Asks for the reply to the first @n_messages of the prompt. */
static void
ask (QuireCompare *self, guint n_messages, guint max_tokens)
{
  g_autoptr (GError) error = NULL;
  qe_generate_params params;

  qe_generate_params_init (&params, quire_engine_client_get_status (self->client)->model);
  params.session = self->session;
  params.sampling = self->settings.sampling;
  params.thinking = self->settings.thinking;
  params.max_tokens = max_tokens;
  params.whole_history = true;
  params.messages = (const qe_message *)(gpointer)self->messages->data;
  params.n_messages = n_messages;
  self->request = quire_engine_client_generate (self->client, &params, &error);
  if (self->request == NULL)
    end_run (self, QUIRE_RUN_FAILED, error->message);
}

static void
measure (QuireCompare *self)
{
  guint max = self->settings.max_tokens;

  self->runs[self->current].state = QUIRE_RUN_READING;
  ask (self, self->messages->len,
       max > 0 ? MIN (max, QUIRE_COMPARE_TOKENS_MAX) : QUIRE_COMPARE_TOKENS_MAX);
}

static void
begin_run (QuireCompare *self)
{
  QuireCompareRun *run = &self->runs[self->current];
  g_autoptr (GError) error = NULL;
  qe_session_options options;

  qe_session_options_init (&options);
  quire_cache_choice_get_config (run->choice, &options.cache);
  options.cache.use_cache = false;
  self->session = quire_engine_client_open_session (self->client, &options, &error);
  if (self->session == 0)
    {
      end_run (self, QUIRE_RUN_FAILED, error->message);
      return;
    }
  if (self->messages->len >= 3)
    {
      run->state = QUIRE_RUN_PREPARING;
      ask (self, self->messages->len - 1, 1);
    }
  else
    measure (self);
  g_signal_emit (self, changed_signal, 0);
}

gboolean
quire_compare_start (QuireCompare *self, GArray *prompt, const QuireCacheChoice *choices,
                     const QuireTurnSettings *settings)
{
  if (self->running || prompt->len == 0 || !quire_engine_client_is_ready (self->client))
    return FALSE;

  g_ptr_array_set_size (self->texts, 0);
  g_array_set_size (self->messages, 0);
  for (guint i = 0; i < prompt->len; i++)
    {
      qe_message message = g_array_index (prompt, qe_message, i);
      char *text = g_memdup2 (message.text, (gsize)message.n_bytes + 1);

      g_ptr_array_add (self->texts, text);
      message.text = text;
      g_array_append_val (self->messages, message);
    }
  self->settings = *settings;
  if (!self->settings.sampling.has_seed)
    self->settings.sampling.seed = SEED_DEFAULT;
  self->settings.sampling.has_seed = true;
  for (guint i = 0; i < QUIRE_COMPARE_RUNS; i++)
    {
      run_clear (&self->runs[i]);
      self->runs[i].choice = choices[i];
      self->runs[i].text = g_string_new (NULL);
      self->runs[i].ids = g_array_new (FALSE, FALSE, sizeof (guint32));
      self->runs[i].receipt.first_mismatch = -1;
    }
  self->current = 0;
  self->running = TRUE;
  begin_run (self);
  return TRUE;
}

void
quire_compare_stop (QuireCompare *self)
{
  if (!self->running)
    return;
  self->running = FALSE;
  for (guint i = self->current + 1; i < QUIRE_COMPARE_RUNS; i++)
    self->runs[i].state = QUIRE_RUN_STOPPED;
  end_run (self, QUIRE_RUN_STOPPED, NULL);
}

/* ---- News ---- */

static void
finish_request (QuireCompare *self, const qe_update *update)
{
  QuireCompareRun *run = &self->runs[self->current];

  g_clear_pointer (&self->request, qe_request_unref);
  if (update->finish == QE_FINISH_ERROR)
    end_run (self, QUIRE_RUN_FAILED, update->error != NULL ? update->error->message : NULL);
  else if (update->finish == QE_FINISH_CANCELLED)
    end_run (self, QUIRE_RUN_STOPPED, NULL);
  else if (run->state == QUIRE_RUN_PREPARING)
    measure (self);
  else
    self->settle_id = g_timeout_add (SETTLE_MS, settled_cb, self);
}

static void
news_cb (QuireCompare *self)
{
  qe_update update = { 0 };
  QuireCompareRun *run;

  if (self->request == NULL || !qe_request_take (self->request, &update))
    return;
  run = &self->runs[self->current];
  if (run->state != QUIRE_RUN_PREPARING)
    {
      run->state = update.state >= QE_REQUEST_DECODE ? QUIRE_RUN_WRITING : QUIRE_RUN_READING;
      run->receipt = update.receipt;
      g_string_append_len (run->text, update.text, (gssize)update.n_text);
      g_array_append_vals (run->ids, update.ids, update.n_ids);
    }
  if (update.state == QE_REQUEST_DONE)
    finish_request (self, &update);
  qe_update_clear (&update);
  g_signal_emit (self, changed_signal, 0);
}

static void
snapshot_cb (QuireCompare *self)
{
  const qe_session_view *view = quire_engine_client_find_session (self->client, self->session);
  const qe_snapshot *snapshot = quire_engine_client_get_snapshot (self->client);
  QuireCompareRun *run;
  guint n;

  if (view == NULL || view->n_pages == 0)
    return;
  run = &self->runs[self->current];
  n = view->n_pages_tier[snapshot->tiers[QE_TIER_GPU].present ? QE_TIER_GPU : QE_TIER_HOST];
  run->n_peak_pages = MAX (run->n_peak_pages, n);
  run->peak_bytes = MAX (run->peak_bytes, view->bytes / view->n_pages * n);
  g_signal_emit (self, changed_signal, 0);
}

/* The ids are void: nothing is there to be closed. */
static void
sessions_lost_cb (QuireCompare *self)
{
  self->session = 0;
  quire_compare_stop (self);
}

gboolean
quire_compare_is_running (QuireCompare *self)
{
  return self->running;
}

const QuireCompareRun *
quire_compare_get_run (QuireCompare *self, guint i)
{
  return &self->runs[i];
}

QuireAnswers
quire_compare_get_answers (QuireCompare *self, guint *first)
{
  const GArray *a = self->runs[0].ids, *b = self->runs[1].ids;
  guint i = 0;

  if (self->runs[0].state != QUIRE_RUN_DONE || self->runs[1].state != QUIRE_RUN_DONE)
    return QUIRE_ANSWERS_UNKNOWN;
  while (i < MIN (a->len, b->len) && g_array_index (a, guint32, i) == g_array_index (b, guint32, i))
    i++;
  *first = i + 1;
  return i == a->len && i == b->len ? QUIRE_ANSWERS_EQUAL : QUIRE_ANSWERS_DIFFER;
}

/* ---- Object ---- */

static void
quire_compare_dispose (GObject *object)
{
  QuireCompare *self = QUIRE_COMPARE (object);

  self->running = FALSE;
  if (self->client != NULL)
    drop_session (self);
  g_clear_object (&self->client);
  G_OBJECT_CLASS (quire_compare_parent_class)->dispose (object);
}

static void
quire_compare_finalize (GObject *object)
{
  QuireCompare *self = QUIRE_COMPARE (object);

  for (guint i = 0; i < QUIRE_COMPARE_RUNS; i++)
    run_clear (&self->runs[i]);
  g_ptr_array_unref (self->texts);
  g_array_unref (self->messages);
  G_OBJECT_CLASS (quire_compare_parent_class)->finalize (object);
}

static void
quire_compare_class_init (QuireCompareClass *klass)
{
  G_OBJECT_CLASS (klass)->dispose = quire_compare_dispose;
  G_OBJECT_CLASS (klass)->finalize = quire_compare_finalize;
  changed_signal = g_signal_new ("changed", G_TYPE_FROM_CLASS (klass), G_SIGNAL_RUN_LAST, 0, NULL,
                                 NULL, NULL, G_TYPE_NONE, 0);
}

static void
quire_compare_init (QuireCompare *self)
{
  self->texts = g_ptr_array_new_with_free_func (g_free);
  self->messages = g_array_new (FALSE, TRUE, sizeof (qe_message));
}

QuireCompare *
quire_compare_new (QuireEngineClient *client)
{
  QuireCompare *self = g_object_new (QUIRE_TYPE_COMPARE, NULL);

  self->client = g_object_ref (client);
  g_signal_connect_object (client, "news", G_CALLBACK (news_cb), self, G_CONNECT_SWAPPED);
  g_signal_connect_object (client, "snapshot-changed", G_CALLBACK (snapshot_cb), self,
                           G_CONNECT_SWAPPED);
  g_signal_connect_object (client, "sessions-lost", G_CALLBACK (sessions_lost_cb), self,
                           G_CONNECT_SWAPPED);
  return self;
}
