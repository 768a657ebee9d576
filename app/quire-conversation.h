/* quire-conversation.h: one chat: its messages and the reply that runs. No GTK. Main thread only.
 *
 * A GListModel of QuireMessage. It owns an engine session, opened with the first turn. Turns go to that session as "the
 * new message after what is there"; after a lost session or a failed turn the next one sends the whole conversation, of
 * which the engine keeps what it still has. */
#pragma once
#include "app/quire-cache-modes.h"
#include "app/quire-engine-client.h"
#include "app/quire-message.h"

G_BEGIN_DECLS

#define QUIRE_TYPE_CONVERSATION (quire_conversation_get_type ())
G_DECLARE_FINAL_TYPE (QuireConversation, quire_conversation, QUIRE, CONVERSATION, GObject)

/* Properties: title (string, the first words of the first message), running (boolean), cache (int, a QuireCacheChoice).
 * Signal news: call quire_conversation_pump() soon, at most once a frame. */

/* What a turn asks of the model. */
typedef struct
{
  qe_sampling_params sampling;
  guint32 max_tokens;
  qe_thinking thinking;
} QuireTurnSettings;

QuireConversation *quire_conversation_new (QuireEngineClient *client);
QuireEngineClient *quire_conversation_get_client (QuireConversation *self);
const char *quire_conversation_get_title (QuireConversation *self);
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
/* The messages that count, of which the last is the user's: what was asked to get the last reply. Text is borrowed
 * until the conversation changes. Returns: (element-type qe_message) owned, empty before the first turn. */
GArray *quire_conversation_dup_last_prompt (QuireConversation *self);
/* The last reply, or NULL. Borrowed. */
QuireMessage *quire_conversation_get_last_reply (QuireConversation *self);

/* Adds the user's message and an empty reply, and asks the engine. What goes wrong shows as the reply's failure; only
 * refusals leave the conversation as it was: FALSE when a reply runs or no model is ready. */
gboolean quire_conversation_send (QuireConversation *self, const char *text,
                                  const QuireTurnSettings *settings);
/* Replaces the last reply. FALSE as above, or when there is none. */
gboolean quire_conversation_regenerate (QuireConversation *self, const QuireTurnSettings *settings);
void quire_conversation_stop (QuireConversation *self);
/* Takes what the running reply has. */
void quire_conversation_pump (QuireConversation *self);
/* Stops the reply and frees the session. The messages stay. */
void quire_conversation_close (QuireConversation *self);

/* The first words of @text, one line, at most about 40 characters. Returns: owned. */
char *quire_title_from_text (const char *text);

G_END_DECLS
