/* quire-find-text.c: see quire-find-text.h. */
#include "app/quire-find-text.h"

#include <pango/pango.h>

#include "app/quire-attachment.h"
#include "app/quire-markdown.h"
#include "app/quire-thinking.h"

/* What a message shows: texts that a place is within, each after a character that no needle has. */
typedef struct
{
  gsize n_bytes; /* of the message then: a reply grows */
  gunichar *text;
  glong n;
} Shown;

struct _QuireFindText
{
  GHashTable *shown; /* (QuireMessage -> Shown), both owned */
};

gunichar *
quire_find_fold (const char *text, glong *n)
{
  gunichar *folded = g_utf8_to_ucs4_fast (text, -1, n);

  for (glong i = 0; i < *n; i++)
    folded[i] = g_unichar_tolower (folded[i]);
  return folded;
}

glong
quire_find_next (const gunichar *text, glong n_text, glong from, const gunichar *needle,
                 glong n_needle)
{
  for (glong i = from; i + n_needle <= n_text; i++)
    {
      glong k = 0;

      while (k < n_needle && text[i + k] == needle[k])
        k++;
      if (k == n_needle)
        return i;
    }
  return -1;
}

/* Texts are put after one another with this between them. */
#define BETWEEN "\n\x01\n"

static void
add_text (GString *all, const char *text)
{
  g_string_append (all, text);
  g_string_append (all, BETWEEN);
}

static void
add_markup (GString *all, const char *markup)
{
  g_autofree char *text = NULL;

  if (pango_parse_markup (markup, -1, 0, NULL, &text, NULL, NULL))
    add_text (all, text);
}

static void
add_reply (GString *all, const char *text, gsize n_bytes)
{
  QuireThinking parts = quire_thinking_split (text, n_bytes);
  g_autoptr (GPtrArray) blocks = quire_markdown_parse (parts.answer, parts.n_answer);

  for (guint i = 0; i < blocks->len; i++)
    {
      const QuireBlock *block = g_ptr_array_index (blocks, i);

      if (block->kind == QUIRE_BLOCK_CODE)
        add_text (all, block->text);
      else if (block->kind == QUIRE_BLOCK_TABLE)
        for (guint k = 0; k < block->cells->len; k++)
          add_markup (all, g_ptr_array_index (block->cells, k));
      else if (block->markup != NULL)
        add_markup (all, block->markup);
    }
}

static void
add_user (GString *all, const char *whole, gsize n_whole)
{
  const char *text;
  gsize n_bytes;
  g_autoptr (GPtrArray) files = quire_attachments_split (whole, n_whole, &text, &n_bytes);
  g_autofree char *valid = quire_text_make_valid (text, n_bytes);

  add_text (all, valid);
}

static const Shown *
get_shown (QuireFindText *self, QuireMessage *message)
{
  gsize n_bytes;
  const char *text = quire_message_get_text (message, &n_bytes);
  Shown *shown = g_hash_table_lookup (self->shown, message);
  g_autoptr (GString) all = NULL;

  if (shown != NULL && shown->n_bytes == n_bytes)
    return shown;
  all = g_string_new (NULL);
  if (quire_message_get_role (message) == QE_ROLE_USER)
    add_user (all, text, n_bytes);
  else
    add_reply (all, text, n_bytes);
  shown = g_new0 (Shown, 1);
  shown->n_bytes = n_bytes;
  shown->text = quire_find_fold (all->str, &shown->n);
  g_hash_table_insert (self->shown, g_object_ref (message), shown);
  return shown;
}

guint
quire_find_text_count (QuireFindText *self, QuireMessage *message, const gunichar *needle, glong n)
{
  const Shown *shown = get_shown (self, message);
  guint count = 0;

  g_return_val_if_fail (n > 0, 0);
  for (glong at = quire_find_next (shown->text, shown->n, 0, needle, n); at >= 0;
       at = quire_find_next (shown->text, shown->n, at + n, needle, n))
    count++;
  return count;
}

static void
shown_free (gpointer data)
{
  Shown *shown = data;

  g_free (shown->text);
  g_free (shown);
}

QuireFindText *
quire_find_text_new (void)
{
  QuireFindText *self = g_new0 (QuireFindText, 1);

  self->shown = g_hash_table_new_full (NULL, NULL, g_object_unref, shown_free);
  return self;
}

void
quire_find_text_free (QuireFindText *self)
{
  if (self == NULL)
    return;
  g_hash_table_unref (self->shown);
  g_free (self);
}
