/* quire-popover.h: popovers that are made when they are asked for. */
#pragma once
#include <gtk/gtk.h>

G_BEGIN_DECLS

/* For "closed": the popover leaves its parent once what it does has been done, which comes after that signal and needs its
 * place in the window. */
void quire_popover_drop (GtkWidget *popover);

G_END_DECLS
