/* quire-cli.c: the headless program. Finds the command and runs it; see cli.h for exit statuses. */
#include "app/cli/cli.h"

#include <locale.h>
#include <string.h>

static const struct
{
  const char *name;
  int (*run) (int argc, char **argv);
  const char *summary;
} commands[] = {
  { "generate", cli_generate, "answer one prompt or conversation" },
  { "chat", cli_chat, "chat in the terminal; the session keeps its KV cache" },
#ifdef QUIRE_HAVE_SERVER
  { "serve", cli_serve, "OpenAI's API and a page to chat in, on this machine" },
#endif
  { "tokenize", cli_tokenize, "text to token ids and back" },
  { "logits", cli_logits, "the likeliest next tokens after exact ids" },
  { "bench", cli_bench, "measure first token, speed and memory" },
  { "info", cli_info, "build, backends, model facts" },
};

static void
print_help (FILE *out)
{
  fprintf (
      out,
      "Usage: quire-cli COMMAND [OPTIONS]\n\nRuns Qwen3-class models and keeps their KV cache.\n\n"
      "Commands:\n");
  for (gsize i = 0; i < G_N_ELEMENTS (commands); i++)
    fprintf (out, "  %-10s %s\n", commands[i].name, commands[i].summary);
  fprintf (out, "\n“quire-cli COMMAND --help-all” lists a command's options.\n\n"
                "Environment:\n"
                "  QUIRE_MODEL     model folder used when --model is not given\n"
                "  QUIRE_DATA_DIR  folder that holds demo-model, the shipped model\n"
                "  QUIRE_ISA       CPU instruction set when --isa is not given\n\n"
                "Exit status: 0 done, 1 failed, 2 wrong command line, 75 serve: the card was lost\n"
                "again and again, 130 stopped by Ctrl+C.\n");
}

int
main (int argc, char **argv)
{
  const char *name = argc > 1 ? argv[1] : NULL;

  setlocale (LC_ALL, "");
  if (name == NULL)
    {
      print_help (stderr);
      return CLI_USAGE;
    }
  if (strcmp (name, "help") == 0 || strcmp (name, "--help") == 0 || strcmp (name, "-h") == 0)
    {
      print_help (stdout);
      return CLI_OK;
    }
  if (strcmp (name, "--version") == 0)
    {
      printf ("quire-cli %s\n", qe_version ());
      return CLI_OK;
    }
  for (gsize i = 0; i < G_N_ELEMENTS (commands); i++)
    if (strcmp (name, commands[i].name) == 0)
      {
        g_autofree char *program = g_strdup_printf ("quire-cli %s", name);
        g_set_prgname (program);
        return commands[i].run (argc - 1, argv + 1);
      }
  return cli_fail (CLI_USAGE, "unknown command “%s” (see quire-cli --help)", name);
}
