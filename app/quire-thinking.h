/* quire-thinking.h: finds the thinking part of a reply. No GTK. */
#pragma once
#include <glib.h>

G_BEGIN_DECLS

/* Borrowed parts of a reply's text: <think>THINKING</think>ANSWER. Without the tags all is answer. */
typedef struct
{
  const char *thinking;
  gsize n_thinking; /* 0: none, or only white space */
  const char *answer;
  gsize n_answer;
  gboolean open; /* the closing tag has not come yet */
} QuireThinking;

/* A reply that so far is a beginning of "<think>" has neither part. */
QuireThinking quire_thinking_split (const char *text, gsize n_bytes);

G_END_DECLS
