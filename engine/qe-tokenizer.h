/* qe-tokenizer.h: text to token ids and back, by a Hugging Face tokenizer.json (byte-level BPE). Part of the public API
 * through qe.h. A tokenizer is immutable: one may be used from any number of threads at once.
 *
 * Ids and bytes are those of the reference library `tokenizers`. What it does not support it refuses on loading
 * (QE_ERROR_UNSUPPORTED names the file, the field and what was found): it never encodes differently in silence.
 *
 * Two ways to encode. PLAIN recognises no added token: text that spells "<|im_end|>" is ordinary text, so nothing that a
 * user types becomes a control token. ADDED_TOKENS recognises all of them, as the reference does by default. No mode adds
 * tokens at the beginning or the end. */
#pragma once
#include <glib.h>
#include <stdbool.h>
#include <stdint.h>
#include "engine/qe-error.h"

G_BEGIN_DECLS

typedef struct qe_tokenizer qe_tokenizer;

typedef enum { QE_ENCODE_PLAIN = 0, QE_ENCODE_ADDED_TOKENS = 1 } qe_encode_flags;

/* Reads @dir/tokenizer.json and, when it is there, @dir/tokenizer_config.json. Errors: QE_ERROR_FILE, _FORMAT,
 * _UNSUPPORTED. Blocking. Returns: owned. */
qe_tokenizer *qe_tokenizer_new(const char *dir, GError **error) G_GNUC_WARN_UNUSED_RESULT;
qe_tokenizer *qe_tokenizer_ref(qe_tokenizer *self);
void qe_tokenizer_unref(qe_tokenizer *self); /* NULL is fine */

/* Appends the ids of @text to @ids (element-type uint32_t). @text: @n_bytes bytes, NUL allowed; ill-formed UTF-8 becomes
 * U+FFFD. QE_ERROR_INVALID: longer than 512 MiB. On failure @ids is as before. */
bool qe_tokenizer_encode(const qe_tokenizer *self, const char *text, gsize n_bytes, qe_encode_flags flags,
    GArray *ids, GError **error);

/* The text of @ids as whole UTF-8 characters (U+FFFD for bytes that are none), with a NUL after its *@n_out bytes.
 * @skip_special: special tokens give nothing. Ids without a token give nothing. Returns: owned. */
char *qe_tokenizer_decode(
    const qe_tokenizer *self, const uint32_t *ids, gsize n_ids, bool skip_special, gsize *n_out);
/* The bytes of one token, which may begin or end inside a character: qe_utf8_filter joins them. Borrowed; NULL and 0 for
 * an id without token. */
const char *qe_tokenizer_token_bytes(const qe_tokenizer *self, uint32_t id, gsize *n_bytes);

/* One more than the greatest id. A model's vocabulary may be larger: the ids past the end have no token. */
uint32_t qe_tokenizer_n_tokens(const qe_tokenizer *self);
bool qe_tokenizer_has_token(const qe_tokenizer *self, uint32_t id);
bool qe_tokenizer_is_added(const qe_tokenizer *self, uint32_t id);
bool qe_tokenizer_is_special(
    const qe_tokenizer *self, uint32_t id); /* added, and no part of the visible text */
/* The added token with exactly this content. */
bool qe_tokenizer_find(const qe_tokenizer *self, const char *content, uint32_t *id);
/* tokenizer_config.json's eos_token; -1 when there is none. */
int64_t qe_tokenizer_get_eos(const qe_tokenizer *self);

G_DEFINE_AUTOPTR_CLEANUP_FUNC(qe_tokenizer, qe_tokenizer_unref)
G_END_DECLS
