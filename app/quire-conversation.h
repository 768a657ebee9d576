/* quire-conversation.h: one chat: its messages and the reply that runs. No GTK. Main thread only.
 *
 * A GListModel of QuireMessage: the branch that is shown. Behind it is a tree: editing a message, asking again and going
 * on with a reply add a version beside the old one, which stays. It owns an engine session, opened with the first turn.
 * Turns go to that session as "the new message after what is there"; after a lost session, a failed turn or a change of
 * branch the next one sends the whole conversation, of which the engine keeps what it still has.
 *
 * With a history every change is saved: the user's message before the engine is asked, the reply at least once a second
 * and at its end. */
#pragma once
#include "app/quire-cache-modes.h"
#include "app/quire-chat-settings.h"
#include "app/quire-engine-client.h"
#include "app/quire-history.h"
#include "app/quire-message.h"

G_BEGIN_DECLS

#define QUIRE_TYPE_CONVERSATION (quire_conversation_get_type ())
G_DECLARE_FINAL_TYPE (QuireConversation, quire_conversation, QUIRE, CONVERSATION, GObject)

/* Properties: title (string), running (boolean: a reply is being saved, asked for or written), cache (int, a
 * QuireCacheChoice), loaded (boolean: its messages are there).
 * Signals: news: call quire_conversation_pump() soon, at most once a frame; settings-changed: the system prompt, sampling or
 * what is left out. */

QuireConversation *quire_conversation_new (QuireEngineClient *client);
/* Kept in @history, of which @item (NULL: a new one) is this conversation's place. What is stored is read by
 * quire_conversation_load(). */
QuireConversation *quire_conversation_new_kept (QuireEngineClient *client, QuireHistory *history,
                                                QuireHistoryItem *item);
/* Reads its messages, once. Until then it has none and cannot be sent to. */
void quire_conversation_load (QuireConversation *self);
gboolean quire_conversation_is_loaded (QuireConversation *self);
/* It came to the front: opens its session, so that what the disk tier has of it is read. */
void quire_conversation_warm (QuireConversation *self);
QuireEngineClient *quire_conversation_get_client (QuireConversation *self);
QuireHistory *quire_conversation_get_history (QuireConversation *self); /* NULL: it is not kept */
QuireHistoryItem *quire_conversation_get_item (QuireConversation *self);
const char *quire_conversation_get_title (QuireConversation *self);
/* FALSE when a title of a higher source is there. */
gboolean quire_conversation_set_title (QuireConversation *self, const char *title,
                                       QuireTitleSource source);
/* What is written but not sent. Saved with the item. */
void quire_conversation_set_draft (QuireConversation *self, const char *draft);
/* "" or NULL for none. The next turn sends the whole conversation. */
void quire_conversation_set_system (QuireConversation *self, const char *system);
const char *quire_conversation_get_system (QuireConversation *self); /* NULL: none */
void quire_conversation_get_settings (QuireConversation *self, QuireChatSettings *out);
/* Its sampling, from the next turn on. What is left out stays as it is. */
void quire_conversation_set_settings (QuireConversation *self, const QuireChatSettings *settings);

/* A turn of the branch that is shown, of those that the model sees. */
typedef struct
{
  QuireMessage *user, *reply; /* borrowed */
} QuireTurn;
/* Oldest first. Returns: (element-type QuireTurn) owned. */
GArray *quire_conversation_dup_turns (QuireConversation *self);
/* The model does not see the first @n of these turns any more (0: it sees all of the chat again); they stay in the transcript.
 * @n_context: tokens of what it then sees, 0 when not known. The next turn reads that again. FALSE when a reply runs. */
gboolean quire_conversation_leave_out (QuireConversation *self, guint n, guint n_context);
/* The number of the last message that is left out, 0 for none. */
guint quire_conversation_get_left_out (QuireConversation *self);
/* The session has exactly what the model is to see: a question may be asked on a fork of it. */
gboolean quire_conversation_is_in_step (QuireConversation *self);
qe_session_id quire_conversation_get_session (QuireConversation *self);
gboolean quire_conversation_is_running (QuireConversation *self);
/* The cache mode. Setting it while a reply runs is refused; what the engine refuses leaves the mode as it was. */
QuireCacheChoice quire_conversation_get_cache (QuireConversation *self);
gboolean quire_conversation_set_cache (QuireConversation *self, QuireCacheChoice choice,
                                       GError **error);
/* The mode in force: the session's, or what the choice will come to. */
qe_cache_mode quire_conversation_get_cache_mode (QuireConversation *self);
/* Tokens of its session, 0 before the first turn. */
guint quire_conversation_get_n_tokens (QuireConversation *self);
/* The message that token @token of the session is of; NULL where that is not known, as after turns were left out. Borrowed. */
QuireMessage *quire_conversation_find_token (QuireConversation *self, guint token);
/* Tokens of context that it takes: its session's, or, while that has none, those that its last reply ended with. */
guint quire_conversation_get_n_context (QuireConversation *self);
/* The messages that count, of which the last is the user's: what was asked to get the last reply. Text is borrowed
 * until the conversation changes. Returns: (element-type qe_message) owned, empty before the first turn. */
GArray *quire_conversation_dup_last_prompt (QuireConversation *self);
/* The same of the reply with number @seq on the branch that is shown; 0: the last one's. */
GArray *quire_conversation_dup_prompt_of (QuireConversation *self, guint seq);
/* The last reply, or NULL. Borrowed. */
QuireMessage *quire_conversation_get_last_reply (QuireConversation *self);

/* Adds the user's message and an empty reply, and asks the engine. What goes wrong shows as the reply's failure; only
 * refusals leave the conversation as it was: FALSE when a reply runs or no model is ready. */
gboolean quire_conversation_send (QuireConversation *self, const char *text,
                                  const QuireTurnSettings *settings);
/* Another version of the last reply. FALSE as above, or when there is none. */
gboolean quire_conversation_regenerate (QuireConversation *self, const QuireTurnSettings *settings);
/* Another version of the last reply that begins with its text and goes on. FALSE as above, or when it is complete. */
gboolean quire_conversation_continue (QuireConversation *self, const QuireTurnSettings *settings);
/* Another version of @message, the user's, and a reply to it. FALSE as above. */
gboolean quire_conversation_edit (QuireConversation *self, QuireMessage *message, const char *text,
                                  const QuireTurnSettings *settings);
/* Shows the version of @message @by further, and what followed it. FALSE when there is none, or a reply runs. */
gboolean quire_conversation_flip (QuireConversation *self, QuireMessage *message, int by);
void quire_conversation_stop (QuireConversation *self);
/* Takes what the running reply has. */
void quire_conversation_pump (QuireConversation *self);
/* Stops the reply and frees the session. The messages stay. */
void quire_conversation_close (QuireConversation *self);
/* As above, where the user did not ask for the end of the reply: it is an interrupted one. */
void quire_conversation_interrupt (QuireConversation *self);

/* "Qwen3 4B" facts that tell one model from another: not a hash of its weights. Returns: owned. */
char *quire_model_dup_digest (const qe_model_info *model);

G_END_DECLS
