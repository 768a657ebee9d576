/* quire-model-popover.h: what the loaded model is, and the way to another. */
#pragma once
#include <gtk/gtk.h>
#include "app/quire-engine-client.h"

G_BEGIN_DECLS

#define QUIRE_TYPE_MODEL_POPOVER (quire_model_popover_get_type ())
G_DECLARE_FINAL_TYPE (QuireModelPopover, quire_model_popover, QUIRE, MODEL_POPOVER, GtkPopover)

GtkWidget *quire_model_popover_new (QuireEngineClient *client);

G_END_DECLS
