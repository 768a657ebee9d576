/* fake-im.h: an input method for tests. While active it composes letters and commits them in capitals on Enter, and
 * drops them on Escape. */
#pragma once
#include <gtk/gtk.h>

/* After gtk_init(), before the first text widget. */
void fake_im_register(void);
void fake_im_set_active(gboolean active);
gboolean fake_im_is_composing(void);
