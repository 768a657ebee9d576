/* quire-restart.h: the program starts again in its own place: another image under the same process id. A card that a process
 * has lost does not come back to that process whatever is reset; a new image has it at once. No GTK. Main thread. */
#pragma once
#include <gio/gio.h>

G_BEGIN_DECLS

/* Replaces the program by itself with @argv, NULL-terminated, the program's name first. All that has to be kept is on the
 * disk by now, and no other thread works on what must be whole. @name: given up on the session bus first, so that the new
 * image finds no other instance there; NULL: none. Standard input and output stay, all other files are closed, the environment
 * is kept. Returns only when that fails, with @error. */
void quire_restart_in_place (char **argv, const char *name, GError **error);

G_END_DECLS
