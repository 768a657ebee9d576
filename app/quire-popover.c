/* quire-popover.c: see quire-popover.h. */
#include "app/quire-popover.h"

static gboolean
drop_cb (gpointer user_data)
{
  GtkWidget *popover = user_data;

  /* The window may have gone before, and the popover with it. */
  if (gtk_widget_get_parent (popover) != NULL)
    gtk_widget_unparent (popover);
  return G_SOURCE_REMOVE;
}

void
quire_popover_drop (GtkWidget *popover)
{
  g_idle_add_full (G_PRIORITY_DEFAULT_IDLE, drop_cb, g_object_ref (popover), g_object_unref);
}
