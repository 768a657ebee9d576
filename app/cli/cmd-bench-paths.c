/* cmd-bench-paths.c: `quire-cli bench paths`: the three ways to pages in host memory, measured, and the fastest kept.
 *
 * For each kind of pages and each way an engine of its own, with a conversation of each length whose newest tokens alone
 * may stay on the card; what is before them is random pages (a prompt would take minutes, and speed does not depend on
 * what is in them). The way that decodes fastest at the longest length is the choice: that is where it matters. Kept with
 * the date for the machine's card, threads and the model's shape; --host-path auto and the app go by it from then on. */
#include "app/cli/cli-bench.h"

#include <string.h>

#include "app/cli/cli-json.h"
#include "app/quire-paths.h"

#define LENGTHS_DEFAULT "16384,65536"
#define LENGTH_MAX (1u << 24)
#define LENGTHS_MAX 8
#define TOKENS_MAX 4096
#define HOST_WAIT_S 60
#define ON_CARD 1024u /* tokens that may stay there */
#define SEED 20250706u

typedef struct
{
  CliEngineOptions engine;
  char *lengths;
  int tokens;
  gboolean json, keep_nothing;
} Options;

typedef struct
{
  const char *name;
  qe_cache_mode mode;
  const char *key; /* borrowed from the plan */
  double ms[LENGTHS_MAX][QE_N_HOST_PATHS];
  qe_host_path best;
} Kind;

typedef struct
{
  const Options *options;
  GArray *lengths; /* uint32_t, ascending */
  qe_memory_plan *plan;
  Kind kinds[2];
  guint n_kinds;
} Paths;

/* Decodes @n_tokens behind @ids, which get them. FALSE: @error. */
static gboolean
decode (qe_engine *engine, const qe_model_info *info, qe_session_id session, GArray *ids,
        int n_tokens, qe_receipt *receipt, GError **error)
{
  g_autoptr (qe_request) request = NULL;
  qe_generate_params params;
  CliReply reply = { 0 };
  gboolean ok = FALSE;

  cli_bench_params (info, session, ids, (uint32_t)n_tokens, &params);
  request = qe_engine_generate (engine, &params, error);
  if (request == NULL)
    return FALSE;
  cli_reply_run (&reply, request, NULL);
  if (reply.error != NULL)
    g_propagate_error (error, g_steal_pointer (&reply.error));
  else if (reply.finish != QE_FINISH_LENGTH)
    g_set_error (error, QE_ERROR, QE_ERROR_CANCELLED, "the run ended early (%s)",
                 qe_finish_name (reply.finish));
  else
    {
      g_array_append_vals (ids, reply.ids->data, reply.ids->len);
      *receipt = reply.receipt;
      ok = TRUE;
    }
  cli_reply_clear (&reply);
  return ok;
}

/* Host memory is made, and pages copied to it, beside what the engine does: what is measured must have come there. */
static gboolean
wait_on_host (qe_engine *engine, const qe_model_info *info, qe_session_id session, GArray *ids,
              GError **error)
{
  uint32_t n_wanted = (ids->len - ON_CARD) / 100 * 95;
  gint64 end = g_get_monotonic_time () + HOST_WAIT_S * G_USEC_PER_SEC;
  qe_receipt receipt = { 0 };

  while (decode (engine, info, session, ids, 1, &receipt, error))
    {
      if (receipt.n_on_host >= n_wanted)
        return TRUE;
      if (g_get_monotonic_time () > end)
        {
          g_set_error (error, QE_ERROR, QE_ERROR_FAILED,
                       "%u of %u tokens were in host memory after %d seconds, expected %u",
                       receipt.n_on_host, ids->len, HOST_WAIT_S, n_wanted);
          return FALSE;
        }
      g_usleep (G_USEC_PER_SEC / 20);
    }
  return FALSE;
}

/* Milliseconds a token; 0 with @error. */
static double
run_length (const Paths *p, qe_engine *engine, const qe_model_info *info, const Kind *kind,
            uint32_t length, GError **error)
{
  g_autoptr (GArray) ids = g_array_new (FALSE, FALSE, sizeof (uint32_t));
  guint64 random = SEED;
  qe_cache_config config;
  qe_session_id session;
  qe_receipt receipt = { 0 };
  double ms = 0;

  qe_cache_config_init (&config);
  config.mode = kind->mode;
  config.hot_cache_length = ON_CARD;
  session = cli_bench_open_session (engine, &config, TRUE, error);
  if (session == 0)
    return 0;
  cli_bench_fill_ids (&random, info->vocab, ids, length);
  if (wait_on_host (engine, info, session, ids, error)
      && decode (engine, info, session, ids, p->options->tokens, &receipt, error)
      && receipt.decode_tokens_per_s > 0)
    ms = 1000 / receipt.decode_tokens_per_s;
  qe_engine_close_session (engine, session);
  return ms;
}

/* All kinds and lengths one way. FALSE: the error was printed and *status set. */
static gboolean
run_path (Paths *p, qe_host_path path, int *status)
{
  CliEngineOptions options = p->options->engine;
  g_autoptr (qe_model_info) info = NULL;
  g_autoptr (qe_engine) engine = NULL;

  options.tiers.host_path = (char *)qe_host_path_name (path);
  engine = cli_engine_start (&options, 0, &info, status);
  if (engine == NULL)
    return FALSE;
  for (guint k = 0; k < p->n_kinds; k++)
    for (guint i = 0; i < p->lengths->len; i++)
      {
        g_autoptr (GError) error = NULL;
        uint32_t length = g_array_index (p->lengths, uint32_t, i);
        Kind *kind = &p->kinds[k];

        kind->ms[i][path] = run_length (p, engine, info, kind, length, &error);
        if (error != NULL)
          {
            *status = cli_fail (CLI_FAILED, "%u tokens of %s pages, %s: %s", length, kind->name,
                                qe_host_path_name (path), error->message);
            return FALSE;
          }
      }
  return TRUE;
}

static gboolean
choose (Paths *p, GError **error)
{
  for (guint k = 0; k < p->n_kinds; k++)
    {
      Kind *kind = &p->kinds[k];
      const double *ms = kind->ms[p->lengths->len - 1];

      kind->best = QE_HOST_PATH_READ;
      for (int path = QE_HOST_PATH_READ; path < QE_N_HOST_PATHS; path++)
        if (ms[path] < ms[kind->best])
          kind->best = (qe_host_path)path;
      if (!p->options->keep_nothing
          && !qe_host_paths_store (
              quire_host_paths_file (), kind->key, kind->best,
              g_array_index (p->lengths, uint32_t, p->lengths->len - 1) - ON_CARD, ms, error))
        return FALSE;
    }
  return TRUE;
}

static void
report (const Paths *p)
{
  g_autoptr (GString) json = g_string_new ("{\"device\": ");

  quire_json_add_string (json, p->plan->device, -1);
  g_string_append_printf (json, ", \"kept\": %s, \"kinds\": [",
                          p->options->keep_nothing ? "false" : "true");
  if (!p->options->json)
    printf ("%s, %d tokens decoded behind random pages, all but %u tokens in host memory\n",
            p->plan->device, p->options->tokens, ON_CARD);
  for (guint k = 0; k < p->n_kinds; k++)
    {
      const Kind *kind = &p->kinds[k];

      g_string_append_printf (json, "%s{\"pages\": \"%s\", \"best\": \"%s\", \"rows\": [",
                              k > 0 ? ", " : "", kind->name, qe_host_path_name (kind->best));
      for (guint i = 0; i < p->lengths->len; i++)
        {
          uint32_t length = g_array_index (p->lengths, uint32_t, i);

          if (!p->options->json)
            printf ("%-5s %8u tokens", kind->name, length);
          g_string_append_printf (json, "%s{\"tokens\": %u", i > 0 ? ", " : "", length);
          for (int path = QE_HOST_PATH_READ; path < QE_N_HOST_PATHS; path++)
            {
              if (!p->options->json)
                printf ("  %s %9.3f ms", qe_host_path_name ((qe_host_path)path), kind->ms[i][path]);
              g_string_append_printf (json,
                                      ", \"%s_ms\": ", qe_host_path_name ((qe_host_path)path));
              quire_json_add_number (json, kind->ms[i][path], 4);
            }
          if (!p->options->json)
            putchar ('\n');
          g_string_append_c (json, '}');
        }
      if (!p->options->json)
        printf ("%-5s fastest: %s%s\n", kind->name, qe_host_path_name (kind->best),
                p->options->keep_nothing ? "" : ", kept");
      g_string_append (json, "]}");
    }
  g_string_append (json, "]}");
  if (p->options->json)
    puts (json->str);
}

static int
compare_lengths (gconstpointer a, gconstpointer b)
{
  uint32_t x = *(const uint32_t *)a, y = *(const uint32_t *)b;

  return (x > y) - (x < y);
}

static int
measure (Paths *p)
{
  g_autofree char *dir = p->options->engine.model != NULL ? g_strdup (p->options->engine.model)
                                                          : quire_dup_default_model_dir ();
  g_autoptr (GError) error = NULL;
  qe_engine_options options;
  int status = CLI_OK;

  if (!cli_engine_options_apply (&p->options->engine, &options, &status))
    return status;
  p->plan = qe_plan_memory (&options, dir, &error);
  if (p->plan == NULL)
    return cli_fail (CLI_FAILED, "%s", error->message);
  if (p->plan->host_path_key == NULL)
    return cli_fail (CLI_FAILED,
                     "%s: there is one way alone to host memory: expected a card, with "
                     "host memory for pages beside it",
                     p->plan->device);
  p->kinds[p->n_kinds++]
      = (Kind){ .name = "exact", .mode = QE_CACHE_TIERED, .key = p->plan->host_path_key };
  if (p->plan->host_path_int8_key != NULL)
    p->kinds[p->n_kinds++] = (Kind){ .name = "int8",
                                     .mode = QE_CACHE_TIERED_INT8,
                                     .key = p->plan->host_path_int8_key };
  for (int path = QE_HOST_PATH_READ; path < QE_N_HOST_PATHS; path++)
    if (!run_path (p, (qe_host_path)path, &status))
      return status;
  if (!choose (p, &error))
    return cli_fail (CLI_FAILED, "keeping the choice: %s", error->message);
  report (p);
  return status;
}

static int
run (const Options *o)
{
  g_autoptr (GError) error = NULL;
  Paths p = { .options = o };
  int status;

  if (o->tokens < 2 || o->tokens > TOKENS_MAX)
    return cli_fail (CLI_USAGE, "--tokens: expected 2 to %d, found “%d”", TOKENS_MAX, o->tokens);
  if (o->engine.tiers.host_path != NULL)
    return cli_fail (CLI_USAGE, "--host-path: expected none, since all are measured, found “%s”",
                     o->engine.tiers.host_path);
  p.lengths = g_array_new (FALSE, FALSE, sizeof (uint32_t));
  if (!cli_bench_parse_list ("--lengths", o->lengths != NULL ? o->lengths : LENGTHS_DEFAULT,
                             2 * ON_CARD, LENGTH_MAX, p.lengths, &error))
    status = cli_fail (CLI_USAGE, "%s", error->message);
  else if (p.lengths->len > LENGTHS_MAX)
    status = cli_fail (CLI_USAGE, "--lengths: expected %d at most, found “%s”", LENGTHS_MAX,
                       o->lengths);
  else
    {
      g_array_sort (p.lengths, compare_lengths);
      status = measure (&p);
    }
  qe_memory_plan_free (p.plan);
  g_array_unref (p.lengths);
  return status;
}

int
cli_bench_paths (int argc, char **argv)
{
  Options o = { .tokens = 8 };
  GOptionEntry entries[] = {
    { "lengths", 0, 0, G_OPTION_ARG_STRING, &o.lengths,
      "Tokens of the conversations (default: " LENGTHS_DEFAULT ")", "LIST" },
    { "tokens", 0, 0, G_OPTION_ARG_INT, &o.tokens, "Tokens decoded in each (default: 8)", "N" },
    { "dry-run", 0, 0, G_OPTION_ARG_NONE, &o.keep_nothing, "Measure, and keep nothing", NULL },
    { "json", 0, 0, G_OPTION_ARG_NONE, &o.json, "Print one JSON object", NULL },
    { NULL },
  };
  GOptionContext *context
      = g_option_context_new ("- the ways to host memory; keeps the fastest for --host-path auto");
  int status;

  g_option_context_add_main_entries (context, entries, NULL);
  g_option_context_add_group (context, cli_engine_options_group (&o.engine));
  if (cli_parse_options (context, argc, argv, "bench paths", &status))
    status = run (&o);
  g_free (o.lengths);
  cli_engine_options_clear (&o.engine);
  return status;
}
