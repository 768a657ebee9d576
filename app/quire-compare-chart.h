/* quire-compare-chart.h: first token by turn, a line a mode. Lines differ by the shape of their points as well as by
 * colour. */
#pragma once
#include <gtk/gtk.h>
#include "app/quire-comparison.h"

G_BEGIN_DECLS

#define QUIRE_TYPE_COMPARE_CHART (quire_compare_chart_get_type ())
G_DECLARE_FINAL_TYPE (QuireCompareChart, quire_compare_chart, QUIRE, COMPARE_CHART, GtkWidget)

GtkWidget *quire_compare_chart_new (void);
/* @comparison: NULL: nothing is drawn. Borrowed until the next call. */
void quire_compare_chart_set (QuireCompareChart *self, const QuireComparison *comparison);

G_END_DECLS
