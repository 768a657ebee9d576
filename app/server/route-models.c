/* route-models.c: /v1/models and /health. */
#include "app/server/server-private.h"

#include <string.h>

/* "Quire Demo" -> "quire-demo": clients pass it in URLs and on command lines. */
char *
srv_dup_model_id (const qe_engine_status *status)
{
  char *id;

  if (status->state != QE_ENGINE_READY || status->model == NULL)
    return NULL;
  id = g_ascii_strdown (status->model->name, -1);
  for (char *p = id; *p != '\0'; p++)
    if (!g_ascii_isalnum (*p) && strchr ("._-", *p) == NULL)
      *p = '-';
  return id;
}

static void
add_model (QuireServer *self, const qe_engine_status *status, GString *out)
{
  const qe_model_info *m = status->model;
  g_autofree char *id = srv_dup_model_id (status);

  g_string_append (out, "{");
  srv_json_add_member (out, "id", id);
  g_string_append_printf (out, ",\"object\":\"model\",\"created\":%" G_GINT64_FORMAT ",",
                          self->created);
  srv_json_add_member (out, "owned_by", "local");
  g_string_append_c (out, ',');
  srv_json_add_member (out, "name", m->name);
  g_string_append_printf (out,
                          ",\"max_model_len\":%u,\"parameters\":%" G_GUINT64_FORMAT
                          ",\"vocabulary\":%u,\"kv_bytes_per_token\":%" G_GUINT64_FORMAT
                          ",\"has_thinking\":%s,",
                          m->context_max, m->n_params, m->vocab, m->kv_bytes_per_token,
                          m->has_thinking ? "true" : "false");
  srv_json_add_member (out, "backend", status->backend);
  g_string_append (out, ",\"defaults\":{\"temperature\":");
  srv_json_add_number (out, m->temperature);
  g_string_append (out, ",\"top_p\":");
  srv_json_add_number (out, m->top_p);
  g_string_append (out, ",\"min_p\":");
  srv_json_add_number (out, m->min_p);
  g_string_append_printf (out, ",\"top_k\":%u}}", m->top_k);
}

void
srv_route_models (QuireServer *self, SoupServerMessage *msg, const char *arg)
{
  GString *out = g_string_new ("{\"object\":\"list\",\"data\":[");
  qe_engine_status status;

  srv_get_status (self, &status);
  if (status.state == QE_ENGINE_READY && status.model != NULL)
    add_model (self, &status, out);
  g_string_append (out, "]}");
  qe_engine_status_clear (&status);
  srv_answer (msg, 200, "application/json", out);
}

void
srv_route_model (QuireServer *self, SoupServerMessage *msg, const char *arg)
{
  SrvError error = { 0 };
  qe_engine_status status;
  g_autofree char *id = NULL;

  srv_get_status (self, &status);
  id = srv_dup_model_id (&status);
  if (g_strcmp0 (id, arg) == 0)
    {
      GString *out = g_string_new (NULL);

      add_model (self, &status, out);
      srv_answer (msg, 200, "application/json", out);
    }
  else
    {
      srv_error_set (&error, 404, "model_not_found", "model", "There is no such model");
      srv_refuse (msg, &error);
    }
  qe_engine_status_clear (&status);
}

void
srv_route_health (QuireServer *self, SoupServerMessage *msg, const char *arg)
{
  static const char *const states[]
      = { "no_model", "loading", "ok", "failed", "device_lost", "released" };
  GString *out = g_string_new ("{");
  qe_engine_status status;
  gboolean ready;

  srv_get_status (self, &status);
  ready = status.state == QE_ENGINE_READY;
  srv_json_add_member (out, "status", states[status.state]);
  g_string_append_c (out, '}');
  qe_engine_status_clear (&status);
  if (!ready)
    soup_message_headers_replace (soup_server_message_get_response_headers (msg), "Retry-After",
                                  "1");
  srv_answer (msg, ready ? 200 : 503, "application/json", out);
}
