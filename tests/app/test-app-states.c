/* test-app-states.c: every state of the window in every look, held to rules; and as pictures, for people.
 *
 * A look is a style, a width, a direction, a text size, or longer words. For each state in each look: no warning came, no
 * window is wider than 360 px at least (390 with large text), no widget lies outside its parent, no label is cut outside
 * a list, one bar is shown at most, every control has a name. Tiers stand out from what they are drawn on by 3:1.
 *
 * By itself it shows each state in one look, and each look with some states. With QUIRE_TEST_STATES it writes pictures to
 * $QUIRE_TEST_SHOTS/states: "all", or names of states and looks, by commas (`./dev shots` does),
 * in $QUIRE_TEST_LANGUAGE where that is set; states that look for words then find none. */
#include <adwaita.h>
#include <string.h>

#include "app/quire-settings.h"
#include "tests/app/states/states.h"
#include "tests/app/ui-harness.h"

/* A fault that is still there after so many frames is one: what is on its way has arrived. */
#define FRAMES       4
#define FRAMES_MAX   60
#define LARGE_SCALE  1.5
#define NARROW_PX    360
#define NARROW_LARGE 390

int look_width, look_height;

typedef enum { DARK = 1, CONTRAST = 2, RTL = 4, PSEUDO = 8, LARGE = 16 } Style;

typedef struct {
    const char *name;
    int width, height;
    guint style;
} Look;

static const Look looks[] = {
    {"light-1200", 1200, 760, 0},
    {"light-900", 900, 600, 0},
    {"light-360", NARROW_PX, 640, 0},
    {"dark-1200", 1200, 760, DARK},
    {"dark-900", 900, 600, DARK},
    {"dark-360", NARROW_PX, 640, DARK},
    {"contrast-1200", 1200, 760, CONTRAST},
    {"contrast-900", 900, 600, CONTRAST},
    {"contrast-360", NARROW_PX, 640, CONTRAST},
    {"contrast-dark-1200", 1200, 760, CONTRAST | DARK},
    {"rtl-1200", 1200, 760, RTL},
    {"rtl-360", NARROW_PX, 640, RTL},
    {"pseudo-1200", 1200, 760, PSEUDO},
    {"pseudo-360", NARROW_PX, 640, PSEUDO},
    {"large-1200", 1200, 760, LARGE},
    {"large-390", NARROW_LARGE, 640, LARGE},
};

/* ---- Warnings ---- */

static GPtrArray *warnings;

static GLogWriterOutput log_cb(GLogLevelFlags level, const GLogField *fields, gsize n_fields, gpointer data)
{
    const char *domain = "", *message = "";

    for (gsize i = 0; i < n_fields; i++)
        if (strcmp(fields[i].key, "GLIB_DOMAIN") == 0)
            domain = fields[i].value;
        else if (strcmp(fields[i].key, "MESSAGE") == 0)
            message = fields[i].value;
    /* A tooltip's time comes when its window has gone. */
    if (g_str_has_prefix(message, "gdk_surface_get_device_position: ") ||
        g_str_has_prefix(message, "_gtk_widget_find_at_coords: "))
        return G_LOG_WRITER_HANDLED;
    if ((level & (G_LOG_LEVEL_CRITICAL | G_LOG_LEVEL_WARNING)) != 0 && warnings != NULL)
        g_ptr_array_add(warnings, g_strdup_printf("%s: %s", domain, message));
    return (level & G_LOG_LEVEL_MASK) >= G_LOG_LEVEL_INFO
               ? G_LOG_WRITER_HANDLED
               : g_log_writer_default(level & ~G_LOG_FLAG_FATAL, fields, n_fields, data);
}

/* ---- Pictures ---- */

typedef struct {
    GtkWidget *widget;
    double x, y;
} Layer;

static void get_transform(GtkWidget *native, double *x, double *y)
{
    gtk_native_get_surface_transform(GTK_NATIVE(native), x, y);
}

/* The popovers over a window, each with its place on it: there is no compositor to put them together. */
static void collect_popovers(GtkWidget *widget, GArray *layers)
{
    if (GTK_IS_POPOVER(widget) && gtk_widget_get_mapped(widget)) {
        GtkWidget *parent = gtk_widget_get_parent(widget);
        GtkNative *under = gtk_widget_get_native(parent);
        GdkSurface *surface = gtk_native_get_surface(GTK_NATIVE(widget));
        Layer layer = {.widget = widget};
        double own_x, own_y, x, y;

        get_transform(GTK_WIDGET(under), &x, &y);
        get_transform(widget, &own_x, &own_y);
        layer.x = gdk_popup_get_position_x(GDK_POPUP(surface)) - x + own_x;
        layer.y = gdk_popup_get_position_y(GDK_POPUP(surface)) - y + own_y;
        for (guint i = 0; i < layers->len; i++)
            if (g_array_index(layers, Layer, i).widget == GTK_WIDGET(under)) {
                layer.x += g_array_index(layers, Layer, i).x;
                layer.y += g_array_index(layers, Layer, i).y;
            }
        g_array_append_val(layers, layer);
    }
    for (GtkWidget *child = gtk_widget_get_first_child(widget); child != NULL;
         child = gtk_widget_get_next_sibling(child))
        collect_popovers(child, layers);
}

static void shoot(GtkWidget *top, const char *name)
{
    g_autofree char *dir = g_build_filename(g_getenv("QUIRE_TEST_SHOTS"), "states", NULL);
    g_autofree char *path = g_build_filename(dir, name, NULL);
    g_autoptr(GArray) layers = g_array_new(FALSE, FALSE, sizeof(Layer));
    GtkSnapshot *snapshot = gtk_snapshot_new();
    graphene_rect_t all;
    GskRenderNode *node;

    g_array_append_val(layers, ((Layer){.widget = top}));
    collect_popovers(top, layers);
    for (guint i = 0; i < layers->len; i++) {
        const Layer *layer = &g_array_index(layers, Layer, i);
        g_autoptr(GdkPaintable) paintable = gtk_widget_paintable_new(layer->widget);
        int width = gtk_widget_get_width(layer->widget), height = gtk_widget_get_height(layer->widget);
        graphene_rect_t r = GRAPHENE_RECT_INIT((float)layer->x, (float)layer->y, (float)width, (float)height);

        if (i == 0)
            all = r;
        else
            graphene_rect_union(&all, &r, &all);
        gtk_snapshot_save(snapshot);
        gtk_snapshot_translate(snapshot, &r.origin);
        gdk_paintable_snapshot(paintable, snapshot, width, height);
        gtk_snapshot_restore(snapshot);
    }
    node = gtk_snapshot_free_to_node(snapshot);
    if (node == NULL)
        return;
    g_mkdir_with_parents(dir, 0755);
    {
        g_autoptr(GdkTexture) texture =
            gsk_renderer_render_texture(gtk_native_get_renderer(GTK_NATIVE(top)), node, &all);

        gdk_texture_save_to_png(texture, path);
    }
    gsk_render_node_unref(node);
}

/* ---- States in looks ---- */

static guint n_states(void)
{
    return (guint)(states_chat.n + states_windows.n + states_compare.n);
}

static const State *get_state(guint i)
{
    const StateTable *tables[] = {&states_chat, &states_windows, &states_compare};

    for (gsize t = 0; t < G_N_ELEMENTS(tables); t++) {
        if (i < tables[t]->n)
            return &tables[t]->states[i];
        i -= (guint)tables[t]->n;
    }
    g_assert_not_reached();
}

/* Without a wish each state is in one look, another one than its neighbours. */
static gboolean is_wanted(guint state, guint look)
{
    const char *asked = g_getenv("QUIRE_TEST_STATES");
    g_auto(GStrv) words = g_strsplit(asked != NULL ? asked : "", ",", -1);
    const char *const *list = (const char *const *)words;
    gboolean any_state = FALSE, any_look = FALSE;

    if (asked == NULL)
        return state % G_N_ELEMENTS(looks) == look;
    if (strcmp(asked, "all") == 0)
        return TRUE;
    for (guint i = 0; i < n_states(); i++)
        any_state |= g_strv_contains(list, get_state(i)->name);
    for (gsize i = 0; i < G_N_ELEMENTS(looks); i++)
        any_look |= g_strv_contains(list, looks[i].name);
    return (!any_state || g_strv_contains(list, get_state(state)->name)) &&
           (!any_look || g_strv_contains(list, looks[look].name));
}

static void open_look(const Look *look)
{
    GSettings *settings = quire_settings_get_default();

    look_width = look->width;
    look_height = look->height;
    g_settings_set_int(settings, "window-width", look->width);
    g_settings_set_int(settings, "window-height", look->height);
    window = quire_window_new(application);
    quire_window_new_chat(window);
    gtk_window_present(GTK_WINDOW(window));
    wait_for("a model", is_ready, NULL);
    wait_frames(3);
}

static void pop_down(GtkWidget *widget)
{
    if (GTK_IS_POPOVER(widget) && gtk_widget_get_mapped(widget))
        gtk_popover_popdown(GTK_POPOVER(widget));
    for (GtkWidget *child = gtk_widget_get_first_child(widget); child != NULL;
         child = gtk_widget_get_next_sibling(child))
        pop_down(child);
}

/* All that is open, then all that was kept. */
static void close_look(const State *state)
{
    GListModel *items = quire_history_get_items(quire_application_get_history(application));
    GList *windows = gtk_window_list_toplevels();

    pop_down(GTK_WIDGET(window));
    for (GList *l = windows; l != NULL; l = l->next)
        g_object_ref(l->data);
    for (GList *l = windows; l != NULL; l = l->next)
        if (l->data != window && gtk_widget_get_mapped(l->data))
            gtk_window_close(l->data);
    g_list_free_full(windows, g_object_unref);
    gtk_window_close(GTK_WINDOW(window));
    window = NULL;
    if (state->tear_down != NULL)
        state->tear_down();
    wait_for("freed pages", pages_are, GUINT_TO_POINTER(0));
    for (guint i = g_list_model_get_n_items(items); i > 0; i--) {
        g_autoptr(QuireHistoryItem) item = g_list_model_get_item(items, i - 1);

        quire_history_erase(quire_application_get_history(application), item);
    }
    g_settings_reset(quire_settings_get_default(), "panel-open");
    g_settings_reset(quire_settings_get_default(), "sidebar-open");
}

static GList *shown_windows(void)
{
    GList *windows = gtk_window_list_toplevels(), *shown = NULL;

    for (GList *l = windows; l != NULL; l = l->next)
        if (gtk_widget_get_mapped(l->data))
            shown = l->data == window ? g_list_prepend(shown, l->data) : g_list_append(shown, l->data);
    g_list_free(windows);
    return shown;
}

static void check_state(const Look *look, GPtrArray *faults)
{
    GList *shown = shown_windows();

    g_ptr_array_set_size(faults, 0);
    for (GList *l = shown; l != NULL; l = l->next)
        rules_check(l->data, (look->style & LARGE) != 0 ? NARROW_LARGE : NARROW_PX, faults);
    rules_check_contrast(GTK_WIDGET(window), faults);
    g_list_free(shown);
}

static guint show_state(const State *state, const Look *look)
{
    g_autoptr(GPtrArray) faults = g_ptr_array_new_with_free_func(g_free);
    guint n;

    warnings = g_ptr_array_new_with_free_func(g_free);
    open_look(look);
    state->set_up();
    for (int frames = 0; frames < FRAMES_MAX; frames += FRAMES) {
        wait_frames(FRAMES);
        check_state(look, faults);
        if (faults->len == 0 && frames >= FRAMES)
            break;
    }
    if (g_getenv("QUIRE_TEST_STATES") != NULL && g_getenv("QUIRE_TEST_SHOTS") != NULL) {
        GList *shown = shown_windows();

        n = 0;
        for (GList *l = shown; l != NULL; l = l->next, n++) {
            g_autofree char *suffix = n == 0 ? g_strdup("") : g_strdup_printf("+%u", n);
            g_autofree char *name = g_strdup_printf("%s-%s%s.png", state->name, look->name, suffix);

            shoot(l->data, name);
        }
        g_list_free(shown);
    }
    close_look(state);
    g_ptr_array_extend_and_steal(faults, g_steal_pointer(&warnings));
    for (n = 0; n < faults->len; n++)
        g_test_message("%s, %s: %s", state->name, look->name, (const char *)g_ptr_array_index(faults, n));
    return faults->len;
}

/* libadwaita has this for its own inspector; there is no other way without a desktop. */
typedef struct _AdwSettings AdwSettings;
AdwSettings *adw_settings_get_default(void) __attribute__((weak));
void adw_settings_start_override(AdwSettings *self) __attribute__((weak));
void adw_settings_end_override(AdwSettings *self) __attribute__((weak));
void adw_settings_override_high_contrast(AdwSettings *self, gboolean high_contrast) __attribute__((weak));

static gboolean has_contrast(void)
{
    return adw_settings_get_default != NULL && adw_settings_start_override != NULL &&
           adw_settings_end_override != NULL && adw_settings_override_high_contrast != NULL;
}

static void set_contrast(gboolean on)
{
    if (!has_contrast())
        return;
    if (on) {
        adw_settings_start_override(adw_settings_get_default());
        adw_settings_override_high_contrast(adw_settings_get_default(), TRUE);
    } else
        adw_settings_end_override(adw_settings_get_default());
}

static void test_look(gconstpointer data)
{
    const Look *look = data;
    AdwStyleManager *style = adw_style_manager_get_default();
    GtkSettings *settings = gtk_settings_get_default();
    gint64 began = g_get_monotonic_time();
    guint n_faults = 0, n_shown = 0;
    /* Out of the windows: nothing is shown as under the pointer. */
    const char *away[] = {"xdotool", "mousemove", "1199", "799", NULL};

    if ((look->style & CONTRAST) != 0 && !has_contrast()) {
        g_test_skip("this libadwaita has no way to high contrast without a desktop");
        return;
    }
    run(away);
    adw_style_manager_set_color_scheme(
        style, (look->style & DARK) != 0 ? ADW_COLOR_SCHEME_FORCE_DARK : ADW_COLOR_SCHEME_FORCE_LIGHT);
    if ((look->style & CONTRAST) != 0)
        set_contrast(TRUE);
    g_assert_cmpint(adw_style_manager_get_high_contrast(style), ==, (look->style & CONTRAST) != 0);
    gtk_widget_set_default_direction((look->style & RTL) != 0 ? GTK_TEXT_DIR_RTL : GTK_TEXT_DIR_LTR);
    g_object_set(settings, "gtk-xft-dpi", (int)(96 * 1024 * ((look->style & LARGE) != 0 ? LARGE_SCALE : 1)),
        "gtk-enable-animations", FALSE, NULL);
    pseudo_set((look->style & PSEUDO) != 0);
    for (guint i = 0; i < n_states(); i++)
        if (is_wanted(i, (guint)(look - looks))) {
            n_faults += show_state(get_state(i), look);
            n_shown++;
        }
    pseudo_set(FALSE);
    gtk_widget_set_default_direction(GTK_TEXT_DIR_LTR);
    g_object_set(settings, "gtk-xft-dpi", 96 * 1024, "gtk-enable-animations", TRUE, NULL);
    if ((look->style & CONTRAST) != 0)
        set_contrast(FALSE);
    adw_style_manager_set_color_scheme(style, ADW_COLOR_SCHEME_DEFAULT);
    g_test_message("%u states in %.1f s", n_shown, (double)(g_get_monotonic_time() - began) / G_USEC_PER_SEC);
    if (n_faults > 0)
        g_test_fail_printf("%u faults", n_faults);
}

/* What is said of the CPU would be in every picture. */
static void prepare(GSettings *settings)
{
    g_settings_set_boolean(settings, "cpu-note-closed", TRUE);
}

static void add_tests(void)
{
    /* A warning is a fault of its state, not the end. */
    g_log_set_always_fatal(G_LOG_FATAL_MASK);
    for (guint i = 0; i < G_N_ELEMENTS(looks); i++) {
        g_autofree char *path = g_strdup_printf("/app/states/%s", looks[i].name);

        for (guint k = 0; k < n_states(); k++)
            if (is_wanted(k, i)) {
                g_test_add_data_func(path, &looks[i], test_look);
                break;
            }
    }
}

int main(int argc, char **argv)
{
    /* A look with faults does not keep the others from being looked at. */
    char *args[] = {argv[0], (char *)"-k", NULL};

    /* GTK's own stand-in for a screen reader knows the names of widgets. */
    g_setenv("GTK_A11Y", "test", TRUE);
    g_setenv("G_DEBUG", "", TRUE);
    pseudo_set_language(g_getenv("QUIRE_TEST_LANGUAGE"));
    /* Replies are made up: the engine's one token comes as fast as it can. */
    g_unsetenv("QUIRE_ISA");
    g_log_set_writer_func(log_cb, NULL, NULL);
    return ui_main(argc > 1 ? argc : 2, argc > 1 ? argv : args, prepare, add_tests);
}
