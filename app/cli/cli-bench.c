/* cli-bench.c: what the benchmarks share. Main thread, but for cli_news_ring(), which any thread may call. */
#include "app/cli/cli-bench.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

guint64
cli_bench_random (guint64 *state)
{
  *state = *state * 6364136223846793005u + 1442695040888963407u;
  return *state >> 33;
}

double
cli_bench_uniform (guint64 *state)
{
  return ((double)cli_bench_random (state) + 1) / 2147483648.0;
}

void
cli_bench_fill_ids (guint64 *state, uint32_t vocab, GArray *ids, guint n)
{
  for (guint i = 0; i < n; i++)
    {
      uint32_t id = (uint32_t)(cli_bench_random (state) % vocab);

      g_array_append_val (ids, id);
    }
}

void
cli_bench_params (const qe_model_info *info, qe_session_id session, const GArray *ids,
                  uint32_t n_gen, qe_generate_params *params)
{
  qe_generate_params_init (params, info);
  params->session = session;
  params->ids = (const uint32_t *)(gpointer)ids->data;
  params->n_ids = ids->len;
  params->max_tokens = n_gen;
  params->ignore_eos = true;
  params->sampling = (qe_sampling_params){ .top_p = 1, .repetition_penalty = 1 };
}

gboolean
cli_bench_take_ballast (const char *device, const char *ballast, const char *limit,
                        qe_ballast **out, int *status)
{
  g_autoptr (GError) error = NULL;
  guint64 hold = 0, leave = 0;

  *out = NULL;
  if (ballast == NULL && limit == NULL)
    return TRUE;
  if (ballast != NULL && limit != NULL)
    *status = cli_fail (CLI_USAGE, "expected one of --ballast and --device-limit, found both");
  else if ((ballast != NULL && !cli_parse_size ("--ballast", ballast, &hold, &error))
           || (limit != NULL && !cli_parse_size ("--device-limit", limit, &leave, &error)))
    *status = cli_fail (CLI_USAGE, "%s", error->message);
  else if ((*out = qe_ballast_new (device, hold, leave, &error)) == NULL)
    *status = cli_fail (CLI_FAILED, "%s", error->message);
  return *out != NULL;
}

gboolean
cli_bench_parse_fill (const char *text, gboolean *synthetic, GError **error)
{
  *synthetic = text != NULL && strcmp (text, "synthetic") == 0;
  if (text == NULL || *synthetic || strcmp (text, "prompt") == 0)
    return TRUE;
  g_set_error (error, QE_ERROR, QE_ERROR_INVALID,
               "--fill: expected prompt or synthetic, found “%s”", text);
  return FALSE;
}

qe_session_id
cli_bench_open_session (qe_engine *engine, const qe_cache_config *cache, gboolean synthetic,
                        GError **error)
{
  qe_session_options options;

  qe_session_options_init (&options);
  options.cache = *cache;
  options.synthetic = synthetic;
  if (synthetic)
    options.cache.use_cache = false;
  return qe_engine_open_session_with (engine, &options, error);
}

gboolean
cli_bench_parse_list (const char *option, const char *text, guint64 min, guint64 max, GArray *out,
                      GError **error)
{
  g_auto (GStrv) fields = g_strsplit (text, ",", -1);

  if (fields[0] == NULL)
    g_set_error (error, QE_ERROR, QE_ERROR_INVALID, "%s: expected a list of numbers, found “”",
                 option);
  for (char **field = fields; *field != NULL; field++)
    {
      guint64 value;
      uint32_t n;

      if (!g_ascii_string_to_unsigned (*field, 10, min, max, &value, NULL))
        {
          g_set_error (error, QE_ERROR, QE_ERROR_INVALID,
                       "%s: expected numbers from %" G_GUINT64_FORMAT " to %" G_GUINT64_FORMAT
                       ", found “%s”",
                       option, min, max, *field);
          return FALSE;
        }
      n = (uint32_t)value;
      g_array_append_val (out, n);
    }
  return fields[0] != NULL;
}

static int
compare_doubles (const void *a, const void *b)
{
  double x = *(const double *)a, y = *(const double *)b;

  return (x > y) - (x < y);
}

double
cli_bench_median (double *values, int n)
{
  qsort (values, (gsize)n, sizeof *values, compare_doubles);
  return n % 2 == 1 ? values[n / 2] : (values[n / 2 - 1] + values[n / 2]) / 2;
}

double
cli_bench_percentile (double *values, guint n, double percentile)
{
  guint rank;

  if (n == 0)
    return NAN;
  qsort (values, n, sizeof *values, compare_doubles);
  rank = (guint)ceil (percentile / 100 * n);
  return values[CLAMP (rank, 1, n) - 1];
}

void
cli_news_init (CliNews *news)
{
  g_mutex_init (&news->mutex);
  g_cond_init (&news->cond);
  news->news = FALSE;
}

void
cli_news_clear (CliNews *news)
{
  g_mutex_clear (&news->mutex);
  g_cond_clear (&news->cond);
}

void
cli_news_ring (void *user)
{
  CliNews *news = user;

  g_mutex_lock (&news->mutex);
  news->news = TRUE;
  g_cond_signal (&news->cond);
  g_mutex_unlock (&news->mutex);
}

void
cli_news_wait (CliNews *news, gint64 deadline)
{
  g_mutex_lock (&news->mutex);
  while (!news->news && g_cond_wait_until (&news->cond, &news->mutex, deadline))
    ;
  news->news = FALSE;
  g_mutex_unlock (&news->mutex);
}
