/* quire-wrap-layout.c: see quire-wrap-layout.h. A child that is wider than the widget gets all of its width. Children of a
 * line are as high as the line, and place themselves in it. */
#include "app/quire-wrap-layout.h"

struct _QuireWrapLayout
{
  GtkLayoutManager parent_instance;

  int spacing;
  gboolean at_end;
};

G_DEFINE_FINAL_TYPE (QuireWrapLayout, quire_wrap_layout, GTK_TYPE_LAYOUT_MANAGER)

static GtkSizeRequestMode
quire_wrap_layout_get_request_mode (GtkLayoutManager *manager, GtkWidget *widget)
{
  return GTK_SIZE_REQUEST_HEIGHT_FOR_WIDTH;
}

static int
child_width (GtkWidget *child, int width)
{
  int minimum, natural;

  gtk_widget_measure (child, GTK_ORIENTATION_HORIZONTAL, -1, &minimum, &natural, NULL, NULL);
  return CLAMP (width, minimum, natural);
}

static int
child_height (GtkWidget *child, int width)
{
  int natural;

  gtk_widget_measure (child, GTK_ORIENTATION_VERTICAL, width, NULL, &natural, NULL, NULL);
  return natural;
}

static GtkWidget *
next_shown (GtkWidget *child)
{
  while (child != NULL && !gtk_widget_should_layout (child))
    child = gtk_widget_get_next_sibling (child);
  return child;
}

/* The line that begins with @first: its width, height and what comes after it. */
static GtkWidget *
measure_line (QuireWrapLayout *self, GtkWidget *first, int width, int *line_width, int *line_height)
{
  GtkWidget *child = first;
  int x = 0, height = 0;

  while (child != NULL)
    {
      int w = child_width (child, width);

      if (child != first && x + self->spacing + w > width)
        break;
      x += (child != first ? self->spacing : 0) + w;
      height = MAX (height, child_height (child, w));
      child = next_shown (gtk_widget_get_next_sibling (child));
    }
  *line_width = x;
  *line_height = height;
  return child;
}

static void
quire_wrap_layout_measure (GtkLayoutManager *manager, GtkWidget *widget, GtkOrientation orientation,
                           int for_size, int *minimum, int *natural, int *minimum_baseline,
                           int *natural_baseline)
{
  QuireWrapLayout *self = QUIRE_WRAP_LAYOUT (manager);
  GtkWidget *child = next_shown (gtk_widget_get_first_child (widget));
  int n = 0;

  *minimum = *natural = 0;
  if (orientation == GTK_ORIENTATION_HORIZONTAL)
    {
      for (; child != NULL; child = next_shown (gtk_widget_get_next_sibling (child)))
        {
          int child_minimum, child_natural;

          gtk_widget_measure (child, orientation, -1, &child_minimum, &child_natural, NULL, NULL);
          *minimum = MAX (*minimum, child_minimum);
          *natural += child_natural + (n++ > 0 ? self->spacing : 0);
        }
      return;
    }
  while (child != NULL)
    {
      int width, height;

      child = measure_line (self, child, for_size < 0 ? G_MAXINT : for_size, &width, &height);
      *natural += height + (n++ > 0 ? self->spacing : 0);
    }
  *minimum = *natural;
}

static void
quire_wrap_layout_allocate (GtkLayoutManager *manager, GtkWidget *widget, int width, int height,
                            int baseline)
{
  QuireWrapLayout *self = QUIRE_WRAP_LAYOUT (manager);
  gboolean rtl = gtk_widget_get_direction (widget) == GTK_TEXT_DIR_RTL;
  GtkWidget *child = next_shown (gtk_widget_get_first_child (widget));
  int y = 0;

  while (child != NULL)
    {
      int line_width, line_height, x;
      GtkWidget *end = measure_line (self, child, width, &line_width, &line_height);

      x = self->at_end ? width - line_width : 0;
      for (; child != end; child = next_shown (gtk_widget_get_next_sibling (child)))
        {
          int w = child_width (child, width);
          GtkAllocation place = { rtl ? width - x - w : x, y, w, line_height };

          gtk_widget_size_allocate (child, &place, -1);
          x += w + self->spacing;
        }
      y += line_height + self->spacing;
    }
}

static void
quire_wrap_layout_class_init (QuireWrapLayoutClass *klass)
{
  GtkLayoutManagerClass *layout_class = GTK_LAYOUT_MANAGER_CLASS (klass);

  layout_class->get_request_mode = quire_wrap_layout_get_request_mode;
  layout_class->measure = quire_wrap_layout_measure;
  layout_class->allocate = quire_wrap_layout_allocate;
}

static void
quire_wrap_layout_init (QuireWrapLayout *self)
{
}

GtkLayoutManager *
quire_wrap_layout_new (int spacing, gboolean at_end)
{
  QuireWrapLayout *self = g_object_new (QUIRE_TYPE_WRAP_LAYOUT, NULL);

  self->spacing = spacing;
  self->at_end = at_end;
  return GTK_LAYOUT_MANAGER (self);
}

GtkWidget *
quire_wrap_box_new (int spacing, gboolean at_end)
{
  GtkWidget *box = gtk_box_new (GTK_ORIENTATION_HORIZONTAL, 0);

  gtk_widget_set_layout_manager (box, quire_wrap_layout_new (spacing, at_end));
  return box;
}
