/* quire-engine-bar.h: the bar above the transcript that says what the engine needs or does; one thing at a time. */
#pragma once
#include <gtk/gtk.h>
#include "app/quire-engine-client.h"
#include "app/quire-urgency.h"

G_BEGIN_DECLS

#define QUIRE_TYPE_ENGINE_BAR (quire_engine_bar_get_type ())
G_DECLARE_FINAL_TYPE (QuireEngineBar, quire_engine_bar, QUIRE, ENGINE_BAR, GtkWidget)

/* Signal: urgency-changed. */
void quire_engine_bar_set_client (QuireEngineBar *self, QuireEngineClient *client);
/* A failure that is not the engine's: the chosen folder is no model. NULL clears it. */
void quire_engine_bar_set_error (QuireEngineBar *self, const char *text);
QuireUrgency quire_engine_bar_get_urgency (QuireEngineBar *self);
/* @yields: another bar is shown in its place. */
void quire_engine_bar_set_yields (QuireEngineBar *self, gboolean yields);

G_END_DECLS
