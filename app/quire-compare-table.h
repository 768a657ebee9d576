/* quire-compare-table.h: the figures of a comparison as a table, a row a mode: of the last turn, or by turn. */
#pragma once
#include <gtk/gtk.h>
#include "app/quire-comparison.h"

G_BEGIN_DECLS

#define QUIRE_TYPE_COMPARE_TABLE (quire_compare_table_get_type ())
G_DECLARE_FINAL_TYPE (QuireCompareTable, quire_compare_table, QUIRE, COMPARE_TABLE, GtkWidget)

GtkWidget *quire_compare_table_new (gboolean by_turn);
void quire_compare_table_update (QuireCompareTable *self, const QuireComparison *comparison);
/* What the cell says to a screen reader, rows and columns from 0 without the headings; NULL: there is none. Borrowed. */
const char *quire_compare_table_get_cell (QuireCompareTable *self, guint row, guint column);

G_END_DECLS
