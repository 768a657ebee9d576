/* quire-empty-page.h: what a chat without messages shows: which model answers, where it runs, and how to begin. */
#pragma once
#include <gtk/gtk.h>
#include "app/quire-engine-client.h"

G_BEGIN_DECLS

/* Its suggestions are of the action chat.suggest. */
GtkWidget *quire_empty_page_new (QuireEngineClient *client);

G_END_DECLS
