/* server-connection.c: connections and exchanges.
 *
 * Connections are accepted here, not by libsoup, so that they are counted before anything is read and a failed accept
 * ends nothing. A socket is at hand, too: while a message is paused libsoup does not look at it, and it is we who notice
 * that the peer has hung up (POLLRDHUP). A reaper looks once a second for connections past their deadline: a request must
 * come in whole in read_seconds_max, and a reader must take something within write_seconds_max.
 *
 * A connection carries one request. libsoup 3.2 never lets go of a connection that was kept and that its peer then
 * closed; on this machine another connection costs some ten microseconds.
 *
 * Invariants:
 *  1. A connection is found from its message by the remote address object, which is the connection's own.
 *  2. An exchange calls closed once, and only when it was neither answered nor ended.
 *  3. n_pending is what was appended and has not left; drained is called when it becomes 0. */
#include "app/server/server-private.h"

#include <errno.h>
#include <gio/gunixsocketaddress.h>
#include <glib-unix.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#define SEND_BUFFER_BYTES (256 << 10)

#define LINGER_SECONDS 2 /* for the peer to read why it was refused, while it is still sending */

#define STOP_SECONDS_MAX 2

static const char connection_key[] = "quire-connection";

typedef struct
{
  QuireServer *server;
  GSocket *socket;           /* owned */
  GSocketAddress *remote;    /* owned */
  GSocketConnection *stream; /* libsoup's; the connection ends with it */
  gint64 deadline;           /* monotonic; 0: none */
} SrvConnection;

struct _SrvExchange
{
  QuireServer *server;
  SoupServerMessage *msg;    /* owned */
  SrvConnection *connection; /* NULL once it is gone */
  GSource *hangup;           /* owned; NULL when not watched */
  gboolean is_stream, is_over;
  gsize n_pending;
  SrvClosedFunc closed;
  SrvDrainedFunc drained;
  gpointer user;
};

static void close_exchange (SrvExchange *x);

/* ---- Connections ---- */

static gint64
seconds_from_now (guint seconds)
{
  return g_get_monotonic_time () + (gint64)seconds * G_USEC_PER_SEC;
}

static SrvConnection *
connection_of (SoupServerMessage *msg)
{
  GSocketAddress *remote = soup_server_message_get_remote_address (msg);

  return remote != NULL ? g_object_get_data (G_OBJECT (remote), connection_key) : NULL;
}

/* Exchanges forget @c, which is freed. */
static void
forget_connection (SrvConnection *c)
{
  GHashTableIter iter;
  gpointer x;

  g_hash_table_iter_init (&iter, c->server->exchanges);
  while (g_hash_table_iter_next (&iter, &x, NULL))
    if (((SrvExchange *)x)->connection == c)
      ((SrvExchange *)x)->connection = NULL;
  g_hash_table_remove (c->server->connections, c);
}

static void
connection_gone (gpointer user, GObject *stream)
{
  forget_connection (user);
}

static void
connection_free (gpointer data)
{
  SrvConnection *c = data;

  g_object_set_data (G_OBJECT (c->remote), connection_key, NULL);
  g_object_unref (c->remote);
  g_object_unref (c->socket);
  g_free (c);
}

static gboolean
reap_cb (gpointer user)
{
  QuireServer *self = user;
  gint64 now = g_get_monotonic_time ();
  GHashTableIter iter;
  gpointer key;

  g_hash_table_iter_init (&iter, self->connections);
  while (g_hash_table_iter_next (&iter, &key, NULL))
    {
      SrvConnection *c = key;

      if (c->deadline != 0 && now > c->deadline)
        {
          c->deadline = 0;
          g_socket_shutdown (c->socket, TRUE, TRUE, NULL); /* libsoup reads the end and lets go */
        }
    }
  return G_SOURCE_CONTINUE;
}

/* libsoup 3.2 does not know them all. */
const char *
srv_status_phrase (guint status)
{
  switch (status)
    {
    case 421:
      return "Misdirected Request";
    case 429:
      return "Too Many Requests";
    case 431:
      return "Request Header Fields Too Large";
    default:
      return soup_status_get_phrase (status);
    }
}

/* Written past libsoup, to a socket whose peer is to go: a few hundred bytes, for which a new socket has room. */
static void
send_error (GSocket *socket, SrvError *error, const char *allow)
{
  g_autoptr (GString) body = g_string_new (NULL);
  g_autofree char *answer = NULL;

  srv_error_write (error, body);
  answer = g_strdup_printf (
      "HTTP/1.1 %u %s\r\nConnection: close\r\nContent-Type: application/json\r\n"
      "X-Content-Type-Options: nosniff\r\n%s%s%s%sContent-Length: %" G_GSIZE_FORMAT "\r\n\r\n%s",
      error->status, srv_status_phrase (error->status),
      error->status == 503 ? "Retry-After: 1\r\n" : "", allow != NULL ? "Allow: " : "",
      allow != NULL ? allow : "", allow != NULL ? "\r\n" : "", body->len, body->str);
  g_socket_set_blocking (socket, FALSE);
  g_socket_send (socket, answer, strlen (answer), NULL, NULL);
  srv_error_clear (error);
}

/* One connection too many: told so without reading it. */
static void
turn_away (GSocket *socket)
{
  SrvError error = { 0 };

  srv_error_set (&error, 503, "too_many_connections", NULL, "Too many connections");
  send_error (socket, &error, NULL);
  g_socket_close (socket, NULL);
}

static void
accept_socket (QuireServer *self, GSocket *socket)
{
  g_autoptr (GSocketAddress) remote = g_socket_get_remote_address (socket, NULL);
  g_autoptr (GSocketAddress) local = g_socket_get_local_address (socket, NULL);
  g_autoptr (GSocketConnection) stream = NULL;
  SrvConnection *c;

  if (remote == NULL || local == NULL) /* it has gone already */
    return;
  self->figures.connections++;
  if (g_hash_table_size (self->connections) >= self->options.n_connections_max)
    {
      self->figures.refused_connections++;
      turn_away (socket);
      return;
    }
  g_socket_set_option (socket, IPPROTO_TCP, TCP_NODELAY, 1, NULL);
  g_socket_set_option (socket, SOL_SOCKET, SO_SNDBUF, SEND_BUFFER_BYTES, NULL);
  stream = g_socket_connection_factory_create_connection (socket);
  c = g_new0 (SrvConnection, 1);
  c->server = self;
  c->socket = g_object_ref (socket);
  c->remote = g_object_ref (remote);
  c->stream = stream;
  c->deadline = seconds_from_now (self->options.read_seconds_max);
  g_hash_table_add (self->connections, c);
  g_object_set_data (G_OBJECT (remote), connection_key, c);
  g_object_weak_ref (G_OBJECT (stream), connection_gone, c);
  soup_server_accept_iostream (self->soup, G_IO_STREAM (stream), local, remote, NULL);
}

static gboolean
accept_cb (GSocket *listener, GIOCondition condition, gpointer user)
{
  /* A few at a time: those who are served already are not to wait for a flood of new ones. A failed one (its peer has
   * gone, the process has no file descriptor left) is the next turn's business. */
  for (int i = 0; i < 16; i++)
    {
      g_autoptr (GSocket) socket = g_socket_accept (listener, NULL, NULL);

      if (socket == NULL)
        break;
      accept_socket (user, socket);
    }
  return G_SOURCE_CONTINUE;
}

/* ---- Listening ---- */

static GSocket *
bind_address (const char *literal, guint16 port, GError **error)
{
  g_autoptr (GSocketAddress) address = g_inet_socket_address_new_from_string (literal, port);
  g_autoptr (GSocket) socket = NULL;

  if (address == NULL)
    {
      g_set_error (error, G_IO_ERROR, G_IO_ERROR_INVALID_ARGUMENT,
                   "“%s” is no IP address to listen at", literal);
      return NULL;
    }
  socket = g_socket_new (g_socket_address_get_family (address), G_SOCKET_TYPE_STREAM,
                         G_SOCKET_PROTOCOL_TCP, error);
  if (socket == NULL)
    return NULL;
  g_socket_set_blocking (socket, FALSE);
  g_socket_set_listen_backlog (socket, 128);
  if (g_socket_address_get_family (address) == G_SOCKET_FAMILY_IPV6)
    g_socket_set_option (socket, IPPROTO_IPV6, IPV6_V6ONLY, 1, NULL);
  if (!g_socket_bind (socket, address, TRUE, error) || !g_socket_listen (socket, error))
    {
      g_prefix_error (error, "%s port %u: ", literal, port);
      return NULL;
    }
  return g_steal_pointer (&socket);
}

static guint16
port_of (GSocket *socket)
{
  g_autoptr (GSocketAddress) address = g_socket_get_local_address (socket, NULL);

  return g_inet_socket_address_get_port (G_INET_SOCKET_ADDRESS (address));
}

gboolean
srv_listen (QuireServer *self, GError **error)
{
  const char *host = self->host != NULL ? self->host : "127.0.0.1";
  GSocket *socket = bind_address (host, self->options.port, error);
  guint16 port;

  if (socket == NULL)
    return FALSE;
  g_ptr_array_add (self->listeners, socket);
  port = port_of (socket);
  if (self->host == NULL)
    {
      GSocket *v6 = bind_address ("::1", port, NULL); /* not every machine has it */

      if (v6 != NULL)
        g_ptr_array_add (self->listeners, v6);
    }
  for (guint i = 0; i < self->listeners->len; i++)
    {
      GSource *source = g_socket_create_source (self->listeners->pdata[i], G_IO_IN, NULL);

      g_source_set_callback (source, G_SOURCE_FUNC (accept_cb), self, NULL);
      g_source_attach (source, NULL);
      g_ptr_array_add (self->sources, source);
    }
  self->connections = g_hash_table_new_full (NULL, NULL, connection_free, NULL);
  self->reaper = g_timeout_add_seconds (1, reap_cb, self);
  self->uri = strchr (host, ':') != NULL ? g_strdup_printf ("http://[%s]:%u/", host, port)
                                         : g_strdup_printf ("http://%s:%u/", host, port);
  return TRUE;
}

/* Whoever waits for an answer is told that there will be none. */
static void
close_exchanges (QuireServer *self)
{
  GHashTableIter iter;
  gpointer x;

  g_hash_table_iter_init (&iter, self->exchanges);
  while (g_hash_table_iter_next (&iter, &x, NULL))
    close_exchange (x);
}

static gboolean
again_cb (gpointer user)
{
  return G_SOURCE_CONTINUE;
}

/* libsoup has closed them; those that a source still holds go in the next turns of the main loop. One that stays is
 * forgotten. */
static void
wait_for_connections (QuireServer *self)
{
  guint ticks = g_timeout_add (50, again_cb, NULL);
  gint64 end = seconds_from_now (STOP_SECONDS_MAX);
  GHashTableIter iter;
  gpointer key;

  while (self->connections != NULL && g_hash_table_size (self->connections) > 0
         && g_get_monotonic_time () < end)
    g_main_context_iteration (NULL, TRUE);
  g_source_remove (ticks);
  if (self->connections == NULL)
    return;
  for (g_hash_table_iter_init (&iter, self->connections);
       g_hash_table_iter_next (&iter, &key, NULL);
       g_hash_table_iter_init (&iter, self->connections))
    {
      SrvConnection *c = key;

      g_object_weak_unref (G_OBJECT (c->stream), connection_gone, c);
      forget_connection (c);
    }
}

void
srv_stop_listening (QuireServer *self)
{
  g_clear_handle_id (&self->reaper, g_source_remove);
  for (guint i = 0; i < self->sources->len; i++)
    {
      g_source_destroy (self->sources->pdata[i]);
      g_source_unref (self->sources->pdata[i]);
    }
  g_ptr_array_set_size (self->sources, 0);
  for (guint i = 0; i < self->listeners->len; i++)
    g_socket_close (self->listeners->pdata[i], NULL);
  g_ptr_array_set_size (self->listeners, 0);
  close_exchanges (self);
  if (self->soup != NULL)
    soup_server_disconnect (self->soup);
  g_hash_table_remove_all (self->exchanges);
  wait_for_connections (self);
}

/* ---- Exchanges ---- */

static void
stop_watching (SrvExchange *x)
{
  if (x->hangup != NULL)
    g_source_destroy (x->hangup);
  g_clear_pointer (&x->hangup, g_source_unref);
}

/* The peer is not there any more. The rest of the message's life is libsoup's. */
static void
close_exchange (SrvExchange *x)
{
  stop_watching (x);
  if (x->is_over)
    return;
  x->is_over = TRUE;
  if (x->closed != NULL)
    x->closed (x, x->user);
}

static gboolean
hangup_cb (gint fd, GIOCondition condition, gpointer user)
{
  SrvExchange *x = user;
  SoupServerMessage *msg = g_object_ref (x->msg);

  close_exchange (x);
  /* libsoup finds out by itself when it writes. */
  if (soup_server_message_get_status (msg) == 0)
    soup_server_message_set_status (msg, SOUP_STATUS_INTERNAL_SERVER_ERROR, NULL);
  soup_message_body_complete (soup_server_message_get_response_body (msg));
  soup_server_message_unpause (msg);
  g_object_unref (msg);
  return G_SOURCE_REMOVE;
}

static void
finished_cb (SoupServerMessage *msg, SrvExchange *x)
{
  QuireServer *self = x->server;

  close_exchange (x);
  g_hash_table_remove (self->exchanges, x);
}

static void
wrote_data_cb (SoupServerMessage *msg, guint n_bytes, SrvExchange *x)
{
  x->n_pending -= MIN (x->n_pending, n_bytes);
  if (x->connection != NULL)
    x->connection->deadline
        = x->n_pending > 0 ? seconds_from_now (x->server->options.write_seconds_max) : 0;
}

static void
wrote_chunk_cb (SoupServerMessage *msg, SrvExchange *x)
{
  if (x->n_pending == 0 && !x->is_over && x->drained != NULL)
    x->drained (x, x->user);
}

SrvExchange *
srv_exchange_new (QuireServer *self, SoupServerMessage *msg)
{
  SrvExchange *x = g_new0 (SrvExchange, 1);

  x->server = self;
  x->msg = g_object_ref (msg);
  x->connection = connection_of (msg);
  g_signal_connect (msg, "finished", G_CALLBACK (finished_cb), x);
  g_signal_connect (msg, "wrote-body-data", G_CALLBACK (wrote_data_cb), x);
  g_signal_connect (msg, "wrote-chunk", G_CALLBACK (wrote_chunk_cb), x);
  if (x->connection != NULL)
    {
      x->connection->deadline = 0;
      x->hangup = g_unix_fd_source_new (g_socket_get_fd (x->connection->socket),
                                        (GIOCondition)(POLLRDHUP | POLLHUP | POLLERR));
      g_source_set_callback (x->hangup, G_SOURCE_FUNC (hangup_cb), x, NULL);
      g_source_attach (x->hangup, NULL);
    }
  g_hash_table_add (self->exchanges, x);
  soup_server_message_pause (msg);
  return x;
}

void
srv_exchange_set_funcs (SrvExchange *x, SrvClosedFunc closed, SrvDrainedFunc drained, gpointer user)
{
  x->closed = closed;
  x->drained = drained;
  x->user = user;
}

QuireServer *
srv_exchange_get_server (SrvExchange *x)
{
  return x->server;
}

/* What is written last leaves within the write limit. */
static void
finish_writing (SrvExchange *x)
{
  x->is_over = TRUE;
  stop_watching (x);
  if (x->connection != NULL)
    x->connection->deadline = seconds_from_now (x->server->options.write_seconds_max);
  soup_server_message_unpause (x->msg);
}

void
srv_exchange_answer (SrvExchange *x, guint status, const char *type, GString *body)
{
  srv_answer (x->msg, status, type, body);
  finish_writing (x);
}

void
srv_exchange_refuse (SrvExchange *x, SrvError *error)
{
  srv_refuse (x->msg, error);
  finish_writing (x);
}

void
srv_exchange_begin_events (SrvExchange *x)
{
  SoupMessageHeaders *headers = soup_server_message_get_response_headers (x->msg);
  gboolean old = soup_server_message_get_http_version (x->msg) == SOUP_HTTP_1_0;

  x->is_stream = TRUE;
  soup_message_headers_set_content_type (headers, "text/event-stream", NULL);
  soup_message_headers_replace (headers, "Cache-Control", "no-store");
  soup_message_headers_set_encoding (headers, old ? SOUP_ENCODING_EOF : SOUP_ENCODING_CHUNKED);
  soup_message_body_set_accumulate (soup_server_message_get_response_body (x->msg), FALSE);
  soup_server_message_set_status (x->msg, SOUP_STATUS_OK, NULL);
}

void
srv_exchange_write (SrvExchange *x, GString *piece)
{
  gsize n = piece->len;

  g_assert (x->is_stream && !x->is_over);
  if (n == 0)
    {
      g_string_free (piece, TRUE);
      return;
    }
  if (x->n_pending == 0 && x->connection != NULL)
    x->connection->deadline = seconds_from_now (x->server->options.write_seconds_max);
  x->n_pending += n;
  soup_message_body_append_take (soup_server_message_get_response_body (x->msg),
                                 (guchar *)g_string_free (piece, FALSE), n);
  soup_server_message_unpause (x->msg);
}

void
srv_exchange_end (SrvExchange *x)
{
  soup_message_body_complete (soup_server_message_get_response_body (x->msg));
  finish_writing (x);
}

gboolean
srv_exchange_is_drained (SrvExchange *x)
{
  return x->n_pending == 0;
}

void
srv_exchange_free (gpointer data)
{
  SrvExchange *x = data;

  stop_watching (x);
  g_signal_handlers_disconnect_by_data (x->msg, x);
  g_object_unref (x->msg);
  g_free (x);
}

/* ---- Answers ---- */

void
srv_answer (SoupServerMessage *msg, guint status, const char *type, GString *body)
{
  gsize n = body->len;
  SrvConnection *c = connection_of (msg);

  if (c != NULL)
    c->deadline = seconds_from_now (c->server->options.write_seconds_max);
  soup_server_message_set_status (msg, status, srv_status_phrase (status));
  soup_server_message_set_response (msg, type, SOUP_MEMORY_TAKE, g_string_free (body, FALSE), n);
}

void
srv_refuse (SoupServerMessage *msg, SrvError *error)
{
  SoupMessageHeaders *headers = soup_server_message_get_response_headers (msg);
  GString *body = g_string_new (NULL);

  srv_error_write (error, body);
  if (error->status == 401)
    soup_message_headers_replace (headers, "WWW-Authenticate", "Bearer");
  if (error->status == 429 || error->status == 503)
    soup_message_headers_replace (headers, "Retry-After", "1");
  srv_answer (msg, error->status, "application/json", body);
  srv_error_clear (error);
}

gboolean
srv_require_engine (QuireServer *self, SoupServerMessage *msg)
{
  SrvError error = { 0 };

  if (self->engine != NULL)
    return TRUE;
  srv_error_no_model (&error);
  srv_refuse (msg, &error);
  return FALSE;
}

void
srv_refuse_now (SoupServerMessage *msg, SrvError *error)
{
  SrvConnection *c = connection_of (msg);
  guint status = error->status;

  /* Of a body that nobody wants, nothing is kept; and its sender need not send it all to be told. */
  soup_message_body_set_accumulate (soup_server_message_get_request_body (msg), FALSE);
  if (c != NULL)
    {
      send_error (
          c->socket, error,
          soup_message_headers_get_one (soup_server_message_get_response_headers (msg), "Allow"));
      g_socket_shutdown (c->socket, FALSE, TRUE, NULL);
      c->deadline = seconds_from_now (LINGER_SECONDS);
    }
  srv_error_clear (error);
  soup_server_message_set_status (msg, status, srv_status_phrase (status));
}
