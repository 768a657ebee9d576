/* quire-cache-panel.h: what the KV cache is doing: tiers, history, page maps, or the same as a table. */
#pragma once
#include <gtk/gtk.h>
#include "engine/qe.h"

G_BEGIN_DECLS

#define QUIRE_TYPE_CACHE_PANEL (quire_cache_panel_get_type ())
G_DECLARE_FINAL_TYPE (QuireCachePanel, quire_cache_panel, QUIRE, CACHE_PANEL, GtkWidget)

/* Signals: "session-activated" (guint64), "page-activated" (guint64, guint: the session and a token), "close-clicked". */
GtkWidget *quire_cache_panel_new (void);
/* The title of a session's chat, borrowed; NULL hides the session (a helper's, say). */
typedef const char *(*QuireSessionTitleFunc) (qe_session_id session, gpointer user_data);
void quire_cache_panel_set_title_func (QuireCachePanel *self, QuireSessionTitleFunc func,
                                       gpointer user_data);
/* What a token of a session is part of, in words; owned, NULL: not known. */
typedef char *(*QuireSessionWordsFunc) (qe_session_id session, guint token, gpointer user_data);
void quire_cache_panel_set_words_func (QuireCachePanel *self, QuireSessionWordsFunc func,
                                       gpointer user_data);
void quire_cache_panel_set_active_session (QuireCachePanel *self, qe_session_id session);
/* Copies what it needs. Cheap when nothing changed: call it for every snapshot while the panel is visible. */
void quire_cache_panel_set_snapshot (QuireCachePanel *self, const qe_snapshot *snapshot);
/* How many snapshots it was given. For tests. */
guint64 quire_cache_panel_get_n_snapshots (QuireCachePanel *self);

G_END_DECLS
