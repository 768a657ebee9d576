/* quire.c: main() of the application. */
#include <glib/gi18n.h>
#include <locale.h>

#include "app/quire-application.h"
#include "app/quire-paths.h"

int
main (int argc, char **argv)
{
  g_autoptr (QuireApplication) application = NULL;
  g_autofree char *locale_dir = quire_dup_locale_dir ();

  setlocale (LC_ALL, "");
  bindtextdomain (GETTEXT_PACKAGE, locale_dir);
  bind_textdomain_codeset (GETTEXT_PACKAGE, "UTF-8");
  textdomain (GETTEXT_PACKAGE);

  application = quire_application_new ();
  return g_application_run (G_APPLICATION (application), argc, argv);
}
