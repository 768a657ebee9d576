/* cmd-bench.c: `quire-cli bench`: first token, decode speed, memory, against the machine's measured ceilings.
 *
 * For each depth D a session is filled with D tokens; then a prompt of P new tokens is timed to its first token, and G
 * tokens are decoded greedily with end tokens ignored. Turns: one conversation of T turns of P + G tokens on the
 * session of the first depth. Cold: a prompt of N tokens in a fresh session, to its first token. End to end: the wall
 * time of a prompt of P tokens and N tokens after it, greedy and, with a temperature, sampled too. Batch: N sessions of
 * one depth decode at the same time; tokens a second of wall time from the first token to the last. Load: from the call
 * to ready, the first time (which opens the device too) and again (the files are in the page cache, the device open).
 *
 * With --fill synthetic the D tokens, and those before a batch, are random pages instead of computed ones.
 *
 * Token ids are pseudo-random and fixed, so that runs compare. Each figure is the median of the repetitions. Bytes a
 * decoded token reads: the weights (a tied embedding once, an untied one's row not counted) and the KV before it. */
#include "app/cli/cli-bench.h"

#include <errno.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include "app/cli/cli-json.h"

#define REPEATS_MAX 100
#define BATCH_MAX 256 /* the engine's sessions */
#define BATCH_WAIT_US 20000
#define REST_LOOKS 5 /* that find the same */
#define REST_LOOKS_MAX 300
#define REST_LOOK_US 100000

typedef struct
{
  CliEngineOptions engine;
  CliCacheOptions cache;
  char *depths, *cold, *batches, *fill, *ballast, *limit;
  int prompt, gen, turns, repeats, e2e, batch_depth, step_rows;
  double temperature, top_p;
  gboolean json, reload;
} Options;

typedef struct
{
  const Options *options;
  qe_cache_config cache;
  qe_engine *engine;
  qe_model_info *info;
  double read_bytes_per_s, flops;
  double load_s, reload_s;   /* reload_s 0: not measured */
  guint64 kv_bytes_reserved; /* at the end */
  qe_device_view device;     /* at the end; of a card only */
  guint64 device_beyond;     /* what it holds there beyond the weights and the KV pages */
  guint64 random;
  qe_ballast *ballast; /* NULL: none */
  gboolean synthetic;  /* what comes before a measurement is filled, not computed */
} Bench;

typedef struct
{
  double first_token_ms, prefill_tokens_per_s, ms_per_token, wall_ms;
  uint32_t n_reused, n_new, n_on_host;
} Figures;

static void
fill_random (Bench *bench, GArray *ids, guint n)
{
  cli_bench_fill_ids (&bench->random, bench->info->vocab, ids, n);
}

static void
fill_params (const Bench *bench, qe_session_id session, const GArray *ids, uint32_t n_gen,
             gboolean sampled, qe_generate_params *params)
{
  cli_bench_params (bench->info, session, ids, n_gen, params);
  if (sampled)
    {
      params->sampling.temperature = bench->options->temperature;
      params->sampling.top_p = bench->options->top_p;
      params->sampling.seed = 1;
      params->sampling.has_seed = true;
    }
}

/* Host memory for what has been computed is made and registered in the background, and a driver that registers holds
 * launches back: what is timed begins when that has come to rest, as it has for a person who reads the reply before. */
static void
let_rest (Bench *bench)
{
  guint64 before = G_MAXUINT64;

  for (guint n_same = 0, i = 0; n_same < REST_LOOKS && i < REST_LOOKS_MAX; i++)
    {
      const qe_snapshot *snapshot = qe_engine_dup_snapshot (bench->engine);
      guint64 reserved = snapshot->tiers[QE_TIER_HOST].bytes_reserved;
      gboolean on_card = snapshot->device.weights > 0;

      qe_snapshot_unref (snapshot);
      if (!on_card)
        return;
      n_same = reserved == before ? n_same + 1 : 0;
      before = reserved;
      g_usleep (REST_LOOK_US);
    }
}

/* One request over the exact @ids. The reply's ids are appended. */
static gboolean
run_request (Bench *bench, qe_session_id session, GArray *ids, uint32_t n_gen, gboolean sampled,
             Figures *out, GError **error)
{
  g_autoptr (qe_request) request = NULL;
  qe_generate_params params;
  CliReply reply = { 0 };
  gint64 begin = g_get_monotonic_time ();
  gboolean ok;

  fill_params (bench, session, ids, n_gen, sampled, &params);
  request = qe_engine_generate (bench->engine, &params, error);
  if (request == NULL)
    return FALSE;
  cli_reply_run (&reply, request, NULL);
  out->wall_ms = (double)(g_get_monotonic_time () - begin) / 1000;
  ok = reply.finish == QE_FINISH_LENGTH;
  if (ok)
    {
      g_array_append_vals (ids, reply.ids->data, reply.ids->len);
      out->first_token_ms = reply.receipt.first_token_ms;
      out->prefill_tokens_per_s = reply.receipt.prefill_tokens_per_s;
      out->ms_per_token
          = reply.receipt.decode_tokens_per_s > 0 ? 1000 / reply.receipt.decode_tokens_per_s : 0;
      out->n_reused = reply.receipt.n_reused;
      out->n_new = reply.receipt.n_new;
      out->n_on_host = reply.receipt.n_on_host;
    }
  else if (reply.error != NULL)
    g_propagate_error (error, g_steal_pointer (&reply.error));
  else
    g_set_error (error, QE_ERROR, QE_ERROR_CANCELLED, "the run ended early (%s)",
                 qe_finish_name (reply.finish));
  cli_reply_clear (&reply);
  return ok;
}

/* Prompt and decode at @depth cached tokens, in a fresh session each time. */
static gboolean
run_depth (Bench *bench, uint32_t depth, Figures *out, GError **error)
{
  const Options *o = bench->options;
  double first[REPEATS_MAX], prefill[REPEATS_MAX], decode[REPEATS_MAX];

  for (int i = 0; i < o->repeats; i++)
    {
      g_autoptr (GArray) ids = g_array_new (FALSE, FALSE, sizeof (uint32_t));
      qe_session_id session = cli_bench_open_session (bench->engine, &bench->cache,
                                                      bench->synthetic && depth > 0, error);
      Figures f = { 0 };
      gboolean ok = session != 0;

      if (ok && depth > 0)
        {

          /* The fill's last token is its one generated token, so that exactly depth tokens come before the prompt. */
          fill_random (bench, ids, MAX (depth, 2) - 1);
          ok = run_request (bench, session, ids, 1, FALSE, &f, error);
        }
      fill_random (bench, ids, (guint)o->prompt);
      let_rest (bench);
      ok = ok && run_request (bench, session, ids, (uint32_t)o->gen, FALSE, &f, error);
      if (session != 0)
        qe_engine_close_session (bench->engine, session);
      if (!ok)
        return FALSE;
      first[i] = f.first_token_ms;
      prefill[i] = f.prefill_tokens_per_s;
      decode[i] = f.ms_per_token;
      *out = f;
    }
  out->first_token_ms = cli_bench_median (first, o->repeats);
  out->prefill_tokens_per_s = cli_bench_median (prefill, o->repeats);
  out->ms_per_token = cli_bench_median (decode, o->repeats);
  return TRUE;
}

static double
decode_bytes (const Bench *bench, uint32_t depth)
{
  const qe_model_info *m = bench->info;
  guint64 untied = m->tied_embeddings ? 0 : (guint64)m->vocab * m->hidden * 2;
  guint64 kv = m->kv_bytes_per_token
               * (depth + (guint64)bench->options->prompt + (guint64)bench->options->gen / 2);

  if (bench->options->engine.kv != NULL && g_str_equal (bench->options->engine.kv, "f32"))
    kv *= 2;
  return (double)(m->weight_bytes - untied + kv);
}

static void
report_depth (const Bench *bench, uint32_t depth, const Figures *f, gboolean first, GString *json)
{
  double weights_per_s
      = f->ms_per_token > 0 ? decode_bytes (bench, depth) / (f->ms_per_token / 1000) : 0;
  double share = bench->read_bytes_per_s > 0 ? weights_per_s / bench->read_bytes_per_s : 0;
  const qe_model_info *m = bench->info;
  gboolean filled = bench->synthetic && depth > 0;
  g_autofree char *on_host = f->n_on_host > 0
                                 ? g_strdup_printf ("  %u tokens on the host", f->n_on_host)
                                 : g_strdup ("");
  /* Of a prompt token: every weight but the embedding, which is looked up, and the output layer, which the last token
   * alone goes through. Attention is not counted. */
  guint64 n_outside = (guint64)m->vocab * m->hidden * (m->tied_embeddings ? 1 : 2);
  double flops = f->prefill_tokens_per_s * 2 * (double)(m->n_params - n_outside);

  if (!bench->options->json)
    printf ("depth %6u%s  first token %9.2f ms  prefill %8.1f tok/s (%4.0f%% of FMA peak)  decode "
            "%8.3f ms/token  "
            "%7.1f tok/s  %6.2f GB/s (%3.0f%%)%s\n",
            depth, filled ? " synthetic" : "", f->first_token_ms, f->prefill_tokens_per_s,
            bench->flops > 0 ? 100 * flops / bench->flops : 0, f->ms_per_token,
            f->ms_per_token > 0 ? 1000 / f->ms_per_token : 0, weights_per_s / 1e9, 100 * share,
            on_host);
  fflush (stdout);
  g_string_append_printf (
      json,
      "%s{\"depth\": %u, \"synthetic\": %s, \"on_host\": %u, \"prompt\": {\"n\": "
      "%d, \"ttft_ms\": ",
      first ? "" : ", ", depth, filled ? "true" : "false", f->n_on_host, bench->options->prompt);
  quire_json_add_number (json, f->first_token_ms, 3);
  g_string_append (json, ", \"tokens_per_s\": ");
  quire_json_add_number (json, f->prefill_tokens_per_s, 2);
  g_string_append_printf (json,
                          "}, \"decode\": {\"n\": %d, \"ms_per_token\": ", bench->options->gen);
  quire_json_add_number (json, f->ms_per_token, 4);
  g_string_append (json, ", \"tokens_per_s\": ");
  quire_json_add_number (json, f->ms_per_token > 0 ? 1000 / f->ms_per_token : 0, 2);
  g_string_append (json, ", \"gb_per_s\": ");
  quire_json_add_number (json, weights_per_s / 1e9, 3);
  g_string_append (json, ", \"bandwidth_share\": ");
  quire_json_add_number (json, share, 4);
  g_string_append (json, "}}");
}

static gboolean
run_turns (Bench *bench, GString *json, GError **error)
{
  const Options *o = bench->options;
  g_autoptr (GArray) ids = g_array_new (FALSE, FALSE, sizeof (uint32_t));
  qe_session_id session = cli_open_session (bench->engine, &bench->cache, NULL, error);
  gboolean ok = session != 0;

  g_string_append (json, ", \"turns\": [");
  for (int i = 0; i < o->turns && ok; i++)
    {
      Figures f = { 0 };

      fill_random (bench, ids, (guint)o->prompt);
      ok = run_request (bench, session, ids, (uint32_t)o->gen, FALSE, &f, error);
      if (!ok)
        break;
      if (!o->json)
        printf ("turn %3d  first token %9.2f ms  %u new, %u reused\n", i + 1, f.first_token_ms,
                f.n_new, f.n_reused);
      g_string_append_printf (json,
                              "%s{\"new\": %u, \"reused\": %u, \"ttft_ms\": ", i > 0 ? ", " : "",
                              f.n_new, f.n_reused);
      quire_json_add_number (json, f.first_token_ms, 3);
      g_string_append_c (json, '}');
    }
  g_string_append_c (json, ']');
  if (session != 0)
    qe_engine_close_session (bench->engine, session);
  return ok;
}

/* A prompt of @n_prompt tokens and @n_gen after it, each time in a fresh session. */
static gboolean
run_fresh (Bench *bench, uint32_t n_prompt, uint32_t n_gen, gboolean sampled, Figures *out,
           GError **error)
{
  double first[REPEATS_MAX], wall[REPEATS_MAX];

  for (int i = 0; i < bench->options->repeats; i++)
    {
      g_autoptr (GArray) ids = g_array_new (FALSE, FALSE, sizeof (uint32_t));
      qe_session_id session = cli_open_session (bench->engine, &bench->cache, NULL, error);
      gboolean ok;

      if (session == 0)
        return FALSE;
      fill_random (bench, ids, n_prompt);
      let_rest (bench);
      ok = run_request (bench, session, ids, n_gen, sampled, out, error);
      qe_engine_close_session (bench->engine, session);
      if (!ok)
        return FALSE;
      first[i] = out->first_token_ms;
      wall[i] = out->wall_ms;
    }
  out->first_token_ms = cli_bench_median (first, bench->options->repeats);
  out->wall_ms = cli_bench_median (wall, bench->options->repeats);
  return TRUE;
}

static gboolean
run_cold (Bench *bench, GString *json, GError **error)
{
  g_autoptr (GArray) list = g_array_new (FALSE, FALSE, sizeof (uint32_t));

  if (!cli_bench_parse_list ("--cold", bench->options->cold, 1, bench->info->context_max - 1, list,
                             error))
    return FALSE;
  g_string_append (json, ", \"cold\": [");
  for (guint i = 0; i < list->len; i++)
    {
      uint32_t n = g_array_index (list, uint32_t, i);
      Figures f = { 0 };

      if (!run_fresh (bench, n, 1, FALSE, &f, error))
        return FALSE;
      if (!bench->options->json)
        printf ("cold prompt of %6u  first token %9.2f ms\n", n, f.first_token_ms);
      g_string_append_printf (json, "%s{\"n\": %u, \"ttft_ms\": ", i > 0 ? ", " : "", n);
      quire_json_add_number (json, f.first_token_ms, 3);
      g_string_append_c (json, '}');
    }
  g_string_append_c (json, ']');
  return TRUE;
}

static gboolean
run_end_to_end (Bench *bench, GString *json, GError **error)
{
  const Options *o = bench->options;

  g_string_append (json, ", \"e2e\": [");
  for (int sampled = 0; sampled <= (o->temperature > 0); sampled++)
    {
      Figures f = { 0 };

      if (!run_fresh (bench, (uint32_t)o->prompt, (uint32_t)o->e2e, sampled, &f, error))
        return FALSE;
      if (!o->json)
        printf ("%d tokens after a prompt of %d, %s  %9.2f ms\n", o->e2e, o->prompt,
                sampled ? "sampled" : "greedy ", f.wall_ms);
      g_string_append_printf (json, "%s{\"prompt\": %d, \"gen\": %d, \"temperature\": ",
                              sampled ? ", " : "", o->prompt, o->e2e);
      quire_json_add_number (json, sampled ? o->temperature : 0, 3);
      g_string_append (json, ", \"top_p\": ");
      quire_json_add_number (json, sampled ? o->top_p : 1, 3);
      g_string_append (json, ", \"ms\": ");
      quire_json_add_number (json, f.wall_ms, 3);
      g_string_append (json, ", \"ms_per_token\": ");
      quire_json_add_number (json, f.ms_per_token, 4);
      g_string_append_c (json, '}');
    }
  g_string_append_c (json, ']');
  return TRUE;
}

/* ---- Several sessions at once ---- */

/* Takes from all until all are done. @out: tokens after those that came with the first news, and their seconds. */
static gboolean
follow_batch (qe_request **requests, guint n, CliNews *news, guint64 *n_tokens, double *seconds,
              GError **error)
{
  gboolean done[BATCH_MAX] = { FALSE };
  gint64 first = 0, last = 0;
  guint n_done = 0;

  *n_tokens = 0;
  while (n_done < n)
    {
      cli_news_wait (news, g_get_monotonic_time () + BATCH_WAIT_US);
      for (guint i = 0; i < n; i++)
        {
          qe_update update = { 0 };

          if (!done[i] && qe_request_take (requests[i], &update))
            {
              *n_tokens += update.n_ids;
              done[i] = update.state == QE_REQUEST_DONE;
              n_done += done[i];
              if (done[i] && update.finish != QE_FINISH_LENGTH && *error == NULL)
                g_set_error (error, QE_ERROR, QE_ERROR_FAILED, "a session of the batch ended: %s",
                             update.error != NULL ? update.error->message
                                                  : qe_finish_name (update.finish));
            }
          qe_update_clear (&update);
        }
      last = g_get_monotonic_time ();
      if (first == 0 && *n_tokens > 0)
        {
          first = last;
          *n_tokens = 0;
        }
      if (*error != NULL)
        return FALSE;
    }
  *seconds = (double)(last - first) / G_USEC_PER_SEC;
  return TRUE;
}

static gboolean
run_batch_once (Bench *bench, uint32_t n, double *tokens_per_s, GError **error)
{
  const Options *o = bench->options;
  qe_session_id sessions[BATCH_MAX] = { 0 };
  qe_request *requests[BATCH_MAX] = { NULL };
  g_autoptr (GPtrArray) prompts = g_ptr_array_new_with_free_func ((GDestroyNotify)g_array_unref);
  CliNews news;
  g_autoptr (GError) local = NULL;
  guint64 n_tokens = 0;
  double seconds = 0;
  gboolean ok = TRUE;
  uint32_t n_started = 0;

  cli_news_init (&news);
  for (uint32_t i = 0; i < n && ok; i++)
    {
      GArray *ids = g_array_new (FALSE, FALSE, sizeof (uint32_t));
      Figures f;

      g_ptr_array_add (prompts, ids);
      fill_random (bench, ids, (guint)MAX (o->batch_depth, 2) - 1);
      sessions[i] = cli_bench_open_session (bench->engine, &bench->cache, bench->synthetic, &local);
      ok = sessions[i] != 0 && run_request (bench, sessions[i], ids, 1, FALSE, &f, &local);
    }
  let_rest (bench);
  for (uint32_t i = 0; i < n && ok; i++)
    {
      qe_generate_params params;

      fill_random (bench, prompts->pdata[i], 1);
      fill_params (bench, sessions[i], prompts->pdata[i], (uint32_t)o->gen, FALSE, &params);
      params.wakeup = cli_news_ring;
      params.wakeup_user = &news;
      requests[i] = qe_engine_generate (bench->engine, &params, &local);
      ok = requests[i] != NULL;
      n_started += ok;
    }
  ok = ok && follow_batch (requests, n, &news, &n_tokens, &seconds, &local);
  for (uint32_t i = 0; i < n_started; i++)
    {
      /* After an error some may still run: their news must not outlive @news. */
      qe_request_cancel (requests[i]);
      for (gboolean done = FALSE; !done;)
        {
          qe_update update = { 0 };

          done = !qe_request_take (requests[i], &update) ? ok : update.state == QE_REQUEST_DONE;
          qe_update_clear (&update);
          if (!done)
            qe_request_wait (requests[i], 50);
        }
      qe_request_unref (requests[i]);
    }
  for (uint32_t i = 0; i < n; i++)
    if (sessions[i] != 0)
      qe_engine_close_session (bench->engine, sessions[i]);
  cli_news_clear (&news);
  *tokens_per_s = seconds > 0 ? (double)n_tokens / seconds : 0;
  if (!ok)
    g_propagate_error (error, g_steal_pointer (&local));
  return ok;
}

static gboolean
run_batches (Bench *bench, GString *json, GError **error)
{
  const Options *o = bench->options;
  g_autoptr (GArray) list = g_array_new (FALSE, FALSE, sizeof (uint32_t));

  if (!cli_bench_parse_list ("--batch", o->batches, 1, BATCH_MAX, list, error))
    return FALSE;
  g_string_append (json, ", \"batches\": [");
  for (guint i = 0; i < list->len; i++)
    {
      uint32_t n = g_array_index (list, uint32_t, i);
      double rates[REPEATS_MAX], rate;

      for (int k = 0; k < o->repeats; k++)
        if (!run_batch_once (bench, n, &rates[k], error))
          return FALSE;
      rate = cli_bench_median (rates, o->repeats);
      if (!o->json)
        printf ("batch %3u at depth %d  %9.1f tok/s  %8.3f ms a step\n", n, o->batch_depth, rate,
                rate > 0 ? 1000 * n / rate : 0);
      g_string_append_printf (json, "%s{\"n\": %u, \"depth\": %d, \"gen\": %d, \"tokens_per_s\": ",
                              i > 0 ? ", " : "", n, o->batch_depth, o->gen);
      quire_json_add_number (json, rate, 2);
      g_string_append_c (json, '}');
    }
  g_string_append_c (json, ']');
  return TRUE;
}

static gboolean
run_all (Bench *bench, GString *json, GError **error)
{
  const Options *o = bench->options;
  g_autoptr (GArray) depths = g_array_new (FALSE, FALSE, sizeof (uint32_t));
  Figures f;

  if (!cli_bench_parse_list ("--depth", o->depths != NULL ? o->depths : "0", 0,
                             bench->info->context_max, depths, error)
      || !run_depth (bench, 0, &f, error)) /* a warm-up */
    return FALSE;
  g_string_append (json, ", \"depths\": [");
  for (guint i = 0; i < depths->len; i++)
    {
      uint32_t depth = g_array_index (depths, uint32_t, i);

      if (!run_depth (bench, depth, &f, error))
        return FALSE;
      report_depth (bench, depth, &f, i == 0, json);
    }
  g_string_append_c (json, ']');
  return (o->turns == 0 || run_turns (bench, json, error))
         && (o->cold == NULL || run_cold (bench, json, error))
         && (o->e2e == 0 || run_end_to_end (bench, json, error))
         && (o->batches == NULL || run_batches (bench, json, error));
}

/* Loads the model again: the device is open by then, and the files are in the page cache. */
static gboolean
load_again (Bench *bench, GError **error)
{
  gint64 begin;

  qe_engine_unload (bench->engine);
  begin = g_get_monotonic_time ();
  qe_engine_load (bench->engine, bench->info->dir);
  if (!qe_engine_wait_ready (bench->engine, error))
    return FALSE;
  bench->reload_s = (double)(g_get_monotonic_time () - begin) / G_USEC_PER_SEC;
  return TRUE;
}

static void
report_start (const Bench *bench, GString *json)
{
  const Options *o = bench->options;

  if (!o->json)
    {
      printf ("%s, prompt %d, gen %d, median of %d; this machine reads %.2f GB/s and does %.1f "
              "GFLOP/s\n",
              bench->info->name, o->prompt, o->gen, o->repeats, bench->read_bytes_per_s / 1e9,
              bench->flops / 1e9);
      printf ("loaded in %.2f s", bench->load_s);
      if (o->reload)
        printf (", again in %.2f s", bench->reload_s);
      putchar ('\n');
    }
  quire_json_add_string (json, bench->info->name, -1);
  g_string_append (json, ", \"machine\": {\"read_gb_per_s\": ");
  quire_json_add_number (json, bench->read_bytes_per_s / 1e9, 3);
  g_string_append (json, ", \"f32_gflops\": ");
  quire_json_add_number (json, bench->flops / 1e9, 2);
  g_string_append_printf (json, "}, \"repeats\": %d, \"weight_bytes\": %" G_GUINT64_FORMAT,
                          o->repeats, bench->info->weight_bytes);
  g_string_append_printf (json, ", \"kv_bytes_per_token\": %" G_GUINT64_FORMAT,
                          bench->info->kv_bytes_per_token);
  g_string_append (json, ", \"load\": {\"first_s\": ");
  quire_json_add_number (json, bench->load_s, 3);
  if (o->reload)
    {
      g_string_append (json, ", \"again_s\": ");
      quire_json_add_number (json, bench->reload_s, 3);
    }
  g_string_append_c (json, '}');
}

/* In a process of its own: the half gigabyte that it reads is no memory of ours, and nothing else runs meanwhile. */
static gboolean
measure_machine (const Options *o, double *read_bytes_per_s, double *flops, GError **error)
{
  double figures[2] = { 0, 0 };
  int fds[2], status = 0;
  pid_t child;
  gssize n;

  if (pipe (fds) != 0 || (child = fork ()) < 0)
    {
      g_set_error (error, QE_ERROR, QE_ERROR_FAILED, "measuring the machine: %s",
                   g_strerror (errno));
      return FALSE;
    }
  if (child == 0)
    {
      g_autoptr (GError) local = NULL;
      gboolean ok = qe_measure_machine (o->engine.backend, o->engine.isa,
                                        (uint32_t)MAX (o->engine.threads, 0), &figures[0],
                                        &figures[1], &local);

      if (!ok)
        cli_fail (CLI_FAILED, "%s", local->message);
      ok = ok && write (fds[1], figures, sizeof figures) == sizeof figures;
      _exit (ok ? 0 : 1);
    }
  close (fds[1]);
  n = read (fds[0], figures, sizeof figures);
  close (fds[0]);
  waitpid (child, &status, 0);
  if (status != 0 || n != sizeof figures)
    {
      g_set_error (error, QE_ERROR, QE_ERROR_FAILED, "the machine could not be measured");
      return FALSE;
    }
  *read_bytes_per_s = figures[0];
  *flops = figures[1];
  return TRUE;
}

/* What the program holds, when nothing has run for long enough that the card's figures are of the same moment as the
 * pool's: the engine looks at the card once a second at most, its driver's figures are a quarter second old, and a
 * session that opens makes it look. */
static void
measure_memory (Bench *bench)
{
  qe_session_id sessions[2];
  const qe_snapshot *snapshot;
  guint64 held;

  for (guint i = 0; i < G_N_ELEMENTS (sessions); i++)
    {
      g_usleep (1500 * 1000);
      sessions[i] = qe_engine_open_session (bench->engine, NULL);
      g_usleep (300 * 1000);
    }
  snapshot = qe_engine_dup_snapshot (bench->engine);
  for (guint i = 0; i < QE_N_TIERS; i++)
    bench->kv_bytes_reserved += snapshot->tiers[i].bytes_reserved;
  bench->device = snapshot->device;
  if (bench->device.memory_process > qe_ballast_bytes (bench->ballast))
    bench->device.memory_process -= qe_ballast_bytes (bench->ballast);
  held = snapshot->device.weights + snapshot->tiers[QE_TIER_GPU].bytes_reserved;
  if (bench->device.memory_process > held)
    bench->device_beyond = bench->device.memory_process - held;
  qe_snapshot_unref (snapshot);
  for (guint i = 0; i < G_N_ELEMENTS (sessions); i++)
    if (sessions[i] != 0)
      qe_engine_close_session (bench->engine, sessions[i]);
}

static void
append_device (const Bench *bench, GString *json)
{
  const qe_device_view *d = &bench->device;

  if (d->memory_process == 0)
    return;
  g_string_append_printf (
      json,
      ", \"device\": {\"ballast_bytes\": %" G_GUINT64_FORMAT
      ", \"process_bytes\": %" G_GUINT64_FORMAT ", \"weight_bytes\": %" G_GUINT64_FORMAT
      ", \"workspace_bytes\": %" G_GUINT64_FORMAT ", \"beyond_bytes\": %" G_GUINT64_FORMAT "}",
      qe_ballast_bytes (bench->ballast), d->memory_process, d->weights, d->workspace,
      bench->device_beyond);
  if (!bench->options->json)
    printf ("on the card %.0f MiB, of them %.0f beyond weights and KV pages\n",
            (double)d->memory_process / (1 << 20), (double)bench->device_beyond / (1 << 20));
}

static int
run (const Options *o)
{
  g_autoptr (GError) error = NULL;
  g_autoptr (GString) json = g_string_new ("{\"model\": ");
  struct rusage usage;
  Bench bench = { .options = o, .random = 20250701 };
  gint64 begin;
  int status = CLI_OK;

  if (o->prompt < 1 || o->gen < 2 || o->turns < 0 || o->repeats < 1 || o->repeats > REPEATS_MAX
      || o->e2e < 0 || o->e2e == 1 || o->batch_depth < 1 || o->step_rows < 0)
    return cli_fail (CLI_USAGE,
                     "bench: --prompt and --batch-depth are 1 or more, --gen and --e2e 2 or more, "
                     "--repeats 1 to %d",
                     REPEATS_MAX);
  if (!(o->temperature >= 0 && o->temperature <= 100) || !(o->top_p >= 0 && o->top_p <= 1))
    return cli_fail (CLI_USAGE, "bench: --temperature is 0 to 100, --top-p 0 to 1");
  if (!cli_cache_options_apply (&o->cache, &bench.cache, &error)
      || !cli_bench_parse_fill (o->fill, &bench.synthetic, &error))
    return cli_fail (CLI_USAGE, "%s", error->message);
  /* Before the engine's threads start: it forks. */
  if (!measure_machine (o, &bench.read_bytes_per_s, &bench.flops, &error))
    return cli_fail (CLI_FAILED, "%s", error->message);
  if (!cli_bench_take_ballast (o->engine.device, o->ballast, o->limit, &bench.ballast, &status))
    return status;
  begin = g_get_monotonic_time ();
  bench.engine = cli_engine_start (&o->engine, (uint32_t)o->step_rows, &bench.info, &status);
  if (bench.engine == NULL)
    {
      qe_ballast_free (bench.ballast);
      return status;
    }
  bench.load_s = (double)(g_get_monotonic_time () - begin) / G_USEC_PER_SEC;
  if (!o->reload || load_again (&bench, &error))
    report_start (&bench, json);
  if (error == NULL && run_all (&bench, json, &error))
    {
      measure_memory (&bench);
      append_device (&bench, json);
      getrusage (RUSAGE_SELF, &usage);
      g_string_append_printf (
          json, ", \"kv_bytes_reserved\": %" G_GUINT64_FORMAT ", \"peak_rss_bytes\": %ld}",
          bench.kv_bytes_reserved, usage.ru_maxrss * 1024);
      if (o->json)
        puts (json->str);
      else
        printf ("peak memory %.1f MiB\n", (double)usage.ru_maxrss / 1024);
    }
  else
    status = cli_fail (CLI_FAILED, "%s", error->message);
  qe_engine_free (bench.engine);
  qe_ballast_free (bench.ballast);
  qe_model_info_free (bench.info);
  return status;
}

int
cli_bench (int argc, char **argv)
{
  Options o = { .prompt = 128, .gen = 64, .repeats = 3, .batch_depth = 1024, .top_p = 1 };
  GOptionEntry entries[] = {
    { "prompt", 'p', 0, G_OPTION_ARG_INT, &o.prompt, "New tokens of a turn (default: 128)", "N" },
    { "gen", 'g', 0, G_OPTION_ARG_INT, &o.gen, "Tokens decoded in a turn (default: 64)", "N" },
    { "depth", 'd', 0, G_OPTION_ARG_STRING, &o.depths,
      "Tokens in the cache before, a list (default: 0)", "LIST" },
    { "fill", 0, 0, G_OPTION_ARG_STRING, &o.fill,
      "How the tokens before get there: prompt (computed), or synthetic: random pages in their "
      "place, "
      "for lengths whose prompt takes too long (default: prompt)",
      "HOW" },
    CLI_BENCH_BALLAST_ENTRIES (&o.ballast, &o.limit),
    { "cold", 0, 0, G_OPTION_ARG_STRING, &o.cold,
      "Also the first token of prompts of N tokens with nothing cached, a list", "LIST" },
    { "e2e", 0, 0, G_OPTION_ARG_INT, &o.e2e, "Also a prompt and N tokens after it, end to end",
      "N" },
    { "temperature", 0, 0, G_OPTION_ARG_DOUBLE, &o.temperature, "Above 0: --e2e also sampled",
      "T" },
    { "top-p", 0, 0, G_OPTION_ARG_DOUBLE, &o.top_p, "Of the sampled --e2e (default: 1)", "P" },
    { "batch", 0, 0, G_OPTION_ARG_STRING, &o.batches,
      "Also N sessions that decode at the same time, a list", "LIST" },
    { "batch-depth", 0, 0, G_OPTION_ARG_INT, &o.batch_depth,
      "Tokens before, in each of --batch (default: 1024)", "N" },
    { "reload", 0, 0, G_OPTION_ARG_NONE, &o.reload, "Also load the model a second time", NULL },
    { "step-rows", 0, 0, G_OPTION_ARG_INT, &o.step_rows,
      "Token rows of a step at most (default: the engine's)", "N" },
    { "turns", 0, 0, G_OPTION_ARG_INT, &o.turns, "Also a conversation of N turns", "N" },
    { "repeats", 'r', 0, G_OPTION_ARG_INT, &o.repeats,
      "Runs of each figure; the median counts (default: 3)", "N" },
    { "json", 0, 0, G_OPTION_ARG_NONE, &o.json, "Print one JSON object", NULL },
    { NULL },
  };
  GOptionContext *context;
  int status;

  if (argc > 1 && strcmp (argv[1], "modes") == 0)
    return cli_bench_modes (argc - 1, argv + 1);
  if (argc > 1 && strcmp (argv[1], "arrivals") == 0)
    return cli_bench_arrivals (argc - 1, argv + 1);
  if (argc > 1 && strcmp (argv[1], "paths") == 0)
    return cli_bench_paths (argc - 1, argv + 1);
  if (argc > 1 && strcmp (argv[1], "quality") == 0)
    return cli_bench_quality (argc - 1, argv + 1);
  context = g_option_context_new (
      "[modes | arrivals | paths | quality] - measure first token, speed and memory");
  g_option_context_set_summary (
      context, "bench modes: the cache modes side by side over one conversation.\n"
               "bench arrivals: requests that arrive at random, as from many people.\n"
               "bench paths: the ways of a card to host memory; the fastest is kept.\n"
               "bench quality: what cache modes that are not exact cost in answers.\n"
               "Each has options of its own (see bench modes --help).");
  g_option_context_add_main_entries (context, entries, NULL);
  g_option_context_add_group (context, cli_cache_options_group (&o.cache));
  g_option_context_add_group (context, cli_engine_options_group (&o.engine));
  if (cli_parse (context, &argc, &argv, &status))
    status = argc > 1 ? cli_fail (
                 CLI_USAGE,
                 "bench takes no arguments besides modes, arrivals, paths, quality and options, "
                 "found “%s”",
                 argv[1])
                      : run (&o);
  g_free (o.depths);
  g_free (o.cold);
  g_free (o.batches);
  g_free (o.fill);
  g_free (o.ballast);
  g_free (o.limit);
  cli_cache_options_clear (&o.cache);
  cli_engine_options_clear (&o.engine);
  return status;
}
