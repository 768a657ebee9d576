/* qe-config.c: reads config.json and generation_config.json.
 *
 * 1. A qe_config that parsed has every dimension within qe-limits.h, n_heads a multiple of n_kv_heads, an even
 *    head_dim, finite positive rope_inv_freq, and describes a computation this engine performs exactly.
 * 2. A field that would change that computation is never passed over: it is applied or refused.
 *
 * Pure functions over their arguments. */
#include "engine/qe-config.h"
#include "engine/qe-json.h"
#include <math.h>
#include <string.h>

static bool unsupported(const qe_json_view *view, const char *field, const char *why, GError **error)
{
    g_autofree char *found = qe_json_describe(view, field);
    g_set_error(error, QE_ERROR, QE_ERROR_UNSUPPORTED, "%s: %s%s is %s: %s", view->label, view->prefix, field,
        found, why);
    return false;
}

static bool malformed(const qe_json_view *view, const char *field, const char *expected, GError **error)
{
    g_autofree char *found = qe_json_describe(view, field);
    g_set_error(error, QE_ERROR, QE_ERROR_FORMAT, "%s: %s%s: expected %s, found %s", view->label,
        view->prefix, field, expected, found);
    return false;
}

/* ---- end tokens ------------------------------------------------------------------------------------------------ */

bool qe_eos_list_contains(const qe_eos_list *eos, uint32_t id)
{
    for (uint32_t i = 0; i < eos->n; i++)
        if (eos->ids[i] == id)
            return true;
    return false;
}

static void eos_add(qe_eos_list *eos, uint32_t id)
{
    if (!qe_eos_list_contains(eos, id) && eos->n < QE_MODEL_EOS_MAX)
        eos->ids[eos->n++] = id;
}

static bool eos_add_node(qe_eos_list *eos, JsonNode *node)
{
    if (!JSON_NODE_HOLDS_VALUE(node) || json_node_get_value_type(node) != G_TYPE_INT64)
        return false;
    int64_t id = json_node_get_int(node);
    if (id < 0 || id >= QE_MODEL_VOCAB_MAX)
        return false;
    eos_add(eos, (uint32_t)id);
    return true;
}

/* A number, a list of numbers, null or nothing. */
static bool parse_eos(const qe_json_view *view, qe_eos_list *eos, GError **error)
{
    static const char field[] = "eos_token_id";
    memset(eos, 0, sizeof *eos);
    if (!qe_json_has(view, field))
        return true;
    JsonNode *node = json_object_get_member(view->object, field);
    if (!JSON_NODE_HOLDS_ARRAY(node)) {
        if (!eos_add_node(eos, node))
            return malformed(view, field, "a token id or a list of them", error);
        eos->present = true;
        return true;
    }
    JsonArray *array = json_node_get_array(node);
    /* One place of the array is kept free for the tokenizer's own end token. */
    if (json_array_get_length(array) > QE_MODEL_EOS_MAX - 1) {
        g_set_error(error, QE_ERROR, QE_ERROR_FORMAT, "%s: %s: expected at most %d ids, found %u",
            view->label, field, QE_MODEL_EOS_MAX - 1, json_array_get_length(array));
        return false;
    }
    for (guint i = 0; i < json_array_get_length(array); i++) {
        if (!eos_add_node(eos, json_array_get_element(array, i))) {
            g_set_error(error, QE_ERROR, QE_ERROR_FORMAT, "%s: %s[%u]: expected a token id from 0 to %u",
                view->label, field, i, QE_MODEL_VOCAB_MAX - 1);
            return false;
        }
    }
    eos->present = eos->n > 0;
    return true;
}

void qe_eos_list_resolve(const qe_config *config, const qe_generation_defaults *generation,
    int64_t tokenizer_eos, qe_eos_list *eos)
{
    *eos = generation != NULL && generation->eos.present ? generation->eos : config->eos;
    if (tokenizer_eos >= 0 && tokenizer_eos < QE_MODEL_VOCAB_MAX)
        eos_add(eos, (uint32_t)tokenizer_eos);
    eos->present = eos->n > 0;
}

/* ---- architecture ---------------------------------------------------------------------------------------------- */

static bool check_architecture(const qe_json_view *view, GError **error)
{
    static const char only[] = "this build runs dense Qwen3 models (model_type \"qwen3\") only";
    const char *type = NULL;
    bool has_type = false, has_class = qe_json_has(view, "architectures");
    if (!qe_json_get_string(view, "model_type", &has_type, &type, error))
        return false;
    if (has_type && strcmp(type, "qwen3") != 0)
        return unsupported(view, "model_type", only, error);
    if (!has_class) {
        if (has_type)
            return true;
        return malformed(view, "model_type", "\"qwen3\"", error);
    }
    JsonNode *node = json_object_get_member(view->object, "architectures");
    if (!JSON_NODE_HOLDS_ARRAY(node) || json_array_get_length(json_node_get_array(node)) == 0)
        return malformed(view, "architectures", "a list of names", error);
    JsonArray *names = json_node_get_array(node);
    for (guint i = 0; i < json_array_get_length(names); i++) {
        JsonNode *item = json_array_get_element(names, i);
        if (!JSON_NODE_HOLDS_VALUE(item) || json_node_get_value_type(item) != G_TYPE_STRING)
            return malformed(view, "architectures", "a list of names", error);
        if (strcmp(json_node_get_string(item), "Qwen3ForCausalLM") == 0)
            return true;
    }
    g_autofree char *first = qe_json_excerpt(json_node_get_string(json_array_get_element(names, 0)));
    g_set_error(error, QE_ERROR, QE_ERROR_UNSUPPORTED,
        "%s: architectures has \"%s\", not \"Qwen3ForCausalLM\": %s", view->label, first, only);
    return false;
}

/* Sliding windows: a layer has one where layer_types says so, or else where the window is on and the layer is not below
 * max_window_layers. */
static bool check_window(const qe_json_view *view, uint32_t n_layers, GError **error)
{
    if (qe_json_has(view, "layer_types")) {
        JsonNode *node = json_object_get_member(view->object, "layer_types");
        if (!JSON_NODE_HOLDS_ARRAY(node) || json_array_get_length(json_node_get_array(node)) != n_layers)
            return malformed(view, "layer_types", "a list with one entry a layer", error);
        for (guint i = 0; i < n_layers; i++) {
            JsonNode *item = json_array_get_element(json_node_get_array(node), i);
            bool is_string = JSON_NODE_HOLDS_VALUE(item) && json_node_get_value_type(item) == G_TYPE_STRING;
            if (!is_string || strcmp(json_node_get_string(item), "full_attention") != 0) {
                g_autofree char *found = qe_json_excerpt(is_string ? json_node_get_string(item) : "?");
                g_set_error(error, QE_ERROR, QE_ERROR_UNSUPPORTED,
                    "%s: layer_types[%u] is \"%s\": every layer must be \"full_attention\"", view->label, i,
                    found);
                return false;
            }
        }
        return true;
    }
    bool use = false, found;
    int64_t window = 0, first = 0;
    bool has_window;
    if (!qe_json_get_bool(view, "use_sliding_window", &found, &use, error) ||
        !qe_json_get_int(view, "sliding_window", 0, G_MAXINT64, &has_window, &window, error) ||
        !qe_json_get_int(view, "max_window_layers", 0, G_MAXINT64, &found, &first, error))
        return false;
    if (use && has_window && (uint64_t)first < n_layers)
        return unsupported(view, "sliding_window", "sliding-window attention is not supported", error);
    return true;
}

static bool check_bool(
    const qe_json_view *view, const char *field, bool wanted, const char *why, GError **error)
{
    bool found, value = wanted;
    if (!qe_json_get_bool(view, field, &found, &value, error))
        return false;
    return value == wanted || unsupported(view, field, why, error);
}

static bool check_features(const qe_json_view *view, uint32_t n_layers, GError **error)
{
    const char *act = "silu";
    bool found;
    int64_t n_experts = 0;
    double rotary = 1;
    static const char *const quantised[] = {"quantization_config", "compression_config"};
    static const char *const expert_counts[] = {"num_experts", "n_routed_experts", "num_local_experts"};
    if (!qe_json_get_string(view, "hidden_act", &found, &act, error))
        return false;
    if (strcmp(act, "silu") != 0)
        return unsupported(view, "hidden_act", "only \"silu\" is supported", error);
    if (!check_bool(view, "attention_bias", false, "attention biases are not supported", error) ||
        !check_bool(view, "mlp_bias", false, "biases are not supported", error) ||
        !check_bool(view, "use_qk_norm", true, "models without q and k norms are not supported", error))
        return false;
    for (size_t i = 0; i < G_N_ELEMENTS(quantised); i++)
        if (qe_json_has(view, quantised[i]))
            return unsupported(view, quantised[i], "quantised weights are not supported", error);
    for (size_t i = 0; i < G_N_ELEMENTS(expert_counts); i++) {
        if (!qe_json_get_int(view, expert_counts[i], 0, G_MAXINT64, &found, &n_experts, error))
            return false;
        if (found && n_experts > 0)
            return unsupported(view, expert_counts[i], "mixture-of-experts models are not supported", error);
    }
    if (qe_json_has(view, "moe_intermediate_size"))
        return unsupported(
            view, "moe_intermediate_size", "mixture-of-experts models are not supported", error);
    if (!qe_json_get_double(view, "partial_rotary_factor", 0, 1, &found, &rotary, error))
        return false;
    if (rotary != 1)
        return unsupported(view, "partial_rotary_factor", "only full rotary embeddings are supported", error);
    return check_window(view, n_layers, error);
}

/* ---- RoPE ------------------------------------------------------------------------------------------------------ */

typedef struct {
    bool yarn;
    bool has_theta;
    double theta;
    double factor;
    uint32_t original; /* 0: not given */
    double beta_fast, beta_slow;
    double attn_factor; /* 0: not given */
    double mscale, mscale_all;
    bool truncate;
} rope_spec;

static bool parse_rope_object(const qe_json_view *rope, rope_spec *spec, GError **error)
{
    const char *type = "default";
    bool found;
    *spec = (rope_spec){.factor = 1, .beta_fast = 32, .beta_slow = 1, .truncate = true};
    const char *key = qe_json_has(rope, "rope_type") ? "rope_type" : "type";
    if (!qe_json_get_string(rope, key, &found, &type, error) ||
        !qe_json_get_double(rope, "rope_theta", 1 + 1e-6, 1e18, &spec->has_theta, &spec->theta, error))
        return false;
    if (strcmp(type, "default") == 0)
        return true;
    if (strcmp(type, "yarn") != 0)
        return unsupported(rope, key, "only \"default\" and \"yarn\" are supported", error);
    spec->yarn = true;
    double rotary = 1;
    if (!qe_json_get_double(rope, "factor", 1, 1e6, NULL, &spec->factor, error) ||
        !qe_json_get_u32(rope, "original_max_position_embeddings", 1, QE_MODEL_POSITIONS_MAX, &found,
            &spec->original, error) ||
        !qe_json_get_double(rope, "beta_fast", 1e-6, 1e6, &found, &spec->beta_fast, error) ||
        !qe_json_get_double(rope, "beta_slow", 1e-6, 1e6, &found, &spec->beta_slow, error) ||
        !qe_json_get_double(rope, "attention_factor", 1e-6, 1e6, &found, &spec->attn_factor, error) ||
        !qe_json_get_double(rope, "mscale", 0, 1e6, &found, &spec->mscale, error) ||
        !qe_json_get_double(rope, "mscale_all_dim", 0, 1e6, &found, &spec->mscale_all, error) ||
        !qe_json_get_double(rope, "partial_rotary_factor", 0, 1, &found, &rotary, error) ||
        !qe_json_get_bool(rope, "truncate", &found, &spec->truncate, error))
        return false;
    if (rotary != 1)
        return unsupported(rope, "partial_rotary_factor", "only full rotary embeddings are supported", error);
    if (spec->beta_fast <= spec->beta_slow)
        return malformed(rope, "beta_fast", "a number above beta_slow", error);
    return true;
}

static bool same_rope(const rope_spec *a, const rope_spec *b)
{
    return a->yarn == b->yarn && a->factor == b->factor && a->original == b->original &&
           a->beta_fast == b->beta_fast && a->beta_slow == b->beta_slow && a->attn_factor == b->attn_factor &&
           a->mscale == b->mscale && a->mscale_all == b->mscale_all && a->truncate == b->truncate;
}

/* Merges rope_theta, rope_scaling and rope_parameters; two that disagree are an error, not a choice. */
static bool parse_rope(const qe_json_view *view, rope_spec *spec, GError **error)
{
    qe_json_view old_form, new_form;
    rope_spec other;
    bool has_old, has_new, has_theta;
    double theta = 0;
    if (!qe_json_get_double(view, "rope_theta", 1 + 1e-6, 1e18, &has_theta, &theta, error) ||
        !qe_json_get_object(view, "rope_scaling", "rope_scaling.", &has_old, &old_form, error) ||
        !qe_json_get_object(view, "rope_parameters", "rope_parameters.", &has_new, &new_form, error))
        return false;
    *spec = (rope_spec){.factor = 1, .beta_fast = 32, .beta_slow = 1, .truncate = true};
    if (has_old && !parse_rope_object(&old_form, spec, error))
        return false;
    if (has_new) {
        if (!parse_rope_object(&new_form, &other, error))
            return false;
        if (has_old && (!same_rope(spec, &other) ||
                           (spec->has_theta && other.has_theta && spec->theta != other.theta))) {
            g_set_error(error, QE_ERROR, QE_ERROR_FORMAT, "%s: rope_scaling and rope_parameters disagree",
                view->label);
            return false;
        }
        if (has_old && !other.has_theta) {
            other.has_theta = spec->has_theta;
            other.theta = spec->theta;
        }
        *spec = other;
    }
    if (has_theta && spec->has_theta && theta != spec->theta)
        return malformed(view, "rope_theta", "the same value as beside rope_type", error);
    if (has_theta)
        spec->theta = theta;
    else if (!spec->has_theta)
        return malformed(view, "rope_theta", "a number above 1, here or in rope_parameters", error);
    return true;
}

static double yarn_mscale(double factor, double mscale)
{
    return factor <= 1 ? 1 : 0.1 * mscale * log(factor) + 1;
}

/* The dimension whose wave turns @turns times within @n_positions. */
static double yarn_dim(double turns, double head_dim, double theta, double n_positions)
{
    return head_dim * log(n_positions / (turns * 2 * G_PI)) / (2 * log(theta));
}

static bool compute_rope(const char *label, const rope_spec *spec, qe_config *config, GError **error)
{
    double head_dim = config->head_dim;
    double low = 0, high = 0;
    config->rope_theta = spec->theta;
    config->rope_yarn = spec->yarn;
    config->rope_yarn_factor = spec->factor;
    config->rope_attn_factor = 1;
    if (spec->yarn) {
        double original = spec->original > 0 ? spec->original : config->max_positions;
        low = yarn_dim(spec->beta_fast, head_dim, spec->theta, original);
        high = yarn_dim(spec->beta_slow, head_dim, spec->theta, original);
        if (spec->truncate) {
            low = floor(low);
            high = ceil(high);
        }
        low = fmax(low, 0);
        high = fmin(high, head_dim - 1);
        if (low == high)
            high += 0.001;
        if (spec->attn_factor > 0)
            config->rope_attn_factor = spec->attn_factor;
        else if (spec->mscale > 0 && spec->mscale_all > 0)
            config->rope_attn_factor =
                yarn_mscale(spec->factor, spec->mscale) / yarn_mscale(spec->factor, spec->mscale_all);
        else
            config->rope_attn_factor = yarn_mscale(spec->factor, 1);
        double extended = floor(original * spec->factor);
        if (extended > QE_MODEL_POSITIONS_MAX) {
            g_set_error(error, QE_ERROR, QE_ERROR_FORMAT,
                "%s: YaRN: expected a context of at most %u tokens, found %.0f (original length times "
                "factor)",
                label, QE_MODEL_POSITIONS_MAX, extended);
            return false;
        }
        config->rope_yarn_original = (uint32_t)original;
        config->max_positions = (uint32_t)extended;
    }
    for (uint32_t i = 0; i < config->head_dim / 2; i++) {
        double freq = pow(spec->theta, -2.0 * i / head_dim);
        double ramp = spec->yarn ? CLAMP((i - low) / (high - low), 0, 1) : 0;
        config->rope_inv_freq[i] = freq * (1 - ramp) + freq / spec->factor * ramp;
    }
    return true;
}

/* ---- config.json ----------------------------------------------------------------------------------------------- */

static bool parse_dims(const qe_json_view *view, qe_config *config, GError **error)
{
    bool found;
    config->head_dim = 128;
    config->rms_eps = 1e-6;
    if (!qe_json_get_u32(view, "num_hidden_layers", 1, QE_MODEL_LAYERS_MAX, NULL, &config->n_layers, error) ||
        !qe_json_get_u32(view, "num_attention_heads", 1, QE_MODEL_HEADS_MAX, NULL, &config->n_heads, error) ||
        !qe_json_get_u32(
            view, "num_key_value_heads", 1, QE_MODEL_HEADS_MAX, NULL, &config->n_kv_heads, error) ||
        !qe_json_get_u32(view, "head_dim", 2, QE_MODEL_HEAD_DIM_MAX, &found, &config->head_dim, error) ||
        !qe_json_get_u32(view, "hidden_size", 1, QE_MODEL_HIDDEN_MAX, NULL, &config->hidden, error) ||
        !qe_json_get_u32(view, "intermediate_size", 1, QE_MODEL_FFN_MAX, NULL, &config->ffn, error) ||
        !qe_json_get_u32(view, "vocab_size", 1, QE_MODEL_VOCAB_MAX, NULL, &config->vocab, error) ||
        !qe_json_get_u32(view, "max_position_embeddings", 1, QE_MODEL_POSITIONS_MAX, NULL,
            &config->max_positions, error) ||
        !qe_json_get_double(view, "rms_norm_eps", 1e-12, 1, &found, &config->rms_eps, error) ||
        !qe_json_get_bool(view, "tie_word_embeddings", &found, &config->tied, error))
        return false;
    if (config->n_heads % config->n_kv_heads != 0)
        return malformed(view, "num_key_value_heads", "a divisor of num_attention_heads", error);
    if (config->head_dim % 2 != 0)
        return malformed(view, "head_dim", "an even number", error);
    return true;
}

bool qe_config_parse(const char *label, const char *data, size_t n_bytes, qe_config *config, GError **error)
{
    memset(config, 0, sizeof *config);
    g_autoptr(JsonObject) root = qe_json_parse(label, data, n_bytes, QE_JSON_DEFAULT, error);
    if (root == NULL)
        return false;
    qe_json_view view = {label, "", root};
    rope_spec rope;
    /* Architecture first: "this is a Llama" says more than "a field is missing". */
    if (!check_architecture(&view, error) || !parse_dims(&view, config, error) ||
        !check_features(&view, config->n_layers, error) || !parse_rope(&view, &rope, error) ||
        !compute_rope(label, &rope, config, error) || !parse_eos(&view, &config->eos, error))
        return false;
    for (uint32_t i = 0; i < config->eos.n; i++)
        if (config->eos.ids[i] >= config->vocab)
            return malformed(&view, "eos_token_id", "ids below vocab_size", error);
    const char *name = "";
    bool found;
    if (!qe_json_get_string(&view, "_name_or_path", &found, &name, error))
        return false;
    if (strlen(name) <= QE_MODEL_NAME_BYTES_MAX)
        g_strlcpy(config->name_or_path, name, sizeof config->name_or_path);
    return true;
}

bool qe_config_load(const char *path, qe_config *config, GError **error)
{
    g_autofree char *data = NULL;
    size_t n_bytes = 0;
    return qe_file_read(path, QE_JSON_CONFIG_BYTES_MAX, &data, &n_bytes, error) &&
           qe_config_parse(path, data, n_bytes, config, error);
}

uint64_t qe_config_get_n_params(const qe_config *config)
{
    uint64_t hidden = config->hidden, head_dim = config->head_dim;
    uint64_t q_rows = config->n_heads * head_dim, kv_rows = config->n_kv_heads * head_dim;
    uint64_t layer = 2 * hidden + 2 * head_dim + 2 * q_rows * hidden + 2 * kv_rows * hidden +
                     3 * (uint64_t)config->ffn * hidden;
    return layer * config->n_layers + hidden + config->vocab * hidden * (config->tied ? 1 : 2);
}

uint64_t qe_config_get_kv_token_bytes(const qe_config *config, uint32_t element_bytes)
{
    return 2 * (uint64_t)config->n_layers * config->n_kv_heads * config->head_dim * element_bytes;
}

/* ---- generation_config.json ------------------------------------------------------------------------------------ */

void qe_generation_defaults_init(qe_generation_defaults *generation)
{
    *generation = (qe_generation_defaults){.temperature = 1, .top_p = 1, .repetition_penalty = 1};
}

bool qe_generation_defaults_parse(
    const char *label, const char *data, size_t n_bytes, qe_generation_defaults *generation, GError **error)
{
    qe_generation_defaults_init(generation);
    g_autoptr(JsonObject) root = qe_json_parse(label, data, n_bytes, QE_JSON_DEFAULT, error);
    if (root == NULL)
        return false;
    qe_json_view view = {label, "", root};
    qe_generation_defaults *g = generation;
    return qe_json_get_bool(&view, "do_sample", &g->has_do_sample, &g->do_sample, error) &&
           qe_json_get_double(&view, "temperature", 0, 1e4, &g->has_temperature, &g->temperature, error) &&
           qe_json_get_u32(&view, "top_k", 0, G_MAXINT32, &g->has_top_k, &g->top_k, error) &&
           qe_json_get_double(&view, "top_p", 1e-9, 1, &g->has_top_p, &g->top_p, error) &&
           qe_json_get_double(&view, "min_p", 0, 1, &g->has_min_p, &g->min_p, error) &&
           qe_json_get_double(&view, "repetition_penalty", 1e-6, 1e6, &g->has_repetition_penalty,
               &g->repetition_penalty, error) &&
           parse_eos(&view, &g->eos, error);
}

bool qe_generation_defaults_load(const char *path, qe_generation_defaults *generation, GError **error)
{
    g_autofree char *data = NULL;
    size_t n_bytes = 0;
    if (!g_file_test(path, G_FILE_TEST_EXISTS)) {
        qe_generation_defaults_init(generation);
        return true;
    }
    return qe_file_read(path, QE_JSON_CONFIG_BYTES_MAX, &data, &n_bytes, error) &&
           qe_generation_defaults_parse(path, data, n_bytes, generation, error);
}
