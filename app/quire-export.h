/* quire-export.h: a conversation as Markdown or JSON, and our JSON back. No GTK. Any thread. */
#pragma once
#include "app/quire-history-db.h"

G_BEGIN_DECLS

/* The branch that ends with @chat's leaf, a heading a message. Returns: owned. */
char *quire_export_markdown (const QuireStoredChat *chat, GPtrArray *messages);
/* All versions and everything else but drafts and tabs. Returns: owned. */
char *quire_export_json (const QuireStoredChat *chat, GPtrArray *messages);
/* What quire_export_json() wrote, as a new conversation: @chat gets an id of its own. Returns: (element-type
 * QuireStoredMessage) owned; NULL with @error, in words for the user, when it is something else. */
GPtrArray *quire_import_json (const char *json, gssize n_bytes, QuireStoredChat *chat,
                              GError **error);
/* A file name for it, without a folder. Returns: owned. */
char *quire_export_dup_name (const QuireStoredChat *chat, const char *extension);

G_END_DECLS
