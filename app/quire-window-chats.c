/* quire-window-chats.c: the window's tabs and the conversations in them: open, close, reopen, rename, pin, delete, restore.
 *
 * Invariants
 * 1. A conversation is open in at most one tab of all windows.
 * 2. A closed tab's conversation is parked (its pages are freed at once), so that closing can be undone even where nothing
 *    is saved; older ones are read again from the history.
 * 3. Which tabs are open, and which is in front, is written down in an idle after it changed; not while a window closes
 *    whose tabs shall come back. */
#include <glib/gi18n.h>
#include <string.h>

#include "app/quire-chat-settings-window.h"
#include "app/quire-history-find.h"
#include "app/quire-notify.h"
#include "app/quire-settings.h"
#include "app/quire-show-found.h"
#include "app/quire-sidebar-row.h"
#include "app/quire-toast.h"
#include "app/quire-window-private.h"

#define PARKED_MAX 10
#define UNDO_SECONDS 10

/* NULL: a comparison is in it. */
static QuireConversation *
conversation_of (AdwTabPage *page)
{
  GtkWidget *child = adw_tab_page_get_child (page);

  return QUIRE_IS_CHAT_VIEW (child) ? quire_chat_view_get_conversation (QUIRE_CHAT_VIEW (child))
                                    : NULL;
}

/* NULL: a comparison that was not started. */
static QuireHistoryItem *
item_of (AdwTabPage *page)
{
  QuireConversation *conversation = conversation_of (page);

  return conversation != NULL
             ? quire_conversation_get_item (conversation)
             : quire_compare_view_get_item (QUIRE_COMPARE_VIEW (adw_tab_page_get_child (page)));
}

static QuireHistoryItem *
find_item (QuireWindow *self, GVariant *parameter)
{
  return quire_history_find (self->history, g_variant_get_string (parameter, NULL));
}

/* ---- Which tabs are open ---- */

static void
set_tab (QuireWindow *self, QuireHistoryItem *item, int tab, gboolean front)
{
  QuireStoredChat *chat = item != NULL ? quire_history_item_edit (item) : NULL;

  if (chat == NULL)
    return;
  if (chat->tab == tab && chat->front == front)
    return;
  chat->tab = tab;
  chat->front = front;
  /* A chat without a message has no place in the history yet. */
  if (quire_history_find (self->history, chat->id) == item)
    quire_history_save (self->history, item, NULL, NULL, NULL);
}

static void
save_tabs (QuireWindow *self)
{
  g_clear_handle_id (&self->tabs_id, g_source_remove);
  for (int i = 0; i < adw_tab_view_get_n_pages (self->tab_view); i++)
    {
      AdwTabPage *page = adw_tab_view_get_nth_page (self->tab_view, i);

      set_tab (self, item_of (page), i, adw_tab_page_get_selected (page));
    }
}

static gboolean
save_tabs_cb (gpointer user_data)
{
  QuireWindow *self = user_data;

  self->tabs_id = 0;
  save_tabs (self);
  return G_SOURCE_REMOVE;
}

static void
save_tabs_soon (QuireWindow *self)
{
  if (self->tabs_id == 0 && !self->keep_tabs)
    self->tabs_id = g_idle_add (save_tabs_cb, self);
}

void
quire_window_keep_tabs (QuireWindow *self)
{
  self->keep_tabs = TRUE;
}

static gboolean
is_last_window (QuireWindow *self)
{
  GtkApplication *application = gtk_window_get_application (GTK_WINDOW (self));

  for (GList *l = gtk_application_get_windows (application); l != NULL; l = l->next)
    if (QUIRE_IS_WINDOW (l->data) && l->data != self)
      return FALSE;
  return TRUE;
}

void
quire_window_close_chats (QuireWindow *self)
{
  gboolean keep = self->keep_tabs || is_last_window (self);

  save_tabs (self);
  self->keep_tabs = TRUE;
  for (int i = 0; i < adw_tab_view_get_n_pages (self->tab_view); i++)
    {
      AdwTabPage *page = adw_tab_view_get_nth_page (self->tab_view, i);

      if (conversation_of (page) != NULL)
        {
          quire_chat_view_save_draft (QUIRE_CHAT_VIEW (adw_tab_page_get_child (page)));
          quire_conversation_interrupt (conversation_of (page));
        }
      else
        quire_compare_view_close (QUIRE_COMPARE_VIEW (adw_tab_page_get_child (page)));
      if (!keep)
        set_tab (self, item_of (page), -1, FALSE);
    }
}

/* ---- Notifications ---- */

/* The window, or a dialog of it, has the focus. */
static gboolean
is_in_use (QuireWindow *self)
{
  GtkWindow *front
      = gtk_application_get_active_window (gtk_window_get_application (GTK_WINDOW (self)));

  return gtk_window_is_active (GTK_WINDOW (self))
         || (front != NULL && gtk_window_is_active (front)
             && gtk_window_get_transient_for (front) == GTK_WINDOW (self));
}

static void
set_seen (QuireWindow *self, QuireHistoryItem *item)
{
  GtkApplication *application = gtk_window_get_application (GTK_WINDOW (self));

  if (application != NULL)
    quire_notify_seen (G_APPLICATION (application), quire_history_item_get (item)->id);
}

void
quire_window_update_seen (QuireWindow *self)
{
  QuireChatView *chat = quire_window_get_chat (self);

  if (chat != NULL && gtk_window_is_active (GTK_WINDOW (self)))
    set_seen (self, quire_conversation_get_item (quire_chat_view_get_conversation (chat)));
}

/* ---- Tabs ---- */

static void
conversation_notify_cb (QuireWindow *self, GParamSpec *pspec, QuireConversation *conversation)
{
  for (int i = 0; i < adw_tab_view_get_n_pages (self->tab_view); i++)
    {
      AdwTabPage *page = adw_tab_view_get_nth_page (self->tab_view, i);
      gboolean running = quire_conversation_is_running (conversation);

      if (conversation_of (page) != conversation)
        continue;
      adw_tab_page_set_title (page,
                              quire_title_or_new (quire_conversation_get_title (conversation)));
      if (adw_tab_page_get_loading (page) && !running
          && (!adw_tab_page_get_selected (page) || !is_in_use (self)))
        quire_notify_reply (G_APPLICATION (gtk_window_get_application (GTK_WINDOW (self))),
                            conversation);
      if (adw_tab_page_get_loading (page) && !running && !adw_tab_page_get_selected (page))
        {
          adw_tab_page_set_needs_attention (page, TRUE);
          quire_history_item_set_unread (quire_conversation_get_item (conversation), TRUE);
        }
      adw_tab_page_set_loading (page, running);
    }
  if (g_strcmp0 (g_param_spec_get_name (pspec), "loaded") == 0)
    {
      QuireChatView *chat = quire_window_get_chat (self);

      if (chat != NULL && quire_chat_view_get_conversation (chat) == conversation)
        quire_conversation_warm (conversation);
    }
  quire_window_update_title (self);
}

static AdwTabPage *
add_chat (QuireWindow *self, QuireConversation *conversation, gboolean select)
{
  GtkWidget *chat = quire_chat_view_new (conversation);
  AdwTabPage *page;

  /* With the focus in another page, the tab view would move it to the first message, which selects its text. */
  gtk_widget_set_can_focus (chat, FALSE);
  page = adw_tab_view_append (self->tab_view, chat);
  adw_tab_page_set_title (page, quire_title_or_new (quire_conversation_get_title (conversation)));
  if (select)
    adw_tab_view_set_selected_page (self->tab_view, page);
  gtk_widget_set_can_focus (chat, TRUE);
  if (select)
    gtk_widget_grab_focus (chat);
  return page;
}

QuireChatView *
quire_window_new_chat (QuireWindow *self)
{
  g_autoptr (QuireConversation) conversation
      = quire_conversation_new_kept (self->client, self->history, NULL);

  quire_conversation_set_cache (conversation, quire_settings_get_cache (), NULL);
  quire_conversation_take_default_preset (conversation);
  return QUIRE_CHAT_VIEW (adw_tab_page_get_child (add_chat (self, conversation, TRUE)));
}

/* A chat that came from another window: its buttons have heard that the actions of that window are gone, and do not
 * look again whether the chat itself has them. */
static void
renew_actions (QuireChatView *chat)
{
  gtk_widget_insert_action_group (GTK_WIDGET (chat), "chat", NULL);
  gtk_widget_insert_action_group (GTK_WIDGET (chat), "chat", quire_chat_view_get_actions (chat));
}

static void
page_attached_cb (QuireWindow *self, AdwTabPage *page)
{
  if (conversation_of (page) == NULL)
    quire_window_attach_compare (self, QUIRE_COMPARE_VIEW (adw_tab_page_get_child (page)));
  else
    g_signal_connect_object (conversation_of (page), "notify", G_CALLBACK (conversation_notify_cb),
                             self, G_CONNECT_SWAPPED);
  save_tabs_soon (self);
}

static void
page_detached_cb (QuireWindow *self, AdwTabPage *page)
{
  if (conversation_of (page) == NULL)
    quire_window_detach_compare (self, QUIRE_COMPARE_VIEW (adw_tab_page_get_child (page)));
  else
    g_signal_handlers_disconnect_by_func (conversation_of (page), conversation_notify_cb, self);
  save_tabs_soon (self);
}

/* Only what is shown is read, and only its pages are brought up. */
static void
show_front (QuireWindow *self)
{
  AdwTabPage *page = adw_tab_view_get_selected_page (self->tab_view);
  QuireConversation *conversation = conversation_of (page);

  adw_tab_page_set_needs_attention (page, FALSE);
  if (conversation == NULL)
    {
      quire_cache_panel_set_active_session (self->panel, 0);
      quire_sidebar_set_front (self->sidebar, item_of (page));
      return;
    }
  quire_conversation_load (conversation);
  quire_conversation_warm (conversation);
  quire_history_item_set_unread (quire_conversation_get_item (conversation), FALSE);
  quire_cache_panel_set_active_session (self->panel, quire_conversation_get_session (conversation));
  quire_engine_client_prefetch (self->client, quire_conversation_get_session (conversation));
  quire_sidebar_set_front (self->sidebar, quire_conversation_get_item (conversation));
  quire_window_update_seen (self);
}

static void
selected_page_cb (QuireWindow *self)
{
  QuireChatView *chat = quire_window_get_chat (self);

  gtk_widget_insert_action_group (GTK_WIDGET (self), "chat",
                                  chat != NULL ? quire_chat_view_get_actions (chat) : NULL);
  if (chat != NULL && adw_tab_view_get_is_transferring_page (self->tab_view))
    renew_actions (chat);
  if (self->restoring)
    return;
  if (adw_tab_view_get_selected_page (self->tab_view) == NULL)
    {
      quire_sidebar_set_front (self->sidebar, NULL);
      return;
    }
  show_front (self);
  if (chat != NULL)
    gtk_widget_grab_focus (GTK_WIDGET (chat));
  save_tabs_soon (self);
  quire_window_update_title (self);
}

static void
set_reopen_enabled (QuireWindow *self)
{
  GAction *action = g_action_map_lookup_action (G_ACTION_MAP (self), "reopen-tab");

  g_simple_action_set_enabled (G_SIMPLE_ACTION (action), !g_queue_is_empty (&self->parked));
}

static void
add_toast (QuireWindow *self, const char *text, const char *button, const char *action,
           const char *target)
{
  AdwToast *toast = quire_toast_new (GTK_WIDGET (self), text);

  if (button != NULL)
    {
      adw_toast_set_button_label (toast, button);
      if (target != NULL)
        adw_toast_set_action_target (toast, "s", target);
      adw_toast_set_action_name (toast, action);
    }
  adw_toast_set_timeout (toast, UNDO_SECONDS);
  if (quire_window_get_chat (self) != NULL)
    quire_chat_view_add_toast (quire_window_get_chat (self), toast);
  else if (quire_window_get_compare (self) != NULL)
    quire_compare_view_add_toast (quire_window_get_compare (self), toast);
  else
    g_object_unref (g_object_ref_sink (toast));
}

static void
park (QuireWindow *self, QuireConversation *conversation)
{
  g_queue_push_head (&self->parked, g_object_ref (conversation));
  while (g_queue_get_length (&self->parked) > PARKED_MAX)
    g_object_unref (g_queue_pop_tail (&self->parked));
  set_reopen_enabled (self);
}

/* Takes @item's conversation out of the parked ones; NULL when it is not among them. Returns: owned. */
static QuireConversation *
unpark (QuireWindow *self, QuireHistoryItem *item)
{
  for (GList *l = self->parked.head; l != NULL; l = l->next)
    if (quire_conversation_get_item (l->data) == item)
      {
        QuireConversation *conversation = l->data;

        g_queue_delete_link (&self->parked, l);
        set_reopen_enabled (self);
        return conversation;
      }
  return NULL;
}

static gboolean
is_empty (QuireConversation *conversation)
{
  return quire_conversation_is_loaded (conversation)
         && g_list_model_get_n_items (G_LIST_MODEL (conversation)) == 0;
}

/* Closes the tab; there is always one left. */
static void
close_page (QuireWindow *self, AdwTabPage *page)
{
  QuireConversation *conversation = conversation_of (page);

  quire_chat_view_save_draft (QUIRE_CHAT_VIEW (adw_tab_page_get_child (page)));
  quire_conversation_close (conversation);
  quire_history_item_set_unread (quire_conversation_get_item (conversation), FALSE);
  set_tab (self, quire_conversation_get_item (conversation), -1, FALSE);
  adw_tab_view_close_page_finish (self->tab_view, page, TRUE);
}

/* Its sessions are freed, its result is in the list. */
static void
close_compare (QuireWindow *self, AdwTabPage *page)
{
  quire_compare_view_close (QUIRE_COMPARE_VIEW (adw_tab_page_get_child (page)));
  set_tab (self, item_of (page), -1, FALSE);
  adw_tab_view_close_page_finish (self->tab_view, page, TRUE);
  if (adw_tab_view_get_n_pages (self->tab_view) == 0)
    quire_window_new_chat (self);
}

static gboolean
close_chat (QuireWindow *self, AdwTabPage *page)
{
  g_autoptr (QuireConversation) conversation = g_object_ref (conversation_of (page));
  g_autofree char *text = g_strdup_printf (
      _ ("“%s” closed"), quire_title_or_new (quire_conversation_get_title (conversation)));
  gboolean empty = is_empty (conversation);
  /* Deleted: the toast says that, and undo brings it back. */
  gboolean deleted
      = quire_history_item_get (quire_conversation_get_item (conversation))->deleted != 0;

  close_page (self, page);
  if (adw_tab_view_get_n_pages (self->tab_view) == 0)
    {
      if (empty && !deleted)
        {
          gtk_window_close (GTK_WINDOW (self));
          return GDK_EVENT_STOP;
        }
      quire_window_new_chat (self);
    }
  if (!empty)
    park (self, conversation);
  if (!empty && !deleted)
    add_toast (self, text, _ ("Reopen"), "win.reopen-tab", NULL);
  return GDK_EVENT_STOP;
}

static gboolean
close_page_cb (QuireWindow *self, AdwTabPage *page)
{
  if (conversation_of (page) != NULL)
    return close_chat (self, page);
  close_compare (self, page);
  return GDK_EVENT_STOP;
}

static AdwTabPage *
find_page (QuireWindow *self, QuireHistoryItem *item)
{
  for (int i = 0; i < adw_tab_view_get_n_pages (self->tab_view); i++)
    {
      AdwTabPage *page = adw_tab_view_get_nth_page (self->tab_view, i);

      if (item_of (page) == item)
        return page;
    }
  return NULL;
}

/* In any window. */
static gboolean
find_open (QuireWindow *self, QuireHistoryItem *item, QuireWindow **window, AdwTabPage **page)
{
  GtkApplication *application = gtk_window_get_application (GTK_WINDOW (self));

  for (GList *l = gtk_application_get_windows (application); l != NULL; l = l->next)
    {
      if (!QUIRE_IS_WINDOW (l->data))
        continue;
      *window = l->data;
      *page = find_page (*window, item);
      if (*page != NULL)
        return TRUE;
    }
  return FALSE;
}

/* An untouched new chat makes room for what is opened. */
static void
open_item (QuireWindow *self, QuireHistoryItem *item)
{
  AdwTabPage *page, *before = adw_tab_view_get_selected_page (self->tab_view);
  g_autoptr (QuireConversation) conversation = NULL;
  QuireWindow *other;

  if (find_open (self, item, &other, &page))
    {
      adw_tab_view_set_selected_page (other->tab_view, page);
      if (other != self)
        gtk_window_present (GTK_WINDOW (other));
      gtk_widget_grab_focus (adw_tab_page_get_child (page));
      return;
    }
  if (quire_history_item_get (item)->kind == QUIRE_KIND_COMPARISON)
    {
      page = quire_window_add_kept_compare (self, item);
      adw_tab_view_set_selected_page (self->tab_view, page);
      gtk_widget_grab_focus (adw_tab_page_get_child (page));
      return;
    }
  conversation = unpark (self, item);
  if (conversation == NULL)
    conversation = quire_conversation_new_kept (self->client, self->history, item);
  add_chat (self, conversation, TRUE);
  if (before != NULL && conversation_of (before) != NULL && is_empty (conversation_of (before))
      && quire_chat_view_is_untouched (QUIRE_CHAT_VIEW (adw_tab_page_get_child (before))))
    adw_tab_view_close_page (self->tab_view, before);
}

void
quire_window_open_found (QuireWindow *self, const char *text)
{
  const char *words = strchr (text, ' ');
  g_autofree char *place = words != NULL ? g_strndup (text, words - text) : g_strdup (text);
  g_autoptr (QuireFound) found = quire_found_from_string (place);
  QuireHistoryItem *item = found != NULL ? quire_history_find (self->history, found->id) : NULL;
  AdwTabPage *page;
  QuireWindow *window;

  if (item == NULL || quire_history_item_get (item)->deleted != 0)
    return;
  open_item (self, item);
  quire_window_leave_sidebar (self);
  if (found->seq != 0 && words != NULL && find_open (self, item, &window, &page)
      && QUIRE_IS_CHAT_VIEW (adw_tab_page_get_child (page)))
    quire_show_found (QUIRE_CHAT_VIEW (adw_tab_page_get_child (page)), found->seq, words + 1);
}

static int
by_tab (gconstpointer a, gconstpointer b)
{
  return quire_history_item_get (*(QuireHistoryItem *const *)a)->tab
         - quire_history_item_get (*(QuireHistoryItem *const *)b)->tab;
}

void
quire_window_restore (QuireWindow *self)
{
  GListModel *items = quire_history_get_items (self->history);
  g_autoptr (GPtrArray) open = g_ptr_array_new_with_free_func (g_object_unref);
  AdwTabPage *front = NULL;

  for (guint i = 0; i < g_list_model_get_n_items (items); i++)
    {
      g_autoptr (QuireHistoryItem) item = g_list_model_get_item (items, i);
      const QuireStoredChat *chat = quire_history_item_get (item);

      if (chat->tab >= 0 && chat->deleted == 0)
        g_ptr_array_add (open, g_steal_pointer (&item));
    }
  g_ptr_array_sort (open, by_tab);
  self->restoring = TRUE;
  for (guint i = 0; i < open->len; i++)
    {
      QuireHistoryItem *item = g_ptr_array_index (open, i);
      gboolean was_front = quire_history_item_get (item)->front;
      gboolean is_chat = quire_history_item_get (item)->kind == QUIRE_KIND_CHAT;
      g_autoptr (QuireConversation) conversation
          = is_chat ? quire_conversation_new_kept (self->client, self->history, item) : NULL;
      AdwTabPage *page = is_chat ? add_chat (self, conversation, FALSE)
                                 : quire_window_add_kept_compare (self, item);

      if (was_front || front == NULL)
        front = page;
    }
  if (front != NULL)
    adw_tab_view_set_selected_page (self->tab_view, front);
  self->restoring = FALSE;
  if (front != NULL)
    selected_page_cb (self);
  else
    quire_window_new_chat (self);
}

/* ---- Actions ---- */

static void
reopen_tab_action (GSimpleAction *action, GVariant *parameter, gpointer user_data)
{
  QuireWindow *self = user_data;
  QuireConversation *conversation = g_queue_peek_head (&self->parked);

  if (conversation != NULL)
    {
      g_autoptr (QuireHistoryItem) item = g_object_ref (quire_conversation_get_item (conversation));

      if (quire_history_item_get (item)->deleted != 0)
        quire_history_set_deleted (self->history, item, FALSE);
      open_item (self, item);
    }
}

static void
open_action (GSimpleAction *action, GVariant *parameter, gpointer user_data)
{
  QuireWindow *self = user_data;
  QuireHistoryItem *item = find_item (self, parameter);

  if (item == NULL)
    return;
  open_item (self, item);
  quire_window_leave_sidebar (self);
}

static void
rename_action (GSimpleAction *action, GVariant *parameter, gpointer user_data)
{
  QuireWindow *self = user_data;
  QuireHistoryItem *item = find_item (self, parameter);

  if (item != NULL)
    quire_sidebar_rename (self->sidebar, item);
}

static void
set_title_action (GSimpleAction *action, GVariant *parameter, gpointer user_data)
{
  QuireWindow *self = user_data;
  const char *id, *title;
  QuireHistoryItem *item;

  g_variant_get (parameter, "(&s&s)", &id, &title);
  item = quire_history_find (self->history, id);
  if (item == NULL || title[strspn (title, " \t\n")] == '\0')
    return;
  quire_history_item_set_title (item, title, QUIRE_TITLE_USER);
  quire_history_save (self->history, item, NULL, NULL, NULL);
}

static void
pin_action (GSimpleAction *action, GVariant *parameter, gpointer user_data)
{
  QuireWindow *self = user_data;
  QuireHistoryItem *item = find_item (self, parameter);

  if (item == NULL)
    return;
  quire_history_item_edit (item)->pinned = !quire_history_item_get (item)->pinned;
  quire_history_item_changed (item);
  quire_history_save (self->history, item, NULL, NULL, NULL);
}

/* The text goes to the trash; its pages go at once, from all tiers. */
static void
delete_action (GSimpleAction *action, GVariant *parameter, gpointer user_data)
{
  QuireWindow *self = user_data;
  QuireHistoryItem *item = find_item (self, parameter);
  g_autofree char *text = NULL;
  QuireWindow *other;
  AdwTabPage *page;

  if (item == NULL)
    return;
  text = g_strdup_printf (_ ("“%s” deleted"),
                          quire_title_or_new (quire_history_item_get (item)->title));
  quire_history_set_deleted (self->history, item, TRUE);
  set_seen (self, item);
  if (find_open (self, item, &other, &page))
    adw_tab_view_close_page (other->tab_view, page);
  quire_engine_client_delete_files (self->client, quire_history_item_get (item)->id);
  add_toast (self, text, _ ("Undo"), "win.chat-restore", quire_history_item_get (item)->id);
}

static void
restore_action (GSimpleAction *action, GVariant *parameter, gpointer user_data)
{
  QuireWindow *self = user_data;
  QuireHistoryItem *item = find_item (self, parameter);

  if (item == NULL || quire_history_item_get (item)->deleted == 0)
    return;
  quire_history_set_deleted (self->history, item, FALSE);
  quire_sidebar_set_trash (self->sidebar, FALSE);
  open_item (self, item);
}

static void
erase_action (GSimpleAction *action, GVariant *parameter, gpointer user_data)
{
  QuireWindow *self = user_data;
  QuireHistoryItem *item = find_item (self, parameter);

  if (item == NULL)
    return;
  {
    g_autoptr (QuireConversation) parked = unpark (self, item);

    g_clear_object (&parked);
  }
  quire_history_erase (self->history, item);
}

void
quire_window_init_chats (QuireWindow *self)
{
  const GActionEntry entries[] = {
    { "reopen-tab", reopen_tab_action, NULL, NULL, NULL, { 0 } },
    { "chat-open", open_action, "s", NULL, NULL, { 0 } },
    { "chat-rename", rename_action, "s", NULL, NULL, { 0 } },
    { "chat-set-title", set_title_action, "(ss)", NULL, NULL, { 0 } },
    { "chat-pin", pin_action, "s", NULL, NULL, { 0 } },
    { "chat-delete", delete_action, "s", NULL, NULL, { 0 } },
    { "chat-restore", restore_action, "s", NULL, NULL, { 0 } },
    { "chat-erase", erase_action, "s", NULL, NULL, { 0 } },
  };

  g_queue_init (&self->parked);
  g_action_map_add_action_entries (G_ACTION_MAP (self), entries, G_N_ELEMENTS (entries), self);
  set_reopen_enabled (self);
}

void
quire_window_connect_chats (QuireWindow *self)
{
  g_signal_connect_swapped (self->tab_view, "page-attached", G_CALLBACK (page_attached_cb), self);
  g_signal_connect_swapped (self->tab_view, "page-detached", G_CALLBACK (page_detached_cb), self);
  g_signal_connect_swapped (self->tab_view, "page-reordered", G_CALLBACK (save_tabs_soon), self);
  g_signal_connect_swapped (self->tab_view, "notify::selected-page", G_CALLBACK (selected_page_cb),
                            self);
  g_signal_connect_swapped (self->tab_view, "close-page", G_CALLBACK (close_page_cb), self);
  quire_sidebar_set_history (self->sidebar, self->history);
}
