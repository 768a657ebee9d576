/* qe-budget.h: what a model takes on its device, and how much is left for KV pages. Internal; any thread.
 *
 * The budget of a device with memory of its own: free memory = weights + workspace + KV pool + a reserve that stays for
 * others (the desktop draws with the same card). Everything but the pool's slabs is taken at load. */
#pragma once
#include <glib.h>
#include <stdbool.h>
#include <stdint.h>
#include "engine/qe-model.h"
#include "engine/qe.h"
#include "kernels/qk.h"

G_BEGIN_DECLS

/* @config's rope_inv_freq is borrowed. */
qk_shape qe_budget_shape(const qe_config *config, uint32_t context_max);
/* The maxima of the steps' context and the KV layout. */
void qe_budget_params(const qk_shape *shape, qe_kv_class kv_class, uint32_t rows_max, qk_context_params *out);

/* What a context needs beside that when the CPU attends to host pages for the device; but for the partial_user. */
void qe_budget_add_partial(qk_context_params *params, uint32_t context_max);

/* Bytes of the host tier beside a device: @wanted, or (0) a default from the memory available now; 1: none. Beside a host
 * device (@is_host) the default is none: its pages lie in host memory already. */
uint64_t qe_budget_host_bytes(uint64_t wanted, bool is_host);

/* @params with less and less that a backend may not have, as @less counts up from 0: all, no selective attention, no int8
 * pages, neither. false: there is nothing left to try. */
bool qe_budget_without(const qk_context_params *params, int less, qk_context_params *out);
/* As qk_estimate(); takes out of @params what the backend has not. */
qk_status qe_budget_estimate(const char *backend, const qk_shape *shape, bool tied, qk_context_params *params,
    qk_sizes *model, qk_sizes *context);

typedef struct {
    uint64_t page_bytes;
    uint32_t context_max; /* tokens */
    uint64_t kv_wanted;   /* bytes; 0: a default */
    /* A device with memory of its own: */
    bool is_device;
    uint64_t memory_free; /* before what is in weights and workspace was taken */
    uint64_t weights, workspace, reserve;
} qe_budget;

/* Pages of the pool. QE_ERROR_NO_MEMORY says what there is, what it would take, and what to lower. */
bool qe_budget_pages(const qe_budget *budget, uint32_t *n_pages, GError **error);

G_END_DECLS
