/* quire-context.h: how many tokens a chat's context can have, and what makes room when it is full. No GTK. Pure. */
#pragma once
#include "engine/qe.h"

G_BEGIN_DECLS

/* From these shares on the meter warns. */
#define QUIRE_CONTEXT_WARN 0.75
#define QUIRE_CONTEXT_ALARM 0.90
/* A reply needs room too: a draft that leaves less cannot be sent. */
#define QUIRE_CONTEXT_REPLY_TOKENS 16
/* What a message takes beside its text: the marks of its beginning, its role and its end. */
#define QUIRE_CONTEXT_MESSAGE_TOKENS 5

typedef struct
{
  guint n_max;    /* the lower of the two below */
  guint n_model;  /* what the model was made for; 0: there is no model */
  guint n_memory; /* what the memory for pages holds; G_MAXUINT: not known */
  guint64 token_bytes;
} QuireContextLimit;

/* @model, @snapshot: NULL is fine. */
void quire_context_get_limit (const qe_model_info *model, const qe_snapshot *snapshot,
                              qe_cache_mode mode, QuireContextLimit *out);

/* What the context holds, in tokens. */
typedef struct
{
  guint n_system, n_history, n_draft;
} QuireContextUse;

guint quire_context_used (const QuireContextUse *use);
/* Tokens of the draft that are too many; 0: it fits, or there is no draft. */
guint quire_context_excess (const QuireContextUse *use, guint n_max);

/* Leaving out the oldest turns. */
typedef struct
{
  guint n_turns;  /* that go; 0: nothing helps, the draft alone is too long */
  guint n_tokens; /* of them */
  guint n_read;   /* tokens that stay and are read again, the system prompt's too */
} QuireContextDrop;

/* @turns: [n_turns] tokens of each, oldest first. So many go that the context is under QUIRE_CONTEXT_WARN again, but the last
 * turn only where it must. */
void quire_context_plan_drop (const guint *turns, guint n_turns, const QuireContextUse *use,
                              guint n_max, QuireContextDrop *out);

/* A summary of the oldest turns, as the beginning of a new chat to which the others are copied. */
typedef struct
{
  guint n_summed; /* turns that the summary is of; 0: it cannot be asked for */
  guint n_copied; /* the turns after them */
  guint
      n_new_tokens; /* of the new chat, with the longest summary; its bytes are those of its pages */
} QuireContextSummary;

#define QUIRE_SUMMARY_TOKENS_MAX 384

/* Of the turns as many are summed up as leave room for the question and the answer; the last one is copied where there is
 * more than one. */
void quire_context_plan_summary (const guint *turns, guint n_turns, const QuireContextUse *use,
                                 guint n_max, QuireContextSummary *out);

G_END_DECLS
