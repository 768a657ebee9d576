/* quire-why-gpu.h: why no GPU is used, what would help, and the facts for a report. */
#pragma once
#include <gtk/gtk.h>

G_BEGIN_DECLS

/* Asks the backends on a worker thread, then shows a window over @parent. */
void quire_why_gpu_present (GtkWindow *parent);

G_END_DECLS
