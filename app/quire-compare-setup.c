/* quire-compare-setup.c: see quire-compare-setup.h. Tokens are counted on a thread after each change of the prompt; until
 * they are known the need is not said and nothing can start. CSS: .quire-compare-setup. */
#include "app/quire-compare-setup.h"

#include <glib/gi18n.h>
#include <string.h>

#include "app/quire-combo.h"
#include "app/quire-format.h"
#include "app/quire-widget.h"

/* Tokens of the template around a message, and before the reply: a little more than they are. */
#define MESSAGE_TOKENS 8
#define COUNT_MS 300

typedef enum
{
  PROMPT_REPLAY,
  PROMPT_LAST,
  PROMPT_OTHER,
} PromptKind;

static const guint timed_tokens[] = { 256, 128, 64, 32 };

struct _QuireCompareSetupView
{
  GtkBox parent_instance;

  QuireEngineClient *client;
  QuireTurnSettings settings;
  GPtrArray *texts;
  GArray *prompt; /* (element-type qe_message) */
  PromptKind kinds[3];
  guint n_kinds;
  AdwComboRow *kind, *order, *timed, *sampling;
  GtkWidget *other; /* the row of another prompt */
  GtkTextView *text;
  char *other_text;
  GtkWidget *checks[QUIRE_N_CACHE_CHOICES];
  GtkLabel *needs[QUIRE_N_CACHE_CHOICES];
  GtkWidget *rows[QUIRE_N_CACHE_CHOICES];
  GtkLabel *need;
  GtkWidget *start;
  GCancellable *counting;
  guint count_id;
  gssize n_tokens; /* -1: not known */
};

G_DEFINE_FINAL_TYPE (QuireCompareSetupView, quire_compare_setup, GTK_TYPE_BOX)

static guint start_signal;

static PromptKind
get_kind (QuireCompareSetupView *self)
{
  guint i = adw_combo_row_get_selected (self->kind);

  return i < self->n_kinds ? self->kinds[i] : PROMPT_OTHER;
}

static guint
get_timed (QuireCompareSetupView *self)
{
  guint i = adw_combo_row_get_selected (self->timed);

  return timed_tokens[MIN (i, G_N_ELEMENTS (timed_tokens) - 1)];
}

/* Returns: (element-type qe_message) owned; its text is borrowed. */
static GArray *
collect (QuireCompareSetupView *self)
{
  GArray *out = g_array_new (FALSE, TRUE, sizeof (qe_message));
  PromptKind kind = get_kind (self);

  if (kind == PROMPT_REPLAY)
    g_array_append_vals (out, self->prompt->data, self->prompt->len);
  else if (kind == PROMPT_LAST)
    {
      const qe_message *first = &g_array_index (self->prompt, qe_message, 0);

      if (first->role == QE_ROLE_SYSTEM)
        g_array_append_vals (out, first, 1);
      g_array_append_vals (out, &g_array_index (self->prompt, qe_message, self->prompt->len - 1),
                           1);
    }
  else
    {
      qe_message message = { QE_ROLE_USER, NULL, -1 };

      g_free (self->other_text);
      g_object_get (gtk_text_view_get_buffer (self->text), "text", &self->other_text, NULL);
      message.text = self->other_text;
      if (self->other_text[strspn (self->other_text, " \t\n")] != '\0')
        g_array_append_val (out, message);
    }
  return out;
}

static guint
get_choices (QuireCompareSetupView *self, QuireCacheChoice *out, guint max)
{
  guint n = 0;

  for (guint c = 0; c < QUIRE_N_CACHE_CHOICES; c++)
    if (self->checks[c] != NULL && gtk_check_button_get_active (GTK_CHECK_BUTTON (self->checks[c]))
        && n < max)
      out[n++] = (QuireCacheChoice)c;
  return n;
}

/* ---- What it needs ---- */

static void
update_rows (QuireCompareSetupView *self, const qe_memory_plan *plan, guint n_tokens,
             gboolean known, gboolean full)
{
  for (guint c = 0; c < QUIRE_N_CACHE_CHOICES; c++)
    {
      g_autofree char *text = NULL;
      QuireNeed need;

      if (self->checks[c] == NULL)
        continue;
      gtk_widget_set_visible (self->rows[c],
                              quire_cache_choice_is_offered ((QuireCacheChoice)c, plan));
      gtk_widget_set_sensitive (
          self->rows[c], !full || gtk_check_button_get_active (GTK_CHECK_BUTTON (self->checks[c])));
      if (!known)
        continue;
      quire_compare_need (plan, (QuireCacheChoice)c, n_tokens, &need);
      {
        g_autofree char *needed = quire_format_bytes (need.needed);
        g_autofree char *allowed = quire_format_bytes (need.allowed);

        text = need.fits ? g_strdup (needed)
                         : g_strdup_printf (_ ("needs %s, %s allowed"), needed, allowed);
      }
      gtk_label_set_text (self->needs[c], text);
      if (need.fits)
        gtk_widget_remove_css_class (GTK_WIDGET (self->needs[c]), "error");
      else
        gtk_widget_add_css_class (GTK_WIDGET (self->needs[c]), "error");
    }
}

static char *
dup_need (QuireCompareSetupView *self, const qe_memory_plan *plan, const QuireCacheChoice *choices,
          guint n, gboolean *can_start)
{
  const qe_engine_status *status = quire_engine_client_get_status (self->client);
  gboolean interleaved = adw_combo_row_get_selected (self->order) == 1, fits;
  guint n_tokens;
  guint64 device, host;
  g_autofree char *on_device = NULL, *on_host = NULL, *allowed = NULL, *allowed_host = NULL,
                  *count = NULL;

  *can_start = FALSE;
  if (!quire_engine_client_is_ready (self->client))
    return g_strdup (_ ("No model is loaded."));
  if (n < QUIRE_COMPARE_PANES_MIN)
    return g_strdup (_ ("Choose two to four modes."));
  if (self->n_tokens == 0)
    return g_strdup (_ ("Write a prompt."));
  if (self->n_tokens < 0 || plan == NULL)
    return g_strdup (_ ("Counting tokens…"));
  n_tokens = (guint)self->n_tokens + get_timed (self);
  count = quire_format_count (n_tokens);
  if (n_tokens > status->model->context_max)
    {
      g_autofree char *max = quire_format_count (status->model->context_max);

      return g_strdup_printf (_ ("Needs %s tokens, the model takes %s."), count, max);
    }
  quire_compare_need_all (plan, choices, n, n_tokens, interleaved, &device, &host, &fits);
  on_device = quire_format_bytes (device);
  on_host = quire_format_bytes (host);
  allowed = quire_format_bytes (plan->kv);
  allowed_host = quire_format_bytes (plan->host_kv);
  /* One after another, a pane that does not fit is left out; the others run. */
  *can_start = fits || !interleaved;
  if (plan->host_kv > 0)
    return g_strdup_printf (
        fits
            ? _ ("About %s tokens: needs %s of %s on the GPU and %s of %s in host memory. It fits.")
            : _ ("About %s tokens: needs %s of %s on the GPU and %s of %s in host memory. It does "
                 "not fit."),
        count, on_device, allowed, on_host, allowed_host);
  return g_strdup_printf (fits ? _ ("About %s tokens: needs %s of %s of cache memory. It fits.")
                               : _ ("About %s tokens: needs %s of %s of cache memory. It does not "
                                    "fit."),
                          count, on_device, allowed);
}

static void
update (QuireCompareSetupView *self)
{
  const qe_memory_plan *plan = quire_engine_client_get_plan (self->client);
  QuireCacheChoice choices[QUIRE_COMPARE_PANES_MAX];
  guint n = get_choices (self, choices, QUIRE_COMPARE_PANES_MAX);
  gboolean can_start;
  g_autofree char *need = NULL;

  gtk_widget_set_visible (self->other, get_kind (self) == PROMPT_OTHER);
  update_rows (self, plan, (guint)MAX (self->n_tokens, 0) + get_timed (self),
               plan != NULL && self->n_tokens > 0, n >= QUIRE_COMPARE_PANES_MAX);
  need = dup_need (self, plan, choices, n, &can_start);
  if (g_strcmp0 (gtk_label_get_text (self->need), need) != 0)
    gtk_label_set_text (self->need, need);
  gtk_widget_set_sensitive (self->start, can_start);
}

static void
counted_cb (GObject *source, GAsyncResult *result, gpointer user_data)
{
  g_autoptr (QuireCompareSetupView) self = user_data;
  g_autoptr (GError) error = NULL;
  g_autoptr (GArray) counts
      = quire_engine_client_count_list_finish (QUIRE_ENGINE_CLIENT (source), result, &error);

  if (counts == NULL || self->client == NULL)
    return;
  self->n_tokens = MESSAGE_TOKENS;
  for (guint i = 0; i < counts->len; i++)
    self->n_tokens += g_array_index (counts, guint, i) + MESSAGE_TOKENS;
  update (self);
}

static gboolean
count_cb (gpointer user_data)
{
  QuireCompareSetupView *self = user_data;
  g_autoptr (GArray) prompt = collect (self);
  g_autoptr (GPtrArray) texts = g_ptr_array_new ();

  self->count_id = 0;
  if (self->counting != NULL)
    g_cancellable_cancel (self->counting);
  g_clear_object (&self->counting);
  if (prompt->len == 0)
    {
      self->n_tokens = 0;
      update (self);
      return G_SOURCE_REMOVE;
    }
  if (!quire_engine_client_is_ready (self->client))
    {
      update (self);
      return G_SOURCE_REMOVE;
    }
  for (guint i = 0; i < prompt->len; i++)
    g_ptr_array_add (texts, (gpointer)g_array_index (prompt, qe_message, i).text);
  g_ptr_array_add (texts, NULL);
  self->counting = g_cancellable_new ();
  quire_engine_client_count_list_async (self->client, (const char *const *)texts->pdata,
                                        self->counting, counted_cb, g_object_ref (self));
  return G_SOURCE_REMOVE;
}

static void
count_soon (QuireCompareSetupView *self)
{
  self->n_tokens = -1;
  g_clear_handle_id (&self->count_id, g_source_remove);
  self->count_id = g_timeout_add (get_kind (self) == PROMPT_OTHER ? COUNT_MS : 0, count_cb, self);
  update (self);
}

static void
status_cb (QuireCompareSetupView *self)
{
  if (self->n_tokens < 0 && self->count_id == 0)
    count_soon (self);
  else
    update (self);
}

GArray *
quire_compare_setup_get (QuireCompareSetupView *self, QuireCompareSetup *out)
{
  const char *title = out->title, *source = out->source;

  *out = (QuireCompareSetup){ .title = title, .source = source };
  out->n_choices = get_choices (self, out->choices, QUIRE_COMPARE_PANES_MAX);
  out->interleaved = adw_combo_row_get_selected (self->order) == 1;
  out->n_timed = get_timed (self);
  out->n_prompt = (guint)MAX (self->n_tokens, 0);
  out->settings = self->settings;
  if (adw_combo_row_get_selected (self->sampling) == 0)
    out->settings.sampling.temperature = 0;
  return collect (self);
}

const char *
quire_compare_setup_get_need (QuireCompareSetupView *self)
{
  return gtk_label_get_text (self->need);
}

GtkWidget *
quire_compare_setup_get_check (QuireCompareSetupView *self, QuireCacheChoice choice)
{
  return self->checks[choice];
}

GtkWidget *
quire_compare_setup_get_start (QuireCompareSetupView *self)
{
  return self->start;
}

void
quire_compare_setup_set_timed (QuireCompareSetupView *self, guint index)
{
  adw_combo_row_set_selected (self->timed, index);
}

void
quire_compare_setup_set_interleaved (QuireCompareSetupView *self, gboolean interleaved)
{
  adw_combo_row_set_selected (self->order, interleaved ? 1 : 0);
}

/* ---- Building ---- */

static AdwComboRow *
combo_new (const char *title, const char *subtitle, GtkStringList *model)
{
  AdwComboRow *row = g_object_new (ADW_TYPE_COMBO_ROW, "title", title, "subtitle", subtitle,
                                   "model", model, NULL);

  quire_combo_row_show_whole (row);
  g_object_unref (model);
  return row;
}

static void
add_prompt (QuireCompareSetupView *self, GtkWidget *page)
{
  AdwPreferencesGroup *group = g_object_new (ADW_TYPE_PREFERENCES_GROUP, NULL);
  GtkStringList *kinds = gtk_string_list_new (NULL);
  GtkWidget *scrolled = gtk_scrolled_window_new ();
  guint n_turns = 0;

  for (guint i = 0; i < self->prompt->len; i++)
    n_turns += g_array_index (self->prompt, qe_message, i).role == QE_ROLE_USER;
  if (n_turns > 1)
    {
      g_autofree char *text = g_strdup_printf (
          ngettext ("This Chat, %u Turn", "This Chat, %u Turns", n_turns), n_turns);

      gtk_string_list_append (kinds, text);
      self->kinds[self->n_kinds++] = PROMPT_REPLAY;
    }
  if (n_turns > 0)
    {
      gtk_string_list_append (kinds, _ ("Last Message Alone"));
      self->kinds[self->n_kinds++] = PROMPT_LAST;
    }
  gtk_string_list_append (kinds, _ ("Another Prompt"));
  self->kinds[self->n_kinds++] = PROMPT_OTHER;
  self->kind = combo_new (_ ("Prompt"), n_turns > 1 ? _ ("Recorded replies are the history") : NULL,
                          kinds);
  adw_preferences_group_add (group, GTK_WIDGET (self->kind));

  self->text = GTK_TEXT_VIEW (gtk_text_view_new ());
  gtk_text_view_set_wrap_mode (self->text, GTK_WRAP_WORD_CHAR);
  gtk_text_view_set_accepts_tab (self->text, FALSE);
  gtk_accessible_update_property (GTK_ACCESSIBLE (self->text), GTK_ACCESSIBLE_PROPERTY_LABEL,
                                  _ ("Prompt to compare"), -1);
  gtk_scrolled_window_set_min_content_height (GTK_SCROLLED_WINDOW (scrolled), 72);
  gtk_scrolled_window_set_policy (GTK_SCROLLED_WINDOW (scrolled), GTK_POLICY_NEVER,
                                  GTK_POLICY_AUTOMATIC);
  gtk_scrolled_window_set_child (GTK_SCROLLED_WINDOW (scrolled), GTK_WIDGET (self->text));
  gtk_widget_add_css_class (scrolled, "card");
  gtk_widget_set_overflow (scrolled, GTK_OVERFLOW_HIDDEN);
  gtk_widget_set_margin_top (scrolled, 12);
  self->other = scrolled;
  adw_preferences_group_add (group, scrolled);
  gtk_box_append (GTK_BOX (page), GTK_WIDGET (group));
}

static void
add_mode (QuireCompareSetupView *self, AdwPreferencesGroup *group, QuireCacheChoice c, gboolean on)
{
  g_autofree char *name = quire_cache_choice_dup_name (c);
  GtkWidget *row = g_object_new (ADW_TYPE_ACTION_ROW, "title", name, "subtitle",
                                 quire_cache_choice_get_description (c), NULL);

  self->rows[c] = row;
  self->checks[c] = gtk_check_button_new ();
  gtk_check_button_set_active (GTK_CHECK_BUTTON (self->checks[c]), on);
  gtk_widget_set_valign (self->checks[c], GTK_ALIGN_CENTER);
  self->needs[c] = GTK_LABEL (gtk_label_new (NULL));
  gtk_label_set_wrap (self->needs[c], TRUE);
  gtk_label_set_xalign (self->needs[c], 1);
  gtk_label_set_width_chars (self->needs[c], 8);
  gtk_label_set_max_width_chars (self->needs[c], 16);
  gtk_widget_add_css_class (GTK_WIDGET (self->needs[c]), "numeric");
  gtk_widget_add_css_class (GTK_WIDGET (self->needs[c]), "caption");
  gtk_widget_add_css_class (GTK_WIDGET (self->needs[c]), "dim-label");
  adw_action_row_add_prefix (ADW_ACTION_ROW (row), self->checks[c]);
  adw_action_row_add_suffix (ADW_ACTION_ROW (row), GTK_WIDGET (self->needs[c]));
  adw_action_row_set_activatable_widget (ADW_ACTION_ROW (row), self->checks[c]);
  g_signal_connect_swapped (self->checks[c], "toggled", G_CALLBACK (update), self);
  adw_preferences_group_add (group, row);
}

static void
add_modes (QuireCompareSetupView *self, GtkWidget *page, QuireCacheChoice present)
{
  static const QuireCacheChoice offered[]
      = { QUIRE_CACHE_REBUILD, QUIRE_CACHE_PAGED,       QUIRE_CACHE_SESSION,
          QUIRE_CACHE_TIERED,  QUIRE_CACHE_TIERED_INT8, QUIRE_CACHE_SELECTIVE };
  AdwPreferencesGroup *group
      = g_object_new (ADW_TYPE_PREFERENCES_GROUP, "title", _ ("Modes"), "description",
                      _ ("Two to four, each in sessions of its own that share nothing"), NULL);
  QuireCacheChoice second = present == QUIRE_CACHE_ARTICLE ? QUIRE_CACHE_TIERED : present;

  if (second == QUIRE_CACHE_REBUILD)
    second = QUIRE_CACHE_SESSION;
  for (gsize i = 0; i < G_N_ELEMENTS (offered); i++)
    add_mode (self, group, offered[i], offered[i] == QUIRE_CACHE_REBUILD || offered[i] == second);
  gtk_box_append (GTK_BOX (page), GTK_WIDGET (group));
}

static void
add_order (QuireCompareSetupView *self, GtkWidget *page)
{
  AdwPreferencesGroup *group = g_object_new (ADW_TYPE_PREFERENCES_GROUP, "title", _ ("Runs"), NULL);
  const char *const orders[] = { _ ("One after Another"), _ ("Interleaved"), NULL };
  const char *const samplings[] = { _ ("Likeliest Tokens"), _ ("As in the Chat"), NULL };
  GtkStringList *timed = gtk_string_list_new (NULL);

  self->order = combo_new (_ ("Order"), _ ("Interleaved runs show streams, no figures"),
                           gtk_string_list_new (orders));
  for (gsize i = 0; i < G_N_ELEMENTS (timed_tokens); i++)
    {
      g_autofree char *text = g_strdup_printf (_ ("%u Tokens"), timed_tokens[i]);

      gtk_string_list_append (timed, text);
    }
  self->timed = combo_new (_ ("Timed Reply"), _ ("A warm-up, then the median of three"), timed);
  self->sampling = combo_new (_ ("Sampling"), _ ("The same seed in every mode"),
                              gtk_string_list_new (samplings));
  adw_combo_row_set_selected (self->sampling, self->settings.sampling.temperature > 0 ? 1 : 0);
  adw_preferences_group_add (group, GTK_WIDGET (self->order));
  adw_preferences_group_add (group, GTK_WIDGET (self->timed));
  adw_preferences_group_add (group, GTK_WIDGET (self->sampling));
  gtk_box_append (GTK_BOX (page), GTK_WIDGET (group));
}

static void
start_clicked_cb (QuireCompareSetupView *self)
{
  g_signal_emit (self, start_signal, 0);
}

static GtkWidget *
footer_new (QuireCompareSetupView *self)
{
  GtkWidget *box = gtk_box_new (GTK_ORIENTATION_HORIZONTAL, 12), *clamp = adw_clamp_new ();

  self->need
      = GTK_LABEL (g_object_new (GTK_TYPE_LABEL, "accessible-role", GTK_ACCESSIBLE_ROLE_STATUS,
                                 "xalign", 0.0, "wrap", TRUE, "hexpand", TRUE, NULL));
  gtk_widget_add_css_class (GTK_WIDGET (self->need), "numeric");
  self->start = quire_mnemonic_button_new (_ ("_Start"));
  gtk_widget_add_css_class (self->start, "suggested-action");
  gtk_widget_add_css_class (self->start, "pill");
  gtk_widget_set_valign (self->start, GTK_ALIGN_CENTER);
  g_signal_connect_swapped (self->start, "clicked", G_CALLBACK (start_clicked_cb), self);
  gtk_box_append (GTK_BOX (box), GTK_WIDGET (self->need));
  gtk_box_append (GTK_BOX (box), self->start);
  gtk_widget_add_css_class (box, "quire-compare-foot");
  adw_clamp_set_maximum_size (ADW_CLAMP (clamp), 640);
  adw_clamp_set_child (ADW_CLAMP (clamp), box);
  return clamp;
}

static void
quire_compare_setup_dispose (GObject *object)
{
  QuireCompareSetupView *self = QUIRE_COMPARE_SETUP (object);

  g_clear_handle_id (&self->count_id, g_source_remove);
  if (self->counting != NULL)
    g_cancellable_cancel (self->counting);
  g_clear_object (&self->counting);
  g_clear_object (&self->client);
  G_OBJECT_CLASS (quire_compare_setup_parent_class)->dispose (object);
}

static void
quire_compare_setup_finalize (GObject *object)
{
  QuireCompareSetupView *self = QUIRE_COMPARE_SETUP (object);

  g_ptr_array_unref (self->texts);
  g_array_unref (self->prompt);
  g_free (self->other_text);
  G_OBJECT_CLASS (quire_compare_setup_parent_class)->finalize (object);
}

static gboolean
quire_compare_setup_grab_focus (GtkWidget *widget)
{
  return gtk_widget_grab_focus (GTK_WIDGET (QUIRE_COMPARE_SETUP (widget)->kind));
}

static void
quire_compare_setup_class_init (QuireCompareSetupViewClass *klass)
{
  G_OBJECT_CLASS (klass)->dispose = quire_compare_setup_dispose;
  G_OBJECT_CLASS (klass)->finalize = quire_compare_setup_finalize;
  GTK_WIDGET_CLASS (klass)->grab_focus = quire_compare_setup_grab_focus;
  start_signal = g_signal_new ("start", G_TYPE_FROM_CLASS (klass), G_SIGNAL_RUN_LAST, 0, NULL, NULL,
                               NULL, G_TYPE_NONE, 0);
}

static void
quire_compare_setup_init (QuireCompareSetupView *self)
{
  gtk_orientable_set_orientation (GTK_ORIENTABLE (self), GTK_ORIENTATION_VERTICAL);
  self->texts = g_ptr_array_new_with_free_func (g_free);
  self->prompt = g_array_new (FALSE, TRUE, sizeof (qe_message));
  self->n_tokens = -1;
}

GtkWidget *
quire_compare_setup_new (QuireEngineClient *client, GArray *prompt,
                         const QuireTurnSettings *settings, QuireCacheChoice present)
{
  QuireCompareSetupView *self = g_object_new (QUIRE_TYPE_COMPARE_SETUP, NULL);
  GtkWidget *page = gtk_box_new (GTK_ORIENTATION_VERTICAL, 24);
  GtkWidget *clamp = adw_clamp_new (), *scrolled = gtk_scrolled_window_new ();

  self->client = g_object_ref (client);
  self->settings = *settings;
  for (guint i = 0; i < prompt->len; i++)
    {
      qe_message m = g_array_index (prompt, qe_message, i);

      m.text = m.n_bytes >= 0 ? g_strndup (m.text, (gsize)m.n_bytes) : g_strdup (m.text);
      m.n_bytes = -1;
      g_ptr_array_add (self->texts, (gpointer)m.text);
      g_array_append_val (self->prompt, m);
    }
  add_prompt (self, page);
  add_modes (self, page, present);
  add_order (self, page);
  gtk_widget_add_css_class (page, "quire-compare-setup");
  adw_clamp_set_maximum_size (ADW_CLAMP (clamp), 640);
  adw_clamp_set_child (ADW_CLAMP (clamp), page);
  gtk_scrolled_window_set_policy (GTK_SCROLLED_WINDOW (scrolled), GTK_POLICY_NEVER,
                                  GTK_POLICY_AUTOMATIC);
  gtk_scrolled_window_set_child (GTK_SCROLLED_WINDOW (scrolled), clamp);
  gtk_widget_set_vexpand (scrolled, TRUE);
  gtk_box_append (GTK_BOX (self), scrolled);
  gtk_box_append (GTK_BOX (self), footer_new (self));
  g_signal_connect_swapped (self->kind, "notify::selected", G_CALLBACK (count_soon), self);
  g_signal_connect_swapped (self->order, "notify::selected", G_CALLBACK (update), self);
  g_signal_connect_swapped (self->timed, "notify::selected", G_CALLBACK (update), self);
  g_signal_connect_object (gtk_text_view_get_buffer (self->text), "changed",
                           G_CALLBACK (count_soon), self, G_CONNECT_SWAPPED);
  g_signal_connect_object (client, "status-changed", G_CALLBACK (status_cb), self,
                           G_CONNECT_SWAPPED);
  quire_widget_name_all (GTK_WIDGET (self));
  count_soon (self);
  return GTK_WIDGET (self);
}
