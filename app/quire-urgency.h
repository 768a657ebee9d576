/* quire-urgency.h: how much the bars above a transcript matter. Of those that have something to say the most urgent one is
 * shown, see quire-window-bars.c. */
#pragma once
#include <glib.h>

G_BEGIN_DECLS

typedef enum
{
  QUIRE_URGENCY_NONE,     /* nothing to say */
  QUIRE_URGENCY_NOTE,     /* runs on the CPU */
  QUIRE_URGENCY_OFFER,    /* no model is loaded, its memory was given back */
  QUIRE_URGENCY_QUESTION, /* which model goes on with this chat */
  QUIRE_URGENCY_PROGRESS, /* loading: soon over */
  QUIRE_URGENCY_TROUBLE,  /* chats are not saved */
  QUIRE_URGENCY_ERROR,    /* nothing goes on before this is solved */
  QUIRE_URGENCY_ASKED,    /* a question that the user tried to pass by */
} QuireUrgency;

G_END_DECLS
