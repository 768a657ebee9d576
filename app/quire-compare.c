/* quire-compare.c: see quire-compare.h.
 *
 * Invariants
 * 1. A runner is active from its pane's first session to its end; one after another only one is, interleaved all.
 * 2. An active runner has a session, and either a request or settle_id.
 * 3. A run whose last request ended stays open until a snapshot shows all of its tokens (at most SETTLE_MS), so that its
 *    pages are counted. */
#include "app/quire-compare.h"

#include <glib/gi18n.h>
#include <string.h>

#define SETTLE_MS 1000
#define SEED_DEFAULT 42

typedef enum
{
  STEP_COLD,
  STEP_REPLAY, /* a turn's first token */
  STEP_ABSORB, /* the recorded reply to it */
  STEP_LAST,
} Step;

typedef struct
{
  QuireCompare *owner;
  QuirePane *pane;
  gboolean active;
  Step step;
  guint run; /* 0: the warm-up */
  guint turn;
  qe_session_id session;
  qe_request *request;
  qe_receipt receipt;
  guint settle_id;
} Runner;

struct _QuireCompare
{
  GObject parent_instance;

  QuireEngineClient *client;
  QuireComparison *comparison;
  Runner runners[QUIRE_COMPARE_PANES_MAX];
  GPtrArray *texts; /* owns what messages point to */
  GArray *messages; /* (element-type qe_message) */
  guint n_system;   /* 0 or 1 messages before the first turn */
  QuireTurnSettings settings;
  qe_tokenizer *tokenizer;
  gboolean running;
};

G_DEFINE_FINAL_TYPE (QuireCompare, quire_compare, G_TYPE_OBJECT)

enum
{
  CHANGED,
  OVER,
  N_SIGNALS
};
static guint signals[N_SIGNALS];

static void begin_run (QuireCompare *self, Runner *r);

static void
drop_session (QuireCompare *self, Runner *r)
{
  g_clear_handle_id (&r->settle_id, g_source_remove);
  if (r->request != NULL)
    qe_request_cancel (r->request);
  g_clear_pointer (&r->request, qe_request_unref);
  if (r->session != 0)
    quire_engine_client_close_session (self->client, r->session);
  r->session = 0;
}

static void
start_next (QuireCompare *self)
{
  guint n_before = 0;

  for (guint i = 0; self->running && i < self->comparison->panes->len; i++)
    {
      Runner *r = &self->runners[i];

      if (r->pane->state == QUIRE_PANE_WAITING && !r->active
          && (n_before == 0 || self->comparison->interleaved))
        begin_run (self, r);
      if (!quire_pane_is_over (r->pane))
        r->pane->n_before = n_before++;
    }
  if (self->running && quire_comparison_is_over (self->comparison))
    {
      self->running = FALSE;
      g_signal_emit (self, signals[CHANGED], 0);
      g_signal_emit (self, signals[OVER], 0);
    }
}

/* The pane has ended, in whatever way; the others go on. */
static void
end_pane (QuireCompare *self, Runner *r, QuirePaneState state, const char *error)
{
  drop_session (self, r);
  r->active = FALSE;
  r->pane->state = state;
  if (error != NULL)
    r->pane->error = g_strdup (error);
  start_next (self);
}

/* Asks for the reply to the first @n_messages. */
static void
ask (QuireCompare *self, Runner *r, guint n_messages, gboolean free_reply)
{
  g_autoptr (GError) error = NULL;
  qe_generate_params params;

  qe_generate_params_init (&params, quire_engine_client_get_status (self->client)->model);
  params.session = r->session;
  params.sampling = self->settings.sampling;
  params.thinking = self->settings.thinking;
  params.max_tokens = r->step == STEP_LAST ? self->comparison->n_timed : 1;
  params.whole_history = true;
  params.continue_reply = r->step == STEP_ABSORB;
  params.logprobs = free_reply;
  params.n_top_logprobs = free_reply ? QUIRE_COMPARE_TOP : 0;
  params.ignore_eos = r->step == STEP_LAST && !free_reply;
  params.messages = (const qe_message *)(gpointer)self->messages->data;
  params.n_messages = n_messages;
  r->request = quire_engine_client_generate (self->client, &params, &error);
  if (r->request == NULL)
    end_pane (self, r, QUIRE_PANE_FAILED, error->message);
}

static void
take_step (QuireCompare *self, Runner *r)
{
  guint n = self->n_system + 2 * r->turn;

  switch (r->step)
    {
    case STEP_REPLAY:
      ask (self, r, n + 1, FALSE);
      break;
    case STEP_ABSORB:
      ask (self, r, n + 2, FALSE);
      break;
    case STEP_COLD:
      ask (self, r, self->messages->len, FALSE);
      break;
    case STEP_LAST:
    default:
      if (r->run == 0)
        r->pane->state = QUIRE_PANE_READING;
      ask (self, r, self->messages->len, r->run == 0);
      break;
    }
}

static gboolean
open_session (QuireCompare *self, Runner *r)
{
  g_autoptr (GError) error = NULL;
  qe_session_options options;

  drop_session (self, r);
  qe_session_options_init (&options);
  quire_cache_choice_get_config (r->pane->choice, &options.cache);
  options.cache.use_cache = false;
  r->session = quire_engine_client_open_session (self->client, &options, &error);
  if (r->session == 0)
    end_pane (self, r, QUIRE_PANE_FAILED, error->message);
  return r->session != 0;
}

static void
begin_run (QuireCompare *self, Runner *r)
{
  QuireComparison *c = self->comparison;

  r->active = TRUE;
  if (!open_session (self, r))
    return;
  r->turn = 0;
  if (r->run > 0)
    {
      r->pane->state = QUIRE_PANE_TIMING;
      r->pane->n_run = r->run;
      r->step = STEP_COLD;
    }
  else
    {
      r->pane->state = QUIRE_PANE_READING;
      r->step = c->n_turns > 1 && !c->interleaved ? STEP_REPLAY : STEP_LAST;
      if (r->step == STEP_LAST)
        r->turn = c->n_turns - 1;
    }
  take_step (self, r);
}

/* Rebuild and paged keep nothing: what is read into them is read in vain. */
static gboolean
keeps (QuireCompare *self, const Runner *r)
{
  qe_cache_mode mode
      = quire_cache_choice_resolve (r->pane->choice, quire_engine_client_get_plan (self->client));

  return mode != QE_CACHE_REBUILD && mode != QE_CACHE_PAGED;
}

static void
record_turn (Runner *r, guint turn)
{
  QuireComparedTurn *out;

  if (r->run == 0)
    return;
  if (r->pane->turns->len <= turn)
    g_array_set_size (r->pane->turns, turn + 1);
  out = &g_array_index (r->pane->turns, QuireComparedTurn, turn);
  out->n_prompt = r->receipt.n_prompt;
  out->n_reused = r->receipt.n_reused;
  quire_samples_add (&out->first_token_ms, r->receipt.first_token_ms);
}

static void
record_last (QuireCompare *self, Runner *r)
{
  const qe_receipt *receipt = &r->receipt;
  guint n = receipt->n_generated;
  double ms = n > 1 ? receipt->decode_ms / (n - 1) : 0;

  record_turn (r, self->comparison->n_turns - 1);
  if (r->run == 0)
    {
      r->pane->live_ms = receipt->first_token_ms;
      r->pane->live_ms_per_token = ms;
      return;
    }
  quire_samples_add (&r->pane->warm_ms, receipt->first_token_ms);
  if (n > 1)
    quire_samples_add (&r->pane->ms_per_token, ms);
  if (n == self->comparison->n_timed)
    quire_samples_add (&r->pane->e2e_ms, receipt->first_token_ms + receipt->decode_ms);
}

/* A run is whole and its pages were seen. */
static void
end_run (QuireCompare *self, Runner *r)
{
  g_clear_handle_id (&r->settle_id, g_source_remove);
  r->run++;
  if (self->comparison->interleaved || r->run > QUIRE_COMPARE_REPEATS)
    end_pane (self, r, QUIRE_PANE_DONE, NULL);
  else
    begin_run (self, r);
}

static gboolean
settled_cb (gpointer user_data)
{
  Runner *r = user_data;

  r->settle_id = 0;
  end_run (r->owner, r);
  return G_SOURCE_REMOVE;
}

static void
next_step (QuireCompare *self, Runner *r)
{
  guint last = self->comparison->n_turns - 1;

  switch (r->step)
    {
    case STEP_COLD:
      quire_samples_add (&r->pane->cold_ms, r->receipt.first_token_ms);
      if (last > 0 && !open_session (self, r))
        return;
      r->step = last > 0 ? STEP_REPLAY : STEP_LAST;
      break;
    case STEP_REPLAY:
      record_turn (r, r->turn);
      if (keeps (self, r))
        {
          r->step = STEP_ABSORB;
          break;
        }
      r->step = ++r->turn == last ? STEP_LAST : STEP_REPLAY;
      break;
    case STEP_ABSORB:
      r->step = ++r->turn == last ? STEP_LAST : STEP_REPLAY;
      break;
    case STEP_LAST:
    default:
      record_last (self, r);
      r->settle_id = g_timeout_add (SETTLE_MS, settled_cb, r);
      return;
    }
  take_step (self, r);
}

/* ---- News ---- */

static void
take_tokens (QuireCompare *self, Runner *r, const qe_update *update)
{
  QuirePane *pane = r->pane;
  guint end = pane->tokens->len > 0
                  ? g_array_index (pane->tokens, QuireToken, pane->tokens->len - 1).end
                  : 0;

  g_string_append_len (pane->text, update->text, (gssize)update->n_text);
  /* No text view shows a NUL. */
  for (gsize i = pane->text->len - update->n_text; i < pane->text->len; i++)
    if (pane->text->str[i] == '\0')
      pane->text->str[i] = ' ';
  for (guint i = 0; i < update->n_ids; i++)
    {
      QuireToken token = { .id = update->ids[i] };
      gsize n_bytes = 0;

      if (!qe_tokenizer_is_special (self->tokenizer, token.id))
        qe_tokenizer_token_bytes (self->tokenizer, token.id, &n_bytes);
      end += (guint)n_bytes;
      token.end = end;
      if (update->logprobs != NULL)
        {
          const qe_token_logprobs *l = &update->logprobs[i];

          token.logprob = l->logprob;
          token.n_top = MIN (l->n_top, QUIRE_COMPARE_TOP);
          for (guint k = 0; k < token.n_top; k++)
            {
              const char *bytes
                  = qe_tokenizer_token_bytes (self->tokenizer, l->top[k].id, &n_bytes);

              quire_piece_set (token.top[k].text, bytes, n_bytes);
              token.top[k].logprob = l->top[k].logprob;
            }
        }
      g_array_append_val (pane->tokens, token);
    }
}

static void
take_update (QuireCompare *self, Runner *r, const qe_update *update)
{
  QuirePane *pane = r->pane;

  r->receipt = update->receipt;
  if (r->run == 0 && r->step == STEP_LAST)
    {
      if (update->state >= QE_REQUEST_DECODE)
        pane->state = QUIRE_PANE_STREAMING;
      pane->live_ms = update->receipt.first_token_ms;
      if (update->receipt.decode_tokens_per_s > 0)
        pane->live_ms_per_token = 1000 / update->receipt.decode_tokens_per_s;
      take_tokens (self, r, update);
    }
  if (pane->state == QUIRE_PANE_READING)
    {
      pane->n_done = update->n_prompt_done;
      pane->n_prompt = update->n_prompt;
    }
  if (update->state != QE_REQUEST_DONE)
    return;
  g_clear_pointer (&r->request, qe_request_unref);
  if (update->finish == QE_FINISH_ERROR)
    end_pane (self, r, QUIRE_PANE_FAILED, update->error != NULL ? update->error->message : "");
  else if (update->finish == QE_FINISH_CANCELLED)
    end_pane (self, r, QUIRE_PANE_STOPPED, NULL);
  else
    next_step (self, r);
}

static void
news_cb (QuireCompare *self)
{
  gboolean changed = FALSE;

  g_object_ref (self);
  for (guint i = 0; self->running && i < self->comparison->panes->len; i++)
    {
      Runner *r = &self->runners[i];
      qe_update update = { 0 };

      if (r->request == NULL)
        continue;
      if (qe_request_take (r->request, &update))
        {
          take_update (self, r, &update);
          changed = TRUE;
        }
      qe_update_clear (&update);
    }
  if (changed)
    g_signal_emit (self, signals[CHANGED], 0);
  g_object_unref (self);
}

static void
snapshot_cb (QuireCompare *self)
{
  g_object_ref (self);
  for (guint i = 0; self->running && i < self->comparison->panes->len; i++)
    {
      Runner *r = &self->runners[i];
      const qe_session_view *view = quire_engine_client_find_session (self->client, r->session);

      if (view == NULL || view->n_pages == 0)
        continue;
      for (guint tier = 0; tier < QE_N_TIERS; tier++)
        r->pane->peak[tier]
            = MAX (r->pane->peak[tier], view->bytes / view->n_pages * view->n_pages_tier[tier]);
      /* The last token drawn has no page yet. */
      if (r->settle_id != 0 && view->n_tokens + 1 >= r->receipt.n_prompt + r->receipt.n_generated)
        end_run (self, r);
    }
  g_object_unref (self);
}

static void
end_all (QuireCompare *self)
{
  if (!self->running)
    return;
  self->running = FALSE;
  for (guint i = 0; i < self->comparison->panes->len; i++)
    if (!quire_pane_is_over (self->runners[i].pane))
      end_pane (self, &self->runners[i], QUIRE_PANE_STOPPED, NULL);
  g_signal_emit (self, signals[CHANGED], 0);
  g_signal_emit (self, signals[OVER], 0);
}

/* The ids are void: nothing is there to be closed. */
static void
sessions_lost_cb (QuireCompare *self)
{
  for (guint i = 0; i < QUIRE_COMPARE_PANES_MAX; i++)
    self->runners[i].session = 0;
  end_all (self);
}

/* ---- Starting ---- */

static void
copy_prompt (QuireCompare *self, GArray *prompt)
{
  g_ptr_array_set_size (self->texts, 0);
  g_array_set_size (self->messages, 0);
  for (guint i = 0; i < prompt->len; i++)
    {
      qe_message message = g_array_index (prompt, qe_message, i);
      gsize n = message.n_bytes >= 0 ? (gsize)message.n_bytes : strlen (message.text);
      char *text = g_malloc (n + 1);

      memcpy (text, message.text, n);
      text[n] = '\0';
      g_ptr_array_add (self->texts, text);
      message.text = text;
      message.n_bytes = (gssize)n;
      g_array_append_val (self->messages, message);
    }
  self->n_system = g_array_index (self->messages, qe_message, 0).role == QE_ROLE_SYSTEM ? 1 : 0;
}

static void
describe (QuireCompare *self, const QuireCompareSetup *setup)
{
  const qe_engine_status *status = quire_engine_client_get_status (self->client);
  const qe_snapshot *snapshot = quire_engine_client_get_snapshot (self->client);
  QuireComparison *c = self->comparison = quire_comparison_new ();
  const qe_message *last = &g_array_index (self->messages, qe_message, self->messages->len - 1);

  c->title = g_strdup (setup->title);
  c->source = g_strdup (setup->source);
  c->prompt = g_utf8_make_valid (last->text, last->n_bytes);
  c->model_name = g_strdup (status->model->name);
  c->device = g_strdup (status->device);
  c->on_gpu = snapshot != NULL && snapshot->device.memory_total > 0;
  c->interleaved = setup->interleaved;
  c->temperature = self->settings.sampling.temperature;
  c->greedy = self->settings.sampling.temperature == 0;
  c->seed = self->settings.sampling.seed;
  c->n_timed = setup->n_timed;
  c->n_turns = (self->messages->len - self->n_system + 1) / 2;
  c->base_bytes = c->on_gpu ? snapshot->device.weights + snapshot->device.workspace
                            : status->model->weight_bytes;
}

static void
add_panes (QuireCompare *self, const QuireCompareSetup *setup)
{
  const qe_memory_plan *plan = quire_engine_client_get_plan (self->client);

  for (guint i = 0; i < setup->n_choices; i++)
    {
      QuirePane *pane = quire_comparison_add_pane (self->comparison, setup->choices[i]);
      QuireNeed need;

      self->runners[i] = (Runner){ .owner = self, .pane = pane };
      if (plan == NULL)
        continue;
      quire_compare_need (plan, setup->choices[i], setup->n_prompt + setup->n_timed, &need);
      if (need.fits)
        continue;
      pane->state = QUIRE_PANE_UNFIT;
      pane->needed = need.needed;
      pane->allowed = need.allowed;
    }
}

gboolean
quire_compare_start (QuireCompare *self, GArray *prompt, const QuireCompareSetup *setup)
{
  if (self->running || prompt->len == 0 || setup->n_choices > QUIRE_COMPARE_PANES_MAX
      || setup->n_choices == 0 || setup->n_timed == 0
      || !quire_engine_client_is_ready (self->client))
    return FALSE;

  g_clear_pointer (&self->comparison, quire_comparison_free);
  g_clear_pointer (&self->tokenizer, qe_tokenizer_unref);
  self->tokenizer = quire_engine_client_dup_tokenizer (self->client);
  if (self->tokenizer == NULL)
    return FALSE;
  copy_prompt (self, prompt);
  self->settings = setup->settings;
  if (!self->settings.sampling.has_seed)
    self->settings.sampling.seed = SEED_DEFAULT;
  self->settings.sampling.has_seed = true;
  describe (self, setup);
  add_panes (self, setup);
  self->running = TRUE;
  start_next (self);
  return TRUE;
}

void
quire_compare_stop (QuireCompare *self)
{
  end_all (self);
}

gboolean
quire_compare_is_running (QuireCompare *self)
{
  return self->running;
}

const QuireComparison *
quire_compare_get_comparison (QuireCompare *self)
{
  return self->comparison;
}

guint
quire_compare_get_n_sessions (QuireCompare *self)
{
  guint n = 0;

  for (guint i = 0; i < QUIRE_COMPARE_PANES_MAX; i++)
    n += self->runners[i].session != 0;
  return n;
}

/* ---- Object ---- */

static void
quire_compare_dispose (GObject *object)
{
  QuireCompare *self = QUIRE_COMPARE (object);

  self->running = FALSE;
  for (guint i = 0; self->client != NULL && i < QUIRE_COMPARE_PANES_MAX; i++)
    drop_session (self, &self->runners[i]);
  g_clear_object (&self->client);
  G_OBJECT_CLASS (quire_compare_parent_class)->dispose (object);
}

static void
quire_compare_finalize (GObject *object)
{
  QuireCompare *self = QUIRE_COMPARE (object);

  quire_comparison_free (self->comparison);
  qe_tokenizer_unref (self->tokenizer);
  g_ptr_array_unref (self->texts);
  g_array_unref (self->messages);
  G_OBJECT_CLASS (quire_compare_parent_class)->finalize (object);
}

static void
quire_compare_class_init (QuireCompareClass *klass)
{
  static const char *names[N_SIGNALS] = { "changed", "over" };

  G_OBJECT_CLASS (klass)->dispose = quire_compare_dispose;
  G_OBJECT_CLASS (klass)->finalize = quire_compare_finalize;
  for (int i = 0; i < N_SIGNALS; i++)
    signals[i] = g_signal_new (names[i], G_TYPE_FROM_CLASS (klass), G_SIGNAL_RUN_LAST, 0, NULL,
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
