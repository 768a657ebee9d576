/* quire-math.h: a part of TeX as Pango markup: letters, scripts, fractions, roots, symbols, matrices. No GTK; any thread.
 *
 * It is laid out with Unicode and with text attributes, so that it wraps, is selected and read like text. What is not known is
 * not guessed at. */
#pragma once
#include <glib.h>

G_BEGIN_DECLS

/* Longer formulas are shown as their source. */
#define QUIRE_MATH_BYTES_MAX 4096

/* NULL when @tex has something that is not known, or is malformed: then the source is what can be shown. The markup is well
 * formed whatever @tex holds. Returns: owned. */
char *quire_math_to_markup (const char *tex, gsize n_bytes);

/* Markdown with formulas: $…$, $$…$$, \(…\), \[…\]. */
typedef struct
{
  char *tex; /* owned */
  char *
      source; /* owned: with its delimiters, as it was written; for code that was not known to be code */
  gboolean display;
} QuireFormula;

/* @text with each formula that is not inside code replaced by QUIRE_MATH_OPEN, its number in decimal, QUIRE_MATH_CLOSE, so that
 * nothing in it is taken for Markdown. Rows of dashes under a table's head are made long enough for md4c. @formulas: set to (element-type QuireFormula), owned. Returns: owned. */
#define QUIRE_MATH_OPEN 0xf8f0
#define QUIRE_MATH_CLOSE 0xf8f1
char *quire_math_extract (const char *text, GPtrArray **formulas);

G_END_DECLS
