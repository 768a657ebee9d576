/* quire-status-line.h: the one line under a reply: what it is doing, then what it took. 24 px high in
 * every state that has room. */
#pragma once
#include <gtk/gtk.h>
#include "app/quire-message.h"

G_BEGIN_DECLS

#define QUIRE_TYPE_STATUS_LINE (quire_status_line_get_type ())
G_DECLARE_FINAL_TYPE (QuireStatusLine, quire_status_line, QUIRE, STATUS_LINE, GtkWidget)

/* Signal: copy-clicked. Regenerate is the action chat.regenerate. */
GtkWidget *quire_status_line_new (QuireMessage *message);
/* The last reply shows its buttons always; others on hover and focus. */
void quire_status_line_set_last (QuireStatusLine *self, gboolean last);
/* The receipt table opens under the line. Owned by the line's parent: this only toggles it. */
void quire_status_line_set_receipt (QuireStatusLine *self, GtkRevealer *receipt);

G_END_DECLS
