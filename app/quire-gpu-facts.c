/* quire-gpu-facts.c: see quire-gpu-facts.h.
 *
 * The engine's reason is what counts; the files of the kernel say more about what is missing below it: a card, its driver,
 * a part of the driver. What a Flatpak lacks is not seen from here and has its own place. */
#include "app/quire-gpu-facts.h"

#include <glib/gi18n.h>
#include <string.h>

#include "app/quire-root-files.h"

#define DRIVER_MIN 580 /* what CUDA 13 needs */

/* The system's own way to a driver; NULL: not known. */
static const char *
driver_command (const char *root)
{
  static const struct
  {
    const char *id, *command;
  } systems[] = {
    { "ubuntu", "sudo ubuntu-drivers install" },
    { "debian", "sudo apt install nvidia-driver" },
    { "fedora", "sudo dnf install akmod-nvidia" },
    { "arch", "sudo pacman -S nvidia-open" },
    { "opensuse", "sudo zypper install-new-recommends --repo NVIDIA" },
  };
  g_autofree char *path = g_strconcat (root, "/etc/os-release", NULL);
  g_autofree char *text = NULL;
  g_auto (GStrv) lines = NULL;

  if (!g_file_get_contents (path, &text, NULL, NULL))
    return NULL;
  lines = g_strsplit (text, "\n", -1);
  for (gsize s = 0; s < G_N_ELEMENTS (systems); s++)
    for (guint i = 0; lines[i] != NULL; i++)
      if ((g_str_has_prefix (lines[i], "ID=") || g_str_has_prefix (lines[i], "ID_LIKE="))
          && strstr (lines[i], systems[s].id) != NULL)
        return systems[s].command;
  return NULL;
}

/* @value: taken. */
static void
add (QuireGpuFacts *facts, const char *name, char *value)
{
  g_ptr_array_add (facts->facts, g_strdup (name));
  g_ptr_array_add (facts->facts, value);
}

static const char *
yes_no (gboolean yes)
{
  return yes ? _ ("there") : _ ("missing");
}

static void
advise (QuireGpuFacts *facts, const char *root, guint n_cards, const char *driver, gboolean uvm)
{
  const char *command = driver_command (root);

  if (n_cards == 0 && driver == NULL)
    facts->advice
        = g_strdup (_ ("There is no NVIDIA graphics card in this computer that Quire could "
                       "use. The CPU does all the work."));
  else if (driver == NULL)
    {
      facts->advice = g_strdup (
          _ ("The card has no NVIDIA driver. Install it, then start the computer again."));
      facts->command = g_strdup (command);
    }
  else if (g_ascii_strtoull (driver, NULL, 10) < DRIVER_MIN)
    {
      facts->advice = g_strdup_printf (_ ("The driver is %s; Quire needs %d or newer. Update it, "
                                          "then start the computer again."),
                                       driver, DRIVER_MIN);
      facts->command = g_strdup (command);
    }
  else if (!uvm)
    {
      facts->advice
          = g_strdup (_ ("A part of the driver is not loaded. Load it, then check again."));
      facts->command = g_strdup ("sudo modprobe nvidia_uvm");
    }
  else
    facts->advice
        = g_strdup (_ ("The driver looks right. What is missing is in Quire itself: see the "
                       "facts below. It has to be started again after a change."));
}

QuireGpuFacts *
quire_gpu_facts_read (const char *root)
{
  QuireGpuFacts *facts = g_new0 (QuireGpuFacts, 1);
  g_autoptr (GPtrArray) backends = qe_list_backends ();
  g_autoptr (GPtrArray) devices = qe_list_devices ();
  g_autofree char *driver = quire_root_dup_text (root, "/sys/module/nvidia/version");
  gboolean uvm = quire_root_exists (root, "/sys/module/nvidia_uvm")
                 && quire_root_exists (root, "/dev/nvidia-uvm");
  guint n_cards = quire_root_count_cards (root);

  facts->facts = g_ptr_array_new_with_free_func (g_free);
  for (guint i = 0; i < backends->len; i++)
    {
      const qe_backend_desc *b = g_ptr_array_index (backends, i);
      g_autofree char *name = g_ascii_strup (b->name, -1);

      add (facts, name, g_strdup (b->reason != NULL ? b->reason : b->device));
      if (g_str_equal (b->name, "cuda"))
        facts->reason = g_strdup (b->reason);
    }
  for (guint i = 0; i < devices->len; i++)
    {
      const qe_device_desc *d = g_ptr_array_index (devices, i);

      add (facts, d->name, g_strdup (d->reason != NULL ? d->reason : _ ("can be used")));
    }
  add (facts, _ ("NVIDIA cards in the computer"), g_strdup_printf ("%u", n_cards));
  add (facts, _ ("Driver in the kernel"), g_strdup (driver != NULL ? driver : _ ("none")));
  add (facts, "/dev/nvidiactl", g_strdup (yes_no (quire_root_exists (root, "/dev/nvidiactl"))));
  add (facts, "/dev/nvidia-uvm", g_strdup (yes_no (quire_root_exists (root, "/dev/nvidia-uvm"))));
  add (facts, "Quire", g_strdup (qe_version ()));
  if (facts->reason != NULL)
    advise (facts, root, n_cards, driver, uvm);
  return facts;
}

void
quire_gpu_facts_free (QuireGpuFacts *facts)
{
  if (facts == NULL)
    return;
  g_free (facts->reason);
  g_free (facts->advice);
  g_free (facts->command);
  g_ptr_array_unref (facts->facts);
  g_free (facts);
}

char *
quire_gpu_facts_format (const QuireGpuFacts *facts)
{
  GString *text = g_string_new (NULL);

  if (facts->reason != NULL)
    g_string_append_printf (text, "%s\n", facts->reason);
  for (guint i = 0; i + 1 < facts->facts->len; i += 2)
    g_string_append_printf (text, "%s: %s\n", (const char *)g_ptr_array_index (facts->facts, i),
                            (const char *)g_ptr_array_index (facts->facts, i + 1));
  return g_string_free (text, FALSE);
}
