/* cmd-serve.c: `quire-cli serve`: the local server without a window. Main thread only.
 *
 * A card that a process has lost does not come back to that process. The server then answers 503 for a moment, so that those
 * who wait are told, and starts again in its own place: the same process id and address, the model loaded anew. A request that
 * fells the card each time would have it do so for ever: after RESTARTS_MAX in RESTARTS_S it ends, with CLI_DEVICE_LOST. */
#include "app/cli/cli.h"

#include <glib-unix.h>
#include <string.h>

#include "app/quire-restart.h"
#include "app/server/quire-server.h"

#define WATCH_MS 1000
#define TELL_MS 500
#define RESTARTS_MAX 3
#define RESTARTS_S 600
#define RESTARTS_VARIABLE                                                                          \
  "QUIRE_SERVE_RESTARTS" /* when the images before this one ended so, oldest first */

typedef struct
{
  CliEngineOptions engine;
  CliCacheOptions cache;
  char *host, *token_file;
  char **allow_hosts;
  int port, connections, requests, sessions, body_mib, read_seconds, write_seconds;
} Options;

typedef struct
{
  qe_engine *engine;
  GMainLoop *loop;
  gboolean lost;
} Watch;

/* Who ends the server while it is about to start again means it. */
static gboolean
signal_cb (gpointer user)
{
  Watch *watch = user;

  watch->lost = FALSE;
  g_main_loop_quit (watch->loop);
  return G_SOURCE_CONTINUE;
}

static gboolean
told_cb (gpointer user)
{
  g_main_loop_quit (user);
  return G_SOURCE_REMOVE;
}

static gboolean
watch_cb (gpointer user)
{
  Watch *watch = user;
  qe_engine_status status;

  qe_engine_get_status (watch->engine, &status);
  watch->lost = status.state == QE_ENGINE_LOST;
  if (watch->lost)
    {
      g_printerr ("quire-cli: %s\n",
                  status.error != NULL ? status.error->message : "The card was lost");
      g_timeout_add (TELL_MS, told_cb, watch->loop);
    }
  qe_engine_status_clear (&status);
  return watch->lost ? G_SOURCE_REMOVE : G_SOURCE_CONTINUE;
}

/* The environment of the next image: one restart more. FALSE when there were too many. */
static gboolean
count_restart (void)
{
  gint64 now = g_get_real_time () / G_USEC_PER_SEC;
  const char *before = g_getenv (RESTARTS_VARIABLE);
  g_auto (GStrv) times = g_strsplit (before != NULL ? before : "", " ", -1);
  g_autoptr (GString) recent = g_string_new (NULL);
  guint n = 0;

  for (guint i = 0; times[i] != NULL; i++)
    {
      gint64 then = g_ascii_strtoll (times[i], NULL, 10);

      if (then <= now - RESTARTS_S || then > now)
        continue;
      g_string_append_printf (recent, "%" G_GINT64_FORMAT " ", then);
      n++;
    }
  g_string_append_printf (recent, "%" G_GINT64_FORMAT, now);
  g_setenv (RESTARTS_VARIABLE, recent->str, TRUE);
  return n < RESTARTS_MAX;
}

/* Returns the exit status where it could not start again. @uri: where it was to be found, also when any port would do. */
static int
start_again (const char *uri)
{
  g_autoptr (GError) error = NULL;
  g_autoptr (GUri) parts = g_uri_parse (uri, G_URI_FLAGS_NONE, NULL);
  g_autoptr (GPtrArray) args = g_ptr_array_new_with_free_func (g_free);
  g_autofree char *line = NULL;
  gsize n = 0;

  if (!count_restart ())
    return cli_fail (CLI_DEVICE_LOST, "The card was lost %d times within %d minutes",
                     RESTARTS_MAX + 1, RESTARTS_S / 60);
  if (!g_file_get_contents ("/proc/self/cmdline", &line, &n, &error))
    return cli_fail (CLI_DEVICE_LOST, "%s", error->message);
  for (gsize at = 0; at < n; at += strlen (line + at) + 1)
    g_ptr_array_add (args, g_strdup (line + at));
  if (parts != NULL)
    {
      g_autofree char *port = g_strdup_printf ("--port=%d", g_uri_get_port (parts));

      if (g_strcmp0 (g_ptr_array_index (args, args->len - 1), port) != 0)
        g_ptr_array_add (args, g_steal_pointer (&port));
    }
  g_ptr_array_add (args, NULL);
  g_printerr ("quire-cli: starting again\n");
  quire_restart_in_place ((char **)args->pdata, NULL, &error);
  return cli_fail (CLI_DEVICE_LOST, "Cannot start again: %s", error->message);
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
  g_autofree char *uri = NULL;
  QuireServerOptions options;
  qe_model_info *info = NULL;
  qe_engine *engine;
  Watch watch = { 0 };
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
      g_unix_signal_add (SIGINT, signal_cb, &watch);
      g_unix_signal_add (SIGTERM, signal_cb, &watch);
      uri = g_strdup (quire_server_get_uri (server));
      printf ("%s\n", uri);
      fflush (stdout);
      watch.engine = engine;
      watch.loop = loop;
      g_timeout_add (WATCH_MS, watch_cb, &watch);
      g_main_loop_run (loop);
      quire_server_stop (server);
    }
  else
    status = cli_fail (CLI_FAILED, "%s", error->message);
  quire_server_set_engine (server, NULL);
  qe_engine_free (engine);
  return watch.lost ? start_again (uri) : status;
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
