/* cuda-nvml.cu: NVML, the driver's monitoring library: free memory, utilisation and what this process holds.
 *
 *  1. Opened at run time and declared here, since neither its header nor the library is needed to build or to run. A
 *     function that a driver lacks leaves its figure unknown.
 *  2. Creates no CUDA context, so that devices can be looked at before one is chosen.
 *  3. Opened once a process and never closed. Any thread; a qkc_nvml belongs to the engine's thread.
 *
 * What this process holds is looked up by its process id. In a container or a virtual machine NVML may speak of the
 * host's ids: then, when a single process computes on the card, it is taken to be this one; else the figure is unknown.
 *
 * Types after NVIDIA's "NVML API Reference Guide" (nvmlMemory_t, nvmlUtilization_t, nvmlProcessInfo_t of the _v2 and _v3
 * functions: id, 4 bytes of padding, bytes, two instance ids). */
#include "kernels/cuda/cuda-backend.h"
#include <dlfcn.h>
#include <pthread.h>
#include <stdio.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#define PROCESSES_MAX     256u
#define SAMPLE_MS         250
#define NVML_SUCCESS      0
#define BYTES_UNAVAILABLE UINT64_MAX

typedef struct {
    unsigned long long total, free, used;
} nvml_memory;
typedef struct {
    unsigned gpu, memory;
} nvml_utilization;
typedef struct {
    unsigned pid;
    unsigned long long bytes;
    unsigned gpu_instance, compute_instance;
} nvml_process;
static_assert(sizeof(nvml_process) == 24, "as NVML lays it out");

static struct {
    pthread_mutex_t lock;
    void *library;
    bool started;
    int (*init)(void);
    int (*by_uuid)(const char *uuid, void **device);
    int (*by_pci)(const char *bus_id, void **device);
    int (*memory)(void *device, nvml_memory *out);
    int (*utilization)(void *device, nvml_utilization *out);
    int (*processes)(void *device, unsigned *n, nvml_process *out);
    int (*driver)(char *out, unsigned size);
} nvml = {PTHREAD_MUTEX_INITIALIZER};

template <typename F> static void load(F *function, const char *name)
{
    *function = (F)dlsym(nvml.library, name);
}

/* True when NVML answers. A driver that is loaded later is found later. */
static bool start(void)
{
    pthread_mutex_lock(&nvml.lock);
    if (nvml.library == NULL && (nvml.library = dlopen("libnvidia-ml.so.1", RTLD_NOW | RTLD_LOCAL)) != NULL) {
        load(&nvml.init, "nvmlInit_v2");
        load(&nvml.by_uuid, "nvmlDeviceGetHandleByUUID");
        load(&nvml.by_pci, "nvmlDeviceGetHandleByPciBusId_v2");
        load(&nvml.memory, "nvmlDeviceGetMemoryInfo");
        load(&nvml.utilization, "nvmlDeviceGetUtilizationRates");
        load(&nvml.processes, "nvmlDeviceGetComputeRunningProcesses_v3");
        if (nvml.processes == NULL)
            load(&nvml.processes, "nvmlDeviceGetComputeRunningProcesses_v2");
        load(&nvml.driver, "nvmlSystemGetDriverVersion");
    }
    if (!nvml.started && nvml.init != NULL)
        nvml.started = nvml.init() == NVML_SUCCESS;
    bool started = nvml.started;
    pthread_mutex_unlock(&nvml.lock);
    return started;
}

static void format_id(char out[48], const char *kind, const cudaUUID_t *uuid)
{
    int n = snprintf(out, 48, "%s-", kind);
    for (int i = 0; i < 16; i++)
        n += snprintf(out + n, 48 - (size_t)n, "%s%02x", i == 4 || i == 6 || i == 8 || i == 10 ? "-" : "",
            (unsigned)(unsigned char)uuid->bytes[i]);
}

bool qkc_nvml_find(qkc_nvml *out, const cudaDeviceProp *device)
{
    memset(out, 0, sizeof(*out));
    out->utilization = -1;
    if (start() && nvml.by_uuid != NULL) {
        /* A part of a card that was divided has an id of its own. */
        format_id(out->id, "MIG", &device->uuid);
        if (nvml.by_uuid(out->id, &out->device) == NVML_SUCCESS)
            return true;
    }
    format_id(out->id, "GPU", &device->uuid);
    if (!start())
        return false;
    if (nvml.by_uuid != NULL && nvml.by_uuid(out->id, &out->device) == NVML_SUCCESS)
        return true;
    char bus_id[32];
    snprintf(bus_id, sizeof(bus_id), "%08X:%02X:%02X.0", (unsigned)device->pciDomainID,
        (unsigned)device->pciBusID, (unsigned)device->pciDeviceID);
    if (nvml.by_pci != NULL && nvml.by_pci(bus_id, &out->device) == NVML_SUCCESS)
        return true;
    out->device = NULL;
    return false;
}

bool qkc_nvml_memory(const qkc_nvml *self, uint64_t *free_bytes, uint64_t *total_bytes)
{
    nvml_memory memory = {};
    if (self->device == NULL || nvml.memory == NULL || nvml.memory(self->device, &memory) != NVML_SUCCESS)
        return false;
    *free_bytes = memory.free;
    *total_bytes = memory.total;
    return true;
}

static uint64_t process_bytes(const qkc_nvml *self)
{
    nvml_process processes[PROCESSES_MAX];
    unsigned n = PROCESSES_MAX;
    if (nvml.processes == NULL || nvml.processes(self->device, &n, processes) != NVML_SUCCESS)
        return 0;
    uint64_t bytes = 0;
    bool found = false;
    /* On a divided card a process has an entry in each part. */
    for (unsigned i = 0; i < n && i < PROCESSES_MAX; i++) {
        if (processes[i].pid == (unsigned)getpid() && processes[i].bytes != BYTES_UNAVAILABLE) {
            bytes += processes[i].bytes;
            found = true;
        }
    }
    if (!found && n == 1 && processes[0].bytes != BYTES_UNAVAILABLE)
        bytes = processes[0].bytes;
    return bytes;
}

void qkc_nvml_sample(qkc_nvml *self)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    int64_t now_ms = (int64_t)now.tv_sec * 1000 + now.tv_nsec / 1000000;
    if (self->device == NULL || (self->sampled_ms != 0 && now_ms - self->sampled_ms < SAMPLE_MS))
        return;
    self->sampled_ms = now_ms;
    nvml_utilization utilization = {};
    bool known = nvml.utilization != NULL && nvml.utilization(self->device, &utilization) == NVML_SUCCESS;
    self->utilization = known ? (int32_t)utilization.gpu : -1;
    self->process_bytes = process_bytes(self);
}

void qkc_nvml_driver(char *out, size_t size)
{
    out[0] = '\0';
    if (start() && nvml.driver != NULL && nvml.driver(out, (unsigned)size) != NVML_SUCCESS)
        out[0] = '\0';
}
