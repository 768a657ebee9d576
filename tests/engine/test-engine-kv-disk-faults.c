/* test-engine-kv-disk-faults.c: the disk store against damage, other models' and conversations' files, full disks, quotas,
 * directories that cannot be used, and kill -9. Each ends in a status with a message, and costs a prefill at most. */
#include <errno.h>
#include <fcntl.h>
#include <glib/gstdio.h>
#include <signal.h>
#include <string.h>
#include <sys/mount.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>
#include "engine/qe-kv-disk-index.h"
#include "tests/engine/kv-disk-test.h"

static GBytes *load(const char *path)
{
    char *data;
    gsize n;
    g_autoptr(GError) error = NULL;
    g_file_get_contents(path, &data, &n, &error);
    g_assert_no_error(error);
    return g_bytes_new_take(data, n);
}

static void save(const char *path, const void *data, gsize n)
{
    int fd = open(path, O_WRONLY | O_CREAT | O_TRUNC, 0600);
    g_assert_cmpint(fd, >=, 0);
    g_assert_cmpint(write(fd, data, n), ==, (gssize)n);
    close(fd);
}

/* A conversation of @n pages and logits, closed; the bytes of its files. */
static void make_stored(
    test_store *s, const char *conversation, uint32_t seed, uint32_t n, GBytes **index, GBytes **pages)
{
    const float logits[] = {1, -2, 3.5f};
    const uint32_t tail[] = {5};
    g_autofree char *index_path = test_store_path(s, conversation, ".index");
    g_autofree char *pages_path = test_store_path(s, conversation, ".pages");
    qe_kv_disk_file *file = test_store_expect(s, conversation, QE_KV_DISK_MISSING, 0, NULL);
    test_store_write(s, file, seed, 0, n);
    g_assert_true(qe_kv_disk_set_logits(s->disk, file, 16 * n + 1, tail, logits, 3));
    test_store_close(s, file);
    if (index)
        *index = load(index_path);
    if (pages)
        *pages = load(pages_path);
}

static void test_flipped_data(void)
{
    test_store s;
    qe_kv_disk_completion done;
    qe_kv_disk_usage usage;
    g_autoptr(GBytes) pages = NULL;
    test_store_init(&s, 5000, TEST_QUOTA);
    make_stored(&s, "c", 1, 8, NULL, &pages);
    g_autofree char *path = test_store_path(&s, "c", ".pages");
    g_autofree uint8_t *data = g_memdup2(g_bytes_get_data(pages, NULL), g_bytes_get_size(pages));
    g_assert_cmpuint(g_bytes_get_size(pages), ==, 8 * 8192);
    data[3 * 8192 + 4999] ^= 0x10;
    save(path, data, 8 * 8192);
    qe_kv_disk_file *file = test_store_expect(&s, "c", QE_KV_DISK_OK, 8, NULL);
    g_assert_cmpint(test_store_read(&s, file, 1, 4), ==, QE_KV_DISK_OK);
    qe_kv_disk_page page = test_page_at(1, 3);
    uint8_t *into = test_store_memory(&s, true);
    qe_kv_disk_read(s.disk, file, 3, &page.key, into, NULL);
    done = test_store_next(&s);
    g_assert_cmpint(done.status, ==, QE_KV_DISK_DAMAGED);
    g_assert_nonnull(strstr(done.message, "page 3"));
    g_assert_nonnull(strstr(done.message, "checksum"));
    qe_kv_disk_completion_clear(&done);
    for (uint32_t i = 3; i < 8; i++) /* all behind it too, though their bytes are right */
        g_assert_cmpint(test_store_read(&s, file, 1, i), ==, QE_KV_DISK_DAMAGED);
    for (uint32_t i = 0; i < 3; i++)
        g_assert_cmpint(test_store_read(&s, file, 1, i), ==, QE_KV_DISK_OK);
    g_assert_cmpuint(qe_kv_disk_n_pages(s.disk, file), ==, 3);
    qe_kv_disk_get_usage(s.disk, &usage);
    g_assert_cmpuint(usage.n_damaged, ==, 1);
    test_store_close(&s, file);
    file = test_store_expect(&s, "c", QE_KV_DISK_OK, 3, NULL);
    test_store_write(&s, file, 1, 3, 8); /* computed anew */
    test_store_read_all(&s, file, 1, 8);
    test_store_clear(&s);
}

/* Every byte of an index counts. */
static void test_flipped_index(void)
{
    test_store s;
    g_autoptr(GBytes) index = NULL, pages = NULL;
    g_autoptr(GHashTable) checks = g_hash_table_new_full(g_str_hash, g_str_equal, g_free, NULL);
    test_store_init(&s, 4096, TEST_QUOTA);
    make_stored(&s, "c", 1, 3, &index, &pages);
    g_autofree char *index_path = test_store_path(&s, "c", ".index"),
                    *pages_path = test_store_path(&s, "c", ".pages");
    g_autofree char *bad_path = test_store_path(&s, "c", ".index.bad");
    gsize n = g_bytes_get_size(index);
    g_assert_cmpuint(n, ==, qe_kv_index_bytes(3, 3));
    for (gsize at = 0; at < n; at++) {
        g_autofree uint8_t *data = g_memdup2(g_bytes_get_data(index, NULL), n);
        g_autofree char *message = NULL;
        data[at] ^= (uint8_t)(1u << (at % 8));
        save(index_path, data, n);
        save(pages_path, g_bytes_get_data(pages, NULL), g_bytes_get_size(pages));
        qe_kv_disk_file *file = test_store_expect(&s, "c", QE_KV_DISK_REFUSED, 0, &message);
        g_assert_nonnull(strstr(message, index_path));
        g_assert_nonnull(strstr(message, "set aside"));
        g_assert_false(g_file_test(index_path, G_FILE_TEST_EXISTS));
        g_assert_true(g_file_test(bad_path, G_FILE_TEST_EXISTS));
        g_hash_table_add(checks, g_strdup(message + strlen(index_path)));
        test_store_close(&s, file);
    }
    g_assert_cmpuint(g_hash_table_size(checks), >, 8); /* different checks found them */
    for (gsize cut = 0; cut < n; cut += cut < 300 ? 37 : 11) {
        save(index_path, g_bytes_get_data(index, NULL), cut);
        test_store_close(&s, test_store_expect(&s, "c", QE_KV_DISK_REFUSED, 0, NULL));
    }
    /* What is right is taken still, and a conversation that was refused can be stored again. */
    save(index_path, g_bytes_get_data(index, NULL), n);
    save(pages_path, g_bytes_get_data(pages, NULL), g_bytes_get_size(pages));
    qe_kv_disk_file *file = test_store_expect(&s, "c", QE_KV_DISK_OK, 3, NULL);
    test_store_read_all(&s, file, 1, 3);
    test_store_clear(&s);
}

static void test_cut_pages(void)
{
    test_store s;
    g_autoptr(GBytes) pages = NULL, index = NULL;
    test_store_init(&s, 4096, TEST_QUOTA);
    make_stored(&s, "c", 1, 6, &index, &pages);
    g_autofree char *path = test_store_path(&s, "c", ".pages"),
                    *index_path = test_store_path(&s, "c", ".index");
    for (uint32_t keep = 0; keep < 6; keep++) {
        g_autofree char *message = NULL;
        save(index_path, g_bytes_get_data(index, NULL), g_bytes_get_size(index));
        save(path, g_bytes_get_data(pages, NULL), keep * 4096 + 4000); /* in the middle of a page */
        if (keep == 0)
            g_unlink(path);
        qe_kv_disk_file *file = test_store_expect(&s, "c", QE_KV_DISK_DAMAGED, keep, &message);
        g_assert_nonnull(strstr(message, "cut"));
        test_store_read_all(&s, file, 1, keep);
        g_assert_cmpint(test_store_read(&s, file, 1, keep), ==, QE_KV_DISK_DROPPED);
        test_store_write(&s, file, 1, keep, 8);
        test_store_close(&s, file);
        file = test_store_expect(&s, "c", QE_KV_DISK_OK, 8, NULL);
        test_store_read_all(&s, file, 1, 8);
        test_store_close(&s, file);
    }
    test_store_clear(&s);
}

/* Well-formed files of something else: another model, conversation, page size, version; pages of another one. */
static void test_foreign_files(void)
{
    test_store s;
    g_autoptr(GBytes) other_model = NULL, other_index = NULL, other_pages = NULL, index = NULL;
    g_autofree char *message = NULL, *m2 = NULL, *m3 = NULL, *m4 = NULL;
    test_store_init(&s, 4096, TEST_QUOTA);
    s.digest[31] ^= 1;
    test_store_shut(&s);
    test_store_open(&s);
    make_stored(&s, "c", 1, 3, &other_model, NULL);
    s.digest[31] ^= 1;
    test_store_shut(&s);
    test_store_open(&s);
    test_store_close(&s, test_store_expect(&s, "c", QE_KV_DISK_MISSING, 0, NULL)); /* not found under ours */
    make_stored(&s, "d", 2, 3, &other_index, &other_pages);
    make_stored(&s, "c", 1, 3, &index, NULL);
    g_autofree char *path = test_store_path(&s, "c", ".index"), *pages = test_store_path(&s, "c", ".pages");
    save(path, g_bytes_get_data(other_model, NULL), g_bytes_get_size(other_model));
    test_store_close(&s, test_store_expect(&s, "c", QE_KV_DISK_REFUSED, 0, &message));
    g_assert_nonnull(strstr(message, "digest"));
    save(path, g_bytes_get_data(other_index, NULL), g_bytes_get_size(other_index));
    save(pages, g_bytes_get_data(other_pages, NULL), g_bytes_get_size(other_pages));
    test_store_close(&s, test_store_expect(&s, "c", QE_KV_DISK_REFUSED, 0, &m2));
    g_assert_nonnull(strstr(m2, "another conversation"));
    gsize n = g_bytes_get_size(index);
    g_autofree uint8_t *data = g_memdup2(g_bytes_get_data(index, NULL), n);
    data[8]++;
    save(path, data, n);
    test_store_close(&s, test_store_expect(&s, "c", QE_KV_DISK_REFUSED, 0, &m3));
    g_assert_nonnull(strstr(m3, "version"));
    /* Only the pages are another conversation's: the index opens, every read is refused. */
    save(path, g_bytes_get_data(index, NULL), n);
    save(pages, g_bytes_get_data(other_pages, NULL), g_bytes_get_size(other_pages));
    qe_kv_disk_file *file = test_store_expect(&s, "c", QE_KV_DISK_OK, 3, NULL);
    g_assert_cmpint(test_store_read(&s, file, 1, 0), ==, QE_KV_DISK_DAMAGED);
    test_store_close(&s, file);
    file = test_store_expect(&s, "d", QE_KV_DISK_OK, 3, NULL); /* it never noticed */
    test_store_read_all(&s, file, 2, 3);
    test_store_close(&s, file);
    save(path, g_bytes_get_data(index, NULL), n);
    s.page_bytes = 4090;
    test_store_shut(&s);
    test_store_open(&s);
    test_store_close(&s, test_store_expect(&s, "c", QE_KV_DISK_REFUSED, 0, &m4));
    g_assert_nonnull(strstr(m4, "page bytes"));
    test_store_clear(&s);
}

/* One set-aside conversation is kept, and it counts. */
static void test_one_bad_kept(void)
{
    test_store s;
    qe_kv_disk_usage usage;
    test_store_init(&s, 4096, TEST_QUOTA);
    for (int i = 0; i < 3; i++) {
        g_autofree char *name = g_strdup_printf("c%d", i), *path = test_store_path(&s, name, ".index");
        make_stored(&s, name, 1, 4, NULL, NULL);
        save(path, "short", 5);
        test_store_close(&s, test_store_expect(&s, name, QE_KV_DISK_REFUSED, 0, NULL));
    }
    g_autofree char *first = test_store_path(&s, "c1", ".pages.bad"),
                    *last = test_store_path(&s, "c2", ".pages.bad");
    g_assert_false(g_file_test(first, G_FILE_TEST_EXISTS));
    g_assert_true(g_file_test(last, G_FILE_TEST_EXISTS));
    qe_kv_disk_get_usage(s.disk, &usage);
    g_assert_cmpuint(usage.n_refused, ==, 3);
    g_assert_cmpuint(usage.used_bytes, >=, 4 * 4096);
    g_assert_cmpuint(usage.used_bytes, <=, 8 * 4096);
    test_store_shut(&s);
    test_store_open(&s);
    qe_kv_disk_get_usage(s.disk, &usage);
    g_assert_cmpuint(usage.used_bytes, >=, 4 * 4096);
    qe_kv_disk_set_quota(s.disk, 0);
    for (int i = 0; i < 1000 && usage.used_bytes > 0; i++) {
        g_usleep(5000);
        qe_kv_disk_get_usage(s.disk, &usage);
    }
    g_assert_cmpuint(usage.used_bytes, ==, 0);
    g_assert_false(g_file_test(last, G_FILE_TEST_EXISTS));
    test_store_clear(&s);
}

static void test_quota(void)
{
    test_store s;
    qe_kv_disk_usage usage;
    g_autoptr(GError) error = NULL;
    const uint64_t quota = 100 * 4096;
    test_store_init(&s, 4096, quota);
    s.digest[0] ^= 1; /* of another model: the oldest */
    test_store_shut(&s);
    test_store_open(&s);
    make_stored(&s, "other", 1, 20, NULL, NULL);
    g_autofree char *other = test_store_path(&s, "other", ".index");
    s.digest[0] ^= 1;
    test_store_shut(&s);
    g_usleep(20000); /* the clock of a file system is coarse */
    test_store_open(&s);
    make_stored(&s, "a", 1, 20, NULL, NULL);
    make_stored(&s, "b", 2, 20, NULL, NULL);
    test_store_close(&s, test_store_expect(&s, "a", QE_KV_DISK_OK, 20, NULL)); /* b is older than a now */
    g_autofree char *a = test_store_path(&s, "a", ".index"), *b = test_store_path(&s, "b", ".index");
    qe_kv_disk_file *file = test_store_expect(&s, "big", QE_KV_DISK_MISSING, 0, NULL);
    for (uint32_t i = 0; i < 90; i++) {
        test_store_write(&s, file, 3, i, i + 1);
        qe_kv_disk_get_usage(s.disk, &usage);
        g_assert_cmpuint(usage.used_bytes, <=, quota);
        g_assert_cmpuint(test_store_disk_bytes(&s), <=, quota);
        g_assert_true(g_file_test(other, G_FILE_TEST_EXISTS) || i > 20);
        g_assert_true(g_file_test(b, G_FILE_TEST_EXISTS) || !g_file_test(other, G_FILE_TEST_EXISTS));
        g_assert_true(g_file_test(a, G_FILE_TEST_EXISTS) || !g_file_test(b, G_FILE_TEST_EXISTS));
    }
    g_assert_cmpuint(usage.n_evicted, ==, 3);
    int n_messages = 0;
    for (uint32_t i = 0; i < 10; i++) { /* nothing left to go; the list stays where it is */
        uint32_t n = qe_kv_disk_n_pages(s.disk, file);
        qe_kv_disk_page page = test_page_at(3, n);
        uint8_t *bytes = test_store_memory(&s, true);
        test_fill(bytes, s.page_bytes, 3, n);
        qe_kv_disk_write(s.disk, file, n, &page, bytes, NULL);
        qe_kv_disk_completion done = test_store_next(&s);
        g_assert_true(done.status == QE_KV_DISK_OK || done.status == QE_KV_DISK_QUOTA);
        n_messages += done.message != NULL;
        g_assert_true(done.status == QE_KV_DISK_QUOTA || i < 9);
        qe_kv_disk_completion_clear(&done);
        g_assert_cmpuint(test_store_disk_bytes(&s), <=, quota);
    }
    g_assert_cmpint(n_messages, ==, 1); /* reported once */
    uint32_t n = qe_kv_disk_n_pages(s.disk, file);
    test_store_read_all(&s, file, 3, n);
    test_store_close(&s, file);
    g_assert_cmpuint(test_store_disk_bytes(&s), <=, quota);
    file = test_store_expect(&s, "big", QE_KV_DISK_OK, n, NULL);
    test_store_read_all(&s, file, 3, n);
    test_store_clear(&s);
}

/* A file may not grow past a limit: the write says so, the list keeps what was written. */
static void check_full(test_store *s, uint32_t n_fit_max)
{
    qe_kv_disk_file *file = test_store_expect(s, "c", QE_KV_DISK_MISSING, 0, NULL);
    uint32_t n_ok = 0, n_full = 0;
    qe_kv_disk_status statuses[64];
    for (uint32_t i = 0; i < 64; i++) {
        qe_kv_disk_page page = test_page_at(1, i);
        uint8_t *bytes = test_store_memory(s, true);
        test_fill(bytes, s->page_bytes, 1, i);
        qe_kv_disk_write(s->disk, file, i, &page, bytes, NULL);
    }
    for (uint32_t i = 0; i < 64; i++) {
        qe_kv_disk_completion done = test_store_next(s);
        g_assert_cmpint(done.op, ==, QE_KV_DISK_WRITE);
        statuses[done.position] = done.status;
        g_assert_true((done.message != NULL) == (done.status == QE_KV_DISK_NO_SPACE));
        n_ok += done.status == QE_KV_DISK_OK;
        n_full += done.status == QE_KV_DISK_NO_SPACE;
        qe_kv_disk_completion_clear(&done);
    }
    for (uint32_t i = 0; i < 64; i++) /* one that failed, all before it stored, all behind it dropped */
        g_assert_cmpint(statuses[i], ==,
            i < n_ok    ? QE_KV_DISK_OK
            : i == n_ok ? QE_KV_DISK_NO_SPACE
                        : QE_KV_DISK_DROPPED);
    g_assert_cmpuint(n_full, ==, 1);
    g_assert_cmpuint(n_ok, <=, n_fit_max);
    g_assert_cmpuint(n_ok, >, 0);
    g_assert_cmpuint(qe_kv_disk_n_pages(s->disk, file), ==, n_ok);
    test_store_read_all(s, file, 1, n_ok);
    qe_kv_disk_truncate(s->disk, file, n_ok - 1); /* room for an index */
    qe_kv_disk_close(s->disk, file, NULL);
    qe_kv_disk_status status = test_store_wait(s, QE_KV_DISK_CLOSE);
    g_test_message("%u pages fit; close: %s", n_ok, qe_kv_disk_status_name(status));
    if (status == QE_KV_DISK_OK) {
        file = test_store_expect(s, "c", QE_KV_DISK_OK, n_ok - 1, NULL);
        test_store_read_all(s, file, 1, n_ok - 1);
    } else {
        g_assert_cmpint(status, ==, QE_KV_DISK_NO_SPACE);
        test_store_expect(s, "c", QE_KV_DISK_MISSING, 0, NULL);
    }
}

static void test_file_limit(void)
{
    test_store s;
    struct rlimit old, limit;
    test_store_init(&s, 65536, TEST_QUOTA);
    signal(SIGXFSZ, SIG_IGN);
    getrlimit(RLIMIT_FSIZE, &old);
    limit = old;
    limit.rlim_cur = 20 * 65536 + 100;
    g_assert_cmpint(setrlimit(RLIMIT_FSIZE, &limit), ==, 0);
    check_full(&s, 20);
    setrlimit(RLIMIT_FSIZE, &old);
    test_store_clear(&s);
}

static void test_full_disk(void)
{
    test_store s;
    g_autoptr(GError) error = NULL;
    g_autofree char *top = g_dir_make_tmp("quire-kv-full-XXXXXX", &error);
    if (mount("tmpfs", top, "tmpfs", 0, "size=2m") != 0) {
        g_rmdir(top);
        g_test_skip("no right to mount a small file system");
        return;
    }
    test_store_init(&s, 65536, TEST_QUOTA);
    char *dir = s.dir;
    test_store_shut(&s);
    s.dir = g_build_filename(top, "kv", NULL);
    test_store_open(&s);
    check_full(&s, 32);
    test_store_shut(&s);
    g_free(s.dir);
    s.dir = dir;
    g_assert_cmpint(umount(top), ==, 0);
    g_rmdir(top);
    test_store_clear(&s);
}

static void expect_no_store(const char *dir, int code, const char *text)
{
    const uint8_t digest[QE_KV_DISK_DIGEST_BYTES] = {1};
    g_autoptr(GError) error = NULL;
    qe_kv_disk *disk =
        qe_kv_disk_new(dir, TEST_QUOTA, &(qe_kv_disk_kind){digest, 4096}, 1, NULL, NULL, &error);
    g_assert_null(disk);
    g_assert_error(error, QE_ERROR, code);
    g_test_message("%s", error->message);
    g_assert_nonnull(strstr(error->message, dir));
    g_assert_nonnull(strstr(error->message, text));
}

static void test_unusable_directory(void)
{
    test_store s;
    test_store_init(&s, 4096, TEST_QUOTA);
    g_autofree char *file = g_build_filename(s.dir, "file", NULL),
                    *below = g_build_filename(file, "kv", NULL);
    g_autofree char *deep = g_build_filename(s.dir, "no", "such", NULL);
    expect_no_store(s.dir, QE_ERROR_BUSY, "another process"); /* this one has it */
    test_store_shut(&s);
    save(file, "x", 1);
    expect_no_store(file, QE_ERROR_FILE, "cannot be opened");
    expect_no_store(below, QE_ERROR_FILE, "cannot be made");
    expect_no_store(deep, QE_ERROR_FILE, "cannot be made");
    pid_t child = fork(); /* as somebody who may not */
    if (child == 0) {
        if (getuid() != 0)
            g_chmod(s.dir, 0);
        else if (setgid(65534) != 0 || setuid(65534) != 0)
            _exit(77);
        expect_no_store(s.dir, QE_ERROR_FILE, "denied");
        _exit(0);
    }
    int status;
    g_assert_cmpint(waitpid(child, &status, 0), ==, child);
    g_chmod(s.dir, 0700);
    g_assert_true(WIFEXITED(status) && (WEXITSTATUS(status) == 0 || WEXITSTATUS(status) == 77));
    test_store_open(&s);
    test_store_clear(&s);
}

static void test_left_overs(void)
{
    test_store s;
    qe_kv_disk_usage usage;
    test_store_init(&s, 4096, TEST_QUOTA);
    make_stored(&s, "c", 1, 2, NULL, NULL);
    g_autofree char *temp = test_store_path(&s, "x", ".index.tmp"),
                    *orphan = test_store_path(&s, "y", ".pages");
    g_autofree char *note = g_build_filename(s.dir, "note.txt", NULL);
    test_store_shut(&s);
    save(temp, "half", 4);
    save(orphan, "pages without an index", 22);
    save(note, "not ours", 8);
    test_store_open(&s);
    g_assert_false(g_file_test(temp, G_FILE_TEST_EXISTS));
    g_assert_true(g_file_test(note, G_FILE_TEST_EXISTS));
    qe_kv_disk_get_usage(s.disk, &usage);
    g_assert_cmpuint(usage.n_conversations, ==, 2);
    test_store_close(&s, test_store_expect(&s, "y", QE_KV_DISK_MISSING, 0, NULL));
    g_assert_false(g_file_test(orphan, G_FILE_TEST_EXISTS));
    test_store_close(&s, test_store_expect(&s, "c", QE_KV_DISK_OK, 2, NULL));
    test_store_clear(&s);
}

/* ---- kill -9 (QUIRE_KILL_ROUNDS times) ---- */

typedef struct { /* what the child has been told is durable; n 0: a rewind follows */
    uint32_t n;
    qe_page_key key;
} promise;

static void fill_by_ids(uint8_t *bytes, uint64_t n, const qe_kv_disk_page *page, uint32_t position)
{
    test_fill(bytes, n, page->ids[0], position);
}

/* Appends, branches off and flushes until it is killed. */
static void child_main(test_store *s, uint32_t round, int out)
{
    g_autoptr(GRand) rand = g_rand_new_with_seed(round);
    qe_kv_disk_completion done;
    g_autoptr(GArray) keys = g_array_new(FALSE, FALSE, sizeof(qe_page_key));
    test_store_open(s);
    qe_kv_disk_file *file = test_store_load(s, "killed", &done);
    for (uint32_t i = 0; i < done.listing->n_pages; i++)
        g_array_append_val(keys, done.listing->pages[i].key);
    qe_kv_disk_completion_clear(&done);
    for (uint32_t seed = round * 1000;; seed++) {
        promise p = {0};
        uint32_t n_more = (uint32_t)g_rand_int_range(rand, 1, 12);
        if (g_rand_int_range(rand, 0, 4) == 0 || keys->len > 300) {
            uint32_t n = keys->len * (uint32_t)g_rand_int_range(rand, 0, 10) / 10;
            g_assert_cmpint(write(out, &p, sizeof p), ==, sizeof p);
            qe_kv_disk_truncate(s->disk, file, n);
            g_array_set_size(keys, n);
        }
        for (uint32_t i = 0; i < n_more; i++) {
            qe_page_key root = {{7}},
                        *parent = keys->len > 0 ? &g_array_index(keys, qe_page_key, keys->len - 1) : &root;
            qe_kv_disk_page page = test_page(seed, keys->len, parent);
            uint8_t *bytes = test_store_memory(s, i % 2 == 0);
            fill_by_ids(bytes, s->page_bytes, &page, keys->len);
            qe_kv_disk_write(s->disk, file, keys->len, &page, bytes, NULL);
            g_array_append_val(keys, page.key);
        }
        float logits[64] = {(float)seed};
        g_assert_true(qe_kv_disk_set_logits(s->disk, file, keys->len * 16, NULL, logits, 64));
        qe_kv_disk_flush(s->disk, file, NULL);
        for (bool flushed = false; !flushed;) {
            done = test_store_next(s);
            g_assert_cmpint(done.status, ==, QE_KV_DISK_OK);
            flushed = done.op == QE_KV_DISK_FLUSH;
            qe_kv_disk_completion_clear(&done);
        }
        g_ptr_array_set_size(s->memory, 0);
        p.n = keys->len;
        p.key = g_array_index(keys, qe_page_key, keys->len - 1);
        g_assert_cmpint(write(out, &p, sizeof p), ==, sizeof p);
    }
}

/* Everything that the index names has the bytes that its ids demand, and what was promised is there. */
static uint32_t check_survivors(test_store *s, const promise *promised)
{
    qe_kv_disk_completion done;
    g_autofree uint8_t *expected = g_malloc(s->page_bytes);
    test_store_open(s);
    qe_kv_disk_file *file = test_store_load(s, "killed", &done);
    uint32_t n = done.listing->n_pages;
    g_assert_true(done.status == QE_KV_DISK_OK || (done.status == QE_KV_DISK_MISSING && promised->n == 0));
    for (uint32_t i = 0; i < n; i++) {
        uint8_t *into = test_store_memory(s, i % 2 == 0);
        qe_kv_disk_read(s->disk, file, i, &done.listing->pages[i].key, into, NULL);
        g_assert_cmpint(test_store_wait(s, QE_KV_DISK_READ), ==, QE_KV_DISK_OK);
        fill_by_ids(expected, s->page_bytes, &done.listing->pages[i], i);
        g_assert_cmpmem(into, s->page_bytes, expected, s->page_bytes);
    }
    if (promised->n > 0) {
        g_assert_cmpuint(n, >=, promised->n);
        g_assert_true(qe_page_key_equal(&done.listing->pages[promised->n - 1].key, &promised->key));
    }
    qe_kv_disk_completion_clear(&done);
    test_store_shut(s);
    g_ptr_array_set_size(s->memory, 0);
    return n;
}

static void test_kill(void)
{
    const char *wanted = g_getenv("QUIRE_KILL_ROUNDS");
    const uint32_t n_rounds = wanted ? (uint32_t)g_ascii_strtoull(wanted, NULL, 10) : 200;
    test_store s;
    g_autoptr(GRand) rand = g_rand_new_with_seed(9);
    uint32_t n_promises = 0, n_survivors = 0;
    test_store_init(&s, 20000, TEST_QUOTA);
    test_store_shut(&s);
    for (uint32_t round = 0; round < n_rounds; round++) {
        int ends[2];
        promise promised = {0}, p;
        g_assert_cmpint(pipe2(ends, O_CLOEXEC), ==, 0);
        pid_t child = fork();
        g_assert_cmpint(child, >=, 0);
        if (child == 0) {
            close(ends[0]);
            child_main(&s, round + 1, ends[1]);
            _exit(1);
        }
        close(ends[1]);
        /* Some rounds end while the child starts, the others after some of its work. */
        for (gint32 left = g_rand_int_range(rand, 0, 12); left > 0 && read(ends[0], &p, sizeof p) == sizeof p;
             left--)
            promised = p;
        g_usleep((gulong)g_rand_int_range(rand, 0, 20000));
        kill(child, SIGKILL);
        int status;
        g_assert_cmpint(waitpid(child, &status, 0), ==, child);
        g_assert_true(WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL);
        while (read(ends[0], &p, sizeof p) == sizeof p)
            promised = p;
        close(ends[0]);
        n_promises += promised.n > 0;
        n_survivors += check_survivors(&s, &promised);
    }
    g_test_message(
        "%u rounds: %u ended with a promise, %u pages read back", n_rounds, n_promises, n_survivors);
    g_assert_cmpuint(n_promises, >, 0);
    g_assert_cmpuint(n_survivors, >, 0);
    test_store_clear(&s);
}

int main(int argc, char **argv)
{
    g_test_init(&argc, &argv, NULL);
    g_test_add_func("/engine/kv-disk/flipped-data", test_flipped_data);
    g_test_add_func("/engine/kv-disk/flipped-index", test_flipped_index);
    g_test_add_func("/engine/kv-disk/cut-pages", test_cut_pages);
    g_test_add_func("/engine/kv-disk/foreign-files", test_foreign_files);
    g_test_add_func("/engine/kv-disk/one-bad-kept", test_one_bad_kept);
    g_test_add_func("/engine/kv-disk/quota", test_quota);
    g_test_add_func("/engine/kv-disk/file-limit", test_file_limit);
    g_test_add_func("/engine/kv-disk/full-disk", test_full_disk);
    g_test_add_func("/engine/kv-disk/unusable-directory", test_unusable_directory);
    g_test_add_func("/engine/kv-disk/left-overs", test_left_overs);
    g_test_add_func("/engine/kv-disk/kill", test_kill);
    return g_test_run();
}
