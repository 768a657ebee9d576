/* quire-compare.h: runs a comparison: the same prompt in several cache modes, on throw-away sessions. No GTK. Main thread
 * only.
 *
 * A pane's sessions neither find nor offer pages (use_cache is off) and are on no disk, so they share nothing with the
 * conversation or with each other; each is closed before the next one of its pane opens, and all with the object.
 *
 * One after another: of each pane one warm-up, which streams the reply and its log-probabilities, then
 * QUIRE_COMPARE_REPEATS timed runs of exactly n_timed tokens, past the end of the reply. A replay asks for each turn's first
 * token, then reads the recorded reply, as if it had been written. Interleaved: every pane streams at once, untimed. */
#pragma once
#include "app/quire-comparison.h"
#include "app/quire-conversation.h"

G_BEGIN_DECLS

#define QUIRE_TYPE_COMPARE (quire_compare_get_type ())
G_DECLARE_FINAL_TYPE (QuireCompare, quire_compare, QUIRE, COMPARE, GObject)

/* Signals: changed: some pane has news; over: the last pane has ended. */

typedef struct
{
  QuireCacheChoice choices[QUIRE_COMPARE_PANES_MAX];
  guint n_choices;
  gboolean interleaved;
  guint n_timed;  /* tokens */
  guint n_prompt; /* tokens of the last prompt, about: for what fits */
  QuireTurnSettings settings;
  const char *title, *source; /* may be NULL */
} QuireCompareSetup;

QuireCompare *quire_compare_new (QuireEngineClient *client);
/* Starts anew. @prompt: (element-type qe_message), copied: perhaps a system prompt, then user and assistant in turn; the
 * last is the user's. FALSE when no model is ready, the prompt is empty, or it runs already. */
gboolean quire_compare_start (QuireCompare *self, GArray *prompt, const QuireCompareSetup *setup);
void quire_compare_stop (QuireCompare *self);
gboolean quire_compare_is_running (QuireCompare *self);
/* NULL before the first start. Borrowed until the next. */
const QuireComparison *quire_compare_get_comparison (QuireCompare *self);
/* Sessions that are open. For tests. */
guint quire_compare_get_n_sessions (QuireCompare *self);

G_END_DECLS
