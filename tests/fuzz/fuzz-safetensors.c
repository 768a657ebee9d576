/* fuzz-safetensors.c: any bytes as a safetensors file. What opens must keep its promises: every view inside the data,
 * of the size its shape says, found again by its name. */
#include "engine/qe-safetensors.h"
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n_bytes);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n_bytes)
{
    g_autoptr(GError) error = NULL;
    g_autoptr(qe_safetensors) st = qe_safetensors_new_from_memory("input", data, n_bytes, &error);
    g_assert((st == NULL) == (error != NULL));
    if (st == NULL) {
        g_assert(error->domain == QE_ERROR && g_str_has_prefix(error->message, "input: "));
        return 0;
    }
    uint64_t total = 0;
    volatile uint8_t sum = 0;
    for (size_t i = 0; i < qe_safetensors_get_n_tensors(st); i++) {
        const qe_safetensor *t = qe_safetensors_get_tensor(st, i);
        const uint8_t *bytes = t->data;
        uint64_t n = qe_dtype_bytes(t->dtype);
        for (uint32_t d = 0; d < t->n_dims; d++)
            n *= t->dims[d];
        g_assert(n == t->n_bytes);
        g_assert(bytes >= data + 8 && t->n_bytes <= (uint64_t)(data + n_bytes - bytes));
        g_assert(qe_safetensors_find(st, t->name) == t);
        total += n;
        if (n > 0)
            sum = (uint8_t)(sum + bytes[0] + bytes[n - 1]);
    }
    g_assert(total <= n_bytes - 8);
    return 0;
}
