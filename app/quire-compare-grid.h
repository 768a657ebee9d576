/* quire-compare-grid.h: the panes of a comparison, in as many columns as there is room for; in one column only the chosen
 * pane shows. */
#pragma once
#include <gtk/gtk.h>

G_BEGIN_DECLS

#define QUIRE_TYPE_COMPARE_GRID (quire_compare_grid_get_type ())
G_DECLARE_FINAL_TYPE (QuireCompareGrid, quire_compare_grid, QUIRE, COMPARE_GRID, GtkWidget)

/* Signal columns-changed: in an idle after the width asked for it. */
GtkWidget *quire_compare_grid_new (void);
/* Removes all panes, and adds @pane. */
void quire_compare_grid_clear (QuireCompareGrid *self);
void quire_compare_grid_add (QuireCompareGrid *self, GtkWidget *pane);
guint quire_compare_grid_get_columns (QuireCompareGrid *self);
void quire_compare_grid_choose (QuireCompareGrid *self, guint i);

G_END_DECLS
