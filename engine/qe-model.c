/* qe-model.c: opens a model folder and binds its tensors to the places where the forward pass wants them.
 *
 * 1. Opening is all or nothing: a qe_model that exists has every weight, each of the shape its config demands.
 * 2. With an index, the index alone decides which file a tensor comes from; file names in it are plain names, so no path
 *    leaves the folder (links inside the folder are the user's own and are followed).
 * 3. Each view's data is aligned to its element.
 *
 * A qe_model owns its shards (which own the mappings and the tensors' names), the copies of unaligned tensors, and its
 * strings. */
#include "engine/qe-model.h"
#include "engine/qe-json.h"
#include <stdlib.h>
#include <string.h>

#define INDEX_NAME   "model.safetensors.index.json"
#define SINGLE_NAME  "model.safetensors"
#define COPY_ALIGN   64
#define SAMPLE_BYTES 64u

struct qe_model {
    gatomicrefcount ref_count;
    char *dir;
    char *name;
    qe_config config;
    qe_generation_defaults generation;
    GPtrArray *shards;    /* of qe_safetensors, by file name */
    GHashTable *shard_of; /* tensor name -> qe_safetensors (borrowed); what the index says, or the one file */
    GPtrArray *copies;    /* of unaligned tensors */
    GHashTable *used;     /* tensor names, borrowed from the shards */
    char **ignored;
    qe_model_weights weights;
    qe_layer_weights *layers;
    uint64_t n_params, n_weight_bytes, n_copied_bytes;
    gsize fingerprint_once;
    uint8_t fingerprint[QE_MODEL_FINGERPRINT_BYTES];
};

/* ---- index ----------------------------------------------------------------------------------------------------- */

static bool is_plain_file_name(const char *name)
{
    return name[0] != '\0' && strlen(name) <= 255 && strchr(name, '/') == NULL &&
           strchr(name, '\\') == NULL && strcmp(name, ".") != 0 && strcmp(name, "..") != 0;
}

/* After the key "weight_map". */
static bool parse_weight_map(qe_json_reader *reader, const char *label, GHashTable *map, GError **error)
{
    qe_json_token token = qe_json_reader_next(reader, error);
    if (token == QE_JSON_OBJECT) {
        while ((token = qe_json_reader_next(reader, error)) == QE_JSON_KEY) {
            if (reader->text->len > QE_SAFETENSORS_NAME_BYTES_MAX ||
                g_hash_table_size(map) >= QE_SAFETENSORS_TENSORS_MAX) {
                g_set_error(error, QE_ERROR, QE_ERROR_FORMAT,
                    "%s: weight_map: expected at most %u tensors with names of at most %u bytes", label,
                    QE_SAFETENSORS_TENSORS_MAX, QE_SAFETENSORS_NAME_BYTES_MAX);
                return false;
            }
            if (g_hash_table_contains(map, reader->text->str)) {
                g_set_error(error, QE_ERROR, QE_ERROR_FORMAT, "%s: weight_map: tensor %s is there twice",
                    label, reader->text->str);
                return false;
            }
            g_autofree char *tensor = g_strdup(reader->text->str);
            token = qe_json_reader_next(reader, error);
            if (token != QE_JSON_STRING)
                break;
            if (!is_plain_file_name(reader->text->str)) {
                g_autofree char *found = qe_json_excerpt(reader->text->str);
                g_set_error(error, QE_ERROR, QE_ERROR_FORMAT,
                    "%s: weight_map: tensor %s: expected the name of a file in this folder, found \"%s\"",
                    label, tensor, found);
                return false;
            }
            g_hash_table_insert(map, g_steal_pointer(&tensor), g_strdup(reader->text->str));
        }
        if (token == QE_JSON_OBJECT_END)
            return true;
    }
    if (token != QE_JSON_ERROR)
        g_set_error(error, QE_ERROR, QE_ERROR_FORMAT,
            "%s: weight_map: expected an object of file names, found %s", label, qe_json_token_name(token));
    return false;
}

static bool parse_index(qe_json_reader *reader, const char *label, GHashTable *map, GError **error)
{
    bool seen = false;
    qe_json_token token = qe_json_reader_next(reader, error);
    if (token == QE_JSON_ERROR)
        return false;
    if (token != QE_JSON_OBJECT) {
        g_set_error(error, QE_ERROR, QE_ERROR_FORMAT, "%s: expected an object, found %s", label,
            qe_json_token_name(token));
        return false;
    }
    while ((token = qe_json_reader_next(reader, error)) == QE_JSON_KEY) {
        if (strcmp(reader->text->str, "weight_map") != 0) {
            token = qe_json_reader_next(reader, error);
            if (!qe_json_reader_skip(reader, token, error))
                return false;
            continue;
        }
        if (seen) {
            g_set_error(error, QE_ERROR, QE_ERROR_FORMAT, "%s: weight_map is there twice", label);
            return false;
        }
        seen = true;
        if (!parse_weight_map(reader, label, map, error))
            return false;
    }
    if (token == QE_JSON_ERROR || qe_json_reader_next(reader, error) != QE_JSON_END)
        return false;
    if (!seen || g_hash_table_size(map) == 0) {
        g_set_error(error, QE_ERROR, QE_ERROR_FORMAT, "%s: weight_map: expected tensors, found none", label);
        return false;
    }
    return true;
}

GHashTable *qe_model_index_parse(const char *label, const char *data, size_t n_bytes, GError **error)
{
    g_autoptr(GHashTable) map = g_hash_table_new_full(g_str_hash, g_str_equal, g_free, g_free);
    qe_json_reader reader;
    bool ok =
        qe_json_reader_init(&reader, label, data, n_bytes, error) && parse_index(&reader, label, map, error);
    qe_json_reader_clear(&reader);
    return ok ? g_steal_pointer(&map) : NULL;
}

/* ---- shards ---------------------------------------------------------------------------------------------------- */

static qe_safetensors *open_shard(qe_model *self, const char *file, GError **error)
{
    g_autofree char *path = g_build_filename(self->dir, file, NULL);
    qe_safetensors *shard = qe_safetensors_open(path, error);
    if (shard != NULL)
        g_ptr_array_add(self->shards, shard);
    return shard;
}

static int compare_strings(const void *a, const void *b)
{
    return strcmp(*(const char *const *)a, *(const char *const *)b);
}

static bool open_indexed(qe_model *self, const char *index_path, GError **error)
{
    g_autofree char *data = NULL;
    size_t n_bytes = 0;
    if (!qe_file_read(index_path, QE_JSON_INDEX_BYTES_MAX, &data, &n_bytes, error))
        return false;
    g_autoptr(GHashTable) map = qe_model_index_parse(index_path, data, n_bytes, error);
    if (map == NULL)
        return false;
    g_clear_pointer(&data, g_free);

    g_autoptr(GHashTable) by_file = g_hash_table_new(g_str_hash, g_str_equal); /* file name -> shard */
    GHashTableIter iter;
    gpointer tensor, file;
    g_hash_table_iter_init(&iter, map);
    while (g_hash_table_iter_next(&iter, &tensor, &file))
        g_hash_table_add(by_file, file);
    guint n_files = 0;
    g_autofree gpointer *files = g_hash_table_get_keys_as_array(by_file, &n_files);
    if (n_files > QE_MODEL_SHARDS_MAX) {
        g_set_error(error, QE_ERROR, QE_ERROR_FORMAT, "%s: expected at most %u shards, found %u", index_path,
            QE_MODEL_SHARDS_MAX, n_files);
        return false;
    }
    qsort(files, n_files, sizeof *files, compare_strings);
    for (guint i = 0; i < n_files; i++) {
        qe_safetensors *shard = open_shard(self, files[i], error);
        if (shard == NULL)
            return false;
        g_hash_table_replace(by_file, files[i], shard);
    }
    g_hash_table_iter_init(&iter, map);
    while (g_hash_table_iter_next(&iter, &tensor, &file)) {
        qe_safetensors *shard = g_hash_table_lookup(by_file, file);
        const qe_safetensor *found = qe_safetensors_find(shard, tensor);
        if (found == NULL) {
            g_set_error(error, QE_ERROR, QE_ERROR_FORMAT,
                "%s: tensor %s: expected in this file by %s, found nothing", qe_safetensors_get_path(shard),
                (const char *)tensor, INDEX_NAME);
            return false;
        }
        g_hash_table_insert(self->shard_of, (gpointer)found->name, shard);
    }
    return true;
}

static bool open_weights(qe_model *self, GError **error)
{
    g_autofree char *index_path = g_build_filename(self->dir, INDEX_NAME, NULL);
    if (g_file_test(index_path, G_FILE_TEST_EXISTS))
        return open_indexed(self, index_path, error);
    g_autofree char *single_path = g_build_filename(self->dir, SINGLE_NAME, NULL);
    if (!g_file_test(single_path, G_FILE_TEST_EXISTS)) {
        g_set_error(error, QE_ERROR, QE_ERROR_FILE, "%s: expected %s or %s, found neither", self->dir,
            SINGLE_NAME, INDEX_NAME);
        return false;
    }
    qe_safetensors *shard = open_shard(self, SINGLE_NAME, error);
    if (shard == NULL)
        return false;
    for (size_t i = 0; i < qe_safetensors_get_n_tensors(shard); i++)
        g_hash_table_insert(self->shard_of, (gpointer)qe_safetensors_get_tensor(shard, i)->name, shard);
    return true;
}

/* ---- binding --------------------------------------------------------------------------------------------------- */

static const void *aligned_data(qe_model *self, const qe_safetensor *tensor, const char *path, GError **error)
{
    void *copy = NULL;
    if (!tensor->unaligned || tensor->n_bytes == 0)
        return tensor->data;
    if (posix_memalign(&copy, COPY_ALIGN, (size_t)tensor->n_bytes) != 0) {
        g_set_error(error, QE_ERROR, QE_ERROR_NO_MEMORY,
            "%s: tensor %s: no memory to copy %" G_GUINT64_FORMAT " unaligned bytes", path, tensor->name,
            tensor->n_bytes);
        return NULL;
    }
    memcpy(copy, tensor->data, (size_t)tensor->n_bytes);
    g_ptr_array_add(self->copies, copy);
    self->n_copied_bytes += tensor->n_bytes;
    return copy;
}

/* @rows 0: a vector [cols]. */
static bool bind_weight(
    qe_model *self, const char *name, uint64_t rows, uint64_t cols, qe_weight *weight, GError **error)
{
    qe_safetensors *shard = g_hash_table_lookup(self->shard_of, name);
    uint64_t dims[2] = {rows, cols};
    const uint64_t *want = rows == 0 ? dims + 1 : dims;
    uint32_t n_want = rows == 0 ? 1 : 2;
    g_autofree char *expected = qe_shape_to_string(want, n_want);
    if (shard == NULL) {
        const char *where =
            self->shards->len == 1 ? qe_safetensors_get_path(self->shards->pdata[0]) : self->dir;
        g_set_error(error, QE_ERROR, QE_ERROR_FORMAT,
            strcmp(name, "lm_head.weight") == 0
                ? "%s: tensor %s is missing: expected %s, since tie_word_embeddings is false"
                : "%s: tensor %s is missing: expected %s",
            where, name, expected);
        return false;
    }
    const char *path = qe_safetensors_get_path(shard);
    const qe_safetensor *tensor = qe_safetensors_find(shard, name);
    if (tensor->n_dims != n_want || memcmp(tensor->dims, want, n_want * sizeof *want) != 0) {
        g_autofree char *found = qe_shape_to_string(tensor->dims, tensor->n_dims);
        g_set_error(error, QE_ERROR, QE_ERROR_FORMAT,
            "%s: tensor %s: expected shape %s (from config.json), found %s", path, name, expected, found);
        return false;
    }
    if (tensor->dtype != QE_DTYPE_BF16 && tensor->dtype != QE_DTYPE_F32) {
        g_set_error(error, QE_ERROR, QE_ERROR_UNSUPPORTED,
            "%s: tensor %s: expected dtype BF16 or F32, found %s", path, name, qe_dtype_name(tensor->dtype));
        return false;
    }
    const void *data = aligned_data(self, tensor, path, error);
    if (data == NULL)
        return false;
    *weight = (qe_weight){
        .name = tensor->name,
        .data = data,
        .dtype = tensor->dtype,
        .rows = rows == 0 ? 1 : (uint32_t)rows,
        .cols = (uint32_t)cols,
        .n_bytes = tensor->n_bytes,
    };
    g_hash_table_add(self->used, (gpointer)tensor->name);
    self->n_params += (uint64_t)weight->rows * weight->cols;
    self->n_weight_bytes += weight->n_bytes;
    return true;
}

static bool bind_layer(qe_model *self, uint32_t idx, GError **error)
{
    const qe_config *c = &self->config;
    qe_layer_weights *layer = &self->layers[idx];
    uint64_t q_rows = (uint64_t)c->n_heads * c->head_dim, kv_rows = (uint64_t)c->n_kv_heads * c->head_dim;
    const struct {
        const char *name;
        uint64_t rows, cols;
        qe_weight *weight;
    } parts[] = {
        {"input_layernorm", 0, c->hidden, &layer->attn_norm},
        {"self_attn.q_proj", q_rows, c->hidden, &layer->q},
        {"self_attn.k_proj", kv_rows, c->hidden, &layer->k},
        {"self_attn.v_proj", kv_rows, c->hidden, &layer->v},
        {"self_attn.o_proj", c->hidden, q_rows, &layer->o},
        {"self_attn.q_norm", 0, c->head_dim, &layer->q_norm},
        {"self_attn.k_norm", 0, c->head_dim, &layer->k_norm},
        {"post_attention_layernorm", 0, c->hidden, &layer->ffn_norm},
        {"mlp.gate_proj", c->ffn, c->hidden, &layer->gate},
        {"mlp.up_proj", c->ffn, c->hidden, &layer->up},
        {"mlp.down_proj", c->hidden, c->ffn, &layer->down},
    };
    for (size_t i = 0; i < G_N_ELEMENTS(parts); i++) {
        char name[96];
        g_snprintf(name, sizeof name, "model.layers.%u.%s.weight", idx, parts[i].name);
        if (!bind_weight(self, name, parts[i].rows, parts[i].cols, parts[i].weight, error))
            return false;
    }
    return true;
}

static bool bind_weights(qe_model *self, GError **error)
{
    const qe_config *c = &self->config;
    qe_model_weights *w = &self->weights;
    self->layers = g_new0(qe_layer_weights, c->n_layers);
    w->layers = self->layers;
    if (!bind_weight(self, "model.embed_tokens.weight", c->vocab, c->hidden, &w->embed, error) ||
        !bind_weight(self, "model.norm.weight", 0, c->hidden, &w->final_norm, error))
        return false;
    /* Tied: the embedding is the head, also when a file carries a copy of it under the head's name. */
    if (c->tied)
        w->lm_head = w->embed;
    else if (!bind_weight(self, "lm_head.weight", c->vocab, c->hidden, &w->lm_head, error))
        return false;
    for (uint32_t i = 0; i < c->n_layers; i++)
        if (!bind_layer(self, i, error))
            return false;
    return true;
}

/* A layer past the config's last one is not a harmless extra: the config would silently cut the model. */
static bool check_extra_layers(const qe_model *self, GError **error)
{
    static const char prefix[] = "model.layers.";
    for (char **name = self->ignored; *name != NULL; name++) {
        if (!g_str_has_prefix(*name, prefix) || !g_ascii_isdigit((*name)[sizeof prefix - 1]))
            continue;
        guint64 idx = g_ascii_strtoull(*name + sizeof prefix - 1, NULL, 10);
        if (idx >= self->config.n_layers) {
            g_set_error(error, QE_ERROR, QE_ERROR_FORMAT,
                "%s: tensor %s: expected layers below %u (num_hidden_layers), found more", self->dir, *name,
                self->config.n_layers);
            return false;
        }
    }
    return true;
}

static void list_ignored(qe_model *self)
{
    GPtrArray *names = g_ptr_array_new();
    for (guint s = 0; s < self->shards->len; s++) {
        const qe_safetensors *shard = self->shards->pdata[s];
        for (size_t i = 0; i < qe_safetensors_get_n_tensors(shard); i++) {
            const char *name = qe_safetensors_get_tensor(shard, i)->name;
            /* By pointer first: the same name in a shard that the index does not give it to is unused. */
            gpointer used = NULL;
            if (!g_hash_table_lookup_extended(self->used, name, &used, NULL) || used != (gpointer)name)
                g_ptr_array_add(names, g_strdup(name));
        }
    }
    g_ptr_array_sort(names, compare_strings);
    g_ptr_array_add(names, NULL);
    self->ignored = (char **)g_ptr_array_free(names, FALSE);
}

/* ---- name ------------------------------------------------------------------------------------------------------ */

static bool is_hex_name(const char *name)
{
    size_t n = strlen(name);
    return n >= 32 && strspn(name, "0123456789abcdef") == n;
}

static char *choose_name(const char *dir, const qe_config *config)
{
    g_autofree char *full = g_canonicalize_filename(dir, NULL);
    g_autofree char *base = g_path_get_basename(full);
    if (!is_hex_name(base))
        return g_filename_display_name(base);
    if (config->name_or_path[0] != '\0') {
        g_autofree char *last = g_path_get_basename(config->name_or_path);
        if (last[0] != '.' && last[0] != '/' && !is_hex_name(last))
            return g_steal_pointer(&last);
    }
    /* .../models--Qwen--Qwen3-0.6B/snapshots/<hash> */
    g_autofree char *snapshots = g_path_get_dirname(full);
    g_autofree char *entry_dir = g_path_get_dirname(snapshots);
    g_autofree char *entry = g_path_get_basename(entry_dir);
    const char *last = g_strrstr(entry, "--");
    if (g_str_has_prefix(entry, "models--") && last[2] != '\0')
        return g_filename_display_name(last + 2);
    return g_filename_display_name(base);
}

/* ---- fingerprint ----------------------------------------------------------------------------------------------- */

static void digest_u64(GChecksum *sum, uint64_t value)
{
    uint64_t le = GUINT64_TO_LE(value);
    g_checksum_update(sum, (const guchar *)&le, sizeof le);
}

static void digest_double(GChecksum *sum, double value)
{
    uint64_t bits;
    memcpy(&bits, &value, sizeof bits);
    digest_u64(sum, bits);
}

static void digest_weight(GChecksum *sum, const qe_weight *weight)
{
    const guchar *data = weight->data;
    uint64_t n = MIN(weight->n_bytes, SAMPLE_BYTES);
    digest_u64(sum, strlen(weight->name));
    g_checksum_update(sum, (const guchar *)weight->name, (gssize)strlen(weight->name));
    digest_u64(sum, weight->dtype);
    digest_u64(sum, weight->rows);
    digest_u64(sum, weight->cols);
    g_checksum_update(sum, data, (gssize)n);
    g_checksum_update(sum, data + (weight->n_bytes - n) / 2, (gssize)n);
    g_checksum_update(sum, data + (weight->n_bytes - n), (gssize)n);
}

static void digest_config(GChecksum *sum, const qe_config *c)
{
    const uint64_t sizes[] = {
        c->n_layers, c->n_heads, c->n_kv_heads, c->head_dim, c->hidden, c->ffn, c->vocab, c->tied};
    for (size_t i = 0; i < G_N_ELEMENTS(sizes); i++)
        digest_u64(sum, sizes[i]);
    digest_double(sum, c->rms_eps);
    digest_double(sum, c->rope_theta);
    digest_u64(sum, c->rope_yarn);
    digest_double(sum, c->rope_yarn_factor);
    digest_u64(sum, c->rope_yarn_original);
    digest_double(sum, c->rope_attn_factor);
    for (uint32_t i = 0; i < c->head_dim / 2; i++)
        digest_double(sum, c->rope_inv_freq[i]);
}

static void compute_fingerprint(qe_model *self)
{
    static const char version[] = "quire model fingerprint 1";
    guint8 digest[32];
    gsize n_digest = sizeof digest;
    GChecksum *sum = g_checksum_new(G_CHECKSUM_SHA256);
    g_checksum_update(sum, (const guchar *)version, sizeof version);
    digest_config(sum, &self->config);
    digest_u64(sum, self->shards->len);
    for (guint i = 0; i < self->shards->len; i++)
        digest_u64(sum, qe_safetensors_get_file_bytes(self->shards->pdata[i]));
    digest_weight(sum, &self->weights.embed);
    digest_weight(sum, &self->weights.final_norm);
    digest_weight(sum, &self->weights.lm_head);
    for (uint32_t i = 0; i < self->config.n_layers; i++) {
        const qe_layer_weights *l = &self->layers[i];
        const qe_weight *const all[] = {&l->attn_norm, &l->q, &l->k, &l->v, &l->o, &l->q_norm, &l->k_norm,
            &l->ffn_norm, &l->gate, &l->up, &l->down};
        for (size_t j = 0; j < G_N_ELEMENTS(all); j++)
            digest_weight(sum, all[j]);
    }
    g_checksum_get_digest(sum, digest, &n_digest);
    g_checksum_free(sum);
    memcpy(self->fingerprint, digest, sizeof self->fingerprint);
}

void qe_model_get_fingerprint(qe_model *self, uint8_t fingerprint[QE_MODEL_FINGERPRINT_BYTES])
{
    if (g_once_init_enter(&self->fingerprint_once)) {
        compute_fingerprint(self);
        g_once_init_leave(&self->fingerprint_once, 1);
    }
    memcpy(fingerprint, self->fingerprint, sizeof self->fingerprint);
}

/* ---- life ------------------------------------------------------------------------------------------------------ */

static bool load_configs(qe_model *self, GError **error)
{
    g_autofree char *config_path = g_build_filename(self->dir, "config.json", NULL);
    g_autofree char *generation_path = g_build_filename(self->dir, "generation_config.json", NULL);
    if (!qe_config_load(config_path, &self->config, error) ||
        !qe_generation_defaults_load(generation_path, &self->generation, error))
        return false;
    for (uint32_t i = 0; i < self->generation.eos.n; i++) {
        if (self->generation.eos.ids[i] >= self->config.vocab) {
            g_set_error(error, QE_ERROR, QE_ERROR_FORMAT, "%s: eos_token_id: expected ids below %u, found %u",
                generation_path, self->config.vocab, self->generation.eos.ids[i]);
            return false;
        }
    }
    return true;
}

qe_model *qe_model_open(const char *dir, GError **error)
{
    g_autoptr(qe_model) self = g_new0(qe_model, 1);
    g_atomic_ref_count_init(&self->ref_count);
    self->dir = g_strdup(dir);
    self->shards = g_ptr_array_new_with_free_func((GDestroyNotify)qe_safetensors_free);
    self->shard_of = g_hash_table_new(g_str_hash, g_str_equal);
    self->copies = g_ptr_array_new_with_free_func(free);
    self->used = g_hash_table_new(g_str_hash, g_str_equal);
    if (!load_configs(self, error) || !open_weights(self, error) || !bind_weights(self, error))
        return NULL;
    list_ignored(self);
    if (!check_extra_layers(self, error))
        return NULL;
    self->name = choose_name(dir, &self->config);
    return g_steal_pointer(&self);
}

qe_model *qe_model_ref(qe_model *self)
{
    g_atomic_ref_count_inc(&self->ref_count);
    return self;
}

void qe_model_unref(qe_model *self)
{
    if (self == NULL || !g_atomic_ref_count_dec(&self->ref_count))
        return;
    g_hash_table_unref(self->used);
    g_hash_table_unref(self->shard_of);
    g_ptr_array_unref(self->copies);
    g_ptr_array_unref(self->shards);
    g_strfreev(self->ignored);
    g_free(self->layers);
    g_free(self->name);
    g_free(self->dir);
    g_free(self);
}

const char *qe_model_get_dir(const qe_model *self)
{
    return self->dir;
}

const char *qe_model_get_name(const qe_model *self)
{
    return self->name;
}

const qe_config *qe_model_get_config(const qe_model *self)
{
    return &self->config;
}

const qe_generation_defaults *qe_model_get_generation(const qe_model *self)
{
    return &self->generation;
}

const qe_model_weights *qe_model_get_weights(const qe_model *self)
{
    return &self->weights;
}

void qe_model_get_eos(const qe_model *self, int64_t tokenizer_eos, qe_eos_list *eos)
{
    qe_eos_list_resolve(&self->config, &self->generation, tokenizer_eos, eos);
}

uint64_t qe_model_get_n_params(const qe_model *self)
{
    return self->n_params;
}

uint64_t qe_model_get_weight_bytes(const qe_model *self)
{
    return self->n_weight_bytes;
}

uint64_t qe_model_get_copied_bytes(const qe_model *self)
{
    return self->n_copied_bytes;
}

const char *const *qe_model_get_ignored(const qe_model *self)
{
    return (const char *const *)self->ignored;
}
