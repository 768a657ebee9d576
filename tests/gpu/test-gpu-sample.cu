/* test-gpu-sample.cu: the device's sampler against the CPU's on the same logits, over 10^5 draws.
 *
 * Greedy tokens, flags, logits, slots and history must be equal. A drawn token may differ only where the CPU's own
 * decision was within rounding: at top_p's edge, when the mass up to a candidate is within 1e-12 of the sum from the
 * target; at the draw, when the target is within 1e-12 of the sum from an id's boundary. Each difference is looked at
 * in float64, counted and reported. */
#include <algorithm>
#include "tests/gpu/gpu-test.h"
extern "C" {
#include "kernels/cpu/philox.h"
#include "kernels/cpu/sample.h"
}

#define CLOSE        1e-12 /* of the sum */
#define BIASES_A_ROW 300u

/* ---- The device's side --------------------------------------------------------------------------------------- */

struct Device {
    uint32_t outputs_max, vocab, slots_max;
    Array<float> logits;
    Array<qk_seen> history;
    Array<int32_t> slots;
    Array<uint32_t> counts, state;
    Array<qk_output> outputs;
    Array<uint8_t> workspace;
    Array<uint32_t> masks; /* [outputs_max, words] */
    Array<qk_bias> biases; /* [outputs_max, BIASES_A_ROW] */
    qk_output_result *results;
    qk_top *tops;
    uint32_t *status;
    Device(uint32_t outputs_max, uint32_t vocab, uint32_t slots_max)
        : outputs_max(outputs_max), vocab(vocab), slots_max(slots_max), logits((size_t)outputs_max * vocab),
          history((size_t)slots_max * vocab), slots(slots_max), counts(4), state(1), outputs(outputs_max),
          workspace(qkc_sample_bytes(outputs_max, vocab)), masks((size_t)outputs_max * qk_mask_words(vocab)),
          biases((size_t)outputs_max * BIASES_A_ROW)
    {
        CUDA_OK(cudaHostAlloc((void **)&results, (outputs_max + 1) * sizeof(*results), cudaHostAllocMapped));
        CUDA_OK(cudaHostAlloc((void **)&tops, outputs_max * QK_TOP_MAX * sizeof(*tops), cudaHostAllocMapped));
        CUDA_OK(cudaHostAlloc((void **)&status, 16, cudaHostAllocMapped));
        workspace.zero();
        std::fill(slots.host.begin(), slots.host.end(), -1);
        slots.up();
        history.up();
    }
    ~Device()
    {
        cudaFreeHost(results);
        cudaFreeHost(tops);
        cudaFreeHost(status);
    }
    qkc_sample_args args() const
    {
        qkc_plan plan = {};
        plan.counts = counts.dev, plan.outputs = outputs.dev, plan.state = state.dev;
        return {logits.dev, vocab, outputs_max, plan, slots.dev, history.dev, masks.dev, biases.dev, results,
            status, workspace.dev};
    }
    void set_plan(uint32_t n_outputs, qk_status s)
    {
        counts.host = {n_outputs, n_outputs, 0, n_outputs};
        state.host[0] = s;
        counts.up(), outputs.up(), state.up();
        memset(results, 0xff, (outputs_max + 1) * sizeof(*results));
        *status = 0xffffffff;
    }
    void run(const qkc_launch *launch)
    {
        const qkc_sample_args a = args();
        CUDA_OK(qkc_sample(launch, &a));
        CUDA_OK(cudaStreamSynchronize(launch->stream));
    }
    void run_top(const qkc_launch *launch, uint32_t n)
    {
        const qkc_top_args a = {logits.dev, vocab, n, outputs.dev, tops};
        CUDA_OK(qkc_top(launch, &a));
        CUDA_OK(cudaStreamSynchronize(launch->stream));
    }
    /* What the output brings of its own, for the CPU. */
    qk_sample_extras extras(const qk_output &o) const
    {
        qk_sample_extras e = {};
        if (o.slot != QK_NO_SLOT)
            e.history = &history.host[(size_t)o.slot * vocab];
        e.bias = &biases.host[o.bias_begin];
        e.n_bias = o.n_bias;
        if (o.flags & QK_OUTPUT_MASK)
            e.mask = &masks.host[(size_t)o.mask * qk_mask_words(vocab)];
        return e;
    }
};

static qk_output_result sample_on_cpu(
    const float *logits, uint32_t vocab, const qk_sample_extras &extras, const qk_sampling &sampling)
{
    static thread_local std::vector<float> z, weight;
    static thread_local std::vector<uint32_t> id;
    z.resize(vocab), weight.resize(vocab), id.resize(vocab);
    const qk_sample_scratch scratch = {z.data(), weight.data(), id.data()};
    qk_output_result out;
    qk_sample(logits, vocab, &extras, &sampling, &scratch, &out);
    return out;
}

/* Whether the device's alternatives are the CPU's. */
static bool same_tops(const float *logits, uint32_t vocab, uint32_t n, const qk_top *got)
{
    std::vector<float> z(vocab), weight(vocab);
    std::vector<uint32_t> id(vocab);
    const qk_sample_scratch scratch = {z.data(), weight.data(), id.data()};
    qk_top want[QK_TOP_MAX];
    qk_sample_top(logits, vocab, n, &scratch, want);
    bool same = true;
    for (uint32_t i = 0; i < n; i++) {
        const double off = fabs((double)got[i].logprob - (double)want[i].logprob);
        same &= got[i].id == want[i].id;
        same &= isnan(want[i].logprob) ? isnan(got[i].logprob)
                                       : off <= 1e-5 + 1e-6 * fabs((double)want[i].logprob);
    }
    return same;
}

/* ---- What a draw may be -------------------------------------------------------------------------------------- */

/* The sampler's weight of x = (z - max) / temperature: its float32 polynomial, written again. */
static float weight_of(float x)
{
    if (x < -87.0f)
        return 0;
    const int n = (int)(x * 1.44269504f - 0.5f);
    float r = x - (float)n * 0.693145752f;
    r = r - (float)n * 1.42860677e-6f;
    float p = 1.0f / 5040;
    for (float c : {1.0f / 720, 1.0f / 120, 1.0f / 24, 1.0f / 6, 0.5f, 1.0f, 1.0f})
        p = p * r + c;
    return ldexpf(p, n);
}

static float clamp(float v)
{
    return std::max(-3.402823466e38f, std::min(3.402823466e38f, v));
}

static float penalised(float x, qk_seen seen, const qk_sampling &s)
{
    if (seen & QK_SEEN)
        x = clamp(x > 0 ? x / s.repetition_penalty : x * s.repetition_penalty);
    if (seen & QK_SEEN_COUNT) {
        const float all = s.frequency_penalty * (float)(seen & QK_SEEN_COUNT);
        x = clamp(clamp(x - all) - s.presence_penalty);
    }
    return x;
}

/* The row after penalties, bias and mask; minus infinity: no candidate. */
static std::vector<float> adjusted(
    const float *logits, uint32_t vocab, const qk_sample_extras &e, const qk_sampling &s)
{
    std::vector<float> z(logits, logits + vocab);
    for (uint32_t i = 0; e.history != NULL && i < vocab; i++)
        z[i] = penalised(z[i], e.history[i], s);
    for (uint32_t i = 0; i < e.n_bias; i++)
        z[e.bias[i].id] = clamp(z[e.bias[i].id] + e.bias[i].value);
    for (uint32_t i = 0; e.mask != NULL && i < vocab; i++)
        if ((e.mask[i / 32] >> i % 32 & 1) == 0)
            z[i] = -INFINITY;
    return z;
}

/* Whether @token lies within rounding of the draw, from the kept ids (ascending) and their weights. */
static bool near_draw(
    const std::vector<uint32_t> &kept, const std::vector<float> &weight, const qk_sampling &s, uint32_t token)
{
    long double total = 0, sum = 0;
    for (uint32_t id : kept)
        total += weight[id];
    const long double target = qk_philox_uniform(s.seed, s.position) * total, slack = CLOSE * total;
    uint32_t last = 0;
    for (uint32_t id : kept) {
        if (weight[id] == 0)
            continue;
        if (id == token && sum - slack <= target && target <= sum + weight[id] + slack)
            return true;
        sum += weight[id];
        last = id;
    }
    return token == last && target >= sum - slack;
}

/* Whether the token can come out of exact sums that are off by rounding. */
static bool explains(
    const float *logits, uint32_t vocab, const qk_sample_extras &extras, const qk_sampling &s, uint32_t token)
{
    const std::vector<float> z = adjusted(logits, vocab, extras, s);
    std::vector<float> weight(vocab);
    const float max = *std::max_element(z.begin(), z.end());
    const float inverse = 1.0f / s.temperature;
    std::vector<uint32_t> order;
    for (uint32_t i = 0; i < vocab; i++) {
        if (z[i] >= -3.402823466e38f)
            order.push_back(i);
        weight[i] = weight_of((z[i] - max) * inverse);
    }
    std::stable_sort(order.begin(), order.end(), [&](uint32_t a, uint32_t b) { return z[a] > z[b]; });
    if (s.top_k > 0 && s.top_k < order.size())
        order.resize(s.top_k);
    std::vector<size_t> cuts; /* how many stay */
    if (s.top_p < 1) {
        long double total = 0, sum = 0;
        for (uint32_t id : order)
            total += weight[id];
        const long double target = (long double)((double)s.top_p * (double)total), slack = CLOSE * total;
        for (size_t i = 0; i < order.size() && sum < target + slack; i++) {
            sum += weight[order[i]];
            if (sum >= target - slack)
                cuts.push_back(i + 1);
        }
        if (cuts.empty())
            cuts.push_back(order.size());
    } else {
        cuts.push_back(order.size());
    }
    if (cuts.size() > 64)
        cuts = {cuts.front(), cuts.back()};
    for (size_t n : cuts) {
        std::vector<uint32_t> kept(order.begin(), order.begin() + n);
        if (s.min_p > 0)
            kept.erase(
                std::remove_if(kept.begin(), kept.end(), [&](uint32_t id) { return weight[id] < s.min_p; }),
                kept.end());
        std::sort(kept.begin(), kept.end());
        if (near_draw(kept, weight, s, token))
            return true;
    }
    return false;
}

static bool is_greedy(const qk_sampling &s)
{
    return s.temperature < 1e-5f || s.top_p <= 0 || s.top_k == 1;
}

struct Tally {
    uint64_t n = 0, n_sampled = 0, n_explained = 0, n_wrong = 0, n_bad_logprob = 0, n_bad_effect = 0,
             n_bad_tops = 0;
    double worst_logprob = 0;
    void add(const Tally &t)
    {
        n += t.n, n_sampled += t.n_sampled, n_explained += t.n_explained, n_wrong += t.n_wrong;
        n_bad_logprob += t.n_bad_logprob, n_bad_effect += t.n_bad_effect, n_bad_tops += t.n_bad_tops;
        worst_logprob = std::max(worst_logprob, t.worst_logprob);
    }
};

/* The log of a token's probability, in float64. */
static double exact_logprob(const float *logits, uint32_t vocab, uint32_t token)
{
    double max = -INFINITY, sum = 0;
    for (uint32_t i = 0; i < vocab; i++)
        max = std::max(max, (double)logits[i]);
    for (uint32_t i = 0; i < vocab; i++)
        sum += exp(logits[i] - max);
    return logits[token] - max - log(sum);
}

static void compare(Tally *t, const float *logits, uint32_t vocab, const qk_sample_extras &extras,
    const qk_sampling &s, const qk_output_result &cpu, const qk_output_result &gpu)
{
    t->n++;
    t->n_sampled += !is_greedy(s);
    bool wrong = gpu.flags != cpu.flags || gpu.token < 0 || (uint32_t)gpu.token >= vocab;
    if (!wrong && gpu.token != cpu.token) {
        wrong = is_greedy(s) || cpu.flags != 0 || !explains(logits, vocab, extras, s, (uint32_t)cpu.token) ||
                !explains(logits, vocab, extras, s, (uint32_t)gpu.token);
        t->n_explained += !wrong;
    }
    if (!wrong)
        wrong = memcmp(&gpu.logit, &logits[gpu.token], sizeof(float)) != 0;
    if (wrong && t->n_wrong++ < 3)
        printf("# vocab %u, T %g, top_k %u, top_p %.9g, min_p %g, penalties %g %g %g%s, %u biases%s: token "
               "%d flags %u, CPU "
               "%d flags %u\n",
            vocab, (double)s.temperature, s.top_k, (double)s.top_p, (double)s.min_p,
            (double)s.repetition_penalty, (double)s.presence_penalty, (double)s.frequency_penalty,
            extras.history != NULL ? "" : " (none)", extras.n_bias, extras.mask != NULL ? ", a mask" : "",
            gpu.token, gpu.flags, cpu.token, cpu.flags);
    if (wrong)
        return;
    if (cpu.flags != 0) {
        t->n_bad_logprob += !isnan(gpu.logprob);
        return;
    }
    const double ref =
        gpu.token == cpu.token ? cpu.logprob : exact_logprob(logits, vocab, (uint32_t)gpu.token);
    const double off = fabs(gpu.logprob - ref);
    t->worst_logprob = std::max(t->worst_logprob, fabs(ref) < 100 ? off : 0);
    t->n_bad_logprob += !(off <= 1e-5 + 1e-6 * fabs(ref));
}

/* ---- Random scenes ------------------------------------------------------------------------------------------- */

enum { NORMAL, PEAKED, TIES, FLAT, ONE_HOT, WIDE, HUGE_VALUES, TINY_VALUES, AROUND_ZERO, BF16, N_KINDS };

static void fill_row(Random &random, float *row, uint32_t vocab, uint32_t kind)
{
    static const float sigmas[] = {0.5f, 1, 1, 3, 8};
    const float sigma = sigmas[random.below(5)];
    for (uint32_t i = 0; i < vocab; i++) {
        const float g = random.normal();
        switch (kind) {
        case NORMAL:
            row[i] = g * sigma;
            break;
        case PEAKED:
            row[i] = g * 3 + (random.below(vocab / 20 + 1) == 0 ? 12 + 4 * g : 0);
            break;
        case TIES:
            row[i] = floorf(g * sigma * 2) * 0.5f;
            break;
        case FLAT:
            row[i] = 1.5f;
            break;
        case ONE_HOT:
            row[i] = 0;
            break;
        case WIDE:
            row[i] = g * 60;
            break;
        case HUGE_VALUES:
            row[i] = g * 1e37f;
            break;
        case TINY_VALUES:
            row[i] = g * 1e-39f;
            break;
        case AROUND_ZERO:
            row[i] = random.below(4) == 0 ? g * 1e-3f : random.below(2) == 0 ? -0.0f : 0.0f;
            break;
        default:
            row[i] = __bfloat162float(__float2bfloat16(g * sigma));
            break;
        }
    }
    if (kind == ONE_HOT)
        row[random.below(vocab)] = 300;
    if (kind == FLAT && vocab > 3 && random.below(2) == 0)
        row[random.below(vocab)] = 1.75f;
    if (random.below(12) == 0) { /* what is not finite */
        static const float bad[] = {NAN, INFINITY, -INFINITY};
        for (uint32_t n = 1 + random.below(3); n > 0; n--)
            row[random.below(vocab)] = bad[random.below(3)];
        if (random.below(4) == 0)
            std::fill(row, row + vocab, random.below(2) ? NAN : -INFINITY);
    }
}

static qk_sampling random_sampling(Random &random, uint32_t vocab)
{
    static const float temperatures[] = {0, 0.9e-5f, 1e-5f, 0.05f, 0.3f, 0.6f, 0.7f, 1, 1, 1.5f, 4, 1000};
    static const float top_ps[] = {1, 1, 0.9f, 0.9f, 0.95f, 0.5f, 0.999f, 0.99999994f, 0.01f, 1e-7f, 0};
    static const uint32_t top_ks[] = {0, 0, 0, 1, 2, 20, 50, 256, 257, 1000, 30000, 1u << 31};
    static const float min_ps[] = {0, 0, 0, 0, 0.05f, 0.3f, 1e-6f, 1};
    qk_sampling s = {};
    s.seed = (uint64_t)random.next() << 32 | random.next();
    s.position = random.below(2) ? random.below(40000) : (uint64_t)random.next() << 32 | random.next();
    s.temperature = temperatures[random.below(12)];
    s.top_p = top_ps[random.below(11)];
    s.top_k = random.below(12) == 0 ? random.below(vocab + 2) : top_ks[random.below(12)];
    s.min_p = min_ps[random.below(8)];
    s.repetition_penalty = random.below(2) ? 1 : random.below(2) ? 1.1f : 0.8f;
    s.presence_penalty = random.below(2) ? 0 : random.below(2) ? 1.5f : -0.5f;
    s.frequency_penalty = random.below(2) ? 0 : random.below(2) ? 0.3f : -0.1f;
    return s;
}

/* A mask, a bias list and alternatives for output @i, each for some. */
static void add_extras(Random &random, Device &d, uint32_t i)
{
    qk_output &o = d.outputs.host[i];
    const uint32_t words = qk_mask_words(d.vocab);
    if ((o.flags & QK_OUTPUT_SAMPLE) == 0)
        return;
    o.n_top = random.below(3) == 0 ? 1 + random.below(std::min(d.vocab, QK_TOP_MAX)) : 0;
    if (random.below(3) == 0) {
        uint32_t *mask = &d.masks.host[(size_t)i * words];
        const uint32_t kind = random.below(3); /* half of all, few, one */
        for (uint32_t k = 0; k < words; k++)
            mask[k] = kind == 0 ? random.next() : kind == 1 && random.below(50) == 0 ? random.next() : 0;
        const uint32_t id = random.below(d.vocab);
        mask[id / 32] |= 1u << id % 32;
        o.flags |= QK_OUTPUT_MASK;
        o.mask = i;
    }
    if (random.below(3) == 0) {
        const uint32_t step = 1 + random.below(d.vocab / 64 + 1);
        o.bias_begin = i * BIASES_A_ROW;
        for (uint32_t id = random.below(step); id < d.vocab && o.n_bias < BIASES_A_ROW;
             id += 1 + random.below(2 * step))
            d.biases.host[o.bias_begin + o.n_bias++] = {id, random.normal() * 5};
    }
}

/* One set of logits, many launches on it; history and slots go on from launch to launch. */
static Tally run_scene(const qkc_launch *paths, int n_paths, uint32_t vocab, uint32_t outputs_max,
    uint32_t n_launches, uint64_t seed)
{
    Random random(seed);
    const uint32_t slots_max = outputs_max + 3;
    Device d(outputs_max, vocab, slots_max);
    in_parallel(outputs_max, [&](uint32_t i) {
        Random r(seed * 1000 + i);
        fill_row(r, &d.logits.host[(size_t)i * vocab], vocab,
            r.below(3) == 0 ? (uint32_t)NORMAL : r.below(N_KINDS));
    });
    for (uint32_t slot = 0; slot < slots_max; slot++) {
        const uint32_t n = random.below(3) == 0 ? 0 : random.below(vocab / 2 + 2);
        for (uint32_t i = 0; i < n; i++)
            d.history.host[(size_t)slot * vocab + random.below(vocab)] =
                (qk_seen)(QK_SEEN | (random.below(2) ? 0u : 1 + random.below(40)));
    }
    d.logits.up(), d.history.up();
    Tally all;
    for (uint32_t l = 0; l < n_launches; l++) {
        const uint32_t n = random.below(3) == 0 ? 1 + random.below(outputs_max) : outputs_max;
        const uint32_t shift = random.below(slots_max);
        for (uint32_t i = 0; i < n; i++) {
            qk_output &o = d.outputs.host[i];
            o = {};
            o.row = i;
            o.flags = random.below(2) != 0 ? QK_OUTPUT_SAMPLE | QK_OUTPUT_LOGITS : QK_OUTPUT_SAMPLE;
            if (random.below(40) == 0)
                o.flags = QK_OUTPUT_LOGITS;
            o.slot = random.below(4) == 0 ? QK_NO_SLOT : (i + shift) % slots_max;
            o.sampling = random_sampling(random, vocab);
            add_extras(random, d, i);
        }
        d.masks.up(), d.biases.up();
        d.set_plan(n, QK_OK);
        d.run(&paths[l % n_paths]);
        d.run_top(&paths[l % n_paths], n);
        std::vector<Tally> tally(n);
        in_parallel(n, [&](uint32_t i) {
            const qk_output &o = d.outputs.host[i];
            const qk_output_result &gpu = d.results[i];
            if (!(o.flags & QK_OUTPUT_SAMPLE)) {
                tally[i].n_bad_effect += gpu.token != -1 || gpu.flags != 0;
                return;
            }
            const float *logits = &d.logits.host[(size_t)i * vocab];
            const qk_sample_extras extras = d.extras(o);
            compare(&tally[i], logits, vocab, extras, o.sampling,
                sample_on_cpu(logits, vocab, extras, o.sampling), gpu);
            tally[i].n_bad_tops += !same_tops(logits, vocab, o.n_top, d.tops + (size_t)i * QK_TOP_MAX);
            if (o.slot != QK_NO_SLOT && gpu.token >= 0 && (uint32_t)gpu.token < vocab) {
                qk_seen &seen = d.history.host[(size_t)o.slot * vocab + (uint32_t)gpu.token];
                seen = qk_seen_add(seen, true);
                d.slots.host[o.slot] = gpu.token;
            }
        });
        for (const Tally &t : tally)
            all.add(t);
        std::vector<int32_t> slots = d.slots.host;
        d.slots.down();
        all.n_bad_effect += slots != d.slots.host || *d.status != QK_OK || d.results[n].token != -1 ||
                            d.results[n].flags != 0xffffffff;
    }
    const std::vector<qk_seen> history = d.history.host;
    d.history.down();
    all.n_bad_effect += history != d.history.host;
    return all;
}

static void test_draws(const qkc_launch *paths, int n_paths)
{
    static const struct {
        uint32_t vocab, outputs_max, n_launches, n_scenes;
    } scenes[] = {
        {1, 3, 20, 1},
        {2, 40, 40, 2},
        {7, 64, 60, 3},
        {255, 64, 100, 3},
        {257, 64, 100, 3},
        {1000, 100, 100, 3},
        {2049, 9, 200, 4},
        {5003, 64, 60, 3},
        {20000, 300, 10, 1},
        {32000, 64, 50, 3},
        {151936, 1, 300, 4},
        {151936, 5, 120, 3},
        {151936, 64, 60, 3},
        {151937, 33, 20, 1},
    };
    Tally all;
    uint64_t seed = 1;
    for (const auto &c : scenes) {
        Tally t;
        for (uint32_t i = 0; i < c.n_scenes; i++)
            t.add(run_scene(paths, n_paths, c.vocab, c.outputs_max, c.n_launches, seed++));
        tap_ok(t.n_wrong == 0 && t.n_bad_logprob == 0 && t.n_bad_effect == 0 && t.n_bad_tops == 0,
            "vocabulary %u, up to %u outputs: %llu tokens, %llu wrong, %llu within rounding, %llu logprobs "
            "off (worst %.1e), "
            "%llu effects off, %llu lists of alternatives off",
            c.vocab, c.outputs_max, (unsigned long long)t.n, (unsigned long long)t.n_wrong,
            (unsigned long long)t.n_explained, (unsigned long long)t.n_bad_logprob, t.worst_logprob,
            (unsigned long long)t.n_bad_effect, (unsigned long long)t.n_bad_tops);
        all.add(t);
    }
    tap_ok(all.n_wrong == 0 && all.n >= 70000 && all.n_explained * 1000 <= all.n,
        "all: %llu tokens, %llu drawn, %llu differ within rounding, %llu wrong", (unsigned long long)all.n,
        (unsigned long long)all.n_sampled, (unsigned long long)all.n_explained,
        (unsigned long long)all.n_wrong);
}

/* Many seeds on few rows at the full vocabulary, at the settings that people use. */
static void test_usual(const qkc_launch *paths, int n_paths)
{
    const uint32_t vocab = 151936, n = 64, n_launches = 480;
    static const struct {
        float temperature, top_p, min_p;
        uint32_t top_k;
    } settings[] = {{0.3f, 0.9f, 0, 0}, {0.6f, 0.95f, 0, 20}, {0.7f, 0.8f, 0, 20}, {1, 1, 0, 0},
        {1, 1, 0, 50}, {1, 0.9f, 0, 0}, {0.8f, 1, 0.05f, 0}, {1.3f, 0.97f, 0.02f, 200}};
    Device d(n, vocab, 1);
    in_parallel(n, [&](uint32_t i) {
        Random r(777 + i);
        fill_row(r, &d.logits.host[(size_t)i * vocab], vocab, i % 2 ? (uint32_t)PEAKED : (uint32_t)NORMAL);
    });
    d.logits.up();
    Tally all;
    for (uint32_t l = 0; l < n_launches; l++) {
        for (uint32_t i = 0; i < n; i++) {
            const auto &c = settings[(i / 2 + l) % 8];
            qk_output &o = d.outputs.host[i];
            o = {i, QK_OUTPUT_SAMPLE, QK_NO_SLOT};
            o.sampling = {i + 5, l, c.temperature, c.top_p, c.min_p, 1, 0, 0, c.top_k};
        }
        d.set_plan(n, QK_OK);
        d.run(&paths[l % n_paths]);
        std::vector<Tally> tally(n);
        in_parallel(n, [&](uint32_t i) {
            const float *logits = &d.logits.host[(size_t)i * vocab];
            const qk_sampling &s = d.outputs.host[i].sampling;
            compare(&tally[i], logits, vocab, {}, s, sample_on_cpu(logits, vocab, {}, s), d.results[i]);
        });
        for (const Tally &t : tally)
            all.add(t);
    }
    tap_ok(all.n_wrong == 0 && all.n_bad_logprob == 0 && all.n_explained * 1000 <= all.n,
        "usual settings: %llu tokens, %llu wrong, %llu within rounding, %llu logprobs off (worst %.1e)",
        (unsigned long long)all.n, (unsigned long long)all.n_wrong, (unsigned long long)all.n_explained,
        (unsigned long long)all.n_bad_logprob, all.worst_logprob);
}

/* ---- States, repetition, capture ----------------------------------------------------------------------------- */

static void fill_normal(Device &d, uint64_t seed)
{
    in_parallel(d.outputs_max, [&](uint32_t i) {
        Random r(seed + i);
        for (uint32_t j = 0; j < d.vocab; j++)
            d.logits.host[(size_t)i * d.vocab + j] = r.normal();
    });
    d.logits.up();
    for (uint32_t i = 0; i < d.outputs_max; i++) {
        d.outputs.host[i] = {i, QK_OUTPUT_SAMPLE, i < d.slots_max ? i : QK_NO_SLOT};
        d.outputs.host[i].sampling = {
            seed + i, 17, 1, i % 3 == 0 ? 1 : 0.9f, 0, 1, 0, 0, i % 4 == 0 ? 50u : 0u};
        if (i % 5 == 4)
            d.outputs.host[i].sampling.temperature = 0;
    }
}

static void test_states(const qkc_launch *launch)
{
    Device d(6, 5000, 6);
    fill_normal(d, 5);
    const qk_status states[] = {QK_CANCELLED, QK_INVALID};
    for (qk_status s : states) {
        d.set_plan(6, s);
        d.run(launch);
        std::vector<int32_t> slots = d.slots.host;
        std::vector<qk_seen> history = d.history.host;
        d.slots.down(), d.history.down();
        tap_ok(*d.status == (uint32_t)s && slots == d.slots.host && history == d.history.host,
            "%s, %s: the status arrives, slots and history stay", gpu_path_name(launch),
            s == QK_INVALID ? "invalid" : "cancelled");
    }
    d.set_plan(0, QK_OK);
    d.run(launch);
    tap_ok(*d.status == QK_OK && d.results[0].flags == 0xffffffff, "%s: no outputs, the status arrives",
        gpu_path_name(launch));
    d.set_plan(6, QK_OK);
    d.run(launch);
    tap_ok(
        *d.status == QK_OK && d.results[5].token >= 0, "%s: and the next step draws", gpu_path_name(launch));
}

/* The same bits in every run, and from one captured graph whatever the plan's count is. */
static void test_repeats(const qkc_launch *launch, uint32_t vocab, uint32_t n)
{
    Device d(n, vocab, 1);
    fill_normal(d, 11);
    d.outputs.host[0].slot = QK_NO_SLOT;
    std::vector<qk_output_result> first;
    bool same = true;
    for (int run = 0; run < 20; run++) {
        d.set_plan(n, QK_OK);
        d.run(launch);
        std::vector<qk_output_result> now(d.results, d.results + n);
        if (run == 0)
            first = now;
        same &= memcmp(now.data(), first.data(), n * sizeof(now[0])) == 0;
    }
    tap_ok(same, "%s: vocabulary %u, %u outputs, the same bits in 20 runs", gpu_path_name(launch), vocab, n);

    const qkc_sample_args a = d.args();
    const cudaGraphExec_t exec = gpu_capture(launch->stream, [&] { CUDA_OK(qkc_sample(launch, &a)); });
    bool good = true;
    for (uint32_t m : {n, 1u, 0u, (n + 1) / 2, n}) {
        d.set_plan(m, QK_OK);
        CUDA_OK(cudaGraphLaunch(exec, launch->stream));
        CUDA_OK(cudaStreamSynchronize(launch->stream));
        good &= *d.status == QK_OK && d.results[m].flags == 0xffffffff;
        for (uint32_t i = 0; i < m; i++)
            good &= d.results[i].token == first[i].token;
    }
    cudaGraphExecDestroy(exec);
    tap_ok(good, "%s: one graph for any number of outputs", gpu_path_name(launch));
}

/* ---- Times --------------------------------------------------------------------------------------------------- */

static double chain_time(const qkc_launch *launch, const Device &d)
{
    const int n_chain = 20;
    const qkc_sample_args a = d.args();
    const cudaGraphExec_t exec = gpu_capture(launch->stream, [&] {
        for (int i = 0; i < n_chain; i++)
            CUDA_OK(qkc_sample(launch, &a));
    });
    const double ms =
        gpu_time(launch->stream, 15, [&](int) { CUDA_OK(cudaGraphLaunch(exec, launch->stream)); });
    cudaGraphExecDestroy(exec);
    return ms / n_chain;
}

static void bench(const qkc_launch *launch)
{
    const uint32_t vocab = 151936;
    static const struct {
        const char *name;
        float temperature, top_p;
        uint32_t top_k;
    } settings[] = {{"greedy", 0, 1, 0}, {"T 0.3 top_p 0.9", 0.3f, 0.9f, 0}, {"T 1 top_k 50", 1, 1, 50},
        {"T 1", 1, 1, 0}, {"T 1 top_p 0.9", 1, 0.9f, 0}, {"T 0.6 top_p .95 top_k 20", 0.6f, 0.95f, 20}};
    for (uint32_t kind : {(uint32_t)NORMAL, (uint32_t)PEAKED}) {
        for (uint32_t n : {1u, 16u, 64u}) {
            Device d(n, vocab, 1);
            in_parallel(n, [&](uint32_t i) {
                Random r(i + 1);
                for (uint32_t j = 0; j < vocab; j++)
                    d.logits.host[(size_t)i * vocab + j] = kind == NORMAL || r.below(5000)
                                                               ? r.normal() * (kind == NORMAL ? 1 : 2.5f)
                                                               : 12 + 3 * r.normal();
            });
            d.logits.up();
            for (const auto &c : settings) {
                for (uint32_t i = 0; i < n; i++) {
                    d.outputs.host[i] = {i, QK_OUTPUT_SAMPLE, QK_NO_SLOT};
                    d.outputs.host[i].sampling = {i, 3, c.temperature, c.top_p, 0, 1, 0, 0, c.top_k};
                }
                d.set_plan(n, QK_OK);
                printf("sample %-8s %-6s %2u outputs  %-26s %7.2f us\n", gpu_path_name(launch),
                    kind == NORMAL ? "normal" : "peaked", n, c.name, chain_time(launch, d) * 1e3);
                for (uint32_t i = 0; i < n; i++) {
                    qk_output &o = d.outputs.host[i];
                    o.flags |= QK_OUTPUT_MASK, o.mask = i, o.n_top = QK_TOP_MAX;
                    o.bias_begin = i * BIASES_A_ROW, o.n_bias = BIASES_A_ROW;
                    for (uint32_t k = 0; k < BIASES_A_ROW; k++)
                        d.biases.host[o.bias_begin + k] = {k * 500, 1.0f};
                }
                std::fill(d.masks.host.begin(), d.masks.host.end(), 0x77777777u);
                d.masks.up(), d.biases.up();
                d.set_plan(n, QK_OK);
                printf("sample %-8s %-6s %2u outputs  %-26s %7.2f us with a mask and 300 biases\n",
                    gpu_path_name(launch), kind == NORMAL ? "normal" : "peaked", n, c.name,
                    chain_time(launch, d) * 1e3);
            }
            const qkc_top_args a = {d.logits.dev, vocab, n, d.outputs.dev, d.tops};
            printf("top    %-8s %-6s %2u outputs  %-26s %7.2f us\n", gpu_path_name(launch),
                kind == NORMAL ? "normal" : "peaked", n, "20 alternatives",
                gpu_time(launch->stream, 50, [&](int) { CUDA_OK(qkc_top(launch, &a)); }) * 1e3);
        }
    }
}

int main(int argc, char **argv)
{
    gpu_require();
    qkc_launch paths[2];
    const int n_paths = gpu_paths(paths);
    CUDA_OK(qkc_sample_init());
    if (argc > 1 && strcmp(argv[1], "--bench") == 0) {
        for (int i = 0; i < n_paths; i++)
            bench(&paths[i]);
        return 0;
    }
    for (int i = 0; i < n_paths; i++) {
        test_states(&paths[i]);
        test_repeats(&paths[i], 151936, 1);
        test_repeats(&paths[i], 151936, 16);
        test_repeats(&paths[i], 3001, 150);
    }
    test_draws(paths, n_paths);
    test_usual(paths, n_paths);
    return tap_done();
}
