/* quire-comparison-file.c: a comparison as CSV, and as the messages that the history keeps. See quire-comparison.h.
 *
 * Message 1 is the prompt; its receipt is all figures as JSON. Message 2 and on are the panes' texts, replies to it. What is
 * read back is not trusted: sizes are bounded, and what is missing is as if it had not been measured. */
#include "app/quire-comparison.h"

#include <json-glib/json-glib.h>
#include <math.h>
#include <string.h>

#include "app/quire-message.h"

#define FORMAT "quire-comparison"
#define TOKENS_MAX 65536
#define TURNS_MAX 65536

/* ---- CSV ---- */

static void
add_field (GString *out, const char *text)
{
  g_string_append_c (out, '"');
  for (const char *p = text != NULL ? text : ""; *p != '\0'; p++)
    {
      if (*p == '"')
        g_string_append_c (out, '"');
      g_string_append_c (out, *p);
    }
  g_string_append (out, "\",");
}

static void
add_number (GString *out, double value, const char *end)
{
  char text[G_ASCII_DTOSTR_BUF_SIZE];

  if (!isnan (value))
    g_string_append (out, g_ascii_formatd (text, sizeof text, "%.6g", value));
  g_string_append (out, end);
}

static double
change_of (double value, double base)
{
  return isnan (value) || isnan (base) || base <= 0 ? NAN : (value / base - 1) * 100;
}

static void
add_row (GString *out, const QuireComparison *c, const QuirePane *pane, const char *figure,
         guint turn, const char *unit, const QuireSamples *samples, double base)
{
  qe_cache_config config;

  if (samples->n == 0)
    return;
  quire_cache_choice_get_config (pane->choice, &config);
  add_field (out, c->model_name);
  add_field (out, c->device);
  g_string_append_printf (
      out, "%s%s,%s,%s,", qe_cache_mode_name (config.mode),
      pane->choice == QUIRE_CACHE_ARTICLE ? "-article" : "",
      quire_cache_choice_is_approximate (pane->choice) ? "approximate" : "exact", figure);
  if (turn > 0)
    g_string_append_printf (out, "%u", turn);
  g_string_append_printf (out, ",%s,%u,", unit, samples->n);
  add_number (out, quire_samples_median (samples), ",");
  add_number (out, quire_samples_min (samples), ",");
  add_number (out, quire_samples_max (samples), ",");
  add_number (out, change_of (quire_samples_median (samples), base), "\r\n");
}

static void
add_bytes (GString *out, const QuireComparison *c, const QuirePane *pane, const char *figure,
           guint64 bytes, double base)
{
  g_autofree char *exact = g_strdup_printf ("%" G_GUINT64_FORMAT, bytes);
  qe_cache_config config;

  quire_cache_choice_get_config (pane->choice, &config);
  add_field (out, c->model_name);
  add_field (out, c->device);
  g_string_append_printf (out, "%s%s,%s,%s,,bytes,1,%s,%s,%s,", qe_cache_mode_name (config.mode),
                          pane->choice == QUIRE_CACHE_ARTICLE ? "-article" : "",
                          quire_cache_choice_is_approximate (pane->choice) ? "approximate"
                                                                           : "exact",
                          figure, exact, exact, exact);
  add_number (out, change_of ((double)bytes, base), "\r\n");
}

static double
median_of (const QuirePane *pane, gsize offset)
{
  return pane != NULL ? quire_samples_median (G_STRUCT_MEMBER_P (pane, offset)) : NAN;
}

char *
quire_comparison_to_csv (const QuireComparison *self)
{
  static const struct
  {
    const char *name;
    gsize offset;
  } figures[] = {
    { "first_token_cold", G_STRUCT_OFFSET (QuirePane, cold_ms) },
    { "first_token_warm", G_STRUCT_OFFSET (QuirePane, warm_ms) },
    { "end_to_end_warm", G_STRUCT_OFFSET (QuirePane, e2e_ms) },
    { "ms_per_token", G_STRUCT_OFFSET (QuirePane, ms_per_token) },
  };
  static const char *const tiers[] = { "peak_kv_gpu", "peak_kv_host", "peak_kv_disk" };
  const QuirePane *base = quire_comparison_get_base (self);
  GString *out = g_string_new ("model,device,mode,kind,figure,turn,unit,runs,median,min,max,"
                               "change_against_rebuild_percent\r\n");

  for (guint i = 0; i < self->panes->len; i++)
    {
      const QuirePane *pane = quire_comparison_get_pane (self, i);
      double peak = quire_comparison_get_value (self, pane, QUIRE_COLUMN_PEAK);

      for (gsize f = 0; f < G_N_ELEMENTS (figures); f++)
        add_row (out, self, pane, figures[f].name, 0, "ms",
                 G_STRUCT_MEMBER_P (pane, figures[f].offset), median_of (base, figures[f].offset));
      for (guint t = 0; t < pane->turns->len; t++)
        {
          const QuireComparedTurn *turn = &g_array_index (pane->turns, QuireComparedTurn, t);

          add_row (out, self, pane, "first_token_turn", t + 1, "ms", &turn->first_token_ms,
                   base != NULL && t < base->turns->len ? quire_samples_median (
                       &g_array_index (base->turns, QuireComparedTurn, t).first_token_ms)
                                                        : NAN);
        }
      if (!isnan (peak))
        add_bytes (out, self, pane, "peak_memory", (guint64)peak,
                   base != NULL ? quire_comparison_get_value (self, base, QUIRE_COLUMN_PEAK) : NAN);
      for (guint tier = 0; tier < QE_N_TIERS; tier++)
        if (pane->peak[tier] > 0)
          add_bytes (out, self, pane, tiers[tier], pane->peak[tier],
                     base != NULL ? (double)base->peak[tier] : NAN);
    }
  return g_string_free (out, FALSE);
}

/* ---- To JSON ---- */

static void
add_string (JsonBuilder *b, const char *name, const char *text)
{
  if (text == NULL)
    return;
  json_builder_set_member_name (b, name);
  json_builder_add_string_value (b, text);
}

static void
add_int (JsonBuilder *b, const char *name, gint64 value)
{
  json_builder_set_member_name (b, name);
  json_builder_add_int_value (b, value);
}

static void
add_samples (JsonBuilder *b, const char *name, const QuireSamples *samples)
{
  json_builder_set_member_name (b, name);
  json_builder_begin_array (b);
  for (guint i = 0; i < samples->n; i++)
    json_builder_add_double_value (b, samples->values[i]);
  json_builder_end_array (b);
}

static void
add_token (JsonBuilder *b, const QuireToken *token)
{
  json_builder_begin_array (b);
  json_builder_add_int_value (b, token->id);
  json_builder_add_int_value (b, token->end);
  json_builder_add_double_value (b, (double)token->logprob);
  for (guint i = 0; i < token->n_top; i++)
    {
      json_builder_add_string_value (b, token->top[i].text);
      json_builder_add_double_value (b, (double)token->top[i].logprob);
    }
  json_builder_end_array (b);
}

static void
add_pane (JsonBuilder *b, const QuirePane *pane)
{
  json_builder_begin_object (b);
  add_int (b, "choice", (gint64)pane->choice);
  add_int (b, "state", (gint64)pane->state);
  add_int (b, "needed", (gint64)pane->needed);
  add_int (b, "allowed", (gint64)pane->allowed);
  add_string (b, "error", pane->error);
  add_samples (b, "cold", &pane->cold_ms);
  add_samples (b, "warm", &pane->warm_ms);
  add_samples (b, "e2e", &pane->e2e_ms);
  add_samples (b, "ms_per_token", &pane->ms_per_token);
  json_builder_set_member_name (b, "live_ms");
  json_builder_add_double_value (b, pane->live_ms);
  json_builder_set_member_name (b, "live_ms_per_token");
  json_builder_add_double_value (b, pane->live_ms_per_token);
  json_builder_set_member_name (b, "peak");
  json_builder_begin_array (b);
  for (guint tier = 0; tier < QE_N_TIERS; tier++)
    json_builder_add_int_value (b, (gint64)pane->peak[tier]);
  json_builder_end_array (b);
  json_builder_set_member_name (b, "turns");
  json_builder_begin_array (b);
  for (guint i = 0; i < pane->turns->len; i++)
    {
      const QuireComparedTurn *turn = &g_array_index (pane->turns, QuireComparedTurn, i);

      json_builder_begin_object (b);
      add_int (b, "prompt", turn->n_prompt);
      add_int (b, "reused", turn->n_reused);
      add_samples (b, "first_token", &turn->first_token_ms);
      json_builder_end_object (b);
    }
  json_builder_end_array (b);
  json_builder_set_member_name (b, "tokens");
  json_builder_begin_array (b);
  for (guint i = 0; i < pane->tokens->len; i++)
    add_token (b, &g_array_index (pane->tokens, QuireToken, i));
  json_builder_end_array (b);
  json_builder_end_object (b);
}

static char *
to_json (const QuireComparison *self)
{
  g_autoptr (JsonBuilder) b = json_builder_new ();
  g_autoptr (JsonNode) node = NULL;
  g_autofree char *seed = g_strdup_printf ("%" G_GUINT64_FORMAT, self->seed);

  json_builder_begin_object (b);
  add_string (b, "format", FORMAT);
  add_string (b, "title", self->title);
  add_string (b, "source", self->source);
  add_string (b, "model", self->model_name);
  add_string (b, "device", self->device);
  /* As text: a JSON number need not hold 64 bits. */
  add_string (b, "seed", seed);
  add_int (b, "on_gpu", self->on_gpu);
  add_int (b, "interleaved", self->interleaved);
  add_int (b, "greedy", self->greedy);
  json_builder_set_member_name (b, "temperature");
  json_builder_add_double_value (b, self->temperature);
  add_int (b, "timed", self->n_timed);
  add_int (b, "turns", self->n_turns);
  add_int (b, "base_bytes", (gint64)self->base_bytes);
  json_builder_set_member_name (b, "panes");
  json_builder_begin_array (b);
  for (guint i = 0; i < self->panes->len; i++)
    add_pane (b, quire_comparison_get_pane (self, i));
  json_builder_end_array (b);
  json_builder_end_object (b);
  node = json_builder_get_root (b);
  return json_to_string (node, FALSE);
}

GPtrArray *
quire_comparison_dup_messages (const QuireComparison *self)
{
  GPtrArray *messages = g_ptr_array_new_with_free_func ((GDestroyNotify)quire_stored_message_free);
  const char *prompt = self->prompt != NULL ? self->prompt : "";
  QuireStoredMessage *first
      = quire_stored_message_new (1, 0, QE_ROLE_USER, QUIRE_REPLY_DONE, prompt, strlen (prompt));

  first->receipt = to_json (self);
  g_ptr_array_add (messages, first);
  for (guint i = 0; i < self->panes->len; i++)
    {
      const GString *text = quire_comparison_get_pane (self, i)->text;

      g_ptr_array_add (messages, quire_stored_message_new (i + 2, 1, QE_ROLE_ASSISTANT,
                                                           QUIRE_REPLY_DONE, text->str, text->len));
    }
  return messages;
}

/* ---- From JSON ---- */

static JsonNode *
member (JsonObject *object, const char *name)
{
  return object != NULL ? json_object_get_member (object, name) : NULL;
}

static char *
dup_string (JsonObject *object, const char *name)
{
  JsonNode *node = member (object, name);

  return node != NULL && JSON_NODE_HOLDS_VALUE (node)
                 && json_node_get_value_type (node) == G_TYPE_STRING
             ? json_node_dup_string (node)
             : NULL;
}

static double
node_double (JsonNode *node)
{
  return node != NULL && JSON_NODE_HOLDS_VALUE (node) ? json_node_get_double (node) : 0;
}

static gint64
get_int (JsonObject *object, const char *name)
{
  JsonNode *node = member (object, name);

  return node != NULL && JSON_NODE_HOLDS_VALUE (node) ? MAX (json_node_get_int (node), 0) : 0;
}

static guint
get_uint (JsonObject *object, const char *name)
{
  return (guint)MIN (get_int (object, name), G_MAXINT32);
}

/* NULL: it has none. Borrowed. */
static JsonArray *
get_array (JsonObject *object, const char *name)
{
  JsonNode *node = member (object, name);

  return node != NULL && JSON_NODE_HOLDS_ARRAY (node) ? json_node_get_array (node) : NULL;
}

static void
read_samples (JsonObject *object, const char *name, QuireSamples *out)
{
  JsonArray *array = get_array (object, name);

  for (guint i = 0; array != NULL && i < json_array_get_length (array); i++)
    quire_samples_add (out, node_double (json_array_get_element (array, i)));
}

static void
read_token (JsonNode *node, QuirePane *pane, guint *end)
{
  JsonArray *array = JSON_NODE_HOLDS_ARRAY (node) ? json_node_get_array (node) : NULL;
  guint n = array != NULL ? json_array_get_length (array) : 0;
  QuireToken token = { 0 };

  if (n < 3)
    return;
  token.id = (guint32)CLAMP (node_double (json_array_get_element (array, 0)), 0, G_MAXINT32);
  /* Ends never fall, and lie in the text. */
  token.end = (guint)CLAMP (node_double (json_array_get_element (array, 1)), *end,
                            MAX ((double)*end, (double)pane->text->len));
  *end = token.end;
  token.logprob = (float)node_double (json_array_get_element (array, 2));
  for (guint i = 0; i < QUIRE_COMPARE_TOP && 4 + 2 * i < n; i++)
    {
      JsonNode *text = json_array_get_element (array, 3 + 2 * i);

      if (!JSON_NODE_HOLDS_VALUE (text) || json_node_get_value_type (text) != G_TYPE_STRING)
        break;
      quire_piece_set (token.top[i].text, json_node_get_string (text),
                       strlen (json_node_get_string (text)));
      token.top[i].logprob = (float)node_double (json_array_get_element (array, 4 + 2 * i));
      token.n_top = i + 1;
    }
  g_array_append_val (pane->tokens, token);
}

static void
read_pane (JsonNode *node, const QuireStoredMessage *message, QuireComparison *out)
{
  JsonObject *object = JSON_NODE_HOLDS_OBJECT (node) ? json_node_get_object (node) : NULL;
  QuirePane *pane;
  JsonArray *array;
  guint end = 0;

  if (object == NULL || get_uint (object, "choice") >= QUIRE_N_CACHE_CHOICES)
    return;
  pane = quire_comparison_add_pane (out, (QuireCacheChoice)get_uint (object, "choice"));
  pane->state = (QuirePaneState)get_uint (object, "state");
  if (pane->state < QUIRE_PANE_DONE || pane->state > QUIRE_PANE_FAILED)
    pane->state = QUIRE_PANE_STOPPED;
  pane->needed = (guint64)get_int (object, "needed");
  pane->allowed = (guint64)get_int (object, "allowed");
  pane->error = dup_string (object, "error");
  if (message != NULL)
    {
      g_autofree char *valid = g_utf8_make_valid (message->text, (gssize)strlen (message->text));

      g_string_assign (pane->text, valid);
    }
  read_samples (object, "cold", &pane->cold_ms);
  read_samples (object, "warm", &pane->warm_ms);
  read_samples (object, "e2e", &pane->e2e_ms);
  read_samples (object, "ms_per_token", &pane->ms_per_token);
  pane->live_ms = node_double (member (object, "live_ms"));
  pane->live_ms_per_token = node_double (member (object, "live_ms_per_token"));
  array = get_array (object, "peak");
  for (guint i = 0; array != NULL && i < MIN (json_array_get_length (array), QE_N_TIERS); i++)
    pane->peak[i] = (guint64)MAX (node_double (json_array_get_element (array, i)), 0);
  array = get_array (object, "turns");
  for (guint i = 0; array != NULL && i < MIN (json_array_get_length (array), TURNS_MAX); i++)
    {
      JsonNode *item = json_array_get_element (array, i);
      JsonObject *from = JSON_NODE_HOLDS_OBJECT (item) ? json_node_get_object (item) : NULL;
      QuireComparedTurn turn
          = { .n_prompt = get_uint (from, "prompt"), .n_reused = get_uint (from, "reused") };

      read_samples (from, "first_token", &turn.first_token_ms);
      g_array_append_val (pane->turns, turn);
    }
  array = get_array (object, "tokens");
  for (guint i = 0; array != NULL && i < MIN (json_array_get_length (array), TOKENS_MAX); i++)
    read_token (json_array_get_element (array, i), pane, &end);
}

QuireComparison *
quire_comparison_from_messages (GPtrArray *messages)
{
  const QuireStoredMessage *first = messages->len > 0 ? g_ptr_array_index (messages, 0) : NULL;
  g_autoptr (JsonNode) node
      = first != NULL && first->receipt != NULL ? json_from_string (first->receipt, NULL) : NULL;
  JsonObject *object
      = node != NULL && JSON_NODE_HOLDS_OBJECT (node) ? json_node_get_object (node) : NULL;
  g_autofree char *format = dup_string (object, "format");
  g_autoptr (QuireComparison) self = NULL;
  g_autofree char *seed = NULL;
  JsonArray *panes = get_array (object, "panes");

  if (g_strcmp0 (format, FORMAT) != 0 || panes == NULL)
    return NULL;
  self = quire_comparison_new ();
  self->prompt = g_utf8_make_valid (first->text, (gssize)strlen (first->text));
  self->title = dup_string (object, "title");
  self->source = dup_string (object, "source");
  self->model_name = dup_string (object, "model");
  self->device = dup_string (object, "device");
  seed = dup_string (object, "seed");
  self->seed = seed != NULL ? g_ascii_strtoull (seed, NULL, 10) : 0;
  self->on_gpu = get_int (object, "on_gpu") != 0;
  self->interleaved = get_int (object, "interleaved") != 0;
  self->greedy = get_int (object, "greedy") != 0;
  self->temperature = node_double (member (object, "temperature"));
  self->n_timed = get_uint (object, "timed");
  self->n_turns = get_uint (object, "turns");
  self->base_bytes = (guint64)get_int (object, "base_bytes");
  for (guint i = 0; i < MIN (json_array_get_length (panes), QUIRE_COMPARE_PANES_MAX); i++)
    read_pane (json_array_get_element (panes, i),
               i + 1 < messages->len ? g_ptr_array_index (messages, i + 1) : NULL, self);
  if (self->panes->len < QUIRE_COMPARE_PANES_MIN)
    return NULL;
  return g_steal_pointer (&self);
}
