/* quire-versions.h: flips through the versions of a message: "‹ 2/3 ›". Hidden while there is one. */
#pragma once
#include <gtk/gtk.h>
#include "app/quire-message.h"

G_BEGIN_DECLS

#define QUIRE_TYPE_VERSIONS (quire_versions_get_type ())
G_DECLARE_FINAL_TYPE (QuireVersions, quire_versions, QUIRE, VERSIONS, GtkBox)

/* Acts by chat.flip, with the message's number and -1 or 1. */
GtkWidget *quire_versions_new (QuireMessage *message);
/* An icon button of a message. @target: may be NULL; it is taken when floating. */
GtkWidget *quire_icon_button_new (const char *icon, const char *tooltip, const char *action,
                                  GVariant *target);

/* Gives a button another action, of the detailed name @action; NULL: none. Unlike GTK's function of that kind it may be done
 * to a button that is shown: no name meets the target of another action in between. */
void quire_button_set_action (GtkWidget *button, const char *action);

G_END_DECLS
