/* quire-keeper.c: see quire-keeper.h. */
#include "app/quire-keeper.h"

#include <glib/gi18n.h>

#include "app/quire-format.h"
#include "app/quire-settings.h"

#define LOGIN_NAME "org.freedesktop.login1"
#define LOGIN_PATH "/org/freedesktop/login1"
#define LOGIN_INTERFACE "org.freedesktop.login1.Manager"
/* A device that is found lost so soon after the machine woke was lost by its sleep: the user need not be asked. */
#define WAKE_US (60 * G_USEC_PER_SEC)

struct _QuireKeeper
{
  GObject parent_instance;

  QuireEngineClient *client;
  GSettings *settings;
  GCancellable *cancellable;
  GDBusConnection *bus;
  guint subscription;
  guint timer_id;
  guint minute_ms;
  gint64 woke_us; /* 0: it has not slept, or the device was seen to afterwards */
};

G_DEFINE_FINAL_TYPE (QuireKeeper, quire_keeper, G_TYPE_OBJECT)

/* ---- Idle ---- */

static gboolean timer_cb (gpointer user_data);

static guint64
idle_ms_max (QuireKeeper *self)
{
  return (guint64)g_settings_get_uint (self->settings, "unload-minutes") * self->minute_ms;
}

/* For the moment when the idle time may be over, if nothing happens until then. */
static void
set_timer (QuireKeeper *self)
{
  guint64 max = idle_ms_max (self), idle;

  g_clear_handle_id (&self->timer_id, g_source_remove);
  if (max == 0 || !quire_engine_client_is_ready (self->client))
    return;
  idle
      = (guint64)(g_get_monotonic_time () - quire_engine_client_get_last_use (self->client)) / 1000;
  self->timer_id
      = g_timeout_add ((guint)MIN (idle < max ? max - idle + 1 : 1, G_MAXINT), timer_cb, self);
}

static gboolean
timer_cb (gpointer user_data)
{
  QuireKeeper *self = user_data;
  const qe_snapshot *snapshot = quire_engine_client_get_snapshot (self->client);
  guint64 idle
      = (guint64)(g_get_monotonic_time () - quire_engine_client_get_last_use (self->client)) / 1000;
  gboolean busy = snapshot != NULL && snapshot->n_running + snapshot->n_queued > 0;
  guint minutes = g_settings_get_uint (self->settings, "unload-minutes");

  self->timer_id = 0;
  if (idle < idle_ms_max (self))
    set_timer (self);
  else if (busy) /* it began in this very moment */
    self->timer_id = g_timeout_add (self->minute_ms, timer_cb, self);
  else
    {
      g_autofree char *why
          = g_strdup_printf (ngettext ("Its memory was given back after %u idle minute.",
                                       "Its memory was given back after %u idle minutes.", minutes),
                             minutes);

      quire_engine_client_release (self->client, why);
    }
  return G_SOURCE_REMOVE;
}

void
quire_keeper_release_now (QuireKeeper *self)
{
  quire_engine_client_release (self->client, _ ("Its memory was given back."));
}

void
quire_keeper_set_minute_ms (QuireKeeper *self, guint ms)
{
  self->minute_ms = ms;
  set_timer (self);
}

/* ---- Sleep ---- */

static void
status_changed_cb (QuireKeeper *self)
{
  const qe_engine_status *status = quire_engine_client_get_status (self->client);

  if (status->state == QE_ENGINE_LOST && self->woke_us != 0
      && g_get_monotonic_time () - self->woke_us < WAKE_US)
    {
      self->woke_us = 0; /* once: what fails again is for the user */
      quire_engine_client_recover (self->client);
      return;
    }
  set_timer (self);
}

static void
prepare_for_sleep_cb (GDBusConnection *bus, const char *sender, const char *path,
                      const char *interface, const char *signal, GVariant *parameters,
                      gpointer user_data)
{
  QuireKeeper *self = user_data;
  gboolean sleeps;

  if (!g_variant_is_of_type (parameters, G_VARIANT_TYPE ("(b)")))
    return;
  g_variant_get (parameters, "(b)", &sleeps);
  if (sleeps)
    return;
  self->woke_us = g_get_monotonic_time ();
  if (quire_engine_client_get_status (self->client)->state == QE_ENGINE_LOST)
    status_changed_cb (self);
  else
    quire_engine_client_check (self->client);
}

static void
bus_cb (GObject *source, GAsyncResult *result, gpointer user_data)
{
  GDBusConnection *bus = g_bus_get_finish (result, NULL);
  QuireKeeper *self = user_data;

  if (bus == NULL) /* none there, or cancelled: the keeper may be gone */
    return;
  self->bus = bus;
  self->subscription = g_dbus_connection_signal_subscribe (
      bus, LOGIN_NAME, LOGIN_INTERFACE, "PrepareForSleep", LOGIN_PATH, NULL,
      G_DBUS_SIGNAL_FLAGS_NONE, prepare_for_sleep_cb, self, NULL);
}

/* ---- Object ---- */

static void
quire_keeper_dispose (GObject *object)
{
  QuireKeeper *self = QUIRE_KEEPER (object);

  g_clear_handle_id (&self->timer_id, g_source_remove);
  g_cancellable_cancel (self->cancellable);
  if (self->subscription != 0)
    g_dbus_connection_signal_unsubscribe (self->bus, self->subscription);
  self->subscription = 0;
  g_clear_object (&self->bus);
  g_clear_object (&self->cancellable);
  g_clear_object (&self->client);
  G_OBJECT_CLASS (quire_keeper_parent_class)->dispose (object);
}

static void
quire_keeper_class_init (QuireKeeperClass *klass)
{
  G_OBJECT_CLASS (klass)->dispose = quire_keeper_dispose;
}

static void
quire_keeper_init (QuireKeeper *self)
{
  self->settings = quire_settings_get_default ();
  self->cancellable = g_cancellable_new ();
  self->minute_ms = 60 * 1000;
}

QuireKeeper *
quire_keeper_new (QuireEngineClient *client)
{
  QuireKeeper *self = g_object_new (QUIRE_TYPE_KEEPER, NULL);

  self->client = g_object_ref (client);
  g_signal_connect_object (client, "status-changed", G_CALLBACK (status_changed_cb), self,
                           G_CONNECT_SWAPPED);
  g_signal_connect_object (self->settings, "changed::unload-minutes", G_CALLBACK (set_timer), self,
                           G_CONNECT_SWAPPED);
  g_bus_get (G_BUS_TYPE_SYSTEM, self->cancellable, bus_cb, self);
  return self;
}
