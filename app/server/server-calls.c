/* server-calls.c: see server-calls.h. A byte is looked at once, but for those of a tag or a head that are not whole yet. */
#include "app/server/server-calls.h"

#include <string.h>

static const char open_tag[] = "<tool_call>", close_tag[] = "</tool_call>";

enum
{
  IN_TEXT, /* looks for a tag */
  IN_HEAD, /* behind it, before the arguments */
  IN_ARGUMENTS,
  IN_TAIL, /* behind them, before the closing tag */
  BETWEEN  /* behind that: another call or nothing */
};

static void
call_clear (gpointer call)
{
  g_free (((SrvCall *)call)->id);
  g_free (((SrvCall *)call)->name);
}

void
srv_calls_init (SrvCalls *self)
{
  *self = (SrvCalls){ .calls = g_array_new (FALSE, TRUE, sizeof (SrvCall)) };
  g_array_set_clear_func (self->calls, call_clear);
}

void
srv_calls_clear (SrvCalls *self)
{
  g_clear_pointer (&self->calls, g_array_unref);
}

gboolean
srv_calls_are_whole (const SrvCalls *self)
{
  return self->calls->len > 0 && self->state == BETWEEN;
}

/* ---- The head ---- */

typedef struct
{
  const char *at, *end;
  gboolean is_wrong;
} Head;

/* FALSE when there is not enough, or when it is wrong. */
static gboolean
expect (Head *h, const char *word)
{
  gsize n = strlen (word), there;

  while (h->at < h->end && g_ascii_isspace (*h->at))
    h->at++;
  there = MIN (n, (gsize)(h->end - h->at));
  h->is_wrong |= memcmp (h->at, word, there) != 0;
  h->at += there;
  return !h->is_wrong && there == n;
}

/* A function's name has no escapes. */
static gboolean
expect_name (Head *h, char **name)
{
  const char *begin;

  if (!expect (h, "\""))
    return FALSE;
  begin = h->at;
  while (h->at < h->end && *h->at != '"')
    h->is_wrong |= *h->at++ == '\\';
  if (h->is_wrong || h->at == h->end)
    return FALSE;
  *name = g_strndup (begin, (gsize)(h->at++ - begin));
  return TRUE;
}

/* Whether anything could be decided. */
static gboolean
read_head (SrvCalls *self, const char *text, gsize n)
{
  Head h = { text + self->at, text + n, FALSE };
  g_autofree char *name = NULL;
  SrvCall call = { 0 };

  if (expect (&h, "{") && expect (&h, "\"name\"") && expect (&h, ":") && expect_name (&h, &name)
      && expect (&h, ",") && expect (&h, "\"arguments\"") && expect (&h, ":"))
    {
      while (h.at < h.end && g_ascii_isspace (*h.at))
        h.at++;
      if (h.at == h.end)
        return FALSE;
      call.id = g_strdup_printf ("call_%08x%08x%08x", g_random_int (), g_random_int (),
                                 g_random_int ());
      call.name = g_steal_pointer (&name);
      call.begin = call.end = self->at = (gsize)(h.at - text);
      g_array_append_val (self->calls, call);
      self->depth = 0;
      self->in_string = self->escaped = FALSE;
      self->state = IN_ARGUMENTS;
      return TRUE;
    }
  if (!h.is_wrong)
    return FALSE;
  /* No call: text, as long as there is none before it. */
  self->state = self->calls->len == 0 ? IN_TEXT : BETWEEN;
  return TRUE;
}

/* ---- The other parts ---- */

/* How much of the end may be the beginning of "\n<tool_call>". */
static gsize
held_back (const char *text, gsize n)
{
  static const char full[] = "\n<tool_call>";

  for (gsize k = MIN (n, sizeof full - 2); k > 0; k--)
    if (memcmp (text + n - k, full, k) == 0
        || (k < sizeof full - 2 && memcmp (text + n - k, full + 1, k) == 0))
      return k;
  return 0;
}

static gboolean
read_text (SrvCalls *self, const char *text, gsize n)
{
  const char *found = g_strstr_len (text + self->at, (gssize)(n - self->at), open_tag);

  if (found == NULL)
    {
      self->n_content = MAX (self->n_content, n - held_back (text, n));
      self->at = MAX (self->at, n - MIN (n, strlen (open_tag) - 1));
      return FALSE;
    }
  self->tag = (gsize)(found - text);
  /* The template puts one line feed before a call that follows text. */
  self->n_content
      = MAX (self->n_content, self->tag - (self->tag > 0 && text[self->tag - 1] == '\n' ? 1 : 0));
  self->at = self->tag + strlen (open_tag);
  self->state = IN_HEAD;
  return TRUE;
}

/* Whether the value is over before @c. */
static gboolean
ends_before (const SrvCalls *self, gboolean first, char c)
{
  return !self->in_string && self->depth == 0 && !first
         && (g_ascii_isspace (c) || c == ',' || c == '}' || c == ']');
}

static gboolean
read_arguments (SrvCalls *self, const char *text, gsize n)
{
  SrvCall *call = &g_array_index (self->calls, SrvCall, self->calls->len - 1);

  while (self->at < n)
    {
      char c = text[self->at];

      if (ends_before (self, self->at == call->begin, c))
        {
          self->state = IN_TAIL;
          return TRUE;
        }
      self->at++;
      call->end = self->at;
      if (self->escaped)
        self->escaped = FALSE;
      else if (self->in_string)
        {
          self->escaped = c == '\\';
          self->in_string = c != '"';
        }
      else if (c == '"')
        self->in_string = TRUE;
      else if (c == '{' || c == '[')
        self->depth++;
      else if ((c == '}' || c == ']') && self->depth > 0)
        self->depth--;
    }
  return FALSE;
}

static gboolean
read_tail (SrvCalls *self, const char *text, gsize n)
{
  const char *found = g_strstr_len (text + self->at, (gssize)(n - self->at), close_tag);

  if (found == NULL)
    return FALSE;
  g_array_index (self->calls, SrvCall, self->calls->len - 1).is_whole = TRUE;
  self->at = (gsize)(found - text) + strlen (close_tag);
  self->state = BETWEEN;
  return TRUE;
}

static gboolean
read_between (SrvCalls *self, const char *text, gsize n)
{
  while (self->at < n && g_ascii_isspace (text[self->at]))
    self->at++;
  if (n - self->at < strlen (open_tag)
      || memcmp (text + self->at, open_tag, strlen (open_tag)) != 0)
    return FALSE;
  self->tag = self->at;
  self->at += strlen (open_tag);
  self->state = IN_HEAD;
  return TRUE;
}

void
srv_calls_feed (SrvCalls *self, const char *text, gsize n, gboolean is_last)
{
  gboolean more = TRUE;

  while (more)
    switch (self->state)
      {
      case IN_TEXT:
        more = read_text (self, text, n);
        break;
      case IN_HEAD:
        more = read_head (self, text, n);
        break;
      case IN_ARGUMENTS:
        more = read_arguments (self, text, n);
        break;
      case IN_TAIL:
        more = read_tail (self, text, n);
        break;
      default:
        more = read_between (self, text, n);
      }
  /* What was held back, and a call that was cut before its function was known, is text after all. */
  if (is_last && self->calls->len == 0)
    self->n_content = n;
}
