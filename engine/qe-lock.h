/* qe-lock.h: mutex and condition of the engine, on pthreads rather than GLib's own futexes, because the thread sanitizer
 * sees pthreads. Deadlines are monotonic microseconds, as g_get_monotonic_time() counts. Internal. */
#pragma once
#include <glib.h>
#include <pthread.h>
#include <stdbool.h>
#include <time.h>

G_BEGIN_DECLS

typedef pthread_mutex_t qe_mutex;
typedef pthread_cond_t qe_cond;

static inline void qe_mutex_init(qe_mutex *mutex)
{
    pthread_mutex_init(mutex, NULL);
}

static inline void qe_mutex_clear(qe_mutex *mutex)
{
    pthread_mutex_destroy(mutex);
}

static inline void qe_mutex_lock(qe_mutex *mutex)
{
    pthread_mutex_lock(mutex);
}

static inline void qe_mutex_unlock(qe_mutex *mutex)
{
    pthread_mutex_unlock(mutex);
}

static inline void qe_cond_init(qe_cond *cond)
{
    pthread_condattr_t attr;
    pthread_condattr_init(&attr);
    pthread_condattr_setclock(&attr, CLOCK_MONOTONIC);
    pthread_cond_init(cond, &attr);
    pthread_condattr_destroy(&attr);
}

static inline void qe_cond_clear(qe_cond *cond)
{
    pthread_cond_destroy(cond);
}

static inline void qe_cond_broadcast(qe_cond *cond)
{
    pthread_cond_broadcast(cond);
}

static inline void qe_cond_wait(qe_cond *cond, qe_mutex *mutex)
{
    pthread_cond_wait(cond, mutex);
}

/* false: the deadline has passed. */
static inline bool qe_cond_wait_until(qe_cond *cond, qe_mutex *mutex, gint64 deadline)
{
    struct timespec at = {
        .tv_sec = (time_t)(deadline / G_USEC_PER_SEC), .tv_nsec = (long)(deadline % G_USEC_PER_SEC) * 1000};
    return pthread_cond_timedwait(cond, mutex, &at) == 0;
}

G_END_DECLS
