/* simd-attend.h: attention of a tile of query rows over one span of pages, and the merge of spans. Over a vector
 * layer, like simd-matmul.h; after simd-rows.h, whose exp it uses.
 *
 * A *query* here is one head of one row: query i is head i mod n_q of row i / n_q. For each:
 *   s[t] = scale * sum over d of q[d] * k[t][d],  t < n_keys
 *   m = max s,  p[t] = exp(s[t] - m),  l = sum of p
 *   out[d] = (sum over t of p[t] * v[t][d]) / l,  lse = m + ln l
 *
 * 1. The order of sums: s adds d ascending, by FMA, one lane a key. l adds t = j mod SIMD_WIDTH in lane j, ascending,
 *    then v_sum()'s tree. out adds t ascending, by FMA, one lane a dimension, then is multiplied by 1 / l. None of it
 *    depends on which queries share the tile.
 * 2. A key at or past a row's n_keys is never multiplied into that row, not even by 0: it may be NaN. Scores of such
 *    keys stay in their own lanes and are dropped. Keys past the tile's largest n_keys are not read at all.
 * 3. K is transposed, four vectors of keys at a time, into a panel in the scratch; every query of the tile uses it.
 *    So K is read and widened once a tile. V is read once for each SIMD_SCORE_ROWS queries, from L2 after the first.
 * 4. QK_I8: k and v above are the int8 values themselves, as floats. The sums of s are multiplied by K's scale times
 *    scale, in place of scale, and p by V's scale after it went into l: for each key two products, which do not grow
 *    with head_dim.
 *
 * Scratch: scores [n_rows * n_q][ATTEND_STRIDE], of which ATTEND_INVERSE holds 1 / l; then the panel
 * [head_dim][ATTEND_KEYS]; then K's and V's scales [2][QK_SPAN_TOKENS]. */
#pragma once
#include <math.h>

enum {
    ATTEND_VECS = 4,                        /* vectors of keys, or of dimensions, in a register tile */
    ATTEND_KEYS = ATTEND_VECS * SIMD_WIDTH, /* keys of a panel; divides QK_SPAN_TOKENS */
    ATTEND_STRIDE = QK_SPAN_TOKENS + 16,
    ATTEND_INVERSE = QK_SPAN_TOKENS,
};
_Static_assert(QK_SPAN_TOKENS % ATTEND_KEYS == 0, "a panel must not cross the end of the scores");
_Static_assert(QK_PAGE_TOKENS % SIMD_WIDTH == 0, "a vector of keys must not cross a page");

SIMD_INLINE size_t attend_element(const qk_dtype dtype)
{
    return dtype == QK_I8 ? sizeof(int8_t) : dtype == QK_BF16 ? sizeof(qk_bf16) : sizeof(float);
}

SIMD_INLINE const char *attend_token(const void *const *pages, size_t token_stride, uint32_t t)
{
    return (const char *)pages[t / QK_PAGE_TOKENS] + (size_t)(t % QK_PAGE_TOKENS) * token_stride;
}

/* Fills column block @column of the panel with keys [@key, @key + SIMD_WIDTH), those from @n_keys_max on with 0. Asks
 * for the keys after these, and for the values that pass two will want: pages lie anywhere, and 16 tokens side by side
 * are no run that hardware prefetchers follow (decode, scattered pages: 7 GB/s without, 10 with; in order: 9 and 14). */
SIMD_INLINE void attend_pack_keys(
    const qk_dtype dtype, const qk_cpu_attend *a, uint32_t key, uint32_t n_keys_max, float *column)
{
    const uint32_t left = key < n_keys_max ? n_keys_max - key : 0;
    const uint32_t n_keys = left < SIMD_WIDTH ? left : SIMD_WIDTH;
    const size_t element = attend_element(dtype);
    const uint32_t step = (uint32_t)(SIMD_WIDTH * sizeof(float) / element); /* in one vector of raw bits */
    const char *k[SIMD_WIDTH];
    for (uint32_t t = 0; t < n_keys; t++) {
        k[t] = attend_token(a->k_pages, a->token_stride, key + t);
    }
    const uint32_t n_ahead = key + 2 * SIMD_WIDTH <= n_keys_max ? SIMD_WIDTH : 0;
    const char *k_next[SIMD_WIDTH], *v[SIMD_WIDTH];
    for (uint32_t t = 0; t < n_ahead; t++) {
        k_next[t] = attend_token(a->k_pages, a->token_stride, key + SIMD_WIDTH + t);
        v[t] = attend_token(a->v_pages, a->token_stride, key + t);
    }
    uint32_t d = 0;
    for (; a->head_dim - d >= step; d += step) {
        vec r[SIMD_WIDTH];
        if (n_keys == SIMD_WIDTH) {
#pragma GCC unroll 16
            for (uint32_t t = 0; t < SIMD_WIDTH; t++) {
                r[t] = v_load((const float *)(const void *)(k[t] + d * element));
            }
        } else {
            for (uint32_t t = 0; t < SIMD_WIDTH; t++) {
                r[t] = t < n_keys ? v_load((const float *)(const void *)(k[t] + d * element)) : v_zero();
            }
        }
        for (uint32_t t = 0; t < n_ahead; t++) {
            _mm_prefetch(k_next[t] + d * element, _MM_HINT_T0);
            _mm_prefetch(v[t] + d * element, _MM_HINT_T0);
        }
        v_transpose(r);
#pragma GCC unroll 16
        for (uint32_t j = 0; j < SIMD_WIDTH; j++) {
            if (dtype == QK_I8) {
                vec part[4];
                v_split_i8(r[j], part);
#pragma GCC unroll 4
                for (uint32_t i = 0; i < 4; i++) {
                    v_store(column + (size_t)(d + 4 * j + i) * ATTEND_KEYS, part[i]);
                }
            } else if (dtype == QK_BF16) {
                v_store(column + (size_t)(d + 2 * j) * ATTEND_KEYS, v_pair_low(r[j]));
                v_store(column + (size_t)(d + 2 * j + 1) * ATTEND_KEYS, v_pair_high(r[j]));
            } else {
                v_store(column + (size_t)(d + j) * ATTEND_KEYS, r[j]);
            }
        }
    }
    for (; d < a->head_dim; d++) {
        for (uint32_t t = 0; t < SIMD_WIDTH; t++) {
            float value = 0.0f;
            if (t < n_keys && dtype == QK_I8) {
                value = (float)((const int8_t *)k[t])[d];
            } else if (t < n_keys && dtype == QK_BF16) {
                uint32_t bits = (uint32_t)((const qk_bf16 *)(const void *)k[t])[d] << 16;
                memcpy(&value, &bits, sizeof value);
            } else if (t < n_keys) {
                value = ((const float *)(const void *)k[t])[d];
            }
            column[(size_t)d * ATTEND_KEYS + t] = value;
        }
    }
}

/* The scales of keys [0, @n_keys_max), each times @factor, and 0 after them up to a whole panel. */
SIMD_INLINE void attend_load_scales(
    const qk_cpu_attend *a, const void *const *pages, uint32_t n_keys_max, float factor, float *scales)
{
    const uint32_t n_end = (n_keys_max + ATTEND_KEYS - 1) / ATTEND_KEYS * ATTEND_KEYS;
    for (uint32_t t = 0; t < n_end; t += QK_PAGE_TOKENS) {
        qk_f16 part[QK_PAGE_TOKENS] = {0};
        if (t < n_keys_max) {
            const uint32_t left = n_keys_max - t;
            const char *from = (const char *)pages[t / QK_PAGE_TOKENS] + a->scale_offset;
            if (left >= QK_PAGE_TOKENS) {
                memcpy(part, from, sizeof part);
            } else {
                memcpy(part, from, left * sizeof *part);
            }
        }
#pragma GCC unroll 2
        for (uint32_t i = 0; i < QK_PAGE_TOKENS; i += SIMD_WIDTH) {
            v_store(scales + t + i, v_mul(v_load_f16(part + i), v_set1(factor)));
        }
    }
}

/* Scores of @n queries from @query on against the panel of keys from @key on. @n is a constant where inlined.
 * @k_scales: QK_I8: what the keys' sums are multiplied by, in place of a->scale. */
SIMD_INLINE void attend_score_tile(const qk_dtype dtype, const uint32_t n, const qk_cpu_attend *a,
    const float *panel, const float *k_scales, uint32_t query, uint32_t key, float *scores)
{
    const float *q[SIMD_SCORE_ROWS];
    vec sum[SIMD_SCORE_ROWS][ATTEND_VECS];
#pragma GCC unroll 8
    for (uint32_t i = 0; i < n; i++) {
        q[i] = a->q[(query + i) / a->n_q] + (size_t)((query + i) % a->n_q) * a->head_dim;
#pragma GCC unroll 8
        for (uint32_t c = 0; c < ATTEND_VECS; c++) {
            sum[i][c] = v_zero();
        }
    }
    for (uint32_t d = 0; d < a->head_dim; d++) {
        vec qv[SIMD_SCORE_ROWS];
#pragma GCC unroll 8
        for (uint32_t i = 0; i < n; i++) {
            qv[i] = v_set1(q[i][d]);
        }
#pragma GCC unroll 8
        for (uint32_t c = 0; c < ATTEND_VECS; c++) {
            vec k = v_load(panel + (size_t)d * ATTEND_KEYS + c * SIMD_WIDTH);
#pragma GCC unroll 8
            for (uint32_t i = 0; i < n; i++) {
                sum[i][c] = v_fma(qv[i], k, sum[i][c]);
            }
        }
    }
#pragma GCC unroll 8
    for (uint32_t i = 0; i < n; i++) {
#pragma GCC unroll 8
        for (uint32_t c = 0; c < ATTEND_VECS; c++) {
            float *s = scores + (size_t)(query + i) * ATTEND_STRIDE + key + c * SIMD_WIDTH;
            const vec factor = dtype == QK_I8 ? v_load(k_scales + key + c * SIMD_WIDTH) : v_set1(a->scale);
            v_store(s, v_mul(sum[i][c], factor));
        }
    }
}

/* Scores to weights in place, 0 past @n up to a whole vector. Returns the log-sum-exp; leaves 1 / l.
 * @v_scales: QK_I8: each weight is left times its key's V scale; l is the sum of the weights themselves. */
SIMD_INLINE float attend_softmax(const qk_dtype dtype, float *scores, const float *v_scales, uint32_t n)
{
    const uint32_t n_whole = n - n % SIMD_WIDTH;
    const uint32_t tail = n % SIMD_WIDTH;
    const vec lowest = v_set1(-INFINITY);
    vec max = lowest;
    for (uint32_t t = 0; t < n_whole; t += SIMD_WIDTH) {
        max = v_max(max, v_load(scores + t));
    }
    if (tail > 0) {
        max = v_max(max, v_keep_n(v_load(scores + n_whole), lowest, tail));
    }
    const float m = v_max_lanes(max);
    vec sum = v_zero();
    for (uint32_t t = 0; t < n_whole; t += SIMD_WIDTH) {
        vec p = v_exp(v_sub(v_load(scores + t), v_set1(m)));
        v_store(scores + t, dtype == QK_I8 ? v_mul(p, v_load(v_scales + t)) : p);
        sum = v_add(sum, p);
    }
    if (tail > 0) {
        vec p = v_exp(v_sub(v_load(scores + n_whole), v_set1(m)));
        p = v_keep_n(p, v_zero(), tail);
        v_store(scores + n_whole, dtype == QK_I8 ? v_mul(p, v_load(v_scales + n_whole)) : p);
        sum = v_add(sum, p);
    }
    const float l = v_sum(sum);
    scores[ATTEND_INVERSE] = 1.0f / l;
    return m + logf(l);
}

/* out[d] of @n queries, for @vecs vectors of dimensions from @d on, the last of @lanes lanes; keys [t_begin, t_end).
 * Begins from 0 or (t_begin > 0) from what out holds; @last: these are the query's last keys, so divide by l.
 * @n, @vecs are constants where inlined. */
SIMD_INLINE void attend_value_tile(const qk_dtype dtype, const uint32_t n, const uint32_t vecs,
    const uint32_t lanes, const qk_cpu_attend *a, uint32_t query, uint32_t d, uint32_t t_begin,
    uint32_t t_end, bool last, const float *scores)
{
    const float *p[SIMD_SCORE_ROWS];
    float *out[SIMD_SCORE_ROWS];
    vec sum[SIMD_SCORE_ROWS][ATTEND_VECS];
#pragma GCC unroll 8
    for (uint32_t i = 0; i < n; i++) {
        p[i] = scores + (size_t)(query + i) * ATTEND_STRIDE;
        out[i] = a->out[(query + i) / a->n_q] + (size_t)((query + i) % a->n_q) * a->head_dim + d;
#pragma GCC unroll 8
        for (uint32_t c = 0; c < vecs; c++) {
            const float *from = out[i] + c * SIMD_WIDTH;
            sum[i][c] = t_begin == 0 ? v_zero() : lanes == SIMD_WIDTH ? v_load(from) : v_load_n(from, lanes);
        }
    }
    const size_t d_bytes = d * attend_element(dtype);
    for (uint32_t t = t_begin; t < t_end;) {
        const char *v = attend_token(a->v_pages, a->token_stride, t) + d_bytes;
        const uint32_t page_end = (t / QK_PAGE_TOKENS + 1) * QK_PAGE_TOKENS;
        const uint32_t end = page_end < t_end ? page_end : t_end;
        for (; t < end; t++, v += a->token_stride) {
            vec pv[SIMD_SCORE_ROWS];
#pragma GCC unroll 8
            for (uint32_t i = 0; i < n; i++) {
                pv[i] = v_set1(p[i][t]);
            }
#pragma GCC unroll 8
            for (uint32_t c = 0; c < vecs; c++) {
                vec value;
                if (dtype == QK_I8) {
                    const int8_t *from = (const int8_t *)v + c * SIMD_WIDTH;
                    value = lanes == SIMD_WIDTH ? v_load_i8(from) : v_load_i8_n(from, lanes);
                } else if (dtype == QK_BF16) {
                    const qk_bf16 *from = (const qk_bf16 *)(const void *)v + c * SIMD_WIDTH;
                    value = lanes == SIMD_WIDTH ? v_load_bf16(from) : v_load_bf16_n(from, lanes);
                } else {
                    const float *from = (const float *)(const void *)v + c * SIMD_WIDTH;
                    value = lanes == SIMD_WIDTH ? v_load(from) : v_load_n(from, lanes);
                }
#pragma GCC unroll 8
                for (uint32_t i = 0; i < n; i++) {
                    sum[i][c] = v_fma(pv[i], value, sum[i][c]);
                }
            }
        }
    }
#pragma GCC unroll 8
    for (uint32_t i = 0; i < n; i++) {
        const vec factor = v_set1(last ? p[i][ATTEND_INVERSE] : 1.0f);
#pragma GCC unroll 8
        for (uint32_t c = 0; c < vecs; c++) {
            float *to = out[i] + c * SIMD_WIDTH;
            if (lanes == SIMD_WIDTH) {
                v_store(to, v_mul(sum[i][c], factor));
            } else {
                v_store_n(to, v_mul(sum[i][c], factor), lanes);
            }
        }
    }
}

/* All dimensions of @n queries. */
SIMD_INLINE void attend_values(const qk_dtype dtype, const uint32_t n, const qk_cpu_attend *a, uint32_t query,
    uint32_t t_begin, uint32_t t_end, bool last, const float *scores)
{
    uint32_t d = 0;
    for (; a->head_dim - d >= ATTEND_VECS * SIMD_WIDTH; d += ATTEND_VECS * SIMD_WIDTH) {
        attend_value_tile(dtype, n, ATTEND_VECS, SIMD_WIDTH, a, query, d, t_begin, t_end, last, scores);
    }
    for (; a->head_dim - d >= SIMD_WIDTH; d += SIMD_WIDTH) {
        attend_value_tile(dtype, n, 1, SIMD_WIDTH, a, query, d, t_begin, t_end, last, scores);
    }
    if (d < a->head_dim) {
        attend_value_tile(dtype, n, 1, a->head_dim - d, a, query, d, t_begin, t_end, last, scores);
    }
}

/* The keys that all @n queries see together, then each query's further keys alone. */
SIMD_INLINE void attend_values_causal(
    const qk_dtype dtype, const uint32_t n, const qk_cpu_attend *a, uint32_t query, const float *scores)
{
    uint32_t n_min = a->n_keys[query / a->n_q], n_max = n_min;
    for (uint32_t i = 1; i < n; i++) {
        const uint32_t n_keys = a->n_keys[(query + i) / a->n_q];
        n_min = n_keys < n_min ? n_keys : n_min;
        n_max = n_keys > n_max ? n_keys : n_max;
    }
    attend_values(dtype, n, a, query, 0, n_min, n_min == n_max, scores);
    if (n_min == n_max) {
        return;
    }
    for (uint32_t i = 0; i < n; i++) {
        attend_values(dtype, 1, a, query + i, n_min, a->n_keys[(query + i) / a->n_q], true, scores);
    }
}

/* Calls @what with the number of queries of this tile as a constant. */
#define ATTEND_TILES(n_, what_)                                                                              \
    switch (n_) {                                                                                            \
    case 1:                                                                                                  \
        what_(1);                                                                                            \
        break;                                                                                               \
    case 2:                                                                                                  \
        what_(2);                                                                                            \
        break;                                                                                               \
    case 3:                                                                                                  \
        what_(3);                                                                                            \
        break;                                                                                               \
        ATTEND_TILES_LARGE(what_)                                                                            \
    }
#if SIMD_SCORE_ROWS >= 6
#define ATTEND_TILES_LARGE(what_)                                                                            \
    case 4:                                                                                                  \
        what_(4);                                                                                            \
        break;                                                                                               \
    case 5:                                                                                                  \
        what_(5);                                                                                            \
        break;                                                                                               \
    case 6:                                                                                                  \
        what_(6);                                                                                            \
        break;
#else
#define ATTEND_TILES_LARGE(what_)
#endif

SIMD_INLINE void attend_run(const qk_dtype dtype, const qk_cpu_attend *a)
{
    const uint32_t n_queries = a->n_rows * a->n_q;
    const uint32_t n_tiles = (n_queries + SIMD_SCORE_ROWS - 1) / SIMD_SCORE_ROWS;
    float *scores = a->scratch;
    float *panel = a->scratch + (size_t)n_queries * ATTEND_STRIDE;
    float *k_scales = panel + (size_t)a->head_dim * ATTEND_KEYS;
    float *v_scales = k_scales + QK_SPAN_TOKENS;
    uint32_t n_keys_max = 0;
    for (uint32_t r = 0; r < a->n_rows; r++) {
        n_keys_max = a->n_keys[r] > n_keys_max ? a->n_keys[r] : n_keys_max;
    }

    if (dtype == QK_I8) {
        attend_load_scales(a, a->k_pages, n_keys_max, a->scale, k_scales);
        attend_load_scales(a, a->v_pages, n_keys_max, 1.0f, v_scales);
    }
    for (uint32_t key = 0; key < n_keys_max; key += ATTEND_KEYS) {
        for (uint32_t c = 0; c < ATTEND_VECS; c++) {
            attend_pack_keys(dtype, a, key + c * SIMD_WIDTH, n_keys_max, panel + c * SIMD_WIDTH);
        }
        for (uint32_t tile = 0, query = 0; tile < n_tiles; tile++) {
            const uint32_t n = (n_queries - query + (n_tiles - tile) - 1) / (n_tiles - tile);
#define SCORE_(n_) attend_score_tile(dtype, n_, a, panel, k_scales, query, key, scores)
            ATTEND_TILES(n, SCORE_)
#undef SCORE_
            query += n;
        }
    }
    for (uint32_t i = 0; i < n_queries; i++) {
        float *row_scores = scores + (size_t)i * ATTEND_STRIDE;
        a->lse[i / a->n_q][i % a->n_q] = attend_softmax(dtype, row_scores, v_scales, a->n_keys[i / a->n_q]);
    }
    for (uint32_t tile = 0, query = 0; tile < n_tiles; tile++) {
        const uint32_t n = (n_queries - query + (n_tiles - tile) - 1) / (n_tiles - tile);
#define VALUES_(n_) attend_values_causal(dtype, n_, a, query, scores)
        ATTEND_TILES(n, VALUES_)
#undef VALUES_
        query += n;
    }
}

static void simd_attend_bf16(const qk_cpu_attend *a)
{
    attend_run(QK_BF16, a);
}

static void simd_attend_f32(const qk_cpu_attend *a)
{
    attend_run(QK_F32, a);
}

static void simd_attend_i8(const qk_cpu_attend *a)
{
    attend_run(QK_I8, a);
}

/* Upper bounds of q . k: lane j adds d = j mod SIMD_WIDTH, ascending, then v_sum()'s tree. */
SIMD_INLINE void bound_scores_tile(const qk_dtype dtype, const uint32_t n, float *scores, const float *q,
    uint32_t head_dim, const char *bounds)
{
    const size_t element = attend_element(dtype), max_offset = head_dim * element;
    vec sum[SIMD_SCORE_ROWS];
#pragma GCC unroll 8
    for (uint32_t i = 0; i < n; i++) {
        sum[i] = v_zero();
    }
    for (uint32_t d = 0; d < head_dim; d += SIMD_WIDTH) {
        const uint32_t lanes = head_dim - d < SIMD_WIDTH ? head_dim - d : SIMD_WIDTH;
        const void *at_min = bounds + d * element, *at_max = bounds + max_offset + d * element;
        vec min, max;
        if (dtype == QK_BF16) {
            min = lanes == SIMD_WIDTH ? v_load_bf16(at_min) : v_load_bf16_n(at_min, lanes);
            max = lanes == SIMD_WIDTH ? v_load_bf16(at_max) : v_load_bf16_n(at_max, lanes);
        } else {
            min = lanes == SIMD_WIDTH ? v_load(at_min) : v_load_n(at_min, lanes);
            max = lanes == SIMD_WIDTH ? v_load(at_max) : v_load_n(at_max, lanes);
        }
#pragma GCC unroll 8
        for (uint32_t i = 0; i < n; i++) {
            const float *from = q + (size_t)i * head_dim + d;
            const vec x = lanes == SIMD_WIDTH ? v_load(from) : v_load_n(from, lanes);
            sum[i] = v_add(sum[i], v_max(v_mul(x, min), v_mul(x, max)));
        }
    }
#pragma GCC unroll 8
    for (uint32_t i = 0; i < n; i++) {
        scores[i] = v_sum(sum[i]);
    }
}

SIMD_INLINE void bound_scores(
    const qk_dtype dtype, float *scores, const float *q, uint32_t n_q, uint32_t head_dim, const void *bounds)
{
    for (uint32_t h = 0; h < n_q; h += SIMD_SCORE_ROWS) {
        const uint32_t n = n_q - h < SIMD_SCORE_ROWS ? n_q - h : SIMD_SCORE_ROWS;
#define BOUND_SCORES_(n_) bound_scores_tile(dtype, n_, scores + h, q + (size_t)h * head_dim, head_dim, bounds)
        ATTEND_TILES(n, BOUND_SCORES_)
#undef BOUND_SCORES_
    }
}

static void simd_bound_scores_bf16(
    float *scores, const float *q, uint32_t n_q, uint32_t head_dim, const qk_bf16 *bounds)
{
    bound_scores(QK_BF16, scores, q, n_q, head_dim, bounds);
}

static void simd_bound_scores_f32(
    float *scores, const float *q, uint32_t n_q, uint32_t head_dim, const float *bounds)
{
    bound_scores(QK_F32, scores, q, n_q, head_dim, bounds);
}

static void simd_merge(
    float *out, float *lse, const float *span_out, const float *span_lse, uint32_t n, uint32_t head_dim)
{
    for (uint32_t h = 0; h < n; h++) {
        float *to = out + (size_t)h * head_dim;
        const float *from = span_out + (size_t)h * head_dim;
        if (lse[h] == -INFINITY) {
            memcpy(to, from, head_dim * sizeof(float));
            lse[h] = span_lse[h];
            continue;
        }
        const float m = lse[h] > span_lse[h] ? lse[h] : span_lse[h];
        const float a = expf(lse[h] - m), b = expf(span_lse[h] - m);
        const float sum = a + b;
        const vec wa = v_set1(a / sum), wb = v_set1(b / sum);
        uint32_t d = 0;
        for (; head_dim - d >= SIMD_WIDTH; d += SIMD_WIDTH) {
            v_store(to + d, v_fma(v_load(to + d), wa, v_mul(v_load(from + d), wb)));
        }
        if (d < head_dim) {
            const uint32_t tail = head_dim - d;
            vec v = v_fma(v_load_n(to + d, tail), wa, v_mul(v_load_n(from + d, tail), wb));
            v_store_n(to + d, v, tail);
        }
        lse[h] = m + logf(sum);
    }
}
