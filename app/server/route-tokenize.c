/* route-tokenize.c: /tokenize and /detokenize. Both work on a thread: a body may hold megabytes of text. */
#include "app/server/server-private.h"

#include <string.h>

typedef struct
{
  SrvExchange *x; /* NULL once the peer has gone */
  qe_tokenizer *tokenizer;
  SrvJson *body;
  gboolean is_decode;
  guint context_max;
} Work;

static void
work_free (Work *work)
{
  g_clear_pointer (&work->tokenizer, qe_tokenizer_unref);
  srv_json_free (work->body);
  g_free (work);
}

static GString *
encode (Work *work, SrvError *error)
{
  const SrvJson *prompt = srv_json_get (work->body, "prompt");
  const SrvJson *added = srv_json_get (work->body, "parse_special");
  g_autoptr (GArray) ids = g_array_new (FALSE, FALSE, sizeof (guint32));
  g_autoptr (GError) cause = NULL;
  GString *out;

  if (!qe_tokenizer_encode (
          work->tokenizer, prompt->text, prompt->n_text,
          added != NULL && added->boolean ? QE_ENCODE_ADDED_TOKENS : QE_ENCODE_PLAIN, ids, &cause))
    {
      srv_error_from_engine (error, cause);
      return NULL;
    }
  out = g_string_new (NULL);
  g_string_append_printf (out, "{\"count\":%u,\"max_model_len\":%u,\"tokens\":[", ids->len,
                          work->context_max);
  for (guint i = 0; i < ids->len; i++)
    g_string_append_printf (out, "%s%u", i > 0 ? "," : "", g_array_index (ids, guint32, i));
  g_string_append (out, "]}");
  return out;
}

static GString *
decode (Work *work, SrvError *error)
{
  const SrvJson *tokens = srv_json_get (work->body, "tokens");
  g_autoptr (GArray) ids = g_array_new (FALSE, FALSE, sizeof (guint32));
  g_autofree char *text = NULL;
  GString *out;
  gsize n;

  for (guint i = 0; i < tokens->items->len; i++)
    {
      const SrvJson *item = tokens->items->pdata[i];
      guint32 id = (guint32)item->integer;

      if (item->type != SRV_JSON_NUMBER || !item->is_integer || item->integer < 0
          || item->integer > G_MAXUINT32 || !qe_tokenizer_has_token (work->tokenizer, id))
        {
          srv_error_set (error, 400, "invalid_value", "tokens", "tokens[%u]: is no token's id", i);
          return NULL;
        }
      g_array_append_val (ids, id);
    }
  text = qe_tokenizer_decode (work->tokenizer, (const uint32_t *)(gpointer)ids->data, ids->len,
                              false, &n);
  out = g_string_new ("{\"prompt\":");
  srv_json_add_string (out, text, (gssize)n);
  g_string_append_c (out, '}');
  return out;
}

typedef struct
{
  GString *out;
  SrvError error;
} Result;

static void
thread (GTask *task, gpointer source, gpointer data, GCancellable *cancellable)
{
  Work *work = data;
  Result *result = g_new0 (Result, 1);

  result->out = work->is_decode ? decode (work, &result->error) : encode (work, &result->error);
  g_task_return_pointer (task, result, NULL);
}

static void
done_cb (GObject *source, GAsyncResult *task, gpointer user)
{
  Work *work = user;
  Result *result = g_task_propagate_pointer (G_TASK (task), NULL);

  if (work->x != NULL && result->out != NULL)
    srv_exchange_answer (work->x, 200, "application/json", result->out);
  else if (work->x != NULL)
    srv_exchange_refuse (work->x, &result->error);
  else if (result->out != NULL)
    g_string_free (result->out, TRUE);
  srv_error_clear (&result->error);
  g_free (result);
  work_free (work);
}

static void
closed_cb (SrvExchange *x, gpointer user)
{
  ((Work *)user)->x = NULL;
}

static gboolean
check_body (const SrvJson *body, const char *member, SrvJsonType type, const char *flag,
            SrvError *error)
{
  const SrvJson *value = srv_json_get (body, member);

  for (guint i = 0; i < body->names->len; i++)
    {
      const char *name = body->names->pdata[i];
      const SrvJson *item = body->items->pdata[i];

      if (g_strcmp0 (name, flag) == 0 && item->type != SRV_JSON_BOOL)
        return srv_error_set (error, 400, "invalid_type", flag, "%s: expected a boolean", flag);
      if (strcmp (name, member) != 0 && g_strcmp0 (name, flag) != 0 && strcmp (name, "model") != 0)
        return srv_error_set (error, 400, "unknown_parameter", NULL,
                              "The body has a member that is not known");
    }
  if (value == NULL || value->type != type)
    return srv_error_set (error, 400, "invalid_type", member, "%s: expected %s", member,
                          srv_json_type_name (type));
  return TRUE;
}

static void
route (QuireServer *self, SoupServerMessage *msg, gboolean is_decode)
{
  g_autoptr (GBytes) bytes = soup_message_body_flatten (soup_server_message_get_request_body (msg));
  g_autoptr (GTask) task = NULL;
  SrvError error = { 0 };
  Work *work = g_new0 (Work, 1);
  qe_engine_status status;
  gsize n;
  const char *text = g_bytes_get_data (bytes, &n);

  work->is_decode = is_decode;
  srv_get_status (self, &status);
  work->context_max = status.model != NULL ? status.model->context_max : 0;
  qe_engine_status_clear (&status);
  work->body = srv_request_read_object (text != NULL ? text : "", n, &error);
  if (work->body == NULL
      || !(is_decode ? check_body (work->body, "tokens", SRV_JSON_ARRAY, NULL, &error)
                     : check_body (work->body, "prompt", SRV_JSON_STRING, "parse_special", &error)))
    ;
  else if (self->engine == NULL
           || (work->tokenizer = qe_engine_dup_tokenizer (self->engine)) == NULL)
    srv_error_no_model (&error);
  else
    {
      work->x = srv_exchange_new (self, msg);
      srv_exchange_set_funcs (work->x, closed_cb, NULL, work);
      task = g_task_new (NULL, NULL, done_cb, work);
      g_task_set_task_data (task, work, NULL);
      g_task_run_in_thread (task, thread);
      return;
    }
  work_free (work);
  srv_refuse (msg, &error);
}

void
srv_route_tokenize (QuireServer *self, SoupServerMessage *msg, const char *arg)
{
  route (self, msg, FALSE);
}

void
srv_route_detokenize (QuireServer *self, SoupServerMessage *msg, const char *arg)
{
  route (self, msg, TRUE);
}
