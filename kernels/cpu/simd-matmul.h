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
 * Register tile: up to SIMD_MATMUL_ROWS rows by 4 outputs. Its outputs are not neighbours but lie a quarter of the
 * range apart: each reads its rows of w one after the other, in one ascending run of memory. Hardware prefetchers
 * follow four such runs at full speed; four neighbouring rows, whose addresses alternate within a page, at about half
 * (Zen 5, 1 thread: 15-20 GB/s against 27-31; plain reads 28-31). From 3 rows on, the FMAs fill the core's window, so
 * that too few loads are under way; prefetch instructions make up for it (4 rows: 21 GB/s without, 29 with).
 *
 * Around the tile: block of output steps (w in L2) > row tile > block of i (x tile in L1) > output step (w from L2).
 * Bytes: w once a call while one row tile holds all rows (memory-bound); else 2 * n_rows * n_in * n_out flops.
 *
 * Included by one .c file an instruction set, after its layer. */
#pragma once

enum {
    MATMUL_BLOCK_STEPS = 8, /* output steps whose w stays in L2 while the row tiles pass */
    MATMUL_FEW_TILES =
        4, /* up to so many row tiles one step at a time, with w in L1: less waiting for memory */
    MATMUL_BLOCK_IN = 1024,    /* inputs of an x tile kept in L1; a multiple of SIMD_WIDTH */
    MATMUL_X_BYTES = 40960,    /* x tiles up to this size are not cut */
    MATMUL_OUTS = 4,           /* of a register tile */
    MATMUL_AHEAD_BYTES = 2048, /* prefetch distance in each run of w */
};

typedef struct {
    float *y;
    size_t y_stride;
    const float *x;
    size_t x_stride;
    const void *w; /* of output 0 */
    uint32_t n_in;
    uint32_t out_step; /* from one output of a tile to the next */
} matmul_job;

SIMD_INLINE vec matmul_load_w(const char *w, size_t i, uint32_t n, bool is_bf16)
{
    if (is_bf16) {
        const qk_bf16 *p = (const qk_bf16 *)(const void *)w + i;
        return n == SIMD_WIDTH ? v_load_bf16(p) : v_load_bf16_n(p, n);
    }
    const float *p = (const float *)(const void *)w + i;
    return n == SIMD_WIDTH ? v_load(p) : v_load_n(p, n);
}

SIMD_INLINE void matmul_fetch_ahead(const char *w, size_t i, bool is_bf16)
{
    const uintptr_t at =
        (uintptr_t)w + i * (is_bf16 ? sizeof(qk_bf16) : sizeof(float)); /* may lie past the end */
    _mm_prefetch((const char *)(at + MATMUL_AHEAD_BYTES), _MM_HINT_T0);
}

/* One register tile over inputs [i_begin, i_end). @rows, @outs and @is_bf16 are constants where this is inlined.
 * @aside: [rows * outs] accumulators to begin from unless i_begin is 0, and to leave unless i_end is n_in. */
SIMD_INLINE void matmul_tile(const uint32_t rows, const uint32_t outs, const bool is_bf16,
    const matmul_job *job, uint32_t row, uint32_t out, uint32_t i_begin, uint32_t i_end, float *aside)
{
    const float *x[SIMD_MATMUL_ROWS];
    const char *w[MATMUL_OUTS];
    vec sum[SIMD_MATMUL_ROWS * MATMUL_OUTS];
#pragma GCC unroll 8
    for (uint32_t r = 0; r < rows; r++) {
        x[r] = job->x + (size_t)(row + r) * job->x_stride;
    }
#pragma GCC unroll 8
    for (uint32_t o = 0; o < outs; o++) {
        const size_t first = ((size_t)out + (size_t)o * job->out_step) * job->n_in;
        w[o] = (const char *)job->w + first * (is_bf16 ? sizeof(qk_bf16) : sizeof(float));
    }
#pragma GCC unroll 32
    for (uint32_t k = 0; k < rows * outs; k++) {
        sum[k] = i_begin == 0 ? v_zero() : v_load(aside + (size_t)k * SIMD_WIDTH);
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
            const vec wv = matmul_load_w(w[o], i, SIMD_WIDTH, is_bf16);
            matmul_fetch_ahead(w[o], i, is_bf16);
#pragma GCC unroll 8
            for (uint32_t r = 0; r < rows; r++) {
                sum[r * outs + o] = v_fma(xv[r], wv, sum[r * outs + o]);
            }
        }
    }
    if (i < i_end) {
        const uint32_t n = i_end - i;
#pragma GCC unroll 8
        for (uint32_t o = 0; o < outs; o++) {
            const vec wv = matmul_load_w(w[o], i, n, is_bf16);
#pragma GCC unroll 8
            for (uint32_t r = 0; r < rows; r++) {
                sum[r * outs + o] = v_fma(v_load_n(x[r] + i, n), wv, sum[r * outs + o]);
            }
        }
    }

    if (i_end < job->n_in) {
#pragma GCC unroll 32
        for (uint32_t k = 0; k < rows * outs; k++) {
            v_store(aside + (size_t)k * SIMD_WIDTH, sum[k]);
        }
        return;
    }
    float *y = job->y + (size_t)row * job->y_stride + out;
#pragma GCC unroll 8
    for (uint32_t k = 0; k < rows * outs; k += 4) {
        float four[4];
        const uint32_t n = rows * outs - k < 4 ? rows * outs - k : 4;
        _mm_storeu_ps(four, v_sum4(sum[k], n > 1 ? sum[k + 1] : v_zero(), n > 2 ? sum[k + 2] : v_zero(),
                                n > 3 ? sum[k + 3] : v_zero()));
#pragma GCC unroll 4
        for (uint32_t j = 0; j < n; j++) {
            y[(size_t)((k + j) / outs) * job->y_stride + (size_t)((k + j) % outs) * job->out_step] = four[j];
        }
    }
}

/* A tile whose rows are only known now, of the outputs that go with them, or of one: picks the inlined one. */
#define MATMUL_CASE(rows_)                                                                                   \
    case rows_:                                                                                              \
        if (single) {                                                                                        \
            matmul_tile(rows_, 1, is_bf16, job, row, out, i_begin, i_end, aside);                            \
        } else {                                                                                             \
            matmul_tile(rows_, MATMUL_OUTS, is_bf16, job, row, out, i_begin, i_end, aside);                  \
        }                                                                                                    \
        break;

SIMD_INLINE void matmul_any_tile(const bool is_bf16, bool single, const matmul_job *job, uint32_t rows,
    uint32_t row, uint32_t out, uint32_t i_begin, uint32_t i_end, float *aside)
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

/* One row tile and the tiles that begin at outputs [o_begin, o_end), at most MATMUL_BLOCK_STEPS of them. */
SIMD_INLINE void matmul_row_tile(const bool is_bf16, bool single, const matmul_job *job, uint32_t rows,
    uint32_t row, uint32_t o_begin, uint32_t o_end)
{
    float aside[SIMD_MATMUL_ROWS * MATMUL_OUTS * MATMUL_BLOCK_STEPS * SIMD_WIDTH]
        __attribute__((aligned(64)));
    const uint32_t n_sums = rows * MATMUL_OUTS;
    const bool whole = (size_t)rows * job->n_in * sizeof(float) <= MATMUL_X_BYTES;
    const uint32_t i_step = whole ? job->n_in : MATMUL_BLOCK_IN;
    uint32_t i = 0, i_end;
    do {
        i_end = job->n_in - i <= i_step ? job->n_in : i + i_step;
        for (uint32_t o = o_begin; o < o_end; o++) {
            float *kept = aside + (size_t)(o - o_begin) * n_sums * SIMD_WIDTH;
            matmul_any_tile(is_bf16, single, job, rows, row, o, i, i_end, kept);
        }
        i = i_end;
    } while (i < job->n_in);
}

/* All rows and the tiles that begin at outputs [o_begin, o_end). */
SIMD_INLINE void matmul_blocks(
    const bool is_bf16, bool single, const matmul_job *job, uint32_t n_rows, uint32_t o_begin, uint32_t o_end)
{
    const uint32_t n_tiles = (n_rows + SIMD_MATMUL_ROWS - 1) / SIMD_MATMUL_ROWS;
    const uint32_t block = n_tiles <= MATMUL_FEW_TILES ? 1 : MATMUL_BLOCK_STEPS;
    for (uint32_t o = o_begin; o < o_end;) {
        const uint32_t o_next = o_end - o <= block ? o_end : o + block;
        for (uint32_t t = 0, row = 0; t < n_tiles; t++) {
            const uint32_t rows =
                (n_rows - row + (n_tiles - t) - 1) / (n_tiles - t); /* evenly: 16 is 6 5 5 */
            matmul_row_tile(is_bf16, single, job, rows, row, o, o_next);
            row += rows;
        }
        o = o_next;
    }
}

SIMD_INLINE void matmul_run(
    const bool is_bf16, matmul_job *job, uint32_t n_rows, uint32_t o_begin, uint32_t o_end)
{
    if (n_rows == 0 || o_begin >= o_end) {
        return;
    }
    job->out_step = (o_end - o_begin) / MATMUL_OUTS;
    matmul_blocks(is_bf16, false, job, n_rows, o_begin, o_begin + job->out_step);
    matmul_blocks(is_bf16, true, job, n_rows, o_begin + job->out_step * MATMUL_OUTS, o_end);
}

static void simd_matmul_bf16(float *y, size_t y_stride, const float *x, size_t x_stride, const qk_bf16 *w,
    uint32_t n_rows, uint32_t n_in, uint32_t o_begin, uint32_t o_end)
{
    matmul_job job = {y, y_stride, x, x_stride, w, n_in, 0};
    matmul_run(true, &job, n_rows, o_begin, o_end);
}

static void simd_matmul_f32(float *y, size_t y_stride, const float *x, size_t x_stride, const float *w,
    uint32_t n_rows, uint32_t n_in, uint32_t o_begin, uint32_t o_end)
{
    matmul_job job = {y, y_stride, x, x_stride, w, n_in, 0};
    matmul_run(false, &job, n_rows, o_begin, o_end);
}
