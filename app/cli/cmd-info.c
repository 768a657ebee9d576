/* cmd-info.c: `quire-cli info`: what this build is, where it can compute and why not elsewhere, and model facts. */
#include "app/cli/cli.h"

#include "app/cli/cli-json.h"
#include "app/quire-paths.h"

typedef struct
{
  char *model;
  gboolean json;
} Options;

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
      cli_json_append_string (json, b->reason == NULL ? b->device : b->reason, -1);
      g_string_append_c (json, '}');
    }
  g_string_append_c (json, ']');
}

static void
append_model (GString *json, const qe_model_info *m)
{
  g_string_append (json, "{\"name\": ");
  cli_json_append_string (json, m->name, -1);
  g_string_append (json, ", \"dir\": ");
  cli_json_append_string (json, m->dir, -1);
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
  cli_json_append_number (json, m->temperature, 4);
  g_string_append (json, ", \"top_p\": ");
  cli_json_append_number (json, m->top_p, 4);
  g_string_append_printf (json, ", \"top_k\": %u}", m->top_k);
}

static void
print_text (const GPtrArray *backends, const qe_model_info *m)
{
  printf ("Quire %s\n\nBackends\n", qe_version ());
  for (guint i = 0; i < backends->len; i++)
    {
      const qe_backend_desc *b = g_ptr_array_index (backends, i);

      printf ("  %-5s %s%s\n", b->name, b->reason == NULL ? "" : "not available: ",
              b->reason == NULL ? b->device : b->reason);
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
}

static int
run (const Options *o)
{
  g_autoptr (GError) error = NULL;
  g_autoptr (GPtrArray) backends = qe_list_backends ();
  g_autofree char *dir = o->model != NULL ? g_strdup (o->model) : quire_dup_default_model_dir ();
  g_autoptr (qe_model_info) model = qe_model_info_new (dir, &error);

  if (o->json)
    {
      g_autoptr (GString) json = g_string_new ("{\"version\": ");

      cli_json_append_string (json, qe_version (), -1);
      g_string_append (json, ", ");
      append_backends (json, backends);
      g_string_append (json, ", \"model\": ");
      if (model != NULL)
        append_model (json, model);
      else
        {
          g_string_append (json, "null, \"model_error\": ");
          cli_json_append_string (json, error->message, -1);
        }
      g_string_append_c (json, '}');
      puts (json->str);
    }
  else
    print_text (backends, model);
  return model != NULL ? CLI_OK : cli_fail (CLI_FAILED, "%s", error->message);
}

int
cli_info (int argc, char **argv)
{
  Options o = { 0 };
  GOptionEntry entries[] = {
    { "model", 'm', 0, G_OPTION_ARG_FILENAME, &o.model,
      "Model folder (default: $QUIRE_MODEL, else the shipped model)", "DIR" },
    { "json", 0, 0, G_OPTION_ARG_NONE, &o.json, "Print one JSON object", NULL },
    { NULL },
  };
  GOptionContext *context = g_option_context_new ("- build, backends, model facts");
  int status;

  g_option_context_add_main_entries (context, entries, NULL);
  if (cli_parse (context, &argc, &argv, &status))
    status = argc > 1 ? cli_fail (CLI_USAGE, "info takes no arguments besides options") : run (&o);
  g_free (o.model);
  return status;
}
