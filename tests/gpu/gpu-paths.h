/* gpu-paths.h: the kernel sets of the CUDA module that a test runs with, one after the other; or, when a test checks itself,
 * the CPU backend in the module's place. */
#pragma once
#include <stdio.h>
#include <string.h>
#include "kernels/qk.h"
#include "tests/kernels/tap.h"

#define GPU_PATHS 2

/* Whether path @p, 0 .. GPU_PATHS - 1, is to be tested: it is @wanted (NULL: all are) and can be opened here; where it
 * cannot, a skip says why. Then @backend, @isa and @name are what to open and how to call it. */
static inline bool gpu_path_begin(
    int p, const char *wanted, bool self, const char **backend, const char **isa, const char **name)
{
    static const char *const paths[GPU_PATHS] = {"portable", "hopper"};
    char error[256] = "";
    qk_backend *opened = NULL;
    if (self ? p > 0 : wanted != NULL && strcmp(wanted, paths[p]) != 0)
        return false;
    *backend = self ? "cpu" : "cuda";
    *isa = self ? NULL : paths[p];
    *name = self ? "cpu" : paths[p];
    if (qk_backend_open(*backend, &(qk_backend_options){.isa = *isa}, &opened, error, sizeof(error)) !=
        QK_OK) {
        tap_skip("%s: %s", *name, error);
        return false;
    }
    qk_backend_free(opened);
    return true;
}
