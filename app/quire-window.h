/* quire-window.h: the window: list of chats, tabs, cache panel. */
#pragma once
#include <adwaita.h>
#include "app/quire-application.h"
#include "app/quire-chat-view.h"

G_BEGIN_DECLS

#define QUIRE_TYPE_WINDOW (quire_window_get_type ())
G_DECLARE_FINAL_TYPE (QuireWindow, quire_window, QUIRE, WINDOW, AdwApplicationWindow)

/* A window without tabs; the caller adds the first with quire_window_new_chat(). */
QuireWindow *quire_window_new (QuireApplication *application);
QuireChatView *quire_window_new_chat (QuireWindow *self);
/* The chat in front; NULL while there is none. */
QuireChatView *quire_window_get_chat (QuireWindow *self);
AdwTabView *quire_window_get_tab_view (QuireWindow *self);
/* Opens the tabs that were open when the last process ended; a new chat where there were none. */
void quire_window_restore (QuireWindow *self);
/* Lists the chats that hold the words of @query. */
void quire_window_search (QuireWindow *self, const char *query);
/* @found: "ID/SEQ WORDS", see quire_found_to_string(): opens the chat, goes to the message and marks the words in it. */
void quire_window_open_found (QuireWindow *self, const char *found);
/* Its tabs come back at the next start, though another window may outlive it. */
void quire_window_keep_tabs (QuireWindow *self);
/* @item to @file, and back as a new conversation that is opened; a toast says how it went. */
void quire_window_export (QuireWindow *self, QuireHistoryItem *item, gboolean json, GFile *file);
void quire_window_import (QuireWindow *self, GFile *file);
void quire_window_show_model_error (QuireWindow *self, const char *text);

G_END_DECLS
