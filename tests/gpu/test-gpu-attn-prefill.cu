/* test-gpu-attn-prefill.cu: attention of prompt rows as a step calls it: cutting into tiles (host code, checked without a
 * device), the portable kernel in both forms, the Hopper kernel, merging.
 *
 * Every case is a ragged plan over pages in random order, in a pool whose memory is NaN wherever no token lies, compared
 * with a float64 reference; repeated; and its sequences run alone, which must give the same bits. The random inputs make
 * attention matter: every head of a row looks for its own key and for one of the sequence's middle page. So page mutations
 * must show, and are checked to.
 * `--bench`: TFLOP/s at the reference shape. */
#include "tests/gpu/gpu-test.h"
#include <functional>
#include <memory>
#include <string>
#include <thread>

#define TOLERANCE 4e-3

typedef struct {
    uint32_t start, n_rows;
} seq_spec;

typedef struct {
    uint32_t n_heads, n_kv_heads, head_dim;
} shape_spec;

/* ---- Cutting, without a device ------------------------------------------------------------------------------- */

struct Cut {
    std::vector<qk_seq> seqs;
    std::vector<qkc_tile> tiles, merges;
    qkc_tiling tiling;
    uint32_t n_rows = 0, part_rows_max;
    Cut(const std::vector<seq_spec> &specs, shape_spec shape, bool hopper, int n_sms, uint32_t part_rows)
        : part_rows_max(part_rows)
    {
        uint32_t n_pages = 0;
        for (const seq_spec &s : specs) {
            qk_seq e = {};
            e.row_begin = n_rows;
            e.n_rows = s.n_rows;
            e.start = s.start;
            e.page_begin = n_pages;
            e.n_pages = (s.start + s.n_rows + QK_PAGE_TOKENS - 1) / QK_PAGE_TOKENS;
            n_pages += e.n_pages;
            n_rows += s.n_rows;
            seqs.push_back(e);
        }
        qk_plan plan = {};
        plan.n_rows = n_rows;
        plan.n_seqs = (uint32_t)seqs.size();
        plan.n_pages = n_pages;
        plan.seqs = seqs.data();
        const uint32_t room = qkc_tiles_max(n_rows, plan.n_seqs, shape.n_heads, shape.n_kv_heads);
        tiles.resize(room + 1);
        merges.resize(room + 1);
        tiles[room].seq = merges[room].seq = 12345;
        memset(&tiling, 0xff, sizeof(tiling));
        qkc_cut_tiles(&plan, shape.n_heads, shape.n_kv_heads, shape.head_dim, hopper, n_sms, part_rows,
            tiles.data(), merges.data(), &tiling);
        tap_require(tiling.n_tiles <= room && tiling.n_merges <= room);
        tap_require(tiles[room].seq == 12345 && merges[room].seq == 12345);
        tiles.resize(tiling.n_tiles);
        merges.resize(tiling.n_merges);
    }
    /* Tiles with half their rows or less take half the time for a key. */
    static uint64_t duration(const qkc_tile &t, uint32_t tile_rows)
    {
        return (uint64_t)(t.key_end - t.key_begin) * (2 * t.n_rows <= tile_rows ? 1 : 2);
    }
    /* What is wrong with it, or NULL. */
    const char *fault(uint32_t tile_rows) const
    {
        /* keys_done[row]: how far the row's keys are covered by the parts seen so far; parts of a tile are looked at in
         * position order. */
        std::vector<uint32_t> keys_done(n_rows, 0), n_parts(n_rows, 0), merged(n_rows, 0);
        std::vector<std::vector<uint32_t>> round_of(tiling.n_rounds);
        uint32_t n_tiles = 0, n_merges = 0, most = 0;
        if (tiling.n_rounds > QKC_ROUNDS_MAX)
            return "rounds";
        for (uint32_t i = 0; i < tiling.n_rounds; i++) {
            const qkc_round &round = tiling.rounds[i];
            if (round.tile != n_tiles || round.merge != n_merges || round.n_tiles == 0)
                return "rounds do not follow one another";
            n_tiles += round.n_tiles;
            n_merges += round.n_merges;
            if (n_tiles > tiles.size() || n_merges > merges.size())
                return "a round ends past the tiles";
            std::vector<uint8_t> used(part_rows_max, 0);
            std::vector<qkc_tile> sorted(tiles.begin() + round.tile, tiles.begin() + n_tiles);
            for (size_t t = 1; t < sorted.size(); t++)
                if (duration(sorted[t], tile_rows) > duration(sorted[t - 1], tile_rows))
                    return "not the longest first";
            std::sort(sorted.begin(), sorted.end(),
                [](const qkc_tile &a, const qkc_tile &b) { return a.key_begin < b.key_begin; });
            for (const qkc_tile &t : sorted) {
                const qk_seq &seq = seqs[t.seq];
                if (t.n_rows == 0 || t.n_rows > tile_rows || t.row < seq.row_begin ||
                    t.row + t.n_rows > seq.row_begin + seq.n_rows)
                    return "a tile's rows";
                const uint32_t last = seq.start + (t.row + t.n_rows - 1 - seq.row_begin);
                if (t.key_begin >= t.key_end || t.key_end > last + 1 || t.key_begin % QK_SPAN_TOKENS != 0 ||
                    t.part >= t.n_parts || t.n_parts > QKC_PARTS_MAX)
                    return "a tile's keys";
                for (uint32_t r = t.row; r < t.row + t.n_rows; r++) {
                    if (keys_done[r] != t.key_begin || n_parts[r] != t.part)
                        return "a row's keys have a gap, or overlap";
                    keys_done[r] = t.key_end;
                    n_parts[r]++;
                }
                for (uint32_t r = 0; r < t.n_rows && t.n_parts > 1; r++) {
                    if (t.part_slot + r >= part_rows_max)
                        return "a part is past the workspace";
                    if (used[t.part_slot + r]++)
                        return "parts overlap";
                    most = std::max(most, t.part_slot + r + 1);
                }
            }
            for (uint32_t m = round.merge; m < n_merges; m++) {
                uint32_t found = 0;
                for (const qkc_tile &t : sorted)
                    found += t.row == merges[m].row && t.n_rows == merges[m].n_rows &&
                             t.n_parts == merges[m].n_parts &&
                             t.part_slot == merges[m].part_slot + t.part * t.n_rows;
                if (found != merges[m].n_parts || found < 2)
                    return "a merge without its parts";
                for (uint32_t r = 0; r < merges[m].n_rows; r++)
                    merged[merges[m].row + r]++;
            }
        }
        if (n_tiles != tiles.size() || n_merges != merges.size() || tiling.n_part_rows < most ||
            tiling.n_part_rows > part_rows_max)
            return "counts";
        for (const qk_seq &seq : seqs)
            for (uint32_t r = 0; r < seq.n_rows; r++) {
                const uint32_t row = seq.row_begin + r;
                if (keys_done[row] < seq.start + r + 1)
                    return "a row misses keys";
                if (merged[row] != (n_parts[row] > 1))
                    return "a row is not merged once";
            }
        return NULL;
    }
    /* Whether qkc_cut_sequence_tiles() cuts sequence @seq as it is cut here. */
    bool same_alone(uint32_t seq, shape_spec shape, bool hopper, int n_sms) const
    {
        qk_plan plan = {};
        plan.n_seqs = (uint32_t)seqs.size();
        plan.seqs = (qk_seq *)seqs.data();
        const uint32_t room = qkc_tiles_max(n_rows, plan.n_seqs, shape.n_heads, shape.n_kv_heads);
        Cut other = *this;
        other.tiles.assign(room, qkc_tile());
        other.merges.assign(room, qkc_tile());
        qkc_round round = {1, 0, 2, 0};
        const uint32_t n_parts = qkc_cut_sequence_tiles(&plan, seq, shape.n_heads, shape.n_kv_heads,
            shape.head_dim, hopper, n_sms, part_rows_max, other.tiles.data(), other.merges.data(), &round);
        other.tiles = {other.tiles.begin() + 1, other.tiles.begin() + 1 + round.n_tiles};
        /* Ends of ranges that lie on a part's begin, and that do not. */
        const uint32_t n_keys = seqs[seq].start + seqs[seq].n_rows;
        for (uint32_t end = QK_SPAN_TOKENS; end < n_keys; end += 5 * QK_SPAN_TOKENS) {
            uint32_t owner = 0; /* where the part with the range's last key begins */
            bool at_begin = false;
            for (const qkc_tile &t : other.tiles) {
                at_begin = at_begin || t.key_begin == end;
                owner = t.key_begin < end ? std::max(owner, t.key_begin) : owner;
            }
            const uint32_t cut_at = qkc_range_cut(n_keys, n_parts, 0, end);
            if (cut_at != 0 && (at_begin || cut_at != owner))
                return false;
        }
        return other.cuts(seq) == cuts(seq);
    }
    /* Where the keys of sequence @seq are cut. */
    std::vector<uint32_t> cuts(uint32_t seq) const
    {
        std::vector<uint32_t> out;
        for (const qkc_tile &t : tiles)
            if (t.seq == seq)
                for (uint32_t x : {t.row - seqs[seq].row_begin, t.n_rows, t.key_begin, t.key_end})
                    out.push_back(x);
        /* As a set: the order among other tiles is no matter. */
        std::vector<std::vector<uint32_t>> sets;
        for (size_t i = 0; i < out.size(); i += 4)
            sets.push_back({out[i], out[i + 1], out[i + 2], out[i + 3]});
        std::sort(sets.begin(), sets.end());
        out.clear();
        for (auto &s : sets)
            out.insert(out.end(), s.begin(), s.end());
        return out;
    }
};

static uint32_t tile_rows_of(shape_spec s, bool hopper)
{
    if (hopper && qkc_attend_prefill_hopper_runs(s.n_heads, s.n_kv_heads, s.head_dim))
        return qkc_attend_prefill_hopper_tile_rows(s.n_heads, s.n_kv_heads, s.head_dim);
    return 128 / (s.n_heads / s.n_kv_heads);
}

static void test_random_cuts(void)
{
    Random random(11);
    const char *fault = NULL;
    uint32_t n = 0, n_split = 0, n_rounds = 0;
    bool alone = true;
    for (uint32_t i = 0; i < 600 && !fault; i++, n++) {
        const uint32_t n_qs[] = {1, 2, 3, 4, 5, 6, 7, 8};
        const uint32_t n_kv_heads = 1 + random.below(8);
        const shape_spec shape = {
            n_kv_heads * n_qs[random.below(8)], n_kv_heads, random.below(2) ? 128u : 64u};
        const bool hopper = random.below(2);
        const int n_sms = random.below(4) == 0 ? 1 + (int)random.below(8) : 60 + (int)random.below(100);
        std::vector<seq_spec> specs;
        uint32_t n_rows = 0;
        for (uint32_t s = 1 + random.below(20); s > 0; s--) {
            const uint32_t starts[] = {
                0, 1, 15, 16, 255, 256, 257, random.below(2000), random.below(40000), random.below(40000)};
            const uint32_t rows[] = {1, 1, 16, 31, 128, 1 + random.below(64), 1 + random.below(700)};
            specs.push_back({starts[random.below(10)], rows[random.below(7)]});
            n_rows += specs.back().n_rows;
        }
        const uint32_t limits[] = {
            0, 1 + random.below(300), n_rows, qkc_part_rows_max(n_rows), qkc_part_rows_max(n_rows)};
        const uint32_t part_rows_max = limits[random.below(5)];
        const Cut cut(specs, shape, hopper, n_sms, part_rows_max);
        fault = cut.fault(tile_rows_of(shape, hopper));
        n_split += cut.tiling.n_merges > 0;
        n_rounds += cut.tiling.n_rounds > 1;
        if (part_rows_max >= n_rows)
            for (uint32_t s = 0; s < specs.size(); s++) {
                alone = alone && Cut({specs[s]}, shape, hopper, n_sms, part_rows_max).cuts(0) == cut.cuts(s);
                alone = alone && cut.same_alone(s, shape, hopper, n_sms);
            }
    }
    tap_ok(
        fault == NULL, "random plans are covered by their tiles%s%s", fault ? ": " : "", fault ? fault : "");
    tap_ok(n_split > 100 && n_rounds > 20, "of %u random plans %u have parts, %u more than one round", n,
        n_split, n_rounds);
    tap_ok(alone, "where a sequence is cut does not depend on the others");
}

static void test_known_cuts(void)
{
    const shape_spec shape = {32, 8, 128};
    for (int hopper = 0; hopper < 2; hopper++) {
        const uint32_t n_slots = hopper ? 132 : 264;
        const Cut warm({{16384, 128}}, shape, hopper, 132, 2048);
        const uint32_t n_blocks = (uint32_t)warm.tiles.size() * 8;
        tap_ok(n_blocks > n_slots * 9 / 10 && n_blocks <= n_slots && !warm.fault(32),
            "128 rows on 16K: %u blocks for %u places", n_blocks, n_slots);
        /* The row too much must not cost a fourth of the time, as a fifth tile like the others would. */
        const Cut odd({{16384, 129}}, shape, hopper, 132, 2048);
        std::vector<uint64_t> ends(n_slots, 0);
        uint64_t work = 0;
        for (const qkc_tile &t : odd.tiles)
            for (uint32_t h = 0; h < 8; h++) {
                auto first = std::min_element(ends.begin(), ends.end());
                *first += Cut::duration(t, 32);
                work += Cut::duration(t, 32);
            }
        const double least = (double)work / n_slots, is = (double)*std::max_element(ends.begin(), ends.end());
        tap_ok(is < 1.15 * least && !odd.fault(32),
            "129 rows on 16K: %zu blocks end after %.2f of the least time", odd.tiles.size() * 8, is / least);
        const Cut chunk({{30720, 2048}}, shape, hopper, 132, 2048);
        tap_ok(chunk.tiling.n_merges == 0 && chunk.tiles.size() == 64, "2048 rows on 30K are not cut");
        const Cut first({{0, 20}}, shape, hopper, 132, 2048);
        tap_ok(first.tiles.size() == 1 && first.tiling.n_rounds == 1, "20 rows on nothing are one tile");
        const Cut row({{32767, 1}}, shape, hopper, 132, 2048);
        tap_ok(row.tiles.size() > 8 && !row.fault(32), "1 row on 32K: %zu parts", row.tiles.size());
    }
    const Cut none({}, shape, false, 132, 2048);
    tap_ok(none.tiling.n_tiles == 0 && none.tiling.n_rounds == 0, "an empty plan has no tiles");
    std::vector<seq_spec> many(64, seq_spec{8000, 32});
    const Cut rounds(many, shape, true, 132, qkc_part_rows_max(2048));
    const char *fault = rounds.fault(32);
    tap_ok(!fault && rounds.tiling.n_rounds > 1, "64 sequences of 32 rows on 8000: %u rounds%s%s",
        rounds.tiling.n_rounds, fault ? ": " : "", fault ? fault : "");
}

/* ---- A plan, its cache and its result on the device ---------------------------------------------------------- */

static void in_threads(uint32_t n, std::function<void(uint32_t)> work)
{
    std::vector<std::thread> threads;
    const uint32_t n_threads = std::max(1u, std::min(n, std::thread::hardware_concurrency()));
    for (uint32_t t = 0; t < n_threads; t++)
        threads.emplace_back([=]() {
            for (uint32_t i = t; i < n; i += n_threads)
                work(i);
        });
    for (auto &t : threads)
        t.join();
}

#define N_LAYERS 2u
#define LAYER    1u /* the one attended to; the other's memory stays NaN */

struct World {
    shape_spec shape;
    std::vector<seq_spec> specs;
    qk_kv_layout layout = {};
    uint32_t n_rows = 0, n_q, q_dim;
    std::vector<qk_seq> seqs;
    std::vector<uint32_t> page_at; /* [n_pages of the plan]: index into the pool */
    std::vector<uint32_t> rank;    /* of key r of a sequence, see middle() */
    uint32_t n_pool;
    Array<qkc_bf16> q, pool;
    std::vector<double> reference; /* [n_rows, q_dim] */

    static uint32_t count_rows(const std::vector<seq_spec> &specs)
    {
        uint32_t n = 0;
        for (const seq_spec &s : specs)
            n += s.n_rows;
        return n;
    }
    static uint32_t count_pages(const std::vector<seq_spec> &specs)
    {
        uint32_t n = 0;
        for (const seq_spec &s : specs)
            n += (s.start + s.n_rows + QK_PAGE_TOKENS - 1) / QK_PAGE_TOKENS;
        return n;
    }
    /* Rows have gaps: kernels may assume nothing but the strides. */
    static qk_kv_layout make_layout(shape_spec s)
    {
        qk_kv_layout l = {};
        l.dtype = QK_BF16;
        l.token_stride = s.head_dim * 2 + 16;
        l.v_offset = QK_PAGE_TOKENS * l.token_stride + 32;
        l.head_stride = 2 * l.v_offset + 64;
        l.layer_stride = s.n_kv_heads * l.head_stride + 16;
        l.page_bytes = N_LAYERS * l.layer_stride + 48;
        return l;
    }
    World(shape_spec s, const std::vector<seq_spec> &of, uint64_t seed)
        : shape(s), specs(of), layout(make_layout(s)), n_q(s.n_heads / s.n_kv_heads),
          q_dim(s.n_heads * s.head_dim), n_pool(count_pages(of) + 3),
          q((size_t)count_rows(of) * s.n_heads * s.head_dim),
          pool((size_t)n_pool * make_layout(s).page_bytes / 2)
    {
        Random random(seed);
        std::vector<uint32_t> order(n_pool);
        for (uint32_t i = 0; i < n_pool; i++)
            order[i] = i;
        for (uint32_t i = n_pool; i > 1; i--)
            std::swap(order[i - 1], order[random.below(i)]);
        memset((void *)pool.host.data(), 0xff, pool.host.size() * 2);
        for (const seq_spec &e : specs) {
            qk_seq seq = {};
            seq.row_begin = n_rows;
            seq.n_rows = e.n_rows;
            seq.start = e.start;
            seq.page_begin = (uint32_t)page_at.size();
            seq.n_pages = (e.start + e.n_rows + QK_PAGE_TOKENS - 1) / QK_PAGE_TOKENS;
            for (uint32_t p = 0; p < seq.n_pages; p++)
                page_at.push_back(order[page_at.size()]);
            n_rows += e.n_rows;
            seqs.push_back(seq);
            for (uint32_t t = 0; t < e.start + e.n_rows; t++)
                for (uint32_t h = 0; h < s.n_kv_heads; h++)
                    for (uint32_t v = 0; v < 2; v++)
                        for (uint32_t d = 0; d < s.head_dim; d++)
                            element(seq, t, h, v)[d] = __float2bfloat16(random.normal());
        }
        /* Two directions of score 9 in each query, over a spread of 1. */
        const float pull = 9.0f / sqrtf((float)s.head_dim);
        for (const qk_seq &seq : seqs)
            for (uint32_t r = 0; r < seq.n_rows; r++)
                for (uint32_t h = 0; h < s.n_heads; h++) {
                    const uint32_t position = seq.start + r;
                    const qkc_bf16 *own = element(seq, position, h / n_q, 0);
                    const qkc_bf16 *other = element(seq, std::min(middle(seq), position), h / n_q, 0);
                    qkc_bf16 *to = &q.host[((size_t)(seq.row_begin + r) * s.n_heads + h) * s.head_dim];
                    for (uint32_t d = 0; d < s.head_dim; d++)
                        to[d] = __float2bfloat16(
                            random.normal() + pull * (__bfloat162float(own[d]) + __bfloat162float(other[d])));
                }
        q.up();
        pool.up();
        compute_reference();
    }
    static uint32_t middle(const qk_seq &seq)
    {
        return seq.n_pages / 2 * QK_PAGE_TOKENS;
    }
    qkc_bf16 *element(const qk_seq &seq, uint32_t token, uint32_t kv_head, uint32_t is_v)
    {
        const uint32_t page = page_at[seq.page_begin + token / QK_PAGE_TOKENS];
        const uint64_t at = page * layout.page_bytes + LAYER * layout.layer_stride +
                            kv_head * layout.head_stride + is_v * layout.v_offset +
                            token % QK_PAGE_TOKENS * layout.token_stride;
        return &pool.host[at / 2];
    }
    void compute_reference()
    {
        const uint32_t dim = shape.head_dim;
        reference.assign((size_t)n_rows * q_dim, 0);
        for (const qk_seq &seq : seqs) {
            const uint32_t n_keys = seq.start + seq.n_rows;
            for (uint32_t g = 0; g < shape.n_kv_heads; g++) {
                std::vector<float> kv[2];
                for (uint32_t v = 0; v < 2; v++)
                    for (uint32_t t = 0; t < n_keys; t++)
                        for (uint32_t d = 0; d < dim; d++)
                            kv[v].push_back(__bfloat162float(element(seq, t, g, v)[d]));
                in_threads(seq.n_rows * n_q, [&](uint32_t i) {
                    const size_t at =
                        ((size_t)(seq.row_begin + i / n_q) * shape.n_heads + g * n_q + i % n_q) * dim;
                    attend(&q.host[at], kv[0].data(), kv[1].data(), seq.start + i / n_q + 1, dim,
                        &reference[at]);
                });
            }
        }
    }
    static void attend(
        const qkc_bf16 *q, const float *k, const float *v, uint32_t n_keys, uint32_t dim, double *out)
    {
        std::vector<double> p(n_keys), query(dim);
        double most = -INFINITY, sum = 0;
        for (uint32_t d = 0; d < dim; d++)
            query[d] = (double)__bfloat162float(q[d]) / sqrt((double)dim);
        for (uint32_t t = 0; t < n_keys; t++) {
            double s[4] = {};
            for (uint32_t d = 0; d < dim; d += 4)
                for (uint32_t j = 0; j < 4; j++)
                    s[j] += query[d + j] * k[(size_t)t * dim + d + j];
            p[t] = s[0] + s[1] + s[2] + s[3];
            most = std::max(most, p[t]);
        }
        for (uint32_t t = 0; t < n_keys; t++) {
            const double w = exp(p[t] - most);
            sum += w;
            for (uint32_t d = 0; d < dim; d++)
                out[d] += w * v[(size_t)t * dim + d];
        }
        for (uint32_t d = 0; d < dim; d++)
            out[d] /= sum;
    }
};

/* What a launch may be told besides its world. */
typedef struct {
    bool f32;
    uint32_t part_rows_max;
    uint32_t state;
    int shift; /* added to every start on the device: moves the mask */
    uint64_t
        ranges; /* not 0: each sequence alone, in launches over random ranges of its keys, seeded with this */
    bool forget;                          /* between two ranges the state is lost */
    const std::vector<uint32_t> *page_at; /* NULL: the world's */
} run_options;

/* Each sequence of @cut alone, in launches over ranges of its keys that end at random spans, from the last on. @a: all but
 * tiles, merges and state. Returns the number of launches. */
static uint32_t run_ranges(
    const Cut &cut, const World &w, const qkc_launch *launch, qkc_attend_prefill_args a, const run_options &o)
{
    qk_plan plan = {};
    plan.n_seqs = (uint32_t)cut.seqs.size();
    plan.seqs = (qk_seq *)cut.seqs.data();
    const uint32_t room = qkc_tiles_max(cut.n_rows, plan.n_seqs, w.shape.n_heads, w.shape.n_kv_heads);
    Array<qkc_tile> tiles(room), merges(room);
    Array<float> state((size_t)cut.n_rows * w.shape.n_heads * (w.shape.head_dim + QKC_STATE_EXTRA));
    Random random(o.ranges);
    uint32_t n_launches = 0, n_tiles = 0, n_merges = 0;
    std::vector<qkc_round> rounds(plan.n_seqs);
    std::vector<uint32_t> n_parts(plan.n_seqs);
    for (uint32_t i = 0; i < plan.n_seqs; i++) {
        rounds[i] = {n_tiles, 0, n_merges, 0};
        n_parts[i] = qkc_cut_sequence_tiles(&plan, i, w.shape.n_heads, w.shape.n_kv_heads, w.shape.head_dim,
            launch->hopper, launch->n_sms, o.part_rows_max, tiles.host.data(), merges.host.data(),
            &rounds[i]);
        n_tiles += rounds[i].n_tiles;
        n_merges += rounds[i].n_merges;
        tap_require(n_tiles <= room && n_merges <= room);
    }
    tiles.up();
    merges.up();
    a.tiles = tiles.dev;
    a.merges = merges.dev;
    a.state = state.dev;
    for (uint32_t i = 0; i < plan.n_seqs; i++) {
        const uint32_t n_keys = cut.seqs[i].start + cut.seqs[i].n_rows;
        const uint32_t most = 1 + random.below(8); /* spans of a range */
        for (uint32_t end = n_keys; end > 0;) {
            const uint32_t n_spans = (end + QK_SPAN_TOKENS - 1) / QK_SPAN_TOKENS;
            const uint32_t begin = (n_spans - std::min(n_spans, 1 + random.below(most))) * QK_SPAN_TOKENS;
            const uint32_t middle = qkc_range_cut(n_keys, n_parts[i], begin, end);
            tap_require(middle >= begin && middle < end && middle % QK_SPAN_TOKENS == 0);
            CUDA_OK(qkc_attend_prefill_range(launch, &a, &rounds[i], middle, end));
            if (begin < middle)
                CUDA_OK(qkc_attend_prefill_range(launch, &a, &rounds[i], begin, middle));
            n_launches += 1 + (begin < middle);
            if (o.forget)
                CUDA_OK(cudaMemsetAsync(state.dev, 0, state.host.size() * sizeof(float), launch->stream));
            end = begin;
        }
        CUDA_OK(qkc_attend_prefill_merge(launch, &a, &rounds[i]));
    }
    CUDA_OK(cudaStreamSynchronize(launch->stream));
    return n_launches;
}

/* Runs the sequences @which of a world; returns rows in the order of @which. @extra rows past the end must stay NaN. */
static std::vector<float> run_seqs(
    World &w, const qkc_launch *launch, const std::vector<uint32_t> &which, run_options o, bool *untouched)
{
    const uint32_t extra = 3;
    std::vector<seq_spec> specs;
    for (uint32_t s : which)
        specs.push_back(w.specs[s]);
    const Cut cut(specs, w.shape, launch->hopper, launch->n_sms, o.part_rows_max);
    const uint32_t n_parts = std::max(cut.tiling.n_part_rows, 1u);
    Array<qkc_bf16> q((size_t)(cut.n_rows + extra) * w.q_dim),
        out_bf16((size_t)(cut.n_rows + extra) * w.q_dim);
    Array<float> out_f32(out_bf16.host.size()), parts_out((size_t)n_parts * w.q_dim),
        parts_lse((size_t)n_parts * w.shape.n_heads);
    Array<qk_seq> seqs(cut.seqs.size());
    Array<uint64_t> pages(World::count_pages(specs));
    Array<uint32_t> state(1);
    Array<qkc_tile> tiles(cut.tiles.size()), merges(cut.merges.size());
    seqs.host = cut.seqs;
    tiles.host = cut.tiles;
    merges.host = cut.merges;
    state.host[0] = o.state;
    memset((void *)q.host.data(), 0xff, q.host.size() * 2);
    for (size_t i = 0; i < which.size(); i++) {
        const qk_seq &from = w.seqs[which[i]];
        memcpy(&q.host[(size_t)cut.seqs[i].row_begin * w.q_dim], &w.q.host[(size_t)from.row_begin * w.q_dim],
            (size_t)from.n_rows * w.q_dim * 2);
        for (uint32_t p = 0; p < from.n_pages; p++)
            pages.host[cut.seqs[i].page_begin + p] =
                (uint64_t)(uintptr_t)w.pool.dev +
                (o.page_at ? *o.page_at : w.page_at)[from.page_begin + p] * w.layout.page_bytes;
        seqs.host[i].start += o.shift;
    }
    q.up();
    seqs.up();
    pages.up();
    state.up();
    tiles.up();
    merges.up();

    qkc_attend_prefill_args a = {};
    a.q = q.dev;
    a.out_bf16 = o.f32 ? NULL : out_bf16.dev;
    a.out_f32 = o.f32 ? out_f32.dev : NULL;
    a.n_heads = w.shape.n_heads;
    a.n_kv_heads = w.shape.n_kv_heads;
    a.head_dim = w.shape.head_dim;
    a.layer = LAYER;
    a.layout = w.layout;
    a.plan.seqs = seqs.dev;
    a.plan.pages = pages.dev;
    a.plan.state = state.dev;
    a.tiles = tiles.dev;
    a.merges = merges.dev;
    a.parts_out = parts_out.dev;
    a.parts_lse = parts_lse.dev;
    std::unique_ptr<Array<float>> room; /* of the parts of one sequence */
    if (o.ranges != 0) {
        const size_t n_rows = std::max(o.part_rows_max, 1u);
        room.reset(new Array<float>(n_rows * (w.q_dim + w.shape.n_heads)));
        a.parts_out = room->dev;
        a.parts_lse = room->dev + n_rows * w.q_dim;
        run_ranges(cut, w, launch, a, o);
    } else {
        CUDA_OK(qkc_attend_prefill(launch, &a, &cut.tiling));
    }
    CUDA_OK(cudaStreamSynchronize(launch->stream));

    std::vector<float> all(out_bf16.host.size());
    if (o.f32) {
        out_f32.down();
        all = out_f32.host;
    } else {
        out_bf16.down();
        for (size_t i = 0; i < all.size(); i++)
            all[i] = __bfloat162float(out_bf16.host[i]);
    }
    const size_t n = (size_t)cut.n_rows * w.q_dim;
    if (untouched) {
        *untouched = true;
        for (size_t i = n; i < all.size(); i++)
            *untouched = *untouched && isnan(all[i]);
    }
    all.resize(n);
    return all;
}

static bool same_bits(const float *a, const float *b, size_t n)
{
    return memcmp(a, b, n * sizeof(float)) == 0;
}

static double seq_error(const World &w, uint32_t seq, const std::vector<float> &out)
{
    const size_t at = (size_t)w.seqs[seq].row_begin * w.q_dim;
    return relative_error(&out[at], &w.reference[at], (size_t)w.seqs[seq].n_rows * w.q_dim);
}

/* A NaN counts as the largest. */
static double worst_error(const World &w, const std::vector<float> &out)
{
    double worst = 0;
    for (uint32_t s = 0; s < w.seqs.size(); s++) {
        const double e = seq_error(w, s, out);
        worst = !(e <= worst) ? e : worst;
    }
    return worst;
}

/* ---- On the device ------------------------------------------------------------------------------------------- */

static std::vector<uint32_t> all_seqs(const World &w)
{
    std::vector<uint32_t> out;
    for (uint32_t s = 0; s < w.seqs.size(); s++)
        out.push_back(s);
    return out;
}

static void test_values(World &w, const qkc_launch *launch, const char *path)
{
    const struct {
        const char *name;
        bool f32;
        uint32_t part_rows_max;
    } ways[] = {
        {"parts, bf16", false, qkc_part_rows_max(w.n_rows)},
        {"no parts, float32", true, 0},
        {"few parts in rounds, float32", true, 160},
        {"no parts, bf16", false, 0},
    };
    for (auto &way : ways) {
        run_options o = {};
        o.f32 = way.f32;
        o.part_rows_max = way.part_rows_max;
        bool untouched = false;
        const std::vector<float> out = run_seqs(w, launch, all_seqs(w), o, &untouched);
        const std::vector<float> again = run_seqs(w, launch, all_seqs(w), o, NULL);
        const double error = worst_error(w, out);
        tap_ok(error < TOLERANCE && untouched, "%s, %u/%u heads of %u, %s: error %.2e", path, w.shape.n_heads,
            w.shape.n_kv_heads, w.shape.head_dim, way.name, error);
        if (!(error < TOLERANCE))
            for (uint32_t s = 0; s < w.seqs.size(); s++)
                tap_note(
                    "%u rows at %u: error %.2e", w.specs[s].n_rows, w.specs[s].start, seq_error(w, s, out));
        tap_ok(same_bits(out.data(), again.data(), out.size()), "the same bits again");
    }
}

static void test_alone(World &w, const qkc_launch *launch, const char *path)
{
    run_options o = {};
    o.part_rows_max = qkc_part_rows_max(w.n_rows);
    o.f32 = true;
    const std::vector<float> together = run_seqs(w, launch, all_seqs(w), o, NULL);
    bool same = true;
    for (uint32_t s = 0; s < w.seqs.size(); s++) {
        const std::vector<float> alone = run_seqs(w, launch, {s}, o, NULL);
        same =
            same && same_bits(alone.data(), &together[(size_t)w.seqs[s].row_begin * w.q_dim], alone.size());
    }
    tap_ok(same, "%s, %u/%u heads of %u: each sequence alone has the same bits", path, w.shape.n_heads,
        w.shape.n_kv_heads, w.shape.head_dim);
}

/* Launches over ranges of the keys give the bits of one launch over all; and the state between them matters. */
static void test_ranges(World &w, const qkc_launch *launch, const char *path)
{
    uint32_t n_same = 0, n_finite = 0;
    const uint32_t n = 6;
    run_options o = {};
    for (uint32_t i = 0; i < n; i++) {
        o.f32 = i % 2 == 0;
        o.part_rows_max = i % 3 == 0 ? 0 : qkc_part_rows_max(w.n_rows);
        o.ranges = 0;
        const std::vector<float> whole = run_seqs(w, launch, all_seqs(w), o, NULL);
        o.ranges = 1 + i;
        const std::vector<float> out = run_seqs(w, launch, all_seqs(w), o, NULL);
        n_same += same_bits(whole.data(), out.data(), out.size());
        n_finite += worst_error(w, out) < TOLERANCE;
    }
    tap_ok(n_same == n && n_finite == n,
        "%s, %u/%u heads of %u: in ranges of keys: the same bits %u times of %u, right %u times", path,
        w.shape.n_heads, w.shape.n_kv_heads, w.shape.head_dim, n_same, n, n_finite);
    o.part_rows_max = 0;
    o.forget = true;
    const std::vector<float> lost = run_seqs(w, launch, all_seqs(w), o, NULL);
    tap_ok(!(worst_error(w, lost) < TOLERANCE), "%s: a state lost between ranges shows", path);
}

/* Sequences whose middle page is full, so that it holds no NaN. */
static bool has_middle(const qk_seq &seq)
{
    return seq.n_pages > 3;
}

/* The least error of those. */
static double least_error(const World &w, const std::vector<float> &out)
{
    double least = INFINITY;
    for (uint32_t s = 0; s < w.seqs.size(); s++)
        if (has_middle(w.seqs[s]))
            least = std::min(least, seq_error(w, s, out));
    return least;
}

/* Each mutation must be far outside the tolerance in every sequence that it touches. */
static void test_mutations(World &w, const qkc_launch *launch, const char *path)
{
    run_options o = {};
    o.part_rows_max = qkc_part_rows_max(w.n_rows);
    std::vector<uint32_t> swapped = w.page_at;
    uint32_t before = UINT32_MAX;
    for (const qk_seq &seq : w.seqs) {
        if (!has_middle(seq))
            continue;
        const uint32_t page = seq.page_begin + World::middle(seq) / QK_PAGE_TOKENS;
        if (before != UINT32_MAX)
            std::swap(swapped[before], swapped[page]);
        before = page;
    }
    o.page_at = &swapped;
    double error = least_error(w, run_seqs(w, launch, all_seqs(w), o, NULL));
    tap_ok(error > 5 * TOLERANCE && error < INFINITY, "%s: swapped pages show: error %.2e", path, error);

    o.page_at = NULL;
    for (const qk_seq &seq : w.seqs)
        if (has_middle(seq))
            CUDA_OK(cudaMemset(
                (uint8_t *)w.pool.dev +
                    w.page_at[seq.page_begin + World::middle(seq) / QK_PAGE_TOKENS] * w.layout.page_bytes,
                0, w.layout.page_bytes));
    error = least_error(w, run_seqs(w, launch, all_seqs(w), o, NULL));
    tap_ok(error > 5 * TOLERANCE && error < INFINITY, "%s: zeroed pages show: error %.2e", path, error);
    w.pool.up();

    std::vector<uint32_t> late; /* sequences whose start can be one less */
    for (uint32_t s = 0; s < w.seqs.size(); s++)
        if (w.specs[s].start > 0)
            late.push_back(s);
    o.shift = -1;
    const std::vector<float> out = run_seqs(w, launch, late, o, NULL);
    size_t at = 0;
    error = INFINITY;
    for (uint32_t s : late) {
        const size_t n = (size_t)w.seqs[s].n_rows * w.q_dim;
        error =
            std::min(error, relative_error(&out[at], &w.reference[(size_t)w.seqs[s].row_begin * w.q_dim], n));
        at += n;
    }
    tap_ok(
        error > 5 * TOLERANCE && error < INFINITY, "%s: a mask moved by one shows: error %.2e", path, error);

    o.shift = 0;
    const std::vector<float> healed = run_seqs(w, launch, all_seqs(w), o, NULL);
    tap_ok(worst_error(w, healed) < TOLERANCE, "%s: and without mutation nothing shows", path);
}

static void test_cancelled(World &w, const qkc_launch *launch, const char *path)
{
    run_options o = {};
    o.part_rows_max = qkc_part_rows_max(w.n_rows);
    o.state = QK_CANCELLED;
    bool written = false;
    for (float x : run_seqs(w, launch, all_seqs(w), o, NULL))
        written = written || !isnan(x);
    tap_ok(!written, "%s: a cancelled plan writes nothing", path);
}

/* The launches to test: both forms of the portable kernel, and Hopper's. */
static void for_paths(std::function<void(const qkc_launch *, const char *)> test)
{
    qkc_launch paths[2];
    const int n = gpu_paths(paths);
    paths[0].pdl = n == 2; /* as on the card where it is forced */
    for (qkc_prefill_form form : {QKC_PREFILL_WIDE, QKC_PREFILL_NARROW}) {
        qkc_attend_prefill_choose(form);
        test(&paths[0], form == QKC_PREFILL_WIDE ? "portable, wide" : "portable, narrow");
    }
    if (n == 2)
        test(&paths[1], "hopper");
    CUDA_OK(qkc_attend_prefill_init());
}

static void test_device(void)
{
    const std::vector<seq_spec> ragged = {{0, 70}, {1, 33}, {15, 17}, {5000, 1}, {16, 16}, {255, 70},
        {256, 100}, {1000, 130}, {5000, 40}, {4096, 1}, {0, 1}, {0, 300}, {511, 2}};
    const uint32_t n_qs[] = {1, 2, 4, 5, 8};
    uint64_t seed = 100;
    for (uint32_t dim : {64u, 128u})
        for (uint32_t n_q : n_qs) {
            World w({2 * n_q, 2, dim}, ragged, seed++);
            for_paths([&](const qkc_launch *launch, const char *path) {
                test_values(w, launch, path);
                test_ranges(w, launch, path);
                if ((n_q == 4 && dim == 128) || n_q == 5) {
                    test_alone(w, launch, path);
                    test_mutations(w, launch, path);
                    test_cancelled(w, launch, path);
                }
            });
        }
    /* More blocks than places, as in a long prompt: 8 kv heads. */
    World w({16, 8, 128}, {{300, 700}, {0, 513}, {2000, 64}}, seed);
    for_paths([&](const qkc_launch *launch, const char *path) {
        test_values(w, launch, path);
        test_ranges(w, launch, path);
        test_alone(w, launch, path);
    });
}

/* ---- Times --------------------------------------------------------------------------------------------------- */

static __global__ void fill_random(qkc_bf16 *to, size_t n, uint32_t seed)
{
    for (size_t i = blockIdx.x * (size_t)blockDim.x + threadIdx.x; i < n;
         i += (size_t)gridDim.x * blockDim.x) {
        uint32_t x = (uint32_t)i * 2654435761u ^ seed;
        x ^= x >> 15;
        x *= 2246822519u;
        x ^= x >> 13;
        x *= 3266489917u;
        x ^= x >> 16;
        to[i] = __float2bfloat16((float)(int32_t)x * (1.7f / 2147483648.0f));
    }
}

/* Random int8 pages without gaps: sides of 16 tokens of 128 numbers, then as many scales. */
static __global__ void fill_int8(uint16_t *to, size_t n)
{
    for (size_t i = blockIdx.x * (size_t)blockDim.x + threadIdx.x; i < n;
         i += (size_t)gridDim.x * blockDim.x) {
        uint32_t x = (uint32_t)i * 2654435761u;
        x ^= x >> 15;
        x *= 2246822519u;
        to[i] = i % 1040 < 1024 ? (uint16_t)(x >> 13) : (uint16_t)(0x2000 | x >> 24);
    }
}

#define BENCH_LAYERS 4u
#define BENCH_TOKENS 32768u
#define BENCH_ROWS   2048u

/* A cache of 32K tokens and four layers: 537 MB, page-major, pages in random order. */
struct Bench {
    shape_spec shape = {32, 8, 128};
    uint32_t q_dim = 4096;
    qk_kv_layout layout = {};
    Array<qkc_bf16> q, out, pool;
    Array<uint64_t> pages;
    Array<uint32_t> state;
    Array<float> parts_out, parts_lse;
    explicit Bench(bool int8)
        : q((size_t)BENCH_ROWS * 4096), out((size_t)BENCH_ROWS * 4096),
          pool((size_t)BENCH_TOKENS * BENCH_LAYERS * 8 * 2 * 128), pages(BENCH_TOKENS / QK_PAGE_TOKENS),
          state(1), parts_out((size_t)BENCH_ROWS * 4096), parts_lse((size_t)BENCH_ROWS * 32)
    {
        layout.dtype = QK_BF16;
        layout.token_stride = 128 * 2;
        layout.v_offset = QK_PAGE_TOKENS * 128 * 2;
        layout.head_stride = 2 * layout.v_offset;
        layout.layer_stride = 8 * layout.head_stride;
        layout.page_bytes = BENCH_LAYERS * layout.layer_stride;
        fill_random<<<1024, 256>>>(q.dev, q.host.size(), 1);
        if (int8) {
            qk_shape s = {};
            s.n_layers = BENCH_LAYERS, s.n_kv_heads = 8, s.head_dim = 128;
            qk_kv_layout_page_major(&s, QK_I8, &layout);
            fill_int8<<<4096, 256>>>((uint16_t *)pool.dev, pool.host.size());
        } else {
            fill_random<<<4096, 256>>>(pool.dev, pool.host.size(), 2);
        }
        Random random(3);
        for (size_t i = 0; i < pages.host.size(); i++)
            pages.host[i] = (uint64_t)(uintptr_t)pool.dev + i * layout.page_bytes;
        for (size_t i = pages.host.size(); i > 1; i--)
            std::swap(pages.host[i - 1], pages.host[random.below((uint32_t)i)]);
        pages.up();
        state.zero();
        CUDA_OK(cudaDeviceSynchronize());
    }
    /* Milliseconds a layer. */
    double time(const qkc_launch *launch, seq_spec spec)
    {
        const Cut cut({spec}, shape, launch->hopper, launch->n_sms, BENCH_ROWS);
        Array<qk_seq> seqs(1);
        Array<qkc_tile> tiles(cut.tiles.size()), merges(cut.merges.size());
        seqs.host = cut.seqs;
        tiles.host = cut.tiles;
        merges.host = cut.merges;
        seqs.up();
        tiles.up();
        merges.up();
        qkc_attend_prefill_args a = {};
        a.q = q.dev;
        a.out_bf16 = out.dev;
        a.n_heads = shape.n_heads;
        a.n_kv_heads = shape.n_kv_heads;
        a.head_dim = shape.head_dim;
        a.layout = layout;
        a.plan.seqs = seqs.dev;
        a.plan.pages = pages.dev;
        a.plan.state = state.dev;
        a.tiles = tiles.dev;
        a.merges = merges.dev;
        a.parts_out = parts_out.dev;
        a.parts_lse = parts_lse.dev;
        return gpu_time(launch->stream, 7, [&](int) {
            for (a.layer = 0; a.layer < BENCH_LAYERS; a.layer++)
                CUDA_OK(qkc_attend_prefill(launch, &a, &cut.tiling));
        }) / BENCH_LAYERS;
    }
    /* A prompt of @n tokens after @start, in chunks. */
    void report(const qkc_launch *launch, const char *path, uint32_t start, uint32_t n)
    {
        double ms = 0, keys = 0;
        for (uint32_t done = 0; done < n; done += BENCH_ROWS) {
            const uint32_t rows = std::min(BENCH_ROWS, n - done);
            ms += time(launch, {start + done, rows});
            keys += rows * (double)(start + done) + rows * (rows + 1.0) / 2;
        }
        const double flops = 4.0 * shape.head_dim * shape.n_heads * keys;
        /* K and V of the last chunk once: what a chunk has to read at least. */
        const double bytes = (start + n) * 2.0 * 8 * 128 * 2;
        printf("%-17s %6u rows on %6u  %9.3f ms a layer  %7.1f TFLOP/s  K and V once: %.1f MB\n", path, n,
            start, ms, flops / ms * 1e-9, bytes * 1e-6);
        fflush(stdout);
    }
};

static void bench(void)
{
    {
        Bench b(true);
        for_paths([&](const qkc_launch *launch, const char *path) {
            const std::string name = std::string(path) + ", int8";
            for (uint32_t n : {1u, 128u, 256u, 512u, 1024u, 2048u})
                b.report(launch, name.c_str(), 32768 - n, n);
            b.report(launch, name.c_str(), 8192, 128);
        });
    }
    Bench b(false);
    for_paths([&](const qkc_launch *launch, const char *path) {
        for (uint32_t n : {128u, 129u, 256u, 512u, 1024u})
            b.report(launch, path, 32768 - n, n);
        b.report(launch, path, 8192, 128);
        b.report(launch, path, 0, 128);
        b.report(launch, path, 0, 2048);
        b.report(launch, path, 6144, 2048);
        b.report(launch, path, 30720, 2048);
        b.report(launch, path, 0, 8192);
        b.report(launch, path, 0, 32768);
        b.report(launch, path, 16384, 128);
        b.report(launch, path, 16255, 129);
        b.report(launch, path, 8192, 129);
        b.report(launch, path, 16384, 20);
        b.report(launch, path, 16384, 512);
        b.report(launch, path, 32767, 1);
    });
}

int main(int argc, char **argv)
{
    const bool only_bench = argc > 1 && strcmp(argv[1], "--bench") == 0;
    if (!only_bench) {
        test_random_cuts();
        test_known_cuts();
    }
    int n = 0;
    const cudaError_t code = cudaGetDeviceCount(&n);
    if (code != cudaSuccess || n == 0) {
        tap_skip("no CUDA device: %s", code != cudaSuccess ? cudaGetErrorString(code) : "none found");
        return tap_done();
    }
    CUDA_OK(qkc_attend_prefill_init());
    CUDA_OK(qkc_attend_prefill_hopper_init());
    if (only_bench) {
        bench();
        return 0;
    }
    test_device();
    return tap_done();
}
