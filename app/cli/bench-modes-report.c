/* bench-modes-report.c: the table of `bench modes` as text, CSV and JSON, and whether the modes agree.
 *
 * A reduction is 100 x (1 - figure / other's figure), in percent: of a turn against the same turn in rebuild; against
 * another program's one prompt of the same length. Without a figure to compare with it is NaN, printed as "-", empty or
 * null. Nothing here is estimated: what was not measured is said to be so. */
#include "app/cli/bench-modes.h"

#include <math.h>
#include <stdio.h>

#include "app/cli/cli-json.h"

#define MIB 1048576.0

const ModesMode modes_all[MODES_N] = {
  { "rebuild", QE_CACHE_REBUILD, FALSE, TRUE, TRUE },
  { "paged", QE_CACHE_PAGED, FALSE, TRUE, TRUE },
  { "session", QE_CACHE_SESSION, FALSE, TRUE, FALSE },
  { "tiered", QE_CACHE_TIERED, FALSE, TRUE, FALSE },
  { "article", QE_CACHE_TIERED, TRUE, TRUE, FALSE },
  { "tiered-int8", QE_CACHE_TIERED_INT8, FALSE, FALSE, FALSE },
  { "selective", QE_CACHE_SELECTIVE, FALSE, FALSE, FALSE },
};

/* ---- Comparisons ---- */

static double
reduction (double value, double other)
{
  return value > 0 && other > 0 ? 100 * (1 - value / other) : NAN;
}

static double
peak_of (const ModesTable *table, const ModesCell *cell)
{
  return (double)(table->on_card ? cell->peak_process : cell->peak_kv);
}

/* The same turn in rebuild, and the other program's row; NULL when there is none. */
typedef struct
{
  const ModesCell *rebuild;
  const ModesAgainstRow *row;
} Bases;

static Bases
bases_of (const ModesTable *table, const ModesAgainst *against, uint32_t length)
{
  Bases b = { modes_table_find (table, length, &modes_all[0]), NULL };

  if (b.rebuild != NULL && b.rebuild->state != MODES_CELL_DONE)
    b.rebuild = NULL;
  for (guint i = 0; against->rows != NULL && i < against->rows->len; i++)
    if (g_array_index (against->rows, ModesAgainstRow, i).tokens == length)
      b.row = &g_array_index (against->rows, ModesAgainstRow, i);
  return b;
}

typedef struct
{
  double first_rebuild, e2e_rebuild, first_against, e2e_against;
} TurnReductions;

static TurnReductions
reduce_turn (const Bases *b, const ModesTurn *t, guint turn)
{
  const ModesTurn *base = b->rebuild != NULL && turn < b->rebuild->turns->len
                              ? g_ptr_array_index (b->rebuild->turns, turn)
                              : NULL;

  return (TurnReductions){
    .first_rebuild = base != NULL ? reduction (t->first_token_ms, base->first_token_ms) : NAN,
    .e2e_rebuild = base != NULL ? reduction (t->e2e_ms, base->e2e_ms) : NAN,
    .first_against = b->row != NULL ? reduction (t->first_token_ms, b->row->first_token_ms) : NAN,
    .e2e_against = b->row != NULL ? reduction (t->e2e_ms, b->row->e2e_ms) : NAN,
  };
}

static double
peak_rebuild (const ModesTable *table, const Bases *b, const ModesCell *c)
{
  return b->rebuild != NULL ? reduction (peak_of (table, c), peak_of (table, b->rebuild)) : NAN;
}

/* Another program's peak is of a card's memory: KV pages alone are nothing to hold against it. */
static double
peak_against (const ModesTable *table, const Bases *b, const ModesCell *c)
{
  return b->row != NULL && table->on_card ? reduction (peak_of (table, c), b->row->peak_bytes)
                                          : NAN;
}

gint64
modes_first_difference (const ModesTurn *a, const ModesTurn *b)
{
  guint n = MIN (a->ids->len, b->ids->len);

  for (guint i = 0; i < n; i++)
    if (g_array_index (a->ids, uint32_t, i) != g_array_index (b->ids, uint32_t, i))
      return i;
  return a->ids->len == b->ids->len ? -1 : (gint64)n;
}

typedef struct
{
  const ModesCell *base; /* the first exact mode's that is done; NULL: none other */
  guint n_turns; /* compared: up to the first that differs, whose prompt is the last equal one */
  gint64 turn, position; /* of the first difference; -1: none */
} Agreement;

static Agreement
agreement_of (const ModesTable *table, const ModesCell *cell)
{
  Agreement a = { NULL, 0, -1, -1 };
  guint n;

  for (gsize i = 0; i < MODES_N && a.base == NULL; i++)
    {
      const ModesCell *other = modes_table_find (table, cell->length, &modes_all[i]);

      if (modes_all[i].exact && other != NULL && other->state == MODES_CELL_DONE)
        a.base = other;
    }
  if (a.base == cell || cell->state != MODES_CELL_DONE)
    a.base = NULL;
  if (a.base == NULL)
    return a;
  /* With synthetic pages, modes that keep nothing fill later turns' new tokens too, which the others compute. */
  n = MIN (cell->turns->len, a.base->turns->len);
  if (table->synthetic)
    n = MIN (n, 1);
  for (guint i = 0; i < n && a.turn < 0; i++)
    {
      a.position = modes_first_difference (g_ptr_array_index (cell->turns, i),
                                           g_ptr_array_index (a.base->turns, i));
      a.turn = a.position >= 0 ? (gint64)i : -1;
      a.n_turns++;
    }
  return a;
}

guint
modes_check_agreement (const ModesTable *table)
{
  guint n_bad = 0;

  for (guint i = 0; i < table->cells->len && !table->on_card; i++)
    {
      const ModesCell *cell = g_ptr_array_index (table->cells, i);
      Agreement a = agreement_of (table, cell);

      if (a.base == NULL || a.turn < 0 || !cell->mode->exact)
        continue;
      n_bad++;
      cli_fail (CLI_FAILED,
                "%u tokens, %s: token %" G_GINT64_FORMAT " of turn %" G_GINT64_FORMAT
                " differs from %s: expected the same tokens in every exact mode",
                cell->length, cell->mode->name, a.position + 1, a.turn + 1, a.base->mode->name);
    }
  return n_bad;
}

/* ---- Text ---- */

static void
print_percent (double value, int width)
{
  if (isnan (value))
    printf (" %*s", width, "-");
  else
    printf (" %*.1f%%", width - 1, value);
}

static void
print_turns (const ModesTable *table, const ModesAgainst *against, uint32_t length)
{
  Bases b = bases_of (table, against, length);

  printf ("%-12s %4s %7s %7s %7s %7s %7s %7s %11s %11s %9s %9s %9s", "mode", "turn", "prompt",
          "new", "reused", "on host", "host", "disk", "first ms", "e2e ms", "ms/token", "first",
          "e2e");
  if (against->name != NULL)
    printf (" %9s %9s", "first*", "e2e*");
  putchar ('\n');
  for (guint i = 0; i < table->cells->len; i++)
    {
      const ModesCell *c = g_ptr_array_index (table->cells, i);

      if (c->length != length)
        continue;
      if (c->state != MODES_CELL_DONE)
        printf ("%-12s %s: %s\n", c->mode->name,
                c->state == MODES_CELL_UNFIT ? "does not fit" : "FAILED", c->note);
      for (guint k = 0; k < c->turns->len; k++)
        {
          const ModesTurn *t = g_ptr_array_index (c->turns, k);
          TurnReductions r = reduce_turn (&b, t, k);

          printf ("%-12s %4u %7u %7u %7u %7u %7u %7u", c->mode->name, k + 1, t->n_prompt, t->n_new,
                  t->n_reused, t->n_on_host, t->n_restored_host, t->n_restored_disk);
          if (t->n_synthetic > 0)
            printf (" %11s %11s", "synthetic", "-");
          else
            printf (" %11.2f %11.2f", t->first_token_ms, t->e2e_ms);
          printf (" %9.3f", t->ms_per_token);
          print_percent (r.first_rebuild, 9);
          print_percent (r.e2e_rebuild, 9);
          if (against->name != NULL)
            {
              print_percent (r.first_against, 9);
              print_percent (r.e2e_against, 9);
            }
          putchar ('\n');
        }
    }
}

/* The article's four parts of a decode step, in ms a token, and what the step took besides. The engine's time of a step
 * begins when it read the one before, which may have ended earlier: the rest can come out a little below zero. */
typedef struct
{
  double step, kv, attention, of_it_pages, mlp, sampling, rest;
} Parts;

static Parts
parts_of (const qe_profile *p)
{
  double n = p->n_steps;
  Parts parts = {
    .step = p->step_ms / n,
    .kv = p->kv_ms / n,
    .attention = (p->project_ms + p->attend_ms) / n,
    .of_it_pages = p->attend_ms / n,
    .mlp = (p->embed_ms + p->mlp_ms + p->head_ms) / n,
    .sampling = p->sample_ms / n,
  };

  /* The KV update by itself is measured beside the attention that has it too, so the step took it twice. */
  parts.rest = parts.step - parts.kv - parts.attention - parts.mlp - parts.sampling;
  return parts;
}

static void
print_parts (const ModesTable *table, uint32_t length)
{
  gboolean twice = FALSE, any = FALSE;

  for (guint i = 0; i < table->cells->len; i++)
    {
      const ModesCell *c = g_ptr_array_index (table->cells, i);
      Parts p;

      if (c->length != length || c->profile.n_steps == 0)
        continue;
      if (!any)
        printf ("%-12s %9s %9s %9s %9s %9s %9s %9s\n", "mode", "step ms", "KV update", "attention",
                "(pages)", "emb+MLP", "sampling", "rest");
      p = parts_of (&c->profile);
      any = TRUE;
      twice |= c->profile.kv_in_attend;
      printf ("%-12s %9.3f %9.3f %9.3f %9.3f %9.3f %9.3f %9.3f\n", c->mode->name, p.step, p.kv,
              p.attention, p.of_it_pages, p.mlp, p.sampling, p.rest);
    }
  if (twice)
    puts ("The attention's kernel updates the KV too: its time is in attention; KV update is the "
          "same "
          "work done once more by itself, and the step took both.");
}

static void
print_agreement (const ModesTable *table, const ModesCell *c)
{
  Agreement a = agreement_of (table, c);

  if (a.base == NULL)
    printf ("  -");
  else if (a.turn < 0)
    printf ("  as %s in %u turns", a.base->mode->name, a.n_turns);
  else
    printf ("  as %s up to turn %" G_GINT64_FORMAT ", token %" G_GINT64_FORMAT " of %u",
            a.base->mode->name, a.turn + 1, a.position,
            ((const ModesTurn *)g_ptr_array_index (c->turns, (guint)a.turn))->ids->len);
}

static void
print_peaks (const ModesTable *table, const ModesAgainst *against, uint32_t length)
{
  Bases b = bases_of (table, against, length);
  gboolean any = FALSE;

  for (guint i = 0; i < table->cells->len && !any; i++)
    {
      const ModesCell *c = g_ptr_array_index (table->cells, i);

      any = c->length == length && c->state == MODES_CELL_DONE;
    }
  if (!any)
    return;
  printf ("%-12s %11s %11s %11s %11s %9s", "mode", table->on_card ? "process MiB" : "all KV MiB",
          "KV GPU MiB", "KV host MiB", "KV disk MiB", "memory");
  if (against->name != NULL)
    printf (" %9s", "memory*");
  printf ("  greedy tokens\n");
  for (guint i = 0; i < table->cells->len; i++)
    {
      const ModesCell *c = g_ptr_array_index (table->cells, i);

      if (c->length != length || c->state != MODES_CELL_DONE)
        continue;
      if (peak_of (table, c) > 0)
        printf ("%-12s %11.2f", c->mode->name, peak_of (table, c) / MIB);
      else
        printf ("%-12s %11s", c->mode->name, "unknown");
      printf (" %11.2f %11.2f %11.2f", (double)c->peak_used[QE_TIER_GPU] / MIB,
              (double)c->peak_used[QE_TIER_HOST] / MIB, (double)c->peak_used[QE_TIER_DISK] / MIB);
      print_percent (peak_rebuild (table, &b, c), 9);
      if (against->name != NULL)
        print_percent (peak_against (table, &b, c), 9);
      print_agreement (table, c);
      if (c->note != NULL)
        printf ("  (%s)", c->note);
      putchar ('\n');
    }
}

void
modes_print_text (const ModesTable *table, const ModesAgainst *against)
{
  printf ("%s on %s (%s): %u tokens decoded a turn, greedy; turns after the first add %u\n",
          table->model, table->backend, table->device, table->n_tokens, table->n_new);
  puts (table->on_card
            ? "Peak memory: of this process on the card, weights and workspace included."
            : "Peak memory: KV pages in use; without a card the process has no device memory.");
  puts ("Percent: reduction against the same turn in rebuild. on host: attended to in host memory; "
        "host, disk: brought back from there.");
  if (against->name != NULL)
    printf ("*: reduction against %s with one prompt of the same length.\n", against->name);
  if (table->synthetic)
    puts ("SYNTHETIC: first prompts were not computed; random pages stand in their place. Only "
          "what comes behind "
          "them is measured.");
  if (table->n_profile > 0)
    printf (
        "Parts of a decode step: mean of %u steps behind the last turn's, which time themselves "
        "and "
        "so take longer than those of ms/token. attention: QKV, pages and O; (pages): of it, over "
        "the pages. emb+MLP: the output layer too. rest: launches and the host.\n",
        table->n_profile);
  for (guint i = 0; i < table->cells->len; i++)
    {
      const ModesCell *cell = g_ptr_array_index (table->cells, i);
      gboolean seen = FALSE;

      for (guint k = 0; k < i && !seen; k++)
        seen = ((const ModesCell *)g_ptr_array_index (table->cells, k))->length == cell->length;
      if (seen)
        continue;
      printf ("\n%u tokens\n", cell->length);
      print_turns (table, against, cell->length);
      print_peaks (table, against, cell->length);
      print_parts (table, cell->length);
    }
  if (!table->complete)
    puts ("\nNot all was measured: the time limit came first. Go on with the same command.");
}

/* ---- CSV: RFC 4180, one line a turn; a cell without turns has one line with its state ---- */

static void
append_csv_number (GString *line, double value, int n_decimals)
{
  g_string_append_c (line, ',');
  if (!isnan (value))
    quire_json_add_number (line, value, n_decimals);
}

static void
append_csv_text (GString *line, const char *text)
{
  g_string_append (line, ",\"");
  for (; text != NULL && *text != '\0'; text++)
    {
      if (*text == '"')
        g_string_append_c (line, '"');
      g_string_append_c (line, *text);
    }
  g_string_append_c (line, '"');
}

/* On a cell's last line. */
static void
append_csv_parts (GString *line, const qe_profile *profile)
{
  Parts p = { NAN, NAN, NAN, NAN, NAN, NAN, NAN };

  if (profile != NULL && profile->n_steps > 0)
    p = parts_of (profile);
  append_csv_number (line, p.step, 4);
  append_csv_number (line, p.kv, 4);
  append_csv_number (line, p.attention, 4);
  append_csv_number (line, p.of_it_pages, 4);
  append_csv_number (line, p.mlp, 4);
  append_csv_number (line, p.sampling, 4);
  append_csv_number (line, p.rest, 4);
}

static void
print_csv_line (const ModesTable *table, const ModesAgainst *against, const ModesCell *c, guint k)
{
  static const char *const states[] = { "done", "does not fit", "failed" };
  Bases b = bases_of (table, against, c->length);
  g_autoptr (GString) line = g_string_new (NULL);
  const ModesTurn *t = k < c->turns->len ? g_ptr_array_index (c->turns, k) : NULL;
  TurnReductions r = t != NULL ? reduce_turn (&b, t, k) : (TurnReductions){ NAN, NAN, NAN, NAN };

  g_string_append_printf (line, "%u,%s,%s,", c->length, c->mode->name, states[c->state]);
  if (t != NULL)
    {
      g_string_append_printf (line, "%u,%u,%u,%u,%u,%u,%u,%u,%u", k + 1, t->n_prompt, t->n_new,
                              t->n_reused, t->n_restored_host, t->n_restored_disk, t->n_on_host,
                              t->n_recomputed, t->n_synthetic);
      append_csv_number (line, t->n_synthetic > 0 ? NAN : t->first_token_ms, 4);
      append_csv_number (line, t->n_synthetic > 0 ? NAN : t->e2e_ms, 4);
      append_csv_number (line, t->ms_per_token, 4);
      append_csv_number (line, t->restore_ms, 4);
    }
  else
    g_string_append (line, ",,,,,,,,,,,,");
  if (table->on_card && t != NULL)
    g_string_append_printf (line, ",%" G_GUINT64_FORMAT, c->peak_process);
  else
    g_string_append_c (line, ',');
  if (t != NULL)
    g_string_append_printf (line,
                            ",%" G_GUINT64_FORMAT ",%" G_GUINT64_FORMAT ",%" G_GUINT64_FORMAT
                            ",%" G_GUINT64_FORMAT,
                            c->peak_kv, c->peak_used[QE_TIER_GPU], c->peak_used[QE_TIER_HOST],
                            c->peak_used[QE_TIER_DISK]);
  else
    g_string_append (line, ",,,,");
  append_csv_number (line, r.first_rebuild, 2);
  append_csv_number (line, r.e2e_rebuild, 2);
  append_csv_number (line, t != NULL ? peak_rebuild (table, &b, c) : NAN, 2);
  append_csv_number (line, r.first_against, 2);
  append_csv_number (line, r.e2e_against, 2);
  append_csv_number (line, t != NULL ? peak_against (table, &b, c) : NAN, 2);
  append_csv_parts (line, t != NULL && k + 1 == c->turns->len ? &c->profile : NULL);
  append_csv_text (line, c->note);
  puts (line->str);
}

void
modes_print_csv (const ModesTable *table, const ModesAgainst *against)
{
  puts ("tokens,mode,state,turn,prompt,new,reused,restored_host,restored_disk,on_host,recomputed,"
        "synthetic,"
        "first_token_ms,e2e_ms,ms_per_token,restore_ms,peak_process_bytes,peak_kv_bytes,"
        "peak_gpu_bytes,peak_host_bytes,peak_disk_bytes,first_token_less_than_rebuild_percent,"
        "e2e_less_than_rebuild_percent,peak_less_than_rebuild_percent,"
        "first_token_less_than_against_percent,e2e_less_than_against_percent,"
        "peak_less_than_against_percent,parts_step_ms,kv_update_ms,attention_ms,"
        "attention_pages_ms,embedding_mlp_ms,sampling_ms,rest_ms,note");
  for (guint i = 0; i < table->cells->len; i++)
    {
      const ModesCell *c = g_ptr_array_index (table->cells, i);

      for (guint k = 0; k < MAX (c->turns->len, 1); k++)
        print_csv_line (table, against, c, k);
    }
}

/* ---- JSON ---- */

static void
append_members (GString *json, const char *const names[], const double values[], gsize n)
{
  for (gsize i = 0; i < n; i++)
    {
      g_string_append_printf (json, "%s\"%s\": ", i > 0 ? ", " : "", names[i]);
      quire_json_add_number (json, values[i], 2);
    }
}

/* Of one step, in ms; null when none was measured. */
static void
append_parts (GString *json, const qe_profile *profile)
{
  static const char *const names[]
      = { "step_ms",          "kv_update_ms", "attention_ms", "attention_pages_ms",
          "embedding_mlp_ms", "sampling_ms",  "rest_ms" };
  Parts p;

  if (profile->n_steps == 0)
    {
      g_string_append (json, "null");
      return;
    }
  p = parts_of (profile);
  const double values[] = { p.step, p.kv, p.attention, p.of_it_pages, p.mlp, p.sampling, p.rest };
  for (gsize i = 0; i < G_N_ELEMENTS (names); i++)
    {
      g_string_append_printf (json, "%s\"%s\": ", i > 0 ? ", " : "{", names[i]);
      quire_json_add_number (json, values[i], 4);
    }
  g_string_append_printf (json, ", \"kv_update_also_in_attention\": %s}",
                          profile->kv_in_attend ? "true" : "false");
}

static void
append_comparison (GString *json, const ModesTable *table, const ModesAgainst *against,
                   const ModesCell *c)
{
  static const char *const names[] = { "first_token_percent", "e2e_percent",
                                       "first_token_against_percent", "e2e_against_percent" };
  static const char *const peak_names[] = { "peak_percent", "peak_against_percent" };
  Bases b = bases_of (table, against, c->length);
  Agreement a = agreement_of (table, c);
  const double peaks[] = { peak_rebuild (table, &b, c), peak_against (table, &b, c) };

  g_string_append_printf (json, "{\"tokens\": %u, \"mode\": \"%s\", \"exact\": %s, ", c->length,
                          c->mode->name, c->mode->exact ? "true" : "false");
  append_members (json, peak_names, peaks, G_N_ELEMENTS (peaks));
  g_string_append (json, ", \"breakdown\": ");
  append_parts (json, &c->profile);
  g_string_append (json, ", \"turns\": [");
  for (guint k = 0; k < c->turns->len; k++)
    {
      TurnReductions r = reduce_turn (&b, g_ptr_array_index (c->turns, k), k);
      const double values[] = { r.first_rebuild, r.e2e_rebuild, r.first_against, r.e2e_against };

      g_string_append (json, k > 0 ? ", {" : "{");
      append_members (json, names, values, G_N_ELEMENTS (values));
      g_string_append_c (json, '}');
    }
  g_string_append (json, "], \"agreement\": ");
  if (a.base == NULL)
    g_string_append (json, "null}");
  else
    g_string_append_printf (
        json,
        "{\"with\": \"%s\", \"turns\": %u, \"same\": %s, \"turn\": %" G_GINT64_FORMAT
        ", \"token\": %" G_GINT64_FORMAT "}}",
        a.base->mode->name, a.n_turns, a.turn < 0 ? "true" : "false", a.turn < 0 ? -1 : a.turn + 1,
        a.position);
}

void
modes_print_json (const ModesTable *table, const ModesAgainst *against)
{
  g_autoptr (GString) json = g_string_new ("{\"model\": ");
  gboolean first = TRUE;

  quire_json_add_string (json, table->model, -1);
  g_string_append (json, ", \"backend\": ");
  quire_json_add_string (json, table->backend, -1);
  g_string_append (json, ", \"device\": ");
  quire_json_add_string (json, table->device, -1);
  g_string_append_printf (json,
                          ", \"gen\": %u, \"new\": %u, \"complete\": %s, \"peak_memory\": \"%s\", "
                          "\"fill\": \"%s\"",
                          table->n_tokens, table->n_new, table->complete ? "true" : "false",
                          table->on_card ? "process" : "kv",
                          table->synthetic ? "synthetic" : "prompt");
  g_string_append (json, ", \"against\": ");
  if (against->name != NULL)
    quire_json_add_string (json, against->name, -1);
  else
    g_string_append (json, "null");
  g_string_append (json, ",\n\"comparisons\": [");
  for (guint i = 0; i < table->cells->len; i++)
    {
      const ModesCell *c = g_ptr_array_index (table->cells, i);

      if (c->state != MODES_CELL_DONE)
        continue;
      g_string_append (json, first ? "\n " : ",\n ");
      append_comparison (json, table, against, c);
      first = FALSE;
    }
  g_string_append (json, "],\n");
  modes_append_cells (json, table, FALSE);
  g_string_append_c (json, '}');
  puts (json->str);
}
