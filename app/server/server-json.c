/* server-json.c: values of JSON, read within bounds. See server-json.h.
 *
 * The reader recurses at most SRV_JSON_DEPTH_MAX times. Messages name a place and what was expected there, never bytes
 * of the input: they go out in answers. */
#include "app/server/server-json.h"

#include <gio/gio.h>
#include <math.h>
#include <string.h>

#include "app/quire-json-text.h"

typedef struct
{
  QuireJsonText text;
  guint n_values;
} Reader;

static gboolean
read_digits (Reader *r)
{
  const char *begin = r->text.at;

  while (r->text.at < r->text.end && g_ascii_isdigit (*r->text.at))
    r->text.at++;
  return r->text.at > begin || quire_json_text_fail (&r->text, "a digit");
}

static gboolean
read_number (Reader *r, SrvJson *out)
{
  char text[128];
  const char *begin = r->text.at;

  if (*r->text.at == '-')
    r->text.at++;
  if (r->text.at < r->text.end && *r->text.at == '0')
    r->text.at++;
  else if (!read_digits (r))
    return FALSE;
  if (r->text.at < r->text.end && *r->text.at == '.')
    {
      r->text.at++;
      if (!read_digits (r))
        return FALSE;
    }
  if (r->text.at < r->text.end && (*r->text.at == 'e' || *r->text.at == 'E'))
    {
      r->text.at++;
      if (r->text.at < r->text.end && (*r->text.at == '+' || *r->text.at == '-'))
        r->text.at++;
      if (!read_digits (r))
        return FALSE;
    }
  if ((gsize)(r->text.at - begin) >= sizeof text)
    {
      r->text.at = begin;
      return quire_json_text_fail (&r->text, "a number of fewer than 128 characters");
    }
  memcpy (text, begin, (gsize)(r->text.at - begin));
  text[r->text.at - begin] = '\0';
  out->type = SRV_JSON_NUMBER;
  out->number = g_ascii_strtod (text, NULL);
  if (!isfinite (out->number))
    {
      r->text.at = begin;
      return quire_json_text_fail (&r->text, "a finite number");
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
  if (quire_json_text_accept (&r->text, ']'))
    return TRUE;
  do
    {
      SrvJson *item = read_value (r, depth + 1);

      if (item == NULL)
        return FALSE;
      g_ptr_array_add (out->items, item);
  } while (quire_json_text_accept (&r->text, ','));
  return quire_json_text_expect (&r->text, ']', "',' or ']'");
}

static gboolean
read_name (Reader *r, GHashTable *seen, SrvJson *out)
{
  g_autoptr (GString) name = g_string_new (NULL);
  const char *at;

  quire_json_text_skip_space (&r->text);
  at = r->text.at;
  if (!quire_json_text_read_string (&r->text, name))
    return FALSE;
  if (strlen (name->str) != name->len || g_hash_table_contains (seen, name->str))
    {
      r->text.at = at;
      return quire_json_text_fail (&r->text, "a member's name without NUL, each once");
    }
  g_ptr_array_add (out->names, g_strdup (name->str));
  g_hash_table_add (seen, out->names->pdata[out->names->len - 1]);
  return quire_json_text_expect (&r->text, ':', "':'");
}

static gboolean
read_object (Reader *r, guint depth, SrvJson *out)
{
  g_autoptr (GHashTable) seen = g_hash_table_new (g_str_hash, g_str_equal);

  out->type = SRV_JSON_OBJECT;
  out->items = g_ptr_array_new_with_free_func (json_free);
  out->names = g_ptr_array_new_with_free_func (g_free);
  if (quire_json_text_accept (&r->text, '}'))
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
  } while (quire_json_text_accept (&r->text, ','));
  return quire_json_text_expect (&r->text, '}', "',' or '}'");
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

      if ((gsize)(r->text.end - r->text.at) >= n && memcmp (r->text.at, words[i].word, n) == 0)
        {
          r->text.at += n;
          out->type = words[i].type;
          out->boolean = words[i].boolean;
          return TRUE;
        }
    }
  return quire_json_text_fail (&r->text, "a value");
}

static gboolean
read_text (Reader *r, SrvJson *out)
{
  g_autoptr (GString) text = g_string_new (NULL);

  if (!quire_json_text_read_string (&r->text, text))
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

  quire_json_text_skip_space (&r->text);
  out->source = r->text.at;
  if (depth >= SRV_JSON_DEPTH_MAX)
    ok = quire_json_text_fail (&r->text, "at most 64 levels of arrays and objects");
  else if (++r->n_values > SRV_JSON_VALUES_MAX)
    ok = quire_json_text_fail (&r->text, "at most 262144 values");
  else if (r->text.at >= r->text.end)
    ok = quire_json_text_fail (&r->text, "a value");
  else if (*r->text.at == '"')
    ok = read_text (r, out);
  else if (quire_json_text_accept (&r->text, '['))
    ok = read_array (r, depth, out);
  else if (quire_json_text_accept (&r->text, '{'))
    ok = read_object (r, depth, out);
  else if (*r->text.at == '-' || g_ascii_isdigit (*r->text.at))
    ok = read_number (r, out);
  else
    ok = read_word (r, out);
  out->n_source = (gsize)(r->text.at - out->source);
  return ok ? g_steal_pointer (&out) : NULL;
}

SrvJson *
srv_json_read (const char *json, gsize n, GError **error)
{
  Reader r = { .n_values = 0 };
  SrvJson *out = NULL;
  gsize line, column;

  if (quire_json_text_begin (&r.text, json, n))
    out = read_value (&r, 0);
  if (out != NULL && quire_json_text_finish (&r.text))
    return out;
  srv_json_free (out);
  quire_json_text_get_place (&r.text, &line, &column);
  g_set_error (error, G_IO_ERROR, G_IO_ERROR_INVALID_DATA,
               "The body is not JSON that can be read: line %zu, column %zu: expected %s", line,
               column, r.text.expected);
  return NULL;
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
  quire_json_add_string (out, text, (gssize)length);
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
