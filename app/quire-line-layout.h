/* quire-line-layout.h: children side by side, of which the last has text and takes what the others leave.
 *
 * As GtkBoxLayout lays them out, at a fraction of the price: to find a line's height GTK's tries heights, and for each lets
 * every label try widths, so that a paragraph is broken into lines a hundred times. Here it is for one width. */
#pragma once
#include <gtk/gtk.h>

G_BEGIN_DECLS

#define QUIRE_TYPE_LINE_LAYOUT (quire_line_layout_get_type ())
G_DECLARE_FINAL_TYPE (QuireLineLayout, quire_line_layout, QUIRE, LINE_LAYOUT, GtkLayoutManager)

/* @snug: the last child is as narrow as it can be without becoming higher; what it leaves goes to the child before it. That
 * takes about ten times as long. Else it takes all of the rest. The other children are as wide as they want to be. */
GtkLayoutManager *quire_line_layout_new (int spacing, gboolean snug);

G_END_DECLS
