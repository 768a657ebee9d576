/* quire-message-row.h: one message in the transcript: the user's bubble, or a reply with its parts. */
#pragma once
#include <gtk/gtk.h>
#include "app/quire-message.h"

G_BEGIN_DECLS

#define QUIRE_TYPE_MESSAGE_ROW (quire_message_row_get_type ())
G_DECLARE_FINAL_TYPE (QuireMessageRow, quire_message_row, QUIRE, MESSAGE_ROW, GtkBox)

GtkWidget *quire_message_row_new (QuireMessage *message);
QuireMessage *quire_message_row_get_message (QuireMessageRow *self);
/* Turns the user's bubble into an editor; sending acts by chat.send-edit, with the message's number and the text. */
void quire_message_row_edit (QuireMessageRow *self);
void quire_message_row_set_last (QuireMessageRow *self, gboolean last);
/* The model does not see it. @last: and it is the last such message. */
void quire_message_row_set_left_out (QuireMessageRow *self, gboolean left_out, gboolean last);
/* The reply without its thinking, to the clipboard. */
void quire_message_row_copy (QuireMessageRow *self);
/* The same for a reply that may have no row, to the clipboard of @widget. */
void quire_message_row_copy_of (QuireMessage *message, GtkWidget *widget);

G_END_DECLS
