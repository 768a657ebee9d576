/* qe-kv-disk-index.h: the index file of a conversation on disk, and the checksum of its pages. Internal; pure functions
 * on bytes, any thread.
 *
 * An index is replaced as a whole, never changed in place. All numbers are little endian:
 *
 *   offset  bytes  field
 *        0      8  magic "QuireKVi"
 *        8      4  version, 2
 *       12      4  bytes of this header, 296
 *       16     32  digest of model, page layout, numerics and kernels
 *       48      8  page_bytes
 *       56      4  bytes of the conversation key, 1..128
 *       60      4  n_pages
 *       64      4  n_logits, 0: none
 *       68      4  tokens before the logits; n_pages >= this / 16 when there are logits, else 0
 *       72    128  conversation key, padded with zeros
 *      200     16  parent key of the first page
 *      216     64  ids of the last (this % 16) of those tokens, padded with zeros; the page there, if any,
 *                   begins with them
 *      280      8  zeros
 *      288      8  checksum of the 288 bytes before
 *      296   96 n  n_pages records: key 16, ids 64, checksum of the page's bytes 8, slot 4, zeros 4
 *               4 n_logits  the logits, f32
 *               8  checksum of all bytes before
 *
 * Checksums are XXH64 (specification: github.com/Cyan4973/xxHash, doc/xxhash_spec.md). A page's is seeded with the first
 * 8 bytes of its key, so that right bytes in a wrong place are found too. */
#pragma once
#include "engine/qe-kv-disk.h"

G_BEGIN_DECLS

#define QE_KV_INDEX_MAGIC        "QuireKVi"
#define QE_KV_INDEX_VERSION      2u
#define QE_KV_INDEX_HEADER_BYTES 296u
#define QE_KV_INDEX_RECORD_BYTES 96u
#define QE_KV_INDEX_SLOTS_MAX    (2u * QE_KV_DISK_PAGES_MAX)

/* What an index must name to be the right one. */
typedef struct {
    const uint8_t *digest; /* [QE_KV_DISK_DIGEST_BYTES] */
    uint64_t page_bytes;
    const char *conversation;
} qe_kv_index_identity;

uint64_t qe_kv_disk_checksum(const void *bytes, size_t n, uint64_t seed); /* XXH64 */
uint64_t qe_kv_disk_page_checksum(const void *bytes, size_t n, const qe_page_key *key);

uint64_t qe_kv_index_bytes(uint64_t n_pages, uint64_t n_logits); /* of the file */
/* Returns: owned, [qe_kv_index_bytes(...)]. Pages are within QE_KV_DISK_PAGES_MAX, chained, with distinct slots. */
uint8_t *qe_kv_index_encode(const qe_kv_index_identity *identity, const qe_kv_disk_listing *listing);
/* false with @error (QE_ERROR_FORMAT, or QE_ERROR_UNSUPPORTED for a version), which names @name and the first check that
 * failed; @out is empty then. Every page's key follows from the one before and its ids; slots are distinct. */
bool qe_kv_index_parse(const char *name, const uint8_t *data, size_t n, const qe_kv_index_identity *identity,
    qe_kv_disk_listing *out, GError **error);
void qe_kv_disk_listing_clear(qe_kv_disk_listing *listing);

G_END_DECLS
