/* quire-title.h: titles of conversations: the first words, and what a model proposes. No GTK; any thread. */
#pragma once
#include <glib.h>

G_BEGIN_DECLS

#define QUIRE_TITLE_TOKENS_MAX 24

/* The first words of @text, one line, at most about 40 characters. Returns: owned. */
char *quire_title_from_text (const char *text);

/* What a model is asked for a title. Not translated: it is the model's, which answers in the chat's language. */
const char *quire_title_question (void);
/* The title in @reply, without quotes, marks and a label before it. NULL when it is none: empty, of several lines, too long,
 * a question or an exclamation, with a word three times, or with no word of @conversation, which small models' are. Returns:
 * owned. */
char *quire_title_from_reply (const char *reply, const char *conversation);

G_END_DECLS
