/* test-kernels-registry.c: what the registry says of the CUDA module: missing, broken, of another version, there.
 *
 * The registry looks for the module once a process, so every case runs in a child of its own and sends what it saw
 * through a pipe. Arguments: the modules that the build made for this test (right ABI, wrong ABI, no symbol), then
 * Quire's own where it was built. */
#include "kernels/qk.h"
#include "tests/kernels/tap.h"
#include <dlfcn.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

typedef struct {
    qk_probe cuda; /* its name is a pointer of the child's: not to be read */
    qk_device device;
    size_t n_backends, n_devices;
    qk_status estimated;
    qk_sizes model, context;
    qk_status status; /* of opening */
    char error[256];
    bool cpu_opens;
} seen;

/* In the child. @module NULL: leave the search to the registry. */
static void look(const char *module, seen *out)
{
    qk_probe probes[8];
    qk_backend *backend = NULL;
    memset(out, 0, sizeof(*out));
    if (module != NULL)
        setenv("QUIRE_CUDA_MODULE", module, 1);
    else
        unsetenv("QUIRE_CUDA_MODULE");
    out->n_backends = qk_probe_backends(probes, 8);
    for (size_t i = 0; i < out->n_backends && i < 8; i++)
        if (strcmp(probes[i].name, "cuda") == 0)
            out->cuda = probes[i];
    out->n_devices = qk_list_devices("cuda", &out->device, 1);
    const qk_shape shape = {.n_layers = 1};
    const qk_context_params params = {.rows_max = 1};
    out->estimated = qk_estimate("cuda", &shape, false, &params, &out->model, &out->context);
    const qk_backend_options options = {.device = "7"};
    out->status = qk_backend_open("cuda", &options, &backend, out->error, sizeof(out->error));
    qk_backend_free(backend);
    backend = NULL;
    char ignored[256];
    out->cpu_opens = qk_backend_open("cpu", NULL, &backend, ignored, sizeof(ignored)) == QK_OK;
    qk_backend_free(backend);
}

static seen look_in_child(const char *module)
{
    int fds[2], status;
    seen got;
    tap_require(pipe(fds) == 0);
    fflush(stdout);
    pid_t child = fork();
    tap_require(child >= 0);
    if (child == 0) {
        look(module, &got);
        _exit(write(fds[1], &got, sizeof(got)) == (ssize_t)sizeof(got) ? 0 : 1);
    }
    tap_require(read(fds[0], &got, sizeof(got)) == (ssize_t)sizeof(got));
    tap_require(waitpid(child, &status, 0) == child && status == 0);
    close(fds[0]);
    close(fds[1]);
    return got;
}

static bool is_sentence(const char *text)
{
    size_t n = strlen(text);
    return n > 20 && n < sizeof(((qk_probe *)NULL)->reason) && text[n - 1] == '.' && text[0] >= 'A' &&
           text[0] <= 'Z';
}

/* CUDA cannot run; the reason holds @words, is what opening says too, and the CPU is not touched by it. */
static void expect_refused(const char *module, const char *words, const char *what)
{
    seen got = look_in_child(module);
    tap_note("%s: %s", what, got.cuda.reason);
    tap_ok(!got.cuda.available && is_sentence(got.cuda.reason) && strstr(got.cuda.reason, words) != NULL,
        "%s: the probe says so", what);
    tap_ok(got.status == QK_UNSUPPORTED && strstr(got.error, got.cuda.reason) != NULL,
        "%s: opening says the same", what);
    tap_ok(got.n_devices == 0 && got.estimated == QK_UNSUPPORTED, "%s: no devices, no estimate", what);
    tap_ok(got.cpu_opens && got.n_backends == 2, "%s: the CPU opens", what);
}

static void test_own_module(const char *module)
{
    seen got = look_in_child(module);
    void *driver = dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL);
    tap_note("%s", got.cuda.available ? got.cuda.device : got.cuda.reason);
    tap_ok(got.cuda.available ? got.cuda.device[0] != '\0' && got.cuda.reason[0] == '\0'
                              : is_sentence(got.cuda.reason),
        "Quire's module names the device, or says why there is none");
    if (driver == NULL)
        tap_ok(!got.cuda.available && strstr(got.cuda.reason, "No NVIDIA driver is installed") != NULL &&
                   got.n_devices == 0 && strstr(got.error, got.cuda.reason) != NULL,
            "without a driver it says that");
    else
        tap_skip("there is a driver");
    tap_ok(got.status != QK_OK && got.error[0] != '\0', "device 7 does not open: %s", got.error);
    tap_ok(got.cpu_opens, "the CPU opens beside it");
}

int main(int argc, char **argv)
{
    tap_require(argc >= 4);
    char path[4096];
    char not_elf[] = "/tmp/quire-not-a-module-XXXXXX";
    int fd = mkstemp(not_elf);
    tap_require(fd >= 0 && write(fd, "no module\n", 10) == 10);
    close(fd);

    seen got = look_in_child(argv[1]);
    tap_ok(got.cuda.available && strcmp(got.cuda.device, "Fake GPU") == 0 && got.cuda.reason[0] == '\0',
        "a module of this version is used");
    tap_ok(got.n_devices == 1 && strcmp(got.device.id, "GPU-fake") == 0 && got.device.usable,
        "its devices are listed");
    tap_ok(got.estimated == QK_OK && got.model.device_bytes == 2 && got.context.device_bytes == 3,
        "it is asked for estimates");
    tap_ok(got.status == QK_UNSUPPORTED && strcmp(got.error, "cuda: fake, device 7") == 0,
        "opening goes through with its options");

    expect_refused(argv[2], "another version of Quire", "another ABI");
    expect_refused(argv[3], "another version of Quire", "no symbol");
    expect_refused(not_elf, "cannot be opened", "not a module");
    expect_refused("/nonexistent/quire-cuda.so", "QUIRE_CUDA_MODULE names a file", "named but not there");
    /* The longest path there can be must not push the words out. */
    snprintf(path, sizeof(path), "/nonexistent/%0*d/quire-cuda.so", 3000, 0);
    expect_refused(path, "is missing", "a long path");
    unlink(not_elf);
    if (argc > 4)
        test_own_module(argv[4]);
    else
        tap_skip("this build has no CUDA module");
    return tap_done();
}
