/* quire-context-ring.c: see quire-context-ring.h.
 *
 * The ring runs clockwise from the top: system prompt, history, draft, and what is free. Parts differ by strength, and the
 * draft by the accent colour; words and an icon say what colour alone would.
 * CSS: contextring > menubutton > button > box > ring, image, label. */
#include "app/quire-context-ring.h"

#include <adwaita.h>
#include <glib/gi18n.h>
#include <math.h>

#include "app/quire-format.h"
#include "app/quire-widget.h"

#define RING_PX 18
#define RING_LINE_PX 4

/* ---- The drawing ---- */

#define QUIRE_TYPE_RING (quire_ring_get_type ())
G_DECLARE_FINAL_TYPE (QuireRing, quire_ring, QUIRE, RING, GtkWidget)

struct _QuireRing
{
  GtkWidget parent_instance;

  double system, history, draft; /* shares of the context */
  const char *color;             /* name of a style colour; NULL: the text's */
};

G_DEFINE_FINAL_TYPE (QuireRing, quire_ring, GTK_TYPE_WIDGET)

static void
draw_arc (cairo_t *cr, const GdkRGBA *color, double alpha, double from, double to)
{
  double radius = (RING_PX - RING_LINE_PX) / 2.0;

  if (to <= from)
    return;
  cairo_set_source_rgba (cr, color->red, color->green, color->blue, color->alpha * alpha);
  cairo_arc (cr, RING_PX / 2.0, RING_PX / 2.0, radius, -G_PI_2 + from * 2 * G_PI,
             -G_PI_2 + to * 2 * G_PI);
  cairo_stroke (cr);
}

static void
quire_ring_snapshot (GtkWidget *widget, GtkSnapshot *snapshot)
{
  QuireRing *self = QUIRE_RING (widget);
  GtkStyleContext *context = gtk_widget_get_style_context (widget);
  int width = gtk_widget_get_width (widget), height = gtk_widget_get_height (widget);
  double a = MIN (self->system, 1), b = MIN (a + self->history, 1), c = MIN (b + self->draft, 1);
  GdkRGBA text, used, draft;
  cairo_t *cr;

  gtk_style_context_get_color (context, &text);
  used = text;
  if (self->color != NULL)
    gtk_style_context_lookup_color (context, self->color, &used);
  draft = used;
  if (self->color == NULL)
    gtk_style_context_lookup_color (context, "accent_color", &draft);
  cr = gtk_snapshot_append_cairo (snapshot,
                                  &GRAPHENE_RECT_INIT (0, 0, (float)width, (float)height));
  cairo_translate (cr, (width - RING_PX) / 2.0, (height - RING_PX) / 2.0);
  if (gtk_widget_get_direction (widget) == GTK_TEXT_DIR_RTL)
    {
      cairo_translate (cr, RING_PX, 0);
      cairo_scale (cr, -1, 1);
    }
  cairo_set_line_width (cr, RING_LINE_PX);
  draw_arc (cr, &text, 0.18, c, 1);
  draw_arc (cr, &used, 1.0, 0, a);
  draw_arc (cr, &used, self->color != NULL ? 0.85 : 0.6, a, b);
  draw_arc (cr, &draft, self->color != NULL ? 0.55 : 1.0, b, c);
  cairo_destroy (cr);
}

static void
quire_ring_measure (GtkWidget *widget, GtkOrientation orientation, int for_size, int *minimum,
                    int *natural, int *minimum_baseline, int *natural_baseline)
{
  *minimum = *natural = RING_PX;
}

static void
quire_ring_class_init (QuireRingClass *klass)
{
  GtkWidgetClass *widget_class = GTK_WIDGET_CLASS (klass);

  widget_class->snapshot = quire_ring_snapshot;
  widget_class->measure = quire_ring_measure;
  gtk_widget_class_set_css_name (widget_class, "ring");
  gtk_widget_class_set_accessible_role (widget_class, GTK_ACCESSIBLE_ROLE_METER);
}

static void
quire_ring_init (QuireRing *self)
{
}

/* ---- Ring, words, popover ---- */

enum
{
  ROW_SYSTEM,
  ROW_HISTORY,
  ROW_DRAFT,
  ROW_FREE,
  ROW_LIMIT,
  N_ROWS
};

struct _QuireContextRing
{
  GtkWidget parent_instance;

  GtkWidget *button;
  QuireRing *ring;
  GtkWidget *icon;
  GtkLabel *text;
  GtkLabel *tokens[N_ROWS], *bytes[N_ROWS];
  GtkLabel *warning;
  GtkWidget *make_room;
  QuireContextUse use;
  QuireContextLimit limit;
};

G_DEFINE_FINAL_TYPE (QuireContextRing, quire_context_ring, GTK_TYPE_WIDGET)

static void
set_row (QuireContextRing *self, int row, guint n)
{
  g_autofree char *tokens = quire_format_count (n);
  g_autofree char *bytes = quire_format_bytes (n * self->limit.token_bytes);

  gtk_label_set_text (self->tokens[row], tokens);
  gtk_label_set_text (self->bytes[row], bytes);
}

static void
update_popover (QuireContextRing *self)
{
  guint used = quire_context_used (&self->use), n_max = self->limit.n_max;
  const char *warning = "";

  set_row (self, ROW_SYSTEM, self->use.n_system);
  set_row (self, ROW_HISTORY, self->use.n_history);
  set_row (self, ROW_DRAFT, self->use.n_draft);
  set_row (self, ROW_FREE, n_max > used ? n_max - used : 0);
  set_row (self, ROW_LIMIT, n_max);
  if (used > n_max)
    warning = _ ("The draft does not fit any more. Nothing is cut unless you choose to.");
  else if (used >= n_max * QUIRE_CONTEXT_ALARM)
    warning = _ ("The context is almost full. Nothing is cut unless you choose to.");
  else if (used >= n_max * QUIRE_CONTEXT_WARN)
    warning = _ ("The context is filling up.");
  gtk_label_set_text (self->warning, warning);
  gtk_widget_set_visible (GTK_WIDGET (self->warning), warning[0] != '\0');
  gtk_widget_set_visible (self->make_room, used >= n_max * QUIRE_CONTEXT_WARN);
}

static void
update (QuireContextRing *self)
{
  guint used = quire_context_used (&self->use), n_max = self->limit.n_max;
  double share = n_max > 0 ? (double)used / n_max : 0;
  gboolean warn = share >= QUIRE_CONTEXT_WARN, alarm = share >= QUIRE_CONTEXT_ALARM;
  g_autofree char *text = NULL;
  g_autofree char *tooltip = g_strdup_printf (_ ("%'u of %'u tokens of context used"), used, n_max);

  gtk_widget_set_visible (GTK_WIDGET (self), n_max > 0);
  if (n_max == 0)
    return;
  if (warn)
    text = g_strdup_printf (_ ("%.0f %% full"), MIN (floor (share * 100), 100));
  else
    {
      g_autofree char *a = quire_format_count_short (used);
      g_autofree char *b = quire_format_count_short (n_max);

      text = g_strdup_printf ("%s / %s", a, b);
    }
  self->ring->system = (double)self->use.n_system / n_max;
  self->ring->history = (double)self->use.n_history / n_max;
  self->ring->draft = (double)self->use.n_draft / n_max;
  self->ring->color = alarm ? "error_color" : warn ? "warning_color" : NULL;
  gtk_widget_queue_draw (GTK_WIDGET (self->ring));
  gtk_accessible_update_property (GTK_ACCESSIBLE (self->ring), GTK_ACCESSIBLE_PROPERTY_VALUE_MIN,
                                  0.0, GTK_ACCESSIBLE_PROPERTY_VALUE_MAX, (double)n_max,
                                  GTK_ACCESSIBLE_PROPERTY_VALUE_NOW, (double)used,
                                  GTK_ACCESSIBLE_PROPERTY_VALUE_TEXT, tooltip,
                                  GTK_ACCESSIBLE_PROPERTY_LABEL, _ ("Context used"), -1);
  gtk_widget_set_visible (self->icon, warn);
  gtk_label_set_text (self->text, text);
  gtk_widget_set_tooltip_text (self->button, tooltip);
  if (alarm)
    gtk_widget_add_css_class (self->button, "alarm");
  else
    gtk_widget_remove_css_class (self->button, "alarm");
  if (warn && !alarm)
    gtk_widget_add_css_class (self->button, "warn");
  else
    gtk_widget_remove_css_class (self->button, "warn");
  if (gtk_widget_get_visible (
          GTK_WIDGET (gtk_menu_button_get_popover (GTK_MENU_BUTTON (self->button)))))
    update_popover (self);
}

void
quire_context_ring_set (QuireContextRing *self, const QuireContextUse *use,
                        const QuireContextLimit *limit)
{
  self->use = *use;
  self->limit = *limit;
  update (self);
}

const char *
quire_context_ring_get_text (QuireContextRing *self)
{
  return gtk_label_get_text (self->text);
}

/* ---- Building ---- */

static GtkLabel *
cell_new (GtkGrid *grid, const char *text, int column, int row)
{
  GtkWidget *label = gtk_label_new (text);

  gtk_label_set_xalign (GTK_LABEL (label), column == 0 ? 0 : 1);
  if (column == 0)
    gtk_widget_set_hexpand (label, TRUE);
  else
    gtk_widget_add_css_class (label, "numeric");
  gtk_grid_attach (grid, label, column, row, 1, 1);
  return GTK_LABEL (label);
}

static GtkWidget *
popover_new (QuireContextRing *self)
{
  const char *names[N_ROWS] = { [ROW_SYSTEM] = _ ("System prompt"),
                                [ROW_HISTORY] = _ ("Messages"),
                                [ROW_DRAFT] = _ ("Draft"),
                                [ROW_FREE] = _ ("Free"),
                                [ROW_LIMIT] = _ ("All") };
  GtkWidget *popover = gtk_popover_new ();
  GtkWidget *box = gtk_box_new (GTK_ORIENTATION_VERTICAL, 12), *grid = gtk_grid_new ();
  GtkWidget *title = gtk_label_new (_ ("Context"));

  gtk_widget_add_css_class (box, "quire-context-popover");
  gtk_widget_add_css_class (title, "heading");
  gtk_label_set_xalign (GTK_LABEL (title), 0);
  gtk_box_append (GTK_BOX (box), title);
  gtk_grid_set_column_spacing (GTK_GRID (grid), 18);
  gtk_grid_set_row_spacing (GTK_GRID (grid), 6);
  gtk_widget_add_css_class (GTK_WIDGET (cell_new (GTK_GRID (grid), _ ("Tokens"), 1, 0)),
                            "dim-label");
  gtk_widget_add_css_class (GTK_WIDGET (cell_new (GTK_GRID (grid), _ ("Memory"), 2, 0)),
                            "dim-label");
  for (int i = 0; i < N_ROWS; i++)
    {
      cell_new (GTK_GRID (grid), names[i], 0, i + 1);
      self->tokens[i] = cell_new (GTK_GRID (grid), "", 1, i + 1);
      self->bytes[i] = cell_new (GTK_GRID (grid), "", 2, i + 1);
    }
  gtk_box_append (GTK_BOX (box), grid);
  self->warning = GTK_LABEL (gtk_label_new (NULL));
  gtk_label_set_wrap (self->warning, TRUE);
  gtk_label_set_xalign (self->warning, 0);
  gtk_label_set_max_width_chars (self->warning, 36);
  gtk_box_append (GTK_BOX (box), GTK_WIDGET (self->warning));
  self->make_room = quire_mnemonic_button_new (_ ("_Make Room…"));
  gtk_actionable_set_action_name (GTK_ACTIONABLE (self->make_room), "chat.make-room");
  g_signal_connect_swapped (self->make_room, "clicked", G_CALLBACK (gtk_popover_popdown), popover);
  gtk_box_append (GTK_BOX (box), self->make_room);
  gtk_popover_set_child (GTK_POPOVER (popover), box);
  g_signal_connect_swapped (popover, "show", G_CALLBACK (update_popover), self);
  return popover;
}

static void
quire_context_ring_dispose (GObject *object)
{
  g_clear_pointer (&QUIRE_CONTEXT_RING (object)->button, gtk_widget_unparent);
  G_OBJECT_CLASS (quire_context_ring_parent_class)->dispose (object);
}

static void
quire_context_ring_class_init (QuireContextRingClass *klass)
{
  GtkWidgetClass *widget_class = GTK_WIDGET_CLASS (klass);

  G_OBJECT_CLASS (klass)->dispose = quire_context_ring_dispose;
  gtk_widget_class_set_layout_manager_type (widget_class, GTK_TYPE_BIN_LAYOUT);
  gtk_widget_class_set_css_name (widget_class, "contextring");
}

static void
quire_context_ring_init (QuireContextRing *self)
{
  GtkWidget *box = gtk_box_new (GTK_ORIENTATION_HORIZONTAL, 6), *text = gtk_label_new (NULL);
  GtkWidget *squeezer;

  self->button = gtk_menu_button_new ();
  self->ring = g_object_new (QUIRE_TYPE_RING, NULL);
  self->icon = gtk_image_new_from_icon_name ("dialog-warning-symbolic");
  self->text = GTK_LABEL (text);
  gtk_widget_set_visible (self->icon, FALSE);
  gtk_widget_add_css_class (text, "caption");
  gtk_widget_add_css_class (text, "numeric");
  gtk_box_append (GTK_BOX (box), GTK_WIDGET (self->ring));
  gtk_box_append (GTK_BOX (box), self->icon);
  /* Where there is no room for the words, the ring and its icon stay. */
  squeezer = adw_squeezer_new ();
  adw_squeezer_set_homogeneous (ADW_SQUEEZER (squeezer), FALSE);
  adw_squeezer_set_allow_none (ADW_SQUEEZER (squeezer), TRUE);
  adw_squeezer_add (ADW_SQUEEZER (squeezer), text);
  gtk_box_append (GTK_BOX (box), squeezer);
  gtk_menu_button_set_child (GTK_MENU_BUTTON (self->button), box);
  gtk_widget_add_css_class (self->button, "flat");
  gtk_menu_button_set_direction (GTK_MENU_BUTTON (self->button), GTK_ARROW_UP);
  gtk_menu_button_set_popover (GTK_MENU_BUTTON (self->button), popover_new (self));
  gtk_accessible_update_property (GTK_ACCESSIBLE (self->button), GTK_ACCESSIBLE_PROPERTY_LABEL,
                                  _ ("Context used"), -1);
  gtk_widget_set_parent (self->button, GTK_WIDGET (self));
  gtk_widget_set_visible (GTK_WIDGET (self), FALSE);
}

GtkWidget *
quire_context_ring_new (void)
{
  return g_object_new (QUIRE_TYPE_CONTEXT_RING, NULL);
}
