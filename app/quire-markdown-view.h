/* quire-markdown-view.h: shows Markdown as widgets, block by block. */
#pragma once
#include <gtk/gtk.h>

G_BEGIN_DECLS

#define QUIRE_TYPE_MARKDOWN_VIEW (quire_markdown_view_get_type ())
G_DECLARE_FINAL_TYPE (QuireMarkdownView, quire_markdown_view, QUIRE, MARKDOWN_VIEW, GtkWidget)

GtkWidget *quire_markdown_view_new (void);
/* Only blocks that differ from those shown are touched: while a reply streams, that is the last one. */
void quire_markdown_view_set_text (QuireMarkdownView *self, const char *text, gsize n_bytes);
guint quire_markdown_view_get_n_blocks (QuireMarkdownView *self);
/* Blocks parsed so far, each time that they were: what a token costs must not grow with the text before it. */
guint64 quire_markdown_view_get_n_parsed (QuireMarkdownView *self);

G_END_DECLS
