/* quire-settings.h: GSettings of the application as the values that the engine wants. No GTK. Main thread only. */
#pragma once
#include "app/quire-conversation.h"

G_BEGIN_DECLS

#define QUIRE_SETTINGS_ID "io.github.quire_chat.Quire"

/* Borrowed; one for the process. */
GSettings *quire_settings_get_default (void);
/* FALSE when the schema is not installed: then nothing else here may be called. */
gboolean quire_settings_exist (void);
/* Sampling: the model's own values, or the user's. */
void quire_settings_get_turn (const qe_model_info *model, QuireTurnSettings *out);
typedef struct
{
  qe_engine_options options; /* its strings are the three below */
  char *backend, *device, *disk_dir;
} QuireEngineSettings;

/* @backend: overrides the setting; may be NULL. */
void quire_settings_get_engine (const char *backend, QuireEngineSettings *out);
void quire_engine_settings_clear (QuireEngineSettings *settings);
/* Where pages are kept over restarts when the disk tier is on. Returns: owned. */
char *quire_settings_dup_disk_dir (void);
/* The mode of new chats. */
QuireCacheChoice quire_settings_get_cache (void);
/* The chosen folder, or the shipped model's. Returns: owned. */
char *quire_settings_dup_model_dir (void);

/* @dir holds the model that comes with the program. */
gboolean quire_model_is_shipped (const char *dir);
/* The name to show: of the shipped model its own, of others their folder's. Returns: owned. */
char *quire_model_dup_name (const qe_model_info *model);

G_END_DECLS
