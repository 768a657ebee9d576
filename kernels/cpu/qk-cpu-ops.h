/* qk-cpu-ops.h: the CPU backend's ops as a table, one per instruction set. Internal to kernels/cpu.
 *
 * Rules for every implementation, which tests check bit for bit:
 *  1. A row's (or a row and head's) result depends only on its own inputs: not on n_rows, not on the range of outputs
 *     a call is given, not on which thread runs it. The order of every sum is fixed by the op, not by the tiling.
 *  2. Sums are float32 (norms may use wider), bf16 is widened exactly, stores to bf16 round to nearest even.
 *  3. Any size is legal: tails that do not fill a vector are handled (masked or scalar) and belong to the fixed order.
 *  4. Pointers need only their element's alignment.
 * Two instruction sets may differ in the last bits; each agrees with the reference within the tolerance of its test. */
#pragma once
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include "kernels/qk.h"

typedef uint16_t qk_bf16;
typedef uint16_t qk_f16; /* IEEE half: the scales of int8 pages */

/* A tile of query rows of one kv head against one span. Rows are [n_rows], and for each of them the n_q query heads
 * that share the kv head (GQA) are computed together, so that K and V are read once. */
typedef struct {
    const void *const
        *k_pages; /* [ceil(n_keys_max / 16)]: address of the head's K slice in each page of the span */
    const void *const *v_pages; /* the same for V */
    size_t token_stride;        /* bytes between tokens in a slice */
    uint32_t head_dim, n_q, n_rows;
    const uint32_t *n_keys; /* [n_rows]: 1..QK_SPAN_TOKENS keys of the span that the row sees (causal) */
    const float *const *q;  /* [n_rows]: [n_q, head_dim], rotated, unscaled */
    float scale;            /* 1 / sqrt(head_dim) */
    float *const *out;      /* [n_rows]: [n_q, head_dim], normalised; distinct from other rows' */
    float *const *lse;      /* [n_rows]: [n_q] */
    float *scratch;         /* at least qk_cpu_attend_scratch_floats() floats, 64-byte aligned */
    size_t scale_offset;    /* attend_i8: from a slice to its 16 scales */
} qk_cpu_attend;

#define QK_CPU_ATTEND_ROWS_MAX 16u
/* Scratch for a tile of at most QK_CPU_ATTEND_ROWS_MAX rows of @n_q heads. */
static inline size_t qk_cpu_attend_scratch_floats(uint32_t n_q, uint32_t head_dim)
{
    return (size_t)QK_CPU_ATTEND_ROWS_MAX * n_q * (QK_SPAN_TOKENS + 16) +
           2 * (size_t)QK_SPAN_TOKENS * head_dim + 2 * QK_SPAN_TOKENS;
}

typedef struct {
    const char *name; /* "reference", "avx2", "avx512" */
    bool (*supported)(void);

    /* y[r][o] = sum over i of x[r][i] * w[o][i], for r < n_rows and o_begin <= o < o_end; i in 0..n_in.
     * @w: [.., n_in] row-major. y and x have row strides in floats. y does not overlap x. */
    void (*matmul_bf16)(float *y, size_t y_stride, const float *x, size_t x_stride, const qk_bf16 *w,
        uint32_t n_rows, uint32_t n_in, uint32_t o_begin, uint32_t o_end);
    void (*matmul_f32)(float *y, size_t y_stride, const float *x, size_t x_stride, const float *w,
        uint32_t n_rows, uint32_t n_in, uint32_t o_begin, uint32_t o_end);

    /* y = x / sqrt(mean(x^2) + eps) * weight. One row. y may be x. */
    void (*rms_norm)(float *y, const float *x, const float *weight, uint32_t n, float eps);
    /* In place on one head: pairs (i, i + n/2): (a cos - b sin, b cos + a sin). @cos_sin: [n/2] cos, then [n/2] sin. */
    void (*rope)(float *x, const float *cos_sin, uint32_t n);
    void (*add)(float *y, const float *x, uint32_t n);           /* y += x */
    void (*silu_mul)(float *gate, const float *up, uint32_t n);  /* gate = gate / (1 + exp(-gate)) * up */
    void (*bf16_to_f32)(float *y, const qk_bf16 *x, uint32_t n); /* exact */
    void (*f32_to_bf16)(qk_bf16 *y, const float *x, uint32_t n); /* nearest even; NaN stays NaN */
    /* One vector to QK_I8 (the formula is at qk_kv_layout): the one op that gives the same bytes on every instruction
     * set. Exactly, with m = max |x[d]|: the scale is 0 when m is 0, and the NaN 0x7e00 when any x[d] is NaN or
     * infinite; else it is m / 127 in float32, raised to 2^-14, rounded to fp16 (infinity from 65520 up). All q are 0
     * when the scale is not a finite number above 0: then the values q * s show as NaN, and never as wrong numbers. */
    void (*f32_to_i8)(int8_t *q, qk_f16 *scale, const float *x, uint32_t n);

    /* Softmax attention of a tile over one span: two passes (scores and their maximum, then exp, sum and V in key
     * order), so the result for a row does not depend on the tile. */
    void (*attend_bf16)(const qk_cpu_attend *a);
    void (*attend_f32)(const qk_cpu_attend *a);
    /* The same over the values q * s, which float32 holds exactly. The reference computes with these values; faster
     * tables multiply by s once a key: the score by K's, the weight by V's. */
    void (*attend_i8)(const qk_cpu_attend *a);
    /* Upper bounds of q . k over a page's keys, a query head each: scores[h] = sum over d of max(q[h][d] * min[d],
     * q[h][d] * max[d]).
     * @q: [n_q, head_dim]. @bounds: [min, max][head_dim]. */
    void (*bound_scores_bf16)(
        float *scores, const float *q, uint32_t n_q, uint32_t head_dim, const qk_bf16 *bounds);
    void (*bound_scores_f32)(
        float *scores, const float *q, uint32_t n_q, uint32_t head_dim, const float *bounds);
    /* Left fold of one more span into an accumulator, for each of n heads: out = the lse-weighted mean of both, lse =
     * ln(e^lse + e^span_lse). An accumulator with lse = -INFINITY is empty and becomes the span exactly. */
    void (*merge)(
        float *out, float *lse, const float *span_out, const float *span_lse, uint32_t n, uint32_t head_dim);
} qk_cpu_ops;

/* The attention over pages of @dtype. */
static inline void qk_cpu_attend_pages(const qk_cpu_ops *ops, qk_dtype dtype, const qk_cpu_attend *a)
{
    if (dtype == QK_BF16)
        ops->attend_bf16(a);
    else if (dtype == QK_I8)
        ops->attend_i8(a);
    else
        ops->attend_f32(a);
}

extern const qk_cpu_ops qk_cpu_ops_reference; /* plain C, the readable definition */
extern const qk_cpu_ops qk_cpu_ops_avx2;      /* AVX2, FMA, F16C */
extern const qk_cpu_ops qk_cpu_ops_avx512;    /* AVX-512 F, BW, VL, DQ */

/* @isa: NULL for the best supported (or $QUIRE_ISA when set). NULL when it is unknown or not on this machine. */
const qk_cpu_ops *qk_cpu_ops_get(const char *isa);
