/* qe-tokenizer-file.h: tokenizer.json and tokenizer_config.json. Internal. */
#pragma once
#include "engine/qe-bpe.h"
#include "engine/qe-pretok.h"
#include "engine/qe-tokenizer.h"
G_BEGIN_DECLS

typedef struct {
    char *content; /* owned; no NUL inside */
    uint32_t id;
    bool special;
    bool normalized; /* looked for in the normalised text instead of the text as given */
} qe_added_token;

typedef struct {
    qe_bpe *bpe;
    qe_pretok *pretok;
    GArray *added; /* qe_added_token */
    bool nfc;
} qe_tokenizer_file;

/* @label: the file's name in messages. On failure @file is cleared. */
bool qe_tokenizer_file_parse(
    qe_tokenizer_file *file, const char *label, const char *data, gsize n, GError **error);
void qe_tokenizer_file_clear(qe_tokenizer_file *file);

/* *@eos: the content of tokenizer_config.json's eos_token, owned; NULL when it has none. */
bool qe_tokenizer_config_parse(const char *label, const char *data, gsize n, char **eos, GError **error);

/* A tokenizer from the bytes of a tokenizer.json; qe_tokenizer_new() is this after reading the file. */
qe_tokenizer *qe_tokenizer_parse(
    const char *label, const char *data, gsize n, GError **error) G_GNUC_WARN_UNUSED_RESULT;

G_END_DECLS
