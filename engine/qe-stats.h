/* qe-stats.h: counters and the snapshot that the cache panel shows. Internal.
 *
 * The engine thread counts and publishes; any thread takes the latest snapshot (immutable, reference-counted). Nothing
 * here ticks: rates and the one-a-second history are worked out at publication, so an idle engine stays asleep. */
#pragma once
#include <glib.h>
#include <stdbool.h>
#include <stdint.h>
#include "engine/qe-kv-pages.h"
#include "engine/qe-session.h"
#include "engine/qe.h"

G_BEGIN_DECLS

typedef struct qe_stats qe_stats;

typedef struct {
    qe_session *session;
    bool running;
    qe_cache_mode mode;
} qe_stats_session;

/* The disk tier, as its view. */
typedef struct {
    bool present;
    const char *reason; /* why not; NULL: it is off */
    const char *note;   /* NULL: nothing */
    uint32_t n_pages, n_pages_max;
    uint64_t bytes_used, bytes_max, bytes_in, bytes_out;
} qe_stats_disk;

/* What a publication reads. */
typedef struct {
    qe_kv_pool *const
        *pools;   /* [QE_KV_CLASSES] by page class, NULL at the end; the first NULL: no model is loaded */
    bool is_host; /* the pool's pages lie in host memory */
    const char
        *cpu_reason; /* why the CPU computes although there is a card; NULL: the card's own reason counts */
    const qk_backend_info *device; /* the card that computes; NULL: none */
    uint64_t weights, workspace;   /* on the card */
    uint32_t n_sessions;
    const qe_stats_session *sessions; /* by id */
    uint32_t n_running, n_queued;
    const qe_stats_disk *disk; /* NULL: off */
} qe_stats_input;

qe_stats *qe_stats_new(void);
void qe_stats_free(qe_stats *self);

/* Engine thread. */
void qe_stats_count(qe_stats *self, uint32_t n_prefill, uint32_t n_decode);
void qe_stats_touch(qe_stats *self); /* something that the snapshot shows has changed */
/* When the next publication is due (monotonic microseconds); 0: nothing has changed, nothing decays. */
gint64 qe_stats_deadline(const qe_stats *self);
/* Publishes when due. Returns whether it did. */
bool qe_stats_publish(qe_stats *self, const qe_stats_input *input);

/* Any thread. */
const qe_snapshot *qe_stats_dup_snapshot(qe_stats *self);
uint32_t qe_stats_n_snapshots(void); /* that exist, for tests that look for leaks */

G_END_DECLS
