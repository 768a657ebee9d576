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
#include <unistd.h>
#include "engine/qe-limits.h"
#include "engine/qe-turn.h"

G_STATIC_ASSERT(G_N_ELEMENTS(((qe_core *)0)->slot_used) == QE_RUNNING_MAX);

static void timeline_free(void *data)
{
    qe_timeline *t = data;
    g_assert(t->request == NULL);
    qe_session_free(t->session);
    g_clear_error(&t->broken);
    g_free(t);
}

void qe_core_init(qe_core *core)
{
    core->timelines = g_hash_table_new_full(g_int64_hash, g_int64_equal, NULL, timeline_free);
    core->waiting = g_ptr_array_new();
    core->running = g_ptr_array_new();
    core->page_counts = g_array_new(FALSE, FALSE, sizeof(uint32_t));
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
    g_clear_error(&core->lost);
    g_clear_pointer(&core->opener.name, g_free);
    g_clear_pointer(&core->opener.isa, g_free);
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
    const qe_config *c = qe_model_get_config(core->model);
    return (qk_shape){
        .n_layers = c->n_layers,
        .n_heads = c->n_heads,
        .n_kv_heads = c->n_kv_heads,
        .head_dim = c->head_dim,
        .hidden = c->hidden,
        .ffn = c->ffn,
        .vocab = c->vocab,
        .max_positions = core->context_max,
        .rms_eps = (float)c->rms_eps,
        .rope_factor = (float)c->rope_attn_factor,
        .rope_inv_freq = c->rope_inv_freq,
    };
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

static uint64_t physical_memory(void)
{
    long pages = sysconf(_SC_PHYS_PAGES), bytes = sysconf(_SC_PAGESIZE);
    return pages > 0 && bytes > 0 ? (uint64_t)pages * (uint64_t)bytes : 0;
}

/* Pages of the pool: what was asked for, else the default that qe-limits.h documents. */
static bool budget_pages(const qe_core *core, uint64_t page_bytes, uint32_t *n_pages, GError **error)
{
    uint64_t context_pages = (core->context_max + QK_PAGE_TOKENS - 1) / QK_PAGE_TOKENS;
    uint64_t n;
    if (core->kv_bytes_max) {
        n = core->kv_bytes_max / page_bytes;
    } else {
        qk_backend_info info;
        qk_backend_get_info(core->backend, &info);
        uint64_t memory = info.is_host || info.memory_total == 0 ? physical_memory() : info.memory_total;
        n = MIN(memory / QE_KV_MEMORY_DIVISOR / page_bytes, QE_KV_CONTEXTS * context_pages);
        if (n < context_pages)
            n = MIN(context_pages, memory / 2 / page_bytes);
    }
    if (n == 0) {
        g_set_error(error, QE_ERROR, QE_ERROR_NO_MEMORY,
            "KV memory of %" G_GUINT64_FORMAT " bytes holds no page: one has %" G_GUINT64_FORMAT " bytes",
            core->kv_bytes_max, page_bytes);
        return false;
    }
    *n_pages = (uint32_t)MIN(n, (uint64_t)INT32_MAX);
    return true;
}

static void free_device(qe_core *core)
{
    g_clear_pointer(&core->steps, qe_steps_free);
    g_clear_pointer(&core->context, qk_context_free);
    g_clear_pointer(&core->device_model, qk_model_free);
}

/* Everything on the device, and a fresh pool. On failure the caller frees what is there. */
static bool make_device(qe_core *core, qk_progress_fn progress, void *user, GError **error)
{
    if (!core->backend) {
        core->backend = qe_backend_open(&core->opener, error);
        if (!core->backend)
            return false;
    }
    const qe_config *config = qe_model_get_config(core->model);
    core->context_max = config->max_positions;
    if (core->context_wanted)
        core->context_max = MIN(core->context_wanted, config->max_positions);
    qk_status status = load_weights(core, progress, user);
    if (status != QK_OK) {
        core->device_model = NULL;
        qe_backend_set_error(error, core->backend, status, "Cannot load the model onto the device");
        return false;
    }

    qk_shape shape = shape_of(core);
    qk_kv_layout layout;
    qk_kv_layout_page_major(&shape, core->kv_class == QE_KV_F32 ? QK_F32 : QK_BF16, &layout);
    uint32_t n_pages;
    if (!budget_pages(core, layout.page_bytes, &n_pages, error))
        return false;
    uint32_t context_pages = (core->context_max + QK_PAGE_TOKENS - 1) / QK_PAGE_TOKENS;
    core->capacity = (uint32_t)MIN((uint64_t)core->context_max, (uint64_t)n_pages * QK_PAGE_TOKENS);
    uint32_t logits_max =
        (uint32_t)CLAMP(QE_LOGITS_BYTES / (4 * (uint64_t)shape.vocab), 1, QE_LOGITS_ROWS_MAX);
    core->params = (qk_context_params){
        .rows_max = core->step_rows_max,
        .seqs_max = QE_RUNNING_MAX,
        .pages_max = QE_RUNNING_MAX * context_pages,
        .outputs_max = QE_RUNNING_MAX + logits_max,
        .logits_max = logits_max,
        .slots_max = QE_RUNNING_MAX,
        .layout = layout,
    };
    core->params.seqs_max = MIN(core->params.seqs_max, core->params.rows_max);
    core->params.outputs_max = MIN(core->params.outputs_max, core->params.rows_max);
    core->params.logits_max = MIN(core->params.logits_max, core->params.rows_max);
    status = qk_context_new(core->device_model, &core->params, &core->context);
    if (status != QK_OK) {
        core->context = NULL;
        qe_backend_set_error(error, core->backend, status, "Cannot make the workspace");
        return false;
    }
    status = qe_steps_new(core->context, core->queue, &core->params, &core->steps);
    if (status != QK_OK) {
        qe_backend_set_error(error, core->backend, status, "Cannot make the steps");
        return false;
    }
    core->pool = qe_kv_pool_new(core->backend, &layout, n_pages, 0, core->check);
    qe_cost_init(&core->cost, qe_model_get_weight_bytes(core->model), qe_model_get_n_params(core->model),
        4ull * shape.n_layers * shape.n_heads * shape.head_dim);
    return true;
}

static void forget_model(qe_core *core)
{
    g_clear_pointer(&core->tmpl, qe_template_free);
    g_clear_pointer(&core->tokenizer, qe_tokenizer_unref);
    g_clear_pointer(&core->model, qe_model_unref);
    core->context_max = core->capacity = 0;
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
        qe_stats_touch(core->stats);
        return true;
    }
    free_device(core);
    forget_model(core);
    return false;
}

void qe_core_unload(qe_core *core)
{
    qe_core_end_all(core, NULL);
    /* Steps first: pages may only go when no step in flight touches their slabs. */
    g_clear_pointer(&core->steps, qe_steps_free);
    g_hash_table_remove_all(core->timelines);
    g_clear_pointer(&core->pool, qe_kv_pool_free);
    free_device(core);
    forget_model(core);
    g_clear_error(&core->lost);
    qe_stats_touch(core->stats);
}

/* ---- Loss and recovery ---- */

void qe_core_lose(qe_core *core, const char *message)
{
    if (core->lost)
        return;
    g_set_error(&core->lost, QE_ERROR, QE_ERROR_DEVICE_LOST, "The device was lost: %s", message);
    qe_core_end_all(core, core->lost);
    g_clear_pointer(&core->steps, qe_steps_free);
    GHashTableIter iter;
    void *value;
    g_hash_table_iter_init(&iter, core->timelines);
    while (g_hash_table_iter_next(&iter, NULL, &value)) {
        qe_timeline *t = value;
        qe_session_drop_pages(t->session);
    }
    qe_kv_pool_forget(core->pool);
    free_device(core);
    g_clear_pointer(&core->backend, qk_backend_free);
    qe_stats_touch(core->stats);
}

/* A session bound to the new pool with the old one's ids and turns. */
static qe_session *rebuild_session(qe_kv_pool *pool, const qe_session *old)
{
    qe_session *session = qe_session_new(pool, qe_session_id_of(old));
    qe_session_append_ids(session, qe_session_ids(old), qe_session_n_ids(old));
    for (uint32_t i = 0; i < qe_session_n_turns(old); i++)
        qe_session_add_turn(session, qe_session_turn(old, i));
    return session;
}

bool qe_core_recover(qe_core *core, qk_progress_fn progress, void *user, GError **error)
{
    qe_kv_pool *old = core->pool;
    core->pool = NULL;
    if (!make_device(core, progress, user, error)) {
        g_clear_pointer(&core->pool, qe_kv_pool_free);
        free_device(core);
        g_clear_pointer(&core->backend, qk_backend_free);
        core->pool = old;
        return false;
    }
    GHashTableIter iter;
    void *value;
    g_hash_table_iter_init(&iter, core->timelines);
    while (g_hash_table_iter_next(&iter, NULL, &value)) {
        qe_timeline *t = value;
        qe_session *session = rebuild_session(core->pool, t->session);
        qe_session_free(t->session);
        t->session = session;
    }
    qe_kv_pool_free(old);
    g_clear_error(&core->lost);
    qe_stats_touch(core->stats);
    return true;
}

/* ---- Sessions ---- */

static qe_timeline *find_timeline(qe_core *core, uint64_t id)
{
    return g_hash_table_lookup(core->timelines, &id);
}

static qe_timeline *adopt_session(qe_core *core, uint64_t id, qe_session *session)
{
    qe_timeline *t = g_new0(qe_timeline, 1);
    t->id = id;
    t->session = session;
    t->last_used = ++core->clock;
    g_hash_table_insert(core->timelines, &t->id, t);
    qe_stats_touch(core->stats);
    return t;
}

qe_timeline *qe_core_add_timeline(qe_core *core, uint64_t id)
{
    return adopt_session(core, id, qe_session_new(core->pool, id));
}

void qe_core_open(qe_core *core, qe_session_id id)
{
    if (core->pool)
        qe_core_add_timeline(core, id);
}

/* Without pages for the copy of a part-filled page the new session gets the ids alone and computes them again. */
static qe_session *fork_ids(qe_core *core, uint64_t id, const qe_session *parent, uint32_t n_tokens)
{
    qe_session *session = qe_session_new(core->pool, id);
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
    if (!core->pool)
        return;
    qe_timeline *parent = find_timeline(core, parent_id);
    if (!parent) {
        qe_timeline *t = qe_core_add_timeline(core, id);
        g_set_error(&t->broken, QE_ERROR, QE_ERROR_NOT_FOUND, "The session to fork is closed");
        return;
    }
    uint32_t n_turns = qe_session_n_turns(parent->session);
    if (keep_messages != QE_KEEP_ALL && keep_messages > n_turns) {
        qe_timeline *t = qe_core_add_timeline(core, id);
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
    qe_timeline *t = adopt_session(core, id, session);
    t->n_computed = MIN(parent->n_computed, n_tokens);
}

void qe_core_close(qe_core *core, qe_session_id id)
{
    qe_timeline *t = find_timeline(core, id);
    if (!t)
        return;
    if (t->request)
        qe_core_finish(core, t->request, QE_FINISH_CANCELLED, NULL);
    g_hash_table_remove(core->timelines, &id);
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

void qe_core_generate(qe_core *core, qe_request *request)
{
    GError *error = NULL;
    qe_timeline *t = NULL;
    request->receipt.first_mismatch = -1;
    request->receipt.seed = request->sampling.seed;
    request->slot = QK_NO_SLOT;
    if (core->lost)
        error = g_error_copy(core->lost);
    else if (!core->pool)
        g_set_error(&error, QE_ERROR, QE_ERROR_FAILED, "No model is loaded");
    if (error) {
        refuse(core, request, error);
        return;
    }
    if (request->is_eval && request->session_id == 0) {
        t = qe_core_add_timeline(core, core->next_temporary--);
        t->temporary = true;
    } else {
        t = find_timeline(core, request->session_id);
    }
    if (!t) {
        g_set_error(&error, QE_ERROR, QE_ERROR_NOT_FOUND, "There is no session %" G_GUINT64_FORMAT,
            request->session_id);
    } else if (t->broken) {
        error = g_error_copy(t->broken);
    } else if (qe_turn_prepare(core, t, request, &error)) {
        request->timeline = t;
        request->serial = core->next_serial++;
        request->state = QE_REQUEST_QUEUED;
        t->request = request;
        t->last_used = ++core->clock;
        if (!request->is_eval)
            request->reply = qe_reply_new(core->tokenizer, (const char *const *)request->stop);
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

void qe_core_finish(qe_core *core, qe_request *request, qe_finish finish, GError *error)
{
    qe_timeline *t = request->timeline;
    g_assert(t && t->request == request);
    withdraw(core, request);
    if (core->pool && !core->lost)
        qe_session_release_reserved(t->session);
    if (request->reply) {
        g_autoptr(GString) rest = g_string_new(NULL);
        qe_reply_flush(request->reply, rest);
        qe_outbox_push(request->outbox, rest->str, rest->len, NULL, 0);
    }
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
        sessions[i++] = (qe_stats_session){t->session, t->request && t->request->state != QE_REQUEST_QUEUED};
    }
    qsort(sessions, n, sizeof *sessions, compare_sessions);
    qk_backend_info info = {.is_host = true};
    if (core->backend)
        qk_backend_get_info(core->backend, &info);
    qe_stats_input input = {
        .pool = core->pool,
        .is_host = info.is_host,
        .n_sessions = core->pool ? n : 0,
        .sessions = sessions,
        .n_running = core->running->len,
        .n_queued = core->waiting->len,
    };
    return qe_stats_publish(core->stats, &input);
}
