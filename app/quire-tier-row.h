/* quire-tier-row.h: one tier of the cache in the panel: what is used of its limit, what is pinned, what moved; and the
 * last minutes of all tiers. */
#pragma once
#include <gtk/gtk.h>
#include "engine/qe.h"

G_BEGIN_DECLS

#define QUIRE_TYPE_TIER_ROW (quire_tier_row_get_type ())
G_DECLARE_FINAL_TYPE (QuireTierRow, quire_tier_row, QUIRE, TIER_ROW, GtkBox)

/* The name of the colour that the style gives a tier. */
const char *quire_tier_color (guint tier);

/* Its button is "Why?" for an absent GPU, of the action win.why-gpu, else the limits' in preferences. */
GtkWidget *quire_tier_row_new (qe_tier tier);
/* @device: the card for the GPU's row, else NULL. */
void quire_tier_row_set_view (QuireTierRow *self, const qe_tier_view *view,
                              const qe_device_view *device);

#define QUIRE_TYPE_TIER_HISTORY (quire_tier_history_get_type ())
G_DECLARE_FINAL_TYPE (QuireTierHistory, quire_tier_history, QUIRE, TIER_HISTORY, GtkWidget)

GtkWidget *quire_tier_history_new (void);
/* Pages by tier, one column a second. */
void quire_tier_history_set (QuireTierHistory *self, const qe_snapshot *snapshot);

G_END_DECLS
