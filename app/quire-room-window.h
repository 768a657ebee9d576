/* quire-room-window.h: the context is full: what can be done, and what each costs. Modal; the user chooses or goes. */
#pragma once
#include <adwaita.h>
#include "app/quire-room.h"

G_BEGIN_DECLS

#define QUIRE_TYPE_ROOM_WINDOW (quire_room_window_get_type ())
G_DECLARE_FINAL_TYPE (QuireRoomWindow, quire_room_window, QUIRE, ROOM_WINDOW, AdwWindow)

/* @draft: what the composer has. Signals:
 *   continued (QuireHistoryItem, GPtrArray)   a new chat with a summary; its messages (borrowed) are not saved yet */
GtkWindow *quire_room_window_new (GtkWindow *parent, QuireConversation *conversation,
                                  const char *draft);

G_END_DECLS
