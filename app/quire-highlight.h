/* quire-highlight.h: colours for code, without holding the window up.
 *
 * GtkSourceView finds its languages by reading all of their files, and reads one anew for each buffer that comes when no other has
 * it: 10 to 60 ms of the main loop. So a buffer gets its language some time after it was asked for, when nothing else is to
 * be done, and what was read stays. Main thread. */
#pragma once
#include <gtksourceview/gtksource.h>

G_BEGIN_DECLS

/* @word: of a fence, as "py"; NULL: none. @label, what the language is called, is told later too. Both may go before. */
void quire_highlight_set_language (GtkSourceBuffer *buffer, GtkLabel *label, const char *word);
void quire_highlight_set_dark (GtkSourceBuffer *buffer, gboolean dark);
/* Reads ahead, a step at a time while nothing else is to be done, what the first code of all needs. */
void quire_highlight_prepare (void);
/* Languages that were read so far. For tests. */
guint quire_highlight_get_n_read (void);

G_END_DECLS
