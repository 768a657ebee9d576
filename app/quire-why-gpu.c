/* quire-why-gpu.c: see quire-why-gpu.h. */
#include "app/quire-why-gpu.h"

#include <adwaita.h>
#include <glib/gi18n.h>

#include "engine/qe.h"

static void
list_thread (GTask *task, gpointer source, gpointer data, GCancellable *cancellable)
{
  g_task_return_pointer (task, qe_list_backends (), (GDestroyNotify)g_ptr_array_unref);
}

static GtkWidget *
backend_row_new (const qe_backend_desc *backend)
{
  GtkWidget *row = adw_action_row_new ();
  g_autofree char *name = g_ascii_strup (backend->name, -1);
  GtkWidget *icon = gtk_image_new_from_icon_name (
      backend->reason == NULL ? "object-select-symbolic" : "dialog-warning-symbolic");

  adw_preferences_row_set_use_markup (ADW_PREFERENCES_ROW (row), FALSE);
  adw_preferences_row_set_title (ADW_PREFERENCES_ROW (row), name);
  adw_action_row_set_subtitle (ADW_ACTION_ROW (row),
                               backend->reason != NULL ? backend->reason : backend->device);
  adw_action_row_set_subtitle_lines (ADW_ACTION_ROW (row), 0);
  gtk_accessible_update_property (GTK_ACCESSIBLE (icon), GTK_ACCESSIBLE_PROPERTY_LABEL,
                                  backend->reason == NULL ? _ ("Available") : _ ("Not available"),
                                  -1);
  adw_action_row_add_prefix (ADW_ACTION_ROW (row), icon);
  return row;
}

static void
listed_cb (GObject *source, GAsyncResult *result, gpointer user_data)
{
  g_autoptr (GtkWindow) parent = user_data;
  g_autoptr (GPtrArray) backends = g_task_propagate_pointer (G_TASK (result), NULL);
  GtkWidget *window;
  GtkWidget *page = adw_preferences_page_new ();
  GtkWidget *group = adw_preferences_group_new ();

  if (backends == NULL || !gtk_widget_get_realized (GTK_WIDGET (parent)))
    {
      g_object_ref_sink (page);
      g_object_unref (page);
      g_object_ref_sink (group);
      g_object_unref (group);
      return;
    }
  window = adw_preferences_window_new ();
  adw_preferences_group_set_title (ADW_PREFERENCES_GROUP (group), _ ("Where Quire Can Compute"));
  adw_preferences_group_set_description (
      ADW_PREFERENCES_GROUP (group),
      _ ("A model runs on one of these. The CPU is always there; a GPU is faster."));
  for (guint i = 0; i < backends->len; i++)
    adw_preferences_group_add (ADW_PREFERENCES_GROUP (group),
                               backend_row_new (g_ptr_array_index (backends, i)));
  adw_preferences_page_add (ADW_PREFERENCES_PAGE (page), ADW_PREFERENCES_GROUP (group));
  adw_preferences_window_add (ADW_PREFERENCES_WINDOW (window), ADW_PREFERENCES_PAGE (page));
  adw_preferences_window_set_search_enabled (ADW_PREFERENCES_WINDOW (window), FALSE);
  gtk_window_set_title (GTK_WINDOW (window), _ ("Processors"));
  gtk_window_set_default_size (GTK_WINDOW (window), 480, 320);
  gtk_window_set_transient_for (GTK_WINDOW (window), parent);
  gtk_window_set_modal (GTK_WINDOW (window), TRUE);
  /* Closed, it lives on as long as an event holds it, perhaps longer than its parent: it must not look back then. */
  g_signal_connect (window, "unrealize", G_CALLBACK (gtk_window_set_transient_for), NULL);
  gtk_window_present (GTK_WINDOW (window));
}

void
quire_why_gpu_present (GtkWindow *parent)
{
  g_autoptr (GTask) task = g_task_new (NULL, NULL, listed_cb, g_object_ref (parent));

  g_task_run_in_thread (task, list_thread);
}
