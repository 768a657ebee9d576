/* quire-history-db.h: the database of conversations: SQLite, its schema, what is read and written. No GTK. One thread at
 * a time; every call blocks, see quire-history.h for the queue in front of it.
 *
 * What is committed is on the disk: WAL with synchronous=FULL, so the log is synced before a write returns. */
#pragma once
#include <gio/gio.h>
#include "app/quire-preset.h"

G_BEGIN_DECLS

#define QUIRE_HISTORY_ERROR (quire_history_error_quark ())
GQuark quire_history_error_quark (void);
typedef enum
{
  QUIRE_HISTORY_ERROR_FAILED,
  QUIRE_HISTORY_ERROR_FULL,      /* no room on the disk */
  QUIRE_HISTORY_ERROR_READ_ONLY, /* the folder or the file cannot be written */
  QUIRE_HISTORY_ERROR_DAMAGED,
} QuireHistoryError;

/* The schema that this build writes, in user_version. */
#define QUIRE_HISTORY_VERSION 4

/* Who gave a title; a higher one wins. The values are stored. */
typedef enum
{
  QUIRE_TITLE_NONE,
  QUIRE_TITLE_WORDS, /* the first words of the first message */
  QUIRE_TITLE_MODEL,
  QUIRE_TITLE_USER,
} QuireTitleSource;

/* What an entry is. The values are stored. */
typedef enum
{
  QUIRE_KIND_CHAT,
  QUIRE_KIND_COMPARISON, /* read-only; its messages are quire_comparison_dup_messages()'s */
} QuireChatKind;

/* A conversation without its messages. Strings are owned and may be NULL, save id. Times: microseconds of the epoch. */
typedef struct
{
  char *id; /* also its name in the disk tier */
  char *title;
  QuireTitleSource title_source;
  char *model_name, *model_dir, *model_digest;
  int cache; /* QuireCacheChoice */
  QuireChatKind kind;
  char *system;
  char *sampling; /* JSON; NULL: the settings' */
  gint64 created, updated;
  gboolean pinned;
  gint64 deleted; /* when it went to the trash; 0: it is not there */
  int tab;        /* position of its open tab; -1: closed */
  gboolean front; /* of the open tabs, the one in front */
  char *draft;
  guint leaf; /* the last message of the branch that is shown; 0: none */
} QuireStoredChat;

QuireStoredChat *quire_stored_chat_copy (const QuireStoredChat *chat);
void quire_stored_chat_clear (QuireStoredChat *chat);
void quire_stored_chat_free (QuireStoredChat *chat);

/* A message: a node of the conversation's tree. */
typedef struct
{
  guint seq;    /* its number in the conversation, from 1 */
  guint parent; /* 0: the first message */
  int role;     /* qe_role */
  int state;    /* QuireReplyState */
  char *text;   /* owned; NUL-terminated, may hold NUL */
  gsize n_bytes;
  gint64 created;
  char *receipt; /* owned: JSON; NULL: none */
} QuireStoredMessage;

QuireStoredMessage *quire_stored_message_new (guint seq, guint parent, int role, int state,
                                              const char *text, gsize n_bytes);
void quire_stored_message_free (QuireStoredMessage *message);

typedef struct _QuireHistoryDb QuireHistoryDb;

typedef struct
{
  gboolean read_only; /* a newer version of Quire wrote it */
  int version;        /* of the file as it was found; 0: it was new */
  char *moved_to;     /* owned: a damaged database is there now; NULL: it was sound */
  char *backup;       /* owned: the copy made before a migration; NULL: none */
} QuireHistoryOpening;
void quire_history_opening_clear (QuireHistoryOpening *opening);

/* Opens or begins the database in @path (its folder is made with mode 0700, the file 0600), migrates it, moves a damaged
 * one aside. Replies that ran when the last process ended become interrupted ones. NULL with @error: nothing can be kept. */
QuireHistoryDb *quire_history_db_open (const char *path, QuireHistoryOpening *opening,
                                       GError **error);
void quire_history_db_free (QuireHistoryDb *db); /* NULL is fine */

/* Adds or replaces @chat and @messages (element-type QuireStoredMessage, may be NULL) in one transaction. With a NULL
 * @chat @id names it. */
gboolean quire_history_db_save (QuireHistoryDb *db, const char *id, const QuireStoredChat *chat,
                                GPtrArray *messages, GError **error);
/* Conversation and messages, for good. */
gboolean quire_history_db_erase (QuireHistoryDb *db, const char *id, GError **error);
/* What can be read; a damaged row is left out or mended. Returns: (element-type QuireStoredChat) owned. */
GPtrArray *quire_history_db_list (QuireHistoryDb *db, GError **error);
/* By number. A damaged value gets a default, a message whose parent is not there follows the one before it. Returns:
 * (element-type QuireStoredMessage) owned. */
GPtrArray *quire_history_db_load (QuireHistoryDb *db, const char *id, GError **error);
/* Conversations out of the trash with a message that holds every word of @query, upper and lower case alike. Returns:
 * (element-type utf8) ids, owned. */
GPtrArray *quire_history_db_search (QuireHistoryDb *db, const char *query, GError **error);
/* By name; what cannot be read is left out. Returns: (element-type QuirePreset) owned. */
GPtrArray *quire_history_db_list_presets (QuireHistoryDb *db);
/* @presets take the place of all that were there. */
gboolean quire_history_db_save_presets (QuireHistoryDb *db, GPtrArray *presets, GError **error);
/* Whether @text holds every word of @query. As the search does it. */
gboolean quire_history_matches (const char *text, const char *query);

G_DEFINE_AUTOPTR_CLEANUP_FUNC (QuireHistoryDb, quire_history_db_free)
G_DEFINE_AUTOPTR_CLEANUP_FUNC (QuireStoredChat, quire_stored_chat_free)
G_DEFINE_AUTOPTR_CLEANUP_FUNC (QuireStoredMessage, quire_stored_message_free)
G_DEFINE_AUTO_CLEANUP_CLEAR_FUNC (QuireHistoryOpening, quire_history_opening_clear)

G_END_DECLS
