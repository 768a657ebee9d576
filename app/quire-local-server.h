/* quire-local-server.h: the local server as the settings have it: on or off, its port, this machine alone or the network
 * with a token. Follows the engine client. No GTK. Main thread only. */
#pragma once
#include "app/quire-engine-client.h"

G_BEGIN_DECLS

#define QUIRE_TYPE_LOCAL_SERVER (quire_local_server_get_type ())
G_DECLARE_FINAL_TYPE (QuireLocalServer, quire_local_server, QUIRE, LOCAL_SERVER, GObject)

/* Signals:
 *   changed    it started, stopped or failed to; or the token is another one */

/* Starts when the settings say so. @client: a reference is taken; it must not be freed while requests run. */
QuireLocalServer *quire_local_server_new (QuireEngineClient *client);

/* "http://127.0.0.1:8377/"; NULL while it does not run. Borrowed. Beyond this machine: the address in the network, when
 * there is one. */
const char *quire_local_server_get_uri (QuireLocalServer *self);
/* Why it does not run although it should, in the user's words; NULL: nothing is wrong. Borrowed. */
const char *quire_local_server_get_problem (QuireLocalServer *self);
/* What clients must show; NULL: none is needed, or it is not known yet. Borrowed. */
const char *quire_local_server_get_token (QuireLocalServer *self);
/* Where the token is kept: the keyring, or a file. Borrowed; NULL while there is no token. */
const char *quire_local_server_get_token_place (QuireLocalServer *self);
/* A new random token; clients with the old one are refused from now on. */
void quire_local_server_renew_token (QuireLocalServer *self);

G_END_DECLS
