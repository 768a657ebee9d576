/* quire-token.h: the local server's token, in the keyring where there is one (libsecret), else in a file of mode 0600 in the
 * user's data folder. No GTK. Main thread only. */
#pragma once
#include <gio/gio.h>

G_BEGIN_DECLS

/* Finds the token, or makes one; @renew: makes another one in any case. @callback gets it from quire_token_get_finish(). */
void quire_token_get_async (gboolean renew, GCancellable *cancellable, GAsyncReadyCallback callback,
                            gpointer user_data);
/* Returns: owned; NULL with @error. *@in_keyring: where it is. */
char *quire_token_get_finish (GAsyncResult *result, gboolean *in_keyring, GError **error);

G_END_DECLS
