/* quire-context-ring.h: how full a chat's context is: a ring, words, and a popover with tokens and bytes. */
#pragma once
#include <gtk/gtk.h>
#include "app/quire-context.h"

G_BEGIN_DECLS

#define QUIRE_TYPE_CONTEXT_RING (quire_context_ring_get_type ())
G_DECLARE_FINAL_TYPE (QuireContextRing, quire_context_ring, QUIRE, CONTEXT_RING, GtkWidget)

/* Its popover has a button for chat.make-room, from QUIRE_CONTEXT_WARN on. */
GtkWidget *quire_context_ring_new (void);
void quire_context_ring_set (QuireContextRing *self, const QuireContextUse *use,
                             const QuireContextLimit *limit);
/* What stands beside the ring: "16.5K / 32K", "78 % full". Borrowed. */
const char *quire_context_ring_get_text (QuireContextRing *self);

G_END_DECLS
