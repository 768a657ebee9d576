/* quire-compare-result.h: a comparison as it runs and as it was: panes, where they part, table and chart. */
#pragma once
#include <adwaita.h>
#include "app/quire-comparison.h"

G_BEGIN_DECLS

#define QUIRE_TYPE_COMPARE_RESULT (quire_compare_result_get_type ())
G_DECLARE_FINAL_TYPE (QuireCompareResult, quire_compare_result, QUIRE, COMPARE_RESULT, GtkBox)

/* Signals: use (int choice, GtkWidget button): the mode is wanted for the chat; stop; again; setup: the user's buttons. */
GtkWidget *quire_compare_result_new (void);
/* Shows it from the beginning; NULL: nothing. Borrowed until the next call. */
void quire_compare_result_set (QuireCompareResult *self, const QuireComparison *comparison);
/* What is shown has changed. */
void quire_compare_result_update (QuireCompareResult *self, gboolean running);
/* Kept ones cannot run again. */
void quire_compare_result_set_kept (QuireCompareResult *self, gboolean kept);
void quire_compare_result_set_can_use (QuireCompareResult *self, gboolean can_use);
/* Table and figures as a picture. NULL with @error. */
gboolean quire_compare_result_save_png (QuireCompareResult *self, GFile *file, GError **error);
/* For tests. Borrowed. */
GtkWidget *quire_compare_result_get_table (QuireCompareResult *self);
void quire_compare_result_show_turns (QuireCompareResult *self);
const char *quire_compare_result_get_verdict (QuireCompareResult *self);

G_END_DECLS
