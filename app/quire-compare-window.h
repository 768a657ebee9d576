/* quire-compare-window.h: the last prompt of a chat in two cache modes, figures and answers side by side. */
#pragma once
#include <adwaita.h>
#include "app/quire-compare.h"

G_BEGIN_DECLS

#define QUIRE_TYPE_COMPARE_WINDOW (quire_compare_window_get_type ())
G_DECLARE_FINAL_TYPE (QuireCompareWindow, quire_compare_window, QUIRE, COMPARE_WINDOW, AdwWindow)

GtkWindow *quire_compare_window_new (GtkWindow *parent, QuireConversation *conversation);
/* What it shows. Borrowed. */
QuireCompare *quire_compare_window_get_compare (QuireCompareWindow *self);

G_END_DECLS
