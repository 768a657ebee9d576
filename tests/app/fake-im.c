/* fake-im.c: see fake-im.h. Inactive, it commits what is typed at once. */
#include "tests/app/fake-im.h"

#include <gtk/gtkimmodule.h>
#include <string.h>

#define FAKE_TYPE_IM (fake_im_get_type())
G_DECLARE_FINAL_TYPE(FakeIm, fake_im, FAKE, IM, GtkIMContext)

struct _FakeIm {
    GtkIMContext parent_instance;
};

G_DEFINE_FINAL_TYPE(FakeIm, fake_im, GTK_TYPE_IM_CONTEXT)

static gboolean active;
static GString *preedit;

static void set_preedit(GtkIMContext *context, gboolean was_empty)
{
    if (was_empty && preedit->len > 0)
        g_signal_emit_by_name(context, "preedit-start");
    g_signal_emit_by_name(context, "preedit-changed");
    if (!was_empty && preedit->len == 0)
        g_signal_emit_by_name(context, "preedit-end");
}

static gboolean filter_keypress(GtkIMContext *context, GdkEvent *event)
{
    guint keyval = gdk_key_event_get_keyval(event);
    gunichar c = gdk_keyval_to_unicode(keyval);
    GdkModifierType state = gdk_event_get_modifier_state(event);
    char utf8[7] = {0};

    if (gdk_event_get_event_type(event) != GDK_KEY_PRESS)
        return FALSE;
    if (keyval == GDK_KEY_Return && preedit->len > 0) {
        g_autofree char *text = g_ascii_strup(preedit->str, -1);

        g_string_truncate(preedit, 0);
        set_preedit(context, FALSE);
        g_signal_emit_by_name(context, "commit", text);
        return TRUE;
    }
    if (keyval == GDK_KEY_Escape && preedit->len > 0) {
        g_string_truncate(preedit, 0);
        set_preedit(context, FALSE);
        return TRUE;
    }
    if (c < 0x20 || c == 0x7f || (state & (GDK_CONTROL_MASK | GDK_ALT_MASK)) != 0)
        return FALSE;

    g_unichar_to_utf8(c, utf8);
    if (active) {
        gboolean was_empty = preedit->len == 0;

        g_string_append(preedit, utf8);
        set_preedit(context, was_empty);
    } else
        g_signal_emit_by_name(context, "commit", utf8);
    return TRUE;
}

static void get_preedit_string(GtkIMContext *context, char **text, PangoAttrList **attributes, int *cursor)
{
    if (text != NULL)
        *text = g_strdup(preedit->str);
    if (attributes != NULL)
        *attributes = pango_attr_list_new();
    if (cursor != NULL)
        *cursor = (int)preedit->len;
}

static void fake_im_class_init(FakeImClass *klass)
{
    GtkIMContextClass *context_class = GTK_IM_CONTEXT_CLASS(klass);

    context_class->filter_keypress = filter_keypress;
    context_class->get_preedit_string = get_preedit_string;
}

static void fake_im_init(FakeIm *self)
{
}

void fake_im_register(void)
{
    preedit = g_string_new(NULL);
    g_io_extension_point_implement(GTK_IM_MODULE_EXTENSION_POINT_NAME, FAKE_TYPE_IM, "quire-fake", 0);
    g_object_set(gtk_settings_get_default(), "gtk-im-module", "quire-fake", NULL);
}

void fake_im_set_active(gboolean value)
{
    active = value;
}

gboolean fake_im_is_composing(void)
{
    return preedit->len > 0;
}
