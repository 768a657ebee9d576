/* qe-session.h: one conversation's timeline: exact token ids, message boundaries, page table. Internal; engine thread.
 *
 *   ids:   [0 ............ n_cached ............ n_ids)   n_cached: tokens whose K and V are in the pages
 *   pages: [0 .. n_pages)  page i holds tokens [16 i, 16 i + 16)
 *
 * Invariants (qe_session_check): n_cached <= n_ids; the pages cover n_cached and what was reserved for the running step;
 * a page that n_cached fills is SEALED; a page not full is TAIL and ours alone, but for a page that a cut left half used
 * while others hold it: it stays SEALED until the next reserve makes it ours. Messages are consecutive, in range, and
 * cover the ids from 0 up to their last end. The ids are the truth: text is never tokenised again. */
#pragma once
#include <glib.h>
#include <stdbool.h>
#include <stdint.h>
#include "engine/qe-kv-pages.h"
#include "engine/qe.h"

G_BEGIN_DECLS

typedef struct qe_session qe_session;

/* How the tokens of a message came about and end. */
typedef enum {
    QE_TURN_GIVEN,    /* rendered from text by the template, closed */
    QE_TURN_COMPLETE, /* generated and ended by itself: its last id is an end-of-turn token */
    QE_TURN_OPEN,     /* generated, cut, stopped or cancelled: the closing ids are not there yet */
    QE_TURN_STRIPPED, /* generated, later replaced by its form without reasoning, closed */
} qe_turn_state;

typedef struct {
    qe_role role;
    qe_turn_state state;
    uint32_t begin, end; /* token range in ids, template tokens included */
    uint32_t text_begin; /* first id of the content (generated: the reply's first id) */
    bool has_reasoning;  /* generated with a <think> block that later turns drop */
    uint64_t text_hash;  /* of role and text as given (QE_TURN_GIVEN), else 0 */
} qe_turn;

/* Selective attention of a reply's tokens, in pages; n_recent 0: exact. */
typedef struct {
    uint32_t n_sink, n_recent, n_chosen;
} qe_session_select;

/* How a session deals with its pages. All false: a session of its own. */
typedef struct {
    bool contiguous; /* device pages are adjacent; when they do not suffice all move to a longer run */
    bool shared;     /* sealed pages are named and found by name */
    bool tiered;     /* sealed pages are stored in the host tier */
    qe_session_select select; /* other pages than those computed so are not found, and these not by others */
    uint32_t device_tokens_max; /* tiered: newest tokens that may stay on the device; 0: as many as fit */
} qe_session_policy;

qe_session *qe_session_new(qe_kv_pool *pool, uint64_t id); /* @pool: borrowed */
void qe_session_free(qe_session *self);                    /* drops its page references; NULL is fine */

uint64_t qe_session_id_of(const qe_session *self);
uint32_t qe_session_n_ids(const qe_session *self);
const uint32_t *qe_session_ids(const qe_session *self); /* borrowed until the next change */
uint32_t qe_session_n_cached(const qe_session *self);
uint32_t qe_session_n_pages(const qe_session *self);
const qe_page *qe_session_pages(const qe_session *self);
/* What a plan calls the first @n pages (qe_kv_page_plan_address): none of them has its bytes nowhere. Until the next call that
 * changes page table or tiers. */
const uint64_t *qe_session_plan_addresses(qe_session *self, uint32_t n);
uint32_t qe_session_n_turns(const qe_session *self);
const qe_turn *qe_session_turn(const qe_session *self, uint32_t i);

/* Ids. Appending changes no page. @ids: not the session's own array. */
void qe_session_append_ids(qe_session *self, const uint32_t *ids, uint32_t n);
void qe_session_add_turn(qe_session *self, const qe_turn *turn); /* begins where the last one ends */
void qe_session_extend_turn(
    qe_session *self, uint32_t end, qe_turn_state state, bool has_reasoning); /* the last one */

/* KV. reserve: page table covers [0, n_tokens), which may reach past n_ids, and all of it from n_cached on may be written:
 * a shared page there is copied (on COMPUTE). All or nothing; errors are those of qe_kv_page_alloc(). commit: tokens
 * [n_cached, n_cached + n) are in the pages now; seals what is full. */
bool qe_session_reserve(qe_session *self, uint32_t n_tokens, GError **error);
uint32_t qe_session_pages_needed(
    const qe_session *self, uint32_t n_tokens); /* pages reserve would allocate */
bool qe_session_copies_page(
    const qe_session *self); /* of them, one for the page that it goes on in, which others hold */
void qe_session_commit(qe_session *self, uint32_t n);
void qe_session_release_reserved(qe_session *self); /* gives back pages past ceil(n_cached / 16) */

/* Cuts ids, turns (those that end past it) and KV to the first @n_tokens. Keeps whole pages; a page cut in two becomes
 * our TAIL (unsealed when ours alone; else copied at the next reserve, whose error it shares). Reserved pages go. */
void qe_session_rewind(qe_session *self, uint32_t n_tokens);
/* Only the KV: at most @n_tokens stay cached (ids stay and will be computed again). Reserved pages go. */
void qe_session_uncache(qe_session *self, uint32_t n_tokens);
/* After a lost device, the pool detached: keeps the longest prefix whose pages the host has. */
void qe_session_drop_lost(qe_session *self);

qe_kv_pool *qe_session_pool(const qe_session *self);
const qe_session_policy *qe_session_get_policy(const qe_session *self);
/* The parent of the first page's key: the pool's, or one of its own for each way to select. */
qe_page_key qe_session_seed(const qe_session *self);
/* From now on; what is cached stays, so a session whose policy selects otherwise is uncached first. Named and stored as
 * the policy wants it, also what was sealed before. */
void qe_session_set_policy(qe_session *self, const qe_session_policy *policy);
/* contiguous: the next run that is taken has room for so many tokens. */
void qe_session_set_run(qe_session *self, uint32_t n_tokens);
/* shared: goes on from pages that others computed: extends n_cached over ids whose pages are found by name, up to the page
 * boundary at or before @n_tokens. Reserved pages go. Returns the tokens gained. */
uint32_t qe_session_adopt(qe_session *self, uint32_t n_tokens);

/* Device copies that the host has too are given up; pages with @pins[page] > 0 stay (NULL: none). Those that other
 * sessions hold go only when @shared. Returns how many went, at most @n. Demote: an idle session, from the end; then the
 * bounds of its pages, counted by the device slots that they free. */
uint32_t qe_session_demote(qe_session *self, uint32_t n, bool shared, const uint32_t *pins);
/* Spill: a running session, from the beginning, never pages from @first_kept on. */
uint32_t qe_session_spill(
    qe_session *self, uint32_t n, uint32_t first_kept, bool shared, const uint32_t *pins);
/* Selective: whether a reply's token at position @n_tokens - 1 leaves pages out. */
bool qe_session_leaves_out(const qe_session *self, uint32_t n_tokens);
/* Places for the bounds that such a token looks at; the errors of qe_kv_page_alloc(). Then their making, on COMPUTE. */
bool qe_session_take_bounds(qe_session *self, uint32_t n_tokens, GError **error);
bool qe_session_make_bounds(qe_session *self, qk_context *context, uint32_t n_tokens, GError **error);
/* Asks for device copies of pages that only the host has, from the end, @n_max at most and as far as slots are free.
 * Returns how many were
 * asked for; -1 with @error: the device was lost. */
int64_t qe_session_load(qe_session *self, uint32_t n_max, GError **error);
uint32_t qe_session_n_loading(const qe_session *self);
/* The first page that is neither on the device nor on its way there, and whose host memory the device cannot read;
 * n_pages: there is none. */
uint32_t qe_session_first_unreadable(const qe_session *self);
uint32_t qe_session_n_off_device(qe_session *self); /* cached pages without a device copy, loading ones too */
uint32_t qe_session_n_on_device(qe_session *self);
/* Makes the timeline equal @ids and returns the length of the prefix that was kept. Turns past it are gone. */
uint32_t qe_session_replace(qe_session *self, const uint32_t *ids, uint32_t n);
/* A new session with the first @n_tokens, the turns that end in them and the KV there is: sealed pages shared, also when
 * the cut lies inside one; our part-filled page copied (on COMPUTE). Reserved pages stay ours. NULL with the errors of
 * qe_kv_page_alloc(). */
qe_session *qe_session_fork(qe_session *self, uint64_t id, uint32_t n_tokens, GError **error);

void qe_session_count_pages(
    const qe_session *self, uint32_t *n_entries /* [qe_kv_pool_n_pages()], added to */);
bool qe_session_check(const qe_session *self, GError **error);

G_DEFINE_AUTOPTR_CLEANUP_FUNC(qe_session, qe_session_free)
G_END_DECLS
