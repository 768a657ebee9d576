/* quire-model-list.h: the model folders that the user has shown to Quire, and what each of them is. No GTK. Main thread
 * only; folders are read on worker threads. */
#pragma once
#include "app/quire-engine-client.h"
#include "app/quire-model-files.h"

G_BEGIN_DECLS

#define QUIRE_TYPE_MODEL_ITEM (quire_model_item_get_type ())
G_DECLARE_FINAL_TYPE (QuireModelItem, quire_model_item, QUIRE, MODEL_ITEM, GObject)

/* Signal: changed. */
const char *quire_model_item_get_dir (QuireModelItem *self);
/* NULL while it is read for the first time. Borrowed until the next change. */
const QuireModelFacts *quire_model_item_get_facts (QuireModelItem *self);
/* The model that comes with the program cannot be removed from the list. */
gboolean quire_model_item_is_shipped (QuireModelItem *self);

#define QUIRE_TYPE_MODEL_LIST (quire_model_list_get_type ())
G_DECLARE_FINAL_TYPE (QuireModelList, quire_model_list, QUIRE, MODEL_LIST, GObject)

/* A GListModel of QuireModelItem: the shipped model, the one in use, and the folders of the setting model-folders. Folders
 * are watched: one that changes is read again.
 * Signal: added (guint n, const char *folder): the end of quire_model_list_add(); 0: it holds no model. */
QuireModelList *quire_model_list_new (QuireEngineClient *client);
/* Looks for models in @folder and below it, and lists them from now on. */
void quire_model_list_add (QuireModelList *self, GFile *folder);
/* Takes it off the list; its files stay. */
void quire_model_list_remove (QuireModelList *self, QuireModelItem *item);
/* Reads all folders again: the limits have changed. */
void quire_model_list_refresh (QuireModelList *self);
/* Has @dir listed from now on. */
void quire_model_list_remember (const char *dir);

G_END_DECLS
