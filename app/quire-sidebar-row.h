/* quire-sidebar-row.h: the widget of a line: a conversation's title with its marks, or a heading. */
#pragma once
#include <gtk/gtk.h>
#include "app/quire-sidebar-entry.h"

G_BEGIN_DECLS

#define QUIRE_TYPE_SIDEBAR_ROW (quire_sidebar_row_get_type ())
G_DECLARE_FINAL_TYPE (QuireSidebarRow, quire_sidebar_row, QUIRE, SIDEBAR_ROW, GtkBox)

/* Signal menu (double x, double y): the menu is wanted at that place. */
GtkWidget *quire_sidebar_row_new (void);
void quire_sidebar_row_set_entry (QuireSidebarRow *self, QuireSidebarEntry *entry);
/* NULL for a heading, and while it is not bound. */
QuireHistoryItem *quire_sidebar_row_get_item (QuireSidebarRow *self);

/* What is shown for a conversation without a title. */
const char *quire_title_or_new (const char *title);

G_END_DECLS
