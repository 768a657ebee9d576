/* quire-keeper.h: what the application does about its model through a day: gives memory back after idle minutes, looks
 * after the device when the machine has slept. No GTK. Main thread only.
 *
 * It sleeps itself: one timer that is set for the moment when something may be due, and a signal of the system's login
 * manager. */
#pragma once
#include "app/quire-engine-client.h"

G_BEGIN_DECLS

#define QUIRE_TYPE_KEEPER (quire_keeper_get_type ())
G_DECLARE_FINAL_TYPE (QuireKeeper, quire_keeper, QUIRE, KEEPER, GObject)

QuireKeeper *quire_keeper_new (QuireEngineClient *client);
/* The user wants the memory back now. */
void quire_keeper_release_now (QuireKeeper *self);
/* Milliseconds in an idle minute: 60,000, but for tests. */
void quire_keeper_set_minute_ms (QuireKeeper *self, guint ms);

G_END_DECLS
