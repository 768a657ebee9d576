/* quire-find-bar.c: see quire-find-bar.h.
 *
 * Places are looked for each time they are needed: a reply that streams makes and drops labels, so none is kept. In messages
 * that have no row they are counted in the text; the one that is gone to gets its row, and is marked once that has its place. A place is
 * marked by its colours: a selection is seen where the focus is, and that stays in the entry. CSS: findbar > revealer > box. */
#include "app/quire-find-bar.h"

#include <glib/gi18n.h>

#include "app/quire-find-text.h"
#include "app/quire-message-row.h"

/* A row that was made, and those around it, have found their places after so many frames. */
#define SETTLE_FRAMES 12

typedef struct
{
  GtkWidget *widget; /* borrowed: a label or a text view; NULL: the message has no row */
  int begin, end;    /* characters */
  guint message;     /* its index */
} Place;

struct _QuireFindBar
{
  GtkWidget parent_instance;

  GtkWidget *revealer, *entry, *previous, *next;
  GtkLabel *text;
  GListModel *messages;
  GtkWidget *rows;
  GtkScrolledWindow *scrolled;
  QuireMakeRowFunc make_row;
  gpointer user_data;
  QuireFindText *texts; /* while it is open */
  guint settle_id, n_frames;
  GtkWidget *marked;       /* weak */
  PangoAttrList *unmarked; /* what it had before, when it is a label */
  guint at;                /* of the places, from 0 */
  char *given;             /* the entry's text is not the user's; NULL: it is */
};

G_DEFINE_FINAL_TYPE (QuireFindBar, quire_find_bar, GTK_TYPE_WIDGET)

static guint closed_signal;

/* ---- Places ---- */

static char *
dup_shown (GtkWidget *widget)
{
  char *text = NULL;

  if (GTK_IS_LABEL (widget))
    return g_strdup (gtk_label_get_text (GTK_LABEL (widget)));
  g_object_get (gtk_text_view_get_buffer (GTK_TEXT_VIEW (widget)), "text", &text, NULL);
  return text;
}

static void
collect_from (GtkWidget *widget, guint message, const gunichar *needle, glong n_needle,
              GArray *places)
{
  g_autofree char *text = dup_shown (widget);
  glong n;
  g_autofree gunichar *folded = quire_find_fold (text, &n);

  for (glong at = quire_find_next (folded, n, 0, needle, n_needle); at >= 0;
       at = quire_find_next (folded, n, at + n_needle, needle, n_needle))
    {
      Place place = { widget, (int)at, (int)(at + n_needle), message };

      g_array_append_val (places, place);
    }
}

/* What is selectable is a message's text; names of buttons and figures are not. */
static void
collect (GtkWidget *widget, guint message, const gunichar *needle, glong n_needle, GArray *places)
{
  if (!gtk_widget_get_child_visible (widget) || !gtk_widget_get_visible (widget)
      || gtk_widget_has_css_class (widget, "quire-receipt"))
    return;
  if ((GTK_IS_LABEL (widget) && gtk_label_get_selectable (GTK_LABEL (widget)))
      || GTK_IS_TEXT_VIEW (widget))
    {
      collect_from (widget, message, needle, n_needle, places);
      return;
    }
  for (GtkWidget *child = gtk_widget_get_first_child (widget); child != NULL;
       child = gtk_widget_get_next_sibling (child))
    collect (child, message, needle, n_needle, places);
}

/* Returns: (element-type Place) owned, in the order of the text. */
static GArray *
find_places (QuireFindBar *self)
{
  GArray *places = g_array_new (FALSE, FALSE, sizeof (Place));
  glong n;
  g_autofree gunichar *needle
      = quire_find_fold (gtk_editable_get_text (GTK_EDITABLE (self->entry)), &n);
  GtkWidget *row = gtk_widget_get_first_child (self->rows);
  guint n_messages = n > 0 ? g_list_model_get_n_items (self->messages) : 0;

  if (self->texts == NULL)
    self->texts = quire_find_text_new ();
  for (guint i = 0; i < n_messages; i++)
    {
      g_autoptr (QuireMessage) message = g_list_model_get_item (self->messages, i);

      if (row != NULL && quire_message_row_get_message (QUIRE_MESSAGE_ROW (row)) == message)
        {
          collect (row, i, needle, n, places);
          row = gtk_widget_get_next_sibling (row);
        }
      else
        {
          Place place = { .message = i };

          for (guint k = quire_find_text_count (self->texts, message, needle, n); k > 0; k--)
            g_array_append_val (places, place);
        }
    }
  return places;
}

static void
unmark (QuireFindBar *self)
{
  if (self->marked != NULL && GTK_IS_LABEL (self->marked))
    gtk_label_set_attributes (GTK_LABEL (self->marked), self->unmarked);
  g_clear_pointer (&self->unmarked, pango_attr_list_unref);
  g_clear_weak_pointer (&self->marked);
}

static void
insert (PangoAttrList *list, PangoAttribute *attribute, guint begin, guint end)
{
  attribute->start_index = begin;
  attribute->end_index = end;
  pango_attr_list_change (list, attribute);
}

/* The colours of a place are the same in every style: #241f31 on #f8e45c. */
static void
mark_label (QuireFindBar *self, GtkLabel *label, guint begin, guint end)
{
  PangoAttrList *before = gtk_label_get_attributes (label);
  g_autoptr (PangoAttrList) list
      = before != NULL ? pango_attr_list_copy (before) : pango_attr_list_new ();

  self->unmarked = before != NULL ? pango_attr_list_ref (before) : NULL;
  insert (list, pango_attr_background_new (0xf8f8, 0xe4e4, 0x5c5c), begin, end);
  insert (list, pango_attr_foreground_new (0x2424, 0x1f1f, 0x3131), begin, end);
  insert (list, pango_attr_underline_new (PANGO_UNDERLINE_SINGLE), begin, end);
  gtk_label_set_attributes (label, list);
}

/* A third from the top. */
static void
scroll_to (QuireFindBar *self, GtkWidget *widget, double y)
{
  GtkAdjustment *adjustment = gtk_scrolled_window_get_vadjustment (self->scrolled);
  double page = gtk_adjustment_get_page_size (adjustment), x, at;

  if (!gtk_widget_translate_coordinates (widget, self->rows, 0, y, &x, &at))
    return;
  /* What is above the rows scrolls with them. */
  at += gtk_adjustment_get_value (adjustment);
  {
    double rows_x, rows_y;

    gtk_widget_translate_coordinates (self->rows, GTK_WIDGET (self->scrolled), 0, 0, &rows_x,
                                      &rows_y);
    at += rows_y;
  }
  if (at < gtk_adjustment_get_value (adjustment) + 24
      || at > gtk_adjustment_get_value (adjustment) + page - 48)
    gtk_adjustment_set_value (adjustment, at - page / 3);
}

static void
mark (QuireFindBar *self, const Place *place)
{
  unmark (self);
  g_set_weak_pointer (&self->marked, place->widget);
  if (GTK_IS_LABEL (place->widget))
    {
      GtkLabel *label = GTK_LABEL (place->widget);
      const char *text = gtk_label_get_text (label);
      guint begin = (guint)(g_utf8_offset_to_pointer (text, place->begin) - text);
      PangoRectangle rectangle;
      int x, y;

      mark_label (self, label, begin, (guint)(g_utf8_offset_to_pointer (text, place->end) - text));
      pango_layout_index_to_pos (gtk_label_get_layout (label), (int)begin, &rectangle);
      gtk_label_get_layout_offsets (label, &x, &y);
      scroll_to (self, place->widget, y + PANGO_PIXELS (rectangle.y));
    }
  else
    {
      GtkTextView *view = GTK_TEXT_VIEW (place->widget);
      GtkTextBuffer *buffer = gtk_text_view_get_buffer (view);
      GtkTextIter begin, end;
      GdkRectangle rectangle;
      int x, y;

      gtk_text_buffer_get_iter_at_offset (buffer, &begin, place->begin);
      gtk_text_buffer_get_iter_at_offset (buffer, &end, place->end);
      gtk_text_buffer_select_range (buffer, &begin, &end);
      gtk_text_view_scroll_to_iter (view, &begin, 0.1, FALSE, 0, 0);
      gtk_text_view_get_iter_location (view, &begin, &rectangle);
      gtk_text_view_buffer_to_window_coords (view, GTK_TEXT_WINDOW_WIDGET, rectangle.x, rectangle.y,
                                             &x, &y);
      scroll_to (self, place->widget, y);
    }
}

static void show (QuireFindBar *self);

static void
stop_settling (QuireFindBar *self)
{
  if (self->settle_id != 0)
    gtk_widget_remove_tick_callback (GTK_WIDGET (self), self->settle_id);
  self->settle_id = 0;
}

/* The place is kept in sight while rows around it are laid out. */
static gboolean
settle_cb (GtkWidget *widget, GdkFrameClock *clock, gpointer user_data)
{
  QuireFindBar *self = QUIRE_FIND_BAR (widget);
  gboolean over = ++self->n_frames >= SETTLE_FRAMES;

  if (over)
    self->settle_id = 0;
  show (self);
  return over ? G_SOURCE_REMOVE : G_SOURCE_CONTINUE;
}

static void
settle (QuireFindBar *self)
{
  self->n_frames = 0;
  if (self->settle_id == 0)
    self->settle_id = gtk_widget_add_tick_callback (GTK_WIDGET (self), settle_cb, NULL, NULL);
}

static void
show (QuireFindBar *self)
{
  g_autoptr (GArray) places = find_places (self);
  gboolean blank = gtk_editable_get_text (GTK_EDITABLE (self->entry))[0] == '\0';
  g_autofree char *text = NULL;

  gtk_widget_set_sensitive (self->previous, places->len > 0);
  gtk_widget_set_sensitive (self->next, places->len > 0);
  if (places->len == 0)
    {
      unmark (self);
      gtk_label_set_text (self->text, blank ? "" : _ ("Not found"));
      return;
    }
  self->at = MIN (self->at, places->len - 1);
  /* Translators: which of the places where a word was found, and how many there are. */
  text = g_strdup_printf (_ ("%u of %u"), self->at + 1, places->len);
  gtk_label_set_text (self->text, text);
  {
    const Place *place = &g_array_index (places, Place, self->at);

    if (place->widget != NULL && gtk_widget_get_height (place->widget) > 0)
      mark (self, place);
    else if (place->widget == NULL)
      {
        unmark (self);
        self->make_row (self->user_data, place->message);
        settle (self);
      }
  }
}

static void
changed_cb (QuireFindBar *self)
{
  gboolean given = g_strcmp0 (self->given, gtk_editable_get_text (GTK_EDITABLE (self->entry))) == 0;

  g_clear_pointer (&self->given, g_free);
  /* It is shown already, or what it was for is over: the entry tells late. */
  if (given || !quire_find_bar_is_open (self))
    return;
  self->at = 0;
  stop_settling (self);
  show (self);
}

/* ---- What it does ---- */

void
quire_find_bar_step (QuireFindBar *self, int by)
{
  g_autoptr (GArray) places = NULL;

  if (!quire_find_bar_is_open (self))
    {
      quire_find_bar_open (self);
      return;
    }
  places = find_places (self);
  if (places->len > 0)
    self->at = (guint)(((gint64)MIN (self->at, places->len - 1) + by + places->len) % places->len);
  show (self);
}

static void
next_cb (QuireFindBar *self)
{
  quire_find_bar_step (self, 1);
}

static void
previous_cb (QuireFindBar *self)
{
  quire_find_bar_step (self, -1);
}

gboolean
quire_find_bar_is_open (QuireFindBar *self)
{
  return gtk_revealer_get_reveal_child (GTK_REVEALER (self->revealer));
}

static void
reveal (QuireFindBar *self)
{
  gtk_revealer_set_reveal_child (GTK_REVEALER (self->revealer), TRUE);
  gtk_widget_set_visible (GTK_WIDGET (self), TRUE);
  gtk_widget_grab_focus (self->entry);
  gtk_editable_select_region (GTK_EDITABLE (self->entry), 0, -1);
}

void
quire_find_bar_open (QuireFindBar *self)
{
  reveal (self);
  g_clear_pointer (&self->given, g_free);
  changed_cb (self);
}

static GtkWidget *
find_row (QuireFindBar *self, guint seq)
{
  GtkWidget *row = gtk_widget_get_first_child (self->rows);

  while (row != NULL
         && quire_message_get_seq (quire_message_row_get_message (QUIRE_MESSAGE_ROW (row))) != seq)
    row = gtk_widget_get_next_sibling (row);
  return row;
}

/* FALSE: @row does not show @words. */
static gboolean
show_at (QuireFindBar *self, GtkWidget *row, const char *words)
{
  g_autoptr (GArray) places = NULL;

  if (words[0] == '\0')
    return FALSE;
  gtk_editable_set_text (GTK_EDITABLE (self->entry), words);
  places = find_places (self);
  for (guint i = 0; i < places->len; i++)
    if (g_array_index (places, Place, i).widget != NULL
        && gtk_widget_is_ancestor (g_array_index (places, Place, i).widget, row))
      {
        g_free (self->given);
        self->given = g_strdup (words);
        self->at = i;
        reveal (self);
        show (self);
        return TRUE;
      }
  return FALSE;
}

void
quire_find_bar_show (QuireFindBar *self, const char *query, guint seq)
{
  GtkWidget *row = find_row (self, seq);
  g_auto (GStrv) words = g_strsplit_set (query, " \t\n", -1);
  gboolean shown;

  if (row == NULL)
    {
      quire_find_bar_close (self);
      return;
    }
  shown = show_at (self, row, query);
  for (guint i = 0; !shown && words[i] != NULL; i++)
    shown = show_at (self, row, words[i]);
  if (shown)
    return;
  quire_find_bar_close (self);
  scroll_to (self, row, 0);
}

void
quire_find_bar_close (QuireFindBar *self)
{
  if (!quire_find_bar_is_open (self))
    return;
  gtk_revealer_set_reveal_child (GTK_REVEALER (self->revealer), FALSE);
  gtk_widget_set_visible (GTK_WIDGET (self), FALSE);
  stop_settling (self);
  g_clear_pointer (&self->texts, quire_find_text_free);
  unmark (self);
  g_signal_emit (self, closed_signal, 0);
}

const char *
quire_find_bar_get_text (QuireFindBar *self)
{
  return gtk_label_get_text (self->text);
}

/* ---- Object ---- */

static void
quire_find_bar_dispose (GObject *object)
{
  QuireFindBar *self = QUIRE_FIND_BAR (object);

  stop_settling (self);
  g_clear_pointer (&self->texts, quire_find_text_free);
  g_clear_pointer (&self->given, g_free);
  g_clear_pointer (&self->unmarked, pango_attr_list_unref);
  g_clear_weak_pointer (&self->marked);
  g_clear_pointer (&self->revealer, gtk_widget_unparent);
  G_OBJECT_CLASS (quire_find_bar_parent_class)->dispose (object);
}

static void
quire_find_bar_class_init (QuireFindBarClass *klass)
{
  GtkWidgetClass *widget_class = GTK_WIDGET_CLASS (klass);

  G_OBJECT_CLASS (klass)->dispose = quire_find_bar_dispose;
  gtk_widget_class_set_layout_manager_type (widget_class, GTK_TYPE_BIN_LAYOUT);
  gtk_widget_class_set_css_name (widget_class, "findbar");
  closed_signal = g_signal_new ("closed", G_TYPE_FROM_CLASS (klass), G_SIGNAL_RUN_LAST, 0, NULL,
                                NULL, NULL, G_TYPE_NONE, 0);
}

static GtkWidget *
button_new (const char *icon, const char *tooltip, GCallback clicked, gpointer self)
{
  GtkWidget *button = gtk_button_new_from_icon_name (icon);

  gtk_widget_add_css_class (button, "flat");
  gtk_widget_set_tooltip_text (button, tooltip);
  gtk_accessible_update_property (GTK_ACCESSIBLE (button), GTK_ACCESSIBLE_PROPERTY_LABEL, tooltip,
                                  -1);
  g_signal_connect_swapped (button, "clicked", clicked, self);
  return button;
}

static void
quire_find_bar_init (QuireFindBar *self)
{
  GtkWidget *box = gtk_box_new (GTK_ORIENTATION_HORIZONTAL, 6);

  self->entry = gtk_search_entry_new ();
  gtk_editable_set_width_chars (GTK_EDITABLE (self->entry), 5);
  gtk_widget_set_hexpand (self->entry, TRUE);
  gtk_accessible_update_property (GTK_ACCESSIBLE (self->entry), GTK_ACCESSIBLE_PROPERTY_LABEL,
                                  _ ("Find in this chat"), -1);
  gtk_box_append (GTK_BOX (box), self->entry);
  self->text = GTK_LABEL (
      g_object_new (GTK_TYPE_LABEL, "accessible-role", GTK_ACCESSIBLE_ROLE_STATUS, NULL));
  gtk_widget_add_css_class (GTK_WIDGET (self->text), "dim-label");
  gtk_widget_add_css_class (GTK_WIDGET (self->text), "numeric");
  gtk_box_append (GTK_BOX (box), GTK_WIDGET (self->text));
  self->previous
      = button_new ("go-up-symbolic", _ ("Previous Place"), G_CALLBACK (previous_cb), self);
  self->next = button_new ("go-down-symbolic", _ ("Next Place"), G_CALLBACK (next_cb), self);
  gtk_box_append (GTK_BOX (box), self->previous);
  gtk_box_append (GTK_BOX (box), self->next);
  gtk_box_append (GTK_BOX (box), button_new ("window-close-symbolic", _ ("Close"),
                                             G_CALLBACK (quire_find_bar_close), self));
  gtk_widget_add_css_class (box, "quire-find");
  self->revealer = gtk_revealer_new ();
  gtk_revealer_set_child (GTK_REVEALER (self->revealer), box);
  gtk_widget_set_parent (self->revealer, GTK_WIDGET (self));
  gtk_widget_set_visible (GTK_WIDGET (self), FALSE);
  g_signal_connect_swapped (self->entry, "search-changed", G_CALLBACK (changed_cb), self);
  /* Enter comes as this, after the input method. */
  g_signal_connect_swapped (self->entry, "activate", G_CALLBACK (next_cb), self);
  g_signal_connect_swapped (self->entry, "next-match", G_CALLBACK (next_cb), self);
  g_signal_connect_swapped (self->entry, "previous-match", G_CALLBACK (previous_cb), self);
  g_signal_connect_swapped (self->entry, "stop-search", G_CALLBACK (quire_find_bar_close), self);
}

/* Who scrolls goes where that leads. */
static gboolean
scroll_cb (QuireFindBar *self)
{
  stop_settling (self);
  return GDK_EVENT_PROPAGATE;
}

GtkWidget *
quire_find_bar_new (GListModel *messages, GtkWidget *rows, GtkScrolledWindow *scrolled,
                    QuireMakeRowFunc make_row, gpointer user_data)
{
  QuireFindBar *self = g_object_new (QUIRE_TYPE_FIND_BAR, NULL);
  GtkEventController *scroll
      = gtk_event_controller_scroll_new (GTK_EVENT_CONTROLLER_SCROLL_BOTH_AXES);

  self->messages = messages;
  self->rows = rows;
  self->scrolled = scrolled;
  self->make_row = make_row;
  self->user_data = user_data;
  gtk_event_controller_set_propagation_phase (scroll, GTK_PHASE_CAPTURE);
  g_signal_connect_object (scroll, "scroll", G_CALLBACK (scroll_cb), self, G_CONNECT_SWAPPED);
  gtk_widget_add_controller (GTK_WIDGET (scrolled), scroll);
  return GTK_WIDGET (self);
}
