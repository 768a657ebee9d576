/* quire-combo.c: see quire-combo.h. A row with a factory of its own needs one for its list too, which marks what is
 * selected. */
#include "app/quire-combo.h"

/* Longer values, which are names that somebody gave, are cut. */
#define VALUE_CHARS_MAX 28

static const char *
text_of (GtkListItem *item)
{
  return gtk_string_object_get_string (GTK_STRING_OBJECT (gtk_list_item_get_item (item)));
}

static void
setup_value_cb (GtkListItemFactory *factory, GtkListItem *item)
{
  GtkWidget *label = gtk_label_new (NULL);

  gtk_label_set_max_width_chars (GTK_LABEL (label), VALUE_CHARS_MAX);
  gtk_widget_set_valign (label, GTK_ALIGN_CENTER);
  gtk_list_item_set_child (item, label);
}

static void
bind_value_cb (GtkListItemFactory *factory, GtkListItem *item)
{
  GtkLabel *label = GTK_LABEL (gtk_list_item_get_child (item));
  const char *text = text_of (item);

  gtk_label_set_ellipsize (label, g_utf8_strlen (text, -1) > VALUE_CHARS_MAX
                                      ? PANGO_ELLIPSIZE_END
                                      : PANGO_ELLIPSIZE_NONE);
  gtk_label_set_text (label, text);
}

static void
setup_choice_cb (GtkListItemFactory *factory, GtkListItem *item)
{
  GtkWidget *box = gtk_box_new (GTK_ORIENTATION_HORIZONTAL, 6), *label = gtk_label_new (NULL);

  gtk_label_set_xalign (GTK_LABEL (label), 0);
  gtk_label_set_ellipsize (GTK_LABEL (label), PANGO_ELLIPSIZE_END);
  gtk_label_set_max_width_chars (GTK_LABEL (label), 2 * VALUE_CHARS_MAX);
  gtk_widget_set_hexpand (label, TRUE);
  gtk_box_append (GTK_BOX (box), label);
  gtk_box_append (GTK_BOX (box), gtk_image_new_from_icon_name ("object-select-symbolic"));
  gtk_list_item_set_child (item, box);
}

static void
mark (AdwComboRow *row, GParamSpec *pspec, GtkListItem *item)
{
  GtkWidget *box = gtk_list_item_get_child (item);

  if (box != NULL)
    gtk_widget_set_opacity (
        gtk_widget_get_last_child (box),
        gtk_list_item_get_position (item) == adw_combo_row_get_selected (row) ? 1 : 0);
}

static void
bind_choice_cb (GtkListItemFactory *factory, GtkListItem *item, AdwComboRow *row)
{
  GtkWidget *box = gtk_list_item_get_child (item);

  gtk_label_set_text (GTK_LABEL (gtk_widget_get_first_child (box)), text_of (item));
  mark (row, NULL, item);
  g_signal_connect_object (row, "notify::selected", G_CALLBACK (mark), item, 0);
}

static void
unbind_choice_cb (GtkListItemFactory *factory, GtkListItem *item, AdwComboRow *row)
{
  g_signal_handlers_disconnect_by_func (row, mark, item);
}

void
quire_combo_row_show_whole (AdwComboRow *row)
{
  g_autoptr (GtkListItemFactory) values = gtk_signal_list_item_factory_new (),
                                 choices = gtk_signal_list_item_factory_new ();

  g_signal_connect (values, "setup", G_CALLBACK (setup_value_cb), NULL);
  g_signal_connect (values, "bind", G_CALLBACK (bind_value_cb), NULL);
  g_signal_connect (choices, "setup", G_CALLBACK (setup_choice_cb), NULL);
  g_signal_connect_object (choices, "bind", G_CALLBACK (bind_choice_cb), row, 0);
  g_signal_connect_object (choices, "unbind", G_CALLBACK (unbind_choice_cb), row, 0);
  adw_combo_row_set_factory (row, values);
  adw_combo_row_set_list_factory (row, choices);
}
