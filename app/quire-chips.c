/* quire-chips.c: see quire-chips.h. CSS: chips > box.chip > menubutton, button. */
#include "app/quire-chips.h"

#include <glib/gi18n.h>

#include "app/quire-format.h"
#include "app/quire-wrap-layout.h"

#define TEXT_WIDTH_PX 320
#define TEXT_HEIGHT_PX 240
#define SPACING_PX 6

struct _QuireChips
{
  GtkWidget parent_instance;

  gboolean removable;
  GPtrArray *attachments;
};

G_DEFINE_FINAL_TYPE (QuireChips, quire_chips, GTK_TYPE_WIDGET)

static guint removed_signal;

static GtkWidget *
text_popover_new (void)
{
  GtkWidget *popover = gtk_popover_new (), *scrolled = gtk_scrolled_window_new ();

  gtk_scrolled_window_set_min_content_width (GTK_SCROLLED_WINDOW (scrolled), TEXT_WIDTH_PX);
  gtk_scrolled_window_set_min_content_height (GTK_SCROLLED_WINDOW (scrolled), TEXT_HEIGHT_PX);
  gtk_popover_set_child (GTK_POPOVER (popover), scrolled);
  return popover;
}

/* A file may be long: it is laid out only when somebody looks. */
static void
show_text_cb (GtkWidget *popover, const QuireAttachment *attachment)
{
  GtkWidget *scrolled = gtk_popover_get_child (GTK_POPOVER (popover)), *view;

  if (gtk_scrolled_window_get_child (GTK_SCROLLED_WINDOW (scrolled)) != NULL)
    return;
  view = gtk_text_view_new ();
  gtk_text_view_set_editable (GTK_TEXT_VIEW (view), FALSE);
  gtk_text_view_set_accepts_tab (GTK_TEXT_VIEW (view), FALSE);
  gtk_text_view_set_monospace (GTK_TEXT_VIEW (view), TRUE);
  gtk_text_view_set_wrap_mode (GTK_TEXT_VIEW (view), GTK_WRAP_WORD_CHAR);
  gtk_widget_add_css_class (view, "inline");
  gtk_accessible_update_property (GTK_ACCESSIBLE (view), GTK_ACCESSIBLE_PROPERTY_LABEL,
                                  attachment->name, -1);
  gtk_text_buffer_set_text (gtk_text_view_get_buffer (GTK_TEXT_VIEW (view)), attachment->text,
                            (int)attachment->n_bytes);
  gtk_scrolled_window_set_child (GTK_SCROLLED_WINDOW (scrolled), view);
}

static void
remove_clicked_cb (GtkWidget *button, gpointer user_data)
{
  QuireChips *self = user_data;
  GtkWidget *chip = gtk_widget_get_parent (button);
  guint i = 0;

  while ((chip = gtk_widget_get_prev_sibling (chip)) != NULL)
    i++;
  g_signal_emit (self, removed_signal, 0, i);
}

/* "1.2 KiB · 312 tokens" */
static char *
dup_facts (const QuireAttachment *attachment)
{
  g_autofree char *bytes = quire_format_bytes (attachment->n_bytes);
  g_autofree char *n = quire_format_count (attachment->n_tokens);

  if (attachment->n_tokens == 0)
    return g_steal_pointer (&bytes);
  return g_strdup_printf (ngettext ("%s · %s token", "%s · %s tokens", attachment->n_tokens), bytes,
                          n);
}

static GtkWidget *
chip_new (QuireChips *self, const QuireAttachment *attachment)
{
  GtkWidget *chip = gtk_box_new (GTK_ORIENTATION_HORIZONTAL, 0), *button = gtk_menu_button_new ();
  GtkWidget *content = gtk_box_new (GTK_ORIENTATION_HORIZONTAL, 6);
  GtkWidget *words = gtk_box_new (GTK_ORIENTATION_VERTICAL, 0), *name, *facts, *popover;
  g_autofree char *text = dup_facts (attachment);
  g_autofree char *label = g_strdup_printf ("%s, %s", attachment->name, text);

  name = gtk_label_new (attachment->name);
  gtk_label_set_ellipsize (GTK_LABEL (name), PANGO_ELLIPSIZE_MIDDLE);
  gtk_label_set_max_width_chars (GTK_LABEL (name), 24);
  gtk_label_set_xalign (GTK_LABEL (name), 0);
  facts = gtk_label_new (text);
  gtk_label_set_xalign (GTK_LABEL (facts), 0);
  gtk_label_set_ellipsize (GTK_LABEL (facts), PANGO_ELLIPSIZE_END);
  gtk_widget_add_css_class (facts, "caption");
  gtk_widget_add_css_class (facts, "dim-label");
  gtk_widget_add_css_class (facts, "numeric");
  gtk_box_append (GTK_BOX (words), name);
  gtk_box_append (GTK_BOX (words), facts);
  gtk_box_append (GTK_BOX (content), gtk_image_new_from_icon_name ("quire-file-symbolic"));
  gtk_box_append (GTK_BOX (content), words);
  gtk_menu_button_set_child (GTK_MENU_BUTTON (button), content);
  gtk_widget_add_css_class (button, "flat");
  gtk_widget_set_tooltip_text (button, label);
  gtk_accessible_update_property (GTK_ACCESSIBLE (button), GTK_ACCESSIBLE_PROPERTY_LABEL, label,
                                  -1);
  popover = text_popover_new ();
  g_signal_connect (popover, "show", G_CALLBACK (show_text_cb), (gpointer)attachment);
  gtk_menu_button_set_popover (GTK_MENU_BUTTON (button), popover);
  gtk_box_append (GTK_BOX (chip), button);
  if (self->removable)
    {
      GtkWidget *remove = gtk_button_new_from_icon_name ("window-close-symbolic");
      g_autofree char *tooltip = g_strdup_printf (_ ("Remove “%s”"), attachment->name);

      gtk_widget_add_css_class (remove, "flat");
      gtk_widget_add_css_class (remove, "circular");
      gtk_widget_set_valign (remove, GTK_ALIGN_CENTER);
      gtk_widget_set_tooltip_text (remove, tooltip);
      gtk_accessible_update_property (GTK_ACCESSIBLE (remove), GTK_ACCESSIBLE_PROPERTY_LABEL,
                                      tooltip, -1);
      g_signal_connect (remove, "clicked", G_CALLBACK (remove_clicked_cb), self);
      gtk_box_append (GTK_BOX (chip), remove);
    }
  gtk_widget_add_css_class (chip, "chip");
  return chip;
}

void
quire_chips_set (QuireChips *self, GPtrArray *attachments)
{
  GtkWidget *child;

  while ((child = gtk_widget_get_first_child (GTK_WIDGET (self))) != NULL)
    gtk_widget_unparent (child);
  g_ptr_array_set_size (self->attachments, 0);
  for (guint i = 0; i < attachments->len; i++)
    {
      QuireAttachment *copy = quire_attachment_copy (g_ptr_array_index (attachments, i));

      g_ptr_array_add (self->attachments, copy);
      gtk_widget_set_parent (chip_new (self, copy), GTK_WIDGET (self));
    }
  gtk_widget_set_visible (GTK_WIDGET (self), attachments->len > 0);
}

guint
quire_chips_get_n (QuireChips *self)
{
  return self->attachments->len;
}

static void
quire_chips_dispose (GObject *object)
{
  GtkWidget *child;

  while ((child = gtk_widget_get_first_child (GTK_WIDGET (object))) != NULL)
    gtk_widget_unparent (child);
  G_OBJECT_CLASS (quire_chips_parent_class)->dispose (object);
}

static void
quire_chips_finalize (GObject *object)
{
  g_ptr_array_unref (QUIRE_CHIPS (object)->attachments);
  G_OBJECT_CLASS (quire_chips_parent_class)->finalize (object);
}

static void
quire_chips_class_init (QuireChipsClass *klass)
{
  GtkWidgetClass *widget_class = GTK_WIDGET_CLASS (klass);

  G_OBJECT_CLASS (klass)->dispose = quire_chips_dispose;
  G_OBJECT_CLASS (klass)->finalize = quire_chips_finalize;
  gtk_widget_class_set_css_name (widget_class, "chips");
  gtk_widget_class_set_accessible_role (widget_class, GTK_ACCESSIBLE_ROLE_GROUP);
  removed_signal = g_signal_new ("removed", G_TYPE_FROM_CLASS (klass), G_SIGNAL_RUN_LAST, 0, NULL,
                                 NULL, NULL, G_TYPE_NONE, 1, G_TYPE_UINT);
}

static void
quire_chips_init (QuireChips *self)
{
  self->attachments = quire_attachments_new ();
  gtk_accessible_update_property (GTK_ACCESSIBLE (self), GTK_ACCESSIBLE_PROPERTY_LABEL,
                                  _ ("Attached files"), -1);
  gtk_widget_set_visible (GTK_WIDGET (self), FALSE);
}

GtkWidget *
quire_chips_new (gboolean removable)
{
  QuireChips *self = g_object_new (QUIRE_TYPE_CHIPS, NULL);

  self->removable = removable;
  /* Of a message they stand where its bubble does. */
  gtk_widget_set_layout_manager (GTK_WIDGET (self), quire_wrap_layout_new (SPACING_PX, !removable));
  return GTK_WIDGET (self);
}
