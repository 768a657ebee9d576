/* quire-json-text.c: see quire-json-text.h. */
#include "app/quire-json-text.h"

#include <math.h>
#include <string.h>

gboolean
quire_json_text_begin (QuireJsonText *self, const char *json, gsize n)
{
  const char *bad = NULL;

  *self = (QuireJsonText){ .begin = json, .at = json, .end = json + n };
  if (n == 0 || g_utf8_validate_len (json, n, &bad))
    return TRUE;
  self->at = bad;
  return quire_json_text_fail (self, "well-formed UTF-8 without a raw NUL");
}

gboolean
quire_json_text_fail (QuireJsonText *self, const char *expected)
{
  self->expected = expected;
  return FALSE;
}

void
quire_json_text_get_place (const QuireJsonText *self, gsize *line, gsize *column)
{
  *line = *column = 1;
  for (const char *p = self->begin; p < self->at; p++)
    {
      *column = *p == '\n' ? 1 : *column + 1;
      *line += *p == '\n';
    }
}

void
quire_json_text_skip_space (QuireJsonText *self)
{
  while (self->at < self->end
         && (*self->at == ' ' || *self->at == '\t' || *self->at == '\r' || *self->at == '\n'))
    self->at++;
}

gboolean
quire_json_text_accept (QuireJsonText *self, char c)
{
  quire_json_text_skip_space (self);
  if (self->at >= self->end || *self->at != c)
    return FALSE;
  self->at++;
  return TRUE;
}

gboolean
quire_json_text_expect (QuireJsonText *self, char c, const char *expected)
{
  return quire_json_text_accept (self, c) || quire_json_text_fail (self, expected);
}

static gboolean
read_hex4 (QuireJsonText *self, guint *out)
{
  guint value = 0;

  for (int i = 0; i < 4; i++, self->at++)
    {
      if (self->at >= self->end || !g_ascii_isxdigit (*self->at))
        return quire_json_text_fail (self, "four hexadecimal digits");
      value = value * 16 + (guint)g_ascii_xdigit_value (*self->at);
    }
  *out = value;
  return TRUE;
}

static gboolean
read_unicode_escape (QuireJsonText *self, GString *out)
{
  guint unit = 0, low = 0;
  gunichar c;

  if (!read_hex4 (self, &unit))
    return FALSE;
  c = unit;
  if (unit >= 0xdc00 && unit <= 0xdfff)
    return quire_json_text_fail (self, "a high surrogate before a low one");
  if (unit >= 0xd800 && unit <= 0xdbff)
    {
      if (self->end - self->at < 2 || self->at[0] != '\\' || self->at[1] != 'u')
        return quire_json_text_fail (self, "a low surrogate after a high one");
      self->at += 2;
      if (!read_hex4 (self, &low))
        return FALSE;
      if (low < 0xdc00 || low > 0xdfff)
        return quire_json_text_fail (self, "a low surrogate after a high one");
      c = 0x10000 + ((unit - 0xd800) << 10) + (low - 0xdc00);
    }
  if (c == 0) /* g_string_append_unichar() would write the overlong form */
    g_string_append_c (out, '\0');
  else
    g_string_append_unichar (out, c);
  return TRUE;
}

static gboolean
read_escape (QuireJsonText *self, GString *out)
{
  static const char plain[] = "\"\\/bfnrt", meaning[] = "\"\\/\b\f\n\r\t";
  const char *which = self->at < self->end && *self->at != '\0' ? strchr (plain, *self->at) : NULL;

  if (which != NULL)
    {
      g_string_append_c (out, meaning[which - plain]);
      self->at++;
      return TRUE;
    }
  if (self->at < self->end && *self->at == 'u')
    {
      self->at++;
      return read_unicode_escape (self, out);
    }
  return quire_json_text_fail (self, "an escape of RFC 8259");
}

gboolean
quire_json_text_read_string (QuireJsonText *self, GString *out)
{
  if (!quire_json_text_expect (self, '"', "a string"))
    return FALSE;
  for (;;)
    {
      const char *run = self->at;

      while (self->at < self->end && *self->at != '"' && *self->at != '\\'
             && (guchar)*self->at >= 0x20)
        self->at++;
      g_string_append_len (out, run, self->at - run);
      if (self->at >= self->end || (guchar)*self->at < 0x20)
        return quire_json_text_fail (self,
                                     "the rest of a string (control characters must be escaped)");
      if (*self->at++ == '"')
        return TRUE;
      if (!read_escape (self, out))
        return FALSE;
    }
}

gboolean
quire_json_text_finish (QuireJsonText *self)
{
  quire_json_text_skip_space (self);
  return self->at == self->end || quire_json_text_fail (self, "nothing after the value");
}

void
quire_json_add_string (GString *out, const char *text, gssize n)
{
  gsize length = n < 0 ? strlen (text) : (gsize)n;

  g_string_append_c (out, '"');
  for (gsize i = 0; i < length; i++)
    {
      guchar c = (guchar)text[i];

      if (c == '"' || c == '\\')
        g_string_append_printf (out, "\\%c", c);
      else if (c == '\n')
        g_string_append (out, "\\n");
      else if (c < 0x20 || c == 0x7f)
        g_string_append_printf (out, "\\u%04x", c);
      else
        g_string_append_c (out, (char)c);
    }
  g_string_append_c (out, '"');
}

void
quire_json_add_number (GString *out, double value, int n_decimals)
{
  char buffer[G_ASCII_DTOSTR_BUF_SIZE], format[16];

  if (!isfinite (value))
    {
      g_string_append (out, "null");
      return;
    }
  g_snprintf (format, sizeof format, "%%.%df", n_decimals);
  g_string_append (out, g_ascii_formatd (buffer, sizeof buffer, format, value));
}
