/* qe-core.h: the engine thread's world: the loaded model on its device, the page pool, all timelines, and the requests
 * that wait and run. Internal; engine thread only. qe-engine.c owns the thread, the commands and what other threads see;
 * here is what happens between two commands. */
#pragma once
#include <glib.h>
#include <stdbool.h>
#include <stdint.h>
#include "engine/qe-backend.h"
#include "engine/qe-kv-pages.h"
#include "engine/qe-model.h"
#include "engine/qe-queue.h"
#include "engine/qe-request.h"
#include "engine/qe-sched.h"
#include "engine/qe-session.h"
#include "engine/qe-stats.h"
#include "engine/qe-step.h"
#include "engine/qe-template.h"
#include "engine/qe.h"

G_BEGIN_DECLS

/* A session and what the engine keeps about it. */
typedef struct qe_timeline {
    uint64_t id;
    qe_session *session;
    qe_request *request; /* one reference: the one that waits or runs; NULL when idle */
    uint64_t last_used;  /* the core's clock: idle sessions give their pages oldest first */
    uint32_t
        n_computed; /* the first n ids had their KV computed at some time: what lies past n_cached is recomputed */
    qe_cache_config cache;     /* as asked for */
    qe_cache_mode mode;        /* what that comes to; AUTO: not applied yet */
    char *disk_key;            /* may be NULL */
    struct qe_core_file *disk; /* of qe-core-disk.c: its pages are kept on disk; NULL: not */
    uint32_t kv_class;         /* of its pages: the session is bound to that pool */
    bool mode_changed;         /* since the last turn, and what was cached went */
    bool evicted;              /* pages were given up since the last turn */
    GError *broken;            /* the fork that should have made it failed; its first request says so */
    GError *no_mode;           /* why the mode asked for is not offered here: requests say so; NULL: it is */
    bool temporary;            /* an eval without a session */
    bool synthetic;            /* prompts that find nothing cached are filled, not computed */
} qe_timeline;

typedef struct qe_core qe_core;
typedef struct qe_core_disk qe_core_disk;

/* What the core tells its owner, on the engine thread. */
typedef struct {
    void (*session_idle)(void *user, qe_session_id session); /* before its request's last word is sent */
    void *user;
} qe_core_events;

struct qe_core {
    /* Constant. */
    qe_queue *queue; /* borrowed */
    qe_stats *stats; /* borrowed */
    qe_core_events events;
    qe_backend_opener opener;
    qe_kv_class kv_class;
    uint64_t kv_bytes_max;
    uint64_t memory_reserve;    /* of device memory */
    uint64_t host_bytes_wanted; /* 0: a default, 1: none */
    uint64_t ring_bytes;        /* on a device with memory of its own */
    qe_host_path host_path_wanted;
    char *host_paths_file;   /* NULL: none */
    char *disk_dir;          /* NULL: no disk tier */
    uint64_t disk_bytes_max; /* its quota */
    uint32_t context_wanted, step_rows_wanted, step_ms_shared, step_ms_alone;
    bool check;

    /* While a model is loaded; all NULL otherwise. After a loss the device part is NULL and the rest stays. */
    qe_model *model;
    qe_tokenizer *tokenizer;
    qe_template *tmpl;
    qe_eos_list eos;
    qe_vocab *vocab; /* of the tokenizer, for constraints; NULL until one is used */
    qe_kv_pool
        *pools[QE_KV_CLASSES]; /* by page class; [0] is there whenever a model is. [1]: int8, NULL without */
    qe_kv_ledger device_ledger, host_ledger; /* what the pools share */
    uint32_t context_max;                    /* tokens */
    uint32_t step_rows_max;
    uint64_t host_bytes;                /* budget of the host tier; 0: there is none */
    uint8_t digests[QE_KV_CLASSES][32]; /* of all that the bytes of a page of the class depend on */
    qe_core_disk *disk;                 /* NULL: there is none */
    char *disk_reason;                  /* why there is none although one was asked for */
    GPtrArray *disk_deletes;            /* char *: conversations to be deleted there once there is one */
    /* The device part. */
    qk_backend *backend;
    bool is_host;                           /* device memory is host memory */
    uint64_t weight_bytes, workspace_bytes; /* on the device */
    qk_model *device_model;
    qk_context *context;
    qk_context_params params;
    qe_steps *steps;
    bool follows_cancelled; /* the step in flight was planned on tokens that a cancelled one was to draw */
    qe_host_path host_paths[QE_KV_CLASSES]; /* never AUTO */
    qk_host_attender *attender;             /* NULL: the CPU attends to no host pages for this device */
    qk_buffer *synthetic[QE_KV_CLASSES];    /* of qe-core-synthetic.c; NULL until needed */
    char *numerics; /* what the bits of a page depend on beside model and layout: backend and kernels */
    /* Steps of sessions with pages off the device take long: they alternate with the others by time (ms). */
    double heavy_ms, light_ms_since;
    bool last_class, last_selective;
    bool landed; /* copies have, since it was last cleared: there may be something to compute */
    gint64
        look_at; /* a request waits for the disk: not longer than until then without a look at it; 0: none */

    GHashTable *timelines; /* id -> qe_timeline, owned */
    GPtrArray *waiting;    /* qe_request by serial, borrowed: the timeline owns */
    GPtrArray *running;    /* the same */
    bool slot_used[64];    /* QE_RUNNING_MAX */
    qe_cost cost;
    uint64_t clock, next_serial;
    uint64_t next_temporary; /* ids of temporary timelines, from the top */
    uint32_t rotate;
    GError *lost;        /* the device was lost; cleared by recovery */
    char *cpu_reason;    /* why the CPU computes although there is a better backend; NULL when it does not */
    GArray *page_counts; /* uint32_t: of qe_core_page_counts() */
    bool trim_due;       /* pages were given back: slabs may go when nothing runs */
    qk_backend_info device_info; /* as of the last look: see device_looked */
    gint64 device_looked;        /* monotonic microseconds; 0: never on this backend */
};

/* Loading. @model, @tokenizer, @tmpl: consumed, also on failure. */
bool qe_core_load(qe_core *core, qe_model *model, qe_tokenizer *tokenizer, qe_template *tmpl,
    qk_progress_fn progress, void *user, GError **error);
void qe_core_unload(qe_core *core);
/* After a loss: opens and loads again; sessions keep ids and turns. */
bool qe_core_recover(qe_core *core, qk_progress_fn progress, void *user, GError **error);
/* As a loss that is wanted: the device's memory goes, pages that the host has room for go there first. */
void qe_core_release(qe_core *core);
void qe_core_check_device(qe_core *core); /* a device that does no work any more is lost then */

/* @cache: checked. @disk_key may be NULL. */
void qe_core_open(
    qe_core *core, qe_session_id id, const qe_cache_config *cache, const char *disk_key, bool synthetic);
/* Another mode for the turns to come; no request runs. */
void qe_core_set_cache(qe_core *core, qe_session_id id, const qe_cache_config *cache);
void qe_core_prefetch(qe_core *core, qe_session_id id);
void qe_core_fork(qe_core *core, qe_session_id id, qe_session_id parent, uint32_t keep_messages);
void qe_core_close(qe_core *core, qe_session_id id);
/* @request: consumed. Prepares the prompt on its session and queues it. */
void qe_core_generate(qe_core *core, qe_request *request);

/* Another budget of KV memory (0: the default). One that the device has not the memory for changes nothing. */
void qe_core_set_kv_bytes(qe_core *core, uint64_t kv_bytes_max);

/* Tiers (qe-core-tiers.c). */
/* A scratch counter a page of @pool, zeroed: [n_pages]. One at a time. */
uint32_t *qe_core_page_counts(qe_core *core, const qe_kv_pool *pool);
/* Pages of the idle session, other than @keep, that was used longest ago and has any on the device: what only that has, or
 * all of them. false: there is none. */
bool qe_core_drop_oldest(qe_core *core, const qe_timeline *keep);
void qe_core_apply_cache(qe_core *core, qe_timeline *t, const qe_cache_config *config);
uint32_t qe_core_capacity(const qe_core *core, const qe_timeline *t); /* tokens that the session can hold */
/* Gives up device copies of idle sessions' pages that the host has too; at most @n. Returns how many went. */
uint32_t qe_core_demote_idle(qe_core *core, const qe_timeline *keep, const qe_kv_pool *pool, uint32_t n);
/* Some room on the device for @t, by the rules of the tiers. false: there is none to be made so, or the device is lost. */
bool qe_core_make_room(qe_core *core, qe_timeline *t);
uint32_t qe_core_limit(
    const qe_timeline *t); /* pages that it may have on the device; UINT32_MAX: not limited */
void qe_core_enforce_limit(qe_core *core, qe_timeline *t); /* as far as nothing has to be waited for */
/* The same before it takes pages for its first @n_tokens, waiting for copies. QE_ERROR_NO_MEMORY: the host has no room, or
 * a step in flight has what could go there later. false without an error: the device is lost. */
bool qe_core_hold_limit(qe_core *core, qe_timeline *t, uint32_t n_tokens, GError **error);
void qe_core_check_limit(qe_core *core, qe_timeline *t); /* aborts when it has more than that, as a bug */
/* Asks for the session's pages that only lower tiers have, as far as there is room beside @n_needed pages. Returns how
 * many are on their way for it. */
uint32_t qe_core_restore(qe_core *core, qe_timeline *t, uint32_t n_needed);
/* Host memory for @n more pages of @pool, as far as the other class has some that no open conversation needs. Returns how many
 * there is room for now. */
uint32_t qe_core_spare_host(qe_core *core, qe_kv_pool *pool, uint32_t n);
bool qe_core_move(qe_core *core); /* takes note of copies, enqueues those asked for; false: lost */
/* Waits until the host has copies of all pages that were to get one, as far as there is room; no step runs. false: lost. */
bool qe_core_store_all(qe_core *core);
bool qe_core_wait_moves(qe_core *core); /* waits for the oldest copy; false: none is on its way, or lost */

/* Benchmarks (qe-core-synthetic.c): random bytes for @n pages of a synthetic session from entry @first of its page table on,
 * which are TAIL. */
bool qe_core_write_synthetic(qe_core *core, const qe_timeline *t, uint32_t first, uint32_t n, GError **error);
void qe_core_drop_synthetic(qe_core *core); /* before the backend goes; nothing is on its way */

/* The disk tier (qe-core-disk.c). */
void qe_core_disk_start(qe_core *core); /* with the model's pools; no failure but a reason */
void qe_core_disk_stop(
    qe_core *core); /* before they go; waits a few seconds at most for what is to be written */
void qe_core_disk_update(
    qe_core *core, qe_timeline *t); /* opens or closes its file as key and policy want it */
void qe_core_disk_leave(qe_core *core, qe_timeline *t); /* its session is being closed: what it has is kept */
void qe_core_disk_begin_turn(qe_timeline *t);           /* its ids may have changed anywhere */
void qe_core_disk_distrust(qe_core *core, qe_timeline *t); /* its pages may be no good: those on disk go */
/* The logits behind the prompt, the first @n_tokens of the session: [vocab]. Nothing when it is not kept on disk. */
void qe_core_disk_keep_logits(qe_core *core, qe_timeline *t, uint32_t n_tokens, const float *logits);
/* Those behind all of the session's tokens: [vocab]. Returns: owned; NULL: they are not known. */
float *qe_core_disk_dup_logits(qe_core *core, qe_timeline *t);
void qe_core_disk_delete(qe_core *core, const char *key);
void qe_core_disk_advance(qe_core *core);           /* takes what the store has done, asks it for more */
bool qe_core_disk_is_reading(const qe_timeline *t); /* pages of it are on their way to the host tier */
/* Its request has waited for them since @waiting_since. After QE_DISK_PATIENCE_MS the rest is given up when the disk, as it
 * went so far, would take longer than the device to compute it. Returns when to look again; 0: nothing is waited for. */
gint64 qe_core_disk_look(qe_core *core, qe_timeline *t, gint64 waiting_since);
bool qe_core_disk_wait(qe_core *core);      /* for a write to end, which frees a host page; false: none did */
bool qe_core_disk_wait_slab(qe_core *core); /* for host memory that reads wait for; false: none does */
void qe_core_disk_describe(const qe_core *core, qe_stats_disk *out);

/* One round: cancels, resumes, admits, submits a step, reads a step. Returns false when there is nothing to do until a
 * command or a kick comes. Sets core->lost when the device is gone. */
bool qe_core_advance(qe_core *core);
/* Ends every request. @error: copied into each; NULL: they end as cancelled. */
void qe_core_end_all(qe_core *core, const GError *error);
bool qe_core_publish(qe_core *core);

/* Between the core's files. */
qe_session *qe_core_rebuild_session(qe_kv_pool *pool, const qe_session *old); /* ids and turns, no pages */
uint64_t qe_core_device_bytes_used(const qe_core *core);
bool qe_core_shrink(
    qe_core *core); /* some device pages less; false: all that is left is in use by running requests */
void qe_core_finish(qe_core *core, qe_request *request, qe_finish finish, GError *error /* consumed */);
void qe_core_lose(qe_core *core, const char *message);
qe_timeline *qe_core_add_timeline(
    qe_core *core, uint64_t id, const qe_cache_config *cache /* NULL: the default */);
void qe_core_clear(qe_core *core); /* for freeing: unloads and frees the lists */
void qe_core_init(qe_core *core);

G_END_DECLS
