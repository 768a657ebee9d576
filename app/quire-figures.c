/* quire-figures.c: see quire-figures.h.
 *
 * It draws its own text instead of holding a label, for what fits is known only once the width is, and changing a label
 * then would ask for another layout. CSS node: figures. */
#include "app/quire-figures.h"

/* The first figure alone is cut below that. */
#define FIGURE_PX_MIN 336

struct _QuireFigures
{
  GtkWidget parent_instance;

  char **figures;
  PangoLayout *layout;
};

G_DEFINE_FINAL_TYPE (QuireFigures, quire_figures, GTK_TYPE_WIDGET)

/* The layout with the first @n figures. */
static PangoLayout *
layout_of (QuireFigures *self, guint n)
{
  g_autoptr (GString) line = g_string_new (NULL);

  for (guint i = 0; i < n && self->figures[i] != NULL; i++)
    g_string_append_printf (line, "%s%s", i > 0 ? " · " : "", self->figures[i]);
  if (self->layout == NULL)
    self->layout = gtk_widget_create_pango_layout (GTK_WIDGET (self), NULL);
  pango_layout_set_text (self->layout, line->str, (int)line->len);
  return self->layout;
}

static int
width_of (QuireFigures *self, guint n)
{
  int width;

  pango_layout_get_pixel_size (layout_of (self, n), &width, NULL);
  return width;
}

guint
quire_figures_count_fitting (QuireFigures *self, int width)
{
  guint n = g_strv_length (self->figures);

  while (n > 1 && width_of (self, n) > width)
    n--;
  return n;
}

const char *const *
quire_figures_get (QuireFigures *self)
{
  return (const char *const *)self->figures;
}

int
quire_figures_get_fitting_width (QuireFigures *self, int width)
{
  return width_of (self, quire_figures_count_fitting (self, width));
}

gboolean
quire_figures_is_cut (QuireFigures *self)
{
  return width_of (self, 1) > gtk_widget_get_width (GTK_WIDGET (self));
}

void
quire_figures_set (QuireFigures *self, const char *const *figures)
{
  g_autofree char *line = NULL;

  if (g_strv_equal ((const char *const *)self->figures, figures))
    return;
  g_strfreev (self->figures);
  self->figures = g_strdupv ((char **)figures);
  line = g_strjoinv (" · ", self->figures);
  gtk_accessible_update_property (GTK_ACCESSIBLE (self), GTK_ACCESSIBLE_PROPERTY_LABEL, line, -1);
  gtk_widget_queue_resize (GTK_WIDGET (self));
}

static void
quire_figures_measure (GtkWidget *widget, GtkOrientation orientation, int for_size, int *minimum,
                       int *natural, int *minimum_baseline, int *natural_baseline)
{
  QuireFigures *self = QUIRE_FIGURES (widget);

  if (orientation == GTK_ORIENTATION_HORIZONTAL)
    {
      /* Words of another language may be long: they are cut before they widen the window. */
      *minimum = MIN (width_of (self, 1), FIGURE_PX_MIN);
      *natural = width_of (self, g_strv_length (self->figures));
      return;
    }
  pango_layout_get_pixel_size (layout_of (self, 1), NULL, natural);
  *minimum = *natural;
}

static void
quire_figures_snapshot (GtkWidget *widget, GtkSnapshot *snapshot)
{
  QuireFigures *self = QUIRE_FIGURES (widget);
  int width = gtk_widget_get_width (widget);
  PangoLayout *layout = layout_of (self, quire_figures_count_fitting (self, width));
  gboolean rtl = gtk_widget_get_direction (widget) == GTK_TEXT_DIR_RTL;
  int text_width, text_height;

  pango_layout_get_pixel_size (layout, &text_width, &text_height);
  if (text_width > width)
    {
      pango_layout_set_ellipsize (layout, PANGO_ELLIPSIZE_END);
      pango_layout_set_width (layout, width * PANGO_SCALE);
      pango_layout_get_pixel_size (layout, &text_width, &text_height);
    }
  gtk_snapshot_render_layout (snapshot, gtk_widget_get_style_context (widget),
                              rtl ? width - text_width : 0,
                              (gtk_widget_get_height (widget) - text_height) / 2, layout);
  pango_layout_set_width (layout, -1); /* the next one is measured */
}

static void
drop_layout (QuireFigures *self)
{
  g_clear_object (&self->layout);
}

static void
quire_figures_css_changed (GtkWidget *widget, GtkCssStyleChange *change)
{
  GTK_WIDGET_CLASS (quire_figures_parent_class)->css_changed (widget, change);
  drop_layout (QUIRE_FIGURES (widget));
  gtk_widget_queue_resize (widget);
}

static void
quire_figures_system_setting_changed (GtkWidget *widget, GtkSystemSetting setting)
{
  GTK_WIDGET_CLASS (quire_figures_parent_class)->system_setting_changed (widget, setting);
  drop_layout (QUIRE_FIGURES (widget));
  gtk_widget_queue_resize (widget);
}

static void
quire_figures_finalize (GObject *object)
{
  QuireFigures *self = QUIRE_FIGURES (object);

  drop_layout (self);
  g_strfreev (self->figures);
  G_OBJECT_CLASS (quire_figures_parent_class)->finalize (object);
}

static void
quire_figures_class_init (QuireFiguresClass *klass)
{
  GtkWidgetClass *widget_class = GTK_WIDGET_CLASS (klass);

  G_OBJECT_CLASS (klass)->finalize = quire_figures_finalize;
  widget_class->measure = quire_figures_measure;
  widget_class->snapshot = quire_figures_snapshot;
  widget_class->css_changed = quire_figures_css_changed;
  widget_class->system_setting_changed = quire_figures_system_setting_changed;
  gtk_widget_class_set_css_name (widget_class, "figures");
  gtk_widget_class_set_accessible_role (widget_class, GTK_ACCESSIBLE_ROLE_LABEL);
}

static void
quire_figures_init (QuireFigures *self)
{
  self->figures = g_new0 (char *, 1);
}

GtkWidget *
quire_figures_new (void)
{
  return g_object_new (QUIRE_TYPE_FIGURES, NULL);
}
