/* test-engine-kv-disk.c: the disk store: what was written comes back, or is refused. Damage of every kind and kill -9 are
 * in test-engine-kv-disk-faults.c. */
#include <glib/gstdio.h>
#include <string.h>
#include <sys/stat.h>
#include "engine/qe-kv-disk-index.h"
#include "tests/engine/kv-disk-test.h"

/* Test vectors of the specification's reference implementation. */
static void test_checksum(void)
{
    g_assert_cmphex(qe_kv_disk_checksum("", 0, 0), ==, 0xef46db3751d8e999u);
    g_assert_cmphex(qe_kv_disk_checksum("a", 1, 0), ==, 0xd24ec4f1a98c6e5bu);
    g_assert_cmphex(qe_kv_disk_checksum("abc", 3, 0), ==, 0x44bc2cf5ad770999u);
    const char *text = "Nobody inspects the spammish repetition";
    g_assert_cmphex(qe_kv_disk_checksum(text, strlen(text), 0), ==, 0xfbcea83c8a378bf1u);
}

static void test_key(void)
{
    qe_page_key parent = {{0}}, other = {{1}};
    uint32_t ids[QE_PAGE_KEY_TOKENS] = {0};
    qe_page_key key = qe_page_key_child(&parent, ids);
    /* SHA-256 over 80 zero bytes begins so. */
    const uint8_t expected[] = {0x5b, 0x6f, 0xb5, 0x8e, 0x61, 0xfa, 0x47, 0x59};
    g_assert_cmpmem(key.b, 8, expected, 8);
    qe_page_key moved = qe_page_key_child(&other, ids);
    g_assert_false(qe_page_key_equal(&key, &moved));
    ids[15] = 1u << 24;
    moved = qe_page_key_child(&parent, ids);
    g_assert_false(qe_page_key_equal(&key, &moved));
}

static const uint64_t page_sizes[] = {4096, 12288, 4095, 5000, 1, 1198080};

static void test_round_trip(gconstpointer data)
{
    test_store s;
    uint32_t n = *(const uint64_t *)data > 100000 ? 20 : 40;
    qe_kv_disk_usage usage;
    qe_kv_disk_completion done;
    test_store_init(&s, *(const uint64_t *)data, TEST_QUOTA);
    qe_kv_disk_file *file = test_store_expect(&s, "conversation ä", QE_KV_DISK_MISSING, 0, NULL);
    test_store_write(&s, file, 1, 0, n);
    test_store_read_all(&s, file, 1, n);
    qe_kv_disk_get_usage(s.disk, &usage);
    g_assert_cmpuint(usage.written_bytes, ==, n * s.page_bytes);
    g_assert_cmpuint(usage.n_pages_read, ==, n);
    g_assert_cmpuint(usage.n_pages, ==, n);
    g_assert_cmpint(g_atomic_int_get(&s.n_wakeups), >, 0);
    test_store_close(&s, file);
    qe_kv_disk_get_usage(s.disk, &usage);
    g_assert_cmpuint(usage.n_pages, ==, n);
    g_assert_cmpuint(usage.used_bytes, >=, n * qe_kv_disk_slot_bytes(s.disk, 0));
    for (int again = 0; again < 2; again++) {
        file = test_store_load(&s, "conversation ä", &done);
        g_assert_cmpint(done.status, ==, QE_KV_DISK_OK);
        g_assert_cmpuint(done.listing->n_pages, ==, n);
        for (uint32_t i = 0; i < n; i++) {
            qe_kv_disk_page page = test_page_at(1, i);
            g_assert_cmpmem(&done.listing->pages[i], sizeof page, &page, sizeof page);
        }
        qe_kv_disk_completion_clear(&done);
        test_store_read_all(&s, file, 1, n);
        test_store_shut(&s); /* open files are closed with it */
        test_store_open(&s);
    }
    test_store_clear(&s);
}

/* Many reads and writes at once: batches, two threads, reads of what is queued still. */
static void test_pipelined(void)
{
    enum { N = 300 };
    test_store s;
    test_store_init(&s, 65536, TEST_QUOTA);
    qe_kv_disk_file *file = test_store_expect(&s, "c", QE_KV_DISK_MISSING, 0, NULL);
    uint8_t *into[N];
    uint32_t n_writes = 0, n_reads = 0;
    qe_page_key seed = {{1, 2, 3}};
    qe_kv_disk_page page;
    for (uint32_t i = 0; i < N; i++) {
        uint8_t *bytes = test_store_memory(&s, i % 5 != 0);
        page = test_page(3, i, i == 0 ? &seed : &page.key);
        test_fill(bytes, s.page_bytes, 3, i);
        qe_kv_disk_write(s.disk, file, i, &page, bytes, NULL);
        into[i] = test_store_memory(&s, i % 7 != 0);
        qe_kv_disk_read(s.disk, file, i, &page.key, into[i], NULL);
    }
    g_assert_cmpuint(qe_kv_disk_n_pages(s.disk, file), ==, N);
    qe_kv_disk_flush(s.disk, file, &s);
    for (bool flushed = false; !flushed || n_reads < N;) {
        qe_kv_disk_completion done = test_store_next(&s);
        g_assert_cmpint(done.status, ==, QE_KV_DISK_OK);
        if (done.op == QE_KV_DISK_WRITE)
            g_assert_cmpuint(done.position, ==, n_writes++);
        else if (done.op == QE_KV_DISK_READ) {
            g_autofree uint8_t *expected = g_malloc(s.page_bytes);
            test_fill(expected, s.page_bytes, 3, done.position);
            g_assert_cmpmem(into[done.position], s.page_bytes, expected, s.page_bytes);
            n_reads++;
        } else {
            g_assert_true(done.op == QE_KV_DISK_FLUSH && done.tag == &s);
            g_assert_cmpuint(n_writes, ==, N);
            flushed = true;
        }
        qe_kv_disk_completion_clear(&done);
    }
    qe_kv_disk_file *found;
    uint32_t position;
    g_assert_true(qe_kv_disk_find(s.disk, &page.key, &found, &position));
    g_assert_true(found == file && position == N - 1);
    g_assert_false(qe_kv_disk_find(s.disk, &seed, &found, &position));
    test_store_clear(&s);
}

static void test_truncate(void)
{
    test_store s;
    test_store_init(&s, 4096, TEST_QUOTA);
    qe_kv_disk_file *file = test_store_expect(&s, "c", QE_KV_DISK_MISSING, 0, NULL);
    g_autofree char *pages = test_store_path(&s, "c", ".pages");
    struct stat st;
    test_store_write(&s, file, 1, 0, 20);
    qe_kv_disk_flush(s.disk, file, NULL);
    g_assert_cmpint(test_store_wait(&s, QE_KV_DISK_FLUSH), ==, QE_KV_DISK_OK);
    /* Another branch from page 5 on: the index names the old pages still, so their slots must stay. */
    qe_page_key parent = test_page_at(1, 4).key;
    qe_kv_disk_page branch[4];
    qe_kv_disk_truncate(s.disk, file, 5);
    for (uint32_t i = 0; i < 4; i++) {
        uint8_t *bytes = test_store_memory(&s, true);
        branch[i] = test_page(2, 5 + i, &parent);
        parent = branch[i].key;
        test_fill(bytes, s.page_bytes, 2, 5 + i);
        qe_kv_disk_write(s.disk, file, 5 + i, &branch[i], bytes, NULL);
        g_assert_cmpint(test_store_wait(&s, QE_KV_DISK_WRITE), ==, QE_KV_DISK_OK);
    }
    g_assert_cmpint(test_store_read(&s, file, 1, 4), ==, QE_KV_DISK_OK);
    g_assert_cmpint(test_store_read(&s, file, 1, 5), ==, QE_KV_DISK_INVALID); /* another key lies there */
    g_assert_cmpint(test_store_read(&s, file, 1, 12), ==, QE_KV_DISK_DROPPED);
    g_assert_cmpint(g_stat(pages, &st), ==, 0);
    g_assert_cmpint(st.st_size, ==, 24 * 4096);
    qe_kv_disk_flush(s.disk, file, NULL);
    g_assert_cmpint(test_store_wait(&s, QE_KV_DISK_FLUSH), ==, QE_KV_DISK_OK);
    /* Now the 15 old slots are free: more pages fit without growth. */
    for (uint32_t i = 0; i < 15; i++) {
        uint8_t *bytes = test_store_memory(&s, false);
        qe_kv_disk_page page = test_page(2, 9 + i, &parent);
        parent = page.key;
        test_fill(bytes, s.page_bytes, 2, 9 + i);
        qe_kv_disk_write(s.disk, file, 9 + i, &page, bytes, NULL);
        g_assert_cmpint(test_store_wait(&s, QE_KV_DISK_WRITE), ==, QE_KV_DISK_OK);
    }
    g_assert_cmpint(g_stat(pages, &st), ==, 0);
    g_assert_cmpint(st.st_size, ==, 24 * 4096);
    test_store_close(&s, file);
    qe_kv_disk_completion done;
    file = test_store_load(&s, "c", &done);
    g_assert_cmpuint(done.listing->n_pages, ==, 24);
    g_assert_cmpmem(&done.listing->pages[5], sizeof branch[0], &branch[0], sizeof branch[0]);
    for (uint32_t i = 0; i < 24; i++) {
        g_autofree uint8_t *expected = g_malloc(s.page_bytes), *into = g_malloc(s.page_bytes);
        test_fill(expected, s.page_bytes, i < 5 ? 1 : 2, i);
        qe_kv_disk_read(s.disk, file, i, &done.listing->pages[i].key, into, NULL);
        g_assert_cmpint(test_store_wait(&s, QE_KV_DISK_READ), ==, QE_KV_DISK_OK);
        g_assert_cmpmem(into, s.page_bytes, expected, s.page_bytes);
    }
    qe_kv_disk_completion_clear(&done);
    /* Down to nothing: the file shrinks, and the index says so. */
    qe_kv_disk_truncate(s.disk, file, 0);
    test_store_close(&s, file);
    g_assert_cmpint(g_stat(pages, &st), ==, 0);
    g_assert_cmpint(st.st_size, ==, 0);
    test_store_expect(&s, "c", QE_KV_DISK_OK, 0, NULL);
    test_store_clear(&s);
}

static void test_wrong_writes(void)
{
    test_store s;
    test_store_init(&s, 4096, TEST_QUOTA);
    qe_kv_disk_file *file = test_store_expect(&s, "c", QE_KV_DISK_MISSING, 0, NULL);
    uint8_t *bytes = test_store_memory(&s, true);
    qe_kv_disk_page page = test_page_at(1, 0), third = test_page_at(1, 2);
    test_store_write(&s, file, 1, 0, 1);
    qe_kv_disk_write(s.disk, file, 0, &page, bytes, NULL); /* there already */
    g_assert_cmpint(test_store_wait(&s, QE_KV_DISK_WRITE), ==, QE_KV_DISK_INVALID);
    qe_kv_disk_write(s.disk, file, 2, &third, bytes, NULL); /* behind one that is not there */
    g_assert_cmpint(test_store_wait(&s, QE_KV_DISK_WRITE), ==, QE_KV_DISK_DROPPED);
    qe_kv_disk_write(s.disk, file, 1, &third, bytes, NULL); /* not the child of page 0 */
    g_assert_cmpint(test_store_wait(&s, QE_KV_DISK_WRITE), ==, QE_KV_DISK_INVALID);
    page = test_page_at(1, 1);
    page.ids[3]++; /* the key is not of these ids */
    qe_kv_disk_write(s.disk, file, 1, &page, bytes, NULL);
    g_assert_cmpint(test_store_wait(&s, QE_KV_DISK_WRITE), ==, QE_KV_DISK_INVALID);
    test_store_read_all(&s, file, 1, 1);
    g_assert_cmpint(test_store_read(&s, file, 2, 0), ==, QE_KV_DISK_INVALID);
    test_store_clear(&s);
}

static void expect_logits(test_store *s, qe_kv_disk_file *file, uint32_t n_tokens, const uint32_t *tail,
    const float *logits, uint32_t n)
{
    g_autofree float *got = qe_kv_disk_dup_logits(s->disk, file, n_tokens, tail, n);
    g_assert_nonnull(got);
    g_assert_cmpmem(got, n * sizeof *got, logits, n * sizeof *logits);
}

static void test_logits(void)
{
    test_store s;
    qe_kv_disk_completion done;
    float logits[1000];
    const uint32_t tail[] = {7, 8, 9};
    for (uint32_t i = 0; i < G_N_ELEMENTS(logits); i++)
        logits[i] = (float)i * 0.25f - 3;
    test_store_init(&s, 4096, TEST_QUOTA);
    qe_kv_disk_file *file = test_store_expect(&s, "c", QE_KV_DISK_MISSING, 0, NULL);
    test_store_write(&s, file, 1, 0, 3);
    g_assert_false(qe_kv_disk_set_logits(s.disk, file, 64, NULL, logits, 1000)); /* there are 48 tokens */
    g_assert_true(qe_kv_disk_set_logits(s.disk, file, 51, tail, logits, 1000));
    test_store_close(&s, file);
    file = test_store_load(&s, "c", &done);
    g_assert_cmpuint(done.listing->logits_n_tokens, ==, 51);
    g_assert_cmpuint(done.listing->n_tail, ==, 3);
    g_assert_cmpmem(done.listing->tail_ids, 12, tail, 12);
    g_assert_cmpmem(done.listing->logits, done.listing->n_logits * 4, logits, sizeof logits);
    qe_kv_disk_completion_clear(&done);
    /* A rewind that keeps their page list keeps them, one before it does not. */
    qe_kv_disk_truncate(s.disk, file, 3);
    test_store_close(&s, file);
    file = test_store_load(&s, "c", &done);
    g_assert_cmpuint(done.listing->n_logits, ==, 1000);
    qe_kv_disk_completion_clear(&done);
    expect_logits(&s, file, 51, tail, logits, 1000);
    qe_kv_disk_truncate(s.disk, file, 2);
    g_assert_null(qe_kv_disk_dup_logits(s.disk, file, 51, tail, 1000)); /* nor behind what is written next */
    test_store_close(&s, file);
    file = test_store_load(&s, "c", &done);
    g_assert_cmpuint(done.listing->n_pages, ==, 2);
    g_assert_cmpuint(done.listing->n_logits, ==, 0);
    g_assert_null(done.listing->logits);
    qe_kv_disk_completion_clear(&done);
    /* Pages that go on from the tokens before them may come behind. Others, and only those, end them. */
    qe_kv_disk_page next = test_page_at(1, 2);
    const uint32_t other[] = {next.ids[0], next.ids[1] + 1};
    g_assert_true(qe_kv_disk_set_logits(s.disk, file, 34, next.ids, logits, 1000));
    test_store_write(&s, file, 1, 2, 5);
    test_store_close(&s, file);
    file = test_store_load(&s, "c", &done);
    g_assert_cmpuint(done.listing->n_pages, ==, 5);
    g_assert_cmpuint(done.listing->logits_n_tokens, ==, 34);
    g_assert_cmpmem(done.listing->tail_ids, 8, next.ids, 8);
    qe_kv_disk_completion_clear(&done);
    g_assert_false(qe_kv_disk_set_logits(s.disk, file, 34, other, logits, 1000));
    expect_logits(&s, file, 34, next.ids, logits, 1000);
    qe_kv_disk_truncate(s.disk, file, 2);
    expect_logits(&s, file, 34, next.ids, logits, 1000);
    g_assert_null(qe_kv_disk_dup_logits(s.disk, file, 34, other, 1000));
    g_assert_null(qe_kv_disk_dup_logits(s.disk, file, 33, next.ids, 1000));
    g_assert_null(qe_kv_disk_dup_logits(s.disk, file, 34, next.ids, 999));
    g_assert_true(qe_kv_disk_set_logits(s.disk, file, 34, other, logits, 1000));
    test_store_write(&s, file, 1, 2, 3);
    g_assert_null(qe_kv_disk_dup_logits(s.disk, file, 34, other, 1000));
    test_store_close(&s, file);
    file = test_store_load(&s, "c", &done);
    g_assert_cmpuint(done.listing->n_logits, ==, 0);
    qe_kv_disk_completion_clear(&done);
    test_store_clear(&s);
}

/* One conversation with pages of two kinds and sizes: each kind has its own, deleting takes both. */
static void test_kinds(void)
{
    test_store s;
    g_autoptr(GError) error = NULL;
    test_store_init(&s, 8192, TEST_QUOTA);
    test_store_shut(&s);
    uint8_t second[QE_KV_DISK_DIGEST_BYTES] = {9};
    const qe_kv_disk_kind kinds[] = {{s.digest, 8192}, {second, 5000}};
    s.disk = qe_kv_disk_new(s.dir, TEST_QUOTA, kinds, 2, NULL, NULL, &error);
    g_assert_no_error(error);
    for (int round = 0; round < 2; round++) {
        for (uint32_t kind = 0; kind < 2; kind++) {
            qe_kv_disk_completion done;
            qe_kv_disk_file *file = qe_kv_disk_open(s.disk, kind, "c", NULL, &error);
            g_assert_no_error(error);
            g_assert_null(qe_kv_disk_open(s.disk, !kind, "c", NULL, &error)); /* in one kind at a time */
            g_assert_error(error, QE_ERROR, QE_ERROR_BUSY);
            g_clear_error(&error);
            done = test_store_next(&s);
            g_assert_cmpint(done.status, ==, round ? QE_KV_DISK_OK : QE_KV_DISK_MISSING);
            g_assert_cmpuint(done.listing->n_pages, ==, round ? 3 + kind : 0);
            qe_kv_disk_completion_clear(&done);
            s.page_bytes = kinds[kind].page_bytes;
            if (round)
                test_store_read_all(&s, file, 1 + kind, 3 + kind);
            else
                test_store_write(&s, file, 1 + kind, 0, 3 + kind);
            test_store_close(&s, file);
        }
    }
    g_assert_true(qe_kv_disk_delete(s.disk, "c", NULL, &error));
    g_assert_cmpint(test_store_wait(&s, QE_KV_DISK_DELETE), ==, QE_KV_DISK_OK);
    qe_kv_disk_usage usage;
    qe_kv_disk_get_usage(s.disk, &usage);
    g_assert_cmpuint(usage.used_bytes, ==, 0);
    test_store_clear(&s);
}

static void test_conversations(void)
{
    test_store s;
    g_autoptr(GError) error = NULL;
    g_autofree char *longest = g_strnfill(QE_KV_DISK_CONVERSATION_MAX, 'x');
    g_autofree char *too_long = g_strnfill(QE_KV_DISK_CONVERSATION_MAX + 1, 'x');
    const char *const bad[] = {"", "\xff", too_long};
    const char *const good[] = {"a", "b", "../../etc/passwd", "a/b\n\"", longest};
    qe_kv_disk_file *files[G_N_ELEMENTS(good)];
    test_store_init(&s, 5000, TEST_QUOTA);
    for (guint i = 0; i < G_N_ELEMENTS(bad); i++) {
        g_assert_null(qe_kv_disk_open(s.disk, 0, bad[i], NULL, &error));
        g_assert_error(error, QE_ERROR, QE_ERROR_INVALID);
        g_clear_error(&error);
        g_assert_false(qe_kv_disk_delete(s.disk, bad[i], NULL, &error));
        g_assert_error(error, QE_ERROR, QE_ERROR_INVALID);
        g_clear_error(&error);
    }
    for (int round = 0; round < 2; round++) {
        for (guint i = 0; i < G_N_ELEMENTS(good); i++) {
            files[i] = test_store_expect(
                &s, good[i], round == 0 ? QE_KV_DISK_MISSING : QE_KV_DISK_OK, round == 0 ? 0 : 8, NULL);
            g_assert_null(qe_kv_disk_open(s.disk, 0, good[i], NULL, &error));
            g_assert_error(error, QE_ERROR, QE_ERROR_BUSY);
            g_clear_error(&error);
        }
        for (uint32_t page = 0; round == 0 && page < 8; page++) /* taking turns */
            for (guint i = 0; i < G_N_ELEMENTS(good); i++)
                test_store_write(&s, files[i], 100 + i, page, page + 1);
        for (guint i = 0; i < G_N_ELEMENTS(good); i++) {
            test_store_read_all(&s, files[i], 100 + i, 8);
            g_assert_cmpint(test_store_read(&s, files[i], 101 + i, 0), ==, QE_KV_DISK_INVALID);
        }
        test_store_shut(&s);
        test_store_open(&s);
    }
    test_store_clear(&s);
}

/* Close, and open again at once: the second waits for the first. */
static void test_reopen_at_once(void)
{
    test_store s;
    g_autoptr(GError) error = NULL;
    test_store_init(&s, 4096, TEST_QUOTA);
    qe_kv_disk_file *file = test_store_expect(&s, "c", QE_KV_DISK_MISSING, 0, NULL);
    for (uint32_t n = 0; n < 20; n++) {
        qe_kv_disk_page page = test_page_at(1, n);
        uint8_t *bytes = test_store_memory(&s, true);
        test_fill(bytes, s.page_bytes, 1, n);
        qe_kv_disk_write(s.disk, file, n, &page, bytes, NULL);
        qe_kv_disk_close(s.disk, file, NULL);
        file = qe_kv_disk_open(s.disk, 0, "c", NULL, &error);
        g_assert_no_error(error);
        g_assert_cmpint(test_store_wait(&s, QE_KV_DISK_WRITE), ==, QE_KV_DISK_OK);
        g_assert_cmpint(test_store_wait(&s, QE_KV_DISK_CLOSE), ==, QE_KV_DISK_OK);
        qe_kv_disk_completion done = test_store_next(&s);
        g_assert_cmpint(done.op, ==, QE_KV_DISK_OPEN);
        g_assert_cmpuint(done.listing->n_pages, ==, n + 1);
        qe_kv_disk_completion_clear(&done);
        g_assert_cmpuint(qe_kv_disk_n_pages(s.disk, file), ==, n + 1);
    }
    test_store_read_all(&s, file, 1, 20);
    test_store_clear(&s);
}

static void test_delete(void)
{
    test_store s;
    g_autoptr(GError) error = NULL;
    qe_kv_disk_usage usage;
    test_store_init(&s, 65536, TEST_QUOTA);
    g_autofree char *pages = test_store_path(&s, "gone", ".pages"),
                    *index = test_store_path(&s, "gone", ".index");
    g_assert_true(qe_kv_disk_delete(s.disk, "gone", NULL, &error));
    g_assert_cmpint(test_store_wait(&s, QE_KV_DISK_DELETE), ==, QE_KV_DISK_MISSING);
    for (int round = 0; round < 10; round++) { /* while writes wait and run */
        qe_kv_disk_file *file = test_store_expect(&s, "gone", QE_KV_DISK_MISSING, 0, NULL);
        for (uint32_t i = 0; i < 50; i++) {
            qe_kv_disk_page page = test_page_at(1, i);
            uint8_t *bytes = test_store_memory(&s, true);
            qe_kv_disk_write(s.disk, file, i, &page, bytes, NULL);
        }
        if (round % 3 == 1)
            qe_kv_disk_flush(s.disk, file, NULL);
        if (round % 3 == 2)
            qe_kv_disk_close(s.disk, file, NULL);
        g_usleep((gulong)round * 500);
        g_assert_true(qe_kv_disk_delete(s.disk, "gone", &s, &error));
        for (bool deleted = false; !deleted;) {
            qe_kv_disk_completion done = test_store_next(&s);
            g_assert_true(done.status == QE_KV_DISK_OK || done.status == QE_KV_DISK_DROPPED ||
                          (done.op == QE_KV_DISK_DELETE && done.status == QE_KV_DISK_MISSING));
            deleted = done.op == QE_KV_DISK_DELETE;
            qe_kv_disk_completion_clear(&done);
        }
        g_assert_false(g_file_test(pages, G_FILE_TEST_EXISTS));
        g_assert_false(g_file_test(index, G_FILE_TEST_EXISTS));
        qe_kv_disk_get_usage(s.disk, &usage);
        g_assert_cmpuint(usage.used_bytes, ==, 0);
        g_assert_cmpuint(usage.n_pending, ==, 0);
        g_assert_cmpuint(usage.n_open, ==, 0);
    }
    qe_kv_disk_file *file = test_store_expect(&s, "gone", QE_KV_DISK_MISSING, 0, NULL);
    test_store_write(&s, file, 1, 0, 3);
    test_store_close(&s, file);
    g_assert_true(g_file_test(index, G_FILE_TEST_EXISTS));
    g_assert_true(qe_kv_disk_delete(s.disk, "gone", NULL, &error)); /* not open */
    g_assert_cmpint(test_store_wait(&s, QE_KV_DISK_DELETE), ==, QE_KV_DISK_OK);
    g_assert_false(g_file_test(index, G_FILE_TEST_EXISTS));
    g_assert_true(qe_kv_disk_open(s.disk, 0, "gone", NULL, &error) != NULL); /* deleted before it opened */
    g_assert_true(qe_kv_disk_delete(s.disk, "gone", NULL, &error));
    qe_kv_disk_completion done = test_store_next(&s);
    g_assert_cmpint(done.op, ==, QE_KV_DISK_OPEN);
    qe_kv_disk_completion_clear(&done);
    g_assert_cmpint(test_store_wait(&s, QE_KV_DISK_DELETE), ==, QE_KV_DISK_MISSING);
    test_store_clear(&s);
}

/* The index follows by itself, and what was not asked to be flushed is there after a while. */
static void test_timer(void)
{
    test_store s;
    qe_kv_disk_usage usage = {0};
    test_store_init(&s, 4096, TEST_QUOTA);
    qe_kv_disk_file *file = test_store_expect(&s, "c", QE_KV_DISK_MISSING, 0, NULL);
    test_store_write(&s, file, 1, 0, 30);
    for (int i = 0; i < 3000 && usage.n_indices == 0; i++) {
        g_usleep(10000);
        qe_kv_disk_get_usage(s.disk, &usage);
    }
    g_assert_cmpuint(usage.n_indices, ==, 1); /* one for all pages */
    test_store_clear(&s);
}

/* Truncations, branches, reads, flushes and reopenings at random, against a list in memory. */
static void test_random(void)
{
    test_store s;
    g_autoptr(GRand) rand = g_rand_new_with_seed(4);
    g_autoptr(GArray) seeds = g_array_new(FALSE, FALSE, 4), keys = g_array_new(FALSE, FALSE, 16);
    g_autoptr(GHashTable) expect =
        g_hash_table_new(NULL, NULL); /* memory read into -> seed of the page asked for */
    test_store_init(&s, 4096, TEST_QUOTA);
    qe_kv_disk_file *file = test_store_expect(&s, "c", QE_KV_DISK_MISSING, 0, NULL);
    for (uint32_t step = 0; step < 3000; step++) {
        uint32_t n = seeds->len, at = n > 0 ? (uint32_t)g_rand_int_range(rand, 0, (gint32)n) : 0;
        gint32 choice = g_rand_int_range(rand, 0, 100);
        if (choice < 50 && n < 200) {
            qe_page_key root = {{9}};
            qe_page_key *parent = n > 0 ? &g_array_index(keys, qe_page_key, n - 1) : &root;
            qe_kv_disk_page page = test_page(step, n, parent);
            uint8_t *bytes = test_store_memory(&s, choice % 2 == 0);
            test_fill(bytes, s.page_bytes, step, n);
            qe_kv_disk_write(s.disk, file, n, &page, bytes, NULL);
            g_array_append_val(seeds, step);
            g_array_append_val(keys, page.key);
            if (choice < 25) /* else several wait */
                continue;
        } else if (choice < 85 && n > 0) {
            uint8_t *into = test_store_memory(&s, choice % 2 == 0);
            g_hash_table_insert(expect, into, GUINT_TO_POINTER(g_array_index(seeds, uint32_t, at)));
            qe_kv_disk_read(s.disk, file, at, &g_array_index(keys, qe_page_key, at), into, into);
        } else if (choice < 92) {
            qe_kv_disk_truncate(s.disk, file, n - MIN(n, (uint32_t)g_rand_int_range(rand, 0, 20)));
            g_array_set_size(seeds, qe_kv_disk_n_pages(s.disk, file));
            g_array_set_size(keys, seeds->len);
        } else if (choice < 97)
            qe_kv_disk_flush(s.disk, file, NULL);
        else {
            test_store_shut(&s);
            test_store_open(&s);
            qe_kv_disk_completion done;
            file = test_store_load(&s, "c", &done);
            g_assert_cmpuint(done.listing->n_pages, <=, seeds->len); /* what was queued may be gone */
            for (uint32_t i = 0; i < done.listing->n_pages; i++)
                g_assert_true(
                    qe_page_key_equal(&done.listing->pages[i].key, &g_array_index(keys, qe_page_key, i)));
            g_array_set_size(seeds, done.listing->n_pages);
            g_array_set_size(keys, done.listing->n_pages);
            qe_kv_disk_completion_clear(&done);
            continue;
        }
        for (bool idle = false; !idle;) {
            qe_kv_disk_usage usage;
            qe_kv_disk_completion done;
            qe_kv_disk_get_usage(s.disk, &usage); /* before poll: what it counts as done has been posted */
            while (qe_kv_disk_poll(s.disk, &done)) {
                g_assert_true(done.status == QE_KV_DISK_OK || done.status == QE_KV_DISK_DROPPED);
                if (done.op == QE_KV_DISK_READ && done.status == QE_KV_DISK_OK) {
                    g_autofree uint8_t *expected = g_malloc(s.page_bytes);
                    uint32_t seed = GPOINTER_TO_UINT(g_hash_table_lookup(expect, done.tag));
                    test_fill(expected, s.page_bytes, seed, done.position);
                    g_assert_cmpmem(done.tag, s.page_bytes, expected, s.page_bytes);
                }
                qe_kv_disk_completion_clear(&done);
            }
            idle = usage.n_pending == 0 || step % 3 == 0; /* a third goes on while they run */
            if (!idle)
                g_usleep(50);
        }
        if (step % 500 == 499 && s.memory->len > 0 && step % 3 != 0)
            g_ptr_array_set_size(s.memory, 0);
    }
    test_store_clear(&s);
}

int main(int argc, char **argv)
{
    g_test_init(&argc, &argv, NULL);
    g_test_add_func("/engine/kv-disk/checksum", test_checksum);
    g_test_add_func("/engine/kv-disk/page-key", test_key);
    for (guint i = 0; i < G_N_ELEMENTS(page_sizes); i++) {
        g_autofree char *path = g_strdup_printf("/engine/kv-disk/round-trip/%u", (guint)page_sizes[i]);
        g_test_add_data_func(path, &page_sizes[i], test_round_trip);
    }
    g_test_add_func("/engine/kv-disk/pipelined", test_pipelined);
    g_test_add_func("/engine/kv-disk/truncate", test_truncate);
    g_test_add_func("/engine/kv-disk/wrong-writes", test_wrong_writes);
    g_test_add_func("/engine/kv-disk/logits", test_logits);
    g_test_add_func("/engine/kv-disk/kinds", test_kinds);
    g_test_add_func("/engine/kv-disk/conversations", test_conversations);
    g_test_add_func("/engine/kv-disk/reopen-at-once", test_reopen_at_once);
    g_test_add_func("/engine/kv-disk/delete", test_delete);
    g_test_add_func("/engine/kv-disk/timer", test_timer);
    g_test_add_func("/engine/kv-disk/random", test_random);
    return g_test_run();
}
