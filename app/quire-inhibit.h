/* quire-inhibit.h: keeps the computer from suspending while the model works. Main thread only. */
#pragma once
#include <gtk/gtk.h>
#include "app/quire-engine-client.h"

G_BEGIN_DECLS

/* From now until @application shuts down, suspending is inhibited while @client loads a model or any request of it (a
 * reply, a long prompt being read, a comparison, the server's) runs or waits. Call once, at startup. */
void quire_inhibit_watch (GtkApplication *application, QuireEngineClient *client);

G_END_DECLS
