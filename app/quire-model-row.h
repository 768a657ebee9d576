/* quire-model-row.h: a model folder in the Models window: facts, state, and what can be done with it. */
#pragma once
#include <adwaita.h>
#include "app/quire-model-list.h"

G_BEGIN_DECLS

#define QUIRE_TYPE_MODEL_ROW (quire_model_row_get_type ())
G_DECLARE_FINAL_TYPE (QuireModelRow, quire_model_row, QUIRE, MODEL_ROW, AdwExpanderRow)

/* Signals: load, unload, remove: the user wants it. */
GtkWidget *quire_model_row_new (QuireEngineClient *client, QuireModelItem *item);
QuireModelItem *quire_model_row_get_item (QuireModelRow *self);
/* It is the folder that the engine has, loads, or failed to load. */
gboolean quire_model_row_is_current (QuireModelRow *self);

G_END_DECLS
