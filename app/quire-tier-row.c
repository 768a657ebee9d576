/* quire-tier-row.c: see quire-tier-row.h.
 *
 * The bar tells tiers apart without colour: the GPU's is solid, the host's striped, the disk's an outline. What is
 * pinned is a line below the bar. CSS: .tier > .tierbar, button. */
#include "app/quire-tier-row.h"

#include <adwaita.h>
#include <glib/gi18n.h>

#include "app/quire-format.h"
#include "app/quire-versions.h"
#include "app/quire-widget.h"
#include "app/quire-words.h"

#define BAR_HEIGHT_PX 8
#define BAR_RADIUS_PX 4
#define STRIPE_PX 6
#define PINNED_PX 2 /* the line, and the gap above it */
#define HISTORY_HEIGHT_PX 36
#define HISTORY_SECONDS 300

static void
style_color (GtkWidget *widget, const char *name, cairo_t *cr)
{
  GtkStyleContext *context = gtk_widget_get_style_context (widget);
  GdkRGBA color;

  if (!gtk_style_context_lookup_color (context, name, &color))
    gtk_style_context_get_color (context, &color);
  gdk_cairo_set_source_rgba (cr, &color);
}

const char *
quire_tier_color (guint tier)
{
  return tier == QE_TIER_GPU    ? "quire_tier_gpu"
         : tier == QE_TIER_HOST ? "quire_tier_host"
                                : "quire_tier_disk";
}

static void
set_text (GtkLabel *label, const char *text)
{
  if (g_strcmp0 (gtk_label_get_text (label), text) != 0)
    gtk_label_set_text (label, text);
  gtk_widget_set_visible (GTK_WIDGET (label), text != NULL && text[0] != '\0');
}

/* ---- One tier ---- */

struct _QuireTierRow
{
  GtkBox parent_instance;

  qe_tier tier;
  GtkLabel *numbers, *note, *warning;
  GtkWidget *bar, *button;
  double share, pinned; /* of the limit, 0..1 */
};

G_DEFINE_FINAL_TYPE (QuireTierRow, quire_tier_row, GTK_TYPE_BOX)

static void
draw_fill (QuireTierRow *self, cairo_t *cr, double x, double filled, int height)
{
  style_color (self->bar, quire_tier_color (self->tier), cr);
  cairo_rectangle (cr, x, 0, filled, height);
  if (self->tier == QE_TIER_DISK)
    {
      cairo_save (cr);
      cairo_set_line_width (cr, 4);
      cairo_clip_preserve (cr);
      cairo_stroke (cr);
      cairo_restore (cr);
      return;
    }
  cairo_fill (cr);
  if (self->tier != QE_TIER_HOST)
    return;
  /* Stripes, in the panel's own colour. */
  cairo_save (cr);
  cairo_rectangle (cr, x, 0, filled, height);
  cairo_clip (cr);
  style_color (self->bar, "window_bg_color", cr);
  cairo_set_line_width (cr, 1.5);
  for (double s = x - height; s < x + filled; s += STRIPE_PX)
    {
      cairo_move_to (cr, s, height);
      cairo_line_to (cr, s + height, 0);
    }
  cairo_stroke (cr);
  cairo_restore (cr);
}

static void
rounded (cairo_t *cr, double width, double height)
{
  const double r = MIN (BAR_RADIUS_PX, width / 2);

  cairo_new_sub_path (cr);
  cairo_arc (cr, width - r, r, r, -G_PI_2, 0);
  cairo_arc (cr, width - r, height - r, r, 0, G_PI_2);
  cairo_arc (cr, r, height - r, r, G_PI_2, G_PI);
  cairo_arc (cr, r, r, r, G_PI, 1.5 * G_PI);
  cairo_close_path (cr);
}

static void
draw_bar (GtkDrawingArea *area, cairo_t *cr, int width, int height, gpointer user_data)
{
  QuireTierRow *self = user_data;
  gboolean rtl = gtk_widget_get_direction (GTK_WIDGET (area)) == GTK_TEXT_DIR_RTL;
  double filled = self->share > 0 ? MAX (self->share * width, 2) : 0;
  double pinned = self->pinned * width;

  cairo_save (cr);
  rounded (cr, width, BAR_HEIGHT_PX);
  cairo_clip (cr);
  style_color (self->bar, "quire_cell_free", cr);
  cairo_paint (cr);
  draw_fill (self, cr, rtl ? width - filled : 0, filled, BAR_HEIGHT_PX);
  cairo_restore (cr);
  if (pinned > 0)
    {
      style_color (self->bar, quire_tier_color (self->tier), cr);
      cairo_rectangle (cr, rtl ? width - pinned : 0, height - PINNED_PX, pinned, PINNED_PX);
      cairo_fill (cr);
    }
}

/* What everyone holds of the card, and how busy it is. Returns: owned; NULL without a card. */
static char *
format_device (const qe_device_view *device)
{
  g_autofree char *used = NULL, *total = NULL;

  if (device == NULL || device->memory_total == 0)
    return NULL;
  used = quire_format_bytes (device->memory_used);
  total = quire_format_bytes (device->memory_total);
  if (device->utilization < 0)
    /* Translators: memory of the graphics card in use by all programs, "Card: 9.1 GiB of 24.0 GiB used". */
    return g_strdup_printf (_ ("Card: %s of %s used"), used, total);
  return g_strdup_printf (_ ("Card: %s of %s used, %d %% busy"), used, total, device->utilization);
}

/* Returns: owned. */
static char *
format_note (const qe_tier_view *view, const qe_device_view *device)
{
  GString *text = g_string_new (NULL);
  g_autofree char *card = format_device (device);

  if (view->n_pages_shared > 0)
    g_string_append_printf (
        text, ngettext ("%u page, %u shared", "%u pages, %u shared", view->n_pages_used),
        view->n_pages_used, view->n_pages_shared);
  else
    g_string_append_printf (text, ngettext ("%u page", "%u pages", view->n_pages_used),
                            view->n_pages_used);
  if (view->bytes_pinned > 0)
    {
      g_autofree char *pinned = quire_format_bytes (view->bytes_pinned);

      g_string_append (text, " · ");
      /* Translators: memory that the graphics card can read directly, "4.0 GiB pinned". */
      g_string_append_printf (text, _ ("%s pinned"), pinned);
    }
  if (view->bytes_in > 0 || view->bytes_out > 0)
    {
      g_autofree char *in = quire_format_bytes (view->bytes_in);
      g_autofree char *out = quire_format_bytes (view->bytes_out);

      g_string_append_c (text, '\n');
      /* Translators: bytes moved into this tier and out of it since the model was loaded. */
      g_string_append_printf (text, _ ("↓ %s in · ↑ %s out"), in, out);
    }
  if (card != NULL)
    g_string_append_printf (text, "\n%s", card);
  return g_string_free (text, FALSE);
}

static void
set_button (QuireTierRow *self, const char *label, const char *name, const char *action)
{
  const char *const tiers[] = { _ ("GPU"), _ ("Host memory"), _ ("Disk") };
  /* Translators: a tier, then what its button is for. */
  g_autofree char *full = g_strdup_printf (C_ ("button", "%s: %s"), tiers[self->tier], name);

  if (g_strcmp0 (gtk_button_get_label (GTK_BUTTON (self->button)), label) == 0)
    return;
  gtk_button_set_label (GTK_BUTTON (self->button), label);
  quire_widget_set_label (self->button, full);
  gtk_widget_set_tooltip_text (self->button, name);
  quire_button_set_action (self->button, action);
}

static const char *
limits_action (QuireTierRow *self)
{
  return self->tier == QE_TIER_GPU    ? "app.limits::gpu"
         : self->tier == QE_TIER_HOST ? "app.limits::host"
                                      : "app.limits::disk";
}

static void
set_absent (QuireTierRow *self, const qe_tier_view *view)
{
  set_text (self->numbers, _ ("Not used"));
  set_text (self->note, quire_words (view->reason));
  if (self->tier == QE_TIER_GPU)
    set_button (self, _ ("Why?"), _ ("Why is no GPU used?"), "win.why-gpu");
  else
    set_button (self, _ ("Limits…"), _ ("Limits of this tier"), limits_action (self));
}

void
quire_tier_row_set_view (QuireTierRow *self, const qe_tier_view *view, const qe_device_view *device)
{
  double limit = (double)MAX (view->bytes_max, 1);
  double share = MIN ((double)view->bytes_used / limit, 1);
  double pinned = MIN ((double)view->bytes_pinned / limit, 1);

  g_return_if_fail (QUIRE_IS_TIER_ROW (self));
  gtk_widget_set_visible (self->bar, view->present);
  set_text (self->warning, view->present ? quire_words (view->note) : NULL);
  if (!view->present)
    {
      set_absent (self, view);
      return;
    }
  {
    g_autofree char *used = quire_format_bytes (view->bytes_used);
    g_autofree char *max = quire_format_bytes (view->bytes_max);
    /* Translators: memory in use and its limit, "2.1 GiB of 12.0 GiB". */
    g_autofree char *numbers = g_strdup_printf (_ ("%s of %s"), used, max);
    g_autofree char *note = format_note (view, device);

    set_text (self->numbers, numbers);
    set_text (self->note, note);
    gtk_accessible_update_property (GTK_ACCESSIBLE (self->bar), GTK_ACCESSIBLE_PROPERTY_LABEL,
                                    numbers, -1);
  }
  set_button (self, _ ("Limits…"), _ ("Limits of this tier"), limits_action (self));
  if (self->share != share || self->pinned != pinned)
    {
      self->share = share;
      self->pinned = pinned;
      gtk_drawing_area_set_content_height (GTK_DRAWING_AREA (self->bar),
                                           BAR_HEIGHT_PX + (pinned > 0 ? 2 * PINNED_PX : 0));
      gtk_widget_queue_draw (self->bar);
    }
}

static GtkLabel *
wrapped_new (const char *css_class)
{
  GtkWidget *label = gtk_label_new (NULL);

  gtk_label_set_xalign (GTK_LABEL (label), 0);
  gtk_label_set_wrap (GTK_LABEL (label), TRUE);
  gtk_label_set_width_chars (GTK_LABEL (label), 12);
  gtk_label_set_max_width_chars (GTK_LABEL (label), 30);
  gtk_widget_add_css_class (label, "caption");
  gtk_widget_add_css_class (label, "numeric");
  gtk_widget_add_css_class (label, css_class);
  return GTK_LABEL (label);
}

static void
quire_tier_row_class_init (QuireTierRowClass *klass)
{
}

static void
quire_tier_row_init (QuireTierRow *self)
{
  gtk_orientable_set_orientation (GTK_ORIENTABLE (self), GTK_ORIENTATION_VERTICAL);
  gtk_box_set_spacing (GTK_BOX (self), 6);
  gtk_widget_add_css_class (GTK_WIDGET (self), "tier");
}

GtkWidget *
quire_tier_row_new (qe_tier tier)
{
  QuireTierRow *self = g_object_new (QUIRE_TYPE_TIER_ROW, NULL);
  const char *const names[] = { _ ("GPU"), _ ("Host memory"), _ ("Disk") };
  GtkWidget *head = gtk_box_new (GTK_ORIENTATION_HORIZONTAL, 6);
  GtkWidget *foot = gtk_box_new (GTK_ORIENTATION_HORIZONTAL, 6);
  GtkWidget *name = gtk_label_new (names[tier]);

  self->tier = tier;
  gtk_label_set_xalign (GTK_LABEL (name), 0);
  gtk_widget_add_css_class (name, "heading");
  self->numbers = wrapped_new ("dim-label");
  gtk_label_set_xalign (self->numbers, 1);
  gtk_widget_set_hexpand (GTK_WIDGET (self->numbers), TRUE);
  gtk_box_append (GTK_BOX (head), name);
  gtk_box_append (GTK_BOX (head), GTK_WIDGET (self->numbers));

  self->bar
      = g_object_new (GTK_TYPE_DRAWING_AREA, "accessible-role", GTK_ACCESSIBLE_ROLE_IMG, NULL);
  gtk_drawing_area_set_content_height (GTK_DRAWING_AREA (self->bar), BAR_HEIGHT_PX);
  gtk_drawing_area_set_draw_func (GTK_DRAWING_AREA (self->bar), draw_bar, self, NULL);
  gtk_widget_add_css_class (self->bar, "tierbar");

  self->note = wrapped_new ("dim-label");
  gtk_widget_set_hexpand (GTK_WIDGET (self->note), TRUE);
  gtk_widget_set_valign (GTK_WIDGET (self->note), GTK_ALIGN_START);
  self->button = gtk_button_new ();
  gtk_widget_add_css_class (self->button, "flat");
  gtk_widget_set_valign (self->button, GTK_ALIGN_START);
  set_button (self, _ ("Limits…"), _ ("Limits of this tier"), limits_action (self));
  gtk_box_append (GTK_BOX (foot), GTK_WIDGET (self->note));
  gtk_box_append (GTK_BOX (foot), self->button);
  self->warning = wrapped_new ("warning");
  gtk_widget_set_visible (GTK_WIDGET (self->warning), FALSE);

  gtk_box_append (GTK_BOX (self), head);
  gtk_box_append (GTK_BOX (self), self->bar);
  gtk_box_append (GTK_BOX (self), foot);
  gtk_box_append (GTK_BOX (self), GTK_WIDGET (self->warning));
  return GTK_WIDGET (self);
}

/* ---- The last minutes ---- */

struct _QuireTierHistory
{
  GtkWidget parent_instance;

  guint n;
  guint pages[QE_N_TIERS][HISTORY_SECONDS];
  GdkTexture *picture; /* NULL: to be drawn */
};

G_DEFINE_FINAL_TYPE (QuireTierHistory, quire_tier_history, GTK_TYPE_WIDGET)

static guint
sum_to (QuireTierHistory *self, guint i, guint tier)
{
  guint sum = 0;

  for (guint t = 0; t <= tier; t++)
    sum += self->pages[t][i];
  return sum;
}

/* Tiers are stacked, the fastest at the foot: drawn from the top of the stack down, each over the one before. */
static void
draw_history (QuireTierHistory *self, cairo_t *cr, int width, int height)
{
  GtkWidget *widget = GTK_WIDGET (self);
  double step = (double)width / (HISTORY_SECONDS - 1);
  guint max = 1;

  style_color (widget, "quire_cell_free", cr);
  cairo_rectangle (cr, 0, height - 1, width, 1);
  cairo_fill (cr);
  for (guint i = 0; i < self->n; i++)
    max = MAX (max, sum_to (self, i, QE_N_TIERS - 1));
  for (guint tier = self->n > 0 ? QE_N_TIERS : 0; tier-- > 0;)
    {
      style_color (widget, quire_tier_color (tier), cr);
      cairo_move_to (cr, width - (self->n - 1) * step, height);
      for (guint i = 0; i < self->n; i++)
        cairo_line_to (cr, width - (self->n - 1 - i) * step,
                       height - (double)sum_to (self, i, tier) / max * (height - 2));
      cairo_line_to (cr, width, height);
      cairo_close_path (cr);
      cairo_fill (cr);
    }
}

/* A picture is drawn once a change; what cairo records would be drawn again in each frame of the window. */
static void
quire_tier_history_snapshot (GtkWidget *widget, GtkSnapshot *snapshot)
{
  QuireTierHistory *self = QUIRE_TIER_HISTORY (widget);
  int width = gtk_widget_get_width (widget), height = gtk_widget_get_height (widget);

  if (width <= 0 || height <= 0)
    return;
  if (self->picture == NULL)
    {
      int scale = gtk_widget_get_scale_factor (widget);
      cairo_surface_t *surface
          = cairo_image_surface_create (CAIRO_FORMAT_ARGB32, width * scale, height * scale);
      gsize stride = (gsize)cairo_image_surface_get_stride (surface);
      cairo_t *cr = cairo_create (surface);
      g_autoptr (GBytes) bytes = NULL;

      cairo_scale (cr, scale, scale);
      draw_history (self, cr, width, height);
      cairo_destroy (cr);
      cairo_surface_flush (surface);
      bytes = g_bytes_new_with_free_func (cairo_image_surface_get_data (surface),
                                          stride * (gsize)(height * scale),
                                          (GDestroyNotify)cairo_surface_destroy, surface);
      self->picture = gdk_memory_texture_new (width * scale, height * scale, GDK_MEMORY_DEFAULT,
                                              bytes, stride);
    }
  gtk_snapshot_append_texture (snapshot, self->picture,
                               &GRAPHENE_RECT_INIT (0, 0, (float)width, (float)height));
}

static void
redraw_history (QuireTierHistory *self)
{
  g_clear_object (&self->picture);
  gtk_widget_queue_draw (GTK_WIDGET (self));
}

static void
quire_tier_history_size_allocate (GtkWidget *widget, int width, int height, int baseline)
{
  redraw_history (QUIRE_TIER_HISTORY (widget));
}

static void
quire_tier_history_css_changed (GtkWidget *widget, GtkCssStyleChange *change)
{
  GTK_WIDGET_CLASS (quire_tier_history_parent_class)->css_changed (widget, change);
  redraw_history (QUIRE_TIER_HISTORY (widget));
}

static void
quire_tier_history_dispose (GObject *object)
{
  g_clear_object (&QUIRE_TIER_HISTORY (object)->picture);
  G_OBJECT_CLASS (quire_tier_history_parent_class)->dispose (object);
}

static void
quire_tier_history_measure (GtkWidget *widget, GtkOrientation orientation, int for_size,
                            int *minimum, int *natural, int *minimum_baseline,
                            int *natural_baseline)
{
  *minimum = *natural = orientation == GTK_ORIENTATION_VERTICAL ? HISTORY_HEIGHT_PX : 0;
  *minimum_baseline = *natural_baseline = -1;
}

void
quire_tier_history_set (QuireTierHistory *self, const qe_snapshot *snapshot)
{
  guint n = MIN (snapshot->n_history, HISTORY_SECONDS);
  gboolean changed = n != self->n;

  g_return_if_fail (QUIRE_IS_TIER_HISTORY (self));
  for (guint tier = 0; tier < QE_N_TIERS; tier++)
    for (guint i = 0; i < n && snapshot->tier_history[tier] != NULL; i++)
      {
        guint pages = snapshot->tier_history[tier][snapshot->n_history - n + i];

        changed |= self->pages[tier][i] != pages;
        self->pages[tier][i] = pages;
      }
  self->n = n;
  if (changed)
    redraw_history (self);
}

static void
quire_tier_history_class_init (QuireTierHistoryClass *klass)
{
  GtkWidgetClass *widget_class = GTK_WIDGET_CLASS (klass);

  G_OBJECT_CLASS (klass)->dispose = quire_tier_history_dispose;
  widget_class->snapshot = quire_tier_history_snapshot;
  widget_class->size_allocate = quire_tier_history_size_allocate;
  widget_class->css_changed = quire_tier_history_css_changed;
  widget_class->measure = quire_tier_history_measure;
  gtk_widget_class_set_css_name (widget_class, "tierhistory");
  gtk_widget_class_set_accessible_role (widget_class, GTK_ACCESSIBLE_ROLE_IMG);
}

static void
quire_tier_history_init (QuireTierHistory *self)
{
  AdwStyleManager *style = adw_style_manager_get_default ();

  g_signal_connect (self, "notify::scale-factor", G_CALLBACK (redraw_history), NULL);
  g_signal_connect_object (style, "notify::dark", G_CALLBACK (redraw_history), self,
                           G_CONNECT_SWAPPED);
  g_signal_connect_object (style, "notify::high-contrast", G_CALLBACK (redraw_history), self,
                           G_CONNECT_SWAPPED);
  gtk_accessible_update_property (GTK_ACCESSIBLE (self), GTK_ACCESSIBLE_PROPERTY_LABEL,
                                  _ ("Pages in use by tier over the last five minutes"), -1);
}

GtkWidget *
quire_tier_history_new (void)
{
  return g_object_new (QUIRE_TYPE_TIER_HISTORY, NULL);
}
