/* quire-engine-client.h: the application's end of the engine. No GTK. Main thread only.
 *
 * The engine says "there is news" on its own thread; here that becomes one GSource of idle priority, so that input and
 * drawing always go first and at most one call is waiting however fast the model writes. */
#pragma once
#include <gio/gio.h>
#include "engine/qe.h"

G_BEGIN_DECLS

#define QUIRE_TYPE_ENGINE_CLIENT (quire_engine_client_get_type ())
G_DECLARE_FINAL_TYPE (QuireEngineClient, quire_engine_client, QUIRE, ENGINE_CLIENT, GObject)

/* Signals:
 *   status-changed    the engine's state, load progress, model or error
 *   snapshot-changed  a newer snapshot is there
 *   news              some request may have news; each conversation looks at its own
 *   sessions-lost     every session id is void: another model, or another engine
 *   engine-leaving    the engine is about to be replaced: whoever borrows it lets go of it now; status-changed follows
 *   turn-asked        quire_engine_client_generate() is about to ask: what can wait gives way */

/* Call quire_engine_client_start() next. */
QuireEngineClient *quire_engine_client_new (void);

/* Starts the engine, or replaces it: the new one ends the old one first, and the model that was loaded is loaded again.
 * @options: its wakeup is overwritten. */
gboolean quire_engine_client_start (QuireEngineClient *self, const qe_engine_options *options,
                                    GError **error);
/* Loads @dir; the model before it goes, and with it all sessions. */
void quire_engine_client_load (QuireEngineClient *self, const char *dir);
void quire_engine_client_unload (QuireEngineClient *self);
void quire_engine_client_recover (QuireEngineClient *self);
/* Gives the device's memory back; sessions stay, and quire_engine_client_recover() is the way back. @why: a sentence for
 * the user, kept until the model is there again. */
void quire_engine_client_release (QuireEngineClient *self, const char *why);
/* NULL unless the state is RELEASED. Borrowed. */
const char *quire_engine_client_get_release_reason (QuireEngineClient *self);
/* Asks a device that nothing runs on whether it is still there, as after the machine slept. */
void quire_engine_client_check (QuireEngineClient *self);
/* When something was asked of the model last, or a reply ran: g_get_monotonic_time(). */
gint64 quire_engine_client_get_last_use (QuireEngineClient *self);
/* Bytes of the card's memory that the model of now takes, and gives back when another one is loaded. */
guint64 quire_engine_client_get_device_bytes (QuireEngineClient *self);
/* What the engine has for pages, to work out what a mode costs: the live limits, with the sizes of a page. NULL until
 * known. Borrowed until the next main loop iteration. */
const qe_memory_plan *quire_engine_client_get_plan (QuireEngineClient *self);
/* Another budget of cache memory, 0 for the default; the model and the chats stay. */
void quire_engine_client_set_cache (QuireEngineClient *self, guint64 bytes);
/* The folder last asked for; NULL before the first. */
const char *quire_engine_client_get_model_dir (QuireEngineClient *self);

/* The engine itself, for the local server; NULL before the first start. Borrowed until engine-leaving. */
qe_engine *quire_engine_client_get_engine (QuireEngineClient *self);
/* Borrowed until the next main loop iteration. Never NULL. */
const qe_engine_status *quire_engine_client_get_status (QuireEngineClient *self);
/* Borrowed until the next snapshot-changed; NULL before the engine started. */
const qe_snapshot *quire_engine_client_get_snapshot (QuireEngineClient *self);
/* The session in the present snapshot, or NULL. Borrowed as the snapshot is. */
const qe_session_view *quire_engine_client_find_session (QuireEngineClient *self,
                                                         qe_session_id session);
gboolean quire_engine_client_is_ready (QuireEngineClient *self);
/* This process lost its card and could not have it again: loading again failed, or ended on another device. */
gboolean quire_engine_client_needs_restart (QuireEngineClient *self);

qe_session_id quire_engine_client_open_session (QuireEngineClient *self,
                                                const qe_session_options *options, GError **error);
/* Another cache mode for @session from its next turn on. QE_ERROR_BUSY while a reply runs. */
gboolean quire_engine_client_set_session_cache (QuireEngineClient *self, qe_session_id session,
                                                const qe_cache_config *config, GError **error);
/* @session came to the front; 0 is fine. */
void quire_engine_client_prefetch (QuireEngineClient *self, qe_session_id session);
/* Deletes all that the disk tier has of the conversation @disk_key. */
void quire_engine_client_delete_files (QuireEngineClient *self, const char *disk_key);
void quire_engine_client_close_session (QuireEngineClient *self, qe_session_id session);
/* As qe_engine_fork_session(). */
qe_session_id quire_engine_client_fork_session (QuireEngineClient *self, qe_session_id parent,
                                                guint keep_messages, GError **error);
/* As qe_engine_generate(), with this client's wakeup. Returns: owned. */
qe_request *quire_engine_client_generate (QuireEngineClient *self, qe_generate_params *params,
                                          GError **error);
/* The same for what is no turn of the user's: nothing gives way to it. */
qe_request *quire_engine_client_generate_aside (QuireEngineClient *self, qe_generate_params *params,
                                                GError **error);

/* NULL while no model is loaded. Returns: owned. */
qe_tokenizer *quire_engine_client_dup_tokenizer (QuireEngineClient *self);

/* Counts the tokens of @text on a worker thread. @callback gets the count from
 * quire_engine_client_count_finish(), or -1 with @error (no model). */
void quire_engine_client_count_async (QuireEngineClient *self, const char *text,
                                      GCancellable *cancellable, GAsyncReadyCallback callback,
                                      gpointer user_data);
gssize quire_engine_client_count_finish (QuireEngineClient *self, GAsyncResult *result,
                                         GError **error);

/* As above, of each of @texts (NULL-terminated, copied). */
void quire_engine_client_count_list_async (QuireEngineClient *self, const char *const *texts,
                                           GCancellable *cancellable, GAsyncReadyCallback callback,
                                           gpointer user_data);
/* Returns: (element-type guint) owned; NULL with @error. */
GArray *quire_engine_client_count_list_finish (QuireEngineClient *self, GAsyncResult *result,
                                               GError **error);

/* Reads and checks a model folder on a worker thread. */
void quire_model_info_read_async (const char *dir, GCancellable *cancellable,
                                  GAsyncReadyCallback callback, gpointer user_data);
/* Returns: owned. */
qe_model_info *quire_model_info_read_finish (GAsyncResult *result, GError **error);

/* What the machine has and what the model in @dir would take of it, worked out on a worker thread. */
typedef struct
{
  GPtrArray *devices;   /* qe_device_desc */
  qe_memory_plan *plan; /* NULL when the folder is no model */
} QuireMachine;

void quire_machine_free (QuireMachine *machine);
G_DEFINE_AUTOPTR_CLEANUP_FUNC (QuireMachine, quire_machine_free)
void quire_machine_read_async (const char *dir, const qe_engine_options *options,
                               GCancellable *cancellable, GAsyncReadyCallback callback,
                               gpointer user_data);
/* Returns: owned; NULL when cancelled. */
QuireMachine *quire_machine_read_finish (GAsyncResult *result, GError **error);

G_END_DECLS
