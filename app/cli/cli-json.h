/* cli-json.h: JSON in with strings that know their length; out by quire-json-text.h and quire-receipt.h.
 *
 * json-glib hands out C strings, so text after an escaped NUL would be cut in silence. The two shapes that quire-cli
 * reads (an array of strings, an array of messages) are few enough to read exactly. Errors name line and column. */
#pragma once
#include <glib.h>
#include "app/quire-json-text.h"
#include "engine/qe.h"

G_BEGIN_DECLS

/* (element-type GString): owned. NULL with @error. @name: the file in messages. */
GPtrArray *cli_json_read_strings (const char *name, const char *json, gsize n, GError **error);

typedef struct
{
  char *role;
  GString *content;
} CliMessage;
void cli_message_free (CliMessage *message);
/* [{"role": ..., "content": ...}, ...] or {"messages": [...]}. Other members are refused, so that nothing the writer
 * meant is dropped. (element-type CliMessage): owned. */
GPtrArray *cli_json_read_messages (const char *name, const char *json, gsize n, GError **error);

G_END_DECLS
