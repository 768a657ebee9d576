/* at-client.h: another program as a screen reader has it: its accessible tree, read and acted on over AT-SPI's bus.
 *
 * One program at a time. Objects are named by their paths; a tree is a copy, made in one go. Main thread. */
#pragma once
#include <gio/gio.h>

typedef struct AtNode AtNode;
struct AtNode {
    const char *path; /* interned */
    char *name, *description;
    char *role;     /* see at_role() */
    guint64 states; /* see at_has() */
    gboolean has_states;
    AtNode *parent; /* borrowed; NULL at the root */
    GPtrArray *children;
};

/* The numbers are AT-SPI's. */
typedef enum {
    AT_STATE_CHECKED = 4,
    AT_STATE_EDITABLE = 7,
    AT_STATE_ENABLED = 8,
    AT_STATE_EXPANDED = 10,
    AT_STATE_FOCUSABLE = 11,
    AT_STATE_FOCUSED = 12,
    AT_STATE_PRESSED = 20,
    AT_STATE_SELECTED = 23,
    AT_STATE_SENSITIVE = 24,
    AT_STATE_SHOWING = 25,
    AT_STATE_VISIBLE = 30,
} AtState;

/* Starts the registry by asking for it. FALSE: this machine has none; @reason is why. */
gboolean at_open(char **reason);
/* Waits until the program of @pid is on the bus. FALSE: not in @ms. */
gboolean at_find_program(guint pid, guint ms);
void at_close(void);

/* What is there, shown or not: GTK 4.8 does not tell. @all: with roles and states, which are else asked for as they are
 * wanted, for most are not. Returns: owned. */
AtNode *at_read(gboolean all);
void at_node_free(AtNode *self);
G_DEFINE_AUTOPTR_CLEANUP_FUNC(AtNode, at_node_free)
const char *at_role(AtNode *self); /* borrowed */
gboolean at_has(AtNode *self, AtState state);
/* The first in reading order below and with @self that is of @role (NULL: any) and named @name (NULL: any). NULL: none. */
AtNode *at_find(AtNode *self, const char *role, const char *name);
/* For people: a line an object. Returns: owned. */
char *at_dump(AtNode *self);

char *at_dup_name(const char *path);
char *at_dup_role(const char *path);
/* Text of what has org.a11y.atspi.Text; NULL: has none. Returns: owned. */
char *at_dup_text(const char *path);
/* Current value of org.a11y.atspi.Value; NAN: has none. */
double at_get_value(const char *path);
/* Names of its actions, by commas. Returns: owned. */
char *at_dup_actions(const char *path);
/* Does the action named @action (NULL: the first). FALSE: it has none, or refused. */
gboolean at_do(const char *path, const char *action);
typedef struct {
    const char *path;      /* interned */
    char *member, *detail; /* "StateChanged", "focused" */
    int value;
    char *text; /* NULL: none */
} AtEvent;
/* Events of the program are kept from now on; those before are dropped. */
void at_listen(void);
/* All that the program has sent until now. Returns: (element-type AtEvent) owned. */
GPtrArray *at_take_events(void);

/* What it takes on the screen; 0 and 0: it was never shown. */
void at_get_size(const char *path, double *width, double *height);
