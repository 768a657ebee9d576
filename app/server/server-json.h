/* server-json.h: JSON as the server reads and writes it. No GTK; any thread.
 *
 * Bodies come from anyone, so the reader is strict (RFC 8259) and bounded: depth, number of values, well-formed UTF-8,
 * whole surrogate pairs, no member twice. Strings know their length, since "\u0000" is a character like another. */
#pragma once
#include <glib.h>

G_BEGIN_DECLS

#define SRV_JSON_DEPTH_MAX 64u
#define SRV_JSON_VALUES_MAX (256u << 10) /* of one document */

typedef enum
{
  SRV_JSON_NULL,
  SRV_JSON_BOOL,
  SRV_JSON_NUMBER,
  SRV_JSON_STRING,
  SRV_JSON_ARRAY,
  SRV_JSON_OBJECT
} SrvJsonType;

typedef struct _SrvJson SrvJson;
struct _SrvJson
{
  SrvJsonType type;
  gboolean boolean;
  gboolean is_integer; /* a number that is whole and fits integer, however it was written */
  gint64 integer;
  double number;
  char *text; /* a string's bytes, a NUL behind them */
  gsize n_text;
  GPtrArray *items;   /* SrvJson: of an array, or an object's values */
  GPtrArray *names;   /* char *: of an object, beside items; without NUL */
  const char *source; /* the value in the text that was read, borrowed from there */
  gsize n_source;
};

/* NULL with @error, whose message has line and column and no text of the input. @n: bytes. Returns: owned. */
SrvJson *srv_json_read (const char *json, gsize n, GError **error);
void srv_json_free (SrvJson *value); /* NULL is fine */
/* The member, or NULL; also for what is no object. Borrowed. */
const SrvJson *srv_json_get (const SrvJson *object, const char *name);
/* "a string", "an array", ... for messages. */
const char *srv_json_type_name (SrvJsonType type);

/* ---- Writing ---- */

/* Quoted and escaped; ill-formed UTF-8 becomes U+FFFD. @n: -1: up to the NUL. */
void srv_json_add_string (GString *out, const char *text, gssize n);
/* NaN and infinities become null. */
void srv_json_add_number (GString *out, double value);
/* `"name": "text"`, or `"name": null` for NULL. */
void srv_json_add_member (GString *out, const char *name, const char *text);
/* Compact JSON of @value, members in their order. */
void srv_json_write (GString *out, const SrvJson *value);

G_DEFINE_AUTOPTR_CLEANUP_FUNC (SrvJson, srv_json_free)
G_END_DECLS
