/* quire-title.c: see quire-title.h. */
#include "app/quire-title.h"

#include <string.h>

char *
quire_title_from_text (const char *text)
{
  enum
  {
    TITLE_CHARS_MAX = 40
  };
  g_autofree char *valid = g_utf8_make_valid (text, -1);
  GString *title = g_string_new (NULL);
  gboolean space = FALSE;
  guint n = 0;

  for (const char *p = valid; *p != '\0'; p = g_utf8_next_char (p))
    {
      gunichar c = g_utf8_get_char (p);

      if (g_unichar_isspace (c) || g_unichar_iscntrl (c))
        {
          space = title->len > 0;
          continue;
        }
      if (n >= TITLE_CHARS_MAX || (space && n >= TITLE_CHARS_MAX - 10))
        {
          g_string_append (title, "…");
          break;
        }
      if (space)
        {
          g_string_append_c (title, ' ');
          n++;
          space = FALSE;
        }
      g_string_append_unichar (title, c);
      n++;
    }

  return g_string_free (title, FALSE);
}

const char *
quire_title_question (void)
{
  return "Write a title for this chat, in the language of the chat: two to six words, nothing "
         "else. "
         "No quotes, no full stop.";
}

/* ---- What a model proposes ---- */

/* Longer is a sentence. Scripts without spaces have no words to count. */
#define TITLE_CHARS_MAX 60
#define TITLE_WORDS_MAX 9
#define WORD_REPEATS_MAX 2
/* Shorter words are in every text. */
#define WORD_CHARS_MIN 4

/* Pairs and marks that models put around a title. */
static gboolean
is_wrapping (gunichar c)
{
  static const gunichar marks[]
      = { '"',  '\'', '*',    '_',    '#',    '`',    0x201c, 0x201d, 0x201e, 0x2018, 0x2019,
          0xab, 0xbb, 0x300c, 0x300d, 0x300a, 0x300b, '.',    0x3002, ':',    0xff1a, '-' };

  if (g_unichar_isspace (c))
    return TRUE;
  for (gsize i = 0; i < G_N_ELEMENTS (marks); i++)
    if (c == marks[i])
      return TRUE;
  return FALSE;
}

static char *
unwrap (const char *text)
{
  const char *begin = text, *end = text + strlen (text);

  while (*begin != '\0' && is_wrapping (g_utf8_get_char (begin)))
    begin = g_utf8_next_char (begin);
  while (end > begin)
    {
      const char *last = g_utf8_prev_char (end);

      if (!is_wrapping (g_utf8_get_char (last)))
        break;
      end = last;
    }
  return g_strndup (begin, (gsize)(end - begin));
}

static gboolean
has_label (const char *text, const char *label)
{
  return g_ascii_strncasecmp (text, label, strlen (label)) == 0;
}

/* Words in lower case: runs of letters and digits. Returns: (element-type utf8) owned. */
static GPtrArray *
split_words (const char *text)
{
  g_autofree char *folded = g_utf8_casefold (text, -1);
  GPtrArray *words = g_ptr_array_new_with_free_func (g_free);
  const char *begin = NULL;

  for (const char *p = folded;; p = g_utf8_next_char (p))
    {
      gboolean inside = *p != '\0' && g_unichar_isalnum (g_utf8_get_char (p));

      if (inside && begin == NULL)
        begin = p;
      else if (!inside && begin != NULL)
        {
          g_ptr_array_add (words, g_strndup (begin, (gsize)(p - begin)));
          begin = NULL;
        }
      if (*p == '\0')
        return words;
    }
}

static gboolean
repeats_itself (GPtrArray *words)
{
  for (guint i = 0; i < words->len; i++)
    {
      guint n = 0;

      for (guint k = 0; k < words->len; k++)
        n += strcmp (g_ptr_array_index (words, i), g_ptr_array_index (words, k)) == 0;
      if (n > WORD_REPEATS_MAX)
        return TRUE;
    }
  return FALSE;
}

/* Whether a word of some length, or two neighbouring letters of a script without spaces, is in the conversation. */
static gboolean
is_about (GPtrArray *words, const char *conversation)
{
  g_autofree char *folded = g_utf8_casefold (conversation, -1);

  for (guint i = 0; i < words->len; i++)
    {
      const char *word = g_ptr_array_index (words, i);
      glong n = g_utf8_strlen (word, -1);

      if (g_unichar_iswide (g_utf8_get_char (word)))
        for (glong k = 0; k + 1 < n; k++)
          {
            g_autofree char *pair = g_utf8_substring (word, k, k + 2);

            if (strstr (folded, pair) != NULL)
              return TRUE;
          }
      else if (n >= WORD_CHARS_MIN && strstr (folded, word) != NULL)
        return TRUE;
    }
  return FALSE;
}

char *
quire_title_from_reply (const char *reply, const char *conversation)
{
  static const char *const labels[]
      = { "title:", "chat title:", "titel:", "\xe6\xa0\x87\xe9\xa2\x98" };
  g_autofree char *valid = g_utf8_make_valid (reply, -1);
  g_autofree char *about = g_utf8_make_valid (conversation, -1);
  g_autofree char *title = unwrap (valid);
  g_autoptr (GPtrArray) words = NULL;

  for (gsize i = 0; i < G_N_ELEMENTS (labels); i++)
    if (has_label (title, labels[i]))
      {
        char *rest = unwrap (title + strlen (labels[i]));

        g_free (title);
        title = rest;
        break;
      }
  for (const char *p = title; *p != '\0'; p = g_utf8_next_char (p))
    {
      gunichar c = g_utf8_get_char (p);

      if (g_unichar_iscntrl (c) || strchr ("?!<>{}", (int)MIN (c, 0x7f)) != NULL || c == 0xff1f
          || c == 0xff01)
        return NULL;
    }
  words = split_words (title);
  if (words->len == 0 || words->len > TITLE_WORDS_MAX || g_utf8_strlen (title, -1) > TITLE_CHARS_MAX
      || repeats_itself (words) || !is_about (words, about))
    return NULL;
  return g_steal_pointer (&title);
}
