/* quire-page-map.h: one conversation's KV pages as cells: fill by tier, level by filled tokens, a dot when
 * shared, an arrow while a copy moves to another tier.
 *
 * Geometry is plain data (QuireMapLayout), so that it is tested without a display. */
#pragma once
#include <gtk/gtk.h>
#include "engine/qe.h"

G_BEGIN_DECLS

#define QUIRE_MAP_CELL_PX 8
#define QUIRE_MAP_PITCH_PX 9     /* cell and gap */
#define QUIRE_MAP_CELLS_MAX 2048 /* past this, several pages share a cell */

typedef struct
{
  guint n_pages, pages_per_cell; /* a power of two */
  guint n_cells, n_columns, n_rows;
} QuireMapLayout;

void quire_map_layout_compute (QuireMapLayout *layout, guint n_pages, int width);
/* The cell at a point, or -1. @rtl: columns run from the right. @width: of the widget. */
int quire_map_layout_hit (const QuireMapLayout *layout, double x, double y, int width,
                          gboolean rtl);
/* What a cell of several pages shows: the worst tier, shared or moving when any is, tokens summed. */
typedef struct
{
  guint8 tier, n_refs;
  gboolean shared, moving;
  guint by_tier[QE_N_TIERS]; /* pages */
  guint first_token, n_tokens, n_pages;
} QuireMapCell;
void quire_map_cell_merge (QuireMapCell *out, const QuireMapLayout *layout, const qe_cell *pages,
                           guint cell);

#define QUIRE_TYPE_PAGE_MAP (quire_page_map_get_type ())
G_DECLARE_FINAL_TYPE (QuirePageMap, quire_page_map, QUIRE, PAGE_MAP, GtkWidget)

/* Signal: cell-activated (guint), by a click or Enter: the first token of the cell. */
GtkWidget *quire_page_map_new (void);
/* What token @token is part of, in words; owned, NULL: not known. */
typedef char *(*QuireTokenWordsFunc) (guint token, gpointer user_data);
void quire_page_map_set_words_func (QuirePageMap *self, QuireTokenWordsFunc func,
                                    gpointer user_data);
/* Copies @pages. @title: for the accessible label. */
void quire_page_map_set_pages (QuirePageMap *self, const qe_cell *pages, guint n_pages,
                               const char *title);
/* What is said of @cell. Returns: owned. */
char *quire_page_map_dup_words (QuirePageMap *self, guint cell);
/* Cells that were drawn anew so far. For tests. */
guint64 quire_page_map_get_n_painted (QuirePageMap *self);
guint quire_page_map_get_pages_per_cell (QuirePageMap *self);

/* Draws one cell or swatch in the tier's shape. */
void quire_page_map_snapshot_swatch (GtkWidget *widget, GtkSnapshot *snapshot,
                                     const graphene_rect_t *rect, guint tier, double level);

G_END_DECLS
