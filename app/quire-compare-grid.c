/* quire-compare-grid.c: see quire-compare-grid.h. CSS: comparegrid. */
#include "app/quire-compare-grid.h"

#include "app/quire-comparison.h"

struct _QuireCompareGrid
{
  GtkWidget parent_instance;

  guint columns, chosen;
  guint idle_id;
};

G_DEFINE_FINAL_TYPE (QuireCompareGrid, quire_compare_grid, GTK_TYPE_WIDGET)

static guint columns_signal;

static guint
count (QuireCompareGrid *self)
{
  guint n = 0;

  for (GtkWidget *child = gtk_widget_get_first_child (GTK_WIDGET (self)); child != NULL;
       child = gtk_widget_get_next_sibling (child))
    n++;
  return n;
}

/* Which panes are there for the keyboard and the screen reader too. */
static void
show_children (QuireCompareGrid *self)
{
  guint i = 0;

  for (GtkWidget *child = gtk_widget_get_first_child (GTK_WIDGET (self)); child != NULL;
       child = gtk_widget_get_next_sibling (child))
    gtk_widget_set_child_visible (child, self->columns > 1 || i++ == self->chosen);
}

static gboolean
changed_cb (gpointer user_data)
{
  QuireCompareGrid *self = user_data;

  self->idle_id = 0;
  g_signal_emit (self, columns_signal, 0);
  return G_SOURCE_REMOVE;
}

static GtkSizeRequestMode
quire_compare_grid_get_request_mode (GtkWidget *widget)
{
  return GTK_SIZE_REQUEST_HEIGHT_FOR_WIDTH;
}

static void
quire_compare_grid_measure (GtkWidget *widget, GtkOrientation orientation, int for_size,
                            int *minimum, int *natural, int *minimum_baseline,
                            int *natural_baseline)
{
  QuireCompareGrid *self = QUIRE_COMPARE_GRID (widget);
  guint n = count (self), columns = quire_compare_columns (for_size > 0 ? for_size : 0, n);
  guint rows = columns > 1 ? (n + columns - 1) / columns : 1;
  int width = for_size > 0 ? (for_size - QUIRE_PANE_GAP * ((int)columns - 1)) / (int)columns : -1;

  *minimum = *natural = 0;
  *minimum_baseline = *natural_baseline = -1;
  for (GtkWidget *child = gtk_widget_get_first_child (widget); child != NULL;
       child = gtk_widget_get_next_sibling (child))
    {
      int least, wanted;

      gtk_widget_measure (child, orientation, orientation == GTK_ORIENTATION_VERTICAL ? width : -1,
                          &least, &wanted, NULL, NULL);
      *minimum = MAX (*minimum, least);
      *natural = MAX (*natural, wanted);
    }
  if (orientation == GTK_ORIENTATION_VERTICAL)
    {
      *minimum = *minimum * (int)rows + QUIRE_PANE_GAP * ((int)rows - 1);
      *natural = *natural * (int)rows + QUIRE_PANE_GAP * ((int)rows - 1);
    }
  else
    *natural = *natural * (int)MAX (n, 1) + QUIRE_PANE_GAP * ((int)MAX (n, 1) - 1);
}

static void
quire_compare_grid_size_allocate (GtkWidget *widget, int width, int height, int baseline)
{
  QuireCompareGrid *self = QUIRE_COMPARE_GRID (widget);
  guint n = count (self), columns = quire_compare_columns (width, n), i = 0;
  int rows = columns > 1 ? (int)((n + columns - 1) / columns) : 1;
  int child_width = (width - QUIRE_PANE_GAP * ((int)columns - 1)) / (int)columns;
  int child_height = (height - QUIRE_PANE_GAP * (rows - 1)) / rows;
  gboolean rtl = gtk_widget_get_direction (widget) == GTK_TEXT_DIR_RTL;

  if (columns != self->columns)
    {
      self->columns = columns;
      show_children (self);
      if (self->idle_id == 0)
        self->idle_id = g_idle_add (changed_cb, self);
    }
  for (GtkWidget *child = gtk_widget_get_first_child (widget); child != NULL;
       child = gtk_widget_get_next_sibling (child), i++)
    {
      guint place = columns > 1 ? i : 0;
      int column = (int)(place % columns), row = (int)(place / columns);
      GtkAllocation allocation
          = { (rtl ? (int)columns - 1 - column : column) * (child_width + QUIRE_PANE_GAP),
              row * (child_height + QUIRE_PANE_GAP), child_width, child_height };
      int least;

      if (!gtk_widget_get_child_visible (child))
        continue;
      gtk_widget_measure (child, GTK_ORIENTATION_HORIZONTAL, -1, &least, NULL, NULL, NULL);
      allocation.width = MAX (allocation.width, least);
      gtk_widget_size_allocate (child, &allocation, -1);
    }
}

guint
quire_compare_grid_get_columns (QuireCompareGrid *self)
{
  return self->columns;
}

void
quire_compare_grid_choose (QuireCompareGrid *self, guint i)
{
  if (self->chosen == i)
    return;
  self->chosen = i;
  show_children (self);
  gtk_widget_queue_resize (GTK_WIDGET (self));
}

void
quire_compare_grid_clear (QuireCompareGrid *self)
{
  GtkWidget *child;

  while ((child = gtk_widget_get_first_child (GTK_WIDGET (self))) != NULL)
    gtk_widget_unparent (child);
  self->chosen = 0;
}

void
quire_compare_grid_add (QuireCompareGrid *self, GtkWidget *pane)
{
  gtk_widget_set_parent (pane, GTK_WIDGET (self));
  show_children (self);
}

static void
quire_compare_grid_dispose (GObject *object)
{
  QuireCompareGrid *self = QUIRE_COMPARE_GRID (object);

  g_clear_handle_id (&self->idle_id, g_source_remove);
  quire_compare_grid_clear (self);
  G_OBJECT_CLASS (quire_compare_grid_parent_class)->dispose (object);
}

static void
quire_compare_grid_class_init (QuireCompareGridClass *klass)
{
  GtkWidgetClass *widget_class = GTK_WIDGET_CLASS (klass);

  G_OBJECT_CLASS (klass)->dispose = quire_compare_grid_dispose;
  widget_class->get_request_mode = quire_compare_grid_get_request_mode;
  widget_class->measure = quire_compare_grid_measure;
  widget_class->size_allocate = quire_compare_grid_size_allocate;
  gtk_widget_class_set_css_name (widget_class, "comparegrid");
  columns_signal = g_signal_new ("columns-changed", G_TYPE_FROM_CLASS (klass), G_SIGNAL_RUN_LAST, 0,
                                 NULL, NULL, NULL, G_TYPE_NONE, 0);
}

static void
quire_compare_grid_init (QuireCompareGrid *self)
{
  self->columns = 1;
}

GtkWidget *
quire_compare_grid_new (void)
{
  return g_object_new (QUIRE_TYPE_COMPARE_GRID, NULL);
}
