/* quire-preset.c: see quire-preset.h. */
#include "app/quire-preset.h"

#include <string.h>

QuirePreset *
quire_preset_new (const char *name, const char *system, const char *settings)
{
  QuirePreset *preset = g_new0 (QuirePreset, 1);

  preset->name = g_strdup (name);
  preset->system = g_strdup (system);
  preset->settings = g_strdup (settings);
  return preset;
}

QuirePreset *
quire_preset_copy (const QuirePreset *preset)
{
  QuirePreset *copy = quire_preset_new (preset->name, preset->system, preset->settings);

  copy->is_default = preset->is_default;
  return copy;
}

void
quire_preset_free (QuirePreset *preset)
{
  if (preset == NULL)
    return;
  g_free (preset->name);
  g_free (preset->system);
  g_free (preset->settings);
  g_free (preset);
}

GPtrArray *
quire_presets_new (void)
{
  return g_ptr_array_new_with_free_func ((GDestroyNotify)quire_preset_free);
}

GPtrArray *
quire_presets_copy (GPtrArray *presets)
{
  GPtrArray *copy = quire_presets_new ();

  for (guint i = 0; i < presets->len; i++)
    g_ptr_array_add (copy, quire_preset_copy (g_ptr_array_index (presets, i)));
  return copy;
}

QuirePreset *
quire_presets_find (GPtrArray *presets, const char *name)
{
  for (guint i = 0; i < presets->len; i++)
    if (strcmp (((QuirePreset *)g_ptr_array_index (presets, i))->name, name) == 0)
      return g_ptr_array_index (presets, i);
  return NULL;
}

QuirePreset *
quire_presets_get_default (GPtrArray *presets)
{
  for (guint i = 0; i < presets->len; i++)
    if (((QuirePreset *)g_ptr_array_index (presets, i))->is_default)
      return g_ptr_array_index (presets, i);
  return NULL;
}

static int
by_name (gconstpointer a, gconstpointer b)
{
  return g_utf8_collate ((*(QuirePreset *const *)a)->name, (*(QuirePreset *const *)b)->name);
}

void
quire_presets_put (GPtrArray *presets, QuirePreset *preset)
{
  QuirePreset *old = quire_presets_find (presets, preset->name);

  if (old != NULL)
    {
      preset->is_default = old->is_default;
      g_ptr_array_remove (presets, old);
    }
  g_ptr_array_add (presets, preset);
  g_ptr_array_sort (presets, by_name);
}

gboolean
quire_presets_rename (GPtrArray *presets, const char *name, const char *new_name)
{
  QuirePreset *preset = quire_presets_find (presets, name);

  if (preset == NULL || new_name[0] == '\0' || quire_presets_find (presets, new_name) != NULL)
    return FALSE;
  g_free (preset->name);
  preset->name = g_strdup (new_name);
  g_ptr_array_sort (presets, by_name);
  return TRUE;
}

void
quire_presets_remove (GPtrArray *presets, const char *name)
{
  QuirePreset *preset = quire_presets_find (presets, name);

  if (preset != NULL)
    g_ptr_array_remove (presets, preset);
}

void
quire_presets_set_default (GPtrArray *presets, const char *name)
{
  for (guint i = 0; i < presets->len; i++)
    {
      QuirePreset *preset = g_ptr_array_index (presets, i);

      preset->is_default = name != NULL && strcmp (preset->name, name) == 0;
    }
}
