/* quire-chat-settings-window.c: see quire-chat-settings-window.h.
 *
 * The fields are the truth while the window is open; a preset fills them, and Save takes them. The cost of another system
 * prompt is worked out from a count of its tokens, on a worker. */
#include "app/quire-chat-settings-window.h"

#include <glib/gi18n.h>
#include <string.h>

#include "app/quire-combo.h"
#include "app/quire-context.h"
#include "app/quire-format.h"
#include "app/quire-settings.h"
#include "app/quire-widget.h"
#include "app/quire-wrap-layout.h"

#define COUNT_DELAY_MS 150
#define TEXT_HEIGHT_PX 120

enum
{
  TEMPERATURE,
  TOP_P,
  TOP_K,
  MIN_P,
  REPETITION,
  PRESENCE,
  FREQUENCY,
  MAX_TOKENS,
  N_SPINS
};

struct _QuireChatSettingsWindow
{
  AdwWindow parent_instance;

  QuireConversation *conversation;
  GtkWidget *view; /* the system prompt */
  GtkTextBuffer *buffer;
  GtkLabel *count, *cost;
  AdwExpanderRow *sampling;
  GtkSpinButton *spins[N_SPINS];
  GtkEditable *seed;
  AdwComboRow *thinking;
  AdwComboRow *preset;
  GtkEditable *name;
  GtkWidget *save, *rename, *remove, *is_default;
  gboolean filling;
  guint count_id;
  GCancellable *counting;
  guint n_old; /* tokens of the system prompt in force */
};

G_DEFINE_FINAL_TYPE (QuireChatSettingsWindow, quire_chat_settings_window, ADW_TYPE_WINDOW)

/* ---- The fields ---- */

static char *
dup_system (QuireChatSettingsWindow *self)
{
  char *text = NULL;

  g_object_get (self->buffer, "text", &text, NULL);
  return g_strstrip (text);
}

static void
get_fields (QuireChatSettingsWindow *self, QuireChatSettings *out)
{
  double v[N_SPINS];
  const char *seed = gtk_editable_get_text (self->seed);

  quire_chat_settings_init (out);
  for (int i = 0; i < N_SPINS; i++)
    v[i] = gtk_spin_button_get_value (self->spins[i]);
  out->own_sampling = adw_expander_row_get_enable_expansion (self->sampling);
  out->sampling = (qe_sampling_params){
    .temperature = v[TEMPERATURE],
    .top_p = v[TOP_P],
    .top_k = (int64_t)v[TOP_K],
    .min_p = v[MIN_P],
    .repetition_penalty = v[REPETITION],
    .presence_penalty = v[PRESENCE],
    .frequency_penalty = v[FREQUENCY],
  };
  out->sampling.has_seed
      = g_ascii_string_to_unsigned (seed, 10, 0, G_MAXUINT64, &out->sampling.seed, NULL);
  out->max_tokens = (guint32)v[MAX_TOKENS];
  out->thinking = (qe_thinking)adw_combo_row_get_selected (self->thinking);
}

static void
set_fields (QuireChatSettingsWindow *self, const char *system, const QuireChatSettings *settings)
{
  const qe_model_info *model
      = quire_engine_client_get_status (quire_conversation_get_client (self->conversation))->model;
  QuireChatSettings s = *settings;
  g_autofree char *seed = NULL;

  /* What would be used is where one begins. */
  if (!s.own_sampling)
    {
      QuireTurnSettings turn;

      quire_settings_get_turn (model, &turn);
      s.sampling = turn.sampling;
      s.max_tokens = turn.max_tokens;
      s.thinking = turn.thinking;
    }
  seed = s.sampling.has_seed ? g_strdup_printf ("%" G_GUINT64_FORMAT, s.sampling.seed)
                             : g_strdup ("");
  self->filling = TRUE;
  gtk_text_buffer_set_text (self->buffer, system != NULL ? system : "", -1);
  gtk_spin_button_set_value (self->spins[TEMPERATURE], s.sampling.temperature);
  gtk_spin_button_set_value (self->spins[TOP_P], s.sampling.top_p);
  gtk_spin_button_set_value (self->spins[TOP_K], (double)MAX (s.sampling.top_k, 0));
  gtk_spin_button_set_value (self->spins[MIN_P], s.sampling.min_p);
  gtk_spin_button_set_value (self->spins[REPETITION], s.sampling.repetition_penalty);
  gtk_spin_button_set_value (self->spins[PRESENCE], s.sampling.presence_penalty);
  gtk_spin_button_set_value (self->spins[FREQUENCY], s.sampling.frequency_penalty);
  gtk_spin_button_set_value (self->spins[MAX_TOKENS], s.max_tokens);
  gtk_editable_set_text (self->seed, seed);
  adw_combo_row_set_selected (self->thinking, (guint)s.thinking);
  adw_expander_row_set_enable_expansion (self->sampling, settings->own_sampling);
  adw_expander_row_set_expanded (self->sampling, settings->own_sampling);
  self->filling = FALSE;
}

/* ---- What it costs ---- */

static void
show_cost (QuireChatSettingsWindow *self, guint n_new)
{
  g_autofree char *system = dup_system (self);
  const char *old = quire_conversation_get_system (self->conversation);
  guint n_context = quire_conversation_get_n_context (self->conversation);
  QuireMessage *last = quire_conversation_get_last_reply (self->conversation);
  g_autofree char *n = quire_format_count (n_new);
  g_autofree char *count = g_strdup_printf (ngettext ("%s token", "%s tokens", n_new), n);
  g_autofree char *cost = NULL;

  gtk_label_set_text (self->count, count);
  if (n_context > 0 && strcmp (old != NULL ? old : "", system) != 0)
    {
      guint n_read = n_context - MIN (n_context, self->n_old)
                     + (n_new > 0 ? n_new + QUIRE_CONTEXT_MESSAGE_TOKENS : 0);
      double speed
          = last != NULL ? quire_message_get_reply (last)->receipt.prefill_tokens_per_s : 0;
      g_autofree char *all = quire_format_count (n_read);
      g_autofree char *time = speed > 0 ? quire_format_ms (1000 * n_read / speed) : NULL;

      cost = time != NULL
                 /* Translators: tokens, then a time: "0.81 s". */
                 ? g_strdup_printf (_ ("The system prompt comes first, so the next turn reads the "
                                       "whole chat again: %s tokens, about %s."),
                                    all, time)
                 : g_strdup_printf (_ ("The system prompt comes first, so the next turn reads the "
                                       "whole chat again: %s tokens."),
                                    all);
    }
  gtk_label_set_text (self->cost, cost != NULL ? cost : "");
  gtk_widget_set_visible (GTK_WIDGET (self->cost), cost != NULL);
}

static void
counted_cb (GObject *source, GAsyncResult *result, gpointer user_data)
{
  g_autoptr (QuireChatSettingsWindow) self = user_data;
  g_autoptr (GError) error = NULL;
  g_autoptr (GArray) counts
      = quire_engine_client_count_list_finish (QUIRE_ENGINE_CLIENT (source), result, &error);

  if (counts == NULL || self->conversation == NULL)
    return;
  self->n_old = g_array_index (counts, guint, 0) > 0
                    ? g_array_index (counts, guint, 0) + QUIRE_CONTEXT_MESSAGE_TOKENS
                    : 0;
  show_cost (self, g_array_index (counts, guint, 1));
}

static void
cancel_count (QuireChatSettingsWindow *self)
{
  g_clear_handle_id (&self->count_id, g_source_remove);
  if (self->counting != NULL)
    g_cancellable_cancel (self->counting);
  g_clear_object (&self->counting);
}

static gboolean
count_cb (gpointer user_data)
{
  QuireChatSettingsWindow *self = user_data;
  g_autofree char *system = dup_system (self);
  const char *old = quire_conversation_get_system (self->conversation);
  const char *const texts[] = { old != NULL ? old : "", system, NULL };

  self->count_id = 0;
  self->counting = g_cancellable_new ();
  quire_engine_client_count_list_async (quire_conversation_get_client (self->conversation), texts,
                                        self->counting, counted_cb, g_object_ref (self));
  return G_SOURCE_REMOVE;
}

static void
system_changed_cb (QuireChatSettingsWindow *self)
{
  cancel_count (self);
  self->count_id = g_timeout_add (COUNT_DELAY_MS, count_cb, self);
}

const char *
quire_chat_settings_window_get_cost (QuireChatSettingsWindow *self)
{
  return gtk_label_get_text (self->cost);
}

/* ---- Presets ---- */

static QuireHistory *
get_history (QuireChatSettingsWindow *self)
{
  return quire_conversation_get_history (self->conversation);
}

/* The chosen preset, or NULL. Borrowed. */
static QuirePreset *
selected (QuireChatSettingsWindow *self)
{
  GPtrArray *presets = quire_history_get_presets (get_history (self));
  guint i = adw_combo_row_get_selected (self->preset);

  return i > 0 && i != GTK_INVALID_LIST_POSITION && i <= presets->len
             ? g_ptr_array_index (presets, i - 1)
             : NULL;
}

static void
update_preset_buttons (QuireChatSettingsWindow *self)
{
  g_autofree char *name = g_strstrip (g_strdup (gtk_editable_get_text (self->name)));
  QuirePreset *preset = selected (self);
  gboolean other = preset != NULL && strcmp (preset->name, name) != 0;

  gtk_widget_set_sensitive (self->save, name[0] != '\0');
  gtk_widget_set_sensitive (
      self->rename,
      other && name[0] != '\0'
          && quire_presets_find (quire_history_get_presets (get_history (self)), name) == NULL);
  gtk_widget_set_sensitive (self->remove, preset != NULL);
  gtk_widget_set_sensitive (self->is_default, preset != NULL);
  self->filling = TRUE;
  gtk_check_button_set_active (GTK_CHECK_BUTTON (self->is_default),
                               preset != NULL && preset->is_default);
  self->filling = FALSE;
}

/* Lists them anew, with @name chosen. */
static void
list_presets (QuireChatSettingsWindow *self, const char *name)
{
  GPtrArray *presets = quire_history_get_presets (get_history (self));
  g_autoptr (GtkStringList) names = gtk_string_list_new (NULL);
  guint at = 0;

  /* Translators: no preset is chosen. */
  gtk_string_list_append (names, _ ("None"));
  for (guint i = 0; i < presets->len; i++)
    {
      const QuirePreset *preset = g_ptr_array_index (presets, i);

      gtk_string_list_append (names, preset->name);
      if (name != NULL && strcmp (preset->name, name) == 0)
        at = i + 1;
    }
  self->filling = TRUE;
  adw_combo_row_set_model (self->preset, G_LIST_MODEL (names));
  adw_combo_row_set_selected (self->preset, at);
  gtk_editable_set_text (self->name, at > 0 ? name : "");
  self->filling = FALSE;
  update_preset_buttons (self);
}

static void
preset_cb (QuireChatSettingsWindow *self)
{
  QuirePreset *preset = selected (self);
  QuireChatSettings settings;

  if (self->filling)
    return;
  if (preset != NULL)
    {
      quire_chat_settings_from_json (preset->settings, &settings);
      set_fields (self, preset->system, &settings);
    }
  self->filling = TRUE;
  gtk_editable_set_text (self->name, preset != NULL ? preset->name : "");
  self->filling = FALSE;
  update_preset_buttons (self);
}

static void
name_changed_cb (QuireChatSettingsWindow *self)
{
  if (!self->filling)
    update_preset_buttons (self);
}

static void
keep_presets (QuireChatSettingsWindow *self, GPtrArray *presets, const char *name)
{
  quire_history_set_presets (get_history (self), presets);
  list_presets (self, name);
}

static void
save_clicked_cb (QuireChatSettingsWindow *self)
{
  g_autoptr (GPtrArray) presets
      = quire_presets_copy (quire_history_get_presets (get_history (self)));
  g_autofree char *name = g_strstrip (g_strdup (gtk_editable_get_text (self->name)));
  g_autofree char *system = dup_system (self);
  g_autofree char *json = NULL;
  QuireChatSettings settings;

  get_fields (self, &settings);
  json = quire_chat_settings_to_json (&settings);
  quire_presets_put (presets, quire_preset_new (name, system[0] != '\0' ? system : NULL, json));
  keep_presets (self, presets, name);
}

static void
rename_clicked_cb (QuireChatSettingsWindow *self)
{
  g_autoptr (GPtrArray) presets
      = quire_presets_copy (quire_history_get_presets (get_history (self)));
  g_autofree char *name = g_strstrip (g_strdup (gtk_editable_get_text (self->name)));
  QuirePreset *preset = selected (self);

  if (preset != NULL && quire_presets_rename (presets, preset->name, name))
    keep_presets (self, presets, name);
}

static void
remove_clicked_cb (QuireChatSettingsWindow *self)
{
  g_autoptr (GPtrArray) presets
      = quire_presets_copy (quire_history_get_presets (get_history (self)));
  QuirePreset *preset = selected (self);

  if (preset == NULL)
    return;
  quire_presets_remove (presets, preset->name);
  keep_presets (self, presets, NULL);
}

static void
default_toggled_cb (QuireChatSettingsWindow *self)
{
  g_autoptr (GPtrArray) presets
      = quire_presets_copy (quire_history_get_presets (get_history (self)));
  QuirePreset *preset = selected (self);
  g_autofree char *name = preset != NULL ? g_strdup (preset->name) : NULL;

  if (self->filling || name == NULL)
    return;
  quire_presets_set_default (
      presets, gtk_check_button_get_active (GTK_CHECK_BUTTON (self->is_default)) ? name : NULL);
  keep_presets (self, presets, name);
}

void
quire_conversation_take_default_preset (QuireConversation *conversation)
{
  QuireHistory *history = quire_conversation_get_history (conversation);
  QuirePreset *preset
      = history != NULL ? quire_presets_get_default (quire_history_get_presets (history)) : NULL;
  QuireChatSettings settings;

  if (preset == NULL)
    return;
  quire_conversation_set_system (conversation, preset->system);
  quire_chat_settings_from_json (preset->settings, &settings);
  quire_conversation_set_settings (conversation, &settings);
}

/* ---- Building ---- */

static void
apply_clicked_cb (QuireChatSettingsWindow *self)
{
  g_autofree char *system = dup_system (self);
  QuireChatSettings settings;

  for (int i = 0; i < N_SPINS; i++)
    gtk_spin_button_update (self->spins[i]);
  get_fields (self, &settings);
  quire_conversation_set_system (self->conversation, system);
  quire_conversation_set_settings (self->conversation, &settings);
  gtk_window_close (GTK_WINDOW (self));
}

static AdwPreferencesGroup *
group_new (AdwPreferencesPage *page, const char *title, const char *description)
{
  AdwPreferencesGroup *group = ADW_PREFERENCES_GROUP (adw_preferences_group_new ());

  adw_preferences_group_set_title (group, title);
  if (description != NULL)
    adw_preferences_group_set_description (group, description);
  adw_preferences_page_add (page, group);
  return group;
}

static GtkWidget *
button_new (GtkWidget *box, const char *label, GCallback clicked, gpointer self)
{
  GtkWidget *button = quire_mnemonic_button_new (label);

  g_signal_connect_swapped (button, "clicked", clicked, self);
  gtk_box_append (GTK_BOX (box), button);
  return button;
}

static void
build_presets (QuireChatSettingsWindow *self, AdwPreferencesPage *page)
{
  AdwPreferencesGroup *group
      = group_new (page, _ ("Preset"), _ ("A system prompt and sampling under a name."));
  GtkWidget *row = adw_combo_row_new (), *entry = adw_entry_row_new ();
  GtkWidget *box = quire_wrap_box_new (6, FALSE), *both;

  adw_preferences_row_set_title (ADW_PREFERENCES_ROW (row), _ ("Take From"));
  self->preset = ADW_COMBO_ROW (row);
  quire_combo_row_show_whole (self->preset);
  adw_preferences_group_add (group, row);
  adw_preferences_row_set_title (ADW_PREFERENCES_ROW (entry), _ ("Name"));
  self->name = GTK_EDITABLE (entry);
  adw_preferences_group_add (group, entry);
  self->save = button_new (box, _ ("_Save"), G_CALLBACK (save_clicked_cb), self);
  self->rename = button_new (box, _ ("_Rename"), G_CALLBACK (rename_clicked_cb), self);
  self->remove = button_new (box, _ ("_Delete"), G_CALLBACK (remove_clicked_cb), self);
  self->is_default = quire_mnemonic_check_new (_ ("_New chats begin with it"));
  both = gtk_box_new (GTK_ORIENTATION_VERTICAL, 6);
  gtk_widget_set_margin_top (both, 12);
  gtk_box_append (GTK_BOX (both), box);
  gtk_box_append (GTK_BOX (both), self->is_default);
  adw_preferences_group_add (group, both);
  g_signal_connect_swapped (row, "notify::selected", G_CALLBACK (preset_cb), self);
  g_signal_connect_swapped (entry, "changed", G_CALLBACK (name_changed_cb), self);
  g_signal_connect_swapped (self->is_default, "toggled", G_CALLBACK (default_toggled_cb), self);
}

static void
build_system (QuireChatSettingsWindow *self, AdwPreferencesPage *page)
{
  AdwPreferencesGroup *group
      = group_new (page, _ ("System Prompt"), _ ("What the model is told before the chat."));
  GtkWidget *scrolled = gtk_scrolled_window_new (), *view = gtk_text_view_new (), *box;

  self->view = view;
  self->buffer = gtk_text_view_get_buffer (GTK_TEXT_VIEW (view));
  gtk_text_view_set_wrap_mode (GTK_TEXT_VIEW (view), GTK_WRAP_WORD_CHAR);
  gtk_text_view_set_accepts_tab (GTK_TEXT_VIEW (view), FALSE);
  gtk_text_view_set_left_margin (GTK_TEXT_VIEW (view), 12);
  gtk_text_view_set_right_margin (GTK_TEXT_VIEW (view), 12);
  gtk_text_view_set_top_margin (GTK_TEXT_VIEW (view), 12);
  gtk_text_view_set_bottom_margin (GTK_TEXT_VIEW (view), 12);
  gtk_widget_add_css_class (view, "inline");
  gtk_accessible_update_property (GTK_ACCESSIBLE (view), GTK_ACCESSIBLE_PROPERTY_LABEL,
                                  _ ("System prompt"), -1);
  gtk_scrolled_window_set_policy (GTK_SCROLLED_WINDOW (scrolled), GTK_POLICY_NEVER,
                                  GTK_POLICY_AUTOMATIC);
  gtk_scrolled_window_set_min_content_height (GTK_SCROLLED_WINDOW (scrolled), TEXT_HEIGHT_PX);
  gtk_scrolled_window_set_child (GTK_SCROLLED_WINDOW (scrolled), view);
  gtk_widget_add_css_class (scrolled, "card");
  gtk_widget_set_overflow (scrolled, GTK_OVERFLOW_HIDDEN);
  box = gtk_box_new (GTK_ORIENTATION_VERTICAL, 6);
  gtk_box_append (GTK_BOX (box), scrolled);
  self->count = GTK_LABEL (gtk_label_new (""));
  gtk_label_set_xalign (self->count, 0);
  gtk_widget_add_css_class (GTK_WIDGET (self->count), "dim-label");
  gtk_widget_add_css_class (GTK_WIDGET (self->count), "caption");
  gtk_widget_add_css_class (GTK_WIDGET (self->count), "numeric");
  gtk_box_append (GTK_BOX (box), GTK_WIDGET (self->count));
  self->cost = GTK_LABEL (
      g_object_new (GTK_TYPE_LABEL, "accessible-role", GTK_ACCESSIBLE_ROLE_STATUS, NULL));
  gtk_label_set_wrap (self->cost, TRUE);
  gtk_label_set_xalign (self->cost, 0);
  gtk_widget_add_css_class (GTK_WIDGET (self->cost), "caption");
  gtk_widget_set_visible (GTK_WIDGET (self->cost), FALSE);
  gtk_box_append (GTK_BOX (box), GTK_WIDGET (self->cost));
  adw_preferences_group_add (group, box);
  g_signal_connect_swapped (self->buffer, "changed", G_CALLBACK (system_changed_cb), self);
}

static GtkSpinButton *
add_spin (QuireChatSettingsWindow *self, const char *title, const char *subtitle, double min,
          double max, double step, guint digits)
{
  GtkWidget *row = adw_action_row_new (), *spin = gtk_spin_button_new_with_range (min, max, step);

  adw_preferences_row_set_title (ADW_PREFERENCES_ROW (row), title);
  adw_action_row_set_subtitle (ADW_ACTION_ROW (row), subtitle);
  gtk_spin_button_set_digits (GTK_SPIN_BUTTON (spin), digits);
  gtk_widget_set_valign (spin, GTK_ALIGN_CENTER);
  adw_action_row_add_suffix (ADW_ACTION_ROW (row), spin);
  adw_action_row_set_activatable_widget (ADW_ACTION_ROW (row), spin);
  gtk_accessible_update_property (GTK_ACCESSIBLE (spin), GTK_ACCESSIBLE_PROPERTY_LABEL, title, -1);
  adw_expander_row_add_row (self->sampling, row);
  return GTK_SPIN_BUTTON (spin);
}

static void
build_sampling (QuireChatSettingsWindow *self, AdwPreferencesPage *page)
{
  AdwPreferencesGroup *group = group_new (page, _ ("Sampling"), NULL);
  GtkWidget *row = adw_expander_row_new (), *entry = adw_entry_row_new (),
            *combo = adw_combo_row_new ();
  const char *choices[] = { _ ("Model’s default"), _ ("On"), _ ("Off"), NULL };
  g_autoptr (GtkStringList) model = gtk_string_list_new (choices);

  self->sampling = ADW_EXPANDER_ROW (row);
  adw_preferences_row_set_title (ADW_PREFERENCES_ROW (row), _ ("Values for This Chat"));
  adw_expander_row_set_subtitle (self->sampling, _ ("Else those of the Preferences"));
  adw_expander_row_set_show_enable_switch (self->sampling, TRUE);
  adw_preferences_group_add (group, row);
  self->spins[TEMPERATURE]
      = add_spin (self, _ ("Temperature"), _ ("0: always the likeliest token"), 0, 2, 0.05, 2);
  self->spins[TOP_P] = add_spin (self, _ ("Top p"), _ ("1: off"), 0, 1, 0.01, 2);
  self->spins[TOP_K] = add_spin (self, _ ("Top k"), _ ("0: off"), 0, 1000, 1, 0);
  self->spins[MIN_P] = add_spin (self, _ ("Min p"), _ ("0: off"), 0, 1, 0.01, 2);
  self->spins[REPETITION]
      = add_spin (self, _ ("Repetition penalty"), _ ("1: off"), 0.1, 2, 0.05, 2);
  self->spins[PRESENCE] = add_spin (self, _ ("Presence penalty"), _ ("0: off"), -2, 2, 0.1, 2);
  self->spins[FREQUENCY] = add_spin (self, _ ("Frequency penalty"), _ ("0: off"), -2, 2, 0.1, 2);
  self->spins[MAX_TOKENS]
      = add_spin (self, _ ("Longest reply"), _ ("In tokens; 0: no limit"), 0, 1048576, 64, 0);
  adw_preferences_row_set_title (ADW_PREFERENCES_ROW (entry), _ ("Seed (empty: random)"));
  gtk_text_set_input_purpose (GTK_TEXT (gtk_editable_get_delegate (GTK_EDITABLE (entry))),
                              GTK_INPUT_PURPOSE_DIGITS);
  self->seed = GTK_EDITABLE (entry);
  adw_expander_row_add_row (self->sampling, entry);
  adw_preferences_row_set_title (ADW_PREFERENCES_ROW (combo), _ ("Thinking"));
  adw_combo_row_set_model (ADW_COMBO_ROW (combo), G_LIST_MODEL (model));
  self->thinking = ADW_COMBO_ROW (combo);
  quire_combo_row_show_whole (self->thinking);
  adw_expander_row_add_row (self->sampling, combo);
}

static void
build (QuireChatSettingsWindow *self)
{
  GtkWidget *box = gtk_box_new (GTK_ORIENTATION_VERTICAL, 0), *bar = adw_header_bar_new ();
  GtkWidget *page = adw_preferences_page_new (), *cancel, *apply;

  adw_header_bar_set_show_end_title_buttons (ADW_HEADER_BAR (bar), FALSE);
  adw_header_bar_set_show_start_title_buttons (ADW_HEADER_BAR (bar), FALSE);
  cancel = quire_mnemonic_button_new (_ ("_Cancel"));
  gtk_actionable_set_action_name (GTK_ACTIONABLE (cancel), "window.close");
  adw_header_bar_pack_start (ADW_HEADER_BAR (bar), cancel);
  apply = quire_mnemonic_button_new (_ ("_Apply"));
  gtk_widget_add_css_class (apply, "suggested-action");
  g_signal_connect_swapped (apply, "clicked", G_CALLBACK (apply_clicked_cb), self);
  adw_header_bar_pack_end (ADW_HEADER_BAR (bar), apply);
  gtk_box_append (GTK_BOX (box), bar);
  gtk_widget_set_vexpand (page, TRUE);
  gtk_box_append (GTK_BOX (box), page);
  adw_window_set_content (ADW_WINDOW (self), box);
  build_system (self, ADW_PREFERENCES_PAGE (page));
  build_sampling (self, ADW_PREFERENCES_PAGE (page));
  build_presets (self, ADW_PREFERENCES_PAGE (page));
}

static void
quire_chat_settings_window_dispose (GObject *object)
{
  QuireChatSettingsWindow *self = QUIRE_CHAT_SETTINGS_WINDOW (object);

  cancel_count (self);
  g_clear_object (&self->conversation);
  G_OBJECT_CLASS (quire_chat_settings_window_parent_class)->dispose (object);
}

static void
quire_chat_settings_window_class_init (QuireChatSettingsWindowClass *klass)
{
  G_OBJECT_CLASS (klass)->dispose = quire_chat_settings_window_dispose;
  gtk_widget_class_add_binding_action (GTK_WIDGET_CLASS (klass), GDK_KEY_Escape, 0, "window.close",
                                       NULL);
}

static void
quire_chat_settings_window_init (QuireChatSettingsWindow *self)
{
  gtk_window_set_title (GTK_WINDOW (self), _ ("Chat Settings"));
  gtk_window_set_modal (GTK_WINDOW (self), TRUE);
  gtk_window_set_default_size (GTK_WINDOW (self), 520, 640);
}

GtkWindow *
quire_chat_settings_window_new (GtkWindow *parent, QuireConversation *conversation)
{
  QuireChatSettingsWindow *self
      = g_object_new (QUIRE_TYPE_CHAT_SETTINGS_WINDOW, "transient-for", parent, NULL);
  QuireChatSettings settings;

  self->conversation = g_object_ref (conversation);
  build (self);
  quire_conversation_get_settings (conversation, &settings);
  set_fields (self, quire_conversation_get_system (conversation), &settings);
  system_changed_cb (self);
  list_presets (self, NULL);
  gtk_window_set_focus (GTK_WINDOW (self), self->view);
  /* Closed, it lives on as long as an event holds it, perhaps longer than its parent: it must not look back then. */
  g_signal_connect (self, "unrealize", G_CALLBACK (gtk_window_set_transient_for), NULL);
  return GTK_WINDOW (self);
}
