/* quire-server-group.h: the local server's rows in Preferences: its switch, address and state, port, token. */
#pragma once
#include <adwaita.h>

G_BEGIN_DECLS

#define QUIRE_TYPE_SERVER_GROUP (quire_server_group_get_type ())
G_DECLARE_FINAL_TYPE (QuireServerGroup, quire_server_group, QUIRE, SERVER_GROUP,
                      AdwPreferencesGroup)

G_END_DECLS
