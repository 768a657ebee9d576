/* qe-kv-disk.h: the disk tier's store: sealed KV pages of conversations, in files under one directory. Internal.
 *
 * The store moves bytes between a conversation's page file and host memory given by the caller; it knows nothing of
 * pools or sessions. A conversation on disk is the list of its pages from the first token on, each named by its chain
 * hash (qe-page-key.h), and maybe its last logits. What comes back is a valid prefix of what was written or nothing:
 * every check that fails costs a prefill, is reported, and touches no live memory and no other conversation.
 *
 * Threads: every function is called by the engine thread (the owner), which never waits for the disk except in
 * qe_kv_disk_new() and qe_kv_disk_free(). Two I/O threads of the store's own do the work; qe_kv_disk_poll() fetches the
 * results. @wakeup says on any thread that there is something to fetch; it may only make the owner call poll.
 *
 * Ownership: bytes given to write and read belong to the store until their completion was fetched (or free returned).
 *
 * Positions: page i of a conversation holds its tokens 16 i to 16 i + 15. A write appends: its position is the number of
 * pages so far, those still queued included. When a write fails, its page and all behind it leave the list, and the
 * writes that were queued behind it complete as DROPPED; writing can go on at the position that failed. Writes complete
 * in order, but for dropped ones, which may do so earlier.
 *
 * Durability: a write completes when the bytes are in the page file. The index that names the page follows within
 * about a second, at flush and at close; after a crash the conversation is what the last index names. */
#pragma once
#include <glib.h>
#include <stdbool.h>
#include <stdint.h>
#include "engine/qe-error.h"
#include "engine/qe-page-key.h"

G_BEGIN_DECLS

#define QE_KV_DISK_DIGEST_BYTES     32u
#define QE_KV_DISK_CONVERSATION_MAX 128u       /* bytes of a conversation key, without the NUL */
#define QE_KV_DISK_PAGES_MAX        (1u << 20) /* pages of a conversation */
#define QE_KV_DISK_OPEN_MAX         256u       /* conversations open at the same time */

typedef struct qe_kv_disk qe_kv_disk;
typedef struct qe_kv_disk_file
    qe_kv_disk_file; /* an open conversation; owned by the store, borrowed by the caller */

typedef void (*qe_kv_disk_wakeup)(void *user); /* any thread, no lock held */

typedef enum {
    QE_KV_DISK_OPEN,   /* one per qe_kv_disk_open() */
    QE_KV_DISK_WRITE,  /* one per qe_kv_disk_write() */
    QE_KV_DISK_READ,   /* one per qe_kv_disk_read() */
    QE_KV_DISK_LOGITS, /* only when logits could not be stored */
    QE_KV_DISK_INDEX,  /* only when an index replaced by the timer failed: once until it works again */
    QE_KV_DISK_FLUSH,  /* one per qe_kv_disk_flush() */
    QE_KV_DISK_CLOSE,  /* one per qe_kv_disk_close() */
    QE_KV_DISK_DELETE, /* one per qe_kv_disk_delete() */
} qe_kv_disk_op;

typedef enum {
    QE_KV_DISK_OK,
    QE_KV_DISK_MISSING, /* open: nothing is stored; delete: there was nothing */
    QE_KV_DISK_REFUSED, /* open: the index failed a check and was set aside; the list is empty */
    QE_KV_DISK_DAMAGED, /* open: the page file is cut, the list ends before; read: the checksum differs, or a page
                            before it was found so: this page and all behind it left the list */
    QE_KV_DISK_DROPPED, /* truncated, deleted or failed before its turn came; or not in the list at all */
    QE_KV_DISK_INVALID, /* read: the page there has another key; write: not the next position, or not chained */
    QE_KV_DISK_QUOTA,   /* no room within the quota, and nothing left to evict */
    QE_KV_DISK_NO_SPACE, /* the file system is full, or a limit on the file's size */
    QE_KV_DISK_IO,       /* any other failure of the file system; the message has it. Read: like DAMAGED */
} qe_kv_disk_status;

const char *qe_kv_disk_status_name(qe_kv_disk_status status); /* "ok", "quota", ... */

/* A page as the store names it. */
typedef struct {
    qe_page_key key;
    qe_page_key parent; /* the key before, or the seed for the first page */
    uint32_t ids[QE_PAGE_KEY_TOKENS];
} qe_kv_disk_page;

/* What open found. */
typedef struct {
    uint32_t n_pages;
    qe_kv_disk_page *pages; /* [n_pages]; every key is the child of its parent by its ids */
    uint64_t *checksums;    /* [n_pages] of the bytes; verified by read, not by open */
    uint32_t *slots;        /* [n_pages] in the page file, in units of qe_kv_disk_slot_bytes() */
    /* The last logits: those after @logits_n_tokens tokens; NULL and 0 when there are none. The listed pages begin with the
     * tokens, but for the last @n_tail = logits_n_tokens % 16, which are in @tail_ids too. */
    float *logits; /* [n_logits] */
    uint32_t n_logits, logits_n_tokens, n_tail;
    uint32_t tail_ids[QE_PAGE_KEY_TOKENS];
} qe_kv_disk_listing;

typedef struct {
    qe_kv_disk_op op;
    qe_kv_disk_status status;
    qe_kv_disk_file *file; /* not to be used any more after CLOSE and DELETE */
    uint32_t position;     /* WRITE, READ: the page */
    void *tag;             /* the caller's; NULL for LOGITS and INDEX */
    char *message; /* owned; why not. NULL when ok, and when the same has been reported already (quota) */
    qe_kv_disk_listing *listing; /* owned; OPEN only, never NULL there */
} qe_kv_disk_completion;

#define QE_KV_DISK_KINDS_MAX 2u
typedef struct {
    const uint8_t *digest; /* [QE_KV_DISK_DIGEST_BYTES] of everything that the bytes of a page depend on */
    uint64_t page_bytes;   /* 1..1 GiB, any number */
} qe_kv_disk_kind;

/* @dir: made with mode 0700 when missing (its parent must be there). @kinds: [@n_kinds] of the pages that are kept, with
 * different digests; copied. Each digest has a sub-directory; the files of other digests count towards the quota and are
 * evicted like ours. Removes left-over temporary files. NULL with @error naming the path when it cannot
 * be used, and QE_ERROR_BUSY when another process uses it. */
qe_kv_disk *qe_kv_disk_new(const char *dir, uint64_t quota_bytes, const qe_kv_disk_kind *kinds,
    uint32_t n_kinds, qe_kv_disk_wakeup wakeup, void *user, GError **error) G_GNUC_WARN_UNUSED_RESULT;
/* Finishes what runs, drops the writes and reads that wait (flush first to keep them), replaces the indices that are
 * out of date, and ends the threads. Open files and completions not fetched go too. NULL is fine. */
void qe_kv_disk_free(qe_kv_disk *self);

/* One completion, oldest first; false when there is none. The caller clears it. */
bool qe_kv_disk_poll(qe_kv_disk *self, qe_kv_disk_completion *out);
void qe_kv_disk_completion_clear(qe_kv_disk_completion *completion);

/* Starts to open @conversation (UTF-8, 1..128 bytes) with pages of @kind (an index of new's), new or stored. A conversation
 * is open in one kind at a time. The file can be given reads and writes only after
 * the OPEN completion, whose listing it starts from. NULL with @error: a bad key, already open, or too many open. */
qe_kv_disk_file *qe_kv_disk_open(qe_kv_disk *self, uint32_t kind, const char *conversation, void *tag,
    GError **error) G_GNUC_WARN_UNUSED_RESULT;

/* Appends a sealed page; @position must be qe_kv_disk_n_pages(), page->parent the key before (anything for position 0),
 * page->key the child. @bytes: [page_bytes]; a multiple of 4096 as address saves a copy. */
void qe_kv_disk_write(qe_kv_disk *self, qe_kv_disk_file *file, uint32_t position, const qe_kv_disk_page *page,
    const void *bytes, void *tag);
/* Reads the page at @position, which must have @key, into @into: [page_bytes], whose content is undefined when the
 * status is not OK. May name a page whose write is queued still. */
void qe_kv_disk_read(qe_kv_disk *self, qe_kv_disk_file *file, uint32_t position, const qe_page_key *key,
    void *into, void *tag);
/* The conversation was rewound: only its first @n_pages are valid from now on. More than it has is fine. */
void qe_kv_disk_truncate(qe_kv_disk *self, qe_kv_disk_file *file, uint32_t n_pages);
/* The logits after @n_tokens tokens: the first n_tokens / 16 pages of the list (queued writes included) and the
 * n_tokens % 16 of @tail_ids (NULL when none), with which the page behind those, if there is one, begins. Copied. Dropped
 * again by truncate before their last whole page and by a page that goes on otherwise; n = 0 forgets them. false: the list
 * is shorter or goes on otherwise, and nothing changes. */
bool qe_kv_disk_set_logits(qe_kv_disk *self, qe_kv_disk_file *file, uint32_t n_tokens,
    const uint32_t *tail_ids, const float *logits, uint32_t n);
/* The logits [@n] after @n_tokens tokens that end in @tail_ids; NULL: there are none, or those of something else. What the
 * list's pages hold before them is the caller's to compare. Returns: owned. */
float *qe_kv_disk_dup_logits(qe_kv_disk *self, qe_kv_disk_file *file, uint32_t n_tokens,
    const uint32_t *tail_ids, uint32_t n) G_GNUC_WARN_UNUSED_RESULT;
/* Completes when all that was queued for the file before is on disk and its index names it. */
void qe_kv_disk_flush(qe_kv_disk *self, qe_kv_disk_file *file, void *tag);
/* The same, and the file is closed; nothing may be asked of it after the call. */
void qe_kv_disk_close(qe_kv_disk *self, qe_kv_disk_file *file, void *tag);
/* Deletes what is stored of @conversation, open or not. Its queued writes and reads are dropped; an open file is closed:
 * nothing may be asked of it after the call. false with @error: a bad key. */
bool qe_kv_disk_delete(qe_kv_disk *self, const char *conversation, void *tag, GError **error);

uint32_t qe_kv_disk_n_pages(
    qe_kv_disk *self, qe_kv_disk_file *file); /* in the list, queued writes included */
/* An open conversation that has @key in its page file already: for restoring a page that another one stored. */
bool qe_kv_disk_find(qe_kv_disk *self, const qe_page_key *key, qe_kv_disk_file **file, uint32_t *position);

/* From now on; evicts conversations that are not open when it is smaller. */
void qe_kv_disk_set_quota(qe_kv_disk *self, uint64_t quota_bytes);

typedef struct {
    uint64_t quota_bytes,
        used_bytes;             /* used: files of all digests, with the room that their next index may take */
    uint64_t n_pages;           /* whole slots in the page files of our kinds, open or not */
    uint32_t n_conversations;   /* of our kinds */
    uint32_t n_open, n_pending; /* files; reads and writes that wait or run */
    uint64_t read_bytes, written_bytes, n_pages_read,
        n_pages_written; /* since new; pages' bytes, no padding */
    uint64_t n_indices, n_evicted, n_errors, n_refused,
        n_damaged; /* events since new; evicted: conversations */
    bool direct;   /* the file system takes O_DIRECT */
} qe_kv_disk_usage;
void qe_kv_disk_get_usage(qe_kv_disk *self, qe_kv_disk_usage *out);
uint64_t qe_kv_disk_slot_bytes(const qe_kv_disk *self, uint32_t kind); /* page_bytes rounded up to 4096 */

G_END_DECLS
