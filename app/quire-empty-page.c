/* quire-empty-page.c: see quire-empty-page.h. CSS: .quire-empty, .quire-suggestion. */
#include "app/quire-empty-page.h"

#include <adwaita.h>
#include <glib/gi18n.h>

#include "app/quire-format.h"
#include "app/quire-settings.h"
#include "app/quire-widget.h"

typedef struct
{
  QuireEngineClient *client; /* borrowed: the signal goes with it */
  AdwStatusPage *page;
  GtkWidget *suggestions;
} Parts;

/* "Quire Demo is ready on the CPU. It is a very small model…". Returns: owned. */
static char *
dup_ready (const qe_engine_status *status)
{
  g_autofree char *name = quire_model_dup_name (status->model);
  const char *private = _ ("Nothing you write leaves this computer.");
  gboolean on_cpu = g_strcmp0 (status->backend, "cpu") == 0;
  g_autofree char *ready = g_strdup_printf (
      on_cpu ? _ ("%s is ready on the CPU.") : _ ("%s is ready on the GPU."), name);

  if (quire_model_is_shipped (status->model->dir))
    {
      g_autofree char *two = quire_format_sentences (
          ready, _ ("It is a very small model, made to show how the cache works: it chats about "
                    "simple things and knows little else."));

      return g_strdup_printf ("%s\n%s", two, private);
    }
  return g_strdup_printf ("%s\n%s", ready, private);
}

static void
update (GtkWidget *widget)
{
  Parts *parts = g_object_get_data (G_OBJECT (widget), "quire-parts");
  const qe_engine_status *status = quire_engine_client_get_status (parts->client);
  g_autofree char *text = NULL;
  g_autofree char *escaped = NULL;
  gboolean can = status->model != NULL
                 && (status->state == QE_ENGINE_READY || status->state == QE_ENGINE_RELEASED);

  if (can)
    text = dup_ready (status);
  else if (status->state == QE_ENGINE_LOADING)
    text = g_strdup (_ ("The model is being loaded."));
  else if (status->state == QE_ENGINE_LOST)
    text = g_strdup (_ ("The model has to be loaded again."));
  else
    text = g_strdup (_ ("Choose a model to start."));
  escaped = g_markup_escape_text (text, -1);
  if (g_strcmp0 (adw_status_page_get_description (parts->page), escaped) != 0)
    adw_status_page_set_description (parts->page, escaped);
  gtk_widget_set_sensitive (parts->suggestions, can);
}

static GtkWidget *
suggestions_new (void)
{
  const char *texts[] = {
    /* Translators: three messages to begin with. The shipped model understands English and some Chinese only. */
    N_ ("My name is Oda."),
    N_ ("What is a KV cache?"),
    N_ ("Tell me a story."),
  };
  GtkWidget *box = gtk_box_new (GTK_ORIENTATION_VERTICAL, 6);

  for (gsize i = 0; i < G_N_ELEMENTS (texts); i++)
    {
      GtkWidget *button = gtk_button_new_with_label (_ (texts[i]));

      gtk_widget_add_css_class (button, "pill");
      gtk_widget_add_css_class (button, "quire-suggestion");
      gtk_actionable_set_action_name (GTK_ACTIONABLE (button), "chat.suggest");
      gtk_actionable_set_action_target (GTK_ACTIONABLE (button), "s", _ (texts[i]));
      gtk_box_append (GTK_BOX (box), button);
    }
  return box;
}

GtkWidget *
quire_empty_page_new (QuireEngineClient *client)
{
  GtkWidget *page = adw_status_page_new (), *box = gtk_box_new (GTK_ORIENTATION_VERTICAL, 18);
  GtkWidget *models = quire_mnemonic_button_new (_ ("Choose _Another Model…"));
  Parts *parts = g_new0 (Parts, 1);

  parts->client = client;
  parts->page = ADW_STATUS_PAGE (page);
  parts->suggestions = suggestions_new ();
  g_object_set_data_full (G_OBJECT (page), "quire-parts", parts, g_free);
  gtk_widget_add_css_class (page, "compact");
  gtk_widget_add_css_class (page, "quire-empty");
  adw_status_page_set_icon_name (parts->page, QUIRE_APP_ID);
  adw_status_page_set_title (parts->page, _ ("Start a Chat"));
  gtk_actionable_set_action_name (GTK_ACTIONABLE (models), "app.models");
  gtk_widget_add_css_class (models, "flat");
  gtk_widget_add_css_class (models, "quire-suggestion");
  gtk_widget_set_halign (box, GTK_ALIGN_CENTER);
  gtk_box_append (GTK_BOX (box), parts->suggestions);
  gtk_box_append (GTK_BOX (box), models);
  adw_status_page_set_child (parts->page, box);
  g_signal_connect_object (client, "status-changed", G_CALLBACK (update), page, G_CONNECT_SWAPPED);
  update (page);
  return page;
}
