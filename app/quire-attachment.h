/* quire-attachment.h: text files that a message carries. No GTK; any thread.
 *
 * They are a part of the message's text, before what the user wrote, so that they are stored, searched, sent and exported
 * with it:  <file name="notes.txt" bytes="12" tokens="4">LF contents LF</file>LF LF text.  The count of bytes says where a file
 * ends, whatever it contains. */
#pragma once
#include <gio/gio.h>

G_BEGIN_DECLS

/* A larger file is refused before it is read. */
#define QUIRE_ATTACHMENT_BYTES_MAX (4 << 20)
#define QUIRE_ATTACHMENTS_MAX 32

typedef struct
{
  char *name; /* owned, as the text below */
  char *text;
  gsize n_bytes;  /* of the text */
  guint n_tokens; /* 0: not counted */
} QuireAttachment;

/* Checks that @data is UTF-8 text; a byte order mark goes, and of line ends CR LF becomes LF. The error is a sentence for the
 * user, with the file's name. Returns: owned. */
QuireAttachment *quire_attachment_new (const char *name, const char *data, gsize n_bytes,
                                       GError **error);
QuireAttachment *quire_attachment_copy (const QuireAttachment *attachment);
void quire_attachment_free (QuireAttachment *attachment); /* NULL is fine */
/* A sentence for a file of so many bytes. Returns: owned. */
char *quire_attachment_format_too_big (const char *name, guint64 n_bytes);

/* Reads @file on worker threads; one that is too big is not. */
void quire_attachment_read_async (GFile *file, GCancellable *cancellable,
                                  GAsyncReadyCallback callback, gpointer user_data);
/* Returns: owned; NULL with @error, a sentence for the user. */
QuireAttachment *quire_attachment_read_finish (GAsyncResult *result, GError **error);

/* (element-type QuireAttachment) */
GPtrArray *quire_attachments_new (void);
/* The message's text. Returns: owned. */
char *quire_attachments_compose (GPtrArray *attachments, const char *text);
/* What is to be counted of it: files whose tokens are known are left out, save their frames, and these tokens are added to
 * @n_known. Returns: owned. */
char *quire_attachments_compose_uncounted (GPtrArray *attachments, const char *text,
                                           guint *n_known);
/* What quire_attachments_compose() made, apart again. @text: set to what the user wrote, borrowed from @message. Returns: owned,
 * empty for a message without files. */
GPtrArray *quire_attachments_split (const char *message, gsize n_bytes, const char **text,
                                    gsize *n_text);

G_DEFINE_AUTOPTR_CLEANUP_FUNC (QuireAttachment, quire_attachment_free)

G_END_DECLS
