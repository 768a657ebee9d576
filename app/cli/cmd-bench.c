/* cmd-bench.c: `quire-cli bench`: first token, decode speed, memory, against the machine's measured ceilings.
 *
 * For each depth D a session is filled with D tokens; then a prompt of P new tokens is timed to its first token, and G
 * tokens are decoded greedily with end tokens ignored. Turns: one conversation of T turns of P + G tokens on the
 * session of the first depth. Token ids are pseudo-random and fixed, so that runs compare. Each figure is the median
 * of the repetitions. Bytes a decoded token reads: the weights (a tied embedding once, an untied one's row not
 * counted) and the KV before it. */
#include "app/cli/cli.h"

#include <errno.h>
#include <stdlib.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include "app/cli/cli-json.h"

#define REPEATS_MAX 100

typedef struct
{
  CliEngineOptions engine;
  char *depths;
  int prompt, gen, turns, repeats;
  gboolean json;
} Options;

typedef struct
{
  const Options *options;
  qe_engine *engine;
  qe_model_info *info;
  double read_bytes_per_s, flops;
  guint64 random;
} Bench;

typedef struct
{
  double first_token_ms, prefill_tokens_per_s, ms_per_token;
  uint32_t n_reused, n_new;
} Figures;

static void
fill_random (Bench *bench, GArray *ids, guint n)
{
  for (guint i = 0; i < n; i++)
    {
      uint32_t id;

      bench->random = bench->random * 6364136223846793005u + 1442695040888963407u;
      id = (uint32_t)((bench->random >> 33) % bench->info->vocab);
      g_array_append_val (ids, id);
    }
}

/* One request over the exact @ids. The reply's ids are appended. */
static gboolean
run_request (Bench *bench, qe_session_id session, GArray *ids, uint32_t n_gen, Figures *out,
             GError **error)
{
  g_autoptr (qe_request) request = NULL;
  qe_generate_params params;
  CliReply reply = { 0 };
  gboolean ok;

  qe_generate_params_init (&params, bench->info);
  params.session = session;
  params.ids = (const uint32_t *)(gpointer)ids->data;
  params.n_ids = ids->len;
  params.max_tokens = n_gen;
  params.ignore_eos = true;
  params.sampling.temperature = 0;
  request = qe_engine_generate (bench->engine, &params, error);
  if (request == NULL)
    return FALSE;
  cli_reply_run (&reply, request, NULL);
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
    }
  else if (reply.error != NULL)
    g_propagate_error (error, g_steal_pointer (&reply.error));
  else
    g_set_error (error, QE_ERROR, QE_ERROR_CANCELLED, "the run ended early (%s)",
                 qe_finish_name (reply.finish));
  cli_reply_clear (&reply);
  return ok;
}

static int
compare_doubles (const void *a, const void *b)
{
  double x = *(const double *)a, y = *(const double *)b;

  return (x > y) - (x < y);
}

static double
median (double *values, int n)
{
  qsort (values, (gsize)n, sizeof *values, compare_doubles);
  return n % 2 == 1 ? values[n / 2] : (values[n / 2 - 1] + values[n / 2]) / 2;
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
      qe_session_id session = qe_engine_open_session (bench->engine, error);
      Figures f = { 0 };
      gboolean ok = session != 0;

      if (ok && depth > 0)
        {
          /* The fill's last token is its one generated token, so that exactly depth tokens come before the prompt. */
          fill_random (bench, ids, MAX (depth, 2) - 1);
          ok = run_request (bench, session, ids, 1, &f, error);
        }
      fill_random (bench, ids, (guint)o->prompt);
      ok = ok && run_request (bench, session, ids, (uint32_t)o->gen, &f, error);
      if (session != 0)
        qe_engine_close_session (bench->engine, session);
      if (!ok)
        return FALSE;
      first[i] = f.first_token_ms;
      prefill[i] = f.prefill_tokens_per_s;
      decode[i] = f.ms_per_token;
      *out = f;
    }
  out->first_token_ms = median (first, o->repeats);
  out->prefill_tokens_per_s = median (prefill, o->repeats);
  out->ms_per_token = median (decode, o->repeats);
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
  /* Of a prompt token: every weight but the embedding, which is looked up, and the output layer, which the last token
   * alone goes through. Attention is not counted. */
  guint64 n_outside = (guint64)m->vocab * m->hidden * (m->tied_embeddings ? 1 : 2);
  double flops = f->prefill_tokens_per_s * 2 * (double)(m->n_params - n_outside);

  if (!bench->options->json)
    printf ("depth %6u  first token %9.2f ms  prefill %8.1f tok/s (%4.0f%% of FMA peak)  decode "
            "%8.3f ms/token  "
            "%7.1f tok/s  %6.2f GB/s (%3.0f%%)\n",
            depth, f->first_token_ms, f->prefill_tokens_per_s,
            bench->flops > 0 ? 100 * flops / bench->flops : 0, f->ms_per_token,
            f->ms_per_token > 0 ? 1000 / f->ms_per_token : 0, weights_per_s / 1e9, 100 * share);
  fflush (stdout);
  g_string_append_printf (json, "%s{\"depth\": %u, \"prompt\": {\"n\": %d, \"ttft_ms\": ",
                          first ? "" : ", ", depth, bench->options->prompt);
  cli_json_append_number (json, f->first_token_ms, 3);
  g_string_append (json, ", \"tokens_per_s\": ");
  cli_json_append_number (json, f->prefill_tokens_per_s, 2);
  g_string_append_printf (json,
                          "}, \"decode\": {\"n\": %d, \"ms_per_token\": ", bench->options->gen);
  cli_json_append_number (json, f->ms_per_token, 4);
  g_string_append (json, ", \"tokens_per_s\": ");
  cli_json_append_number (json, f->ms_per_token > 0 ? 1000 / f->ms_per_token : 0, 2);
  g_string_append (json, ", \"gb_per_s\": ");
  cli_json_append_number (json, weights_per_s / 1e9, 3);
  g_string_append (json, ", \"bandwidth_share\": ");
  cli_json_append_number (json, share, 4);
  g_string_append (json, "}}");
}

static gboolean
run_turns (Bench *bench, GString *json, GError **error)
{
  const Options *o = bench->options;
  g_autoptr (GArray) ids = g_array_new (FALSE, FALSE, sizeof (uint32_t));
  qe_session_id session = qe_engine_open_session (bench->engine, error);
  gboolean ok = session != 0;

  g_string_append (json, ", \"turns\": [");
  for (int i = 0; i < o->turns && ok; i++)
    {
      Figures f = { 0 };

      fill_random (bench, ids, (guint)o->prompt);
      ok = run_request (bench, session, ids, (uint32_t)o->gen, &f, error);
      if (!ok)
        break;
      if (!o->json)
        printf ("turn %3d  first token %9.2f ms  %u new, %u reused\n", i + 1, f.first_token_ms,
                f.n_new, f.n_reused);
      g_string_append_printf (json,
                              "%s{\"new\": %u, \"reused\": %u, \"ttft_ms\": ", i > 0 ? ", " : "",
                              f.n_new, f.n_reused);
      cli_json_append_number (json, f.first_token_ms, 3);
      g_string_append_c (json, '}');
    }
  g_string_append_c (json, ']');
  if (session != 0)
    qe_engine_close_session (bench->engine, session);
  return ok;
}

static gboolean
run_all (Bench *bench, GString *json, GError **error)
{
  const Options *o = bench->options;
  g_auto (GStrv) depths = g_strsplit (o->depths != NULL ? o->depths : "0", ",", -1);
  Figures warm_up;
  gboolean first = TRUE;

  if (!run_depth (bench, 0, &warm_up, error))
    return FALSE;
  g_string_append (json, ", \"depths\": [");
  for (char **d = depths; *d != NULL; d++)
    {
      guint64 depth;
      Figures f;

      if (!g_ascii_string_to_unsigned (*d, 10, 0, bench->info->context_max, &depth, NULL))
        {
          g_set_error (error, QE_ERROR, QE_ERROR_INVALID,
                       "--depth: expected numbers from 0 to %u, found “%s”",
                       bench->info->context_max, *d);
          return FALSE;
        }
      if (!run_depth (bench, (uint32_t)depth, &f, error))
        return FALSE;
      report_depth (bench, (uint32_t)depth, &f, first, json);
      first = FALSE;
    }
  g_string_append_c (json, ']');
  return o->turns == 0 || run_turns (bench, json, error);
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

static int
run (const Options *o)
{
  g_autoptr (GError) error = NULL;
  g_autoptr (GString) json = g_string_new ("{\"model\": ");
  struct rusage usage;
  Bench bench = { .options = o, .random = 20250701 };
  int status = CLI_OK;

  if (o->prompt < 1 || o->gen < 2 || o->turns < 0 || o->repeats < 1 || o->repeats > REPEATS_MAX)
    return cli_fail (CLI_USAGE, "bench: --prompt is 1 or more, --gen 2 or more, --repeats 1 to %d",
                     REPEATS_MAX);
  /* Before the engine's threads start: it forks. */
  if (!measure_machine (o, &bench.read_bytes_per_s, &bench.flops, &error))
    return cli_fail (CLI_FAILED, "%s", error->message);
  bench.engine = cli_engine_start (&o->engine, 0, &bench.info, &status);
  if (bench.engine == NULL)
    return status;
  if (!o->json)
    printf ("%s, prompt %d, gen %d, median of %d; this machine reads %.2f GB/s and does %.1f f32 "
            "GFLOP/s\n",
            bench.info->name, o->prompt, o->gen, o->repeats, bench.read_bytes_per_s / 1e9,
            bench.flops / 1e9);
  cli_json_append_string (json, bench.info->name, -1);
  g_string_append (json, ", \"machine\": {\"read_gb_per_s\": ");
  cli_json_append_number (json, bench.read_bytes_per_s / 1e9, 3);
  g_string_append (json, ", \"f32_gflops\": ");
  cli_json_append_number (json, bench.flops / 1e9, 2);
  g_string_append_printf (json, "}, \"repeats\": %d", o->repeats);
  if (run_all (&bench, json, &error))
    {
      getrusage (RUSAGE_SELF, &usage);
      g_string_append_printf (json, ", \"peak_rss_bytes\": %ld}", usage.ru_maxrss * 1024);
      if (o->json)
        puts (json->str);
      else
        printf ("peak memory %.1f MiB\n", (double)usage.ru_maxrss / 1024);
    }
  else
    status = cli_fail (CLI_FAILED, "%s", error->message);
  qe_engine_free (bench.engine);
  qe_model_info_free (bench.info);
  return status;
}

int
cli_bench (int argc, char **argv)
{
  Options o = { .prompt = 128, .gen = 64, .repeats = 3 };
  GOptionEntry entries[] = {
    { "prompt", 'p', 0, G_OPTION_ARG_INT, &o.prompt, "New tokens of a turn (default: 128)", "N" },
    { "gen", 'g', 0, G_OPTION_ARG_INT, &o.gen, "Tokens decoded in a turn (default: 64)", "N" },
    { "depth", 'd', 0, G_OPTION_ARG_STRING, &o.depths,
      "Tokens in the cache before, a list (default: 0)", "LIST" },
    { "turns", 0, 0, G_OPTION_ARG_INT, &o.turns, "Also a conversation of N turns", "N" },
    { "repeats", 'r', 0, G_OPTION_ARG_INT, &o.repeats,
      "Runs of each figure; the median counts (default: 3)", "N" },
    { "json", 0, 0, G_OPTION_ARG_NONE, &o.json, "Print one JSON object", NULL },
    { NULL },
  };
  GOptionContext *context = g_option_context_new ("- measure first token, speed and memory");
  int status;

  g_option_context_add_main_entries (context, entries, NULL);
  g_option_context_add_group (context, cli_engine_options_group (&o.engine));
  if (cli_parse (context, &argc, &argv, &status))
    status = argc > 1 ? cli_fail (CLI_USAGE, "bench takes no arguments besides options") : run (&o);
  g_free (o.depths);
  cli_engine_options_clear (&o.engine);
  return status;
}
