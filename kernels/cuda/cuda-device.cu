/* cuda-device.cu: which devices there are, which one to take, and what this process's backends of one device share.
 *
 *  1. Looking creates no CUDA context: the runtime's count and properties start the driver at most (a tenth of a second
 *     for the first call of a process), free memory comes from NVML.
 *  2. Backends of one device share the runtime's primary context. An error that ends it ends all of them, so the loss is
 *     kept here, by device.
 *  3. A lost context is destroyed when its last backend has closed, and not before: a reset under live objects would
 *     leave them with handles of the old context and addresses that the new one hands out again. So the owner frees all
 *     and closes, and the next to open gets a fresh context. Nothing else in this process may use the device's primary
 *     context meanwhile; graphics (OpenGL, Vulkan) do not. */
#include "kernels/cuda/cuda-backend.h"
#include <dlfcn.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

/* ---- What backends of a device share ------------------------------------------------------------------------- */

static struct {
    pthread_mutex_t lock;
    struct {
        unsigned n_open;
        int lost;     /* __atomic: a cudaError_t */
        int was_lost; /* __atomic: some time in this process */
    } devices[QKC_DEVICES_MAX];
} shared = {PTHREAD_MUTEX_INITIALIZER};

cudaError_t qkc_device_lost(int device)
{
    return (cudaError_t)__atomic_load_n(&shared.devices[device].lost, __ATOMIC_ACQUIRE);
}

void qkc_device_set_lost(int device, cudaError_t code)
{
    int none = cudaSuccess;
    __atomic_compare_exchange_n(
        &shared.devices[device].lost, &none, (int)code, false, __ATOMIC_ACQ_REL, __ATOMIC_ACQUIRE);
}

unsigned qkc_device_n_open(int device)
{
    pthread_mutex_lock(&shared.lock);
    unsigned n = shared.devices[device].n_open;
    pthread_mutex_unlock(&shared.lock);
    return n;
}

bool qkc_device_enter(int device)
{
    pthread_mutex_lock(&shared.lock);
    bool ok = qkc_device_lost(device) == cudaSuccess;
    shared.devices[device].n_open += ok;
    pthread_mutex_unlock(&shared.lock);
    return ok;
}

/* The driver's own reset, for a context in which the runtime refuses every call. */
static void reset_by_driver(int device)
{
    void *library = dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL);
    if (library == NULL)
        return;
    int (*get)(int *, int) = (int (*)(int *, int))dlsym(library, "cuDeviceGet");
    int (*reset)(int) = (int (*)(int))dlsym(library, "cuDevicePrimaryCtxReset_v2");
    int handle;
    if (get != NULL && reset != NULL && get(&handle, device) == 0)
        reset(handle);
    dlclose(library);
}

void qkc_device_leave(int device)
{
    pthread_mutex_lock(&shared.lock);
    if (--shared.devices[device].n_open == 0 && qkc_device_lost(device) != cudaSuccess) {
        /* In a lost context setting the device fails too, so what counts is which one is current. */
        int current = -1;
        cudaSetDevice(device);
        if (cudaGetDevice(&current) != cudaSuccess || current != device || cudaDeviceReset() != cudaSuccess)
            reset_by_driver(device);
        cudaGetLastError();
        __atomic_store_n(&shared.devices[device].lost, (int)cudaSuccess, __ATOMIC_RELEASE);
        __atomic_store_n(&shared.devices[device].was_lost, 1, __ATOMIC_RELEASE);
    }
    pthread_mutex_unlock(&shared.lock);
}

bool qkc_device_was_lost(int device)
{
    return __atomic_load_n(&shared.devices[device].was_lost, __ATOMIC_ACQUIRE) != 0;
}

/* ---- Looking ------------------------------------------------------------------------------------------------- */

/* What is known before any device is looked at. */
typedef struct {
    qkc_facts facts;
    char driver[80];
} common_facts;

static int driver_cuda_version(void *library)
{
    int (*get)(int *) = (int (*)(int *))dlsym(library, "cuDriverGetVersion");
    int version = 0;
    return get != NULL && get(&version) == 0 ? version : 0;
}

static void look_at_driver(common_facts *out)
{
    memset(out, 0, sizeof(*out));
    qkc_facts *f = &out->facts;
    f->driver = out->driver;
    f->name = "";
    f->needed_version = CUDART_VERSION;
    void *library = dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL);
    f->has_library = library != NULL;
    if (library == NULL)
        return;
    f->driver_version = driver_cuda_version(library);
    qkc_nvml_driver(out->driver, sizeof(out->driver));
    f->code = cudaGetDeviceCount(&f->n_devices);
    cudaGetLastError();
    if (f->code != cudaSuccess)
        f->n_devices = 0;
    if (f->n_devices > QKC_DEVICES_MAX)
        f->n_devices = QKC_DEVICES_MAX;
    dlclose(library);
}

/* Fills @out for device @index. Its reason is that of the driver when that is what is wrong. */
static void look_at_device(const common_facts *common, int index, qk_device *out)
{
    cudaDeviceProp prop = {};
    qkc_facts f = common->facts;
    qkc_nvml nvml;
    memset(out, 0, sizeof(*out));
    f.code = cudaGetDeviceProperties(&prop, index);
    cudaGetLastError();
    qkc_nvml_find(&nvml, &prop);
    if (qkc_nvml_memory(&nvml, &out->memory_free, &out->memory_total))
        f.memory_total = out->memory_total;
    else /* unknown: opening tells */
        out->memory_free = out->memory_total = prop.totalGlobalMem;
    snprintf(out->id, sizeof(out->id), "%s", nvml.id);
    snprintf(out->name, sizeof(out->name), "%.*s", (int)sizeof(out->name) - 1, prop.name);
    out->capability = (uint32_t)(prop.major * 10 + prop.minor);
    f.name = out->name;
    f.capability = (int)out->capability;
    f.memory_free = out->memory_free;
    if (f.code == cudaSuccess)
        f.code = qkc_device_lost(index);
    if (qkc_device_n_open(index) > 0)
        f.memory_total = 0; /* it is this process that holds the memory */
    out->usable = qkc_reason(&f, out->reason, sizeof(out->reason));
}

size_t qkc_list_devices(qk_device *out, size_t n)
{
    common_facts common;
    look_at_driver(&common);
    size_t n_devices = (size_t)common.facts.n_devices;
    for (size_t i = 0; i < n && i < n_devices; i++)
        look_at_device(&common, (int)i, &out[i]);
    return n_devices;
}

void qkc_explain(int device, cudaError_t code, char *reason, size_t reason_size)
{
    common_facts common;
    qk_device found;
    look_at_driver(&common);
    look_at_device(&common, device, &found);
    qkc_facts f = common.facts;
    f.code = code;
    f.name = found.name;
    f.capability = (int)found.capability;
    f.memory_free = found.memory_free;
    f.memory_total = found.memory_total;
    qkc_reason(&f, reason, reason_size);
}

/* ---- Choosing ------------------------------------------------------------------------------------------------ */

/* Whether @wanted is this device's id, or its index in decimal. */
static bool is_wanted(const char *wanted, int index, const qk_device *device)
{
    char number[16];
    snprintf(number, sizeof(number), "%d", index);
    return strcmp(wanted, number) == 0 || strcasecmp(wanted, device->id) == 0;
}

/* "No GPU is called "3"; there are 0: NVIDIA H200, 1: NVIDIA L4." */
static void say_what_there_is(const common_facts *common, const char *wanted, char *reason, size_t size)
{
    size_t n = (size_t)snprintf(reason, size, "No GPU is called \"%.48s\"; there %s", wanted,
        common->facts.n_devices == 1 ? "is" : "are");
    for (int i = 0; i < common->facts.n_devices && n < size; i++) {
        qk_device device;
        look_at_device(common, i, &device);
        n += (size_t)snprintf(reason + n, size - n, "%s %d: %s", i > 0 ? "," : "", i, device.name);
    }
    if (n < size)
        snprintf(reason + n, size - n, ".");
    else if (size > 4)
        memcpy(reason + size - 4, "...", 4);
}

bool qkc_find_device(
    const char *wanted, int *device, char *name, size_t name_size, char *reason, size_t reason_size)
{
    common_facts common;
    qk_device best = {}, refused = {}; /* refused: the first that will not do */
    *device = -1;
    look_at_driver(&common);
    for (int i = 0; i < common.facts.n_devices; i++) {
        qk_device candidate;
        look_at_device(&common, i, &candidate);
        if (wanted != NULL && !is_wanted(wanted, i, &candidate))
            continue;
        if (candidate.usable && (*device < 0 || candidate.memory_free > best.memory_free)) {
            best = candidate;
            *device = i;
        } else if (!candidate.usable && refused.reason[0] == '\0') {
            refused = candidate;
        }
    }
    if (*device >= 0) {
        snprintf(name, name_size, "%s", best.name);
        reason[0] = '\0';
        return true;
    }
    if (common.facts.n_devices == 0)
        qkc_reason(&common.facts, reason, reason_size);
    else if (refused.reason[0] != '\0')
        snprintf(reason, reason_size, "%s", refused.reason);
    else
        say_what_there_is(&common, wanted, reason, reason_size);
    return false;
}
