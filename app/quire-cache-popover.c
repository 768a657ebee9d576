/* quire-cache-popover.c: see quire-cache-popover.h.
 *
 * Brought up to date each time it opens, and while it is open when a reply starts or ends. Selecting a mode shows its
 * cost; "Use This Mode" changes it. CSS: .quire-cache-modes. */
#include "app/quire-cache-popover.h"

#include <glib/gi18n.h>

#include "app/quire-widget.h"
#include "app/quire-words.h"

#define LIST_HEIGHT_MAX_PX 440
#define TEXT_CHARS 50
#define TEXT_CHARS_MIN 26

struct _QuireCachePopover
{
  GtkPopover parent_instance;

  QuireConversation *conversation;
  GtkWidget *modes[QUIRE_N_CACHE_CHOICES]; /* check buttons */
  GtkLabel *cost, *note, *reason;
  GtkWidget *use;
};

G_DEFINE_FINAL_TYPE (QuireCachePopover, quire_cache_popover, GTK_TYPE_POPOVER)

static QuireCacheChoice
selected (QuireCachePopover *self)
{
  for (guint i = 0; i < QUIRE_N_CACHE_CHOICES; i++)
    if (gtk_check_button_get_active (GTK_CHECK_BUTTON (self->modes[i])))
      return i;
  return quire_conversation_get_cache (self->conversation);
}

static void
set_label (GtkLabel *label, const char *text)
{
  gtk_label_set_text (label, text != NULL ? text : "");
  gtk_widget_set_visible (GTK_WIDGET (label), text != NULL && text[0] != '\0');
}

static void
update (QuireCachePopover *self)
{
  QuireEngineClient *client = quire_conversation_get_client (self->conversation);
  QuireCacheChoice choice = selected (self),
                   present = quire_conversation_get_cache (self->conversation);
  gboolean running = quire_conversation_is_running (self->conversation);
  gboolean other = choice != present;
  g_autofree char *cost = NULL;

  cost = quire_cache_format_cost (quire_engine_client_get_plan (client),
                                  quire_conversation_get_cache_mode (self->conversation), present,
                                  choice, quire_conversation_get_n_tokens (self->conversation));
  set_label (self->cost, cost);
  set_label (self->note, quire_cache_choice_get_error_note (choice));
  set_label (self->reason,
             running ? _ ("A reply is running: stop it first (Esc) to change the mode") : NULL);
  gtk_widget_set_sensitive (self->use, other && !running);
  for (guint i = 0; i < QUIRE_N_CACHE_CHOICES; i++)
    {
      gtk_widget_set_sensitive (self->modes[i], !running);
      gtk_widget_set_visible (
          self->modes[i],
          i == present || quire_cache_choice_is_offered (i, quire_engine_client_get_plan (client)));
    }
}

static void
show_cb (QuireCachePopover *self)
{
  QuireCacheChoice present = quire_conversation_get_cache (self->conversation);

  gtk_check_button_set_active (GTK_CHECK_BUTTON (self->modes[present]), TRUE);
  update (self);
  gtk_widget_grab_focus (self->modes[present]);
}

static void
use_clicked_cb (QuireCachePopover *self)
{
  g_autoptr (GError) error = NULL;

  if (quire_conversation_set_cache (self->conversation, selected (self), &error))
    gtk_popover_popdown (GTK_POPOVER (self));
  else
    set_label (self->reason, quire_words (error->message));
}

void
quire_cache_popover_select (QuireCachePopover *self, QuireCacheChoice choice)
{
  gtk_check_button_set_active (GTK_CHECK_BUTTON (self->modes[choice]), TRUE);
}

const char *
quire_cache_popover_get_cost (QuireCachePopover *self)
{
  return gtk_label_get_text (self->cost);
}

/* ---- Building ---- */

static GtkLabel *
text_new (const char *text, const char *css_class)
{
  GtkWidget *label = gtk_label_new (text);

  gtk_label_set_xalign (GTK_LABEL (label), 0);
  gtk_label_set_wrap (GTK_LABEL (label), TRUE);
  gtk_label_set_width_chars (GTK_LABEL (label), TEXT_CHARS_MIN);
  gtk_label_set_max_width_chars (GTK_LABEL (label), TEXT_CHARS);
  gtk_widget_add_css_class (label, "caption");
  if (css_class != NULL)
    gtk_widget_add_css_class (label, css_class);
  return GTK_LABEL (label);
}

static GtkWidget *
mode_new (QuireCachePopover *self, QuireCacheChoice choice)
{
  GtkWidget *button = gtk_check_button_new ();
  GtkWidget *box = gtk_box_new (GTK_ORIENTATION_VERTICAL, 0);
  GtkWidget *head = gtk_box_new (GTK_ORIENTATION_HORIZONTAL, 6);
  const char *title = quire_cache_choice_get_title (choice);
  const char *description = quire_cache_choice_get_description (choice);
  GtkWidget *name = gtk_label_new (title);

  gtk_box_append (GTK_BOX (head), name);
  if (quire_cache_choice_is_approximate (choice))
    {
      GtkWidget *tag = gtk_label_new (_ ("approximate"));
      /* Translators: name of a cache mode, for a screen reader. */
      g_autofree char *label = g_strdup_printf (_ ("%s, approximate"), title);

      gtk_widget_add_css_class (tag, "caption");
      gtk_widget_add_css_class (tag, "warning");
      gtk_box_append (GTK_BOX (head), tag);
      gtk_accessible_update_property (GTK_ACCESSIBLE (button), GTK_ACCESSIBLE_PROPERTY_LABEL, label,
                                      -1);
    }
  else
    gtk_accessible_update_property (GTK_ACCESSIBLE (button), GTK_ACCESSIBLE_PROPERTY_LABEL, title,
                                    -1);
  gtk_accessible_update_property (GTK_ACCESSIBLE (button), GTK_ACCESSIBLE_PROPERTY_DESCRIPTION,
                                  description, -1);
  gtk_box_append (GTK_BOX (box), head);
  gtk_box_append (GTK_BOX (box), GTK_WIDGET (text_new (description, "dim-label")));
  /* A check button leaves its child at its natural width. */
  gtk_widget_set_hexpand (box, TRUE);
  gtk_check_button_set_child (GTK_CHECK_BUTTON (button), box);
  g_signal_connect_swapped (button, "toggled", G_CALLBACK (update), self);
  return button;
}

static void
build (QuireCachePopover *self)
{
  GtkWidget *outer = gtk_box_new (GTK_ORIENTATION_VERTICAL, 12);
  GtkWidget *list = gtk_box_new (GTK_ORIENTATION_VERTICAL, 6);
  GtkWidget *scrolled = gtk_scrolled_window_new ();
  GtkWidget *title = gtk_label_new (_ ("Cache mode of this chat"));

  gtk_label_set_xalign (GTK_LABEL (title), 0);
  gtk_widget_add_css_class (title, "heading");
  gtk_box_append (GTK_BOX (outer), title);
  for (guint i = 0; i < QUIRE_N_CACHE_CHOICES; i++)
    {
      self->modes[i] = mode_new (self, i);
      if (i > 0)
        gtk_check_button_set_group (GTK_CHECK_BUTTON (self->modes[i]),
                                    GTK_CHECK_BUTTON (self->modes[0]));
      gtk_box_append (GTK_BOX (list), self->modes[i]);
    }
  gtk_scrolled_window_set_policy (GTK_SCROLLED_WINDOW (scrolled), GTK_POLICY_NEVER,
                                  GTK_POLICY_AUTOMATIC);
  gtk_scrolled_window_set_propagate_natural_height (GTK_SCROLLED_WINDOW (scrolled), TRUE);
  gtk_scrolled_window_set_max_content_height (GTK_SCROLLED_WINDOW (scrolled), LIST_HEIGHT_MAX_PX);
  gtk_scrolled_window_set_child (GTK_SCROLLED_WINDOW (scrolled), list);
  gtk_box_append (GTK_BOX (outer), scrolled);
  self->note = text_new (NULL, "warning");
  self->cost = text_new (NULL, NULL);
  self->reason = text_new (NULL, "error");
  gtk_box_append (GTK_BOX (outer), GTK_WIDGET (self->note));
  gtk_box_append (GTK_BOX (outer), GTK_WIDGET (self->cost));
  gtk_box_append (GTK_BOX (outer), GTK_WIDGET (self->reason));
  self->use = quire_mnemonic_button_new (_ ("_Use This Mode"));
  gtk_widget_add_css_class (self->use, "suggested-action");
  g_signal_connect_swapped (self->use, "clicked", G_CALLBACK (use_clicked_cb), self);
  gtk_box_append (GTK_BOX (outer), self->use);
  gtk_widget_add_css_class (outer, "quire-cache-modes");
  gtk_popover_set_child (GTK_POPOVER (self), outer);
  gtk_popover_set_default_widget (GTK_POPOVER (self), self->use);
}

static void
quire_cache_popover_dispose (GObject *object)
{
  g_clear_object (&QUIRE_CACHE_POPOVER (object)->conversation);
  G_OBJECT_CLASS (quire_cache_popover_parent_class)->dispose (object);
}

static void
quire_cache_popover_class_init (QuireCachePopoverClass *klass)
{
  G_OBJECT_CLASS (klass)->dispose = quire_cache_popover_dispose;
}

static void
quire_cache_popover_init (QuireCachePopover *self)
{
}

GtkWidget *
quire_cache_popover_new (QuireConversation *conversation)
{
  QuireCachePopover *self = g_object_new (QUIRE_TYPE_CACHE_POPOVER, NULL);

  self->conversation = g_object_ref (conversation);
  build (self);
  g_signal_connect (self, "show", G_CALLBACK (show_cb), NULL);
  g_signal_connect_object (conversation, "notify::running", G_CALLBACK (update), self,
                           G_CONNECT_SWAPPED);
  return GTK_WIDGET (self);
}
