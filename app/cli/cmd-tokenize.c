/* cmd-tokenize.c: `quire-cli tokenize`: text to ids and back. Needs only the tokenizer files of a model. */
#include "app/cli/cli.h"

#include <string.h>

#include "app/cli/cli-json.h"
#include "app/quire-paths.h"

typedef struct
{
  char *model;
  char *decode;
  gboolean json, batch, added_tokens;
} Options;

static gboolean
append_ids (GString *out, const qe_tokenizer *tokenizer, const Options *o, const char *text,
            gsize n, const char *separator, GError **error)
{
  g_autoptr (GArray) ids = g_array_new (FALSE, FALSE, sizeof (uint32_t));

  if (!qe_tokenizer_encode (tokenizer, text, n,
                            o->added_tokens ? QE_ENCODE_ADDED_TOKENS : QE_ENCODE_PLAIN, ids, error))
    return FALSE;
  for (guint i = 0; i < ids->len; i++)
    g_string_append_printf (out, "%s%u", i > 0 ? separator : "", g_array_index (ids, uint32_t, i));
  return TRUE;
}

static gboolean
run_batch (const qe_tokenizer *tokenizer, const Options *o, GError **error)
{
  g_autofree char *json = NULL;
  g_autoptr (GPtrArray) strings = NULL;
  g_autoptr (GString) out = g_string_new ("[");
  gsize n;

  if (!cli_read_input ("-", &json, &n, error))
    return FALSE;
  strings = cli_json_read_strings ("standard input", json, n, error);
  if (strings == NULL)
    return FALSE;
  for (guint i = 0; i < strings->len; i++)
    {
      const GString *s = g_ptr_array_index (strings, i);

      g_string_append (out, i > 0 ? ",\n[" : "[");
      if (!append_ids (out, tokenizer, o, s->str, s->len, ",", error))
        return FALSE;
      g_string_append_c (out, ']');
    }
  g_string_append_c (out, ']');
  puts (out->str);
  return TRUE;
}

static gboolean
run_text (const qe_tokenizer *tokenizer, const Options *o, const char *text, gsize n,
          GError **error)
{
  g_autoptr (GString) out = g_string_new (o->json ? "{\"ids\": [" : "");

  if (!append_ids (out, tokenizer, o, text, n, o->json ? ", " : " ", error))
    return FALSE;
  if (o->json)
    g_string_append (out, "]}");
  puts (out->str);
  return TRUE;
}

static gboolean
run_decode (const qe_tokenizer *tokenizer, const Options *o, GError **error)
{
  g_auto (GStrv) fields = g_strsplit_set (o->decode, ", ", -1);
  g_autoptr (GArray) ids = g_array_new (FALSE, FALSE, sizeof (uint32_t));
  g_autofree char *text = NULL;
  gsize n;

  for (char **f = fields; *f != NULL; f++)
    {
      guint64 value;
      uint32_t id;

      if ((*f)[0] == '\0')
        continue;
      if (!g_ascii_string_to_unsigned (*f, 10, 0, G_MAXUINT32, &value, NULL))
        {
          g_set_error (error, QE_ERROR, QE_ERROR_INVALID,
                       "--decode: expected token ids, found “%s”", *f);
          return FALSE;
        }
      id = (uint32_t)value;
      g_array_append_val (ids, id);
    }
  text
      = qe_tokenizer_decode (tokenizer, (const uint32_t *)(gpointer)ids->data, ids->len, false, &n);
  if (o->json)
    {
      g_autoptr (GString) out = g_string_new ("{\"text\": ");
      quire_json_add_string (out, text, (gssize)n);
      g_string_append_c (out, '}');
      puts (out->str);
    }
  else
    {
      fwrite (text, 1, n, stdout);
      putchar ('\n');
    }
  return TRUE;
}

static int
run (const Options *o, int argc, char **argv)
{
  g_autoptr (GError) error = NULL;
  g_autofree char *dir = o->model != NULL ? g_strdup (o->model) : quire_dup_default_model_dir ();
  g_autofree char *input = NULL;
  qe_tokenizer *tokenizer;
  gboolean ok;
  gsize n;

  if ((o->batch && (argc > 1 || o->json)) || (o->decode != NULL && (argc > 1 || o->batch))
      || argc > 2)
    return cli_fail (CLI_USAGE, "tokenize takes one TEXT, or --batch, or --decode IDS");
  tokenizer = qe_tokenizer_new (dir, &error);
  if (tokenizer == NULL)
    return cli_fail (CLI_FAILED, "%s", error->message);
  if (o->batch)
    ok = run_batch (tokenizer, o, &error);
  else if (o->decode != NULL)
    ok = run_decode (tokenizer, o, &error);
  else if (argc == 2 && strcmp (argv[1], "-") != 0)
    ok = run_text (tokenizer, o, argv[1], strlen (argv[1]), &error);
  else
    ok = cli_read_input ("-", &input, &n, &error) && run_text (tokenizer, o, input, n, &error);
  qe_tokenizer_unref (tokenizer);
  return ok ? CLI_OK : cli_fail (CLI_FAILED, "%s", error->message);
}

int
cli_tokenize (int argc, char **argv)
{
  Options o = { 0 };
  GOptionEntry entries[] = {
    { "model", 'm', 0, G_OPTION_ARG_FILENAME, &o.model,
      "Folder with tokenizer.json (default: $QUIRE_MODEL, else the shipped model)", "DIR" },
    { "json", 0, 0, G_OPTION_ARG_NONE, &o.json, "Print {\"ids\": [...]}", NULL },
    { "batch", 0, 0, G_OPTION_ARG_NONE, &o.batch,
      "Read a JSON array of strings from standard input, print an array of id arrays", NULL },
    { "added-tokens", 0, 0, G_OPTION_ARG_NONE, &o.added_tokens,
      "Recognise added tokens such as <|im_start|> in the text", NULL },
    { "decode", 'd', 0, G_OPTION_ARG_STRING, &o.decode,
      "Ids to text, separated by commas or spaces", "IDS" },
    { NULL },
  };
  GOptionContext *context = g_option_context_new ("[TEXT] - text to token ids and back");
  int status;

  g_option_context_set_description (context, "Without TEXT, or with “-”, the text is read from "
                                             "standard input, its final newline included.\n");
  g_option_context_add_main_entries (context, entries, NULL);
  if (cli_parse (context, &argc, &argv, &status))
    status = run (&o, argc, argv);
  g_free (o.model);
  g_free (o.decode);
  return status;
}
