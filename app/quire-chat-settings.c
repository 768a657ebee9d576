/* quire-chat-settings.c: see quire-chat-settings.h. */
#include "app/quire-chat-settings.h"

#include <json-glib/json-glib.h>

void
quire_chat_settings_init (QuireChatSettings *settings)
{
  *settings = (QuireChatSettings){ .thinking = QE_THINKING_DEFAULT };
  qe_sampling_params_init (&settings->sampling, NULL);
}

/* ---- Numbers, with their ranges ---- */

typedef struct
{
  const char *name;
  gsize offset; /* of a double in qe_sampling_params */
  double min, max;
} Number;

static const Number numbers[] = {
  { "temperature", G_STRUCT_OFFSET (qe_sampling_params, temperature), 0, 2 },
  { "top_p", G_STRUCT_OFFSET (qe_sampling_params, top_p), 0, 1 },
  { "min_p", G_STRUCT_OFFSET (qe_sampling_params, min_p), 0, 1 },
  { "repetition_penalty", G_STRUCT_OFFSET (qe_sampling_params, repetition_penalty), 0.1, 2 },
  { "presence_penalty", G_STRUCT_OFFSET (qe_sampling_params, presence_penalty), -2, 2 },
  { "frequency_penalty", G_STRUCT_OFFSET (qe_sampling_params, frequency_penalty), -2, 2 },
};

static void
add_sampling (JsonBuilder *builder, const QuireChatSettings *settings)
{
  g_autofree char *seed = g_strdup_printf ("%" G_GUINT64_FORMAT, settings->sampling.seed);

  for (gsize i = 0; i < G_N_ELEMENTS (numbers); i++)
    {
      json_builder_set_member_name (builder, numbers[i].name);
      json_builder_add_double_value (
          builder, *(const double *)G_STRUCT_MEMBER_P (&settings->sampling, numbers[i].offset));
    }
  json_builder_set_member_name (builder, "top_k");
  json_builder_add_int_value (builder, settings->sampling.top_k);
  if (settings->sampling.has_seed)
    {
      /* As text: a JSON number need not hold 64 bits. */
      json_builder_set_member_name (builder, "seed");
      json_builder_add_string_value (builder, seed);
    }
  json_builder_set_member_name (builder, "max_tokens");
  json_builder_add_int_value (builder, settings->max_tokens);
  json_builder_set_member_name (builder, "thinking");
  json_builder_add_int_value (builder, settings->thinking);
}

char *
quire_chat_settings_to_json (const QuireChatSettings *settings)
{
  g_autoptr (JsonBuilder) builder = NULL;
  g_autoptr (JsonNode) node = NULL;

  if (!settings->own_sampling && settings->left_out == 0 && settings->n_context == 0)
    return NULL;
  builder = json_builder_new ();
  json_builder_begin_object (builder);
  if (settings->own_sampling)
    {
      json_builder_set_member_name (builder, "sampling");
      json_builder_begin_object (builder);
      add_sampling (builder, settings);
      json_builder_end_object (builder);
    }
  if (settings->left_out > 0)
    {
      json_builder_set_member_name (builder, "left_out");
      json_builder_add_int_value (builder, settings->left_out);
    }
  if (settings->n_context > 0)
    {
      json_builder_set_member_name (builder, "n_context");
      json_builder_add_int_value (builder, settings->n_context);
      json_builder_set_member_name (builder, "n_context_at");
      json_builder_add_int_value (builder, settings->n_context_at);
    }
  json_builder_end_object (builder);
  node = json_builder_get_root (builder);
  return json_to_string (node, FALSE);
}

/* @out keeps its value where there is no number. */
static void
read_double (JsonObject *object, const char *name, double min, double max, double *out)
{
  JsonNode *node = json_object_get_member (object, name);
  double value;

  if (node == NULL || !JSON_NODE_HOLDS_VALUE (node)
      || json_node_get_value_type (node) == G_TYPE_STRING)
    return;
  value = json_node_get_double (node);
  if (value >= min && value <= max)
    *out = value;
}

static gint64
read_int (JsonObject *object, const char *name, gint64 max)
{
  double value = 0;

  read_double (object, name, 0, (double)max, &value);
  return (gint64)value;
}

static void
read_sampling (JsonObject *object, QuireChatSettings *out)
{
  JsonNode *seed = json_object_get_member (object, "seed");

  out->own_sampling = TRUE;
  for (gsize i = 0; i < G_N_ELEMENTS (numbers); i++)
    read_double (object, numbers[i].name, numbers[i].min, numbers[i].max,
                 G_STRUCT_MEMBER_P (&out->sampling, numbers[i].offset));
  out->sampling.top_k = read_int (object, "top_k", 1000);
  if (seed != NULL && JSON_NODE_HOLDS_VALUE (seed)
      && json_node_get_value_type (seed) == G_TYPE_STRING)
    out->sampling.has_seed = g_ascii_string_to_unsigned (json_node_get_string (seed), 10, 0,
                                                         G_MAXUINT64, &out->sampling.seed, NULL);
  out->max_tokens = (guint32)read_int (object, "max_tokens", 1 << 20);
  out->thinking = (qe_thinking)read_int (object, "thinking", QE_THINKING_OFF);
}

void
quire_chat_settings_from_json (const char *json, QuireChatSettings *out)
{
  g_autoptr (JsonNode) node = json != NULL ? json_from_string (json, NULL) : NULL;
  JsonObject *object
      = node != NULL && JSON_NODE_HOLDS_OBJECT (node) ? json_node_get_object (node) : NULL;
  JsonNode *sampling;

  quire_chat_settings_init (out);
  if (object == NULL)
    return;
  sampling = json_object_get_member (object, "sampling");
  if (sampling != NULL && JSON_NODE_HOLDS_OBJECT (sampling))
    read_sampling (json_node_get_object (sampling), out);
  out->left_out = (guint)read_int (object, "left_out", G_MAXINT32);
  out->n_context = (guint)read_int (object, "n_context", G_MAXINT32);
  out->n_context_at = (guint)read_int (object, "n_context_at", G_MAXINT32);
}

void
quire_chat_settings_apply (const QuireChatSettings *settings, QuireTurnSettings *turn)
{
  if (!settings->own_sampling)
    return;
  turn->sampling = settings->sampling;
  turn->max_tokens = settings->max_tokens;
  turn->thinking = settings->thinking;
}
