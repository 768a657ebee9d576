/* operands.h: innermost loops under a sanitizer. Internal to the CPU backend.
 *
 * AddressSanitizer looks at every access, and in a dot product that is a hundred times the product's own work: most of a
 * test run. QK_INNER compiles a loop without it; its caller then says once, with qk_check_operand(), which bytes the loop
 * is going to use, and all of them are looked at in one call. What is found is reported as any other access is. In other
 * builds both are nothing. */
#pragma once
#include <stddef.h>

#if defined(__has_feature)
#if __has_feature(address_sanitizer)
#define QK_ADDRESS_SANITIZER
#endif
#elif defined(__SANITIZE_ADDRESS__)
#define QK_ADDRESS_SANITIZER
#endif

#ifdef QK_ADDRESS_SANITIZER
#include <sanitizer/asan_interface.h>

#define QK_INNER __attribute__((no_sanitize("address", "undefined")))

static inline void qk_check_operand(const void *operand, size_t n_bytes)
{
    const volatile char *bad = __asan_region_is_poisoned((void *)operand, n_bytes);
    if (bad != NULL)
        (void)*bad; /* this access is looked at, so it makes the report */
}
#else
#define QK_INNER

static inline void qk_check_operand(const void *operand, size_t n_bytes)
{
    (void)operand;
    (void)n_bytes;
}
#endif
