/* server-error.c: see server-error.h. */
#include "app/server/server-error.h"

#include "app/server/server-json.h"
#include "engine/qe.h"

void
srv_error_clear (SrvError *error)
{
  g_free (error->message);
  g_free (error->param);
  *error = (SrvError){ 0 };
}

gboolean
srv_error_set (SrvError *error, guint status, const char *code, const char *param,
               const char *format, ...)
{
  va_list args;

  g_assert (error->status == 0 && status != 0);
  va_start (args, format);
  error->message = g_strdup_vprintf (format, args);
  va_end (args);
  error->status = status;
  error->code = code;
  error->param = g_strdup (param);
  return FALSE;
}

gboolean
srv_error_no_model (SrvError *error)
{
  return srv_error_set (error, 503, "model_not_ready", NULL, "No model is ready to answer");
}

gboolean
srv_error_for_state (SrvError *error, qe_engine_state state)
{
  static const char *const reasons[] = {
    [QE_ENGINE_EMPTY] = "No model is loaded",
    [QE_ENGINE_LOADING] = "The model is being loaded; try again soon",
    [QE_ENGINE_FAILED] = "The model could not be loaded",
    [QE_ENGINE_LOST] = "The computing device was lost; the model has to be loaded again",
    [QE_ENGINE_RELEASED] = "The model’s memory was given back while nobody asked; it is being "
                           "loaded again: try again soon",
  };
  const char *reason = state < G_N_ELEMENTS (reasons) ? reasons[state] : NULL;

  if (reason == NULL)
    return srv_error_no_model (error);
  return srv_error_set (error, 503, state == QE_ENGINE_LOST ? "device_lost" : "model_not_ready",
                        NULL, "%s", reason);
}

gboolean
srv_error_from_engine (SrvError *error, const GError *cause)
{
  gint code = cause != NULL && cause->domain == QE_ERROR ? cause->code : QE_ERROR_FAILED;

  switch (code)
    {
    case QE_ERROR_INVALID:
      return srv_error_set (error, 400, "invalid_value", NULL, "%s", cause->message);
    case QE_ERROR_CONTEXT_LENGTH:
      return srv_error_set (error, 400, "context_length_exceeded", "messages", "%s",
                            cause->message);
    case QE_ERROR_NO_MEMORY:
      return srv_error_set (error, 400, "cache_memory_exceeded", "messages", "%s", cause->message);
    case QE_ERROR_BUSY:
      return srv_error_set (error, 429, "busy", NULL, "%s", cause->message);
    case QE_ERROR_NOT_FOUND:
      return srv_error_set (error, 404, "session_not_found", "session_id", "%s", cause->message);
    case QE_ERROR_NUMERIC:
      return srv_error_set (error, 500, "numeric", NULL, "%s", cause->message);
    case QE_ERROR_DEVICE_LOST:
      return srv_error_set (error, 503, "device_lost", NULL, "The computing device was lost");
    case QE_ERROR_CANCELLED:
      return srv_error_set (error, 503, "cancelled", NULL, "The request was cancelled");
    default: /* files and formats: their messages name places on the disk */
      return srv_error_no_model (error);
    }
}

const char *
srv_error_type (guint status)
{
  switch (status)
    {
    case 401:
      return "authentication_error";
    case 403:
    case 421:
      return "permission_error";
    case 404:
      return "not_found_error";
    case 429:
      return "rate_limit_error";
    default:
      return status >= 500 ? "server_error" : "invalid_request_error";
    }
}

void
srv_error_write (const SrvError *error, GString *out)
{
  g_string_append (out, "{\"error\":{");
  srv_json_add_member (out, "message", error->message);
  g_string_append_c (out, ',');
  srv_json_add_member (out, "type", srv_error_type (error->status));
  g_string_append_c (out, ',');
  srv_json_add_member (out, "param", error->param);
  g_string_append_c (out, ',');
  srv_json_add_member (out, "code", error->code);
  g_string_append (out, "}}");
}
