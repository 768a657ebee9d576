/* cli-json.c: a strict reader for two JSON shapes, and an escaper. See cli-json.h for why. */
#include "app/cli/cli-json.h"

#include <math.h>
#include <string.h>

#include "engine/qe.h"

typedef struct
{
  const char *name;
  const char *begin, *at, *end;
  GError **error;
} Reader;

static gboolean
reader_fail (Reader *r, const char *expected)
{
  gsize line = 1, column = 1;

  for (const char *p = r->begin; p < r->at; p++)
    {
      column = *p == '\n' ? 1 : column + 1;
      line += *p == '\n';
    }
  if (r->at >= r->end)
    g_set_error (r->error, QE_ERROR, QE_ERROR_FORMAT,
                 "%s:%zu:%zu: expected %s, found the end of the input", r->name, line, column,
                 expected);
  else
    g_set_error (r->error, QE_ERROR, QE_ERROR_FORMAT, "%s:%zu:%zu: expected %s, found byte 0x%02x",
                 r->name, line, column, expected, (guchar)*r->at);
  return FALSE;
}

static void
skip_space (Reader *r)
{
  while (r->at < r->end && (*r->at == ' ' || *r->at == '\t' || *r->at == '\r' || *r->at == '\n'))
    r->at++;
}

static gboolean
accept (Reader *r, char c)
{
  skip_space (r);
  if (r->at >= r->end || *r->at != c)
    return FALSE;
  r->at++;
  return TRUE;
}

static gboolean
expect (Reader *r, char c, const char *expected)
{
  return accept (r, c) || reader_fail (r, expected);
}

static gboolean
read_hex4 (Reader *r, guint *out)
{
  guint value = 0;

  for (int i = 0; i < 4; i++, r->at++)
    {
      if (r->at >= r->end || !g_ascii_isxdigit (*r->at))
        return reader_fail (r, "four hexadecimal digits");
      value = value * 16 + (guint)g_ascii_xdigit_value (*r->at);
    }
  *out = value;
  return TRUE;
}

static gboolean
read_unicode_escape (Reader *r, GString *out)
{
  guint unit = 0, low = 0;
  gunichar c;

  if (!read_hex4 (r, &unit))
    return FALSE;
  c = unit;
  if (unit >= 0xdc00 && unit <= 0xdfff)
    return reader_fail (r, "a high surrogate before a low one");
  if (unit >= 0xd800 && unit <= 0xdbff)
    {
      if (r->end - r->at < 2 || r->at[0] != '\\' || r->at[1] != 'u')
        return reader_fail (r, "a low surrogate after a high one");
      r->at += 2;
      if (!read_hex4 (r, &low))
        return FALSE;
      if (low < 0xdc00 || low > 0xdfff)
        return reader_fail (r, "a low surrogate after a high one");
      c = 0x10000 + ((unit - 0xd800) << 10) + (low - 0xdc00);
    }
  if (c == 0) /* g_string_append_unichar() would write the overlong form */
    g_string_append_c (out, '\0');
  else
    g_string_append_unichar (out, c);
  return TRUE;
}

static gboolean
read_escape (Reader *r, GString *out)
{
  static const char plain[] = "\"\\/bfnrt", meaning[] = "\"\\/\b\f\n\r\t";
  const char *which = r->at < r->end && *r->at != '\0' ? strchr (plain, *r->at) : NULL;

  if (which != NULL)
    {
      g_string_append_c (out, meaning[which - plain]);
      r->at++;
      return TRUE;
    }
  if (r->at < r->end && *r->at == 'u')
    {
      r->at++;
      return read_unicode_escape (r, out);
    }
  return reader_fail (r, "an escape of RFC 8259");
}

static gboolean
read_string (Reader *r, GString *out)
{
  if (!expect (r, '"', "a string"))
    return FALSE;
  for (;;)
    {
      const char *run = r->at;

      while (r->at < r->end && *r->at != '"' && *r->at != '\\' && (guchar)*r->at >= 0x20)
        r->at++;
      g_string_append_len (out, run, r->at - run);
      if (r->at >= r->end || (guchar)*r->at < 0x20)
        return reader_fail (r, "the rest of a string (control characters must be escaped)");
      if (*r->at++ == '"')
        return TRUE;
      if (!read_escape (r, out))
        return FALSE;
    }
}

static gboolean
reader_begin (Reader *r, const char *name, const char *json, gsize n, GError **error)
{
  const char *bad = NULL;

  *r = (Reader){ .name = name, .begin = json, .at = json, .end = json + n, .error = error };
  if (!g_utf8_validate_len (json, n, &bad))
    {
      r->at = bad;
      return reader_fail (r, "well-formed UTF-8 without a raw NUL");
    }
  if (n >= 3 && memcmp (json, "\xef\xbb\xbf", 3) == 0)
    r->at += 3;
  return TRUE;
}

static gboolean
reader_end (Reader *r)
{
  skip_space (r);
  return r->at == r->end || reader_fail (r, "nothing after the value");
}

static void
string_free (gpointer string)
{
  g_string_free (string, TRUE);
}

GPtrArray *
cli_json_read_strings (const char *name, const char *json, gsize n, GError **error)
{
  g_autoptr (GPtrArray) out = g_ptr_array_new_with_free_func (string_free);
  Reader r;

  if (!reader_begin (&r, name, json, n, error) || !expect (&r, '[', "an array of strings"))
    return NULL;
  if (!accept (&r, ']'))
    {
      do
        {
          GString *string = g_string_new (NULL);

          g_ptr_array_add (out, string);
          if (!read_string (&r, string))
            return NULL;
      } while (accept (&r, ','));
      if (!expect (&r, ']', "',' or ']'"))
        return NULL;
    }
  return reader_end (&r) ? g_steal_pointer (&out) : NULL;
}

void
cli_message_free (CliMessage *message)
{
  if (message == NULL)
    return;
  g_free (message->role);
  if (message->content != NULL)
    g_string_free (message->content, TRUE);
  g_free (message);
}

static gboolean
read_message (Reader *r, CliMessage *message)
{
  if (!expect (r, '{', "a message object"))
    return FALSE;
  do
    {
      g_autoptr (GString) key = g_string_new (NULL);
      g_autoptr (GString) value = g_string_new (NULL);
      gboolean is_role, is_content;

      skip_space (r);
      const char *key_at = r->at;
      if (!read_string (r, key) || !expect (r, ':', "':'"))
        return FALSE;
      is_role = strcmp (key->str, "role") == 0 && message->role == NULL;
      is_content = strcmp (key->str, "content") == 0 && message->content == NULL;
      if (!is_role && !is_content)
        {
          r->at = key_at;
          return reader_fail (r, "the member \"role\" or \"content\", each once");
        }
      if (!read_string (r, value))
        return FALSE;
      if (is_role)
        message->role = g_strdup (value->str);
      else
        message->content = g_steal_pointer (&value);
  } while (accept (r, ','));
  if (message->role == NULL || message->content == NULL)
    return reader_fail (r, "both \"role\" and \"content\" in a message");
  return expect (r, '}', "',' or '}'");
}

/* {"messages": of the wrapped form. */
static gboolean
read_wrapper (Reader *r)
{
  g_autoptr (GString) key = g_string_new (NULL);

  skip_space (r);
  const char *key_at = r->at;
  if (!read_string (r, key) || !expect (r, ':', "':'"))
    return FALSE;
  if (strcmp (key->str, "messages") == 0)
    return TRUE;
  r->at = key_at;
  return reader_fail (r, "the member \"messages\"");
}

GPtrArray *
cli_json_read_messages (const char *name, const char *json, gsize n, GError **error)
{
  g_autoptr (GPtrArray) out = g_ptr_array_new_with_free_func ((GDestroyNotify)cli_message_free);
  gboolean wrapped;
  Reader r;

  if (!reader_begin (&r, name, json, n, error))
    return NULL;
  wrapped = accept (&r, '{');
  if (wrapped && !read_wrapper (&r))
    return NULL;
  if (!expect (&r, '[', "an array of messages"))
    return NULL;
  do
    {
      CliMessage *message = g_new0 (CliMessage, 1);

      g_ptr_array_add (out, message);
      if (!read_message (&r, message))
        return NULL;
  } while (accept (&r, ','));
  if (!expect (&r, ']', "',' or ']'") || (wrapped && !expect (&r, '}', "'}'")) || !reader_end (&r))
    return NULL;
  return g_steal_pointer (&out);
}

void
cli_json_append_string (GString *json, const char *text, gssize n)
{
  gsize length = n < 0 ? strlen (text) : (gsize)n;

  g_string_append_c (json, '"');
  for (gsize i = 0; i < length; i++)
    {
      guchar c = (guchar)text[i];

      if (c == '"' || c == '\\')
        g_string_append_printf (json, "\\%c", c);
      else if (c == '\n')
        g_string_append (json, "\\n");
      else if (c < 0x20 || c == 0x7f)
        g_string_append_printf (json, "\\u%04x", c);
      else
        g_string_append_c (json, (char)c);
    }
  g_string_append_c (json, '"');
}

void
cli_json_append_number (GString *json, double value, int n_decimals)
{
  char buffer[G_ASCII_DTOSTR_BUF_SIZE], format[16];

  if (!isfinite (value))
    {
      g_string_append (json, "null");
      return;
    }
  g_snprintf (format, sizeof format, "%%.%df", n_decimals);
  g_string_append (json, g_ascii_formatd (buffer, sizeof buffer, format, value));
}

void
cli_json_append_receipt (GString *json, const qe_receipt *r)
{
  g_string_append_printf (
      json,
      "{\"mode\": \"%s\", \"prompt\": %u, \"new\": %u, \"reused\": %u, \"shared\": %u, "
      "\"restored_host\": %u, \"restored_disk\": %u, \"on_host\": %u, \"recomputed\": %u, "
      "\"first_mismatch\": %" G_GINT64_FORMAT ", \"mismatch\": \"%s\", \"skipped_share\": ",
      qe_cache_mode_name (r->mode), r->n_prompt, r->n_new, r->n_reused, r->n_shared,
      r->n_restored_host, r->n_restored_disk, r->n_on_host, r->n_recomputed, r->first_mismatch,
      qe_mismatch_name (r->mismatch));
  cli_json_append_number (json, r->skipped_share, 4);
  g_string_append_c (json, '}');
}
