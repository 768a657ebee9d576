/* qe-config.h: config.json and generation_config.json of a Hugging Face folder as plain structs. Internal; pure
 * functions, any thread.
 *
 * Only dense Qwen3 is accepted (model_type "qwen3"). What would change the arithmetic (attention bias, sliding window,
 * experts, quantisation, another activation, another RoPE than default or YaRN) is refused with QE_ERROR_UNSUPPORTED and
 * a sentence that names the field and what it holds; wrong types and impossible values are QE_ERROR_FORMAT.
 *
 * Required: hidden_size, intermediate_size, num_hidden_layers, num_attention_heads, num_key_value_heads, vocab_size,
 * max_position_embeddings and a rope_theta. Absent fields with a default of the architecture: head_dim 128 (it does not
 * follow from hidden_size / heads), rms_norm_eps 1e-6, tie_word_embeddings false.
 *
 * RoPE, D = head_dim, b = rope_theta, i in [0, D/2):  inv_freq[i] = b^(-2i/D), and with YaRN (Peng et al., "YaRN:
 * Efficient Context Window Extension of Large Language Models", 2023; numbers as in transformers' modeling_rope_utils)
 *     c(r)    = D ln(L / (2 pi r)) / (2 ln b)          L = original_max_position_embeddings
 *     low     = max(floor(c(beta_fast)), 0), high = min(ceil(c(beta_slow)), D - 1)
 *     ramp[i] = clamp((i - low) / (high - low), 0, 1)
 *     inv_freq[i] = b^(-2i/D) * ((1 - ramp[i]) + ramp[i] / factor)
 * and cos and sin are multiplied by rope_attn_factor = 0.1 ln(factor) + 1 unless the file gives another.
 * Both spellings are read: rope_theta with rope_scaling, and rope_parameters; the type under rope_type or type. */
#pragma once
#include <glib.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include "engine/qe-error.h"
#include "engine/qe-limits.h"
G_BEGIN_DECLS

typedef struct {
    bool present; /* the file has the field */
    uint32_t n;
    uint32_t ids[QE_MODEL_EOS_MAX]; /* [n], no id twice */
} qe_eos_list;

typedef struct {
    uint32_t n_layers;
    uint32_t n_heads;
    uint32_t n_kv_heads; /* divides n_heads */
    uint32_t head_dim;   /* even; independent of hidden / n_heads */
    uint32_t hidden;
    uint32_t ffn;
    uint32_t vocab;
    uint32_t
        max_positions; /* tokens of context: max_position_embeddings; with YaRN floor(original * factor) */
    double rms_eps;
    double rope_theta;
    bool rope_yarn;
    double rope_yarn_factor;                         /* 1 without YaRN */
    uint32_t rope_yarn_original;                     /* original_max_position_embeddings; 0 without YaRN */
    double rope_inv_freq[QE_MODEL_HEAD_DIM_MAX / 2]; /* [head_dim / 2] */
    double rope_attn_factor;                         /* multiplies cos and sin; 1 without YaRN */
    bool tied;                                       /* the output projection is the embedding */
    qe_eos_list eos;
    char name_or_path[QE_MODEL_NAME_BYTES_MAX + 1]; /* _name_or_path; "" when absent or longer */
} qe_config;

/* What generation_config.json proposes. Where has_ is false the value is the neutral default written beside it, which is
 * also what a folder without the file gives. */
typedef struct {
    bool has_do_sample, has_temperature, has_top_k, has_top_p, has_min_p, has_repetition_penalty;
    bool do_sample;            /* false: greedy */
    double temperature;        /* 1; >= 0 */
    uint32_t top_k;            /* 0: all tokens */
    double top_p;              /* 1; in (0, 1] */
    double min_p;              /* 0; in [0, 1] */
    double repetition_penalty; /* 1; > 0 */
    qe_eos_list eos;
} qe_generation_defaults;

/* @label names the file in messages. On failure *@config is undefined. */
bool qe_config_parse(const char *label, const char *data, size_t n_bytes, qe_config *config, GError **error);
bool qe_config_load(const char *path, qe_config *config, GError **error);

void qe_generation_defaults_init(qe_generation_defaults *generation);
bool qe_generation_defaults_parse(
    const char *label, const char *data, size_t n_bytes, qe_generation_defaults *generation, GError **error);
/* A file that does not exist is no error: the neutral defaults. */
bool qe_generation_defaults_load(const char *path, qe_generation_defaults *generation, GError **error);

/* The ids that end a reply: those of generation_config.json when it names any, otherwise those of config.json; and
 * @tokenizer_eos (the id of tokenizer_config.json's eos_token, or -1), since a base model's config.json ends documents,
 * not chat turns. @generation may be NULL. */
void qe_eos_list_resolve(const qe_config *config, const qe_generation_defaults *generation,
    int64_t tokenizer_eos, qe_eos_list *eos);
bool qe_eos_list_contains(const qe_eos_list *eos, uint32_t id);

/* Weights that a model of this shape has (the embedding once when tied). */
uint64_t qe_config_get_n_params(const qe_config *config);
/* Bytes of K and V that one token keeps, over all layers: 2 * layers * kv_heads * head_dim * element (bf16 2, f32 4). */
uint64_t qe_config_get_kv_token_bytes(const qe_config *config, uint32_t element_bytes);

G_END_DECLS
