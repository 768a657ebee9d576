/* quire-preferences-window.c: see quire-preferences-window.h.
 *
 * Rows are bound to GSettings. The two spin rows whose zero means "automatic" say so in their text. The cards and what
 * the model takes are asked for on a worker thread, again after each change that matters to them. */
#include "app/quire-preferences-window.h"

#include <glib/gi18n.h>

#include "app/quire-combo.h"
#include "app/quire-engine-client.h"
#include "app/quire-format.h"
#include "app/quire-limits.h"
#include "app/quire-models-window.h"
#ifdef QUIRE_HAVE_SERVER
#include "app/quire-server-group.h"
#endif
#include "app/quire-settings.h"
#include "app/quire-words.h"

struct _QuirePreferencesWindow
{
  AdwPreferencesWindow parent_instance;

  AdwPreferencesPage *main_page;
  AdwActionRow *folder_row;
  GtkButton *default_button;
  GtkSpinButton *threads_spin, *max_tokens_spin, *reserve_spin;
  AdwActionRow *memory_row, *reserve_row;
  AdwComboRow *path_row, *mode_row, *unload_row;
  QuireCacheChoice choices[QUIRE_N_CACHE_CHOICES]; /* of the rows of mode_row */
  guint n_choices;
  AdwComboRow *processor_row;
  GPtrArray *devices; /* qe_device_desc; NULL until the machine was asked */
  GCancellable *asking;
  gboolean filling; /* the processors' list is being made */
  AdwExpanderRow *sampling_row;
  GtkSpinButton *temperature_spin, *top_p_spin, *top_k_spin;
  AdwEntryRow *seed_row;
  AdwComboRow *thinking_row;
  GtkSwitch *title_switch;
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
reserve_output_cb (GtkSpinButton *spin)
{
  return show_zero_as (spin, _ ("Nothing"), "MiB");
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

static void
choose_clicked_cb (QuirePreferencesWindow *self)
{
  GtkApplication *application = gtk_window_get_application (GTK_WINDOW (self));
  GtkWindow *parent = gtk_window_get_transient_for (GTK_WINDOW (self));

  if (application != NULL)
    quire_models_window_present (QUIRE_APPLICATION (application), parent);
  gtk_window_close (GTK_WINDOW (self));
}

/* ---- When memory is given back ---- */

static const guint unload_minutes[] = { 0, 15, 60 };

static gboolean
minutes_to_index (GValue *value, GVariant *variant, gpointer data)
{
  guint minutes = g_variant_get_uint32 (variant), i = 0;

  while (i + 1 < G_N_ELEMENTS (unload_minutes) && unload_minutes[i] < minutes)
    i++;
  g_value_set_uint (value, i);
  return TRUE;
}

static GVariant *
index_to_minutes (const GValue *value, const GVariantType *type, gpointer data)
{
  guint i = MIN (g_value_get_uint (value), G_N_ELEMENTS (unload_minutes) - 1);

  return g_variant_new_uint32 (unload_minutes[i]);
}

/* ---- Processor and memory ---- */

/* The list: automatic, CPU, then the cards that can be used. */
enum
{
  PROCESSOR_AUTOMATIC,
  PROCESSOR_CPU,
  PROCESSOR_FIRST_CARD
};

static void
fill_processors (QuirePreferencesWindow *self)
{
  GSettings *settings = quire_settings_get_default ();
  g_autofree char *backend = g_settings_get_string (settings, "backend");
  g_autofree char *device = g_settings_get_string (settings, "device");
  g_autoptr (GtkStringList) list = gtk_string_list_new (NULL);
  guint selected = g_str_equal (backend, "cpu") ? PROCESSOR_CPU : PROCESSOR_AUTOMATIC;

  gtk_string_list_append (list, _ ("Automatic"));
  gtk_string_list_append (list, _ ("CPU"));
  for (guint i = 0; i < self->devices->len; i++)
    {
      const qe_device_desc *card = g_ptr_array_index (self->devices, i);

      gtk_string_list_append (list, card->name);
      if (g_str_equal (backend, "cuda") && g_str_equal (device, card->id))
        selected = PROCESSOR_FIRST_CARD + i;
    }
  self->filling = TRUE;
  adw_combo_row_set_model (self->processor_row, G_LIST_MODEL (list));
  adw_combo_row_set_selected (self->processor_row, selected);
  self->filling = FALSE;
  gtk_widget_set_visible (GTK_WIDGET (self->reserve_row), self->devices->len > 0);
}

static QuireCacheChoice
selected_mode (QuirePreferencesWindow *self)
{
  guint index = adw_combo_row_get_selected (self->mode_row);

  return index < self->n_choices ? self->choices[index] : QUIRE_CACHE_AUTO;
}

/* Modes that cannot be had are not offered, but for one that is chosen already. */
static void
show_modes (QuirePreferencesWindow *self, const qe_memory_plan *plan)
{
  GtkStringList *modes = GTK_STRING_LIST (adw_combo_row_get_model (self->mode_row));
  QuireCacheChoice present = selected_mode (self);

  if (plan == NULL || plan->problem != NULL)
    return;
  for (guint i = self->n_choices; i-- > 0;)
    {
      if (self->choices[i] == present || quire_cache_choice_is_offered (self->choices[i], plan))
        continue;
      self->n_choices--;
      memmove (self->choices + i, self->choices + i + 1,
               (self->n_choices - i) * sizeof *self->choices);
      gtk_string_list_remove (modes, i);
    }
}

static void
show_plan (QuirePreferencesWindow *self, const qe_memory_plan *plan)
{
  g_autofree char *text = NULL;

  if (plan == NULL)
    text = g_strdup (_ ("The folder holds no model that can be read."));
  else if (plan->problem != NULL)
    text = g_strdup (quire_words (plan->problem));
  else
    {
      g_autofree char *weights = quire_format_bytes (plan->weights);
      g_autofree char *workspace = quire_format_bytes (plan->workspace);
      g_autofree char *kv = quire_format_bytes (plan->kv);
      g_autofree char *tokens = quire_format_count ((guint)MIN (plan->kv_tokens, G_MAXUINT));
      g_autofree char *free_text = quire_format_bytes (plan->memory_free);

      if (plan->on_device)
        /* Translators: device, then sizes: "NVIDIA RTX 4090: 7.5 GiB of weights, 0.2 GiB to compute in, up to
         * 13 GiB of cache (94,000 tokens); 23 GiB are free". */
        text = g_strdup_printf (_ ("%s: %s of weights, %s to compute in, up to %s of cache (%s "
                                   "tokens); %s are free"),
                                quire_words (plan->device), weights, workspace, kv, tokens,
                                free_text);
      else
        text = g_strdup_printf (_ ("%s: %s of weights, read from the files; up to %s of cache (%s "
                                   "tokens)"),
                                quire_words (plan->device), weights, kv, tokens);
    }
  adw_action_row_set_subtitle (self->memory_row, text);
  show_modes (self, plan);
  if (plan != NULL && plan->problem != NULL)
    gtk_widget_add_css_class (GTK_WIDGET (self->memory_row), "error");
  else
    gtk_widget_remove_css_class (GTK_WIDGET (self->memory_row), "error");
}

static void
machine_read_cb (GObject *source, GAsyncResult *result, gpointer user_data)
{
  g_autoptr (QuireMachine) machine = quire_machine_read_finish (result, NULL);
  QuirePreferencesWindow *self = user_data;

  if (machine == NULL) /* cancelled: the window may be gone */
    return;
  if (self->devices == NULL)
    {
      self->devices = g_steal_pointer (&machine->devices);
      fill_processors (self);
    }
  show_plan (self, machine->plan);
}

static void
ask_machine (QuirePreferencesWindow *self)
{
  QuireEngineSettings settings;
  g_autofree char *dir = quire_settings_dup_model_dir ();

  g_cancellable_cancel (self->asking);
  g_clear_object (&self->asking);
  self->asking = g_cancellable_new ();
  quire_settings_get_engine (NULL, &settings);
  quire_machine_read_async (dir, &settings.options, self->asking, machine_read_cb, self);
  quire_engine_settings_clear (&settings);
}

static void
processor_cb (QuirePreferencesWindow *self)
{
  GSettings *settings = quire_settings_get_default ();
  guint selected = adw_combo_row_get_selected (self->processor_row);
  const char *backend = "", *device = "";

  if (self->filling || self->devices == NULL || selected == GTK_INVALID_LIST_POSITION)
    return;
  if (selected == PROCESSOR_CPU)
    backend = "cpu";
  else if (selected >= PROCESSOR_FIRST_CARD)
    {
      const qe_device_desc *card
          = g_ptr_array_index (self->devices, selected - PROCESSOR_FIRST_CARD);

      backend = "cuda";
      device = card->id;
    }
  g_settings_set_string (settings, "backend", backend);
  g_settings_set_string (settings, "device", device);
}

/* ---- Tiers and modes ---- */

static void
update_mode (QuirePreferencesWindow *self)
{
  QuireCacheChoice choice;
  const char *note, *description;
  g_autofree char *text = NULL;

  if (self->mode_row == NULL) /* the window goes */
    return;
  choice = selected_mode (self);
  note = quire_cache_choice_get_error_note (choice);
  description = quire_cache_choice_get_description (choice);
  text = note != NULL ? g_strdup_printf ("%s. %s", description, note) : g_strdup (description);
  adw_action_row_set_subtitle (ADW_ACTION_ROW (self->mode_row), text);
}

/* An enum of the settings is a combo row's index. */
static gboolean
enum_to_index (GValue *value, GVariant *variant, gpointer key)
{
  g_value_set_uint (value, (guint)g_settings_get_enum (quire_settings_get_default (), key));
  return TRUE;
}

static GVariant *
index_to_enum (const GValue *value, const GVariantType *type, gpointer key)
{
  g_autoptr (GSettingsSchema) schema = NULL;
  g_autoptr (GSettingsSchemaKey) schema_key = NULL;
  g_autoptr (GVariant) range = NULL, nicks = NULL;
  guint index = g_value_get_uint (value);

  g_object_get (quire_settings_get_default (), "settings-schema", &schema, NULL);
  schema_key = g_settings_schema_get_key (schema, key);
  range = g_settings_schema_key_get_range (schema_key);
  g_variant_get (range, "(&sv)", NULL, &nicks);
  return index < g_variant_n_children (nicks) ? g_variant_get_child_value (nicks, index) : NULL;
}

/* The rows of the modes are those that are offered. */
static gboolean
choice_to_index (GValue *value, GVariant *variant, gpointer data)
{
  QuirePreferencesWindow *self = data;
  int choice = g_settings_get_enum (quire_settings_get_default (), "cache-mode");

  for (guint i = 0; i < self->n_choices; i++)
    if ((int)self->choices[i] == choice)
      {
        g_value_set_uint (value, i);
        return TRUE;
      }
  return FALSE;
}

static GVariant *
index_to_choice (const GValue *value, const GVariantType *type, gpointer data)
{
  QuirePreferencesWindow *self = data;
  guint index = g_value_get_uint (value);
  GValue choice = G_VALUE_INIT;

  if (index >= self->n_choices)
    return NULL;
  g_value_init (&choice, G_TYPE_UINT);
  g_value_set_uint (&choice, self->choices[index]);
  return index_to_enum (&choice, type, (gpointer) "cache-mode");
}

static void
bind_enum (const char *key, AdwComboRow *row)
{
  g_settings_bind_with_mapping (quire_settings_get_default (), key, row, "selected",
                                G_SETTINGS_BIND_DEFAULT, enum_to_index, index_to_enum,
                                (gpointer)key, NULL);
}

static void
bind_cache (QuirePreferencesWindow *self)
{
  GSettings *settings = quire_settings_get_default ();
  g_autoptr (GtkStringList) modes = gtk_string_list_new (NULL);

  for (guint i = 0; i < QUIRE_N_CACHE_CHOICES; i++)
    {
      g_autofree char *name = quire_cache_choice_dup_name (i);

      self->choices[self->n_choices++] = i;
      gtk_string_list_append (modes, name);
    }
  adw_combo_row_set_model (self->mode_row, G_LIST_MODEL (modes));
  g_settings_bind_with_mapping (settings, "cache-mode", self->mode_row, "selected",
                                G_SETTINGS_BIND_DEFAULT, choice_to_index, index_to_choice, self,
                                NULL);
  bind_enum ("host-path", self->path_row);
  g_settings_bind_with_mapping (settings, "unload-minutes", self->unload_row, "selected",
                                G_SETTINGS_BIND_DEFAULT, minutes_to_index, index_to_minutes, NULL,
                                NULL);
  g_signal_connect_swapped (self->mode_row, "notify::selected", G_CALLBACK (update_mode), self);
  update_mode (self);
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
quire_preferences_window_dispose (GObject *object)
{
  QuirePreferencesWindow *self = QUIRE_PREFERENCES_WINDOW (object);

  g_cancellable_cancel (self->asking);
  g_clear_object (&self->asking);
  g_clear_pointer (&self->devices, g_ptr_array_unref);
  G_OBJECT_CLASS (quire_preferences_window_parent_class)->dispose (object);
}

static void
quire_preferences_window_class_init (QuirePreferencesWindowClass *klass)
{
  GtkWidgetClass *widget_class = GTK_WIDGET_CLASS (klass);

  G_OBJECT_CLASS (klass)->dispose = quire_preferences_window_dispose;
  g_type_ensure (QUIRE_TYPE_LIMITS);
  gtk_widget_class_set_template_from_resource (
      widget_class, "/io/github/quire_chat/Quire/quire-preferences-window.ui");
  gtk_widget_class_bind_template_child (widget_class, QuirePreferencesWindow, main_page);
  gtk_widget_class_bind_template_child (widget_class, QuirePreferencesWindow, folder_row);
  gtk_widget_class_bind_template_child (widget_class, QuirePreferencesWindow, default_button);
  gtk_widget_class_bind_template_child (widget_class, QuirePreferencesWindow, threads_spin);
  gtk_widget_class_bind_template_child (widget_class, QuirePreferencesWindow, memory_row);
  gtk_widget_class_bind_template_child (widget_class, QuirePreferencesWindow, path_row);
  gtk_widget_class_bind_template_child (widget_class, QuirePreferencesWindow, unload_row);
  gtk_widget_class_bind_template_child (widget_class, QuirePreferencesWindow, mode_row);
  gtk_widget_class_bind_template_child (widget_class, QuirePreferencesWindow, processor_row);
  gtk_widget_class_bind_template_child (widget_class, QuirePreferencesWindow, reserve_row);
  gtk_widget_class_bind_template_child (widget_class, QuirePreferencesWindow, reserve_spin);
  gtk_widget_class_bind_template_child (widget_class, QuirePreferencesWindow, max_tokens_spin);
  gtk_widget_class_bind_template_child (widget_class, QuirePreferencesWindow, sampling_row);
  gtk_widget_class_bind_template_child (widget_class, QuirePreferencesWindow, temperature_spin);
  gtk_widget_class_bind_template_child (widget_class, QuirePreferencesWindow, top_p_spin);
  gtk_widget_class_bind_template_child (widget_class, QuirePreferencesWindow, top_k_spin);
  gtk_widget_class_bind_template_child (widget_class, QuirePreferencesWindow, seed_row);
  gtk_widget_class_bind_template_child (widget_class, QuirePreferencesWindow, thinking_row);
  gtk_widget_class_bind_template_child (widget_class, QuirePreferencesWindow, title_switch);
  gtk_widget_class_bind_template_callback (widget_class, auto_output_cb);
  gtk_widget_class_bind_template_callback (widget_class, reserve_output_cb);
  gtk_widget_class_bind_template_callback (widget_class, unlimited_output_cb);
  gtk_widget_class_bind_template_callback (widget_class, input_cb);
  gtk_widget_class_bind_template_callback (widget_class, default_clicked_cb);
  gtk_widget_class_bind_template_callback (widget_class, choose_clicked_cb);
  gtk_widget_class_bind_template_callback (widget_class, seed_changed_cb);
}

static void
quire_preferences_window_init (QuirePreferencesWindow *self)
{
  static const char *const asked_keys[] = { "model-folder", "backend",     "device",  "reserve-mib",
                                            "cache-mib",    "host-memory", "host-mib" };
  GSettings *settings = quire_settings_get_default ();
  g_autofree char *seed = g_settings_get_string (settings, "seed");

  gtk_widget_init_template (GTK_WIDGET (self));
  quire_combo_row_show_whole (self->path_row);
  quire_combo_row_show_whole (self->unload_row);
  quire_combo_row_show_whole (self->mode_row);
  quire_combo_row_show_whole (self->processor_row);
  quire_combo_row_show_whole (self->thinking_row);
#ifdef QUIRE_HAVE_SERVER
  adw_preferences_page_add (self->main_page, g_object_new (QUIRE_TYPE_SERVER_GROUP, NULL));
#endif
  g_settings_bind (settings, "reserve-mib", self->reserve_spin, "value", G_SETTINGS_BIND_DEFAULT);
  g_settings_bind (settings, "threads", self->threads_spin, "value", G_SETTINGS_BIND_DEFAULT);
  g_settings_bind (settings, "auto-title", self->title_switch, "active", G_SETTINGS_BIND_DEFAULT);
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

  bind_cache (self);
  gtk_widget_set_visible (GTK_WIDGET (self->reserve_row), FALSE);
  g_signal_connect_swapped (self->processor_row, "notify::selected", G_CALLBACK (processor_cb),
                            self);
  for (guint i = 0; i < G_N_ELEMENTS (asked_keys); i++)
    {
      g_autofree char *detail = g_strconcat ("changed::", asked_keys[i], NULL);

      g_signal_connect_object (settings, detail, G_CALLBACK (ask_machine), self, G_CONNECT_SWAPPED);
    }
  ask_machine (self);
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
