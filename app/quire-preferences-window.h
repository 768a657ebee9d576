/* quire-preferences-window.h: settings. What concerns the engine takes effect when the window closes. */
#pragma once
#include <adwaita.h>

G_BEGIN_DECLS

#define QUIRE_TYPE_PREFERENCES_WINDOW (quire_preferences_window_get_type ())
G_DECLARE_FINAL_TYPE (QuirePreferencesWindow, quire_preferences_window, QUIRE, PREFERENCES_WINDOW,
                      AdwPreferencesWindow)

GtkWindow *quire_preferences_window_new (GtkWindow *parent);

G_END_DECLS
