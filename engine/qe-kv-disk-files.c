/* qe-kv-disk-files.c: what the disk store does with whole files: room within the quota and eviction, replacing an index,
 * opening, closing and deleting a conversation. Runs on an I/O thread that has the file for itself ("exclusive"), with
 * the lock held but during work on the disk. Invariants: qe-kv-disk-private.h. */
#include "engine/qe-kv-disk-private.h"
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <sys/stat.h>
#include <unistd.h>
#include "engine/qe-kv-disk-io.h"
#include "engine/qe-limits.h"

static uint64_t round_up(uint64_t n)
{
    return (n + QE_KV_DISK_ALIGN - 1) / QE_KV_DISK_ALIGN * QE_KV_DISK_ALIGN;
}

qe_kv_disk_status qe_kv_disk_status_of(int code)
{
    return code == ENOSPC || code == EDQUOT || code == EFBIG ? QE_KV_DISK_NO_SPACE : QE_KV_DISK_IO;
}

char *qe_kv_disk_file_name(const qe_kv_disk_file *file, const char *suffix)
{
    return g_strconcat(file->stem, suffix, NULL);
}

char *qe_kv_disk_message(const qe_kv_disk_file *file, const char *format, ...)
{
    va_list args;
    va_start(args, format);
    g_autofree char *text = g_strdup_vprintf(format, args);
    va_end(args);
    return g_strdup_printf("%s/%s/%s: %s", file->disk->dir, file->kind->hex, file->stem, text);
}

/* ---- Room: the quota and eviction ---- */

/* What a file with so many slots may come to: the index is there twice while it is replaced. */
uint64_t qe_kv_disk_file_bytes(const qe_kv_disk_file *file, uint64_t n_slots, uint64_t n_logits)
{
    return n_slots * file->kind->slot_bytes + 2 * round_up(qe_kv_index_bytes(n_slots, n_logits));
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
bool qe_kv_disk_reserve(qe_kv_disk *self, uint64_t need)
{
    while (self->used_bytes + self->reserved_bytes + need > self->quota_bytes) {
        disk_entry *victim = find_victim(self);
        if (victim) {
            victim->busy = true;
            self->n_evicting++;
            qe_mutex_unlock(&self->lock);
            int rc = unlink_entry(self, victim->path, victim->bad, victim->kind != NULL);
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

disk_entry *qe_kv_disk_own_entry(qe_kv_disk_file *file)
{
    if (!file->entry) {
        file->entry = qe_kv_disk_entry(file->disk, file->kind->hex, file->stem, false, true);
        file->entry->busy = true;
    }
    return file->entry;
}

void qe_kv_disk_count_file(qe_kv_disk_file *file, uint32_t n_logits)
{
    disk_entry *entry = qe_kv_disk_own_entry(file);
    entry->n_slots = file->slots->len;
    qe_kv_disk_entry_count(file->disk, entry, qe_kv_disk_file_bytes(file, file->slots->len, n_logits));
}

bool qe_kv_disk_slot_is_free(const qe_kv_disk_file *file, uint32_t slot)
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
    if (file->logits && file->logits_n_tokens / QE_PAGE_KEY_TOKENS <= n) {
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
    uint64_t bytes = qe_kv_disk_file_bytes(file, file->slots->len, n_logits),
             has = qe_kv_disk_own_entry(file)->bytes;
    uint64_t need = bytes > has ? bytes - has : 0;
    if (!qe_kv_disk_reserve(self, need))
        return false;
    self->reserved_bytes -= need;
    qe_kv_disk_count_file(file, n_logits);
    return true;
}

/* The tail of the page file that nothing needs goes back to the file system. */
static void shrink(qe_kv_disk_file *file, uint32_t n_logits)
{
    uint32_t n = file->slots->len;
    if (!g_queue_is_empty(&file->writes) || file->fd < 0)
        return;
    while (n > 0 && qe_kv_disk_slot_is_free(file, n - 1))
        n--;
    if (n == file->slots->len)
        return;
    qe_mutex_unlock(&file->disk->lock);
    int rc = ftruncate(file->fd, (off_t)(n * file->kind->slot_bytes));
    qe_mutex_lock(&file->disk->lock);
    if (rc == 0) {
        g_array_set_size(file->slots, n);
        file->free_hint = MIN(file->free_hint, n);
        qe_kv_disk_count_file(file, n_logits);
    }
}

/* Syncs the page file and replaces the index, without the lock. */
static int write_index(qe_kv_disk_file *file, const qe_kv_disk_listing *listing, const char **step)
{
    const qe_kv_index_identity identity = {file->kind->digest, file->kind->page_bytes, file->conversation};
    g_autofree char *name = qe_kv_disk_file_name(file, ".index"),
                    *temp = qe_kv_disk_file_name(file, ".index.tmp");
    *step = "fdatasync of the page file";
    if (file->fd >= 0 && fdatasync(file->fd) != 0) {
        int code = errno;
        file->sync_failed = true;
        return code;
    }
    g_autofree uint8_t *data = qe_kv_index_encode(&identity, listing);
    return qe_kv_io_replace(file->kind->fd, name, temp, data,
        (size_t)qe_kv_index_bytes(listing->n_pages, listing->n_logits), step);
}

/* Makes the index name what is there. Runs exclusively; gives the lock up meanwhile. */
qe_kv_disk_status qe_kv_disk_update_index(qe_kv_disk_file *file, char **message)
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
        *message = qe_kv_disk_message(file, "an earlier fdatasync failed; nothing more is stored");
        return QE_KV_DISK_IO;
    }
    if (!file->entry && file->list->len == 0 && !file->logits) {
        file->index_dirty = false;
        file->index_due = 0;
        return QE_KV_DISK_OK;
    }
    if (file->entry)
        shrink(file, file->n_logits); /* on a full disk this makes the room for the index */
    if (!reserve_index(file, file->n_logits)) {
        if (file->logits) {
            const disk_op op = {.op = QE_KV_DISK_LOGITS};
            qe_kv_disk_post(self, file, &op, QE_KV_DISK_QUOTA,
                qe_kv_disk_message(file, "no room within the quota for the last logits"), NULL);
            qe_kv_disk_forget_logits(file);
        }
        if (!reserve_index(file, 0)) {
            *message = qe_kv_disk_message(file, "no room within the quota for the index");
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
        *message = qe_kv_disk_message(file, "%s: %s", step, g_strerror(rc));
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
    return rc == 0 ? QE_KV_DISK_OK : qe_kv_disk_status_of(rc);
}

void qe_kv_disk_run_timed_index(qe_kv_disk_file *file)
{
    char *message;
    qe_kv_disk_status status = qe_kv_disk_update_index(file, &message);
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
        g_autofree char *from = qe_kv_disk_file_name(file, suffixes[i]),
                        *to = g_strconcat(from, ".bad", NULL);
        if (renameat(file->kind->fd, from, file->kind->fd, to) != 0 && errno != ENOENT) {
            ok = false;
            qe_kv_io_unlink(file->kind->fd, from);
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
    disk_entry *bad = qe_kv_disk_entry(self, file->kind->hex, file->stem, true, true);
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
        if (entry->bad && entry->kind == file->kind && !entry->busy) {
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
        listing->n_pages = n_pages;
    }
    if (listing->logits_n_tokens / QE_PAGE_KEY_TOKENS > n_pages) {
        g_clear_pointer(&listing->logits, g_free);
        listing->n_logits = listing->logits_n_tokens = listing->n_tail = 0;
    }
    if (listing->logits) {
        file->logits = g_memdup2(listing->logits, listing->n_logits * sizeof(float));
        file->n_logits = listing->n_logits;
        file->logits_n_tokens = listing->logits_n_tokens;
        memcpy(file->tail_ids, listing->tail_ids, sizeof file->tail_ids);
    }
    qe_kv_disk_count_file(file, file->n_logits);
}

/* Opens the page file and says how many pages of the listing lie within it. 0 or an errno value. */
static int open_pages(
    qe_kv_disk_file *file, const qe_kv_disk_listing *listing, uint32_t *n_pages, uint64_t *n_slots)
{
    struct stat st = {0};
    g_autofree char *name = qe_kv_disk_file_name(file, ".pages");
    int rc = qe_kv_io_open(file->kind->fd, name, false, &file->fd, &file->direct);
    if (rc == 0 && fstat(file->fd, &st) != 0)
        rc = errno;
    if (rc == 0 && !S_ISREG(st.st_mode))
        rc = EISDIR;
    if (rc != 0 && rc != ENOENT)
        return rc;
    *n_slots = MIN((uint64_t)st.st_size / file->kind->slot_bytes, QE_KV_INDEX_SLOTS_MAX);
    *n_pages = 0;
    while (*n_pages < listing->n_pages && listing->slots[*n_pages] < *n_slots)
        (*n_pages)++;
    return 0;
}

void qe_kv_disk_run_open(qe_kv_disk_file *file, const disk_op *op)
{
    qe_kv_disk *self = file->disk;
    const qe_kv_index_identity identity = {file->kind->digest, file->kind->page_bytes, file->conversation};
    g_autofree char *name = qe_kv_disk_file_name(file, ".index"),
                    *pages_name = qe_kv_disk_file_name(file, ".pages");
    g_autofree char *path = g_build_filename(self->dir, file->kind->hex, name, NULL);
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
    file->entry = qe_kv_disk_entry(self, file->kind->hex, file->stem, false, false);
    if (file->entry)
        file->entry->busy = true;
    qe_mutex_unlock(&self->lock);
    uint64_t n_max = qe_kv_index_bytes(QE_KV_DISK_PAGES_MAX, QE_MODEL_VOCAB_MAX);
    int rc = qe_kv_io_load(file->kind->fd, name, n_max, &data, &n_data);
    if (rc == ENOENT)
        qe_kv_io_unlink(file->kind->fd, pages_name); /* pages that no index names */
    else if (rc != 0)
        g_set_error(&error, QE_ERROR, QE_ERROR_FILE, "%s: cannot be read: %s", path, g_strerror(rc));
    else if (qe_kv_index_parse(path, data, n_data, &identity, listing, &error) &&
             (rc = open_pages(file, listing, &n_pages, &n_slots)) != 0) {
        qe_kv_disk_listing_clear(listing);
        g_set_error(&error, QE_ERROR, QE_ERROR_FILE, "%s/%s/%s: cannot be opened: %s", self->dir,
            file->kind->hex, pages_name, g_strerror(rc));
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
            ? qe_kv_disk_message(file,
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

void qe_kv_disk_run_close(qe_kv_disk_file *file, const disk_op *op)
{
    qe_kv_disk *self = file->disk;
    char *message;
    qe_kv_disk_status status = qe_kv_disk_update_index(file, &message);
    if (file->entry && !file->deleted) {
        uint64_t bytes = 0;
        struct stat st;
        g_autofree char *name = qe_kv_disk_file_name(file, ".index");
        disk_entry *entry = file->entry;
        qe_mutex_unlock(&self->lock);
        if (utimensat(file->kind->fd, name, NULL, AT_SYMLINK_NOFOLLOW) == 0 &&
            fstatat(file->kind->fd, name, &st, AT_SYMLINK_NOFOLLOW) == 0)
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
void qe_kv_disk_run_delete(qe_kv_disk_file *file, const disk_op *op)
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
        int one = unlink_entry(self, entry->path, entry->bad, entry->kind != NULL);
        rc = rc != 0 ? rc : one;
    }
    for (uint32_t i = 0; i < self->n_kinds && entries->len > 0; i++)
        fsync(self->kinds[i].fd);
    qe_mutex_lock(&self->lock);
    for (guint i = 0; i < entries->len; i++)
        qe_kv_disk_entry_remove(self, entries->pdata[i]);
    qe_kv_disk_status status = rc != 0             ? qe_kv_disk_status_of(rc)
                               : entries->len == 0 ? QE_KV_DISK_MISSING
                                                   : QE_KV_DISK_OK;
    char *message = rc != 0 ? qe_kv_disk_message(file, "deleting: %s", g_strerror(rc)) : NULL;
    qe_kv_disk_post(self, file, op, status, message, NULL);
    remove_file(file);
}
