/* quire-markdown-view.c: see quire-markdown-view.h.
 *
 * Each block is one row: indentation for quotes and lists, the list marker, and the block's own widget. A row is reused
 * when the block keeps its kind and place, so that labels and buffers change their text and nothing flickers.
 * CSS: markdown > .block(.quote) > .marker, label, codeblock, .table. */
#include "app/quire-markdown-view.h"

#include <glib/gi18n.h>
#include <string.h>

#include "app/quire-code-block.h"
#include "app/quire-line-layout.h"
#include "app/quire-markdown.h"

#define INDENT_PX 24

struct _QuireMarkdownView
{
  GtkWidget parent_instance;

  GtkWidget *box;
  GPtrArray *blocks; /* (element-type QuireBlock) what is shown */
  GPtrArray *rows;   /* (element-type GtkWidget) borrowed, one a block */
  GString
      *settled;    /* the beginning of the text, which is not parsed again; its blocks come first */
  guint n_settled; /* of the blocks */
  guint64 n_parsed;
  int width; /* of the last allocation */
  guint refit_id;
};

G_DEFINE_FINAL_TYPE (QuireMarkdownView, quire_markdown_view, GTK_TYPE_WIDGET)

static gboolean
activate_link_cb (GtkLabel *label, const char *uri, gpointer user_data)
{
  GtkRoot *root = gtk_widget_get_root (GTK_WIDGET (label));

  gtk_show_uri (GTK_IS_WINDOW (root) ? GTK_WINDOW (root) : NULL, uri, GDK_CURRENT_TIME);
  return TRUE;
}

static GtkWidget *
text_label_new (GtkAccessibleRole role)
{
  g_autoptr (PangoAttrList) attributes = pango_attr_list_new ();
  GtkWidget *label = g_object_new (GTK_TYPE_LABEL, "accessible-role", role, NULL);

  /* A hyphen where a long word or address breaks would look like part of it. */
  pango_attr_list_insert (attributes, pango_attr_insert_hyphens_new (FALSE));
  gtk_label_set_attributes (GTK_LABEL (label), attributes);
  gtk_label_set_wrap (GTK_LABEL (label), TRUE);
  gtk_label_set_wrap_mode (GTK_LABEL (label), PANGO_WRAP_WORD_CHAR);
  gtk_label_set_natural_wrap_mode (GTK_LABEL (label), GTK_NATURAL_WRAP_NONE);
  gtk_label_set_selectable (GTK_LABEL (label), TRUE);
  gtk_label_set_xalign (GTK_LABEL (label), 0);
  gtk_widget_set_hexpand (label, TRUE);
  /* Selectable labels take the focus and select all when they do; the transcript moves by message instead. */
  gtk_widget_set_focus_on_click (label, FALSE);
  g_signal_connect (label, "activate-link", G_CALLBACK (activate_link_cb), NULL);
  return label;
}

static void
set_markup (GtkWidget *label, const char *markup)
{
  gtk_label_set_markup (GTK_LABEL (label), markup);
}

/* Its source is its name: that is what can be read out. */
static void
set_formula (GtkWidget *label, const QuireBlock *block)
{
  set_markup (label, block->markup);
  gtk_accessible_update_property (GTK_ACCESSIBLE (label), GTK_ACCESSIBLE_PROPERTY_LABEL,
                                  block->text, -1);
}

static GtkWidget *
table_new (const QuireBlock *block)
{
  GtkWidget *scrolled = gtk_scrolled_window_new ();
  GtkWidget *grid = gtk_grid_new ();

  gtk_widget_add_css_class (grid, "table");
  gtk_widget_set_halign (grid, GTK_ALIGN_START);
  for (guint i = 0; i < block->cells->len && block->n_columns > 0; i++)
    {
      guint row = i / block->n_columns, column = i % block->n_columns;
      GtkWidget *label = gtk_label_new (NULL);

      set_markup (label, g_ptr_array_index (block->cells, i));
      gtk_label_set_selectable (GTK_LABEL (label), TRUE);
      gtk_widget_set_focus_on_click (label, FALSE);
      gtk_label_set_xalign (GTK_LABEL (label), (float)block->aligns[column] / 2);
      gtk_widget_add_css_class (label, row == 0 ? "th" : "td");
      g_signal_connect (label, "activate-link", G_CALLBACK (activate_link_cb), NULL);
      gtk_grid_attach (GTK_GRID (grid), label, (int)column, (int)row, 1, 1);
    }
  gtk_scrolled_window_set_policy (GTK_SCROLLED_WINDOW (scrolled), GTK_POLICY_AUTOMATIC,
                                  GTK_POLICY_NEVER);
  gtk_scrolled_window_set_propagate_natural_height (GTK_SCROLLED_WINDOW (scrolled), TRUE);
  gtk_scrolled_window_set_child (GTK_SCROLLED_WINDOW (scrolled), grid);
  gtk_widget_set_hexpand (scrolled, TRUE);
  return scrolled;
}

static GtkWidget *
content_new (const QuireBlock *block)
{
  static const char *const heading_classes[]
      = { "title-2", "title-3", "title-4", "heading", "heading", "heading" };
  GtkWidget *widget;

  switch (block->kind)
    {
    case QUIRE_BLOCK_CODE:
      widget = quire_code_block_new ();
      quire_code_block_set_code (QUIRE_CODE_BLOCK (widget), block->text, block->language);
      gtk_widget_set_hexpand (widget, TRUE);
      return widget;
    case QUIRE_BLOCK_TABLE:
      return table_new (block);
    case QUIRE_BLOCK_RULE:
      widget = gtk_separator_new (GTK_ORIENTATION_HORIZONTAL);
      gtk_widget_set_hexpand (widget, TRUE);
      gtk_widget_set_valign (widget, GTK_ALIGN_CENTER);
      return widget;
    case QUIRE_BLOCK_MATH:
      widget = text_label_new (GTK_ACCESSIBLE_ROLE_MATH);
      gtk_widget_add_css_class (widget, "math");
      gtk_label_set_xalign (GTK_LABEL (widget), 0.5);
      set_formula (widget, block);
      return widget;
    default:
      widget = text_label_new (GTK_ACCESSIBLE_ROLE_LABEL);
      if (block->kind == QUIRE_BLOCK_HEADING)
        gtk_widget_add_css_class (widget, heading_classes[CLAMP (block->level, 1, 6) - 1]);
      set_markup (widget, block->markup);
      return widget;
    }
}

static GtkWidget *
row_new (const QuireBlock *block)
{
  GtkWidget *row = gtk_box_new (GTK_ORIENTATION_HORIZONTAL, 6);
  guint indent = block->list_depth > 0 ? (block->list_depth - 1) * INDENT_PX : 0;

  gtk_widget_set_layout_manager (row, quire_line_layout_new (6, FALSE));
  gtk_widget_add_css_class (row, "block");
  if (block->quote_depth > 0)
    gtk_widget_add_css_class (row, "quote");
  if (block->list_depth > 0)
    {
      GtkWidget *marker = gtk_label_new (block->marker != NULL ? block->marker : "");

      gtk_widget_add_css_class (marker, "marker");
      gtk_widget_add_css_class (marker, "numeric");
      gtk_widget_set_size_request (marker, INDENT_PX - 6, -1);
      gtk_widget_set_margin_start (marker, (int)indent);
      gtk_widget_set_valign (marker, GTK_ALIGN_START);
      gtk_label_set_xalign (GTK_LABEL (marker), 1);
      gtk_box_append (GTK_BOX (row), marker);
      if (block->marker != NULL)
        gtk_widget_add_css_class (row, "item");
    }
  gtk_box_append (GTK_BOX (row), content_new (block));
  return row;
}

/* Whether @row, made for @old, can show @new by changing its content alone. */
static gboolean
row_update (GtkWidget *row, const QuireBlock *old, const QuireBlock *new)
{
  GtkWidget *content = gtk_widget_get_last_child (row);

  if (old->kind != new->kind || old->level != new->level || old->quote_depth != new->quote_depth
      || old->list_depth != new->list_depth || g_strcmp0 (old->marker, new->marker) != 0)
    return FALSE;
  switch (new->kind)
    {
    case QUIRE_BLOCK_CODE:
      quire_code_block_set_code (QUIRE_CODE_BLOCK (content), new->text, new->language);
      return TRUE;
    case QUIRE_BLOCK_TABLE:
      gtk_box_remove (GTK_BOX (row), content);
      gtk_box_append (GTK_BOX (row), table_new (new));
      return TRUE;
    case QUIRE_BLOCK_RULE:
      return TRUE;
    case QUIRE_BLOCK_MATH:
      set_formula (content, new);
      return TRUE;
    default:
      set_markup (content, new->markup);
      return TRUE;
    }
}

static GPtrArray *
parse (QuireMarkdownView *self, const char *text, gsize n_bytes)
{
  GPtrArray *blocks = quire_markdown_parse (text, n_bytes);

  self->n_parsed += blocks->len;
  return blocks;
}

/* All blocks of the text; those of what is settled are moved over from what is shown. */
static GPtrArray *
parse_tail (QuireMarkdownView *self, const char *text, gsize n_bytes)
{
  GPtrArray *blocks = g_ptr_array_new_with_free_func ((GDestroyNotify)quire_block_free);
  GPtrArray *tail;
  gsize n_more;

  if (n_bytes < self->settled->len || memcmp (text, self->settled->str, self->settled->len) != 0
      || memmem (text + self->settled->len, n_bytes - self->settled->len, "]:", 2) != NULL)
    {
      g_string_truncate (self->settled, 0);
      self->n_settled = 0;
    }
  for (guint i = 0; i < self->n_settled; i++)
    g_ptr_array_add (blocks, g_steal_pointer (&self->blocks->pdata[i]));
  text += self->settled->len;
  n_bytes -= self->settled->len;
  n_more = quire_markdown_find_settled (text, n_bytes);
  if (n_more > 0)
    {
      tail = parse (self, text, n_more);
      g_string_append_len (self->settled, text, (gssize)n_more);
      self->n_settled += tail->len;
      g_ptr_array_extend_and_steal (blocks, tail);
    }
  tail = parse (self, text + n_more, n_bytes - n_more);
  g_ptr_array_extend_and_steal (blocks, tail);
  return blocks;
}

void
quire_markdown_view_set_text (QuireMarkdownView *self, const char *text, gsize n_bytes)
{
  GPtrArray *blocks;
  guint n_kept;

  g_return_if_fail (QUIRE_IS_MARKDOWN_VIEW (self));

  n_kept = self->n_settled;
  blocks = parse_tail (self, text, n_bytes);
  for (guint i = MIN (n_kept, self->n_settled); i < blocks->len; i++)
    {
      const QuireBlock *new = g_ptr_array_index (blocks, i);
      GtkWidget *row, *before = i > 0 ? g_ptr_array_index (self->rows, i - 1) : NULL;

      if (i < self->blocks->len)
        {
          const QuireBlock *old = g_ptr_array_index (self->blocks, i);

          row = g_ptr_array_index (self->rows, i);
          if (quire_block_equal (old, new) || row_update (row, old, new))
            continue;
          gtk_box_remove (GTK_BOX (self->box), row);
          row = row_new (new);
          self->rows->pdata[i] = row;
        }
      else
        {
          row = row_new (new);
          g_ptr_array_add (self->rows, row);
        }
      gtk_box_insert_child_after (GTK_BOX (self->box), row, before);
    }
  while (self->rows->len > blocks->len)
    {
      gtk_box_remove (GTK_BOX (self->box), g_ptr_array_index (self->rows, self->rows->len - 1));
      g_ptr_array_set_size (self->rows, (int)self->rows->len - 1);
    }
  g_ptr_array_unref (self->blocks);
  self->blocks = blocks;
}

guint
quire_markdown_view_get_n_blocks (QuireMarkdownView *self)
{
  g_return_val_if_fail (QUIRE_IS_MARKDOWN_VIEW (self), 0);
  return self->blocks->len;
}

guint64
quire_markdown_view_get_n_parsed (QuireMarkdownView *self)
{
  g_return_val_if_fail (QUIRE_IS_MARKDOWN_VIEW (self), 0);
  return self->n_parsed;
}

/* GTK 4.8 now and then keeps the height that a wrapping label had at its former width when the window's layout changes
 * in one go; its last line then lies over what follows. After each change of width the labels are asked once more. */
static gboolean
refit_cb (gpointer user_data)
{
  QuireMarkdownView *self = user_data;

  self->refit_id = 0;
  for (guint i = 0; i < self->rows->len; i++)
    for (GtkWidget *child = gtk_widget_get_first_child (g_ptr_array_index (self->rows, i));
         child != NULL; child = gtk_widget_get_next_sibling (child))
      gtk_widget_queue_resize (child);
  return G_SOURCE_REMOVE;
}

static void
quire_markdown_view_measure (GtkWidget *widget, GtkOrientation orientation, int for_size,
                             int *minimum, int *natural, int *minimum_baseline,
                             int *natural_baseline)
{
  gtk_widget_measure (QUIRE_MARKDOWN_VIEW (widget)->box, orientation, for_size, minimum, natural,
                      minimum_baseline, natural_baseline);
}

static GtkSizeRequestMode
quire_markdown_view_get_request_mode (GtkWidget *widget)
{
  return GTK_SIZE_REQUEST_HEIGHT_FOR_WIDTH;
}

static void
quire_markdown_view_size_allocate (GtkWidget *widget, int width, int height, int baseline)
{
  QuireMarkdownView *self = QUIRE_MARKDOWN_VIEW (widget);

  gtk_widget_allocate (self->box, width, height, baseline, NULL);
  if (width != self->width && self->refit_id == 0)
    self->refit_id = g_idle_add (refit_cb, self);
  self->width = width;
}

static void
quire_markdown_view_dispose (GObject *object)
{
  QuireMarkdownView *self = QUIRE_MARKDOWN_VIEW (object);

  g_clear_handle_id (&self->refit_id, g_source_remove);
  g_clear_pointer (&self->box, gtk_widget_unparent);
  G_OBJECT_CLASS (quire_markdown_view_parent_class)->dispose (object);
}

static void
quire_markdown_view_finalize (GObject *object)
{
  QuireMarkdownView *self = QUIRE_MARKDOWN_VIEW (object);

  g_ptr_array_unref (self->blocks);
  g_ptr_array_unref (self->rows);
  g_string_free (self->settled, TRUE);
  G_OBJECT_CLASS (quire_markdown_view_parent_class)->finalize (object);
}

static void
quire_markdown_view_class_init (QuireMarkdownViewClass *klass)
{
  GObjectClass *object_class = G_OBJECT_CLASS (klass);
  GtkWidgetClass *widget_class = GTK_WIDGET_CLASS (klass);

  object_class->dispose = quire_markdown_view_dispose;
  object_class->finalize = quire_markdown_view_finalize;
  widget_class->measure = quire_markdown_view_measure;
  widget_class->get_request_mode = quire_markdown_view_get_request_mode;
  widget_class->size_allocate = quire_markdown_view_size_allocate;
  gtk_widget_class_set_css_name (widget_class, "markdown");
}

static void
quire_markdown_view_init (QuireMarkdownView *self)
{
  self->blocks = g_ptr_array_new_with_free_func ((GDestroyNotify)quire_block_free);
  self->rows = g_ptr_array_new ();
  self->settled = g_string_new (NULL);
  self->box = gtk_box_new (GTK_ORIENTATION_VERTICAL, 0);
  gtk_widget_set_parent (self->box, GTK_WIDGET (self));
}

GtkWidget *
quire_markdown_view_new (void)
{
  return g_object_new (QUIRE_TYPE_MARKDOWN_VIEW, NULL);
}
