/* cli-common.c: options, the engine's start, running one request. Main thread only.
 *
 * stdout carries results alone; progress and errors go to stderr. */
#include "app/cli/cli.h"

#include <errno.h>
#include <signal.h>
#include <stdarg.h>
#include <string.h>
#include <unistd.h>

#include "app/quire-paths.h"

#define INTERRUPT_POLL_MS 50
#define UNSET (-G_MAXDOUBLE) /* an option that was not given; out of every option's range */

static volatile sig_atomic_t interrupts;

int
cli_fail (int status, const char *format, ...)
{
  va_list args;

  va_start (args, format);
  g_autofree char *message = g_strdup_vprintf (format, args);
  va_end (args);
  fflush (stdout);
  fprintf (stderr, "quire-cli: %s\n", message);
  return status;
}

gboolean
cli_parse (GOptionContext *context, int *argc, char ***argv, int *status)
{
  g_autoptr (GOptionContext) owned = context;
  g_autoptr (GError) error = NULL;

  if (g_option_context_parse (owned, argc, argv, &error))
    return TRUE;
  *status = cli_fail (CLI_USAGE, "%s (see --help)", error->message);
  return FALSE;
}

gboolean
cli_parse_options (GOptionContext *context, int argc, char **argv, const char *command, int *status)
{
  if (!cli_parse (context, &argc, &argv, status))
    return FALSE;
  if (argc == 1)
    return TRUE;
  *status
      = cli_fail (CLI_USAGE, "%s takes no arguments besides options, found “%s”", command, argv[1]);
  return FALSE;
}

GOptionGroup *
cli_engine_options_group (CliEngineOptions *o)
{
  GOptionEntry entries[] = {
    { "model", 'm', 0, G_OPTION_ARG_FILENAME, &o->model,
      "Model folder (default: $QUIRE_MODEL, else the shipped model)", "DIR" },
    { "backend", 0, 0, G_OPTION_ARG_STRING, &o->backend, "cpu, cuda (default: the best there is)",
      "NAME" },
    { "threads", 't', 0, G_OPTION_ARG_INT, &o->threads, "CPU threads (default: all cores)", "N" },
    { "isa", 0, 0, G_OPTION_ARG_STRING, &o->isa,
      "CPU: reference, avx2, avx512; CUDA: portable, hopper (default: the best)", "NAME" },
    { "device", 0, 0, G_OPTION_ARG_STRING, &o->device,
      "Graphics card, by index or id as `info` lists them (default: the one with the most free "
      "memory)",
      "CARD" },
    { "reserve", 0, 0, G_OPTION_ARG_INT, &o->reserve_mib,
      "Memory of the card to leave to others in MiB (default: 1024)", "MIB" },
    { "kv", 0, 0, G_OPTION_ARG_STRING, &o->kv, "KV page class: bf16 or f32 (default: bf16)",
      "CLASS" },
    { "kv-memory", 0, 0, G_OPTION_ARG_INT, &o->kv_mib,
      "Memory for KV pages in MiB (default: from the machine's memory)", "MIB" },
    { "context", 0, 0, G_OPTION_ARG_INT, &o->context, "Context in tokens (default: the model's)",
      "N" },
    { NULL },
  };
  GOptionGroup *group;

  o->reserve_mib = -1;
  group = g_option_group_new ("engine", "Engine:", "Engine options", NULL, NULL);

  g_option_group_add_entries (group, entries);
  cli_tier_options_add (&o->tiers, group);
  return group;
}

void
cli_engine_options_clear (CliEngineOptions *o)
{
  g_clear_pointer (&o->model, g_free);
  g_clear_pointer (&o->backend, g_free);
  g_clear_pointer (&o->isa, g_free);
  g_clear_pointer (&o->device, g_free);
  g_clear_pointer (&o->kv, g_free);
  cli_tier_options_clear (&o->tiers);
}

static gboolean
engine_options_check (const CliEngineOptions *o, int *status)
{
  if (o->threads < 0 || o->threads > 1024)
    *status = cli_fail (CLI_USAGE, "--threads: expected 1 to 1024, found %d", o->threads);
  else if (o->context < 0)
    *status = cli_fail (CLI_USAGE, "--context: expected a positive number, found %d", o->context);
  else if (o->kv_mib < 0)
    *status = cli_fail (CLI_USAGE, "--kv-memory: expected a positive number, found %d", o->kv_mib);
  else if (o->reserve_mib < -1)
    *status = cli_fail (CLI_USAGE, "--reserve: expected 0 or more, found %d", o->reserve_mib);
  else if (o->kv != NULL && strcmp (o->kv, "bf16") != 0 && strcmp (o->kv, "f32") != 0)
    *status = cli_fail (CLI_USAGE, "--kv: expected bf16 or f32, found “%s”", o->kv);
  else
    return TRUE;
  return FALSE;
}

gboolean
cli_engine_options_apply (const CliEngineOptions *o, qe_engine_options *out, int *status)
{
  g_autoptr (GError) error = NULL;

  if (!engine_options_check (o, status))
    return FALSE;
  *out = (qe_engine_options){
    .backend = o->backend,
    .isa = o->isa,
    .device = o->device,
    .n_threads = (uint32_t)o->threads,
    .kv_class = o->kv != NULL && strcmp (o->kv, "f32") == 0 ? QE_KV_F32 : QE_KV_BF16,
    .kv_bytes_max = (uint64_t)o->kv_mib << 20,
    .context_max = (uint32_t)o->context,
    .host_paths_file = quire_host_paths_file (),
  };
  if (o->reserve_mib >= 0)
    out->memory_reserve = MAX ((uint64_t)o->reserve_mib << 20, 1);
  if (cli_tier_options_apply (&o->tiers, out, &error))
    return TRUE;
  *status = cli_fail (CLI_USAGE, "%s", error->message);
  return FALSE;
}

qe_engine *
cli_engine_start (const CliEngineOptions *o, uint32_t step_rows_max, qe_model_info **info,
                  int *status)
{
  g_autoptr (GError) error = NULL;
  g_autoptr (qe_engine) engine = NULL;
  g_autofree char *dir = o->model != NULL ? g_strdup (o->model) : quire_dup_default_model_dir ();
  qe_engine_status state = { 0 };
  qe_engine_options options;

  if (!cli_engine_options_apply (o, &options, status))
    return NULL;
  options.step_rows_max = step_rows_max;
  engine = qe_engine_new (&options, &error);
  if (engine != NULL)
    qe_engine_load (engine, dir);
  if (engine == NULL || !qe_engine_wait_ready (engine, &error))
    {
      *status = cli_fail (CLI_FAILED, "%s", error->message);
      return NULL;
    }
  qe_engine_get_status (engine, &state);
  *info = g_steal_pointer (&state.model);
  qe_engine_status_clear (&state);
  return g_steal_pointer (&engine);
}

void
cli_sampling_options_init (CliSamplingOptions *o)
{
  *o = (CliSamplingOptions){
    .temperature = UNSET, .top_p = UNSET, .min_p = UNSET, .top_k = G_MININT64
  };
  o->repetition_penalty = UNSET;
  o->presence_penalty = UNSET;
  o->frequency_penalty = UNSET;
}

GOptionGroup *
cli_sampling_options_group (CliSamplingOptions *o)
{
  GOptionEntry entries[] = {
    { "temperature", 0, 0, G_OPTION_ARG_DOUBLE, &o->temperature,
      "0 is greedy (default: the model's generation_config.json)", "T" },
    { "top-k", 0, 0, G_OPTION_ARG_INT64, &o->top_k, "Keep the K likeliest tokens; 0: off", "K" },
    { "top-p", 0, 0, G_OPTION_ARG_DOUBLE, &o->top_p,
      "Keep the likeliest tokens up to mass P; 1: off", "P" },
    { "min-p", 0, 0, G_OPTION_ARG_DOUBLE, &o->min_p, "Drop tokens below P of the likeliest; 0: off",
      "P" },
    { "repetition-penalty", 0, 0, G_OPTION_ARG_DOUBLE, &o->repetition_penalty, "1: off", "X" },
    { "presence-penalty", 0, 0, G_OPTION_ARG_DOUBLE, &o->presence_penalty, "0: off", "X" },
    { "frequency-penalty", 0, 0, G_OPTION_ARG_DOUBLE, &o->frequency_penalty, "0: off", "X" },
    { "seed", 0, 0, G_OPTION_ARG_STRING, &o->seed, "Same seed, same text (default: drawn)", "N" },
    { "max-tokens", 'n', 0, G_OPTION_ARG_INT64, &o->max_tokens,
      "Stop after N tokens (default: when the context is full)", "N" },
    { "stop", 0, 0, G_OPTION_ARG_STRING_ARRAY, &o->stop, "Stop before TEXT; may be repeated",
      "TEXT" },
    { "thinking", 0, 0, G_OPTION_ARG_STRING, &o->thinking,
      "on, off or default, for models that know both", "MODE" },
    { NULL },
  };
  GOptionGroup *group
      = g_option_group_new ("sampling", "Sampling:", "Sampling options", NULL, NULL);

  g_option_group_add_entries (group, entries);
  return group;
}

void
cli_sampling_options_clear (CliSamplingOptions *o)
{
  g_clear_pointer (&o->seed, g_free);
  g_clear_pointer (&o->thinking, g_free);
  g_clear_pointer (&o->stop, g_strfreev);
}

static gboolean
parse_seed (const char *text, qe_sampling_params *sampling, GError **error)
{
  guint64 seed;

  if (!g_ascii_string_to_unsigned (text, 10, 0, G_MAXUINT64, &seed, NULL))
    {
      g_set_error (error, QE_ERROR, QE_ERROR_INVALID,
                   "--seed: expected a whole number from 0 to 18446744073709551615, found “%s”",
                   text);
      return FALSE;
    }
  sampling->seed = seed;
  sampling->has_seed = true;
  return TRUE;
}

static gboolean
parse_thinking (const char *text, qe_thinking *out, GError **error)
{
  if (strcmp (text, "on") == 0)
    *out = QE_THINKING_ON;
  else if (strcmp (text, "off") == 0)
    *out = QE_THINKING_OFF;
  else if (strcmp (text, "default") == 0)
    *out = QE_THINKING_DEFAULT;
  else
    {
      g_set_error (error, QE_ERROR, QE_ERROR_INVALID,
                   "--thinking: expected on, off or default, found “%s”", text);
      return FALSE;
    }
  return TRUE;
}

gboolean
cli_sampling_options_apply (const CliSamplingOptions *o, const qe_model_info *info,
                            qe_generate_params *params, GError **error)
{
  qe_sampling_params *s;

  qe_generate_params_init (params, info);
  s = &params->sampling;
  if (o->temperature != UNSET)
    s->temperature = o->temperature;
  if (o->top_p != UNSET)
    s->top_p = o->top_p;
  if (o->min_p != UNSET)
    s->min_p = o->min_p;
  if (o->repetition_penalty != UNSET)
    s->repetition_penalty = o->repetition_penalty;
  if (o->presence_penalty != UNSET)
    s->presence_penalty = o->presence_penalty;
  if (o->frequency_penalty != UNSET)
    s->frequency_penalty = o->frequency_penalty;
  if (o->top_k != G_MININT64)
    s->top_k = o->top_k;
  if (o->max_tokens < 0)
    {
      g_set_error (error, QE_ERROR, QE_ERROR_INVALID,
                   "--max-tokens: expected a positive number, found %" G_GINT64_FORMAT,
                   o->max_tokens);
      return FALSE;
    }
  params->max_tokens = (uint32_t)MIN (o->max_tokens, (gint64)G_MAXUINT32);
  params->stop = (const char *const *)o->stop;
  return (o->seed == NULL || parse_seed (o->seed, s, error))
         && (o->thinking == NULL || parse_thinking (o->thinking, &params->thinking, error))
         && qe_sampling_params_check (s, error);
}

static void
on_interrupt (int signal_number)
{
  interrupts = interrupts + 1;
  if (interrupts > 1)
    _exit (CLI_INTERRUPTED);
}

void
cli_watch_interrupt (void)
{
  struct sigaction action = { .sa_handler = on_interrupt };

  sigemptyset (&action.sa_mask);
  sigaction (SIGINT, &action, NULL); /* no SA_RESTART: a waiting read returns */
}

gboolean
cli_take_interrupt (void)
{
  gboolean came = interrupts > 0;

  interrupts = 0;
  return came;
}

void
cli_reply_run (CliReply *reply, qe_request *request, FILE *out)
{
  gboolean cancelled = FALSE;

  *reply = (CliReply){ .text = g_string_new (NULL),
                       .ids = g_array_new (FALSE, FALSE, sizeof (uint32_t)),
                       .logprobs = g_array_new (FALSE, FALSE, sizeof (qe_token_logprobs)) };
  for (gboolean done = FALSE; !done;)
    {
      qe_update update = { 0 };

      if (interrupts > 0 && !cancelled)
        {
          qe_request_cancel (request);
          cancelled = TRUE;
        }
      qe_request_wait (request, INTERRUPT_POLL_MS);
      if (qe_request_take (request, &update))
        {
          g_string_append_len (reply->text, update.text, (gssize)update.n_text);
          if (update.n_ids > 0)
            g_array_append_vals (reply->ids, update.ids, update.n_ids);
          if (update.logprobs != NULL)
            g_array_append_vals (reply->logprobs, update.logprobs, update.n_ids);
          if (out != NULL && update.n_text > 0)
            {
              fwrite (update.text, 1, update.n_text, out);
              fflush (out);
            }
          done = update.state == QE_REQUEST_DONE;
          reply->receipt = update.receipt;
          reply->finish = update.finish;
          reply->error = done ? g_steal_pointer (&update.error) : NULL;
          reply->ranges = g_steal_pointer (&update.ranges); /* with the last */
          reply->n_ranges = update.n_ranges;
        }
      qe_update_clear (&update);
    }
}

void
cli_reply_clear (CliReply *reply)
{
  if (reply->text != NULL)
    g_string_free (reply->text, TRUE);
  g_clear_pointer (&reply->ids, g_array_unref);
  g_clear_pointer (&reply->logprobs, g_array_unref);
  g_clear_pointer (&reply->ranges, g_free);
  g_clear_error (&reply->error);
  reply->text = NULL;
}

gboolean
cli_read_input (const char *path, char **out, gsize *n_out, GError **error)
{
  g_autoptr (GByteArray) bytes = g_byte_array_new ();
  gboolean is_stdin = strcmp (path, "-") == 0;
  FILE *file = is_stdin ? stdin : fopen (path, "rb");
  guint8 buffer[65536];
  gsize n;
  int saved_errno;

  if (file == NULL)
    {
      saved_errno = errno;
      g_set_error (error, QE_ERROR, QE_ERROR_FILE, "%s: %s", path, g_strerror (saved_errno));
      return FALSE;
    }
  while ((n = fread (buffer, 1, sizeof buffer, file)) > 0 && bytes->len <= CLI_INPUT_BYTES_MAX)
    g_byte_array_append (bytes, buffer, (guint)n);
  saved_errno = ferror (file) ? errno : 0;
  if (!is_stdin)
    fclose (file);
  if (saved_errno != 0)
    g_set_error (error, QE_ERROR, QE_ERROR_FILE, "%s: %s", is_stdin ? "standard input" : path,
                 g_strerror (saved_errno));
  else if (bytes->len > CLI_INPUT_BYTES_MAX)
    g_set_error (error, QE_ERROR, QE_ERROR_FILE, "%s: expected at most %u bytes",
                 is_stdin ? "standard input" : path, CLI_INPUT_BYTES_MAX);
  else
    {
      *n_out = bytes->len;
      g_byte_array_append (bytes, (const guint8 *)"", 1);
      *out = (char *)g_byte_array_free (g_steal_pointer (&bytes), FALSE);
      return TRUE;
    }
  return FALSE;
}
