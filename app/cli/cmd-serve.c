/* cmd-serve.c: `quire-cli serve`: the local server without a window. Main thread only. */
#include "app/cli/cli.h"

#include <glib-unix.h>

#include "app/server/quire-server.h"

typedef struct
{
  CliEngineOptions engine;
  CliCacheOptions cache;
  char *host, *token_file;
  char **allow_hosts;
  int port, connections, requests, sessions, body_mib, read_seconds, write_seconds;
} Options;

static gboolean
signal_cb (gpointer user)
{
  g_main_loop_quit (user);
  return G_SOURCE_CONTINUE;
}

static gboolean
apply (const Options *o, QuireServerOptions *out, char **token, GError **error)
{
  quire_server_options_init (out);
  if (o->port < 0 || o->port > 65535 || o->connections < 1 || o->requests < 1 || o->sessions < 1
      || o->body_mib < 1 || o->body_mib > 1024 || o->read_seconds < 1 || o->write_seconds < 1)
    {
      g_set_error (error, QE_ERROR, QE_ERROR_INVALID,
                   "expected a port from 0 to 65535 and limits of at least 1");
      return FALSE;
    }
  if (!cli_cache_options_apply (&o->cache, &out->cache, error))
    return FALSE;
  if (o->token_file != NULL)
    {
      *token = quire_server_token_from_file (o->token_file, error);
      if (*token == NULL)
        return FALSE;
    }
  out->host = o->host;
  out->port = (guint16)o->port;
  out->token = *token;
  out->allowed_hosts = (const char *const *)o->allow_hosts;
  out->n_connections_max = (guint)o->connections;
  out->n_requests_max = (guint)o->requests;
  out->n_sessions_max = (guint)o->sessions;
  out->body_bytes_max = (gsize)o->body_mib << 20;
  out->read_seconds_max = (guint)o->read_seconds;
  out->write_seconds_max = (guint)o->write_seconds;
  return TRUE;
}

static int
serve (const Options *o)
{
  g_autoptr (GError) error = NULL;
  g_autoptr (GMainLoop) loop = NULL;
  g_autoptr (QuireServer) server = NULL;
  g_autofree char *token = NULL;
  QuireServerOptions options;
  qe_model_info *info = NULL;
  qe_engine *engine;
  int status = CLI_OK;

  if (!apply (o, &options, &token, &error))
    return cli_fail (CLI_USAGE, "%s", error->message);
  engine = cli_engine_start (&o->engine, 0, &info, &status);
  qe_model_info_free (info);
  if (engine == NULL)
    return status;
  server = quire_server_new ();
  quire_server_set_engine (server, engine);
  if (quire_server_start (server, &options, &error))
    {
      loop = g_main_loop_new (NULL, FALSE);
      g_unix_signal_add (SIGINT, signal_cb, loop);
      g_unix_signal_add (SIGTERM, signal_cb, loop);
      printf ("%s\n", quire_server_get_uri (server));
      fflush (stdout);
      g_main_loop_run (loop);
      quire_server_stop (server);
    }
  else
    status = cli_fail (CLI_FAILED, "%s", error->message);
  quire_server_set_engine (server, NULL);
  qe_engine_free (engine);
  return status;
}

int
cli_serve (int argc, char **argv)
{
  Options o = { .port = QUIRE_SERVER_PORT,
                .connections = 256,
                .requests = 128,
                .sessions = 64,
                .body_mib = 16,
                .read_seconds = 30,
                .write_seconds = 60 };
  GOptionEntry entries[] = {
    { "port", 'p', 0, G_OPTION_ARG_INT, &o.port, "Port; 0: any that is free (default: 8377)", "N" },
    { "host", 0, 0, G_OPTION_ARG_STRING, &o.host,
      "Address to listen at; beyond this machine a token is needed (default: 127.0.0.1 and ::1)",
      "ADDRESS" },
    { "token-file", 0, 0, G_OPTION_ARG_FILENAME, &o.token_file,
      "File with the token that clients must show, mode 0600; made when it is not there", "FILE" },
    { "allow-host", 0, 0, G_OPTION_ARG_STRING_ARRAY, &o.allow_hosts,
      "A further name that clients may use for this machine; may be repeated", "NAME" },
    { "max-connections", 0, 0, G_OPTION_ARG_INT, &o.connections, "Open connections (default: 256)",
      "N" },
    { "max-requests", 0, 0, G_OPTION_ARG_INT, &o.requests,
      "Choices that compute or wait at a time, at most 128 (default: 128)", "N" },
    { "max-sessions", 0, 0, G_OPTION_ARG_INT, &o.sessions, "Named sessions (default: 64)", "N" },
    { "max-body", 0, 0, G_OPTION_ARG_INT, &o.body_mib, "Greatest request in MiB (default: 16)",
      "MIB" },
    { "read-timeout", 0, 0, G_OPTION_ARG_INT, &o.read_seconds,
      "Seconds for a request to come in (default: 30)", "S" },
    { "write-timeout", 0, 0, G_OPTION_ARG_INT, &o.write_seconds,
      "Seconds for a reader who takes nothing (default: 60)", "S" },
    { NULL },
  };
  GOptionContext *context = g_option_context_new ("- serve OpenAI's API and a page to chat in");
  int status;

  g_option_context_set_description (
      context,
      "The first line of the output is the address: a browser finds a page to chat in there, and "
      "the API at /docs.\n"
      "  curl http://127.0.0.1:8377/v1/chat/completions -H 'Content-Type: application/json' \\\n"
      "    -d '{\"messages\": [{\"role\": \"user\", \"content\": \"Hello\"}]}'\n"
      "With --token-file also: -H \"Authorization: Bearer $(cat FILE)\". Ctrl+C ends it.");
  g_option_context_add_main_entries (context, entries, NULL);
  g_option_context_add_group (context, cli_cache_options_group (&o.cache));
  g_option_context_add_group (context, cli_engine_options_group (&o.engine));
  if (cli_parse (context, &argc, &argv, &status))
    status
        = argc > 1 ? cli_fail (CLI_USAGE, "serve takes no arguments besides options") : serve (&o);
  g_free (o.host);
  g_free (o.token_file);
  g_strfreev (o.allow_hosts);
  cli_cache_options_clear (&o.cache);
  cli_engine_options_clear (&o.engine);
  return status;
}
