/* quire-paths.h: where files lie. No GTK. Any thread. */
#pragma once
#include <glib.h>

G_BEGIN_DECLS

/* The folder that holds demo-model/: $QUIRE_DATA_DIR, else share/quire beside the running program's folder, else where it
 * was configured to be installed. Returns: owned. */
char *quire_dup_data_dir (void);
/* Of the translations, found likewise. Returns: owned. */
char *quire_dup_locale_dir (void);
/* The model to use when none is named: $QUIRE_MODEL, else the shipped one. Returns: owned. */
char *quire_dup_default_model_dir (void);
/* Where measured ways to host memory are kept, for every program of Quire: of the user's cache. Static. */
const char *quire_host_paths_file (void);
/* The database of conversations: $XDG_DATA_HOME/quire/history.db. Returns: owned. */
char *quire_dup_history_path (void);

G_END_DECLS
