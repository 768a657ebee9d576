/* quire-status-line.c: see quire-status-line.h.
 *
 * Words stand where the line begins, then a way to go on, buttons where it ends; where a narrow window has no room for all of
 * it, what comes last is in a second line. CSS: .quire-statusline > box > button.receipt, progressbar, button. */
#include "app/quire-status-line.h"

#include <glib/gi18n.h>

#include "app/quire-figures.h"
#include "app/quire-format.h"
#include "app/quire-versions.h"
#include "app/quire-widget.h"

#define SPACING_PX 6

struct _QuireStatusLine
{
  GtkWidget parent_instance;

  QuireMessage *message;
  GtkWidget *receipt_button;
  GtkWidget *figures;
  GtkWidget *bar;
  GtkWidget *copy_button;
  GtkWidget *regenerate_button;
  GtkWidget *compare_button;
  GtkWidget *continue_button;
  GtkWidget *room_button; /* the context is full */
  GtkWidget *buttons;
  GtkWidget *words, *more,
      *ends;            /* the boxes that all of it is in: what it says, a way to go on, buttons */
  GtkRevealer *receipt; /* borrowed */
  gboolean last, hovered;
};

G_DEFINE_FINAL_TYPE (QuireStatusLine, quire_status_line, GTK_TYPE_WIDGET)

static guint copy_signal;

static void
update_buttons (QuireStatusLine *self)
{
  gboolean running = quire_message_is_running (self->message);
  gboolean focused
      = (gtk_widget_get_state_flags (self->buttons) & GTK_STATE_FLAG_FOCUS_WITHIN) != 0;

  gboolean can_continue = self->last && quire_message_can_continue (self->message);
  gsize n_bytes;

  quire_message_get_text (self->message, &n_bytes);
  /* While it runs its figures have all of the line. */
  gtk_widget_set_visible (self->buttons, !running);
  gtk_widget_set_visible (self->copy_button, n_bytes > 0);
  gtk_widget_set_opacity (self->buttons,
                          !running && (self->last || self->hovered || focused) ? 1 : 0);
  gtk_widget_set_visible (self->regenerate_button, self->last);
  gtk_widget_set_visible (self->continue_button, can_continue);
  gtk_widget_set_visible (self->room_button,
                          self->last
                              && quire_message_get_state (self->message) == QUIRE_REPLY_CONTEXT);
}

/* ---- Layout ---- */

static GtkSizeRequestMode
get_mode (GtkWidget *widget)
{
  return GTK_SIZE_REQUEST_HEIGHT_FOR_WIDTH;
}

typedef struct
{
  int least, natural; /* in width; both 0: it is not there */
} Part;

static Part
measure_part (GtkWidget *child)
{
  Part part = { 0, 0 };

  if (gtk_widget_should_layout (child))
    gtk_widget_measure (child, GTK_ORIENTATION_HORIZONTAL, -1, &part.least, &part.natural, NULL,
                        NULL);
  return part;
}

static int
part_height (GtkWidget *child)
{
  int height = 0;

  if (gtk_widget_should_layout (child))
    gtk_widget_measure (child, GTK_ORIENTATION_VERTICAL, -1, NULL, &height, NULL, NULL);
  return height;
}

/* With the space before it. */
static int
spaced (Part part)
{
  return part.natural > 0 ? part.natural + SPACING_PX : 0;
}

/* Where @width has no room for a part in the first line, it is in the second. */
static void
divide (QuireStatusLine *self, int width, gboolean *more_below, gboolean *ends_below)
{
  int least = measure_part (self->words).least, more = spaced (measure_part (self->more)),
      ends = spaced (measure_part (self->ends));

  *ends_below = width >= 0 && least + more + ends > width;
  *more_below = width >= 0 && least + more > width;
}

static void
measure (GtkWidget *widget, GtkOrientation orientation, int for_size, int *minimum, int *natural,
         int *minimum_baseline, int *natural_baseline)
{
  QuireStatusLine *self = QUIRE_STATUS_LINE (widget);

  if (orientation == GTK_ORIENTATION_HORIZONTAL)
    {
      Part words = measure_part (self->words), more = measure_part (self->more),
           ends = measure_part (self->ends);

      *minimum = MAX (words.least, more.natural + spaced (ends));
      *natural = words.natural + spaced (more) + spaced (ends);
    }
  else
    {
      int words = part_height (self->words), more = part_height (self->more),
          ends = part_height (self->ends);
      gboolean more_below, ends_below;

      divide (self, for_size, &more_below, &ends_below);
      *minimum = *natural = MAX (words, MAX (more_below ? 0 : more, ends_below ? 0 : ends))
                            + MAX (more_below ? more : 0, ends_below ? ends : 0);
    }
}

static void
place (GtkWidget *child, int total, int x, int y, int width, int height)
{
  if (!gtk_widget_should_layout (child))
    return;
  if (gtk_widget_get_direction (child) == GTK_TEXT_DIR_RTL)
    x = total - x - width;
  gtk_widget_size_allocate (child, &(GtkAllocation){ x, y, width, height }, -1);
}

static void
allocate (GtkWidget *widget, int width, int height, int baseline)
{
  QuireStatusLine *self = QUIRE_STATUS_LINE (widget);
  Part words = measure_part (self->words), more = measure_part (self->more),
       ends = measure_part (self->ends);
  gboolean more_below, ends_below;
  int first = height, left = width;

  divide (self, width, &more_below, &ends_below);
  if (more_below || ends_below)
    first = MAX (part_height (self->words), more_below ? 0 : part_height (self->more));
  left -= (more_below ? 0 : spaced (more)) + (ends_below ? 0 : spaced (ends));
  left = MIN (left, words.natural);
  if (!gtk_widget_get_visible (self->bar))
    {
      /* What comes next follows the last figure that there is room for. */
      int natural, border;

      gtk_widget_measure (self->figures, GTK_ORIENTATION_HORIZONTAL, -1, NULL, &natural, NULL,
                          NULL);
      border = words.natural - natural;
      left = MIN (
          left,
          border + quire_figures_get_fitting_width (QUIRE_FIGURES (self->figures), left - border));
    }
  place (self->words, width, 0, 0, left, first);
  place (self->more, width, more_below ? 0 : left + SPACING_PX, more_below ? first : 0,
         more.natural, more_below ? height - first : first);
  place (self->ends, width, width - ends.natural, ends_below ? first : 0, ends.natural,
         ends_below ? height - first : first);
}

/* ---- What it says ---- */

/* All figures, those that the line has no room for too; not while the receipt below shows them. */
static gboolean
query_tooltip_cb (QuireStatusLine *self, int x, int y, gboolean keyboard, GtkTooltip *tooltip)
{
  g_auto (GStrv) rows = NULL;
  GString *text;

  if (quire_message_is_running (self->message)
      || (self->receipt != NULL && gtk_revealer_get_reveal_child (self->receipt)))
    return FALSE;
  rows = quire_format_receipt_table (self->message);
  text = g_string_new (_ ("What this reply took"));
  for (int i = 0; rows[i] != NULL; i += 2)
    g_string_append_printf (text, "\n%s: %s", rows[i], rows[i + 1]);
  gtk_tooltip_set_text (tooltip, text->str);
  g_string_free (text, TRUE);
  return TRUE;
}

static void
update (QuireStatusLine *self)
{
  QuireReplyState state = quire_message_get_state (self->message);
  const QuireReply *reply = quire_message_get_reply (self->message);
  gboolean running = quire_message_is_running (self->message);
  gboolean reading = state == QUIRE_REPLY_READING && reply->reading_us != 0
                     && g_get_monotonic_time () - reply->reading_us >= QUIRE_READING_SLOW_US;
  g_auto (GStrv) figures = NULL;

  if (running)
    {
      g_autofree char *progress = quire_format_progress (self->message);

      /* What is left to do goes where there is no room for it. */
      figures = g_strsplit (progress, " · ", -1);
    }
  else
    figures = quire_format_receipt_figures (self->message);

  quire_figures_set (QUIRE_FIGURES (self->figures), (const char *const *)figures);
  /* Not insensitive: that would dim the figures. */
  gtk_widget_set_can_target (self->receipt_button, !running && figures[0] != NULL);
  gtk_widget_set_focusable (self->receipt_button, !running && figures[0] != NULL);
  gtk_widget_set_visible (self->bar, reading);
  if (reading && reply->n_prompt > 0)
    gtk_progress_bar_set_fraction (GTK_PROGRESS_BAR (self->bar),
                                   (double)reply->n_prompt_done / reply->n_prompt);
  update_buttons (self);
}

static void
receipt_clicked_cb (QuireStatusLine *self)
{
  gboolean open;

  if (self->receipt == NULL)
    return;
  open = !gtk_revealer_get_reveal_child (self->receipt);
  gtk_revealer_set_reveal_child (self->receipt, open);
  gtk_accessible_update_state (GTK_ACCESSIBLE (self->receipt_button), GTK_ACCESSIBLE_STATE_EXPANDED,
                               open, -1);
}

static void
copy_clicked_cb (QuireStatusLine *self)
{
  g_signal_emit (self, copy_signal, 0);
}

static void
enter_cb (QuireStatusLine *self)
{
  self->hovered = TRUE;
  update_buttons (self);
}

static void
leave_cb (QuireStatusLine *self)
{
  self->hovered = FALSE;
  update_buttons (self);
}

void
quire_status_line_set_last (QuireStatusLine *self, gboolean last)
{
  self->last = last;
  update_buttons (self);
}

void
quire_status_line_set_receipt (QuireStatusLine *self, GtkRevealer *receipt)
{
  self->receipt = receipt;
}

static GtkWidget *
icon_button_new (const char *icon, const char *tooltip)
{
  GtkWidget *button = gtk_button_new_from_icon_name (icon);

  gtk_widget_add_css_class (button, "flat");
  gtk_widget_set_tooltip_text (button, tooltip);
  gtk_accessible_update_property (GTK_ACCESSIBLE (button), GTK_ACCESSIBLE_PROPERTY_LABEL, tooltip,
                                  -1);
  return button;
}

static void
quire_status_line_dispose (GObject *object)
{
  QuireStatusLine *self = QUIRE_STATUS_LINE (object);

  g_clear_object (&self->message);
  g_clear_pointer (&self->words, gtk_widget_unparent);
  g_clear_pointer (&self->more, gtk_widget_unparent);
  g_clear_pointer (&self->ends, gtk_widget_unparent);
  G_OBJECT_CLASS (quire_status_line_parent_class)->dispose (object);
}

static void
quire_status_line_class_init (QuireStatusLineClass *klass)
{
  G_OBJECT_CLASS (klass)->dispose = quire_status_line_dispose;
  copy_signal = g_signal_new ("copy-clicked", G_TYPE_FROM_CLASS (klass), G_SIGNAL_RUN_LAST, 0, NULL,
                              NULL, NULL, G_TYPE_NONE, 0);
}

static void
quire_status_line_init (QuireStatusLine *self)
{
  GtkEventController *motion = gtk_event_controller_motion_new ();
  GtkEventController *focus = gtk_event_controller_focus_new ();

  gtk_widget_add_css_class (GTK_WIDGET (self), "quire-statusline");
  gtk_widget_set_layout_manager (GTK_WIDGET (self),
                                 gtk_custom_layout_new (get_mode, measure, allocate));
  self->words = gtk_box_new (GTK_ORIENTATION_HORIZONTAL, SPACING_PX);
  self->more = gtk_box_new (GTK_ORIENTATION_HORIZONTAL, SPACING_PX);
  self->ends = gtk_box_new (GTK_ORIENTATION_HORIZONTAL, SPACING_PX);
  gtk_widget_set_parent (self->words, GTK_WIDGET (self));
  gtk_widget_set_parent (self->more, GTK_WIDGET (self));
  gtk_widget_set_parent (self->ends, GTK_WIDGET (self));

  self->figures = quire_figures_new ();
  gtk_widget_add_css_class (self->figures, "dim-label");
  gtk_widget_add_css_class (self->figures, "caption");
  gtk_widget_add_css_class (self->figures, "numeric");
  self->receipt_button = gtk_button_new ();
  gtk_button_set_child (GTK_BUTTON (self->receipt_button), self->figures);
  gtk_widget_add_css_class (self->receipt_button, "flat");
  gtk_widget_add_css_class (self->receipt_button, "receipt");
  /* What is shown has all figures. */
  quire_widget_set_labelled_by (self->receipt_button, self->figures, NULL);
  gtk_widget_set_tooltip_text (self->receipt_button, _ ("What this reply took"));
  g_signal_connect_swapped (self->receipt_button, "query-tooltip", G_CALLBACK (query_tooltip_cb),
                            self);
  g_signal_connect_swapped (self->receipt_button, "clicked", G_CALLBACK (receipt_clicked_cb), self);
  gtk_box_append (GTK_BOX (self->words), self->receipt_button);

  self->bar = gtk_progress_bar_new ();
  gtk_widget_set_valign (self->bar, GTK_ALIGN_CENTER);
  gtk_widget_set_visible (self->bar, FALSE);
  gtk_accessible_update_property (GTK_ACCESSIBLE (self->bar), GTK_ACCESSIBLE_PROPERTY_LABEL,
                                  _ ("Tokens read"), -1);
  gtk_box_append (GTK_BOX (self->words), self->bar);

  self->buttons = gtk_box_new (GTK_ORIENTATION_HORIZONTAL, 0);
  self->copy_button = icon_button_new ("edit-copy-symbolic", _ ("Copy Reply"));
  g_signal_connect_swapped (self->copy_button, "clicked", G_CALLBACK (copy_clicked_cb), self);
  gtk_box_append (GTK_BOX (self->buttons), self->copy_button);
  self->regenerate_button = icon_button_new ("view-refresh-symbolic", _ ("Regenerate Reply"));
  gtk_actionable_set_action_name (GTK_ACTIONABLE (self->regenerate_button), "chat.regenerate");
  gtk_box_append (GTK_BOX (self->buttons), self->regenerate_button);
  self->compare_button = icon_button_new ("quire-compare-symbolic", _ ("Compare This Reply…"));
  gtk_actionable_set_action_name (GTK_ACTIONABLE (self->compare_button), "chat.compare-reply");
  gtk_box_append (GTK_BOX (self->buttons), self->compare_button);
  gtk_box_append (GTK_BOX (self->ends), self->buttons);
  self->continue_button = gtk_button_new_with_label (_ ("Continue"));
  gtk_widget_add_css_class (self->continue_button, "flat");
  gtk_widget_add_css_class (self->continue_button, "caption");
  gtk_widget_add_css_class (self->continue_button, "continue");
  gtk_widget_set_visible (self->continue_button, FALSE);
  gtk_actionable_set_action_name (GTK_ACTIONABLE (self->continue_button), "chat.continue");
  gtk_box_append (GTK_BOX (self->more), self->continue_button);
  self->room_button = gtk_button_new_with_label (_ ("Make Room…"));
  gtk_widget_add_css_class (self->room_button, "flat");
  gtk_widget_add_css_class (self->room_button, "caption");
  gtk_widget_add_css_class (self->room_button, "continue");
  gtk_widget_set_visible (self->room_button, FALSE);
  gtk_actionable_set_action_name (GTK_ACTIONABLE (self->room_button), "chat.make-room");
  gtk_box_append (GTK_BOX (self->more), self->room_button);

  g_signal_connect_swapped (motion, "enter", G_CALLBACK (enter_cb), self);
  g_signal_connect_swapped (motion, "leave", G_CALLBACK (leave_cb), self);
  gtk_widget_add_controller (GTK_WIDGET (self), motion);
  g_signal_connect_swapped (focus, "enter", G_CALLBACK (update_buttons), self);
  g_signal_connect_swapped (focus, "leave", G_CALLBACK (update_buttons), self);
  gtk_widget_add_controller (self->buttons, focus);
}

GtkWidget *
quire_status_line_new (QuireMessage *message)
{
  QuireStatusLine *self = g_object_new (QUIRE_TYPE_STATUS_LINE, NULL);

  self->message = g_object_ref (message);
  gtk_actionable_set_action_target (GTK_ACTIONABLE (self->compare_button), "u",
                                    quire_message_get_seq (message));
  /* Outside of the buttons that come with the pointer: that there are versions is always seen. */
  gtk_box_prepend (GTK_BOX (self->ends), quire_versions_new (message));
  g_signal_connect_object (message, "changed", G_CALLBACK (update), self, G_CONNECT_SWAPPED);
  update (self);
  return GTK_WIDGET (self);
}
