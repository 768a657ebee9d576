/* quire-root-files.h: small files of the kernel below a root, so that tests can have folders that look like a machine. No
 * GTK. Blocking. @root: "" for this machine; @path begins with a slash. */
#pragma once
#include <glib.h>

G_BEGIN_DECLS

/* The text without blanks around it. Returns: owned; NULL when it cannot be read. */
char *quire_root_dup_text (const char *root, const char *path);
gboolean quire_root_exists (const char *root, const char *path);
/* NVIDIA's display controllers on the PCI bus. */
guint quire_root_count_cards (const char *root);

G_END_DECLS
