/* quire-compare-table.c: see quire-compare-table.h. CSS: comparetable. */
#include "app/quire-compare-table.h"

#include <glib/gi18n.h>
#include <math.h>

struct _QuireCompareTable
{
  GtkWidget parent_instance;

  gboolean by_turn;
  GtkWidget *grid;
  guint n_rows, n_columns; /* without headings */
  GPtrArray *cells;        /* (element-type utf8) row after row */
};

G_DEFINE_FINAL_TYPE (QuireCompareTable, quire_compare_table, GTK_TYPE_WIDGET)

static GtkWidget *
label_new (GtkAccessibleRole role, const char *text, const char *css_class, float xalign)
{
  GtkWidget *label = g_object_new (GTK_TYPE_LABEL, "accessible-role", role, "label", text, "xalign",
                                   xalign, NULL);

  gtk_widget_add_css_class (label, css_class);
  return label;
}

static void
attach (QuireCompareTable *self, GtkWidget *child, guint column, guint row)
{
  gtk_grid_attach (GTK_GRID (self->grid), child, (int)column, (int)row, 1, 1);
}

static void
add_line (GtkWidget *box, const char *text, const char *css_class)
{
  GtkWidget *label;

  if (text[0] == '\0')
    return;
  label = gtk_label_new (text);
  gtk_label_set_xalign (GTK_LABEL (label), 1);
  gtk_widget_add_css_class (label, "numeric");
  if (css_class != NULL)
    {
      gtk_widget_add_css_class (label, "caption");
      gtk_widget_add_css_class (label, css_class);
    }
  gtk_box_append (GTK_BOX (box), label);
}

/* The value, its change, the range of the runs. @words: what a screen reader says, taken. */
static void
add_cell (QuireCompareTable *self, guint row, guint column, const char *value, const char *range,
          const char *change, char *words)
{
  GtkWidget *box = g_object_new (GTK_TYPE_BOX, "orientation", GTK_ORIENTATION_VERTICAL,
                                 "accessible-role", GTK_ACCESSIBLE_ROLE_CELL, NULL);

  add_line (box, value, NULL);
  add_line (box, change, "quire-change");
  add_line (box, range, "dim-label");
  gtk_accessible_update_property (GTK_ACCESSIBLE (box), GTK_ACCESSIBLE_PROPERTY_LABEL, words, -1);
  g_ptr_array_add (self->cells, words);
  attach (self, box, column + 1, row + 1);
}

static void
add_row_heading (QuireCompareTable *self, const QuirePane *pane, guint row)
{
  g_autofree char *name = quire_cache_choice_dup_name (pane->choice);

  GtkWidget *label = label_new (GTK_ACCESSIBLE_ROLE_ROW_HEADER, name, "heading", 0);

  gtk_widget_set_valign (label, GTK_ALIGN_START);
  attach (self, label, 0, row + 1);
}

static void
fill_figures (QuireCompareTable *self, const QuireComparison *c)
{
  self->n_rows = c->panes->len;
  self->n_columns = QUIRE_N_COLUMNS;
  for (guint column = 0; column < QUIRE_N_COLUMNS; column++)
    {
      g_autofree char *title = quire_comparison_dup_column_title (c, (QuireColumn)column);

      attach (self, label_new (GTK_ACCESSIBLE_ROLE_COLUMN_HEADER, title, "caption-heading", 1),
              column + 1, 0);
    }
  for (guint row = 0; row < c->panes->len; row++)
    {
      const QuirePane *pane = quire_comparison_get_pane (c, row);

      add_row_heading (self, pane, row);
      for (guint column = 0; column < QUIRE_N_COLUMNS; column++)
        {
          g_autofree char *title = quire_comparison_dup_column_title (c, (QuireColumn)column);
          g_autofree char *value = NULL, *range = NULL, *change = NULL;

          quire_comparison_dup_cell (c, pane, (QuireColumn)column, &value, &range, &change);
          add_cell (
              self, row, column, value, range, change,
              /* Translators: mode, name of the figure, its value, then perhaps the change against Rebuild. */
              g_strdup_printf (_ ("%s, %s: %s %s"), quire_cache_choice_get_title (pane->choice),
                               title, value, change));
        }
    }
}

static void
fill_turns (QuireCompareTable *self, const QuireComparison *c)
{
  self->n_rows = c->panes->len;
  self->n_columns = c->n_turns;
  for (guint turn = 0; turn < c->n_turns; turn++)
    {
      g_autofree char *title = g_strdup_printf (_ ("Turn %u"), turn + 1);

      attach (self, label_new (GTK_ACCESSIBLE_ROLE_COLUMN_HEADER, title, "caption-heading", 1),
              turn + 1, 0);
    }
  for (guint row = 0; row < c->panes->len; row++)
    {
      const QuirePane *pane = quire_comparison_get_pane (c, row);

      add_row_heading (self, pane, row);
      for (guint turn = 0; turn < c->n_turns; turn++)
        {
          const QuireComparedTurn *t = turn < pane->turns->len
                                           ? &g_array_index (pane->turns, QuireComparedTurn, turn)
                                           : NULL;
          double ms = t != NULL ? quire_samples_median (&t->first_token_ms) : NAN;
          g_autofree char *value
              = isnan (ms) ? g_strdup (C_ ("figure", "–")) : g_strdup_printf (_ ("%.1f ms"), ms);
          g_autofree char *reused
              = t != NULL && !isnan (ms)
                    /* Translators: tokens of a prompt that were cached, and all of its tokens. */
                    ? g_strdup_printf (_ ("%u of %u reused"), t->n_reused, t->n_prompt)
                    : g_strdup ("");

          add_cell (self, row, turn, value, reused, "",
                    g_strdup_printf (_ ("%s, turn %u: %s %s"),
                                     quire_cache_choice_get_title (pane->choice), turn + 1, value,
                                     reused));
        }
    }
}

void
quire_compare_table_update (QuireCompareTable *self, const QuireComparison *comparison)
{
  GtkWidget *child;

  while ((child = gtk_widget_get_first_child (self->grid)) != NULL)
    gtk_grid_remove (GTK_GRID (self->grid), child);
  g_ptr_array_set_size (self->cells, 0);
  if (self->by_turn)
    fill_turns (self, comparison);
  else
    fill_figures (self, comparison);
}

const char *
quire_compare_table_get_cell (QuireCompareTable *self, guint row, guint column)
{
  return row < self->n_rows && column < self->n_columns
             ? g_ptr_array_index (self->cells, row * self->n_columns + column)
             : NULL;
}

static void
quire_compare_table_dispose (GObject *object)
{
  QuireCompareTable *self = QUIRE_COMPARE_TABLE (object);

  GtkWidget *child = gtk_widget_get_first_child (GTK_WIDGET (self));

  if (child != NULL)
    gtk_widget_unparent (child);
  G_OBJECT_CLASS (quire_compare_table_parent_class)->dispose (object);
}

static void
quire_compare_table_finalize (GObject *object)
{
  g_ptr_array_unref (QUIRE_COMPARE_TABLE (object)->cells);
  G_OBJECT_CLASS (quire_compare_table_parent_class)->finalize (object);
}

static void
quire_compare_table_class_init (QuireCompareTableClass *klass)
{
  G_OBJECT_CLASS (klass)->dispose = quire_compare_table_dispose;
  G_OBJECT_CLASS (klass)->finalize = quire_compare_table_finalize;
  gtk_widget_class_set_css_name (GTK_WIDGET_CLASS (klass), "comparetable");
  gtk_widget_class_set_layout_manager_type (GTK_WIDGET_CLASS (klass), GTK_TYPE_BIN_LAYOUT);
}

static void
quire_compare_table_init (QuireCompareTable *self)
{
  GtkWidget *scrolled = gtk_scrolled_window_new ();

  self->cells = g_ptr_array_new_with_free_func (g_free);
  self->grid = g_object_new (GTK_TYPE_GRID, "column-spacing", 24, "row-spacing", 12,
                             "accessible-role", GTK_ACCESSIBLE_ROLE_TABLE, NULL);
  gtk_accessible_update_property (GTK_ACCESSIBLE (self->grid), GTK_ACCESSIBLE_PROPERTY_LABEL,
                                  _ ("Figures of the modes"), -1);
  gtk_widget_set_halign (self->grid, GTK_ALIGN_START);
  gtk_scrolled_window_set_policy (GTK_SCROLLED_WINDOW (scrolled), GTK_POLICY_AUTOMATIC,
                                  GTK_POLICY_NEVER);
  gtk_scrolled_window_set_child (GTK_SCROLLED_WINDOW (scrolled), self->grid);
  gtk_widget_set_parent (scrolled, GTK_WIDGET (self));
}

GtkWidget *
quire_compare_table_new (gboolean by_turn)
{
  QuireCompareTable *self = g_object_new (QUIRE_TYPE_COMPARE_TABLE, NULL);

  self->by_turn = by_turn;
  return GTK_WIDGET (self);
}
