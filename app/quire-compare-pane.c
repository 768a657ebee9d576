/* quire-compare-pane.c: see quire-compare-pane.h.
 *
 * The text only grows: what is new is appended. The mark of the first token that differs is one character of the buffer that
 * the text does not have, at char mark_at (-1: none).
 * CSS: .quire-compare-pane, .figure. */
#include "app/quire-compare-pane.h"

#include <glib/gi18n.h>
#include <math.h>
#include <string.h>

#include "app/quire-format.h"
#include "app/quire-widget.h"
#include "app/quire-words.h"

#define TEXT_HEIGHT_PX 120
#define STICK_PX 24
#define MARK "▸"

struct _QuireComparePane
{
  GtkBox parent_instance;

  guint i;
  GtkLabel *title, *approximate, *stream, *figure, *speed, *peak, *state;
  GtkTextView *view;
  GtkAdjustment *adjustment;
  GtkWidget *use;
  gsize n_shown; /* bytes of the text that are in the buffer */
  int mark_at;
  const QuirePane *pane; /* borrowed, of the last update; only used while it is shown */
  gboolean stick, syncing;
};

G_DEFINE_FINAL_TYPE (QuireComparePane, quire_compare_pane, GTK_TYPE_BOX)

enum
{
  SCROLLED,
  USE,
  N_SIGNALS
};
static guint signals[N_SIGNALS];

static void
set_text (GtkLabel *label, const char *text)
{
  if (g_strcmp0 (gtk_label_get_text (label), text) != 0)
    gtk_label_set_text (label, text);
  gtk_widget_set_visible (GTK_WIDGET (label), text != NULL && text[0] != '\0');
}

/* ---- Text ---- */

static int
to_chars (const QuirePane *pane, guint bytes)
{
  return (int)g_utf8_pointer_to_offset (pane->text->str, pane->text->str + bytes);
}

static void
update_mark (QuireComparePane *self, const QuireComparison *comparison)
{
  GtkTextBuffer *buffer = gtk_text_view_get_buffer (self->view);
  GtkTextIter begin, end;
  guint at;

  if (self->mark_at >= 0
      || quire_comparison_align (comparison, self->i, &at) != QUIRE_STREAM_DIFFERS)
    return;
  self->mark_at = to_chars (self->pane, quire_pane_get_begin (self->pane, at));
  gtk_text_buffer_get_iter_at_offset (buffer, &begin, self->mark_at);
  gtk_text_buffer_insert (buffer, &begin, MARK, -1);
  gtk_text_buffer_get_iter_at_offset (buffer, &begin, self->mark_at);
  gtk_text_buffer_get_iter_at_offset (
      buffer, &end,
      at < self->pane->tokens->len
          ? MAX (to_chars (self->pane, quire_pane_get_begin (self->pane, at + 1)), self->mark_at)
                + 1
          : self->mark_at + 1);
  gtk_text_buffer_apply_tag_by_name (buffer, "differs", &begin, &end);
}

static void
update_text (QuireComparePane *self, const QuireComparison *comparison)
{
  GtkTextBuffer *buffer = gtk_text_view_get_buffer (self->view);
  const GString *text = self->pane->text;
  GtkTextIter end;

  if (self->pane->error != NULL && text->len == 0)
    {
      gtk_text_buffer_set_text (buffer, quire_words (self->pane->error), -1);
      return;
    }
  if (text->len < self->n_shown)
    {
      gtk_text_buffer_set_text (buffer, "", 0);
      self->n_shown = 0;
      self->mark_at = -1;
    }
  if (text->len > self->n_shown)
    {
      gtk_text_buffer_get_end_iter (buffer, &end);
      gtk_text_buffer_insert (buffer, &end, text->str + self->n_shown,
                              (int)(text->len - self->n_shown));
      self->n_shown = text->len;
    }
  update_mark (self, comparison);
}

/* ---- Scrolling ---- */

static guint
first_token (QuireComparePane *self)
{
  GtkTextIter iter;
  int y, offset;
  const char *text = self->pane->text->str;

  gtk_text_view_window_to_buffer_coords (self->view, GTK_TEXT_WINDOW_WIDGET, 0, 0, NULL, &y);
  gtk_text_view_get_iter_at_location (self->view, &iter, 0, y);
  offset = gtk_text_iter_get_offset (&iter);
  if (self->mark_at >= 0 && offset > self->mark_at)
    offset--;
  return quire_pane_find_token (self->pane,
                                (guint)(g_utf8_offset_to_pointer (text, offset) - text));
}

static void
value_changed_cb (QuireComparePane *self)
{
  double end = gtk_adjustment_get_upper (self->adjustment)
               - gtk_adjustment_get_page_size (self->adjustment);

  if (self->syncing || self->pane == NULL || self->pane->tokens->len == 0
      || self->n_shown != self->pane->text->len)
    return;
  self->stick = end - gtk_adjustment_get_value (self->adjustment) <= STICK_PX;
  g_signal_emit (self, signals[SCROLLED], 0, first_token (self));
}

static void
adjustment_changed_cb (QuireComparePane *self)
{
  if (!self->stick || self->pane == NULL || self->pane->state != QUIRE_PANE_STREAMING)
    return;
  self->syncing = TRUE;
  gtk_adjustment_set_value (self->adjustment, gtk_adjustment_get_upper (self->adjustment));
  self->syncing = FALSE;
}

void
quire_compare_pane_scroll_to (QuireComparePane *self, const QuireComparison *comparison,
                              guint token)
{
  const QuirePane *pane = quire_comparison_get_pane (comparison, self->i);
  GtkTextIter iter;
  GdkRectangle place;
  int offset;

  if (pane->tokens->len == 0 || self->n_shown != pane->text->len)
    return;
  offset = to_chars (pane, quire_pane_get_begin (pane, MIN (token, pane->tokens->len - 1)));
  if (self->mark_at >= 0 && offset > self->mark_at)
    offset++;
  gtk_text_buffer_get_iter_at_offset (gtk_text_view_get_buffer (self->view), &iter, offset);
  gtk_text_view_get_iter_location (self->view, &iter, &place);
  self->syncing = TRUE;
  self->stick = FALSE;
  gtk_adjustment_set_value (self->adjustment, token == 0 ? 0 : place.y);
  self->syncing = FALSE;
}

/* ---- Figures ---- */

static char *
dup_ms (double ms)
{
  return ms < 10 ? g_strdup_printf (_ ("%.1f ms"), ms) : quire_format_ms (ms);
}

/* The figures of timed runs where there are some, else the stream's, dimmed. */
static void
update_figures (QuireComparePane *self, const QuireComparison *c)
{
  const QuirePane *pane = self->pane;
  gboolean timed = pane->warm_ms.n > 0;
  double first = timed ? quire_samples_median (&pane->warm_ms) : pane->live_ms;
  double each = pane->ms_per_token.n > 0 ? quire_samples_median (&pane->ms_per_token)
                                         : pane->live_ms_per_token;
  g_autofree char *figure = first > 0 ? dup_ms (first) : g_strdup ("");
  g_autofree char *speed
      = each > 0 ? g_strdup_printf (_ ("first token · %.1f ms per token"), each) : g_strdup ("");
  g_autofree char *tiers = quire_pane_dup_tiers (pane);
  /* Translators: peaks of KV memory by tier: "Peak KV: GPU 1.2 GiB · host 300 MiB". */
  g_autofree char *peak
      = tiers[0] != '\0' ? g_strdup_printf (_ ("Peak KV: %s"), tiers) : g_strdup ("");

  set_text (self->figure, figure);
  set_text (self->speed, speed);
  set_text (self->peak, peak);
  quire_widget_set_class (GTK_WIDGET (self->figure), "dim-label", !timed);
  quire_widget_set_class (GTK_WIDGET (self->speed), "dim-label", !timed);
  gtk_widget_set_tooltip_text (GTK_WIDGET (self->figure),
                               timed ? _ ("First token, warm: median of the timed runs")
                               : c->interleaved
                                   ? (c->on_gpu ? _ ("First token; the GPU was shared")
                                                : _ ("First token; the CPU was shared"))
                                   : _ ("First token of the warm-up"));
}

void
quire_compare_pane_update (QuireComparePane *self, const QuireComparison *comparison)
{
  const QuirePane *pane = quire_comparison_get_pane (comparison, self->i);
  g_autofree char *stream = quire_comparison_dup_stream (comparison, self->i);
  g_autofree char *state = quire_pane_dup_state (pane, comparison);
  guint at;

  self->pane = pane;
  set_text (self->title, quire_cache_choice_get_title (pane->choice));
  gtk_widget_set_visible (GTK_WIDGET (self->approximate),
                          quire_cache_choice_is_approximate (pane->choice));
  set_text (self->stream, stream);
  quire_widget_set_class (GTK_WIDGET (self->stream), "quire-differs",
                          quire_comparison_align (comparison, self->i, &at)
                              == QUIRE_STREAM_DIFFERS);
  set_text (self->state, state);
  quire_widget_set_class (GTK_WIDGET (self->state), "error",
                          pane->state == QUIRE_PANE_FAILED || pane->state == QUIRE_PANE_UNFIT);
  update_figures (self, comparison);
  update_text (self, comparison);
  gtk_accessible_update_property (GTK_ACCESSIBLE (self), GTK_ACCESSIBLE_PROPERTY_LABEL,
                                  quire_cache_choice_get_title (pane->choice), -1);
  {
    g_autofree char *name
        /* Translators: a cache mode. */
        = g_strdup_printf (_ ("Reply in mode %s"), quire_cache_choice_get_title (pane->choice));

    gtk_accessible_update_property (GTK_ACCESSIBLE (self->view), GTK_ACCESSIBLE_PROPERTY_LABEL,
                                    name, -1);
  }
}

void
quire_compare_pane_set_can_use (QuireComparePane *self, gboolean can_use)
{
  gtk_widget_set_sensitive (self->use, can_use);
  gtk_widget_set_tooltip_text (self->use, can_use ? NULL : _ ("Its chat is not there any more"));
}

GtkTextView *
quire_compare_pane_get_view (QuireComparePane *self)
{
  return self->view;
}

/* ---- Building ---- */

static GtkLabel *
label_new (const char *css_class, float xalign)
{
  GtkWidget *label = gtk_label_new (NULL);
  g_auto (GStrv) classes = g_strsplit (css_class, " ", -1);

  gtk_label_set_xalign (GTK_LABEL (label), xalign);
  gtk_label_set_wrap (GTK_LABEL (label), TRUE);
  gtk_label_set_wrap_mode (GTK_LABEL (label), PANGO_WRAP_WORD_CHAR);
  for (char **c = classes; *c != NULL; c++)
    if ((*c)[0] != '\0')
      gtk_widget_add_css_class (label, *c);
  return GTK_LABEL (label);
}

static void
use_clicked_cb (QuireComparePane *self)
{
  g_signal_emit (self, signals[USE], 0, self->use);
}

static GtkWidget *
view_new (QuireComparePane *self)
{
  GtkWidget *scrolled = gtk_scrolled_window_new ();

  self->view = GTK_TEXT_VIEW (gtk_text_view_new ());
  gtk_text_view_set_editable (self->view, FALSE);
  gtk_text_view_set_cursor_visible (self->view, FALSE);
  gtk_text_view_set_accepts_tab (self->view, FALSE);
  gtk_text_view_set_wrap_mode (self->view, GTK_WRAP_WORD_CHAR);
  gtk_text_buffer_create_tag (gtk_text_view_get_buffer (self->view), "differs", "background",
                              "#f8e45c", "foreground", "#241f31", "underline",
                              PANGO_UNDERLINE_SINGLE, "weight", PANGO_WEIGHT_BOLD, NULL);
  gtk_scrolled_window_set_policy (GTK_SCROLLED_WINDOW (scrolled), GTK_POLICY_NEVER,
                                  GTK_POLICY_AUTOMATIC);
  gtk_scrolled_window_set_min_content_height (GTK_SCROLLED_WINDOW (scrolled), TEXT_HEIGHT_PX);
  gtk_scrolled_window_set_child (GTK_SCROLLED_WINDOW (scrolled), GTK_WIDGET (self->view));
  gtk_widget_set_vexpand (scrolled, TRUE);
  self->adjustment = gtk_scrolled_window_get_vadjustment (GTK_SCROLLED_WINDOW (scrolled));
  g_signal_connect_object (self->adjustment, "value-changed", G_CALLBACK (value_changed_cb), self,
                           G_CONNECT_SWAPPED);
  g_signal_connect_object (self->adjustment, "changed", G_CALLBACK (adjustment_changed_cb), self,
                           G_CONNECT_SWAPPED);
  return scrolled;
}

static void
quire_compare_pane_class_init (QuireComparePaneClass *klass)
{
  signals[SCROLLED] = g_signal_new ("scrolled", G_TYPE_FROM_CLASS (klass), G_SIGNAL_RUN_LAST, 0,
                                    NULL, NULL, NULL, G_TYPE_NONE, 1, G_TYPE_UINT);
  signals[USE] = g_signal_new ("use", G_TYPE_FROM_CLASS (klass), G_SIGNAL_RUN_LAST, 0, NULL, NULL,
                               NULL, G_TYPE_NONE, 1, GTK_TYPE_WIDGET);
  gtk_widget_class_set_accessible_role (GTK_WIDGET_CLASS (klass), GTK_ACCESSIBLE_ROLE_GROUP);
}

static void
quire_compare_pane_init (QuireComparePane *self)
{
  GtkWidget *head = gtk_box_new (GTK_ORIENTATION_HORIZONTAL, 6);
  GtkWidget *figures = gtk_box_new (GTK_ORIENTATION_HORIZONTAL, 12);

  self->mark_at = -1;
  self->stick = TRUE;
  gtk_orientable_set_orientation (GTK_ORIENTABLE (self), GTK_ORIENTATION_VERTICAL);
  gtk_box_set_spacing (GTK_BOX (self), 6);
  gtk_widget_add_css_class (GTK_WIDGET (self), "card");
  gtk_widget_add_css_class (GTK_WIDGET (self), "quire-compare-pane");
  gtk_widget_set_overflow (GTK_WIDGET (self), GTK_OVERFLOW_HIDDEN);
  self->title = label_new ("heading", 0);
  gtk_label_set_wrap (self->title, FALSE);
  self->approximate = label_new ("caption warning", 0);
  gtk_label_set_wrap (self->approximate, FALSE);
  gtk_label_set_text (self->approximate, _ ("approximate"));
  self->stream = label_new ("caption dim-label numeric", 1);
  gtk_widget_set_hexpand (GTK_WIDGET (self->stream), TRUE);
  gtk_box_append (GTK_BOX (head), GTK_WIDGET (self->title));
  gtk_box_append (GTK_BOX (head), GTK_WIDGET (self->approximate));
  gtk_box_append (GTK_BOX (head), GTK_WIDGET (self->stream));
  self->figure = label_new ("figure numeric", 0);
  gtk_label_set_wrap (self->figure, FALSE);
  self->speed = label_new ("caption numeric", 0);
  gtk_widget_set_valign (GTK_WIDGET (self->figure), GTK_ALIGN_BASELINE);
  gtk_widget_set_valign (GTK_WIDGET (self->speed), GTK_ALIGN_BASELINE);
  gtk_box_append (GTK_BOX (figures), GTK_WIDGET (self->figure));
  gtk_box_append (GTK_BOX (figures), GTK_WIDGET (self->speed));
  self->peak = label_new ("caption numeric", 0);
  self->state = label_new ("caption dim-label numeric", 0);
  self->use = gtk_button_new_with_label (_ ("Use This Mode"));
  gtk_widget_set_halign (self->use, GTK_ALIGN_END);
  g_signal_connect_swapped (self->use, "clicked", G_CALLBACK (use_clicked_cb), self);
  gtk_box_append (GTK_BOX (self), head);
  gtk_box_append (GTK_BOX (self), figures);
  gtk_box_append (GTK_BOX (self), GTK_WIDGET (self->peak));
  gtk_box_append (GTK_BOX (self), GTK_WIDGET (self->state));
  gtk_box_append (GTK_BOX (self), view_new (self));
  gtk_box_append (GTK_BOX (self), self->use);
}

GtkWidget *
quire_compare_pane_new (guint i)
{
  QuireComparePane *self = g_object_new (QUIRE_TYPE_COMPARE_PANE, NULL);

  self->i = i;
  return GTK_WIDGET (self);
}
