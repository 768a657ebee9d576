/* qe-kv-pages.h: the pool of KV pages of one class: who holds which page, where its bytes are, and whether it may be
 * written. Internal; engine thread.
 *
 * A page is an index that page tables hold. It is FREE, TAIL (being filled, written by its one holder) or SEALED (full,
 * immutable, shareable). Its bytes lie in a slot of the device tier, of the host tier, or of both. What happens to a page
 * in one tier never shows in page tables. Invariants (qe_kv_pool_check proves them):
 *  1. FREE pages have no reference and no slot. A TAIL page has exactly one reference and a device slot, and no other.
 *  2. A SEALED page has its bytes in one tier at least. Without a reference it is *cached*: findable by its key, first to
 *     go; or its last copy is still moving or its host copy pinned, and it goes when that is over. One that is imported
 *     has a host slot that is being filled, neither name nor reference, and is nobody's until then.
 *  3. References counted in the pool equal the page tables' entries.
 *  4. Every used slot of a tier belongs to exactly one page, but for device slots that bounds of pages lie in.
 *
 * Copies between tiers run on streams of their own and land later (qe_kv_pool_poll). Until then the page keeps both
 * slots, so a slot is never given away under a copy. The same holds for a host copy that is pinned. */
#pragma once
#include <glib.h>
#include <stdbool.h>
#include <stdint.h>
#include "engine/qe-error.h"
#include "engine/qe-kv-slots.h"
#include "engine/qe-page-key.h"
#include "kernels/qk.h"

G_BEGIN_DECLS

/* Page classes, a pool each: 0 is the engine's own (bf16 or f32), exact; 1 is int8. A plan's kv_class. */
#define QE_KV_CLASSES 2

typedef uint32_t qe_page;
#define QE_PAGE_NONE UINT32_MAX

typedef enum { QE_PAGE_FREE, QE_PAGE_TAIL, QE_PAGE_SEALED } qe_page_state;

typedef struct qe_kv_pool qe_kv_pool;

/* @backend: borrowed, outlives the pool. @layout: copied; page_bytes is a multiple of 64. @n_pages_max: the device
 * tier's budget, 1..QE_PAGE_NONE - 1. @slab_pages: pages a slab, 0 for a default. @debug_fill: each allocation fills the
 * page with NaN on COMPUTE, also when it was used before. Takes no device memory yet. */
qe_kv_pool *qe_kv_pool_new(qk_backend *backend, const qk_kv_layout *layout, uint32_t n_pages_max,
    uint32_t slab_pages, bool debug_fill);
/* A host tier of up to @n_max pages; at most once, before the first page. @background: its slabs are made on a thread,
 * and stores wait until one is there. Ledgers (borrowed, may be NULL) bound the bytes of several pools together. */
void qe_kv_pool_add_host(qe_kv_pool *pool, uint32_t n_max, uint32_t slab_pages, bool background,
    qe_kv_ledger *device_ledger, qe_kv_ledger *host_ledger);
/* @made: on the thread that made one of its slabs, when it is ready: qe_kv_pool_poll() takes it. Before the first page. */
void qe_kv_pool_on_host_slab(qe_kv_pool *pool, void (*made)(void *user), void *user);
void qe_kv_pool_set_seed(qe_kv_pool *pool, const qe_page_key *seed); /* the parent of a first page's key */
void qe_kv_pool_free(qe_kv_pool *pool); /* NULL is fine; no page may have a reference, no step may run */
/* After a lost device: device copies and what was moving are gone; pages that the host has stay. Those that have no copy
 * left are the page tables' to drop (qe_session_drop_lost). Then the backend may be freed. attach: false, and still
 * detached, when
 * the device cannot use what the host has. */
void qe_kv_pool_detach(qe_kv_pool *pool);
bool qe_kv_pool_attach(qe_kv_pool *pool, qk_backend *backend, uint32_t n_pages_max, GError **error);

/* Takes the first slab now, so that the first page does not wait for it. */
bool qe_kv_pool_warm(qe_kv_pool *pool, GError **error);
/* Another budget of the device tier. Pages past a smaller one stay until they are free and trimmed; none is given out
 * meanwhile while more than @n_pages_max are in use. */
void qe_kv_pool_set_max(qe_kv_pool *pool, uint32_t n_pages_max);
/* Gives device slabs at the end that have no page in use back to the device, down to @n_slabs_kept (and past it those
 * beyond the budget). No step may run. Returns how many pages went. */
uint32_t qe_kv_pool_trim(qe_kv_pool *pool, uint32_t n_slabs_kept);
/* Has host slabs made in the background until so many bytes of slots are free: one a call. */
void qe_kv_pool_prepare_host(qe_kv_pool *pool, uint64_t bytes);
/* The same for host slabs, up to @n_slabs of them; nothing while copies are on their way. */
uint32_t qe_kv_pool_trim_host(qe_kv_pool *pool, uint32_t n_slabs);

/* ---- Pages ---- */

/* One reference, state TAIL, a device slot: the lowest free one, so the map stays compact. Cached pages give way. false:
 * the budget is used up or the device gives no more (QE_ERROR_NO_MEMORY; the message has pages, bytes and the limit),
 * QE_ERROR_REFUSED when it refuses the fill (debug_fill), or QE_ERROR_DEVICE_LOST. */
bool qe_kv_page_alloc(qe_kv_pool *pool, qe_page *out, GError **error);
/* @n TAIL pages whose device slots are adjacent. */
bool qe_kv_page_alloc_run(qe_kv_pool *pool, uint32_t n, qe_page *out, GError **error);
void qe_kv_page_ref(qe_kv_pool *pool, qe_page page);   /* SEALED only */
void qe_kv_page_unref(qe_kv_pool *pool, qe_page page); /* at zero: FREE, or cached */
void qe_kv_page_seal(qe_kv_pool *pool, qe_page page);  /* TAIL -> SEALED; all 16 tokens are written */
/* Whether qe_kv_page_unseal() may be called: one reference, on the device, and no copy on its way. */
bool qe_kv_page_can_unseal(const qe_kv_pool *pool, qe_page page);
void qe_kv_page_unseal(qe_kv_pool *pool, qe_page page); /* SEALED -> TAIL (rewind into it) */
/* A TAIL page with the bytes of @page, wherever they are (copy enqueued on COMPUTE); @page keeps its reference. For forks
 * and rewinds that cut into a page that cannot be unsealed. As alloc; QE_ERROR_REFUSED: the device refuses the copy. */
bool qe_kv_page_copy(qe_kv_pool *pool, qe_page page, qe_page *out, GError **error);
/* Copies the bytes of TAIL or SEALED pages to TAIL pages @to[0..n) (on COMPUTE): a contiguous cache that moves. */
bool qe_kv_page_copy_run(
    qe_kv_pool *pool, const qe_page *from, const qe_page *to, uint32_t n, GError **error);

/* Names a SEALED page: @parent is its predecessor's key (NULL: the seed), @ids its 16 tokens. When a page of that name
 * with these ids is there already, returns that one with a new reference, and @page has lost its own; else @page, which
 * is findable from now on. */
qe_page qe_kv_page_publish(
    qe_kv_pool *pool, qe_page page, const qe_page_key *parent, const uint32_t ids[QK_PAGE_TOKENS]);
/* The page of that name, with a new reference, or QE_PAGE_NONE. Ids are compared. */
qe_page qe_kv_pool_find(qe_kv_pool *pool, const qe_page_key *parent, const uint32_t ids[QK_PAGE_TOKENS]);
const qe_page_key *qe_kv_pool_seed(const qe_kv_pool *pool);
const qe_page_key *qe_kv_page_key(const qe_kv_pool *pool, qe_page page); /* NULL: not named */

qe_page_state qe_kv_page_state(const qe_kv_pool *pool, qe_page page);
uint32_t qe_kv_page_refs(const qe_kv_pool *pool, qe_page page);
bool qe_kv_page_on_device(const qe_kv_pool *pool, qe_page page);
bool qe_kv_page_on_host(const qe_kv_pool *pool, qe_page page);
bool qe_kv_page_is_loading(const qe_kv_pool *pool, qe_page page);  /* on its way to the device */
bool qe_kv_page_is_moving(const qe_kv_pool *pool, qe_page page);   /* either way */
uint64_t qe_kv_page_address(const qe_kv_pool *pool, qe_page page); /* of its device slot; 0: it has none */
/* For a plan: the device slot's address, else the host slot's with QK_PAGE_HOST, 0 when kernels cannot read that. */
uint64_t qe_kv_page_plan_address(const qe_kv_pool *pool, qe_page page);
bool qe_kv_page_is_readable_on_host(const qe_kv_pool *pool, qe_page page); /* by kernels, where it is there */
const void *qe_kv_page_host(const qe_kv_pool *pool, qe_page page); /* its host slot's bytes; NULL: none */
/* For copies: the slab (borrowed) of its device slot, and where. */
qk_buffer *qe_kv_page_buffer(const qe_kv_pool *pool, qe_page page, uint64_t *offset);

/* ---- Moving between tiers (qe-kv-move.c) ---- */

bool qe_kv_pool_has_host(const qe_kv_pool *pool);
/* Asks for a copy of a SEALED page in the host tier; nothing when it has or gets one. */
void qe_kv_page_store(qe_kv_pool *pool, qe_page page);
/* Asks for a device copy of a page that has none: takes the slot now. false: no slot is free (nothing is evicted here),
 * or the errors of a lost device. */
bool qe_kv_page_load(qe_kv_pool *pool, qe_page page, GError **error);
/* Gives up the device copy of a SEALED page that the host has; false when it is not so, or a copy is on its way. */
bool qe_kv_page_drop_device(qe_kv_pool *pool, qe_page page);
/* Gives up the host copy of a page that the device has. */
bool qe_kv_page_drop_host(qe_kv_pool *pool, qe_page page);
/* Makes room by giving up cached pages, least recently used first: up to @n device slots; returns how many. */
uint32_t qe_kv_pool_evict_cached(qe_kv_pool *pool, uint32_t n);
/* The same for host slots. */
uint32_t qe_kv_pool_evict_cached_host(qe_kv_pool *pool, uint32_t n);
/* A page from outside: a host slot for the page of that name (@parent NULL: the seed), for the caller to fill at once: no
 * work in flight touches it. EXISTS: there is one already; WAIT: a slab for it is being made; FULL: no slot is free and no
 * cached page can give one. QE_ERROR_DEVICE_LOST and the like: FAILED. TAKEN ends with qe_kv_page_import_done(): findable
 * and cached, the newest, when @ok; else gone. */
typedef enum {
    QE_IMPORT_TAKEN,
    QE_IMPORT_EXISTS,
    QE_IMPORT_WAIT,
    QE_IMPORT_FULL,
    QE_IMPORT_FAILED
} qe_import;
qe_import qe_kv_pool_import(qe_kv_pool *pool, const qe_page_key *parent, const uint32_t ids[QK_PAGE_TOKENS],
    qe_page *page, void **bytes);
void qe_kv_page_import_done(qe_kv_pool *pool, qe_page page, bool ok);
/* A reader outside the pool of the host copy that @page has: until the unpin its bytes stay where and what they are,
 * whatever becomes of the page. */
void qe_kv_page_pin(qe_kv_pool *pool, qe_page page);
void qe_kv_page_unpin(qe_kv_pool *pool, qe_page page);
/* Enqueues the copies asked for: stores as far as the host tier has slots, loads all. A device that refuses some is no
 * error: pages to store wait for another call, and those to load stay on the host. QE_ERROR_DEVICE_LOST. */
bool qe_kv_pool_submit_moves(qe_kv_pool *pool, GError **error);
/* Takes note of copies that have landed. Returns whether there were any. */
bool qe_kv_pool_poll(qe_kv_pool *pool, GError **error);
bool qe_kv_pool_wait_move(
    qe_kv_pool *pool, GError **error);                /* for the oldest copy; false: none is on its way */
uint32_t qe_kv_pool_n_moving(const qe_kv_pool *pool); /* pages with a copy on its way */
uint32_t qe_kv_pool_n_loading(const qe_kv_pool *pool);
/* Grows whenever a page gains or loses its device copy. Never 0. */
uint64_t qe_kv_pool_placement_epoch(const qe_kv_pool *pool);
/* Host slots that could be had: free ones, a slab's that the budget allows, what cached pages would give. */
uint32_t qe_kv_pool_n_host_available(const qe_kv_pool *pool);
/* Waits for a host slab that is being made in the background; false: none is. */
bool qe_kv_pool_wait_host_slab(qe_kv_pool *pool);
uint32_t qe_kv_pool_n_to_store(const qe_kv_pool *pool); /* asked for and not enqueued */

typedef struct {
    uint64_t bytes_stored, bytes_loaded; /* device to host, host to device; landed */
    uint64_t n_found, n_evicted;         /* pages found by name; cached pages that went */
    uint64_t n_found_imported;           /* of the found, imported ones found for the first time */
    uint64_t n_refused;                  /* pages whose copy the device refused */
} qe_kv_counters;
void qe_kv_pool_get_counters(const qe_kv_pool *pool, qe_kv_counters *out);
const char *qe_kv_pool_refusal(const qe_kv_pool *pool); /* what the device refused last; NULL: nothing */

/* ---- Bounds of pages, for selective attention (qe-kv-bounds.c) ---- */

void qe_kv_pool_set_bounds(qe_kv_pool *pool, uint64_t bytes); /* of one page; before the first page */
/* A place for the page's bounds, in a device slot that is cut into places. The errors of qe_kv_page_alloc(). The page has
 * a reference; when that goes, or the page is unsealed, its bounds go. */
bool qe_kv_page_take_bounds(qe_kv_pool *pool, qe_page page, GError **error);
bool qe_kv_page_drop_bounds(qe_kv_pool *pool, qe_page page);      /* whether a device slot got free by it */
uint64_t qe_kv_page_bounds(const qe_kv_pool *pool, qe_page page); /* the place's address; 0: none */
bool qe_kv_page_bounds_are_made(const qe_kv_pool *pool, qe_page page);
/* Enqueues the making of those of @pages that are not made; all have a place. They are good for steps submitted next. */
bool qe_kv_pool_make_bounds(
    qe_kv_pool *pool, qk_context *context, const qe_page *pages, uint32_t n, GError **error);
uint64_t qe_kv_pool_bounds_epoch(const qe_kv_pool *pool);   /* grows whenever a page loses its bounds */
uint32_t qe_kv_pool_n_bounds_slots(const qe_kv_pool *pool); /* device slots that bounds lie in */

/* ---- Questions ---- */

uint32_t qe_kv_pool_n_pages(const qe_kv_pool *pool);    /* page indices are below it */
uint32_t qe_kv_pool_n_max(const qe_kv_pool *pool);      /* of the device tier */
uint32_t qe_kv_pool_n_reserved(const qe_kv_pool *pool); /* device slots in slabs taken so far */
uint32_t qe_kv_pool_n_used(const qe_kv_pool *pool);     /* device slots in use, those of cached pages too */
uint32_t qe_kv_pool_n_shared(const qe_kv_pool *pool);   /* pages with two references or more */
uint32_t qe_kv_pool_n_cached(const qe_kv_pool *pool);   /* pages without a reference, kept to be found */
/* Device pages that could be had: n_max - n_used, and what cached pages would give; after a failed slab less. */
uint32_t qe_kv_pool_n_available(const qe_kv_pool *pool);
uint64_t qe_kv_pool_page_bytes(const qe_kv_pool *pool);
const qe_kv_slots *qe_kv_pool_device_slots(const qe_kv_pool *pool);
const qe_kv_slots *qe_kv_pool_host_slots(const qe_kv_pool *pool); /* NULL: no host tier */

/* @n_entries[page]: how often page tables name each page, [n_pages], counted by the caller (qe_session_count_pages).
 * false with @error naming the first broken invariant. */
bool qe_kv_pool_check(const qe_kv_pool *pool, const uint32_t *n_entries, GError **error);

G_END_DECLS
