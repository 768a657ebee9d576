/* quire-background.h: keeps the application running without a window, where the user asked for that: the local server.
 * Main thread only. */
#pragma once
#include <gio/gio.h>

G_BEGIN_DECLS

typedef enum
{
  QUIRE_BACKGROUND_OFF,
  QUIRE_BACKGROUND_ASKING, /* the desktop was asked; meanwhile the application stays */
  QUIRE_BACKGROUND_ALLOWED,
  QUIRE_BACKGROUND_DENIED, /* the application ends with its last window; ask again to leave this state */
} QuireBackgroundState;

#define QUIRE_TYPE_BACKGROUND (quire_background_get_type ())
G_DECLARE_FINAL_TYPE (QuireBackground, quire_background, QUIRE, BACKGROUND, GObject)

/* Property: state (int, a QuireBackgroundState; notifies). @application is held while the state is ASKING or ALLOWED; it
 * must be registered when the request is made, and outlive this object. */
QuireBackground *quire_background_new (GApplication *application);
/* Asks once; while it is asked or allowed already, nothing happens. @reason: a sentence for the user, which the desktop may
 * show. In a sandbox the background portal answers, which takes a while or a dialog; elsewhere nobody needs to be asked. Never
 * asks to be started with the session. */
void quire_background_request (QuireBackground *self, const char *reason);
/* The server has ended: lets go of the application, and of a request that is under way. */
void quire_background_release (QuireBackground *self);
QuireBackgroundState quire_background_get_state (QuireBackground *self);

G_END_DECLS
