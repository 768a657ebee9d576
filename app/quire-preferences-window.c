/* quire-preferences-window.c: see quire-preferences-window.h.
 *
 * Rows are bound to GSettings. The two spin rows whose zero means "automatic" say so in their text. */
#include "app/quire-preferences-window.h"

#include <glib/gi18n.h>

#include "app/quire-format.h"
#include "app/quire-settings.h"

struct _QuirePreferencesWindow
{
  AdwPreferencesWindow parent_instance;

  AdwActionRow *folder_row;
  GtkButton *default_button;
  GtkSpinButton *cache_spin, *threads_spin, *max_tokens_spin;
  AdwExpanderRow *sampling_row;
  GtkSpinButton *temperature_spin, *top_p_spin, *top_k_spin;
  AdwEntryRow *seed_row;
  AdwComboRow *thinking_row;
};

G_DEFINE_FINAL_TYPE (QuirePreferencesWindow, quire_preferences_window, ADW_TYPE_PREFERENCES_WINDOW)

static gboolean
show_zero_as (GtkSpinButton *spin, const char *word, const char *format)
{
  int value = gtk_spin_button_get_value_as_int (spin);
  g_autofree char *text = value == 0       ? g_strdup (word)
                          : format != NULL ? g_strdup_printf ("%d %s", value, format)
                                           : g_strdup_printf ("%d", value);

  if (g_strcmp0 (gtk_editable_get_text (GTK_EDITABLE (spin)), text) != 0)
    gtk_editable_set_text (GTK_EDITABLE (spin), text);
  return TRUE;
}

static gboolean
auto_output_cb (GtkSpinButton *spin)
{
  return show_zero_as (spin, _ ("Automatic"), NULL);
}

static gboolean
cache_output_cb (GtkSpinButton *spin)
{
  return show_zero_as (spin, _ ("Automatic"), "MiB");
}

static gboolean
unlimited_output_cb (GtkSpinButton *spin)
{
  return show_zero_as (spin, _ ("No limit"), NULL);
}

/* Reads "512", "512 MiB", or a word, which is zero. */
static int
input_cb (GtkSpinButton *spin, double *value)
{
  *value = g_ascii_strtod (gtk_editable_get_text (GTK_EDITABLE (spin)), NULL);
  return TRUE;
}

static void
update_folder (QuirePreferencesWindow *self)
{
  g_autofree char *set = g_settings_get_string (quire_settings_get_default (), "model-folder");
  g_autofree char *dir = quire_settings_dup_model_dir ();

  adw_action_row_set_subtitle (self->folder_row,
                               set[0] != '\0' ? dir : _ ("The model that comes with Quire"));
  gtk_widget_set_visible (GTK_WIDGET (self->default_button), set[0] != '\0');
}

static void
default_clicked_cb (QuirePreferencesWindow *self)
{
  g_settings_reset (quire_settings_get_default (), "model-folder");
}

/* The chooser belongs to the window below, which also shows what is wrong with a folder. */
static void
choose_clicked_cb (QuirePreferencesWindow *self)
{
  GtkWindow *parent = gtk_window_get_transient_for (GTK_WINDOW (self));

  if (parent != NULL)
    gtk_widget_activate_action (GTK_WIDGET (parent), "win.choose-model", NULL);
  gtk_window_close (GTK_WINDOW (self));
}

/* A seed is a number of 64 bits, or nothing. */
static void
seed_changed_cb (QuirePreferencesWindow *self)
{
  const char *text = gtk_editable_get_text (GTK_EDITABLE (self->seed_row));
  gboolean valid
      = text[0] == '\0' || g_ascii_string_to_unsigned (text, 10, 0, G_MAXUINT64, NULL, NULL);

  if (valid)
    {
      gtk_widget_remove_css_class (GTK_WIDGET (self->seed_row), "error");
      g_settings_set_string (quire_settings_get_default (), "seed", text);
    }
  else
    gtk_widget_add_css_class (GTK_WIDGET (self->seed_row), "error");
}

static void
quire_preferences_window_class_init (QuirePreferencesWindowClass *klass)
{
  GtkWidgetClass *widget_class = GTK_WIDGET_CLASS (klass);

  gtk_widget_class_set_template_from_resource (
      widget_class, "/io/github/quire_chat/Quire/quire-preferences-window.ui");
  gtk_widget_class_bind_template_child (widget_class, QuirePreferencesWindow, folder_row);
  gtk_widget_class_bind_template_child (widget_class, QuirePreferencesWindow, default_button);
  gtk_widget_class_bind_template_child (widget_class, QuirePreferencesWindow, cache_spin);
  gtk_widget_class_bind_template_child (widget_class, QuirePreferencesWindow, threads_spin);
  gtk_widget_class_bind_template_child (widget_class, QuirePreferencesWindow, max_tokens_spin);
  gtk_widget_class_bind_template_child (widget_class, QuirePreferencesWindow, sampling_row);
  gtk_widget_class_bind_template_child (widget_class, QuirePreferencesWindow, temperature_spin);
  gtk_widget_class_bind_template_child (widget_class, QuirePreferencesWindow, top_p_spin);
  gtk_widget_class_bind_template_child (widget_class, QuirePreferencesWindow, top_k_spin);
  gtk_widget_class_bind_template_child (widget_class, QuirePreferencesWindow, seed_row);
  gtk_widget_class_bind_template_child (widget_class, QuirePreferencesWindow, thinking_row);
  gtk_widget_class_bind_template_callback (widget_class, auto_output_cb);
  gtk_widget_class_bind_template_callback (widget_class, cache_output_cb);
  gtk_widget_class_bind_template_callback (widget_class, unlimited_output_cb);
  gtk_widget_class_bind_template_callback (widget_class, input_cb);
  gtk_widget_class_bind_template_callback (widget_class, default_clicked_cb);
  gtk_widget_class_bind_template_callback (widget_class, choose_clicked_cb);
  gtk_widget_class_bind_template_callback (widget_class, seed_changed_cb);
}

static void
quire_preferences_window_init (QuirePreferencesWindow *self)
{
  GSettings *settings = quire_settings_get_default ();
  g_autofree char *seed = g_settings_get_string (settings, "seed");

  gtk_widget_init_template (GTK_WIDGET (self));
  g_settings_bind (settings, "cache-mib", self->cache_spin, "value", G_SETTINGS_BIND_DEFAULT);
  g_settings_bind (settings, "threads", self->threads_spin, "value", G_SETTINGS_BIND_DEFAULT);
  g_settings_bind (settings, "max-tokens", self->max_tokens_spin, "value", G_SETTINGS_BIND_DEFAULT);
  g_settings_bind (settings, "custom-sampling", self->sampling_row, "enable-expansion",
                   G_SETTINGS_BIND_DEFAULT);
  g_settings_bind (settings, "temperature", self->temperature_spin, "value",
                   G_SETTINGS_BIND_DEFAULT);
  g_settings_bind (settings, "top-p", self->top_p_spin, "value", G_SETTINGS_BIND_DEFAULT);
  g_settings_bind (settings, "top-k", self->top_k_spin, "value", G_SETTINGS_BIND_DEFAULT);
  adw_combo_row_set_selected (self->thinking_row,
                              (guint)g_settings_get_enum (settings, "thinking"));
  gtk_editable_set_text (GTK_EDITABLE (self->seed_row), seed);
  g_signal_connect_object (settings, "changed::model-folder", G_CALLBACK (update_folder), self,
                           G_CONNECT_SWAPPED);
  update_folder (self);
}

static void
thinking_cb (AdwComboRow *row)
{
  g_settings_set_enum (quire_settings_get_default (), "thinking",
                       (int)adw_combo_row_get_selected (row));
}

GtkWindow *
quire_preferences_window_new (GtkWindow *parent)
{
  QuirePreferencesWindow *self = g_object_new (
      QUIRE_TYPE_PREFERENCES_WINDOW, "transient-for", parent, "application",
      parent != NULL ? gtk_window_get_application (parent) : NULL, "modal", TRUE, NULL);

  g_signal_connect (self->thinking_row, "notify::selected", G_CALLBACK (thinking_cb), NULL);
  /* Closed, it lives on as long as an event holds it, perhaps longer than its parent: it must not look back then. */
  g_signal_connect (self, "unrealize", G_CALLBACK (gtk_window_set_transient_for), NULL);
  return GTK_WINDOW (self);
}
