/* quire-background.c: see quire-background.h.
 *
 * The portal's protocol: RequestBackground names an object of the bus, and that object's Response signal has the answer.
 * Its path follows from our name on the bus and a token, so the signal is waited for before the call is made: an answer
 * cannot come too early. */
#include "app/quire-background.h"

#define PORTAL_NAME "org.freedesktop.portal.Desktop"
#define PORTAL_PATH "/org/freedesktop/portal/desktop"
#define BACKGROUND "org.freedesktop.portal.Background"
#define REQUEST "org.freedesktop.portal.Request"

struct _QuireBackground
{
  GObject parent_instance;

  GApplication *application; /* borrowed */
  QuireBackgroundState state;
  char *reason;
  char *request; /* ASKING through the portal: the path of its request */
  guint subscription;
  GCancellable *cancellable;
};

G_DEFINE_FINAL_TYPE (QuireBackground, quire_background, G_TYPE_OBJECT)

enum
{
  PROP_STATE = 1,
  N_PROPERTIES,
};

static GParamSpec *properties[N_PROPERTIES];

static gboolean
is_held (QuireBackgroundState state)
{
  return state == QUIRE_BACKGROUND_ASKING || state == QUIRE_BACKGROUND_ALLOWED;
}

static void
forget_request (QuireBackground *self)
{
  if (self->subscription != 0)
    g_dbus_connection_signal_unsubscribe (g_application_get_dbus_connection (self->application),
                                          self->subscription);
  self->subscription = 0;
  if (self->cancellable != NULL)
    g_cancellable_cancel (self->cancellable);
  g_clear_object (&self->cancellable);
  g_clear_pointer (&self->request, g_free);
}

static void
set_state (QuireBackground *self, QuireBackgroundState state)
{
  gboolean held = is_held (self->state);

  if (state == self->state)
    return;
  self->state = state;
  if (is_held (state) && !held)
    g_application_hold (self->application);
  g_object_notify_by_pspec (G_OBJECT (self), properties[PROP_STATE]);
  if (!is_held (state) && held)
    g_application_release (self->application);
}

static void
call_portal (QuireBackground *self, const char *path, const char *interface, const char *method,
             GVariant *parameters, GAsyncReadyCallback callback)
{
  g_dbus_connection_call (g_application_get_dbus_connection (self->application), PORTAL_NAME, path,
                          interface, method, parameters, NULL, G_DBUS_CALL_FLAGS_NONE, -1,
                          callback != NULL ? self->cancellable : NULL, callback,
                          callback != NULL ? g_object_ref (self) : NULL);
}

static void
response_cb (GDBusConnection *connection, const char *sender, const char *path,
             const char *interface, const char *signal, GVariant *parameters, gpointer user_data)
{
  QuireBackground *self = user_data;
  g_autoptr (GVariant) results = NULL;
  guint32 response;
  gboolean allowed = FALSE;

  g_variant_get (parameters, "(u@a{sv})", &response, &results);
  /* 0 is success; that alone does not say that the user agreed. */
  if (response == 0)
    g_variant_lookup (results, "background", "b", &allowed);
  forget_request (self);
  if (allowed)
    {
      /* Where the desktop lists what runs without a window. Portals before version 2 do not know it. */
      GVariantBuilder status;

      g_variant_builder_init (&status, G_VARIANT_TYPE_VARDICT);
      g_variant_builder_add (&status, "{sv}", "message", g_variant_new_string (self->reason));
      call_portal (self, PORTAL_PATH, BACKGROUND, "SetStatus", g_variant_new ("(a{sv})", &status),
                   NULL);
    }
  set_state (self, allowed ? QUIRE_BACKGROUND_ALLOWED : QUIRE_BACKGROUND_DENIED);
}

static void
requested_cb (GObject *source, GAsyncResult *result, gpointer user_data)
{
  g_autoptr (QuireBackground) self = user_data;
  g_autoptr (GError) error = NULL;
  g_autoptr (GVariant) reply
      = g_dbus_connection_call_finish (G_DBUS_CONNECTION (source), result, &error);

  if (reply != NULL || g_error_matches (error, G_IO_ERROR, G_IO_ERROR_CANCELLED))
    return;
  g_info ("The background portal: %s", error->message);
  forget_request (self);
  set_state (self, QUIRE_BACKGROUND_DENIED);
}

/* GTK's own switch for trying portals outside of a sandbox. */
static gboolean
has_to_ask (void)
{
  return g_file_test ("/.flatpak-info", G_FILE_TEST_EXISTS) || g_getenv ("SNAP") != NULL
         || g_strcmp0 (g_getenv ("GTK_USE_PORTAL"), "1") == 0;
}

static void
ask_portal (QuireBackground *self)
{
  GDBusConnection *connection = g_application_get_dbus_connection (self->application);
  g_autofree char *token = g_strdup_printf ("quire%u", g_random_int ());
  g_autofree char *name = g_strdup (g_dbus_connection_get_unique_name (connection) + 1);
  GVariantBuilder options;

  g_strdelimit (name, ".", '_');
  self->request = g_strconcat (PORTAL_PATH "/request/", name, "/", token, NULL);
  self->cancellable = g_cancellable_new ();
  self->subscription = g_dbus_connection_signal_subscribe (
      connection, PORTAL_NAME, REQUEST, "Response", self->request, NULL, G_DBUS_SIGNAL_FLAGS_NONE,
      response_cb, self, NULL);
  g_variant_builder_init (&options, G_VARIANT_TYPE_VARDICT);
  g_variant_builder_add (&options, "{sv}", "handle_token", g_variant_new_string (token));
  g_variant_builder_add (&options, "{sv}", "reason", g_variant_new_string (self->reason));
  g_variant_builder_add (&options, "{sv}", "autostart", g_variant_new_boolean (FALSE));
  call_portal (self, PORTAL_PATH, BACKGROUND, "RequestBackground",
               g_variant_new ("(sa{sv})", "", &options), requested_cb);
}

void
quire_background_request (QuireBackground *self, const char *reason)
{
  if (is_held (self->state))
    return;
  g_free (self->reason);
  self->reason = g_strdup (reason);
  if (!has_to_ask ())
    {
      set_state (self, QUIRE_BACKGROUND_ALLOWED);
      return;
    }
  if (g_application_get_dbus_connection (self->application) == NULL)
    {
      set_state (self, QUIRE_BACKGROUND_DENIED);
      return;
    }
  set_state (self, QUIRE_BACKGROUND_ASKING);
  ask_portal (self);
}

void
quire_background_release (QuireBackground *self)
{
  if (self->request != NULL)
    call_portal (self, self->request, REQUEST, "Close", NULL, NULL);
  forget_request (self);
  set_state (self, QUIRE_BACKGROUND_OFF);
}

QuireBackgroundState
quire_background_get_state (QuireBackground *self)
{
  return self->state;
}

/* ---- Object ---- */

static void
quire_background_dispose (GObject *object)
{
  QuireBackground *self = QUIRE_BACKGROUND (object);

  if (self->application != NULL)
    quire_background_release (self);
  self->application = NULL;
  G_OBJECT_CLASS (quire_background_parent_class)->dispose (object);
}

static void
quire_background_finalize (GObject *object)
{
  g_free (QUIRE_BACKGROUND (object)->reason);
  G_OBJECT_CLASS (quire_background_parent_class)->finalize (object);
}

static void
quire_background_get_property (GObject *object, guint id, GValue *value, GParamSpec *pspec)
{
  if (id == PROP_STATE)
    g_value_set_int (value, QUIRE_BACKGROUND (object)->state);
  else
    G_OBJECT_WARN_INVALID_PROPERTY_ID (object, id, pspec);
}

static void
quire_background_class_init (QuireBackgroundClass *klass)
{
  GObjectClass *object_class = G_OBJECT_CLASS (klass);

  object_class->dispose = quire_background_dispose;
  object_class->finalize = quire_background_finalize;
  object_class->get_property = quire_background_get_property;
  properties[PROP_STATE]
      = g_param_spec_int ("state", NULL, NULL, QUIRE_BACKGROUND_OFF, QUIRE_BACKGROUND_DENIED,
                          QUIRE_BACKGROUND_OFF, G_PARAM_READABLE | G_PARAM_STATIC_STRINGS);
  g_object_class_install_properties (object_class, N_PROPERTIES, properties);
}

static void
quire_background_init (QuireBackground *self)
{
}

QuireBackground *
quire_background_new (GApplication *application)
{
  QuireBackground *self = g_object_new (QUIRE_TYPE_BACKGROUND, NULL);

  self->application = application;
  return self;
}
