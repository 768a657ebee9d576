/* bench-modes.h: the table of `quire-cli bench modes`: cells of (length, mode), on file and as a report.
 *
 * A cell is one conversation in one mode in an engine of its own. All times are milliseconds, all sizes bytes. */
#pragma once
#include "app/cli/cli-bench.h"

G_BEGIN_DECLS

#define MODES_TURNS_MAX 64

/* Columns of the table: the cache modes, and the article's preset of one. */
typedef struct
{
  const char *name;
  qe_cache_mode mode;
  gboolean article;
  gboolean exact;    /* the same tokens as the other exact ones */
  gboolean computes; /* every turn's whole history; else its new tokens alone */
} ModesMode;

#define MODES_N 7
extern const ModesMode modes_all[MODES_N];

typedef struct
{
  uint32_t n_prompt, n_new, n_reused, n_restored_host, n_restored_disk, n_on_host, n_recomputed,
      n_synthetic; /* filled with random pages: the turn has no first token, no end to end: 0 */
  double first_token_ms, e2e_ms, ms_per_token, restore_ms;
  GArray *ids; /* uint32_t: the reply */
} ModesTurn;

typedef enum
{
  MODES_CELL_DONE,
  MODES_CELL_UNFIT,  /* does not fit; the note says why */
  MODES_CELL_FAILED, /* the note says why; measured again on the next run */
} ModesState;

typedef struct
{
  uint32_t length;
  const ModesMode *mode;
  ModesState state;
  char *note;           /* owned; NULL when done */
  GPtrArray *turns;     /* ModesTurn */
  guint64 peak_process; /* of the card's memory; 0: no card, or unknown */
  guint64 peak_used[QE_N_TIERS], peak_reserved[QE_N_TIERS];
  guint64 peak_kv;    /* used in all tiers at one time */
  qe_profile profile; /* of steps behind the last turn's; n_steps 0: none was measured */
  double seconds;
} ModesCell;

ModesCell *modes_cell_new (uint32_t length, const ModesMode *mode);
ModesTurn *modes_cell_add_turn (ModesCell *cell); /* borrowed */
void modes_cell_free (ModesCell *cell);

/* What two runs must have in common for their cells to stand in one table, and the cells. */
typedef struct
{
  char *setup;                    /* owned: one line of JSON text */
  char *model, *backend, *device; /* owned */
  gboolean on_card;
  guint n_tokens, n_new, n_turns; /* options */
  guint n_profile;
  gboolean synthetic; /* first prompts are filled, not computed */
  GPtrArray *cells;   /* ModesCell, in order of measurement */
  gboolean complete;
} ModesTable;

void modes_table_clear (ModesTable *table);
const ModesCell *modes_table_find (const ModesTable *table, uint32_t length, const ModesMode *mode);

/* Figures of another program, of one prompt each. */
typedef struct
{
  uint32_t tokens;
  double first_token_ms, e2e_ms, peak_bytes; /* NaN: not given */
} ModesAgainstRow;
typedef struct
{
  char *name;   /* owned; NULL: none given */
  GArray *rows; /* ModesAgainstRow */
} ModesAgainst;

void modes_against_clear (ModesAgainst *against);
gboolean modes_against_read (const char *path, ModesAgainst *out, GError **error);

/* ---- bench-modes-file.c ---- */

/* Finished cells of @path into @table. A missing file has none. Another setup is an error that shows both. */
gboolean modes_table_read (const char *path, ModesTable *table, GError **error);
gboolean modes_table_write (const char *path, const ModesTable *table, GError **error);
/* Appends `"cells": [...]`. */
void modes_append_cells (GString *json, const ModesTable *table, gboolean with_ids);

/* ---- bench-modes-report.c ---- */

/* Position where the replies to @turn differ; -1: they are the same. */
gint64 modes_first_difference (const ModesTurn *a, const ModesTurn *b);
/* On the CPU every exact mode must give the same tokens in every turn. Says on stderr where not. Returns their number. */
guint modes_check_agreement (const ModesTable *table);
void modes_print_text (const ModesTable *table, const ModesAgainst *against);
void modes_print_csv (const ModesTable *table, const ModesAgainst *against);
void modes_print_json (const ModesTable *table, const ModesAgainst *against);

G_END_DECLS
