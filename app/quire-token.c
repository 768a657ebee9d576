/* quire-token.c: see quire-token.h.
 *
 * A keyring that does not answer (no service, locked and the user said no) is no error: the file takes its place. Where there
 * is a file its word goes first, since it is only there because the keyring failed when the token was made: what was
 * shown last stays, whatever the keyring does at the next start. A new token tries the keyring again, and then the file
 * goes. */
#include "app/quire-token.h"

#include <glib/gi18n.h>
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

static char *
dup_path (void)
{
  g_autofree char *history = quire_dup_history_path ();
  g_autofree char *dir = g_path_get_dirname (history);

  g_mkdir_with_parents (dir, 0700);
  return g_build_filename (dir, "server-token", NULL);
}

static void
use_file (GTask *task)
{
  Token *t = g_task_get_task_data (task);
  g_autofree char *path = dup_path ();
  g_autoptr (GError) error = NULL;

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

/* Whoever cancelled wants neither place touched. */
static void
keyring_failed (GTask *task)
{
  if (g_task_return_error_if_cancelled (task))
    g_object_unref (task);
  else
    use_file (task);
}

static void
stored_cb (GObject *source, GAsyncResult *result, gpointer user_data)
{
  GTask *task = user_data;
  g_autofree char *path = dup_path ();

  if (!secret_password_store_finish (result, NULL))
    {
      keyring_failed (task);
      return;
    }
  g_unlink (path);
  g_task_return_boolean (task, TRUE);
  g_object_unref (task);
}

static void
store (GTask *task)
{
  Token *t = g_task_get_task_data (task);

  t->token = quire_server_token_new ();
  t->in_keyring = TRUE;
  secret_password_store (&schema, SECRET_COLLECTION_DEFAULT,
                         /* Translators: how the keyring calls the token. */
                         _ ("Quire: token of the local server"), t->token,
                         g_task_get_cancellable (task), stored_cb, task, "use", "server", NULL);
}

static void
retrieved_cb (GObject *source, GAsyncResult *result, gpointer user_data)
{
  GTask *task = user_data;
  Token *t = g_task_get_task_data (task);
  SecretValue *value
      = secret_retrievable_retrieve_secret_finish (SECRET_RETRIEVABLE (source), result, NULL);
  const char *text = value != NULL ? secret_value_get_text (value) : NULL;

  t->token = g_strdup (text);
  t->in_keyring = TRUE;
  g_clear_pointer (&value, secret_value_unref);
  if (t->token == NULL) /* it stayed locked: the user has been asked once, and that is enough */
    {
      keyring_failed (task);
      return;
    }
  g_task_return_boolean (task, TRUE);
  g_object_unref (task);
}

static void
found_cb (GObject *source, GAsyncResult *result, gpointer user_data)
{
  GTask *task = user_data;
  g_autoptr (GError) error = NULL;
  GList *items = secret_password_search_finish (result, &error);

  if (error != NULL)
    keyring_failed (task);
  else if (items == NULL)
    store (task);
  else
    secret_retrievable_retrieve_secret (items->data, g_task_get_cancellable (task), retrieved_cb,
                                        task);
  g_list_free_full (items, g_object_unref);
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
  {
    g_autofree char *path = dup_path ();

    /* libsecret keeps its session with a keyring that may have ended and begun anew since the last time. */
    secret_service_disconnect ();
    if (renew)
      store (task);
    else if (g_file_test (path, G_FILE_TEST_EXISTS))
      use_file (task);
    else
      secret_password_search (&schema, SECRET_SEARCH_UNLOCK | SECRET_SEARCH_LOAD_SECRETS,
                              cancellable, found_cb, task, "use", "server", NULL);
  }
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
