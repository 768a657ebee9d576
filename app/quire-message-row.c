/* quire-message-row.c: see quire-message-row.h.
 *
 * A reply's parts, top to bottom: thinking (folded), Markdown, caret until the first character, error with its one
 * button, status line, receipt. Parts are made when first needed. */
#include "app/quire-message-row.h"

#include <glib/gi18n.h>
#include <string.h>

#include "app/quire-chips.h"
#include "app/quire-format.h"
#include "app/quire-line-layout.h"
#include "app/quire-markdown-view.h"
#include "app/quire-markdown.h"
#include "app/quire-pace.h"
#include "app/quire-status-line.h"
#include "app/quire-thinking.h"
#include "app/quire-versions.h"
#include "app/quire-widget.h"
#include "app/quire-words.h"

/* Longer user text goes into a text view, which lays out only what is seen. */
#define LABEL_BYTES_MAX 4096
#define LONG_TEXT_HEIGHT_PX 240
#define EDITOR_HEIGHT_PX 60

struct _QuireMessageRow
{
  GtkBox parent_instance;

  QuireMessage *message;
  GtkWidget *thinking; /* GtkExpander or NULL */
  GtkLabel *thinking_label;
  GtkWidget *markdown;
  GtkWidget *caret;
  GtkWidget *error; /* or NULL */
  GtkWidget *status;
  GtkWidget *receipt; /* GtkRevealer */
  gsize n_thinking_shown;
  QuirePace pace;
  guint pace_id;        /* the next frame shows more */
  gboolean watched;     /* its reply ran when the row was last brought up to date */
  gulong painted_id;    /* waits for the first words to be painted */
  GdkFrameClock *clock; /* of painted_id; owned */
  GtkWidget *left_out;  /* the line under the last message that the model does not see; or NULL */

  /* Of the user's side; the editor is there while it is edited. */
  GtkWidget *bubble, *actions;
  GtkWidget *editor, *editor_view;
};

G_DEFINE_FINAL_TYPE (QuireMessageRow, quire_message_row, GTK_TYPE_BOX)

/* ---- The user's side ---- */

static GtkWidget *
long_text_new (const char *text)
{
  GtkWidget *scrolled = gtk_scrolled_window_new ();
  GtkWidget *view = gtk_text_view_new ();

  gtk_text_buffer_set_text (gtk_text_view_get_buffer (GTK_TEXT_VIEW (view)), text, -1);
  gtk_text_view_set_editable (GTK_TEXT_VIEW (view), FALSE);
  gtk_text_view_set_accepts_tab (GTK_TEXT_VIEW (view), FALSE);
  gtk_text_view_set_cursor_visible (GTK_TEXT_VIEW (view), FALSE);
  gtk_text_view_set_wrap_mode (GTK_TEXT_VIEW (view), GTK_WRAP_WORD_CHAR);
  gtk_widget_add_css_class (view, "inline");
  gtk_accessible_update_property (GTK_ACCESSIBLE (view), GTK_ACCESSIBLE_PROPERTY_LABEL,
                                  _ ("Your message"), -1);
  gtk_scrolled_window_set_policy (GTK_SCROLLED_WINDOW (scrolled), GTK_POLICY_NEVER,
                                  GTK_POLICY_AUTOMATIC);
  gtk_scrolled_window_set_min_content_height (GTK_SCROLLED_WINDOW (scrolled), LONG_TEXT_HEIGHT_PX);
  gtk_scrolled_window_set_child (GTK_SCROLLED_WINDOW (scrolled), view);
  gtk_widget_set_hexpand (scrolled, TRUE);
  return scrolled;
}

static gboolean
has_versions (QuireMessageRow *self)
{
  guint n;

  quire_message_get_version (self->message, &n);
  return n > 1;
}

static void
end_edit (QuireMessageRow *self)
{
  gtk_widget_set_visible (self->bubble, TRUE);
  gtk_widget_set_visible (self->actions, has_versions (self));
  /* The focus goes first: else the view would jump to where GTK puts it. */
  gtk_widget_activate_action (GTK_WIDGET (self), "win.focus-composer", NULL);
  if (self->editor != NULL)
    gtk_box_remove (GTK_BOX (self), g_steal_pointer (&self->editor));
}

static void
send_edit (QuireMessageRow *self)
{
  g_autofree char *text = NULL;

  g_object_get (gtk_text_view_get_buffer (GTK_TEXT_VIEW (self->editor_view)), "text", &text, NULL);
  if (text[strspn (text, " \t\n")] == '\0')
    return;
  {
    /* Its files stay. */
    gsize n_bytes, n_written;
    const char *written, *before = quire_message_get_text (self->message, &n_bytes);
    g_autoptr (GPtrArray) files = quire_attachments_split (before, n_bytes, &written, &n_written);
    char *composed = quire_attachments_compose (files, text);

    g_free (text);
    text = composed;
  }
  g_object_ref (self);
  gtk_widget_activate_action (GTK_WIDGET (self), "chat.send-edit", "(us)",
                              quire_message_get_seq (self->message), text);
  if (self->editor != NULL && gtk_widget_get_parent (GTK_WIDGET (self)) != NULL)
    end_edit (self);
  g_object_unref (self);
}

/* On the box, not the text view: the input method has seen the key before. */
static gboolean
editor_key_cb (GtkEventControllerKey *controller, guint keyval, guint keycode,
               GdkModifierType state, gpointer user_data)
{
  if (keyval != GDK_KEY_Escape)
    return GDK_EVENT_PROPAGATE;
  end_edit (user_data);
  return GDK_EVENT_STOP;
}

void
quire_message_row_edit (QuireMessageRow *self)
{
  GtkWidget *buttons, *cancel, *send, *scrolled;
  GtkEventController *keys;
  gsize n_bytes;
  const char *whole = quire_message_get_text (self->message, &n_bytes), *text;
  g_autoptr (GPtrArray) files = quire_attachments_split (whole, n_bytes, &text, &n_bytes);
  g_autofree char *valid = quire_text_make_valid (text, n_bytes);

  if (self->editor != NULL || self->bubble == NULL)
    return;
  scrolled = gtk_scrolled_window_new ();
  self->editor = gtk_box_new (GTK_ORIENTATION_VERTICAL, 6);
  gtk_widget_add_css_class (self->editor, "quire-editor");
  self->editor_view = gtk_text_view_new ();
  gtk_text_view_set_wrap_mode (GTK_TEXT_VIEW (self->editor_view), GTK_WRAP_WORD_CHAR);
  gtk_text_view_set_accepts_tab (GTK_TEXT_VIEW (self->editor_view), FALSE);
  gtk_text_buffer_set_text (gtk_text_view_get_buffer (GTK_TEXT_VIEW (self->editor_view)), valid,
                            -1);
  gtk_accessible_update_property (GTK_ACCESSIBLE (self->editor_view), GTK_ACCESSIBLE_PROPERTY_LABEL,
                                  _ ("Edit your message"), -1);
  gtk_scrolled_window_set_policy (GTK_SCROLLED_WINDOW (scrolled), GTK_POLICY_NEVER,
                                  GTK_POLICY_AUTOMATIC);
  /* As high as the bubble was: a text view that has no width yet asks for a line a word. */
  gtk_scrolled_window_set_min_content_height (
      GTK_SCROLLED_WINDOW (scrolled),
      CLAMP (gtk_widget_get_height (self->bubble), EDITOR_HEIGHT_PX, LONG_TEXT_HEIGHT_PX));
  gtk_scrolled_window_set_child (GTK_SCROLLED_WINDOW (scrolled), self->editor_view);
  gtk_box_append (GTK_BOX (self->editor), scrolled);
  buttons = gtk_box_new (GTK_ORIENTATION_HORIZONTAL, 6);
  gtk_widget_set_halign (buttons, GTK_ALIGN_END);
  cancel = quire_mnemonic_button_new (_ ("_Cancel"));
  g_signal_connect_swapped (cancel, "clicked", G_CALLBACK (end_edit), self);
  send = quire_mnemonic_button_new (_ ("_Send"));
  gtk_widget_add_css_class (send, "suggested-action");
  g_signal_connect_swapped (send, "clicked", G_CALLBACK (send_edit), self);
  gtk_box_append (GTK_BOX (buttons), cancel);
  gtk_box_append (GTK_BOX (buttons), send);
  gtk_box_append (GTK_BOX (self->editor), buttons);
  keys = gtk_event_controller_key_new ();
  g_signal_connect (keys, "key-pressed", G_CALLBACK (editor_key_cb), self);
  gtk_widget_add_controller (self->editor, keys);
  gtk_box_append (GTK_BOX (self), self->editor);
  gtk_widget_set_visible (self->bubble, FALSE);
  gtk_widget_set_visible (self->actions, FALSE);
  gtk_widget_grab_focus (self->editor_view);
}

/* Beside the bubble; the buttons come with the pointer or the focus. */
static GtkWidget *
user_actions_new (QuireMessageRow *self)
{
  GtkWidget *box = gtk_box_new (GTK_ORIENTATION_HORIZONTAL, 0);
  guint seq = quire_message_get_seq (self->message);

  gtk_widget_add_css_class (box, "quire-user-actions");
  gtk_widget_set_halign (box, GTK_ALIGN_END);
  gtk_widget_set_valign (box, GTK_ALIGN_CENTER);
  gtk_widget_set_hexpand (box, TRUE);
  gtk_box_append (GTK_BOX (box),
                  quire_icon_button_new ("edit-copy-symbolic", _ ("Copy Message"),
                                         "chat.copy-message", g_variant_new_uint32 (seq)));
  gtk_box_append (GTK_BOX (box),
                  quire_icon_button_new ("document-edit-symbolic", _ ("Edit Message"), "chat.edit",
                                         g_variant_new_uint32 (seq)));
  return box;
}

static void
build_user (QuireMessageRow *self)
{
  gsize n_bytes;
  const char *whole = quire_message_get_text (self->message, &n_bytes), *text;
  g_autoptr (GPtrArray) files = quire_attachments_split (whole, n_bytes, &text, &n_bytes);
  g_autofree char *valid = quire_text_make_valid (text, n_bytes);
  g_autoptr (PangoAttrList) attributes = pango_attr_list_new ();
  GtkWidget *line = gtk_box_new (GTK_ORIENTATION_HORIZONTAL, 6);
  GtkWidget *bubble;

  gtk_widget_set_layout_manager (line, quire_line_layout_new (6, TRUE));
  gtk_widget_add_css_class (line, "quire-user");
  if (files->len > 0)
    {
      GtkWidget *chips = quire_chips_new (FALSE);

      quire_chips_set (QUIRE_CHIPS (chips), files);
      gtk_box_append (GTK_BOX (self), chips);
    }
  if (n_bytes > LABEL_BYTES_MAX)
    bubble = long_text_new (valid);
  else
    {
      bubble = gtk_label_new (valid);
      /* A hyphen where a long word breaks would look like part of it. */
      pango_attr_list_insert (attributes, pango_attr_insert_hyphens_new (FALSE));
      gtk_label_set_attributes (GTK_LABEL (bubble), attributes);
      gtk_label_set_wrap (GTK_LABEL (bubble), TRUE);
      gtk_label_set_wrap_mode (GTK_LABEL (bubble), PANGO_WRAP_WORD_CHAR);
      gtk_label_set_selectable (GTK_LABEL (bubble), TRUE);
      gtk_label_set_xalign (GTK_LABEL (bubble), 0);
      gtk_label_set_max_width_chars (GTK_LABEL (bubble), 64);
      gtk_widget_set_focus_on_click (bubble, FALSE);
    }
  gtk_widget_add_css_class (bubble, "quire-bubble");
  gtk_widget_set_visible (bubble, n_bytes > 0 || files->len == 0);
  gtk_box_append (GTK_BOX (line), user_actions_new (self));
  gtk_box_append (GTK_BOX (line), bubble);
  gtk_box_append (GTK_BOX (self), line);
  self->bubble = line;
  self->actions = quire_versions_new (self->message);
  gtk_widget_add_css_class (self->actions, "quire-user-versions");
  gtk_widget_set_halign (self->actions, GTK_ALIGN_END);
  gtk_box_append (GTK_BOX (self), self->actions);
}

/* ---- The reply's side ---- */

static void
update_thinking (QuireMessageRow *self, const QuireThinking *parts)
{
  if (parts->n_thinking == 0)
    return;

  if (self->thinking == NULL)
    {
      GtkWidget *label = gtk_label_new (NULL);

      self->thinking_label = GTK_LABEL (label);
      gtk_label_set_wrap (self->thinking_label, TRUE);
      gtk_label_set_wrap_mode (self->thinking_label, PANGO_WRAP_WORD_CHAR);
      gtk_label_set_selectable (self->thinking_label, TRUE);
      gtk_label_set_xalign (self->thinking_label, 0);
      gtk_widget_set_focus_on_click (label, FALSE);
      gtk_widget_set_margin_top (label, 6);
      gtk_widget_add_css_class (label, "dim-label");
      self->thinking = gtk_expander_new (NULL);
      gtk_expander_set_child (GTK_EXPANDER (self->thinking), label);
      gtk_widget_add_css_class (self->thinking, "quire-thinking");
      gtk_box_prepend (GTK_BOX (self), self->thinking);
    }

  gtk_expander_set_label (GTK_EXPANDER (self->thinking),
                          parts->open && quire_message_is_running (self->message) ? _ ("Thinking…")
                                                                                  : _ ("Thoughts"));
  if (self->n_thinking_shown != parts->n_thinking)
    {
      g_autofree char *valid = quire_text_make_valid (parts->thinking, parts->n_thinking);

      gtk_label_set_text (self->thinking_label, valid);
      self->n_thinking_shown = parts->n_thinking;
    }
}

static void
error_words (QuireMessage *message, const char **button, const char **action)
{
  switch (quire_message_get_reply (message)->error_code)
    {
    case QE_ERROR_DEVICE_LOST:
      *button = _ ("Try Again"); /* loads the model first where that is needed */
      *action = "chat.recover";
      break;
    case QE_ERROR_NO_MEMORY:
      *button = _ ("Limits…");
      *action = "app.limits::gpu";
      break;
    case QE_ERROR_CONTEXT_LENGTH:
      *button = _ ("Make Room…");
      *action = "chat.make-room";
      break;
    default:
      *button = _ ("Try Again");
      *action = "chat.regenerate";
    }
}

static void
update_error (QuireMessageRow *self)
{
  const QuireReply *reply = quire_message_get_reply (self->message);
  const char *button_label, *action;
  GtkWidget *icon, *label, *button;

  if (reply->error == NULL || self->error != NULL)
    return;

  self->error = g_object_new (GTK_TYPE_BOX, "spacing", 12, "accessible-role",
                              GTK_ACCESSIBLE_ROLE_ALERT, NULL);
  gtk_widget_add_css_class (self->error, "quire-error");
  icon = gtk_image_new_from_icon_name ("dialog-error-symbolic");
  gtk_widget_add_css_class (icon, "error");
  gtk_box_append (GTK_BOX (self->error), icon);
  /* The driver's words are for those who look for them. */
  label = gtk_label_new (reply->error_code == QE_ERROR_DEVICE_LOST
                             ? _ ("The GPU was lost. The conversation is safe.")
                             : quire_words (reply->error));
  gtk_widget_set_tooltip_text (label, reply->error);
  gtk_label_set_wrap (GTK_LABEL (label), TRUE);
  gtk_label_set_wrap_mode (GTK_LABEL (label), PANGO_WRAP_WORD_CHAR);
  gtk_label_set_xalign (GTK_LABEL (label), 0);
  gtk_widget_set_hexpand (label, TRUE);
  gtk_box_append (GTK_BOX (self->error), label);
  error_words (self->message, &button_label, &action);
  button = gtk_button_new_with_label (button_label);
  gtk_actionable_set_detailed_action_name (GTK_ACTIONABLE (button), action);
  gtk_widget_add_css_class (button, "flat");
  gtk_widget_set_valign (button, GTK_ALIGN_CENTER);
  gtk_box_append (GTK_BOX (self->error), button);
  gtk_box_insert_child_after (GTK_BOX (self), self->error, self->caret);
}

static void
fill_receipt (QuireMessageRow *self)
{
  g_auto (GStrv) rows = quire_format_receipt_table (self->message);
  GtkWidget *grid = gtk_grid_new ();

  gtk_grid_set_column_spacing (GTK_GRID (grid), 18);
  gtk_grid_set_row_spacing (GTK_GRID (grid), 6);
  gtk_widget_add_css_class (grid, "quire-receipt");
  gtk_widget_set_margin_top (grid, 6);
  gtk_widget_set_halign (grid, GTK_ALIGN_START);
  for (int i = 0; rows[i] != NULL; i += 2)
    {
      GtkWidget *name = gtk_label_new (rows[i]);
      GtkWidget *value = gtk_label_new (rows[i + 1]);

      gtk_label_set_xalign (GTK_LABEL (name), 0);
      gtk_label_set_xalign (GTK_LABEL (value), 1);
      gtk_label_set_selectable (GTK_LABEL (value), TRUE);
      gtk_widget_set_focus_on_click (value, FALSE);
      gtk_label_set_wrap (GTK_LABEL (name), TRUE);
      gtk_label_set_wrap (GTK_LABEL (value), TRUE);
      gtk_label_set_wrap_mode (GTK_LABEL (value), PANGO_WRAP_WORD_CHAR);
      gtk_widget_add_css_class (name, "dim-label");
      gtk_widget_add_css_class (name, "caption");
      gtk_widget_add_css_class (value, "caption");
      gtk_widget_add_css_class (value, "numeric");
      gtk_grid_attach (GTK_GRID (grid), name, 0, i / 2, 1, 1);
      gtk_grid_attach (GTK_GRID (grid), value, 1, i / 2, 1, 1);
    }
  gtk_revealer_set_child (GTK_REVEALER (self->receipt), grid);
}

static void update_reply (QuireMessageRow *self);

static gboolean
pace_cb (GtkWidget *widget, GdkFrameClock *clock, gpointer user_data)
{
  QuireMessageRow *self = QUIRE_MESSAGE_ROW (widget);

  self->pace_id = 0;
  update_reply (self);
  return G_SOURCE_REMOVE;
}

/* How much of a text that came in one burst is shown in this frame. */
static gsize
paced (QuireMessageRow *self, const char *text, gsize n_bytes)
{
  enum
  {
    FRAME_US = 16667
  };
  gsize n;

  if (!quire_message_is_running (self->message) || !gtk_widget_get_mapped (GTK_WIDGET (self)))
    {
      self->pace = (QuirePace){ .n_shown = n_bytes };
      return n_bytes;
    }
  n = quire_pace_step (&self->pace, text, n_bytes, g_get_monotonic_time (), FRAME_US);
  if (n < n_bytes && self->pace_id == 0)
    self->pace_id = gtk_widget_add_tick_callback (GTK_WIDGET (self), pace_cb, NULL, NULL);
  return n;
}

static void
stop_waiting_for_paint (QuireMessageRow *self)
{
  g_clear_signal_handler (&self->painted_id, self->clock);
  g_clear_object (&self->clock);
}

static void
painted_cb (QuireMessageRow *self)
{
  stop_waiting_for_paint (self);
  quire_message_set_shown (self->message, g_get_monotonic_time ());
}

/* The first words are in the frame that is being made: when it is painted they are seen. All of a short reply may be in it. */
static void
wait_for_paint (QuireMessageRow *self, gsize n_bytes)
{
  const QuireReply *reply = quire_message_get_reply (self->message);

  if (n_bytes == 0 || reply->shown_ms > 0 || reply->saved_ms <= 0 || self->painted_id != 0
      || !self->watched || !gtk_widget_get_mapped (GTK_WIDGET (self)))
    return;
  self->clock = g_object_ref (gtk_widget_get_frame_clock (GTK_WIDGET (self)));
  self->painted_id
      = g_signal_connect_swapped (self->clock, "after-paint", G_CALLBACK (painted_cb), self);
}

static void
update_reply (QuireMessageRow *self)
{
  gsize n_bytes;
  const char *text = quire_message_get_text (self->message, &n_bytes);
  gboolean running = quire_message_is_running (self->message);
  gsize n_shown = paced (self, text, n_bytes);
  QuireThinking parts = quire_thinking_split (text, n_shown);

  wait_for_paint (self, n_shown);
  update_thinking (self, &parts);
  quire_markdown_view_set_text (QUIRE_MARKDOWN_VIEW (self->markdown), parts.answer, parts.n_answer);
  gtk_widget_set_visible (self->markdown, parts.n_answer > 0);
  gtk_widget_set_visible (self->caret, running && parts.n_answer == 0);
  update_error (self);
  if (!running)
    fill_receipt (self);
  self->watched = running;
  gtk_accessible_update_state (GTK_ACCESSIBLE (self), GTK_ACCESSIBLE_STATE_BUSY, running, -1);
}

static void
build_reply (QuireMessageRow *self)
{
  self->markdown = quire_markdown_view_new ();
  gtk_box_append (GTK_BOX (self), self->markdown);

  self->caret = gtk_box_new (GTK_ORIENTATION_HORIZONTAL, 0);
  gtk_widget_add_css_class (self->caret, "quire-caret");
  gtk_widget_set_halign (self->caret, GTK_ALIGN_START);
  gtk_box_append (GTK_BOX (self), self->caret);

  self->status = quire_status_line_new (self->message);
  g_signal_connect_swapped (self->status, "copy-clicked", G_CALLBACK (quire_message_row_copy),
                            self);
  gtk_box_append (GTK_BOX (self), self->status);

  self->receipt = gtk_revealer_new ();
  gtk_box_append (GTK_BOX (self), self->receipt);
  quire_status_line_set_receipt (QUIRE_STATUS_LINE (self->status), GTK_REVEALER (self->receipt));

  g_signal_connect_object (self->message, "changed", G_CALLBACK (update_reply), self,
                           G_CONNECT_SWAPPED);
  update_reply (self);
}

void
quire_message_row_set_last (QuireMessageRow *self, gboolean last)
{
  if (self->status != NULL)
    quire_status_line_set_last (QUIRE_STATUS_LINE (self->status), last);
  /* Of failed turns only the last can be tried again. */
  if (self->error != NULL)
    gtk_widget_set_visible (gtk_widget_get_last_child (self->error), last);
}

static GtkWidget *
left_out_line_new (void)
{
  GtkWidget *line = gtk_box_new (GTK_ORIENTATION_HORIZONTAL, 12), *label, *button;

  label = gtk_label_new (_ ("The model does not see what is above"));
  gtk_label_set_wrap (GTK_LABEL (label), TRUE);
  gtk_label_set_xalign (GTK_LABEL (label), 0);
  gtk_widget_set_hexpand (label, TRUE);
  gtk_widget_add_css_class (label, "dim-label");
  gtk_widget_add_css_class (label, "caption");
  button = gtk_button_new_with_label (_ ("Take In Again"));
  gtk_widget_add_css_class (button, "flat");
  gtk_widget_add_css_class (button, "caption");
  gtk_widget_set_valign (button, GTK_ALIGN_CENTER);
  gtk_actionable_set_action_name (GTK_ACTIONABLE (button), "chat.take-in");
  gtk_box_append (GTK_BOX (line), label);
  gtk_box_append (GTK_BOX (line), button);
  gtk_widget_add_css_class (line, "quire-left-out-line");
  return line;
}

void
quire_message_row_set_left_out (QuireMessageRow *self, gboolean left_out, gboolean last)
{
  if (left_out)
    gtk_widget_add_css_class (GTK_WIDGET (self), "quire-left-out");
  else
    gtk_widget_remove_css_class (GTK_WIDGET (self), "quire-left-out");
  if (last && self->left_out == NULL)
    {
      self->left_out = left_out_line_new ();
      gtk_box_append (GTK_BOX (self), self->left_out);
    }
  if (self->left_out != NULL)
    gtk_widget_set_visible (self->left_out, last);
}

void
quire_message_row_copy_of (QuireMessage *message, GtkWidget *widget)
{
  gsize n_bytes;
  const char *text = quire_message_get_text (message, &n_bytes);
  QuireThinking parts = quire_thinking_split (text, n_bytes);
  g_autofree char *valid = quire_text_make_valid (parts.answer, parts.n_answer);

  gdk_clipboard_set_text (gtk_widget_get_clipboard (widget), valid);
}

void
quire_message_row_copy (QuireMessageRow *self)
{
  quire_message_row_copy_of (self->message, GTK_WIDGET (self));
}

/* A window that goes takes its frame clock along, and the clock its handlers. */
static void
quire_message_row_unmap (GtkWidget *widget)
{
  stop_waiting_for_paint (QUIRE_MESSAGE_ROW (widget));
  GTK_WIDGET_CLASS (quire_message_row_parent_class)->unmap (widget);
}

static void
quire_message_row_dispose (GObject *object)
{
  QuireMessageRow *self = QUIRE_MESSAGE_ROW (object);

  stop_waiting_for_paint (self);
  if (self->pace_id != 0)
    gtk_widget_remove_tick_callback (GTK_WIDGET (self), self->pace_id);
  self->pace_id = 0;
  g_clear_object (&self->message);
  G_OBJECT_CLASS (quire_message_row_parent_class)->dispose (object);
}

static void
quire_message_row_class_init (QuireMessageRowClass *klass)
{
  G_OBJECT_CLASS (klass)->dispose = quire_message_row_dispose;
  GTK_WIDGET_CLASS (klass)->unmap = quire_message_row_unmap;
  gtk_widget_class_set_accessible_role (GTK_WIDGET_CLASS (klass), GTK_ACCESSIBLE_ROLE_LIST_ITEM);
}

static void
quire_message_row_init (QuireMessageRow *self)
{
  gtk_orientable_set_orientation (GTK_ORIENTABLE (self), GTK_ORIENTATION_VERTICAL);
  gtk_box_set_spacing (GTK_BOX (self), 6);
}

QuireMessage *
quire_message_row_get_message (QuireMessageRow *self)
{
  return self->message;
}

GtkWidget *
quire_message_row_new (QuireMessage *message)
{
  QuireMessageRow *self = g_object_new (QUIRE_TYPE_MESSAGE_ROW, NULL);

  self->message = g_object_ref (message);
  if (quire_message_get_role (message) == QE_ROLE_USER)
    build_user (self);
  else
    build_reply (self);
  gtk_accessible_update_property (
      GTK_ACCESSIBLE (self), GTK_ACCESSIBLE_PROPERTY_LABEL,
      quire_message_get_role (message) == QE_ROLE_USER ? _ ("You") : _ ("Model"), -1);
  return GTK_WIDGET (self);
}
