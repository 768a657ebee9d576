/* quire-application.h: start, options, actions of the whole application, and the one engine client. */
#pragma once
#include <adwaita.h>
#include "app/quire-engine-client.h"
#include "app/quire-history.h"
#include "app/quire-keeper.h"
#ifdef QUIRE_HAVE_SERVER
#include "app/quire-background.h"
#include "app/quire-local-server.h"
#endif

G_BEGIN_DECLS

#define QUIRE_TYPE_APPLICATION (quire_application_get_type ())
G_DECLARE_FINAL_TYPE (QuireApplication, quire_application, QUIRE, APPLICATION, AdwApplication)

QuireApplication *quire_application_new (void);
QuireEngineClient *quire_application_get_client (QuireApplication *self);
/* All conversations, kept on disk. */
QuireHistory *quire_application_get_history (QuireApplication *self);
QuireKeeper *quire_application_get_keeper (QuireApplication *self);
#ifdef QUIRE_HAVE_SERVER
QuireLocalServer *quire_application_get_server (QuireApplication *self);
/* Whether the server goes on without a window. Borrowed. */
QuireBackground *quire_application_get_stay (QuireApplication *self);
#endif
/* Checks @dir on a worker; then remembers it and loads it, or shows in @window why not. */
void quire_application_choose_model (QuireApplication *self, const char *dir, GtkWindow *window);
/* Remembers @dir, which is known to hold a model, and loads it. */
void quire_application_load_model (QuireApplication *self, const char *dir);
/* Ends the engine and starts another one with the settings and the cards of now. Chats stay. */
void quire_application_restart_engine (QuireApplication *self);
/* The engine takes the settings of now: a running one where it can, else it begins anew. */
void quire_application_apply_settings (QuireApplication *self);
/* After the run: the command line of the same run, to start again with; NULL unless that was asked for. Returns: owned. */
char **quire_application_dup_restart_args (QuireApplication *self, const char *program);

G_END_DECLS
