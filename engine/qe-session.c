/* qe-session.c: one conversation's timeline: ids, turns, page table.
 *
 *   tokens   0        16        32   n_cached      reserved
 *            | SEALED | SEALED | TAIL: 5 of 16 | TAIL: fresh |
 *
 * Invariants, proved by qe_session_check():
 *  1. n_cached <= n_ids, and the page table covers n_cached.
 *  2. A page that n_cached fills to its end is SEALED (and perhaps shared).
 *  3. A page past n_cached, in whole or in part, is TAIL and ours alone. One exception: after a cut into a page that
 *     others hold too, that page stays SEALED and last (the *cut* page), until reserve makes it ours: by unsealing when
 *     the others have gone, else by a copy. So cutting never allocates and never fails.
 *  4. Turns are consecutive from id 0, in range, and each has begin <= text_begin <= end.
 *
 * The ids are the truth; the pages only remember work done for them. Whatever happens to pages, the ids decide what is
 * computed again: n_cached shrinks and the engine prefills from there.
 *
 * Who owns what: the session owns its arrays and one pool reference for each entry of its page table. It frees pages
 * while steps that write them may still run; qe-kv-pages.c says why that is sound. Thread: the engine's.
 *
 * Cost: append is O(ids), reserve, commit, rewind and fork are O(pages touched), check is O(pages + turns). */
#include "engine/qe-session.h"

struct qe_session {
    qe_kv_pool *pool; /* borrowed */
    uint64_t id;
    GArray *ids;   /* uint32_t */
    GArray *pages; /* qe_page */
    GArray *turns; /* qe_turn */
    uint32_t n_cached;
    qe_session_policy policy;
    uint32_t run_tokens; /* contiguous: room that the next run has */
    /* How many pages the device has not, as of a placement epoch and a length of the page table. */
    uint64_t off_epoch;
    uint32_t off_pages, n_off;
    /* What a plan calls the first n_addresses pages, as of a placement epoch: a step of a long conversation names them all,
     * and hardly one has changed since the last. */
    GArray *addresses; /* uint64_t */
    uint64_t addresses_epoch;
    uint32_t n_addresses;
    /* Pages [n_sink, bounds_end) have their bounds, as of a bounds epoch of the pool. */
    uint64_t bounds_epoch;
    uint32_t bounds_end;
};

static uint32_t pages_for(uint32_t n_tokens)
{
    return n_tokens / QK_PAGE_TOKENS + (n_tokens % QK_PAGE_TOKENS != 0);
}

static qe_page *page_at(const qe_session *self, uint32_t i)
{
    g_assert(i < self->pages->len);
    return &g_array_index(self->pages, qe_page, i);
}

qe_session *qe_session_new(qe_kv_pool *pool, uint64_t id)
{
    g_assert(pool != NULL);
    qe_session *self = g_new0(qe_session, 1);
    self->pool = pool;
    self->id = id;
    self->ids = g_array_new(FALSE, FALSE, sizeof(uint32_t));
    self->pages = g_array_new(FALSE, FALSE, sizeof(qe_page));
    self->addresses = g_array_new(FALSE, FALSE, sizeof(uint64_t));
    self->turns = g_array_new(FALSE, FALSE, sizeof(qe_turn));
    return self;
}

/* An entry of the page table becomes another page; the reference to the one before is the caller's. */
static void set_page(qe_session *self, uint32_t i, qe_page page)
{
    *page_at(self, i) = page;
    self->off_epoch = self->bounds_epoch = 0;
    self->n_addresses = MIN(self->n_addresses, i);
}

/* Gives back the references past the first @n_keep entries, last page first. */
static void cut_page_table(qe_session *self, uint32_t n_keep)
{
    g_assert(n_keep <= self->pages->len);
    self->off_epoch = 0;
    self->n_addresses = MIN(self->n_addresses, n_keep);
    self->bounds_end = MIN(self->bounds_end, n_keep);
    for (uint32_t i = self->pages->len; i-- > n_keep;)
        qe_kv_page_unref(self->pool, *page_at(self, i));
    g_array_set_size(self->pages, n_keep);
}

void qe_session_free(qe_session *self)
{
    if (self == NULL)
        return;
    cut_page_table(self, 0);
    g_array_free(self->ids, TRUE);
    g_array_free(self->pages, TRUE);
    g_array_free(self->addresses, TRUE);
    g_array_free(self->turns, TRUE);
    g_free(self);
}

uint64_t qe_session_id_of(const qe_session *self)
{
    return self->id;
}

uint32_t qe_session_n_ids(const qe_session *self)
{
    return self->ids->len;
}

const uint32_t *qe_session_ids(const qe_session *self)
{
    return (const uint32_t *)(void *)self->ids->data;
}

uint32_t qe_session_n_cached(const qe_session *self)
{
    return self->n_cached;
}

uint32_t qe_session_n_pages(const qe_session *self)
{
    return self->pages->len;
}

const qe_page *qe_session_pages(const qe_session *self)
{
    return (const qe_page *)(void *)self->pages->data;
}

const uint64_t *qe_session_plan_addresses(qe_session *self, uint32_t n)
{
    uint64_t epoch = qe_kv_pool_placement_epoch(self->pool);
    g_assert(n <= self->pages->len);
    if (self->addresses_epoch != epoch)
        self->n_addresses = 0;
    self->addresses_epoch = epoch;
    if (self->addresses->len < self->pages->len)
        g_array_set_size(self->addresses, self->pages->len);
    uint64_t *addresses = (uint64_t *)(void *)self->addresses->data;
    for (uint32_t i = self->n_addresses; i < n; i++)
        addresses[i] = qe_kv_page_plan_address(self->pool, *page_at(self, i));
    self->n_addresses = MAX(self->n_addresses, n);
    return addresses;
}

uint32_t qe_session_n_turns(const qe_session *self)
{
    return self->turns->len;
}

const qe_turn *qe_session_turn(const qe_session *self, uint32_t i)
{
    g_assert(i < self->turns->len);
    return &g_array_index(self->turns, qe_turn, i);
}

/* ---- Ids and turns ---- */

void qe_session_append_ids(qe_session *self, const uint32_t *ids, uint32_t n)
{
    g_assert(n <= UINT32_MAX - self->ids->len);
    if (n > 0)
        g_array_append_vals(self->ids, ids, n);
}

static uint32_t turns_end(const qe_session *self)
{
    return self->turns->len > 0 ? qe_session_turn(self, self->turns->len - 1)->end : 0;
}

void qe_session_add_turn(qe_session *self, const qe_turn *turn)
{
    g_assert(turn->begin == turns_end(self));
    g_assert(turn->begin <= turn->text_begin);
    g_assert(turn->text_begin <= turn->end);
    g_assert(turn->end <= self->ids->len);
    g_array_append_vals(self->turns, turn, 1);
}

void qe_session_extend_turn(qe_session *self, uint32_t end, qe_turn_state state, bool has_reasoning)
{
    g_assert(self->turns->len > 0);
    qe_turn *turn = &g_array_index(self->turns, qe_turn, self->turns->len - 1);
    g_assert(end >= turn->end);
    g_assert(end <= self->ids->len);
    turn->end = end;
    turn->state = state;
    turn->has_reasoning = has_reasoning;
}

/* ---- KV: growing ---- */

/* Whether the page that token n_cached goes to is a cut page (invariant 3). */
static bool has_cut_page(const qe_session *self)
{
    if (self->n_cached % QK_PAGE_TOKENS == 0)
        return false;
    return qe_kv_page_state(self->pool, *page_at(self, self->n_cached / QK_PAGE_TOKENS)) == QE_PAGE_SEALED;
}

bool qe_session_copies_page(const qe_session *self)
{
    return has_cut_page(self) &&
           !qe_kv_page_can_unseal(self->pool, *page_at(self, self->n_cached / QK_PAGE_TOKENS));
}

uint32_t qe_session_pages_needed(const qe_session *self, uint32_t n_tokens)
{
    if (n_tokens <= self->n_cached)
        return 0;
    uint32_t n_pages = pages_for(n_tokens), n_needed = 0;
    if (n_pages > self->pages->len)
        n_needed = n_pages - self->pages->len;
    return n_needed + qe_session_copies_page(self);
}

/* Contiguous: all pages move to a run of their own that has room for @n_tokens and some more. */
static bool move_to_run(qe_session *self, uint32_t n_tokens, GError **error)
{
    uint32_t n_old = pages_for(self->n_cached), n_new = pages_for(MAX(n_tokens, self->run_tokens));
    if (n_old > 0 && n_new < n_old + n_old / 2)
        n_new = n_old + n_old / 2;
    g_autoptr(GArray) fresh = g_array_sized_new(FALSE, FALSE, sizeof(qe_page), n_new);
    g_array_set_size(fresh, n_new);
    qe_page *pages = (qe_page *)(void *)fresh->data;
    if (!qe_kv_page_alloc_run(self->pool, n_new, pages, error))
        return false;
    if (!qe_kv_page_copy_run(self->pool, qe_session_pages(self), pages, n_old, error)) {
        for (uint32_t i = 0; i < n_new; i++)
            qe_kv_page_unref(self->pool, pages[i]);
        return false;
    }
    for (uint32_t i = 0; i < self->n_cached / QK_PAGE_TOKENS; i++)
        qe_kv_page_seal(self->pool, pages[i]);
    cut_page_table(self, 0);
    g_array_append_vals(self->pages, pages, n_new);
    return true;
}

static bool reserve_contiguous(qe_session *self, uint32_t n_tokens, GError **error)
{
    if (pages_for(n_tokens) > self->pages->len)
        return move_to_run(self, n_tokens, error);
    if (!has_cut_page(self))
        return true;
    qe_page cut = *page_at(self, self->n_cached / QK_PAGE_TOKENS);
    if (!qe_kv_page_can_unseal(self->pool, cut))
        return move_to_run(self, n_tokens, error);
    qe_kv_page_unseal(self->pool, cut);
    return true;
}

bool qe_session_reserve(qe_session *self, uint32_t n_tokens, GError **error)
{
    if (n_tokens <= self->n_cached)
        return true;
    if (self->policy.contiguous)
        return reserve_contiguous(self, n_tokens, error);

    uint32_t n_before = self->pages->len, n_pages = pages_for(n_tokens);
    uint32_t at = self->n_cached / QK_PAGE_TOKENS;
    qe_page cut = has_cut_page(self) ? *page_at(self, at) : QE_PAGE_NONE;
    bool replaced = cut != QE_PAGE_NONE && !qe_kv_page_can_unseal(self->pool, cut); /* by a copy */
    if (replaced) {
        qe_page copy;
        if (!qe_kv_page_copy(self->pool, cut, &copy, error))
            return false;
        set_page(self, at, copy);
    } else if (cut != QE_PAGE_NONE) {
        qe_kv_page_unseal(self->pool, cut);
    }

    while (self->pages->len < n_pages) {
        qe_page page;
        if (!qe_kv_page_alloc(self->pool, &page, error))
            goto fail;
        g_array_append_val(self->pages, page);
    }
    if (replaced)
        qe_kv_page_unref(self->pool, cut);
    return true;

fail: /* all or nothing: what others could use is given back */
    cut_page_table(self, n_before);
    if (replaced) {
        qe_kv_page_unref(self->pool, *page_at(self, at));
        set_page(self, at, cut);
    }
    return false;
}

/* No token has such ids: these are names of nothing but ways to select. */
#define SELECT_MARK 0xffffffffu

qe_page_key qe_session_seed(const qe_session *self)
{
    const qe_session_select *s = &self->policy.select;
    const uint32_t ids[QE_PAGE_KEY_TOKENS] = {SELECT_MARK, s->n_sink, s->n_recent, s->n_chosen};
    return s->n_recent == 0 ? *qe_kv_pool_seed(self->pool)
                            : qe_page_key_child(qe_kv_pool_seed(self->pool), ids);
}

/* The parent of page @i's key; false: the page before it has no name. */
static bool parent_of(const qe_session *self, uint32_t i, qe_page_key *parent)
{
    const qe_page_key *key = i > 0 ? qe_kv_page_key(self->pool, *page_at(self, i - 1)) : NULL;
    if (i > 0 && !key)
        return false;
    *parent = i > 0 ? *key : qe_session_seed(self);
    return true;
}

/* Names and stores the full page @i as the policy wants it. Pages are named in order: one without a name, and those after
 * it, stay private. */
static void offer_page(qe_session *self, uint32_t i)
{
    qe_page page = *page_at(self, i);
    qe_page_key parent;
    if (self->policy.shared && parent_of(self, i, &parent)) {
        qe_page named =
            qe_kv_page_publish(self->pool, page, &parent, qe_session_ids(self) + (gsize)i * QK_PAGE_TOKENS);
        if (named != page)
            set_page(self, i, named);
        page = named;
    }
    if (self->policy.tiered)
        qe_kv_page_store(self->pool, page);
}

void qe_session_commit(qe_session *self, uint32_t n)
{
    g_assert(n <= self->ids->len - self->n_cached);
    uint32_t n_cached = self->n_cached + n;
    g_assert(pages_for(n_cached) <= self->pages->len);
    for (uint32_t i = self->n_cached / QK_PAGE_TOKENS; i < pages_for(n_cached) && n > 0; i++) {
        qe_page page = *page_at(self, i);
        g_assert(qe_kv_page_state(self->pool, page) == QE_PAGE_TAIL); /* else reserve did not cover it */
        if (n_cached / QK_PAGE_TOKENS > i) {
            qe_kv_page_seal(self->pool, page);
            offer_page(self, i);
        }
    }
    self->n_cached = n_cached;
}

void qe_session_release_reserved(qe_session *self)
{
    cut_page_table(self, pages_for(self->n_cached));
}

/* ---- KV: shrinking ---- */

void qe_session_uncache(qe_session *self, uint32_t n_tokens)
{
    self->n_cached = MIN(self->n_cached, n_tokens);
    cut_page_table(self, pages_for(self->n_cached));
    if (has_cut_page(self)) {
        qe_page page = *page_at(self, self->pages->len - 1);
        if (qe_kv_page_can_unseal(self->pool, page))
            qe_kv_page_unseal(self->pool, page);
    }
}

void qe_session_rewind(qe_session *self, uint32_t n_tokens)
{
    g_assert(n_tokens <= self->ids->len);
    g_array_set_size(self->ids, n_tokens);
    uint32_t n_turns = self->turns->len;
    while (n_turns > 0 && qe_session_turn(self, n_turns - 1)->end > n_tokens)
        n_turns--;
    g_array_set_size(self->turns, n_turns);
    qe_session_uncache(self, n_tokens);
}

void qe_session_drop_lost(qe_session *self)
{
    uint32_t n = 0;
    while (n < self->n_cached / QK_PAGE_TOKENS && qe_kv_page_on_host(self->pool, *page_at(self, n)))
        n++;
    self->n_cached = n * QK_PAGE_TOKENS;
    cut_page_table(self, n);
}

uint32_t qe_session_replace(qe_session *self, const uint32_t *ids, uint32_t n)
{
    const uint32_t *mine = qe_session_ids(self);
    uint32_t n_common = 0, n_limit = MIN(n, self->ids->len);
    while (n_common < n_limit && mine[n_common] == ids[n_common])
        n_common++;
    if (n_common < self->ids->len)
        qe_session_rewind(self, n_common);
    if (n_common < n)
        qe_session_append_ids(self, ids + n_common, n - n_common);
    return n_common;
}

/* ---- Tiers and sharing ---- */

qe_kv_pool *qe_session_pool(const qe_session *self)
{
    return self->pool;
}

const qe_session_policy *qe_session_get_policy(const qe_session *self)
{
    return &self->policy;
}

void qe_session_set_policy(qe_session *self, const qe_session_policy *policy)
{
    self->policy = *policy;
    for (uint32_t i = 0; i < self->n_cached / QK_PAGE_TOKENS; i++)
        offer_page(self, i);
}

void qe_session_set_run(qe_session *self, uint32_t n_tokens)
{
    self->run_tokens = n_tokens;
}

uint32_t qe_session_adopt(qe_session *self, uint32_t n_tokens)
{
    uint32_t n_before = self->n_cached;
    if (!self->policy.shared)
        return 0;
    for (uint32_t i = self->n_cached / QK_PAGE_TOKENS; i < n_tokens / QK_PAGE_TOKENS; i++) {
        qe_page_key parent;
        if (!parent_of(self, i, &parent))
            break;
        qe_page page = qe_kv_pool_find(self->pool, &parent, qe_session_ids(self) + (gsize)i * QK_PAGE_TOKENS);
        if (page == QE_PAGE_NONE)
            break;
        cut_page_table(self, i); /* a page of ours that is part filled, and what was reserved */
        g_array_append_val(self->pages, page);
        self->n_cached = (i + 1) * QK_PAGE_TOKENS;
        if (self->policy.tiered)
            qe_kv_page_store(self->pool, page);
    }
    return self->n_cached - n_before;
}

/* Gives up the device copy of entry @i when the rules of demote and spill allow it. */
static bool drop_entry(qe_session *self, uint32_t i, bool running, bool shared, const uint32_t *pins)
{
    qe_page page = *page_at(self, i);
    if ((pins && pins[page] > 0) || (qe_kv_page_refs(self->pool, page) > 1) != shared)
        return false;
    if (running && !qe_kv_page_is_readable_on_host(self->pool, page))
        return false;
    return qe_kv_page_drop_device(self->pool, page);
}

uint32_t qe_session_demote(qe_session *self, uint32_t n, bool shared, const uint32_t *pins)
{
    uint32_t n_gone = 0;
    for (uint32_t i = self->n_cached / QK_PAGE_TOKENS; i-- > 0 && n_gone < n;)
        n_gone += drop_entry(self, i, false, shared, pins);
    for (uint32_t i = self->policy.select.n_recent ? self->pages->len : 0; i-- > 0 && n_gone < n;) {
        qe_page page = *page_at(self, i);
        if (pins ? pins[page] == 0 : qe_kv_page_refs(self->pool, page) == 1)
            n_gone += qe_kv_page_drop_bounds(self->pool, page);
    }
    return n_gone;
}

bool qe_session_leaves_out(const qe_session *self, uint32_t n_tokens)
{
    const qe_session_select *s = &self->policy.select;
    return s->n_recent > 0 && pages_for(n_tokens) > s->n_sink + s->n_recent + s->n_chosen;
}

/* The pages whose bounds are looked at and perhaps not there. */
static void missing_bounds(const qe_session *self, uint32_t n_tokens, uint32_t *begin, uint32_t *end)
{
    const qe_session_select *s = &self->policy.select;
    bool known = self->bounds_epoch == qe_kv_pool_bounds_epoch(self->pool);
    *end = pages_for(n_tokens) - s->n_recent;
    *begin = known ? CLAMP(self->bounds_end, s->n_sink, *end) : s->n_sink;
}

bool qe_session_take_bounds(qe_session *self, uint32_t n_tokens, GError **error)
{
    uint32_t begin, end;
    if (!qe_session_leaves_out(self, n_tokens))
        return true;
    missing_bounds(self, n_tokens, &begin, &end);
    for (uint32_t i = begin; i < end; i++) {
        if (!qe_kv_page_take_bounds(self->pool, *page_at(self, i), error))
            return false;
    }
    return true;
}

bool qe_session_make_bounds(qe_session *self, qk_context *context, uint32_t n_tokens, GError **error)
{
    uint32_t begin, end;
    if (!qe_session_leaves_out(self, n_tokens))
        return true;
    missing_bounds(self, n_tokens, &begin, &end);
    if (!qe_kv_pool_make_bounds(self->pool, context, qe_session_pages(self) + begin, end - begin, error))
        return false;
    while (begin < end && qe_kv_page_bounds_are_made(self->pool, *page_at(self, begin)))
        begin++;
    self->bounds_end = begin;
    self->bounds_epoch = qe_kv_pool_bounds_epoch(self->pool);
    return true;
}

uint32_t qe_session_spill(
    qe_session *self, uint32_t n, uint32_t first_kept, bool shared, const uint32_t *pins)
{
    uint32_t n_gone = 0, end = MIN(first_kept, self->n_cached / QK_PAGE_TOKENS);
    for (uint32_t i = 0; i < end && n_gone < n; i++)
        n_gone += drop_entry(self, i, true, shared, pins);
    return n_gone;
}

int64_t qe_session_load(qe_session *self, uint32_t n_max, GError **error)
{
    int64_t n = 0;
    for (uint32_t i = pages_for(self->n_cached); i-- > 0 && n < n_max;) {
        qe_page page = *page_at(self, i);
        if (qe_kv_page_on_device(self->pool, page) || qe_kv_page_is_loading(self->pool, page))
            continue;
        g_autoptr(GError) local = NULL;
        if (!qe_kv_page_load(self->pool, page, &local)) {
            if (!g_error_matches(local, QE_ERROR, QE_ERROR_DEVICE_LOST))
                break;
            g_propagate_error(error, g_steal_pointer(&local));
            return -1;
        }
        n++;
    }
    return n;
}

uint32_t qe_session_first_unreadable(const qe_session *self)
{
    uint32_t i = 0;
    while (i < self->pages->len && (qe_kv_page_is_loading(self->pool, *page_at(self, i)) ||
                                       qe_kv_page_plan_address(self->pool, *page_at(self, i)) != 0))
        i++;
    return i;
}

uint32_t qe_session_n_loading(const qe_session *self)
{
    uint32_t n = 0;
    if (qe_kv_pool_n_loading(self->pool) == 0)
        return 0;
    for (uint32_t i = 0; i < self->pages->len; i++)
        n += qe_kv_page_is_loading(self->pool, *page_at(self, i));
    return n;
}

uint32_t qe_session_n_off_device(qe_session *self)
{
    uint64_t epoch = qe_kv_pool_placement_epoch(self->pool);
    if (!qe_kv_pool_has_host(self->pool))
        return 0;
    if (self->off_epoch != epoch || self->off_pages != self->pages->len) {
        self->n_off = 0;
        for (uint32_t i = 0; i < self->pages->len; i++)
            self->n_off += !qe_kv_page_on_device(self->pool, *page_at(self, i));
        self->off_epoch = epoch;
        self->off_pages = self->pages->len;
    }
    return self->n_off;
}

uint32_t qe_session_n_on_device(qe_session *self)
{
    return self->pages->len - qe_session_n_off_device(self);
}

/* ---- Fork ---- */

qe_session *qe_session_fork(qe_session *self, uint64_t id, uint32_t n_tokens, GError **error)
{
    g_assert(n_tokens <= self->ids->len);
    qe_session *child = qe_session_new(self->pool, id);
    qe_session_append_ids(child, qe_session_ids(self), n_tokens);
    for (uint32_t i = 0; i < self->turns->len && qe_session_turn(self, i)->end <= n_tokens; i++)
        g_array_append_vals(child->turns, qe_session_turn(self, i), 1);

    uint32_t n_cached = MIN(n_tokens, self->n_cached);
    for (uint32_t i = 0; i < pages_for(n_cached); i++) {
        qe_page page = *page_at(self, i);
        if (qe_kv_page_state(self->pool, page) == QE_PAGE_SEALED) {
            qe_kv_page_ref(self->pool, page); /* cut or not: a cut page is copied when the child writes */
        } else if (!qe_kv_page_copy(self->pool, page, &page, error)) {
            qe_session_free(child);
            return NULL;
        }
        g_array_append_val(child->pages, page);
    }
    child->n_cached = n_cached;
    child->policy = self->policy;
    return child;
}

/* ---- The checker ---- */

void qe_session_count_pages(const qe_session *self, uint32_t *n_entries)
{
    for (uint32_t i = 0; i < self->pages->len; i++)
        n_entries[*page_at(self, i)]++;
}

/* Fills @error with the session's name and the text. Returns false. */
G_GNUC_PRINTF(3, 4)
static bool broken(const qe_session *self, GError **error, const char *format, ...)
{
    va_list args;
    va_start(args, format);
    g_autofree char *what = g_strdup_vprintf(format, args);
    va_end(args);
    g_set_error(error, QE_ERROR, QE_ERROR_FAILED, "session %" G_GUINT64_FORMAT ": %s", self->id, what);
    return false;
}

static bool check_turns(const qe_session *self, GError **error)
{
    uint32_t begin = 0;
    for (uint32_t i = 0; i < self->turns->len; i++) {
        const qe_turn *turn = qe_session_turn(self, i);
        if (turn->begin != begin)
            return broken(
                self, error, "turn %u begins at %u, but the last one ends at %u", i, turn->begin, begin);
        if (turn->text_begin < turn->begin || turn->end < turn->text_begin || turn->end > self->ids->len)
            return broken(self, error, "turn %u is [%u, text %u, %u) of %u ids", i, turn->begin,
                turn->text_begin, turn->end, self->ids->len);
        begin = turn->end;
    }
    return true;
}

static bool check_page(const qe_session *self, uint32_t i, GError **error)
{
    qe_page page = *page_at(self, i);
    if (page >= qe_kv_pool_n_pages(self->pool))
        return broken(self, error, "entry %u names page %u of %u", i, page, qe_kv_pool_n_pages(self->pool));
    qe_page_state state = qe_kv_page_state(self->pool, page);
    uint64_t begin = (uint64_t)i * QK_PAGE_TOKENS, end = begin + QK_PAGE_TOKENS;
    if (state == QE_PAGE_FREE)
        return broken(self, error, "entry %u names page %u, which is FREE", i, page);
    if (end <= self->n_cached && state != QE_PAGE_SEALED)
        return broken(self, error, "page %u (entry %u) is full with %u tokens cached, yet not SEALED", page,
            i, self->n_cached);
    if (begin >= self->n_cached && state != QE_PAGE_TAIL)
        return broken(self, error, "page %u (entry %u) is past the %u cached tokens, yet SEALED", page, i,
            self->n_cached);
    if (end > self->n_cached && state == QE_PAGE_SEALED && i != self->pages->len - 1)
        return broken(self, error, "page %u (entry %u) is cut and SEALED, yet not the last of %u", page, i,
            self->pages->len);
    return true;
}

bool qe_session_check(const qe_session *self, GError **error)
{
    if (self->n_cached > self->ids->len)
        return broken(self, error, "%u tokens cached of %u", self->n_cached, self->ids->len);
    if (self->pages->len < pages_for(self->n_cached))
        return broken(self, error, "%u pages for %u cached tokens", self->pages->len, self->n_cached);

    g_autofree uint8_t *is_seen = g_new0(uint8_t, qe_kv_pool_n_pages(self->pool) + 1);
    for (uint32_t i = 0; i < self->pages->len; i++) {
        if (!check_page(self, i, error))
            return false;
        uint8_t *seen = &is_seen[*page_at(self, i)];
        if (*seen)
            return broken(
                self, error, "page %u is in the page table twice, again as entry %u", *page_at(self, i), i);
        *seen = 1;
    }
    bool known = self->addresses_epoch == qe_kv_pool_placement_epoch(self->pool);
    for (uint32_t i = 0; i < self->n_addresses && known; i++) {
        if (g_array_index(self->addresses, uint64_t, i) !=
            qe_kv_page_plan_address(self->pool, *page_at(self, i)))
            return broken(self, error, "entry %u is not where its address says", i);
    }
    return check_turns(self, error);
}
