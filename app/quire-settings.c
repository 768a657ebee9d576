/* quire-settings.c: see quire-settings.h. Keys: data/io.github.quire_chat.Quire.gschema.xml.in. */
#include "app/quire-settings.h"

#include <string.h>

#include "app/quire-paths.h"

gboolean
quire_settings_exist (void)
{
  GSettingsSchemaSource *source = g_settings_schema_source_get_default ();
  g_autoptr (GSettingsSchema) schema = NULL;

  if (source != NULL)
    schema = g_settings_schema_source_lookup (source, QUIRE_SETTINGS_ID, TRUE);
  return schema != NULL;
}

GSettings *
quire_settings_get_default (void)
{
  static GSettings *settings;

  if (settings == NULL)
    settings = g_settings_new (QUIRE_SETTINGS_ID);
  return settings;
}

void
quire_settings_get_turn (const qe_model_info *model, QuireTurnSettings *out)
{
  GSettings *settings = quire_settings_get_default ();
  g_autofree char *seed = g_settings_get_string (settings, "seed");

  qe_sampling_params_init (&out->sampling, model);
  if (g_settings_get_boolean (settings, "custom-sampling"))
    {
      out->sampling.temperature = g_settings_get_double (settings, "temperature");
      out->sampling.top_p = g_settings_get_double (settings, "top-p");
      out->sampling.top_k = g_settings_get_int (settings, "top-k");
    }
  if (seed[0] != '\0')
    out->sampling.has_seed
        = g_ascii_string_to_unsigned (seed, 10, 0, G_MAXUINT64, &out->sampling.seed, NULL);
  out->max_tokens = g_settings_get_uint (settings, "max-tokens");
  out->thinking = (qe_thinking)g_settings_get_enum (settings, "thinking");
  out->asked_us = 0;
  out->auto_title = g_settings_get_boolean (settings, "auto-title");
}

char *
quire_settings_dup_disk_dir (void)
{
  return g_build_filename (g_get_user_cache_dir (), "quire", "kv", NULL);
}

QuireCacheChoice
quire_settings_get_cache (void)
{
  return (QuireCacheChoice)g_settings_get_enum (quire_settings_get_default (), "cache-mode");
}

/* As qe_engine_options has it: 0 for a default, 1 for none. */
static guint64
host_bytes (GSettings *settings)
{
  enum
  {
    HOST_AUTO,
    HOST_OFF,
    HOST_SIZE
  };

  switch (g_settings_get_enum (settings, "host-memory"))
    {
    case HOST_OFF:
      return 1;
    case HOST_SIZE:
      return (guint64)g_settings_get_uint (settings, "host-mib") * 1024 * 1024;
    case HOST_AUTO:
    default:
      return 0;
    }
}

void
quire_settings_get_engine (const char *backend, QuireEngineSettings *out)
{
  GSettings *settings = quire_settings_get_default ();
  guint64 reserve_mib = g_settings_get_uint (settings, "reserve-mib");

  *out = (QuireEngineSettings){
    .backend = backend != NULL ? g_strdup (backend) : g_settings_get_string (settings, "backend"),
    .device = g_settings_get_string (settings, "device"),
    .disk_dir
    = g_settings_get_boolean (settings, "disk-tier") ? quire_settings_dup_disk_dir () : NULL,
  };
  out->options = (qe_engine_options){
    .backend = out->backend[0] != '\0' ? out->backend : NULL,
    .device = out->device[0] != '\0' ? out->device : NULL,
    .n_threads = g_settings_get_uint (settings, "threads"),
    .kv_bytes_max = (guint64)g_settings_get_uint (settings, "cache-mib") * 1024 * 1024,
    .host_bytes_max = host_bytes (settings),
    .host_path = (qe_host_path)g_settings_get_enum (settings, "host-path"),
    .host_paths_file = quire_host_paths_file (),
    .disk_dir = out->disk_dir,
    .disk_bytes_max
    = out->disk_dir != NULL ? (guint64)g_settings_get_uint (settings, "disk-mib") * 1024 * 1024 : 0,
    .memory_reserve = MAX (reserve_mib * 1024 * 1024, 1),
  };
}

void
quire_engine_settings_clear (QuireEngineSettings *settings)
{
  g_clear_pointer (&settings->backend, g_free);
  g_clear_pointer (&settings->device, g_free);
  g_clear_pointer (&settings->disk_dir, g_free);
}

char *
quire_settings_dup_model_dir (void)
{
  g_autofree char *dir = g_settings_get_string (quire_settings_get_default (), "model-folder");

  return dir[0] != '\0' ? g_steal_pointer (&dir) : quire_dup_default_model_dir ();
}

gboolean
quire_model_is_shipped (const char *dir)
{
  g_autofree char *data_dir = quire_dup_data_dir ();
  g_autofree char *shipped = g_build_filename (data_dir, "demo-model", NULL);
  g_autofree char *a = g_canonicalize_filename (shipped, NULL);
  g_autofree char *b = g_canonicalize_filename (dir, NULL);

  return strcmp (a, b) == 0;
}

char *
quire_model_dup_name (const qe_model_info *model)
{
  return g_strdup (quire_model_is_shipped (model->dir) ? "Quire Demo" : model->name);
}
