/* server-calls.h: tool calls in the text of an answer, found while it grows. No GTK; any thread.
 *
 *   TEXT [\n]<tool_call>\n{"name": "NAME", "arguments": ARGUMENTS}\n</tool_call> [\n<tool_call>...]
 *
 * The calls are what the engine was bound to write; what merely begins like one stays text. */
#pragma once
#include <glib.h>

G_BEGIN_DECLS

typedef struct
{
  char *id, *name;     /* owned; the id is random */
  gsize begin, end;    /* of the arguments in the text; end grows */
  gboolean is_whole;   /* nothing is missing, its closing tag included */
  gboolean was_opened; /* the caller's: its first event was written */
  gsize n_sent;        /* the caller's */
} SrvCall;

typedef struct
{
  GArray *calls;   /* SrvCall */
  gsize n_content; /* bytes of the text before the calls that are certain by now */
  gsize at;
  int state;
  gsize tag; /* where the open call's tag begins */
  guint depth;
  gboolean in_string, escaped;
} SrvCalls;

void srv_calls_init (SrvCalls *self);
void srv_calls_clear (SrvCalls *self);
/* @text: all of the answer by now, @n bytes, longer with each call. @is_last: nothing will follow. */
void srv_calls_feed (SrvCalls *self, const char *text, gsize n, gboolean is_last);
/* There are calls and all of them are whole. */
gboolean srv_calls_are_whole (const SrvCalls *self);

G_END_DECLS
