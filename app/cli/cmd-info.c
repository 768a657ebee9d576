/* cmd-info.c: `quire-cli info`: what this build is, where it can compute and why not elsewhere, and model facts. */
#include "app/cli/cli.h"

#include "app/cli/cli-json.h"
#include "app/quire-flatpak-gpu.h"
#include "app/quire-paths.h"

typedef struct
{
  CliEngineOptions engine;
  CliCacheOptions cache;
  gboolean json;
} Options;

/* Contexts whose cost is shown: powers of two, and the model's own at the end. */
#define COST_TOKENS_FIRST 2048u
#define COST_TOKENS_LAST 262144u
#define COSTS_MAX 9

static void
append_devices (GString *json, const GPtrArray *devices)
{
  g_string_append (json, "\"devices\": [");
  for (guint i = 0; i < devices->len; i++)
    {
      const qe_device_desc *d = g_ptr_array_index (devices, i);

      g_string_append_printf (json, "%s{\"index\": %u, \"id\": ", i > 0 ? ", " : "", i);
      quire_json_add_string (json, d->id, -1);
      g_string_append (json, ", \"name\": ");
      quire_json_add_string (json, d->name, -1);
      g_string_append_printf (
          json, ", \"memory_total\": %" G_GUINT64_FORMAT ", \"memory_free\": %" G_GUINT64_FORMAT,
          d->memory_total, d->memory_free);
      if (d->reason != NULL)
        {
          g_string_append (json, ", \"reason\": ");
          quire_json_add_string (json, d->reason, -1);
        }
      g_string_append_c (json, '}');
    }
  g_string_append_c (json, ']');
}

static guint
cost_contexts (const qe_model_info *model, uint32_t out[COSTS_MAX])
{
  guint n = 0;

  for (uint32_t tokens = COST_TOKENS_FIRST;
       tokens < model->context_max && tokens <= COST_TOKENS_LAST; tokens *= 2)
    out[n++] = tokens;
  if (model->context_max <= COST_TOKENS_LAST)
    out[n++] = model->context_max;
  return n;
}

/* What @tokens cost in @mode with the limits of @base, which hold in the tiered modes alone. */
static void
cost_of (const qe_memory_plan *plan, const qe_cache_config *base, qe_cache_mode mode,
         uint32_t tokens, qe_cache_cost *out)
{
  qe_cache_config config = *base;

  config.mode = mode;
  if (mode != QE_CACHE_TIERED && mode != QE_CACHE_TIERED_INT8 && mode != QE_CACHE_SELECTIVE)
    config.gpu_max_length = config.hot_cache_length = 0;
  qe_cache_cost_of (plan, &config, tokens, out);
}

/* Up to which context the mode is exact, of @tokens. */
static uint32_t
exact_tokens (const qe_cache_config *base, int mode, uint32_t tokens)
{
  if (mode == QE_CACHE_TIERED_INT8)
    return 0;
  return mode == QE_CACHE_SELECTIVE ? MIN (tokens, qe_cache_identity_tokens (base)) : tokens;
}

static void
append_costs (GString *json, const qe_memory_plan *plan, const qe_cache_config *base,
              const qe_model_info *model)
{
  uint32_t contexts[COSTS_MAX];
  guint n = cost_contexts (model, contexts);
  gboolean first = TRUE;

  g_string_append (json, "\"costs\": [");
  for (guint i = 0; i < n; i++)
    for (int mode = QE_CACHE_REBUILD; mode < QE_N_CACHE_MODES; mode++)
      {
        qe_cache_cost cost;

        cost_of (plan, base, (qe_cache_mode)mode, contexts[i], &cost);
        g_string_append_printf (
            json,
            "%s{\"tokens\": %u, \"mode\": \"%s\", \"fits\": %s, \"bytes\": %" G_GUINT64_FORMAT
            ", \"device_bytes\": %" G_GUINT64_FORMAT ", \"host_bytes\": %" G_GUINT64_FORMAT
            ", \"bounds_bytes\": %" G_GUINT64_FORMAT ", \"device_tokens\": %" G_GUINT64_FORMAT
            ", \"host_tokens\": %" G_GUINT64_FORMAT ", \"exact_tokens\": %u}",
            first ? "" : ", ", contexts[i], qe_cache_mode_name ((qe_cache_mode)mode),
            cost.fits ? "true" : "false", cost.bytes, cost.device_bytes, cost.host_bytes,
            cost.bounds_bytes, cost.device_tokens, cost.host_tokens,
            exact_tokens (base, mode, contexts[i]));
        first = FALSE;
      }
  g_string_append_c (json, ']');
}

static void
print_costs (const qe_memory_plan *plan, const qe_cache_config *base, const qe_model_info *model)
{
  uint32_t contexts[COSTS_MAX];
  guint n = cost_contexts (model, contexts);

  printf ("\nKV cache of one conversation alone, MiB by mode (a+b: a on the device, b in host "
          "memory)\n%8s",
          "tokens");
  for (int mode = QE_CACHE_REBUILD; mode < QE_N_CACHE_MODES; mode++)
    printf ("  %14s", qe_cache_mode_name ((qe_cache_mode)mode));
  for (guint i = 0; i < n; i++)
    {
      printf ("\n%8u", contexts[i]);
      for (int mode = QE_CACHE_REBUILD; mode < QE_N_CACHE_MODES; mode++)
        {
          qe_cache_cost cost;
          char cell[64];

          cost_of (plan, base, (qe_cache_mode)mode, contexts[i], &cost);
          if (!cost.fits)
            g_strlcpy (cell, "does not fit", sizeof cell);
          else if (cost.host_bytes > 0)
            g_snprintf (cell, sizeof cell, "%.1f+%.1f", (double)cost.device_bytes / (1 << 20),
                        (double)cost.host_bytes / (1 << 20));
          else
            g_snprintf (cell, sizeof cell, "%.1f", (double)cost.bytes / (1 << 20));
          printf ("  %14s", cell);
        }
    }
  printf (
      "\ntiered-int8 is approximate. selective is exact up to %u tokens and approximate above; "
      "its figures there\ncount the bounds that it chooses pages by, a 16th more, always on the "
      "device.\n",
      qe_cache_identity_tokens (base));
}

/* How a card reads host pages; nothing without. */
static void
append_host_path (GString *json, const char *name, qe_host_path path, const char *why)
{
  if (why == NULL)
    return;
  g_string_append_printf (json, ", \"%s\": {\"path\": \"%s\", \"why\": ", name,
                          qe_host_path_name (path));
  quire_json_add_string (json, why, -1);
  g_string_append_c (json, '}');
}

static void
append_plan (GString *json, const qe_memory_plan *plan)
{
  g_string_append (json, "{\"backend\": ");
  quire_json_add_string (json, plan->backend, -1);
  g_string_append (json, ", \"device\": ");
  quire_json_add_string (json, plan->device, -1);
  g_string_append_printf (
      json,
      ", \"memory_total\": %" G_GUINT64_FORMAT ", \"memory_free\": %" G_GUINT64_FORMAT
      ", \"reserve\": %" G_GUINT64_FORMAT ", \"weights\": %" G_GUINT64_FORMAT
      ", \"workspace\": %" G_GUINT64_FORMAT ", \"kv\": %" G_GUINT64_FORMAT
      ", \"kv_tokens\": %" G_GUINT64_FORMAT ", \"host_kv\": %" G_GUINT64_FORMAT
      ", \"host_kv_tokens\": %" G_GUINT64_FORMAT ", \"page_bytes\": %" G_GUINT64_FORMAT
      ", \"page_bytes_int8\": %" G_GUINT64_FORMAT,
      plan->memory_total, plan->memory_free, plan->reserve, plan->weights, plan->workspace,
      plan->kv, plan->kv_tokens, plan->host_kv, plan->host_kv_tokens, plan->page_bytes,
      plan->page_bytes_int8);
  append_host_path (json, "host_path", plan->host_path, plan->host_path_why);
  append_host_path (json, "host_path_int8", plan->host_path_int8, plan->host_path_int8_why);
  if (plan->problem != NULL)
    {
      g_string_append (json, ", \"problem\": ");
      quire_json_add_string (json, plan->problem, -1);
    }
  g_string_append_c (json, '}');
}

static void
print_bytes (const char *what, guint64 bytes, const char *more)
{
  g_autofree char *text = g_format_size_full (bytes, G_FORMAT_SIZE_IEC_UNITS);

  printf ("  %-10s %10s%s\n", what, text, more);
}

/* What a load with these options would take. */
static void
print_plan (const qe_memory_plan *plan)
{
  g_autofree char *tokens = g_strdup_printf ("  %" G_GUINT64_FORMAT " tokens", plan->kv_tokens);
  g_autofree char *host_tokens
      = g_strdup_printf ("  %" G_GUINT64_FORMAT " tokens", plan->host_kv_tokens);

  printf ("\nMemory on %s\n", plan->device);
  if (plan->on_device)
    {
      print_bytes ("free", plan->memory_free, "");
      print_bytes ("weights", plan->weights, "");
      print_bytes ("workspace", plan->workspace, "");
      print_bytes ("reserve", plan->reserve, "  left to the desktop");
    }
  else
    print_bytes ("weights", plan->weights, "  read from the files");
  if (plan->problem != NULL)
    printf ("  %s\n", plan->problem);
  else
    print_bytes ("cache", plan->kv, tokens);
  if (plan->host_kv > 0)
    print_bytes ("host cache", plan->host_kv, host_tokens);
  else
    printf ("  %-10s %10s  no host memory for pages beside it\n", "host cache", "none");
  if (plan->host_path_why != NULL)
    printf ("  %-10s %10s  %s\n", "read by", qe_host_path_name (plan->host_path),
            plan->host_path_why);
  if (plan->host_path_int8_why != NULL)
    printf ("  %-10s %10s  %s\n", "  int8", qe_host_path_name (plan->host_path_int8),
            plan->host_path_int8_why);
}

static void
append_backends (GString *json, const GPtrArray *backends)
{
  g_string_append (json, "\"backends\": [");
  for (guint i = 0; i < backends->len; i++)
    {
      const qe_backend_desc *b = g_ptr_array_index (backends, i);

      g_string_append_printf (json, "%s{\"name\": \"%s\", \"available\": %s, ", i > 0 ? ", " : "",
                              b->name, b->reason == NULL ? "true" : "false");
      g_string_append (json, b->reason == NULL ? "\"device\": " : "\"reason\": ");
      quire_json_add_string (json, b->reason == NULL ? b->device : b->reason, -1);
      g_string_append_c (json, '}');
    }
  g_string_append_c (json, ']');
}

static void
append_model (GString *json, const qe_model_info *m)
{
  g_string_append (json, "{\"name\": ");
  quire_json_add_string (json, m->name, -1);
  g_string_append (json, ", \"dir\": ");
  quire_json_add_string (json, m->dir, -1);
  g_string_append_printf (
      json,
      ", \"parameters\": %" G_GUINT64_FORMAT ", \"weight_bytes\": %" G_GUINT64_FORMAT
      ", \"kv_bytes_per_token\": %" G_GUINT64_FORMAT
      ", \"layers\": %u, \"heads\": %u, \"kv_heads\": %u, \"head_dim\": %u, \"hidden\": %u, "
      "\"ffn\": %u"
      ", \"vocab\": %u, \"context\": %u, \"tied_embeddings\": %s, \"thinking\": %s",
      m->n_params, m->weight_bytes, m->kv_bytes_per_token, m->n_layers, m->n_heads, m->n_kv_heads,
      m->head_dim, m->hidden, m->ffn, m->vocab, m->context_max,
      m->tied_embeddings ? "true" : "false", m->has_thinking ? "true" : "false");
  g_string_append (json, ", \"temperature\": ");
  quire_json_add_number (json, m->temperature, 4);
  g_string_append (json, ", \"top_p\": ");
  quire_json_add_number (json, m->top_p, 4);
  g_string_append_printf (json, ", \"top_k\": %u}", m->top_k);
}

/* In a Flatpak there are reasons that the engine cannot know. */
static void
append_flatpak_problems (GString *json)
{
  const GPtrArray *problems = quire_flatpak_gpu_get_problems ();

  if (problems == NULL)
    return;
  g_string_append (json, ", \"flatpak_problems\": [");
  for (guint i = 0; i < problems->len; i++)
    {
      const QuireFlatpakGpuProblem *problem = g_ptr_array_index (problems, i);

      g_string_append_printf (json, "%s{\"cause\": \"%s\", \"reason\": ", i > 0 ? ", " : "",
                              quire_flatpak_gpu_cause_name (problem->cause));
      quire_json_add_string (json, problem->reason, -1);
      if (problem->command != NULL)
        {
          g_string_append (json, ", \"command\": ");
          quire_json_add_string (json, problem->command, -1);
        }
      g_string_append_c (json, '}');
    }
  g_string_append_c (json, ']');
}

static void
print_flatpak_problems (void)
{
  const GPtrArray *problems = quire_flatpak_gpu_get_problems ();

  for (guint i = 0; problems != NULL && i < problems->len; i++)
    {
      const QuireFlatpakGpuProblem *problem = g_ptr_array_index (problems, i);

      printf ("        %s\n", problem->reason);
      if (problem->command != NULL)
        printf ("          %s\n", problem->command);
    }
}

static void
print_text (const GPtrArray *backends, const GPtrArray *devices, const qe_model_info *m,
            const qe_memory_plan *plan, const qe_cache_config *cache)
{
  printf ("Quire %s\n\nBackends\n", qe_version ());
  for (guint i = 0; i < backends->len; i++)
    {
      const qe_backend_desc *b = g_ptr_array_index (backends, i);

      printf ("  %-5s %s%s\n", b->name, b->reason == NULL ? "" : "not available: ",
              b->reason == NULL ? b->device : b->reason);
      if (b->reason != NULL && strcmp (b->name, "cuda") == 0)
        print_flatpak_problems ();
    }
  if (devices->len > 0)
    printf ("\nGraphics cards\n");
  for (guint i = 0; i < devices->len; i++)
    {
      const qe_device_desc *d = g_ptr_array_index (devices, i);
      g_autofree char *all = g_format_size_full (d->memory_total, G_FORMAT_SIZE_IEC_UNITS);
      g_autofree char *free_text = g_format_size_full (d->memory_free, G_FORMAT_SIZE_IEC_UNITS);

      printf ("  %-2u %s, %s free of %s\n     %s\n", i, d->name, free_text, all, d->id);
      if (d->reason != NULL)
        printf ("     %s\n", d->reason);
    }
  if (m == NULL)
    return;
  g_autofree char *weights = g_format_size_full (m->weight_bytes, G_FORMAT_SIZE_IEC_UNITS);
  g_autofree char *kv = g_format_size_full (m->kv_bytes_per_token, G_FORMAT_SIZE_IEC_UNITS);
  printf ("\nModel\n  %s\n  %s\n", m->name, m->dir);
  printf ("  %.1f million parameters, %s of weights\n", (double)m->n_params / 1e6, weights);
  printf (
      "  %u layers, %u query and %u KV heads of %u, hidden %u, feed-forward %u, vocabulary %u\n",
      m->n_layers, m->n_heads, m->n_kv_heads, m->head_dim, m->hidden, m->ffn, m->vocab);
  printf ("  context %u tokens, KV cache %s a token\n", m->context_max, kv);
  if (plan == NULL)
    return;
  print_plan (plan);
  print_costs (plan, cache, m);
}

static int
run (const Options *o)
{
  g_autoptr (GError) error = NULL;
  g_autoptr (GPtrArray) backends = qe_list_backends ();
  g_autoptr (GPtrArray) devices = qe_list_devices ();
  g_autofree char *dir
      = o->engine.model != NULL ? g_strdup (o->engine.model) : quire_dup_default_model_dir ();
  g_autoptr (qe_model_info) model = NULL;
  g_autoptr (qe_memory_plan) plan = NULL;
  qe_engine_options options;
  qe_cache_config cache;
  int status = CLI_OK;

  if (!cli_cache_options_apply (&o->cache, &cache, &error))
    return cli_fail (CLI_USAGE, "%s", error->message);
  if (!cli_engine_options_apply (&o->engine, &options, &status))
    return status;
  model = qe_model_info_new (dir, &error);
  if (model != NULL)
    plan = qe_plan_memory (&options, dir, &error);
  if (o->json)
    {
      g_autoptr (GString) json = g_string_new ("{\"version\": ");

      quire_json_add_string (json, qe_version (), -1);
      g_string_append (json, ", ");
      append_backends (json, backends);
      g_string_append (json, ", ");
      append_devices (json, devices);
      append_flatpak_problems (json);
      if (plan != NULL)
        {
          g_string_append (json, ", \"memory\": ");
          append_plan (json, plan);
          if (model != NULL)
            {
              g_string_append (json, ", ");
              append_costs (json, plan, &cache, model);
            }
        }
      g_string_append (json, ", \"model\": ");
      if (model != NULL)
        append_model (json, model);
      else
        {
          g_string_append (json, "null, \"model_error\": ");
          quire_json_add_string (json, error->message, -1);
        }
      g_string_append_c (json, '}');
      puts (json->str);
    }
  else
    print_text (backends, devices, model, plan, &cache);
  return error == NULL ? CLI_OK : cli_fail (CLI_FAILED, "%s", error->message);
}

int
cli_info (int argc, char **argv)
{
  Options o = { 0 };
  GOptionEntry entries[] = {
    { "json", 0, 0, G_OPTION_ARG_NONE, &o.json, "Print one JSON object", NULL },
    { NULL },
  };
  GOptionContext *context = g_option_context_new ("- build, backends, cards, model facts, memory");
  int status;

  g_option_context_add_main_entries (context, entries, NULL);
  g_option_context_add_group (context, cli_cache_options_group (&o.cache));
  g_option_context_add_group (context, cli_engine_options_group (&o.engine));
  if (cli_parse (context, &argc, &argv, &status))
    status = argc > 1 ? cli_fail (CLI_USAGE, "info takes no arguments besides options") : run (&o);
  cli_cache_options_clear (&o.cache);
  cli_engine_options_clear (&o.engine);
  return status;
}
