/* fixture.h: reference logits and greedy tokens from tests/fixtures/logits, and how far a row of logits is from them.
 * The format, and the estimate used where the reference has no full rows: tests/fixtures/README.md. For tests: what is
 * wrong with a fixture ends the test program. */
#pragma once
#include <glib.h>
#include <stdbool.h>
#include <stdint.h>

#define FX_GREEDY 128u /* steps of every prompt */
#define FX_TOP    8u
#define FX_SIGNS  32u

/* Everything is borrowed from the file. Sections that the file lacks are NULL. */
typedef struct {
    const char *name;
    uint32_t n_ids;
    uint32_t *ids;
    const float *norm;       /* [n_ids] */
    const int32_t *top_ids;  /* [n_ids, FX_TOP] */
    const float *top_values; /* the same */
    const float *probes;     /* [n_ids, n_probes] */
    const float *signs;      /* [n_ids, FX_SIGNS] */
    const float *full;       /* [n_ids, vocab] */
    float *
        rounding; /* [n_ids]: relative error that K and V in bf16 make when all else is exact; NULL past 1,000 ids */
    uint32_t greedy[FX_GREEDY], runner_up[FX_GREEDY];
    double gap[FX_GREEDY]; /* of their logits */
} fx_prompt;

typedef struct {
    char *name;
    char *model_dir;
    uint32_t vocab, n_probes, n_prompts;
    uint32_t *probe_ids; /* [n_probes] */
    fx_prompt *prompts;  /* [n_prompts] */
    uint32_t *masks;     /* [vocab]: bit k set: plus in direction k */
    uint32_t *words;     /* the data file */
    gsize n_words;
} fx_file;

/* @name: "demo-model" and so on. Folders: QUIRE_TEST_FIXTURES and QUIRE_TEST_MODEL, else the ones in the tree. */
fx_file *fx_open(const char *name);
void fx_free(fx_file *self); /* NULL is fine */
G_DEFINE_AUTOPTR_CLEANUP_FUNC(fx_file, fx_free)
const fx_prompt *fx_find(const fx_file *self, const char *name);

typedef struct {
    double
        relative; /* norm of the difference over norm of the reference: exact with full rows; else the larger of the
                        estimates from the signs and the probes and the lower bound from the largest eight */
    double absolute; /* the largest difference of one logit among those that the reference has */
} fx_error;

/* @logits: [vocab], after ids[0..@position]. A value that is not finite gives infinity. */
fx_error fx_compare(const fx_file *self, const fx_prompt *prompt, uint32_t position, const float *logits);
/* How far a row may be: 1e-4 with float32 pages. With bf16 pages 1e-2, and also no more than 1.5 times what the rounding of
 * K and V does by itself at this position, plus 5e-4: 1e-2 alone would let a lost page pass. Where the rounding by itself
 * is near 1e-2 or over it, only the second holds. */
double fx_tolerance(const fx_prompt *prompt, uint32_t position, bool bf16_pages);
