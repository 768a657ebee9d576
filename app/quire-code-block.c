/* quire-code-block.c: see quire-code-block.h.
 *
 * CSS nodes: codeblock(.card) > box.header, scrolledwindow > textview. The vertical wheel passes through to the
 * transcript: the inner scrolled window has nothing to scroll that way and must not eat it.
 *
 * A text view finds the height of new lines in an idle after the frame that it gets them in, so that a block that grows would
 * always lack its last line. Here they are measured at once and asked for, until the view has caught up. */
#include "app/quire-code-block.h"

#include <adwaita.h>
#include <glib/gi18n.h>
#include <math.h>
#include <string.h>

#include "app/quire-highlight.h"

#define COPIED_SHOWN_MS 1500
/* So long after the last change the view knows its height itself. */
#define SETTLED_MS 1000
#define TOP_MARGIN_PX 6
#define BOTTOM_MARGIN_PX 12

struct _QuireCodeBlock
{
  GtkWidget parent_instance;

  GtkWidget *box;
  GtkLabel *language_label;
  GtkButton *copy_button;
  GtkWidget *view;
  GtkSourceBuffer *buffer;
  char *code;
  gsize last_line;  /* offset of the last line of code */
  int lines_height; /* of the lines before it */
  guint settled_source;
  char *language;
  guint copied_source;
};

G_DEFINE_FINAL_TYPE (QuireCodeBlock, quire_code_block, GTK_TYPE_WIDGET)

static void
update_style (QuireCodeBlock *self)
{
  gboolean dark = adw_style_manager_get_dark (adw_style_manager_get_default ());

  quire_highlight_set_dark (self->buffer, dark);
}

static gboolean
hide_copied (gpointer user_data)
{
  QuireCodeBlock *self = user_data;

  self->copied_source = 0;
  gtk_button_set_icon_name (self->copy_button, "edit-copy-symbolic");
  return G_SOURCE_REMOVE;
}

static void
copy_clicked_cb (QuireCodeBlock *self)
{
  GdkClipboard *clipboard = gtk_widget_get_clipboard (GTK_WIDGET (self));

  gdk_clipboard_set_text (clipboard, self->code);
  gtk_button_set_icon_name (self->copy_button, "object-select-symbolic");
  g_clear_handle_id (&self->copied_source, g_source_remove);
  self->copied_source = g_timeout_add (COPIED_SHOWN_MS, hide_copied, self);
}

static gboolean
settled_cb (gpointer user_data)
{
  QuireCodeBlock *self = user_data;

  self->settled_source = 0;
  gtk_widget_set_size_request (self->view, -1, -1);
  return G_SOURCE_REMOVE;
}

/* Asks for the height of all lines, of which those before the last one are known. The font is, once there is a window. */
static void
request_height (QuireCodeBlock *self)
{
  g_autoptr (PangoLayout) layout = NULL;
  PangoLayoutIter *line;
  const char *last;
  int height = 0, last_height;

  if (self->code == NULL || gtk_widget_get_root (GTK_WIDGET (self)) == NULL)
    return;
  layout = gtk_widget_create_pango_layout (self->view, self->code + self->last_line);
  line = pango_layout_get_iter (layout);
  last = strrchr (self->code + self->last_line, '\n');
  do
    {
      PangoRectangle logical;

      pango_layout_iter_get_line_extents (line, NULL, &logical);
      last_height = PANGO_PIXELS (logical.height);
      height += last_height;
  } while (pango_layout_iter_next_line (line));
  pango_layout_iter_free (line);
  gtk_widget_set_size_request (self->view, -1,
                               TOP_MARGIN_PX + self->lines_height + height + BOTTOM_MARGIN_PX);
  if (last != NULL)
    {
      self->last_line = (gsize)(last + 1 - self->code);
      self->lines_height += height - last_height;
    }
  g_clear_handle_id (&self->settled_source, g_source_remove);
  self->settled_source = g_timeout_add (SETTLED_MS, settled_cb, self);
}

void
quire_code_block_set_code (QuireCodeBlock *self, const char *code, const char *language)
{
  g_return_if_fail (QUIRE_IS_CODE_BLOCK (self));

  if (g_strcmp0 (self->language, language) != 0)
    {
      g_free (self->language);
      self->language = g_strdup (language);
      quire_highlight_set_language (self->buffer, self->language_label, language);
    }
  if (g_strcmp0 (self->code, code) == 0)
    return;
  if (self->code != NULL && g_str_has_prefix (code, self->code))
    {
      GtkTextIter end;

      gtk_text_buffer_get_end_iter (GTK_TEXT_BUFFER (self->buffer), &end);
      gtk_text_buffer_insert (GTK_TEXT_BUFFER (self->buffer), &end, code + strlen (self->code), -1);
    }
  else
    {
      gtk_text_buffer_set_text (GTK_TEXT_BUFFER (self->buffer), code, -1);
      self->last_line = 0;
      self->lines_height = 0;
    }
  g_free (self->code);
  self->code = g_strdup (code);
  request_height (self);
}

GtkSourceBuffer *
quire_code_block_get_buffer (QuireCodeBlock *self)
{
  return self->buffer;
}

static void
quire_code_block_root (GtkWidget *widget)
{
  QuireCodeBlock *self = QUIRE_CODE_BLOCK (widget);

  GTK_WIDGET_CLASS (quire_code_block_parent_class)->root (widget);
  self->last_line = 0;
  self->lines_height = 0;
  request_height (self);
}

static gboolean
scroll_cb (GtkEventControllerScroll *controller, double dx, double dy, gpointer user_data)
{
  GtkWidget *self = user_data;
  GtkWidget *outer;

  /* Sideways stays here. Up and down goes to the next scrolled window outwards. */
  if (dy == 0)
    return GDK_EVENT_PROPAGATE;
  outer = gtk_widget_get_ancestor (gtk_widget_get_parent (self), GTK_TYPE_SCROLLED_WINDOW);
  if (outer != NULL)
    {
      GtkAdjustment *adjustment = gtk_scrolled_window_get_vadjustment (GTK_SCROLLED_WINDOW (outer));
      double step = gtk_event_controller_scroll_get_unit (controller) == GDK_SCROLL_UNIT_WHEEL
                        ? pow (gtk_adjustment_get_page_size (adjustment), 2.0 / 3.0)
                        : 1.0;

      gtk_adjustment_set_value (adjustment, gtk_adjustment_get_value (adjustment) + dy * step);
    }
  return GDK_EVENT_STOP;
}

static void
quire_code_block_dispose (GObject *object)
{
  QuireCodeBlock *self = QUIRE_CODE_BLOCK (object);

  g_clear_handle_id (&self->copied_source, g_source_remove);
  g_clear_handle_id (&self->settled_source, g_source_remove);
  g_clear_pointer (&self->box, gtk_widget_unparent);
  G_OBJECT_CLASS (quire_code_block_parent_class)->dispose (object);
}

static void
quire_code_block_finalize (GObject *object)
{
  QuireCodeBlock *self = QUIRE_CODE_BLOCK (object);

  g_clear_object (&self->buffer);
  g_free (self->code);
  g_free (self->language);
  G_OBJECT_CLASS (quire_code_block_parent_class)->finalize (object);
}

static void
quire_code_block_class_init (QuireCodeBlockClass *klass)
{
  GObjectClass *object_class = G_OBJECT_CLASS (klass);
  GtkWidgetClass *widget_class = GTK_WIDGET_CLASS (klass);

  object_class->dispose = quire_code_block_dispose;
  object_class->finalize = quire_code_block_finalize;
  widget_class->root = quire_code_block_root;
  gtk_widget_class_set_layout_manager_type (widget_class, GTK_TYPE_BIN_LAYOUT);
  gtk_widget_class_set_css_name (widget_class, "codeblock");
}

static GtkWidget *
build_header (QuireCodeBlock *self)
{
  GtkWidget *header = gtk_box_new (GTK_ORIENTATION_HORIZONTAL, 6);

  gtk_widget_add_css_class (header, "header");
  self->language_label = GTK_LABEL (gtk_label_new (""));
  gtk_label_set_xalign (self->language_label, 0);
  gtk_label_set_ellipsize (self->language_label, PANGO_ELLIPSIZE_END);
  gtk_widget_set_hexpand (GTK_WIDGET (self->language_label), TRUE);
  gtk_widget_add_css_class (GTK_WIDGET (self->language_label), "caption");
  gtk_widget_add_css_class (GTK_WIDGET (self->language_label), "dim-label");
  self->copy_button = GTK_BUTTON (gtk_button_new_from_icon_name ("edit-copy-symbolic"));
  gtk_widget_add_css_class (GTK_WIDGET (self->copy_button), "flat");
  gtk_widget_set_tooltip_text (GTK_WIDGET (self->copy_button), _ ("Copy Code"));
  gtk_accessible_update_property (GTK_ACCESSIBLE (self->copy_button), GTK_ACCESSIBLE_PROPERTY_LABEL,
                                  _ ("Copy code"), -1);
  g_signal_connect_swapped (self->copy_button, "clicked", G_CALLBACK (copy_clicked_cb), self);
  gtk_box_append (GTK_BOX (header), GTK_WIDGET (self->language_label));
  gtk_box_append (GTK_BOX (header), GTK_WIDGET (self->copy_button));
  return header;
}

static GtkWidget *
build_text (QuireCodeBlock *self)
{
  GtkWidget *view = self->view = gtk_source_view_new_with_buffer (self->buffer);
  GtkWidget *scrolled = gtk_scrolled_window_new ();
  GtkEventController *scroll
      = gtk_event_controller_scroll_new (GTK_EVENT_CONTROLLER_SCROLL_BOTH_AXES);

  gtk_text_view_set_editable (GTK_TEXT_VIEW (view), FALSE);
  gtk_text_view_set_accepts_tab (GTK_TEXT_VIEW (view), FALSE);
  gtk_text_view_set_cursor_visible (GTK_TEXT_VIEW (view), FALSE);
  gtk_text_view_set_monospace (GTK_TEXT_VIEW (view), TRUE);
  gtk_text_view_set_wrap_mode (GTK_TEXT_VIEW (view), GTK_WRAP_NONE);
  gtk_text_view_set_top_margin (GTK_TEXT_VIEW (view), TOP_MARGIN_PX);
  gtk_text_view_set_bottom_margin (GTK_TEXT_VIEW (view), BOTTOM_MARGIN_PX);
  gtk_text_view_set_left_margin (GTK_TEXT_VIEW (view), 12);
  gtk_text_view_set_right_margin (GTK_TEXT_VIEW (view), 12);
  gtk_source_view_set_highlight_current_line (GTK_SOURCE_VIEW (view), FALSE);
  gtk_accessible_update_property (GTK_ACCESSIBLE (view), GTK_ACCESSIBLE_PROPERTY_LABEL, _ ("Code"),
                                  -1);
  gtk_scrolled_window_set_policy (GTK_SCROLLED_WINDOW (scrolled), GTK_POLICY_AUTOMATIC,
                                  GTK_POLICY_NEVER);
  gtk_scrolled_window_set_propagate_natural_height (GTK_SCROLLED_WINDOW (scrolled), TRUE);
  gtk_scrolled_window_set_child (GTK_SCROLLED_WINDOW (scrolled), view);
  gtk_event_controller_set_propagation_phase (scroll, GTK_PHASE_CAPTURE);
  g_signal_connect_object (scroll, "scroll", G_CALLBACK (scroll_cb), self, 0);
  gtk_widget_add_controller (scrolled, scroll);
  return scrolled;
}

static void
quire_code_block_init (QuireCodeBlock *self)
{
  self->buffer = gtk_source_buffer_new (NULL);
  gtk_source_buffer_set_highlight_matching_brackets (self->buffer, FALSE);
  self->box = gtk_box_new (GTK_ORIENTATION_VERTICAL, 0);
  gtk_widget_set_overflow (GTK_WIDGET (self), GTK_OVERFLOW_HIDDEN);
  gtk_widget_set_parent (self->box, GTK_WIDGET (self));
  gtk_box_append (GTK_BOX (self->box), build_header (self));
  gtk_box_append (GTK_BOX (self->box), build_text (self));
  g_signal_connect_object (adw_style_manager_get_default (), "notify::dark",
                           G_CALLBACK (update_style), self, G_CONNECT_SWAPPED);
  update_style (self);
}

GtkWidget *
quire_code_block_new (void)
{
  return g_object_new (QUIRE_TYPE_CODE_BLOCK, NULL);
}
