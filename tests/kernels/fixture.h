/* fixture.h: a tiny random model, an independent float64 forward pass of it, and a rig that runs it on a backend. */
#pragma once
#include "kernels/qk-backend.h"

/* Uniform in [-1, 1), from a fixed sequence. */
double fixture_random(uint64_t *state);
double fixture_from_bf16(uint16_t x);

typedef struct {
    qk_model_desc desc;
    double *inv_freq;
    qk_layer_tensors *layers;
    void **blocks;
    size_t n_blocks;
} fixture_model;

/* @dtype: of the linear layers; norms are the other one, so that both are always covered. */
fixture_model *fixture_model_new(const qk_shape *shape, qk_dtype dtype, uint64_t seed);
void fixture_model_free(fixture_model *model);
/* Larger q and k norms: a key's score has a standard deviation of about 2, so that the best of a few hundred keys holds
 * about a third of the mass, and single pages matter. They are float32 (a bf16 model's). */
void fixture_model_sharpen(fixture_model *model);
extern const qk_shape fixture_small;  /* 2 layers, 4:2 heads of 16, odd sizes */
extern const qk_shape fixture_medium; /* 2 layers, 6:2 heads of 64 */

/* The whole sequence at once, in float64, without cache, pages or spans. @logits: [n, vocab]. */
void fixture_forward(const fixture_model *model, const int32_t *tokens, uint32_t n, double *logits);

/* The same with rows from first_row on that leave pages out, as qk.h says of selective attention. */
typedef struct {
    uint32_t first_row, n_sink, n_recent, n_chosen;
    uint64_t n_left_out; /* out: pages, of all rows, layers and kv heads */
    double
        margin; /* out: by how much the last chosen page's score was above the next one's, the least of all choices,
                      relative to its size: what is smaller may be chosen otherwise */
} fixture_select;
void fixture_forward_select(
    const fixture_model *model, const int32_t *tokens, uint32_t n, fixture_select *select, double *logits);

/* ---- A rig ---------------------------------------------------------------------------------------------------- */

typedef struct {
    qk_backend *opened;  /* this one, which the rig then closes; NULL: opens one */
    const char *backend; /* NULL: "cpu" */
    uint32_t n_threads;
    const char *isa;
    qk_dtype kv_dtype;
    const qk_dtype *kv_dtype_1; /* of kv_class 1; NULL: there is none */
    uint64_t ring_bytes;
    uint32_t rows_max, n_pages, slots_max, partial_max, select_max, masks_max, biases_max;
    uint32_t seqs_max; /* 0: at most 8 */
    qk_partial_fn partial;
    void *partial_user;
} rig_options;

typedef struct {
    const fixture_model *source;
    qk_backend *backend;
    qk_model *model;
    qk_context *context;
    qk_context_params params;
    qk_step *steps[2];
    qk_buffer *pages;
    uint32_t n_pages;
    uint32_t kv_class; /* of the plans that are filled, and of rig_page() */
} rig;

void rig_open(rig *r, const fixture_model *model, const rig_options *options);
void rig_close(rig *r);
uint64_t rig_page(const rig *r, uint32_t page);

/* One sequence's rows of a step. */
typedef struct {
    const int32_t *tokens;
    uint32_t n_rows, start;
    const uint32_t *pages; /* of the whole sequence; UINT32_MAX: outside */
} rig_rows;

/* Fills the plan; every row is an output with logits, and nothing is sampled. */
void rig_fill(rig *r, uint32_t step, const rig_rows *rows, uint32_t n);
/* Fills, runs and waits; the first sequence's logits go to @logits [n_rows, vocab]. */
qk_status rig_run(rig *r, const rig_rows *rows, uint32_t n, float *logits);
