/* test-kernels-cuda-reasons.cu: every sentence that says why CUDA cannot run, from made-up facts; needs no driver. */
#include "kernels/cuda/cuda-backend.h"
#include "tests/kernels/tap.h"
#include <string.h>

#define N_SEEN_MAX 64

static char seen[N_SEEN_MAX][160];
static int n_seen;

/* A card and a driver with which all is well. */
static qkc_facts good_facts(void)
{
    qkc_facts f = {};
    f.has_library = true;
    f.driver_version = 13000;
    f.needed_version = 13000;
    f.driver = "580.65.06";
    f.n_devices = 1;
    f.name = "NVIDIA GeForce RTX 4090 D";
    f.capability = 89;
    f.memory_free = 20ull << 30;
    f.memory_total = 24ull << 30;
    return f;
}

/* Refused, in a sentence with @words that fits, is whole, and was not said of anything before. */
static void expect(const char *what, const qkc_facts *facts, const char *words)
{
    char reason[160], larger[512];
    bool usable = qkc_reason(facts, reason, sizeof(reason));
    qkc_reason(facts, larger, sizeof(larger));
    size_t n = strlen(reason);
    bool fresh = true;
    for (int i = 0; i < n_seen; i++)
        fresh = fresh && strcmp(seen[i], reason) != 0;
    tap_note("%s: %s", what, reason);
    tap_ok(!usable && strstr(reason, words) != NULL && n > 20 && reason[n - 1] == '.' && reason[0] >= 'A' &&
               reason[0] <= 'Z' && strcmp(reason, larger) == 0,
        "%s: one whole sentence", what);
    tap_ok(fresh, "%s: a sentence of its own", what);
    if (n_seen < N_SEEN_MAX)
        memcpy(seen[n_seen++], reason, sizeof(reason));
}

static void expect_code(const char *what, cudaError_t code, const char *words)
{
    qkc_facts f = good_facts();
    f.code = code;
    expect(what, &f, words);
    f.name = "An NVIDIA card with an extraordinarily long name, as workstation laptops have, and more of it";
    char reason[160];
    qkc_reason(&f, reason, sizeof(reason));
    tap_ok(reason[strlen(reason) - 1] == '.', "%s: whole with a long name", what);
}

static void test_facts(void)
{
    char reason[160] = "left over";
    qkc_facts f = good_facts();
    tap_ok(qkc_reason(&f, reason, sizeof(reason)) && reason[0] == '\0', "nothing wrong: no reason");
    f.memory_free = f.memory_total = 0;
    tap_ok(qkc_reason(&f, reason, sizeof(reason)), "unknown memory is no reason");
    f = good_facts();
    f.driver_version = 13010;
    f.needed_version = 13020;
    tap_ok(qkc_reason(&f, reason, sizeof(reason)), "an older driver of the same major version will do");

    f = good_facts();
    f.has_library = false;
    f.driver_version = 0;
    f.driver = "";
    f.n_devices = 0;
    expect("no driver", &f, "No NVIDIA driver is installed");

    f = good_facts();
    f.code = cudaErrorInsufficientDriver;
    f.driver_version = 12020;
    f.driver = "535.104.05";
    f.n_devices = 0;
    expect("driver too old", &f,
        "driver 535.104.05 is too old: it offers CUDA 12.2 and Quire needs 13.0; install driver 580");
    f.driver = "";
    f.code = cudaSuccess;
    expect("driver too old, unnamed", &f, "The NVIDIA driver is too old");
    f.code = cudaErrorInsufficientDriver;
    f.driver_version = 0;
    expect("driver of unknown version", &f, "version cannot be read");

    f = good_facts();
    f.n_devices = 0;
    f.name = "";
    expect("no device", &f, "finds no GPU");

    f = good_facts();
    f.name = "NVIDIA GeForce RTX 2080 Ti";
    f.capability = 75;
    expect("too old a card", &f,
        "NVIDIA GeForce RTX 2080 Ti is too old for Quire: its compute capability is 7.5, and 8.0");

    f = good_facts();
    f.memory_free = 100ull << 20;
    expect("memory full", &f, "Out of memory on NVIDIA GeForce RTX 4090 D: 0.1 of 24.0 GiB are free");
    f.code = cudaErrorMemoryAllocation;
    f.memory_free = f.memory_total = 0;
    expect("memory full, unknown", &f, "Out of memory on NVIDIA GeForce RTX 4090 D: close");
}

static void test_codes(void)
{
    expect_code("stub library", cudaErrorStubLibrary, "stub");
    expect_code("driver mismatch", cudaErrorSystemDriverMismatch, "updated while it was running");
    expect_code("forward compatibility", cudaErrorCompatNotSupportedOnDevice, "cuda-compat");
    expect_code("fabric manager", cudaErrorSystemNotReady, "nvidia-fabricmanager");
    expect_code("driver does not start", cudaErrorInitializationError, "does not start");
    expect_code("driver unknown", cudaErrorUnknown, "does not start");
    expect_code("device taken", cudaErrorDevicesUnavailable, "held by another program");
    expect_code("ECC", cudaErrorECCUncorrectable, "hardware error");
    expect_code("no code for the card", cudaErrorNoKernelImageForDevice, "no code for");
    expect_code("MPS", cudaErrorMpsMaxClientsReached, "multi-process service");
    expect_code("launch failure", cudaErrorLaunchFailure, "was lost");
    expect_code("illegal address", cudaErrorIllegalAddress, "was lost");
    expect_code("anything else", cudaErrorNotPermitted, "cannot be used");
}

/* Whatever CUDA returns is said in a whole sentence. */
static void test_all_codes(void)
{
    int n_bad = 0;
    for (int code = 1; code <= 1000; code++) {
        char reason[160];
        qkc_facts f = good_facts();
        f.code = (cudaError_t)code;
        bool usable = qkc_reason(&f, reason, sizeof(reason));
        if (usable || reason[0] == '\0' || reason[strlen(reason) - 1] != '.') {
            tap_note("code %d: %s", code, reason);
            n_bad++;
        }
    }
    tap_ok(n_bad == 0, "all codes have a whole sentence");
    tap_ok(qkc_code_is_lost(cudaErrorLaunchFailure) && qkc_code_is_lost(cudaErrorIllegalAddress) &&
               qkc_code_is_lost(cudaErrorECCUncorrectable) && !qkc_code_is_lost(cudaErrorMemoryAllocation) &&
               !qkc_code_is_lost(cudaErrorInvalidValue) && !qkc_code_is_lost(cudaErrorNotReady) &&
               !qkc_code_is_lost(cudaSuccess),
        "faults lose the device, refusals do not");
}

int main()
{
    test_facts();
    test_codes();
    test_all_codes();
    return tap_done();
}
