/* quire-find-text.h: words in what messages show, from their text alone: none of them needs a row. Main thread. */
#pragma once
#include "app/quire-message.h"

G_BEGIN_DECLS

typedef struct _QuireFindText QuireFindText;

QuireFindText *quire_find_text_new (void);
void quire_find_text_free (QuireFindText *self);
G_DEFINE_AUTOPTR_CLEANUP_FUNC (QuireFindText, quire_find_text_free)
/* Places of @needle, @n characters that are folded, in what a row of @message would show: bubbles, paragraphs, code and cells, but
 * neither thoughts nor figures. What was made of the text is kept for the next time. */
guint quire_find_text_count (QuireFindText *self, QuireMessage *message, const gunichar *needle,
                             glong n);

/* Upper and lower case alike. @n: characters. Returns: owned. */
gunichar *quire_find_fold (const char *text, glong *n);
/* Where @needle is in @text first, from @from on; -1: nowhere. */
glong quire_find_next (const gunichar *text, glong n_text, glong from, const gunichar *needle,
                       glong n_needle);

G_END_DECLS
