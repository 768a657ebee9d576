/* quire-compare-view.h: a comparison in a tab: its set-up, then its runs and their result; or one that was kept. */
#pragma once
#include <adwaita.h>
#include "app/quire-compare-result.h"
#include "app/quire-compare-setup.h"

G_BEGIN_DECLS

#define QUIRE_TYPE_COMPARE_VIEW (quire_compare_view_get_type ())
G_DECLARE_FINAL_TYPE (QuireCompareView, quire_compare_view, QUIRE, COMPARE_VIEW, GtkBox)

/* Signals: use (int choice, GtkWidget button): the mode is wanted for the chat it began with; title-changed; running-changed.
 * Action group "compare": export-csv, export-png. */

/* To set up. @prompt and @settings: of the chat @source, whose title is @title; both may be NULL. */
GtkWidget *quire_compare_view_new (QuireEngineClient *client, QuireHistory *history, GArray *prompt,
                                   const QuireTurnSettings *settings, QuireCacheChoice present,
                                   const char *title, const char *source);
/* One that was kept; its figures come soon. */
GtkWidget *quire_compare_view_new_kept (QuireEngineClient *client, QuireHistory *history,
                                        QuireHistoryItem *item);
const char *quire_compare_view_get_title (QuireCompareView *self);
/* Its place in the history; NULL before the first start. */
QuireHistoryItem *quire_compare_view_get_item (QuireCompareView *self);
/* The chat's id; NULL: none. */
const char *quire_compare_view_get_source (QuireCompareView *self);
gboolean quire_compare_view_is_running (QuireCompareView *self);
/* Frees its sessions; what it has is kept. */
void quire_compare_view_close (QuireCompareView *self);
void quire_compare_view_stop (QuireCompareView *self);
void quire_compare_view_add_toast (QuireCompareView *self, AdwToast *toast);
void quire_compare_view_save (QuireCompareView *self, GFile *file, gboolean png);
/* The chat is there, so that a mode can be used. */
void quire_compare_view_set_can_use (QuireCompareView *self, gboolean can_use);
/* Borrowed: the runs, and what is shown of them (NULL: the set-up is). */
QuireCompare *quire_compare_view_get_compare (QuireCompareView *self);
const QuireComparison *quire_compare_view_get_comparison (QuireCompareView *self);
QuireCompareSetupView *quire_compare_view_get_setup (QuireCompareView *self); /* NULL: kept */
QuireCompareResult *quire_compare_view_get_result (QuireCompareView *self);

G_END_DECLS
