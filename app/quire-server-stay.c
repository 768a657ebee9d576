/* quire-server-stay.c: see quire-server-stay.h.
 *
 * One function, update(), asks for the stay or lets go of it; everything that may change what is wanted calls it. A server
 * that is only between two starts, for another port or its token, is still wanted: without a window the application would
 * end in between. One that cannot start is not: nothing would run that is worth staying for. */
#include "app/quire-server-stay.h"

#include <glib/gi18n.h>

#include "app/quire-settings.h"

#define NOTIFICATION_ID "server-runs"

typedef struct
{
  GtkApplication *application; /* borrowed: it outlives the stay */
  QuireLocalServer *server;    /* owned */
  gboolean had_window;         /* before the first one there is nobody to tell */
  gboolean is_notified;
} Stay;

static Stay *
stay_of (QuireBackground *background)
{
  return g_object_get_data (G_OBJECT (background), "quire-server-stay");
}

/* ---- The notification ---- */

static void
withdraw (Stay *stay)
{
  if (stay->is_notified)
    g_application_withdraw_notification (G_APPLICATION (stay->application), NOTIFICATION_ID);
  stay->is_notified = FALSE;
}

/* Without a default action a click on it activates the application, which shows its window. */
static void
notify (Stay *stay)
{
  g_autoptr (GNotification) notification = g_notification_new (_ ("Quire keeps answering"));
  g_autoptr (GIcon) icon = g_themed_icon_new (QUIRE_APP_ID);
  g_autofree char *body = NULL;

  /* Translators: the placeholder is an address, as http://127.0.0.1:8377/. */
  body = g_strdup_printf (_ ("The window is closed; the local server still runs at %s."),
                          quire_local_server_get_uri (stay->server));
  g_notification_set_body (notification, body);
  g_notification_set_icon (notification, icon);
  g_notification_add_button (notification, _ ("Quit Quire"), "app.quit");
  g_application_send_notification (G_APPLICATION (stay->application), NOTIFICATION_ID,
                                   notification);
  stay->is_notified = TRUE;
}

static void
update_notification (QuireBackground *background)
{
  Stay *stay = stay_of (background);
  gboolean shown = gtk_application_get_windows (stay->application) != NULL;
  gboolean stays = quire_background_get_state (background) == QUIRE_BACKGROUND_ALLOWED;

  stay->had_window |= shown;
  if (shown || !stays)
    withdraw (stay);
  else if (stay->had_window && !stay->is_notified
           && quire_local_server_get_uri (stay->server) != NULL)
    notify (stay);
}

/* ---- Following ---- */

static void
update (QuireBackground *background)
{
  Stay *stay = stay_of (background);
  GSettings *settings = quire_settings_get_default ();
  gboolean wanted = g_settings_get_boolean (settings, "server")
                    && g_settings_get_boolean (settings, "server-background")
                    && quire_local_server_get_problem (stay->server) == NULL;

  if (!wanted)
    quire_background_release (background);
  /* Asked only once it runs; and not again after a no, until it has been off. */
  else if (quire_local_server_get_uri (stay->server) != NULL
           && quire_background_get_state (background) == QUIRE_BACKGROUND_OFF)
    quire_background_request (background, _ ("The local server answers other programs"));
  update_notification (background);
}

static void
stay_free (gpointer data)
{
  g_object_unref (((Stay *)data)->server);
  g_free (data);
}

QuireBackground *
quire_server_stay_new (GtkApplication *application, QuireLocalServer *server)
{
  GSettings *settings = quire_settings_get_default ();
  QuireBackground *background = quire_background_new (G_APPLICATION (application));
  const struct
  {
    gpointer instance;
    const char *signal;
    GCallback callback;
  } followed[] = {
    { server, "changed", G_CALLBACK (update) },
    { settings, "changed::server", G_CALLBACK (update) },
    { settings, "changed::server-background", G_CALLBACK (update) },
    { background, "notify::state", G_CALLBACK (update_notification) },
    { application, "window-added", G_CALLBACK (update_notification) },
    { application, "window-removed", G_CALLBACK (update_notification) },
  };
  Stay *stay = g_new0 (Stay, 1);

  stay->application = application;
  stay->server = g_object_ref (server);
  g_object_set_data_full (G_OBJECT (background), "quire-server-stay", stay, stay_free);
  for (gsize i = 0; i < G_N_ELEMENTS (followed); i++)
    g_signal_connect_object (followed[i].instance, followed[i].signal, followed[i].callback,
                             background, G_CONNECT_SWAPPED);
  update (background);
  return background;
}
