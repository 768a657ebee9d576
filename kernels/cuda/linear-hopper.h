/* linear-hopper.h: y = W x of 2 to 64 rows on sm_90a (linear-hopper.cu). Its input is bf16, and a layer's norms are spread
 * over the products around them, so that a layer is five launches. Internal to kernels/cuda and tests/gpu. */
#pragma once
#include "kernels/cuda/cuda-ops.h"

typedef struct {
    const qkc_bf16 *w; /* [n_out (twice that for QKC_SILU_MUL), n_in] */
    const qkc_bf16 *x; /* [rows_max, n_in]; rows from the count on may hold anything */
    /* When set x still lacks its norm's factor: the sum of the first @n_squares numbers of row r, squares[i * QKC_SMALL_ROWS +
     * r], is that of the squares of the row's n_in numbers before their weights. */
    const float *squares;
    uint32_t n_squares;
    float eps;
    float *y;               /* QKC_STORE, QKC_ADD: [rows_max, n_out] */
    qkc_bf16 *y16;          /* QKC_SILU_MUL: [rows_max, n_out]; QKC_ADD with next_norm: bf16(y * next_norm) */
    const float *next_norm; /* QKC_ADD: [n_out], or NULL */
    float *next_squares;    /* with it: [qkc_linear_hopper_groups(), QKC_SMALL_ROWS], as squares above */
    uint32_t n_out, n_in, rows_max;
    qkc_then then;
    bool outputs; /* the work's rows are n_outputs, not n_rows */
    qkc_plan plan;
} qkc_linear_hopper_args;

/* How a product is launched. Zero means the default. */
typedef struct {
    uint32_t cluster; /* blocks that split the inputs: 1, 2, 4, 8 */
    uint32_t rows;    /* of W a cluster, at most 192 */
    uint32_t stages;  /* of the ring, at most what fits */
    bool late;        /* the next kernel starts when the last weights have been asked for, not at once */
} qkc_linear_hopper_tuning;

/* Groups of products with next_norm at most, and their outputs. */
#define QKC_LINEAR_HOPPER_GROUPS     192u
#define QKC_LINEAR_HOPPER_HIDDEN_MAX (QKC_LINEAR_HOPPER_GROUPS * 160u)

bool qkc_linear_hopper_suits(uint32_t n_out, uint32_t n_in);
uint32_t qkc_linear_hopper_groups(const qkc_launch *launch, const qkc_linear_hopper_args *args);
cudaError_t qkc_linear_hopper(const qkc_launch *launch, const qkc_linear_hopper_args *args);
cudaError_t qkc_linear_hopper_tuned(
    const qkc_launch *launch, const qkc_linear_hopper_args *args, const qkc_linear_hopper_tuning *tuning);
