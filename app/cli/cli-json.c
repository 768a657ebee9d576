/* cli-json.c: two JSON shapes, and figures. See cli-json.h for why. */
#include "app/cli/cli-json.h"

#include <string.h>

#include "engine/qe.h"

static void
set_error (const QuireJsonText *r, const char *name, GError **error)
{
  gsize line, column;

  quire_json_text_get_place (r, &line, &column);
  if (r->at >= r->end)
    g_set_error (error, QE_ERROR, QE_ERROR_FORMAT,
                 "%s:%zu:%zu: expected %s, found the end of the input", name, line, column,
                 r->expected);
  else
    g_set_error (error, QE_ERROR, QE_ERROR_FORMAT, "%s:%zu:%zu: expected %s, found byte 0x%02x",
                 name, line, column, r->expected, (guchar)*r->at);
}

/* A file may begin with a byte order mark. */
static gboolean
begin (QuireJsonText *r, const char *json, gsize n)
{
  if (!quire_json_text_begin (r, json, n))
    return FALSE;
  if (n >= 3 && memcmp (json, "\xef\xbb\xbf", 3) == 0)
    r->at += 3;
  return TRUE;
}

static void
string_free (gpointer string)
{
  g_string_free (string, TRUE);
}

static gboolean
read_strings (QuireJsonText *r, GPtrArray *out)
{
  if (!quire_json_text_expect (r, '[', "an array of strings"))
    return FALSE;
  if (quire_json_text_accept (r, ']'))
    return quire_json_text_finish (r);
  do
    {
      GString *string = g_string_new (NULL);

      g_ptr_array_add (out, string);
      if (!quire_json_text_read_string (r, string))
        return FALSE;
  } while (quire_json_text_accept (r, ','));
  return quire_json_text_expect (r, ']', "',' or ']'") && quire_json_text_finish (r);
}

GPtrArray *
cli_json_read_strings (const char *name, const char *json, gsize n, GError **error)
{
  g_autoptr (GPtrArray) out = g_ptr_array_new_with_free_func (string_free);
  QuireJsonText r;

  if (begin (&r, json, n) && read_strings (&r, out))
    return g_steal_pointer (&out);
  set_error (&r, name, error);
  return NULL;
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
read_message (QuireJsonText *r, CliMessage *message)
{
  if (!quire_json_text_expect (r, '{', "a message object"))
    return FALSE;
  do
    {
      g_autoptr (GString) key = g_string_new (NULL);
      g_autoptr (GString) value = g_string_new (NULL);
      gboolean is_role, is_content;

      quire_json_text_skip_space (r);
      const char *key_at = r->at;
      if (!quire_json_text_read_string (r, key) || !quire_json_text_expect (r, ':', "':'"))
        return FALSE;
      is_role = strcmp (key->str, "role") == 0 && message->role == NULL;
      is_content = strcmp (key->str, "content") == 0 && message->content == NULL;
      if (!is_role && !is_content)
        {
          r->at = key_at;
          return quire_json_text_fail (r, "the member \"role\" or \"content\", each once");
        }
      if (!quire_json_text_read_string (r, value))
        return FALSE;
      if (is_role)
        message->role = g_strdup (value->str);
      else
        message->content = g_steal_pointer (&value);
  } while (quire_json_text_accept (r, ','));
  if (message->role == NULL || message->content == NULL)
    return quire_json_text_fail (r, "both \"role\" and \"content\" in a message");
  return quire_json_text_expect (r, '}', "',' or '}'");
}

/* {"messages": of the wrapped form. */
static gboolean
read_wrapper (QuireJsonText *r)
{
  g_autoptr (GString) key = g_string_new (NULL);

  quire_json_text_skip_space (r);
  const char *key_at = r->at;
  if (!quire_json_text_read_string (r, key) || !quire_json_text_expect (r, ':', "':'"))
    return FALSE;
  if (strcmp (key->str, "messages") == 0)
    return TRUE;
  r->at = key_at;
  return quire_json_text_fail (r, "the member \"messages\"");
}

static gboolean
read_messages (QuireJsonText *r, GPtrArray *out)
{
  gboolean wrapped = quire_json_text_accept (r, '{');

  if (wrapped && !read_wrapper (r))
    return FALSE;
  if (!quire_json_text_expect (r, '[', "an array of messages"))
    return FALSE;
  do
    {
      CliMessage *message = g_new0 (CliMessage, 1);

      g_ptr_array_add (out, message);
      if (!read_message (r, message))
        return FALSE;
  } while (quire_json_text_accept (r, ','));
  return quire_json_text_expect (r, ']', "',' or ']'")
         && (!wrapped || quire_json_text_expect (r, '}', "'}'")) && quire_json_text_finish (r);
}

GPtrArray *
cli_json_read_messages (const char *name, const char *json, gsize n, GError **error)
{
  g_autoptr (GPtrArray) out = g_ptr_array_new_with_free_func ((GDestroyNotify)cli_message_free);
  QuireJsonText r;

  if (begin (&r, json, n) && read_messages (&r, out))
    return g_steal_pointer (&out);
  set_error (&r, name, error);
  return NULL;
}
