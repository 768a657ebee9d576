/* quire-notify.h: the desktop's notifications about replies. Main thread only. */
#pragma once
#include "app/quire-conversation.h"

G_BEGIN_DECLS

/* @conversation's last reply ended where nobody looks: says so, with its first words; the notification opens the chat
 * (app.open-chat). Nothing for a reply that the user stopped or that ends with its window. */
void quire_notify_reply (GApplication *application, QuireConversation *conversation);
/* The chat @id is in front of the user, or gone: its notification goes. */
void quire_notify_seen (GApplication *application, const char *id);

G_END_DECLS
