/* cmd-generate.c: `quire-cli generate`: one prompt or conversation in, the reply out. */
#include "app/cli/cli.h"

#include <string.h>

#include "app/cli/cli-json.h"
#include "app/quire-receipt.h"

typedef struct
{
  CliEngineOptions engine;
  CliCacheOptions cache;
  CliSamplingOptions sampling;
  char *prompt;
  char *system;
  char *messages;
  char *cache_key;
  char *json_schema;
  int n_logprobs; /* -1: none */
  gboolean raw, added_tokens, json, json_object;
} Options;

/* What the model is given: messages through the template, or raw ids. */
typedef struct
{
  GPtrArray *owned; /* CliMessage */
  GArray *messages; /* qe_message, borrows from owned */
  GArray *ids;      /* raw */
} Prompt;

static void
prompt_clear (Prompt *prompt)
{
  g_clear_pointer (&prompt->owned, g_ptr_array_unref);
  g_clear_pointer (&prompt->messages, g_array_unref);
  g_clear_pointer (&prompt->ids, g_array_unref);
}

static gboolean
parse_role (const char *text, qe_role *out)
{
  static const char *const names[] = { "system", "user", "assistant" };

  for (guint i = 0; i < G_N_ELEMENTS (names); i++)
    if (strcmp (text, names[i]) == 0)
      {
        *out = (qe_role)i;
        return TRUE;
      }
  return FALSE;
}

static gboolean
add_messages_file (Prompt *prompt, const char *path, GError **error)
{
  const char *name = strcmp (path, "-") == 0 ? "standard input" : path;
  g_autofree char *json = NULL;
  gsize n;

  if (!cli_read_input (path, &json, &n, error))
    return FALSE;
  prompt->owned = cli_json_read_messages (name, json, n, error);
  if (prompt->owned == NULL)
    return FALSE;
  for (guint i = 0; i < prompt->owned->len; i++)
    {
      const CliMessage *m = g_ptr_array_index (prompt->owned, i);
      qe_message message = { .text = m->content->str, .n_bytes = (gssize)m->content->len };

      if (!parse_role (m->role, &message.role))
        {
          g_set_error (error, QE_ERROR, QE_ERROR_FORMAT,
                       "%s: message %u: role: expected system, user or assistant, found “%s”", name,
                       i, m->role);
          return FALSE;
        }
      g_array_append_val (prompt->messages, message);
    }
  return TRUE;
}

static gboolean
prompt_build (Prompt *prompt, const Options *o, qe_engine *engine, GError **error)
{
  g_autofree char *text = NULL;
  gsize n = 0;

  prompt->messages = g_array_new (FALSE, FALSE, sizeof (qe_message));
  if (o->messages != NULL)
    return add_messages_file (prompt, o->messages, error);
  if (strcmp (o->prompt, "-") == 0)
    {
      if (!cli_read_input ("-", &text, &n, error))
        return FALSE;
    }
  else
    {
      text = g_strdup (o->prompt);
      n = strlen (text);
    }
  if (o->raw)
    {
      qe_tokenizer *tokenizer = qe_engine_dup_tokenizer (engine);
      gboolean ok;

      prompt->ids = g_array_new (FALSE, FALSE, sizeof (uint32_t));
      ok = qe_tokenizer_encode (tokenizer, text, n,
                                o->added_tokens ? QE_ENCODE_ADDED_TOKENS : QE_ENCODE_PLAIN,
                                prompt->ids, error);
      qe_tokenizer_unref (tokenizer);
      return ok;
    }
  prompt->owned = g_ptr_array_new_with_free_func ((GDestroyNotify)cli_message_free);
  for (int i = o->system != NULL ? 0 : 1; i < 2; i++)
    {
      CliMessage *m = g_new0 (CliMessage, 1);
      qe_message message = { .role = i == 0 ? QE_ROLE_SYSTEM : QE_ROLE_USER };

      m->content = i == 0 ? g_string_new (o->system) : g_string_new_len (text, (gssize)n);
      message.text = m->content->str;
      message.n_bytes = (gssize)m->content->len;
      g_ptr_array_add (prompt->owned, m);
      g_array_append_val (prompt->messages, message);
    }
  return TRUE;
}

/* The bytes of a token, since it may begin or end inside a character. */
static void
append_token (GString *json, const qe_tokenizer *tokenizer, uint32_t id, float logprob)
{
  gsize n = 0;
  const char *bytes = qe_tokenizer_token_bytes (tokenizer, id, &n);

  g_string_append_printf (json, "{\"id\": %u, \"bytes\": [", id);
  for (gsize i = 0; i < n; i++)
    g_string_append_printf (json, "%s%u", i > 0 ? ", " : "", (guchar)bytes[i]);
  g_string_append (json, "], \"logprob\": ");
  quire_json_add_number (json, (double)logprob, 6);
}

static void
append_logprobs (GString *json, const CliReply *reply, qe_engine *engine)
{
  qe_tokenizer *tokenizer = qe_engine_dup_tokenizer (engine);

  g_string_append (json, ", \"logprobs\": [");
  for (guint i = 0; i < reply->logprobs->len; i++)
    {
      const qe_token_logprobs *l = &g_array_index (reply->logprobs, qe_token_logprobs, i);

      g_string_append (json, i > 0 ? ", " : "");
      append_token (json, tokenizer, l->id, l->logprob);
      g_string_append (json, ", \"top\": [");
      for (uint32_t k = 0; k < l->n_top; k++)
        {
          g_string_append (json, k > 0 ? ", " : "");
          append_token (json, tokenizer, l->top[k].id, l->top[k].logprob);
          g_string_append_c (json, '}');
        }
      g_string_append (json, "]}");
    }
  g_string_append_c (json, ']');
  qe_tokenizer_unref (tokenizer);
}

/* The tokens of each message, the template's included. */
static void
append_ranges (GString *json, const CliReply *reply)
{
  static const char *const roles[] = { "system", "user", "assistant", "tool" };

  g_string_append (json, ", \"messages\": [");
  for (guint i = 0; i < reply->n_ranges; i++)
    g_string_append_printf (json, "%s{\"role\": \"%s\", \"begin\": %u, \"end\": %u}",
                            i > 0 ? ", " : "", roles[reply->ranges[i].role], reply->ranges[i].begin,
                            reply->ranges[i].end);
  g_string_append_c (json, ']');
}

static void
print_json (const CliReply *reply, const qe_model_info *info, qe_engine *engine, gboolean logprobs)
{
  const qe_receipt *r = &reply->receipt;
  g_autoptr (GString) json = g_string_new ("{\"model\": ");

  quire_json_add_string (json, info->name, -1);
  g_string_append (json, ", \"text\": ");
  quire_json_add_string (json, reply->text->str, (gssize)reply->text->len);
  g_string_append (json, ", \"ids\": [");
  for (guint i = 0; i < reply->ids->len; i++)
    g_string_append_printf (json, "%s%u", i > 0 ? ", " : "",
                            g_array_index (reply->ids, uint32_t, i));
  g_string_append_printf (
      json, "], \"finish_reason\": \"%s\", \"seed\": %" G_GUINT64_FORMAT ", \"usage\": ",
      qe_finish_name (reply->finish), r->seed);
  quire_receipt_add_usage (json, r->n_prompt, r->n_generated, r->n_reused);
  g_string_append (json, ", \"timings\": ");
  quire_receipt_add_timings (json, r);
  g_string_append (json, ", \"cache\": ");
  quire_receipt_add_cache (json, r);
  append_ranges (json, reply);
  if (logprobs)
    append_logprobs (json, reply, engine);
  g_string_append_c (json, '}');
  puts (json->str);
}

/* *@out: NULL when none is asked for. */
static gboolean
make_constraint (const Options *o, qe_constraint **out, GError **error)
{
  g_autofree char *schema = NULL;
  gsize n;

  *out = NULL;
  if (o->json_object)
    *out = qe_constraint_new_json_object ();
  if (o->json_schema == NULL)
    return TRUE;
  if (!cli_read_input (o->json_schema, &schema, &n, error))
    return FALSE;
  *out = qe_constraint_new_json_schema (schema, (gssize)n, error);
  return *out != NULL;
}

static int
generate (const Options *o)
{
  g_autoptr (GError) error = NULL;
  g_autoptr (qe_model_info) info = NULL;
  g_autoptr (qe_request) request = NULL;
  g_autoptr (qe_engine) engine = NULL;
  g_autoptr (qe_constraint) constraint = NULL;
  Prompt prompt = { 0 };
  CliReply reply = { 0 };
  qe_generate_params params;
  qe_cache_config cache;
  int status = CLI_OK;

  if (!cli_cache_options_apply (&o->cache, &cache, &error))
    return cli_fail (CLI_USAGE, "%s", error->message);
  if (!make_constraint (o, &constraint, &error))
    return cli_fail (CLI_FAILED, "%s", error->message);
  engine = cli_engine_start (&o->engine, 0, &info, &status);
  if (engine == NULL)
    return status;
  if (!cli_sampling_options_apply (&o->sampling, info, &params, &error))
    return cli_fail (CLI_USAGE, "%s", error->message);
  params.constraint = constraint;
  params.logprobs = o->n_logprobs >= 0;
  params.n_top_logprobs = (uint32_t)MAX (o->n_logprobs, 0);
  if (!prompt_build (&prompt, o, engine, &error))
    {
      prompt_clear (&prompt);
      return cli_fail (CLI_FAILED, "%s", error->message);
    }
  params.session = cli_open_session (engine, &cache, o->cache_key, &error);
  if (prompt.ids != NULL)
    {
      params.ids = (const uint32_t *)(gpointer)prompt.ids->data;
      params.n_ids = prompt.ids->len;
    }
  else
    {
      params.messages = (const qe_message *)(gpointer)prompt.messages->data;
      params.n_messages = prompt.messages->len;
    }
  cli_watch_interrupt ();
  if (params.session != 0)
    request = qe_engine_generate (engine, &params, &error);
  prompt_clear (&prompt);
  if (request == NULL)
    return cli_fail (CLI_FAILED, "%s", error->message);

  cli_reply_run (&reply, request, o->json ? NULL : stdout);
  if (reply.finish == QE_FINISH_ERROR)
    status = cli_fail (CLI_FAILED, "%s", reply.error->message);
  else if (o->json)
    print_json (&reply, info, engine, params.logprobs);
  else
    putchar ('\n');
  if (reply.finish == QE_FINISH_CANCELLED)
    status = CLI_INTERRUPTED;
  cli_reply_clear (&reply);
  return status;
}

static int
check (const Options *o, int argc)
{
  if (argc > 1)
    return cli_fail (CLI_USAGE,
                     "generate takes no arguments besides options; the prompt is --prompt TEXT");
  if ((o->prompt != NULL) + (o->messages != NULL) != 1)
    return cli_fail (CLI_USAGE, "generate needs exactly one of --prompt and --messages");
  if (o->messages != NULL && (o->raw || o->system != NULL))
    return cli_fail (CLI_USAGE, "--messages cannot be combined with --raw or --system");
  if (o->raw && o->system != NULL)
    return cli_fail (CLI_USAGE, "--raw cannot be combined with --system");
  if (o->added_tokens && !o->raw)
    return cli_fail (CLI_USAGE, "--added-tokens needs --raw");
  if (o->json_object && o->json_schema != NULL)
    return cli_fail (CLI_USAGE, "--json-object cannot be combined with --json-schema");
  if (o->n_logprobs >= 0 && !o->json)
    return cli_fail (CLI_USAGE, "--logprobs needs --json");
  if (o->n_logprobs > QE_TOP_LOGPROBS_MAX || o->n_logprobs < -1)
    return cli_fail (CLI_USAGE, "--logprobs: expected 0 to %d, found %d", QE_TOP_LOGPROBS_MAX,
                     o->n_logprobs);
  if (o->cache_key != NULL && o->engine.tiers.cache_dir == NULL)
    return cli_fail (CLI_USAGE, "--cache-key needs --cache-dir");
  return CLI_OK;
}

int
cli_generate (int argc, char **argv)
{
  Options o = { .n_logprobs = -1 };
  GOptionEntry entries[] = {
    { "prompt", 'p', 0, G_OPTION_ARG_STRING, &o.prompt,
      "The user's message; “-” reads standard input", "TEXT" },
    { "system", 's', 0, G_OPTION_ARG_STRING, &o.system, "A system message before it", "TEXT" },
    { "messages", 0, 0, G_OPTION_ARG_FILENAME, &o.messages,
      "A conversation: a JSON array of {\"role\", \"content\"}; “-” reads standard input", "FILE" },
    { "raw", 0, 0, G_OPTION_ARG_NONE, &o.raw,
      "Feed the prompt as it stands, without the chat template", NULL },
    { "added-tokens", 0, 0, G_OPTION_ARG_NONE, &o.added_tokens,
      "With --raw: recognise control tokens such as <|im_start|> in the prompt", NULL },
    { "json", 0, 0, G_OPTION_ARG_NONE, &o.json,
      "Print one JSON object: text, ids, finish_reason, seed, usage, timings, cache, and each "
      "message's "
      "tokens",
      NULL },
    { "logprobs", 0, 0, G_OPTION_ARG_INT, &o.n_logprobs,
      "With --json: each token's log-probability and the N likeliest tokens beside it", "N" },
    { "json-object", 0, 0, G_OPTION_ARG_NONE, &o.json_object,
      "The reply is a JSON object and nothing else", NULL },
    { "json-schema", 0, 0, G_OPTION_ARG_FILENAME, &o.json_schema,
      "The reply is JSON of this schema; “-” reads standard input", "FILE" },
    { "cache-key", 0, 0, G_OPTION_ARG_STRING, &o.cache_key,
      "The conversation's name in --cache-dir (default: it is not kept)", "NAME" },
    { NULL },
  };
  GOptionContext *context = g_option_context_new ("- answer one prompt or conversation");
  int status;

  cli_sampling_options_init (&o.sampling);
  g_option_context_add_main_entries (context, entries, NULL);
  g_option_context_add_group (context, cli_sampling_options_group (&o.sampling));
  g_option_context_add_group (context, cli_cache_options_group (&o.cache));
  g_option_context_add_group (context, cli_engine_options_group (&o.engine));
  if (cli_parse (context, &argc, &argv, &status))
    {
      status = check (&o, argc);
      if (status == CLI_OK)
        status = generate (&o);
    }
  g_free (o.prompt);
  g_free (o.system);
  g_free (o.messages);
  g_free (o.json_schema);
  cli_sampling_options_clear (&o.sampling);
  g_free (o.cache_key);
  cli_cache_options_clear (&o.cache);
  cli_engine_options_clear (&o.engine);
  return status;
}
