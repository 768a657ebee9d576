/* quire-thinking.c: see quire-thinking.h. */
#include "app/quire-thinking.h"

#include <string.h>

static const char open_tag[] = "<think>";
static const char close_tag[] = "</think>";

static void
skip_space (const char **text, gsize *n_bytes)
{
  while (*n_bytes > 0 && g_ascii_isspace (**text))
    {
      (*text)++;
      (*n_bytes)--;
    }
}

QuireThinking
quire_thinking_split (const char *text, gsize n_bytes)
{
  QuireThinking parts = { NULL, 0, text, n_bytes, FALSE };
  const char *at = text;
  gsize n = n_bytes;
  const char *end;

  skip_space (&at, &n);
  if (n == 0 || memcmp (at, open_tag, MIN (n, strlen (open_tag))) != 0)
    return parts;
  if (n < strlen (open_tag))
    {
      parts.n_answer = 0;
      parts.open = TRUE;
      return parts;
    }

  at += strlen (open_tag);
  n -= strlen (open_tag);
  end = memmem (at, n, close_tag, strlen (close_tag));
  parts.open = end == NULL;
  parts.answer = end == NULL ? at + n : end + strlen (close_tag);
  parts.n_answer = (gsize)(text + n_bytes - parts.answer);
  skip_space (&parts.answer, &parts.n_answer);

  parts.thinking = at;
  parts.n_thinking = end == NULL ? n : (gsize)(end - at);
  skip_space (&parts.thinking, &parts.n_thinking);
  while (parts.n_thinking > 0 && g_ascii_isspace (parts.thinking[parts.n_thinking - 1]))
    parts.n_thinking--;
  return parts;
}
