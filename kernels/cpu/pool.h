/* pool.h: the CPU backend's threads. Internal to kernels/cpu.
 *
 * One caller at a time runs a region: n chunks, each run exactly once, by the caller or a worker, in any order. What a
 * chunk computes must depend on its index alone; then results do not depend on the number of threads. Between regions
 * workers spin for some microseconds, then sleep, so that an idle pool costs nothing. */
#pragma once
#include <stdint.h>

typedef struct qk_pool qk_pool;

/* @worker: 0 for the caller, else 1..n_threads-1; names the scratch that the chunk may use. */
typedef void (*qk_pool_fn)(void *user, uint32_t index, uint32_t worker);

/* @n_threads: at least 1, the calling thread included. NULL when a thread or memory is not to be had. */
qk_pool *qk_pool_new(uint32_t n_threads);
/* The same with another time that idle workers spin, for regions that come at a known pace. Nobody spins where there are
 * more threads than cores. */
qk_pool *qk_pool_new_spinning(uint32_t n_threads, uint64_t spin_ns);
void qk_pool_free(qk_pool *pool); /* no region may be running; NULL is fine */
uint32_t qk_pool_n_threads(const qk_pool *pool);

/* Runs chunks 0..n-1 and returns when all have finished. Not to be called from inside a chunk. */
void qk_pool_run(qk_pool *pool, qk_pool_fn fn, void *user, uint32_t n);

/* Cores that this process may use: its affinity mask, cut to its control group's quota (version 2). At least 1. */
uint32_t qk_pool_n_cores(void);
