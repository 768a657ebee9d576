/* at-client.c: see at-client.h. */
#include "tests/app/at-client.h"

#include <math.h>
#include <string.h>

#define ACCESSIBLE   "org.a11y.atspi.Accessible"
#define ACTION       "org.a11y.atspi.Action"
#define TEXT         "org.a11y.atspi.Text"
#define VALUE        "org.a11y.atspi.Value"
#define COMPONENT    "org.a11y.atspi.Component"
#define REGISTRY     "org.a11y.atspi.Registry"
#define EVENT_OBJECT "org.a11y.atspi.Event.Object"
#define ROOT         "/org/a11y/atspi/accessible/root"
/* A program that computes on every core answers late. */
#define CALL_MS   60000
#define DEPTH_MAX 100

static GDBusConnection *bus;
static char *program; /* its name on the bus */
static GPtrArray *events;
static guint listening;

/* ---- Calls ---- */

/* NULL where the object or the interface is not there (any more). Returns: owned. */
static GVariant *call_to(const char *name, const char *path, const char *interface, const char *method,
    GVariant *parameters, const char *type)
{
    return g_dbus_connection_call_sync(bus, name, path, interface, method, parameters,
        type != NULL ? G_VARIANT_TYPE(type) : NULL, G_DBUS_CALL_FLAGS_NONE, CALL_MS, NULL, NULL);
}

static GVariant *call(
    const char *path, const char *interface, const char *method, GVariant *parameters, const char *type)
{
    return call_to(program, path, interface, method, parameters, type);
}

/* Returns: owned; the property's value. */
static GVariant *get(const char *path, const char *interface, const char *property)
{
    g_autoptr(GVariant) reply = call(
        path, "org.freedesktop.DBus.Properties", "Get", g_variant_new("(ss)", interface, property), "(v)");
    GVariant *value = NULL;

    if (reply != NULL)
        g_variant_get(reply, "(v)", &value);
    return value;
}

/* ---- Opening ---- */

gboolean at_open(char **reason)
{
    g_autoptr(GError) error = NULL;
    g_autoptr(GDBusConnection) session = g_bus_get_sync(G_BUS_TYPE_SESSION, NULL, &error);
    g_autoptr(GVariant) reply = NULL;
    const char *address;

    if (session != NULL)
        reply = g_dbus_connection_call_sync(session, "org.a11y.Bus", "/org/a11y/bus", "org.a11y.Bus",
            "GetAddress", NULL, G_VARIANT_TYPE("(s)"), G_DBUS_CALL_FLAGS_NONE, CALL_MS, NULL, &error);
    if (reply != NULL) {
        g_variant_get(reply, "(&s)", &address);
        bus = g_dbus_connection_new_for_address_sync(address,
            G_DBUS_CONNECTION_FLAGS_AUTHENTICATION_CLIENT | G_DBUS_CONNECTION_FLAGS_MESSAGE_BUS_CONNECTION,
            NULL, NULL, &error);
    }
    if (bus == NULL)
        *reason = g_strdup(error->message);
    return bus != NULL;
}

static guint get_pid(const char *name)
{
    g_autoptr(GVariant) reply = call_to("org.freedesktop.DBus", "/org/freedesktop/DBus",
        "org.freedesktop.DBus", "GetConnectionUnixProcessID", g_variant_new("(s)", name), "(u)");
    guint pid = 0;

    if (reply != NULL)
        g_variant_get(reply, "(u)", &pid);
    return pid;
}

gboolean at_find_program(guint pid, guint ms)
{
    gint64 end = g_get_monotonic_time() + (gint64)ms * 1000;

    g_clear_pointer(&program, g_free);
    while (program == NULL && g_get_monotonic_time() < end) {
        g_autoptr(GVariant) reply = call_to(REGISTRY, ROOT, ACCESSIBLE, "GetChildren", NULL, "(a(so))");
        g_autoptr(GVariantIter) iter = NULL;
        const char *name, *path;

        if (reply == NULL)
            return FALSE;
        g_variant_get(reply, "(a(so))", &iter);
        while (g_variant_iter_next(iter, "(&s&o)", &name, &path))
            if (program == NULL && get_pid(name) == pid)
                program = g_strdup(name);
        if (program == NULL)
            g_usleep(20 * 1000);
    }
    return program != NULL;
}

void at_close(void)
{
    if (listening != 0)
        g_dbus_connection_signal_unsubscribe(bus, listening);
    listening = 0;
    g_clear_pointer(&events, g_ptr_array_unref);
    g_clear_pointer(&program, g_free);
    g_clear_object(&bus);
}

/* ---- The tree ---- */

void at_node_free(AtNode *self)
{
    g_free(self->role);
    g_free(self->name);
    g_free(self->description);
    g_ptr_array_unref(self->children);
    g_free(self);
}

/* A tree is read by four questions an object, all of a level's under way at once: one after another, the round trips would
 * take most of the time. */
typedef struct {
    AtNode *node;
    guint depth;
    guint *n_pending;
    gboolean all;
} Question;

static AtNode *node_new(const char *path, AtNode *parent)
{
    AtNode *self = g_new0(AtNode, 1);

    self->path = g_intern_string(path);
    self->parent = parent;
    self->children = g_ptr_array_new_with_free_func((GDestroyNotify)at_node_free);
    self->name = g_strdup("");
    self->description = g_strdup("");
    return self;
}

typedef struct {
    const char *interface, *method, *type;
    GAsyncReadyCallback callback;
} Kind;

static void ask(AtNode *node, guint depth, guint *n_pending, gboolean all);
static void children_cb(GObject *source, GAsyncResult *result, gpointer data);

static const Kind children_question = {ACCESSIBLE, "GetChildren", "(a(so))", children_cb};

static void ask_one(AtNode *node, guint depth, guint *n_pending, gboolean all, const Kind *kind)
{
    gboolean properties = strcmp(kind->method, "GetAll") == 0;
    Question *question = g_new(Question, 1);

    *question = (Question){node, depth, n_pending, all};
    ++*n_pending;
    g_dbus_connection_call(bus, program, node->path, kind->interface, kind->method,
        properties ? g_variant_new("(s)", ACCESSIBLE) : NULL, G_VARIANT_TYPE(kind->type),
        G_DBUS_CALL_FLAGS_NONE, CALL_MS, NULL, kind->callback, question);
}

/* Returns: owned; NULL: the object is gone. */
static GVariant *answer(GAsyncResult *result, Question *question)
{
    GVariant *reply = g_dbus_connection_call_finish(bus, result, NULL);

    --*question->n_pending;
    return reply;
}

static void role_cb(GObject *source, GAsyncResult *result, gpointer data)
{
    g_autofree Question *question = data;
    g_autoptr(GVariant) reply = answer(result, question);

    if (reply == NULL)
        return;
    g_free(question->node->role);
    g_variant_get(reply, "(s)", &question->node->role);
}

static void properties_cb(GObject *source, GAsyncResult *result, gpointer data)
{
    g_autofree Question *question = data;
    g_autoptr(GVariant) reply = answer(result, question);
    g_autoptr(GVariant) all = NULL;
    int n_children = 0;
    char *text;

    if (reply == NULL)
        return;
    g_variant_get(reply, "(@a{sv})", &all);
    if (g_variant_lookup(all, "ChildCount", "i", &n_children) && n_children > 0)
        ask_one(question->node, question->depth, question->n_pending, question->all, &children_question);
    if (g_variant_lookup(all, "Name", "s", &text)) {
        g_free(question->node->name);
        question->node->name = text;
    }
    if (g_variant_lookup(all, "Description", "s", &text)) {
        g_free(question->node->description);
        question->node->description = text;
    }
}

static void take_states(AtNode *self, GVariant *reply)
{
    g_autoptr(GVariantIter) iter = NULL;
    guint low = 0, high = 0;

    g_variant_get(reply, "(au)", &iter);
    if (g_variant_iter_next(iter, "u", &low))
        g_variant_iter_next(iter, "u", &high);
    self->states = (guint64)high << 32 | low;
    self->has_states = TRUE;
}

static void states_cb(GObject *source, GAsyncResult *result, gpointer data)
{
    g_autofree Question *question = data;
    g_autoptr(GVariant) reply = answer(result, question);

    if (reply != NULL)
        take_states(question->node, reply);
}

static void children_cb(GObject *source, GAsyncResult *result, gpointer data)
{
    g_autofree Question *question = data;
    g_autoptr(GVariant) reply = answer(result, question);
    g_autoptr(GVariantIter) iter = NULL;
    const char *name, *path;

    if (reply == NULL || question->depth >= DEPTH_MAX)
        return;
    g_variant_get(reply, "(a(so))", &iter);
    while (g_variant_iter_next(iter, "(&s&o)", &name, &path)) {
        AtNode *child = node_new(path, question->node);

        g_ptr_array_add(question->node->children, child);
        ask(child, question->depth + 1, question->n_pending, question->all);
    }
}

static void ask(AtNode *node, guint depth, guint *n_pending, gboolean all)
{
    static const Kind kinds[] = {
        {"org.freedesktop.DBus.Properties", "GetAll", "(a{sv})", properties_cb},
        {ACCESSIBLE, "GetRoleName", "(s)", role_cb},
        {ACCESSIBLE, "GetState", "(au)", states_cb},
    };

    for (gsize i = 0; i < (all ? G_N_ELEMENTS(kinds) : 1); i++)
        ask_one(node, depth, n_pending, all, &kinds[i]);
}

AtNode *at_read(gboolean all)
{
    AtNode *root = node_new(ROOT, NULL);
    guint n_pending = 0;

    ask(root, 0, &n_pending, all);
    while (n_pending > 0)
        g_main_context_iteration(NULL, TRUE);
    return root;
}

const char *at_role(AtNode *self)
{
    if (self->role == NULL)
        self->role = at_dup_role(self->path);
    return self->role;
}

gboolean at_has(AtNode *self, AtState state)
{
    if (!self->has_states) {
        g_autoptr(GVariant) reply = call(self->path, ACCESSIBLE, "GetState", NULL, "(au)");

        if (reply != NULL)
            take_states(self, reply);
        self->has_states = TRUE;
    }
    return (self->states >> state & 1) != 0;
}

AtNode *at_find(AtNode *self, const char *role, const char *name)
{
    if ((name == NULL || strcmp(self->name, name) == 0) && (role == NULL || strcmp(at_role(self), role) == 0))
        return self;
    for (guint i = 0; i < self->children->len; i++) {
        AtNode *found = at_find(g_ptr_array_index(self->children, i), role, name);

        if (found != NULL)
            return found;
    }
    return NULL;
}

static void dump(AtNode *self, guint depth, GString *out)
{
    static const struct {
        AtState state;
        const char *name;
    } shown[] = {{AT_STATE_SHOWING, "showing"}, {AT_STATE_FOCUSABLE, "focusable"},
        {AT_STATE_FOCUSED, "FOCUSED"}, {AT_STATE_SENSITIVE, "sensitive"}, {AT_STATE_CHECKED, "checked"},
        {AT_STATE_SELECTED, "selected"}, {AT_STATE_EXPANDED, "expanded"}};

    g_string_append_printf(out, "%*s%s “%s”", (int)depth * 2, "", at_role(self), self->name);
    if (self->description[0] != '\0')
        g_string_append_printf(out, " (%s)", self->description);
    for (gsize i = 0; i < G_N_ELEMENTS(shown); i++)
        if (at_has(self, shown[i].state))
            g_string_append_printf(out, " %s", shown[i].name);
    g_string_append_c(out, '\n');
    for (guint i = 0; i < self->children->len; i++)
        dump(g_ptr_array_index(self->children, i), depth + 1, out);
}

char *at_dump(AtNode *self)
{
    GString *out = g_string_new(NULL);

    dump(self, 0, out);
    return g_string_free(out, FALSE);
}

/* ---- What an object can ---- */

char *at_dup_name(const char *path)
{
    g_autoptr(GVariant) value = get(path, ACCESSIBLE, "Name");

    return value != NULL ? g_variant_dup_string(value, NULL) : g_strdup("");
}

char *at_dup_role(const char *path)
{
    g_autoptr(GVariant) reply = call(path, ACCESSIBLE, "GetRoleName", NULL, "(s)");
    char *role = NULL;

    if (reply != NULL)
        g_variant_get(reply, "(s)", &role);
    return role != NULL ? role : g_strdup("");
}

char *at_dup_text(const char *path)
{
    g_autoptr(GVariant) reply = call(path, TEXT, "GetText", g_variant_new("(ii)", 0, -1), "(s)");
    char *text = NULL;

    if (reply != NULL)
        g_variant_get(reply, "(s)", &text);
    return text;
}

double at_get_value(const char *path)
{
    g_autoptr(GVariant) value = get(path, VALUE, "CurrentValue");

    return value != NULL ? g_variant_get_double(value) : NAN;
}

static GPtrArray *get_actions(const char *path)
{
    GPtrArray *names = g_ptr_array_new_with_free_func(g_free);
    g_autoptr(GVariant) reply = call(path, ACTION, "GetActions", NULL, "(a(sss))");
    g_autoptr(GVariantIter) iter = NULL;
    const char *name;

    if (reply != NULL) {
        g_variant_get(reply, "(a(sss))", &iter);
        while (g_variant_iter_next(iter, "(&s&s&s)", &name, NULL, NULL))
            g_ptr_array_add(names, g_strdup(name));
    }
    g_ptr_array_add(names, NULL);
    return names;
}

char *at_dup_actions(const char *path)
{
    g_autoptr(GPtrArray) names = get_actions(path);

    return g_strjoinv(",", (char **)names->pdata);
}

gboolean at_do(const char *path, const char *action)
{
    g_autoptr(GPtrArray) names = get_actions(path);

    for (guint i = 0; i + 1 < names->len; i++)
        if (action == NULL || strcmp(g_ptr_array_index(names, i), action) == 0) {
            g_autoptr(GVariant) reply = call(path, ACTION, "DoAction", g_variant_new("(i)", (int)i), "(b)");
            gboolean done = FALSE;

            if (reply != NULL)
                g_variant_get(reply, "(b)", &done);
            return done;
        }
    return FALSE;
}

void at_get_size(const char *path, double *width, double *height)
{
    g_autoptr(GVariant) reply = call(path, COMPONENT, "GetExtents", g_variant_new("(u)", 1u), "((iiii))");
    int w = 0, h = 0;

    if (reply != NULL)
        g_variant_get(reply, "((iiii))", NULL, NULL, &w, &h);
    *width = w;
    *height = h;
}

/* ---- Events ---- */

static void event_free(gpointer data)
{
    AtEvent *event = data;

    g_free(event->member);
    g_free(event->detail);
    g_free(event->text);
    g_free(event);
}

static void event_cb(GDBusConnection *connection, const char *sender, const char *path, const char *interface,
    const char *member, GVariant *parameters, gpointer data)
{
    AtEvent *event;
    g_autoptr(GVariant) value = NULL;

    (void)connection, (void)sender, (void)interface, (void)data;
    if (!g_str_has_prefix(g_variant_get_type_string(parameters), "(siiv"))
        return;
    event = g_new0(AtEvent, 1);
    event->path = g_intern_string(path);
    event->member = g_strdup(member);
    g_variant_get_child(parameters, 0, "s", &event->detail);
    g_variant_get_child(parameters, 1, "i", &event->value);
    g_variant_get_child(parameters, 3, "v", &value);
    if (g_variant_is_of_type(value, G_VARIANT_TYPE_STRING))
        event->text = g_variant_dup_string(value, NULL);
    g_ptr_array_add(events, event);
}

void at_listen(void)
{
    g_autoptr(GVariant) reply = NULL;

    if (listening == 0) {
        /* A program may send nothing that nobody has asked for. */
        reply = call_to(REGISTRY, "/org/a11y/atspi/registry", REGISTRY, "RegisterEvent",
            g_variant_new("(sass)", "object:", NULL, ""), NULL);
        listening = g_dbus_connection_signal_subscribe(
            bus, program, EVENT_OBJECT, NULL, NULL, NULL, G_DBUS_SIGNAL_FLAGS_NONE, event_cb, NULL, NULL);
        events = g_ptr_array_new_with_free_func(event_free);
    }
    g_ptr_array_unref(at_take_events());
}

static void asked_cb(GObject *source, GAsyncResult *result, gpointer data)
{
    g_autoptr(GVariant) reply = g_dbus_connection_call_finish(bus, result, NULL);

    *(gboolean *)data = TRUE;
}

GPtrArray *at_take_events(void)
{
    GPtrArray *taken;
    gboolean done = FALSE;

    /* The answer comes after what was sent before it, and is dispatched after that. */
    g_dbus_connection_call(bus, program, ROOT, "org.freedesktop.DBus.Peer", "Ping", NULL, NULL,
        G_DBUS_CALL_FLAGS_NONE, CALL_MS, NULL, asked_cb, &done);
    while (!done || g_main_context_pending(NULL))
        g_main_context_iteration(NULL, TRUE);
    taken = events;
    events = g_ptr_array_new_with_free_func(event_free);
    return taken;
}
