/* ui-harness.h: the real application in this process, driven by real key events through the X server (xdotool).
 *
 * Each test opens its own window. Waiting is for a condition, with a limit that only a hang reaches. Screenshots go to
 * $QUIRE_TEST_SHOTS when it is set: they are for people. */
#pragma once
#include <gtk/gtk.h>
#include "app/quire-application.h"
#include "app/quire-window.h"

extern QuireApplication *application;
extern QuireWindow *window;

typedef gboolean (*Condition)(gpointer data);

void wait_for(const char *what, Condition condition, gpointer data);
void wait_ms(guint ms);
void wait_frames(guint n); /* of the window */
gboolean is_set(gpointer data);
void run(const char *const *argv);
void key(const char *name);
void type(const char *text);
void screenshot(const char *name);
QuireConversation *conversation(void);
GtkTextBuffer *draft(void);
char *dup_draft(void);
gboolean draft_is(gpointer text);
gboolean is_ready(gpointer data);
gboolean is_idle(gpointer data);
QuireEngineClient *engine_client(void);
/* Is the engine in the state, a qe_engine_state in a pointer? For wait_for(), as the next. */
gboolean engine_state_is(gpointer state);
/* Ready, and its first figures are there. */
gboolean engine_is_settled(gpointer data);
gboolean has_n_messages(gpointer n);
guint n_pages_used(void);
gboolean pages_are(gpointer n);
char *dup_reply(void);
const qe_receipt *receipt(void);
char *dup_cli_reply(const char *json);
char *quote(const char *text);
GtkWidget *find(GtkWidget *root, GType type);
/* A button below @root by its words, where it is shown; a row of preferences by its title; a window by its type. NULL: none. */
GtkWidget *find_button(GtkWidget *root, const char *label);
GtkWidget *find_row(GtkWidget *root, const char *title);
GtkWidget *find_window(GType type);
/* Is there no window of the type, a GSize in a pointer? For wait_for(). */
gboolean has_no_window_of(gpointer type);
/* Does a label below @widget, or it itself, say anything? */
gboolean says_something(GtkWidget *widget);
/* Is the focus of the window in @widget? For wait_for(). */
gboolean focus_is_in(gpointer widget);
/* The widget and what it is in, for people. Returns: owned. */
char *describe_widget(GtkWidget *widget);
GtkWidget *last_row(void);
void open_window(int width, int height);
void close_window(void);
void say(const char *text, guint n_messages);
/* Puts a conversation of @n_messages, of about @n_tokens each, in the history. Returns: its id, owned. */
char *add_chat(const char *title, guint n_messages, guint n_tokens);
gboolean has_preferences(gpointer wanted);

/* @prepare may be NULL: settings from before the application starts. Returns the program's exit status. */
int ui_main(int argc, char **argv, void (*prepare)(GSettings *settings), void (*add_tests)(void));
