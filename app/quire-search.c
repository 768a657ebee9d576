/* quire-search.c: the search provider of the desktop's overview: finds conversations in the history.
 *
 * A service of its own, started by the bus and gone again after some seconds of quiet: it opens the database read-only,
 * for each call anew, loads no model and needs no display. What is chosen is opened by the application, which the bus
 * starts when it does not run. */
#include <glib/gi18n.h>
#include <locale.h>

#include "app/quire-history-find.h"
#include "app/quire-paths.h"

#define RESULTS_MAX 10
/* The overview waits for every provider: what is not found by then is left out. */
#define SEARCH_MS_MAX 70
#define QUIET_MS 15000

#define APP_PATH "/io/github/quire_chat/Quire"
#define PROVIDER_PATH APP_PATH "/SearchProvider"

static const char interface_xml[]
    = "<node><interface name='org.gnome.Shell.SearchProvider2'>"
      "<method name='GetInitialResultSet'>"
      "<arg type='as' name='terms' direction='in'/><arg type='as' name='results' direction='out'/>"
      "</method><method name='GetSubsearchResultSet'>"
      "<arg type='as' name='previous_results' direction='in'/>"
      "<arg type='as' name='terms' direction='in'/><arg type='as' name='results' direction='out'/>"
      "</method><method name='GetResultMetas'>"
      "<arg type='as' name='identifiers' direction='in'/>"
      "<arg type='aa{sv}' name='metas' direction='out'/>"
      "</method><method name='ActivateResult'>"
      "<arg type='s' name='identifier' direction='in'/><arg type='as' name='terms' direction='in'/>"
      "<arg type='u' name='timestamp' direction='in'/>"
      "</method><method name='LaunchSearch'>"
      "<arg type='as' name='terms' direction='in'/><arg type='u' name='timestamp' direction='in'/>"
      "</method></interface></node>";

#define QUIRE_TYPE_SEARCH (quire_search_get_type ())
G_DECLARE_FINAL_TYPE (QuireSearch, quire_search, QUIRE, SEARCH, GApplication)

struct _QuireSearch
{
  GApplication parent_instance;

  guint registration;
  char *query; /* the last one; results are described around its words */
};

G_DEFINE_FINAL_TYPE (QuireSearch, quire_search, G_TYPE_APPLICATION)

/* NULL: there is no history yet. */
static QuireHistoryDb *
open_history (void)
{
  g_autofree char *path = quire_dup_history_path ();

  return quire_history_db_open_to_read (path, NULL);
}

static GVariant *
find (QuireSearch *self, char **terms)
{
  gint64 until = g_get_monotonic_time () + SEARCH_MS_MAX * G_TIME_SPAN_MILLISECOND;
  g_autoptr (QuireHistoryDb) db = open_history ();
  GVariantBuilder results;

  g_free (self->query);
  self->query = g_strjoinv (" ", terms);
  g_variant_builder_init (&results, G_VARIANT_TYPE ("as"));
  if (db != NULL)
    {
      g_autoptr (GPtrArray) found = quire_history_db_find (db, self->query, RESULTS_MAX, until);

      for (guint i = 0; i < found->len; i++)
        g_variant_builder_add_value (&results, g_variant_new_take_string (quire_found_to_string (
                                                   g_ptr_array_index (found, i))));
    }
  return g_variant_new ("(as)", &results);
}

static GVariant *
describe (QuireSearch *self, char **identifiers)
{
  g_autoptr (QuireHistoryDb) db = open_history ();
  GVariantBuilder metas;

  g_variant_builder_init (&metas, G_VARIANT_TYPE ("aa{sv}"));
  for (int i = 0; db != NULL && identifiers[i] != NULL && i < RESULTS_MAX; i++)
    {
      g_autoptr (QuireFound) found = quire_found_from_string (identifiers[i]);
      g_autofree char *title = NULL, *text = NULL;

      if (found == NULL
          || !quire_history_db_describe (db, found, self->query != NULL ? self->query : "", &title,
                                         &text))
        continue;
      g_variant_builder_open (&metas, G_VARIANT_TYPE ("a{sv}"));
      g_variant_builder_add (&metas, "{sv}", "id", g_variant_new_string (identifiers[i]));
      g_variant_builder_add (&metas, "{sv}", "name",
                             g_variant_new_string (title[0] != '\0' ? title : _ ("New Chat")));
      g_variant_builder_add (&metas, "{sv}", "description", g_variant_new_string (text));
      g_variant_builder_add (&metas, "{sv}", "gicon", g_variant_new_string (QUIRE_APP_ID));
      g_variant_builder_close (&metas);
    }
  return g_variant_new ("(aa{sv})", &metas);
}

static void
activated_cb (GObject *source, GAsyncResult *result, gpointer user_data)
{
  GApplication *self = user_data;
  g_autoptr (GError) error = NULL;
  g_autoptr (GVariant) reply
      = g_dbus_connection_call_finish (G_DBUS_CONNECTION (source), result, &error);

  if (reply == NULL)
    g_warning ("Quire could not be started: %s", error->message);
  g_application_release (self);
  g_object_unref (self);
}

/* @target: an action's parameter, a string. The time lets the window come to the front. */
static void
activate (QuireSearch *self, const char *action, const char *target, guint32 timestamp)
{
  GVariantBuilder parameter, platform;

  g_variant_builder_init (&parameter, G_VARIANT_TYPE ("av"));
  g_variant_builder_add (&parameter, "v", g_variant_new_string (target));
  g_variant_builder_init (&platform, G_VARIANT_TYPE ("a{sv}"));
  g_variant_builder_add (
      &platform, "{sv}", "desktop-startup-id",
      g_variant_new_take_string (g_strdup_printf ("quire-search_TIME%u", timestamp)));
  g_application_hold (G_APPLICATION (self));
  g_dbus_connection_call (g_application_get_dbus_connection (G_APPLICATION (self)), QUIRE_APP_ID,
                          APP_PATH, "org.freedesktop.Application", "ActivateAction",
                          g_variant_new ("(sava{sv})", action, &parameter, &platform), NULL,
                          G_DBUS_CALL_FLAGS_NONE, -1, NULL, activated_cb, g_object_ref (self));
}

static void
method_call_cb (GDBusConnection *connection, const char *sender, const char *path,
                const char *interface, const char *method, GVariant *parameters,
                GDBusMethodInvocation *invocation, gpointer user_data)
{
  QuireSearch *self = user_data;
  g_auto (GStrv) strings = NULL;
  GVariant *reply = NULL;
  guint32 timestamp;

  g_application_hold (G_APPLICATION (self));
  if (g_str_equal (method, "GetInitialResultSet"))
    {
      g_variant_get (parameters, "(^as)", &strings);
      reply = find (self, strings);
    }
  else if (g_str_equal (method, "GetSubsearchResultSet"))
    {
      /* Its results may hold others than those before: the words at hand may fit messages that were cut off. */
      g_variant_get (parameters, "(as^as)", NULL, &strings);
      reply = find (self, strings);
    }
  else if (g_str_equal (method, "GetResultMetas"))
    {
      g_variant_get (parameters, "(^as)", &strings);
      reply = describe (self, strings);
    }
  else if (g_str_equal (method, "ActivateResult"))
    {
      const char *identifier;
      g_autoptr (QuireFound) found = NULL;

      g_variant_get (parameters, "(&s^asu)", &identifier, &strings, &timestamp);
      found = quire_found_from_string (identifier);
      if (found != NULL)
        {
          g_autofree char *query = g_strjoinv (" ", strings);
          g_autofree char *target = g_strdup_printf ("%s %s", identifier, query);

          activate (self, "open-found", target, timestamp);
        }
    }
  else
    {
      g_autofree char *query = NULL;

      g_variant_get (parameters, "(^asu)", &strings, &timestamp);
      query = g_strjoinv (" ", strings);
      activate (self, "search", query, timestamp);
    }
  g_dbus_method_invocation_return_value (invocation, reply);
  g_application_release (G_APPLICATION (self));
}

static const GDBusInterfaceVTable vtable = { .method_call = method_call_cb };

static gboolean
quire_search_dbus_register (GApplication *application, GDBusConnection *connection,
                            const char *object_path, GError **error)
{
  QuireSearch *self = QUIRE_SEARCH (application);
  g_autoptr (GDBusNodeInfo) node = g_dbus_node_info_new_for_xml (interface_xml, NULL);

  if (!G_APPLICATION_CLASS (quire_search_parent_class)
           ->dbus_register (application, connection, object_path, error))
    return FALSE;
  self->registration = g_dbus_connection_register_object (
      connection, PROVIDER_PATH, node->interfaces[0], &vtable, self, NULL, error);
  return self->registration != 0;
}

static void
quire_search_dbus_unregister (GApplication *application, GDBusConnection *connection,
                              const char *object_path)
{
  QuireSearch *self = QUIRE_SEARCH (application);

  if (self->registration != 0)
    g_dbus_connection_unregister_object (connection, self->registration);
  self->registration = 0;
  G_APPLICATION_CLASS (quire_search_parent_class)
      ->dbus_unregister (application, connection, object_path);
}

static void
quire_search_finalize (GObject *object)
{
  g_free (QUIRE_SEARCH (object)->query);
  G_OBJECT_CLASS (quire_search_parent_class)->finalize (object);
}

static void
quire_search_class_init (QuireSearchClass *klass)
{
  G_OBJECT_CLASS (klass)->finalize = quire_search_finalize;
  G_APPLICATION_CLASS (klass)->dbus_register = quire_search_dbus_register;
  G_APPLICATION_CLASS (klass)->dbus_unregister = quire_search_dbus_unregister;
}

static void
quire_search_init (QuireSearch *self)
{
  g_application_set_inactivity_timeout (G_APPLICATION (self), QUIET_MS);
}

int
main (int argc, char **argv)
{
  g_autoptr (GApplication) application = NULL;
  g_autofree char *locale_dir = quire_dup_locale_dir ();

  setlocale (LC_ALL, "");
  bindtextdomain (GETTEXT_PACKAGE, locale_dir);
  bind_textdomain_codeset (GETTEXT_PACKAGE, "UTF-8");
  textdomain (GETTEXT_PACKAGE);
  application = g_object_new (QUIRE_TYPE_SEARCH, "application-id", QUIRE_APP_ID ".SearchProvider",
                              "flags", G_APPLICATION_IS_SERVICE, NULL);
  return g_application_run (application, argc, argv);
}
