/* pool.c: fork and join with dynamic chunks.
 *
 * Invariants
 *  1. `claim` counts the chunks of the running region that nobody has taken yet. Who lowers it from above zero owns
 *     one chunk, and the region cannot end before that chunk is done; so fn, user and n are stable for the owner and
 *     are read only after a successful claim.
 *  2. `n_done` reaches n exactly once a region; the caller returns after it has seen that (acquire), so everything
 *     that chunks wrote is visible to it and to the next region.
 *  3. Sleeping: a worker announces itself in `n_sleeping` and then looks at `claim` once more; the caller publishes
 *     `claim` and then looks at `n_sleeping`. Both are sequentially consistent, so one of them sees the other.
 *
 * A worker that wakes late finds nothing to claim; nobody ever waits for a worker that has taken no chunk. */
#include "kernels/cpu/pool.h"
#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#define SPIN_NS_MAX      100000u /* a step's serial gaps on the CPU are shorter than this */
#define PAUSES_PER_CLOCK 32u
#define CACHE_LINE       64

typedef struct {
    qk_pool *pool;
    pthread_t thread;
    uint32_t index;
} pool_worker;

struct qk_pool {
    _Alignas(CACHE_LINE) atomic_uint claim;
    _Alignas(CACHE_LINE) atomic_uint n_done;
    _Alignas(CACHE_LINE) atomic_uint n_sleeping;
    atomic_bool caller_sleeps;
    atomic_bool quit;
    _Alignas(CACHE_LINE) qk_pool_fn fn;
    void *user;
    uint32_t n;
    uint32_t n_threads, n_started;
    uint64_t spin_ns;
    pthread_mutex_t lock;
    pthread_cond_t work, done;
    pool_worker *workers; /* [n_threads - 1] */
};

static inline void cpu_pause(void)
{
#if defined(__x86_64__) || defined(__i386__)
    __builtin_ia32_pause();
#elif defined(__aarch64__)
    __asm__ volatile("yield");
#endif
}

static uint64_t now_ns(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

/* Takes one chunk; false when none is left. */
static bool claim_chunk(qk_pool *pool, uint32_t *index)
{
    unsigned left = atomic_load_explicit(&pool->claim, memory_order_acquire);
    while (left > 0) {
        if (atomic_compare_exchange_weak_explicit(
                &pool->claim, &left, left - 1, memory_order_acq_rel, memory_order_acquire)) {
            *index = pool->n - left;
            return true;
        }
    }
    return false;
}

static void run_chunks(qk_pool *pool, uint32_t worker)
{
    uint32_t index;
    while (claim_chunk(pool, &index)) {
        uint32_t n = pool->n;
        pool->fn(pool->user, index, worker);
        /* From this increment on the region may end and its fields may change. */
        if (atomic_fetch_add(&pool->n_done, 1) + 1 == n && worker != 0 && atomic_load(&pool->caller_sleeps)) {
            pthread_mutex_lock(&pool->lock);
            pthread_cond_signal(&pool->done);
            pthread_mutex_unlock(&pool->lock);
        }
    }
}

static bool has_work(qk_pool *pool)
{
    return atomic_load(&pool->claim) > 0 || atomic_load(&pool->quit);
}

static void wait_for_work(qk_pool *pool)
{
    if (pool->spin_ns > 0) {
        uint64_t end = now_ns() + pool->spin_ns;
        do {
            for (uint32_t i = 0; i < PAUSES_PER_CLOCK; i++) {
                if (has_work(pool))
                    return;
                cpu_pause();
            }
        } while (now_ns() < end);
    }
    pthread_mutex_lock(&pool->lock);
    atomic_fetch_add(&pool->n_sleeping, 1);
    while (!has_work(pool))
        pthread_cond_wait(&pool->work, &pool->lock);
    atomic_fetch_sub(&pool->n_sleeping, 1);
    pthread_mutex_unlock(&pool->lock);
}

static void *worker_main(void *arg)
{
    pool_worker *self = arg;
    qk_pool *pool = self->pool;
    while (true) {
        wait_for_work(pool);
        if (atomic_load(&pool->quit))
            return NULL;
        run_chunks(pool, self->index);
    }
}

qk_pool *qk_pool_new(uint32_t n_threads)
{
    return qk_pool_new_spinning(n_threads, SPIN_NS_MAX);
}

qk_pool *qk_pool_new_spinning(uint32_t n_threads, uint64_t spin_ns)
{
    if (n_threads == 0)
        return NULL;
    qk_pool *pool = aligned_alloc(CACHE_LINE, (sizeof(*pool) + CACHE_LINE - 1) / CACHE_LINE * CACHE_LINE);
    if (pool == NULL)
        return NULL;
    memset(pool, 0, sizeof(*pool));
    pool->n_threads = n_threads;
    /* Spinning only pays when every thread has a core of its own. */
    pool->spin_ns = n_threads <= qk_pool_n_cores() ? spin_ns : 0;
    pthread_mutex_init(&pool->lock, NULL);
    pthread_cond_init(&pool->work, NULL);
    pthread_cond_init(&pool->done, NULL);
    pool->workers = calloc(n_threads, sizeof(*pool->workers));
    if (pool->workers == NULL) {
        qk_pool_free(pool);
        return NULL;
    }
    for (uint32_t i = 1; i < n_threads; i++) {
        pool_worker *worker = &pool->workers[i - 1];
        worker->pool = pool;
        worker->index = i;
        if (pthread_create(&worker->thread, NULL, worker_main, worker) != 0) {
            qk_pool_free(pool);
            return NULL;
        }
        pool->n_started++;
    }
    return pool;
}

void qk_pool_free(qk_pool *pool)
{
    if (pool == NULL)
        return;
    pthread_mutex_lock(&pool->lock);
    atomic_store(&pool->quit, true);
    pthread_cond_broadcast(&pool->work);
    pthread_mutex_unlock(&pool->lock);
    for (uint32_t i = 0; i < pool->n_started; i++)
        pthread_join(pool->workers[i].thread, NULL);
    pthread_cond_destroy(&pool->work);
    pthread_cond_destroy(&pool->done);
    pthread_mutex_destroy(&pool->lock);
    free(pool->workers);
    free(pool);
}

uint32_t qk_pool_n_threads(const qk_pool *pool)
{
    return pool->n_threads;
}

static void wait_for_chunks(qk_pool *pool, uint32_t n)
{
    uint64_t end = 0;
    for (uint32_t i = 1; atomic_load(&pool->n_done) != n; i++) {
        cpu_pause();
        if (i % PAUSES_PER_CLOCK != 0)
            continue;
        if (end == 0)
            end = now_ns() + pool->spin_ns;
        if (now_ns() < end)
            continue;
        /* A worker lost its core in the middle of a chunk: leave ours to it. */
        pthread_mutex_lock(&pool->lock);
        atomic_store(&pool->caller_sleeps, true);
        while (atomic_load(&pool->n_done) != n)
            pthread_cond_wait(&pool->done, &pool->lock);
        atomic_store(&pool->caller_sleeps, false);
        pthread_mutex_unlock(&pool->lock);
        return;
    }
}

void qk_pool_run(qk_pool *pool, qk_pool_fn fn, void *user, uint32_t n)
{
    if (n <= 1 || pool->n_threads == 1) {
        for (uint32_t i = 0; i < n; i++)
            fn(user, i, 0);
        return;
    }
    pool->fn = fn;
    pool->user = user;
    pool->n = n;
    atomic_store(&pool->n_done, 0);
    atomic_store(&pool->claim, n);
    if (atomic_load(&pool->n_sleeping) > 0) {
        pthread_mutex_lock(&pool->lock);
        pthread_cond_broadcast(&pool->work);
        pthread_mutex_unlock(&pool->lock);
    }
    run_chunks(pool, 0);
    wait_for_chunks(pool, n);
}

/* Cores that the control group at @path allows by its quota; 0 when it sets none. */
static uint32_t cgroup_cores(const char *path)
{
    char file[4200];
    unsigned long long quota = 0, period = 0;
    if (snprintf(file, sizeof(file), "/sys/fs/cgroup%s/cpu.max", path) >= (int)sizeof(file))
        return 0;
    FILE *f = fopen(file, "re");
    if (f == NULL)
        return 0;
    /* "max 100000" means no limit and does not scan as a number. */
    bool limited = fscanf(f, "%llu %llu", &quota, &period) == 2 && quota > 0 && period > 0;
    fclose(f);
    if (!limited)
        return 0;
    unsigned long long cores = quota / period + (quota % period != 0);
    return cores < UINT32_MAX ? (uint32_t)cores : 0;
}

uint32_t qk_pool_n_cores(void)
{
    uint32_t n_cores = 1;
    cpu_set_t mask;
    if (sched_getaffinity(0, sizeof(mask), &mask) == 0 && CPU_COUNT(&mask) > 0)
        n_cores = (uint32_t)CPU_COUNT(&mask);

    char path[4096] = "";
    FILE *f = fopen("/proc/self/cgroup", "re");
    if (f != NULL) {
        char line[4096];
        while (fgets(line, sizeof(line), f) != NULL) {
            if (strncmp(line, "0::", 3) == 0) {
                line[strcspn(line, "\n")] = '\0';
                snprintf(path, sizeof(path), "%s", line + 3);
            }
        }
        fclose(f);
    }
    /* Each ancestor may set a quota of its own. */
    while (true) {
        uint32_t limit = cgroup_cores(strcmp(path, "/") == 0 ? "" : path);
        if (limit > 0 && limit < n_cores)
            n_cores = limit;
        char *slash = strrchr(path, '/');
        if (slash == NULL)
            break;
        *slash = '\0';
    }
    return n_cores;
}
