/* qk-mock.h: a device for tests. It wraps the CPU backend and behaves like a discrete card at its least helpful:
 * device memory has addresses that the host cannot dereference, work and copies finish late and, across streams, in a
 * random order that the events allow, and faults are injected on request. It computes the CPU backend's bits. It also
 * catches callers: a plan whose pages lie in no live buffer or that changes after the submit ends as QK_INVALID, and
 * freeing a buffer or unregistering memory that queued work names aborts, as does memory still registered at the end.
 * Registered memory has an address that is not the host's; QK_PAGE_HOST on a page in device memory is refused, and
 * streaming needs a ring, whose bytes count as device memory. Weights are copied at load. Built into the tests only. */
#pragma once
#include "kernels/qk.h"

#ifdef __cplusplus
extern "C" {
#endif

#define QK_MOCK_ALL UINT32_MAX

typedef struct {
    uint64_t seed;         /* of the random order and delays */
    uint32_t delay_us_max; /* each operation is held back by a random time up to this */
    uint64_t memory_bytes; /* device memory (device buffers, weights, contexts); an allocation past it gives
                              QK_NO_MEMORY. 0: unlimited */
    uint32_t
        fail_alloc; /* the nth allocation (buffer of any memory, model, context, step) from now fails (1 = the
                              next); 0: none */
    uint32_t
        lose_at; /* the nth step, copy (each one of an array) or fill enqueued from now loses the device when
                              its turn comes, as a real device that faults; 0: never */
    uint32_t
        refuse_register; /* the nth registering from now is refused as by a system that pins no more (1 = the next);
                                 QK_MOCK_ALL: each; 0: none */
    uint32_t
        refuse_copy; /* the nth array of copies from now is refused, QK_NO_MEMORY (1 = the next), though half of it is
                         under way, as a driver that fails in the midst; 0: none */
    uint32_t refuse_copies; /* and so many in a row; 0 counts as 1, QK_MOCK_ALL: all from then on */
    bool
        want_fresh; /* a step that writes a page's first token must find the page filled with NaN (all bits set): else
                        it ends as QK_INVALID. For callers that fill each page that they hand out */
    uint32_t n_threads; /* of the CPU backend inside */
    const char *isa;
} qk_mock_options;

qk_status qk_mock_open(const qk_mock_options *options, qk_backend **out, char *error, size_t error_size);
void qk_mock_fail_alloc(qk_backend *mock, uint32_t nth);              /* from now */
void qk_mock_lose_at(qk_backend *mock, uint32_t nth);                 /* from now */
void qk_mock_refuse_register(qk_backend *mock, uint32_t nth);         /* from now, or QK_MOCK_ALL, or 0 */
void qk_mock_refuse_copy(qk_backend *mock, uint32_t nth, uint32_t n); /* from now, so many in a row; or 0 */

typedef struct {
    uint64_t n_steps, n_copies;               /* that ran */
    uint64_t n_buffers;                       /* that exist */
    uint64_t n_registered, registered_bytes;  /* host memory that is registered */
    uint64_t device_bytes, device_bytes_peak; /* in use, and the most ever */
    uint64_t n_reordered; /* operations that ran before one submitted earlier on another stream */
} qk_mock_stats;
void qk_mock_get_stats(qk_backend *mock, qk_mock_stats *out);

#ifdef __cplusplus
}
#endif
