/* quire-cache-popover.h: chooses a chat's cache mode: the modes, what each does, and what the change will cost. */
#pragma once
#include <gtk/gtk.h>
#include "app/quire-conversation.h"

G_BEGIN_DECLS

#define QUIRE_TYPE_CACHE_POPOVER (quire_cache_popover_get_type ())
G_DECLARE_FINAL_TYPE (QuireCachePopover, quire_cache_popover, QUIRE, CACHE_POPOVER, GtkPopover)

GtkWidget *quire_cache_popover_new (QuireConversation *conversation);
/* Selects @choice as a click on it does; the mode changes with the button only. For tests. */
void quire_cache_popover_select (QuireCachePopover *self, QuireCacheChoice choice);
/* What the cost says now. Borrowed. */
const char *quire_cache_popover_get_cost (QuireCachePopover *self);

G_END_DECLS
