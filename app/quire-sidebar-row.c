/* quire-sidebar-row.c: see quire-sidebar-row.h. CSS: .quire-chat-row, .quire-heading, button.quire-row-menu. */
#include "app/quire-sidebar-row.h"

#include <glib/gi18n.h>

#include "app/quire-widget.h"

struct _QuireSidebarRow
{
  GtkBox parent_instance;

  QuireSidebarEntry *entry;
  GtkWidget *label, *pin, *spinner, *dot, *menu;
};

G_DEFINE_FINAL_TYPE (QuireSidebarRow, quire_sidebar_row, GTK_TYPE_BOX)

static guint menu_signal;

const char *
quire_title_or_new (const char *title)
{
  return title != NULL && title[0] != '\0' ? title : _ ("New Chat");
}

QuireHistoryItem *
quire_sidebar_row_get_item (QuireSidebarRow *self)
{
  return self->entry != NULL ? quire_sidebar_entry_get_item (self->entry) : NULL;
}

/* What has the focus is the list's own widget around the row. */
static void
update_name (QuireSidebarRow *self, const char *text)
{
  GtkWidget *outer = gtk_widget_get_parent (GTK_WIDGET (self));
  GtkWidget *const marks[] = { self->pin, self->spinner, self->dot };
  g_autoptr (GString) name = g_string_new (text);

  for (gsize i = 0; i < G_N_ELEMENTS (marks); i++)
    if (gtk_widget_get_visible (marks[i]))
      g_string_append_printf (name, ", %s", gtk_widget_get_tooltip_text (marks[i]));
  if (outer != NULL)
    quire_widget_set_label (outer, name->str);
}

static void
update (QuireSidebarRow *self)
{
  QuireHistoryItem *item = quire_sidebar_row_get_item (self);
  const QuireStoredChat *chat = item != NULL ? quire_history_item_get (item) : NULL;
  const char *text = item != NULL ? quire_title_or_new (chat->title)
                                  : quire_sidebar_entry_get_heading (self->entry);
  gboolean running = item != NULL && quire_history_item_is_running (item);
  gboolean unread = item != NULL && quire_history_item_is_unread (item);

  gtk_label_set_text (GTK_LABEL (self->label), text);
  gtk_widget_set_tooltip_text (self->label, item != NULL ? text : NULL);
  quire_widget_set_class (self->label, "dim-label", item == NULL);
  quire_widget_set_class (self->label, "caption-heading", item == NULL);
  quire_widget_set_class (self->label, "heading", unread);
  quire_widget_set_class (GTK_WIDGET (self), "quire-heading", item == NULL);
  gtk_widget_set_visible (self->pin, item != NULL && chat->pinned && chat->deleted == 0);
  gtk_spinner_set_spinning (GTK_SPINNER (self->spinner), running);
  gtk_widget_set_visible (self->spinner, running);
  gtk_widget_set_visible (self->dot, unread && !running);
  gtk_widget_set_visible (self->menu, item != NULL);
  /* GTK gives the focus to no row that cannot be selected, and no key goes past one: a heading takes it inside. */
  gtk_widget_set_focusable (GTK_WIDGET (self), item == NULL);
  quire_widget_set_label (GTK_WIDGET (self), text);
  update_name (self, text);
}

void
quire_sidebar_row_set_entry (QuireSidebarRow *self, QuireSidebarEntry *entry)
{
  QuireHistoryItem *item = quire_sidebar_row_get_item (self);

  if (item != NULL)
    g_signal_handlers_disconnect_by_func (item, update, self);
  g_set_object (&self->entry, entry);
  if (entry == NULL)
    return;
  item = quire_sidebar_row_get_item (self);
  if (item != NULL)
    g_signal_connect_object (item, "changed", G_CALLBACK (update), self, G_CONNECT_SWAPPED);
  update (self);
}

static void
pressed_cb (GtkGestureClick *gesture, int n_press, double x, double y, gpointer user_data)
{
  if (quire_sidebar_row_get_item (user_data) == NULL)
    return;
  gtk_gesture_set_state (GTK_GESTURE (gesture), GTK_EVENT_SEQUENCE_CLAIMED);
  g_signal_emit (user_data, menu_signal, 0, x, y);
}

static void
long_pressed_cb (GtkGestureLongPress *gesture, double x, double y, gpointer user_data)
{
  if (quire_sidebar_row_get_item (user_data) != NULL)
    g_signal_emit (user_data, menu_signal, 0, x, y);
}

static void
menu_clicked_cb (QuireSidebarRow *self)
{
  double x = 0, y = 0;

  gtk_widget_translate_coordinates (self->menu, GTK_WIDGET (self),
                                    gtk_widget_get_width (self->menu) / 2.0,
                                    gtk_widget_get_height (self->menu), &x, &y);
  g_signal_emit (self, menu_signal, 0, x, y);
}

static void
quire_sidebar_row_dispose (GObject *object)
{
  quire_sidebar_row_set_entry (QUIRE_SIDEBAR_ROW (object), NULL);
  G_OBJECT_CLASS (quire_sidebar_row_parent_class)->dispose (object);
}

static void
quire_sidebar_row_class_init (QuireSidebarRowClass *klass)
{
  G_OBJECT_CLASS (klass)->dispose = quire_sidebar_row_dispose;
  menu_signal = g_signal_new ("menu", G_TYPE_FROM_CLASS (klass), G_SIGNAL_RUN_LAST, 0, NULL, NULL,
                              NULL, G_TYPE_NONE, 2, G_TYPE_DOUBLE, G_TYPE_DOUBLE);
}

static void
quire_sidebar_row_init (QuireSidebarRow *self)
{
  GtkGesture *click = gtk_gesture_click_new (), *hold = gtk_gesture_long_press_new ();

  gtk_widget_add_css_class (GTK_WIDGET (self), "quire-chat-row");
  gtk_box_set_spacing (GTK_BOX (self), 6);
  self->label = gtk_label_new (NULL);
  gtk_label_set_ellipsize (GTK_LABEL (self->label), PANGO_ELLIPSIZE_END);
  gtk_label_set_xalign (GTK_LABEL (self->label), 0);
  gtk_widget_set_hexpand (self->label, TRUE);
  self->pin = gtk_image_new_from_icon_name ("view-pin-symbolic");
  gtk_widget_add_css_class (self->pin, "dim-label");
  gtk_widget_set_tooltip_text (self->pin, _ ("Pinned"));
  self->spinner = gtk_spinner_new ();
  gtk_widget_set_tooltip_text (self->spinner, _ ("A reply is being written"));
  self->dot = gtk_box_new (GTK_ORIENTATION_HORIZONTAL, 0);
  gtk_widget_add_css_class (self->dot, "quire-dot");
  gtk_widget_set_valign (self->dot, GTK_ALIGN_CENTER);
  gtk_widget_set_tooltip_text (self->dot, _ ("A new reply"));
  self->menu = gtk_button_new_from_icon_name ("view-more-symbolic");
  gtk_widget_add_css_class (self->menu, "flat");
  gtk_widget_add_css_class (self->menu, "quire-row-menu");
  gtk_widget_set_valign (self->menu, GTK_ALIGN_CENTER);
  gtk_widget_set_focusable (self->menu, FALSE); /* the keyboard has the Menu key */
  gtk_widget_set_tooltip_text (self->menu, _ ("Chat Actions"));
  quire_widget_set_label (self->menu, _ ("Chat Actions"));
  g_signal_connect_swapped (self->menu, "clicked", G_CALLBACK (menu_clicked_cb), self);
  gtk_box_append (GTK_BOX (self), self->label);
  gtk_box_append (GTK_BOX (self), self->pin);
  gtk_box_append (GTK_BOX (self), self->spinner);
  gtk_box_append (GTK_BOX (self), self->dot);
  gtk_box_append (GTK_BOX (self), self->menu);

  gtk_gesture_single_set_button (GTK_GESTURE_SINGLE (click), GDK_BUTTON_SECONDARY);
  g_signal_connect (click, "pressed", G_CALLBACK (pressed_cb), self);
  gtk_widget_add_controller (GTK_WIDGET (self), GTK_EVENT_CONTROLLER (click));
  gtk_gesture_single_set_touch_only (GTK_GESTURE_SINGLE (hold), TRUE);
  g_signal_connect (hold, "pressed", G_CALLBACK (long_pressed_cb), self);
  gtk_widget_add_controller (GTK_WIDGET (self), GTK_EVENT_CONTROLLER (hold));
}

GtkWidget *
quire_sidebar_row_new (void)
{
  return g_object_new (QUIRE_TYPE_SIDEBAR_ROW, NULL);
}
