/* quire-comparison.c: see quire-comparison.h. */
#include "app/quire-comparison.h"

#include <glib/gi18n.h>
#include <math.h>
#include <string.h>

#include "app/quire-format.h"

/* ---- Samples ---- */

void
quire_samples_add (QuireSamples *samples, double value)
{
  if (samples->n < QUIRE_COMPARE_REPEATS)
    samples->values[samples->n++] = value;
}

static int
by_value (const void *a, const void *b)
{
  double left = *(const double *)a, right = *(const double *)b;

  return left < right ? -1 : left > right;
}

/* The @at-th of the sorted values, between two of them where it is no whole number. */
static double
ranked (const QuireSamples *samples, double at)
{
  double sorted[QUIRE_COMPARE_REPEATS];
  guint low = (guint)at;

  if (samples->n == 0)
    return NAN;
  memcpy (sorted, samples->values, sizeof sorted);
  qsort (sorted, samples->n, sizeof *sorted, by_value);
  return at > low ? (sorted[low] + sorted[low + 1]) / 2 : sorted[low];
}

double
quire_samples_median (const QuireSamples *samples)
{
  return ranked (samples, samples->n > 0 ? (samples->n - 1) / 2.0 : 0);
}

double
quire_samples_min (const QuireSamples *samples)
{
  return ranked (samples, 0);
}

double
quire_samples_max (const QuireSamples *samples)
{
  return ranked (samples, samples->n > 0 ? samples->n - 1 : 0);
}

/* ---- Life ---- */

static void
pane_free (gpointer data)
{
  QuirePane *pane = data;

  g_free (pane->error);
  g_string_free (pane->text, TRUE);
  g_array_unref (pane->tokens);
  g_array_unref (pane->turns);
  g_free (pane);
}

QuireComparison *
quire_comparison_new (void)
{
  QuireComparison *self = g_new0 (QuireComparison, 1);

  self->panes = g_ptr_array_new_with_free_func (pane_free);
  return self;
}

void
quire_comparison_free (QuireComparison *self)
{
  if (self == NULL)
    return;
  g_free (self->title);
  g_free (self->prompt);
  g_free (self->source);
  g_free (self->model_name);
  g_free (self->device);
  g_ptr_array_unref (self->panes);
  g_free (self);
}

QuirePane *
quire_comparison_add_pane (QuireComparison *self, QuireCacheChoice choice)
{
  QuirePane *pane = g_new0 (QuirePane, 1);

  pane->choice = choice;
  pane->n_before = self->panes->len;
  pane->text = g_string_new (NULL);
  pane->tokens = g_array_new (FALSE, TRUE, sizeof (QuireToken));
  pane->turns = g_array_new (FALSE, TRUE, sizeof (QuireComparedTurn));
  g_ptr_array_add (self->panes, pane);
  return pane;
}

QuirePane *
quire_comparison_get_pane (const QuireComparison *self, guint i)
{
  return g_ptr_array_index (self->panes, i);
}

const QuirePane *
quire_comparison_get_base (const QuireComparison *self)
{
  for (guint i = 0; i < self->panes->len; i++)
    if (quire_comparison_get_pane (self, i)->choice == QUIRE_CACHE_REBUILD)
      return quire_comparison_get_pane (self, i);
  return NULL;
}

gboolean
quire_pane_is_over (const QuirePane *pane)
{
  return pane->state >= QUIRE_PANE_DONE;
}

gboolean
quire_comparison_is_over (const QuireComparison *self)
{
  for (guint i = 0; i < self->panes->len; i++)
    if (!quire_pane_is_over (quire_comparison_get_pane (self, i)))
      return FALSE;
  return TRUE;
}

void
quire_piece_set (char piece[QUIRE_PIECE_BYTES], const char *bytes, gsize n_bytes)
{
  g_autofree char *valid = g_utf8_make_valid (bytes != NULL ? bytes : "", (gssize)n_bytes);
  gsize n = strlen (valid);

  while (n >= QUIRE_PIECE_BYTES)
    n = (gsize)(g_utf8_find_prev_char (valid, valid + n) - valid);
  memcpy (piece, valid, n);
  piece[n] = '\0';
}

/* ---- Streams ---- */

static const QuireToken *
token_at (const QuirePane *pane, guint at)
{
  return at < pane->tokens->len ? &g_array_index (pane->tokens, QuireToken, at) : NULL;
}

/* Its tokens are all there. */
static gboolean
is_whole (const QuirePane *pane)
{
  return pane->state == QUIRE_PANE_TIMING || pane->state == QUIRE_PANE_DONE;
}

QuireStream
quire_comparison_align (const QuireComparison *self, guint i, guint *at)
{
  const QuirePane *a = quire_comparison_get_pane (self, 0),
                  *b = quire_comparison_get_pane (self, i);
  guint n = MIN (a->tokens->len, b->tokens->len), k = 0;

  *at = 0;
  if (i == 0)
    return QUIRE_STREAM_BASELINE;
  if (n == 0)
    return QUIRE_STREAM_UNKNOWN;
  while (k < n && token_at (a, k)->id == token_at (b, k)->id)
    k++;
  *at = k;
  if (k < n)
    return QUIRE_STREAM_DIFFERS;
  if (!is_whole (a) || !is_whole (b))
    return QUIRE_STREAM_SAME_SO_FAR;
  return a->tokens->len == b->tokens->len ? QUIRE_STREAM_SAME : QUIRE_STREAM_DIFFERS;
}

double
quire_pane_get_margin (const QuirePane *pane, guint at)
{
  const QuireToken *token = token_at (pane, at);

  return token != NULL && token->n_top >= 2
             ? (double)token->top[0].logprob - (double)token->top[1].logprob
             : NAN;
}

gboolean
quire_comparison_is_tie (const QuireComparison *self, guint i, guint at)
{
  return self->greedy
         && quire_pane_get_margin (quire_comparison_get_pane (self, 0), at) <= QUIRE_COMPARE_TIE
         && quire_pane_get_margin (quire_comparison_get_pane (self, i), at) <= QUIRE_COMPARE_TIE;
}

guint
quire_pane_get_begin (const QuirePane *pane, guint at)
{
  const QuireToken *before = at > 0 ? token_at (pane, MIN (at, pane->tokens->len) - 1) : NULL;

  return before != NULL ? MIN (before->end, (guint)pane->text->len) : 0;
}

guint
quire_pane_find_token (const QuirePane *pane, guint offset)
{
  guint low = 0, high = pane->tokens->len;

  while (low < high)
    {
      guint middle = (low + high) / 2;

      if (token_at (pane, middle)->end > offset)
        high = middle;
      else
        low = middle + 1;
    }
  return low;
}

char *
quire_pane_dup_piece (const QuirePane *pane, guint at)
{
  const QuireToken *token = token_at (pane, at);
  guint begin = quire_pane_get_begin (pane, at);
  char piece[QUIRE_PIECE_BYTES];

  if (token == NULL || token->end <= begin || begin >= pane->text->len)
    return g_strdup (_ ("the end of the reply"));
  quire_piece_set (piece, pane->text->str + begin, MIN (token->end, pane->text->len) - begin);
  g_strdelimit (piece, "\n\r\t", ' ');
  /* Translators: a token in quotation marks. */
  return g_strdup_printf (_ ("“%s”"), piece);
}

/* ---- What it needs ---- */

static gboolean
may_offload (qe_cache_mode mode)
{
  return mode == QE_CACHE_TIERED || mode == QE_CACHE_TIERED_INT8 || mode == QE_CACHE_SELECTIVE;
}

void
quire_compare_need (const qe_memory_plan *plan, QuireCacheChoice choice, guint n_tokens,
                    QuireNeed *out)
{
  qe_cache_config config;
  qe_cache_cost cost;

  quire_cache_choice_get_config (choice, &config);
  qe_cache_cost_of (plan, &config, n_tokens, &cost);
  out->needed = cost.bytes;
  /* Pages that have left the GPU are all on the host: the larger of the two is the limit. */
  out->allowed = may_offload (quire_cache_choice_resolve (choice, plan))
                     ? MAX (plan->kv, plan->host_kv)
                     : plan->kv;
  out->fits = cost.fits;
}

void
quire_compare_need_all (const qe_memory_plan *plan, const QuireCacheChoice *choices, guint n,
                        guint n_tokens, gboolean interleaved, guint64 *device, guint64 *host,
                        gboolean *fits)
{
  guint64 fixed = 0, all = 0;

  *device = *host = 0;
  *fits = TRUE;
  for (guint i = 0; i < n; i++)
    {
      qe_cache_config config;
      qe_cache_cost cost;

      quire_cache_choice_get_config (choices[i], &config);
      qe_cache_cost_of (plan, &config, n_tokens, &cost);
      *device = interleaved ? *device + cost.device_bytes : MAX (*device, cost.device_bytes);
      *host = interleaved ? *host + cost.host_bytes : MAX (*host, cost.host_bytes);
      *fits &= cost.fits;
      all += cost.bytes;
      if (!may_offload (quire_cache_choice_resolve (choices[i], plan)))
        fixed += cost.bytes;
    }
  if (interleaved)
    *fits &= fixed <= plan->kv && all <= plan->kv + plan->host_kv;
}

/* ---- Words ---- */

char *
quire_pane_dup_state (const QuirePane *pane, const QuireComparison *of)
{
  switch (pane->state)
    {
    case QUIRE_PANE_WAITING:
      return pane->n_before > 0 ? g_strdup_printf (
                 ngettext ("Waiting (%u before)", "Waiting (%u before)", pane->n_before),
                 pane->n_before)
                                : g_strdup (_ ("Waiting"));
    case QUIRE_PANE_READING:
      /* Translators: how much of the prompt the model has read. */
      return g_strdup_printf (_ ("Reading %u %%"),
                              pane->n_prompt > 0 ? pane->n_done * 100 / pane->n_prompt : 0);
    case QUIRE_PANE_STREAMING:
      return g_strdup (_ ("Streaming"));
    case QUIRE_PANE_TIMING:
      return g_strdup_printf (_ ("Timing, run %u of %u"), pane->n_run, QUIRE_COMPARE_REPEATS);
    case QUIRE_PANE_STOPPED:
      return g_strdup (_ ("Stopped"));
      case QUIRE_PANE_UNFIT: {
        g_autofree char *needed = quire_format_bytes (pane->needed);
        g_autofree char *allowed = quire_format_bytes (pane->allowed);

        return g_strdup_printf (_ ("Does not fit: needs %s, %s allowed"), needed, allowed);
      }
    case QUIRE_PANE_FAILED:
      return g_strdup (_ ("Failed"));
    case QUIRE_PANE_DONE:
    default:
      if (of->interleaved)
        return g_strdup (of->on_gpu ? _ ("Shared the GPU") : _ ("Shared the CPU"));
      return g_strdup (_ ("Done"));
    }
}

char *
quire_comparison_dup_stream (const QuireComparison *self, guint i)
{
  guint at;

  switch (quire_comparison_align (self, i, &at))
    {
    case QUIRE_STREAM_BASELINE:
      return g_strdup (_ ("baseline"));
    case QUIRE_STREAM_SAME_SO_FAR:
      return g_strdup (_ ("same text so far"));
    case QUIRE_STREAM_SAME:
      return g_strdup (_ ("same text"));
    case QUIRE_STREAM_DIFFERS:
      /* Translators: the number of the first token that is another one than in the first pane. */
      return g_strdup_printf (_ ("differs at %u"), at + 1);
    case QUIRE_STREAM_UNKNOWN:
    default:
      return g_strdup ("");
    }
}

static char *
dup_margin (const QuirePane *pane, guint at)
{
  double margin = quire_pane_get_margin (pane, at);

  return isnan (margin) ? g_strdup (C_ ("figure", "–")) : g_strdup_printf (_ ("%.2f"), margin);
}

char *
quire_comparison_dup_verdict (const QuireComparison *self)
{
  GString *out = g_string_new (NULL);
  const QuirePane *a = quire_comparison_get_pane (self, 0);

  for (guint i = 1; i < self->panes->len; i++)
    {
      const QuirePane *b = quire_comparison_get_pane (self, i);
      g_autofree char *here = NULL, *there = NULL, *margin = NULL, *base_margin = NULL;
      g_autofree char *differs = NULL, *both = NULL;
      const char *why;
      guint at;

      if (quire_comparison_align (self, i, &at) != QUIRE_STREAM_DIFFERS)
        continue;
      here = quire_pane_dup_piece (b, at);
      there = quire_pane_dup_piece (a, at);
      margin = dup_margin (b, at);
      base_margin = dup_margin (a, at);
      if (out->len > 0)
        g_string_append_c (out, '\n');
      /* Translators: mode, token number, token, margin between the two likeliest tokens; then token, mode and margin of the
       * first pane. */
      differs = g_strdup_printf (_ ("%s differs at token %u: %s (top-2 margin %s) where %s has %s "
                                    "(margin %s)."),
                                 quire_cache_choice_get_title (b->choice), at + 1, here, margin,
                                 quire_cache_choice_get_title (a->choice), there, base_margin);
      if (!self->greedy)
        why = _ ("Tokens were drawn, so a small change can pick another one.");
      else if (quire_comparison_is_tie (self, i, at))
        why = _ ("That is a tie: rounding decides.");
      else if (quire_cache_choice_is_approximate (b->choice)
               || quire_cache_choice_is_approximate (a->choice))
        why = _ ("No tie: the approximation changed the answer.");
      else
        why = _ ("No tie: exact modes should agree here.");
      both = quire_format_sentences (differs, why);
      g_string_append (out, both);
    }
  return g_string_free (out, out->len == 0);
}

char *
quire_comparison_dup_conditions (const QuireComparison *self)
{
  g_autofree char *sampling = self->greedy
                                  ? g_strdup (_ ("likeliest tokens"))
                                  : g_strdup_printf (_ ("temperature %.1f"), self->temperature);

  g_autofree char *seed = g_strdup_printf ("%" G_GUINT64_FORMAT, self->seed);

  if (self->interleaved)
    return g_strdup_printf (_ ("Interleaved, streams only · %s · seed %s"), sampling, seed);
  /* Translators: number of timed runs, then the sampling, then the seed. */
  return g_strdup_printf (_ ("One after another · %u runs, median · %s · seed %s"),
                          QUIRE_COMPARE_REPEATS, sampling, seed);
}

char *
quire_comparison_dup_column_title (const QuireComparison *self, QuireColumn column)
{
  switch (column)
    {
    case QUIRE_COLUMN_COLD:
      return g_strdup (_ ("First token, cold"));
    case QUIRE_COLUMN_WARM:
      return g_strdup (_ ("First token, warm"));
    case QUIRE_COLUMN_E2E:
      return g_strdup_printf (_ ("%u tokens, warm"), self->n_timed);
    case QUIRE_COLUMN_MS_PER_TOKEN:
      return g_strdup (_ ("ms per token"));
    case QUIRE_COLUMN_PEAK:
    case QUIRE_N_COLUMNS:
    default:
      return g_strdup (self->on_gpu ? _ ("Peak GPU memory") : _ ("Peak memory"));
    }
}

static const QuireSamples *
samples_of (const QuirePane *pane, QuireColumn column)
{
  switch (column)
    {
    case QUIRE_COLUMN_COLD:
      return &pane->cold_ms;
    case QUIRE_COLUMN_WARM:
      return &pane->warm_ms;
    case QUIRE_COLUMN_E2E:
      return &pane->e2e_ms;
    case QUIRE_COLUMN_MS_PER_TOKEN:
      return &pane->ms_per_token;
    case QUIRE_COLUMN_PEAK:
    case QUIRE_N_COLUMNS:
    default:
      return NULL;
    }
}

double
quire_comparison_get_value (const QuireComparison *self, const QuirePane *pane, QuireColumn column)
{
  const QuireSamples *samples = samples_of (pane, column);
  guint64 peak = self->on_gpu ? pane->peak[QE_TIER_GPU] : pane->peak[QE_TIER_HOST];

  if (samples != NULL)
    return quire_samples_median (samples);
  return peak > 0 ? (double)(self->base_bytes + peak) : NAN;
}

static char *
format_value (QuireColumn column, double value)
{
  if (isnan (value))
    return g_strdup (C_ ("figure", "–"));
  if (column == QUIRE_COLUMN_PEAK)
    return quire_format_bytes ((guint64)value);
  if (column == QUIRE_COLUMN_MS_PER_TOKEN)
    return g_strdup_printf (value < 10 ? _ ("%.2f ms") : _ ("%.1f ms"), value);
  return value < 10 ? g_strdup_printf (_ ("%.1f ms"), value) : quire_format_ms (value);
}

void
quire_comparison_dup_cell (const QuireComparison *self, const QuirePane *pane, QuireColumn column,
                           char **value, char **range, char **change)
{
  const QuireSamples *samples = samples_of (pane, column);
  const QuirePane *base = quire_comparison_get_base (self);
  double median = quire_comparison_get_value (self, pane, column);
  double against
      = base != NULL && base != pane ? quire_comparison_get_value (self, base, column) : NAN;

  *value = format_value (column, median);
  if (samples != NULL && samples->n > 1)
    {
      g_autofree char *low = format_value (column, quire_samples_min (samples));
      g_autofree char *high = format_value (column, quire_samples_max (samples));

      /* Translators: the least and the greatest of the runs. */
      *range = g_strdup_printf (_ ("%s – %s"), low, high);
    }
  else
    *range = g_strdup ("");
  if (isnan (median) || isnan (against) || against <= 0)
    *change = g_strdup ("");
  else
    {
      double percent = round ((median / against - 1) * 100);

      /* The real minus sign: figures line up. */
      *change = percent < 0   ? g_strdup_printf (_ ("−%.0f %%"), -percent)
                : percent > 0 ? g_strdup_printf (_ ("+%.0f %%"), percent)
                              : g_strdup (_ ("±0 %"));
    }
}

char *
quire_pane_dup_tiers (const QuirePane *pane)
{
  const char *const names[] = { _ ("GPU"), _ ("host"), _ ("disk") };
  GString *out = g_string_new (NULL);

  for (guint tier = 0; tier < QE_N_TIERS; tier++)
    if (pane->peak[tier] > 0)
      {
        g_autofree char *bytes = quire_format_bytes (pane->peak[tier]);

        g_string_append_printf (out, "%s%s %s", out->len > 0 ? " · " : "", names[tier], bytes);
      }
  return g_string_free (out, FALSE);
}

guint
quire_compare_columns (int width, guint n)
{
  guint columns = CLAMP (
      (guint)MAX (width + QUIRE_PANE_GAP, 0) / (QUIRE_PANE_WIDTH + QUIRE_PANE_GAP), 1, MAX (n, 1));

  return n == 4 && columns == 3 ? 2 : columns;
}
