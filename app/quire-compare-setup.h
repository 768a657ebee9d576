/* quire-compare-setup.h: what is to be compared: the prompt, the modes, how they run, and what that needs. */
#pragma once
#include <adwaita.h>
#include "app/quire-compare.h"

G_BEGIN_DECLS

#define QUIRE_TYPE_COMPARE_SETUP (quire_compare_setup_get_type ())
G_DECLARE_FINAL_TYPE (QuireCompareSetupView, quire_compare_setup, QUIRE, COMPARE_SETUP, GtkBox)

/* Signal start. @prompt: (element-type qe_message), copied; may be empty. @settings: of a turn of that chat. */
GtkWidget *quire_compare_setup_new (QuireEngineClient *client, GArray *prompt,
                                    const QuireTurnSettings *settings, QuireCacheChoice present);
/* What is chosen; title and source are left as they are. Returns: (element-type qe_message) the prompt, owned, its text
 * borrowed until the next change. */
GArray *quire_compare_setup_get (QuireCompareSetupView *self, QuireCompareSetup *out);
/* What is said about the need. Borrowed. */
const char *quire_compare_setup_get_need (QuireCompareSetupView *self);
/* For tests. */
GtkWidget *quire_compare_setup_get_check (QuireCompareSetupView *self, QuireCacheChoice choice);
GtkWidget *quire_compare_setup_get_start (QuireCompareSetupView *self);
void quire_compare_setup_set_timed (QuireCompareSetupView *self, guint index);
void quire_compare_setup_set_interleaved (QuireCompareSetupView *self, gboolean interleaved);

G_END_DECLS
