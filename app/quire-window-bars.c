/* quire-window-bars.c: the bars above a transcript: the history's, the engine's, and each chat's own about its model. One is
 * shown at a time, the most urgent; the others wait until it has gone. */
#include "app/quire-window-private.h"

static QuireModelBar *
bar_of (AdwTabPage *page)
{
  GtkWidget *child = page != NULL ? adw_tab_page_get_child (page) : NULL;

  return QUIRE_IS_CHAT_VIEW (child) ? quire_chat_view_get_model_bar (QUIRE_CHAT_VIEW (child))
                                    : NULL;
}

void
quire_window_update_bars (QuireWindow *self)
{
  QuireUrgency history, engine, chat;
  QuireModelBar *front;

  /* Tabs go with the window. */
  if (self->history == NULL)
    return;
  history = quire_history_get_trouble (self->history) != NULL ? QUIRE_URGENCY_TROUBLE
                                                              : QUIRE_URGENCY_NONE;
  engine = quire_engine_bar_get_urgency (self->engine_bar);
  front = bar_of (adw_tab_view_get_selected_page (self->tab_view));
  chat = front != NULL ? quire_model_bar_get_urgency (front) : QUIRE_URGENCY_NONE;
  gtk_info_bar_set_revealed (self->history_bar,
                             history != QUIRE_URGENCY_NONE && history >= MAX (engine, chat));
  quire_engine_bar_set_yields (self->engine_bar, engine < MAX (history, chat));
  for (int i = 0; i < adw_tab_view_get_n_pages (self->tab_view); i++)
    {
      QuireModelBar *bar = bar_of (adw_tab_view_get_nth_page (self->tab_view, i));

      if (bar != NULL)
        quire_model_bar_set_yields (bar, quire_model_bar_get_urgency (bar) < MAX (history, engine));
    }
}

static void
page_attached_cb (QuireWindow *self, AdwTabPage *page)
{
  QuireModelBar *bar = bar_of (page);

  if (bar != NULL)
    g_signal_connect_object (bar, "urgency-changed", G_CALLBACK (quire_window_update_bars), self,
                             G_CONNECT_SWAPPED);
  quire_window_update_bars (self);
}

static void
page_detached_cb (QuireWindow *self, AdwTabPage *page)
{
  QuireModelBar *bar = bar_of (page);

  if (bar != NULL)
    g_signal_handlers_disconnect_by_data (bar, self);
}

static void
trouble_cb (QuireWindow *self)
{
  const char *trouble = quire_history_get_trouble (self->history);

  /* What it said stays while the bar slides away. */
  if (trouble != NULL)
    gtk_label_set_text (self->history_label, trouble);
  quire_window_update_bars (self);
}

void
quire_window_connect_bars (QuireWindow *self)
{
  g_signal_connect_swapped (self->tab_view, "page-attached", G_CALLBACK (page_attached_cb), self);
  g_signal_connect_swapped (self->tab_view, "page-detached", G_CALLBACK (page_detached_cb), self);
  g_signal_connect_swapped (self->tab_view, "notify::selected-page",
                            G_CALLBACK (quire_window_update_bars), self);
  g_signal_connect_swapped (self->engine_bar, "urgency-changed",
                            G_CALLBACK (quire_window_update_bars), self);
  g_signal_connect_swapped (self->history_bar, "response", G_CALLBACK (quire_history_clear_trouble),
                            self->history);
  g_signal_connect_object (self->history, "trouble", G_CALLBACK (trouble_cb), self,
                           G_CONNECT_SWAPPED);
  trouble_cb (self);
}
