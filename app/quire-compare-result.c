/* quire-compare-result.c: see quire-compare-result.h. Panes scroll together: where one is moved to a token, the others show
 * the same one. CSS: .quire-compare-result. */
#include "app/quire-compare-result.h"

#include <glib/gi18n.h>

#include "app/quire-compare-chart.h"
#include "app/quire-compare-grid.h"
#include "app/quire-compare-pane.h"
#include "app/quire-compare-table.h"
#include "app/quire-widget.h"
#include "app/quire-wrap-layout.h"

struct _QuireCompareResult
{
  GtkBox parent_instance;

  const QuireComparison *comparison; /* borrowed */
  GtkLabel *conditions, *prompt, *verdict;
  GtkWidget *stop, *again, *setup, *export;
  GtkDropDown *chooser;
  QuireCompareGrid *grid;
  GtkWidget *figures; /* verdict, switcher and stack: what a picture shows */
  GtkWidget *stack, *switcher;
  QuireCompareTable *table, *turns;
  QuireCompareChart *chart;
  guint n_samples; /* that the tables show */
  gboolean kept;
};

G_DEFINE_FINAL_TYPE (QuireCompareResult, quire_compare_result, GTK_TYPE_BOX)

enum
{
  USE,
  STOP,
  AGAIN,
  SETUP,
  N_SIGNALS
};
static guint signals[N_SIGNALS];

static void
set_text (GtkLabel *label, const char *text)
{
  if (g_strcmp0 (gtk_label_get_text (label), text) != 0)
    gtk_label_set_text (label, text != NULL ? text : "");
  gtk_widget_set_visible (GTK_WIDGET (label), text != NULL && text[0] != '\0');
}

/* ---- Panes ---- */

static void
scrolled_cb (QuireCompareResult *self, guint token, GtkWidget *pane)
{
  for (GtkWidget *other = gtk_widget_get_first_child (GTK_WIDGET (self->grid)); other != NULL;
       other = gtk_widget_get_next_sibling (other))
    if (other != pane)
      quire_compare_pane_scroll_to (QUIRE_COMPARE_PANE (other), self->comparison, token);
}

static void
use_cb (QuireCompareResult *self, GtkWidget *button, GtkWidget *pane)
{
  guint i = 0;

  for (GtkWidget *other = gtk_widget_get_prev_sibling (pane); other != NULL;
       other = gtk_widget_get_prev_sibling (other))
    i++;
  g_signal_emit (self, signals[USE], 0,
                 (int)quire_comparison_get_pane (self->comparison, i)->choice, button);
}

static void
columns_cb (QuireCompareResult *self)
{
  gtk_widget_set_visible (GTK_WIDGET (self->chooser),
                          quire_compare_grid_get_columns (self->grid) == 1);
}

static void
chosen_cb (QuireCompareResult *self)
{
  guint i = gtk_drop_down_get_selected (self->chooser);

  if (i != GTK_INVALID_LIST_POSITION)
    quire_compare_grid_choose (self->grid, i);
}

void
quire_compare_result_set (QuireCompareResult *self, const QuireComparison *comparison)
{
  GtkStringList *names = gtk_string_list_new (NULL);

  quire_compare_grid_clear (self->grid);
  quire_compare_chart_set (self->chart, comparison);
  self->comparison = comparison;
  self->n_samples = G_MAXUINT;
  for (guint i = 0; comparison != NULL && i < comparison->panes->len; i++)
    {
      g_autofree char *name
          = quire_cache_choice_dup_name (quire_comparison_get_pane (comparison, i)->choice);
      GtkWidget *pane = quire_compare_pane_new (i);

      gtk_string_list_append (names, name);
      g_signal_connect_swapped (pane, "scrolled", G_CALLBACK (scrolled_cb), self);
      g_signal_connect_swapped (pane, "use", G_CALLBACK (use_cb), self);
      quire_compare_grid_add (self->grid, pane);
    }
  gtk_drop_down_set_model (self->chooser, G_LIST_MODEL (names));
  g_object_unref (names);
  if (comparison != NULL)
    quire_compare_result_update (self, FALSE);
}

/* ---- Figures ---- */

static guint
count_samples (const QuireComparison *c)
{
  guint n = 0;

  for (guint i = 0; i < c->panes->len; i++)
    {
      const QuirePane *pane = quire_comparison_get_pane (c, i);

      n += pane->cold_ms.n + pane->warm_ms.n + quire_pane_is_over (pane);
      for (guint t = 0; t < pane->turns->len; t++)
        n += g_array_index (pane->turns, QuireComparedTurn, t).first_token_ms.n;
    }
  return n;
}

void
quire_compare_result_update (QuireCompareResult *self, gboolean running)
{
  const QuireComparison *c = self->comparison;
  g_autofree char *conditions = quire_comparison_dup_conditions (c);
  g_autofree char *verdict = quire_comparison_dup_verdict (c);
  guint n = count_samples (c);

  set_text (self->conditions, conditions);
  set_text (self->prompt, c->prompt);
  set_text (self->verdict, verdict);
  for (GtkWidget *pane = gtk_widget_get_first_child (GTK_WIDGET (self->grid)); pane != NULL;
       pane = gtk_widget_get_next_sibling (pane))
    quire_compare_pane_update (QUIRE_COMPARE_PANE (pane), c);
  if (n != self->n_samples)
    {
      self->n_samples = n;
      quire_compare_table_update (self->table, c);
      quire_compare_table_update (self->turns, c);
      gtk_widget_queue_draw (GTK_WIDGET (self->chart));
    }
  gtk_widget_set_visible (self->stack, !c->interleaved);
  gtk_widget_set_visible (self->switcher, !c->interleaved);
  gtk_widget_set_visible (self->stop, running);
  gtk_widget_set_visible (self->again, !running && !self->kept);
  gtk_widget_set_visible (self->setup, !running && !self->kept);
  gtk_widget_set_sensitive (self->export, !running);
  columns_cb (self);
}

void
quire_compare_result_set_kept (QuireCompareResult *self, gboolean kept)
{
  self->kept = kept;
}

void
quire_compare_result_set_can_use (QuireCompareResult *self, gboolean can_use)
{
  for (GtkWidget *pane = gtk_widget_get_first_child (GTK_WIDGET (self->grid)); pane != NULL;
       pane = gtk_widget_get_next_sibling (pane))
    quire_compare_pane_set_can_use (QUIRE_COMPARE_PANE (pane), can_use);
}

GtkWidget *
quire_compare_result_get_table (QuireCompareResult *self)
{
  return GTK_WIDGET (self->table);
}

void
quire_compare_result_show_turns (QuireCompareResult *self)
{
  gtk_stack_set_visible_child_name (GTK_STACK (self->stack), "turns");
}

const char *
quire_compare_result_get_verdict (QuireCompareResult *self)
{
  return gtk_label_get_text (self->verdict);
}

/* The whole box is drawn, what is scrolled out of sight too, on the window's own background. */
gboolean
quire_compare_result_save_png (QuireCompareResult *self, GFile *file, GError **error)
{
  g_autoptr (GdkPaintable) paintable = gtk_widget_paintable_new (self->figures);
  GtkNative *native = gtk_widget_get_native (GTK_WIDGET (self));
  GtkSnapshot *snapshot = gtk_snapshot_new ();
  int width = gdk_paintable_get_intrinsic_width (paintable),
      height = gdk_paintable_get_intrinsic_height (paintable);
  g_autoptr (GskRenderNode) node = NULL;
  g_autoptr (GdkTexture) texture = NULL;
  g_autoptr (GBytes) bytes = NULL;
  GdkRGBA background = { 1, 1, 1, 1 };

  gtk_style_context_lookup_color (gtk_widget_get_style_context (GTK_WIDGET (self)),
                                  "window_bg_color", &background);
  gtk_snapshot_append_color (snapshot, &background,
                             &GRAPHENE_RECT_INIT (0, 0, (float)width, (float)height));
  gdk_paintable_snapshot (paintable, snapshot, width, height);
  node = gtk_snapshot_free_to_node (snapshot);
  if (native == NULL || node == NULL || width == 0 || height == 0)
    {
      g_set_error_literal (error, G_IO_ERROR, G_IO_ERROR_FAILED, _ ("There is no picture yet."));
      return FALSE;
    }
  texture = gsk_renderer_render_texture (gtk_native_get_renderer (native), node,
                                         &GRAPHENE_RECT_INIT (0, 0, (float)width, (float)height));
  bytes = gdk_texture_save_to_png_bytes (texture);
  return g_file_replace_contents (file, g_bytes_get_data (bytes, NULL), g_bytes_get_size (bytes),
                                  NULL, FALSE, G_FILE_CREATE_REPLACE_DESTINATION, NULL, NULL,
                                  error);
}

/* ---- Building ---- */

static void
emit_cb (GtkButton *button, gpointer user_data)
{
  guint *id = g_object_get_data (G_OBJECT (button), "quire-signal");

  g_signal_emit (user_data, *id, 0);
}

static GtkWidget *
button_new (QuireCompareResult *self, const char *label, guint *id)
{
  GtkWidget *button = quire_mnemonic_button_new (label);

  g_object_set_data (G_OBJECT (button), "quire-signal", id);
  g_signal_connect (button, "clicked", G_CALLBACK (emit_cb), self);
  return button;
}

static GtkLabel *
label_new (const char *css_class)
{
  GtkWidget *label = gtk_label_new (NULL);

  gtk_label_set_xalign (GTK_LABEL (label), 0);
  gtk_label_set_wrap (GTK_LABEL (label), TRUE);
  gtk_label_set_wrap_mode (GTK_LABEL (label), PANGO_WRAP_WORD_CHAR);
  if (css_class != NULL)
    gtk_widget_add_css_class (label, css_class);
  return GTK_LABEL (label);
}

static GtkWidget *
head_new (QuireCompareResult *self)
{
  GtkWidget *head = gtk_box_new (GTK_ORIENTATION_VERTICAL, 6);
  GtkWidget *buttons = quire_wrap_box_new (6, FALSE);
  g_autoptr (GMenu) menu = g_menu_new ();

  self->prompt = label_new ("heading");
  gtk_label_set_lines (self->prompt, 2);
  gtk_label_set_ellipsize (self->prompt, PANGO_ELLIPSIZE_END);
  self->conditions = label_new ("dim-label");
  gtk_widget_add_css_class (GTK_WIDGET (self->conditions), "numeric");
  self->stop = button_new (self, _ ("_Stop"), &signals[STOP]);
  self->again = button_new (self, _ ("_Run Again"), &signals[AGAIN]);
  self->setup = button_new (self, _ ("Set _Up…"), &signals[SETUP]);
  self->export = gtk_menu_button_new ();
  gtk_menu_button_set_label (GTK_MENU_BUTTON (self->export), _ ("Export"));
  quire_widget_set_label (self->export, _ ("Export"));
  g_menu_append (menu, _ ("Figures as _CSV…"), "compare.export-csv");
  g_menu_append (menu, _ ("Picture as _PNG…"), "compare.export-png");
  gtk_menu_button_set_menu_model (GTK_MENU_BUTTON (self->export), G_MENU_MODEL (menu));
  gtk_box_append (GTK_BOX (buttons), self->stop);
  gtk_box_append (GTK_BOX (buttons), self->again);
  gtk_box_append (GTK_BOX (buttons), self->setup);
  gtk_box_append (GTK_BOX (buttons), self->export);
  gtk_box_append (GTK_BOX (head), GTK_WIDGET (self->prompt));
  gtk_box_append (GTK_BOX (head), GTK_WIDGET (self->conditions));
  gtk_box_append (GTK_BOX (head), buttons);
  return head;
}

static GtkWidget *
figures_new (QuireCompareResult *self)
{
  GtkWidget *box = gtk_box_new (GTK_ORIENTATION_VERTICAL, 12);
  GtkWidget *turns = gtk_box_new (GTK_ORIENTATION_VERTICAL, 12);

  self->verdict
      = GTK_LABEL (g_object_new (GTK_TYPE_LABEL, "accessible-role", GTK_ACCESSIBLE_ROLE_STATUS,
                                 "xalign", 0.0, "wrap", TRUE, "selectable", TRUE, NULL));
  gtk_widget_set_focus_on_click (GTK_WIDGET (self->verdict), FALSE);
  self->table = QUIRE_COMPARE_TABLE (quire_compare_table_new (FALSE));
  self->turns = QUIRE_COMPARE_TABLE (quire_compare_table_new (TRUE));
  self->chart = QUIRE_COMPARE_CHART (quire_compare_chart_new ());
  gtk_box_append (GTK_BOX (turns), GTK_WIDGET (self->chart));
  gtk_box_append (GTK_BOX (turns), GTK_WIDGET (self->turns));
  self->stack = gtk_stack_new ();
  gtk_stack_set_vhomogeneous (GTK_STACK (self->stack), FALSE);
  gtk_stack_set_hhomogeneous (GTK_STACK (self->stack), FALSE);
  gtk_stack_add_titled (GTK_STACK (self->stack), GTK_WIDGET (self->table), "table", _ ("Table"));
  gtk_stack_add_titled (GTK_STACK (self->stack), turns, "turns", _ ("By Turn"));
  self->switcher = gtk_stack_switcher_new ();
  gtk_stack_switcher_set_stack (GTK_STACK_SWITCHER (self->switcher), GTK_STACK (self->stack));
  gtk_widget_set_halign (self->switcher, GTK_ALIGN_START);
  quire_widget_set_label (self->switcher, _ ("Figures of the modes"));
  gtk_box_append (GTK_BOX (box), GTK_WIDGET (self->verdict));
  gtk_box_append (GTK_BOX (box), self->switcher);
  gtk_box_append (GTK_BOX (box), self->stack);
  gtk_widget_add_css_class (box, "quire-compare-figures");
  self->figures = box;
  return box;
}

static void
quire_compare_result_class_init (QuireCompareResultClass *klass)
{
  static const char *const names[] = { "stop", "again", "setup" };

  signals[USE] = g_signal_new ("use", G_TYPE_FROM_CLASS (klass), G_SIGNAL_RUN_LAST, 0, NULL, NULL,
                               NULL, G_TYPE_NONE, 2, G_TYPE_INT, GTK_TYPE_WIDGET);
  for (int i = STOP; i < N_SIGNALS; i++)
    signals[i] = g_signal_new (names[i - STOP], G_TYPE_FROM_CLASS (klass), G_SIGNAL_RUN_LAST, 0,
                               NULL, NULL, NULL, G_TYPE_NONE, 0);
}

static void
quire_compare_result_init (QuireCompareResult *self)
{
  GtkWidget *page = gtk_box_new (GTK_ORIENTATION_VERTICAL, 12),
            *scrolled = gtk_scrolled_window_new ();

  self->chooser = GTK_DROP_DOWN (gtk_drop_down_new (NULL, NULL));
  quire_drop_down_set_label (self->chooser, _ ("Mode shown"));
  self->grid = QUIRE_COMPARE_GRID (quire_compare_grid_new ());
  gtk_widget_set_vexpand (GTK_WIDGET (self->grid), TRUE);
  gtk_box_append (GTK_BOX (page), head_new (self));
  gtk_box_append (GTK_BOX (page), GTK_WIDGET (self->chooser));
  gtk_box_append (GTK_BOX (page), GTK_WIDGET (self->grid));
  gtk_box_append (GTK_BOX (page), figures_new (self));
  gtk_widget_add_css_class (page, "quire-compare-result");
  g_signal_connect_swapped (self->grid, "columns-changed", G_CALLBACK (columns_cb), self);
  g_signal_connect_swapped (self->chooser, "notify::selected", G_CALLBACK (chosen_cb), self);
  gtk_scrolled_window_set_policy (GTK_SCROLLED_WINDOW (scrolled), GTK_POLICY_NEVER,
                                  GTK_POLICY_AUTOMATIC);
  gtk_scrolled_window_set_child (GTK_SCROLLED_WINDOW (scrolled), page);
  gtk_widget_set_vexpand (scrolled, TRUE);
  gtk_widget_set_hexpand (scrolled, TRUE);
  gtk_box_append (GTK_BOX (self), scrolled);
}

GtkWidget *
quire_compare_result_new (void)
{
  return g_object_new (QUIRE_TYPE_COMPARE_RESULT, NULL);
}
