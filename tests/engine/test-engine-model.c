/* test-engine-model.c: model folders: tiny ones written here, and damaged copies of the shipped model. */
#include "engine/qe-model.h"
#include <errno.h>
#include <fcntl.h>
#include <glib/gstdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

/* ---- folders --------------------------------------------------------------------------------------------------- */

typedef struct {
    char *dir;
    GPtrArray *tensors; /* of tensor_spec; the tests edit it before it is written */
    const char *config_extra;
    uint32_t n_layers, hidden, n_heads, n_kv_heads, head_dim, ffn, vocab;
} folder;

typedef struct {
    char *name;
    const char *dtype;
    uint64_t dims[2];
    uint32_t n_dims;
} tensor_spec;

static void spec_free(gpointer data)
{
    tensor_spec *spec = data;
    g_free(spec->name);
    g_free(spec);
}

static void add_tensor(folder *f, const char *dtype, uint64_t rows, uint64_t cols, const char *format, ...)
    G_GNUC_PRINTF(5, 6);

/* @rows 0: a vector. */
static void add_tensor(folder *f, const char *dtype, uint64_t rows, uint64_t cols, const char *format, ...)
{
    tensor_spec *spec = g_new0(tensor_spec, 1);
    va_list args;
    va_start(args, format);
    spec->name = g_strdup_vprintf(format, args);
    va_end(args);
    spec->dtype = dtype;
    spec->n_dims = rows == 0 ? 1 : 2;
    spec->dims[0] = rows == 0 ? cols : rows;
    spec->dims[1] = cols;
    g_ptr_array_add(f->tensors, spec);
}

static tensor_spec *find_spec(folder *f, const char *name)
{
    for (guint i = 0; i < f->tensors->len; i++) {
        tensor_spec *spec = f->tensors->pdata[i];
        if (strcmp(spec->name, name) == 0)
            return spec;
    }
    g_error("no tensor %s", name);
    return NULL;
}

static void drop_tensor(folder *f, const char *name)
{
    g_ptr_array_remove(f->tensors, find_spec(f, name));
}

static void fill_tensors(folder *f)
{
    uint64_t q = (uint64_t)f->n_heads * f->head_dim, kv = (uint64_t)f->n_kv_heads * f->head_dim;
    add_tensor(f, "BF16", f->vocab, f->hidden, "model.embed_tokens.weight");
    for (uint32_t i = 0; i < f->n_layers; i++) {
        add_tensor(f, "BF16", 0, f->hidden, "model.layers.%u.input_layernorm.weight", i);
        add_tensor(f, "BF16", q, f->hidden, "model.layers.%u.self_attn.q_proj.weight", i);
        add_tensor(f, "BF16", kv, f->hidden, "model.layers.%u.self_attn.k_proj.weight", i);
        add_tensor(f, "BF16", kv, f->hidden, "model.layers.%u.self_attn.v_proj.weight", i);
        add_tensor(f, "BF16", f->hidden, q, "model.layers.%u.self_attn.o_proj.weight", i);
        add_tensor(f, "F32", 0, f->head_dim, "model.layers.%u.self_attn.q_norm.weight", i);
        add_tensor(f, "BF16", 0, f->head_dim, "model.layers.%u.self_attn.k_norm.weight", i);
        add_tensor(f, "BF16", 0, f->hidden, "model.layers.%u.post_attention_layernorm.weight", i);
        add_tensor(f, "BF16", f->ffn, f->hidden, "model.layers.%u.mlp.gate_proj.weight", i);
        add_tensor(f, "BF16", f->ffn, f->hidden, "model.layers.%u.mlp.up_proj.weight", i);
        add_tensor(f, "F32", f->hidden, f->ffn, "model.layers.%u.mlp.down_proj.weight", i);
    }
    add_tensor(f, "BF16", 0, f->hidden, "model.norm.weight");
}

static folder *folder_new_shaped(uint32_t hidden, uint32_t n_heads, uint32_t n_kv_heads, uint32_t head_dim)
{
    folder *f = g_new0(folder, 1);
    f->dir = g_dir_make_tmp("quire-model-XXXXXX", NULL);
    g_assert_nonnull(f->dir);
    f->tensors = g_ptr_array_new_with_free_func(spec_free);
    *f = (folder){f->dir, f->tensors, ",\"tie_word_embeddings\":true", 2, hidden, n_heads, n_kv_heads,
        head_dim, 12, 10};
    fill_tensors(f);
    return f;
}

/* hidden 8 with 3 heads of 4: the heads together are wider than the hidden state. */
static folder *folder_new(void)
{
    return folder_new_shaped(8, 3, 1, 4);
}

static void folder_free(folder *f)
{
    g_autoptr(GDir) dir = g_dir_open(f->dir, 0, NULL);
    const char *name;
    while (dir != NULL && (name = g_dir_read_name(dir)) != NULL) {
        g_autofree char *path = g_build_filename(f->dir, name, NULL);
        if (g_remove(path) != 0)
            g_test_message("left behind: %s", path);
    }
    g_rmdir(f->dir);
    g_ptr_array_unref(f->tensors);
    g_free(f->dir);
    g_free(f);
}
G_DEFINE_AUTOPTR_CLEANUP_FUNC(folder, folder_free)

static void write_text(const folder *f, const char *name, const char *text)
{
    g_autofree char *path = g_build_filename(f->dir, name, NULL);
    g_assert_true(g_file_set_contents(path, text, -1, NULL));
}

static void write_config(const folder *f)
{
    g_autofree char *text = g_strdup_printf(
        "{\"model_type\":\"qwen3\",\"hidden_size\":%u,\"num_attention_heads\":%u,\"num_key_value_heads\":%u,"
        "\"head_dim\":%u,\"num_hidden_layers\":%u,\"intermediate_size\":%u,\"vocab_size\":%u,"
        "\"max_position_embeddings\":64,\"rope_theta\":10000,\"eos_token_id\":3%s}",
        f->hidden, f->n_heads, f->n_kv_heads, f->head_dim, f->n_layers, f->ffn, f->vocab, f->config_extra);
    write_text(f, "config.json", text);
}

/* Tensors [first, end) in one file; @n_odd bytes of an extra U8 tensor come first, which unaligns the rest. The data is
 * a hole of zeros but for one byte at the start of each tensor: its index + 1. */
static void write_tensors(const folder *f, const char *name, guint first, guint end, uint32_t n_odd)
{
    GString *header = g_string_new("{");
    g_autoptr(GArray) begins = g_array_new(FALSE, FALSE, sizeof(uint64_t));
    uint64_t at = n_odd;
    if (n_odd > 0)
        g_string_append_printf(
            header, "\"odd\":{\"dtype\":\"U8\",\"shape\":[%u],\"data_offsets\":[0,%u]},", n_odd, n_odd);
    for (guint i = first; i < end; i++) {
        const tensor_spec *spec = f->tensors->pdata[i];
        uint64_t n = spec->dims[0] * (spec->n_dims == 2 ? spec->dims[1] : 1) *
                     (strcmp(spec->dtype, "F32") == 0 ? 4 : 2);
        g_autofree char *shape = qe_shape_to_string(spec->dims, spec->n_dims);
        g_string_append_printf(header,
            "%s\"%s\":{\"dtype\":\"%s\",\"shape\":%s,\"data_offsets\":[%" G_GUINT64_FORMAT
            ",%" G_GUINT64_FORMAT "]}",
            i > first ? "," : "", spec->name, spec->dtype, shape, at, at + n);
        g_array_append_val(begins, at);
        at += n;
    }
    g_string_append_c(header, '}');
    while (header->len % 8 != 0)
        g_string_append_c(header, ' ');
    uint64_t n_header = GUINT64_TO_LE((uint64_t)header->len);
    g_autofree char *path = g_build_filename(f->dir, name, NULL);
    int fd = g_open(path, O_WRONLY | O_CREAT | O_TRUNC, 0600);
    g_assert_cmpint(fd, >=, 0);
    g_assert_cmpint(write(fd, &n_header, 8), ==, 8);
    g_assert_cmpint(write(fd, header->str, header->len), ==, (gssize)header->len);
    g_assert_cmpint(ftruncate(fd, (off_t)(8 + header->len + at)), ==, 0);
    for (guint i = 0; i < begins->len; i++) {
        guint8 mark = (guint8)(first + i + 1);
        off_t place = (off_t)(8 + header->len + g_array_index(begins, uint64_t, i));
        g_assert_cmpint(pwrite(fd, &mark, 1, place), ==, 1);
    }
    close(fd);
    g_string_free(header, TRUE);
}

static void write_single(const folder *f)
{
    write_config(f);
    write_tensors(f, "model.safetensors", 0, f->tensors->len, 0);
}

#define SHARD1 "model-00001-of-00002.safetensors"
#define SHARD2 "model-00002-of-00002.safetensors"
#define INDEX  "model.safetensors.index.json"

static void write_index(const folder *f, guint n_first)
{
    GString *text = g_string_new("{\"metadata\":{\"total_size\":32},\"weight_map\":{");
    for (guint i = 0; i < f->tensors->len; i++) {
        const tensor_spec *spec = f->tensors->pdata[i];
        g_string_append_printf(
            text, "%s\"%s\":\"%s\"", i > 0 ? "," : "", spec->name, i < n_first ? SHARD1 : SHARD2);
    }
    g_string_append(text, "}}");
    write_text(f, INDEX, text->str);
    g_string_free(text, TRUE);
}

static void write_sharded(const folder *f, guint n_first)
{
    write_config(f);
    write_tensors(f, SHARD1, 0, n_first, 0);
    write_tensors(f, SHARD2, n_first, f->tensors->len, 0);
    write_index(f, n_first);
}

static void remove_file(const folder *f, const char *name)
{
    g_autofree char *path = g_build_filename(f->dir, name, NULL);
    g_assert_cmpint(g_unlink(path), ==, 0);
}

static qe_model *open_ok(const char *dir)
{
    g_autoptr(GError) error = NULL;
    qe_model *model = qe_model_open(dir, &error);
    g_assert_no_error(error);
    g_assert_nonnull(model);
    return model;
}

/* The NULL-terminated words must all be in the message. */
static void open_fails(const char *dir, qe_error_code code, ...)
{
    g_autoptr(GError) error = NULL;
    g_assert_null(qe_model_open(dir, &error));
    g_assert_error(error, QE_ERROR, (int)code);
    va_list args;
    va_start(args, code);
    for (const char *want = va_arg(args, const char *); want != NULL; want = va_arg(args, const char *))
        if (strstr(error->message, want) == NULL)
            g_error("message lacks \"%s\": %s", want, error->message);
    va_end(args);
}

/* ---- tiny folders ---------------------------------------------------------------------------------------------- */

static void assert_weight(
    const qe_weight *w, const char *name, qe_dtype dtype, uint32_t rows, uint32_t cols, guint mark)
{
    g_assert_cmpstr(w->name, ==, name);
    g_assert_cmpint(w->dtype, ==, dtype);
    g_assert_cmpuint(w->rows, ==, rows);
    g_assert_cmpuint(w->cols, ==, cols);
    g_assert_cmpuint(w->n_bytes, ==, (uint64_t)rows * cols * qe_dtype_bytes(dtype));
    g_assert_cmpuint((uintptr_t)w->data % qe_dtype_bytes(dtype), ==, 0);
    g_assert_cmpuint(((const guint8 *)w->data)[0], ==, mark);
}

/* Marks follow the order of fill_tensors(). */
static void assert_tiny(const qe_model *model)
{
    const qe_model_weights *w = qe_model_get_weights(model);
    assert_weight(&w->embed, "model.embed_tokens.weight", QE_DTYPE_BF16, 10, 8, 1);
    assert_weight(&w->layers[0].attn_norm, "model.layers.0.input_layernorm.weight", QE_DTYPE_BF16, 1, 8, 2);
    assert_weight(&w->layers[0].q, "model.layers.0.self_attn.q_proj.weight", QE_DTYPE_BF16, 12, 8, 3);
    assert_weight(&w->layers[0].k, "model.layers.0.self_attn.k_proj.weight", QE_DTYPE_BF16, 4, 8, 4);
    assert_weight(&w->layers[0].v, "model.layers.0.self_attn.v_proj.weight", QE_DTYPE_BF16, 4, 8, 5);
    assert_weight(&w->layers[0].o, "model.layers.0.self_attn.o_proj.weight", QE_DTYPE_BF16, 8, 12, 6);
    assert_weight(&w->layers[0].q_norm, "model.layers.0.self_attn.q_norm.weight", QE_DTYPE_F32, 1, 4, 7);
    assert_weight(&w->layers[0].k_norm, "model.layers.0.self_attn.k_norm.weight", QE_DTYPE_BF16, 1, 4, 8);
    assert_weight(
        &w->layers[0].ffn_norm, "model.layers.0.post_attention_layernorm.weight", QE_DTYPE_BF16, 1, 8, 9);
    assert_weight(&w->layers[0].gate, "model.layers.0.mlp.gate_proj.weight", QE_DTYPE_BF16, 12, 8, 10);
    assert_weight(&w->layers[0].up, "model.layers.0.mlp.up_proj.weight", QE_DTYPE_BF16, 12, 8, 11);
    assert_weight(&w->layers[0].down, "model.layers.0.mlp.down_proj.weight", QE_DTYPE_F32, 8, 12, 12);
    assert_weight(&w->layers[1].attn_norm, "model.layers.1.input_layernorm.weight", QE_DTYPE_BF16, 1, 8, 13);
    assert_weight(&w->layers[1].down, "model.layers.1.mlp.down_proj.weight", QE_DTYPE_F32, 8, 12, 23);
    assert_weight(&w->final_norm, "model.norm.weight", QE_DTYPE_BF16, 1, 8, 24);
}

static void test_single(void)
{
    g_autoptr(folder) f = folder_new();
    write_single(f);
    g_autoptr(qe_model) model = open_ok(f->dir);
    g_autofree char *base = g_path_get_basename(f->dir);
    assert_tiny(model);
    const qe_model_weights *w = qe_model_get_weights(model);
    g_assert_true(w->lm_head.data == w->embed.data);
    g_assert_cmpstr(qe_model_get_name(model), ==, base);
    g_assert_cmpstr(qe_model_get_dir(model), ==, f->dir);
    g_assert_cmpuint(qe_model_get_n_params(model), ==, qe_config_get_n_params(qe_model_get_config(model)));
    g_assert_cmpuint(qe_model_get_copied_bytes(model), ==, 0);
    g_assert_null(qe_model_get_ignored(model)[0]);
    g_assert_false(qe_model_get_generation(model)->do_sample);
    qe_eos_list eos;
    qe_model_get_eos(model, 4, &eos);
    g_assert_cmpuint(eos.n, ==, 2);
    /* The views outlive the files' names and the first reference. */
    qe_model *second = qe_model_ref(model);
    qe_model_unref(second);
    remove_file(f, "model.safetensors");
    assert_tiny(model);
}

static void test_tied(void)
{
    g_autoptr(folder) f = folder_new();
    f->config_extra = "";
    write_single(f);
    open_fails(f->dir, QE_ERROR_FORMAT, "lm_head.weight", "missing", "[10, 8]", "tie_word_embeddings", NULL);
    add_tensor(f, "BF16", 10, 8, "lm_head.weight");
    write_single(f);
    g_autoptr(qe_model) untied = open_ok(f->dir);
    assert_weight(&qe_model_get_weights(untied)->lm_head, "lm_head.weight", QE_DTYPE_BF16, 10, 8, 25);
    g_assert_cmpuint(qe_model_get_n_params(untied), ==, qe_config_get_n_params(qe_model_get_config(untied)));
    /* Tied with a head in the file: the embedding is used, the copy listed. */
    f->config_extra = ",\"tie_word_embeddings\":true";
    write_single(f);
    g_autoptr(qe_model) tied = open_ok(f->dir);
    g_assert_cmpstr(qe_model_get_weights(tied)->lm_head.name, ==, "model.embed_tokens.weight");
    g_assert_cmpstr(qe_model_get_ignored(tied)[0], ==, "lm_head.weight");
    g_assert_null(qe_model_get_ignored(tied)[1]);
}

static void test_head_dim_is_its_own(void)
{
    g_autoptr(folder) f = folder_new_shaped(1024, 16, 8, 128);
    write_single(f);
    g_autoptr(qe_model) model = open_ok(f->dir);
    const qe_layer_weights *l = &qe_model_get_weights(model)->layers[1];
    g_assert_cmpuint(l->q.rows, ==, 2048);
    g_assert_cmpuint(l->k.rows, ==, 1024);
    g_assert_cmpuint(l->v.rows, ==, 1024);
    g_assert_cmpuint(l->o.rows, ==, 1024);
    g_assert_cmpuint(l->o.cols, ==, 2048);
    g_assert_cmpuint(l->q_norm.cols, ==, 128);
    g_assert_cmpuint(l->k_norm.cols, ==, 128);
}

/* Each weight in turn: missing, of another shape, of a dtype that is not run. */
static void test_each_tensor_matters(void)
{
    g_autoptr(folder) model = folder_new();
    for (guint i = 0; i < model->tensors->len; i++) {
        g_autoptr(folder) f = folder_new();
        tensor_spec *spec = f->tensors->pdata[i];
        g_autofree char *name = g_strdup(spec->name);
        const char *dtype = spec->dtype;
        g_autofree char *shape = qe_shape_to_string(spec->dims, spec->n_dims);

        spec->dtype = "F16";
        write_single(f);
        if (strcmp(dtype, "BF16") == 0)
            open_fails(f->dir, QE_ERROR_UNSUPPORTED, "model.safetensors", name, "BF16 or F32", "F16", NULL);
        spec->dtype = dtype;

        spec->dims[0] += 1;
        write_single(f);
        g_autofree char *taller = qe_shape_to_string(spec->dims, spec->n_dims);
        open_fails(f->dir, QE_ERROR_FORMAT, "model.safetensors", name, shape, taller, NULL);
        spec->dims[0] -= 1;

        if (spec->n_dims == 2) {
            uint64_t rows = spec->dims[0];
            spec->dims[0] = spec->dims[1];
            spec->dims[1] = rows;
        } else {
            spec->n_dims = 2; /* [n] as [1, n] */
            spec->dims[1] = spec->dims[0];
            spec->dims[0] = 1;
        }
        write_single(f);
        open_fails(f->dir, QE_ERROR_FORMAT, "model.safetensors", name, shape, NULL);

        drop_tensor(f, name);
        write_single(f);
        open_fails(f->dir, QE_ERROR_FORMAT, "model.safetensors", name, "missing", shape, NULL);
    }
}

static void test_extra_tensors(void)
{
    g_autoptr(folder) f = folder_new();
    add_tensor(f, "F16", 0, 2, "model.rotary_emb.inv_freq");
    add_tensor(f, "F32", 0, 2, "model.layers.1.self_attn.rotary_emb.inv_freq");
    write_single(f);
    g_autoptr(qe_model) model = open_ok(f->dir);
    const char *const *ignored = qe_model_get_ignored(model);
    g_assert_cmpstr(ignored[0], ==, "model.layers.1.self_attn.rotary_emb.inv_freq");
    g_assert_cmpstr(ignored[1], ==, "model.rotary_emb.inv_freq");
    g_assert_null(ignored[2]);
    /* A third layer that the config does not know is not an extra but a config of another model. */
    add_tensor(f, "BF16", 0, 8, "model.layers.2.input_layernorm.weight");
    write_single(f);
    open_fails(f->dir, QE_ERROR_FORMAT, "model.layers.2.input_layernorm.weight", "num_hidden_layers", NULL);
}

static void test_unaligned(void)
{
    g_autoptr(folder) f = folder_new();
    write_config(f);
    write_tensors(f, "model.safetensors", 0, f->tensors->len, 3);
    g_autoptr(qe_model) model = open_ok(f->dir);
    assert_tiny(model);
    g_assert_cmpuint(qe_model_get_copied_bytes(model), ==, qe_model_get_weight_bytes(model));
    /* 2 bytes: bf16 is aligned, float32 is not. */
    write_tensors(f, "model.safetensors", 0, f->tensors->len, 2);
    g_autoptr(qe_model) half = open_ok(f->dir);
    assert_tiny(half);
    g_assert_cmpuint(qe_model_get_copied_bytes(half), >, 0);
    g_assert_cmpuint(qe_model_get_copied_bytes(half), <, qe_model_get_weight_bytes(half));
}

static void test_shards(void)
{
    g_autoptr(folder) f = folder_new();
    write_sharded(f, 9);
    /* A stray model.safetensors, and not even a good one. */
    write_text(f, "model.safetensors", "not a model");
    g_autoptr(qe_model) model = open_ok(f->dir);
    assert_tiny(model);
    g_assert_null(qe_model_get_ignored(model)[0]);

    remove_file(f, SHARD2);
    open_fails(f->dir, QE_ERROR_FILE, SHARD2, NULL);
    /* There, but without a tensor that the index promises. */
    write_tensors(f, SHARD2, 9, f->tensors->len - 1, 0);
    open_fails(f->dir, QE_ERROR_FORMAT, SHARD2, "model.norm.weight", NULL);
    /* A tensor in a shard that the index does not name is not used. */
    write_tensors(f, SHARD2, 9, f->tensors->len, 0);
    add_tensor(f, "BF16", 0, 8, "spare");
    write_tensors(f, SHARD2, 9, f->tensors->len, 0);
    g_autoptr(qe_model) spare = open_ok(f->dir);
    g_assert_cmpstr(qe_model_get_ignored(spare)[0], ==, "spare");
    drop_tensor(f, "spare");
    /* The same tensor in both shards: the index decides. */
    write_tensors(f, SHARD1, 0, 10, 0);
    g_autoptr(qe_model) both = open_ok(f->dir);
    assert_tiny(both);
    g_assert_cmpstr(qe_model_get_ignored(both)[0], ==, "model.layers.0.mlp.gate_proj.weight");
    /* A shard that is a folder. */
    remove_file(f, SHARD2);
    g_autofree char *path = g_build_filename(f->dir, SHARD2, NULL);
    g_assert_cmpint(g_mkdir(path, 0700), ==, 0);
    open_fails(f->dir, QE_ERROR_FILE, SHARD2, "a folder", NULL);
}

static void test_index(void)
{
    static const struct {
        const char *text, *want;
    } cases[] = {
        {"{\"weight_map\":{\"a\":\"../x.safetensors\"}}", "../x.safetensors"},
        {"{\"weight_map\":{\"a\":\"/etc/passwd\"}}", "/etc/passwd"},
        {"{\"weight_map\":{\"a\":\"sub/x.safetensors\"}}", "sub/x.safetensors"},
        {"{\"weight_map\":{\"a\":\"..\"}}", "\"..\""},
        {"{\"weight_map\":{\"a\":\"\"}}", "tensor a"},
        {"{\"weight_map\":{\"a\":7}}", "an integer"},
        {"{\"weight_map\":{\"a\":\"x\",\"a\":\"y\"}}", "tensor a is there twice"},
        {"{\"weight_map\":{}}", "found none"},
        {"{\"weight_map\":[]}", "a list"},
        {"{\"weight_map\":{\"a\":\"x\"},\"weight_map\":{\"b\":\"x\"}}", "twice"},
        {"{\"metadata\":{}}", "weight_map"},
        {"[]", "a list"},
        {"not JSON", "JSON"},
        {"", "JSON"},
        {"{\"weight_map\":{\"a\":\"x\"}} x", "JSON"},
    };
    g_autoptr(folder) f = folder_new();
    write_single(f);
    for (size_t i = 0; i < G_N_ELEMENTS(cases); i++) {
        write_text(f, INDEX, cases[i].text);
        open_fails(f->dir, QE_ERROR_FORMAT, INDEX, cases[i].want, NULL);
    }
    /* The second shard is absent and a stray single file there. */
    g_autoptr(folder) pair = folder_new();
    write_sharded(pair, 9);
    remove_file(pair, SHARD2);
    write_text(pair, "model.safetensors", "stray");
    open_fails(pair->dir, QE_ERROR_FILE, SHARD2, NULL);
}

static void test_folder_errors(void)
{
    g_autoptr(folder) f = folder_new();
    open_fails(f->dir, QE_ERROR_FILE, "config.json", NULL);
    write_config(f);
    open_fails(f->dir, QE_ERROR_FILE, f->dir, "model.safetensors", INDEX, NULL);
    write_single(f);
    write_text(f, "generation_config.json", "{\"eos_token_id\":[3,10]}");
    open_fails(f->dir, QE_ERROR_FORMAT, "generation_config.json", "eos_token_id", "below 10", NULL);
    write_text(f, "generation_config.json", "{\"eos_token_id\":[3,9]}");
    g_autoptr(qe_model) model = open_ok(f->dir);
    qe_eos_list eos;
    qe_model_get_eos(model, -1, &eos);
    g_assert_cmpuint(eos.n, ==, 2);
    /* Named pipes in place of each file: an error, no wait. */
    static const char *const names[] = {"generation_config.json", "config.json", "model.safetensors"};
    for (size_t i = 0; i < G_N_ELEMENTS(names); i++) {
        g_autofree char *path = g_build_filename(f->dir, names[i], NULL);
        g_autofree char *aside = g_build_filename(f->dir, "aside", NULL);
        g_assert_cmpint(g_rename(path, aside), ==, 0);
        g_assert_cmpint(mkfifo(path, 0600), ==, 0);
        open_fails(f->dir, QE_ERROR_FILE, names[i], "a FIFO", NULL);
        g_assert_cmpint(g_rename(aside, path), ==, 0);
    }
    open_fails("/nonexistent-model-folder", QE_ERROR_FILE, "/nonexistent-model-folder", NULL);
}

static void test_names(void)
{
    static const char hash[] = "0123456789abcdef0123456789abcdef01234567";
    g_autoptr(folder) f = folder_new();
    write_single(f);
    g_autofree char *cache = g_dir_make_tmp("quire-cache-XXXXXX", NULL);
    g_autofree char *entry = g_build_filename(cache, "models--Qwen--Qwen3-0.6B", NULL);
    g_autofree char *snapshots = g_build_filename(entry, "snapshots", NULL);
    g_autofree char *link = g_build_filename(snapshots, hash, NULL);
    g_assert_cmpint(g_mkdir_with_parents(snapshots, 0700), ==, 0);
    g_assert_cmpint(symlink(f->dir, link), ==, 0);
    g_autoptr(qe_model) by_entry = open_ok(link);
    g_assert_cmpstr(qe_model_get_name(by_entry), ==, "Qwen3-0.6B");
    f->config_extra = ",\"tie_word_embeddings\":true,\"_name_or_path\":\"someone/Tiny\"";
    write_config(f);
    g_autoptr(qe_model) by_config = open_ok(link);
    g_assert_cmpstr(qe_model_get_name(by_config), ==, "Tiny");
    g_autofree char *slashed = g_strconcat(f->dir, "/./", NULL);
    g_autofree char *base = g_path_get_basename(f->dir);
    g_autoptr(qe_model) by_folder = open_ok(slashed);
    g_assert_cmpstr(qe_model_get_name(by_folder), ==, base);
    g_unlink(link);
    g_rmdir(snapshots);
    g_rmdir(entry);
    g_rmdir(cache);
}

static void fingerprint_of(const folder *f, uint8_t fingerprint[QE_MODEL_FINGERPRINT_BYTES])
{
    g_autoptr(qe_model) model = open_ok(f->dir);
    uint8_t again[QE_MODEL_FINGERPRINT_BYTES];
    qe_model_get_fingerprint(model, fingerprint);
    qe_model_get_fingerprint(model, again);
    g_assert_cmpmem(fingerprint, sizeof again, again, sizeof again);
}

static void test_fingerprint(void)
{
    uint8_t base[QE_MODEL_FINGERPRINT_BYTES], other[QE_MODEL_FINGERPRINT_BYTES];
    g_autoptr(folder) f = folder_new();
    g_autoptr(folder) same = folder_new();
    write_single(f);
    write_single(same);
    fingerprint_of(f, base);
    /* The same files elsewhere, and generation defaults, change nothing. */
    fingerprint_of(same, other);
    g_assert_cmpmem(base, sizeof base, other, sizeof other);
    write_text(f, "generation_config.json", "{\"temperature\":0.5}");
    fingerprint_of(f, other);
    g_assert_cmpmem(base, sizeof base, other, sizeof other);
    /* One byte at the end of the last tensor does. */
    g_autofree char *path = g_build_filename(f->dir, "model.safetensors", NULL);
    int fd = g_open(path, O_RDWR, 0);
    off_t end = lseek(fd, 0, SEEK_END);
    g_assert_cmpint(pwrite(fd, "x", 1, end - 1), ==, 1);
    close(fd);
    fingerprint_of(f, other);
    g_assert_true(memcmp(base, other, sizeof base) != 0);
    /* So does a number of the arithmetic. */
    same->config_extra = ",\"tie_word_embeddings\":true,\"rms_norm_eps\":1e-5";
    write_config(same);
    fingerprint_of(same, other);
    g_assert_true(memcmp(base, other, sizeof base) != 0);
    same->config_extra =
        ",\"tie_word_embeddings\":true,\"rope_scaling\":{\"rope_type\":\"yarn\",\"factor\":2}";
    write_config(same);
    fingerprint_of(same, other);
    g_assert_true(memcmp(base, other, sizeof base) != 0);
}

/* ---- the shipped model ----------------------------------------------------------------------------------------- */

static const char *shipped_dir(void)
{
    const char *dir = g_getenv("QUIRE_TEST_MODEL");
    if (dir == NULL)
        g_test_skip("QUIRE_TEST_MODEL is not set");
    return dir;
}

static void test_shipped(void)
{
    const char *dir = shipped_dir();
    if (dir == NULL)
        return;
    g_autoptr(qe_model) model = open_ok(dir);
    const qe_config *c = qe_model_get_config(model);
    const qe_generation_defaults *g = qe_model_get_generation(model);
    g_assert_cmpuint(c->n_layers, ==, 8);
    g_assert_cmpuint(c->head_dim, ==, 64);
    g_assert_cmpuint(c->hidden, ==, 256);
    g_assert_cmpuint(c->vocab, ==, 6144);
    g_assert_true(c->tied);
    g_assert_true(g->do_sample);
    g_assert_cmpfloat(g->temperature, ==, 0.6);
    qe_eos_list eos;
    qe_model_get_eos(model, -1, &eos);
    g_assert_cmpuint(eos.n, ==, 2);
    g_assert_cmpuint(qe_model_get_n_params(model), ==, qe_config_get_n_params(c));
    g_assert_cmpuint(qe_model_get_weight_bytes(model), ==, 2 * qe_model_get_n_params(model));
    g_assert_cmpuint(qe_model_get_copied_bytes(model), ==, 0);
    g_assert_cmpstr(qe_model_get_name(model), ==, "demo-model");
}

static char *copy_file(const folder *f, const char *from_dir, const char *name)
{
    g_autofree char *from = g_build_filename(from_dir, name, NULL);
    char *to = g_build_filename(f->dir, name, NULL);
    g_autofree char *data = NULL;
    gsize n = 0;
    g_assert_true(g_file_get_contents(from, &data, &n, NULL));
    g_assert_true(g_file_set_contents(to, data, (gssize)n, NULL));
    return to;
}

/* A folder with the shipped model's configs, a link to its first shard and a copy of the second. */
static folder *shipped_copy(const char *dir, char **shard2)
{
    folder *f = folder_new();
    g_free(copy_file(f, dir, "config.json"));
    g_free(copy_file(f, dir, "generation_config.json"));
    g_free(copy_file(f, dir, INDEX));
    g_autofree char *from = g_build_filename(dir, SHARD1, NULL);
    g_autofree char *to = g_build_filename(f->dir, SHARD1, NULL);
    g_assert_cmpint(symlink(from, to), ==, 0);
    *shard2 = copy_file(f, dir, SHARD2);
    return f;
}

static void test_shipped_cut(void)
{
    const char *dir = shipped_dir();
    g_autofree char *shard = NULL;
    if (dir == NULL)
        return;
    g_autoptr(folder) f = shipped_copy(dir, &shard);
    struct stat st;
    g_assert_cmpint(stat(shard, &st), ==, 0);
    qe_model_unref(open_ok(f->dir));
    const off_t cuts[] = {
        st.st_size - 1, st.st_size - 2, st.st_size / 2, 8192, 4096, 1000, 100, 9, 8, 7, 1, 0};
    for (size_t i = 0; i < G_N_ELEMENTS(cuts); i++) {
        g_assert_cmpint(truncate(shard, cuts[i]), ==, 0);
        open_fails(f->dir, QE_ERROR_FORMAT, SHARD2, NULL);
    }
    g_free(copy_file(f, dir, SHARD2));
    g_assert_cmpint(truncate(shard, st.st_size + 1), ==, 0);
    open_fails(f->dir, QE_ERROR_FORMAT, SHARD2, "bytes after tensor", NULL);
    g_unlink(shard);
    open_fails(f->dir, QE_ERROR_FILE, SHARD2, NULL);
}

/* One changed bit in the header: refused, or still a model whose every view lies in its file. */
static void test_shipped_flipped(void)
{
    const char *dir = shipped_dir();
    g_autofree char *shard = NULL;
    if (dir == NULL)
        return;
    g_autoptr(folder) f = shipped_copy(dir, &shard);
    int fd = g_open(shard, O_RDWR, 0);
    uint64_t n_header = 0;
    g_assert_cmpint(pread(fd, &n_header, 8, 0), ==, 8);
    n_header = GUINT64_FROM_LE(n_header) + 8;
    guint n_refused = 0, n_tried = 400;
    for (guint i = 0; i < n_tried; i++) {
        off_t at = g_test_rand_int_range(0, (gint32)n_header);
        guint8 byte = 0, flipped;
        g_assert_cmpint(pread(fd, &byte, 1, at), ==, 1);
        flipped = byte ^ (guint8)(1u << g_test_rand_int_range(0, 8));
        g_assert_cmpint(pwrite(fd, &flipped, 1, at), ==, 1);
        g_autoptr(GError) error = NULL;
        g_autoptr(qe_model) model = qe_model_open(f->dir, &error);
        g_assert_true((model == NULL) == (error != NULL));
        if (error != NULL) {
            n_refused++;
            g_assert_true(error->domain == QE_ERROR);
            g_assert_nonnull(strstr(error->message, "model-00002"));
        } else {
            uint8_t fingerprint[QE_MODEL_FINGERPRINT_BYTES];
            qe_model_get_fingerprint(model, fingerprint);
        }
        g_assert_cmpint(pwrite(fd, &byte, 1, at), ==, 1);
    }
    close(fd);
    /* Only bits of padding and of "__metadata__" texts may go unnoticed. */
    g_assert_cmpuint(n_refused, >, n_tried / 2);
    qe_model_unref(open_ok(f->dir));
}

/* The same number of bytes under another meaning: swapped shapes, another dtype. */
static void test_shipped_relabelled(void)
{
    static const struct {
        const char *from, *to;
        qe_error_code code;
    } cases[] = {
        {"\"shape\":[256,768]", "\"shape\":[768,256]", QE_ERROR_FORMAT},
        {"\"dtype\":\"BF16\"", "\"dtype\": \"F16\"", QE_ERROR_UNSUPPORTED},
        {"\"dtype\":\"BF16\"", "\"dtype\": \"I16\"", QE_ERROR_UNSUPPORTED},
        {"\"dtype\":\"BF16\"", "\"dtype\": \"F32\"", QE_ERROR_FORMAT},
        {"\"dtype\":\"BF16\"", "\"dtype\": \"F99\"", QE_ERROR_UNSUPPORTED},
    };
    const char *dir = shipped_dir();
    g_autofree char *shard = NULL;
    if (dir == NULL)
        return;
    g_autoptr(folder) f = shipped_copy(dir, &shard);
    g_autofree char *data = NULL;
    gsize n = 0;
    g_assert_true(g_file_get_contents(shard, &data, &n, NULL));
    for (size_t i = 0; i < G_N_ELEMENTS(cases); i++) {
        g_autofree char *copy = g_memdup2(data, n);
        char *at = memmem(copy, n, cases[i].from, strlen(cases[i].from));
        g_assert_nonnull(at);
        memcpy(at, cases[i].to, strlen(cases[i].to));
        g_assert_true(g_file_set_contents(shard, copy, (gssize)n, NULL));
        open_fails(f->dir, cases[i].code, SHARD2, "tensor model.", NULL);
    }
}

int main(int argc, char **argv)
{
    g_test_init(&argc, &argv, NULL);
    g_test_add_func("/engine/model/single", test_single);
    g_test_add_func("/engine/model/tied", test_tied);
    g_test_add_func("/engine/model/head-dim-is-its-own", test_head_dim_is_its_own);
    g_test_add_func("/engine/model/each-tensor-matters", test_each_tensor_matters);
    g_test_add_func("/engine/model/extra-tensors", test_extra_tensors);
    g_test_add_func("/engine/model/unaligned", test_unaligned);
    g_test_add_func("/engine/model/shards", test_shards);
    g_test_add_func("/engine/model/index", test_index);
    g_test_add_func("/engine/model/folder-errors", test_folder_errors);
    g_test_add_func("/engine/model/names", test_names);
    g_test_add_func("/engine/model/fingerprint", test_fingerprint);
    g_test_add_func("/engine/model/shipped", test_shipped);
    g_test_add_func("/engine/model/shipped-cut", test_shipped_cut);
    g_test_add_func("/engine/model/shipped-flipped", test_shipped_flipped);
    g_test_add_func("/engine/model/shipped-relabelled", test_shipped_relabelled);
    return g_test_run();
}
