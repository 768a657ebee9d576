/* quire-application.h: start, options, actions of the whole application, and the one engine client. */
#pragma once
#include <adwaita.h>
#include "app/quire-engine-client.h"
#include "app/quire-history.h"

G_BEGIN_DECLS

#define QUIRE_TYPE_APPLICATION (quire_application_get_type ())
G_DECLARE_FINAL_TYPE (QuireApplication, quire_application, QUIRE, APPLICATION, AdwApplication)

QuireApplication *quire_application_new (void);
QuireEngineClient *quire_application_get_client (QuireApplication *self);
/* All conversations, kept on disk. */
QuireHistory *quire_application_get_history (QuireApplication *self);
/* Checks @dir on a worker; then remembers it and loads it, or shows in @window why not. */
void quire_application_choose_model (QuireApplication *self, const char *dir, GtkWindow *window);

G_END_DECLS
