/* quire-why-gpu.h: says for each backend whether it can be used, and if not why. */
#pragma once
#include <gtk/gtk.h>

G_BEGIN_DECLS

/* Asks the backends on a worker thread, then shows a window over @parent. */
void quire_why_gpu_present (GtkWindow *parent);

G_END_DECLS
