/* cmd-bench-modes.c: `quire-cli bench modes`: the cache modes side by side over one conversation of several turns.
 *
 * For each length L and mode a cell: an engine of its own, so that no memory or page of another cell is counted; one
 * session; a prompt of L tokens (fewer where the conversation would not end within the context), then turns that each
 * add N new tokens to what was said. Every turn decodes T tokens greedily, end tokens ignored. Prompts are pseudo-random
 * ids, the same in every mode. First token: the receipt's, from the call. End to end: from the call until the client has
 * the last token.
 *
 * Behind the last turn's tokens come some more, whose steps time their parts (KV update, attention, embedding and MLP,
 * sampling): they are in none of the other figures.
 *
 * With --fill synthetic a prompt that finds nothing cached gets random pages instead: then only what comes behind them is
 * measured, and its turn has no first token and no end to end.
 *
 *  1. Rows are counted by the engine's receipt: a mode that computes new tokens alone must report exactly the turn's new
 *     tokens, and one more from the second turn on: the last token of a reply has not been through the model yet. A mode
 *     that keeps nothing must report the whole prompt. Anything else fails the cell.
 *  2. On the CPU all exact modes must say the same in every turn. On a card it is reported: ties may flip there.
 *  3. Peaks are seen, not computed: snapshots while a turn runs and after it. A card's figure is a second old at most. */
#include "app/cli/bench-modes.h"

#include <string.h>

#include "app/cli/cli-json.h"
#include "app/quire-paths.h"

#define LENGTHS_DEFAULT "2048,32768,131072,262144"
#define LONG_TOKENS 131072u /* from here on LONG_TURNS turns at most */
#define LONG_TURNS 2
#define LENGTH_MAX (1u << 24)
#define TOKENS_MAX 65536
#define SNAPSHOT_EVERY_US 20000
#define SNAPSHOT_WAIT_US 300000 /* for one that was published after a turn */
#define CARD_SETTLE_US 1500000  /* until the engine looks at the card again */
#define SEED 20250701u
#define WARM_UP_TOKENS 256u
#define WARM_UP_REPLY 8

typedef struct
{
  CliEngineOptions engine;
  CliCacheOptions cache;
  char *lengths, *modes, *against, *resume, *fill, *ballast, *limit;
  int turns, tokens, new_tokens, profile;
  double time_limit;
  gboolean json, csv;
} Options;

typedef struct
{
  const Options *options;
  qe_cache_config cache; /* of the tiered modes; the others have no limits on the card */
  qe_model_info *info;
  qe_memory_plan *plan;
  qe_ballast *ballast; /* NULL: none */
  uint32_t context;
  GArray *lengths;  /* uint32_t */
  GPtrArray *modes; /* const ModesMode */
  ModesTable table;
} Modes;

static void
config_of (const Modes *m, const ModesMode *mode, qe_cache_config *out)
{
  *out = m->cache;
  out->mode = mode->mode;
  if (mode->article)
    {
      qe_cache_config article;

      qe_cache_config_init_article (&article);
      out->gpu_max_length = article.gpu_max_length;
      out->hot_cache_length = article.hot_cache_length;
    }
  else if (mode->mode != QE_CACHE_TIERED && mode->mode != QE_CACHE_TIERED_INT8
           && mode->mode != QE_CACHE_SELECTIVE)
    out->gpu_max_length = out->hot_cache_length = 0;
}

static guint
turns_of (const Options *o, uint32_t length)
{
  return (guint)(length >= LONG_TOKENS ? MIN (o->turns, LONG_TURNS) : o->turns);
}

static void
end_cell (ModesCell *cell, ModesState state, const char *note)
{
  cell->state = state;
  g_free (cell->note);
  cell->note = g_strdup (note);
  g_ptr_array_set_size (cell->turns, 0);
}

/* ---- Peaks ---- */

static void
see (ModesCell *cell, const qe_snapshot *s)
{
  guint64 used = 0;

  for (guint i = 0; i < QE_N_TIERS; i++)
    {
      used += s->tiers[i].bytes_used;
      cell->peak_used[i] = MAX (cell->peak_used[i], s->tiers[i].bytes_used);
      cell->peak_reserved[i] = MAX (cell->peak_reserved[i], s->tiers[i].bytes_reserved);
    }
  cell->peak_kv = MAX (cell->peak_kv, used);
  cell->peak_process = MAX (cell->peak_process, s->device.memory_process);
}

static guint64
see_latest (ModesCell *cell, qe_engine *engine)
{
  const qe_snapshot *s = qe_engine_dup_snapshot (engine);
  guint64 serial = s->serial;

  see (cell, s);
  qe_snapshot_unref (s);
  return serial;
}

/* A snapshot that was published after now, if one comes in time. */
static void
see_next (ModesCell *cell, qe_engine *engine)
{
  guint64 serial = see_latest (cell, engine);
  gint64 end = g_get_monotonic_time () + SNAPSHOT_WAIT_US;

  while (see_latest (cell, engine) == serial && g_get_monotonic_time () < end)
    g_usleep (SNAPSHOT_EVERY_US);
}

/* The engine looks at the card once a second at most; a session that opens makes it look. */
static void
see_card (ModesCell *cell, qe_engine *engine)
{
  qe_session_id session;

  g_usleep (CARD_SETTLE_US);
  session = qe_engine_open_session (engine, NULL);
  g_usleep (SNAPSHOT_WAIT_US);
  see_latest (cell, engine);
  if (session != 0)
    qe_engine_close_session (engine, session);
}

/* ---- One turn ---- */

/* Until the reply is whole. Its first @n_tokens ids are in @turn, and *receipt is of the time when they were there, but
 * for its profile, which is of those behind them. *e2e_ms: from @begin until then. */
static gboolean
follow (qe_request *request, qe_engine *engine, ModesCell *cell, guint n_tokens, ModesTurn *turn,
        qe_receipt *receipt, gint64 begin, double *e2e_ms, GError **error)
{
  gint64 next_look = 0;
  gboolean ok = TRUE, whole = FALSE;

  for (gboolean done = FALSE; !done;)
    {
      qe_update update = { 0 };

      qe_request_wait (request, SNAPSHOT_EVERY_US / 1000);
      if (qe_request_take (request, &update))
        {
          if (update.n_ids > 0)
            g_array_append_vals (turn->ids, update.ids, update.n_ids);
          if (!whole)
            *receipt = update.receipt;
          if (!whole && turn->ids->len >= n_tokens)
            {
              whole = TRUE;
              *e2e_ms = (double)(g_get_monotonic_time () - begin) / 1000;
            }
          receipt->profile = update.receipt.profile;
          done = update.state == QE_REQUEST_DONE;
          ok = !done || update.finish == QE_FINISH_LENGTH;
          if (!ok && update.error != NULL)
            g_propagate_error (error, g_steal_pointer (&update.error));
          else if (!ok)
            g_set_error (error, QE_ERROR,
                         update.finish == QE_FINISH_CONTEXT ? QE_ERROR_CONTEXT_LENGTH
                                                            : QE_ERROR_FAILED,
                         "the reply ended early (%s)", qe_finish_name (update.finish));
        }
      qe_update_clear (&update);
      if (!done && g_get_monotonic_time () >= next_look)
        {
          see_latest (cell, engine);
          next_look = g_get_monotonic_time () + SNAPSHOT_EVERY_US;
        }
    }
  if (turn->ids->len > n_tokens)
    g_array_set_size (turn->ids, n_tokens);
  return ok;
}

/* Invariant 1. */
static gboolean
check_rows (const Modes *m, const ModesCell *cell, const ModesTurn *t, guint turn, GError **error)
{
  gboolean keeps = !cell->mode->computes && turn > 0;
  uint32_t filled = m->table.synthetic && !keeps ? (t->n_prompt - 1) / 16 * 16 : 0;
  uint32_t expected = keeps ? (uint32_t)m->options->new_tokens + 1 : t->n_prompt - filled;

  if (t->n_new == expected && t->n_synthetic == filled
      && t->n_reused == t->n_prompt - expected - filled)
    return TRUE;
  g_set_error (error, QE_ERROR, QE_ERROR_FAILED,
               "turn %u of %u tokens: expected %u computed and %u reused, found %u and %u",
               turn + 1, t->n_prompt, expected, t->n_prompt - expected - filled, t->n_new,
               t->n_reused);
  return FALSE;
}

static gboolean
run_turn (const Modes *m, qe_engine *engine, qe_session_id session, ModesCell *cell, GArray *ids,
          guint k, gboolean last, GError **error)
{
  g_autoptr (qe_request) request = NULL;
  qe_generate_params params;
  qe_receipt r = { 0 };
  ModesTurn *turn = modes_cell_add_turn (cell);
  guint n_tokens = (guint)m->options->tokens, n_profile = last ? (guint)m->options->profile : 0;
  gint64 begin = g_get_monotonic_time ();
  double e2e_ms = 0;

  cli_bench_params (m->info, session, ids, n_tokens + n_profile, &params);
  params.n_profile = n_profile;
  request = qe_engine_generate (engine, &params, error);
  if (request == NULL || !follow (request, engine, cell, n_tokens, turn, &r, begin, &e2e_ms, error))
    return FALSE;
  cell->profile = r.profile;
  *turn = (ModesTurn){
    .ids = turn->ids,
    .n_prompt = r.n_prompt,
    .n_new = r.n_new,
    .n_reused = r.n_reused,
    .n_restored_host = r.n_restored_host,
    .n_restored_disk = r.n_restored_disk,
    .n_on_host = r.n_on_host,
    .n_recomputed = r.n_recomputed,
    .n_synthetic = r.n_synthetic,
    .first_token_ms = r.first_token_ms,
    .restore_ms = r.restore_ms,
    .ms_per_token = r.decode_tokens_per_s > 0 ? 1000 / r.decode_tokens_per_s : 0,
    .e2e_ms = e2e_ms,
  };
  if (turn->n_synthetic > 0)
    turn->first_token_ms = turn->e2e_ms = 0;
  see_next (cell, engine);
  if (turn->n_prompt != ids->len)
    {
      g_set_error (error, QE_ERROR, QE_ERROR_FAILED, "turn %u: expected a prompt of %u, found %u",
                   k + 1, ids->len, turn->n_prompt);
      return FALSE;
    }
  if (r.mode != cell->mode->mode && cell->note == NULL)
    cell->note = g_strdup_printf ("ran as %s", qe_cache_mode_name (r.mode));
  g_array_append_vals (ids, turn->ids->data, turn->ids->len);
  return check_rows (m, cell, turn, k, error);
}

/* ---- One cell ---- */

/* A request that is not counted, so that no figure holds what an engine does once: graphs, weights read from the files.
 * Its pages are shared with nobody and go with its session. */
static gboolean
warm_up (const Modes *m, qe_engine *engine, const ModesCell *cell, GError **error)
{
  g_autoptr (GArray) ids = g_array_new (FALSE, FALSE, sizeof (uint32_t));
  g_autoptr (qe_request) request = NULL;
  guint64 random = SEED - 1;
  ModesCell *forget;
  qe_cache_config config;
  qe_generate_params params;
  qe_session_id session;
  CliReply reply = { 0 };
  gboolean ok;
  uint32_t n = MIN (WARM_UP_TOKENS, m->context / 2);

  config_of (m, cell->mode, &config);
  config.use_cache = false;
  session = cli_open_session (engine, &config, NULL, error);
  if (session == 0)
    return FALSE;
  cli_bench_fill_ids (&random, m->info->vocab, ids, MAX (n, 1));
  cli_bench_params (m->info, session, ids, WARM_UP_REPLY, &params);
  request = qe_engine_generate (engine, &params, error);
  if (request != NULL)
    cli_reply_run (&reply, request, NULL);
  qe_engine_close_session (engine, session);
  ok = request != NULL && reply.error == NULL;
  if (reply.error != NULL)
    g_propagate_error (error, g_steal_pointer (&reply.error));
  cli_reply_clear (&reply);
  forget = modes_cell_new (0, cell->mode);
  see_next (forget, engine); /* its pages are in no later snapshot */
  modes_cell_free (forget);
  return ok;
}

/* All turns of @cell in one session. */
static gboolean
converse (const Modes *m, qe_engine *engine, ModesCell *cell, uint32_t n_prompt, guint n_turns,
          GError **error)
{
  g_autoptr (GArray) ids = g_array_new (FALSE, FALSE, sizeof (uint32_t));
  guint64 random = SEED + cell->length;
  qe_cache_config config;
  qe_session_id session;
  gboolean ok = TRUE;

  if (!warm_up (m, engine, cell, error))
    return FALSE;
  config_of (m, cell->mode, &config);
  session = cli_bench_open_session (engine, &config, m->table.synthetic, error);
  if (session == 0)
    return FALSE;
  for (guint k = 0; k < n_turns && ok; k++)
    {
      cli_bench_fill_ids (&random, m->info->vocab, ids,
                          k == 0 ? n_prompt : (guint)m->options->new_tokens);
      ok = run_turn (m, engine, session, cell, ids, k, k + 1 == n_turns, error);
    }
  if (ok && m->table.on_card)
    see_card (cell, engine);
  qe_engine_close_session (engine, session);
  return ok;
}

/* How many tokens the first prompt has; 0: the cell does not fit, and its note says why. */
static uint32_t
plan_cell (const Modes *m, ModesCell *cell, guint n_turns)
{
  uint64_t rest = (uint64_t)n_turns * (uint64_t)m->options->tokens + (uint64_t)m->options->profile
                  + (uint64_t)(n_turns - 1) * (uint64_t)m->options->new_tokens;
  g_autofree char *note = NULL, *needed = NULL, *device = NULL, *host = NULL;
  qe_cache_config config;
  qe_cache_cost cost;
  uint32_t n_prompt;

  if (cell->length > m->context || rest >= m->context)
    {
      note = g_strdup_printf ("the context is %u tokens", m->context);
      end_cell (cell, MODES_CELL_UNFIT, note);
      return 0;
    }
  n_prompt = (uint32_t)MIN (cell->length, m->context - rest);
  config_of (m, cell->mode, &config);
  qe_cache_cost_of (m->plan, &config, n_prompt + rest, &cost);
  if (cost.fits)
    return n_prompt;
  needed = g_format_size_full (cost.bytes, G_FORMAT_SIZE_IEC_UNITS);
  device = g_format_size_full (m->plan->kv, G_FORMAT_SIZE_IEC_UNITS);
  host = g_format_size_full (m->plan->host_kv, G_FORMAT_SIZE_IEC_UNITS);
  note = g_strdup_printf ("%s of KV pages; there is room for %s on the device, %s in host memory",
                          needed, device, host);
  end_cell (cell, MODES_CELL_UNFIT, note);
  return 0;
}

/* FALSE: nothing else can be measured either; the error was printed and *status set. */
static gboolean
run_cell (Modes *m, ModesCell *cell, int *status)
{
  guint n_turns = turns_of (m->options, cell->length);
  uint32_t n_prompt = plan_cell (m, cell, n_turns);
  gint64 begin = g_get_monotonic_time ();
  g_autoptr (GError) error = NULL;
  g_autoptr (qe_engine) engine = NULL;
  g_autoptr (qe_model_info) info = NULL;
  qe_engine_status state = { 0 };

  if (n_prompt == 0)
    return TRUE;
  engine = cli_engine_start (&m->options->engine, 0, &info, status);
  if (engine == NULL)
    return FALSE;
  qe_engine_get_status (engine, &state);
  if (g_strcmp0 (state.backend, m->table.backend) != 0)
    {
      *status = cli_fail (CLI_FAILED, "the model runs on %s: expected %s", state.backend,
                          m->table.backend);
      qe_engine_status_clear (&state);
      return FALSE;
    }
  qe_engine_status_clear (&state);
  if (!converse (m, engine, cell, n_prompt, n_turns, &error))
    {
      gboolean unfit = g_error_matches (error, QE_ERROR, QE_ERROR_NO_MEMORY)
                       || g_error_matches (error, QE_ERROR, QE_ERROR_CONTEXT_LENGTH);

      end_cell (cell, unfit ? MODES_CELL_UNFIT : MODES_CELL_FAILED, error->message);
    }
  cell->seconds = (double)(g_get_monotonic_time () - begin) / G_USEC_PER_SEC;
  if (cell->peak_process > qe_ballast_bytes (m->ballast))
    cell->peak_process -= qe_ballast_bytes (m->ballast);
  return TRUE;
}

static void
report_progress (const ModesCell *cell)
{
  fflush (stdout);
  if (cell->state == MODES_CELL_FAILED)
    cli_fail (CLI_FAILED, "%u tokens, %s: %s", cell->length, cell->mode->name, cell->note);
  else if (cell->state == MODES_CELL_UNFIT)
    fprintf (stderr, "%u tokens, %s: does not fit\n", cell->length, cell->mode->name);
  else
    fprintf (stderr, "%u tokens, %s: %u turns, %.1f s\n", cell->length, cell->mode->name,
             cell->turns->len, cell->seconds);
}

/* ---- The table ---- */

/* What a cell of @length will take: as long as the longest of that length so far, in this run or an earlier one. */
static double
predict_seconds (const ModesTable *table, uint32_t length)
{
  double longest = 0;

  for (guint i = 0; i < table->cells->len; i++)
    {
      const ModesCell *cell = g_ptr_array_index (table->cells, i);

      if (cell->length == length)
        longest = MAX (longest, cell->seconds);
    }
  return longest;
}

/* Whether the next cell would end after the limit. The first of a run never does, or none would be measured. */
static gboolean
is_out_of_time (const Modes *m, uint32_t length, guint n_run, gint64 begin)
{
  double elapsed = (double)(g_get_monotonic_time () - begin) / G_USEC_PER_SEC;

  return m->options->time_limit > 0 && n_run > 0
         && elapsed + predict_seconds (&m->table, length) > m->options->time_limit;
}

static int
measure (Modes *m)
{
  const Options *o = m->options;
  gint64 begin = g_get_monotonic_time ();
  g_autoptr (GError) error = NULL;
  int status = CLI_OK;
  guint n_run = 0;

  for (guint i = 0; i < m->lengths->len; i++)
    for (guint k = 0; k < m->modes->len; k++)
      {
        uint32_t length = g_array_index (m->lengths, uint32_t, i);
        const ModesMode *mode = g_ptr_array_index (m->modes, k);
        ModesCell *cell;

        if (modes_table_find (&m->table, length, mode) != NULL)
          continue;
        if (is_out_of_time (m, length, n_run, begin))
          return status;
        cell = modes_cell_new (length, mode);
        if (!run_cell (m, cell, &status))
          {
            modes_cell_free (cell);
            return status;
          }
        n_run += cell->state != MODES_CELL_UNFIT;
        g_ptr_array_add (m->table.cells, cell);
        report_progress (cell);
        if (cell->state == MODES_CELL_FAILED)
          status = CLI_FAILED;
        if (o->resume != NULL && !modes_table_write (o->resume, &m->table, &error))
          return cli_fail (CLI_FAILED, "--resume: %s", error->message);
      }
  m->table.complete = TRUE;
  return status;
}

/* One line that tells which runs may share a table. */
static char *
describe_setup (const Modes *m)
{
  const CliEngineOptions *e = &m->options->engine;
  const qe_cache_config *c = &m->cache;
  g_autoptr (GString) s = g_string_new (NULL);

  g_string_append_printf (s,
                          "%s, %" G_GUINT64_FORMAT " parameters; backend %s; device %s; "
                          "%d tokens, %d new, %d turns, %d timed by parts",
                          m->info->name, m->info->n_params, m->plan->backend, m->plan->device,
                          m->options->tokens, m->options->new_tokens, m->options->turns,
                          m->options->profile);
  g_string_append_printf (
      s, "; pages %u, recent %u, hot %u, offload %d, shared %d, selective %u + %u + %u",
      c->max_cache_size, c->gpu_max_length, c->hot_cache_length, c->offload_to_cpu, c->use_cache,
      c->sink_length, c->recent_length, c->select_length);
  g_string_append_printf (s, "; isa %s, threads %d, KV %s of %d MiB, reserve %d MiB, context %u",
                          e->isa != NULL ? e->isa : "best", e->threads,
                          e->kv != NULL ? e->kv : "bf16", e->kv_mib, e->reserve_mib, m->context);
  g_string_append_printf (s, "; host memory %s, path %s, ring %s, disk %s of %s",
                          e->tiers.host_memory != NULL ? e->tiers.host_memory : "default",
                          e->tiers.host_path != NULL ? e->tiers.host_path : "auto",
                          e->tiers.ring != NULL ? e->tiers.ring : "default",
                          e->tiers.cache_dir != NULL ? e->tiers.cache_dir : "none",
                          e->tiers.cache_quota != NULL ? e->tiers.cache_quota : "default");
  g_string_append_printf (s, "; ballast %s, limit %s",
                          m->options->ballast != NULL ? m->options->ballast : "none",
                          m->options->limit != NULL ? m->options->limit : "none");
  g_string_append (s, m->table.synthetic ? "; fill synthetic" : "; fill prompt");
  return g_string_free (g_steal_pointer (&s), FALSE);
}

/* ---- Options ---- */

static gboolean
parse_modes (const char *text, GPtrArray *out, GError **error)
{
  g_auto (GStrv) fields = NULL;

  if (text == NULL)
    {
      for (gsize i = 0; i < MODES_N; i++)
        g_ptr_array_add (out, (gpointer)&modes_all[i]);
      return TRUE;
    }
  fields = g_strsplit (text, ",", -1);
  for (char **field = fields; *field != NULL || out->len == 0; field++)
    {
      const ModesMode *mode = NULL;

      for (gsize i = 0; i < MODES_N && *field != NULL; i++)
        if (strcmp (*field, modes_all[i].name) == 0)
          mode = &modes_all[i];
      if (mode == NULL || g_ptr_array_find (out, mode, NULL))
        {
          g_set_error (error, QE_ERROR, QE_ERROR_INVALID,
                       "--modes: expected some of rebuild, paged, session, tiered, article, "
                       "tiered-int8, selective, each once, found “%s”",
                       text);
          return FALSE;
        }
      g_ptr_array_add (out, (gpointer)mode);
    }
  return TRUE;
}

static gboolean
check_numbers (const Options *o, int *status)
{
  if (o->turns < 1 || o->turns > MODES_TURNS_MAX)
    *status
        = cli_fail (CLI_USAGE, "--turns: expected 1 to %d, found “%d”", MODES_TURNS_MAX, o->turns);
  else if (o->tokens < 2 || o->tokens > TOKENS_MAX)
    *status = cli_fail (CLI_USAGE, "--tokens: expected 2 to %d, found “%d”", TOKENS_MAX, o->tokens);
  else if (o->new_tokens < 1 || o->new_tokens > TOKENS_MAX)
    *status
        = cli_fail (CLI_USAGE, "--new: expected 1 to %d, found “%d”", TOKENS_MAX, o->new_tokens);
  else if (o->profile < 0 || o->profile > TOKENS_MAX)
    *status
        = cli_fail (CLI_USAGE, "--profile: expected 0 to %d, found “%d”", TOKENS_MAX, o->profile);
  else if (!(o->time_limit >= 0 && o->time_limit <= 1e9))
    *status = cli_fail (CLI_USAGE, "--time-limit: expected seconds from 0 (none), found “%g”",
                        o->time_limit);
  else if (o->json && o->csv)
    *status = cli_fail (CLI_USAGE, "expected one of --json and --csv, found both");
  else if (o->cache.mode != NULL || o->cache.article)
    *status = cli_fail (CLI_USAGE, "%s: expected --modes, which runs several, found “%s”",
                        o->cache.article ? "--article" : "--cache-mode",
                        o->cache.article ? "article" : o->cache.mode);
  else
    return TRUE;
  return FALSE;
}

/* Facts of the model and the machine, with nothing loaded. */
static gboolean
prepare (Modes *m, GError **error)
{
  const Options *o = m->options;
  g_autofree char *dir
      = o->engine.model != NULL ? g_strdup (o->engine.model) : quire_dup_default_model_dir ();
  CliCacheOptions cache = o->cache;
  qe_engine_options options;
  int status;

  cache.mode = (char *)"selective"; /* what every limit may be given for */
  if (!cli_cache_options_apply (&cache, &m->cache, error)
      || !parse_modes (o->modes, m->modes, error)
      || !cli_bench_parse_fill (o->fill, &m->table.synthetic, error)
      || !cli_bench_parse_list ("--lengths", o->lengths != NULL ? o->lengths : LENGTHS_DEFAULT, 1,
                                LENGTH_MAX, m->lengths, error))
    return FALSE;
  cli_engine_options_apply (&o->engine, &options, &status);
  m->info = qe_model_info_new (dir, error);
  if (m->info != NULL)
    m->plan = qe_plan_memory (&options, dir, error);
  if (m->plan == NULL)
    return FALSE;
  if (m->plan->problem != NULL)
    {
      g_set_error (error, QE_ERROR, QE_ERROR_NO_MEMORY, "%s", m->plan->problem);
      return FALSE;
    }
  m->context = m->info->context_max;
  if (o->engine.context > 0)
    m->context = MIN (m->context, (uint32_t)o->engine.context);
  m->table.model = g_strdup (m->info->name);
  m->table.backend = g_strdup (m->plan->backend);
  m->table.device = g_strdup (m->plan->device);
  m->table.on_card = m->plan->on_device;
  m->table.n_tokens = (guint)o->tokens;
  m->table.n_new = (guint)o->new_tokens;
  m->table.n_turns = (guint)o->turns;
  m->table.n_profile = (guint)o->profile;
  m->table.setup = describe_setup (m);
  return TRUE;
}

static int
run (const Options *o)
{
  g_autoptr (GError) error = NULL;
  qe_engine_options checked;
  ModesAgainst against = { 0 };
  Modes m = { .options = o };
  int status = CLI_OK;

  if (!check_numbers (o, &status) || !cli_engine_options_apply (&o->engine, &checked, &status))
    return status;
  if (!cli_bench_take_ballast (o->engine.device, o->ballast, o->limit, &m.ballast, &status))
    return status;
  m.lengths = g_array_new (FALSE, FALSE, sizeof (uint32_t));
  m.modes = g_ptr_array_new ();
  m.table.cells = g_ptr_array_new_with_free_func ((GDestroyNotify)modes_cell_free);
  if (!prepare (&m, &error)
      || (o->against != NULL && !modes_against_read (o->against, &against, &error))
      || (o->resume != NULL && !modes_table_read (o->resume, &m.table, &error)))
    status = cli_fail (g_error_matches (error, QE_ERROR, QE_ERROR_INVALID) ? CLI_USAGE : CLI_FAILED,
                       "%s", error->message);
  else
    {
      status = measure (&m);
      if (o->json)
        modes_print_json (&m.table, &against);
      else if (o->csv)
        modes_print_csv (&m.table, &against);
      else
        modes_print_text (&m.table, &against);
      if (modes_check_agreement (&m.table) > 0)
        status = CLI_FAILED;
    }
  modes_against_clear (&against);
  modes_table_clear (&m.table);
  g_array_unref (m.lengths);
  g_ptr_array_unref (m.modes);
  qe_model_info_free (m.info);
  qe_memory_plan_free (m.plan);
  qe_ballast_free (m.ballast);
  return status;
}

int
cli_bench_modes (int argc, char **argv)
{
  Options o = { .turns = 4, .tokens = 256, .new_tokens = 128, .profile = 16 };
  GOptionEntry entries[] = {
    { "modes", 0, 0, G_OPTION_ARG_STRING, &o.modes,
      "Some of rebuild, paged, session, tiered, article, tiered-int8, selective (default: all)",
      "LIST" },
    { "lengths", 0, 0, G_OPTION_ARG_STRING, &o.lengths,
      "Tokens of the first prompt (default: " LENGTHS_DEFAULT ")", "LIST" },
    { "turns", 0, 0, G_OPTION_ARG_INT, &o.turns,
      "Turns of a conversation, 2 at most from 131,072 tokens on (default: 4)", "N" },
    { "tokens", 0, 0, G_OPTION_ARG_INT, &o.tokens, "Tokens decoded in a turn (default: 256)", "N" },
    { "new", 0, 0, G_OPTION_ARG_INT, &o.new_tokens,
      "New tokens of every turn but the first (default: 128)", "N" },
    { "fill", 0, 0, G_OPTION_ARG_STRING, &o.fill,
      "prompt, or synthetic: random pages where a first prompt would be computed, for decode speed "
      "at "
      "lengths whose prompt takes too long (default: prompt)",
      "HOW" },
    { "profile", 0, 0, G_OPTION_ARG_INT, &o.profile,
      "Tokens behind the last turn's whose steps are timed by parts, 0 for none (default: 16)",
      "N" },
    CLI_BENCH_BALLAST_ENTRIES (&o.ballast, &o.limit),
    { "against", 0, 0, G_OPTION_ARG_FILENAME, &o.against,
      "Figures of another program: {\"name\", \"rows\": [{\"tokens\", \"first_token_ms\", "
      "\"e2e_ms\", \"peak_bytes\"}]}",
      "FILE" },
    { "resume", 0, 0, G_OPTION_ARG_FILENAME, &o.resume,
      "Keep what was measured in FILE, and measure only what it lacks", "FILE" },
    { "time-limit", 0, 0, G_OPTION_ARG_DOUBLE, &o.time_limit,
      "Begin nothing that would end after so many seconds (default: no limit)", "SECONDS" },
    { "json", 0, 0, G_OPTION_ARG_NONE, &o.json, "Print one JSON object", NULL },
    { "csv", 0, 0, G_OPTION_ARG_NONE, &o.csv, "Print one line a turn", NULL },
    { NULL },
  };
  GOptionContext *context = g_option_context_new ("- the cache modes side by side");
  int status;

  g_option_context_add_main_entries (context, entries, NULL);
  g_option_context_add_group (context, cli_cache_options_group (&o.cache));
  g_option_context_add_group (context, cli_engine_options_group (&o.engine));
  if (cli_parse_options (context, argc, argv, "bench modes", &status))
    status = run (&o);
  g_free (o.lengths);
  g_free (o.modes);
  g_free (o.against);
  g_free (o.fill);
  g_free (o.ballast);
  g_free (o.limit);
  g_free (o.resume);
  cli_cache_options_clear (&o.cache);
  cli_engine_options_clear (&o.engine);
  return status;
}
