/* server-private.h: what the files of the server share. Main context only.
 *
 *   quire-server.c       life, listening, sessions' table
 *   server-connection.c  connections: accepted, counted, timed out; exchanges: one request and its answer
 *   server-guard.c       what is refused before its body is read
 *   server-reply.c       requests in the engine: choices, their news, their end
 *   route-*.c            one endpoint or group each
 */
#pragma once
#include <libsoup/soup.h>
#include "app/server/quire-server.h"
#include "app/server/server-error.h"
#include "app/server/server-request.h"

G_BEGIN_DECLS

/* Past these, text of a request is refused before it costs anything. */
#define SRV_HEADER_BYTES_MAX (32u << 10)
#define SRV_REQUESTS_MAX 128u /* the greatest n_requests_max */
#define SRV_KEPT_MAX                                                                               \
  24u /* sessions of requests without a name that stay open, for their pages to be found */
#define SRV_KEEPALIVE_SECONDS 15u

typedef struct _SrvExchange SrvExchange;
typedef struct _SrvSession SrvSession;

/* ---- Figures for /metrics ---- */

#define SRV_N_BUCKETS 12u
typedef struct
{
  guint64 counts[SRV_N_BUCKETS + 1]; /* the last: above all bounds */
  double sum;
  guint64 n;
} SrvHistogram;
extern const double srv_bucket_seconds[SRV_N_BUCKETS];
void srv_histogram_add (SrvHistogram *histogram, double seconds);

typedef struct
{
  guint64 answers[6]; /* by hundreds of the status */
  guint64 connections, refused_connections;
  guint64 prompt_tokens, cached_tokens, shared_tokens, generated_tokens;
  guint64 finished[QE_FINISH_ERROR + 1];
  SrvHistogram queue, first_token, total;
} SrvFigures;

/* ---- Named sessions ---- */

struct _SrvSession
{
  char *name;
  qe_session_id id;
  qe_cache_config cache;
  gboolean pinned;
  guint n_running; /* choices that use it */
  guint64 n_requests;
  gint64 created;   /* Unix seconds */
  gint64 last_used; /* monotonic */
};

/* ---- The server ---- */

struct _QuireServer
{
  GObject parent_instance;

  qe_engine *engine;   /* borrowed; NULL: none */
  guint engine_serial; /* grows with every engine that is set */
  QuireServerOptions options;
  char *host, *token;
  char **allowed_hosts;
  gboolean on_loopback;

  SoupServer *soup;        /* NULL: does not listen */
  GPtrArray *listeners;    /* GSocket */
  GPtrArray *sources;      /* GSource: of the listeners */
  GHashTable *connections; /* SrvConnection, as a set */
  GHashTable *exchanges;   /* SrvExchange, as a set */
  guint reaper;
  char *uri;
  gint64 created; /* Unix seconds, of the start */

  GHashTable *sessions; /* name -> SrvSession, owned */
  GQueue kept;          /* qe_session_id, boxed: without a name and idle, oldest first */
  GPtrArray *watchers;  /* of /v1/cache/events */
  guint watch_timer;
  guint64 watch_serial;
  SrvFigures figures;
};

/* The session of that name, or NULL. */
SrvSession *srv_session_find (QuireServer *self, const char *name);
/* A new one. NULL with @error: too many, or the engine refused. @id: 0: opened here, else taken over. */
SrvSession *srv_session_add (QuireServer *self, const char *name, const qe_cache_config *cache,
                             qe_session_id id, SrvError *error);
void srv_session_remove (QuireServer *self, SrvSession *session);
/* As qe_engine_open_session_with(); when there are too many, one that is only kept goes. */
qe_session_id srv_session_open (QuireServer *self, const qe_session_options *options,
                                GError **error);
/* @id has no name and is idle: its pages stay to be found by others until SRV_KEPT_MAX later ones are kept. */
void srv_session_keep (QuireServer *self, qe_session_id id);
/* Makes room for one more; FALSE with @error when all are in use or pinned. */
gboolean srv_session_make_room (QuireServer *self, SrvError *error);

/* ---- Connections and exchanges ---- */

gboolean srv_listen (QuireServer *self, GError **error);
void srv_stop_listening (QuireServer *self); /* and closes all connections */

/* The peer has gone; nothing can be written any more. */
typedef void (*SrvClosedFunc) (SrvExchange *exchange, gpointer user);
/* All that was written has left. */
typedef void (*SrvDrainedFunc) (SrvExchange *exchange, gpointer user);

/* A request whose answer comes later: pauses @msg and watches for the end of its connection. It lives until the message
 * is finished, at least until its end was written or closed was called, whichever is first. */
void srv_exchange_free (gpointer exchange);
SrvExchange *srv_exchange_new (QuireServer *self, SoupServerMessage *msg);
void srv_exchange_set_funcs (SrvExchange *exchange, SrvClosedFunc closed, SrvDrainedFunc drained,
                             gpointer user);
QuireServer *srv_exchange_get_server (SrvExchange *exchange);
/* The whole answer. @exchange is not to be used any more. @body: consumed. */
void srv_exchange_answer (SrvExchange *exchange, guint status, const char *type, GString *body);
void srv_exchange_refuse (SrvExchange *exchange, SrvError *error); /* clears @error */
/* An answer in pieces: server-sent events. */
void srv_exchange_begin_events (SrvExchange *exchange);
void srv_exchange_write (SrvExchange *exchange, GString *piece); /* consumed; empty is fine */
void srv_exchange_end (SrvExchange *exchange); /* @exchange is not to be used any more */
gboolean srv_exchange_is_drained (SrvExchange *exchange);

const char *srv_status_phrase (guint status);
/* Answers at once, from within a handler. @body: consumed. */
void srv_answer (SoupServerMessage *msg, guint status, const char *type, GString *body);
void srv_refuse (SoupServerMessage *msg, SrvError *error); /* clears @error */
/* FALSE after @msg was refused: there is no engine. */
gboolean srv_require_engine (QuireServer *self, SoupServerMessage *msg);
/* As above while the body is still coming: the answer goes out at once and the connection ends. */
void srv_refuse_now (SoupServerMessage *msg, SrvError *error);

/* ---- The guard and the routes ---- */

typedef void (*SrvRouteFunc) (QuireServer *self, SoupServerMessage *msg, const char *arg);
typedef struct
{
  const char *method;
  const char *path;  /* "/v1/sessions/{id}": one segment may be an argument */
  gboolean is_open;  /* needs no token: holds nothing of the user's */
  SrvRouteFunc func; /* @arg: the argument's text, unescaped; else NULL */
} SrvRoute;
extern const SrvRoute srv_routes[]; /* a NULL method behind the last */

/* The route of a method and path; NULL with @error (404; 405 with *allow). @arg: owned by the caller. */
const SrvRoute *srv_route_find (const char *method, const char *path, char **arg, char **allow,
                                SrvError *error);

/* Looks at the head of a request. FALSE with @error. */
gboolean srv_guard_check (QuireServer *self, SoupServerMessage *msg, SrvError *error);
/* Whether a Host header names this server. @host may be NULL. */
gboolean srv_guard_host_is_ours (QuireServer *self, const char *host);

/* ---- Endpoints ---- */

void srv_route_chat (QuireServer *self, SoupServerMessage *msg, const char *arg);
void srv_route_completion (QuireServer *self, SoupServerMessage *msg, const char *arg);
void srv_route_models (QuireServer *self, SoupServerMessage *msg, const char *arg);
void srv_route_model (QuireServer *self, SoupServerMessage *msg, const char *arg);
void srv_route_tokenize (QuireServer *self, SoupServerMessage *msg, const char *arg);
void srv_route_detokenize (QuireServer *self, SoupServerMessage *msg, const char *arg);
void srv_route_sessions (QuireServer *self, SoupServerMessage *msg, const char *arg);
void srv_route_session_new (QuireServer *self, SoupServerMessage *msg, const char *arg);
void srv_route_session (QuireServer *self, SoupServerMessage *msg, const char *arg);
void srv_route_session_delete (QuireServer *self, SoupServerMessage *msg, const char *arg);
void srv_route_session_fork (QuireServer *self, SoupServerMessage *msg, const char *arg);
void srv_route_session_pin (QuireServer *self, SoupServerMessage *msg, const char *arg);
void srv_route_cache (QuireServer *self, SoupServerMessage *msg, const char *arg);
void srv_route_cache_events (QuireServer *self, SoupServerMessage *msg, const char *arg);
void srv_route_health (QuireServer *self, SoupServerMessage *msg, const char *arg);
void srv_route_metrics (QuireServer *self, SoupServerMessage *msg, const char *arg);
void srv_route_static (QuireServer *self, SoupServerMessage *msg, const char *arg);

/* The model that answers, under the name that the API gives it. Returns: owned; NULL when none is ready. */
char *srv_dup_model_id (const qe_engine_status *status);
/* The status of now; without an engine it is empty. Clear with qe_engine_status_clear(). */
void srv_get_status (QuireServer *self, qe_engine_status *out);

/* ---- Requests in the engine (server-reply.c) ---- */

/* How many choices compute or wait, those included whose reader has gone. */
guint srv_n_choices (void);
/* Cancels all and waits for their end. */
void srv_choices_end (QuireServer *self);

G_END_DECLS
