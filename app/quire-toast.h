/* quire-toast.h: toasts whose words are never cut: libadwaita's own have one line. */
#pragma once
#include <adwaita.h>

G_BEGIN_DECLS

/* @over: in the window that it is for. @text: plain, not markup. Returns: owned. */
AdwToast *quire_toast_new (GtkWidget *over, const char *text);

G_END_DECLS
