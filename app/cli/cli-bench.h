/* cli-bench.h: what the benchmarks share: pseudo-random prompts, lists, percentiles, news of requests. */
#pragma once
#include "app/cli/cli.h"

G_BEGIN_DECLS

int cli_bench_modes (int argc, char **argv);
int cli_bench_arrivals (int argc, char **argv);
int cli_bench_paths (int argc, char **argv);
int cli_bench_quality (int argc, char **argv);

/* The generator behind all prompts: the same @state gives the same numbers everywhere. */
guint64 cli_bench_random (guint64 *state);
double cli_bench_uniform (guint64 *state); /* in (0, 1] */
void cli_bench_fill_ids (guint64 *state, uint32_t vocab, GArray *ids, guint n);
/* Greedy, end tokens ignored. @ids: borrowed; the prompt as a whole. */
void cli_bench_params (const qe_model_info *info, qe_session_id session, const GArray *ids,
                       uint32_t n_gen, qe_generate_params *params);

/* --ballast and --device-limit, at most one given. *out: owned, NULL when neither is; FALSE with the message printed and
 * *status set. */
gboolean cli_bench_take_ballast (const char *device, const char *ballast, const char *limit,
                                 qe_ballast **out, int *status);
#define CLI_BENCH_BALLAST_ENTRIES(ballast, limit)                                                  \
  { "ballast", 0,                                                                                  \
    0,         G_OPTION_ARG_STRING,                                                                \
    (ballast), "Take SIZE of the card's memory first and leave it unused",                         \
    "SIZE" },                                                                                      \
  {                                                                                                \
    "device-limit", 0, 0, G_OPTION_ARG_STRING, (limit),                                            \
        "Take so much of the card's memory first that SIZE is left to the program, context "       \
        "included; figures of its memory are without what was taken",                              \
        "SIZE"                                                                                     \
  }

/* --fill: how what comes before a measurement gets into a conversation. FALSE: @text is neither. NULL: computed. */
gboolean cli_bench_parse_fill (const char *text, gboolean *synthetic, GError **error);
qe_session_id cli_bench_open_session (qe_engine *engine, const qe_cache_config *cache,
                                      gboolean synthetic, GError **error);

/* "16,64" appended to @out, uint32_t. */
gboolean cli_bench_parse_list (const char *option, const char *text, guint64 min, guint64 max,
                               GArray *out, GError **error);
double cli_bench_median (double *values, int n);                          /* sorts */
double cli_bench_percentile (double *values, guint n, double percentile); /* sorts; nearest rank */

/* A flag with a lock, for wakeups. */
typedef struct
{
  GMutex mutex;
  GCond cond;
  gboolean news;
} CliNews;

void cli_news_init (CliNews *news);
void cli_news_clear (CliNews *news);
void cli_news_ring (void *news); /* a qe_wakeup_fn */
/* Until the next ring since the last call, at most until @deadline (monotonic microseconds). */
void cli_news_wait (CliNews *news, gint64 deadline);

G_END_DECLS
