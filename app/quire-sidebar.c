/* quire-sidebar.c: see quire-sidebar.h.
 *
 * Invariants
 * 1. "lines" is what quire_sidebar_entries_new() makes of the history's items that match; it is remade in an idle after
 *    any of them changed, and only the lines between the first and the last difference are replaced.
 * 2. Titles are searched here at once, messages by the history; "found" belongs to the query that is in the entry.
 * CSS: .quire-sidebar-list. */
#include "app/quire-sidebar.h"

#include <adwaita.h>
#include <glib/gi18n.h>
#include <string.h>

#include "app/quire-popover.h"
#include "app/quire-sidebar-entry.h"
#include "app/quire-sidebar-row.h"
#include "app/quire-widget.h"

struct _QuireSidebar
{
  GtkBox parent_instance;

  QuireHistory *history;
  QuireHistoryItem *front;
  GtkWidget *search;
  GtkWidget *stack;
  GtkWidget *empty;
  GtkWidget *list;
  GtkWidget *trash_button;
  AdwButtonContent *trash_label;
  GtkWidget *popover; /* the menu or the rename popover that is open; NULL */
  GListStore *lines;
  GtkSingleSelection *selection;
  GCancellable *searching;
  GHashTable *found; /* (element-type utf8) or NULL: no query */
  gboolean trash;
  guint update_id;
};

G_DEFINE_FINAL_TYPE (QuireSidebar, quire_sidebar, GTK_TYPE_BOX)

static const char *
get_query (QuireSidebar *self)
{
  return gtk_editable_get_text (GTK_EDITABLE (self->search));
}

static gboolean
has_query (QuireSidebar *self)
{
  const char *text = get_query (self);

  return text[strspn (text, " \t\n")] != '\0';
}

/* ---- The lines ---- */

static void
select_front (QuireSidebar *self)
{
  guint n = g_list_model_get_n_items (G_LIST_MODEL (self->lines));
  guint position = GTK_INVALID_LIST_POSITION;

  for (guint i = 0; i < n && self->front != NULL; i++)
    {
      g_autoptr (QuireSidebarEntry) entry = g_list_model_get_item (G_LIST_MODEL (self->lines), i);

      if (quire_sidebar_entry_get_item (entry) == self->front)
        position = i;
    }
  if (gtk_single_selection_get_selected (self->selection) != position)
    gtk_single_selection_set_selected (self->selection, position);
}

static gboolean
is_listed (QuireSidebar *self, QuireHistoryItem *item)
{
  const QuireStoredChat *chat = quire_history_item_get (item);

  if ((chat->deleted != 0) != self->trash)
    return FALSE;
  return !has_query (self)
         || quire_history_matches (quire_title_or_new (chat->title), get_query (self))
         || (self->found != NULL && g_hash_table_contains (self->found, chat->id));
}

static void
splice (QuireSidebar *self, GPtrArray *lines)
{
  GListModel *old = G_LIST_MODEL (self->lines);
  guint n_old = g_list_model_get_n_items (old), n_new = lines->len, head = 0, tail = 0;

  for (; head < MIN (n_old, n_new); head++)
    {
      g_autoptr (GObject) line = g_list_model_get_item (old, head);

      if (line != g_ptr_array_index (lines, head))
        break;
    }
  for (; tail < MIN (n_old, n_new) - head; tail++)
    {
      g_autoptr (GObject) line = g_list_model_get_item (old, n_old - 1 - tail);

      if (line != g_ptr_array_index (lines, n_new - 1 - tail))
        break;
    }
  if (n_old != n_new || head < n_new)
    g_list_store_splice (self->lines, head, n_old - head - tail, lines->pdata + head,
                         n_new - head - tail);
}

static void
update_empty (QuireSidebar *self, gboolean has_trash)
{
  g_autofree char *text = NULL;

  if (self->trash)
    text = g_strdup (_ ("Trash is empty"));
  else if (has_query (self))
    text = g_strdup_printf (_ ("No chats contain “%s”"), get_query (self));
  else
    text = g_strdup (_ ("Chats you start appear here"));
  gtk_label_set_text (GTK_LABEL (self->empty), text);
  gtk_stack_set_visible_child_name (
      GTK_STACK (self->stack),
      g_list_model_get_n_items (G_LIST_MODEL (self->lines)) > 0 ? "list" : "empty");
  gtk_widget_set_visible (self->search, !self->trash);
  gtk_widget_set_visible (self->trash_button, has_trash || self->trash);
  adw_button_content_set_label (self->trash_label, self->trash ? _ ("Back to Chats") : _ ("Trash"));
  adw_button_content_set_icon_name (self->trash_label,
                                    self->trash ? "go-previous-symbolic" : "user-trash-symbolic");
}

static void
update (QuireSidebar *self)
{
  g_autoptr (GPtrArray) items = g_ptr_array_new_with_free_func (g_object_unref);
  g_autoptr (GPtrArray) lines = NULL;
  g_autoptr (GDateTime) now = g_date_time_new_now_local ();
  GListModel *all;
  gboolean has_trash = FALSE;

  g_clear_handle_id (&self->update_id, g_source_remove);
  if (self->history == NULL)
    return;
  all = quire_history_get_items (self->history);
  for (guint i = 0; i < g_list_model_get_n_items (all); i++)
    {
      g_autoptr (QuireHistoryItem) item = g_list_model_get_item (all, i);

      has_trash |= quire_history_item_get (item)->deleted != 0;
      if (is_listed (self, item))
        g_ptr_array_add (items, g_steal_pointer (&item));
    }
  lines = quire_sidebar_entries_new (items, G_LIST_MODEL (self->lines), now, self->trash);
  splice (self, lines);
  update_empty (self, has_trash);
  select_front (self);
}

static gboolean
update_cb (gpointer user_data)
{
  QuireSidebar *self = user_data;

  self->update_id = 0;
  update (self);
  return G_SOURCE_REMOVE;
}

static void
update_soon (QuireSidebar *self)
{
  if (self->update_id == 0)
    self->update_id = g_idle_add (update_cb, self);
}

static void
items_changed_cb (QuireSidebar *self, guint position, guint removed, guint added)
{
  GListModel *all = quire_history_get_items (self->history);

  for (guint i = position; i < position + added; i++)
    {
      g_autoptr (QuireHistoryItem) item = g_list_model_get_item (all, i);

      g_signal_connect_object (item, "changed", G_CALLBACK (update_soon), self, G_CONNECT_SWAPPED);
    }
  update_soon (self);
}

/* ---- Searching ---- */

static void
found_cb (GObject *source, GAsyncResult *result, gpointer user_data)
{
  g_autoptr (QuireSidebar) self = user_data;
  g_autoptr (GError) error = NULL;
  g_autoptr (GPtrArray) ids = quire_history_search_finish (result, &error);

  if (g_error_matches (error, G_IO_ERROR, G_IO_ERROR_CANCELLED) || self->history == NULL)
    return;
  g_clear_pointer (&self->found, g_hash_table_unref);
  self->found = g_hash_table_new_full (g_str_hash, g_str_equal, g_free, NULL);
  for (guint i = 0; ids != NULL && i < ids->len; i++)
    g_hash_table_add (self->found, g_strdup (g_ptr_array_index (ids, i)));
  update (self);
}

static void
search_changed_cb (QuireSidebar *self)
{
  if (self->searching != NULL)
    g_cancellable_cancel (self->searching);
  g_clear_object (&self->searching);
  if (!has_query (self))
    {
      g_clear_pointer (&self->found, g_hash_table_unref);
      update (self);
      return;
    }
  /* What was found for the query before stays shown until the answer is there: the list does not flicker. */
  if (self->found != NULL)
    update (self);
  self->searching = g_cancellable_new ();
  quire_history_search_async (self->history, get_query (self), self->searching, found_cb,
                              g_object_ref (self));
}

static void
search_activate_cb (QuireSidebar *self)
{
  for (guint i = 0; i < g_list_model_get_n_items (G_LIST_MODEL (self->lines)); i++)
    {
      g_autoptr (QuireSidebarEntry) entry = g_list_model_get_item (G_LIST_MODEL (self->lines), i);
      QuireHistoryItem *item = quire_sidebar_entry_get_item (entry);

      if (item == NULL)
        continue;
      gtk_widget_activate_action (GTK_WIDGET (self), "win.chat-open", "s",
                                  quire_history_item_get (item)->id);
      return;
    }
}

static void
stop_search_cb (QuireSidebar *self)
{
  gtk_editable_set_text (GTK_EDITABLE (self->search), "");
  gtk_widget_activate_action (GTK_WIDGET (self), "win.focus-composer", NULL);
}

void
quire_sidebar_focus_search (QuireSidebar *self)
{
  quire_sidebar_set_trash (self, FALSE);
  gtk_widget_grab_focus (self->search);
}

void
quire_sidebar_search (QuireSidebar *self, const char *query)
{
  quire_sidebar_focus_search (self);
  gtk_editable_set_text (GTK_EDITABLE (self->search), query);
  gtk_editable_set_position (GTK_EDITABLE (self->search), -1);
}

/* ---- Rows ---- */

static void
popover_closed_cb (QuireSidebar *self, GtkWidget *popover)
{
  GtkWidget *before = g_object_get_data (G_OBJECT (popover), "quire-focus");

  if (self->popover == popover)
    self->popover = NULL;
  /* The keyboard is where it was. */
  if (before != NULL && gtk_widget_get_mapped (before))
    gtk_widget_grab_focus (before);
  quire_popover_drop (popover);
}

static void
open_popover (QuireSidebar *self, GtkWidget *popover, GtkWidget *at, double x, double y)
{
  GtkWidget *focus = gtk_root_get_focus (gtk_widget_get_root (GTK_WIDGET (self)));
  double px = 0, py = 0;
  GdkRectangle place;

  if (self->popover != NULL)
    gtk_popover_popdown (GTK_POPOVER (self->popover));
  gtk_widget_translate_coordinates (at, GTK_WIDGET (self), x, y, &px, &py);
  place = (GdkRectangle){ (int)px, (int)py, 1, 1 };
  if (focus != NULL)
    g_object_set_data_full (G_OBJECT (popover), "quire-focus", g_object_ref (focus),
                            g_object_unref);
  gtk_widget_set_parent (popover, GTK_WIDGET (self));
  gtk_popover_set_pointing_to (GTK_POPOVER (popover), &place);
  gtk_popover_set_position (GTK_POPOVER (popover), GTK_POS_BOTTOM);
  g_signal_connect_swapped (popover, "closed", G_CALLBACK (popover_closed_cb), self);
  self->popover = popover;
  gtk_popover_popup (GTK_POPOVER (popover));
}

static void
append (GMenu *menu, const char *label, const char *action, const char *id)
{
  g_autoptr (GMenuItem) item = g_menu_item_new (label, NULL);

  g_menu_item_set_action_and_target (item, action, "s", id);
  g_menu_append_item (menu, item);
}

static GMenuModel *
menu_new (QuireHistoryItem *item)
{
  const QuireStoredChat *chat = quire_history_item_get (item);
  GMenu *menu = g_menu_new ();
  g_autoptr (GMenu) first = g_menu_new ();
  g_autoptr (GMenu) second = g_menu_new ();
  g_autoptr (GMenu) last = g_menu_new ();

  if (chat->deleted != 0)
    {
      append (first, _ ("_Restore"), "win.chat-restore", chat->id);
      append (last, _ ("_Delete Permanently"), "win.chat-erase", chat->id);
    }
  else
    {
      append (first, _ ("_Open"), "win.chat-open", chat->id);
      append (first, _ ("_Rename…"), "win.chat-rename", chat->id);
      append (first, chat->pinned ? _ ("Un_pin") : _ ("_Pin"), "win.chat-pin", chat->id);
      /* A comparison is exported where its figures are. */
      if (chat->kind == QUIRE_KIND_CHAT)
        {
          append (second, _ ("Export as _Markdown…"), "win.chat-export-markdown", chat->id);
          append (second, _ ("Export as _JSON…"), "win.chat-export-json", chat->id);
        }
      append (last, _ ("_Delete"), "win.chat-delete", chat->id);
    }
  g_menu_append_section (menu, NULL, G_MENU_MODEL (first));
  if (g_menu_model_get_n_items (G_MENU_MODEL (second)) > 0)
    g_menu_append_section (menu, NULL, G_MENU_MODEL (second));
  g_menu_append_section (menu, NULL, G_MENU_MODEL (last));
  return G_MENU_MODEL (menu);
}

static void
row_menu_cb (QuireSidebar *self, double x, double y, QuireSidebarRow *row)
{
  g_autoptr (GMenuModel) menu = menu_new (quire_sidebar_row_get_item (row));
  GtkWidget *popover = gtk_popover_menu_new_from_model (menu);
  const QuireStoredChat *chat = quire_history_item_get (quire_sidebar_row_get_item (row));

  gtk_popover_set_has_arrow (GTK_POPOVER (popover), FALSE);
  quire_widget_set_label (popover, quire_title_or_new (chat->title));
  open_popover (self, popover, GTK_WIDGET (row), x, y);
}

static QuireSidebarRow *
find_row (GtkWidget *widget, QuireHistoryItem *item)
{
  for (GtkWidget *child = gtk_widget_get_first_child (widget); child != NULL;
       child = gtk_widget_get_next_sibling (child))
    {
      QuireSidebarRow *row
          = QUIRE_IS_SIDEBAR_ROW (child) ? QUIRE_SIDEBAR_ROW (child) : find_row (child, item);

      if (row != NULL && quire_sidebar_row_get_item (row) == item)
        return row;
    }
  return NULL;
}

static void
rename_activate_cb (GtkWidget *popover)
{
  QuireHistoryItem *item = g_object_get_data (G_OBJECT (popover), "quire-item");
  GtkWidget *entry = g_object_get_data (G_OBJECT (popover), "quire-entry");

  gtk_widget_activate_action (popover, "win.chat-set-title", "(ss)",
                              quire_history_item_get (item)->id,
                              gtk_editable_get_text (GTK_EDITABLE (entry)));
  gtk_popover_popdown (GTK_POPOVER (popover));
}

void
quire_sidebar_rename (QuireSidebar *self, QuireHistoryItem *item)
{
  GtkWidget *popover = gtk_popover_new (), *box = gtk_box_new (GTK_ORIENTATION_VERTICAL, 12);
  GtkWidget *heading = gtk_label_new (_ ("Rename Chat")), *line, *entry, *button;
  GtkWidget *row = GTK_WIDGET (find_row (self->list, item));

  gtk_widget_add_css_class (heading, "heading");
  line = gtk_box_new (GTK_ORIENTATION_HORIZONTAL, 6);
  entry = gtk_entry_new ();
  gtk_editable_set_text (GTK_EDITABLE (entry),
                         quire_title_or_new (quire_history_item_get (item)->title));
  gtk_accessible_update_property (GTK_ACCESSIBLE (entry), GTK_ACCESSIBLE_PROPERTY_LABEL,
                                  _ ("Title"), -1);
  gtk_editable_set_width_chars (GTK_EDITABLE (entry), 24);
  button = quire_mnemonic_button_new (_ ("_Rename"));
  gtk_widget_add_css_class (button, "suggested-action");
  gtk_box_append (GTK_BOX (line), entry);
  gtk_box_append (GTK_BOX (line), button);
  gtk_box_append (GTK_BOX (box), heading);
  gtk_box_append (GTK_BOX (box), line);
  gtk_widget_set_margin_top (box, 6);
  gtk_widget_set_margin_bottom (box, 6);
  gtk_widget_set_margin_start (box, 6);
  gtk_widget_set_margin_end (box, 6);
  gtk_popover_set_child (GTK_POPOVER (popover), box);
  quire_widget_set_labelled_by (popover, heading, NULL);
  g_object_set_data_full (G_OBJECT (popover), "quire-item", g_object_ref (item), g_object_unref);
  g_object_set_data (G_OBJECT (popover), "quire-entry", entry);
  g_signal_connect_swapped (entry, "activate", G_CALLBACK (rename_activate_cb), popover);
  g_signal_connect_swapped (button, "clicked", G_CALLBACK (rename_activate_cb), popover);
  if (row != NULL)
    open_popover (self, popover, row, gtk_widget_get_width (row) / 2.0,
                  gtk_widget_get_height (row));
  else
    open_popover (self, popover, self->search, gtk_widget_get_width (self->search) / 2.0,
                  gtk_widget_get_height (self->search));
  gtk_widget_grab_focus (entry);
}

/* ---- The list ---- */

static void
setup_cb (QuireSidebar *self, GtkListItem *list_item)
{
  GtkWidget *row = quire_sidebar_row_new ();

  g_signal_connect_swapped (row, "menu", G_CALLBACK (row_menu_cb), self);
  gtk_list_item_set_child (list_item, row);
}

static void
bind_cb (QuireSidebar *self, GtkListItem *list_item)
{
  QuireSidebarEntry *entry = gtk_list_item_get_item (list_item);
  gboolean is_chat = quire_sidebar_entry_get_item (entry) != NULL;

  gtk_list_item_set_activatable (list_item, is_chat);
  gtk_list_item_set_selectable (list_item, is_chat);
  quire_sidebar_row_set_entry (QUIRE_SIDEBAR_ROW (gtk_list_item_get_child (list_item)), entry);
}

static void
unbind_cb (QuireSidebar *self, GtkListItem *list_item)
{
  quire_sidebar_row_set_entry (QUIRE_SIDEBAR_ROW (gtk_list_item_get_child (list_item)), NULL);
}

static void
activate_cb (QuireSidebar *self, guint position)
{
  g_autoptr (QuireSidebarEntry) entry
      = g_list_model_get_item (G_LIST_MODEL (self->lines), position);
  QuireHistoryItem *item = entry != NULL ? quire_sidebar_entry_get_item (entry) : NULL;

  if (item != NULL && !self->trash)
    gtk_widget_activate_action (GTK_WIDGET (self), "win.chat-open", "s",
                                quire_history_item_get (item)->id);
}

/* The conversation whose row has the focus. */
static QuireSidebarRow *
focused_row (QuireSidebar *self)
{
  GtkRoot *root = gtk_widget_get_root (GTK_WIDGET (self));
  GtkWidget *focus = root != NULL ? gtk_root_get_focus (root) : NULL;
  GtkWidget *child = focus != NULL ? gtk_widget_get_first_child (focus) : NULL;

  if (QUIRE_IS_SIDEBAR_ROW (child)
      && quire_sidebar_row_get_item (QUIRE_SIDEBAR_ROW (child)) != NULL)
    return QUIRE_SIDEBAR_ROW (child);
  return NULL;
}

static gboolean
key_pressed_cb (GtkEventControllerKey *controller, guint keyval, guint keycode,
                GdkModifierType state, gpointer user_data)
{
  QuireSidebar *self = user_data;
  QuireSidebarRow *row = focused_row (self);
  GdkModifierType modifiers = state & gtk_accelerator_get_default_mod_mask ();
  const QuireStoredChat *chat;

  if (row == NULL)
    return GDK_EVENT_PROPAGATE;
  chat = quire_history_item_get (quire_sidebar_row_get_item (row));
  if (keyval == GDK_KEY_Menu || (keyval == GDK_KEY_F10 && modifiers == GDK_SHIFT_MASK))
    row_menu_cb (self, 24, gtk_widget_get_height (GTK_WIDGET (row)), row);
  else if (keyval == GDK_KEY_F2 && modifiers == 0 && chat->deleted == 0)
    gtk_widget_activate_action (GTK_WIDGET (self), "win.chat-rename", "s", chat->id);
  else if ((keyval == GDK_KEY_Delete || keyval == GDK_KEY_KP_Delete) && modifiers == 0
           && chat->deleted == 0)
    gtk_widget_activate_action (GTK_WIDGET (self), "win.chat-delete", "s", chat->id);
  else
    return GDK_EVENT_PROPAGATE;
  return GDK_EVENT_STOP;
}

void
quire_sidebar_set_front (QuireSidebar *self, QuireHistoryItem *item)
{
  g_set_object (&self->front, item);
  select_front (self);
}

void
quire_sidebar_set_trash (QuireSidebar *self, gboolean trash)
{
  if (self->trash == trash)
    return;
  self->trash = trash;
  update (self);
}

static void
trash_clicked_cb (QuireSidebar *self)
{
  gtk_editable_set_text (GTK_EDITABLE (self->search), "");
  quire_sidebar_set_trash (self, !self->trash);
}

void
quire_sidebar_set_history (QuireSidebar *self, QuireHistory *history)
{
  GListModel *items = quire_history_get_items (history);

  self->history = g_object_ref (history);
  g_signal_connect_object (items, "items-changed", G_CALLBACK (items_changed_cb), self,
                           G_CONNECT_SWAPPED);
  items_changed_cb (self, 0, 0, g_list_model_get_n_items (items));
  update (self);
}

char **
quire_sidebar_dup_rows (QuireSidebar *self)
{
  GPtrArray *rows = g_ptr_array_new ();

  update (self);
  for (guint i = 0; i < g_list_model_get_n_items (G_LIST_MODEL (self->lines)); i++)
    {
      g_autoptr (QuireSidebarEntry) entry = g_list_model_get_item (G_LIST_MODEL (self->lines), i);
      QuireHistoryItem *item = quire_sidebar_entry_get_item (entry);

      g_ptr_array_add (
          rows, item != NULL ? g_strdup (quire_title_or_new (quire_history_item_get (item)->title))
                             : g_strdup_printf ("[%s]", quire_sidebar_entry_get_heading (entry)));
    }
  g_ptr_array_add (rows, NULL);
  return (char **)g_ptr_array_free (rows, FALSE);
}

static void
quire_sidebar_dispose (GObject *object)
{
  QuireSidebar *self = QUIRE_SIDEBAR (object);

  g_clear_handle_id (&self->update_id, g_source_remove);
  if (self->searching != NULL)
    g_cancellable_cancel (self->searching);
  g_clear_object (&self->searching);
  g_clear_pointer (&self->found, g_hash_table_unref);
  if (self->popover != NULL)
    gtk_widget_unparent (g_steal_pointer (&self->popover));
  g_clear_object (&self->front);
  g_clear_object (&self->history);
  g_clear_object (&self->lines);
  G_OBJECT_CLASS (quire_sidebar_parent_class)->dispose (object);
}

static void
quire_sidebar_class_init (QuireSidebarClass *klass)
{
  G_OBJECT_CLASS (klass)->dispose = quire_sidebar_dispose;
}

static void
build_list (QuireSidebar *self)
{
  GtkListItemFactory *factory = gtk_signal_list_item_factory_new ();
  GtkWidget *scrolled = gtk_scrolled_window_new ();
  GtkEventController *keys = gtk_event_controller_key_new ();

  self->lines = g_list_store_new (QUIRE_TYPE_SIDEBAR_ENTRY);
  self->selection = gtk_single_selection_new (G_LIST_MODEL (g_object_ref (self->lines)));
  gtk_single_selection_set_autoselect (self->selection, FALSE);
  gtk_single_selection_set_can_unselect (self->selection, TRUE);
  g_signal_connect_object (factory, "setup", G_CALLBACK (setup_cb), self, G_CONNECT_SWAPPED);
  g_signal_connect_object (factory, "bind", G_CALLBACK (bind_cb), self, G_CONNECT_SWAPPED);
  g_signal_connect_object (factory, "unbind", G_CALLBACK (unbind_cb), self, G_CONNECT_SWAPPED);
  self->list = gtk_list_view_new (GTK_SELECTION_MODEL (self->selection), factory);
  gtk_list_view_set_single_click_activate (GTK_LIST_VIEW (self->list), TRUE);
  gtk_widget_add_css_class (self->list, "navigation-sidebar");
  gtk_widget_add_css_class (self->list, "quire-sidebar-list");
  gtk_accessible_update_property (GTK_ACCESSIBLE (self->list), GTK_ACCESSIBLE_PROPERTY_LABEL,
                                  _ ("Chats"), -1);
  g_signal_connect_swapped (self->list, "activate", G_CALLBACK (activate_cb), self);
  g_signal_connect (keys, "key-pressed", G_CALLBACK (key_pressed_cb), self);
  gtk_widget_add_controller (self->list, keys);
  gtk_scrolled_window_set_policy (GTK_SCROLLED_WINDOW (scrolled), GTK_POLICY_NEVER,
                                  GTK_POLICY_AUTOMATIC);
  gtk_scrolled_window_set_child (GTK_SCROLLED_WINDOW (scrolled), self->list);
  gtk_stack_add_named (GTK_STACK (self->stack), scrolled, "list");
}

static void
quire_sidebar_init (QuireSidebar *self)
{
  gtk_orientable_set_orientation (GTK_ORIENTABLE (self), GTK_ORIENTATION_VERTICAL);
  self->search = gtk_search_entry_new ();
  g_object_set (self->search, "placeholder-text", _ ("Search"), NULL);
  gtk_accessible_update_property (GTK_ACCESSIBLE (self->search), GTK_ACCESSIBLE_PROPERTY_LABEL,
                                  _ ("Search chats"), -1);
  gtk_widget_add_css_class (self->search, "quire-search");
  g_signal_connect_swapped (self->search, "search-changed", G_CALLBACK (search_changed_cb), self);
  g_signal_connect_swapped (self->search, "activate", G_CALLBACK (search_activate_cb), self);
  g_signal_connect_swapped (self->search, "stop-search", G_CALLBACK (stop_search_cb), self);
  gtk_box_append (GTK_BOX (self), self->search);

  self->stack = gtk_stack_new ();
  gtk_widget_set_vexpand (self->stack, TRUE);
  build_list (self);
  self->empty = gtk_label_new (NULL);
  gtk_label_set_wrap (GTK_LABEL (self->empty), TRUE);
  gtk_label_set_wrap_mode (GTK_LABEL (self->empty), PANGO_WRAP_WORD_CHAR);
  gtk_label_set_justify (GTK_LABEL (self->empty), GTK_JUSTIFY_CENTER);
  gtk_label_set_max_width_chars (GTK_LABEL (self->empty), 24);
  gtk_widget_add_css_class (self->empty, "dim-label");
  gtk_widget_add_css_class (self->empty, "quire-sidebar-empty");
  gtk_widget_set_valign (self->empty, GTK_ALIGN_START);
  gtk_stack_add_named (GTK_STACK (self->stack), self->empty, "empty");
  gtk_box_append (GTK_BOX (self), self->stack);

  self->trash_button = gtk_button_new ();
  self->trash_label = ADW_BUTTON_CONTENT (adw_button_content_new ());
  gtk_button_set_child (GTK_BUTTON (self->trash_button), GTK_WIDGET (self->trash_label));
  gtk_widget_set_halign (GTK_WIDGET (self->trash_label), GTK_ALIGN_START);
  gtk_widget_add_css_class (self->trash_button, "flat");
  gtk_widget_add_css_class (self->trash_button, "quire-trash");
  gtk_widget_set_visible (self->trash_button, FALSE);
  g_signal_connect_swapped (self->trash_button, "clicked", G_CALLBACK (trash_clicked_cb), self);
  gtk_box_append (GTK_BOX (self), self->trash_button);
}
