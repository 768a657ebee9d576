/* quire-layout.h: which of sidebar and panel dock and which float over the chat, from the width. No GTK. */
#pragma once
#include <glib.h>

G_BEGIN_DECLS

typedef struct
{
  gboolean sidebar_docked;
  gboolean panel_docked;
} QuireLayout;

/* @width: of the window in pixels; @text_scale: 1 at the default text size. @panel_open: the user wants the panel;
 * @panes: a comparison is in front. */
QuireLayout quire_layout_for_width (int width, double text_scale, gboolean panel_open,
                                    gboolean panes);
/* Below this, sidebar and panel are never open together, and the panel's button moves into the menu. */
gboolean quire_layout_is_narrow (int width, double text_scale);

G_END_DECLS
