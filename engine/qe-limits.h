/* qe-limits.h: every limit of the engine, by name. A limit that outside input can reach ends in an error that names
 * it, never in a cut or a crash. Internal. */
#pragma once

/* JSON files. The depth is checked before json-glib sees the text, because its parser recurses. */
#define QE_JSON_DEPTH_MAX             128
#define QE_JSON_NUMBER_BYTES_MAX      128
#define QE_JSON_CONFIG_BYTES_MAX      (1u << 20)  /* config.json, generation_config.json */
#define QE_JSON_INDEX_BYTES_MAX       (64u << 20) /* model.safetensors.index.json */
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
/* ---- Engine ---- */
#define QE_LOGIT_BIAS_MAX 1024u /* entries of a request */

/* ---- Constraints ---- */
#define QE_SCHEMA_BYTES_MAX    (1u << 20)
#define QE_SCHEMA_NODES_MAX    100000u
#define QE_TOOL_NAME_BYTES_MAX 64u
#define QE_SESSIONS_MAX        256u  /* open sessions of an engine */
#define QE_COMMANDS_MAX        1024u /* commands that wait for the engine thread; past it QE_ERROR_BUSY */
#define QE_RUNNING_MAX         64u /* requests that compute at the same time: sequences and token slots of a step */
#define QE_PROMPT_BYTES_MAX    (64u << 20) /* text of one request */
#define QE_OUTBOX_BYTES        (64u << 10) /* text that waits for its reader; past it the request pauses */
#define QE_OUTBOX_IDS          (16u << 10) /* ids that wait for their reader; past it the request pauses */

/* ---- Steps ---- */
#define QE_STEP_ROWS_DEFAULT 512u  /* token rows of a step on the CPU */
#define QE_STEP_ROWS_DEVICE  2048u /* on a graphics card: fewer leave its matrix units idle */
#define QE_STEP_ROWS_MAX     8192u
#define QE_STEP_MS_SHARED    50u  /* predicted length of a step while another request decodes or waits */
#define QE_STEP_MS_ALONE     250u /* when one request has the device to itself */
#define QE_PREFILL_ROWS_MIN                                                                                  \
    8u /* a step always takes this much of the oldest prompt, however slow the device is */
#define QE_LOGITS_BYTES    (16u << 20) /* of raw logits that one step may copy out */
#define QE_LOGITS_ROWS_MAX 256u

/* ---- KV memory ---- */
/* kv_bytes_max = 0: the lesser of a quarter of the machine's memory and four full contexts, and at least one full
 * context when half of the memory holds it. */
#define QE_KV_MEMORY_DIVISOR    4u
#define QE_KV_CONTEXTS          4u
#define QE_KV_DEVICE_TOKENS_MIN 2048u /* a card that cannot hold these beside the weights is too small */
#define QE_KV_DEVICE_SLAB_BYTES (256ull << 20) /* by so much the pool grows and shrinks on a card */
#define QE_KV_HOST_SLAB_BYTES                                                                                \
    (64ull << 20) /* the same for the host: a decode step outlasts its registering */
#define QE_HOST_AHEAD_BYTES                                                                                  \
    (1ull << 30)                  /* of host slots that each class keeps free, while the budget lasts */
#define QE_HOST_AHEAD_SHARE    8u /* and at most this part of the budget */
#define QE_HOST_MEMORY_DIVISOR 2u /* of the memory available, for the host tier by default */
#define QE_KV_RESERVE_TOKENS                                                                                 \
    256u /* admission of a reply without max_tokens counts on this many; it grows later */

/* ---- Cache ---- */
#define QE_CACHE_PAGES_MAX      1048576u /* max_cache_size of a conversation */
#define QE_CACHE_GPU_TOKENS_MIN 64u      /* gpu_max_length + hot_cache_length, when not 0 */
#define QE_CACHE_SINK_TOKENS    64u      /* defaults of the selective mode */
#define QE_CACHE_RECENT_TOKENS  512u
#define QE_CACHE_SELECT_TOKENS  2048u
#define QE_CACHE_RECENT_MIN     32u    /* the page being filled and the one before it */
#define QE_SELECT_PAGES_MAX     16384u /* attended to in one step, of sessions that leave pages out */
#define QE_DISK_KEY_BYTES_MAX   128u   /* a conversation's name in the disk tier */
#define QE_DISK_PATIENCE_MS                                                                                  \
    2000u                    /* a request waits so long for the disk without asking if that is worth it */
#define QE_DISK_LOOK_MS 250u /* and then asks this often */

/* ---- Snapshot ---- */
#define QE_SNAPSHOT_MS     100u  /* least time between two publications */
#define QE_DEVICE_MS       1000u /* least time between two questions to a card's driver */
#define QE_HISTORY_SECONDS 300u
#define QE_RATE_MS         1000u /* window of the rates */
