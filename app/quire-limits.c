/* quire-limits.c: see quire-limits.h.
 *
 * Nothing is written before Apply. The budget of the fastest tier is the engine's to change while it runs; other limits are
 * part of what a model is loaded with, so they load it again, and the row of the Apply button says so. */
#include "app/quire-limits.h"

#include <glib/gi18n.h>

#include "app/quire-application.h"
#include "app/quire-combo.h"
#include "app/quire-format.h"
#include "app/quire-reading-speed.h"
#include "app/quire-settings.h"
#include "app/quire-widget.h"
#include "app/quire-words.h"

#define MIB (1024 * 1024)

enum
{
  HOST_AUTO,
  HOST_OFF,
  HOST_SIZE
};

struct _QuireLimits
{
  AdwPreferencesGroup parent_instance;

  QuireEngineClient *client;
  GSettings *settings;
  AdwActionRow *cache_row, *host_mib_row, *disk_row, *disk_mib_row, *effect_row;
  AdwComboRow *host_row;
  GtkSpinButton *cache_spin, *host_spin, *disk_spin;
  GtkSwitch *disk_switch;
  GtkWidget *apply;
  GCancellable *asking;
  QuireMachine *machine; /* what the values on show come to; NULL until known */
  gboolean filling;
};

G_DEFINE_FINAL_TYPE (QuireLimits, quire_limits, ADW_TYPE_PREFERENCES_GROUP)

/* ---- What is set, what is shown ---- */

static guint
spin_value (GtkSpinButton *spin)
{
  return (guint)gtk_spin_button_get_value_as_int (spin);
}

static gboolean
cache_is_changed (QuireLimits *self)
{
  return spin_value (self->cache_spin) != g_settings_get_uint (self->settings, "cache-mib");
}

/* Of what a model is loaded with. */
static gboolean
load_is_changed (QuireLimits *self)
{
  guint host = adw_combo_row_get_selected (self->host_row);
  gboolean disk = gtk_switch_get_active (self->disk_switch);

  return (int)host != g_settings_get_enum (self->settings, "host-memory")
         || (host == HOST_SIZE
             && spin_value (self->host_spin) != g_settings_get_uint (self->settings, "host-mib"))
         || disk != g_settings_get_boolean (self->settings, "disk-tier")
         || (disk
             && spin_value (self->disk_spin) != g_settings_get_uint (self->settings, "disk-mib"));
}

static void
get_options (QuireLimits *self, QuireEngineSettings *out)
{
  guint host = adw_combo_row_get_selected (self->host_row);

  quire_settings_get_engine (NULL, out);
  out->options.kv_bytes_max = (guint64)spin_value (self->cache_spin) * MIB;
  out->options.host_bytes_max = host == HOST_OFF    ? 1
                                : host == HOST_SIZE ? (guint64)spin_value (self->host_spin) * MIB
                                                    : 0;
  out->options.memory_returned = quire_engine_client_get_device_bytes (self->client);
}

/* "13.0 GiB, for 94,000 tokens". Returns: owned. */
static char *
dup_room (guint64 n_bytes, guint64 n_tokens)
{
  g_autofree char *bytes = quire_format_bytes (n_bytes);
  g_autofree char *tokens = quire_format_count (n_tokens);

  return g_strdup_printf (_ ("%s, for %s tokens"), bytes, tokens);
}

static void
show_tiers (QuireLimits *self, const qe_memory_plan *plan)
{
  g_autofree char *cache = NULL, *host = NULL, *disk = NULL;
  g_autofree char *dir = quire_settings_dup_disk_dir ();
  guint64 disk_bytes = (guint64)spin_value (self->disk_spin) * MIB;

  adw_preferences_row_set_title (ADW_PREFERENCES_ROW (self->cache_row),
                                 plan->on_device ? _ ("GPU") : _ ("Cache memory"));
  cache = plan->kv > 0 ? dup_room (plan->kv, plan->kv_tokens) : g_strdup ("");
  adw_action_row_set_subtitle (self->cache_row, cache);
  if (plan->host_kv > 0)
    host = dup_room (plan->host_kv, plan->host_kv_tokens);
  else
    host = g_strdup (plan->on_device ? _ ("None is used")
                     : adw_combo_row_get_selected (self->host_row) == HOST_SIZE
                         ? _ ("Added to the cache memory")
                         : _ ("Not needed without a GPU"));
  adw_action_row_set_subtitle (ADW_ACTION_ROW (self->host_row), host);
  if (!gtk_switch_get_active (self->disk_switch))
    disk = g_strdup (_ ("Pages are not kept over restarts"));
  else
    {
      g_autofree char *room
          = dup_room (disk_bytes, plan->page_bytes > 0 ? disk_bytes / plan->page_bytes * 16 : 0);

      disk = g_strdup_printf (_ ("%s, in %s"), room, dir);
    }
  adw_action_row_set_subtitle (self->disk_row, disk);
}

/* Tokens that open chats read again when the model is loaded again. */
static guint
count_tokens (QuireLimits *self)
{
  const qe_snapshot *snapshot = quire_engine_client_get_snapshot (self->client);
  guint n = 0;

  for (guint i = 0; snapshot != NULL && i < snapshot->n_sessions; i++)
    n += snapshot->sessions[i].n_tokens;
  return n;
}

static char *
dup_cache_effect (QuireLimits *self, const qe_memory_plan *plan)
{
  const qe_snapshot *snapshot = quire_engine_client_get_snapshot (self->client);
  const qe_tier_view *tier = snapshot == NULL ? NULL
                             : snapshot->tiers[QE_TIER_GPU].present
                                 ? &snapshot->tiers[QE_TIER_GPU]
                                 : &snapshot->tiers[QE_TIER_HOST];

  if (tier == NULL || tier->bytes_used <= plan->kv)
    return g_strdup (_ ("Applies at once. Chats stay as they are."));
  {
    g_autofree char *over = quire_format_bytes (tier->bytes_used - plan->kv);

    return g_strdup_printf (
        plan->host_kv > 0 && plan->on_device
            ? _ ("Applies at once. %s of pages move to host memory.")
            : _ ("Applies at once. %s of pages are given up; their chats read them again."),
        over);
  }
}

static char *
dup_load_effect (QuireLimits *self, const qe_memory_plan *plan)
{
  g_autofree char *weights = quire_format_bytes (plan->weights);
  guint n = count_tokens (self);
  g_autofree char *reads = NULL;

  if (n == 0)
    /* Translators: bytes of the model's weights. */
    return g_strdup_printf (_ ("Loads the model again (%s)."), weights);
  reads = quire_reading_speed_format (n, quire_reading_speed_get (self->client, NULL));
  /* Translators: bytes of the model's weights, then "reads 16,512 tokens, about 4 s". */
  return g_strdup_printf (_ ("Loads the model again (%s). Chats stay; going on with them %s."),
                          weights, reads);
}

static void
update (QuireLimits *self)
{
  const qe_memory_plan *plan = self->machine != NULL ? self->machine->plan : NULL;
  gboolean changed = cache_is_changed (self) || load_is_changed (self);
  g_autofree char *effect = NULL;
  gboolean bad = plan != NULL && plan->problem != NULL;
  gboolean no_way = plan != NULL && gtk_switch_get_active (self->disk_switch) && plan->host_kv == 0;

  gtk_widget_set_visible (GTK_WIDGET (self->host_mib_row),
                          adw_combo_row_get_selected (self->host_row) == HOST_SIZE);
  gtk_widget_set_visible (GTK_WIDGET (self->disk_mib_row),
                          gtk_switch_get_active (self->disk_switch));
  if (plan != NULL)
    show_tiers (self, plan);
  if (bad)
    effect = g_strdup (quire_words (plan->problem));
  else if (no_way)
    effect = g_strdup (_ ("Pages reach the disk by way of host memory: give it a size first."));
  else if (!changed)
    effect = g_strdup (_ ("These limits are in force."));
  else if (plan == NULL)
    effect = g_strdup (_ ("Working out what that takes…"));
  else
    effect = load_is_changed (self) ? dup_load_effect (self, plan) : dup_cache_effect (self, plan);
  adw_preferences_row_set_title (ADW_PREFERENCES_ROW (self->effect_row), effect);
  if (bad || no_way)
    gtk_widget_add_css_class (GTK_WIDGET (self->effect_row), "error");
  else
    gtk_widget_remove_css_class (GTK_WIDGET (self->effect_row), "error");
  gtk_widget_set_sensitive (self->apply, changed && plan != NULL && !bad && !no_way);
}

static void
planned_cb (GObject *source, GAsyncResult *result, gpointer user_data)
{
  QuireMachine *machine = quire_machine_read_finish (result, NULL);
  QuireLimits *self = user_data;

  if (machine == NULL) /* cancelled: the widget may be gone */
    return;
  g_clear_pointer (&self->machine, quire_machine_free);
  self->machine = machine;
  update (self);
}

/* The values on show have changed: what they come to is worked out anew. */
static void
ask (QuireLimits *self)
{
  g_autofree char *dir = NULL;
  const char *loaded;
  QuireEngineSettings options;

  if (self->filling || self->client == NULL)
    return;
  g_cancellable_cancel (self->asking);
  g_clear_object (&self->asking);
  g_clear_pointer (&self->machine, quire_machine_free);
  loaded = quire_engine_client_get_model_dir (self->client);
  dir = loaded != NULL ? g_strdup (loaded) : quire_settings_dup_model_dir ();
  self->asking = g_cancellable_new ();
  get_options (self, &options);
  quire_machine_read_async (dir, &options.options, self->asking, planned_cb, self);
  quire_engine_settings_clear (&options);
  update (self);
}

static void
fill (QuireLimits *self)
{
  self->filling = TRUE;
  gtk_spin_button_set_value (self->cache_spin, g_settings_get_uint (self->settings, "cache-mib"));
  gtk_spin_button_set_value (self->host_spin, g_settings_get_uint (self->settings, "host-mib"));
  gtk_spin_button_set_value (self->disk_spin, g_settings_get_uint (self->settings, "disk-mib"));
  adw_combo_row_set_selected (self->host_row,
                              (guint)g_settings_get_enum (self->settings, "host-memory"));
  gtk_switch_set_active (self->disk_switch, g_settings_get_boolean (self->settings, "disk-tier"));
  self->filling = FALSE;
  ask (self);
}

/* ---- For others ---- */

gboolean
quire_limits_can_apply (QuireLimits *self)
{
  return gtk_widget_get_sensitive (self->apply);
}

const char *
quire_limits_get_effect (QuireLimits *self)
{
  return adw_preferences_row_get_title (ADW_PREFERENCES_ROW (self->effect_row));
}

void
quire_limits_set_cache_mib (QuireLimits *self, guint mib)
{
  gtk_spin_button_set_value (self->cache_spin, mib);
}

void
quire_limits_set_host_mib (QuireLimits *self, guint mib)
{
  adw_combo_row_set_selected (self->host_row, HOST_SIZE);
  gtk_spin_button_set_value (self->host_spin, mib);
}

void
quire_limits_set_disk (QuireLimits *self, gboolean on, guint mib)
{
  gtk_switch_set_active (self->disk_switch, on);
  gtk_spin_button_set_value (self->disk_spin, mib);
}

void
quire_limits_apply (QuireLimits *self)
{
  if (!quire_limits_can_apply (self))
    return;
  g_settings_set_uint (self->settings, "cache-mib", spin_value (self->cache_spin));
  g_settings_set_enum (self->settings, "host-memory",
                       (int)adw_combo_row_get_selected (self->host_row));
  g_settings_set_uint (self->settings, "host-mib", spin_value (self->host_spin));
  g_settings_set_boolean (self->settings, "disk-tier", gtk_switch_get_active (self->disk_switch));
  g_settings_set_uint (self->settings, "disk-mib", spin_value (self->disk_spin));
  quire_application_apply_settings (QUIRE_APPLICATION (g_application_get_default ()));
  update (self);
}

void
quire_limits_focus (QuireLimits *self, qe_tier tier)
{
  GtkWidget *cpu_spin = GTK_WIDGET (self->cache_spin);
  const qe_snapshot *snapshot = quire_engine_client_get_snapshot (self->client);
  gboolean on_device = snapshot != NULL && snapshot->tiers[QE_TIER_GPU].present;

  if (tier == QE_TIER_DISK)
    gtk_widget_grab_focus (GTK_WIDGET (self->disk_switch));
  else if (tier == QE_TIER_HOST && on_device)
    gtk_widget_grab_focus (GTK_WIDGET (self->host_row));
  else
    gtk_widget_grab_focus (cpu_spin);
}

/* ---- Building ---- */

static gboolean
output_cb (GtkSpinButton *spin)
{
  int value = gtk_spin_button_get_value_as_int (spin);
  g_autofree char *text
      = value == 0 ? g_strdup (_ ("Automatic")) : g_strdup_printf ("%d MiB", value);

  if (g_strcmp0 (gtk_editable_get_text (GTK_EDITABLE (spin)), text) != 0)
    gtk_editable_set_text (GTK_EDITABLE (spin), text);
  return TRUE;
}

/* "512", "512 MiB", "8 GiB", or a word, which is zero. */
static int
input_cb (GtkSpinButton *spin, double *value)
{
  char *end;

  *value = g_ascii_strtod (gtk_editable_get_text (GTK_EDITABLE (spin)), &end);
  while (g_ascii_isspace (*end))
    end++;
  if (g_ascii_strncasecmp (end, "g", 1) == 0)
    *value *= 1024;
  return TRUE;
}

static GtkSpinButton *
spin_new (QuireLimits *self, guint lower, guint step)
{
  GtkWidget *spin = gtk_spin_button_new_with_range (lower, 16777216, step);

  gtk_spin_button_set_numeric (GTK_SPIN_BUTTON (spin), FALSE);
  gtk_editable_set_width_chars (GTK_EDITABLE (spin), 11);
  gtk_widget_set_valign (spin, GTK_ALIGN_CENTER);
  g_signal_connect (spin, "output", G_CALLBACK (output_cb), NULL);
  g_signal_connect (spin, "input", G_CALLBACK (input_cb), NULL);
  g_signal_connect_swapped (spin, "value-changed", G_CALLBACK (ask), self);
  return GTK_SPIN_BUTTON (spin);
}

static AdwActionRow *
row_new (QuireLimits *self, const char *title, GtkWidget *suffix)
{
  GtkWidget *row = adw_action_row_new ();

  adw_preferences_row_set_use_markup (ADW_PREFERENCES_ROW (row), FALSE);
  adw_preferences_row_set_title (ADW_PREFERENCES_ROW (row), title);
  adw_action_row_set_title_lines (ADW_ACTION_ROW (row), 0);
  adw_action_row_set_subtitle_lines (ADW_ACTION_ROW (row), 0);
  adw_action_row_add_suffix (ADW_ACTION_ROW (row), suffix);
  adw_preferences_group_add (ADW_PREFERENCES_GROUP (self), row);
  gtk_accessible_update_property (GTK_ACCESSIBLE (suffix), GTK_ACCESSIBLE_PROPERTY_LABEL, title,
                                  -1);
  return ADW_ACTION_ROW (row);
}

static void
quire_limits_dispose (GObject *object)
{
  QuireLimits *self = QUIRE_LIMITS (object);

  g_cancellable_cancel (self->asking);
  g_clear_object (&self->asking);
  g_clear_pointer (&self->machine, quire_machine_free);
  g_clear_object (&self->client);
  G_OBJECT_CLASS (quire_limits_parent_class)->dispose (object);
}

static void
quire_limits_class_init (QuireLimitsClass *klass)
{
  G_OBJECT_CLASS (klass)->dispose = quire_limits_dispose;
}

static void
build_disk (QuireLimits *self)
{
  self->disk_switch = GTK_SWITCH (gtk_switch_new ());
  self->disk_spin = spin_new (self, 1, 1024);
  gtk_widget_set_valign (GTK_WIDGET (self->disk_switch), GTK_ALIGN_CENTER);
  self->disk_row = row_new (self, _ ("Disk"), GTK_WIDGET (self->disk_switch));
  self->disk_mib_row = row_new (self, _ ("Size"), GTK_WIDGET (self->disk_spin));
  gtk_accessible_update_property (GTK_ACCESSIBLE (self->disk_switch), GTK_ACCESSIBLE_PROPERTY_LABEL,
                                  _ ("Keep pages on disk"), -1);
  gtk_accessible_update_property (GTK_ACCESSIBLE (self->disk_spin), GTK_ACCESSIBLE_PROPERTY_LABEL,
                                  _ ("Disk space"), -1);
  g_signal_connect_swapped (self->disk_switch, "notify::active", G_CALLBACK (ask), self);
}

static void
quire_limits_init (QuireLimits *self)
{
  const char *const choices[] = { _ ("Automatic"), _ ("Off"), _ ("Own Size"), NULL };
  g_autoptr (GtkStringList) list = gtk_string_list_new (choices);

  self->settings = quire_settings_get_default ();
  self->filling = TRUE;
  adw_preferences_group_set_title (ADW_PREFERENCES_GROUP (self), _ ("Tier Limits"));
  adw_preferences_group_set_description (ADW_PREFERENCES_GROUP (self),
                                         _ ("How much the cache of all chats may take"));
  self->cache_spin = spin_new (self, 0, 64);
  self->cache_row = row_new (self, _ ("Cache memory"), GTK_WIDGET (self->cache_spin));
  self->host_row = ADW_COMBO_ROW (adw_combo_row_new ());
  adw_preferences_row_set_title (ADW_PREFERENCES_ROW (self->host_row), _ ("Host memory"));
  adw_action_row_set_subtitle_lines (ADW_ACTION_ROW (self->host_row), 0);
  adw_combo_row_set_model (self->host_row, G_LIST_MODEL (list));
  quire_combo_row_show_whole (self->host_row);
  g_signal_connect_swapped (self->host_row, "notify::selected", G_CALLBACK (ask), self);
  adw_preferences_group_add (ADW_PREFERENCES_GROUP (self), GTK_WIDGET (self->host_row));
  self->host_spin = spin_new (self, 1, 256);
  self->host_mib_row = row_new (self, _ ("Size"), GTK_WIDGET (self->host_spin));
  build_disk (self);
  self->apply = quire_mnemonic_button_new (_ ("_Apply"));
  gtk_widget_add_css_class (self->apply, "suggested-action");
  gtk_widget_set_valign (self->apply, GTK_ALIGN_CENTER);
  self->effect_row = row_new (self, "", self->apply);
  gtk_accessible_update_property (GTK_ACCESSIBLE (self->apply), GTK_ACCESSIBLE_PROPERTY_LABEL,
                                  _ ("Apply"), -1);
  g_signal_connect_swapped (self->apply, "clicked", G_CALLBACK (quire_limits_apply), self);

  self->client = g_object_ref (
      quire_application_get_client (QUIRE_APPLICATION (g_application_get_default ())));
  g_signal_connect_object (self->client, "status-changed", G_CALLBACK (ask), self,
                           G_CONNECT_SWAPPED);
  fill (self);
}

GtkWidget *
quire_limits_new (void)
{
  return g_object_new (QUIRE_TYPE_LIMITS, NULL);
}

/* ---- The window ---- */

void
quire_limits_present (GtkWindow *parent, qe_tier tier)
{
  GtkWidget *window = adw_preferences_window_new ();
  GtkWidget *page = adw_preferences_page_new (), *limits = quire_limits_new ();

  adw_preferences_page_set_title (ADW_PREFERENCES_PAGE (page), _ ("Limits"));
  adw_preferences_page_add (ADW_PREFERENCES_PAGE (page), ADW_PREFERENCES_GROUP (limits));
  adw_preferences_window_add (ADW_PREFERENCES_WINDOW (window), ADW_PREFERENCES_PAGE (page));
  adw_preferences_window_set_search_enabled (ADW_PREFERENCES_WINDOW (window), FALSE);
  gtk_window_set_title (GTK_WINDOW (window), _ ("Limits"));
  gtk_window_set_default_size (GTK_WINDOW (window), 520, 460);
  gtk_window_set_application (GTK_WINDOW (window),
                              parent != NULL ? gtk_window_get_application (parent) : NULL);
  gtk_window_set_modal (GTK_WINDOW (window), FALSE);
  gtk_window_set_transient_for (GTK_WINDOW (window), parent);
  gtk_window_set_destroy_with_parent (GTK_WINDOW (window), TRUE);
  /* Closed, it lives on as long as an event holds it, perhaps longer than its parent: it must not look back then. */
  g_signal_connect (window, "unrealize", G_CALLBACK (gtk_window_set_transient_for), NULL);
  gtk_window_present (GTK_WINDOW (window));
  quire_limits_focus (QUIRE_LIMITS (limits), tier);
}
