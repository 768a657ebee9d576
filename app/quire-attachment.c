/* quire-attachment.c: see quire-attachment.h. */
#include "app/quire-attachment.h"

#include <glib/gi18n.h>
#include <string.h>

#include "app/quire-format.h"

static const char head[] = "<file name=\"";
static const char tail[] = "\n</file>\n";

QuireAttachment *
quire_attachment_copy (const QuireAttachment *attachment)
{
  QuireAttachment *copy = g_memdup2 (attachment, sizeof *attachment);

  copy->name = g_strdup (attachment->name);
  copy->text = g_memdup2 (attachment->text, attachment->n_bytes + 1);
  return copy;
}

void
quire_attachment_free (QuireAttachment *attachment)
{
  if (attachment == NULL)
    return;
  g_free (attachment->name);
  g_free (attachment->text);
  g_free (attachment);
}

char *
quire_attachment_format_too_big (const char *name, guint64 n_bytes)
{
  g_autofree char *have = quire_format_bytes (n_bytes);
  g_autofree char *max = quire_format_bytes (QUIRE_ATTACHMENT_BYTES_MAX);

  return g_strdup_printf (_ ("“%s” has %s; at most %s can be attached."), name, have, max);
}

/* What would end the name, or the line, early. */
static char *
dup_name (const char *name)
{
  char *valid = g_utf8_make_valid (name, -1);

  for (char *p = valid; *p != '\0'; p++)
    if (*p == '"' || *p == '<' || *p == '>' || g_ascii_iscntrl (*p))
      *p = '_';
  return valid;
}

QuireAttachment *
quire_attachment_new (const char *name, const char *data, gsize n_bytes, GError **error)
{
  g_autofree char *shown = dup_name (name);
  QuireAttachment *attachment;
  GString *text;

  if (n_bytes > QUIRE_ATTACHMENT_BYTES_MAX)
    {
      g_autofree char *words = quire_attachment_format_too_big (shown, n_bytes);

      g_set_error_literal (error, G_IO_ERROR, G_IO_ERROR_NO_SPACE, words);
      return NULL;
    }
  if (n_bytes >= 3 && memcmp (data, "\xef\xbb\xbf", 3) == 0)
    {
      data += 3;
      n_bytes -= 3;
    }
  if (n_bytes == 0)
    {
      g_set_error (error, G_IO_ERROR, G_IO_ERROR_INVALID_DATA, _ ("“%s” is empty."), shown);
      return NULL;
    }
  if (memchr (data, '\0', n_bytes) != NULL)
    {
      g_set_error (error, G_IO_ERROR, G_IO_ERROR_INVALID_DATA,
                   _ ("“%s” is no text: the model reads text only."), shown);
      return NULL;
    }
  if (!g_utf8_validate_len (data, n_bytes, NULL))
    {
      g_set_error (error, G_IO_ERROR, G_IO_ERROR_INVALID_DATA,
                   _ ("“%s” is not in UTF-8. Save it in that encoding to attach it."), shown);
      return NULL;
    }
  text = g_string_new_len (data, (gssize)n_bytes);
  g_string_replace (text, "\r\n", "\n", 0);
  attachment = g_new0 (QuireAttachment, 1);
  attachment->name = g_steal_pointer (&shown);
  attachment->n_bytes = text->len;
  attachment->text = g_string_free (text, FALSE);
  return attachment;
}

/* ---- Reading ---- */

static void
fail (GTask *task, const char *name, const GError *error)
{
  if (error->code == G_IO_ERROR_CANCELLED)
    g_task_return_error (task, g_error_copy (error));
  else
    /* Translators: the name of a file, then the system's words. */
    g_task_return_new_error (task, G_IO_ERROR, G_IO_ERROR_FAILED, _ ("Could not read “%s”: %s"),
                             name, error->message);
}

static void
contents_cb (GObject *source, GAsyncResult *result, gpointer user_data)
{
  g_autoptr (GTask) task = user_data;
  const char *name = g_task_get_task_data (task);
  g_autofree char *data = NULL;
  g_autoptr (GError) error = NULL;
  QuireAttachment *attachment;
  gsize n_bytes;

  if (!g_file_load_contents_finish (G_FILE (source), result, &data, &n_bytes, NULL, &error))
    {
      fail (task, name, error);
      return;
    }
  attachment = quire_attachment_new (name, data, n_bytes, &error);
  if (attachment != NULL)
    g_task_return_pointer (task, attachment, (GDestroyNotify)quire_attachment_free);
  else
    g_task_return_error (task, g_steal_pointer (&error));
}

static void
info_cb (GObject *source, GAsyncResult *result, gpointer user_data)
{
  g_autoptr (GTask) task = user_data;
  g_autoptr (GError) error = NULL;
  g_autoptr (GFileInfo) info = g_file_query_info_finish (G_FILE (source), result, &error);

  if (info == NULL)
    {
      g_autofree char *name = g_file_get_basename (G_FILE (source));

      fail (task, name, error);
      return;
    }
  g_task_set_task_data (task, g_strdup (g_file_info_get_display_name (info)), g_free);
  if (g_file_info_get_file_type (info) == G_FILE_TYPE_DIRECTORY)
    g_task_return_new_error (task, G_IO_ERROR, G_IO_ERROR_IS_DIRECTORY,
                             _ ("“%s” is a folder. Attach its files."),
                             g_file_info_get_display_name (info));
  else if (g_file_info_get_size (info) > QUIRE_ATTACHMENT_BYTES_MAX)
    {
      g_autofree char *words = quire_attachment_format_too_big (
          g_file_info_get_display_name (info), (guint64)g_file_info_get_size (info));

      g_task_return_new_error (task, G_IO_ERROR, G_IO_ERROR_NO_SPACE, "%s", words);
    }
  else
    g_file_load_contents_async (G_FILE (source), g_task_get_cancellable (task), contents_cb,
                                g_object_ref (task));
}

void
quire_attachment_read_async (GFile *file, GCancellable *cancellable, GAsyncReadyCallback callback,
                             gpointer user_data)
{
  GTask *task = g_task_new (NULL, cancellable, callback, user_data);

  g_file_query_info_async (file,
                           G_FILE_ATTRIBUTE_STANDARD_DISPLAY_NAME
                           "," G_FILE_ATTRIBUTE_STANDARD_SIZE "," G_FILE_ATTRIBUTE_STANDARD_TYPE,
                           G_FILE_QUERY_INFO_NONE, G_PRIORITY_DEFAULT, cancellable, info_cb, task);
}

QuireAttachment *
quire_attachment_read_finish (GAsyncResult *result, GError **error)
{
  return g_task_propagate_pointer (G_TASK (result), error);
}

/* ---- In a message ---- */

GPtrArray *
quire_attachments_new (void)
{
  return g_ptr_array_new_with_free_func ((GDestroyNotify)quire_attachment_free);
}

static char *
compose (GPtrArray *attachments, const char *text, gboolean counted)
{
  GString *out = g_string_new (NULL);

  for (guint i = 0; i < attachments->len; i++)
    {
      const QuireAttachment *a = g_ptr_array_index (attachments, i);

      g_string_append_printf (out, "%s%s\" bytes=\"%" G_GSIZE_FORMAT "\"", head, a->name,
                              a->n_bytes);
      if (a->n_tokens > 0)
        g_string_append_printf (out, " tokens=\"%u\"", a->n_tokens);
      g_string_append (out, ">\n");
      if (counted || a->n_tokens == 0)
        g_string_append_len (out, a->text, (gssize)a->n_bytes);
      g_string_append (out, tail);
    }
  if (attachments->len > 0)
    g_string_append_c (out, '\n');
  g_string_append (out, text);
  return g_string_free (out, FALSE);
}

char *
quire_attachments_compose (GPtrArray *attachments, const char *text)
{
  return compose (attachments, text, TRUE);
}

char *
quire_attachments_compose_uncounted (GPtrArray *attachments, const char *text, guint *n_known)
{
  *n_known = 0;
  for (guint i = 0; i < attachments->len; i++)
    *n_known += ((QuireAttachment *)g_ptr_array_index (attachments, i))->n_tokens;
  return compose (attachments, text, FALSE);
}

/* Reads  WORD"number"  at @at, which moves behind it. */
static gboolean
read_number (const char **at, const char *end, const char *word, guint64 *out)
{
  const char *p = *at;
  gsize n = strlen (word);
  guint n_digits = 0;

  if ((gsize)(end - p) <= n || memcmp (p, word, n) != 0)
    return FALSE;
  p += n;
  *out = 0;
  for (; p < end && g_ascii_isdigit (*p) && n_digits < 9; p++, n_digits++)
    *out = *out * 10 + (guint64)(*p - '0');
  if (n_digits == 0 || p == end || *p != '"')
    return FALSE;
  *at = p + 1;
  return TRUE;
}

/* One file at @at, which moves behind it; NULL when there is none. */
static QuireAttachment *
read_one (const char **at, const char *end)
{
  const char *p = *at, *name, *name_end;
  guint64 n_bytes, n_tokens = 0;
  QuireAttachment *attachment;

  if ((gsize)(end - p) < strlen (head) || memcmp (p, head, strlen (head)) != 0)
    return NULL;
  name = p + strlen (head);
  name_end = memchr (name, '"', (gsize)(end - name));
  if (name_end == NULL || memchr (name, '\n', (gsize)(name_end - name)) != NULL)
    return NULL;
  p = name_end + 1;
  if (!read_number (&p, end, " bytes=\"", &n_bytes))
    return NULL;
  read_number (&p, end, " tokens=\"", &n_tokens);
  if (end - p < 2 || memcmp (p, ">\n", 2) != 0)
    return NULL;
  p += 2;
  if ((guint64)(end - p) < n_bytes + strlen (tail)
      || memcmp (p + n_bytes, tail, strlen (tail)) != 0)
    return NULL;
  attachment = g_new0 (QuireAttachment, 1);
  attachment->name = g_strndup (name, (gsize)(name_end - name));
  attachment->text = g_strndup (p, n_bytes);
  attachment->n_bytes = n_bytes;
  attachment->n_tokens = (guint)n_tokens;
  *at = p + n_bytes + strlen (tail);
  return attachment;
}

GPtrArray *
quire_attachments_split (const char *message, gsize n_bytes, const char **text, gsize *n_text)
{
  GPtrArray *attachments = quire_attachments_new ();
  const char *at = message, *end = message + n_bytes;
  QuireAttachment *attachment;

  while (attachments->len < QUIRE_ATTACHMENTS_MAX && (attachment = read_one (&at, end)) != NULL)
    g_ptr_array_add (attachments, attachment);
  if (attachments->len > 0 && at < end && *at == '\n')
    at++;
  *text = at;
  *n_text = (gsize)(end - at);
  return attachments;
}
