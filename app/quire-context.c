/* quire-context.c: see quire-context.h. */
#include "app/quire-context.h"

/* The question for a summary, and what a template puts around it. */
#define QUESTION_TOKENS 96

static guint64
tier_tokens (const qe_snapshot *snapshot, qe_tier tier)
{
  const qe_tier_view *view = &snapshot->tiers[tier];

  return view->present ? view->bytes_max / snapshot->page_bytes * snapshot->page_tokens : 0;
}

void
quire_context_get_limit (const qe_model_info *model, const qe_snapshot *snapshot,
                         qe_cache_mode mode, QuireContextLimit *out)
{
  *out = (QuireContextLimit){ .n_memory = G_MAXUINT };
  if (model == NULL)
    return;
  out->n_max = out->n_model = model->context_max;
  out->token_bytes = model->kv_bytes_per_token;
  if (snapshot == NULL || snapshot->page_bytes == 0 || snapshot->page_tokens == 0)
    return;
  out->token_bytes = snapshot->page_bytes / snapshot->page_tokens;
  {
    gboolean tiered
        = mode == QE_CACHE_TIERED || mode == QE_CACHE_TIERED_INT8 || mode == QE_CACHE_SELECTIVE;
    guint64 n = tier_tokens (snapshot, QE_TIER_GPU);

    if (n == 0 || tiered)
      n += tier_tokens (snapshot, QE_TIER_HOST);
    /* Nothing is known of an engine that has no tiers yet. */
    if (n > 0)
      out->n_memory = (guint)MIN (n, G_MAXUINT - 1);
  }
  out->n_max = MIN (out->n_model, out->n_memory);
}

guint
quire_context_used (const QuireContextUse *use)
{
  return use->n_system + use->n_history + use->n_draft;
}

guint
quire_context_excess (const QuireContextUse *use, guint n_max)
{
  guint64 n = (guint64)quire_context_used (use) + QUIRE_CONTEXT_MESSAGE_TOKENS * 2
              + QUIRE_CONTEXT_REPLY_TOKENS;

  return n_max > 0 && use->n_draft > 0 && n > n_max ? (guint)(n - n_max) : 0;
}

static guint
sum (const guint *turns, guint begin, guint end)
{
  guint n = 0;

  for (guint i = begin; i < end; i++)
    n += turns[i];
  return n;
}

void
quire_context_plan_drop (const guint *turns, guint n_turns, const QuireContextUse *use, guint n_max,
                         QuireContextDrop *out)
{
  QuireContextUse after = *use;
  guint n = 0;

  *out = (QuireContextDrop){ 0 };
  if (n_turns == 0)
    return;
  do
    {
      n++;
      after.n_history = sum (turns, n, n_turns);
  } while (n + 1 < n_turns && quire_context_used (&after) > n_max * QUIRE_CONTEXT_WARN);
  /* The last turn goes where the draft does not fit beside it. */
  if (n < n_turns && quire_context_excess (&after, n_max) > 0)
    {
      n = n_turns;
      after.n_history = 0;
    }
  if (quire_context_excess (&after, n_max) > 0)
    return;
  out->n_turns = n;
  out->n_tokens = sum (turns, 0, n);
  out->n_read = after.n_system + after.n_history;
}

void
quire_context_plan_summary (const guint *turns, guint n_turns, const QuireContextUse *use,
                            guint n_max, QuireContextSummary *out)
{
  guint n = n_turns > 1 ? n_turns - 1 : n_turns;

  *out = (QuireContextSummary){ 0 };
  while (n > 0
         && (guint64)use->n_system + sum (turns, 0, n) + QUESTION_TOKENS + QUIRE_SUMMARY_TOKENS_MAX
                > n_max)
    n--;
  if (n == 0)
    return;
  out->n_summed = n;
  out->n_copied = n_turns - n;
  out->n_new_tokens = use->n_system + QUIRE_SUMMARY_TOKENS_MAX + sum (turns, n, n_turns);
  /* Copied turns that fill the new chat too would help nobody. */
  if (out->n_new_tokens + use->n_draft + QUIRE_CONTEXT_REPLY_TOKENS > n_max)
    *out = (QuireContextSummary){ 0 };
}
