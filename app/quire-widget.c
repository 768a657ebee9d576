/* quire-widget.c: see quire-widget.h.
 *
 * GTK 4.8 calls what has no label by the name of its type ("GtkImage"), and neither it nor libadwaita 1.2 labels all that it
 * builds. Newer ones label more: what has a label is left alone. */
#include "app/quire-widget.h"

#include <glib/gi18n.h>
#include <string.h>

void
quire_widget_set_class (GtkWidget *widget, const char *name, gboolean on)
{
  if (on)
    gtk_widget_add_css_class (widget, name);
  else
    gtk_widget_remove_css_class (widget, name);
}

void
quire_widget_set_label (GtkWidget *widget, const char *label)
{
  gtk_accessible_update_property (GTK_ACCESSIBLE (widget), GTK_ACCESSIBLE_PROPERTY_LABEL, label,
                                  -1);
}

void
quire_widget_set_labelled_by (GtkWidget *widget, GtkWidget *by, GtkWidget *also)
{
  if (also != NULL)
    gtk_accessible_update_relation (GTK_ACCESSIBLE (widget), GTK_ACCESSIBLE_RELATION_LABELLED_BY,
                                    by, also, NULL, -1);
  else
    gtk_accessible_update_relation (GTK_ACCESSIBLE (widget), GTK_ACCESSIBLE_RELATION_LABELLED_BY,
                                    by, NULL, -1);
}

/* ---- Mnemonics ---- */

static char *
dup_without_mnemonic (const char *text)
{
  GString *out = g_string_new (NULL);

  for (const char *p = text; *p != '\0'; p++)
    {
      if (p[0] == '_' && p[1] != '\0')
        p++;
      g_string_append_c (out, *p);
    }
  return g_string_free (out, FALSE);
}

/* The words stay in one place: the label that GTK made, by whose mnemonic the button is called too. */
static void
name_mnemonic (GtkWidget *widget, const char *text)
{
  g_autofree char *plain = dup_without_mnemonic (text);

  gtk_accessible_reset_relation (GTK_ACCESSIBLE (widget), GTK_ACCESSIBLE_RELATION_LABELLED_BY);
  quire_widget_set_label (widget, plain);
}

GtkWidget *
quire_mnemonic_button_new (const char *label)
{
  GtkWidget *button = gtk_button_new_with_mnemonic (label);

  name_mnemonic (button, label);
  return button;
}

GtkWidget *
quire_mnemonic_check_new (const char *label)
{
  GtkWidget *check = gtk_check_button_new_with_mnemonic (label);

  name_mnemonic (check, label);
  return check;
}

/* ---- What libraries build ---- */

static gboolean
has_name (GtkWidget *widget)
{
  GtkAccessible *accessible = GTK_ACCESSIBLE (widget);

  return gtk_test_accessible_has_property (accessible, GTK_ACCESSIBLE_PROPERTY_LABEL)
         || gtk_test_accessible_has_relation (accessible, GTK_ACCESSIBLE_RELATION_LABELLED_BY);
}

static void
name_unnamed (GtkWidget *widget, const char *name)
{
  if (widget != NULL && name != NULL && name[0] != '\0' && !has_name (widget))
    quire_widget_set_label (widget, name);
}

static GtkWidget *
find_below (GtkWidget *widget, GType type)
{
  for (GtkWidget *child = gtk_widget_get_first_child (widget); child != NULL;
       child = gtk_widget_get_next_sibling (child))
    {
      GtkWidget *found
          = G_TYPE_CHECK_INSTANCE_TYPE (child, type) ? child : find_below (child, type);

      if (found != NULL)
        return found;
    }
  return NULL;
}

void
quire_drop_down_set_label (GtkDropDown *drop_down, const char *label)
{
  GtkWidget *button = find_below (GTK_WIDGET (drop_down), GTK_TYPE_TOGGLE_BUTTON);
  GType line = g_type_from_name ("GtkListItemWidget");

  quire_widget_set_label (GTK_WIDGET (drop_down), label);
  if (button != NULL)
    quire_widget_set_label (button, label);
  /* In it stands the line that is chosen, as a widget that could have the focus. */
  if (button != NULL && line != 0 && find_below (button, line) != NULL)
    quire_widget_set_label (find_below (button, line), label);
  quire_widget_name_all (GTK_WIDGET (drop_down));
}

static gboolean
is_type (GtkWidget *widget, const char *name)
{
  return widget != NULL && strcmp (G_OBJECT_TYPE_NAME (widget), name) == 0;
}

/* The rows of a list view in a popover: each is called as it shows. */
static void
name_items (GtkWidget *list)
{
  for (GtkWidget *item = gtk_widget_get_first_child (list); item != NULL;
       item = gtk_widget_get_next_sibling (item))
    {
      GtkWidget *label = find_below (item, GTK_TYPE_LABEL);

      if (label != NULL)
        quire_widget_set_labelled_by (item, label, NULL);
    }
}

/* The title is the row's; what has the focus is inside. */
static void
name_row (GtkWidget *row)
{
  const char *title = adw_preferences_row_get_title (ADW_PREFERENCES_ROW (row));
  GtkWidget *list = NULL, *revealer;

  if (ADW_IS_COMBO_ROW (row))
    list = find_below (row, GTK_TYPE_LIST_VIEW);
  else if (ADW_IS_EXPANDER_ROW (row))
    {
      GtkWidget *header = find_below (row, ADW_TYPE_ACTION_ROW);

      name_unnamed (row, title);
      list = find_below (row, GTK_TYPE_LIST_BOX);
      /* The switch in the header, not those of the rows. */
      if (header != NULL && adw_expander_row_get_show_enable_switch (ADW_EXPANDER_ROW (row)))
        name_unnamed (find_below (header, GTK_TYPE_SWITCH), title);
      revealer = find_below (row, GTK_TYPE_REVEALER);
      if (revealer != NULL)
        name_unnamed (find_below (revealer, GTK_TYPE_LIST_BOX), title);
    }
  name_unnamed (list, title);
}

/* A group with a title has given it to its list. */
static void
name_group (GtkWidget *group)
{
  const char *title = adw_preferences_group_get_title (ADW_PREFERENCES_GROUP (group));
  GtkWidget *list = find_below (group, GTK_TYPE_LIST_BOX);
  GtkWidget *row = list != NULL ? find_below (list, ADW_TYPE_PREFERENCES_ROW) : NULL;

  if ((title == NULL || title[0] == '\0') && row != NULL)
    quire_widget_set_label (list, adw_preferences_row_get_title (ADW_PREFERENCES_ROW (row)));
}

static void
title_changed_cb (GtkWidget *tab, GParamSpec *pspec, AdwTabPage *page)
{
  quire_widget_set_label (tab, adw_tab_page_get_title (page));
}

/* What has the focus is AdwTab's parent. */
static void
name_tab (GtkWidget *inner)
{
  GtkWidget *tab = gtk_widget_get_parent (inner);
  g_autoptr (AdwTabPage) page = NULL;

  if (g_object_class_find_property (G_OBJECT_GET_CLASS (inner), "page") == NULL)
    return;
  g_object_get (inner, "page", &page, NULL);
  if (page == NULL || has_name (tab))
    return;
  g_signal_connect_object (page, "notify::title", G_CALLBACK (title_changed_cb), tab,
                           G_CONNECT_SWAPPED);
  title_changed_cb (tab, NULL, page);
}

/* GTK 4.8 calls a button with an icon by its image, which has no name. */
static void
name_icon_button (GtkWidget *button)
{
  const char *name = gtk_widget_get_tooltip_text (button);
  const char *icon = gtk_button_get_icon_name (GTK_BUTTON (button));

  if (gtk_test_accessible_has_property (GTK_ACCESSIBLE (button), GTK_ACCESSIBLE_PROPERTY_LABEL))
    return;
  if (name == NULL)
    name = strcmp (icon, "window-close-symbolic") == 0 ? _ ("Close")
           : strcmp (icon, "edit-find-symbolic") == 0  ? _ ("Search")
                                                       : NULL;
  if (name != NULL)
    quire_widget_set_label (button, name);
}

static void
name_button (GtkWidget *widget)
{
  GtkButton *button = GTK_BUTTON (widget);
  const char *label = gtk_button_get_label (button);

  if (label != NULL && gtk_button_get_use_underline (button))
    name_mnemonic (widget, label);
  else if (gtk_button_get_icon_name (button) != NULL)
    name_icon_button (widget);
  else if (GTK_IS_STACK_SWITCHER (gtk_widget_get_parent (widget)))
    {
      GtkWidget *text = find_below (widget, GTK_TYPE_LABEL);

      if (text != NULL && gtk_label_get_use_underline (GTK_LABEL (text)))
        quire_widget_set_label (widget, gtk_label_get_text (GTK_LABEL (text)));
    }
  else if (!has_name (widget))
    {
      GtkWidget *text = find_below (widget, GTK_TYPE_LABEL);

      if (text != NULL)
        quire_widget_set_labelled_by (widget, text, NULL);
      else
        name_unnamed (widget, gtk_widget_get_tooltip_text (widget));
    }
}

/* By the button that opens it, else by what it belongs to. */
static void
name_popover (GtkWidget *popover)
{
  GtkWidget *parent = gtk_widget_get_parent (popover);
  const char *name = gtk_widget_get_tooltip_text (parent);
  GtkWidget *text = GTK_IS_MENU_BUTTON (parent) ? find_below (parent, GTK_TYPE_LABEL) : NULL;

  if (has_name (popover))
    return;
  if (name == NULL && text != NULL && !gtk_widget_is_ancestor (text, popover))
    name = gtk_label_get_text (GTK_LABEL (text));
  name_unnamed (popover, name != NULL ? name : _ ("Menu"));
}

static void
mapped_cb (GtkWidget *widget)
{
  if (GTK_IS_POPOVER (widget))
    name_popover (widget);
  quire_widget_name_all (widget);
}

static void
name_when_mapped (GtkWidget *widget)
{
  /* Once a widget. */
  g_signal_handlers_disconnect_by_func (widget, mapped_cb, NULL);
  g_signal_connect_after (widget, "map", G_CALLBACK (mapped_cb), NULL);
}

void
quire_widget_name_all (GtkWidget *root)
{
  for (GtkWidget *child = gtk_widget_get_first_child (root); child != NULL;
       child = gtk_widget_get_next_sibling (child))
    {
      if (GTK_IS_POPOVER (child))
        name_when_mapped (child);
      if (GTK_IS_BUTTON (child))
        name_button (child);
      else if (GTK_IS_LIST_VIEW (child) && GTK_IS_POPOVER (gtk_widget_get_native (child)))
        name_items (child);
      else if (GTK_IS_SEARCH_ENTRY (child)
               && is_type (GTK_WIDGET (gtk_widget_get_root (child)), "GtkShortcutsWindow"))
        name_unnamed (child, _ ("Search"));
      else if (ADW_IS_PREFERENCES_GROUP (child))
        name_group (child);
      else if (ADW_IS_PREFERENCES_ROW (child))
        name_row (child);
      else if (is_type (child, "AdwTab"))
        name_tab (child);
      quire_widget_name_all (child);
    }
}

static void
page_attached_cb (AdwTabBar *bar)
{
  quire_widget_name_all (GTK_WIDGET (bar));
}

void
quire_widget_name_tabs (AdwTabBar *bar)
{
  /* After the bar's own, which makes the tab. */
  g_signal_connect_object (adw_tab_bar_get_view (bar), "page-attached",
                           G_CALLBACK (page_attached_cb), bar, G_CONNECT_SWAPPED | G_CONNECT_AFTER);
}

void
quire_widget_name_toasts (AdwToastOverlay *overlay)
{
  GListModel *children = gtk_widget_observe_children (GTK_WIDGET (overlay));

  g_signal_connect_object (children, "items-changed", G_CALLBACK (quire_widget_name_all), overlay,
                           G_CONNECT_SWAPPED);
  g_object_set_data_full (G_OBJECT (overlay), "quire-children", children, g_object_unref);
}

static void
windows_changed_cb (GListModel *windows, guint position, guint removed, guint added)
{
  for (guint i = position; i < position + added; i++)
    {
      g_autoptr (GtkWidget) window = g_list_model_get_item (windows, i);

      name_when_mapped (window);
    }
}

void
quire_widget_name_windows (void)
{
  GListModel *windows = gtk_window_get_toplevels ();

  g_signal_connect (windows, "items-changed", G_CALLBACK (windows_changed_cb), NULL);
  windows_changed_cb (windows, 0, 0, g_list_model_get_n_items (windows));
}
