/* quire-figures.h: a line of figures, "0.14 s · 96 tok/s · 128 new"; those that do not fit at its end are left out. */
#pragma once
#include <gtk/gtk.h>

G_BEGIN_DECLS

#define QUIRE_TYPE_FIGURES (quire_figures_get_type ())
G_DECLARE_FINAL_TYPE (QuireFigures, quire_figures, QUIRE, FIGURES, GtkWidget)

GtkWidget *quire_figures_new (void);
/* @figures: NULL-terminated, most important first. Copied. */
void quire_figures_set (QuireFigures *self, const char *const *figures);
/* All of them. Borrowed. For tests. */
const char *const *quire_figures_get (QuireFigures *self);
/* The figures that fit @width. For tests. */
guint quire_figures_count_fitting (QuireFigures *self, int width);
/* The width that those take. */
int quire_figures_get_fitting_width (QuireFigures *self, int width);
/* There is not even room for the first. For tests. */
gboolean quire_figures_is_cut (QuireFigures *self);

G_END_DECLS
