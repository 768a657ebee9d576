/* quire-preset.h: named system prompts with sampling. No GTK. */
#pragma once
#include <glib.h>

G_BEGIN_DECLS

/* Strings are owned and may be NULL, save name. */
typedef struct
{
  char *name;
  char *system;
  char *settings;      /* as quire_chat_settings_to_json() gives; NULL: the Preferences' */
  gboolean is_default; /* of at most one: new chats begin with it */
} QuirePreset;

QuirePreset *quire_preset_new (const char *name, const char *system, const char *settings);
QuirePreset *quire_preset_copy (const QuirePreset *preset);
void quire_preset_free (QuirePreset *preset); /* NULL is fine */

/* Lists of presets (element-type QuirePreset), by name. */
GPtrArray *quire_presets_new (void);
GPtrArray *quire_presets_copy (GPtrArray *presets);
/* The one of that name, or NULL. Borrowed. */
QuirePreset *quire_presets_find (GPtrArray *presets, const char *name);
QuirePreset *quire_presets_get_default (GPtrArray *presets);
/* Adds @preset (taken), or puts it in the place of the one with its name, whose being the default it keeps. */
void quire_presets_put (GPtrArray *presets, QuirePreset *preset);
/* FALSE when the new name is empty or another one's. */
gboolean quire_presets_rename (GPtrArray *presets, const char *name, const char *new_name);
void quire_presets_remove (GPtrArray *presets, const char *name);
/* @name: NULL for none. */
void quire_presets_set_default (GPtrArray *presets, const char *name);

G_DEFINE_AUTOPTR_CLEANUP_FUNC (QuirePreset, quire_preset_free)

G_END_DECLS
