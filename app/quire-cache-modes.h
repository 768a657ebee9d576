/* quire-cache-modes.h: the cache modes that a chat can be given, in words, and what a change costs. No GTK. Translated.
 *
 * A choice is one of the engine's modes, or a preset of one. The numbers are the setting's, so they never change. */
#pragma once
#include "engine/qe.h"

G_BEGIN_DECLS

typedef enum
{
  QUIRE_CACHE_AUTO,
  QUIRE_CACHE_REBUILD,
  QUIRE_CACHE_PAGED,
  QUIRE_CACHE_SESSION,
  QUIRE_CACHE_TIERED,
  QUIRE_CACHE_ARTICLE, /* tiered with the article's 32 + 2,048 tokens on the GPU */
  QUIRE_CACHE_TIERED_INT8,
  QUIRE_CACHE_SELECTIVE,
  QUIRE_N_CACHE_CHOICES,
} QuireCacheChoice;

void quire_cache_choice_get_config (QuireCacheChoice choice, qe_cache_config *out);
/* "Session". Static, as the two below. */
const char *quire_cache_choice_get_title (QuireCacheChoice choice);
/* One line on what becomes of the cache between turns. */
const char *quire_cache_choice_get_description (QuireCacheChoice choice);
const char *quire_cache_mode_get_title (qe_cache_mode mode);
gboolean quire_cache_choice_is_approximate (QuireCacheChoice choice);
/* The title, and for an approximate mode that it is one. Returns: owned. */
char *quire_cache_choice_dup_name (QuireCacheChoice choice);
/* FALSE where the engine with @plan does not have the mode; an approximate one also while that is unknown (NULL). */
gboolean quire_cache_choice_is_offered (QuireCacheChoice choice, const qe_memory_plan *plan);
/* Why an approximate mode is that, and by how much; NULL for an exact one. Static. */
const char *quire_cache_choice_get_error_note (QuireCacheChoice choice);

/* Of @n_tokens that a chat has in mode @from, how many its next turn computes again in @to, at most. @from: the mode
 * that is in force, never auto once a session runs. */
guint quire_cache_count_again (qe_cache_mode from, qe_cache_mode to, guint n_tokens);

/* The mode that a choice comes to on an engine with @plan. */
qe_cache_mode quire_cache_choice_resolve (QuireCacheChoice choice, const qe_memory_plan *plan);

/* What the change from the choice @present, in force as @from, costs, a sentence a line: tokens that the next turn
 * computes again, and where a context of @n_tokens
 * will lie. Returns: owned. */
char *quire_cache_format_cost (const qe_memory_plan *plan, qe_cache_mode from,
                               QuireCacheChoice present, QuireCacheChoice to, guint n_tokens);

G_END_DECLS
