/* qe-model.h: a Hugging Face model folder, opened and checked. Internal. A qe_model is immutable after opening, so any
 * thread may read it; references are counted atomically.
 *
 * Files read: config.json, generation_config.json (may be absent), and either model.safetensors.index.json with the
 * shards it names or, when there is no index, model.safetensors. With an index a model.safetensors beside it is ignored.
 * The tokenizer's files are not read here.
 *
 * Weights stay in the mapped files: views point into them, nothing is converted. The one exception is a tensor whose data
 * is not aligned to its element size (the format allows it): it is copied into memory of the model, so every view's data
 * is aligned to its element; qe_model_get_copied_bytes() says how much that was (0 for files of the usual tools).
 *
 * dtypes: matrices BF16 or F32, norms BF16 or F32, each tensor on its own. F16 and others are QE_ERROR_UNSUPPORTED.
 * Tensors that the model does not use are listed, not an error. A missing or mis-shaped tensor is QE_ERROR_FORMAT with
 * file, tensor, expected and found. See qe-safetensors.h about files that shrink while they are mapped. */
#pragma once
#include <glib.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include "engine/qe-config.h"
#include "engine/qe-error.h"
#include "engine/qe-safetensors.h"
G_BEGIN_DECLS

/* A row-major matrix [rows, cols], or a vector as [1, cols]. */
typedef struct {
    const char *name; /* as in the file */
    const void *data; /* aligned to the element; valid while the model lives */
    qe_dtype dtype;   /* QE_DTYPE_BF16 or QE_DTYPE_F32 */
    uint32_t rows, cols;
    uint64_t n_bytes;
} qe_weight;

typedef struct {
    qe_weight attn_norm; /* [hidden] */
    qe_weight q;         /* [n_heads * head_dim, hidden] */
    qe_weight k, v;      /* [n_kv_heads * head_dim, hidden] */
    qe_weight o;         /* [hidden, n_heads * head_dim] */
    qe_weight q_norm;    /* [head_dim] */
    qe_weight k_norm;    /* [head_dim] */
    qe_weight ffn_norm;  /* [hidden] */
    qe_weight gate, up;  /* [ffn, hidden] */
    qe_weight down;      /* [hidden, ffn] */
} qe_layer_weights;

typedef struct {
    qe_weight embed;                /* [vocab, hidden] */
    qe_weight final_norm;           /* [hidden] */
    qe_weight lm_head;              /* [vocab, hidden]; equal to embed when the config says tied */
    const qe_layer_weights *layers; /* [n_layers] */
} qe_model_weights;

#define QE_MODEL_FINGERPRINT_BYTES 16

typedef struct qe_model qe_model;

/* Returns: owned; NULL with @error set, and nothing stays mapped. */
qe_model *qe_model_open(const char *dir, GError **error) G_GNUC_WARN_UNUSED_RESULT;
qe_model *qe_model_ref(qe_model *self);
void qe_model_unref(qe_model *self); /* NULL is fine; the last one unmaps the weights */
G_DEFINE_AUTOPTR_CLEANUP_FUNC(qe_model, qe_model_unref)

const char *qe_model_get_dir(const qe_model *self);
/* For display: the folder's name; for a snapshot of the Hugging Face cache (a hexadecimal folder name) the last part of
 * _name_or_path or of the cache entry's name. */
const char *qe_model_get_name(const qe_model *self);
const qe_config *qe_model_get_config(const qe_model *self);
const qe_generation_defaults *qe_model_get_generation(const qe_model *self);
const qe_model_weights *qe_model_get_weights(const qe_model *self);
/* Ids that end a reply: qe_eos_list_resolve() over this folder. @tokenizer_eos: see there. */
void qe_model_get_eos(const qe_model *self, int64_t tokenizer_eos, qe_eos_list *eos);
uint64_t qe_model_get_n_params(
    const qe_model *self); /* of the weights in use; a tied embedding counts once */
uint64_t qe_model_get_weight_bytes(const qe_model *self); /* of the same */
uint64_t qe_model_get_copied_bytes(const qe_model *self);
/* Names of tensors in the files that the model does not use, sorted, NULL at the end. Borrowed. */
const char *const *qe_model_get_ignored(const qe_model *self);

/* A digest that names these weights for caches on disk: the first 16 bytes of SHA-256 over the fields of the config that
 * enter the arithmetic, the name, dtype and shape of each weight in use, the sizes of the weight files, and of each
 * weight's data three samples of up to 64 bytes (start, middle, end). It does not depend on where the folder lies, on
 * times, on shard boundaries' names or on generation defaults. It is a sample: two models that differ only in weights
 * between the samples get the same digest. The first call reads the samples; later calls return the same bytes. */
void qe_model_get_fingerprint(qe_model *self, uint8_t fingerprint[QE_MODEL_FINGERPRINT_BYTES]);

/* The index of a sharded model: tensor name -> shard file name, both owned strings. Exposed for the fuzz target. */
GHashTable *qe_model_index_parse(
    const char *label, const char *data, size_t n_bytes, GError **error) G_GNUC_WARN_UNUSED_RESULT;

G_END_DECLS
