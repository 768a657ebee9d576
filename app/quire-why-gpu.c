/* quire-why-gpu.c: see quire-why-gpu.h. The machine is looked at on a worker thread, again with each Check Again. */
#include "app/quire-why-gpu.h"

#include <adwaita.h>
#include <glib/gi18n.h>

#include "app/quire-application.h"
#include "app/quire-flatpak-gpu-group.h"
#include "app/quire-flatpak-gpu.h"
#include "app/quire-gpu-facts.h"
#include "app/quire-widget.h"
#include "app/quire-words.h"

typedef struct
{
  GtkWindow *window; /* borrowed: it owns this */
  GtkWidget *page;   /* of what is shown; NULL until it is known */
  GtkWidget *box, *check, *spinner;
  AdwToastOverlay *toasts;
  QuireGpuFacts *facts;
  GCancellable *cancellable;
} WhyGpu;

static void look (WhyGpu *self);

static void
why_gpu_free (gpointer data)
{
  WhyGpu *self = data;

  g_cancellable_cancel (self->cancellable);
  g_object_unref (self->cancellable);
  quire_gpu_facts_free (self->facts);
  g_free (self);
}

static void
copy (WhyGpu *self, const char *text)
{
  gdk_clipboard_set_text (gtk_widget_get_clipboard (GTK_WIDGET (self->window)), text);
  adw_toast_overlay_add_toast (self->toasts, adw_toast_new (_ ("Copied")));
}

static void
copy_command_cb (WhyGpu *self)
{
  copy (self, self->facts->command);
}

static void
copy_facts_cb (WhyGpu *self)
{
  g_autofree char *text = quire_gpu_facts_format (self->facts);

  copy (self, text);
}

/* The engine begins anew, with the card that is there now. */
static void
use_cb (WhyGpu *self)
{
  quire_application_restart_engine (QUIRE_APPLICATION (g_application_get_default ()));
  gtk_window_close (self->window);
}

static GtkWidget *
row_new (const char *title, const char *subtitle)
{
  GtkWidget *row = adw_action_row_new ();

  adw_preferences_row_set_use_markup (ADW_PREFERENCES_ROW (row), FALSE);
  adw_preferences_row_set_title (ADW_PREFERENCES_ROW (row), title);
  adw_action_row_set_subtitle (ADW_ACTION_ROW (row), subtitle);
  adw_action_row_set_title_lines (ADW_ACTION_ROW (row), 0);
  adw_action_row_set_subtitle_lines (ADW_ACTION_ROW (row), 0);
  return row;
}

static GtkWidget *
copy_button_new (WhyGpu *self, const char *name, GCallback clicked)
{
  GtkWidget *button = gtk_button_new_from_icon_name ("edit-copy-symbolic");

  gtk_widget_set_tooltip_text (button, name);
  gtk_accessible_update_property (GTK_ACCESSIBLE (button), GTK_ACCESSIBLE_PROPERTY_LABEL, name, -1);
  gtk_widget_set_valign (button, GTK_ALIGN_CENTER);
  gtk_widget_add_css_class (button, "flat");
  g_signal_connect_swapped (button, "clicked", clicked, self);
  return button;
}

static GtkWidget *
centred_new (const char *text, const char *css_class)
{
  GtkWidget *label = gtk_label_new (text);

  gtk_label_set_wrap (GTK_LABEL (label), TRUE);
  gtk_label_set_wrap_mode (GTK_LABEL (label), PANGO_WRAP_WORD_CHAR);
  gtk_label_set_justify (GTK_LABEL (label), GTK_JUSTIFY_CENTER);
  if (css_class != NULL)
    gtk_widget_add_css_class (label, css_class);
  return label;
}

/* As a status page, which would scroll by itself. */
static GtkWidget *
status_new (WhyGpu *self, gboolean with_advice)
{
  const QuireGpuFacts *facts = self->facts;
  GtkWidget *box = gtk_box_new (GTK_ORIENTATION_VERTICAL, 12);
  GtkWidget *icon = gtk_image_new_from_icon_name (
      facts->reason != NULL ? "dialog-information-symbolic" : "object-select-symbolic");

  gtk_image_set_pixel_size (GTK_IMAGE (icon), 48);
  gtk_widget_add_css_class (icon, "dim-label");
  gtk_box_append (GTK_BOX (box), icon);
  gtk_box_append (GTK_BOX (box), centred_new (facts->reason != NULL ? _ ("Running on the CPU")
                                                                    : _ ("The GPU Can Be Used"),
                                              "title-2"));
  if (facts->reason != NULL)
    gtk_box_append (GTK_BOX (box),
                    centred_new (quire_words (quire_flatpak_gpu_reason (facts->reason)), NULL));
  if (facts->advice != NULL && with_advice)
    gtk_box_append (GTK_BOX (box), centred_new (facts->advice, NULL));
  gtk_widget_set_margin_bottom (box, 12);
  if (facts->reason == NULL)
    {
      GtkWidget *use = quire_mnemonic_button_new (_ ("_Use It"));

      gtk_widget_add_css_class (use, "pill");
      gtk_widget_add_css_class (use, "suggested-action");
      gtk_widget_set_halign (use, GTK_ALIGN_CENTER);
      g_signal_connect_swapped (use, "clicked", G_CALLBACK (use_cb), self);
      gtk_box_append (GTK_BOX (box), use);
    }
  return box;
}

static GtkWidget *
page_new (WhyGpu *self)
{
  GtkWidget *page = adw_preferences_page_new ();
  GtkWidget *head = adw_preferences_group_new (), *facts = adw_preferences_group_new ();
  /* In a sandbox other things are missing than the facts tell, and other commands bring them. */
  GtkWidget *sandbox = self->facts->reason != NULL ? quire_flatpak_gpu_group_new () : NULL;

  adw_preferences_group_add (ADW_PREFERENCES_GROUP (head), status_new (self, sandbox == NULL));
  if (self->facts->command != NULL && sandbox == NULL)
    {
      GtkWidget *row = row_new (_ ("In a terminal"), self->facts->command);

      adw_action_row_add_suffix (
          ADW_ACTION_ROW (row),
          copy_button_new (self, _ ("Copy Command"), G_CALLBACK (copy_command_cb)));
      adw_preferences_group_add (ADW_PREFERENCES_GROUP (head), row);
    }
  adw_preferences_page_add (ADW_PREFERENCES_PAGE (page), ADW_PREFERENCES_GROUP (head));
  if (sandbox != NULL)
    adw_preferences_page_add (ADW_PREFERENCES_PAGE (page), ADW_PREFERENCES_GROUP (sandbox));
  adw_preferences_group_set_title (ADW_PREFERENCES_GROUP (facts), _ ("Facts"));
  adw_preferences_group_set_header_suffix (
      ADW_PREFERENCES_GROUP (facts),
      copy_button_new (self, _ ("Copy Facts"), G_CALLBACK (copy_facts_cb)));
  /* What is copied stays as the engine says it: it is for a report. */
  for (guint i = 0; i + 1 < self->facts->facts->len; i += 2)
    adw_preferences_group_add (
        ADW_PREFERENCES_GROUP (facts),
        row_new (g_ptr_array_index (self->facts->facts, i),
                 quire_words (g_ptr_array_index (self->facts->facts, i + 1))));
  adw_preferences_page_add (ADW_PREFERENCES_PAGE (page), ADW_PREFERENCES_GROUP (facts));
  gtk_widget_set_vexpand (page, TRUE);
  return page;
}

static void
read_thread (GTask *task, gpointer source, gpointer data, GCancellable *cancellable)
{
  g_task_return_pointer (task, quire_gpu_facts_read (""), (GDestroyNotify)quire_gpu_facts_free);
}

static void
read_cb (GObject *source, GAsyncResult *result, gpointer user_data)
{
  QuireGpuFacts *facts = g_task_propagate_pointer (G_TASK (result), NULL);
  WhyGpu *self = user_data;

  if (facts == NULL) /* cancelled: the window is gone */
    return;
  quire_gpu_facts_free (self->facts);
  self->facts = facts;
  if (self->page != NULL)
    adw_toast_overlay_add_toast (
        self->toasts, adw_toast_new (facts->reason != NULL ? _ ("Looked again: nothing has changed")
                                                           : _ ("Looked again: a GPU is there")));
  self->page = page_new (self);
  adw_toast_overlay_set_child (self->toasts, self->page);
  gtk_spinner_stop (GTK_SPINNER (self->spinner));
  gtk_widget_set_sensitive (self->check, TRUE);
}

static void
look (WhyGpu *self)
{
  g_autoptr (GTask) task = g_task_new (NULL, self->cancellable, read_cb, self);

  gtk_spinner_start (GTK_SPINNER (self->spinner));
  gtk_widget_set_sensitive (self->check, FALSE);
  g_task_run_in_thread (task, read_thread);
}

void
quire_why_gpu_present (GtkWindow *parent)
{
  WhyGpu *self = g_new0 (WhyGpu, 1);
  GtkWidget *window = adw_window_new (), *header = adw_header_bar_new ();
  GtkEventController *keys = gtk_shortcut_controller_new ();

  gtk_shortcut_controller_add_shortcut (
      GTK_SHORTCUT_CONTROLLER (keys), gtk_shortcut_new (gtk_keyval_trigger_new (GDK_KEY_Escape, 0),
                                                        gtk_named_action_new ("window.close")));
  gtk_widget_add_controller (window, keys);
  self->window = GTK_WINDOW (window);
  self->cancellable = g_cancellable_new ();
  g_object_set_data_full (G_OBJECT (window), "quire-why-gpu", self, why_gpu_free);
  self->box = gtk_box_new (GTK_ORIENTATION_VERTICAL, 0);
  self->check = quire_mnemonic_button_new (_ ("Check _Again"));
  self->spinner = gtk_spinner_new ();
  self->toasts = ADW_TOAST_OVERLAY (adw_toast_overlay_new ());
  quire_widget_name_toasts (self->toasts);
  g_signal_connect_swapped (self->check, "clicked", G_CALLBACK (look), self);
  adw_header_bar_pack_start (ADW_HEADER_BAR (header), self->check);
  adw_header_bar_pack_start (ADW_HEADER_BAR (header), self->spinner);
  gtk_box_append (GTK_BOX (self->box), header);
  gtk_widget_set_vexpand (GTK_WIDGET (self->toasts), TRUE);
  gtk_box_append (GTK_BOX (self->box), GTK_WIDGET (self->toasts));
  adw_window_set_content (ADW_WINDOW (window), self->box);
  gtk_window_set_title (self->window, _ ("Why No GPU?"));
  gtk_window_set_default_size (self->window, 520, 600);
  gtk_window_set_application (self->window, gtk_window_get_application (parent));
  gtk_window_set_transient_for (self->window, parent);
  gtk_window_set_destroy_with_parent (self->window, TRUE);
  /* Closed, it lives on as long as an event holds it, perhaps longer than its parent: it must not look back then. */
  g_signal_connect (window, "unrealize", G_CALLBACK (gtk_window_set_transient_for), NULL);
  look (self);
  gtk_window_present (self->window);
}
