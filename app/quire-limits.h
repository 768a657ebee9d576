/* quire-limits.h: the limits of the cache's tiers, with what they come to in bytes and tokens, and what a change costs,
 * before it is applied. For the preferences, and as a window of its own. */
#pragma once
#include <adwaita.h>
#include "app/quire-engine-client.h"

G_BEGIN_DECLS

#define QUIRE_TYPE_LIMITS (quire_limits_get_type ())
G_DECLARE_FINAL_TYPE (QuireLimits, quire_limits, QUIRE, LIMITS, AdwPreferencesGroup)

/* The engine client is the default application's. */
GtkWidget *quire_limits_new (void);
void quire_limits_focus (QuireLimits *self, qe_tier tier);
/* Whether something is changed and can be applied. */
gboolean quire_limits_can_apply (QuireLimits *self);
void quire_limits_apply (QuireLimits *self);
/* What applying would do, as it is shown. Borrowed until the next change. */
const char *quire_limits_get_effect (QuireLimits *self);
/* As if the user had set it: MiB of the fastest tier, 0 for automatic. */
void quire_limits_set_cache_mib (QuireLimits *self, guint mib);
void quire_limits_set_host_mib (QuireLimits *self, guint mib);
void quire_limits_set_disk (QuireLimits *self, gboolean on, guint mib);

/* Shows the limits above @parent with the focus at @tier's. */
void quire_limits_present (GtkWindow *parent, qe_tier tier);

G_END_DECLS
