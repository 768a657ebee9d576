/* qe-kv-slots.h: the slots of one tier: memory cut into places of one page each. Internal; engine thread.
 *
 * A device tier's slabs are device buffers. A host tier's slabs are mappings of our own, registered with the device, so
 * that their bytes outlive a lost device. Slabs are a stack: a tier grows and shrinks at its end. Slots are numbered from
 * 0 over all slabs; the lowest free one is taken first, so that a tier stays compact.
 *
 * Cost: take and give are O(1) (the free map is a tree of 64-bit words, six levels at most). */
#pragma once
#include <glib.h>
#include <stdbool.h>
#include <stdint.h>
#include "engine/qe-error.h"
#include "kernels/qk.h"

G_BEGIN_DECLS

typedef uint32_t qe_slot;
#define QE_SLOT_NONE UINT32_MAX

/* What the tiers of all page classes share: bytes that may be taken, and that are. */
typedef struct {
    uint64_t bytes_max, bytes_taken;
} qe_kv_ledger;

typedef struct {
    qk_backend *backend; /* borrowed; outlives the slots, or qe_kv_slots_detach() comes first */
    qk_memory memory;
    uint64_t slot_bytes;  /* a multiple of 64 */
    uint32_t n_max;       /* the tier's budget in slots, < QE_SLOT_NONE; may be 0 */
    uint32_t slab_slots;  /* slots a slab, at least 1 */
    qe_kv_ledger *ledger; /* borrowed; NULL: n_max alone bounds it */
    bool background; /* host: slabs are mapped and registered on a thread; take() fails while none is ready */
    void (*made)(void *user); /* on that thread: there is news for qe_kv_slots_poll(); NULL: nobody asks */
    void *made_user;
} qe_kv_slots_params;

typedef struct qe_kv_slots qe_kv_slots;

/* Takes no memory yet. */
qe_kv_slots *qe_kv_slots_new(const qe_kv_slots_params *params);
void qe_kv_slots_free(qe_kv_slots *self); /* NULL is fine; no work that touches a slot may be in flight */

/* The lowest free slot. QE_ERROR_NO_MEMORY (budget or device), QE_ERROR_DEVICE_LOST. A slab that failed is tried again
 * by the next call that finds no free slot; one made in the background after 16 such calls, and twice as many, up to
 * 4,096, each time that it fails again. Another budget and trimming make it the next call. */
bool qe_kv_slots_take(qe_kv_slots *self, qe_slot *out, GError **error);
/* @n slots in a row, inside one slab where memory is contiguous; a slab of its own is made when none has the room. */
bool qe_kv_slots_take_run(qe_kv_slots *self, uint32_t n, qe_slot *first, GError **error);
bool qe_kv_slots_has_run(const qe_kv_slots *self, uint32_t n); /* without another slab */
void qe_kv_slots_give(qe_kv_slots *self, qe_slot slot);

bool qe_kv_slots_warm(qe_kv_slots *self, GError **error);             /* takes the first slab */
void qe_kv_slots_set_ledger(qe_kv_slots *self, qe_kv_ledger *ledger); /* before the first slab */
void qe_kv_slots_set_made(qe_kv_slots *self, void (*made)(void *user), void *user); /* the same */
void qe_kv_slots_set_max(qe_kv_slots *self, uint32_t n_max);
/* Frees slabs at the end that have no slot in use, down to @n_slabs_kept and past it those beyond the budget. The caller
 * has seen to it that no work touches them. Returns how many slots went. */
bool qe_kv_slots_can_trim(const qe_kv_slots *self, uint32_t n_slabs_kept);
uint32_t qe_kv_slots_trim(qe_kv_slots *self, uint32_t n_slabs_kept);
/* A background slab that is ready joins. Returns whether there was news. */
bool qe_kv_slots_poll(qe_kv_slots *self);
bool qe_kv_slots_wait(
    qe_kv_slots *self); /* the same, waiting for a slab that is being made; false: none is */
/* Host tiers: asks for another slab in the background when fewer than @n_free slots are left and the budget has room. */
void qe_kv_slots_prepare(qe_kv_slots *self, uint32_t n_free);

/* The device was lost. Device slots are forgotten, all of them free and gone. Host slots keep their bytes and who has
 * them, and lose their registration. */
void qe_kv_slots_detach(qe_kv_slots *self);
/* Registers host slabs again. false, and still detached: a slab cannot be used on this device. */
bool qe_kv_slots_attach(qe_kv_slots *self, qk_backend *backend, GError **error);

uint64_t qe_kv_slots_address(const qe_kv_slots *self, qe_slot slot); /* device-visible; 0: not registered */
qk_buffer *qe_kv_slots_buffer(const qe_kv_slots *self, qe_slot slot, uint64_t *offset); /* for copies */
void *qe_kv_slots_host(const qe_kv_slots *self, qe_slot slot);                          /* host tiers */
bool qe_kv_slots_is_used(const qe_kv_slots *self, qe_slot slot);

uint32_t qe_kv_slots_n_max(const qe_kv_slots *self);
uint32_t qe_kv_slots_n_reserved(const qe_kv_slots *self); /* in slabs */
uint32_t qe_kv_slots_n_used(const qe_kv_slots *self);
/* n_max - n_used; after a failed slab n_reserved - n_used, until one succeeds. */
uint32_t qe_kv_slots_n_available(const qe_kv_slots *self);
uint32_t qe_kv_slots_n_free(const qe_kv_slots *self);         /* reserved and not used */
uint64_t qe_kv_slots_bytes_reserved(const qe_kv_slots *self); /* of slabs, as the system gave them */
uint64_t qe_kv_slots_bytes_pinned(const qe_kv_slots *self);
uint32_t qe_kv_slots_n_slabs(const qe_kv_slots *self);
const char *qe_kv_slots_note(const qe_kv_slots *self); /* why not all is pinned; NULL: it is */

bool qe_kv_slots_check(const qe_kv_slots *self, GError **error);

G_END_DECLS
