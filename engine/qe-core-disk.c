/* qe-core-disk.c: conversations' pages on disk: which are kept there, and how they come back.
 *
 *   open:   the list of the conversation's pages -> host slots, in order -> cached pages that its next request finds
 *   a page sealed and in the host tier -> appended to the conversation's file, in order, without gaps
 *
 * Kept are sessions with a disk key whose pages are shared and tiered; each page class has files of its own, so a file
 * stays with the class that it was opened in. The logits behind the last prompt are kept too: asked again, its reply begins
 * without a step. A request of a session whose pages are being read waits in the queue; others pass it. It does not wait for
 * a disk that is slower than computing: then what is still to come is given up. Whatever fails here costs a prefill and is
 * told in the tier's note; no request ends for it.
 *
 * Invariants:
 *  1. The store's list of an open file is a prefix of `pages`: it may be shorter only by what a failed write has cut off,
 *     of which the completion says more later.
 *  2. Pages are appended only behind a list that agrees, token by token, with the session; one that does not is cut first.
 *  3. A page that is being written is pinned, one that is being read is an import of the pool: neither host slot is
 *     anybody else's before the store's completion, or the store's end.
 *  4. `tags` has what the store was asked and has not completed. A file goes when it is closed and nothing of it is there.
 *
 * Thread: the engine's; the store's own threads call on_news() alone. */
#include <math.h>
#include <string.h>
#include "engine/qe-core.h"
#include "engine/qe-kv-disk.h"
#include "engine/qe-limits.h"
#include "engine/qe-lock.h"

#define WINDOW_BYTES (64ull << 20)                /* read or written at the same time */
#define STOP_US      (3 * (gint64)G_USEC_PER_SEC) /* to write what is not there yet, at the end */
#define WAIT_US      (2 * (gint64)G_USEC_PER_SEC) /* for one write, when its page's slot is wanted */
#define VAIN_MAX     4u

/* A conversation's file. */
struct qe_core_file {
    qe_timeline *timeline; /* NULL: the session is gone, or the file is closed */
    uint32_t kv_class;     /* of its pages */
    qe_kv_disk_file *file; /* NULL: closed or deleted */
    uint32_t n_tags;
    bool opened;                  /* its list has come */
    bool reading;                 /* from the open until the last page that is wanted is there */
    bool stuck;                   /* a write failed: none before the next turn */
    bool waits;                   /* for a slab of host memory */
    bool given_up;                /* nothing more is read */
    gint64 begun;                 /* when it was opened: monotonic microseconds */
    uint32_t n_vain;              /* looks for one in a row while none was being made */
    GArray *pages;                /* qe_kv_disk_page: its list, pages asked to be written included */
    uint32_t n_agreed;            /* so many pages of it are known to be the session's */
    uint32_t n_wanted, next_read; /* pages that are brought back; the next to ask for */
    uint32_t n_reading;
    float *last; /* logits that the list is still too short for; NULL: none */
    uint32_t n_last, last_n_tokens;
    uint32_t last_tail[QK_PAGE_TOKENS]; /* the last last_n_tokens % 16 of those tokens */
};

typedef struct {
    struct qe_core_file *file; /* NULL: a DELETE */
    qe_kv_disk_op op;
    qe_page page; /* READ, WRITE */
} disk_tag;

struct qe_core_disk {
    qe_kv_disk *store;
    qe_queue *queue;  /* borrowed */
    GHashTable *tags; /* disk_tag, owned */
    uint32_t n_writing;
    char *note;

    qe_mutex lock; /* guards news */
    qe_cond cond;
    bool news;
};

static qe_kv_pool *pool_of(const qe_core *core, const struct qe_core_file *f)
{
    return core->pools[f->kv_class];
}

static uint32_t window_pages(const qe_core *core, const struct qe_core_file *f)
{
    return (uint32_t)CLAMP(WINDOW_BYTES / qe_kv_pool_page_bytes(pool_of(core, f)), 1, 4096);
}

static const qe_kv_disk_page *page_at(const struct qe_core_file *f, uint32_t i)
{
    return &g_array_index(f->pages, qe_kv_disk_page, i);
}

/* ---- News from the store ---- */

static void on_news(void *user)
{
    qe_core_disk *disk = user;
    qe_mutex_lock(&disk->lock);
    disk->news = true;
    qe_cond_broadcast(&disk->cond);
    qe_mutex_unlock(&disk->lock);
    qe_queue_kick(disk->queue);
}

static void wait_news(qe_core_disk *disk, gint64 deadline)
{
    qe_mutex_lock(&disk->lock);
    while (!disk->news && qe_cond_wait_until(&disk->cond, &disk->lock, deadline))
        ;
    disk->news = false;
    qe_mutex_unlock(&disk->lock);
}

static void set_note(qe_core *core, const char *message)
{
    g_free(core->disk->note);
    core->disk->note = g_strdup(message);
    qe_stats_touch(core->stats);
}

static disk_tag *tag_new(qe_core_disk *disk, struct qe_core_file *f, qe_kv_disk_op op, qe_page page)
{
    disk_tag *tag = g_new(disk_tag, 1);
    *tag = (disk_tag){f, op, page};
    if (f)
        f->n_tags++;
    g_hash_table_add(disk->tags, tag);
    return tag;
}

static void file_unref(struct qe_core_file *f)
{
    if (f->file || f->timeline || f->n_tags > 0)
        return;
    g_array_unref(f->pages);
    g_free(f->last);
    g_free(f);
}

/* The list has @n pages from now on; what was to be read behind them is not. */
static void cut_list(struct qe_core_file *f, uint32_t n)
{
    if (n < f->pages->len)
        g_array_set_size(f->pages, n);
    f->n_agreed = MIN(f->n_agreed, n);
    f->n_wanted = MIN(f->n_wanted, n);
    f->next_read = MIN(f->next_read, f->n_wanted);
}

/* The store's answer, or its end (@status DROPPED), to what @tag asked. Frees it. */
static void take_back(qe_core *core, disk_tag *tag, qe_kv_disk_status status, uint32_t position)
{
    struct qe_core_file *f = tag->file;
    qe_core_disk *disk = core->disk;
    bool ok = status == QE_KV_DISK_OK;
    if (tag->op == QE_KV_DISK_WRITE) {
        qe_kv_page_unpin(pool_of(core, f), tag->page);
        disk->n_writing--;
        f->stuck |= !ok && status != QE_KV_DISK_DROPPED;
    } else if (tag->op == QE_KV_DISK_READ) {
        qe_kv_page_import_done(pool_of(core, f), tag->page, ok);
        f->n_reading--;
        if (!ok) /* what comes behind a page that is not there is of no use now */
            f->n_wanted = f->next_read = MIN(MIN(f->n_wanted, f->next_read), position);
    }
    if (f) {
        f->n_tags--;
        file_unref(f);
    }
    g_hash_table_remove(disk->tags, tag);
}

/* Its list has come: pages of it that the host tier has room for are wanted. */
static void take_listing(qe_core *core, struct qe_core_file *f, const qe_kv_disk_listing *listing)
{
    f->opened = true;
    if (!f->timeline)
        return;
    uint32_t n = listing->n_pages;
    qe_page_key seed = qe_session_seed(f->timeline->session);
    if (n > 0 && !qe_page_key_equal(&listing->pages[0].parent, &seed)) {
        set_note(core,
            "A conversation's pages on disk are another model's, or were computed in another cache mode");
        qe_kv_disk_truncate(core->disk->store, f->file, 0);
        n = 0;
    }
    g_array_append_vals(f->pages, listing->pages, n);
    f->n_wanted = f->given_up ? 0 : MIN(n, qe_core_spare_host(core, pool_of(core, f), n));
}

static void take_completion(qe_core *core, const qe_kv_disk_completion *c)
{
    disk_tag *tag = c->tag;
    bool quiet = c->status == QE_KV_DISK_OK || c->status == QE_KV_DISK_MISSING ||
                 c->status == QE_KV_DISK_DROPPED || c->status == QE_KV_DISK_INVALID;
    if (c->message)
        set_note(core, c->message);
    else if (!quiet && !core->disk->note)
        set_note(core, qe_kv_disk_status_name(c->status));
    if (!tag)
        return;
    if (tag->op == QE_KV_DISK_OPEN && tag->file->file)
        take_listing(core, tag->file, c->listing);
    take_back(core, tag, c->status, c->position);
}

static void take_completions(qe_core *core)
{
    qe_kv_disk_completion c;
    while (qe_kv_disk_poll(core->disk->store, &c)) {
        take_completion(core, &c);
        qe_kv_disk_completion_clear(&c);
        qe_stats_touch(core->stats);
    }
}

/* ---- Reading ---- */

static void read_pages(qe_core *core, struct qe_core_file *f)
{
    f->waits = false;
    while (f->next_read < f->n_wanted && f->n_reading < window_pages(core, f)) {
        const qe_kv_disk_page *p = page_at(f, f->next_read);
        qe_page page;
        void *bytes;
        switch (qe_kv_pool_import(pool_of(core, f), &p->parent, p->ids, &page, &bytes)) {
        case QE_IMPORT_TAKEN:
            f->n_reading++;
            f->n_vain = 0;
            qe_kv_disk_read(core->disk->store, f->file, f->next_read, &p->key, bytes,
                tag_new(core->disk, f, QE_KV_DISK_READ, page));
            break;
        case QE_IMPORT_EXISTS:
            break;
        case QE_IMPORT_WAIT:
            f->waits = true;
            return;
        case QE_IMPORT_FULL: /* the other class may have taken it meanwhile */
            if (qe_core_spare_host(core, pool_of(core, f), 1) > 0)
                continue;
            f->n_wanted = f->next_read;
            return;
        case QE_IMPORT_FAILED:
            f->n_wanted = f->next_read;
            return;
        }
        f->next_read++;
    }
}

bool qe_core_disk_is_reading(const qe_timeline *t)
{
    return t->disk && t->disk->reading;
}

/* What the device would take to compute @n_rows tokens from position @start on. */
static double compute_ms(const qe_core *core, uint32_t start, uint32_t n_rows)
{
    double n_steps = ceil((double)n_rows / core->params.rows_max);
    return qe_cost_predict(&core->cost, n_rows, qe_cost_attended(start, n_rows)) +
           MAX(n_steps - 1, 0) * core->cost.a;
}

gint64 qe_core_disk_look(qe_core *core, qe_timeline *t, gint64 waiting_since)
{
    struct qe_core_file *f = t->disk;
    gint64 now = g_get_monotonic_time(), patience_end = waiting_since + (gint64)QE_DISK_PATIENCE_MS * 1000;
    if (!f || !f->reading)
        return 0;
    if (now < patience_end)
        return patience_end;
    uint32_t n_there = f->next_read - f->n_reading, n_prompt = qe_session_n_ids(t->session) / QK_PAGE_TOKENS;
    uint32_t n_wanted = f->opened ? MIN(f->n_wanted, n_prompt) : n_prompt;
    uint32_t n_left = n_wanted > n_there ? n_wanted - n_there : 0;
    double gone_ms = (double)(now - f->begun) / 1000, left_ms = n_left ? INFINITY : 0;
    if (n_there > 0)
        left_ms = gone_ms * n_left / n_there;
    if (left_ms <= compute_ms(core, n_there * QK_PAGE_TOKENS, n_left * QK_PAGE_TOKENS))
        return now + (gint64)QE_DISK_LOOK_MS * 1000;
    f->given_up = true;
    f->reading = false;
    f->n_wanted = f->next_read;
    set_note(
        core, "The disk was slower than computing a conversation's pages: the rest of them was given up");
    return 0;
}

bool qe_core_disk_wait_slab(qe_core *core)
{
    GHashTableIter iter;
    void *value;
    bool any = false, asked[QE_KV_CLASSES] = {false}, came[QE_KV_CLASSES] = {false};
    if (!core->disk || core->lost)
        return false;
    g_hash_table_iter_init(&iter, core->timelines);
    while (g_hash_table_iter_next(&iter, NULL, &value)) {
        struct qe_core_file *f = ((qe_timeline *)value)->disk;
        if (!f || !f->waits)
            continue;
        if (!asked[f->kv_class])
            came[f->kv_class] = qe_kv_pool_wait_host_slab(pool_of(core, f));
        asked[f->kv_class] = true;
        if (!came[f->kv_class] && ++f->n_vain == VAIN_MAX) /* none is being made: what there is has to do */
            f->n_wanted = f->next_read;
        f->waits = false;
        any = true;
    }
    return any;
}

/* ---- Writing ---- */

/* Compares the list with the session's tokens from where that was done before; cuts it where they differ. */
static void agree(qe_core *core, struct qe_core_file *f)
{
    const qe_session *session = f->timeline->session;
    const uint32_t *ids = qe_session_ids(session);
    uint32_t n_ids = qe_session_n_ids(session);
    cut_list(f, qe_kv_disk_n_pages(core->disk->store, f->file));
    while (f->n_agreed < f->pages->len) {
        uint32_t begin = f->n_agreed * QK_PAGE_TOKENS;
        uint32_t n = MIN(n_ids > begin ? n_ids - begin : 0, QK_PAGE_TOKENS);
        if (n > 0 && memcmp(page_at(f, f->n_agreed)->ids, ids + begin, n * sizeof *ids) != 0) {
            qe_kv_disk_truncate(core->disk->store, f->file, f->n_agreed);
            cut_list(f, f->n_agreed);
        }
        if (n < QK_PAGE_TOKENS)
            return;
        if (f->n_agreed < f->pages->len)
            f->n_agreed++;
    }
}

static void write_page(qe_core *core, struct qe_core_file *f, uint32_t i, qe_page page, const void *bytes)
{
    const qe_session *session = f->timeline->session;
    qe_kv_disk_page p = {
        .key = *qe_kv_page_key(pool_of(core, f), page),
        .parent = i > 0 ? page_at(f, i - 1)->key : qe_session_seed(session),
    };
    memcpy(p.ids, qe_session_ids(session) + (gsize)i * QK_PAGE_TOKENS, sizeof p.ids);
    qe_kv_page_pin(pool_of(core, f), page);
    core->disk->n_writing++;
    qe_kv_disk_write(
        core->disk->store, f->file, i, &p, bytes, tag_new(core->disk, f, QE_KV_DISK_WRITE, page));
    g_array_append_val(f->pages, p);
    f->n_agreed = f->pages->len;
}

/* ---- The logits behind the last prompt ---- */

/* Hands them to the store as soon as the list has the pages before them. */
static void store_logits(qe_core *core, struct qe_core_file *f)
{
    uint32_t n_pages = f->last_n_tokens / QK_PAGE_TOKENS;
    if (!f->last || f->pages->len < n_pages || f->n_agreed < n_pages)
        return;
    qe_kv_disk_set_logits(core->disk->store, f->file, f->last_n_tokens, f->last_tail, f->last, f->n_last);
    g_clear_pointer(&f->last, g_free);
}

void qe_core_disk_keep_logits(qe_core *core, qe_timeline *t, uint32_t n_tokens, const float *logits)
{
    struct qe_core_file *f = t->disk;
    if (!f)
        return;
    uint32_t n = qe_model_get_config(core->model)->vocab, n_tail = n_tokens % QK_PAGE_TOKENS;
    g_free(f->last);
    f->last = g_memdup2(logits, n * sizeof *logits);
    f->n_last = n;
    f->last_n_tokens = n_tokens;
    memcpy(f->last_tail, qe_session_ids(t->session) + n_tokens - n_tail, n_tail * sizeof *f->last_tail);
}

float *qe_core_disk_dup_logits(qe_core *core, qe_timeline *t)
{
    struct qe_core_file *f = t->disk;
    if (!f || !f->opened || core->lost || t->kv_class != f->kv_class)
        return NULL;
    uint32_t n_tokens = qe_session_n_ids(t->session), n_tail = n_tokens % QK_PAGE_TOKENS;
    agree(core, f);
    if (f->n_agreed < n_tokens / QK_PAGE_TOKENS)
        return NULL;
    return qe_kv_disk_dup_logits(core->disk->store, f->file, n_tokens,
        qe_session_ids(t->session) + n_tokens - n_tail, qe_model_get_config(core->model)->vocab);
}

/* ---- Writing, goes on ---- */

/* Appends what the session has in the host tier and the list has not. @all: more than a window of it. */
static void write_pages(qe_core *core, struct qe_core_file *f, bool all)
{
    const qe_session *session = f->timeline->session;
    uint32_t n_full = qe_session_n_cached(session) / QK_PAGE_TOKENS;
    if (!f->opened || f->timeline->kv_class != f->kv_class)
        return;
    agree(core, f);
    store_logits(core, f);
    if (f->stuck || f->n_agreed < f->pages->len)
        return;
    for (uint32_t i = f->pages->len; i < MIN(n_full, QE_KV_DISK_PAGES_MAX); i++) {
        qe_page page = qe_session_pages(session)[i];
        const void *bytes = qe_kv_page_host(pool_of(core, f), page);
        if (!bytes || !qe_kv_page_key(pool_of(core, f), page) ||
            (!all && core->disk->n_writing >= window_pages(core, f)))
            return;
        write_page(core, f, i, page, bytes);
        store_logits(core, f);
    }
}

void qe_core_disk_advance(qe_core *core)
{
    GHashTableIter iter;
    void *value;
    if (!core->disk || core->lost)
        return;
    take_completions(core);
    g_hash_table_iter_init(&iter, core->timelines);
    while (g_hash_table_iter_next(&iter, NULL, &value)) {
        struct qe_core_file *f = ((qe_timeline *)value)->disk;
        if (!f || !f->opened)
            continue;
        write_pages(core, f, false);
        read_pages(core, f);
        f->reading = !f->given_up && (f->next_read < f->n_wanted || f->n_reading > 0);
    }
}

bool qe_core_disk_wait(qe_core *core)
{
    qe_core_disk *disk = core->disk;
    if (!disk || disk->n_writing == 0)
        return false;
    uint32_t n = disk->n_writing;
    gint64 deadline = g_get_monotonic_time() + WAIT_US;
    do {
        wait_news(disk, deadline);
        take_completions(core);
    } while (disk->n_writing == n && g_get_monotonic_time() < deadline);
    return disk->n_writing < n;
}

/* ---- Sessions ---- */

static bool is_kept(const qe_core *core, const qe_timeline *t)
{
    const qe_session_policy *policy = qe_session_get_policy(t->session);
    return core->disk && !core->lost && t->disk_key && policy->shared && policy->tiered;
}

/* What is asked of the file is still done; nothing more is. */
static void close_file(qe_core *core, struct qe_core_file *f)
{
    f->timeline->disk = NULL;
    f->timeline = NULL;
    f->reading = false;
    if (f->file)
        qe_kv_disk_close(core->disk->store, f->file, tag_new(core->disk, f, QE_KV_DISK_CLOSE, QE_PAGE_NONE));
    f->file = NULL;
    file_unref(f);
}

void qe_core_disk_update(qe_core *core, qe_timeline *t)
{
    bool kept = is_kept(core, t);
    if (t->disk && (!kept || t->disk->kv_class != t->kv_class))
        close_file(core, t->disk);
    if (!kept || t->disk)
        return;
    g_autoptr(GError) error = NULL;
    struct qe_core_file *f = g_new0(struct qe_core_file, 1);
    disk_tag *tag = tag_new(core->disk, f, QE_KV_DISK_OPEN, QE_PAGE_NONE);
    f->kv_class = t->kv_class;
    f->file = qe_kv_disk_open(core->disk->store, f->kv_class, t->disk_key, tag, &error);
    f->pages = g_array_new(FALSE, FALSE, sizeof(qe_kv_disk_page));
    if (!f->file) {
        set_note(core, error->message);
        take_back(core, tag, QE_KV_DISK_DROPPED, 0);
        return;
    }
    f->timeline = t;
    f->begun = g_get_monotonic_time();
    f->reading = true;
    t->disk = f;
}

/* Waits for the oldest copy between device and host, or for host memory that copies wait for; false: none is on its way. */
static bool wait_move(qe_kv_pool *pool)
{
    if (!qe_kv_pool_submit_moves(pool, NULL))
        return false;
    if (qe_kv_pool_n_moving(pool) > 0)
        return qe_kv_pool_wait_move(pool, NULL);
    return qe_kv_pool_n_to_store(pool) > 0 && qe_kv_pool_wait_host_slab(pool);
}

void qe_core_disk_begin_turn(qe_timeline *t)
{
    if (t->disk) {
        t->disk->n_agreed = 0;
        t->disk->stuck = false;
    }
}

void qe_core_disk_distrust(qe_core *core, qe_timeline *t)
{
    if (!t->disk || !t->disk->opened)
        return;
    qe_kv_disk_truncate(core->disk->store, t->disk->file, 0);
    qe_kv_disk_set_logits(core->disk->store, t->disk->file, 0, NULL, NULL, 0);
    g_clear_pointer(&t->disk->last, g_free);
    cut_list(t->disk, 0);
    t->disk->stuck = true;
}

void qe_core_disk_leave(qe_core *core, qe_timeline *t)
{
    if (!t->disk)
        return;
    if (!core->lost) {
        while (wait_move(pool_of(core, t->disk)))
            ;
        write_pages(core, t->disk, true);
    }
    close_file(core, t->disk);
}

void qe_core_disk_delete(qe_core *core, const char *key)
{
    g_autoptr(GError) error = NULL;
    GHashTableIter iter;
    void *value;
    if (!core->disk) {
        if (core->disk_dir)
            g_ptr_array_add(core->disk_deletes, g_strdup(key));
        return;
    }
    g_hash_table_iter_init(&iter, core->timelines);
    while (g_hash_table_iter_next(&iter, NULL, &value)) {
        qe_timeline *t = value;
        if (g_strcmp0(t->disk_key, key) != 0)
            continue;
        g_clear_pointer(&t->disk_key, g_free);
        if (t->disk) {
            t->disk->file = NULL; /* the store closes it */
            close_file(core, t->disk);
        }
    }
    disk_tag *tag = tag_new(core->disk, NULL, QE_KV_DISK_DELETE, QE_PAGE_NONE);
    if (!qe_kv_disk_delete(core->disk->store, key, tag, &error)) {
        set_note(core, error->message);
        take_back(core, tag, QE_KV_DISK_DROPPED, 0);
    }
}

/* ---- Life ---- */

void qe_core_disk_start(qe_core *core)
{
    g_autoptr(GError) error = NULL;
    g_clear_pointer(&core->disk_reason, g_free);
    if (core->disk || !core->disk_dir || core->disk_bytes_max == 0)
        return;
    if (!qe_kv_pool_has_host(core->pools[0])) {
        core->disk_reason =
            g_strdup("Pages go to the disk by way of host memory, and none is set apart for them.");
        return;
    }
    qe_core_disk *disk = g_new0(qe_core_disk, 1);
    disk->queue = core->queue;
    qe_mutex_init(&disk->lock);
    qe_cond_init(&disk->cond);
    qe_kv_disk_kind kinds[QE_KV_CLASSES];
    uint32_t n_kinds = 0;
    for (; n_kinds < QE_KV_CLASSES && core->pools[n_kinds]; n_kinds++)
        kinds[n_kinds] =
            (qe_kv_disk_kind){core->digests[n_kinds], qe_kv_pool_page_bytes(core->pools[n_kinds])};
    disk->store = qe_kv_disk_new(core->disk_dir, core->disk_bytes_max, kinds, n_kinds, on_news, disk, &error);
    if (!disk->store) {
        core->disk_reason = g_strdup(error->message);
        qe_cond_clear(&disk->cond);
        qe_mutex_clear(&disk->lock);
        g_free(disk);
        return;
    }
    disk->tags = g_hash_table_new_full(NULL, NULL, g_free, NULL);
    core->disk = disk;
    for (guint i = 0; i < core->disk_deletes->len; i++)
        qe_core_disk_delete(core, core->disk_deletes->pdata[i]);
    g_ptr_array_set_size(core->disk_deletes, 0);
    GHashTableIter iter;
    void *value;
    g_hash_table_iter_init(&iter, core->timelines);
    while (g_hash_table_iter_next(&iter, NULL, &value))
        qe_core_disk_update(core, value);
}

/* Brings what sessions have sealed to the disk, as far as there is time. */
static void drain(qe_core *core, gint64 deadline)
{
    while (g_get_monotonic_time() < deadline) {
        bool moved = false;
        qe_core_disk_advance(core);
        for (int c = 0; c < QE_KV_CLASSES && core->pools[c] && !moved; c++)
            moved = wait_move(core->pools[c]);
        if (moved)
            continue;
        if (core->disk->n_writing > 0) {
            wait_news(core->disk, deadline);
        } else {
            return;
        }
    }
}

void qe_core_disk_stop(qe_core *core)
{
    qe_core_disk *disk = core->disk;
    gint64 deadline = g_get_monotonic_time() + STOP_US;
    GHashTableIter iter;
    void *value;
    if (!disk)
        return;
    g_hash_table_iter_init(&iter, core->timelines);
    while (g_hash_table_iter_next(&iter, NULL, &value)) {
        struct qe_core_file *f = ((qe_timeline *)value)->disk;
        if (f)
            f->n_wanted = f->next_read = 0; /* nobody asks for it any more */
    }
    if (!core->lost)
        drain(core, deadline);
    g_hash_table_iter_init(&iter, core->timelines);
    while (g_hash_table_iter_next(&iter, NULL, &value)) {
        struct qe_core_file *f = ((qe_timeline *)value)->disk;
        if (f)
            close_file(core, f);
    }
    for (;;) {
        take_completions(core);
        if (g_hash_table_size(disk->tags) == 0 || g_get_monotonic_time() >= deadline)
            break;
        wait_news(disk, deadline);
    }
    qe_kv_disk_free(disk->store); /* from here on no thread touches a page */
    for (disk_tag *tag;
         g_hash_table_iter_init(&iter, disk->tags), g_hash_table_iter_next(&iter, &value, NULL);) {
        tag = value;
        take_back(core, tag, QE_KV_DISK_DROPPED, 0);
    }
    g_hash_table_unref(disk->tags);
    qe_cond_clear(&disk->cond);
    qe_mutex_clear(&disk->lock);
    g_free(disk->note);
    g_clear_pointer(&core->disk, g_free);
}

void qe_core_disk_describe(const qe_core *core, qe_stats_disk *out)
{
    *out = (qe_stats_disk){.reason = core->disk_reason};
    if (!core->disk)
        return;
    qe_kv_disk_usage usage;
    qe_kv_disk_get_usage(core->disk->store, &usage);
    uint64_t slot_bytes = qe_kv_disk_slot_bytes(core->disk->store, 0);
    *out = (qe_stats_disk){
        .present = true,
        .note = core->disk->note,
        .n_pages = (uint32_t)MIN(usage.n_pages, UINT32_MAX),
        .n_pages_max = (uint32_t)MIN(usage.quota_bytes / slot_bytes, UINT32_MAX),
        .bytes_used = usage.used_bytes,
        .bytes_max = usage.quota_bytes,
        .bytes_in = usage.written_bytes,
        .bytes_out = usage.read_bytes,
    };
}
