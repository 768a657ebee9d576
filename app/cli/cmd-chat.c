/* cmd-chat.c: `quire-cli chat`: a conversation in the terminal. One session, so that each turn prefills its new
 * tokens alone. Reads from a terminal with prompts, or plainly from a pipe, one message a line. */
#include "app/cli/cli.h"

#include <string.h>
#include <unistd.h>

#define LINE_BYTES_MAX (16u << 20)

typedef struct
{
  CliEngineOptions engine;
  CliCacheOptions cache;
  CliSamplingOptions sampling;
  char *system, *cache_key;
} Options;

typedef struct
{
  const Options *options;
  qe_cache_config cache;
  qe_engine *engine;
  qe_model_info *info;
  qe_session_id session;
  char *last_user;  /* owned; NULL before the first turn */
  guint n_messages; /* of the session, the system message included */
  gboolean tty, said_system;
} Chat;

static const char help[]
    = "Write a message and press Enter. Ctrl+C stops the reply; Ctrl+D ends the chat.\n"
      "  /new    forget this conversation and start another\n"
      "  /again  answer the last message once more\n"
      "  /help   this text\n"
      "  /quit   end the chat\n"
      "A message that begins with “/” is written with “//”.\n";

static void
print_prompt (const Chat *chat)
{
  if (chat->tty)
    {
      fputs ("\n> ", stdout);
      fflush (stdout);
    }
}

/* One line from stdin without its newline; NULL at the end of the input. Ctrl+C drops the line, as in a shell. */
static char *
read_line (const Chat *chat)
{
  g_autoptr (GString) line = g_string_new (NULL);
  int c;

  print_prompt (chat);
  for (;;)
    {
      while ((c = getchar ()) != EOF && c != '\n' && line->len < LINE_BYTES_MAX)
        g_string_append_c (line, (char)c);
      if (c != EOF || feof (stdin) || !cli_take_interrupt ())
        break;
      clearerr (stdin);
      g_string_truncate (line, 0);
      fputs (" (Ctrl+D ends the chat)", stdout);
      print_prompt (chat);
    }
  if (c == EOF && line->len == 0)
    return NULL;
  return g_string_free (g_steal_pointer (&line), FALSE);
}

static void
print_receipt (const Chat *chat, const CliReply *reply)
{
  const qe_receipt *r = &reply->receipt;
  const char *note = "";

  if (reply->finish == QE_FINISH_CANCELLED)
    note = " · stopped";
  else if (reply->finish == QE_FINISH_LENGTH)
    note = " · cut at the token limit";
  else if (reply->finish == QE_FINISH_CONTEXT)
    note = " · the context is full";
  fflush (stdout);
  fprintf (stderr, "%s%.2f s · %.0f tok/s · %u new, %u reused", chat->tty ? "\033[2m" : "",
           r->first_token_ms / 1000, r->decode_tokens_per_s, r->n_new, r->n_reused);
  if (r->n_restored_host > 0)
    fprintf (stderr, ", %u from host memory", r->n_restored_host);
  if (r->n_restored_disk > 0)
    fprintf (stderr, ", %u from disk", r->n_restored_disk);
  if (r->n_on_host > 0)
    fprintf (stderr, ", %u read in host memory", r->n_on_host);
  if (r->skipped_share > 0)
    fprintf (stderr, ", %.0f %% of pages left out", 100 * r->skipped_share);
  fprintf (stderr, "%s%s\n", note, chat->tty ? "\033[0m" : "");
}

/* Sends one turn. @again: the last user message once more, in place of its first answer. */
static int
turn (Chat *chat, gboolean again)
{
  g_autoptr (GError) error = NULL;
  g_autoptr (qe_request) request = NULL;
  qe_generate_params params;
  qe_message messages[2];
  CliReply reply = { 0 };
  guint n = 0;
  int status = CLI_OK;

  if (!cli_sampling_options_apply (&chat->options->sampling, chat->info, &params, &error))
    return cli_fail (CLI_USAGE, "%s", error->message);
  if (!chat->said_system && chat->options->system != NULL)
    messages[n++] = (qe_message){ QE_ROLE_SYSTEM, chat->options->system, -1 };
  /* Again: the last message and its answer go, the message comes anew. Its ids are the same, so its cache stays. */
  if (again)
    params.keep_messages = chat->n_messages - 2;
  messages[n++] = (qe_message){ QE_ROLE_USER, chat->last_user, -1 };
  params.session = chat->session;
  params.messages = messages;
  params.n_messages = n;
  cli_take_interrupt ();
  request = qe_engine_generate (chat->engine, &params, &error);
  if (request == NULL)
    return cli_fail (CLI_FAILED, "%s", error->message);

  cli_reply_run (&reply, request, stdout);
  cli_take_interrupt ();
  if (reply.text->len == 0 || reply.text->str[reply.text->len - 1] != '\n')
    putchar ('\n');
  if (reply.finish == QE_FINISH_ERROR)
    status = cli_fail (CLI_FAILED, "%s", reply.error->message);
  else
    {
      print_receipt (chat, &reply);
      chat->said_system = TRUE;
      chat->n_messages += again ? 0 : n + 1;
    }
  cli_reply_clear (&reply);
  return status;
}

static gboolean
start_over (Chat *chat)
{
  g_autoptr (GError) error = NULL;

  if (chat->session != 0)
    qe_engine_close_session (chat->engine, chat->session);
  chat->session = cli_open_session (chat->engine, &chat->cache, chat->options->cache_key, &error);
  chat->n_messages = 0;
  chat->said_system = FALSE;
  g_clear_pointer (&chat->last_user, g_free);
  if (chat->session == 0)
    cli_fail (CLI_FAILED, "%s", error->message);
  return chat->session != 0;
}

/* Returns FALSE when the chat is over. *status: of the last turn. */
static gboolean
handle_line (Chat *chat, char *line, int *status)
{
  g_strchomp (line);
  if (line[0] == '\0')
    return TRUE;
  if (strcmp (line, "/quit") == 0)
    return FALSE;
  if (strcmp (line, "/help") == 0)
    fputs (help, stderr);
  else if (strcmp (line, "/new") == 0)
    return start_over (chat);
  else if (strcmp (line, "/again") == 0)
    {
      if (chat->last_user == NULL || chat->n_messages < 2)
        fputs ("There is no answer yet.\n", stderr);
      else
        *status = turn (chat, TRUE);
    }
  else if (line[0] == '/' && line[1] != '/')
    fprintf (stderr, "Unknown command “%s”.\n%s", line, help);
  else
    {
      g_free (chat->last_user);
      chat->last_user = g_strdup (line[0] == '/' ? line + 1 : line);
      *status = turn (chat, FALSE);
    }
  return TRUE;
}

static int
chat_run (const Options *o)
{
  Chat chat = { .options = o, .tty = isatty (STDIN_FILENO) && isatty (STDOUT_FILENO) };
  g_autoptr (GError) error = NULL;
  int status = CLI_OK;
  char *line;

  if (o->cache_key != NULL && o->engine.tiers.cache_dir == NULL)
    return cli_fail (CLI_USAGE, "--cache-key needs --cache-dir");
  if (!cli_cache_options_apply (&o->cache, &chat.cache, &error))
    return cli_fail (CLI_USAGE, "%s", error->message);
  chat.engine = cli_engine_start (&o->engine, 0, &chat.info, &status);
  if (chat.engine == NULL)
    return status;
  fprintf (stderr, "%s · context %u tokens · /help for help\n", chat.info->name,
           chat.info->context_max);
  cli_watch_interrupt ();
  if (start_over (&chat))
    {
      gboolean going = TRUE;

      while (going && (line = read_line (&chat)) != NULL)
        {
          going = handle_line (&chat, line, &status);
          g_free (line);
        }
    }
  else
    status = CLI_FAILED;
  if (chat.tty)
    putchar ('\n');
  g_free (chat.last_user);
  qe_model_info_free (chat.info);
  qe_engine_free (chat.engine);
  return status;
}

int
cli_chat (int argc, char **argv)
{
  Options o = { 0 };
  GOptionEntry entries[] = {
    { "system", 's', 0, G_OPTION_ARG_STRING, &o.system, "A system message for every conversation",
      "TEXT" },
    { "cache-key", 0, 0, G_OPTION_ARG_STRING, &o.cache_key,
      "The conversation's name in --cache-dir (default: it is not kept)", "NAME" },
    { NULL },
  };
  GOptionContext *context = g_option_context_new ("- chat in the terminal");
  int status;

  cli_sampling_options_init (&o.sampling);
  g_option_context_set_description (context, help);
  g_option_context_add_main_entries (context, entries, NULL);
  g_option_context_add_group (context, cli_sampling_options_group (&o.sampling));
  g_option_context_add_group (context, cli_cache_options_group (&o.cache));
  g_option_context_add_group (context, cli_engine_options_group (&o.engine));
  if (cli_parse (context, &argc, &argv, &status))
    status = argc > 1 ? cli_fail (CLI_USAGE, "chat takes no arguments besides options")
                      : chat_run (&o);
  g_free (o.system);
  g_free (o.cache_key);
  cli_cache_options_clear (&o.cache);
  cli_sampling_options_clear (&o.sampling);
  cli_engine_options_clear (&o.engine);
  return status;
}
