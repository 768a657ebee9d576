/* qe-kv-disk-work.c: the I/O threads of the disk store: they look for work in the open files and do it without the lock:
 * reads and writes here, what needs a file alone in qe-kv-disk-files.c. Invariants: qe-kv-disk-private.h.
 *
 * In a file run either up to one batch of reads or writes a thread, or alone: open, an index, close, delete ("exclusive").
 * What waits to be exclusive stops new batches, so it is never starved. Reads go before writes. A batch is a run of
 * adjacent slots; its bytes go straight from and to the caller's memory when that is aligned and pages fill their slots,
 * else through the thread's bounce buffer. */
#include "engine/qe-kv-disk-private.h"
#include <errno.h>
#include <unistd.h>
#include "engine/qe-kv-disk-io.h"

/* ---- Writes ---- */

static guint batch_pages_max(const qe_kv_disk_file *file)
{
    return (guint)CLAMP(QE_KV_DISK_BATCH_BYTES / file->kind->slot_bytes, 1, QE_KV_DISK_BATCH_PAGES);
}

static void drop_void_writes(qe_kv_disk_file *file)
{
    for (disk_op *op; (op = g_queue_peek_head(&file->writes)) != NULL; g_free(op)) {
        if (qe_kv_disk_page_of(file, op->position, op->serial))
            return;
        g_queue_pop_head(&file->writes);
        qe_kv_disk_post(file->disk, file, op, QE_KV_DISK_DROPPED, NULL, NULL);
    }
}

/* The first write that waits cannot be done; those behind it become void. */
static void fail_first_write(qe_kv_disk_file *file, qe_kv_disk_status status, char *message_taken)
{
    drop_void_writes(file);
    disk_op *op = g_queue_pop_head(&file->writes);
    if (!op) {
        g_free(message_taken);
        return;
    }
    qe_kv_disk_cut(file, op->position);
    qe_kv_disk_post(file->disk, file, op, status, message_taken, NULL);
    g_free(op);
    drop_void_writes(file);
}

/* The page file is there; makes it when this is the first write. Gives the lock up meanwhile. */
static bool ensure_fd(qe_kv_disk_file *file)
{
    qe_kv_disk *self = file->disk;
    int fd = -1, rc;
    bool direct = true;
    if (file->fd >= 0)
        return true;
    g_autofree char *name = qe_kv_disk_file_name(file, ".pages");
    qe_mutex_unlock(&self->lock);
    rc = qe_kv_io_open(file->kind->fd, name, true, &fd, &direct);
    if (rc == 0 && ftruncate(fd, 0) != 0) {
        rc = errno;
        close(fd);
    }
    qe_mutex_lock(&self->lock);
    if (rc != 0) {
        fail_first_write(file, qe_kv_disk_status_of(rc),
            qe_kv_disk_message(file, "the page file cannot be made: %s", g_strerror(rc)));
        return false;
    }
    file->fd = fd;
    file->direct = direct;
    self->direct = self->direct && direct;
    return true;
}

/* Slots for up to *@n pages: free ones, or new ones at the end, for which room is taken. Returns the first slot and in
 * *@n how many follow one another; false when there is no room. Gives the lock up meanwhile. */
static bool take_slots(qe_kv_disk_file *file, guint *n, uint32_t *first)
{
    qe_kv_disk *self = file->disk;
    uint32_t slot = file->free_hint, n_slots = file->slots->len;
    while (slot < n_slots && !qe_kv_disk_slot_is_free(file, slot))
        slot++;
    file->free_hint = slot;
    if (slot < n_slots) {
        guint run = 1;
        while (run < *n && slot + run < n_slots && qe_kv_disk_slot_is_free(file, slot + run))
            run++;
        *n = run;
        *first = slot;
    } else {
        uint64_t has = qe_kv_disk_own_entry(file)->bytes, bytes, need = 0;
        bool ok = false;
        for (guint ask = *n; !ok && ask > 0; ask = ask > 1 ? 1 : 0) {
            bytes = qe_kv_disk_file_bytes(file, (uint64_t)n_slots + ask, file->n_logits);
            need = bytes > has ? bytes - has : 0;
            *n = ask;
            ok = (uint64_t)n_slots + ask <= QE_KV_INDEX_SLOTS_MAX && qe_kv_disk_reserve(self, need);
        }
        if (!ok)
            return false;
        self->reserved_bytes -= need;
        *first = n_slots;
        g_array_set_size(file->slots, n_slots + *n);
        qe_kv_disk_count_file(file, file->n_logits);
    }
    for (guint i = 0; i < *n; i++)
        g_array_index(file->slots, disk_slot, *first + i).busy = 1;
    return true;
}

/* Moves writes from the queue into a batch with slots; NULL when there are none to do. Gives the lock up meanwhile. */
static disk_batch *collect_writes(qe_kv_disk_file *file)
{
    qe_kv_disk *self = file->disk;
    guint n;
    uint32_t first;
    drop_void_writes(file);
    if (file->sync_failed) {
        fail_first_write(file, QE_KV_DISK_IO, qe_kv_disk_message(file, "an earlier fdatasync failed"));
        return NULL;
    }
    if (g_queue_is_empty(&file->writes) || !ensure_fd(file))
        return NULL;
    n = MIN(MAX(file->writes.length, 1), batch_pages_max(file));
    if (!take_slots(file, &n, &first)) {
        char *message = self->quota_reported ? NULL
                                             : qe_kv_disk_message(file,
                                                   "the quota of %" G_GUINT64_FORMAT
                                                   " bytes is used up, and no other conversation can go",
                                                   self->quota_bytes);
        self->quota_reported = true;
        fail_first_write(file, QE_KV_DISK_QUOTA, message);
        return NULL;
    }
    self->quota_reported = false;
    disk_batch *batch = g_new0(disk_batch, 1);
    batch->op = QE_KV_DISK_WRITE;
    batch->slot = first;
    drop_void_writes(file); /* the owner may have cut the list while room was made */
    while (batch->n < n && !g_queue_is_empty(&file->writes)) {
        disk_op *op = g_queue_pop_head(&file->writes);
        disk_page *page = qe_kv_disk_page_of(file, op->position, op->serial);
        page->state = PAGE_WRITING;
        page->slot = first + batch->n;
        g_array_index(file->slots, disk_slot, page->slot).live = 1;
        batch->ops[batch->n++] = op;
        drop_void_writes(file);
    }
    for (guint i = batch->n; i < n; i++) {
        g_array_index(file->slots, disk_slot, first + i).busy = 0;
        file->free_hint = MIN(file->free_hint, first + i);
    }
    if (batch->n == 0)
        g_clear_pointer(&batch, g_free);
    return batch;
}

/* Fills @iov for a batch: the caller's memory where it will do, else slots of the bounce buffer. */
static void fill_vector(
    const disk_kind *kind, const disk_batch *batch, uint8_t *bounce, bool only_bounce, struct iovec *iov)
{
    for (guint i = 0; i < batch->n; i++) {
        const disk_op *op = batch->ops[i];
        uint8_t *memory = op->op == QE_KV_DISK_WRITE ? (uint8_t *)op->bytes : op->into;
        bool in_place =
            !only_bounce && kind->page_bytes == kind->slot_bytes && (uintptr_t)memory % QE_KV_DISK_ALIGN == 0;
        iov[i].iov_len = kind->slot_bytes;
        iov[i].iov_base = in_place ? memory : bounce + i * kind->slot_bytes;
        if (!in_place && op->op == QE_KV_DISK_WRITE) {
            memcpy(iov[i].iov_base, memory, kind->page_bytes);
            memset((uint8_t *)iov[i].iov_base + kind->page_bytes, 0, kind->slot_bytes - kind->page_bytes);
        }
    }
}

/* Runs the batch's request, without the lock. */
static int run_batch(qe_kv_disk_file *file, disk_batch *batch, uint8_t *bounce, bool *direct, guint *n_done)
{
    const disk_kind *kind = file->kind;
    bool writes = batch->op == QE_KV_DISK_WRITE;
    struct iovec iov[QE_KV_DISK_BATCH_PAGES];
    uint64_t offset = batch->slot * kind->slot_bytes, bytes = 0;
    int rc = 0;
    bool only_bounce = false;
    fill_vector(kind, batch, bounce, only_bounce, iov);
    rc = qe_kv_io_run(file->fd, writes, iov, (int)batch->n, offset, direct, &bytes);
    if (rc == EFAULT) { /* memory that the kernel cannot pin for direct I/O goes through the buffer */
        only_bounce = true;
        fill_vector(kind, batch, bounce, only_bounce, iov);
        rc = qe_kv_io_run(file->fd, writes, iov, (int)batch->n, offset, direct, &bytes);
    }
    *n_done = (guint)(bytes / kind->slot_bytes);
    if (writes)
        return rc;
    fill_vector(kind, batch, bounce, only_bounce, iov); /* io_run has changed it */
    for (guint i = 0; i < *n_done; i++) {
        const disk_op *op = batch->ops[i];
        uint64_t found = qe_kv_disk_page_checksum(iov[i].iov_base, kind->page_bytes, &op->key);
        if (found != batch->checksums[i])
            batch->status[i] = QE_KV_DISK_DAMAGED;
        else if (iov[i].iov_base != op->into)
            memcpy(op->into, iov[i].iov_base, kind->page_bytes);
    }
    return rc;
}

/* Completes the batches that have none running before them. */
static void complete_writes(qe_kv_disk_file *file)
{
    qe_kv_disk *self = file->disk;
    for (disk_batch *b; (b = g_queue_peek_head(&file->write_batches)) != NULL && b->finished; g_free(b)) {
        g_queue_pop_head(&file->write_batches);
        for (guint i = 0; i < b->n; i++) {
            disk_op *op = b->ops[i];
            disk_page *page = qe_kv_disk_page_of(file, op->position, op->serial);
            qe_kv_disk_status status = b->status[i];
            if (!page && (status == QE_KV_DISK_OK || op->position > file->list->len))
                status = QE_KV_DISK_DROPPED; /* cut off, or one before it failed too */
            if (status == QE_KV_DISK_OK) {
                page->state = PAGE_WRITTEN;
                page->checksum = b->checksums[i];
                file->index_dirty = true;
                self->n_pages_written++;
            }
            bool tells = i == b->first_failed && status != QE_KV_DISK_DROPPED;
            qe_kv_disk_post(self, file, op, status, tells ? g_steal_pointer(&b->message) : NULL, NULL);
            g_free(op);
        }
        g_free(b->message);
    }
}

static void run_writes(qe_kv_disk_file *file, uint8_t *bounce)
{
    qe_kv_disk *self = file->disk;
    guint n_done = 0;
    file->n_running++;
    file->reserving = true;
    disk_batch *batch = collect_writes(file);
    file->reserving = false;
    qe_cond_broadcast(&self->cond);
    if (!batch) {
        file->n_running--;
        return;
    }
    g_queue_push_tail(&file->write_batches, batch);
    bool direct = file->direct;
    qe_mutex_unlock(&self->lock);
    for (guint i = 0; i < batch->n; i++)
        batch->checksums[i] =
            qe_kv_disk_page_checksum(batch->ops[i]->bytes, file->kind->page_bytes, &batch->ops[i]->key);
    int rc = run_batch(file, batch, bounce, &direct, &n_done);
    qe_mutex_lock(&self->lock);
    file->direct = file->direct && direct;
    self->direct = self->direct && direct;
    self->written_bytes += n_done * file->kind->page_bytes;
    for (guint i = 0; i < batch->n; i++) {
        disk_slot *slot = &g_array_index(file->slots, disk_slot, batch->slot + i);
        slot->busy = 0;
        if (!slot->live && !slot->durable)
            file->free_hint = MIN(file->free_hint, batch->slot + i);
        batch->status[i] = i < n_done    ? QE_KV_DISK_OK
                           : i == n_done ? qe_kv_disk_status_of(rc)
                                         : QE_KV_DISK_DROPPED;
    }
    batch->first_failed = n_done;
    if (n_done < batch->n) {
        const disk_op *failed = batch->ops[n_done];
        batch->message = qe_kv_disk_message(file, "writing page %u: %s", failed->position, g_strerror(rc));
        if (qe_kv_disk_page_of(file, failed->position, failed->serial))
            qe_kv_disk_cut(file, failed->position);
        file->index_dirty = true; /* its end gives back what the file grew by */
    }
    batch->finished = true;
    file->n_running--;
    complete_writes(file);
    qe_cond_broadcast(&self->cond);
}

/* ---- Reads ---- */

static qe_kv_disk_status void_read_status(const qe_kv_disk_file *file, const disk_op *op)
{
    return op->position >= file->damaged_from ? QE_KV_DISK_DAMAGED : QE_KV_DISK_DROPPED;
}

/* Whether the first read that waits can start; completes those that became void. */
static bool reads_can_start(qe_kv_disk_file *file)
{
    for (disk_op *op; (op = g_queue_peek_head(&file->reads)) != NULL; g_free(op)) {
        const disk_page *page = qe_kv_disk_page_of(file, op->position, op->serial);
        if (page)
            return page->state == PAGE_WRITTEN;
        g_queue_pop_head(&file->reads);
        qe_kv_disk_post(file->disk, file, op, void_read_status(file, op), NULL, NULL);
    }
    return false;
}

static disk_batch *collect_reads(qe_kv_disk_file *file)
{
    guint n_max = batch_pages_max(file);
    disk_batch *batch = g_new0(disk_batch, 1);
    batch->op = QE_KV_DISK_READ;
    while (batch->n < n_max && reads_can_start(file)) {
        disk_op *op = g_queue_peek_head(&file->reads);
        const disk_page *page = qe_kv_disk_page_of(file, op->position, op->serial);
        if (batch->n > 0 && page->slot != batch->slot + batch->n)
            break;
        if (batch->n == 0)
            batch->slot = page->slot;
        disk_slot *slot = &g_array_index(file->slots, disk_slot, page->slot);
        if (slot->busy == UINT8_MAX)
            break;
        slot->busy++;
        batch->checksums[batch->n] = page->checksum;
        batch->ops[batch->n++] = g_queue_pop_head(&file->reads);
    }
    return batch;
}

/* A page that cannot be read back right, or at all: it and those behind it leave the list. */
static char *drop_damaged(qe_kv_disk_file *file, const disk_op *op, qe_kv_disk_status status, int rc)
{
    qe_kv_disk_cut(file, op->position);
    file->damaged_from = MIN(file->damaged_from, op->position);
    file->index_dirty = true;
    file->disk->n_damaged++;
    return qe_kv_disk_message(file, "page %u: %s; it and the pages behind it are computed anew", op->position,
        status == QE_KV_DISK_IO ? g_strerror(rc)
        : rc == ENODATA         ? "the page file is cut"
                                : "its checksum differs");
}

static void run_reads(qe_kv_disk_file *file, uint8_t *bounce)
{
    qe_kv_disk *self = file->disk;
    guint n_done = 0;
    disk_batch *batch = collect_reads(file);
    if (batch->n == 0) {
        g_free(batch);
        return;
    }
    file->n_running++;
    bool direct = file->direct;
    qe_mutex_unlock(&self->lock);
    int rc = run_batch(file, batch, bounce, &direct, &n_done);
    qe_mutex_lock(&self->lock);
    file->direct = file->direct && direct;
    self->direct = self->direct && direct;
    self->read_bytes += n_done * file->kind->page_bytes;
    for (guint i = 0; i < batch->n; i++) {
        disk_op *op = batch->ops[i];
        qe_kv_disk_status status = batch->status[i];
        char *message = NULL;
        disk_slot *slot = &g_array_index(file->slots, disk_slot, batch->slot + i);
        slot->busy--;
        if (!slot->live && !slot->durable)
            file->free_hint = MIN(file->free_hint, batch->slot + i);
        if (i >= n_done)
            status = rc == ENODATA ? QE_KV_DISK_DAMAGED : QE_KV_DISK_IO;
        if (!qe_kv_disk_page_of(file, op->position, op->serial))
            status = void_read_status(file, op);
        else if (status != QE_KV_DISK_OK)
            message = drop_damaged(file, op, status, i >= n_done ? rc : 0);
        self->n_pages_read += status == QE_KV_DISK_OK;
        qe_kv_disk_post(self, file, op, status, message, NULL);
        g_free(op);
    }
    g_free(batch);
    file->n_running--;
    qe_cond_broadcast(&self->cond);
}

/* ---- The search for work ---- */

/* Another handle of the same conversation that was opened before is there still, or its files are being evicted. */
static bool is_blocked(qe_kv_disk_file *file)
{
    qe_kv_disk *self = file->disk;
    for (guint i = 0; i < self->files->len && self->files->pdata[i] != file; i++)
        if (strcmp(((qe_kv_disk_file *)self->files->pdata[i])->stem, file->stem) == 0)
            return true;
    const disk_entry *entry = qe_kv_disk_entry(self, file->kind->hex, file->stem, false, false);
    return entry && entry != file->entry && entry->busy;
}

static bool control_is_ready(qe_kv_disk_file *file)
{
    const disk_op *op = g_queue_peek_head(&file->controls), *write = g_queue_peek_head(&file->writes);
    if (!op)
        return false;
    switch (op->op) {
    case QE_KV_DISK_OPEN:
    case QE_KV_DISK_DELETE:
        return !is_blocked(file);
    case QE_KV_DISK_FLUSH:
        return !write || write->serial >= op->serial;
    default:
        return !write && g_queue_is_empty(&file->reads);
    }
}

static void run_control(qe_kv_disk_file *file)
{
    g_autofree disk_op *op = g_queue_pop_head(&file->controls);
    switch (op->op) {
    case QE_KV_DISK_OPEN:
        qe_kv_disk_run_open(file, op);
        break;
    case QE_KV_DISK_DELETE:
        qe_kv_disk_run_delete(file, op);
        return;
    case QE_KV_DISK_FLUSH: {
        char *message;
        qe_kv_disk_status status = qe_kv_disk_update_index(file, &message);
        qe_kv_disk_post(file->disk, file, op, status, message, NULL);
        break;
    }
    default:
        qe_kv_disk_run_close(file, op);
        return;
    }
    file->exclusive = false;
    qe_cond_broadcast(&file->disk->cond);
}

/* Whether the index is to be replaced now; else *@due is moved to when it is. */
static bool index_is_due(qe_kv_disk_file *file, gint64 now, gint64 *due)
{
    if (!file->opened || !file->index_dirty || file->deleted || file->sync_failed)
        return false;
    if (file->index_due == 0)
        file->index_due = now + QE_KV_DISK_INDEX_US;
    if (file->index_due > now)
        *due = MIN(*due, file->index_due);
    return file->index_due <= now;
}

/* Does one piece of work; false when there is none, *@due then says when to look again. */
static bool work_once(qe_kv_disk *self, uint8_t *bounce, gint64 *due)
{
    gint64 now = g_get_monotonic_time();
    guint n = self->files->len;
    if (self->trim) {
        self->trim = false;
        qe_kv_disk_reserve(self, 0);
        return true;
    }
    self->next_file++;
    for (int pass = 0; pass < 3; pass++)
        for (guint i = 0; i < n; i++) {
            qe_kv_disk_file *file = self->files->pdata[(self->next_file + i) % n];
            bool control = !file->exclusive && control_is_ready(file);
            bool index = !file->exclusive && index_is_due(file, now, due);
            if (file->exclusive)
                continue;
            if (pass == 0 && (control || index) && file->n_running == 0) {
                file->exclusive = true;
                if (control) {
                    run_control(file); /* may free it */
                    return true;
                }
                qe_kv_disk_run_timed_index(file);
                file->exclusive = false;
                qe_cond_broadcast(&self->cond);
                return true;
            }
            if (control || index || !file->opened)
                continue;
            if (pass == 1 && reads_can_start(file)) {
                run_reads(file, bounce);
                return true;
            }
            if (pass == 2 && !file->reserving && !g_queue_is_empty(&file->writes)) {
                run_writes(file, bounce);
                return true;
            }
        }
    return false;
}

gpointer qe_kv_disk_work(gpointer disk)
{
    qe_kv_disk *self = disk;
    uint8_t *bounce = self->bounce[g_atomic_int_add(&self->n_started, 1)];
    qe_mutex_lock(&self->lock);
    for (;;) {
        gint64 due = G_MAXINT64;
        bool worked = work_once(self, bounce, &due);
        if (self->news) {
            qe_kv_disk_unlock(self); /* wakes the owner */
            qe_mutex_lock(&self->lock);
            continue;
        }
        if (worked)
            continue;
        if (self->stop && self->files->len == 0)
            break;
        if (due == G_MAXINT64)
            qe_cond_wait(&self->cond, &self->lock);
        else
            qe_cond_wait_until(&self->cond, &self->lock, due);
    }
    qe_cond_broadcast(&self->cond);
    qe_mutex_unlock(&self->lock);
    return NULL;
}
