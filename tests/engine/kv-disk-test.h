/* kv-disk-test.h: what the tests of the disk store share: pages made from a seed, a scratch directory, and a store whose
 * completions can be waited for. */
#pragma once
#include "engine/qe-kv-disk.h"

#define TEST_QUOTA (1ull << 30)

typedef struct {
    char *dir; /* owned; removed with everything in it by test_store_clear */
    uint64_t page_bytes, quota;
    uint8_t digest[QE_KV_DISK_DIGEST_BYTES];
    qe_kv_disk *disk;
    gint n_wakeups;    /* atomically */
    GPtrArray *memory; /* page buffers, freed at the end */
} test_store;

void test_store_init(test_store *self, uint64_t page_bytes, uint64_t quota);
void test_store_open(test_store *self); /* the store in the directory */
void test_store_shut(test_store *self); /* frees the store */
void test_store_clear(test_store *self);
uint8_t *test_store_memory(test_store *self, bool aligned); /* [page_bytes], zeroed */

/* The next completion of @op; others are an error. Cleared by the caller. */
qe_kv_disk_completion test_store_next(test_store *self);
qe_kv_disk_status test_store_wait(test_store *self, qe_kv_disk_op op); /* and clears it */
qe_kv_disk_file *test_store_load(test_store *self, const char *conversation, qe_kv_disk_completion *out);
/* Opens, expects @status and @n_pages, gives the message (owned). */
qe_kv_disk_file *test_store_expect(
    test_store *self, const char *conversation, qe_kv_disk_status status, uint32_t n_pages, char **message);
void test_store_close(test_store *self, qe_kv_disk_file *file);

/* Page @position of the conversation that @seed makes: its name after @parent, and its bytes. */
qe_kv_disk_page test_page(uint32_t seed, uint32_t position, const qe_page_key *parent);
qe_kv_disk_page test_page_at(uint32_t seed, uint32_t position); /* after its own chain */
void test_fill(uint8_t *bytes, uint64_t n, uint32_t seed, uint32_t position);
/* Writes pages from..to - 1 of the seed's chain and waits; every status must be @status. */
void test_store_write(test_store *self, qe_kv_disk_file *file, uint32_t seed, uint32_t from, uint32_t to);
/* Reads page @position, which must be the seed's: its status, and the bytes compared when it is ok. */
qe_kv_disk_status test_store_read(test_store *self, qe_kv_disk_file *file, uint32_t seed, uint32_t position);
void test_store_read_all(test_store *self, qe_kv_disk_file *file, uint32_t seed, uint32_t n);

char *test_store_path(test_store *self, const char *conversation, const char *suffix);
uint64_t test_store_disk_bytes(test_store *self); /* of all files in the directory, as stat says */
