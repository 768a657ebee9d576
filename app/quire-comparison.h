/* quire-comparison.h: what a comparison of cache modes has measured: panes, figures, where the streams part. Pure data and
 * functions on it; no GTK. Main thread only. quire-compare.h fills it.
 *
 * Figures are of runs one after another: the median of QUIRE_COMPARE_REPEATS, and their range. Cold: the last prompt in a
 * session that has nothing. Warm: the same prompt in a session that took the turns before it (a single prompt: that was
 * asked it before). */
#pragma once
#include "app/quire-cache-modes.h"
#include "app/quire-history-db.h"

G_BEGIN_DECLS

#define QUIRE_COMPARE_PANES_MIN 2
#define QUIRE_COMPARE_PANES_MAX 4
#define QUIRE_COMPARE_REPEATS 3
#define QUIRE_COMPARE_TOP 2
#define QUIRE_PANE_WIDTH 264 /* pixels, at least, where panes stand beside each other */
#define QUIRE_PANE_GAP 12
/* Margins up to this, in nats, are a tie: about what rounding in bf16 moves a logit by. */
#define QUIRE_COMPARE_TIE 0.125

typedef enum
{
  QUIRE_PANE_WAITING,
  QUIRE_PANE_READING,
  QUIRE_PANE_STREAMING,
  QUIRE_PANE_TIMING, /* the stream is whole; the timed runs follow */
  QUIRE_PANE_DONE,   /* this and what follows are ends */
  QUIRE_PANE_STOPPED,
  QUIRE_PANE_UNFIT,
  QUIRE_PANE_FAILED,
} QuirePaneState;

typedef struct
{
  guint n;
  double values[QUIRE_COMPARE_REPEATS];
} QuireSamples;
void quire_samples_add (QuireSamples *samples, double value); /* past the last: ignored */
double quire_samples_median (const QuireSamples *samples);    /* NaN: there are none, as below */
double quire_samples_min (const QuireSamples *samples);
double quire_samples_max (const QuireSamples *samples);

#define QUIRE_PIECE_BYTES 24
typedef struct
{
  guint32 id;
  guint end; /* bytes of the pane's text up to its end */
  float logprob;
  guint n_top;
  struct
  {
    char text[QUIRE_PIECE_BYTES]; /* cut, valid UTF-8 */
    float logprob;
  } top[QUIRE_COMPARE_TOP]; /* most probable first */
} QuireToken;

typedef struct
{
  guint n_prompt, n_reused;
  QuireSamples first_token_ms;
} QuireComparedTurn;

typedef struct
{
  QuireCacheChoice choice;
  QuirePaneState state;
  guint n_before;          /* WAITING: panes ahead */
  guint n_done, n_prompt;  /* READING: tokens */
  guint n_run;             /* TIMING: from 1 */
  guint64 needed, allowed; /* bytes; UNFIT */
  char *error;             /* FAILED; owned */
  GString *text;
  GArray *tokens; /* (element-type QuireToken) */
  GArray *turns;  /* (element-type QuireComparedTurn) warm */
  QuireSamples cold_ms, warm_ms, e2e_ms, ms_per_token;
  double live_ms, live_ms_per_token; /* of the stream; 0: not known */
  guint64 peak[QE_N_TIERS];          /* bytes of KV, by tier */
} QuirePane;

typedef struct
{
  char *title, *prompt; /* owned, as all below; the prompt is the last message */
  char *source;         /* the chat's id; NULL: none */
  char *model_name, *device;
  gboolean on_gpu, interleaved, greedy;
  double temperature;
  guint64 seed;
  guint n_timed;      /* tokens of a timed reply */
  guint n_turns;      /* user's messages, the last included */
  guint64 base_bytes; /* what the model itself takes: weights, workspace */
  GPtrArray *panes;   /* (element-type QuirePane) */
} QuireComparison;

QuireComparison *quire_comparison_new (void);
void quire_comparison_free (QuireComparison *self); /* NULL is fine */
QuirePane *quire_comparison_add_pane (QuireComparison *self, QuireCacheChoice choice);
QuirePane *quire_comparison_get_pane (const QuireComparison *self, guint i);
/* The Rebuild pane, which changes refer to; NULL: there is none. */
const QuirePane *quire_comparison_get_base (const QuireComparison *self);
gboolean quire_pane_is_over (const QuirePane *pane);
gboolean quire_comparison_is_over (const QuireComparison *self);
void quire_piece_set (char piece[QUIRE_PIECE_BYTES], const char *bytes, gsize n_bytes);

/* ---- Streams ---- */

typedef enum
{
  QUIRE_STREAM_BASELINE, /* the first pane */
  QUIRE_STREAM_UNKNOWN,  /* no token yet in one of them */
  QUIRE_STREAM_SAME_SO_FAR,
  QUIRE_STREAM_SAME,
  QUIRE_STREAM_DIFFERS,
} QuireStream;
/* Pane @i against the first. @at: the index of the first token that differs. */
QuireStream quire_comparison_align (const QuireComparison *self, guint i, guint *at);
/* Between the two likeliest tokens at @at, in nats; NaN: not known. */
double quire_pane_get_margin (const QuirePane *pane, guint at);
/* Greedy streams that part where either pane's two likeliest tokens were as good as equal. */
gboolean quire_comparison_is_tie (const QuireComparison *self, guint i, guint at);
/* Token @at as a person reads it: “ only”; the end of the reply. Returns: owned. */
char *quire_pane_dup_piece (const QuirePane *pane, guint at);
/* The token whose text holds byte @offset, and where token @at begins. */
guint quire_pane_find_token (const QuirePane *pane, guint offset);
guint quire_pane_get_begin (const QuirePane *pane, guint at);

/* ---- What it needs ---- */

typedef struct
{
  guint64 needed, allowed; /* bytes, in all tiers that the mode may use */
  gboolean fits;
} QuireNeed;
/* One pane alone with a context of @n_tokens. */
void quire_compare_need (const qe_memory_plan *plan, QuireCacheChoice choice, guint n_tokens,
                         QuireNeed *out);
/* All of them: at the same time, or the largest. Bytes on the device and the host. */
void quire_compare_need_all (const qe_memory_plan *plan, const QuireCacheChoice *choices, guint n,
                             guint n_tokens, gboolean interleaved, guint64 *device, guint64 *host,
                             gboolean *fits);

/* ---- Words ---- */

char *quire_pane_dup_state (const QuirePane *pane, const QuireComparison *of);
/* "same text", "differs at 37". Returns: owned. */
char *quire_comparison_dup_stream (const QuireComparison *self, guint i);
/* A sentence a pane whose stream parts: position, both tokens, margins, tie or not. NULL: none does. Returns: owned. */
char *quire_comparison_dup_verdict (const QuireComparison *self);
/* "One after another · 3 runs, median · seed 42". Returns: owned. */
char *quire_comparison_dup_conditions (const QuireComparison *self);

typedef enum
{
  QUIRE_COLUMN_COLD,
  QUIRE_COLUMN_WARM,
  QUIRE_COLUMN_E2E,
  QUIRE_COLUMN_MS_PER_TOKEN,
  QUIRE_COLUMN_PEAK,
  QUIRE_N_COLUMNS,
} QuireColumn;
char *quire_comparison_dup_column_title (const QuireComparison *self, QuireColumn column);
double quire_comparison_get_value (const QuireComparison *self, const QuirePane *pane,
                                   QuireColumn column);
/* The value, the range of the runs and the change against Rebuild; the last two may be "". All owned. */
void quire_comparison_dup_cell (const QuireComparison *self, const QuirePane *pane,
                                QuireColumn column, char **value, char **range, char **change);
/* Peaks by tier, those that are not 0: "GPU 1.2 GiB · host 300 MiB". Returns: owned. */
char *quire_pane_dup_tiers (const QuirePane *pane);

/* Columns in which @n panes stand in @width pixels; never three and one. */
guint quire_compare_columns (int width, guint n);

/* ---- Files: quire-comparison-file.c ---- */

/* RFC 4180, plain numbers: a row a mode, figure and turn. Returns: owned. */
char *quire_comparison_to_csv (const QuireComparison *self);
/* As messages of an entry of kind QUIRE_KIND_COMPARISON: the prompt with all figures, then each pane's text, so that the
 * search finds them. Returns: (element-type QuireStoredMessage) owned. */
GPtrArray *quire_comparison_dup_messages (const QuireComparison *self);
/* NULL when they are none such. A pane that ran is a stopped one. Returns: owned. */
QuireComparison *quire_comparison_from_messages (GPtrArray *messages);

G_DEFINE_AUTOPTR_CLEANUP_FUNC (QuireComparison, quire_comparison_free)

G_END_DECLS
