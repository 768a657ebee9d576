/* quire-show-found.c: see quire-show-found.h. */
#include "app/quire-show-found.h"

/* Rows that are made have found their places after some frames. */
#define SETTLE_FRAMES 16
#define KEY "quire-show-found"

typedef struct
{
  guint seq, id, n_frames;
  char *words;
} Wanted;

static void
wanted_free (gpointer data)
{
  Wanted *wanted = data;

  g_free (wanted->words);
  g_free (wanted);
}

static gboolean
tick_cb (GtkWidget *widget, GdkFrameClock *clock, gpointer user_data)
{
  QuireChatView *view = QUIRE_CHAT_VIEW (widget);
  Wanted *wanted = user_data;

  if (!quire_conversation_is_loaded (quire_chat_view_get_conversation (view)))
    return G_SOURCE_CONTINUE;
  if (wanted->n_frames == 0)
    quire_chat_view_make_row (view, wanted->seq);
  if (++wanted->n_frames < SETTLE_FRAMES)
    return G_SOURCE_CONTINUE;
  quire_find_bar_show (quire_chat_view_get_find_bar (view), wanted->words, wanted->seq);
  wanted->id = 0;
  g_object_set_data (G_OBJECT (view), KEY, NULL);
  return G_SOURCE_REMOVE;
}

void
quire_show_found (QuireChatView *view, guint seq, const char *words)
{
  Wanted *wanted = g_object_get_data (G_OBJECT (view), KEY);

  if (wanted != NULL)
    gtk_widget_remove_tick_callback (GTK_WIDGET (view), wanted->id);
  wanted = g_new0 (Wanted, 1);
  wanted->seq = seq;
  wanted->words = g_strdup (words);
  g_object_set_data_full (G_OBJECT (view), KEY, wanted, wanted_free);
  wanted->id = gtk_widget_add_tick_callback (GTK_WIDGET (view), tick_cb, wanted, NULL);
}
