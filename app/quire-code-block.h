/* quire-code-block.h: a block of code in a reply: language, Copy button, highlighted text that scrolls sideways. */
#pragma once
#include <gtksourceview/gtksource.h>

G_BEGIN_DECLS

#define QUIRE_TYPE_CODE_BLOCK (quire_code_block_get_type ())
G_DECLARE_FINAL_TYPE (QuireCodeBlock, quire_code_block, QUIRE, CODE_BLOCK, GtkWidget)

GtkWidget *quire_code_block_new (void);
/* Text that only grows is appended, so that a selection stays while it streams. @language may be NULL. */
void quire_code_block_set_code (QuireCodeBlock *self, const char *code, const char *language);
/* Borrowed. It has its language some time after the code, see quire-highlight.h. */
GtkSourceBuffer *quire_code_block_get_buffer (QuireCodeBlock *self);

G_END_DECLS
