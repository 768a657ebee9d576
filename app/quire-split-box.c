/* quire-split-box.c: see quire-split-box.h. */
#include "app/quire-split-box.h"

#define SPACING_PX 6
/* Narrower than this, and than they would like to be, words are better off in lines of their own. */
#define WORDS_PX_MIN 220

static GtkSizeRequestMode
get_mode (GtkWidget *widget)
{
  return GTK_SIZE_REQUEST_HEIGHT_FOR_WIDTH;
}

/* Width of the buttons, 0 when there are none to show. */
static int
buttons_width (GtkWidget *buttons, int *least)
{
  int natural = 0;

  *least = 0;
  if (gtk_widget_should_layout (buttons))
    gtk_widget_measure (buttons, GTK_ORIENTATION_HORIZONTAL, -1, least, &natural, NULL, NULL);
  return natural;
}

static gboolean
is_beside (GtkWidget *words, int width, int end)
{
  int least, natural;

  gtk_widget_measure (words, GTK_ORIENTATION_HORIZONTAL, -1, &least, &natural, NULL, NULL);
  return width < 0 || end == 0
         || width - end - SPACING_PX >= MAX (least, MIN (natural, WORDS_PX_MIN));
}

static int
height_for (GtkWidget *child, int width)
{
  int height = 0;

  if (gtk_widget_should_layout (child))
    gtk_widget_measure (child, GTK_ORIENTATION_VERTICAL, width, NULL, &height, NULL, NULL);
  return height;
}

static void
measure (GtkWidget *widget, GtkOrientation orientation, int for_size, int *minimum, int *natural,
         int *minimum_baseline, int *natural_baseline)
{
  GtkWidget *words = gtk_widget_get_first_child (widget),
            *buttons = gtk_widget_get_last_child (widget);
  int least, end = buttons_width (buttons, &least), space = end > 0 ? SPACING_PX : 0;

  if (orientation == GTK_ORIENTATION_HORIZONTAL)
    {
      gtk_widget_measure (words, orientation, -1, minimum, natural, NULL, NULL);
      *minimum = MAX (*minimum, least);
      *natural += space + end;
    }
  else if (is_beside (words, for_size, end))
    *minimum = *natural = MAX (height_for (words, for_size < 0 ? -1 : for_size - end - space),
                               height_for (buttons, end));
  else
    *minimum = *natural
        = height_for (words, for_size) + SPACING_PX + height_for (buttons, MIN (end, for_size));
}

static void
allocate (GtkWidget *widget, int width, int height, int baseline)
{
  GtkWidget *words = gtk_widget_get_first_child (widget),
            *buttons = gtk_widget_get_last_child (widget);
  gboolean rtl = gtk_widget_get_direction (widget) == GTK_TEXT_DIR_RTL;
  int least, end = buttons_width (buttons, &least), space = end > 0 ? SPACING_PX : 0;
  GtkAllocation first = { 0, 0, width, height }, second = { 0, 0, MIN (end, width), height };

  if (is_beside (words, width, end))
    first.width -= end + space;
  else
    {
      first.height = height_for (words, width);
      second.y = first.height + SPACING_PX;
      second.height = height - second.y;
    }
  first.x = rtl ? width - first.width : 0;
  second.x = rtl ? 0 : width - second.width;
  gtk_widget_size_allocate (words, &first, -1);
  if (end > 0)
    gtk_widget_size_allocate (buttons, &second, -1);
}

GtkWidget *
quire_split_box_new (GtkWidget *words, GtkWidget *buttons)
{
  GtkWidget *box = gtk_box_new (GTK_ORIENTATION_HORIZONTAL, 0);

  gtk_widget_set_layout_manager (box, gtk_custom_layout_new (get_mode, measure, allocate));
  gtk_box_append (GTK_BOX (box), words);
  gtk_box_append (GTK_BOX (box), buttons);
  return box;
}
