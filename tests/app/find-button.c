/* find-button.c: linked into the real window, for a test that looks at it and clicks it from outside. SIGUSR2: writes what is
 * on show to the file $QUIRE_TEST_SEEN, "button ACTION X Y" for each button that can be clicked and "label TEXT". */
#include <glib-unix.h>
#include <gtk/gtk.h>
#include <signal.h>

#include "app/quire-figures.h"

/* @x, @y: of @root in its surface, which has no other place than the screen's corner here. */
static void add(GtkWidget *widget, GtkWidget *root, double x, double y, GString *out)
{
    graphene_point_t at;

    if (!gtk_widget_get_mapped(widget))
        return;
    if (GTK_IS_BUTTON(widget) && gtk_widget_is_sensitive(widget) &&
        gtk_actionable_get_action_name(GTK_ACTIONABLE(widget)) != NULL &&
        gtk_widget_compute_point(widget, root,
            &GRAPHENE_POINT_INIT(
                (float)gtk_widget_get_width(widget) / 2, (float)gtk_widget_get_height(widget) / 2),
            &at))
        g_string_append_printf(out, "button %s %d %d\n",
            gtk_actionable_get_action_name(GTK_ACTIONABLE(widget)), (int)(x + at.x), (int)(y + at.y));
    if (GTK_IS_LABEL(widget))
        g_string_append_printf(out, "label %s\n", gtk_label_get_text(GTK_LABEL(widget)));
    if (QUIRE_IS_FIGURES(widget)) {
        g_autofree char *line = g_strjoinv(" · ", (char **)quire_figures_get(QUIRE_FIGURES(widget)));

        g_string_append_printf(out, "label %s\n", line);
    }
    for (GtkWidget *child = gtk_widget_get_first_child(widget); child != NULL;
         child = gtk_widget_get_next_sibling(child))
        add(child, root, x, y, out);
}

static gboolean write_cb(gpointer user)
{
    GtkApplication *application = GTK_APPLICATION(g_application_get_default());
    g_autoptr(GString) out = g_string_new(NULL);
    double x, y;

    for (GList *l = application != NULL ? gtk_application_get_windows(application) : NULL; l != NULL;
         l = l->next) {
        gtk_native_get_surface_transform(GTK_NATIVE(l->data), &x, &y);
        add(l->data, l->data, x, y, out);
    }
    g_file_set_contents(g_getenv("QUIRE_TEST_SEEN"), out->str, (gssize)out->len, NULL);
    return G_SOURCE_CONTINUE;
}

static void __attribute__((constructor)) listen(void)
{
    if (g_getenv("QUIRE_TEST_SEEN") != NULL)
        g_unix_signal_add(SIGUSR2, write_cb, NULL);
}
