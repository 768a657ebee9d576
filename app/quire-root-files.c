/* quire-root-files.c: see quire-root-files.h. */
#include "app/quire-root-files.h"

#define PCI_FOLDER "/sys/bus/pci/devices"
#define PCI_VENDOR_NVIDIA "0x10de"
#define PCI_CLASS_DISPLAY "0x03"

char *
quire_root_dup_text (const char *root, const char *path)
{
  g_autofree char *file = g_strconcat (root, path, NULL);
  char *text = NULL;

  return g_file_get_contents (file, &text, NULL, NULL) ? g_strstrip (text) : NULL;
}

gboolean
quire_root_exists (const char *root, const char *path)
{
  g_autofree char *file = g_strconcat (root, path, NULL);

  return g_file_test (file, G_FILE_TEST_EXISTS);
}

guint
quire_root_count_cards (const char *root)
{
  g_autofree char *folder = g_strconcat (root, PCI_FOLDER, NULL);
  g_autoptr (GDir) dir = g_dir_open (folder, 0, NULL);
  const char *name;
  guint n = 0;

  while (dir != NULL && (name = g_dir_read_name (dir)) != NULL)
    {
      g_autofree char *vendor_path = g_build_filename (PCI_FOLDER, name, "vendor", NULL);
      g_autofree char *class_path = g_build_filename (PCI_FOLDER, name, "class", NULL);
      g_autofree char *vendor = quire_root_dup_text (root, vendor_path);
      g_autofree char *class = quire_root_dup_text (root, class_path);

      n += g_strcmp0 (vendor, PCI_VENDOR_NVIDIA) == 0 && class != NULL
           && g_str_has_prefix (class, PCI_CLASS_DISPLAY);
    }
  return n;
}
