/* fuzz-kv-index.c: any bytes as the index of a conversation's KV pages, as they are and with their checksums mended, so
 * that mutations reach what lies behind the checksums. */
#include "engine/qe-kv-disk-index.h"
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n_bytes);

static void check(const uint8_t *data, size_t n, const qe_kv_index_identity *identity)
{
    qe_kv_disk_listing listing;
    g_autoptr(GError) error = NULL;
    bool ok = qe_kv_index_parse("input", data, n, identity, &listing, &error);
    g_assert(ok == (error == NULL));
    if (!ok) {
        g_assert(error->domain == QE_ERROR && g_str_has_prefix(error->message, "input: "));
        g_assert(listing.n_pages == 0 && listing.pages == NULL && listing.logits == NULL);
        return;
    }
    g_assert(n == qe_kv_index_bytes(listing.n_pages, listing.n_logits));
    for (uint32_t i = 0; i < listing.n_pages; i++) {
        const qe_kv_disk_page *page = &listing.pages[i];
        qe_page_key key = qe_page_key_child(&page->parent, page->ids);
        g_assert(qe_page_key_equal(&key, &page->key));
        g_assert(i == 0 || qe_page_key_equal(&page->parent, &listing.pages[i - 1].key));
        g_assert(listing.slots[i] < QE_KV_INDEX_SLOTS_MAX);
    }
    g_assert(listing.n_tail < QE_PAGE_KEY_TOKENS && (listing.logits != NULL) == (listing.n_logits > 0));
    g_autofree uint8_t *again = qe_kv_index_encode(identity, &listing); /* nothing was lost or made up */
    g_assert(memcmp(again, data, n) == 0);
    qe_kv_disk_listing_clear(&listing);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n_bytes)
{
    uint8_t digest[QE_KV_DISK_DIGEST_BYTES];
    const qe_kv_index_identity identity = {digest, 5000, "fuzz"};
    memset(digest, 0xd1, sizeof digest);
    check(data, n_bytes, &identity);
    if (n_bytes < QE_KV_INDEX_HEADER_BYTES + 8)
        return 0;
    g_autofree uint8_t *copy = g_memdup2(data, n_bytes);
    uint64_t sum = GUINT64_TO_LE(qe_kv_disk_checksum(copy, QE_KV_INDEX_HEADER_BYTES - 8, 0));
    memcpy(copy + QE_KV_INDEX_HEADER_BYTES - 8, &sum, 8);
    sum = GUINT64_TO_LE(qe_kv_disk_checksum(copy, n_bytes - 8, 0));
    memcpy(copy + n_bytes - 8, &sum, 8);
    check(copy, n_bytes, &identity);
    return 0;
}
