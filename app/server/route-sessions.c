/* route-sessions.c: /v1/sessions: named sessions, listed, made, forked, pinned, deleted. */
#include "app/server/server-private.h"

#include <string.h>

static const qe_session_view *
find_view (const qe_snapshot *snapshot, qe_session_id id)
{
  for (guint i = 0; i < snapshot->n_sessions; i++)
    if (snapshot->sessions[i].id == id)
      return &snapshot->sessions[i];
  return NULL;
}

static void
add_session (const SrvSession *s, const qe_snapshot *snapshot, GString *out)
{
  const qe_session_view *v = find_view (snapshot, s->id);

  g_string_append_c (out, '{');
  srv_json_add_member (out, "id", s->name);
  g_string_append_printf (
      out,
      ",\"object\":\"session\",\"created\":%" G_GINT64_FORMAT
      ",\"pinned\":%s,\"running\":%s,\"requests\":%" G_GUINT64_FORMAT
      ",\"mode\":\"%s\",\"tokens\":%u,\"pages\":%u,\"pages_shared\":%u,\"bytes\":%" G_GUINT64_FORMAT
      ",\"pages_by_tier\":{\"gpu\":%u,\"host\":%u,\"disk\":%u}}",
      s->created, s->pinned ? "true" : "false", s->n_running > 0 ? "true" : "false", s->n_requests,
      qe_cache_mode_name (v != NULL ? v->mode : s->cache.mode), v != NULL ? v->n_tokens : 0,
      v != NULL ? v->n_pages : 0, v != NULL ? v->n_pages_shared : 0, v != NULL ? v->bytes : 0,
      v != NULL ? v->n_pages_tier[QE_TIER_GPU] : 0, v != NULL ? v->n_pages_tier[QE_TIER_HOST] : 0,
      v != NULL ? v->n_pages_tier[QE_TIER_DISK] : 0);
}

/* The session named @arg, or NULL after the message was answered. */
static SrvSession *
require_session (QuireServer *self, SoupServerMessage *msg, const char *arg)
{
  SrvError error = { 0 };
  SrvSession *session;

  if (!srv_require_engine (self, msg))
    return NULL;
  session = srv_session_find (self, arg);
  if (session == NULL)
    {
      srv_error_set (&error, 404, "session_not_found", "session_id", "There is no such session");
      srv_refuse (msg, &error);
    }
  return session;
}

static void
answer_session (QuireServer *self, SoupServerMessage *msg, const SrvSession *session, guint status)
{
  const qe_snapshot *snapshot = qe_engine_dup_snapshot (self->engine);
  GString *out = g_string_new (NULL);

  add_session (session, snapshot, out);
  qe_snapshot_unref (snapshot);
  srv_answer (msg, status, "application/json", out);
}

static gint
compare_names (gconstpointer a, gconstpointer b)
{
  return strcmp ((*(const SrvSession *const *)a)->name, (*(const SrvSession *const *)b)->name);
}

void
srv_route_sessions (QuireServer *self, SoupServerMessage *msg, const char *arg)
{
  g_autoptr (GPtrArray) sorted = NULL;
  GHashTableIter iter;
  gpointer value;
  GString *out;
  const qe_snapshot *snapshot;

  if (!srv_require_engine (self, msg))
    return;
  sorted = g_ptr_array_new ();
  g_hash_table_iter_init (&iter, self->sessions);
  while (g_hash_table_iter_next (&iter, NULL, &value))
    g_ptr_array_add (sorted, value);
  g_ptr_array_sort (sorted, compare_names);
  snapshot = qe_engine_dup_snapshot (self->engine);
  out = g_string_new ("{\"object\":\"list\",\"data\":[");
  for (guint i = 0; i < sorted->len; i++)
    {
      if (i > 0)
        g_string_append_c (out, ',');
      add_session (sorted->pdata[i], snapshot, out);
    }
  g_string_append (out, "]}");
  qe_snapshot_unref (snapshot);
  srv_answer (msg, 200, "application/json", out);
}

void
srv_route_session (QuireServer *self, SoupServerMessage *msg, const char *arg)
{
  SrvSession *session = require_session (self, msg, arg);

  if (session != NULL)
    answer_session (self, msg, session, 200);
}

/* ---- Bodies ---- */

typedef struct
{
  char *name;
  gint64 keep; /* -1: all */
  gboolean pinned;
  qe_cache_mode mode;
  gboolean has_mode;
} Body;

enum
{
  TAKES_NAME = 1,
  TAKES_MODE = 2,
  TAKES_KEEP = 4,
  TAKES_PINNED = 8
};

static gboolean
bad (const char *name, const char *expected, SrvError *error)
{
  return srv_error_set (error, 400, "invalid_value", name, "%s: expected %s", name, expected);
}

static gboolean
take (Body *body, guint takes, const char *name, const SrvJson *value, SrvError *error)
{
  if (takes & TAKES_NAME && strcmp (name, "session_id") == 0)
    {
      if (value->type != SRV_JSON_STRING || strlen (value->text) != value->n_text
          || !srv_session_name_is_valid (value->text))
        return bad ("session_id", "1 to 64 of A-Z a-z 0-9 . _ -, the first no dot", error);
      body->name = g_strdup (value->text);
      return TRUE;
    }
  if (takes & TAKES_MODE && strcmp (name, "cache_mode") == 0)
    {
      if (value->type != SRV_JSON_STRING || !qe_cache_mode_parse (value->text, &body->mode, NULL))
        return bad ("cache_mode", "auto, rebuild, paged, session, tiered, tiered-int8 or selective",
                    error);
      body->has_mode = TRUE;
      return TRUE;
    }
  if (takes & TAKES_KEEP && strcmp (name, "keep_messages") == 0)
    {
      if (value->type != SRV_JSON_NUMBER || !value->is_integer || value->integer < 0
          || value->integer >= QE_KEEP_ALL)
        return bad ("keep_messages", "a whole number of messages", error);
      body->keep = value->integer;
      return TRUE;
    }
  if (takes & TAKES_PINNED && strcmp (name, "pinned") == 0)
    {
      if (value->type != SRV_JSON_BOOL)
        return bad ("pinned", "a boolean", error);
      body->pinned = value->boolean;
      return TRUE;
    }
  return srv_error_set (error, 400, "unknown_parameter", NULL,
                        "The body has a member that is not known");
}

/* Reads a body with the members that @takes names; an empty body is an empty object. FALSE after the message was
 * answered. */
static gboolean
read_body (SoupServerMessage *msg, guint takes, Body *body)
{
  g_autoptr (GBytes) bytes = soup_message_body_flatten (soup_server_message_get_request_body (msg));
  g_autoptr (SrvJson) json = NULL;
  SrvError error = { 0 };
  gsize n;
  const char *text = g_bytes_get_data (bytes, &n);
  gboolean ok;

  *body = (Body){ .keep = -1, .pinned = TRUE };
  if (n == 0)
    return TRUE;
  json = srv_request_read_object (text, n, &error);
  ok = json != NULL;
  for (guint i = 0; ok && i < json->names->len; i++)
    ok = take (body, takes, json->names->pdata[i], json->items->pdata[i], &error);
  if (!ok)
    {
      g_clear_pointer (&body->name, g_free);
      srv_refuse (msg, &error);
    }
  return ok;
}

/* A name that nobody has; FALSE with @error when the wanted one is taken. */
static gboolean
choose_name (QuireServer *self, Body *body, SrvError *error)
{
  if (body->name != NULL && srv_session_find (self, body->name) != NULL)
    return srv_error_set (error, 409, "session_exists", "session_id",
                          "There is a session of that name");
  if (body->name == NULL)
    body->name = g_strdup_printf ("s-%08x%08x", g_random_int (), g_random_int ());
  return TRUE;
}

/* @session: NULL: there is none, for @error, which is cleared. */
static void
answer_new (QuireServer *self, SoupServerMessage *msg, SrvSession *session, SrvError *error)
{
  if (session != NULL)
    answer_session (self, msg, session, 201);
  else
    srv_refuse (msg, error);
}

void
srv_route_session_new (QuireServer *self, SoupServerMessage *msg, const char *arg)
{
  SrvError error = { 0 };
  SrvSession *session = NULL;
  qe_cache_config cache = self->options.cache;
  Body body;

  if (!srv_require_engine (self, msg) || !read_body (msg, TAKES_NAME | TAKES_MODE, &body))
    return;
  if (body.has_mode)
    cache.mode = body.mode;
  if (choose_name (self, &body, &error))
    session = srv_session_add (self, body.name, &cache, 0, &error);
  answer_new (self, msg, session, &error);
  g_free (body.name);
}

void
srv_route_session_fork (QuireServer *self, SoupServerMessage *msg, const char *arg)
{
  SrvSession *parent = require_session (self, msg, arg), *session = NULL;
  g_autoptr (GError) cause = NULL;
  SrvError error = { 0 };
  qe_session_id id = 0, parent_id;
  qe_cache_config cache;
  Body body;

  if (parent == NULL || !read_body (msg, TAKES_NAME | TAKES_KEEP, &body))
    return;
  parent_id = parent->id;
  cache = parent->cache;
  parent->n_running++; /* making room must not take the parent */
  if (choose_name (self, &body, &error) && srv_session_make_room (self, &error))
    {
      id = qe_engine_fork_session (self->engine, parent_id,
                                   body.keep < 0 ? QE_KEEP_ALL : (uint32_t)body.keep, &cause);
      if (id == 0)
        srv_error_from_engine (&error, cause);
    }
  parent->n_running--;
  if (id != 0)
    session = srv_session_add (self, body.name, &cache, id, &error);
  answer_new (self, msg, session, &error);
  g_free (body.name);
}

void
srv_route_session_pin (QuireServer *self, SoupServerMessage *msg, const char *arg)
{
  SrvSession *session = require_session (self, msg, arg);
  Body body;

  if (session == NULL || !read_body (msg, TAKES_PINNED, &body))
    return;
  session->pinned = body.pinned;
  if (body.pinned)
    qe_engine_prefetch_session (self->engine, session->id);
  answer_session (self, msg, session, 200);
}

void
srv_route_session_delete (QuireServer *self, SoupServerMessage *msg, const char *arg)
{
  SrvSession *session = require_session (self, msg, arg);
  GString *out;

  if (session == NULL)
    return;
  out = g_string_new ("{");
  srv_json_add_member (out, "id", session->name);
  g_string_append (out, ",\"object\":\"session.deleted\",\"deleted\":true}");
  srv_session_remove (self, session);
  srv_answer (msg, 200, "application/json", out);
}
