/* quire-combo.h: combo rows whose value is read whole in a narrow window: libadwaita's own gives all room to the subtitle. */
#pragma once
#include <adwaita.h>

G_BEGIN_DECLS

/* @row: of a GtkStringList. The title and the subtitle give way to the value. */
void quire_combo_row_show_whole (AdwComboRow *row);

G_END_DECLS
