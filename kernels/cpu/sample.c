/* sample.c: penalties, candidate selection and the draw.
 *
 * The candidates are first all ids and shrink from filter to filter; they stay in ascending id order throughout, so
 * that the draw is a walk over what is left. Neither top_k nor top_p sorts: both look for the cut in the descending
 * order by radix selection, three passes over 11, 11 and 10 bits of an order-preserving integer key, each of which
 * only looks at the candidates that the passes before left undecided. */
#include "kernels/cpu/sample.h"
#include "kernels/cpu/philox.h"
#include <float.h>
#include <math.h>
#include <string.h>

#define BLOCK         16u /* elements handled together, so that the compiler uses vectors */
#define GREEDY_BELOW  1e-5f
#define RADIX_BINS    2048u
#define RADIX_PASSES  3u
#define EXP_UNDERFLOW (-87.0f)

/* e^x for x <= 0: 2^n * e^r with |r| <= ln 2 / 2, e^r by its Taylor polynomial of degree 7 (relative error 2e-7 at
 * most). Below e^-87 the result is 0. */
static inline float exp_below_zero(float x)
{
    float clamped = x < EXP_UNDERFLOW ? EXP_UNDERFLOW : x;
    float n_real = clamped * 1.44269504f - 0.5f;
    int32_t n = (int32_t)n_real; /* towards zero: rounds to nearest, since x <= 0 */
    float r = clamped - (float)n * 0.693145752f - (float)n * 1.42860677e-6f;
    float p = 1.0f / 5040;
    p = p * r + 1.0f / 720;
    p = p * r + 1.0f / 120;
    p = p * r + 1.0f / 24;
    p = p * r + 1.0f / 6;
    p = p * r + 0.5f;
    p = p * r + 1.0f;
    p = p * r + 1.0f;
    uint32_t bits = (uint32_t)(n + 127) << 23;
    float power;
    memcpy(&power, &bits, sizeof(power));
    return x < EXP_UNDERFLOW ? 0.0f : p * power;
}

typedef struct {
    bool finite;
    float max; /* of the finite ones; -FLT_MAX when there is none */
} logits_scan;

static logits_scan scan_logits(const float *x, uint32_t n)
{
    float lane[BLOCK];
    uint32_t bad[BLOCK] = {0}, n_bad = 0, i = 0;
    for (uint32_t j = 0; j < BLOCK; j++)
        lane[j] = -FLT_MAX;
    for (; i + BLOCK <= n; i += BLOCK) {
        for (uint32_t j = 0; j < BLOCK; j++) {
            float v = x[i + j];
            bool ok = fabsf(v) <= FLT_MAX;
            bad[j] |= !ok;
            v = ok ? v : -FLT_MAX;
            lane[j] = v > lane[j] ? v : lane[j];
        }
    }
    for (uint32_t j = 0; i + j < n; j++) {
        bool ok = fabsf(x[i + j]) <= FLT_MAX;
        bad[j] |= !ok;
        lane[j] = ok && x[i + j] > lane[j] ? x[i + j] : lane[j];
    }
    for (uint32_t j = 0; j < BLOCK; j++)
        n_bad += bad[j];
    logits_scan scan = {n_bad == 0, lane[0]};
    for (uint32_t j = 1; j < BLOCK; j++)
        scan.max = lane[j] > scan.max ? lane[j] : scan.max;
    return scan;
}

/* The sum of e^(x - max), in float64 by BLOCK lanes. */
static double sum_exp(const float *x, uint32_t n, float max)
{
    double lane[BLOCK] = {0};
    uint32_t i = 0;
    for (; i + BLOCK <= n; i += BLOCK) {
        float e[BLOCK];
        for (uint32_t j = 0; j < BLOCK; j++)
            e[j] = exp_below_zero(x[i + j] - max);
        for (uint32_t j = 0; j < BLOCK; j++)
            lane[j] += (double)e[j];
    }
    for (uint32_t j = 0; i + j < n; j++)
        lane[j] += (double)exp_below_zero(x[i + j] - max);
    double sum = 0;
    for (uint32_t j = 0; j < BLOCK; j++)
        sum += lane[j];
    return sum;
}

/* The lowest id whose logit is @max, the largest finite one; 0 when none is finite. */
static uint32_t first_of(const float *z, uint32_t n, float max)
{
    uint32_t i = 0;
    while (i < n && z[i] != max)
        i++;
    return i < n ? i : 0;
}

static inline float clamp_finite(float x)
{
    return x > FLT_MAX ? FLT_MAX : x < -FLT_MAX ? -FLT_MAX : x;
}

static void penalise(float *z, const float *logits, uint32_t n, const qk_seen *history, const qk_sampling *s)
{
    for (uint32_t i = 0; i < n; i++) {
        float x = logits[i];
        if (history[i] & QK_SEEN)
            x = clamp_finite(x > 0 ? x / s->repetition_penalty : x * s->repetition_penalty);
        if (history[i] & QK_SEEN_COUNT) {
            x = clamp_finite(x - s->frequency_penalty * (float)(history[i] & QK_SEEN_COUNT));
            x = clamp_finite(x - s->presence_penalty);
        }
        z[i] = x;
    }
}

static void mask_out(float *z, uint32_t n, const uint32_t *mask)
{
    for (uint32_t i = 0; i < n; i++)
        z[i] = mask[i / 32] >> i % 32 & 1 ? z[i] : -INFINITY;
}

/* Steps 1 to 5 of the sampling comment. Returns the logits to go on with: @logits when nothing changes. */
static const float *adjust(const float *logits, uint32_t n, const qk_sample_extras *extras,
    const qk_sampling *s, const qk_sample_scratch *scratch)
{
    if (extras == NULL)
        return logits;
    const bool penalised =
        s->repetition_penalty != 1.0f || s->presence_penalty != 0.0f || s->frequency_penalty != 0.0f;
    const qk_seen *history = penalised ? extras->history : NULL;
    if (history == NULL && extras->n_bias == 0 && extras->mask == NULL)
        return logits;
    if (history != NULL)
        penalise(scratch->z, logits, n, history, s);
    else
        memcpy(scratch->z, logits, n * sizeof(*logits));
    for (uint32_t i = 0; i < extras->n_bias; i++) {
        float *z = &scratch->z[extras->bias[i].id];
        *z = clamp_finite(*z + extras->bias[i].value);
    }
    if (extras->mask != NULL)
        mask_out(scratch->z, n, extras->mask);
    return scratch->z;
}

/* Larger floats give larger keys; -0 counts as 0. */
static inline uint32_t order_key(float z)
{
    uint32_t bits;
    z += 0.0f;
    memcpy(&bits, &z, sizeof(bits));
    return bits & 0x80000000u ? ~bits : bits | 0x80000000u;
}

static inline float float_of_key(uint32_t key)
{
    uint32_t bits = key & 0x80000000u ? key & 0x7fffffffu : ~key;
    float z;
    memcpy(&z, &bits, sizeof(z));
    return z;
}

typedef struct {
    uint32_t key;     /* candidates above it stay */
    uint32_t n_equal; /* and of those with just this key, so many, lowest ids first */
} cut;

/* Walks the candidates in descending order of z until their mass reaches @target, and cuts behind the one that
 * reached it. A candidate's mass is its weight, or 1 when @weight is NULL. */
static cut find_cut(const float *z, const uint32_t *id, const float *weight, uint32_t n, double target)
{
    static const uint32_t shift[RADIX_PASSES] = {21, 10, 0}, bits[RADIX_PASSES] = {11, 11, 10};
    double mass[RADIX_BINS], above = 0;
    uint32_t count[RADIX_BINS], prefix = 0, mask = 0;
    for (uint32_t pass = 0; pass < RADIX_PASSES; pass++) {
        uint32_t n_bins = 1u << bits[pass];
        memset(mass, 0, sizeof(mass));
        memset(count, 0, sizeof(count));
        for (uint32_t i = 0; i < n; i++) {
            uint32_t key = order_key(z[id[i]]);
            if ((key & mask) != prefix)
                continue;
            uint32_t bin = key >> shift[pass] & (n_bins - 1);
            count[bin]++;
            mass[bin] += weight != NULL ? (double)weight[i] : 1.0;
        }
        /* The lowest bin in use takes what rounding may have left over. */
        uint32_t bin = n_bins, last = n_bins;
        while (bin-- > 0) {
            if (count[bin] == 0)
                continue;
            last = bin;
            if (above + mass[bin] >= target)
                break;
            above += mass[bin];
        }
        if (bin == UINT32_MAX)
            above -= mass[last];
        prefix |= last << shift[pass];
        mask |= (n_bins - 1) << shift[pass];
    }
    cut c = {prefix, 0};
    for (uint32_t i = 0; i < n; i++) {
        if (order_key(z[id[i]]) != prefix)
            continue;
        c.n_equal++;
        above += weight != NULL ? (double)weight[i] : 1.0;
        if (above >= target)
            break;
    }
    return c;
}

/* Keeps the candidates that the cut leaves; returns how many. */
static uint32_t apply_cut(const float *z, uint32_t *id, float *weight, uint32_t n, cut c)
{
    uint32_t kept = 0;
    for (uint32_t i = 0; i < n; i++) {
        uint32_t key = order_key(z[id[i]]);
        if (key < c.key || (key == c.key && c.n_equal == 0))
            continue;
        c.n_equal -= key == c.key;
        id[kept] = id[i];
        if (weight != NULL)
            weight[kept] = weight[i];
        kept++;
    }
    return kept;
}

static void list_all(uint32_t *id, uint32_t n)
{
    for (uint32_t i = 0; i < n; i++)
        id[i] = i;
}

/* Lists the ids that can be among the @k best; returns how many. The kth largest of the blocks' maxima is no larger
 * than the kth largest logit, and costs a block's length less to find. */
static uint32_t list_top(const float *z, uint32_t n, uint32_t k, const qk_sample_scratch *scratch)
{
    const uint32_t n_blocks = n / BLOCK;
    if (k > n_blocks / 4) {
        list_all(scratch->id, n);
        return n;
    }
    float *block_max = scratch->weight;
    for (uint32_t b = 0; b < n_blocks; b++) {
        float max = z[b * BLOCK];
        for (uint32_t j = 1; j < BLOCK; j++)
            max = z[b * BLOCK + j] > max ? z[b * BLOCK + j] : max;
        block_max[b] = max;
    }
    list_all(scratch->id, n_blocks);
    const float least = float_of_key(find_cut(block_max, scratch->id, NULL, n_blocks, (double)k).key);
    uint32_t n_listed = 0;
    for (uint32_t b = 0; b < n_blocks; b++) {
        if (block_max[b] < least)
            continue;
        for (uint32_t i = b * BLOCK; i < (b + 1) * BLOCK; i++)
            if (z[i] >= least)
                scratch->id[n_listed++] = i; /* n_listed <= i: the list of blocks is not needed any more */
    }
    for (uint32_t i = n_blocks * BLOCK; i < n; i++)
        if (z[i] >= least)
            scratch->id[n_listed++] = i;
    return n_listed;
}

static void weigh(const float *z, const uint32_t *id, float *weight, uint32_t n, float max, float temperature)
{
    float inverse = 1.0f / temperature;
    uint32_t i = 0;
    for (; i + BLOCK <= n; i += BLOCK) {
        float x[BLOCK];
        for (uint32_t j = 0; j < BLOCK; j++)
            x[j] = (z[id[i + j]] - max) * inverse;
        for (uint32_t j = 0; j < BLOCK; j++)
            weight[i + j] = exp_below_zero(x[j]);
    }
    for (; i < n; i++)
        weight[i] = exp_below_zero((z[id[i]] - max) * inverse);
}

static double sum_weights(const float *weight, uint32_t n)
{
    double sum = 0;
    for (uint32_t i = 0; i < n; i++)
        sum += (double)weight[i];
    return sum;
}

static uint32_t draw(
    const float *z, uint32_t vocab, float max, const qk_sampling *s, const qk_sample_scratch *scratch)
{
    uint32_t *id = scratch->id, n = vocab;
    float *weight = scratch->weight;
    if (s->top_k > 0 && s->top_k < n) {
        n = list_top(z, n, s->top_k, scratch);
        n = apply_cut(z, id, NULL, n, find_cut(z, id, NULL, n, (double)s->top_k));
    } else {
        list_all(id, n);
    }
    weigh(z, id, weight, n, max, s->temperature);
    if (s->top_p < 1.0f)
        n = apply_cut(
            z, id, weight, n, find_cut(z, id, weight, n, (double)s->top_p * sum_weights(weight, n)));
    if (s->min_p > 0.0f) {
        /* The best candidate's weight is 1, so that probabilities relative to it are the weights. */
        uint32_t kept = 0;
        for (uint32_t i = 0; i < n; i++) {
            if (weight[i] >= s->min_p) {
                id[kept] = id[i];
                weight[kept++] = weight[i];
            }
        }
        n = kept;
    }

    double target = qk_philox_uniform(s->seed, s->position) * sum_weights(weight, n), sum = 0;
    uint32_t last = 0;
    for (uint32_t i = 0; i < n; i++) {
        if (weight[i] == 0)
            continue;
        sum += (double)weight[i];
        last = id[i];
        if (sum > target)
            break;
    }
    return last;
}

static float logprob_of(float logit, float max, double sum)
{
    return (float)((double)logit - (double)max - log(sum));
}

void qk_sample(const float *logits, uint32_t vocab, const qk_sample_extras *extras,
    const qk_sampling *sampling, const qk_sample_scratch *scratch, qk_output_result *out)
{
    logits_scan scan = scan_logits(logits, vocab);
    if (!scan.finite) {
        uint32_t token = first_of(logits, vocab, scan.max);
        *out = (qk_output_result){(int32_t)token, QK_RESULT_NOT_FINITE, NAN, logits[token]};
        return;
    }
    const float *z = adjust(logits, vocab, extras, sampling, scratch);
    const float max = z == logits ? scan.max : scan_logits(z, vocab).max; /* of those not masked out */
    bool greedy = sampling->temperature < GREEDY_BELOW || sampling->top_p <= 0.0f || sampling->top_k == 1;
    uint32_t token = greedy ? first_of(z, vocab, max) : draw(z, vocab, max, sampling, scratch);
    out->token = (int32_t)token;
    out->flags = 0;
    out->logit = logits[token];
    out->logprob = logprob_of(logits[token], scan.max, sum_exp(logits, vocab, scan.max));
}

/* Insertion into a short list, best first. Of equal logits the one that came first, with the lower id, stays before. */
static uint32_t insert_top(qk_top *out, uint32_t n, uint32_t n_max, uint32_t id, float logit)
{
    uint32_t at = n;
    while (at > 0 && out[at - 1].logprob < logit)
        at--;
    if (at == n_max)
        return n;
    for (uint32_t i = n < n_max ? n : n_max - 1; i > at; i--)
        out[i] = out[i - 1];
    out[at] = (qk_top){id, logit};
    return n < n_max ? n + 1 : n;
}

void qk_sample_top(
    const float *logits, uint32_t vocab, uint32_t n_top, const qk_sample_scratch *scratch, qk_top *out)
{
    logits_scan scan = scan_logits(logits, vocab);
    if (!scan.finite) {
        for (uint32_t i = 0; i < n_top; i++)
            out[i] = (qk_top){i, NAN};
        return;
    }
    const uint32_t n_listed = list_top(logits, vocab, n_top, scratch);
    const double sum = sum_exp(logits, vocab, scan.max);
    uint32_t n = 0;
    for (uint32_t i = 0; i < n_listed; i++)
        n = insert_top(out, n, n_top, scratch->id[i], logits[scratch->id[i]]);
    for (uint32_t i = 0; i < n; i++)
        out[i].logprob = logprob_of(out[i].logprob, scan.max, sum);
}
