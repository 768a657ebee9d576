/* qe.h: the engine's public API. The application, the command line and the server include this header alone.
 *
 * One engine owns one backend, at most one loaded model and one engine thread. Calls here return at once (except those
 * named *_wait and qe_tokenizer/qe_model functions, which read files): they check their arguments, post a command and
 * let the engine thread act between two steps. Everything that comes back is a *state to fetch*, never a callback with
 * data: a wakeup function says only "there is news", on any thread, and may do nothing but make a GSource ready.
 *
 *   engine = qe_engine_new(); qe_engine_load(engine, dir); session = qe_engine_open_session(engine)
 *   request = qe_engine_generate(engine, &params)       the user's turn; reply streams
 *   on each wakeup, at most once a frame: qe_request_take(request, &update)   text since last time, counts, state
 *
 * Text is UTF-8, always whole characters. Ids are the model's token ids. Bytes are bytes, times are milliseconds.
 * Ownership: `new`/`dup` give a reference to the caller, `get` borrows. Errors: domain QE_ERROR, untranslated.
 * Threads: the engine's functions may be called from any thread; one request's take/wait from one thread at a time. */
#pragma once
#include <glib.h>
#include <stdbool.h>
#include <stdint.h>
#include "engine/qe-error.h"
#include "engine/qe-tokenizer.h"

G_BEGIN_DECLS

typedef struct qe_engine qe_engine;
typedef struct qe_request qe_request;
typedef uint64_t qe_session_id; /* 0: none */
typedef void (*qe_wakeup_fn)(void *user);

/* ---- What this build and machine can run ---- */

typedef struct {
    char *name;   /* "cpu", "cuda" */
    char *device; /* "AMD EPYC, AVX-512, 2 threads"; empty when unavailable */
    char *reason; /* why it cannot be used, one sentence; NULL when available */
} qe_backend_desc;

/* Returns (element-type qe_backend_desc): owned. */
GPtrArray *qe_list_backends(void);

typedef struct {
    char *id;   /* for qe_engine_options.device: stable over restarts */
    char *name; /* "NVIDIA GeForce RTX 4090 D" */
    uint64_t memory_total, memory_free;
    char *reason; /* why it cannot be used; NULL when it can */
} qe_device_desc;

/* The graphics cards that the CUDA backend sees, by index. Returns (element-type qe_device_desc): owned, may be empty. */
GPtrArray *qe_list_devices(void);
const char *qe_version(void);
/* Memory read rate and float32 rate of a backend's device (NULL: the CPU), for benchmarks. Blocks for about a second. */
bool qe_measure_machine(const char *backend, const char *isa, uint32_t n_threads, double *read_bytes_per_s,
    double *flops, GError **error);
/* Benchmarks: memory of a card that is taken and not used, so that engines of this process find only what is left, as on a
 * smaller card. Made before them, freed after them, on one thread. */
typedef struct qe_ballast qe_ballast;
/* @hold: so many bytes; or 0 and @leave: all but what lets this process have @leave bytes of the card beside the ballast,
 * its CUDA context (which is there from then on) included. @device: as of qe_engine_options. */
qe_ballast *qe_ballast_new(const char *device, uint64_t hold, uint64_t leave, GError **error);
uint64_t qe_ballast_bytes(
    const qe_ballast *ballast);                /* of what qe_device_view.memory_process counts; NULL: 0 */
void qe_ballast_free(qe_ballast *ballast);     /* NULL is fine */
#define QE_MEMORY_RESERVE_DEFAULT (1ull << 30) /* of device memory, left to the desktop */
#define QE_RING_BYTES_DEFAULT     (256ull << 20)

/* ---- A model folder, read without loading it ---- */

typedef struct {
    char *name; /* display name */
    char *dir;
    uint32_t n_layers, n_heads, n_kv_heads, head_dim, hidden, ffn, vocab, context_max;
    bool tied_embeddings, has_thinking; /* has_thinking: the template knows thinking on and off */
    uint64_t n_params, weight_bytes, kv_bytes_per_token;  /* KV in bf16 */
    double temperature, top_p, min_p, repetition_penalty; /* generation_config.json's, or the neutral value */
    uint32_t top_k;
} qe_model_info;

/* Validates the whole folder (every tensor's place and shape, tokenizer, template). Blocking. */
qe_model_info *qe_model_info_new(const char *dir, GError **error);
qe_model_info *qe_model_info_copy(const qe_model_info *info);
void qe_model_info_free(qe_model_info *info);

/* ---- Cache modes ---- */

/* What becomes of a conversation's KV between turns, and where it may lie. All modes use the same kernels. */
typedef enum {
    QE_CACHE_AUTO = 0, /* tiered where the engine has host memory for pages, else session */
    QE_CACHE_REBUILD,  /* contiguous KV; every turn computes the whole history again */
    QE_CACHE_PAGED,    /* 16-token pages; every turn computes the whole history again */
    QE_CACHE_SESSION,  /* pages, and a turn computes only its new tokens */
    QE_CACHE_TIERED,   /* session, and older pages may lie in host memory: attended to exactly */
    QE_CACHE_TIERED_INT8, /* tiered with int8 K and V from the moment a token is appended: not exact, the error is known */
    /* Tiered, but a reply's tokens attend to some of the pages only: approximate. Prompts are computed exactly. */
    QE_CACHE_SELECTIVE,
    QE_N_CACHE_MODES,
} qe_cache_mode;
const char *qe_cache_mode_name(qe_cache_mode mode); /* "auto", "rebuild", "paged", ..., "selective" */
bool qe_cache_mode_parse(
    const char *name, qe_cache_mode *out, GError **error); /* the error lists the names */

typedef struct {
    qe_cache_mode mode;
    uint32_t block_size;     /* tokens in a page: 16 */
    uint32_t max_cache_size; /* pages that the conversation may hold in all tiers; 0: as many as there are */
    /* Tiered modes: the newest gpu_max_length + hot_cache_length tokens at most stay on the GPU. Both 0: what fits. */
    uint32_t gpu_max_length, hot_cache_length;
    /* Selective: each token of a reply attends to the first sink_length and the newest recent_length tokens, and of what
     * lies between to select_length tokens: those whose pages have the largest upper bounds of q . k, chosen for each
     * layer and kv head. Up to qe_cache_identity_tokens() of context that is everything, so exact. Multiples of 16. */
    uint32_t sink_length, recent_length, select_length;
    bool offload_to_cpu; /* pages may move to host memory; false: a tiered mode is a session */
    bool
        use_cache; /* find and offer pages that other conversations share; false: neither read nor write them */
} qe_cache_config;
void qe_cache_config_init(qe_cache_config *config); /* auto, 16, 0, 0, 0, 64, 512, 2048, true, true */
/* The context length up to which the selective mode is the exact one, to the bit. */
uint32_t qe_cache_identity_tokens(const qe_cache_config *config);
/* The preset of the article: tiered, 32 recent and 2,048 hot tokens (130 pages) on the GPU. */
void qe_cache_config_init_article(qe_cache_config *config);
bool qe_cache_config_check(
    const qe_cache_config *config, GError **error); /* names the field and what it takes */

/* ---- Engine ---- */

typedef enum { QE_KV_BF16 = 0, QE_KV_F32 = 1 } qe_kv_class;
/* How decode reads pages that lie in host memory; on a device with memory of its own. */
typedef enum {
    QE_HOST_PATH_AUTO = 0, /* what was measured and kept in host_paths_file, else STREAM */
    QE_HOST_PATH_READ,     /* the kernels read them over the bus */
    QE_HOST_PATH_STREAM,   /* copied layer by layer to a ring on the device */
    QE_HOST_PATH_CPU,      /* the CPU attends to them in place */
    QE_N_HOST_PATHS,
} qe_host_path;
const char *qe_host_path_name(qe_host_path path); /* "auto", "read", "stream", "cpu" */
bool qe_host_path_parse(const char *name, qe_host_path *out);
/* Keeps what was measured under @key (a qe_memory_plan's): @path is the choice, @ms what a token took each way (0: not
 * measured) with @n_tokens in host memory. The file's folder is made. Engines find it at their next load. */
bool qe_host_paths_store(const char *file, const char *key, qe_host_path path, uint32_t n_tokens,
    const double ms[QE_N_HOST_PATHS], GError **error);

typedef struct {
    const char *backend; /* NULL: the best available; when that fails for want of memory or device, the CPU */
    const char *isa;     /* NULL: the best. CPU: reference, avx2, avx512; CUDA: portable, hopper */
    const char *device;  /* a qe_device_desc's id or its index; NULL: the one with the most free memory */
    uint32_t n_threads;  /* 0: all cores */
    qe_kv_class kv_class;
    uint64_t kv_bytes_max; /* 0: a default from the machine's memory */
    /* Host memory for pages, beside the device's: 0: a default from the memory available; 1: none. On the CPU, where the
     * device's memory is host memory, the default is none. */
    uint64_t host_bytes_max;
    qe_host_path host_path;
    const char *host_paths_file; /* where measured choices are kept, for AUTO; NULL: nowhere */
    uint64_t ring_bytes; /* device memory through which host pages are streamed; 0: QE_RING_BYTES_DEFAULT */
    /* Where pages are kept over restarts (made with mode 0700; its parent is there); NULL: nowhere. Pages go there by way
     * of host memory: without any (host_bytes_max) there is no disk tier. One engine uses a directory at a time. */
    const char *disk_dir;
    uint64_t disk_bytes_max; /* quota of disk_dir, for all models together; 0: none is kept */
    uint64_t
        memory_reserve; /* device memory that stays free for others; 0: QE_MEMORY_RESERVE_DEFAULT, 1: none */
    uint64_t
        memory_returned; /* qe_plan_memory() alone: device memory that is taken now and free before the load, such
                                 as of the model that goes */
    uint32_t context_max;    /* tokens; 0: the model's */
    uint32_t step_rows_max;  /* token rows in one step; 0: default */
    uint32_t step_ms_shared; /* predicted length of a step while others wait; 0: 50 */
    uint32_t step_ms_alone;  /* 0: default */
    uint32_t outbox_bytes;   /* text that waits for a reader before its request pauses; 0: 64 KiB */
    bool check_invariants;   /* run the KV checker after every step (always in debug builds) */
    qe_wakeup_fn wakeup;     /* engine state or snapshot changed; may be NULL */
    void *wakeup_user;
    qe_engine *
        replaces; /* freed (as by qe_engine_free) on the new engine's thread before anything else happens there,
                            so that two never hold a card's memory at once; consumed on success. NULL: none */
} qe_engine_options;

qe_engine *qe_engine_new(const qe_engine_options *options /* NULL: defaults */, GError **error);

/* What a load with these options would take, worked out without loading. */
typedef struct {
    char *backend, *device; /* owned */
    bool on_device;         /* a card with memory of its own; else weights are mapped from the files */
    uint64_t memory_total, memory_free, reserve; /* of the device; free and reserve on a card only */
    uint64_t weights, workspace, kv;             /* workspace: on a card only */
    uint64_t kv_tokens;                          /* that kv holds */
    uint64_t host_kv, host_kv_tokens;            /* host memory for pages beside it; 0: none */
    uint64_t page_bytes, page_bytes_int8;        /* of one page of 16 tokens */
    bool has_selective;                          /* the device can choose pages */
    /* On a card with host memory for pages: the way to them for pages of the engine's class and for int8 pages, why, and
     * under which key a measured choice is kept. All owned; NULL otherwise. */
    qe_host_path host_path, host_path_int8;
    char *host_path_why, *host_path_int8_why, *host_path_key, *host_path_int8_key;
    char *problem; /* owned: why the load would fail and what to change; NULL: it fits */
} qe_memory_plan;

/* What a context of @n_tokens costs in @config's mode under @plan, and where its pages would lie when nothing else is
 * open. */
typedef struct {
    uint64_t bytes;                    /* of KV in all tiers */
    uint64_t device_bytes, host_bytes; /* of them */
    uint64_t bounds_bytes;             /* of device_bytes: what the selective mode chooses pages by */
    uint64_t device_tokens, host_tokens;
    bool fits;
} qe_cache_cost;
void qe_cache_cost_of(
    const qe_memory_plan *plan, const qe_cache_config *config, uint64_t n_tokens, qe_cache_cost *out);
/* Blocking (reads the folder's headers and asks the card). NULL with @error when the folder is no model. */
qe_memory_plan *qe_plan_memory(const qe_engine_options *options, const char *dir, GError **error);
void qe_memory_plan_free(qe_memory_plan *plan); /* NULL is fine */
/* Cancels everything, stops the thread, waits for it. Requests stay readable until freed. NULL is fine. */
void qe_engine_free(qe_engine *engine);

typedef enum {
    QE_ENGINE_EMPTY, /* no model */
    QE_ENGINE_LOADING,
    QE_ENGINE_READY,
    QE_ENGINE_FAILED,   /* the load failed; the error says why. Load again to leave it */
    QE_ENGINE_LOST,     /* the device was lost; sessions keep their tokens. qe_engine_recover() */
    QE_ENGINE_RELEASED, /* qe_engine_release(); sessions keep their tokens. qe_engine_recover() */
} qe_engine_state;

typedef struct {
    qe_engine_state state;
    uint64_t load_done_bytes, load_total_bytes;
    GError *error;        /* owned; FAILED and LOST */
    qe_model_info *model; /* owned; READY, LOST and RELEASED, else NULL */
    char *backend;        /* owned */
    char *device;         /* owned */
} qe_engine_status;

void qe_engine_load(qe_engine *engine, const char *dir); /* frees the model before; sessions end */
void qe_engine_unload(qe_engine *engine);
/* Changes the budget of KV memory; 0: the default. The model stays. A smaller budget frees idle chats' pages, and at
 * once what lies past it; what running requests hold goes when they end. */
void qe_engine_set_kv_bytes(qe_engine *engine, uint64_t kv_bytes_max);
void qe_engine_recover(
    qe_engine *engine); /* LOST, RELEASED: reopens and reloads; turns prefill again from the kept
                                               tokens what no lower tier has */
/* READY: gives all of the device's memory back: weights, workspace, pages. Running requests are cancelled. Pages of tiered
 * sessions are copied to host memory first, as far as there is room for them; sessions keep their tokens. */
void qe_engine_release(qe_engine *engine);
/* READY: lets the device do a little work, as after the machine slept: one that does not answer is LOST then. */
void qe_engine_check(qe_engine *engine);
void qe_engine_get_status(qe_engine *engine, qe_engine_status *out);
void qe_engine_status_clear(qe_engine_status *status);
bool qe_engine_wait_ready(
    qe_engine *engine, GError **error); /* blocks until READY or FAILED; never on a UI thread */
qe_tokenizer *qe_engine_dup_tokenizer(qe_engine *engine); /* NULL unless READY, LOST or RELEASED */

/* ---- Sessions: one conversation's timeline of exact token ids and its KV pages ---- */

/* Returns 0 with @error (QE_ERROR_BUSY past QE_SESSIONS_MAX, QE_ERROR_FAILED when no model is ready). */
qe_session_id qe_engine_open_session(qe_engine *engine, GError **error);
typedef struct {
    qe_cache_config cache;
    /* The conversation's name in the disk tier: UTF-8, at most 128 bytes, one open session at a time; NULL: it is not kept
     * there. Kept are the full pages of tiered sessions that use the cache (use_cache), exact and int8 ones apart, and the logits
     * behind the last prompt: when that is asked again, its reply begins before anything is computed. */
    const char *disk_key;
    /* Benchmarks: of a generated reply's prompt that finds nothing cached, the pages before its last token are filled with
     * random K and V instead of being computed, so that decoding can be timed at lengths whose prompt takes too long. What
     * it says means nothing. Needs use_cache false and no disk_key: nobody else finds such a page. */
    bool synthetic;
} qe_session_options;
void qe_session_options_init(qe_session_options *options);
/* As above, with a cache mode of its own. QE_ERROR_INVALID for a config that qe_cache_config_check() refuses. */
qe_session_id qe_engine_open_session_with(
    qe_engine *engine, const qe_session_options *options, GError **error);
/* Another mode from the next turn on. What the session has cached and the new mode cannot use is computed again then.
 * While a request runs: QE_ERROR_BUSY. */
bool qe_engine_set_cache(
    qe_engine *engine, qe_session_id session, const qe_cache_config *config, GError **error);
/* The session will be used soon (its tab came to the front): its pages move up as far as there is room. */
void qe_engine_prefetch_session(qe_engine *engine, qe_session_id session);
/* A new session that shares the parent's first @keep_messages messages (QE_KEEP_ALL: all; QE_KEEP_PROMPT) and their sealed pages. */
qe_session_id qe_engine_fork_session(
    qe_engine *engine, qe_session_id parent, uint32_t keep_messages, GError **error);
void qe_engine_close_session(
    qe_engine *engine, qe_session_id session); /* cancels its request; drops its pages */
/* Deletes all that is kept on disk of the conversation, of every model. A session that is open under that key is not kept
 * any more. Without a disk tier now (no model is loaded) it is done when there is one. */
void qe_engine_delete_session_files(qe_engine *engine, const char *disk_key);

/* ---- Requests ---- */

#define QE_KEEP_ALL UINT32_MAX
#define QE_KEEP_PROMPT                                                                                       \
    (UINT32_MAX - 1) /* forks: all but the last message, which is the reply of the last request */

typedef enum { QE_ROLE_SYSTEM, QE_ROLE_USER, QE_ROLE_ASSISTANT, QE_ROLE_TOOL } qe_role;
typedef struct {
    const char *name;
    const char *arguments; /* JSON, put into the prompt as it is; see qe_json_spell() */
} qe_tool_call;
typedef struct {
    qe_role role;     /* TOOL: what a call gave; with whole_history only */
    const char *text; /* UTF-8; ill-formed bytes become U+FFFD */
    gssize n_bytes;   /* -1: up to the NUL */
    /* Of a reply, with whole_history only. */
    const char *reasoning; /* its thinking; NULL: what @text has of it. Templates may leave it out */
    const qe_tool_call *calls;
    uint32_t n_calls;
} qe_message;
/* @json (@n_bytes of UTF-8; -1: up to the NUL), one value, as Python's json.dumps writes it, which is how templates show
 * JSON to their models. QE_ERROR_FORMAT or _INVALID. Returns: owned. */
char *qe_json_spell(const char *json, gssize n_bytes, GError **error);

typedef enum { QE_THINKING_DEFAULT, QE_THINKING_ON, QE_THINKING_OFF } qe_thinking;

typedef struct {
    double temperature;        /* >= 0; 0 is greedy */
    double top_p;              /* [0, 1]; 1: off */
    double min_p;              /* [0, 1]; 0: off */
    double repetition_penalty; /* > 0; 1: off */
    double presence_penalty;   /* [-2, 2]; 0: off. Subtracted from the logits of ids that are in the reply */
    double frequency_penalty;  /* [-2, 2]; 0: off. The same, times how often the id is in the reply */
    int64_t top_k;             /* <= 0: off */
    uint64_t seed;
    bool has_seed; /* false: the engine draws one and reports it in the receipt */
} qe_sampling_params;

/* The model's generation_config.json, else greedy. */
void qe_sampling_params_init(qe_sampling_params *params, const qe_model_info *info);
bool qe_sampling_params_check(
    const qe_sampling_params *params, GError **error); /* names the field and its range */

typedef struct {
    uint32_t id;
    float value; /* [-100, 100], added to the id's logit after the penalties */
} qe_logit_bias;

/* What a reply may be, and nothing else. Immutable and reference-counted; any thread. One constraint may be used by any
 * number of requests at once.
 *
 * A reply that ends by itself (QE_FINISH_STOP, and no stop string) is a whole text of the constraint. One that was cut
 * (QE_FINISH_LENGTH, QE_FINISH_CONTEXT, cancelled, a stop string) is the beginning of one. Where the template makes
 * the model think, the constraint begins behind "</think>"; until then the reply is free but cannot end. A model that may
 * think does so with QE_THINKING_ON only. */
typedef struct qe_constraint qe_constraint;
/* Any JSON object. Returns: owned. */
qe_constraint *qe_constraint_new_json_object(void);
/* JSON that @schema (@n_bytes of UTF-8; -1: up to the NUL) allows; the part of JSON Schema that is known is listed in
 * engine/qe-schema.h. QE_ERROR_UNSUPPORTED names the JSON pointer and the keyword that is not known, QE_ERROR_FORMAT or
 * _INVALID what is wrong. Returns: owned. */
qe_constraint *qe_constraint_new_json_schema(const char *schema, gssize n_bytes, GError **error);
/* Calls of the functions in @tools, the JSON array of an OpenAI request's `tools`, in the form that the Qwen3 template
 * asks for. @name: of this function only; NULL: of any. @parallel: one or more calls, else just one. A function that is not
 * "strict": true and whose schema has keywords that are not known takes any object. Errors as above. Returns: owned. */
qe_constraint *qe_constraint_new_tool_call(
    const char *tools, gssize n_bytes, const char *name, bool parallel, GError **error);
/* A reply that is free until "<tool_call>" stands outside its thinking; from there on it is calls as above, and nothing
 * behind them. Returns: owned. */
qe_constraint *qe_constraint_new_tool_call_or_text(
    const char *tools, gssize n_bytes, bool parallel, GError **error);
/* A reply that is JSON that @schema allows (NULL: any object), or calls as above, and nothing else. Returns: owned. */
qe_constraint *qe_constraint_new_tool_call_or_json(
    const char *tools, gssize n_tools, bool parallel, const char *schema, gssize n_schema, GError **error);
/* A reply without the control token "<tool_call>". Returns: owned. */
qe_constraint *qe_constraint_new_no_tool_call(void);
qe_constraint *qe_constraint_ref(qe_constraint *self);
void qe_constraint_unref(qe_constraint *self); /* NULL is fine */

typedef struct {
    qe_session_id session;
    /* The prompt, one of: (a) @messages after the first @keep_messages of the session (the new turn; edit and
     * regenerate keep fewer); (b) @messages as the whole conversation (@whole_history): the session keeps the longest
     * common prefix of ids; (c) @ids: exact tokens as the whole timeline, no template. */
    uint32_t keep_messages;
    const qe_message *messages;
    uint32_t n_messages;
    bool whole_history;
    /* With @whole_history: the JSON array of an OpenAI request's `tools`, @n_tools_bytes of it (-1: up to the NUL), which the
     * prompt offers to the model in the template's form; a template without one gets Qwen3's. NULL: none. */
    const char *tools;
    gssize n_tools_bytes;
    /* With @whole_history: the last of @messages is a reply that was cut; what is generated goes on from its text, and is
     * all that comes as the request's text. */
    bool continue_reply;
    const uint32_t *ids;
    uint32_t n_ids;
    qe_thinking thinking;
    qe_sampling_params sampling;
    uint32_t max_tokens;     /* 0: until the context is full */
    const char *const *stop; /* NULL-terminated stop strings, or NULL */
    bool ignore_eos;         /* benchmarks */
    bool no_reuse;           /* prefill everything again (benchmarks, checks) */
    uint32_t n_top;          /* report the n largest logits after the prompt; QE_TOP_MAX at most */
    /* The last n of max_tokens are decoded in steps that time their parts, for the receipt's profile (benchmarks). Such
     * steps take longer; the first token of a reply is never one of them. */
    uint32_t n_profile;
    const qe_logit_bias
        *logit_bias; /* [n_logit_bias], no id twice, at most 1024; ids past the vocabulary are refused */
    uint32_t n_logit_bias;
    bool logprobs; /* report each token's log-probability (qe_update.logprobs) */
    uint32_t
        n_top_logprobs; /* and the most probable tokens beside it; at most QE_TOP_LOGPROBS_MAX. Needs logprobs */
    qe_constraint *constraint; /* a reference is taken; NULL: none. Not with ignore_eos */
    qe_wakeup_fn wakeup;       /* this request has news; may be NULL */
    void *wakeup_user;
} qe_generate_params;
#define QE_TOP_MAX          1024
#define QE_TOP_LOGPROBS_MAX 20

void qe_generate_params_init(
    qe_generate_params *params, const qe_model_info *info); /* defaults; keeps all messages */

/* Everything in @params is copied. One request a session at a time (QE_ERROR_BUSY). Errors that need the engine thread
 * (context length, out of pages) arrive as the request's state. Returns: owned. */
qe_request *qe_engine_generate(qe_engine *engine, const qe_generate_params *params, GError **error);
void qe_request_cancel(qe_request *request); /* acts within 100 ms; what was streamed stays in the session */
qe_request *qe_request_ref(qe_request *request);
void qe_request_unref(qe_request *request); /* does not cancel; NULL is fine */

typedef enum { QE_REQUEST_QUEUED, QE_REQUEST_PREFILL, QE_REQUEST_DECODE, QE_REQUEST_DONE } qe_request_state;
typedef enum {
    QE_FINISH_NONE,
    QE_FINISH_STOP,    /* an end-of-turn token or a stop string */
    QE_FINISH_LENGTH,  /* max_tokens */
    QE_FINISH_CONTEXT, /* the context is full */
    QE_FINISH_CANCELLED,
    QE_FINISH_ERROR, /* see error */
} qe_finish;
const char *qe_finish_name(
    qe_finish finish); /* "stop", "length", "length", "cancelled", "error": OpenAI's words */

/* Why a turn could not go on from all that the conversation had computed. */
typedef enum {
    QE_MISMATCH_NONE,
    QE_MISMATCH_EDITED,   /* the prompt differs from the timeline at first_mismatch */
    QE_MISMATCH_STRIPPED, /* earlier replies lost their reasoning, as the template demands */
    QE_MISMATCH_EVICTED,  /* pages were given up for want of memory */
    QE_MISMATCH_MODE,     /* the cache mode keeps nothing, or has changed */
} qe_mismatch;
const char *qe_mismatch_name(qe_mismatch mismatch);

/* Where the time of decode steps went, in milliseconds, summed over the steps. A step with several sequences counts whole
 * for each of them. */
typedef struct {
    uint32_t n_steps; /* 0: nothing was measured */
    double step_ms; /* as the engine sees them, from submission or the end of the step before to the result */
    double embed_ms, project_ms, kv_ms, attend_ms, mlp_ms, head_ms, sample_ms; /* as qk_part names them */
    /* attend_ms has keys' and values' way into their pages too; kv_ms is the same work done once more by itself, and is
     * not one of the parts that add up. */
    bool kv_in_attend;
} qe_profile;

typedef struct {
    qe_cache_mode mode;
    uint32_t n_prompt; /* tokens of the whole timeline before the reply */
    uint32_t n_reused; /* of those, whose KV was there, in whatever tier */
    uint32_t n_shared; /* of the reused, those computed by another conversation and found by their ids */
    uint32_t n_restored_host,
        n_restored_disk;  /* of the reused, those brought back to the device for this turn */
    uint32_t n_on_host;   /* of the reused, those attended to where they are, in host memory */
    uint32_t n_new;       /* prefilled now: n_prompt - n_reused - n_synthetic */
    uint32_t n_synthetic; /* filled with random K and V: a synthetic session's */
    uint32_t
        n_recomputed; /* known tokens computed again (stripped reasoning, dropped pages, recovery, a pause for pages) */
    uint32_t n_generated;
    int64_t
        first_mismatch; /* token position where the kept prefix ended before the old timeline did; -1: none */
    qe_mismatch mismatch; /* why */
    double
        skipped_share; /* selective: of the pages that the reply's tokens had before them, how many were left out, 0..1 */
    double restore_ms;      /* until pages of lower tiers were back */
    double restore_disk_ms; /* of it, until those from the disk were in host memory */
    double queue_ms, first_token_ms, prefill_ms, decode_ms; /* first_token_ms: from the call */
    double prefill_tokens_per_s, decode_tokens_per_s;
    qe_profile profile; /* of the request's n_profile */
    uint64_t seed;
} qe_receipt;

typedef struct {
    uint32_t id;
    float logit, logprob;
} qe_top;

/* Log-probabilities are the model's own: of its logits at temperature 1, before penalties, bias, constraint and filters.
 * A token's bytes, which may be a part of a character: qe_tokenizer_token_bytes(). */
typedef struct {
    uint32_t id; /* drawn */
    float logprob;
    uint32_t n_top;
    struct {
        uint32_t id;
        float logprob;
    } top[QE_TOP_LOGPROBS_MAX]; /* most probable first; the drawn token need not be among them */
} qe_token_logprobs;

/* Where a message is in its conversation's timeline: tokens [begin, end), those of the template included. */
typedef struct {
    qe_role role;
    uint32_t begin, end;
} qe_message_range;

typedef struct {
    qe_request_state state;
    uint32_t n_before;                /* QUEUED: requests ahead */
    uint32_t n_prompt, n_prompt_done; /* done counts reused tokens too */
    /* owned: the reply's new text since the last take; never NULL. Where the template opens the thought in the prompt, a
     * reply's text begins with that "<think>\n" all the same. */
    char *text;
    gsize n_text;
    uint32_t *ids; /* owned: new generated ids since the last take, end token included */
    uint32_t n_ids;
    qe_token_logprobs
        *logprobs;      /* owned: [n_ids] of the same tokens when the request wants them, else NULL */
    qe_receipt receipt; /* live while running, final when DONE */
    qe_top *top;        /* owned: [n_top], once known; else NULL */
    uint32_t n_top;
    qe_finish finish; /* DONE only */
    /* owned: [n_ranges], DONE only: every message of the conversation, the reply last. Ids count as a user's message. */
    qe_message_range *ranges;
    uint32_t n_ranges;
    GError *error; /* owned; QE_FINISH_ERROR only */
} qe_update;

/* Moves what is new into @out and returns whether anything changed since the last call; @out is valid, and owned, either
 * way: qe_update_clear() it. Never blocks on the engine. A reader that takes nothing pauses its request once outbox_bytes
 * of text wait; text is never dropped. */
bool qe_request_take(qe_request *request, qe_update *out);
void qe_update_clear(qe_update *update);
/* Waits for news, at most @timeout_ms (-1: for ever). Not on a UI thread. */
bool qe_request_wait(qe_request *request, int timeout_ms);

/* Raw logits of positions [first, n_ids) for tests and the `logits` command: @out [n_ids - first, vocab] floats.
 * Uses @session's cache (0: a throw-away session). Blocking. */
bool qe_engine_eval(qe_engine *engine, qe_session_id session, const uint32_t *ids, uint32_t n_ids,
    uint32_t first, float *out, GError **error);

/* ---- Snapshot: what the cache panel shows. Immutable, reference-counted, published at most 10 times a second ---- */

typedef enum { QE_TIER_GPU, QE_TIER_HOST, QE_TIER_DISK, QE_N_TIERS } qe_tier;

typedef struct {
    bool present;
    char *reason; /* why not present, one sentence ("This build has no CUDA module."); NULL when present */
    uint32_t n_pages_used, n_pages_shared, n_pages_max;
    uint64_t bytes_used, bytes_max, bytes_reserved; /* reserved: taken from the system so far */
    uint64_t bytes_bounds;                          /* of the used: bounds of pages for the selective mode */
    uint64_t bytes_pinned;                          /* host: of the reserved, registered with the device */
    uint64_t bytes_in, bytes_out; /* moved into this tier from another, and out of it, since the load */
    char *note; /* something the user should know ("The system pinned only 8 GiB: ..."); NULL: nothing */
} qe_tier_view;

typedef struct {
    uint64_t memory_total, memory_used; /* bytes, by everyone on the card */
    uint64_t memory_process;            /* of it, by this program; 0 when unknown */
    uint64_t weights, workspace;        /* of it, the model's weights and what steps compute in */
    int32_t utilization;                /* percent; -1 when unknown */
} qe_device_view;

/* The tier is the fastest that has the page. MOVING: a copy of it is on its way to another tier. */
enum { QE_CELL_TIER_MASK = 0x3, QE_CELL_TAIL = 0x4, QE_CELL_SHARED = 0x8, QE_CELL_MOVING = 0x10 };
typedef struct {
    uint8_t flags;    /* qe_tier in the low bits, QE_CELL_* */
    uint8_t n_refs;   /* sessions that share the page, 255 and up saturates */
    uint8_t n_tokens; /* filled slots, 1..16 */
    uint8_t reserved;
} qe_cell;

typedef struct {
    qe_session_id id;
    uint32_t n_tokens, n_pages, n_pages_shared;
    uint32_t n_pages_tier[QE_N_TIERS]; /* by the fastest tier that has them */
    uint64_t bytes;
    bool running;
    qe_cache_mode mode;   /* never AUTO */
    const qe_cell *cells; /* [n_pages], token order */
    uint64_t changed;     /* the serial since which the cells are as they are */
} qe_session_view;

typedef struct {
    uint64_t serial; /* grows with every publication */
    uint32_t page_tokens;
    uint64_t page_bytes;
    qe_tier_view tiers[QE_N_TIERS];
    qe_device_view device; /* the card that computes; memory_total 0 on the CPU */
    uint32_t n_sessions;
    const qe_session_view *sessions; /* by id */
    uint32_t n_running, n_queued;
    double prefill_tokens_per_s, decode_tokens_per_s; /* over the last second; 0 when idle */
    uint32_t n_history;
    const uint32_t *history;                  /* [n_history <= 300] pages used, one a second, oldest first */
    const uint32_t *tier_history[QE_N_TIERS]; /* [n_history]: the same by tier */
    uint32_t n_pages_cached; /* pages that no open conversation holds, kept to be found again */
} qe_snapshot;

const qe_snapshot *qe_engine_dup_snapshot(qe_engine *engine); /* never NULL */
void qe_snapshot_unref(const qe_snapshot *snapshot);
/* A page whose flags are others than they were: another tier, shared, moving, full. */
enum { QE_CELL_NONE = 0xff }; /* in the flags' place: there was, or is, no such page */
typedef struct {
    qe_session_id session;
    uint32_t page; /* in token order */
    uint8_t before, now;
} qe_page_change;
/* What became of pages between two snapshots of one engine, by session and page. Sessions to which nothing happened cost no
 * look at their pages. Returns: owned, [*n]; NULL when there is nothing. */
qe_page_change *qe_snapshot_list_changes(const qe_snapshot *since, const qe_snapshot *now, uint32_t *n);

G_DEFINE_AUTOPTR_CLEANUP_FUNC(qe_engine, qe_engine_free)
G_DEFINE_AUTOPTR_CLEANUP_FUNC(qe_request, qe_request_unref)
G_DEFINE_AUTOPTR_CLEANUP_FUNC(qe_constraint, qe_constraint_unref)
G_DEFINE_AUTOPTR_CLEANUP_FUNC(qe_model_info, qe_model_info_free)
G_DEFINE_AUTOPTR_CLEANUP_FUNC(qe_memory_plan, qe_memory_plan_free)

G_END_DECLS
