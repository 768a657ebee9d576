/* simd-matmul.h: matrix products over a vector layer (simd-avx2.h or simd-avx512.h).
 *
 *   y[r][o] = sum over i of x[r][i] * w[o][i]
 *
 * 1. The order of a sum: lane j of one accumulator adds i = j mod SIMD_WIDTH in ascending i, each with one FMA; lanes
 *    past n_in add nothing (0 * 0); then the lanes are added by the fixed tree of v_sum(). This holds for every tile
 *    shape, so a row gives the same bits alone and among others. Accumulators that are put aside between two blocks
 *    of i keep all their lanes.
 * 2. Every load and FMA is asked for by name: nothing depends on what the compiler contracts or vectorises.
 *
 * Register tile: up to SIMD_MATMUL_ROWS rows by 4 outputs; each vector of w is widened once a tile. Around it:
 *   block of outputs (w in L2) > row tile > block of i (x tile in L1) > tiles of 4 outputs (w from L2).
 * One row: w is read once, 4 rows of it side by side, and the prefetches run ahead into the next 4.
 * Bytes: w once a call while n_rows <= SIMD_MATMUL_ROWS (memory-bound); 2 * n_rows * n_in * n_out flops.
 *
 * Included by one .c file an instruction set, after its layer. */
#pragma once

enum {
    MATMUL_OUTS = 4,        /* outputs of a register tile */
    MATMUL_BLOCK_OUTS = 32, /* outputs whose w is kept in L2 while the row tiles pass; a multiple of 4 */
    MATMUL_BLOCK_IN = 1024, /* inputs of an x tile kept in L1; a multiple of SIMD_WIDTH */
    MATMUL_X_BYTES = 40960, /* x tiles up to this size are not cut */
    MATMUL_AHEAD_BYTES = 2048,
};

typedef struct {
    float *y;
    size_t y_stride;
    const float *x;
    size_t x_stride;
    const void *w; /* of output 0 */
    uint32_t n_in;
    bool is_bf16;
} matmul_job;

SIMD_INLINE const void *matmul_w_at(const void *w, size_t i, bool is_bf16)
{
    return (const char *)w + i * (is_bf16 ? sizeof(qk_bf16) : sizeof(float));
}

SIMD_INLINE vec matmul_load_w(const void *w, size_t i, uint32_t n, bool is_bf16)
{
    const void *p = matmul_w_at(w, i, is_bf16);
    if (is_bf16) {
        return n == SIMD_WIDTH ? v_load_bf16(p) : v_load_bf16_n(p, n);
    }
    return n == SIMD_WIDTH ? v_load(p) : v_load_n(p, n);
}

/* One register tile over inputs [i_begin, i_end). @rows, @outs, @is_bf16 and @ahead are constants where this is
 * inlined. @aside: [rows * outs] accumulators to begin from unless i_begin is 0, and to leave unless i_end is n_in. */
SIMD_INLINE void matmul_tile(const uint32_t rows, const uint32_t outs, const bool is_bf16, const bool ahead,
    const matmul_job *job, uint32_t row, uint32_t out, uint32_t i_begin, uint32_t i_end, float *aside)
{
    const float *x[SIMD_MATMUL_ROWS];
    const void *w[MATMUL_OUTS];
    vec sum[SIMD_MATMUL_ROWS][MATMUL_OUTS];
#pragma GCC unroll 8
    for (uint32_t r = 0; r < rows; r++) {
        x[r] = job->x + (size_t)(row + r) * job->x_stride;
#pragma GCC unroll 8
        for (uint32_t o = 0; o < outs; o++) {
            sum[r][o] = i_begin == 0 ? v_zero() : v_load(aside + (size_t)(r * outs + o) * SIMD_WIDTH);
        }
    }
#pragma GCC unroll 8
    for (uint32_t o = 0; o < outs; o++) {
        w[o] = matmul_w_at(job->w, (size_t)(out + o) * job->n_in, is_bf16);
    }

    uint32_t i = i_begin;
    for (; i_end - i >= SIMD_WIDTH; i += SIMD_WIDTH) {
        vec xv[SIMD_MATMUL_ROWS];
#pragma GCC unroll 8
        for (uint32_t r = 0; r < rows; r++) {
            xv[r] = v_load(x[r] + i);
        }
#pragma GCC unroll 8
        for (uint32_t o = 0; o < outs; o++) {
            vec wv = matmul_load_w(w[o], i, SIMD_WIDTH, is_bf16);
            if (ahead) {
                uintptr_t next = (uintptr_t)matmul_w_at(w[o], i, is_bf16) + MATMUL_AHEAD_BYTES;
                _mm_prefetch((const char *)next, _MM_HINT_T0);
            }
#pragma GCC unroll 8
            for (uint32_t r = 0; r < rows; r++) {
                sum[r][o] = v_fma(xv[r], wv, sum[r][o]);
            }
        }
    }
    if (i < i_end) {
        const uint32_t n = i_end - i;
#pragma GCC unroll 8
        for (uint32_t r = 0; r < rows; r++) {
            vec xv = v_load_n(x[r] + i, n);
#pragma GCC unroll 8
            for (uint32_t o = 0; o < outs; o++) {
                sum[r][o] = v_fma(xv, matmul_load_w(w[o], i, n, is_bf16), sum[r][o]);
            }
        }
    }

#pragma GCC unroll 8
    for (uint32_t r = 0; r < rows; r++) {
        float *y = job->y + (size_t)(row + r) * job->y_stride + out;
        if (i_end < job->n_in) {
#pragma GCC unroll 8
            for (uint32_t o = 0; o < outs; o++) {
                v_store(aside + (size_t)(r * outs + o) * SIMD_WIDTH, sum[r][o]);
            }
        } else if (outs == MATMUL_OUTS) {
            _mm_storeu_ps(y, v_sum4(sum[r][0], sum[r][1], sum[r][2], sum[r][3]));
        } else {
            y[0] = v_sum(sum[r][0]);
        }
    }
}

/* A tile whose shape is only known now: picks the inlined one. */
#define MATMUL_CASE(rows_)                                                                                   \
    case rows_:                                                                                              \
        if (outs == MATMUL_OUTS) {                                                                           \
            matmul_tile(rows_, MATMUL_OUTS, is_bf16, ahead, job, row, out, i_begin, i_end, aside);           \
        } else {                                                                                             \
            matmul_tile(rows_, 1, is_bf16, ahead, job, row, out, i_begin, i_end, aside);                     \
        }                                                                                                    \
        break;

SIMD_INLINE void matmul_any_tile(const bool is_bf16, const bool ahead, const matmul_job *job, uint32_t rows,
    uint32_t outs, uint32_t row, uint32_t out, uint32_t i_begin, uint32_t i_end, float *aside)
{
    switch (rows) {
        MATMUL_CASE(1)
        MATMUL_CASE(2)
        MATMUL_CASE(3)
#if SIMD_MATMUL_ROWS >= 6
        MATMUL_CASE(4)
        MATMUL_CASE(5)
        MATMUL_CASE(6)
#endif
    }
}

/* One row tile against outputs [o_begin, o_end), at most MATMUL_BLOCK_OUTS of them. */
SIMD_INLINE void matmul_row_tile(const bool is_bf16, const bool ahead, const matmul_job *job, uint32_t rows,
    uint32_t row, uint32_t o_begin, uint32_t o_end)
{
    float aside[SIMD_MATMUL_ROWS * MATMUL_BLOCK_OUTS * SIMD_WIDTH] __attribute__((aligned(64)));
    const bool whole = (size_t)rows * job->n_in * sizeof(float) <= MATMUL_X_BYTES;
    const uint32_t i_step = whole ? job->n_in : MATMUL_BLOCK_IN;
    for (uint32_t i = 0; i < job->n_in || i == 0; i += i_step) {
        const uint32_t i_end = job->n_in - i <= i_step ? job->n_in : i + i_step;
        for (uint32_t o = o_begin; o < o_end;) {
            const uint32_t outs = o_end - o >= MATMUL_OUTS ? MATMUL_OUTS : 1;
            matmul_any_tile(is_bf16, ahead, job, rows, outs, row, o, i, i_end,
                aside + (size_t)(o - o_begin) * rows * SIMD_WIDTH);
            o += outs;
        }
        if (i_end == job->n_in) {
            break;
        }
    }
}

SIMD_INLINE void matmul_run(
    const bool is_bf16, const matmul_job *job, uint32_t n_rows, uint32_t o_begin, uint32_t o_end)
{
    const uint32_t n_tiles = (n_rows + SIMD_MATMUL_ROWS - 1) / SIMD_MATMUL_ROWS;
    for (uint32_t o = o_begin; o < o_end;) {
        const uint32_t o_next = o_end - o <= MATMUL_BLOCK_OUTS ? o_end : o + MATMUL_BLOCK_OUTS;
        for (uint32_t t = 0, row = 0; t < n_tiles; t++) {
            const uint32_t rows =
                (n_rows - row + (n_tiles - t) - 1) / (n_tiles - t); /* evenly: 16 is 6 5 5 */
            if (t == 0) {
                matmul_row_tile(is_bf16, true, job, rows, row, o, o_next); /* w comes from memory */
            } else {
                matmul_row_tile(is_bf16, false, job, rows, row, o, o_next);
            }
            row += rows;
        }
        o = o_next;
    }
}

static void simd_matmul_bf16(float *y, size_t y_stride, const float *x, size_t x_stride, const qk_bf16 *w,
    uint32_t n_rows, uint32_t n_in, uint32_t o_begin, uint32_t o_end)
{
    const matmul_job job = {y, y_stride, x, x_stride, w, n_in, true};
    matmul_run(true, &job, n_rows, o_begin, o_end);
}

static void simd_matmul_f32(float *y, size_t y_stride, const float *x, size_t x_stride, const float *w,
    uint32_t n_rows, uint32_t n_in, uint32_t o_begin, uint32_t o_end)
{
    const matmul_job job = {y, y_stride, x, x_stride, w, n_in, false};
    matmul_run(false, &job, n_rows, o_begin, o_end);
}
