/* qe-engine.c: the engine thread, the commands to it, and what other threads may know at once.
 *
 * Two halves share this file. The front (any thread) checks arguments against a small registry under `lock` (state, open
 * sessions, which of them are busy) and posts commands. The back (engine thread) owns the core and works off commands
 * between two rounds of computing. The core is never touched by the front.
 *
 * Invariants:
 *  1. state, error, model_info and the registry change under `lock`, and the wakeup runs without it.
 *  2. A load, unload or recovery that a later one has overtaken (serial) changes no state.
 *  3. The thread sleeps when the core has nothing to do; only a command, a kick or a snapshot that is due wakes it. */
#include "engine/qe-engine.h"
#include <string.h>
#include "engine/qe-core.h"
#include "engine/qe-info.h"
#include "engine/qe-limits.h"
#include "engine/qe-lock.h"

typedef struct {
    uint64_t id;
    bool busy; /* has a request */
} session_entry;

struct qe_engine {
    qe_queue *queue;
    qe_stats *stats;
    GThread *thread;
    qe_wakeup_fn wakeup;
    void *wakeup_user;
    gsize outbox_bytes;
    qe_engine *replaces; /* engine thread */

    qe_mutex lock;
    qe_cond changed;
    qe_engine_state state;
    uint64_t serial; /* of the latest load, unload or recovery asked for */
    uint64_t load_done, load_total;
    GError *error;
    qe_model_info *info;
    qe_tokenizer *tokenizer;
    char *backend, *device;
    GHashTable *sessions; /* id -> session_entry */
    uint64_t next_session;

    qe_core core;         /* engine thread */
    uint64_t load_serial; /* engine thread: of the load at work */
    gint64 last_progress;
};

static void wake(qe_engine *self)
{
    if (self->wakeup)
        self->wakeup(self->wakeup_user);
}

/* ---- Back: loading ---- */

static bool load_progress(void *user, uint64_t done, uint64_t total)
{
    qe_engine *self = user;
    gint64 now = g_get_monotonic_time();
    qe_mutex_lock(&self->lock);
    bool current = self->serial == self->load_serial;
    bool tell = current && (now - self->last_progress > 50 * 1000 || done == total);
    if (tell) {
        self->load_done = done;
        self->load_total = total;
        self->last_progress = now;
    }
    qe_mutex_unlock(&self->lock);
    if (tell)
        wake(self);
    return current && !qe_queue_is_closed(self->queue);
}

/* The end of a load or recovery: READY, or @failed_state with @error (consumed). */
static void set_loaded(qe_engine *self, qe_engine_state state, qe_model_info *info, GError *error)
{
    qk_backend_info backend = {.name = ""};
    if (self->core.backend)
        qk_backend_get_info(self->core.backend, &backend);
    qe_mutex_lock(&self->lock);
    bool current = self->serial == self->load_serial;
    if (current) {
        self->state = state;
        g_clear_error(&self->error);
        self->error = g_steal_pointer(&error);
        if (info) {
            g_clear_pointer(&self->info, qe_model_info_free);
            self->info = g_steal_pointer(&info);
            g_clear_pointer(&self->tokenizer, qe_tokenizer_unref);
            self->tokenizer = qe_tokenizer_ref(self->core.tokenizer);
        }
        if (state == QE_ENGINE_READY) {
            g_free(self->backend);
            g_free(self->device);
            self->backend = g_strdup(backend.name);
            self->device = g_utf8_make_valid(backend.device, -1);
        }
        qe_cond_broadcast(&self->changed);
    }
    qe_mutex_unlock(&self->lock);
    g_clear_error(&error);
    g_clear_pointer(&info, qe_model_info_free);
    wake(self);
}

static void run_load(qe_engine *self, const char *dir)
{
    GError *error = NULL;
    qe_model_info *info = NULL;
    qe_model *model = NULL;
    qe_tokenizer *tokenizer = NULL;
    qe_template *tmpl = NULL;
    qe_core_unload(&self->core); /* the old weights go before the new ones come */
    if (qe_info_open(dir, &model, &tokenizer, &tmpl, &error)) {
        info = qe_info_build(model, tokenizer, tmpl);
        if (qe_core_load(&self->core, model, tokenizer, tmpl, load_progress, self, &error)) {
            set_loaded(self, QE_ENGINE_READY, info, NULL);
            return;
        }
    }
    qe_model_info_free(info);
    set_loaded(self, QE_ENGINE_FAILED, NULL, error);
}

static void run_recover(qe_engine *self)
{
    GError *error = NULL;
    if (!self->core.lost)
        return;
    if (qe_core_recover(&self->core, load_progress, self, &error))
        set_loaded(self, QE_ENGINE_READY, NULL, NULL);
    else
        set_loaded(self, QE_ENGINE_LOST, NULL, error);
}

/* ---- Back: the thread ---- */

static void session_idle(void *user, qe_session_id id)
{
    qe_engine *self = user;
    qe_mutex_lock(&self->lock);
    session_entry *entry = g_hash_table_lookup(self->sessions, &id);
    if (entry)
        entry->busy = false;
    qe_mutex_unlock(&self->lock);
}

static qe_command *command_new(qe_command_kind kind)
{
    qe_command *command = g_new0(qe_command, 1);
    command->kind = kind;
    return command;
}

static void command_free(qe_command *command)
{
    g_free(command->dir);
    g_free(command->disk_key);
    g_free(command);
}

static void run_command(qe_engine *self, qe_command *command)
{
    bool load = command->kind == QE_COMMAND_LOAD || command->kind == QE_COMMAND_RECOVER;
    if (load) {
        self->load_serial = command->serial;
        self->last_progress = 0;
    }
    switch (command->kind) {
    case QE_COMMAND_LOAD:
        run_load(self, command->dir);
        break;
    case QE_COMMAND_UNLOAD:
        qe_core_unload(&self->core);
        wake(self);
        break;
    case QE_COMMAND_RECOVER:
        run_recover(self);
        break;
    case QE_COMMAND_RELEASE:
        qe_core_release(&self->core);
        wake(self);
        break;
    case QE_COMMAND_CHECK:
        qe_core_check_device(&self->core);
        break;
    case QE_COMMAND_OPEN:
        qe_core_open(&self->core, command->session, &command->cache, command->disk_key, command->synthetic);
        break;
    case QE_COMMAND_FORK:
        qe_core_fork(&self->core, command->session, command->parent, command->keep_messages);
        break;
    case QE_COMMAND_CLOSE:
        qe_core_close(&self->core, command->session);
        break;
    case QE_COMMAND_SET_KV:
        qe_core_set_kv_bytes(&self->core, command->kv_bytes);
        break;
    case QE_COMMAND_SET_CACHE:
        qe_core_set_cache(&self->core, command->session, &command->cache);
        break;
    case QE_COMMAND_PREFETCH:
        qe_core_prefetch(&self->core, command->session);
        break;
    case QE_COMMAND_DELETE_FILES:
        qe_core_disk_delete(&self->core, command->disk_key);
        break;
    case QE_COMMAND_GENERATE:
        qe_core_generate(&self->core, command->request);
        break;
    }
    command_free(command);
}

/* The core found the device gone: the state says so until a recovery or another load. */
static void note_loss(qe_engine *self)
{
    bool news = false;
    qe_mutex_lock(&self->lock);
    if (self->core.lost && self->state == QE_ENGINE_READY) {
        self->state = QE_ENGINE_LOST;
        g_clear_error(&self->error);
        self->error = g_error_copy(self->core.lost);
        qe_cond_broadcast(&self->changed);
        news = true;
    }
    qe_mutex_unlock(&self->lock);
    if (news)
        wake(self);
}

/* When the engine thread has to look again though nobody wakes it; 0: not. */
static gint64 deadline_of(const qe_engine *self)
{
    gint64 a = qe_stats_deadline(self->stats), b = self->core.look_at;
    return a && b ? MIN(a, b) : MAX(a, b);
}

static void *engine_thread(void *user)
{
    qe_engine *self = user;
    bool more = true;
    qe_engine_free(g_steal_pointer(&self->replaces));
    while (!qe_queue_is_closed(self->queue)) {
        qe_command *command = qe_queue_pop(self->queue, !more, deadline_of(self));
        for (; command; command = qe_queue_pop(self->queue, false, 0)) {
            run_command(self, command);
            if (qe_queue_is_closed(self->queue))
                break;
        }
        more = qe_core_advance(&self->core);
        if (self->core.lost)
            note_loss(self);
        if (qe_core_publish(&self->core))
            wake(self);
    }
    qe_core_end_all(&self->core, NULL);
    /* Commands that came too late: their requests end as cancelled; what was to be deleted is. */
    for (qe_command *c; (c = qe_queue_pop(self->queue, false, 0));) {
        if (c->kind == QE_COMMAND_GENERATE) {
            qe_request *request = c->request;
            qe_outbox_finish(request->outbox, QE_FINISH_CANCELLED, &request->receipt, NULL);
            qe_request_unref(request);
        } else if (c->kind == QE_COMMAND_DELETE_FILES) {
            qe_core_disk_delete(&self->core, c->disk_key);
        }
        command_free(c);
    }
    qe_core_clear(&self->core);
    return NULL;
}

/* ---- Front: life ---- */

static bool check_options(const qe_engine_options *o, GError **error)
{
    if (o->step_rows_max > QE_STEP_ROWS_MAX) {
        g_set_error(error, QE_ERROR, QE_ERROR_INVALID, "step_rows_max must be at most %u, not %u",
            QE_STEP_ROWS_MAX, o->step_rows_max);
        return false;
    }
    if (o->kv_class != QE_KV_BF16 && o->kv_class != QE_KV_F32) {
        g_set_error(error, QE_ERROR, QE_ERROR_INVALID, "There is no KV class %d", (int)o->kv_class);
        return false;
    }
    if ((guint)o->host_path > QE_HOST_PATH_CPU) {
        g_set_error(error, QE_ERROR, QE_ERROR_INVALID, "There is no host path %d", (int)o->host_path);
        return false;
    }
    return true;
}

qe_engine *qe_engine_new_with_backend(
    const qe_engine_options *options, qe_backend_open_fn open, void *user, GError **error)
{
    const qe_engine_options defaults = {0};
    const qe_engine_options *o = options ? options : &defaults;
    if (!check_options(o, error))
        return NULL;
    qe_engine *self = g_new0(qe_engine, 1);
    self->queue = qe_queue_new();
    self->stats = qe_stats_new();
    self->wakeup = o->wakeup;
    self->wakeup_user = o->wakeup_user;
    self->outbox_bytes = o->outbox_bytes ? o->outbox_bytes : QE_OUTBOX_BYTES;
    qe_mutex_init(&self->lock);
    qe_cond_init(&self->changed);
    self->sessions = g_hash_table_new_full(g_int64_hash, g_int64_equal, NULL, g_free);
    self->next_session = 1;
    self->backend = g_strdup("");
    self->device = g_strdup("");
    self->core = (qe_core){
        .queue = self->queue,
        .stats = self->stats,
        .events = {session_idle, self},
        .opener = {open, user, g_strdup(o->backend), g_strdup(o->isa), g_strdup(o->device), o->n_threads},
        .kv_class = o->kv_class,
        .kv_bytes_max = o->kv_bytes_max,
        .context_wanted = o->context_max,
        .host_bytes_wanted = o->host_bytes_max,
        .ring_bytes = o->ring_bytes ? o->ring_bytes : QE_RING_BYTES_DEFAULT,
        .host_path_wanted = o->host_path,
        .host_paths_file = g_strdup(o->host_paths_file),
        .disk_dir = g_strdup(o->disk_dir),
        .disk_bytes_max = o->disk_bytes_max,
        .memory_reserve = o->memory_reserve ? o->memory_reserve : QE_MEMORY_RESERVE_DEFAULT,
        .step_rows_wanted = o->step_rows_max,
        .step_ms_shared = o->step_ms_shared ? o->step_ms_shared : QE_STEP_MS_SHARED,
        .step_ms_alone = o->step_ms_alone ? o->step_ms_alone : QE_STEP_MS_ALONE,
        .check = o->check_invariants,
    };
#ifdef QE_DEBUG
    self->core.check = true;
#endif
    qe_core_init(&self->core);
    self->replaces = o->replaces;
    self->thread = g_thread_try_new("quire-engine", engine_thread, self, error);
    if (!self->thread) {
        self->replaces = NULL;
        qe_core_clear(&self->core);
        qe_engine_free(self);
        return NULL;
    }
    return self;
}

qe_engine *qe_engine_new(const qe_engine_options *options, GError **error)
{
    return qe_engine_new_with_backend(options, NULL, NULL, error);
}

void qe_engine_free(qe_engine *self)
{
    if (!self)
        return;
    qe_queue_close(self->queue);
    qe_queue_cancel_all(self->queue);
    if (self->thread)
        g_thread_join(self->thread);
    g_hash_table_unref(self->sessions);
    g_clear_error(&self->error);
    qe_model_info_free(self->info);
    g_clear_pointer(&self->tokenizer, qe_tokenizer_unref);
    g_free(self->backend);
    g_free(self->device);
    qe_stats_free(self->stats);
    qe_queue_unref(self->queue);
    qe_cond_clear(&self->changed);
    qe_mutex_clear(&self->lock);
    g_free(self);
}

/* Posts what must not fail: forced past the bound; only a closing engine refuses, and then nobody waits for it. */
static void post(qe_engine *self, qe_command *command)
{
    if (!qe_queue_push(self->queue, command, true, NULL))
        command_free(command);
}

/* The model of now goes: nothing of it is shown any more, its sessions end, @command says what comes instead. */
static void replace_model(qe_engine *self, qe_command *command, qe_engine_state state)
{
    qe_mutex_lock(&self->lock);
    self->state = state;
    self->load_done = self->load_total = 0;
    command->serial = ++self->serial;
    g_clear_error(&self->error);
    g_clear_pointer(&self->info, qe_model_info_free);
    g_clear_pointer(&self->tokenizer, qe_tokenizer_unref);
    g_hash_table_remove_all(self->sessions);
    post(self, command);
    qe_cond_broadcast(&self->changed);
    qe_mutex_unlock(&self->lock);
    /* What runs for the old model need not run to its end. */
    qe_queue_cancel_all(self->queue);
}

void qe_engine_load(qe_engine *self, const char *dir)
{
    qe_command *command = command_new(QE_COMMAND_LOAD);
    command->dir = g_strdup(dir);
    replace_model(self, command, QE_ENGINE_LOADING);
}

void qe_engine_unload(qe_engine *self)
{
    replace_model(self, command_new(QE_COMMAND_UNLOAD), QE_ENGINE_EMPTY);
}

void qe_engine_set_kv_bytes(qe_engine *self, uint64_t kv_bytes_max)
{
    qe_command *command = command_new(QE_COMMAND_SET_KV);
    command->kv_bytes = kv_bytes_max;
    qe_mutex_lock(&self->lock);
    post(self, command);
    qe_mutex_unlock(&self->lock);
}

void qe_engine_recover(qe_engine *self)
{
    qe_mutex_lock(&self->lock);
    if (self->state == QE_ENGINE_LOST || self->state == QE_ENGINE_RELEASED) {
        qe_command *command = command_new(QE_COMMAND_RECOVER);
        self->state = QE_ENGINE_LOADING;
        self->load_done = self->load_total = 0;
        command->serial = ++self->serial;
        post(self, command);
        qe_cond_broadcast(&self->changed);
    }
    qe_mutex_unlock(&self->lock);
}

void qe_engine_release(qe_engine *self)
{
    bool released = false;
    qe_mutex_lock(&self->lock);
    if (self->state == QE_ENGINE_READY) {
        self->state = QE_ENGINE_RELEASED;
        post(self, command_new(QE_COMMAND_RELEASE));
        qe_cond_broadcast(&self->changed);
        released = true;
    }
    qe_mutex_unlock(&self->lock);
    if (released)
        qe_queue_cancel_all(self->queue);
}

void qe_engine_check(qe_engine *self)
{
    qe_mutex_lock(&self->lock);
    if (self->state == QE_ENGINE_READY)
        post(self, command_new(QE_COMMAND_CHECK));
    qe_mutex_unlock(&self->lock);
}

/* ---- Front: state ---- */

/* Under the lock. */
static bool has_model(const qe_engine *self)
{
    return self->state == QE_ENGINE_READY || self->state == QE_ENGINE_LOST ||
           self->state == QE_ENGINE_RELEASED;
}

void qe_engine_get_status(qe_engine *self, qe_engine_status *out)
{
    qe_mutex_lock(&self->lock);
    bool loaded = has_model(self);
    *out = (qe_engine_status){
        .state = self->state,
        .load_done_bytes = self->load_done,
        .load_total_bytes = self->load_total,
        .error = self->error ? g_error_copy(self->error) : NULL,
        .model = loaded && self->info ? qe_model_info_copy(self->info) : NULL,
        .backend = g_strdup(self->backend),
        .device = g_strdup(self->device),
    };
    qe_mutex_unlock(&self->lock);
}

void qe_engine_status_clear(qe_engine_status *status)
{
    g_clear_error(&status->error);
    g_clear_pointer(&status->model, qe_model_info_free);
    g_clear_pointer(&status->backend, g_free);
    g_clear_pointer(&status->device, g_free);
}

bool qe_engine_wait_ready(qe_engine *self, GError **error)
{
    bool ready = false;
    qe_mutex_lock(&self->lock);
    while (self->state == QE_ENGINE_LOADING)
        qe_cond_wait(&self->changed, &self->lock);
    if (self->state == QE_ENGINE_READY)
        ready = true;
    else if (self->error)
        g_propagate_error(error, g_error_copy(self->error));
    else
        g_set_error(error, QE_ERROR, QE_ERROR_FAILED, "No model is loaded");
    qe_mutex_unlock(&self->lock);
    return ready;
}

qe_tokenizer *qe_engine_dup_tokenizer(qe_engine *self)
{
    qe_mutex_lock(&self->lock);
    bool loaded = has_model(self);
    qe_tokenizer *tokenizer = loaded && self->tokenizer ? qe_tokenizer_ref(self->tokenizer) : NULL;
    qe_mutex_unlock(&self->lock);
    return tokenizer;
}

const qe_snapshot *qe_engine_dup_snapshot(qe_engine *self)
{
    return qe_stats_dup_snapshot(self->stats);
}

/* ---- Front: sessions ---- */

/* Under the lock. LOST and RELEASED count as loaded for what only touches tokens (@lost_is_fine). */
static bool require_model(qe_engine *self, bool lost_is_fine, GError **error)
{
    if (lost_is_fine ? has_model(self) : self->state == QE_ENGINE_READY)
        return true;
    if (self->error)
        g_propagate_error(error, g_error_copy(self->error));
    else
        g_set_error(error, QE_ERROR, QE_ERROR_FAILED,
            self->state == QE_ENGINE_LOADING ? "The model is still loading" : "No model is loaded");
    return false;
}

/* Under the lock. */
static session_entry *require_session(qe_engine *self, qe_session_id id, GError **error)
{
    session_entry *entry = g_hash_table_lookup(self->sessions, &id);
    if (!entry)
        g_set_error(error, QE_ERROR, QE_ERROR_NOT_FOUND, "There is no session %" G_GUINT64_FORMAT, id);
    return entry;
}

/* Under the lock. Posts @command with a new session's id. */
static qe_session_id add_session(qe_engine *self, qe_command *command, GError **error)
{
    if (g_hash_table_size(self->sessions) >= QE_SESSIONS_MAX) {
        g_set_error(error, QE_ERROR, QE_ERROR_BUSY, "%u sessions are open already", QE_SESSIONS_MAX);
    } else {
        command->session = self->next_session;
        if (qe_queue_push(self->queue, command, false, error)) {
            session_entry *entry = g_new0(session_entry, 1);
            entry->id = self->next_session++;
            g_hash_table_insert(self->sessions, &entry->id, entry);
            return entry->id;
        }
    }
    command_free(command);
    return 0;
}

qe_session_id qe_engine_open_session(qe_engine *self, GError **error)
{
    qe_session_options options;
    qe_session_options_init(&options);
    return qe_engine_open_session_with(self, &options, error);
}

qe_session_id qe_engine_open_session_with(qe_engine *self, const qe_session_options *options, GError **error)
{
    qe_session_id id = 0;
    if (!qe_cache_config_check(&options->cache, error))
        return 0;
    if (options->disk_key && strlen(options->disk_key) > QE_DISK_KEY_BYTES_MAX) {
        g_set_error(error, QE_ERROR, QE_ERROR_INVALID, "disk_key has %zu bytes; expected at most %u",
            strlen(options->disk_key), QE_DISK_KEY_BYTES_MAX);
        return 0;
    }
    if (options->synthetic && (options->disk_key || options->cache.use_cache)) {
        g_set_error(error, QE_ERROR, QE_ERROR_INVALID, "A synthetic session has %s; expected none",
            options->disk_key ? "a disk_key" : "use_cache");
        return 0;
    }
    qe_mutex_lock(&self->lock);
    if (require_model(self, true, error)) {
        qe_command *command = command_new(QE_COMMAND_OPEN);
        command->cache = options->cache;
        command->disk_key = g_strdup(options->disk_key);
        command->synthetic = options->synthetic;
        id = add_session(self, command, error);
    }
    qe_mutex_unlock(&self->lock);
    return id;
}

bool qe_engine_set_cache(
    qe_engine *self, qe_session_id session, const qe_cache_config *config, GError **error)
{
    bool ok = false;
    if (!qe_cache_config_check(config, error))
        return false;
    qe_mutex_lock(&self->lock);
    session_entry *entry = require_session(self, session, error);
    if (entry && entry->busy) {
        g_set_error(
            error, QE_ERROR, QE_ERROR_BUSY, "Session %" G_GUINT64_FORMAT " has a running request", session);
    } else if (entry) {
        qe_command *command = command_new(QE_COMMAND_SET_CACHE);
        command->session = session;
        command->cache = *config;
        post(self, command);
        ok = true;
    }
    qe_mutex_unlock(&self->lock);
    return ok;
}

void qe_engine_prefetch_session(qe_engine *self, qe_session_id session)
{
    qe_mutex_lock(&self->lock);
    if (g_hash_table_contains(self->sessions, &session)) {
        qe_command *command = command_new(QE_COMMAND_PREFETCH);
        command->session = session;
        post(self, command);
    }
    qe_mutex_unlock(&self->lock);
}

qe_session_id qe_engine_fork_session(
    qe_engine *self, qe_session_id parent, uint32_t keep_messages, GError **error)
{
    qe_session_id id = 0;
    qe_mutex_lock(&self->lock);
    if (require_model(self, true, error) && require_session(self, parent, error)) {
        qe_command *command = command_new(QE_COMMAND_FORK);
        command->parent = parent;
        command->keep_messages = keep_messages;
        id = add_session(self, command, error);
    }
    qe_mutex_unlock(&self->lock);
    return id;
}

void qe_engine_close_session(qe_engine *self, qe_session_id session)
{
    qe_mutex_lock(&self->lock);
    if (g_hash_table_remove(self->sessions, &session)) {
        qe_command *command = command_new(QE_COMMAND_CLOSE);
        command->session = session;
        post(self, command);
    }
    qe_mutex_unlock(&self->lock);
}

void qe_engine_delete_session_files(qe_engine *self, const char *disk_key)
{
    qe_mutex_lock(&self->lock);
    qe_command *command = command_new(QE_COMMAND_DELETE_FILES);
    command->disk_key = g_strdup(disk_key);
    post(self, command);
    qe_mutex_unlock(&self->lock);
}

/* ---- Front: requests ---- */

/* Posts @request and gives the caller a reference of its own; NULL with @error. @request: consumed. */
static qe_request *post_request(qe_engine *self, qe_request *request, GError **error)
{
    bool ok = false;
    session_entry *entry = NULL;
    qe_mutex_lock(&self->lock);
    if (require_model(self, false, error)) {
        ok = true;
        if (request->session_id || !request->is_eval) {
            entry = require_session(self, request->session_id, error);
            ok = entry != NULL;
        }
        if (ok && entry && entry->busy) {
            g_set_error(error, QE_ERROR, QE_ERROR_BUSY, "Session %" G_GUINT64_FORMAT " has a running request",
                request->session_id);
            ok = false;
        }
    }
    if (ok) {
        qe_command *command = command_new(QE_COMMAND_GENERATE);
        command->request = qe_request_ref(request);
        ok = qe_queue_push(self->queue, command, false, error);
        if (ok && entry)
            entry->busy = true;
        if (!ok) {
            qe_request_unref(request);
            command_free(command);
        }
    }
    qe_mutex_unlock(&self->lock);
    if (!ok)
        g_clear_pointer(&request, qe_request_unref);
    return request;
}

qe_request *qe_engine_generate(qe_engine *self, const qe_generate_params *params, GError **error)
{
    qe_request *request = qe_request_new(self->queue, params, self->outbox_bytes, error);
    return request ? post_request(self, request, error) : NULL;
}

bool qe_engine_eval(qe_engine *self, qe_session_id session, const uint32_t *ids, uint32_t n_ids,
    uint32_t first, float *out, GError **error)
{
    if (n_ids == 0 || first >= n_ids) {
        g_set_error(error, QE_ERROR, QE_ERROR_INVALID,
            "An evaluation needs a position to report: the first is %u of %u", first, n_ids);
        return false;
    }
    qe_request *request =
        post_request(self, qe_request_new_eval(self->queue, session, ids, n_ids, first, out), error);
    if (!request)
        return false;
    qe_update update = {0};
    do {
        qe_update_clear(&update);
        qe_request_wait(request, -1);
        qe_request_take(request, &update);
    } while (update.state != QE_REQUEST_DONE);
    bool ok = update.finish == QE_FINISH_LENGTH;
    if (update.error)
        g_propagate_error(error, g_steal_pointer(&update.error));
    else if (!ok)
        g_set_error(error, QE_ERROR, QE_ERROR_CANCELLED, "The evaluation was cancelled");
    qe_update_clear(&update);
    qe_request_unref(request);
    return ok;
}
