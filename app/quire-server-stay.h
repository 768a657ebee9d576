/* quire-server-stay.h: the local server goes on when the last window is closed, where the user asked for that and the desktop
 * allows it. Main thread only. */
#pragma once
#include <gtk/gtk.h>
#include "app/quire-background.h"
#include "app/quire-local-server.h"

G_BEGIN_DECLS

/* Follows @server, the settings and @application's windows, as long as the returned object lives. While there is no window a
 * notification says what still runs; it brings the window back or ends the application. @application must be registered
 * and outlive the object. Returns: owned; its state is for Preferences. quire_background_release() ends the stay. */
QuireBackground *quire_server_stay_new (GtkApplication *application, QuireLocalServer *server);

G_END_DECLS
