/* cuda-reason.cu: why CUDA cannot run here, in one sentence that a user can act on.
 *
 *  1. Pure: what it says depends on the facts alone, and no driver is called. A machine without a GPU tests all of it.
 *  2. Every cause has its own sentence: it names what is wrong, then what to do. It ends with a full stop and fits
 *     qk_probe's 160 bytes whatever the card is called. */
#include "kernels/cuda/cuda-backend.h"
#include <stdarg.h>
#include <stdio.h>

bool qkc_code_is_lost(cudaError_t code)
{
    switch (code) {
    case cudaErrorCudartUnloading:
    case cudaErrorDevicesUnavailable:
    case cudaErrorDeviceUninitialized:
    case cudaErrorECCUncorrectable:
    case cudaErrorNvlinkUncorrectable:
    case cudaErrorContained:
    case cudaErrorIllegalAddress:
    case cudaErrorLaunchTimeout:
    case cudaErrorContextIsDestroyed:
    case cudaErrorAssert:
    case cudaErrorHardwareStackError:
    case cudaErrorIllegalInstruction:
    case cudaErrorMisalignedAddress:
    case cudaErrorInvalidAddressSpace:
    case cudaErrorInvalidPc:
    case cudaErrorLaunchFailure:
    case cudaErrorTensorMemoryLeak:
    case cudaErrorSystemNotReady:
    case cudaErrorMpsClientTerminated:
    case cudaErrorMpsRpcFailure:
    case cudaErrorExternalDevice:
    case cudaErrorNoDevice:
    case cudaErrorUnknown:
        return true;
    default:
        return false;
    }
}

typedef struct {
    char *out;
    size_t size;
} sentence;

/* Always false: `return say(...)`. */
__attribute__((format(printf, 2, 3))) static bool say(const sentence *s, const char *format, ...)
{
    va_list args;
    va_start(args, format);
    vsnprintf(s->out, s->size, format, args);
    va_end(args);
    return false;
}

/* NVIDIA's name for the driver branch that brought a CUDA version. */
static const char *driver_branch(int cuda_version)
{
    switch (cuda_version / 1000) {
    case 12:
        return "driver 525 or newer";
    case 13:
        return "driver 580 or newer";
    default:
        return "a newer driver";
    }
}

static bool say_too_old(const sentence *s, const qkc_facts *f)
{
    int have = f->driver_version, need = f->needed_version;
    return say(s,
        "The NVIDIA driver %.20s%sis too old: it offers CUDA %d.%d and Quire needs %d.%d; install %s.",
        f->driver, f->driver[0] != '\0' ? " " : "", have / 1000, have % 1000 / 10, need / 1000,
        need % 1000 / 10, driver_branch(need));
}

static bool say_memory(const sentence *s, const qkc_facts *f, const char *name)
{
    const double gib = 1024.0 * 1024.0 * 1024.0;
    if (f->memory_total == 0)
        return say(s, "Out of memory on %.60s: close other programs that use the GPU.", name);
    return say(s, "Out of memory on %.60s: %.1f of %.1f GiB are free; close other programs that use the GPU.",
        name, (double)f->memory_free / gib, (double)f->memory_total / gib);
}

/* What failed before any device was looked at, or in opening one. */
static bool say_code(const sentence *s, const qkc_facts *f, const char *name)
{
    const char *words = cudaGetErrorString(f->code);
    switch (f->code) {
    case cudaErrorInsufficientDriver:
    case cudaErrorCallRequiresNewerDriver:
    case cudaErrorUnsupportedPtxVersion:
        if (f->driver_version > 0)
            return say_too_old(s, f);
        return say(
            s, "The NVIDIA driver's version cannot be read: install %s.", driver_branch(f->needed_version));
    case cudaErrorNoDevice:
    case cudaErrorInvalidDevice:
        return say(s, "The NVIDIA driver finds no GPU: check that one is fitted, and that "
                      "CUDA_VISIBLE_DEVICES does not "
                      "hide it.");
    case cudaErrorStubLibrary:
        return say(s, "The libcuda.so.1 found is the toolkit's stub, not a driver: take its folder out of "
                      "LD_LIBRARY_PATH.");
    case cudaErrorSystemDriverMismatch:
        return say(s, "The NVIDIA driver was updated while it was running: restart the computer.");
    case cudaErrorCompatNotSupportedOnDevice:
        return say(s,
            "CUDA's forward-compatibility library does not serve this GPU: remove the package cuda-compat.");
    case cudaErrorSystemNotReady:
        return say(s, "The GPUs of this machine are not ready: start the service nvidia-fabricmanager.");
    case cudaErrorInitializationError:
    case cudaErrorOperatingSystem:
    case cudaErrorUnknown:
        return say(s, "The NVIDIA driver does not start (%.40s): restart the computer.", words);
    case cudaErrorMemoryAllocation:
        return say_memory(s, f, name);
    case cudaErrorDevicesUnavailable:
    case cudaErrorDeviceAlreadyInUse:
        return say(s,
            "%.60s is held by another program, or its compute mode forbids use: close that program.", name);
    case cudaErrorECCUncorrectable:
    case cudaErrorNvlinkUncorrectable:
    case cudaErrorContained:
        return say(s, "%.60s reports a hardware error (%.40s): restart the computer.", name, words);
    case cudaErrorNoKernelImageForDevice:
    case cudaErrorInvalidKernelImage:
    case cudaErrorJitCompilerNotFound:
    case cudaErrorJitCompilationDisabled:
        return say(s, "This build of Quire has no code for %.60s: install a build that does.", name);
    case cudaErrorMpsConnectionFailed:
    case cudaErrorMpsServerNotReady:
    case cudaErrorMpsMaxClientsReached:
    case cudaErrorMpsMaxConnectionsReached:
        return say(
            s, "CUDA's multi-process service refuses another program (%.60s): stop or restart it.", words);
    default:
        break;
    }
    if (qkc_code_is_lost(f->code))
        return say(s, "%.60s was lost (%.40s): load the model again, or else restart Quire.", name, words);
    return say(s, "CUDA cannot be used (%.60s): restart Quire, or update the NVIDIA driver.", words);
}

bool qkc_reason(const qkc_facts *f, char *out, size_t size)
{
    const sentence s = {out, size};
    const char *name = f->name[0] != '\0' ? f->name : "The GPU";
    out[0] = '\0';
    if (!f->has_library)
        return say(&s,
            "No NVIDIA driver is installed (libcuda.so.1 is missing): install one to compute on the GPU.");
    /* Within one major version of CUDA, older drivers serve newer programs. */
    if (f->driver_version > 0 && f->driver_version / 1000 < f->needed_version / 1000)
        return say_too_old(&s, f);
    if (f->code != cudaSuccess)
        return say_code(&s, f, name);
    if (f->n_devices == 0) {
        qkc_facts none = *f;
        none.code = cudaErrorNoDevice;
        return say_code(&s, &none, name);
    }
    if (f->capability < QKC_CAPABILITY_MIN)
        return say(&s, "%.60s is too old for Quire: its compute capability is %d.%d, and %d.%d is needed.",
            name, f->capability / 10, f->capability % 10, QKC_CAPABILITY_MIN / 10, QKC_CAPABILITY_MIN % 10);
    if (f->memory_total > 0 && f->memory_free < QKC_MEMORY_FREE_MIN)
        return say_memory(&s, f, name);
    return true;
}
