/* quire-inhibit.c: see quire-inhibit.h. The desktop shows the reason where it lists what keeps the computer awake. */
#include "app/quire-inhibit.h"

#include <glib/gi18n.h>

typedef struct
{
  GtkApplication *application; /* borrowed: it outlives the watch */
  guint cookie;                /* 0: nothing is inhibited */
  gboolean loading;            /* what the cookie's reason says */
} Watch;

static void
release (Watch *watch)
{
  if (watch->cookie != 0)
    gtk_application_uninhibit (watch->application, watch->cookie);
  watch->cookie = 0;
}

static void
update (QuireEngineClient *client, Watch *watch)
{
  const qe_snapshot *snapshot = quire_engine_client_get_snapshot (client);
  gboolean loading = quire_engine_client_get_status (client)->state == QE_ENGINE_LOADING;
  gboolean working = snapshot != NULL && snapshot->n_running + snapshot->n_queued > 0;

  if (watch->cookie != 0 && ((!loading && !working) || loading != watch->loading))
    release (watch);
  if (watch->cookie == 0 && (loading || working))
    {
      watch->cookie = gtk_application_inhibit (
          watch->application, gtk_application_get_active_window (watch->application),
          GTK_APPLICATION_INHIBIT_SUSPEND,
          loading ? _ ("A model is being loaded") : _ ("A reply is being written"));
      watch->loading = loading;
    }
}

void
quire_inhibit_watch (GtkApplication *application, QuireEngineClient *client)
{
  Watch *watch = g_new0 (Watch, 1);

  watch->application = application;
  g_object_set_data_full (G_OBJECT (application), "quire-inhibit", watch, g_free);
  g_signal_connect (client, "status-changed", G_CALLBACK (update), watch);
  g_signal_connect (client, "snapshot-changed", G_CALLBACK (update), watch);
}
