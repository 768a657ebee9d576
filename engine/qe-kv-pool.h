/* qe-kv-pool.h: what the sources of the page pool share: qe-kv-pages.c (states, references, names) and qe-kv-move.c
 * (copies between tiers) and qe-kv-bounds.c (bounds of pages). Internal to them. */
#pragma once
#include "engine/qe-free-map.h"
#include "engine/qe-kv-pages.h"

/* Of a page's bytes in one tier. */
typedef enum {
    COPY_NONE,   /* no slot */
    COPY_MOVING, /* a slot that is being filled */
    COPY_READY,
} qe_copy_state;

typedef struct {
    uint32_t n_refs;
    uint8_t state;  /* qe_page_state */
    uint8_t device; /* qe_copy_state */
    uint8_t host;
    bool named;     /* in the index under `key` */
    bool to_store;  /* in the queue of stores */
    bool cached;    /* in the list of cached pages */
    bool dying;     /* no reference, not named: goes when its copy has landed and it is not pinned any more */
    bool importing; /* its host slot is being filled from outside the pool */
    bool imported;  /* its bytes came so, and no session has found it yet */
    bool bounds_made; /* and its bytes were final then */
    uint32_t n_pins;  /* readers outside the pool of its host copy */
    uint32_t bounds;  /* the place of its bounds, plus 1; 0: none */
    qe_slot device_slot, host_slot;
    uint32_t older, newer; /* in the list of cached pages: QE_PAGE_NONE at the ends */
    bool has_key;
    qe_page_key key, parent;
    uint32_t ids[QK_PAGE_TOKENS];
} qe_page_info;

/* A device slot cut into places for bounds. */
typedef struct {
    qe_slot slot;    /* QE_SLOT_NONE: gone */
    uint32_t n_used; /* places */
} qe_bounds_block;

typedef enum { MOVE_STORE, MOVE_LOAD } qe_move_kind;
#define QE_MOVE_KINDS 2

/* Copies that land together. */
typedef struct {
    qk_event *event;
    GArray *pages; /* qe_page */
} qe_move;

struct qe_kv_pool {
    qk_backend *backend; /* NULL while detached */
    qk_kv_layout layout;
    bool debug_fill;
    qe_kv_slots *device;
    qe_kv_slots *host; /* NULL: none */
    qe_page_key seed;

    qe_page_info *pages; /* [pages_room]; those below n_pages were used at some time */
    uint32_t pages_room;
    uint32_t n_pages, n_tail, n_sealed, n_shared, n_dying;
    qe_free_map free_pages;

    GHashTable *index; /* qe_page_key, owned -> page + 1 */
    uint32_t oldest_cached, newest_cached, n_cached;

    GArray *to_store; /* qe_page: may name pages that have changed since */
    uint32_t n_to_store;
    GArray *to_load;             /* qe_page: their device slots are taken */
    GQueue moves[QE_MOVE_KINDS]; /* qe_move, oldest first */
    GPtrArray *spare_moves;      /* qe_move, to use again */
    qk_event *order;             /* makes one stream wait for another */
    uint64_t placement_epoch;
    uint32_t n_moving, n_loading;   /* pages; n_loading counts to_load too */
    uint32_t n_importing, n_pinned; /* pages; those being imported are not moving */
    qe_kv_counters counters;
    char *refusal; /* of the copy that the device refused last; NULL: none */
    uint32_t n_refused_in_row, n_stores_skipped;

    uint64_t bounds_bytes; /* of a page; 0: pages get none */
    uint32_t block_places;
    GArray *blocks;          /* qe_bounds_block; those that are gone are used again */
    qe_free_map free_places; /* block * block_places + place */
    uint32_t n_blocks, n_bounds;
    uint64_t bounds_epoch;
};

/* qe-kv-pages.c */
qe_page qe_kv_pool_take_page(qe_kv_pool *pool); /* a FREE page without slots, out of the free map */
void qe_kv_pool_cache_page(qe_kv_pool *pool, qe_page page);   /* to the new end of the list of cached pages */
void qe_kv_pool_name(qe_kv_pool *pool, qe_page page);         /* in the index; the name is free */
void qe_kv_pool_destroy_page(qe_kv_pool *pool, qe_page page); /* no reference, no copy on its way */
void qe_kv_pool_uncache(qe_kv_pool *pool, qe_page page);      /* out of the list of cached pages */
void qe_kv_pool_unname(qe_kv_pool *pool, qe_page page);
int qe_kv_pool_error_code(qk_status status);
bool qe_kv_pool_wait_compute(qe_kv_pool *pool); /* for all that is enqueued on COMPUTE */
bool qe_kv_pool_take_device(qe_kv_pool *pool, qe_slot *slot, GError **error); /* cached pages give way */
/* qe-kv-bounds.c */
void qe_kv_pool_forget_bounds(qe_kv_pool *pool); /* all: the device is lost */
/* @seen: a byte a device slot; those of blocks are set. */
bool qe_kv_pool_check_bounds(const qe_kv_pool *pool, uint8_t *seen, GError **error);
/* qe-kv-move.c */
void qe_kv_pool_clear_moves(
    qe_kv_pool *pool); /* waits for nothing: the device is lost, or nothing is on its way */
