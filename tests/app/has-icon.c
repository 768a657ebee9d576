/* has-icon.c: whether GTK finds the icons that are named, as it does for a window. */
#include <gtk/gtk.h>

int main(int argc, char **argv)
{
    GtkIconTheme *theme;

    if (!gtk_init_check())
        return 77;
    theme = gtk_icon_theme_get_for_display(gdk_display_get_default());
    for (int i = 1; i < argc; i++)
        if (!gtk_icon_theme_has_icon(theme, argv[i])) {
            g_printerr("no icon %s\n", argv[i]);
            return 1;
        }
    return 0;
}
