/* quire-compare-view.c: see quire-compare-view.h.
 *
 * Each start makes an entry of its own in the history, saved when the last pane has ended or the tab closes. News are shown
 * at most once a frame while the view is drawn. */
#include "app/quire-compare-view.h"

#include <glib/gi18n.h>
#include <string.h>

#include "app/quire-export.h"
#include "app/quire-title.h"
#include "app/quire-toast.h"
#include "app/quire-widget.h"

#define HIDDEN_MS 250

struct _QuireCompareView
{
  GtkBox parent_instance;

  QuireEngineClient *client;
  QuireHistory *history;
  QuireHistoryItem *item; /* or NULL */
  QuireCompare *compare;
  QuireComparison *kept;
  char *title, *source, *chat_title;
  AdwToastOverlay *toasts;
  GtkWidget *stack;
  QuireCompareSetupView *setup;
  QuireCompareResult *result;
  GtkWidget *missing;
  guint tick_id, timer_id;
  gboolean can_use;
};

G_DEFINE_FINAL_TYPE (QuireCompareView, quire_compare_view, GTK_TYPE_BOX)

enum
{
  USE,
  TITLE_CHANGED,
  RUNNING_CHANGED,
  N_SIGNALS
};
static guint signals[N_SIGNALS];

static const char *
page (QuireCompareView *self)
{
  return gtk_stack_get_visible_child_name (GTK_STACK (self->stack));
}

const QuireComparison *
quire_compare_view_get_comparison (QuireCompareView *self)
{
  if (self->kept != NULL)
    return self->kept;
  return g_strcmp0 (page (self), "result") == 0 ? quire_compare_get_comparison (self->compare)
                                                : NULL;
}

/* ---- Showing ---- */

static void
cancel_show (QuireCompareView *self)
{
  if (self->tick_id != 0)
    gtk_widget_remove_tick_callback (GTK_WIDGET (self), self->tick_id);
  self->tick_id = 0;
  g_clear_handle_id (&self->timer_id, g_source_remove);
}

static void
show_now (QuireCompareView *self)
{
  cancel_show (self);
  if (quire_compare_view_get_comparison (self) != NULL)
    quire_compare_result_update (self->result, quire_compare_is_running (self->compare));
}

static gboolean
tick_cb (GtkWidget *widget, GdkFrameClock *clock, gpointer user_data)
{
  QuireCompareView *self = QUIRE_COMPARE_VIEW (widget);

  self->tick_id = 0;
  show_now (self);
  return G_SOURCE_REMOVE;
}

static gboolean
timer_cb (gpointer user_data)
{
  QuireCompareView *self = user_data;

  self->timer_id = 0;
  show_now (self);
  return G_SOURCE_REMOVE;
}

static void
changed_cb (QuireCompareView *self)
{
  if (self->tick_id == 0 && gtk_widget_get_mapped (GTK_WIDGET (self)))
    self->tick_id = gtk_widget_add_tick_callback (GTK_WIDGET (self), tick_cb, NULL, NULL);
  if (self->timer_id == 0)
    self->timer_id = g_timeout_add (HIDDEN_MS, timer_cb, self);
}

/* ---- Running ---- */

static void
over_cb (QuireCompareView *self)
{
  const QuireComparison *c = quire_compare_get_comparison (self->compare);

  if (self->item != NULL)
    {
      quire_history_item_set_running (self->item, FALSE);
      quire_history_item_edit (self->item)->updated = g_get_real_time ();
      quire_history_save (self->history, self->item, quire_comparison_dup_messages (c), NULL, NULL);
      quire_history_item_changed (self->item);
    }
  show_now (self);
  g_signal_emit (self, signals[RUNNING_CHANGED], 0);
}

static void
make_item (QuireCompareView *self, const QuireComparison *c)
{
  const qe_model_info *model = quire_engine_client_get_status (self->client)->model;
  g_autofree char *words = quire_title_from_text (c->prompt);
  QuireStoredChat *chat;

  g_clear_object (&self->item);
  self->item = quire_history_item_new ();
  chat = quire_history_item_edit (self->item);
  chat->kind = QUIRE_KIND_COMPARISON;
  chat->model_name = g_strdup (c->model_name);
  chat->model_dir = model != NULL ? g_strdup (model->dir) : NULL;
  /* Translators: the title of a comparison: of the chat, or the first words of the prompt. */
  chat->title = g_strdup_printf (_ ("Compare: %s"), c->title != NULL ? c->title : words);
  chat->title_source = QUIRE_TITLE_USER;
  quire_history_item_set_running (self->item, TRUE);
  g_free (self->title);
  self->title = g_strdup (chat->title);
  g_signal_emit (self, signals[TITLE_CHANGED], 0);
}

static void
start (QuireCompareView *self)
{
  QuireCompareSetup setup = { .title = self->chat_title, .source = self->source };
  g_autoptr (GArray) prompt = NULL;

  prompt = quire_compare_setup_get (self->setup, &setup);
  /* Panes look at the comparison that starting frees. */
  quire_compare_result_set (self->result, NULL);
  if (!quire_compare_start (self->compare, prompt, &setup))
    {
      quire_compare_result_set (self->result, quire_compare_get_comparison (self->compare));
      return;
    }
  make_item (self, quire_compare_get_comparison (self->compare));
  quire_compare_result_set (self->result, quire_compare_get_comparison (self->compare));
  quire_compare_result_set_can_use (self->result, self->can_use);
  gtk_stack_set_visible_child_name (GTK_STACK (self->stack), "result");
  if (!quire_compare_is_running (self->compare))
    over_cb (self);
  show_now (self);
  gtk_widget_child_focus (GTK_WIDGET (self->result), GTK_DIR_TAB_FORWARD);
  g_signal_emit (self, signals[RUNNING_CHANGED], 0);
}

static void
setup_cb (QuireCompareView *self)
{
  gtk_stack_set_visible_child_name (GTK_STACK (self->stack), "setup");
  gtk_widget_grab_focus (GTK_WIDGET (self->setup));
}

static void
use_cb (QuireCompareView *self, int choice, GtkWidget *button)
{
  g_signal_emit (self, signals[USE], 0, choice, button);
}

void
quire_compare_view_stop (QuireCompareView *self)
{
  quire_compare_stop (self->compare);
}

void
quire_compare_view_close (QuireCompareView *self)
{
  quire_compare_stop (self->compare);
}

gboolean
quire_compare_view_is_running (QuireCompareView *self)
{
  return quire_compare_is_running (self->compare);
}

/* ---- Kept ---- */

static void
loaded_cb (GObject *source, GAsyncResult *result, gpointer user_data)
{
  g_autoptr (QuireCompareView) self = user_data;
  g_autoptr (GPtrArray) messages = quire_history_load_finish (result, NULL);

  if (self->client == NULL)
    return;
  self->kept = messages != NULL ? quire_comparison_from_messages (messages) : NULL;
  if (self->kept == NULL)
    {
      gtk_stack_set_visible_child_name (GTK_STACK (self->stack), "missing");
      return;
    }
  g_free (self->source);
  self->source = g_strdup (self->kept->source);
  quire_compare_result_set_kept (self->result, TRUE);
  quire_compare_result_set (self->result, self->kept);
  gtk_stack_set_visible_child_name (GTK_STACK (self->stack), "result");
  g_signal_emit (self, signals[RUNNING_CHANGED], 0);
}

/* ---- Files ---- */

void
quire_compare_view_save (QuireCompareView *self, GFile *file, gboolean png)
{
  const QuireComparison *c = quire_compare_view_get_comparison (self);
  g_autoptr (GError) error = NULL;
  g_autofree char *name = g_file_get_basename (file), *text = NULL;
  gboolean ok;

  if (c == NULL)
    return;
  if (png)
    ok = quire_compare_result_save_png (self->result, file, &error);
  else
    {
      g_autofree char *csv = quire_comparison_to_csv (c);

      ok = g_file_replace_contents (file, csv, strlen (csv), NULL, FALSE,
                                    G_FILE_CREATE_REPLACE_DESTINATION, NULL, NULL, &error);
    }
  text = ok ? g_strdup_printf (_ ("Saved as “%s”"), name)
            : g_strdup_printf (_ ("Could not save: %s"), error->message);
  quire_compare_view_add_toast (self, quire_toast_new (GTK_WIDGET (self), text));
}

static void
response_cb (GtkFileChooserNative *chooser, int response, gpointer user_data)
{
  gboolean png = g_object_get_data (G_OBJECT (chooser), "quire-png") != NULL;
  g_autoptr (GFile) file = response == GTK_RESPONSE_ACCEPT
                               ? gtk_file_chooser_get_file (GTK_FILE_CHOOSER (chooser))
                               : NULL;

  if (file != NULL)
    quire_compare_view_save (user_data, file, png);
  g_object_unref (chooser);
}

static void
export_action (GSimpleAction *action, GVariant *parameter, gpointer user_data)
{
  QuireCompareView *self = user_data;
  gboolean png = g_str_equal (g_action_get_name (G_ACTION (action)), "export-png");
  GtkRoot *root = gtk_widget_get_root (GTK_WIDGET (self));
  g_autofree char *name = NULL;
  GtkFileChooserNative *chooser;

  if (self->item == NULL)
    return;
  name = quire_export_dup_name (quire_history_item_get (self->item), png ? "png" : "csv");
  chooser = gtk_file_chooser_native_new (_ ("Export Comparison"),
                                         GTK_IS_WINDOW (root) ? GTK_WINDOW (root) : NULL,
                                         GTK_FILE_CHOOSER_ACTION_SAVE, _ ("_Export"), NULL);
  gtk_file_chooser_set_current_name (GTK_FILE_CHOOSER (chooser), name);
  g_object_set_data (G_OBJECT (chooser), "quire-png", GINT_TO_POINTER (png));
  g_signal_connect_object (chooser, "response", G_CALLBACK (response_cb), self, 0);
  gtk_native_dialog_show (GTK_NATIVE_DIALOG (chooser));
}

/* ---- Object ---- */

const char *
quire_compare_view_get_title (QuireCompareView *self)
{
  return self->title;
}

QuireHistoryItem *
quire_compare_view_get_item (QuireCompareView *self)
{
  return self->item;
}

const char *
quire_compare_view_get_source (QuireCompareView *self)
{
  return self->source;
}

void
quire_compare_view_add_toast (QuireCompareView *self, AdwToast *toast)
{
  adw_toast_overlay_add_toast (self->toasts, toast);
}

void
quire_compare_view_set_can_use (QuireCompareView *self, gboolean can_use)
{
  self->can_use = can_use;
  quire_compare_result_set_can_use (self->result, can_use);
}

QuireCompare *
quire_compare_view_get_compare (QuireCompareView *self)
{
  return self->compare;
}

QuireCompareSetupView *
quire_compare_view_get_setup (QuireCompareView *self)
{
  return self->setup;
}

QuireCompareResult *
quire_compare_view_get_result (QuireCompareView *self)
{
  return self->result;
}

static gboolean
quire_compare_view_grab_focus (GtkWidget *widget)
{
  QuireCompareView *self = QUIRE_COMPARE_VIEW (widget);
  GtkWidget *child = gtk_stack_get_visible_child (GTK_STACK (self->stack));

  return child == GTK_WIDGET (self->setup) ? gtk_widget_grab_focus (child)
                                           : gtk_widget_child_focus (child, GTK_DIR_TAB_FORWARD);
}

static void
quire_compare_view_dispose (GObject *object)
{
  QuireCompareView *self = QUIRE_COMPARE_VIEW (object);

  cancel_show (self);
  if (self->compare != NULL)
    {
      g_signal_handlers_disconnect_by_data (self->compare, self);
      quire_compare_result_set (self->result, NULL);
    }
  g_clear_object (&self->compare);
  g_clear_object (&self->item);
  g_clear_object (&self->history);
  g_clear_object (&self->client);
  G_OBJECT_CLASS (quire_compare_view_parent_class)->dispose (object);
}

static void
quire_compare_view_finalize (GObject *object)
{
  QuireCompareView *self = QUIRE_COMPARE_VIEW (object);

  quire_comparison_free (self->kept);
  g_free (self->title);
  g_free (self->source);
  g_free (self->chat_title);
  G_OBJECT_CLASS (quire_compare_view_parent_class)->finalize (object);
}

static void
quire_compare_view_class_init (QuireCompareViewClass *klass)
{
  G_OBJECT_CLASS (klass)->dispose = quire_compare_view_dispose;
  G_OBJECT_CLASS (klass)->finalize = quire_compare_view_finalize;
  GTK_WIDGET_CLASS (klass)->grab_focus = quire_compare_view_grab_focus;
  signals[USE] = g_signal_new ("use", G_TYPE_FROM_CLASS (klass), G_SIGNAL_RUN_LAST, 0, NULL, NULL,
                               NULL, G_TYPE_NONE, 2, G_TYPE_INT, GTK_TYPE_WIDGET);
  signals[TITLE_CHANGED] = g_signal_new ("title-changed", G_TYPE_FROM_CLASS (klass),
                                         G_SIGNAL_RUN_LAST, 0, NULL, NULL, NULL, G_TYPE_NONE, 0);
  signals[RUNNING_CHANGED] = g_signal_new ("running-changed", G_TYPE_FROM_CLASS (klass),
                                           G_SIGNAL_RUN_LAST, 0, NULL, NULL, NULL, G_TYPE_NONE, 0);
}

static void
quire_compare_view_init (QuireCompareView *self)
{
  const GActionEntry entries[] = {
    { "export-csv", export_action, NULL, NULL, NULL, { 0 } },
    { "export-png", export_action, NULL, NULL, NULL, { 0 } },
  };
  g_autoptr (GSimpleActionGroup) actions = g_simple_action_group_new ();

  gtk_orientable_set_orientation (GTK_ORIENTABLE (self), GTK_ORIENTATION_VERTICAL);
  g_action_map_add_action_entries (G_ACTION_MAP (actions), entries, G_N_ELEMENTS (entries), self);
  gtk_widget_insert_action_group (GTK_WIDGET (self), "compare", G_ACTION_GROUP (actions));
  self->stack = gtk_stack_new ();
  gtk_stack_set_hhomogeneous (GTK_STACK (self->stack), FALSE);
  self->result = QUIRE_COMPARE_RESULT (quire_compare_result_new ());
  self->missing = adw_status_page_new ();
  adw_status_page_set_title (ADW_STATUS_PAGE (self->missing), _ ("This Comparison Cannot Be Read"));
  gtk_stack_add_named (GTK_STACK (self->stack), gtk_box_new (GTK_ORIENTATION_VERTICAL, 0), "empty");
  gtk_stack_add_named (GTK_STACK (self->stack), GTK_WIDGET (self->result), "result");
  gtk_stack_add_named (GTK_STACK (self->stack), self->missing, "missing");
  self->toasts = ADW_TOAST_OVERLAY (adw_toast_overlay_new ());
  quire_widget_name_toasts (self->toasts);
  adw_toast_overlay_set_child (self->toasts, self->stack);
  gtk_widget_set_vexpand (GTK_WIDGET (self->toasts), TRUE);
  gtk_box_append (GTK_BOX (self), GTK_WIDGET (self->toasts));
  g_signal_connect_swapped (self->result, "use", G_CALLBACK (use_cb), self);
  g_signal_connect_swapped (self->result, "stop", G_CALLBACK (quire_compare_view_stop), self);
  g_signal_connect_swapped (self->result, "again", G_CALLBACK (start), self);
  g_signal_connect_swapped (self->result, "setup", G_CALLBACK (setup_cb), self);
}

static QuireCompareView *
view_new (QuireEngineClient *client, QuireHistory *history)
{
  QuireCompareView *self = g_object_new (QUIRE_TYPE_COMPARE_VIEW, NULL);

  self->client = g_object_ref (client);
  self->history = g_object_ref (history);
  self->compare = quire_compare_new (client);
  g_signal_connect_swapped (self->compare, "changed", G_CALLBACK (changed_cb), self);
  g_signal_connect_swapped (self->compare, "over", G_CALLBACK (over_cb), self);
  return self;
}

GtkWidget *
quire_compare_view_new (QuireEngineClient *client, QuireHistory *history, GArray *prompt,
                        const QuireTurnSettings *settings, QuireCacheChoice present,
                        const char *title, const char *source)
{
  QuireCompareView *self = view_new (client, history);

  self->title = g_strdup (_ ("Compare Cache Modes"));
  self->chat_title = g_strdup (title);
  self->source = g_strdup (source);
  self->setup = QUIRE_COMPARE_SETUP (quire_compare_setup_new (client, prompt, settings, present));
  g_signal_connect_swapped (self->setup, "start", G_CALLBACK (start), self);
  gtk_stack_add_named (GTK_STACK (self->stack), GTK_WIDGET (self->setup), "setup");
  gtk_stack_set_visible_child_name (GTK_STACK (self->stack), "setup");
  return GTK_WIDGET (self);
}

GtkWidget *
quire_compare_view_new_kept (QuireEngineClient *client, QuireHistory *history,
                             QuireHistoryItem *item)
{
  QuireCompareView *self = view_new (client, history);

  self->item = g_object_ref (item);
  self->title = g_strdup (quire_history_item_get (item)->title);
  quire_history_load_async (history, quire_history_item_get (item)->id, NULL, loaded_cb,
                            g_object_ref (self));
  return GTK_WIDGET (self);
}
