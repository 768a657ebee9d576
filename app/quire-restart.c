/* quire-restart.c: see quire-restart.h. */
#include "app/quire-restart.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* An update may have put another file in the program's place: then that one starts, else the file that runs, which can be
 * had even when it has no name any more. Returns: owned. */
static char *
dup_program (void)
{
  static const char self[] = "/proc/self/exe", gone[] = " (deleted)";
  g_autofree char *path = g_file_read_link (self, NULL);

  if (path != NULL && g_str_has_suffix (path, gone))
    path[strlen (path) - strlen (gone)] = '\0';
  return path != NULL && g_file_test (path, G_FILE_TEST_IS_EXECUTABLE) ? g_steal_pointer (&path)
                                                                       : g_strdup (self);
}

/* The bus handles what two connections ask in any order, and this one's end comes after the new image's beginning: the
 * answer says that the name is free. */
static void
release_name (const char *name)
{
  g_autoptr (GDBusConnection) bus = g_bus_get_sync (G_BUS_TYPE_SESSION, NULL, NULL);
  g_autoptr (GVariant) answer = NULL;

  if (bus == NULL)
    return;
  g_dbus_connection_set_exit_on_close (bus, FALSE);
  answer = g_dbus_connection_call_sync (
      bus, "org.freedesktop.DBus", "/org/freedesktop/DBus", "org.freedesktop.DBus", "ReleaseName",
      g_variant_new ("(s)", name), NULL, G_DBUS_CALL_FLAGS_NO_AUTO_START, 5000, NULL, NULL);
  g_dbus_connection_flush_sync (bus, NULL, NULL);
}

/* Most files are closed by an exec anyway; a driver's may not be. */
static void
close_files_on_exec (void)
{
  g_autoptr (GDir) dir = g_dir_open ("/proc/self/fd", 0, NULL);
  const char *name;

  while (dir != NULL && (name = g_dir_read_name (dir)) != NULL)
    {
      int fd = atoi (name), flags;

      if (fd > STDERR_FILENO && (flags = fcntl (fd, F_GETFD)) >= 0)
        fcntl (fd, F_SETFD, flags | FD_CLOEXEC);
    }
}

void
quire_restart_in_place (char **argv, const char *name, GError **error)
{
  g_autofree char *program = dup_program ();

  if (name != NULL)
    release_name (name);
  close_files_on_exec ();
  execv (program, argv);
  g_set_error (error, G_IO_ERROR, (int)g_io_error_from_errno (errno), "%s: %s", program,
               g_strerror (errno));
}
