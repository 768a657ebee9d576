/* qe-json.h: bounded reading of JSON files. Internal; any thread (no shared state).
 *
 * Two ways in, over one strict scanner (RFC 8259, UTF-8, no NUL, depth at most QE_JSON_DEPTH_MAX, iterative):
 *  - qe_json_reader hands out tokens one by one, with memory that does not grow with the document. It is for files whose
 *    size is set by others: safetensors headers and shard indexes.
 *  - qe_json_parse() scans a small document with it, refusing repeated keys at every level, and only then gives it to
 *    json-glib, whose parser recurses and would keep the last of two equal keys. The typed getters read the result.
 *
 * Errors: QE_ERROR_FILE (cannot be opened or read, not a regular file), QE_ERROR_FORMAT (not JSON, over a limit, wrong
 * type or value); the message has the file, the byte or the field, what was expected and what was found. */
#pragma once
#include <glib.h>
#include <json-glib/json-glib.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include "engine/qe-error.h"
#include "engine/qe-limits.h"
G_BEGIN_DECLS

/* Opens a regular file for reading; anything else (folder, FIFO, device, socket) is an error and never blocks.
 * Returns: the descriptor, owned, with the size at this moment in @n_bytes; -1 with @error set. */
int qe_file_open_regular(const char *path, uint64_t *n_bytes, GError **error);

/* Reads a whole regular file of at most @max_bytes. *@data is owned (g_free) and has a NUL after its *@n_bytes bytes. */
bool qe_file_read(const char *path, size_t max_bytes, char **data, size_t *n_bytes, GError **error);

/* --- token by token --------------------------------------------------------------------------------------------- */

typedef enum {
    QE_JSON_ERROR, /* @error is set; stays so */
    QE_JSON_END,   /* the document is complete and nothing but space follows */
    QE_JSON_OBJECT,
    QE_JSON_OBJECT_END,
    QE_JSON_ARRAY,
    QE_JSON_ARRAY_END,
    QE_JSON_KEY,     /* text */
    QE_JSON_STRING,  /* text */
    QE_JSON_INTEGER, /* integer, and number; no fraction or exponent, within int64 */
    QE_JSON_NUMBER,  /* number; may be infinite when too large for a double */
    QE_JSON_TRUE,
    QE_JSON_FALSE,
    QE_JSON_NULL,
} qe_json_token;

typedef struct {
    /* Public, valid until the next call. */
    GString *text; /* decoded UTF-8, no NUL inside */
    int64_t integer;
    double number;
    bool big_integer; /* QE_JSON_NUMBER that was written as an integer outside int64 */
    uint32_t depth;   /* open objects and arrays */
    /* Private. */
    const char *label; /* borrowed: the file's name in messages */
    const char *data;  /* borrowed */
    size_t n_bytes, pos;
    int state;
    uint8_t is_object[QE_JSON_DEPTH_MAX];
} qe_json_reader;

/* @label and @data are borrowed and must outlive the reader. Fails when @data is not UTF-8 or holds a NUL. */
bool qe_json_reader_init(
    qe_json_reader *self, const char *label, const char *data, size_t n_bytes, GError **error);
void qe_json_reader_clear(qe_json_reader *self);
qe_json_token qe_json_reader_next(qe_json_reader *self, GError **error);
/* Passes over the rest of the value whose first token, @first, was just returned. */
bool qe_json_reader_skip(qe_json_reader *self, qe_json_token first, GError **error);
const char *qe_json_token_name(qe_json_token token);

/* --- small documents, whole ------------------------------------------------------------------------------------- */

typedef enum {
    QE_JSON_DEFAULT = 0,
    /* Integers outside int64 pass the scan (json-glib then changes their value): for files that carry such numbers in
     * fields nobody reads, as tokenizer_config.json does in model_max_length. Otherwise they are an error. */
    QE_JSON_BIG_INTEGERS = 1 << 0,
} qe_json_flags;

/* Returns: the root object, owned (json_object_unref); NULL with @error set, also when the root is not an object. */
JsonObject *qe_json_parse(const char *label, const char *data, size_t n_bytes, qe_json_flags flags,
    GError **error) G_GNUC_WARN_UNUSED_RESULT;

/* An object together with how messages call it: the file, and the path of the object in it ("" or "rope_scaling."). */
typedef struct {
    const char *label;  /* borrowed */
    const char *prefix; /* borrowed */
    JsonObject *object; /* borrowed */
} qe_json_view;

/* Typed members. A member that is absent or null: with @found NULL an error, otherwise *@found = false and *@value stays.
 * A member of another type or outside [min, max] is always an error. Integers with a fraction part are refused. */
bool qe_json_get_int(const qe_json_view *view, const char *field, int64_t min, int64_t max, bool *found,
    int64_t *value, GError **error);
bool qe_json_get_u32(const qe_json_view *view, const char *field, uint32_t min, uint32_t max, bool *found,
    uint32_t *value, GError **error);
bool qe_json_get_double(const qe_json_view *view, const char *field, double min, double max, bool *found,
    double *value, GError **error);
bool qe_json_get_bool(const qe_json_view *view, const char *field, bool *found, bool *value, GError **error);
/* *@value is borrowed from the object. */
bool qe_json_get_string(
    const qe_json_view *view, const char *field, bool *found, const char **value, GError **error);
/* @value->object is borrowed from the outer object; @prefix is borrowed by @value. */
bool qe_json_get_object(const qe_json_view *view, const char *field, const char *prefix, bool *found,
    qe_json_view *value, GError **error);
/* Present and not null. */
bool qe_json_has(const qe_json_view *view, const char *field);
/* A few words for messages: what the member is ("the number 7", "a list"). Owned. */
char *qe_json_describe(const qe_json_view *view, const char *field);

/* @text as the inside of a JSON string: no escape that JSON does not demand, the short ones where there are; with quotes. */
void qe_json_write_escaped(GString *out, const char *text);
void qe_json_write_string(GString *out, const char *text);

/* The first characters of @text, for messages: long text ends in "...", never inside a character. Owned. */
char *qe_json_excerpt(const char *text);

G_END_DECLS
