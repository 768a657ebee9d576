/* quire-model-bar.h: the bar above a chat that another model wrote: load that one, or go on with the one that is loaded. */
#pragma once
#include <gtk/gtk.h>
#include "app/quire-conversation.h"
#include "app/quire-urgency.h"

G_BEGIN_DECLS

#define QUIRE_TYPE_MODEL_BAR (quire_model_bar_get_type ())
G_DECLARE_FINAL_TYPE (QuireModelBar, quire_model_bar, QUIRE, MODEL_BAR, GtkWidget)

/* Signals: chosen: the user has said which model goes on; urgency-changed. */
GtkWidget *quire_model_bar_new (QuireConversation *conversation);
/* The user has not said yet which model goes on: no turn may begin. */
gboolean quire_model_bar_is_asking (QuireModelBar *self);
/* The user tried to go on all the same: it is shown, whatever else there is to say. */
void quire_model_bar_insist (QuireModelBar *self);
QuireUrgency quire_model_bar_get_urgency (QuireModelBar *self);
/* @yields: another bar is shown in its place. */
void quire_model_bar_set_yields (QuireModelBar *self, gboolean yields);
/* Goes on with the model that is loaded. */
void quire_model_bar_continue (QuireModelBar *self);
/* The sentence that is shown. Borrowed until the next change. */
const char *quire_model_bar_get_text (QuireModelBar *self);

G_END_DECLS
