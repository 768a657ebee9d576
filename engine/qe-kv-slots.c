/* qe-kv-slots.c: slabs and the free map of one tier.
 *
 * Invariants, proved by qe_kv_slots_check():
 *  1. Slabs cover the slots 0 .. n_reserved - 1 without a gap, in order.
 *  2. The free map has exactly the slots that are not used, and n_used counts the others.
 *  3. The ledger has the bytes of all slabs, as the system gave them.
 *
 * A background slab is made by a thread that lives as long as the making: it maps, touches and registers; the engine
 * thread wraps the result at its next poll. Nothing else is shared with it. */
#include "engine/qe-kv-slots.h"
#include <sys/mman.h>
#include "engine/qe-free-map.h"

#define MAP_UNIT    4096ull
#define HUGE_UNIT   (2ull << 20)
#define LARGE_BYTES (16 * HUGE_UNIT) /* a mapping from here on is of whole huge pages */
#define RETRY_MIN   16u /* takes that find nothing after a background slab failed; twice as many each time */
#define RETRY_MAX   4096u

typedef struct {
    qk_buffer *buffer;
    void *map;          /* host tiers */
    uint64_t map_bytes; /* what munmap() takes */
    bool pinned;
    qe_slot first;
    uint32_t n_slots;
} slab;

typedef struct {
    GThread *thread;
    qk_backend *backend;
    slab slab;
    char error[200];
    gint done; /* atomic */
    void (*made)(void *user);
    void *made_user;
} maker;

struct qe_kv_slots {
    qe_kv_slots_params p;
    GArray *slabs; /* slab, in slot order */
    uint32_t n_reserved, n_used;
    uint32_t n_cap;         /* n_max, or n_reserved once a slab failed */
    uint32_t n_failed;      /* background slabs in a row */
    uint32_t n_until_retry; /* takes that find nothing before the next one is made; 0: at once */
    char *note;             /* of the last registration that was refused */
    maker *making;
    qe_free_map map; /* bit s: slot s is free */
    uint32_t *hint; /* the slab of the slot asked about last: page tables name neighbours one after another */
};

/* ---- Slabs ---- */

qe_kv_slots *qe_kv_slots_new(const qe_kv_slots_params *params)
{
    g_assert(params->slot_bytes > 0 && params->slot_bytes % 64 == 0);
    g_assert(params->n_max < QE_SLOT_NONE);
    g_assert(params->slab_slots > 0);
    qe_kv_slots *self = g_new0(qe_kv_slots, 1);
    self->p = *params;
    self->n_cap = params->n_max;
    self->slabs = g_array_new(FALSE, FALSE, sizeof(slab));
    self->hint = g_new0(uint32_t, 1);
    return self;
}

static slab *slab_at(const qe_kv_slots *self, uint32_t i)
{
    return &g_array_index(self->slabs, slab, i);
}

static slab *slab_of(const qe_kv_slots *self, qe_slot slot)
{
    g_assert(slot < self->n_reserved);
    uint32_t lo = 0, hi = self->slabs->len - 1;
    if (*self->hint <= hi) {
        slab *s = slab_at(self, *self->hint);
        if (slot >= s->first && slot - s->first < s->n_slots)
            return s;
    }
    while (lo < hi) {
        uint32_t mid = lo + (hi - lo + 1) / 2;
        if (slab_at(self, mid)->first <= slot)
            lo = mid;
        else
            hi = mid - 1;
    }
    *self->hint = lo;
    return slab_at(self, lo);
}

/* What a mapping for @bytes takes. */
static uint64_t round_mapping(uint64_t bytes)
{
    uint64_t unit = bytes >= LARGE_BYTES ? HUGE_UNIT : MAP_UNIT;
    return (bytes + unit - 1) / unit * unit;
}

/* What a slab of so many slots takes from the system, but for the end of a small page. */
static uint64_t slab_bytes(const qe_kv_slots *self, uint32_t n_slots)
{
    uint64_t bytes = n_slots * self->p.slot_bytes;
    bool is_large = self->p.memory == QK_MEMORY_HOST && bytes >= LARGE_BYTES;
    return is_large ? round_mapping(bytes) : bytes;
}

static void unmap_slab(qe_kv_slots *self, slab *s)
{
    qk_buffer_free(s->buffer);
    if (s->map) {
        if (s->pinned && self->p.backend)
            qk_host_unregister(self->p.backend, s->map);
        munmap(s->map, s->map_bytes);
    }
}

static void free_last_slab(qe_kv_slots *self)
{
    slab *s = slab_at(self, self->slabs->len - 1);
    unmap_slab(self, s);
    if (self->p.ledger)
        self->p.ledger->bytes_taken -= slab_bytes(self, s->n_slots);
    g_array_set_size(self->slabs, self->slabs->len - 1);
}

/* Makes the system give the pages of [@map, @map + @bytes) now. A driver that registers them would do it under a lock for
 * which the next launch waits. A piece at a time: a call holds the lock of the address space, for which every thread waits
 * that maps memory, and behind it those that touch new pages. */
static void touch(char *map, uint64_t bytes)
{
    for (uint64_t at = 0; at < bytes; at += HUGE_UNIT) {
        uint64_t n = MIN(bytes - at, HUGE_UNIT);
#ifdef MADV_POPULATE_WRITE
        if (madvise(map + at, n, MADV_POPULATE_WRITE) == 0)
            continue;
#endif
        for (uint64_t i = 0; i < n; i += MAP_UNIT)
            ((volatile char *)map)[at + i] = 0;
    }
}

/* Maps and registers; any thread. @populate: it all. false: the system has not so much memory. */
static bool map_slab(
    qk_backend *backend, slab *s, uint64_t bytes, bool populate, char *error, gsize error_size)
{
    s->map_bytes = round_mapping(bytes);
    s->map = mmap(NULL, s->map_bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (s->map == MAP_FAILED) {
        s->map = NULL;
        g_strlcpy(error, "the system has not so much memory", error_size);
        return false;
    }
    madvise(s->map, s->map_bytes, MADV_HUGEPAGE);
    if (populate)
        touch(s->map, s->map_bytes);
    s->pinned = qk_host_register(backend, s->map, s->map_bytes, error, error_size) == QK_OK;
    return true;
}

static int error_code(qk_status status)
{
    switch (status) {
    case QK_NO_MEMORY:
        return QE_ERROR_NO_MEMORY;
    case QK_DEVICE_LOST:
        return QE_ERROR_DEVICE_LOST;
    default:
        return QE_ERROR_FAILED;
    }
}

/* What failed may be tried again at once. */
static void forget_failures(qe_kv_slots *self)
{
    self->n_cap = self->p.n_max;
    self->n_failed = self->n_until_retry = 0;
}

/* A made slab joins; its slots become free. */
static void add_slab(qe_kv_slots *self, slab *s)
{
    s->first = self->n_reserved;
    qe_free_map_resize(&self->map, self->n_reserved + s->n_slots);
    g_array_append_vals(self->slabs, s, 1);
    for (uint32_t i = 0; i < s->n_slots; i++)
        qe_free_map_add(&self->map, self->n_reserved + i);
    self->n_reserved += s->n_slots;
    forget_failures(self);
}

/* How many slots the next slab may have, at least @least; 0: the budget is used up. Counts them in the ledger. */
static uint32_t slab_allowance(qe_kv_slots *self, uint32_t wanted, uint32_t least)
{
    uint32_t n = self->p.n_max > self->n_reserved ? MIN(wanted, self->p.n_max - self->n_reserved) : 0;
    qe_kv_ledger *ledger = self->p.ledger;
    if (ledger) {
        uint64_t left = ledger->bytes_max > ledger->bytes_taken ? ledger->bytes_max - ledger->bytes_taken : 0;
        n = (uint32_t)MIN(n, left / self->p.slot_bytes);
        while (n > 0 && slab_bytes(self, n) > left)
            n--;
    }
    if (n < least)
        n = 0;
    if (ledger)
        ledger->bytes_taken += slab_bytes(self, n);
    return n;
}

static void give_allowance_back(qe_kv_slots *self, uint32_t n)
{
    if (self->p.ledger)
        self->p.ledger->bytes_taken -= slab_bytes(self, n);
}

static qk_status make_slab(qe_kv_slots *self, slab *s, char *reason, gsize reason_size)
{
    uint64_t bytes = s->n_slots * self->p.slot_bytes;
    if (self->p.slot_bytes > UINT64_MAX / s->n_slots) {
        g_strlcpy(reason, "size overflows", reason_size);
        return QK_NO_MEMORY;
    }
    if (self->p.memory == QK_MEMORY_DEVICE) {
        qk_status status = qk_buffer_new(self->p.backend, QK_MEMORY_DEVICE, bytes, &s->buffer);
        if (status != QK_OK)
            g_strlcpy(reason, qk_backend_error(self->p.backend), reason_size);
        return status;
    }
    char error[200] = "";
    if (!map_slab(self->p.backend, s, bytes, false, error, sizeof error)) {
        g_strlcpy(reason, error, reason_size);
        return QK_NO_MEMORY;
    }
    if (!s->pinned) {
        g_free(self->note);
        self->note = g_strdup(error);
    }
    qk_status status = qk_buffer_wrap(self->p.backend, s->map, s->map_bytes, &s->buffer);
    if (status != QK_OK) {
        g_strlcpy(reason, qk_backend_error(self->p.backend), reason_size);
        s->buffer = NULL;
        unmap_slab(self, s);
    }
    return status;
}

/* Adds one slab of up to @wanted slots now, and at least @least. */
static bool grow(qe_kv_slots *self, uint32_t wanted, uint32_t least, GError **error)
{
    const char *where = self->p.memory == QK_MEMORY_DEVICE ? "" : "host ";
    uint32_t n = slab_allowance(self, wanted, least);
    if (n == 0) {
        if (least > 1)
            g_set_error(error, QE_ERROR, QE_ERROR_NO_MEMORY,
                "no %u KV %spages of %" G_GUINT64_FORMAT " bytes in a row: %u are in use and the limit is %u",
                least, where, self->p.slot_bytes, self->n_used, self->p.n_max);
        else
            g_set_error(error, QE_ERROR, QE_ERROR_NO_MEMORY,
                "no KV %spage left: all %u pages of %" G_GUINT64_FORMAT
                " bytes are in use and the limit is %u",
                where, self->n_reserved, self->p.slot_bytes, self->p.n_max);
        return false;
    }
    slab s = {.n_slots = n};
    char reason[256] = "";
    qk_status status = make_slab(self, &s, reason, sizeof reason);
    if (status != QK_OK) {
        give_allowance_back(self, n);
        if (status == QK_NO_MEMORY)
            self->n_cap = MIN(self->n_reserved, self->p.n_max);
        g_set_error(error, QE_ERROR, error_code(status),
            "cannot add %u KV %spages of %" G_GUINT64_FORMAT " bytes to the %u there are (limit %u): %s: %s",
            n, where, self->p.slot_bytes, self->n_reserved, self->p.n_max, qk_status_name(status), reason);
        return false;
    }
    add_slab(self, &s);
    return true;
}

/* ---- Background slabs ---- */

static void *make_in_background(void *user)
{
    maker *m = user;
    if (!map_slab(m->backend, &m->slab, m->slab.map_bytes, true, m->error, sizeof m->error))
        m->slab.map = NULL;
    g_atomic_int_set(&m->done, 1);
    if (m->made)
        m->made(m->made_user);
    return NULL;
}

void qe_kv_slots_prepare(qe_kv_slots *self, uint32_t n_free)
{
    if (!self->p.background || self->making || !self->p.backend || qe_kv_slots_n_free(self) >= n_free ||
        self->n_until_retry > 0)
        return;
    uint32_t n = slab_allowance(self, self->p.slab_slots, 1);
    if (n == 0)
        return;
    self->making = g_new0(maker, 1);
    self->making->backend = self->p.backend;
    self->making->slab.n_slots = n;
    self->making->slab.map_bytes = slab_bytes(self, n);
    self->making->made = self->p.made;
    self->making->made_user = self->p.made_user;
    self->making->thread = g_thread_new("kv-host-slab", make_in_background, self->making);
}

/* Ends the making of a slab, waiting for it; the slab joins when @keep, else it goes. */
static void finish_making(qe_kv_slots *self, bool keep)
{
    maker *m = g_steal_pointer(&self->making);
    g_thread_join(m->thread);
    slab *s = &m->slab;
    if (m->error[0]) {
        g_free(self->note);
        self->note = g_strdup(m->error);
    }
    bool made = s->map != NULL;
    if (made && keep)
        keep = qk_buffer_wrap(self->p.backend, s->map, s->map_bytes, &s->buffer) == QK_OK;
    if (made && keep) {
        add_slab(self, s);
    } else {
        if (made)
            unmap_slab(self, s);
        give_allowance_back(self, s->n_slots);
        self->n_cap = MIN(self->n_reserved, self->p.n_max);
        self->n_until_retry = MIN(RETRY_MIN << MIN(self->n_failed, 16), RETRY_MAX);
        self->n_failed++;
    }
    g_free(m);
}

bool qe_kv_slots_poll(qe_kv_slots *self)
{
    if (!self->making || !g_atomic_int_get(&self->making->done))
        return false;
    finish_making(self, true);
    return true;
}

bool qe_kv_slots_wait(qe_kv_slots *self)
{
    if (!self->making)
        return false;
    finish_making(self, true);
    return true;
}

/* ---- Size ---- */

void qe_kv_slots_free(qe_kv_slots *self)
{
    if (!self)
        return;
    if (self->making)
        finish_making(self, false);
    while (self->slabs->len > 0)
        free_last_slab(self);
    g_array_free(self->slabs, TRUE);
    qe_free_map_free(&self->map);
    g_free(self->note);
    g_free(self->hint);
    g_free(self);
}

bool qe_kv_slots_warm(qe_kv_slots *self, GError **error)
{
    return self->slabs->len > 0 || grow(self, self->p.slab_slots, 1, error);
}

static bool slab_is_free(const qe_kv_slots *self, const slab *s)
{
    for (uint32_t i = 0; i < s->n_slots; i++) {
        if (!qe_free_map_has(&self->map, s->first + i))
            return false;
    }
    return true;
}

uint32_t qe_kv_slots_n_slabs(const qe_kv_slots *self)
{
    return self->slabs->len;
}

bool qe_kv_slots_can_trim(const qe_kv_slots *self, uint32_t n_slabs_kept)
{
    if (self->slabs->len == 0)
        return false;
    const slab *last = slab_at(self, self->slabs->len - 1);
    bool past_budget = last->first >= self->p.n_max;
    return (past_budget || self->slabs->len > n_slabs_kept) && slab_is_free(self, last);
}

uint32_t qe_kv_slots_trim(qe_kv_slots *self, uint32_t n_slabs_kept)
{
    uint32_t n_before = self->n_reserved;
    while (qe_kv_slots_can_trim(self, n_slabs_kept)) {
        const slab *last = slab_at(self, self->slabs->len - 1);
        for (uint32_t i = 0; i < last->n_slots; i++)
            qe_free_map_remove(&self->map, last->first + i);
        self->n_reserved = last->first;
        free_last_slab(self);
    }
    forget_failures(self);
    return n_before - self->n_reserved;
}

void qe_kv_slots_set_made(qe_kv_slots *self, void (*made)(void *user), void *user)
{
    self->p.made = made;
    self->p.made_user = user;
}

void qe_kv_slots_set_ledger(qe_kv_slots *self, qe_kv_ledger *ledger)
{
    g_assert(self->slabs->len == 0);
    self->p.ledger = ledger;
}

void qe_kv_slots_set_max(qe_kv_slots *self, uint32_t n_max)
{
    g_assert(n_max < QE_SLOT_NONE);
    self->p.n_max = n_max;
    forget_failures(self);
}

void qe_kv_slots_detach(qe_kv_slots *self)
{
    if (self->making)
        finish_making(self, false);
    if (self->p.memory == QK_MEMORY_DEVICE) {
        while (self->slabs->len > 0)
            free_last_slab(self);
        qe_free_map_clear(&self->map);
        self->n_reserved = self->n_used = 0;
    } else {
        for (uint32_t i = 0; i < self->slabs->len; i++) {
            slab *s = slab_at(self, i);
            g_clear_pointer(&s->buffer, qk_buffer_free);
            if (s->pinned)
                qk_host_unregister(self->p.backend, s->map);
            s->pinned = false;
        }
    }
    self->p.backend = NULL;
    forget_failures(self);
}

bool qe_kv_slots_attach(qe_kv_slots *self, qk_backend *backend, GError **error)
{
    g_assert(!self->p.backend);
    self->p.backend = backend;
    for (uint32_t i = 0; i < self->slabs->len; i++) {
        slab *s = slab_at(self, i);
        char refusal[200] = "";
        s->pinned = qk_host_register(backend, s->map, s->map_bytes, refusal, sizeof refusal) == QK_OK;
        if (!s->pinned) {
            g_free(self->note);
            self->note = g_strdup(refusal);
        }
        qk_status status = qk_buffer_wrap(backend, s->map, s->map_bytes, &s->buffer);
        if (status != QK_OK) {
            s->buffer = NULL;
            g_set_error(error, QE_ERROR, error_code(status), "cannot take %u KV host pages over: %s: %s",
                s->n_slots, qk_status_name(status), qk_backend_error(backend));
            qe_kv_slots_detach(self);
            return false;
        }
    }
    return true;
}

/* ---- Slots ---- */

bool qe_kv_slots_take(qe_kv_slots *self, qe_slot *out, GError **error)
{
    qe_slot slot = qe_free_map_lowest(&self->map);
    if (slot == QE_SLOT_NONE || self->n_used >= self->p.n_max) {
        if (self->p.background) {
            if (self->n_until_retry > 0)
                self->n_until_retry--;
            qe_kv_slots_poll(self);
            slot = self->n_used < self->p.n_max ? qe_free_map_lowest(&self->map) : QE_SLOT_NONE;
            if (slot == QE_SLOT_NONE) {
                qe_kv_slots_prepare(self, 1); /* for a later call, however soon it is ready */
                g_set_error(error, QE_ERROR, QE_ERROR_NO_MEMORY, "no KV host page is free now");
                return false;
            }
        } else if (!grow(self, self->p.slab_slots, 1, error)) {
            return false;
        } else {
            slot = qe_free_map_lowest(&self->map);
        }
    }
    qe_free_map_remove(&self->map, slot);
    self->n_used++;
    *out = slot;
    return true;
}

/* The lowest run of @n free slots inside one slab. */
static qe_slot find_run(const qe_kv_slots *self, uint32_t n)
{
    for (uint32_t i = 0; i < self->slabs->len; i++) {
        const slab *s = slab_at(self, i);
        uint32_t length = 0;
        for (uint32_t k = 0; k < s->n_slots && s->n_slots >= n; k++) {
            length = qe_free_map_has(&self->map, s->first + k) ? length + 1 : 0;
            if (length == n)
                return s->first + k + 1 - n;
        }
    }
    return QE_SLOT_NONE;
}

bool qe_kv_slots_has_run(const qe_kv_slots *self, uint32_t n)
{
    return find_run(self, n) != QE_SLOT_NONE;
}

bool qe_kv_slots_take_run(qe_kv_slots *self, uint32_t n, qe_slot *first, GError **error)
{
    g_assert(n > 0);
    qe_slot slot = self->n_used + (uint64_t)n <= self->p.n_max ? find_run(self, n) : QE_SLOT_NONE;
    if (slot == QE_SLOT_NONE) {
        if (!grow(self, MAX(n, self->p.slab_slots), n, error))
            return false;
        slot = slab_at(self, self->slabs->len - 1)->first;
    }
    for (uint32_t i = 0; i < n; i++)
        qe_free_map_remove(&self->map, slot + i);
    self->n_used += n;
    *first = slot;
    return true;
}

void qe_kv_slots_give(qe_kv_slots *self, qe_slot slot)
{
    g_assert(slot < self->n_reserved);
    g_assert(!qe_free_map_has(&self->map, slot));
    qe_free_map_add(&self->map, slot);
    self->n_used--;
}

/* ---- Questions ---- */

qk_buffer *qe_kv_slots_buffer(const qe_kv_slots *self, qe_slot slot, uint64_t *offset)
{
    const slab *s = slab_of(self, slot);
    *offset = (uint64_t)(slot - s->first) * self->p.slot_bytes;
    return s->buffer;
}

uint64_t qe_kv_slots_address(const qe_kv_slots *self, qe_slot slot)
{
    uint64_t offset;
    const qk_buffer *buffer = qe_kv_slots_buffer(self, slot, &offset);
    return buffer && buffer->address ? buffer->address + offset : 0;
}

void *qe_kv_slots_host(const qe_kv_slots *self, qe_slot slot)
{
    const slab *s = slab_of(self, slot);
    return s->map ? (char *)s->map + (uint64_t)(slot - s->first) * self->p.slot_bytes : NULL;
}

bool qe_kv_slots_is_used(const qe_kv_slots *self, qe_slot slot)
{
    return slot < self->n_reserved && !qe_free_map_has(&self->map, slot);
}

uint32_t qe_kv_slots_n_max(const qe_kv_slots *self)
{
    return self->p.n_max;
}

uint32_t qe_kv_slots_n_reserved(const qe_kv_slots *self)
{
    return self->n_reserved;
}

uint32_t qe_kv_slots_n_used(const qe_kv_slots *self)
{
    return self->n_used;
}

uint32_t qe_kv_slots_n_free(const qe_kv_slots *self)
{
    return self->n_reserved - self->n_used;
}

uint32_t qe_kv_slots_n_available(const qe_kv_slots *self)
{
    uint64_t n = self->n_cap;
    const qe_kv_ledger *ledger = self->p.ledger;
    if (ledger) {
        uint64_t left = ledger->bytes_max > ledger->bytes_taken ? ledger->bytes_max - ledger->bytes_taken : 0;
        n = MIN(n, self->n_reserved + left / self->p.slot_bytes);
    }
    return n > self->n_used ? (uint32_t)(n - self->n_used) : 0;
}

uint64_t qe_kv_slots_bytes_reserved(const qe_kv_slots *self)
{
    uint64_t bytes = 0;
    for (uint32_t i = 0; i < self->slabs->len; i++)
        bytes += slab_bytes(self, slab_at(self, i)->n_slots);
    return bytes;
}

uint64_t qe_kv_slots_bytes_pinned(const qe_kv_slots *self)
{
    uint64_t bytes = 0;
    for (uint32_t i = 0; i < self->slabs->len; i++)
        bytes += slab_at(self, i)->pinned ? slab_at(self, i)->map_bytes : 0;
    return bytes;
}

const char *qe_kv_slots_note(const qe_kv_slots *self)
{
    return self->note;
}

#define BROKEN(error, ...) (g_set_error(error, QE_ERROR, QE_ERROR_FAILED, "KV slots: " __VA_ARGS__), false)

bool qe_kv_slots_check(const qe_kv_slots *self, GError **error)
{
    uint32_t n_slots = 0, n_free;
    for (guint i = 0; i < self->slabs->len; i++) {
        if (slab_at(self, i)->first != n_slots)
            return BROKEN(
                error, "slab %u starts at slot %u, expected %u", i, slab_at(self, i)->first, n_slots);
        n_slots += slab_at(self, i)->n_slots;
    }
    if (n_slots != self->n_reserved)
        return BROKEN(
            error, "%u slabs hold %u slots, expected %u", self->slabs->len, n_slots, self->n_reserved);
    n_free = qe_free_map_count(&self->map);
    if (n_free != self->n_reserved - self->n_used)
        return BROKEN(error, "%u of %u slots are used, but the free map has %u", self->n_used,
            self->n_reserved, n_free);
    if (self->p.ledger && self->p.ledger->bytes_taken < qe_kv_slots_bytes_reserved(self))
        return BROKEN(error, "the ledger has %" G_GUINT64_FORMAT " bytes, the slabs have %" G_GUINT64_FORMAT,
            self->p.ledger->bytes_taken, qe_kv_slots_bytes_reserved(self));
    return true;
}
