/* quire-models-window.c: see quire-models-window.h.
 *
 * Two groups: what the engine has (loads, gave back), and the rest of the list. Rows change groups as models come and go.
 * Folders come from the file chooser or by drag and drop, in a sandbox through the portal. */
#include "app/quire-models-window.h"

#include <glib/gi18n.h>

#include "app/quire-model-row.h"
#include "app/quire-settings.h"
#include "app/quire-toast.h"
#include "app/quire-widget.h"
#include "app/quire-window.h"

struct _QuireModelsWindow
{
  AdwWindow parent_instance;

  QuireApplication *application;
  QuireEngineClient *client;
  QuireModelList *list;
  AdwToastOverlay *toasts;
  AdwPreferencesGroup *current, *others;
  GPtrArray *rows; /* QuireModelRow, owned, as the list has them */
  GtkWidget *release;
  GtkFileChooserNative *chooser;
};

G_DEFINE_FINAL_TYPE (QuireModelsWindow, quire_models_window, ADW_TYPE_WINDOW)

QuireModelList *
quire_models_window_get_list (QuireModelsWindow *self)
{
  return self->list;
}

/* ---- Rows ---- */

static AdwPreferencesGroup *
group_for (QuireModelsWindow *self, QuireModelRow *row)
{
  qe_engine_state state = quire_engine_client_get_status (self->client)->state;

  return quire_model_row_is_current (row) && state != QE_ENGINE_EMPTY && state != QE_ENGINE_FAILED
             ? self->current
             : self->others;
}

/* In the order of the list. All are taken out first: a group only appends. */
static void
arrange (QuireModelsWindow *self)
{
  gboolean moved = FALSE, any = FALSE;

  for (guint i = 0; i < self->rows->len; i++)
    {
      GtkWidget *row = g_ptr_array_index (self->rows, i);
      GtkWidget *group = GTK_WIDGET (group_for (self, QUIRE_MODEL_ROW (row)));

      any |= group == GTK_WIDGET (self->current);
      moved |= gtk_widget_get_ancestor (row, ADW_TYPE_PREFERENCES_GROUP) != group;
    }
  gtk_widget_set_visible (GTK_WIDGET (self->current), any);
  gtk_widget_set_visible (self->release, quire_engine_client_is_ready (self->client));
  if (!moved)
    return;
  for (guint i = 0; i < self->rows->len; i++)
    {
      GtkWidget *row = g_ptr_array_index (self->rows, i);
      GtkWidget *group = gtk_widget_get_ancestor (row, ADW_TYPE_PREFERENCES_GROUP);

      if (group != NULL)
        adw_preferences_group_remove (ADW_PREFERENCES_GROUP (group), row);
    }
  for (guint i = 0; i < self->rows->len; i++)
    {
      GtkWidget *row = g_ptr_array_index (self->rows, i);

      adw_preferences_group_add (group_for (self, QUIRE_MODEL_ROW (row)), row);
    }
}

static void
load_cb (QuireModelsWindow *self, QuireModelRow *row)
{
  const char *dir = quire_model_item_get_dir (quire_model_row_get_item (row));
  qe_engine_state state = quire_engine_client_get_status (self->client)->state;

  if (quire_model_row_is_current (row) && (state == QE_ENGINE_RELEASED || state == QE_ENGINE_LOST))
    quire_engine_client_recover (self->client);
  else
    quire_application_load_model (self->application, dir);
}

static void
unload_cb (QuireModelsWindow *self)
{
  quire_engine_client_unload (self->client);
}

static void
remove_cb (QuireModelsWindow *self, QuireModelRow *row)
{
  g_autoptr (QuireModelItem) item = g_object_ref (quire_model_row_get_item (row));

  quire_model_list_remove (self->list, item);
}

static void
items_changed_cb (QuireModelsWindow *self, guint position, guint removed, guint added)
{
  for (guint i = 0; i < removed; i++)
    {
      GtkWidget *row = g_ptr_array_index (self->rows, position);
      GtkWidget *group = gtk_widget_get_ancestor (row, ADW_TYPE_PREFERENCES_GROUP);

      adw_preferences_group_remove (ADW_PREFERENCES_GROUP (group), row);
      g_ptr_array_remove_index (self->rows, position);
    }
  for (guint i = 0; i < added; i++)
    {
      g_autoptr (QuireModelItem) item
          = g_list_model_get_item (G_LIST_MODEL (self->list), position + i);
      GtkWidget *row = g_object_ref_sink (quire_model_row_new (self->client, item));

      g_signal_connect_swapped (row, "load", G_CALLBACK (load_cb), self);
      g_signal_connect_swapped (row, "unload", G_CALLBACK (unload_cb), self);
      g_signal_connect_swapped (row, "remove", G_CALLBACK (remove_cb), self);
      g_ptr_array_insert (self->rows, (int)(position + i), row);
    }
  arrange (self);
}

/* ---- Adding ---- */

static void
added_cb (QuireModelsWindow *self, guint n, const char *folder)
{
  g_autofree char *base = g_path_get_basename (folder);
  g_autofree char *name = g_filename_display_name (base);
  g_autofree char *text = NULL;

  if (n == 1)
    return; /* its row says it all */
  text = n == 0 ? g_strdup_printf (_ ("“%s” holds no model: no config.json and no GGUF file"), name)
                : g_strdup_printf (
                    ngettext ("%u model found in “%s”", "%u models found in “%s”", n), n, name);
  adw_toast_overlay_add_toast (self->toasts, quire_toast_new (GTK_WIDGET (self), text));
}

static void
chooser_response_cb (QuireModelsWindow *self, int response)
{
  if (response == GTK_RESPONSE_ACCEPT)
    {
      g_autoptr (GListModel) files = gtk_file_chooser_get_files (GTK_FILE_CHOOSER (self->chooser));

      for (guint i = 0; i < g_list_model_get_n_items (files); i++)
        {
          g_autoptr (GFile) file = g_list_model_get_item (files, i);

          quire_model_list_add (self->list, file);
        }
    }
  g_clear_object (&self->chooser);
}

static void
add_clicked_cb (QuireModelsWindow *self)
{
  g_clear_object (&self->chooser);
  self->chooser
      = gtk_file_chooser_native_new (_ ("Add Model Folders"), GTK_WINDOW (self),
                                     GTK_FILE_CHOOSER_ACTION_SELECT_FOLDER, _ ("_Add"), NULL);
  gtk_file_chooser_set_select_multiple (GTK_FILE_CHOOSER (self->chooser), TRUE);
  g_signal_connect_object (self->chooser, "response", G_CALLBACK (chooser_response_cb), self,
                           G_CONNECT_SWAPPED);
  gtk_native_dialog_show (GTK_NATIVE_DIALOG (self->chooser));
}

static gboolean
drop_cb (GtkDropTarget *target, const GValue *value, double x, double y, gpointer user_data)
{
  QuireModelsWindow *self = user_data;
  g_autoptr (GSList) files = NULL;

  if (!G_VALUE_HOLDS (value, GDK_TYPE_FILE_LIST))
    return FALSE;
  files = gdk_file_list_get_files (g_value_get_boxed (value));
  for (GSList *l = files; l != NULL; l = l->next)
    quire_model_list_add (self->list, l->data);
  return TRUE;
}

/* ---- Object ---- */

static void
quire_models_window_dispose (GObject *object)
{
  QuireModelsWindow *self = QUIRE_MODELS_WINDOW (object);

  if (self->chooser != NULL)
    gtk_native_dialog_destroy (GTK_NATIVE_DIALOG (self->chooser));
  g_clear_object (&self->chooser);
  g_clear_pointer (&self->rows, g_ptr_array_unref);
  g_clear_object (&self->list);
  g_clear_object (&self->client);
  g_clear_object (&self->application);
  G_OBJECT_CLASS (quire_models_window_parent_class)->dispose (object);
}

static void
quire_models_window_class_init (QuireModelsWindowClass *klass)
{
  G_OBJECT_CLASS (klass)->dispose = quire_models_window_dispose;
  gtk_widget_class_add_binding_action (GTK_WIDGET_CLASS (klass), GDK_KEY_Escape, 0, "window.close",
                                       NULL);
  gtk_widget_class_add_binding_action (GTK_WIDGET_CLASS (klass), GDK_KEY_w, GDK_CONTROL_MASK,
                                       "window.close", NULL);
}

static GtkWidget *
header_new (QuireModelsWindow *self)
{
  GtkWidget *header = adw_header_bar_new ();
  GtkWidget *add = gtk_button_new_from_icon_name ("list-add-symbolic");

  gtk_widget_set_tooltip_text (add, _ ("Add Model Folders"));
  quire_widget_set_label (add, _ ("Add Model Folders"));
  g_signal_connect_swapped (add, "clicked", G_CALLBACK (add_clicked_cb), self);
  adw_header_bar_pack_start (ADW_HEADER_BAR (header), add);
  self->release = quire_mnemonic_button_new (_ ("_Release Memory"));
  gtk_widget_set_tooltip_text (
      self->release,
      _ ("Gives the model’s memory back now. Pages go to host memory where there is room for them; "
         "chats go on where they were."));
  gtk_actionable_set_action_name (GTK_ACTIONABLE (self->release), "app.release-memory");
  gtk_widget_set_valign (self->release, GTK_ALIGN_CENTER);
  gtk_widget_add_css_class (self->release, "flat");
  return header;
}

static void
quire_models_window_init (QuireModelsWindow *self)
{
  GtkWidget *box = gtk_box_new (GTK_ORIENTATION_VERTICAL, 0);
  GtkWidget *page = adw_preferences_page_new ();
  GtkDropTarget *target = gtk_drop_target_new (GDK_TYPE_FILE_LIST, GDK_ACTION_COPY);

  self->rows = g_ptr_array_new_with_free_func (g_object_unref);
  gtk_window_set_title (GTK_WINDOW (self), _ ("Models"));
  gtk_window_set_default_size (GTK_WINDOW (self), 640, 560);
  gtk_widget_set_size_request (GTK_WIDGET (self), 360, 294);
  gtk_box_append (GTK_BOX (box), header_new (self));

  self->current = ADW_PREFERENCES_GROUP (adw_preferences_group_new ());
  adw_preferences_group_set_title (self->current, _ ("In Use"));
  adw_preferences_group_set_header_suffix (self->current, self->release);
  self->others = ADW_PREFERENCES_GROUP (adw_preferences_group_new ());
  adw_preferences_group_set_title (self->others, _ ("On This Computer"));
  adw_preferences_group_set_description (
      self->others, _ ("Folders of Qwen3 models in bf16. Add more, or drop them here."));
  adw_preferences_page_add (ADW_PREFERENCES_PAGE (page), self->current);
  adw_preferences_page_add (ADW_PREFERENCES_PAGE (page), self->others);
  gtk_widget_set_vexpand (page, TRUE);
  self->toasts = ADW_TOAST_OVERLAY (adw_toast_overlay_new ());
  adw_toast_overlay_set_child (self->toasts, page);
  gtk_box_append (GTK_BOX (box), GTK_WIDGET (self->toasts));
  adw_window_set_content (ADW_WINDOW (self), box);

  g_signal_connect (target, "drop", G_CALLBACK (drop_cb), self);
  gtk_widget_add_controller (GTK_WIDGET (self), GTK_EVENT_CONTROLLER (target));
}

/* Without a chat there is nothing to choose a model for. */
static void
window_removed_cb (QuireModelsWindow *self)
{
  for (GList *l = gtk_application_get_windows (GTK_APPLICATION (self->application)); l != NULL;
       l = l->next)
    if (QUIRE_IS_WINDOW (l->data))
      return;
  gtk_window_destroy (GTK_WINDOW (self));
}

/* The limits that a model has to fit changed. */
static void
limits_changed_cb (QuireModelsWindow *self)
{
  quire_model_list_refresh (self->list);
}

void
quire_models_window_present (QuireApplication *application, GtkWindow *parent)
{
  static const char *const keys[]
      = { "backend", "device", "reserve-mib", "cache-mib", "host-memory", "host-mib" };
  QuireModelsWindow *self;

  for (GList *l = gtk_application_get_windows (GTK_APPLICATION (application)); l != NULL;
       l = l->next)
    if (QUIRE_IS_MODELS_WINDOW (l->data))
      {
        gtk_window_present (l->data);
        return;
      }
  self = g_object_new (QUIRE_TYPE_MODELS_WINDOW, "application", application, NULL);
  self->application = g_object_ref (application);
  self->client = g_object_ref (quire_application_get_client (application));
  self->list = quire_model_list_new (self->client);
  g_signal_connect_object (self->list, "items-changed", G_CALLBACK (items_changed_cb), self,
                           G_CONNECT_SWAPPED);
  g_signal_connect_object (self->list, "added", G_CALLBACK (added_cb), self, G_CONNECT_SWAPPED);
  g_signal_connect_object (self->client, "status-changed", G_CALLBACK (arrange), self,
                           G_CONNECT_SWAPPED);
  for (guint i = 0; i < G_N_ELEMENTS (keys); i++)
    {
      g_autofree char *detail = g_strconcat ("changed::", keys[i], NULL);

      g_signal_connect_object (quire_settings_get_default (), detail,
                               G_CALLBACK (limits_changed_cb), self, G_CONNECT_SWAPPED);
    }
  g_signal_connect_object (application, "window-removed", G_CALLBACK (window_removed_cb), self,
                           G_CONNECT_SWAPPED | G_CONNECT_AFTER);
  items_changed_cb (self, 0, 0, g_list_model_get_n_items (G_LIST_MODEL (self->list)));
  gtk_window_present (GTK_WINDOW (self));
}
