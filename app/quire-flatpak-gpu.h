/* quire-flatpak-gpu.h: why a Flatpak does not see the graphics card, and the command that mends each cause.
 *
 * The engine can only say that the driver's library or its CUDA module is not there. In a Flatpak that has causes that a
 * machine without it does not know: the driver comes as an extension of the runtime that must be of the kernel module's
 * very version, and the CUDA module as an extension of the application. */
#pragma once
#include <glib.h>

G_BEGIN_DECLS

typedef enum
{
  QUIRE_FLATPAK_GPU_NO_CARD,              /* nothing to mend */
  QUIRE_FLATPAK_GPU_NO_HOST_DRIVER,       /* the kernel module is not loaded */
  QUIRE_FLATPAK_GPU_OLD_HOST_DRIVER,      /* older than CUDA needs */
  QUIRE_FLATPAK_GPU_NO_DEVICE_ACCESS,     /* the sandbox's permission was taken away */
  QUIRE_FLATPAK_GPU_NO_DRIVER_EXTENSION,  /* of the host's version, or of any */
  QUIRE_FLATPAK_GPU_OTHER_DRIVER_VERSION, /* an extension is there, the host's driver is another */
  QUIRE_FLATPAK_GPU_NO_CUDA_EXTENSION,
  QUIRE_FLATPAK_GPU_OTHER_CUDA_VERSION, /* the extension belongs to another version of Quire */
  QUIRE_FLATPAK_GPU_NO_UVM,             /* the host has not loaded nvidia_uvm */
  QUIRE_FLATPAK_GPU_NO_UVM_NODE, /* loaded, and /dev/nvidia-uvm was not there when the sandbox was made */
} QuireFlatpakGpuCause;

typedef struct
{
  QuireFlatpakGpuCause cause;
  char *reason; /* one sentence, translated */
  char *
      command; /* for a terminal of the host; NULL when no command mends it. Quire must be started again after it */
} QuireFlatpakGpuProblem;

/* Looks at the files below @root ("" for the system's own). Returns (element-type QuireFlatpakGpuProblem): owned, the one
 * to mend first at the front, empty when nothing is wrong that can be seen from here; NULL when this is no Flatpak. */
GPtrArray *quire_flatpak_gpu_look (const char *root) G_GNUC_WARN_UNUSED_RESULT;

/* The same for this process, looked up once: a sandbox does not change while it runs. Borrowed. QUIRE_FLATPAK_ROOT names
 * another root, for tests. */
const GPtrArray *quire_flatpak_gpu_get_problems (void);

/* What to tell a person in place of the engine's @reason: the first problem's, else @reason itself. Borrowed. */
const char *quire_flatpak_gpu_reason (const char *reason);

/* "no-cuda-extension", for machines. */
const char *quire_flatpak_gpu_cause_name (QuireFlatpakGpuCause cause);

G_END_DECLS
