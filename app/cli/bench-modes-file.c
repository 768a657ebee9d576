/* bench-modes-file.c: the cells of `bench modes` on file, so that a long table can be measured in pieces.
 *
 *  1. The file holds cells of one setup alone; a different one is refused, never mixed.
 *  2. It is replaced whole (temporary file, rename): a program killed in between loses the running cell and no other.
 *  3. Failed cells are not kept: the next run measures them again. */
#include "app/cli/bench-modes.h"

#include <json-glib/json-glib.h>
#include <math.h>
#include <string.h>

#include "app/cli/cli-json.h"

#define FILE_VERSION 2
#define DEPTH_MAX 32

static void
turn_free (gpointer turn)
{
  g_array_unref (((ModesTurn *)turn)->ids);
  g_free (turn);
}

ModesCell *
modes_cell_new (uint32_t length, const ModesMode *mode)
{
  ModesCell *cell = g_new0 (ModesCell, 1);

  cell->length = length;
  cell->mode = mode;
  cell->turns = g_ptr_array_new_with_free_func (turn_free);
  return cell;
}

ModesTurn *
modes_cell_add_turn (ModesCell *cell)
{
  ModesTurn *turn = g_new0 (ModesTurn, 1);

  turn->ids = g_array_new (FALSE, FALSE, sizeof (uint32_t));
  g_ptr_array_add (cell->turns, turn);
  return turn;
}

void
modes_cell_free (ModesCell *cell)
{
  g_free (cell->note);
  g_ptr_array_unref (cell->turns);
  g_free (cell);
}

void
modes_table_clear (ModesTable *table)
{
  g_clear_pointer (&table->setup, g_free);
  g_clear_pointer (&table->model, g_free);
  g_clear_pointer (&table->backend, g_free);
  g_clear_pointer (&table->device, g_free);
  g_clear_pointer (&table->cells, g_ptr_array_unref);
}

const ModesCell *
modes_table_find (const ModesTable *table, uint32_t length, const ModesMode *mode)
{
  for (guint i = 0; i < table->cells->len; i++)
    {
      const ModesCell *cell = g_ptr_array_index (table->cells, i);

      if (cell->length == length && cell->mode == mode)
        return cell;
    }
  return NULL;
}

/* ---- Writing ---- */

static void
append_turn (GString *json, const ModesTurn *t, gboolean with_ids)
{
  g_string_append_printf (
      json,
      "{\"prompt\": %u, \"new\": %u, \"reused\": %u, \"restored_host\": %u, "
      "\"restored_disk\": %u, \"on_host\": %u, \"recomputed\": %u, \"synthetic\": %u",
      t->n_prompt, t->n_new, t->n_reused, t->n_restored_host, t->n_restored_disk, t->n_on_host,
      t->n_recomputed, t->n_synthetic);
  const struct
  {
    const char *name;
    double value;
  } times[] = { { "first_token_ms", t->first_token_ms },
                { "e2e_ms", t->e2e_ms },
                { "ms_per_token", t->ms_per_token },
                { "restore_ms", t->restore_ms } };
  for (gsize i = 0; i < G_N_ELEMENTS (times); i++)
    {
      g_string_append_printf (json, ", \"%s\": ", times[i].name);
      /* A filled turn's zeros are no times; on file they stay what they are. */
      quire_json_add_number (
          json, !with_ids && t->n_synthetic > 0 && times[i].value == 0 ? NAN : times[i].value, 4);
    }
  if (with_ids)
    {
      g_string_append (json, ", \"ids\": [");
      for (guint i = 0; i < t->ids->len; i++)
        g_string_append_printf (json, "%s%u", i > 0 ? "," : "",
                                g_array_index (t->ids, uint32_t, i));
      g_string_append_c (json, ']');
    }
  g_string_append_c (json, '}');
}

static void
append_sizes (GString *json, const char *name, const guint64 sizes[QE_N_TIERS])
{
  g_string_append_printf (json,
                          ", \"%s\": {\"gpu\": %" G_GUINT64_FORMAT ", \"host\": %" G_GUINT64_FORMAT
                          ", \"disk\": %" G_GUINT64_FORMAT "}",
                          name, sizes[QE_TIER_GPU], sizes[QE_TIER_HOST], sizes[QE_TIER_DISK]);
}

/* A profile's figures by name. */
typedef struct
{
  const char *name;
  gsize offset;
} ProfileField;
static const ProfileField profile_fields[] = {
  { "step_ms", G_STRUCT_OFFSET (qe_profile, step_ms) },
  { "embed_ms", G_STRUCT_OFFSET (qe_profile, embed_ms) },
  { "project_ms", G_STRUCT_OFFSET (qe_profile, project_ms) },
  { "kv_ms", G_STRUCT_OFFSET (qe_profile, kv_ms) },
  { "attend_ms", G_STRUCT_OFFSET (qe_profile, attend_ms) },
  { "mlp_ms", G_STRUCT_OFFSET (qe_profile, mlp_ms) },
  { "head_ms", G_STRUCT_OFFSET (qe_profile, head_ms) },
  { "sample_ms", G_STRUCT_OFFSET (qe_profile, sample_ms) },
};

static void
append_profile (GString *json, const qe_profile *p)
{
  g_string_append_printf (json, ", \"profile\": {\"steps\": %u, \"kv_in_attend\": %s", p->n_steps,
                          p->kv_in_attend ? "true" : "false");
  for (gsize i = 0; i < G_N_ELEMENTS (profile_fields); i++)
    {
      g_string_append_printf (json, ", \"%s\": ", profile_fields[i].name);
      quire_json_add_number (json, G_STRUCT_MEMBER (double, p, profile_fields[i].offset), 4);
    }
  g_string_append_c (json, '}');
}

static const char *const state_names[] = {
  [MODES_CELL_DONE] = "done",
  [MODES_CELL_UNFIT] = "does not fit",
  [MODES_CELL_FAILED] = "failed",
};

static void
append_cell (GString *json, const ModesCell *c, gboolean with_ids)
{
  g_string_append_printf (json, "{\"tokens\": %u, \"mode\": \"%s\", \"state\": \"%s\"", c->length,
                          c->mode->name, state_names[c->state]);
  if (c->note != NULL)
    {
      g_string_append (json, ", \"note\": ");
      quire_json_add_string (json, c->note, -1);
    }
  g_string_append (json, ", \"seconds\": ");
  quire_json_add_number (json, c->seconds, 3);
  g_string_append_printf (json,
                          ", \"peak_process_bytes\": %" G_GUINT64_FORMAT
                          ", \"peak_kv_bytes\": %" G_GUINT64_FORMAT,
                          c->peak_process, c->peak_kv);
  append_sizes (json, "peak_used_bytes", c->peak_used);
  append_sizes (json, "peak_reserved_bytes", c->peak_reserved);
  append_profile (json, &c->profile);
  g_string_append (json, ", \"turns\": [");
  for (guint i = 0; i < c->turns->len; i++)
    {
      g_string_append (json, i > 0 ? ", " : "");
      append_turn (json, g_ptr_array_index (c->turns, i), with_ids);
    }
  g_string_append (json, "]}");
}

void
modes_append_cells (GString *json, const ModesTable *table, gboolean with_ids)
{
  g_string_append (json, "\"cells\": [");
  for (guint i = 0; i < table->cells->len; i++)
    {
      g_string_append (json, i > 0 ? ",\n " : "\n ");
      append_cell (json, g_ptr_array_index (table->cells, i), with_ids);
    }
  g_string_append_c (json, ']');
}

gboolean
modes_table_write (const char *path, const ModesTable *table, GError **error)
{
  g_autoptr (GString) json = g_string_new (NULL);

  g_string_append_printf (json, "{\"version\": %d, \"setup\": ", FILE_VERSION);
  quire_json_add_string (json, table->setup, -1);
  g_string_append (json, ",\n");
  modes_append_cells (json, table, TRUE);
  g_string_append (json, "}\n");
  return g_file_set_contents (path, json->str, (gssize)json->len, error);
}

/* ---- Reading ---- */

typedef struct
{
  const char *path;
  GError **error;
} Reader;

static gboolean
refuse (const Reader *r, const char *where, const char *expected)
{
  if (r->error != NULL && *r->error == NULL)
    g_set_error (r->error, QE_ERROR, QE_ERROR_FORMAT, "%s: %s: expected %s", r->path, where,
                 expected);
  return FALSE;
}

static JsonNode *
member (JsonObject *object, const char *name, JsonNodeType type)
{
  JsonNode *node = json_object_get_member (object, name);

  return node != NULL && json_node_get_node_type (node) == type ? node : NULL;
}

/* @out is left alone and FALSE returned when @name is no number. */
static gboolean
get_number (JsonObject *object, const char *name, double max, double *out)
{
  JsonNode *node = member (object, name, JSON_NODE_VALUE);
  GType type = node != NULL ? json_node_get_value_type (node) : G_TYPE_INVALID;
  double value;

  if (type != G_TYPE_INT64 && type != G_TYPE_DOUBLE)
    return FALSE;
  value = json_node_get_double (node);
  if (!(value >= 0 && value <= max))
    return FALSE;
  *out = value;
  return TRUE;
}

static const char *
get_text (JsonObject *object, const char *name)
{
  JsonNode *node = member (object, name, JSON_NODE_VALUE);

  return node != NULL && json_node_get_value_type (node) == G_TYPE_STRING
             ? json_node_get_string (node)
             : NULL;
}

static JsonArray *
get_array (JsonObject *object, const char *name)
{
  JsonNode *node = member (object, name, JSON_NODE_ARRAY);

  return node != NULL ? json_node_get_array (node) : NULL;
}

/* Element @i as an object; NULL when it is none. */
static JsonObject *
get_object_at (JsonArray *array, guint i)
{
  JsonNode *node = json_array_get_element (array, i);

  return json_node_get_node_type (node) == JSON_NODE_OBJECT ? json_node_get_object (node) : NULL;
}

static gboolean
read_turn (const Reader *r, JsonObject *object, ModesTurn *t)
{
  const struct
  {
    const char *name;
    uint32_t *value;
  } counts[] = { { "prompt", &t->n_prompt },
                 { "new", &t->n_new },
                 { "reused", &t->n_reused },
                 { "restored_host", &t->n_restored_host },
                 { "restored_disk", &t->n_restored_disk },
                 { "on_host", &t->n_on_host },
                 { "recomputed", &t->n_recomputed },
                 { "synthetic", &t->n_synthetic } };
  const struct
  {
    const char *name;
    double *value;
  } times[] = { { "first_token_ms", &t->first_token_ms },
                { "e2e_ms", &t->e2e_ms },
                { "ms_per_token", &t->ms_per_token },
                { "restore_ms", &t->restore_ms } };
  JsonArray *ids = get_array (object, "ids");
  double value;

  for (gsize i = 0; i < G_N_ELEMENTS (counts); i++)
    {
      if (!get_number (object, counts[i].name, G_MAXUINT32, &value))
        return refuse (r, counts[i].name, "a count in every turn");
      *counts[i].value = (uint32_t)value;
    }
  for (gsize i = 0; i < G_N_ELEMENTS (times); i++)
    if (!get_number (object, times[i].name, G_MAXDOUBLE, times[i].value))
      return refuse (r, times[i].name, "milliseconds in every turn");
  if (ids == NULL)
    return refuse (r, "ids", "an array in every turn");
  for (guint i = 0; i < json_array_get_length (ids); i++)
    {
      JsonNode *node = json_array_get_element (ids, i);
      uint32_t id;

      if (json_node_get_value_type (node) != G_TYPE_INT64 || json_node_get_int (node) < 0
          || json_node_get_int (node) > G_MAXUINT32)
        return refuse (r, "ids", "token ids");
      id = (uint32_t)json_node_get_int (node);
      g_array_append_val (t->ids, id);
    }
  return TRUE;
}

static gboolean
read_sizes (const Reader *r, JsonObject *object, const char *name, guint64 out[QE_N_TIERS])
{
  static const char *const tiers[QE_N_TIERS] = { "gpu", "host", "disk" };
  JsonNode *node = member (object, name, JSON_NODE_OBJECT);
  double value;

  for (guint i = 0; i < QE_N_TIERS; i++)
    {
      if (node == NULL || !get_number (json_node_get_object (node), tiers[i], 1e18, &value))
        return refuse (r, name, "bytes by tier in every cell");
      out[i] = (guint64)value;
    }
  return TRUE;
}

static gboolean
read_profile (const Reader *r, JsonObject *cell, qe_profile *out)
{
  JsonNode *node = member (cell, "profile", JSON_NODE_OBJECT), *flag;
  JsonObject *object = node != NULL ? json_node_get_object (node) : NULL;
  double n;

  if (object == NULL || !get_number (object, "steps", G_MAXUINT32, &n))
    return refuse (r, "profile", "an object with steps in every cell");
  out->n_steps = (uint32_t)n;
  flag = member (object, "kv_in_attend", JSON_NODE_VALUE);
  if (flag == NULL || json_node_get_value_type (flag) != G_TYPE_BOOLEAN)
    return refuse (r, "kv_in_attend", "true or false in every profile");
  out->kv_in_attend = json_node_get_boolean (flag);
  for (gsize i = 0; i < G_N_ELEMENTS (profile_fields); i++)
    if (!get_number (object, profile_fields[i].name, G_MAXDOUBLE,
                     &G_STRUCT_MEMBER (double, out, profile_fields[i].offset)))
      return refuse (r, profile_fields[i].name, "milliseconds in every profile");
  return TRUE;
}

static gboolean
read_cell (const Reader *r, JsonObject *object, ModesTable *table)
{
  const char *mode = get_text (object, "mode"), *state = get_text (object, "state");
  JsonArray *turns = get_array (object, "turns");
  const ModesMode *known = NULL;
  double length, process, kv;
  ModesCell *cell;

  for (gsize i = 0; i < MODES_N; i++)
    if (mode != NULL && strcmp (mode, modes_all[i].name) == 0)
      known = &modes_all[i];
  if (known == NULL)
    return refuse (r, "mode", "a mode's name in every cell");
  if (!get_number (object, "tokens", G_MAXUINT32, &length))
    return refuse (r, "tokens", "a length in every cell");
  if (g_strcmp0 (state, state_names[MODES_CELL_DONE]) != 0
      && g_strcmp0 (state, state_names[MODES_CELL_UNFIT]) != 0)
    return g_strcmp0 (state, state_names[MODES_CELL_FAILED]) == 0
           || refuse (r, "state", "done, does not fit or failed in every cell");
  if (modes_table_find (table, (uint32_t)length, known) != NULL)
    return refuse (r, "cells", "each length and mode once");
  if (turns == NULL || !get_number (object, "peak_process_bytes", 1e18, &process)
      || !get_number (object, "peak_kv_bytes", 1e18, &kv))
    return refuse (r, "cells", "turns, peak_process_bytes and peak_kv_bytes in every cell");
  cell = modes_cell_new ((uint32_t)length, known);
  g_ptr_array_add (table->cells, cell);
  cell->state
      = strcmp (state, state_names[MODES_CELL_DONE]) == 0 ? MODES_CELL_DONE : MODES_CELL_UNFIT;
  cell->note = g_strdup (get_text (object, "note"));
  cell->peak_process = (guint64)process;
  cell->peak_kv = (guint64)kv;
  if (!get_number (object, "seconds", G_MAXDOUBLE, &cell->seconds))
    return refuse (r, "seconds", "seconds in every cell");
  for (guint i = 0; i < json_array_get_length (turns); i++)
    {
      JsonObject *turn = get_object_at (turns, i);

      if (turn == NULL)
        return refuse (r, "turns", "objects");
      if (!read_turn (r, turn, modes_cell_add_turn (cell)))
        return FALSE;
    }
  if (cell->state == MODES_CELL_DONE && cell->turns->len == 0)
    return refuse (r, "turns", "one or more in a cell that is done");
  return read_profile (r, object, &cell->profile)
         && read_sizes (r, object, "peak_used_bytes", cell->peak_used)
         && read_sizes (r, object, "peak_reserved_bytes", cell->peak_reserved);
}

/* json-glib's parser recurses: brackets deeper than any file of ours are refused before it sees them. */
static gboolean
is_shallow (const char *text, gsize n)
{
  gboolean in_string = FALSE;
  int depth = 0;

  for (gsize i = 0; i < n && depth <= DEPTH_MAX; i++)
    if (in_string)
      {
        if (text[i] == '\\')
          i++;
        else
          in_string = text[i] != '"';
      }
    else if (text[i] == '"')
      in_string = TRUE;
    else if (text[i] == '[' || text[i] == '{')
      depth++;
    else if (text[i] == ']' || text[i] == '}')
      depth--;
  return depth <= DEPTH_MAX;
}

/* The file's object; borrowed from @parser. */
static JsonObject *
load (JsonParser *parser, const char *path, const Reader *r)
{
  g_autofree char *text = NULL;
  g_autoptr (GError) local = NULL;
  JsonNode *root;
  gsize n;

  if (!cli_read_input (path, &text, &n, r->error))
    return NULL;
  if (!is_shallow (text, n))
    {
      refuse (r, "the file", "brackets at most " G_STRINGIFY (DEPTH_MAX) " deep");
      return NULL;
    }
  if (!json_parser_load_from_data (parser, text, (gssize)n, &local))
    {
      g_set_error (r->error, QE_ERROR, QE_ERROR_FORMAT, "%s: %s", path, local->message);
      return NULL;
    }
  root = json_parser_get_root (parser);
  if (root == NULL || json_node_get_node_type (root) != JSON_NODE_OBJECT)
    {
      refuse (r, "the file", "one JSON object");
      return NULL;
    }
  return json_node_get_object (root);
}

/* Says in what the setups differ: they are lists with semicolons between. */
static gboolean
refuse_setup (const char *path, const char *expected, const char *found, GError **error)
{
  g_auto (GStrv) mine = g_strsplit (expected, "; ", -1);
  g_auto (GStrv) theirs = g_strsplit (found != NULL ? found : "no setup", "; ", -1);
  g_autoptr (GString) a = g_string_new (NULL);
  g_autoptr (GString) b = g_string_new (NULL);
  guint n_mine = g_strv_length (mine), n_theirs = g_strv_length (theirs);

  for (guint i = 0; i < MAX (n_mine, n_theirs); i++)
    {
      if (n_mine == n_theirs && strcmp (mine[i], theirs[i]) == 0)
        continue;
      if (i < n_mine)
        g_string_append_printf (a, "%s%s", a->len > 0 ? "; " : "", mine[i]);
      if (i < n_theirs)
        g_string_append_printf (b, "%s%s", b->len > 0 ? "; " : "", theirs[i]);
    }
  g_set_error (error, QE_ERROR, QE_ERROR_INVALID,
               "--resume: %s was measured otherwise: expected “%s”, found “%s”", path, a->str,
               b->str);
  return FALSE;
}

gboolean
modes_table_read (const char *path, ModesTable *table, GError **error)
{
  g_autoptr (JsonParser) parser = json_parser_new ();
  const Reader r = { path, error };
  const char *setup;
  JsonObject *root;
  JsonArray *cells;
  double version;

  if (!g_file_test (path, G_FILE_TEST_EXISTS))
    return TRUE;
  root = load (parser, path, &r);
  if (root == NULL)
    return FALSE;
  if (!get_number (root, "version", G_MAXUINT32, &version) || version != FILE_VERSION)
    return refuse (&r, "version", G_STRINGIFY (FILE_VERSION));
  setup = get_text (root, "setup");
  if (g_strcmp0 (setup, table->setup) != 0)
    return refuse_setup (path, table->setup, setup, error);
  cells = get_array (root, "cells");
  if (cells == NULL)
    return refuse (&r, "cells", "an array");
  for (guint i = 0; i < json_array_get_length (cells); i++)
    {
      JsonObject *cell = get_object_at (cells, i);

      if (cell == NULL)
        return refuse (&r, "cells", "objects");
      if (!read_cell (&r, cell, table))
        return FALSE;
    }
  return TRUE;
}

/* ---- Figures of another program ---- */

void
modes_against_clear (ModesAgainst *against)
{
  g_clear_pointer (&against->name, g_free);
  g_clear_pointer (&against->rows, g_array_unref);
}

gboolean
modes_against_read (const char *path, ModesAgainst *out, GError **error)
{
  g_autoptr (JsonParser) parser = json_parser_new ();
  const Reader r = { path, error };
  JsonObject *root = load (parser, path, &r);
  JsonArray *rows;

  if (root == NULL)
    return FALSE;
  if (get_text (root, "name") == NULL)
    return refuse (&r, "name", "a string");
  rows = get_array (root, "rows");
  if (rows == NULL)
    return refuse (&r, "rows", "an array");
  out->name = g_strdup (get_text (root, "name"));
  out->rows = g_array_new (FALSE, FALSE, sizeof (ModesAgainstRow));
  for (guint i = 0; i < json_array_get_length (rows); i++)
    {
      JsonObject *object = get_object_at (rows, i);
      ModesAgainstRow row = { 0, NAN, NAN, NAN };
      double tokens;

      if (object == NULL || !get_number (object, "tokens", G_MAXUINT32, &tokens))
        return refuse (&r, "rows", "objects with tokens");
      row.tokens = (uint32_t)tokens;
      const struct
      {
        const char *name;
        double *value;
      } figures[] = { { "first_token_ms", &row.first_token_ms },
                      { "e2e_ms", &row.e2e_ms },
                      { "peak_bytes", &row.peak_bytes } };
      for (gsize k = 0; k < G_N_ELEMENTS (figures); k++)
        if (json_object_has_member (object, figures[k].name)
            && member (object, figures[k].name, JSON_NODE_NULL) == NULL
            && (!get_number (object, figures[k].name, G_MAXDOUBLE, figures[k].value)
                || *figures[k].value <= 0))
          return refuse (&r, figures[k].name, "a positive number or null");
      g_array_append_val (out->rows, row);
    }
  return TRUE;
}
