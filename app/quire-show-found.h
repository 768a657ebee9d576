/* quire-show-found.h: goes to the message of a chat that a search found, and marks its words. Main thread. */
#pragma once
#include "app/quire-chat-view.h"

G_BEGIN_DECLS

/* Once the chat's messages are there and have their places. @seq: a message. @words: what was searched for. A message that
 * is not in the branch in sight is not gone to. Another call for the same view takes the place of one that waits. */
void quire_show_found (QuireChatView *view, guint seq, const char *words);

G_END_DECLS
