/* quire-sidebar.h: the list of all conversations: search, groups by date, marks, the trash.
 *
 * Rows act through the window's actions, each with the conversation's id: win.chat-open, -rename, -pin, -delete,
 * -export-markdown, -export-json, -restore, -erase. */
#pragma once
#include <gtk/gtk.h>
#include "app/quire-history.h"

G_BEGIN_DECLS

#define QUIRE_TYPE_SIDEBAR (quire_sidebar_get_type ())
G_DECLARE_FINAL_TYPE (QuireSidebar, quire_sidebar, QUIRE, SIDEBAR, GtkBox)

void quire_sidebar_set_history (QuireSidebar *self, QuireHistory *history);
/* The conversation in front, whose row is the selected one; NULL: none. */
void quire_sidebar_set_front (QuireSidebar *self, QuireHistoryItem *item);
void quire_sidebar_set_trash (QuireSidebar *self, gboolean trash);
void quire_sidebar_focus_search (QuireSidebar *self);
/* As if @query had been typed. */
void quire_sidebar_search (QuireSidebar *self, const char *query);
/* Asks for another title in a popover at the row. */
void quire_sidebar_rename (QuireSidebar *self, QuireHistoryItem *item);

/* For tests: the titles that are listed, top to bottom; headings are between "[" and "]". Returns: owned. */
char **quire_sidebar_dup_rows (QuireSidebar *self);

G_END_DECLS
