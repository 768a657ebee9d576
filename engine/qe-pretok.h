/* qe-pretok.h: cuts text into the pieces that BPE encodes one by one, by the tokenizer file's regular expressions.
 * Internal. Built by one thread, then immutable and usable from any thread.
 *
 * The expressions are written for Oniguruma (Ruby syntax, Unicode); PCRE2 runs them here. qe_regex_translate() passes
 * only what means the same in both, rewrites \s, and refuses the rest. */
#pragma once
#include <glib.h>
#include <stdbool.h>
#include "engine/qe-error.h"
G_BEGIN_DECLS

typedef struct qe_pretok qe_pretok;

/* The expression of a ByteLevel step with use_regex (GPT-2's). */
extern const char qe_pretok_gpt2_pattern[];
/* Qwen's, which is matched without PCRE2 where the text is ASCII. */
extern const char qe_pretok_qwen_pattern[];

/* @pattern in PCRE2's syntax. Returns: owned; NULL with QE_ERROR_UNSUPPORTED that names @label and the construct. */
char *qe_regex_translate(const char *label, const char *pattern, GError **error) G_GNUC_WARN_UNUSED_RESULT;

qe_pretok *qe_pretok_new(void);
void qe_pretok_free(qe_pretok *self); /* NULL is fine */
/* Adds a step: matches of @pattern and the text between them become pieces of their own; the next step cuts each of
 * those again. @label: file and field for messages. */
bool qe_pretok_add_split(qe_pretok *self, const char *label, const char *pattern, GError **error);

/* Called with each piece in order, never empty. False (with @error set) ends the walk. */
typedef bool (*qe_piece_fn)(void *user, const char *piece, gsize n, GError **error);
/* @text: well-formed UTF-8, NUL allowed. */
bool qe_pretok_run(
    const qe_pretok *self, const char *text, gsize n, qe_piece_fn fn, void *user, GError **error);

G_DEFINE_AUTOPTR_CLEANUP_FUNC(qe_pretok, qe_pretok_free)
G_END_DECLS
