/* qe-safetensors.h: one safetensors file: its header parsed and checked, its data mapped read-only. Internal; an opened
 * file is immutable, so any thread may read it.
 *
 * Format (safetensors README, "Format"): 8 bytes little-endian header length n; n bytes of JSON, an object of
 * name -> {"dtype", "shape", "data_offsets": [begin, end)} and optionally "__metadata__" (strings only), padded with
 * spaces; then the data, to which the offsets are relative. Refused here, as by the format's own reader: a header over
 * 100 MB or past the file's end, text that does not start with '{', a repeated name, begin > end, size != shape x dtype
 * (in checked arithmetic), overlaps, holes, and bytes after the last tensor.
 *
 * The size is taken by fstat when the file is opened and everything is checked against it. A program that truncates the
 * file later makes pages of the mapping unreadable (SIGBUS on access); replacing it by rename is safe, since the mapping
 * keeps the old file.
 *
 * Alignment: the data may start at any byte, so `data` may not be aligned to its element size; `unaligned` says so, and
 * such a tensor must be copied before it is read as elements (qe-model does that).
 *
 * Errors: QE_ERROR_FILE, QE_ERROR_FORMAT, QE_ERROR_UNSUPPORTED (a dtype or rank this build does not know),
 * QE_ERROR_NO_MEMORY. */
#pragma once
#include <glib.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include "engine/qe-error.h"
#include "engine/qe-limits.h"
G_BEGIN_DECLS

typedef enum {
    QE_DTYPE_BOOL,
    QE_DTYPE_U8,
    QE_DTYPE_I8,
    QE_DTYPE_F8_E4M3,
    QE_DTYPE_F8_E5M2,
    QE_DTYPE_F8_E8M0,
    QE_DTYPE_U16,
    QE_DTYPE_I16,
    QE_DTYPE_F16,
    QE_DTYPE_BF16,
    QE_DTYPE_U32,
    QE_DTYPE_I32,
    QE_DTYPE_F32,
    QE_DTYPE_U64,
    QE_DTYPE_I64,
    QE_DTYPE_F64,
    QE_DTYPE_C64,
    QE_N_DTYPES,
} qe_dtype;

const char *qe_dtype_name(qe_dtype dtype); /* as in the file: "BF16" */
uint32_t qe_dtype_bytes(qe_dtype dtype);   /* of one element */

typedef struct {
    const char *name;
    qe_dtype dtype;
    bool unaligned; /* data is not a multiple of qe_dtype_bytes() */
    uint32_t n_dims;
    uint64_t dims[QE_SAFETENSORS_DIMS_MAX]; /* [n_dims], outermost first */
    uint64_t begin;                         /* of the data, relative to the data part */
    uint64_t n_bytes;
    const void *data; /* into the mapping, [n_bytes] */
} qe_safetensor;

typedef struct qe_safetensors qe_safetensors;

/* Returns: owned; NULL with @error set, the file's name in the message. */
qe_safetensors *qe_safetensors_open(const char *path, GError **error) G_GNUC_WARN_UNUSED_RESULT;
/* The same checks over a file that is already in memory. @data is borrowed and must outlive the result; @label names it
 * in messages. */
qe_safetensors *qe_safetensors_new_from_memory(
    const char *label, const void *data, size_t n_bytes, GError **error) G_GNUC_WARN_UNUSED_RESULT;
void qe_safetensors_free(qe_safetensors *self); /* NULL is fine; unmaps: every view of its tensors ends */
G_DEFINE_AUTOPTR_CLEANUP_FUNC(qe_safetensors, qe_safetensors_free)

const char *qe_safetensors_get_path(const qe_safetensors *self);
uint64_t qe_safetensors_get_file_bytes(const qe_safetensors *self);
size_t qe_safetensors_get_n_tensors(const qe_safetensors *self);
/* Tensors are in the order of their names (byte order). Borrowed. */
const qe_safetensor *qe_safetensors_get_tensor(const qe_safetensors *self, size_t idx);
/* Borrowed; NULL when there is none of that name. */
const qe_safetensor *qe_safetensors_find(const qe_safetensors *self, const char *name);
/* "[2048, 1024]", for messages. Owned. */
char *qe_shape_to_string(const uint64_t *dims, uint32_t n_dims);

G_END_DECLS
