/* cmd-bench-arrivals.c: `quire-cli bench arrivals`: requests that arrive at random, as from many people.
 *
 * Open loop: N requests arrive at times that are drawn before (Poisson: exponential gaps), whether the engine keeps up
 * or not. Each has a prompt of its own, of P pseudo-random ids, decodes T tokens greedily, and a session of its own that
 * is closed at its end. One thread submits on schedule and collects on wakeups.
 *
 *  1. Times are the client's, from the scheduled arrival, so that a client or engine that lags counts against itself:
 *     to the moment the first token, and the last, was in the client's hands.
 *  2. A request that the engine is too busy to take (its sessions are bounded) waits here, in order, and its time runs.
 *  3. The same seed gives the same arrivals and prompts.
 *
 * The highest rate: doubled from --rate until the p99 of the first token passes the bound, then bisected. A run that has
 * passed it for certain (more than 1% of N are late already) is ended at once; one without a failure or late request
 * runs whole. */
#include "app/cli/cli-bench.h"

#include <json-glib/json-glib.h>
#include <math.h>
#include <string.h>

#include "app/cli/cli-json.h"

#define REQUESTS_MAX 1000000
#define TOKENS_MAX 65536
#define RATE_MAX 1e5
#define IDLE_WAIT_US 50000
#define WARM_UP 4
#define RATE_SPREAD 1.03 /* the bisection ends with bounds this near */
#define TRIALS_MAX 24
#define SEED 20250703u

typedef struct
{
  CliEngineOptions engine;
  CliCacheOptions cache;
  int n, prompt, tokens;
  double rate, p99_ms, time_limit, held, not_held;
  gint64 seed;
  gboolean find_rate, json;
  char *resume; /* NULL: none */
} Options;

typedef enum
{
  WAITING, /* not arrived, or the engine was too busy */
  RUNNING,
  FINISHED,
  BROKEN,    /* refused, or ended other than by its length */
  ABANDONED, /* the run was ended before it */
} State;

typedef struct
{
  CliNews *news;
  gint rang; /* atomic: the engine has news of it */
  State state;
  gint64 due;         /* monotonic microseconds */
  gint64 first, last; /* 0: not yet */
  uint32_t n_reused;  /* prompt tokens that were not computed: none, or prompts are not distinct */
  qe_session_id session;
  qe_request *request;
} Call;

typedef struct
{
  double rate;
  double achieved; /* requests a second, from the first arrival to the last end */
  double first_p50, first_p95, first_p99, first_max, total_p50, total_p99, lag_max; /* ms */
  guint n_done, n_failed, n_late, in_flight_max;
  guint64 n_reused; /* of all prompts' tokens */
  gboolean cut;     /* ended early: the bound was passed for certain */
  double seconds;
} Trial;

typedef struct
{
  const Options *options;
  qe_cache_config cache;
  qe_engine *engine;
  qe_model_info *info;
  char *device; /* owned: backend and device */
  CliNews news;
  Call *calls; /* [n] */
  GArray *trials;
  GPtrArray *earlier;  /* char *: JSON of the trials of earlier searches */
  char *first_failure; /* owned */
} Arrivals;

static void
on_call_news (void *user)
{
  Call *call = user;

  g_atomic_int_set (&call->rang, 1);
  cli_news_ring (call->news);
}

/* The prompt of call @i of the trial that runs: drawn anew each time it is needed, the same each time. No two trials
 * have one in common: pages of the last would spare this one its computing. */
static void
fill_prompt (const Arrivals *a, guint i, GArray *ids)
{
  guint64 random = (guint64)a->options->seed * 1000003u + i + ((guint64)a->trials->len << 32);

  for (int k = 0; k < 4; k++) /* neighbours begin alike */
    cli_bench_random (&random);
  cli_bench_fill_ids (&random, a->info->vocab, ids, (guint)a->options->prompt);
}

static void
fail_call (Arrivals *a, Call *call, const char *why)
{
  call->state = BROKEN;
  if (a->first_failure == NULL)
    a->first_failure = g_strdup (why);
}

static void
drop_call (Arrivals *a, Call *call)
{
  g_clear_pointer (&call->request, qe_request_unref);
  if (call->session != 0)
    qe_engine_close_session (a->engine, call->session);
  call->session = 0;
}

/* FALSE: the engine takes no more now; the call stays WAITING. */
static gboolean
submit (Arrivals *a, guint i)
{
  g_autoptr (GArray) ids = g_array_new (FALSE, FALSE, sizeof (uint32_t));
  g_autoptr (GError) error = NULL;
  Call *call = &a->calls[i];
  qe_generate_params params;

  call->session = cli_open_session (a->engine, &a->cache, NULL, &error);
  if (call->session != 0)
    {
      fill_prompt (a, i, ids);
      cli_bench_params (a->info, call->session, ids, (uint32_t)a->options->tokens, &params);
      params.wakeup = on_call_news;
      params.wakeup_user = call;
      call->request = qe_engine_generate (a->engine, &params, &error);
    }
  if (call->request != NULL)
    {
      call->state = RUNNING;
      return TRUE;
    }
  drop_call (a, call);
  if (g_error_matches (error, QE_ERROR, QE_ERROR_BUSY))
    return FALSE;
  fail_call (a, call, error->message);
  return TRUE;
}

/* Takes what is new of @call. TRUE: it has ended. */
static gboolean
collect (Arrivals *a, Call *call)
{
  qe_update update = { 0 };
  gboolean ended = FALSE;

  g_atomic_int_set (&call->rang, 0);
  if (qe_request_take (call->request, &update))
    {
      gint64 now = g_get_monotonic_time ();

      if (update.n_ids > 0 && call->first == 0)
        call->first = now;
      if (update.n_ids > 0)
        call->last = now;
      ended = update.state == QE_REQUEST_DONE;
      call->n_reused = update.receipt.n_reused;
      if (ended && call->state == RUNNING && update.finish == QE_FINISH_LENGTH)
        call->state = FINISHED;
      else if (ended && call->state == RUNNING)
        fail_call (a, call,
                   update.error != NULL ? update.error->message : qe_finish_name (update.finish));
    }
  qe_update_clear (&update);
  if (ended)
    drop_call (a, call);
  return ended;
}

/* Ends all that still runs, so that no wakeup comes after the calls are gone. */
static void
abandon (Arrivals *a, const GArray *running)
{
  for (guint i = 0; i < running->len; i++)
    qe_request_cancel (a->calls[g_array_index (running, guint, i)].request);
  for (guint i = 0; i < running->len; i++)
    {
      Call *call = &a->calls[g_array_index (running, guint, i)];

      call->state = ABANDONED;
      while (!collect (a, call))
        qe_request_wait (call->request, IDLE_WAIT_US / 1000);
    }
}

static double
ms_since (gint64 from, gint64 to)
{
  return (double)(to - from) / 1000;
}

/* Late for certain: a first token that came late, or has not come and is late already. */
static guint
count_late (const Arrivals *a, guint n_arrived, gint64 now)
{
  guint n = 0;

  for (guint i = 0; i < n_arrived; i++)
    {
      const Call *c = &a->calls[i];

      n += c->state == BROKEN
           || ms_since (c->due, c->first > 0 ? c->first : now) > a->options->p99_ms;
    }
  return n;
}

static void
draw_arrivals (Arrivals *a, double rate, gint64 begin)
{
  guint64 random = (guint64)a->options->seed;
  double at = 0;

  for (int i = 0; i < a->options->n; i++)
    {
      Call *call = &a->calls[i];

      at += -log (cli_bench_uniform (&random)) / rate;
      call->state = WAITING;
      call->due = begin + (gint64)(at * G_USEC_PER_SEC);
      call->first = call->last = 0;
      call->n_reused = 0;
    }
}

/* From the first arrival until all have ended, or until the bound is passed and @may_cut. */
static void
serve (Arrivals *a, gboolean may_cut, Trial *t)
{
  g_autoptr (GArray) running = g_array_new (FALSE, FALSE, sizeof (guint));
  guint n = (guint)a->options->n, next = 0;
  gint64 next_count = 0;

  while ((next < n || running->len > 0) && !t->cut)
    {
      gint64 now = g_get_monotonic_time (), deadline = now + IDLE_WAIT_US;

      for (; next < n && a->calls[next].due <= now; next++)
        {
          if (!submit (a, next))
            break;
          t->lag_max = MAX (t->lag_max, ms_since (a->calls[next].due, g_get_monotonic_time ()));
          if (a->calls[next].state == RUNNING)
            g_array_append_val (running, next);
        }
      t->in_flight_max = MAX (t->in_flight_max, running->len);
      if (next < n && a->calls[next].due > now)
        deadline = MIN (deadline, a->calls[next].due);
      cli_news_wait (&a->news, deadline);
      for (guint i = 0; i < running->len;)
        {
          Call *call = &a->calls[g_array_index (running, guint, i)];

          if (g_atomic_int_get (&call->rang) && collect (a, call))
            g_array_remove_index_fast (running, i);
          else
            i++;
        }
      if (may_cut && now >= next_count)
        {
          t->cut = count_late (a, next, now) > n / 100;
          next_count = now + G_USEC_PER_SEC / 4;
        }
    }
  abandon (a, running);
}

static void
summarise (const Arrivals *a, gint64 begin, Trial *t)
{
  guint n = (guint)a->options->n;
  g_autofree double *first = g_new (double, n);
  g_autofree double *total = g_new (double, n);
  gint64 end = begin;

  for (guint i = 0; i < n; i++)
    {
      const Call *c = &a->calls[i];

      t->n_failed += c->state == BROKEN;
      t->n_reused += c->n_reused;
      if (c->state != FINISHED)
        continue;
      first[t->n_done] = ms_since (c->due, c->first);
      total[t->n_done] = ms_since (c->due, c->last);
      t->n_late += first[t->n_done] > a->options->p99_ms;
      t->n_done++;
      end = MAX (end, c->last);
    }
  t->first_p50 = cli_bench_percentile (first, t->n_done, 50);
  t->first_p95 = cli_bench_percentile (first, t->n_done, 95);
  t->first_p99 = cli_bench_percentile (first, t->n_done, 99);
  t->first_max = cli_bench_percentile (first, t->n_done, 100);
  t->total_p50 = cli_bench_percentile (total, t->n_done, 50);
  t->total_p99 = cli_bench_percentile (total, t->n_done, 99);
  t->achieved = end > a->calls[0].due ? t->n_done * 1000 / ms_since (a->calls[0].due, end) : 0;
}

static void
print_trial (const Trial *t)
{
  printf ("%9.2f %9.2f %10.2f %10.2f %10.2f %10.2f %10.2f %7u %7u%s\n", t->rate, t->achieved,
          t->first_p50, t->first_p95, t->first_p99, t->first_max, t->total_p99, t->in_flight_max,
          t->n_failed, t->cut ? "  ended early: the bound was passed" : "");
  fflush (stdout);
}

static const Trial *
run_trial (Arrivals *a, double rate, gboolean may_cut)
{
  Trial t = { .rate = rate };
  gint64 begin = g_get_monotonic_time ();

  draw_arrivals (a, rate, begin);
  serve (a, may_cut, &t);
  summarise (a, begin, &t);
  t.seconds = (double)(g_get_monotonic_time () - begin) / G_USEC_PER_SEC;
  g_array_append_val (a->trials, t);
  if (!a->options->json)
    print_trial (&t);
  return &g_array_index (a->trials, Trial, a->trials->len - 1);
}

/* Requests one after the other, so that no figure holds what is done once: graphs, the first pages of the pool. */
static gboolean
warm_up (Arrivals *a, GError **error)
{
  for (guint i = 0; i < WARM_UP; i++)
    {
      g_autoptr (GArray) ids = g_array_new (FALSE, FALSE, sizeof (uint32_t));
      g_autoptr (qe_request) request = NULL;
      qe_session_id session = cli_open_session (a->engine, &a->cache, NULL, error);
      qe_generate_params params;
      CliReply reply = { 0 };

      if (session == 0)
        return FALSE;
      fill_prompt (a, REQUESTS_MAX + i, ids);
      cli_bench_params (a->info, session, ids, (uint32_t)a->options->tokens, &params);
      request = qe_engine_generate (a->engine, &params, error);
      if (request != NULL)
        cli_reply_run (&reply, request, NULL);
      qe_engine_close_session (a->engine, session);
      if (request != NULL && reply.finish == QE_FINISH_ERROR)
        g_propagate_error (error, g_steal_pointer (&reply.error));
      if (request == NULL || reply.finish != QE_FINISH_LENGTH)
        {
          if (error != NULL && *error == NULL)
            g_set_error (error, QE_ERROR, QE_ERROR_FAILED, "the warm-up ended early (%s)",
                         qe_finish_name (reply.finish));
          cli_reply_clear (&reply);
          return FALSE;
        }
      cli_reply_clear (&reply);
    }
  return TRUE;
}

static gboolean
is_good (const Arrivals *a, const Trial *t)
{
  return !t->cut && t->n_failed == 0 && t->first_p99 <= a->options->p99_ms;
}

static void
append_trial (GString *json, const Trial *t)
{
  const struct
  {
    const char *name;
    double value;
  } figures[] = { { "rate", t->rate },
                  { "achieved_per_s", t->achieved },
                  { "first_token_p50_ms", t->first_p50 },
                  { "first_token_p95_ms", t->first_p95 },
                  { "first_token_p99_ms", t->first_p99 },
                  { "first_token_max_ms", t->first_max },
                  { "total_p50_ms", t->total_p50 },
                  { "total_p99_ms", t->total_p99 },
                  { "submit_lag_max_ms", t->lag_max },
                  { "seconds", t->seconds } };

  for (gsize i = 0; i < G_N_ELEMENTS (figures); i++)
    {
      g_string_append_printf (json, "%s\"%s\": ", i > 0 ? ", " : "{", figures[i].name);
      quire_json_add_number (json, figures[i].value, 3);
    }
  g_string_append_printf (json,
                          ", \"done\": %u, \"failed\": %u, \"late\": %u, \"in_flight_max\": %u, "
                          "\"reused\": %" G_GUINT64_FORMAT ", \"ended_early\": %s}",
                          t->n_done, t->n_failed, t->n_late, t->in_flight_max, t->n_reused,
                          t->cut ? "true" : "false");
}

static char *
form_json (const Arrivals *a, double low, double high)
{
  const Options *o = a->options;
  g_autoptr (GString) json = g_string_new ("{\"model\": ");

  quire_json_add_string (json, a->info->name, -1);
  g_string_append (json, ", \"device\": ");
  quire_json_add_string (json, a->device, -1);
  g_string_append_printf (json,
                          ", \"mode\": \"%s\", \"n\": %d, \"prompt\": %d, \"gen\": %d, \"seed\": "
                          "%" G_GINT64_FORMAT ", \"trials\": [",
                          qe_cache_mode_name (a->cache.mode), o->n, o->prompt, o->tokens, o->seed);
  for (guint i = 0; i < a->earlier->len; i++)
    g_string_append_printf (json, "%s%s", i > 0 ? ",\n " : "\n ", (char *)a->earlier->pdata[i]);
  for (guint i = 0; i < a->trials->len; i++)
    {
      g_string_append (json, i + a->earlier->len > 0 ? ",\n " : "\n ");
      append_trial (json, &g_array_index (a->trials, Trial, i));
    }
  g_string_append_c (json, ']');
  if (o->find_rate)
    {
      g_string_append (json, ", \"bound_p99_ms\": ");
      quire_json_add_number (json, o->p99_ms, 3);
      g_string_append (json, ", \"rate_held\": ");
      quire_json_add_number (json, low > 0 ? low : NAN, 3);
      g_string_append (json, ", \"rate_not_held\": ");
      quire_json_add_number (json, high > 0 ? high : NAN, 3);
    }
  g_string_append (json, ", \"first_failure\": ");
  if (a->first_failure != NULL)
    quire_json_add_string (json, a->first_failure, -1);
  else
    g_string_append (json, "null");
  g_string_append_c (json, '}');
  return g_string_free (g_steal_pointer (&json), FALSE);
}

/* ---- A search that is gone on with ---- */

/* What the search has found so far, after each trial: a cut run loses none that was whole. */
static gboolean
save (const Arrivals *a, double low, double high, GError **error)
{
  g_autofree char *json = NULL;

  if (a->options->resume == NULL)
    return TRUE;
  json = form_json (a, low, high);
  return g_file_set_contents (a->options->resume, json, -1, error);
}

static gboolean
refuse_file (const char *path, const char *what, GError **error)
{
  g_set_error (error, QE_ERROR, QE_ERROR_FORMAT,
               "%s: %s: expected what a search with these options wrote", path, what);
  return FALSE;
}

/* Whether @object's number @name is @value; with @out it is any number or null (0). */
static gboolean
take_number (JsonObject *object, const char *name, double value, double *out)
{
  JsonNode *node = json_object_get_member (object, name);
  gboolean is_null = node != NULL && json_node_get_node_type (node) == JSON_NODE_NULL;
  GType type = node != NULL && !is_null && json_node_get_node_type (node) == JSON_NODE_VALUE
                   ? json_node_get_value_type (node)
                   : G_TYPE_INVALID;
  double found = type == G_TYPE_INT64 || type == G_TYPE_DOUBLE ? json_node_get_double (node) : -1;

  if (out == NULL)
    return fabs (found - value) < 1e-3;
  *out = is_null ? 0 : found;
  return is_null || (found > 0 && found <= RATE_MAX);
}

/* @object's text @name; NULL: it has none. */
static const char *
get_text (JsonObject *object, const char *name)
{
  JsonNode *node = json_object_get_member (object, name);
  gboolean is_text = node != NULL && json_node_get_node_type (node) == JSON_NODE_VALUE
                     && json_node_get_value_type (node) == G_TYPE_STRING;

  return is_text ? json_node_get_string (node) : NULL;
}

/* The bounds and trials of earlier searches, when the file is there. */
static gboolean
load (Arrivals *a, double *low, double *high, GError **error)
{
  const Options *o = a->options;
  g_autoptr (JsonParser) parser = json_parser_new ();
  JsonNode *root, *trials;
  JsonObject *object;
  JsonArray *array;
  const char *device;

  if (o->resume == NULL || !g_file_test (o->resume, G_FILE_TEST_EXISTS))
    return TRUE;
  if (!json_parser_load_from_file (parser, o->resume, error))
    return FALSE;
  root = json_parser_get_root (parser);
  if (root == NULL || json_node_get_node_type (root) != JSON_NODE_OBJECT)
    return refuse_file (o->resume, "the file", error);
  object = json_node_get_object (root);
  if (g_strcmp0 (get_text (object, "model"), a->info->name) != 0
      || g_strcmp0 (get_text (object, "mode"), qe_cache_mode_name (a->cache.mode)) != 0)
    return refuse_file (o->resume, "model, mode", error);
  device = get_text (object, "device");
  if (g_strcmp0 (device, a->device) != 0)
    {
      g_set_error (error, QE_ERROR, QE_ERROR_FORMAT,
                   "%s: device: the search was made on %s, and this is %s; "
                   "rates of two devices do not stand in one search",
                   o->resume, device != NULL ? device : "a device that it does not name",
                   a->device);
      return FALSE;
    }
  if (!take_number (object, "n", o->n, NULL) || !take_number (object, "prompt", o->prompt, NULL)
      || !take_number (object, "gen", o->tokens, NULL)
      || !take_number (object, "seed", (double)o->seed, NULL)
      || !take_number (object, "bound_p99_ms", o->p99_ms, NULL))
    return refuse_file (o->resume, "n, prompt, gen, seed, bound_p99_ms", error);
  if (!take_number (object, "rate_held", 0, low) || !take_number (object, "rate_not_held", 0, high)
      || (*high > 0 && *high <= *low))
    return refuse_file (o->resume, "rate_held, rate_not_held", error);
  trials = json_object_get_member (object, "trials");
  if (trials == NULL || json_node_get_node_type (trials) != JSON_NODE_ARRAY)
    return refuse_file (o->resume, "trials", error);
  array = json_node_get_array (trials);
  for (guint i = 0; i < json_array_get_length (array); i++)
    g_ptr_array_add (a->earlier, json_to_string (json_array_get_element (array, i), FALSE));
  return TRUE;
}

/* Goes on from what --held and --not-held say of an earlier search. @low: the highest rate that held; 0: none did.
 * @high: the lowest that did not; 0: all held. */
static gboolean
find_rate (Arrivals *a, double *low, double *high, GError **error)
{
  const Options *o = a->options;
  gint64 begin = g_get_monotonic_time ();
  double rate = o->rate, longest = 0;

  *low = o->held;
  *high = o->not_held;
  if (!load (a, low, high, error))
    return FALSE;
  if (*low > 0 || *high > 0)
    rate = *high == 0 ? 2 * *low : *low == 0 ? *high / 2 : sqrt (*low * *high);
  for (int i = 0; i < TRIALS_MAX && (*low == 0 || *high == 0 || *high / *low > RATE_SPREAD); i++)
    {
      double elapsed = (double)(g_get_monotonic_time () - begin) / G_USEC_PER_SEC;
      const Trial *t;

      if (rate > RATE_MAX || rate < 1.0 / RATE_MAX
          || (o->time_limit > 0 && elapsed + longest > o->time_limit))
        return TRUE;
      t = run_trial (a, rate, TRUE);
      longest = MAX (longest, t->seconds);
      if (is_good (a, t))
        *low = rate;
      else
        *high = rate;
      if (!save (a, *low, *high, error))
        return FALSE;
      rate = *high == 0 ? 2 * *low : *low == 0 ? *high / 2 : sqrt (*low * *high);
    }
  return TRUE;
}

static void
print_found (const Arrivals *a, double low, double high)
{
  printf ("p99 of the first token within %g ms: ", a->options->p99_ms);
  if (low > 0)
    printf ("up to %.2f a second", low);
  else
    printf ("at no rate tried");
  if (high > 0)
    printf (", no more at %.2f", high);
  putchar ('\n');
  if (high > 0 && low > 0 && high / low <= RATE_SPREAD)
    return;
  if (a->options->resume != NULL)
    printf ("Not found to %.0f%% yet. Go on with the same command.\n", 100 * (RATE_SPREAD - 1));
  else
    {
      printf ("Not found to %.0f%% yet. Go on with the same command", 100 * (RATE_SPREAD - 1));
      if (low > 0)
        printf (" and --held %g", low);
      if (high > 0)
        printf ("%s --not-held %g", low > 0 ? "" : " and", high);
      puts (".");
    }
}

static gboolean
check_numbers (const Options *o, int *status)
{
  if (o->n < 1 || o->n > REQUESTS_MAX)
    *status = cli_fail (CLI_USAGE, "--n: expected 1 to %d, found “%d”", REQUESTS_MAX, o->n);
  else if (o->prompt < 1 || o->prompt > TOKENS_MAX)
    *status = cli_fail (CLI_USAGE, "--prompt: expected 1 to %d, found “%d”", TOKENS_MAX, o->prompt);
  else if (o->tokens < 1 || o->tokens > TOKENS_MAX)
    *status = cli_fail (CLI_USAGE, "--tokens: expected 1 to %d, found “%d”", TOKENS_MAX, o->tokens);
  else if (!(o->rate > 0 && o->rate <= RATE_MAX))
    *status = cli_fail (CLI_USAGE, "--rate: expected requests a second up to %g, found “%g”",
                        RATE_MAX, o->rate);
  else if (!(o->p99_ms > 0 && o->p99_ms <= 1e9))
    *status = cli_fail (CLI_USAGE, "--p99: expected milliseconds above 0, found “%g”", o->p99_ms);
  else if (!(o->time_limit >= 0 && o->time_limit <= 1e9))
    *status = cli_fail (CLI_USAGE, "--time-limit: expected seconds from 0 (none), found “%g”",
                        o->time_limit);
  else if (o->time_limit > 0 && !o->find_rate)
    *status = cli_fail (CLI_USAGE, "--time-limit: expected --find-rate with it, found “%g” alone",
                        o->time_limit);
  else if (!(o->held >= 0 && o->held <= RATE_MAX) || !(o->not_held >= 0 && o->not_held <= RATE_MAX)
           || (o->not_held > 0 && o->not_held <= o->held))
    *status = cli_fail (CLI_USAGE,
                        "--held, --not-held: expected rates up to %g, the second above the first, "
                        "found “%g” and “%g”",
                        RATE_MAX, o->held, o->not_held);
  else if ((o->held > 0 || o->not_held > 0) && !o->find_rate)
    *status = cli_fail (CLI_USAGE, "--held, --not-held: expected --find-rate with them");
  else if (o->resume != NULL && (!o->find_rate || o->held > 0 || o->not_held > 0))
    *status = cli_fail (
        CLI_USAGE, "--resume: expected --find-rate with it, and neither --held nor --not-held");
  else if (o->seed < 0)
    *status
        = cli_fail (CLI_USAGE, "--seed: expected 0 or more, found “%" G_GINT64_FORMAT "”", o->seed);
  else
    return TRUE;
  return FALSE;
}

static int
run (const Options *o)
{
  g_autoptr (GError) error = NULL;
  qe_engine_status state;
  Arrivals a = { .options = o };
  double low = 0, high = 0;
  int status = CLI_OK;

  if (!check_numbers (o, &status))
    return status;
  if (!cli_cache_options_apply (&o->cache, &a.cache, &error))
    return cli_fail (CLI_USAGE, "%s", error->message);
  a.engine = cli_engine_start (&o->engine, 0, &a.info, &status);
  if (a.engine == NULL)
    return status;
  qe_engine_get_status (a.engine, &state);
  a.device = g_strdup_printf ("%s, %s", state.backend, state.device);
  qe_engine_status_clear (&state);
  cli_news_init (&a.news);
  a.calls = g_new0 (Call, (gsize)o->n);
  for (int i = 0; i < o->n; i++)
    a.calls[i].news = &a.news;
  a.trials = g_array_new (FALSE, FALSE, sizeof (Trial));
  a.earlier = g_ptr_array_new_with_free_func (g_free);
  if (!warm_up (&a, &error))
    status = cli_fail (CLI_FAILED, "%s", error->message);
  else
    {
      if (!o->json)
        printf ("%s: %d requests of %d tokens in, %d out; milliseconds from the scheduled arrival\n"
                "%9s %9s %10s %10s %10s %10s %10s %7s %7s\n",
                a.info->name, o->n, o->prompt, o->tokens, "a second", "achieved", "first p50",
                "first p95", "first p99", "first max", "total p99", "at once", "failed");
      if (o->find_rate)
        {
          if (!find_rate (&a, &low, &high, &error))
            status = cli_fail (CLI_FAILED, "%s", error->message);
        }
      else if (run_trial (&a, o->rate, FALSE)->n_failed > 0)
        status = CLI_FAILED;
      if (o->json)
        {
          g_autofree char *json = form_json (&a, low, high);

          puts (json);
        }
      else if (o->find_rate)
        print_found (&a, low, high);
      if (a.first_failure != NULL && !o->find_rate)
        cli_fail (CLI_FAILED, "a request failed: %s", a.first_failure);
    }
  qe_engine_free (a.engine); /* before the calls: no wakeup comes after */
  qe_model_info_free (a.info);
  cli_news_clear (&a.news);
  g_array_unref (a.trials);
  g_ptr_array_unref (a.earlier);
  g_free (a.calls);
  g_free (a.first_failure);
  g_free (a.device);
  return status;
}

int
cli_bench_arrivals (int argc, char **argv)
{
  Options o = { .n = 2000, .prompt = 128, .tokens = 64, .rate = 22, .p99_ms = 300, .seed = SEED };
  GOptionEntry entries[] = {
    { "n", 0, 0, G_OPTION_ARG_INT, &o.n, "Requests (default: 2000)", "N" },
    { "rate", 0, 0, G_OPTION_ARG_DOUBLE, &o.rate, "Arrivals a second (default: 22)", "R" },
    { "prompt", 'p', 0, G_OPTION_ARG_INT, &o.prompt, "Tokens of a prompt (default: 128)", "N" },
    { "tokens", 0, 0, G_OPTION_ARG_INT, &o.tokens, "Tokens decoded (default: 64)", "N" },
    { "seed", 0, 0, G_OPTION_ARG_INT64, &o.seed, "Of arrivals and prompts (default: 20250703)",
      "N" },
    { "find-rate", 0, 0, G_OPTION_ARG_NONE, &o.find_rate,
      "Search the highest rate within --p99, from --rate on", NULL },
    { "p99", 0, 0, G_OPTION_ARG_DOUBLE, &o.p99_ms, "Bound of the first token's p99 (default: 300)",
      "MS" },
    { "time-limit", 0, 0, G_OPTION_ARG_DOUBLE, &o.time_limit,
      "With --find-rate: begin no run that would end after so many seconds (default: no limit)",
      "SECONDS" },
    { "held", 0, 0, G_OPTION_ARG_DOUBLE, &o.held,
      "With --find-rate: a rate that an earlier search found to hold", "R" },
    { "not-held", 0, 0, G_OPTION_ARG_DOUBLE, &o.not_held, "And one that it found not to hold",
      "R" },
    { "resume", 0, 0, G_OPTION_ARG_FILENAME, &o.resume,
      "With --find-rate: keep what each run finds in FILE, and go on from what it has", "FILE" },
    { "json", 0, 0, G_OPTION_ARG_NONE, &o.json, "Print one JSON object", NULL },
    { NULL },
  };
  GOptionContext *context = g_option_context_new ("- requests that arrive at random");
  int status;

  g_option_context_add_main_entries (context, entries, NULL);
  g_option_context_add_group (context, cli_cache_options_group (&o.cache));
  g_option_context_add_group (context, cli_engine_options_group (&o.engine));
  if (cli_parse_options (context, argc, argv, "bench arrivals", &status))
    status = run (&o);
  cli_cache_options_clear (&o.cache);
  cli_engine_options_clear (&o.engine);
  g_free (o.resume);
  return status;
}
