/* qe-kv-disk-private.h: what qe-kv-disk.c (the owner's side), qe-kv-disk-work.c and -files.c (the I/O
 * threads) share. Internal.
 *
 * Everything below is guarded by qe_kv_disk.lock, but for the fields marked "fixed", which do not change after new. An
 * I/O thread does the work itself without the lock. Invariants:
 *  1. A slot is written only while it is BUSY for that write alone, and neither live for another page, nor named by the
 *     index on disk, nor being read: a crash or a failure at any moment leaves what the index names as it was.
 *  2. An index names pages only whose bytes were written and synced; it is replaced while nothing else runs in the file.
 *  3. Pages in the list are chained; states along it are WRITTEN..., WRITING..., QUEUED....
 *  4. A write or read belongs to a page by serial: when the page left the list, the work is void.
 *  5. Writes of a file complete in the order they were asked for, but those that are dropped may do so earlier.
 *  6. used_bytes + reserved_bytes passes the quota only where files that were there before, or a smaller quota, do so. */
#pragma once
#include "engine/qe-kv-disk.h"
#include "engine/qe-kv-disk-index.h"
#include "engine/qe-lock.h"

G_BEGIN_DECLS

#define QE_KV_DISK_THREADS        2
#define QE_KV_DISK_BATCH_BYTES    (16u << 20) /* of one preadv or pwritev; at least one page */
#define QE_KV_DISK_BATCH_PAGES    512u
#define QE_KV_DISK_INDEX_US       G_USEC_PER_SEC       /* a changed list waits so long for more */
#define QE_KV_DISK_RETRY_US       (5 * G_USEC_PER_SEC) /* an index that failed is tried again */
#define QE_KV_DISK_PAGE_BYTES_MAX (1ull << 30)

typedef enum { PAGE_QUEUED, PAGE_WRITING, PAGE_WRITTEN } disk_page_state;

typedef struct {
    qe_kv_disk_page page;
    uint64_t checksum, serial;
    uint32_t position, slot; /* slot: from WRITING on */
    disk_page_state state;
} disk_page;

/* Of a slot of the page file. It is free when all are zero. */
typedef struct {
    uint8_t live;    /* a page in the list lies there */
    uint8_t durable; /* the index on disk names it */
    uint8_t busy;    /* reads and writes that run on it */
} disk_slot;

/* Work that waits: a write or read of a page, or OPEN, FLUSH, CLOSE, DELETE. */
typedef struct {
    qe_kv_disk_op op;
    uint32_t position;
    uint64_t serial; /* of the page; FLUSH: writes below it come first */
    const void *bytes;
    void *into;
    qe_page_key key;
    void *tag;
} disk_op;

/* One request to the kernel: pages in adjacent slots. */
typedef struct {
    qe_kv_disk_op op;
    guint n;
    disk_op *ops[QE_KV_DISK_BATCH_PAGES];
    uint64_t checksums[QE_KV_DISK_BATCH_PAGES]; /* write: found; read: expected */
    qe_kv_disk_status status[QE_KV_DISK_BATCH_PAGES];
    char *message; /* of the first that failed */
    guint first_failed;
    uint32_t slot; /* the first page's */
    bool finished;
} disk_batch;

/* Pages of one kind: what an index has to name. Fixed. */
typedef struct {
    char *hex; /* the digest, and the name of its directory */
    uint8_t digest[QE_KV_DISK_DIGEST_BYTES];
    uint64_t page_bytes, slot_bytes;
    int fd; /* of the directory */
} disk_kind;

/* The files of a conversation, open or not, of any digest; or what was set aside (bad). */
typedef struct {
    char *
        path; /* "<digest in hex>/<stem>", without suffix; the key in the table, with ".bad" appended when bad */
    uint64_t bytes;        /* that it counts for */
    gint64 used_us;        /* when it was last used, real time */
    uint64_t n_slots;      /* whole slots of its page file; of our kinds only */
    const disk_kind *kind; /* NULL: of another digest */
    bool bad;
    bool busy;  /* open or being deleted: not evicted */
    bool stuck; /* deleting it failed: not tried again */
} disk_entry;

struct qe_kv_disk_file {
    qe_kv_disk *disk;
    const disk_kind *kind;     /* fixed */
    char *conversation, *stem; /* fixed */
    disk_entry *entry;         /* NULL before opened */
    bool opened;               /* the OPEN completion was posted */
    bool closing;              /* the caller let go of it: CLOSE or DELETE is queued */
    bool deleted;              /* nothing of it is to be kept */
    bool transient;            /* only carries a DELETE */
    int fd;                    /* -1 before the first write */
    bool direct;
    GPtrArray *list;    /* of disk_page, owned */
    GHashTable *by_key; /* qe_page_key -> disk_page */
    GArray *slots;      /* of disk_slot: the page file's length */
    uint32_t free_hint; /* no free slot is below it */
    uint64_t next_serial;
    uint32_t damaged_from;          /* pages from here on were dropped for damage; UINT32_MAX: none */
    GQueue controls, writes, reads; /* of disk_op, owned */
    GQueue write_batches;           /* of disk_batch that run or wait for one before them */
    uint32_t n_running;             /* batches */
    bool exclusive;                 /* a control or an index runs */
    bool reserving;                 /* a batch of writes is making room */
    bool index_dirty, index_failed; /* failed: it was reported */
    bool sync_failed; /* fdatasync failed: what the page file holds is not known, no index any more */
    gint64 index_due;
    float *logits;
    uint32_t n_logits, logits_n_tokens, tail_ids[QE_PAGE_KEY_TOKENS];
};

struct qe_kv_disk {
    char *dir;                             /* fixed */
    disk_kind kinds[QE_KV_DISK_KINDS_MAX]; /* fixed */
    uint32_t n_kinds;                      /* fixed */
    int root_fd, lock_fd;                  /* fixed */
    qe_kv_disk_wakeup wakeup;              /* fixed */
    void *wakeup_user;                     /* fixed */
    uint8_t *bounce[QE_KV_DISK_THREADS];   /* fixed; [bounce_bytes], each its thread's own */
    uint64_t bounce_bytes;                 /* fixed */
    GThread *threads[QE_KV_DISK_THREADS];  /* fixed */

    qe_mutex lock;
    qe_cond cond; /* work, or its end */
    bool stop, trim, news;
    gint n_started;      /* threads, atomically: each takes its number */
    GPtrArray *files;    /* of qe_kv_disk_file, owned; in the order they were opened */
    GHashTable *entries; /* path -> disk_entry, owned */
    GQueue done;         /* of qe_kv_disk_completion, owned */
    guint next_file;     /* where the search for work starts */
    uint64_t quota_bytes, used_bytes, reserved_bytes;
    guint n_evicting;
    bool quota_reported;
    bool direct;
    uint64_t read_bytes, written_bytes, n_pages_read, n_pages_written;
    uint64_t n_indices, n_evicted, n_errors, n_refused, n_damaged;
};

/* qe-kv-disk.c. With the lock held: */
void qe_kv_disk_unlock(qe_kv_disk *self); /* and wakes the owner when there are news */
void qe_kv_disk_post(qe_kv_disk *self, qe_kv_disk_file *file, const disk_op *op, qe_kv_disk_status status,
    char *message_taken, qe_kv_disk_listing *listing_taken);
void qe_kv_disk_cut(qe_kv_disk_file *file, uint32_t n_pages); /* the list, and logits beyond it */
void qe_kv_disk_forget_logits(qe_kv_disk_file *file);
void qe_kv_disk_drop_queued(qe_kv_disk_file *file); /* completes waiting reads and writes as DROPPED */
void qe_kv_disk_file_free(qe_kv_disk_file *file);
disk_page *qe_kv_disk_page_of(qe_kv_disk_file *file, uint32_t position, uint64_t serial); /* NULL: void */
disk_entry *qe_kv_disk_entry(
    qe_kv_disk *self, const char *digest_hex, const char *stem, bool bad, bool create);
void qe_kv_disk_entry_count(qe_kv_disk *self, disk_entry *entry, uint64_t bytes);
void qe_kv_disk_entry_remove(qe_kv_disk *self, disk_entry *entry);

/* qe-kv-disk-files.c; with the lock held. Those that say so give it up meanwhile. */
qe_kv_disk_status qe_kv_disk_status_of(int code);                            /* of an errno value */
char *qe_kv_disk_file_name(const qe_kv_disk_file *file, const char *suffix); /* owned */
char *qe_kv_disk_message(const qe_kv_disk_file *file, const char *format, ...)
    G_GNUC_PRINTF(2, 3); /* owned */
/* What a file with so many slots and logits may come to: the index is there twice while it is replaced. */
uint64_t qe_kv_disk_file_bytes(const qe_kv_disk_file *file, uint64_t n_slots, uint64_t n_logits);
/* Takes @need bytes of the quota, evicting as needed; false when they are not there. Gives the lock up. */
bool qe_kv_disk_reserve(qe_kv_disk *self, uint64_t need);
disk_entry *qe_kv_disk_own_entry(qe_kv_disk_file *file);
void qe_kv_disk_count_file(qe_kv_disk_file *file, uint32_t n_logits);
bool qe_kv_disk_slot_is_free(const qe_kv_disk_file *file, uint32_t slot);
/* Exclusively; they give the lock up. Close and delete free the file. */
qe_kv_disk_status qe_kv_disk_update_index(qe_kv_disk_file *file, char **message);
void qe_kv_disk_run_timed_index(qe_kv_disk_file *file);
void qe_kv_disk_run_open(qe_kv_disk_file *file, const disk_op *op);
void qe_kv_disk_run_close(qe_kv_disk_file *file, const disk_op *op);
void qe_kv_disk_run_delete(qe_kv_disk_file *file, const disk_op *op);

/* qe-kv-disk-work.c */
gpointer qe_kv_disk_work(gpointer disk);

G_END_DECLS
