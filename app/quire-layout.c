/* quire-layout.c: the table of widths.
 *
 *   width / text scale   sidebar                       panel
 *   below 600            overlay                       overlay
 *   600-679              docked                        overlay
 *   680-999              docked, overlay while the     docked
 *                        panel is open
 *   from 1000            docked                        docked
 * While a comparison is in front, whose panes stand beside each other, the last line begins at 1400. */
#include "app/quire-layout.h"

enum
{
  WIDTH_SIDEBAR_MIN = 600,
  WIDTH_PANEL_MIN = 680,
  WIDTH_BOTH_MIN = 1000,
  WIDTH_BOTH_MIN_PANES = 1400,
};

static double
scaled (int width, double text_scale)
{
  return width / MAX (text_scale, 0.1);
}

QuireLayout
quire_layout_for_width (int width, double text_scale, gboolean panel_open, gboolean panes)
{
  int both_min = panes ? WIDTH_BOTH_MIN_PANES : WIDTH_BOTH_MIN;
  double w = scaled (width, text_scale);
  QuireLayout layout = { FALSE, FALSE };

  layout.panel_docked = w >= WIDTH_PANEL_MIN;
  layout.sidebar_docked
      = w >= both_min || (w >= WIDTH_SIDEBAR_MIN && !(panel_open && layout.panel_docked));
  return layout;
}

gboolean
quire_layout_is_narrow (int width, double text_scale)
{
  return scaled (width, text_scale) < WIDTH_SIDEBAR_MIN;
}
