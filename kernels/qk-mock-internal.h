/* qk-mock-internal.h: what the two sources of the mock share. Internal to kernels/qk-mock*.c.
 *
 * Locks: `lock` guards everything in qk_mock and the queues; `inner_lock` is held around every call of the CPU backend
 * inside, except cancel, so that it is used by one thread at a time. Order: inner_lock, then lock. The worker holds
 * neither while an operation is being held back, and not `lock` while one runs. */
#pragma once
#include <pthread.h>
#include "kernels/qk-backend.h"
#include "kernels/qk-mock.h"

typedef struct qk_mock qk_mock;
typedef struct mock_op mock_op;
typedef struct mock_step mock_step;

/* One recording of an event. The event and every operation that names it hold a reference. */
typedef struct {
    uint32_t n_refs;
    bool done;
} mock_mark;

typedef enum { MOCK_STEP, MOCK_CALL, MOCK_COPY, MOCK_FILL, MOCK_BOUNDS, MOCK_RECORD, MOCK_WAIT } mock_op_kind;

struct mock_op {
    mock_op *next;
    mock_op_kind kind;
    uint64_t serial; /* order of submission over all streams */
    bool loses;      /* running it loses the device */
    union {
        mock_step *step; /* embedded in the step, not freed */
        struct {
            void (*run)(void *user); /* with inner_lock held, lock not */
            void *user;
            bool *done; /* the submitter waits for it; not freed */
        } call;
        qk_copy copy;
        struct {
            qk_buffer *dst;
            uint64_t offset, bytes;
            uint32_t word;
        } fill;
        struct {
            qk_context *inner;
            uint32_t kv_class;
            qk_bounds item; /* real addresses */
        } bounds;
        mock_mark *mark; /* MOCK_RECORD, MOCK_WAIT */
    };
};

/* Registered host memory. */
typedef struct mock_region {
    unsigned char *host;
    uint64_t bytes;
    struct mock_region *next;
} mock_region;

typedef struct mock_buffer {
    qk_buffer base;
    unsigned char *bytes; /* where it really is */
    bool wrapped;         /* the caller's memory */
    mock_region *region;  /* wrapped: what makes its address valid; NULL when not registered, or no more */
    struct mock_buffer *next;
} mock_buffer;

struct qk_mock {
    qk_backend base;
    qk_backend *inner;
    pthread_mutex_t lock, inner_lock;
    pthread_cond_t work; /* for the worker */
    pthread_cond_t done; /* for all who wait for an operation */
    pthread_t worker;

    mock_op *heads[QK_N_STREAMS], *tails[QK_N_STREAMS];
    mock_op *running;
    uint64_t next_serial;
    bool quit, lost;

    uint64_t random, address_offset, host_offset; /* host_offset: of registered memory's addresses */
    uint32_t delay_us_max, fail_alloc, lose_at, refuse_register, refuse_copy, refuse_copies;
    bool want_fresh;
    uint64_t memory_bytes;
    mock_buffer *buffers;
    mock_region *regions;
    qk_mock_stats stats;
    char error[256], device[96];
};

struct mock_step {
    qk_step_head head;
    mock_op op;
    qk_step *inner;
    qk_plan plan;
    qk_result result;
    qk_profile profile;
    qk_output_result *outputs; /* [outputs_max] */
    qk_top *tops;              /* [outputs_max, QK_TOP_MAX] */
    float *logits;             /* [outputs_max, vocab], NULL without logits_max */
    qk_status status;          /* QK_PENDING from submit to done */
    bool cancel, in_inner;     /* in_inner: the CPU backend has it, and can cancel it */
    char error[256];
};

/* Formats the backend's line. Returns @status. Engine thread. */
__attribute__((format(printf, 3, 4))) qk_status qk_mock_fail(
    qk_mock *mock, qk_status status, const char *format, ...);
/* QK_DEVICE_LOST with the line set, once the device is lost; else QK_OK. Takes lock. */
qk_status qk_mock_check_lost(qk_mock *mock);
/* Counts an allocation of @device_bytes against the nth to fail and the budget. Takes lock. */
qk_status qk_mock_charge(qk_mock *mock, uint64_t device_bytes, const char *what);
void qk_mock_uncharge(qk_mock *mock, uint64_t device_bytes);

/* With lock held. Appends @op; wakes the worker. */
void qk_mock_enqueue(qk_mock *mock, qk_stream stream, mock_op *op);
/* With lock held. The real address of [page, page + bytes), with @page's QK_PAGE_HOST, or 0 when no live buffer has all
 * of it, or one in device memory has a page that is called the host's. */
uint64_t qk_mock_translate(const qk_mock *mock, uint64_t page, uint64_t bytes);
uint64_t qk_mock_random(qk_mock *mock); /* with lock held */

/* Runs a step that the worker has dequeued. Lock held on entry and return, not in between. */
void qk_mock_step_run(qk_mock *mock, mock_step *step);
/* Whether a submitted step has pages in [begin, end) of real memory. @outside: pages at address 0 too, which the
 * partial function reads there. Lock held. */
bool qk_mock_step_touches(const mock_step *step, uint64_t begin, uint64_t end, bool outside);
void qk_mock_bounds_run(qk_mock *mock, const mock_op *op); /* lock not held */
void qk_mock_model_ops(qk_backend_ops *ops);               /* sets the entries for models, contexts, steps */
