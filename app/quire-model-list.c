/* quire-model-list.c: see quire-model-list.h.
 *
 * Invariants
 * 1. Each folder is there once, by its canonical path; the shipped model comes first.
 * 2. An item has at most one reading under way; a change that comes meanwhile starts it anew.
 * 3. The setting holds what the user added, not the shipped model. */
#include "app/quire-model-list.h"

#include <string.h>

#include "app/quire-paths.h"
#include "app/quire-settings.h"

/* A copy writes in bursts: a folder is read again when it has been quiet so long. */
#define QUIET_MS 700

struct _QuireModelItem
{
  GObject parent_instance;

  QuireEngineClient *client;
  char *dir;
  gboolean shipped;
  QuireModelFacts *facts;
  GCancellable *reading;
  GFileMonitor *monitor;
  guint quiet_id;
};

G_DEFINE_FINAL_TYPE (QuireModelItem, quire_model_item, G_TYPE_OBJECT)

struct _QuireModelList
{
  GObject parent_instance;

  QuireEngineClient *client;
  GPtrArray *items; /* QuireModelItem */
  GCancellable *cancellable;
};

static guint changed_signal, added_signal;

/* ---- Reading one folder ---- */

typedef struct
{
  char *dir;
  QuireEngineSettings settings;
} Question;

static void
question_free (gpointer data)
{
  Question *question = data;

  g_free (question->dir);
  quire_engine_settings_clear (&question->settings);
  g_free (question);
}

static void
read_thread (GTask *task, gpointer source, gpointer data, GCancellable *cancellable)
{
  Question *question = data;

  if (!g_task_return_error_if_cancelled (task))
    g_task_return_pointer (task,
                           quire_model_facts_read (question->dir, &question->settings.options),
                           (GDestroyNotify)quire_model_facts_free);
}

static void
read_cb (GObject *source, GAsyncResult *result, gpointer user_data)
{
  QuireModelItem *self = QUIRE_MODEL_ITEM (source);
  QuireModelFacts *facts = g_task_propagate_pointer (G_TASK (result), NULL);

  if (facts == NULL) /* cancelled */
    return;
  quire_model_facts_free (self->facts);
  self->facts = facts;
  g_clear_object (&self->reading);
  g_signal_emit (self, changed_signal, 0);
}

static void
cancel_reading (QuireModelItem *self)
{
  g_cancellable_cancel (self->reading);
  g_clear_object (&self->reading);
  g_clear_handle_id (&self->quiet_id, g_source_remove);
}

static void
item_read (QuireModelItem *self)
{
  Question *question = g_new0 (Question, 1);
  g_autoptr (GTask) task = NULL;

  cancel_reading (self);
  self->reading = g_cancellable_new ();
  question->dir = g_strdup (self->dir);
  quire_settings_get_engine (NULL, &question->settings);
  question->settings.options.memory_returned = quire_engine_client_get_device_bytes (self->client);
  task = g_task_new (self, self->reading, read_cb, NULL);
  g_task_set_task_data (task, question, question_free);
  g_task_run_in_thread (task, read_thread);
}

static gboolean
quiet_cb (gpointer user_data)
{
  QuireModelItem *self = user_data;

  self->quiet_id = 0;
  item_read (self);
  return G_SOURCE_REMOVE;
}

static void
folder_changed_cb (QuireModelItem *self)
{
  g_clear_handle_id (&self->quiet_id, g_source_remove);
  self->quiet_id = g_timeout_add (QUIET_MS, quiet_cb, self);
}

const char *
quire_model_item_get_dir (QuireModelItem *self)
{
  return self->dir;
}

const QuireModelFacts *
quire_model_item_get_facts (QuireModelItem *self)
{
  return self->facts;
}

gboolean
quire_model_item_is_shipped (QuireModelItem *self)
{
  return self->shipped;
}

static void
quire_model_item_dispose (GObject *object)
{
  QuireModelItem *self = QUIRE_MODEL_ITEM (object);

  cancel_reading (self);
  if (self->monitor != NULL)
    g_file_monitor_cancel (self->monitor);
  g_clear_object (&self->monitor);
  g_clear_object (&self->client);
  G_OBJECT_CLASS (quire_model_item_parent_class)->dispose (object);
}

static void
quire_model_item_finalize (GObject *object)
{
  QuireModelItem *self = QUIRE_MODEL_ITEM (object);

  g_free (self->dir);
  quire_model_facts_free (self->facts);
  G_OBJECT_CLASS (quire_model_item_parent_class)->finalize (object);
}

static void
quire_model_item_class_init (QuireModelItemClass *klass)
{
  G_OBJECT_CLASS (klass)->dispose = quire_model_item_dispose;
  G_OBJECT_CLASS (klass)->finalize = quire_model_item_finalize;
  changed_signal = g_signal_new ("changed", G_TYPE_FROM_CLASS (klass), G_SIGNAL_RUN_LAST, 0, NULL,
                                 NULL, NULL, G_TYPE_NONE, 0);
}

static void
quire_model_item_init (QuireModelItem *self)
{
}

static QuireModelItem *
item_new (QuireEngineClient *client, const char *dir, gboolean shipped)
{
  QuireModelItem *self = g_object_new (QUIRE_TYPE_MODEL_ITEM, NULL);
  g_autoptr (GFile) file = g_file_new_for_path (dir);

  self->client = g_object_ref (client);
  self->dir = g_strdup (dir);
  self->shipped = shipped;
  self->monitor = g_file_monitor_directory (file, G_FILE_MONITOR_WATCH_MOVES, NULL, NULL);
  if (self->monitor != NULL)
    g_signal_connect_object (self->monitor, "changed", G_CALLBACK (folder_changed_cb), self,
                             G_CONNECT_SWAPPED);
  item_read (self);
  return self;
}

/* ---- The list ---- */

static GType
get_item_type (GListModel *model)
{
  return QUIRE_TYPE_MODEL_ITEM;
}

static guint
get_n_items (GListModel *model)
{
  return QUIRE_MODEL_LIST (model)->items->len;
}

static gpointer
get_item (GListModel *model, guint position)
{
  GPtrArray *items = QUIRE_MODEL_LIST (model)->items;

  return position < items->len ? g_object_ref (g_ptr_array_index (items, position)) : NULL;
}

static void
list_model_init (GListModelInterface *iface)
{
  iface->get_item_type = get_item_type;
  iface->get_n_items = get_n_items;
  iface->get_item = get_item;
}

G_DEFINE_FINAL_TYPE_WITH_CODE (QuireModelList, quire_model_list, G_TYPE_OBJECT,
                               G_IMPLEMENT_INTERFACE (G_TYPE_LIST_MODEL, list_model_init))

static char *
dup_shipped_dir (void)
{
  g_autofree char *data_dir = quire_dup_data_dir ();

  return g_build_filename (data_dir, "demo-model", NULL);
}

void
quire_model_list_remember (const char *dir)
{
  GSettings *settings = quire_settings_get_default ();
  g_auto (GStrv) folders = g_settings_get_strv (settings, "model-folders");
  g_autofree char *path = g_canonicalize_filename (dir, NULL);
  g_autoptr (GStrvBuilder) builder = g_strv_builder_new ();
  g_auto (GStrv) all = NULL;

  /* Settings hold UTF-8. */
  if (quire_model_is_shipped (path) || !g_utf8_validate (path, -1, NULL)
      || g_strv_contains ((const char *const *)folders, path))
    return;
  for (guint i = 0; folders[i] != NULL; i++)
    g_strv_builder_add (builder, folders[i]);
  g_strv_builder_add (builder, path);
  all = g_strv_builder_end (builder);
  g_settings_set_strv (settings, "model-folders", (const char *const *)all);
}

static void
forget (const char *dir)
{
  GSettings *settings = quire_settings_get_default ();
  g_auto (GStrv) folders = g_settings_get_strv (settings, "model-folders");
  g_autoptr (GStrvBuilder) builder = g_strv_builder_new ();
  g_auto (GStrv) left = NULL;

  for (guint i = 0; folders[i] != NULL; i++)
    if (strcmp (folders[i], dir) != 0)
      g_strv_builder_add (builder, folders[i]);
  left = g_strv_builder_end (builder);
  g_settings_set_strv (settings, "model-folders", (const char *const *)left);
}

/* FALSE: it is there already. */
static gboolean
add_item (QuireModelList *self, const char *dir)
{
  g_autofree char *path = g_canonicalize_filename (dir, NULL);

  for (guint i = 0; i < self->items->len; i++)
    if (strcmp (quire_model_item_get_dir (g_ptr_array_index (self->items, i)), path) == 0)
      return FALSE;
  g_ptr_array_add (self->items, item_new (self->client, path, quire_model_is_shipped (path)));
  g_list_model_items_changed (G_LIST_MODEL (self), self->items->len - 1, 0, 1);
  return TRUE;
}

static void
find_thread (GTask *task, gpointer source, gpointer data, GCancellable *cancellable)
{
  g_task_return_pointer (task, quire_model_folders_find (data), (GDestroyNotify)g_ptr_array_unref);
}

static void
found_cb (GObject *source, GAsyncResult *result, gpointer user_data)
{
  QuireModelList *self = QUIRE_MODEL_LIST (source);
  const char *folder = g_task_get_task_data (G_TASK (result));
  g_autoptr (GPtrArray) found = g_task_propagate_pointer (G_TASK (result), NULL);

  if (found == NULL) /* cancelled: the window is gone */
    return;
  for (guint i = 0; i < found->len; i++)
    {
      const char *dir = g_ptr_array_index (found, i);

      quire_model_list_remember (dir);
      add_item (self, dir);
    }
  g_signal_emit (self, added_signal, 0, found->len, folder);
}

void
quire_model_list_add (QuireModelList *self, GFile *folder)
{
  g_autofree char *path = g_file_get_path (folder);
  g_autoptr (GTask) task = NULL;

  if (path == NULL) /* on a server that nothing has mounted */
    {
      g_autofree char *uri = g_file_get_uri (folder);

      g_signal_emit (self, added_signal, 0, 0, uri);
      return;
    }
  /* A file of a model was meant: the folder that it lies in. */
  if (!g_file_test (path, G_FILE_TEST_IS_DIR))
    {
      char *parent = g_path_get_dirname (path);

      g_free (path);
      path = parent;
    }
  task = g_task_new (self, self->cancellable, found_cb, NULL);
  g_task_set_task_data (task, g_steal_pointer (&path), g_free);
  g_task_run_in_thread (task, find_thread);
}

void
quire_model_list_remove (QuireModelList *self, QuireModelItem *item)
{
  guint i;

  if (item->shipped || !g_ptr_array_find (self->items, item, &i))
    return;
  forget (item->dir);
  g_ptr_array_remove_index (self->items, i);
  g_list_model_items_changed (G_LIST_MODEL (self), i, 1, 0);
}

void
quire_model_list_refresh (QuireModelList *self)
{
  for (guint i = 0; i < self->items->len; i++)
    item_read (g_ptr_array_index (self->items, i));
}

static void
quire_model_list_dispose (GObject *object)
{
  QuireModelList *self = QUIRE_MODEL_LIST (object);

  g_cancellable_cancel (self->cancellable);
  g_ptr_array_set_size (self->items, 0);
  g_clear_object (&self->client);
  G_OBJECT_CLASS (quire_model_list_parent_class)->dispose (object);
}

static void
quire_model_list_finalize (GObject *object)
{
  QuireModelList *self = QUIRE_MODEL_LIST (object);

  g_ptr_array_unref (self->items);
  g_object_unref (self->cancellable);
  G_OBJECT_CLASS (quire_model_list_parent_class)->finalize (object);
}

static void
quire_model_list_class_init (QuireModelListClass *klass)
{
  G_OBJECT_CLASS (klass)->dispose = quire_model_list_dispose;
  G_OBJECT_CLASS (klass)->finalize = quire_model_list_finalize;
  added_signal = g_signal_new ("added", G_TYPE_FROM_CLASS (klass), G_SIGNAL_RUN_LAST, 0, NULL, NULL,
                               NULL, G_TYPE_NONE, 2, G_TYPE_UINT, G_TYPE_STRING);
}

static void
quire_model_list_init (QuireModelList *self)
{
  self->items = g_ptr_array_new_with_free_func (g_object_unref);
  self->cancellable = g_cancellable_new ();
}

QuireModelList *
quire_model_list_new (QuireEngineClient *client)
{
  QuireModelList *self = g_object_new (QUIRE_TYPE_MODEL_LIST, NULL);
  GSettings *settings = quire_settings_get_default ();
  g_auto (GStrv) folders = g_settings_get_strv (settings, "model-folders");
  g_autofree char *shipped = dup_shipped_dir ();
  g_autofree char *chosen = quire_settings_dup_model_dir ();
  const char *loaded = quire_engine_client_get_model_dir (client);

  self->client = g_object_ref (client);
  if (g_file_test (shipped, G_FILE_TEST_IS_DIR))
    add_item (self, shipped);
  add_item (self, chosen);
  if (loaded != NULL)
    add_item (self, loaded);
  for (guint i = 0; folders[i] != NULL; i++)
    add_item (self, folders[i]);
  return self;
}
