/* quire-split-box.h: words and the buttons for them: beside each other where the words keep enough room, else below. */
#pragma once
#include <gtk/gtk.h>

G_BEGIN_DECLS

/* A GtkBox whose first child gets what the second, which is at the end, leaves. */
GtkWidget *quire_split_box_new (GtkWidget *words, GtkWidget *buttons);

G_END_DECLS
