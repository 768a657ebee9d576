/* quire-cache-panel.c: see quire-cache-panel.h.
 *
 * Bands (one a session) are kept by session id and updated in place, so scrolling and focus survive. The table shows the
 * same figures as text. CSS: cachepanel > .tier, .band. */
#include "app/quire-cache-panel.h"

#include <adwaita.h>
#include <glib/gi18n.h>
#include <string.h>

#include "app/quire-page-map.h"

#define BAR_HEIGHT_PX 8
#define HISTORY_HEIGHT_PX 36

/* ---- A bar or a sparkline: a drawing area with its numbers ---- */

typedef struct
{
  double share; /* bar: 0..1 */
  guint tier;
  guint *history;
  guint n_history;
} Drawing;

static void
drawing_free (gpointer data)
{
  Drawing *drawing = data;

  g_free (drawing->history);
  g_free (drawing);
}

static void
style_color (GtkWidget *widget, const char *name, cairo_t *cr)
{
  GtkStyleContext *context = gtk_widget_get_style_context (widget);
  GdkRGBA color;

  if (!gtk_style_context_lookup_color (context, name, &color))
    gtk_style_context_get_color (context, &color);
  gdk_cairo_set_source_rgba (cr, &color);
}

static const char *
tier_color (guint tier)
{
  return tier == QE_TIER_GPU    ? "quire_tier_gpu"
         : tier == QE_TIER_HOST ? "quire_tier_host"
                                : "quire_tier_disk";
}

static void
draw_bar (GtkDrawingArea *area, cairo_t *cr, int width, int height, gpointer user_data)
{
  Drawing *d = user_data;
  double filled = d->share > 0 ? MAX (d->share * width, 2) : 0;
  gboolean rtl = gtk_widget_get_direction (GTK_WIDGET (area)) == GTK_TEXT_DIR_RTL;

  style_color (GTK_WIDGET (area), "quire_cell_free", cr);
  cairo_rectangle (cr, 0, 0, width, height);
  cairo_fill (cr);
  cairo_rectangle (cr, rtl ? width - filled : 0, 0, filled, height);
  style_color (GTK_WIDGET (area), tier_color (d->tier), cr);
  if (d->tier == QE_TIER_DISK)
    {
      cairo_set_line_width (cr, 4);
      cairo_clip_preserve (cr);
      cairo_stroke (cr);
    }
  else
    cairo_fill (cr);
}

static void
draw_history (GtkDrawingArea *area, cairo_t *cr, int width, int height, gpointer user_data)
{
  Drawing *d = user_data;
  guint max = 1;

  for (guint i = 0; i < d->n_history; i++)
    max = MAX (max, d->history[i]);
  style_color (GTK_WIDGET (area), "quire_cell_free", cr);
  cairo_rectangle (cr, 0, height - 1, width, 1);
  cairo_fill (cr);
  if (d->n_history == 0)
    return;
  /* The newest second is at the end; 300 of them fill the width. */
  style_color (GTK_WIDGET (area), tier_color (d->tier), cr);
  cairo_move_to (cr, width - (double)(d->n_history - 1) * width / 299.0, height);
  for (guint i = 0; i < d->n_history; i++)
    cairo_line_to (cr, width - (double)(d->n_history - 1 - i) * width / 299.0,
                   height - (double)d->history[i] / max * (height - 2));
  cairo_line_to (cr, width, height);
  cairo_close_path (cr);
  cairo_fill (cr);
}

static GtkWidget *
drawing_new (int height, GtkDrawingAreaDrawFunc func, Drawing **out)
{
  GtkWidget *area = gtk_drawing_area_new ();
  Drawing *drawing = g_new0 (Drawing, 1);

  gtk_drawing_area_set_content_height (GTK_DRAWING_AREA (area), height);
  gtk_drawing_area_set_draw_func (GTK_DRAWING_AREA (area), func, drawing, drawing_free);
  *out = drawing;
  return area;
}

/* ---- The panel ---- */

typedef struct
{
  GtkWidget *box, *bar_box;
  GtkLabel *numbers, *note;
  GtkWidget *bar, *why;
  Drawing *drawing;
} TierRow;

typedef struct
{
  qe_session_id session;
  GtkWidget *box;
  GtkLabel *title, *numbers;
  GtkWidget *map;
  gboolean seen;
} Band;

struct _QuireCachePanel
{
  GtkWidget parent_instance;

  GtkWidget *root;
  GtkStack *stack;
  TierRow tiers[QE_N_TIERS];
  GtkWidget *history;
  Drawing *history_drawing;
  GtkBox *band_box;
  GtkLabel *total, *zoom, *empty;
  GHashTable *bands; /* (guint64 -> Band) */
  GListStore *table;
  QuireSessionTitleFunc title_func;
  gpointer title_data;
  qe_session_id active;
};

G_DEFINE_FINAL_TYPE (QuireCachePanel, quire_cache_panel, GTK_TYPE_WIDGET)

enum
{
  SESSION_ACTIVATED,
  CLOSE_CLICKED,
  WHY_GPU_CLICKED,
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
  COLUMN_PAGES,
  COLUMN_SHARED,
  COLUMN_SIZE,
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

static char *
format_size (guint64 bytes)
{
  return g_format_size_full (bytes, G_FORMAT_SIZE_IEC_UNITS);
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
why_clicked_cb (QuireCachePanel *self)
{
  g_signal_emit (self, signals[WHY_GPU_CLICKED], 0);
}

static void
close_clicked_cb (QuireCachePanel *self)
{
  g_signal_emit (self, signals[CLOSE_CLICKED], 0);
}

static GtkWidget *
tier_row_build (QuireCachePanel *self, guint tier)
{
  const char *const names[] = { _ ("GPU"), _ ("Host memory"), _ ("Disk") };
  TierRow *row = &self->tiers[tier];
  GtkWidget *head = gtk_box_new (GTK_ORIENTATION_HORIZONTAL, 6);
  GtkLabel *name = label_new (names[tier], "heading", 0);

  row->box = gtk_box_new (GTK_ORIENTATION_VERTICAL, 6);
  row->numbers = label_new ("", "caption numeric dim-label", 1);
  gtk_widget_set_hexpand (GTK_WIDGET (row->numbers), TRUE);
  gtk_box_append (GTK_BOX (head), GTK_WIDGET (name));
  gtk_box_append (GTK_BOX (head), GTK_WIDGET (row->numbers));
  row->bar = drawing_new (BAR_HEIGHT_PX, draw_bar, &row->drawing);
  row->drawing->tier = tier;
  gtk_widget_add_css_class (row->bar, "tierbar");
  gtk_widget_set_overflow (row->bar, GTK_OVERFLOW_HIDDEN);
  row->bar_box = gtk_box_new (GTK_ORIENTATION_HORIZONTAL, 6);
  row->note = label_new ("", "caption numeric dim-label", 0);
  gtk_label_set_single_line_mode (row->note, FALSE);
  gtk_label_set_ellipsize (row->note, PANGO_ELLIPSIZE_NONE);
  gtk_label_set_wrap (row->note, TRUE);
  gtk_label_set_width_chars (row->note, 12);
  gtk_label_set_max_width_chars (row->note, 30);
  gtk_widget_set_hexpand (GTK_WIDGET (row->note), TRUE);
  gtk_box_append (GTK_BOX (row->bar_box), GTK_WIDGET (row->note));
  if (tier == QE_TIER_GPU)
    {
      row->why = gtk_button_new_with_label (_ ("Why?"));
      gtk_widget_add_css_class (row->why, "flat");
      gtk_widget_set_valign (row->why, GTK_ALIGN_CENTER);
      gtk_accessible_update_property (GTK_ACCESSIBLE (row->why), GTK_ACCESSIBLE_PROPERTY_LABEL,
                                      _ ("Why is no GPU used?"), -1);
      g_signal_connect_swapped (row->why, "clicked", G_CALLBACK (why_clicked_cb), self);
      gtk_box_append (GTK_BOX (row->bar_box), row->why);
    }
  gtk_box_append (GTK_BOX (row->box), head);
  gtk_box_append (GTK_BOX (row->box), row->bar);
  gtk_box_append (GTK_BOX (row->box), row->bar_box);
  gtk_widget_add_css_class (row->box, "tier");
  return row->box;
}

/* What everyone holds of the card, and how busy it is. Returns: owned; NULL without a card. */
static char *
format_device (const qe_device_view *device)
{
  if (device->memory_total == 0)
    return NULL;
  g_autofree char *used = format_size (device->memory_used);
  g_autofree char *total = format_size (device->memory_total);

  if (device->utilization < 0)
    /* Translators: memory of the graphics card in use by all programs, "Card: 9.1 GiB of 24.0 GiB used". */
    return g_strdup_printf (_ ("Card: %s of %s used"), used, total);
  return g_strdup_printf (_ ("Card: %s of %s used, %d %% busy"), used, total, device->utilization);
}

static void
tier_row_update (TierRow *row, const qe_tier_view *view, const qe_device_view *device)
{
  g_autofree char *text = NULL;

  gtk_widget_set_visible (row->bar, view->present);
  if (row->why != NULL)
    gtk_widget_set_visible (row->why, !view->present);
  if (!view->present)
    {
      set_text (row->numbers, view->reason != NULL && row->why != NULL ? _ ("Not used") : "");
      set_text (row->note, view->reason != NULL ? view->reason : "");
      return;
    }
  g_autofree char *used = format_size (view->bytes_used);
  g_autofree char *max = format_size (view->bytes_max);
  double share = view->bytes_max > 0 ? (double)view->bytes_used / (double)view->bytes_max : 0;

  /* Translators: memory in use and its limit, "2.1 GiB of 12.0 GiB". */
  text = g_strdup_printf (_ ("%s of %s"), used, max);
  set_text (row->numbers, text);
  g_free (text);
  if (view->n_pages_shared > 0)
    text = g_strdup_printf (
        ngettext ("%u page, %u shared", "%u pages, %u shared", view->n_pages_used),
        view->n_pages_used, view->n_pages_shared);
  else
    text = g_strdup_printf (ngettext ("%u page", "%u pages", view->n_pages_used),
                            view->n_pages_used);
  if (device != NULL && device->memory_total > 0)
    {
      g_autofree char *pages = text;
      g_autofree char *card = format_device (device);

      text = g_strconcat (pages, "\n", card, NULL);
    }
  set_text (row->note, text);
  if (row->drawing->share != share)
    {
      row->drawing->share = share;
      gtk_widget_queue_draw (row->bar);
    }
  gtk_accessible_update_property (GTK_ACCESSIBLE (row->bar), GTK_ACCESSIBLE_PROPERTY_LABEL,
                                  gtk_label_get_text (row->numbers), -1);
}

static void
band_clicked_cb (GtkButton *button, QuireCachePanel *self)
{
  guint64 *session = g_object_get_data (G_OBJECT (button), "session");

  g_signal_emit (self, signals[SESSION_ACTIVATED], 0, *session);
}

static Band *
band_new (QuireCachePanel *self, qe_session_id session)
{
  Band *band = g_new0 (Band, 1);
  GtkWidget *button = gtk_button_new ();
  GtkWidget *head = gtk_box_new (GTK_ORIENTATION_HORIZONTAL, 6);
  guint64 *id = g_new (guint64, 1);

  *id = session;
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
  g_object_set_data_full (G_OBJECT (button), "session", id, g_free);
  g_signal_connect (button, "clicked", G_CALLBACK (band_clicked_cb), self);
  band->map = quire_page_map_new ();
  gtk_box_append (GTK_BOX (band->box), button);
  gtk_box_append (GTK_BOX (band->box), band->map);
  gtk_box_append (self->band_box, band->box);
  return band;
}

static void
band_update (QuireCachePanel *self, Band *band, const qe_session_view *view, const char *title)
{
  g_autofree char *size = format_size (view->bytes);
  g_autofree char *numbers = NULL;

  band->seen = TRUE;
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
  row->cells[COLUMN_PAGES] = g_strdup_printf ("%'u", view->n_pages);
  row->cells[COLUMN_SHARED] = g_strdup_printf ("%'u", view->n_pages_shared);
  row->cells[COLUMN_SIZE] = format_size (view->bytes);
  return row;
}

/* Replaces rows that differ; the view keeps its selection and scroll position. */
static void
table_update (QuireCachePanel *self, GPtrArray *rows)
{
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

static void
history_update (QuireCachePanel *self, const qe_snapshot *snapshot)
{
  Drawing *d = self->history_drawing;

  d->tier = snapshot->tiers[QE_TIER_GPU].present ? QE_TIER_GPU : QE_TIER_HOST;
  if (d->n_history == snapshot->n_history
      && (d->n_history == 0
          || memcmp (d->history, snapshot->history, d->n_history * sizeof *d->history) == 0))
    return;
  g_free (d->history);
  d->n_history = snapshot->n_history;
  d->history = g_memdup2 (snapshot->history, snapshot->n_history * sizeof *d->history);
  gtk_widget_queue_draw (self->history);
}

void
quire_cache_panel_set_snapshot (QuireCachePanel *self, const qe_snapshot *snapshot)
{
  g_autoptr (GPtrArray) rows = g_ptr_array_new_with_free_func (g_object_unref);
  g_autofree char *total = NULL, *size = NULL;
  guint n_pages = 0, n_shown = 0, per_cell = 1;

  g_return_if_fail (QUIRE_IS_CACHE_PANEL (self));

  for (guint i = 0; i < QE_N_TIERS; i++)
    {
      tier_row_update (&self->tiers[i], &snapshot->tiers[i],
                       i == QE_TIER_GPU ? &snapshot->device : NULL);
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
  table_update (self, rows);
  history_update (self, snapshot);
  gtk_widget_set_visible (GTK_WIDGET (self->empty), n_shown == 0);
  size = format_size ((guint64)n_pages * snapshot->page_bytes);
  total = g_strdup_printf (
      ngettext ("All chats: %'u page · %s", "All chats: %'u pages · %s", n_pages), n_pages, size);
  set_text (self->total, total);
  g_free (total);
  total = per_cell == 1
              ? g_strdup_printf (_ ("1 cell = 1 page of %u tokens"), snapshot->page_tokens)
              : g_strdup_printf (_ ("1 cell = up to %u pages of %u tokens"), per_cell,
                                 snapshot->page_tokens);
  set_text (self->zoom, total);
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
  gboolean is_text = GPOINTER_TO_INT (column) == COLUMN_CHAT;
  GtkLabel *label = label_new ("", is_text ? "caption" : "caption numeric", is_text ? 0 : 1);

  if (!is_text) /* figures are never cut */
    gtk_label_set_ellipsize (label, PANGO_ELLIPSIZE_NONE);
  gtk_list_item_set_child (item, GTK_WIDGET (label));
}

static void
bind_cell_cb (GtkSignalListItemFactory *factory, GtkListItem *item, gpointer column)
{
  QuireTableRow *row = gtk_list_item_get_item (item);

  gtk_label_set_text (GTK_LABEL (gtk_list_item_get_child (item)),
                      row->cells[GPOINTER_TO_INT (column)]);
}

static GtkWidget *
table_build (QuireCachePanel *self)
{
  const char *const titles[] = { _ ("Chat"), _ ("Tokens"), _ ("Pages"), _ ("Shared"), _ ("Size") };
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
      column = gtk_column_view_column_new (titles[c], factory);
      gtk_column_view_column_set_expand (column, c == COLUMN_CHAT);
      gtk_column_view_append_column (GTK_COLUMN_VIEW (view), column);
      g_object_unref (column);
    }
  gtk_widget_add_css_class (view, "data-table");
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
  gtk_stack_set_visible_child_name (self->stack,
                                    gtk_toggle_button_get_active (button) ? "table" : "map");
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
  gtk_widget_add_css_class (table, "flat");
  g_signal_connect (table, "toggled", G_CALLBACK (table_toggled_cb), self);
  gtk_widget_set_tooltip_text (close, _ ("Close"));
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
      GtkWidget *swatch = gtk_drawing_area_new ();

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
  gtk_box_append (GTK_BOX (row),
                  GTK_WIDGET (label_new (_ ("· dot: shared"), "caption dim-label", 0)));
  self->zoom = label_new ("", "caption dim-label numeric", 0);
  gtk_box_append (GTK_BOX (box), row);
  gtk_box_append (GTK_BOX (box), GTK_WIDGET (self->zoom));
  return box;
}

static GtkWidget *
content_build (QuireCachePanel *self)
{
  GtkWidget *box = gtk_box_new (GTK_ORIENTATION_VERTICAL, 18),
            *map = gtk_box_new (GTK_ORIENTATION_VERTICAL, 12);
  GtkWidget *history = gtk_box_new (GTK_ORIENTATION_VERTICAL, 6);

  for (guint i = 0; i < QE_N_TIERS; i++)
    gtk_box_append (GTK_BOX (box), tier_row_build (self, i));
  self->history = drawing_new (HISTORY_HEIGHT_PX, draw_history, &self->history_drawing);
  gtk_accessible_update_property (GTK_ACCESSIBLE (self->history), GTK_ACCESSIBLE_PROPERTY_LABEL,
                                  _ ("Pages in use over the last five minutes"), -1);
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
  gtk_box_append (GTK_BOX (box), GTK_WIDGET (self->total));
  gtk_widget_add_css_class (box, "panel-content");
  return box;
}

static void
quire_cache_panel_dispose (GObject *object)
{
  QuireCachePanel *self = QUIRE_CACHE_PANEL (object);

  g_clear_pointer (&self->root, gtk_widget_unparent);
  g_clear_pointer (&self->bands, g_hash_table_unref);
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
  signals[CLOSE_CLICKED] = g_signal_new ("close-clicked", type, G_SIGNAL_RUN_LAST, 0, NULL, NULL,
                                         NULL, G_TYPE_NONE, 0);
  signals[WHY_GPU_CLICKED] = g_signal_new ("why-gpu-clicked", type, G_SIGNAL_RUN_LAST, 0, NULL,
                                           NULL, NULL, G_TYPE_NONE, 0);
  gtk_widget_class_set_layout_manager_type (widget_class, GTK_TYPE_BIN_LAYOUT);
  gtk_widget_class_set_css_name (widget_class, "cachepanel");
}

static void
quire_cache_panel_init (QuireCachePanel *self)
{
  GtkWidget *scrolled = gtk_scrolled_window_new ();

  self->bands = g_hash_table_new_full (g_int64_hash, g_int64_equal, NULL, g_free);
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
