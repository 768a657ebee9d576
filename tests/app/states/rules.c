/* rules.c: what every state keeps in every look. */
#include <adwaita.h>
#include <math.h>
#include <string.h>

#include "app/quire-announcer.h"
#include "app/quire-figures.h"
#include "app/quire-page-map.h"
#include "tests/app/states/states.h"
#include "tests/app/ui-harness.h"

/* Margins and borders of the style may lie outside by some pixels. */
#define OUTSIDE_PX 13
/* Rounding of text layouts. */
#define LAYOUT_PX 2

static void G_GNUC_PRINTF(2, 3) fault(GPtrArray *faults, const char *format, ...)
{
    va_list args;

    va_start(args, format);
    g_ptr_array_add(faults, g_strdup_vprintf(format, args));
    va_end(args);
}

static gboolean is_one_of(GtkWidget *widget, const char *const *types)
{
    for (int i = 0; types[i] != NULL; i++)
        if (strcmp(G_OBJECT_TYPE_NAME(widget), types[i]) == 0)
            return TRUE;
    return FALSE;
}

static gboolean within(GtkWidget *widget, const char *const *types)
{
    for (; widget != NULL; widget = gtk_widget_get_parent(widget))
        if (is_one_of(widget, types))
            return TRUE;
    return FALSE;
}

/* ---- Names ---- */

static gboolean is_named(GtkWidget *widget)
{
    const char *tooltip = gtk_widget_get_tooltip_text(widget);
    GtkAccessible *accessible = GTK_ACCESSIBLE(widget);

    return (tooltip != NULL && tooltip[0] != '\0') || says_something(widget) ||
           gtk_test_accessible_has_property(accessible, GTK_ACCESSIBLE_PROPERTY_LABEL) ||
           gtk_test_accessible_has_relation(accessible, GTK_ACCESSIBLE_RELATION_LABELLED_BY);
}

static gboolean is_control(GtkWidget *widget)
{
    /* What libraries build in: window buttons and a tab's own name themselves. */
    static const char *const theirs[] = {"GtkWindowControls", "AdwTab", "GtkSpinButton", "GtkDropDown",
        "GtkColumnView", "GtkSearchEntry", "GtkExpander", "GtkShortcutsWindow", "AdwAboutWindow",
        "AdwEntryRow", "AdwComboRow", "AdwToast", "AdwToastWidget", "GtkInfoBar", "GtkPopoverMenu",
        "AdwExpanderRow", NULL};

    if (GTK_IS_TEXT_VIEW(widget) || GTK_IS_SEARCH_ENTRY(widget) || GTK_IS_SPIN_BUTTON(widget) ||
        GTK_IS_DROP_DOWN(widget) || GTK_IS_SWITCH(widget) || GTK_IS_CHECK_BUTTON(widget) ||
        GTK_IS_ENTRY(widget) || QUIRE_IS_PAGE_MAP(widget))
        return !within(gtk_widget_get_parent(widget), theirs);
    return (GTK_IS_BUTTON(widget) || GTK_IS_MENU_BUTTON(widget)) && !within(widget, theirs) &&
           !GTK_IS_MENU_BUTTON(gtk_widget_get_parent(widget));
}

/* ---- Places ---- */

static void check_place(GtkWidget *widget, GPtrArray *faults)
{
    /* These move or cut their children on purpose. */
    static const char *const cutting[] = {"GtkViewport", "GtkRevealer", "AdwFlap", "GtkStack", "AdwTabBox",
        "AdwTabView", "GtkListView", "GtkColumnView", "GtkColumnListView", "GtkScrolledWindow", "GtkText",
        "GtkTextView", "GtkSourceView", "GtkSwitch", "GtkScale", "GtkRange", "GtkPopoverContent",
        "GtkOverlay", "AdwTabPage", "AdwTab", "AdwFadingLabel", "GtkColumnViewRowWidget", "GtkListItemWidget",
        "GtkTreeExpander", "GtkProgressBar", "GtkTrough", "AdwEntryRow", "AdwSqueezer", "AdwLeaflet",
        "AdwViewStack", NULL};
    GtkWidget *parent = gtk_widget_get_parent(widget);
    graphene_rect_t r;
    float w, h;

    if (parent == NULL || GTK_IS_NATIVE(widget) || GTK_IS_NATIVE(parent) ||
        gtk_widget_get_width(widget) == 0 || is_one_of(parent, cutting) ||
        !gtk_widget_compute_bounds(widget, parent, &r))
        return;
    w = (float)gtk_widget_get_width(parent);
    h = (float)gtk_widget_get_height(parent);
    if (r.origin.x < -OUTSIDE_PX || r.origin.y < -OUTSIDE_PX || r.origin.x + r.size.width > w + OUTSIDE_PX ||
        r.origin.y + r.size.height > h + OUTSIDE_PX) {
        g_autofree char *text = describe_widget(widget);

        fault(faults, "outside its parent (%.0f,%.0f %.0fx%.0f in %.0fx%.0f): %s", r.origin.x, r.origin.y,
            r.size.width, r.size.height, w, h, text);
    }
}

/* ---- Texts ---- */

/* Lists, tabs and titles may cut a name, and buttons whose label is the name of something; nothing else. */
static gboolean may_be_cut(GtkLabel *label)
{
    static const char *const lists[] = {
        "GtkColumnView", "AdwTab", "AdwWindowTitle", "QuireSidebar", "GtkDropDown", "QuireChips", NULL};
    static const char *const bars[] = {"AdwHeaderBar", NULL};
    static const char *const named[] = {"QuireComposer", NULL};
    static const char *const panels[] = {"QuireCachePanel", NULL};
    GtkWidget *widget = GTK_WIDGET(label);
    GtkWidget *button = gtk_widget_get_ancestor(widget, GTK_TYPE_BUTTON);

    if (within(widget, lists) || gtk_label_get_lines(label) > 1)
        return TRUE;
    /* A window's title gives way to its buttons. */
    if (within(widget, bars) && gtk_widget_has_css_class(widget, "title"))
        return TRUE;
    /* The model's name and the mode's in the composer, the chat's over its pages. */
    return button != NULL && ((within(widget, named) && GTK_IS_MENU_BUTTON(gtk_widget_get_parent(button))) ||
                                 (within(widget, panels) && gtk_widget_has_css_class(button, "band-header")));
}

static void check_label(GtkLabel *label, GPtrArray *faults)
{
    PangoLayout *layout = gtk_label_get_layout(label);
    int width, height, have_width = gtk_widget_get_width(GTK_WIDGET(label)),
                       have_height = gtk_widget_get_height(GTK_WIDGET(label));
    const char *how = NULL;

    if (have_width <= 0 || gtk_label_get_text(label)[0] == '\0')
        return;
    pango_layout_get_pixel_size(layout, &width, &height);
    if (pango_layout_is_ellipsized(layout))
        how = may_be_cut(label) ? NULL : "cut";
    else if (gtk_label_get_ellipsize(label) == PANGO_ELLIPSIZE_NONE && width > have_width + LAYOUT_PX)
        how = "too wide";
    else if (height > have_height + LAYOUT_PX)
        how = "too high";
    if (how != NULL) {
        g_autofree char *text = describe_widget(GTK_WIDGET(label));

        fault(faults, "%s (%dx%d in %dx%d): %s", how, width, height, have_width, have_height, text);
    }
}

/* ---- All ---- */

static guint n_bars;

static void check_widget(GtkWidget *widget, GPtrArray *faults)
{
    if (!gtk_widget_get_visible(widget) || !gtk_widget_get_child_visible(widget) ||
        !gtk_widget_get_mapped(widget))
        return;
    /* One pixel, with words for screen readers alone. */
    if (QUIRE_IS_ANNOUNCER(widget))
        return;
    check_place(widget, faults);
    if (GTK_IS_LABEL(widget))
        check_label(GTK_LABEL(widget), faults);
    if (QUIRE_IS_FIGURES(widget) && quire_figures_is_cut(QUIRE_FIGURES(widget)))
        fault(faults, "figures are cut");
    if (GTK_IS_INFO_BAR(widget) && gtk_info_bar_get_revealed(GTK_INFO_BAR(widget)))
        n_bars++;
    if (is_control(widget) && !is_named(widget)) {
        g_autofree char *text = describe_widget(widget);

        fault(faults, "no name: %s", text);
    }
    for (GtkWidget *child = gtk_widget_get_first_child(widget); child != NULL;
         child = gtk_widget_get_next_sibling(child))
        check_widget(child, faults);
}

void rules_check(GtkWidget *top, int width_max, GPtrArray *faults)
{
    GtkWidget *content = gtk_widget_get_first_child(top);
    int minimum;

    n_bars = 0;
    check_widget(top, faults);
    if (n_bars > 1)
        fault(faults, "%u bars at once", n_bars);
    if (ADW_IS_APPLICATION_WINDOW(top))
        content = adw_application_window_get_content(ADW_APPLICATION_WINDOW(top));
    gtk_widget_measure(content, GTK_ORIENTATION_HORIZONTAL, -1, &minimum, NULL, NULL, NULL);
    /* GTK's own window of shortcuts has the width of its columns. */
    if (minimum > width_max && !GTK_IS_SHORTCUTS_WINDOW(top))
        fault(faults, "%s is at least %d px wide", G_OBJECT_TYPE_NAME(top), minimum);
}

static double luminance(const GdkRGBA *c)
{
    const double v[3] = {c->red, c->green, c->blue};
    double l[3];

    for (int i = 0; i < 3; i++)
        l[i] = v[i] <= 0.04045 ? v[i] / 12.92 : pow((v[i] + 0.055) / 1.055, 2.4);
    return 0.2126 * l[0] + 0.7152 * l[1] + 0.0722 * l[2];
}

void rules_check_contrast(GtkWidget *top, GPtrArray *faults)
{
    static const char *const names[] = {"quire_tier_gpu", "quire_tier_host", "quire_tier_disk"};
    GtkStyleContext *context = gtk_widget_get_style_context(top);
    GdkRGBA ground, color;

    if (!gtk_style_context_lookup_color(context, "window_bg_color", &ground)) {
        fault(faults, "the style has no window_bg_color");
        return;
    }
    for (gsize i = 0; i < G_N_ELEMENTS(names); i++) {
        double a = luminance(&ground), b, contrast;

        if (!gtk_style_context_lookup_color(context, names[i], &color)) {
            fault(faults, "no colour %s", names[i]);
            continue;
        }
        b = luminance(&color);
        contrast = (MAX(a, b) + 0.05) / (MIN(a, b) + 0.05);
        if (contrast < 3)
            fault(faults, "%s has a contrast of %.2f", names[i], contrast);
    }
}
