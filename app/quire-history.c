/* quire-history.c: see quire-history.h.
 *
 * Invariants
 * 1. The thread alone touches the database. A job is a GTask whose data says what to do; jobs are done in the order in
 *    which they were queued, so a later save never loses to an earlier one.
 * 2. Jobs hold copies: what the main thread changes meanwhile is the next job's.
 * 3. The list in memory is what is shown; a write that fails changes "trouble", not the list. */
#include "app/quire-history.h"

#include <glib/gi18n.h>

typedef enum
{
  JOB_OPEN,
  JOB_SAVE,
  JOB_ERASE,
  JOB_LOAD,
  JOB_SEARCH,
  JOB_PRESETS,
  JOB_QUIT,
} JobKind;

typedef struct
{
  JobKind kind;
  char *text;            /* path, id or query */
  QuireStoredChat *chat; /* SAVE: or NULL */
  GPtrArray *messages;   /* SAVE: or NULL. PRESETS: those */
} Job;

struct _QuireHistory
{
  GObject parent_instance;

  GListStore *items;
  GPtrArray *presets;
  GHashTable *by_id; /* id: item, both borrowed from the list */
  GAsyncQueue *queue;
  GThread *thread;
  gboolean open;
  gboolean write_failed; /* the last write did; trouble says so */
  char *trouble;
};

G_DEFINE_FINAL_TYPE (QuireHistory, quire_history, G_TYPE_OBJECT)

enum
{
  OPENED,
  TROUBLE,
  PRESETS,
  N_SIGNALS
};
static guint signals[N_SIGNALS];

/* What opening gives to the main thread. */
typedef struct
{
  QuireHistoryOpening opening;
  GPtrArray *chats, *presets;
} Opened;

static void
opened_free (gpointer data)
{
  Opened *opened = data;

  quire_history_opening_clear (&opened->opening);
  g_clear_pointer (&opened->chats, g_ptr_array_unref);
  g_clear_pointer (&opened->presets, g_ptr_array_unref);
  g_free (opened);
}

static void
job_free (gpointer data)
{
  Job *job = data;

  g_free (job->text);
  g_clear_pointer (&job->chat, quire_stored_chat_free);
  g_clear_pointer (&job->messages, g_ptr_array_unref);
  g_free (job);
}

/* ---- The thread ---- */

static void
open_thread (QuireHistoryDb **db, const Job *job, GTask *task)
{
  Opened *opened = g_new0 (Opened, 1);
  GError *error = NULL;

  *db = quire_history_db_open (job->text, &opened->opening, &error);
  if (*db != NULL)
    {
      opened->chats = quire_history_db_list (*db, NULL);
      opened->presets = quire_history_db_list_presets (*db);
    }
  if (*db != NULL)
    g_task_return_pointer (task, opened, opened_free);
  else
    {
      opened_free (opened);
      g_task_return_error (task, error);
    }
}

static void
return_boolean (GTask *task, gboolean ok, GError *error)
{
  if (ok)
    g_task_return_boolean (task, TRUE);
  else
    g_task_return_error (task, error);
}

static void
return_array (GTask *task, GPtrArray *array, GError *error)
{
  if (array != NULL && error == NULL)
    g_task_return_pointer (task, array, (GDestroyNotify)g_ptr_array_unref);
  else if (array != NULL)
    {
      /* What could be read is worth more than the reason why the rest could not. */
      g_error_free (error);
      g_task_return_pointer (task, array, (GDestroyNotify)g_ptr_array_unref);
    }
  else
    g_task_return_error (task, error);
}

static void
do_job (QuireHistoryDb **db, const Job *job, GTask *task)
{
  GError *error = NULL;

  if (job->kind == JOB_OPEN)
    {
      open_thread (db, job, task);
      return;
    }
  if (*db == NULL)
    {
      g_task_return_new_error (task, QUIRE_HISTORY_ERROR, QUIRE_HISTORY_ERROR_FAILED,
                               "The history is not open");
      return;
    }
  switch (job->kind)
    {
      case JOB_SAVE: {
        gboolean ok = quire_history_db_save (*db, job->text, job->chat, job->messages, &error);

        return_boolean (task, ok, error);
        break;
      }
      case JOB_ERASE: {
        gboolean ok = quire_history_db_erase (*db, job->text, &error);

        return_boolean (task, ok, error);
        break;
      }
      case JOB_PRESETS: {
        gboolean ok = quire_history_db_save_presets (*db, job->messages, &error);

        return_boolean (task, ok, error);
        break;
      }
    case JOB_LOAD:
      case JOB_SEARCH: {
        GPtrArray *array;

        if (g_task_return_error_if_cancelled (task))
          break;
        array = job->kind == JOB_LOAD ? quire_history_db_load (*db, job->text, &error)
                                      : quire_history_db_search (*db, job->text, &error);
        return_array (task, array, error);
        break;
      }
    case JOB_OPEN:
    case JOB_QUIT:
    default:
      g_assert_not_reached ();
    }
}

static gpointer
history_thread (gpointer data)
{
  g_autoptr (GAsyncQueue) queue = data;
  QuireHistoryDb *db = NULL;

  for (;;)
    {
      g_autoptr (GTask) task = g_async_queue_pop (queue);
      const Job *job = g_task_get_task_data (task);

      if (job->kind == JOB_QUIT)
        {
          g_task_return_boolean (task, TRUE);
          break;
        }
      do_job (&db, job, task);
    }
  quire_history_db_free (db);
  return NULL;
}

static void
push (QuireHistory *self, Job *job, GCancellable *cancellable, GAsyncReadyCallback callback,
      gpointer user_data)
{
  /* Without a source object: a job that nobody waits for keeps nothing alive. */
  GTask *task = g_task_new (NULL, cancellable, callback, user_data);

  g_task_set_task_data (task, job, job_free);
  if (self->thread != NULL)
    g_async_queue_push (self->queue, task);
  else
    {
      g_task_return_new_error (task, QUIRE_HISTORY_ERROR, QUIRE_HISTORY_ERROR_FAILED,
                               "The history is closed");
      g_object_unref (task);
    }
}

static Job *
job_new (JobKind kind, const char *text)
{
  Job *job = g_new0 (Job, 1);

  job->kind = kind;
  job->text = g_strdup (text);
  return job;
}

/* ---- Trouble ---- */

static void
set_trouble (QuireHistory *self, char *trouble)
{
  if (g_strcmp0 (trouble, self->trouble) == 0)
    {
      g_free (trouble);
      return;
    }
  g_free (self->trouble);
  self->trouble = trouble;
  g_signal_emit (self, signals[TROUBLE], 0);
}

static char *
describe (const GError *error)
{
  const char *why = error->message;

  if (g_error_matches (error, QUIRE_HISTORY_ERROR, QUIRE_HISTORY_ERROR_FULL))
    why = _ ("there is no room left on the disk");
  else if (g_error_matches (error, QUIRE_HISTORY_ERROR, QUIRE_HISTORY_ERROR_READ_ONLY))
    why = _ ("their folder cannot be written to");
  /* Translators: then a reason, "there is no room left on the disk". */
  return g_strdup_printf (_ ("Chats are not being saved: %s."), why);
}

const char *
quire_history_get_trouble (QuireHistory *self)
{
  return self->trouble;
}

void
quire_history_clear_trouble (QuireHistory *self)
{
  set_trouble (self, NULL);
}

/* ---- Opening ---- */

static void
add_item (QuireHistory *self, QuireHistoryItem *item)
{
  const char *id = quire_history_item_get (item)->id;

  if (!g_hash_table_contains (self->by_id, id))
    {
      g_hash_table_insert (self->by_id, (gpointer)id, item);
      g_list_store_append (self->items, item);
    }
}

static void
purge_trash (QuireHistory *self)
{
  gint64 before = g_get_real_time () - QUIRE_TRASH_DAYS * G_TIME_SPAN_DAY;

  for (guint i = g_list_model_get_n_items (G_LIST_MODEL (self->items)); i-- > 0;)
    {
      g_autoptr (QuireHistoryItem) item = g_list_model_get_item (G_LIST_MODEL (self->items), i);
      gint64 deleted = quire_history_item_get (item)->deleted;

      if (deleted != 0 && deleted < before)
        quire_history_erase (self, item);
    }
}

static void
opened_cb (GObject *source, GAsyncResult *result, gpointer user_data)
{
  g_autoptr (QuireHistory) self = user_data;
  g_autoptr (GError) error = NULL;
  Opened *opened = g_task_propagate_pointer (G_TASK (result), &error);

  self->open = TRUE;
  if (opened != NULL)
    {
      for (guint i = 0; i < opened->chats->len; i++)
        {
          g_autoptr (QuireHistoryItem) item = quire_history_item_new ();
          QuireStoredChat *chat = quire_history_item_edit (item);
          QuireStoredChat *stored = g_ptr_array_index (opened->chats, i);

          quire_stored_chat_clear (chat);
          *chat = *stored;
          *stored = (QuireStoredChat){ 0 };
          add_item (self, item);
        }
      g_ptr_array_unref (self->presets);
      self->presets = g_steal_pointer (&opened->presets);
      if (opened->opening.read_only)
        set_trouble (self,
                     g_strdup (_ ("These chats were written by a newer version of Quire. They "
                                  "can be read; nothing is saved.")));
      else if (opened->opening.moved_to != NULL)
        set_trouble (self,
                     g_strdup_printf (_ ("The chats could not be read: their file is damaged. It "
                                         "was kept as %s, and a new one was begun."),
                                      opened->opening.moved_to));
      else
        purge_trash (self);
      opened_free (opened);
    }
  else
    set_trouble (self, describe (error));
  g_signal_emit (self, signals[OPENED], 0);
}

gboolean
quire_history_is_open (QuireHistory *self)
{
  return self->open;
}

GListModel *
quire_history_get_items (QuireHistory *self)
{
  return G_LIST_MODEL (self->items);
}

QuireHistoryItem *
quire_history_find (QuireHistory *self, const char *id)
{
  return id != NULL ? g_hash_table_lookup (self->by_id, id) : NULL;
}

/* ---- Writing ---- */

typedef struct
{
  QuireHistory *history;
  GAsyncReadyCallback callback;
  gpointer user_data;
} Written;

/* Every write ends here, so that trouble shows however it came, and goes with the first write that works. */
static void
written_cb (GObject *source, GAsyncResult *result, gpointer user_data)
{
  Written *written = user_data;
  GTask *task = G_TASK (result);
  g_autoptr (GError) error = NULL;
  gboolean ok = g_task_propagate_boolean (task, &error);

  if (!ok && written->history->thread != NULL && written->history->trouble == NULL)
    {
      written->history->write_failed = TRUE;
      set_trouble (written->history, describe (error));
    }
  else if (ok && written->history->write_failed)
    {
      written->history->write_failed = FALSE;
      set_trouble (written->history, NULL);
    }
  if (written->callback != NULL)
    {
      g_autoptr (GTask) outer = g_task_new (NULL, NULL, written->callback, written->user_data);

      return_boolean (outer, ok, g_steal_pointer (&error));
    }
  g_object_unref (written->history);
  g_free (written);
}

static void
push_write (QuireHistory *self, Job *job, GAsyncReadyCallback callback, gpointer user_data)
{
  Written *written = g_new (Written, 1);

  *written = (Written){ g_object_ref (self), callback, user_data };
  push (self, job, NULL, written_cb, written);
}

void
quire_history_save (QuireHistory *self, QuireHistoryItem *item, GPtrArray *messages,
                    GAsyncReadyCallback callback, gpointer user_data)
{
  const QuireStoredChat *chat = quire_history_item_get (item);
  Job *job = job_new (JOB_SAVE, chat->id);

  add_item (self, item);
  job->chat = quire_stored_chat_copy (chat);
  job->messages = messages;
  push_write (self, job, callback, user_data);
}

gboolean
quire_history_save_finish (GAsyncResult *result, GError **error)
{
  return g_task_propagate_boolean (G_TASK (result), error);
}

void
quire_history_save_message (QuireHistory *self, const char *id, QuireStoredMessage *message)
{
  Job *job = job_new (JOB_SAVE, id);

  job->messages = g_ptr_array_new_with_free_func ((GDestroyNotify)quire_stored_message_free);
  g_ptr_array_add (job->messages, message);
  push_write (self, job, NULL, NULL);
}

void
quire_history_set_deleted (QuireHistory *self, QuireHistoryItem *item, gboolean deleted)
{
  QuireStoredChat *chat = quire_history_item_edit (item);

  chat->deleted = deleted ? g_get_real_time () : 0;
  chat->tab = -1;
  chat->front = FALSE;
  quire_history_item_changed (item);
  quire_history_save (self, item, NULL, NULL, NULL);
}

void
quire_history_erase (QuireHistory *self, QuireHistoryItem *item)
{
  const char *id = quire_history_item_get (item)->id;
  guint position;

  push_write (self, job_new (JOB_ERASE, id), NULL, NULL);
  g_hash_table_remove (self->by_id, id);
  if (g_list_store_find (self->items, item, &position))
    g_list_store_remove (self->items, position);
}

GPtrArray *
quire_history_get_presets (QuireHistory *self)
{
  return self->presets;
}

void
quire_history_set_presets (QuireHistory *self, GPtrArray *presets)
{
  GPtrArray *copy = quire_presets_copy (presets);
  Job *job = job_new (JOB_PRESETS, NULL);

  g_ptr_array_unref (self->presets);
  self->presets = copy;
  job->messages = quire_presets_copy (presets);
  push_write (self, job, NULL, NULL);
  g_signal_emit (self, signals[PRESETS], 0);
}

/* ---- Reading ---- */

void
quire_history_load_async (QuireHistory *self, const char *id, GCancellable *cancellable,
                          GAsyncReadyCallback callback, gpointer user_data)
{
  push (self, job_new (JOB_LOAD, id), cancellable, callback, user_data);
}

GPtrArray *
quire_history_load_finish (GAsyncResult *result, GError **error)
{
  return g_task_propagate_pointer (G_TASK (result), error);
}

void
quire_history_search_async (QuireHistory *self, const char *query, GCancellable *cancellable,
                            GAsyncReadyCallback callback, gpointer user_data)
{
  push (self, job_new (JOB_SEARCH, query), cancellable, callback, user_data);
}

GPtrArray *
quire_history_search_finish (GAsyncResult *result, GError **error)
{
  return g_task_propagate_pointer (G_TASK (result), error);
}

/* ---- Object ---- */

void
quire_history_close (QuireHistory *self)
{
  GTask *task;

  if (self->thread == NULL)
    return;
  task = g_task_new (NULL, NULL, NULL, NULL);
  g_task_set_task_data (task, job_new (JOB_QUIT, NULL), job_free);
  g_async_queue_push (self->queue, task);
  g_thread_join (g_steal_pointer (&self->thread));
}

static void
quire_history_finalize (GObject *object)
{
  QuireHistory *self = QUIRE_HISTORY (object);

  quire_history_close (self);
  g_async_queue_unref (self->queue);
  g_hash_table_unref (self->by_id);
  g_object_unref (self->items);
  g_ptr_array_unref (self->presets);
  g_free (self->trouble);
  G_OBJECT_CLASS (quire_history_parent_class)->finalize (object);
}

static void
quire_history_class_init (QuireHistoryClass *klass)
{
  static const char *names[N_SIGNALS] = { "opened", "trouble", "presets" };

  G_OBJECT_CLASS (klass)->finalize = quire_history_finalize;
  for (int i = 0; i < N_SIGNALS; i++)
    signals[i] = g_signal_new (names[i], G_TYPE_FROM_CLASS (klass), G_SIGNAL_RUN_LAST, 0, NULL,
                               NULL, NULL, G_TYPE_NONE, 0);
}

static void
quire_history_init (QuireHistory *self)
{
  self->items = g_list_store_new (QUIRE_TYPE_HISTORY_ITEM);
  self->presets = quire_presets_new ();
  self->by_id = g_hash_table_new (g_str_hash, g_str_equal);
  self->queue = g_async_queue_new_full (g_object_unref);
}

QuireHistory *
quire_history_new (const char *path)
{
  QuireHistory *self = g_object_new (QUIRE_TYPE_HISTORY, NULL);

  self->thread = g_thread_new ("quire-history", history_thread, g_async_queue_ref (self->queue));
  push (self, job_new (JOB_OPEN, path), NULL, opened_cb, g_object_ref (self));
  return self;
}
