/* quire-composer.c: see quire-composer.h.
 *
 * Enter: the input method is asked first, for a key controller added to a text view runs before the view's own. While
 * it composes, or takes the key, nothing is sent.
 * Tokens are counted on a worker, COUNT_DELAY_MS after the last change; the count of an older draft is dropped.
 * CSS: .quire-composer > textview, .hint, menubutton, contextring, button.send. */
#include "app/quire-composer.h"

#include <adwaita.h>
#include <glib/gi18n.h>
#include <string.h>

#include "app/quire-cache-popover.h"
#include "app/quire-chips.h"
#include "app/quire-context-ring.h"
#include "app/quire-format.h"
#include "app/quire-model-popover.h"
#include "app/quire-settings.h"
#include "app/quire-widget.h"

#define COUNT_DELAY_MS 150
#define HINT_MS 3000
#define SCROLL_DELAY_MS 150
/* A double click on Send must not stop the reply it began. */
#define STOP_IGNORED_US (300 * 1000)
#define LINES_HEIGHT_MAX_PX 168

struct _QuireComposer
{
  GtkBox parent_instance;

  QuireConversation *conversation;
  GtkWidget *text_view;
  GtkTextBuffer *buffer;
  GtkWidget *placeholder;
  GPtrArray *attachments; /* (element-type QuireAttachment) of the draft */
  QuireChips *chips;
  GCancellable *reading; /* of files; as long as the composer lives */
  GtkLabel *model_label;
  GtkWidget *model_button, *cache_button;
  GtkLabel *cache_label;
  GtkLabel *hint;   /* what cannot be done now */
  GtkLabel *tokens; /* of the draft */
  GtkWidget *over;  /* a line of its own, while the draft is too long */
  GtkLabel *over_label;
  QuireContextRing *ring;
  GtkWidget *button;

  gboolean send_later; /* when the model is there again */
  gboolean composing;  /* the input method holds text */
  gint64 running_since_us;
  gint64 asked_us;
  guint count_id, hint_id;
  guint scroll_id;
  GCancellable *counting;
  gssize n_draft; /* tokens; -1: not known */
  guint n_files;  /* of these, its files', as of the last count */
  guint n_used;   /* tokens of the session */
  GCancellable *counting_system;
  guint n_system; /* of these, the system prompt's */
  QuireContextLimit limit;
};

G_DEFINE_FINAL_TYPE (QuireComposer, quire_composer, GTK_TYPE_BOX)

enum
{
  SEND,
  STOP,
  ATTACHED,
  REFUSED,
  N_SIGNALS
};
static guint signals[N_SIGNALS];

static char *
dup_written (QuireComposer *self)
{
  GtkTextIter start, end;

  gtk_text_buffer_get_bounds (self->buffer, &start, &end);
  return gtk_text_buffer_get_text (self->buffer, &start, &end, FALSE);
}

char *
quire_composer_dup_text (QuireComposer *self)
{
  g_autofree char *text = dup_written (self);

  return quire_attachments_compose (self->attachments, text);
}

static gboolean
has_text (QuireComposer *self)
{
  GtkTextIter iter;

  if (self->attachments->len > 0)
    return TRUE;
  gtk_text_buffer_get_start_iter (self->buffer, &iter);
  while (!gtk_text_iter_is_end (&iter))
    {
      if (!g_unichar_isspace (gtk_text_iter_get_char (&iter)))
        return TRUE;
      gtk_text_iter_forward_char (&iter);
    }
  return FALSE;
}

static QuireContextUse
get_use (QuireComposer *self)
{
  /* The system prompt is in the session once it was read there. */
  guint n_system = self->n_system,
        n_history = self->n_used > n_system ? self->n_used - n_system : 0;

  return (QuireContextUse){ n_system, n_history, self->n_draft > 0 ? (guint)self->n_draft : 0 };
}

/* Tokens of the draft past what fits, with some room for the reply's first words; 0 when it fits. */
static guint
excess (QuireComposer *self)
{
  QuireContextUse use = get_use (self);

  return quire_context_excess (&use, self->limit.n_max);
}

static void
update_ring (QuireComposer *self)
{
  QuireContextUse use = get_use (self);

  quire_context_ring_set (self->ring, &use, &self->limit);
}

static void
update_tokens (QuireComposer *self)
{
  g_autofree char *text = NULL;
  g_autofree char *tooltip = NULL;
  guint n_over = excess (self);

  if (n_over > 0)
    {
      g_autofree char *n = quire_format_count (n_over);
      g_autofree char *over
          = g_strdup_printf (ngettext ("%s token too many", "%s tokens too many", n_over), n);

      gtk_label_set_text (self->over_label, over);
    }
  gtk_widget_set_visible (self->over, n_over > 0);
  if (self->n_draft > 0)
    {
      g_autofree char *n = quire_format_count ((guint64)self->n_draft);

      text = g_strdup_printf ("+%s", n);
      tooltip = g_strdup_printf (
          ngettext ("The draft has %s token", "The draft has %s tokens", (gulong)self->n_draft), n);
    }
  gtk_label_set_text (self->tokens, text != NULL ? text : "");
  gtk_widget_set_tooltip_text (GTK_WIDGET (self->tokens), tooltip);
  update_ring (self);
}

/* The model is there as soon as somebody sends. */
static gboolean
is_asleep (QuireComposer *self)
{
  return quire_engine_client_get_status (quire_conversation_get_client (self->conversation))->state
         == QE_ENGINE_RELEASED;
}

static void
update_button (QuireComposer *self)
{
  gboolean running = quire_conversation_is_running (self->conversation);
  gboolean ready
      = quire_engine_client_is_ready (quire_conversation_get_client (self->conversation));
  const char *tooltip = running ? _ ("Stop (Esc)") : _ ("Send (Enter)");

  gtk_button_set_icon_name (GTK_BUTTON (self->button),
                            running ? "quire-stop-symbolic" : "quire-send-symbolic");
  gtk_widget_set_tooltip_text (self->button, tooltip);
  gtk_accessible_update_property (GTK_ACCESSIBLE (self->button), GTK_ACCESSIBLE_PROPERTY_LABEL,
                                  running ? _ ("Stop") : _ ("Send"), -1);
  gtk_widget_set_sensitive (
      self->button,
      running || ((ready || is_asleep (self)) && excess (self) == 0 && has_text (self)));
  if (running)
    gtk_widget_remove_css_class (self->button, "suggested-action");
  else
    gtk_widget_add_css_class (self->button, "suggested-action");
}

static void
update_placeholder (QuireComposer *self)
{
  qe_engine_state state
      = quire_engine_client_get_status (quire_conversation_get_client (self->conversation))->state;

  gtk_widget_set_visible (self->placeholder,
                          gtk_text_buffer_get_char_count (self->buffer) == 0 && !self->composing);
  gtk_label_set_text (GTK_LABEL (self->placeholder),
                      state == QE_ENGINE_EMPTY || state == QE_ENGINE_FAILED
                          ? _ ("Choose a model to start")
                          : _ ("Write a message"));
}

/* ---- Hints ---- */

/* Where the line has no room for it, the two buttons give theirs until it has gone. */
static void
set_hint (QuireComposer *self, const char *hint)
{
  int natural;
  gboolean tight;

  gtk_label_set_text (self->hint, hint);
  gtk_widget_measure (GTK_WIDGET (self->hint), GTK_ORIENTATION_HORIZONTAL, -1, NULL, &natural, NULL,
                      NULL);
  tight = hint[0] != '\0' && natural > gtk_widget_get_width (GTK_WIDGET (self->hint));
  gtk_widget_set_visible (self->model_button, !tight);
  gtk_widget_set_visible (self->cache_button, !tight);
}

static gboolean
hint_over_cb (gpointer user_data)
{
  QuireComposer *self = user_data;

  self->hint_id = 0;
  set_hint (self, "");
  update_tokens (self);
  return G_SOURCE_REMOVE;
}

void
quire_composer_show_hint (QuireComposer *self, const char *hint)
{
  g_clear_handle_id (&self->hint_id, g_source_remove);
  set_hint (self, hint);
  self->hint_id = g_timeout_add (HINT_MS, hint_over_cb, self);
}

/* What it said no longer holds. */
static void
drop_hint (QuireComposer *self)
{
  g_clear_handle_id (&self->hint_id, g_source_remove);
  set_hint (self, "");
  update_tokens (self);
}

/* ---- Counting ---- */

static void
counted_cb (GObject *source, GAsyncResult *result, gpointer user_data)
{
  g_autoptr (QuireComposer) self = user_data;
  g_autoptr (GError) error = NULL;
  gssize n = quire_engine_client_count_finish (QUIRE_ENGINE_CLIENT (source), result, &error);

  if (g_error_matches (error, G_IO_ERROR, G_IO_ERROR_CANCELLED) || self->conversation == NULL)
    return;
  self->n_draft = n >= 0 ? n + self->n_files : n;
  update_tokens (self);
  update_button (self);
}

/* Files were counted when they came: a large one is not read again with each key. */
static gboolean
count_cb (gpointer user_data)
{
  QuireComposer *self = user_data;
  g_autofree char *written = dup_written (self);
  g_autofree char *text
      = quire_attachments_compose_uncounted (self->attachments, written, &self->n_files);

  self->count_id = 0;
  self->counting = g_cancellable_new ();
  quire_engine_client_count_async (quire_conversation_get_client (self->conversation), text,
                                   self->counting, counted_cb, g_object_ref (self));
  return G_SOURCE_REMOVE;
}

static void
cancel_count (QuireComposer *self)
{
  g_clear_handle_id (&self->count_id, g_source_remove);
  if (self->counting != NULL)
    g_cancellable_cancel (self->counting);
  g_clear_object (&self->counting);
}

static void
buffer_changed_cb (QuireComposer *self)
{
  cancel_count (self);
  if (gtk_text_buffer_get_char_count (self->buffer) == 0 && self->attachments->len == 0)
    {
      self->n_draft = 0;
      update_tokens (self);
    }
  else
    self->count_id = g_timeout_add (COUNT_DELAY_MS, count_cb, self);
  update_placeholder (self);
  update_button (self);
}

/* A long paste ends far below what is seen, and its lines have no heights yet when the view scrolls to the cursor. */
static gboolean
scroll_cb (gpointer user_data)
{
  QuireComposer *self = user_data;

  self->scroll_id = 0;
  gtk_text_view_scroll_to_mark (GTK_TEXT_VIEW (self->text_view),
                                gtk_text_buffer_get_insert (self->buffer), 0, FALSE, 0, 0);
  return G_SOURCE_REMOVE;
}

static void
paste_done_cb (QuireComposer *self)
{
  if (self->scroll_id == 0)
    self->scroll_id = g_timeout_add (SCROLL_DELAY_MS, scroll_cb, self);
}

/* ---- Files ---- */

static void
attachments_changed (QuireComposer *self)
{
  quire_chips_set (self->chips, self->attachments);
  buffer_changed_cb (self);
  g_signal_emit (self, signals[ATTACHED], 0);
}

static void
refuse (QuireComposer *self, const char *why)
{
  g_signal_emit (self, signals[REFUSED], 0, why);
}

typedef struct
{
  QuireComposer *composer;
  QuireAttachment *attachment;
} Attaching;

/* One that is longer than any context is refused with both numbers. */
static void
file_counted_cb (GObject *source, GAsyncResult *result, gpointer user_data)
{
  g_autofree Attaching *attaching = user_data;
  g_autoptr (QuireComposer) self = attaching->composer;
  g_autoptr (QuireAttachment) attachment = attaching->attachment;
  gssize n = quire_engine_client_count_finish (QUIRE_ENGINE_CLIENT (source), result, NULL);

  if (self->conversation == NULL)
    return;
  if (n > 0 && self->limit.n_model > 0 && n > (gssize)self->limit.n_model)
    {
      g_autofree char *have = quire_format_count ((guint64)n);
      g_autofree char *max = quire_format_count (self->limit.n_model);
      /* Translators: the name of a file, then numbers of tokens. */
      g_autofree char *why = g_strdup_printf (_ ("“%s” has %s tokens; the model’s context has %s."),
                                              attachment->name, have, max);

      refuse (self, why);
      return;
    }
  if (self->attachments->len >= QUIRE_ATTACHMENTS_MAX)
    {
      refuse (self, _ ("No more files can be attached to one message."));
      return;
    }
  attachment->n_tokens = n > 0 ? (guint)n : 0;
  g_ptr_array_add (self->attachments, g_steal_pointer (&attachment));
  attachments_changed (self);
}

static void
file_read_cb (GObject *source, GAsyncResult *result, gpointer user_data)
{
  g_autoptr (QuireComposer) self = user_data;
  g_autoptr (GError) error = NULL;
  QuireAttachment *attachment = quire_attachment_read_finish (result, &error);
  Attaching *attaching;

  if (attachment == NULL)
    {
      if (self->conversation != NULL && !g_error_matches (error, G_IO_ERROR, G_IO_ERROR_CANCELLED))
        refuse (self, error->message);
      return;
    }
  if (self->conversation == NULL)
    {
      quire_attachment_free (attachment);
      return;
    }
  attaching = g_new (Attaching, 1);
  *attaching = (Attaching){ g_object_ref (self), attachment };
  quire_engine_client_count_async (quire_conversation_get_client (self->conversation),
                                   attachment->text, NULL, file_counted_cb, attaching);
}

void
quire_composer_attach (QuireComposer *self, GFile *file)
{
  quire_attachment_read_async (file, self->reading, file_read_cb, g_object_ref (self));
}

void
quire_composer_attach_list (QuireComposer *self, GdkFileList *list)
{
  GSList *files = gdk_file_list_get_files (list);

  for (GSList *l = files; l != NULL; l = l->next)
    quire_composer_attach (self, l->data);
  g_slist_free (files);
}

static void
removed_cb (QuireComposer *self, guint i)
{
  if (i < self->attachments->len)
    g_ptr_array_remove_index (self->attachments, i);
  attachments_changed (self);
  gtk_widget_grab_focus (self->text_view);
}

static void
pasted_cb (GObject *source, GAsyncResult *result, gpointer user_data)
{
  g_autoptr (QuireComposer) self = user_data;
  const GValue *value = gdk_clipboard_read_value_finish (GDK_CLIPBOARD (source), result, NULL);

  if (value != NULL && self->conversation != NULL)
    quire_composer_attach_list (self, g_value_get_boxed (value));
}

/* Files that were copied come as files, not as their names. */
static void
paste_clipboard_cb (QuireComposer *self)
{
  GdkClipboard *clipboard = gtk_widget_get_clipboard (self->text_view);

  if (!gdk_content_formats_contain_gtype (gdk_clipboard_get_formats (clipboard),
                                          GDK_TYPE_FILE_LIST))
    return;
  g_signal_stop_emission_by_name (self->text_view, "paste-clipboard");
  gdk_clipboard_read_value_async (clipboard, GDK_TYPE_FILE_LIST, G_PRIORITY_DEFAULT, NULL,
                                  pasted_cb, g_object_ref (self));
}

static void
chosen_cb (GtkFileChooserNative *chooser, int response, gpointer user_data)
{
  QuireComposer *self = user_data;

  if (response == GTK_RESPONSE_ACCEPT)
    {
      g_autoptr (GListModel) files = gtk_file_chooser_get_files (GTK_FILE_CHOOSER (chooser));

      for (guint i = 0; i < g_list_model_get_n_items (files); i++)
        {
          g_autoptr (GFile) file = g_list_model_get_item (files, i);

          quire_composer_attach (self, file);
        }
    }
  g_object_unref (chooser);
}

void
quire_composer_choose_files (QuireComposer *self)
{
  GtkRoot *root = gtk_widget_get_root (GTK_WIDGET (self));
  GtkFileChooserNative *chooser
      = gtk_file_chooser_native_new (_ ("Attach Text Files"), GTK_WINDOW (root),
                                     GTK_FILE_CHOOSER_ACTION_OPEN, _ ("_Attach"), NULL);

  gtk_file_chooser_set_select_multiple (GTK_FILE_CHOOSER (chooser), TRUE);
  g_signal_connect_object (chooser, "response", G_CALLBACK (chosen_cb), self, 0);
  gtk_native_dialog_show (GTK_NATIVE_DIALOG (chooser));
}

GPtrArray *
quire_composer_get_attachments (QuireComposer *self)
{
  return self->attachments;
}

/* ---- Sending and stopping ---- */

gboolean
quire_composer_send (QuireComposer *self)
{
  QuireEngineClient *client = quire_conversation_get_client (self->conversation);
  g_autofree char *text = NULL;

  if (quire_conversation_is_running (self->conversation))
    {
      quire_composer_show_hint (self, _ ("Stop the reply first (Esc)"));
      return FALSE;
    }
  if (!has_text (self) || excess (self) > 0)
    return FALSE;
  if (is_asleep (self))
    {
      self->send_later = TRUE;
      quire_composer_show_hint (self, _ ("The model comes back, then this is sent"));
      quire_engine_client_recover (client);
      return FALSE;
    }
  if (!quire_engine_client_is_ready (client))
    {
      quire_composer_show_hint (self,
                                quire_engine_client_get_status (client)->state == QE_ENGINE_LOADING
                                    ? _ ("The model is still loading")
                                    : _ ("Choose a model first"));
      return FALSE;
    }

  text = quire_composer_dup_text (self);
  if (self->asked_us == 0)
    self->asked_us = g_get_monotonic_time ();
  g_signal_emit (self, signals[SEND], 0, text);
  self->asked_us = 0;
  return TRUE;
}

static void
button_clicked_cb (QuireComposer *self)
{
  if (!quire_conversation_is_running (self->conversation))
    quire_composer_send (self);
  else if (g_get_monotonic_time () - self->running_since_us >= STOP_IGNORED_US)
    g_signal_emit (self, signals[STOP], 0);
  gtk_widget_grab_focus (self->text_view);
}

static gboolean
key_pressed_cb (GtkEventControllerKey *controller, guint keyval, guint keycode,
                GdkModifierType state, gpointer user_data)
{
  QuireComposer *self = user_data;
  GdkEvent *event;
  gint64 now_us = g_get_monotonic_time ();

  if (keyval != GDK_KEY_Return && keyval != GDK_KEY_KP_Enter && keyval != GDK_KEY_ISO_Enter)
    return GDK_EVENT_PROPAGATE;

  event = gtk_event_controller_get_current_event (GTK_EVENT_CONTROLLER (controller));
  if (gtk_text_view_im_context_filter_keypress (GTK_TEXT_VIEW (self->text_view), event))
    return GDK_EVENT_STOP;
  if (self->composing)
    return GDK_EVENT_STOP;

  if (state & GDK_SHIFT_MASK)
    {
      gtk_text_buffer_delete_selection (self->buffer, TRUE, TRUE);
      gtk_text_buffer_insert_interactive_at_cursor (self->buffer, "\n", 1, TRUE);
      gtk_text_view_scroll_mark_onscreen (GTK_TEXT_VIEW (self->text_view),
                                          gtk_text_buffer_get_insert (self->buffer));
    }
  else
    {
      self->asked_us = now_us;
      quire_composer_send (self);
      self->asked_us = 0;
    }
  return GDK_EVENT_STOP;
}

static void
preedit_changed_cb (QuireComposer *self, const char *preedit)
{
  self->composing = preedit != NULL && preedit[0] != '\0';
  update_placeholder (self);
}

/* ---- Following the conversation and the engine ---- */

static void
system_counted_cb (GObject *source, GAsyncResult *result, gpointer user_data)
{
  g_autoptr (QuireComposer) self = user_data;
  g_autoptr (GError) error = NULL;
  gssize n = quire_engine_client_count_finish (QUIRE_ENGINE_CLIENT (source), result, &error);

  if (g_error_matches (error, G_IO_ERROR, G_IO_ERROR_CANCELLED) || self->conversation == NULL)
    return;
  self->n_system = n > 0 ? (guint)n + QUIRE_CONTEXT_MESSAGE_TOKENS : 0;
  update_tokens (self);
  update_button (self);
}

/* The system prompt is counted when it, or the model, has changed. */
static void
count_system (QuireComposer *self)
{
  const char *system = quire_conversation_get_system (self->conversation);

  if (self->counting_system != NULL)
    g_cancellable_cancel (self->counting_system);
  g_clear_object (&self->counting_system);
  if (system == NULL)
    {
      self->n_system = 0;
      update_tokens (self);
      return;
    }
  self->counting_system = g_cancellable_new ();
  quire_engine_client_count_async (quire_conversation_get_client (self->conversation), system,
                                   self->counting_system, system_counted_cb, g_object_ref (self));
}

/* The button says the mode; while a reply runs it cannot be changed, and says why. */
static void
update_cache (QuireComposer *self)
{
  QuireCacheChoice choice = quire_conversation_get_cache (self->conversation);
  gboolean running = quire_conversation_is_running (self->conversation);
  g_autofree char *title = quire_cache_choice_dup_name (choice);
  g_autofree char *name = g_strdup_printf (_ ("Cache mode: %s"), title);
  g_autofree char *tooltip = NULL;

  if (running)
    tooltip = g_strdup_printf ("%s\n%s", name,
                               _ ("A reply is running: stop it first (Esc) to change the mode"));
  else
    tooltip = g_strdup_printf ("%s\n%s", name, quire_cache_choice_get_description (choice));
  gtk_label_set_text (self->cache_label, title);
  gtk_label_set_max_width_chars (self->cache_label,
                                 quire_cache_choice_is_approximate (choice) ? 26 : 16);
  gtk_widget_set_tooltip_text (self->cache_button, tooltip);
  gtk_widget_set_sensitive (self->cache_button, !running);
  gtk_accessible_update_property (GTK_ACCESSIBLE (self->cache_button),
                                  GTK_ACCESSIBLE_PROPERTY_LABEL, name, -1);
}

static void
running_cb (QuireComposer *self)
{
  if (quire_conversation_is_running (self->conversation))
    self->running_since_us = g_get_monotonic_time ();
  drop_hint (self);
  update_button (self);
  update_cache (self);
}

static void
status_changed_cb (QuireComposer *self)
{
  const qe_engine_status *status
      = quire_engine_client_get_status (quire_conversation_get_client (self->conversation));
  g_autofree char *name
      = status->model != NULL ? quire_model_dup_name (status->model) : g_strdup (_ ("No Model"));

  gtk_label_set_text (self->model_label, name);
  if (status->state == QE_ENGINE_READY)
    {
      drop_hint (self);
      count_system (self);
    }
  update_placeholder (self);
  update_button (self);
  if (self->send_later && status->state != QE_ENGINE_LOADING && !is_asleep (self))
    {
      self->send_later = FALSE;
      if (status->state == QE_ENGINE_READY)
        quire_composer_send (self);
    }
}

void
quire_composer_set_context (QuireComposer *self, guint n_used, const QuireContextLimit *limit)
{
  if (self->n_used == n_used && self->limit.n_max == limit->n_max
      && self->limit.token_bytes == limit->token_bytes)
    return;
  self->n_used = n_used;
  self->limit = *limit;
  update_tokens (self);
  update_button (self);
}

/* ---- Building ---- */

static GtkWidget *
text_area_new (QuireComposer *self)
{
  GtkWidget *overlay = gtk_overlay_new ();
  GtkWidget *scrolled = gtk_scrolled_window_new ();
  GtkEventController *keys = gtk_event_controller_key_new ();

  self->text_view = gtk_text_view_new ();
  self->buffer = gtk_text_view_get_buffer (GTK_TEXT_VIEW (self->text_view));
  gtk_text_view_set_wrap_mode (GTK_TEXT_VIEW (self->text_view), GTK_WRAP_WORD_CHAR);
  gtk_text_view_set_accepts_tab (GTK_TEXT_VIEW (self->text_view), FALSE);
  gtk_text_view_set_bottom_margin (GTK_TEXT_VIEW (self->text_view), 6);
  gtk_accessible_update_property (GTK_ACCESSIBLE (self->text_view), GTK_ACCESSIBLE_PROPERTY_LABEL,
                                  _ ("Message"), -1);
  g_signal_connect (keys, "key-pressed", G_CALLBACK (key_pressed_cb), self);
  gtk_widget_add_controller (self->text_view, keys);
  g_signal_connect_swapped (self->text_view, "preedit-changed", G_CALLBACK (preedit_changed_cb),
                            self);
  g_signal_connect_swapped (self->buffer, "changed", G_CALLBACK (buffer_changed_cb), self);
  g_signal_connect_swapped (self->buffer, "paste-done", G_CALLBACK (paste_done_cb), self);
  g_signal_connect_swapped (self->text_view, "paste-clipboard", G_CALLBACK (paste_clipboard_cb),
                            self);

  gtk_scrolled_window_set_policy (GTK_SCROLLED_WINDOW (scrolled), GTK_POLICY_NEVER,
                                  GTK_POLICY_AUTOMATIC);
  gtk_scrolled_window_set_propagate_natural_height (GTK_SCROLLED_WINDOW (scrolled), TRUE);
  gtk_scrolled_window_set_max_content_height (GTK_SCROLLED_WINDOW (scrolled), LINES_HEIGHT_MAX_PX);
  gtk_scrolled_window_set_child (GTK_SCROLLED_WINDOW (scrolled), self->text_view);
  gtk_overlay_set_child (GTK_OVERLAY (overlay), scrolled);

  self->placeholder = gtk_label_new (NULL);
  gtk_widget_add_css_class (self->placeholder, "dim-label");
  gtk_widget_add_css_class (self->placeholder, "hint");
  gtk_widget_set_halign (self->placeholder, GTK_ALIGN_START);
  gtk_widget_set_valign (self->placeholder, GTK_ALIGN_START);
  gtk_widget_set_can_target (self->placeholder, FALSE);
  gtk_label_set_ellipsize (GTK_LABEL (self->placeholder), PANGO_ELLIPSIZE_END);
  gtk_overlay_add_overlay (GTK_OVERLAY (overlay), self->placeholder);
  return overlay;
}

static GtkWidget *
model_button_new (QuireComposer *self)
{
  GtkWidget *button = gtk_menu_button_new ();
  GtkWidget *box = gtk_box_new (GTK_ORIENTATION_HORIZONTAL, 6);
  GtkWidget *label = gtk_label_new (NULL);

  /* A menu button's own label does not ellipsise. */
  self->model_label = GTK_LABEL (label);
  gtk_label_set_ellipsize (self->model_label, PANGO_ELLIPSIZE_END);
  gtk_label_set_width_chars (self->model_label, 5);
  gtk_label_set_max_width_chars (self->model_label, 24);
  gtk_label_set_xalign (self->model_label, 0);
  gtk_box_append (GTK_BOX (box), label);
  gtk_box_append (GTK_BOX (box), gtk_image_new_from_icon_name ("pan-down-symbolic"));
  gtk_menu_button_set_child (GTK_MENU_BUTTON (button), box);
  gtk_widget_add_css_class (button, "flat");
  gtk_widget_set_tooltip_text (button, _ ("Model"));
  gtk_accessible_update_property (GTK_ACCESSIBLE (button), GTK_ACCESSIBLE_PROPERTY_LABEL,
                                  _ ("Model"), -1);
  gtk_menu_button_set_direction (GTK_MENU_BUTTON (button), GTK_ARROW_UP);
  gtk_menu_button_set_popover (
      GTK_MENU_BUTTON (button),
      quire_model_popover_new (quire_conversation_get_client (self->conversation)));
  return button;
}

static GtkWidget *
cache_button_new (QuireComposer *self)
{
  GtkWidget *box = gtk_box_new (GTK_ORIENTATION_HORIZONTAL, 6);
  GtkWidget *label = gtk_label_new (NULL), *popover;

  self->cache_button = gtk_menu_button_new ();
  self->cache_label = GTK_LABEL (label);
  gtk_label_set_ellipsize (self->cache_label, PANGO_ELLIPSIZE_END);
  gtk_label_set_width_chars (self->cache_label, 4);
  gtk_label_set_max_width_chars (self->cache_label, 16);
  gtk_label_set_xalign (self->cache_label, 0);
  gtk_box_append (GTK_BOX (box), label);
  gtk_box_append (GTK_BOX (box), gtk_image_new_from_icon_name ("pan-down-symbolic"));
  gtk_menu_button_set_child (GTK_MENU_BUTTON (self->cache_button), box);
  gtk_widget_add_css_class (self->cache_button, "flat");
  gtk_menu_button_set_direction (GTK_MENU_BUTTON (self->cache_button), GTK_ARROW_UP);
  popover = quire_cache_popover_new (self->conversation);
  /* What follows is the next message. */
  g_signal_connect_swapped (popover, "closed", G_CALLBACK (quire_composer_grab_focus), self);
  gtk_menu_button_set_popover (GTK_MENU_BUTTON (self->cache_button), popover);
  return self->cache_button;
}

static GtkLabel *
caption_new (GtkAccessibleRole role)
{
  GtkWidget *label = g_object_new (GTK_TYPE_LABEL, "accessible-role", role, NULL);

  gtk_widget_add_css_class (label, "dim-label");
  gtk_widget_add_css_class (label, "caption");
  gtk_widget_add_css_class (label, "numeric");
  return GTK_LABEL (label);
}

static GtkWidget *
over_new (QuireComposer *self)
{
  GtkWidget *icon = gtk_image_new_from_icon_name ("dialog-warning-symbolic"), *button;

  self->over = gtk_box_new (GTK_ORIENTATION_HORIZONTAL, 6);
  gtk_widget_add_css_class (self->over, "over");
  gtk_widget_add_css_class (icon, "error");
  gtk_box_append (GTK_BOX (self->over), icon);
  /* A status: what it says is read out. */
  self->over_label = GTK_LABEL (
      g_object_new (GTK_TYPE_LABEL, "accessible-role", GTK_ACCESSIBLE_ROLE_STATUS, NULL));
  gtk_widget_add_css_class (GTK_WIDGET (self->over_label), "error");
  gtk_widget_add_css_class (GTK_WIDGET (self->over_label), "numeric");
  gtk_label_set_wrap (self->over_label, TRUE);
  gtk_label_set_xalign (self->over_label, 0);
  gtk_widget_set_hexpand (GTK_WIDGET (self->over_label), TRUE);
  gtk_box_append (GTK_BOX (self->over), GTK_WIDGET (self->over_label));
  button = quire_mnemonic_button_new (_ ("_Make Room…"));
  gtk_actionable_set_action_name (GTK_ACTIONABLE (button), "chat.make-room");
  gtk_box_append (GTK_BOX (self->over), button);
  gtk_widget_set_visible (self->over, FALSE);
  return self->over;
}

static void
build (QuireComposer *self)
{
  GtkWidget *bottom = gtk_box_new (GTK_ORIENTATION_HORIZONTAL, 6), *attach, *squeezer;
  QuireEngineClient *client = quire_conversation_get_client (self->conversation);

  self->chips = QUIRE_CHIPS (quire_chips_new (TRUE));
  g_signal_connect_swapped (self->chips, "removed", G_CALLBACK (removed_cb), self);
  gtk_box_append (GTK_BOX (self), GTK_WIDGET (self->chips));
  gtk_box_append (GTK_BOX (self), text_area_new (self));
  gtk_box_append (GTK_BOX (self), over_new (self));

  attach = gtk_button_new_from_icon_name ("quire-attach-symbolic");
  gtk_widget_add_css_class (attach, "flat");
  gtk_widget_set_tooltip_text (attach, _ ("Attach Text Files"));
  gtk_accessible_update_property (GTK_ACCESSIBLE (attach), GTK_ACCESSIBLE_PROPERTY_LABEL,
                                  _ ("Attach text files"), -1);
  gtk_actionable_set_action_name (GTK_ACTIONABLE (attach), "chat.attach");
  gtk_box_append (GTK_BOX (bottom), attach);
  self->model_button = model_button_new (self);
  gtk_box_append (GTK_BOX (bottom), self->model_button);
  gtk_box_append (GTK_BOX (bottom), cache_button_new (self));
  /* A status: what it says is read out. */
  self->hint = caption_new (GTK_ACCESSIBLE_ROLE_STATUS);
  gtk_label_set_ellipsize (self->hint, PANGO_ELLIPSIZE_END);
  gtk_label_set_wrap (self->hint, TRUE);
  gtk_label_set_natural_wrap_mode (self->hint, GTK_NATURAL_WRAP_NONE);
  gtk_label_set_lines (self->hint, 2);
  gtk_label_set_xalign (self->hint, 0);
  gtk_widget_set_hexpand (GTK_WIDGET (self->hint), TRUE);
  gtk_box_append (GTK_BOX (bottom), GTK_WIDGET (self->hint));
  self->tokens = caption_new (GTK_ACCESSIBLE_ROLE_LABEL);
  /* Where there is no room for it, the ring's popover has it. */
  squeezer = adw_squeezer_new ();
  adw_squeezer_set_homogeneous (ADW_SQUEEZER (squeezer), FALSE);
  adw_squeezer_set_allow_none (ADW_SQUEEZER (squeezer), TRUE);
  adw_squeezer_add (ADW_SQUEEZER (squeezer), GTK_WIDGET (self->tokens));
  gtk_box_append (GTK_BOX (bottom), squeezer);
  self->ring = QUIRE_CONTEXT_RING (quire_context_ring_new ());
  gtk_box_append (GTK_BOX (bottom), GTK_WIDGET (self->ring));

  self->button = gtk_button_new_from_icon_name ("quire-send-symbolic");
  gtk_widget_add_css_class (self->button, "circular");
  gtk_widget_add_css_class (self->button, "send");
  gtk_widget_set_valign (self->button, GTK_ALIGN_CENTER);
  g_signal_connect_swapped (self->button, "clicked", G_CALLBACK (button_clicked_cb), self);
  gtk_box_append (GTK_BOX (bottom), self->button);
  gtk_box_append (GTK_BOX (self), bottom);

  g_signal_connect_object (self->conversation, "notify::running", G_CALLBACK (running_cb), self,
                           G_CONNECT_SWAPPED);
  g_signal_connect_object (self->conversation, "notify::cache", G_CALLBACK (update_cache), self,
                           G_CONNECT_SWAPPED);
  g_signal_connect_object (self->conversation, "settings-changed", G_CALLBACK (count_system), self,
                           G_CONNECT_SWAPPED);
  g_signal_connect_object (client, "status-changed", G_CALLBACK (status_changed_cb), self,
                           G_CONNECT_SWAPPED);
  update_cache (self);
  status_changed_cb (self);
}

GtkTextView *
quire_composer_get_text_view (QuireComposer *self)
{
  return GTK_TEXT_VIEW (self->text_view);
}

gboolean
quire_composer_is_composing (QuireComposer *self)
{
  return self->composing;
}

gint64
quire_composer_get_asked_us (QuireComposer *self)
{
  return self->asked_us;
}

QuireContextRing *
quire_composer_get_ring (QuireComposer *self)
{
  return self->ring;
}

void
quire_composer_choose_cache (QuireComposer *self)
{
  gtk_menu_button_popup (GTK_MENU_BUTTON (self->cache_button));
}

void
quire_composer_clear (QuireComposer *self)
{
  gtk_text_buffer_set_text (self->buffer, "", 0);
  if (self->attachments->len == 0)
    return;
  g_ptr_array_set_size (self->attachments, 0);
  attachments_changed (self);
}

void
quire_composer_set_text (QuireComposer *self, const char *text)
{
  const char *written;
  gsize n_written;
  g_autoptr (GPtrArray) attachments
      = quire_attachments_split (text, strlen (text), &written, &n_written);

  g_ptr_array_unref (self->attachments);
  self->attachments = g_steal_pointer (&attachments);
  gtk_text_buffer_set_text (self->buffer, written, (int)n_written);
  attachments_changed (self);
}

void
quire_composer_grab_focus (QuireComposer *self)
{
  gtk_widget_grab_focus (self->text_view);
}

static void
quire_composer_dispose (GObject *object)
{
  QuireComposer *self = QUIRE_COMPOSER (object);

  cancel_count (self);
  if (self->counting_system != NULL)
    g_cancellable_cancel (self->counting_system);
  g_clear_object (&self->counting_system);
  g_clear_handle_id (&self->hint_id, g_source_remove);
  g_clear_handle_id (&self->scroll_id, g_source_remove);
  g_cancellable_cancel (self->reading);
  g_clear_object (&self->conversation);
  G_OBJECT_CLASS (quire_composer_parent_class)->dispose (object);
}

static void
quire_composer_finalize (GObject *object)
{
  QuireComposer *self = QUIRE_COMPOSER (object);

  g_object_unref (self->reading);
  g_ptr_array_unref (self->attachments);
  G_OBJECT_CLASS (quire_composer_parent_class)->finalize (object);
}

static void
quire_composer_class_init (QuireComposerClass *klass)
{
  GType type = G_TYPE_FROM_CLASS (klass);

  G_OBJECT_CLASS (klass)->dispose = quire_composer_dispose;
  G_OBJECT_CLASS (klass)->finalize = quire_composer_finalize;
  signals[SEND] = g_signal_new ("send", type, G_SIGNAL_RUN_LAST, 0, NULL, NULL, NULL, G_TYPE_NONE,
                                1, G_TYPE_STRING);
  signals[STOP]
      = g_signal_new ("stop", type, G_SIGNAL_RUN_LAST, 0, NULL, NULL, NULL, G_TYPE_NONE, 0);
  signals[ATTACHED]
      = g_signal_new ("attached", type, G_SIGNAL_RUN_LAST, 0, NULL, NULL, NULL, G_TYPE_NONE, 0);
  signals[REFUSED] = g_signal_new ("refused", type, G_SIGNAL_RUN_LAST, 0, NULL, NULL, NULL,
                                   G_TYPE_NONE, 1, G_TYPE_STRING);
}

static void
quire_composer_init (QuireComposer *self)
{
  gtk_orientable_set_orientation (GTK_ORIENTABLE (self), GTK_ORIENTATION_VERTICAL);
  gtk_widget_add_css_class (GTK_WIDGET (self), "quire-composer");
  self->attachments = quire_attachments_new ();
  self->reading = g_cancellable_new ();
}

GtkWidget *
quire_composer_new (QuireConversation *conversation)
{
  QuireComposer *self = g_object_new (QUIRE_TYPE_COMPOSER, NULL);

  self->conversation = g_object_ref (conversation);
  build (self);
  return GTK_WIDGET (self);
}
