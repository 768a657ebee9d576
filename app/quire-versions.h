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

G_END_DECLS
