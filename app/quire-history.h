/* quire-history.h: all conversations: the list in memory, and a queue in front of the database. No GTK. Main thread only;
 * the database is read and written on a thread of its own, in the order of the calls, so nothing here waits for a disk. */
#pragma once
#include "app/quire-history-db.h"

G_BEGIN_DECLS

#define QUIRE_TYPE_HISTORY_ITEM (quire_history_item_get_type ())
G_DECLARE_FINAL_TYPE (QuireHistoryItem, quire_history_item, QUIRE, HISTORY_ITEM, GObject)

/* A conversation in the list. Signal changed: something a row shows has changed. */
QuireHistoryItem *quire_history_item_new (void);
const QuireStoredChat *quire_history_item_get (QuireHistoryItem *self);
/* For changes: then call quire_history_item_changed(), and save. */
QuireStoredChat *quire_history_item_edit (QuireHistoryItem *self);
void quire_history_item_changed (QuireHistoryItem *self);
/* FALSE for a lower source than the present title's. @title NULL or blank: back to none. */
gboolean quire_history_item_set_title (QuireHistoryItem *self, const char *title,
                                       QuireTitleSource source);
/* Marks of the row; they are not stored. */
gboolean quire_history_item_is_running (QuireHistoryItem *self);
void quire_history_item_set_running (QuireHistoryItem *self, gboolean running);
gboolean quire_history_item_is_unread (QuireHistoryItem *self);
void quire_history_item_set_unread (QuireHistoryItem *self, gboolean unread);

#define QUIRE_TYPE_HISTORY (quire_history_get_type ())
G_DECLARE_FINAL_TYPE (QuireHistory, quire_history, QUIRE, HISTORY, GObject)

/* Signals:
 *   opened   the list is there (or it is known that there is none)
 *   trouble  what quire_history_get_trouble() says has changed
 *   presets  what quire_history_get_presets() says has changed */

/* Trash older than this is erased when the history is opened. */
#define QUIRE_TRASH_DAYS 30

/* @path: of the database; opened on the thread. */
QuireHistory *quire_history_new (const char *path);
gboolean quire_history_is_open (QuireHistory *self);
/* A sentence for the user about why conversations are not kept, or where damaged ones went; NULL: all is well. */
const char *quire_history_get_trouble (QuireHistory *self);
/* The user has read it. */
void quire_history_clear_trouble (QuireHistory *self);
/* Items in no order, those in the trash too. Borrowed. */
GListModel *quire_history_get_items (QuireHistory *self);
QuireHistoryItem *quire_history_find (QuireHistory *self, const char *id);

/* (element-type QuirePreset), by name. Borrowed until the next change; empty before the history is open. */
GPtrArray *quire_history_get_presets (QuireHistory *self);
/* Saves a copy of @presets in the place of all. */
void quire_history_set_presets (QuireHistory *self, GPtrArray *presets);

/* Saves @item as it is now, which puts it in the list, and @messages (element-type QuireStoredMessage; taken, may be
 * NULL). @callback, which may be NULL, comes when they are on the disk or cannot be: see quire_history_save_finish(). */
void quire_history_save (QuireHistory *self, QuireHistoryItem *item, GPtrArray *messages,
                         GAsyncReadyCallback callback, gpointer user_data);
gboolean quire_history_save_finish (GAsyncResult *result, GError **error);
/* The text of one message again, as it grows. @message: taken. */
void quire_history_save_message (QuireHistory *self, const char *id, QuireStoredMessage *message);
void quire_history_load_async (QuireHistory *self, const char *id, GCancellable *cancellable,
                               GAsyncReadyCallback callback, gpointer user_data);
/* Returns: (element-type QuireStoredMessage) owned. */
GPtrArray *quire_history_load_finish (GAsyncResult *result, GError **error);
/* Ids of conversations with @query in a message. */
void quire_history_search_async (QuireHistory *self, const char *query, GCancellable *cancellable,
                                 GAsyncReadyCallback callback, gpointer user_data);
/* Returns: (element-type utf8) owned. */
GPtrArray *quire_history_search_finish (GAsyncResult *result, GError **error);

/* To the trash, and back. */
void quire_history_set_deleted (QuireHistory *self, QuireHistoryItem *item, gboolean deleted);
/* For good. */
void quire_history_erase (QuireHistory *self, QuireHistoryItem *item);

/* Waits until everything is written, and ends the thread. */
void quire_history_close (QuireHistory *self);

G_END_DECLS
