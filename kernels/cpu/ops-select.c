/* ops-select.c: which op table runs on this machine. */
#include "kernels/cpu/qk-cpu-ops.h"
#include <stdlib.h>
#include <string.h>

/* Best first; the reference runs everywhere. */
static const qk_cpu_ops *const tables[] = {
#ifdef QK_HAVE_OPS_AVX512
    &qk_cpu_ops_avx512,
#endif
#ifdef QK_HAVE_OPS_AVX2
    &qk_cpu_ops_avx2,
#endif
    &qk_cpu_ops_reference,
};

const qk_cpu_ops *qk_cpu_ops_get(const char *isa)
{
    if (isa == NULL) {
        const char *wanted = getenv("QUIRE_ISA");
        isa = wanted != NULL && wanted[0] != '\0' ? wanted : NULL;
    }
    for (size_t i = 0; i < sizeof(tables) / sizeof(tables[0]); i++)
        if ((isa == NULL || strcmp(isa, tables[i]->name) == 0) && tables[i]->supported())
            return tables[i];
    return NULL;
}
