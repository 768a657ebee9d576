/* cli.h: what the commands of quire-cli share. Main thread only. */
#pragma once
#include <stdio.h>
#include "engine/qe.h"

G_BEGIN_DECLS

/* Exit statuses. */
enum
{
  CLI_OK = 0,
  CLI_FAILED = 1,       /* the work failed: message on stderr */
  CLI_USAGE = 2,        /* the command line is wrong */
  CLI_DEVICE_LOST = 75, /* serve: the card was lost again and again, sysexits' "try again later" */
  CLI_INTERRUPTED = 130 /* stopped by Ctrl+C; what was said so far is on stdout */
};

int cli_generate (int argc, char **argv);
int cli_chat (int argc, char **argv);
int cli_tokenize (int argc, char **argv);
int cli_logits (int argc, char **argv);
int cli_bench (int argc, char **argv);
int cli_info (int argc, char **argv);
int cli_serve (int argc, char **argv); /* in builds with the server */

/* "quire-cli: MESSAGE" on stderr. Returns @status. */
int cli_fail (int status, const char *format, ...) G_GNUC_PRINTF (2, 3);
/* Parses the command's options and frees @context. FALSE: *status has the exit status. */
gboolean cli_parse (GOptionContext *context, int *argc, char ***argv, int *status);
/* The same for a command that takes nothing but options; FALSE also after an argument was refused. */
gboolean cli_parse_options (GOptionContext *context, int argc, char **argv, const char *command,
                            int *status);

/* ---- Options of all commands that load a model ---- */

/* The engine's tiers; part of the engine's options. */
typedef struct
{
  char *host_memory, *host_path, *ring, *cache_dir, *cache_quota; /* NULL: not given */
} CliTierOptions;

void cli_tier_options_add (CliTierOptions *options, GOptionGroup *group);
void cli_tier_options_clear (CliTierOptions *options);
gboolean cli_tier_options_apply (const CliTierOptions *options, qe_engine_options *out,
                                 GError **error); /* @out borrows */

typedef struct
{
  char *model;
  char *backend;
  char *isa;
  char *device;
  char *kv;
  int threads;
  int context;
  int kv_mib;
  int reserve_mib; /* -1: the default */
  CliTierOptions tiers;
} CliEngineOptions;

GOptionGroup *cli_engine_options_group (CliEngineOptions *options);
void cli_engine_options_clear (CliEngineOptions *options);
/* Checks @options (FALSE: the error was printed and *status set) and fills @out, which borrows from them. */
gboolean cli_engine_options_apply (const CliEngineOptions *options, qe_engine_options *out,
                                   int *status);
/* An engine with the model ready, or NULL after the error was printed and *status set. */
qe_engine *cli_engine_start (const CliEngineOptions *options, uint32_t step_rows_max,
                             qe_model_info **info, int *status);

/* ---- Options of the commands that hold a conversation ---- */

#define CLI_UNSET_INT G_MININT

typedef struct
{
  char *mode; /* NULL: not given */
  gboolean article, no_offload, no_use_cache;
  int block_size, max_cache_size, gpu_max_length, hot_cache_length; /* CLI_UNSET_INT: not given */
  int sink_length, recent_length, select_length;                    /* as above */
} CliCacheOptions;

GOptionGroup *cli_cache_options_group (CliCacheOptions *options);
void cli_cache_options_clear (CliCacheOptions *options);
gboolean cli_cache_options_apply (const CliCacheOptions *options, qe_cache_config *out,
                                  GError **error);
/* @disk_key: NULL: the conversation is not kept on disk. */
qe_session_id cli_open_session (qe_engine *engine, const qe_cache_config *cache,
                                const char *disk_key, GError **error);

/* "512M" in bytes, at least 1; K, M, G, T are powers of 1,024. */
gboolean cli_parse_size (const char *option, const char *text, guint64 *out, GError **error);

/* ---- Options of the commands that sample ---- */

typedef struct
{
  double temperature, top_p, min_p, repetition_penalty, presence_penalty, frequency_penalty;
  gint64 top_k, max_tokens;
  char *seed;
  char *thinking;
  char **stop;
} CliSamplingOptions;

void cli_sampling_options_init (CliSamplingOptions *options);
GOptionGroup *cli_sampling_options_group (CliSamplingOptions *options);
void cli_sampling_options_clear (CliSamplingOptions *options);
/* Fills @params from the model's defaults and the options given. @params borrows from @options. */
gboolean cli_sampling_options_apply (const CliSamplingOptions *options, const qe_model_info *info,
                                     qe_generate_params *params, GError **error);

/* ---- Running a request ---- */

/* Ctrl+C stops the running request; a second one ends the program. */
void cli_watch_interrupt (void);
gboolean cli_take_interrupt (void); /* whether Ctrl+C came since the last call */

typedef struct
{
  GString *text;
  GArray *ids;      /* uint32_t */
  GArray *logprobs; /* qe_token_logprobs: empty unless the request wants them */
  qe_receipt receipt;
  qe_message_range *ranges; /* [n_ranges] */
  guint n_ranges;
  qe_finish finish;
  GError *error;
} CliReply;

/* Runs @request to its end, writing text to @out as it comes (NULL: not at all). Cancels on Ctrl+C. */
void cli_reply_run (CliReply *reply, qe_request *request, FILE *out);
void cli_reply_clear (CliReply *reply);

/* A whole file or stdin ("-"), at most CLI_INPUT_BYTES_MAX. */
#define CLI_INPUT_BYTES_MAX (1u << 30)
gboolean cli_read_input (const char *path, char **out, gsize *n_out, GError **error);

G_END_DECLS
