/* quire-server.h: the local server: OpenAI's API, this engine's sessions, a page to chat in, the API's description.
 *
 * HTTP/1.1 without TLS on loopback, for programs of this machine; beyond loopback only with a token. Everything runs on
 * the default main context; the engine computes on its own thread and only wakes it. No GTK.
 *
 * One server at a time serves a process. The engine is the caller's: the server opens sessions in it beside those of
 * others, and one scheduler treats all alike. */
#pragma once
#include <gio/gio.h>
#include "engine/qe.h"

G_BEGIN_DECLS

#define QUIRE_TYPE_SERVER (quire_server_get_type ())
G_DECLARE_FINAL_TYPE (QuireServer, quire_server, QUIRE, SERVER, GObject)

#define QUIRE_SERVER_PORT 8377

typedef struct
{
  const char *host;  /* a literal address; NULL: 127.0.0.1 and, where there is one, ::1 */
  guint16 port;      /* 0: any that is free */
  const char *token; /* what clients must show; NULL: none, on loopback only */
  const char *const *
      allowed_hosts; /* names that a Host header may have besides localhost and the address; or NULL */
  qe_cache_config cache;   /* of sessions whose request names no mode */
  guint n_connections_max; /* past it: 503 */
  guint n_requests_max;    /* choices that compute or wait at a time; past it: 429 */
  guint n_sessions_max;    /* named sessions; past it the one unused longest goes, unless pinned */
  gsize body_bytes_max;    /* of a request; past it: 413 */
  guint read_seconds_max;  /* for a request to come in whole */
  guint write_seconds_max; /* for a reader who takes nothing */
} QuireServerOptions;

/* Loopback, the port above, no token, the limits that README.md names. */
void quire_server_options_init (QuireServerOptions *options);

/* Signals:
 *   changed    it started or stopped */
QuireServer *quire_server_new (void);

/* What answers from now on; NULL: nothing does (503). Named sessions are forgotten: call it again whenever all sessions
 * of the engine end (another model). Borrowed: set NULL before the engine goes. */
void quire_server_set_engine (QuireServer *self, qe_engine *engine);
qe_engine *quire_server_get_engine (QuireServer *self); /* borrowed; may be NULL */

/* Begins to listen. @options is copied. FALSE with @error: the port is taken, the address is not this machine's, or it
 * is beyond loopback and there is no token. */
gboolean quire_server_start (QuireServer *self, const QuireServerOptions *options, GError **error);
/* Stops listening, closes every connection, cancels its requests and waits for them (one step). */
void quire_server_stop (QuireServer *self);
/* "http://127.0.0.1:8377/"; NULL while it does not listen. Borrowed. */
const char *quire_server_get_uri (QuireServer *self);

/* A new random token. Returns: owned. */
char *quire_server_token_new (void);
/* The token in the file, which must be the user's and 0600. Where there is no file, one with a new random token is made.
 * Returns: owned. */
char *quire_server_token_from_file (const char *path, GError **error);

G_END_DECLS
