/* quire-announcer.c: see quire-announcer.h. */
#include "app/quire-announcer.h"

#include <dlfcn.h>
#include <string.h>

#include "app/quire-pace.h"
#include "app/quire-thinking.h"

struct _QuireAnnouncer
{
  GtkWidget parent_instance;

  GtkWidget *label;
  QuireMessage *message; /* the one that is followed, or NULL */
  gsize n_said;          /* of its answer */
  guint n;
};

G_DEFINE_FINAL_TYPE (QuireAnnouncer, quire_announcer, GTK_TYPE_WIDGET)

/* GTK 4.14's; priority 1 is medium. */
typedef void (*AnnounceFn) (GtkAccessible *self, const char *message, int priority);

static AnnounceFn
find_announce (void)
{
  static gsize found;
  static AnnounceFn announce;

  if (g_once_init_enter (&found))
    {
      announce = (AnnounceFn)(gpointer)dlsym (RTLD_DEFAULT, "gtk_accessible_announce");
      g_once_init_leave (&found, 1);
    }
  return announce;
}

static void
say (QuireAnnouncer *self, const char *text)
{
  AnnounceFn announce = find_announce ();

  gtk_label_set_text (GTK_LABEL (self->label), text);
  self->n++;
  if (announce != NULL)
    announce (GTK_ACCESSIBLE (self), text, 1);
}

void
quire_announcer_follow (QuireAnnouncer *self, QuireMessage *message)
{
  gsize n_bytes;
  const char *text = quire_message_get_text (message, &n_bytes);
  QuireThinking parts = quire_thinking_split (text, n_bytes);
  gboolean running = quire_message_is_running (message);
  g_autofree char *plain = NULL;
  gsize end;

  if (self->message != message)
    {
      /* One that had ended before is no news. */
      if (!running)
        return;
      g_set_object (&self->message, message);
      self->n_said = 0;
    }
  if (self->n_said > parts.n_answer)
    self->n_said = 0;
  end = quire_sentences_end (parts.answer, parts.n_answer, self->n_said, !running);
  if (end == self->n_said)
    return;
  plain = quire_sentences_plain (parts.answer, self->n_said, end);
  self->n_said = end;
  if (plain[0] != '\0')
    {
      g_autofree char *valid = g_utf8_make_valid (plain, -1);

      say (self, valid);
    }
}

const char *
quire_announcer_get_last (QuireAnnouncer *self)
{
  return gtk_label_get_text (GTK_LABEL (self->label));
}

guint
quire_announcer_get_n (QuireAnnouncer *self)
{
  return self->n;
}

/* It takes no room and is not seen, but is there. */
static void
quire_announcer_measure (GtkWidget *widget, GtkOrientation orientation, int for_size, int *minimum,
                         int *natural, int *minimum_baseline, int *natural_baseline)
{
  *minimum = *natural = 1;
}

static void
quire_announcer_size_allocate (GtkWidget *widget, int width, int height, int baseline)
{
  QuireAnnouncer *self = QUIRE_ANNOUNCER (widget);
  int label_width, label_height;

  gtk_widget_measure (self->label, GTK_ORIENTATION_HORIZONTAL, -1, &label_width, NULL, NULL, NULL);
  label_width = MAX (label_width, width);
  gtk_widget_measure (self->label, GTK_ORIENTATION_VERTICAL, label_width, &label_height, NULL, NULL,
                      NULL);
  gtk_widget_allocate (self->label, label_width, MAX (label_height, height), -1, NULL);
}

static void
quire_announcer_dispose (GObject *object)
{
  QuireAnnouncer *self = QUIRE_ANNOUNCER (object);

  g_clear_object (&self->message);
  g_clear_pointer (&self->label, gtk_widget_unparent);
  G_OBJECT_CLASS (quire_announcer_parent_class)->dispose (object);
}

static void
quire_announcer_class_init (QuireAnnouncerClass *klass)
{
  GtkWidgetClass *widget_class = GTK_WIDGET_CLASS (klass);

  G_OBJECT_CLASS (klass)->dispose = quire_announcer_dispose;
  widget_class->measure = quire_announcer_measure;
  widget_class->size_allocate = quire_announcer_size_allocate;
}

static void
quire_announcer_init (QuireAnnouncer *self)
{
  self->label = g_object_new (GTK_TYPE_LABEL, "accessible-role", GTK_ACCESSIBLE_ROLE_STATUS,
                              "ellipsize", PANGO_ELLIPSIZE_END, NULL);
  gtk_widget_set_opacity (self->label, 0);
  gtk_widget_set_can_target (GTK_WIDGET (self), FALSE);
  gtk_widget_set_overflow (GTK_WIDGET (self), GTK_OVERFLOW_HIDDEN);
  gtk_widget_set_parent (self->label, GTK_WIDGET (self));
}

GtkWidget *
quire_announcer_new (void)
{
  return g_object_new (QUIRE_TYPE_ANNOUNCER, NULL);
}
