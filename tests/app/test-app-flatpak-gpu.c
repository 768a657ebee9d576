/* test-app-flatpak-gpu.c: why a Flatpak does not see the card, over root folders that look like a sandbox. */
#include <glib/gstdio.h>
#include <string.h>

#include "app/quire-flatpak-gpu.h"
#include "engine/qe.h"

static char *root;

static void put(const char *path, const char *text)
{
    g_autofree char *file = g_build_filename(root, path, NULL);
    g_autofree char *folder = g_path_get_dirname(file);

    g_assert_cmpint(g_mkdir_with_parents(folder, 0700), ==, 0);
    g_assert_true(g_file_set_contents(file, text, -1, NULL));
}

static void drop(const char *path)
{
    g_autofree char *file = g_build_filename(root, path, NULL);

    g_assert_cmpint(g_remove(file), ==, 0);
}

static void remove_all(const char *path)
{
    GDir *dir = g_dir_open(path, 0, NULL);
    const char *name;

    while (dir != NULL && (name = g_dir_read_name(dir)) != NULL) {
        g_autofree char *child = g_build_filename(path, name, NULL);

        remove_all(child);
    }
    if (dir != NULL)
        g_dir_close(dir);
    g_remove(path);
}

static void put_info(const char *devices, const char *app_path)
{
    g_autofree char *text = g_strdup_printf(
        "[Application]\nname=io.github.quire_chat.Quire\nruntime=runtime/org.gnome.Platform/x86_64/51\n"
        "[Instance]\napp-path=%s/app/io.github.quire_chat.Quire/x86_64/stable/abc/files\n"
        "arch=x86_64\nbranch=stable\n[Context]\nshared=network;ipc;\n%s",
        app_path, devices);

    put(".flatpak-info", text);
}

/* A sandbox in which everything is there: an RTX card, driver 580.95.05, both extensions, the device. */
static void put_all(void)
{
    put_info("devices=dri;\n", "/var/lib/flatpak");
    put("sys/bus/pci/devices/0000:00:1f.3/vendor", "0x8086\n");
    put("sys/bus/pci/devices/0000:00:1f.3/class", "0x040300\n");
    put("sys/bus/pci/devices/0000:01:00.0/vendor", "0x10de\n");
    put("sys/bus/pci/devices/0000:01:00.0/class", "0x030000\n");
    put("proc/driver/nvidia/version",
        "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  580.95.05  Release Build  "
        "(root@build)  Tue Sep 23 10:00:00 UTC 2026\nGCC version:  gcc version 12.2.0 (Debian)\n");
    put("proc/modules", "nvidia_uvm 4096 0 - Live 0x0\nnvidia 8192 1 nvidia_uvm, Live 0x0\n");
    put("usr/lib/x86_64-linux-gnu/GL/nvidia-580-95-05/lib/libcuda.so.1", "");
    put("app/lib/quire/quire-cuda.so", "");
    put("app/lib/quire/version", qe_version());
    put("dev/nvidia-uvm", "");
}

static void check_at(
    guint i, GPtrArray *problems, QuireFlatpakGpuCause cause, const char *words, const char *command)
{
    const QuireFlatpakGpuProblem *problem;

    g_assert_nonnull(problems);
    g_assert_cmpuint(problems->len, >, i);
    problem = g_ptr_array_index(problems, i);
    g_assert_cmpstr(quire_flatpak_gpu_cause_name(problem->cause), ==, quire_flatpak_gpu_cause_name(cause));
    g_assert_nonnull(strstr(problem->reason, words));
    g_assert_true(g_str_has_suffix(problem->reason, "."));
    g_assert_cmpstr(problem->command, ==, command);
}

/* This problem, and no other. */
static void check(QuireFlatpakGpuCause cause, const char *words, const char *command)
{
    g_autoptr(GPtrArray) problems = quire_flatpak_gpu_look(root);

    check_at(0, problems, cause, words, command);
    g_assert_cmpuint(problems->len, ==, 1);
}

static void setup(gpointer *unused, gconstpointer data)
{
    root = g_dir_make_tmp("quire-flatpak-XXXXXX", NULL);
    g_assert_nonnull(root);
    put_all();
}

static void teardown(gpointer *unused, gconstpointer data)
{
    remove_all(root);
    g_clear_pointer(&root, g_free);
}

static void test_nothing_missing(gpointer *unused, gconstpointer data)
{
    g_autoptr(GPtrArray) problems = quire_flatpak_gpu_look(root);

    g_assert_nonnull(problems);
    g_assert_cmpuint(problems->len, ==, 0);
}

static void test_not_flatpak(gpointer *unused, gconstpointer data)
{
    drop(".flatpak-info");
    g_assert_null(quire_flatpak_gpu_look(root));
    put(".flatpak-info", "not a key file");
    g_assert_null(quire_flatpak_gpu_look(root));
}

/* Nothing else is asked for on a computer that has no card. */
static void test_no_card(gpointer *unused, gconstpointer data)
{
    drop("proc/driver/nvidia/version");
    drop("app/lib/quire/quire-cuda.so");
    put("sys/bus/pci/devices/0000:01:00.0/vendor", "0x1002\n");
    check(QUIRE_FLATPAK_GPU_NO_CARD, "no NVIDIA card", NULL);
    /* NVIDIA's, but a sound device. */
    put("sys/bus/pci/devices/0000:01:00.0/vendor", "0x10de\n");
    put("sys/bus/pci/devices/0000:01:00.0/class", "0x040300\n");
    check(QUIRE_FLATPAK_GPU_NO_CARD, "no NVIDIA card", NULL);
}

static void test_no_host_driver(gpointer *unused, gconstpointer data)
{
    drop("proc/driver/nvidia/version");
    check(QUIRE_FLATPAK_GPU_NO_HOST_DRIVER, "version 580 or newer", NULL);
}

static void test_old_host_driver(gpointer *unused, gconstpointer data)
{
    put("proc/driver/nvidia/version",
        "NVRM version: NVIDIA UNIX x86_64 Kernel Module  535.183.01  Sun May 12 19:39:15 UTC 2024\n");
    check(QUIRE_FLATPAK_GPU_OLD_HOST_DRIVER, "535.183.01", NULL);
}

/* sysfs's file comes first, and a text that is no version is not taken for one. */
static void test_versions(gpointer *unused, gconstpointer data)
{
    put("sys/module/nvidia/version", "590.10\n");
    check(QUIRE_FLATPAK_GPU_OTHER_DRIVER_VERSION, "version 590.10, and its Flatpak extension is 580.95.05",
        "flatpak install flathub org.freedesktop.Platform.GL.nvidia-590-10//1.4");
    put("sys/module/nvidia/version", "N/A\n");
    test_nothing_missing(NULL, NULL);
}

static void test_no_driver_extension(gpointer *unused, gconstpointer data)
{
    drop("usr/lib/x86_64-linux-gnu/GL/nvidia-580-95-05/lib/libcuda.so.1");
    check(QUIRE_FLATPAK_GPU_NO_DRIVER_EXTENSION, "580.95.05",
        "flatpak install flathub org.freedesktop.Platform.GL.nvidia-580-95-05//1.4");
    /* An application of one user: there is no need for the administrator. */
    put_info("devices=dri;\n", "/var/home/ada/.local/share/flatpak");
    check(QUIRE_FLATPAK_GPU_NO_DRIVER_EXTENSION, "580.95.05",
        "flatpak install --user flathub org.freedesktop.Platform.GL.nvidia-580-95-05//1.4");
    /* Mesa's, which has no libcuda, is no driver for CUDA. */
    put("usr/lib/x86_64-linux-gnu/GL/default/lib/libGLX_mesa.so.0", "");
    check(QUIRE_FLATPAK_GPU_NO_DRIVER_EXTENSION, "580.95.05",
        "flatpak install --user flathub org.freedesktop.Platform.GL.nvidia-580-95-05//1.4");
    /* The host's own driver, put there by hand. */
    put("usr/lib/x86_64-linux-gnu/GL/host/lib/libcuda.so.1", "");
    test_nothing_missing(NULL, NULL);
}

static void test_other_driver_version(gpointer *unused, gconstpointer data)
{
    drop("usr/lib/x86_64-linux-gnu/GL/nvidia-580-95-05/lib/libcuda.so.1");
    put("usr/lib/x86_64-linux-gnu/GL/nvidia-580-65-06/lib/libcuda.so.1", "");
    check(QUIRE_FLATPAK_GPU_OTHER_DRIVER_VERSION, "580.95.05, and its Flatpak extension is 580.65.06",
        "flatpak install flathub org.freedesktop.Platform.GL.nvidia-580-95-05//1.4");
}

static void test_cuda_extension(gpointer *unused, gconstpointer data)
{
    put("app/lib/quire/version", "0.0.1\n");
    check(QUIRE_FLATPAK_GPU_OTHER_CUDA_VERSION, "another version",
        "flatpak update io.github.quire_chat.Quire io.github.quire_chat.Quire.Cuda");
    drop("app/lib/quire/quire-cuda.so");
    check(QUIRE_FLATPAK_GPU_NO_CUDA_EXTENSION, "not installed",
        "flatpak install io.github.quire_chat.Quire.Cuda//stable");
}

static void test_uvm(gpointer *unused, gconstpointer data)
{
    drop("dev/nvidia-uvm");
    check(QUIRE_FLATPAK_GPU_NO_UVM_NODE, "/dev/nvidia-uvm", "sudo nvidia-modprobe -u -c 0");
    /* Another module's name that begins alike, and one that uses it, are not it. */
    put("proc/modules", "nvidia_uvm_x 1 0 - Live 0x0\nnvidia 8192 1 nvidia_uvm, Live 0x0\n");
    check(QUIRE_FLATPAK_GPU_NO_UVM, "nvidia_uvm", "sudo modprobe nvidia_uvm && sudo nvidia-modprobe -u -c 0");
}

static void test_no_device_access(gpointer *unused, gconstpointer data)
{
    put_info("", "/var/lib/flatpak");
    drop("dev/nvidia-uvm");
    check(QUIRE_FLATPAK_GPU_NO_DEVICE_ACCESS, "permission",
        "flatpak override --user --device=dri io.github.quire_chat.Quire");
    put_info("devices=all;\n", "/var/lib/flatpak");
    put("dev/nvidia-uvm", "");
    test_nothing_missing(NULL, NULL);
}

/* All that is missing is said at once, in the order in which to mend it. */
static void test_together(gpointer *unused, gconstpointer data)
{
    g_autoptr(GPtrArray) problems = NULL;

    drop("usr/lib/x86_64-linux-gnu/GL/nvidia-580-95-05/lib/libcuda.so.1");
    drop("app/lib/quire/quire-cuda.so");
    drop("dev/nvidia-uvm");
    problems = quire_flatpak_gpu_look(root);
    check_at(0, problems, QUIRE_FLATPAK_GPU_NO_DRIVER_EXTENSION, "580.95.05",
        "flatpak install flathub org.freedesktop.Platform.GL.nvidia-580-95-05//1.4");
    check_at(1, problems, QUIRE_FLATPAK_GPU_NO_CUDA_EXTENSION, "not installed",
        "flatpak install io.github.quire_chat.Quire.Cuda//stable");
    check_at(2, problems, QUIRE_FLATPAK_GPU_NO_UVM_NODE, "/dev/nvidia-uvm", "sudo nvidia-modprobe -u -c 0");
    g_assert_cmpuint(problems->len, ==, 3);
}

/* What the window and the command line say: the sandbox's cause in place of the engine's. */
static void test_reason(gpointer *unused, gconstpointer data)
{
    drop("app/lib/quire/quire-cuda.so");
    g_setenv("QUIRE_FLATPAK_ROOT", root, TRUE);
    g_assert_null(quire_flatpak_gpu_reason(NULL));
    g_assert_nonnull(strstr(quire_flatpak_gpu_reason("The CUDA module is missing."), "not installed"));
}

int main(int argc, char **argv)
{
    static const struct {
        const char *path;
        void (*test)(gpointer *, gconstpointer);
    } tests[] = {
        {"nothing-missing", test_nothing_missing},
        {"not-flatpak", test_not_flatpak},
        {"no-card", test_no_card},
        {"no-host-driver", test_no_host_driver},
        {"old-host-driver", test_old_host_driver},
        {"versions", test_versions},
        {"no-driver-extension", test_no_driver_extension},
        {"other-driver-version", test_other_driver_version},
        {"cuda-extension", test_cuda_extension},
        {"uvm", test_uvm},
        {"no-device-access", test_no_device_access},
        {"together", test_together},
        {"reason", test_reason},
    };

    g_test_init(&argc, &argv, NULL);
    for (guint i = 0; i < G_N_ELEMENTS(tests); i++) {
        g_autofree char *path = g_strconcat("/app/flatpak-gpu/", tests[i].path, NULL);

        g_test_add(path, gpointer, NULL, setup, tests[i].test, teardown);
    }
    return g_test_run();
}
