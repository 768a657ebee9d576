/* quire-window-panes.c: the window's parts by key: F6 goes round through them, Escape closes what lies above. */
#include "app/quire-window-private.h"

enum
{
  PANE_SIDEBAR,
  PANE_TRANSCRIPT,
  PANE_COMPOSER,
  PANE_PANEL,
  N_PANES
};

static GtkWidget *
get_pane (QuireWindow *self, guint pane)
{
  QuireChatView *chat = quire_window_get_chat (self);

  switch (pane)
    {
    case PANE_SIDEBAR:
      return adw_flap_get_reveal_flap (self->sidebar_flap) ? GTK_WIDGET (self->sidebar) : NULL;
    case PANE_TRANSCRIPT:
      return chat != NULL ? quire_chat_view_get_transcript (chat) : NULL;
    case PANE_COMPOSER:
      return chat != NULL ? GTK_WIDGET (quire_chat_view_get_composer (chat)) : NULL;
    case PANE_PANEL:
      return adw_flap_get_reveal_flap (self->panel_flap) ? GTK_WIDGET (self->panel) : NULL;
    default:
      return NULL;
    }
}

static gboolean
focus_pane (QuireWindow *self, guint pane)
{
  GtkWidget *widget = get_pane (self, pane);
  QuireChatView *chat = quire_window_get_chat (self);

  if (widget == NULL || !gtk_widget_get_mapped (widget))
    return FALSE;
  switch (pane)
    {
    case PANE_SIDEBAR:
      quire_sidebar_focus_search (self->sidebar);
      return TRUE;
    case PANE_COMPOSER:
      quire_composer_grab_focus (quire_chat_view_get_composer (chat));
      return TRUE;
    case PANE_TRANSCRIPT:
      return quire_chat_view_focus_transcript (chat);
    default:
      return gtk_widget_child_focus (widget, GTK_DIR_TAB_FORWARD);
    }
}

static void
step_pane (QuireWindow *self, guint by)
{
  GtkWidget *focus = gtk_window_get_focus (GTK_WINDOW (self));
  guint at = PANE_COMPOSER;

  for (guint i = 0; focus != NULL && i < N_PANES; i++)
    {
      GtkWidget *widget = get_pane (self, i);

      if (widget != NULL && (focus == widget || gtk_widget_is_ancestor (focus, widget)))
        at = i;
    }
  for (guint i = 1; i < N_PANES; i++)
    if (focus_pane (self, (at + i * by) % N_PANES))
      return;
}

static void
next_pane_action (GSimpleAction *action, GVariant *parameter, gpointer user_data)
{
  step_pane (user_data, 1);
}

static void
previous_pane_action (GSimpleAction *action, GVariant *parameter, gpointer user_data)
{
  step_pane (user_data, N_PANES - 1);
}

gboolean
quire_window_escape (QuireWindow *self)
{
  QuireChatView *chat = quire_window_get_chat (self);

  if (chat != NULL && quire_composer_is_composing (quire_chat_view_get_composer (chat)))
    return GDK_EVENT_PROPAGATE;
  if (chat != NULL && quire_chat_view_close_find (chat))
    return GDK_EVENT_STOP;
  if (!self->panel_docked && adw_flap_get_reveal_flap (self->panel_flap))
    {
      adw_flap_set_reveal_flap (self->panel_flap, FALSE);
      return GDK_EVENT_STOP;
    }
  if (!self->sidebar_docked && adw_flap_get_reveal_flap (self->sidebar_flap))
    {
      adw_flap_set_reveal_flap (self->sidebar_flap, FALSE);
      return GDK_EVENT_STOP;
    }
  if (quire_window_get_compare (self) != NULL
      && quire_compare_view_is_running (quire_window_get_compare (self)))
    {
      quire_compare_view_stop (quire_window_get_compare (self));
      return GDK_EVENT_STOP;
    }
  if (chat == NULL || !quire_conversation_is_running (quire_chat_view_get_conversation (chat)))
    return GDK_EVENT_PROPAGATE;
  quire_conversation_stop (quire_chat_view_get_conversation (chat));
  return GDK_EVENT_STOP;
}

void
quire_window_init_panes (QuireWindow *self)
{
  const GActionEntry entries[] = {
    { "next-pane", next_pane_action, NULL, NULL, NULL, { 0 } },
    { "previous-pane", previous_pane_action, NULL, NULL, NULL, { 0 } },
  };

  g_action_map_add_action_entries (G_ACTION_MAP (self), entries, G_N_ELEMENTS (entries), self);
}
