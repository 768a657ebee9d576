/* cli-cache.c: options of the KV cache: a conversation's mode and limits, and the engine's tiers. Main thread only.
 *
 * An error names the option, what was given and what is expected, in that order. */
#include "app/cli/cli.h"

#include <math.h>
#include <string.h>

#define PAGES_MAX (1 << 20)
#define TOKENS_MAX (1 << 24)
#define QUOTA_DEFAULT "16G"

gboolean
cli_parse_size (const char *option, const char *text, guint64 *out, GError **error)
{
  static const char units[] = "KMGT";
  const char *unit;
  char *end = NULL;
  double value = g_ascii_strtod (text, &end);
  int shift = 0;

  if (end != text && *end != '\0')
    {
      unit = strchr (units, g_ascii_toupper (*end));
      if (unit != NULL)
        {
          shift = 10 * (int)(unit - units + 1);
          end++;
          if (*end == 'i')
            end++;
        }
      if (*end == 'B')
        end++;
    }
  if (end == text || *end != '\0' || !isfinite (value) || !(ldexp (value, shift) >= 1)
      || ldexp (value, shift) > ldexp (1, 60))
    {
      g_set_error (error, QE_ERROR, QE_ERROR_INVALID,
                   "%s: expected a size such as 512M, 12G or a number of bytes, found “%s”", option,
                   text);
      return FALSE;
    }
  *out = (guint64)ldexp (value, shift);
  return TRUE;
}

/* ---- The engine's tiers ---- */

void
cli_tier_options_add (CliTierOptions *o, GOptionGroup *group)
{
  GOptionEntry entries[] = {
    { "host-memory", 0, 0, G_OPTION_ARG_STRING, &o->host_memory,
      "Host memory for KV pages beside the card's, or none (default: from the memory available; on "
      "the CPU none)",
      "SIZE|none" },
    { "host-path", 0, 0, G_OPTION_ARG_STRING, &o->host_path,
      "How a card reads pages in host memory: auto, read, stream or cpu (default: auto)", "NAME" },
    { "ring", 0, 0, G_OPTION_ARG_STRING, &o->ring,
      "Memory of the card through which host pages are streamed (default: 256M)", "SIZE" },
    { "cache-dir", 0, 0, G_OPTION_ARG_FILENAME, &o->cache_dir,
      "Keep KV pages in DIR over restarts (default: nowhere)", "DIR" },
    { "cache-quota", 0, 0, G_OPTION_ARG_STRING, &o->cache_quota,
      "What --cache-dir may hold (default: " QUOTA_DEFAULT ")", "SIZE" },
    { NULL },
  };

  g_option_group_add_entries (group, entries);
}

void
cli_tier_options_clear (CliTierOptions *o)
{
  g_clear_pointer (&o->host_memory, g_free);
  g_clear_pointer (&o->host_path, g_free);
  g_clear_pointer (&o->ring, g_free);
  g_clear_pointer (&o->cache_dir, g_free);
  g_clear_pointer (&o->cache_quota, g_free);
}

static gboolean
parse_host_path (const char *text, qe_host_path *out, GError **error)
{
  if (qe_host_path_parse (text, out))
    return TRUE;
  g_set_error (error, QE_ERROR, QE_ERROR_INVALID,
               "--host-path: expected auto, read, stream or cpu, found “%s”", text);
  return FALSE;
}

static gboolean
parse_host_memory (const char *text, guint64 *out, GError **error)
{
  if (strcmp (text, "none") == 0)
    {
      *out = 1;
      return TRUE;
    }
  if (cli_parse_size ("--host-memory", text, out, NULL) && *out > 1)
    return TRUE;
  g_set_error (error, QE_ERROR, QE_ERROR_INVALID,
               "--host-memory: expected a size such as 12G, or none, found “%s”", text);
  return FALSE;
}

gboolean
cli_tier_options_apply (const CliTierOptions *o, qe_engine_options *out, GError **error)
{
  if (o->cache_quota != NULL && o->cache_dir == NULL)
    {
      g_set_error (error, QE_ERROR, QE_ERROR_INVALID,
                   "--cache-quota: expected --cache-dir with it, found “%s” alone", o->cache_quota);
      return FALSE;
    }
  if (o->cache_dir != NULL && o->cache_dir[0] == '\0')
    {
      g_set_error (error, QE_ERROR, QE_ERROR_INVALID, "--cache-dir: expected a folder, found “”");
      return FALSE;
    }
  out->disk_dir = o->cache_dir;
  return (o->host_memory == NULL || parse_host_memory (o->host_memory, &out->host_bytes_max, error))
         && (o->host_path == NULL || parse_host_path (o->host_path, &out->host_path, error))
         && (o->ring == NULL || cli_parse_size ("--ring", o->ring, &out->ring_bytes, error))
         && (o->cache_dir == NULL
             || cli_parse_size ("--cache-quota",
                                o->cache_quota != NULL ? o->cache_quota : QUOTA_DEFAULT,
                                &out->disk_bytes_max, error));
}

/* ---- A conversation's mode and limits ---- */

GOptionGroup *
cli_cache_options_group (CliCacheOptions *o)
{
  GOptionEntry entries[] = {
    { "cache-mode", 0, 0, G_OPTION_ARG_STRING, &o->mode,
      "auto, rebuild, paged, session, tiered, tiered-int8 or selective (default: auto)", "NAME" },
    { "article", 0, 0, G_OPTION_ARG_NONE, &o->article,
      "Tiered with 32 recent and 2,048 hot tokens on the card", NULL },
    { "block-size", 0, 0, G_OPTION_ARG_INT, &o->block_size, "Tokens of a page: 16", "N" },
    { "max-cache-size", 0, 0, G_OPTION_ARG_INT, &o->max_cache_size,
      "Pages of a conversation in all tiers (default: as many as there are)", "PAGES" },
    { "gpu-max-length", 0, 0, G_OPTION_ARG_INT, &o->gpu_max_length,
      "Tiered: recent tokens that stay on the card (default: what fits)", "N" },
    { "hot-cache-length", 0, 0, G_OPTION_ARG_INT, &o->hot_cache_length,
      "Tiered: tokens on the card besides those (default: what fits)", "N" },
    { "sink-length", 0, 0, G_OPTION_ARG_INT, &o->sink_length,
      "Selective: first tokens that replies always attend to (default: 64)", "N" },
    { "recent-length", 0, 0, G_OPTION_ARG_INT, &o->recent_length,
      "Selective: newest tokens that they always attend to (default: 512)", "N" },
    { "select-length", 0, 0, G_OPTION_ARG_INT, &o->select_length,
      "Selective: tokens between those that are chosen for each layer and head (default: 2048)",
      "N" },
    { "no-offload", 0, 0, G_OPTION_ARG_NONE, &o->no_offload, "No page goes to host memory", NULL },
    { "no-use-cache", 0, 0, G_OPTION_ARG_NONE, &o->no_use_cache,
      "Share no pages with other conversations", NULL },
    { NULL },
  };
  GOptionGroup *group
      = g_option_group_new ("cache", "KV cache:", "Options of the KV cache", NULL, NULL);

  o->block_size = o->max_cache_size = o->gpu_max_length = o->hot_cache_length = CLI_UNSET_INT;
  o->sink_length = o->recent_length = o->select_length = CLI_UNSET_INT;
  g_option_group_add_entries (group, entries);
  return group;
}

void
cli_cache_options_clear (CliCacheOptions *o)
{
  g_clear_pointer (&o->mode, g_free);
}

static gboolean
set_count (const char *option, int value, int max, uint32_t *out, GError **error)
{
  if (value == CLI_UNSET_INT)
    return TRUE;
  if (value >= 0 && value <= max)
    {
      *out = (uint32_t)value;
      return TRUE;
    }
  g_set_error (error, QE_ERROR, QE_ERROR_INVALID, "%s: expected 0 to %d, found “%d”", option, max,
               value);
  return FALSE;
}

/* A length of the selective mode: whole pages. */
static gboolean
set_select (const char *option, int value, qe_cache_mode mode, uint32_t *out, GError **error)
{
  if (value == CLI_UNSET_INT)
    return TRUE;
  if (mode != QE_CACHE_SELECTIVE)
    {
      g_set_error (error, QE_ERROR, QE_ERROR_INVALID,
                   "%s: expected --cache-mode selective with it, found “%s”", option,
                   qe_cache_mode_name (mode));
      return FALSE;
    }
  if (value % 16 != 0)
    {
      g_set_error (error, QE_ERROR, QE_ERROR_INVALID, "%s: expected a multiple of 16, found “%d”",
                   option, value);
      return FALSE;
    }
  return set_count (option, value, TOKENS_MAX, out, error);
}

/* What the engine would refuse, in the words of the command line. */
static gboolean
check_limits (const qe_cache_config *c, GError **error)
{
  gboolean tiered = c->mode == QE_CACHE_TIERED || c->mode == QE_CACHE_TIERED_INT8
                    || c->mode == QE_CACHE_SELECTIVE;

  if ((c->gpu_max_length > 0 || c->hot_cache_length > 0) && !tiered)
    {
      g_set_error (error, QE_ERROR, QE_ERROR_INVALID,
                   "%s: expected --cache-mode tiered, tiered-int8 or selective with it, found “%s”",
                   c->gpu_max_length > 0 ? "--gpu-max-length" : "--hot-cache-length",
                   qe_cache_mode_name (c->mode));
      return FALSE;
    }
  return qe_cache_config_check (c, error);
}

gboolean
cli_cache_options_apply (const CliCacheOptions *o, qe_cache_config *out, GError **error)
{
  if (o->article)
    qe_cache_config_init_article (out);
  else
    qe_cache_config_init (out);
  if (o->mode != NULL)
    {
      qe_cache_mode mode;

      if (!qe_cache_mode_parse (o->mode, &mode, NULL))
        {
          g_set_error (error, QE_ERROR, QE_ERROR_INVALID,
                       "--cache-mode: expected auto, rebuild, paged, session, tiered, "
                       "tiered-int8 or selective, found “%s”",
                       o->mode);
          return FALSE;
        }
      if (o->article && mode != QE_CACHE_TIERED && mode != QE_CACHE_TIERED_INT8)
        {
          g_set_error (error, QE_ERROR, QE_ERROR_INVALID,
                       "--cache-mode: expected tiered or tiered-int8 with --article, found “%s”",
                       o->mode);
          return FALSE;
        }
      out->mode = mode;
    }
  if (o->block_size != CLI_UNSET_INT && o->block_size != (int)out->block_size)
    {
      g_set_error (error, QE_ERROR, QE_ERROR_INVALID,
                   "--block-size: expected %u, the page of the kernels, found “%d”",
                   out->block_size, o->block_size);
      return FALSE;
    }
  if (!set_count ("--max-cache-size", o->max_cache_size, PAGES_MAX, &out->max_cache_size, error)
      || !set_count ("--gpu-max-length", o->gpu_max_length, TOKENS_MAX, &out->gpu_max_length, error)
      || !set_count ("--hot-cache-length", o->hot_cache_length, TOKENS_MAX, &out->hot_cache_length,
                     error))
    return FALSE;
  if (!set_select ("--sink-length", o->sink_length, out->mode, &out->sink_length, error)
      || !set_select ("--recent-length", o->recent_length, out->mode, &out->recent_length, error)
      || !set_select ("--select-length", o->select_length, out->mode, &out->select_length, error))
    return FALSE;
  if (o->no_offload)
    out->offload_to_cpu = false;
  if (o->no_use_cache)
    out->use_cache = false;
  return check_limits (out, error);
}

qe_session_id
cli_open_session (qe_engine *engine, const qe_cache_config *cache, const char *disk_key,
                  GError **error)
{
  qe_session_options options;

  qe_session_options_init (&options);
  options.cache = *cache;
  options.disk_key = disk_key;
  return qe_engine_open_session_with (engine, &options, error);
}
