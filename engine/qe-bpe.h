/* qe-bpe.h: the vocabulary and the merges of a byte-level BPE model. Internal.
 *
 * Built by one thread (add_token..., seal, add_merge...), then immutable and usable from any thread.
 *
 * Bytes and vocabulary strings: byte-level vocabularies spell each byte as a printable character (GPT-2's alphabet:
 * printable Latin-1 stands for itself, the other 68 bytes are U+0100..U+0143 in order; a space is U+0120). Here tokens
 * are their bytes. A vocabulary string with any other character is no text's encoding: it keeps its own UTF-8 bytes, is
 * found by its string only, and encoding never yields it. */
#pragma once
#include <glib.h>
#include <stdbool.h>
#include <stdint.h>
#include "engine/qe-error.h"
G_BEGIN_DECLS

typedef struct qe_bpe qe_bpe;

enum {
    QE_TOKEN_PRESENT = 1, /* the id has a token */
    QE_TOKEN_RAW = 2,     /* bytes are the string's own UTF-8 */
    QE_TOKEN_ADDED = 4,
    QE_TOKEN_SPECIAL = 8,
};

/* @label: the file's name in messages, copied. @n_file_bytes: the file's size, from which the tables are sized. */
qe_bpe *qe_bpe_new(const char *label, gsize n_file_bytes);
void qe_bpe_free(qe_bpe *self); /* NULL is fine */

/* One vocabulary entry as spelled in the file. QE_ERROR_FORMAT: id or string given before, id out of range. */
bool qe_bpe_add_token(qe_bpe *self, const char *text, gsize n, int64_t id, GError **error);
/* After all tokens. QE_ERROR_FORMAT: a byte without a token. */
bool qe_bpe_seal_vocab(qe_bpe *self, GError **error);
/* Merges in order of rank, after qe_bpe_seal_vocab(). QE_ERROR_FORMAT: a part or the result is no token, or the pair was
 * given before. @left and @right as spelled in the file. */
bool qe_bpe_add_merge(
    qe_bpe *self, const char *left, gsize n_left, const char *right, gsize n_right, GError **error);
void qe_bpe_set_ignore_merges(qe_bpe *self, bool ignore_merges);
/* An added token: plain text, not the byte alphabet. Its id must be free, or be that of the vocabulary's same string. */
bool qe_bpe_add_added(qe_bpe *self, const char *content, gsize n, int64_t id, bool special, GError **error);

uint32_t qe_bpe_n_tokens(const qe_bpe *self);          /* the greatest id + 1 */
uint8_t qe_bpe_flags(const qe_bpe *self, uint32_t id); /* 0 for an id without token */
const char *qe_bpe_bytes(
    const qe_bpe *self, uint32_t id, gsize *n); /* borrowed; NULL for an id without token */

/* One piece of pre-tokenised text to ids. @piece: any bytes, @n >= 1. QE_ERROR_NO_MEMORY on a gigantic piece. */
bool qe_bpe_encode(const qe_bpe *self, const char *piece, gsize n, GArray *ids, GError **error);

G_DEFINE_AUTOPTR_CLEANUP_FUNC(qe_bpe, qe_bpe_free)
G_END_DECLS
