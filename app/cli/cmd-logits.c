/* cmd-logits.c: `quire-cli logits`: the likeliest next tokens after exact ids. */
#include "app/cli/cli.h"

#include <math.h>
#include <stdlib.h>

#include "app/cli/cli-json.h"

typedef struct
{
  CliEngineOptions engine;
  char *ids;
  int top;
  gboolean json;
} Options;

static const float *sort_logits; /* qsort() has no user pointer */

static int
by_logit (const void *a, const void *b)
{
  uint32_t i = *(const uint32_t *)a, j = *(const uint32_t *)b;

  if (sort_logits[i] != sort_logits[j])
    return sort_logits[i] > sort_logits[j] ? -1 : 1;
  return i < j ? -1 : i > j;
}

static GArray *
parse_ids (const char *text, uint32_t vocab, GError **error)
{
  g_auto (GStrv) fields = g_strsplit_set (text, ", ", -1);
  g_autoptr (GArray) ids = g_array_new (FALSE, FALSE, sizeof (uint32_t));

  for (char **f = fields; *f != NULL; f++)
    {
      guint64 value;
      uint32_t id;

      if ((*f)[0] == '\0')
        continue;
      if (!g_ascii_string_to_unsigned (*f, 10, 0, vocab - 1, &value, NULL))
        {
          g_set_error (error, QE_ERROR, QE_ERROR_INVALID,
                       "--ids: expected token ids from 0 to %u, found “%s”", vocab - 1, *f);
          return NULL;
        }
      id = (uint32_t)value;
      g_array_append_val (ids, id);
    }
  if (ids->len == 0)
    {
      g_set_error (error, QE_ERROR, QE_ERROR_INVALID, "--ids: expected at least one token id");
      return NULL;
    }
  return g_steal_pointer (&ids);
}

static void
print_top (const Options *o, const float *logits, uint32_t vocab, uint32_t n_ids,
           qe_tokenizer *tokenizer)
{
  uint32_t *order = g_new (uint32_t, vocab);
  g_autoptr (GString) json = g_string_new (NULL);
  double sum = 0, max = -INFINITY, log_sum;
  guint n = MIN ((guint)o->top, vocab);

  for (uint32_t i = 0; i < vocab; i++)
    {
      order[i] = i;
      max = MAX (max, logits[i]);
    }
  for (uint32_t i = 0; i < vocab; i++)
    sum += exp (logits[i] - max);
  log_sum = max + log (sum);
  sort_logits = logits;
  qsort (order, vocab, sizeof *order, by_logit);

  g_string_append_printf (json, "{\"n_ids\": %u, \"top\": [", n_ids);
  for (guint i = 0; i < n; i++)
    {
      gsize length;
      uint32_t id = order[i];
      g_autofree char *text = qe_tokenizer_decode (tokenizer, &id, 1, false, &length);
      g_autoptr (GString) quoted = g_string_new (NULL);

      quire_json_add_string (quoted, text, (gssize)length);
      if (!o->json)
        printf ("%8u  %10.4f  %9.4f  %s\n", id, logits[id], logits[id] - log_sum, quoted->str);
      g_string_append_printf (json, "%s{\"id\": %u, \"logit\": ", i > 0 ? ", " : "", id);
      quire_json_add_number (json, logits[id], 6);
      g_string_append (json, ", \"logprob\": ");
      quire_json_add_number (json, logits[id] - log_sum, 6);
      g_string_append_printf (json, ", \"text\": %s}", quoted->str);
    }
  if (o->json)
    printf ("%s]}\n", json->str);
  g_free (order);
}

static int
run (const Options *o)
{
  g_autoptr (GError) error = NULL;
  g_autoptr (qe_model_info) info = NULL;
  g_autoptr (qe_engine) engine = NULL;
  g_autoptr (GArray) ids = NULL;
  float *logits;
  int status;

  if (o->ids == NULL)
    return cli_fail (CLI_USAGE, "logits needs --ids");
  if (o->top < 1)
    return cli_fail (CLI_USAGE, "--top: expected 1 or more, found %d", o->top);
  engine = cli_engine_start (&o->engine, 0, &info, &status);
  if (engine == NULL)
    return status;
  ids = parse_ids (o->ids, info->vocab, &error);
  if (ids == NULL)
    return cli_fail (CLI_USAGE, "%s", error->message);
  logits = g_new (float, info->vocab);
  if (qe_engine_eval (engine, 0, (const uint32_t *)(gpointer)ids->data, ids->len, ids->len - 1,
                      logits, &error))
    {
      qe_tokenizer *tokenizer = qe_engine_dup_tokenizer (engine);
      print_top (o, logits, info->vocab, ids->len, tokenizer);
      qe_tokenizer_unref (tokenizer);
      status = CLI_OK;
    }
  else
    status = cli_fail (CLI_FAILED, "%s", error->message);
  g_free (logits);
  return status;
}

int
cli_logits (int argc, char **argv)
{
  Options o = { .top = 10 };
  GOptionEntry entries[] = {
    { "ids", 'i', 0, G_OPTION_ARG_STRING, &o.ids,
      "The tokens before, separated by commas or spaces", "IDS" },
    { "top", 0, 0, G_OPTION_ARG_INT, &o.top, "How many to print (default: 10)", "N" },
    { "json", 0, 0, G_OPTION_ARG_NONE, &o.json,
      "Print {\"n_ids\", \"top\": [{id, logit, logprob, text}]}", NULL },
    { NULL },
  };
  GOptionContext *context = g_option_context_new ("- the likeliest next tokens after exact ids");
  int status;

  g_option_context_add_main_entries (context, entries, NULL);
  g_option_context_add_group (context, cli_engine_options_group (&o.engine));
  if (cli_parse (context, &argc, &argv, &status))
    status
        = argc > 1 ? cli_fail (CLI_USAGE, "logits takes no arguments besides options") : run (&o);
  g_free (o.ids);
  cli_engine_options_clear (&o.engine);
  return status;
}
