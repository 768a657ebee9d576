/* quire-wrap-layout.h: children beside each other at their natural widths, as many in a line as there is room for. */
#pragma once
#include <gtk/gtk.h>

G_BEGIN_DECLS

#define QUIRE_TYPE_WRAP_LAYOUT (quire_wrap_layout_get_type ())
G_DECLARE_FINAL_TYPE (QuireWrapLayout, quire_wrap_layout, QUIRE, WRAP_LAYOUT, GtkLayoutManager)

/* @spacing: pixels between children, and between lines. @at_end: lines end where the widget does. */
GtkLayoutManager *quire_wrap_layout_new (int spacing, gboolean at_end);
/* A GtkBox with that layout. */
GtkWidget *quire_wrap_box_new (int spacing, gboolean at_end);

G_END_DECLS
