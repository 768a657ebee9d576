/* qe-page-key.c: the chain hash that names KV pages. Pure functions; any thread. */
#include "engine/qe-page-key.h"

qe_page_key qe_page_key_child(const qe_page_key *parent, const uint32_t *ids)
{
    guint8 digest[32];
    gsize n_digest = sizeof digest;
    guint32 le[QE_PAGE_KEY_TOKENS];
    qe_page_key key;
    for (guint i = 0; i < QE_PAGE_KEY_TOKENS; i++)
        le[i] = GUINT32_TO_LE(ids[i]);
    GChecksum *sum = g_checksum_new(G_CHECKSUM_SHA256);
    g_checksum_update(sum, parent->b, QE_PAGE_KEY_BYTES);
    g_checksum_update(sum, (const guchar *)le, sizeof le);
    g_checksum_get_digest(sum, digest, &n_digest);
    g_checksum_free(sum);
    memcpy(key.b, digest, QE_PAGE_KEY_BYTES);
    return key;
}

guint qe_page_key_hash_func(gconstpointer key)
{
    return qe_page_key_hash(key);
}

gboolean qe_page_key_equal_func(gconstpointer a, gconstpointer b)
{
    return qe_page_key_equal(a, b);
}
