/* attn-decode.h: the choices of attn-decode.cu that a benchmark may vary. Internal to it and to
 * tests/gpu/test-gpu-attn-decode.cu. */
#pragma once
#include "kernels/cuda/cuda-ops.h"

#define QKC_DECODE_AHEAD_MAX 8u

/* None of these changes the result's value. */
typedef struct {
    uint32_t ahead;  /* pages of a warp that are asked into the L2 behind the one in its registers; 0: none */
    uint32_t per_sm; /* blocks an SM: 1 or 2 */
    bool bulk;       /* sm_90 and newer: ask for a whole page at once, not line by line */
} qkc_decode_tuning;

/* What qkc_attend_decode() takes. */
qkc_decode_tuning qkc_decode_default(const qkc_launch *launch);
cudaError_t qkc_attend_decode_tuned(
    const qkc_launch *launch, const qkc_attend_decode_args *args, const qkc_decode_tuning *tuning);
