/* quire-words.h: the engine's sentences in the user's language. The engine speaks English, without gettext; what of it reaches
 * the window is known here by its form. No GTK. Main thread. */
#pragma once
#include <glib.h>

G_BEGIN_DECLS

/* @text: what the engine said; NULL is fine. Returns @text itself where its form is not known or has no translation; else a
 * string that lives as long as the program. */
const char *quire_words (const char *text);
/* The forms: English, "%s" for each part that varies. NULL-terminated. For tests. */
const char *const *quire_words_get_forms (void);

G_END_DECLS
