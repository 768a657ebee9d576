/* qe-page-key.h: the name of a sealed KV page: a chain hash over everything before it. Internal; any thread.
 *
 * key = the first 16 bytes of SHA-256 over the parent's key (16 bytes) and the page's 16 token ids (32 bits each, little
 * endian). The parent of a conversation's first page is a seed: 16 bytes of a digest of the model, the page layout, the
 * numerics class and the kernels' version, so pages that were computed otherwise never share a name. Equal keys are
 * taken as a hint; whoever shares a page compares the ids too. */
#pragma once
#include <glib.h>
#include <stdbool.h>
#include <stdint.h>
#include <string.h>

G_BEGIN_DECLS

#define QE_PAGE_KEY_BYTES  16u
#define QE_PAGE_KEY_TOKENS 16u

typedef struct {
    uint8_t b[QE_PAGE_KEY_BYTES];
} qe_page_key;
G_STATIC_ASSERT(sizeof(qe_page_key) == QE_PAGE_KEY_BYTES);

static inline bool qe_page_key_equal(const qe_page_key *a, const qe_page_key *b)
{
    return memcmp(a->b, b->b, QE_PAGE_KEY_BYTES) == 0;
}

/* For hash tables: a key is evenly spread already. */
static inline guint qe_page_key_hash(const qe_page_key *key)
{
    guint h;
    memcpy(&h, key->b, sizeof h);
    return h;
}

/* @ids: the 16 tokens of the page, [QE_PAGE_KEY_TOKENS]. */
qe_page_key qe_page_key_child(const qe_page_key *parent, const uint32_t *ids);

/* GHashFunc and GEqualFunc over const qe_page_key *. */
guint qe_page_key_hash_func(gconstpointer key);
gboolean qe_page_key_equal_func(gconstpointer a, gconstpointer b);

G_END_DECLS
