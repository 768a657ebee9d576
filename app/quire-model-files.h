/* quire-model-files.h: what a folder on the disk is to Quire: a model and whether it fits, a damaged one, or a format that
 * cannot be loaded, in the user's words. No GTK. Translated. Any thread. */
#pragma once
#include "engine/qe.h"

G_BEGIN_DECLS

typedef enum
{
  QUIRE_MODEL_FITS,
  QUIRE_MODEL_TOO_LARGE,
  QUIRE_MODEL_BROKEN,      /* a file is missing, cut, or not what it should be */
  QUIRE_MODEL_UNSUPPORTED, /* a format or an architecture that Quire does not run */
  QUIRE_MODEL_GONE,        /* there is no such folder */
} QuireModelVerdict;

/* Strings are owned. */
typedef struct
{
  QuireModelVerdict verdict;
  char *name;
  char *format;         /* "bf16", "GGUF", "AWQ, 4 bits"; NULL: not known */
  guint64 n_bytes;      /* of the weights; 0: not known */
  char *problem;        /* one sentence or two; NULL: it fits */
  char *detail;         /* the engine's words with the whole path; NULL: the sentence has it all */
  qe_model_info *info;  /* NULL unless the folder is whole */
  qe_memory_plan *plan; /* the same */
} QuireModelFacts;

/* Reads the folder: blocking. @options: of the engine that would load it. Returns: owned. */
QuireModelFacts *quire_model_facts_read (const char *dir, const qe_engine_options *options);
void quire_model_facts_free (QuireModelFacts *facts); /* NULL is fine */
G_DEFINE_AUTOPTR_CLEANUP_FUNC (QuireModelFacts, quire_model_facts_free)

/* "98,304 tokens on the GPU, 262,144 with 24.0 GiB of host memory". Returns: owned. */
char *quire_model_format_fit (const qe_memory_plan *plan);
/* Folders at @dir and below it that hold a model of whatever format, by name. Blocking; looks QUIRE_MODEL_DEPTH_MAX
 * folders deep. Returns: (element-type filename) owned. */
#define QUIRE_MODEL_DEPTH_MAX 4
#define QUIRE_MODELS_FOUND_MAX 100
GPtrArray *quire_model_folders_find (const char *dir);

G_END_DECLS
