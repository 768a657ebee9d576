/* server-request.c: bodies become requests. See server-request.h for the rule of unknown members.
 *
 * One table lists every member of both endpoints with the function that takes it. A function gets a value that is not
 * null, checks it, and either stores it or says what was wrong. */
#include "app/server/server-request.h"

#include <math.h>
#include <string.h>

typedef gboolean (*TakeFunc) (SrvRequest *r, const char *name, const SrvJson *value,
                              SrvError *error);

static gboolean
wrong_type (const char *name, const SrvJson *value, const char *expected, SrvError *error)
{
  return srv_error_set (error, 400, "invalid_type", name, "%s: expected %s, found %s", name,
                        expected, srv_json_type_name (value->type));
}

static gboolean
unsupported (const char *name, const char *what, SrvError *error)
{
  return srv_error_set (error, 400, "unsupported_parameter", name, "%s: %s", name, what);
}

/* ---- Plain values ---- */

static gboolean
take_string (const char *name, const SrvJson *value, gsize n_max, char **out, SrvError *error)
{
  if (value->type != SRV_JSON_STRING)
    return wrong_type (name, value, "a string", error);
  if (value->n_text > n_max || strlen (value->text) != value->n_text)
    return srv_error_set (error, 400, "invalid_value", name,
                          "%s: expected at most %" G_GSIZE_FORMAT " bytes without NUL", name,
                          n_max);
  g_free (*out);
  *out = g_strdup (value->text);
  return TRUE;
}

static gboolean
take_bool (const char *name, const SrvJson *value, gboolean *out, SrvError *error)
{
  if (value->type != SRV_JSON_BOOL)
    return wrong_type (name, value, "a boolean", error);
  *out = value->boolean;
  return TRUE;
}

static gboolean
take_range (const char *name, const SrvJson *value, double low, double high, double *out,
            SrvError *error)
{
  if (value->type != SRV_JSON_NUMBER)
    return wrong_type (name, value, "a number", error);
  if (value->number < low || value->number > high)
    return srv_error_set (error, 400, "invalid_value", name, "%s: expected %g to %g, found %g",
                          name, low, high, value->number);
  *out = value->number;
  return TRUE;
}

static gboolean
take_integer (const char *name, const SrvJson *value, gint64 low, gint64 high, gint64 *out,
              SrvError *error)
{
  if (value->type != SRV_JSON_NUMBER)
    return wrong_type (name, value, "a whole number", error);
  if (!value->is_integer || value->integer < low || value->integer > high)
    return srv_error_set (error, 400, "invalid_value", name,
                          "%s: expected a whole number from %" G_GINT64_FORMAT
                          " to %" G_GINT64_FORMAT,
                          name, low, high);
  *out = value->integer;
  return TRUE;
}

static gboolean
model (SrvRequest *r, const char *name, const SrvJson *value, SrvError *error)
{
  return take_string (name, value, 256, &r->model, error);
}

static gboolean
temperature (SrvRequest *r, const char *name, const SrvJson *value, SrvError *error)
{
  return take_range (name, value, 0, 2, &r->sampling.temperature, error);
}

static gboolean
top_p (SrvRequest *r, const char *name, const SrvJson *value, SrvError *error)
{
  return take_range (name, value, 0, 1, &r->sampling.top_p, error);
}

static gboolean
min_p (SrvRequest *r, const char *name, const SrvJson *value, SrvError *error)
{
  return take_range (name, value, 0, 1, &r->sampling.min_p, error);
}

static gboolean
top_k (SrvRequest *r, const char *name, const SrvJson *value, SrvError *error)
{
  return take_integer (name, value, -1, G_MAXINT32, &r->sampling.top_k, error);
}

static gboolean
presence_penalty (SrvRequest *r, const char *name, const SrvJson *value, SrvError *error)
{
  return take_range (name, value, -2, 2, &r->sampling.presence_penalty, error);
}

static gboolean
repetition_penalty (SrvRequest *r, const char *name, const SrvJson *value, SrvError *error)
{
  return take_range (name, value, 0.01, 100, &r->sampling.repetition_penalty, error);
}

static gboolean
seed (SrvRequest *r, const char *name, const SrvJson *value, SrvError *error)
{
  gint64 number = 0;

  if (!take_integer (name, value, G_MININT64, G_MAXINT64, &number, error))
    return FALSE;
  r->sampling.seed = (guint64)number;
  r->sampling.has_seed = true;
  return TRUE;
}

static gboolean
max_tokens (SrvRequest *r, const char *name, const SrvJson *value, SrvError *error)
{
  gint64 number = 0;

  if (!take_integer (name, value, 1, G_MAXINT64, &number, error))
    return FALSE;
  if (r->max_tokens != 0 && r->max_tokens != (guint32)MIN (number, G_MAXUINT32))
    return srv_error_set (error, 400, "invalid_value", name,
                          "max_tokens and max_completion_tokens differ");
  r->max_tokens = (guint32)MIN (number, G_MAXUINT32);
  return TRUE;
}

static gboolean
n_choices (SrvRequest *r, const char *name, const SrvJson *value, SrvError *error)
{
  gint64 number = 0;

  if (!take_integer (name, value, 1, SRV_CHOICES_MAX, &number, error))
    return FALSE;
  r->n = (guint)number;
  return TRUE;
}

static gboolean
add_stop (SrvRequest *r, const char *name, const SrvJson *value, SrvError *error)
{
  char *text = NULL;

  if (value->type == SRV_JSON_STRING && value->n_text == 0)
    return srv_error_set (error, 400, "invalid_value", name, "%s: a stop string must not be empty",
                          name);
  if (!take_string (name, value, 4096, &text, error))
    return FALSE;
  g_ptr_array_add (r->stop, text);
  return TRUE;
}

static gboolean
stop (SrvRequest *r, const char *name, const SrvJson *value, SrvError *error)
{
  if (value->type == SRV_JSON_STRING)
    return add_stop (r, name, value, error);
  if (value->type != SRV_JSON_ARRAY)
    return wrong_type (name, value, "a string or an array of strings", error);
  if (value->items->len > SRV_STOP_MAX)
    return srv_error_set (error, 400, "invalid_value", name,
                          "%s: expected at most %u strings, found %u", name, SRV_STOP_MAX,
                          value->items->len);
  for (guint i = 0; i < value->items->len; i++)
    if (!add_stop (r, name, value->items->pdata[i], error))
      return FALSE;
  return TRUE;
}

static gboolean
stream (SrvRequest *r, const char *name, const SrvJson *value, SrvError *error)
{
  return take_bool (name, value, &r->stream, error);
}

static gboolean
stream_options (SrvRequest *r, const char *name, const SrvJson *value, SrvError *error)
{
  if (value->type != SRV_JSON_OBJECT)
    return wrong_type (name, value, "an object", error);
  for (guint i = 0; i < value->names->len; i++)
    {
      const char *member = value->names->pdata[i];
      const SrvJson *v = value->items->pdata[i];
      gboolean ignored = FALSE;

      if (strcmp (member, "include_usage") == 0)
        {
          if (v->type != SRV_JSON_NULL
              && !take_bool ("stream_options.include_usage", v, &r->include_usage, error))
            return FALSE;
        }
      else if (strcmp (member, "include_obfuscation") == 0)
        {
          if (v->type != SRV_JSON_NULL
              && !take_bool ("stream_options.include_obfuscation", v, &ignored, error))
            return FALSE;
        }
      else
        return srv_error_set (error, 400, "unknown_parameter", name,
                              "stream_options has a member that is not known");
    }
  return TRUE;
}

static gboolean
return_progress (SrvRequest *r, const char *name, const SrvJson *value, SrvError *error)
{
  return take_bool (name, value, &r->progress, error);
}

static gboolean
use_cache (SrvRequest *r, const char *name, const SrvJson *value, SrvError *error)
{
  return take_bool (name, value, &r->use_cache, error);
}

static gboolean
session_id (SrvRequest *r, const char *name, const SrvJson *value, SrvError *error)
{
  if (!take_string (name, value, SRV_SESSION_NAME_MAX, &r->session, error))
    return FALSE;
  return srv_session_name_is_valid (r->session)
         || srv_error_set (error, 400, "invalid_value", name,
                           "session_id: expected 1 to 64 of A-Z a-z 0-9 . _ -, the first no dot");
}

static gboolean
cache_mode (SrvRequest *r, const char *name, const SrvJson *value, SrvError *error)
{
  g_autofree char *text = NULL;
  g_autoptr (GError) cause = NULL;

  if (!take_string (name, value, 32, &text, error))
    return FALSE;
  if (!qe_cache_mode_parse (text, &r->mode, &cause))
    return srv_error_set (error, 400, "invalid_value", name, "%s", cause->message);
  r->has_mode = TRUE;
  return TRUE;
}

static gboolean
enable_thinking (SrvRequest *r, const char *name, const SrvJson *value, SrvError *error)
{
  gboolean on = FALSE;

  if (!take_bool (name, value, &on, error))
    return FALSE;
  r->thinking = on ? QE_THINKING_ON : QE_THINKING_OFF;
  return TRUE;
}

/* Where vLLM and SGLang have Qwen3's switch. */
static gboolean
chat_template_kwargs (SrvRequest *r, const char *name, const SrvJson *value, SrvError *error)
{
  if (value->type != SRV_JSON_OBJECT)
    return wrong_type (name, value, "an object", error);
  for (guint i = 0; i < value->names->len; i++)
    if (strcmp (value->names->pdata[i], "enable_thinking") != 0)
      return srv_error_set (error, 400, "unknown_parameter", name,
                            "chat_template_kwargs: the only member known is enable_thinking");
    else if (!enable_thinking (r, "chat_template_kwargs.enable_thinking", value->items->pdata[i],
                               error))
      return FALSE;
  return TRUE;
}

/* ---- What changes no answer, and what is not offered ---- */

static gboolean
no_effect (SrvRequest *r, const char *name, const SrvJson *value, SrvError *error)
{
  return TRUE;
}

static gboolean
only_false (SrvRequest *r, const char *name, const SrvJson *value, SrvError *error)
{
  if (value->type == SRV_JSON_BOOL && !value->boolean)
    return TRUE;
  return unsupported (name, "is not supported yet; leave it out or set it to false", error);
}

static gboolean
only_empty (SrvRequest *r, const char *name, const SrvJson *value, SrvError *error)
{
  if (value->type != SRV_JSON_ARRAY && value->type != SRV_JSON_OBJECT)
    return wrong_type (name, value, "an array or an object", error);
  if (value->items->len == 0)
    return TRUE;
  return unsupported (name, "is not supported; use tools", error);
}

/* ---- Tools ---- */

static gboolean
tools (SrvRequest *r, const char *name, const SrvJson *value, SrvError *error)
{
  if (value->type != SRV_JSON_ARRAY)
    return wrong_type (name, value, "an array", error);
  if (value->items->len > 0)
    r->tools = g_strndup (value->source, value->n_source);
  return TRUE;
}

static gboolean
named_tool (SrvRequest *r, const char *name, const SrvJson *value, SrvError *error)
{
  const SrvJson *type = srv_json_get (value, "type"), *function = srv_json_get (value, "function"),
                *wanted = srv_json_get (function, "name");

  if (type == NULL || type->type != SRV_JSON_STRING || strcmp (type->text, "function") != 0)
    return unsupported (name, "the only type is “function”", error);
  if (wanted == NULL || wanted->type != SRV_JSON_STRING)
    return srv_error_set (error, 400, "invalid_value", name,
                          "tool_choice: expected a string function.name");
  r->tool_choice = SRV_TOOLS_REQUIRED;
  return take_string ("tool_choice.function.name", wanted, 256, &r->tool_name, error);
}

static gboolean
tool_choice (SrvRequest *r, const char *name, const SrvJson *value, SrvError *error)
{
  static const char *const names[] = { "auto", "none", "required" };

  if (value->type == SRV_JSON_OBJECT)
    return named_tool (r, name, value, error);
  if (value->type != SRV_JSON_STRING)
    return wrong_type (name, value, "a string or an object", error);
  for (guint i = 0; i < G_N_ELEMENTS (names); i++)
    if (strcmp (value->text, names[i]) == 0)
      {
        r->tool_choice = (SrvToolChoice)i;
        return TRUE;
      }
  return srv_error_set (error, 400, "invalid_value", name,
                        "tool_choice: expected auto, none, required or a function");
}

static gboolean
parallel_tool_calls (SrvRequest *r, const char *name, const SrvJson *value, SrvError *error)
{
  return take_bool (name, value, &r->parallel_tool_calls, error);
}

static gboolean
only_no_function (SrvRequest *r, const char *name, const SrvJson *value, SrvError *error)
{
  if (value->type == SRV_JSON_STRING
      && (strcmp (value->text, "none") == 0 || strcmp (value->text, "auto") == 0))
    return TRUE;
  return unsupported (name, "is not supported; use tool_choice", error);
}

/* ---- What a reply may be ---- */

static gboolean
json_schema (SrvRequest *r, const SrvJson *format, SrvError *error)
{
  const SrvJson *holder = srv_json_get (format, "json_schema"),
                *schema = srv_json_get (holder, "schema"),
                *strict = srv_json_get (holder, "strict");
  g_autoptr (GString) text = g_string_new (NULL);
  g_autoptr (GError) cause = NULL;

  if (schema == NULL || schema->type != SRV_JSON_OBJECT)
    return srv_error_set (error, 400, "invalid_value", "response_format",
                          "response_format: expected an object json_schema.schema");
  if (strict != NULL && strict->type != SRV_JSON_BOOL && strict->type != SRV_JSON_NULL)
    return wrong_type ("response_format", strict, "true or false as json_schema.strict", error);
  srv_json_write (text, schema);
  r->formats = TRUE;
  r->constraint = qe_constraint_new_json_schema (text->str, (gssize)text->len, &cause);
  r->schema = g_string_free (g_steal_pointer (&text), FALSE);
  return r->constraint != NULL
         || srv_error_set (error, 400, "invalid_schema", "response_format", "response_format: %s",
                           cause->message);
}

static gboolean
response_format (SrvRequest *r, const char *name, const SrvJson *value, SrvError *error)
{
  const SrvJson *type = srv_json_get (value, "type");

  if (value->type != SRV_JSON_OBJECT)
    return wrong_type (name, value, "an object", error);
  if (type == NULL || type->type != SRV_JSON_STRING)
    return srv_error_set (error, 400, "invalid_value", name,
                          "response_format: expected a member “type”");
  if (strcmp (type->text, "text") == 0)
    return TRUE;
  if (strcmp (type->text, "json_schema") == 0)
    return json_schema (r, value, error);
  if (strcmp (type->text, "json_object") == 0)
    {
      r->constraint = qe_constraint_new_json_object ();
      r->formats = TRUE;
      return TRUE;
    }
  return unsupported (name, "the types are text, json_object and json_schema", error);
}

/* ---- Log-probabilities, biases ---- */

static gboolean
frequency_penalty (SrvRequest *r, const char *name, const SrvJson *value, SrvError *error)
{
  return take_range (name, value, -2, 2, &r->sampling.frequency_penalty, error);
}

static gboolean
logprobs (SrvRequest *r, const char *name, const SrvJson *value, SrvError *error)
{
  return take_bool (name, value, &r->logprobs, error);
}

static gboolean
top_logprobs (SrvRequest *r, const char *name, const SrvJson *value, SrvError *error)
{
  gint64 number = 0;

  if (!take_integer (name, value, 0, QE_TOP_LOGPROBS_MAX, &number, error))
    return FALSE;
  r->n_top_logprobs = (guint)number;
  return TRUE;
}

/* A completion's: how many beside the drawn token; 0 gives the drawn tokens' alone. */
static gboolean
completion_logprobs (SrvRequest *r, const char *name, const SrvJson *value, SrvError *error)
{
  if (!top_logprobs (r, name, value, error))
    return FALSE;
  r->logprobs = TRUE;
  return TRUE;
}

static gboolean
logit_bias (SrvRequest *r, const char *name, const SrvJson *value, SrvError *error)
{
  if (value->type != SRV_JSON_OBJECT)
    return wrong_type (name, value, "an object of token ids and numbers", error);
  if (value->items->len > SRV_LOGIT_BIAS_MAX)
    return srv_error_set (error, 400, "invalid_value", name,
                          "logit_bias: expected at most %u tokens", SRV_LOGIT_BIAS_MAX);
  for (guint i = 0; i < value->items->len; i++)
    {
      qe_logit_bias bias = { 0 };
      guint64 id;
      double number = 0;

      if (!g_ascii_string_to_unsigned (value->names->pdata[i], 10, 0, G_MAXUINT32, &id, NULL))
        return srv_error_set (error, 400, "invalid_value", name,
                              "logit_bias: a name is no token id");
      if (!take_range (name, value->items->pdata[i], -100, 100, &number, error))
        return FALSE;
      bias.id = (uint32_t)id;
      bias.value = (float)number;
      for (guint k = 0; k < r->logit_bias->len; k++)
        if (g_array_index (r->logit_bias, qe_logit_bias, k).id == bias.id)
          return srv_error_set (error, 400, "invalid_value", name,
                                "logit_bias: names a token twice");
      g_array_append_val (r->logit_bias, bias);
    }
  return TRUE;
}

static gboolean
best_of (SrvRequest *r, const char *name, const SrvJson *value, SrvError *error)
{
  if (value->type == SRV_JSON_NUMBER && value->is_integer && value->integer == 1)
    return TRUE;
  return unsupported (name, "is not supported; leave it out or set it to 1", error);
}

static gboolean
only_text (SrvRequest *r, const char *name, const SrvJson *value, SrvError *error)
{
  if (value->type == SRV_JSON_ARRAY && value->items->len == 1)
    {
      const SrvJson *item = value->items->pdata[0];

      if (item->type == SRV_JSON_STRING && strcmp (item->text, "text") == 0)
        return TRUE;
    }
  return unsupported (name, "the only output is “text”", error);
}

static gboolean
never (SrvRequest *r, const char *name, const SrvJson *value, SrvError *error)
{
  return unsupported (name, "is not supported", error);
}

/* ---- Messages ---- */

static gboolean
bad_content (guint i, const char *what, SrvError *error)
{
  return srv_error_set (error, 400, "invalid_value", "messages", "messages[%u].content: %s", i,
                        what);
}

/* Text parts are joined with nothing between them. */
static gboolean
read_parts (guint i, const SrvJson *parts, GString *out, SrvError *error)
{
  for (guint k = 0; k < parts->items->len; k++)
    {
      const SrvJson *part = parts->items->pdata[k], *type = srv_json_get (part, "type"),
                    *text = srv_json_get (part, "text");

      if (type == NULL || type->type != SRV_JSON_STRING)
        return bad_content (i, "expected parts with a member “type”", error);
      if (strcmp (type->text, "text") != 0)
        {
          gboolean known = strcmp (type->text, "image_url") == 0
                           || strcmp (type->text, "input_audio") == 0
                           || strcmp (type->text, "file") == 0;

          return srv_error_set (error, 400, "unsupported_content", "messages",
                                "messages[%u].content: parts of type “%s” are not supported; this "
                                "model reads text",
                                i, known ? type->text : "other than text");
        }
      if (text == NULL || text->type != SRV_JSON_STRING)
        return bad_content (i, "a text part needs a string “text”", error);
      g_string_append_len (out, text->text, (gssize)text->n_text);
    }
  return TRUE;
}

static gboolean
read_content (guint i, const SrvJson *content, gboolean may_be_null, GString *out, SrvError *error)
{
  if (content == NULL || content->type == SRV_JSON_NULL)
    return may_be_null || bad_content (i, "is missing", error);
  if (content->type == SRV_JSON_ARRAY)
    return read_parts (i, content, out, error);
  if (content->type != SRV_JSON_STRING)
    return srv_error_set (error, 400, "invalid_type", "messages",
                          "messages[%u].content: expected a string or an array, found %s", i,
                          srv_json_type_name (content->type));
  g_string_append_len (out, content->text, (gssize)content->n_text);
  return TRUE;
}

static gboolean
read_role (guint i, const SrvJson *role, qe_role *out, SrvError *error)
{
  static const struct
  {
    const char *name;
    qe_role role;
  } roles[] = { { "system", QE_ROLE_SYSTEM },
                { "developer", QE_ROLE_SYSTEM },
                { "user", QE_ROLE_USER },
                { "assistant", QE_ROLE_ASSISTANT },
                { "tool", QE_ROLE_TOOL } };

  if (role != NULL && role->type == SRV_JSON_STRING)
    {
      for (guint k = 0; k < G_N_ELEMENTS (roles); k++)
        if (strcmp (role->text, roles[k].name) == 0)
          {
            *out = roles[k].role;
            return TRUE;
          }
      if (strcmp (role->text, "function") == 0)
        return srv_error_set (error, 400, "unsupported_parameter", "messages",
                              "messages[%u].role: function is not supported; use tool", i);
    }
  return srv_error_set (error, 400, "invalid_value", "messages",
                        "messages[%u].role: expected system, developer, user, assistant or tool",
                        i);
}

static gboolean
is_empty (const SrvJson *value)
{
  return value == NULL || value->type == SRV_JSON_NULL
         || (value->type == SRV_JSON_ARRAY && value->items->len == 0);
}

/* What else a message may have: a name, which the template has no place for, and what replies of the API carry. */
static gboolean
check_members (guint i, const SrvJson *message, qe_role role, SrvError *error)
{
  static const char *const known[] = {
    "role",         "content",           "name",       "refusal",       "annotations", "audio",
    "tool_call_id", "reasoning_content", "tool_calls", "function_call", NULL
  };

  for (guint k = 0; k < message->names->len; k++)
    {
      const SrvJson *value = message->items->pdata[k];
      const char *name = message->names->pdata[k];

      if (!g_strv_contains (known, name))
        return srv_error_set (error, 400, "unknown_parameter", "messages",
                              "messages[%u] has a member that is not known", i);
      if (is_empty (value))
        continue;
      if (strcmp (name, "function_call") == 0)
        return srv_error_set (error, 400, "unsupported_parameter", "messages",
                              "messages[%u].function_call: is not supported; use tool_calls", i);
      if (strcmp (name, "tool_calls") == 0 && role != QE_ROLE_ASSISTANT)
        return srv_error_set (error, 400, "invalid_value", "messages",
                              "messages[%u].tool_calls: only messages of the assistant have calls",
                              i);
      if (strcmp (name, "tool_call_id") == 0
          && (role != QE_ROLE_TOOL || value->type != SRV_JSON_STRING))
        return srv_error_set (error, 400, "invalid_value", "messages",
                              "messages[%u].tool_call_id: expected a string, with role tool", i);
      if (strcmp (name, "audio") == 0)
        return srv_error_set (error, 400, "unsupported_content", "messages",
                              "messages[%u].audio: this model reads text", i);
    }
  return TRUE;
}

/* Text without NUL that lives as long as the request; NULL with @error. */
static const char *
keep_text (SrvRequest *r, guint i, const char *what, const SrvJson *value, SrvError *error)
{
  if (value == NULL || value->type != SRV_JSON_STRING || strlen (value->text) != value->n_text)
    {
      srv_error_set (error, 400, "invalid_value", "messages",
                     "messages[%u].%s: expected a string without NUL", i, what);
      return NULL;
    }
  g_ptr_array_add (r->texts, g_strdup (value->text));
  return r->texts->pdata[r->texts->len - 1];
}

/* Arguments are a string, which is put into the prompt as it is, so that what the model wrote finds its pages again; or, as
 * Qwen's own clients have them, an object. */
static gboolean
read_call (SrvRequest *r, guint i, const SrvJson *value, qe_tool_call *out, SrvError *error)
{
  const SrvJson *type = srv_json_get (value, "type"), *function = srv_json_get (value, "function"),
                *arguments = srv_json_get (function, "arguments");
  g_autoptr (GError) cause = NULL;
  char *spelled;

  if (function == NULL || function->type != SRV_JSON_OBJECT
      || (type != NULL && (type->type != SRV_JSON_STRING || strcmp (type->text, "function") != 0)))
    return srv_error_set (error, 400, "invalid_value", "messages",
                          "messages[%u].tool_calls: expected calls of the type “function”", i);
  out->name = keep_text (r, i, "tool_calls.function.name", srv_json_get (function, "name"), error);
  if (out->name == NULL)
    return FALSE;
  if (arguments == NULL || arguments->type != SRV_JSON_OBJECT)
    {
      out->arguments = keep_text (r, i, "tool_calls.function.arguments", arguments, error);
      return out->arguments != NULL;
    }
  spelled = qe_json_spell (arguments->source, (gssize)arguments->n_source, &cause);
  if (spelled == NULL)
    return srv_error_set (error, 400, "invalid_value", "messages", "messages[%u].tool_calls: %s", i,
                          cause->message);
  g_ptr_array_add (r->texts, spelled);
  out->arguments = spelled;
  return TRUE;
}

static gboolean
read_calls (SrvRequest *r, guint i, const SrvJson *calls, qe_message *out, SrvError *error)
{
  qe_tool_call *list;

  if (is_empty (calls))
    return TRUE;
  if (calls->type != SRV_JSON_ARRAY)
    return srv_error_set (error, 400, "invalid_type", "messages",
                          "messages[%u].tool_calls: expected an array, found %s", i,
                          srv_json_type_name (calls->type));
  list = g_new0 (qe_tool_call, calls->items->len);
  g_ptr_array_add (r->texts, list);
  for (guint k = 0; k < calls->items->len; k++)
    if (!read_call (r, i, calls->items->pdata[k], &list[k], error))
      return FALSE;
  out->calls = list;
  out->n_calls = calls->items->len;
  return TRUE;
}

static gboolean
read_message (SrvRequest *r, guint i, const SrvJson *message, SrvError *error)
{
  g_autoptr (GString) text = g_string_new (NULL);
  const SrvJson *reasoning = srv_json_get (message, "reasoning_content");
  qe_message out = { 0 };

  if (message->type != SRV_JSON_OBJECT)
    return srv_error_set (error, 400, "invalid_type", "messages",
                          "messages[%u]: expected an object, found %s", i,
                          srv_json_type_name (message->type));
  if (!read_role (i, srv_json_get (message, "role"), &out.role, error)
      || !check_members (i, message, out.role, error)
      || !read_content (i, srv_json_get (message, "content"), out.role == QE_ROLE_ASSISTANT, text,
                        error)
      || !read_calls (r, i, srv_json_get (message, "tool_calls"), &out, error))
    return FALSE;
  if (out.role == QE_ROLE_ASSISTANT && !is_empty (reasoning))
    {
      out.reasoning = keep_text (r, i, "reasoning_content", reasoning, error);
      if (out.reasoning == NULL)
        return FALSE;
    }
  out.n_bytes = (gssize)text->len;
  out.text = g_string_free (g_steal_pointer (&text), FALSE);
  g_ptr_array_add (r->texts, (char *)out.text);
  g_array_append_val (r->messages, out);
  return TRUE;
}

static gboolean
messages (SrvRequest *r, const char *name, const SrvJson *value, SrvError *error)
{
  if (value->type != SRV_JSON_ARRAY)
    return wrong_type (name, value, "an array", error);
  for (guint i = 0; i < value->items->len; i++)
    if (!read_message (r, i, value->items->pdata[i], error))
      return FALSE;
  return r->messages->len > 0
         || srv_error_set (error, 400, "invalid_value", name, "messages: expected at least one");
}

/* ---- The prompt of a completion ---- */

static gboolean
prompt (SrvRequest *r, const char *name, const SrvJson *value, SrvError *error)
{
  if (value->type == SRV_JSON_ARRAY && value->items->len == 1
      && ((const SrvJson *)value->items->pdata[0])->type != SRV_JSON_NUMBER)
    value = value->items->pdata[0]; /* one prompt in a list */
  if (value->type == SRV_JSON_STRING)
    {
      r->prompt = g_memdup2 (value->text, value->n_text + 1);
      r->n_prompt = value->n_text;
      return value->n_text > 0
             || srv_error_set (error, 400, "invalid_value", name, "prompt: is empty");
    }
  if (value->type != SRV_JSON_ARRAY)
    return wrong_type (name, value, "a string or an array of token ids", error);
  r->ids = g_array_sized_new (FALSE, FALSE, sizeof (guint32), value->items->len);
  for (guint i = 0; i < value->items->len; i++)
    {
      const SrvJson *item = value->items->pdata[i];
      guint32 id;

      if (item->type != SRV_JSON_NUMBER)
        return unsupported (name, "one prompt in a request: a string, or an array of token ids",
                            error);
      if (!item->is_integer || item->integer < 0 || item->integer > G_MAXUINT32)
        return srv_error_set (error, 400, "invalid_value", name, "prompt[%u]: is no token id", i);
      id = (guint32)item->integer;
      g_array_append_val (r->ids, id);
    }
  return r->ids->len > 0 || srv_error_set (error, 400, "invalid_value", name, "prompt: is empty");
}

/* ---- The table ---- */

#define CHAT (1u << SRV_CHAT)
#define COMPLETION (1u << SRV_COMPLETION)
#define BOTH (CHAT | COMPLETION)

static const struct
{
  const char *name;
  guint endpoints;
  TakeFunc take;
} members[] = {
  { "model", BOTH, model },
  { "messages", CHAT, messages },
  { "prompt", COMPLETION, prompt },
  { "temperature", BOTH, temperature },
  { "top_p", BOTH, top_p },
  { "top_k", BOTH, top_k },
  { "min_p", BOTH, min_p },
  { "presence_penalty", BOTH, presence_penalty },
  { "repetition_penalty", BOTH, repetition_penalty },
  { "seed", BOTH, seed },
  { "max_tokens", BOTH, max_tokens },
  { "max_completion_tokens", CHAT, max_tokens },
  { "n", BOTH, n_choices },
  { "stop", BOTH, stop },
  { "stream", BOTH, stream },
  { "stream_options", BOTH, stream_options },
  { "return_progress", BOTH, return_progress },
  { "use_cache", BOTH, use_cache },
  { "session_id", BOTH, session_id },
  { "cache_mode", BOTH, cache_mode },
  { "enable_thinking", CHAT, enable_thinking },
  { "chat_template_kwargs", CHAT, chat_template_kwargs },
  { "frequency_penalty", BOTH, frequency_penalty },
  { "logit_bias", BOTH, logit_bias },
  { "logprobs", CHAT, logprobs },
  { "logprobs", COMPLETION, completion_logprobs },
  { "top_logprobs", CHAT, top_logprobs },
  { "response_format", BOTH, response_format },
  { "tools", CHAT, tools },
  { "tool_choice", CHAT, tool_choice },
  { "parallel_tool_calls", CHAT, parallel_tool_calls },
  /* Not offered. */
  { "functions", CHAT, only_empty },
  { "function_call", CHAT, only_no_function },
  { "modalities", CHAT, only_text },
  { "audio", CHAT, never },
  { "prediction", CHAT, never },
  { "web_search_options", CHAT, never },
  { "reasoning_effort", CHAT, never },
  { "verbosity", CHAT, never },
  { "best_of", COMPLETION, best_of },
  { "echo", COMPLETION, only_false },
  { "suffix", COMPLETION, never },
  /* These change no answer. */
  { "user", BOTH, no_effect },
  { "metadata", CHAT, no_effect },
  { "store", CHAT, no_effect },
  { "service_tier", CHAT, no_effect },
  { "safety_identifier", CHAT, no_effect },
  { "prompt_cache_key", CHAT, no_effect },
  { "prompt_cache_retention", CHAT, no_effect },
};

const char **
srv_request_members (SrvEndpoint endpoint)
{
  g_autoptr (GPtrArray) out = g_ptr_array_new ();

  for (guint i = 0; i < G_N_ELEMENTS (members); i++)
    if (members[i].endpoints & (1u << endpoint))
      g_ptr_array_add (out, (char *)members[i].name);
  g_ptr_array_add (out, NULL);
  return (const char **)g_ptr_array_free (g_steal_pointer (&out), FALSE);
}

static gboolean
take_member (SrvRequest *r, const char *name, const SrvJson *value, SrvError *error)
{
  for (guint i = 0; i < G_N_ELEMENTS (members); i++)
    if (members[i].endpoints & (1u << r->endpoint) && strcmp (name, members[i].name) == 0)
      return value->type == SRV_JSON_NULL || members[i].take (r, members[i].name, value, error);
  /* The name is the caller's own text: it goes back only when it is short and plain. */
  for (const char *p = name; *p != '\0'; p++)
    if ((!g_ascii_isalnum (*p) && *p != '_') || p - name >= 64)
      name = "";
  return srv_error_set (error, 400, "unknown_parameter", *name != '\0' ? name : NULL,
                        "Unknown parameter%s%s", *name != '\0' ? ": " : "", name);
}

gboolean
srv_session_name_is_valid (const char *name)
{
  gsize n = strlen (name);

  if (n == 0 || n > SRV_SESSION_NAME_MAX || name[0] == '.')
    return FALSE;
  for (gsize i = 0; i < n; i++)
    if (!g_ascii_isalnum (name[i]) && strchr ("._-", name[i]) == NULL)
      return FALSE;
  return TRUE;
}

SrvJson *
srv_request_read_object (const char *body, gsize n, SrvError *error)
{
  g_autoptr (GError) cause = NULL;
  g_autoptr (SrvJson) json = srv_json_read (body, n, &cause);

  if (json == NULL)
    srv_error_set (error, 400, "invalid_json", NULL, "%s", cause->message);
  else if (json->type != SRV_JSON_OBJECT)
    srv_error_set (error, 400, "invalid_type", NULL, "The body: expected an object, found %s",
                   srv_json_type_name (json->type));
  else
    return g_steal_pointer (&json);
  return NULL;
}

gboolean
srv_request_may_call (const SrvRequest *r)
{
  return r->tools != NULL && r->tool_choice != SRV_TOOLS_NONE;
}

/* What the tools allow the reply to be:
 *   auto       text, or text and calls: free until a call begins, which is bound by its function's schema; with a
 *              response_format JSON of that format, or calls
 *   required   calls from the first token on, of the named function or of any; a response_format has no text to bind
 *   none       no call; the prompt has the tools all the same, so that its pages are those of the turns that may call */
static gboolean
bind_tools (SrvRequest *r, SrvError *error)
{
  g_autoptr (GError) cause = NULL;
  g_autoptr (qe_constraint) calls = NULL;

  if (r->tools == NULL)
    return r->tool_choice != SRV_TOOLS_REQUIRED
           || srv_error_set (error, 400, "invalid_value", "tool_choice",
                             "tool_choice: there are no tools to call");
  if (r->tool_choice == SRV_TOOLS_AUTO && r->formats)
    calls = qe_constraint_new_tool_call_or_json (r->tools, -1, r->parallel_tool_calls, r->schema,
                                                 -1, &cause);
  else if (r->tool_choice == SRV_TOOLS_AUTO)
    calls = qe_constraint_new_tool_call_or_text (r->tools, -1, r->parallel_tool_calls, &cause);
  else
    calls
        = qe_constraint_new_tool_call (r->tools, -1, r->tool_name, r->parallel_tool_calls, &cause);
  if (calls == NULL)
    {
      gboolean named
          = r->tool_name != NULL && g_error_matches (cause, QE_ERROR, QE_ERROR_NOT_FOUND);

      return srv_error_set (error, 400, named ? "invalid_value" : "invalid_schema",
                            named ? "tool_choice" : "tools", "%s", cause->message);
    }
  if (r->tool_choice != SRV_TOOLS_NONE)
    {
      g_clear_pointer (&r->constraint, qe_constraint_unref);
      r->constraint = g_steal_pointer (&calls);
    }
  else if (!r->formats)
    r->constraint = qe_constraint_new_no_tool_call ();
  return TRUE;
}

static gboolean
check_whole (SrvRequest *r, SrvError *error)
{
  g_autoptr (GError) cause = NULL;

  if (r->endpoint == SRV_CHAT && r->messages->len == 0)
    return srv_error_set (error, 400, "missing_parameter", "messages", "messages: is missing");
  if (r->endpoint == SRV_COMPLETION && r->prompt == NULL && r->ids == NULL)
    return srv_error_set (error, 400, "missing_parameter", "prompt", "prompt: is missing");
  if (r->include_usage && !r->stream)
    return srv_error_set (error, 400, "invalid_value", "stream_options",
                          "stream_options: only with “stream”: true");
  if (r->progress && !r->stream)
    return srv_error_set (error, 400, "invalid_value", "return_progress",
                          "return_progress: only with “stream”: true");
  if (r->n_top_logprobs > 0 && !r->logprobs)
    return srv_error_set (error, 400, "invalid_value", "top_logprobs",
                          "top_logprobs: only with “logprobs”: true");
  if (!bind_tools (r, error))
    return FALSE;
  /* Who wants JSON wants it at once; a thought of any length before it is for those who ask for it. */
  if (r->constraint != NULL && r->thinking == QE_THINKING_DEFAULT
      && (r->tools == NULL || r->tool_choice == SRV_TOOLS_REQUIRED || r->formats))
    r->thinking = QE_THINKING_OFF;
  if (!qe_sampling_params_check (&r->sampling, &cause))
    return srv_error_set (error, 400, "invalid_value", NULL, "%s", cause->message);
  return TRUE;
}

gboolean
srv_request_parse (SrvEndpoint endpoint, const char *body, gsize n, const qe_model_info *info,
                   SrvRequest *out, SrvError *error)
{
  g_autoptr (SrvJson) json = NULL;

  *out = (SrvRequest){
    .endpoint = endpoint,
    .messages = g_array_new (FALSE, FALSE, sizeof (qe_message)),
    .texts = g_ptr_array_new_with_free_func (g_free),
    .stop = g_ptr_array_new_with_free_func (g_free),
    .logit_bias = g_array_new (FALSE, FALSE, sizeof (qe_logit_bias)),
    .n = 1,
    .use_cache = TRUE,
    .parallel_tool_calls = TRUE,
  };
  qe_sampling_params_init (&out->sampling, info);
  json = srv_request_read_object (body, n, error);
  if (json == NULL)
    return FALSE;
  for (guint i = 0; i < json->names->len; i++)
    if (!take_member (out, json->names->pdata[i], json->items->pdata[i], error))
      return FALSE;
  g_ptr_array_add (out->stop, NULL);
  return check_whole (out, error);
}

void
srv_request_clear (SrvRequest *r)
{
  g_clear_pointer (&r->messages, g_array_unref);
  g_clear_pointer (&r->texts, g_ptr_array_unref);
  g_clear_pointer (&r->stop, g_ptr_array_unref);
  g_clear_pointer (&r->logit_bias, g_array_unref);
  g_clear_pointer (&r->constraint, qe_constraint_unref);
  g_clear_pointer (&r->ids, g_array_unref);
  g_clear_pointer (&r->prompt, g_free);
  g_clear_pointer (&r->model, g_free);
  g_clear_pointer (&r->tools, g_free);
  g_clear_pointer (&r->schema, g_free);
  g_clear_pointer (&r->tool_name, g_free);
  g_clear_pointer (&r->session, g_free);
}
