/* quire-versions.c: see quire-versions.h. */
#include "app/quire-versions.h"

#include <glib/gi18n.h>

struct _QuireVersions
{
  GtkBox parent_instance;

  QuireMessage *message;
  GtkWidget *previous, *label, *next;
};

G_DEFINE_FINAL_TYPE (QuireVersions, quire_versions, GTK_TYPE_BOX)

static void
update (QuireVersions *self)
{
  guint n, i = quire_message_get_version (self->message, &n);
  /* Translators: which version of a message is shown, of how many. */
  g_autofree char *text = g_strdup_printf (_ ("%u/%u"), i, n);
  g_autofree char *tooltip = g_strdup_printf (_ ("Version %u of %u"), i, n);

  gtk_label_set_text (GTK_LABEL (self->label), text);
  gtk_widget_set_tooltip_text (self->label, tooltip);
  /* The chat's action is off while a reply runs; the ends are known here. */
  gtk_widget_set_opacity (self->previous, i > 1 ? 1 : 0.3);
  gtk_widget_set_opacity (self->next, i < n ? 1 : 0.3);
  gtk_widget_set_visible (GTK_WIDGET (self), n > 1);
}

void
quire_button_set_action (GtkWidget *button, const char *action)
{
  g_autoptr (GVariant) target = NULL;
  g_autofree char *name = NULL;

  gtk_actionable_set_action_name (GTK_ACTIONABLE (button), NULL);
  if (action == NULL || !g_action_parse_detailed_name (action, &name, &target, NULL))
    return;
  gtk_actionable_set_action_target_value (GTK_ACTIONABLE (button), target);
  gtk_actionable_set_action_name (GTK_ACTIONABLE (button), name);
}

GtkWidget *
quire_icon_button_new (const char *icon, const char *tooltip, const char *action, GVariant *target)
{
  GtkWidget *button = gtk_button_new_from_icon_name (icon);

  gtk_widget_add_css_class (button, "flat");
  gtk_widget_set_tooltip_text (button, tooltip);
  gtk_accessible_update_property (GTK_ACCESSIBLE (button), GTK_ACCESSIBLE_PROPERTY_LABEL, tooltip,
                                  -1);
  if (target != NULL)
    gtk_actionable_set_action_target_value (GTK_ACTIONABLE (button), target);
  gtk_actionable_set_action_name (GTK_ACTIONABLE (button), action);
  return button;
}

static void
quire_versions_dispose (GObject *object)
{
  g_clear_object (&QUIRE_VERSIONS (object)->message);
  G_OBJECT_CLASS (quire_versions_parent_class)->dispose (object);
}

static void
quire_versions_class_init (QuireVersionsClass *klass)
{
  G_OBJECT_CLASS (klass)->dispose = quire_versions_dispose;
}

static void
quire_versions_init (QuireVersions *self)
{
}

GtkWidget *
quire_versions_new (QuireMessage *message)
{
  QuireVersions *self = g_object_new (QUIRE_TYPE_VERSIONS, NULL);
  guint seq = quire_message_get_seq (message);

  self->message = g_object_ref (message);
  self->previous = quire_icon_button_new ("go-previous-symbolic", _ ("Previous Version"),
                                          "chat.flip", g_variant_new ("(ui)", seq, -1));
  self->label = gtk_label_new (NULL);
  gtk_widget_add_css_class (self->label, "caption");
  gtk_widget_add_css_class (self->label, "numeric");
  gtk_widget_add_css_class (self->label, "dim-label");
  self->next = quire_icon_button_new ("go-next-symbolic", _ ("Next Version"), "chat.flip",
                                      g_variant_new ("(ui)", seq, 1));
  gtk_box_append (GTK_BOX (self), self->previous);
  gtk_box_append (GTK_BOX (self), self->label);
  gtk_box_append (GTK_BOX (self), self->next);
  g_signal_connect_object (message, "changed", G_CALLBACK (update), self, G_CONNECT_SWAPPED);
  update (self);
  return GTK_WIDGET (self);
}
