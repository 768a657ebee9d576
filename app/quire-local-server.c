/* quire-local-server.c: see quire-local-server.h.
 *
 * One function, apply(), brings the server to what the settings say; everything that changes calls it. Beyond this machine it
 * waits for the token first.
 *
 * Invariant: the server never has an engine that its client has let go of (engine-leaving). */
#include "app/quire-local-server.h"

#include <arpa/inet.h>
#include <glib/gi18n.h>
#include <ifaddrs.h>
#include <net/if.h>

#include "app/quire-settings.h"
#include "app/quire-token.h"
#include "app/server/quire-server.h"

struct _QuireLocalServer
{
  GObject parent_instance;

  QuireEngineClient *client;
  QuireServer *server;
  GCancellable *asking; /* for the token */
  char *token, *uri, *problem;
  gboolean in_keyring;
  /* What runs; compared with the settings. */
  gboolean is_network;
  guint port;
};

G_DEFINE_FINAL_TYPE (QuireLocalServer, quire_local_server, G_TYPE_OBJECT)

enum
{
  CHANGED,
  N_SIGNALS
};
static guint signals[N_SIGNALS];

/* ---- Starting and stopping ---- */

/* An address of this machine in the network. Returns: owned; NULL when there is none. */
static char *
dup_network_address (void)
{
  struct ifaddrs *all = NULL;
  char text[INET_ADDRSTRLEN] = "";

  if (getifaddrs (&all) != 0)
    return NULL;
  for (struct ifaddrs *a = all; a != NULL && text[0] == '\0'; a = a->ifa_next)
    if (a->ifa_addr != NULL && a->ifa_addr->sa_family == AF_INET && (a->ifa_flags & IFF_UP) != 0
        && (a->ifa_flags & IFF_LOOPBACK) == 0)
      inet_ntop (AF_INET, &((struct sockaddr_in *)(void *)a->ifa_addr)->sin_addr, text,
                 sizeof text);
  freeifaddrs (all);
  return text[0] != '\0' ? g_strdup (text) : NULL;
}

static void
set_problem (QuireLocalServer *self, const GError *error)
{
  g_free (self->problem);
  if (error == NULL)
    self->problem = NULL;
  else if (g_error_matches (error, G_IO_ERROR, G_IO_ERROR_ADDRESS_IN_USE))
    self->problem
        = g_strdup_printf (_ ("Port %u is used by another program. Choose another one."),
                           g_settings_get_uint (quire_settings_get_default (), "server-port"));
  else
    self->problem = g_strdup_printf (_ ("The server could not start: %s"), error->message);
}

static void
stop (QuireLocalServer *self)
{
  if (quire_server_get_uri (self->server) != NULL)
    quire_server_stop (self->server);
  g_clear_pointer (&self->uri, g_free);
}

static void
start (QuireLocalServer *self)
{
  QuireServerOptions options;
  g_autofree char *address = self->is_network ? dup_network_address () : NULL;
  /* The address that is shown is a Host that clients send, also where it is none of a private network. */
  const char *const hosts[] = { address, NULL };
  g_autoptr (GError) error = NULL;

  quire_server_options_init (&options);
  options.port = (guint16)self->port;
  options.host = self->is_network ? "0.0.0.0" : NULL;
  options.token = self->is_network ? self->token : NULL;
  options.allowed_hosts = hosts;
  if (quire_server_start (self->server, &options, &error))
    self->uri = address != NULL ? g_strdup_printf ("http://%s:%u/", address, self->port)
                                : g_strdup (quire_server_get_uri (self->server));
  set_problem (self, error);
  g_signal_emit (self, signals[CHANGED], 0);
}

static void ask_token (QuireLocalServer *self, gboolean renew);

/* What the settings say becomes so. @again: also when nothing has changed. */
static void
apply (QuireLocalServer *self, gboolean again)
{
  GSettings *settings = quire_settings_get_default ();
  gboolean wanted = g_settings_get_boolean (settings, "server");
  gboolean network = g_settings_get_boolean (settings, "server-network");
  guint port = g_settings_get_uint (settings, "server-port");
  gboolean runs = quire_server_get_uri (self->server) != NULL;

  if (runs && wanted && !again && network == self->is_network && port == self->port)
    return;
  stop (self);
  self->is_network = network;
  self->port = port;
  set_problem (self, NULL);
  if (wanted && network && self->token == NULL)
    ask_token (self, FALSE);
  else if (wanted)
    {
      start (self);
      return;
    }
  g_signal_emit (self, signals[CHANGED], 0);
}

/* ---- The token ---- */

static void
token_cb (GObject *source, GAsyncResult *result, gpointer user_data)
{
  QuireLocalServer *self = user_data;
  g_autoptr (GError) error = NULL;
  gboolean in_keyring = FALSE;
  char *token = quire_token_get_finish (result, &in_keyring, &error);

  if (g_error_matches (error, G_IO_ERROR, G_IO_ERROR_CANCELLED)) /* it may be gone */
    {
      g_free (token);
      return;
    }
  g_clear_object (&self->asking);
  if (token == NULL)
    {
      set_problem (self, error);
      g_signal_emit (self, signals[CHANGED], 0);
      return;
    }
  g_free (self->token);
  self->token = token;
  self->in_keyring = in_keyring;
  apply (self, TRUE);
}

static void
ask_token (QuireLocalServer *self, gboolean renew)
{
  if (self->asking != NULL && !renew)
    return;
  g_cancellable_cancel (self->asking);
  g_clear_object (&self->asking);
  self->asking = g_cancellable_new ();
  quire_token_get_async (renew, self->asking, token_cb, self);
}

void
quire_local_server_renew_token (QuireLocalServer *self)
{
  ask_token (self, TRUE);
}

/* ---- Following ---- */

static void
setting_cb (QuireLocalServer *self)
{
  apply (self, FALSE);
}

static void
leaving_cb (QuireLocalServer *self)
{
  quire_server_set_engine (self->server, NULL);
}

/* All sessions end: another model, or another engine. */
static void
sessions_lost_cb (QuireLocalServer *self)
{
  quire_server_set_engine (self->server, quire_engine_client_get_engine (self->client));
}

/* An engine that could not be replaced stays. */
static void
status_cb (QuireLocalServer *self)
{
  qe_engine *engine = quire_engine_client_get_engine (self->client);

  if (quire_server_get_engine (self->server) != engine)
    quire_server_set_engine (self->server, engine);
}

/* ---- Public ---- */

const char *
quire_local_server_get_uri (QuireLocalServer *self)
{
  return self->uri;
}

const char *
quire_local_server_get_problem (QuireLocalServer *self)
{
  return self->problem;
}

const char *
quire_local_server_get_token (QuireLocalServer *self)
{
  return self->is_network ? self->token : NULL;
}

const char *
quire_local_server_get_token_place (QuireLocalServer *self)
{
  if (quire_local_server_get_token (self) == NULL)
    return NULL;
  return self->in_keyring ? _ ("Kept in the keyring") : _ ("Kept in a file that only you can read");
}

static void
quire_local_server_dispose (GObject *object)
{
  QuireLocalServer *self = QUIRE_LOCAL_SERVER (object);

  g_cancellable_cancel (self->asking);
  g_clear_object (&self->asking);
  if (self->server != NULL)
    {
      stop (self);
      quire_server_set_engine (self->server, NULL);
    }
  g_clear_object (&self->server);
  g_clear_object (&self->client);
  G_OBJECT_CLASS (quire_local_server_parent_class)->dispose (object);
}

static void
quire_local_server_finalize (GObject *object)
{
  QuireLocalServer *self = QUIRE_LOCAL_SERVER (object);

  g_free (self->token);
  g_free (self->uri);
  g_free (self->problem);
  G_OBJECT_CLASS (quire_local_server_parent_class)->finalize (object);
}

static void
quire_local_server_class_init (QuireLocalServerClass *klass)
{
  G_OBJECT_CLASS (klass)->dispose = quire_local_server_dispose;
  G_OBJECT_CLASS (klass)->finalize = quire_local_server_finalize;
  signals[CHANGED] = g_signal_new ("changed", G_TYPE_FROM_CLASS (klass), G_SIGNAL_RUN_LAST, 0, NULL,
                                   NULL, NULL, G_TYPE_NONE, 0);
}

static void
quire_local_server_init (QuireLocalServer *self)
{
  self->server = quire_server_new ();
}

QuireLocalServer *
quire_local_server_new (QuireEngineClient *client)
{
  static const char *const keys[]
      = { "changed::server", "changed::server-port", "changed::server-network" };
  QuireLocalServer *self = g_object_new (QUIRE_TYPE_LOCAL_SERVER, NULL);

  self->client = g_object_ref (client);
  g_signal_connect_object (client, "engine-leaving", G_CALLBACK (leaving_cb), self,
                           G_CONNECT_SWAPPED);
  g_signal_connect_object (client, "sessions-lost", G_CALLBACK (sessions_lost_cb), self,
                           G_CONNECT_SWAPPED);
  g_signal_connect_object (client, "status-changed", G_CALLBACK (status_cb), self,
                           G_CONNECT_SWAPPED);
  for (gsize i = 0; i < G_N_ELEMENTS (keys); i++)
    g_signal_connect_object (quire_settings_get_default (), keys[i], G_CALLBACK (setting_cb), self,
                             G_CONNECT_SWAPPED);
  status_cb (self);
  apply (self, FALSE);
  return self;
}
