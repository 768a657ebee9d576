/* quire-toast.c: see quire-toast.h. An overlay asks a toast for its height before it knows the width: the words are wrapped to
 * what the window leaves beside the toast's buttons. */
#include "app/quire-toast.h"

/* Of a name that is longer than that the end is cut. */
#define LINES_MAX 4
#define CHARS_MIN 10
#define CHARS_MAX 48
/* At the usual text size: margins and buttons, and a character. */
#define BUTTONS_PX 210
#define CHAR_PX 8

static int
count_chars (GtkWidget *over)
{
  GtkRoot *root = gtk_widget_get_root (over);
  int width = root != NULL ? gtk_widget_get_width (GTK_WIDGET (root)) : 0, dpi = -1;
  double scale;

  g_object_get (gtk_widget_get_settings (over), "gtk-xft-dpi", &dpi, NULL);
  scale = dpi > 0 ? dpi / (96.0 * 1024) : 1;
  return width > 0 ? CLAMP ((int)((width / scale - BUTTONS_PX) / CHAR_PX), CHARS_MIN, CHARS_MAX)
                   : CHARS_MAX;
}

AdwToast *
quire_toast_new (GtkWidget *over, const char *text)
{
  g_autofree char *escaped = g_markup_escape_text (text, -1);
  AdwToast *toast = adw_toast_new (escaped);
  GtkWidget *label = gtk_label_new (text);

  gtk_label_set_wrap (GTK_LABEL (label), TRUE);
  gtk_label_set_wrap_mode (GTK_LABEL (label), PANGO_WRAP_WORD_CHAR);
  gtk_label_set_lines (GTK_LABEL (label), LINES_MAX);
  gtk_label_set_ellipsize (GTK_LABEL (label), PANGO_ELLIPSIZE_END);
  gtk_label_set_max_width_chars (GTK_LABEL (label), count_chars (over));
  gtk_label_set_xalign (GTK_LABEL (label), 0);
  gtk_widget_add_css_class (label, "heading");
  adw_toast_set_custom_title (toast, label);
  return toast;
}
