/* quire-sidebar-entry.h: a line of the sidebar's list: a conversation, or the heading of a group. No GTK. */
#pragma once
#include "app/quire-history.h"

G_BEGIN_DECLS

#define QUIRE_TYPE_SIDEBAR_ENTRY (quire_sidebar_entry_get_type ())
G_DECLARE_FINAL_TYPE (QuireSidebarEntry, quire_sidebar_entry, QUIRE, SIDEBAR_ENTRY, GObject)

/* NULL for a heading. Borrowed. */
QuireHistoryItem *quire_sidebar_entry_get_item (QuireSidebarEntry *self);
const char *quire_sidebar_entry_get_heading (QuireSidebarEntry *self);

/* The lines for @items (element-type QuireHistoryItem, in any order): pinned ones first, then by the day of their last
 * change, newest first, with headings. Lines of @before (element-type QuireSidebarEntry) that stay are the same objects.
 * @now: local time. Returns: (element-type QuireSidebarEntry) owned. */
GPtrArray *quire_sidebar_entries_new (GPtrArray *items, GListModel *before, GDateTime *now,
                                      gboolean trash);

G_END_DECLS
