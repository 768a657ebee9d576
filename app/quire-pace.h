/* quire-pace.h: text that came in one burst is shown over a few frames, and sentences are found as it grows. No GTK. Pure. */
#pragma once
#include <glib.h>

G_BEGIN_DECLS

/* No text waits longer than this to be shown. */
#define QUIRE_PACE_US (50 * 1000)
/* So many bytes, about four tokens, are no burst. */
#define QUIRE_PACE_BYTES_MIN 24

typedef struct
{
  gsize n_shown, from;
  gint64 begin_us; /* of the burst; 0: there is none */
} QuirePace;

/* How many bytes of @text [@n_bytes] to show now, a whole number of characters; fewer than @n_bytes: ask again in the next
 * frame. @frame_us: a frame's length. */
gsize quire_pace_step (QuirePace *pace, const char *text, gsize n_bytes, gint64 now_us,
                       gint64 frame_us);

/* Where the last whole sentence behind @from ends (behind a full stop and the like with a space after it, or a line); @from when
 * there is none. @end: the text will not grow, so that its last words are a sentence too. */
gsize quire_sentences_end (const char *text, gsize n_bytes, gsize from, gboolean end);
/* [@from, @to) of Markdown as it is read out: without marks, code left out. Returns: owned, may be "". */
char *quire_sentences_plain (const char *text, gsize from, gsize to);

G_END_DECLS
