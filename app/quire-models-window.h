/* quire-models-window.h: the model folders on this computer: what they are, whether they fit, load and unload. */
#pragma once
#include <adwaita.h>
#include "app/quire-application.h"
#include "app/quire-model-list.h"

G_BEGIN_DECLS

#define QUIRE_TYPE_MODELS_WINDOW (quire_models_window_get_type ())
G_DECLARE_FINAL_TYPE (QuireModelsWindow, quire_models_window, QUIRE, MODELS_WINDOW, AdwWindow)

/* Shows the one that is open, or a new one. @parent: whose chat it was asked for from; may be NULL. */
void quire_models_window_present (QuireApplication *application, GtkWindow *parent);
QuireModelList *quire_models_window_get_list (QuireModelsWindow *self);

G_END_DECLS
