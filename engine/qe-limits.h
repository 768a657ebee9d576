/* qe-limits.h: every limit of the engine, by name. A limit that outside input can reach ends in an error that names
 * it, never in a cut or a crash. Internal. */
#pragma once

/* JSON files. The depth is checked before json-glib sees the text, because its parser recurses. */
#define QE_JSON_DEPTH_MAX        128
#define QE_JSON_NUMBER_BYTES_MAX 128
#define QE_JSON_CONFIG_BYTES_MAX (1u << 20)  /* config.json, generation_config.json */
#define QE_JSON_INDEX_BYTES_MAX  (64u << 20) /* model.safetensors.index.json */
#define QE_TOKENIZER_CONFIG_BYTES_MAX (16u << 20) /* tokenizer_config.json, chat_template.jinja */

/* safetensors files. The header bound is the format's own. */
#define QE_SAFETENSORS_HEADER_BYTES_MAX 100000000u
#define QE_SAFETENSORS_TENSORS_MAX      1000000u
#define QE_SAFETENSORS_DIMS_MAX         8
#define QE_SAFETENSORS_NAME_BYTES_MAX   1024u

/* Models. What the engine multiplies out of these (a matrix, all weights, the KV of a whole context) fits 63 bits. */
#define QE_MODEL_SHARDS_MAX     1024u
#define QE_MODEL_LAYERS_MAX     1024u
#define QE_MODEL_HEADS_MAX      1024u
#define QE_MODEL_HEAD_DIM_MAX   512u
#define QE_MODEL_HIDDEN_MAX     65536u
#define QE_MODEL_FFN_MAX        262144u
#define QE_MODEL_VOCAB_MAX      4194304u
#define QE_MODEL_POSITIONS_MAX  16777216u
#define QE_MODEL_EOS_MAX        32
#define QE_MODEL_NAME_BYTES_MAX 255

/* Tokenizer files and text. */
#define QE_TOKENIZER_BYTES_MAX        (512u << 20) /* tokenizer.json */
#define QE_TOKENIZER_CONFIG_BYTES_MAX (16u << 20)  /* tokenizer_config.json, chat_template.jinja */
#define QE_TOKENIZER_SPLITS_MAX       8            /* Split steps of a pre-tokenizer */
#define QE_TOKENIZER_REGEX_BYTES_MAX  (64u << 10)
#define QE_TEXT_BYTES_MAX             (512u << 20) /* one text to encode: its tokens' count fits 32 bits */

/* Stop strings of a request. */
#define QE_STOP_STRINGS_MAX 64u
#define QE_STOP_BYTES_MAX   4096u
