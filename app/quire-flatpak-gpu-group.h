/* quire-flatpak-gpu-group.h: what a Flatpak lacks to use the graphics card, as rows with the commands to copy. */
#pragma once
#include <gtk/gtk.h>

G_BEGIN_DECLS

/* Returns: floating; NULL when no command mends anything, or this is no Flatpak. */
GtkWidget *quire_flatpak_gpu_group_new (void);

G_END_DECLS
