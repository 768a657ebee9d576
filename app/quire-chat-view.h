/* quire-chat-view.h: one chat in a tab: transcript, jump button, composer. */
#pragma once
#include <adwaita.h>
#include "app/quire-announcer.h"
#include "app/quire-composer.h"
#include "app/quire-conversation.h"
#include "app/quire-find-bar.h"
#include "app/quire-model-bar.h"

G_BEGIN_DECLS

#define QUIRE_TYPE_CHAT_VIEW (quire_chat_view_get_type ())
G_DECLARE_FINAL_TYPE (QuireChatView, quire_chat_view, QUIRE, CHAT_VIEW, GtkBox)

/* Action group "chat": regenerate, stop, copy-reply, suggest (string). */
GtkWidget *quire_chat_view_new (QuireConversation *conversation);
QuireConversation *quire_chat_view_get_conversation (QuireChatView *self);
QuireComposer *quire_chat_view_get_composer (QuireChatView *self);
/* The group "chat", for the window's menus and keys. Borrowed. */
GActionGroup *quire_chat_view_get_actions (QuireChatView *self);
/* Its vertical scrolling, for tests. */
GtkAdjustment *quire_chat_view_get_adjustment (QuireChatView *self);
QuireFindBar *quire_chat_view_get_find_bar (QuireChatView *self);
QuireModelBar *quire_chat_view_get_model_bar (QuireChatView *self);
/* Messages have no row until the user comes near them: afterwards that with number @seq has one, if it is there. */
void quire_chat_view_make_row (QuireChatView *self, guint seq);
/* Scrolls to the beginning of message @seq, and shows for a moment which it is. */
void quire_chat_view_show_message (QuireChatView *self, guint seq);
/* FALSE when it was closed already. */
gboolean quire_chat_view_close_find (QuireChatView *self);
/* What scrolls the messages. Borrowed. */
GtkWidget *quire_chat_view_get_transcript (QuireChatView *self);
/* To the last message. FALSE when there is nothing to focus. */
gboolean quire_chat_view_focus_transcript (QuireChatView *self);
QuireAnnouncer *quire_chat_view_get_announcer (QuireChatView *self);
/* Messages that have a row so far: the last ones. For tests. */
guint quire_chat_view_get_n_rows (QuireChatView *self);
void quire_chat_view_add_toast (QuireChatView *self, AdwToast *toast);
/* Writes the draft down now; else it is done a second after the last key. */
void quire_chat_view_save_draft (QuireChatView *self);
/* No message and no draft. */
gboolean quire_chat_view_is_untouched (QuireChatView *self);
void quire_chat_view_send (QuireChatView *self, const char *text);

G_END_DECLS
