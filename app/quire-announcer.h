/* quire-announcer.h: reads replies out to screen readers, a sentence at a time.
 *
 * By gtk_accessible_announce() where the GTK that runs has it, else as the name of a label of role STATUS that takes no room. */
#pragma once
#include <gtk/gtk.h>
#include "app/quire-message.h"

G_BEGIN_DECLS

#define QUIRE_TYPE_ANNOUNCER (quire_announcer_get_type ())
G_DECLARE_FINAL_TYPE (QuireAnnouncer, quire_announcer, QUIRE, ANNOUNCER, GtkWidget)

GtkWidget *quire_announcer_new (void);
/* @message has grown, or ended: what is whole sentences and was not said yet is said, in one announcement. */
void quire_announcer_follow (QuireAnnouncer *self, QuireMessage *message);
/* What was said last, and how often something was. For tests. */
const char *quire_announcer_get_last (QuireAnnouncer *self);
guint quire_announcer_get_n (QuireAnnouncer *self);

G_END_DECLS
