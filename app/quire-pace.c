/* quire-pace.c: see quire-pace.h. */
#include "app/quire-pace.h"

#include <string.h>

gsize
quire_pace_step (QuirePace *pace, const char *text, gsize n_bytes, gint64 now_us, gint64 frame_us)
{
  gint64 elapsed;
  gsize n;

  if (n_bytes <= pace->n_shown + QUIRE_PACE_BYTES_MIN && pace->begin_us == 0)
    {
      pace->n_shown = n_bytes;
      return n_bytes;
    }
  if (pace->begin_us == 0)
    {
      pace->begin_us = now_us;
      pace->from = pace->n_shown;
    }
  /* What is shown now is seen until the next frame. */
  elapsed = now_us - pace->begin_us + frame_us;
  if (elapsed >= QUIRE_PACE_US || n_bytes <= pace->from)
    {
      pace->begin_us = 0;
      pace->n_shown = n_bytes;
      return n_bytes;
    }
  n = pace->from + (gsize)((double)(n_bytes - pace->from) * (double)elapsed / QUIRE_PACE_US);
  n = MAX (n, pace->n_shown);
  while (n < n_bytes && ((guchar)text[n] & 0xc0) == 0x80)
    n++;
  pace->n_shown = n;
  if (n == n_bytes)
    pace->begin_us = 0;
  return n;
}

/* ---- Sentences ---- */

static gboolean
ends_sentence (gunichar c)
{
  return c == '.' || c == '!' || c == '?' || c == ':' || c == 0x2026 || c == 0x061f || c == 0x06d4;
}

/* No space follows these. */
static gboolean
ends_wide_sentence (gunichar c)
{
  return c == 0x3002 || c == 0xff01 || c == 0xff1f || c == 0xff0e;
}

gsize
quire_sentences_end (const char *text, gsize n_bytes, gsize from, gboolean end)
{
  gsize last = from;
  gunichar before = 0;
  gboolean word = FALSE;

  for (const char *p = text + from; p < text + n_bytes;)
    {
      gunichar c = g_utf8_get_char_validated (p, text + n_bytes - p);
      gsize n = c == (gunichar)-1 || c == (gunichar)-2 ? 1 : (gsize)(g_utf8_next_char (p) - p);
      gsize at = (gsize)(p - text) + n;

      if (word && (c == '\n' || ends_wide_sentence (c) || (c == ' ' && ends_sentence (before))))
        {
          last = at;
          word = FALSE;
        }
      else if (g_unichar_isalnum (c))
        word = TRUE;
      /* A quotation mark or a bracket behind the full stop belongs to it. */
      if (c != '"' && c != '\'' && c != ')' && c != 0x201d && c != '*' && c != '_')
        before = c;
      p += n;
    }
  return end && word ? n_bytes : last;
}

char *
quire_sentences_plain (const char *text, gsize from, gsize to)
{
  GString *out = g_string_new (NULL);
  gboolean in_code = FALSE;

  /* Whether a fence is open at @from. */
  for (gsize i = 0; i + 3 <= from; i++)
    if ((i == 0 || text[i - 1] == '\n') && memcmp (text + i, "```", 3) == 0)
      in_code = !in_code;
  for (gsize i = from; i < to; i++)
    {
      gboolean line_start = i == 0 || text[i - 1] == '\n';

      if (line_start && to - i >= 3 && memcmp (text + i, "```", 3) == 0)
        {
          in_code = !in_code;
          while (i < to && text[i] != '\n')
            i++;
          continue;
        }
      if (in_code || strchr ("*`#|_>", text[i] == '\0' ? ' ' : text[i]) != NULL)
        continue;
      if (g_ascii_isspace (text[i]) || text[i] == '\0')
        {
          if (out->len > 0 && out->str[out->len - 1] != ' ')
            g_string_append_c (out, ' ');
        }
      else
        g_string_append_c (out, text[i]);
    }
  g_string_truncate (out, out->len > 0 && out->str[out->len - 1] == ' ' ? out->len - 1 : out->len);
  return g_string_free (out, FALSE);
}
