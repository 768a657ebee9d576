/* philox.h: counter-based random numbers. Philox4x32-10 of Salmon, Moraes, Dror and Shaw, "Parallel Random Numbers: As
 * Easy as 1, 2, 3" (SC 2011): ten rounds of two 32x32->64 multiplications. No state: the same key and counter always
 * give the same four words, so a draw does not depend on what was drawn before or beside it. */
#pragma once
#include <stdint.h>

static inline void qk_philox4x32_10(const uint32_t key[2], const uint32_t counter[4], uint32_t out[4])
{
    uint32_t k0 = key[0], k1 = key[1];
    uint32_t c0 = counter[0], c1 = counter[1], c2 = counter[2], c3 = counter[3];
    for (int round = 0; round < 10; round++) {
        uint64_t p0 = (uint64_t)0xD2511F53u * c0;
        uint64_t p1 = (uint64_t)0xCD9E8D57u * c2;
        c0 = (uint32_t)(p1 >> 32) ^ c1 ^ k0;
        c1 = (uint32_t)p1;
        c2 = (uint32_t)(p0 >> 32) ^ c3 ^ k1;
        c3 = (uint32_t)p0;
        k0 += 0x9E3779B9u; /* the golden ratio */
        k1 += 0xBB67AE85u; /* the square root of 3, less 1 */
    }
    out[0] = c0;
    out[1] = c1;
    out[2] = c2;
    out[3] = c3;
}

/* The uniform number in [0, 1), with 53 bits, that belongs to (seed, position). */
static inline double qk_philox_uniform(uint64_t seed, uint64_t position)
{
    const uint32_t key[2] = {(uint32_t)seed, (uint32_t)(seed >> 32)};
    const uint32_t counter[4] = {(uint32_t)position, (uint32_t)(position >> 32), 0, 0};
    uint32_t out[4];
    qk_philox4x32_10(key, counter, out);
    uint64_t bits = (uint64_t)out[0] << 32 | out[1];
    return (double)(bits >> 11) * 0x1p-53;
}
