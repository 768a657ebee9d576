/* quire-find-bar.h: finds words in what a transcript shows. */
#pragma once
#include <gtk/gtk.h>

G_BEGIN_DECLS

#define QUIRE_TYPE_FIND_BAR (quire_find_bar_get_type ())
G_DECLARE_FINAL_TYPE (QuireFindBar, quire_find_bar, QUIRE, FIND_BAR, GtkWidget)

/* Makes a row for message @index of those that are searched, and lets it be laid out. */
typedef void (*QuireMakeRowFunc) (gpointer user_data, guint index);

/* Signal: closed. @messages: (element-type QuireMessage) searched in what they show, upper and lower case alike; @rows: of those that
 * have one; @scrolled: shows them. @make_row: for a place without one. All borrowed, as long as this lives. */
GtkWidget *quire_find_bar_new (GListModel *messages, GtkWidget *rows, GtkScrolledWindow *scrolled,
                               QuireMakeRowFunc make_row, gpointer user_data);
void quire_find_bar_open (QuireFindBar *self);
/* Opens at message @seq, which has a row: its first place with all of @query is marked, else the first with one of its
 * words, else the message is only scrolled to. Without such a message it is closed. */
void quire_find_bar_show (QuireFindBar *self, const char *query, guint seq);
void quire_find_bar_close (QuireFindBar *self);
gboolean quire_find_bar_is_open (QuireFindBar *self);
/* The next place, or the one before; round at the ends. Opens a bar that is closed. */
void quire_find_bar_step (QuireFindBar *self, int by);
/* "2 of 3", "Not found". Borrowed. */
const char *quire_find_bar_get_text (QuireFindBar *self);

G_END_DECLS
