/* test-kernels-sample.c: the sampler: Philox against its published vectors, the filters against a plain sorted
 * implementation in float64, the draw against its distribution. All seeds are fixed. */
#include "kernels/cpu/philox.h"
#include "kernels/cpu/sample.h"
#include "tests/kernels/fixture.h"
#include "tests/kernels/tap.h"
#include <float.h>
#include <math.h>
#include <string.h>

#define VOCAB_MAX 151936u

static const qk_sampling plain = {.temperature = 1, .top_p = 1, .repetition_penalty = 1};
static qk_sample_scratch scratch;

static qk_output_result sample(const float *logits, uint32_t n, const qk_seen *history, qk_sampling s)
{
    qk_output_result out;
    memset(&out, 0xff, sizeof(out));
    const qk_sample_extras extras = {.history = history};
    qk_sample(logits, n, &extras, &s, &scratch, &out);
    return out;
}

static void test_philox(void)
{
    /* Of the Random123 distribution (kat_vectors). */
    static const struct {
        uint32_t counter[4], key[2], want[4];
    } known[] = {
        {{0, 0, 0, 0}, {0, 0}, {0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8}},
        {{0xffffffff, 0xffffffff, 0xffffffff, 0xffffffff}, {0xffffffff, 0xffffffff},
            {0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd}},
        {{0x243f6a88, 0x85a308d3, 0x13198a2e, 0x03707344}, {0xa4093822, 0x299f31d0},
            {0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1}},
    };
    for (size_t i = 0; i < sizeof(known) / sizeof(known[0]); i++) {
        uint32_t out[4];
        qk_philox4x32_10(known[i].key, known[i].counter, out);
        tap_ok(memcmp(out, known[i].want, sizeof(out)) == 0, "Philox4x32-10 known answer %zu", i);
    }
    double low = 1, high = 0, sum = 0;
    for (uint64_t i = 0; i < 100000; i++) {
        double u = qk_philox_uniform(7, i);
        low = fmin(low, u);
        high = fmax(high, u);
        sum += u;
    }
    tap_ok(low >= 0 && high < 1 && fabs(sum / 100000 - 0.5) < 0.005, "uniform numbers in [0, 1)");
    tap_ok(qk_philox_uniform(1, 0) != qk_philox_uniform(0, 1), "seed and position are not mixed up");
}

static void test_greedy(void)
{
    static const float a[] = {1, 3, 2}, tie[] = {2, 5, 5};
    static const float temperatures[] = {0, 1e-8f, 3e-6f};
    bool ok = true, tie_ok = true;
    for (int t = 0; t < 3; t++) {
        for (uint64_t seed = 0; seed < 100; seed++) {
            qk_sampling s = plain;
            s.temperature = temperatures[t];
            s.seed = seed;
            ok = ok && sample(a, 3, NULL, s).token == 1;
            tie_ok = tie_ok && sample(tie, 3, NULL, s).token == 1;
        }
    }
    tap_ok(ok, "temperature 0, 1e-8 and 3e-6 take the largest logit");
    tap_ok(tie_ok, "a tie goes to the lowest id");
    qk_sampling s = plain;
    s.temperature = 0;
    qk_output_result r = sample(a, 3, NULL, s);
    double want = 3 - log(exp(1) + exp(3) + exp(2));
    tap_ok(r.flags == 0 && r.logit == 3 && fabs((double)r.logprob - want) < 1e-6, "log-probability %g",
        (double)r.logprob);
}

/* Ids that come out of many draws, as a bit set, and the share of id 0. */
static uint32_t ids_drawn(const float *logits, uint32_t n, qk_sampling s, double *share_of_0)
{
    uint32_t ids = 0, n_0 = 0;
    for (uint64_t i = 0; i < 20000; i++) {
        s.seed = 3;
        s.position = i;
        int32_t token = sample(logits, n, NULL, s).token;
        tap_require(token >= 0 && (uint32_t)token < n);
        ids |= 1u << token;
        n_0 += token == 0;
    }
    if (share_of_0 != NULL)
        *share_of_0 = n_0 / 20000.0;
    return ids;
}

static void test_filters(void)
{
    static const float close[] = {1.2f, 1.1f, 1.0f, 0.9f};
    static const float p4321[] = {-0.916291f, -1.203973f, -1.609438f, -2.302585f};
    double share;
    qk_sampling s = plain;
    s.top_k = 1;
    s.top_p = 0.7f;
    tap_ok(ids_drawn(close, 4, s, NULL) == 1, "top_k 1 with top_p 0.7: always 0");
    s.top_k = 3;
    s.top_p = 0.75f;
    uint32_t ids = ids_drawn(p4321, 4, s, &share);
    tap_ok(ids == 3 && fabs(share - 0.571429) < 0.015, "top_k 3, top_p 0.75: ids 0 and 1, %g", share);
    s = plain;
    s.top_p = 0;
    tap_ok(ids_drawn(close, 4, s, NULL) == 1, "top_p 0: the best only");
    s = plain;
    s.min_p = 1;
    tap_ok(ids_drawn(close, 4, s, NULL) == 1, "min_p 1: the best only");
    s = plain;
    s.top_k = 1000000000;
    tap_ok(ids_drawn(close, 4, s, NULL) == 15, "top_k 1000000000: no limit");
    s.top_k = 0;
    tap_ok(ids_drawn(close, 4, s, NULL) == 15, "top_k 0: no limit");
    s = plain;
    s.temperature = 0.5f;
    s.min_p = 0.3f;
    tap_ok(ids_drawn(p4321, 4, s, NULL) == 3, "temperature 0.5 comes before min_p 0.3: ids 0 and 1");
    static const float tied[] = {0, 1, 1, 1, 0};
    s = plain;
    s.top_k = 2;
    tap_ok(ids_drawn(tied, 5, s, NULL) == 6, "ties at top_k's edge go to the lowest ids");
    s = plain;
    s.top_p = 0.4f;
    tap_ok(ids_drawn(tied, 5, s, NULL) == 6, "and at top_p's");
    static const float huge[] = {FLT_MAX, -FLT_MAX, FLT_MAX / 2};
    s = plain;
    s.temperature = 1e-5f;
    s.top_k = 3;
    s.top_p = 0.9f;
    tap_ok(ids_drawn(huge, 3, s, NULL) == 1, "extreme logits and temperature: the best only");
}

static void test_penalties(void)
{
    static const float logits[] = {2.0f, -1.0f, 0.5f, -0.5f};
    const qk_seen seen[4] = {QK_SEEN | 1, QK_SEEN | 1, 0, 0};
    qk_sampling s = plain;
    s.repetition_penalty = 2;
    sample(logits, 4, seen, s);
    static const float want[] = {1.0f, -2.0f, 0.5f, -0.5f};
    tap_ok(memcmp(scratch.z, want, sizeof(want)) == 0, "repetition penalty 2: [1, -2, 0.5, -0.5]");
    s.repetition_penalty = 1;
    s.temperature = 0;
    tap_ok(sample(logits, 4, seen, s).token == 0, "penalty 1 changes nothing");
    const qk_seen prompt_only[4] = {QK_SEEN, 0, QK_SEEN | 3, 0};
    s.presence_penalty = 0.25f;
    sample(logits, 4, prompt_only, s);
    static const float present[] = {2.0f, -1.0f, 0.25f, -0.5f};
    tap_ok(memcmp(scratch.z, present, sizeof(present)) == 0, "presence penalty: ids of the reply, once");
    s.frequency_penalty = 0.5f;
    sample(logits, 4, prompt_only, s);
    static const float often[] = {2.0f, -1.0f, -1.25f, -0.5f};
    tap_ok(memcmp(scratch.z, often, sizeof(often)) == 0, "frequency penalty: as often as in the reply");
    s.frequency_penalty = 0;
    qk_seen grown = qk_seen_add(qk_seen_add(0, false), true);
    tap_ok(grown == (QK_SEEN | 1) && qk_seen_add(UINT16_MAX, true) == UINT16_MAX, "counts end at 32767");
    s.repetition_penalty = 1e-30f;
    s.presence_penalty = 0;
    static const float large[] = {1e20f, -1, 0, 1};
    qk_output_result r = sample(large, 4, seen, s);
    tap_ok(r.token == 0 && r.flags == 0 && isfinite(scratch.z[0]), "a penalised logit stays finite");
    s = plain;
    s.temperature = 0;
    s.repetition_penalty = 5;
    r = sample(logits, 4, seen, s);
    tap_ok(r.token == 2 && r.logit == 0.5f, "greedy takes the largest penalised logit");
    double lse = log(exp(2) + exp(-1) + exp(0.5) + exp(-0.5));
    tap_ok(fabs((double)r.logprob - (0.5 - lse)) < 1e-6, "its log-probability is under the raw logits");
}

static void test_bias_and_mask(void)
{
    static const float logits[] = {2.0f, -1.0f, 0.5f, -0.5f};
    static const qk_bias bias[] = {{1, 10.0f}, {3, -100.0f}};
    const qk_seen seen[4] = {0, QK_SEEN | 2, 0, 0};
    qk_sampling s = plain;
    qk_output_result r;
    s.repetition_penalty = 2;
    s.frequency_penalty = 0.5f;
    qk_sample_extras e = {.history = seen, .bias = bias, .n_bias = 2};
    qk_sample(logits, 4, &e, &s, &scratch, &r);
    static const float want[] = {2.0f, 7.0f, 0.5f, -100.5f};
    tap_ok(memcmp(scratch.z, want, sizeof(want)) == 0, "a bias is added behind the penalties");

    static const uint32_t mask = 1u << 1 | 1u << 3;
    s = plain;
    s.temperature = 0;
    e = (qk_sample_extras){.mask = &mask};
    qk_sample(logits, 4, &e, &s, &scratch, &r);
    double lse = log(exp(2) + exp(-1) + exp(0.5) + exp(-0.5));
    tap_ok(r.token == 3 && r.logit == -0.5f && fabs((double)r.logprob - (-0.5 - lse)) < 1e-6,
        "greedy takes the best of the mask; its log-probability is the model's own");
    static const qk_sampling filters[] = {{.temperature = 1, .top_p = 1, .repetition_penalty = 1},
        {.temperature = 1, .top_p = 0.9999f, .repetition_penalty = 1, .top_k = 3},
        {.temperature = 3, .top_p = 1, .repetition_penalty = 1, .min_p = 0.01f, .top_k = 4},
        {.temperature = 1e-4f, .top_p = 0.1f, .repetition_penalty = 1, .top_k = 100}};
    uint32_t outside = 0, drawn = 0;
    for (uint32_t f = 0; f < 4; f++) {
        for (uint64_t i = 0; i < 2000; i++) {
            s = filters[f];
            s.seed = 5;
            s.position = i;
            qk_sample(logits, 4, &e, &s, &scratch, &r);
            outside += (mask >> r.token & 1) == 0;
            drawn |= 1u << r.token;
        }
    }
    tap_ok(outside == 0 && drawn == mask, "nothing outside the mask is drawn, all of it is");
    static const uint32_t one = 1u << 1;
    static const qk_bias deep[] = {{1, -FLT_MAX}};
    e = (qk_sample_extras){.mask = &one, .bias = deep, .n_bias = 1};
    for (uint32_t f = 0; f < 4; f++) {
        qk_sample(logits, 4, &e, &filters[f], &scratch, &r);
        outside += r.token != 1;
    }
    tap_ok(outside == 0, "a mask of one id draws it, however improbable");
}

static void test_top(void)
{
    enum { N = 5000 };
    static float z[N];
    double sum = 0;
    for (uint32_t i = 0; i < N; i++)
        z[i] = (float)((i * 2654435761u >> 16) % 97) / 8.0f; /* many ties */
    for (uint32_t i = 0; i < N; i++)
        sum += exp((double)z[i]);
    bool ordered = true, exact = true, complete = true;
    for (uint32_t n = 1; n <= QK_TOP_MAX; n++) {
        qk_top top[QK_TOP_MAX];
        qk_sample_top(z, N, n, &scratch, top);
        for (uint32_t i = 0; i < n; i++) {
            exact = exact && fabs((double)top[i].logprob - ((double)z[top[i].id] - log(sum))) < 1e-5;
            if (i > 0)
                ordered = ordered && (z[top[i].id] < z[top[i - 1].id] ||
                                         (z[top[i].id] == z[top[i - 1].id] && top[i].id > top[i - 1].id));
        }
        uint32_t n_before = 0; /* ids that come before the last one, by logit or by id */
        for (uint32_t i = 0; i < N; i++)
            n_before += z[i] > z[top[n - 1].id] || (z[i] == z[top[n - 1].id] && i < top[n - 1].id);
        complete = complete && n_before == n - 1;
    }
    tap_ok(ordered && complete, "the most probable ids, in order, ties by id");
    tap_ok(exact, "with their log-probabilities");
    static const float few[] = {1, 3, 2};
    qk_top top[3];
    qk_sample_top(few, 3, 3, &scratch, top);
    tap_ok(top[0].id == 1 && top[1].id == 2 && top[2].id == 0, "the whole of a small vocabulary");
    static const float bad[] = {1, NAN, 2};
    qk_sample_top(bad, 3, 2, &scratch, top);
    tap_ok(isnan(top[0].logprob) && isnan(top[1].logprob), "NaN without finite logits");
}

static void test_not_finite(void)
{
    static const float bad[][4] = {
        {1, NAN, 3, 2}, {1, INFINITY, 3, 2}, {1, -INFINITY, 3, 2}, {NAN, NAN, NAN, NAN}};
    bool ok = true;
    for (size_t i = 0; i < 4; i++) {
        for (int greedy = 0; greedy < 2; greedy++) {
            qk_sampling s = plain;
            s.temperature = greedy ? 0 : 1;
            qk_output_result r = sample(bad[i], 4, NULL, s);
            ok = ok && (r.flags & QK_RESULT_NOT_FINITE) && r.token == (i < 3 ? 2 : 0);
        }
    }
    tap_ok(ok, "NaN and infinities are flagged, and the token is an id");
}

static void test_seeds(void)
{
    static float flat[1000];
    int32_t replies[4][16];
    static const uint64_t seeds[] = {7, 0, 7, 8};
    for (int r = 0; r < 4; r++) {
        for (uint64_t i = 0; i < 16; i++) {
            qk_sampling s = plain;
            s.seed = seeds[r];
            s.position = 40 + i;
            replies[r][i] = sample(flat, 1000, NULL, s).token;
        }
    }
    const size_t size = sizeof(replies[0]);
    tap_ok(memcmp(replies[0], replies[2], size) == 0, "equal seeds, equal tokens");
    tap_ok(memcmp(replies[0], replies[1], size) != 0 && memcmp(replies[0], replies[3], size) != 0,
        "other seeds, other tokens");
}

/* ---- Against a plain implementation ------------------------------------------------------------------------------ */

static const float *sort_z;
static int by_z(const void *a, const void *b)
{
    const uint32_t i = *(const uint32_t *)a, j = *(const uint32_t *)b;
    return sort_z[i] > sort_z[j] ? -1 : sort_z[i] < sort_z[j] ? 1 : i < j ? -1 : 1;
}

/* The probability of each id, by sorting. Sets *margin to how near top_p's cut came to a candidate's edge. */
static void plain_distribution(const float *z, uint32_t n, const qk_sampling *s, double *p, double *margin)
{
    uint32_t *order = malloc(n * sizeof(*order));
    double *w = malloc(n * sizeof(*w));
    tap_require(order != NULL && w != NULL);
    for (uint32_t i = 0; i < n; i++)
        order[i] = i;
    sort_z = z;
    qsort(order, n, sizeof(*order), by_z);
    uint32_t kept = s->top_k > 0 && s->top_k < n ? s->top_k : n;
    double sum = 0, before = 0;
    for (uint32_t i = 0; i < kept; i++)
        sum += w[i] = exp(((double)z[order[i]] - (double)z[order[0]]) / (double)s->temperature);
    *margin = 1;
    if (s->top_p < 1) {
        uint32_t i = 0;
        for (; i < kept && before < (double)s->top_p * sum; i++) {
            before += w[i];
            *margin = fmin(*margin, fabs(before / sum - (double)s->top_p));
        }
        kept = i;
    }
    for (uint32_t i = 0; i < kept; i++)
        if (w[i] < (double)s->min_p) {
            kept = i;
            break;
        }
    sum = 0;
    memset(p, 0, n * sizeof(*p));
    for (uint32_t i = 0; i < kept; i++)
        sum += w[i];
    for (uint32_t i = 0; i < kept; i++)
        p[order[i]] = w[i] / sum;
    free(order);
    free(w);
}

static void test_against_plain(uint32_t n, double spread, bool coarse)
{
    float *z = malloc(n * sizeof(*z));
    double *p = malloc(n * sizeof(*p));
    tap_require(z != NULL && p != NULL);
    uint64_t seed = n + (uint64_t)(spread * 1000);
    for (uint32_t i = 0; i < n; i++) {
        z[i] = (float)(spread * fixture_random(&seed));
        if (coarse)
            z[i] = roundf(z[i]); /* many ties */
    }
    static const struct {
        uint32_t top_k;
        float top_p, min_p, temperature;
    } sets[] = {
        {0, 1, 0, 1},
        {20, 1, 0, 1},
        {20, 0.95f, 0, 0.6f},
        {0, 0.9f, 0, 1},
        {0, 0.3f, 0, 2},
        {0, 1, 0.05f, 1},
        {5000, 0.99f, 0.001f, 1.5f},
        {1, 1, 0, 1},
        {3, 0.5f, 0.5f, 0.1f},
        {0, 0.999999f, 0, 1},
    };
    uint32_t n_draws = 0, n_wrong = 0;
    for (size_t c = 0; c < sizeof(sets) / sizeof(sets[0]); c++) {
        qk_sampling s = plain;
        s.top_k = sets[c].top_k;
        s.top_p = sets[c].top_p;
        s.min_p = sets[c].min_p;
        s.temperature = sets[c].temperature;
        double margin;
        plain_distribution(z, n, &s, p, &margin);
        for (uint64_t i = 0; i < 40; i++) {
            s.position = i;
            s.seed = c;
            int32_t token = sample(z, n, NULL, s).token;
            /* By inverse CDF in ascending id, with a little room for float32 weights. */
            double u = qk_philox_uniform(s.seed, s.position), below = 0;
            for (int32_t j = 0; j < token; j++)
                below += p[j];
            const double room = margin < 1e-5 ? 0.01 : 2e-5;
            n_draws++;
            n_wrong += !(p[token] > 0 || margin < 1e-5) || u < below - room || u > below + p[token] + room;
        }
    }
    tap_ok(n_wrong == 0, "%u draws from %u ids%s are where the plain implementation has them (%u wrong)",
        n_draws, n, coarse ? " with ties" : "", n_wrong);
    free(z);
    free(p);
}

/* 32 ids with chosen probabilities; the 0.999 quantile of chi-square with 31 degrees of freedom is 61.1. */
static void test_chi_square(uint64_t seed)
{
    float z[32];
    double p[32], sum = 0, chi = 0;
    uint32_t count[32] = {0};
    const uint32_t n = 200000;
    for (int i = 0; i < 32; i++)
        sum += p[i] = 1.0 / (1 + i % 9);
    for (int i = 0; i < 32; i++)
        z[i] = (float)log(p[i] / sum);
    for (uint32_t i = 0; i < n; i++) {
        qk_sampling s = plain;
        s.seed = seed;
        s.position = i;
        count[sample(z, 32, NULL, s).token]++;
    }
    for (int i = 0; i < 32; i++)
        chi += pow(count[i] - n * p[i] / sum, 2) / (n * p[i] / sum);
    tap_ok(chi < 61.1 && chi > 8, "seed %llu: chi-square %.1f with 31 degrees of freedom",
        (unsigned long long)seed, chi);
}

int main(void)
{
    scratch.z = malloc(VOCAB_MAX * sizeof(float));
    scratch.weight = malloc(VOCAB_MAX * sizeof(float));
    scratch.id = malloc(VOCAB_MAX * sizeof(uint32_t));
    tap_require(scratch.z != NULL && scratch.weight != NULL && scratch.id != NULL);
    test_philox();
    test_greedy();
    test_filters();
    test_penalties();
    test_bias_and_mask();
    test_top();
    test_not_finite();
    test_seeds();
    test_against_plain(1, 1, false);
    test_against_plain(7, 4, false);
    test_against_plain(1000, 5, false);
    test_against_plain(1000, 3, true);
    test_against_plain(6144, 0, false);
    test_against_plain(VOCAB_MAX, 12, false);
    test_against_plain(VOCAB_MAX, 9, true);
    for (uint64_t seed = 0; seed < 4; seed++)
        test_chi_square(seed);
    free(scratch.z);
    free(scratch.weight);
    free(scratch.id);
    return tap_done();
}
