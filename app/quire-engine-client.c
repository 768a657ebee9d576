/* quire-engine-client.c: owns the qe_engine; turns its wakeups into signals. See quire-engine-client.h.
 *
 * Invariants
 * 1. The wake source is the only thing another thread touches; it is made ready with g_source_set_ready_time() alone.
 * 2. It outlives the engine: the engine is freed first (that joins its thread), then the source.
 * 3. An engine that is replaced is freed on a thread, for that call waits; its wakeups go to its own source, which was
 *    detached from the main loop before.
 *
 * Everything here runs on the main thread save wake() and the three functions that end in _thread. */
#include "app/quire-engine-client.h"

#include <string.h>

struct _QuireEngineClient
{
  GObject parent_instance;

  qe_engine *engine;
  GSource *wake;        /* owned; attached */
  GPtrArray *old_wakes; /* of engines that were replaced: they may still call them while they end */
  char *model_dir;
  qe_engine_status status;
  const qe_snapshot *snapshot; /* owned */

  qe_engine_options options; /* as started; its strings are the three below */
  char *backend, *device, *disk_dir;
  QuireMachine *machine; /* with a plan for planned_dir; NULL until it was read */
  char *planned_dir;
  GCancellable *planning;
  char *release_reason;
  char *lost_device; /* the card that was lost and has not been had again, or NULL */
  gboolean lost_for_good;
  gboolean trying; /* a load was asked for, and its end was not seen yet */
  gint64 last_use_us;
};

G_DEFINE_FINAL_TYPE (QuireEngineClient, quire_engine_client, G_TYPE_OBJECT)

enum
{
  STATUS_CHANGED,
  SNAPSHOT_CHANGED,
  NEWS,
  SESSIONS_LOST,
  TURN_ASKED,
  ENGINE_LEAVING,
  N_SIGNALS
};
static guint signals[N_SIGNALS];

/* ---- The wake source ---- */

static gboolean
wake_dispatch (GSource *source, GSourceFunc callback, gpointer user_data)
{
  g_source_set_ready_time (source, -1);
  return callback (user_data);
}

static GSourceFuncs wake_funcs = { .dispatch = wake_dispatch };

/* Any thread. */
static void
wake (void *user)
{
  g_source_set_ready_time (user, 0);
}

/* ---- What it has room for ---- */

static void
forget_plan (QuireEngineClient *self)
{
  g_cancellable_cancel (self->planning);
  g_clear_object (&self->planning);
  g_clear_pointer (&self->machine, quire_machine_free);
  g_clear_pointer (&self->planned_dir, g_free);
}

static void
planned_cb (GObject *source, GAsyncResult *result, gpointer user_data)
{
  g_autoptr (QuireMachine) machine = quire_machine_read_finish (result, NULL);
  QuireEngineClient *self = user_data;

  if (machine == NULL) /* cancelled: the client may be gone */
    return;
  g_clear_pointer (&self->machine, quire_machine_free);
  self->machine = g_steal_pointer (&machine);
  g_signal_emit (self, signals[STATUS_CHANGED], 0);
}

/* The sizes of a page follow from the model's folder; they are read once for a model. */
static void
read_plan (QuireEngineClient *self)
{
  const char *dir = self->status.model != NULL ? self->status.model->dir : NULL;

  if (self->status.state != QE_ENGINE_READY || dir == NULL
      || g_strcmp0 (dir, self->planned_dir) == 0)
    return;
  forget_plan (self);
  self->planned_dir = g_strdup (dir);
  self->planning = g_cancellable_new ();
  quire_machine_read_async (dir, &self->options, self->planning, planned_cb, self);
}

const qe_memory_plan *
quire_engine_client_get_plan (QuireEngineClient *self)
{
  qe_memory_plan *plan = self->machine != NULL ? self->machine->plan : NULL;
  const qe_snapshot *snapshot = self->snapshot;

  if (plan == NULL || snapshot == NULL || !quire_engine_client_is_ready (self)
      || snapshot->page_bytes == 0) /* it is of before the load */
    return NULL;
  /* The plan was made beside the loaded model, which takes what it counts as free: the limits are the engine's own. */
  plan->on_device = snapshot->device.memory_total > 0;
  plan->page_bytes = snapshot->page_bytes;
  if (snapshot->tiers[QE_TIER_GPU].present)
    {
      plan->kv = snapshot->tiers[QE_TIER_GPU].bytes_max;
      plan->host_kv
          = snapshot->tiers[QE_TIER_HOST].present ? snapshot->tiers[QE_TIER_HOST].bytes_max : 0;
    }
  else
    {
      /* Both are one tier in the snapshot; here host memory beside the cache is what was asked for, no more. */
      guint64 all = snapshot->tiers[QE_TIER_HOST].bytes_max, wanted = self->options.host_bytes_max;

      plan->host_kv = wanted > 1 ? MIN (wanted / plan->page_bytes * plan->page_bytes, all) : 0;
      plan->kv = all - plan->host_kv;
    }
  plan->kv_tokens = plan->kv / plan->page_bytes * 16;
  plan->host_kv_tokens = plan->host_kv / plan->page_bytes * 16;
  return plan;
}

/* ---- Following the engine ---- */

static void use (QuireEngineClient *self);

static gboolean
status_equal (const qe_engine_status *a, const qe_engine_status *b)
{
  return a->state == b->state && a->load_done_bytes == b->load_done_bytes
         && a->load_total_bytes == b->load_total_bytes && (a->error != NULL) == (b->error != NULL)
         && (a->error == NULL || strcmp (a->error->message, b->error->message) == 0)
         && (a->model != NULL) == (b->model != NULL)
         && (a->model == NULL || g_strcmp0 (a->model->dir, b->model->dir) == 0)
         && g_strcmp0 (a->device, b->device) == 0;
}

/* Whether a lost card is to be had again in this process shows by the next load. One that only lacks memory is. Returns
 * whether the answer is another one than before. */
static gboolean
follow_card (QuireEngineClient *self, const qe_engine_status *now)
{
  gboolean before = self->lost_for_good, tried = self->trying;

  if (now->state == QE_ENGINE_LOADING)
    return FALSE;
  self->trying = FALSE;
  if (now->state == QE_ENGINE_LOST && self->lost_device == NULL)
    self->lost_device = g_strdup (now->device);
  else if (now->state == QE_ENGINE_READY && self->lost_device != NULL)
    {
      self->lost_for_good = g_strcmp0 (self->lost_device, now->device) != 0;
      if (!self->lost_for_good)
        g_clear_pointer (&self->lost_device, g_free);
    }
  if (tried && (now->state == QE_ENGINE_LOST || now->state == QE_ENGINE_FAILED))
    self->lost_for_good |= g_error_matches (now->error, QE_ERROR, QE_ERROR_DEVICE_LOST)
                           || (now->state == QE_ENGINE_LOST && self->lost_device != NULL
                               && !g_error_matches (now->error, QE_ERROR, QE_ERROR_NO_MEMORY));
  return self->lost_for_good != before;
}

gboolean
quire_engine_client_needs_restart (QuireEngineClient *self)
{
  return self->lost_for_good;
}

static void
fetch_status (QuireEngineClient *self)
{
  qe_engine_status status = { 0 };
  gboolean other;

  qe_engine_get_status (self->engine, &status);
  other = follow_card (self, &status);
  if (!other && status_equal (&status, &self->status))
    {
      qe_engine_status_clear (&status);
      return;
    }

  if (status.state == QE_ENGINE_READY)
    use (self);
  qe_engine_status_clear (&self->status);
  self->status = status;
  read_plan (self);
  g_signal_emit (self, signals[STATUS_CHANGED], 0);
}

static void
fetch_snapshot (QuireEngineClient *self)
{
  const qe_snapshot *snapshot = qe_engine_dup_snapshot (self->engine);

  if (self->snapshot != NULL && self->snapshot->serial == snapshot->serial)
    {
      qe_snapshot_unref (snapshot);
      return;
    }

  g_clear_pointer (&self->snapshot, qe_snapshot_unref);
  self->snapshot = snapshot;
  if (snapshot->n_running + snapshot->n_queued > 0)
    use (self);
  g_signal_emit (self, signals[SNAPSHOT_CHANGED], 0);
}

static gboolean
wake_cb (gpointer user_data)
{
  g_autoptr (QuireEngineClient) self = g_object_ref (QUIRE_ENGINE_CLIENT (user_data));

  g_signal_emit (self, signals[NEWS], 0);
  if (self->engine != NULL)
    fetch_status (self);
  if (self->engine != NULL)
    fetch_snapshot (self);

  return G_SOURCE_CONTINUE;
}

/* ---- Life of the engine ---- */

static void
forget_engine (QuireEngineClient *self)
{
  g_clear_pointer (&self->snapshot, qe_snapshot_unref);
  qe_engine_status_clear (&self->status);
  memset (&self->status, 0, sizeof self->status);
}

static void
keep_options (QuireEngineClient *self, const qe_engine_options *options)
{
  char *backend = g_strdup (options->backend), *device = g_strdup (options->device),
       *disk_dir = g_strdup (options->disk_dir);

  g_free (self->backend);
  g_free (self->device);
  g_free (self->disk_dir);
  self->options = *options;
  self->options.backend = self->backend = backend;
  self->options.device = self->device = device;
  self->options.disk_dir = self->disk_dir = disk_dir;
  forget_plan (self);
}

gboolean
quire_engine_client_start (QuireEngineClient *self, const qe_engine_options *options,
                           GError **error)
{
  qe_engine_options o = *options;
  GSource *source = g_source_new (&wake_funcs, sizeof (GSource));
  qe_engine *engine;

  g_source_set_priority (source, G_PRIORITY_DEFAULT_IDLE);
  g_source_set_static_name (source, "quire engine wakeup");
  g_source_set_callback (source, wake_cb, self, NULL);
  o.wakeup = wake;
  o.wakeup_user = source;
  o.replaces = self->engine;

  if (self->engine != NULL)
    g_signal_emit (self, signals[ENGINE_LEAVING], 0);
  engine = qe_engine_new (&o, error);
  if (engine == NULL)
    {
      g_source_unref (source);
      g_signal_emit (self, signals[STATUS_CHANGED], 0);
      return FALSE;
    }

  if (self->engine != NULL)
    {
      g_source_destroy (self->wake);
      g_ptr_array_add (self->old_wakes, self->wake);
      forget_engine (self);
    }

  self->engine = engine;
  self->wake = source;
  keep_options (self, options);
  g_source_attach (source, NULL);
  wake (source);
  g_signal_emit (self, signals[SESSIONS_LOST], 0);
  g_signal_emit (self, signals[STATUS_CHANGED], 0);
  self->trying = TRUE;
  if (self->model_dir != NULL)
    qe_engine_load (self->engine, self->model_dir);

  return TRUE;
}

void
quire_engine_client_load (QuireEngineClient *self, const char *dir)
{
  char *copy = g_strdup (dir);

  g_free (self->model_dir);
  self->model_dir = copy;
  if (self->engine == NULL)
    return;
  g_signal_emit (self, signals[SESSIONS_LOST], 0);
  self->trying = TRUE;
  qe_engine_load (self->engine, copy);
  wake (self->wake);
}

void
quire_engine_client_unload (QuireEngineClient *self)
{
  g_clear_pointer (&self->model_dir, g_free);
  if (self->engine == NULL)
    return;
  g_signal_emit (self, signals[SESSIONS_LOST], 0);
  qe_engine_unload (self->engine);
  /* It is given up at once, though the engine's thread may be busy with a load for a while yet. */
  wake (self->wake);
}

void
quire_engine_client_set_cache (QuireEngineClient *self, guint64 bytes)
{
  if (self->engine != NULL)
    qe_engine_set_kv_bytes (self->engine, bytes);
}

void
quire_engine_client_recover (QuireEngineClient *self)
{
  if (self->engine == NULL)
    return;
  self->trying = TRUE;
  qe_engine_recover (self->engine);
  wake (self->wake);
}

void
quire_engine_client_release (QuireEngineClient *self, const char *why)
{
  if (!quire_engine_client_is_ready (self))
    return;
  g_free (self->release_reason);
  self->release_reason = g_strdup (why);
  qe_engine_release (self->engine);
  wake (self->wake);
}

const char *
quire_engine_client_get_release_reason (QuireEngineClient *self)
{
  return self->status.state == QE_ENGINE_RELEASED ? self->release_reason : NULL;
}

void
quire_engine_client_check (QuireEngineClient *self)
{
  if (self->engine != NULL)
    qe_engine_check (self->engine);
}

gint64
quire_engine_client_get_last_use (QuireEngineClient *self)
{
  return self->last_use_us;
}

guint64
quire_engine_client_get_device_bytes (QuireEngineClient *self)
{
  const qe_snapshot *snapshot = self->snapshot;

  if (snapshot == NULL || snapshot->device.memory_total == 0)
    return 0;
  return snapshot->device.weights + snapshot->device.workspace
         + snapshot->tiers[QE_TIER_GPU].bytes_reserved;
}

static void
use (QuireEngineClient *self)
{
  self->last_use_us = g_get_monotonic_time ();
}

const char *
quire_engine_client_get_model_dir (QuireEngineClient *self)
{
  return self->model_dir;
}

qe_engine *
quire_engine_client_get_engine (QuireEngineClient *self)
{
  return self->engine;
}

const qe_engine_status *
quire_engine_client_get_status (QuireEngineClient *self)
{
  return &self->status;
}

const qe_snapshot *
quire_engine_client_get_snapshot (QuireEngineClient *self)
{
  return self->snapshot;
}

const qe_session_view *
quire_engine_client_find_session (QuireEngineClient *self, qe_session_id session)
{
  if (self->snapshot == NULL || session == 0)
    return NULL;
  for (guint i = 0; i < self->snapshot->n_sessions; i++)
    if (self->snapshot->sessions[i].id == session)
      return &self->snapshot->sessions[i];
  return NULL;
}

gboolean
quire_engine_client_is_ready (QuireEngineClient *self)
{
  return self->status.state == QE_ENGINE_READY && self->status.model != NULL;
}

/* ---- Sessions and requests ---- */

static gboolean
need_engine (QuireEngineClient *self, GError **error)
{
  if (self->engine != NULL)
    return TRUE;
  g_set_error_literal (error, QE_ERROR, QE_ERROR_FAILED, "The engine is not running.");
  return FALSE;
}

qe_session_id
quire_engine_client_open_session (QuireEngineClient *self, const qe_session_options *options,
                                  GError **error)
{
  return need_engine (self, error) ? qe_engine_open_session_with (self->engine, options, error) : 0;
}

gboolean
quire_engine_client_set_session_cache (QuireEngineClient *self, qe_session_id session,
                                       const qe_cache_config *config, GError **error)
{
  return need_engine (self, error) && qe_engine_set_cache (self->engine, session, config, error);
}

void
quire_engine_client_prefetch (QuireEngineClient *self, qe_session_id session)
{
  use (self);
  if (self->engine != NULL && session != 0)
    qe_engine_prefetch_session (self->engine, session);
}

void
quire_engine_client_delete_files (QuireEngineClient *self, const char *disk_key)
{
  if (self->engine != NULL)
    qe_engine_delete_session_files (self->engine, disk_key);
}

void
quire_engine_client_close_session (QuireEngineClient *self, qe_session_id session)
{
  if (self->engine != NULL && session != 0)
    qe_engine_close_session (self->engine, session);
}

qe_session_id
quire_engine_client_fork_session (QuireEngineClient *self, qe_session_id parent,
                                  guint keep_messages, GError **error)
{
  return need_engine (self, error)
             ? qe_engine_fork_session (self->engine, parent, keep_messages, error)
             : 0;
}

qe_request *
quire_engine_client_generate (QuireEngineClient *self, qe_generate_params *params, GError **error)
{
  g_signal_emit (self, signals[TURN_ASKED], 0);
  return quire_engine_client_generate_aside (self, params, error);
}

qe_request *
quire_engine_client_generate_aside (QuireEngineClient *self, qe_generate_params *params,
                                    GError **error)
{
  if (!need_engine (self, error))
    return NULL;
  use (self);
  params->wakeup = wake;
  params->wakeup_user = self->wake;
  return qe_engine_generate (self->engine, params, error);
}

qe_tokenizer *
quire_engine_client_dup_tokenizer (QuireEngineClient *self)
{
  return self->engine != NULL ? qe_engine_dup_tokenizer (self->engine) : NULL;
}

/* ---- Work on threads ---- */

typedef struct
{
  qe_tokenizer *tokenizer;
  char **texts;
} CountJob;

static void
count_job_free (gpointer data)
{
  CountJob *job = data;

  qe_tokenizer_unref (job->tokenizer);
  g_strfreev (job->texts);
  g_free (job);
}

static void
count_thread (GTask *task, gpointer source, gpointer data, GCancellable *cancellable)
{
  CountJob *job = data;
  g_autoptr (GArray) ids = g_array_new (FALSE, FALSE, sizeof (uint32_t));
  g_autoptr (GArray) counts = g_array_new (FALSE, FALSE, sizeof (guint));
  GError *error = NULL;

  for (guint i = 0; job->texts[i] != NULL; i++)
    {
      if (g_task_return_error_if_cancelled (task))
        return;
      g_array_set_size (ids, 0);
      if (!qe_tokenizer_encode (job->tokenizer, job->texts[i], strlen (job->texts[i]),
                                QE_ENCODE_PLAIN, ids, &error))
        {
          g_task_return_error (task, error);
          return;
        }
      g_array_append_val (counts, ids->len);
    }
  g_task_return_pointer (task, g_steal_pointer (&counts), (GDestroyNotify)g_array_unref);
}

void
quire_engine_client_count_list_async (QuireEngineClient *self, const char *const *texts,
                                      GCancellable *cancellable, GAsyncReadyCallback callback,
                                      gpointer user_data)
{
  g_autoptr (GTask) task = g_task_new (self, cancellable, callback, user_data);
  qe_tokenizer *tokenizer = self->engine != NULL ? qe_engine_dup_tokenizer (self->engine) : NULL;
  CountJob *job;

  use (self); /* somebody writes */
  if (tokenizer == NULL)
    {
      g_task_return_new_error (task, QE_ERROR, QE_ERROR_FAILED, "No model is loaded.");
      return;
    }
  job = g_new (CountJob, 1);
  job->tokenizer = tokenizer;
  job->texts = g_strdupv ((char **)texts);
  g_task_set_task_data (task, job, count_job_free);
  g_task_run_in_thread (task, count_thread);
}

GArray *
quire_engine_client_count_list_finish (QuireEngineClient *self, GAsyncResult *result,
                                       GError **error)
{
  return g_task_propagate_pointer (G_TASK (result), error);
}

void
quire_engine_client_count_async (QuireEngineClient *self, const char *text,
                                 GCancellable *cancellable, GAsyncReadyCallback callback,
                                 gpointer user_data)
{
  const char *const texts[] = { text, NULL };

  quire_engine_client_count_list_async (self, texts, cancellable, callback, user_data);
}

gssize
quire_engine_client_count_finish (QuireEngineClient *self, GAsyncResult *result, GError **error)
{
  g_autoptr (GArray) counts = quire_engine_client_count_list_finish (self, result, error);

  return counts != NULL ? (gssize)g_array_index (counts, guint, 0) : -1;
}

static void
read_info_thread (GTask *task, gpointer source, gpointer data, GCancellable *cancellable)
{
  GError *error = NULL;
  qe_model_info *info = qe_model_info_new (data, &error);

  if (info == NULL)
    g_task_return_error (task, error);
  else
    g_task_return_pointer (task, info, (GDestroyNotify)qe_model_info_free);
}

void
quire_model_info_read_async (const char *dir, GCancellable *cancellable,
                             GAsyncReadyCallback callback, gpointer user_data)
{
  g_autoptr (GTask) task = g_task_new (NULL, cancellable, callback, user_data);

  g_task_set_task_data (task, g_strdup (dir), g_free);
  g_task_run_in_thread (task, read_info_thread);
}

qe_model_info *
quire_model_info_read_finish (GAsyncResult *result, GError **error)
{
  return g_task_propagate_pointer (G_TASK (result), error);
}

/* ---- The machine ---- */

typedef struct
{
  char *dir, *backend, *device, *disk_dir;
  qe_engine_options options;
} MachineQuestion;

static void
machine_question_free (gpointer data)
{
  MachineQuestion *question = data;

  g_free (question->dir);
  g_free (question->backend);
  g_free (question->device);
  g_free (question->disk_dir);
  g_free (question);
}

void
quire_machine_free (QuireMachine *machine)
{
  g_clear_pointer (&machine->devices, g_ptr_array_unref);
  g_clear_pointer (&machine->plan, qe_memory_plan_free);
  g_free (machine);
}

static void
read_machine_thread (GTask *task, gpointer source, gpointer data, GCancellable *cancellable)
{
  const MachineQuestion *question = data;
  QuireMachine *machine = g_new0 (QuireMachine, 1);

  machine->devices = qe_list_devices ();
  machine->plan = qe_plan_memory (&question->options, question->dir, NULL);
  g_task_return_pointer (task, machine, (GDestroyNotify)quire_machine_free);
}

void
quire_machine_read_async (const char *dir, const qe_engine_options *options,
                          GCancellable *cancellable, GAsyncReadyCallback callback,
                          gpointer user_data)
{
  g_autoptr (GTask) task = g_task_new (NULL, cancellable, callback, user_data);
  MachineQuestion *question = g_new0 (MachineQuestion, 1);

  question->dir = g_strdup (dir);
  question->backend = g_strdup (options->backend);
  question->device = g_strdup (options->device);
  question->options = *options;
  question->options.backend = question->backend;
  question->options.device = question->device;
  question->options.disk_dir = question->disk_dir = g_strdup (options->disk_dir);
  g_task_set_task_data (task, question, machine_question_free);
  g_task_run_in_thread (task, read_machine_thread);
}

QuireMachine *
quire_machine_read_finish (GAsyncResult *result, GError **error)
{
  return g_task_propagate_pointer (G_TASK (result), error);
}

/* ---- Object ---- */

static void
quire_engine_client_finalize (GObject *object)
{
  QuireEngineClient *self = QUIRE_ENGINE_CLIENT (object);

  if (self->wake != NULL)
    g_source_destroy (self->wake);
  qe_engine_free (self->engine);
  g_clear_pointer (&self->wake, g_source_unref);
  g_free (self->lost_device);
  g_clear_pointer (&self->old_wakes, g_ptr_array_unref);
  forget_engine (self);
  forget_plan (self);
  g_free (self->backend);
  g_free (self->device);
  g_free (self->disk_dir);
  g_free (self->release_reason);
  g_free (self->model_dir);
  G_OBJECT_CLASS (quire_engine_client_parent_class)->finalize (object);
}

static void
quire_engine_client_class_init (QuireEngineClientClass *klass)
{
  static const char *names[N_SIGNALS] = { "status-changed", "snapshot-changed", "news",
                                          "sessions-lost",  "turn-asked",       "engine-leaving" };

  G_OBJECT_CLASS (klass)->finalize = quire_engine_client_finalize;
  for (int i = 0; i < N_SIGNALS; i++)
    signals[i] = g_signal_new (names[i], G_TYPE_FROM_CLASS (klass), G_SIGNAL_RUN_LAST, 0, NULL,
                               NULL, NULL, G_TYPE_NONE, 0);
}

static void
quire_engine_client_init (QuireEngineClient *self)
{
  self->old_wakes = g_ptr_array_new_with_free_func ((GDestroyNotify)g_source_unref);
}

QuireEngineClient *
quire_engine_client_new (void)
{
  return g_object_new (QUIRE_TYPE_ENGINE_CLIENT, NULL);
}
