/* bench-cpu-ops.c: speed of each CPU op against what the machine can do.
 *
 *   bench-cpu-ops [--isa NAME] [--threads N] [--only TEXT] [--rounds N] [--json]
 *
 * Two ceilings are measured with the same threads and, because machines are shared and clocks move, in the same rounds
 * as the op: a plain read loop over the same memory (GB/s), and dependent FMAs held in registers (GFLOP/s). Each of
 * the three is timed once a round, for some milliseconds; the best round counts. A share is best over best.
 *
 * Attention is timed over bf16 and over int8 pages, whose bytes include the scales. Its Mtok/s are cached tokens that a
 * row attended to, each with its K and V of 8 kv heads of one layer: what both kinds of pages have in common.
 *
 * Weights and pages lie in more memory than caches hold, except for the cases named "cached". Flops: 2 for each
 * multiply-add. Bytes: weights, or K and V, once a call; --json prints one object a line and nothing else. */
#include <math.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include "kernels/cpu/qk-cpu-ops.h"
#ifdef __x86_64__
#include <immintrin.h>
#endif

enum { THREADS_MAX = 64, ROWS_MAX = 512, N_MAX = 4096 };
static const size_t pool_bytes = (size_t)512 << 20;   /* weights or pages */
static const size_t cached_bytes = (size_t)8 << 20;   /* of the pool, for cached cases */
static const size_t sample_bytes = (size_t)192 << 20; /* read in one sample of a memory-bound case */
static const double sample_flops = 3e9;               /* in one sample of the others, a thread */

static const qk_cpu_ops *ops;
static char *pool;
static float *x_rows, *y_rows; /* [ROWS_MAX, N_MAX] */
static int n_rounds = 9;
static bool json;
static volatile float sink;

/* ---- Threads: every sample runs one function on all of them --------------------------------------------------- */

typedef void (*work_fn)(const void *arg, int thread, int n_threads);
static struct {
    int n_threads;
    pthread_t threads[THREADS_MAX];
    pthread_barrier_t barrier;
    work_fn work;
    const void *arg;
    double begin[THREADS_MAX], end[THREADS_MAX];
} team;

static double now_s(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

static void team_turn(int thread)
{
    team.begin[thread] = now_s();
    team.work(team.arg, thread, team.n_threads);
    team.end[thread] = now_s();
    pthread_barrier_wait(&team.barrier);
}

static void *team_main(void *arg)
{
    const int thread = (int)(intptr_t)arg;
    for (;;) {
        pthread_barrier_wait(&team.barrier);
        if (team.work == NULL) {
            return NULL;
        }
        team_turn(thread);
    }
}

static void team_start(int n_threads)
{
    team.n_threads = n_threads;
    pthread_barrier_init(&team.barrier, NULL, (unsigned)n_threads);
    for (int i = 1; i < n_threads; i++) {
        if (pthread_create(&team.threads[i], NULL, team_main, (void *)(intptr_t)i) != 0) {
            fprintf(stderr, "bench-cpu-ops: cannot start thread %d\n", i);
            exit(1);
        }
    }
}

static void team_stop(void)
{
    team.work = NULL;
    pthread_barrier_wait(&team.barrier);
    for (int i = 1; i < team.n_threads; i++) {
        pthread_join(team.threads[i], NULL);
    }
    pthread_barrier_destroy(&team.barrier);
}

/* Seconds from the first thread's begin to the last one's end. */
static double team_sample(work_fn work, const void *arg)
{
    team.work = work;
    team.arg = arg;
    pthread_barrier_wait(&team.barrier);
    team_turn(0);
    double begin = team.begin[0], end = team.end[0];
    for (int i = 1; i < team.n_threads; i++) {
        begin = fmin(begin, team.begin[i]);
        end = fmax(end, team.end[i]);
    }
    return end - begin;
}

/* ---- Ceilings ------------------------------------------------------------------------------------------------- */

enum { FMA_CHAINS = 12, FMA_TURNS = 2000000 };

#ifdef __x86_64__
__attribute__((target("avx512f"))) static void read_avx512(const char *p, size_t bytes)
{
    __m512i a = _mm512_setzero_si512(), b = a, c = a, d = a;
    for (size_t i = 0; i < bytes; i += 256) {
        a = _mm512_or_si512(a, _mm512_load_si512(p + i));
        b = _mm512_or_si512(b, _mm512_load_si512(p + i + 64));
        c = _mm512_or_si512(c, _mm512_load_si512(p + i + 128));
        d = _mm512_or_si512(d, _mm512_load_si512(p + i + 192));
    }
    a = _mm512_or_si512(_mm512_or_si512(a, b), _mm512_or_si512(c, d));
    sink = (float)_mm512_reduce_or_epi32(a);
}

__attribute__((target("avx2"))) static void read_avx2(const char *p, size_t bytes)
{
    __m256i a = _mm256_setzero_si256(), b = a, c = a, d = a;
    for (size_t i = 0; i < bytes; i += 128) {
        a = _mm256_or_si256(a, _mm256_load_si256((const __m256i *)(const void *)(p + i)));
        b = _mm256_or_si256(b, _mm256_load_si256((const __m256i *)(const void *)(p + i + 32)));
        c = _mm256_or_si256(c, _mm256_load_si256((const __m256i *)(const void *)(p + i + 64)));
        d = _mm256_or_si256(d, _mm256_load_si256((const __m256i *)(const void *)(p + i + 96)));
    }
    a = _mm256_or_si256(_mm256_or_si256(a, b), _mm256_or_si256(c, d));
    sink = (float)_mm256_extract_epi32(a, 0);
}

/* Returns the flops of one call. */
__attribute__((target("avx512f"))) static double fma_avx512(void)
{
    __m512 sum[FMA_CHAINS];
    const __m512 a = _mm512_set1_ps(0.999f), b = _mm512_set1_ps(0.001f);
    for (int k = 0; k < FMA_CHAINS; k++) {
        sum[k] = _mm512_set1_ps((float)k);
    }
    for (int i = 0; i < FMA_TURNS; i++) {
#pragma GCC unroll 12
        for (int k = 0; k < FMA_CHAINS; k++) {
            sum[k] = _mm512_fmadd_ps(sum[k], a, b);
        }
    }
    for (int k = 1; k < FMA_CHAINS; k++) {
        sum[0] = _mm512_add_ps(sum[0], sum[k]);
    }
    sink = _mm512_cvtss_f32(sum[0]);
    return 2.0 * 16 * FMA_CHAINS * FMA_TURNS;
}

__attribute__((target("avx2,fma"))) static double fma_avx2(void)
{
    __m256 sum[FMA_CHAINS];
    const __m256 a = _mm256_set1_ps(0.999f), b = _mm256_set1_ps(0.001f);
    for (int k = 0; k < FMA_CHAINS; k++) {
        sum[k] = _mm256_set1_ps((float)k);
    }
    for (int i = 0; i < FMA_TURNS; i++) {
#pragma GCC unroll 12
        for (int k = 0; k < FMA_CHAINS; k++) {
            sum[k] = _mm256_fmadd_ps(sum[k], a, b);
        }
    }
    for (int k = 1; k < FMA_CHAINS; k++) {
        sum[0] = _mm256_add_ps(sum[0], sum[k]);
    }
    sink = _mm256_cvtss_f32(sum[0]);
    return 2.0 * 8 * FMA_CHAINS * FMA_TURNS;
}
#endif

static void read_plain(const char *p, size_t bytes)
{
    uint64_t a = 0;
    for (size_t i = 0; i < bytes; i += 8) {
        uint64_t v;
        memcpy(&v, p + i, 8);
        a |= v;
    }
    sink = (float)a;
}

static double fma_plain(void)
{
    float sum[FMA_CHAINS] = {0};
    for (int i = 0; i < FMA_TURNS; i++) {
        for (int k = 0; k < FMA_CHAINS; k++) {
            sum[k] = sum[k] * 0.999f + 0.001f;
        }
    }
    sink = sum[0] + sum[FMA_CHAINS - 1];
    return 2.0 * FMA_CHAINS * FMA_TURNS;
}

typedef struct {
    size_t bytes; /* of the pool */
    int n_turns;  /* reads of it */
} read_arg;

static void read_work(const void *arg, int thread, int n_threads)
{
    const read_arg *r = arg;
    const size_t part = r->bytes / (size_t)n_threads / 4096 * 4096;
    for (int turn = 0; turn < r->n_turns; turn++) {
        const char *p = pool + part * (size_t)thread;
#ifdef __x86_64__
        if (strcmp(ops->name, "avx512") == 0) {
            read_avx512(p, part);
            continue;
        } else if (strcmp(ops->name, "avx2") == 0) {
            read_avx2(p, part);
            continue;
        }
#endif
        read_plain(p, part);
    }
}

static double fma_once(void)
{
#ifdef __x86_64__
    if (strcmp(ops->name, "avx512") == 0) {
        return fma_avx512();
    } else if (strcmp(ops->name, "avx2") == 0) {
        return fma_avx2();
    }
#endif
    return fma_plain();
}

static void fma_work(const void *arg, int thread, int n_threads)
{
    (void)arg;
    (void)thread;
    (void)n_threads;
    fma_once();
}

/* ---- Cases ---------------------------------------------------------------------------------------------------- */

typedef struct {
    char name[48];
    uint32_t n_rows, n_in, n_out; /* of a product; of attention: rows, keys, query heads of a kv head */
    double flops, bytes;          /* of one sample, all threads together */
    bool cached;
    work_fn work;
    uint32_t
        n_copies; /* operands of a sample lie side by side in the pool: how many, and how often all of them */
    uint32_t n_turns;
    uint32_t head_dim;
    qk_dtype dtype; /* of attention's pages */
    double tokens;  /* of attention, in one sample: rows times keys */
} bench_case;

static void report(const bench_case *c, double seconds, double read_rate, double fma_rate)
{
    const double gflops = c->flops / seconds * 1e-9, gbytes = c->bytes / seconds * 1e-9;
    const double read_share = 100 * gbytes * 1e9 / read_rate, fma_share = 100 * gflops * 1e9 / fma_rate;
    const double mtokens = c->tokens / seconds * 1e-6;
    if (json) {
        printf("{\"op\":\"%s\",\"isa\":\"%s\",\"threads\":%d,\"rows\":%u,\"n_in\":%u,\"n_out\":%u,\"gflops\":"
               "%.2f,"
               "\"gbytes_per_s\":%.2f,\"read_gbytes_per_s\":%.2f,\"fma_gflops\":%.2f,\"read_share\":%.3f,"
               "\"fma_share\":%.3f,\"mtokens_per_s\":%.3f}\n",
            c->name, ops->name, team.n_threads, c->n_rows, c->n_in, c->n_out, gflops, gbytes,
            read_rate * 1e-9, fma_rate * 1e-9, read_share / 100, fma_share / 100, mtokens);
    } else {
        printf("%-20s %5u %5u %6u %3d  %8.1f %5.1f%%  %8.1f %5.1f%%  (%.1f GB/s, %.1f GFLOP/s)", c->name,
            c->n_rows, c->n_in, c->n_out, team.n_threads, gbytes, read_share, gflops, fma_share,
            read_rate * 1e-9, fma_rate * 1e-9);
        if (c->tokens > 0)
            printf("  %.2f Mtok/s", mtokens);
        printf("\n");
    }
    fflush(stdout);
}

static void run_case(const bench_case *c)
{
    const read_arg read = {
        c->cached ? cached_bytes : sample_bytes, c->cached ? (int)(sample_bytes / cached_bytes) : 1};
    double best = INFINITY, best_read = INFINITY, best_fma = INFINITY;
    for (int round = 0; round < n_rounds; round++) {
        best_read = fmin(best_read, team_sample(read_work, &read));
        best = fmin(best, team_sample(c->work, c));
        best_fma = fmin(best_fma, team_sample(fma_work, NULL));
    }
    static double fma_flops;
    if (fma_flops == 0) {
        fma_flops = fma_once();
    }
    report(c, best, (double)read.bytes * read.n_turns / best_read, fma_flops * team.n_threads / best_fma);
}

/* Each thread takes its part of the outputs of every copy, as the backend deals them. */
static void matmul_work(const void *arg, int thread, int n_threads)
{
    const bench_case *c = arg;
    const uint32_t n = (uint32_t)n_threads, t = (uint32_t)thread;
    const uint32_t begin = (uint32_t)((uint64_t)c->n_out * t / n / 4 * 4);
    const uint32_t end = t + 1 == n ? c->n_out : (uint32_t)((uint64_t)c->n_out * (t + 1) / n / 4 * 4);
    for (uint32_t turn = 0; turn < c->n_turns; turn++) {
        for (uint32_t copy = 0; copy < c->n_copies; copy++) {
            const qk_bf16 *w = (const qk_bf16 *)(void *)pool + (size_t)copy * c->n_in * c->n_out;
            ops->matmul_bf16(y_rows, c->n_out, x_rows, c->n_in, w, c->n_rows, c->n_in, begin, end);
        }
    }
}

static void matmul_case(const char *name, uint32_t n_rows, uint32_t n_in, uint32_t n_out, bool cached)
{
    bench_case c = {.n_rows = n_rows, .n_in = n_in, .n_out = n_out, .cached = cached, .work = matmul_work};
    snprintf(c.name, sizeof c.name, "%s", name);
    const double flops = 2.0 * n_rows * n_in * n_out, bytes = 2.0 * n_in * n_out;
    const double room = (double)(cached ? cached_bytes : sample_bytes) / bytes;
    const double wanted = fmin(sample_flops * team.n_threads / flops, (double)sample_bytes / bytes);
    c.n_copies = (uint32_t)fmax(1, fmin(room, wanted));
    c.n_turns = (uint32_t)fmax(1, wanted / c.n_copies);
    c.flops = flops * c.n_copies * c.n_turns;
    c.bytes = bytes * c.n_copies * c.n_turns;
    run_case(&c);
}

enum { KV_HEADS = 8, SPAN_PAGES = QK_SPAN_TOKENS / QK_PAGE_TOKENS };

static qk_kv_layout page_layout(const bench_case *c)
{
    const qk_shape shape = {.n_layers = 1, .n_kv_heads = KV_HEADS, .head_dim = c->head_dim};
    qk_kv_layout layout;
    qk_kv_layout_page_major(&shape, c->dtype, &layout);
    return layout;
}

/* The pool's bytes are any int8 values; their scales become 2^-10, so that scores are of ordinary size. */
static void fill_scales(const bench_case *c)
{
    const qk_kv_layout l = page_layout(c);
    for (size_t page = 0; c->dtype == QK_I8 && page < (size_t)c->n_copies * SPAN_PAGES; page++)
        for (uint32_t slice = 0; slice < 2 * KV_HEADS; slice++)
            for (uint32_t t = 0; t < QK_PAGE_TOKENS; t++) {
                const qk_f16 scale = 0x1400;
                memcpy(pool + page * l.page_bytes + slice * l.v_offset + l.scale_offset + 2 * t, &scale,
                    sizeof scale);
            }
}

/* Page-major pages of one layer of 8 kv heads in a scattered order; threads share the heads. */
static void attend_work(const void *arg, int thread, int n_threads)
{
    const bench_case *c = arg;
    const qk_kv_layout layout = page_layout(c);
    const uint32_t n_q = c->n_out;
    float *scratch = aligned_alloc(64, qk_cpu_attend_scratch_floats(n_q, c->head_dim) * sizeof(float));
    const float *q[QK_CPU_ATTEND_ROWS_MAX];
    float *out[QK_CPU_ATTEND_ROWS_MAX], *lse[QK_CPU_ATTEND_ROWS_MAX];
    uint32_t n_keys[QK_CPU_ATTEND_ROWS_MAX];
    for (uint32_t r = 0; r < c->n_rows; r++) {
        q[r] = x_rows + (size_t)r * N_MAX;
        out[r] = y_rows + ((size_t)thread * QK_CPU_ATTEND_ROWS_MAX + r) * N_MAX;
        lse[r] = out[r] + (size_t)n_q * c->head_dim;
        n_keys[r] = c->n_in;
    }
    for (uint32_t turn = 0; turn < c->n_turns; turn++) {
        for (uint32_t i = 0; i < c->n_copies; i++) {
            for (uint32_t head = (uint32_t)thread; head < KV_HEADS; head += (uint32_t)n_threads) {
                const void *k[SPAN_PAGES], *v[SPAN_PAGES];
                for (uint32_t p = 0; p < SPAN_PAGES; p++) {
                    size_t page = ((size_t)i * SPAN_PAGES + p) * 7919u % ((size_t)c->n_copies * SPAN_PAGES);
                    k[p] = pool + page * layout.page_bytes + head * layout.head_stride;
                    v[p] = (const char *)k[p] + layout.v_offset;
                }
                qk_cpu_attend a = {k, v, layout.token_stride, c->head_dim, n_q, c->n_rows, n_keys, q,
                    1.0f / sqrtf((float)c->head_dim), out, lse, scratch, layout.scale_offset};
                qk_cpu_attend_pages(ops, c->dtype, &a);
            }
        }
    }
    free(scratch);
}

static void attend_case(qk_dtype dtype, uint32_t head_dim, uint32_t n_q, uint32_t n_rows)
{
    bench_case c = {.n_rows = n_rows,
        .n_in = QK_SPAN_TOKENS,
        .n_out = n_q,
        .work = attend_work,
        .head_dim = head_dim,
        .dtype = dtype};
    snprintf(c.name, sizeof c.name, "attend-%s-%u", dtype == QK_I8 ? "int8" : "bf16", head_dim);
    const double bytes = (double)SPAN_PAGES * (double)page_layout(&c).page_bytes;
    const double flops = (double)KV_HEADS * 4 * QK_SPAN_TOKENS * head_dim * n_q * n_rows;
    const double wanted = fmin(sample_flops * team.n_threads / flops, (double)sample_bytes / bytes);
    c.n_copies = (uint32_t)fmax(1, wanted);
    c.n_turns = 1;
    c.flops = flops * c.n_copies;
    c.bytes = bytes * c.n_copies;
    fill_scales(&c);
    c.tokens = (double)n_rows * QK_SPAN_TOKENS * c.n_copies;
    run_case(&c);
}

/* The small ones, on rows in L1 or L2: bytes read and written. */
static void row_work(const void *arg, int thread, int n_threads)
{
    const bench_case *c = arg;
    (void)n_threads;
    float *x = x_rows + (size_t)(2 * thread) * N_MAX, *y = y_rows + (size_t)thread * N_MAX;
    for (uint32_t turn = 0; turn < c->n_turns; turn++) {
        if (strcmp(c->name, "rms-norm") == 0) {
            ops->rms_norm(y, x, x + N_MAX, c->n_in, 1e-6f);
        } else if (strcmp(c->name, "silu-mul") == 0) {
            ops->silu_mul(y, x, c->n_in);
        } else if (strcmp(c->name, "rope") == 0) {
            ops->rope(y, x, c->n_in);
        } else if (strcmp(c->name, "add") == 0) {
            ops->add(y, x, c->n_in);
        } else if (strcmp(c->name, "f32-to-i8") == 0) {
            qk_f16 scale;
            ops->f32_to_i8((int8_t *)y, &scale, x, c->n_in);
        } else {
            ops->f32_to_bf16((qk_bf16 *)(void *)y, x, c->n_in);
        }
    }
}

static void row_case(const char *name, uint32_t n, uint32_t bytes_per_element, uint32_t flops_per_element)
{
    bench_case c = {.n_rows = 1, .n_in = n, .n_out = 1, .cached = true, .work = row_work, .n_copies = 1};
    snprintf(c.name, sizeof c.name, "%s", name);
    c.n_turns = 20000000 / n;
    c.bytes = (double)n * bytes_per_element * c.n_turns * team.n_threads;
    c.flops = (double)n * flops_per_element * c.n_turns * team.n_threads;
    run_case(&c);
}

static bool wanted(const char *only, const char *name)
{
    return only == NULL || strstr(name, only) != NULL;
}

static void run_all(const char *only)
{
    static const struct {
        const char *name;
        uint32_t n_in, n_out;
        bool cached;
    } shapes[] = {
        {"matmul-gate-0.6b", 1024, 3072, false},
        {"matmul-down-0.6b", 3072, 1024, false},
        {"matmul-q-0.6b", 1024, 2048, false},
        {"matmul-cached-up", 256, 768, true},
        {"matmul-cached-down", 768, 256, true},
    };
    static const uint32_t rows[] = {1, 2, 4, 8, 16, 32, 128, 512};
    for (size_t s = 0; s < sizeof shapes / sizeof *shapes; s++) {
        for (size_t r = 0; r < sizeof rows / sizeof *rows && wanted(only, shapes[s].name); r++) {
            matmul_case(shapes[s].name, rows[r], shapes[s].n_in, shapes[s].n_out, shapes[s].cached);
        }
    }
    static const uint32_t tiles[][3] = {
        {128, 2, 1}, {64, 4, 1}, {128, 4, 1}, {128, 1, 1}, {128, 2, 4}, {128, 2, 16}, {64, 4, 16}};
    for (size_t t = 0; t < sizeof tiles / sizeof *tiles && wanted(only, "attend"); t++) {
        attend_case(QK_BF16, tiles[t][0], tiles[t][1], tiles[t][2]);
        attend_case(QK_I8, tiles[t][0], tiles[t][1], tiles[t][2]);
    }
    static const struct {
        const char *name;
        uint32_t n, bytes, flops;
    } row_ops[] = {{"rms-norm", 1024, 12, 4}, {"silu-mul", 3072, 12, 16}, {"rope", 128, 12, 3},
        {"add", 1024, 12, 1}, {"f32-to-bf16", 1024, 6, 0}, {"f32-to-i8", 128, 5, 0}};
    for (size_t i = 0; i < sizeof row_ops / sizeof *row_ops; i++) {
        if (wanted(only, row_ops[i].name)) {
            row_case(row_ops[i].name, row_ops[i].n, row_ops[i].bytes, row_ops[i].flops);
        }
    }
}

int main(int argc, char **argv)
{
    const char *isa = NULL, *only = NULL;
    int n_threads = 0;
    for (int i = 1; i < argc; i++) {
        const bool more = i + 1 < argc;
        if (strcmp(argv[i], "--json") == 0) {
            json = true;
        } else if (strcmp(argv[i], "--isa") == 0 && more) {
            isa = argv[++i];
        } else if (strcmp(argv[i], "--only") == 0 && more) {
            only = argv[++i];
        } else if (strcmp(argv[i], "--threads") == 0 && more) {
            n_threads = atoi(argv[++i]);
        } else if (strcmp(argv[i], "--rounds") == 0 && more) {
            n_rounds = atoi(argv[++i]);
        } else {
            fprintf(stderr,
                "usage: bench-cpu-ops [--isa NAME] [--threads N] [--only TEXT] [--rounds N] [--json]\n");
            return 2;
        }
    }
    if (n_threads < 0 || n_threads > THREADS_MAX || n_rounds < 1) {
        fprintf(stderr, "bench-cpu-ops: --threads takes 1..%d, --rounds 1 or more\n", THREADS_MAX);
        return 2;
    }
    ops = qk_cpu_ops_get(isa);
    if (ops == NULL) {
        fprintf(stderr, "bench-cpu-ops: instruction set %s is not on this machine\n", isa);
        return 77;
    }
    pool = aligned_alloc(4096, pool_bytes);
    x_rows = aligned_alloc(64, sizeof(float) * ROWS_MAX * N_MAX);
    y_rows = aligned_alloc(64, sizeof(float) * ROWS_MAX * N_MAX);
    if (pool == NULL || x_rows == NULL || y_rows == NULL) {
        fprintf(stderr, "bench-cpu-ops: no memory\n");
        return 1;
    }
    for (size_t i = 0; i < pool_bytes / sizeof(qk_bf16); i++) {
        ((qk_bf16 *)(void *)pool)[i] =
            (qk_bf16)(0x3c00 + (i & 1) * 0x8000 + i * 7919 % 251); /* +-0.008 .. 0.03 */
    }
    for (size_t i = 0; i < (size_t)ROWS_MAX * N_MAX; i++) {
        x_rows[i] = y_rows[i] = (float)((int)(i * 31 % 17) - 8) * 0.1f;
    }
    if (!json) {
        printf("%s. Shares are of a plain read loop and of FMAs in registers (both at the right), same "
               "rounds.\n",
            ops->name);
        printf("%-20s %5s %5s %6s %3s  %8s %6s  %8s %6s\n", "op", "rows", "in", "out", "thr", "GB/s", "read",
            "GFLOP/s", "peak");
    }
    for (int n = n_threads > 0 ? n_threads : 1; n <= (n_threads > 0 ? n_threads : 2); n++) {
        team_start(n);
        run_all(only);
        team_stop();
    }
    free(pool);
    free(x_rows);
    free(y_rows);
    return 0;
}
