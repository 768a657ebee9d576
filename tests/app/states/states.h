/* states.h: the states of the window that test-app-states.c shows in all looks, and the rules that each keeps.
 *
 * To add a state: a function that brings the window there, in one of the tables (states-chat.c, states-windows.c,
 * states-compare.c). It waits for what it asks for; frames are waited for by the caller. */
#pragma once
#include <gtk/gtk.h>

typedef struct {
    const char *name;
    void (*set_up)(void);
    void (*tear_down)(void); /* NULL: all of it goes with the windows and the history, which is emptied */
} State;

typedef struct {
    const State *states;
    gsize n;
} StateTable;
extern const StateTable states_chat, states_windows, states_compare;

/* The window that the state is about to be shown in. */
extern int look_width, look_height;

/* ---- Helpers of set-ups: states-chat.c ---- */

void act(const char *action);
/* A turn of which the engine knows nothing but its one token; its reply is in the state that is wanted. */
struct _QuireMessage *turn_shown(const char *text);
void show_done(void);
/* Another window of the application than the chat's. NULL: there is none yet. */
GtkWidget *other_window(GType type);
/* Waits for it and makes it as wide as the look at most. */
GtkWidget *wait_window(GType type);
GtkWidget *find_by_action(GtkWidget *root, const char *action);

/* ---- Rules: rules.c ---- */

/* Appends to @faults (element-type utf8) what is wrong with what @top and the popovers over it show. */
void rules_check(GtkWidget *top, int width_max, GPtrArray *faults);
/* Tiers stand out from what they are drawn on. */
void rules_check_contrast(GtkWidget *top, GPtrArray *faults);

/* ---- Words: pseudo.c ---- */

/* From now on each text of Quire comes in brackets and longer by 40 percent. */
void pseudo_set(gboolean on);
/* Looks without brackets are in @language, as "zh_CN"; NULL: in English. */
void pseudo_set_language(const char *language);
