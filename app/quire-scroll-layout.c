/* quire-scroll-layout.c: see quire-scroll-layout.h. */
#include "app/quire-scroll-layout.h"

struct _QuireScrollLayout
{
  GtkLayoutManager parent_instance;
};

G_DEFINE_FINAL_TYPE (QuireScrollLayout, quire_scroll_layout, GTK_TYPE_LAYOUT_MANAGER)

static void
quire_scroll_layout_measure (GtkLayoutManager *manager, GtkWidget *widget,
                             GtkOrientation orientation, int for_size, int *minimum, int *natural,
                             int *minimum_baseline, int *natural_baseline)
{
  GtkWidget *scrolled = gtk_widget_get_first_child (widget);

  *minimum_baseline = *natural_baseline = -1;
  if (orientation == GTK_ORIENTATION_HORIZONTAL)
    {
      gtk_widget_measure (scrolled, orientation, -1, minimum, natural, NULL, NULL);
      return;
    }
  /* Its scroll bar has to have room. */
  gtk_widget_measure (gtk_scrolled_window_get_vscrollbar (GTK_SCROLLED_WINDOW (scrolled)),
                      orientation, -1, minimum, NULL, NULL, NULL);
  *natural = *minimum;
}

static void
quire_scroll_layout_allocate (GtkLayoutManager *manager, GtkWidget *widget, int width, int height,
                              int baseline)
{
  gtk_widget_allocate (gtk_widget_get_first_child (widget), width, height, -1, NULL);
}

static GtkSizeRequestMode
quire_scroll_layout_get_request_mode (GtkLayoutManager *manager, GtkWidget *widget)
{
  return GTK_SIZE_REQUEST_CONSTANT_SIZE;
}

static void
quire_scroll_layout_class_init (QuireScrollLayoutClass *klass)
{
  GtkLayoutManagerClass *manager_class = GTK_LAYOUT_MANAGER_CLASS (klass);

  manager_class->measure = quire_scroll_layout_measure;
  manager_class->allocate = quire_scroll_layout_allocate;
  manager_class->get_request_mode = quire_scroll_layout_get_request_mode;
}

static void
quire_scroll_layout_init (QuireScrollLayout *self)
{
}

GtkLayoutManager *
quire_scroll_layout_new (void)
{
  return g_object_new (QUIRE_TYPE_SCROLL_LAYOUT, NULL);
}
