/* quire-window-compare.c: comparisons in the window's tabs: opening them from a chat and from the list, closing them, and
 * "Use This Mode". */
#include <glib/gi18n.h>

#include "app/quire-popover.h"
#include "app/quire-settings.h"
#include "app/quire-sidebar-row.h"
#include "app/quire-toast.h"
#include "app/quire-widget.h"
#include "app/quire-window-private.h"
#include "app/quire-words.h"

QuireCompareView *
quire_window_get_compare (QuireWindow *self)
{
  AdwTabPage *page = adw_tab_view_get_selected_page (self->tab_view);
  GtkWidget *child = page != NULL ? adw_tab_page_get_child (page) : NULL;

  return QUIRE_IS_COMPARE_VIEW (child) ? QUIRE_COMPARE_VIEW (child) : NULL;
}

static QuireHistoryItem *
find_source (QuireWindow *self, QuireCompareView *view)
{
  QuireHistoryItem *item = quire_history_find (self->history, quire_compare_view_get_source (view));

  return item != NULL && quire_history_item_get (item)->deleted == 0 ? item : NULL;
}

/* ---- Use This Mode ---- */

/* Its conversation where it is open. */
static QuireConversation *
find_conversation (QuireWindow *self, QuireHistoryItem *item)
{
  GtkApplication *application = gtk_window_get_application (GTK_WINDOW (self));

  for (GList *l = gtk_application_get_windows (application); l != NULL; l = l->next)
    {
      AdwTabView *tabs = QUIRE_IS_WINDOW (l->data) ? QUIRE_WINDOW (l->data)->tab_view : NULL;

      for (int i = 0; tabs != NULL && i < adw_tab_view_get_n_pages (tabs); i++)
        {
          GtkWidget *child = adw_tab_page_get_child (adw_tab_view_get_nth_page (tabs, i));

          if (QUIRE_IS_CHAT_VIEW (child)
              && quire_conversation_get_item (
                     quire_chat_view_get_conversation (QUIRE_CHAT_VIEW (child)))
                     == item)
            return quire_chat_view_get_conversation (QUIRE_CHAT_VIEW (child));
        }
    }
  return NULL;
}

static void
say (QuireCompareView *view, char *text)
{
  quire_compare_view_add_toast (view, quire_toast_new (GTK_WIDGET (view), text));
  g_free (text);
}

typedef struct
{
  QuireWindow *window;    /* borrowed: the popover is in it */
  QuireCompareView *view; /* as well */
  QuireCacheChoice choice;
} Use;

static void
use_mode (GtkWidget *button, Use *use)
{
  QuireHistoryItem *item = find_source (use->window, use->view);
  QuireConversation *conversation = item != NULL ? find_conversation (use->window, item) : NULL;
  g_autoptr (GError) error = NULL;
  gboolean ok = item != NULL;

  if (conversation != NULL)
    ok = quire_conversation_set_cache (conversation, use->choice, &error);
  else if (item != NULL)
    {
      quire_history_item_edit (item)->cache = (int)use->choice;
      quire_history_save (use->window->history, item, NULL, NULL, NULL);
    }
  if (ok)
    say (use->view,
         /* Translators: a chat's title, then a cache mode. */
         g_strdup_printf (_ ("“%s” uses %s from its next turn on"),
                          quire_title_or_new (quire_history_item_get (item)->title),
                          quire_cache_choice_get_title (use->choice)));
  else if (error != NULL)
    say (use->view, g_strdup (quire_words (error->message)));
  gtk_popover_popdown (GTK_POPOVER (gtk_widget_get_ancestor (button, GTK_TYPE_POPOVER)));
}

/* What the change costs is shown before it is made. */
static void
use_cb (QuireWindow *self, int choice, GtkWidget *button, QuireCompareView *view)
{
  QuireHistoryItem *item = find_source (self, view);
  QuireConversation *conversation = item != NULL ? find_conversation (self, item) : NULL;
  GtkWidget *popover, *box, *label, *accept;
  g_autofree char *cost = NULL, *name = NULL;
  Use *use;

  if (item == NULL)
    return;
  if (conversation != NULL)
    cost = quire_cache_format_cost (quire_engine_client_get_plan (self->client),
                                    quire_conversation_get_cache_mode (conversation),
                                    quire_conversation_get_cache (conversation),
                                    (QuireCacheChoice)choice,
                                    quire_conversation_get_n_context (conversation));
  else
    cost = g_strdup (_ ("The chat is closed: it will be read once when it goes on."));
  use = g_new (Use, 1);
  *use = (Use){ self, view, (QuireCacheChoice)choice };
  popover = gtk_popover_new ();
  box = gtk_box_new (GTK_ORIENTATION_VERTICAL, 12);
  label = gtk_label_new (cost);
  gtk_label_set_wrap (GTK_LABEL (label), TRUE);
  gtk_label_set_xalign (GTK_LABEL (label), 0);
  gtk_label_set_max_width_chars (GTK_LABEL (label), 30);
  /* Translators: a cache mode. */
  name = g_strdup_printf (_ ("Use %s"), quire_cache_choice_get_title ((QuireCacheChoice)choice));
  accept = gtk_button_new_with_label (name);
  gtk_widget_add_css_class (accept, "suggested-action");
  g_signal_connect (accept, "clicked", G_CALLBACK (use_mode), use);
  g_object_set_data_full (G_OBJECT (accept), "quire-use", use, g_free);
  gtk_box_append (GTK_BOX (box), label);
  gtk_box_append (GTK_BOX (box), accept);
  gtk_widget_add_css_class (box, "quire-cache-modes");
  gtk_popover_set_child (GTK_POPOVER (popover), box);
  quire_widget_set_label (popover, name);
  gtk_widget_set_parent (popover, button);
  g_signal_connect (popover, "closed", G_CALLBACK (quire_popover_drop), NULL);
  gtk_popover_popup (GTK_POPOVER (popover));
}

/* ---- Tabs ---- */

static AdwTabPage *
page_of (QuireWindow *self, QuireCompareView *view)
{
  return adw_tab_view_get_page (self->tab_view, GTK_WIDGET (view));
}

static void
title_cb (QuireWindow *self, QuireCompareView *view)
{
  adw_tab_page_set_title (page_of (self, view), quire_compare_view_get_title (view));
  quire_sidebar_set_front (self->sidebar, quire_compare_view_get_item (view));
  quire_window_update_title (self);
}

static void
running_cb (QuireWindow *self, QuireCompareView *view)
{
  AdwTabPage *page = page_of (self, view);
  gboolean running = quire_compare_view_is_running (view);

  if (adw_tab_page_get_loading (page) && !running && !adw_tab_page_get_selected (page))
    adw_tab_page_set_needs_attention (page, TRUE);
  adw_tab_page_set_loading (page, running);
  quire_compare_view_set_can_use (view, find_source (self, view) != NULL);
}

void
quire_window_attach_compare (QuireWindow *self, QuireCompareView *view)
{
  g_signal_connect_object (view, "title-changed", G_CALLBACK (title_cb), self, G_CONNECT_SWAPPED);
  g_signal_connect_object (view, "running-changed", G_CALLBACK (running_cb), self,
                           G_CONNECT_SWAPPED);
  g_signal_connect_object (view, "use", G_CALLBACK (use_cb), self, G_CONNECT_SWAPPED);
  running_cb (self, view);
}

void
quire_window_detach_compare (QuireWindow *self, QuireCompareView *view)
{
  g_signal_handlers_disconnect_by_data (view, self);
}

static AdwTabPage *
add_view (QuireWindow *self, GtkWidget *view)
{
  g_autoptr (GIcon) icon = g_themed_icon_new ("quire-compare-symbolic");
  AdwTabPage *page = adw_tab_view_append (self->tab_view, view);

  adw_tab_page_set_title (page, quire_compare_view_get_title (QUIRE_COMPARE_VIEW (view)));
  adw_tab_page_set_icon (page, icon);
  return page;
}

AdwTabPage *
quire_window_add_kept_compare (QuireWindow *self, QuireHistoryItem *item)
{
  return add_view (self, quire_compare_view_new_kept (self->client, self->history, item));
}

static void
compare (QuireWindow *self, QuireChatView *chat, guint reply)
{
  QuireConversation *conversation = quire_chat_view_get_conversation (chat);
  const qe_model_info *model = quire_engine_client_get_status (self->client)->model;
  g_autoptr (GArray) prompt = quire_conversation_dup_prompt_of (conversation, reply);
  QuireCacheChoice present = quire_conversation_get_cache (conversation);
  QuireTurnSettings settings;
  QuireChatSettings own;
  GtkWidget *view;

  if (present == QUIRE_CACHE_AUTO)
    present = quire_conversation_get_cache_mode (conversation) == QE_CACHE_TIERED
                  ? QUIRE_CACHE_TIERED
                  : QUIRE_CACHE_SESSION;

  if (model == NULL)
    return;
  quire_settings_get_turn (model, &settings);
  quire_conversation_get_settings (conversation, &own);
  quire_chat_settings_apply (&own, &settings);
  view = quire_compare_view_new (
      self->client, self->history, prompt, &settings, present,
      quire_conversation_get_title (conversation),
      prompt->len > 0 ? quire_history_item_get (quire_conversation_get_item (conversation))->id
                      : NULL);
  adw_tab_view_set_selected_page (self->tab_view, add_view (self, view));
  gtk_widget_grab_focus (view);
}

static void
compare_action (GSimpleAction *action, GVariant *parameter, gpointer user_data)
{
  QuireWindow *self = user_data;
  QuireChatView *chat = quire_window_get_chat (self);

  if (chat != NULL)
    compare (self, chat, parameter != NULL ? g_variant_get_uint32 (parameter) : 0);
}

void
quire_window_init_compare (QuireWindow *self)
{
  const GActionEntry entries[] = {
    { "compare", compare_action, NULL, NULL, NULL, { 0 } },
    { "compare-reply", compare_action, "u", NULL, NULL, { 0 } },
  };

  g_action_map_add_action_entries (G_ACTION_MAP (self), entries, G_N_ELEMENTS (entries), self);
}
