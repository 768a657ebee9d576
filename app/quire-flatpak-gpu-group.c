/* quire-flatpak-gpu-group.c: see quire-flatpak-gpu-group.h. */
#include "app/quire-flatpak-gpu-group.h"

#include <adwaita.h>
#include <glib/gi18n.h>

#include "app/quire-flatpak-gpu.h"

static void
copy_cb (GtkButton *button, gpointer command)
{
  gdk_clipboard_set_text (gtk_widget_get_clipboard (GTK_WIDGET (button)), command);
  gtk_button_set_icon_name (button, "object-select-symbolic");
}

static GtkWidget *
problem_row_new (const QuireFlatpakGpuProblem *problem)
{
  GtkWidget *row = adw_action_row_new ();
  GtkWidget *copy;

  adw_preferences_row_set_use_markup (ADW_PREFERENCES_ROW (row), FALSE);
  adw_preferences_row_set_title (ADW_PREFERENCES_ROW (row), problem->reason);
  adw_action_row_set_title_lines (ADW_ACTION_ROW (row), 0);
  adw_action_row_set_subtitle (ADW_ACTION_ROW (row), problem->command);
  adw_action_row_set_subtitle_lines (ADW_ACTION_ROW (row), 0);
  copy = gtk_button_new_from_icon_name ("edit-copy-symbolic");
  gtk_widget_set_valign (copy, GTK_ALIGN_CENTER);
  gtk_widget_add_css_class (copy, "flat");
  gtk_widget_set_tooltip_text (copy, _ ("Copy Command"));
  gtk_accessible_update_property (GTK_ACCESSIBLE (copy), GTK_ACCESSIBLE_PROPERTY_LABEL,
                                  _ ("Copy Command"), -1);
  g_signal_connect_data (copy, "clicked", G_CALLBACK (copy_cb), g_strdup (problem->command),
                         (GClosureNotify)(GCallback)g_free, 0);
  adw_action_row_add_suffix (ADW_ACTION_ROW (row), copy);
  adw_action_row_set_activatable_widget (ADW_ACTION_ROW (row), copy);
  return row;
}

GtkWidget *
quire_flatpak_gpu_group_new (void)
{
  const GPtrArray *problems = quire_flatpak_gpu_get_problems ();
  GtkWidget *group = NULL;

  for (guint i = 0; problems != NULL && i < problems->len; i++)
    {
      const QuireFlatpakGpuProblem *problem = g_ptr_array_index (problems, i);

      if (problem->command == NULL)
        continue;
      if (group == NULL)
        group = adw_preferences_group_new ();
      adw_preferences_group_add (ADW_PREFERENCES_GROUP (group), problem_row_new (problem));
    }
  if (group == NULL)
    return NULL;
  adw_preferences_group_set_title (ADW_PREFERENCES_GROUP (group),
                                   _ ("Missing for the Graphics Card"));
  adw_preferences_group_set_description (
      ADW_PREFERENCES_GROUP (group),
      _ ("Run the commands in a terminal, then close Quire and start it again."));
  return group;
}
