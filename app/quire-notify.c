/* quire-notify.c: see quire-notify.h. A chat has one notification, of its newest reply: its id is the chat's. */
#include "app/quire-notify.h"

#include <glib/gi18n.h>
#include <string.h>

#include "app/quire-history-find.h"
#include "app/quire-thinking.h"

#define WORDS_CHARS_MAX 160

/* What the model thought is not what it said. */
static char *
dup_first_words (QuireMessage *reply)
{
  gsize n_bytes;
  const char *text = quire_message_get_text (reply, &n_bytes);
  g_autofree char *copy = NULL;
  QuireThinking thinking = quire_thinking_split (text, n_bytes);

  copy = g_strndup (thinking.answer, thinking.n_answer);
  return quire_excerpt (copy, "", WORDS_CHARS_MAX);
}

void
quire_notify_reply (GApplication *application, QuireConversation *conversation)
{
  QuireMessage *reply = quire_conversation_get_last_reply (conversation);
  const char *title = quire_conversation_get_title (conversation);
  const char *id = quire_history_item_get (quire_conversation_get_item (conversation))->id;
  g_autoptr (GNotification) notification = NULL;
  g_autoptr (GIcon) icon = NULL;
  g_autofree char *words = NULL;

  if (reply == NULL)
    return;
  switch (quire_message_get_state (reply))
    {
    case QUIRE_REPLY_DONE:
    case QUIRE_REPLY_LENGTH:
    case QUIRE_REPLY_CONTEXT:
      words = dup_first_words (reply);
      break;
    case QUIRE_REPLY_FAILED:
      words = g_strdup (_ ("The reply failed."));
      break;
    default:
      return;
    }
  notification = g_notification_new (title != NULL && title[0] != '\0' ? title : _ ("New Chat"));
  g_notification_set_body (notification, words);
  icon = g_themed_icon_new (QUIRE_APP_ID);
  g_notification_set_icon (notification, icon);
  g_notification_set_default_action_and_target (notification, "app.open-chat", "s", id);
  g_application_send_notification (application, id, notification);
}

void
quire_notify_seen (GApplication *application, const char *id)
{
  if (g_application_get_is_registered (application))
    g_application_withdraw_notification (application, id);
}
