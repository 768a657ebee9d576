/* quire-flatpak-gpu.c: see quire-flatpak-gpu.h.
 *
 * Everything is read from files that a sandbox shows: /.flatpak-info says what flatpak mounted and allowed, /sys/bus/pci
 * which cards there are, /proc what the host's kernel has loaded, the extensions' folders what is installed. Flatpak mounts
 * a driver extension only when its version is that of the kernel module, so one of another version mostly looks like none;
 * the command that installs the right one mends both. */
#include "app/quire-flatpak-gpu.h"

#include <glib/gi18n.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "app/quire-root-files.h"
#include "engine/qe.h"

#define DRIVER_MAJOR_MIN 580          /* CUDA 13 */
#define DRIVER_EXTENSION_BRANCH "1.4" /* of all org.freedesktop.Platform.GL.nvidia-* */
#define CUDA_FOLDER "/app/lib/quire/" /* where the manifest puts the CUDA extension */

static void
problem_free (gpointer data)
{
  QuireFlatpakGpuProblem *problem = data;

  g_free (problem->reason);
  g_free (problem->command);
  g_free (problem);
}

/* @reason is taken; @command, taken, may be NULL. */
static void
add (GPtrArray *problems, QuireFlatpakGpuCause cause, char *reason, char *command)
{
  QuireFlatpakGpuProblem *problem = g_new0 (QuireFlatpakGpuProblem, 1);

  problem->cause = cause;
  problem->reason = reason;
  problem->command = command;
  g_ptr_array_add (problems, problem);
}

static gboolean
is_version (const char *word)
{
  return strchr (word, '.') != NULL && strspn (word, "0123456789.") == strlen (word);
}

/* The version of the loaded kernel module, "580.95.05". Newer flatpaks may show sysfs's file; /proc has it in all:
 * "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  580.95.05  Release Build ...". */
static char *
dup_driver_version (const char *root)
{
  char *version = quire_root_dup_text (root, "/sys/module/nvidia/version");
  g_autofree char *text = NULL;

  if (version != NULL && is_version (version))
    return version;
  g_free (version);
  text = quire_root_dup_text (root, "/proc/driver/nvidia/version");
  if (text == NULL)
    return NULL;
  g_auto (GStrv) words = g_strsplit_set (text, " \t\n", -1);
  for (guint i = 0; words[i] != NULL; i++)
    if (is_version (words[i]))
      return g_strdup (words[i]);
  return NULL;
}

static gboolean
has_module (const char *root, const char *module)
{
  g_autofree char *text = quire_root_dup_text (root, "/proc/modules");
  g_autofree char *folder = g_strconcat ("/sys/module/", module, NULL);

  if (text != NULL)
    {
      g_auto (GStrv) lines = g_strsplit (text, "\n", -1);
      gsize length = strlen (module);

      for (guint i = 0; lines[i] != NULL; i++)
        if (strncmp (lines[i], module, length) == 0 && lines[i][length] == ' ')
          return TRUE;
    }
  return quire_root_exists (root, folder);
}

/* Which driver extensions are mounted, as their folders' names: @wanted is "nvidia-580-95-05". An unofficial one that
 * brings the host's own driver counts as the wanted one. @other: owned. */
static gboolean
find_driver_extension (const char *root, const char *wanted, char **other)
{
  g_autofree char *lib = g_strconcat (root, "/usr/lib", NULL);
  g_autoptr (GDir) archs = g_dir_open (lib, 0, NULL);
  const char *arch;
  gboolean found = FALSE;

  while (archs != NULL && (arch = g_dir_read_name (archs)) != NULL)
    {
      g_autofree char *folder = g_build_filename (lib, arch, "GL", NULL);
      g_autoptr (GDir) drivers = g_dir_open (folder, 0, NULL);
      const char *name;

      while (drivers != NULL && (name = g_dir_read_name (drivers)) != NULL)
        {
          g_autofree char *library = g_build_filename (folder, name, "lib", "libcuda.so.1", NULL);

          if (!g_file_test (library, G_FILE_TEST_EXISTS))
            continue;
          if (strcmp (name, wanted) == 0 || !g_str_has_prefix (name, "nvidia-"))
            found = TRUE;
          else if (*other == NULL)
            *other = g_strdup (name);
        }
    }
  return found;
}

/* Options that make `flatpak install` act where the application lies. */
static const char *
installation (GKeyFile *info)
{
  g_autofree char *path = g_key_file_get_string (info, "Instance", "app-path", NULL);

  return path == NULL || g_str_has_prefix (path, "/var/lib/flatpak/") ? "" : "--user ";
}

static void
look_at_driver_extension (GPtrArray *problems, const char *root, GKeyFile *info,
                          const char *version)
{
  g_autofree char *name = g_strconcat ("nvidia-", version, NULL);
  g_autofree char *other = NULL;
  char *command;

  g_strdelimit (name, ".", '-');
  if (find_driver_extension (root, name, &other))
    return;
  command = g_strdup_printf (
      "flatpak install %sflathub org.freedesktop.Platform.GL.%s//" DRIVER_EXTENSION_BRANCH,
      installation (info), name);
  if (other == NULL)
    add (problems, QUIRE_FLATPAK_GPU_NO_DRIVER_EXTENSION,
         g_strdup_printf (
             /* Translators: a version, "580.95.05". */
             _ ("The Flatpak extension with the NVIDIA driver %s is not installed."), version),
         command);
  else
    {
      g_autofree char *has = g_strdelimit (g_strdup (other + strlen ("nvidia-")), "-", '.');

      add (problems, QUIRE_FLATPAK_GPU_OTHER_DRIVER_VERSION,
           g_strdup_printf (
               /* Translators: two versions, "580.95.05". */
               _ ("The computer’s NVIDIA driver is version %s, and its Flatpak extension is %s."),
               version, has),
           command);
    }
}

static void
look_at_cuda_extension (GPtrArray *problems, const char *root, GKeyFile *info)
{
  g_autofree char *app = g_key_file_get_string (info, "Application", "name", NULL);
  g_autofree char *branch = g_key_file_get_string (info, "Instance", "branch", NULL);
  g_autofree char *version = NULL;

  if (!quire_root_exists (root, CUDA_FOLDER "quire-cuda.so"))
    {
      add (problems, QUIRE_FLATPAK_GPU_NO_CUDA_EXTENSION,
           g_strdup (_ ("The part of Quire for NVIDIA cards is not installed.")),
           g_strdup_printf ("flatpak install %s%s.Cuda%s%s", installation (info), app,
                            branch != NULL ? "//" : "", branch != NULL ? branch : ""));
      return;
    }
  version = quire_root_dup_text (root, CUDA_FOLDER "version");
  if (g_strcmp0 (version, qe_version ()) != 0)
    add (problems, QUIRE_FLATPAK_GPU_OTHER_CUDA_VERSION,
         g_strdup (_ ("The part of Quire for NVIDIA cards belongs to another version of Quire.")),
         g_strdup_printf ("flatpak update %s%s %s.Cuda", installation (info), app, app));
}

static void
look_at_uvm (GPtrArray *problems, const char *root)
{
  if (quire_root_exists (root, "/dev/nvidia-uvm"))
    return;
  if (has_module (root, "nvidia_uvm"))
    add (problems, QUIRE_FLATPAK_GPU_NO_UVM_NODE,
         g_strdup (_ ("The device /dev/nvidia-uvm was missing when Quire was started.")),
         g_strdup ("sudo nvidia-modprobe -u -c 0"));
  else
    add (problems, QUIRE_FLATPAK_GPU_NO_UVM,
         g_strdup (_ ("The driver’s kernel module nvidia_uvm is not loaded.")),
         g_strdup ("sudo modprobe nvidia_uvm && sudo nvidia-modprobe -u -c 0"));
}

static gboolean
may_use_devices (GKeyFile *info)
{
  g_auto (GStrv) devices = g_key_file_get_string_list (info, "Context", "devices", NULL, NULL);

  return devices != NULL
         && (g_strv_contains ((const char *const *)devices, "dri")
             || g_strv_contains ((const char *const *)devices, "all"));
}

GPtrArray *
quire_flatpak_gpu_look (const char *root)
{
  g_autofree char *info_path = g_strconcat (root, "/.flatpak-info", NULL);
  g_autoptr (GKeyFile) info = g_key_file_new ();
  g_autofree char *app = NULL;
  g_autofree char *version = NULL;
  GPtrArray *problems;

  if (!g_key_file_load_from_file (info, info_path, G_KEY_FILE_NONE, NULL)
      || (app = g_key_file_get_string (info, "Application", "name", NULL)) == NULL)
    return NULL;
  problems = g_ptr_array_new_with_free_func (problem_free);
  version = dup_driver_version (root);
  if (version == NULL)
    {
      if (quire_root_count_cards (root) > 0)
        add (problems, QUIRE_FLATPAK_GPU_NO_HOST_DRIVER,
             g_strdup_printf (_ ("The computer has an NVIDIA card, and NVIDIA’s driver is not "
                                 "loaded: install version %d or newer."),
                              DRIVER_MAJOR_MIN),
             NULL);
      else
        add (problems, QUIRE_FLATPAK_GPU_NO_CARD,
             g_strdup (_ ("This computer has no NVIDIA card.")), NULL);
      return problems;
    }
  if (g_ascii_strtoull (version, NULL, 10) < DRIVER_MAJOR_MIN)
    {
      add (problems, QUIRE_FLATPAK_GPU_OLD_HOST_DRIVER,
           g_strdup_printf (
               _ ("The NVIDIA driver %s is too old: install version %d or newer, then restart."),
               version, DRIVER_MAJOR_MIN),
           NULL);
      return problems;
    }
  if (!may_use_devices (info))
    add (problems, QUIRE_FLATPAK_GPU_NO_DEVICE_ACCESS,
         g_strdup (_ ("Quire’s permission to use graphics cards was taken away.")),
         g_strdup_printf ("flatpak override --user --device=dri %s", app));
  look_at_driver_extension (problems, root, info, version);
  look_at_cuda_extension (problems, root, info);
  /* Without the permission no device shows, whatever the host has. */
  if (may_use_devices (info))
    look_at_uvm (problems, root);
  return problems;
}

static gpointer
look_once (gpointer data)
{
  const char *root = g_getenv ("QUIRE_FLATPAK_ROOT");

  return quire_flatpak_gpu_look (root != NULL ? root : "");
}

const GPtrArray *
quire_flatpak_gpu_get_problems (void)
{
  static GOnce once = G_ONCE_INIT;

  return g_once (&once, look_once, NULL);
}

const char *
quire_flatpak_gpu_reason (const char *reason)
{
  const GPtrArray *problems = quire_flatpak_gpu_get_problems ();

  if (reason == NULL || problems == NULL || problems->len == 0)
    return reason;
  return ((const QuireFlatpakGpuProblem *)g_ptr_array_index (problems, 0))->reason;
}

const char *
quire_flatpak_gpu_cause_name (QuireFlatpakGpuCause cause)
{
  static const char *const names[] = {
    [QUIRE_FLATPAK_GPU_NO_CARD] = "no-card",
    [QUIRE_FLATPAK_GPU_NO_HOST_DRIVER] = "no-host-driver",
    [QUIRE_FLATPAK_GPU_OLD_HOST_DRIVER] = "old-host-driver",
    [QUIRE_FLATPAK_GPU_NO_DEVICE_ACCESS] = "no-device-access",
    [QUIRE_FLATPAK_GPU_NO_DRIVER_EXTENSION] = "no-driver-extension",
    [QUIRE_FLATPAK_GPU_OTHER_DRIVER_VERSION] = "other-driver-version",
    [QUIRE_FLATPAK_GPU_NO_CUDA_EXTENSION] = "no-cuda-extension",
    [QUIRE_FLATPAK_GPU_OTHER_CUDA_VERSION] = "other-cuda-version",
    [QUIRE_FLATPAK_GPU_NO_UVM] = "no-uvm",
    [QUIRE_FLATPAK_GPU_NO_UVM_NODE] = "no-uvm-node",
  };

  return names[cause];
}
