/* qk.h: the backend interface between the engine and a device (CPU, CUDA, a mock for tests).
 *
 * The unit of work is a *step*: one pass of the whole model over a ragged batch of token rows, from embedding to
 * sampled token. The engine fills a plan in the step's own parameter buffer, submits, and waits. Nothing that
 * changes from step to step is a call argument, so a backend may record a step once (as a CUDA graph) and replay it.
 *
 *   open backend -> load model -> make context (workspace, token slots) -> make two steps -> fill, submit, wait, ...
 *
 * Numbered promises that backends keep and tests check:
 *  1. Steps of a context run in submission order. A step may be submitted while the one before it still runs.
 *  2. A plan's row may take its token from a *token slot*, which an earlier step's sampler wrote on the device. So the
 *     host can stay one step behind: it submits step n+1, then reads step n's tokens. When a reply turns out to have
 *     ended in step n, the host ignores that sequence's output of step n+1 and reuses its one KV position: a KV
 *     position is only defined by the last completed step that wrote it.
 *  3. Attention over a sequence is cut at multiples of QK_SPAN_TOKENS, whatever the batch, the chunking or the
 *     placement of pages; the spans' partial results (normalised float32 output and log-sum-exp) are merged in
 *     position order in float32. Spans whose pages are not device-visible are supplied by the outside partial slot.
 *     A selective sequence's keys are those of its chosen pages, in position order: cut like a sequence of that length.
 *  4. On the CPU backend a row's result is bit-identical however many rows, sequences, threads or chunks share the
 *     step (same instruction set). A CUDA backend states its own, weaker rule.
 *  5. Nothing is allocated between qk_step_new() and qk_step_free() on the submit/wait path.
 *
 * Threads: every function of one backend is called from one thread (the engine's), except qk_step_cancel() and
 * qk_event_query(), which any thread may call. Ownership: who makes an object frees it, in reverse order of making.
 * Errors: a status; qk_backend_error() then has one English line (operation, shape, driver's words). After
 * QK_DEVICE_LOST every call on the backend returns QK_DEVICE_LOST; only freeing is allowed. No function prints or exits.
 *
 * This header needs no GLib and no CUDA header. */
#pragma once
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#define QK_ABI_VERSION 4u
#define QK_PAGE_TOKENS 16u  /* tokens in a KV page */
#define QK_SPAN_TOKENS 256u /* attention is cut at multiples of this: 16 pages */
#define QK_NO_SLOT     UINT32_MAX
#define QK_TOP_MAX     20u /* alternatives that an output can list */

typedef enum {
    QK_OK = 0,
    QK_PENDING,     /* not an error: the work has not finished (poll, query) */
    QK_CANCELLED,   /* the step was given up between two layers; none of its rows or outputs count */
    QK_NO_MEMORY,   /* host or device; the message says which and how much */
    QK_UNSUPPORTED, /* well formed, but this backend does not run it */
    QK_INVALID,     /* the caller broke this header's rules */
    QK_DEVICE_LOST,
} qk_status;

typedef enum { QK_F32 = 0, QK_BF16 = 1, QK_I8 = 2 } qk_dtype; /* QK_I8: KV pages only, see qk_kv_layout */

typedef struct qk_backend qk_backend;
typedef struct qk_model qk_model;     /* weights as the device uses them */
typedef struct qk_context qk_context; /* workspace, token slots, penalty history for one model */
typedef struct qk_step qk_step;       /* one parameter buffer and one result buffer */
typedef struct qk_event qk_event;

const char *qk_status_name(qk_status status); /* static string, never NULL */

/* ---- Backends ------------------------------------------------------------------------------------------------ */

typedef struct {
    const char *name; /* "cpu", "cuda"; static */
    bool available;   /* can be opened now */
    char reason[160]; /* when not available: one sentence a user can act on; else empty */
    char device[96];  /* what would compute: "AMD EPYC, AVX-512, 2 threads" */
} qk_probe;

/* Fills at most @n entries in order of preference. Returns how many backends this build knows. */
size_t qk_probe_backends(qk_probe *out, size_t n);

/* The devices of one backend that has several. */
typedef struct {
    char id[48];   /* stable over restarts: "GPU-3f2a..." */
    char name[96]; /* "NVIDIA GeForce RTX 4090 D" */
    uint64_t memory_total, memory_free;
    uint32_t capability; /* major * 10 + minor */
    bool usable;
    char reason[160]; /* when not usable: one sentence */
} qk_device;

/* Fills at most @n entries, in the order of their index, and returns how many there are: 0 for a backend with one
 * device, and where the backend is not available. */
size_t qk_list_devices(const char *backend, qk_device *out, size_t n);

typedef struct {
    uint32_t n_threads; /* 0: the backend's choice (CPU: cores this process may use) */
    /* NULL for the best. CPU: "reference", "avx2", "avx512". CUDA: "portable" (what every card from sm_80 on runs) or
     * "hopper". QK_UNSUPPORTED when missing. */
    const char *isa;
    const char *device; /* NULL for the best; else a qk_device's id or its index in decimal. CPU: ignored */
} qk_backend_options;

/* @name: one of qk_probe's names. @error: @error_size bytes for one line, filled when the result is not QK_OK. */
qk_status qk_backend_open(
    const char *name, const qk_backend_options *options, qk_backend **out, char *error, size_t error_size);
void qk_backend_free(qk_backend *backend); /* NULL is fine; everything made from it must be freed before */
const char *qk_backend_error(const qk_backend *backend); /* borrowed; valid until the backend's next call */

typedef struct {
    const char *name;      /* "cpu" */
    char device[96];       /* "AMD EPYC, AVX-512, 2 threads" */
    bool is_host;          /* device memory is host memory (the panel then shows one tier) */
    uint64_t memory_total; /* bytes of device memory, 0 when unknown */
    uint64_t memory_free;
    uint64_t memory_process; /* of it, what this process holds; 0 when unknown. CUDA: from NVML */
    int32_t utilization;     /* percent of the last moment in which the device computed; -1 when unknown */
    uint32_t n_threads;
    /* What computes, as far as results depend on it: "avx512" (what options.isa would name), "hopper sm_90". K and V of
     * backends that differ in name or here need not be the same bits. */
    char kernels[32];
} qk_backend_info;
void qk_backend_get_info(qk_backend *backend, qk_backend_info *out);

/* Measured ceilings of this device with its own threads, for benchmarks. Takes about half a second. */
typedef enum {
    QK_MEASURE_READ_BYTES_PER_S, /* device memory, read only */
    QK_MEASURE_F32_FLOPS, /* CUDA: bf16 matrix products with float32 sums, what a prompt is computed with */
} qk_measure;
qk_status qk_backend_measure(qk_backend *backend, qk_measure what, double *out);

/* ---- Memory, copies, events ---------------------------------------------------------------------------------- */

typedef enum {
    QK_MEMORY_DEVICE, /* the engine must never dereference it, on any backend: host is NULL */
    QK_MEMORY_HOST,   /* host memory that the device can read and copy from at full speed (pinned for CUDA) */
} qk_memory;

/* Fields are read-only to the caller. */
typedef struct {
    qk_backend *backend;
    qk_memory memory;
    uint64_t bytes;
    uint64_t address; /* device-visible base address, at least 64-byte aligned, never 0 */
    void *host;       /* QK_MEMORY_HOST only */
} qk_buffer;

qk_status qk_buffer_new(qk_backend *backend, qk_memory memory, uint64_t bytes, qk_buffer **out);
void qk_buffer_free(qk_buffer *buffer); /* NULL is fine; no work that touches it may be in flight */

/* Host memory of the caller's own (a mapping that outlives a lost device): [@host, @host + @bytes), both multiples of
 * 4096. Registering makes the device read it, and copy to and from it, at full speed; it takes its time (about 0.1 s
 * for 256 MiB) and may be done on any thread, beside calls of the backend's thread, while the backend is open.
 * QK_NO_MEMORY or QK_UNSUPPORTED when the system refuses to pin so much: @error (@error_size bytes, one line) says why,
 * and the memory works unregistered. The caller unregisters before it unmaps, and before the backend is freed; after a
 * loss that only forgets. */
qk_status qk_host_register(qk_backend *backend, void *host, uint64_t bytes, char *error, size_t error_size);
void qk_host_unregister(qk_backend *backend, void *host); /* any thread; what is not registered is ignored */
/* A QK_MEMORY_HOST buffer over such memory, not owning it. Registered memory has a device-visible address; else address
 * is 0 on a device with memory of its own: copies work (slower, and the call may wait for them), kernels cannot read it.
 * Engine thread. */
qk_status qk_buffer_wrap(qk_backend *backend, void *host, uint64_t bytes, qk_buffer **out);

/* Work on one stream is ordered; streams are ordered among each other only by events. Steps run on COMPUTE. */
typedef enum {
    QK_STREAM_COMPUTE = 0,
    QK_STREAM_TO_DEVICE = 1,
    QK_STREAM_TO_HOST = 2,
    QK_N_STREAMS = 3
} qk_stream;

typedef struct {
    qk_buffer *dst;
    uint64_t dst_offset;
    qk_buffer *src;
    uint64_t src_offset;
    uint64_t bytes;
} qk_copy;

/* Enqueues @n copies on @stream. The array is read before the call returns. Ranges are checked: QK_INVALID. */
qk_status qk_copy_submit(qk_backend *backend, qk_stream stream, const qk_copy *copies, uint32_t n);
/* Enqueues a fill of whole 32-bit words; offset and bytes are multiples of 4. Debug builds fill fresh pages with NaN. */
qk_status qk_fill_submit(
    qk_backend *backend, qk_stream stream, qk_buffer *dst, uint64_t offset, uint64_t bytes, uint32_t word);

qk_status qk_event_new(qk_backend *backend, qk_event **out);
void qk_event_free(qk_event *event);
qk_status qk_event_record(
    qk_event *event, qk_stream stream);    /* fires when the work enqueued so far is done */
qk_status qk_event_query(qk_event *event); /* QK_OK, QK_PENDING or QK_DEVICE_LOST */
qk_status qk_event_wait(qk_event *event);  /* the host waits */
qk_status qk_stream_wait(qk_backend *backend, qk_stream stream, qk_event *event); /* the stream waits */

/* ---- Model --------------------------------------------------------------------------------------------------- */

typedef struct {
    uint32_t n_layers, n_heads, n_kv_heads, head_dim, hidden, ffn, vocab;
    uint32_t max_positions; /* of the context, in tokens */
    float rms_eps;
    float rope_factor;           /* cos and sin are multiplied by it; 1 without YaRN */
    const double *rope_inv_freq; /* [head_dim / 2], borrowed during qk_model_load() */
} qk_shape;

/* A row-major host matrix [rows, cols]; a vector has rows = 1. A linear layer is [out, in]. */
typedef struct {
    const void *data;
    qk_dtype dtype; /* QK_BF16 or QK_F32 */
    uint32_t rows, cols;
} qk_tensor;

typedef struct {
    qk_tensor attn_norm;      /* [hidden] */
    qk_tensor q, k, v;        /* [n_heads * head_dim, hidden], [n_kv_heads * head_dim, hidden] twice */
    qk_tensor q_norm, k_norm; /* [head_dim] */
    qk_tensor o;              /* [hidden, n_heads * head_dim] */
    qk_tensor ffn_norm;       /* [hidden] */
    qk_tensor gate, up;       /* [ffn, hidden] */
    qk_tensor down;           /* [hidden, ffn] */
} qk_layer_tensors;

typedef struct {
    qk_shape shape;
    qk_tensor embed;                /* [vocab, hidden] */
    qk_tensor final_norm;           /* [hidden] */
    qk_tensor lm_head;              /* [vocab, hidden]; the same data as embed when tied */
    const qk_layer_tensors *layers; /* [n_layers] */
} qk_model_desc;

/* Called with bytes done and in all; returning false gives up the load (QK_CANCELLED). Engine thread. */
typedef bool (*qk_progress_fn)(void *user, uint64_t done_bytes, uint64_t total_bytes);

/* The CPU backend reads weights in place: @desc's tensor data must outlive the model. Structs are copied. */
qk_status qk_model_load(
    qk_backend *backend, const qk_model_desc *desc, qk_progress_fn progress, void *user, qk_model **out);
void qk_model_free(qk_model *model);

/* ---- KV pages ------------------------------------------------------------------------------------------------ */

/* Where element d of token t of a layer's kv head lies inside a page (bytes from the page's base address):
 *   layer * layer_stride + head * head_stride + (V ? v_offset : 0) + t * token_stride + d * sizeof(dtype).
 * Kernels use the strides and assume nothing else. K is stored after k-norm and RoPE.
 *
 * QK_I8: a vector x of head_dim values (a token's K or V of one head) is stored as int8 q[d] with one fp16 scale s:
 *   s = fp16(max |x| / 127), rounded to nearest even, at least the smallest normal fp16 (2^-14) when any x[d] != 0 and 0
 *   otherwise; q[d] = clamp(round to nearest even(x[d] / s), -127, 127), 0 when s = 0; division in float32.
 * The value is q[d] * s in float32. Token t's scale is the fp16 at scale_offset + 2 t from the head's K or V (so K scales
 * at head * head_stride + scale_offset, V scales at the same plus v_offset). It is quantised once, when the token is
 * appended, so that an answer never depends on when a page moved. */
typedef struct {
    qk_dtype dtype; /* the page class: QK_F32 (reference tests), QK_BF16, QK_I8 */
    uint32_t token_stride;
    uint64_t v_offset, head_stride, layer_stride, page_bytes;
    uint64_t scale_offset; /* QK_I8; else 0 */
} qk_kv_layout;

/* Page-major: [layer][kv_head][K|V][token][dim], for QK_I8 each K and V followed by its 16 scales; one page contiguous over
 * all layers, so a tier moves it in one copy. page_bytes is a multiple of 64. */
void qk_kv_layout_page_major(const qk_shape *shape, qk_dtype dtype, qk_kv_layout *out);

/* ---- Outside partial: attention computed elsewhere, merged here ---------------------------------------------- */

typedef struct {
    uint32_t seq;  /* index into the plan's seqs */
    uint32_t row;  /* index into the plan's rows */
    uint32_t span; /* keys [span * QK_SPAN_TOKENS, (span + 1) * QK_SPAN_TOKENS), all of them before the row */
} qk_partial_item;

typedef struct {
    const struct qk_plan *plan; /* the step's own: its host_pages say where the pages are */
    uint32_t layer;
    uint32_t n_items;
    const qk_partial_item *items; /* by row, then by span */
    const float *q;               /* [n_rows, n_heads, head_dim]: after q-norm and RoPE, not yet scaled */
    float *out;                   /* [n_items, n_heads, head_dim]: to fill, normalised */
    float *lse; /* [n_items, n_heads]: to fill, ln of the sum of exp(q.k / sqrt(head_dim)) */
} qk_partial_args;

/* Called once a layer, after the layer's QKV and before its output projection, for plans with pages at address 0.
 * On a backend thread, while the backend computes its own spans. Must not call the backend. */
typedef qk_status (*qk_partial_fn)(void *user, const qk_partial_args *args);

/* A partial function ready to use: threads of its own that attend to host pages in place, with the CPU backend's
 * arithmetic. qk_host_attend(attender, args) is a qk_partial_fn; a plan's outside pages need their host_pages entry.
 * @layouts: copied, the context's by kv_class (one or two). @isa: NULL for the best; @n_threads: 0 for all cores. */
typedef struct qk_host_attender qk_host_attender;
qk_status qk_host_attender_new(const char *isa, uint32_t n_threads, const qk_shape *shape,
    const qk_kv_layout *layouts, uint32_t n_layouts, qk_host_attender **out);
void qk_host_attender_free(qk_host_attender *attender); /* NULL is fine; no call may run */
qk_status qk_host_attend(void *attender, const qk_partial_args *args);

/* One span of one row over pages in host memory, with the CPU backend's arithmetic (bit-identical to it when @isa is
 * the backend's). For implementing a qk_partial_fn. @pages: [QK_SPAN_TOKENS / QK_PAGE_TOKENS] host base addresses;
 * @n_keys: keys of the span to attend to, 1..QK_SPAN_TOKENS. @q, @out: [n_heads, head_dim]; @lse: [n_heads].
 * Any thread. QK_UNSUPPORTED when @isa is not on this machine. */
qk_status qk_host_attend_span(const char *isa, const qk_shape *shape, const qk_kv_layout *layout,
    uint32_t layer, const void *const *pages, uint32_t n_keys, const float *q, float *out, float *lse);

/* ---- Steps --------------------------------------------------------------------------------------------------- */

/* Order of operations, in float32 on each id's raw logit x:
 *   1. repetition penalty, of seen ids: x / p when x > 0, else x * p
 *   2. frequency penalty: x - frequency_penalty * (how often the id is in the reply, at most 32767)
 *   3. presence penalty, of ids in the reply: x - presence_penalty
 *   4. bias: x + the id's value in the output's list. Results of 1 to 4 are clamped to finite numbers
 *   5. mask: ids whose bit is 0 are no candidates
 *   6. temperature, top_k, top_p, min_p (each on the renormalised rest)
 * then one draw by inverse CDF in ascending token id with float64 sums, u = philox4x32-10(key = seed, counter =
 * position) in [0, 1). Randomness depends on (seed, position) alone. Temperature below 1e-5 is greedy: the largest logit
 * after 1 to 5, ties to the lowest id. At least one candidate always stays.
 * Reported log-probabilities (result and tops) are the model's own: of the raw logits at temperature 1, before all of this.
 * So an id that a mask or a bias forced may have a very low one, and need not be among the tops. */
typedef struct {
    uint64_t seed;
    uint64_t position; /* of the token being drawn, in its sequence */
    float temperature; /* >= 0 */
    float top_p;       /* (0, 1]; 1: off. <= 0 keeps the best token only */
    float min_p;       /* [0, 1]; 0: off */
    float
        repetition_penalty; /* > 0; 1: off. Logits of seen ids: positive / p, negative * p, once an id (CTRL) */
    float presence_penalty;  /* subtracted once from ids seen in the reply; 0: off */
    float frequency_penalty; /* subtracted as often as the id is in the reply; 0: off */
    uint32_t top_k;          /* 0: off */
} qk_sampling;

/* An entry of an output's bias list. */
typedef struct {
    uint32_t id;
    float value; /* finite, added to the id's logit */
} qk_bias;

typedef enum {
    QK_OUTPUT_SAMPLE = 1, /* draw a token; write it to the slot (if any) and the result */
    QK_OUTPUT_LOGITS = 2, /* copy the row's raw logits to the result */
    QK_OUTPUT_MASK = 4,   /* with SAMPLE: only ids of the output's mask may be drawn */
} qk_output_flags;

typedef struct {
    uint32_t row;   /* whose next-token logits are wanted */
    uint32_t flags; /* qk_output_flags */
    uint32_t slot;  /* token slot to write and penalty history to use and extend; QK_NO_SLOT: none */
    uint32_t
        n_top; /* with SAMPLE: list so many of the most probable ids, at most QK_TOP_MAX and the vocabulary */
    uint32_t mask; /* QK_OUTPUT_MASK: index into the plan's masks; else 0 */
    uint32_t bias_begin,
        n_bias; /* its part of the plan's biases, ascending ids, none twice; n_bias 0: none */
    uint32_t reserved;
    qk_sampling sampling;
} qk_output;

/* 32-bit words of a mask over @vocab ids: bit id % 32 of word id / 32. Bits past the end are not looked at. */
static inline uint32_t qk_mask_words(uint32_t vocab)
{
    return vocab / 32 + (vocab % 32 != 0);
}

/* One sequence: n_rows new tokens at positions start, start + 1, ... Each row attends to all positions up to its own.
 * Its pages cover [0, start + n_rows): n_pages = ceil((start + n_rows) / QK_PAGE_TOKENS). */
typedef struct {
    uint32_t row_begin, n_rows; /* rows of sequences are consecutive and in the order of seqs */
    uint32_t start;             /* tokens already in the cache */
    uint32_t page_begin, n_pages;
    uint32_t n_sink, n_recent, n_chosen; /* selective attention (below); all 0: exact */
} qk_seq;

/* Selective attention, approximate: a sequence with one row and n_recent > 0 attends, for each layer and kv head apart, to
 * its first n_sink pages, its last n_recent pages (the row's own among them), and of the pages between to the n_chosen with
 * the largest scores, ties to the lowest page. With at most n_sink + n_recent + n_chosen pages it is a sequence like any
 * other, to the bit, and its bounds are not looked at. The score is Quest's upper bound of q . k over a page's keys (Tang
 * et al., arXiv:2406.10774), summed over the query heads that share the kv head, in float32:
 *   score(page) = sum over heads h, sum over d of max(q[h][d] * min[d], q[h][d] * max[d]),  q after q-norm and RoPE
 * The sum over the group, and not the largest, is what was measured to find more: of 96 names told in chats of 1,500 to
 * 4,400 tokens the shipped model recalled 84 with it and 74 with the largest, with 1 to 8 pages chosen. A NaN is the
 * largest score: a page with a NaN among its keys is chosen, so that it shows.
 *
 * A page's *bounds* are the smallest and the largest of its 16 keys in each dimension (both NaN where one of them is), in
 * the pages' own type, so exact:
 *   [layer][kv_head][min, max][head_dim], without gaps; a 16th of the page. There are none for int8 pages.
 * The choice does not depend on where a page is. Pages that are not chosen are not read, so those in host memory are read
 * in place whatever the plan's host_path says; none may be at address 0. In a plan with such a sequence that leaves pages
 * out all sequences have one row. */
static inline uint32_t qk_seq_n_attended(const qk_seq *seq) /* pages */
{
    const uint64_t n = (uint64_t)seq->n_sink + seq->n_recent + seq->n_chosen;
    return seq->n_recent > 0 && seq->n_rows == 1 && n < seq->n_pages ? (uint32_t)n : seq->n_pages;
}
static inline bool qk_seq_leaves_out(const qk_seq *seq)
{
    return qk_seq_n_attended(seq) < seq->n_pages;
}

/* Bit 0 of a page's address in a plan: the page lies in host memory (registered, so device-visible). Never set for a page
 * that the step writes. Backends whose memory is host memory ignore it. Otherwise: in steps where every sequence has one
 * row, kernels read such pages as the plan's host_path says; in all other steps they are copied, layer by layer and ahead
 * of the attention, to a ring of context_params.ring_bytes on the device (0: QK_UNSUPPORTED), each page once a layer.
 * Where attention is cut does not depend on it: the bits are those of the same pages in device memory. */
#define QK_PAGE_HOST 1u

typedef enum {
    QK_HOST_READ = 0,   /* in place, over the bus */
    QK_HOST_STREAM = 1, /* through the ring */
} qk_host_path;

/* Where a step's time goes. Norms count with the product behind them. */
typedef enum {
    QK_PART_EMBED,   /* plan, positions, embeddings */
    QK_PART_PROJECT, /* QKV and O */
    QK_PART_KV,      /* norm and rotation of the heads; keys and values into their pages */
    QK_PART_ATTEND,  /* attention over the pages, and waiting for those in host memory */
    QK_PART_MLP,
    QK_PART_HEAD,   /* the output layer */
    QK_PART_SAMPLE, /* sampling, and copies of raw logits */
    QK_N_PARTS,
} qk_part;

typedef struct {
    double ms[QK_N_PARTS]; /* summed over the layers */
    /* One kernel does what KV and ATTEND name: ms[ATTEND] has both, and ms[KV] is what a kernel of its own took for the same
     * work once more: a part of ms[ATTEND] beside it, not to be added to the others. */
    bool kv_in_attend;
} qk_profile;

typedef struct qk_plan {
    uint32_t n_rows, n_seqs, n_pages, n_outputs;
    uint32_t kv_class;  /* 0: all pages have params.layout; 1: params.layout_1 */
    uint32_t host_path; /* qk_host_path */
    /* 1: the step times its parts: qk_result.profile. It computes the same, more slowly where that means that no graph can
     * be replayed (CUDA), and the first such step may allocate. 0 costs nothing. */
    uint32_t profile;
    int32_t *tokens; /* [rows_max]: >= 0 a token id; ~slot (negative) the token in that slot */
    qk_seq *seqs;    /* [seqs_max] */
    uint64_t
        *pages; /* [pages_max]: device-visible base address of each page, and QK_PAGE_HOST. 0: outside (whole
                           spans only, never the pages that this step writes; needs a partial function, and
                           host_path QK_HOST_READ for host pages that are not outside) */
    const void *
        *host_pages; /* [pages_max] where partial_max > 0, else NULL: of outside pages, where the host reads
                        them. For the partial function; the backend does not look at it */
    uint64_t
        *bounds; /* [pages_max] where select_max > 0, else NULL: device address of a page's bounds. Looked at
                           for the pages between sinks and recent ones of sequences that leave pages out */
    qk_output *outputs;         /* [outputs_max], ascending rows */
    uint32_t n_masks, n_biases; /* in use; 0 costs nothing */
    uint32_t *masks; /* [masks_max, qk_mask_words(vocab)]: each has an id allowed; NULL when masks_max is 0 */
    qk_bias *biases; /* [biases_max]; NULL when it is 0 */
} qk_plan;

typedef enum {
    QK_RESULT_NOT_FINITE =
        1, /* NaN or Inf among the raw logits; the token is a valid id but must not be used */
} qk_result_flags;

typedef struct {
    int32_t token;  /* -1 when nothing was drawn */
    uint32_t flags; /* qk_result_flags */
    float logprob;  /* ln of the token's probability under the raw logits (softmax, temperature 1) */
    float logit;    /* its raw logit */
} qk_output_result;

typedef struct {
    uint32_t id;
    float logprob; /* as qk_output_result's */
} qk_top;

typedef struct {
    const qk_output_result *outputs; /* [n_outputs] */
    const float *logits; /* [n_outputs, vocab] host memory; only rows flagged QK_OUTPUT_LOGITS are set */
    const qk_profile *profile; /* NULL: the plan did not ask for it */
    /* [n_outputs, QK_TOP_MAX]: the first n_top of an output's row, most probable first, ties by id; NaN when its logits are
     * not finite. Others are not set. */
    const qk_top *tops;
} qk_result;

/* A token from logits that the host has, as an output of a step on the CPU backend, to the bit; other backends' sums may differ in their last bits. */
typedef struct {
    const float *logits; /* [vocab], raw */
    uint32_t vocab;
    const uint32_t
        *ids; /* [n_ids]: the penalty history, all seen in the prompt; looked at when there is a penalty */
    size_t n_ids;
    const qk_bias *bias; /* [n_bias], ascending ids, none twice */
    uint32_t n_bias;
    const uint32_t *mask; /* [qk_mask_words(vocab)]; NULL: all ids may be drawn */
    uint32_t n_top;       /* at most QK_TOP_MAX and the vocabulary */
    const qk_sampling *sampling;
} qk_host_draw;
/* @tops: [n_top], as qk_result's. QK_NO_MEMORY for its scratch space. Any thread. */
qk_status qk_host_sample(const qk_host_draw *draw, qk_output_result *out, qk_top *tops);

typedef struct {
    uint32_t rows_max; /* token rows of one step */
    uint32_t seqs_max;
    uint32_t pages_max;   /* page-table entries of one plan, all sequences together */
    uint32_t outputs_max; /* output rows of one step */
    uint32_t logits_max;  /* of those, how many may be flagged QK_OUTPUT_LOGITS */
    uint32_t slots_max;   /* token slots */
    uint32_t masks_max;   /* masks of one step */
    uint32_t biases_max;  /* bias entries of one step, all outputs together */
    uint32_t partial_max; /* items of one plan; 0: no outside partial */
    qk_partial_fn partial;
    void *partial_user;
    /* Of the sequences of one plan that leave pages out: their n_sink + n_recent + n_chosen together; 0: none may. */
    uint32_t select_max;
    uint64_t
        ring_bytes; /* device memory through which host pages are streamed; 0: none (host devices need none) */
    qk_kv_layout layout;   /* of plans with kv_class 0 */
    qk_kv_layout layout_1; /* of plans with kv_class 1; page_bytes 0: there are none */
} qk_context_params;

typedef struct {
    uint64_t device_bytes, host_bytes; /* of the context and two steps */
} qk_sizes;

/* What a model of @shape and a context with @params would take on the backend called @backend, counted without opening
 * it or touching a device; so it can be shown before a load. QK_UNSUPPORTED for a backend that reads weights in place
 * (CPU) or is not there. */
qk_status qk_estimate(const char *backend, const qk_shape *shape, bool tied, const qk_context_params *params,
    qk_sizes *model, qk_sizes *context);

/* Counts without allocating: the same code that qk_context_new() uses. */
qk_status qk_context_measure(qk_model *model, const qk_context_params *params, qk_sizes *out);
qk_status qk_context_new(qk_model *model, const qk_context_params *params, qk_context **out);
void qk_context_free(qk_context *context);

/* Replaces a slot's penalty history; takes effect for the steps submitted afterwards. Ids count as seen in the prompt
 * (repetition penalty) and, from @n_prompt on, also in the reply (presence and frequency penalty too). Sampling into the
 * slot adds to it. Needed only for requests with a penalty; a slot starts empty. May wait for running steps. */
qk_status qk_context_set_history(
    qk_context *context, uint32_t slot, const int32_t *ids, size_t n_ids, size_t n_prompt);

/* Where a page's keys are, with QK_PAGE_HOST as in a plan, and where its bounds go (device memory). */
typedef struct {
    uint64_t page, bounds;
} qk_bounds;
uint64_t qk_bounds_bytes(const qk_shape *shape, qk_dtype dtype); /* of one page; a multiple of 64 */
/* Enqueues the making of @n pages' bounds on COMPUTE: of the keys that are there when its turn comes. The array is read
 * before the call returns. QK_UNSUPPORTED without select_max and for int8 pages. */
qk_status qk_bounds_submit(qk_context *context, uint32_t kv_class, const qk_bounds *bounds, uint32_t n);

qk_status qk_step_new(qk_context *context, qk_step **out);
void qk_step_free(qk_step *step); /* waits for the step when it runs */

/* The step's parameter buffer; fill it while the step is idle. Pointers stay valid for the step's life. */
qk_plan *qk_step_plan(qk_step *step);
/* Checks the plan (QK_INVALID names the field) and enqueues it on COMPUTE. Returns at once. */
qk_status qk_step_submit(qk_step *step);
qk_status qk_step_poll(qk_step *step); /* QK_PENDING or the step's status */
qk_status qk_step_wait(qk_step *step); /* the step's status */
/* Asks a submitted step to end at its next layer boundary with QK_CANCELLED; it may also complete. Token slots and
 * penalty history stay as before a cancelled step. Steps already submitted behind it are not cancelled by this:
 * cancel them too when they take its tokens. Any thread. */
void qk_step_cancel(qk_step *step);
/* Borrowed; valid after wait returned QK_OK and until the next submit. */
const qk_result *qk_step_result(qk_step *step);

#ifdef __cplusplus
}
#endif
