/* quire-gpu-facts.h: what this machine has of a graphics card, its driver and Quire's use of it, and what would help. No
 * GTK. Translated. Blocking: for worker threads. */
#pragma once
#include "engine/qe.h"

G_BEGIN_DECLS

typedef struct
{
  char *reason;     /* owned: why no GPU is used, one sentence; NULL: one can be used */
  char *advice;     /* owned: what to do about it; NULL: nothing is known */
  char *command;    /* owned: for a terminal; NULL: none helps */
  GPtrArray *facts; /* owned (element-type utf8): name and value in turn */
} QuireGpuFacts;

/* @root: "" for this machine; tests have folders that look like one. */
QuireGpuFacts *quire_gpu_facts_read (const char *root);
void quire_gpu_facts_free (QuireGpuFacts *facts); /* NULL is fine */
G_DEFINE_AUTOPTR_CLEANUP_FUNC (QuireGpuFacts, quire_gpu_facts_free)
/* All facts as lines, for a bug report. Returns: owned. */
char *quire_gpu_facts_format (const QuireGpuFacts *facts);

G_END_DECLS
