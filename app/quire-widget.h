/* quire-widget.h: small things that are done to widgets everywhere. Main thread. */
#pragma once
#include <adwaita.h>

G_BEGIN_DECLS

/* Has @widget the style class @name? From now on as @on says. */
void quire_widget_set_class (GtkWidget *widget, const char *name, gboolean on);
/* What a screen reader calls @widget. */
void quire_widget_set_label (GtkWidget *widget, const char *label);
/* Says the words of @by, and of @also unless it is NULL, for @widget: as they are at the time. */
void quire_widget_set_labelled_by (GtkWidget *widget, GtkWidget *by, GtkWidget *also);

/* gtk_button_new_with_mnemonic(), but called by its words alone: GTK 4.8 says them twice, once with the underscore. */
GtkWidget *quire_mnemonic_button_new (const char *label);
GtkWidget *quire_mnemonic_check_new (const char *label);

/* A drop-down and the button in it, which has the focus. */
void quire_drop_down_set_label (GtkDropDown *drop_down, const char *label);

/* Names what the libraries leave without a name in @root, now and as popovers open: the buttons of info bars and tabs, rows
 * of combos and expanders, what has a tooltip alone. What has a name keeps it. */
void quire_widget_name_all (GtkWidget *root);
/* Does so for the tabs of @bar, which has its view, as they come. */
void quire_widget_name_tabs (AdwTabBar *bar);
/* Does so for the toasts of @overlay as they come. */
void quire_widget_name_toasts (AdwToastOverlay *overlay);
/* Does so for each window that opens, from now on. */
void quire_widget_name_windows (void);

G_END_DECLS
