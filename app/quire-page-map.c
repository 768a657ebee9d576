/* quire-page-map.c: see quire-page-map.h.
 *
 * Drawing: a row of cells is one texture, kept until one of its cells looks other; then that cell alone is painted anew. A
 * renderer that draws in software goes through every node of the window in each frame, so the map's nodes are few, and a
 * change is no larger than a row. Full cells that look alike are copies of one picture. Colours come from the style
 * (@quire_tier_gpu, _host, _disk), shapes tell the tiers apart without them: GPU solid, host half a cell along the diagonal in an
 * outline, disk a hollow square. */
#include "app/quire-page-map.h"

#include <adwaita.h>
#include <glib/gi18n.h>
#include <string.h>

typedef enum
{
  MARK_NONE,
  MARK_SHARED,
  MARK_MOVING,
  N_MARKS
} Mark;

/* All that can be seen of a cell. */
typedef struct
{
  guint tier;
  Mark mark;
  double level; /* 0.125..1 */
} Look;

#define N_COLORS 6

struct _QuirePageMap
{
  GtkWidget parent_instance;

  qe_cell *pages;
  guint n_pages;
  QuireMapLayout layout;
  GPtrArray *rows;                /* (element-type GdkTexture nullable) */
  GByteArray *stale_rows, *stale; /* one a row, one a cell: 1 when it is to be painted */
  cairo_surface_t *full[QE_N_TIERS][N_MARKS]; /* full cells; NULL: to be painted */
  GdkRGBA colors[N_COLORS];                   /* that they were painted with */
  guint64 n_painted;
  int width;
  int cursor; /* cell, -1: none */
  QuireTokenWordsFunc words_func;
  gpointer words_data;
};

static guint activated_signal;

G_DEFINE_FINAL_TYPE (QuirePageMap, quire_page_map, GTK_TYPE_WIDGET)

void
quire_map_layout_compute (QuireMapLayout *layout, guint n_pages, int width)
{
  guint per_cell = 1;

  while ((n_pages + per_cell - 1) / per_cell > QUIRE_MAP_CELLS_MAX)
    per_cell *= 2;
  layout->n_pages = n_pages;
  layout->pages_per_cell = per_cell;
  layout->n_cells = (n_pages + per_cell - 1) / per_cell;
  layout->n_columns
      = (guint)MAX ((width + QUIRE_MAP_PITCH_PX - QUIRE_MAP_CELL_PX) / QUIRE_MAP_PITCH_PX, 1);
  layout->n_rows = (layout->n_cells + layout->n_columns - 1) / layout->n_columns;
}

int
quire_map_layout_hit (const QuireMapLayout *layout, double x, double y, int width, gboolean rtl)
{
  int column, row, cell;

  if (rtl)
    x = width - x;
  if (x < 0 || y < 0)
    return -1;
  column = (int)(x / QUIRE_MAP_PITCH_PX);
  row = (int)(y / QUIRE_MAP_PITCH_PX);
  cell = row * (int)layout->n_columns + column;
  return column < (int)layout->n_columns && cell < (int)layout->n_cells ? cell : -1;
}

void
quire_map_cell_merge (QuireMapCell *out, const QuireMapLayout *layout, const qe_cell *pages,
                      guint cell)
{
  guint first = cell * layout->pages_per_cell;
  guint end = MIN (first + layout->pages_per_cell, layout->n_pages);

  memset (out, 0, sizeof *out);
  out->first_token = first * 16;
  out->n_pages = end - first;
  for (guint i = first; i < end; i++)
    {
      guint8 tier = MIN (pages[i].flags & QE_CELL_TIER_MASK, QE_N_TIERS - 1);

      out->tier = MAX (out->tier, tier);
      out->by_tier[tier]++;
      out->shared |= (pages[i].flags & QE_CELL_SHARED) != 0;
      out->moving |= (pages[i].flags & QE_CELL_MOVING) != 0;
      out->n_refs = MAX (out->n_refs, pages[i].n_refs);
      out->n_tokens += pages[i].n_tokens;
    }
}

/* ---- Drawing ---- */

static void
lookup_color (GtkWidget *widget, const char *name, GdkRGBA *color)
{
  GtkStyleContext *context = gtk_widget_get_style_context (widget);

  if (!gtk_style_context_lookup_color (context, name, color))
    gtk_style_context_get_color (context, color);
}

static void
append_outline (GtkSnapshot *snapshot, const graphene_rect_t *r, float line, const GdkRGBA *color)
{
  GskRoundedRect outline;
  const float widths[] = { line, line, line, line };
  const GdkRGBA colors[] = { *color, *color, *color, *color };

  gsk_rounded_rect_init_from_rect (&outline, r, 0);
  gtk_snapshot_append_border (snapshot, &outline, widths, colors);
}

void
quire_page_map_snapshot_swatch (GtkWidget *widget, GtkSnapshot *snapshot, const graphene_rect_t *r,
                                guint tier, double level)
{
  static const char *const names[] = { "quire_tier_gpu", "quire_tier_host", "quire_tier_disk" };
  float height = r->size.height * (float)level, bottom = r->origin.y + r->size.height;
  GdkRGBA color, free_color;

  lookup_color (widget, names[MIN (tier, 2)], &color);
  if (level < 1)
    {
      lookup_color (widget, "quire_cell_free", &free_color);
      append_outline (snapshot, r, 1, &free_color);
    }
  if (tier == QE_TIER_DISK)
    append_outline (snapshot,
                    &GRAPHENE_RECT_INIT (r->origin.x, bottom - height, r->size.width, height), 2,
                    &color);
  else if (tier == QE_TIER_GPU || level < 1)
    gtk_snapshot_append_color (
        snapshot, &color,
        &GRAPHENE_RECT_INIT (r->origin.x, bottom - height, r->size.width, height));
  else
    {
      /* The lower triangle in steps of a pixel: crisp, and cheaper than a path. */
      append_outline (snapshot, r, 1, &color);
      for (int y = 0; y < (int)r->size.height; y++)
        gtk_snapshot_append_color (
            snapshot, &color,
            &GRAPHENE_RECT_INIT (r->origin.x, r->origin.y + (float)y,
                                 r->size.width * (float)(y + 1) / r->size.height, 1));
    }
}

/* Two strokes that meet at the right, outlined: legible on a filled and on a hollow cell. */
static void
append_arrow (QuirePageMap *self, GtkSnapshot *snapshot, const graphene_rect_t *r)
{
  gboolean rtl = gtk_widget_get_direction (GTK_WIDGET (self)) == GTK_TEXT_DIR_RTL;
  GdkRGBA ring, dot;

  lookup_color (GTK_WIDGET (self), "quire_cell_ring", &ring);
  lookup_color (GTK_WIDGET (self), "quire_cell_dot", &dot);
  for (int pass = 0; pass < 2; pass++)
    for (int y = 0; y < 5; y++)
      {
        float x = (float)(2 + 2 - ABS (y - 2)), margin = pass == 0 ? 1 : 0;

        if (rtl)
          x = QUIRE_MAP_CELL_PX - 1 - x;
        gtk_snapshot_append_color (snapshot, pass == 0 ? &ring : &dot,
                                   &GRAPHENE_RECT_INIT (r->origin.x + x - margin,
                                                        r->origin.y + 1 + (float)y, 1 + 2 * margin,
                                                        1));
      }
}

/* A ringed dot, so that it stands out on a filled and on a hollow cell. */
static void
append_dot (QuirePageMap *self, GtkSnapshot *snapshot, const graphene_rect_t *r)
{
  GdkRGBA ring, dot;

  lookup_color (GTK_WIDGET (self), "quire_cell_ring", &ring);
  lookup_color (GTK_WIDGET (self), "quire_cell_dot", &dot);
  gtk_snapshot_append_color (snapshot, &ring,
                             &GRAPHENE_RECT_INIT (r->origin.x + 2, r->origin.y + 2, 4, 4));
  gtk_snapshot_append_color (snapshot, &dot,
                             &GRAPHENE_RECT_INIT (r->origin.x + 3, r->origin.y + 3, 2, 2));
}

static Look
look_of (const QuireMapLayout *layout, const qe_cell *pages, guint index)
{
  QuireMapCell cell;

  quire_map_cell_merge (&cell, layout, pages, index);
  return (Look){ .tier = cell.tier,
                 .mark = cell.moving   ? MARK_MOVING
                         : cell.shared ? MARK_SHARED
                                       : MARK_NONE,
                 .level = CLAMP ((double)cell.n_tokens / (16.0 * cell.n_pages), 0.125, 1.0) };
}

static gboolean
look_equal (const Look *a, const Look *b)
{
  return a->tier == b->tier && a->mark == b->mark && a->level == b->level;
}

/* Returns: owned, a cell in device pixels. */
static cairo_surface_t *
paint_look (QuirePageMap *self, const Look *look)
{
  const graphene_rect_t r = GRAPHENE_RECT_INIT (0, 0, QUIRE_MAP_CELL_PX, QUIRE_MAP_CELL_PX);
  int scale = gtk_widget_get_scale_factor (GTK_WIDGET (self)), n_px = QUIRE_MAP_CELL_PX * scale;
  cairo_surface_t *surface = cairo_image_surface_create (CAIRO_FORMAT_ARGB32, n_px, n_px);
  cairo_t *cr = cairo_create (surface);
  GtkSnapshot *snapshot = gtk_snapshot_new ();
  g_autoptr (GskRenderNode) node = NULL;

  quire_page_map_snapshot_swatch (GTK_WIDGET (self), snapshot, &r, look->tier, look->level);
  if (look->mark == MARK_MOVING)
    append_arrow (self, snapshot, &r);
  else if (look->mark == MARK_SHARED)
    append_dot (self, snapshot, &r);
  node = gtk_snapshot_free_to_node (snapshot);
  cairo_scale (cr, scale, scale);
  gsk_render_node_draw (node, cr);
  cairo_destroy (cr);
  cairo_surface_flush (surface);
  return surface;
}

static float
cell_x (QuirePageMap *self, guint column)
{
  gboolean rtl = gtk_widget_get_direction (GTK_WIDGET (self)) == GTK_TEXT_DIR_RTL;
  float x = (float)(column * QUIRE_MAP_PITCH_PX);

  return rtl ? (float)self->width - x - QUIRE_MAP_CELL_PX : x;
}

/* Paints a cell at @to, the upper left corner of its place in pixels whose lines are @stride apart. */
static void
paint_cell (QuirePageMap *self, guint index, guchar *to, gsize stride)
{
  Look look = look_of (&self->layout, self->pages, index);
  cairo_surface_t **full = &self->full[look.tier][look.mark], *picture;
  const guchar *from;
  gsize from_stride;

  self->n_painted++;
  if (look.level < 1)
    picture = paint_look (self, &look);
  else
    {
      if (*full == NULL)
        *full = paint_look (self, &look);
      picture = cairo_surface_reference (*full);
    }
  from = cairo_image_surface_get_data (picture);
  from_stride = (gsize)cairo_image_surface_get_stride (picture);
  for (int y = 0; y < cairo_image_surface_get_height (picture); y++)
    memcpy (to + (gsize)y * stride, from + (gsize)y * from_stride,
            (gsize)cairo_image_surface_get_width (picture) * 4);
  cairo_surface_destroy (picture);
}

static int
row_width (QuirePageMap *self)
{
  return (int)self->layout.n_columns * QUIRE_MAP_PITCH_PX
         - (QUIRE_MAP_PITCH_PX - QUIRE_MAP_CELL_PX);
}

/* The row as it was, with the cells that changed. Returns: owned. */
static GdkTexture *
paint_row (QuirePageMap *self, guint row)
{
  gboolean rtl = gtk_widget_get_direction (GTK_WIDGET (self)) == GTK_TEXT_DIR_RTL;
  guint first = row * self->layout.n_columns, n_columns = self->layout.n_columns;
  int scale = gtk_widget_get_scale_factor (GTK_WIDGET (self));
  int width = row_width (self) * scale, height = QUIRE_MAP_CELL_PX * scale;
  gsize stride = (gsize)width * 4;
  guchar *pixels = g_malloc0_n ((gsize)height, stride);
  GdkTexture *before = g_ptr_array_index (self->rows, row);
  g_autoptr (GBytes) bytes = NULL;

  if (before != NULL)
    gdk_texture_download (before, pixels, stride);
  for (guint column = 0; column < n_columns; column++)
    {
      guint at = (rtl ? n_columns - 1 - column : column) * QUIRE_MAP_PITCH_PX * (guint)scale;
      guchar *to = pixels + (gsize)at * 4;

      if (first + column >= self->layout.n_cells)
        for (int y = 0; y < height; y++)
          memset (to + (gsize)y * stride, 0, QUIRE_MAP_CELL_PX * (gsize)scale * 4);
      else if (self->stale->data[first + column])
        {
          paint_cell (self, first + column, to, stride);
          self->stale->data[first + column] = 0;
        }
    }
  bytes = g_bytes_new_take (pixels, (gsize)height * stride);
  return gdk_memory_texture_new (width, height, GDK_MEMORY_DEFAULT, bytes, stride);
}

static void
texture_free (gpointer texture)
{
  if (texture != NULL)
    g_object_unref (texture);
}

static void
forget_row (QuirePageMap *self, guint row)
{
  if (row < self->stale_rows->len)
    self->stale_rows->data[row] = 1;
}

static void
forget_cell (QuirePageMap *self, guint index)
{
  if (index < self->stale->len)
    self->stale->data[index] = 1;
  forget_row (self, index / self->layout.n_columns);
}

static void
set_n_flags (GByteArray *flags, guint n)
{
  guint n_before = flags->len;

  g_byte_array_set_size (flags, n);
  if (n > n_before)
    memset (flags->data + n_before, 1, n - n_before);
}

/* What is new in the layout is to be painted. */
static void
match_layout (QuirePageMap *self)
{
  set_n_flags (self->stale, self->layout.n_cells);
  set_n_flags (self->stale_rows, self->layout.n_rows);
  g_ptr_array_set_size (self->rows, (int)self->layout.n_rows);
}

static void
forget_cells (QuirePageMap *self)
{
  g_byte_array_set_size (self->stale, 0);
  g_byte_array_set_size (self->stale_rows, 0);
  g_ptr_array_set_size (self->rows, 0);
  match_layout (self);
}

/* The style, the direction or the scale is another. */
static void
forget_looks (QuirePageMap *self)
{
  forget_cells (self);
  for (guint tier = 0; tier < QE_N_TIERS; tier++)
    for (guint mark = 0; mark < N_MARKS; mark++)
      g_clear_pointer (&self->full[tier][mark], cairo_surface_destroy);
}

static void
quire_page_map_snapshot (GtkWidget *widget, GtkSnapshot *snapshot)
{
  QuirePageMap *self = QUIRE_PAGE_MAP (widget);

  float x = gtk_widget_get_direction (widget) == GTK_TEXT_DIR_RTL
                ? (float)(self->width - row_width (self))
                : 0;

  for (guint i = 0; i < self->rows->len; i++)
    {
      GdkTexture **row = (GdkTexture **)&g_ptr_array_index (self->rows, i);

      if (self->stale_rows->data[i])
        {
          g_autoptr (GdkTexture) before = *row;

          *row = paint_row (self, i);
          self->stale_rows->data[i] = 0;
        }
      gtk_snapshot_append_texture (snapshot, *row,
                                   &GRAPHENE_RECT_INIT (x, (float)(i * QUIRE_MAP_PITCH_PX),
                                                        (float)row_width (self),
                                                        QUIRE_MAP_CELL_PX));
    }
  if (self->cursor >= 0 && self->cursor < (int)self->layout.n_cells
      && gtk_widget_has_visible_focus (widget))
    {
      guint column = (guint)self->cursor % self->layout.n_columns,
            row = (guint)self->cursor / self->layout.n_columns;
      GdkRGBA color;

      gtk_style_context_get_color (gtk_widget_get_style_context (widget), &color);
      append_outline (snapshot,
                      &GRAPHENE_RECT_INIT (cell_x (self, column) - 2,
                                           (float)(row * QUIRE_MAP_PITCH_PX) - 2,
                                           QUIRE_MAP_CELL_PX + 4, QUIRE_MAP_CELL_PX + 4),
                      2, &color);
    }
}

/* ---- Layout ---- */

static void
relayout (QuirePageMap *self, int width)
{
  guint n_columns = self->layout.n_columns, per_cell = self->layout.pages_per_cell;

  self->width = width;
  quire_map_layout_compute (&self->layout, self->n_pages, width);
  if (n_columns != self->layout.n_columns || per_cell != self->layout.pages_per_cell)
    forget_cells (self);
  else
    match_layout (self);
}

static void
quire_page_map_measure (GtkWidget *widget, GtkOrientation orientation, int for_size, int *minimum,
                        int *natural, int *minimum_baseline, int *natural_baseline)
{
  QuirePageMap *self = QUIRE_PAGE_MAP (widget);
  QuireMapLayout layout;

  *minimum_baseline = *natural_baseline = -1;
  if (orientation == GTK_ORIENTATION_HORIZONTAL)
    {
      *minimum = QUIRE_MAP_PITCH_PX * 8;
      *natural = QUIRE_MAP_PITCH_PX * 30;
      return;
    }
  quire_map_layout_compute (&layout, self->n_pages,
                            for_size > 0 ? for_size : QUIRE_MAP_PITCH_PX * 30);
  *minimum = *natural = (int)MAX (layout.n_rows, 1) * QUIRE_MAP_PITCH_PX - 1;
}

static GtkSizeRequestMode
quire_page_map_get_request_mode (GtkWidget *widget)
{
  return GTK_SIZE_REQUEST_HEIGHT_FOR_WIDTH;
}

static void
quire_page_map_size_allocate (GtkWidget *widget, int width, int height, int baseline)
{
  QuirePageMap *self = QUIRE_PAGE_MAP (widget);
  gboolean moved = self->width != width;

  relayout (self, width);
  if (moved)
    forget_cells (self);
}

/* Whether a cell that is there before and after has other pages, and looks other for it. */
static gboolean
cell_changes (QuirePageMap *self, const QuireMapLayout *layout, const qe_cell *pages, guint index)
{
  guint first = index * layout->pages_per_cell;
  guint n_before = MIN (layout->pages_per_cell, self->n_pages - first),
        n = MIN (layout->pages_per_cell, layout->n_pages - first);
  Look before, after;

  if (n == n_before && memcmp (pages + first, self->pages + first, n * sizeof *pages) == 0)
    return FALSE;
  before = look_of (&self->layout, self->pages, index);
  after = look_of (layout, pages, index);
  return !look_equal (&before, &after);
}

/* Forgets cells that will look other with @pages. Returns: whether there are such cells. */
static gboolean
forget_changed (QuirePageMap *self, const qe_cell *pages, guint n_pages)
{
  QuireMapLayout layout;
  guint n_both;
  gboolean changed;

  quire_map_layout_compute (&layout, n_pages, self->width);
  changed = layout.n_cells != self->layout.n_cells;
  if (layout.pages_per_cell != self->layout.pages_per_cell)
    {
      forget_cells (self);
      return TRUE;
    }
  n_both = MIN (layout.n_cells, self->layout.n_cells);
  for (guint i = 0; i < n_both; i++)
    if (cell_changes (self, &layout, pages, i))
      {
        forget_cell (self, i);
        changed = TRUE;
      }
  /* The row that gets cells, or loses some; rows behind it are made or go as a whole. */
  if (layout.n_cells != self->layout.n_cells)
    forget_row (self, n_both / layout.n_columns);
  return changed;
}

void
quire_page_map_set_pages (QuirePageMap *self, const qe_cell *pages, guint n_pages,
                          const char *title)
{
  guint n_shared = 0, n_rows = self->layout.n_rows;
  QuireMapLayout all = { .n_pages = n_pages, .pages_per_cell = MAX (n_pages, 1) };
  QuireMapCell sum;
  g_autofree char *label = NULL;

  g_return_if_fail (QUIRE_IS_PAGE_MAP (self));

  if (n_pages == self->n_pages
      && (n_pages == 0 || memcmp (pages, self->pages, n_pages * sizeof *pages) == 0))
    return;
  if (forget_changed (self, pages, n_pages))
    gtk_widget_queue_draw (GTK_WIDGET (self));
  if (n_pages != self->n_pages)
    self->pages = g_renew (qe_cell, self->pages, n_pages);
  if (n_pages > 0)
    memcpy (self->pages, pages, n_pages * sizeof *pages);
  self->n_pages = n_pages;
  relayout (self, self->width);
  self->cursor = MIN (self->cursor, (int)self->layout.n_cells - 1);
  for (guint i = 0; i < n_pages; i++)
    n_shared += (pages[i].flags & QE_CELL_SHARED) != 0;
  quire_map_cell_merge (&sum, &all, pages, 0);
  /* Translators: a chat's title, then pages: all, by tier, and those that other chats have too. */
  label = g_strdup_printf (
      ngettext ("Page map of “%s”: %u page; GPU %u, host %u, disk %u; %u shared",
                "Page map of “%s”: %u pages; GPU %u, host %u, disk %u; %u shared", n_pages),
      title, n_pages, sum.by_tier[QE_TIER_GPU], sum.by_tier[QE_TIER_HOST],
      sum.by_tier[QE_TIER_DISK], n_shared);
  gtk_accessible_update_property (GTK_ACCESSIBLE (self), GTK_ACCESSIBLE_PROPERTY_LABEL, label, -1);
  if (n_rows != self->layout.n_rows)
    gtk_widget_queue_resize (GTK_WIDGET (self));
}

guint64
quire_page_map_get_n_painted (QuirePageMap *self)
{
  g_return_val_if_fail (QUIRE_IS_PAGE_MAP (self), 0);
  return self->n_painted;
}

guint
quire_page_map_get_pages_per_cell (QuirePageMap *self)
{
  g_return_val_if_fail (QUIRE_IS_PAGE_MAP (self), 1);
  return self->layout.pages_per_cell;
}

/* ---- Pointer and keyboard ---- */

void
quire_page_map_set_words_func (QuirePageMap *self, QuireTokenWordsFunc func, gpointer user_data)
{
  g_return_if_fail (QUIRE_IS_PAGE_MAP (self));
  self->words_func = func;
  self->words_data = user_data;
}

static char *
describe_cell (QuirePageMap *self, int index)
{
  const char *const tiers[] = { _ ("GPU"), _ ("host memory"), _ ("disk") };
  QuireMapCell cell;
  g_autofree char *words = NULL;
  GString *text = g_string_new (NULL);

  quire_map_cell_merge (&cell, &self->layout, self->pages, (guint)index);
  g_string_append_printf (text, _ ("Tokens %u–%u"), cell.first_token,
                          cell.first_token + MAX (cell.n_tokens, 1) - 1);
  for (guint tier = 0; tier < QE_N_TIERS; tier++)
    if (cell.by_tier[tier] == cell.n_pages)
      g_string_append_printf (text, " · %s", tiers[tier]);
    else if (cell.by_tier[tier] > 0)
      g_string_append_printf (text, " · %s %u", tiers[tier], cell.by_tier[tier]);
  if (cell.shared)
    {
      g_string_append (text, " · ");
      g_string_append_printf (text, ngettext ("shared by %u", "shared by %u", cell.n_refs),
                              cell.n_refs);
    }
  if (cell.moving)
    g_string_append_printf (text, " · %s", _ ("moving to another tier"));
  words = self->words_func != NULL ? self->words_func (cell.first_token, self->words_data) : NULL;
  if (words != NULL)
    /* Translators: the first words of the message that a page of the cache begins in. */
    g_string_append_printf (text, _ (" · “%s”"), words);
  return g_string_free (text, FALSE);
}

char *
quire_page_map_dup_words (QuirePageMap *self, guint cell)
{
  g_return_val_if_fail (QUIRE_IS_PAGE_MAP (self), NULL);
  return describe_cell (self, (int)cell);
}

static gboolean
quire_page_map_query_tooltip (GtkWidget *widget, int x, int y, gboolean keyboard,
                              GtkTooltip *tooltip)
{
  QuirePageMap *self = QUIRE_PAGE_MAP (widget);
  gboolean rtl = gtk_widget_get_direction (widget) == GTK_TEXT_DIR_RTL;
  int cell = keyboard ? self->cursor : quire_map_layout_hit (&self->layout, x, y, self->width, rtl);
  g_autofree char *text = NULL;

  if (cell < 0)
    return FALSE;
  text = describe_cell (self, cell);
  gtk_tooltip_set_text (tooltip, text);
  return TRUE;
}

static gboolean
move_cursor (QuirePageMap *self, int to)
{
  g_autofree char *text = NULL;

  if (self->layout.n_cells == 0)
    return FALSE;
  self->cursor = CLAMP (to, 0, (int)self->layout.n_cells - 1);
  text = describe_cell (self, self->cursor);
  gtk_accessible_update_property (GTK_ACCESSIBLE (self), GTK_ACCESSIBLE_PROPERTY_DESCRIPTION, text,
                                  -1);
  gtk_widget_queue_draw (GTK_WIDGET (self));
  gtk_widget_trigger_tooltip_query (GTK_WIDGET (self));
  return TRUE;
}

static gboolean
activate (QuirePageMap *self, int cell)
{
  QuireMapCell merged;

  if (cell < 0 || cell >= (int)self->layout.n_cells)
    return FALSE;
  quire_map_cell_merge (&merged, &self->layout, self->pages, (guint)cell);
  g_signal_emit (self, activated_signal, 0, (guint)merged.first_token);
  return TRUE;
}

static void
clicked_cb (GtkGestureClick *gesture, int n_press, double x, double y, QuirePageMap *self)
{
  gboolean rtl = gtk_widget_get_direction (GTK_WIDGET (self)) == GTK_TEXT_DIR_RTL;

  activate (self, quire_map_layout_hit (&self->layout, x, y, self->width, rtl));
}

static gboolean
key_pressed_cb (GtkEventControllerKey *controller, guint key, guint code, GdkModifierType state,
                QuirePageMap *self)
{
  int forward = gtk_widget_get_direction (GTK_WIDGET (self)) == GTK_TEXT_DIR_RTL ? -1 : 1;

  if ((state & (GDK_CONTROL_MASK | GDK_ALT_MASK)) != 0)
    return FALSE;
  switch (key)
    {
    case GDK_KEY_Left:
      return move_cursor (self, self->cursor - forward);
    case GDK_KEY_Right:
      return move_cursor (self, self->cursor + forward);
    case GDK_KEY_Up:
      return self->cursor >= (int)self->layout.n_columns
             && move_cursor (self, self->cursor - (int)self->layout.n_columns);
    case GDK_KEY_Down:
      return self->cursor + (int)self->layout.n_columns < (int)self->layout.n_cells
             && move_cursor (self, self->cursor + (int)self->layout.n_columns);
    case GDK_KEY_Home:
      return move_cursor (self, 0);
    case GDK_KEY_End:
      return move_cursor (self, (int)self->layout.n_cells - 1);
    case GDK_KEY_Return:
    case GDK_KEY_KP_Enter:
    case GDK_KEY_space:
      return activate (self, self->cursor);
    default:
      return FALSE;
    }
}

static void
redraw_all (QuirePageMap *self)
{
  forget_looks (self);
  gtk_widget_queue_draw (GTK_WIDGET (self));
}

/* Most changes, as that of a window that gets the focus, change none of its colours. */
static void
quire_page_map_css_changed (GtkWidget *widget, GtkCssStyleChange *change)
{
  QuirePageMap *self = QUIRE_PAGE_MAP (widget);
  static const char *const names[N_COLORS]
      = { "quire_tier_gpu",  "quire_tier_host", "quire_tier_disk",
          "quire_cell_free", "quire_cell_ring", "quire_cell_dot" };
  gboolean changed = FALSE;

  GTK_WIDGET_CLASS (quire_page_map_parent_class)->css_changed (widget, change);
  for (guint i = 0; i < N_COLORS; i++)
    {
      GdkRGBA color;

      lookup_color (widget, names[i], &color);
      changed |= !gdk_rgba_equal (&color, &self->colors[i]);
      self->colors[i] = color;
    }
  if (changed)
    redraw_all (self);
}

static void
quire_page_map_direction_changed (GtkWidget *widget, GtkTextDirection before)
{
  GTK_WIDGET_CLASS (quire_page_map_parent_class)->direction_changed (widget, before);
  redraw_all (QUIRE_PAGE_MAP (widget));
}

static void
quire_page_map_finalize (GObject *object)
{
  QuirePageMap *self = QUIRE_PAGE_MAP (object);

  forget_looks (self);
  g_free (self->pages);
  g_byte_array_unref (self->stale);
  g_byte_array_unref (self->stale_rows);
  g_ptr_array_unref (self->rows);
  G_OBJECT_CLASS (quire_page_map_parent_class)->finalize (object);
}

static void
quire_page_map_class_init (QuirePageMapClass *klass)
{
  GtkWidgetClass *widget_class = GTK_WIDGET_CLASS (klass);

  G_OBJECT_CLASS (klass)->finalize = quire_page_map_finalize;
  widget_class->snapshot = quire_page_map_snapshot;
  widget_class->measure = quire_page_map_measure;
  widget_class->get_request_mode = quire_page_map_get_request_mode;
  widget_class->size_allocate = quire_page_map_size_allocate;
  widget_class->query_tooltip = quire_page_map_query_tooltip;
  widget_class->css_changed = quire_page_map_css_changed;
  widget_class->direction_changed = quire_page_map_direction_changed;
  activated_signal = g_signal_new ("cell-activated", G_TYPE_FROM_CLASS (klass), G_SIGNAL_RUN_LAST,
                                   0, NULL, NULL, NULL, G_TYPE_NONE, 1, G_TYPE_UINT);
  gtk_widget_class_set_css_name (widget_class, "pagemap");
  gtk_widget_class_set_accessible_role (widget_class, GTK_ACCESSIBLE_ROLE_IMG);
}

static void
quire_page_map_init (QuirePageMap *self)
{
  GtkEventController *keys = gtk_event_controller_key_new ();
  GtkGesture *click = gtk_gesture_click_new ();
  AdwStyleManager *style = adw_style_manager_get_default ();

  self->stale = g_byte_array_new ();
  self->stale_rows = g_byte_array_new ();
  self->rows = g_ptr_array_new_with_free_func (texture_free);
  self->cursor = -1;
  quire_map_layout_compute (&self->layout, 0, 0);
  gtk_widget_set_focusable (GTK_WIDGET (self), TRUE);
  gtk_widget_set_has_tooltip (GTK_WIDGET (self), TRUE);
  g_signal_connect (click, "released", G_CALLBACK (clicked_cb), self);
  gtk_widget_add_controller (GTK_WIDGET (self), GTK_EVENT_CONTROLLER (click));
  g_signal_connect (keys, "key-pressed", G_CALLBACK (key_pressed_cb), self);
  gtk_widget_add_controller (GTK_WIDGET (self), keys);
  g_signal_connect (self, "notify::scale-factor", G_CALLBACK (redraw_all), NULL);
  g_signal_connect_object (style, "notify::dark", G_CALLBACK (redraw_all), self, G_CONNECT_SWAPPED);
  g_signal_connect_object (style, "notify::high-contrast", G_CALLBACK (redraw_all), self,
                           G_CONNECT_SWAPPED);
}

GtkWidget *
quire_page_map_new (void)
{
  return g_object_new (QUIRE_TYPE_PAGE_MAP, NULL);
}
