/* quire-compare-pane.h: one mode of a comparison: its head with state and figures, its stream, "Use This Mode". */
#pragma once
#include <gtk/gtk.h>
#include "app/quire-comparison.h"

G_BEGIN_DECLS

#define QUIRE_TYPE_COMPARE_PANE (quire_compare_pane_get_type ())
G_DECLARE_FINAL_TYPE (QuireComparePane, quire_compare_pane, QUIRE, COMPARE_PANE, GtkBox)

/* Signals: scrolled (uint token): the user moved to where this token is the first in sight; use (GtkWidget button): the mode
 * is wanted for the chat. */
GtkWidget *quire_compare_pane_new (guint i);
/* Shows pane @i of @comparison as it is now. */
void quire_compare_pane_update (QuireComparePane *self, const QuireComparison *comparison);
/* Brings the token to the top, without a signal. */
void quire_compare_pane_scroll_to (QuireComparePane *self, const QuireComparison *comparison,
                                   guint token);
void quire_compare_pane_set_can_use (QuireComparePane *self, gboolean can_use);
/* For tests. Borrowed. */
GtkTextView *quire_compare_pane_get_view (QuireComparePane *self);

G_END_DECLS
