/* quire-server.c: the server's life, its routes, its named sessions. See quire-server.h and server-private.h.
 *
 * A request passes: head read -> guard (server-guard.c) -> body read, bounded -> route. Every answer carries the headers
 * that keep a browser from doing more with it than it should. */
#include "app/server/server-private.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <unistd.h>

#include "app/server/quire-server-files.h"

G_DEFINE_FINAL_TYPE (QuireServer, quire_server, G_TYPE_OBJECT)

enum
{
  CHANGED,
  N_SIGNALS
};
static guint signals[N_SIGNALS];

const double srv_bucket_seconds[SRV_N_BUCKETS]
    = { 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 10, 30, 120 };

void
srv_histogram_add (SrvHistogram *h, double seconds)
{
  guint i = 0;

  while (i < SRV_N_BUCKETS && seconds > srv_bucket_seconds[i])
    i++;
  h->counts[i]++;
  h->sum += seconds;
  h->n++;
}

void
quire_server_options_init (QuireServerOptions *options)
{
  *options = (QuireServerOptions){
    .port = QUIRE_SERVER_PORT,
    .n_connections_max = 256,
    .n_requests_max = 128,
    .n_sessions_max = 64,
    .body_bytes_max = 16u << 20,
    .read_seconds_max = 30,
    .write_seconds_max = 60,
  };
  qe_cache_config_init (&options->cache);
}

/* ---- Routes ---- */

const SrvRoute srv_routes[] = {
  { "GET", "/", TRUE, srv_route_static },
  { "GET", "/web/{file}", TRUE, srv_route_static },
  { "GET", "/docs", TRUE, srv_route_static },
  { "GET", "/docs/{file}", TRUE, srv_route_static },
  { "GET", "/openapi.json", TRUE, srv_route_static },
  { "GET", "/favicon.ico", TRUE, srv_route_static },
  { "GET", "/health", TRUE, srv_route_health },
  { "GET", "/metrics", FALSE, srv_route_metrics },
  { "GET", "/v1/models", FALSE, srv_route_models },
  { "GET", "/v1/models/{model}", FALSE, srv_route_model },
  { "POST", "/v1/chat/completions", FALSE, srv_route_chat },
  { "POST", "/v1/completions", FALSE, srv_route_completion },
  { "POST", "/tokenize", FALSE, srv_route_tokenize },
  { "POST", "/detokenize", FALSE, srv_route_detokenize },
  { "GET", "/v1/sessions", FALSE, srv_route_sessions },
  { "POST", "/v1/sessions", FALSE, srv_route_session_new },
  { "GET", "/v1/sessions/{session_id}", FALSE, srv_route_session },
  { "DELETE", "/v1/sessions/{session_id}", FALSE, srv_route_session_delete },
  { "POST", "/v1/sessions/{session_id}/fork", FALSE, srv_route_session_fork },
  { "POST", "/v1/sessions/{session_id}/pin", FALSE, srv_route_session_pin },
  { "GET", "/v1/cache", FALSE, srv_route_cache },
  { "GET", "/v1/cache/events", FALSE, srv_route_cache_events },
  { NULL, NULL, FALSE, NULL },
};

/* Whether @path has the form of @pattern. *@arg: the segment in the place of "{...}". */
static gboolean
path_matches (const char *pattern, const char *path, char **arg)
{
  const char *open = strchr (pattern, '{'), *rest;
  gsize n;

  if (open == NULL)
    return strcmp (pattern, path) == 0;
  n = (gsize)(open - pattern);
  if (strncmp (pattern, path, n) != 0)
    return FALSE;
  rest = strchr (open, '}') + 1;
  path += n;
  n = strcspn (path, "/");
  if (n == 0 || strcmp (path + n, rest) != 0)
    return FALSE;
  *arg = g_uri_unescape_segment (path, path + n, "/");
  return *arg != NULL;
}

const SrvRoute *
srv_route_find (const char *method, const char *path, char **arg, char **allow, SrvError *error)
{
  g_autoptr (GString) methods = g_string_new (NULL);

  if (strcmp (method, "HEAD") == 0)
    method = "GET";
  for (const SrvRoute *r = srv_routes; r->method != NULL; r++)
    {
      if (!path_matches (r->path, path, arg))
        continue;
      if (strcmp (method, r->method) == 0)
        return r;
      g_clear_pointer (arg, g_free);
      g_string_append_printf (methods, "%s%s", methods->len > 0 ? ", " : "", r->method);
    }
  if (methods->len == 0)
    srv_error_set (error, 404, "unknown_url", NULL, "There is no such endpoint; /docs lists them");
  else
    {
      srv_error_set (error, 405, "method_not_allowed", NULL, "This endpoint takes %s",
                     methods->str);
      *allow = g_string_free (g_steal_pointer (&methods), FALSE);
    }
  return NULL;
}

/* ---- One request ---- */

static void
add_headers (SoupServerMessage *msg)
{
  static const char *const headers[][2] = {
    { "X-Content-Type-Options", "nosniff" },
    { "Referrer-Policy", "no-referrer" },
    { "Cross-Origin-Resource-Policy", "same-origin" },
    { "Cross-Origin-Opener-Policy", "same-origin" },
    { "X-Frame-Options", "DENY" },
    { "Content-Security-Policy",
      "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; "
      "connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'" },
  };
  SoupMessageHeaders *out = soup_server_message_get_response_headers (msg);

  for (guint i = 0; i < G_N_ELEMENTS (headers); i++)
    soup_message_headers_replace (out, headers[i][0], headers[i][1]);
  soup_message_headers_replace (out, "Connection", "close"); /* see server-connection.c */
}

static void
got_chunk_cb (SoupServerMessage *msg, GBytes *chunk, QuireServer *self)
{
  SoupMessageBody *body = soup_server_message_get_request_body (msg);
  SrvError error = { 0 };

  /* A body without a length is known to be too long only now. libsoup tells before it accumulates. */
  if (soup_server_message_get_status (msg) != 0
      || (gsize)body->length + g_bytes_get_size (chunk) <= self->options.body_bytes_max)
    return;
  srv_error_set (&error, 413, "body_too_large", NULL,
                 "The body has more than %" G_GSIZE_FORMAT " bytes", self->options.body_bytes_max);
  srv_refuse_now (msg, &error);
}

static void
early_cb (SoupServer *soup, SoupServerMessage *msg, const char *path, GHashTable *query,
          gpointer user)
{
  QuireServer *self = user;
  SoupMessageHeaders *headers = soup_server_message_get_request_headers (msg);
  const char *length = soup_message_headers_get_list (headers, "Content-Length");
  gboolean has_body = soup_message_headers_get_list (headers, "Transfer-Encoding") != NULL
                      || (length != NULL && strcmp (length, "0") != 0);
  SrvError error = { 0 };

  add_headers (msg);
  if (srv_guard_check (self, msg, &error))
    {
      g_signal_connect_object (msg, "got-chunk", G_CALLBACK (got_chunk_cb), self, 0);
      return;
    }
  if (has_body)
    srv_refuse_now (msg, &error);
  else
    srv_refuse (msg, &error);
}

static void
handler_cb (SoupServer *soup, SoupServerMessage *msg, const char *path, GHashTable *query,
            gpointer user)
{
  QuireServer *self = user;
  g_autofree char *arg = NULL;
  g_autofree char *allow = NULL;
  SrvError error = { 0 };
  const SrvRoute *route
      = srv_route_find (soup_server_message_get_method (msg),
                        g_uri_get_path (soup_server_message_get_uri (msg)), &arg, &allow, &error);

  if (route == NULL)
    srv_refuse (msg, &error);
  else
    route->func (self, msg, arg);
}

/* What libsoup refuses by itself (a path that climbs, say) gets a body like all refusals. */
static void
got_headers_cb (SoupServerMessage *msg, gpointer user)
{
  guint status = soup_server_message_get_status (msg);
  SrvError error = { 0 };

  if (status < 400 || soup_server_message_get_response_body (msg)->length > 0
      || soup_message_headers_get_one (soup_server_message_get_response_headers (msg),
                                       "X-Content-Type-Options")
             != NULL)
    return;
  add_headers (msg);
  srv_error_set (&error, status, "bad_request", NULL, "%s", srv_status_phrase (status));
  srv_refuse (msg, &error);
}

static void
request_started_cb (SoupServer *soup, SoupServerMessage *msg, QuireServer *self)
{
  g_signal_connect_object (msg, "got-headers", G_CALLBACK (got_headers_cb), self, 0);
}

static void
request_over_cb (SoupServer *soup, SoupServerMessage *msg, QuireServer *self)
{
  guint status = soup_server_message_get_status (msg);

  if (status >= 100 && status < 600)
    self->figures.answers[status / 100]++;
}

/* ---- Life ---- */

QuireServer *
quire_server_new (void)
{
  return g_object_new (QUIRE_TYPE_SERVER, NULL);
}

static gboolean
is_loopback (const char *literal)
{
  g_autoptr (GInetAddress) address
      = literal != NULL ? g_inet_address_new_from_string (literal) : NULL;

  return literal == NULL || (address != NULL && g_inet_address_get_is_loopback (address));
}

static gboolean
check_options (const QuireServerOptions *o, GError **error)
{
  if (o->token != NULL && strlen (o->token) < 16)
    g_set_error (error, G_IO_ERROR, G_IO_ERROR_INVALID_ARGUMENT,
                 "The token has fewer than 16 characters");
  else if (o->token == NULL && !is_loopback (o->host))
    g_set_error (error, G_IO_ERROR, G_IO_ERROR_INVALID_ARGUMENT,
                 "Beyond this machine the server needs a token");
  else if (o->n_connections_max == 0 || o->n_requests_max == 0
           || o->n_requests_max > SRV_REQUESTS_MAX || o->n_sessions_max == 0
           || o->body_bytes_max == 0 || o->read_seconds_max == 0 || o->write_seconds_max == 0)
    g_set_error (error, G_IO_ERROR, G_IO_ERROR_INVALID_ARGUMENT,
                 "A limit of the server is 0 or past its greatest value");
  else
    return qe_cache_config_check (&o->cache, error);
  return FALSE;
}

gboolean
quire_server_start (QuireServer *self, const QuireServerOptions *options, GError **error)
{
  g_return_val_if_fail (self->soup == NULL, FALSE);

  if (!check_options (options, error))
    return FALSE;
  g_free (self->host);
  g_free (self->token);
  g_strfreev (self->allowed_hosts);
  self->options = *options;
  self->options.host = self->host = g_strdup (options->host);
  self->options.token = self->token = g_strdup (options->token);
  self->allowed_hosts = g_strdupv ((char **)options->allowed_hosts);
  self->options.allowed_hosts = (const char *const *)self->allowed_hosts;
  self->created = g_get_real_time () / G_USEC_PER_SEC;
  self->soup = soup_server_new ("raw-paths", TRUE, "server-header", "Quire", NULL);
  soup_server_add_early_handler (self->soup, NULL, early_cb, self, NULL);
  soup_server_add_handler (self->soup, NULL, handler_cb, self, NULL);
  g_signal_connect_object (self->soup, "request-started", G_CALLBACK (request_started_cb), self, 0);
  g_signal_connect_object (self->soup, "request-finished", G_CALLBACK (request_over_cb), self, 0);
  g_signal_connect_object (self->soup, "request-aborted", G_CALLBACK (request_over_cb), self, 0);
  if (!srv_listen (self, error))
    {
      srv_stop_listening (self);
      g_clear_object (&self->soup);
      return FALSE;
    }
  g_signal_emit (self, signals[CHANGED], 0);
  return TRUE;
}

static void
close_oldest_kept (QuireServer *self, gboolean close)
{
  g_autofree qe_session_id *id = g_queue_pop_head (&self->kept);

  if (close && self->engine != NULL)
    qe_engine_close_session (self->engine, *id);
}

void
srv_session_keep (QuireServer *self, qe_session_id id)
{
  g_queue_push_tail (&self->kept, g_memdup2 (&id, sizeof id));
  if (self->kept.length > SRV_KEPT_MAX)
    close_oldest_kept (self, TRUE);
}

qe_session_id
srv_session_open (QuireServer *self, const qe_session_options *options, GError **error)
{
  g_autoptr (GError) cause = NULL;
  qe_session_id id = qe_engine_open_session_with (self->engine, options, &cause);

  while (id == 0 && g_error_matches (cause, QE_ERROR, QE_ERROR_BUSY) && self->kept.length > 0)
    {
      close_oldest_kept (self, TRUE);
      g_clear_error (&cause);
      id = qe_engine_open_session_with (self->engine, options, &cause);
    }
  if (id == 0)
    g_propagate_error (error, g_steal_pointer (&cause));
  return id;
}

static void
forget_sessions (QuireServer *self, gboolean close)
{
  GHashTableIter iter;
  gpointer value;

  g_hash_table_iter_init (&iter, self->sessions);
  while (close && self->engine != NULL && g_hash_table_iter_next (&iter, NULL, &value))
    qe_engine_close_session (self->engine, ((SrvSession *)value)->id);
  g_hash_table_remove_all (self->sessions);
  while (self->kept.length > 0)
    close_oldest_kept (self, close);
}

void
quire_server_stop (QuireServer *self)
{
  if (self->soup == NULL)
    return;
  srv_stop_listening (self);
  srv_choices_end (self);
  forget_sessions (self, TRUE);
  g_clear_handle_id (&self->watch_timer, g_source_remove);
  g_clear_pointer (&self->connections, g_hash_table_unref);
  g_clear_object (&self->soup);
  g_clear_pointer (&self->uri, g_free);
  g_signal_emit (self, signals[CHANGED], 0);
}

qe_engine *
quire_server_get_engine (QuireServer *self)
{
  return self->engine;
}

void
quire_server_set_engine (QuireServer *self, qe_engine *engine)
{
  srv_choices_end (self);
  forget_sessions (self, self->engine == engine);
  self->engine = engine;
  self->engine_serial++;
  self->watch_serial = 0;
}

const char *
quire_server_get_uri (QuireServer *self)
{
  return self->uri;
}

void
srv_get_status (QuireServer *self, qe_engine_status *out)
{
  *out = (qe_engine_status){ 0 };
  if (self->engine != NULL)
    qe_engine_get_status (self->engine, out);
}

/* ---- Named sessions ---- */

static void
session_free (gpointer data)
{
  SrvSession *session = data;

  g_free (session->name);
  g_free (session);
}

SrvSession *
srv_session_find (QuireServer *self, const char *name)
{
  return g_hash_table_lookup (self->sessions, name);
}

gboolean
srv_session_make_room (QuireServer *self, SrvError *error)
{
  SrvSession *oldest = NULL;
  GHashTableIter iter;
  gpointer value;

  if (g_hash_table_size (self->sessions) < self->options.n_sessions_max)
    return TRUE;
  g_hash_table_iter_init (&iter, self->sessions);
  while (g_hash_table_iter_next (&iter, NULL, &value))
    {
      SrvSession *s = value;

      if (!s->pinned && s->n_running == 0 && (oldest == NULL || s->last_used < oldest->last_used))
        oldest = s;
    }
  if (oldest == NULL)
    return srv_error_set (error, 429, "too_many_sessions", "session_id",
                          "All %u sessions are pinned or in use", self->options.n_sessions_max);
  srv_session_remove (self, oldest);
  return TRUE;
}

SrvSession *
srv_session_add (QuireServer *self, const char *name, const qe_cache_config *cache,
                 qe_session_id id, SrvError *error)
{
  g_autoptr (GError) cause = NULL;
  SrvSession *session;

  if (id == 0)
    {
      qe_session_options options = { .cache = *cache };

      if (!srv_session_make_room (self, error))
        return NULL;
      id = srv_session_open (self, &options, &cause);
      if (id == 0)
        {
          srv_error_from_engine (error, cause);
          return NULL;
        }
    }
  session = g_new0 (SrvSession, 1);
  session->name = g_strdup (name);
  session->id = id;
  session->cache = *cache;
  session->created = g_get_real_time () / G_USEC_PER_SEC;
  session->last_used = g_get_monotonic_time ();
  g_hash_table_replace (self->sessions, session->name, session);
  return session;
}

void
srv_session_remove (QuireServer *self, SrvSession *session)
{
  if (self->engine != NULL)
    qe_engine_close_session (self->engine, session->id);
  g_hash_table_remove (self->sessions, session->name);
}

/* ---- The token's file ---- */

char *
quire_server_token_new (void)
{
  guchar bytes[32];
  GString *text = g_string_new ("sk-quire-");

  if (getrandom (bytes, sizeof bytes, 0) != sizeof bytes)
    g_error ("The system has no random bytes"); /* cannot happen: getrandom() waits for them */
  for (guint i = 0; i < sizeof bytes; i++)
    g_string_append_printf (text, "%02x", bytes[i]);
  return g_string_free (text, FALSE);
}

static gboolean
fail_token (const char *path, const char *what, GError **error)
{
  g_set_error (error, G_IO_ERROR, G_IO_ERROR_FAILED, "%s: %s", path, what);
  return FALSE;
}

static char *
make_token (const char *path, GError **error)
{
  g_autofree char *token = quire_server_token_new ();
  g_autofree char *line = g_strconcat (token, "\n", NULL);
  int fd = open (path, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC | O_NOFOLLOW, 0600);
  gboolean ok = fd >= 0 && write (fd, line, strlen (line)) == (gssize)strlen (line);

  if (!ok)
    fail_token (path, g_strerror (errno), error);
  if (fd >= 0)
    close (fd);
  return ok ? g_steal_pointer (&token) : NULL;
}

static gboolean
check_file (const char *path, const struct stat *info, GError **error)
{
  if (!S_ISREG (info->st_mode))
    return fail_token (path, "is no file", error);
  if (info->st_uid != geteuid ())
    return fail_token (path, "belongs to another user", error);
  if (info->st_mode & 077)
    return fail_token (path, "may be read by others; make it mode 0600", error);
  return TRUE;
}

char *
quire_server_token_from_file (const char *path, GError **error)
{
  char text[1024];
  struct stat info;
  gssize n;
  int fd = open (path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);

  if (fd < 0 && errno == ENOENT)
    return make_token (path, error);
  if (fd < 0)
    {
      fail_token (path, g_strerror (errno), error);
      return NULL;
    }
  n = fstat (fd, &info) == 0 && check_file (path, &info, error) ? read (fd, text, sizeof text - 1)
                                                                : -1;
  close (fd);
  if (n < 0)
    {
      if (error != NULL && *error == NULL)
        fail_token (path, "cannot be read", error);
      return NULL;
    }
  text[n] = '\0';
  g_strstrip (text);
  for (const char *p = text; *p != '\0'; p++)
    if (!g_ascii_isgraph (*p))
      {
        fail_token (path, "a token is one word of printable ASCII", error);
        return NULL;
      }
  return g_strdup (text);
}

/* ---- GObject ---- */

static void
quire_server_init (QuireServer *self)
{
  quire_server_files_get_resource (); /* links them in; they register themselves */
  self->listeners = g_ptr_array_new_with_free_func (g_object_unref);
  self->sources = g_ptr_array_new ();
  self->exchanges = g_hash_table_new_full (NULL, NULL, srv_exchange_free, NULL);
  self->sessions = g_hash_table_new_full (g_str_hash, g_str_equal, NULL, session_free);
  self->watchers = g_ptr_array_new ();
  g_queue_init (&self->kept);
}

static void
quire_server_dispose (GObject *object)
{
  quire_server_stop (QUIRE_SERVER (object));
  G_OBJECT_CLASS (quire_server_parent_class)->dispose (object);
}

static void
quire_server_finalize (GObject *object)
{
  QuireServer *self = QUIRE_SERVER (object);

  g_ptr_array_unref (self->listeners);
  g_ptr_array_unref (self->sources);
  g_hash_table_unref (self->exchanges);
  g_hash_table_unref (self->sessions);
  g_ptr_array_unref (self->watchers);
  g_free (self->host);
  g_free (self->token);
  g_strfreev (self->allowed_hosts);
  G_OBJECT_CLASS (quire_server_parent_class)->finalize (object);
}

static void
quire_server_class_init (QuireServerClass *klass)
{
  GObjectClass *object_class = G_OBJECT_CLASS (klass);

  object_class->dispose = quire_server_dispose;
  object_class->finalize = quire_server_finalize;
  signals[CHANGED] = g_signal_new ("changed", QUIRE_TYPE_SERVER, G_SIGNAL_RUN_LAST, 0, NULL, NULL,
                                   NULL, G_TYPE_NONE, 0);
}
