/* quire-window-private.h: what the files of the window share: quire-window.c (layout, panel, actions) and
 * quire-window-chats.c (tabs and the conversations in them). */
#pragma once
#include "app/quire-cache-panel.h"
#include "app/quire-compare-view.h"
#include "app/quire-engine-bar.h"
#include "app/quire-sidebar.h"
#include "app/quire-window.h"

G_BEGIN_DECLS

struct _QuireWindow
{
  AdwApplicationWindow parent_instance;

  QuireEngineClient *client;
  QuireHistory *history;
  GSettings *settings;
  AdwBin *content;
  AdwFlap *sidebar_flap, *panel_flap;
  AdwTabView *tab_view;
  AdwTabBar *tab_bar;
  AdwWindowTitle *title;
  QuireSidebar *sidebar;
  GtkInfoBar *history_bar;
  GtkLabel *history_label;
  QuireCachePanel *panel;
  QuireEngineBar *engine_bar;
  GtkWidget *panel_button;
  GMenuModel *primary_menu, *chat_menu;

  GQueue parked; /* (element-type QuireConversation) newest first */
  guint layout_id, tabs_id;
  gboolean restoring; /* tabs are being added: none is in front yet */
  gboolean keep_tabs; /* it closes, and its tabs come back at the next start */
  int width;
  gboolean sidebar_docked, panel_docked;
  gboolean applying;
  gboolean menu_extended; /* the chat menu holds the primary menu, as the sidebar is not there */
  gulong layout_handler;
};

void quire_window_update_title (QuireWindow *self);
/* The chat in front is before the user's eyes, where the window is: its notification goes. */
void quire_window_update_seen (QuireWindow *self);
/* Connects tabs, sidebar and history; adds the actions win.chat-*. */
void quire_window_init_chats (QuireWindow *self);
void quire_window_connect_chats (QuireWindow *self);
/* Adds the actions for files. */
void quire_window_init_files (QuireWindow *self);
/* Adds the actions that move between the window's parts. */
void quire_window_init_panes (QuireWindow *self);
/* Escape, which nobody took: closes one thing that is open, in the order find bar, overlay, or stops the reply. */
gboolean quire_window_escape (QuireWindow *self);
/* Comparisons: quire-window-compare.c. */
void quire_window_init_compare (QuireWindow *self);
QuireCompareView *quire_window_get_compare (QuireWindow *self); /* in front; NULL: a chat is */
void quire_window_attach_compare (QuireWindow *self, QuireCompareView *view);
void quire_window_detach_compare (QuireWindow *self, QuireCompareView *view);
AdwTabPage *quire_window_add_kept_compare (QuireWindow *self, QuireHistoryItem *item);
/* The bars above the transcript: quire-window-bars.c. */
void quire_window_connect_bars (QuireWindow *self);
void quire_window_update_bars (QuireWindow *self);
/* Where an overlay sidebar has done its work. */
void quire_window_leave_sidebar (QuireWindow *self);
/* Stops the replies and writes drafts and tabs down, as the window closes. */
void quire_window_close_chats (QuireWindow *self);

G_END_DECLS
