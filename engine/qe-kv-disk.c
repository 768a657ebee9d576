/* qe-kv-disk.c: the owner's side of the disk store: its directory, the list of pages of each open conversation, and the
 * queues that the I/O threads (qe-kv-disk-work.c) empty. Invariants: qe-kv-disk-private.h.
 *
 * Functions run on the engine thread and hold the lock for memory operations only; new scans the directory. */
#include "engine/qe-kv-disk-private.h"
#include <errno.h>
#include <fcntl.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>
#include "engine/qe-kv-disk-io.h"
#include "engine/qe-limits.h"

const char *qe_kv_disk_status_name(qe_kv_disk_status status)
{
    static const char *const names[] = {
        "ok", "missing", "refused", "damaged", "dropped", "invalid", "quota", "no space", "i/o error"};
    g_assert((guint)status < G_N_ELEMENTS(names));
    return names[status];
}

/* ---- Completions ---- */

void qe_kv_disk_completion_clear(qe_kv_disk_completion *completion)
{
    if (completion->listing)
        qe_kv_disk_listing_clear(completion->listing);
    g_free(completion->listing);
    g_free(completion->message);
    memset(completion, 0, sizeof *completion);
}

void qe_kv_disk_post(qe_kv_disk *self, qe_kv_disk_file *file, const disk_op *op, qe_kv_disk_status status,
    char *message_taken, qe_kv_disk_listing *listing_taken)
{
    qe_kv_disk_completion *done = g_new0(qe_kv_disk_completion, 1);
    done->op = op->op;
    done->status = status;
    done->file = file->transient ? NULL : file;
    done->position = op->position;
    done->tag = op->tag;
    done->message = message_taken;
    done->listing = listing_taken;
    if (status == QE_KV_DISK_NO_SPACE || status == QE_KV_DISK_IO || status == QE_KV_DISK_QUOTA)
        self->n_errors++;
    self->news = self->news || g_queue_is_empty(&self->done);
    g_queue_push_tail(&self->done, done);
}

void qe_kv_disk_unlock(qe_kv_disk *self)
{
    bool news = self->news;
    self->news = false;
    qe_mutex_unlock(&self->lock);
    if (news && self->wakeup)
        self->wakeup(self->wakeup_user);
}

bool qe_kv_disk_poll(qe_kv_disk *self, qe_kv_disk_completion *out)
{
    qe_mutex_lock(&self->lock);
    g_autofree qe_kv_disk_completion *done = g_queue_pop_head(&self->done);
    qe_mutex_unlock(&self->lock);
    if (done)
        *out = *done;
    return done != NULL;
}

/* ---- The files in the directory ---- */

disk_entry *qe_kv_disk_entry(
    qe_kv_disk *self, const char *digest_hex, const char *stem, bool bad, bool create)
{
    g_autofree char *path = g_strdup_printf("%s/%s", digest_hex, stem);
    g_autofree char *name = g_strconcat(path, bad ? ".bad" : "", NULL);
    disk_entry *entry = g_hash_table_lookup(self->entries, name);
    if (!entry && create) {
        entry = g_new0(disk_entry, 1);
        entry->path = g_steal_pointer(&path);
        entry->bad = bad;
        for (uint32_t i = 0; i < self->n_kinds; i++)
            if (strcmp(digest_hex, self->kinds[i].hex) == 0)
                entry->kind = &self->kinds[i];
        g_hash_table_insert(self->entries, g_steal_pointer(&name), entry);
    }
    return entry;
}

void qe_kv_disk_entry_count(qe_kv_disk *self, disk_entry *entry, uint64_t bytes)
{
    self->used_bytes = self->used_bytes - entry->bytes + bytes;
    entry->bytes = bytes;
}

void qe_kv_disk_entry_remove(qe_kv_disk *self, disk_entry *entry)
{
    g_autofree char *name = g_strconcat(entry->path, entry->bad ? ".bad" : "", NULL);
    qe_kv_disk_entry_count(self, entry, 0);
    g_hash_table_remove(self->entries, name);
}

static void entry_free(gpointer data)
{
    disk_entry *entry = data;
    g_free(entry->path);
    g_free(entry);
}

static bool is_hex(const char *text, size_t n)
{
    for (size_t i = 0; i < n; i++)
        if (!g_ascii_isxdigit(text[i]) || g_ascii_isupper(text[i]))
            return false;
    return true;
}

/* A file of a digest's directory: counted, or removed when it is a temporary one. Other names are not ours to touch. */
static void scan_file(qe_kv_disk *self, int dir_fd, const char *digest_hex, const char *name)
{
    struct stat st;
    const char *suffix = name + 32;
    if (strlen(name) < 32 || !is_hex(name, 32) || fstatat(dir_fd, name, &st, AT_SYMLINK_NOFOLLOW) != 0 ||
        !S_ISREG(st.st_mode))
        return;
    if (strcmp(suffix, ".index.tmp") == 0) {
        qe_kv_io_unlink(dir_fd, name);
        return;
    }
    bool bad = g_str_has_suffix(suffix, ".bad");
    bool is_pages = g_str_has_prefix(suffix, ".pages");
    if (!(is_pages || g_str_has_prefix(suffix, ".index")) || strlen(suffix) != (bad ? 10 : 6))
        return;
    g_autofree char *stem = g_strndup(name, 32);
    disk_entry *entry = qe_kv_disk_entry(self, digest_hex, stem, bad, true);
    uint64_t bytes = ((uint64_t)st.st_size + QE_KV_DISK_ALIGN - 1) / QE_KV_DISK_ALIGN * QE_KV_DISK_ALIGN;
    qe_kv_disk_entry_count(self, entry, entry->bytes + bytes);
    gint64 used_us = (gint64)st.st_mtim.tv_sec * G_USEC_PER_SEC + st.st_mtim.tv_nsec / 1000;
    entry->used_us = MAX(entry->used_us, used_us);
    if (is_pages && entry->kind && !bad)
        entry->n_slots = (uint64_t)st.st_size / entry->kind->slot_bytes;
}

static bool scan(qe_kv_disk *self, GError **error)
{
    g_autoptr(GDir) root = g_dir_open(self->dir, 0, error);
    if (!root) {
        g_prefix_error(error, "%s: ", self->dir);
        return false;
    }
    for (const char *digest; (digest = g_dir_read_name(root)) != NULL;) {
        if (strlen(digest) != 2 * QE_KV_DISK_DIGEST_BYTES || !is_hex(digest, strlen(digest)))
            continue;
        g_autofree char *path = g_build_filename(self->dir, digest, NULL);
        g_autoptr(GDir) dir = g_dir_open(path, 0, NULL);
        int fd = openat(self->root_fd, digest, O_RDONLY | O_DIRECTORY | O_CLOEXEC | O_NOFOLLOW);
        for (const char *name; dir && fd >= 0 && (name = g_dir_read_name(dir)) != NULL;)
            scan_file(self, fd, digest, name);
        if (fd >= 0)
            close(fd);
    }
    return true;
}

static bool fail_path(GError **error, const char *path, const char *what, int code)
{
    g_set_error(error, QE_ERROR, code == EWOULDBLOCK ? QE_ERROR_BUSY : QE_ERROR_FILE, "%s: %s: %s", path,
        what, code == EWOULDBLOCK ? "another process uses it" : g_strerror(code));
    return false;
}

static bool open_kind(const qe_kv_disk *self, disk_kind *kind, GError **error)
{
    g_autofree char *path = g_build_filename(self->dir, kind->hex, NULL);
    if (mkdirat(self->root_fd, kind->hex, 0700) != 0 && errno != EEXIST)
        return fail_path(error, path, "the model's directory cannot be made", errno);
    kind->fd = openat(self->root_fd, kind->hex, O_RDONLY | O_DIRECTORY | O_CLOEXEC | O_NOFOLLOW);
    if (kind->fd < 0)
        return fail_path(error, path, "the model's directory cannot be opened", errno);
    if (faccessat(self->root_fd, kind->hex, W_OK | X_OK, AT_EACCESS) != 0)
        return fail_path(error, path, "the model's directory cannot be written", errno);
    return true;
}

static bool open_dirs(qe_kv_disk *self, GError **error)
{
    g_autofree char *lock_path = g_build_filename(self->dir, "lock", NULL);
    if (mkdir(self->dir, 0700) != 0 && errno != EEXIST)
        return fail_path(error, self->dir, "the directory for KV pages cannot be made", errno);
    self->root_fd = open(self->dir, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (self->root_fd < 0)
        return fail_path(error, self->dir, "the directory for KV pages cannot be opened", errno);
    self->lock_fd = openat(self->root_fd, "lock", O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0600);
    if (self->lock_fd < 0)
        return fail_path(error, lock_path, "the lock file cannot be opened", errno);
    if (flock(self->lock_fd, LOCK_EX | LOCK_NB) != 0)
        return fail_path(error, lock_path, "the directory for KV pages cannot be locked", errno);
    for (uint32_t i = 0; i < self->n_kinds; i++)
        if (!open_kind(self, &self->kinds[i], error))
            return false;
    return true;
}

static void set_kind(disk_kind *kind, const qe_kv_disk_kind *wanted)
{
    GString *hex = g_string_new(NULL);
    for (guint i = 0; i < QE_KV_DISK_DIGEST_BYTES; i++)
        g_string_append_printf(hex, "%02x", wanted->digest[i]);
    kind->hex = g_string_free(hex, FALSE);
    memcpy(kind->digest, wanted->digest, sizeof kind->digest);
    kind->page_bytes = wanted->page_bytes;
    kind->slot_bytes = (wanted->page_bytes + QE_KV_DISK_ALIGN - 1) / QE_KV_DISK_ALIGN * QE_KV_DISK_ALIGN;
    kind->fd = -1;
}

qe_kv_disk *qe_kv_disk_new(const char *dir, uint64_t quota_bytes, const qe_kv_disk_kind *kinds,
    uint32_t n_kinds, qe_kv_disk_wakeup wakeup, void *user, GError **error)
{
    qe_kv_disk *self;
    g_assert(n_kinds >= 1 && n_kinds <= QE_KV_DISK_KINDS_MAX);
    for (uint32_t i = 0; i < n_kinds; i++) {
        if (kinds[i].page_bytes == 0 || kinds[i].page_bytes > QE_KV_DISK_PAGE_BYTES_MAX) {
            g_set_error(error, QE_ERROR, QE_ERROR_INVALID,
                "%s: pages of %" G_GUINT64_FORMAT " bytes; expected 1..%llu", dir, kinds[i].page_bytes,
                QE_KV_DISK_PAGE_BYTES_MAX);
            return NULL;
        }
    }
    self = g_new0(qe_kv_disk, 1);
    qe_mutex_init(&self->lock);
    qe_cond_init(&self->cond);
    self->dir = g_strdup(dir);
    self->bounce_bytes = QE_KV_DISK_BATCH_BYTES;
    for (uint32_t i = 0; i < n_kinds; i++) {
        set_kind(&self->kinds[i], &kinds[i]);
        self->bounce_bytes = MAX(self->bounce_bytes, self->kinds[i].slot_bytes);
    }
    self->n_kinds = n_kinds;
    self->quota_bytes = quota_bytes;
    self->wakeup = wakeup;
    self->wakeup_user = user;
    self->direct = true;
    self->root_fd = self->lock_fd = -1;
    self->files = g_ptr_array_new();
    self->entries = g_hash_table_new_full(g_str_hash, g_str_equal, g_free, entry_free);
    if (!open_dirs(self, error) || !scan(self, error))
        goto fail;
    for (int i = 0; i < QE_KV_DISK_THREADS; i++) {
        void *map =
            mmap(NULL, self->bounce_bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        if (map == MAP_FAILED) {
            g_set_error(error, QE_ERROR, QE_ERROR_NO_MEMORY,
                "%s: no memory for %" G_GUINT64_FORMAT " bytes of buffer", dir, self->bounce_bytes);
            goto fail;
        }
        self->bounce[i] = map;
    }
    self->trim = self->used_bytes > self->quota_bytes;
    for (int i = 0; i < QE_KV_DISK_THREADS; i++) {
        self->threads[i] = g_thread_try_new("kv-disk", qe_kv_disk_work, self, error);
        if (!self->threads[i])
            goto fail;
    }
    return self;
fail:
    qe_kv_disk_free(self);
    return NULL;
}

void qe_kv_disk_free(qe_kv_disk *self)
{
    if (!self)
        return;
    qe_mutex_lock(&self->lock);
    self->stop = true;
    for (guint i = 0; i < self->files->len; i++) {
        qe_kv_disk_file *file = self->files->pdata[i];
        qe_kv_disk_drop_queued(file);
        if (!file->closing) {
            disk_op *op = g_new0(disk_op, 1);
            op->op = QE_KV_DISK_CLOSE;
            file->closing = true;
            g_queue_push_tail(&file->controls, op);
        }
    }
    qe_cond_broadcast(&self->cond);
    qe_mutex_unlock(&self->lock);
    for (int i = 0; i < QE_KV_DISK_THREADS; i++)
        if (self->threads[i])
            g_thread_join(self->threads[i]);
    g_assert(self->files->len == 0);
    for (qe_kv_disk_completion *done; (done = g_queue_pop_head(&self->done)) != NULL; g_free(done))
        qe_kv_disk_completion_clear(done);
    for (int i = 0; i < QE_KV_DISK_THREADS; i++)
        if (self->bounce[i])
            munmap(self->bounce[i], self->bounce_bytes);
    for (uint32_t i = 0; i < self->n_kinds; i++) {
        if (self->kinds[i].fd >= 0)
            close(self->kinds[i].fd);
        g_free(self->kinds[i].hex);
    }
    const int fds[] = {self->lock_fd, self->root_fd};
    for (guint i = 0; i < G_N_ELEMENTS(fds); i++)
        if (fds[i] >= 0)
            close(fds[i]);
    g_hash_table_unref(self->entries);
    g_ptr_array_unref(self->files);
    qe_cond_clear(&self->cond);
    qe_mutex_clear(&self->lock);
    g_free(self->dir);
    g_free(self);
}

/* ---- A file's list ---- */

disk_page *qe_kv_disk_page_of(qe_kv_disk_file *file, uint32_t position, uint64_t serial)
{
    disk_page *page = position < file->list->len ? file->list->pdata[position] : NULL;
    return page && page->serial == serial ? page : NULL;
}

void qe_kv_disk_forget_logits(qe_kv_disk_file *file)
{
    g_clear_pointer(&file->logits, g_free);
    file->n_logits = file->logits_n_tokens = 0;
}

void qe_kv_disk_cut(qe_kv_disk_file *file, uint32_t n_pages)
{
    if (n_pages >= file->list->len)
        return;
    for (guint i = n_pages; i < file->list->len; i++) {
        disk_page *page = file->list->pdata[i];
        g_hash_table_remove(file->by_key, &page->page.key);
        if (page->state != PAGE_QUEUED) {
            g_array_index(file->slots, disk_slot, page->slot).live = 0;
            file->free_hint = MIN(file->free_hint, page->slot);
            file->index_dirty = file->index_dirty || page->state == PAGE_WRITTEN;
        }
    }
    g_ptr_array_set_size(file->list, (gint)n_pages);
    if (file->logits_n_tokens / QE_PAGE_KEY_TOKENS > n_pages)
        qe_kv_disk_forget_logits(file);
}

void qe_kv_disk_drop_queued(qe_kv_disk_file *file)
{
    uint32_t n_started = 0;
    for (disk_op *op; (op = g_queue_pop_head(&file->reads)) != NULL; g_free(op))
        qe_kv_disk_post(file->disk, file, op, QE_KV_DISK_DROPPED, NULL, NULL);
    for (disk_op *op; (op = g_queue_pop_head(&file->writes)) != NULL; g_free(op))
        qe_kv_disk_post(file->disk, file, op, QE_KV_DISK_DROPPED, NULL, NULL);
    while (n_started < file->list->len && ((disk_page *)file->list->pdata[n_started])->state != PAGE_QUEUED)
        n_started++;
    qe_kv_disk_cut(file, n_started);
}

static qe_kv_disk_file *file_new(qe_kv_disk *self, uint32_t kind, const char *conversation)
{
    qe_kv_disk_file *file = g_new0(qe_kv_disk_file, 1);
    g_autofree char *hash = g_compute_checksum_for_string(G_CHECKSUM_SHA256, conversation, -1);
    file->disk = self;
    file->kind = &self->kinds[kind];
    file->conversation = g_strdup(conversation);
    file->stem = g_strndup(hash, 32);
    file->fd = -1;
    file->direct = true;
    file->damaged_from = UINT32_MAX;
    file->list = g_ptr_array_new_with_free_func(g_free);
    file->by_key = g_hash_table_new(qe_page_key_hash_func, qe_page_key_equal_func);
    file->slots = g_array_new(FALSE, TRUE, sizeof(disk_slot));
    file->next_serial = 1;
    return file;
}

void qe_kv_disk_file_free(qe_kv_disk_file *file)
{
    g_assert(g_queue_is_empty(&file->reads) && g_queue_is_empty(&file->writes));
    g_assert(g_queue_is_empty(&file->write_batches) && file->n_running == 0);
    g_queue_clear_full(&file->controls, g_free);
    if (file->fd >= 0)
        close(file->fd);
    g_ptr_array_unref(file->list);
    g_hash_table_unref(file->by_key);
    g_array_unref(file->slots);
    g_free(file->logits);
    g_free(file->conversation);
    g_free(file->stem);
    g_free(file);
}

static bool check_conversation(const char *conversation, GError **error)
{
    size_t n = strlen(conversation);
    if (n >= 1 && n <= QE_KV_DISK_CONVERSATION_MAX && g_utf8_validate(conversation, (gssize)n, NULL))
        return true;
    g_set_error(error, QE_ERROR, QE_ERROR_INVALID,
        "conversation key: expected UTF-8 of 1..%u bytes, found %zu%s", QE_KV_DISK_CONVERSATION_MAX, n,
        n >= 1 && n <= QE_KV_DISK_CONVERSATION_MAX ? " that are not UTF-8" : "");
    return false;
}

static void push_control(qe_kv_disk_file *file, qe_kv_disk_op kind, void *tag)
{
    disk_op *op = g_new0(disk_op, 1);
    op->op = kind;
    op->serial = file->next_serial;
    op->tag = tag;
    g_queue_push_tail(&file->controls, op);
    qe_cond_broadcast(&file->disk->cond);
}

qe_kv_disk_file *qe_kv_disk_open(
    qe_kv_disk *self, uint32_t kind, const char *conversation, void *tag, GError **error)
{
    qe_kv_disk_file *file = NULL;
    guint n_open = 0;
    bool is_open = false;
    g_assert(kind < self->n_kinds);
    if (!check_conversation(conversation, error))
        return NULL;
    qe_mutex_lock(&self->lock);
    for (guint i = 0; i < self->files->len; i++) {
        const qe_kv_disk_file *other = self->files->pdata[i];
        n_open += !other->closing;
        is_open = is_open || (!other->closing && strcmp(other->conversation, conversation) == 0);
    }
    if (is_open || n_open >= QE_KV_DISK_OPEN_MAX)
        g_set_error(error, QE_ERROR, QE_ERROR_BUSY, "%s: %s", self->dir,
            is_open ? "the conversation is open already" : "too many conversations are open");
    else {
        file = file_new(self, kind, conversation);
        g_ptr_array_add(self->files, file);
        push_control(file, QE_KV_DISK_OPEN, tag);
    }
    qe_kv_disk_unlock(self);
    return file;
}

/* Why the page cannot be appended, or OK. */
static qe_kv_disk_status check_append(
    const qe_kv_disk_file *file, uint32_t position, const qe_kv_disk_page *page)
{
    const qe_page_key expected = qe_page_key_child(&page->parent, page->ids);
    if (!file->opened || position != file->list->len || position >= QE_KV_DISK_PAGES_MAX)
        return QE_KV_DISK_INVALID;
    if (!qe_page_key_equal(&expected, &page->key))
        return QE_KV_DISK_INVALID;
    if (position > 0) {
        const disk_page *before = file->list->pdata[position - 1];
        return qe_page_key_equal(&before->page.key, &page->parent) ? QE_KV_DISK_OK : QE_KV_DISK_INVALID;
    }
    return QE_KV_DISK_OK;
}

/* Whether @page, the one that the tokens before the logits end in or at, goes on from them. */
static bool logits_precede(const qe_kv_disk_file *file, const qe_kv_disk_page *page)
{
    uint32_t n_tail = file->logits_n_tokens % QE_PAGE_KEY_TOKENS;
    return memcmp(file->tail_ids, page->ids, n_tail * sizeof *page->ids) == 0;
}

void qe_kv_disk_write(qe_kv_disk *self, qe_kv_disk_file *file, uint32_t position, const qe_kv_disk_page *page,
    const void *bytes, void *tag)
{
    disk_op *op = g_new0(disk_op, 1);
    op->op = QE_KV_DISK_WRITE;
    op->position = position;
    op->bytes = bytes;
    op->key = page->key;
    op->tag = tag;
    qe_mutex_lock(&self->lock);
    /* Behind a write that failed, those already on their way here are not the caller's mistake. */
    qe_kv_disk_status status = check_append(file, position, page);
    if (status != QE_KV_DISK_OK && file->opened && position > file->list->len)
        status = QE_KV_DISK_DROPPED;
    if (status != QE_KV_DISK_OK) {
        qe_kv_disk_post(self, file, op, status, NULL, NULL);
        g_free(op);
    } else {
        disk_page *new_page = g_new0(disk_page, 1);
        new_page->page = *page;
        new_page->position = position;
        new_page->serial = op->serial = file->next_serial++;
        new_page->state = PAGE_QUEUED;
        g_ptr_array_add(file->list, new_page);
        g_hash_table_replace(file->by_key, &new_page->page.key, new_page);
        if (position >= file->damaged_from)
            file->damaged_from = UINT32_MAX;
        if (position == file->logits_n_tokens / QE_PAGE_KEY_TOKENS && !logits_precede(file, page))
            qe_kv_disk_forget_logits(file);
        g_queue_push_tail(&file->writes, op);
        qe_cond_broadcast(&self->cond);
    }
    qe_kv_disk_unlock(self);
}

void qe_kv_disk_read(
    qe_kv_disk *self, qe_kv_disk_file *file, uint32_t position, const qe_page_key *key, void *into, void *tag)
{
    disk_op *op = g_new0(disk_op, 1);
    op->op = QE_KV_DISK_READ;
    op->position = position;
    op->key = *key;
    op->into = into;
    op->tag = tag;
    qe_mutex_lock(&self->lock);
    const disk_page *page = position < file->list->len ? file->list->pdata[position] : NULL;
    if (!page || !qe_page_key_equal(&page->page.key, key)) {
        qe_kv_disk_status status = page                             ? QE_KV_DISK_INVALID
                                   : position >= file->damaged_from ? QE_KV_DISK_DAMAGED
                                                                    : QE_KV_DISK_DROPPED;
        qe_kv_disk_post(self, file, op, status, NULL, NULL);
        g_free(op);
    } else {
        op->serial = page->serial;
        g_queue_push_tail(&file->reads, op);
        qe_cond_broadcast(&self->cond);
    }
    qe_kv_disk_unlock(self);
}

void qe_kv_disk_truncate(qe_kv_disk *self, qe_kv_disk_file *file, uint32_t n_pages)
{
    qe_mutex_lock(&self->lock);
    qe_kv_disk_cut(file, n_pages);
    if (n_pages <= file->damaged_from)
        file->damaged_from = UINT32_MAX;
    qe_cond_broadcast(&self->cond);
    qe_kv_disk_unlock(self);
}

bool qe_kv_disk_set_logits(qe_kv_disk *self, qe_kv_disk_file *file, uint32_t n_tokens,
    const uint32_t *tail_ids, const float *logits, uint32_t n)
{
    const uint32_t at = n_tokens / QE_PAGE_KEY_TOKENS, n_tail = n_tokens % QE_PAGE_KEY_TOKENS;
    qe_mutex_lock(&self->lock);
    const disk_page *page = at < file->list->len ? file->list->pdata[at] : NULL;
    bool ok = file->opened && n <= QE_MODEL_VOCAB_MAX &&
              (n == 0 || (at <= file->list->len &&
                             (!page || memcmp(page->page.ids, tail_ids, n_tail * sizeof *tail_ids) == 0)));
    if (ok && (n > 0 || file->logits)) {
        qe_kv_disk_forget_logits(file);
        file->logits = n > 0 ? g_memdup2(logits, n * sizeof *logits) : NULL;
        file->n_logits = n;
        file->logits_n_tokens = n > 0 ? n_tokens : 0;
        memset(file->tail_ids, 0, sizeof file->tail_ids);
        if (n > 0 && n_tail > 0)
            memcpy(file->tail_ids, tail_ids, n_tail * sizeof *tail_ids);
        file->index_dirty = true;
        qe_cond_broadcast(&self->cond);
    }
    qe_kv_disk_unlock(self);
    return ok;
}

float *qe_kv_disk_dup_logits(
    qe_kv_disk *self, qe_kv_disk_file *file, uint32_t n_tokens, const uint32_t *tail_ids, uint32_t n)
{
    float *logits = NULL;
    qe_mutex_lock(&self->lock);
    if (file->logits && file->n_logits == n && file->logits_n_tokens == n_tokens &&
        memcmp(file->tail_ids, tail_ids, n_tokens % QE_PAGE_KEY_TOKENS * sizeof *tail_ids) == 0)
        logits = g_memdup2(file->logits, n * sizeof *logits);
    qe_mutex_unlock(&self->lock);
    return logits;
}

void qe_kv_disk_flush(qe_kv_disk *self, qe_kv_disk_file *file, void *tag)
{
    qe_mutex_lock(&self->lock);
    push_control(file, QE_KV_DISK_FLUSH, tag);
    qe_kv_disk_unlock(self);
}

void qe_kv_disk_close(qe_kv_disk *self, qe_kv_disk_file *file, void *tag)
{
    qe_mutex_lock(&self->lock);
    file->closing = true;
    push_control(file, QE_KV_DISK_CLOSE, tag);
    qe_kv_disk_unlock(self);
}

bool qe_kv_disk_delete(qe_kv_disk *self, const char *conversation, void *tag, GError **error)
{
    qe_kv_disk_file *target = NULL;
    if (!check_conversation(conversation, error))
        return false;
    qe_mutex_lock(&self->lock);
    for (guint i = 0; i < self->files->len; i++) {
        qe_kv_disk_file *file = self->files->pdata[i];
        if (strcmp(file->conversation, conversation) != 0)
            continue;
        qe_kv_disk_drop_queued(file);
        file->deleted = true;
        if (!file->closing)
            target = file;
    }
    if (!target) { /* not open, or on its way to be closed: a DELETE of its own comes after */
        target = file_new(self, 0, conversation);
        target->transient = target->deleted = true;
        g_ptr_array_add(self->files, target);
    }
    target->closing = true;
    push_control(target, QE_KV_DISK_DELETE, tag);
    qe_kv_disk_unlock(self);
    return true;
}

/* ---- Questions ---- */

uint32_t qe_kv_disk_n_pages(qe_kv_disk *self, qe_kv_disk_file *file)
{
    qe_mutex_lock(&self->lock);
    uint32_t n = file->list->len;
    qe_mutex_unlock(&self->lock);
    return n;
}

bool qe_kv_disk_find(qe_kv_disk *self, const qe_page_key *key, qe_kv_disk_file **file, uint32_t *position)
{
    bool found = false;
    qe_mutex_lock(&self->lock);
    for (guint i = 0; i < self->files->len && !found; i++) {
        qe_kv_disk_file *f = self->files->pdata[i];
        const disk_page *page = f->closing || !f->opened ? NULL : g_hash_table_lookup(f->by_key, key);
        if (page && page->state == PAGE_WRITTEN) {
            *file = f;
            *position = page->position;
            found = true;
        }
    }
    qe_mutex_unlock(&self->lock);
    return found;
}

void qe_kv_disk_set_quota(qe_kv_disk *self, uint64_t quota_bytes)
{
    qe_mutex_lock(&self->lock);
    self->quota_bytes = quota_bytes;
    self->quota_reported = false;
    self->trim = true;
    qe_cond_broadcast(&self->cond);
    qe_kv_disk_unlock(self);
}

void qe_kv_disk_get_usage(qe_kv_disk *self, qe_kv_disk_usage *out)
{
    GHashTableIter iter;
    gpointer value;
    memset(out, 0, sizeof *out);
    qe_mutex_lock(&self->lock);
    out->quota_bytes = self->quota_bytes;
    out->used_bytes = self->used_bytes;
    g_hash_table_iter_init(&iter, self->entries);
    while (g_hash_table_iter_next(&iter, NULL, &value)) {
        const disk_entry *entry = value;
        out->n_pages += entry->kind && !entry->bad ? entry->n_slots : 0;
        out->n_conversations += entry->kind && !entry->bad && entry->bytes > 0;
    }
    for (guint i = 0; i < self->files->len; i++) {
        qe_kv_disk_file *file = self->files->pdata[i];
        out->n_open += !file->closing;
        out->n_pending += file->reads.length + file->writes.length + file->n_running;
    }
    out->read_bytes = self->read_bytes;
    out->written_bytes = self->written_bytes;
    out->n_pages_read = self->n_pages_read;
    out->n_pages_written = self->n_pages_written;
    out->n_indices = self->n_indices;
    out->n_evicted = self->n_evicted;
    out->n_errors = self->n_errors;
    out->n_refused = self->n_refused;
    out->n_damaged = self->n_damaged;
    out->direct = self->direct;
    qe_mutex_unlock(&self->lock);
}

uint64_t qe_kv_disk_slot_bytes(const qe_kv_disk *self, uint32_t kind)
{
    return self->kinds[kind].slot_bytes;
}
