/* fake-desktop.c: see fake-desktop.h. */
#include "tests/app/fake-desktop.h"
#include <string.h>

static const char xml[] =
    "<node>"
    "<interface name='org.gtk.Notifications'>"
    "<method name='AddNotification'><arg type='s' direction='in'/><arg type='s' direction='in'/>"
    "<arg type='a{sv}' direction='in'/></method>"
    "<method name='RemoveNotification'><arg type='s' direction='in'/><arg type='s' direction='in'/></method>"
    "</interface>"
    "<interface name='org.gnome.SessionManager'>"
    "<method name='Inhibit'><arg type='s' direction='in'/><arg type='u' direction='in'/><arg type='s' "
    "direction='in'/>"
    "<arg type='u' direction='in'/><arg type='u' direction='out'/></method>"
    "<method name='Uninhibit'><arg type='u' direction='in'/></method>"
    "</interface>"
    "<interface name='org.freedesktop.portal.Background'>"
    "<method name='RequestBackground'><arg type='s' direction='in'/><arg type='a{sv}' direction='in'/>"
    "<arg type='o' direction='out'/></method>"
    "<method name='SetStatus'><arg type='a{sv}' direction='in'/></method>"
    "</interface>"
    "<interface name='org.freedesktop.portal.Request'><method name='Close'/></interface>"
    "</node>";

typedef struct {
    char *method;
    GVariant *arguments;
} Call;

static GMutex mutex;
static GCond ready;
static gboolean started;
static GPtrArray *calls; /* (element-type Call), under the mutex */
static GHashTable *inhibitors;
static int answer = 1;
static GMainContext *context;
static GDBusConnection *connection;
static GDBusNodeInfo *node;
/* The portal's open request: its object and whose it is. The thread's alone. */
static char *request, *asker;
static guint request_id;

static void close_request(void)
{
    if (request_id != 0)
        g_dbus_connection_unregister_object(connection, request_id);
    request_id = 0;
    g_clear_pointer(&request, g_free);
    g_clear_pointer(&asker, g_free);
}

static void respond(gboolean allow)
{
    GVariantBuilder results;

    g_variant_builder_init(&results, G_VARIANT_TYPE_VARDICT);
    g_variant_builder_add(&results, "{sv}", "background", g_variant_new_boolean(allow));
    g_variant_builder_add(&results, "{sv}", "autostart", g_variant_new_boolean(FALSE));
    g_dbus_connection_emit_signal(connection, asker, request, "org.freedesktop.portal.Request", "Response",
        g_variant_new("(ua{sv})", allow ? 0u : 1u, &results), NULL);
    close_request();
}

static void call_cb(GDBusConnection *bus, const char *sender, const char *path, const char *interface,
    const char *method, GVariant *arguments, GDBusMethodInvocation *invocation, gpointer data);

static const GDBusInterfaceVTable vtable = {.method_call = call_cb};

static GVariant *begin_request(const char *sender, GVariant *arguments)
{
    g_autoptr(GVariant) options = g_variant_get_child_value(arguments, 1);
    const char *token = NULL;
    g_autofree char *name = g_strdup(sender + 1);

    g_assert_true(g_variant_lookup(options, "handle_token", "&s", &token));
    close_request();
    g_strdelimit(name, ".", '_');
    request = g_strconcat("/org/freedesktop/portal/desktop/request/", name, "/", token, NULL);
    asker = g_strdup(sender);
    request_id = g_dbus_connection_register_object(connection, request,
        g_dbus_node_info_lookup_interface(node, "org.freedesktop.portal.Request"), &vtable, NULL, NULL, NULL);
    return g_variant_new("(o)", request);
}

static void call_cb(GDBusConnection *bus, const char *sender, const char *path, const char *interface,
    const char *method, GVariant *arguments, GDBusMethodInvocation *invocation, gpointer data)
{
    static guint32 cookie = 100;
    Call *call = g_new(Call, 1);
    GVariant *reply = NULL;
    int now;

    if (g_str_equal(method, "Inhibit"))
        reply = g_variant_new("(u)", ++cookie);
    else if (g_str_equal(method, "RequestBackground"))
        reply = begin_request(sender, arguments);
    else if (g_str_equal(method, "Close"))
        close_request();

    g_mutex_lock(&mutex);
    if (g_str_equal(method, "Inhibit"))
        g_hash_table_add(inhibitors, GUINT_TO_POINTER(cookie));
    else if (g_str_equal(method, "Uninhibit")) {
        guint32 gone;

        g_variant_get(arguments, "(u)", &gone);
        g_assert_true(g_hash_table_remove(inhibitors, GUINT_TO_POINTER(gone)));
    }
    *call = (Call){g_strdup(method), g_variant_ref(arguments)};
    g_ptr_array_add(calls, call);
    now = answer;
    g_mutex_unlock(&mutex);

    /* An answer may come before the call's own reply: the portal promises no order. */
    if (g_str_equal(method, "RequestBackground") && now >= 0)
        respond(now > 0);
    g_dbus_method_invocation_return_value(invocation, reply);
}

static void own(const char *name, const char *path, const char *interface)
{
    g_autoptr(GError) error = NULL;
    g_autoptr(GVariant) reply = NULL;

    g_dbus_connection_register_object(
        connection, path, g_dbus_node_info_lookup_interface(node, interface), &vtable, NULL, NULL, &error);
    g_assert_no_error(error);
    reply = g_dbus_connection_call_sync(connection, "org.freedesktop.DBus", "/org/freedesktop/DBus",
        "org.freedesktop.DBus", "RequestName", g_variant_new("(su)", name, 4u), NULL, G_DBUS_CALL_FLAGS_NONE,
        -1, NULL, &error);
    g_assert_no_error(error);
}

static gpointer thread_main(gpointer data)
{
    g_autoptr(GError) error = NULL;
    g_autofree char *address = g_dbus_address_get_for_bus_sync(G_BUS_TYPE_SESSION, NULL, &error);

    g_assert_no_error(error);
    g_main_context_push_thread_default(context);
    connection = g_dbus_connection_new_for_address_sync(address,
        G_DBUS_CONNECTION_FLAGS_AUTHENTICATION_CLIENT | G_DBUS_CONNECTION_FLAGS_MESSAGE_BUS_CONNECTION, NULL,
        NULL, &error);
    g_assert_no_error(error);
    own("org.gtk.Notifications", "/org/gtk/Notifications", "org.gtk.Notifications");
    own("org.gnome.SessionManager", "/org/gnome/SessionManager", "org.gnome.SessionManager");
    own("org.freedesktop.portal.Desktop", "/org/freedesktop/portal/desktop",
        "org.freedesktop.portal.Background");

    g_mutex_lock(&mutex);
    started = TRUE;
    g_cond_signal(&ready);
    g_mutex_unlock(&mutex);
    for (;;)
        g_main_context_iteration(context, TRUE);
    return NULL;
}

void fake_desktop_start(void)
{
    calls = g_ptr_array_new();
    inhibitors = g_hash_table_new(NULL, NULL);
    node = g_dbus_node_info_new_for_xml(xml, NULL);
    context = g_main_context_new();
    g_thread_unref(g_thread_new("desktop", thread_main, NULL));
    g_mutex_lock(&mutex);
    while (!started)
        g_cond_wait(&ready, &mutex);
    g_mutex_unlock(&mutex);
}

guint fake_desktop_count(const char *method)
{
    guint n = 0;

    g_mutex_lock(&mutex);
    for (guint i = 0; i < calls->len; i++)
        n += g_str_equal(((Call *)g_ptr_array_index(calls, i))->method, method);
    g_mutex_unlock(&mutex);
    return n;
}

gboolean fake_desktop_has_calls(gpointer data)
{
    const FakeDesktopCalls *wanted = data;

    return fake_desktop_count(wanted->method) >= wanted->n;
}

GVariant *fake_desktop_dup_last(const char *method)
{
    GVariant *last = NULL;

    g_mutex_lock(&mutex);
    for (guint i = calls->len; i-- > 0 && last == NULL;) {
        const Call *call = g_ptr_array_index(calls, i);

        if (g_str_equal(call->method, method))
            last = g_variant_ref(call->arguments);
    }
    g_mutex_unlock(&mutex);
    return last;
}

guint fake_desktop_n_inhibitors(void)
{
    guint n;

    g_mutex_lock(&mutex);
    n = g_hash_table_size(inhibitors);
    g_mutex_unlock(&mutex);
    return n;
}

void fake_desktop_set_answer(int allow)
{
    g_mutex_lock(&mutex);
    answer = allow;
    g_mutex_unlock(&mutex);
}
