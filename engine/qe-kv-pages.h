/* qe-kv-pages.h: the pool of KV pages: who holds which page, and whether it may be written. Internal; engine thread.
 *
 * A page is an index. It is FREE, TAIL (being filled, written by its one holder) or SEALED (full, immutable, shareable).
 * The pool owns the device slabs the pages lie in, and gives kernels a page's device address. It grows by slabs up to
 * its limit. Invariants (qe_kv_pool_check proves them):
 *  1. FREE pages have no reference; every other page has at least one.
 *  2. A TAIL page has exactly one reference.
 *  3. References counted in the pool equal the page tables' entries.
 *  4. n_free + n_tail + n_sealed = n_pages reserved. */
#pragma once
#include <glib.h>
#include <stdbool.h>
#include <stdint.h>
#include "kernels/qk.h"
#include "engine/qe-error.h"

G_BEGIN_DECLS

typedef uint32_t qe_page;
#define QE_PAGE_NONE UINT32_MAX

typedef enum { QE_PAGE_FREE, QE_PAGE_TAIL, QE_PAGE_SEALED } qe_page_state;

typedef struct qe_kv_pool qe_kv_pool;

/* @backend: borrowed, outlives the pool. @layout: copied; page_bytes is a multiple of 64. @n_pages_max: the budget,
 * 1..QE_PAGE_NONE - 1. @slab_pages: pages a slab, 0 for a default. @debug_fill: each allocation fills the page with NaN
 * on COMPUTE, also when it was used before. Takes no device memory yet. */
qe_kv_pool *qe_kv_pool_new(qk_backend *backend, const qk_kv_layout *layout, uint32_t n_pages_max,
    uint32_t slab_pages, bool debug_fill);
void qe_kv_pool_free(qe_kv_pool *pool); /* NULL is fine; every page must be FREE again, no step may run */
/* After a lost device: forgets all pages and frees the slabs, which is all that a lost backend allows. Page tables are
 * emptied beforehand with qe_session_drop_pages(). The pool is then as new. */
void qe_kv_pool_forget(qe_kv_pool *pool);

/* Takes the first slab now, so that the first page does not wait for it. */
bool qe_kv_pool_warm(qe_kv_pool *pool, GError **error);
/* Another budget. Pages past a smaller one stay until they are free and trimmed; none is given out meanwhile while more
 * than @n_pages_max are in use. */
void qe_kv_pool_set_max(qe_kv_pool *pool, uint32_t n_pages_max);
/* Gives slabs at the end that have no page in use back to the device, down to @n_slabs_kept (and past it those beyond
 * the budget). No step may run. Returns how many pages went. */
uint32_t qe_kv_pool_trim(qe_kv_pool *pool, uint32_t n_slabs_kept);

/* One reference, state TAIL. Lowest free index first, so the map stays compact. false: the budget is used up or the
 * device gives no more (QE_ERROR_NO_MEMORY; the message has pages, bytes and the limit), or QE_ERROR_DEVICE_LOST. A slab
 * that failed is tried again by the next allocation that finds no free page. */
bool qe_kv_page_alloc(qe_kv_pool *pool, qe_page *out, GError **error);
void qe_kv_page_ref(qe_kv_pool *pool, qe_page page);   /* SEALED only */
void qe_kv_page_unref(qe_kv_pool *pool, qe_page page); /* to FREE at zero */
void qe_kv_page_seal(qe_kv_pool *pool, qe_page page);  /* TAIL -> SEALED; all 16 tokens are written */
void qe_kv_page_unseal(
    qe_kv_pool *pool, qe_page page); /* SEALED with one reference -> TAIL (rewind into it) */
/* A TAIL page with the bytes of @page (copy enqueued on COMPUTE); @page keeps its reference. For forks and rewinds that
 * cut into a shared page. */
bool qe_kv_page_copy(qe_kv_pool *pool, qe_page page, qe_page *out, GError **error);

qe_page_state qe_kv_page_state(const qe_kv_pool *pool, qe_page page);
uint32_t qe_kv_page_refs(const qe_kv_pool *pool, qe_page page);
uint64_t qe_kv_page_address(const qe_kv_pool *pool, qe_page page);
/* For copies: the slab (borrowed) that the page lies in, and where. */
qk_buffer *qe_kv_page_buffer(const qe_kv_pool *pool, qe_page page, uint64_t *offset);

uint32_t qe_kv_pool_n_max(const qe_kv_pool *pool);
uint32_t qe_kv_pool_n_reserved(const qe_kv_pool *pool); /* pages in slabs taken so far */
uint32_t qe_kv_pool_n_used(const qe_kv_pool *pool);     /* TAIL and SEALED */
uint32_t qe_kv_pool_n_shared(const qe_kv_pool *pool);   /* pages with two references or more */
uint32_t qe_kv_pool_n_available(
    const qe_kv_pool *pool); /* n_max - n_used; after a failed slab n_reserved - n_used, until one succeeds */
uint64_t qe_kv_pool_page_bytes(const qe_kv_pool *pool);

/* @n_entries[page]: how often page tables name each page, [n_reserved], counted by the caller (qe_session_count_pages).
 * false with @error naming the first broken invariant. */
bool qe_kv_pool_check(const qe_kv_pool *pool, const uint32_t *n_entries, GError **error);

G_END_DECLS
