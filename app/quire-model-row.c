/* quire-model-row.c: see quire-model-row.h.
 *
 * The title is the model's name, the subtitle one line of facts and its state. Folded out: what it takes, where it lies.
 * What a change of the model costs the open chats is said before it happens, in a popover of the Load button.
 * CSS: .quire-model */
#include "app/quire-model-row.h"

#include <glib/gi18n.h>

#include "app/quire-format.h"
#include "app/quire-reading-speed.h"
#include "app/quire-settings.h"
#include "app/quire-widget.h"
#include "app/quire-words.h"

struct _QuireModelRow
{
  AdwExpanderRow parent_instance;

  QuireEngineClient *client;
  QuireModelItem *item;
  GtkWidget *icon, *spinner;
  GtkWidget *button; /* Unload, Cancel; Load where nothing is lost by it */
  GtkWidget *ask;    /* Load with its cost */
  GtkLabel *ask_label;
  GtkWidget *progress;
  GPtrArray *facts; /* rows, borrowed */
};

G_DEFINE_FINAL_TYPE (QuireModelRow, quire_model_row, ADW_TYPE_EXPANDER_ROW)

enum
{
  LOAD,
  UNLOAD,
  REMOVE,
  N_SIGNALS
};
static guint signals[N_SIGNALS];

/* The row's way to be shown. */
typedef enum
{
  STATE_SCANNING,
  STATE_LOADABLE,
  STATE_LOADING,
  STATE_LOADED,
  STATE_RELEASED, /* it is the engine's, but its memory was given back */
  STATE_FAILED,   /* the last load of it failed */
  STATE_BAD,      /* it cannot be loaded */
} RowState;

gboolean
quire_model_row_is_current (QuireModelRow *self)
{
  const char *dir = quire_engine_client_get_model_dir (self->client);
  g_autofree char *path = dir != NULL ? g_canonicalize_filename (dir, NULL) : NULL;

  return g_strcmp0 (path, quire_model_item_get_dir (self->item)) == 0;
}

static RowState
get_state (QuireModelRow *self)
{
  const QuireModelFacts *facts = quire_model_item_get_facts (self->item);
  const qe_engine_status *status = quire_engine_client_get_status (self->client);

  if (quire_model_row_is_current (self))
    switch (status->state)
      {
      case QE_ENGINE_LOADING:
        return STATE_LOADING;
      case QE_ENGINE_READY:
        return STATE_LOADED;
      case QE_ENGINE_RELEASED:
      case QE_ENGINE_LOST:
        return STATE_RELEASED;
      case QE_ENGINE_FAILED:
        return STATE_FAILED;
      case QE_ENGINE_EMPTY:
      default:
        break;
      }
  if (facts == NULL)
    return STATE_SCANNING;
  return facts->verdict == QUIRE_MODEL_FITS ? STATE_LOADABLE : STATE_BAD;
}

/* ---- Words ---- */

static char *
dup_facts_line (QuireModelRow *self, const QuireModelFacts *facts)
{
  GString *text = g_string_new (facts->format);

  if (facts->n_bytes > 0)
    {
      g_autofree char *bytes = quire_format_bytes (facts->n_bytes);

      g_string_append_printf (text, "%s%s", text->len > 0 ? " · " : "", bytes);
    }
  return g_string_free (text, FALSE);
}

static char *
dup_loading (const qe_engine_status *status)
{
  g_autofree char *done = quire_format_bytes (status->load_done_bytes);
  g_autofree char *total = quire_format_bytes (status->load_total_bytes);

  if (status->load_total_bytes == 0)
    return g_strdup (_ ("Loading…"));
  return g_strdup_printf (_ ("Loading… %s of %s"), done, total);
}

static char *
dup_fit (QuireModelRow *self, const QuireModelFacts *facts, RowState state)
{
  const qe_memory_plan *live
      = state == STATE_LOADED ? quire_engine_client_get_plan (self->client) : NULL;
  g_autofree char *fit = NULL;

  if (live != NULL)
    return quire_model_format_fit (live);
  if (facts->plan == NULL)
    return g_strdup ("");
  fit = quire_model_format_fit (facts->plan);
  /* Translators: "fits: 98,304 tokens on the GPU". */
  return g_strdup_printf (_ ("fits: %s"), fit);
}

/* Returns: owned. */
static char *
dup_subtitle (QuireModelRow *self, RowState state)
{
  const QuireModelFacts *facts = quire_model_item_get_facts (self->item);
  const qe_engine_status *status = quire_engine_client_get_status (self->client);
  g_autofree char *line = facts != NULL ? dup_facts_line (self, facts) : g_strdup ("");
  g_autofree char *rest = NULL;

  switch (state)
    {
    case STATE_SCANNING:
      return g_strdup (_ ("Reading the folder…"));
    case STATE_LOADING:
      rest = dup_loading (status);
      break;
    case STATE_FAILED:
      return g_strdup (status->error != NULL ? quire_words (status->error->message)
                                             : _ ("It could not be loaded."));
    case STATE_RELEASED:
      if (status->state == QE_ENGINE_LOST && status->error != NULL)
        return g_strdup (quire_words (status->error->message));
      rest = g_strdup (quire_engine_client_get_release_reason (self->client));
      break;
    case STATE_LOADED:
    case STATE_LOADABLE:
      rest = facts != NULL ? dup_fit (self, facts, state) : g_strdup ("");
      break;
    case STATE_BAD:
    default:
      rest = g_strdup (facts->problem);
    }
  if (line[0] == '\0' || rest == NULL || rest[0] == '\0')
    return g_strdup (line[0] != '\0' ? line : rest);
  return g_strdup_printf (state == STATE_BAD ? "%s\n%s" : "%s · %s", line, rest);
}

/* ---- What a load costs ---- */

/* Tokens of the chats that are open, and whether a reply runs. */
static guint64
count_open (QuireModelRow *self, guint *n_chats, gboolean *running)
{
  const qe_snapshot *snapshot = quire_engine_client_get_snapshot (self->client);
  guint64 n = 0;

  *n_chats = 0;
  *running = FALSE;
  for (guint i = 0; snapshot != NULL && i < snapshot->n_sessions; i++)
    {
      *n_chats += snapshot->sessions[i].n_tokens > 0;
      n += snapshot->sessions[i].n_tokens;
    }
  if (snapshot != NULL)
    *running = snapshot->n_running + snapshot->n_queued > 0;
  return n;
}

/* NULL where a load costs nothing that was there. Returns: owned. */
static char *
dup_cost (QuireModelRow *self)
{
  const QuireModelFacts *facts = quire_model_item_get_facts (self->item);
  const qe_engine_status *status = quire_engine_client_get_status (self->client);
  guint n_chats;
  gboolean running;
  guint64 n_tokens = count_open (self, &n_chats, &running);
  g_autofree char *name = NULL, *reads = NULL, *unloaded = NULL, *chats = NULL, *both = NULL;

  if (status->model == NULL || n_tokens == 0 || quire_model_row_is_current (self))
    return NULL;
  name = quire_model_dup_name (status->model);
  reads = quire_reading_speed_format (
      (guint)MIN (n_tokens, G_MAXUINT),
      quire_reading_speed_get (self->client, facts != NULL ? facts->info : NULL));
  /* Translators: the name of the model that is loaded now. */
  unloaded = g_strdup_printf (_ ("%s is unloaded."), name);
  /* Translators: the last is "reads 16,512 tokens, about 4 s". */
  chats = g_strdup_printf (
      ngettext ("%u open chat was written with it. Going on with it here %s.",
                "%u open chats were written with it. Going on with them here %s.", n_chats),
      n_chats, reads);
  both = quire_format_sentences (unloaded, chats);
  return running ? quire_format_sentences (both, _ ("The reply that runs is stopped."))
                 : g_steal_pointer (&both);
}

static void
emit_load (QuireModelRow *self)
{
  GtkPopover *popover = gtk_menu_button_get_popover (GTK_MENU_BUTTON (self->ask));

  gtk_popover_popdown (popover);
  g_signal_emit (self, signals[LOAD], 0);
}

static void
button_clicked_cb (QuireModelRow *self)
{
  RowState state = get_state (self);

  g_signal_emit (self, signals[state == STATE_LOADED || state == STATE_LOADING ? UNLOAD : LOAD], 0);
}

/* ---- Showing ---- */

static void
add_fact (QuireModelRow *self, const char *title, const char *value)
{
  GtkWidget *row = adw_action_row_new ();

  adw_preferences_row_set_use_markup (ADW_PREFERENCES_ROW (row), FALSE);
  adw_preferences_row_set_title (ADW_PREFERENCES_ROW (row), title);
  adw_action_row_set_subtitle (ADW_ACTION_ROW (row), value);
  adw_action_row_set_subtitle_lines (ADW_ACTION_ROW (row), 0);
  gtk_widget_add_css_class (row, "numeric");
  adw_expander_row_add_row (ADW_EXPANDER_ROW (self), row);
  g_ptr_array_add (self->facts, row);
}

static void
remove_clicked_cb (QuireModelRow *self)
{
  g_signal_emit (self, signals[REMOVE], 0);
}

static void
add_remove (QuireModelRow *self)
{
  GtkWidget *row = adw_action_row_new ();
  GtkWidget *remove = quire_mnemonic_button_new (_ ("_Remove from List"));

  adw_preferences_row_set_title (ADW_PREFERENCES_ROW (row), _ ("The files stay where they are"));
  adw_action_row_set_title_lines (ADW_ACTION_ROW (row), 0);
  gtk_widget_set_valign (remove, GTK_ALIGN_CENTER);
  g_signal_connect_swapped (remove, "clicked", G_CALLBACK (remove_clicked_cb), self);
  adw_action_row_add_suffix (ADW_ACTION_ROW (row), remove);
  adw_expander_row_add_row (ADW_EXPANDER_ROW (self), row);
  g_ptr_array_add (self->facts, row);
}

/* What is folded. */
static void
fill (QuireModelRow *self)
{
  const QuireModelFacts *facts = quire_model_item_get_facts (self->item);
  const qe_model_info *info = facts != NULL ? facts->info : NULL;
  g_autofree char *dir = g_filename_display_name (quire_model_item_get_dir (self->item));

  for (guint i = 0; i < self->facts->len; i++)
    adw_expander_row_remove (ADW_EXPANDER_ROW (self), g_ptr_array_index (self->facts, i));
  g_ptr_array_set_size (self->facts, 0);
  add_fact (self, _ ("Folder"), dir);
  if (facts != NULL && facts->detail != NULL && g_strcmp0 (facts->detail, facts->problem) != 0)
    add_fact (self, _ ("Details"), facts->detail);
  if (info != NULL)
    {
      g_autofree char *parameters = quire_format_parameters (info->n_params);
      g_autofree char *context = quire_format_count (info->context_max);
      g_autofree char *kv = quire_format_bytes (info->kv_bytes_per_token);
      g_autofree char *shape
          = g_strdup_printf (_ ("%s parameters in %u layers"), parameters, info->n_layers);
      g_autofree char *room
          = g_strdup_printf (_ ("%s tokens at most, %s of cache each"), context, kv);

      add_fact (self, _ ("Size"), shape);
      add_fact (self, _ ("Context"), room);
    }
  if (facts != NULL && facts->plan != NULL && facts->plan->on_device)
    {
      g_autofree char *weights = quire_format_bytes (facts->plan->weights);
      g_autofree char *workspace = quire_format_bytes (facts->plan->workspace);
      g_autofree char *free_bytes = quire_format_bytes (facts->plan->memory_free);
      g_autofree char *text
          = g_strdup_printf (_ ("%s of weights and %s to compute in, of %s that are free"), weights,
                             workspace, free_bytes);

      add_fact (self, _ ("On the GPU"), text);
    }
  if (!quire_model_item_is_shipped (self->item))
    add_remove (self);
}

static void
set_icon (QuireModelRow *self, RowState state)
{
  const QuireModelFacts *facts = quire_model_item_get_facts (self->item);
  gboolean bad = state == STATE_BAD || state == STATE_FAILED;
  gboolean error = bad && (state == STATE_FAILED || facts->verdict == QUIRE_MODEL_BROKEN);

  /* All rows have one, so that their names stand below each other. */
  gtk_widget_set_visible (self->icon, state != STATE_SCANNING);
  gtk_image_set_from_icon_name (GTK_IMAGE (self->icon), error ? "dialog-error-symbolic"
                                                        : bad ? "dialog-warning-symbolic"
                                                              : "folder-symbolic");
  gtk_widget_remove_css_class (self->icon, "error");
  gtk_widget_remove_css_class (self->icon, "warning");
  if (bad)
    gtk_widget_add_css_class (self->icon, error ? "error" : "warning");
  gtk_accessible_update_property (GTK_ACCESSIBLE (self->icon), GTK_ACCESSIBLE_PROPERTY_LABEL,
                                  bad ? _ ("Cannot be loaded") : "", -1);
}

static void
update (QuireModelRow *self)
{
  const QuireModelFacts *facts = quire_model_item_get_facts (self->item);
  const qe_engine_status *status = quire_engine_client_get_status (self->client);
  RowState state = get_state (self);
  g_autofree char *subtitle = dup_subtitle (self, state);
  g_autofree char *cost = state == STATE_LOADABLE ? dup_cost (self) : NULL;
  g_autofree char *base = g_path_get_basename (quire_model_item_get_dir (self->item));
  g_autofree char *name = facts != NULL ? g_strdup (facts->name) : g_filename_display_name (base);
  gboolean loading = state == STATE_LOADING;

  adw_preferences_row_set_title (ADW_PREFERENCES_ROW (self), name);
  adw_expander_row_set_subtitle (ADW_EXPANDER_ROW (self), subtitle);
  set_icon (self, state);
  gtk_widget_set_visible (self->spinner, state == STATE_SCANNING);
  gtk_spinner_set_spinning (GTK_SPINNER (self->spinner), state == STATE_SCANNING);
  gtk_widget_set_visible (self->progress, loading && status->load_total_bytes > 0);
  if (loading && status->load_total_bytes > 0)
    gtk_progress_bar_set_fraction (GTK_PROGRESS_BAR (self->progress),
                                   (double)status->load_done_bytes / status->load_total_bytes);
  gtk_widget_set_visible (self->ask, cost != NULL);
  if (cost != NULL)
    gtk_label_set_text (self->ask_label, cost);
  gtk_widget_set_visible (self->button,
                          cost == NULL && state != STATE_SCANNING && state != STATE_BAD);
  gtk_button_set_label (GTK_BUTTON (self->button), loading                   ? _ ("Cancel")
                                                   : state == STATE_LOADED   ? _ ("Unload")
                                                   : state == STATE_RELEASED ? _ ("Load Again")
                                                   : state == STATE_FAILED   ? _ ("Try Again")
                                                                             : _ ("Load"));
}

static void
item_changed_cb (QuireModelRow *self)
{
  fill (self);
  update (self);
}

/* ---- Object ---- */

static GtkWidget *
ask_new (QuireModelRow *self)
{
  GtkWidget *button = gtk_menu_button_new (), *popover = gtk_popover_new ();
  GtkWidget *box = gtk_box_new (GTK_ORIENTATION_VERTICAL, 12);
  GtkWidget *label = gtk_label_new (NULL), *load = quire_mnemonic_button_new (_ ("_Load"));

  gtk_label_set_wrap (GTK_LABEL (label), TRUE);
  gtk_label_set_max_width_chars (GTK_LABEL (label), 36);
  gtk_label_set_xalign (GTK_LABEL (label), 0);
  self->ask_label = GTK_LABEL (label);
  gtk_widget_add_css_class (load, "suggested-action");
  g_signal_connect_swapped (load, "clicked", G_CALLBACK (emit_load), self);
  gtk_box_append (GTK_BOX (box), label);
  gtk_box_append (GTK_BOX (box), load);
  gtk_widget_add_css_class (box, "quire-popover");
  gtk_popover_set_child (GTK_POPOVER (popover), box);
  gtk_menu_button_set_popover (GTK_MENU_BUTTON (button), popover);
  gtk_menu_button_set_label (GTK_MENU_BUTTON (button), _ ("Load"));
  gtk_widget_set_valign (button, GTK_ALIGN_CENTER);
  return button;
}

static void
quire_model_row_dispose (GObject *object)
{
  QuireModelRow *self = QUIRE_MODEL_ROW (object);

  g_clear_object (&self->client);
  g_clear_object (&self->item);
  g_clear_pointer (&self->facts, g_ptr_array_unref);
  G_OBJECT_CLASS (quire_model_row_parent_class)->dispose (object);
}

static void
quire_model_row_class_init (QuireModelRowClass *klass)
{
  static const char *const names[N_SIGNALS] = { "load", "unload", "remove" };

  G_OBJECT_CLASS (klass)->dispose = quire_model_row_dispose;
  for (int i = 0; i < N_SIGNALS; i++)
    signals[i] = g_signal_new (names[i], G_TYPE_FROM_CLASS (klass), G_SIGNAL_RUN_LAST, 0, NULL,
                               NULL, NULL, G_TYPE_NONE, 0);
}

static void
quire_model_row_init (QuireModelRow *self)
{
  GtkWidget *prefix = gtk_box_new (GTK_ORIENTATION_HORIZONTAL, 0);

  self->facts = g_ptr_array_new ();
  self->icon = gtk_image_new ();
  self->spinner = gtk_spinner_new ();
  self->progress = gtk_progress_bar_new ();
  self->button = gtk_button_new ();
  self->ask = ask_new (self);
  gtk_widget_set_valign (self->button, GTK_ALIGN_CENTER);
  gtk_widget_set_valign (self->progress, GTK_ALIGN_CENTER);
  gtk_widget_set_size_request (self->progress, 60, -1);
  gtk_accessible_update_property (GTK_ACCESSIBLE (self->progress), GTK_ACCESSIBLE_PROPERTY_LABEL,
                                  _ ("Bytes loaded"), -1);
  g_signal_connect_swapped (self->button, "clicked", G_CALLBACK (button_clicked_cb), self);
  adw_preferences_row_set_use_markup (ADW_PREFERENCES_ROW (self), FALSE);
  gtk_widget_add_css_class (GTK_WIDGET (self), "quire-model");
  /* One at a time, in one place. */
  gtk_box_append (GTK_BOX (prefix), self->icon);
  gtk_box_append (GTK_BOX (prefix), self->spinner);
  adw_expander_row_add_prefix (ADW_EXPANDER_ROW (self), prefix);
  adw_expander_row_add_action (ADW_EXPANDER_ROW (self), self->button);
  adw_expander_row_add_action (ADW_EXPANDER_ROW (self), self->ask);
  adw_expander_row_add_action (ADW_EXPANDER_ROW (self), self->progress);
}

QuireModelItem *
quire_model_row_get_item (QuireModelRow *self)
{
  return self->item;
}

GtkWidget *
quire_model_row_new (QuireEngineClient *client, QuireModelItem *item)
{
  QuireModelRow *self = g_object_new (QUIRE_TYPE_MODEL_ROW, NULL);

  self->client = g_object_ref (client);
  self->item = g_object_ref (item);
  g_signal_connect_object (item, "changed", G_CALLBACK (item_changed_cb), self, G_CONNECT_SWAPPED);
  g_signal_connect_object (client, "status-changed", G_CALLBACK (update), self, G_CONNECT_SWAPPED);
  g_signal_connect_object (client, "snapshot-changed", G_CALLBACK (update), self,
                           G_CONNECT_SWAPPED);
  item_changed_cb (self);
  return GTK_WIDGET (self);
}
