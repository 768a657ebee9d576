/* quire-token.c: see quire-token.h.
 *
 * A keyring that does not answer (no service, locked and the user said no) is no error: the file takes its place. What is in
 * the file is not moved to a keyring that comes later, and the keyring's word goes first. */
#include "app/quire-token.h"

#include <glib/gstdio.h>
#ifdef QUIRE_HAVE_SECRET
#include <libsecret/secret.h>
#endif

#include "app/quire-paths.h"
#include "app/server/quire-server.h"

typedef struct
{
  char *token;
  gboolean in_keyring, renew;
} Token;

static void
token_free (gpointer data)
{
  Token *t = data;

  g_free (t->token);
  g_free (t);
}

static void
use_file (GTask *task)
{
  Token *t = g_task_get_task_data (task);
  g_autofree char *history = quire_dup_history_path ();
  g_autofree char *dir = g_path_get_dirname (history);
  g_autofree char *path = g_build_filename (dir, "server-token", NULL);
  g_autoptr (GError) error = NULL;

  g_mkdir_with_parents (dir, 0700);
  if (t->renew)
    g_unlink (path);
  g_free (t->token);
  t->in_keyring = FALSE;
  t->token = quire_server_token_from_file (path, &error);
  if (t->token != NULL)
    g_task_return_boolean (task, TRUE);
  else
    g_task_return_error (task, g_steal_pointer (&error));
  g_object_unref (task);
}

#ifdef QUIRE_HAVE_SECRET
static const SecretSchema schema = { "io.github.quire_chat.Quire.Token",
                                     SECRET_SCHEMA_NONE,
                                     { { "use", SECRET_SCHEMA_ATTRIBUTE_STRING }, { NULL, 0 } } };

static void
stored_cb (GObject *source, GAsyncResult *result, gpointer user)
{
  GTask *task = user;

  if (!secret_password_store_finish (result, NULL))
    {
      use_file (task);
      return;
    }
  g_task_return_boolean (task, TRUE);
  g_object_unref (task);
}

static void
store (GTask *task)
{
  Token *t = g_task_get_task_data (task);

  t->token = quire_server_token_new ();
  t->in_keyring = TRUE;
  /* Translators: how the keyring calls it. */
  secret_password_store (&schema, SECRET_COLLECTION_DEFAULT, "Quire: local server", t->token,
                         g_task_get_cancellable (task), stored_cb, task, "use", "server", NULL);
}

static void
found_cb (GObject *source, GAsyncResult *result, gpointer user)
{
  GTask *task = user;
  Token *t = g_task_get_task_data (task);
  g_autoptr (GError) error = NULL;
  char *found = secret_password_lookup_finish (result, &error);

  if (error != NULL)
    use_file (task);
  else if (found == NULL)
    store (task);
  else
    {
      t->token = g_strdup (found);
      t->in_keyring = TRUE;
      secret_password_free (found);
      g_task_return_boolean (task, TRUE);
      g_object_unref (task);
    }
}
#endif

void
quire_token_get_async (gboolean renew, GCancellable *cancellable, GAsyncReadyCallback callback,
                       gpointer user_data)
{
  GTask *task = g_task_new (NULL, cancellable, callback, user_data);
  Token *t = g_new0 (Token, 1);

  t->renew = renew;
  g_task_set_task_data (task, t, token_free);
#ifdef QUIRE_HAVE_SECRET
  if (renew)
    store (task);
  else
    secret_password_lookup (&schema, cancellable, found_cb, task, "use", "server", NULL);
#else
  use_file (task);
#endif
}

char *
quire_token_get_finish (GAsyncResult *result, gboolean *in_keyring, GError **error)
{
  Token *t = g_task_get_task_data (G_TASK (result));

  if (!g_task_propagate_boolean (G_TASK (result), error))
    return NULL;
  *in_keyring = t->in_keyring;
  return g_steal_pointer (&t->token);
}
