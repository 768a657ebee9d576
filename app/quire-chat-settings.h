/* quire-chat-settings.h: what a chat has of its own beside its words: sampling, and where its context begins. No GTK.
 *
 * Kept as JSON in QuireStoredChat.sampling and in presets: a value that is missing or out of range is the default. */
#pragma once
#include "engine/qe.h"

G_BEGIN_DECLS

/* What a turn asks of the model. */
typedef struct
{
  qe_sampling_params sampling;
  guint32 max_tokens;
  qe_thinking thinking;
  gboolean auto_title; /* the model may name the conversation after its first reply */
  gint64 asked_us;     /* g_get_monotonic_time() of the key or click; 0: now */
} QuireTurnSettings;

typedef struct
{
  gboolean own_sampling; /* else the Preferences' and the model's */
  qe_sampling_params sampling;
  guint32 max_tokens; /* 0: until the context is full */
  qe_thinking thinking;
  /* Messages up to this number are shown, but the model does not see them; 0: it sees all. */
  guint left_out;
  /* Tokens of the context as it will be, where no session and no receipt tells: worked out when the message n_context_at was
   * the last. 0: not known. */
  guint n_context, n_context_at;
} QuireChatSettings;

void quire_chat_settings_init (QuireChatSettings *settings);
/* NULL: all is the default. Returns: owned. */
char *quire_chat_settings_to_json (const QuireChatSettings *settings);
void quire_chat_settings_from_json (const char *json, QuireChatSettings *out);
/* Overrides what @turn has from the Preferences. */
void quire_chat_settings_apply (const QuireChatSettings *settings, QuireTurnSettings *turn);

G_END_DECLS
