/* quire-chips.h: the files of a message or a draft, as a row of chips that wraps. */
#pragma once
#include <gtk/gtk.h>
#include "app/quire-attachment.h"

G_BEGIN_DECLS

#define QUIRE_TYPE_CHIPS (quire_chips_get_type ())
G_DECLARE_FINAL_TYPE (QuireChips, quire_chips, QUIRE, CHIPS, GtkWidget)

/* Signal: removed (uint): the chip's button to remove it was pressed.
 * @removable: they have such buttons. A chip opens to show the file's text. */
GtkWidget *quire_chips_new (gboolean removable);
/* Shows @attachments (element-type QuireAttachment; copied); hidden when there are none. */
void quire_chips_set (QuireChips *self, GPtrArray *attachments);
guint quire_chips_get_n (QuireChips *self);

G_END_DECLS
