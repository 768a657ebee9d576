/* quire-engine-bar.c: see quire-engine-bar.h.
 *
 * What is shown, first that applies: a lost device, a failed load, a folder that is no model, loading (once it has
 * lasted LOADING_AFTER_MS), no model, running on the CPU since this process lost its card, running on the CPU although a GPU
 * backend exists (both until closed). */
#include "app/quire-engine-bar.h"

#include <glib/gi18n.h>

#include "app/quire-flatpak-gpu.h"
#include "app/quire-format.h"
#include "app/quire-settings.h"
#include "app/quire-split-box.h"
#include "app/quire-versions.h"
#include "app/quire-widget.h"
#include "app/quire-words.h"
#include "app/quire-wrap-layout.h"

#define LOADING_AFTER_MS 400

struct _QuireEngineBar
{
  GtkWidget parent_instance;

  QuireEngineClient *client;
  GtkWidget *info_bar;
  GtkLabel *label;
  GtkWidget *progress;
  GtkWidget *first, *second; /* buttons */
  char *error;
  guint loading_id;
  gboolean loading_long;
  gboolean offer, declined; /* what is shown is the way back to the GPU; it was closed */
  QuireUrgency urgency;     /* of what there is to say */
  gboolean yields;          /* another bar is more urgent */
};

G_DEFINE_FINAL_TYPE (QuireEngineBar, quire_engine_bar, GTK_TYPE_WIDGET)

static guint urgency_signal;

static void
set_button (GtkWidget *button, const char *label, const char *action)
{
  gtk_widget_set_visible (button, label != NULL);
  quire_button_set_action (button, action);
  if (label != NULL)
    gtk_button_set_label (GTK_BUTTON (button), label);
}

static void
reveal (QuireEngineBar *self)
{
  gboolean shown = self->urgency != QUIRE_URGENCY_NONE && !self->yields;

  if (shown)
    gtk_widget_set_visible (self->info_bar, TRUE);
  gtk_info_bar_set_revealed (GTK_INFO_BAR (self->info_bar), shown);
}

static void
set_urgency (QuireEngineBar *self, QuireUrgency urgency)
{
  gboolean changed = urgency != self->urgency;

  self->urgency = urgency;
  reveal (self);
  if (changed)
    g_signal_emit (self, urgency_signal, 0);
}

QuireUrgency
quire_engine_bar_get_urgency (QuireEngineBar *self)
{
  return self->urgency;
}

void
quire_engine_bar_set_yields (QuireEngineBar *self, gboolean yields)
{
  self->yields = yields;
  reveal (self);
}

static void
show (QuireEngineBar *self, QuireUrgency urgency, const char *text, const char *first,
      const char *first_action, const char *second, const char *second_action)
{
  GtkMessageType type = urgency == QUIRE_URGENCY_ERROR      ? GTK_MESSAGE_ERROR
                        : urgency == QUIRE_URGENCY_PROGRESS ? GTK_MESSAGE_INFO
                                                            : GTK_MESSAGE_OTHER;

  gtk_info_bar_set_message_type (GTK_INFO_BAR (self->info_bar), type);
  gtk_label_set_text (self->label, text);
  set_button (self->first, first, first_action);
  set_button (self->second, second, second_action);
  gtk_widget_set_visible (self->progress, FALSE);
  gtk_info_bar_set_show_close_button (GTK_INFO_BAR (self->info_bar), FALSE);
  self->offer = FALSE;
  set_urgency (self, urgency);
}

static void update (QuireEngineBar *self);

static gboolean
loading_long_cb (gpointer user_data)
{
  QuireEngineBar *self = user_data;

  self->loading_id = 0;
  self->loading_long = TRUE;
  update (self);
  return G_SOURCE_REMOVE;
}

static void
show_loading (QuireEngineBar *self, const qe_engine_status *status)
{
  const char *dir = quire_engine_client_get_model_dir (self->client);
  g_autofree char *name = dir != NULL ? g_path_get_basename (dir) : g_strdup ("");
  g_autofree char *text = NULL;

  if (status->load_total_bytes > 0)
    {
      g_autofree char *done = quire_format_bytes (status->load_done_bytes);
      g_autofree char *total = quire_format_bytes (status->load_total_bytes);

      /* Translators: "Loading MODEL… 3.1 GiB of 7.5 GiB". */
      text = g_strdup_printf (_ ("Loading %s… %s of %s"), name, done, total);
    }
  else
    text = g_strdup_printf (_ ("Loading %s…"), name);

  show (self, QUIRE_URGENCY_PROGRESS, text, _ ("Cancel"), "win.cancel-load", NULL, NULL);
  gtk_widget_set_visible (self->progress, status->load_total_bytes > 0);
  if (status->load_total_bytes > 0)
    gtk_progress_bar_set_fraction (GTK_PROGRESS_BAR (self->progress),
                                   (double)status->load_done_bytes / status->load_total_bytes);
}

/* The GPU is missing, and there is a reason that a person can act on. */
static const char *
cpu_reason (QuireEngineBar *self, const qe_engine_status *status)
{
  const qe_snapshot *snapshot = quire_engine_client_get_snapshot (self->client);

  if (status->state != QE_ENGINE_READY || g_strcmp0 (status->backend, "cpu") != 0
      || snapshot == NULL
      || g_settings_get_boolean (quire_settings_get_default (), "cpu-note-closed"))
    return NULL;
  return snapshot->tiers[QE_TIER_GPU].present ? NULL : snapshot->tiers[QE_TIER_GPU].reason;
}

static void
show_cpu_note (QuireEngineBar *self, const char *reason)
{
  g_autofree char *text = g_strdup_printf (_ ("Running on the CPU: %s"),
                                           quire_words (quire_flatpak_gpu_reason (reason)));

  show (self, QUIRE_URGENCY_NOTE, text, _ ("Why?"), "win.why-gpu", NULL, NULL);
  gtk_info_bar_set_show_close_button (GTK_INFO_BAR (self->info_bar), TRUE);
}

/* Lost, or not to be had again: the engine's words say which. */
static void
show_lost (QuireEngineBar *self, const qe_engine_status *status)
{
  gboolean memory = g_error_matches (status->error, QE_ERROR, QE_ERROR_NO_MEMORY);

  if (quire_engine_client_needs_restart (self->client))
    show (self, QUIRE_URGENCY_ERROR,
          _ ("The GPU comes back when Quire is started again. All chats stay."),
          _ ("Restart Quire"), "app.restart", _ ("Reload Model"), "win.recover");
  else if (status->error == NULL || g_error_matches (status->error, QE_ERROR, QE_ERROR_DEVICE_LOST))
    show (self, QUIRE_URGENCY_ERROR, _ ("The GPU was lost. The conversations are safe."),
          _ ("Reload Model"), "win.recover", NULL, NULL);
  else
    show (self, QUIRE_URGENCY_ERROR, quire_words (status->error->message), _ ("Reload Model"),
          "win.recover", memory ? _ ("Limits…") : NULL, memory ? "app.limits::gpu" : NULL);
}

/* The model came back on the CPU. */
static void
show_cpu_after_loss (QuireEngineBar *self)
{
  show (self, QUIRE_URGENCY_OFFER,
        _ ("The GPU was lost, and the model runs on the CPU. The GPU comes back when Quire is "
           "started again; all chats stay."),
        _ ("Restart Quire"), "app.restart", NULL, NULL);
  gtk_info_bar_set_show_close_button (GTK_INFO_BAR (self->info_bar), TRUE);
  self->offer = TRUE;
}

static void
show_released (QuireEngineBar *self, const qe_engine_status *status)
{
  const char *why = quire_engine_client_get_release_reason (self->client);
  g_autofree char *name
      = status->model != NULL ? quire_model_dup_name (status->model) : g_strdup ("");
  /* Translators: a model's name, then why it is not in memory: "Its memory was given back." */
  g_autofree char *text = g_strdup_printf (_ ("%s is not loaded. %s It comes back when you send."),
                                           name, why != NULL ? why : "");

  show (self, QUIRE_URGENCY_OFFER, text, _ ("Load"), "win.recover", NULL, NULL);
}

static void
update (QuireEngineBar *self)
{
  const qe_engine_status *status = quire_engine_client_get_status (self->client);
  const char *reason;

  if (status->state != QE_ENGINE_LOADING)
    {
      g_clear_handle_id (&self->loading_id, g_source_remove);
      self->loading_long = FALSE;
    }

  if (!quire_engine_client_needs_restart (self->client))
    self->declined = FALSE;
  if (status->state == QE_ENGINE_LOST
      || (status->state == QE_ENGINE_FAILED && quire_engine_client_needs_restart (self->client)
          && g_error_matches (status->error, QE_ERROR, QE_ERROR_DEVICE_LOST)))
    show_lost (self, status);
  else if (status->state == QE_ENGINE_RELEASED)
    show_released (self, status);
  else if (status->state == QE_ENGINE_FAILED && status->error != NULL)
    show (self, QUIRE_URGENCY_ERROR, quire_words (status->error->message), _ ("Choose Model…"),
          "win.choose-model",
          g_error_matches (status->error, QE_ERROR, QE_ERROR_NO_MEMORY) ? _ ("Limits…")
                                                                        : _ ("Try Again"),
          g_error_matches (status->error, QE_ERROR, QE_ERROR_NO_MEMORY) ? "app.limits::gpu"
                                                                        : "win.reload");
  else if (self->error != NULL)
    {
      show (self, QUIRE_URGENCY_ERROR, self->error, _ ("Choose Model…"), "win.choose-model", NULL,
            NULL);
      gtk_info_bar_set_show_close_button (GTK_INFO_BAR (self->info_bar), TRUE);
    }
  else if (status->state == QE_ENGINE_LOADING && self->loading_long)
    show_loading (self, status);
  else if (status->state == QE_ENGINE_LOADING && self->loading_id == 0)
    self->loading_id = g_timeout_add (LOADING_AFTER_MS, loading_long_cb, self);
  else if (status->state == QE_ENGINE_EMPTY)
    show (self, QUIRE_URGENCY_OFFER, _ ("No model is loaded."), _ ("Choose Model…"),
          "win.choose-model", NULL, NULL);
  else if (status->state == QE_ENGINE_READY && !self->declined
           && quire_engine_client_needs_restart (self->client))
    show_cpu_after_loss (self);
  else if ((reason = cpu_reason (self, status)) != NULL)
    show_cpu_note (self, reason);
  else
    set_urgency (self, QUIRE_URGENCY_NONE);
}

static void
response_cb (QuireEngineBar *self, int response)
{
  if (response != GTK_RESPONSE_CLOSE)
    return;
  if (self->offer)
    self->declined = TRUE;
  else if (self->urgency == QUIRE_URGENCY_NOTE)
    g_settings_set_boolean (quire_settings_get_default (), "cpu-note-closed", TRUE);
  else
    g_clear_pointer (&self->error, g_free);
  update (self);
}

void
quire_engine_bar_set_error (QuireEngineBar *self, const char *text)
{
  char *copy = g_strdup (text);

  g_free (self->error);
  self->error = copy;
  update (self);
}

/* The GPU tier's reason comes with the first snapshot of a model, not with the status. */
static void
snapshot_changed_cb (QuireEngineBar *self)
{
  const qe_engine_status *status = quire_engine_client_get_status (self->client);

  if (self->urgency == QUIRE_URGENCY_NONE && cpu_reason (self, status) != NULL)
    update (self);
}

void
quire_engine_bar_set_client (QuireEngineBar *self, QuireEngineClient *client)
{
  self->client = g_object_ref (client);
  g_signal_connect_object (client, "status-changed", G_CALLBACK (update), self, G_CONNECT_SWAPPED);
  g_signal_connect_object (client, "snapshot-changed", G_CALLBACK (snapshot_changed_cb), self,
                           G_CONNECT_SWAPPED);
  update (self);
}

static void
quire_engine_bar_dispose (GObject *object)
{
  QuireEngineBar *self = QUIRE_ENGINE_BAR (object);

  g_clear_handle_id (&self->loading_id, g_source_remove);
  g_clear_object (&self->client);
  g_clear_pointer (&self->info_bar, gtk_widget_unparent);
  g_clear_pointer (&self->error, g_free);
  G_OBJECT_CLASS (quire_engine_bar_parent_class)->dispose (object);
}

static void
quire_engine_bar_class_init (QuireEngineBarClass *klass)
{
  G_OBJECT_CLASS (klass)->dispose = quire_engine_bar_dispose;
  gtk_widget_class_set_layout_manager_type (GTK_WIDGET_CLASS (klass), GTK_TYPE_BIN_LAYOUT);
  gtk_widget_class_set_accessible_role (GTK_WIDGET_CLASS (klass), GTK_ACCESSIBLE_ROLE_STATUS);
  urgency_signal = g_signal_new ("urgency-changed", G_TYPE_FROM_CLASS (klass), G_SIGNAL_RUN_LAST, 0,
                                 NULL, NULL, NULL, G_TYPE_NONE, 0);
}

static void
quire_engine_bar_init (QuireEngineBar *self)
{
  GtkWidget *box = gtk_box_new (GTK_ORIENTATION_VERTICAL, 6);
  GtkWidget *label = gtk_label_new (NULL);
  g_autoptr (PangoAttrList) attributes = pango_attr_list_new ();
  GtkWidget *buttons, *row;

  self->info_bar = gtk_info_bar_new ();
  gtk_info_bar_set_revealed (GTK_INFO_BAR (self->info_bar), FALSE);
  gtk_widget_set_parent (self->info_bar, GTK_WIDGET (self));
  self->label = GTK_LABEL (label);
  gtk_label_set_wrap (self->label, TRUE);
  gtk_label_set_wrap_mode (self->label, PANGO_WRAP_WORD_CHAR);
  gtk_label_set_xalign (self->label, 0);
  pango_attr_list_insert (attributes, pango_attr_insert_hyphens_new (FALSE)); /* it has paths */
  gtk_label_set_attributes (self->label, attributes);
  gtk_widget_set_hexpand (label, TRUE);
  gtk_box_append (GTK_BOX (box), label);
  quire_widget_set_labelled_by (GTK_WIDGET (self), label, NULL);
  self->progress = gtk_progress_bar_new ();
  gtk_widget_set_visible (self->progress, FALSE);
  gtk_accessible_update_property (GTK_ACCESSIBLE (self->progress), GTK_ACCESSIBLE_PROPERTY_LABEL,
                                  _ ("Bytes loaded"), -1);
  gtk_box_append (GTK_BOX (box), self->progress);
  gtk_widget_set_valign (box, GTK_ALIGN_CENTER);
  gtk_widget_set_margin_start (box, 6);
  buttons = quire_wrap_box_new (6, TRUE);
  self->second = gtk_button_new ();
  self->first = gtk_button_new ();
  gtk_box_append (GTK_BOX (buttons), self->second);
  gtk_box_append (GTK_BOX (buttons), self->first);
  gtk_widget_set_valign (buttons, GTK_ALIGN_CENTER);
  row = quire_split_box_new (box, buttons);
  gtk_widget_set_hexpand (row, TRUE);
  gtk_info_bar_add_child (GTK_INFO_BAR (self->info_bar), row);
  g_signal_connect_swapped (self->info_bar, "response", G_CALLBACK (response_cb), self);
}
