/* fake-desktop.h: the parts of a desktop that the application talks to, on the session bus of the test: notifications
 * (org.gtk.Notifications), the session manager's inhibitors (org.gnome.SessionManager) and the background portal. They
 * answer on a thread of their own, as other processes would: the application may wait for them. */
#pragma once
#include <gio/gio.h>

/* Before the application starts. */
void fake_desktop_start(void);
/* How often @method was called. */
guint fake_desktop_count(const char *method);
/* Was it called so often? @data: a FakeDesktopCalls; for a wait. */
typedef struct {
    const char *method;
    guint n;
} FakeDesktopCalls;
gboolean fake_desktop_has_calls(gpointer data);
/* The arguments of the last call of @method, or NULL. Returns: owned. */
GVariant *fake_desktop_dup_last(const char *method);
/* Inhibitors that are held now. */
guint fake_desktop_n_inhibitors(void);
/* What the user answers to the portal. The portal waits with the answer until told so here: -1. */
void fake_desktop_set_answer(int allow);
