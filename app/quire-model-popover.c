/* quire-model-popover.c: see quire-model-popover.h. Filled each time it opens. */
#include "app/quire-model-popover.h"

#include <glib/gi18n.h>

#include "app/quire-format.h"
#include "app/quire-settings.h"
#include "app/quire-widget.h"
#include "app/quire-words.h"

struct _QuireModelPopover
{
  GtkPopover parent_instance;

  QuireEngineClient *client;
  GtkWidget *box;
};

G_DEFINE_FINAL_TYPE (QuireModelPopover, quire_model_popover, GTK_TYPE_POPOVER)

/* @value: taken. */
static void
add_fact (GtkGrid *grid, int row, const char *name, char *value)
{
  GtkWidget *name_label = gtk_label_new (name);
  GtkWidget *value_label = gtk_label_new (value);

  gtk_label_set_xalign (GTK_LABEL (name_label), 0);
  gtk_label_set_xalign (GTK_LABEL (value_label), 0);
  gtk_label_set_wrap (GTK_LABEL (value_label), TRUE);
  gtk_label_set_max_width_chars (GTK_LABEL (value_label), 28);
  gtk_widget_set_valign (name_label, GTK_ALIGN_START);
  gtk_widget_add_css_class (name_label, "dim-label");
  gtk_widget_add_css_class (name_label, "caption");
  gtk_widget_add_css_class (value_label, "caption");
  gtk_widget_add_css_class (value_label, "numeric");
  gtk_grid_attach (grid, name_label, 0, row, 1, 1);
  gtk_grid_attach (grid, value_label, 1, row, 1, 1);
  g_free (value);
}

static void
add_model (QuireModelPopover *self, const qe_engine_status *status)
{
  const qe_model_info *model = status->model;
  g_autofree char *name = quire_model_dup_name (model);
  GtkWidget *title = gtk_label_new (name);
  GtkWidget *grid = gtk_grid_new ();
  int row = 0;

  gtk_label_set_xalign (GTK_LABEL (title), 0);
  gtk_label_set_ellipsize (GTK_LABEL (title), PANGO_ELLIPSIZE_END);
  gtk_label_set_max_width_chars (GTK_LABEL (title), 36);
  gtk_widget_add_css_class (title, "heading");
  gtk_box_append (GTK_BOX (self->box), title);

  gtk_grid_set_column_spacing (GTK_GRID (grid), 18);
  gtk_grid_set_row_spacing (GTK_GRID (grid), 6);
  add_fact (GTK_GRID (grid), row++, _ ("Parameters"), quire_format_parameters (model->n_params));
  add_fact (GTK_GRID (grid), row++, _ ("Weights"), quire_format_bytes (model->weight_bytes));
  add_fact (GTK_GRID (grid), row++, _ ("Layers"), quire_format_count (model->n_layers));
  add_fact (GTK_GRID (grid), row++, _ ("Context"),
            g_strdup_printf (_ ("%'u tokens"), model->context_max));
  add_fact (GTK_GRID (grid), row++, _ ("Cache per token"),
            quire_format_bytes (model->kv_bytes_per_token));
  add_fact (GTK_GRID (grid), row++, _ ("Runs on"), g_strdup (quire_words (status->device)));
  gtk_box_append (GTK_BOX (self->box), grid);
}

static void
fill (QuireModelPopover *self)
{
  const qe_engine_status *status = quire_engine_client_get_status (self->client);
  GtkWidget *child;
  GtkWidget *button;

  while ((child = gtk_widget_get_first_child (self->box)) != NULL)
    gtk_box_remove (GTK_BOX (self->box), child);
  if (status->model != NULL)
    add_model (self, status);
  button = quire_mnemonic_button_new (_ ("_Models…"));
  gtk_actionable_set_action_name (GTK_ACTIONABLE (button), "app.models");
  g_signal_connect_swapped (button, "clicked", G_CALLBACK (gtk_popover_popdown), self);
  gtk_box_append (GTK_BOX (self->box), button);
}

static void
quire_model_popover_dispose (GObject *object)
{
  g_clear_object (&QUIRE_MODEL_POPOVER (object)->client);
  G_OBJECT_CLASS (quire_model_popover_parent_class)->dispose (object);
}

static void
quire_model_popover_class_init (QuireModelPopoverClass *klass)
{
  G_OBJECT_CLASS (klass)->dispose = quire_model_popover_dispose;
}

static void
quire_model_popover_init (QuireModelPopover *self)
{
  self->box = gtk_box_new (GTK_ORIENTATION_VERTICAL, 12);
  gtk_widget_set_margin_start (self->box, 6);
  gtk_widget_set_margin_end (self->box, 6);
  gtk_widget_set_margin_top (self->box, 6);
  gtk_widget_set_margin_bottom (self->box, 6);
  gtk_popover_set_child (GTK_POPOVER (self), self->box);
  g_signal_connect (self, "show", G_CALLBACK (fill), NULL);
}

GtkWidget *
quire_model_popover_new (QuireEngineClient *client)
{
  QuireModelPopover *self = g_object_new (QUIRE_TYPE_MODEL_POPOVER, NULL);

  self->client = g_object_ref (client);
  return GTK_WIDGET (self);
}
