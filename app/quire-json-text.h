/* quire-json-text.h: what readers and writers of JSON share: the text itself, below its values (RFC 8259). No GTK; any thread.
 *
 * Strings know their length, since "\u0000" is a character like another, which json-glib's C strings would be cut at. A
 * lone surrogate, a raw control character and ill-formed UTF-8 are refused. */
#pragma once
#include <glib.h>

G_BEGIN_DECLS

/* Where a reader stands in a text. Functions that return FALSE leave @at at the place and in @expected what was to be
 * there; whoever reads for somebody makes a message of them. */
typedef struct
{
  const char *begin, *at, *end; /* borrowed */
  const char *expected;         /* static; NULL: nothing failed */
} QuireJsonText;

/* FALSE when the text is not well-formed UTF-8 without a raw NUL. @json may be NULL when @n is 0. */
gboolean quire_json_text_begin (QuireJsonText *self, const char *json, gsize n);
gboolean quire_json_text_fail (QuireJsonText *self, const char *expected); /* FALSE */
/* Line and column of @at, from 1; a column is a byte. */
void quire_json_text_get_place (const QuireJsonText *self, gsize *line, gsize *column);

void quire_json_text_skip_space (QuireJsonText *self);
/* Goes past white space, and past @c if that is next; else FALSE, which is no failure. */
gboolean quire_json_text_accept (QuireJsonText *self, char c);
gboolean quire_json_text_expect (QuireJsonText *self, char c, const char *expected);
/* A string with its quotes, white space before it; its bytes are appended to @out. */
gboolean quire_json_text_read_string (QuireJsonText *self, GString *out);
/* Only white space is left. */
gboolean quire_json_text_finish (QuireJsonText *self);

/* Quoted and escaped; other bytes as they are. @n: -1: up to the NUL. */
void quire_json_add_string (GString *out, const char *text, gssize n);
/* NaN and infinities become null. */
void quire_json_add_number (GString *out, double value, int n_decimals);

G_END_DECLS
