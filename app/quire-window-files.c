/* quire-window-files.c: conversations to files and back, through the file chooser (in a sandbox: the portal). */
#include <glib/gi18n.h>
#include <string.h>

#include "app/quire-export.h"
#include "app/quire-toast.h"
#include "app/quire-window-private.h"

typedef struct
{
  QuireWindow *window;
  QuireHistoryItem *item; /* EXPORT */
  gboolean json;
  GFile *file;
  char *text;
} FileJob;

static void
file_job_free (FileJob *job)
{
  g_clear_object (&job->window);
  g_clear_object (&job->item);
  g_clear_object (&job->file);
  g_free (job->text);
  g_free (job);
}

static void
say (FileJob *job, char *text)
{
  QuireChatView *chat = quire_window_get_chat (job->window);

  if (chat != NULL)
    quire_chat_view_add_toast (chat, quire_toast_new (GTK_WIDGET (job->window), text));
  g_free (text);
  file_job_free (job);
}

/* ---- Out ---- */

static void
written_cb (GObject *source, GAsyncResult *result, gpointer user_data)
{
  FileJob *job = user_data;
  g_autoptr (GError) error = NULL;
  g_autofree char *name = g_file_get_basename (job->file);

  if (g_file_replace_contents_finish (G_FILE (source), result, NULL, &error))
    say (job, g_strdup_printf (_ ("Saved as “%s”"), name));
  else
    say (job, g_strdup_printf (_ ("Could not save: %s"), error->message));
}

static void
loaded_cb (GObject *source, GAsyncResult *result, gpointer user_data)
{
  FileJob *job = user_data;
  g_autoptr (GError) error = NULL;
  g_autoptr (GPtrArray) messages = quire_history_load_finish (result, &error);
  const QuireStoredChat *chat = quire_history_item_get (job->item);

  if (messages == NULL)
    {
      say (job, g_strdup_printf (_ ("Could not save: %s"), error->message));
      return;
    }
  job->text
      = job->json ? quire_export_json (chat, messages) : quire_export_markdown (chat, messages);
  g_file_replace_contents_async (job->file, job->text, strlen (job->text), NULL, FALSE,
                                 G_FILE_CREATE_REPLACE_DESTINATION, NULL, written_cb, job);
}

void
quire_window_export (QuireWindow *self, QuireHistoryItem *item, gboolean json, GFile *file)
{
  FileJob *job = g_new0 (FileJob, 1);

  job->window = g_object_ref (self);
  job->item = g_object_ref (item);
  job->json = json;
  job->file = g_object_ref (file);
  quire_history_load_async (self->history, quire_history_item_get (item)->id, NULL, loaded_cb, job);
}

static void
export_response_cb (GtkFileChooserNative *chooser, int response, gpointer user_data)
{
  QuireHistoryItem *item = g_object_get_data (G_OBJECT (chooser), "quire-item");
  gboolean json = g_object_get_data (G_OBJECT (chooser), "quire-json") != NULL;
  g_autoptr (GFile) file = response == GTK_RESPONSE_ACCEPT
                               ? gtk_file_chooser_get_file (GTK_FILE_CHOOSER (chooser))
                               : NULL;

  if (file != NULL)
    quire_window_export (user_data, item, json, file);
  g_object_unref (chooser);
}

static void
export_action (GSimpleAction *action, GVariant *parameter, gpointer user_data)
{
  QuireWindow *self = user_data;
  gboolean json = g_str_equal (g_action_get_name (G_ACTION (action)), "chat-export-json");
  QuireHistoryItem *item
      = quire_history_find (self->history, g_variant_get_string (parameter, NULL));
  g_autofree char *name = NULL;
  GtkFileChooserNative *chooser;

  if (item == NULL)
    return;
  name = quire_export_dup_name (quire_history_item_get (item), json ? "json" : "md");
  chooser = gtk_file_chooser_native_new (_ ("Export Chat"), GTK_WINDOW (self),
                                         GTK_FILE_CHOOSER_ACTION_SAVE, _ ("_Export"), NULL);
  gtk_file_chooser_set_current_name (GTK_FILE_CHOOSER (chooser), name);
  g_object_set_data_full (G_OBJECT (chooser), "quire-item", g_object_ref (item), g_object_unref);
  g_object_set_data (G_OBJECT (chooser), "quire-json", GINT_TO_POINTER (json));
  g_signal_connect_object (chooser, "response", G_CALLBACK (export_response_cb), self, 0);
  gtk_native_dialog_show (GTK_NATIVE_DIALOG (chooser));
}

/* ---- In ---- */

static void
read_cb (GObject *source, GAsyncResult *result, gpointer user_data)
{
  FileJob *job = user_data;
  g_autoptr (GError) error = NULL;
  g_autoptr (QuireHistoryItem) item = quire_history_item_new ();
  g_autofree char *text = NULL;
  QuireStoredChat chat = { 0 };
  GPtrArray *messages = NULL;
  gsize n_bytes;

  if (g_file_load_contents_finish (G_FILE (source), result, &text, &n_bytes, NULL, &error))
    messages = quire_import_json (text, (gssize)n_bytes, &chat, &error);
  if (messages == NULL)
    {
      say (job, g_strdup (error->message));
      return;
    }
  quire_stored_chat_clear (quire_history_item_edit (item));
  *quire_history_item_edit (item) = chat;
  quire_history_save (job->window->history, item, messages, NULL, NULL);
  gtk_widget_activate_action (GTK_WIDGET (job->window), "win.chat-open", "s", chat.id);
  file_job_free (job);
}

void
quire_window_import (QuireWindow *self, GFile *file)
{
  FileJob *job = g_new0 (FileJob, 1);

  job->window = g_object_ref (self);
  g_file_load_contents_async (file, NULL, read_cb, job);
}

static void
import_response_cb (GtkFileChooserNative *chooser, int response, gpointer user_data)
{
  g_autoptr (GFile) file = response == GTK_RESPONSE_ACCEPT
                               ? gtk_file_chooser_get_file (GTK_FILE_CHOOSER (chooser))
                               : NULL;

  if (file != NULL)
    quire_window_import (user_data, file);
  g_object_unref (chooser);
}

static void
import_action (GSimpleAction *action, GVariant *parameter, gpointer user_data)
{
  QuireWindow *self = user_data;
  GtkFileChooserNative *chooser = gtk_file_chooser_native_new (
      _ ("Import Chat"), GTK_WINDOW (self), GTK_FILE_CHOOSER_ACTION_OPEN, _ ("_Import"), NULL);
  g_autoptr (GtkFileFilter) filter = gtk_file_filter_new ();

  gtk_file_filter_set_name (filter, _ ("Chats Exported as JSON"));
  gtk_file_filter_add_pattern (filter, "*.json");
  gtk_file_chooser_add_filter (GTK_FILE_CHOOSER (chooser), filter);
  g_signal_connect_object (chooser, "response", G_CALLBACK (import_response_cb), self, 0);
  gtk_native_dialog_show (GTK_NATIVE_DIALOG (chooser));
}

void
quire_window_init_files (QuireWindow *self)
{
  const GActionEntry entries[] = {
    { "chat-export-markdown", export_action, "s", NULL, NULL, { 0 } },
    { "chat-export-json", export_action, "s", NULL, NULL, { 0 } },
    { "import-chat", import_action, NULL, NULL, NULL, { 0 } },
  };

  g_action_map_add_action_entries (G_ACTION_MAP (self), entries, G_N_ELEMENTS (entries), self);
}
