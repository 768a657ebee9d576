/* quire-model-bar.c: see quire-model-bar.h.
 *
 * One model is loaded at a time, and nothing is loaded or continued unless the user says so. What going on costs is said
 * beside the button. An answer holds for the model that was loaded when it was given. */
#include "app/quire-model-bar.h"

#include <glib/gi18n.h>

#include "app/quire-format.h"
#include "app/quire-reading-speed.h"
#include "app/quire-settings.h"
#include "app/quire-split-box.h"
#include "app/quire-widget.h"
#include "app/quire-wrap-layout.h"

struct _QuireModelBar
{
  GtkWidget parent_instance;

  QuireConversation *conversation;
  GtkWidget *info_bar;
  GtkLabel *label;
  GtkWidget *load, *go_on;
  char *accepted; /* the folder of the model that the user goes on with */
  gboolean asking, insists;
  gboolean yields; /* another bar is more urgent */
};

G_DEFINE_FINAL_TYPE (QuireModelBar, quire_model_bar, GTK_TYPE_WIDGET)

enum
{
  CHOSEN,
  URGENCY_CHANGED,
  N_SIGNALS
};
static guint signals[N_SIGNALS];

static const QuireStoredChat *
stored (QuireModelBar *self)
{
  return quire_history_item_get (quire_conversation_get_item (self->conversation));
}

/* Two models of one shape have different names, so both count. */
static gboolean
is_other (QuireModelBar *self, const qe_model_info *model)
{
  const QuireStoredChat *chat = stored (self);
  g_autofree char *digest = NULL, *name = NULL;

  if (model == NULL || chat->model_digest == NULL || chat->model_name == NULL
      || g_list_model_get_n_items (G_LIST_MODEL (self->conversation)) == 0)
    return FALSE;
  digest = quire_model_dup_digest (model);
  name = quire_model_dup_name (model);
  return !g_str_equal (digest, chat->model_digest) || !g_str_equal (name, chat->model_name);
}

static void
show (QuireModelBar *self, const qe_model_info *model)
{
  const QuireStoredChat *chat = stored (self);
  QuireEngineClient *client = quire_conversation_get_client (self->conversation);
  guint n = quire_conversation_get_n_context (self->conversation);
  gboolean there = chat->model_dir != NULL && g_file_test (chat->model_dir, G_FILE_TEST_IS_DIR);
  g_autofree char *name = quire_model_dup_name (model);
  g_autofree char *reads = quire_reading_speed_format (n, quire_reading_speed_get (client, NULL));
  g_autofree char *first = g_strdup_printf (
      there ? _ ("This chat used %s, which is not loaded.")
            : _ ("This chat used %s, which is not loaded; its folder is not there any more."),
      chat->model_name);
  /* Translators: a model's name, then "reads 16,512 tokens, about 4 s". */
  g_autofree char *second = g_strdup_printf (_ ("Continuing with %s %s."), name, reads);
  g_autofree char *text = n > 0 ? quire_format_sentences (first, second) : g_strdup (first);
  /* Translators: the name of the model that is loaded. */
  g_autofree char *go_on = g_strdup_printf (_ ("Continue with %s"), name);

  gtk_label_set_text (self->label, text);
  gtk_button_set_label (GTK_BUTTON (self->go_on), go_on);
  /* A long name must not widen the window. */
  gtk_label_set_ellipsize (GTK_LABEL (gtk_button_get_child (GTK_BUTTON (self->go_on))),
                           PANGO_ELLIPSIZE_END);
  gtk_widget_set_visible (self->load, there);
}

static void
reveal (QuireModelBar *self)
{
  gboolean shown = self->asking && !self->yields;

  gtk_widget_set_visible (GTK_WIDGET (self), shown);
  gtk_info_bar_set_revealed (GTK_INFO_BAR (self->info_bar), shown);
}

static void
update (QuireModelBar *self)
{
  const qe_engine_status *status
      = quire_engine_client_get_status (quire_conversation_get_client (self->conversation));
  const qe_model_info *model = status->model;

  self->asking = is_other (self, model) && g_strcmp0 (self->accepted, model->dir) != 0
                 && !quire_conversation_is_running (self->conversation);
  if (self->asking)
    show (self, model);
  else
    self->insists = FALSE;
  reveal (self);
  g_signal_emit (self, signals[URGENCY_CHANGED], 0);
}

QuireUrgency
quire_model_bar_get_urgency (QuireModelBar *self)
{
  return !self->asking   ? QUIRE_URGENCY_NONE
         : self->insists ? QUIRE_URGENCY_ASKED
                         : QUIRE_URGENCY_QUESTION;
}

void
quire_model_bar_set_yields (QuireModelBar *self, gboolean yields)
{
  self->yields = yields;
  reveal (self);
}

void
quire_model_bar_insist (QuireModelBar *self)
{
  self->insists = self->asking;
  g_signal_emit (self, signals[URGENCY_CHANGED], 0);
}

gboolean
quire_model_bar_is_asking (QuireModelBar *self)
{
  return self->asking;
}

const char *
quire_model_bar_get_text (QuireModelBar *self)
{
  return gtk_label_get_text (self->label);
}

void
quire_model_bar_continue (QuireModelBar *self)
{
  const qe_engine_status *status
      = quire_engine_client_get_status (quire_conversation_get_client (self->conversation));

  if (status->model == NULL)
    return;
  g_free (self->accepted);
  self->accepted = g_strdup (status->model->dir);
  update (self);
  g_signal_emit (self, signals[CHOSEN], 0);
}

static void
load_clicked_cb (QuireModelBar *self)
{
  gtk_widget_activate_action (GTK_WIDGET (self), "win.load-model", "s", stored (self)->model_dir);
  g_signal_emit (self, signals[CHOSEN], 0);
}

static void
quire_model_bar_dispose (GObject *object)
{
  QuireModelBar *self = QUIRE_MODEL_BAR (object);

  g_clear_pointer (&self->info_bar, gtk_widget_unparent);
  g_clear_object (&self->conversation);
  g_clear_pointer (&self->accepted, g_free);
  G_OBJECT_CLASS (quire_model_bar_parent_class)->dispose (object);
}

static void
quire_model_bar_class_init (QuireModelBarClass *klass)
{
  static const char *const names[N_SIGNALS] = { "chosen", "urgency-changed" };

  G_OBJECT_CLASS (klass)->dispose = quire_model_bar_dispose;
  gtk_widget_class_set_layout_manager_type (GTK_WIDGET_CLASS (klass), GTK_TYPE_BIN_LAYOUT);
  gtk_widget_class_set_accessible_role (GTK_WIDGET_CLASS (klass), GTK_ACCESSIBLE_ROLE_STATUS);
  for (int i = 0; i < N_SIGNALS; i++)
    signals[i] = g_signal_new (names[i], G_TYPE_FROM_CLASS (klass), G_SIGNAL_RUN_LAST, 0, NULL,
                               NULL, NULL, G_TYPE_NONE, 0);
}

static void
quire_model_bar_init (QuireModelBar *self)
{
  GtkWidget *box;
  GtkWidget *buttons = quire_wrap_box_new (6, TRUE);
  GtkWidget *label = gtk_label_new (NULL);

  self->info_bar = gtk_info_bar_new ();
  gtk_info_bar_set_message_type (GTK_INFO_BAR (self->info_bar), GTK_MESSAGE_OTHER);
  gtk_widget_set_parent (self->info_bar, GTK_WIDGET (self));
  self->label = GTK_LABEL (label);
  gtk_label_set_wrap (self->label, TRUE);
  gtk_label_set_wrap_mode (self->label, PANGO_WRAP_WORD_CHAR);
  gtk_label_set_xalign (self->label, 0);
  gtk_widget_add_css_class (label, "numeric");
  gtk_widget_set_margin_start (label, 6);
  self->load = quire_mnemonic_button_new (_ ("_Load"));
  self->go_on = gtk_button_new ();
  g_signal_connect_swapped (self->load, "clicked", G_CALLBACK (load_clicked_cb), self);
  g_signal_connect_swapped (self->go_on, "clicked", G_CALLBACK (quire_model_bar_continue), self);
  gtk_box_append (GTK_BOX (buttons), self->load);
  gtk_box_append (GTK_BOX (buttons), self->go_on);
  gtk_widget_set_valign (buttons, GTK_ALIGN_CENTER);
  box = quire_split_box_new (label, buttons);
  gtk_widget_set_hexpand (box, TRUE);
  gtk_info_bar_add_child (GTK_INFO_BAR (self->info_bar), box);
}

GtkWidget *
quire_model_bar_new (QuireConversation *conversation)
{
  QuireModelBar *self = g_object_new (QUIRE_TYPE_MODEL_BAR, NULL);

  self->conversation = g_object_ref (conversation);
  g_signal_connect_object (conversation, "notify::running", G_CALLBACK (update), self,
                           G_CONNECT_SWAPPED);
  g_signal_connect_object (conversation, "notify::loaded", G_CALLBACK (update), self,
                           G_CONNECT_SWAPPED);
  g_signal_connect_object (quire_conversation_get_client (conversation), "status-changed",
                           G_CALLBACK (update), self, G_CONNECT_SWAPPED);
  update (self);
  return GTK_WIDGET (self);
}
