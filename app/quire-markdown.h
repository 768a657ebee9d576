/* quire-markdown.h: Markdown as a flat list of blocks. No GTK, no state; any thread.
 *
 * The model's text is untrusted: everything is escaped, raw HTML is shown as text, links are http, https and mailto
 * only, and every prefix of a text gives well-formed Pango markup. While a reply streams, what is settled is parsed once;
 * only what follows is parsed again, and the view compares its blocks. */
#pragma once
#include <glib.h>

G_BEGIN_DECLS

typedef enum
{
  QUIRE_BLOCK_TEXT,    /* a paragraph */
  QUIRE_BLOCK_HEADING, /* level 1..6 */
  QUIRE_BLOCK_CODE,    /* text and language */
  QUIRE_BLOCK_TABLE,   /* cells */
  QUIRE_BLOCK_RULE,
  QUIRE_BLOCK_MATH, /* a formula that stands alone: markup, and its TeX as the text */
} QuireBlockKind;

typedef struct
{
  QuireBlockKind kind;
  guint level;       /* of a heading */
  guint quote_depth; /* block quotes around it */
  guint list_depth;  /* list items around it, 0..QUIRE_MARKDOWN_DEPTH_MAX */
  char *marker;      /* owned: "•", "1." ... when the block begins a list item; else NULL */
  char *markup;      /* owned: Pango markup of TEXT, HEADING and MATH; NULL otherwise */
  char *text;        /* owned: verbatim text of CODE and MATH */
  char *language;    /* owned: first word after the fence, lower case; NULL when there is none */
  guint n_columns;   /* TABLE */
  GPtrArray *cells;  /* TABLE: (element-type utf8) owned Pango markup, row by row, header first */
  guint8 *aligns;    /* TABLE: [n_columns] 0 start, 1 centre, 2 end */
} QuireBlock;

#define QUIRE_MARKDOWN_DEPTH_MAX 8

/* @text may hold NUL (shown as U+2400) and ill-formed bytes (U+FFFD). (element-type QuireBlock): owned. */
GPtrArray *quire_markdown_parse (const char *text, gsize n_bytes);
/* How much of @text is settled: its blocks stay whatever is appended, so that what follows can be parsed alone. @text begins
 * with a block. 0 when nothing is, or when @text may define links by reference, which reach back. */
gsize quire_markdown_find_settled (const char *text, gsize n_bytes);
gboolean quire_block_equal (const QuireBlock *a, const QuireBlock *b);
void quire_block_free (QuireBlock *block);

/* Well-formed UTF-8 without NUL, for widgets that show @text as it is. Returns: owned. */
char *quire_text_make_valid (const char *text, gsize n_bytes);

G_END_DECLS
