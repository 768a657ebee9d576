/* quire-compare-chart.c: see quire-compare-chart.h. CSS: comparechart; the colours quire_series_1 to _4. */
#include "app/quire-compare-chart.h"

#include <glib/gi18n.h>
#include <math.h>

#include "app/quire-format.h"

#define HEIGHT_PX 200
#define LEFT_PX 64
#define LEGEND_PX 26
#define FOOT_PX 22
#define POINT_PX 4
#define GRID_LINES 5

struct _QuireCompareChart
{
  GtkWidget parent_instance;

  const QuireComparison *comparison;
};

G_DEFINE_FINAL_TYPE (QuireCompareChart, quire_compare_chart, GTK_TYPE_WIDGET)

static void
set_color (GtkWidget *widget, cairo_t *cr, const char *name, double alpha)
{
  GtkStyleContext *context = gtk_widget_get_style_context (widget);
  GdkRGBA color;

  if (name == NULL || !gtk_style_context_lookup_color (context, name, &color))
    gtk_style_context_get_color (context, &color);
  color.alpha *= (float)alpha;
  gdk_cairo_set_source_rgba (cr, &color);
}

static void
set_series (GtkWidget *widget, cairo_t *cr, guint i)
{
  const char *const names[]
      = { "quire_series_1", "quire_series_2", "quire_series_3", "quire_series_4" };

  set_color (widget, cr, names[i % G_N_ELEMENTS (names)], 1);
}

/* Circle, square, triangle, diamond. */
static void
draw_point (cairo_t *cr, guint i, double x, double y)
{
  const double r = POINT_PX;

  cairo_new_path (cr);
  switch (i % 4)
    {
    case 0:
      cairo_arc (cr, x, y, r, 0, 2 * G_PI);
      break;
    case 1:
      cairo_rectangle (cr, x - r, y - r, 2 * r, 2 * r);
      break;
    case 2:
      cairo_move_to (cr, x, y - r - 1);
      cairo_line_to (cr, x + r + 1, y + r);
      cairo_line_to (cr, x - r - 1, y + r);
      break;
    default:
      cairo_move_to (cr, x, y - r - 2);
      cairo_line_to (cr, x + r + 2, y);
      cairo_line_to (cr, x, y + r + 2);
      cairo_line_to (cr, x - r - 2, y);
    }
  cairo_fill (cr);
}

/* Returns: the width. @align: 0 left of x, 0.5 around it, 1 ends at it. */
static int
draw_text (GtkWidget *widget, cairo_t *cr, const char *text, double x, double y, double align)
{
  g_autoptr (PangoLayout) layout = gtk_widget_create_pango_layout (widget, text);
  int width, height;

  pango_layout_get_pixel_size (layout, &width, &height);
  cairo_move_to (cr, x - align * width, y - height / 2.0);
  pango_cairo_show_layout (cr, layout);
  return width;
}

static double
median_at (const QuirePane *pane, guint turn)
{
  return turn < pane->turns->len ? quire_samples_median (
             &g_array_index (pane->turns, QuireComparedTurn, turn).first_token_ms)
                                 : NAN;
}

/* The next of 1, 2, 5, 10… */
static double
round_up (double value)
{
  double step = pow (10, floor (log10 (MAX (value, 0.001))));

  return value <= step       ? step
         : value <= 2 * step ? 2 * step
         : value <= 5 * step ? 5 * step
                             : 10 * step;
}

static void
draw_series (QuireCompareChart *self, cairo_t *cr, guint i, double x0, double dx, double y1,
             double scale, gboolean points)
{
  const QuirePane *pane = quire_comparison_get_pane (self->comparison, i);

  set_series (GTK_WIDGET (self), cr, i);
  cairo_new_path (cr);
  for (guint turn = 0; turn < pane->turns->len; turn++)
    {
      double value = median_at (pane, turn);

      if (isnan (value))
        continue;
      if (points)
        draw_point (cr, i, x0 + dx * turn, y1 - value * scale);
      else
        cairo_line_to (cr, x0 + dx * turn, y1 - value * scale);
    }
  if (!points)
    cairo_stroke (cr);
}

static void
draw_axes (GtkWidget *widget, cairo_t *cr, guint n_turns, double max, int width, double x0,
           double dx, double y0, double y1)
{
  guint each = MAX (1, (guint)ceil (28 / MAX (dx, 1)));

  for (int line = 0; line <= GRID_LINES; line++)
    {
      double y = y1 - (y1 - y0) * line / GRID_LINES, ms = max * line / GRID_LINES;
      g_autofree char *text = max < 10 ? g_strdup_printf (_ ("%.1f ms"), ms) : quire_format_ms (ms);

      set_color (widget, cr, NULL, 0.15);
      cairo_rectangle (cr, LEFT_PX, floor (y), width - LEFT_PX, 1);
      cairo_fill (cr);
      set_color (widget, cr, NULL, 0.7);
      draw_text (widget, cr, text, LEFT_PX - 6, y, 1);
    }
  for (guint turn = 0; turn < n_turns; turn += each)
    {
      g_autofree char *text = g_strdup_printf ("%u", turn + 1);

      draw_text (widget, cr, text, x0 + dx * turn, y1 + FOOT_PX / 2.0, 0.5);
    }
}

static void
quire_compare_chart_snapshot (GtkWidget *widget, GtkSnapshot *snapshot)
{
  QuireCompareChart *self = QUIRE_COMPARE_CHART (widget);
  const QuireComparison *c = self->comparison;
  int width = gtk_widget_get_width (widget), height = gtk_widget_get_height (widget);
  guint n_turns = c != NULL ? c->n_turns : 0;
  double max = 0, x0, dx, y0 = LEGEND_PX + 8, y1 = height - FOOT_PX, x = LEFT_PX;
  cairo_t *cr;

  if (n_turns == 0 || width <= LEFT_PX + 40)
    return;
  for (guint i = 0; i < c->panes->len; i++)
    for (guint turn = 0; turn < n_turns; turn++)
      max = fmax (max, median_at (quire_comparison_get_pane (c, i), turn));
  max = round_up (max);
  dx = n_turns > 1 ? (width - LEFT_PX - 32.0) / (n_turns - 1) : 0;
  x0 = n_turns > 1 ? LEFT_PX + 16 : (LEFT_PX + width) / 2.0;
  cr = gtk_snapshot_append_cairo (snapshot,
                                  &GRAPHENE_RECT_INIT (0, 0, (float)width, (float)height));
  draw_axes (widget, cr, n_turns, max, width, x0, dx, y0, y1);
  cairo_set_line_width (cr, 2);
  for (guint i = 0; i < c->panes->len; i++)
    {
      draw_series (self, cr, i, x0, dx, y1, (y1 - y0) / max, FALSE);
      draw_series (self, cr, i, x0, dx, y1, (y1 - y0) / max, TRUE);
    }
  for (guint i = 0; i < c->panes->len; i++)
    {
      set_series (widget, cr, i);
      draw_point (cr, i, x + POINT_PX, LEGEND_PX / 2.0);
      set_color (widget, cr, NULL, 1);
      x += 14;
      x += 12
           + draw_text (widget, cr,
                        quire_cache_choice_get_title (quire_comparison_get_pane (c, i)->choice), x,
                        LEGEND_PX / 2.0, 0);
    }
  cairo_destroy (cr);
}

static void
quire_compare_chart_measure (GtkWidget *widget, GtkOrientation orientation, int for_size,
                             int *minimum, int *natural, int *minimum_baseline,
                             int *natural_baseline)
{
  *minimum = *natural = orientation == GTK_ORIENTATION_VERTICAL ? HEIGHT_PX : 260;
  *minimum_baseline = *natural_baseline = -1;
}

void
quire_compare_chart_set (QuireCompareChart *self, const QuireComparison *comparison)
{
  self->comparison = comparison;
  gtk_widget_queue_draw (GTK_WIDGET (self));
}

static void
quire_compare_chart_class_init (QuireCompareChartClass *klass)
{
  GtkWidgetClass *widget_class = GTK_WIDGET_CLASS (klass);

  widget_class->snapshot = quire_compare_chart_snapshot;
  widget_class->measure = quire_compare_chart_measure;
  gtk_widget_class_set_css_name (widget_class, "comparechart");
  gtk_widget_class_set_accessible_role (widget_class, GTK_ACCESSIBLE_ROLE_IMG);
}

static void
quire_compare_chart_init (QuireCompareChart *self)
{
  gtk_accessible_update_property (GTK_ACCESSIBLE (self), GTK_ACCESSIBLE_PROPERTY_LABEL,
                                  _ ("First token by turn. The table below has the same figures."),
                                  -1);
}

GtkWidget *
quire_compare_chart_new (void)
{
  return g_object_new (QUIRE_TYPE_COMPARE_CHART, NULL);
}
