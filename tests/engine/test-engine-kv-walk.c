/* test-engine-kv-walk.c: a random walk over the page pool and its sessions with everything that can happen to them: two
 * page classes that share their budgets, a device tier, a host tier, copies that land late and out of order, cached
 * pages, pages that come from outside and pages that are pinned, sessions of all policies, budgets that change, a device
 * that is lost, allocations, copies and registrations that fail.
 *
 * The model keeps each session's ids. What a token leaves in its page (a *stamp*) depends on all ids up to it and on the
 * page class, as with a real model; so a page that is found by name and is another's, or comes up in another class, is
 * seen like one that was written over. So does the way in which a session selects pages, with which it has names of its
 * own; what such a session chooses pages by is their content, made on COMPUTE and looked at by its steps. A step is
 * played by work on COMPUTE: when its turn comes it reads all that its
 * session has cached from where the plan said, on the device or in host memory in place, and writes its own stamps. After
 * each operation the pool's and the sessions' checkers run, and the counters that the engine goes by are counted again.
 *
 * QUIRE_WALK_STEPS and QUIRE_WALK_SEED: how long, and from where (QUIRE_WALK_SEEDS: so many seeds from there). The walks
 * are repeatable, but for the one whose host memory is made on a thread. */
#include "engine/qe-kv-pool.h"
#include "engine/qe-session.h"
#include "tests/engine/fake-backend.h"

#include <stdlib.h>
#include <string.h>

#define N_CLASSES  2u
#define N_SESSIONS 8u
#define IDS_MAX    400u
#define PAGES_MAX  (IDS_MAX / QK_PAGE_TOKENS + 4)
#define PENDING    4u
#define FRESH_WORD 0xffffffffu
#define OVER_STAMP 0xeeeeeeeeu /* what a step writes past the tokens that count */

typedef struct {
    qe_session *real; /* NULL: closed */
    uint32_t cls, text;
    qe_session_select select; /* its policy's */
    uint32_t ids[IDS_MAX], stamps[IDS_MAX];
    uint32_t n_ids, n_cached;
    uint32_t n_step;   /* tokens of the step in flight that count */
    qk_event *running; /* NULL: no step in flight */
} shadow;

typedef struct {
    uint32_t cls;
    qe_page page; /* QE_PAGE_NONE: none pending */
    uint32_t stamps[QK_PAGE_TOKENS];
    const void *bytes; /* of a pin: where they are */
} pending;

typedef struct {
    fake_backend *fake;
    qk_kv_layout layouts[N_CLASSES];
    qe_kv_pool *pools[N_CLASSES];
    qe_kv_ledger device, host;
    uint32_t n_max; /* the device tier's budget in pages of class 0 */
    bool background;
    shadow s[N_SESSIONS];
    pending imports[PENDING], pins[PENDING];
    uint64_t random, next_id;
    bool armed; /* some failure may come */
    uint64_t n_done, n_steps, n_reads_host, n_failed, n_adopted, n_lost, n_cancelled, n_imports, n_offs,
        n_selected, n_refused;
} walk;

static uint32_t below(walk *w, uint32_t n)
{
    w->random ^= w->random << 13;
    w->random ^= w->random >> 7;
    w->random ^= w->random << 17;
    return n > 0 ? (uint32_t)((w->random * 0x2545f4914f6cdd1dull) >> 33) % n : 0;
}

static bool one_in(walk *w, uint32_t n)
{
    return below(w, n) == 0;
}

/* A length to cut @n to: mostly a little shorter, sometimes anything. */
static uint32_t cut(walk *w, uint32_t n)
{
    return one_in(w, 4) ? below(w, n + 1) : n - below(w, MIN(n, 40) + 1);
}

static uint32_t pages_of(uint32_t n_tokens)
{
    return (n_tokens + QK_PAGE_TOKENS - 1) / QK_PAGE_TOKENS;
}

/* ---- The model ---- */

static void set_stamps(shadow *s, uint32_t from)
{
    for (uint32_t i = from; i < s->n_ids; i++) {
        uint32_t kind = s->cls + 1 + 2 * (s->select.n_recent * 7 + s->select.n_chosen);
        uint32_t x = (i > 0 ? s->stamps[i - 1] : 0x9e3779b9u * kind) ^ (s->ids[i] + 0x7f4a7c15u);
        x = (x ^ (x >> 16)) * 0x85ebca6bu;
        x = (x ^ (x >> 13)) * 0xc2b2ae35u;
        s->stamps[i] = (x ^ (x >> 16)) & 0x7fffffffu; /* neither NaN nor OVER_STAMP */
    }
}

static void forget_step(walk *w, shadow *s)
{
    if (s->running)
        w->n_cancelled++;
    g_clear_pointer(&s->running, qk_event_free);
    s->n_step = 0;
}

/* ---- Steps ---- */

typedef struct {
    uint32_t *places[PAGES_MAX];
    const uint32_t *bounds[PAGES_MAX]; /* NULL: not looked at */
    uint32_t stamps[IDS_MAX];
    uint32_t n_read, n_write, n_over, fresh_from, n_pages;
} step;

static uint32_t *word_of(const step *p, uint32_t at)
{
    return p->places[at / QK_PAGE_TOKENS] + at % QK_PAGE_TOKENS;
}

static void run_step(void *user, bool done)
{
    step *p = user;
    for (uint32_t at = 0; done && at < p->n_read; at++)
        g_assert_cmphex(*word_of(p, at), ==, p->stamps[at]);
    for (uint32_t i = 0; done && i < PAGES_MAX; i++) {
        if (p->bounds[i])
            g_assert_cmpmem(p->bounds[i], 64, p->stamps + i * QK_PAGE_TOKENS, 64);
    }
    for (uint32_t at = p->fresh_from * QK_PAGE_TOKENS; done && at < p->n_pages * QK_PAGE_TOKENS; at++)
        g_assert_cmphex(*word_of(p, at), ==, FRESH_WORD);
    for (uint32_t i = 0; done && i < p->n_write + p->n_over; i++)
        *word_of(p, p->n_read + i) = i < p->n_write ? p->stamps[p->n_read + i] : OVER_STAMP;
    g_free(p);
}

/* Where a kernel, or the CPU for it, would read or write the page. */
static uint32_t *place_of(walk *w, qe_kv_pool *pool, qe_page page)
{
    if (qe_kv_page_state(pool, page) == QE_PAGE_TAIL)
        return (uint32_t *)(uintptr_t)qe_kv_page_address(pool, page);
    uint64_t address = qe_kv_page_plan_address(pool, page);
    if (!qe_kv_page_on_device(pool, page))
        w->n_reads_host++;
    const void *host =
        address ? (const void *)(uintptr_t)(address & ~(uint64_t)QK_PAGE_HOST) : qe_kv_page_host(pool, page);
    g_assert_nonnull(host);
    return (uint32_t *)(uintptr_t)host;
}

static void may_have_failed(walk *w, const GError *error)
{
    g_assert_true(g_error_matches(error, QE_ERROR, QE_ERROR_NO_MEMORY) ||
                  g_error_matches(error, QE_ERROR, QE_ERROR_REFUSED));
    w->n_failed++;
}

/* What a step of one token looks at to choose pages, made where it is not. false: there is no room for it, or it failed. */
static bool ready_bounds(walk *w, shadow *s)
{
    g_autoptr(GError) error = NULL;
    qe_kv_pool *pool = w->pools[s->cls];
    for (uint32_t i = 0; i < qe_session_n_pages(s->real); i++) {
        qe_page page = qe_session_pages(s->real)[i];
        if (qe_kv_page_state(pool, page) == QE_PAGE_SEALED && qe_kv_page_plan_address(pool, page) == 0)
            return false; /* the engine would compute these again first */
    }
    if (qe_session_take_bounds(s->real, s->n_cached + 1, &error) &&
        qe_session_make_bounds(
            s->real, fake_backend_context(w->fake, &w->layouts[0]), s->n_cached + 1, &error))
        return true;
    may_have_failed(w, error);
    return false;
}

static void look_at_bounds(walk *w, const shadow *s, step *p)
{
    const qe_session_select *select = &s->select;
    uint32_t n_pages = pages_of(s->n_cached + 1);
    for (uint32_t i = select->n_sink; i < n_pages - select->n_recent; i++) {
        p->bounds[i] =
            (const uint32_t *)(uintptr_t)qe_kv_page_bounds(w->pools[s->cls], qe_session_pages(s->real)[i]);
        g_assert_nonnull(p->bounds[i]);
        w->n_selected++;
    }
}

/* Work on COMPUTE that reads all that @s has cached and writes the next @n_write + @n_over tokens, which are reserved.
 * Pages from entry @fresh_from on were never written. */
static void submit_step(
    walk *w, shadow *s, uint32_t n_write, uint32_t n_over, uint32_t fresh_from, bool selects)
{
    step *p = g_new0(step, 1);
    p->n_read = s->n_cached;
    p->n_write = n_write;
    p->n_over = n_over;
    p->fresh_from = fresh_from;
    p->n_pages = MIN(qe_session_n_pages(s->real), PAGES_MAX);
    p->fresh_from = MIN(p->fresh_from, p->n_pages);
    for (uint32_t i = 0; i < p->n_pages; i++)
        p->places[i] = place_of(w, w->pools[s->cls], qe_session_pages(s->real)[i]);
    memcpy(p->stamps, s->stamps, sizeof p->stamps);
    if (selects)
        look_at_bounds(w, s, p);
    w->n_steps++;
    fake_backend_call(w->fake, QK_STREAM_COMPUTE, run_step, p);
}

/* ---- What must always hold ---- */

static void check_session(walk *w, const shadow *s)
{
    g_autoptr(GError) error = NULL;
    bool ok = qe_session_check(s->real, &error);
    g_assert_no_error(error);
    g_assert_true(ok);
    g_assert_cmpuint(qe_session_n_ids(s->real), ==, s->n_ids);
    g_assert_cmpuint(qe_session_n_cached(s->real), ==, s->n_cached);
    g_assert_true(s->n_ids == 0 || memcmp(qe_session_ids(s->real), s->ids, s->n_ids * 4) == 0);
    qe_kv_pool *pool = w->pools[s->cls];
    uint32_t n_off = 0, n_loading = 0;
    for (uint32_t i = 0; i < qe_session_n_pages(s->real); i++) {
        qe_page page = qe_session_pages(s->real)[i];
        n_off += !qe_kv_page_on_device(pool, page);
        n_loading += qe_kv_page_is_loading(pool, page);
    }
    g_assert_cmpuint(qe_session_n_off_device(s->real), ==, n_off);
    g_assert_cmpuint(qe_session_n_on_device(s->real), ==, qe_session_n_pages(s->real) - n_off);
    g_assert_cmpuint(qe_session_n_loading(s->real), ==, n_loading);
    /* Now and then all of them, or the first ones: some of what is kept is older than others. */
    uint32_t n_known =
        s->n_ids % 3 == 0 ? qe_session_n_pages(s->real) : qe_session_n_pages(s->real) / (s->n_ids % 3);
    const uint64_t *addresses = qe_session_plan_addresses(s->real, n_known);
    for (uint32_t i = 0; i < n_known; i++)
        g_assert_cmpuint(addresses[i], ==, qe_kv_page_plan_address(pool, qe_session_pages(s->real)[i]));
    w->n_offs += n_off;
}

static void check_pool(walk *w, uint32_t cls)
{
    g_autoptr(GError) error = NULL;
    qe_kv_pool *pool = w->pools[cls];
    g_autofree uint32_t *n_entries = g_new0(uint32_t, qe_kv_pool_n_pages(pool) + 1);
    for (uint32_t i = 0; i < N_SESSIONS; i++) {
        if (w->s[i].real && w->s[i].cls == cls)
            qe_session_count_pages(w->s[i].real, n_entries);
    }
    bool ok = qe_kv_pool_check(pool, n_entries, &error);
    g_assert_no_error(error);
    g_assert_true(ok);
    /* What could be had is never more than the budget leaves. */
    uint32_t n_used = qe_kv_pool_n_used(pool), n_max = qe_kv_pool_n_max(pool);
    const qe_kv_slots *slots[] = {qe_kv_pool_device_slots(pool), qe_kv_pool_host_slots(pool)};
    for (int i = 0; i < 2; i++) {
        uint32_t used = qe_kv_slots_n_used(slots[i]), max = qe_kv_slots_n_max(slots[i]);
        g_assert_cmpuint(qe_kv_slots_n_available(slots[i]), <=, max > used ? max - used : 0);
    }
    g_assert_cmpuint(qe_kv_pool_n_available(pool), <=,
        (n_max > n_used ? n_max - n_used : 0) + MIN(qe_kv_pool_n_cached(pool), n_max));
}

static uint64_t bytes_reserved(const walk *w, bool host)
{
    uint64_t bytes = 0;
    for (uint32_t c = 0; c < N_CLASSES; c++) {
        const qe_kv_slots *slots =
            host ? qe_kv_pool_host_slots(w->pools[c]) : qe_kv_pool_device_slots(w->pools[c]);
        bytes += qe_kv_slots_bytes_reserved(slots);
    }
    return bytes;
}

static void check_all(walk *w)
{
    for (uint32_t c = 0; c < N_CLASSES; c++)
        check_pool(w, c);
    for (uint32_t i = 0; i < N_SESSIONS; i++) {
        if (w->s[i].real)
            check_session(w, &w->s[i]);
    }
    g_assert_cmpuint(w->device.bytes_taken, ==, bytes_reserved(w, false));
    if (w->background) /* a slab that is being made counts too */
        g_assert_cmpuint(w->host.bytes_taken, >=, bytes_reserved(w, true));
    else
        g_assert_cmpuint(w->host.bytes_taken, ==, bytes_reserved(w, true));
    g_assert_cmpuint(w->host.bytes_taken, <=, w->host.bytes_max);
}

/* All copies of all pages of @s have its stamps: each tier's. Nothing is in flight. */
static void read_all_tiers(walk *w, const shadow *s)
{
    qe_kv_pool *pool = w->pools[s->cls];
    for (uint32_t at = 0; at < s->n_cached; at += QK_PAGE_TOKENS) {
        qe_page page = qe_session_pages(s->real)[at / QK_PAGE_TOKENS];
        uint32_t n = MIN(QK_PAGE_TOKENS, s->n_cached - at) * 4;
        g_assert_true(qe_kv_page_on_device(pool, page) || qe_kv_page_on_host(pool, page));
        if (qe_kv_page_on_device(pool, page))
            g_assert_cmpmem((const void *)(uintptr_t)qe_kv_page_address(pool, page), n, s->stamps + at, n);
        if (qe_kv_page_on_host(pool, page))
            g_assert_cmpmem(qe_kv_page_host(pool, page), n, s->stamps + at, n);
    }
}

/* Lets everything land. Then nothing moves, and what waits to be stored has no slot to go to. */
static void settle(walk *w)
{
    g_autoptr(GError) error = NULL;
    for (uint32_t c = 0; c < N_CLASSES; c++) {
        qe_kv_pool *pool = w->pools[c];
        do { /* after refusals it takes some more calls */
            for (int i = 0; i < 300 && (i == 0 || qe_kv_pool_n_moving(pool) == 0); i++)
                qe_kv_pool_submit_moves(pool, &error);
            g_assert_no_error(error);
        } while (qe_kv_pool_wait_move(pool, &error) || (w->background && qe_kv_pool_wait_host_slab(pool)));
        g_assert_no_error(error);
        g_assert_cmpuint(qe_kv_pool_n_moving(pool), ==, 0);
        g_assert_cmpuint(qe_kv_pool_n_loading(pool), ==, 0);
        if (qe_kv_pool_n_to_store(pool) > 0)
            g_assert_cmpuint(qe_kv_pool_n_host_available(pool), ==, 0);
    }
    fake_backend_drain(w->fake);
    for (uint32_t i = 0; i < N_SESSIONS; i++) {
        if (w->s[i].real)
            read_all_tiers(w, &w->s[i]);
    }
}

/* ---- Operations on a session ---- */

/* All or nothing; and it succeeds exactly when what it says to need is there. A page that is written to again loses its
 * bounds: where they were the last of their slot, that may be one more. */
static bool reserve(walk *w, shadow *s, uint32_t n_tokens)
{
    g_autoptr(GError) error = NULL;
    qe_kv_pool *pool = w->pools[s->cls];
    uint32_t n_needed = qe_session_pages_needed(s->real, n_tokens), n_before = qe_session_n_pages(s->real);
    uint32_t n_available = qe_kv_pool_n_available(pool), n_bounds = qe_kv_pool_n_bounds_slots(pool);
    g_autofree qe_page *before = g_memdup2(qe_session_pages(s->real), MAX(n_before, 1) * sizeof(qe_page));
    bool exact = !qe_session_get_policy(s->real)->contiguous && !w->armed;
    bool ok = qe_session_reserve(s->real, n_tokens, &error);
    n_bounds -= qe_kv_pool_n_bounds_slots(pool);
    if (exact)
        g_assert_true(ok ? n_needed <= n_available + n_bounds : n_needed > n_available);
    if (!ok) {
        may_have_failed(w, error);
        g_assert_cmpmem(before, n_before * sizeof(qe_page), qe_session_pages(s->real),
            qe_session_n_pages(s->real) * sizeof(qe_page));
    } else {
        g_assert_cmpuint(qe_session_n_pages(s->real), >=, pages_of(n_tokens));
    }
    return ok;
}

static void append(walk *w, shadow *s)
{
    uint32_t from = s->n_ids, n = below(w, 60);
    n = MIN(n, IDS_MAX - from);
    /* One of two texts, now and then with a word changed: so beginnings agree, and agree no longer. */
    for (uint32_t i = 0; i < n; i++)
        s->ids[from + i] = one_in(w, 400) ? below(w, 10) : (from + i) * (s->text + 1);
    qe_session_append_ids(s->real, s->ids + from, n);
    s->n_ids += n;
    set_stamps(s, from);
}

static void rewind_to(walk *w, shadow *s, uint32_t n)
{
    forget_step(w, s);
    s->n_ids = n;
    s->n_cached = MIN(s->n_cached, n);
    qe_session_rewind(s->real, n);
}

static void uncache_to(walk *w, shadow *s, uint32_t n)
{
    forget_step(w, s);
    s->n_cached = MIN(s->n_cached, n);
    qe_session_uncache(s->real, n);
}

static void replace(walk *w, shadow *s, const shadow *other)
{
    uint32_t ids[IDS_MAX], n = cut(w, other->n_ids), n_common = 0;
    memcpy(ids, other->ids, sizeof ids);
    forget_step(w, s);
    if (n > 0 && one_in(w, 2))
        ids[below(w, n)] = 7;
    while (n_common < MIN(n, s->n_ids) && ids[n_common] == s->ids[n_common])
        n_common++;
    g_assert_cmpuint(qe_session_replace(s->real, ids, n), ==, n_common);
    memcpy(s->ids, ids, sizeof ids);
    s->n_ids = n;
    s->n_cached = MIN(s->n_cached, n_common);
    set_stamps(s, n_common);
}

static void close_session(walk *w, shadow *s)
{
    forget_step(w, s);
    qe_session_free(s->real);
    *s = (shadow){0};
}

static void set_policy(walk *w, shadow *s)
{
    static const qe_session_policy policies[] = {
        {.shared = true, .tiered = true},
        {.shared = true, .tiered = true, .device_tokens_max = 48},
        {.tiered = true},
        {.shared = true},
        {.contiguous = true},
        {0},
        {.shared = true, .tiered = true, .select = {1, 2, 2}},
        {.shared = true, .tiered = true, .select = {0, 2, 1}, .device_tokens_max = 64},
        {.select = {1, 3, 0}},
    };
    /* A session with a step in flight keeps its policy, as in the engine. */
    if (s->running)
        return;
    /* Only pages of class 0 have bounds. */
    uint32_t n_policies = G_N_ELEMENTS(policies) - (s->cls == 0 ? 0 : 3);
    const qe_session_policy *policy = &policies[one_in(w, 2) ? 0 : below(w, n_policies)];
    bool other = memcmp(&policy->select, &s->select, sizeof s->select) != 0;
    if (one_in(w, 3) || other)
        uncache_to(w, s, 0);
    s->select = policy->select;
    if (other)
        set_stamps(s, 0);
    qe_session_set_policy(s->real, policy);
    qe_session_set_run(s->real, below(w, 200));
}

static void fork_session(walk *w, shadow *from, shadow *to)
{
    g_autoptr(GError) error = NULL;
    qe_kv_pool *pool = w->pools[from->cls];
    if (to->real)
        close_session(w, to);
    uint32_t n = cut(w, from->n_ids), n_available = qe_kv_pool_n_available(pool);
    qe_session *real = qe_session_fork(from->real, w->next_id++, n, &error);
    if (!real) {
        may_have_failed(w, error);
        g_assert_true(w->armed || n_available == 0);
        return;
    }
    if (!w->armed) /* at most the part-filled page */
        g_assert_cmpuint(n_available, <=, qe_kv_pool_n_available(pool) + 1);
    *to = *from;
    to->real = real;
    to->running = NULL;
    to->n_step = 0;
    to->n_ids = n;
    to->n_cached = MIN(n, from->n_cached);
}

static void adopt(walk *w, shadow *s)
{
    if (s->running)
        return;
    uint32_t n = below(w, s->n_ids + 1), gained = qe_session_adopt(s->real, n);
    s->n_cached += gained;
    g_assert_cmpuint(gained == 0 || s->n_cached % QK_PAGE_TOKENS == 0, ==, 1);
    g_assert_cmpuint(gained == 0 || s->n_cached <= n, ==, 1);
    w->n_adopted += gained > 0;
}

/* As the engine does it: an idle session is demoted, a running one spilled; what steps in flight hold is pinned for
 * others. */
static void give_way(walk *w, shadow *s)
{
    qe_kv_pool *pool = w->pools[s->cls];
    g_autofree uint32_t *pins = g_new0(uint32_t, qe_kv_pool_n_pages(pool) + 1);
    for (uint32_t i = 0; i < N_SESSIONS; i++) {
        if (w->s[i].running && &w->s[i] != s && w->s[i].cls == s->cls)
            qe_session_count_pages(w->s[i].real, pins);
    }
    uint32_t n = one_in(w, 3) ? UINT32_MAX : below(w, 10), n_used = qe_kv_pool_n_used(pool), n_gone;
    bool shared = one_in(w, 3);
    if (s->running || one_in(w, 2))
        n_gone = qe_session_spill(s->real, n, below(w, PAGES_MAX), shared, one_in(w, 3) ? NULL : pins);
    else
        n_gone = qe_session_demote(s->real, n, shared, pins);
    g_assert_cmpuint(n_used - qe_kv_pool_n_used(pool), ==, n_gone);
    for (uint32_t i = 0; i < qe_session_n_pages(s->real) && !s->running; i++)
        g_assert_cmpint(qe_kv_page_state(pool, qe_session_pages(s->real)[i]), !=, QE_PAGE_FREE);
}

static void load(walk *w, shadow *s)
{
    g_autoptr(GError) error = NULL;
    if (one_in(w, 3))
        qe_kv_pool_evict_cached(w->pools[s->cls], below(w, 6));
    int64_t n = qe_session_load(s->real, one_in(w, 2) ? UINT32_MAX : below(w, 8), &error);
    g_assert_no_error(error);
    g_assert_cmpint(n, >=, 0);
}

/* As the engine does it before it lets a session wait. */
static void make_room(walk *w, const shadow *s)
{
    g_autoptr(GError) error = NULL;
    qe_kv_pool *pool = w->pools[s->cls];
    for (uint32_t i = 0; i < N_SESSIONS; i++) {
        shadow *other = &w->s[i];
        if (other != s && other->real && other->cls == s->cls && !other->running)
            qe_session_demote(other->real, UINT32_MAX, one_in(w, 2), NULL);
    }
    if (one_in(w, 2))
        qe_kv_pool_wait_move(pool, &error);
    g_assert_no_error(error);
    qe_session_spill(s->real, 8, s->n_cached / QK_PAGE_TOKENS, false, NULL);
}

/* Begins a step over some of the tokens that are not computed, perhaps with a position more that does not count. */
static void begin_step(walk *w, shadow *s)
{
    if (s->n_ids == s->n_cached || one_in(w, 4)) {
        append(w, s);
        if (one_in(w, 2))
            adopt(w, s);
    }
    uint32_t n = below(w, MIN(s->n_ids - s->n_cached, 90) + 1), n_over = below(w, 2);
    bool contiguous = qe_session_get_policy(s->real)->contiguous;
    uint32_t n_before = qe_session_n_pages(s->real);
    if (!reserve(w, s, s->n_cached + n + n_over)) {
        make_room(w, s);
        n_before = qe_session_n_pages(s->real);
        if (!reserve(w, s, s->n_cached + n + n_over))
            return;
    }
    bool selects = n > 0 && qe_session_leaves_out(s->real, s->n_cached + 1);
    if (selects)
        n = 1;
    if (selects && !ready_bounds(w, s)) {
        make_room(w, s);
        if (!ready_bounds(w, s))
            return;
    }
    uint32_t fresh_from =
        contiguous && qe_session_n_pages(s->real) > n_before ? pages_of(s->n_cached) : n_before;
    submit_step(w, s, n, n_over, fresh_from, selects);
    if (n > 0 && qk_event_new(fake_backend_of(w->fake), &s->running) == QK_OK) {
        g_assert_cmpint(qk_event_record(s->running, QK_STREAM_COMPUTE), ==, QK_OK);
        s->n_step = n;
    }
}

static void end_step(walk *w, shadow *s)
{
    g_assert_cmpint(qk_event_wait(s->running), ==, QK_OK);
    uint32_t n_off = qe_session_n_off_device(s->real);
    qe_session_commit(s->real, s->n_step);
    g_assert_cmpuint(qe_session_n_off_device(s->real), <=, n_off); /* naming takes no page off the device */
    s->n_cached += s->n_step;
    g_clear_pointer(&s->running, qk_event_free);
    s->n_step = 0;
    w->n_done++;
}

/* ---- Operations on a pool ---- */

/* Errors of moves end the engine's device; copies that the device refuses are none, and all goes on. */
static void moves(walk *w, uint32_t cls)
{
    g_autoptr(GError) error = NULL;
    qe_kv_pool *pool = w->pools[cls];
    qe_kv_counters before, after;
    qe_kv_pool_get_counters(pool, &before);
    qe_kv_pool_submit_moves(pool, &error);
    g_assert_no_error(error);
    qe_kv_pool_get_counters(pool, &after);
    if (after.n_refused > before.n_refused) {
        g_assert_true(w->armed);
        w->n_refused++;
    }
    if (one_in(w, 3))
        qe_kv_pool_wait_move(pool, &error);
    else
        qe_kv_pool_poll(pool, &error);
    g_assert_no_error(error);
}

static void set_budget(walk *w)
{
    w->n_max = 4 + below(w, one_in(w, 3) ? 20 : 120);
    w->device.bytes_max = w->n_max * w->layouts[0].page_bytes;
    for (uint32_t c = 0; c < N_CLASSES; c++)
        qe_kv_pool_set_max(w->pools[c], (uint32_t)MAX(w->device.bytes_max / w->layouts[c].page_bytes, 1));
}

static void begin_import(walk *w)
{
    const shadow *s = &w->s[below(w, N_SESSIONS)];
    pending *p = &w->imports[below(w, PENDING)];
    if (p->page != QE_PAGE_NONE || !s->real || s->n_ids < QK_PAGE_TOKENS)
        return;
    qe_kv_pool *pool = w->pools[s->cls];
    uint32_t i = below(w, s->n_ids / QK_PAGE_TOKENS);
    qe_page_key parent = qe_session_seed(s->real);
    for (uint32_t k = 0; k < i; k++)
        parent = qe_page_key_child(&parent, s->ids + k * QK_PAGE_TOKENS);
    void *bytes;
    qe_page page;
    qe_import what = qe_kv_pool_import(pool, i > 0 || s->select.n_recent || one_in(w, 2) ? &parent : NULL,
        s->ids + i * QK_PAGE_TOKENS, &page, &bytes);
    if (what == QE_IMPORT_FAILED)
        g_assert_true(w->armed);
    if (what == QE_IMPORT_WAIT)
        g_assert_true(w->background || w->armed);
    if (what != QE_IMPORT_TAKEN)
        return;
    p->cls = s->cls;
    p->page = page;
    memset(bytes, 0xab, QK_PAGE_TOKENS * 4); /* at once; the reader of the disk fills it in its own time */
    memcpy(p->stamps, s->stamps + i * QK_PAGE_TOKENS, sizeof p->stamps);
    p->bytes = bytes;
    w->n_imports++;
}

static void end_import(walk *w, pending *p)
{
    if (p->page == QE_PAGE_NONE)
        return;
    bool ok = !one_in(w, 4);
    if (ok)
        memcpy((void *)(uintptr_t)p->bytes, p->stamps, sizeof p->stamps);
    qe_kv_page_import_done(w->pools[p->cls], p->page, ok);
    p->page = QE_PAGE_NONE;
}

static void pin(walk *w)
{
    const shadow *s = &w->s[below(w, N_SESSIONS)];
    pending *p = &w->pins[below(w, PENDING)];
    uint32_t n = s->n_cached / QK_PAGE_TOKENS;
    if (p->page != QE_PAGE_NONE || !s->real || n == 0)
        return;
    uint32_t i = below(w, n);
    qe_page page = qe_session_pages(s->real)[i];
    if (!qe_kv_page_on_host(w->pools[s->cls], page))
        return;
    qe_kv_page_pin(w->pools[s->cls], page);
    *p = (pending){.cls = s->cls, .page = page, .bytes = qe_kv_page_host(w->pools[s->cls], page)};
    memcpy(p->stamps, s->stamps + i * QK_PAGE_TOKENS, sizeof p->stamps);
}

static void unpin(walk *w, pending *p)
{
    if (p->page == QE_PAGE_NONE)
        return;
    g_assert_true(qe_kv_page_host(w->pools[p->cls], p->page) == p->bytes);
    g_assert_cmpmem(p->bytes, sizeof p->stamps, p->stamps, sizeof p->stamps);
    qe_kv_page_unpin(w->pools[p->cls], p->page);
    p->page = QE_PAGE_NONE;
}

static void fail_something(walk *w)
{
    fake_backend_fail_run(w->fake, (fake_fault)below(w, FAKE_N_FAULTS), 1 + below(w, 3), 1 + below(w, 4));
    w->armed = true;
}

static void fail_nothing(walk *w)
{
    fake_backend_fail_none(w->fake);
    w->armed = false;
    /* A slab that failed holds the budget down until it is set anew. */
    for (uint32_t c = 0; c < N_CLASSES; c++)
        qe_kv_pool_set_max(w->pools[c], qe_kv_pool_n_max(w->pools[c]));
}

/* A lost device: pages that the host has stay, and so does what is going on outside the pool. */
static void lose_device(walk *w)
{
    uint32_t kept[N_SESSIONS] = {0};
    for (uint32_t i = 0; i < N_SESSIONS; i++) {
        shadow *s = &w->s[i];
        forget_step(w, s);
        while (kept[i] < s->n_cached / QK_PAGE_TOKENS &&
               qe_kv_page_on_host(w->pools[s->cls], qe_session_pages(s->real)[kept[i]]))
            kept[i]++;
    }
    fake_backend_lose(w->fake);
    for (uint32_t c = 0; c < N_CLASSES; c++)
        qe_kv_pool_detach(w->pools[c]);
    for (uint32_t i = 0; i < N_SESSIONS; i++) {
        shadow *s = &w->s[i];
        if (!s->real)
            continue;
        qe_session_drop_lost(s->real);
        s->n_cached = kept[i] * QK_PAGE_TOKENS;
    }
    check_all(w);
    g_assert_cmpuint(bytes_reserved(w, false), ==, 0);
    if (one_in(w, 2)) {
        end_import(w, &w->imports[below(w, PENDING)]);
        unpin(w, &w->pins[below(w, PENDING)]);
        close_session(w, &w->s[below(w, N_SESSIONS)]);
        check_all(w);
    }
    fake_backend_free(w->fake);
    w->fake = fake_backend_new();
    fake_backend_be_late(w->fake);
    w->armed = false;
    if (one_in(w, 2))
        fake_backend_fail(w->fake, FAKE_REGISTER, 1);
    if (one_in(w, 2))
        fake_backend_fail(w->fake, FAKE_WRAP, 1 + below(w, 3));
    for (uint32_t c = 0; c < N_CLASSES; c++) {
        while (!qe_kv_pool_attach(w->pools[c], fake_backend_of(w->fake), qe_kv_pool_n_max(w->pools[c]), NULL))
            check_all(w);
    }
    fail_nothing(w);
    for (uint32_t i = 0; i < N_SESSIONS; i++) { /* what was asked for to be stored is asked for again */
        if (w->s[i].real) {
            qe_session_policy policy = *qe_session_get_policy(w->s[i].real);
            qe_session_set_policy(w->s[i].real, &policy);
        }
    }
    w->n_lost++;
}

/* ---- The walk ---- */

static void session_op(walk *w, shadow *s, shadow *other)
{
    uint32_t op = below(w, 100);
    if (!s->real) {
        s->cls = one_in(w, 3);
        s->text = below(w, 2);
        s->real = qe_session_new(w->pools[s->cls], w->next_id++);
        set_policy(w, s);
    } else if (op < 20) {
        append(w, s);
    } else if (op < 55) {
        if (s->running)
            end_step(w, s);
        else
            begin_step(w, s);
    } else if (op < 62) {
        rewind_to(w, s, cut(w, s->n_ids));
    } else if (op < 65) {
        uncache_to(w, s, cut(w, s->n_ids));
    } else if (op < 70) {
        if (s != other)
            fork_session(w, s, other);
    } else if (op < 72) {
        if (other->real)
            replace(w, s, other);
    } else if (op < 80) {
        give_way(w, s);
    } else if (op < 88) {
        load(w, s);
    } else if (op < 92) {
        adopt(w, s);
    } else if (op < 94) {
        if (!s->running)
            reserve(w, s, s->n_cached + below(w, 60));
    } else if (op < 95) {
        if (!s->running)
            qe_session_release_reserved(s->real);
    } else if (op < 97) {
        set_policy(w, s);
    } else {
        close_session(w, s);
    }
}

static void pool_op(walk *w)
{
    uint32_t op = below(w, 200), cls = below(w, N_CLASSES);
    qe_kv_pool *pool = w->pools[cls];
    if (op < 90) {
        moves(w, cls);
    } else if (op < 110) {
        begin_import(w);
    } else if (op < 130) {
        end_import(w, &w->imports[below(w, PENDING)]);
    } else if (op < 145) {
        pin(w);
    } else if (op < 165) {
        unpin(w, &w->pins[below(w, PENDING)]);
    } else if (op < 170) {
        set_budget(w);
    } else if (op < 178) {
        qe_kv_pool_trim(pool, below(w, 2));
    } else if (op < 182) {
        qe_kv_pool_trim_host(pool, below(w, 2) ? 1 : UINT32_MAX);
    } else if (op < 185) {
        qe_kv_pool_prepare_host(pool, below(w, 2000));
    } else if (op < 188) {
        qe_kv_pool_evict_cached_host(pool, below(w, 5));
    } else if (op < 191) {
        for (uint32_t page = 0; page < qe_kv_pool_n_pages(pool); page++) {
            if (one_in(w, 4) && qe_kv_page_refs(pool, page) > 0)
                qe_kv_page_drop_host(pool, page);
        }
    } else if (op < 196) {
        fail_something(w);
    } else if (op < 199) {
        fail_nothing(w);
        settle(w);
    } else if (one_in(w, 10)) {
        lose_device(w);
    }
}

static void walk_begin(walk *w, uint64_t seed, bool background)
{
    *w = (walk){.random = seed * 0x9e3779b97f4a7c15ull + 1, .next_id = 1, .background = background};
    w->fake = fake_backend_new();
    fake_backend_be_late(w->fake);
    uint32_t n_host = 20 + below(w, 150);
    w->n_max = 10 + below(w, 80);
    w->layouts[0] = (qk_kv_layout){.dtype = QK_BF16, .token_stride = 4, .page_bytes = 128};
    w->layouts[1] = (qk_kv_layout){.dtype = QK_I8, .token_stride = 4, .page_bytes = 64};
    w->device.bytes_max = w->n_max * w->layouts[0].page_bytes;
    w->host.bytes_max = n_host * w->layouts[0].page_bytes;
    for (uint32_t c = 0; c < N_CLASSES; c++) {
        uint64_t page_bytes = w->layouts[c].page_bytes;
        w->pools[c] = qe_kv_pool_new(fake_backend_of(w->fake), &w->layouts[c],
            (uint32_t)(w->device.bytes_max / page_bytes), 1 + below(w, 8), true);
        qe_kv_pool_add_host(w->pools[c], (uint32_t)(w->host.bytes_max / page_bytes), 1 + below(w, 16),
            background, &w->device, &w->host);
        if (c == 0)
            qe_kv_pool_set_bounds(w->pools[c], FAKE_BOUNDS_BYTES);
        qe_page_key seed_key = {{(uint8_t)(c + 1)}};
        qe_kv_pool_set_seed(w->pools[c], &seed_key);
    }
    for (uint32_t i = 0; i < PENDING; i++)
        w->imports[i].page = w->pins[i].page = QE_PAGE_NONE;
}

static void walk_end(walk *w)
{
    fail_nothing(w);
    settle(w);
    for (uint32_t i = 0; i < PENDING; i++) {
        end_import(w, &w->imports[i]);
        unpin(w, &w->pins[i]);
    }
    for (uint32_t i = 0; i < N_SESSIONS; i++)
        close_session(w, &w->s[i]);
    settle(w);
    check_all(w);
    /* A copy of a page that nobody needs any more may still be queued when the pool goes. */
    qe_page page;
    if (qe_kv_page_alloc(w->pools[0], &page, NULL))
        qe_kv_page_unref(w->pools[0], page);
    for (uint32_t c = 0; c < N_CLASSES; c++) {
        qe_kv_pool_evict_cached_host(w->pools[c], UINT32_MAX);
        qe_kv_pool_evict_cached(w->pools[c], UINT32_MAX);
        g_assert_cmpuint(qe_kv_pool_n_used(w->pools[c]), ==, 0);
        g_assert_cmpuint(qe_kv_slots_n_used(qe_kv_pool_host_slots(w->pools[c])), ==, 0);
    }
    for (uint32_t c = 0; c < N_CLASSES; c++)
        qe_kv_pool_free(w->pools[c]);
    g_assert_cmpuint(w->device.bytes_taken, ==, 0);
    g_assert_cmpuint(w->host.bytes_taken, ==, 0);
    fake_backend_free(w->fake);
}

static uint64_t from_environment(const char *name, uint64_t otherwise)
{
    const char *text = g_getenv(name);
    return text ? g_ascii_strtoull(text, NULL, 10) : otherwise;
}

static void walk_once(uint64_t seed, uint64_t n_steps, bool background)
{
    g_autofree walk *w = g_new0(walk, 1);
    g_test_message("seed %" G_GUINT64_FORMAT, seed); /* one that fails is the last */
    walk_begin(w, seed, background);
    for (uint64_t i = 0; i < n_steps; i++) {
        if (w->armed && one_in(w, 20)) {
            fail_nothing(w);
        } else if (one_in(w, 4)) {
            pool_op(w);
        } else {
            shadow *s = &w->s[below(w, N_SESSIONS)];
            session_op(w, s, &w->s[below(w, N_SESSIONS)]);
        }
        shadow *reader = &w->s[below(w, N_SESSIONS)];
        if (reader->real && one_in(w, 2))
            submit_step(w, reader, 0, 0, PAGES_MAX, false);
        for (uint32_t n = below(w, 6); n > 0; n--)
            fake_backend_advance(w->fake, (qk_stream)below(w, QK_N_STREAMS));
        check_all(w);
    }
    g_test_message("seed %" G_GUINT64_FORMAT ": %" G_GUINT64_FORMAT " operations, %" G_GUINT64_FORMAT
                   " steps of which %" G_GUINT64_FORMAT " counted and %" G_GUINT64_FORMAT
                   " were cancelled; %" G_GUINT64_FORMAT " pages read in host memory, %" G_GUINT64_FORMAT
                   " adoptions, %" G_GUINT64_FORMAT " imports, %" G_GUINT64_FORMAT
                   " losses, %" G_GUINT64_FORMAT " refused moves, %" G_GUINT64_FORMAT " failures",
        seed, n_steps, w->n_steps, w->n_done, w->n_cancelled, w->n_reads_host, w->n_adopted, w->n_imports,
        w->n_lost, w->n_refused, w->n_failed);
    /* The walk went where it should. */
    if (n_steps >= 20000) {
        g_assert_cmpuint(w->n_done, >, n_steps / 50);
        g_assert_cmpuint(w->n_reads_host, >, n_steps / 50);
        g_assert_cmpuint(w->n_adopted, >, n_steps / 1000);
        g_assert_cmpuint(w->n_imports, >, n_steps / 1000);
        g_assert_cmpuint(w->n_failed, >, n_steps / 1000);
        g_assert_cmpuint(w->n_cancelled, >, n_steps / 1000);
        g_assert_cmpuint(w->n_lost, >, 0);
        g_assert_cmpuint(w->n_refused, >, 0);
        g_assert_cmpuint(w->n_selected, >, n_steps / 1000);
    }
    walk_end(w);
}

static void test_walk(gconstpointer background)
{
    uint64_t n_steps = from_environment("QUIRE_WALK_STEPS", 200000);
    uint64_t first = from_environment("QUIRE_WALK_SEED", 1),
             n_seeds = from_environment("QUIRE_WALK_SEEDS", 4);
    for (uint64_t i = 0; i < n_seeds; i++)
        walk_once(first + i, background ? n_steps / n_seeds / 10 : n_steps / n_seeds, background != NULL);
}

/* ---- Names that collide ---- */

static bool keys_collide;

qe_page_key __real_qe_page_key_child(const qe_page_key *parent, const uint32_t *ids);
qe_page_key __wrap_qe_page_key_child(const qe_page_key *parent, const uint32_t *ids);

qe_page_key __wrap_qe_page_key_child(const qe_page_key *parent, const uint32_t *ids)
{
    return keys_collide ? (qe_page_key){{9}} : __real_qe_page_key_child(parent, ids);
}

/* All pages have one key: who it was given to is found by its own ids and parent alone, and the others stay private. */
static void test_collisions(void)
{
    g_autofree walk *w = g_new0(walk, 1);
    walk_begin(w, 1, false);
    qe_kv_pool *pool = w->pools[0];
    uint32_t ids[3][QK_PAGE_TOKENS] = {{1}, {2}, {3}};
    qe_page pages[3];
    keys_collide = true;
    for (int i = 0; i < 3; i++) {
        g_assert_true(qe_kv_page_alloc(pool, &pages[i], NULL));
        qe_kv_page_seal(pool, pages[i]);
        const qe_page_key *parent = i == 2 ? qe_kv_page_key(pool, pages[0]) : NULL;
        g_assert_cmpuint(qe_kv_page_publish(pool, pages[i], parent, ids[i]), ==, pages[i]);
    }
    g_assert_cmpuint(qe_kv_pool_find(pool, NULL, ids[1]), ==, QE_PAGE_NONE);
    g_assert_cmpuint(qe_kv_pool_find(pool, qe_kv_page_key(pool, pages[0]), ids[0]), ==, QE_PAGE_NONE);
    g_assert_cmpuint(qe_kv_pool_find(pool, NULL, ids[0]), ==, pages[0]);
    qe_kv_page_unref(pool, pages[0]);
    for (int i = 0; i < 3; i++)
        qe_kv_page_unref(pool, pages[i]);
    g_assert_cmpuint(qe_kv_pool_n_cached(pool), ==, 1);
    keys_collide = false;
    walk_end(w);
}

int main(int argc, char **argv)
{
    g_test_init(&argc, &argv, NULL);
    g_test_add_data_func("/engine/kv-walk/late", NULL, test_walk);
    g_test_add_data_func("/engine/kv-walk/background", GINT_TO_POINTER(1), test_walk);
    g_test_add_func("/engine/kv-walk/collisions", test_collisions);
    return g_test_run();
}
