/* quire-compare.h: one prompt in two cache modes, one after the other. No GTK. Main thread only.
 *
 * Each run has a session of its own that shares no pages with others. What came before the last message is read first,
 * unmeasured, so that the measured turn finds what its mode has kept. Both runs draw from the same seed. */
#pragma once
#include "app/quire-conversation.h"

G_BEGIN_DECLS

#define QUIRE_TYPE_COMPARE (quire_compare_get_type ())
G_DECLARE_FINAL_TYPE (QuireCompare, quire_compare, QUIRE, COMPARE, GObject)

#define QUIRE_COMPARE_RUNS 2
#define QUIRE_COMPARE_TOKENS_MAX 256 /* of an answer, unless the user's limit is less */

/* Signal changed: some run has news. */

typedef enum
{
  QUIRE_RUN_WAITING,
  QUIRE_RUN_PREPARING, /* reads what came before the last message */
  QUIRE_RUN_READING,
  QUIRE_RUN_WRITING,
  QUIRE_RUN_DONE,
  QUIRE_RUN_STOPPED,
  QUIRE_RUN_FAILED,
} QuireRunState;

typedef struct
{
  QuireCacheChoice choice;
  QuireRunState state;
  qe_receipt receipt;
  guint n_peak_pages; /* on the device, as seen in snapshots */
  guint64 peak_bytes;
  GString *text;
  GArray *ids; /* (element-type guint32) */
  char *error; /* FAILED */
} QuireCompareRun;

QuireCompare *quire_compare_new (QuireEngineClient *client);
/* Starts anew. @prompt: (element-type qe_message), copied; its last message is the user's. FALSE when no model is
 * ready, the prompt is empty, or it runs already. */
gboolean quire_compare_start (QuireCompare *self, GArray *prompt, const QuireCacheChoice *choices,
                              const QuireTurnSettings *settings);
void quire_compare_stop (QuireCompare *self);
gboolean quire_compare_is_running (QuireCompare *self);
/* Borrowed. */
const QuireCompareRun *quire_compare_get_run (QuireCompare *self, guint i);

typedef enum
{
  QUIRE_ANSWERS_UNKNOWN, /* not both are done */
  QUIRE_ANSWERS_EQUAL,
  QUIRE_ANSWERS_DIFFER,
} QuireAnswers;
/* @first: where they differ first, as a token of the answer, from 1. */
QuireAnswers quire_compare_get_answers (QuireCompare *self, guint *first);

G_END_DECLS
