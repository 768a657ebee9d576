/* quire-chat-settings-window.h: system prompt and sampling of one chat, and the presets of both. Modal. */
#pragma once
#include <adwaita.h>
#include "app/quire-conversation.h"

G_BEGIN_DECLS

#define QUIRE_TYPE_CHAT_SETTINGS_WINDOW (quire_chat_settings_window_get_type ())
G_DECLARE_FINAL_TYPE (QuireChatSettingsWindow, quire_chat_settings_window, QUIRE,
                      CHAT_SETTINGS_WINDOW, AdwWindow)

/* Nothing changes before Apply, save presets, which are kept at once. */
GtkWindow *quire_chat_settings_window_new (GtkWindow *parent, QuireConversation *conversation);
/* What it says that Apply will cost; "" for nothing. Borrowed. */
const char *quire_chat_settings_window_get_cost (QuireChatSettingsWindow *self);

/* A new chat begins with the default preset, where there is one. */
void quire_conversation_take_default_preset (QuireConversation *conversation);

G_END_DECLS
