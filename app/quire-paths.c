/* quire-paths.c: where files lie. */
#include "app/quire-paths.h"

/* @name of the data folder beside the running program's, so that an installed tree works wherever it was put; @fallback,
 * where it was meant to be, when it is not there. Returns: owned. */
static char *
dup_beside_program (const char *name, const char *fallback)
{
  g_autofree char *program = g_file_read_link ("/proc/self/exe", NULL);
  g_autofree char *bin = program != NULL ? g_path_get_dirname (program) : NULL;
  g_autofree char *prefix = bin != NULL ? g_path_get_dirname (bin) : NULL;
  g_autofree char *dir = prefix != NULL ? g_build_filename (prefix, "share", name, NULL) : NULL;

  if (dir != NULL && g_file_test (dir, G_FILE_TEST_IS_DIR))
    return g_steal_pointer (&dir);
  return g_strdup (fallback);
}

char *
quire_dup_data_dir (void)
{
  const char *dir = g_getenv ("QUIRE_DATA_DIR");

  if (dir != NULL && dir[0] != '\0')
    return g_strdup (dir);
  return dup_beside_program ("quire", QUIRE_DATADIR);
}

char *
quire_dup_locale_dir (void)
{
  return dup_beside_program ("locale", QUIRE_LOCALEDIR);
}

char *
quire_dup_default_model_dir (void)
{
  const char *dir = g_getenv ("QUIRE_MODEL");

  if (dir != NULL && dir[0] != '\0')
    return g_strdup (dir);

  g_autofree char *data_dir = quire_dup_data_dir ();
  return g_build_filename (data_dir, "demo-model", NULL);
}

const char *
quire_host_paths_file (void)
{
  g_autofree char *path
      = g_build_filename (g_get_user_cache_dir (), "quire", "host-paths.ini", NULL);

  return g_intern_string (path);
}

char *
quire_dup_history_path (void)
{
  return g_build_filename (g_get_user_data_dir (), "quire", "history.db", NULL);
}
