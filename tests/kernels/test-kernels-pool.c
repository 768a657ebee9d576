/* test-kernels-pool.c: the thread pool, and the streams, events and buffers of the CPU backend. */
#include "kernels/cpu/pool.h"
#include "kernels/cpu/cpu-backend.h"
#include "tests/kernels/tap.h"
#include <string.h>
#include <unistd.h>

/* ---- Pool ------------------------------------------------------------------------------------------------------- */

#define N_CHUNKS_MAX 1000u

typedef struct {
    uint32_t runs[N_CHUNKS_MAX]; /* plain: each chunk has one owner, and the region orders the regions */
    _Atomic uint32_t n_bad_workers;
    uint32_t n_threads;
} counting;

static void count_chunk(void *user, uint32_t index, uint32_t worker)
{
    counting *c = user;
    c->runs[index]++;
    if (worker >= c->n_threads)
        c->n_bad_workers++;
}

static void test_pool(uint32_t n_threads)
{
    qk_pool *pool = qk_pool_new(n_threads);
    tap_require(pool != NULL);
    static counting c;
    memset(&c, 0, sizeof(c));
    c.n_threads = n_threads;
    uint32_t want[N_CHUNKS_MAX] = {0};
    for (uint32_t region = 0; region < 3000; region++) {
        uint32_t n = region % 50 == 0 ? N_CHUNKS_MAX : region % 7;
        qk_pool_run(pool, count_chunk, &c, n);
        for (uint32_t i = 0; i < n; i++)
            want[i]++;
        if (region % 1000 == 500)
            usleep(2000); /* long enough for workers to fall asleep */
    }
    tap_ok(memcmp(want, c.runs, sizeof(want)) == 0 && c.n_bad_workers == 0 &&
               qk_pool_n_threads(pool) == n_threads,
        "3000 regions on %u threads run each chunk once", n_threads);
    qk_pool_free(pool);
}

static void sum_chunk(void *user, uint32_t index, uint32_t worker)
{
    float *sums = user, sum = 0;
    for (uint32_t i = 0; i < 1000; i++)
        sum += 1.0f / (float)(index * 1000 + i + 1);
    sums[index] = sum;
}

static void test_pool_results(void)
{
    float want[64], got[64];
    for (uint32_t n_threads = 1; n_threads <= 5; n_threads++) {
        qk_pool *pool = qk_pool_new(n_threads);
        tap_require(pool != NULL);
        memset(got, 0, sizeof(got));
        qk_pool_run(pool, sum_chunk, got, 64);
        if (n_threads == 1)
            memcpy(want, got, sizeof(want));
        else
            tap_ok(memcmp(want, got, sizeof(want)) == 0, "results on %u threads are those on one", n_threads);
        qk_pool_free(pool);
    }
    tap_ok(qk_pool_n_cores() >= 1, "%u cores", qk_pool_n_cores());
    qk_pool_free(NULL);
}

/* CPU time of an idle pool: workers sleep once they have spun out. */
static void test_pool_idle(void)
{
    qk_pool *pool = qk_pool_new(3);
    tap_require(pool != NULL);
    static counting c = {.n_threads = 3};
    qk_pool_run(pool, count_chunk, &c, 100);
    usleep(20000);
    struct timespec before, after;
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &before);
    usleep(200000);
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &after);
    double ms = (double)(after.tv_sec - before.tv_sec) * 1e3 + (double)(after.tv_nsec - before.tv_nsec) / 1e6;
    tap_ok(ms < 20, "an idle pool uses no CPU (%.2f ms in 200)", ms);
    qk_pool_free(pool);
}

/* ---- Buffers, copies, fills --------------------------------------------------------------------------------------- */

static qk_backend *backend;

static qk_buffer *buffer(qk_memory memory, uint64_t bytes)
{
    qk_buffer *b = NULL;
    tap_require(qk_buffer_new(backend, memory, bytes, &b) == QK_OK);
    return b;
}

static void finish(qk_stream stream)
{
    qk_event *event;
    tap_require(qk_event_new(backend, &event) == QK_OK);
    tap_require(qk_event_record(event, stream) == QK_OK && qk_event_wait(event) == QK_OK);
    qk_event_free(event);
}

static void test_buffers(void)
{
    static const uint64_t sizes[] = {1, 63, 4096, 2 << 20, (2 << 20) + 1, 5 << 20};
    bool ok = true;
    for (size_t i = 0; i < sizeof(sizes) / sizeof(sizes[0]); i++) {
        qk_buffer *d = buffer(QK_MEMORY_DEVICE, sizes[i]), *h = buffer(QK_MEMORY_HOST, sizes[i]);
        ok = ok && d->host == NULL && d->address != 0 && d->address % 64 == 0 && d->bytes == sizes[i];
        ok = ok && h->host != NULL && (uint64_t)(uintptr_t)h->host == h->address && h->address % 64 == 0;
        memset(h->host, 1, sizes[i]);
        qk_buffer_free(d);
        qk_buffer_free(h);
    }
    tap_ok(ok, "buffers: aligned, device memory has no host pointer");
    static const uint64_t absurd[] = {UINT64_MAX, UINT64_MAX - 64, (uint64_t)1 << 62, (uint64_t)1 << 46};
    for (size_t i = 0; i < sizeof(absurd) / sizeof(absurd[0]); i++) {
        qk_buffer *b = NULL;
        qk_status status = qk_buffer_new(backend, QK_MEMORY_DEVICE, absurd[i], &b);
        tap_ok(status == QK_NO_MEMORY && b == NULL && strlen(qk_backend_error(backend)) > 0, "%llu bytes: %s",
            (unsigned long long)absurd[i], qk_backend_error(backend));
    }
    qk_buffer *b = NULL;
    tap_ok(qk_buffer_new(backend, QK_MEMORY_DEVICE, 0, &b) == QK_INVALID, "0 bytes are refused");
}

static void test_copies(void)
{
    enum { N = 50, PIECE = 1000 };
    qk_buffer *src = buffer(QK_MEMORY_HOST, N * PIECE), *mid = buffer(QK_MEMORY_DEVICE, N * PIECE);
    qk_buffer *dst = buffer(QK_MEMORY_HOST, N * PIECE);
    uint8_t *from = src->host, *to = dst->host;
    for (uint32_t i = 0; i < N * PIECE; i++)
        from[i] = (uint8_t)(i * 31 + i / 1000);
    qk_copy copies[N];
    for (uint32_t i = 0; i < N; i++) /* in reverse order of pieces */
        copies[i] = (qk_copy){mid, (N - 1 - i) * PIECE, src, i * PIECE, PIECE};
    tap_require(qk_copy_submit(backend, QK_STREAM_TO_DEVICE, copies, N) == QK_OK);
    memset(copies, 0, sizeof(copies)); /* the array has been read */
    finish(QK_STREAM_TO_DEVICE);
    const qk_copy back = {dst, 0, mid, 0, N * PIECE};
    tap_require(qk_copy_submit(backend, QK_STREAM_TO_HOST, &back, 1) == QK_OK);
    tap_require(qk_fill_submit(backend, QK_STREAM_TO_HOST, dst, 8, 12, 0xdeadbeef) == QK_OK);
    finish(QK_STREAM_TO_HOST);
    bool ok = true;
    for (uint32_t i = 0; i < N; i++)
        for (uint32_t j = i == N - 1 ? 20 : 0; j < PIECE; j++)
            ok = ok && to[(N - 1 - i) * PIECE + j] == from[i * PIECE + j];
    uint32_t words[3];
    memcpy(words, to + 8, sizeof(words));
    tap_ok(ok && words[0] == 0xdeadbeef && words[1] == 0xdeadbeef && words[2] == 0xdeadbeef,
        "50 copies in one call, then a fill on the same stream");
    tap_ok(qk_copy_submit(backend, QK_STREAM_TO_HOST, NULL, 0) == QK_OK, "no copies at all");

    const struct {
        qk_copy copy;
        const char *what;
    } bad[] = {
        {{dst, 1, src, 0, N * PIECE}, "destination past its end"},
        {{dst, 0, src, 1, N * PIECE}, "source past its end"},
        {{dst, UINT64_MAX, src, 0, 2}, "an offset that wraps"},
        {{dst, 0, src, 0, UINT64_MAX}, "a length that wraps"},
        {{NULL, 0, src, 0, 1}, "no destination"},
        {{src, 10, src, 0, 11}, "overlap within a buffer"},
    };
    for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++)
        tap_ok(qk_copy_submit(backend, QK_STREAM_TO_HOST, &bad[i].copy, 1) == QK_INVALID &&
                   strstr(qk_backend_error(backend), "copy 0") != NULL,
            "%s: %s", bad[i].what, qk_backend_error(backend));
    tap_ok(qk_copy_submit(backend, (qk_stream)3, &back, 1) == QK_INVALID, "no such stream");
    tap_ok(qk_fill_submit(backend, QK_STREAM_COMPUTE, dst, 2, 4, 0) == QK_INVALID &&
               qk_fill_submit(backend, QK_STREAM_COMPUTE, dst, 0, 6, 0) == QK_INVALID &&
               qk_fill_submit(backend, QK_STREAM_COMPUTE, dst, 4, N * PIECE, 0) == QK_INVALID,
        "fills: whole words inside the buffer");
    qk_buffer_free(src);
    qk_buffer_free(mid);
    qk_buffer_free(dst);
}

/* ---- Events ------------------------------------------------------------------------------------------------------- */

/* A command that waits for the test's word: what makes the order of streams visible. */
typedef struct {
    _Atomic bool open;
    qk_cpu_cmd cmd;
} gate;

static void pass_gate(void *user)
{
    gate *g = user;
    while (!g->open)
        usleep(100);
}

static void enqueue_gate(gate *g, qk_stream stream)
{
    g->open = false;
    g->cmd = (qk_cpu_cmd){.kind = QK_CPU_CALL, .u.call = {pass_gate, g}};
    qk_cpu_enqueue((qk_cpu_backend *)backend, stream, &g->cmd);
}

static void test_events(void)
{
    qk_buffer *b = buffer(QK_MEMORY_HOST, 64);
    volatile uint32_t *words = b->host;
    qk_event *first, *second;
    gate g = {0}, g2 = {0};
    tap_require(qk_event_new(backend, &first) == QK_OK && qk_event_new(backend, &second) == QK_OK);
    tap_ok(
        qk_event_query(first) == QK_OK && qk_event_wait(first) == QK_OK, "an event never recorded has fired");

    enqueue_gate(&g, QK_STREAM_COMPUTE);
    tap_require(qk_fill_submit(backend, QK_STREAM_COMPUTE, b, 0, 4, 1) == QK_OK);
    tap_require(qk_event_record(first, QK_STREAM_COMPUTE) == QK_OK);
    tap_require(qk_stream_wait(backend, QK_STREAM_TO_HOST, first) == QK_OK);
    const qk_copy copy = {b, 4, b, 0, 4};
    tap_require(qk_copy_submit(backend, QK_STREAM_TO_HOST, &copy, 1) == QK_OK);
    tap_require(qk_event_record(second, QK_STREAM_TO_HOST) == QK_OK);
    /* A third stream is not held up. */
    tap_require(qk_fill_submit(backend, QK_STREAM_TO_DEVICE, b, 8, 4, 7) == QK_OK);
    finish(QK_STREAM_TO_DEVICE);
    tap_ok(words[2] == 7, "a stream that waits for nothing goes ahead");
    tap_ok(qk_event_query(first) == QK_PENDING && qk_event_query(second) == QK_PENDING,
        "both events are pending behind the gate");
    tap_ok(words[0] == 0 && words[1] == 0, "and nothing behind it has run");
    g.open = true;
    tap_ok(qk_event_wait(second) == QK_OK && words[1] == 1, "the copy saw what its event waited for");
    tap_ok(qk_event_query(first) == QK_OK, "which has fired");

    /* A wait keeps the record that it saw: recording again must not hold it up. */
    tap_require(qk_event_record(first, QK_STREAM_COMPUTE) == QK_OK);
    tap_require(qk_stream_wait(backend, QK_STREAM_TO_HOST, first) == QK_OK);
    enqueue_gate(&g, QK_STREAM_COMPUTE);
    tap_require(qk_event_record(first, QK_STREAM_COMPUTE) == QK_OK);
    finish(QK_STREAM_TO_HOST);
    tap_ok(qk_event_query(first) == QK_PENDING, "a wait stays with the record it was made for");
    g.open = true;
    tap_ok(
        qk_event_wait(first) == QK_OK && qk_event_query(first) == QK_OK, "and the new record fires in turn");

    /* Recorded on two streams in turn: the later record counts, whichever fires first. */
    enqueue_gate(&g, QK_STREAM_COMPUTE);
    enqueue_gate(&g2, QK_STREAM_TO_HOST);
    tap_require(qk_event_record(first, QK_STREAM_TO_HOST) == QK_OK);
    tap_require(qk_event_record(first, QK_STREAM_COMPUTE) == QK_OK);
    g2.open = true;
    finish(QK_STREAM_TO_HOST);
    tap_ok(qk_event_query(first) == QK_PENDING, "an event follows its last record");
    g.open = true;
    tap_ok(qk_event_wait(first) == QK_OK, "to its end");
    qk_event_free(first);
    qk_event_free(second);
    qk_buffer_free(b);
}

/* A chain through all three streams, many times, with nothing but events to order it. */
static void test_event_chain(void)
{
    qk_buffer *b = buffer(QK_MEMORY_DEVICE, 4 * 1024), *out = buffer(QK_MEMORY_HOST, 4 * 1024);
    qk_event *event;
    tap_require(qk_event_new(backend, &event) == QK_OK);
    uint32_t n_wrong = 0;
    for (uint32_t round = 0; round < 300; round++) {
        const qk_copy copy = {out, 0, b, 0, 4 * 1024};
        tap_require(qk_fill_submit(backend, QK_STREAM_TO_DEVICE, b, 0, 4 * 1024, round) == QK_OK);
        tap_require(qk_event_record(event, QK_STREAM_TO_DEVICE) == QK_OK);
        tap_require(qk_stream_wait(backend, QK_STREAM_COMPUTE, event) == QK_OK);
        tap_require(qk_fill_submit(backend, QK_STREAM_COMPUTE, b, 0, 4, round + 1) == QK_OK);
        tap_require(qk_event_record(event, QK_STREAM_COMPUTE) == QK_OK);
        tap_require(qk_stream_wait(backend, QK_STREAM_TO_HOST, event) == QK_OK);
        tap_require(qk_copy_submit(backend, QK_STREAM_TO_HOST, &copy, 1) == QK_OK);
        tap_require(qk_event_record(event, QK_STREAM_TO_HOST) == QK_OK);
        tap_require(qk_stream_wait(backend, QK_STREAM_TO_DEVICE, event) == QK_OK);
        if (round % 10 == 9) {
            tap_require(qk_event_wait(event) == QK_OK);
            const uint32_t *words = out->host;
            n_wrong += words[0] != round + 1 || words[1] != round || words[1023] != round;
        }
    }
    tap_ok(n_wrong == 0, "300 rounds over three streams stay in order");
    qk_event_free(event);
    qk_buffer_free(b);
    qk_buffer_free(out);
}

static void test_open(void)
{
    qk_probe probes[4];
    memset(probes, 0xff, sizeof(probes));
    size_t n = qk_probe_backends(probes, 4);
    bool has_cpu = false;
    for (size_t i = 0; i < n && i < 4; i++) {
        tap_note("%s: %s%s", probes[i].name, probes[i].device, probes[i].reason);
        tap_ok(probes[i].available ? probes[i].reason[0] == '\0' && probes[i].device[0] != '\0'
                                   : probes[i].reason[0] != '\0',
            "%s says what it is or why it is not", probes[i].name);
        has_cpu = has_cpu || (strcmp(probes[i].name, "cpu") == 0 && probes[i].available);
    }
    tap_ok(has_cpu && qk_probe_backends(NULL, 0) == n, "the CPU is among %zu backends", n);
    qk_backend *b;
    char error[160] = "";
    tap_ok(qk_backend_open("abacus", NULL, &b, error, sizeof(error)) == QK_UNSUPPORTED && b == NULL, "%s",
        error);
    qk_backend_options o = {.isa = "mmx"};
    tap_ok(qk_backend_open("cpu", &o, &b, error, sizeof(error)) == QK_UNSUPPORTED && b == NULL, "%s", error);
    o = (qk_backend_options){.n_threads = 100000};
    tap_ok(qk_backend_open("cpu", &o, &b, error, sizeof(error)) == QK_INVALID && b == NULL, "%s", error);
    tap_ok(strcmp(qk_status_name(QK_PENDING), "pending") == 0 && qk_status_name((qk_status)99) != NULL,
        "statuses have names");
    qk_backend_free(NULL);
}

int main(void)
{
    for (uint32_t n_threads = 1; n_threads <= 4; n_threads++)
        test_pool(n_threads);
    test_pool_results();
    test_pool_idle();
    test_open();
    char error[160] = "";
    tap_require(qk_backend_open(
                    "cpu", &(qk_backend_options){.n_threads = 2}, &backend, error, sizeof(error)) == QK_OK);
    qk_backend_info info;
    qk_backend_get_info(backend, &info);
    tap_ok(info.is_host && info.n_threads == 2 && info.memory_total > 0 && info.memory_free > 0 &&
               strstr(info.device, "2 threads") != NULL,
        "%s", info.device);
    static const char *const sets[] = {"reference", "avx2", "avx512"};
    for (int i = 0; i < 3;
         i++) { /* what runs is what was asked for; when nothing was, it is one of them too */
        qk_backend *other;
        if (qk_backend_open("cpu", &(qk_backend_options){.n_threads = 1, .isa = sets[i]}, &other, error,
                sizeof(error)) != QK_OK)
            continue;
        qk_backend_info o;
        qk_backend_get_info(other, &o);
        tap_ok(strcmp(o.kernels, sets[i]) == 0, "kernels %s", o.kernels);
        qk_backend_free(other);
    }
    tap_ok(strcmp(info.kernels, "reference") == 0 || strcmp(info.kernels, "avx2") == 0 ||
               strcmp(info.kernels, "avx512") == 0,
        "kernels by themselves: %s", info.kernels);
    test_buffers();
    test_copies();
    test_events();
    test_event_chain();
    qk_backend_free(backend);
    return tap_done();
}
