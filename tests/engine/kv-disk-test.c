/* kv-disk-test.c: see kv-disk-test.h. */
#include "tests/engine/kv-disk-test.h"
#include <glib/gstdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

static void count_wakeup(void *user)
{
    g_atomic_int_inc((gint *)user);
}

void test_store_init(test_store *self, uint64_t page_bytes, uint64_t quota)
{
    g_autoptr(GError) error = NULL;
    memset(self, 0, sizeof *self);
    g_autofree char *top = g_dir_make_tmp("quire-kv-disk-XXXXXX", &error);
    g_assert_no_error(error);
    self->dir = g_build_filename(top, "kv", NULL);
    self->page_bytes = page_bytes;
    self->quota = quota;
    memset(self->digest, 0x5a, sizeof self->digest);
    self->memory = g_ptr_array_new_with_free_func(free);
    test_store_open(self);
}

void test_store_open(test_store *self)
{
    g_autoptr(GError) error = NULL;
    const qe_kv_disk_kind kind = {self->digest, self->page_bytes};
    self->disk = qe_kv_disk_new(self->dir, self->quota, &kind, 1, count_wakeup, &self->n_wakeups, &error);
    g_assert_no_error(error);
}

void test_store_shut(test_store *self)
{
    g_clear_pointer(&self->disk, qe_kv_disk_free);
}

static void remove_tree(const char *path)
{
    g_autoptr(GDir) dir = g_dir_open(path, 0, NULL);
    for (const char *name; dir && (name = g_dir_read_name(dir)) != NULL;) {
        g_autofree char *child = g_build_filename(path, name, NULL);
        remove_tree(child);
    }
    g_remove(path);
}

void test_store_clear(test_store *self)
{
    g_autofree char *top = g_path_get_dirname(self->dir);
    test_store_shut(self);
    remove_tree(top);
    g_free(self->dir);
    g_ptr_array_unref(self->memory);
}

uint8_t *test_store_memory(test_store *self, bool aligned)
{
    uint8_t *p = aligned_alloc(4096, (self->page_bytes + 8191) / 4096 * 4096);
    g_assert_nonnull(p);
    memset(p, 0, self->page_bytes + 1);
    g_ptr_array_add(self->memory, p);
    return aligned ? p : p + 1;
}

qe_kv_disk_completion test_store_next(test_store *self)
{
    qe_kv_disk_completion done;
    for (gint64 end = g_get_monotonic_time() + 60 * G_USEC_PER_SEC; !qe_kv_disk_poll(self->disk, &done);) {
        if (g_get_monotonic_time() > end)
            g_error("no completion within a minute");
        g_usleep(200);
    }
    return done;
}

qe_kv_disk_status test_store_wait(test_store *self, qe_kv_disk_op op)
{
    qe_kv_disk_completion done = test_store_next(self);
    qe_kv_disk_status status = done.status;
    g_assert_cmpint(done.op, ==, op);
    qe_kv_disk_completion_clear(&done);
    return status;
}

qe_kv_disk_file *test_store_load(test_store *self, const char *conversation, qe_kv_disk_completion *out)
{
    g_autoptr(GError) error = NULL;
    qe_kv_disk_file *file = qe_kv_disk_open(self->disk, 0, conversation, self, &error);
    g_assert_no_error(error);
    *out = test_store_next(self);
    g_assert_cmpint(out->op, ==, QE_KV_DISK_OPEN);
    g_assert_true(out->file == file && out->tag == self && out->listing != NULL);
    return file;
}

qe_kv_disk_file *test_store_expect(
    test_store *self, const char *conversation, qe_kv_disk_status status, uint32_t n_pages, char **message)
{
    qe_kv_disk_completion done;
    qe_kv_disk_file *file = test_store_load(self, conversation, &done);
    if (done.message)
        g_test_message("%s", done.message);
    g_assert_cmpstr(qe_kv_disk_status_name(done.status), ==, qe_kv_disk_status_name(status));
    g_assert_cmpuint(done.listing->n_pages, ==, n_pages);
    if (message)
        *message = g_steal_pointer(&done.message);
    qe_kv_disk_completion_clear(&done);
    return file;
}

void test_store_close(test_store *self, qe_kv_disk_file *file)
{
    qe_kv_disk_close(self->disk, file, NULL);
    g_assert_cmpint(test_store_wait(self, QE_KV_DISK_CLOSE), ==, QE_KV_DISK_OK);
}

qe_kv_disk_page test_page(uint32_t seed, uint32_t position, const qe_page_key *parent)
{
    qe_kv_disk_page page = {.parent = *parent};
    for (uint32_t i = 0; i < QE_PAGE_KEY_TOKENS; i++)
        page.ids[i] = (seed * 7919 + position * 16 + i) % 151936;
    page.key = qe_page_key_child(parent, page.ids);
    return page;
}

qe_kv_disk_page test_page_at(uint32_t seed, uint32_t position)
{
    qe_page_key parent = {{1, 2, 3}};
    qe_kv_disk_page page = test_page(seed, 0, &parent);
    for (uint32_t i = 1; i <= position; i++)
        page = test_page(seed, i, &page.key);
    return page;
}

void test_fill(uint8_t *bytes, uint64_t n, uint32_t seed, uint32_t position)
{
    uint64_t state = (uint64_t)seed << 32 | position;
    for (uint64_t i = 0; i < n; i += 8) { /* splitmix64 (Steele, Lea, Flood 2014) */
        uint64_t z = state += 0x9e3779b97f4a7c15u;
        z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
        z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
        z ^= z >> 31;
        memcpy(bytes + i, &z, MIN(8, n - i));
    }
}

void test_store_write(test_store *self, qe_kv_disk_file *file, uint32_t seed, uint32_t from, uint32_t to)
{
    for (uint32_t i = from; i < to; i++) {
        uint8_t *bytes = test_store_memory(self, i % 3 != 0);
        qe_kv_disk_page page = test_page_at(seed, i);
        test_fill(bytes, self->page_bytes, seed, i);
        qe_kv_disk_write(self->disk, file, i, &page, bytes, bytes);
    }
    for (uint32_t i = from; i < to; i++) {
        qe_kv_disk_completion done = test_store_next(self);
        g_assert_cmpint(done.op, ==, QE_KV_DISK_WRITE);
        g_assert_cmpstr(done.message, ==, NULL);
        g_assert_cmpint(done.status, ==, QE_KV_DISK_OK);
        g_assert_cmpuint(done.position, ==, i); /* in order */
        qe_kv_disk_completion_clear(&done);
    }
}

qe_kv_disk_status test_store_read(test_store *self, qe_kv_disk_file *file, uint32_t seed, uint32_t position)
{
    uint8_t *into = test_store_memory(self, position % 2 == 0);
    g_autofree uint8_t *expected = g_malloc(self->page_bytes);
    qe_kv_disk_page page = test_page_at(seed, position);
    qe_kv_disk_read(self->disk, file, position, &page.key, into, into);
    qe_kv_disk_completion done = test_store_next(self);
    qe_kv_disk_status status = done.status;
    g_assert_cmpint(done.op, ==, QE_KV_DISK_READ);
    g_assert_true(done.tag == into && done.position == position);
    test_fill(expected, self->page_bytes, seed, position);
    if (status == QE_KV_DISK_OK)
        g_assert_cmpmem(into, self->page_bytes, expected, self->page_bytes);
    qe_kv_disk_completion_clear(&done);
    return status;
}

void test_store_read_all(test_store *self, qe_kv_disk_file *file, uint32_t seed, uint32_t n)
{
    for (uint32_t i = 0; i < n; i++)
        g_assert_cmpint(test_store_read(self, file, seed, i), ==, QE_KV_DISK_OK);
}

char *test_store_path(test_store *self, const char *conversation, const char *suffix)
{
    g_autofree char *hash = g_compute_checksum_for_string(G_CHECKSUM_SHA256, conversation, -1);
    GString *path = g_string_new(self->dir);
    g_string_append_c(path, '/');
    for (guint i = 0; i < QE_KV_DISK_DIGEST_BYTES; i++)
        g_string_append_printf(path, "%02x", self->digest[i]);
    g_string_append_printf(path, "/%.32s%s", hash, suffix);
    return g_string_free(path, FALSE);
}

static uint64_t tree_bytes(const char *path)
{
    struct stat st;
    uint64_t bytes = 0;
    if (lstat(path, &st) != 0)
        return 0;
    if (!S_ISDIR(st.st_mode))
        return MAX((uint64_t)st.st_size, (uint64_t)st.st_blocks * 512);
    g_autoptr(GDir) dir = g_dir_open(path, 0, NULL);
    for (const char *name; dir && (name = g_dir_read_name(dir)) != NULL;) {
        g_autofree char *child = g_build_filename(path, name, NULL);
        bytes += tree_bytes(child);
    }
    return bytes;
}

uint64_t test_store_disk_bytes(test_store *self)
{
    return tree_bytes(self->dir);
}
