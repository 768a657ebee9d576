/* quire-cache-panel.c: see quire-cache-panel.h.
 *
 * Bands (one a session) are kept by session id and updated in place, so scrolling and focus survive. The table shows the
 * same figures as text. CSS: cachepanel > .tier, .band. */
#include "app/quire-cache-panel.h"

#include <adwaita.h>
#include <glib/gi18n.h>
#include <string.h>

#include "app/quire-cache-modes.h"
#include "app/quire-format.h"
#include "app/quire-page-map.h"
#include "app/quire-tier-row.h"
#include "app/quire-widget.h"

/* ---- The panel ---- */

typedef struct
{
  QuireCachePanel *panel; /* that it is in */
  qe_session_id session;
  GtkWidget *box;
  GtkLabel *title, *numbers, *place;
  GtkWidget *map;
  gboolean seen;
} Band;

struct _QuireCachePanel
{
  GtkWidget parent_instance;

  GtkWidget *root;
  GtkStack *stack;
  GtkWidget *tiers[QE_N_TIERS];
  GtkWidget *history;
  GtkBox *band_box;
  GtkLabel *total, *cached, *zoom, *empty;
  GHashTable *bands; /* (guint64 -> Band) */
  GListStore *table;
  GPtrArray
      *rows; /* (element-type QuireTableRow) of the last snapshot: the table's while it is shown */
  QuireSessionTitleFunc title_func;
  gpointer title_data;
  QuireSessionWordsFunc words_func;
  gpointer words_data;
  qe_session_id active;
  guint64 n_snapshots;
};

G_DEFINE_FINAL_TYPE (QuireCachePanel, quire_cache_panel, GTK_TYPE_WIDGET)

enum
{
  SESSION_ACTIVATED,
  PAGE_ACTIVATED,
  CLOSE_CLICKED,
  N_SIGNALS
};
static guint signals[N_SIGNALS];

/* One row of the table: figures as text. */
#define QUIRE_TYPE_TABLE_ROW (quire_table_row_get_type ())
G_DECLARE_FINAL_TYPE (QuireTableRow, quire_table_row, QUIRE, TABLE_ROW, GObject)
enum
{
  COLUMN_CHAT,
  COLUMN_TOKENS,
  COLUMN_GPU, /* then the other tiers in their order */
  COLUMN_HOST,
  COLUMN_DISK,
  COLUMN_SHARED,
  COLUMN_SIZE,
  COLUMN_MODE,
  N_COLUMNS
};
struct _QuireTableRow
{
  GObject parent_instance;
  char *cells[N_COLUMNS];
};
G_DEFINE_FINAL_TYPE (QuireTableRow, quire_table_row, G_TYPE_OBJECT)

static void
quire_table_row_finalize (GObject *object)
{
  for (int i = 0; i < N_COLUMNS; i++)
    g_free (QUIRE_TABLE_ROW (object)->cells[i]);
  G_OBJECT_CLASS (quire_table_row_parent_class)->finalize (object);
}

static void
quire_table_row_class_init (QuireTableRowClass *klass)
{
  G_OBJECT_CLASS (klass)->finalize = quire_table_row_finalize;
}

static void
quire_table_row_init (QuireTableRow *self)
{
}

static void
set_text (GtkLabel *label, const char *text)
{
  if (g_strcmp0 (gtk_label_get_text (label), text) != 0)
    gtk_label_set_text (label, text);
}

static GtkLabel *
label_new (const char *text, const char *css_class, float xalign)
{
  g_auto (GStrv) classes = g_strsplit (css_class, " ", -1);
  GtkWidget *label = gtk_label_new (text);

  gtk_label_set_xalign (GTK_LABEL (label), xalign);
  gtk_label_set_ellipsize (GTK_LABEL (label), PANGO_ELLIPSIZE_END);
  gtk_label_set_single_line_mode (GTK_LABEL (label), TRUE);
  for (char **c = classes; *c != NULL; c++)
    if ((*c)[0] != '\0')
      gtk_widget_add_css_class (label, *c);
  return GTK_LABEL (label);
}

static void
close_clicked_cb (QuireCachePanel *self)
{
  g_signal_emit (self, signals[CLOSE_CLICKED], 0);
}

static void
band_clicked_cb (GtkButton *button, QuireCachePanel *self)
{
  guint64 *session = g_object_get_data (G_OBJECT (button), "session");

  g_signal_emit (self, signals[SESSION_ACTIVATED], 0, *session);
}

static void
cell_activated_cb (Band *band, guint token)
{
  g_signal_emit (band->panel, signals[PAGE_ACTIVATED], 0, band->session, token);
}

static char *
token_words (guint token, gpointer user_data)
{
  Band *band = user_data;

  return band->panel->words_func != NULL
             ? band->panel->words_func (band->session, token, band->panel->words_data)
             : NULL;
}

static Band *
band_new (QuireCachePanel *self, qe_session_id session)
{
  Band *band = g_new0 (Band, 1);
  GtkWidget *button = gtk_button_new ();
  GtkWidget *head = gtk_box_new (GTK_ORIENTATION_HORIZONTAL, 6);
  guint64 *id = g_new (guint64, 1);

  *id = session;
  band->panel = self;
  band->session = session;
  band->box = gtk_box_new (GTK_ORIENTATION_VERTICAL, 6);
  band->title = label_new ("", "", 0);
  gtk_widget_set_hexpand (GTK_WIDGET (band->title), TRUE);
  band->numbers = label_new ("", "caption numeric dim-label", 1);
  gtk_label_set_ellipsize (band->numbers, PANGO_ELLIPSIZE_NONE);
  gtk_box_append (GTK_BOX (head), GTK_WIDGET (band->title));
  gtk_box_append (GTK_BOX (head), GTK_WIDGET (band->numbers));
  gtk_button_set_child (GTK_BUTTON (button), head);
  gtk_widget_add_css_class (button, "flat");
  gtk_widget_add_css_class (button, "band-header");
  gtk_widget_set_tooltip_text (button, _ ("Go to this chat"));
  quire_widget_set_labelled_by (button, GTK_WIDGET (band->title), GTK_WIDGET (band->numbers));
  g_object_set_data_full (G_OBJECT (button), "session", id, g_free);
  g_signal_connect (button, "clicked", G_CALLBACK (band_clicked_cb), self);
  band->map = quire_page_map_new ();
  quire_page_map_set_words_func (QUIRE_PAGE_MAP (band->map), token_words, band);
  g_signal_connect_swapped (band->map, "cell-activated", G_CALLBACK (cell_activated_cb), band);
  band->place = label_new ("", "caption numeric dim-label", 0);
  gtk_label_set_single_line_mode (band->place, FALSE);
  gtk_label_set_ellipsize (band->place, PANGO_ELLIPSIZE_NONE);
  gtk_label_set_wrap (band->place, TRUE);
  gtk_label_set_width_chars (band->place, 12);
  gtk_box_append (GTK_BOX (band->box), button);
  gtk_box_append (GTK_BOX (band->box), band->map);
  gtk_box_append (GTK_BOX (band->box), GTK_WIDGET (band->place));
  gtk_box_append (self->band_box, band->box);
  return band;
}

/* The mode, and pages by tier: "Tiered · GPU 130 · host 12". Returns: owned. */
static char *
format_place (const qe_session_view *view)
{
  GString *text = g_string_new (quire_cache_mode_get_title (view->mode));

  if (view->n_pages_tier[QE_TIER_GPU] > 0)
    g_string_append_printf (text, _ (" · GPU %'u"), view->n_pages_tier[QE_TIER_GPU]);
  if (view->n_pages_tier[QE_TIER_HOST] > 0)
    g_string_append_printf (text, _ (" · host %'u"), view->n_pages_tier[QE_TIER_HOST]);
  if (view->n_pages_tier[QE_TIER_DISK] > 0)
    g_string_append_printf (text, _ (" · disk %'u"), view->n_pages_tier[QE_TIER_DISK]);
  if (view->n_pages_shared > 0)
    g_string_append_printf (text, _ (" · shared %'u"), view->n_pages_shared);
  return g_string_free (text, FALSE);
}

static void
band_update (QuireCachePanel *self, Band *band, const qe_session_view *view, const char *title)
{
  g_autofree char *size = quire_format_bytes (view->bytes);
  g_autofree char *numbers = NULL, *place = format_place (view);

  band->seen = TRUE;
  set_text (band->place, place);
  set_text (band->title, title);
  numbers = g_strdup_printf (ngettext ("%'u token · %s", "%'u tokens · %s", view->n_tokens),
                             view->n_tokens, size);
  set_text (band->numbers, numbers);
  if (view->id == self->active)
    gtk_widget_add_css_class (GTK_WIDGET (band->title), "heading");
  else
    gtk_widget_remove_css_class (GTK_WIDGET (band->title), "heading");
  quire_page_map_set_pages (QUIRE_PAGE_MAP (band->map), view->cells, view->n_pages, title);
}

static QuireTableRow *
table_row_new (const qe_session_view *view, const char *title)
{
  QuireTableRow *row = g_object_new (QUIRE_TYPE_TABLE_ROW, NULL);

  row->cells[COLUMN_CHAT] = g_strdup (title);
  row->cells[COLUMN_TOKENS] = g_strdup_printf ("%'u", view->n_tokens);
  for (guint tier = 0; tier < QE_N_TIERS; tier++)
    row->cells[COLUMN_GPU + tier] = g_strdup_printf ("%'u", view->n_pages_tier[tier]);
  row->cells[COLUMN_SHARED] = g_strdup_printf ("%'u", view->n_pages_shared);
  row->cells[COLUMN_SIZE] = quire_format_bytes (view->bytes);
  row->cells[COLUMN_MODE] = g_strdup (quire_cache_mode_get_title (view->mode));
  return row;
}

/* Replaces rows that differ; the view keeps its selection and scroll position. Nothing while nobody sees it: a view that is
 * hidden sets the text of its cells all the same. */
static void
table_update (QuireCachePanel *self)
{
  GPtrArray *rows = self->rows;
  guint n = g_list_model_get_n_items (G_LIST_MODEL (self->table));

  for (guint i = 0; i < rows->len; i++)
    {
      QuireTableRow *new = g_ptr_array_index (rows, i);
      g_autoptr (QuireTableRow) old
          = i < n ? g_list_model_get_item (G_LIST_MODEL (self->table), i) : NULL;
      gboolean same = old != NULL;

      for (int c = 0; same && c < N_COLUMNS; c++)
        same = g_strcmp0 (old->cells[c], new->cells[c]) == 0;
      if (!same)
        g_list_store_splice (self->table, i, old != NULL ? 1 : 0, (gpointer *)&new, 1);
    }
  if (n > rows->len)
    g_list_store_splice (self->table, rows->len, n - rows->len, NULL, 0);
}

static gboolean
drop_unseen (gpointer key, gpointer value, gpointer user_data)
{
  QuireCachePanel *self = user_data;
  Band *band = value;
  gboolean gone = !band->seen;

  if (gone)
    gtk_box_remove (self->band_box, band->box);
  band->seen = FALSE;
  return gone;
}

void
quire_cache_panel_set_snapshot (QuireCachePanel *self, const qe_snapshot *snapshot)
{
  GPtrArray *rows = g_ptr_array_new_with_free_func (g_object_unref);
  g_autofree char *total = NULL, *size = NULL;
  guint n_pages = 0, n_shown = 0, per_cell = 1;
  guint64 bytes = 0;

  g_return_if_fail (QUIRE_IS_CACHE_PANEL (self));

  self->n_snapshots++;
  for (guint i = 0; i < QE_N_TIERS; i++)
    {
      quire_tier_row_set_view (QUIRE_TIER_ROW (self->tiers[i]), &snapshot->tiers[i],
                               i == QE_TIER_GPU ? &snapshot->device : NULL);
      bytes += snapshot->tiers[i].bytes_used;
      n_pages += snapshot->tiers[i].n_pages_used;
    }
  for (guint i = 0; i < snapshot->n_sessions; i++)
    {
      const qe_session_view *view = &snapshot->sessions[i];
      const char *title
          = self->title_func != NULL ? self->title_func (view->id, self->title_data) : "";
      Band *band;

      if (title == NULL || view->n_pages == 0)
        continue;
      band = g_hash_table_lookup (self->bands, &view->id);
      if (band == NULL)
        {
          band = band_new (self, view->id);
          g_hash_table_insert (self->bands, &band->session, band);
        }
      band_update (self, band, view, title);
      per_cell = MAX (per_cell, quire_page_map_get_pages_per_cell (QUIRE_PAGE_MAP (band->map)));
      g_ptr_array_add (rows, table_row_new (view, title));
      n_shown++;
    }
  g_hash_table_foreach_remove (self->bands, drop_unseen, self);
  g_ptr_array_unref (self->rows);
  self->rows = rows;
  if (g_strcmp0 (gtk_stack_get_visible_child_name (self->stack), "table") == 0)
    table_update (self);
  quire_tier_history_set (QUIRE_TIER_HISTORY (self->history), snapshot);
  gtk_widget_set_visible (GTK_WIDGET (self->empty), n_shown == 0);
  size = quire_format_bytes (bytes);
  /* Translators: copies of pages in all tiers, and their size. */
  total = g_strdup_printf (
      ngettext ("All tiers: %'u page · %s", "All tiers: %'u pages · %s", n_pages), n_pages, size);
  set_text (self->total, total);
  g_free (total);
  total = snapshot->n_pages_cached > 0
              ? g_strdup_printf (ngettext ("%'u page is of no open chat, kept to be found again",
                                           "%'u pages are of no open chat, kept to be found again",
                                           snapshot->n_pages_cached),
                                 snapshot->n_pages_cached)
              : g_strdup ("");
  set_text (self->cached, total);
  gtk_widget_set_visible (GTK_WIDGET (self->cached), snapshot->n_pages_cached > 0);
  g_free (total);
  total = per_cell == 1
              ? g_strdup_printf (_ ("1 cell = 1 page of %u tokens"), snapshot->page_tokens)
              : g_strdup_printf (_ ("1 cell = up to %u pages of %u tokens"), per_cell,
                                 snapshot->page_tokens);
  set_text (self->zoom, total);
}

guint64
quire_cache_panel_get_n_snapshots (QuireCachePanel *self)
{
  g_return_val_if_fail (QUIRE_IS_CACHE_PANEL (self), 0);
  return self->n_snapshots;
}

void
quire_cache_panel_set_title_func (QuireCachePanel *self, QuireSessionTitleFunc func,
                                  gpointer user_data)
{
  g_return_if_fail (QUIRE_IS_CACHE_PANEL (self));
  self->title_func = func;
  self->title_data = user_data;
}

void
quire_cache_panel_set_words_func (QuireCachePanel *self, QuireSessionWordsFunc func,
                                  gpointer user_data)
{
  g_return_if_fail (QUIRE_IS_CACHE_PANEL (self));
  self->words_func = func;
  self->words_data = user_data;
}

void
quire_cache_panel_set_active_session (QuireCachePanel *self, qe_session_id session)
{
  GHashTableIter iter;
  gpointer value;

  g_return_if_fail (QUIRE_IS_CACHE_PANEL (self));
  self->active = session;
  g_hash_table_iter_init (&iter, self->bands);
  while (g_hash_table_iter_next (&iter, NULL, &value))
    {
      Band *band = value;

      if (band->session == session)
        gtk_widget_add_css_class (GTK_WIDGET (band->title), "heading");
      else
        gtk_widget_remove_css_class (GTK_WIDGET (band->title), "heading");
    }
}

/* ---- Building ---- */

static void
setup_cell_cb (GtkSignalListItemFactory *factory, GtkListItem *item, gpointer column)
{
  gboolean is_text
      = GPOINTER_TO_INT (column) == COLUMN_CHAT || GPOINTER_TO_INT (column) == COLUMN_MODE;
  GtkLabel *label = label_new ("", is_text ? "caption" : "caption numeric", is_text ? 0 : 1);

  if (GPOINTER_TO_INT (column) != COLUMN_CHAT) /* figures are never cut */
    gtk_label_set_ellipsize (label, PANGO_ELLIPSIZE_NONE);
  else
    gtk_label_set_width_chars (label, 10);
  gtk_list_item_set_child (item, GTK_WIDGET (label));
}

static const char *
column_title (int column)
{
  const char *const titles[] = { _ ("Chat"), _ ("Tokens"), _ ("GPU"),  _ ("Host"),
                                 _ ("Disk"), _ ("Shared"), _ ("Size"), _ ("Mode") };

  return titles[column];
}

/* No table interface tells a screen reader the column's title, so it is in the cell's name. Returns: owned. */
static char *
dup_cell_name (const QuireTableRow *row, int column)
{
  return column == COLUMN_CHAT
             ? g_strdup (row->cells[column])
             /* Translators: the title of a column, then what the cell says. */
             : g_strdup_printf (C_ ("cell", "%s: %s"), column_title (column), row->cells[column]);
}

/* The row's name is that of its cells: it has the focus. */
static void
name_cell (GtkWidget *cell, const QuireTableRow *row, int column)
{
  g_autofree char *name = dup_cell_name (row, column);
  GtkWidget *line = gtk_widget_get_parent (cell);
  g_autoptr (GString) names = g_string_new (name);

  quire_widget_set_label (cell, name);
  if (column != COLUMN_CHAT || line == NULL)
    return;
  for (int c = COLUMN_CHAT + 1; c < N_COLUMNS; c++)
    {
      g_autofree char *next = dup_cell_name (row, c);

      g_string_append_printf (names, ", %s", next);
    }
  quire_widget_set_label (line, names->str);
}

static void
bind_cell_cb (GtkSignalListItemFactory *factory, GtkListItem *item, gpointer column)
{
  QuireTableRow *row = gtk_list_item_get_item (item);
  GtkWidget *label = gtk_list_item_get_child (item);

  gtk_label_set_text (GTK_LABEL (label), row->cells[GPOINTER_TO_INT (column)]);
  name_cell (gtk_widget_get_parent (label), row, GPOINTER_TO_INT (column));
}

/* GTK's own widgets in the line of titles, in the order of the columns. */
static void
name_titles (GtkWidget *line)
{
  int c = 0;

  for (GtkWidget *title = gtk_widget_get_first_child (line); title != NULL && c < N_COLUMNS;
       title = gtk_widget_get_next_sibling (title))
    quire_widget_set_label (title, column_title (c++));
}

static GtkWidget *
table_build (QuireCachePanel *self)
{
  GtkWidget *view, *scrolled = gtk_scrolled_window_new ();

  self->table = g_list_store_new (QUIRE_TYPE_TABLE_ROW);
  view = gtk_column_view_new (
      GTK_SELECTION_MODEL (gtk_no_selection_new (G_LIST_MODEL (g_object_ref (self->table)))));
  for (int c = 0; c < N_COLUMNS; c++)
    {
      GtkListItemFactory *factory = gtk_signal_list_item_factory_new ();
      GtkColumnViewColumn *column;

      g_signal_connect (factory, "setup", G_CALLBACK (setup_cell_cb), GINT_TO_POINTER (c));
      g_signal_connect (factory, "bind", G_CALLBACK (bind_cell_cb), GINT_TO_POINTER (c));
      column = gtk_column_view_column_new (column_title (c), factory);
      gtk_column_view_column_set_expand (column, c == COLUMN_CHAT);
      gtk_column_view_append_column (GTK_COLUMN_VIEW (view), column);
      g_object_unref (column);
    }
  gtk_widget_add_css_class (view, "data-table");
  /* The line of titles, and the list of rows. */
  for (GtkWidget *part = gtk_widget_get_first_child (view); part != NULL;
       part = gtk_widget_get_next_sibling (part))
    quire_widget_set_label (part, _ ("Cache by chat"));
  name_titles (gtk_widget_get_first_child (view));
  gtk_accessible_update_property (GTK_ACCESSIBLE (view), GTK_ACCESSIBLE_PROPERTY_LABEL,
                                  _ ("Cache by chat"), -1);
  gtk_scrolled_window_set_policy (GTK_SCROLLED_WINDOW (scrolled), GTK_POLICY_AUTOMATIC,
                                  GTK_POLICY_NEVER);
  gtk_scrolled_window_set_propagate_natural_height (GTK_SCROLLED_WINDOW (scrolled), TRUE);
  gtk_scrolled_window_set_child (GTK_SCROLLED_WINDOW (scrolled), view);
  return scrolled;
}

static void
table_toggled_cb (GtkToggleButton *button, QuireCachePanel *self)
{
  gboolean active = gtk_toggle_button_get_active (button);

  if (active)
    table_update (self);
  gtk_stack_set_visible_child_name (self->stack, active ? "table" : "map");
}

static GtkWidget *
header_build (QuireCachePanel *self)
{
  GtkWidget *header = gtk_box_new (GTK_ORIENTATION_HORIZONTAL, 6);
  GtkLabel *title = label_new (_ ("Cache"), "title-4", 0);
  GtkWidget *table = gtk_toggle_button_new ();
  GtkWidget *close = gtk_button_new_from_icon_name ("window-close-symbolic");

  gtk_widget_set_hexpand (GTK_WIDGET (title), TRUE);
  gtk_button_set_icon_name (GTK_BUTTON (table), "view-list-symbolic");
  gtk_widget_set_tooltip_text (table, _ ("Show as a Table"));
  quire_widget_set_label (table, _ ("Show as a Table"));
  gtk_widget_add_css_class (table, "flat");
  g_signal_connect (table, "toggled", G_CALLBACK (table_toggled_cb), self);
  gtk_widget_set_tooltip_text (close, _ ("Close"));
  quire_widget_set_label (close, _ ("Close"));
  gtk_widget_add_css_class (close, "flat");
  g_signal_connect_swapped (close, "clicked", G_CALLBACK (close_clicked_cb), self);
  gtk_widget_add_css_class (header, "panel-header");
  gtk_box_append (GTK_BOX (header), GTK_WIDGET (title));
  gtk_box_append (GTK_BOX (header), table);
  gtk_box_append (GTK_BOX (header), close);
  return header;
}

static void
draw_swatch (GtkDrawingArea *area, cairo_t *cr, int width, int height, gpointer tier)
{
  GtkSnapshot *snapshot = gtk_snapshot_new ();
  GskRenderNode *node;

  quire_page_map_snapshot_swatch (GTK_WIDGET (area), snapshot,
                                  &GRAPHENE_RECT_INIT (0, 0, (float)width, (float)height),
                                  GPOINTER_TO_UINT (tier), 1);
  node = gtk_snapshot_free_to_node (snapshot);
  gsk_render_node_draw (node, cr);
  gsk_render_node_unref (node);
}

static GtkWidget *
legend_build (QuireCachePanel *self)
{
  const char *const names[] = { _ ("GPU"), _ ("Host"), _ ("Disk") };
  GtkWidget *box = gtk_box_new (GTK_ORIENTATION_VERTICAL, 6),
            *row = gtk_box_new (GTK_ORIENTATION_HORIZONTAL, 6);

  for (guint i = 0; i < QE_N_TIERS; i++)
    {
      GtkWidget *swatch = g_object_new (GTK_TYPE_DRAWING_AREA, "accessible-role",
                                        GTK_ACCESSIBLE_ROLE_PRESENTATION, NULL);

      gtk_drawing_area_set_content_width (GTK_DRAWING_AREA (swatch), QUIRE_MAP_CELL_PX);
      gtk_drawing_area_set_content_height (GTK_DRAWING_AREA (swatch), QUIRE_MAP_CELL_PX);
      gtk_drawing_area_set_draw_func (GTK_DRAWING_AREA (swatch), draw_swatch, GUINT_TO_POINTER (i),
                                      NULL);
      gtk_widget_set_valign (swatch, GTK_ALIGN_CENTER);
      if (i > 0)
        gtk_widget_set_margin_start (swatch, 6);
      gtk_box_append (GTK_BOX (row), swatch);
      gtk_box_append (GTK_BOX (row), GTK_WIDGET (label_new (names[i], "caption dim-label", 0)));
    }
  self->zoom = label_new ("", "caption dim-label numeric", 0);
  gtk_box_append (GTK_BOX (box), row);
  gtk_box_append (GTK_BOX (box), GTK_WIDGET (label_new (_ ("Dot: shared · arrow: moving"),
                                                        "caption dim-label", 0)));
  gtk_box_append (GTK_BOX (box), GTK_WIDGET (self->zoom));
  return box;
}

static GtkWidget *
content_build (QuireCachePanel *self)
{
  GtkWidget *box = gtk_box_new (GTK_ORIENTATION_VERTICAL, 18),
            *map = gtk_box_new (GTK_ORIENTATION_VERTICAL, 12);
  GtkWidget *history = gtk_box_new (GTK_ORIENTATION_VERTICAL, 6),
            *totals = gtk_box_new (GTK_ORIENTATION_VERTICAL, 6);

  for (guint i = 0; i < QE_N_TIERS; i++)
    {
      self->tiers[i] = quire_tier_row_new (i);
      gtk_box_append (GTK_BOX (box), self->tiers[i]);
    }
  self->history = quire_tier_history_new ();
  gtk_box_append (GTK_BOX (history),
                  GTK_WIDGET (label_new (_ ("Last 5 minutes"), "caption dim-label", 0)));
  gtk_box_append (GTK_BOX (history), self->history);
  gtk_box_append (GTK_BOX (box), history);
  gtk_box_append (GTK_BOX (box), GTK_WIDGET (label_new (_ ("Pages"), "heading", 0)));
  self->empty = label_new (_ ("No pages yet. Send a message to see them fill."), "dim-label", 0);
  gtk_label_set_single_line_mode (self->empty, FALSE);
  gtk_label_set_ellipsize (self->empty, PANGO_ELLIPSIZE_NONE);
  gtk_label_set_wrap (self->empty, TRUE);
  gtk_label_set_width_chars (self->empty, 12);
  gtk_label_set_max_width_chars (self->empty, 30);
  gtk_box_append (GTK_BOX (box), GTK_WIDGET (self->empty));
  self->band_box = GTK_BOX (gtk_box_new (GTK_ORIENTATION_VERTICAL, 12));
  gtk_box_append (GTK_BOX (map), GTK_WIDGET (self->band_box));
  gtk_box_append (GTK_BOX (map), legend_build (self));
  self->stack = GTK_STACK (gtk_stack_new ());
  gtk_stack_set_vhomogeneous (self->stack, FALSE);
  gtk_stack_set_hhomogeneous (self->stack, FALSE);
  gtk_stack_add_named (self->stack, map, "map");
  gtk_stack_add_named (self->stack, table_build (self), "table");
  gtk_box_append (GTK_BOX (box), GTK_WIDGET (self->stack));
  self->total = label_new ("", "caption numeric dim-label", 0);
  self->cached = label_new ("", "caption numeric dim-label", 0);
  gtk_label_set_single_line_mode (self->cached, FALSE);
  gtk_label_set_ellipsize (self->cached, PANGO_ELLIPSIZE_NONE);
  gtk_label_set_wrap (self->cached, TRUE);
  gtk_label_set_width_chars (self->cached, 12);
  gtk_label_set_max_width_chars (self->cached, 30);
  gtk_box_append (GTK_BOX (totals), GTK_WIDGET (self->total));
  gtk_box_append (GTK_BOX (totals), GTK_WIDGET (self->cached));
  gtk_box_append (GTK_BOX (box), totals);
  gtk_widget_add_css_class (box, "panel-content");
  return box;
}

static void
quire_cache_panel_dispose (GObject *object)
{
  QuireCachePanel *self = QUIRE_CACHE_PANEL (object);

  g_clear_pointer (&self->root, gtk_widget_unparent);
  g_clear_pointer (&self->bands, g_hash_table_unref);
  g_clear_pointer (&self->rows, g_ptr_array_unref);
  g_clear_object (&self->table);
  G_OBJECT_CLASS (quire_cache_panel_parent_class)->dispose (object);
}

static void
quire_cache_panel_class_init (QuireCachePanelClass *klass)
{
  GtkWidgetClass *widget_class = GTK_WIDGET_CLASS (klass);
  GType type = G_TYPE_FROM_CLASS (klass);

  G_OBJECT_CLASS (klass)->dispose = quire_cache_panel_dispose;
  signals[SESSION_ACTIVATED] = g_signal_new ("session-activated", type, G_SIGNAL_RUN_LAST, 0, NULL,
                                             NULL, NULL, G_TYPE_NONE, 1, G_TYPE_UINT64);
  signals[PAGE_ACTIVATED] = g_signal_new ("page-activated", type, G_SIGNAL_RUN_LAST, 0, NULL, NULL,
                                          NULL, G_TYPE_NONE, 2, G_TYPE_UINT64, G_TYPE_UINT);
  signals[CLOSE_CLICKED] = g_signal_new ("close-clicked", type, G_SIGNAL_RUN_LAST, 0, NULL, NULL,
                                         NULL, G_TYPE_NONE, 0);
  gtk_widget_class_set_layout_manager_type (widget_class, GTK_TYPE_BIN_LAYOUT);
  gtk_widget_class_set_css_name (widget_class, "cachepanel");
}

static void
quire_cache_panel_init (QuireCachePanel *self)
{
  GtkWidget *scrolled = gtk_scrolled_window_new ();

  self->bands = g_hash_table_new_full (g_int64_hash, g_int64_equal, NULL, g_free);
  self->rows = g_ptr_array_new_with_free_func (g_object_unref);
  self->root = gtk_box_new (GTK_ORIENTATION_VERTICAL, 0);
  gtk_widget_set_parent (self->root, GTK_WIDGET (self));
  gtk_widget_set_size_request (GTK_WIDGET (self), 300, -1);
  gtk_widget_set_hexpand (GTK_WIDGET (self), FALSE);
  gtk_box_append (GTK_BOX (self->root), header_build (self));
  gtk_scrolled_window_set_policy (GTK_SCROLLED_WINDOW (scrolled), GTK_POLICY_NEVER,
                                  GTK_POLICY_AUTOMATIC);
  gtk_scrolled_window_set_child (GTK_SCROLLED_WINDOW (scrolled), content_build (self));
  gtk_widget_set_vexpand (scrolled, TRUE);
  gtk_box_append (GTK_BOX (self->root), scrolled);
}

GtkWidget *
quire_cache_panel_new (void)
{
  return g_object_new (QUIRE_TYPE_CACHE_PANEL, NULL);
}
