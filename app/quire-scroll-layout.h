/* quire-scroll-layout.h: for a bin around a scrolled window: what is scrolled has no say in how high the window is.
 *
 * A scrolled window asks what is in it all the same, for each width that something above wants to know of; that breaks the
 * paragraphs of a transcript into lines for widths that they never get. */
#pragma once
#include <gtk/gtk.h>

G_BEGIN_DECLS

#define QUIRE_TYPE_SCROLL_LAYOUT (quire_scroll_layout_get_type ())
G_DECLARE_FINAL_TYPE (QuireScrollLayout, quire_scroll_layout, QUIRE, SCROLL_LAYOUT,
                      GtkLayoutManager)

/* The widget has one child, a GtkScrolledWindow that scrolls up and down. */
GtkLayoutManager *quire_scroll_layout_new (void);

G_END_DECLS
