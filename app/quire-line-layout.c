/* quire-line-layout.c: see quire-line-layout.h. */
#include "app/quire-line-layout.h"

struct _QuireLineLayout
{
  GtkLayoutManager parent_instance;

  int spacing;
  gboolean snug;
};

G_DEFINE_FINAL_TYPE (QuireLineLayout, quire_line_layout, GTK_TYPE_LAYOUT_MANAGER)

static int
natural_width (GtkWidget *child)
{
  int natural;

  gtk_widget_measure (child, GTK_ORIENTATION_HORIZONTAL, -1, NULL, &natural, NULL, NULL);
  return natural;
}

static GtkWidget *
last_child (GtkWidget *widget)
{
  GtkWidget *child = gtk_widget_get_last_child (widget);

  while (child != NULL && !gtk_widget_should_layout (child))
    child = gtk_widget_get_prev_sibling (child);
  return child;
}

static GtkWidget *
child_before (GtkWidget *child)
{
  do
    child = gtk_widget_get_prev_sibling (child);
  while (child != NULL && !gtk_widget_should_layout (child));
  return child;
}

/* Of the last child, in a line of @width. */
static int
last_width (QuireLineLayout *self, GtkWidget *last, int width)
{
  int minimum, height, snug;

  for (GtkWidget *child = child_before (last); child != NULL; child = child_before (child))
    width -= natural_width (child) + self->spacing;
  gtk_widget_measure (last, GTK_ORIENTATION_HORIZONTAL, -1, &minimum, NULL, NULL, NULL);
  width = MAX (width, minimum);
  if (!self->snug)
    return width;
  gtk_widget_measure (last, GTK_ORIENTATION_VERTICAL, width, &height, NULL, NULL, NULL);
  gtk_widget_measure (last, GTK_ORIENTATION_HORIZONTAL, height, NULL, &snug, NULL, NULL);
  return CLAMP (snug, minimum, width);
}

static void
measure_width (QuireLineLayout *self, GtkWidget *last, int *minimum, int *natural)
{
  for (GtkWidget *child = last; child != NULL; child = child_before (child))
    {
      int child_minimum, child_natural, spacing = child != last ? self->spacing : 0;

      gtk_widget_measure (child, GTK_ORIENTATION_HORIZONTAL, -1, &child_minimum, &child_natural,
                          NULL, NULL);
      *minimum += spacing + (child == last ? child_minimum : child_natural);
      *natural += spacing + child_natural;
    }
}

static void
measure_height (QuireLineLayout *self, GtkWidget *last, int width, int *minimum, int *natural)
{
  for (GtkWidget *child = last; child != NULL; child = child_before (child))
    {
      int child_minimum, child_natural, for_width = -1;

      if (width >= 0)
        for_width = child == last ? last_width (self, child, width) : natural_width (child);
      gtk_widget_measure (child, GTK_ORIENTATION_VERTICAL, for_width, &child_minimum,
                          &child_natural, NULL, NULL);
      *minimum = MAX (*minimum, child_minimum);
      *natural = MAX (*natural, child_natural);
    }
}

static void
quire_line_layout_measure (GtkLayoutManager *manager, GtkWidget *widget, GtkOrientation orientation,
                           int for_size, int *minimum, int *natural, int *minimum_baseline,
                           int *natural_baseline)
{
  QuireLineLayout *self = QUIRE_LINE_LAYOUT (manager);

  *minimum = *natural = 0;
  *minimum_baseline = *natural_baseline = -1;
  if (orientation == GTK_ORIENTATION_HORIZONTAL)
    measure_width (self, last_child (widget), minimum, natural);
  else
    measure_height (self, last_child (widget), for_size, minimum, natural);
}

static void
quire_line_layout_allocate (GtkLayoutManager *manager, GtkWidget *widget, int width, int height,
                            int baseline)
{
  QuireLineLayout *self = QUIRE_LINE_LAYOUT (manager);
  GtkWidget *last = last_child (widget);
  gboolean rtl = gtk_widget_get_direction (widget) == GTK_TEXT_DIR_RTL;
  int end = width;

  /* From the end: the last has its width, the one before it fills the gap to the first ones. */
  for (GtkWidget *child = last; child != NULL; child = child_before (child))
    {
      GtkWidget *before = child_before (child);
      int start = 0;

      if (child == last)
        start = end - last_width (self, child, width);
      else
        for (; before != NULL; before = child_before (before))
          start += natural_width (before) + self->spacing;
      gtk_widget_size_allocate (
          child, &(GtkAllocation){ rtl ? width - end : start, 0, end - start, height }, -1);
      end = start - self->spacing;
    }
}

static GtkSizeRequestMode
quire_line_layout_get_request_mode (GtkLayoutManager *manager, GtkWidget *widget)
{
  return GTK_SIZE_REQUEST_HEIGHT_FOR_WIDTH;
}

static void
quire_line_layout_class_init (QuireLineLayoutClass *klass)
{
  GtkLayoutManagerClass *manager_class = GTK_LAYOUT_MANAGER_CLASS (klass);

  manager_class->measure = quire_line_layout_measure;
  manager_class->allocate = quire_line_layout_allocate;
  manager_class->get_request_mode = quire_line_layout_get_request_mode;
}

static void
quire_line_layout_init (QuireLineLayout *self)
{
}

GtkLayoutManager *
quire_line_layout_new (int spacing, gboolean snug)
{
  QuireLineLayout *self = g_object_new (QUIRE_TYPE_LINE_LAYOUT, NULL);

  self->spacing = spacing;
  self->snug = snug;
  return GTK_LAYOUT_MANAGER (self);
}
