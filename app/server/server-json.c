/* server-json.c: a bounded reader of JSON, and an escaper. See server-json.h.
 *
 * The reader recurses at most SRV_JSON_DEPTH_MAX times. Messages name a place and what was expected there, never bytes
 * of the input: they go out in answers. */
#include "app/server/server-json.h"

#include <errno.h>
#include <gio/gio.h>
#include <math.h>
#include <string.h>

typedef struct
{
  const char *begin, *at, *end;
  guint n_values;
  GError **error;
} Reader;

static gboolean
fail (Reader *r, const char *expected)
{
  gsize line = 1, column = 1;

  for (const char *p = r->begin; p < r->at; p++)
    {
      column = *p == '\n' ? 1 : column + 1;
      line += *p == '\n';
    }
  g_set_error (r->error, G_IO_ERROR, G_IO_ERROR_INVALID_DATA,
               "The body is not JSON that can be read: line %zu, column %zu: expected %s", line,
               column, expected);
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
read_hex4 (Reader *r, guint *out)
{
  guint value = 0;

  for (int i = 0; i < 4; i++, r->at++)
    {
      if (r->at >= r->end || !g_ascii_isxdigit (*r->at))
        return fail (r, "four hexadecimal digits");
      value = value * 16 + (guint)g_ascii_xdigit_value (*r->at);
    }
  *out = value;
  return TRUE;
}

static gboolean
read_unicode_escape (Reader *r, GString *out)
{
  guint unit, low;
  gunichar c;

  if (!read_hex4 (r, &unit))
    return FALSE;
  c = unit;
  if (unit >= 0xdc00 && unit <= 0xdfff)
    return fail (r, "a high surrogate before a low one");
  if (unit >= 0xd800 && unit <= 0xdbff)
    {
      if (r->end - r->at < 2 || r->at[0] != '\\' || r->at[1] != 'u')
        return fail (r, "a low surrogate after a high one");
      r->at += 2;
      if (!read_hex4 (r, &low))
        return FALSE;
      if (low < 0xdc00 || low > 0xdfff)
        return fail (r, "a low surrogate after a high one");
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
  return fail (r, "an escape of RFC 8259");
}

static gboolean
read_string (Reader *r, GString *out)
{
  if (!accept (r, '"'))
    return fail (r, "a string");
  for (;;)
    {
      const char *run = r->at;

      while (r->at < r->end && *r->at != '"' && *r->at != '\\' && (guchar)*r->at >= 0x20)
        r->at++;
      g_string_append_len (out, run, r->at - run);
      if (r->at >= r->end || (guchar)*r->at < 0x20)
        return fail (r, "the rest of a string, control characters escaped");
      if (*r->at++ == '"')
        return TRUE;
      if (!read_escape (r, out))
        return FALSE;
    }
}

static gboolean
read_digits (Reader *r)
{
  const char *begin = r->at;

  while (r->at < r->end && g_ascii_isdigit (*r->at))
    r->at++;
  return r->at > begin || fail (r, "a digit");
}

static gboolean
read_number (Reader *r, SrvJson *out)
{
  char text[128];
  const char *begin = r->at;

  if (*r->at == '-')
    r->at++;
  if (r->at < r->end && *r->at == '0')
    r->at++;
  else if (!read_digits (r))
    return FALSE;
  if (r->at < r->end && *r->at == '.')
    {
      r->at++;
      if (!read_digits (r))
        return FALSE;
    }
  if (r->at < r->end && (*r->at == 'e' || *r->at == 'E'))
    {
      r->at++;
      if (r->at < r->end && (*r->at == '+' || *r->at == '-'))
        r->at++;
      if (!read_digits (r))
        return FALSE;
    }
  if ((gsize)(r->at - begin) >= sizeof text)
    {
      r->at = begin;
      return fail (r, "a number of fewer than 128 characters");
    }
  memcpy (text, begin, (gsize)(r->at - begin));
  text[r->at - begin] = '\0';
  out->type = SRV_JSON_NUMBER;
  out->number = g_ascii_strtod (text, NULL);
  if (!isfinite (out->number))
    {
      r->at = begin;
      return fail (r, "a finite number");
    }
  if (g_ascii_string_to_signed (text, 10, G_MININT64, G_MAXINT64, &out->integer, NULL))
    out->is_integer = TRUE;
  else if (out->number == trunc (out->number) && fabs (out->number) < 9.2e18)
    {
      out->is_integer = TRUE;
      out->integer = (gint64)out->number;
    }
  return TRUE;
}

static SrvJson *read_value (Reader *r, guint depth);

static void
json_free (gpointer value)
{
  srv_json_free (value);
}

static gboolean
read_array (Reader *r, guint depth, SrvJson *out)
{
  out->type = SRV_JSON_ARRAY;
  out->items = g_ptr_array_new_with_free_func (json_free);
  if (accept (r, ']'))
    return TRUE;
  do
    {
      SrvJson *item = read_value (r, depth + 1);

      if (item == NULL)
        return FALSE;
      g_ptr_array_add (out->items, item);
  } while (accept (r, ','));
  return accept (r, ']') || fail (r, "',' or ']'");
}

static gboolean
read_name (Reader *r, GHashTable *seen, SrvJson *out)
{
  g_autoptr (GString) name = g_string_new (NULL);
  const char *at;

  skip_space (r);
  at = r->at;
  if (!read_string (r, name))
    return FALSE;
  if (strlen (name->str) != name->len || g_hash_table_contains (seen, name->str))
    {
      r->at = at;
      return fail (r, "a member's name without NUL, each once");
    }
  g_ptr_array_add (out->names, g_strdup (name->str));
  g_hash_table_add (seen, out->names->pdata[out->names->len - 1]);
  return accept (r, ':') || fail (r, "':'");
}

static gboolean
read_object (Reader *r, guint depth, SrvJson *out)
{
  g_autoptr (GHashTable) seen = g_hash_table_new (g_str_hash, g_str_equal);

  out->type = SRV_JSON_OBJECT;
  out->items = g_ptr_array_new_with_free_func (json_free);
  out->names = g_ptr_array_new_with_free_func (g_free);
  if (accept (r, '}'))
    return TRUE;
  do
    {
      SrvJson *item;

      if (!read_name (r, seen, out))
        return FALSE;
      item = read_value (r, depth + 1);
      if (item == NULL)
        return FALSE;
      g_ptr_array_add (out->items, item);
  } while (accept (r, ','));
  return accept (r, '}') || fail (r, "',' or '}'");
}

static gboolean
read_word (Reader *r, SrvJson *out)
{
  static const struct
  {
    const char *word;
    SrvJsonType type;
    gboolean boolean;
  } words[] = { { "null", SRV_JSON_NULL, FALSE },
                { "true", SRV_JSON_BOOL, TRUE },
                { "false", SRV_JSON_BOOL, FALSE } };

  for (guint i = 0; i < G_N_ELEMENTS (words); i++)
    {
      gsize n = strlen (words[i].word);

      if ((gsize)(r->end - r->at) >= n && memcmp (r->at, words[i].word, n) == 0)
        {
          r->at += n;
          out->type = words[i].type;
          out->boolean = words[i].boolean;
          return TRUE;
        }
    }
  return fail (r, "a value");
}

static gboolean
read_text (Reader *r, SrvJson *out)
{
  g_autoptr (GString) text = g_string_new (NULL);

  if (!read_string (r, text))
    return FALSE;
  out->type = SRV_JSON_STRING;
  out->n_text = text->len;
  out->text = g_string_free (g_steal_pointer (&text), FALSE);
  return TRUE;
}

static SrvJson *
read_value (Reader *r, guint depth)
{
  g_autoptr (SrvJson) out = g_new0 (SrvJson, 1);
  gboolean ok;

  skip_space (r);
  if (depth >= SRV_JSON_DEPTH_MAX)
    ok = fail (r, "at most 64 levels of arrays and objects");
  else if (++r->n_values > SRV_JSON_VALUES_MAX)
    ok = fail (r, "at most 262144 values");
  else if (r->at >= r->end)
    ok = fail (r, "a value");
  else if (*r->at == '"')
    ok = read_text (r, out);
  else if (accept (r, '['))
    ok = read_array (r, depth, out);
  else if (accept (r, '{'))
    ok = read_object (r, depth, out);
  else if (*r->at == '-' || g_ascii_isdigit (*r->at))
    ok = read_number (r, out);
  else
    ok = read_word (r, out);
  return ok ? g_steal_pointer (&out) : NULL;
}

SrvJson *
srv_json_read (const char *json, gsize n, GError **error)
{
  Reader r = { .begin = json, .at = json, .end = json + n, .error = error };
  g_autoptr (SrvJson) out = NULL;
  const char *bad = NULL;

  if (n > 0 && !g_utf8_validate_len (json, n, &bad))
    {
      r.at = bad;
      fail (&r, "well-formed UTF-8 without a raw NUL");
      return NULL;
    }
  out = read_value (&r, 0);
  if (out == NULL)
    return NULL;
  skip_space (&r);
  if (r.at != r.end)
    {
      fail (&r, "nothing after the value");
      return NULL;
    }
  return g_steal_pointer (&out);
}

void
srv_json_free (SrvJson *value)
{
  if (value == NULL)
    return;
  g_free (value->text);
  g_clear_pointer (&value->items, g_ptr_array_unref);
  g_clear_pointer (&value->names, g_ptr_array_unref);
  g_free (value);
}

const SrvJson *
srv_json_get (const SrvJson *object, const char *name)
{
  if (object == NULL || object->type != SRV_JSON_OBJECT)
    return NULL;
  for (guint i = 0; i < object->names->len; i++)
    if (strcmp (object->names->pdata[i], name) == 0)
      return object->items->pdata[i];
  return NULL;
}

const char *
srv_json_type_name (SrvJsonType type)
{
  static const char *const names[]
      = { "null", "a boolean", "a number", "a string", "an array", "an object" };

  return names[type];
}

/* ---- Writing ---- */

void
srv_json_add_string (GString *out, const char *text, gssize n)
{
  gsize length = n < 0 ? strlen (text) : (gsize)n;
  g_autofree char *valid = NULL;

  /* Escaped NULs aside, what is no UTF-8 must not leave as JSON. */
  if (!g_utf8_validate_len (text, length, NULL) && memchr (text, '\0', length) == NULL)
    {
      valid = g_utf8_make_valid (text, (gssize)length);
      text = valid;
      length = strlen (valid);
    }
  g_string_append_c (out, '"');
  for (gsize i = 0; i < length; i++)
    {
      guchar c = (guchar)text[i];

      if (c == '"' || c == '\\')
        {
          g_string_append_c (out, '\\');
          g_string_append_c (out, (char)c);
        }
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
srv_json_add_number (GString *out, double value)
{
  char buffer[G_ASCII_DTOSTR_BUF_SIZE];

  if (!isfinite (value))
    g_string_append (out, "null");
  else
    g_string_append (out, g_ascii_formatd (buffer, sizeof buffer, "%.15g", value));
}

void
srv_json_add_member (GString *out, const char *name, const char *text)
{
  srv_json_add_string (out, name, -1);
  g_string_append_c (out, ':');
  if (text == NULL)
    g_string_append (out, "null");
  else
    srv_json_add_string (out, text, -1);
}

void
srv_json_write (GString *out, const SrvJson *value)
{
  gboolean object = value->type == SRV_JSON_OBJECT;

  switch (value->type)
    {
    case SRV_JSON_NULL:
      g_string_append (out, "null");
      break;
    case SRV_JSON_BOOL:
      g_string_append (out, value->boolean ? "true" : "false");
      break;
    case SRV_JSON_NUMBER:
      if (value->is_integer)
        g_string_append_printf (out, "%" G_GINT64_FORMAT, value->integer);
      else
        srv_json_add_number (out, value->number);
      break;
    case SRV_JSON_STRING:
      srv_json_add_string (out, value->text, (gssize)value->n_text);
      break;
    case SRV_JSON_ARRAY:
    case SRV_JSON_OBJECT:
      g_string_append_c (out, object ? '{' : '[');
      for (guint i = 0; i < value->items->len; i++)
        {
          if (i > 0)
            g_string_append_c (out, ',');
          if (object)
            {
              srv_json_add_string (out, value->names->pdata[i], -1);
              g_string_append_c (out, ':');
            }
          srv_json_write (out, value->items->pdata[i]);
        }
      g_string_append_c (out, object ? '}' : ']');
      break;
    }
}
