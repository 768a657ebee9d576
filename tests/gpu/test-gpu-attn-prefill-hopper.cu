/* test-gpu-attn-prefill-hopper.cu: the wgmma attention by itself, on tiles cut here: exact one-key checks that name the
 * element a layout mistake puts wrong, random cases against float64, parts, cancelled plans, repeatability.
 * `--bench`: TFLOP/s at the reference shape. */
#include "tests/gpu/gpu-test.h"
#include <functional>
#include <memory>
#include <thread>

#define DIM 128u

typedef struct {
    uint32_t start, n_rows;
} seq_spec;

typedef struct {
    const char *name;
    uint32_t n_heads, n_kv_heads;
    std::vector<seq_spec> seqs;
    uint32_t part_keys;    /* 0: keys are not cut */
    uint32_t token_stride; /* bytes */
    bool f32;
} spec;

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

/* A plan, its cache and its tiles. Pages lie in random order; what no key fills is NaN. */
struct World {
    spec s;
    uint32_t n_rows = 0, n_q, n_pages = 0, n_part_rows = 0;
    qk_kv_layout layout = {};
    std::vector<uint32_t> seq_keys;
    std::vector<qk_seq> seqs;
    std::vector<qkc_tile> tiles;
    std::unique_ptr<Array<qkc_bf16>> q, pool, out_bf16;
    std::unique_ptr<Array<float>> out_f32, parts_out, parts_lse;
    std::unique_ptr<Array<uint64_t>> pages;
    std::unique_ptr<Array<qk_seq>> seqs_dev;
    std::unique_ptr<Array<qkc_tile>> tiles_dev;
    std::unique_ptr<Array<uint32_t>> state;
    std::vector<uint32_t> page_index;
    uint32_t rows_room; /* rows of q and out, more than the plan has */

    explicit World(const spec &of, uint64_t seed) : s(of), n_q(of.n_heads / of.n_kv_heads)
    {
        for (auto &q_ : s.seqs) {
            qk_seq e = {};
            e.row_begin = n_rows;
            e.n_rows = q_.n_rows;
            e.start = q_.start;
            e.page_begin = n_pages;
            e.n_pages = (q_.start + q_.n_rows + QK_PAGE_TOKENS - 1) / QK_PAGE_TOKENS;
            seqs.push_back(e);
            n_rows += e.n_rows;
            n_pages += e.n_pages;
        }
        rows_room = n_rows + 5;
        layout.dtype = QK_BF16;
        layout.token_stride = s.token_stride;
        layout.v_offset = (uint64_t)QK_PAGE_TOKENS * s.token_stride;
        layout.head_stride = 2 * layout.v_offset;
        layout.layer_stride = s.n_kv_heads * layout.head_stride;
        layout.page_bytes = 2 * layout.layer_stride; /* two layers; the second is used */
        const size_t q_dim = (size_t)s.n_heads * DIM;
        q.reset(new Array<qkc_bf16>(rows_room * q_dim));
        out_bf16.reset(new Array<qkc_bf16>(rows_room * q_dim));
        out_f32.reset(new Array<float>(rows_room * q_dim));
        pool.reset(new Array<qkc_bf16>(n_pages * layout.page_bytes / 2));
        memset((void *)pool->host.data(), 0xff, pool->host.size() * 2);
        memset((void *)q->host.data(), 0xff, q->host.size() * 2);
        pages.reset(new Array<uint64_t>(n_pages));
        Random random(seed);
        for (uint32_t i = 0; i < n_pages; i++)
            page_index.push_back(i);
        for (uint32_t i = n_pages; i > 1; i--)
            std::swap(page_index[i - 1], page_index[random.below(i)]);
        for (uint32_t i = 0; i < n_pages; i++)
            pages->host[i] = (uint64_t)(uintptr_t)pool->dev + page_index[i] * layout.page_bytes;
        pages->up();
        seqs_dev.reset(new Array<qk_seq>(seqs.size()));
        seqs_dev->host = seqs;
        seqs_dev->up();
        state.reset(new Array<uint32_t>(1));
        state->host[0] = QK_OK;
        state->up();
        cut();
        parts_out.reset(new Array<float>(n_part_rows * q_dim));
        parts_lse.reset(new Array<float>((size_t)n_part_rows * s.n_heads));
    }

    void cut()
    {
        const uint32_t most = qkc_attend_prefill_hopper_tile_rows(s.n_heads, s.n_kv_heads, DIM);
        for (uint32_t i = 0; i < seqs.size(); i++) {
            for (uint32_t r = 0; r < seqs[i].n_rows; r += most) {
                qkc_tile t = {};
                t.seq = i;
                t.row = seqs[i].row_begin + r;
                t.n_rows = std::min(most, seqs[i].n_rows - r);
                const uint32_t n_keys = seqs[i].start + r + t.n_rows;
                t.n_parts = s.part_keys ? (n_keys + s.part_keys - 1) / s.part_keys : 1;
                for (t.part = 0; t.part < t.n_parts; t.part++) {
                    t.key_begin = t.part * s.part_keys;
                    t.key_end = t.part + 1 < t.n_parts ? t.key_begin + s.part_keys : n_keys;
                    t.part_slot = n_part_rows;
                    n_part_rows += t.n_parts > 1 ? t.n_rows : 0;
                    tiles.push_back(t);
                }
            }
        }
        std::stable_sort(tiles.begin(), tiles.end(), [](const qkc_tile &a, const qkc_tile &b) {
            return a.key_end - a.key_begin > b.key_end - b.key_begin;
        });
        tiles_dev.reset(new Array<qkc_tile>(tiles.size()));
        tiles_dev->host = tiles;
        tiles_dev->up();
    }

    qkc_bf16 *kv(uint32_t seq, uint32_t head, uint32_t key, bool v)
    {
        const uint64_t at = page_index[seqs[seq].page_begin + key / QK_PAGE_TOKENS] * layout.page_bytes +
                            layout.layer_stride + head * layout.head_stride + (v ? layout.v_offset : 0) +
                            (uint64_t)(key % QK_PAGE_TOKENS) * layout.token_stride;
        return &pool->host[at / 2];
    }

    void fill(const std::function<float(uint32_t seq, uint32_t head, uint32_t key, uint32_t d, bool v)> &f)
    {
        in_threads((uint32_t)seqs.size() * s.n_kv_heads, [&](uint32_t i) {
            const uint32_t seq = i / s.n_kv_heads, head = i % s.n_kv_heads;
            for (uint32_t key = 0; key < seqs[seq].start + seqs[seq].n_rows; key++)
                for (int v = 0; v < 2; v++)
                    for (uint32_t d = 0; d < DIM; d++)
                        kv(seq, head, key, v)[d] = __float2bfloat16(f(seq, head, key, d, v));
        });
    }

    cudaError_t run(const qkc_launch &launch)
    {
        qkc_attend_prefill_args a = {};
        a.q = q->dev;
        (s.f32 ? (void *&)a.out_f32 : (void *&)a.out_bf16) =
            s.f32 ? (void *)out_f32->dev : (void *)out_bf16->dev;
        a.n_heads = s.n_heads;
        a.n_kv_heads = s.n_kv_heads;
        a.head_dim = DIM;
        a.layer = 1;
        a.layout = layout;
        a.plan.seqs = seqs_dev->dev;
        a.plan.pages = pages->dev;
        a.plan.state = state->dev;
        a.tiles = tiles_dev->dev;
        a.n_tiles = (uint32_t)tiles.size();
        a.parts_out = parts_out->dev;
        a.parts_lse = parts_lse->dev;
        return qkc_attend_prefill_hopper(&launch, &a, false);
    }

    void poison()
    {
        out_bf16->poison();
        out_f32->poison();
        parts_out->poison();
        parts_lse->poison();
    }

    void fetch()
    {
        out_bf16->down();
        out_f32->down();
        parts_out->down();
        parts_lse->down();
    }
};

static spec make(const char *name, uint32_t n_heads, uint32_t n_kv_heads, std::vector<seq_spec> seqs,
    uint32_t part_keys = 0, bool f32 = true, uint32_t token_stride = 256)
{
    spec s = {name, n_heads, n_kv_heads, seqs, part_keys, token_stride, f32};
    return s;
}

/* Every query matches one key alone, so its output must be that key's value, exactly. Values tell either the key
 * (mod 128) or the dim: a wrong one shows what was taken instead. */
static void test_one_key(const qkc_launch &launch, bool tell_dim)
{
    World w(make("one key", 8, 2, {{100, 200}}), 11);
    std::vector<uint32_t> sign(2 * 300 * DIM);
    Random random(12);
    for (auto &x : sign)
        x = random.next() >> 31;
    w.fill([&](uint32_t, uint32_t head, uint32_t key, uint32_t d, bool v) {
        if (v)
            return tell_dim ? (float)d : (float)(key % 128);
        return sign[(head * 300 + key) * DIM + d] ? 1.0f : -1.0f;
    });
    w.pool->up();
    std::vector<uint32_t> target(200 * 8);
    for (uint32_t r = 0; r < 200; r++) {
        for (uint32_t h = 0; h < 8; h++) {
            target[r * 8 + h] = random.below(100 + r + 1);
            for (uint32_t d = 0; d < DIM; d++)
                w.q->host[(r * 8 + h) * DIM + d] =
                    __float2bfloat16(sign[(h / 4 * 300 + target[r * 8 + h]) * DIM + d] ? 8.0f : -8.0f);
        }
    }
    w.q->up();
    w.poison();
    CUDA_OK(w.run(launch));
    CUDA_OK(cudaDeviceSynchronize());
    w.fetch();
    uint32_t n_wrong = 0;
    for (uint32_t r = 0; r < 200; r++) {
        for (uint32_t h = 0; h < 8; h++) {
            for (uint32_t d = 0; d < DIM; d++) {
                const float want = tell_dim ? (float)d : (float)(target[r * 8 + h] % 128);
                const float got = w.out_f32->host[(r * 8 + h) * DIM + d];
                if (!(fabsf(got - want) < 1e-3f) && n_wrong++ < 24)
                    printf("# row %u head %u (packed row %u) dim %u key %u: got %g, want %g\n", r, h,
                        r % 32 * 4 + h % 4, d, target[r * 8 + h], got, want);
            }
        }
    }
    tap_ok(n_wrong == 0, "hopper/one-key/%s: %u of %u elements wrong", tell_dim ? "dims" : "keys", n_wrong,
        200 * 8 * DIM);
}

/* [n_rows, n_heads, DIM] outputs, and lse of keys [begin, end) of each (row, head). */
static void reference(World &w, std::vector<double> &out)
{
    out.assign((size_t)w.n_rows * w.s.n_heads * DIM, 0);
    in_threads(w.n_rows, [&](uint32_t row) {
        uint32_t i = 0;
        while (row >= w.seqs[i].row_begin + w.seqs[i].n_rows)
            i++;
        const uint32_t n_keys = w.seqs[i].start + row - w.seqs[i].row_begin + 1;
        std::vector<double> p(n_keys);
        for (uint32_t h = 0; h < w.s.n_heads; h++) {
            const qkc_bf16 *q = &w.q->host[((size_t)row * w.s.n_heads + h) * DIM];
            float qf[DIM];
            for (uint32_t d = 0; d < DIM; d++)
                qf[d] = __bfloat162float(q[d]);
            double most = -INFINITY, sum = 0;
            for (uint32_t k = 0; k < n_keys; k++) {
                const qkc_bf16 *key = w.kv(i, h / w.n_q, k, false);
                double dot = 0;
                for (uint32_t d = 0; d < DIM; d++)
                    dot += (double)qf[d] * __bfloat162float(key[d]);
                p[k] = dot / sqrt((double)DIM);
                most = std::max(most, p[k]);
            }
            double *o = &out[((size_t)row * w.s.n_heads + h) * DIM];
            for (uint32_t k = 0; k < n_keys; k++) {
                const qkc_bf16 *value = w.kv(i, h / w.n_q, k, true);
                const double e = exp(p[k] - most);
                sum += e;
                for (uint32_t d = 0; d < DIM; d++)
                    o[d] += e * __bfloat162float(value[d]);
            }
            for (uint32_t d = 0; d < DIM; d++)
                o[d] /= sum;
        }
    });
}

/* The outputs as float, merged here where the tiles are parts. False when a part's lse and zeros disagree. */
static bool gather(World &w, std::vector<float> &out)
{
    const size_t q_dim = (size_t)w.s.n_heads * DIM;
    std::vector<double> o((size_t)w.n_rows * q_dim, 0), weight((size_t)w.n_rows * w.s.n_heads, 0);
    bool sane = true;
    for (auto &t : w.tiles) {
        for (uint32_t r = t.row; r < t.row + t.n_rows; r++) {
            for (uint32_t h = 0; h < w.s.n_heads; h++) {
                const size_t part = t.part_slot + r - t.row;
                const double lse = t.n_parts > 1 ? w.parts_lse->host[part * w.s.n_heads + h] : 0;
                const double by = exp(lse); /* scores here are small */
                const qk_seq &seq = w.seqs[t.seq];
                const bool sees = seq.start + r - seq.row_begin >= t.key_begin;
                sane = sane && (sees ? isfinite(lse) : lse == -INFINITY);
                weight[r * w.s.n_heads + h] += by;
                for (uint32_t d = 0; d < DIM; d++) {
                    const size_t at = r * q_dim + h * DIM + d;
                    const double x = t.n_parts > 1 ? w.parts_out->host[part * q_dim + h * DIM + d]
                                     : w.s.f32     ? w.out_f32->host[at]
                                                   : __bfloat162float(w.out_bf16->host[at]);
                    sane = sane && (sees || x == 0);
                    o[at] += by * x;
                }
            }
        }
    }
    out.resize(o.size());
    for (size_t i = 0; i < o.size(); i++)
        out[i] = (float)(o[i] / weight[i / DIM]);
    return sane;
}

static bool is_poison(const void *bytes, size_t n)
{
    for (size_t i = 0; i < n; i++)
        if (((const uint8_t *)bytes)[i] != 0xff)
            return false;
    return true;
}

static void test_case(const qkc_launch &launch, const spec &s, uint64_t seed)
{
    World w(s, seed);
    Random random(seed + 1);
    std::vector<float> noise(1 << 16);
    for (auto &x : noise)
        x = random.normal();
    w.fill([&](uint32_t seq, uint32_t head, uint32_t key, uint32_t d, bool v) {
        uint64_t h = ((((uint64_t)seq * 64 + head) * 65536 + key) * 2 + v) * DIM + d;
        h *= 0x9e3779b97f4a7c15ull;
        return noise[h >> 48];
    });
    w.pool->up();
    for (size_t i = 0; i < (size_t)w.n_rows * s.n_heads * DIM; i++)
        w.q->host[i] = __float2bfloat16(2 * random.normal());
    w.q->up();
    w.poison();
    CUDA_OK(w.run(launch));
    CUDA_OK(cudaDeviceSynchronize());
    w.fetch();
    std::vector<double> want;
    std::vector<float> got;
    reference(w, want);
    const bool sane = gather(w, got);
    const double error = relative_error(got.data(), want.data(), want.size());
    tap_ok(error < 4e-3 && sane, "hopper/%s: relative error %.2e%s", s.name, error,
        sane ? "" : ", parts that see no key are wrong");
    if (!(error < 4e-3)) {
        uint32_t shown = 0;
        for (size_t i = 0; i < got.size() && shown < 16; i++)
            if (!(fabs(got[i] - want[i]) < 0.05)) {
                printf("# row %zu head %zu dim %zu: got %g, want %g\n", i / (s.n_heads * DIM),
                    i / DIM % s.n_heads, i % DIM, got[i], want[i]);
                shown++;
            }
    }
    const size_t used = (size_t)w.n_rows * s.n_heads * DIM, room = (size_t)w.rows_room * s.n_heads * DIM;
    bool untouched = is_poison(&w.out_f32->host[used], (room - used) * 4) &&
                     is_poison(&w.out_bf16->host[used], (room - used) * 2);
    for (auto &t : w.tiles) {
        const size_t at = (size_t)t.row * s.n_heads * DIM, n = (size_t)t.n_rows * s.n_heads * DIM;
        if (t.n_parts > 1 || !s.f32)
            untouched = untouched && is_poison(&w.out_f32->host[at], n * 4);
        if (t.n_parts > 1 || s.f32)
            untouched = untouched && is_poison(&w.out_bf16->host[at], n * 2);
    }
    tap_ok(untouched, "hopper/%s: nothing else is written", s.name);

    std::vector<float> first_f32 = w.out_f32->host, first_parts = w.parts_out->host,
                       first_lse = w.parts_lse->host;
    std::vector<qkc_bf16> first_bf16 = w.out_bf16->host;
    w.poison();
    CUDA_OK(w.run(launch));
    CUDA_OK(cudaDeviceSynchronize());
    w.fetch();
    tap_ok(memcmp(first_f32.data(), w.out_f32->host.data(), first_f32.size() * 4) == 0 &&
               memcmp(first_bf16.data(), w.out_bf16->host.data(), first_bf16.size() * 2) == 0 &&
               memcmp(first_parts.data(), w.parts_out->host.data(), first_parts.size() * 4) == 0 &&
               memcmp(first_lse.data(), w.parts_lse->host.data(), first_lse.size() * 4) == 0,
        "hopper/%s: the same bits again", s.name);

    w.state->host[0] = QK_CANCELLED;
    w.state->up();
    w.poison();
    CUDA_OK(w.run(launch));
    CUDA_OK(cudaDeviceSynchronize());
    w.fetch();
    tap_ok(is_poison(w.out_f32->host.data(), w.out_f32->host.size() * 4) &&
               is_poison(w.out_bf16->host.data(), w.out_bf16->host.size() * 2) &&
               is_poison(w.parts_out->host.data(), w.parts_out->host.size() * 4),
        "hopper/%s: a cancelled plan writes nothing", s.name);
}

static void bench(const qkc_launch &launch, uint32_t start, uint32_t n_rows)
{
    World w(make("bench", 32, 8, {{start, n_rows}}, 0, false), 5);
    Random random(6);
    std::vector<uint16_t> noise(4096 + 1024);
    for (auto &x : noise)
        x = __bfloat16_as_ushort(__float2bfloat16(random.normal()));
    for (auto *a : {&w.q->host, &w.pool->host})
        for (size_t i = 0; i < a->size(); i += 1024)
            memcpy((void *)&(*a)[i], &noise[random.below(4096)], std::min<size_t>(1024, a->size() - i) * 2);
    w.q->up();
    w.pool->up();
    const double ms = gpu_time(launch.stream, 7, [&](int) { CUDA_OK(w.run(launch)); });
    double pairs = 0;
    for (uint32_t r = 0; r < n_rows; r++)
        pairs += start + r + 1;
    const double flop = 4.0 * DIM * 32 * pairs;
    printf("# hopper: %6u rows from %6u: %8.3f ms  %7.1f TFLOP/s\n", n_rows, start, ms, flop / ms * 1e-9);
}

int main(int argc, char **argv)
{
    gpu_require();
    qkc_launch paths[2];
    if (gpu_paths(paths) < 2) {
        printf("1..0 # SKIP not a Hopper device\n");
        return 0;
    }
    const qkc_launch &launch = paths[1];
    CUDA_OK(qkc_attend_prefill_hopper_init());
    if (argc > 1 && strcmp(argv[1], "--bench") == 0) {
        bench(launch, 0, 32768);
        bench(launch, 0, 8192);
        bench(launch, 0, 2048);
        bench(launch, 30720, 2048);
        return 0;
    }
    test_one_key(launch, false);
    test_one_key(launch, true);
    const spec specs[] = {
        make("one row", 4, 1, {{0, 1}}),
        make("one tile", 4, 1, {{0, 32}}),
        make("two blocks", 4, 1, {{96, 60}}),
        make("reference heads", 32, 8, {{0, 200}}),
        make("a chunk far in", 8, 2, {{3000, 70}}),
        make("bf16 out", 8, 2, {{511, 130}}, 0, false),
        make("strided tokens", 4, 2, {{40, 300}}, 0, true, 320),
        make("n_q 1", 3, 3, {{77, 300}}),
        make("n_q 2", 4, 2, {{128, 129}}),
        make("n_q 3", 6, 2, {{5, 150}}),
        make("n_q 5", 10, 2, {{250, 101}}),
        make("n_q 7", 14, 2, {{30, 50}}),
        make("n_q 8", 8, 1, {{1000, 40}}),
        make("sequences", 8, 2, {{0, 17}, {255, 2}, {256, 33}, {700, 100}, {15, 1}}),
        make("parts", 8, 2, {{700, 90}}, 256),
        make("parts whose rows see nothing", 4, 1, {{240, 40}, {510, 7}}, 256),
        make("long parts", 4, 1, {{4000, 64}}, 1024),
    };
    uint64_t seed = 100;
    for (auto &s : specs)
        test_case(launch, s, seed += 7);
    return tap_done();
}
