/* quire-paths.c: where files lie. */
#include "app/quire-paths.h"

char *
quire_dup_data_dir (void)
{
  const char *dir = g_getenv ("QUIRE_DATA_DIR");

  return g_strdup (dir != NULL && dir[0] != '\0' ? dir : QUIRE_DATADIR);
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
