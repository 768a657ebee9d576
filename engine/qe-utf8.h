/* qe-utf8.h: UTF-8 that may be cut or broken. Internal; any thread (no shared state).
 *
 * Ill-formed bytes become one U+FFFD per maximal subpart (The Unicode Standard 3.9, "U+FFFD Substitution of Maximal
 * Subparts"; the WHATWG decoder does the same). NUL is an ordinary character here. */
#pragma once
#include <glib.h>
#include <stdbool.h>
#include <stdint.h>
G_BEGIN_DECLS

#define QE_UTF8_REPLACEMENT "\xef\xbf\xbd"

/* The character at @p, of which @n >= 1 bytes are there: its length (1..4) when whole and well formed, 0 when the bytes
 * end inside what may still become one, and -k when the first k bytes are an ill-formed part. */
int qe_utf8_scan(const char *p, gsize n);

/* Bytes before the first that is not part of a whole well-formed character; @n when there is none. */
gsize qe_utf8_valid_prefix(const char *text, gsize n);

/* Appends @text with ill-formed parts replaced; a partial character at the end counts as one. */
void qe_utf8_append_repaired(GString *out, const char *text, gsize n);

/* Turns a stream of bytes that cuts characters anywhere (tokens do) into whole characters. */
typedef struct {
    char part[4]; /* the beginning of a character */
    uint8_t n;    /* bytes in part, 0..3 */
} qe_utf8_filter;

void qe_utf8_filter_init(qe_utf8_filter *self);
/* Appends to @out every character that is whole by now. @n may be 0. */
void qe_utf8_filter_push(qe_utf8_filter *self, const char *bytes, gsize n, GString *out);
/* The end: a beginning that never became a character gives U+FFFD. The filter is as new. */
void qe_utf8_filter_flush(qe_utf8_filter *self, GString *out);

G_END_DECLS
