/* quire-export.c: see quire-export.h.
 *
 * {"format": "quire-chat", "version": 1, "title": …, "messages": [{"seq": 1, "parent": 0, "role": "user", "text": …}]}
 * What is imported is not trusted: numbers must grow, parents must come before, and sizes are bounded. */
#include "app/quire-export.h"

#include <glib/gi18n.h>
#include <json-glib/json-glib.h>
#include <string.h>

#include "app/quire-attachment.h"
#include "app/quire-format.h"
#include "app/quire-message.h"

#define FORMAT "quire-chat"
#define FORMAT_VERSION 1
#define IMPORT_BYTES_MAX (256 << 20)
#define IMPORT_MESSAGES_MAX 100000

static const char *
role_name (int role)
{
  return role == QE_ROLE_USER ? "user" : "assistant";
}

static const QuireStoredMessage *
find (GPtrArray *messages, guint seq)
{
  for (guint i = 0; i < messages->len; i++)
    if (((QuireStoredMessage *)g_ptr_array_index (messages, i))->seq == seq)
      return g_ptr_array_index (messages, i);
  return NULL;
}

/* A fence that is longer than any row of backticks in the text. */
static void
append_file (GString *out, const QuireAttachment *file)
{
  guint longest = 2, n = 0;
  g_autofree char *fence = NULL;
  g_autofree char *size = quire_format_bytes (file->n_bytes);

  for (const char *p = file->text; *p != '\0'; p++)
    {
      n = *p == '`' ? n + 1 : 0;
      longest = MAX (longest, n);
    }
  fence = g_strnfill (longest + 1, '`');
  g_string_append_printf (out, "**%s** (%s)\n\n%s\n%s%s%s\n\n", file->name, size, fence, file->text,
                          g_str_has_suffix (file->text, "\n") ? "" : "\n", fence);
}

char *
quire_export_markdown (const QuireStoredChat *chat, GPtrArray *messages)
{
  GString *out = g_string_new (NULL);
  g_autoptr (GPtrArray) path = g_ptr_array_new ();

  for (const QuireStoredMessage *m = find (messages, chat->leaf); m != NULL;
       m = find (messages, m->parent))
    g_ptr_array_insert (path, 0, (gpointer)m);
  g_string_append_printf (out, "# %s\n", chat->title != NULL ? chat->title : _ ("New Chat"));
  if (chat->model_name != NULL)
    g_string_append_printf (out, "\n*%s*\n", chat->model_name);
  if (chat->system != NULL)
    g_string_append_printf (out, "\n## %s\n\n%s\n", _ ("System Prompt"), chat->system);
  for (guint i = 0; i < path->len; i++)
    {
      const QuireStoredMessage *m = g_ptr_array_index (path, i);
      g_autofree char *text = g_utf8_make_valid (m->text, (gssize)strlen (m->text));

      const char *written = text;
      gsize n_written;
      g_autoptr (GPtrArray) files
          = m->role == QE_ROLE_USER
                ? quire_attachments_split (text, strlen (text), &written, &n_written)
                : quire_attachments_new ();

      g_string_append_printf (out, "\n## %s\n\n",
                              m->role == QE_ROLE_USER ? _ ("You") : _ ("Model"));
      for (guint k = 0; k < files->len; k++)
        append_file (out, g_ptr_array_index (files, k));
      g_string_append_printf (out, "%s\n", g_strstrip ((char *)written));
    }
  return g_string_free (out, FALSE);
}

static void
add_string (JsonBuilder *builder, const char *name, const char *text)
{
  if (text == NULL)
    return;
  json_builder_set_member_name (builder, name);
  json_builder_add_string_value (builder, text);
}

static void
add_int (JsonBuilder *builder, const char *name, gint64 value)
{
  json_builder_set_member_name (builder, name);
  json_builder_add_int_value (builder, value);
}

char *
quire_export_json (const QuireStoredChat *chat, GPtrArray *messages)
{
  g_autoptr (JsonBuilder) builder = json_builder_new ();
  g_autoptr (JsonNode) node = NULL;

  json_builder_begin_object (builder);
  add_string (builder, "format", FORMAT);
  add_int (builder, "version", FORMAT_VERSION);
  add_string (builder, "title", chat->title);
  add_string (builder, "model", chat->model_name);
  add_string (builder, "model_digest", chat->model_digest);
  add_string (builder, "system", chat->system);
  add_int (builder, "cache", chat->cache);
  add_int (builder, "created", chat->created);
  add_int (builder, "updated", chat->updated);
  add_int (builder, "leaf", chat->leaf);
  json_builder_set_member_name (builder, "messages");
  json_builder_begin_array (builder);
  for (guint i = 0; i < messages->len; i++)
    {
      const QuireStoredMessage *m = g_ptr_array_index (messages, i);
      g_autofree char *text = g_utf8_make_valid (m->text, (gssize)strlen (m->text));

      json_builder_begin_object (builder);
      add_int (builder, "seq", m->seq);
      add_int (builder, "parent", m->parent);
      add_string (builder, "role", role_name (m->role));
      add_int (builder, "state", m->state);
      add_int (builder, "created", m->created);
      add_string (builder, "text", text);
      add_string (builder, "receipt", m->receipt);
      json_builder_end_object (builder);
    }
  json_builder_end_array (builder);
  json_builder_end_object (builder);
  node = json_builder_get_root (builder);
  return json_to_string (node, TRUE);
}

static const char *
get_string (JsonObject *object, const char *name)
{
  JsonNode *node = json_object_get_member (object, name);

  return node != NULL && JSON_NODE_HOLDS_VALUE (node)
                 && json_node_get_value_type (node) == G_TYPE_STRING
             ? json_node_get_string (node)
             : NULL;
}

static gint64
get_int (JsonObject *object, const char *name)
{
  JsonNode *node = json_object_get_member (object, name);

  return node != NULL && JSON_NODE_HOLDS_VALUE (node) ? json_node_get_int (node) : 0;
}

static QuireStoredMessage *
read_message (JsonNode *node, guint last)
{
  JsonObject *object = JSON_NODE_HOLDS_OBJECT (node) ? json_node_get_object (node) : NULL;
  QuireStoredMessage *message;
  const char *text, *role;
  gint64 seq, parent, state;

  if (object == NULL)
    return NULL;
  seq = get_int (object, "seq");
  parent = get_int (object, "parent");
  state = get_int (object, "state");
  text = get_string (object, "text");
  role = get_string (object, "role");
  if (seq <= last || seq > G_MAXINT32 || parent < 0 || parent >= seq || text == NULL || role == NULL
      || (strcmp (role, "user") != 0 && strcmp (role, "assistant") != 0))
    return NULL;
  if (state < QUIRE_REPLY_DONE || state >= QUIRE_N_REPLY_STATES)
    state = QUIRE_REPLY_DONE;
  message = quire_stored_message_new ((guint)seq, (guint)parent,
                                      strcmp (role, "user") == 0 ? QE_ROLE_USER : QE_ROLE_ASSISTANT,
                                      (int)state, text, strlen (text));
  message->created = MAX (get_int (object, "created"), 1);
  message->receipt = g_strdup (get_string (object, "receipt"));
  return message;
}

/* Each has a parent that is there and is the other's, or is the user's first. */
static gboolean
is_tree (GPtrArray *messages)
{
  for (guint i = 0; i < messages->len; i++)
    {
      const QuireStoredMessage *m = g_ptr_array_index (messages, i);
      const QuireStoredMessage *parent = m->parent != 0 ? find (messages, m->parent) : NULL;

      if (m->parent == 0 ? m->role != QE_ROLE_USER : parent == NULL || parent->role == m->role)
        return FALSE;
    }
  return TRUE;
}

GPtrArray *
quire_import_json (const char *json, gssize n_bytes, QuireStoredChat *chat, GError **error)
{
  g_autoptr (JsonParser) parser = json_parser_new ();
  g_autoptr (GPtrArray) messages
      = g_ptr_array_new_with_free_func ((GDestroyNotify)quire_stored_message_free);
  JsonNode *root, *list = NULL;
  JsonObject *object = NULL;
  gsize size = n_bytes < 0 ? strlen (json) : (gsize)n_bytes;
  gboolean ok;

  if (size <= IMPORT_BYTES_MAX && g_utf8_validate (json, (gssize)size, NULL)
      && json_parser_load_from_data (parser, json, (gssize)size, NULL))
    {
      root = json_parser_get_root (parser);
      object = root != NULL && JSON_NODE_HOLDS_OBJECT (root) ? json_node_get_object (root) : NULL;
    }
  if (object != NULL)
    list = json_object_get_member (object, "messages");
  ok = object != NULL && g_strcmp0 (get_string (object, "format"), FORMAT) == 0 && list != NULL
       && JSON_NODE_HOLDS_ARRAY (list);
  if (ok && get_int (object, "version") > FORMAT_VERSION)
    {
      g_set_error_literal (error, QUIRE_HISTORY_ERROR, QUIRE_HISTORY_ERROR_FAILED,
                           _ ("This file was written by a newer version of Quire."));
      return NULL;
    }
  for (guint i = 0; ok && i < json_array_get_length (json_node_get_array (list)); i++)
    {
      guint last = i == 0 ? 0 : ((QuireStoredMessage *)g_ptr_array_index (messages, i - 1))->seq;
      QuireStoredMessage *message
          = i < IMPORT_MESSAGES_MAX
                ? read_message (json_array_get_element (json_node_get_array (list), i), last)
                : NULL;

      ok = message != NULL;
      if (ok)
        g_ptr_array_add (messages, message);
    }
  if (!ok || !is_tree (messages))
    {
      g_set_error_literal (error, QUIRE_HISTORY_ERROR, QUIRE_HISTORY_ERROR_FAILED,
                           _ ("This is no chat that Quire exported as JSON."));
      return NULL;
    }

  *chat = (QuireStoredChat){ .id = g_uuid_string_random (),
                             .title = g_strdup (get_string (object, "title")),
                             .title_source = QUIRE_TITLE_USER,
                             .model_name = g_strdup (get_string (object, "model")),
                             .model_digest = g_strdup (get_string (object, "model_digest")),
                             .system = g_strdup (get_string (object, "system")),
                             .cache = (int)CLAMP (get_int (object, "cache"), 0, 100),
                             .created = MAX (get_int (object, "created"), 1),
                             .updated = g_get_real_time (),
                             .tab = -1,
                             .leaf = (guint)CLAMP (get_int (object, "leaf"), 0, G_MAXINT32) };
  if (chat->title == NULL)
    chat->title_source = QUIRE_TITLE_NONE;
  return g_steal_pointer (&messages);
}

char *
quire_export_dup_name (const QuireStoredChat *chat, const char *extension)
{
  g_autofree char *title = g_strdup (chat->title != NULL ? chat->title : _ ("New Chat"));

  /* What is no name on some file system. */
  g_strdelimit (title, "/\\:*?\"<>|\n\r\t", '-');
  for (char *p = title; *p == '.'; p++)
    *p = '-';
  return g_strdup_printf ("%s.%s", title, extension);
}
