/* qe-kv-disk-work.c: the I/O threads of the disk store: they look for work in the open files, do it without the lock, and
 * post what came of it. Invariants: qe-kv-disk-private.h.
 *
 * In a file run either up to one batch of reads or writes a thread, or alone: open, an index, close, delete ("exclusive").
 * What waits to be exclusive stops new batches, so it is never starved. Reads go before writes. A batch is a run of
 * adjacent slots; its bytes go straight from and to the caller's memory when that is aligned and pages fill their slots,
 * else through the thread's bounce buffer. */
#include "engine/qe-kv-disk-private.h"
#include <errno.h>
#include <sys/stat.h>
#include <fcntl.h>
#include <stdio.h>
#include <unistd.h>
#include "engine/qe-kv-disk-io.h"
#include "engine/qe-limits.h"

static uint64_t round_up(uint64_t n)
{
    return (n + QE_KV_DISK_ALIGN - 1) / QE_KV_DISK_ALIGN * QE_KV_DISK_ALIGN;
}

static qe_kv_disk_status status_of(int code)
{
    return code == ENOSPC || code == EDQUOT || code == EFBIG ? QE_KV_DISK_NO_SPACE : QE_KV_DISK_IO;
}

static char *file_name(const qe_kv_disk_file *file, const char *suffix)
{
    return g_strconcat(file->stem, suffix, NULL);
}

G_GNUC_PRINTF(2, 3) static char *message_new(const qe_kv_disk_file *file, const char *format, ...)
{
    va_list args;
    va_start(args, format);
    g_autofree char *text = g_strdup_vprintf(format, args);
    va_end(args);
    return g_strdup_printf("%s/%s/%s: %s", file->disk->dir, file->disk->digest_hex, file->stem, text);
}

/* ---- Room: the quota and eviction ---- */

/* What a file with so many slots may come to: the index is there twice while it is replaced. */
static uint64_t file_bytes(const qe_kv_disk *self, uint64_t n_slots, uint64_t n_logits)
{
    return n_slots * self->slot_bytes + 2 * round_up(qe_kv_index_bytes(n_slots, n_logits));
}

/* Unlinks the files of an entry; without the lock. */
static int unlink_entry(const qe_kv_disk *self, const char *path, bool bad, bool ours)
{
    int rc = 0;
    const char *const suffixes[] = {".index", ".pages"}; /* the index first: pages alone are nothing */
    for (guint i = 0; i < G_N_ELEMENTS(suffixes); i++) {
        g_autofree char *name = g_strconcat(path, suffixes[i], bad ? ".bad" : "", NULL);
        int one = qe_kv_io_unlink(self->root_fd, name);
        rc = rc != 0 ? rc : one;
    }
    if (!ours) {
        g_autofree char *dir = g_path_get_dirname(path);
        unlinkat(self->root_fd, dir, AT_REMOVEDIR); /* only when it is empty */
    }
    return rc;
}

/* What was set aside goes first, then the least recently used. */
static disk_entry *find_victim(qe_kv_disk *self)
{
    disk_entry *victim = NULL;
    GHashTableIter iter;
    gpointer value;
    g_hash_table_iter_init(&iter, self->entries);
    while (g_hash_table_iter_next(&iter, NULL, &value)) {
        disk_entry *entry = value;
        if (entry->busy || entry->stuck || entry->bytes == 0)
            continue;
        if (!victim || (entry->bad && !victim->bad) ||
            (entry->bad == victim->bad && entry->used_us < victim->used_us))
            victim = entry;
    }
    return victim;
}

/* Takes @need bytes of the quota, evicting as needed; false when it is not there. Gives the lock up meanwhile. */
static bool reserve(qe_kv_disk *self, uint64_t need)
{
    while (self->used_bytes + self->reserved_bytes + need > self->quota_bytes) {
        disk_entry *victim = find_victim(self);
        if (victim) {
            victim->busy = true;
            self->n_evicting++;
            qe_mutex_unlock(&self->lock);
            int rc = unlink_entry(self, victim->path, victim->bad, victim->ours);
            qe_mutex_lock(&self->lock);
            self->n_evicting--;
            victim->busy = false;
            if (rc == 0) {
                self->n_evicted++;
                qe_kv_disk_entry_remove(self, victim);
            } else {
                self->n_errors++;
                victim->stuck = true;
            }
            qe_cond_broadcast(&self->cond);
        } else if (self->n_evicting > 0)
            qe_cond_wait(&self->cond, &self->lock);
        else
            return false;
    }
    self->reserved_bytes += need;
    return true;
}

static disk_entry *own_entry(qe_kv_disk_file *file)
{
    if (!file->entry) {
        file->entry = qe_kv_disk_entry(file->disk, file->disk->digest_hex, file->stem, false, true);
        file->entry->busy = true;
    }
    return file->entry;
}

static void count_file(qe_kv_disk_file *file, uint32_t n_logits)
{
    disk_entry *entry = own_entry(file);
    entry->n_slots = file->slots->len;
    qe_kv_disk_entry_count(file->disk, entry, file_bytes(file->disk, file->slots->len, n_logits));
}

static bool slot_is_free(const qe_kv_disk_file *file, uint32_t slot)
{
    const disk_slot *s = &g_array_index(file->slots, disk_slot, slot);
    return !s->live && !s->durable && s->busy == 0;
}

/* ---- The index ---- */

/* The pages that an index may name now: the written prefix. Marks their slots durable beside those that are so still. */
static void take_snapshot(qe_kv_disk_file *file, qe_kv_disk_listing *out)
{
    uint32_t n = 0;
    while (n < file->list->len && ((disk_page *)file->list->pdata[n])->state == PAGE_WRITTEN)
        n++;
    memset(out, 0, sizeof *out);
    out->n_pages = n;
    out->pages = g_new(qe_kv_disk_page, MAX(n, 1));
    out->checksums = g_new(uint64_t, MAX(n, 1));
    out->slots = g_new(uint32_t, MAX(n, 1));
    for (uint32_t i = 0; i < n; i++) {
        const disk_page *page = file->list->pdata[i];
        out->pages[i] = page->page;
        out->checksums[i] = page->checksum;
        out->slots[i] = page->slot;
        g_array_index(file->slots, disk_slot, page->slot).durable = 1;
    }
    if (file->logits && file->logits_n_tokens / QE_PAGE_KEY_TOKENS == n) {
        out->logits = g_memdup2(file->logits, file->n_logits * sizeof(float));
        out->n_logits = file->n_logits;
        out->logits_n_tokens = file->logits_n_tokens;
        out->n_tail = file->logits_n_tokens % QE_PAGE_KEY_TOKENS;
        memcpy(out->tail_ids, file->tail_ids, sizeof out->tail_ids);
    }
}

/* Room for the index with @n_logits of logits; QUOTA when there is none. */
static bool reserve_index(qe_kv_disk_file *file, uint32_t n_logits)
{
    qe_kv_disk *self = file->disk;
    uint64_t bytes = file_bytes(self, file->slots->len, n_logits), has = own_entry(file)->bytes;
    uint64_t need = bytes > has ? bytes - has : 0;
    if (!reserve(self, need))
        return false;
    self->reserved_bytes -= need;
    count_file(file, n_logits);
    return true;
}

/* The tail of the page file that nothing needs goes back to the file system. */
static void shrink(qe_kv_disk_file *file, uint32_t n_logits)
{
    uint32_t n = file->slots->len;
    if (!g_queue_is_empty(&file->writes) || file->fd < 0)
        return;
    while (n > 0 && slot_is_free(file, n - 1))
        n--;
    if (n == file->slots->len)
        return;
    qe_mutex_unlock(&file->disk->lock);
    int rc = ftruncate(file->fd, (off_t)(n * file->disk->slot_bytes));
    qe_mutex_lock(&file->disk->lock);
    if (rc == 0) {
        g_array_set_size(file->slots, n);
        file->free_hint = MIN(file->free_hint, n);
        count_file(file, n_logits);
    }
}

/* Syncs the page file and replaces the index, without the lock. */
static int write_index(qe_kv_disk_file *file, const qe_kv_disk_listing *listing, const char **step)
{
    qe_kv_disk *self = file->disk;
    const qe_kv_index_identity identity = {self->digest, self->page_bytes, file->conversation};
    g_autofree char *name = file_name(file, ".index"), *temp = file_name(file, ".index.tmp");
    *step = "fdatasync of the page file";
    if (file->fd >= 0 && fdatasync(file->fd) != 0) {
        int code = errno;
        file->sync_failed = true;
        return code;
    }
    g_autofree uint8_t *data = qe_kv_index_encode(&identity, listing);
    return qe_kv_io_replace(self->digest_fd, name, temp, data,
        (size_t)qe_kv_index_bytes(listing->n_pages, listing->n_logits), step);
}

/* Makes the index name what is there. Runs exclusively; gives the lock up meanwhile. */
static qe_kv_disk_status update_index(qe_kv_disk_file *file, char **message)
{
    qe_kv_disk *self = file->disk;
    qe_kv_disk_listing listing;
    const char *step = NULL;
    *message = NULL;
    if (file->deleted)
        return QE_KV_DISK_DROPPED;
    if (!file->index_dirty)
        return QE_KV_DISK_OK;
    file->index_due = g_get_monotonic_time() + QE_KV_DISK_RETRY_US; /* unless it is done below */
    if (file->sync_failed) {
        *message = message_new(file, "an earlier fdatasync failed; nothing more is stored");
        return QE_KV_DISK_IO;
    }
    if (!file->entry && file->list->len == 0 && !file->logits) {
        file->index_dirty = false;
        file->index_due = 0;
        return QE_KV_DISK_OK;
    }
    if (!reserve_index(file, file->n_logits)) {
        if (file->logits) {
            const disk_op op = {.op = QE_KV_DISK_LOGITS};
            qe_kv_disk_post(self, file, &op, QE_KV_DISK_QUOTA,
                message_new(file, "no room within the quota for the last logits"), NULL);
            g_clear_pointer(&file->logits, g_free);
            file->n_logits = file->logits_n_tokens = 0;
        }
        if (!reserve_index(file, 0)) {
            *message = message_new(file, "no room within the quota for the index");
            return QE_KV_DISK_QUOTA;
        }
    }
    take_snapshot(file, &listing);
    file->index_dirty = false;
    qe_mutex_unlock(&self->lock);
    int rc = write_index(file, &listing, &step);
    qe_mutex_lock(&self->lock);
    if (rc != 0) {
        file->index_dirty = true;
        *message = message_new(file, "%s: %s", step, g_strerror(rc));
    } else {
        self->n_indices++;
        file->index_due = 0;
        file->index_failed = false;
        file->free_hint = 0;
        for (guint i = 0; i < file->slots->len; i++)
            g_array_index(file->slots, disk_slot, i).durable = 0;
        for (uint32_t i = 0; i < listing.n_pages; i++)
            g_array_index(file->slots, disk_slot, listing.slots[i]).durable = 1;
        shrink(file, listing.n_logits);
    }
    qe_kv_disk_listing_clear(&listing);
    return rc == 0 ? QE_KV_DISK_OK : status_of(rc);
}

static void run_timed_index(qe_kv_disk_file *file)
{
    char *message;
    qe_kv_disk_status status = update_index(file, &message);
    if (status != QE_KV_DISK_OK && status != QE_KV_DISK_DROPPED && !file->index_failed) {
        const disk_op op = {.op = QE_KV_DISK_INDEX};
        file->index_failed = true;
        qe_kv_disk_post(file->disk, file, &op, status, g_steal_pointer(&message), NULL);
    }
    g_free(message);
}

/* ---- Open, close, delete ---- */

/* Renames the files of a conversation that cannot be used; one such is kept in the directory. Without the lock. */
static char *set_aside(qe_kv_disk_file *file, GPtrArray *bad_paths)
{
    const qe_kv_disk *self = file->disk;
    bool ok = true;
    const char *const suffixes[] = {".index", ".pages"};
    for (guint i = 0; i < bad_paths->len; i++)
        unlink_entry(self, bad_paths->pdata[i], true, true);
    for (guint i = 0; i < G_N_ELEMENTS(suffixes); i++) {
        g_autofree char *from = file_name(file, suffixes[i]), *to = g_strconcat(from, ".bad", NULL);
        if (renameat(self->digest_fd, from, self->digest_fd, to) != 0 && errno != ENOENT) {
            ok = false;
            qe_kv_io_unlink(self->digest_fd, from);
        }
    }
    return ok ? g_strdup_printf("set aside as %s.*.bad", file->stem) : g_strdup("deleted");
}

static void move_to_bad(qe_kv_disk_file *file)
{
    qe_kv_disk *self = file->disk;
    uint64_t bytes = 0;
    if (file->entry) {
        bytes = file->entry->bytes;
        qe_kv_disk_entry_remove(self, file->entry);
        file->entry = NULL;
    }
    disk_entry *bad = qe_kv_disk_entry(self, self->digest_hex, file->stem, true, true);
    qe_kv_disk_entry_count(self, bad, bytes);
    bad->used_us = g_get_real_time();
}

/* The index failed a check: @error says which. */
static void refuse_files(qe_kv_disk_file *file, const disk_op *op, const GError *error)
{
    qe_kv_disk *self = file->disk;
    g_autoptr(GPtrArray) bad_paths = g_ptr_array_new_with_free_func(g_free);
    g_autoptr(GPtrArray) bad_entries = g_ptr_array_new();
    GHashTableIter iter;
    gpointer value;
    g_hash_table_iter_init(&iter, self->entries);
    while (g_hash_table_iter_next(&iter, NULL, &value)) {
        disk_entry *entry = value;
        if (entry->bad && entry->ours && !entry->busy) {
            entry->busy = true;
            g_ptr_array_add(bad_paths, g_strdup(entry->path));
            g_ptr_array_add(bad_entries, entry);
        }
    }
    qe_mutex_unlock(&self->lock);
    g_autofree char *done = set_aside(file, bad_paths);
    qe_mutex_lock(&self->lock);
    for (guint i = 0; i < bad_entries->len; i++)
        qe_kv_disk_entry_remove(self, bad_entries->pdata[i]);
    move_to_bad(file);
    self->n_refused++;
    qe_kv_disk_post(self, file, op, QE_KV_DISK_REFUSED,
        g_strdup_printf("%s; it was %s, and the conversation is computed anew", error->message, done),
        g_new0(qe_kv_disk_listing, 1));
}

/* Takes over the first @n_pages of what the index lists. */
static void adopt_listing(
    qe_kv_disk_file *file, qe_kv_disk_listing *listing, uint32_t n_pages, uint64_t n_slots)
{
    for (uint32_t i = 0; i < listing->n_pages; i++)
        n_slots = MAX(n_slots, (uint64_t)listing->slots[i] + 1);
    g_array_set_size(file->slots, (guint)n_slots);
    for (uint32_t i = 0; i < listing->n_pages; i++) {
        disk_slot *slot = &g_array_index(file->slots, disk_slot, listing->slots[i]);
        slot->durable = 1;
        if (i >= n_pages)
            continue;
        disk_page *page = g_new0(disk_page, 1);
        slot->live = 1;
        page->page = listing->pages[i];
        page->checksum = listing->checksums[i];
        page->serial = file->next_serial++;
        page->position = i;
        page->slot = listing->slots[i];
        page->state = PAGE_WRITTEN;
        g_ptr_array_add(file->list, page);
        g_hash_table_replace(file->by_key, &page->page.key, page);
    }
    if (n_pages < listing->n_pages) {
        file->index_dirty = true;
        g_clear_pointer(&listing->logits, g_free);
        listing->n_logits = listing->logits_n_tokens = listing->n_tail = 0;
        listing->n_pages = n_pages;
    }
    if (listing->logits) {
        file->logits = g_memdup2(listing->logits, listing->n_logits * sizeof(float));
        file->n_logits = listing->n_logits;
        file->logits_n_tokens = listing->logits_n_tokens;
        memcpy(file->tail_ids, listing->tail_ids, sizeof file->tail_ids);
    }
    count_file(file, file->n_logits);
}

/* Opens the page file and says how many pages of the listing lie within it. 0 or an errno value. */
static int open_pages(
    qe_kv_disk_file *file, const qe_kv_disk_listing *listing, uint32_t *n_pages, uint64_t *n_slots)
{
    struct stat st = {0};
    g_autofree char *name = file_name(file, ".pages");
    int rc = qe_kv_io_open(file->disk->digest_fd, name, false, &file->fd, &file->direct);
    if (rc == 0 && fstat(file->fd, &st) != 0)
        rc = errno;
    if (rc == 0 && !S_ISREG(st.st_mode))
        rc = EISDIR;
    if (rc != 0 && rc != ENOENT)
        return rc;
    *n_slots = MIN((uint64_t)st.st_size / file->disk->slot_bytes, QE_KV_INDEX_SLOTS_MAX);
    *n_pages = 0;
    while (*n_pages < listing->n_pages && listing->slots[*n_pages] < *n_slots)
        (*n_pages)++;
    return 0;
}

static void run_open(qe_kv_disk_file *file, const disk_op *op)
{
    qe_kv_disk *self = file->disk;
    const qe_kv_index_identity identity = {self->digest, self->page_bytes, file->conversation};
    g_autofree char *name = file_name(file, ".index"), *pages_name = file_name(file, ".pages");
    g_autofree char *path = g_build_filename(self->dir, self->digest_hex, name, NULL);
    g_autoptr(GError) error = NULL;
    g_autofree uint8_t *data = NULL;
    g_autofree qe_kv_disk_listing *listing = g_new0(qe_kv_disk_listing, 1);
    size_t n_data = 0;
    uint32_t n_pages = 0;
    uint64_t n_slots = 0;
    file->opened = true;
    if (file->deleted) {
        qe_kv_disk_post(self, file, op, QE_KV_DISK_DROPPED, NULL, g_steal_pointer(&listing));
        return;
    }
    file->entry = qe_kv_disk_entry(self, self->digest_hex, file->stem, false, false);
    if (file->entry)
        file->entry->busy = true;
    qe_mutex_unlock(&self->lock);
    uint64_t n_max = qe_kv_index_bytes(QE_KV_DISK_PAGES_MAX, QE_MODEL_VOCAB_MAX);
    int rc = qe_kv_io_load(self->digest_fd, name, n_max, &data, &n_data);
    if (rc == ENOENT)
        qe_kv_io_unlink(self->digest_fd, pages_name); /* pages that no index names */
    else if (rc != 0)
        g_set_error(&error, QE_ERROR, QE_ERROR_FILE, "%s: cannot be read: %s", path, g_strerror(rc));
    else if (qe_kv_index_parse(path, data, n_data, &identity, listing, &error) &&
             (rc = open_pages(file, listing, &n_pages, &n_slots)) != 0) {
        qe_kv_disk_listing_clear(listing);
        g_set_error(&error, QE_ERROR, QE_ERROR_FILE, "%s/%s/%s: cannot be opened: %s", self->dir,
            self->digest_hex, pages_name, g_strerror(rc));
    }
    qe_mutex_lock(&self->lock);
    self->direct = self->direct && file->direct;
    if (error) {
        if (file->fd >= 0)
            close(file->fd);
        file->fd = -1;
        refuse_files(file, op, error);
        return;
    }
    if (rc == ENOENT) {
        if (file->entry)
            qe_kv_disk_entry_remove(self, file->entry);
        file->entry = NULL;
        qe_kv_disk_post(self, file, op, QE_KV_DISK_MISSING, NULL, g_steal_pointer(&listing));
        return;
    }
    uint32_t n_listed = listing->n_pages;
    adopt_listing(file, listing, n_pages, n_slots);
    self->n_damaged += n_pages < n_listed;
    char *message =
        n_pages < n_listed
            ? message_new(file,
                  "the page file is cut: the first %u of %u pages are kept, the rest is computed anew",
                  n_pages, n_listed)
            : NULL;
    qe_kv_disk_post(
        self, file, op, message ? QE_KV_DISK_DAMAGED : QE_KV_DISK_OK, message, g_steal_pointer(&listing));
}

static void remove_file(qe_kv_disk_file *file)
{
    qe_kv_disk *self = file->disk;
    g_ptr_array_remove(self->files, file); /* keeps the order */
    qe_kv_disk_file_free(file);
    qe_cond_broadcast(&self->cond);
}

static void run_close(qe_kv_disk_file *file, const disk_op *op)
{
    qe_kv_disk *self = file->disk;
    char *message;
    qe_kv_disk_status status = update_index(file, &message);
    if (file->entry && !file->deleted) {
        uint64_t bytes = 0;
        struct stat st;
        g_autofree char *name = file_name(file, ".index");
        disk_entry *entry = file->entry;
        qe_mutex_unlock(&self->lock);
        if (utimensat(self->digest_fd, name, NULL, AT_SYMLINK_NOFOLLOW) == 0 &&
            fstatat(self->digest_fd, name, &st, AT_SYMLINK_NOFOLLOW) == 0)
            bytes += round_up((uint64_t)st.st_size);
        if (file->fd >= 0 && fstat(file->fd, &st) == 0)
            bytes += round_up((uint64_t)st.st_size);
        qe_mutex_lock(&self->lock);
        entry->used_us = g_get_real_time();
        entry->n_slots = file->slots->len;
        qe_kv_disk_entry_count(self, entry, bytes);
        entry->busy = false;
        if (bytes == 0)
            qe_kv_disk_entry_remove(self, entry);
    } else if (file->entry)
        file->entry->busy = false;
    qe_kv_disk_post(self, file, op, status, message, NULL);
    remove_file(file);
}

/* Everything of the conversation goes: under any digest, and what was set aside. */
static void run_delete(qe_kv_disk_file *file, const disk_op *op)
{
    qe_kv_disk *self = file->disk;
    g_autoptr(GPtrArray) entries = g_ptr_array_new();
    int rc = 0;
    GHashTableIter iter;
    gpointer value;
    g_hash_table_iter_init(&iter, self->entries);
    while (g_hash_table_iter_next(&iter, NULL, &value)) {
        disk_entry *entry = value;
        if (g_str_has_suffix(entry->path, file->stem) && (!entry->busy || entry == file->entry)) {
            entry->busy = true;
            g_ptr_array_add(entries, entry);
        }
    }
    qe_mutex_unlock(&self->lock);
    for (guint i = 0; i < entries->len; i++) {
        const disk_entry *entry = entries->pdata[i];
        int one = unlink_entry(self, entry->path, entry->bad, entry->ours);
        rc = rc != 0 ? rc : one;
    }
    if (entries->len > 0)
        fsync(self->digest_fd);
    qe_mutex_lock(&self->lock);
    for (guint i = 0; i < entries->len; i++)
        qe_kv_disk_entry_remove(self, entries->pdata[i]);
    qe_kv_disk_status status = rc != 0             ? status_of(rc)
                               : entries->len == 0 ? QE_KV_DISK_MISSING
                                                   : QE_KV_DISK_OK;
    char *message = rc != 0 ? message_new(file, "deleting: %s", g_strerror(rc)) : NULL;
    qe_kv_disk_post(self, file, op, status, message, NULL);
    remove_file(file);
}

/* ---- Writes ---- */

static guint batch_pages_max(const qe_kv_disk *self)
{
    return (guint)CLAMP(QE_KV_DISK_BATCH_BYTES / self->slot_bytes, 1, QE_KV_DISK_BATCH_PAGES);
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
    g_autofree char *name = file_name(file, ".pages");
    qe_mutex_unlock(&self->lock);
    rc = qe_kv_io_open(self->digest_fd, name, true, &fd, &direct);
    if (rc == 0 && ftruncate(fd, 0) != 0) {
        rc = errno;
        close(fd);
    }
    qe_mutex_lock(&self->lock);
    if (rc != 0) {
        fail_first_write(
            file, status_of(rc), message_new(file, "the page file cannot be made: %s", g_strerror(rc)));
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
    while (slot < n_slots && !slot_is_free(file, slot))
        slot++;
    file->free_hint = slot;
    if (slot < n_slots) {
        guint run = 1;
        while (run < *n && slot + run < n_slots && slot_is_free(file, slot + run))
            run++;
        *n = run;
        *first = slot;
    } else {
        uint64_t has = own_entry(file)->bytes, bytes, need = 0;
        bool ok = false;
        for (guint ask = *n; !ok && ask > 0; ask = ask > 1 ? 1 : 0) {
            bytes = file_bytes(self, (uint64_t)n_slots + ask, file->n_logits);
            need = bytes > has ? bytes - has : 0;
            *n = ask;
            ok = (uint64_t)n_slots + ask <= QE_KV_INDEX_SLOTS_MAX && reserve(self, need);
        }
        if (!ok)
            return false;
        self->reserved_bytes -= need;
        *first = n_slots;
        g_array_set_size(file->slots, n_slots + *n);
        count_file(file, file->n_logits);
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
        fail_first_write(file, QE_KV_DISK_IO, message_new(file, "an earlier fdatasync failed"));
        return NULL;
    }
    if (g_queue_is_empty(&file->writes) || !ensure_fd(file))
        return NULL;
    n = MIN(MAX(file->writes.length, 1), batch_pages_max(self));
    if (!take_slots(file, &n, &first)) {
        char *message = self->quota_reported ? NULL
                                             : message_new(file,
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
    const qe_kv_disk *self, const disk_batch *batch, uint8_t *bounce, bool only_bounce, struct iovec *iov)
{
    for (guint i = 0; i < batch->n; i++) {
        const disk_op *op = batch->ops[i];
        uint8_t *memory = op->op == QE_KV_DISK_WRITE ? (uint8_t *)op->bytes : op->into;
        bool in_place =
            !only_bounce && self->page_bytes == self->slot_bytes && (uintptr_t)memory % QE_KV_DISK_ALIGN == 0;
        iov[i].iov_len = self->slot_bytes;
        iov[i].iov_base = in_place ? memory : bounce + i * self->slot_bytes;
        if (!in_place && op->op == QE_KV_DISK_WRITE) {
            memcpy(iov[i].iov_base, memory, self->page_bytes);
            memset((uint8_t *)iov[i].iov_base + self->page_bytes, 0, self->slot_bytes - self->page_bytes);
        }
    }
}

/* Runs the batch's request, without the lock. */
static int run_batch(qe_kv_disk_file *file, disk_batch *batch, uint8_t *bounce, bool *direct, guint *n_done)
{
    const qe_kv_disk *self = file->disk;
    bool writes = batch->op == QE_KV_DISK_WRITE;
    struct iovec iov[QE_KV_DISK_BATCH_PAGES];
    uint64_t offset = batch->slot * self->slot_bytes, bytes = 0;
    int rc = 0;
    bool only_bounce = false;
    fill_vector(self, batch, bounce, only_bounce, iov);
    rc = qe_kv_io_run(file->fd, writes, iov, (int)batch->n, offset, direct, &bytes);
    if (rc == EFAULT) { /* memory that the kernel cannot pin for direct I/O goes through the buffer */
        only_bounce = true;
        fill_vector(self, batch, bounce, only_bounce, iov);
        rc = qe_kv_io_run(file->fd, writes, iov, (int)batch->n, offset, direct, &bytes);
    }
    *n_done = (guint)(bytes / self->slot_bytes);
    if (writes)
        return rc;
    fill_vector(self, batch, bounce, only_bounce, iov); /* io_run has changed it */
    for (guint i = 0; i < *n_done; i++) {
        const disk_op *op = batch->ops[i];
        uint64_t found = qe_kv_disk_page_checksum(iov[i].iov_base, self->page_bytes, &op->key);
        if (found != batch->checksums[i])
            batch->status[i] = QE_KV_DISK_DAMAGED;
        else if (iov[i].iov_base != op->into)
            memcpy(op->into, iov[i].iov_base, self->page_bytes);
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
            qe_kv_disk_page_checksum(batch->ops[i]->bytes, self->page_bytes, &batch->ops[i]->key);
    int rc = run_batch(file, batch, bounce, &direct, &n_done);
    qe_mutex_lock(&self->lock);
    file->direct = file->direct && direct;
    self->direct = self->direct && direct;
    self->written_bytes += n_done * self->page_bytes;
    for (guint i = 0; i < batch->n; i++) {
        disk_slot *slot = &g_array_index(file->slots, disk_slot, batch->slot + i);
        slot->busy = 0;
        if (!slot->live && !slot->durable)
            file->free_hint = MIN(file->free_hint, batch->slot + i);
        batch->status[i] = i < n_done ? QE_KV_DISK_OK : i == n_done ? status_of(rc) : QE_KV_DISK_DROPPED;
    }
    batch->first_failed = n_done;
    if (n_done < batch->n) {
        const disk_op *failed = batch->ops[n_done];
        batch->message = message_new(file, "writing page %u: %s", failed->position, g_strerror(rc));
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
    guint n_max = batch_pages_max(file->disk);
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
    return message_new(file, "page %u: %s; it and the pages behind it are computed anew", op->position,
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
    self->read_bytes += n_done * self->page_bytes;
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
    const disk_entry *entry = qe_kv_disk_entry(self, self->digest_hex, file->stem, false, false);
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
        run_open(file, op);
        break;
    case QE_KV_DISK_DELETE:
        run_delete(file, op);
        return;
    case QE_KV_DISK_FLUSH: {
        char *message;
        qe_kv_disk_status status = update_index(file, &message);
        qe_kv_disk_post(file->disk, file, op, status, message, NULL);
        break;
    }
    default:
        run_close(file, op);
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
        reserve(self, 0);
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
                run_timed_index(file);
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
