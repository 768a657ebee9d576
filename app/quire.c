/* quire.c: main() of the application. */
#include <glib/gi18n.h>
#include <locale.h>

#include "app/quire-application.h"
#include "app/quire-paths.h"
#include "app/quire-restart.h"

int
main (int argc, char **argv)
{
  g_autoptr (QuireApplication) application = NULL;
  g_autofree char *locale_dir = quire_dup_locale_dir ();
  g_auto (GStrv) again = NULL;
  int status;

  setlocale (LC_ALL, "");
  bindtextdomain (GETTEXT_PACKAGE, locale_dir);
  bind_textdomain_codeset (GETTEXT_PACKAGE, "UTF-8");
  textdomain (GETTEXT_PACKAGE);

  application = quire_application_new ();
  status = g_application_run (G_APPLICATION (application), argc, argv);
  again = quire_application_dup_restart_args (application, argv[0]);
  if (again != NULL)
    {
      g_autoptr (GError) error = NULL;

      g_clear_object (&application);
      quire_restart_in_place (again, QUIRE_APP_ID, &error);
      g_printerr ("quire: %s\n", error->message);
      return 1;
    }
  return status;
}
