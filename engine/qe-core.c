/* qe-core.c: model and device life, sessions, and how requests end. The rounds of computing are in qe-core-run.c.
 *
 * Invariants:
 *  1. A request is in exactly one of `waiting` and `running` from qe_core_generate() to qe_core_finish(), and its
 *     timeline names it for that time. Both lists are in order of arrival.
 *  2. Only running requests have a slot; only their timelines and those in overshoot are written by steps in flight.
 *  3. Pages may be freed and taken again while a step that wrote them is in flight: steps run in order, so the new
 *     owner's writes come later, and the old owner never reads them again.
 *  4. Ids of a session are what was asked and what was really emitted; a token that was drawn but not read is not in it. */
#include "engine/qe-core.h"
#include <stdlib.h>
#include <string.h>
#include "engine/qe-budget.h"
#include "engine/qe-host-paths.h"
#include "engine/qe-limits.h"
#include "engine/qe-turn.h"

G_STATIC_ASSERT(G_N_ELEMENTS(((qe_core *)0)->slot_used) == QE_RUNNING_MAX);

static void timeline_free(void *data)
{
    qe_timeline *t = data;
    g_assert(t->request == NULL && t->disk == NULL);
    qe_session_free(t->session);
    g_clear_error(&t->broken);
    g_clear_error(&t->no_mode);
    g_free(t->disk_key);
    g_free(t);
}

void qe_core_init(qe_core *core)
{
    core->timelines = g_hash_table_new_full(g_int64_hash, g_int64_equal, NULL, timeline_free);
    core->waiting = g_ptr_array_new();
    core->running = g_ptr_array_new();
    core->page_counts = g_array_new(FALSE, FALSE, sizeof(uint32_t));
    core->disk_deletes = g_ptr_array_new_with_free_func(g_free);
    core->next_temporary = UINT64_MAX;
}

void qe_core_clear(qe_core *core)
{
    qe_core_unload(core);
    g_clear_pointer(&core->backend, qk_backend_free);
    g_hash_table_unref(core->timelines);
    g_ptr_array_unref(core->waiting);
    g_ptr_array_unref(core->running);
    g_array_unref(core->page_counts);
    g_ptr_array_unref(core->disk_deletes);
    g_clear_pointer(&core->disk_dir, g_free);
    g_clear_pointer(&core->host_paths_file, g_free);
    g_clear_pointer(&core->disk_reason, g_free);
    g_clear_error(&core->lost);
    g_clear_pointer(&core->opener.name, g_free);
    g_clear_pointer(&core->opener.isa, g_free);
    g_clear_pointer(&core->opener.device, g_free);
    g_clear_pointer(&core->cpu_reason, g_free);
    g_clear_pointer(&core->numerics, g_free);
}

/* ---- Loading ---- */

static qk_tensor to_tensor(const qe_weight *w)
{
    return (qk_tensor){
        .data = w->data,
        .dtype = w->dtype == QE_DTYPE_BF16 ? QK_BF16 : QK_F32,
        .rows = w->rows,
        .cols = w->cols,
    };
}

static qk_shape shape_of(const qe_core *core)
{
    return qe_budget_shape(qe_model_get_config(core->model), core->context_max);
}

static qk_status load_weights(qe_core *core, qk_progress_fn progress, void *user)
{
    const qe_config *c = qe_model_get_config(core->model);
    const qe_model_weights *w = qe_model_get_weights(core->model);
    g_autofree qk_layer_tensors *layers = g_new0(qk_layer_tensors, c->n_layers);
    for (uint32_t i = 0; i < c->n_layers; i++) {
        const qe_layer_weights *l = &w->layers[i];
        layers[i] = (qk_layer_tensors){
            .attn_norm = to_tensor(&l->attn_norm),
            .q = to_tensor(&l->q),
            .k = to_tensor(&l->k),
            .v = to_tensor(&l->v),
            .q_norm = to_tensor(&l->q_norm),
            .k_norm = to_tensor(&l->k_norm),
            .o = to_tensor(&l->o),
            .ffn_norm = to_tensor(&l->ffn_norm),
            .gate = to_tensor(&l->gate),
            .up = to_tensor(&l->up),
            .down = to_tensor(&l->down),
        };
    }
    qk_model_desc desc = {
        .shape = shape_of(core),
        .embed = to_tensor(&w->embed),
        .final_norm = to_tensor(&w->final_norm),
        .lm_head = to_tensor(&w->lm_head),
        .layers = layers,
    };
    return qk_model_load(core->backend, &desc, progress, user, &core->device_model);
}

static void free_device(qe_core *core)
{
    g_clear_pointer(&core->steps, qe_steps_free);
    qe_core_drop_synthetic(core);
    g_clear_pointer(&core->context, qk_context_free);
    g_clear_pointer(&core->attender, qk_host_attender_free);
    g_clear_pointer(&core->device_model, qk_model_free);
}

/* How many pages the pool may have. @taken: weights and workspace are on the device already. */
static bool budget_pages(
    const qe_core *core, uint64_t kv_wanted, bool taken, uint32_t *n_pages, GError **error)
{
    qk_backend_info info;
    qk_backend_get_info(core->backend, &info);
    qe_budget budget = {
        .page_bytes = core->params.layout.page_bytes,
        .context_max = core->context_max,
        .kv_wanted = kv_wanted,
        .is_device = !info.is_host && info.memory_total > 0,
        .memory_free = info.memory_free,
        .weights = core->weight_bytes,
        .workspace = core->workspace_bytes,
        .reserve = core->memory_reserve > 1 ? core->memory_reserve : 0,
    };
    if (taken)
        budget.memory_free += budget.weights + budget.workspace;
    if (core->pools[0])
        budget.memory_free += core->device_ledger.bytes_taken;
    return qe_budget_pages(&budget, n_pages, error);
}

/* The way to host pages, for each class; the CPU attends to them for the device when that is it for any. */
static bool add_attender(qe_core *core, const qk_shape *shape, GError **error)
{
    const qk_kv_layout layouts[] = {core->params.layout, core->params.layout_1};
    bool wanted = false;
    for (int c = 0; c < QE_KV_CLASSES && layouts[c].page_bytes; c++) {
        qk_backend_info info;
        g_autofree char *why = NULL;
        qk_backend_get_info(core->backend, &info);
        g_autofree char *device = g_utf8_make_valid(info.device, -1);
        g_autofree char *key = qe_host_paths_key(device, shape, layouts[c].dtype);
        core->host_paths[c] = qe_host_paths_choose(core->host_paths_file, key, core->host_path_wanted, &why);
        wanted |= core->host_paths[c] == QE_HOST_PATH_CPU;
    }
    if (!wanted || core->host_bytes == 0)
        return true;
    qk_status status =
        qk_host_attender_new(NULL, 0, shape, layouts, layouts[1].page_bytes ? 2 : 1, &core->attender);
    if (status != QK_OK) {
        core->attender = NULL;
        g_set_error(error, QE_ERROR, status == QK_NO_MEMORY ? QE_ERROR_NO_MEMORY : QE_ERROR_UNSUPPORTED,
            "Cannot make the threads that attend to host pages: %s", qk_status_name(status));
        return false;
    }
    qe_budget_add_partial(&core->params, core->context_max);
    core->params.partial_user = core->attender;
    return true;
}

/* Counts what the load will take, and refuses it before the weights move when that is more than there is. */
static bool check_budget(qe_core *core, GError **error)
{
    qk_shape shape = shape_of(core);
    qk_backend_info info;
    qk_backend_get_info(core->backend, &info);
    core->is_host = info.is_host;
    core->step_rows_max = core->step_rows_wanted ? core->step_rows_wanted
                          : core->is_host        ? QE_STEP_ROWS_DEFAULT
                                                 : QE_STEP_ROWS_DEVICE;
    qe_budget_params(&shape, core->kv_class, core->step_rows_max, &core->params);
    core->host_bytes = qe_budget_host_bytes(core->host_bytes_wanted, core->is_host);
    if (!core->is_host && core->host_bytes)
        core->params.ring_bytes = core->ring_bytes;
    if (!add_attender(core, &shape, error))
        return false;
    core->weight_bytes = qe_model_get_weight_bytes(core->model);
    core->workspace_bytes = 0;
    qk_sizes weights, workspace;
    if (!core->is_host && qe_budget_estimate(info.name, &shape, qe_model_get_config(core->model)->tied,
                              &core->params, &weights, &workspace) == QK_OK) {
        core->weight_bytes = weights.device_bytes;
        core->workspace_bytes = workspace.device_bytes;
    }
    uint32_t n_pages;
    return core->is_host || budget_pages(core, core->kv_bytes_max, false, &n_pages, error);
}

/* A page's bytes depend on the model, the layout, and the kernels that computed it: pages of one kind are never found by
 * a session of another. */
static void set_seed(const qe_core *core, qe_kv_pool *pool, const qk_kv_layout *l, uint8_t digest[32])
{
    uint8_t fingerprint[QE_MODEL_FINGERPRINT_BYTES];
    qe_model_get_fingerprint(core->model, fingerprint);
    g_autoptr(GChecksum) sum = g_checksum_new(G_CHECKSUM_SHA256);
    g_autofree char *text = g_strdup_printf("quire kv 1|%s|%d|%u|%" G_GUINT64_FORMAT "|%" G_GUINT64_FORMAT
                                            "|%" G_GUINT64_FORMAT "|%" G_GUINT64_FORMAT "|",
        core->numerics, l->dtype, l->token_stride, l->v_offset, l->head_stride, l->layer_stride,
        l->page_bytes);
    g_checksum_update(sum, (const guchar *)text, (gssize)strlen(text));
    g_checksum_update(sum, fingerprint, sizeof fingerprint);
    gsize n = 32;
    g_checksum_get_digest(sum, digest, &n);
    qe_page_key seed;
    memcpy(seed.b, digest, sizeof seed.b);
    qe_kv_pool_set_seed(pool, &seed);
}

/* On the thread that made it: an idle engine takes the slab, and has the next one made while it is idle. */
static void on_host_slab(void *user)
{
    qe_queue_kick(user);
}

/* Pools of all classes within one budget of device bytes and one of host bytes. */
static void make_pools(qe_core *core, uint32_t n_pages)
{
    const qk_kv_layout *layouts[QE_KV_CLASSES] = {&core->params.layout, &core->params.layout_1};
    qk_backend_info info;
    qk_backend_get_info(core->backend, &info);
    g_free(core->numerics);
    core->numerics = g_strdup_printf("%s|%s", info.name, info.kernels);
    core->device_ledger = (qe_kv_ledger){.bytes_max = n_pages * layouts[0]->page_bytes};
    core->host_ledger = (qe_kv_ledger){.bytes_max = core->host_bytes};
    for (int c = 0; c < QE_KV_CLASSES; c++) {
        uint64_t page_bytes = layouts[c]->page_bytes;
        if (page_bytes == 0)
            continue;
        uint64_t n = MIN(core->device_ledger.bytes_max / page_bytes, (uint64_t)INT32_MAX);
        uint64_t n_host = MIN(core->host_bytes / page_bytes, (uint64_t)INT32_MAX);
        uint32_t slab_pages = core->is_host ? 0 : (uint32_t)MAX(QE_KV_DEVICE_SLAB_BYTES / page_bytes, 1);
        core->pools[c] = qe_kv_pool_new(core->backend, layouts[c], (uint32_t)n, slab_pages, core->check);
        uint32_t host_slab_pages = core->is_host ? 0 : (uint32_t)MAX(QE_KV_HOST_SLAB_BYTES / page_bytes, 1);
        qe_kv_pool_add_host(core->pools[c], (uint32_t)n_host, host_slab_pages, !core->is_host,
            &core->device_ledger, &core->host_ledger);
        qe_kv_pool_on_host_slab(core->pools[c], on_host_slab, core->queue);
        qk_shape shape = shape_of(core);
        if (c == 0 && core->params.select_max)
            qe_kv_pool_set_bounds(core->pools[c], qk_bounds_bytes(&shape, layouts[c]->dtype));
        set_seed(core, core->pools[c], layouts[c], core->digests[c]);
    }
}

static void free_pools(qe_core *core)
{
    for (int c = 0; c < QE_KV_CLASSES; c++)
        g_clear_pointer(&core->pools[c], qe_kv_pool_free);
}

/* Everything on the device, and a fresh pool. On failure the caller frees what is there. */
static bool fill_device(qe_core *core, qk_progress_fn progress, void *user, GError **error)
{
    const qe_config *config = qe_model_get_config(core->model);
    core->context_max = config->max_positions;
    if (core->context_wanted)
        core->context_max = MIN(core->context_wanted, config->max_positions);
    if (!check_budget(core, error))
        return false;
    qk_status status = load_weights(core, progress, user);
    if (status != QK_OK) {
        core->device_model = NULL;
        qe_backend_set_error(error, core->backend, status, "Cannot load the model onto the device");
        return false;
    }
    const qk_context_params params = core->params;
    status = QK_UNSUPPORTED;
    for (int less = 0; status == QK_UNSUPPORTED && qe_budget_without(&params, less, &core->params); less++)
        status = qk_context_new(core->device_model, &core->params, &core->context);
    if (status != QK_OK) {
        core->context = NULL;
        qe_backend_set_error(error, core->backend, status, "Cannot make the workspace");
        return false;
    }
    core->follows_cancelled = false;
    status = qe_steps_new(
        core->context, core->queue, &core->params, qe_model_get_config(core->model)->vocab, &core->steps);
    if (status != QK_OK) {
        qe_backend_set_error(error, core->backend, status, "Cannot make the steps");
        return false;
    }
    uint32_t n_pages;
    if (!budget_pages(core, core->kv_bytes_max, true, &n_pages, error))
        return false;
    make_pools(core, n_pages);
    if (!core->is_host && !qe_kv_pool_warm(core->pools[0], error))
        return false;
    qk_shape shape = shape_of(core);
    qe_cost_init(&core->cost, !core->is_host, qe_model_get_weight_bytes(core->model),
        qe_model_get_n_params(core->model), 4ull * shape.n_layers * shape.n_heads * shape.head_dim);
    return true;
}

static void drop_device(qe_core *core)
{
    g_clear_pointer(&core->steps, qe_steps_free);
    free_pools(core);
    free_device(core);
}

/* As fill_device(), on a backend opened now when there is none. Where the choice is ours, a card that cannot be had or
 * has not the memory leaves the work to the CPU, and cpu_reason says why. */
static bool make_device(qe_core *core, qk_progress_fn progress, void *user, GError **error)
{
    g_autoptr(GError) local = NULL;
    g_clear_pointer(&core->cpu_reason, g_free);
    if (!core->backend)
        core->backend = qe_backend_open(&core->opener, false, &local);
    if (core->backend && fill_device(core, progress, user, &local))
        return true;
    bool was_host = core->backend && core->is_host;
    bool has_choice = qe_backend_has_choice(&core->opener) && !was_host &&
                      (g_error_matches(local, QE_ERROR, QE_ERROR_NO_MEMORY) ||
                          g_error_matches(local, QE_ERROR, QE_ERROR_UNSUPPORTED) ||
                          g_error_matches(local, QE_ERROR, QE_ERROR_DEVICE_LOST));
    if (has_choice) {
        drop_device(core);
        g_clear_pointer(&core->backend, qk_backend_free);
        core->backend = qe_backend_open(&core->opener, true, NULL);
        if (core->backend && fill_device(core, progress, user, NULL)) {
            core->cpu_reason = g_strdup(local->message);
            return true;
        }
    }
    g_propagate_error(error, g_steal_pointer(&local));
    return false;
}

void qe_core_set_kv_bytes(qe_core *core, uint64_t kv_bytes_max)
{
    uint32_t n_pages;
    if (!core->pools[0] || core->lost) {
        core->kv_bytes_max = kv_bytes_max;
        return;
    }
    if (!budget_pages(core, kv_bytes_max, true, &n_pages, NULL))
        return;
    core->kv_bytes_max = kv_bytes_max;
    core->device_ledger.bytes_max = n_pages * core->params.layout.page_bytes;
    for (int c = 0; c < QE_KV_CLASSES && core->pools[c]; c++) {
        qe_kv_pool *pool = core->pools[c];
        uint64_t n = core->device_ledger.bytes_max / qe_kv_pool_page_bytes(pool);
        qe_kv_pool_set_max(pool, (uint32_t)CLAMP(n, 1, INT32_MAX));
    }
    while (qe_core_device_bytes_used(core) > core->device_ledger.bytes_max && qe_core_shrink(core))
        ;
    core->trim_due = true;
    qe_stats_touch(core->stats);
}

static void forget_model(qe_core *core)
{
    g_clear_pointer(&core->tmpl, qe_template_free);
    g_clear_pointer(&core->vocab, qe_vocab_unref);
    g_clear_pointer(&core->tokenizer, qe_tokenizer_unref);
    g_clear_pointer(&core->model, qe_model_unref);
    core->context_max = 0;
}

bool qe_core_load(qe_core *core, qe_model *model, qe_tokenizer *tokenizer, qe_template *tmpl,
    qk_progress_fn progress, void *user, GError **error)
{
    qe_core_unload(core);
    core->model = model;
    core->tokenizer = tokenizer;
    core->tmpl = tmpl;
    qe_model_get_eos(model, qe_template_eos_id(tmpl), &core->eos);
    if (make_device(core, progress, user, error)) {
        qe_core_disk_start(core);
        qe_stats_touch(core->stats);
        return true;
    }
    drop_device(core);
    forget_model(core);
    return false;
}

void qe_core_unload(qe_core *core)
{
    qe_core_end_all(core, NULL);
    /* Steps first: pages may only go when no step in flight touches their slabs. */
    g_clear_pointer(&core->steps, qe_steps_free);
    qe_core_disk_stop(core);
    g_clear_pointer(&core->disk_reason, g_free);
    g_hash_table_remove_all(core->timelines);
    free_pools(core);
    free_device(core);
    forget_model(core);
    /* The next model may fit where this one did not. */
    if (core->cpu_reason)
        g_clear_pointer(&core->backend, qk_backend_free);
    g_clear_pointer(&core->cpu_reason, g_free);
    g_clear_error(&core->lost);
    qe_stats_touch(core->stats);
}

/* ---- Loss and recovery ---- */

/* Nothing of the device is used from here on; what the host tier has stays. core->lost is set. */
static void let_go(qe_core *core)
{
    g_clear_pointer(&core->steps, qe_steps_free);
    for (int c = 0; c < QE_KV_CLASSES && core->pools[c]; c++)
        qe_kv_pool_detach(core->pools[c]);
    GHashTableIter iter;
    void *value;
    g_hash_table_iter_init(&iter, core->timelines);
    while (g_hash_table_iter_next(&iter, NULL, &value)) {
        qe_timeline *t = value;
        qe_session_drop_lost(t->session);
    }
    free_device(core);
    g_clear_pointer(&core->backend, qk_backend_free);
    qe_stats_touch(core->stats);
}

void qe_core_lose(qe_core *core, const char *message)
{
    if (core->lost)
        return;
    g_set_error(&core->lost, QE_ERROR, QE_ERROR_DEVICE_LOST, "The device was lost: %s", message);
    qe_core_end_all(core, core->lost);
    let_go(core);
}

void qe_core_release(qe_core *core)
{
    if (core->lost || !core->pools[0])
        return;
    qe_core_end_all(core, NULL);
    g_clear_pointer(&core->steps, qe_steps_free); /* waits for those in flight */
    if (!qe_core_store_all(core))
        return; /* lost in between */
    g_set_error(&core->lost, QE_ERROR, QE_ERROR_DEVICE_LOST, "The device's memory was released");
    let_go(core);
}

void qe_core_check_device(qe_core *core)
{
    qk_buffer *buffer = NULL;
    qk_event *event = NULL;
    const uint64_t n_bytes = 4096;
    if (core->lost || !core->backend || !core->pools[0])
        return;
    qk_status status = qk_buffer_new(core->backend, QK_MEMORY_DEVICE, n_bytes, &buffer);
    if (status == QK_OK)
        status = qk_fill_submit(core->backend, QK_STREAM_COMPUTE, buffer, 0, n_bytes, 0);
    if (status == QK_OK)
        status = qk_event_new(core->backend, &event);
    if (status == QK_OK)
        status = qk_event_record(event, QK_STREAM_COMPUTE);
    if (status == QK_OK)
        status = qk_event_wait(event);
    g_autofree char *words =
        status == QK_DEVICE_LOST ? g_utf8_make_valid(qk_backend_error(core->backend), -1) : NULL;
    qk_event_free(event);
    qk_buffer_free(buffer);
    if (words)
        qe_core_lose(core, words);
}

/* A session bound to the new pool with the old one's ids and turns. */
qe_session *qe_core_rebuild_session(qe_kv_pool *pool, const qe_session *old)
{
    qe_session *session = qe_session_new(pool, qe_session_id_of(old));
    qe_session_append_ids(session, qe_session_ids(old), qe_session_n_ids(old));
    for (uint32_t i = 0; i < qe_session_n_turns(old); i++)
        qe_session_add_turn(session, qe_session_turn(old, i));
    return session;
}

/* Whether pages of @old, computed on a device that is gone, are what the device of now would have computed. */
static bool is_same_kind(
    const qe_core *core, const qk_kv_layout *layout, const qk_kv_layout *layout_1, const char *numerics)
{
    return core->numerics && numerics && strcmp(core->numerics, numerics) == 0 &&
           memcmp(layout, &core->params.layout, sizeof *layout) == 0 &&
           memcmp(layout_1, &core->params.layout_1, sizeof *layout_1) == 0;
}

/* Host pages outlive the device: the old pools go on in place of the new ones. false: the device cannot use them, and
 * nothing has changed. */
static bool keep_old_pools(qe_core *core, qe_kv_pool *const *old)
{
    for (int c = 0; c < QE_KV_CLASSES && old[c]; c++) {
        if (qe_kv_pool_attach(old[c], core->backend, qe_kv_pool_n_max(core->pools[c]), NULL))
            continue;
        while (c-- > 0)
            qe_kv_pool_detach(old[c]);
        return false;
    }
    for (int c = 0; c < QE_KV_CLASSES && old[c]; c++) {
        qe_kv_pool_free(core->pools[c]);
        core->pools[c] = old[c];
    }
    return true;
}

/* The ledger was begun anew for the new pools. What the old ones have, or gave back since, it does not know. */
static void count_host_bytes(qe_core *core)
{
    core->host_ledger.bytes_taken = 0;
    for (int c = 0; c < QE_KV_CLASSES && core->pools[c]; c++) {
        const qe_kv_slots *host = qe_kv_pool_host_slots(core->pools[c]);
        if (host)
            core->host_ledger.bytes_taken += qe_kv_slots_bytes_reserved(host);
    }
}

static void move_sessions(qe_core *core)
{
    GHashTableIter iter;
    void *value;
    g_hash_table_iter_init(&iter, core->timelines);
    while (g_hash_table_iter_next(&iter, NULL, &value)) {
        qe_timeline *t = value;
        if (!core->pools[t->kv_class])
            t->kv_class = 0;
        qe_session *session = qe_core_rebuild_session(core->pools[t->kv_class], t->session);
        qe_session_free(t->session);
        t->session = session;
    }
}

bool qe_core_recover(qe_core *core, qk_progress_fn progress, void *user, GError **error)
{
    qe_kv_pool *old[QE_KV_CLASSES];
    qk_kv_layout layout = core->params.layout, layout_1 = core->params.layout_1;
    g_autofree char *numerics = g_strdup(core->numerics);
    qe_core_disk_stop(core);
    memcpy(old, core->pools, sizeof old);
    memset(core->pools, 0, sizeof core->pools);
    if (!make_device(core, progress, user, error)) {
        drop_device(core);
        g_clear_pointer(&core->backend, qk_backend_free);
        memcpy(core->pools, old, sizeof old);
        core->params.layout = layout;
        core->params.layout_1 = layout_1;
        count_host_bytes(core);
        return false;
    }
    if (!is_same_kind(core, &layout, &layout_1, numerics) || !keep_old_pools(core, old)) {
        move_sessions(core);
        for (int c = 0; c < QE_KV_CLASSES; c++)
            qe_kv_pool_free(old[c]);
    }
    count_host_bytes(core);
    g_clear_error(&core->lost);
    GHashTableIter iter;
    void *value;
    g_hash_table_iter_init(&iter, core->timelines);
    while (g_hash_table_iter_next(&iter, NULL, &value)) {
        qe_timeline *t = value;
        qe_cache_config config = t->cache;
        qe_core_apply_cache(core, t, &config);
    }
    qe_core_disk_start(core);
    qe_stats_touch(core->stats);
    return true;
}

/* ---- Sessions ---- */

static qe_timeline *find_timeline(qe_core *core, uint64_t id)
{
    return g_hash_table_lookup(core->timelines, &id);
}

static qe_timeline *adopt_session(
    qe_core *core, uint64_t id, qe_session *session, const qe_cache_config *cache, bool synthetic)
{
    qe_timeline *t = g_new0(qe_timeline, 1);
    t->id = id;
    t->session = session;
    t->last_used = ++core->clock;
    t->cache = *cache;
    t->synthetic = synthetic; /* before its policy could name a page */
    t->kv_class = qe_session_pool(session) == core->pools[1];
    if (!core->lost)
        qe_core_apply_cache(core, t, cache);
    g_hash_table_insert(core->timelines, &t->id, t);
    qe_stats_touch(core->stats);
    return t;
}

qe_timeline *qe_core_add_timeline(qe_core *core, uint64_t id, const qe_cache_config *cache)
{
    qe_cache_config defaults;
    qe_cache_config_init(&defaults);
    return adopt_session(core, id, qe_session_new(core->pools[0], id), cache ? cache : &defaults, false);
}

void qe_core_open(
    qe_core *core, qe_session_id id, const qe_cache_config *cache, const char *disk_key, bool synthetic)
{
    if (!core->pools[0])
        return;
    qe_timeline *t = adopt_session(core, id, qe_session_new(core->pools[0], id), cache, synthetic);
    t->disk_key = g_strdup(disk_key);
    qe_core_disk_update(core, t);
}

/* Without pages for the copy of a part-filled page the new session gets the ids alone and computes them again. */
static qe_session *fork_ids(qe_core *core, uint64_t id, const qe_session *parent, uint32_t n_tokens)
{
    qe_session *session = qe_session_new(qe_session_pool(parent), id);
    qe_session_append_ids(session, qe_session_ids(parent), n_tokens);
    for (uint32_t i = 0; i < qe_session_n_turns(parent); i++) {
        const qe_turn *turn = qe_session_turn(parent, i);
        if (turn->end <= n_tokens)
            qe_session_add_turn(session, turn);
    }
    return session;
}

void qe_core_fork(qe_core *core, qe_session_id id, qe_session_id parent_id, uint32_t keep_messages)
{
    if (!core->pools[0])
        return;
    qe_timeline *parent = find_timeline(core, parent_id);
    if (!parent) {
        qe_timeline *t = qe_core_add_timeline(core, id, NULL);
        g_set_error(&t->broken, QE_ERROR, QE_ERROR_NOT_FOUND, "The session to fork is closed");
        return;
    }
    uint32_t n_turns = qe_session_n_turns(parent->session);
    if (keep_messages == QE_KEEP_PROMPT)
        keep_messages = n_turns ? n_turns - 1 : 0;
    if (keep_messages != QE_KEEP_ALL && keep_messages > n_turns) {
        qe_timeline *t = qe_core_add_timeline(core, id, NULL);
        g_set_error(&t->broken, QE_ERROR, QE_ERROR_NOT_FOUND,
            "The session to fork has %u messages, %u were to be kept", n_turns, keep_messages);
        return;
    }
    uint32_t n_tokens = qe_session_n_ids(parent->session);
    if (keep_messages != QE_KEEP_ALL && keep_messages < n_turns)
        n_tokens = qe_session_turn(parent->session, keep_messages)->begin;
    g_autoptr(GError) error = NULL;
    qe_session *session = NULL;
    if (!core->lost)
        session = qe_session_fork(parent->session, id, n_tokens, &error);
    if (!session) {
        if (g_error_matches(error, QE_ERROR, QE_ERROR_DEVICE_LOST))
            qe_core_lose(core, error->message);
        session = fork_ids(core, id, parent->session, n_tokens);
    }
    qe_timeline *t = adopt_session(core, id, session, &parent->cache, parent->synthetic);
    t->n_computed = MIN(parent->n_computed, n_tokens);
}

void qe_core_close(qe_core *core, qe_session_id id)
{
    qe_timeline *t = find_timeline(core, id);
    if (!t)
        return;
    if (t->request)
        qe_core_finish(core, t->request, QE_FINISH_CANCELLED, NULL);
    qe_core_disk_leave(core, t);
    g_hash_table_remove(core->timelines, &id);
    core->trim_due = true;
    qe_stats_touch(core->stats);
}

/* ---- Requests: the first and the last moment ---- */

static void update_queue(qe_core *core)
{
    for (guint i = 0; i < core->waiting->len; i++) {
        qe_request *request = core->waiting->pdata[i];
        qe_outbox_set_queued(request->outbox, i);
    }
}

/* Ends a request that never got a timeline. */
static void refuse(qe_core *core, qe_request *request, GError *error)
{
    if (!request->is_eval || request->session_id)
        core->events.session_idle(core->events.user, request->session_id);
    qe_outbox_finish(request->outbox, QE_FINISH_ERROR, &request->receipt, error);
    qe_request_unref(request);
}

static bool check_bias(const qe_core *core, const qe_request *request, GError **error)
{
    uint32_t vocab = qe_model_get_config(core->model)->vocab;
    if (request->n_bias == 0 || request->bias[request->n_bias - 1].id < vocab)
        return true;
    g_set_error(error, QE_ERROR, QE_ERROR_INVALID, "logit_bias names id %u; the model has %u",
        request->bias[request->n_bias - 1].id, vocab);
    return false;
}

static void begin_guide(qe_core *core, qe_request *request)
{
    qe_guide_start start = QE_GUIDE_NO_THINKING;
    if (!request->ids && qe_template_forces_thinking(core->tmpl))
        start = QE_GUIDE_IS_THINKING;
    else if (!request->ids && qe_template_has_thinking(core->tmpl) && request->thinking == QE_THINKING_ON)
        start = QE_GUIDE_MAY_THINK;
    if (!core->vocab)
        core->vocab = qe_vocab_new(core->tokenizer);
    request->guide = qe_guide_new(
        request->constraint, core->vocab, qe_model_get_config(core->model)->vocab, &core->eos, start);
}

void qe_core_generate(qe_core *core, qe_request *request)
{
    GError *error = NULL;
    qe_timeline *t = NULL;
    request->receipt.first_mismatch = -1;
    request->receipt.seed = request->sampling.seed;
    request->slot = QK_NO_SLOT;
    if (core->lost)
        error = g_error_copy(core->lost);
    else if (!core->pools[0])
        g_set_error(&error, QE_ERROR, QE_ERROR_FAILED, "No model is loaded");
    if (error) {
        refuse(core, request, error);
        return;
    }
    if (request->is_eval && request->session_id == 0) {
        t = qe_core_add_timeline(core, core->next_temporary--, NULL);
        t->temporary = true;
    } else {
        t = find_timeline(core, request->session_id);
    }
    if (t)
        qe_core_disk_begin_turn(t);
    if (!t) {
        g_set_error(&error, QE_ERROR, QE_ERROR_NOT_FOUND, "There is no session %" G_GUINT64_FORMAT,
            request->session_id);
    } else if (t->broken || t->no_mode) {
        error = g_error_copy(t->broken ? t->broken : t->no_mode);
    } else if (check_bias(core, request, &error) && qe_turn_prepare(core, t, request, &error)) {
        request->timeline = t;
        request->serial = core->next_serial++;
        request->state = QE_REQUEST_QUEUED;
        t->request = request;
        t->last_used = ++core->clock;
        if (!request->is_eval)
            request->reply = qe_reply_new(core->tokenizer, (const char *const *)request->stop);
        request->opens_thought =
            !request->ids && !request->continue_reply && qe_template_forces_thinking(core->tmpl);
        if (request->constraint)
            begin_guide(core, request);
        g_ptr_array_add(core->waiting, request);
        qe_stats_touch(core->stats);
        return;
    }
    if (t && t->temporary)
        g_hash_table_remove(core->timelines, &t->id);
    refuse(core, request, error);
}

/* Takes @request out of the lists. Positions planned for it do not count any more. */
static void withdraw(qe_core *core, qe_request *request)
{
    request->epoch++;
    request->n_unread = 0;
    if (request->slot != QK_NO_SLOT) {
        core->slot_used[request->slot] = false;
        request->slot = QK_NO_SLOT;
    }
    if (!g_ptr_array_remove(core->running, request))
        g_ptr_array_remove(core->waiting, request);
}

static void tell_ranges(qe_request *request, const qe_session *session)
{
    uint32_t n = qe_session_n_turns(session);
    qe_message_range *ranges = g_new(qe_message_range, n);
    for (uint32_t i = 0; i < n; i++) {
        const qe_turn *turn = qe_session_turn(session, i);
        ranges[i] = (qe_message_range){turn->role, turn->begin, turn->end};
    }
    qe_outbox_set_ranges(request->outbox, ranges, n);
}

void qe_core_finish(qe_core *core, qe_request *request, qe_finish finish, GError *error)
{
    qe_timeline *t = request->timeline;
    g_assert(t && t->request == request);
    withdraw(core, request);
    if (core->pools[0] && !core->lost)
        qe_session_release_reserved(t->session);
    if (request->reply) {
        g_autoptr(GString) rest = g_string_new(NULL);
        qe_reply_flush(request->reply, rest);
        qe_outbox_push(request->outbox, rest->str, rest->len, NULL, 0);
    }
    tell_ranges(request, t->session);
    gint64 now = g_get_monotonic_time();
    if (request->admitted == 0)
        request->receipt.queue_ms = (double)(now - request->called) / 1000;
    request->state = QE_REQUEST_DONE;
    request->timeline = NULL;
    t->request = NULL;
    t->last_used = ++core->clock;
    if (t->temporary)
        g_hash_table_remove(core->timelines, &t->id);
    else
        core->events.session_idle(core->events.user, request->session_id);
    qe_outbox_finish(request->outbox, finish, &request->receipt, error);
    qe_request_unref(request);
    update_queue(core);
    qe_stats_touch(core->stats);
}

void qe_core_end_all(qe_core *core, const GError *error)
{
    while (core->running->len || core->waiting->len) {
        GPtrArray *list = core->running->len ? core->running : core->waiting;
        qe_request *request = list->pdata[list->len - 1];
        if (error)
            qe_core_finish(core, request, QE_FINISH_ERROR, g_error_copy(error));
        else
            qe_core_finish(core, request, QE_FINISH_CANCELLED, NULL);
    }
}

/* ---- Snapshot ---- */

static int compare_sessions(const void *a, const void *b)
{
    uint64_t x = qe_session_id_of(((const qe_stats_session *)a)->session);
    uint64_t y = qe_session_id_of(((const qe_stats_session *)b)->session);
    return (x > y) - (x < y);
}

/* Asks a card about its memory and load, at most once in QE_DEVICE_MS: its driver takes its time to answer. */
static void look_at_device(qe_core *core)
{
    if (!core->backend || core->is_host) {
        core->device_looked = 0;
        return;
    }
    gint64 now = g_get_monotonic_time();
    if (core->device_looked && now < core->device_looked + (gint64)QE_DEVICE_MS * 1000)
        return;
    qk_backend_get_info(core->backend, &core->device_info);
    core->device_looked = now;
}

bool qe_core_publish(qe_core *core)
{
    gint64 deadline = qe_stats_deadline(core->stats);
    if (deadline == 0 || g_get_monotonic_time() < deadline)
        return false;
    guint n = g_hash_table_size(core->timelines), i = 0;
    g_autofree qe_stats_session *sessions = g_new0(qe_stats_session, MAX(n, 1));
    GHashTableIter iter;
    void *value;
    g_hash_table_iter_init(&iter, core->timelines);
    while (g_hash_table_iter_next(&iter, NULL, &value)) {
        const qe_timeline *t = value;
        sessions[i++] =
            (qe_stats_session){t->session, t->request && t->request->state != QE_REQUEST_QUEUED, t->mode};
    }
    qsort(sessions, n, sizeof *sessions, compare_sessions);
    look_at_device(core);
    qe_stats_disk disk;
    qe_core_disk_describe(core, &disk);
    qe_stats_input input = {
        .pools = core->pools,
        .is_host = !core->backend || core->is_host,
        .cpu_reason = core->lost && !core->is_host ? core->lost->message : core->cpu_reason,
        .device = core->device_looked ? &core->device_info : NULL,
        .weights = core->weight_bytes,
        .workspace = core->workspace_bytes,
        .n_sessions = core->pools[0] ? n : 0,
        .sessions = sessions,
        .n_running = core->running->len,
        .n_queued = core->waiting->len,
        .disk = &disk,
    };
    return qe_stats_publish(core->stats, &input);
}
